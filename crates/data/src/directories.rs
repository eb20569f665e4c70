//! Where known data sets are looked for on this machine, and how their files are called.
//!
//! Inside of each directory a set has a folder of its own, `mnist/train-images-idx3-ubyte.gz` and
//! so on, with or without `.gz`.

use std::env;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use super::{DataError, Place};

/// Directories that are searched for data sets, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DataDirectories {
    directories: Vec<PathBuf>,
}

impl DataDirectories {
    /// These directories and no others.
    pub fn new(directories: Vec<PathBuf>) -> DataDirectories {
        DataDirectories { directories }
    }

    /// The directory that was asked for, then `SOTERIA_DATA`, then the cache.
    pub fn from_environment(explicit: Option<&Path>) -> DataDirectories {
        let named = variable("SOTERIA_DATA").map(PathBuf::from);
        let all = explicit
            .map(Path::to_owned)
            .into_iter()
            .chain(named)
            .chain(DataDirectories::cache());
        DataDirectories {
            directories: all.collect(),
        }
    }

    /// Where downloads go: `soteria` inside of `XDG_CACHE_HOME`, or of `.cache` in the home
    /// directory.
    pub fn cache() -> Option<PathBuf> {
        cache_directory(variable("XDG_CACHE_HOME"), variable("HOME"))
    }

    /// The directories in the order they are searched.
    pub fn as_slice(&self) -> &[PathBuf] {
        &self.directories
    }

    /// The files of a LIBSVM set, for training and perhaps for a test: from the first directory
    /// that has the former.
    pub(super) fn libsvm_set(
        &self,
        name: &str,
    ) -> Result<Option<(PathBuf, Option<PathBuf>)>, DataError> {
        for directory in &self.directories {
            let folder = directory.join(name);
            if let Some(train) = existing(&folder, name)? {
                return Ok(Some((train, existing(&folder, &format!("{name}.t"))?)));
            }
        }
        Ok(None)
    }

    /// The four files of an image set: from the first directory that has its training images.
    pub(super) fn image_set(&self, name: &'static str) -> Result<ImageFiles, DataError> {
        let missing = |file: String, looked: &[PathBuf]| DataError::Missing {
            name,
            file,
            looked: looked
                .iter()
                .map(|directory| directory.join(name))
                .collect(),
        };
        for directory in &self.directories {
            let folder = directory.join(name);
            if existing(&folder, TRAIN_IMAGES)?.is_none() {
                continue;
            }
            let file = |stem: &str| {
                let found = existing(&folder, stem)?;
                found.ok_or_else(|| missing(format!("{stem}.gz"), std::slice::from_ref(directory)))
            };
            return Ok(ImageFiles {
                train: (file(TRAIN_IMAGES)?, file(TRAIN_LABELS)?),
                test: Some((file(TEST_IMAGES)?, file(TEST_LABELS)?)),
            });
        }
        Err(missing(format!("{TRAIN_IMAGES}.gz"), &self.directories))
    }
}

const TRAIN_IMAGES: &str = "train-images-idx3-ubyte";
const TRAIN_LABELS: &str = "train-labels-idx1-ubyte";
const TEST_IMAGES: &str = "t10k-images-idx3-ubyte";
const TEST_LABELS: &str = "t10k-labels-idx1-ubyte";

/// Images and labels, for training and perhaps for a test.
#[derive(Debug)]
pub(super) struct ImageFiles {
    pub(super) train: (PathBuf, PathBuf),
    pub(super) test: Option<(PathBuf, PathBuf)>,
}

impl ImageFiles {
    /// A folder of IDX files: `train-images...`, `train-labels...`, and perhaps `t10k-...` or
    /// `test-...`; what follows in the names does not matter.
    pub(super) fn in_folder(folder: &Path) -> Result<ImageFiles, DataError> {
        let failed = |error| DataError::File {
            path: folder.to_owned(),
            error,
        };
        let mut names = Vec::new();
        for entry in folder.read_dir().map_err(failed)? {
            names.push(entry.map_err(failed)?.file_name());
        }
        names.sort();
        let find = |prefix: &str| match_one(folder, &names, prefix);
        let wanted = |prefix: &str| {
            find(prefix)?.ok_or_else(|| DataError::Format {
                place: Place::file(folder),
                expected: format!("a file {prefix}*"),
                found: "none".to_owned(),
            })
        };
        let train = (wanted("train-images")?, wanted("train-labels")?);
        for prefix in ["t10k", "test"] {
            if let Some(images) = find(&format!("{prefix}-images"))? {
                let test = Some((images, wanted(&format!("{prefix}-labels"))?));
                return Ok(ImageFiles { train, test });
            }
        }
        Ok(ImageFiles { train, test: None })
    }
}

/// The file whose name starts like this; of a file and its compressed twin the former.
fn match_one(
    folder: &Path,
    names: &[OsString],
    prefix: &str,
) -> Result<Option<PathBuf>, DataError> {
    let texts = names
        .iter()
        .filter_map(|name| name.to_str())
        .filter(|name| name.starts_with(prefix));
    let mut distinct: Vec<&str> = Vec::new();
    for name in texts {
        // Sorted order puts the plain name before the one with an ending.
        if distinct
            .last()
            .is_none_or(|last| name != format!("{last}.gz"))
        {
            distinct.push(name);
        }
    }
    match distinct.as_slice() {
        [] => Ok(None),
        [name] => Ok(Some(folder.join(name))),
        several => Err(DataError::Format {
            place: Place::file(folder),
            expected: format!("one file {prefix}*"),
            found: several.join(", "),
        }),
    }
}

/// The file of that name, compressed or not, if it is there.
fn existing(folder: &Path, stem: &str) -> Result<Option<PathBuf>, DataError> {
    for name in [format!("{stem}.gz"), stem.to_owned()] {
        let path = folder.join(name);
        match path.metadata() {
            Ok(_) => return Ok(Some(path)),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                ) => {}
            Err(error) => return Err(DataError::File { path, error }),
        }
    }
    Ok(None)
}

fn variable(name: &str) -> Option<OsString> {
    env::var_os(name).filter(|value| !value.is_empty())
}

/// Relative cache directories are ignored, as the XDG convention asks.
fn cache_directory(cache: Option<OsString>, home: Option<OsString>) -> Option<PathBuf> {
    let cache = cache.map(PathBuf::from).filter(|path| path.is_absolute());
    let base = cache.or_else(|| home.map(|home| PathBuf::from(home).join(".cache")));
    base.map(|base| base.join("soteria"))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_cache_follows_the_convention() {
        let find = |cache: Option<&str>, home: Option<&str>| {
            cache_directory(cache.map(OsString::from), home.map(OsString::from))
        };
        assert_eq!(find(Some("/c"), Some("/h")), Some("/c/soteria".into()));
        assert_eq!(
            find(Some("relative"), Some("/h")),
            Some("/h/.cache/soteria".into())
        );
        assert_eq!(find(None, Some("/h")), Some("/h/.cache/soteria".into()));
        assert_eq!(find(None, None), None);
    }

    #[test]
    fn a_missing_set_says_where_it_was_looked_for_and_what_to_run() {
        let root = tempfile::tempdir().unwrap();
        let (first, second) = (root.path().join("a"), root.path().join("b"));
        let directories = DataDirectories::new(vec![first.clone(), second.clone()]);
        assert_eq!(
            directories.image_set("mnist").unwrap_err().to_string(),
            format!(
                "mnist is not here: looked for train-images-idx3-ubyte.gz in {}, {}; run `soteria data fetch mnist`",
                first.join("mnist").display(),
                second.join("mnist").display()
            )
        );
        let folder = second.join("mnist");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(TRAIN_IMAGES), []).unwrap();
        let error = directories.image_set("mnist").unwrap_err().to_string();
        assert!(
            error.contains("looked for train-labels-idx1-ubyte.gz in "),
            "{error}"
        );
        assert!(
            DataDirectories::default()
                .image_set("mnist")
                .unwrap_err()
                .to_string()
                .contains("no directory")
        );
        for name in [TRAIN_LABELS, TEST_IMAGES, TEST_LABELS] {
            fs::write(folder.join(format!("{name}.gz")), []).unwrap();
        }
        let files = directories.image_set("mnist").unwrap();
        assert_eq!(
            files.train,
            (
                folder.join(TRAIN_IMAGES),
                folder.join(format!("{TRAIN_LABELS}.gz"))
            )
        );
        assert!(files.test.is_some());
    }

    #[test]
    fn folders_of_idx_files_are_understood() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        let add = |name: &str| fs::write(path.join(name), []).unwrap();
        assert!(
            ImageFiles::in_folder(path)
                .unwrap_err()
                .to_string()
                .contains("expected a file train-images*")
        );
        [
            "train-images.idx",
            "train-images.idx.gz",
            "train-labels.idx.gz",
        ]
        .into_iter()
        .for_each(add);
        let files = ImageFiles::in_folder(path).unwrap();
        assert_eq!(
            files.train,
            (
                path.join("train-images.idx"),
                path.join("train-labels.idx.gz")
            )
        );
        assert!(files.test.is_none());
        add("test-images.idx");
        assert!(ImageFiles::in_folder(path).is_err());
        add("test-labels.idx");
        assert!(ImageFiles::in_folder(path).unwrap().test.is_some());
        add("train-images.other");
        assert!(
            ImageFiles::in_folder(path)
                .unwrap_err()
                .to_string()
                .contains("expected one file train-images*")
        );
        assert!(ImageFiles::in_folder(&path.join("none")).is_err());
    }
}
