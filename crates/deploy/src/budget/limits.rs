//! At which deltas a client judges, and what it refuses.
//!
//! A delta is a probability with which anything at all may be sent, a whole record included. With
//! `M` records and messages that are `(epsilon, delta)`-private, a server reads at most `M delta`
//! records on average beyond `e^epsilon` times what it could guess without them. So a server that
//! names the delta could buy records with it, and the client takes its own ([`Deltas`]), at two
//! points of the privacy profile:
//!
//! 1. at `own`, a tenth of one over its records, what was spent must not exceed the limit `E`;
//! 2. at `strict`, a thousand times smaller, it must not exceed [`strict_limit`]`(E) = 2 E + 2`.
//!
//! The second point is what keeps records from being read: fewer than 0.0001 on average, beyond
//! guessing (`docs/privacy.md`, section 12). Gaussian noise costs about twice as much there as at
//! the first point; so does honest sampling over at least one pass, plus at most 1.3. A run that
//! pays by sending some records nearly in the clear costs tens or thousands.

use soteriafl_accountant::SMALLEST_DELTA;
use soteriafl_accountant::round_up;

use super::{Counted, Priced, Refusal, Spent, adjacency_name};

/// Largest delta that a client takes unless told otherwise.
pub const MAX_DELTA: f64 = 1e-3;

/// How much smaller the second delta is.
pub const STRICTER: f64 = 1000.0;

/// How many records may be expected to pay more than the limit, and more than the strict one.
const EXPECTED: (f64, f64) = (0.1, 1e-4);

/// What a client lets its records spend.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Limits {
    /// Most epsilon; `None` for no limit.
    pub epsilon: Option<f64>,
    /// The client's own delta, where it names one: also the largest that a run may name.
    pub delta: Option<f64>,
    /// Whether to judge every run for replaced records, also one that speaks of zeroed ones.
    pub replace_one: bool,
    /// Whether a test run, whose cost nobody can say, is joined under a limit all the same.
    pub accept_unknown: bool,
}

/// Where a client looks at the privacy profile.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Deltas {
    /// The limit on epsilon holds here.
    pub own: f64,
    /// And [`strict_limit`] here.
    pub strict: f64,
}

impl Deltas {
    /// Those for `records` records, of a client that has named one itself or not.
    pub fn of(records: u64, told: Option<f64>) -> Self {
        let records = records.max(1) as f64;
        let own = told.unwrap_or_else(|| two_digits(EXPECTED.0 / records).min(MAX_DELTA));
        let strict = (own / STRICTER).min(two_digits(EXPECTED.1 / records));
        Self {
            own,
            strict: strict.max(SMALLEST_DELTA),
        }
    }
}

/// Two digits of a number, rounded down: what a person is told is what is computed with.
fn two_digits(value: f64) -> f64 {
    let power = value.log10().floor() as i32 - 1;
    let digits = (value / 10_f64.powi(power) + 1e-9).floor();
    format!("{digits}e{power}").parse().unwrap_or(value)
}

/// What a limit on epsilon allows at the stricter delta.
pub fn strict_limit(epsilon: f64) -> f64 {
    2.0 * epsilon + 2.0
}

impl Limits {
    /// The deltas at which runs are judged that are counted together.
    pub fn deltas(&self, counted: &Counted<'_>) -> Deltas {
        Deltas::of(counted.records(), self.delta)
    }

    /// What was spent at the delta of the limit: the client's own, or a smaller one that the newest
    /// run names. What is within a limit there is so at the client's own.
    ///
    /// # Errors
    /// When some mechanism cannot be accounted.
    pub fn spent(&self, counted: &Counted<'_>) -> Result<Spent, Refusal> {
        let own = self.deltas(counted).own;
        counted.at(counted.named_delta().map_or(own, |delta| own.min(delta)))
    }

    /// What was spent at the stricter delta.
    ///
    /// # Errors
    /// When some mechanism cannot be accounted.
    pub fn strictly_spent(&self, counted: &Counted<'_>) -> Result<Spent, Refusal> {
        counted.at(self.deltas(counted).strict)
    }
}

/// Refuses a run whose whole cost, on top of what was spent, exceeds the limits. `counted` has all
/// of the run `price` in it, `spent` is what it costs at the delta of the limit, and `strict` at
/// the stricter one.
///
/// # Errors
/// When it does.
pub fn check_limits(
    counted: &Counted<'_>,
    (spent, strict): (&Spent, &Spent),
    price: &Priced,
    limits: &Limits,
) -> Result<(), Refusal> {
    let adjacency = adjacency_name(spent.zero_out);
    let largest = limits.delta.unwrap_or(MAX_DELTA);
    // Written so that no odd number passes.
    if !within(price.delta, largest) {
        return Err(Refusal::Delta {
            delta: price.delta,
            adjacency,
            limit: largest,
        });
    }
    let Some(limit) = limits.epsilon else {
        return Ok(());
    };
    if !price.is_known() || !counted.is_known() {
        return unknown(price, limit, limits);
    }
    let total = spent.epsilon.unwrap_or(f64::INFINITY);
    if !within(total, limit) {
        return Err(Refusal::Budget {
            total,
            delta: spent.delta,
            adjacency,
            limit,
            hint: hint(price.delta, spent),
        });
    }
    let total = strict.epsilon.unwrap_or(f64::INFINITY);
    let allowed = strict_limit(limit);
    if !within(total, allowed) {
        return Err(Refusal::Strict {
            total,
            delta: strict.delta,
            adjacency,
            limit,
            allowed: round_up(allowed, 4),
        });
    }
    Ok(())
}

/// What to ask for where the limit is exceeded.
fn hint(named: f64, spent: &Spent) -> String {
    let own = spent.delta;
    if named > own {
        return format!(
            "the run names delta {named:e}, and this client judges at its own, {own:e}: ask the coordinator for privacy.delta = {own:e} or less"
        );
    }
    match spent.runs {
        1 => "ask the coordinator for a smaller privacy.epsilon".to_string(),
        _ => "`soteria ledger` shows what was spent before".to_string(),
    }
}

/// No limit can be kept where nobody knows what is spent. Whoever gave a test seed knows that it
/// hides nothing, and may say so; what an earlier test has told of the records is not undone by
/// that.
fn unknown(price: &Priced, limit: f64, limits: &Limits) -> Result<(), Refusal> {
    let (what, hint) = match price.is_known() {
        false if limits.accept_unknown => return Ok(()),
        false => (
            "this run",
            "--accept-unknown-cost joins a test run all the same; the cost of these records is unknown from then on",
        ),
        true => (
            "an earlier run of this state",
            "give records that were not in it another --state, or say --disjoint-data-sets",
        ),
    };
    Err(Refusal::Unknown { limit, what, hint })
}

fn within(value: f64, limit: f64) -> bool {
    value <= limit
}
