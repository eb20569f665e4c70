//! What recursive estimates keep, when they start anew, and how their increments are bounded.
//!
//! A recursion may follow one of two plans. **Recursive momentum** (DP-SRM, LDP-SRM) keeps a share
//! `a = 1 - gamma` for good; its increments have the norm of `gamma` gradients and of what
//! gradients change in a step, and if a step changes them by the share `gamma` of the clip at most,
//! that is `gamma (2 - gamma) G`. **Telescoping** (LDP-SPIDER, DIFF2) keeps everything, so that
//! noise adds up until the recursion starts anew; increments are then bounded by how far the model
//! has moved, and have more noise for their clip than the few rounds that start anew. With the best
//! split of the noise over periods of `Q` rounds the ratio is about `sqrt(Q)`.
//!
//! All of these are public numbers, and the proof holds for any of them (`docs/privacy.md`, rounds
//! on a public scale).

use soteriafl_accountant::{IncrementClip, Recursion};

use super::document::ConfigError;
use super::resolve::{Resolved, StepSizeOrigin};
use super::write::{number, text};
use super::{AccountantName, Auto, ClipScope, Config, EstimatorKind, Preset, ShiftChoice, Theory};

/// Share of a new gradient in recursive momentum.
const NEW: f64 = 0.1;

/// Rounds of a period where everything is kept.
const PERIOD: u32 = 10;

/// By how much a record's gradient may change per unit of distance.
const SMOOTHNESS: f64 = 1.0;

impl Config {
    /// The recursion, for the estimator that has one.
    ///
    /// # Errors
    /// When two bounds on increments are given.
    pub(super) fn recursion(
        &self,
        estimator: EstimatorKind,
        clip: f64,
    ) -> Result<Option<Recursion>, ConfigError> {
        if estimator != EstimatorKind::Recursive {
            return Ok(None);
        }
        let telescoping = matches!(self.preset, Preset::LdpSpider | Preset::Diff2);
        let keep = self.keep.or(if telescoping { 1.0 } else { 1.0 - NEW });
        let period = self
            .restart
            .or(if telescoping { Some(PERIOD) } else { None });
        let fixed = match self.difference_clip {
            Auto::Given(bound) => Some(bound.unwrap_or((1.0 + keep) * clip)),
            Auto::Auto => None,
        };
        let increments = match (fixed, self.difference_scale) {
            (Some(_), Auto::Given(Some(_))) => {
                return Err(ConfigError::with_hint(
                    "`privacy.difference_clip` and `privacy.difference_scale` are both given",
                    "leave one of them out: the first bounds increments by a number, the second by how far the model has moved",
                ));
            }
            (Some(bound), _) => IncrementClip::Fixed(bound),
            (None, Auto::Given(Some(smoothness))) => IncrementClip::Smooth(smoothness),
            (None, Auto::Auto) if telescoping => IncrementClip::Smooth(SMOOTHNESS),
            (None, _) => {
                let new = 1.0 - keep;
                // Where everything is kept there is no share of a new gradient to go by.
                let share = if new > 0.0 { new * (1.0 + keep) } else { 1.0 };
                IncrementClip::Fixed(share * clip)
            }
        };
        let noise_ratio = self.noise_ratio.or(match period {
            Some(period) if keep == 1.0 => f64::from(period).sqrt(),
            _ => 1.0,
        });
        Ok(Some(Recursion {
            keep,
            period,
            increments,
            noise_ratio,
        }))
    }

    /// Refuses what recursive estimates do not have, as far as it was asked for.
    pub(super) fn check_recursion(&self, resolved: &Resolved) -> Result<(), ConfigError> {
        let Some(recursion) = &resolved.recursion else {
            return Ok(());
        };
        let theory = self.rounds == Auto::Given(Theory::Theory)
            || resolved.step_size_origin == StepSizeOrigin::Theory;
        let refused: [(bool, &str, &str); 6] = [
            (
                resolved.shift != ShiftChoice::Off,
                "`algorithm.shift` does not go with recursive estimates: their increments are what a shift would leave",
                "use algorithm.shift = \"off\"",
            ),
            (
                resolved.momentum > 0.0,
                "`algorithm.momentum` does not go with recursive estimates, whose server has a momentum of its own",
                "use algorithm.keep instead",
            ),
            (
                resolved.regularizer_at_client,
                "`model.regularizer_at = \"client\"` does not go with recursive estimates: the regularizer's gradient must not be added up",
                "use model.regularizer_at = \"server\", which adds it behind the recursion",
            ),
            (
                resolved.clip_scope != ClipScope::Record,
                "recursive estimates are proved for `privacy.clip_scope = \"record\"` only",
                "leave it out",
            ),
            (
                theory,
                "the paper's theory has no step size and no rounds for recursive estimates",
                "give numbers for algorithm.step_size and algorithm.rounds",
            ),
            (
                resolved.accountant == AccountantName::Paper,
                "the paper has no formula for the noise of recursive estimates",
                "use privacy.accountant = \"pld\"",
            ),
        ];
        for (applies, message, hint) in refused {
            if applies {
                return Err(ConfigError::with_hint(message, hint));
            }
        }
        let check = recursion.check();
        check.map_err(|error| ConfigError::conflict(format!("the recursion: {error}")))
    }
}

impl Resolved {
    /// The lines of a recursion in the section `algorithm`.
    pub(super) fn recursion_lines(&self) -> Vec<(&'static str, String)> {
        let Some(recursion) = &self.recursion else {
            return Vec::new();
        };
        let period = recursion.period;
        vec![
            ("keep", number(recursion.keep)),
            (
                "restart",
                period.map_or(text("first"), |period| period.to_string()),
            ),
        ]
    }

    /// The lines of a recursion in the section `privacy`.
    pub(super) fn increment_lines(&self) -> Vec<(&'static str, String)> {
        let Some(recursion) = self.recursion.as_ref().filter(|_| self.clipped) else {
            return Vec::new();
        };
        vec![
            match recursion.increments {
                IncrementClip::Fixed(bound) => ("difference_clip", number(bound)),
                IncrementClip::Smooth(smoothness) => ("difference_scale", number(smoothness)),
            },
            ("noise_ratio", number(recursion.noise_ratio)),
        ]
    }
}
