//! What does not go together in a configuration with nothing left to choose.

use soteriafl_core::compress::CompressorKind;
use soteriafl_core::protocol::suits_secure_noise;

use super::document::ConfigError;
use super::resolve::{Resolved, StepSizeOrigin};
use super::{AccountantName, ClipScope, NoiseName, NoiseTarget};

impl Resolved {
    /// Refuses combinations that nothing proves, or that contradict each other.
    pub(super) fn check(&self, smallest: usize) -> Result<(), ConfigError> {
        let two_terms = self.estimator.has_two_terms();
        if self.estimator.keeps_mean() && self.clip_scope == ClipScope::Selected {
            return Err(ConfigError::with_hint(
                "`privacy.clip_scope = \"selected\"` has a proof for gd and sgd only",
                "use clip_scope = \"record\" with svrg, saga and sag",
            ));
        }
        let random_k = matches!(self.compressor, CompressorKind::RandK { .. });
        if self.shared_coordinates
            && random_k
            && self.amplification
            && self.clip_scope != ClipScope::Selected
            && self.noise_target != NoiseTarget::None
        {
            // Amplification needs coordinates that the client draws itself, after it has the model.
            return Err(ConfigError::with_hint(
                "`algorithm.coordinates = \"shared\"` rules out random-k amplification",
                "use privacy.clip_scope = \"selected\" (gd and sgd), or privacy.amplification = \"off\"",
            ));
        }
        let theory = self.step_size_origin == StepSizeOrigin::Theory;
        if self.shared_coordinates && random_k && theory {
            return Err(ConfigError::conflict(
                "`algorithm.step_size = \"theory\"` rests on clients that draw their coordinates independently, not on `algorithm.coordinates = \"shared\"`",
            ));
        }
        if self.accountant == AccountantName::Paper
            && matches!(self.noise_target, NoiseTarget::Sigma(_))
        {
            return Err(ConfigError::conflict(
                "`privacy.accountant = \"paper\"` sets sigma from epsilon, but `privacy.sigma` is given",
            ));
        }
        let secure = self.noise == NoiseName::Secure && self.noise_target != NoiseTarget::None;
        if secure && (self.clip_scope == ClipScope::Estimate || self.with_replacement) {
            return Err(ConfigError::conflict(
                "`privacy.noise = \"secure\"` needs clipped records and Poisson sampling",
            ));
        }
        let clips = [
            ("privacy.clip", Some(self.clip)),
            (
                "privacy.difference_clip",
                self.difference_clip.filter(|_| two_terms),
            ),
        ];
        for (key, clip) in clips {
            if let Some(clip) = clip.filter(|&clip| secure && !suits_secure_noise(clip)) {
                return Err(ConfigError::conflict(format!(
                    "`{key}` = {clip:e} is outside of [2^-40, 2^40], where `privacy.noise = \"secure\"` has a proof"
                )));
            }
        }
        if secure && two_terms && self.difference_clip.is_none() {
            return Err(ConfigError::conflict(
                "`privacy.noise = \"secure\"` with svrg or saga needs a `privacy.difference_clip`",
            ));
        }
        if let Some(quorum) = self.quorum
            && quorum > self.clients
        {
            return Err(ConfigError::conflict(format!(
                "`deployment.quorum` is {quorum}, and the number of clients {}",
                self.clients
            )));
        }
        if smallest == 0 {
            return Err(ConfigError::conflict(
                "every client needs at least one record",
            ));
        }
        Ok(())
    }
}
