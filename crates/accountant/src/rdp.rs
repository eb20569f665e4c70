//! Rényi accounting: one number per order and round, sums over rounds, epsilon at the end.
//!
//! **What.** For a release whose record moves the estimate by `r_i` (in units of the noise) with
//! probability `p_i`, the curve holds for every order `a` a bound on
//! `D_a = log E_Q[(P/Q)^a] / (a - 1)`, the larger of the two directions. `T` rounds cost `T D_a`,
//! and
//!
//! ```text
//! epsilon = min over a of  T D_a + log(1 - 1/a) - log(delta a) / (a - 1)
//! ```
//!
//! (Canonne, Kamath, Steinke, arXiv 2004.00010, Prop. 12; Balle et al., arXiv 1905.09982, Thm. 21).
//!
//! **Why it is a bound.** The scalar pairs of `docs/privacy.md` dominate the vector mechanism in
//! every hockey-stick divergence, for every `g >= 0`. Every f-divergence is an integral of those
//! with weight `f''(g) >= 0`, so the scalar pair dominates in every Rényi order too.
//!
//! **How.** Closed forms where there are any: Gaussian at all orders, subsampled Gaussian and
//! two-component mixtures (numerator side) at integer orders. Everything else is one trapezoid rule
//! (`rdp/quadrature.rs`). The fractional series of Mironov, Talwar and Zhang (arXiv 1908.10530) is
//! the cross-check in the tests rather than the production path: its terms decay like a power of
//! the index at small orders and alternate in sign, while the trapezoid rule keeps full relative
//! precision even where `D_a` is 1e-12. Every moment is raised by 1e-11 for rounding.
//!
//! **Cost.** Under a millisecond for Gaussian and subsampled Gaussian, a few for mixtures and
//! replace-one.
//!
//! In the paper: the moments accountant behind Theorem 1, without its constants.

mod quadrature;

use std::sync::OnceLock;

use crate::adjacency::Adjacency;
use crate::mixture::{MixturePair, ShiftMixture};

/// Relative and absolute inflation of every computed moment: above the rounding of the sums and
/// of the trapezoid rule (both below 1e-12 relative), far below anything visible in epsilon.
const ROUNDING: (f64, f64) = (1e-11, 1e-16);

/// The orders of every curve: 1.1 to 10.9 by 0.1, 11 to 63, then 64 to 1024 in quarter octaves.
///
/// One fixed set makes curves of different phases addable without thought. Orders closer to 1
/// are left out on purpose: there the conversion divides two vanishing numbers.
pub fn orders() -> &'static [f64] {
    static ORDERS: OnceLock<Vec<f64>> = OnceLock::new();
    ORDERS.get_or_init(|| {
        let tenths = (11..110).map(|tenth| f64::from(tenth) / 10.0);
        let integers = (11..64).map(f64::from);
        let octaves = (0..=16).map(|quarter| (64.0 * 2f64.powf(f64::from(quarter) / 4.0)).round());
        tenths.chain(integers).chain(octaves).collect()
    })
}

/// The orders of a filter ([`RdpCurve::filter_epsilon`]). Fixed: never to be chosen by what was
/// seen.
const FILTER_ORDERS: [f64; 12] = [
    1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 64.0, 128.0,
];

/// Rényi divergence bounds at the orders of [`orders`]. Plain data: add the curves of the rounds,
/// then ask for epsilon; a filter compares sums of curves.
#[derive(Clone, Debug, PartialEq)]
pub struct RdpCurve {
    values: Vec<f64>,
}

impl RdpCurve {
    /// The cost of releasing nothing.
    pub fn zero() -> Self {
        Self {
            values: vec![0.0; orders().len()],
        }
    }

    /// One value per order of [`orders`]; `f64::INFINITY` where nothing is claimed.
    pub fn values(&self) -> &[f64] {
        &self.values
    }

    /// A curve from one bound per order of [`orders`].
    pub(crate) fn from_values(values: Vec<f64>) -> Self {
        debug_assert_eq!(values.len(), orders().len());
        Self { values }
    }

    /// The cost of `rounds` such releases, one after the other, each free to depend on the
    /// outputs before it.
    pub fn times(&self, rounds: u64) -> Self {
        let values = self.values.iter();
        Self::from_values(values.map(|&value| spent(value, rounds)).collect())
    }

    /// The cost of these releases and those of `other`, in any order, each free to depend on the
    /// outputs before it.
    pub fn plus(&self, other: &Self) -> Self {
        let pairs = self.values.iter().zip(&other.values);
        Self::from_values(pairs.map(|(a, b)| a + b).collect())
    }

    /// The smaller bound at every order: both must bound the same releases.
    pub fn tighter(&self, other: &Self) -> Self {
        let pairs = self.values.iter().zip(&other.values);
        Self::from_values(pairs.map(|(a, b)| a.min(*b)).collect())
    }

    /// The same curve with nothing claimed at fractional orders: what remains true when the noise
    /// is a discrete Gaussian on integer data, whose moments equal the continuous ones at integer
    /// orders only.
    pub fn at_integer_orders(&self) -> Self {
        let kept = orders().iter().zip(&self.values);
        let keep = |(order, value): (&f64, &f64)| match order.fract() {
            0.0 => *value,
            _ => f64::INFINITY,
        };
        Self::from_values(kept.map(keep).collect())
    }

    /// Smallest epsilon that these orders prove for `rounds` releases at `delta`; infinite when
    /// `delta` is not positive.
    pub fn epsilon(&self, rounds: u64, delta: f64) -> f64 {
        if delta.is_nan() || delta <= 0.0 {
            return f64::INFINITY;
        }
        let at_order = |(&order, &value): (&f64, &f64)| {
            spent(value, rounds) + (-1.0 / order).ln_1p()
                - (delta.ln() + order.ln()) / (order - 1.0)
        };
        let best = orders().iter().zip(&self.values).map(at_order);
        best.fold(f64::INFINITY, f64::min).max(0.0)
    }

    /// The epsilon of releases that were chosen one after the other by looking at the outputs so
    /// far. Divergences add up at every order, whoever chose the next release; the `K` orders are
    /// fixed, and each is given its share of delta, so that the best one may be taken afterwards:
    /// `epsilon = min over a of  D_a + ln(K/delta)/(a - 1)` (`docs/privacy.md`, Proposition 13).
    pub fn filter_epsilon(&self, delta: f64) -> f64 {
        let share = (FILTER_ORDERS.len() as f64 / delta).ln();
        let at = |order: &f64| {
            let mut known = orders().iter();
            let position = known.position(|known| (known - order).abs() < 1e-9)?;
            Some(self.values[position] + share / (order - 1.0))
        };
        let epsilons = FILTER_ORDERS.iter().filter_map(at);
        epsilons.fold(f64::INFINITY, f64::min)
    }

    /// Smallest delta that these orders prove for `rounds` releases at `epsilon >= 0`.
    pub fn delta(&self, rounds: u64, epsilon: f64) -> f64 {
        let at_order = |(&order, &value): (&f64, &f64)| {
            (order - 1.0) * (spent(value, rounds) - epsilon + (-1.0 / order).ln_1p()) - order.ln()
        };
        let best = orders().iter().zip(&self.values).map(at_order);
        best.fold(0.0, f64::min).exp()
    }
}

/// The cost of `rounds` rounds; no rounds cost nothing, even where one costs infinitely much.
fn spent(value: f64, rounds: u64) -> f64 {
    if rounds == 0 {
        0.0
    } else {
        value * rounds as f64
    }
}

/// The Rényi curve of one release of which nothing is hidden: shifts in units of the noise.
pub(crate) fn rdp_curve(mixture: &ShiftMixture, adjacency: Adjacency) -> RdpCurve {
    let directions = MixturePair::directions(mixture, adjacency);
    let first = direction_curve(&directions[0]);
    match &directions[1..] {
        // For {0: 1-q, r: q} the remove direction is the larger one at every order (Mironov,
        // Talwar, Zhang, Thm. 5); other mixtures have no such theorem, so both are computed.
        [add] if !mixture.is_subsampled() => {
            let add = direction_curve(add);
            let both = first.values.iter().zip(&add.values);
            RdpCurve::from_values(both.map(|(a, b)| a.max(*b)).collect())
        }
        _ => first,
    }
}

/// Bounds on `D_a(P || Q)`, one direction of the pair.
pub(crate) fn direction_curve(pair: &MixturePair) -> RdpCurve {
    let divergences = orders().iter().map(|&order| {
        let log_moment = log_moment(pair, order);
        (log_moment * (1.0 + ROUNDING.0) + ROUNDING.1) / (order - 1.0)
    });
    RdpCurve::from_values(divergences.collect())
}

/// `log E_Q[(P/Q)^order]`.
pub(crate) fn log_moment(pair: &MixturePair, order: f64) -> f64 {
    // Conditional on the coins the pair is Gaussian; joint convexity bounds the mixture by the
    // farthest two components. Exact for plain Gaussians, a fallback where quadrature is too long.
    let distance = pair.up.largest() + pair.down.largest();
    let gaussian = 0.5 * order * (order - 1.0) * distance * distance;
    if pair.up.is_single() && pair.down.is_single() {
        return gaussian;
    }
    if order.fract() == 0.0
        && pair.down.largest() == 0.0
        && let [low, high] = pair.up.parts()
    {
        return integer_moment(order as u32, *low, *high).min(gaussian);
    }
    quadrature::log_moment(pair, order).map_or(gaussian, |moment| moment.min(gaussian))
}

/// `log E[(p_0 e^{Z_0} + p_1 e^{Z_1})^order]` by the binomial theorem, with `E e^{...}` of each
/// term in closed form. `low` and `high` are (shift, probability).
///
/// Summing `moment - 1` keeps every term nonnegative, so nothing cancels however small it is.
fn integer_moment(order: u32, low: (f64, f64), high: (f64, f64)) -> f64 {
    let total = f64::from(order);
    let mut log_choose = 0.0;
    let logarithms = (0..=order).filter_map(|chosen| {
        let (many, rest) = (f64::from(chosen), f64::from(order - chosen));
        let sum = rest * low.0 + many * high.0;
        let exponent = 0.5 * (sum * sum - rest * low.0 * low.0 - many * high.0 * high.0);
        let weight = log_choose + rest * low.1.ln() + many * high.1.ln();
        log_choose += ((total - many) / (many + 1.0)).ln();
        // log(e^x - 1), without overflow; the exponent is nonnegative up to rounding.
        (exponent > 0.0).then(|| weight + exponent + (-(-exponent).exp_m1()).ln())
    });
    let logarithms: Vec<f64> = logarithms.collect();
    log_one_plus(log_sum_exp(&logarithms))
}

/// `log(sum of e^x)`; minus infinity for an empty list.
pub(crate) fn log_sum_exp(logarithms: &[f64]) -> f64 {
    let largest = logarithms.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if largest == f64::NEG_INFINITY {
        return largest;
    }
    let scaled = logarithms.iter().map(|value| (value - largest).exp());
    largest + scaled.sum::<f64>().ln()
}

/// `log(1 + e^x)` without overflow or loss.
pub(crate) fn log_one_plus(logarithm: f64) -> f64 {
    if logarithm > 0.0 {
        logarithm + (-logarithm).exp().ln_1p()
    } else {
        logarithm.exp().ln_1p()
    }
}

#[cfg(test)]
mod tests;
