//! The smallest noise for a target cost.
//!
//! [`smallest_sigma`] searches any accountant given as a closure, so exact, amplified and Renyi
//! accounting calibrate alike. It never returns a sigma whose cost it has not computed and found
//! within the target; sigma has six significant digits, rounded up before the cost is computed.
//!
//! The cost is close to a power of sigma, so the search interpolates its logarithm: four or five
//! evaluations in place of the thirty of a bisection.

use crate::account::{AccountError, Parts, check_delta, round_up};
use crate::event::{Adjacency, EventError, Mechanism, Release};
use crate::gaussian;

/// Significant digits of a calibrated sigma.
const DIGITS: u32 = 6;

/// Share of the target that may stay unused.
const UNUSED: f64 = 2e-4;

/// A noise level and what it costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Calibration {
    /// Standard deviation of the noise, in gradient units, rounded up.
    pub sigma: f64,
    /// The cost at this sigma, at most the target.
    pub epsilon: f64,
}

/// The smallest sigma with which `rounds` rounds of `mechanism` cost at most `epsilon`, without
/// amplification.
///
/// # Errors
/// A mechanism that is refused, zero rounds, a target that is not positive or a delta out of
/// range, or a target that no noise reaches.
pub fn calibrate(
    mechanism: &Mechanism,
    rounds: u64,
    epsilon: f64,
    delta: f64,
    adjacency: Adjacency,
) -> Result<Calibration, AccountError> {
    check_target(epsilon)?;
    check_delta(delta)?;
    let unit = mechanism.release(1.0)?;
    let start = estimate(&unit, rounds, epsilon, delta, adjacency);
    // The step that was fine enough for one sigma is so for its neighbours.
    let mut known: Option<(f64, f64)> = None;
    smallest_sigma(epsilon, start, |sigma| {
        let events = [mechanism.release(sigma)?.times(rounds)];
        let parts = Parts::new(&events, adjacency)?;
        if parts.is_gaussian() {
            return Ok(gaussian::epsilon(parts.mu(), delta));
        }
        let mut fineness = known
            .filter(|(at, _)| (sigma / at).ln().abs() < 0.2)
            .map(|(_, fineness)| fineness);
        let cost = parts.schedule()?.epsilon_at(delta, &mut fineness)?;
        known = known.or(fineness.map(|fineness| (sigma, fineness)));
        Ok(cost)
    })
}

/// The smallest sigma at which `cost` is at most `target`, to 1e-4 or so.
///
/// `cost` must fall with sigma; `start` is a guess, and only decides how many evaluations it
/// takes. A cost of [`AccountError::NoiseTooSmall`] counts as too high.
///
/// # Errors
/// What `cost` returns; [`AccountError::Unreachable`] when a sigma far above the guess does not
/// reach the target.
pub fn smallest_sigma(
    target: f64,
    start: f64,
    mut cost: impl FnMut(f64) -> Result<f64, AccountError>,
) -> Result<Calibration, AccountError> {
    check_target(target)?;
    if !(start > 0.0 && start.is_finite()) {
        return Err(AccountError::Event(EventError::NotPositive {
            name: "the first sigma",
            value: start,
        }));
    }
    let mut search = Bracket::new(target);
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
    search.best().ok_or(AccountError::Unresolved {
        reason: "the cost does not fall with sigma",
    })
}

const MOST_EVALUATIONS: u32 = 120;

/// How far above the first guess a target may lie.
const LARGEST_GROWTH: f64 = 1e9;

/// Below this sigma, relative to where the search began, noise no longer matters.
const LARGEST_SHRINK: f64 = 1e-9;

/// What is known: the largest sigma above the target, the smallest within it.
struct Bracket {
    target: f64,
    above: Option<(f64, f64)>,
    within: Option<(f64, f64)>,
    first: Option<f64>,
    evaluations: u32,
}

impl Bracket {
    fn new(target: f64) -> Self {
        Bracket {
            target,
            above: None,
            within: None,
            first: None,
            evaluations: 0,
        }
    }

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

    fn best(&self) -> Option<Calibration> {
        self.within
            .map(|(sigma, epsilon)| Calibration { sigma, epsilon })
    }

    /// Done when hardly anything of the target is unused, or nothing lies between the two ends.
    fn finished(&self) -> Option<Calibration> {
        let (sigma, epsilon) = self.within?;
        let first = self.first.unwrap_or(sigma);
        let close = epsilon >= self.target * (1.0 - UNUSED);
        let tight = self
            .above
            .is_some_and(|(low, _)| sigma <= low * (1.0 + 3e-6));
        let free = sigma < LARGEST_SHRINK * first;
        (close || tight || free).then_some(Calibration { sigma, epsilon })
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
pub(crate) fn estimate(
    unit: &Release,
    rounds: u64,
    epsilon: f64,
    delta: f64,
    adjacency: Adjacency,
) -> f64 {
    let double = match adjacency {
        Adjacency::ZeroOut => 1.0,
        Adjacency::ReplaceOne => 2.0,
    };
    let wanted = gaussian::largest_mu(epsilon, delta) / double;
    let parts = || unit.shifts.shifts().iter().zip(unit.shifts.probabilities());
    let mu = |sigma: f64| -> f64 {
        let divergence: f64 = parts()
            .flat_map(|left| parts().map(move |right| (left, right)))
            .map(|((s, p), (t, r))| p * r * (s * t / (sigma * sigma)).exp_m1())
            .sum();
        (rounds as f64 * divergence).sqrt()
    };
    let largest = unit.shifts.largest().max(f64::MIN_POSITIVE);
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
