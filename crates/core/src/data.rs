//! Where the records come from: rows of features with class labels, and everything done to them before training.
//!
//! A [`Dataset`] holds rows as they came, dense or sparse, so that 32,561 records with 14 nonzero features of 123 cost
//! what those 14 cost. Centring keeps it so: a constant that is added to every row is stored once, as the set's
//! [`offset`](Dataset::offset).
//!
//! Nothing here is private yet: what a [`Dataset`] holds must only be used through an estimator and its mechanism. Its
//! `Debug` therefore prints sizes, never values.

mod dataset;
mod error;
mod rows;

pub use dataset::Dataset;
pub use error::{DataError, Place};
pub use rows::{DenseRows, Features, SparseRow, SparseRows};
