//! Whether a message can come from a client that follows the protocol.
//!
//! What a client sends is `v = C(g - s)`: `g` a clipped estimate with noise, `s` its shift. Bounds
//! from clip, noise, compressor and shift step, chosen so that over a whole run of all clients an
//! honest one is refused with probability at most 2^-40 (the Gaussian tail, in a union over clients,
//! rounds and coordinates; everything else is certain):
//!
//! - random-k and identity multiply each coordinate by `1 + omega`; with `gamma (1 + omega) <= 1`, as
//!   in the paper, a shift is an average of past `g`, so `|v_j| <= 2 (1 + omega) A` with
//!   `A = E + tau sigma`, `E` the largest norm of an estimate;
//! - natural compression rounds a coordinate to at most twice its size, likewise;
//! - QSGD spreads the norm over all coordinates, so its rule is about norms: `|v| <= c (|g| + |s|)`,
//!   `c = 1 + sqrt(d)/levels`, where a running bound of `|s|` is kept for every client.
//!
//! The rule bounds what one message can do, not what a liar can do within it: a server that must
//! withstand poisoning needs more.

use soteria_core::compress::{Compressor, CompressorKind, Update};
use soteria_core::estimator::Clipping;
use soteria_core::objective::Regularizer;
use soteria_core::protocol::{ClientPlan, EstimatorPlan};
use soteria_core::sampling::Sampling;

/// The rule for one client.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rule {
    /// Nothing is known (no clipping, or a shift step beyond the theory): finite is enough.
    None,
    /// No coordinate beyond this.
    Coordinate(f64),
    /// Norm at most `factor * (fresh + radius)`; each accepted message adds `growth` times its norm to
    /// the radius.
    Norm {
        /// Largest norm of a noised estimate.
        fresh: f64,
        /// What the compressor may add.
        factor: f64,
        /// The shift step.
        growth: f64,
    },
}

/// log2 of the probability that an honest client is ever refused.
const LOG_FAILURE: f64 = -40.0;

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
        let compressor = &plan.compressor;
        let draws = clients as f64 * f64::from(rounds.max(1)) * compressor.dimension() as f64;
        // P(|N| > tau) <= 2 exp(-tau^2/2), in a union over all draws.
        let tau =
            (2.0 * std::f64::consts::LN_2 * (1.0 - LOG_FAILURE + draws.max(1.0).log2())).sqrt();
        let scale = 1.0 / compressor.participation();
        let step = plan.shift_step.unwrap_or(0.0);
        let largest_factor = match compressor.kind() {
            CompressorKind::Identity => scale,
            CompressorKind::RandK { k } => scale * compressor.dimension() as f64 / k as f64,
            CompressorKind::Natural => 2.0 * scale,
            CompressorKind::Qsgd { levels } => {
                let root = (compressor.dimension() as f64).sqrt();
                return Rule::Norm {
                    fresh: SLACK * (estimate + sigma * (root + tau)),
                    factor: SLACK * scale * (1.0 + root / f64::from(levels)),
                    growth: step,
                };
            }
        };
        let released = estimate + sigma * tau;
        // s' = (1 - a) s + a g with 0 <= a <= step * factor: bounded by `released` up to a = 1, and by
        // the fixed point of the worst case up to a = 2.
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
            Rule::Norm { fresh, factor, .. } => norm(update) <= factor * (fresh + radius),
        }
    }

    /// The radius after an accepted message; `None` where the rule keeps none.
    pub fn grown(&self, update: &Update, radius: f64) -> Option<f64> {
        match *self {
            Rule::Norm { growth, .. } => Some(radius + growth * norm(update)),
            _ => None,
        }
    }
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
    let estimate = match plan.estimator {
        EstimatorPlan::Minibatch => clip * most,
        EstimatorPlan::Svrg {
            difference_clip, ..
        }
        | EstimatorPlan::Saga { difference_clip } => {
            difference_clip.unwrap_or(2.0 * clip) * most + clip
        }
    };
    Some(estimate + public)
}

/// Bytes of the longest message that a run's clients send.
pub fn longest_message(compressor: &Compressor) -> usize {
    soteria_core::wire::HEADER_LEN + compressor.encoded_len()
}
