//! Scalar pairs of Gaussian mixtures: what Proposition 2 of `docs/privacy.md` reduces everything to.
//!
//! `P = sum p_i N(r_i, 1)` against `Q = sum w_j N(-t_j, 1)` with all `r_i, t_j >= 0`. The log-ratio
//! increases in the outcome, so a hockey-stick divergence is a difference of normal tails above one
//! root.

use crate::event::{Adjacency, EventError};

/// How far probabilities may be from summing to one.
const SUM_TOLERANCE: f64 = 1e-9;

/// One mixture: shifts in increasing order with positive probabilities that sum to one.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Side {
    components: Vec<(f64, f64)>,
}

impl Side {
    /// Checks and sorts; equal shifts are merged and impossible ones dropped. A deficit of
    /// probability goes to the largest shift and an excess is taken from the smallest ones, so
    /// rounding in the caller's numbers never lowers a cost.
    pub(crate) fn new(shifts: &[f64], probabilities: &[f64]) -> Result<Self, EventError> {
        if shifts.len() != probabilities.len() || shifts.is_empty() {
            return Err(EventError::Length {
                shifts: shifts.len(),
                probabilities: probabilities.len(),
            });
        }
        let mut components = Vec::with_capacity(shifts.len());
        for (&shift, &probability) in shifts.iter().zip(probabilities) {
            in_range("shift", "[0, infinity)", shift, shift >= 0.0)?;
            in_range(
                "probability",
                "[0, 1]",
                probability,
                (0.0..=1.0).contains(&probability),
            )?;
            if probability > 0.0 {
                components.push((shift, probability));
            }
        }
        let sum: f64 = components.iter().map(|component| component.1).sum();
        if (sum - 1.0).abs() > SUM_TOLERANCE {
            return Err(EventError::ProbabilitySum { sum });
        }
        components.sort_by(|a, b| a.0.total_cmp(&b.0));
        components.dedup_by(|next, kept| {
            let same = next.0 == kept.0;
            kept.1 += if same { next.1 } else { 0.0 };
            same
        });
        make_sum_one(&mut components, sum);
        Ok(Self { components })
    }

    /// The law that never moves.
    pub(crate) fn null() -> Self {
        Self {
            components: vec![(0.0, 1.0)],
        }
    }

    /// (shift, probability), shifts increasing.
    pub(crate) fn components(&self) -> &[(f64, f64)] {
        &self.components
    }

    /// The largest shift.
    pub(crate) fn largest(&self) -> f64 {
        self.components.last().map_or(0.0, |component| component.0)
    }

    /// One shift only.
    pub(crate) fn is_single(&self) -> bool {
        self.components.len() == 1
    }

    /// The shift is zero with certainty.
    pub(crate) fn is_null(&self) -> bool {
        self.largest() == 0.0
    }

    /// A single shift, or nothing with probability `1 - q` and one shift with probability `q`.
    pub(crate) fn is_subsampled(&self) -> bool {
        match self.components() {
            [_] => true,
            [low, _] => low.0 == 0.0,
            _ => false,
        }
    }

    /// All shifts times `factor`.
    pub(crate) fn scaled(&self, factor: f64) -> Self {
        let scale = |&(shift, probability): &(f64, f64)| (shift * factor, probability);
        Self {
            components: self.components.iter().map(scale).collect(),
        }
    }

    /// `log` of the mixture's density at `y` over the standard normal's.
    pub(crate) fn log_density(&self, y: f64) -> f64 {
        let exponent = |shift: f64| shift * (y - 0.5 * shift);
        if let [only] = self.components() {
            return exponent(only.0);
        }
        let exponents = self
            .components
            .iter()
            .map(|component| exponent(component.0));
        let largest = exponents.fold(f64::NEG_INFINITY, f64::max);
        let terms = self.components.iter();
        if largest < 1.0 {
            // Relative to one: shifts far below the noise must not drown in the rounding of 1.
            let sum: f64 = terms.map(|&(shift, p)| p * exponent(shift).exp_m1()).sum();
            sum.ln_1p()
        } else {
            let sum: f64 = terms
                .map(|&(shift, p)| p * (exponent(shift) - largest).exp())
                .sum();
            largest + sum.ln()
        }
    }

    /// [`Side::log_density`] and its derivative, the mean shift given `y`.
    fn log_density_and_slope(&self, y: f64) -> (f64, f64) {
        let exponent = |shift: f64| shift * (y - 0.5 * shift);
        if let [only] = self.components() {
            return (exponent(only.0), only.0);
        }
        let largest = self
            .components
            .iter()
            .map(|component| exponent(component.0));
        let largest = largest.fold(f64::NEG_INFINITY, f64::max);
        let (mut sum, mut moment) = (0.0, 0.0);
        for &(shift, probability) in &self.components {
            let term = probability * (exponent(shift) - largest).exp();
            sum += term;
            moment += shift * term;
        }
        (largest + sum.ln(), moment / sum)
    }

    /// Probability of an outcome above `y` when every shift has the sign `sign`.
    fn tail(&self, y: f64, sign: f64) -> f64 {
        let terms = self.components.iter();
        terms
            .map(|&(shift, p)| p * upper_tail(y - sign * shift))
            .sum()
    }
}

/// A pair `P = numerator` (at positive shifts) against `Q = denominator` (at negative shifts).
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Pair {
    /// The law `P`.
    pub(crate) numerator: Side,
    /// The law `Q`.
    pub(crate) denominator: Side,
}

impl Pair {
    /// The record is in `P` and null in `Q`.
    pub(crate) fn zero_out_remove(mixture: &Side) -> Self {
        Self {
            numerator: mixture.clone(),
            denominator: Side::null(),
        }
    }

    /// The record is null in `P` and present in `Q`.
    pub(crate) fn zero_out_add(mixture: &Side) -> Self {
        Self {
            numerator: Side::null(),
            denominator: mixture.clone(),
        }
    }

    /// Two records that pull in opposite directions.
    pub(crate) fn replace_one(mixture: &Side) -> Self {
        Self {
            numerator: mixture.clone(),
            denominator: mixture.clone(),
        }
    }

    /// The pairs that an adjacency needs, one per direction that is not the mirror of another.
    pub(crate) fn directions(mixture: &Side, adjacency: Adjacency) -> Vec<Self> {
        match adjacency {
            Adjacency::ReplaceOne => vec![Self::replace_one(mixture)],
            Adjacency::ZeroOut => vec![Self::zero_out_remove(mixture), Self::zero_out_add(mixture)],
        }
    }

    /// All shifts times `factor`.
    pub(crate) fn scaled(&self, factor: f64) -> Self {
        Self {
            numerator: self.numerator.scaled(factor),
            denominator: self.denominator.scaled(factor),
        }
    }

    /// The log-ratio `log P/Q` at `y`, increasing in `y`.
    pub(crate) fn loss(&self, y: f64) -> f64 {
        self.numerator.log_density(y) - self.denominator.log_density(-y)
    }

    /// `H_g(P||Q) - max(0, 1 - g)` at `g = e^epsilon`, rounded up: the part of the curve that says
    /// more than "all laws have mass one". Positive for all signs of epsilon.
    ///
    /// `start` is a guess of the outcome where the loss equals epsilon and is replaced by it.
    pub(crate) fn excess(&self, epsilon: f64, start: &mut f64) -> f64 {
        let root = self.root(epsilon, *start);
        *start = root;
        if epsilon < 0.0 {
            // H_g(P||Q) - (1 - g) = g H_{1/g}(Q||P), with mirrored outcomes; only small numbers.
            let (p, q) = (
                self.numerator.tail(-root, -1.0),
                self.denominator.tail(-root, 1.0),
            );
            return difference_above(epsilon.exp() * q, p);
        }
        let (p, q) = (
            self.numerator.tail(root, 1.0),
            self.denominator.tail(root, -1.0),
        );
        difference_above(p, epsilon.exp() * q)
    }

    /// The outcome at which the loss equals `epsilon`, or an outcome beyond which every tail is zero
    /// when the loss does not reach it before.
    fn root(&self, epsilon: f64, start: f64) -> f64 {
        /// So many standard deviations from every mean, tails underflow.
        const FAR: f64 = 38.5;
        let (bottom, top) = (
            -FAR - self.denominator.largest(),
            FAR + self.numerator.largest(),
        );
        let (mut low, mut high) = (bottom, top);
        let mut y = start.clamp(low, high);
        for _ in 0..100 {
            let (log_p, slope_p) = self.numerator.log_density_and_slope(y);
            let (log_q, slope_q) = self.denominator.log_density_and_slope(-y);
            let value = log_p - log_q - epsilon;
            if value > 0.0 {
                high = y;
            } else {
                low = y;
            }
            let newton = y - value / (slope_p + slope_q);
            let next = if newton > low && newton < high {
                newton
            } else if newton >= top && low < top {
                // Is there a root at all? Ask the end once; it then closes the bracket.
                top
            } else if newton <= bottom && high > bottom {
                bottom
            } else {
                0.5 * (low + high)
            };
            // Newton squares the error, and the divergence squares it once more.
            let moved = (next - y).abs();
            y = next;
            if moved < 1e-6 {
                break;
            }
        }
        y
    }
}

/// `P(N(0,1) > y)`.
pub(crate) fn upper_tail(y: f64) -> f64 {
    0.5 * libm::erfc(y * std::f64::consts::FRAC_1_SQRT_2)
}

/// `large - small` for two rounded nonnegative numbers, rounded up by more than their errors and
/// never negative.
pub(crate) fn difference_above(large: f64, small: f64) -> f64 {
    (large - small).max(0.0) + 64.0 * f64::EPSILON * large
}

fn in_range(
    name: &'static str,
    range: &'static str,
    value: f64,
    holds: bool,
) -> Result<(), EventError> {
    if holds && value.is_finite() {
        return Ok(());
    }
    Err(EventError::OutOfRange { name, range, value })
}

/// Moves the (tiny) difference to one onto the component where it costs most.
fn make_sum_one(components: &mut [(f64, f64)], sum: f64) {
    let mut excess = sum - 1.0;
    if excess < 0.0 {
        if let Some(last) = components.last_mut() {
            last.1 -= excess;
        }
        return;
    }
    for component in components {
        let taken = excess.min(component.1);
        component.1 -= taken;
        excess -= taken;
    }
}
