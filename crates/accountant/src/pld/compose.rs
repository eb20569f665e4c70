//! Composition of rounds on a grid, and the answers read off it.
//!
//! The tilted single-round law is transformed, raised to its power, multiplied over phases and
//! transformed back. Everything that is cut, folded over by the circular transform or rounded
//! raises `delta`:
//!
//! - Folding only adds probability inside the window. What lies above the window is bounded by
//!   Chernoff and added.
//! - The powers are taken of `F - 1`, with the largest atom rolled to the origin, so a round that
//!   almost never moves the loss has an error relative to how much it moves it.
//! - The rounding error of the result has an L1 norm below `sqrt(sum |F^T|^2)` times the error per
//!   bin (Parseval and Cauchy-Schwarz), and enters `delta` with weight at most `1/(1 + lambda)`.
//!
//! Cost: two transforms of the window over the step, and `2 log2 T` products per bin.

use super::distribution::LossDistribution;
use super::plan::{Plan, WINDOW_DEPTH, log_moment};
use super::transform::{Bin, fast_length, forward, inverse};
use crate::account::AccountError;

/// Largest transform: beyond it a finer step is refused and the coarser answer stands.
pub(crate) const LARGEST_TRANSFORM: usize = 1 << 22;

/// Share of `delta` that rounding may add before an answer is refused.
const VOUCHED_SHARE: f64 = 0.01;

/// One round's losses and how often they happen.
pub(crate) struct Phase<'a> {
    pub(crate) losses: &'a LossDistribution,
    pub(crate) count: u64,
}

/// The loss of the whole schedule, tilted, on a window.
pub(crate) struct Composed {
    step: f64,
    tilt: f64,
    /// Loss of the window's first point.
    bottom: f64,
    /// `ln` of the factor from the tilted law back to the true one at the window's bottom.
    log_scale: f64,
    /// Tail sums of the tilted law seen from each point `l`: `sum_{x > l} p(x) e^{-lambda (x-l)}`
    /// times `1 - e^{-(x-l)}` and times `e^{-(x-l)}`.
    hockey: Vec<f64>,
    discounted: Vec<f64>,
    masses: Vec<f64>,
    /// What the rounding may hide at each point, relative to the tilted law.
    rounding: f64,
    /// `ln` of the bound for what lies above the window.
    log_missing: f64,
    infinity: f64,
}

/// An epsilon together with the share of delta that is an allowance for rounding.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer {
    pub(crate) epsilon: f64,
    pub(crate) allowance: f64,
}

impl Composed {
    /// Composes the phases around the plan's centre.
    ///
    /// # Errors
    /// A window that needs more than [`LARGEST_TRANSFORM`] points.
    pub(crate) fn new(phases: &[Phase<'_>], plan: &Plan) -> Result<Composed, AccountError> {
        let step = phases[0].losses.step;
        debug_assert!(phases.iter().all(|phase| phase.losses.step == step));
        let moment = |tilt: f64| -> f64 {
            phases
                .iter()
                .map(|phase| phase.count as f64 * log_moment(phase.losses, tilt))
                .sum()
        };
        let base = moment(plan.tilt);
        let raised = moment(plan.tilt + plan.above) - base;
        let top = (raised + WINDOW_DEPTH) / plan.above;
        let lowered = moment(plan.tilt - plan.below) - base;
        let bottom = -(lowered + WINDOW_DEPTH) / plan.below;
        let points = (top - bottom) / step + 3.0;
        if !(points <= LARGEST_TRANSFORM as f64) {
            return Err(AccountError::Unresolved {
                reason: "the window needs more grid points than a transform may have",
            });
        }
        let length = fast_length(points as usize);

        let spectrum = product_of_powers(phases, plan.tilt, length);
        let offset: f64 = phases
            .iter()
            .map(|phase| phase.count as f64 * phase.losses.offset)
            .sum();
        let bottom_index = ((bottom - offset) / step).floor() as i64;
        let masses = spectrum.masses(length, bottom_index);

        let bottom = offset + bottom_index as f64 * step;
        let above = bottom + length as f64 * step;
        // Chernoff with the wider window; a loss just above epsilon weighs little.
        let log_tail = (raised - plan.above * above).min(0.0);
        let infinity = -phases
            .iter()
            .map(|phase| phase.count as f64 * (-phase.losses.infinity).ln_1p())
            .sum::<f64>()
            .exp_m1();
        let weight = (length as f64 * step + 1.0 / plan.above).min(1.0);
        let mut composed = Composed {
            step,
            tilt: plan.tilt,
            bottom,
            log_scale: base - plan.tilt * bottom,
            hockey: Vec::new(),
            discounted: Vec::new(),
            masses,
            rounding: spectrum.rounding / (1.0 + plan.tilt),
            log_missing: base - plan.tilt * above + log_tail + weight.ln(),
            infinity,
        };
        composed.sum_tails();
        Ok(composed)
    }

    /// `hockey[j]` and `discounted[j]` by one recursion from the top.
    fn sum_tails(&mut self) {
        let length = self.masses.len();
        let ratio = (-self.tilt * self.step).exp();
        let discount = (-self.step).exp();
        let lost = -(-self.step).exp_m1();
        self.hockey = vec![0.0; length];
        self.discounted = vec![0.0; length];
        let (mut hockey, mut discounted) = (0.0, 0.0);
        for index in (0..length).rev() {
            self.hockey[index] = hockey;
            self.discounted[index] = discounted;
            let carried = discounted + self.masses[index];
            hockey = ratio * (hockey + carried * lost);
            discounted = ratio * discount * carried;
        }
    }

    /// All finite probability inside the window and the rest; one up to rounding.
    #[cfg(test)]
    pub(crate) fn total(&self) -> f64 {
        self.masses.iter().sum()
    }

    /// An upper bound of `delta(epsilon)`, and the part of it that is allowance.
    pub(crate) fn delta(&self, epsilon: f64) -> (f64, f64) {
        let position = (epsilon - self.bottom) / self.step;
        if position < 0.0 {
            return (1.0, 0.0);
        }
        let missing = self.log_missing.exp();
        let fixed = self.infinity + missing;
        let scale = self.log_scale - self.tilt * (epsilon - self.bottom);
        let next = position.floor() as usize + 1;
        if next >= self.masses.len() {
            // Markov's bound of the tilted law; the window ends here.
            let bound = (scale - self.tilt.ln_1p()).exp();
            return ((fixed + bound).min(1.0), bound);
        }
        // Seen from epsilon, everything from the next point on lies `gap` further up.
        let gap = self.bottom + next as f64 * self.step - epsilon;
        let carried = self.discounted[next] + self.masses[next];
        let tail = (-self.tilt * gap).exp() * (self.hockey[next] - carried * (-gap).exp_m1());
        let allowance = scale.exp() * self.rounding;
        let finite = (scale + tail.max(0.0).ln()).exp();
        ((fixed + finite + allowance).min(1.0), allowance + missing)
    }

    /// The least epsilon (not below zero) at which the bound of `delta` is met.
    ///
    /// # Errors
    /// More probability at infinity than `delta` allows.
    pub(crate) fn epsilon(&self, delta: f64) -> Result<Answer, AccountError> {
        let at = |index: usize| self.delta(self.bottom + index as f64 * self.step).0;
        let last = self.masses.len() - 1;
        if self.infinity >= delta || at(last) > delta {
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
        let upper = self.bottom + met as f64 * self.step;
        let scale = self.log_scale - self.tilt * (upper - self.bottom);
        // delta(upper - x) = fixed + e^{scale} (hockey + carried (1 - e^{-x}) + rounding e^{tilt x})
        let rounding = self.rounding * (self.tilt * self.step).exp();
        let budget = (delta - self.infinity - self.log_missing.exp()).max(0.0);
        let room = (budget.ln() - scale).exp() - self.hockey[met].max(0.0) - rounding;
        let carried = self.discounted[met] + self.masses[met];
        let down = if room > 0.0 && carried > room {
            -(-room / carried).ln_1p()
        } else {
            0.0
        };
        let epsilon = (upper - down.min(self.step)).max(0.0);
        Ok(Answer {
            epsilon: epsilon * (1.0 + 1e-12),
            allowance: (scale.exp() * rounding + self.log_missing.exp()) / delta,
        })
    }
}

impl Answer {
    /// Whether rounding may have decided the answer.
    pub(crate) fn is_vouched(&self) -> bool {
        self.allowance <= VOUCHED_SHARE
    }
}

/// `F^T` of all phases, minus one, with the origin at `origin` (in steps).
struct Spectrum {
    bins: Vec<Bin>,
    origin: i64,
    /// Bound for the L1 norm of the error after the inverse transform.
    rounding: f64,
}

impl Spectrum {
    /// The masses from `bottom` on.
    fn masses(&self, length: usize, bottom: i64) -> Vec<f64> {
        let mut bins: Vec<Bin> = self.bins.iter().map(|bin| bin + 1.0).collect();
        let mut masses = inverse(&mut bins, length);
        let shift = (bottom - self.origin).rem_euclid(length as i64) as usize;
        masses.rotate_left(shift);
        masses
    }
}

fn product_of_powers(phases: &[Phase<'_>], tilt: f64, length: usize) -> Spectrum {
    let mut product = Spectrum {
        bins: vec![Bin::new(0.0, 0.0); length / 2 + 1],
        origin: 0,
        rounding: 0.0,
    };
    let mut moved = 0.0;
    for phase in phases {
        let (mut values, atom, phase_moved) = tilted(phase.losses, tilt, length);
        let bins = forward(&mut values);
        raise_into(&mut product.bins, &bins, phase.count);
        product.origin += atom * phase.count as i64;
        moved += phase.count as f64 * phase_moved;
    }
    let inner: f64 = product.bins.iter().map(|bin| (bin + 1.0).norm_sqr()).sum();
    let per_bin = f64::EPSILON * (length as f64).log2();
    product.rounding = (2.0 * inner).sqrt() * per_bin * (1.0 + moved);
    product
}

/// The tilted law minus its largest atom, which is rolled to the origin; where that atom was; and
/// the L1 norm of what is left.
fn tilted(losses: &LossDistribution, tilt: f64, length: usize) -> (Vec<f64>, i64, f64) {
    let mut weights = vec![0.0; losses.masses.len()];
    let log_total = log_moment(losses, tilt);
    let (mut atom, mut largest, mut total) = (0, 0.0, 0.0);
    for (index, &mass) in losses.masses.iter().enumerate() {
        if mass > 0.0 {
            let weight = mass * (tilt * losses.loss(index) - log_total).exp();
            weights[index] = weight;
            total += weight;
            if weight > largest {
                (atom, largest) = (index, weight);
            }
        }
    }
    weights[atom] = 0.0;
    let rest: f64 = weights.iter().sum::<f64>() / total;
    let mut values = vec![0.0; length];
    for (index, weight) in weights.iter().enumerate() {
        if *weight > 0.0 {
            let place = (index as i64 - atom as i64).rem_euclid(length as i64) as usize;
            values[place] += weight / total;
        }
    }
    values[0] -= rest;
    (values, losses.first + atom as i64, 2.0 * rest)
}

/// `product <- (1 + product) (1 + base)^count - 1`, by squaring `(1+e)^2 - 1 = e (2 + e)`.
///
/// Blocks of bins keep the working set in registers and let the compiler vectorise.
fn raise_into(product: &mut [Bin], base: &[Bin], count: u64) {
    const BLOCK: usize = 8;
    for (targets, bases) in product.chunks_mut(BLOCK).zip(base.chunks(BLOCK)) {
        let (mut re, mut im) = ([0.0; BLOCK], [0.0; BLOCK]);
        let (mut acc_re, mut acc_im) = ([0.0; BLOCK], [0.0; BLOCK]);
        for (lane, bin) in bases.iter().enumerate() {
            (re[lane], im[lane]) = (bin.re, bin.im);
            (acc_re[lane], acc_im[lane]) = (targets[lane].re, targets[lane].im);
        }
        let mut left = count;
        while left > 0 {
            if left & 1 == 1 {
                for lane in 0..BLOCK {
                    let (x, y, u, v) = (acc_re[lane], acc_im[lane], re[lane], im[lane]);
                    acc_re[lane] = x + u + (x * u - y * v);
                    acc_im[lane] = y + v + (x * v + y * u);
                }
            }
            left >>= 1;
            if left > 0 {
                for lane in 0..BLOCK {
                    let (u, v) = (re[lane], im[lane]);
                    re[lane] = u * (2.0 + u) - v * v;
                    im[lane] = v * (2.0 + 2.0 * u);
                }
            }
        }
        for (lane, target) in targets.iter_mut().enumerate() {
            *target = Bin::new(acc_re[lane], acc_im[lane]);
        }
    }
}
