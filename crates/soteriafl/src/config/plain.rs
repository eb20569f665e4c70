//! What `preset = "auto"` chooses without noise: plain training, the measure for what privacy
//! costs.
//!
//! Without noise nothing is protected and nothing is claimed, so choices may depend on the records.
//! Columns are standardised by them
//! ([`Scaling::standardizing`](soteriafl_core::data::Scaling::standardizing)), after which one step
//! size fits any data: 1 for convex models, whose loss then has a smoothness of about 1; for
//! networks the equalised step, which does not depend on the size of gradients. All records, whole
//! messages and the server's momentum do the rest. The saved model has the standardisation in its
//! weights and reads features as they are.
//!
//! Whoever gives a clip, a compressor, a size of messages or another estimator studies that, and
//! gets the rules of runs with noise; what is given always holds.

use soteriafl_core::data::FeatureKind;

use super::resolve::Shape;
use super::{Auto, Config, EstimatorKind, Init, NoiseTarget, Preset};

/// Rounds: twice what every table that was tried needs for its last percent.
pub(super) const ROUNDS: u32 = 300;

/// The server's momentum.
pub(super) const MOMENTUM: f64 = 0.9;

/// The step: by how much a layer moves where its direction is equalised, else one over the
/// smoothness.
pub(super) fn step_rule(floor: f64) -> f64 {
    if floor > 0.0 { 0.1 } else { 1.0 }
}

impl Config {
    /// Whether nothing is added and nothing is cut.
    pub(super) fn unclipped(&self) -> bool {
        self.noise_target == NoiseTarget::None && !matches!(self.clip, Auto::Given(Some(_)))
    }

    /// Whether columns are standardised by their records. Not where somebody has chosen a scale;
    /// pixels have one already, and a start from a file is one for features as they are.
    pub fn standardizes(&self) -> bool {
        let own_start = matches!(self.init, Auto::Given(Init::File(_)));
        self.standardize.or(self.unclipped()
            && !self.is_elsewhere()
            && self.scale == Auto::Auto
            && !self.source.is_images()
            && matches!(
                self.feature_map,
                Auto::Auto | Auto::Given(FeatureKind::None)
            )
            && !own_start)
    }

    /// Whether the run is plain training. Networks of images in a basis are left as they are: few
    /// whole, equalised gradients without noise are that already.
    pub(super) fn plain(&self, shape: &Shape) -> bool {
        self.preset == Preset::Auto
            && self.unclipped()
            && (self.standardizes() || self.source.is_images())
            && self.standardize != Auto::Given(false)
            && matches!(self.estimator, Auto::Auto | Auto::Given(EstimatorKind::Gd))
            && self.compressor == Auto::Auto
            && (self.fraction, self.k, self.values) == (Auto::Auto, Auto::Auto, Auto::Auto)
            && self.participation == 1.0
            && !self.whole_gradients(shape)
    }
}
