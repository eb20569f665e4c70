//! The audit: the game of the definition, played many times with the client that runs, and what its
//! outcome says about the epsilon that is claimed.
//!
//! ```text
//! Specification --> Game (client, canaries, server, attack) --> scores
//! scores of a pilot --> Rule;   scores of the other runs, Rule --> Tally --> lower bound on epsilon
//! ```
//!
//! The bound holds with the stated confidence for every mechanism, whatever its noise (the
//! proposition of `docs/audit.md`): if it lies above the claim, the claim is false, or an event of
//! small probability has happened. A bound below the claim is consistent with it and proves
//! nothing.
//!
//! **Cost.** That of the runs, `O(records + canaries)` a round, on all threads.

mod attack;
mod bound;
mod canaries;
#[cfg(test)]
mod fixtures;
mod game;
mod guess;
mod moments;
mod natural;
mod page;

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use serde::Serialize;
use soteriafl_accountant::Adjacency;
use soteriafl_core::protocol::RoundScratch;

use crate::accounting::{Privacy, PrivacyError};
use crate::claim::{Claim, Reason};
use crate::specification::{NoiseName, NoiseTarget, Specification, neighbours};
use bound::{Tally, Terms};
use game::{Game, Scores};
use guess::Rule;
use natural::NaturalGame;

pub use natural::Subject;
pub use page::{figure, html};

/// Why there is no audit.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AuditError {
    /// Nothing is claimed that could be tested.
    #[error("this run claims nothing ({0}), so there is nothing to audit")]
    NoClaim(String),
    /// The accountant refuses.
    #[error(transparent)]
    Privacy(#[from] PrivacyError),
    /// A client cannot be built.
    #[error("{0}")]
    Client(String),
    /// Natural canaries are not for every run.
    #[error("natural canaries {0}")]
    Natural(String),
    /// Too few runs to choose a rule and to count.
    #[error("an audit needs at least {least} runs, found {found}")]
    Runs {
        /// How many it takes.
        least: u32,
        /// How many were asked for.
        found: u32,
    },
    /// It was interrupted.
    #[error("interrupted: an audit that stops early would choose its own end")]
    Interrupted,
}

/// Whether what was seen agrees with the claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// No bound exceeds its claim.
    Consistent,
    /// One does.
    Violated,
}

/// How to audit.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Runs of the client; `None`: as many as about a minute of two cores allows.
    pub runs: Option<u32>,
    /// Seed of coins, keys and coordinates.
    pub seed: u64,
    /// Threads.
    pub threads: usize,
}

/// One game and what came of it.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Which canaries: the worst that are thought of, or records of the data.
    pub canary_records: &'static str,
    /// Which data sets are neighbours, in words.
    pub neighbours: String,
    /// What is claimed.
    pub claimed_epsilon: f64,
    /// What the attack proves.
    pub empirical_epsilon: f64,
    /// One minus the probability that the bound is too large.
    pub confidence: f64,
    /// Runs of the client, those of the pilot included.
    pub runs: u32,
    /// Runs that chose the rule and were not counted.
    pub pilot_runs: u32,
    /// Coins of a run.
    pub canaries: usize,
    /// Coins that were guessed.
    pub guesses: u64,
    /// Guesses that were right.
    pub right: u64,
    /// Thresholds and what guessing above them reached: `(false positives, true positives)`.
    #[serde(skip)]
    pub curve: Vec<(f64, f64)>,
}

impl Outcome {
    fn canaries_are_natural(&self) -> bool {
        self.canary_records == NATURAL
    }

    fn violates(&self) -> bool {
        self.empirical_epsilon > self.claimed_epsilon
    }
}

/// The outcome of an audit.
#[derive(Clone, Debug)]
pub struct Findings {
    /// The game of the configured neighbours first, then the other.
    pub outcomes: Vec<Outcome>,
    /// The delta of the claim.
    pub delta: f64,
    /// One minus the probability that any bound is too large.
    pub confidence: f64,
    /// How noise was drawn.
    pub noise: &'static str,
    /// Messages of a client.
    pub rounds: u32,
    /// The client's number of records.
    pub records: usize,
    /// Standard deviation of its noise.
    pub sigma: f64,
    /// How many records of one person are exchanged.
    pub records_per_person: u32,
    /// Why the run itself claims nothing, where only its mechanism was audited.
    pub withheld: Option<Reason>,
}

impl Findings {
    /// Whether what was seen agrees with what is claimed.
    pub fn verdict(&self) -> Verdict {
        if self.outcomes.iter().any(Outcome::violates) {
            Verdict::Violated
        } else {
            Verdict::Consistent
        }
    }

    /// Whether so little was shown that a false claim could have passed as well: a bound below a tenth
    /// of the claim.
    pub fn shows_little(&self) -> bool {
        let main = &self.outcomes[0];
        self.verdict() == Verdict::Consistent && main.empirical_epsilon < 0.1 * main.claimed_epsilon
    }

    /// What is to be said where the run itself claims nothing: whoever reads "claimed" must not take
    /// it for the run's.
    pub fn caveat(&self) -> Option<String> {
        self.withheld.as_ref().map(|reason| {
            format!(
                "the run itself claims nothing ({reason}): what is called claimed here is what its \
                 mechanism alone would cost"
            )
        })
    }

    /// For machines.
    pub fn to_json(&self) -> serde_json::Value {
        let main = &self.outcomes[0];
        let claim = match &self.withheld {
            Some(reason) => reason.to_string(),
            None => Claim::Proved.to_string(),
        };
        serde_json::json!({
            "claim": claim,
            "claimed_epsilon": main.claimed_epsilon,
            "empirical_epsilon": main.empirical_epsilon,
            "delta": self.delta,
            "confidence": self.confidence,
            "runs": main.runs,
            "verdict": self.verdict(),
            "neighbours": main.neighbours,
            "records_per_person": self.records_per_person,
            "noise": self.noise,
            "rounds": self.rounds,
            "records": self.records,
            "sigma": self.sigma,
            "games": self.outcomes,
        })
    }
}

/// Shares of the error: the configured neighbours, the others.
const ERRORS: [f64; 2] = [0.04, 0.01];
/// Shares of the runs of those two.
const SHARES: [f64; 2] = [0.85, 0.15];
/// The error of a game that is played alone.
const ERROR: f64 = 0.05;
/// The share of the runs that choose the rule.
const PILOT: f64 = 0.05;
/// Fewest runs.
const LEAST: u32 = 5;

/// Games to be played with one client, and what is claimed for it.
pub struct Audit {
    games: Vec<Prepared>,
    delta: f64,
    settings: Settings,
    noise: &'static str,
    rounds: u32,
    records: usize,
    sigma: f64,
    records_per_person: u32,
    withheld: Option<Reason>,
}

/// A game with its claim.
struct Prepared {
    game: Played,
    claimed: f64,
    adjacency: Adjacency,
    runs: u32,
    error: f64,
}

/// What natural canaries are.
const NATURAL: &str = "records of the data";

/// With which canaries.
enum Played {
    Worst(Box<Game>),
    Natural(Box<NaturalGame>),
}

impl Played {
    fn play(&self, number: u32, scratch: &mut RoundScratch) -> Result<Scores, AuditError> {
        match self {
            Played::Worst(game) => game.play(number, scratch),
            Played::Natural(game) => game.play(number, scratch),
        }
    }

    fn canaries(&self) -> usize {
        match self {
            Played::Worst(game) => game.layout.canaries,
            Played::Natural(game) => game.canaries(),
        }
    }

    fn affordable(&self) -> u32 {
        match self {
            Played::Worst(game) => game.affordable(),
            Played::Natural(game) => game.affordable(),
        }
    }

    fn words(&self) -> &'static str {
        match self {
            Played::Worst(_) => "worst case",
            Played::Natural(_) => NATURAL,
        }
    }
}

impl Audit {
    /// Of a client with so many records of `run`, against a server that chooses the worst models.
    ///
    /// # Errors
    /// When nothing is claimed, or the runs are too few.
    pub fn new(
        run: &Specification,
        dimension: usize,
        records: usize,
        settings: Settings,
    ) -> Result<Self, AuditError> {
        let (claimed, sigma) = claim(run, dimension, records)?;
        let other = match run.adjacency {
            Adjacency::ReplaceOne => Adjacency::ZeroOut,
            Adjacency::ZeroOut => Adjacency::ReplaceOne,
        };
        let mut relations = vec![(run.adjacency, claimed)];
        // The noise of second moments is set for one relation, and the other is not priced.
        if run.moments.is_none() {
            let priced = Specification {
                adjacency: other,
                target: NoiseTarget::Sigma(sigma),
                ..run.clone()
            };
            let privacy = Privacy::without_odometer(&priced, dimension, &[records], false)?;
            relations.extend(privacy.epsilon.map(|epsilon| (other, epsilon)));
        }
        let alone = relations.len() == 1;
        let mut games = Vec::new();
        for ((adjacency, claimed), (error, share)) in
            relations.into_iter().zip(ERRORS.into_iter().zip(SHARES))
        {
            let game = Game::new(run, dimension, records, sigma, adjacency, settings.seed)?;
            let (error, share) = if alone { (ERROR, 1.0) } else { (error, share) };
            let game = Played::Worst(Box::new(game));
            games.push(settings.prepare(game, claimed, adjacency, share, error)?);
        }
        Ok(Self::of(run, records, sigma, games, settings))
    }

    /// Of a client of `run` with these records, some of which are the canaries, against the server
    /// of the run.
    ///
    /// # Errors
    /// As [`new`](Self::new), and for runs whose natural canaries are not played.
    pub fn natural(
        run: &Specification,
        subject: Subject,
        settings: Settings,
    ) -> Result<Self, AuditError> {
        let (dimension, records) = (subject.objective.dimension(), subject.data.records());
        let (claimed, sigma) = claim(run, dimension, records)?;
        let game = NaturalGame::new(run, subject, sigma, settings.seed)?;
        let game = Played::Natural(Box::new(game));
        let game = settings.prepare(game, claimed, run.adjacency, 1.0, ERROR)?;
        Ok(Self::of(run, records, sigma, vec![game], settings))
    }

    fn of(
        run: &Specification,
        records: usize,
        sigma: f64,
        games: Vec<Prepared>,
        settings: Settings,
    ) -> Self {
        Self {
            games,
            delta: run.delta,
            settings,
            noise: match run.noise {
                NoiseName::Float => "float (simulated)",
                NoiseName::Secure => "secure",
            },
            rounds: run.rounds,
            records,
            sigma,
            records_per_person: run.records_per_person,
            withheld: None,
        }
    }

    /// The same of a run that claims nothing for what its records went through before its mechanism
    /// saw them: that is all that is audited, and what is found says so.
    #[must_use]
    pub fn withheld(self, reason: Option<Reason>) -> Self {
        Self {
            withheld: reason,
            ..self
        }
    }

    /// How many runs all games have.
    pub fn runs(&self) -> u64 {
        self.games.iter().map(|game| u64::from(game.runs)).sum()
    }

    /// Plays. `progress` hears of every run that is over; `stop` ends it.
    ///
    /// # Errors
    /// When it is interrupted.
    pub fn play(
        &self,
        progress: &(dyn Fn() + Sync),
        stop: &AtomicBool,
    ) -> Result<Findings, AuditError> {
        let mut outcomes = Vec::new();
        for prepared in &self.games {
            let Prepared {
                ref game,
                claimed,
                adjacency,
                runs,
                error,
            } = *prepared;
            let pilot_runs = (f64::from(runs) * PILOT).ceil() as u32;
            let play = |numbers| self.scores(game, numbers, progress, stop);
            let terms = |rule: &Rule| Terms {
                runs: u64::from(runs - pilot_runs),
                canaries: game.canaries() as u64,
                cap: rule.cap,
                sides: rule.answers(),
                expected: rule.expected,
                delta: self.delta,
                error,
            };
            let rule = Rule::choose(&play(0..pilot_runs)?, &terms);
            let scores = play(pilot_runs..runs)?;
            let counts = scores.iter().map(|run| rule.count(run));
            let tally = counts.fold(Tally::default(), |sum, run| Tally {
                guesses: sum.guesses + run.guesses,
                right: sum.right + run.right,
            });
            outcomes.push(Outcome {
                canary_records: game.words(),
                neighbours: neighbours(adjacency, self.records_per_person),
                claimed_epsilon: claimed,
                empirical_epsilon: terms(&rule).epsilon(tally),
                confidence: 1.0 - error,
                runs,
                pilot_runs,
                canaries: game.canaries(),
                guesses: tally.guesses,
                right: tally.right,
                curve: curve(&scores),
            });
        }
        Ok(Findings {
            confidence: 1.0 - self.games.iter().map(|game| game.error).sum::<f64>(),
            outcomes,
            delta: self.delta,
            noise: self.noise,
            rounds: self.rounds,
            records: self.records,
            sigma: self.sigma,
            records_per_person: self.records_per_person,
            withheld: self.withheld.clone(),
        })
    }

    /// The scores of some runs, in their order, whoever computes them.
    fn scores(
        &self,
        game: &Played,
        numbers: std::ops::Range<u32>,
        progress: &(dyn Fn() + Sync),
        stop: &AtomicBool,
    ) -> Result<Vec<Scores>, AuditError> {
        let next = AtomicU32::new(numbers.start);
        let found: Mutex<Vec<(u32, Result<Scores, AuditError>)>> = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for _ in 0..self.settings.threads.max(1) {
                scope.spawn(|| {
                    let mut scratch = RoundScratch::default();
                    loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        if number >= numbers.end || stop.load(Ordering::Relaxed) {
                            return;
                        }
                        let scores = game.play(number, &mut scratch);
                        let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
                        found.push((number, scores));
                        drop(found);
                        progress();
                    }
                });
            }
        });
        let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
        found.sort_unstable_by_key(|(number, _)| *number);
        if found.len() < numbers.len() {
            return Err(AuditError::Interrupted);
        }
        found.into_iter().map(|(_, scores)| scores).collect()
    }
}

/// Refuses runs of which no game is played, whatever the canaries are.
fn playable(run: &Specification) -> Result<(), AuditError> {
    let reason = if run.gossip.is_some() {
        "the audit plays one client and its server, and clients without a server are not played"
    } else if run.ranges.is_some() {
        "the audit does not play the releases of private ranges"
    } else {
        return Ok(());
    };
    Err(AuditError::Client(reason.to_string()))
}

/// What is claimed for a client of `run`, and its noise.
fn claim(run: &Specification, dimension: usize, records: usize) -> Result<(f64, f64), AuditError> {
    let privacy = Privacy::without_odometer(run, dimension, &[records], false)?;
    match privacy.epsilon {
        Some(claimed) => Ok((claimed, privacy.sigmas[0])),
        None => Err(AuditError::NoClaim(privacy.claim.to_string())),
    }
}

impl Settings {
    /// A game with its share of the runs.
    fn prepare(
        &self,
        game: Played,
        claimed: f64,
        adjacency: Adjacency,
        share: f64,
        error: f64,
    ) -> Result<Prepared, AuditError> {
        let runs = self.runs.unwrap_or_else(|| game.affordable());
        let runs = (f64::from(runs) * share).round() as u32;
        if runs < LEAST {
            return Err(AuditError::Runs {
                least: (f64::from(LEAST) / share).ceil() as u32,
                found: self.runs.unwrap_or(runs),
            });
        }
        Ok(Prepared {
            game,
            claimed,
            adjacency,
            runs,
            error,
        })
    }
}

/// What guessing `present` above each of many thresholds reaches: how often it is wrong where the
/// answer is the other, and how often it is right.
fn curve(runs: &[Scores]) -> Vec<(f64, f64)> {
    const POINTS: usize = 160;
    let mut all: Vec<(f32, bool)> = runs
        .iter()
        .flatten()
        .map(|&(coin, score)| (score, coin))
        .collect();
    all.sort_unstable_by(|one, other| other.0.total_cmp(&one.0));
    let present = all.iter().filter(|(_, coin)| *coin).count().max(1) as f64;
    let absent = (all.len() as f64 - present).max(1.0);
    let ratio = (all.len().max(2) as f64).powf(1.0 / POINTS as f64);
    let (mut hits, mut alarms, mut next) = (0.0, 0.0, 1.0f64);
    let mut points = vec![(0.0, 0.0)];
    for (index, (_, coin)) in all.iter().enumerate() {
        if *coin {
            hits += 1.0;
        } else {
            alarms += 1.0;
        }
        if (index + 1) as f64 >= next || index + 1 == all.len() {
            next = ((index + 1) as f64 * ratio).max(next + 1.0);
            points.push((alarms / absent, hits / present));
        }
    }
    points
}

#[cfg(test)]
mod tests;
