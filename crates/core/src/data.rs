//! The records: rows of features with a class or a number each, and what is done to them before
//! training.
//!
//! A [`Dataset`] holds rows as they came, dense or sparse, so that 32,561 records with 14 nonzero
//! features of 123 cost what those 14 cost. Centring keeps it so: a constant that is added to every
//! row is stored once, as the set's [`offset`](Dataset::offset).
//!
//! ```
//! use soteriafl_core::data::{Partition, Scale, Synthetic};
//!
//! let source: Synthetic = "1001x20".parse()?;
//! let train = source.train(7)?.with_intercept();
//! let train = Scale::Spectral.fit(&train)?.apply(train)?;
//! let clients = Partition::Sorted.split(&train, 10, 0)?;
//! assert_eq!((clients[0].rows(), clients[9].rows(), clients[0].columns()), (101, 100, 21));
//! # Ok::<(), soteriafl_core::data::RecordsError>(())
//! ```
//!
//! No file is read here: readers and public data sets are the crate `soteriafl-data`.
//!
//! Nothing here is private yet: what a [`Dataset`] holds must only be used through an estimator and
//! its mechanism. Its `Debug` therefore prints sizes, never values.

mod cosine;
mod dataset;
mod error;
mod features;
pub(crate) mod identity;
pub(crate) mod indicators;
mod labels;
pub(crate) mod packed;
mod partition;
pub(crate) mod prefetch;
mod public_random;
mod rows;
mod scale;
mod singular_value;
mod synthetic;

pub use crate::linalg::SparseRow;
pub use cosine::Cosine;
pub use dataset::Dataset;
pub use error::RecordsError;
pub use features::{FeatureKind, FeatureMap};
pub use labels::{Labels, TargetRange, Targets};
pub use partition::Partition;
pub use rows::{DenseRows, Features, LARGEST_VALUE, MOST_FEATURES, SparseRows};
pub use scale::{Constants, Scale, Scaling, squared_columns};
pub use singular_value::largest_singular_value;
pub use synthetic::Synthetic;
