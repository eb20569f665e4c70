//! Files of kinds that are not read here, known by their first bytes, so that a person is told what
//! a file is and not what its bytes would mean as text.
//!
//! Only beginnings that neither text nor IDX can have are known: a table may well have a first
//! column `PAR1`.

use std::fmt;
use std::path::Path;

/// A kind of file that is not read here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs)] // What they are called says what they are.
pub enum Foreign {
    Zip,
    Excel,
    OldExcel,
    OpenDocument,
    Npz,
    Npy,
    Parquet,
    Arrow,
    Hdf5,
    Sqlite,
    Utf16,
    Utf32,
    Bzip2,
    Xz,
    SevenZip,
    Tar,
    Pickle,
    Pdf,
    Html,
}

impl Foreign {
    /// What these first bytes are the beginning of; the name helps where archives of several kinds
    /// begin alike.
    pub(super) fn of(head: &[u8], name: &Path) -> Option<Foreign> {
        let starts = |magic: &[u8]| head.starts_with(magic);
        let binary_after = |magic: &[u8]| {
            let next = head.get(magic.len());
            starts(magic) && next.is_some_and(|&byte| byte < b' ' && !byte.is_ascii_whitespace())
        };
        Some(match head {
            _ if starts(b"PK\x03\x04") || starts(b"PK\x05\x06") => zipped(head, name),
            _ if starts(b"\x93NUMPY") => Foreign::Npy,
            // Text could begin with these letters, but is not followed by bytes that no text has.
            _ if binary_after(b"PAR1") || binary_after(b"PARE") => Foreign::Parquet,
            _ if starts(b"ARROW1\0") || starts(b"FEA1\0") => Foreign::Arrow,
            _ if starts(b"\x89HDF\r\n\x1a\n") => Foreign::Hdf5,
            _ if starts(b"SQLite format 3\0") => Foreign::Sqlite,
            _ if starts(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1") => Foreign::OldExcel,
            _ if starts(b"\xff\xfe\0\0") || starts(b"\0\0\xfe\xff") => Foreign::Utf32,
            _ if starts(b"\xff\xfe") || starts(b"\xfe\xff") => Foreign::Utf16,
            // Letters of Western languages without the mark: every other byte is zero.
            [a, 0, b, 0, ..] | [0, a, 0, b, ..] if is_text(*a) && is_text(*b) => Foreign::Utf16,
            _ if starts(b"BZh") && head.get(4..10) == Some(b"1AY&SY") => Foreign::Bzip2,
            _ if starts(b"\xfd7zXZ\0") => Foreign::Xz,
            _ if starts(b"7z\xbc\xaf\x27\x1c") => Foreign::SevenZip,
            _ if head.get(257..262) == Some(b"ustar") => Foreign::Tar,
            [0x80, 2..=5, ..] => Foreign::Pickle,
            _ if starts(b"%PDF-") => Foreign::Pdf,
            _ if is_page(head) => Foreign::Html,
            _ => return None,
        })
    }

    /// What to do about it.
    pub fn advice(self) -> &'static str {
        match self {
            Foreign::Zip | Foreign::Tar | Foreign::SevenZip => {
                "unpack it and name the file inside of it (gzip and zstd are the compressions that \
                 are read as they are)"
            }
            Foreign::Bzip2 | Foreign::Xz => "unpack it, or pack it with gzip or zstd instead",
            Foreign::Excel | Foreign::OldExcel | Foreign::OpenDocument => {
                "save the sheet as CSV in UTF-8 and name that file as csv:FILE"
            }
            Foreign::Parquet => "name it as parquet:FILE",
            Foreign::Arrow => {
                "write it as CSV, for instance pandas.read_feather(\"FILE\").to_csv(\"FILE.csv\", \
                 index=False), and name that \
                 as csv:FILE.csv"
            }
            Foreign::Npy | Foreign::Npz => {
                "name it as npy:FILE (a row for each record, the label in the last column) or npz:FILE \
                 (arrays x and y)"
            }
            Foreign::Hdf5 | Foreign::Sqlite | Foreign::Pickle => {
                "write features and labels as one table in CSV and name that as csv:FILE"
            }
            Foreign::Utf16 | Foreign::Utf32 => {
                "write it in UTF-8: with iconv -f UTF-16 -t UTF-8, or as \"CSV UTF-8\" in a \
                 spreadsheet"
            }
            Foreign::Pdf => "it holds pages, not a table: look for the data as CSV",
            Foreign::Html => {
                "it holds a web page, perhaps in place of a download that failed: fetch the data \
                 again"
            }
        }
    }
}

/// Which of the kinds that are archives inside: by the first name in it, else by its own.
fn zipped(head: &[u8], name: &Path) -> Foreign {
    let length = head
        .get(26..28)
        .map(|bytes| u16::from_le_bytes([bytes[0], bytes[1]]));
    let end = 30 + usize::from(length.unwrap_or(0));
    let inside = head.get(30..end).unwrap_or_default();
    let ending = name.extension().unwrap_or_default().to_ascii_lowercase();
    if inside.ends_with(b".npy") || ending == "npz" {
        Foreign::Npz
    } else if inside == b"mimetype"
        && head[end..].starts_with(b"application/vnd.oasis.opendocument.spreadsheet")
        || ending == "ods"
    {
        Foreign::OpenDocument
    } else if inside.starts_with(b"xl/") || inside == b"[Content_Types].xml" || ending == "xlsx" {
        Foreign::Excel
    } else {
        Foreign::Zip
    }
}

fn is_text(byte: u8) -> bool {
    byte.is_ascii_graphic() || byte.is_ascii_whitespace()
}

fn is_page(head: &[u8]) -> bool {
    let text = head.trim_ascii_start().to_ascii_lowercase();
    text.starts_with(b"<!doctype html") || text.starts_with(b"<html")
}

impl fmt::Display for Foreign {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Foreign::Zip => "a zip archive",
            Foreign::Excel => "an Excel workbook",
            Foreign::OldExcel => "an old Excel or other Office file",
            Foreign::OpenDocument => "an OpenDocument spreadsheet",
            Foreign::Npz => "NumPy arrays (npz)",
            Foreign::Npy => "a NumPy array (npy)",
            Foreign::Parquet => "a Parquet file",
            Foreign::Arrow => "an Arrow or Feather file",
            Foreign::Hdf5 => "an HDF5 file",
            Foreign::Sqlite => "an SQLite database",
            Foreign::Utf16 => "text in UTF-16",
            Foreign::Utf32 => "text in UTF-32",
            Foreign::Bzip2 => "data packed with bzip2",
            Foreign::Xz => "data packed with xz",
            Foreign::SevenZip => "a 7z archive",
            Foreign::Tar => "a tar archive",
            Foreign::Pickle => "a Python pickle",
            Foreign::Pdf => "a PDF document",
            Foreign::Html => "a web page",
        })
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::super::{DataError, Schema, csv, idx, libsvm};
    use super::*;

    /// Beginnings as the programs write them that make such files.
    fn beginnings() -> Vec<(Vec<u8>, &'static str, Foreign)> {
        let zip = |name: &str, rest: &str| {
            let mut bytes = b"PK\x03\x04\x14\0\0\0\x08\0\0\0!\0".to_vec();
            bytes.extend([0; 12]);
            bytes.extend((name.len() as u16).to_le_bytes());
            bytes.extend([0, 0]);
            [bytes, name.into(), rest.into()].concat()
        };
        let wide = |text: &str| {
            text.encode_utf16()
                .flat_map(u16::to_le_bytes)
                .collect::<Vec<u8>>()
        };
        let narrow = |text: &str| {
            text.encode_utf16()
                .flat_map(u16::to_be_bytes)
                .collect::<Vec<u8>>()
        };
        let sheet = "application/vnd.oasis.opendocument.spreadsheet";
        let mut tar = b"rows.csv".to_vec();
        tar.resize(257, 0);
        tar.extend(b"ustar\x0000");
        vec![
            (zip("rows.csv", "x"), "x.csv", Foreign::Zip),
            (b"PK\x05\x06".to_vec(), "x", Foreign::Zip),
            (zip("[Content_Types].xml", "x"), "x.csv", Foreign::Excel),
            (zip("anything", "x"), "x.XLSX", Foreign::Excel),
            (zip("mimetype", sheet), "x.csv", Foreign::OpenDocument),
            (zip("arr_0.npy", "x"), "x.csv", Foreign::Npz),
            (b"\x93NUMPY\x01\0v\0{'descr'".to_vec(), "x", Foreign::Npy),
            (b"PAR1\x15\x04\x15\x10".to_vec(), "x", Foreign::Parquet),
            (b"ARROW1\0\0\xff".to_vec(), "x", Foreign::Arrow),
            (b"\x89HDF\r\n\x1a\n\0".to_vec(), "x", Foreign::Hdf5),
            (b"SQLite format 3\0\x10\0".to_vec(), "x", Foreign::Sqlite),
            (
                b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1\0".to_vec(),
                "x",
                Foreign::OldExcel,
            ),
            (wide("\u{feff}1,2,a\n"), "x", Foreign::Utf16),
            (narrow("\u{feff}1,2,a\n"), "x", Foreign::Utf16),
            (wide("1,2,a\n"), "x", Foreign::Utf16),
            (narrow("1,2,a\n"), "x", Foreign::Utf16),
            (b"\xff\xfe\0\x001\0\0\0".to_vec(), "x", Foreign::Utf32),
            (b"BZh91AY&SY\x12".to_vec(), "x", Foreign::Bzip2),
            (b"\xfd7zXZ\0\0\x04".to_vec(), "x", Foreign::Xz),
            (b"7z\xbc\xaf\x27\x1c\0".to_vec(), "x", Foreign::SevenZip),
            (tar, "x", Foreign::Tar),
            (b"\x80\x04\x95\x10".to_vec(), "x", Foreign::Pickle),
            (b"%PDF-1.7\n".to_vec(), "x", Foreign::Pdf),
            (b"\n<!DOCTYPE html>\n<p>".to_vec(), "x", Foreign::Html),
        ]
    }

    #[test]
    fn every_reader_says_what_a_foreign_file_is_gzipped_or_not() {
        for (bytes, name, kind) in beginnings() {
            let name = Path::new(name);
            let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
            packed.write_all(&bytes).unwrap();
            for bytes in [packed.finish().unwrap(), bytes] {
                let (bytes, schema) = (&bytes[..], Schema::default());
                for result in [
                    csv::read_from(bytes, name, &csv::Format::default(), &schema),
                    libsvm::read_from(bytes, name, &schema),
                    idx::read_from((bytes, name), (bytes, name), &schema),
                ] {
                    let error = result.unwrap_err();
                    let said = format!("{}: found {kind}, which is not read here", name.display());
                    assert_eq!(error.to_string(), said);
                    assert!(
                        matches!(error, DataError::Foreign { kind: found, .. } if found == kind)
                    );
                    assert_eq!(error.advice().as_deref(), Some(kind.advice()));
                }
            }
        }
    }

    #[test]
    fn tables_that_begin_with_the_same_letters_are_tables() {
        for name in ["PAR1", "PARE", "PK", "BZh9", "FEA1", "7z", "<html", "%PDF"] {
            let text = format!("{name},b,label\n1,2,a\n3,4,b\n");
            let format = csv::Format::default();
            let read = csv::read_from(text.as_bytes(), Path::new("t"), &format, &Schema::default());
            match name {
                "<html" => assert!(read.is_err()),
                _ => assert_eq!(read.unwrap().rows(), 2, "{name}"),
            }
        }
    }
}
