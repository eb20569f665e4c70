//! What can be wrong with records and with what is to be done to them: what was expected, what was
//! found.

use thiserror::Error;

/// Why records cannot be what was asked for.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RecordsError {
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
    /// A target is infinite, not a number, or beyond 2^64.
    #[error("row {row}: expected a finite target up to 2^64, found {target}")]
    Target {
        /// The row, from 0.
        row: usize,
        /// The target.
        target: f64,
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
    /// A setting (a partition, a scaling, a source) that cannot be understood or does not fit the
    /// records.
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
