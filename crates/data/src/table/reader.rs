//! The rows of a table, whatever file they stand in.

use std::path::Path;

use super::super::faults::{Faults, Kind};
use super::super::reader::Input;
use super::super::schema::Cell;
use super::super::{DataError, Place};
use super::lines::Lines;
use super::parquet::Columns;
use super::{Format, TableKind};

/// The rows of a table, one at a time. The first one of a file with names is those.
pub(in super::super) enum Reader<'a> {
    Text(Box<Lines<'a>>),
    Parquet(Box<Columns>),
}

impl Reader<'static> {
    pub(in super::super) fn open(path: &Path, format: &Format) -> Result<Self, DataError> {
        match format.kind {
            TableKind::Text => Ok(Reader::text(Input::open(path)?.into_text()?, format)),
            TableKind::Parquet => Ok(Reader::Parquet(Box::new(Columns::open(path)?))),
        }
    }
}

impl<'a> Reader<'a> {
    pub(in super::super) fn text(input: Input<'a>, format: &Format) -> Reader<'a> {
        Reader::Text(Box::new(Lines::new(input, format.separator)))
    }

    pub(in super::super) fn path(&self) -> &Path {
        match self {
            Reader::Text(lines) => lines.input.path(),
            Reader::Parquet(columns) => columns.path(),
        }
    }

    /// Where the row stands: its line, or its number among rows.
    pub(in super::super) fn number(&self) -> u64 {
        match self {
            Reader::Text(lines) => lines.number,
            Reader::Parquet(columns) => columns.number(),
        }
    }

    /// The same as a place in a file.
    pub(in super::super) fn place(&self) -> Place {
        match self {
            Reader::Text(lines) => Place::line(lines.input.path(), lines.number),
            Reader::Parquet(columns) => Place::file(columns.path()),
        }
    }

    /// Whether the first row is names of columns, where that is certain.
    pub(in super::super) fn has_names(&self, format: &Format) -> Option<bool> {
        match self {
            Reader::Text(_) => format.header,
            Reader::Parquet(_) => Some(true),
        }
    }

    /// Goes on to the next row; false at the end.
    pub(in super::super) fn advance(&mut self) -> Result<bool, DataError> {
        match self {
            Reader::Text(lines) => lines.advance(),
            Reader::Parquet(columns) => columns.advance(),
        }
    }

    /// How many cells the row has.
    pub(in super::super) fn len(&self) -> usize {
        match self {
            Reader::Text(lines) => lines.len(),
            Reader::Parquet(columns) => columns.len(),
        }
    }

    /// The cells of the row, in the order of columns.
    pub(in super::super) fn cells(&self) -> impl Iterator<Item = Cell<'_>> {
        match self {
            Reader::Text(lines) => Either::Text(lines.fields().map(Cell::Text)),
            Reader::Parquet(columns) => Either::Parquet(columns.cells()),
        }
    }

    /// The row as text: what the columns are called, if it is the first one.
    pub(in super::super) fn texts(&self) -> Vec<String> {
        let text = |cell| match cell {
            Cell::Text(text) => String::from_utf8_lossy(text).into_owned(),
            Cell::Number(number) => number.to_string(),
            Cell::Gap => String::new(),
        };
        self.cells().map(text).collect()
    }

    /// The line as it stands in a file of text.
    pub(in super::super) fn line(&self) -> &[u8] {
        match self {
            Reader::Text(lines) => lines.text(),
            Reader::Parquet(_) => &[],
        }
    }

    /// An empty list of what is wrong with this file.
    pub(in super::super) fn faults(&self, names: Option<Vec<String>>) -> Faults {
        let places = match self {
            Reader::Text(_) => "line",
            Reader::Parquet(_) => "row",
        };
        Faults::new(self.path(), names).counted_in(places)
    }

    /// Adds what keeps a line from being fields, if anything does.
    pub(in super::super) fn add_broken(&self, faults: &mut Faults) -> bool {
        match self {
            Reader::Text(lines) => lines.add_broken(faults),
            Reader::Parquet(_) => false,
        }
    }

    /// Adds the cells that are bytes and no text, if any are.
    pub(in super::super) fn add_no_text(&self, faults: &mut Faults) -> bool {
        let mut found = false;
        for (place, cell) in self.cells().enumerate() {
            if !cell.is_text() {
                let shown = || cell.shown();
                faults.add(
                    self.number(),
                    Some(place),
                    Kind::Encoding,
                    "text in UTF-8",
                    shown,
                );
                found = true;
            }
        }
        found
    }

    /// Adds what keeps the row from having `columns` cells, if anything does.
    pub(in super::super) fn add_misfit(&self, columns: usize, faults: &mut Faults) -> bool {
        if self.add_broken(faults) {
            return true;
        }
        if self.len() == columns {
            return false;
        }
        let expected = format!("{columns} columns, as in the first line");
        let found = || self.len().to_string();
        faults.add(self.number(), None, Kind::Columns, expected, found);
        true
    }

    /// The error for a table whose first row does not fit what was asked for.
    pub(in super::super) fn unfit(&self, expected: impl Into<String>, found: String) -> DataError {
        let mut faults = self.faults(None);
        faults.add(self.number(), None, Kind::Layout, expected, || found);
        DataError::Table(Box::new(faults))
    }
}

/// Cells of one kind of file or the other.
enum Either<A, B> {
    Text(A),
    Parquet(B),
}

impl<T, A: Iterator<Item = T>, B: Iterator<Item = T>> Iterator for Either<A, B> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        match self {
            Either::Text(cells) => cells.next(),
            Either::Parquet(cells) => cells.next(),
        }
    }
}
