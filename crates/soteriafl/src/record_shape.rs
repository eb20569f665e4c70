//! What is known about records before any is seen.

use soteriafl_core::data::Cosine;

use crate::config::{Config, ConfigError, ModelKind};
use crate::problem::{Model, ProblemError, build_model};

/// Features and classes of the records of a run, as everybody knows them.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordShape {
    /// Features, without the constant.
    pub features: usize,
    /// What they are called, in their order, where that is agreed: records whose source has names
    /// must have these.
    pub names: Option<Vec<String>>,
    /// Class names, in their order.
    pub labels: Vec<String>,
}

impl RecordShape {
    /// The model for such records.
    ///
    /// # Errors
    /// When the sizes do not make a model.
    pub fn model(&self, config: &Config, kind: ModelKind) -> Result<Model, ProblemError> {
        let intercept = kind == ModelKind::Logistic && config.intercept;
        let columns = self.features + usize::from(intercept);
        let basis = self.basis(config, kind)?;
        build_model(config, kind, columns, basis, self.labels.len(), intercept)
    }

    /// The basis that such records are written in.
    ///
    /// # Errors
    /// When it is not for them.
    pub fn basis(&self, config: &Config, kind: ModelKind) -> Result<Option<Cosine>, ConfigError> {
        let intercept = kind == ModelKind::Logistic && config.intercept;
        config.basis_for(kind, self.features + usize::from(intercept))
    }
}
