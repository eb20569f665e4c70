//! Why data cannot be read, so that it can be repaired: where, what was expected, what was found.

use std::fmt;
use std::path::PathBuf;

use soteriafl_core::data::RecordsError;
use thiserror::Error;

use super::faults::Faults;
use super::foreign::Foreign;
use super::names::OtherName;
use super::schema::ColumnFault;

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
    /// The values do not make records, or a setting is not possible for them.
    #[error(transparent)]
    Records(#[from] RecordsError),
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
    /// A table whose features are called otherwise than agreed, or stand in another order.
    #[error("{place}: {difference}")]
    Names {
        /// Where the names stand.
        place: Place,
        /// The first that differs.
        difference: OtherName,
    },
    /// A table whose columns are not those of its schema.
    #[error("{path}: {}", list_faults(faults), path = path.display())]
    Columns {
        /// The file.
        path: PathBuf,
        /// All that is wrong with its columns.
        faults: Vec<ColumnFault>,
    },
    /// A table with faults, all of them.
    #[error("{0}")]
    Table(Box<Faults>),
    /// A file of a kind that is not read here.
    #[error("{path}: found {kind}, which is not read here", path = path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What it is.
        kind: Foreign,
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
}

impl DataError {
    /// A setting that is not possible, and what is.
    pub(super) fn choice(what: &'static str, value: &str, reason: impl Into<String>) -> DataError {
        DataError::Records(RecordsError::Choice {
            what,
            value: value.to_owned(),
            reason: reason.into(),
        })
    }

    /// What is wrong, one thing a line. Values that stand in a file are quoted only if `values`
    /// says so: they are private, and lines for machines are collected and sent elsewhere.
    pub fn lines(&self, values: bool) -> Vec<String> {
        match self {
            DataError::Table(faults) => faults.lines(values),
            DataError::Columns { path, faults } => ColumnFault::lines(faults, path, values),
            DataError::Format {
                place, expected, ..
            } if !values => vec![format!(
                "{place}: expected {expected}, found something else"
            )],
            DataError::Records(RecordsError::NotFinite { row, column, .. }) if !values => {
                vec![format!(
                    "row {row}, feature {column}: expected a finite number up to 2^64"
                )]
            }
            DataError::Records(RecordsError::Label { row, classes, .. }) if !values => {
                vec![format!("row {row}: expected a class below {classes}")]
            }
            // What was taken for a header may be a record.
            DataError::Names { place, difference } if !values => vec![format!(
                "{place}: feature {} is called otherwise than in training",
                difference.number
            )],
            other => vec![other.to_string()],
        }
    }

    /// What a person can do about it, where that is known.
    pub fn advice(&self) -> Option<String> {
        match self {
            DataError::Table(faults) => faults.advice(),
            DataError::Columns { faults, .. } => Some(ColumnFault::all_advice(faults).join("; ")),
            DataError::Foreign { kind, .. } => Some(kind.advice().to_owned()),
            DataError::Quantity { .. } => Some(
                "to predict the number itself give its public range, data.target_range = [LOW, HIGH]; \
                 for classes sort the numbers into a few (such as low, middle, high), or choose \
                 another column by ?label=NAME; numbers that do name classes are taken as text (c25)"
                    .to_owned(),
            ),
            _ => None,
        }
    }
}

fn list_faults(faults: &[ColumnFault]) -> String {
    let texts: Vec<String> = faults.iter().map(ColumnFault::to_string).collect();
    texts.join("; ")
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
