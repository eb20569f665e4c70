//! What `preset = "auto"` chooses: the best run that is proved.
//!
//! Every rule is a formula of public quantities (model, dimension, epsilon, how many values may
//! travel); none looks at records, so choosing costs no privacy. Where the numbers in them come from is said in
//! `docs/best-proved.md`.
//!
//! Full gradients, because a sampled minibatch needs nearly as much noise for less signal. Each record clipped
//! on the coordinates that travel, which is exact where amplification is a bound. For networks all
//! clients send the same coordinates, so that clients that differ (one digit each) do not add their
//! differences to the error of random-k; the server's momentum then fills the gaps between a coordinate's visits, and no
//! shift is needed. Convex models keep the shift: there the differences between clients are
//! small, and a hundred coordinates are soon learnt.
//! The privacy noise that a run ends with depends on the product of clip, step size and rounds, which is also what progress
//! is made of; so steps and clips grow with epsilon, and what a public preconditioner
//! ([smoothing](soteria_core::protocol::Smoothing)) takes off the noise is pure gain.

use soteria_core::compress::{Compressor, CompressorKind};

use super::document::ConfigError;
use super::resolve::{Resolved, Shape};
use super::{Auto, Config, EstimatorName, ModelKind, NoiseTarget, Preset, Scope, Theory};

impl Config {
    /// How many values each client may send in the whole run: as many as `rounds` messages of 5% have.
    pub(super) fn budget(&self, shape: &Shape) -> usize {
        let messages = match (shape.model, self.noise_target) {
            (ModelKind::Logistic, _) => 300.0,
            // More budget for privacy is worth more messages, as in the paper's experiments: 150 at
            // epsilon 1, 500 at 8.
            (_, NoiseTarget::Epsilon(epsilon)) => 100.0 + 50.0 * epsilon.min(16.0),
            _ => 150.0,
        };
        self.values
            .or_else(|| messages as usize * share(0.05, shape.dimension))
    }

    /// How many coordinates travel in a message when nobody says.
    ///
    /// Noise does not care: with the clip at `sqrt(k/d)` of the whole one, a coordinate's noise over the run depends on
    /// the number of values alone, however they are dealt to rounds. Many small messages make many
    /// steps, which is what training lacks; but random-k needs some rounds until every coordinate
    /// was seen, so that few values are better spent on few large messages.
    pub(super) fn message_size(&self, shape: &Shape) -> usize {
        let dimension = shape.dimension;
        if self.preset != Preset::Auto {
            return share(0.05, dimension);
        }
        let values = self.budget(shape);
        let rounds = match (self.rounds, self.values) {
            (Auto::Given(Theory::Given(rounds)), Auto::Given(_)) => rounds as usize,
            (Auto::Given(_), _) => return share(0.05, dimension),
            (Auto::Auto, _) => {
                let passes = values as f64 / dimension as f64;
                let enough = if shape.model == ModelKind::Logistic {
                    10.0
                } else {
                    2.8
                };
                values / share((enough / passes.powi(2)).clamp(0.05, 1.0), dimension)
            }
        };
        (values / rounds.max(1)).clamp(1, dimension)
    }

    /// Whether all clients send the same coordinates.
    pub(super) fn sharing_rule(&self, model: ModelKind, scope: Scope) -> bool {
        self.preset == Preset::Auto && model == ModelKind::Mlp && scope == Scope::Selected
    }

    /// How often the first layer's direction is smoothed.
    pub(super) fn smoothing(&self, shape: &Shape) -> Result<u32, ConfigError> {
        let network = shape.model != ModelKind::Logistic;
        let passes = self.smoothing.or(
            if self.preset == Preset::Auto && network && shape.image && self.source.is_images() {
                3
            } else {
                0
            },
        );
        if passes > 0 && !(network && shape.image) {
            return Err(ConfigError::with_hint(
                format!(
                    "`algorithm.smoothing` is {passes}, but it needs a softmax or mlp model of square images"
                ),
                "leave it out, or set it to 0",
            ));
        }
        Ok(passes)
    }

    /// What the clip bounds.
    pub(super) fn scope(&self, estimator: EstimatorName, compressor: CompressorKind) -> Scope {
        let minibatch = matches!(estimator, EstimatorName::Gd | EstimatorName::Sgd);
        match (self.preset, compressor) {
            (Preset::Auto, CompressorKind::RandK { .. }) if minibatch => Scope::Selected,
            _ => Scope::Record,
        }
    }

    /// The bound on each record.
    pub(super) fn clip_rule(&self, model: ModelKind, scope: Scope, compressor: &Compressor) -> f64 {
        if self.preset != Preset::Auto {
            return if model == ModelKind::Logistic {
                0.5
            } else {
                1.0
            };
        }
        let whole = match model {
            ModelKind::Logistic => 2.0,
            ModelKind::Softmax => 0.2,
            ModelKind::Mlp => 0.2 * self.clip_growth(),
        };
        match (scope, compressor.fraction()) {
            // A gradient that is spread over its coordinates shows this share of its norm.
            (Scope::Selected, Some(fraction)) => whole * fraction.sqrt(),
            _ => whole,
        }
    }

    /// The step size.
    pub(super) fn step_rule(&self, model: ModelKind) -> f64 {
        match (self.preset, model) {
            (Preset::Auto, ModelKind::Logistic) => 0.7,
            (Preset::Auto, _) => 12.0,
            _ => 0.3,
        }
    }

    /// By how much a network's clip exceeds the one at epsilon 1. The noise that the model ends with is proportional to
    /// clip times step times rounds over (nearly) `epsilon^0.8`. Rounds grow by `epsilon^0.65` or so, which leaves a little
    /// for a clip that hears more of the records that are still wrong.
    fn clip_growth(&self) -> f64 {
        match self.noise_target {
            NoiseTarget::Epsilon(epsilon) => epsilon.clamp(0.05, 20.0).powf(0.3),
            _ => 1.0,
        }
    }

    /// As many rounds as the values that may travel allow.
    pub(super) fn rounds_rule(&self, shape: &Shape, compressor: &Compressor) -> u32 {
        let limited = matches!(self.values, Auto::Given(_));
        let values = match (self.preset, compressor.fraction()) {
            _ if limited => compressor.values(),
            (Preset::Auto, Some(_)) => compressor.values(),
            // What travels is not chosen by the number of values: as many rounds as at 5%.
            (Preset::Auto, None) => share(0.05, shape.dimension),
            _ => return 100,
        };
        (self.budget(shape) / values).clamp(1, u32::MAX as usize) as u32
    }

    /// Refuses rounds and messages that together send more than `algorithm.values`.
    pub(super) fn check_values(
        &self,
        resolved: &Resolved,
        dimension: usize,
    ) -> Result<(), ConfigError> {
        let Auto::Given(allowed) = self.values else {
            return Ok(());
        };
        let each = match resolved.compressor {
            CompressorKind::RandK { k } => k,
            _ => dimension,
        };
        let all = each as u128 * u128::from(resolved.rounds);
        if all > allowed as u128 {
            return Err(ConfigError::with_hint(
                format!(
                    "`algorithm.values` allows {allowed} values, but {} rounds of {each} are {all}",
                    resolved.rounds
                ),
                "leave `algorithm.rounds` or `algorithm.fraction` to \"auto\", or allow more",
            ));
        }
        Ok(())
    }
}

/// A share of the coordinates, rounded down, at least one.
pub(super) fn share(fraction: f64, dimension: usize) -> usize {
    ((fraction * dimension as f64).floor() as usize).max(1)
}
