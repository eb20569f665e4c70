//! What a run costs this client, what its records have paid already, and whether it may join.
//!
//! The client believes nobody: it computes the noise for its own number of records from the
//! description, and the cost of the whole run from the noise. What is stored beside a run, a
//! [`Priced`], is one message's release as plain data, so that a ledger can be added up years later.
//!
//! **One run** costs what the accountant says for its whole schedule, which was fixed before its first
//! message. **Several runs** on the same records may have been chosen by looking at earlier ones, so
//! their schedules were not fixed together: from the second run on the cost is that of a Renyi filter
//! (`docs/privacy.md`, section 12). Renyi divergences of all messages made add up at every
//! order, whoever chose the next mechanism; the orders are fixed here, and each is given its share of
//! delta, so that the best one may be taken afterwards:
//!
//! `epsilon = min over a of  sum of D_a + ln(K/delta)/(a - 1)`, `K` orders.
//!
//! The tail bound holds for each order `a` with `delta/K`, hence for all of them with `delta`.

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};
use soteria_accountant::rdp::{RdpCurve, orders};
use soteria_accountant::{AccountError, Adjacency, RandomK, Release, ShiftMixture};

use super::Hash;
use super::description::Description;
use super::store::LedgerRun;
use crate::accounting::{self, Privacy, PrivacyError};
use crate::config::{NoiseName, NoiseTarget};

/// The orders at which costs of several runs are added up. Fixed: never to be chosen by what was seen.
const ORDERS: [f64; 12] = [
    1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 64.0, 128.0,
];

/// One message of a run as the accountant sees it, and what all of them cost.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Priced {
    /// The client's records.
    pub records: u64,
    /// How far one record can move the estimate.
    pub shifts: Vec<f64>,
    /// With which probability.
    pub probabilities: Vec<f64>,
    /// The noise.
    pub sigma: f64,
    /// Random-k: `k/d`, and how many record vectors are masked together (zero-out, replace-one).
    pub masked: Option<(f64, u32, u32)>,
    /// Messages of the whole run.
    pub rounds: u64,
    /// The run's delta.
    pub delta: f64,
    /// Whether neighbours differ by a record set to zero instead of a replaced one.
    pub zero_out: bool,
    /// What the whole run costs; `None` where nobody can say.
    pub epsilon: Option<f64>,
    /// The same for neighbours that differ by a replaced record, whatever the run's own are.
    #[serde(default)]
    pub epsilon_replace_one: Option<f64>,
    /// `"proved"`, or why there is no claim.
    pub claim: String,
}

/// Why a client does not join.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The run uses what no proof covers.
    #[error("refused: this run proves nothing ({0}); nothing has been sent")]
    Unproved(String),
    /// It would cost too much.
    #[error(
        "refused: with this run these records would have spent epsilon {total} at delta {delta}, {adjacency}, more than --max-epsilon {limit}; nothing has been sent"
    )]
    Budget {
        /// What the records would have spent.
        total: f64,
        /// At which delta.
        delta: f64,
        /// For which neighbours.
        adjacency: &'static str,
        /// What was allowed.
        limit: f64,
    },
    /// Its epsilon would mean little.
    #[error(
        "refused: epsilon at delta {delta} ({adjacency}) lets a record be published with that probability, more than --max-delta {limit}; nothing has been sent"
    )]
    Delta {
        /// The run's delta.
        delta: f64,
        /// For which neighbours.
        adjacency: &'static str,
        /// What was allowed.
        limit: f64,
    },
    /// The noise cannot be computed.
    #[error(transparent)]
    Privacy(#[from] PrivacyError),
    /// A sum cannot be computed.
    #[error("the ledger cannot be added up: {0}")]
    Ledger(String),
}

/// Largest delta that a client takes unless told otherwise.
pub const MAX_DELTA: f64 = 1e-3;

/// What a client lets its records spend.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Most epsilon; `None` for no limit.
    pub epsilon: Option<f64>,
    /// Largest delta of a run or of the sum.
    pub delta: f64,
    /// Whether to judge every run for replaced records, also one that speaks of zeroed ones.
    pub replace_one: bool,
}

/// The name of an adjacency.
pub fn adjacency_name(zero_out: bool) -> &'static str {
    if zero_out { "zero-out" } else { "replace-one" }
}

/// The price of a run for a client with `records` records. Noise from a test seed hides nothing: such
/// a run has no epsilon, and the ledger counts it as unknown.
///
/// # Errors
/// When the run has no noise level.
pub fn price(description: &Description, records: usize) -> Result<Priced, Refusal> {
    let run = &description.resolved;
    let dimension = description.dimension();
    let privacy = Privacy::settle(run, dimension, &[records], false)?;
    let sigma = privacy.sigmas.first().copied().unwrap_or(0.0);
    let release = accounting::mechanism(run, dimension, records)
        .release()
        .ok()
        .filter(|_| sigma > 0.0 && sigma.is_finite());
    let (shifts, probabilities) = release.as_ref().map_or_else(Default::default, |release| {
        release.shifts.parts().iter().copied().unzip()
    });
    let masked = release
        .and_then(|release| release.random_k)
        .filter(|_| accounting::may_amplify(run))
        .map(|k| (k.fraction, k.vectors_zero_out, k.vectors_replace_one));
    let epsilon_replace_one = if run.zero_out && privacy.epsilon.is_some() {
        let mut other = run.clone();
        (other.zero_out, other.noise_target) = (false, NoiseTarget::Sigma(sigma));
        Privacy::settle(&other, dimension, &[records], false)?.epsilon
    } else {
        privacy.epsilon
    };
    let secret = description.test_seed.is_none();
    Ok(Priced {
        records: records as u64,
        shifts,
        probabilities,
        sigma,
        masked,
        rounds: u64::from(run.rounds),
        delta: run.delta,
        zero_out: run.zero_out,
        epsilon: privacy.epsilon.filter(|_| secret),
        epsilon_replace_one: epsilon_replace_one.filter(|_| secret),
        claim: match privacy.claim.as_str() {
            "proved" if !secret => "test seed".to_string(),
            _ => privacy.claim,
        },
    })
}

/// Refuses a run that proves nothing, unless it is a test whose seed the client was told.
///
/// # Errors
/// When it does.
pub fn check_claim(description: &Description, price: &Priced) -> Result<(), Refusal> {
    if description.test_seed.is_some() {
        return Ok(());
    }
    let run = &description.resolved;
    let reason = if price.claim != "proved" || price.epsilon.is_none() {
        price.claim.clone()
    } else if run.noise != NoiseName::Secure || run.noise_target == NoiseTarget::None {
        "its noise is floating point, not secure".to_string()
    } else {
        return Ok(());
    };
    Err(Refusal::Unproved(reason))
}

/// What the records `data` have spent in `runs`, with all of the run `whole` counted, if given,
/// whether its messages were made or not. Neighbours differ by a replaced record if `replace_one` says
/// so or any of the runs speaks of such.
///
/// # Errors
/// When some mechanism cannot be accounted.
pub fn spent(
    runs: &[LedgerRun],
    data: &Hash,
    whole: Option<&LedgerRun>,
    replace_one: bool,
) -> Result<Spent, Refusal> {
    spent_in(
        runs.iter().filter(|run| run.data == *data),
        whole,
        replace_one,
    )
}

/// The same for a record that was in all of `runs`, whatever data sets they were on.
///
/// # Errors
/// When some mechanism cannot be accounted.
pub fn spent_in<'a>(
    runs: impl Iterator<Item = &'a LedgerRun>,
    whole: Option<&'a LedgerRun>,
    replace_one: bool,
) -> Result<Spent, Refusal> {
    let mut parts: Vec<(&Priced, u64)> = runs
        .filter(|run| whole.is_none_or(|whole| whole.hash != run.hash))
        .map(|run| (&run.price, run.messages))
        .filter(|(_, messages)| *messages > 0)
        .collect();
    if let Some(whole) = whole {
        parts.push((&whole.price, whole.price.rounds));
    }
    let delta = parts.iter().map(|part| part.0.delta).fold(1.0, f64::min);
    let zero_out = !parts.is_empty() && !replace_one && parts.iter().all(|part| part.0.zero_out);
    let (epsilon, method) = match parts[..] {
        [] => (Some(0.0), "nothing sent"),
        // A schedule that was fixed beforehand; one that stopped early costs no more than all of it.
        [(price, _)] if zero_out || !price.zero_out => (price.epsilon, "exact, the whole run"),
        [(price, _)] => (price.epsilon_replace_one, "exact, the whole run"),
        _ => (filter(&parts, delta, zero_out)?, "renyi filter"),
    };
    Ok(Spent {
        epsilon,
        delta,
        zero_out,
        method,
        runs: parts.len(),
    })
}

/// What some records have spent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spent {
    /// The bound; `None` where nobody can say, which is as good as infinite.
    pub epsilon: Option<f64>,
    /// The smallest delta of the runs.
    pub delta: f64,
    /// Under zero-out if all runs are, else under replace-one.
    pub zero_out: bool,
    /// How it was added up.
    pub method: &'static str,
    /// Over how many runs.
    pub runs: usize,
}

/// Refuses a run whose whole cost, on top of what was spent, exceeds the limits. `spent` has all of the
/// run `price` in it. A test run is not held to the limit on epsilon, which it cannot keep: whoever gave
/// its seed knows that it hides nothing.
///
/// # Errors
/// When it does.
pub fn check_limits(
    spent: &Spent,
    price: &Priced,
    test: bool,
    limits: &Limits,
) -> Result<(), Refusal> {
    let adjacency = adjacency_name(spent.zero_out);
    let delta = spent.delta.max(price.delta);
    // Written so that no odd number passes.
    if !matches!(
        delta.partial_cmp(&limits.delta),
        Some(Ordering::Less | Ordering::Equal)
    ) {
        return Err(Refusal::Delta {
            delta,
            adjacency,
            limit: limits.delta,
        });
    }
    let Some(limit) = limits.epsilon.filter(|_| !test) else {
        return Ok(());
    };
    let total = spent.epsilon.unwrap_or(f64::INFINITY);
    if total <= limit {
        return Ok(());
    }
    Err(Refusal::Budget {
        total: soteria_accountant::round_up(total, 4),
        delta: spent.delta,
        adjacency,
        limit,
    })
}

/// The Renyi filter's epsilon.
fn filter(parts: &[(&Priced, u64)], delta: f64, zero_out: bool) -> Result<Option<f64>, Refusal> {
    let mut sum = RdpCurve::zero();
    for (price, messages) in parts {
        let Some(curve) = curve(price, zero_out)? else {
            return Ok(None);
        };
        sum = sum.plus(&curve.times(*messages));
    }
    let share = (ORDERS.len() as f64 / delta).ln();
    let at = |order: f64| {
        let position = orders()
            .iter()
            .position(|known| (known - order).abs() < 1e-9)?;
        Some(sum.values()[position] + share / (order - 1.0))
    };
    let epsilon = ORDERS
        .into_iter()
        .filter_map(at)
        .fold(f64::INFINITY, f64::min);
    Ok(epsilon.is_finite().then_some(epsilon))
}

/// The Renyi curve of one message.
fn curve(price: &Priced, zero_out: bool) -> Result<Option<RdpCurve>, Refusal> {
    if price.epsilon.is_none() || price.sigma <= 0.0 || price.shifts.is_empty() {
        return Ok(None);
    }
    let adjacency = if zero_out {
        Adjacency::ZeroOut
    } else {
        Adjacency::ReplaceOne
    };
    let failed = |error: AccountError| Refusal::Ledger(error.to_string());
    let shifts = ShiftMixture::new(&price.shifts, &price.probabilities)
        .map_err(|error| failed(error.into()))?;
    let mask = |(fraction, vectors_zero_out, vectors_replace_one)| RandomK {
        fraction,
        vectors_zero_out,
        vectors_replace_one,
    };
    let random_k = price.masked.map(mask);
    let curve = Release { shifts, random_k }.rdp_curve(price.sigma, adjacency);
    curve.map(Some).map_err(failed)
}
