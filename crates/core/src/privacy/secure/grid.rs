//! Records on the integer grid: `n = trunc(v / (divisor * step))`, `step = 2^exponent`, with a norm
//! that is checked.
//!
//! A record contributes `v / divisor` to the estimate, `|v| <= clip`. What one record can change is
//! therefore `clip / divisor`, in grid steps `clip / (divisor * step)`; the accountant divides it
//! by the noise. [`Grid::quantize`] guarantees, for every input whatever, in integers,
//!
//! ```text
//! sum n_j^2 <= floor((clip / (divisor * step))^2)
//! ```
//!
//! with the right side computed from the exact values of the floating-point parameters. Hence,
//! exactly and not up to rounding: removing a record moves the integer sum by at most
//! `clip / divisor`, replacing it by at most twice that. Clipping done before in floating point is
//! thus only a matter of utility: a record that comes out too long is shrunk here. Not-a-number and
//! infinite coordinates become zero. What a record becomes depends on nothing but the record.
//!
//! *Sums.* Integer sums do not depend on their order as long as they do not saturate, which takes
//! more than [`Grid::capacity`] records. Beyond, the bounds still hold: adding with saturation
//! never moves two sums further apart, coordinate by coordinate, so the records after the differing
//! one cannot widen the gap. (With a floating-point sum they can: Casacuberta et al. 2022.)
//!
//! *Bias.* Truncation moves a record by less than `divisor * step` per coordinate, toward zero, so
//! by less than `sqrt(dimension) * divisor * step` in norm: [`Grid::truncation_bound`].
//! [`GridPlan`] makes it at most `2^-20` of the clip, unless the noise would then exceed `2^44`
//! steps; and it refuses more than `2^-10`. Nearest rounding would have no such bias, but can
//! lengthen a record, by up to `sqrt(dimension) * step / 2`.
//!
//! *Estimators of two terms* (a clipped difference over the batch size and a clipped gradient over
//! the number of records) use two grids of the same step, so that their integers add up; the norm
//! of the sum is at most the sum of the bounds. Without a clip of the difference, a whole number
//! `r = records / batch` lets the full-batch integers `h` stand in the difference as `r h`
//! ([`Grid::add_multiple`]): a sampled record then moves the sum by `|g - (r - 1) h|`, within
//! `(2 - rate) clip / batch` exactly, and one that is not sampled by `|h|`.
//!
//! *Only what is given is checked.* When just the selected coordinates of a record are quantised,
//! the check covers these only; it does not replace a bound on the whole record where an argument
//! needs one.
//!
//! Cost: about 3 ns per coordinate, no allocation; three times that for a record that has to be
//! shortened, so the time is not independent of the data.

use super::big_integer::BigInteger;
use super::{Dyadic, NoiseError, RoundedGaussian, power_of_two};

/// The noise measures at least this many steps (base-two logarithm).
const MINIMUM_NOISE_LOG2: i32 = 20;
/// A plan refines the grid for the sake of the bias no further than this.
const MAXIMUM_NOISE_LOG2: i32 = 44;
/// Bias a plan aims at, relative to the clip.
const BIAS_TARGET_LOG2: i32 = -20;
/// Bias above which there is no plan.
const BIAS_LIMIT_LOG2: i32 = -10;
/// A record at the clip measures at most this many steps: floats can express its integers, and
/// thousands of them add up.
const MAXIMUM_BOUND_LOG2: i32 = 52;
/// Steps whose reciprocals are normal numbers too.
const EXPONENT_RANGE: (i32, i32) = (-1021, 1021);

/// One term of an estimator: records clipped to `clip`, summed, divided by `divisor`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TermBound {
    /// Largest norm of a record's contribution.
    pub clip: f64,
    /// The public constant its sum is divided by: the expected batch size, or the number of
    /// records.
    pub divisor: f64,
}

/// The grids of an estimator's terms, all of one step, and the noise on that grid.
#[derive(Debug, Clone)]
pub struct GridPlan {
    grids: Vec<Grid>,
    noise: RoundedGaussian,
    exponent: i32,
}

impl GridPlan {
    /// Picks the coarsest step that leaves the noise `sigma` at least `2^20` steps and every term's
    /// truncation error below `2^-20` of its clip; see the module for what happens when the latter
    /// would take more than `2^44` steps.
    ///
    /// # Errors
    ///
    /// [`NoiseError::TooCoarse`] if the noise is so large against a term that no grid serves both,
    /// and the errors of [`Grid::with_exponent`].
    pub fn new(sigma: f64, dimension: usize, terms: &[TermBound]) -> Result<Self, NoiseError> {
        let exponent = choose_exponent(sigma, dimension, terms)?;
        let grids: Result<Vec<_>, _> = terms
            .iter()
            .map(|term| Grid::with_exponent(term.clip, term.divisor, exponent))
            .collect();
        Ok(Self {
            grids: grids?,
            noise: RoundedGaussian::new(sigma, exponent)?,
            exponent,
        })
    }

    /// One grid per term, in the order given.
    pub fn grids(&self) -> &[Grid] {
        &self.grids
    }

    /// The noise on this grid.
    pub fn noise(&self) -> &RoundedGaussian {
        &self.noise
    }

    /// The step is two to this power.
    pub fn exponent(&self) -> i32 {
        self.exponent
    }
}

/// The integer grid of one term; see the module.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Grid {
    divisor: f64,
    exponent: i32,
    step: f64,
    /// `1 / (divisor * step)`, rounded.
    steps_per_unit: f64,
    /// `clip / (divisor * step)`, rounded: a target for shrinking, never a bound.
    bound: f64,
    /// `floor((clip / (divisor * step))^2)`, exact.
    bound_squared: u128,
}

impl Grid {
    /// The grid of an estimator of one term; see [`GridPlan::new`].
    ///
    /// # Errors
    ///
    /// Those of [`GridPlan::new`].
    pub fn new(clip: f64, divisor: f64, sigma: f64, dimension: usize) -> Result<Self, NoiseError> {
        let exponent = choose_exponent(sigma, dimension, &[TermBound { clip, divisor }])?;
        Self::with_exponent(clip, divisor, exponent)
    }

    /// The grid of step `2^exponent`, chosen elsewhere.
    ///
    /// # Errors
    ///
    /// [`NoiseError::NotPositive`] for a clip or divisor that is not a number above zero,
    /// [`NoiseError::GridExponent`] for an extreme step, [`NoiseError::BoundRange`] if a record at
    /// the clip measures less than one step or more than `2^52`.
    pub fn with_exponent(clip: f64, divisor: f64, exponent: i32) -> Result<Self, NoiseError> {
        let exact_clip = Dyadic::new("clip", clip)?;
        let exact_divisor = Dyadic::new("divisor", divisor)?;
        let (minimum, maximum) = EXPONENT_RANGE;
        if !(minimum..=maximum).contains(&exponent) {
            return Err(NoiseError::GridExponent {
                minimum,
                maximum,
                found: exponent,
            });
        }
        // The ratio is within a factor of two of 2^log2; out of range it would overflow what
        // follows.
        let log2 = exact_clip.log2_floor() - exact_divisor.log2_floor() - exponent;
        let bound = libm::ldexp(
            exact_clip.mantissa as f64 / exact_divisor.mantissa as f64,
            log2,
        );
        if !(0.5..=power_of_two(MAXIMUM_BOUND_LOG2 + 1)).contains(&bound) {
            return Err(bound_range(bound));
        }
        let bound_squared = squared_ratio_floor(exact_clip, exact_divisor, exponent)
            .filter(|bound| (1..=1 << (2 * MAXIMUM_BOUND_LOG2)).contains(bound))
            .ok_or(bound_range(bound))?;
        Ok(Self {
            divisor,
            exponent,
            step: power_of_two(exponent),
            steps_per_unit: power_of_two(-exponent) / divisor,
            bound,
            bound_squared,
        })
    }

    /// The step is two to this power.
    pub fn exponent(&self) -> i32 {
        self.exponent
    }

    /// The largest squared norm of a quantised record: `floor((clip / (divisor * step))^2)`,
    /// exactly.
    pub fn bound_squared(&self) -> u128 {
        self.bound_squared
    }

    /// How many records can be added to zero with no risk of saturation.
    pub fn capacity(&self) -> u64 {
        // The next integer up bounds every coordinate.
        i64::MAX as u64 / (self.bound_squared.isqrt() as u64 + 1)
    }

    /// Truncation moves a record of this dimension by less than this, in the units of the record.
    pub fn truncation_bound(&self, dimension: usize) -> f64 {
        (dimension as f64).sqrt() * self.divisor * self.step
    }

    /// Quantises one record's contribution `values`, in the units of the clip, into `out`.
    ///
    /// Whatever the values, the squared norm of `out` is at most [`Self::bound_squared`]
    /// afterwards. A record that is too long is shortened to the bound, keeping its direction.
    ///
    /// # Panics
    ///
    /// If the lengths differ.
    pub fn quantize<T: Copy + Into<f64>>(&self, values: &[T], out: &mut [i64]) {
        assert_eq!(values.len(), out.len(), "one integer per value");
        let mut squares = 0u128;
        for (&value, integer) in values.iter().zip(&mut *out) {
            // Finite values whose product overflows saturate here, fail the check, and are
            // shortened below.
            *integer = truncate(finite(value) * self.steps_per_unit);
            squares = squares.saturating_add(square(*integer));
        }
        if squares > self.bound_squared {
            self.shorten(values, out);
        }
    }

    /// Adds a quantised record (or the noise) to a sum.
    ///
    /// # Panics
    ///
    /// If the lengths differ.
    pub fn add(&self, record: &[i64], sum: &mut [i64]) {
        assert_eq!(record.len(), sum.len(), "one sum per integer");
        for (total, &integer) in sum.iter_mut().zip(record) {
            *total = total.saturating_add(integer);
        }
    }

    /// Adds `factor` times a quantised record to a sum.
    ///
    /// # Panics
    ///
    /// If the lengths differ.
    pub fn add_multiple(&self, record: &[i64], factor: i64, sum: &mut [i64]) {
        assert_eq!(record.len(), sum.len(), "one sum per integer");
        for (total, &integer) in sum.iter_mut().zip(record) {
            *total = total.saturating_add(integer.saturating_mul(factor));
        }
    }

    /// The noised sum in the units of the estimate; exact below `2^53` steps.
    ///
    /// # Panics
    ///
    /// If the lengths differ.
    pub fn to_f64(&self, noised: &[i64], out: &mut [f64]) {
        assert_eq!(noised.len(), out.len(), "one value per integer");
        for (value, &integer) in out.iter_mut().zip(noised) {
            *value = integer as f64 * self.step;
        }
    }

    /// The noised sum in the units of the estimate, rounded to single precision.
    ///
    /// # Panics
    ///
    /// If the lengths differ.
    pub fn to_f32(&self, noised: &[i64], out: &mut [f32]) {
        assert_eq!(noised.len(), out.len(), "one value per integer");
        for (value, &integer) in out.iter_mut().zip(noised) {
            *value = (integer as f64 * self.step) as f32;
        }
    }

    /// Quantises a record that is too long as `bound * v / |v|`, and slightly less until it fits.
    fn shorten<T: Copy + Into<f64>>(&self, values: &[T], out: &mut [i64]) {
        // Divided by the largest coordinate nothing overflows, and the norm lies between 1 and
        // sqrt(dimension).
        let largest = (values.iter()).fold(0.0f64, |most, &value| most.max(finite(value).abs()));
        let squares: f64 = values
            .iter()
            .map(|&value| (finite(value) / largest).powi(2))
            .sum();
        let target = self.bound / squares.sqrt();
        // Relative errors above are below dimension * 2^-52: the first tries (the very first with
        // no slack at all) serve but for absurd dimensions.
        for slack_log2 in [-60, -50, -40, -30, -20, -10, -1] {
            let target = target * (1.0 - power_of_two(slack_log2));
            let mut squares = 0u128;
            for (&value, integer) in values.iter().zip(&mut *out) {
                *integer = truncate(finite(value) / largest * target);
                squares = squares.saturating_add(square(*integer));
            }
            if squares <= self.bound_squared {
                return;
            }
        }
        out.fill(0);
    }
}

/// The coarsest admissible step's exponent; see [`GridPlan::new`].
fn choose_exponent(sigma: f64, dimension: usize, terms: &[TermBound]) -> Result<i32, NoiseError> {
    if terms.is_empty() {
        return Err(NoiseError::Empty { name: "term" });
    }
    if dimension == 0 {
        return Err(NoiseError::Empty { name: "coordinate" });
    }
    // 2^noise <= sigma < 2^(noise + 1).
    let noise = Dyadic::new("sigma", sigma)?.log2_floor();
    let mut wanted = noise - MINIMUM_NOISE_LOG2;
    // Rounded up to a power of two, so that what follows is a comparison of exponents.
    let dimension_log2 = (dimension as f64).sqrt().log2().ceil() as i32;
    let term_log2 = |term: &TermBound| -> Result<i32, NoiseError> {
        let clip = Dyadic::new("clip", term.clip)?.log2_floor();
        let divisor = Dyadic::new("divisor", term.divisor)?.log2_floor() + 1;
        // 2^this <= clip / (divisor * sqrt(dimension))
        Ok(clip - divisor - dimension_log2)
    };
    for term in terms {
        wanted = wanted.min(term_log2(term)? + BIAS_TARGET_LOG2);
    }
    let exponent = wanted.max(noise + 1 - MAXIMUM_NOISE_LOG2);
    for term in terms {
        let bias_log2 = exponent - term_log2(term)?;
        if bias_log2 > BIAS_LIMIT_LOG2 {
            return Err(NoiseError::TooCoarse {
                expected: libm::ldexp(1.0, BIAS_LIMIT_LOG2),
                found: libm::ldexp(1.0, bias_log2),
                clip: term.clip,
                divisor: term.divisor,
            });
        }
    }
    Ok(exponent)
}

/// `floor((clip / (divisor * 2^exponent))^2)` in integers; nothing beyond 128 bits.
fn squared_ratio_floor(clip: Dyadic, divisor: Dyadic, exponent: i32) -> Option<u128> {
    let square = |value: Dyadic| BigInteger::from(u128::from(value.mantissa).pow(2));
    let shift = 2 * (clip.exponent - divisor.exponent - exponent);
    let (mut numerator, mut denominator) = (square(clip), square(divisor));
    if shift >= 0 {
        numerator = numerator.shifted_left(shift.unsigned_abs());
    } else {
        denominator = denominator.shifted_left(shift.unsigned_abs());
    }
    numerator.quotient_floor(&denominator)
}

fn bound_range(found: f64) -> NoiseError {
    NoiseError::BoundRange {
        maximum_log2: MAXIMUM_BOUND_LOG2,
        found,
    }
}

/// The value, or zero for what is no number or infinite.
#[inline]
fn finite<T: Into<f64>>(value: T) -> f64 {
    let value = value.into();
    if value.is_finite() { value } else { 0.0 }
}

/// Toward zero, saturating.
#[inline]
fn truncate(value: f64) -> i64 {
    value as i64
}

/// At most `2^126`.
#[inline]
fn square(integer: i64) -> u128 {
    let magnitude = u128::from(integer.unsigned_abs());
    magnitude * magnitude
}

#[cfg(test)]
mod tests;
