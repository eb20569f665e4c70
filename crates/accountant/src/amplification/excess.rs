//! The hockey-stick divergence of a pair, rounded up: a difference of normal tails above one root.

use crate::mixture::{MixturePair, ShiftMixture};

impl MixturePair {
    /// `H_g(P||Q) - max(0, 1 - g)` at `g = e^epsilon`, rounded up: the part of the curve that says
    /// more than "all distributions have mass one". Positive for all signs of epsilon.
    ///
    /// `start` is a guess of the outcome where the loss equals epsilon and is replaced by it.
    pub(super) fn excess(&self, epsilon: f64, start: &mut f64) -> f64 {
        let root = self.root(epsilon, *start);
        *start = root;
        if epsilon < 0.0 {
            // H_g(P||Q) - (1 - g) = g H_{1/g}(Q||P), with mirrored outcomes; only small numbers.
            let (p, q) = (self.mass_below(root), self.other_mass_below(root));
            return difference_above(epsilon.exp() * q, p);
        }
        let (p, q) = (self.mass_above(root), self.other_mass_above(root));
        difference_above(p, epsilon.exp() * q)
    }

    /// The outcome at which the loss equals `epsilon`, or an outcome beyond which every tail is
    /// zero when the loss does not reach it before.
    fn root(&self, epsilon: f64, start: f64) -> f64 {
        /// So many standard deviations from every mean, tails underflow.
        const FAR: f64 = 38.5;
        let (bottom, top) = (-FAR - self.down.largest(), FAR + self.up.largest());
        let (mut low, mut high) = (bottom, top);
        let mut y = start.clamp(low, high);
        for _ in 0..100 {
            let (log_p, slope_p) = plain_log_density_and_slope(&self.up, y);
            let (log_q, slope_q) = plain_log_density_and_slope(&self.down, -y);
            let value = log_p - log_q - epsilon;
            if value > 0.0 {
                high = y;
            } else {
                low = y;
            }
            let newton = y - value / (slope_p + slope_q);
            let next = if newton > low && newton < high {
                newton
            } else if newton >= top && low < top {
                // Is there a root at all? Ask the end once; it then closes the bracket.
                top
            } else if newton <= bottom && high > bottom {
                bottom
            } else {
                0.5 * (low + high)
            };
            // Newton squares the error, and the divergence squares it once more.
            let moved = (next - y).abs();
            y = next;
            if moved < 1e-6 {
                break;
            }
        }
        y
    }
}

/// `ln` of the mixture's density over that of `N(0, 1)`, and its slope. Without the care of
/// [`ShiftMixture::log_density`] for shifts far below the noise: an error of the root enters the
/// divergence squared.
fn plain_log_density_and_slope(mixture: &ShiftMixture, y: f64) -> (f64, f64) {
    let exponent = |shift: f64| shift * (y - 0.5 * shift);
    if let [(only, _)] = *mixture.parts() {
        return (exponent(only), only);
    }
    let exponents = mixture.parts().iter().map(|part| exponent(part.0));
    let largest = exponents.fold(f64::NEG_INFINITY, f64::max);
    let (mut sum, mut moment) = (0.0, 0.0);
    for &(shift, probability) in mixture.parts() {
        let term = probability * (exponent(shift) - largest).exp();
        sum += term;
        moment += shift * term;
    }
    (largest + sum.ln(), moment / sum)
}

/// `large - small` for two rounded nonnegative numbers, rounded up by more than their errors and
/// never negative.
pub(super) fn difference_above(large: f64, small: f64) -> f64 {
    (large - small).max(0.0) + 64.0 * f64::EPSILON * large
}
