//! `exp`, `sigmoid`, `tanh` and `log(1 + exp)` of one number, without branches and without tables,
//! so that a loop over a slice becomes vector code.
//!
//! All start from `exp(x) = 2^n exp(r)` with `n = round(x / log 2)` and the remainder `r` taken in
//! two steps, so that it is right to the last bit; `exp(r) - 1` is the Taylor polynomial of degree
//! seven (`|r| <= 0.347`, remainder below `6e-9`). Not-a-number stays not-a-number, so that a model
//! that diverges is noticed.

use std::f32::consts::LOG2_E;

/// `log 2`, the part whose product with a small integer is exact, and the rest.
const LN2_HIGH: f32 = 355.0 / 512.0;
const LN2_LOW: f32 = -2.121_944_4e-4;

/// Adding it rounds a number to an integer, which is then in the low bits of the sum.
const ROUND: f32 = 12_582_912.0;

/// Between these bounds `2^n` is a normal number.
const LOWEST: f32 = -87.3;
const HIGHEST: f32 = 88.0;

/// `(n, exp(r) - 1)`, the integer as the bits of `n + ROUND`.
#[inline(always)]
fn reduce(x: f32) -> (u32, f32) {
    let shifted = x.mul_add(LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = n.mul_add(-LN2_LOW, n.mul_add(-LN2_HIGH, x));
    let mut series = 1.0 / 5040.0;
    for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5] {
        series = r.mul_add(series, coefficient);
    }
    (shifted.to_bits(), (r * r).mul_add(series, r))
}

/// `2^n` for `n` of [`reduce`] within the bounds of a normal number.
#[inline(always)]
fn power_of_two(n: u32) -> f32 {
    f32::from_bits((n << 23).wrapping_add(127 << 23))
}

/// `exp(x)` for `-87.3 <= x <= 88`; outside, its value at the nearer bound.
#[inline(always)]
pub(crate) fn exp_saturating(x: f32) -> f32 {
    let (n, rest) = reduce(x.clamp(LOWEST, HIGHEST));
    let scale = power_of_two(n);
    scale.mul_add(rest, scale)
}

/// `exp(x)` over the whole range: gradual underflow below, infinity above.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    let (n, rest) = reduce(x.clamp(-105.0, 89.5));
    // 2^n may leave the normal range by a factor of 2^24: two halves do not.
    let n = n.wrapping_sub(ROUND.to_bits()) as i32;
    let half = n >> 1;
    let scale = power_of_two(half as u32) * (1.0 + rest);
    scale * power_of_two((n - half) as u32)
}

/// `1 / (1 + exp(-x))`.
#[inline(always)]
pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp_saturating(-x))
}

/// `(exp(2|x|) - 1) / (exp(2|x|) + 1)` with the sign of `x`; the numerator without cancellation.
#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    // Beyond 10 the result is 1 to the last bit.
    let (n, rest) = reduce((2.0 * x.abs()).clamp(0.0, 20.0));
    let scale = power_of_two(n);
    let numerator = scale.mul_add(rest, scale - 1.0);
    (numerator / (numerator + 2.0)).copysign(x)
}

/// `log(1 + exp(x)) = max(x, 0) + log(1 + u)` with `u = exp(-|x|)`, the logarithm as
/// `2 artanh(u / (2 + u))`, whose argument is at most 1/3.
#[inline(always)]
pub(crate) fn softplus(x: f32) -> f32 {
    let u = exp_saturating(-x.abs());
    let s = u / (2.0 + u);
    let square = s * s;
    let mut series: f32 = 2.0 / 15.0;
    for odd in [13.0, 11.0, 9.0, 7.0, 5.0, 3.0] {
        series = square.mul_add(series, 2.0 / odd);
    }
    let logarithm = s.mul_add(square * series, 2.0 * s);
    (if x > 0.0 { x } else { 0.0 }) + logarithm
}

/// `log x` for normal `x > 0` in `f64`: `x = 2^n m` with `m` around 1,
/// `log m = 2 artanh((m - 1)/(m + 1))`, whose series is cut off below `2^-55`. Error below
/// `1e-15 max(1, |log x|)`.
#[inline(always)]
pub(crate) fn logarithm(x: f64) -> f64 {
    const ROOT_HALF: u64 = 0x3fe6_a09e_667f_3bcd;
    const MANTISSA: u64 = (1 << 52) - 1;
    // Vectors have no signed shift of 64 bits: the exponent is moved up to be positive.
    let shifted = x.to_bits().wrapping_sub(ROOT_HALF).wrapping_add(1024 << 52);
    let n = (shifted >> 52) as f64 - 1024.0;
    let m = f64::from_bits((shifted & MANTISSA) + ROOT_HALF);
    let s = (m - 1.0) / (m + 1.0);
    let square = s * s;
    let mut series: f64 = 2.0 / 21.0;
    for odd in [19.0, 17.0, 15.0, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0] {
        series = square.mul_add(series, 2.0 / odd);
    }
    n.mul_add(std::f64::consts::LN_2, s.mul_add(square * series, 2.0 * s))
}

#[cfg(test)]
mod tests {
    use super::super::{exp, sigmoid, softplus, tanh};
    use super::logarithm;

    /// Largest relative error over a grid of `count` points in `[low, high]`.
    fn worst(
        function: fn(&mut [f32]),
        reference: fn(f64) -> f64,
        low: f64,
        high: f64,
        count: usize,
    ) -> f64 {
        let points: Vec<f32> = (0..=count)
            .map(|i| (low + (high - low) * i as f64 / count as f64) as f32)
            .collect();
        let mut values = points.clone();
        function(&mut values);
        points
            .iter()
            .zip(&values)
            .map(|(&x, &y)| {
                let exact = reference(f64::from(x));
                if exact == 0.0 {
                    f64::from(y).abs()
                } else {
                    (f64::from(y) / exact - 1.0).abs()
                }
            })
            .fold(0.0, f64::max)
    }

    #[test]
    fn relative_errors_are_below_the_stated_bounds() {
        let logistic = |x: f64| 1.0 / (1.0 + libm::exp(-x));
        let soft = |x: f64| {
            if x > 0.0 {
                x + libm::log1p(libm::exp(-x))
            } else {
                libm::log1p(libm::exp(x))
            }
        };
        for (low, high) in [(-87.0, 88.7), (-1.0, 1.0), (-1e-3, 1e-3), (-20.0, 20.0)] {
            let error = worst(exp, libm::exp, low, high, 200_000);
            assert!(error < 2e-7, "exp on {low}..{high}: {error:e}");
            let error = worst(sigmoid, logistic, low, high, 200_000);
            assert!(error < 2e-7, "sigmoid on {low}..{high}: {error:e}");
            let error = worst(tanh, libm::tanh, low, high, 200_000);
            assert!(error < 2e-7, "tanh on {low}..{high}: {error:e}");
            let error = worst(softplus, soft, low, high, 200_000);
            assert!(error < 3e-7, "softplus on {low}..{high}: {error:e}");
        }
    }

    #[test]
    fn the_logarithm_is_as_accurate_as_stated() {
        let mut x = 1.0;
        for i in 0..400_000u32 {
            for x in [x, 1.0 - x / 3.0, 1.0 + x / 3.0, 1e9 * x] {
                let exact = libm::log(x);
                let error = (logarithm(x) - exact).abs();
                assert!(error < 1e-15 * exact.abs().max(1.0), "log {x}: {error:e}");
            }
            x *= if i % 2 == 0 { 0.9999 } else { 0.999_987_654 };
        }
        assert_eq!(logarithm(1.0), 0.0);
        let smallest = 1.0 / (1u64 << 53) as f64;
        assert!((logarithm(smallest) / libm::log(smallest) - 1.0).abs() < 1e-15);
    }

    #[test]
    fn extremes() {
        let mut values = [f32::NEG_INFINITY, -104.5, -100.0, 0.0, 89.0, f32::INFINITY];
        exp(&mut values);
        assert_eq!(values[0], 0.0);
        assert_eq!(values[1], 0.0);
        assert!((f64::from(values[2]) - libm::exp(-100.0)).abs() < 1.5e-45);
        assert_eq!(values[3..], [1.0, f32::INFINITY, f32::INFINITY]);
        let mut values = [f32::NEG_INFINITY, 0.0, f32::INFINITY];
        sigmoid(&mut values);
        assert!(values[0] >= 0.0 && values[0] < 2e-38);
        assert_eq!(values[1..], [0.5, 1.0]);
        let mut values = [f32::NEG_INFINITY, -0.0, 1e-30, f32::INFINITY];
        tanh(&mut values);
        assert_eq!(values, [-1.0, -0.0, 1e-30, 1.0]);
        assert!(values[1].is_sign_negative());
        let mut values = [f32::NEG_INFINITY, 1e30, f32::INFINITY];
        softplus(&mut values);
        assert!(values[0] >= 0.0 && values[0] < 2e-38);
        assert_eq!(values[1..], [1e30, f32::INFINITY]);
        for function in [exp, sigmoid, tanh, softplus] {
            let mut nan = [f32::NAN];
            function(&mut nan);
            assert!(nan[0].is_nan());
        }
    }
}
