//! A second bound for releases with several masked vectors: one vector at a time.
//!
//! For any distribution `M` between `P` and `Q`,
//! `max(0, P - gQ) <= max(0, P - g'M) + g' max(0, M - (g/g')Q)`, so
//!
//! ```text
//! H_g(P||Q) <= H_{g'}(P||M) + g' H_{g/g'}(M||Q)       for every 0 < g' < infinity.
//! ```
//!
//! Replace the shifts by zero one after the other. Each step of this chain, a leg, moves one vector
//! only, so for each the mean of `rho` is `kappa`, not `vectors * kappa`; `g'` may depend on `g`,
//! not on the mask. The legs of `P = sum p_i N(u_i)` are
//! - the largest shift, once all others are zero: a subsampled Gaussian with rate `p_i`;
//! - any other shift `u_i`: by joint convexity `V = p_i V(N(u_i) || N(0))`.
//!
//! Under replace-one the legs of the other record follow in reverse. For shifts far below the noise
//! nothing is lost (the losses add up linearly); for large losses the bound of the envelope at
//! `vectors * kappa` is better. The smaller of two upper bounds of a convex curve is one, and its
//! convex hull is what the caller takes.

use super::curve::MaskedCurve;
use super::grid::geometric;
use crate::adjacency::Adjacency;
use crate::mixture::{MixturePair, ShiftMixture};

/// Nodes per typical loss around zero.
const DENSE: f64 = 80.0;

/// Golden sections of the split; the objective is convex in `g'`, and every split is valid.
const SECTIONS: usize = 24;

/// The excess `V = H - max(0, 1-g)` at nodes of epsilon, an upper bound at each.
pub(super) struct Table {
    epsilons: Vec<f64>,
    levels: Vec<f64>,
    excesses: Vec<f64>,
}

impl Table {
    /// The chain of all legs of a release, first direction.
    pub(super) fn of_release(
        mixture: &ShiftMixture,
        adjacency: Adjacency,
        kappa: f64,
        scale: f64,
    ) -> Self {
        let pair = &MixturePair::directions(mixture, adjacency)[0];
        let (bottom, top) = super::grid::range(pair);
        let below = geometric(-bottom, scale / DENSE)
            .into_iter()
            .rev()
            .map(|e| -e);
        let epsilons: Vec<f64> = below
            .chain([0.0])
            .chain(geometric(top, scale / DENSE))
            .collect();

        let legs = mixture.moving().map(|(shift, probability)| {
            let largest = shift == mixture.largest();
            let (rate, weight) = if largest {
                (probability, 1.0)
            } else {
                (1.0, probability)
            };
            let mut leg = MaskedCurve::single_vector(rate, shift, kappa);
            Self::tabulate(&epsilons, |epsilon| weight * leg.excess(epsilon))
        });
        let there = legs
            .reduce(|sofar, leg| sofar.then(&leg, scale))
            .unwrap_or_else(|| Self::tabulate(&epsilons, |_| 0.0));
        match adjacency {
            Adjacency::ZeroOut => there,
            // The way back is the mirror image: H_g(Q||P) - ... = g V_{1/g}.
            Adjacency::ReplaceOne => {
                let back = Self::tabulate(&epsilons, |epsilon| epsilon.exp() * there.at(-epsilon));
                there.then(&back, scale)
            }
        }
    }

    fn tabulate(epsilons: &[f64], mut excess: impl FnMut(f64) -> f64) -> Self {
        let excesses = epsilons.iter().map(|&epsilon| excess(epsilon)).collect();
        let levels = epsilons.iter().map(|epsilon| epsilon.exp()).collect();
        Self {
            epsilons: epsilons.to_vec(),
            levels,
            excesses,
        }
    }

    /// Upper bound at any epsilon: the chord in `g` between nodes, which lies above because the
    /// excess is convex on either side of zero; beyond the ends, the excess is at most the end's.
    pub(super) fn at(&self, epsilon: f64) -> f64 {
        let after = self.epsilons.partition_point(|&node| node < epsilon);
        if after == 0 {
            return self.excesses[0];
        }
        if after == self.epsilons.len() {
            return self.excesses[after - 1];
        }
        let (low, high) = (self.levels[after - 1], self.levels[after]);
        let share = ((epsilon.exp() - low) / (high - low)).clamp(0.0, 1.0);
        self.excesses[after - 1] * (1.0 - share) + self.excesses[after] * share
    }

    /// The chain of this and the next leg, at the same nodes.
    fn then(&self, next: &Self, scale: f64) -> Self {
        Self::tabulate(&self.epsilons, |epsilon| {
            let split = |part: f64| {
                let rest = epsilon - part;
                self.at(part) + part.exp() * next.at(rest) + overlap(part, rest)
            };
            // Splits with parts of opposite signs pay where the legs are lopsided, around zero.
            let reach = 0.5 * epsilon.abs() + 8.0 * scale;
            golden_minimum(split, epsilon.min(0.0) - reach, epsilon.max(0.0) + reach)
        })
    }
}

/// `max(0, 1-g') + g' max(0, 1-g/g') - max(0, 1-g)` for `g' = e^part`, `g/g' = e^rest`: zero unless
/// the parts have opposite signs. Written without cancellation.
fn overlap(part: f64, rest: f64) -> f64 {
    if part < 0.0 && rest > 0.0 {
        (-part.exp_m1()).min(part.exp() * rest.exp_m1())
    } else if part > 0.0 && rest < 0.0 {
        part.exp_m1().min(-part.exp() * rest.exp_m1())
    } else {
        0.0
    }
}

/// Smallest value found by golden sections on `[low, high]`.
fn golden_minimum(function: impl Fn(f64) -> f64, mut low: f64, mut high: f64) -> f64 {
    let ratio = 0.5 * (5f64.sqrt() - 1.0);
    let (mut left, mut right) = (high - ratio * (high - low), low + ratio * (high - low));
    let (mut at_left, mut at_right) = (function(left), function(right));
    for _ in 0..SECTIONS {
        if at_left < at_right {
            (high, right, at_right) = (right, left, at_left);
            left = high - ratio * (high - low);
            at_left = function(left);
        } else {
            (low, left, at_left) = (left, right, at_right);
            right = low + ratio * (high - low);
            at_right = function(right);
        }
    }
    at_left.min(at_right)
}
