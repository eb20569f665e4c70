//! Privacy-loss-distribution accounting: the cost of a schedule of releases, to 1e-4 and from
//! above.
//!
//! ```text
//! release -> pair (P, Q) -> loss distribution on a grid -> tilt -> F^T -> delta(epsilon)
//!            pair.rs        discretise.rs                 plan.rs  compose.rs
//! ```
//!
//! Guarantee: every answer is an upper bound of the cost of the pairs, whatever the step; the step
//! only decides how tight it is. It starts at a quarter of the (tilted) standard deviation of one
//! round's loss and is halved until halving it once more would change the answer by less than
//! about 1e-4 of itself. A fixed step, as other accountants use, is tens of percent too high for
//! rounds of small loss.
//!
//! Cost: milliseconds; the window over the step grows like `sqrt(T)`.

pub(crate) mod compose;
pub(crate) mod discretise;
pub(crate) mod distribution;
mod law;
pub(crate) mod pair;
pub(crate) mod plan;
mod search;
mod transform;

pub use distribution::LossDistribution;
pub(crate) use search::RoundCosts;

use crate::account::AccountError;
use crate::event::{Adjacency, Release};
use compose::{Composed, Phase};
use pair::{Cutoff, Pair};
use plan::{Goal, Plan, Samples};
use search::Search;

/// Largest shift in units of the noise; epsilon is far above 10,000 there.
const LARGEST_SHIFT: f64 = 200.0;

/// A schedule seen in one direction: pairs and how often each is drawn.
#[derive(Clone, Debug)]
pub(crate) struct Direction {
    phases: Vec<(Pair, u64)>,
}

/// A schedule with every direction that its adjacency asks for.
#[derive(Clone, Debug)]
pub(crate) struct Schedule {
    directions: Vec<Direction>,
}

/// How much finer than the coarsest the step must be: about the same for neighbouring noise
/// levels, so a search reuses what its first evaluation found.
pub(crate) type Fineness = Option<f64>;

impl Schedule {
    /// `gaussian` is the total shift over noise of all rounds with a certain shift; they compose
    /// to a single one, exactly.
    pub(crate) fn new(
        mixtures: &[(&Release, u64)],
        gaussian: f64,
        adjacency: Adjacency,
    ) -> Result<Self, AccountError> {
        let mut phases: Vec<(Vec<Pair>, u64)> = mixtures
            .iter()
            .map(|(release, count)| (Pair::of(release, adjacency), *count))
            .collect();
        if gaussian > 0.0 {
            phases.push((Pair::certain(gaussian, adjacency), 1));
        }
        let ways = phases.first().map_or(0, |phase| phase.0.len());
        let directions: Vec<Direction> = (0..ways)
            .map(|way| Direction {
                phases: phases
                    .iter()
                    .map(|(pairs, count)| (pairs[way].clone(), *count))
                    .collect(),
            })
            .collect();
        for (pair, _) in directions.iter().flat_map(|direction| &direction.phases) {
            if pair.largest_shift() > LARGEST_SHIFT {
                return Err(AccountError::NoiseTooSmall {
                    ratio: pair.largest_shift(),
                    largest: LARGEST_SHIFT,
                });
            }
        }
        Ok(Schedule { directions })
    }

    /// The least epsilon at `delta`, from above.
    pub(crate) fn epsilon(&self, delta: f64) -> Result<f64, AccountError> {
        self.epsilon_at(delta, &mut None)
    }

    /// As [`Self::epsilon`], starting from a fineness that was enough before.
    pub(crate) fn epsilon_at(
        &self,
        delta: f64,
        fineness: &mut Fineness,
    ) -> Result<f64, AccountError> {
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
    fn coarsest_step(&self, plan: &Plan) -> f64 {
        const FEWEST_POINTS: f64 = 2048.0;
        const MOST_POINTS: f64 = 65_536.0;
        let window = plan.window.length;
        (plan.spread / self.rounds().sqrt() / 4.0)
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

/// The least epsilon of rounds that are already on a grid; a plan that turns out to be off centre
/// is replaced.
pub(crate) fn epsilon_of_phases(
    phases: &[Phase<'_>],
    plan: &mut Plan,
    delta: f64,
) -> Result<f64, AccountError> {
    let mut answer = Composed::new(phases, plan)?.epsilon(delta)?;
    if answer.allowance > SHARP_ALLOWANCE {
        let samples: Vec<Samples> = phases.iter().map(|phase| phase.samples.clone()).collect();
        *plan = Plan::around(&samples, answer.epsilon, delta.ln());
        let centred = Composed::new(phases, plan).and_then(|composed| composed.epsilon(delta));
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
pub fn epsilon_of_losses(
    rounds: &[(&LossDistribution, u64)],
    delta: f64,
) -> Result<f64, AccountError> {
    let samples = samples_of(rounds);
    let mut plan = Plan::new(&samples, Goal::Delta(delta));
    epsilon_of_phases(&phases_of(rounds, &samples), &mut plan, delta)
}

/// `delta` at `epsilon` of rounds with given losses, all on grids of the same step.
///
/// # Errors
/// A window too long for a transform.
pub fn delta_of_losses(
    rounds: &[(&LossDistribution, u64)],
    epsilon: f64,
) -> Result<f64, AccountError> {
    let samples = samples_of(rounds);
    let plan = Plan::new(&samples, Goal::Epsilon(epsilon));
    Ok(Composed::new(&phases_of(rounds, &samples), &plan)?.delta(epsilon))
}

fn samples_of(rounds: &[(&LossDistribution, u64)]) -> Vec<Samples> {
    rounds
        .iter()
        .map(|(losses, count)| Samples::of_distribution(losses, *count))
        .collect()
}

fn phases_of<'a>(rounds: &[(&'a LossDistribution, u64)], samples: &'a [Samples]) -> Vec<Phase<'a>> {
    rounds
        .iter()
        .zip(samples)
        .map(|((losses, count), samples)| Phase {
            losses,
            samples,
            count: *count,
        })
        .collect()
}

/// Above this share of delta the allowance for rounding would show in the answer.
const SHARP_ALLOWANCE: f64 = 1e-4;

/// Above this share of delta an answer is refused.
const VOUCHED_ALLOWANCE: f64 = 0.01;
