//! The model of a run: its kind with its numbers, and what the rest of the library asks of it.

use std::path::Path;
use std::sync::Arc;

use rand_distr::{Distribution, StandardNormal};
use soteriafl_core::objective::{
    CrossEntropy, LinearRegression, Logistic, MarginLoss, Network, Objective, TargetLoss,
};
use soteriafl_core::protocol::{Equalizing, ParameterBlock, Smoothing};
use soteriafl_core::random::{PublicPurpose, PublicSeed};
use soteriafl_data::{Cosine, Dataset, Scaling};

use super::ProblemError;
use super::elsewhere::{Absent, ElsewhereModel};
use crate::config::Init;
use crate::config::resolve::Resolved;

/// The loss, by kind.
#[derive(Clone, Debug, PartialEq)]
pub enum Model {
    /// Logistic regression.
    Logistic {
        /// Features, the constant included.
        features: usize,
        /// Whether the last feature is the constant.
        intercept: bool,
        /// Public weights of the two classes.
        weights: [f32; 2],
    },
    /// A linear model of a number.
    Linear {
        /// Features, the constant included.
        features: usize,
        /// Whether the last feature is the constant.
        intercept: bool,
        /// What missing the number costs.
        loss: TargetLoss,
    },
    /// A network.
    Network(Network),
    /// A model that is computed elsewhere.
    Elsewhere(Arc<ElsewhereModel>),
}

impl Model {
    /// The model to start from.
    ///
    /// # Errors
    /// When a start file cannot be read or does not fit.
    pub fn start(&self, resolved: &Resolved) -> Result<Vec<f32>, ProblemError> {
        let dimension = self.objective().dimension();
        let mut rng = PublicSeed(resolved.seed).stream(PublicPurpose::Start, 0);
        let mut normal = |deviation: f64| {
            let standard: f64 = StandardNormal.sample(&mut rng);
            (deviation * standard) as f32
        };
        Ok(match &resolved.init {
            Init::Zeros => vec![0.0; dimension],
            Init::Normal(deviation) => (0..dimension).map(|_| normal(*deviation)).collect(),
            Init::Glorot => match self {
                Model::Logistic { features, .. } | Model::Linear { features, .. } => {
                    let deviation = (2.0 / (features + 1) as f64).sqrt();
                    (0..dimension).map(|_| normal(deviation)).collect()
                }
                Model::Network(network) => {
                    let mut start = vec![0.0; dimension];
                    for layer in network.layers() {
                        let deviation = (2.0 / (layer.inputs + layer.outputs) as f64).sqrt();
                        start[layer.weights]
                            .iter_mut()
                            .for_each(|weight| *weight = normal(deviation));
                    }
                    start
                }
                Model::Elsewhere(_) => {
                    return Err(ProblemError::Model(
                        "`model.init = \"glorot\"` needs layers that the program knows: give \
                         file:PATH"
                            .to_owned(),
                    ));
                }
            },
            Init::File(path) => read_start(Path::new(path), dimension)?,
            Init::Given => {
                return Err(ProblemError::Model(
                    "`model.init = \"given\"`: the start comes with a model that a program has, and \
                     there is none here: give file:PATH"
                        .to_owned(),
                ));
            }
        })
    }

    /// The parameters that give for features `x` what `parameters` give for `(x - center) *
    /// factor`: the map becomes part of the first layer. `constant` is the value of the constant
    /// feature of a logistic model with an intercept; its parameter becomes the bias itself.
    pub(super) fn absorb(&self, parameters: &[f32], map: &Scaling, constant: f64) -> Vec<f32> {
        let mut absorbed = parameters.to_vec();
        let (center, factor) = (map.center(), map.factor());
        match self {
            Model::Logistic {
                features,
                intercept,
                ..
            }
            | Model::Linear {
                features,
                intercept,
                ..
            } => {
                let inputs = features - usize::from(*intercept);
                let mut bias = 0.0;
                for column in 0..inputs {
                    let weight = f64::from(parameters[column]) * factor.at(column);
                    absorbed[column] = weight as f32;
                    bias -= weight * center.at(column);
                }
                if *intercept {
                    let value = (constant - center.at(inputs)) * factor.at(inputs);
                    absorbed[inputs] = (bias + f64::from(parameters[inputs]) * value) as f32;
                }
            }
            Model::Network(network) => {
                let layers = network.layers();
                let first = &layers[0];
                let mut biases: Vec<f64> = parameters[first.biases.clone()]
                    .iter()
                    .map(|&bias| f64::from(bias))
                    .collect();
                let weights = &mut absorbed[first.weights.clone()];
                for (column, row) in weights.chunks_exact_mut(first.outputs).enumerate() {
                    for (weight, bias) in row.iter_mut().zip(&mut biases) {
                        let scaled = f64::from(*weight) * factor.at(column);
                        *weight = scaled as f32;
                        *bias -= scaled * center.at(column);
                    }
                }
                for (slot, bias) in absorbed[first.biases.clone()].iter_mut().zip(biases) {
                    *slot = bias as f32;
                }
            }
            // Its records are not standardised here.
            Model::Elsewhere(_) => {}
        }
        absorbed
    }

    /// The largest second derivative of the loss in the model's output, where that is known.
    pub fn curvature(&self) -> Option<f64> {
        match self {
            Model::Logistic { weights, .. } => Some(CrossEntropy { weights: *weights }.curvature()),
            Model::Linear { loss, .. } => Some(loss.curvature()),
            Model::Network(_) | Model::Elsewhere(_) => None,
        }
    }

    /// Smoothness of the loss on the worst of these clients, where it is known.
    pub(super) fn smoothness(&self, shards: &[Arc<Dataset>]) -> Option<f64> {
        let shards = shards.iter();
        let each: Vec<Option<f64>> = match self {
            Model::Logistic {
                features, weights, ..
            } => {
                let weights = *weights;
                let logistic = Logistic::with_loss(*features, CrossEntropy { weights });
                shards.map(|shard| logistic.smoothness(shard)).collect()
            }
            Model::Linear { features, loss, .. } => {
                let linear = LinearRegression::with_loss(*features, *loss);
                shards.map(|shard| linear.smoothness(shard)).collect()
            }
            Model::Network(_) | Model::Elsewhere(_) => return None,
        };
        Some(each.into_iter().flatten().fold(0.0, f64::max))
    }

    /// The smoothing of the first layer, where it reads square images and `passes` is not zero.
    pub fn smoothing(&self, passes: u32) -> Option<Smoothing> {
        let Model::Network(network) = self else {
            return None;
        };
        let first = network.layers().into_iter().next()?;
        let side = image_side(first.inputs).filter(|_| passes > 0)?;
        Some(Smoothing {
            rows: side,
            columns: side,
            units: first.outputs,
            passes,
        })
    }

    /// The layers whose direction is equalised down to `floor`; none at 0.
    pub fn equalizing(&self, floor: f64) -> Option<Equalizing> {
        let Model::Network(network) = self else {
            return None;
        };
        let blocks = network.layers().into_iter().flat_map(|layer| {
            let weights = ParameterBlock {
                start: layer.weights.start,
                rows: layer.inputs,
                columns: layer.outputs,
            };
            let biases = ParameterBlock {
                start: layer.biases.start,
                rows: layer.outputs,
                columns: 1,
            };
            [weights, biases]
        });
        let blocks = blocks.collect();
        (floor > 0.0).then_some(Equalizing { blocks, floor })
    }

    /// How many parameters it would have if it read features as they are, not written in `basis`.
    pub fn whole(&self, basis: Option<Cosine>) -> usize {
        let dimension = self.objective().dimension();
        match (self, basis) {
            (Model::Network(network), Some(basis)) => {
                let units = network.layers().first().map_or(0, |layer| layer.outputs);
                dimension + (basis.pixels() - basis.coefficients()) * units
            }
            _ => dimension,
        }
    }

    /// Whether the last feature is the constant.
    pub fn intercept(&self) -> bool {
        matches!(
            self,
            Model::Logistic {
                intercept: true,
                ..
            } | Model::Linear {
                intercept: true,
                ..
            }
        )
    }

    /// What missing a number costs; `None` of a model that answers with classes.
    pub fn target_loss(&self) -> Option<TargetLoss> {
        match self {
            Model::Logistic { .. } | Model::Elsewhere(_) => None,
            Model::Linear { loss, .. } => Some(*loss),
            Model::Network(network) => network.target_loss(),
        }
    }

    /// The loss behind this model.
    pub fn objective(&self) -> Arc<dyn Objective> {
        match self {
            Model::Logistic {
                features, weights, ..
            } => {
                let weights = *weights;
                Arc::new(Logistic::with_loss(*features, CrossEntropy { weights }))
            }
            Model::Linear { features, loss, .. } => {
                Arc::new(LinearRegression::with_loss(*features, *loss))
            }
            Model::Network(network) => Arc::new(network.clone()),
            Model::Elsewhere(model) => Arc::new(Absent {
                dimension: model.dimension(),
            }),
        }
    }
}

/// The side of square images with this many pixels.
pub fn image_side(pixels: usize) -> Option<usize> {
    let side = pixels.isqrt();
    (side * side == pixels).then_some(side)
}

fn read_start(path: &Path, dimension: usize) -> Result<Vec<f32>, ProblemError> {
    let name = path.display();
    let text = std::fs::read_to_string(path)
        .map_err(|error| ProblemError::Model(format!("{name}: {error}")))?;
    let mut start = Vec::with_capacity(dimension.min(text.len()));
    for (line, number) in text
        .lines()
        .enumerate()
        .filter(|(_, line)| !line.trim().is_empty())
    {
        match number.trim().parse::<f64>() {
            Ok(number) if (number as f32).is_finite() => start.push(number as f32),
            _ => {
                let line = line + 1;
                return Err(ProblemError::Model(format!(
                    "{name}:{line}: expected a finite number, found `{number}`"
                )));
            }
        }
    }
    if start.len() != dimension {
        let found = start.len();
        return Err(ProblemError::Model(format!(
            "{name}: expected {dimension} numbers, one per parameter, found {found}"
        )));
    }
    Ok(start)
}
