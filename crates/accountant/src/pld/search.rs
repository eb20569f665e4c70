//! From a question to its answer: steps that get finer until the answer stands.

use super::compose::{Composed, epsilon_of_phases};
use super::cut::Cutoff;
use super::direction::Direction;
use super::discretise::{Resolution, discretise};
use super::losses::LossDistribution;
use super::tilted::LARGEST_TRANSFORM;
use super::window::{Goal, Placement, Samples, renyi_bound};
use crate::error::{AccountError, SMALLEST_DELTA};

/// Share of epsilon that the step may add.
const EPSILON_TOLERANCE: f64 = 4e-5;

/// The same for delta, which moves several times as fast.
const DELTA_TOLERANCE: f64 = 2e-4;

/// What is given up over the whole schedule, as a share of delta.
const TAIL_SHARE: f64 = 1e-7;

/// The same where no delta is given.
const TAIL: f64 = 1e-36;

/// How much finer than the coarsest the step must be.
pub(super) type Fineness = Option<f64>;

/// One direction, one question, several steps.
pub(super) struct Search<'a> {
    direction: &'a Direction,
    goal: Goal,
    cutoff: Cutoff,
    pub(super) samples: Vec<Samples>,
    placement: Placement,
    coarsest: f64,
}

impl<'a> Search<'a> {
    pub(super) fn new(direction: &'a Direction, goal: Goal) -> Result<Self, AccountError> {
        let cutoff = cutoff(direction, goal);
        let samples = direction.samples(cutoff);
        let placement = Placement::new(&samples, goal);
        let coarsest = direction.coarsest_step(&placement);
        let usable =
            coarsest > f64::MIN_POSITIVE && coarsest.is_finite() && placement.tilt.is_finite();
        if !usable {
            return Err(AccountError::Unresolved {
                reason: "the losses are too small to be told apart",
            });
        }
        Ok(Search {
            direction,
            goal,
            cutoff,
            samples,
            placement,
            coarsest,
        })
    }

    /// Refines the step until the answer stands or cannot matter (is at most `enough`).
    ///
    /// The excess of an answer falls like the square of the step. Two answers tell how large it
    /// is, and the step jumps to where it is tolerable.
    pub(super) fn refine(
        &mut self,
        fineness: &mut Fineness,
        enough: f64,
    ) -> Result<f64, AccountError> {
        const LOOK: f64 = 1.0 / 64.0;
        const FIRST_JUMP: f64 = 4.0;
        const SMALLEST_JUMP: f64 = 1.4;
        const LARGEST_JUMP: f64 = 64.0;
        // A jump aims at the tolerance and need not hit it.
        const SLACK: f64 = 1.8;
        if let (Some(known), true) = (*fineness, enough == 0.0) {
            return self.answer(known);
        }
        if enough > 0.0 {
            // A very coarse look costs next to nothing and often decides the milder direction.
            let placement = self.placement;
            let bound = self.finer(LOOK)?;
            self.placement = placement;
            if let Some(bound) = bound
                && bound <= enough
            {
                return Ok(bound);
            }
        }
        let coarse = self.answer(1.0)?;
        if coarse <= enough {
            return Ok(coarse);
        }
        let tolerance = match self.goal {
            Goal::Delta(_) => EPSILON_TOLERANCE,
            Goal::Epsilon(_) => DELTA_TOLERANCE,
        };
        self.centre(coarse);
        if let Some(known) = *fineness {
            return Ok(self.finer(known)?.unwrap_or(coarse));
        }
        let (mut level, mut jump) = (1.0, FIRST_JUMP);
        let mut value = coarse;
        while let Some(finer) = self.finer(level * jump)? {
            let excess = (value - finer) / (jump * jump - 1.0);
            level *= jump;
            value = value.min(finer);
            if value <= enough || excess <= SLACK * tolerance * value {
                break;
            }
            self.centre(value);
            jump = (excess / (tolerance * value))
                .sqrt()
                .clamp(SMALLEST_JUMP, LARGEST_JUMP)
                .min(self.room(level).max(SMALLEST_JUMP));
        }
        *fineness = Some(level);
        Ok(value)
    }

    /// Places tilt and window anew around what an answer has shown.
    fn centre(&mut self, answer: f64) {
        let (epsilon, delta) = match self.goal {
            Goal::Delta(delta) => (answer, delta),
            Goal::Epsilon(epsilon) => (epsilon, answer),
        };
        self.placement = Placement::around(&self.samples, epsilon, delta.max(SMALLEST_DELTA).ln());
    }

    /// How much finer than `level` a transform of the whole window can get.
    fn room(&self, level: f64) -> f64 {
        LARGEST_TRANSFORM as f64 * self.coarsest / (level * self.placement.window.length)
    }

    /// The answer at a finer step, or none where that is out of reach: the coarser one is a bound
    /// as well, it is only less tight.
    fn finer(&mut self, fineness: f64) -> Result<Option<f64>, AccountError> {
        if self.room(fineness) < 1.0 {
            return Ok(None);
        }
        match self.answer(fineness) {
            Ok(answer) => Ok(Some(answer)),
            Err(AccountError::Unresolved { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn answer(&mut self, fineness: f64) -> Result<f64, AccountError> {
        let losses = self.discretise(fineness)?;
        let phases = self.direction.phases(&losses, &self.samples);
        match self.goal {
            Goal::Epsilon(epsilon) => Ok(Composed::new(&phases, &self.placement)?.delta(epsilon)),
            Goal::Delta(delta) => epsilon_of_phases(&phases, &mut self.placement, delta),
        }
    }

    /// All tilted probability of the composition; one up to rounding.
    #[cfg(test)]
    pub(super) fn composed_total(&self, fineness: f64) -> Result<f64, AccountError> {
        let losses = self.discretise(fineness)?;
        let phases = self.direction.phases(&losses, &self.samples);
        Ok(Composed::new(&phases, &self.placement)?.total())
    }

    pub(super) fn discretise(&self, fineness: f64) -> Result<Vec<LossDistribution>, AccountError> {
        // Losses with a factor exp(tilt * loss) below this weigh nothing.
        const LIGHT: f64 = 60.0;
        // Far losses of single rounds matter when there are few rounds to hide them.
        let even = (256.0 / self.direction.rounds().sqrt()).clamp(32.0, 256.0);
        let resolution = Resolution {
            step: self.coarsest / fineness,
            // In proportion, so that doubling the fineness gives a nested grid.
            even: even as i64 * fineness.ceil() as i64,
            cutoff: self.cutoff,
            floor: -LIGHT / self.placement.tilt,
        };
        self.direction
            .phases
            .iter()
            .map(|(pair, _)| discretise(pair, resolution))
            .collect()
    }
}

/// What each round may give up: a small share of delta over the whole schedule.
fn cutoff(direction: &Direction, goal: Goal) -> Cutoff {
    match goal {
        Goal::Epsilon(epsilon) => Cutoff {
            tail: TAIL / direction.rounds(),
            epsilon,
        },
        Goal::Delta(delta) => {
            let tail = TAIL_SHARE * delta / direction.rounds();
            let whole = Cutoff {
                tail,
                epsilon: f64::INFINITY,
            };
            let epsilon = renyi_bound(&direction.samples(whole), delta);
            Cutoff { tail, epsilon }
        }
    }
}
