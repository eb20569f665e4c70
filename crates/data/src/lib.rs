//! Records for SoteriaFL: readers of tables, sparse rows and images, the built-in data set a9a and
//! the catalogue of public data sets.
//!
//! A [`Source`] is what a configuration names: `a9a`, `mnist`, `csv:PATH`,
//! `synthetic:ROWSxFEATURES`. Loading it gives a [`Dataset`] to train on and, where the source has
//! one, one to test on.
//!
//! ```
//! use soteriafl_data::{DataDirectories, DataError, Partition, Source};
//!
//! let source: Source = "a9a".parse()?;
//! let loaded = source.load(&DataDirectories::from_environment(None), 0)?;
//! let clients = Partition::Sorted.split(&loaded.train.with_intercept(), 10, 0)?;
//! assert_eq!((clients[0].rows(), clients[9].rows(), clients[0].columns()), (3257, 3256, 124));
//! # Ok::<(), DataError>(())
//! ```
//!
//! # Modules
//!
//! | | |
//! | --- | --- |
//! | [`Source`], [`Share`], [`Loaded`] | names of data, and what they load |
//! | [`DataDirectories`] | where files of public data sets are looked for |
//! | [`csv`], [`libsvm`], [`idx`] | readers: tables, sparse rows, arrays of pixels; plain or gzip |
//! | [`a9a`] | the built-in data set |
//! | [`schema`] | what the columns of a table mean, in public, and the features they become |
//! | [`Schema`] | features and label names that are fixed before reading |
//! | [`export`] | writers of tables and sparse rows |
#![cfg_attr(
    feature = "fetch",
    doc = "| [`fetch`] | the catalogue of public data sets, and their download |"
)]
//! | [`DataError`] | what was expected where, and what was found: [`Place`], [`Faults`], [`Foreign`], [`OtherName`] |
//!
//! Records, scaling and distribution to clients are those of [`soteriafl_core::data`]; the types
//! that go with a reader are re-exported here, so that one `use` is enough.
//!
//! Readers take any bytes: what they return is sound, and what they refuse is an error with its
//! place, never a panic. Error messages may quote what stands in a file, which is private;
//! [`DataError::lines`] leaves it out on request.
//!
//! The feature `fetch` adds downloads over TLS; nothing else here uses a network.

pub mod a9a;
pub mod csv;
mod directories;
mod error;
pub mod export;
mod faults;
#[cfg(feature = "fetch")]
pub mod fetch;
mod foreign;
mod grouping;
pub mod idx;
mod labels;
pub mod libsvm;
mod names;
mod numpy;
mod reader;
pub mod schema;
mod several;
mod source;
mod table;

pub use directories::DataDirectories;
pub use error::{DataError, Place};
pub use faults::Faults;
pub use foreign::Foreign;
pub use grouping::Grouping;
pub use labels::{Schema, classes_of};
pub use names::{GUESSED, OtherName};
pub use schema::{Adjustment, ColumnFault, TableSchema};
pub use soteriafl_core::data::{
    Constants, Cosine, Dataset, DenseRows, FeatureKind, FeatureMap, Features, LARGEST_VALUE,
    MOST_FEATURES, Partition, RecordsError, Scale, Scaling, SparseRow, SparseRows, Synthetic,
    TargetRange, Targets, largest_singular_value, squared_columns,
};
pub use source::{Loaded, Share, Source};
