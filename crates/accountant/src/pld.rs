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
mod transform;

pub use distribution::LossDistribution;

use crate::account::AccountError;
use crate::event::{Adjacency, Release};
use compose::{Composed, Phase};
use discretise::{Resolution, discretise};
use law::LARGEST_TRANSFORM;
use pair::Pair;
use plan::{Goal, Plan, Samples};

/// Share of epsilon that the step may add.
const EPSILON_TOLERANCE: f64 = 4e-5;

/// The same for delta, which moves several times as fast.
const DELTA_TOLERANCE: f64 = 2e-4;

/// Probability given up over the whole schedule, as a share of delta.
const TAIL_SHARE: f64 = 1e-7;

/// The same where no delta is given.
const TAIL: f64 = 1e-36;

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
            let mut search = Search::new(direction, Goal::Delta(delta))?;
            // A coarse bound below the first direction's cost settles the second.
            let enough = if way == 0 { 0.0 } else { worst };
            worst = worst.max(search.refine(fineness, EPSILON_TOLERANCE, enough)?);
        }
        Ok(worst)
    }

    /// `delta` at `epsilon`, from above.
    pub(crate) fn delta(&self, epsilon: f64) -> Result<f64, AccountError> {
        let mut worst = 0.0_f64;
        for direction in &self.directions {
            let mut search = Search::new(direction, Goal::Epsilon(epsilon))?;
            worst = worst.max(search.refine(&mut None, DELTA_TOLERANCE, worst)?);
        }
        Ok(worst)
    }
}

impl Direction {
    pub(crate) fn samples(&self, goal: Goal) -> Vec<Samples> {
        let tail = self.tail(goal);
        self.phases
            .iter()
            .map(|(pair, count)| Samples::of_pair(pair, *count, tail))
            .collect()
    }

    pub(crate) fn rounds(&self) -> f64 {
        self.phases.iter().map(|phase| phase.1 as f64).sum()
    }

    /// Probability that one round may give up.
    fn tail(&self, goal: Goal) -> f64 {
        match goal {
            Goal::Delta(delta) => delta * TAIL_SHARE / self.rounds(),
            Goal::Epsilon(_) => TAIL / self.rounds(),
        }
    }

    /// The coarsest step worth trying.
    pub(crate) fn coarsest_step(&self, plan: &Plan) -> f64 {
        const FEWEST_POINTS: f64 = 2048.0;
        let step =
            (plan.spread / self.rounds().sqrt() / 4.0).min(plan.window.length / FEWEST_POINTS);
        step.max(plan.window.length / (LARGEST_TRANSFORM / 2) as f64)
    }

    pub(crate) fn discretise(
        &self,
        goal: Goal,
        coarsest: f64,
        fineness: f64,
        tilt: f64,
    ) -> Result<Vec<LossDistribution>, AccountError> {
        // Losses with a factor exp(tilt * loss) below this weigh nothing.
        const LIGHT: f64 = 60.0;
        let resolution = Resolution {
            step: coarsest / fineness,
            fineness,
            tail: self.tail(goal),
            floor: -LIGHT / tilt,
        };
        self.phases
            .iter()
            .map(|(pair, _)| discretise(pair, resolution))
            .collect()
    }

    pub(crate) fn phases<'a>(
        &self,
        losses: &'a [LossDistribution],
        samples: &'a [Samples],
    ) -> Vec<Phase<'a>> {
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

/// Costs of different numbers of rounds of the same release, all from one discretised round.
pub(crate) struct RoundCosts {
    delta: f64,
    ways: Vec<Way>,
}

/// One direction: the round on the fine grid and, for a quick bound, on a coarse one.
struct Way {
    samples: Samples,
    fine: LossDistribution,
    coarse: LossDistribution,
}

impl RoundCosts {
    /// Prepares for up to as many rounds as the single release of `schedule` has.
    pub(crate) fn new(schedule: &Schedule, delta: f64) -> Result<Self, AccountError> {
        let goal = Goal::Delta(delta);
        let mut fineness = None;
        schedule.epsilon_at(delta, &mut fineness)?;
        let ways = schedule
            .directions
            .iter()
            .map(|direction| {
                let mut search = Search::new(direction, goal)?;
                let on_grid = |fineness: f64| -> Result<LossDistribution, AccountError> {
                    let tilt = search.plan.tilt;
                    let mut losses = direction.discretise(goal, search.coarsest, fineness, tilt)?;
                    Ok(losses.swap_remove(0))
                };
                let (fine, coarse) = (on_grid(fineness.unwrap_or(16.0))?, on_grid(2.0)?);
                let samples = search.samples.swap_remove(0);
                Ok(Way {
                    samples,
                    fine,
                    coarse,
                })
            })
            .collect::<Result<_, AccountError>>()?;
        Ok(RoundCosts { delta, ways })
    }

    /// The least epsilon after `rounds` rounds, from above.
    pub(crate) fn epsilon(&self, rounds: u64) -> Result<f64, AccountError> {
        let mut worst = 0.0_f64;
        for (index, way) in self.ways.iter().enumerate() {
            let samples = [way.samples.times(rounds)];
            let mut plan = Plan::new(&samples, Goal::Delta(self.delta));
            let mut cost = |losses: &LossDistribution| {
                let phase = Phase {
                    losses,
                    samples: &samples[0],
                    count: rounds,
                };
                epsilon_of_phases(&[phase], &mut plan, self.delta)
            };
            if index > 0 && cost(&way.coarse)? <= worst {
                continue;
            }
            worst = worst.max(cost(&way.fine)?);
        }
        Ok(worst)
    }
}

/// One direction, one question, several steps.
struct Search<'a> {
    direction: &'a Direction,
    goal: Goal,
    samples: Vec<Samples>,
    plan: Plan,
    coarsest: f64,
}

impl<'a> Search<'a> {
    fn new(direction: &'a Direction, goal: Goal) -> Result<Self, AccountError> {
        let samples = direction.samples(goal);
        let plan = Plan::new(&samples, goal);
        let coarsest = direction.coarsest_step(&plan);
        let usable = coarsest > f64::MIN_POSITIVE && coarsest.is_finite() && plan.tilt.is_finite();
        if !usable {
            return Err(AccountError::Unresolved {
                reason: "the losses are too small to be told apart",
            });
        }
        Ok(Search {
            direction,
            goal,
            samples,
            plan,
            coarsest,
        })
    }

    /// Refines the step until the answer stands or cannot matter (is at most `enough`).
    ///
    /// The excess of an answer falls like the square of the step. Two answers tell how large it
    /// is, and the step jumps to where it is tolerable.
    fn refine(
        &mut self,
        fineness: &mut Fineness,
        tolerance: f64,
        enough: f64,
    ) -> Result<f64, AccountError> {
        const LARGEST_JUMP: f64 = 64.0;
        // A jump aims at the tolerance and need not hit it.
        const SLACK: f64 = 1.8;
        if let (Some(known), true) = (*fineness, enough == 0.0) {
            return self.answer(known);
        }
        let coarse = self.answer(1.0)?;
        if coarse <= enough {
            return Ok(coarse);
        }
        if let Goal::Delta(delta) = self.goal {
            self.plan = Plan::around(&self.samples, coarse, delta.ln());
        }
        if let Some(known) = *fineness {
            return self.answer(known);
        }
        let mut level = 4.0;
        let mut value = self.answer(level)?;
        let mut excess = (coarse - value) / 15.0;
        while value > enough && excess > SLACK * tolerance * value {
            let jump = (excess / (tolerance * value))
                .sqrt()
                .clamp(1.3, LARGEST_JUMP);
            let finer = match self.answer(level * jump) {
                Ok(finer) => finer,
                // The coarser answer is a bound as well; it is only less tight.
                Err(AccountError::Unresolved { .. }) => break,
                Err(error) => return Err(error),
            };
            excess = (value - finer) / (jump * jump - 1.0);
            value = value.min(finer);
            level *= jump;
        }
        *fineness = Some(level);
        Ok(value)
    }

    fn answer(&mut self, fineness: f64) -> Result<f64, AccountError> {
        let losses =
            self.direction
                .discretise(self.goal, self.coarsest, fineness, self.plan.tilt)?;
        let phases = self.direction.phases(&losses, &self.samples);
        match self.goal {
            Goal::Epsilon(epsilon) => Ok(Composed::new(&phases, &self.plan)?.delta(epsilon)),
            Goal::Delta(delta) => epsilon_of_phases(&phases, &mut self.plan, delta),
        }
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
        let centred = Composed::new(phases, plan)?.epsilon(delta)?;
        if centred.epsilon < answer.epsilon {
            answer = centred;
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
