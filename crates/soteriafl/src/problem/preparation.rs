//! What becomes of records before the first round, decided from the configuration and their public
//! shape: by whoever has the records, and by a server or a client that has only agreed on it.

use soteriafl_core::objective::{Network, TargetLoss};
use soteriafl_data::{Cosine, FeatureKind, FeatureMap};

use super::{Model, ProblemError, image_side};
use crate::config::resolve::Shape;
use crate::config::{Auto, Config, ConfigError, ModelKind, NoiseName, ScaleChoice};
use crate::record_shape::RecordShape;
use crate::words::counted;

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
    /// The share of the budget that second moments get, whose release whitens records.
    pub whiten: Option<f64>,
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
    pub fn of(config: &Config, shape: &RecordShape) -> Result<Self, ProblemError> {
        if config.is_elsewhere() {
            return Self::elsewhere(config);
        }
        let targets = config.regression()?;
        if targets != shape.targets {
            return Err(ConfigError::conflict(
                "the records have classes where the configuration predicts numbers, or another range of these",
            )
            .into());
        }
        let classes = shape.labels.len();
        let loss = targets.map(|range| config.target_loss(range)).transpose()?;
        let weights = class_weights(config, classes)?;
        let kind = config.model_for(classes, shape.features)?;
        let map = config.features_for(kind, shape.features)?;
        let intercept = kind.is_linear() && config.has_intercept(kind, map);
        let features = FeatureMap::new(map, shape.features)?;
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
            let of_classes = || match (kind, map) {
                // The map appends a constant to every record.
                (ModelKind::Softmax, map) if map != FeatureKind::None => {
                    Network::softmax_without_biases(inputs, classes)
                }
                _ => Network::new(inputs, hidden, classes, activation),
            };
            let network = match (loss, &weights) {
                (Some(loss), _) => Network::regression(inputs, hidden, activation, loss),
                (None, None) => of_classes(),
                (None, Some(weights)) => of_classes().and_then(|network| network.weighted(weights)),
            };
            network
                .map(Model::Network)
                .map_err(|error| ProblemError::Model(format!("`model`: {error}")))
        };
        let model = match (kind, loss) {
            (ModelKind::Linear, loss) => Model::Linear {
                features: columns,
                intercept,
                loss: loss.unwrap_or(TargetLoss::Squared),
            },
            (ModelKind::Logistic, _) => Model::Logistic {
                features: columns,
                intercept,
                weights: weights
                    .as_deref()
                    .map_or([1.0; 2], |both| [both[0], both[1]]),
            },
            (ModelKind::Softmax, _) => network(&[])?,
            (ModelKind::Mlp | ModelKind::Elsewhere, _) => network(&config.hidden)?,
        };
        Ok(Self {
            kind,
            model,
            scale: config.scale_choice(map),
            standardize,
            whiten: config.whiten_for(kind, map, features.outputs())?,
            features,
            basis,
            secure: config.noise == Auto::Given(NoiseName::Secure),
            square: map == FeatureKind::None && image_side(columns).is_some(),
        })
    }

    /// The same for a model that is computed elsewhere: nothing becomes of records here, whose
    /// numbers only that program has.
    fn elsewhere(config: &Config) -> Result<Self, ProblemError> {
        let model = config.elsewhere_model()?;
        Ok(Self {
            kind: ModelKind::Elsewhere,
            model: Model::Elsewhere(model),
            scale: ScaleChoice::None,
            standardize: false,
            features: FeatureMap::new(FeatureKind::None, 1)?,
            whiten: None,
            basis: None,
            secure: config.noise == Auto::Given(NoiseName::Secure),
            square: false,
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
            whiten: self.whiten,
            basis: self.basis,
            whole: self.model.whole(self.basis),
        }
    }
}

/// The weights of classes, one for each.
fn class_weights(config: &Config, classes: usize) -> Result<Option<Vec<f32>>, ConfigError> {
    let Some(weights) = &config.class_weights else {
        return Ok(None);
    };
    if weights.len() != classes {
        return Err(ConfigError::conflict(format!(
            "`model.class_weights` has {}, and the data {classes} classes: expected one for each, in their order",
            counted(weights.len(), "weight"),
        )));
    }
    Ok(Some(weights.iter().map(|&weight| weight as f32).collect()))
}
