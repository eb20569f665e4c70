//! The law of the sampler. Seeds are fixed; each statistical test would fail a correct sampler for
//! less than one seed in `10^9` (Laurent-Massart for chi-square, Dvoretzky-Kiefer-Wolfowitz for the
//! distribution function, normal deviates else).

use std::convert::Infallible;

use chacha20::ChaCha20Rng;
use rand::{Rng, SeedableRng, TryCryptoRng, TryRng};

use super::*;

const LOG_FAILURE: f64 = 20.8; // -ln(1e-9), rounded up
const DEVIATIONS: f64 = 6.2; // two-sided normal quantile of 1e-9, rounded up

fn draws(scale: f64, count: usize, seed: u64) -> Vec<i64> {
    let mut out = vec![0; count];
    let noise = RoundedGaussian::new(scale, 0).unwrap();
    noise.fill(&mut ChaCha20Rng::seed_from_u64(seed), &mut out);
    out
}

/// `P(N(0,1) > x)`.
fn upper_tail(x: f64) -> f64 {
    libm::erfc(x / 2f64.sqrt()) / 2.0
}

/// `P(low <= round(s N) < high)`, accurate in both tails.
fn probability(scale: f64, low: f64, high: f64) -> f64 {
    let (a, b) = ((low - 0.5) / scale, (high - 0.5) / scale);
    if a >= 0.0 {
        upper_tail(a) - upper_tail(b)
    } else if b <= 0.0 {
        upper_tail(-b) - upper_tail(-a)
    } else {
        1.0 - upper_tail(-a) - upper_tail(b)
    }
}

/// Pearson's statistic and the value a chi-square variable exceeds with probability below `1e-9`.
fn chi_square(observed: &[u64], expected: &[f64]) -> (f64, f64) {
    let statistic = (observed.iter().zip(expected))
        .map(|(&o, &e)| (o as f64 - e).powi(2) / e)
        .sum();
    let freedom = observed.len() as f64 - 1.0;
    let limit = freedom + 2.0 * (freedom * LOG_FAILURE).sqrt() + 2.0 * LOG_FAILURE;
    (statistic, limit)
}

/// Chi-square over `cells` bins of `width` integers around zero and the two tails beyond.
fn check_law(scale: f64, count: usize, cells: usize, width: i64, seed: u64) {
    let first = -(cells as i64 * width) / 2;
    let mut observed = vec![0u64; cells + 2];
    for value in draws(scale, count, seed) {
        let bin = (value - first).div_euclid(width).clamp(-1, cells as i64);
        observed[(bin + 1) as usize] += 1;
    }
    let edge = |bin: i64| (first + bin * width) as f64;
    let mut expected = vec![probability(scale, f64::NEG_INFINITY, edge(0))];
    expected.extend((0..cells as i64).map(|bin| probability(scale, edge(bin), edge(bin + 1))));
    expected.push(probability(scale, edge(cells as i64), f64::INFINITY));
    for share in &mut expected {
        *share *= count as f64;
        assert!(*share > 25.0, "bins too small for the statistic: {share}");
    }
    let (statistic, limit) = chi_square(&observed, &expected);
    assert!(statistic < limit, "scale {scale}: {statistic} of {limit}");
}

#[test]
fn law_at_scale_1() {
    check_law(1.0, 10_000_000, 7, 1, 11);
}

#[test]
fn law_at_scale_3_7() {
    check_law(3.7, 5_000_000, 29, 1, 12);
}

#[test]
fn law_at_scale_64() {
    check_law(64.0, 5_000_000, 480, 1, 13);
}

#[test]
fn law_at_scale_two_to_the_20() {
    // Narrow bins: 1/128 of a standard deviation, a quarter of a cell of the table.
    check_law((1u64 << 20) as f64, 5_000_000, 850, 1 << 13, 14);
}

#[test]
fn probabilities_at_scale_1_to_high_precision() {
    // P(round(N(0,1)) = n) from a 40-digit evaluation.
    let exact = [
        0.38292492254802621,
        0.24173033745712883,
        0.060_597_535_943_081_93,
        0.005_977_036_246_740_61,
        0.00022923140591079498,
        3.378_683_562_264_173e-6,
    ];
    for (n, &value) in exact.iter().enumerate() {
        let n = n as f64;
        assert!((probability(1.0, n, n + 1.0) / value - 1.0).abs() < 1e-13);
    }
    let count = 10_000_000;
    let out = draws(1.0, count, 15);
    for (n, &value) in exact.iter().enumerate() {
        for signed in [n as i64, -(n as i64)] {
            let seen = out.iter().filter(|&&draw| draw == signed).count() as f64;
            let expected = count as f64 * value;
            let deviation = (expected * (1.0 - value)).sqrt();
            // The Poisson law of a rare cell is wider than the normal one: half the statistic
            // again, plus a constant.
            let allowed = DEVIATIONS * deviation + LOG_FAILURE;
            assert!(
                (seen - expected).abs() < allowed,
                "{signed}: {seen} for {expected}"
            );
        }
    }
}

#[test]
fn distribution_function_at_large_scales() {
    for (scale, seed) in [((1u64 << 20) as f64 * 1.37, 16), ((1u64 << 40) as f64, 17)] {
        let count = 1_000_000;
        let mut out = draws(scale, count, seed);
        out.sort_unstable();
        let largest = (out.iter().enumerate())
            .map(|(index, &value)| {
                let below = upper_tail(-(value as f64 + 0.5) / scale);
                // Ties are rare but real: compare with the count up to and including this value.
                let up_to = out.partition_point(|&other| other <= value).max(index + 1);
                (below - up_to as f64 / count as f64).abs()
            })
            .fold(0.0, f64::max);
        let limit = ((LOG_FAILURE + 2f64.ln()) / (2.0 * count as f64)).sqrt();
        assert!(largest < limit, "scale {scale}: {largest} of {limit}");
    }
}

#[test]
fn low_digits_are_uniform() {
    // At these scales the low byte is uniform up to exp(-2 pi^2 (s/256)^2) < 1e-100: a sampler with
    // holes is not.
    for (scale, seed) in [
        ((1u64 << 20) as f64 * 0.9, 18),
        ((1u64 << 44) as f64 * 0.7, 19),
    ] {
        let count = 1_000_000;
        let mut observed = [0u64; 256];
        for value in draws(scale, count, seed) {
            observed[(value & 255) as usize] += 1;
        }
        let (statistic, limit) = chi_square(&observed, &[count as f64 / 256.0; 256]);
        assert!(statistic < limit, "scale {scale}: {statistic} of {limit}");
    }
}

#[test]
fn moments() {
    let scale = (1u64 << 20) as f64;
    let count = 4_000_000;
    let mut sums = [0.0f64; 4];
    for value in draws(scale, count, 20) {
        let x = value as f64 / scale;
        for (power, sum) in sums.iter_mut().enumerate() {
            *sum += x.powi(power as i32 + 1);
        }
    }
    // Expectation and variance of x, x^2, x^3, x^4 (the 2^-40 / 12 of rounding is far below the
    // error).
    let theory = [(0.0, 1.0), (1.0, 2.0), (0.0, 15.0), (3.0, 96.0)];
    for (sum, (expectation, variance)) in sums.iter().zip(theory) {
        let deviation = (variance / count as f64).sqrt();
        let mean = sum / count as f64;
        assert!((mean - expectation).abs() < DEVIATIONS * deviation);
    }
}

#[test]
fn consecutive_draws_are_uncorrelated() {
    let count = 4_000_000;
    let out = draws(1000.0, count, 21);
    let sum: f64 = out.windows(2).map(|pair| (pair[0] * pair[1]) as f64).sum();
    let correlation = sum / (count as f64 * 1e6);
    assert!(correlation.abs() < DEVIATIONS / (count as f64).sqrt());
}

#[test]
fn stream_is_pinned() {
    // Changing these values changes the noise that a stored seed stands for.
    let mut rng = ChaCha20Rng::from_seed([7; 32]);
    let mut out = [0; 8];
    let noise = RoundedGaussian::new(0.5, -21).unwrap();
    noise.fill(&mut rng, &mut out);
    assert_eq!(
        out,
        [
            354981, -629563, -472929, -1824320, -181772, -660905, 1068306, -622311
        ]
    );
    // Long enough to meet crossed boxes, the tail and undecided roundings.
    let mut rng = ChaCha20Rng::from_seed([8; 32]);
    let mut out = vec![0; 100_000];
    RoundedGaussian::new(1.1, -40)
        .unwrap()
        .fill(&mut rng, &mut out);
    let digest = out.iter().fold(0u64, |digest, &value| {
        (digest ^ value as u64)
            .wrapping_mul(0x100_0000_01b3)
            .rotate_left(29)
    });
    assert_eq!(digest, 7_356_703_467_940_435_276);
}

#[test]
fn filling_in_pieces_is_filling_at_once() {
    let noise = RoundedGaussian::new(1e6, 0).unwrap();
    let whole = draws(1e6, 1000, 22);
    let mut rng = ChaCha20Rng::seed_from_u64(22);
    let mut pieces = vec![0; 1000];
    for piece in pieces.chunks_mut(37) {
        noise.fill(&mut rng, piece);
    }
    assert_eq!(whole, pieces);
}

/// Counts the words another generator gives.
struct Counting(ChaCha20Rng, u64);

impl TryRng for Counting {
    type Error = Infallible;
    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        unreachable!("the sampler takes 64-bit words only")
    }
    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        self.1 += 1;
        self.0.try_next_u64()
    }
    fn try_fill_bytes(&mut self, _: &mut [u8]) -> Result<(), Infallible> {
        unreachable!("the sampler takes 64-bit words only")
    }
}

impl TryCryptoRng for Counting {}

#[test]
fn words_per_draw() {
    let mut rng = Counting(ChaCha20Rng::seed_from_u64(23), 0);
    let noise = RoundedGaussian::new((1u64 << 20) as f64, 0).unwrap();
    let count = 1_000_000;
    let mut most = 0;
    for _ in 0..count {
        let before = rng.1;
        noise.fill(&mut rng, &mut [0]);
        most = most.max(rng.1 - before);
    }
    // Attempts are kept with probability 98 * 32 * sqrt(pi / 2) / 4096 = 0.9596 and take 1.06 words
    // each.
    let mean = rng.1 as f64 / count as f64;
    assert!((1.09..1.13).contains(&mean), "{mean}");
    // More than 32 words are 8 failed attempts in a row at least: probability below 1e-11 per draw.
    assert!(most <= 32, "{most}");
}

/// Gives prepared words, then refuses.
struct Scripted<'a>(std::slice::Iter<'a, u64>);

impl<'a> Scripted<'a> {
    fn new(words: &'a [u64]) -> Self {
        Self(words.iter())
    }
}

impl TryRng for Scripted<'_> {
    type Error = Infallible;
    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        unreachable!("the sampler takes 64-bit words only")
    }
    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        Ok(*self.0.next().expect("more words taken than prepared"))
    }
    fn try_fill_bytes(&mut self, _: &mut [u8]) -> Result<(), Infallible> {
        unreachable!("the sampler takes 64-bit words only")
    }
}

impl TryCryptoRng for Scripted<'_> {}

/// A word that draws an inside box at the position `head / 2^56`.
fn word_at(head: u64, negative: bool) -> u64 {
    let cell = head >> FRACTION_BITS;
    let slot = (0..1u64 << 12)
        .find(|slot| RejectionTable::get().slot(slot << 52) == Slot::Inside { cell })
        .expect("the cell has an inside box");
    slot << 52 | u64::from(negative) << FRACTION_BITS | head & ((1 << FRACTION_BITS) - 1)
}

fn scripted_draw(scale: f64, words: &[u64]) -> i64 {
    let mut rng = Scripted::new(words);
    let mut out = [0];
    let noise = RoundedGaussian::new(scale, 0).unwrap();
    noise.fill(&mut rng, &mut out);
    assert_eq!(rng.0.len(), 0, "words left over");
    out[0]
}

#[test]
fn a_position_between_two_integers_takes_more_digits() {
    // 3 x = 1/2 at x = 1/6 = (head + 2/3) / 2^56, so the digits that follow the head decide between
    // 0 and 1.
    let head = (1u64 << 56) / 6;
    let third = u64::MAX / 3; // 0x5555...
    for negative in [false, true] {
        let sign = if negative { -1 } else { 1 };
        let word = word_at(head, negative);
        assert_eq!(scripted_draw(3.0, &[word, 2 * third - 1]), 0);
        assert_eq!(scripted_draw(3.0, &[word, 2 * third + 1]), sign);
        // 2/3 itself begins with 0xaaaa...: undecided again, as often as the digits agree.
        assert_eq!(scripted_draw(3.0, &[word, 2 * third, 2 * third, 0]), 0);
        assert_eq!(scripted_draw(3.0, &[word, 2 * third, u64::MAX]), sign);
        // Its neighbours are decided by the head alone.
        assert_eq!(scripted_draw(3.0, &[word_at(head - 1, negative)]), 0);
        assert_eq!(scripted_draw(3.0, &[word_at(head + 1, negative)]), sign);
    }
}

#[test]
fn a_dyadic_halfway_point_is_decided_at_once() {
    // [1/2 - 2^-56, 1/2) rounds to 0 and [1/2, 1/2 + 2^-56) to 1: intervals are closed below and
    // open above.
    let half = 1u64 << 55;
    assert_eq!(scripted_draw(1.0, &[word_at(half - 1, false)]), 0);
    assert_eq!(scripted_draw(1.0, &[word_at(half, false)]), 1);
    assert_eq!(scripted_draw(1.0, &[word_at(half, true)]), -1);
}

#[test]
fn rounding_by_words_is_rounding_by_big_integers() {
    let mut rng = ChaCha20Rng::seed_from_u64(24);
    for scale in [1.0, 3.7, 12345.678, 2f64.powi(40) * 1.1, 2f64.powi(48)] {
        let noise = RoundedGaussian::new(scale, 0).unwrap();
        for _ in 0..2000 {
            let head = rng.next_u64() >> 4;
            let Some(rounded) = noise.round_head(head) else {
                continue;
            };
            // One more word sends the rounding down the path of natural numbers.
            let mut position = Prefix::new(head, POSITION_BITS);
            position.extend(&mut rng);
            assert_eq!(noise.round(&mut rng, position), rounded);
            let value = scale * head as f64 / 2f64.powi(56);
            assert!((value - rounded as f64).abs() <= 0.5 + value * 1e-15);
        }
    }
}

#[test]
fn range_of_scales() {
    for (sigma, exponent) in [
        (1.0, 0),
        (2f64.powi(48), 0),
        (1e-300, -1000),
        (f64::from_bits(1), -1074),
        (1e300, 960),
    ] {
        let noise = RoundedGaussian::new(sigma, exponent).unwrap();
        assert_eq!(noise.scale(), libm::ldexp(sigma, -exponent));
    }
    for (sigma, exponent) in [
        (0.999, 0),
        (2f64.powi(48) * (1.0 + f64::EPSILON), 0),
        (1.0, i32::MIN),
        (1.0, i32::MAX),
    ] {
        let error = RoundedGaussian::new(sigma, exponent).unwrap_err();
        assert!(matches!(error, NoiseError::NoiseScale { .. }));
    }
    for sigma in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let error = RoundedGaussian::new(sigma, 0).unwrap_err();
        assert!(matches!(
            error,
            NoiseError::NotPositive { name: "sigma", .. }
        ));
    }
}
