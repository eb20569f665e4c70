//! Runs in which only the average of all messages is assumed to be seen, as by secure aggregation
//! or a trusted server (Distributed DP-SRM).
//!
//! The average then needs the noise of one client only, of which each client adds a part. That
//! such an aggregation exists is outside of this program, so nothing is claimed, and networked runs
//! do not have it.

use soteriafl_core::compress::CompressorKind;

use super::document::ConfigError;
use super::resolve::Resolved;
use super::{NoiseName, NoiseTarget, ShiftChoice};

/// What whoever starts such a run should hear.
pub(super) const UNPROTECTED: &str = "only the average of all messages is hidden to the epsilon asked for: \
clients share the noise of one, and a single client's message is nearly unprotected against whoever sees it";

impl Resolved {
    /// Refuses what the shared noise would not cover.
    pub(super) fn check_aggregation(&self) -> Result<(), ConfigError> {
        if !self.trusted_aggregation || self.noise_target == NoiseTarget::None {
            return Ok(());
        }
        let refused = [
            (
                self.compressor != CompressorKind::Identity,
                "`privacy.trusted_aggregation` needs whole messages: a coordinate that one client alone sends has one client's part of the noise",
                "use algorithm.compressor = \"identity\"",
            ),
            (
                self.shift != ShiftChoice::Off,
                "`privacy.trusted_aggregation` does not go with a shift",
                "use algorithm.shift = \"off\"",
            ),
            (
                self.participation < 1.0,
                "`privacy.trusted_aggregation` needs every client in every round: each has a part of the noise",
                "leave algorithm.participation out",
            ),
            (
                self.noise == NoiseName::Secure,
                "`privacy.noise = \"secure\"` is about each client's own noise, not about a part of one",
                "use privacy.noise = \"float\"",
            ),
            (
                matches!(self.noise_target, NoiseTarget::Sigma(_)),
                "`privacy.trusted_aggregation` shares the noise for an epsilon, but `privacy.sigma` is given",
                "give privacy.epsilon",
            ),
        ];
        match refused.into_iter().find(|(applies, ..)| *applies) {
            Some((_, message, hint)) => Err(ConfigError::with_hint(message, hint)),
            None => Ok(()),
        }
    }
}
