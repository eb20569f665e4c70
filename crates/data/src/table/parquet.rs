//! Parquet: columns of numbers, yes and no, days and text, given row by row.
//!
//! Numbers of every width, decimals and floats become numbers (whole ones that a 64-bit float
//! cannot tell apart become text, so that identifiers stay what they are), yes and no become 1 and
//! 0, days and instants the text of their day, text stays text. A column of lists, or one packed in
//! a way that is not known, is text that says so: it can be ignored, and is refused as a feature.
//!
//! Reads a batch of rows of every column at a time, so memory does not grow with the file (it holds
//! one page and one dictionary of each column). What the file claims about itself is compared with
//! what is there, and nothing is allocated on its word.

use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use ::parquet::basic::{LogicalType, TimeUnit, Type as Physical};
use ::parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use ::parquet::data_type::{ByteArray, DataType};
use ::parquet::errors::ParquetError;
use ::parquet::file::reader::{FileReader, RowGroupReader};
use ::parquet::file::serialized_reader::SerializedFileReader;
use ::parquet::schema::types::ColumnDescriptor;

use super::super::schema::{Cell, Date};
use super::super::{DataError, Place};

/// Rows of a batch: enough that a column's reader is seldom asked, few enough for the cache.
const BATCH: usize = 4096;

/// Beyond it a 64-bit float does not hold every whole number.
const EXACT: i64 = 1 << 53;

/// The rows of a file.
pub(in super::super) struct Columns {
    path: PathBuf,
    file: SerializedFileReader<File>,
    columns: Vec<Column>,
    groups: usize,
    /// Rows of the batch, and the one that the reader stands at.
    batch: usize,
    at: usize,
    /// Rows so far; none while it stands at the names.
    number: u64,
    /// Whether the names have been given.
    begun: bool,
}

/// One column: what it means, where it is read, and its cells in the batch.
struct Column {
    name: String,
    meaning: Meaning,
    /// The level of a value that is there.
    present: i16,
    reader: Option<ColumnReader>,
    cells: Cells,
    /// Which cells are gaps; empty if none is.
    gaps: Vec<bool>,
}

/// The cells of a column in a batch. Where there is a gap, anything stands.
enum Cells {
    Numbers(Vec<f64>),
    Texts(Vec<ByteArray>),
    Mixed(Vec<Whole>),
    All(&'static str),
}

/// A whole number, as a float if that is exact.
enum Whole {
    Number(f64),
    Text(String),
}

/// What the numbers or bytes of a column stand for.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Meaning {
    /// Themselves.
    Plain,
    /// Whole numbers without a sign.
    Unsigned,
    /// Whole numbers of so many digits behind the point.
    Decimal(i32),
    /// Days since 1970.
    Day,
    /// Parts of a day since 1970: how many a day has.
    Instant(i64),
    /// Floats of 16 bits.
    Half,
    /// Not a single value, or not known.
    Unreadable(&'static str),
}

impl Columns {
    pub(super) fn open(path: &Path) -> Result<Columns, DataError> {
        let failed = |error| DataError::File {
            path: path.to_owned(),
            error,
        };
        let file = File::open(path).map_err(failed)?;
        if file.metadata().map_err(failed)?.is_dir() {
            let error = std::io::Error::other("expected a file, found a directory");
            return Err(failed(error));
        }
        let file = guarded(path, || SerializedFileReader::new(file))?;
        // The library takes these for granted.
        let groups = file.metadata().row_groups().iter();
        let mut chunks = groups.flat_map(|group| group.columns());
        if chunks.any(|chunk| {
            let start = chunk.dictionary_page_offset();
            start.unwrap_or(0) < 0 || chunk.data_page_offset() < 0 || chunk.compressed_size() < 0
        }) {
            return Err(damaged(Place::file(path), "columns before the file begins"));
        }
        let schema = file.metadata().file_metadata().schema_descr_ptr();
        let columns: Vec<Column> = schema.columns().iter().map(|c| Column::new(c)).collect();
        Ok(Columns {
            path: path.to_owned(),
            file,
            columns,
            groups: 0,
            batch: 0,
            at: 0,
            number: 0,
            begun: false,
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn len(&self) -> usize {
        self.columns.len()
    }

    /// Goes on to the names, then to row after row; false at the end.
    pub(super) fn advance(&mut self) -> Result<bool, DataError> {
        if !self.begun {
            self.begun = true;
            return Ok(!self.columns.is_empty());
        }
        self.at += 1;
        while self.number == 0 || self.at >= self.batch {
            self.at = 0;
            self.batch = self.read_batch()?;
            if self.batch > 0 {
                break;
            }
            if !self.next_group()? {
                return Ok(false);
            }
        }
        self.number += 1;
        Ok(true)
    }

    /// The cells of the row, or the names before the first one.
    pub(super) fn cells(&self) -> impl Iterator<Item = Cell<'_>> {
        let (names, at) = (self.number == 0, self.at);
        self.columns.iter().map(move |column| match names {
            true => Cell::Text(column.name.as_bytes()),
            false => column.cell(at),
        })
    }

    /// Begins with the next group of rows; false after the last one.
    fn next_group(&mut self) -> Result<bool, DataError> {
        if self.groups >= self.file.num_row_groups() {
            let claimed = self.file.metadata().file_metadata().num_rows();
            return match u64::try_from(claimed) == Ok(self.number) {
                true => Ok(false),
                false => Err(damaged(
                    Place::file(&self.path),
                    "another number of rows than it says",
                )),
            };
        }
        let (place, columns, file) = (self.groups, &mut self.columns, &self.file);
        guarded(&self.path, || {
            let group = file.get_row_group(place)?;
            for (number, column) in columns.iter_mut().enumerate() {
                column.begin(&*group, number)?;
            }
            Ok(())
        })?;
        self.groups += 1;
        Ok(true)
    }

    /// Reads the next rows of the group; how many there are.
    fn read_batch(&mut self) -> Result<usize, DataError> {
        let mut rows = None;
        for column in &mut self.columns {
            let Some(reader) = &mut column.reader else {
                continue;
            };
            let (meaning, present) = (column.meaning, column.present);
            let read = guarded(&self.path, || read(reader, meaning, present))?;
            (column.cells, column.gaps) = (read.cells, read.gaps);
            if *rows.get_or_insert(read.rows) != read.rows {
                let place = Place::file(&self.path);
                return Err(damaged(place, "columns of different lengths"));
            }
        }
        // Nothing can be read of a table that has only columns of other kinds.
        Ok(rows.unwrap_or(0))
    }
}

impl Column {
    fn new(column: &ColumnDescriptor) -> Column {
        let meaning = Meaning::of(column);
        let cells = match meaning {
            Meaning::Unreadable(what) => Cells::All(what),
            _ => Cells::Numbers(Vec::new()),
        };
        Column {
            name: column.path().string(),
            meaning,
            present: column.max_def_level(),
            reader: None,
            cells,
            gaps: Vec::new(),
        }
    }

    fn begin(&mut self, group: &dyn RowGroupReader, number: usize) -> Result<(), ParquetError> {
        if !matches!(self.meaning, Meaning::Unreadable(_)) {
            self.reader = Some(group.get_column_reader(number)?);
        }
        Ok(())
    }

    fn cell(&self, row: usize) -> Cell<'_> {
        if self.gaps.get(row) == Some(&true) {
            return Cell::Gap;
        }
        match &self.cells {
            Cells::Numbers(numbers) => Cell::Number(numbers[row]),
            Cells::Texts(texts) => Cell::Text(texts[row].data().trim_ascii()),
            Cells::Mixed(values) => match &values[row] {
                Whole::Number(number) => Cell::Number(*number),
                Whole::Text(text) => Cell::Text(text.as_bytes()),
            },
            Cells::All(what) => Cell::Text(what.as_bytes()),
        }
    }
}

impl Meaning {
    fn of(column: &ColumnDescriptor) -> Meaning {
        if column.max_rep_level() > 0 {
            return Meaning::Unreadable("a list");
        }
        let decimal = || Meaning::Decimal(column.type_scale());
        let instant = |unit: &TimeUnit| {
            Meaning::Instant(match unit {
                TimeUnit::MILLIS => 86_400_000,
                TimeUnit::MICROS => 86_400_000_000,
                TimeUnit::NANOS => 86_400_000_000_000,
            })
        };
        use ::parquet::basic::ConvertedType as Old;
        match (column.logical_type_ref(), column.physical_type()) {
            (Some(LogicalType::Decimal { .. }), _) => decimal(),
            (Some(LogicalType::Date), _) => Meaning::Day,
            (Some(LogicalType::Timestamp(stamp)), _) => instant(&stamp.unit),
            (Some(LogicalType::Integer(whole)), _) if !whole.is_signed => Meaning::Unsigned,
            (Some(LogicalType::Float16), _) => Meaning::Half,
            (Some(LogicalType::Uuid), _) => Meaning::Unreadable("an identifier of 16 bytes"),
            (None, Physical::INT96) => Meaning::Instant(86_400_000),
            (None, _) => match column.converted_type() {
                Old::DECIMAL => decimal(),
                Old::DATE => Meaning::Day,
                Old::TIMESTAMP_MILLIS => Meaning::Instant(86_400_000),
                Old::TIMESTAMP_MICROS => Meaning::Instant(86_400_000_000),
                Old::UINT_8 | Old::UINT_16 | Old::UINT_32 | Old::UINT_64 => Meaning::Unsigned,
                _ => Meaning::Plain,
            },
            _ => Meaning::Plain,
        }
    }
}

/// What was read of a column.
struct Read {
    rows: usize,
    cells: Cells,
    gaps: Vec<bool>,
}

fn read(reader: &mut ColumnReader, meaning: Meaning, present: i16) -> Result<Read, ParquetError> {
    let tenth = |scale: i32| 10f64.powi(-scale);
    match reader {
        ColumnReader::BoolColumnReader(reader) => {
            numbers(reader, present, |value| f64::from(u8::from(value)))
        }
        ColumnReader::Int32ColumnReader(reader) => match meaning {
            Meaning::Day => texts(reader, present, |&days| day(i64::from(days))),
            Meaning::Unsigned => numbers(reader, present, |value| f64::from(value as u32)),
            Meaning::Decimal(scale) => {
                let unit = tenth(scale);
                numbers(reader, present, |value| f64::from(value) * unit)
            }
            _ => numbers(reader, present, f64::from),
        },
        ColumnReader::Int64ColumnReader(reader) => match meaning {
            Meaning::Instant(parts) => {
                texts(reader, present, |&instant| day(instant.div_euclid(parts)))
            }
            Meaning::Decimal(scale) => {
                let unit = tenth(scale);
                numbers(reader, present, |value| value as f64 * unit)
            }
            _ => whole_numbers(reader, present, meaning == Meaning::Unsigned),
        },
        ColumnReader::Int96ColumnReader(reader) => texts(reader, present, |instant| {
            day(instant.to_millis().div_euclid(86_400_000))
        }),
        ColumnReader::FloatColumnReader(reader) => numbers(reader, present, f64::from),
        ColumnReader::DoubleColumnReader(reader) => numbers(reader, present, |value| value),
        ColumnReader::ByteArrayColumnReader(reader) => match meaning {
            Meaning::Decimal(scale) => {
                let unit = tenth(scale);
                numbers(reader, present, |bytes| big_endian(bytes.data()) * unit)
            }
            _ => texts(reader, present, Clone::clone),
        },
        ColumnReader::FixedLenByteArrayColumnReader(reader) => match meaning {
            Meaning::Decimal(scale) => {
                let unit = tenth(scale);
                numbers(reader, present, |bytes| big_endian(bytes.data()) * unit)
            }
            Meaning::Half => numbers(reader, present, |bytes| half(bytes.data())),
            _ => texts(reader, present, |bytes| {
                ByteArray::from(bytes.data().to_vec())
            }),
        },
    }
}

/// The next rows of a column: how many, the values of those that have one, and which have none;
/// empty if all have.
type Values<V> = (usize, Vec<V>, Vec<bool>);

fn values<T: DataType>(
    reader: &mut ColumnReaderImpl<T>,
    present: i16,
) -> Result<Values<T::T>, ParquetError> {
    let (mut values, mut levels) = (Vec::new(), Vec::new());
    let optional = (present > 0).then_some(&mut levels);
    let (rows, count, _) = reader.read_records(BATCH, optional, None, &mut values)?;
    if count == rows {
        return Ok((rows, values, Vec::new()));
    }
    let gaps = levels.iter().map(|&level| level < present).collect();
    Ok((rows, values, gaps))
}

/// Puts values into the rows that have one.
fn spread<V>(
    rows: usize,
    values: impl Iterator<Item = V>,
    gaps: &[bool],
    nothing: impl Fn() -> V,
) -> Vec<V> {
    if gaps.is_empty() {
        return values.collect();
    }
    let mut values = values;
    let of_row = |row: usize| match gaps[row] {
        true => nothing(),
        false => values.next().unwrap_or_else(&nothing),
    };
    (0..rows).map(of_row).collect()
}

fn numbers<T: DataType>(
    reader: &mut ColumnReaderImpl<T>,
    present: i16,
    number: impl Fn(T::T) -> f64,
) -> Result<Read, ParquetError> {
    let (rows, values, gaps) = values(reader, present)?;
    let numbers = spread(rows, values.into_iter().map(number), &gaps, || f64::NAN);
    let cells = Cells::Numbers(numbers);
    Ok(Read { rows, cells, gaps })
}

fn whole_numbers(
    reader: &mut ColumnReaderImpl<::parquet::data_type::Int64Type>,
    present: i16,
    unsigned: bool,
) -> Result<Read, ParquetError> {
    let (rows, values, gaps) = values(reader, present)?;
    let exact = |value: &i64| (-EXACT..=EXACT).contains(value);
    let cells = if values.iter().all(exact) {
        let values = values.into_iter().map(|value| value as f64);
        Cells::Numbers(spread(rows, values, &gaps, || f64::NAN))
    } else {
        let whole = |value: i64| match (exact(&value), unsigned) {
            (true, _) => Whole::Number(value as f64),
            (false, true) => Whole::Text((value as u64).to_string()),
            (false, false) => Whole::Text(value.to_string()),
        };
        let values = values.into_iter().map(whole);
        Cells::Mixed(spread(rows, values, &gaps, || Whole::Number(f64::NAN)))
    };
    Ok(Read { rows, cells, gaps })
}

fn texts<T: DataType>(
    reader: &mut ColumnReaderImpl<T>,
    present: i16,
    text: impl Fn(&T::T) -> ByteArray,
) -> Result<Read, ParquetError> {
    let (rows, values, gaps) = values(reader, present)?;
    let texts = spread(rows, values.iter().map(text), &gaps, ByteArray::new);
    let cells = Cells::Texts(texts);
    Ok(Read { rows, cells, gaps })
}

/// A day by its number since 1970; one without four digits of a year is its number.
fn day(days: i64) -> ByteArray {
    let date = i32::try_from(days).ok().and_then(Date::from_days);
    let text = date.map_or_else(|| days.to_string(), |date| date.to_string());
    ByteArray::from(text.into_bytes())
}

/// A whole number in two's complement, the most significant byte first.
fn big_endian(bytes: &[u8]) -> f64 {
    let Some((&first, rest)) = bytes.split_first() else {
        return 0.0;
    };
    let start = f64::from(first as i8);
    rest.iter()
        .fold(start, |value, &byte| value * 256.0 + f64::from(byte))
}

/// A float of 16 bits: a sign, 5 bits of exponent, 10 of fraction.
fn half(bytes: &[u8]) -> f64 {
    let &[low, high] = bytes else {
        return f64::NAN;
    };
    let bits = u16::from_le_bytes([low, high]);
    let fraction = f64::from(bits & 0x3ff);
    let value = match (bits >> 10) & 0x1f {
        0 => fraction * 2f64.powi(-24),
        0x1f if fraction == 0.0 => f64::INFINITY,
        0x1f => f64::NAN,
        exponent => (1024.0 + fraction) * 2f64.powi(i32::from(exponent) - 25),
    };
    if bits >> 15 == 1 { -value } else { value }
}

/// Calls the library. A damaged file is an error, also where the library does not expect it.
fn guarded<T>(path: &Path, read: impl FnOnce() -> Result<T, ParquetError>) -> Result<T, DataError> {
    match catch_unwind(AssertUnwindSafe(read)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(damaged(Place::file(path), &error.to_string())),
        Err(_) => Err(damaged(Place::file(path), "what no column can hold")),
    }
}

fn damaged(place: Place, found: &str) -> DataError {
    DataError::Format {
        place,
        expected: "a whole Parquet file of a kind that is known (plain, snappy, gzip, zstd or LZ4)"
            .to_owned(),
        found: format!("something else ({found})"),
    }
}
