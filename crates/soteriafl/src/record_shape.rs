//! What is known about records before any is seen.

use std::sync::Arc;

use soteriafl_data::schema::Role;
use soteriafl_data::{TableSchema, TargetRange};

/// Features and classes, or the range of targets, of the records of a run, as everybody knows them.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordShape {
    /// Features, without the constant.
    pub features: usize,
    /// What they are called, in their order, where that is agreed: records whose source has names
    /// must have these.
    pub names: Option<Vec<String>>,
    /// What the columns of their table mean, where they are read through a schema.
    pub schema: Option<Arc<TableSchema>>,
    /// Class names, in their order; none where records have numbers to predict.
    pub labels: Vec<String>,
    /// The public range of these numbers.
    pub targets: Option<TargetRange>,
}

impl RecordShape {
    /// Whether a column says whose each record is, so that what is used of one person is bounded.
    pub fn bounds_persons(&self) -> bool {
        self.person_column().is_some()
    }

    /// The column that says whose each record is.
    pub fn person_column(&self) -> Option<&str> {
        let schema = self.schema.as_ref();
        schema.and_then(|schema| schema.named_by(&Role::Person))
    }

    /// Of records that a model reads that is computed elsewhere: a record is a number, and what it
    /// stands for is known there.
    pub fn elsewhere() -> Self {
        Self {
            features: 1,
            names: None,
            schema: None,
            labels: Vec::new(),
            targets: None,
        }
    }
}
