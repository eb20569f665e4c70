//! Settings that SAG does not go with.

use super::document::ConfigError;
use super::resolve::{Resolved, StepSizeOrigin};
use super::{AccountantName, Auto, Config, EstimatorKind, Theory};

impl Config {
    /// Refuses what SAG does not have, as far as it was asked for.
    pub(super) fn check_sag(&self, resolved: &Resolved) -> Result<(), ConfigError> {
        if resolved.estimator != EstimatorKind::Sag {
            return Ok(());
        }
        let theory = self.rounds == Auto::Given(Theory::Theory)
            || resolved.step_size_origin == StepSizeOrigin::Theory;
        let refused = [
            (
                theory,
                "the paper's theory has no step size and no rounds for sag, whose estimates are biased",
                "give numbers for algorithm.step_size and algorithm.rounds",
            ),
            (
                resolved.accountant == AccountantName::Paper,
                "the paper has no formula for the noise of sag",
                "use privacy.accountant = \"pld\"",
            ),
        ];
        match refused.into_iter().find(|(applies, ..)| *applies) {
            Some((_, message, hint)) => Err(ConfigError::with_hint(message, hint)),
            None => Ok(()),
        }
    }
}
