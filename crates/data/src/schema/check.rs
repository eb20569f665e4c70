//! What in a file does not fit a schema: everything at once, by the names of columns.

use std::path::PathBuf;

use super::super::faults::Faults;
use super::super::table::{Format, Reader};
use super::super::{DataError, Place, Schema};
use super::TableSchema;
use super::columns::ColumnFault;
use super::table::{Adjustment, Rows, layout};

/// What was found in a file.
#[derive(Clone, Debug)]
pub struct Checked {
    file: PathBuf,
    /// Rows that were looked at.
    pub rows: u64,
    /// Columns that do not fit.
    pub columns: Vec<ColumnFault>,
    /// Fields and rows that do not fit.
    pub faults: Faults,
    /// Values that fit, and are not as the schema knows them.
    pub adjustments: Vec<Adjustment>,
}

impl Checked {
    /// Whether the file can be read through the schema.
    pub fn fits(&self) -> bool {
        self.columns.is_empty() && self.faults.is_empty() && self.rows > 0
    }

    /// Everything that is wrong, one thing a line, with the values that stand in the file.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = ColumnFault::lines(&self.columns, &self.file, true);
        lines.extend(self.faults.lines(true));
        if self.rows == 0 && self.faults.is_empty() {
            let file = self.file.display();
            lines.push(format!("{file}: expected at least one row, found none"));
        }
        lines
    }

    /// What a person can do about it, one sentence for each kind of fault.
    pub fn advice(&self) -> Vec<String> {
        let mut advice = ColumnFault::all_advice(&self.columns);
        advice.extend(self.faults.advice());
        advice
    }
}

/// Looks at a whole table. Columns that do not fit as a whole are told, and the others are
/// looked at all the same.
///
/// # Errors
/// When the file cannot be read, or its first row is no row of a table.
pub fn check(
    path: &std::path::Path,
    format: &Format,
    table: &TableSchema,
    labelled: bool,
) -> Result<Checked, DataError> {
    let schema = Schema {
        unlabelled: !labelled,
        ..Schema::default()
    };
    let mut reader = Reader::open(path, format)?;
    if !reader.advance()? {
        return Err(DataError::Empty {
            place: Place::file(path),
        });
    }
    let (layout, mut more) = layout(&mut reader, format, table, &schema)?;
    let columns = layout.faults.clone();
    let mut rows = Rows::new(&reader, layout, table, &schema);
    let mut count = 0;
    while more {
        rows.push(&reader);
        // Nothing is kept: a file may be larger than memory.
        rows.forget();
        count += 1;
        more = reader.advance()?;
    }
    Ok(Checked {
        file: path.to_owned(),
        rows: count,
        columns,
        adjustments: rows.adjustments(),
        faults: rows.faults,
    })
}
