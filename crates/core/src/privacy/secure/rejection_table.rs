//! Rejection sampling of `|N(0, 1)|`: a table of boxes of equal area that cover the region under
//! the curve `f(x) = exp(-x^2 / 2)`, and an exact test whether a point is under the curve.
//!
//! The half line is cut into cells of width `1/32`, the height `[0, 1]` into 98 levels. A box is
//! one cell by one level. A slot of the table holds one box. There is a slot for every box left of
//! `x = 5` that reaches below the curve, and one tail slot, of the same area, for all `x >= 5`:
//! rectangle `j = 0..64` of the tail covers `[5 + j, 6 + j)` and has `2^-(j+1)` of the slot's area,
//! hence the height `2^-(j+6)` levels, which is above the curve since `98 f(5) < 2^-6` and
//! `f(x + 1) / f(x) < 1/2` there. With 4096 slots, 12 random bits choose one; the few slots left
//! over are empty. A box that is wholly under the curve needs no further test: that is 93 % of the
//! slots.
//!
//! For the others the test is whether `level + w < 98 exp(-x^2 / 2)`, where `x` and `w` are real
//! numbers known as prefixes of endless random digits. [`RejectionTable::under_curve`] answers it
//! by enclosing both sides: first with 64-bit words, where the two sides overlap less than once in
//! `2^44` tests, then with longer and longer prefixes until they no longer do. No answer is ever
//! given while the sides overlap, so no rounding error can reach the law of the sampler.

use std::sync::LazyLock;

use rand::CryptoRng;
use zeroize::Zeroize;

use super::big_integer::BigInteger;
use super::exponential::{exponential_lower, exponential_upper};

/// Random bits that choose a slot.
pub(super) const SLOT_BITS: u32 = 12;
/// Binary digits of the position within a cell that come with the first word.
pub(super) const FRACTION_BITS: u32 = 51;
/// Binary digits of a position after the point: `x = head / 2^56`, as cells have a width of `2^-5`.
pub(super) const POSITION_BITS: u32 = FRACTION_BITS + CELL_WIDTH_LOG2;

const CELL_WIDTH_LOG2: u32 = 5;
/// Where the boxes end and the tail begins.
const TAIL_START: u64 = 5;
const CELLS: usize = (TAIL_START << CELL_WIDTH_LOG2) as usize;
/// The largest number of levels whose boxes fit the slots.
const LEVELS: u64 = 98;
const TAIL_RECTANGLES: u32 = 64;
/// Levels are compared in units of `2^-57`: `98 * 2^57 < 2^64`.
const LEVEL_BITS: u32 = 57;

/// What a slot of the table holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Slot {
    /// A box wholly under the curve.
    Inside { cell: u64 },
    /// A box that the curve crosses (or may cross).
    Crossed { cell: u64, level: u64 },
    /// All `x` beyond the boxes.
    Tail,
    /// Nothing: draw again.
    Empty,
}

const TAIL_CODE: u16 = CELLS as u16;
const EMPTY_CODE: u16 = TAIL_CODE + 1;
const INSIDE_FLAG: u16 = 1 << 15;

/// A real number known as the beginning of its binary expansion; the rest is uniform and drawn on
/// demand.
pub(super) struct Prefix {
    head: u64,
    head_bits: u32,
    rest: Vec<u64>,
}

impl Prefix {
    /// The number lies in `[head, head + 1) / 2^bits`.
    pub(super) fn new(head: u64, bits: u32) -> Self {
        Self {
            head,
            head_bits: bits,
            rest: Vec::new(),
        }
    }

    pub(super) fn extend<R: CryptoRng + ?Sized>(&mut self, rng: &mut R) {
        self.rest.push(rng.next_u64());
    }

    /// The head, as long as nothing follows it.
    pub(super) fn head_alone(&self) -> Option<u64> {
        self.rest.is_empty().then_some(self.head)
    }

    /// Digits after the point.
    pub(super) fn bits(&self) -> u32 {
        self.head_bits + 64 * self.rest.len() as u32
    }

    /// All digits as one number.
    pub(super) fn digits(&self) -> BigInteger {
        let head = BigInteger::from(u128::from(self.head));
        self.rest.iter().fold(head, |digits, &word| {
            digits
                .shifted_left(64)
                .plus(&BigInteger::from(u128::from(word)))
        })
    }
}

impl Drop for Prefix {
    fn drop(&mut self) {
        self.head.zeroize();
        self.rest.zeroize();
    }
}

/// The table of slots (8 KiB) and the heights of the curve at the cell borders.
pub(super) struct RejectionTable {
    slots: Vec<u16>,
    /// Lower and upper bounds of `98 f(cell / 32)` in units of `2^-57` levels.
    heights: Vec<(u64, u64)>,
}

static TABLE: LazyLock<RejectionTable> = LazyLock::new(RejectionTable::build);

impl RejectionTable {
    /// The table, built at its first use (about a millisecond).
    pub(super) fn get() -> &'static Self {
        &TABLE
    }

    fn build() -> Self {
        let heights: Vec<_> = (0..=CELLS).map(height_bounds).collect();
        let mut slots = Vec::with_capacity(1 << SLOT_BITS);
        for cell in 0..CELLS {
            for level in 0..LEVELS {
                // The curve falls: a cell is highest at its left border and lowest at its right
                // one.
                if level << LEVEL_BITS >= heights[cell].1 {
                    break;
                }
                let inside = (level + 1) << LEVEL_BITS <= heights[cell + 1].0;
                let code = cell as u16 | (level as u16) << 8;
                slots.push(if inside { code | INSIDE_FLAG } else { code });
            }
        }
        slots.push(TAIL_CODE);
        // Checked by a test: the boxes are the same in every build.
        debug_assert!(slots.len() <= 1 << SLOT_BITS);
        slots.resize(1 << SLOT_BITS, EMPTY_CODE);
        Self { slots, heights }
    }

    /// The slot that the first [`SLOT_BITS`] bits of a word choose.
    #[inline]
    pub(super) fn slot(&self, word: u64) -> Slot {
        let code = self.slots[(word >> (64 - SLOT_BITS)) as usize];
        let cell = u64::from(code & 0xff);
        if code & INSIDE_FLAG != 0 {
            Slot::Inside { cell }
        } else if code == TAIL_CODE {
            Slot::Tail
        } else if code == EMPTY_CODE {
            Slot::Empty
        } else {
            Slot::Crossed {
                cell,
                level: u64::from(code >> 8),
            }
        }
    }

    /// Tries a point of a crossed box; its position if it lies under the curve. Draws one word,
    /// rarely more.
    pub(super) fn try_crossed<R: CryptoRng + ?Sized>(
        &self,
        rng: &mut R,
        cell: u64,
        level: u64,
        fraction: u64,
    ) -> Option<Prefix> {
        let mut position = Prefix::new(cell << FRACTION_BITS | fraction, POSITION_BITS);
        let height = rng.next_u64();
        let under = match self.under_curve(cell, fraction, level, height) {
            Some(under) => under,
            None => under_curve_exactly(
                rng,
                &mut position,
                level,
                &mut Prefix::new(height, 64),
                &BigInteger::from(u128::from(LEVELS)),
            ),
        };
        under.then_some(position)
    }

    /// Tries a point of the tail; its position if it lies under the curve. Draws three words,
    /// rarely more.
    pub(super) fn try_tail<R: CryptoRng + ?Sized>(rng: &mut R) -> Option<Prefix> {
        // The number of leading zeros of endless digits is j with probability 2^-(j+1).
        let rectangle = rng.next_u64().leading_zeros();
        if rectangle >= TAIL_RECTANGLES {
            return None;
        }
        // 5 bits for the cell, 51 within it: uniform on the rectangle's unit of width.
        let offset = rng.next_u64() >> (64 - POSITION_BITS);
        let left = (TAIL_START + u64::from(rectangle)) << POSITION_BITS;
        let mut position = Prefix::new(left | offset, POSITION_BITS);
        let mut height = Prefix::new(rng.next_u64(), 64);
        // w 2^-(j+6) < 98 f(x), both sides multiplied.
        let bound =
            BigInteger::from(u128::from(LEVELS)).shifted_left(rectangle + 1 + CELL_WIDTH_LOG2);
        under_curve_exactly(rng, &mut position, 0, &mut height, &bound).then_some(position)
    }

    /// Whether `level + w < 98 f(x)` for all `x` in `(cell + [fraction, fraction + 1) / 2^51) / 32`
    /// and all `w` in `[height, height + 1) / 2^64`, or for none of them; `None` if the answer is
    /// not the same for all.
    ///
    /// With `u` the position within the cell, the test is `(level + w) e^d < 98 f(cell / 32)` for
    /// `d = (2 cell u + u^2) / 2^11`, a sum of positive terms again: the lower bound rounds down,
    /// the upper one up.
    fn under_curve(&self, cell: u64, fraction: u64, level: u64, height: u64) -> Option<bool> {
        // d < 0.16 in units of 2^-64; the products below stay under 2^(52 + 61).
        let exponent = |fraction: u64| {
            let twice = u128::from(cell << (FRACTION_BITS + 1));
            (u128::from(fraction) * (twice + u128::from(fraction))) >> (2 * FRACTION_BITS + 11 - 64)
        };
        let growth_lower = growth_lower(exponent(fraction) as u64);
        let growth_upper = growth_upper(exponent(fraction + 1) as u64 + 1);
        let y = level << LEVEL_BITS | height >> (64 - LEVEL_BITS);
        let (curve_lower, curve_upper) = self.heights[cell as usize];
        // Left sides in 2^-(57 + 62): 98 * 1.18 * 2^119 < 2^126.
        let scaled = |curve: u64| u128::from(curve) << GROWTH_BITS;
        if u128::from(y + 1) * u128::from(growth_upper) <= scaled(curve_lower) {
            Some(true)
        } else if u128::from(y) * u128::from(growth_lower) >= scaled(curve_upper) {
            Some(false)
        } else {
            None
        }
    }
}

/// Bounds of `98 exp(-(cell / 32)^2 / 2)` in units of `2^-57`.
fn height_bounds(cell: usize) -> (u64, u64) {
    const PRECISION: u32 = 192;
    let square = BigInteger::from((cell * cell) as u128);
    let scale = 2 * CELL_WIDTH_LOG2 + 1;
    let numerator = BigInteger::from(u128::from(LEVELS)).shifted_left(LEVEL_BITS + PRECISION);
    let quotient = |growth: &BigInteger| {
        let quotient = numerator.quotient_floor(growth);
        quotient.expect("e^t >= 1, so the quotient is at most 98 * 2^57") as u64
    };
    let lower = quotient(&exponential_upper(&square, scale, PRECISION));
    let upper = quotient(&exponential_lower(&square, scale, PRECISION)) + 1;
    (lower, upper)
}

/// Whether `(level + w) e^(x^2/2) < bound`, drawing digits of `x` and `w` until the answer is the
/// same for all numbers that begin like them.
fn under_curve_exactly<R: CryptoRng + ?Sized>(
    rng: &mut R,
    x: &mut Prefix,
    level: u64,
    w: &mut Prefix,
    bound: &BigInteger,
) -> bool {
    loop {
        let precision = w.bits() + 64;
        let square_scale = 2 * x.bits() + 1;
        let left = x.digits();
        let right = left.plus_one();
        let lower = exponential_lower(&left.times(&left), square_scale, precision);
        let upper = exponential_upper(&right.times(&right), square_scale, precision);
        let y = BigInteger::from(u128::from(level))
            .shifted_left(w.bits())
            .plus(&w.digits());
        let bound = bound.shifted_left(w.bits() + precision);
        if y.plus_one().times(&upper) <= bound {
            return true;
        }
        if y.times(&lower) >= bound {
            return false;
        }
        x.extend(rng);
        w.extend(rng);
    }
}

/// `e^d` is bounded in units of `2^-62`.
const GROWTH_BITS: u32 = 62;
/// Degree of the series: at `d < 0.16` the next term is below `2^-66`.
const DEGREE: usize = 12;
/// `floor(2^62 / i!)`.
const COEFFICIENTS: [u64; DEGREE + 1] = {
    let mut coefficients = [1 << GROWTH_BITS; DEGREE + 1];
    let mut index = 1;
    let mut factorial = 1;
    while index <= DEGREE {
        factorial *= index as u64;
        coefficients[index] = (1 << GROWTH_BITS) / factorial;
        index += 1;
    }
    coefficients
};

/// High half of a product: `floor(a b / 2^64)`.
#[inline]
fn high_product(a: u64, b: u64) -> u64 {
    ((u128::from(a) * u128::from(b)) >> 64) as u64
}

/// `lower <= 2^62 e^d` for `d = exponent / 2^64`.
fn growth_lower(exponent: u64) -> u64 {
    (COEFFICIENTS.iter().rev()).fold(0, |sum, &coefficient| {
        coefficient + high_product(sum, exponent)
    })
}

/// `upper >= 2^62 e^d` for `d = exponent / 2^64 < 1`.
fn growth_upper(exponent: u64) -> u64 {
    // What the series leaves out is at most its last term again, since d / (degree + 1) < 1/2.
    let last = 2 * (COEFFICIENTS[DEGREE] + 1);
    (COEFFICIENTS[..DEGREE].iter().rev()).fold(last, |sum, &coefficient| {
        coefficient + 1 + high_product(sum, exponent) + 1
    })
}

#[cfg(test)]
mod tests;
