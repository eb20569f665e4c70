//! The records: rows of features with class labels, where they are read from, and what is done to
//! them before training.
//!
//! A [`Dataset`] holds rows as they came, dense or sparse, so that 32,561 records with 14 nonzero
//! features of 123 cost what those 14 cost. Centring keeps it so: a constant that is added to every
//! row is stored once, as the set's [`offset`](Dataset::offset).
//!
//! ```
//! use soteriafl_core::data::{DataDirectories, Partition, Source};
//!
//! let source: Source = "a9a".parse()?;
//! let loaded = source.load(&DataDirectories::from_environment(None), 0)?;
//! let clients = Partition::Sorted.split(&loaded.train.with_intercept(), 10, 0)?;
//! assert_eq!((clients[0].rows(), clients[9].rows(), clients[0].columns()), (3257, 3256, 124));
//! # Ok::<(), soteriafl_core::data::DataError>(())
//! ```
//!
//! Nothing here is private yet: what a [`Dataset`] holds must only be used through an estimator and
//! its mechanism. Its `Debug` therefore prints sizes, never values.

pub mod a9a;
mod cosine;
pub mod csv;
mod dataset;
mod directories;
mod error;
pub mod export;
mod faults;
mod foreign;
pub(crate) mod identity;
pub mod idx;
pub(crate) mod indicators;
mod labels;
pub mod libsvm;
mod names;
pub(crate) mod packed;
mod partition;
pub(crate) mod prefetch;
mod public_random;
mod reader;
mod rows;
mod scale;
mod singular_value;
mod source;
mod synthetic;

// The name that `csv.rs` still uses.

pub use crate::linalg::SparseRow;
pub use cosine::Cosine;
pub use dataset::Dataset;
pub use directories::DataDirectories;
pub use error::{DataError, Place};
pub use faults::Faults;
pub use foreign::Foreign;
pub use labels::Schema;
pub use names::{GUESSED, OtherName};
pub use partition::Partition;
pub use rows::{DenseRows, Features, LARGEST_VALUE, SparseRows};
pub use scale::{Constants, Scale, Scaling, squared_columns};
pub use singular_value::largest_singular_value;
pub use source::{Loaded, Share, Source};
pub use synthetic::Synthetic;
