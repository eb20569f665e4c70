//! Proved bounds of `e^t` for a dyadic rational `t >= 0`, to any precision.
//!
//! `t = numerator / 2^scale`; the bounds are in units of `2^-precision`. Halve `t` until it is
//! below one half, sum the series of positive terms, square back. Every operation of the lower
//! bound rounds down and every one of the upper bound rounds up, and all quantities are positive,
//! so that each bound holds by construction whatever the precision; the two meet as the precision
//! grows.

use super::big_integer::BigInteger;

/// `lower <= e^t 2^precision`.
pub(super) fn exponential_lower(numerator: &BigInteger, scale: u32, precision: u32) -> BigInteger {
    let (reduced, halvings) = reduce(numerator, scale, precision);
    let mut term = BigInteger::power_of_two(precision);
    let mut sum = term.clone();
    let mut index = 1;
    while !term.is_zero() {
        term = (term.times(&reduced).shifted_right(precision)).divided_by_word(index);
        sum = sum.plus(&term);
        index += 1;
    }
    for _ in 0..halvings {
        sum = sum.times(&sum).shifted_right(precision);
    }
    sum
}

/// `upper >= e^t 2^precision`.
pub(super) fn exponential_upper(numerator: &BigInteger, scale: u32, precision: u32) -> BigInteger {
    let (below, halvings) = reduce(numerator, scale, precision);
    let reduced = below.plus_one();
    let mut term = BigInteger::power_of_two(precision);
    let mut sum = term.clone();
    let mut index = 1;
    // Rounded up, a term never vanishes; it stops at 2 units (1 from the product, halved, plus 1).
    while term > BigInteger::from(2) || index <= 2 {
        let product = term.times(&reduced).shifted_right(precision).plus_one();
        term = product.divided_by_word(index).plus_one();
        sum = sum.plus(&term);
        index += 1;
    }
    // Consecutive exact terms have a ratio below one half, so all that is left is at most the last
    // term again.
    sum = sum.plus(&term);
    for _ in 0..halvings {
        sum = sum.times(&sum).shifted_right(precision).plus_one();
    }
    sum
}

/// `floor(2^precision t / 2^halvings)` with `t / 2^halvings < 1/2`, and `halvings`.
fn reduce(numerator: &BigInteger, scale: u32, precision: u32) -> (BigInteger, u32) {
    // numerator < 2^bits, so numerator / 2^(scale + halvings) < 2^(bits - scale - halvings) = 1/2.
    let halvings = (numerator.bit_length() + 1).saturating_sub(scale);
    let reduced = numerator
        .shifted_left(precision)
        .shifted_right(scale + halvings);
    (reduced, halvings)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn natural(value: u128) -> BigInteger {
        BigInteger::from(value)
    }

    #[test]
    fn known_digits() {
        // floor(e^t 2^100), from an independent 60-digit evaluation.
        for (numerator, scale, digits) in [
            (0, 0, 1 << 100),
            (1, 0, KNOWN_E),
            (1, 1, KNOWN_ROOT_E),
            (3, 10, KNOWN_SMALL),
        ] {
            let digits = natural(digits);
            let lower = exponential_lower(&natural(numerator), scale, 200).shifted_right(100);
            let upper = exponential_upper(&natural(numerator), scale, 200).shifted_right(100);
            assert!(lower <= digits && digits <= lower.plus_one());
            assert!(digits <= upper && upper <= digits.plus_one());
        }
    }

    const KNOWN_E: u128 = 0x2b_7e151628_aed2a6ab_f7158809;
    const KNOWN_ROOT_E: u128 = 0x1a_61298e1e_069bc972_dfefab6d;
    const KNOWN_SMALL: u128 = 0x10_0c048120_36081a9c_e894e3df;

    #[test]
    fn bounds_enclose_and_meet() {
        for numerator in [0u128, 1, 77, 4095, 4096, 51_200, 9_750_000] {
            let t = natural(numerator);
            let mut width_before = None;
            for precision in [64, 128, 256, 512] {
                let lower = exponential_lower(&t, 12, precision);
                let upper = exponential_upper(&t, 12, precision);
                assert!(lower <= upper);
                // Relative width, in bits gained: (upper - lower) / upper.
                let gap = (0..upper.bit_length())
                    .find(|&bits| upper <= lower.plus(&BigInteger::power_of_two(bits)))
                    .unwrap_or(upper.bit_length());
                let gained = upper.bit_length() - gap;
                assert!(
                    gained + 24 >= precision,
                    "{numerator}: {gained} of {precision}"
                );
                assert!(width_before < Some(gained));
                width_before = Some(gained);
                // A finer bound lies within a coarser one.
                let finer_lower = exponential_lower(&t, 12, precision + 64).shifted_right(64);
                let finer_upper = exponential_upper(&t, 12, precision + 64).shifted_right(64);
                assert!(lower <= finer_lower.plus_one() && finer_upper <= upper);
            }
            let approximate = (numerator as f64 / 4096.0).exp();
            if approximate < 1e9 {
                let lower =
                    exponential_lower(&t, 12, 64).to_u128().unwrap() as f64 * 2f64.powi(-64);
                assert!((lower / approximate - 1.0).abs() < 1e-12);
            }
        }
    }
}
