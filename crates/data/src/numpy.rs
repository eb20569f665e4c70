//! NumPy's files: one array (`npy:FILE`), or several by name (`npz:FILE`).
//!
//! A single array has a row for each record and the label in its last column unless the source says
//! which. An archive has the features in `x` (also `X`, `data`, `features`) and the labels in `y`
//! (also `Y`, `label`, `labels`, `target`), numbers or text; one with a single array is read as
//! that array. Numbers of 1 to 8 bytes are read in either order of bytes, arrays in either order of
//! indices.
//!
//! A header is believed about what numbers are, never about how much memory to take: that grows
//! with the bytes that are there.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use flate2::read::DeflateDecoder;

use super::labels::Labels;
use super::reader::{feature_value, quote};
use super::source::Loaded;
use super::table::LabelColumn;
use super::{DataError, Dataset, DenseRows, Features, Place, Schema};

/// Longest header of an array.
const LONGEST_HEADER: u64 = 1 << 20;

/// Names under which features and labels are looked for.
const FEATURES: [&str; 4] = ["x", "X", "data", "features"];
const LABELS: [&str; 5] = ["y", "Y", "label", "labels", "target"];

/// Reads a single array.
pub(super) fn load_array(
    path: &Path,
    label: &LabelColumn,
    schema: &Schema,
) -> Result<Loaded, DataError> {
    let file = open(path)?;
    let array = Array::read(&mut BufReader::new(file), path)?;
    table(path, &array, label, schema)
}

/// Reads an archive of arrays.
pub(super) fn load_archive(path: &Path, schema: &Schema) -> Result<Loaded, DataError> {
    let mut file = open(path)?;
    let entries = entries(&mut file, path)?;
    let find = |names: &[&str]| {
        let mut names = names.iter();
        names.find_map(|name| entries.iter().find(|entry| entry.name == *name))
    };
    let (features, labels) = match (find(&FEATURES), find(&LABELS), &entries[..]) {
        (Some(features), labels, _) if labels.is_some() || schema.unlabelled => (features, labels),
        (_, _, [single]) => {
            let array = single.read(&mut file, path)?;
            return table(path, &array, &LabelColumn::Last, schema);
        }
        _ => {
            let names: Vec<&str> = entries.iter().map(|entry| &*entry.name).collect();
            return Err(unfit(
                path,
                "arrays x and y",
                quote(names.join(", ").as_bytes()),
            ));
        }
    };
    let features = features.read(&mut file, path)?;
    let labels = match labels.filter(|_| !schema.unlabelled) {
        Some(labels) => Some(labels.read(&mut file, path)?),
        None => None,
    };
    let (rows, columns) = features.matrix(path)?;
    if let Some(labels) = &labels
        && (labels.count() != rows || labels.shape.len() > 2)
    {
        let found = format!("{:?}", labels.shape);
        return Err(unfit(path, format!("labels for {rows} rows"), found));
    }
    let mut found = Labels::new(false, schema);
    for row in 0..labels.as_ref().map_or(0, |_| rows) {
        let text = labels
            .as_ref()
            .map(|labels| labels.text(row))
            .unwrap_or_default();
        push(&mut found, &text, path, row)?;
    }
    let all: Vec<usize> = (0..columns).collect();
    finish(path, &features, rows, columns, &all, found, schema)
}

/// Features and labels of one array.
fn table(
    path: &Path,
    array: &Array,
    label: &LabelColumn,
    schema: &Schema,
) -> Result<Loaded, DataError> {
    let (rows, columns) = array.matrix(path)?;
    let label = match label {
        _ if schema.unlabelled && schema.columns == Some(columns) => None,
        LabelColumn::Number(number) if (1..=columns).contains(number) => Some(number - 1),
        LabelColumn::Last => Some(columns - 1),
        LabelColumn::Number(_) | LabelColumn::Name(_) => {
            let expected = "the number of the column with the label, from 1";
            return Err(unfit(path, expected, format!("{columns} columns")));
        }
    };
    let mut found = Labels::new(false, schema);
    if let Some(label) = label.filter(|_| !schema.unlabelled) {
        for row in 0..rows {
            push(
                &mut found,
                &array.text(array.place(row, label, rows, columns)),
                path,
                row,
            )?;
        }
    }
    let kept: Vec<usize> = (0..columns)
        .filter(|&column| Some(column) != label)
        .collect();
    finish(path, array, rows, columns, &kept, found, schema)
}

fn push(labels: &mut Labels, text: &str, path: &Path, row: usize) -> Result<(), DataError> {
    labels.push(text.as_bytes()).map_err(|refused| {
        unfit(
            path,
            format!("{} in row {row}", refused.expected),
            quote(text.as_bytes()),
        )
    })
}

fn finish(
    path: &Path,
    array: &Array,
    rows: usize,
    columns: usize,
    kept: &[usize],
    labels: Labels,
    schema: &Schema,
) -> Result<Loaded, DataError> {
    if kept.is_empty() {
        return Err(unfit(path, "at least one feature", "none".to_owned()));
    }
    if let Some(expected) = schema.columns.filter(|&expected| expected != kept.len()) {
        let found = kept.len().to_string();
        return Err(unfit(
            path,
            format!("{expected} features, as in training"),
            found,
        ));
    }
    let mut values = Vec::new();
    for row in 0..rows {
        for &column in kept {
            let read = array.number(array.place(row, column, rows, columns));
            values.push(
                feature_value(read.map(|value| value as f32)).map_err(|expected| {
                    let place = format!("row {row}, column {column}: {expected}");
                    unfit(
                        path,
                        place,
                        read.map_or("text".to_owned(), |value| value.to_string()),
                    )
                })?,
            );
        }
    }
    let labels = match schema.unlabelled {
        true => schema.unknown(rows)?,
        false => labels.finish(path)?,
    };
    let features = Features::Dense(DenseRows::new(kept.len(), values)?);
    let data = Dataset::labelled(features, labels)?;
    Ok(Loaded::new(data, None))
}

/// What the items of an array are.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Item {
    Truth,
    Signed,
    Unsigned,
    Float,
    Bytes,
    Unicode,
}

/// An array as it stands in a file.
struct Array {
    shape: Vec<usize>,
    item: Item,
    size: usize,
    big_endian: bool,
    by_columns: bool,
    bytes: Vec<u8>,
}

impl Array {
    fn read(reader: &mut impl Read, path: &Path) -> Result<Array, DataError> {
        let failed = |error| DataError::File {
            path: path.to_owned(),
            error,
        };
        let mut start = [0; 8];
        reader.read_exact(&mut start).map_err(failed)?;
        if !start.starts_with(b"\x93NUMPY") {
            let found = "something else".to_owned();
            return Err(unfit(path, "a NumPy array", found));
        }
        let mut length = [0; 4];
        let digits = if start[6] == 1 { 2 } else { 4 };
        reader.read_exact(&mut length[..digits]).map_err(failed)?;
        let length = u64::from(u32::from_le_bytes(length));
        let mut header = Vec::new();
        let limited = reader.by_ref().take(length.min(LONGEST_HEADER));
        { limited }.read_to_end(&mut header).map_err(failed)?;
        let header = String::from_utf8_lossy(&header).into_owned();
        let mut array = Array::described(&header).ok_or_else(|| {
            unfit(
                path,
                "an array of numbers or text",
                quote(header.as_bytes()),
            )
        })?;
        let needed = array.shape.iter().try_fold(array.size, |product, &side| {
            product
                .checked_mul(side)
                .filter(|&bytes| bytes < isize::MAX as usize)
        });
        let needed = needed.ok_or_else(|| {
            unfit(
                path,
                "an array that fits in memory",
                format!("{:?}", array.shape),
            )
        })?;
        reader
            .by_ref()
            .take(needed as u64)
            .read_to_end(&mut array.bytes)
            .map_err(failed)?;
        match array.bytes.len() == needed {
            true => Ok(array),
            false => {
                let found = array.bytes.len().to_string();
                Err(unfit(path, format!("{needed} bytes of numbers"), found))
            }
        }
    }

    /// An array with this header, still without items.
    fn described(header: &str) -> Option<Array> {
        let after = |key: &str| {
            let rest = &header[header.find(&format!("'{key}'"))? + key.len() + 2..];
            Some(rest.trim_start().strip_prefix(':')?.trim_start())
        };
        let kind = after("descr")?.strip_prefix('\'')?;
        let kind = &kind[..kind.find('\'')?];
        let (order, rest) = kind.split_at_checked(1)?;
        let (letter, size) = rest.split_at_checked(1)?;
        let size: usize = size.parse().ok().filter(|&size| size > 0)?;
        let (item, size) = match (letter, size) {
            ("b", 1) => (Item::Truth, 1),
            ("i", 1 | 2 | 4 | 8) => (Item::Signed, size),
            ("u", 1 | 2 | 4 | 8) => (Item::Unsigned, size),
            ("f", 4 | 8) => (Item::Float, size),
            ("S", _) => (Item::Bytes, size),
            ("U", _) => (Item::Unicode, size.checked_mul(4)?),
            _ => return None,
        };
        let shape = after("shape")?.strip_prefix('(')?;
        let shape = shape[..shape.find(')')?].split(',').map(str::trim);
        let shape = shape
            .filter(|side| !side.is_empty())
            .map(|side| side.parse().ok());
        Some(Array {
            shape: shape.collect::<Option<Vec<usize>>>()?,
            item,
            size,
            big_endian: order == ">",
            by_columns: after("fortran_order")?.starts_with("True"),
            bytes: Vec::new(),
        })
    }

    fn count(&self) -> usize {
        self.bytes.len() / self.size
    }

    /// Rows and columns; what has more sides, such as images, has a row for each of the first.
    fn matrix(&self, path: &Path) -> Result<(usize, usize), DataError> {
        match &self.shape[..] {
            [rows, sides @ ..] if !sides.is_empty() && self.count() > 0 => {
                if self.by_columns && sides.len() > 1 {
                    let found = format!("{:?}", self.shape);
                    return Err(unfit(path, "rows and columns in Fortran's order", found));
                }
                Ok((*rows, self.count() / rows))
            }
            shape => Err(unfit(
                path,
                "an array of rows and columns",
                format!("{shape:?}"),
            )),
        }
    }

    /// Where an item of a matrix stands.
    fn place(&self, row: usize, column: usize, rows: usize, columns: usize) -> usize {
        match self.by_columns {
            true => column * rows + row,
            false => row * columns + column,
        }
    }

    /// The bytes of an item, the least significant first.
    fn item(&self, place: usize) -> [u8; 8] {
        let mut bytes = [0; 8];
        let item = &self.bytes[place * self.size..][..self.size];
        bytes[..self.size].copy_from_slice(item);
        if self.big_endian {
            bytes[..self.size].reverse();
        }
        bytes
    }

    fn number(&self, place: usize) -> Option<f64> {
        if matches!(self.item, Item::Bytes | Item::Unicode) {
            return None;
        }
        let bytes = self.item(place);
        let whole = u64::from_le_bytes(bytes);
        // The sign is the highest bit of so many bytes.
        let unused = 64 - 8 * self.size as u32;
        Some(match self.item {
            Item::Signed => ((whole << unused) as i64 >> unused) as f64,
            Item::Float if self.size == 4 => f64::from(f32::from_bits(whole as u32)),
            Item::Float => f64::from_bits(whole),
            _ => whole as f64,
        })
    }

    /// An item as a label is written.
    fn text(&self, place: usize) -> String {
        let item = &self.bytes[place * self.size..][..self.size];
        match self.item {
            Item::Bytes => String::from_utf8_lossy(item)
                .trim_end_matches('\0')
                .to_owned(),
            Item::Unicode => {
                let letters = item.chunks_exact(4).map(|letter| {
                    let bytes = [letter[0], letter[1], letter[2], letter[3]];
                    let code = match self.big_endian {
                        true => u32::from_be_bytes(bytes),
                        false => u32::from_le_bytes(bytes),
                    };
                    char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)
                });
                letters
                    .collect::<String>()
                    .trim_end_matches('\0')
                    .to_owned()
            }
            _ => self
                .number(place)
                .map(|value| value.to_string())
                .unwrap_or_default(),
        }
    }
}

/// An array in an archive.
struct Entry {
    name: String,
    packed: bool,
    length: u64,
    start: u64,
}

impl Entry {
    fn read(&self, file: &mut File, path: &Path) -> Result<Array, DataError> {
        let failed = |error| DataError::File {
            path: path.to_owned(),
            error,
        };
        file.seek(SeekFrom::Start(self.start)).map_err(failed)?;
        let mut local = [0; 30];
        file.read_exact(&mut local).map_err(failed)?;
        let skipped = i64::from(number(&local, 26, 2) + number(&local, 28, 2));
        file.seek(SeekFrom::Current(skipped)).map_err(failed)?;
        let bytes = BufReader::new(Read::by_ref(file)).take(self.length);
        match self.packed {
            true => Array::read(&mut BufReader::new(DeflateDecoder::new(bytes)), path),
            false => Array::read(&mut { bytes }, path),
        }
    }
}

/// What an archive says at its end about what is in it.
fn entries(file: &mut File, path: &Path) -> Result<Vec<Entry>, DataError> {
    let failed = |error| DataError::File {
        path: path.to_owned(),
        error,
    };
    let broken = || {
        unfit(
            path,
            "a whole npz archive",
            "damaged or truncated data".to_owned(),
        )
    };
    let length = file.metadata().map_err(failed)?.len();
    // A comment of up to 64 KiB may stand behind the last record, of 22 bytes.
    let tail = length.min(22 + (1 << 16));
    file.seek(SeekFrom::Start(length - tail)).map_err(failed)?;
    let mut bytes = Vec::new();
    file.by_ref()
        .take(tail)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    let end = bytes.windows(4).rposition(|window| window == b"PK\x05\x06");
    let end = end
        .map(|end| &bytes[end..])
        .filter(|end| end.len() >= 22)
        .ok_or_else(broken)?;
    let (size, start) = (number(end, 12, 4), number(end, 16, 4));
    if size == u32::MAX || start == u32::MAX {
        return Err(unfit(
            path,
            "an archive below 4 GiB",
            "a larger one".to_owned(),
        ));
    }
    file.seek(SeekFrom::Start(u64::from(start)))
        .map_err(failed)?;
    let mut directory = Vec::new();
    file.by_ref()
        .take(u64::from(size))
        .read_to_end(&mut directory)
        .map_err(failed)?;
    let mut entries = Vec::new();
    let mut rest = &directory[..];
    while rest.starts_with(b"PK\x01\x02") && rest.len() >= 46 {
        let lengths = [
            number(rest, 28, 2),
            number(rest, 30, 2),
            number(rest, 32, 2),
        ];
        let name = rest.get(46..46 + lengths[0] as usize).ok_or_else(broken)?;
        let name = String::from_utf8_lossy(name).into_owned();
        let (method, packed_length) = (number(rest, 10, 2), number(rest, 20, 4));
        if !matches!(method, 0 | 8) || packed_length == u32::MAX {
            let expected = "arrays below 4 GiB, stored or deflated";
            return Err(unfit(path, expected, quote(name.as_bytes())));
        }
        entries.push(Entry {
            name: name
                .strip_suffix(".npy")
                .map_or(name.clone(), str::to_owned),
            packed: method == 8,
            length: u64::from(packed_length),
            start: u64::from(number(rest, 42, 4)),
        });
        let next = 46 + lengths.iter().map(|&length| length as usize).sum::<usize>();
        rest = rest.get(next..).ok_or_else(broken)?;
    }
    match entries.is_empty() {
        true => Err(broken()),
        false => Ok(entries),
    }
}

/// A number of two or four bytes.
fn number(bytes: &[u8], at: usize, length: usize) -> u32 {
    let digits = bytes[at..at + length].iter().rev();
    digits.fold(0, |value, &byte| value << 8 | u32::from(byte))
}

fn open(path: &Path) -> Result<File, DataError> {
    let failed = |error| DataError::File {
        path: path.to_owned(),
        error,
    };
    let file = File::open(path).map_err(failed)?;
    match file.metadata().map_err(failed)?.is_dir() {
        true => Err(failed(io::Error::other(
            "expected a file, found a directory",
        ))),
        false => Ok(file),
    }
}

fn unfit(path: &Path, expected: impl Into<String>, found: String) -> DataError {
    DataError::Format {
        place: Place::file(path),
        expected: expected.into(),
        found,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::DeflateEncoder;

    use super::*;

    /// An array as NumPy writes it.
    fn npy(descr: &str, order: &str, shape: &str, items: &[u8]) -> Vec<u8> {
        let text =
            format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}\n");
        let mut bytes = b"\x93NUMPY\x01\0".to_vec();
        bytes.extend((text.len() as u16).to_le_bytes());
        bytes.extend(text.as_bytes());
        bytes.extend(items);
        bytes
    }

    /// An archive of these arrays, the second one deflated.
    fn npz(arrays: &[(&str, Vec<u8>)]) -> Vec<u8> {
        let (mut bytes, mut directory) = (Vec::new(), Vec::new());
        for (place, (name, array)) in arrays.iter().enumerate() {
            let mut packed = array.clone();
            if place == 1 {
                let mut encoder = DeflateEncoder::new(Vec::new(), Compression::fast());
                encoder.write_all(array).unwrap();
                packed = encoder.finish().unwrap();
            }
            let start = bytes.len() as u32;
            let method = if place == 1 { 8u16 } else { 0 };
            let name = format!("{name}.npy");
            let sizes = [0, packed.len() as u32, array.len() as u32];
            let head = |magic: &[u8], made: &[u8]| {
                let mut head = [magic, made, &[20, 0, 0, 0]].concat();
                head.extend(method.to_le_bytes());
                head.extend([0; 4]);
                sizes
                    .iter()
                    .for_each(|size: &u32| head.extend(size.to_le_bytes()));
                head.extend((name.len() as u16).to_le_bytes());
                head.extend([0, 0]);
                head
            };
            bytes.extend(head(b"PK\x03\x04", b""));
            bytes.extend(name.as_bytes());
            bytes.extend(&packed);
            directory.extend(head(b"PK\x01\x02", &[20, 0]));
            directory.extend([0; 10]);
            directory.extend(start.to_le_bytes());
            directory.extend(name.as_bytes());
        }
        let start = bytes.len() as u32;
        let count = (arrays.len() as u16).to_le_bytes();
        let size = directory.len() as u32;
        bytes.extend(directory);
        bytes.extend([b"PK\x05\x06\0\0\0\0".as_slice(), &count, &count].concat());
        bytes.extend(size.to_le_bytes());
        bytes.extend(start.to_le_bytes());
        bytes.extend([0, 0]);
        bytes
    }

    fn file(bytes: &[u8]) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        file
    }

    fn floats(values: &[f32]) -> Vec<u8> {
        values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect()
    }

    #[test]
    fn arrays_of_all_kinds_give_the_same_records() {
        let numbers = [1.0f32, 2.0, 0.0, 3.0, -4.0, 1.0];
        let by_columns = [1.0f32, 3.0, 2.0, -4.0, 0.0, 1.0];
        let doubles: Vec<u8> = numbers
            .iter()
            .flat_map(|&value| f64::from(value).to_be_bytes())
            .collect();
        let whole: Vec<u8> = numbers
            .iter()
            .flat_map(|&v| (v as i16).to_le_bytes())
            .collect();
        let load = |bytes: &[u8], label: LabelColumn| {
            load_array(file(bytes).path(), &label, &Schema::default())
        };
        for bytes in [
            npy("<f4", "False", "(2, 3)", &floats(&numbers)),
            npy("<f4", "True", "(2, 3)", &floats(&by_columns)),
            npy(">f8", "False", "(2, 3)", &doubles),
            npy("<i2", "False", "(2, 3)", &whole),
        ] {
            let data = load(&bytes, LabelColumn::Last).unwrap().train;
            assert_eq!(
                (data.full_row(0), data.full_row(1)),
                (vec![1.0, 2.0], vec![3.0, -4.0])
            );
            assert_eq!((data.labels(), data.classes()), (&[0, 1][..], 2));
            let first = load(&bytes, LabelColumn::Number(1)).unwrap().train;
            assert_eq!(first.full_row(1), [-4.0, 1.0]);
            assert_eq!(first.label_names(), ["1", "3"]);
        }
    }

    #[test]
    fn archives_have_features_and_labels() {
        let x = npy(
            "<f4",
            "False",
            "(3, 2)",
            &floats(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
        );
        let letters: Vec<u8> = "no\0yesno\0"
            .chars()
            .flat_map(|letter| (letter as u32).to_le_bytes())
            .collect();
        let y = npy("<U3", "False", "(3,)", &letters);
        let archive = npz(&[("x", x.clone()), ("y", y)]);
        let data = load_archive(file(&archive).path(), &Schema::default())
            .unwrap()
            .train;
        assert_eq!(data.label_names(), ["no", "yes"]);
        assert_eq!(data.labels(), [0, 1, 0]);
        assert_eq!(data.full_row(2), [5.0, 6.0]);
        // Where a class is to be predicted, features are enough.
        let unlabelled = Schema {
            columns: Some(2),
            unlabelled: true,
            ..Schema::default()
        };
        let alone = npz(&[("x", x.clone()), ("z", x.clone())]);
        assert_eq!(
            load_archive(file(&alone).path(), &unlabelled)
                .unwrap()
                .train
                .rows(),
            3
        );
        assert!(load_archive(file(&alone).path(), &Schema::default()).is_err());
        // A damaged file is an error at any length, and never a panic.
        for length in 0..archive.len() {
            let cut = file(&archive[..length]);
            assert!(
                load_archive(cut.path(), &Schema::default()).is_err(),
                "{length}"
            );
        }
        for place in 0..archive.len() {
            let mut other = archive.clone();
            other[place] ^= 0xff;
            let _ = load_archive(file(&other).path(), &Schema::default());
        }
    }

    #[test]
    fn a_header_takes_no_memory_and_what_is_no_table_is_refused() {
        let load = |bytes: &[u8]| {
            let loaded = load_array(file(bytes).path(), &LabelColumn::Last, &Schema::default());
            loaded.unwrap_err().to_string()
        };
        for (bytes, said) in [
            (
                npy("<f8", "False", "(99999999999, 9)", b"short"),
                "bytes of numbers, found 5",
            ),
            (
                npy("<f8", "False", "(18446744073709551615, 9)", b""),
                "fits in memory",
            ),
            (
                npy("<f4", "False", "(1, 2)", &floats(&[1.0])),
                "8 bytes of numbers, found 4",
            ),
            (
                npy("<f4", "False", "(2,)", &floats(&[1.0, 2.0])),
                "an array of rows and columns",
            ),
            (
                npy("<c8", "False", "(1, 2)", &[0; 16]),
                "an array of numbers or text",
            ),
            (
                npy("<f4", "False", "(1, 2)", &floats(&[f32::NAN, 1.0])),
                "a finite number",
            ),
            (b"\x93NUMPYxx".to_vec(), ""),
            (b"a,b\n1,2\n".to_vec(), "a NumPy array"),
        ] {
            assert!(load(&bytes).contains(said), "{} {said}", load(&bytes));
        }
    }
}
