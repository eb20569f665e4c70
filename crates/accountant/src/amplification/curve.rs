//! The masked hockey-stick curve of one release, rounded up.
//!
//! Everything is in the excess `V(epsilon) = H_g - max(0, 1 - g)` at `g = e^epsilon`: it is small
//! where the curve says something, so its rounding is relative.
//!
//! Three shapes of release have a closed form whose excess is convex, then concave in the squared
//! shift (Lemma 9 of `docs/privacy.md`), and there the envelope is exact:
//! - a single shift (squared distance `S`): the excess is a Black-Scholes price, its derivative in
//!   `s` is `phi(epsilon/sqrt(s) - sqrt(s)/2) / (2 sqrt(s))`, with one maximum;
//! - the subsampled Gaussian under zero-out: `H_g = q H_K` of the single shift, `K = 1 + (g-1)/q`;
//! - the subsampled Gaussian under replace-one, for `S` up to [`SYMMETRIC_LIMIT`].
//!
//! Everything else goes by steps that need monotonicity only.

use super::envelope::{s_shaped, stepped};
use super::excess::difference_above;
use crate::adjacency::Adjacency;
use crate::mixture::{MixturePair, ShiftMixture};
use crate::normal::{density, upper_tail};

/// Up to this squared shift the replace-one excess is proved to have one inflection.
const SYMMETRIC_LIMIT: f64 = 12.0;

/// The masked excess of a pair's first direction.
pub(super) struct MaskedCurve {
    shape: Shape,
    mean: f64,
}

enum Shape {
    /// `(1-q) N(0) + q N(sqrt(S))` against `N(0)`; `q = 1` for a single shift.
    Sampled { rate: f64, square: f64 },
    /// `(1-q) N(0) + q N(+-sqrt(S))` against its mirror image.
    Symmetric { rate: f64, square: f64 },
    /// Any mixture; the last root found, times `sqrt(rho)`, starts the next search.
    Mixture { pair: MixturePair, root: f64 },
}

impl MaskedCurve {
    /// The curve of one vector of length `shift` that takes part with probability `rate`, against
    /// nothing.
    pub(super) fn single_vector(rate: f64, shift: f64, kappa: f64) -> Self {
        let square = shift * shift;
        Self {
            shape: Shape::Sampled { rate, square },
            mean: kappa,
        }
    }

    /// Whether several vectors are masked together, so that a chain can be better.
    pub(super) fn has_several_vectors(&self) -> bool {
        !matches!(self.shape, Shape::Sampled { .. })
    }

    /// The curve when the mean of `rho` is at most `mean`.
    pub(super) fn new(mixture: &ShiftMixture, adjacency: Adjacency, mean: f64) -> Self {
        let largest = mixture.largest();
        let square = largest * largest;
        let rate = mixture.parts().last().map_or(1.0, |part| part.1);
        let shape = match adjacency {
            Adjacency::ZeroOut if mixture.is_subsampled() => Shape::Sampled { rate, square },
            // Two records that pull apart: one vector of twice the length.
            Adjacency::ReplaceOne if mixture.is_single() => {
                let square = 4.0 * square;
                Shape::Sampled { rate: 1.0, square }
            }
            Adjacency::ReplaceOne if mixture.is_subsampled() && square <= SYMMETRIC_LIMIT => {
                Shape::Symmetric { rate, square }
            }
            _ => Shape::Mixture {
                pair: MixturePair::directions(mixture, adjacency)[0].clone(),
                root: 0.0,
            },
        };
        Self { shape, mean }
    }

    /// An upper bound of the masked excess at `epsilon`, of either sign.
    pub(super) fn excess(&mut self, epsilon: f64) -> f64 {
        self.excess_within(epsilon, f64::INFINITY)
    }

    /// The same, given another upper bound: the smaller one, and no work where the other must be.
    pub(super) fn excess_within(&mut self, epsilon: f64, other: f64) -> f64 {
        if self.envelope_floor(epsilon) >= other {
            return other;
        }
        self.envelope(epsilon).min(other)
    }

    /// Two values that the envelope is not below, where they are much cheaper than the envelope.
    fn envelope_floor(&mut self, epsilon: f64) -> f64 {
        match &mut self.shape {
            Shape::Mixture { pair, root } => {
                let mut at = |rho: f64| mixture_excess(pair, root, rho, epsilon);
                at(self.mean).max(self.mean * at(1.0))
            }
            _ => 0.0,
        }
    }

    /// The envelope at the mean of `rho`.
    fn envelope(&mut self, epsilon: f64) -> f64 {
        match &mut self.shape {
            Shape::Sampled { rate, square } => {
                let strike = 1.0 + epsilon.exp_m1() / *rate;
                if strike <= 0.0 {
                    // The density ratio is never below 1 - q: nothing is in excess.
                    return 0.0;
                }
                // ln(strike), but precise near one.
                let log_strike = (epsilon.exp_m1() / *rate).ln_1p();
                *rate * reflected(log_strike, |k| single(k, *square, self.mean))
            }
            Shape::Symmetric { rate, square } => {
                reflected(epsilon, |e| symmetric(e, *rate, *square, self.mean))
            }
            Shape::Mixture { pair, root } => {
                stepped(|rho| mixture_excess(pair, root, rho, epsilon), self.mean)
            }
        }
    }
}

/// Excess of a pair with all shifts times `sqrt(rho)`.
fn mixture_excess(pair: &MixturePair, root: &mut f64, rho: f64, epsilon: f64) -> f64 {
    // The root moves like 1/sqrt(rho); Newton starts from there.
    let scale = rho.sqrt();
    let mut start = *root / scale;
    let excess = pair.scaled(scale).excess(epsilon, &mut start);
    *root = start * scale;
    excess
}

/// For a symmetric pair `V(-e) = exp(-e) V(e)`.
fn reflected(epsilon: f64, positive: impl Fn(f64) -> f64) -> f64 {
    if epsilon >= 0.0 {
        positive(epsilon)
    } else {
        epsilon.exp() * positive(-epsilon)
    }
}

/// Envelope of `s -> H_g(N(sqrt(s)) || N(0))` for `epsilon >= 0`.
fn single(epsilon: f64, square: f64, mean: f64) -> f64 {
    let price = |s: f64| {
        let shift = s.sqrt();
        let (near, far) = (epsilon / shift - 0.5 * shift, epsilon / shift + 0.5 * shift);
        let value = difference_above(upper_tail(near), epsilon.exp() * upper_tail(far));
        (value, 0.5 * shift * density(near))
    };
    s_shaped(price, mean * square, square)
}

/// Envelope of `s -> H_g` between `(1-q) N(0) + q N(sqrt(s))` and its mirror image, `epsilon >= 0`.
fn symmetric(epsilon: f64, rate: f64, square: f64, mean: f64) -> f64 {
    let odds = (1.0 - rate) / rate * (0.5 * epsilon).sinh();
    let (g, above_one) = (epsilon.exp(), epsilon.exp_m1());
    let price = |s: f64| {
        let shift = s.sqrt();
        // With x = shift * root, the loss is epsilon where
        // q e^{-s/2} (e^x - g e^{-x}) = (1-q)(g-1).
        let root = (0.5 * epsilon + libm::asinh(odds * (0.5 * s).exp())) / shift;
        let gain = rate * upper_tail(root - shift);
        let loss =
            rate * g * upper_tail(root + shift) + (1.0 - rate) * above_one * upper_tail(root);
        let slope = density(root - shift) + g * density(root + shift);
        (difference_above(gain, loss), 0.5 * shift * rate * slope)
    };
    s_shaped(price, mean * square, square)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exact_shapes_agree_with_steps() {
        // The stepped way knows nothing of shapes: it must lie above the exact one, and near it.
        let cases: [(&[f64], &[f64], Adjacency); 5] = [
            (&[0.05], &[1.0], Adjacency::ZeroOut),
            (&[0.5], &[1.0], Adjacency::ReplaceOne),
            (&[0.0, 0.25], &[0.9375, 0.0625], Adjacency::ZeroOut),
            (&[0.0, 1.0], &[0.99, 0.01], Adjacency::ReplaceOne),
            (&[0.0, 3.0], &[0.7, 0.3], Adjacency::ReplaceOne),
        ];
        for (shifts, probabilities, adjacency) in cases {
            let mixture = ShiftMixture::new(shifts, probabilities).unwrap();
            let pair = &MixturePair::directions(&mixture, adjacency)[0];
            for mean in [0.02, 0.1, 0.5, 1.0] {
                let mut curve = MaskedCurve::new(&mixture, adjacency, mean);
                assert!(!matches!(curve.shape, Shape::Mixture { .. }));
                for y in [-4.0, -1.0, -0.1, 0.3, 1.0, 2.5, 5.0] {
                    let epsilon = pair.loss(y * mean.sqrt());
                    let exact = curve.excess(epsilon);
                    let mut root = 0.0;
                    let at = |rho: f64| pair.scaled(rho.sqrt()).excess(epsilon, &mut root);
                    let above = stepped(at, mean);
                    let note =
                        format!("{shifts:?} {adjacency:?} {mean} {epsilon}: {exact} {above}");
                    assert!(above >= exact * (1.0 - 1e-9) - 1e-18, "{note}");
                    assert!(above <= exact * 1.035 + 1e-15, "{note}");
                }
            }
        }
    }

    #[test]
    fn unmasked_curves_match_the_mixture_path() {
        for (adjacency, q, shift) in [
            (Adjacency::ZeroOut, 0.01, 1.0),
            (Adjacency::ReplaceOne, 0.2, 0.7),
        ] {
            let mixture = ShiftMixture::new(&[0.0, shift], &[1.0 - q, q]).unwrap();
            let pair = &MixturePair::directions(&mixture, adjacency)[0];
            let mut curve = MaskedCurve::new(&mixture, adjacency, 1.0);
            for epsilon in [-0.3, -0.005, 0.0, 0.01, 0.4, 1.5] {
                let (ours, other) = (curve.excess(epsilon), pair.excess(epsilon, &mut 0.0));
                assert!(
                    (ours - other).abs() < 1e-13 * (1.0 + other),
                    "{epsilon}: {ours} {other}"
                );
            }
        }
    }
}
