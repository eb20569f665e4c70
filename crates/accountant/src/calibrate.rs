//! The smallest noise for a target cost.
//!
//! [`smallest_sigma`] searches any accountant given as a closure, so exact, amplified and Rényi
//! accounting calibrate alike. It never returns a sigma whose cost it has not computed and found
//! within the target; sigma has six significant digits, rounded up before the cost is computed.
//!
//! The cost is close to a power of sigma, so the search interpolates its logarithm: four or five
//! evaluations in place of the thirty of a bisection.

use crate::adjacency::Adjacency;
use crate::error::{AccountError, check_positive};
use crate::gaussian;
use crate::mixture::ShiftMixture;
use crate::rounding::round_up;

/// Significant digits of a calibrated sigma.
const DIGITS: u32 = 6;

/// Share of the target that may stay unused.
const UNUSED: f64 = 2e-4;

const MOST_EVALUATIONS: u32 = 120;

/// How far above the first guess a target may lie.
const LARGEST_GROWTH: f64 = 1e9;

/// Below this sigma, relative to where the search began, noise no longer matters.
const LARGEST_SHRINK: f64 = 1e-9;

/// The smallest sigma at which `cost` is at most `target`, to 1e-4 or so, and the cost there.
///
/// `cost` must fall with sigma; `start` is a guess, and only decides how many evaluations it
/// takes. A cost of [`AccountError::NoiseTooSmall`] counts as too high.
///
/// # Errors
/// What `cost` returns; [`AccountError::Unreachable`] when a sigma far above the guess does not
/// reach the target.
pub(crate) fn smallest_sigma(
    target: f64,
    start: f64,
    mut cost: impl FnMut(f64) -> Result<f64, AccountError>,
) -> Result<(f64, f64), AccountError> {
    check_target(target)?;
    check_positive("the first sigma", start)?;
    let mut search = Bracket {
        target,
        ..Bracket::default()
    };
    let mut sigma = round_up(start, DIGITS);
    for _ in 0..MOST_EVALUATIONS {
        let epsilon = match cost(sigma) {
            Ok(epsilon) => epsilon,
            Err(AccountError::NoiseTooSmall { .. }) => f64::INFINITY,
            Err(error) => return Err(error),
        };
        if epsilon.is_nan() {
            return Err(AccountError::Unresolved {
                reason: "the cost is not a number",
            });
        }
        search.record(sigma, epsilon);
        if let Some(found) = search.finished() {
            return Ok(found);
        }
        if sigma > LARGEST_GROWTH * start {
            return Err(AccountError::Unreachable {
                target,
                sigma,
                found: epsilon,
            });
        }
        sigma = search.next();
    }
    // The bracket shrinks by half at least every third time, so this is not reached by a cost that
    // falls with sigma; a bound that was found still holds.
    search.within.ok_or(AccountError::Unresolved {
        reason: "the cost does not fall with sigma",
    })
}

/// What is known: the largest sigma above the target, the smallest within it.
#[derive(Default)]
struct Bracket {
    target: f64,
    above: Option<(f64, f64)>,
    within: Option<(f64, f64)>,
    first: Option<f64>,
    evaluations: u32,
}

impl Bracket {
    fn record(&mut self, sigma: f64, epsilon: f64) {
        self.evaluations += 1;
        self.first.get_or_insert(sigma);
        if epsilon > self.target {
            if self.above.is_none_or(|(known, _)| sigma > known) {
                self.above = Some((sigma, epsilon));
            }
        } else if self.within.is_none_or(|(known, _)| sigma < known) {
            self.within = Some((sigma, epsilon));
        }
    }

    /// Done when hardly anything of the target is unused, or nothing lies between the two ends.
    fn finished(&self) -> Option<(f64, f64)> {
        let (sigma, epsilon) = self.within?;
        let first = self.first.unwrap_or(sigma);
        let close = epsilon >= self.target * (1.0 - UNUSED);
        let tight = self
            .above
            .is_some_and(|(low, _)| sigma <= low * (1.0 + 3e-6));
        let free = sigma < LARGEST_SHRINK * first;
        (close || tight || free).then_some((sigma, epsilon))
    }

    fn next(&self) -> f64 {
        // Aims a little inside the target, so that the result is within and close at once.
        let goal = (self.target * (1.0 - 0.4 * UNUSED)).ln();
        let sigma = match (self.above, self.within) {
            (Some((low, high_cost)), Some((high, low_cost))) => {
                let (x, y) = (low.ln(), high.ln());
                let straight =
                    x + (y - x) * (high_cost.ln() - goal) / (high_cost.ln() - low_cost.ln());
                let inside = straight > x && straight < y;
                // A curve that is not a power halves the bracket now and then.
                if inside && !self.evaluations.is_multiple_of(4) {
                    straight.exp()
                } else {
                    (0.5 * (x + y)).exp()
                }
            }
            // Cost falls at least about as fast as sigma rises; twice the step if it is late.
            (Some((sigma, cost)), None) => {
                let ratio = (cost / self.target).clamp(1.0005, 1e3);
                sigma * ratio.powf(1.0 + 0.25 * f64::from(self.evaluations - 1))
            }
            (None, Some((sigma, cost))) => {
                let ratio = (cost / self.target).clamp(1e-2, 0.9995);
                sigma * ratio.powf(1.0 + 0.25 * f64::from(self.evaluations - 1))
            }
            (None, None) => 1.0,
        };
        let rounded = round_up(sigma, DIGITS);
        // Rounding up must not repeat the end that is known already.
        match self.within {
            Some((high, _)) if rounded >= high && self.above.is_some() => {
                let low = self.above.map_or(0.0, |above| above.0);
                round_up(0.5 * (low + high), DIGITS + 2)
            }
            _ => rounded,
        }
    }
}

fn check_target(epsilon: f64) -> Result<(), AccountError> {
    if epsilon > 0.0 && epsilon.is_finite() {
        Ok(())
    } else {
        Err(AccountError::Epsilon {
            bound: "positive",
            value: epsilon,
        })
    }
}

/// Where to begin: the central limit of the loss, from the chi-square divergence of one round.
pub(crate) fn first_guess(
    shifts: &ShiftMixture,
    rounds: u64,
    epsilon: f64,
    delta: f64,
    adjacency: Adjacency,
) -> f64 {
    let wanted = gaussian::largest_mu(epsilon, delta) / adjacency.distance();
    let mu = |sigma: f64| -> f64 {
        let parts = shifts.parts();
        let pairs = parts
            .iter()
            .flat_map(|left| parts.iter().map(move |right| (left, right)));
        let divergence: f64 = pairs
            .map(|((s, p), (t, r))| p * r * (s * t / (sigma * sigma)).exp_m1())
            .sum();
        (rounds as f64 * divergence).sqrt()
    };
    let largest = shifts.largest().max(f64::MIN_POSITIVE);
    let (mut low, mut high) = ((1e-2 * largest).ln(), (1e9 * largest).ln());
    for _ in 0..60 {
        let middle = 0.5 * (low + high);
        // Not a number counts as too much.
        if mu(middle.exp()) < wanted {
            high = middle;
        } else {
            low = middle;
        }
    }
    high.exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cost_that_noise_cannot_lower_is_unreachable() {
        let stuck = smallest_sigma(1.0, 1.0, |_| Ok(2.0));
        assert!(matches!(stuck, Err(AccountError::Unreachable { .. })));
        let broken = smallest_sigma(1.0, 1.0, |_| Ok(f64::NAN));
        assert!(matches!(broken, Err(AccountError::Unresolved { .. })));
        // A step function is met from the safe side.
        let step = |sigma: f64| Ok(if sigma < 3.0 { 5.0 } else { 0.5 });
        let (sigma, epsilon) = smallest_sigma(1.0, 1.0, step).unwrap();
        assert!((3.0..3.0001).contains(&sigma) && epsilon == 0.5);
    }
}
