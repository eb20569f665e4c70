//! What the author of a configuration should know: keys that were given and are not used, and
//! values that are allowed but weaken what is claimed.

use soteriafl_core::compress::CompressorKind;
use soteriafl_data::Partition;

use super::automatic::holds_constant;
use super::resolve::Resolved;
use super::{Config, EstimatorKind, ModelKind, NoiseTarget, RegularizerKind};
use crate::words::readable;

/// A condition, the keys that it makes useless, and why.
macro_rules! ignored {
    ($($when:expr => $($key:literal)+: $reason:literal;)+) => {
        vec![$(($when, &[$($key),+] as &[&str], $reason)),+]
    };
}

impl Resolved {
    /// The keys that belong to a choice, with the reason that holds where it was not chosen.
    fn ignored(&self) -> Vec<(bool, &'static [&'static str], &'static str)> {
        let (compressor, estimator) = (self.compressor, self.estimator);
        let has_differences = estimator.has_two_terms() || estimator == EstimatorKind::Recursive;
        let logistic = self.model == ModelKind::Logistic;
        ignored! {
            compressor.count().is_none() => "algorithm.fraction" "algorithm.k":
                "only rand-k and top-k have it";
            !matches!(compressor, CompressorKind::RandK { .. }) => "algorithm.coordinates":
                "only rand-k has it";
            !matches!(compressor, CompressorKind::Grid { .. }) =>
                "algorithm.grid_step" "algorithm.grid_bits": "only grid has it";
            self.gossip.is_none() => "algorithm.topology" "algorithm.mixing":
                "clients have a server (sdm-dsgd, q-dpsgd-1 and porter have none)";
            !matches!(compressor, CompressorKind::Qsgd { .. }) => "algorithm.levels":
                "only qsgd has it";
            estimator == EstimatorKind::Gd => "algorithm.batch": "gd uses all records";
            estimator != EstimatorKind::Svrg => "algorithm.snapshot_probability":
                "only svrg has it";
            !has_differences => "privacy.difference_clip": "only svrg, saga and recursive have it";
            estimator != EstimatorKind::Sag => "algorithm.memory": "only sag has it";
            self.recursion.is_none() => "algorithm.keep" "algorithm.restart"
                "privacy.difference_scale" "privacy.noise_ratio": "only recursive has it";
            self.noise_target == NoiseTarget::None => "privacy.accountant": "there is no noise";
            !self.clipped => "privacy.clip_scope" "privacy.difference_clip":
                "nothing is clipped without noise, unless `privacy.clip` is given";
            self.regularizer == RegularizerKind::None => "model.lambda" "model.regularizer_at":
                "there is no regularizer";
            !matches!(self.partition, Partition::Dirichlet { .. }) => "data.alpha":
                "only the dirichlet partition has it";
            self.model != ModelKind::Mlp => "model.hidden" "model.activation": "only mlp has it";
            self.model != ModelKind::Elsewhere => "model.parameters" "model.architecture":
                "only a model that is computed elsewhere has it";
            !logistic => "model.intercept": "networks have biases";
            logistic && holds_constant(self.feature_map) => "model.intercept":
                "`data.features` appends a constant to every record";
        }
    }
}

impl Config {
    /// What its author should know of the run that it has become.
    pub(super) fn warnings(&self, resolved: &Resolved, smallest: usize) -> Vec<String> {
        let mut warnings = Vec::new();
        for (ignored, keys, reason) in resolved.ignored() {
            let given = keys
                .iter()
                .filter(|key| self.given.iter().any(|given| given == *key));
            let given = given.filter(|_| ignored);
            warnings.extend(given.map(|key| format!("`{key}` is ignored: {reason}")));
        }
        if resolved.trusted_aggregation && resolved.noise_target != NoiseTarget::None {
            warnings.push(super::aggregation::UNPROTECTED.to_string());
        }
        if resolved.noise_target != NoiseTarget::None && resolved.delta > 1.0 / smallest as f64 {
            warnings.push(format!(
                "`privacy.delta` = {} is above 1/records = {:.1e}: it allows a record to be published in full with that probability",
                readable(resolved.delta),
                1.0 / smallest as f64
            ));
        }
        warnings
    }
}
