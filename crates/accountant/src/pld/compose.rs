//! Composition of a whole schedule, and the answers read off it.
//!
//! Few rounds are composed at once. Many are composed in two stages: blocks of about `sqrt(T)`
//! rounds on the fine grid, then the blocks on a grid coarser by their larger spread. Each stage
//! adds about the same small variance, and the transforms shrink from `sqrt(T)` to `T^(1/4)`
//! times the points of a single round.
//!
//! Every answer is an upper bound: what a window cuts and what rounding may hide is added, see
//! [`super::tilted`].

use super::losses::LossDistribution;
use super::tilted::{TiltedLosses, TiltedSum};
use super::window::{Goal, Placement, Samples, Window};
use crate::error::AccountError;

/// From this many rounds on, blocks pay.
const BLOCK_ROUNDS: u64 = 400;

/// One round's losses, how often they happen, and sample points that place the windows.
pub(crate) struct Phase<'a> {
    pub(crate) losses: &'a LossDistribution,
    pub(crate) samples: &'a Samples,
    pub(crate) count: u64,
}

/// The loss of the whole schedule, tilted, on a window.
pub(crate) struct Composed {
    sum: TiltedSum,
    /// `ln` of the factor from the tilted distribution back to the true one at the window's bottom.
    log_scale: f64,
    /// Tail sums of the tilted distribution seen from each point `l`:
    /// `sum_{x > l} p(x) e^{-lambda (x-l)}` times `1 - e^{-(x-l)}` and times `e^{-(x-l)}`.
    hockey: Vec<f64>,
    discounted: Vec<f64>,
    /// What may be hidden at each point, relative to the tilted distribution: the error's mass
    /// times the largest weight `e^{-lambda x} (1 - e^{-x})` it can have.
    hidden: f64,
    infinity: f64,
}

/// An epsilon together with the share of delta that is an allowance for rounding.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer {
    pub(crate) epsilon: f64,
    pub(crate) allowance: f64,
}

impl Composed {
    /// Composes the phases around the placement's centre.
    ///
    /// # Errors
    /// A window too long for a transform.
    pub(crate) fn new(
        phases: &[Phase<'_>],
        placement: &Placement,
    ) -> Result<Composed, AccountError> {
        let parts: Vec<TiltedLosses> = phases
            .iter()
            .map(|phase| TiltedLosses::new(phase.losses, placement.tilt))
            .collect();
        let blocks = Blocks::new(phases, placement);
        let sum = if blocks.pay(placement) {
            blocks.sum(&parts, phases, placement)?
        } else {
            let counts = phases.iter().map(|phase| phase.count);
            let counted: Vec<(&TiltedLosses, u64)> = parts.iter().zip(counts).collect();
            TiltedSum::new(&counted, &placement.window)?
        };
        let infinity = -phases
            .iter()
            .map(|phase| phase.count as f64 * (-phase.losses.infinity).ln_1p())
            .sum::<f64>()
            .exp_m1();
        let mut composed = Composed {
            log_scale: sum.log_total - placement.tilt * sum.bottom,
            hidden: sum.error / (1.0 + placement.tilt),
            hockey: Vec::new(),
            discounted: Vec::new(),
            infinity,
            sum,
        };
        composed.sum_tails();
        Ok(composed)
    }

    /// `hockey[j]` and `discounted[j]` by one recursion from the top.
    fn sum_tails(&mut self) {
        let TiltedSum {
            tilt, step, masses, ..
        } = &self.sum;
        let ratio = (-tilt * step).exp();
        let discount = (-step).exp();
        let lost = -(-step).exp_m1();
        self.hockey = vec![0.0; masses.len()];
        self.discounted = vec![0.0; masses.len()];
        let (mut hockey, mut discounted) = (0.0, 0.0);
        for index in (0..masses.len()).rev() {
            self.hockey[index] = hockey;
            self.discounted[index] = discounted;
            let carried = discounted + masses[index];
            hockey = ratio * (hockey + carried * lost);
            discounted = ratio * discount * carried;
        }
    }

    /// All tilted probability in the window; one up to rounding.
    #[cfg(test)]
    pub(crate) fn total(&self) -> f64 {
        self.sum.masses.iter().sum()
    }

    /// An upper bound of `delta(epsilon)`.
    pub(crate) fn delta(&self, epsilon: f64) -> f64 {
        let TiltedSum {
            tilt,
            step,
            bottom,
            masses,
            ..
        } = &self.sum;
        let position = (epsilon - bottom) / step;
        if position < 0.0 {
            return 1.0;
        }
        let scale = self.log_scale - tilt * (epsilon - bottom);
        let next = position.floor() as usize + 1;
        let finite = if next < masses.len() {
            // Seen from epsilon, everything from the next point on lies `gap` further up.
            let gap = bottom + next as f64 * step - epsilon;
            let carried = self.discounted[next] + masses[next];
            let tail = (-tilt * gap).exp() * (self.hockey[next] - carried * (-gap).exp_m1());
            tail.max(0.0) + self.hidden
        } else {
            // Beyond the window: all of the tilted distribution at its largest weight.
            (1.0 + self.sum.error) / (1.0 + tilt)
        };
        (self.infinity + (scale + finite.ln()).exp()).min(1.0)
    }

    /// The least epsilon (not below zero) at which the bound of `delta` is met.
    ///
    /// # Errors
    /// More probability at infinity than `delta` allows, or a window that ends before it is met.
    pub(crate) fn epsilon(&self, delta: f64) -> Result<Answer, AccountError> {
        let TiltedSum {
            tilt,
            step,
            bottom,
            masses,
            ..
        } = &self.sum;
        let at = |index: usize| self.delta(bottom + index as f64 * step);
        // The last point has nothing above it but what the error covers.
        let last = masses.len() - 2;
        if at(last) > delta {
            return Err(AccountError::Unresolved {
                reason: "delta is below what the window can vouch for",
            });
        }
        // `met` always meets delta; `missed` does not, or is the bottom of the window.
        let (mut missed, mut met) = (0, last);
        while met - missed > 1 {
            let middle = usize::midpoint(missed, met);
            if at(middle) > delta {
                missed = middle;
            } else {
                met = middle;
            }
        }
        let upper = bottom + met as f64 * step;
        let scale = self.log_scale - tilt * (upper - bottom);
        // delta(upper - x) = infinity + e^scale (hockey + carried (1 - e^-x) + hidden e^{tilt x});
        // the last factor is taken at the far end of the cell.
        let hidden = self.hidden * (tilt * step).exp();
        let room =
            ((delta - self.infinity).ln() - scale).exp() - self.hockey[met].max(0.0) - hidden;
        let carried = self.discounted[met] + masses[met];
        let down = if room > 0.0 && carried > room {
            -(-room / carried).ln_1p()
        } else {
            0.0
        };
        let epsilon = (upper - down.min(*step)).max(0.0);
        Ok(Answer {
            epsilon: epsilon * (1.0 + 1e-12),
            allowance: scale.exp() * self.hidden / delta,
        })
    }
}

/// Above this share of delta the allowance for rounding would show in the answer.
const SHARP_ALLOWANCE: f64 = 1e-4;

/// Above this share of delta an answer is refused.
const VOUCHED_ALLOWANCE: f64 = 0.01;

/// The least epsilon of rounds that are already on a grid; a placement that turns out to be off
/// centre is replaced.
pub(super) fn epsilon_of_phases(
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

/// The first of two stages: blocks of equal numbers of rounds, and the leftover rounds of all
/// phases as one more block.
struct Blocks {
    rounds: u64,
    /// Window of one block of each phase that fills one.
    windows: Vec<Option<Window>>,
    /// Window of the leftover rounds, if there are any.
    rest: Option<Window>,
}

impl Blocks {
    fn new(phases: &[Phase<'_>], placement: &Placement) -> Self {
        let total: u64 = phases.iter().map(|phase| phase.count).sum();
        let rounds = if total < BLOCK_ROUNDS {
            1
        } else {
            total.isqrt()
        };
        let mut blocks = Blocks {
            rounds,
            windows: vec![None; phases.len()],
            rest: None,
        };
        if rounds == 1 {
            return blocks;
        }
        // A block's cut is paid once per block.
        let times = (total / rounds) as f64 + 1.0 + phases.len() as f64;
        for (window, phase) in blocks.windows.iter_mut().zip(phases) {
            if phase.count >= rounds {
                let part = [phase.samples.times(rounds)];
                *window = Some(placement.window.for_part(&part, placement.tilt, times));
            }
        }
        let rest: Vec<Samples> = phases
            .iter()
            .filter(|phase| phase.count % rounds > 0)
            .map(|phase| phase.samples.times(phase.count % rounds))
            .collect();
        if !rest.is_empty() {
            blocks.rest = Some(placement.window.for_part(&rest, placement.tilt, times));
        }
        blocks
    }

    /// Whether the fine transforms together are shorter than a single one: not where rare large
    /// losses make a block nearly as wide as the whole.
    fn pay(&self, placement: &Placement) -> bool {
        const GAIN: f64 = 0.6;
        let windows = self.windows.iter().chain([&self.rest]);
        let fine: f64 = windows.flatten().map(|window| window.length).sum();
        self.rounds > 1 && fine < GAIN * placement.window.length
    }

    fn sum(
        &self,
        parts: &[TiltedLosses],
        phases: &[Phase<'_>],
        placement: &Placement,
    ) -> Result<TiltedSum, AccountError> {
        let factor = (self.rounds as f64).sqrt().round() as usize;
        let mut blocks: Vec<(TiltedLosses, u64)> = Vec::new();
        let mut rest: Vec<(&TiltedLosses, u64)> = Vec::new();
        for ((part, phase), window) in parts.iter().zip(phases).zip(&self.windows) {
            if let Some(window) = window {
                let sum = TiltedSum::new(&[(part, self.rounds)], window)?;
                blocks.push((sum.coarsened(factor), phase.count / self.rounds));
            }
            if phase.count % self.rounds > 0 {
                rest.push((part, phase.count % self.rounds));
            }
        }
        if let Some(window) = &self.rest {
            blocks.push((TiltedSum::new(&rest, window)?.coarsened(factor), 1));
        }
        let counted: Vec<(&TiltedLosses, u64)> =
            blocks.iter().map(|(part, count)| (part, *count)).collect();
        TiltedSum::new(&counted, &placement.window)
    }
}
