//! Privacy-loss-distribution accounting: the cost of a schedule of releases, to 1e-4 and from
//! above. Where every shift is certain there is a closed form, and it is used.
//!
//! ```text
//! shifts -> pair (P, Q) -> loss distribution on a grid -> tilt -> F^T -> delta(epsilon)
//!           mixture.rs     discretise.rs                  window.rs  compose.rs
//! ```
//!
//! Guarantee: every answer is an upper bound of the cost of the pairs, whatever the step; the step
//! only decides how tight it is. It starts at a quarter of the (tilted) standard deviation of one
//! round's loss and is halved until halving it once more would change the answer by less than
//! about 1e-4 of itself. A fixed step, as other accountants use, is tens of percent too high for
//! rounds of small loss.
//!
//! What is accounted are mixtures of shifts, for a schedule fixed in advance: a release of which
//! random-k hides a part is none, and cannot be passed here.
//!
//! Cost: milliseconds; the window over the step grows like `sqrt(T)`.

mod compose;
mod cut;
mod discretise;
mod losses;
mod search;
mod tilted;
mod transform;
mod window;

pub(crate) use losses::LossDistribution;
pub(crate) use search::RoundCosts;

use crate::error::AccountError;
use crate::gaussian;
use crate::mechanism::Adjacency;
use crate::mixture::{MixturePair, ShiftMixture};
use compose::{Composed, Phase};
use cut::Cutoff;
use search::Search;
use window::{Goal, Placement, Samples};

/// Largest shift in units of the noise; epsilon is far above 10,000 there.
const LARGEST_SHIFT: f64 = 200.0;

/// Grid positions times rounds must fit an integer, and rounding times rounds stay small.
const MOST_ROUNDS: u64 = 1 << 36;

/// Above this share of delta the allowance for rounding would show in the answer.
const SHARP_ALLOWANCE: f64 = 1e-4;

/// Above this share of delta an answer is refused.
const VOUCHED_ALLOWANCE: f64 = 0.01;

/// A schedule seen in one direction: pairs and how often each is drawn.
#[derive(Clone, Debug)]
struct Direction {
    phases: Vec<(MixturePair, u64)>,
}

/// A schedule with every direction that its adjacency asks for.
#[derive(Clone, Debug)]
pub(crate) struct Schedule {
    /// Total shift over noise between neighbours, of all rounds with a certain shift: they compose
    /// to a single one, exactly.
    mu: f64,
    /// None where every shift is certain.
    directions: Vec<Direction>,
}

/// How much finer than the coarsest the step must be.
type Fineness = Option<f64>;

impl Schedule {
    /// Rounds as mixtures in units of the noise, with how often each happens.
    pub(crate) fn new(
        rounds: &[(ShiftMixture, u64)],
        adjacency: Adjacency,
    ) -> Result<Self, AccountError> {
        let (mut squares, mut total) = (0.0, 0_u64);
        let mut phases: Vec<(ShiftMixture, u64)> = Vec::new();
        for (shifts, count) in rounds {
            total = total.saturating_add(*count);
            if *count == 0 {
                return Err(AccountError::NoRounds { found: 0 });
            }
            if total > MOST_ROUNDS {
                return Err(AccountError::TooManyRounds);
            }
            if shifts.is_single() {
                squares += *count as f64 * shifts.largest().powi(2);
            } else if let Some(same) = phases.iter_mut().find(|phase| phase.0 == *shifts) {
                same.1 += count;
            } else {
                phases.push((shifts.clone(), *count));
            }
        }
        let gaussian = squares.sqrt();
        if gaussian > 0.0 && !phases.is_empty() {
            phases.push((ShiftMixture::certain(gaussian.min(f64::MAX))?, 1));
        }
        let mut directions: Vec<Direction> = Vec::new();
        for (shifts, count) in phases {
            let ratio = shifts.largest();
            if ratio > LARGEST_SHIFT {
                let largest = LARGEST_SHIFT;
                return Err(AccountError::NoiseTooSmall { ratio, largest });
            }
            let pairs = MixturePair::directions(&shifts, adjacency);
            directions.resize_with(pairs.len(), || Direction { phases: Vec::new() });
            for (direction, pair) in directions.iter_mut().zip(pairs) {
                direction.phases.push((pair, count));
            }
        }
        Ok(Schedule {
            mu: adjacency.distance() * gaussian,
            directions,
        })
    }

    /// `mu` of the closed form, where every shift is certain.
    pub(crate) fn closed_form(&self) -> Option<f64> {
        self.directions.is_empty().then_some(self.mu)
    }

    /// The least epsilon at `delta`, from above.
    pub(crate) fn epsilon(&self, delta: f64) -> Result<f64, AccountError> {
        match self.closed_form() {
            Some(mu) => Ok(gaussian::epsilon(mu, delta)),
            None => self.epsilon_at(delta, &mut None),
        }
    }

    /// The same by loss distributions; says which fineness was enough.
    fn epsilon_at(&self, delta: f64, fineness: &mut Fineness) -> Result<f64, AccountError> {
        let mut worst = 0.0_f64;
        for (way, direction) in self.directions.iter().enumerate() {
            if direction.total_variation() <= delta {
                continue;
            }
            let mut search = Search::new(direction, Goal::Delta(delta))?;
            // A coarse bound below the first direction's cost settles the second.
            let enough = if way == 0 { 0.0 } else { worst };
            worst = worst.max(search.refine(fineness, enough)?);
        }
        Ok(worst)
    }

    /// `delta` at `epsilon`, from above.
    pub(crate) fn delta(&self, epsilon: f64) -> Result<f64, AccountError> {
        match self.closed_form() {
            Some(mu) if mu > 0.0 => return Ok(gaussian::delta(mu, epsilon)),
            Some(_) => return Ok(0.0),
            None => {}
        }
        let mut worst = 0.0_f64;
        for direction in &self.directions {
            let mut search = Search::new(direction, Goal::Epsilon(epsilon))?;
            worst = worst.max(search.refine(&mut None, worst)?);
        }
        Ok(worst)
    }
}

impl Direction {
    fn samples(&self, cutoff: Cutoff) -> Vec<Samples> {
        self.phases
            .iter()
            .map(|(pair, count)| Samples::of_pair(pair, *count, cutoff))
            .collect()
    }

    fn rounds(&self) -> f64 {
        self.phases.iter().map(|phase| phase.1 as f64).sum()
    }

    /// An upper bound of delta at epsilon zero: distances add up over rounds.
    fn total_variation(&self) -> f64 {
        const ROUNDING: f64 = 1e-15;
        self.phases
            .iter()
            .map(|(pair, count)| *count as f64 * (pair.total_variation() + ROUNDING))
            .sum()
    }

    /// The coarsest step worth trying: a quarter of a round's spread, within reason.
    fn coarsest_step(&self, placement: &Placement) -> f64 {
        const FEWEST_POINTS: f64 = 2048.0;
        const MOST_POINTS: f64 = 65_536.0;
        let window = placement.window.length;
        (placement.spread / self.rounds().sqrt() / 4.0)
            .min(window / FEWEST_POINTS)
            .max(window / MOST_POINTS)
    }

    fn phases<'a>(&self, losses: &'a [LossDistribution], samples: &'a [Samples]) -> Vec<Phase<'a>> {
        losses
            .iter()
            .zip(samples)
            .zip(&self.phases)
            .map(|((losses, samples), phase)| Phase {
                losses,
                samples,
                count: phase.1,
            })
            .collect()
    }
}

/// The least epsilon of rounds that are already on a grid; a placement that turns out to be off
/// centre is replaced.
fn epsilon_of_phases(
    phases: &[Phase<'_>],
    placement: &mut Placement,
    delta: f64,
) -> Result<f64, AccountError> {
    let mut answer = Composed::new(phases, placement)?.epsilon(delta)?;
    if answer.allowance > SHARP_ALLOWANCE {
        let samples: Vec<Samples> = phases.iter().map(|phase| phase.samples.clone()).collect();
        *placement = Placement::around(&samples, answer.epsilon, delta.ln());
        let centred = Composed::new(phases, placement).and_then(|composed| composed.epsilon(delta));
        match centred {
            Ok(centred) if centred.allowance < answer.allowance => answer = centred,
            // Both are bounds: the first one stands.
            Ok(_) | Err(AccountError::Unresolved { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    if answer.allowance > VOUCHED_ALLOWANCE {
        return Err(AccountError::Unresolved {
            reason: "rounding exceeds one percent of delta",
        });
    }
    Ok(answer.epsilon)
}

/// The least epsilon at `delta` of rounds with given losses, all on grids of the same step.
///
/// # Errors
/// A window too long for a transform, or more given up than `delta` allows.
pub(crate) fn epsilon_of_losses(
    rounds: &[(&LossDistribution, u64)],
    delta: f64,
) -> Result<f64, AccountError> {
    let samples: Vec<Samples> = rounds
        .iter()
        .map(|(losses, count)| Samples::of_distribution(losses, *count))
        .collect();
    let phases: Vec<Phase<'_>> = rounds
        .iter()
        .zip(&samples)
        .map(|(&(losses, count), samples)| Phase {
            losses,
            samples,
            count,
        })
        .collect();
    let mut placement = Placement::new(&samples, Goal::Delta(delta));
    epsilon_of_phases(&phases, &mut placement, delta)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampled(rate: f64, sigma: f64) -> ShiftMixture {
        ShiftMixture::new(&[0.0, 1.0 / sigma], &[1.0 - rate, rate]).unwrap()
    }

    /// Rounds with a certain shift, composed as if there were no closed form.
    #[test]
    fn certain_shifts_match_the_closed_form() {
        for &adjacency in Adjacency::ALL {
            for (shift, rounds, delta) in [
                (1.0, 1, 1e-5),
                (0.05, 100, 1e-5),
                (0.02, 10_000, 1e-8),
                (0.001, 1_000_000, 1e-10),
                (3.0, 20, 1e-10),
            ] {
                let shifts = ShiftMixture::certain(shift).unwrap();
                let closed = Schedule::new(&[(shifts.clone(), rounds)], adjacency).unwrap();
                let exact = closed.epsilon(delta).unwrap();
                let mu = adjacency.distance() * shift * (rounds as f64).sqrt();
                assert!((exact / gaussian::epsilon(mu, delta) - 1.0).abs() < 1e-12);
                let directions = MixturePair::directions(&shifts, adjacency)
                    .into_iter()
                    .map(|pair| Direction {
                        phases: vec![(pair, rounds)],
                    })
                    .collect();
                let schedule = Schedule {
                    mu: 0.0,
                    directions,
                };
                let found = schedule.epsilon(delta).unwrap();
                assert!(
                    found >= exact * (1.0 - 1e-9),
                    "{shift} {rounds}: {found} {exact}"
                );
                assert!(
                    found <= exact * (1.0 + 1e-4),
                    "{shift} {rounds}: {found} {exact}"
                );
                let back = schedule.delta(exact).unwrap();
                assert!(
                    back >= delta * (1.0 - 1e-7) && back <= delta * 1.002,
                    "{back}"
                );
            }
        }
    }

    #[test]
    fn refining_never_raises_the_cost() {
        for &adjacency in Adjacency::ALL {
            for (rate, sigma, rounds) in [(0.01, 1.0, 300), (0.2, 3.0, 2000), (1e-4, 0.5, 5000)] {
                let schedule = Schedule::new(&[(sampled(rate, sigma), rounds)], adjacency).unwrap();
                for direction in &schedule.directions {
                    let mut last = f64::INFINITY;
                    for fineness in [1.0, 2.0, 4.0, 8.0, 16.0] {
                        let mut search = Search::new(direction, Goal::Delta(1e-6)).unwrap();
                        let found = search.refine(&mut Some(fineness), 0.0).unwrap();
                        assert!(found <= last * (1.0 + 1e-9), "{fineness}: {found} {last}");
                        last = found;
                    }
                }
            }
        }
    }

    #[test]
    fn composed_mass_is_one() {
        for (rate, sigma, rounds) in [(0.01, 1.0, 1000), (1e-6, 0.3, 1_000_000), (0.5, 5.0, 50)] {
            let rounds = [(sampled(rate, sigma), rounds)];
            let schedule = Schedule::new(&rounds, Adjacency::ZeroOut).unwrap();
            assert_eq!(schedule.directions.len(), 2);
            for direction in &schedule.directions {
                let search = Search::new(direction, Goal::Delta(1e-6)).unwrap();
                let total = search.composed_total(4.0).unwrap();
                assert!((total - 1.0).abs() < 1e-10, "{rate}: {total}");
            }
        }
    }

    #[test]
    fn given_losses_compose_like_the_release_they_came_from() {
        let rounds = [(sampled(0.02, 1.2), 800)];
        let schedule = Schedule::new(&rounds, Adjacency::ReplaceOne).unwrap();
        let search = Search::new(&schedule.directions[0], Goal::Delta(1e-6)).unwrap();
        let losses = search.discretise(16.0).unwrap();
        let whole = schedule.epsilon(1e-6).unwrap();
        let found = epsilon_of_losses(&[(&losses[0], 300), (&losses[0], 500)], 1e-6).unwrap();
        assert!((found / whole - 1.0).abs() < 1e-4, "{found} {whole}");
        let samples = [Samples::of_distribution(&losses[0], 800)];
        let phase = Phase {
            losses: &losses[0],
            samples: &samples[0],
            count: 800,
        };
        let placement = Placement::new(&samples, Goal::Epsilon(found));
        let delta = Composed::new(&[phase], &placement).unwrap().delta(found);
        assert!((delta / 1e-6 - 1.0).abs() < 1e-3, "{delta}");
    }
}
