//! Which records a client uses in a round.
//!
//! The proofs need **Poisson** sampling: every record enters by a fresh coin of its own, heads with
//! probability `q = b/m`, and sums are divided by the constant `b`, never by the realised number
//! (an empty batch still sends). `WithReplacement` is what the authors' experiments do; no
//! privacy claim follows from it.
//!
//! Two ways to toss Poisson coins. [`Coins::Exact`] decides every record by comparing random bits
//! with the binary expansion of `q`, rounded down to a multiple of 2^-64: exactly independent, the
//! probability never above `q`; about one random byte per record. [`Coins::Fast`] jumps from head
//! to head by geometric gaps in `f64`, in time `O(b)`. The probability of a gap up to `x/q`, and of
//! a coin given all others, is right up to a relative `(1e-13 + 2^-64 e^x)/q`; longer gaps have
//! probability `e^-x`. That is for simulation, where the noise is idealised, too; secure noise
//! refuses it.

use rand::Rng;

use crate::linalg::vector_math::logarithm;
use crate::linalg::vectorised_widely;
use crate::random::{SecretRng, below};

/// How a batch is drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sampling {
    /// All records, every round.
    Full,
    /// Independent coins with this expected batch size.
    Poisson {
        /// Expected number of records `b`.
        batch: f64,
        /// How coins are tossed.
        coins: Coins,
    },
    /// `batch` draws with replacement, as in the authors' experiments.
    WithReplacement {
        /// Number of draws.
        batch: usize,
    },
}

/// How Poisson coins are tossed; see the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coins {
    /// Bit by bit.
    Exact,
    /// By geometric gaps.
    Fast,
}

impl Sampling {
    /// The constant by which a minibatch sum is divided.
    pub fn divisor(&self, records: usize) -> f64 {
        match *self {
            Sampling::Full => records as f64,
            Sampling::Poisson { batch, .. } => batch,
            Sampling::WithReplacement { batch } => batch as f64,
        }
    }

    /// Draws a batch out of `records` records into `rows`.
    pub fn draw(&self, records: usize, rng: &mut SecretRng, rows: &mut Vec<u32>) {
        self.draw_present(records, records, rng, rows);
    }

    /// Draws a batch out of `records` records, of which those from `present` on are null records
    /// and nobody asks for: their coins would be independent of all others.
    pub fn draw_present(
        &self,
        records: usize,
        present: usize,
        rng: &mut SecretRng,
        rows: &mut Vec<u32>,
    ) {
        rows.clear();
        match *self {
            Sampling::Full => rows.extend(0..present as u32),
            Sampling::Poisson { batch, coins } => {
                let rate = batch / records as f64;
                match coins {
                    _ if rate >= 1.0 => rows.extend(0..present as u32),
                    Coins::Exact => exact_coins(rate, present, rng, rows),
                    Coins::Fast => geometric_gaps(rate, present, rng, rows),
                }
            }
            Sampling::WithReplacement { batch } => {
                let draws = (0..batch).map(|_| below(rng, records as u32));
                rows.extend(draws.filter(|&row| (row as usize) < present));
            }
        }
    }
}

/// 64 records at a time: bit `i` of a random word belongs to record `i` of the block. Walking down
/// the binary expansion of the threshold, a record is decided at the first bit in which its own
/// uniform number differs from the threshold.
fn exact_coins(rate: f64, records: usize, rng: &mut SecretRng, rows: &mut Vec<u32>) {
    // `as` truncates and saturates, so the realised probability is never above `rate`; the product
    // with a power of two is exact.
    let threshold = (rate * 18_446_744_073_709_551_616.0) as u64;
    for start in (0..records).step_by(64) {
        let width = (records - start).min(64);
        let mut undecided = u64::MAX >> (64 - width);
        let mut heads = 0;
        for bit in (0..64).rev() {
            let random = rng.next_u64();
            if threshold >> bit & 1 == 1 {
                heads |= undecided & !random;
                undecided &= random;
            } else {
                undecided &= !random;
            }
            if undecided == 0 {
                break;
            }
        }
        while heads != 0 {
            rows.push(start as u32 + heads.trailing_zeros());
            heads &= heads - 1;
        }
    }
}

/// From head to head, each gap being `floor(log(uniform) / log(1 - rate))`.
///
/// Of the uniform number 32 bits are drawn first, which leave an interval. Where not all of the
/// interval gives the same gap (a few times in a million for usual rates), 32 more bits are drawn.
/// So gaps have the distribution that 64 bits give.
fn geometric_gaps(rate: f64, records: usize, rng: &mut SecretRng, rows: &mut Vec<u32>) {
    /// As many as the generator makes at once.
    const BLOCK: usize = 64;
    let scale = (-rate).ln_1p().recip();
    let records = records as u64;
    let mut bytes = [0; 4 * BLOCK];
    let mut steps = [0; BLOCK];
    let mut margins = [0.0; BLOCK];
    let mut places = [0; BLOCK];
    let mut next = 0;
    loop {
        rng.fill_bytes(&mut bytes);
        let words = bytes.as_chunks().0;
        let mut doubtful = false;
        vectorised_widely(
            #[inline(always)]
            || {
                for ((step, margin), &word) in steps.iter_mut().zip(&mut margins).zip(words) {
                    let gap = Gap::of(u32::from_le_bytes(word), scale);
                    *step = step_of(gap.length, records);
                    *margin = gap.margin(rate);
                }
                // In a loop of its own: together, neither would become vector code.
                doubtful = margins
                    .iter()
                    .fold(false, |any, &margin| any | is_doubtful(margin));
            },
        );
        if doubtful {
            for ((step, &margin), &word) in steps.iter_mut().zip(&margins).zip(words) {
                if is_doubtful(margin) {
                    let gap = refined(u32::from_le_bytes(word), rng.next_u32(), scale);
                    *step = step_of(gap, records);
                }
            }
        }
        let mut count = 0;
        for (place, step) in places.iter_mut().zip(&steps) {
            next += step;
            *place = (next - 1) as u32;
            count += usize::from(next <= records);
        }
        rows.extend_from_slice(&places[..count]);
        if count < BLOCK {
            return;
        }
    }
}

/// A gap, not yet rounded down, for the middle of the interval of uniform numbers that begin with
/// the same 32 bits.
struct Gap {
    length: f64,
    /// The middle, in units of 2^-32.
    middle: f64,
}

impl Gap {
    #[inline(always)]
    fn of(word: u32, scale: f64) -> Self {
        let middle = f64::from(word) + 0.5;
        let length = logarithm(middle / 4_294_967_296.0) * scale;
        Gap { length, middle }
    }

    /// The distance to the nearest whole number, in units of `1 / (middle rate)`. In these units
    /// the interval reaches at most 0.75 to either side (if the word is 0, to infinity on one side,
    /// and the distance is at most a quarter).
    #[inline(always)]
    fn margin(&self, rate: f64) -> f64 {
        let distance = (self.length - self.length.round_ties_even()).abs();
        distance * self.middle * rate
    }
}

/// Whether numbers of the interval may round down to different gaps. The bound is above 0.75 to
/// allow for rounding errors.
#[inline(always)]
fn is_doubtful(margin: f64) -> bool {
    margin <= 1.0
}

/// The gap, not yet rounded down, for a uniform number of 64 bits.
fn refined(high: u32, low: u32, scale: f64) -> f64 {
    let bits = u64::from(high) << 32 | u64::from(low);
    // The middle of an interval: never 0.
    logarithm((bits as f64 + 0.5) / 18_446_744_073_709_551_616.0) * scale
}

/// The distance from one head to the next, at most one more than the number of records.
#[inline(always)]
fn step_of(gap: f64, records: u64) -> u64 {
    /// Numbers below it, added to it, are its lowest bits: vector instructions have no conversion
    /// to integers of 64 bits.
    const INTEGERS: f64 = (1u64 << 52) as f64;
    let gap = gap.floor().min(records as f64);
    (gap + INTEGERS).to_bits() - INTEGERS.to_bits() + 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{Purpose, SecretKey};

    /// Inclusion counts and batch-size moments against the binomial law, 20,000 rounds of 100
    /// records. Each of the 100 + 2 statistics is allowed 5.5 standard errors: failure probability
    /// below 1e-5 per sampler, and the seed is fixed.
    #[test]
    fn coins_are_independent_with_the_right_rate() {
        for coins in [Coins::Exact, Coins::Fast] {
            for rate in [0.03, 0.5, 0.9] {
                let (records, rounds) = (100usize, 20_000u32);
                let sampling = Sampling::Poisson {
                    batch: rate * records as f64,
                    coins,
                };
                let mut rng = SecretKey::simulated(1, 2).stream(3, Purpose::Sampling);
                let mut counts = vec![0f64; records];
                let (mut sum, mut squares) = (0.0, 0.0);
                let mut rows = Vec::new();
                for _ in 0..rounds {
                    sampling.draw(records, &mut rng, &mut rows);
                    assert!(rows.is_sorted_by(|a, b| a < b));
                    for &row in &rows {
                        counts[row as usize] += 1.0;
                    }
                    let size = rows.len() as f64 - rate * records as f64;
                    sum += size;
                    squares += size * size;
                }
                let n = f64::from(rounds);
                let sd = (n * rate * (1.0 - rate)).sqrt();
                for found in counts {
                    assert!(
                        (found - n * rate).abs() < 5.5 * sd,
                        "{coins:?} {rate} {found}"
                    );
                }
                let variance = records as f64 * rate * (1.0 - rate);
                assert!((sum / n).abs() < 5.5 * (variance / n).sqrt());
                // The fourth central moment of a binomial is below 3 var^2 + var.
                let spread = ((2.0 * variance * variance + variance) / n).sqrt();
                assert!(
                    (squares / n - variance).abs() < 5.5 * spread,
                    "{coins:?} {rate}"
                );
            }
        }
    }

    /// A gap that is not doubtful is that of both ends of its interval; all intervals with two gaps
    /// are doubtful, and they are few.
    #[test]
    fn gaps_are_decided_by_as_many_bits_as_they_need() {
        for rate in [0.9f64, 0.3, 51.0 / 3256.0, 1e-3, 1e-6, 1e-9] {
            let scale = (-rate).ln_1p().recip();
            let mut rng = SecretKey::simulated(1, 2).stream(4, Purpose::Sampling);
            let words = (0..200_000).map(|_| rng.next_u32());
            // Long gaps, around the borders between short ones, and any.
            let borders = (1..20_000).map(|gap| (f64::from(gap) / scale).exp() * 4_294_967_296.0);
            let borders = borders.flat_map(|word| [-1.0, 0.0, 1.0].map(|by| (word + by) as u32));
            let mut doubtful = 0;
            for word in (0..5000).chain(borders).chain(words) {
                let gap = Gap::of(word, scale);
                let [low, high] = [0, u32::MAX].map(|low| refined(word, low, scale));
                // Nearer to a border than rounding.
                let unclear =
                    (low - low.round()).abs().min((high - high.round()).abs()) < 1e-13 / rate;
                if is_doubtful(gap.margin(rate)) {
                    doubtful += 1;
                } else {
                    assert!(!unclear && low.floor() == high.floor(), "{rate} {word}");
                    assert_eq!(gap.length.floor(), low.floor(), "{rate} {word}");
                }
            }
            assert!(doubtful >= 1);
            let mut rng = SecretKey::simulated(1, 2).stream(5, Purpose::Sampling);
            let any =
                (0..200_000).filter(|_| is_doubtful(Gap::of(rng.next_u32(), scale).margin(rate)));
            // At most four intervals a gap, of some 23/rate gaps.
            let most = (4.0 * 23.0 / rate / 4_294_967_296.0).min(1.0);
            let (any, expected) = (any.count() as f64, 200_000.0 * most);
            assert!(
                any <= expected + 6.0 * expected.sqrt() + 6.0,
                "{rate}: {any}"
            );
        }
        // The smallest word stands for gaps of any length.
        let least = Gap::of(0, (-0.01f64).ln_1p().recip());
        assert!(is_doubtful(least.margin(0.01)));
    }

    #[test]
    fn edges() {
        let mut rng = SecretKey::simulated(1, 2).stream(3, Purpose::Sampling);
        let mut rows = vec![9];
        let exact = |batch| Sampling::Poisson {
            batch,
            coins: Coins::Exact,
        };
        exact(10.0).draw(10, &mut rng, &mut rows);
        assert_eq!(rows.len(), 10);
        exact(1e-18).draw(10, &mut rng, &mut rows);
        assert!(rows.is_empty());
        Sampling::WithReplacement { batch: 7 }.draw(3, &mut rng, &mut rows);
        assert!(rows.len() == 7 && rows.iter().all(|&row| row < 3));
        Sampling::Full.draw(4, &mut rng, &mut rows);
        assert_eq!(rows, [0, 1, 2, 3]);
        assert_eq!(exact(2.5).divisor(10), 2.5);
        assert_eq!(Sampling::Full.divisor(10), 10.0);
    }
}
