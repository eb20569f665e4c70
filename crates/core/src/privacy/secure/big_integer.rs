//! Non-negative integers of any size, for the few decisions for which machine words are too short.
//!
//! Only what the sampler and the grid need: sums, products, shifts, division by a word, comparison.
//! Schoolbook algorithms: exact and slow, needed about once in four thousand draws and when a grid
//! is built. The words are wiped when dropped, because they may hold digits of the noise.

use std::cmp::Ordering;

use zeroize::Zeroize;

/// A non-negative integer: words, the least significant first, without leading zero words (so that
/// the derived equality is equality of numbers).
#[derive(Clone, PartialEq, Eq)]
pub(super) struct BigInteger(Vec<u64>);

impl BigInteger {
    pub(super) fn zero() -> Self {
        Self(Vec::new())
    }

    pub(super) fn power_of_two(exponent: u32) -> Self {
        Self::from(1).shifted_left(exponent)
    }

    pub(super) fn is_zero(&self) -> bool {
        self.0.is_empty()
    }

    /// Number of binary digits; zero has none.
    pub(super) fn bit_length(&self) -> u32 {
        match self.0.last() {
            None => 0,
            Some(top) => self.0.len() as u32 * 64 - top.leading_zeros(),
        }
    }

    /// The number itself if it fits 128 bits.
    pub(super) fn to_u128(&self) -> Option<u128> {
        match self.0.as_slice() {
            [] => Some(0),
            [low] => Some(u128::from(*low)),
            [low, high] => Some(u128::from(*low) | u128::from(*high) << 64),
            _ => None,
        }
    }

    pub(super) fn plus(&self, other: &Self) -> Self {
        let (long, short) = if self.0.len() >= other.0.len() {
            (self, other)
        } else {
            (other, self)
        };
        let mut words = Vec::with_capacity(long.0.len() + 1);
        let mut carry = 0u128;
        for (index, &word) in long.0.iter().enumerate() {
            let addend = short.0.get(index).copied().unwrap_or(0);
            let sum = u128::from(word) + u128::from(addend) + carry;
            words.push(sum as u64);
            carry = sum >> 64;
        }
        words.push(carry as u64);
        Self::trimmed(words)
    }

    pub(super) fn plus_one(&self) -> Self {
        self.plus(&Self::from(1))
    }

    pub(super) fn times(&self, other: &Self) -> Self {
        let mut words = vec![0u64; self.0.len() + other.0.len()];
        for (offset, &a) in self.0.iter().enumerate() {
            let mut carry = 0u128;
            for (index, &b) in other.0.iter().enumerate() {
                // (2^64 - 1)^2 + 2 (2^64 - 1) = 2^128 - 1: the sum cannot overflow.
                let sum = u128::from(a) * u128::from(b) + u128::from(words[offset + index]) + carry;
                words[offset + index] = sum as u64;
                carry = sum >> 64;
            }
            words[offset + other.0.len()] = carry as u64;
        }
        Self::trimmed(words)
    }

    pub(super) fn shifted_left(&self, bits: u32) -> Self {
        if self.is_zero() {
            return Self::zero();
        }
        let mut words = vec![0u64; (bits / 64) as usize];
        let bits = bits % 64;
        let mut carry = 0u64;
        for &word in &self.0 {
            words.push(word << bits | carry);
            carry = if bits == 0 { 0 } else { word >> (64 - bits) };
        }
        words.push(carry);
        Self::trimmed(words)
    }

    /// Floor of the quotient by `2^bits`.
    pub(super) fn shifted_right(&self, bits: u32) -> Self {
        let skipped = ((bits / 64) as usize).min(self.0.len());
        let bits = bits % 64;
        let kept = &self.0[skipped..];
        let mut words = Vec::with_capacity(kept.len());
        for (index, &word) in kept.iter().enumerate() {
            let above = kept.get(index + 1).copied().unwrap_or(0);
            words.push(if bits == 0 {
                word
            } else {
                word >> bits | above << (64 - bits)
            });
        }
        Self::trimmed(words)
    }

    /// Floor of the quotient by a word above zero.
    pub(super) fn divided_by_word(&self, divisor: u64) -> Self {
        let mut words = self.0.clone();
        let mut remainder = 0u128;
        for word in words.iter_mut().rev() {
            let dividend = remainder << 64 | u128::from(*word);
            *word = (dividend / u128::from(divisor)) as u64;
            remainder = dividend % u128::from(divisor);
        }
        Self::trimmed(words)
    }

    /// Floor of the quotient by a number above zero, or nothing if it exceeds 128 bits.
    ///
    /// Digit by digit from the top: a hundred products instead of a long division, because its
    /// correctness is plain (`quotient * divisor <= self` is kept true, and no further bit can be
    /// set).
    pub(super) fn quotient_floor(&self, divisor: &Self) -> Option<u128> {
        debug_assert!(!divisor.is_zero());
        // quotient < 2^(bits of self - bits of divisor + 1)
        let digits = (self.bit_length() + 1).saturating_sub(divisor.bit_length());
        if digits > 128 {
            return None;
        }
        let mut quotient = 0u128;
        for bit in (0..digits).rev() {
            let candidate = quotient | 1 << bit;
            if Self::from(candidate).times(divisor) <= *self {
                quotient = candidate;
            }
        }
        Some(quotient)
    }

    fn trimmed(mut words: Vec<u64>) -> Self {
        while words.last() == Some(&0) {
            words.pop();
        }
        Self(words)
    }
}

impl From<u128> for BigInteger {
    fn from(value: u128) -> Self {
        Self::trimmed(vec![value as u64, (value >> 64) as u64])
    }
}

impl Ord for BigInteger {
    fn cmp(&self, other: &Self) -> Ordering {
        // Without leading zeros the longer number is the larger.
        (self.0.len().cmp(&other.0.len()))
            .then_with(|| self.0.iter().rev().cmp(other.0.iter().rev()))
    }
}

impl PartialOrd for BigInteger {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Drop for BigInteger {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn natural(words: &[u64]) -> BigInteger {
        BigInteger::trimmed(words.to_vec())
    }

    proptest! {
        #[test]
        fn small_numbers_agree_with_machine_words(a: u64, b: u64, c in 1u64.., shift in 0u32..64) {
            let (big_a, big_b) = (BigInteger::from(u128::from(a)), BigInteger::from(u128::from(b)));
            let product = u128::from(a) * u128::from(b);
            prop_assert_eq!(big_a.plus(&big_b).to_u128(), Some(u128::from(a) + u128::from(b)));
            prop_assert_eq!(big_a.times(&big_b).to_u128(), Some(product));
            prop_assert_eq!(big_a.shifted_left(shift).to_u128(), Some(u128::from(a) << shift));
            let big = BigInteger::from(product);
            prop_assert_eq!(big.shifted_right(shift + 32).to_u128(), Some(product >> (shift + 32)));
            prop_assert_eq!(big.divided_by_word(c).to_u128(), Some(product / u128::from(c)));
            let divisor = BigInteger::from(u128::from(c));
            prop_assert_eq!(big.quotient_floor(&divisor), Some(product / u128::from(c)));
            prop_assert_eq!(big.bit_length(), 128 - product.leading_zeros());
            prop_assert_eq!(big_a.cmp(&big_b), a.cmp(&b));
        }

        #[test]
        fn large_numbers_obey_the_laws(
            a in prop::collection::vec(any::<u64>(), 0..6),
            b in prop::collection::vec(any::<u64>(), 0..6),
            c in prop::collection::vec(any::<u64>(), 0..6),
            shift in 0u32..300,
            divisor in 1u64..,
        ) {
            let (a, b, c) = (natural(&a), natural(&b), natural(&c));
            prop_assert!(a.plus(&b) == b.plus(&a));
            prop_assert!(a.times(&b) == b.times(&a));
            prop_assert!(a.times(&b.plus(&c)) == a.times(&b).plus(&a.times(&c)));
            prop_assert!(a.shifted_left(shift) == a.times(&BigInteger::power_of_two(shift)));
            prop_assert!(a.shifted_left(shift).shifted_right(shift) == a);
            // Floor: q d <= a < (q + 1) d, for both divisions.
            let word = BigInteger::from(u128::from(divisor));
            let quotient = a.divided_by_word(divisor);
            prop_assert!(quotient.times(&word) <= a && a < quotient.plus_one().times(&word));
            let low = a.shifted_right(shift);
            prop_assert!(low.shifted_left(shift) <= a && a < low.plus_one().shifted_left(shift));
            if !b.is_zero() {
                match a.quotient_floor(&b) {
                    Some(q) => {
                        let q = BigInteger::from(q);
                        prop_assert!(q.times(&b) <= a && a < q.plus_one().times(&b));
                    }
                    // One bit of slack: the digit count is an upper bound.
                    None => prop_assert!(BigInteger::power_of_two(127).times(&b) <= a),
                }
            }
        }
    }
}
