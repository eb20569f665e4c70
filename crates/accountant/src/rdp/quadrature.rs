//! `log E_Q[(P/Q)^a]` of a scalar pair by the trapezoid rule.
//!
//! **Formula.** With `L = log(P/Q)` and `E_Q[e^L - 1] = 0`,
//!
//! ```text
//! E_Q[e^{aL}] - 1 = E_Q[ e^{aL} - 1 - a (e^L - 1) ],
//! ```
//!
//! whose integrand is nonnegative, so small moments keep their relative precision.
//!
//! **Error.** The integrand is analytic in a strip around the real line, where the trapezoid rule
//! errs by `exp(-2 pi c / step)` times the growth at height `c`. The modulus of `P` does not grow
//! there and its zeros are `pi / r` away; the Gaussian grows by `e^{c^2/2}` and the power of `Q` by
//! about `e^{(a-1) t^2 c^2 / 2}`. With `step = 0.5 / sqrt(1 + r^2 + a t^2)` the three errors are
//! below `e^{-39}`. Both ends are cut where the remaining tail is below `e^{-72}`.

use super::{log_one_plus, log_sum_exp};
use crate::mixture::MixturePair;

/// Beyond this value of `a (r + t)^2` the divergence is above a hundred, the order useless, and its
/// integral long: the caller falls back to the Gaussian bound.
const LONGEST: f64 = 300.0;

/// Distance to the farthest mode at which the integrand has lost a factor `e^{72}`.
const REACH: f64 = 12.0;

/// The logarithm of the moment, or `None` where it would take too long.
pub(super) fn log_moment(pair: &MixturePair, order: f64) -> Option<f64> {
    let (right, left) = (pair.up.largest(), pair.down.largest());
    if order * (right + left).powi(2) > LONGEST {
        return None;
    }
    let step = 0.5 / (1.0 + right * right + order * left * left).sqrt();
    let bottom = -(left + REACH);
    let top = order * right + (order - 1.0) * left + REACH;
    let count = ((top - bottom) / step).ceil() as usize;
    let logarithms: Vec<f64> = (0..=count)
        .filter_map(|index| log_integrand(pair, order, bottom + index as f64 * step))
        .collect();
    let scale = (step / (2.0 * std::f64::consts::PI).sqrt()).ln();
    Some(log_one_plus(log_sum_exp(&logarithms) + scale))
}

/// Logarithm of the integrand at `y`, without the Gaussian's constant; `None` where it is zero.
fn log_integrand(pair: &MixturePair, order: f64, y: f64) -> Option<f64> {
    let log_q = pair.down.log_density(-y);
    let loss = pair.up.log_density(y) - log_q;
    let bracket = if (order * loss).abs() < 1.0 {
        (order * loss).exp_m1() - order * loss.exp_m1()
    } else if loss > 0.0 {
        // Divide by e^{aL} first: neither factor may overflow.
        1.0 - order * ((1.0 - order) * loss).exp() + (order - 1.0) * (-order * loss).exp()
    } else {
        (order * loss).exp() - 1.0 - order * loss.exp_m1()
    };
    let lifted = if order * loss >= 1.0 {
        order * loss
    } else {
        0.0
    };
    (bracket > 0.0).then(|| bracket.ln() + lifted + log_q - 0.5 * y * y)
}
