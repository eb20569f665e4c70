//! What can be wrong with data, said so that it can be put right: where, what was expected, what was found.

use std::fmt;
use std::path::PathBuf;

use thiserror::Error;

/// A position in a file, as a person would look it up: line and column count from one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The file, as it was named.
    pub file: PathBuf,
    /// The line, or for binary formats nothing.
    pub line: Option<u64>,
    /// The column: of characters in LIBSVM text, of fields in CSV.
    pub column: Option<u64>,
}

impl Place {
    /// A whole file.
    pub fn file(file: impl Into<PathBuf>) -> Place {
        Place {
            file: file.into(),
            line: None,
            column: None,
        }
    }

    /// A line of a file.
    pub fn line(file: impl Into<PathBuf>, line: u64) -> Place {
        Place {
            file: file.into(),
            line: Some(line),
            column: None,
        }
    }

    /// A column of a line of a file.
    pub fn column(file: impl Into<PathBuf>, line: u64, column: u64) -> Place {
        Place {
            file: file.into(),
            line: Some(line),
            column: Some(column),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.file.display())?;
        if let Some(line) = self.line {
            write!(formatter, ", line {line}")?;
        }
        if let Some(column) = self.column {
            write!(formatter, ", column {column}")?;
        }
        Ok(())
    }
}

/// Why data could not be had.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DataError {
    /// Two numbers that belong together disagree.
    #[error("{what}: expected {expected}, found {found}")]
    Shape {
        /// Which numbers.
        what: &'static str,
        /// What the rest of the data asks for.
        expected: usize,
        /// What there is.
        found: usize,
    },
    /// A value is infinite, not a number, or beyond 2^64.
    #[error("row {row}, feature {column}: expected a finite number up to 2^64, found {value}")]
    NotFinite {
        /// The row, from 0.
        row: usize,
        /// The feature, from 0.
        column: usize,
        /// The value.
        value: f32,
    },
    /// A label names a class that does not exist.
    #[error("row {row}: expected a class below {classes}, found {label}")]
    Label {
        /// The row, from 0.
        row: usize,
        /// The number of classes.
        classes: usize,
        /// The label.
        label: u32,
    },
    /// The indices of a sparse row are not ascending or lie outside of the columns.
    #[error("row {row}: expected ascending feature indices below {columns}, found {index}")]
    Index {
        /// The row, from 0.
        row: usize,
        /// The number of columns.
        columns: usize,
        /// The first index that is wrong.
        index: u32,
    },
    /// A file could not be read or written.
    #[error("{path}: {error}", path = path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the operating system or the decompressor says.
        error: std::io::Error,
    },
    /// A file holds something else than its format asks for.
    #[error("{place}: expected {expected}, found {found}")]
    Format {
        /// Where.
        place: Place,
        /// What should stand there.
        expected: String,
        /// What stands there.
        found: String,
    },
    /// Numbers stand where class labels should: more different ones than classes would have.
    #[error(
        "{place}: expected class labels, found {distinct} different numbers in {rows} rows, \
         as a quantity has them"
    )]
    Quantity {
        /// Where.
        place: Place,
        /// How many different numbers there are, at least.
        distinct: usize,
        /// How many rows.
        rows: usize,
    },
    /// A set of data without rows.
    #[error("{place}: expected at least one row, found none")]
    Empty {
        /// Where the rows should have been.
        place: Place,
    },
    /// A known data set is not on this machine.
    #[error("{name} is not here: looked for {file} in {looked}; run `soteria data fetch {name}`", looked = list(looked))]
    Missing {
        /// The data set.
        name: &'static str,
        /// The first file that is missing.
        file: String,
        /// The directories that were searched, in order.
        looked: Vec<PathBuf>,
    },
    /// A source, partition or scaling that cannot be understood or does not fit the data.
    #[error("{what} \"{value}\": {reason}")]
    Choice {
        /// Which setting.
        what: &'static str,
        /// Its value.
        value: String,
        /// What is wrong with it, and what is possible.
        reason: String,
    },
}

fn list(paths: &[PathBuf]) -> String {
    if paths.is_empty() {
        return "no directory (none is configured)".to_owned();
    }
    paths
        .iter()
        .map(|path| path.display().to_string())
        .collect::<Vec<_>>()
        .join(", ")
}
