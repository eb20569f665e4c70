//! Whether a message can come from a client that follows the protocol.
//!
//! What a client sends is `v = C(g - s)`: `g` a clipped estimate with noise, `s` its shift. Bounds
//! from clip, noise, compressor and shift step, chosen so that over a whole run of all clients an
//! honest one is refused with probability at most 2^-40 (the Gaussian tail, in a union over
//! clients, rounds and coordinates; everything else is certain):
//!
//! - random-k and identity multiply each coordinate by `1 + omega`; with `gamma (1 + omega) <= 1`,
//!   as in the paper, a shift is an average of past `g`, so `|v_j| <= 2 (1 + omega) A` with
//!   `A = E + tau sigma`, `E` the largest norm of an estimate;
//! - natural compression rounds a coordinate to at most twice its size, likewise;
//! - QSGD spreads the norm over all coordinates, so its rule is about norms:
//!   `|v| <= c (|g| + |s|)`, `c = 1 + sqrt(d)/levels`, where a running bound of `|s|` is kept for
//!   every client. It grows with what the client says, hence no further than an honest client's
//!   shift can get (`largest_shift`); where the shift step is beyond the theory there is no such
//!   bound, and a liar's may double every round.
//!
//! The rule bounds what one message can do, not what a liar can do within it: a server that must
//! withstand poisoning needs more.

use soteriafl_accountant::{MeanTerm, Over};
use soteriafl_core::compress::{Compressor, CompressorKind, Update};
use soteriafl_core::estimator::Clipping;
use soteriafl_core::objective::Regularizer;
use soteriafl_core::protocol::ClientPlan;
use soteriafl_core::sampling::Sampling;

/// The rule for one client.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rule {
    /// Nothing is known (no clipping, or a shift step beyond the theory): finite is enough.
    None,
    /// No coordinate beyond this.
    Coordinate(f64),
    /// Norm at most `factor * (fresh + radius)`; each accepted message adds `growth` times its norm
    /// to the radius, up to `most`.
    Norm {
        /// Largest norm of a noised estimate.
        fresh: f64,
        /// What the compressor may add.
        factor: f64,
        /// The shift step.
        growth: f64,
        /// The largest shift that an honest client has; infinite where nobody knows.
        most: f64,
    },
}

/// log2 of the probability that an honest client is ever refused for its noise, and the same for
/// its rounding.
const LOG_FAILURE: f64 = -41.0;

/// Whether a release before the first round can come from a client whose noise is `sigma`: a mean
/// of vectors of length one, with noise that exceeds this in a whole run with probability 2^-40 at
/// most.
pub fn plausible_release(numbers: &[f32], sigma: f64, clients: usize) -> bool {
    let draws = clients as f64 * numbers.len() as f64;
    let tau = (2.0 * std::f64::consts::LN_2 * (1.0 - LOG_FAILURE + draws.max(1.0).log2())).sqrt();
    let bound = SLACK * (1.0 + tau * sigma);
    let within = |value: &f32| f64::from(value.abs()) <= bound;
    numbers.iter().all(within)
}

/// Arithmetic in `f32` on the client's side.
const SLACK: f64 = 1.001;

impl Rule {
    /// The rule for a client with `records` records and noise `sigma`, one of `clients` in a run of
    /// `rounds` rounds.
    pub fn new(
        plan: &ClientPlan,
        sampling: &Sampling,
        records: usize,
        sigma: f64,
        clients: usize,
        rounds: u32,
    ) -> Self {
        let Some(estimate) = largest_estimate(plan, sampling, records) else {
            return Rule::None;
        };
        let (estimate, sigma) = match (plan.estimator.recursion(), plan.clipping) {
            // Increments are counted in units of their scale, and have their own noise.
            (Some(recursion), Clipping::Record(clip)) => {
                let largest = recursion.largest_scale(clip);
                (largest * estimate, largest * recursion.noise_ratio * sigma)
            }
            _ => (estimate, sigma),
        };
        let compressor = &plan.compressor;
        let draws = clients as f64 * f64::from(rounds.max(1)) * compressor.dimension() as f64;
        // P(|N| > tau) <= 2 exp(-tau^2/2), in a union over all draws.
        let tau =
            (2.0 * std::f64::consts::LN_2 * (1.0 - LOG_FAILURE + draws.max(1.0).log2())).sqrt();
        let scale = 1.0 / compressor.participation();
        let step = plan.shift_step.unwrap_or(0.0);
        let largest_factor = match compressor.kind() {
            CompressorKind::Identity | CompressorKind::RandK { .. } => compressor.scaling(),
            CompressorKind::Natural => 2.0 * scale,
            // Clients of a server do not send them.
            CompressorKind::Grid { .. } | CompressorKind::TopK { .. } => return Rule::None,
            CompressorKind::Qsgd { levels } => {
                let (dimension, levels) = (compressor.dimension() as f64, f64::from(levels));
                let fresh = SLACK * (estimate + sigma * (dimension.sqrt() + tau));
                let messages = clients as f64 * f64::from(rounds.max(1));
                return Rule::Norm {
                    fresh,
                    factor: SLACK * scale * (1.0 + dimension.sqrt() / levels),
                    growth: step,
                    most: SLACK * largest_shift(fresh, step * scale, dimension, levels, messages),
                };
            }
        };
        let released = estimate + sigma * tau;
        // s' = (1 - a) s + a g with 0 <= a <= step * factor: bounded by `released` up to a = 1, and
        // by the fixed point of the worst case up to a = 2.
        let a = step * largest_factor;
        let shift = if plan.shift_step.is_none() {
            0.0
        } else if a <= 1.0 + 1e-9 {
            released
        } else if a < 1.99 {
            released * a / (2.0 - a)
        } else {
            return Rule::None;
        };
        Rule::Coordinate(SLACK * largest_factor * (released + shift))
    }

    /// Whether `update` may come from this client.
    pub fn allows(&self, update: &Update, radius: f64) -> bool {
        match *self {
            Rule::None => true,
            Rule::Coordinate(bound) => update
                .values()
                .iter()
                .all(|value| f64::from(value.abs()) <= bound),
            Rule::Norm {
                fresh,
                factor,
                most,
                ..
            } => norm(update) <= factor * (fresh + radius.min(most)),
        }
    }

    /// The radius after an accepted message; `None` where the rule keeps none.
    pub fn grown(&self, update: &Update, radius: f64) -> Option<f64> {
        match *self {
            Rule::Norm { growth, most, .. } => Some((radius + growth * norm(update)).min(most)),
            _ => None,
        }
    }
}

/// The norm that no honest client's shift exceeds under QSGD, in `messages` messages of all
/// clients, but with probability `2^LOG_FAILURE`; infinite if none of the bounds applies.
///
/// An accepted message moves the shift to `s' = (1 - a) s + a g + a e`, `|g| <= F = fresh`, where
/// the rounding error `e` has independent coordinates of mean zero, each in an interval of length
/// `u/levels`, `u = |g - s| <= F + R` as long as `|s| <= R`. The smallest of:
///
/// - for certain, with `q = sqrt(d)/levels < 1`: `|e| <= q u`, so `R = F (1 + q)/(1 - q)` is kept;
/// - by Hoeffding: `s` is an average of past `g` and `sum_i a (1 - a)^(t - i) e_i`, whose
///   projections are sub-Gaussian with variance at most `V = a/(2 - a) ((F + R)/(2 levels))^2`; its
///   norm exceeds `sqrt(V) (sqrt(d) + sqrt(2 t))` with probability at most `e^-t` (Hsu, Kakade and
///   Zhang 2012, Theorem 2.1). `R = F (1 + b)/(1 - b)` then is kept,
///   `b = sqrt(a/(2 - a)) (sqrt(d) + sqrt(2 t))/(2 levels) < 1`;
/// - by Ville: `E|e|^2 <= w u^2`, and with `a (1 + w) <= 1` this gives
///   `E|s'|^2 <= (1 - a)|s|^2 + a F^2`, so that `|s|^2 + a F^2 (messages left)` is a
///   supermartingale that starts at `a F^2 messages`.
fn largest_shift(fresh: f64, a: f64, dimension: f64, levels: f64, messages: f64) -> f64 {
    if a == 0.0 {
        return 0.0;
    }
    if !(a > 0.0 && a <= 1.0) {
        return f64::INFINITY;
    }
    let root = dimension.sqrt();
    let kept = |ratio: f64| {
        // What rounding the shift to `f32` adds in a round.
        let ratio = ratio + 2f64.powi(-23) / a;
        if ratio < 1.0 {
            fresh * (1.0 + ratio) / (1.0 - ratio)
        } else {
            f64::INFINITY
        }
    };
    let tail = messages.ln() - LOG_FAILURE * std::f64::consts::LN_2;
    let spread = (a / (2.0 - a)).sqrt() * (root + (2.0 * tail).sqrt()) / (2.0 * levels);
    let variance = (dimension / (levels * levels)).min(root / levels);
    let ville = if a * (1.0 + variance) <= 1.0 + 1e-9 {
        fresh * (a * messages).sqrt() * 2f64.powf(-LOG_FAILURE / 2.0)
    } else {
        f64::INFINITY
    };
    kept(root / levels).min(kept(spread)).min(ville)
}

fn norm(update: &Update) -> f64 {
    let squares = update
        .values()
        .iter()
        .map(|value| f64::from(*value).powi(2));
    squares.sum::<f64>().sqrt()
}

/// The largest norm that an estimate can have, where there is one.
fn largest_estimate(plan: &ClientPlan, sampling: &Sampling, records: usize) -> Option<f64> {
    let public = match plan.regularizer {
        None | Some(Regularizer::None) => 0.0,
        // |2 x / (1 + x^2)^2| < 0.65.
        Some(Regularizer::Nonconvex { lambda }) => {
            let coordinates = (plan.compressor.dimension() as f64).sqrt();
            0.65 * f64::from(lambda) * coordinates
        }
        Some(Regularizer::L2 { .. }) => return None,
    };
    if let Some(clip) = plan.estimate_clip {
        return Some(clip);
    }
    let clip = match plan.clipping {
        Clipping::None => return None,
        Clipping::Record(clip) | Clipping::Selected(clip) => clip,
    };
    // Every record in the batch: rare, but an honest client may be that unlucky.
    let most = match sampling {
        Sampling::WithReplacement { .. } => 1.0,
        _ => records as f64 / sampling.divisor(records),
    };
    let norm = |term: MeanTerm| {
        let most = match term.over {
            Over::Batch => most,
            Over::All => 1.0,
        };
        term.weight * term.clip * most
    };
    let estimate: f64 = plan.estimator.terms(clip).map(norm).sum();
    Some(estimate + public)
}

/// Bytes of the longest message that a run's clients send.
pub fn longest_message(compressor: &Compressor) -> usize {
    soteriafl_core::wire::HEADER_LEN + compressor.encoded_len()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: [(f64, f64, f64); 4] = [
        // a, dimension, levels: the certain bound, Hoeffding's, and twice Ville's.
        (0.9, 100.0, 40.0),
        (0.43, 100.0, 10.0),
        (0.08, 100.0, 1.0),
        (0.3, 4.0, 1.0),
    ];

    /// A message of one coordinate.
    fn said(value: f32) -> Update {
        let compressor = Compressor::new(CompressorKind::Identity, 1, 1.0).unwrap();
        let mut update = Update::default();
        let decoded = compressor.decode(&value.to_le_bytes(), &mut update);
        decoded.map(|()| update).unwrap()
    }

    /// However long a client lies as far as its rule allows, what it may say stays as it is from
    /// the second round on.
    #[test]
    fn a_liar_does_not_earn_more_room_round_by_round() {
        for (a, dimension, levels) in SETTINGS {
            let most = largest_shift(1.0, a, dimension, levels, 1e5);
            let factor = 1.0 + dimension.sqrt() / levels;
            let rule = Rule::Norm {
                fresh: 1.0,
                factor,
                growth: a,
                most,
            };
            let mut radius = 0.0;
            for _ in 0..200 {
                let value = (0.999 * factor * (1.0 + radius)) as f32;
                let update = said(value);
                assert!(rule.allows(&update, radius));
                radius = rule.grown(&update, radius).unwrap();
            }
            assert!(radius <= most && most < 1e10, "{radius} {most}");
            // A radius that an earlier program stored does not help either.
            let far = said((1.01 * factor * (1.0 + most)) as f32);
            assert!(!rule.allows(&far, 1e300));
        }
    }

    /// Honest shifts under the rounding that is hardest on them stay below the bound: the estimate
    /// turns against the shift every few rounds. 4 settings, 20 clients, 400 rounds; by the bound
    /// itself a failure has probability 2^-41.
    #[test]
    fn honest_shifts_stay_below_the_bound() {
        use soteriafl_core::random::{Purpose, SecretKey, unit};
        let mut rng = SecretKey::simulated(3, 0).stream(0, Purpose::Rounding);
        for (a, dimension, levels) in SETTINGS {
            let most = largest_shift(1.0, a, dimension, levels, 20.0 * 400.0);
            for _ in 0..20 {
                let mut shift = vec![0.0; dimension as usize];
                for round in 0..400 {
                    let sign = if round / 7 % 2 == 0 { 1.0 } else { -1.0 };
                    let each = sign / dimension.sqrt();
                    let gaps: Vec<f64> = shift.iter().map(|s| each - s).collect();
                    let norm = gaps.iter().map(|gap| gap * gap).sum::<f64>().sqrt();
                    for (slot, gap) in shift.iter_mut().zip(&gaps) {
                        let position = gap.abs() / norm * levels;
                        let up = unit(&mut rng) < position.fract();
                        let level = position.floor() + f64::from(u8::from(up));
                        *slot += a * gap.signum() * level * norm / levels;
                    }
                    let norm = shift.iter().map(|s| s * s).sum::<f64>().sqrt();
                    assert!(norm <= most, "{a} {dimension} {levels}: {norm} {most}");
                }
            }
        }
    }

    #[test]
    fn without_a_shift_there_is_none_and_beyond_the_theory_no_bound() {
        assert_eq!(largest_shift(1.0, 0.0, 10.0, 1.0, 10.0), 0.0);
        assert_eq!(largest_shift(1.0, 1.5, 10.0, 1.0, 10.0), f64::INFINITY);
        assert_eq!(largest_shift(1.0, 0.9, 1e4, 1.0, 10.0), f64::INFINITY);
    }
}
