//! The rounded Gaussian `round(N(0, s^2))` on the integers, `s = sigma / 2^grid_exponent`, drawn
//! exactly.
//!
//! # Law
//!
//! The output has the law of an ideal real normal number, times `s`, rounded to the nearest
//! integer, conditioned on `|N / s| < 69`. That condition is the only residual: statistical
//! distance below `2^-3400` per draw, given ideal random bits. There is no other: no table is
//! rounded, no test is decided within an error.
//!
//! # Why it is exact
//!
//! 1. *Rejection.* A point is drawn uniformly from a set of boxes (file `rejection_table.rs`): they
//!    have equal areas and equal probabilities; inside a box the position `x` and the height are
//!    independent and uniform. The boxes cover the region under `f(x) = exp(-x^2/2)`,
//!    `0 <= x < 69`. A point is kept if and only if it is under `f`, so a kept `x` has a density
//!    proportional to `f`: it is `|N(0,1)|` below 69. Kept or not, attempts are independent.
//! 2. *Decisions on real numbers.* `x` and the height have endless binary digits, of which a prefix
//!    has been drawn; the digits that follow are independent of it and uniform. Each question (is
//!    the point under the curve? which integer is nearest?) is answered only when all continuations
//!    of the prefixes agree; otherwise digits are drawn, and stay part of the number for the
//!    questions that follow. The answers are thus those that the full real numbers would have
//!    given. Two continuations disagree for ever with probability zero (the point on the curve,
//!    `s x` halfway between integers), so it ends.
//! 3. *Rounding.* `s` is a dyadic number, `mantissa * 2^exponent` without error, so `s x + 1/2` is
//!    between two integers that are computed exactly, and so is its floor. Rounding `|N|` and then
//!    drawing the sign is rounding `N`, as ties have probability zero.
//! 4. The sign is one bit, independent of all others.
//!
//! Since `x + round(N) = round(x + N)` for an integer `x`, adding this noise to integers is
//! post-processing of the continuous Gaussian mechanism; see [`super`].
//!
//! # Range and cost
//!
//! `1 <= s <= 2^48`; outputs are below `69 s + 1 < 2^55` in absolute value, so overflow is
//! impossible. One 64-bit word per draw (12 bits of slot, a sign, 51 digits of `x`) suffices in 93
//! % of the attempts, and 96 % of the attempts are kept: 1.11 words per draw on average, about one
//! and a half times the cost of a floating-point normal. The alternative of exact von Neumann
//! trials (Karney 2013) has the same law, needs about sixteen words per draw, and no table.
//!
//! # What it does not do
//!
//! It is not constant-time: attempts, tests and table look-ups depend on the noise (never on data,
//! which it does not see). Draw the whole round in one call before touching the records.

use rand::CryptoRng;

use super::big_integer::BigInteger;
use super::rejection_table::{FRACTION_BITS, POSITION_BITS, Prefix, RejectionTable, Slot};
use super::{Dyadic, NoiseError};

/// Largest scale: keeps all products of the common path below `2^128`.
const MAXIMUM_SCALE_LOG2: i32 = 48;
/// Zeros appended to the mantissa: they make the shift at least `56 + 52 - 48 + 4 = 64`.
const SPARE_BITS: u32 = 4;

/// Exact sampler of `round(N(0, s^2))`; see the module.
#[derive(Clone, Copy)]
pub struct RoundedGaussian {
    table: &'static RejectionTable,
    /// `s = mantissa / 2^(shift - 56)`: a position of 56 digits times the mantissa has `shift`
    /// digits after the point.
    mantissa: u64,
    /// At least 64, so that the common path shifts one word only.
    shift: u32,
    scale: f64,
}

impl RoundedGaussian {
    /// Noise of standard deviation `sigma` on the grid of step `2^grid_exponent`.
    ///
    /// # Errors
    ///
    /// [`NoiseError::NotPositive`] for a `sigma` that is not a number above zero,
    /// [`NoiseError::NoiseScale`] if it is below one step or above `2^48` steps.
    pub fn new(sigma: f64, grid_exponent: i32) -> Result<Self, NoiseError> {
        let dyadic = Dyadic::new("sigma", sigma)?;
        // i64: the exponent of the grid is any i32.
        let log2 = i64::from(dyadic.log2_floor()) - i64::from(grid_exponent);
        let is_power = dyadic.mantissa == 1 << 52;
        let maximum = i64::from(MAXIMUM_SCALE_LOG2);
        if log2 < 0 || log2 > maximum || (log2 == maximum && !is_power) {
            return Err(NoiseError::NoiseScale {
                maximum_log2: MAXIMUM_SCALE_LOG2,
                found: libm::ldexp(sigma, grid_exponent.saturating_neg()),
            });
        }
        Ok(Self {
            table: RejectionTable::get(),
            mantissa: dyadic.mantissa << SPARE_BITS,
            // s = mantissa * 2^(log2 - 52), so s x = mantissa * head / 2^(56 + 52 - log2).
            shift: POSITION_BITS + 52 - log2 as u32 + SPARE_BITS,
            scale: dyadic.mantissa as f64 * super::power_of_two(log2 as i32 - 52),
        })
    }

    /// Standard deviation of the Gaussian before rounding, in grid steps.
    pub fn scale(&self) -> f64 {
        self.scale
    }

    /// Fills `out` with independent draws.
    ///
    /// The words taken from the generator, in order, are part of the contract (a seed gives the
    /// same noise in every version): per attempt one word; a crossed box takes one more, the tail
    /// three more; an undecided test takes one for the position and one for the height, an
    /// undecided rounding one for the position, until decided.
    pub fn fill<R: CryptoRng + ?Sized>(&self, rng: &mut R, out: &mut [i64]) {
        for value in out {
            *value = self.draw(rng);
        }
    }

    #[inline]
    fn draw<R: CryptoRng + ?Sized>(&self, rng: &mut R) -> i64 {
        loop {
            let word = rng.next_u64();
            let fraction = word & ((1 << FRACTION_BITS) - 1);
            let negative = (word >> FRACTION_BITS & 1) as i64;
            let magnitude = match self.table.slot(word) {
                Slot::Inside { cell } => {
                    let head = cell << FRACTION_BITS | fraction;
                    (self.round_head(head))
                        .unwrap_or_else(|| self.round(rng, Prefix::new(head, POSITION_BITS)))
                }
                Slot::Empty => continue,
                slot => match self.draw_outside(rng, slot, fraction) {
                    Some(magnitude) => magnitude,
                    None => continue,
                },
            };
            // Without a branch, which would be mispredicted every other time.
            return (magnitude ^ -negative) + negative;
        }
    }

    /// The slots that need a test, kept out of the common path.
    #[cold]
    fn draw_outside<R: CryptoRng + ?Sized>(
        &self,
        rng: &mut R,
        slot: Slot,
        fraction: u64,
    ) -> Option<i64> {
        let position = match slot {
            Slot::Crossed { cell, level } => self.table.try_crossed(rng, cell, level, fraction),
            Slot::Tail => RejectionTable::try_tail(rng),
            Slot::Inside { .. } | Slot::Empty => None,
        }?;
        Some(self.round(rng, position))
    }

    /// The integer nearest to `s x` for all `x` in `[head, head + 1) / 2^56`, or nothing if there
    /// are two.
    #[inline]
    fn round_head(&self, head: u64) -> Option<i64> {
        // head < 69 * 2^56 < 2^63, mantissa < 2^57 and 64 <= shift <= 112: all below 2^121.
        let mantissa = u128::from(self.mantissa);
        let lowest = mantissa * u128::from(head) + (1u128 << (self.shift - 1));
        // The interval is open above, so its last multiple of 2^-shift decides.
        let highest = lowest + (mantissa - 1);
        let floor = |value: u128| ((value >> 64) as u64) >> (self.shift - 64);
        (floor(highest) == floor(lowest)).then_some(floor(lowest) as i64)
    }

    /// The integer nearest to `s x`, drawing digits of `x` until it is known.
    fn round<R: CryptoRng + ?Sized>(&self, rng: &mut R, mut position: Prefix) -> i64 {
        if let Some(rounded) = position.head_alone().and_then(|head| self.round_head(head)) {
            return rounded;
        }
        let mantissa = BigInteger::from(u128::from(self.mantissa));
        let last = BigInteger::from(u128::from(self.mantissa - 1));
        loop {
            let shift = self.shift + (position.bits() - POSITION_BITS);
            let half = BigInteger::power_of_two(shift - 1);
            let lowest = mantissa.times(&position.digits()).plus(&half);
            let rounded = lowest.shifted_right(shift);
            if lowest.plus(&last).shifted_right(shift) == rounded {
                let rounded = rounded.to_u128();
                return rounded.expect("below 69 * 2^48 + 1") as i64;
            }
            position.extend(rng);
        }
    }
}

impl std::fmt::Debug for RoundedGaussian {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("RoundedGaussian")
            .field("scale", &self.scale)
            .finish()
    }
}

#[cfg(test)]
mod tests;
