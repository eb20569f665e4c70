//! Whether a client's books agree with themselves: every stored message against what was charged
//! for it. For the owner of the records alone; nothing leaves.
//!
//! **What is compared.** Of every run in the ledger:
//!
//! - its name with the digest of its description, and the description with what this program reads;
//! - its price with the one that follows from the description and the number of records: noise,
//!   shifts, masks, rounds, delta, neighbours, and what they cost together. Less than that is
//!   *undercharged*: later runs were admitted by a sum that is too small;
//! - its messages with each other: numbers follow each other over all runs (a message that is gone
//!   leaves a gap), rounds ascend, and none lies beyond the rounds that were paid for; likewise what
//!   was released before the first round: all that was paid for if there is a round, an end or a
//!   state, and from the first on without a gap before that;
//! - the bytes that are kept with the run's compressor: they are read as the server reads them. Of
//!   rounds before the latest checkpoint, of releases whose average has come, and of runs that are
//!   over, bytes and coins must be gone.
//!
//! **What it cannot see.** Whoever rewrites the whole database consistently, a copy of the state
//! that went on elsewhere, the last messages or releases if all that is left of them is gone, and
//! whether the number of records is that of the records.
//!
//! **Cost.** An accountant's answer for every run, and the bytes of kept messages.

use std::collections::BTreeMap;

use serde::Serialize;
use sha2::{Digest, Sha256};
use soteriafl::accounting;
use soteriafl_accountant::Adjacency;
use soteriafl_core::compress::{Compressor, Update};
use soteriafl_core::{preliminary, wire};

use super::budget::{self, Priced, Refusal};
use super::description::Description;
use super::sqlite::{ClientSqlite, Entry, ReleaseEntry};
use super::store::{ClientStore, LedgerRun, StoreError};
use super::{Hash, hex};

/// Why books cannot be looked at.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BooksError {
    /// They cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A price cannot be added up.
    #[error(transparent)]
    Refused(#[from] Refusal),
}

/// What kind of disagreement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Less was charged than the messages cost.
    Undercharged,
    /// More was charged.
    Overcharged,
    /// A message is not there.
    Missing,
    /// A message is there that nobody paid for, or cannot be what was sent.
    Message,
    /// The run is not the one that its name says.
    Run,
    /// What should have been erased is there.
    NotErased,
}

/// One disagreement.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Disagreement {
    /// Which kind.
    pub kind: Kind,
    /// In words.
    pub what: String,
}

/// One run's books.
#[derive(Clone, Debug, Serialize)]
pub struct RunBooks {
    /// The run's name, in hexadecimal digits.
    pub run: String,
    /// Which client this is in it.
    pub client: u32,
    /// Its number of records.
    pub records: u64,
    /// Messages that exist, those before the first round included.
    pub messages: u64,
    /// Messages that were paid for.
    pub paid: u64,
    /// Messages whose bytes are kept.
    pub kept: u64,
    /// Of these, how many are read as the server reads them.
    pub decoded: u64,
    /// What all its messages cost by the stored price; `None` where nothing is claimed.
    pub charged_epsilon: Option<f64>,
    /// What they cost by the description and the number of records.
    pub computed_epsilon: Option<f64>,
    /// At which delta.
    pub delta: f64,
    /// What does not agree.
    pub disagreements: Vec<Disagreement>,
}

/// All of a client's books.
#[derive(Clone, Debug, Serialize)]
pub struct Books {
    /// Run by run, in the order of the ledger.
    pub runs: Vec<RunBooks>,
    /// What does not belong to a run.
    pub disagreements: Vec<Disagreement>,
}

impl Books {
    /// Looks at a client's state.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn of(store: &mut ClientSqlite) -> Result<Self, BooksError> {
        let (runs, entries, releases) = (store.runs()?, store.entries()?, store.release_entries()?);
        let mut disagreements = gaps("message", entries.iter().map(|entry| entry.number));
        disagreements.extend(gaps("release", releases.iter().map(|entry| entry.number)));
        let mut by_run: BTreeMap<Hash, Kept> = BTreeMap::new();
        for entry in entries {
            by_run.entry(entry.run).or_default().rounds.push(entry);
        }
        for entry in releases {
            by_run.entry(entry.run).or_default().releases.push(entry);
        }
        let mut books = Vec::with_capacity(runs.len());
        for run in &runs {
            let mut kept = by_run.remove(&run.hash).unwrap_or_default();
            kept.checkpoint = store.state(&run.hash)?.map(|state| state.server.round);
            books.push(look(run, &kept)?);
        }
        for (hash, kept) in by_run {
            disagreements.push(Disagreement {
                kind: Kind::Message,
                what: format!(
                    "{} of run {} that is not in the ledger",
                    kept.messages(),
                    &hex(&hash)[..16]
                ),
            });
        }
        Ok(Self {
            runs: books,
            disagreements,
        })
    }

    /// Whether everything agrees.
    pub fn agree(&self) -> bool {
        self.disagreements.is_empty() && self.runs.iter().all(|run| run.disagreements.is_empty())
    }
}

/// What the state has of a run.
#[derive(Default)]
struct Kept {
    releases: Vec<ReleaseEntry>,
    rounds: Vec<Entry>,
    /// The round that its latest state is before.
    checkpoint: Option<u32>,
}

impl Kept {
    fn messages(&self) -> u64 {
        (self.releases.len() + self.rounds.len()) as u64
    }
}

/// Numbers that nothing of its kind has.
fn gaps(kind: &str, numbers: impl Iterator<Item = i64>) -> Vec<Disagreement> {
    let mut found = Vec::new();
    let mut expected = 1;
    for number in numbers {
        if number > expected {
            found.push(Disagreement {
                kind: Kind::Missing,
                what: match number - expected {
                    1 => format!("{kind} number {expected} is gone"),
                    _ => format!("{kind}s number {expected} to {} are gone", number - 1),
                },
            });
        }
        expected = number.saturating_add(1);
    }
    found
}

/// One run's books.
fn look(run: &LedgerRun, kept: &Kept) -> Result<RunBooks, BooksError> {
    let price = &run.price;
    let mut books = RunBooks {
        run: hex(&run.hash),
        client: run.client,
        records: price.records,
        messages: kept.messages(),
        paid: price.messages(),
        kept: 0,
        decoded: 0,
        charged_epsilon: price.cost(price.adjacency, price.delta)?,
        computed_epsilon: None,
        delta: price.delta,
        disagreements: Vec::new(),
    };
    if Hash::from(Sha256::digest(run.description.as_bytes())) != run.hash {
        books.add(
            Kind::Run,
            "its description is not the one that its name is the digest of",
        );
    }
    let records = usize::try_from(price.records).unwrap_or(usize::MAX);
    let described = match Description::parse(&run.description, records) {
        Ok(description) => Some(description),
        Err(error) => {
            books.add(
                Kind::Run,
                format!("its description cannot be read: {error}"),
            );
            None
        }
    };
    if let Some(description) = &described {
        books.compare_price(run, description, records)?;
    }
    let lengths = described.as_ref().map(|known| lengths(known, records));
    books.compare_releases(run, kept, &lengths.unwrap_or_default());
    let compressor = described.as_ref().and_then(compressor);
    let checkpoint = kept.checkpoint.unwrap_or(0);
    books.compare_messages(run, &kept.rounds, checkpoint, compressor.as_ref());
    Ok(books)
}

impl RunBooks {
    fn add(&mut self, kind: Kind, what: impl Into<String>) {
        let what = what.into();
        self.disagreements.push(Disagreement { kind, what });
    }

    /// The stored price against the one that follows from the description.
    fn compare_price(
        &mut self,
        run: &LedgerRun,
        description: &Description,
        records: usize,
    ) -> Result<(), BooksError> {
        let price = &run.price;
        if run.client as usize >= description.resolved.clients {
            self.add(Kind::Run, format!("it has no client {}", run.client));
        }
        let persons = price.records_per_person;
        let computed = match budget::price_of_persons(description, records, persons) {
            Ok(computed) => computed,
            Err(error) => {
                self.add(Kind::Run, format!("it cannot be priced: {error}"));
                return Ok(());
            }
        };
        self.computed_epsilon = computed.cost(price.adjacency, price.delta)?;
        let Some(difference) = price.difference(&computed) else {
            if price.claim != computed.claim {
                self.add(Kind::Run, "its claim is not the one that follows from it");
            }
            return Ok(());
        };
        let kind = match undercharged(price, &computed, self) {
            true => Kind::Undercharged,
            false => Kind::Overcharged,
        };
        self.add(kind, format!("charged for {difference}"));
        Ok(())
    }

    /// What was released before the first round, against what was paid for, and the wire. Without a
    /// description there are no `lengths`, and nothing is read.
    fn compare_releases(&mut self, run: &LedgerRun, kept: &Kept, lengths: &[usize]) {
        let paid = run.price.before.len();
        let begun = run.finished || kept.checkpoint.is_some() || !kept.rounds.is_empty();
        let there = |place: usize| {
            let mut places = kept.releases.iter().map(|entry| entry.place as usize);
            places.any(|found| found == place)
        };
        // One after the other, each when the one before is known, and rounds after all of them.
        let last = kept.releases.iter().map(|entry| entry.place as usize + 1);
        let due = match begun {
            true => paid,
            false => last.max().unwrap_or(0).min(paid),
        };
        for place in (0..due).filter(|&place| !there(place)) {
            let what = format!("release {place} before the first round is gone");
            self.add(Kind::Missing, what);
        }
        for entry in &kept.releases {
            let (place, row) = (entry.place, &entry.row);
            if place as usize >= paid {
                let what = format!("release {place} before the first round was not paid for");
                self.add(Kind::Undercharged, what);
            }
            let known = row.average.is_some();
            if begun && !run.finished && !known {
                let what = format!("release {place} has no average, and rounds came after it");
                self.add(Kind::Message, what);
            }
            if run.finished && known {
                let what = format!("the average of release {place} of a run that is over");
                self.add(Kind::NotErased, what);
            }
            match (run.finished || known, row.message.is_empty()) {
                (true, true) => continue,
                (true, false) => {
                    let what = format!("the bytes of release {place}, which is over");
                    self.add(Kind::NotErased, what);
                }
                (false, _) => {}
            }
            self.kept += 1;
            let Some(&length) = lengths.get(place as usize) else {
                continue;
            };
            match preliminary::decode(place, length, &row.message) {
                Ok(_) => self.decoded += 1,
                Err(error) => self.add(Kind::Message, format!("release {place}: {error}")),
            }
        }
    }

    /// The messages against each other, the rounds that were paid for, and the wire.
    fn compare_messages(
        &mut self,
        run: &LedgerRun,
        entries: &[Entry],
        checkpoint: u32,
        compressor: Option<&Compressor>,
    ) {
        let mut update = Update::default();
        let mut before = None;
        for entry in entries {
            let row = &entry.row;
            if u64::from(row.round) >= run.price.rounds {
                let what = format!("the message of round {} was not paid for", row.round);
                self.add(Kind::Undercharged, what);
            }
            if before.is_some_and(|before| row.round <= before) {
                let what = format!("round {} comes after a later one", row.round);
                self.add(Kind::Message, what);
            }
            before = Some(row.round);
            let over = run.finished || row.round < checkpoint;
            match (over, row.message.is_empty() && row.coins.is_none()) {
                (true, true) => continue,
                (true, false) => {
                    let what = format!("bytes or coins of round {}, which is over", row.round);
                    self.add(Kind::NotErased, what);
                }
                (false, _) => {}
            }
            self.kept += 1;
            let Some(compressor) = compressor else {
                continue;
            };
            match wire::decode(compressor, row.round, &row.message, &mut update) {
                Ok(_) => self.decoded += 1,
                Err(error) => {
                    let what = format!("the message of round {}: {error}", row.round);
                    self.add(Kind::Message, what);
                }
            }
        }
    }
}

/// Whether the stored price is below the computed one.
fn undercharged(stored: &Priced, computed: &Priced, books: &RunBooks) -> bool {
    match (books.charged_epsilon, books.computed_epsilon) {
        (Some(charged), Some(found)) if charged != found => charged < found,
        // Nobody can say what it costs, and somebody did.
        (Some(_), None) => true,
        (None, _) => false,
        // Equal numbers at the stored delta: more noise claimed, fewer messages, a larger delta, or
        // neighbours that are nearer to each other, is less.
        _ => {
            let nearer = |one: &Priced| one.adjacency == Adjacency::ZeroOut;
            stored.sigma > computed.sigma
                || stored.delta > computed.delta
                || nearer(stored) && !nearer(computed)
                || stored.rounds < computed.rounds
                || stored.records_per_person < computed.records_per_person
        }
    }
}

/// What all messages of the run are encoded by.
fn compressor(description: &Description) -> Option<Compressor> {
    let objective = description.model.objective();
    let plan = soteriafl::run::plan_for(&description.resolved, &objective).ok()?;
    Some(plan.compressor.clone())
}

/// How many numbers each release before the first round has.
fn lengths(description: &Description, records: usize) -> Vec<usize> {
    let columns = description.features().map(|features| features.outputs());
    let releases = accounting::preliminaries(&description.resolved.specification(), records);
    match (columns, releases) {
        (Ok(columns), Ok(releases)) => releases.iter().map(|one| one.len(columns)).collect(),
        _ => Vec::new(),
    }
}
