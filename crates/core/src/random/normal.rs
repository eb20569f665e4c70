//! Standard normal numbers in floating point, many at a time: the Box-Muller transform
//! `sqrt(-2 log u) (cos 2 pi v, sin 2 pi v)` as vector code.
//!
//! **Use.** Simulated noise, in place of ideal real numbers: each number is made of 32 random bits,
//! so none is larger than 6.7, and low bits are those of `f32` arithmetic. Deployed clients draw
//! exact integers instead (`privacy/secure`).
//!
//! **Cost.** Half of the random bytes that the ziggurat method takes, and no branches: 2.9 ns a
//! number with ChaCha20 where `rand_distr` takes 6.7. It matters, because noise is drawn for every
//! coordinate that travels.

use rand::Rng;

use crate::linalg::vectorised_widely;

/// Numbers whose random bytes are drawn together.
pub(crate) const BLOCK: usize = 512;

/// Numbers that are made together.
const PART: usize = 64;

const HALF: usize = PART / 2;

/// Fills `numbers` with independent standard normal numbers, taking eight bytes of the stream for
/// every two of them.
pub fn fill_standard_normal<R: Rng>(rng: &mut R, numbers: &mut [f32]) {
    match numbers.len() {
        0..=PART => fill_by_parts::<1, R>(rng, numbers),
        _ => fill_by_parts::<{ BLOCK / PART }, R>(rng, numbers),
    }
}

/// The same, with the random bytes of `PARTS` parts made at a time.
fn fill_by_parts<const PARTS: usize, R: Rng>(rng: &mut R, numbers: &mut [f32]) {
    let mut parts = [[0; 4 * PART]; PARTS];
    for target in numbers.chunks_mut(PARTS * PART) {
        let (whole, rest) = (target.len() / PART, target.len() % PART);
        rng.fill_bytes(parts[..whole].as_flattened_mut());
        if rest > 0 {
            let (radii, turns) = parts[whole].split_at_mut(4 * HALF);
            rng.fill_bytes(&mut radii[..4 * rest.div_ceil(2)]);
            rng.fill_bytes(&mut turns[..4 * rest.div_ceil(2)]);
        }
        vectorised_widely(
            #[inline(always)]
            || {
                for (target, bytes) in target.chunks_mut(PART).zip(&parts) {
                    let mut made = [0.0; PART];
                    transform(bytes, &mut made);
                    let (cosines, sines) = target.split_at_mut(target.len().div_ceil(2));
                    cosines.copy_from_slice(&made[..cosines.len()]);
                    sines.copy_from_slice(&made[HALF..][..sines.len()]);
                }
            },
        );
    }
}

#[inline(always)]
fn transform(bytes: &[u8; 4 * PART], block: &mut [f32; PART]) {
    let words = bytes.as_chunks::<4>().0;
    let (cosines, sines) = block.split_at_mut(HALF);
    for i in 0..HALF {
        let (u, v) = (
            u32::from_le_bytes(words[i]),
            u32::from_le_bytes(words[HALF + i]),
        );
        // 31 bits, because vectors convert signed integers only, and the middle of the interval: in
        // (0, 1].
        let uniform = ((u >> 1) as i32 as f32).mul_add(1.0 / (1u32 << 31) as f32, MIDDLE);
        let radius = (-2.0 * logarithm(uniform)).sqrt();
        // Turns in [-1/2, 1/2).
        let turns = v as i32 as f32 * (1.0 / (1u64 << 32) as f32);
        cosines[i] = radius * quarter_sine(0.25 - turns.abs());
        // sin(pi - x) = sin x brings the outer quarters in.
        let folded = if turns.abs() > 0.25 {
            0.5f32.copysign(turns) - turns
        } else {
            turns
        };
        sines[i] = radius * quarter_sine(folded);
    }
}

const MIDDLE: f32 = 1.0 / (1u64 << 32) as f32;

/// `log x` for normal `x`: `x = 2^n m` with `m` around 1, `log m = 2 artanh((m - 1)/(m + 1))`.
/// Absolute error below `1.5e-7 (1 + |log x|)`.
#[inline(always)]
fn logarithm(x: f32) -> f32 {
    const ROOT_HALF: u32 = 0x3f35_04f3;
    let shifted = x.to_bits().wrapping_sub(ROOT_HALF);
    let n = (shifted as i32 >> 23) as f32;
    let m = f32::from_bits((shifted & 0x007f_ffff) + ROOT_HALF);
    let s = (m - 1.0) / (m + 1.0);
    let square = s * s;
    let mut series: f32 = 2.0 / 9.0;
    for odd in [7.0, 5.0, 3.0] {
        series = square.mul_add(series, 2.0 / odd);
    }
    n.mul_add(std::f32::consts::LN_2, s.mul_add(square * series, 2.0 * s))
}

/// `sin(2 pi x)` for `|x| <= 1/4`, by its Taylor series. Absolute error below `2e-7`.
#[inline(always)]
fn quarter_sine(x: f32) -> f32 {
    let angle = std::f32::consts::TAU * x;
    let square = angle * angle;
    let mut series: f32 = -1.0 / 39_916_800.0;
    for coefficient in [1.0 / 362_880.0, -1.0 / 5040.0, 1.0 / 120.0, -1.0 / 6.0] {
        series = square.mul_add(series, coefficient);
    }
    (angle * square).mul_add(series, angle)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linalg::simd::three_ways;
    use crate::random::{Purpose, SecretKey, SecretRng};

    #[test]
    fn functions_are_as_accurate_as_stated() {
        for i in 1..=400_000u32 {
            let x = i as f32 / 400_000.0;
            for x in [x, x * 1e-4, x * 1e-9] {
                let exact = libm::log(f64::from(x));
                let error = (f64::from(logarithm(x)) - exact).abs();
                assert!(error < 1.5e-7 * (1.0 + exact.abs()), "log {x}: {error:e}");
            }
            let x = (i as f32 - 200_000.0) / 800_000.0;
            let exact = libm::sin(std::f64::consts::TAU * f64::from(x));
            let error = (f64::from(quarter_sine(x)) - exact).abs();
            assert!(error < 2e-7, "sin {x}: {error:e}");
        }
        assert_eq!(logarithm(1.0), 0.0);
    }

    #[test]
    fn instruction_sets_change_no_bit() {
        let mut rng = SecretKey::simulated(3, 4).stream(1, Purpose::Noise);
        for _ in 0..200 {
            let mut bytes = [0; 4 * PART];
            rng.fill_bytes(&mut bytes);
            let [plain, vectors @ ..] = three_ways(
                #[inline(always)]
                || {
                    let mut made = [f32::NAN; PART];
                    transform(&bytes, &mut made);
                    made.map(f32::to_bits)
                },
            );
            assert_eq!(vectors, [plain; 2]);
        }
    }

    /// A million numbers against the normal law: the Kolmogorov distance exceeds `2.5 / sqrt(n)`
    /// with probability below 8e-6, each of the four moments 5 standard errors with 6e-7, and the
    /// correlation of neighbours and of the two halves of a block likewise; the seed is fixed.
    #[test]
    fn the_law_is_standard_normal() {
        let count = 1_000_000;
        let mut numbers = vec![0.0; count];
        let mut rng = SecretKey::simulated(5, 1).stream(0, Purpose::Noise);
        fill_standard_normal(&mut rng, &mut numbers);
        let n = count as f64;
        let mean =
            |f: &dyn Fn(f64) -> f64| numbers.iter().map(|&x| f(f64::from(x))).sum::<f64>() / n;
        for (power, expected, variance) in
            [(1, 0.0, 1.0), (2, 1.0, 2.0), (3, 0.0, 15.0), (4, 3.0, 96.0)]
        {
            let found = mean(&|x| x.powi(power));
            let allowed = 5.0 * f64::sqrt(variance / n);
            assert!(
                (found - expected).abs() < allowed,
                "moment {power}: {found}"
            );
        }
        for lag in [1, HALF] {
            let products = numbers.iter().zip(&numbers[lag..]);
            let found = products.map(|(&a, &b)| f64::from(a * b)).sum::<f64>() / n;
            assert!(found.abs() < 5.0 / n.sqrt(), "lag {lag}: {found}");
        }
        numbers.sort_by(f32::total_cmp);
        let law = |x: f32| 0.5 * libm::erfc(-f64::from(x) * std::f64::consts::FRAC_1_SQRT_2);
        let distance = (0..count)
            .map(|i| (law(numbers[i]) - (i as f64 + 0.5) / n).abs())
            .fold(0.0, f64::max);
        assert!(distance < 2.5 / n.sqrt(), "{distance}");
    }

    /// A part of a block is made of as many bytes as it needs, and they are not the next one's.
    #[test]
    fn parts_of_blocks_take_what_they_need() {
        let stream = || SecretKey::simulated(2, 2).stream(7, Purpose::Noise);
        let draw = |rng: &mut SecretRng, count| {
            let mut numbers = vec![0.0; count];
            fill_standard_normal(rng, &mut numbers);
            numbers
        };
        let mut whole = stream();
        assert_eq!(draw(&mut whole, 100)[..64], draw(&mut stream(), 64));
        for count in [0, 1, 6, 7, 63] {
            let (mut rng, mut other) = (stream(), stream());
            let part = draw(&mut rng, count);
            assert!(
                part.iter()
                    .all(|number| number.is_finite() && *number != 0.0)
            );
            let mut used = vec![0; 8 * count.div_ceil(2)];
            other.fill_bytes(&mut used);
            assert_eq!(rng.next_u64(), other.next_u64());
        }
    }
}
