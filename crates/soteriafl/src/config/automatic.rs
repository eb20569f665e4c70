//! What `preset = "auto"` chooses: the best run that is proved.
//!
//! Every rule is a formula of public quantities (model, dimension, epsilon, how many values may
//! travel); none looks at records, so choosing costs no privacy. Where the numbers in them come
//! from is said in `docs/best-proved.md`.
//!
//! Full gradients, because a sampled minibatch needs nearly as much noise for less signal. Each
//! record clipped on the coordinates that travel, which is exact where amplification is a bound.
//! For networks all clients send the same coordinates, so that clients that differ (one digit each)
//! do not add their differences to the error of random-k; the server's momentum then fills the gaps
//! between a coordinate's visits, and no shift is needed. Convex models keep the shift: there the
//! differences between clients are small, and a hundred coordinates are soon learnt. The privacy
//! noise that a run ends with depends on the product of clip, step size and rounds, which is also
//! what progress is made of; so steps and clips grow with epsilon, and what a public preconditioner
//! ([smoothing](soteriafl_core::protocol::Smoothing)) takes off the noise is pure gain.

use soteriafl_core::compress::{Compressor, CompressorKind};
use soteriafl_core::data::{Cosine, FeatureKind};
use soteriafl_core::objective::Activation;

use super::document::ConfigError;
use super::images;
use super::linear::{WIDEST_ROOTS, is_linear};
use super::plain;
use super::resolve::{Resolved, Shape};
use super::{
    AccountantName, Auto, ClipScope, Config, EstimatorKind, ModelKind, NoiseTarget, Preset, Theory,
};
use crate::words::readable;

/// Waves along each side of an image: beyond ten, what they say of 28 x 28 pixels is less than the
/// noise they let in.
const FREQUENCIES: usize = 10;

/// Size of a singular value of the direction, averaged over some rounds, that counts fully.
const FLOOR: f64 = 0.002;

/// The step that goes with it in a short run.
const STEP: f64 = 0.3;

/// The momentum that goes with it: longer memory makes a quieter direction, but an older one.
const EQUALIZED_MOMENTUM: f64 = 0.6;

/// Momentum of other networks.
const MOMENTUM: f64 = 0.8;

/// Standard deviation of a network's start in a basis, whose features are few, and on others.
const STARTS: (f64, f64) = (0.1, 0.05);

/// The share of the budget that second moments get.
const SHARE: f64 = 0.15;

/// Numbers of a record whose second moments are still released when nobody asks for it, and at all.
const WIDEST_BY_ITSELF: usize = 257;
const WIDEST_WHITENED: usize = 1024;

/// Units of a hidden layer whose direction is still equalised: eigenvectors cost their third power.
const WIDEST: usize = 512;

impl Config {
    /// How many values each client may send in the whole run: as many as `rounds` messages of 5%
    /// have.
    pub(super) fn budget(&self, shape: &Shape) -> usize {
        if self.of_scattering(shape) {
            let all = images::rounds(shape.dimension) * shape.dimension;
            return self.values.or(all);
        }
        let messages = match (shape.model, self.noise_target) {
            (ModelKind::Logistic | ModelKind::Linear, _) => 300.0,
            // More budget for privacy is worth more messages, as in the paper's experiments: 150 at
            // epsilon 1, 500 at 8, 1000 at 16.
            (_, NoiseTarget::Epsilon(epsilon)) => {
                let epsilon = epsilon.min(16.0);
                100.0 + 50.0 * epsilon + 12.5 * (epsilon - 8.0).max(0.0)
            }
            _ => 150.0,
        };
        self.values
            .or_else(|| messages as usize * share(0.05, shape.whole))
    }

    /// How many coordinates travel in a message when nobody says.
    ///
    /// Noise does not care: with the clip at `sqrt(k/d)` of the whole one, a coordinate's noise
    /// over the run depends on the number of values alone, however they are dealt to rounds. Many
    /// small messages make many steps, which is what training lacks; but random-k needs some rounds
    /// until every coordinate was seen, so that few values are better spent on few large messages.
    pub(super) fn message_size(&self, shape: &Shape) -> usize {
        let dimension = shape.dimension;
        if let Some(rule) = self.logit_rule(shape) {
            return self.linear_message(&rule, dimension);
        }
        if self.preset != Preset::Auto {
            return share(0.05, dimension);
        }
        let values = self.budget(shape);
        let whole = self.whole_gradients(shape) || self.of_scattering(shape);
        let rounds = match (self.rounds, self.values) {
            (Auto::Given(Theory::Given(rounds)), Auto::Given(_)) => rounds as usize,
            (Auto::Given(_), _) if whole => return dimension,
            (Auto::Given(_), _) => return share(0.05, dimension),
            (Auto::Auto, _) if whole => return values.clamp(1, dimension),
            (Auto::Auto, _) => {
                let passes = values as f64 / dimension as f64;
                let enough = if shape.model.is_linear() { 10.0 } else { 2.8 };
                values / share((enough / passes.powi(2)).clamp(0.05, 1.0), dimension)
            }
        };
        (values / rounds.max(1)).clamp(1, dimension)
    }

    /// Whether all clients send the same coordinates.
    pub(super) fn sharing_rule(&self, shape: &Shape, scope: ClipScope) -> bool {
        let fits = shape.model.has_layers()
            || self.of_scattering(shape)
            || self.logit_rule(shape).is_some();
        self.preset == Preset::Auto && fits && scope == ClipScope::Selected
    }

    /// The public map of records with so many features.
    ///
    /// # Errors
    /// When another key says something that does not go with it.
    pub fn features_for(
        &self,
        model: ModelKind,
        features: usize,
    ) -> Result<FeatureKind, ConfigError> {
        let kind = self.feature_map.or_else(|| match self.is_ordinary() {
            false if self.scatters(features) => FeatureKind::Scattering,
            // Without whitening, records of numbers stay as they are.
            true if model == ModelKind::Linear
                && (self.whiten == Auto::Given(None) || features >= WIDEST_BY_ITSELF) =>
            {
                FeatureKind::None
            }
            true if features <= WIDEST_ROOTS => FeatureKind::Roots,
            true => FeatureKind::Unit,
            false => FeatureKind::None,
        });
        if kind == FeatureKind::None {
            return Ok(kind);
        }
        let key = if self.standardize == Auto::Given(true) {
            "data.standardize"
        } else if matches!(self.basis, Auto::Given(Some(_))) {
            "data.basis"
        } else if model == ModelKind::Mlp && self.smoothing.or(0) > 0 {
            "algorithm.smoothing"
        } else {
            return Ok(kind);
        };
        Err(ConfigError::with_hint(
            format!("`data.features = \"{kind}\"` does not go with `{key}`"),
            format!("leave {key} out, or set data.features = \"none\""),
        ))
    }

    /// The share of the budget that a release of second moments gets, for a model that reads
    /// records of `columns` numbers.
    ///
    /// # Errors
    /// When somebody asks for one that has no proof.
    pub fn whiten_for(
        &self,
        model: ModelKind,
        map: FeatureKind,
        columns: usize,
    ) -> Result<Option<f64>, ConfigError> {
        let missing = if map == FeatureKind::None {
            Some("records of length one (`data.features`)")
        } else if !matches!(self.noise_target, NoiseTarget::Epsilon(_)) {
            Some("a target for its share of the budget (`privacy.epsilon`)")
        } else if self.accountant == AccountantName::Paper {
            Some("an accountant with a proof, not `privacy.accountant = \"paper\"`")
        } else if columns > WIDEST_WHITENED {
            Some("records of at most 1024 numbers")
        } else {
            None
        };
        match (self.whiten, missing) {
            (Auto::Given(None), _) | (Auto::Auto, Some(_)) => Ok(None),
            (Auto::Given(Some(share)), None) => Ok(Some(share)),
            (Auto::Given(Some(_)), Some(missing)) => Err(ConfigError::with_hint(
                format!("`data.whiten` needs {missing}"),
                "leave it out, or set it to \"none\"",
            )),
            (Auto::Auto, None) => Ok(Some(SHARE).filter(|_| {
                self.preset == Preset::Auto
                    && is_linear(model)
                    && self.is_ordinary()
                    && columns <= WIDEST_BY_ITSELF
            })),
        }
    }

    /// Whether the model gets a constant feature: logistic regression, where the map of records
    /// does not append one.
    pub fn has_intercept(&self, model: ModelKind, map: FeatureKind) -> bool {
        self.intercept && !(model.is_linear() && holds_constant(map))
    }

    /// The basis that records of `columns` features are written in.
    ///
    /// # Errors
    /// When one is given that is not for these records or this model.
    pub fn basis_for(
        &self,
        model: ModelKind,
        columns: usize,
    ) -> Result<Option<Cosine>, ConfigError> {
        match self.basis {
            Auto::Given(None) => Ok(None),
            Auto::Given(Some(frequencies)) => {
                if model.is_linear() {
                    return Err(ConfigError::with_hint(
                        format!(
                            "`data.basis = \"cosine:{frequencies}\"` needs a softmax or mlp model"
                        ),
                        "leave it out, or set it to \"none\"",
                    ));
                }
                let basis = Cosine::new(columns, frequencies);
                basis.map(Some).map_err(|error| {
                    ConfigError::with_hint(
                        format!("`data.basis`: {error}"),
                        "leave it out, or set it to \"none\"",
                    )
                })
            }
            Auto::Auto => Ok(Cosine::new(columns, FREQUENCIES)
                .ok()
                .filter(|_| self.preset == Preset::Auto && model == ModelKind::Mlp)
                .filter(|_| self.source.is_images())),
        }
    }

    /// The activation of hidden units. A network of tanh units computes what one of sigmoid units
    /// does (`tanh(z) = 2 sigmoid(2z) - 1`), but its units are centred, which a short run notices.
    pub fn activation_for(&self, basis: bool) -> Activation {
        self.activation.or(if self.preset == Preset::Auto && basis {
            Activation::Tanh
        } else {
            Activation::Sigmoid
        })
    }

    /// The floor down to which singular values of the direction are equalised; 0 is the plain step.
    pub(super) fn equalizing(&self, shape: &Shape) -> Result<f64, ConfigError> {
        let network = self.whole_gradients(shape) || self.plain(shape);
        let floor = self.equalize.or(if network { FLOOR } else { 0.0 });
        let widest = self.hidden.iter().copied().max().unwrap_or(0);
        if floor > 0.0 && (shape.model != ModelKind::Mlp || widest > WIDEST) {
            if self.equalize == Auto::Auto {
                return Ok(0.0);
            }
            return Err(ConfigError::with_hint(
                format!(
                    "`algorithm.equalize` is {}, but it needs an mlp with hidden layers of at most {WIDEST} units",
                    readable(floor)
                ),
                "leave it out, or set it to 0",
            ));
        }
        Ok(floor)
    }

    /// Whether the best run is one of few whole gradients: in a basis of few numbers they fit into
    /// messages.
    pub(super) fn whole_gradients(&self, shape: &Shape) -> bool {
        self.preset == Preset::Auto && shape.basis.is_some() && shape.model == ModelKind::Mlp
    }

    /// The server's momentum, where all clients send the same coordinates.
    pub(super) fn momentum_rule(&self, shape: &Shape) -> f64 {
        if self.of_scattering(shape) {
            images::MOMENTUM
        } else if self.plain(shape) {
            plain::MOMENTUM
        } else if self.whole_gradients(shape) {
            EQUALIZED_MOMENTUM
        } else {
            MOMENTUM
        }
    }

    /// Standard deviation of a network's start.
    pub(super) fn start_rule(&self, shape: &Shape) -> f64 {
        if self.whole_gradients(shape) {
            STARTS.0
        } else {
            STARTS.1
        }
    }

    /// How often the first layer's direction is smoothed.
    pub(super) fn smoothing(&self, shape: &Shape) -> Result<u32, ConfigError> {
        let network = !shape.model.is_linear();
        let passes = self.smoothing.or(
            if self.preset == Preset::Auto
                && network
                && shape.image
                && self.source.is_images()
                && !self.plain(shape)
            {
                3
            } else {
                0
            },
        );
        if passes > 0 && !(network && shape.image) {
            return Err(ConfigError::with_hint(
                format!(
                    "`algorithm.smoothing` is {passes}, but it needs a softmax or mlp model that reads the pixels of square images"
                ),
                "leave it out, or set it to 0",
            ));
        }
        Ok(passes)
    }

    /// What the clip bounds.
    pub(super) fn scope(&self, estimator: EstimatorKind, compressor: CompressorKind) -> ClipScope {
        let minibatch = estimator.is_memoryless();
        match (self.preset, compressor) {
            (Preset::Auto, CompressorKind::RandK { .. }) if minibatch => ClipScope::Selected,
            _ => ClipScope::Record,
        }
    }

    /// The bound on each record.
    pub(super) fn clip_rule(
        &self,
        shape: &Shape,
        scope: ClipScope,
        compressor: &Compressor,
    ) -> f64 {
        let model = shape.model;
        let rule = self.logit_rule(shape);
        if self.preset != Preset::Auto {
            return if model.is_linear() { 0.5 } else { 1.0 };
        }
        let whole = match model {
            _ if self.of_scattering(shape) => images::CLIP,
            _ if let Some(rule) = rule => rule.clip,
            ModelKind::Logistic => 2.0,
            ModelKind::Linear => self.number_clip(shape),
            ModelKind::Softmax => 0.2,
            ModelKind::Mlp if self.whole_gradients(shape) => 0.5,
            ModelKind::Mlp | ModelKind::Elsewhere => 0.2 * self.clip_growth(),
        };
        match (scope, compressor.fraction()) {
            // A gradient that is spread over its coordinates shows this share of its norm.
            (ClipScope::Selected, Some(fraction)) => whole * fraction.sqrt(),
            _ => whole,
        }
    }

    /// The step size.
    pub(super) fn step_rule(&self, shape: &Shape, floor: f64, rounds: f64) -> f64 {
        if let Some(rule) = self.logit_rule(shape) {
            return rule.step;
        }
        match (self.preset, shape.model) {
            _ if self.of_scattering(shape) => images::step(self, shape, rounds),
            // The loss of a number is four times as smooth as that of two classes.
            (_, ModelKind::Linear) if self.plain(shape) => plain::step_rule(floor) / 4.0,
            _ if self.plain(shape) => plain::step_rule(floor),
            // Below the floor an equalised step is a plain one of this size.
            (Preset::Auto, ModelKind::Mlp) if self.whole_gradients(shape) => {
                let step = match self.noise_target {
                    // With epsilon runs get longer, and steps shorter.
                    NoiseTarget::Epsilon(epsilon) => STEP / (1.0 + epsilon.min(16.0) / 100.0),
                    _ => STEP,
                };
                if floor > 0.0 {
                    step
                } else {
                    (1.0 - EQUALIZED_MOMENTUM) * step / FLOOR
                }
            }
            (Preset::Auto, ModelKind::Logistic) => 0.7,
            (Preset::Auto, ModelKind::Linear) => self.number_step(shape),
            // Errors of a number are larger than those of a probability.
            (Preset::Auto, ModelKind::Mlp) if self.target_range.is_some() => 1.0,
            // Gradients of networks are as long as they are: the other step is for short ones.
            (Preset::Auto, _) if self.unclipped() => 1.0,
            (Preset::Auto, _) => 12.0,
            _ => 0.3,
        }
    }

    /// By how much a network's clip exceeds the one at epsilon 1. The noise that the model ends
    /// with is proportional to clip times step times rounds over (nearly) `epsilon^0.8`. Rounds
    /// grow by `epsilon^0.65` or so, which leaves a little for a clip that hears more of the
    /// records that are still wrong.
    fn clip_growth(&self) -> f64 {
        match self.noise_target {
            NoiseTarget::Epsilon(epsilon) => epsilon.clamp(0.05, 20.0).powf(0.3),
            _ => 1.0,
        }
    }

    /// As many rounds as the values that may travel allow.
    pub(super) fn rounds_rule(&self, shape: &Shape, compressor: &Compressor) -> u32 {
        if self.plain(shape) {
            return plain::ROUNDS;
        }
        if let Some(rule) = self.logit_rule(shape) {
            return rule.rounds;
        }
        if self.number_rule(shape) {
            return self.number_rounds(shape);
        }
        let limited = matches!(self.values, Auto::Given(_));
        let values = match (self.preset, compressor.fraction()) {
            _ if limited => compressor.values(),
            (Preset::Auto, Some(_)) => compressor.values(),
            // What travels is not chosen by the number of values: as many rounds as at 5%.
            (Preset::Auto, None) if self.of_scattering(shape) => shape.dimension,
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

/// Whether a map appends a constant to every record, which is an intercept by itself: all that
/// change records do.
pub(super) fn holds_constant(map: FeatureKind) -> bool {
    map != FeatureKind::None
}

/// A share of the coordinates, rounded down, at least one.
pub(super) fn share(fraction: f64, dimension: usize) -> usize {
    ((fraction * dimension as f64).floor() as usize).max(1)
}
