//! SVRG and SAGA: how likely the snapshot moves, and how differences of gradients are clipped.
//!
//! Both send the mean of clipped differences `g - h` plus the mean of `h`, the gradients at a
//! reference point: SVRG's snapshot, SAGA's last visits. A small difference clip needs little
//! noise, but the differences must then stay small: with a quarter of the clip they can take back
//! only a quarter of what an old reference says, and where it is never renewed the model goes on in
//! its direction for good. So the reference must be renewed within a few rounds, or the differences
//! may be as large as the clip, so that they can make up for any reference.
//!
//! Both numbers are public. The proof holds for any of them (`docs/privacy.md`, Theorem 4): the
//! reference's gradient is counted in every round, whether it moved or not.

use super::{Auto, ClipScope, Config, EstimatorKind};

/// How often SVRG's snapshot moves where small differences are believed: after about three rounds.
const SNAPSHOT_PROBABILITY: f64 = 0.3;

/// Share of references renewed in a round from which on differences stay small by themselves.
const OFTEN: f64 = 0.1;

/// A small difference, as a share of the clip.
const SMALL: f64 = 0.25;

impl Config {
    /// The probability of a snapshot in a round and the bound on differences.
    pub(super) fn references(
        &self,
        estimator: EstimatorKind,
        scope: ClipScope,
        clip: f64,
        batch: Option<f64>,
        smallest: usize,
    ) -> (f64, Option<f64>) {
        let rate = batch.map_or(1.0, |batch| batch / smallest as f64);
        if !estimator.has_two_terms() {
            return (self.snapshot_probability.or(rate), None);
        }
        // In the authors' mode nothing bounds differences, and the probability is the corollary's.
        if scope == ClipScope::Estimate {
            return (self.snapshot_probability.or(rate), None);
        }
        let small = match self.difference_clip {
            Auto::Given(bound) => bound.is_some_and(|bound| bound < clip),
            Auto::Auto => true,
        };
        let probability = self.snapshot_probability.or(if small {
            rate.max(SNAPSHOT_PROBABILITY)
        } else {
            rate
        });
        let renewed = match estimator {
            EstimatorKind::Svrg => probability,
            _ => rate,
        };
        let bound =
            self.difference_clip
                .or(Some(if renewed >= OFTEN { SMALL * clip } else { clip }));
        (probability, bound)
    }
}
