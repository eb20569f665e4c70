//! One run of an experiment.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use soteriafl_core::simulate::EvaluationPlan;

use super::pool::PoolError;
use crate::accounting::Privacy;
use crate::claim::Claim;
use crate::config::resolve::Resolved;
use crate::config::{EstimatorKind, Init, Output};
use crate::output::write_whole;
use crate::problem::{Problem, regularizer};
use crate::run;

/// What is run, for any number of seeds.
pub struct Setting {
    /// Its name in messages.
    pub name: String,
    /// What to run; the seed is the job's.
    pub resolved: Resolved,
    /// On what.
    pub problem: Arc<Problem>,
    privacy: OnceLock<Result<Privacy, String>>,
}

impl Setting {
    /// A setting whose noise is not yet calibrated.
    pub fn new(name: impl Into<String>, resolved: Resolved, problem: Arc<Problem>) -> Arc<Self> {
        Arc::new(Self {
            name: name.into(),
            resolved,
            problem,
            privacy: OnceLock::new(),
        })
    }

    /// Noise and cost, computed once by whoever asks first.
    ///
    /// # Errors
    /// When no noise reaches the target.
    pub fn privacy(&self) -> Result<&Privacy, PoolError> {
        let settled = self.privacy.get_or_init(|| {
            let records = self.problem.sizes();
            Privacy::without_odometer(
                &self.resolved.specification(),
                self.problem.objective.dimension(),
                &records,
                self.problem.data_dependent(),
            )
            .map_err(|error| error.to_string())
        });
        settled.as_ref().map_err(|reason| PoolError::Run {
            name: self.name.clone(),
            reason: reason.clone(),
        })
    }
}

/// A setting with a seed.
#[derive(Clone)]
pub struct Job {
    /// What to run.
    pub setting: Arc<Setting>,
    /// Its seed.
    pub seed: u64,
}

/// An evaluated round.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// The round.
    pub round: u32,
    /// Traffic of all clients so far, at 64 bits a value.
    pub paper_bits: u64,
    /// Bytes that clients really sent so far.
    pub uplink_bytes: u64,
    /// Bytes that were really sent to clients so far.
    pub downlink_bytes: u64,
    /// `f(x)`.
    #[serde(with = "any_float")]
    pub loss: f64,
    /// `|grad f(x)|^2`.
    #[serde(with = "any_float")]
    pub grad_norm_sq: f64,
    /// Its mean over the rounds so far; computed from the values above, so not kept.
    #[serde(skip)]
    pub utility: f64,
    /// Share of the test set classified rightly.
    pub test_accuracy: Option<f64>,
}

impl Point {
    /// Bytes that were really sent so far, by clients and to them.
    pub fn bytes_both_ways(&self) -> u64 {
        self.uplink_bytes + self.downlink_bytes
    }
}

/// What a job came to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// The evaluated rounds.
    pub points: Vec<Point>,
    /// The largest standard deviation of the noise.
    pub sigma: f64,
    /// Whether anything is claimed, or why not.
    pub claim: Claim,
    /// The claimed epsilon.
    pub epsilon: Option<f64>,
    /// Whether random-k amplification is part of the claim.
    pub amplified: bool,
}

impl Outcome {
    /// These rounds under this noise.
    fn new(points: Vec<Point>, privacy: &Privacy) -> Self {
        let outcome = Self {
            points,
            sigma: privacy.sigmas.iter().copied().fold(0.0, f64::max),
            claim: privacy.claim.clone(),
            epsilon: privacy.epsilon,
            amplified: privacy.amplified,
        };
        outcome.with_utilities()
    }

    /// With every point's utility computed.
    fn with_utilities(mut self) -> Self {
        let mut utility = Utility::default();
        for point in &mut self.points {
            point.utility = utility.add(point.round, point.grad_norm_sq);
        }
        self
    }
}

impl Job {
    /// Everything that decides the outcome, as a name for a file.
    ///
    /// # Errors
    /// When a start file cannot be read.
    pub fn key(&self) -> Result<String, PoolError> {
        let mut resolved = self.resolved();
        let mut hash = Sha256::new();
        if let Init::File(path) = &resolved.init {
            // What counts is what stands in the file, not where it lies.
            let content = std::fs::read(path).map_err(|error| PoolError::file(path, error))?;
            hash.update(Sha256::digest(&content));
            resolved.init = Init::File(String::new());
        }
        // A source is named by its path; what counts is what was read from there.
        hash.update(self.setting.problem.digest());
        hash.update(env!("CARGO_PKG_VERSION"));
        hash.update([0]);
        hash.update(resolved.to_toml());
        let digest = hash.finalize();
        Ok(digest[..16]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect())
    }

    /// The configuration of this very run.
    pub fn resolved(&self) -> Resolved {
        Resolved {
            seed: self.seed,
            // Curves show all rounds; their mean, the utility, is what a random iterate has on
            // average.
            output: Output::Last,
            ..self.setting.resolved.clone()
        }
    }

    /// Work in a round and in an evaluation, roughly, in record gradients.
    pub(super) fn work(&self) -> (u64, u64) {
        let resolved = &self.setting.resolved;
        let records: usize = self.setting.problem.shards.iter().map(|s| s.rows()).sum();
        let per_client = resolved
            .batch
            .map_or(records as f64, |b| b * resolved.clients as f64);
        let passes = match resolved.estimator {
            EstimatorKind::Svrg => resolved.snapshot_probability * records as f64,
            _ => 0.0,
        };
        let round = f64::from(resolved.estimator.gradients()) * per_client + passes;
        let scale = self.setting.problem.objective.dimension() as u64;
        (
            (round as u64).max(1).saturating_mul(scale),
            (records as u64).saturating_mul(scale),
        )
    }

    /// How many rounds of this job are evaluated.
    pub(super) fn evaluations(&self) -> u64 {
        let resolved = &self.setting.resolved;
        match resolved.eval_every {
            0 => 2,
            every => 1 + u64::from(resolved.rounds.div_ceil(every)),
        }
    }

    /// The whole run. `None` when interrupted. `progress` hears of work as [`work`](Self::work)
    /// counts it.
    pub(super) fn run(
        &self,
        interrupted: &AtomicBool,
        progress: impl Fn(u64),
    ) -> Result<Option<Outcome>, PoolError> {
        let (setting, resolved) = (&self.setting, self.resolved());
        let privacy = setting.privacy()?;
        // Anew for every seed: their noise differs.
        let whitened = setting.problem.whitened(&resolved);
        let problem = &*whitened.map_err(|error| setting.failure(&error))?;
        let mut simulation = run::simulated(&resolved, problem, &privacy.sigmas)
            .map_err(|error| setting.failure(&error))?;
        let weights = problem.weights(&resolved);
        let plan = EvaluationPlan {
            objective: problem.objective.as_ref(),
            regularizer: regularizer(resolved.regularizer, resolved.lambda),
            weights: &weights,
            test: problem.test.as_ref(),
            every: resolved.eval_every,
            from: 0,
        };
        let (per_round, per_evaluation) = self.work();
        let mut points: Vec<Point> = Vec::new();
        let mut stopped = false;
        let ended = simulation.run(1, &plan, |now| {
            let mut done = per_round;
            if let Some(metrics) = now.metrics {
                done += per_evaluation;
                points.push(Point {
                    round: now.round,
                    paper_bits: now.traffic.paper_bits,
                    uplink_bytes: now.traffic.uplink_bytes,
                    downlink_bytes: now.traffic.downlink_bytes,
                    loss: metrics.loss,
                    grad_norm_sq: metrics.grad_norm_sq,
                    utility: 0.0,
                    test_accuracy: metrics.test_accuracy,
                });
            }
            progress(done);
            if interrupted.load(Ordering::Relaxed) {
                stopped = true;
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        });
        ended.map_err(|error| setting.failure(&error))?;
        Ok((!stopped).then(|| Outcome::new(points, privacy)))
    }

    /// The stored outcome of this job, if it is there. What is claimed is computed and not
    /// believed; rounds under another noise are not this job's.
    pub(super) fn finished(
        &self,
        stored: &FinishedJobs<'_>,
        key: &str,
    ) -> Result<Option<Outcome>, PoolError> {
        let Some(found) = stored.read(key) else {
            return Ok(None);
        };
        let outcome = Outcome::new(found.points, self.setting.privacy()?);
        Ok((outcome.sigma == found.sigma).then_some(outcome))
    }
}

impl Setting {
    fn failure(&self, error: &dyn std::error::Error) -> PoolError {
        PoolError::Run {
            name: self.name.clone(),
            reason: error.to_string(),
        }
    }
}

/// The running mean over rounds, evaluated or not.
#[derive(Default)]
struct Utility {
    sum: f64,
    last: Option<(u32, f64)>,
}

impl Utility {
    fn add(&mut self, round: u32, value: f64) -> f64 {
        self.sum += match self.last {
            None => value * f64::from(round + 1),
            Some((before, earlier)) => between(earlier, value, round - before) + value,
        };
        self.last = Some((round, value));
        self.sum / f64::from(round + 1)
    }
}

/// The sum over the rounds strictly between two that lie `steps` apart, if the values change by the
/// same factor from round to round, as a gradient that is being minimised does; by the same amount
/// where there is no such factor.
fn between(from: f64, to: f64, steps: u32) -> f64 {
    let inner = f64::from(steps) - 1.0;
    let ratio = (to / from).powf(1.0 / f64::from(steps));
    let geometric = from * ratio * (1.0 - ratio.powf(inner)) / (1.0 - ratio);
    if from > 0.0 && to > 0.0 && (ratio - 1.0).abs() > 1e-6 && geometric.is_finite() {
        geometric
    } else {
        0.5 * inner * (from + to)
    }
}

/// Where the outcomes of finished jobs are kept.
pub(super) struct FinishedJobs<'a>(pub(super) &'a Path);

impl FinishedJobs<'_> {
    fn path(&self, key: &str) -> PathBuf {
        self.0.join(format!("{key}.json"))
    }

    /// The outcome of this job, if it is there. A file that cannot be understood is not there.
    pub(super) fn read(&self, key: &str) -> Option<Outcome> {
        let text = std::fs::read(self.path(key)).ok()?;
        let outcome: Outcome = serde_json::from_slice(&text).ok()?;
        Some(outcome.with_utilities())
    }

    pub(super) fn write(&self, key: &str, outcome: &Outcome) -> Result<(), PoolError> {
        let path = self.path(key);
        let text = serde_json::to_vec(outcome).expect("an outcome has no map keys but names");
        write_whole(&path, &text).map_err(|error| PoolError::file(&path, error))
    }
}

/// JSON has no word for infinity; here it is a string.
mod any_float {
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(value: &f64, out: S) -> Result<S::Ok, S::Error> {
        if value.is_finite() {
            out.serialize_f64(*value)
        } else {
            out.serialize_str(&value.to_string())
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(input: D) -> Result<f64, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Either {
            Number(f64),
            Text(String),
        }
        match Either::deserialize(input)? {
            Either::Number(number) => Ok(number),
            Either::Text(text) => text.parse().map_err(serde::de::Error::custom),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where values fall by the same factor the mean over all rounds does not depend on which of
    /// them were looked at.
    #[test]
    fn utility_weighs_by_rounds() {
        let mean = |rounds: &[u32], value: &dyn Fn(u32) -> f64| {
            let mut utility = Utility::default();
            let means = rounds
                .iter()
                .map(|round| utility.add(*round, value(*round)));
            means.last().unwrap()
        };
        let all: Vec<u32> = (0..=20).collect();
        let falling = |round: u32| 0.8f64.powi(round as i32);
        let exact = (1.0 - 0.8f64.powi(21)) / 0.2 / 21.0;
        for rounds in [&all[..], &[0, 5, 10, 15, 20], &[0, 3, 4, 20]] {
            assert!((mean(rounds, &falling) - exact).abs() < 1e-12, "{rounds:?}");
            assert!((mean(rounds, &|_| 0.3) - 0.3).abs() < 1e-12, "{rounds:?}");
            assert_eq!(mean(rounds, &|_| 0.0), 0.0);
        }
        assert!((mean(&[0, 2], &|round| f64::from(round)) - 1.0).abs() < 1e-12);
        assert_eq!(mean(&[0, 5], &|_| f64::INFINITY), f64::INFINITY);
        assert!((mean(&[0, 1], &falling) - 0.9).abs() < 1e-12);
    }

    #[test]
    fn outcomes_survive_their_file() {
        let directory = std::env::temp_dir().join(format!("soteria-kept-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let point = Point {
            round: 3,
            paper_bits: u64::MAX,
            uplink_bytes: 7,
            downlink_bytes: 8,
            loss: 0.1 + 0.2,
            grad_norm_sq: f64::INFINITY,
            utility: f64::INFINITY,
            test_accuracy: None,
        };
        let outcome = Outcome {
            points: vec![point],
            sigma: 1.0 / 3.0,
            claim: Claim::Proved,
            epsilon: Some(0.999_999_999_999_999_9),
            amplified: true,
        };
        let finished = FinishedJobs(&directory);
        assert_eq!(finished.read("a"), None);
        finished.write("a", &outcome).unwrap();
        assert_eq!(finished.read("a"), Some(outcome));
        std::fs::write(directory.join("b.json"), b"{\"points\":[").unwrap();
        assert_eq!(finished.read("b"), None);
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
