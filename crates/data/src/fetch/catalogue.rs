//! The public data sets that the program knows by name: their sizes, files, checksums and mirrors.

use std::path::{Path, PathBuf};

/// A public data set.
#[derive(Debug, PartialEq, Eq)]
pub struct Known {
    /// The source's name, which is also that of its folder.
    pub name: &'static str,
    /// Records to train on.
    pub rows: usize,
    /// Records to test on.
    pub test_rows: usize,
    /// Features of a record.
    pub features: usize,
    /// Classes.
    pub classes: usize,
    /// Whether the program carries it, so that nothing needs to be fetched.
    pub built_in: bool,
    /// Its files, as the mirrors have them.
    pub files: &'static [KnownFile],
    /// Addresses under which the files are found, best first, each ending in a slash.
    pub mirrors: &'static [&'static str],
}

/// A file of a public data set.
#[derive(Debug, PartialEq, Eq)]
pub struct KnownFile {
    /// Its name.
    pub name: &'static str,
    /// Its length.
    pub bytes: u64,
    /// SHA-256 of its bytes.
    pub sha256: &'static str,
}

/// Where a data set is found on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Presence {
    /// In the program.
    BuiltIn,
    /// All files are in this folder.
    In(PathBuf),
    /// This folder lacks some files.
    Incomplete(PathBuf),
    /// Nowhere.
    Absent,
}

const fn file(name: &'static str, bytes: u64, sha256: &'static str) -> KnownFile {
    KnownFile {
        name,
        bytes,
        sha256,
    }
}

/// Every known data set.
pub const KNOWN: &[Known] = &[
    Known {
        name: "a9a",
        rows: 32_561,
        test_rows: 16_281,
        features: 123,
        classes: 2,
        built_in: true,
        files: &[
            file(
                "a9a",
                2_329_875,
                "f5d5ffd8d865ff41328e7ee043e4b020816914ff6843ff15b98905ddbedce906",
            ),
            file(
                "a9a.t",
                1_164_628,
                "1f448a153f0320399a7e40836eb207655b0bde0f21fc941cc472193daa9f5de9",
            ),
        ],
        mirrors: &["https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/"],
    },
    Known {
        name: "mnist",
        rows: 60_000,
        test_rows: 10_000,
        features: 784,
        classes: 10,
        built_in: false,
        files: &[
            file(
                "train-images-idx3-ubyte.gz",
                9_912_422,
                "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            ),
            file(
                "train-labels-idx1-ubyte.gz",
                28_881,
                "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            ),
            file(
                "t10k-images-idx3-ubyte.gz",
                1_648_877,
                "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            ),
            file(
                "t10k-labels-idx1-ubyte.gz",
                4_542,
                "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            ),
        ],
        mirrors: &[
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
        ],
    },
    Known {
        name: "fashion-mnist",
        rows: 60_000,
        test_rows: 10_000,
        features: 784,
        classes: 10,
        built_in: false,
        files: &[
            file(
                "train-images-idx3-ubyte.gz",
                26_421_880,
                "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            ),
            file(
                "train-labels-idx1-ubyte.gz",
                29_515,
                "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            ),
            file(
                "t10k-images-idx3-ubyte.gz",
                4_422_102,
                "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            ),
            file(
                "t10k-labels-idx1-ubyte.gz",
                5_148,
                "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
            ),
        ],
        mirrors: &[
            "https://storage.googleapis.com/tensorflow/tf-keras-datasets/",
            "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        ],
    },
];

impl Known {
    /// The data set of this name.
    pub fn named(name: &str) -> Option<&'static Known> {
        KNOWN.iter().find(|known| known.name == name)
    }

    /// Where it is found when these directories are searched in order.
    pub fn presence(&self, directories: &[PathBuf]) -> Presence {
        if self.built_in {
            return Presence::BuiltIn;
        }
        for directory in directories {
            let folder = directory.join(self.name);
            let present = self.files.iter().filter(|file| file.is_in(&folder)).count();
            if present == self.files.len() {
                return Presence::In(folder);
            }
            if present > 0 {
                return Presence::Incomplete(folder);
            }
        }
        Presence::Absent
    }
}

impl KnownFile {
    /// Whether the folder has it, compressed or not.
    fn is_in(&self, folder: &Path) -> bool {
        let plain = self.name.strip_suffix(".gz").unwrap_or(self.name);
        folder.join(self.name).is_file() || folder.join(plain).is_file()
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use sha2::{Digest, Sha256};

    use super::*;
    use crate::{Dataset, Features, a9a};

    /// The LIBSVM collection's own spelling: signed labels, a space after every entry.
    fn libsvm_text(data: &Dataset) -> String {
        let Features::Sparse(rows) = data.features() else {
            panic!("a9a is sparse")
        };
        let mut text = String::new();
        for (row, &label) in data.labels().iter().enumerate() {
            text += if label == 1 { "+1 " } else { "-1 " };
            for index in rows.row(row).indices {
                let _ = write!(text, "{}:1 ", index + 1);
            }
            text.push('\n');
        }
        text
    }

    /// The built-in a9a, written as the LIBSVM collection writes it, has the checksums of the files
    /// to fetch: both the records and the checksums are right.
    #[test]
    fn the_built_in_a9a_has_the_published_checksums() {
        let (train, test) = a9a::load().unwrap();
        let known = Known::named("a9a").unwrap();
        for (data, file) in [(train, &known.files[0]), (test, &known.files[1])] {
            let text = libsvm_text(&data);
            assert_eq!(text.len() as u64, file.bytes, "{}", file.name);
            let digest: String = Sha256::digest(&text)
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect();
            assert_eq!(digest, file.sha256, "{}", file.name);
        }
    }

    #[test]
    fn the_catalogue_is_well_formed() {
        for known in KNOWN {
            assert!(
                known.mirrors.iter().all(|mirror| mirror.ends_with('/')),
                "{}",
                known.name
            );
            for file in known.files {
                let hexadecimal = file
                    .sha256
                    .bytes()
                    .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
                assert!(file.sha256.len() == 64 && hexadecimal, "{}", file.name);
            }
        }
    }

    #[test]
    fn sets_are_found_with_and_without_compression() {
        let place = tempfile::tempdir().unwrap();
        let (first, second) = (place.path().join("first"), place.path().join("second"));
        let both = [first.clone(), second.clone()];
        let mnist = Known::named("mnist").unwrap();
        assert_eq!(mnist.presence(&both), Presence::Absent);
        std::fs::create_dir_all(second.join("mnist")).unwrap();
        for (index, file) in mnist.files.iter().enumerate() {
            let name = if index % 2 == 0 {
                file.name
            } else {
                file.name.strip_suffix(".gz").unwrap()
            };
            assert_ne!(mnist.presence(&both), Presence::In(second.join("mnist")));
            std::fs::write(second.join("mnist").join(name), "").unwrap();
        }
        assert_eq!(mnist.presence(&both), Presence::In(second.join("mnist")));
        std::fs::create_dir_all(first.join("mnist")).unwrap();
        std::fs::write(first.join("mnist").join(mnist.files[0].name), "").unwrap();
        assert_eq!(
            mnist.presence(&both),
            Presence::Incomplete(first.join("mnist"))
        );
        assert_eq!(
            Known::named("a9a").unwrap().presence(&[]),
            Presence::BuiltIn
        );
    }
}
