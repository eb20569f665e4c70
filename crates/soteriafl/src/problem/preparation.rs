//! What becomes of records before the first round, decided from the configuration and their public
//! shape: by whoever has the records, and by a server or a client that has only agreed on it.

use soteriafl_core::objective::Network;
use soteriafl_data::{Cosine, FeatureKind, FeatureMap};

use super::{Model, ProblemError, image_side};
use crate::config::resolve::Shape;
use crate::config::{Auto, Config, ConfigError, ModelKind, NoiseName, ScaleChoice};
use crate::record_shape::RecordShape;

/// The model, and how records become what it reads.
#[derive(Clone, Debug, PartialEq)]
pub struct Preparation {
    /// The model's kind, as it is called in configurations.
    pub kind: ModelKind,
    /// The model itself.
    pub model: Model,
    /// How features are scaled.
    pub scale: ScaleChoice,
    /// Whether scaled features are standardised by their records.
    pub standardize: bool,
    /// The public map that scaled features go through.
    pub features: FeatureMap,
    /// The basis that features are written in at last.
    pub basis: Option<Cosine>,
    /// Whether noise is secure, which also decides how rows are stored.
    pub secure: bool,
    /// Whether a record has as many features as a square image has pixels.
    square: bool,
}

impl Preparation {
    /// What `config` means for records of this shape.
    ///
    /// # Errors
    /// When model and records do not go together.
    pub fn of(config: &Config, records: &RecordShape) -> Result<Self, ProblemError> {
        let classes = records.labels.len();
        let kind = config.model_for(classes)?;
        let map = config.features_for(kind)?;
        let intercept = kind == ModelKind::Logistic && config.has_intercept(kind, map);
        let features = FeatureMap::new(map, records.features)?;
        let columns = features.outputs() + usize::from(intercept);
        let basis = match map {
            FeatureKind::None => config.basis_for(kind, columns)?,
            _ => None,
        };
        let standardize = config.standardizes();
        if standardize && basis.is_some() {
            return Err(ConfigError::with_hint(
                "`data.standardize` does not go with a basis",
                "set data.basis = \"none\", or leave data.standardize out",
            )
            .into());
        }
        let network = |hidden: &[usize]| {
            let inputs = basis.map_or(columns, |basis| basis.coefficients());
            let activation = config.activation_for(basis.is_some());
            Network::new(inputs, hidden, classes, activation)
                .map(Model::Network)
                .map_err(|error| ProblemError::Model(format!("`model`: {error}")))
        };
        let model = match kind {
            ModelKind::Logistic => Model::Logistic {
                features: columns,
                intercept,
            },
            ModelKind::Softmax => network(&[])?,
            ModelKind::Mlp => network(&config.hidden)?,
        };
        Ok(Self {
            kind,
            model,
            scale: config.scale_choice(),
            standardize,
            features,
            basis,
            secure: config.noise == Auto::Given(NoiseName::Secure),
            square: map == FeatureKind::None && image_side(columns).is_some(),
        })
    }

    /// What resolving needs to know, for clients with so many records each. The smoothness of a
    /// loss depends on the records themselves, and is left out.
    pub fn shape(&self, records: Vec<usize>) -> Shape {
        Shape {
            dimension: self.model.objective().dimension(),
            records,
            model: self.kind,
            smoothness: None,
            image: self.basis.is_none() && self.square,
            feature_map: self.features.kind(),
            basis: self.basis,
            whole: self.model.whole(self.basis),
        }
    }
}
