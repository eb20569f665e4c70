//! At which deltas a client judges, and what it refuses.
//!
//! A delta is a probability with which anything at all may be sent, a whole record included. With
//! `M` records and messages that are `(epsilon, delta)`-private, a server reads at most `M delta`
//! records on average beyond `e^epsilon` times what it could guess without them. So a server that
//! names the delta could buy records with it, and the client takes its own ([`Deltas`]), at three
//! points of the privacy profile:
//!
//! 1. at `own`, a tenth of one over its records, what was spent must not exceed the limit `E`;
//! 2. at `strict`, a thousand times smaller, it must not exceed [`strict_limit`]`(E) = 2 E + 2`;
//! 3. at `reading`, a fifth of `N / M`, it must leave `M (e^epsilon 2^-40 + delta)` below `N`,
//!    which is 0.01 unless told otherwise: so many records are expected to be read at most, of
//!    those of which [`UNKNOWN_BITS`] are not known ([`Judged::read`]).
//!
//! The second point bounds what is read beyond guessing by 0.0001, whatever is known of the
//! records; the third bounds what is read in all, under every limit (`docs/privacy.md`, section
//! 12). Gaussian noise costs about twice as much at the second point as at the first; so does
//! honest sampling over at least one pass, plus at most 1.3. A run that pays by sending some
//! records nearly in the clear costs tens or thousands. The third refuses honest runs only where
//! epsilon and the records are many: up to 8 with 100,000 records and up to 7 with a million none.

use soteriafl_accountant::SMALLEST_DELTA;
use soteriafl_accountant::round_up;

use super::super::store::LedgerRun;
use super::{Counted, Refusal, Sent, Spent};
use soteriafl::specification::neighbours;
use soteriafl::words::{counted, readable};

/// Largest delta that a client takes unless told otherwise.
pub const MAX_DELTA: f64 = 1e-3;

/// How much smaller the second delta is.
pub const STRICTER: f64 = 1000.0;

/// How many records may be expected to pay more than the limit, and more than the strict one.
const EXPECTED: (f64, f64) = (0.1, 1e-4);

/// Fewer records than this may be expected to be read, unless the client says otherwise.
pub const MOST_READ: f64 = 0.01;

/// How many bits of a record a server lacks that would have to read it.
pub const UNKNOWN_BITS: i32 = 40;

/// Which share of the records that may be read is given to delta; the rest is for guessing, with
/// the help of epsilon. For Gaussian noise at the largest epsilon that passes it is the best share.
const READ_BY_DELTA: f64 = 0.2;

/// What a client lets its records spend.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Limits {
    /// Most epsilon; `None` for no limit.
    pub epsilon: Option<f64>,
    /// The client's own delta, where it names one: also the largest that a run may name.
    pub delta: Option<f64>,
    /// How many records may be expected to be read, where the client says so: [`MOST_READ`]
    /// otherwise.
    pub read: Option<f64>,
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
    /// And here what lets fewer than [`MOST_READ`] records be read.
    pub reading: f64,
}

impl Deltas {
    /// Those for `records` records, of a client that has named one itself or not, and lets this
    /// many records be read.
    pub fn of(records: u64, told: Option<f64>, read: f64) -> Self {
        let records = records.max(1) as f64;
        let own = told.unwrap_or_else(|| two_digits(EXPECTED.0 / records).min(MAX_DELTA));
        let strict = (own / STRICTER).min(two_digits(EXPECTED.1 / records));
        Self {
            own,
            strict: strict.max(SMALLEST_DELTA),
            reading: two_digits(READ_BY_DELTA * (read / records).min(1.0)).max(SMALLEST_DELTA),
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
        Deltas::of(counted.records(), self.delta, self.most_read())
    }

    /// How many records may be expected to be read.
    pub fn most_read(&self) -> f64 {
        self.read.unwrap_or(MOST_READ)
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

    /// What was spent, at every point that a client looks at.
    ///
    /// # Errors
    /// When some mechanism cannot be accounted.
    pub fn judged(&self, counted: &Counted<'_>) -> Result<Judged, Refusal> {
        Ok(Judged {
            records: counted.records(),
            spent: self.spent(counted)?,
            strict: self.strictly_spent(counted)?,
            reading: counted.at(self.deltas(counted).reading)?,
        })
    }
}

/// What some runs cost together, at the points of the profile where a client looks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Judged {
    /// How many records were in them, at most.
    pub records: u64,
    /// At the delta of the limit.
    pub spent: Spent,
    /// At the stricter one.
    pub strict: Spent,
    /// At the one by which records are read.
    pub reading: Spent,
}

impl Judged {
    /// How many records a server is expected to read exactly, at most, of those of which it lacks
    /// [`UNKNOWN_BITS`]: each with probability `e^epsilon 2^-40 + delta` at most.
    pub fn read(&self) -> f64 {
        let epsilon = self.reading.epsilon.unwrap_or(f64::INFINITY);
        let each = epsilon.exp() * 2f64.powi(-UNKNOWN_BITS) + self.reading.delta;
        self.records as f64 * each.min(1.0)
    }

    /// The same for people, rounded up.
    pub fn read_in_words(&self) -> String {
        let read = round_up(self.read(), 2).min(self.records as f64);
        counted(read, "record")
    }
}

/// Refuses a run whose whole cost, on top of what was spent, exceeds the limits. `counted` has all
/// of `run` in it, and `judged` is what that costs.
///
/// # Errors
/// When it does.
pub fn check_limits(
    counted: &Counted<'_>,
    judged: &Judged,
    run: &LedgerRun,
    limits: &Limits,
) -> Result<(), Refusal> {
    let Judged { spent, strict, .. } = judged;
    let (sent, named) = (Sent::of(run), run.price.delta);
    // Whom the sum speaks of.
    let adjacency = neighbours(spent.adjacency, spent.records_per_person);
    let largest = limits.delta.unwrap_or(MAX_DELTA);
    // Here and below written so that no odd number passes.
    if !within(named, largest) {
        return Err(Refusal::Delta {
            delta: named,
            adjacency,
            limit: largest,
            sent,
        });
    }
    let Some(limit) = limits.epsilon else {
        return Ok(());
    };
    if !counted.is_known() {
        return unknown(counted, run, limit, limits);
    }
    let total = spent.epsilon.unwrap_or(f64::INFINITY);
    if !within(total, limit) {
        return Err(Refusal::Budget {
            total,
            delta: spent.delta,
            adjacency,
            limit,
            sent,
            hint: hint(run, spent, limit),
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
            sent,
        });
    }
    let most = limits.most_read();
    // Nobody has more records than there are.
    let fewer = judged.read() < most || most > judged.records as f64;
    if !fewer {
        return Err(Refusal::Read {
            read: judged.read_in_words(),
            most,
            adjacency,
            sent,
            hint: smaller_or_ledger(spent.runs),
        });
    }
    Ok(())
}

/// What to ask for where the limit is exceeded. A smaller delta helps where it is the only thing
/// that is wrong: noise for the same epsilon at that delta is within the limit.
fn hint(run: &LedgerRun, spent: &Spent, limit: f64) -> String {
    let (named, own) = (run.price.delta, spent.delta);
    let at_named = || match run.price.cost(spent.adjacency, named) {
        Ok(Some(cost)) => cost,
        _ => f64::INFINITY,
    };
    if spent.runs == 1 && named > own && within(at_named(), limit) {
        let (named, own) = (readable(named), readable(own));
        return format!(
            "the run names delta {named}, and this client judges at its own, {own}: \
             ask the coordinator for privacy.delta = {own} or less"
        );
    }
    smaller_or_ledger(spent.runs).to_string()
}

fn smaller_or_ledger(runs: usize) -> &'static str {
    match runs {
        1 => "ask the coordinator for a smaller privacy.epsilon",
        _ => {
            "`soteria ledger` shows what was spent before; \
             a run with a smaller privacy.epsilon may still fit"
        }
    }
}

/// No limit can be kept where nobody knows what is spent. Whoever gave a test seed knows that it
/// hides nothing, and may say so; what an earlier test has told of the records is not undone by
/// that.
fn unknown(
    counted: &Counted<'_>,
    run: &LedgerRun,
    limit: f64,
    limits: &Limits,
) -> Result<(), Refusal> {
    let (what, hint) = match run.price.is_known() {
        false if limits.accept_unknown => return Ok(()),
        false => (
            "this run",
            "--accept-unknown-cost joins a test run all the same; \
             the cost of these records is unknown from then on",
        ),
        true if counted.is_known_on(&run.data) => (
            "an earlier run of this state",
            "it was on another data set: give records that were not in it another --state, \
             or say --disjoint-data-sets if no record is in both",
        ),
        true => (
            "an earlier run of this state",
            "it was on these very records, and no option undoes that; \
             give records that were not in it another --state",
        ),
    };
    Err(Refusal::Unknown {
        limit,
        what,
        sent: Sent::of(run),
        hint,
    })
}

fn within(value: f64, limit: f64) -> bool {
    value <= limit
}
