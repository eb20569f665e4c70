//! Tables: rows with the same columns, in text or in Parquet, one file or several.
//!
//! ```text
//!   lines    text, field by field  --+
//!                                    +--> Reader: rows of cells --> numbers   features are numbers
//!   parquet  columns, batch by batch-+                          \-> ../schema  columns have a schema
//! ```
//!
//! A [`Reader`] gives the names of the columns first, then row after row as [`Cell`]s; what becomes
//! of them does not depend on the file they stand in. Memory: what is kept of the rows, and one
//! line or one batch of rows.

mod lines;
mod numbers;
mod parquet;
mod reader;

use std::path::Path;

use super::reader::quote;
use super::schema::{Cell, read_tables};
use super::source::Loaded;
use super::{DataError, Schema};

pub(super) use reader::Reader;

/// How a table is laid out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Format {
    /// Text or Parquet.
    pub kind: TableKind,
    /// Where the labels stand.
    pub label: LabelColumn,
    /// Whether the first line of text names the columns; without it, its content decides.
    pub header: Option<bool>,
    /// What stands between the fields of text; without it, the first lines show it.
    pub separator: Option<u8>,
}

/// What kind of file a table is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TableKind {
    /// Lines of text.
    #[default]
    Text,
    /// Parquet, which has names of columns, and numbers that are numbers.
    Parquet,
}

/// Which column holds the labels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LabelColumn {
    /// The last one.
    #[default]
    Last,
    /// The one with this number, counted from 1.
    Number(usize),
    /// The one that the header gives this name.
    Name(String),
}

impl LabelColumn {
    /// Its place among columns with these names, counted from 0.
    pub(super) fn place(&self, reader: &Reader<'_>, names: &[String]) -> Result<usize, DataError> {
        match self {
            LabelColumn::Last => Ok(names.len() - 1),
            LabelColumn::Number(number) if (1..=names.len()).contains(number) => Ok(number - 1),
            LabelColumn::Number(number) => {
                let expected = format!("a label in column {number}");
                Err(reader.unfit(expected, format!("{} columns", names.len())))
            }
            LabelColumn::Name(label) => {
                let mut named = (0..names.len()).filter(|&place| names[place] == *label);
                match (named.next(), named.next()) {
                    (Some(place), None) => Ok(place),
                    _ => {
                        let expected = format!("a header with one column \"{label}\"");
                        Err(reader.unfit(expected, quote(names.join(", ").as_bytes())))
                    }
                }
            }
        }
    }
}

/// Reads a file with all that is known of its rows.
pub(super) fn load(path: &Path, format: &Format, schema: &Schema) -> Result<Loaded, DataError> {
    Ok(load_all([Reader::open(path, format)].into_iter(), format, schema)?.0)
}

/// Reads files as one table, and says how many rows each has.
pub(super) fn load_all<'a>(
    files: impl Iterator<Item = Result<Reader<'a>, DataError>>,
    format: &Format,
    schema: &Schema,
) -> Result<(Loaded, Vec<usize>), DataError> {
    match &schema.table {
        Some(table) => {
            let (rows, counts) = read_tables(files, format, table, schema)?;
            Ok((rows.into(), counts))
        }
        None => numbers::read(files, format, schema),
    }
}

/// Gives every row of a file, the names of its columns first, to `take`, field by field.
pub(super) fn for_each_row(
    path: &Path,
    format: &Format,
    take: &mut dyn FnMut(&[&[u8]]),
) -> Result<(), DataError> {
    let mut rows = Reader::open(path, format)?;
    let (mut text, mut ends) = (Vec::new(), Vec::new());
    while rows.advance()? {
        let mut faults = rows.faults(None);
        if rows.add_broken(&mut faults) {
            return Err(DataError::Table(Box::new(faults)));
        }
        text.clear();
        ends.clear();
        for cell in rows.cells() {
            match cell {
                Cell::Gap => {}
                Cell::Text(field) => text.extend_from_slice(field),
                Cell::Number(number) => text.extend_from_slice(number.to_string().as_bytes()),
            }
            ends.push(text.len());
        }
        let starts = std::iter::once(0).chain(ends.iter().copied());
        let fields = starts.zip(&ends).map(|(start, &end)| &text[start..end]);
        take(&fields.collect::<Vec<_>>());
    }
    Ok(())
}
