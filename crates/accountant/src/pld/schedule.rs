//! A schedule of rounds and its cost, in every direction that the adjacency asks for.

use super::compose::{Phase, epsilon_of_phases};
use super::direction::Direction;
use super::losses::LossDistribution;
use super::search::{Fineness, Search};
use super::window::{Goal, Placement, Samples};
use crate::adjacency::Adjacency;
use crate::error::AccountError;
use crate::gaussian;
use crate::mixture::{MixturePair, ShiftMixture};

/// Largest shift in units of the noise; epsilon is far above 10,000 there.
const LARGEST_SHIFT: f64 = 200.0;

/// Grid positions times rounds must fit an integer, and rounding times rounds stay small.
const MOST_ROUNDS: u64 = 1 << 36;

/// A schedule with every direction that its adjacency asks for.
#[derive(Clone, Debug)]
pub(crate) struct Schedule {
    /// Total shift over noise between neighbours, of all rounds with a certain shift: they compose
    /// to a single one, exactly.
    mu: f64,
    /// None where every shift is certain.
    directions: Vec<Direction>,
}

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
            // A coarse bound below the first direction's cost decides the second.
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

/// Costs of different numbers of rounds of the same release, all from one discretised round.
pub(crate) struct RoundCosts {
    delta: f64,
    directions: Vec<GriddedRound>,
}

/// One direction: the round on the fine grid and, for a quick bound, on a coarse one.
struct GriddedRound {
    /// Delta of one round at epsilon zero.
    total_variation: f64,
    samples: Samples,
    fine: LossDistribution,
    coarse: LossDistribution,
}

impl RoundCosts {
    /// Prepares for up to as many rounds as the single release of `schedule` has.
    pub(crate) fn new(schedule: &Schedule, delta: f64) -> Result<Self, AccountError> {
        // Where the whole run costs nothing there is no fineness to learn.
        const FINE: f64 = 16.0;
        const COARSE: f64 = 2.0;
        let goal = Goal::Delta(delta);
        let mut fineness = None;
        schedule.epsilon_at(delta, &mut fineness)?;
        let directions = schedule
            .directions
            .iter()
            .map(|direction| {
                let mut search = Search::new(direction, goal)?;
                let fine = search.discretise(fineness.unwrap_or(FINE))?.swap_remove(0);
                let coarse = search.discretise(COARSE)?.swap_remove(0);
                let samples = search.samples.swap_remove(0);
                Ok(GriddedRound {
                    total_variation: direction.total_variation() / direction.rounds(),
                    samples,
                    fine,
                    coarse,
                })
            })
            .collect::<Result<_, AccountError>>()?;
        Ok(RoundCosts { delta, directions })
    }

    /// The least epsilon after `rounds` rounds, from above.
    pub(crate) fn epsilon(&self, rounds: u64) -> Result<f64, AccountError> {
        let mut worst = 0.0_f64;
        for (index, round) in self.directions.iter().enumerate() {
            if rounds as f64 * round.total_variation <= self.delta {
                continue;
            }
            let samples = [round.samples.times(rounds)];
            let mut placement = Placement::new(&samples, Goal::Delta(self.delta));
            let mut cost = |losses: &LossDistribution| {
                let phase = Phase {
                    losses,
                    samples: &samples[0],
                    count: rounds,
                };
                epsilon_of_phases(&[phase], &mut placement, self.delta)
            };
            if index > 0 && cost(&round.coarse)? <= worst {
                continue;
            }
            worst = worst.max(cost(&round.fine)?);
        }
        Ok(worst)
    }
}

#[cfg(test)]
mod tests {
    use super::super::compose::{Composed, epsilon_of_losses};
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
