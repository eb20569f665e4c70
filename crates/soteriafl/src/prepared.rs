//! A configured run between its records and its files: what is known before the first round, the
//! rounds themselves, and what is said at the end.
//!
//! The program `soteria train` and the Python package both go this way, so that the same
//! configuration over the same records gives the same bytes. What differs is around it: where the
//! configuration comes from, where the table of rounds is written, and what is shown meanwhile.

use std::borrow::Cow;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use soteriafl_core::quality::measure;
use soteriafl_core::simulate::{EvaluationPlan, Metrics, SimulationError, Traffic};

use crate::accounting::{Privacy, PrivacyError};
use crate::advice;
use crate::config::resolve::Resolved;
use crate::output::{LastRow, RunResult};
use crate::problem::{Problem, ProblemError, regularizer};
use crate::quality;
use crate::run::{self, Simulated};

/// What is known of a run before its first round.
pub struct Prepared {
    /// What runs.
    pub resolved: Resolved,
    /// On what.
    pub problem: Problem,
    /// Every client's number of records.
    pub records: Vec<usize>,
    /// Every client's weight in the average.
    pub weights: Vec<f64>,
    /// Noise, cost and claim.
    pub privacy: Privacy,
    /// How long finding the noise took.
    pub calibration: Duration,
    /// The longest way of the signal over the length of the noise ([`advice`]).
    pub signal_to_noise: Option<f64>,
}

/// How far a run has come.
#[derive(Clone, Copy, Debug)]
pub struct Reached {
    /// Rounds done.
    pub round: u32,
    /// Traffic so far.
    pub traffic: Traffic,
    /// The latest metrics; not numbers before the first evaluation.
    pub metrics: Metrics,
    /// The utility of the latest evaluation.
    pub utility: f64,
    /// The epsilon at the latest evaluation, where one is claimed.
    pub spent: Option<f64>,
    /// Whether this round was evaluated.
    pub evaluated: bool,
}

/// Why a run did not come to its end.
#[derive(Debug)]
pub enum Stopped<E> {
    /// A row could not be written.
    Row(E),
    /// The model, which is computed elsewhere, could not be.
    Simulation(SimulationError),
}

/// What is said at the end of a run.
pub struct Conclusion {
    /// What the metrics of the end warn of; it stands in the summary, too.
    pub found: Vec<String>,
    /// The file `summary.json`.
    pub summary: Value,
    /// The file `model.safetensors`.
    pub model: Vec<u8>,
}

impl Prepared {
    /// Calibrates every client's noise for `resolved`, which was resolved for `problem`, and
    /// whitens its records where the run says so.
    ///
    /// # Errors
    /// When the accountant does not vouch for it, or second moments cannot be released.
    pub fn calibrate(resolved: Resolved, problem: Problem) -> Result<Self, PrivacyError> {
        let records = problem.sizes();
        let dimension = problem.objective.dimension();
        let start = Instant::now();
        let privacy = Privacy::calibrate(
            &resolved.specification(),
            dimension,
            &records,
            problem.data_dependent(),
        )?;
        let calibration = start.elapsed();
        let whitened = problem.whitened(&resolved);
        let problem = match whitened.map_err(|error| PrivacyError::Moments(error.to_string()))? {
            Cow::Owned(whitened) => whitened,
            Cow::Borrowed(_) => problem,
        };
        let weights = problem.weights(&resolved);
        let sigmas = &privacy.sigmas;
        Ok(Self {
            signal_to_noise: advice::signal_to_noise(&resolved, dimension, sigmas, &weights),
            resolved,
            problem,
            records,
            weights,
            privacy,
            calibration,
        })
    }

    /// Clients and server before the first round.
    ///
    /// # Errors
    /// When they do not fit each other, or not into memory.
    pub fn simulation(&self) -> Result<Simulated, ProblemError> {
        run::simulated(&self.resolved, &self.problem, &self.privacy.sigmas)
    }

    /// What is known to go wrong before the first round.
    pub fn foreseen(&self) -> Vec<String> {
        let noise = advice::noise(self.signal_to_noise, self.problem.objective.dimension());
        let columns = advice::columns_of(&self.problem);
        // A column that says who is who was heeded.
        let persons = match self.problem.bounded {
            Some(_) if self.resolved.natural.is_some() => None,
            Some(_) => advice::persons_dealt_by_rows(self.records.len(), &self.privacy.claim),
            None => advice::persons(self.resolved.records_per_person, &self.privacy.claim),
        };
        let shards = self.problem.shards.iter().map(AsRef::as_ref);
        let whose = "the records, as a simulation may, outside of the claim";
        let outside = quality::outside_range(shards, whose);
        let elsewhere = self.problem.is_elsewhere().then(advice::elsewhere);
        let ranges = self.problem.range_noise.and_then(advice::ranges);
        let first = noise
            .into_iter()
            .chain(ranges)
            .chain(persons)
            .chain(elsewhere);
        first.chain(columns).chain(outside).collect()
    }

    /// After which round the run ends.
    pub fn last_round(&self) -> u32 {
        self.resolved.specification().last_round()
    }

    /// The epsilon after so many rounds, where one is claimed.
    pub fn spent(&self, round: u32) -> Option<f64> {
        let after = self.privacy.odometer.as_ref()?.after(u64::from(round));
        // Both bound the same at the end; files should not disagree about it.
        let whole = self.privacy.epsilon;
        let whole = whole.filter(|_| round == self.resolved.rounds);
        Some(whole.map_or(after, |whole| whole.max(after)))
    }

    /// All rounds, or until `observe` breaks. `row` writes an evaluated round down and returns the
    /// utility so far; it comes before `observe`, so that a run that is stopped leaves the row of
    /// the round it was stopped in. Rounds that an earlier process evaluated are not evaluated
    /// again.
    ///
    /// # Errors
    /// When a row cannot be written, or a model that is computed elsewhere cannot be.
    pub fn simulate<E>(
        &self,
        simulation: &mut Simulated,
        threads: usize,
        known: Option<LastRow>,
        mut row: impl FnMut(u32, Traffic, &Metrics, Option<f64>) -> Result<f64, E>,
        mut observe: impl FnMut(&Reached) -> ControlFlow<()>,
    ) -> Result<Reached, Stopped<E>> {
        let (resolved, problem) = (&self.resolved, &self.problem);
        let plan = EvaluationPlan {
            objective: problem.objective.as_ref(),
            regularizer: regularizer(resolved.regularizer, resolved.lambda),
            weights: &self.weights,
            test: problem.test.as_ref(),
            every: resolved.eval_every,
            from: known.map_or(0, |last| last.round + 1),
        };
        let mut reached = Reached::before(known);
        let mut written = Ok(());
        let ended = simulation.run(threads, &plan, |now| {
            (reached.round, reached.traffic) = (now.round, now.traffic);
            reached.evaluated = now.metrics.is_some();
            if let Some(metrics) = now.metrics {
                let spent = self.spent(now.round);
                match row(now.round, now.traffic, &metrics, spent) {
                    Ok(utility) => {
                        (reached.metrics, reached.utility) = (metrics, utility);
                        reached.spent = spent;
                    }
                    Err(error) => {
                        written = Err(error);
                        return ControlFlow::Break(());
                    }
                }
            }
            observe(&reached)
        });
        written.map_err(Stopped::Row)?;
        ended.map_err(Stopped::Simulation)?;
        Ok(reached)
    }

    /// What the run has come to, and how good its model is on the test set.
    pub fn result(
        &self,
        simulation: &Simulated,
        reached: &Reached,
        threads: usize,
        began: Instant,
    ) -> RunResult<'_> {
        let shards = self.problem.shards.iter().map(AsRef::as_ref);
        // What a model that is computed elsewhere says of records is known there.
        let test = self.problem.test.as_ref();
        let test = test.filter(|_| !self.problem.is_elsewhere());
        let (objective, model) = (self.problem.objective.as_ref(), simulation.model());
        let quality = test.and_then(|test| measure(objective, &model, test, threads));
        RunResult {
            resolved: &self.resolved,
            records: &self.records,
            dimension: self.problem.objective.dimension(),
            privacy: &self.privacy,
            rounds: reached.round,
            metrics: reached.metrics,
            utility: reached.utility,
            traffic: reached.traffic,
            clock: simulation.clock(),
            total_seconds: began.elapsed().as_secs_f64(),
            interrupted: reached.round < self.last_round(),
            deployed: None,
            majority_accuracy: test.and_then(|test| advice::majority_accuracy(shards, test)),
            quality,
            class_names: &self.problem.shape.labels,
            signal_to_noise: self.signal_to_noise,
            warnings: Vec::new(),
        }
    }

    /// Summary and model of a run that started from a model with loss `start`. What its metrics
    /// warn of is added to `result`.
    ///
    /// # Errors
    /// When the model cannot be encoded.
    pub fn conclude(
        &self,
        simulation: &Simulated,
        result: &mut RunResult<'_>,
        start: Option<f64>,
    ) -> Result<Conclusion, String> {
        let majority = result.majority_accuracy;
        let mut found = advice::after(start, &result.metrics, majority, result.diverged());
        let quality = result.quality.as_ref();
        found.extend(quality.and_then(quality::no_better_than_mean));
        found.extend(advice::cut_off(simulation.cut_off()));
        result.warnings.extend(found.iter().cloned());
        let mut summary = result.summary();
        if !self.problem.is_elsewhere() {
            summary["data"] = described(&self.problem);
        }
        Ok(Conclusion {
            found,
            summary,
            model: self.problem.model_file(&simulation.model())?,
        })
    }
}

impl Reached {
    /// Nothing, or what an earlier process has evaluated.
    fn before(known: Option<LastRow>) -> Self {
        let unknown = Metrics {
            loss: f64::NAN,
            grad_norm_sq: f64::NAN,
            test_accuracy: None,
            consensus_error: None,
        };
        Self {
            round: 0,
            traffic: Traffic::default(),
            metrics: known.map_or(unknown, |last| last.metrics),
            utility: known.map_or(f64::NAN, |last| last.utility),
            spent: None,
            evaluated: false,
        }
    }
}

/// What whoever applies the model must know of the records: what they look like, and constants that
/// were computed from them and that no configuration holds.
fn described(problem: &Problem) -> Value {
    let shape = &problem.shape;
    let mut data = json!({
        "features": shape.features,
        "feature_names": shape.names,
        "classes": shape.labels,
    });
    let scaling = &problem.scaling;
    if scaling.data_dependent() {
        data["scaling"] = json!({
            "center": scaling.center().as_slice(),
            "factor": scaling.factor().as_slice(),
        });
    }
    data
}
