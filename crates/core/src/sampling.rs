//! Which records a client looks at in a round.
//!
//! The proofs need **Poisson** sampling: every record enters by a fresh coin of its own, heads with
//! probability `q = b/m`, and sums are divided by the constant `b`, never by the realised number
//! (an empty batch still sends). `WithReplacement` is what the authors' experiments do; no
//! privacy claim follows from it.
//!
//! Two ways to toss Poisson coins. [`Coins::Exact`] decides every record by comparing random bits
//! with the binary expansion of `q`, rounded down to a multiple of 2^-64: exactly independent, the
//! probability never above `q`; about one random byte per record. [`Coins::Fast`] jumps from head
//! to head by geometric gaps in `f64`, `O(b)`. Inclusion probabilities differ from `q` by up to a relative 2^-22, and gaps
//! of more than some 22/q do not occur: for simulation, where the noise is idealised too; secure noise refuses it.

use rand::Rng;

use crate::linalg::elementary::logarithm;
use crate::linalg::vectorised_widely;
use crate::random::{SecretRng, below, unit_of};

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

    /// Draws a batch out of `records` rows into `rows`.
    pub fn draw(&self, records: usize, rng: &mut SecretRng, rows: &mut Vec<u32>) {
        rows.clear();
        match *self {
            Sampling::Full => rows.extend(0..records as u32),
            Sampling::Poisson { batch, coins } => {
                let rate = batch / records as f64;
                match coins {
                    _ if rate >= 1.0 => rows.extend(0..records as u32),
                    Coins::Exact => exact_coins(rate, records, rng, rows),
                    Coins::Fast => geometric_gaps(rate, records, rng, rows),
                }
            }
            Sampling::WithReplacement { batch } => {
                rows.extend((0..batch).map(|_| below(rng, records as u32)));
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

/// From head to head.
///
/// A gap is decided by a uniform number: of 32 bits, whose grain is then below 2^-22 of the rate, or of 53 if the rate is
/// smaller than 2^-10.
fn geometric_gaps(rate: f64, records: usize, rng: &mut SecretRng, rows: &mut Vec<u32>) {
    const COARSE: f64 = 1.0 / 1024.0;
    /// As many as the generator makes at once.
    const BLOCK: usize = 64;
    let scale = (-rate).ln_1p().recip();
    let records = records as u64;
    let mut bytes = [0; 8 * BLOCK];
    let mut steps = [0; BLOCK];
    let mut places = [0; BLOCK];
    let mut next = 0;
    loop {
        let bytes = &mut bytes[..if rate >= COARSE { 4 * BLOCK } else { 8 * BLOCK }];
        rng.fill_bytes(bytes);
        vectorised_widely(
            #[inline(always)]
            || {
                if rate >= COARSE {
                    for (step, &word) in steps.iter_mut().zip(bytes.as_chunks().0) {
                        // The middle of an interval: never 0.
                        let uniform = (f64::from(u32::from_le_bytes(word)) + 0.5) / 4_294_967_296.0;
                        *step = step_of(uniform, scale, records);
                    }
                } else {
                    for (step, &word) in steps.iter_mut().zip(bytes.as_chunks().0) {
                        // In (0, 1].
                        let uniform = 1.0 - unit_of(u64::from_le_bytes(word));
                        *step = step_of(uniform, scale, records);
                    }
                }
            },
        );
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

/// How far it is from one head to the next, the gap being `floor(log(uniform) scale)`; beyond all records is far enough.
#[inline(always)]
fn step_of(uniform: f64, scale: f64, records: u64) -> u64 {
    /// Numbers below it, added to it, stand in its lowest bits: vectors have no conversion to integers of 64 bits.
    const INTEGERS: f64 = (1u64 << 52) as f64;
    let gap = (logarithm(uniform) * scale).floor().min(records as f64);
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
