//! Secure noise: the Gaussian mechanism on integers, without rounding errors.
//!
//! A floating-point Gaussian mechanism does not have the guarantee of the ideal one: the noise has
//! holes (Mironov 2012), the low bits of `x + noise` tell `x` (Haney et al. 2022), and a
//! floating-point sum of clipped records is more sensitive than its clip (Casacuberta et al. 2022).
//! Here a release is made of integers only:
//!
//! 1. [`Grid`] turns every record's clipped contribution into integers, truncated toward zero,
//!    whose squared norm is checked in exact arithmetic against
//!    `floor((clip / (divisor * step))^2)`; integer sums are exact in any order.
//! 2. [`RoundedGaussian`] draws `round(N(0, (sigma / step)^2))`, exactly, from a cryptographic
//!    generator.
//! 3. The two are added. On integers `x + round(N) = round(x + N)`, so the release is a function of
//!    the release of the ideal continuous mechanism: **every** bound proved for the latter
//!    (privacy-loss distribution, closed form, mixture, Renyi, both adjacencies) holds for it
//!    unchanged. That is why no discrete Gaussian is offered beside it: the discrete Gaussian
//!    inherits only the integer-order moments, and is slower to draw.
//!
//! All that comes after the noised integers (scaling, shifts, compression, 32-bit floats) is
//! post-processing. [`GridPlan`] picks one step for all the terms of an estimator and the noise
//! that goes with it.
//!
//! Order of work: draw the noise of a round at once, *before* the records are read, so that the
//! time a sampler takes (it is not constant) cannot depend on the data. Wipe the noise once it has
//! been added: whoever knows it, or the key of its generator, can subtract it.
//!
//! ```
//! use chacha20::ChaCha20Rng;
//! use rand::SeedableRng;
//! use soteriafl_core::privacy::secure::{GridPlan, TermBound};
//!
//! // Two coordinates, records clipped to norm 1, an expected batch of 50, noise 0.08 on the mean.
//! let plan = GridPlan::new(0.08, 2, &[TermBound { clip: 1.0, divisor: 50.0 }])?;
//! let grid = &plan.grids()[0];
//! // In production: a seed from the operating system.
//! let mut rng = ChaCha20Rng::from_seed([1; 32]);
//! let mut noise = vec![0; 2];
//! plan.noise().fill(&mut rng, &mut noise);
//!
//! let (mut sum, mut record) = (vec![0; 2], vec![0; 2]);
//! for values in [[0.6, 0.8], [1.0, 0.0]] {
//!     grid.quantize(&values, &mut record);
//!     grid.add(&record, &mut sum);
//! }
//! grid.add(&noise, &mut sum);
//! let mut estimate = vec![0.0; 2];
//! grid.to_f64(&sum, &mut estimate);
//! # assert!(estimate.iter().all(|value: &f64| value.abs() < 1.0));
//! # Ok::<(), soteriafl_core::privacy::secure::NoiseError>(())
//! ```

mod big_integer;
mod exponential;
pub mod grid;
mod rejection_table;
pub mod rounded_gaussian;

pub use grid::{Grid, GridPlan, TermBound};
pub use rounded_gaussian::RoundedGaussian;

/// Why a grid or a sampler could not be built.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum NoiseError {
    /// A parameter that must be a finite number above zero is not.
    #[error("{name} must be finite and above zero, found {found}")]
    NotPositive {
        /// Which parameter.
        name: &'static str,
        /// Its value.
        found: f64,
    },
    /// The noise, measured in grid steps, is outside the range of the sampler.
    #[error("noise must measure between 1 and 2^{maximum_log2} grid steps, found {found}")]
    NoiseScale {
        /// Base-two logarithm of the largest scale.
        maximum_log2: i32,
        /// Standard deviation in grid steps.
        found: f64,
    },
    /// No grid is both fine enough for the records and coarse enough for the noise.
    #[error(
        "truncation may cost at most {expected} of the clip, found {found}: noise too large for clip {clip} over divisor {divisor}"
    )]
    TooCoarse {
        /// Largest relative truncation error of one record.
        expected: f64,
        /// The one the finest allowed grid would give.
        found: f64,
        /// Clip of the offending term.
        clip: f64,
        /// Divisor of the offending term.
        divisor: f64,
    },
    /// A record at the clip would not fit the integers of the grid.
    #[error("a record may measure between 1 and 2^{maximum_log2} grid steps, found {found}")]
    BoundRange {
        /// Base-two logarithm of the largest norm.
        maximum_log2: i32,
        /// Norm of a record at the clip, in grid steps.
        found: f64,
    },
    /// The step of the grid is no ordinary floating-point number.
    #[error("grid exponent must lie between {minimum} and {maximum}, found {found}")]
    GridExponent {
        /// Smallest exponent.
        minimum: i32,
        /// Largest exponent.
        maximum: i32,
        /// The exponent asked for.
        found: i32,
    },
    /// A plan needs at least one term and one coordinate.
    #[error("a grid plan needs at least one {name}")]
    Empty {
        /// What is missing.
        name: &'static str,
    },
}

/// A positive finite `f64` as `mantissa * 2^exponent`, exactly, with `2^52 <= mantissa < 2^53`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Dyadic {
    mantissa: u64,
    exponent: i32,
}

impl Dyadic {
    fn new(name: &'static str, value: f64) -> Result<Self, NoiseError> {
        if !(value.is_finite() && value > 0.0) {
            return Err(NoiseError::NotPositive { name, found: value });
        }
        let bits = value.to_bits();
        let fraction = bits & ((1 << 52) - 1);
        // The sign bit is clear, so what is above the fraction is the biased exponent.
        let biased = (bits >> 52) as i32;
        let (mantissa, exponent) = if biased == 0 {
            (fraction, -1074)
        } else {
            (fraction | 1 << 52, biased - 1075)
        };
        // Normal numbers have exactly eleven leading zeros, subnormal ones have more.
        let lift = mantissa.leading_zeros() - 11;
        Ok(Self {
            mantissa: mantissa << lift,
            exponent: exponent - lift as i32,
        })
    }

    /// Largest `p` with `2^p <= value`.
    fn log2_floor(self) -> i32 {
        self.exponent + 52
    }
}

/// `2^exponent`, exactly; the exponent must be that of a normal number.
fn power_of_two(exponent: i32) -> f64 {
    debug_assert!((-1022..=1023).contains(&exponent));
    f64::from_bits(((exponent + 1023) as u64) << 52)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_float_is_its_dyadic() {
        for value in [1.0, 0.1, 3.7, 1e-300, f64::MAX, f64::MIN_POSITIVE] {
            let dyadic = Dyadic::new("value", value).unwrap();
            assert_eq!(dyadic.mantissa >> 52, 1);
            let half = dyadic.exponent / 2;
            let rebuilt =
                dyadic.mantissa as f64 * power_of_two(half) * power_of_two(dyadic.exponent - half);
            assert_eq!(rebuilt, value);
            assert!(dyadic.log2_floor() == value.log2().floor() as i32 || value == f64::MAX);
        }
        let tiny = Dyadic::new("value", f64::from_bits(1)).unwrap();
        assert_eq!((tiny.mantissa, tiny.exponent), (1 << 52, -1126));
    }

    #[test]
    fn only_positive_finite_numbers_are_dyadic() {
        for value in [0.0, -0.0, -1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let error = Dyadic::new("sigma", value).unwrap_err();
            assert!(matches!(
                error,
                NoiseError::NotPositive { name: "sigma", .. }
            ));
        }
    }
}
