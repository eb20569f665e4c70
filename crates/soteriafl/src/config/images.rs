//! What `preset = "auto"` chooses for images: scattering coefficients and a linear model.
//!
//! Records become unit vectors by a public map ([`FeatureMap`]), so softmax regression has
//! gradients of bounded length, and a clip of a fifth of that bound is right for every data set.
//! Whole gradients travel, as many as [`MOST_BYTES`] hold: random-k would save nothing (noise does
//! not care, see [`automatic`](super::automatic)) and add its error.
//!
//! With clip `G`, `T` rounds of step `eta`, `n` clients of `m` records and `mu(epsilon, delta)` of
//! the Gaussian mechanism, the privacy noise in a score of a unit record is, after all rounds, at
//! most
//!
//! ```text
//!     eta T 2 G / (m mu sqrt(n)) = eta T G / s,      s = m mu sqrt(n) / 2
//! ```
//!
//! whatever the number of features is. So the path `eta T` is set to `PATH s / G`, and the step to
//! its share, but to no more than [`LONGEST_STEP`], above which steps overshoot. All of it is
//! public: the side of images, the smallest client, epsilon and delta.

use soteriafl_core::data::{FeatureKind, FeatureMap};

use super::resolve::Shape;
use super::{Auto, Config, ModelKind, NoiseTarget, Preset};

/// Bytes that a client sends in the whole run, at most.
const MOST_BYTES: usize = 10_000_000;

/// Bytes of a message besides its values.
const HEADER: usize = 64;

/// More rounds of small messages gain nothing.
const MOST_ROUNDS: usize = 100;

/// The bound on a record's gradient, a fifth of the longest that a unit record can have.
pub(super) const CLIP: f64 = 0.28;

/// How loud noise may be in a score, after a schedule that ends at zero.
const PATH: f64 = 1.4;

/// The longest first step, for records of unit length whose channels are equally loud.
const LONGEST_STEP: f64 = 1000.0;

/// The server's momentum: whole gradients at a step of their own size need none.
pub(super) const MOMENTUM: f64 = 0.0;

impl Config {
    /// Whether images with this many pixels become scattering coefficients.
    ///
    /// Not where something is asked for that belongs to pixels, networks or runs without noise.
    pub(super) fn scatters(&self, pixels: usize) -> bool {
        match self.feature_map {
            Auto::Given(kind) => kind == FeatureKind::Scattering,
            Auto::Auto => {
                self.preset == Preset::Auto
                    && self.source.is_images()
                    && matches!(self.model, Auto::Auto | Auto::Given(ModelKind::Softmax))
                    && self.noise_target != NoiseTarget::None
                    && self.basis == Auto::Auto
                    && self.scale == Auto::Auto
                    && self.standardize != Auto::Given(true)
                    && self.smoothing == Auto::Auto
                    && self.equalize == Auto::Auto
                    && self.init == Auto::Auto
                    && FeatureMap::new(FeatureKind::Scattering, pixels).is_ok()
            }
        }
    }

    /// Whether this file's rules hold.
    pub(super) fn of_scattering(&self, shape: &Shape) -> bool {
        self.preset == Preset::Auto
            && shape.feature_map == FeatureKind::Scattering
            && shape.model == ModelKind::Softmax
            && self.noise_target != NoiseTarget::None
    }
}

/// Whole gradients that a client sends.
pub(super) fn rounds(dimension: usize) -> usize {
    (MOST_BYTES / (4 * dimension + HEADER)).clamp(1, MOST_ROUNDS)
}

/// The first step of a run of so many rounds.
pub(super) fn step(config: &Config, shape: &Shape, rounds: f64) -> f64 {
    let NoiseTarget::Epsilon(epsilon) = config.noise_target else {
        return LONGEST_STEP;
    };
    let smallest = shape.records.iter().copied().min().unwrap_or(1).max(1) as f64;
    let mu = soteriafl_accountant::largest_mu(epsilon, config.delta);
    let signal = smallest * mu * (shape.records.len() as f64).sqrt() / 2.0;
    (PATH * signal / (CLIP * rounds)).min(LONGEST_STEP)
}
