//! What several runs cost together.
//!
//! **One run** costs what the accountant says for its whole schedule, which was fixed before its
//! first message. **Several runs** may have been chosen by looking at earlier ones, so their
//! schedules were not fixed together: from the second run on the cost is that of a Renyi filter.
//! Renyi divergences add up at every order, whoever chose the next mechanism
//! ([`RdpCurve::filter_epsilon`]).
//!
//! **Every run counts in full** from its first message on, also one that was left: only then was it
//! decided before the first message of all whether a second run will ever be admitted, and with it
//! which of the two costs applies (`docs/privacy.md`, Proposition 13).

use soteriafl_accountant::rdp::RdpCurve;
use soteriafl_accountant::{Adjacency, Release};

use super::super::Hash;
use super::super::description::Dealing;
use super::super::store::LedgerRun;
use super::Refusal;

/// Runs that are counted together, as if one record had been in all of them.
#[derive(Clone, Debug)]
pub struct Counted<'a> {
    runs: Vec<&'a LedgerRun>,
    adjacency: Adjacency,
}

/// What some records have spent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spent {
    /// The bound; infinite where no accountant gives one, `None` where there is no claim.
    pub epsilon: Option<f64>,
    /// At which delta.
    pub delta: f64,
    /// Under zero-out if all runs are, else under replace-one.
    pub adjacency: Adjacency,
    /// For persons with up to so many records: the fewest that any of the runs speaks of.
    pub records_per_person: u32,
    /// How it was added up.
    pub method: &'static str,
    /// Over how many runs.
    pub runs: usize,
}

impl<'a> Counted<'a> {
    /// Those of `runs` of which a message exists, and `whole`, whether its messages were made or
    /// not. Neighbours differ by a replaced record if `replace_one` says so or any of the runs
    /// speaks of such.
    pub fn new(
        runs: impl IntoIterator<Item = &'a LedgerRun>,
        whole: Option<&'a LedgerRun>,
        replace_one: bool,
    ) -> Self {
        let mut runs: Vec<&LedgerRun> = runs
            .into_iter()
            .filter(|run| run.messages > 0 && whole.is_none_or(|whole| whole.hash != run.hash))
            .collect();
        runs.extend(whole);
        let zeroed = |run: &&LedgerRun| run.price.adjacency == Adjacency::ZeroOut;
        let adjacency = match !runs.is_empty() && !replace_one && runs.iter().all(zeroed) {
            true => Adjacency::ZeroOut,
            false => Adjacency::ReplaceOne,
        };
        Self { runs, adjacency }
    }

    /// How many records have been in some message of these runs, at most. The same part, dealt
    /// alike in several runs, is the same records; all parts together are no more than the source.
    /// Runs that keep some records of each person may keep others, by another seed.
    pub fn records(&self) -> u64 {
        let mut sources: Vec<&Hash> = self.runs.iter().map(|run| &run.data).collect();
        sources.sort_unstable();
        sources.dedup();
        let of = |source: &Hash| {
            let runs = self.runs.iter().filter(|run| run.data == *source);
            let (mut whole, mut dealt, mut all) = (0, 0_u64, 0);
            let mut known = Vec::new();
            for run in runs {
                let records = run.price.records;
                let dealing = Dealing::of(&run.description);
                let chooses = dealing.is_some_and(|dealing| dealing.bounds_persons());
                match run.part {
                    None if !chooses => {
                        whole = whole.max(records);
                        continue;
                    }
                    // Another seed keeps other records of the same persons, and nobody knows here
                    // how many there are.
                    None => all = u64::MAX,
                    Some((_, parts)) => {
                        all = all.max((records + 1).saturating_mul(parts as u64));
                    }
                }
                let part = dealing.map(|dealing| (dealing, run.part));
                if part.is_none() || !known.contains(&part) {
                    dealt = dealt.saturating_add(records);
                    known.push(part);
                }
            }
            whole.max(dealt.min(all))
        };
        let sum = |sum: u64, source: &Hash| sum.saturating_add(of(source));
        sources.into_iter().fold(0, sum)
    }

    /// The delta that the newest run names. Not the smallest of all: one run with a tiny delta
    /// would make every later one dearer.
    pub fn named_delta(&self) -> Option<f64> {
        self.runs.last().map(|run| run.price.delta)
    }

    /// Whether every run has a claim.
    pub fn is_known(&self) -> bool {
        self.runs.iter().all(|run| run.price.is_known())
    }

    /// Whether every run on this data set has a claim.
    pub fn is_known_on(&self, data: &Hash) -> bool {
        let mut runs = self.runs.iter().filter(|run| run.data == *data);
        runs.all(|run| run.price.is_known())
    }

    /// A run that speaks of more records of a person bounds what fewer cost.
    fn records_per_person(&self) -> u32 {
        let each = self.runs.iter().map(|run| run.price.records_per_person);
        each.min().unwrap_or(1)
    }

    /// What all of these runs cost at `delta`.
    ///
    /// # Errors
    /// When some mechanism cannot be accounted.
    pub fn at(&self, delta: f64) -> Result<Spent, Refusal> {
        let (epsilon, method) = match self.runs[..] {
            [] => (Some(0.0), "nothing sent"),
            // A schedule that was fixed beforehand; one that stopped early costs no more than all
            // of it.
            [run] => (
                run.price.cost(self.adjacency, delta)?,
                "exact, the whole run",
            ),
            _ => (self.filter(delta)?, "renyi filter, every run in full"),
        };
        Ok(Spent {
            epsilon,
            delta,
            adjacency: self.adjacency,
            records_per_person: self.records_per_person(),
            method,
            runs: self.runs.len(),
        })
    }

    /// The Renyi filter's epsilon.
    fn filter(&self, delta: f64) -> Result<Option<f64>, Refusal> {
        let mut sum = RdpCurve::zero();
        for run in &self.runs {
            let price = &run.price;
            let (first, second) = match price.levels()? {
                Some(levels) => levels.split(price.rounds),
                None => (price.rounds, 0),
            };
            let ratio = price.noise_levels.map_or(1.0, |(_, ratio)| ratio);
            for (messages, sigma) in [(first, price.sigma), (second, ratio * price.sigma)] {
                let Some(release) = price.release()? else {
                    return Ok(None);
                };
                let curve = curve(&release, sigma, self.adjacency)?;
                if messages > 0 {
                    sum = sum.plus(&curve.times(messages));
                }
            }
            for (release, sigma) in price.releases_before()? {
                sum = sum.plus(&curve(&release, sigma, self.adjacency)?);
            }
        }
        Ok(Some(sum.filter_epsilon(delta)))
    }
}

/// The Renyi curve of one message with this much noise.
fn curve(release: &Release, sigma: f64, adjacency: Adjacency) -> Result<RdpCurve, Refusal> {
    let by = |adjacency| {
        let curve = release.rdp_curve(sigma, adjacency);
        curve.map_err(|error| Refusal::Ledger(error.to_string()))
    };
    let replaced = by(Adjacency::ReplaceOne)?;
    if adjacency == Adjacency::ReplaceOne {
        return Ok(replaced);
    }
    // A zeroed record is a replaced one, so what bounds these bounds those; taken at every order,
    // no run is cheaper beside one that speaks of replaced records than alone.
    Ok(by(Adjacency::ZeroOut)?.tighter(&replaced))
}
