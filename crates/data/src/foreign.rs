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
    Xml,
    Json,
    Arff,
    Image,
    Word,
    Media,
    Idx,
    Binary,
    OldText,
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
            _ if begins_with_words(head, &["<?xml"]) => Foreign::Xml,
            _ if is_json(head) => Foreign::Json,
            _ if begins_with_words(head, &["@relation"]) => Foreign::Arff,
            _ if is_image(head) => Foreign::Image,
            _ if is_media(head) => Foreign::Media,
            _ => return None,
        })
    }

    /// The same of a file that has to be text.
    pub(super) fn of_text(head: &[u8]) -> Option<Foreign> {
        // Text has tabs and ends of lines below the blank, and perhaps a stray byte.
        let odd = |byte: &&u8| **byte < b' ' && !byte.is_ascii_whitespace();
        let returns = head.iter().filter(|&&byte| byte == b'\r').count();
        match head {
            [0, 0, 8 | 9 | 11..=14, 1..=4, ..] => Some(Foreign::Idx),
            _ if 20 * head.iter().filter(odd).count() > head.len() => Some(Foreign::Binary),
            _ if returns > 1 && !head.contains(&b'\n') => Some(Foreign::OldText),
            _ => None,
        }
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
            Foreign::Pdf | Foreign::Word => "it holds pages, not a table: look for the data as CSV",
            Foreign::Xml | Foreign::Json => {
                "write it as a table with a row for each record, with pandas by read_json or \
                 read_xml and then to_csv(\"FILE.csv\", index=False), and name that as csv:FILE.csv"
            }
            Foreign::Arff => {
                "take out all lines up to @data, write the names of the columns in their place, and \
                 name the rest as csv:FILE"
            }
            Foreign::Image => {
                "it is one picture: write all of them as one array, a picture for each record, and \
                 name that as npz:FILE (arrays x and y), or in MNIST's format as idx:DIR"
            }
            Foreign::Media => "look for what was measured in it, as CSV",
            Foreign::Idx => "name the folder it stands in as idx:DIR",
            Foreign::Binary => {
                "write features and labels as one table in CSV and name that as csv:FILE"
            }
            Foreign::OldText => {
                "write its lines with the ends of today: tr '\\r' '\\n' < FILE > FILE.csv"
            }
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
    } else if inside.starts_with(b"word/") || ending == "docx" || ending == "odt" {
        Foreign::Word
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
    begins_with_words(head, &["<!doctype html", "<html", "<table"])
}

/// Whether the text begins with one of these, in small letters or capitals.
fn begins_with_words(head: &[u8], words: &[&str]) -> bool {
    let text = head.strip_prefix("\u{feff}".as_bytes()).unwrap_or(head);
    let text = text.trim_ascii_start();
    words.iter().any(|word| {
        let start = text.get(..word.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(word.as_bytes()))
    })
}

/// An object or a list: no line of a table begins with a bracket and what only JSON has behind one.
fn is_json(head: &[u8]) -> bool {
    let text = head.strip_prefix("\u{feff}".as_bytes()).unwrap_or(head);
    let text = text.trim_ascii_start();
    match text.split_first() {
        Some((b'{', rest)) => matches!(rest.trim_ascii_start().first(), Some(b'"' | b'}')),
        Some((b'[', rest)) => matches!(rest.trim_ascii_start().first(), Some(b'{' | b'[' | b'"')),
        _ => false,
    }
}

fn is_image(head: &[u8]) -> bool {
    let starts = |magic: &[u8]| head.starts_with(magic);
    let kind = head.get(8..12);
    starts(b"\x89PNG\r\n\x1a\n")
        || starts(b"\xff\xd8\xff")
        || starts(b"GIF87a")
        || starts(b"GIF89a")
        || starts(b"II*\0")
        || starts(b"MM\0*")
        || (starts(b"BM") && head.get(6..10) == Some(&[0; 4]))
        || (starts(b"RIFF") && kind == Some(b"WEBP"))
}

fn is_media(head: &[u8]) -> bool {
    let wave = head.starts_with(b"RIFF") && head.get(8..12) != Some(b"WEBP");
    let tagged = wave
        && head
            .get(4..8)
            .is_some_and(|size| size.iter().any(|b| *b < b' '));
    tagged || head.get(4..8) == Some(b"ftyp") || head.starts_with(b"OggS\0")
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
            Foreign::Xml => "XML",
            Foreign::Json => "JSON",
            Foreign::Arff => "an ARFF file",
            Foreign::Image => "a picture",
            Foreign::Word => "a text document",
            Foreign::Media => "sound or film",
            Foreign::Idx => "an IDX file, as MNIST has them",
            Foreign::Binary => "something that is no text",
            Foreign::OldText => "lines that end in a carriage return alone, as on old Macs",
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
            (b"<table border=1>\n<tr>".to_vec(), "x", Foreign::Html),
            (
                b"\xef\xbb\xbf<?xml version='1.0'?>\n<data>".to_vec(),
                "x",
                Foreign::Xml,
            ),
            (b"{\"age\":{\"0\":62}}".to_vec(), "x", Foreign::Json),
            (
                b"{\"age\":62,\"y\":1}\n{\"age\":63,\"y\":0}\n".to_vec(),
                "x",
                Foreign::Json,
            ),
            (b"[\n  {\"age\": 62}\n]".to_vec(), "x", Foreign::Json),
            (b"@RELATION iris\n@attribute".to_vec(), "x", Foreign::Arff),
            (
                b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".to_vec(),
                "x",
                Foreign::Image,
            ),
            (b"\xff\xd8\xff\xe0\0\x10JFIF".to_vec(), "x", Foreign::Image),
            (b"GIF89a\x14\0\x14\0".to_vec(), "x", Foreign::Image),
            (b"II*\0\x08\0\0\0".to_vec(), "x", Foreign::Image),
            (
                b"BM\x36\x05\0\0\0\0\0\x006\x04".to_vec(),
                "x",
                Foreign::Image,
            ),
            (b"RIFF\x10\0\0\0WEBPVP8 ".to_vec(), "x", Foreign::Image),
            (b"RIFF\x10\0\0\0WAVEfmt ".to_vec(), "x", Foreign::Media),
            (zip("word/document.xml", "x"), "x.csv", Foreign::Word),
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
    fn text_is_told_from_what_is_none() {
        for (bytes, kind) in [
            (&b"\0\0\x08\x03\0\0\xea\x60"[..], Some(Foreign::Idx)),
            (b"\x7fELF\x02\x01\x01\0\0\0\0\0", Some(Foreign::Binary)),
            (b"a,b\r1,2\r3,4\r", Some(Foreign::OldText)),
            (b"a,b\r\n1,2\r\n", None),
            (b"a,b\r", None),
            (b"", None),
            // A stray byte is a fault of its field.
            (b"a,b,label\n1,2,no\n1,\x002,yes\n3,4,yes\n", None),
        ] {
            assert_eq!(Foreign::of_text(bytes), kind, "{bytes:?}");
            let (name, schema) = (Path::new("t"), Schema::default());
            let read = csv::read_from(bytes, name, &csv::Format::default(), &schema);
            let found = match read {
                Err(DataError::Foreign { kind, .. }) => Some(kind),
                _ => None,
            };
            assert_eq!(found, kind, "{bytes:?}");
        }
    }

    #[test]
    fn tables_that_begin_with_the_same_letters_are_tables() {
        for name in [
            "PAR1", "PARE", "PK", "BZh9", "FEA1", "7z", "<html", "%PDF", "GIF", "BM", "RIFF",
            "[a]", "{x}", "@rel",
        ] {
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
