//! What a run costs this client, what its records have paid already, and whether it may join.
//!
//! The client believes nobody: it computes the noise for its own number of records from the
//! description, and the cost of the whole run from the noise. What is stored beside a run, a
//! [`Priced`], is one message's release as plain data, so that a ledger can be added up years
//! later, at any delta, without a number that somebody wrote down then.
//!
//! - `budget.rs`: the price of one run ([`price`]), and what it costs at some delta
//!   ([`Priced::cost`]);
//! - `spent`: what several runs cost together ([`Counted`]);
//! - `cost`: a run beside what was spent before it ([`Cost`]);
//! - `words`: the same for a person to read;
//! - `limits`: at which deltas a client judges, and what it refuses ([`check_limits`]).

mod cost;
mod limits;
mod spent;
mod words;

use serde::{Deserialize, Serialize};
use soteriafl_accountant::{
    AccountError, Adjacency, Method, NoiseLevels, Question, RandomK, Release, ShiftMixture,
};

use super::description::Description;
use super::store::LedgerRun;
pub use cost::{Cost, epsilon_text};
pub use limits::{
    Deltas, Judged, Limits, MAX_DELTA, MOST_READ, STRICTER, UNKNOWN_BITS, check_limits,
    strict_limit,
};
use soteriafl::accounting::{self, Privacy, PrivacyError};
use soteriafl::claim::{Claim, Reason};
use soteriafl::config::{NoiseName, NoiseTarget};
use soteriafl::specification::Specification;
use soteriafl::words::readable;
pub use spent::{Counted, Spent};

/// One message of a run as the accountant sees it, and what all of them cost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Priced {
    /// The client's records.
    pub records: u64,
    /// How far one record can move the estimate.
    pub shifts: Vec<f64>,
    /// With which probability.
    pub probabilities: Vec<f64>,
    /// The noise.
    pub sigma: f64,
    /// Where some messages have more noise: rounds of a period, whose first message has `sigma`,
    /// and the ratio of the others' noise to it. A version of the program that does not know this
    /// counts too much, since the ratio is above 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub noise_levels: Option<(Option<u32>, f64)>,
    /// What is released once, before the first message of a round: how far one record can move it,
    /// and its noise. A version of the program that does not know this cannot read a state that has
    /// such runs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub before: Vec<(f64, f64)>,
    /// Random-k: `k/d`, and how many record vectors are masked together (zero-out, replace-one).
    pub masked: Option<(f64, u32, u32)>,
    /// Rounds of the whole run, a message each.
    pub rounds: u64,
    /// The run's delta.
    pub delta: f64,
    /// Which data sets are neighbours. Stored as a yes or no, as from the first version on.
    #[serde(rename = "zero_out", with = "stored_adjacency")]
    pub adjacency: Adjacency,
    /// How many records of one person are meant.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub records_per_person: u32,
    /// What the whole run was said to cost when it was joined; `None` where nobody can say. Whether
    /// it is known is what counts later, not the number: see [`Priced::cost`].
    pub epsilon: Option<f64>,
    /// Whether anything is claimed, or why not.
    pub claim: Claim,
}

impl Default for Priced {
    /// A price of which nothing is known: there is no claim.
    fn default() -> Self {
        Self {
            records: 0,
            shifts: Vec::new(),
            probabilities: Vec::new(),
            sigma: 0.0,
            noise_levels: None,
            before: Vec::new(),
            masked: None,
            rounds: 0,
            delta: 0.0,
            adjacency: Adjacency::ReplaceOne,
            records_per_person: 1,
            epsilon: None,
            claim: Claim::Withheld(Reason::Other(String::new())),
        }
    }
}

/// Before there were persons, every record was one.
fn one() -> u32 {
    1
}

fn is_one(records: &u32) -> bool {
    *records == 1
}

/// An adjacency in a ledger: whether neighbours differ by a record set to zero.
mod stored_adjacency {
    use serde::{Deserialize, Deserializer, Serializer};
    use soteriafl_accountant::Adjacency;

    pub(super) fn serialize<S: Serializer>(
        adjacency: &Adjacency,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_bool(*adjacency == Adjacency::ZeroOut)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Adjacency, D::Error> {
        Ok(match bool::deserialize(deserializer)? {
            true => Adjacency::ZeroOut,
            false => Adjacency::ReplaceOne,
        })
    }
}

impl Priced {
    /// What all messages of the run cost at `delta`, from the release alone: infinite where no
    /// accountant can vouch for a number, `None` where there is no claim at all.
    ///
    /// # Errors
    /// When the release makes no sense.
    pub fn cost(&self, adjacency: Adjacency, delta: f64) -> Result<Option<f64>, Refusal> {
        let Some(release) = self.release()? else {
            return Ok(None);
        };
        let mut question =
            Question::new(release, self.rounds, delta, adjacency).noise_levels(self.levels()?);
        for (release, sigma) in self.releases_before()? {
            let asked = question.after(&release, sigma, 1);
            question = asked.map_err(|error| Refusal::Ledger(error.to_string()))?;
        }
        let mut least = f64::INFINITY;
        // Both are bounds, so the smaller one holds. The first is nearly always the smaller; the
        // second answers where the first cannot.
        for method in [Method::Pld, Method::Rdp] {
            match question.clone().by(method).cost(self.sigma) {
                Ok(cost) => least = least.min(cost.epsilon),
                Err(AccountError::Unresolved { .. } | AccountError::NoiseTooSmall { .. }) => {}
                Err(error) => return Err(Refusal::Ledger(error.to_string())),
            }
        }
        Ok(Some(least))
    }

    /// Whether there is a claim, hence a cost.
    pub fn is_known(&self) -> bool {
        matches!(self.release(), Ok(Some(_)))
    }

    /// Messages of the whole run: those of the rounds, and what is released before them.
    pub fn messages(&self) -> u64 {
        self.rounds + self.before.len() as u64
    }

    /// What is released before the first round, as the accountant sees it, each with its noise.
    fn releases_before(&self) -> Result<Vec<(Release, f64)>, Refusal> {
        let release = |&(shift, sigma): &(f64, f64)| {
            if !(sigma > 0.0 && sigma.is_finite()) {
                return Err(Refusal::Ledger(format!("a noise in it is {sigma}")));
            }
            let shifts = ShiftMixture::certain(shift);
            let shifts = shifts.map_err(|error| Refusal::Ledger(error.to_string()))?;
            let random_k = None;
            Ok((Release { shifts, random_k }, sigma))
        };
        self.before.iter().map(release).collect()
    }

    /// The two levels of noise, where there are two.
    fn levels(&self) -> Result<Option<NoiseLevels>, Refusal> {
        match self.noise_levels {
            Some((_, ratio)) if !(ratio >= 1.0 && ratio.is_finite()) => {
                Err(Refusal::Ledger(format!("its ratio of noise is {ratio}")))
            }
            levels => Ok(levels.map(|(period, ratio)| NoiseLevels { period, ratio })),
        }
    }

    /// One message as the accountant sees it; `None` where there is no claim.
    fn release(&self) -> Result<Option<Release>, Refusal> {
        if self.epsilon.is_none() || !self.claim.is_proved() {
            return Ok(None);
        }
        if !(self.sigma > 0.0 && self.sigma.is_finite()) {
            return Err(Refusal::Ledger(format!("its noise is {}", self.sigma)));
        }
        let shifts = ShiftMixture::new(&self.shifts, &self.probabilities)
            .map_err(|error| Refusal::Ledger(error.to_string()))?;
        let random_k = |(fraction, vectors_zero_out, vectors_replace_one)| RandomK {
            fraction,
            vectors_zero_out,
            vectors_replace_one,
        };
        Ok(Some(Release {
            shifts,
            random_k: self.masked.map(random_k),
        }))
    }

    /// What differs between the release that was paid for and another one, in words.
    pub fn difference(&self, other: &Self) -> Option<String> {
        let differ = |name: &str, one: &dyn std::fmt::Debug, other: &dyn std::fmt::Debug| {
            Some(format!("{name} {one:?}, now {other:?}"))
        };
        // To the last bit: noise is drawn by these numbers.
        if self.sigma != other.sigma {
            differ("sigma", &self.sigma, &other.sigma)
        } else if self.shifts != other.shifts {
            differ("shifts", &self.shifts, &other.shifts)
        } else if self.probabilities != other.probabilities {
            differ("probabilities", &self.probabilities, &other.probabilities)
        } else if self.noise_levels != other.noise_levels {
            differ("noise levels", &self.noise_levels, &other.noise_levels)
        } else if self.before != other.before {
            differ("releases before", &self.before, &other.before)
        } else if self.masked != other.masked {
            differ("masks", &self.masked, &other.masked)
        } else if (self.records, self.rounds) != (other.records, other.rounds) {
            let (one, other) = ((self.records, self.rounds), (other.records, other.rounds));
            differ("records and messages", &one, &other)
        } else if (self.delta, self.adjacency) != (other.delta, other.adjacency) {
            let (one, other) = ((self.delta, self.adjacency), (other.delta, other.adjacency));
            differ("delta and adjacency", &one, &other)
        } else if self.records_per_person != other.records_per_person {
            let (one, other) = (self.records_per_person, other.records_per_person);
            differ("records of a person", &one, &other)
        } else {
            None
        }
    }
}

/// Why a client does not join.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The run uses what no proof covers.
    #[error("refused: this run proves nothing ({reason}); {sent}")]
    Unproved {
        /// What is not covered.
        reason: String,
        /// What has left before.
        sent: Sent,
    },
    /// It would cost too much.
    #[error(
        "refused: with this run these records would have spent {}, {adjacency}, more than --max-epsilon {}; {sent}\
         \nhint: {hint}",
        at(*total, *delta), readable(*limit)
    )]
    Budget {
        /// What the records would have spent.
        total: f64,
        /// At which delta.
        delta: f64,
        /// For which neighbours, in words.
        adjacency: String,
        /// What was allowed.
        limit: f64,
        /// What has left before.
        sent: Sent,
        /// What to do.
        hint: String,
    },
    /// It is cheap at one delta only.
    #[error(
        "refused: at the smaller delta {} these records would have spent {}, {adjacency}, where --max-epsilon {} allows {}: \
         a run this much cheaper at a larger delta can publish whole records; {sent}\
         \nhint: ask the coordinator for more noise: larger minibatches, more rounds at the same epsilon, or a smaller privacy.epsilon",
        readable(*delta), at(*total, *delta), readable(*limit), readable(*allowed)
    )]
    Strict {
        /// What the records would have spent.
        total: f64,
        /// At the stricter delta.
        delta: f64,
        /// For which neighbours, in words.
        adjacency: String,
        /// What was given.
        limit: f64,
        /// What that allows there.
        allowed: f64,
        /// What has left before.
        sent: Sent,
    },
    /// Too many records could be read.
    #[error(
        "refused: with this run {read} could be expected to be read exactly, of those of which the server lacks {UNKNOWN_BITS} bits, \
         {adjacency}, where fewer than {} may be; {sent}\
         \nhint: {hint}; --max-read N allows more",
        readable(*most)
    )]
    Read {
        /// How many, at most, in words.
        read: String,
        /// How many may be.
        most: f64,
        /// For which neighbours, in words.
        adjacency: String,
        /// What has left before.
        sent: Sent,
        /// What to do.
        hint: &'static str,
    },
    /// Its epsilon would mean little.
    #[error(
        "refused: epsilon at delta {} ({adjacency}) lets records be published with that probability, \
         more than --max-delta {}; {sent}",
        readable(*delta), readable(*limit)
    )]
    Delta {
        /// The run's delta.
        delta: f64,
        /// For which neighbours, in words.
        adjacency: String,
        /// What was allowed.
        limit: f64,
        /// What has left before.
        sent: Sent,
    },
    /// Nobody can say what it costs.
    #[error(
        "refused: --max-epsilon {} is given, and nobody can say what {what} costs; {sent}\
         \nhint: {hint}",
        readable(*limit)
    )]
    Unknown {
        /// What was given.
        limit: f64,
        /// Which run.
        what: &'static str,
        /// What has left before.
        sent: Sent,
        /// What to do.
        hint: &'static str,
    },
    /// The noise is not the one that was paid for.
    #[error(
        "refused: messages of this run were paid for with {0}; nothing more has been sent\
         \nhint: go on with the version of the program that began this run, or leave the run: what it was to cost stays spent"
    )]
    Noise(String),
    /// The noise cannot be computed.
    #[error(transparent)]
    Privacy(#[from] PrivacyError),
    /// No accountant takes the run.
    #[error("refused: this run cannot be accounted: {reason}; {sent}")]
    Unaccounted {
        /// What stands in the way.
        reason: String,
        /// What has left before.
        sent: Sent,
    },
    /// A sum cannot be computed.
    #[error("the ledger cannot be added up: {0}")]
    Ledger(String),
}

impl Refusal {
    /// The same of a run that is new: what cannot be added up is not the ledger, but the run.
    pub fn of_the_run(self, sent: Sent) -> Self {
        match self {
            Self::Ledger(reason) => Self::Unaccounted { reason, sent },
            other => other,
        }
    }
}

/// Whether messages of a run exist that is refused now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// None.
    Nothing,
    /// Some, and no more.
    Before,
}

impl Sent {
    /// Of a run as the ledger knows it.
    pub fn of(run: &LedgerRun) -> Self {
        Self::messages(run.messages)
    }

    /// Of a run with this many messages.
    pub fn messages(count: u64) -> Self {
        match count {
            0 => Self::Nothing,
            _ => Self::Before,
        }
    }
}

impl std::fmt::Display for Sent {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Nothing => "nothing has been sent",
            Self::Before => "nothing more has been sent",
        })
    }
}

/// An epsilon at a delta, in words, rounded up.
fn at(epsilon: f64, delta: f64) -> String {
    let delta = readable(delta);
    if epsilon.is_finite() {
        let epsilon = readable(soteriafl_accountant::round_up(epsilon, 4));
        format!("epsilon {epsilon} at delta {delta}")
    } else {
        format!("more than any accountant can say at delta {delta}")
    }
}

/// The price of a run for a client with `records` records. Noise from a test seed hides nothing:
/// such a run has no epsilon, and the ledger counts it as unknown.
///
/// # Errors
/// When the run has no noise level.
pub fn price(description: &Description, records: usize) -> Result<Priced, Refusal> {
    price_of_persons(description, records, 1)
}

/// The price of a run for a client who speaks of persons with up to so many records, if the run
/// speaks of fewer. The noise is the run's: it is set by what the run says of persons.
///
/// # Errors
/// As [`price`].
pub fn price_of_persons(
    description: &Description,
    records: usize,
    records_per_person: u32,
) -> Result<Priced, Refusal> {
    let run = &description.resolved.specification();
    let dimension = description.dimension();
    let privacy = Privacy::calibrate(run, dimension, &[records], false)?;
    let sigma = privacy.sigmas.first().copied().unwrap_or(0.0);
    // Noise is the run's, and what it hides is what is asked about.
    let noised = accounting::preliminaries(run, records)?;
    let run = &Specification {
        records_per_person: run.records_per_person.max(records_per_person),
        ..run.clone()
    };
    let release = accounting::release(run, dimension, records)
        .ok()
        .filter(|_| sigma > 0.0 && sigma.is_finite());
    let (shifts, probabilities) = release.as_ref().map_or_else(Default::default, |release| {
        release.shifts.parts().iter().copied().unzip()
    });
    let masked = release
        .and_then(|release| release.random_k)
        .filter(|_| run.may_amplify())
        .map(|k| (k.fraction, k.vectors_zero_out, k.vectors_replace_one));
    let moved = accounting::preliminaries(run, records)?;
    let before = noised.iter().zip(&moved).map(|(noised, moved)| {
        let shift = moved.release.shifts.parts().last();
        (shift.map_or(0.0, |&(shift, _)| shift), noised.sigma)
    });
    let secret = description.test_seed.is_none();
    let mut priced = Priced {
        records: records as u64,
        shifts,
        probabilities,
        sigma,
        noise_levels: run
            .estimator
            .noise_levels()
            .map(|levels| (levels.period, levels.ratio)),
        before: before.collect(),
        masked,
        rounds: u64::from(run.rounds),
        delta: run.delta,
        adjacency: run.adjacency,
        records_per_person: run.records_per_person,
        epsilon: privacy.epsilon.filter(|_| secret),
        claim: match privacy.claim {
            Claim::Proved if !secret => Claim::Withheld(Reason::TestSeed),
            claim => claim,
        },
    };
    // By the client's own account, whichever accountant the server has chosen.
    priced.epsilon = priced.cost(priced.adjacency, priced.delta)?;
    Ok(priced)
}

/// Refuses a run that proves nothing, unless it is a test whose seed the client was told.
///
/// # Errors
/// When it does.
pub fn check_claim(description: &Description, price: &Priced, sent: Sent) -> Result<(), Refusal> {
    if description.test_seed.is_some() {
        return Ok(());
    }
    let run = &description.resolved;
    let reason = if !price.claim.is_proved() || price.epsilon.is_none() {
        price.claim.to_string()
    } else if run.noise != NoiseName::Secure || run.noise_target == NoiseTarget::None {
        "its noise is floating point, not secure".to_string()
    } else {
        return Ok(());
    };
    Err(Refusal::Unproved { reason, sent })
}
