//! Files as byte streams: plain, gzip or zstd, told apart by their first bytes and never by their
//! names. What is certainly neither text nor IDX is refused for what it is (`foreign.rs`).

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use flate2::bufread::MultiGzDecoder;

use super::{DataError, Foreign, LARGEST_VALUE, Place};

/// How many bytes are looked at to know what a file is.
const HEAD: usize = 4096;

/// The longest line of text that is taken for a row. Without it a file without line ends would be
/// read into memory whole before anything could be said about it.
const LONGEST_LINE: u64 = 1 << 28;

/// An open file, decompressed if need be, that knows its name for error messages.
pub(super) struct Input<'a> {
    path: PathBuf,
    reader: Box<dyn BufRead + 'a>,
    packing: Option<Packing>,
    /// The first bytes, decompressed.
    head: Vec<u8>,
}

impl Input<'static> {
    pub(super) fn open(path: &Path) -> Result<Input<'static>, DataError> {
        let failed = |error| DataError::File {
            path: path.to_owned(),
            error,
        };
        let file = File::open(path).map_err(failed)?;
        if file.metadata().map_err(failed)?.is_dir() {
            return Err(failed(io::Error::other(
                "expected a file, found a directory",
            )));
        }
        Input::new(path, file)
    }
}

impl<'a> Input<'a> {
    pub(super) fn new(name: &Path, reader: impl Read + 'a) -> Result<Input<'a>, DataError> {
        let failed = |error| DataError::File {
            path: name.to_owned(),
            error,
        };
        let mut reader = reader;
        let mut head = head(&mut reader).map_err(failed)?;
        let packing = Packing::of(&head);
        let mut input = Input {
            path: name.to_owned(),
            reader: Box::new(rejoin(head.clone(), reader)),
            packing,
            head: Vec::new(),
        };
        if let Some(packing) = packing {
            let packed = std::mem::replace(&mut input.reader, Box::new(io::empty()));
            let unpacked = packing.unpack(packed);
            let mut unpacked = unpacked.map_err(|error| input.failed(error))?;
            head = self::head(&mut unpacked).map_err(|error| input.failed(error))?;
            input.reader = Box::new(rejoin(head.clone(), unpacked));
        }
        match Foreign::of(&head, name) {
            Some(kind) => Err(DataError::Foreign {
                path: name.to_owned(),
                kind,
            }),
            None => {
                input.head = head;
                Ok(input)
            }
        }
    }

    /// The first bytes, which will be read again.
    pub(super) fn head(&self) -> &[u8] {
        &self.head
    }

    /// The same if it can be text.
    pub(super) fn into_text(self) -> Result<Self, DataError> {
        match Foreign::of_text(&self.head) {
            None => Ok(self),
            Some(kind) => Err(DataError::Foreign {
                path: self.path,
                kind,
            }),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The error for a read that failed: broken compression is a matter of the file's format.
    pub(super) fn failed(&self, error: io::Error) -> DataError {
        if let Some(packing) = self.packing {
            return DataError::Format {
                place: Place::file(&self.path),
                expected: format!("whole {} data", packing.name()),
                found: format!("damaged or truncated data ({error})"),
            };
        }
        DataError::File {
            path: self.path.clone(),
            error,
        }
    }

    /// Reads the next line into `line`, without its end; false at the end of the file.
    pub(super) fn next_line(&mut self, number: u64, line: &mut Vec<u8>) -> Result<bool, DataError> {
        line.clear();
        let mut limited = self.reader.by_ref().take(LONGEST_LINE);
        let length = limited
            .read_until(b'\n', line)
            .map_err(|error| self.failed(error))?;
        if length as u64 == LONGEST_LINE && line.last() != Some(&b'\n') {
            return Err(DataError::Format {
                place: Place::line(&self.path, number),
                expected: format!("a line of at most {LONGEST_LINE} bytes"),
                found: "a longer one".to_owned(),
            });
        }
        if line.last() == Some(&b'\n') {
            line.pop();
        }
        Ok(length > 0)
    }

    /// Reads exactly as many bytes as `buffer` holds; false if the file ends before.
    pub(super) fn read_whole(&mut self, buffer: &mut [u8]) -> Result<bool, DataError> {
        let length = fill(&mut self.reader, buffer).map_err(|error| self.failed(error))?;
        Ok(length == buffer.len())
    }

    /// Reads up to `limit` bytes. Memory grows with what is really there, not with the limit.
    pub(super) fn read_up_to(&mut self, limit: u64) -> Result<Vec<u8>, DataError> {
        let mut bytes = Vec::new();
        let outcome = self.reader.by_ref().take(limit).read_to_end(&mut bytes);
        outcome.map_err(|error| self.failed(error))?;
        Ok(bytes)
    }
}

impl Read for Input<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.reader.read(buffer)
    }
}

/// How a file is packed.
#[derive(Clone, Copy)]
enum Packing {
    Gzip,
    Zstd,
}

impl Packing {
    /// Of a file with these first bytes.
    fn of(head: &[u8]) -> Option<Packing> {
        match head {
            [0x1f, 0x8b, ..] => Some(Packing::Gzip),
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Some(Packing::Zstd),
            _ => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Packing::Gzip => "gzip",
            Packing::Zstd => "zstd",
        }
    }

    fn unpack<'a>(self, packed: Box<dyn BufRead + 'a>) -> io::Result<Box<dyn Read + 'a>> {
        Ok(match self {
            Packing::Gzip => Box::new(MultiGzDecoder::new(packed)),
            Packing::Zstd => Box::new(zstd::stream::read::Decoder::with_buffer(packed)?),
        })
    }
}

/// The first bytes.
fn head(reader: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut head = vec![0; HEAD];
    let length = fill(reader, &mut head)?;
    head.truncate(length);
    Ok(head)
}

/// All bytes again, after the first ones were looked at.
fn rejoin(head: Vec<u8>, rest: impl Read) -> impl BufRead {
    BufReader::with_capacity(1 << 16, io::Cursor::new(head).chain(rest))
}

/// Reads until the buffer is full or the data ends; says how much there was.
fn fill(reader: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut length = 0;
    while length < buffer.len() {
        match reader.read(&mut buffer[length..]) {
            Ok(0) => break,
            Ok(count) => length += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(length)
}

/// A feature that was read from text; if it cannot be one, what was expected.
pub(super) fn feature_value(read: Option<f32>) -> Result<f32, &'static str> {
    match read {
        Some(value) if value.abs() <= LARGEST_VALUE => Ok(value),
        Some(value) if value.is_finite() => Err("a number of at most 2^64"),
        _ => Err("a finite number"),
    }
}

/// Text from a file as it may stand in an error message: quoted, printable and short.
pub(super) fn quote(bytes: &[u8]) -> String {
    const LONGEST: usize = 40;
    if bytes.is_empty() {
        return "nothing".to_owned();
    }
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(4 * LONGEST)]);
    let short: String = text
        .chars()
        .take(LONGEST)
        .flat_map(char::escape_debug)
        .collect();
    let cut = text.chars().count() > LONGEST || bytes.len() > 4 * LONGEST;
    if cut {
        format!("\"{short}...\"")
    } else {
        format!("\"{short}\"")
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn lines(bytes: &[u8]) -> Result<Vec<String>, DataError> {
        let mut input = Input::new(Path::new("memory"), bytes)?;
        let (mut all, mut line, mut number) = (Vec::new(), Vec::new(), 1);
        while input.next_line(number, &mut line)? {
            all.push(String::from_utf8_lossy(&line).into_owned());
            number += 1;
        }
        Ok(all)
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn gzip_is_recognised_by_content_and_joined_members_are_read_through() {
        assert_eq!(lines(b"a\nb").unwrap(), ["a", "b"]);
        assert_eq!(lines(&gzip(b"a\nb")).unwrap(), ["a", "b"]);
        assert_eq!(
            lines(&[gzip(b"a\n"), gzip(b"b\n")].concat()).unwrap(),
            ["a", "b"]
        );
        assert!(lines(b"").unwrap().is_empty());
        assert_eq!(lines(b"\x1f").unwrap(), ["\x1f"]);
    }

    fn zstd(bytes: &[u8]) -> Vec<u8> {
        zstd::encode_all(bytes, 3).unwrap()
    }

    #[test]
    fn damaged_packed_data_is_an_error_of_the_format() {
        let text = b"some text that is long enough\n".repeat(50);
        for (whole, name) in [(gzip(&text), "gzip"), (zstd(&text), "zstd")] {
            assert_eq!(lines(&whole).unwrap().len(), 50);
            for cut in [4, 5, 12, whole.len() - 9, whole.len() - 1] {
                let error = lines(&whole[..cut]).unwrap_err();
                assert!(matches!(error, DataError::Format { .. }), "{cut}: {error}");
                let said = format!("memory: expected whole {name} data, found damaged");
                assert!(error.to_string().starts_with(&said), "{cut}: {error}");
            }
        }
    }

    #[test]
    fn zstd_frames_are_read_through() {
        let joined = [zstd(b"a\n"), zstd(b"b\n")].concat();
        assert_eq!(lines(&joined).unwrap(), ["a", "b"]);
    }

    #[test]
    fn quotes_are_short_and_printable() {
        assert_eq!(quote(b""), "nothing");
        assert_eq!(quote(b"a\tb\x00"), "\"a\\tb\\0\"");
        assert_eq!(quote(&[b'x'; 1000]), format!("\"{}...\"", "x".repeat(40)));
    }

    #[test]
    fn a_directory_is_not_a_file() {
        let directory = tempfile::tempdir().unwrap();
        assert!(matches!(
            Input::open(directory.path()),
            Err(DataError::File { .. })
        ));
        assert!(matches!(
            Input::open(&directory.path().join("none")),
            Err(DataError::File { .. })
        ));
    }
}
