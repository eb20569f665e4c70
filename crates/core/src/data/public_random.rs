//! Public randomness for partitions and synthetic data. Noise and other secrets never come from
//! here.
//!
//! **Guarantee.** Every node of a run draws the same from the same seed, today and after every
//! update of a library. Therefore no algorithm of another library is used: the key is composed
//! here, integers follow a stated rule, and logarithms come from a portable library instead of the
//! platform's.

use chacha20::ChaCha8Rng;
use chacha20::rand_core::{Rng, SeedableRng};

/// A ChaCha8 stream for one purpose: its key is the seed (8 bytes, little endian), then the
/// purpose.
///
/// # Panics
/// If the purpose is longer than the 24 bytes that are left.
pub(super) fn generator(purpose: &str, seed: u64) -> ChaCha8Rng {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    key[8..8 + purpose.len()].copy_from_slice(purpose.as_bytes());
    ChaCha8Rng::from_seed(key)
}

/// A whole number uniform in `0..bound`, exactly.
///
/// With `w` the next 64 bits, the answer is the upper half of the 128-bit product `w * bound`; `w`
/// is drawn again while the lower half is below `2^64 mod bound`. That leaves every answer the same
/// number of `w`: no bias.
pub(super) fn below(random: &mut ChaCha8Rng, bound: u64) -> u64 {
    debug_assert!(bound > 0);
    let uneven = bound.wrapping_neg() % bound;
    loop {
        let product = u128::from(random.next_u64()) * u128::from(bound);
        if product as u64 >= uneven {
            return (product >> 64) as u64;
        }
    }
}

/// Fisher and Yates: from the last place down to the second, swap with a place drawn at or below.
pub(super) fn shuffle(random: &mut ChaCha8Rng, items: &mut [u32]) {
    for last in (1..items.len()).rev() {
        items.swap(last, below(random, last as u64 + 1) as usize);
    }
}

/// A number strictly between 0 and 1: the middle of one of `2^52` equal cells, which is exact in
/// `f64`.
pub(super) fn open_unit(random: &mut ChaCha8Rng) -> f64 {
    ((random.next_u64() >> 12) as f64 + 0.5) * (1.0 / (1u64 << 52) as f64)
}

/// A standard normal number (Box and Muller's cosine half).
pub(super) fn normal(random: &mut ChaCha8Rng) -> f64 {
    let radius = libm::sqrt(-2.0 * libm::log(open_unit(random)));
    radius * libm::cos(std::f64::consts::TAU * open_unit(random))
}

/// The logarithm of a Gamma(shape, 1) variable.
///
/// Marsaglia and Tsang's rejection for shape + 1 (so that it holds for every positive shape), then
/// `Gamma(shape) = Gamma(shape + 1) * U^(1/shape)`. In logarithms, because for small shapes nearly
/// all the mass lies below the least positive `f64`.
pub(super) fn log_gamma_variable(random: &mut ChaCha8Rng, shape: f64) -> f64 {
    let d = shape + 1.0 - 1.0 / 3.0;
    let c = 1.0 / libm::sqrt(9.0 * d);
    let boosted = loop {
        let x = normal(random);
        let root = 1.0 + c * x;
        if root <= 0.0 {
            continue;
        }
        let v = root * root * root;
        if libm::log(open_unit(random)) < 0.5 * x * x + d - d * v + d * libm::log(v) {
            break libm::log(d * v);
        }
    };
    boosted + libm::log(open_unit(random)) / shape
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_are_uniform_and_in_range() {
        // 60,000 draws below 6: each count is 10,000 +- 91; the chance of a false alarm at six
        // standard deviations is below 2e-8.
        let mut random = generator("test", 1);
        let mut counts = [0i64; 6];
        (0..60_000).for_each(|_| counts[below(&mut random, 6) as usize] += 1);
        assert!(
            counts.iter().all(|count| (count - 10_000).abs() < 550),
            "{counts:?}"
        );
        assert_eq!(below(&mut random, 1), 0);
        assert!(below(&mut random, u64::MAX) < u64::MAX);
    }

    #[test]
    fn purposes_and_seeds_give_different_streams_that_never_change() {
        let first = |purpose, seed| generator(purpose, seed).next_u64();
        assert_ne!(first("a", 0), first("b", 0));
        assert_ne!(first("a", 0), first("a", 1));
        let mut items: Vec<u32> = (0..10).collect();
        shuffle(&mut generator("partition", 0), &mut items);
        let mut sorted = items.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..10).collect::<Vec<_>>());
        // Golden, from an independent ChaCha8: nodes of different versions must agree on this.
        assert_eq!(items, [5, 3, 1, 2, 0, 8, 9, 4, 7, 6]);
    }

    #[test]
    fn every_order_of_three_is_equally_likely() {
        // 24,000 shuffles over 6 orders: 4,000 +- 58 each; six deviations, false alarm below 2e-8.
        let mut random = generator("test", 2);
        let mut counts = std::collections::BTreeMap::new();
        for _ in 0..24_000 {
            let mut items = [0, 1, 2];
            shuffle(&mut random, &mut items);
            *counts.entry(items).or_insert(0i64) += 1;
        }
        assert_eq!(counts.len(), 6);
        assert!(
            counts.values().all(|count| (count - 4_000).abs() < 350),
            "{counts:?}"
        );
    }

    #[test]
    fn gamma_variables_have_their_mean_and_variance() {
        // Both moments of Gamma(a, 1) are a. 200,000 draws: the mean is within sqrt(a/N), the
        // sample variance within about a * sqrt((2 + 6/a)/N); six deviations, false alarm below
        // 1e-8.
        for shape in [0.3, 1.0, 4.5] {
            let mut random = generator("test", 3);
            let count = 200_000.0;
            let draws: Vec<f64> = (0..200_000)
                .map(|_| log_gamma_variable(&mut random, shape).exp())
                .collect();
            let mean = draws.iter().sum::<f64>() / count;
            let variance = draws.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / count;
            assert!(
                (mean - shape).abs() < 6.0 * (shape / count).sqrt(),
                "{shape}: {mean}"
            );
            let spread = shape * ((2.0 + 6.0 / shape) / count).sqrt();
            assert!(
                (variance - shape).abs() < 6.0 * spread,
                "{shape}: {variance}"
            );
        }
    }

    #[test]
    fn tiny_shapes_stay_finite_in_logarithms() {
        let mut random = generator("test", 4);
        assert!((0..100).all(|_| log_gamma_variable(&mut random, 1e-4).is_finite()));
    }
}
