//! What a server leaves of its run: the rows of measured rounds, and at the end the files that
//! `soteria train` writes. Nothing in them was measured at clients, and they say so.
//!
//! [`measure`] computes on the server's own test set; [`Ending`] collects what is known, round by
//! round, and [`Ending::conclude`] turns it into summary and model.

use std::sync::Arc;
use std::time::Duration;

use soteriafl::accounting::{Privacy, PrivacyError};
use soteriafl::advice;
use soteriafl::claim::{Claim, Reason};
use soteriafl::model_file::{self, About};
use soteriafl::output::{Deployed, OutputError, RunDirectory, RunResult};
use soteriafl::problem::{self, Model};
use soteriafl::quality;
use soteriafl_core::data::{Dataset, RecordsError};
use soteriafl_core::moments::Whitening;
use soteriafl_core::objective::{Objective, ObjectiveError, Outcome, Records, Workspace};
use soteriafl_core::protocol::Round;
use soteriafl_core::quality::Quality;
use soteriafl_core::simulate::{Clock, Metrics, Traffic};

use super::coordinator::Coordinator;
use super::run_plan::RunPlan;
use super::store::{Evaluation, ServerStore, Sums};

/// Why a run's files cannot be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EndingError {
    /// The run never began.
    #[error("there is no model")]
    NoModel,
    /// What was spent cannot be computed.
    #[error(transparent)]
    Privacy(#[from] PrivacyError),
    /// The model cannot be written down.
    #[error("{0}")]
    Model(String),
    /// The test set is not what the model reads.
    #[error(transparent)]
    Test(#[from] RecordsError),
    /// The file system refuses.
    #[error(transparent)]
    Output(#[from] OutputError),
}

/// What is known of a run, up to its end.
#[derive(Default)]
pub struct Ending {
    model: Option<Arc<Vec<f32>>>,
    privacy: Option<Privacy>,
    records: Vec<usize>,
    /// How records are whitened by what clients have released before the first round.
    whitening: Option<Whitening>,
    /// The server's test set as the model reads records, once it was asked for.
    test: Option<Arc<Dataset>>,
    round: Round,
    sums: Sums,
    /// What was measured at the start and at last.
    first: Option<Evaluation>,
    last: Option<Evaluation>,
    /// Messages of each client that were taken.
    taken: Vec<u32>,
    /// Time in rounds and in measurements, of this process.
    training: Duration,
    evaluation: Duration,
    /// Whether that is all of it: whether this process has seen the first round.
    whole: bool,
    test_seed: Option<u64>,
}

impl Ending {
    /// Begins with what a coordinator knows; `test_seed` is that of a test run.
    pub fn of<S: ServerStore>(coordinator: &Coordinator<S>, test_seed: Option<u64>) -> Self {
        let mut ending = Self {
            whole: coordinator.round() == 0,
            test_seed,
            ..Self::default()
        };
        ending.follow(coordinator, false);
        ending
    }

    /// Takes over what has changed; `closed`: a round has, since the last call.
    pub fn follow<S: ServerStore>(&mut self, coordinator: &Coordinator<S>, closed: bool) {
        if closed {
            self.training += Duration::from_secs_f64(coordinator.last_seconds());
        }
        if self.whitening.is_none() && coordinator.begun() {
            self.whitening = coordinator.whitening();
        }
        // As soon as they are known: rows are written with them.
        if self.privacy.is_none() {
            self.privacy = coordinator.privacy().cloned();
            let members = coordinator.members().iter().flatten();
            self.records = members.map(|member| member.records as usize).collect();
        }
        self.model = coordinator.model().cloned();
        self.taken = coordinator.taken().to_vec();
        self.round = coordinator.round();
        self.sums = coordinator.sums();
    }

    /// What a client has spent that took part in all rounds until `round`. Whoever knows a test
    /// seed knows the noise, so there is nothing to say then.
    pub fn spent(&self, round: Round) -> Option<f64> {
        let privacy = self.privacy.as_ref().filter(|_| self.test_seed.is_none())?;
        let odometer = privacy.odometer.as_ref()?;
        Some(odometer.after(u64::from(round)))
    }

    /// The server's own test set as the model reads records. Once rounds have begun.
    ///
    /// # Errors
    /// When its records cannot be mapped.
    pub fn test(
        &mut self,
        plan: Option<&Arc<Dataset>>,
    ) -> Result<Option<Arc<Dataset>>, EndingError> {
        if let (None, Some(test)) = (&self.test, plan) {
            self.test = Some(match &self.whitening {
                Some(map) => Arc::new(map.apply(test)?),
                None => Arc::clone(test),
            });
        }
        Ok(self.test.clone())
    }

    /// `model.safetensors` of a model of this run.
    ///
    /// # Errors
    /// When it cannot be written down.
    pub fn model_file(&self, plan: &RunPlan, model: &[f32]) -> Result<Vec<u8>, EndingError> {
        let about = About {
            shape: &plan.shape,
            scaling: &plan.scaling,
        };
        let map = model_file::RecordMap {
            features: &plan.features,
            whitening: self.whitening.as_ref(),
            basis: plan.basis,
        };
        model_file::to_bytes(&plan.model, model, map, plan.intercept, about)
            .map_err(EndingError::Model)
    }

    /// Notes how long a measurement took.
    pub fn measured_for(&mut self, time: Duration) {
        self.evaluation += time;
    }

    /// Writes the row of a measured round.
    ///
    /// # Errors
    /// When the file system refuses.
    pub fn row(
        &mut self,
        directory: &mut RunDirectory,
        evaluation: &Evaluation,
    ) -> Result<(), OutputError> {
        self.last = Some(*evaluation);
        if evaluation.round == 0 {
            self.first = Some(*evaluation);
        }
        directory.measured_row(
            evaluation.round,
            traffic(evaluation.sums),
            (evaluation.loss, evaluation.accuracy),
            self.spent(evaluation.round),
        )
    }

    /// Everything that can be said at the end.
    ///
    /// # Errors
    /// When there is no model, or it cannot be written down.
    pub fn conclude<'a>(
        &'a mut self,
        plan: &'a RunPlan,
        threads: usize,
        total_seconds: f64,
    ) -> Result<Concluded<'a>, EndingError> {
        self.complete_privacy(plan)?;
        let test = self.test(plan.test.as_ref())?;
        let (Some(model), Some(privacy)) = (&self.model, &self.privacy) else {
            return Err(EndingError::NoModel);
        };
        let weights = problem::weights(&plan.resolved, &self.records);
        let ratio = advice::signal_to_noise(&plan.resolved, model.len(), &privacy.sigmas, &weights);
        let majority = majority_accuracy(plan);
        let quality = test.as_deref().and_then(|test| {
            soteriafl_core::quality::measure(plan.model.objective().as_ref(), model, test, threads)
        });
        let finite = model.iter().all(|parameter| parameter.is_finite());
        let found = self.shortcomings(majority, finite, quality.as_ref());
        let persons = advice::persons(plan.resolved.records_per_person, &privacy.claim)
            .filter(|_| !plan.shape.bounds_persons());
        let elsewhere = matches!(plan.model, Model::Elsewhere(_)).then(advice::elsewhere);
        let foreseen = advice::noise(ratio, model.len()).into_iter();
        let foreseen = foreseen.chain(persons).chain(elsewhere);
        let warnings = foreseen.chain(plan.columns()).chain(found.iter().cloned());
        let result = RunResult {
            resolved: &plan.resolved,
            records: &self.records,
            dimension: model.len(),
            privacy,
            rounds: self.round,
            metrics: self.metrics(),
            utility: f64::NAN,
            traffic: traffic(self.sums),
            clock: Clock {
                training: self.training,
                evaluation: self.evaluation,
            },
            total_seconds,
            interrupted: false,
            deployed: Some(Deployed {
                shape: &plan.shape,
                test: plan.test_set(),
                test_loss: self.last.and_then(|row| row.loss),
                test_seed: self.test_seed,
                taken: &self.taken,
                finite,
            }),
            majority_accuracy: majority,
            quality,
            class_names: &plan.shape.labels,
            signal_to_noise: ratio,
            warnings: warnings.collect(),
        };
        let mut summary = result.summary();
        if !self.whole {
            // Nobody knows how long rounds took that an earlier process saw.
            for part in ["training", "evaluation"] {
                summary["seconds"][part] = serde_json::Value::Null;
            }
        }
        Ok(Concluded {
            model: self.model_file(plan, model)?,
            summary,
            result,
            found,
        })
    }

    /// Noise and cost, which a run that is over when its process starts has not computed; and what
    /// must not be claimed of a test.
    fn complete_privacy(&mut self, plan: &RunPlan) -> Result<(), EndingError> {
        let model = self.model.as_ref().ok_or(EndingError::NoModel)?;
        let mut privacy = match self.privacy.take() {
            Some(privacy) => privacy,
            None => {
                let run = plan.resolved.specification();
                Privacy::calibrate(&run, model.len(), &self.records, false)?
            }
        };
        if self.test_seed.is_some() {
            privacy.claim = Claim::Withheld(Reason::TestSeed);
            (privacy.epsilon, privacy.epsilon_unamplified) = (None, None);
            (privacy.amplified, privacy.odometer) = (false, None);
        }
        self.privacy = Some(privacy);
        Ok(())
    }

    /// The last measurement.
    fn metrics(&self) -> Metrics {
        Metrics {
            loss: f64::NAN,
            grad_norm_sq: f64::NAN,
            test_accuracy: self.last.and_then(|row| row.accuracy),
            consensus_error: None,
        }
    }

    /// What the server's own test set says against the model.
    fn shortcomings(
        &self,
        majority_accuracy: Option<f64>,
        finite: bool,
        measured: Option<&Quality>,
    ) -> Vec<String> {
        let end = Metrics {
            loss: self.last.and_then(|row| row.loss).unwrap_or(f64::NAN),
            ..self.metrics()
        };
        let start = self.first.and_then(|row| row.loss);
        let unbounded = !finite || end.loss == f64::INFINITY;
        let mut found = advice::after(start, &end, majority_accuracy, unbounded);
        found.extend(measured.and_then(quality::no_better_than_mean));
        found
    }
}

/// The end of a run, ready to be written and shown.
pub struct Concluded<'a> {
    /// What the summary was made of.
    pub result: RunResult<'a>,
    /// `summary.json`.
    pub summary: serde_json::Value,
    /// `model.safetensors`.
    pub model: Vec<u8>,
    /// What the server's own test set says against the model.
    pub found: Vec<String>,
}

/// What the most common class of the server's test set would reach on it.
fn majority_accuracy(plan: &RunPlan) -> Option<f64> {
    let test = plan.test.as_deref()?;
    advice::majority_accuracy([test], test)
}

/// Sums over rounds as tables have them.
pub fn traffic(sums: Sums) -> Traffic {
    Traffic {
        paper_bits: 64 * sums.values,
        uplink_bytes: sums.uplink,
        downlink_bytes: sums.downlink,
    }
}

/// Mean loss, and the share of correct classes where there are classes.
///
/// # Errors
/// When the objective cannot be computed.
pub fn measure(
    objective: &dyn Objective,
    model: &[f32],
    data: &Dataset,
) -> Result<(f64, Option<f64>), ObjectiveError> {
    const CHUNK: usize = 256;
    let mut workspace = Workspace::new();
    let mut outcomes = vec![Outcome::default(); CHUNK];
    let rows: Vec<u32> = (0..data.rows() as u32).collect();
    let (mut loss, mut correct) = (0.0, 0u64);
    for rows in rows.chunks(CHUNK) {
        let outcomes = &mut outcomes[..rows.len()];
        let records = Records { data, rows };
        objective.factors(model, records, Some(outcomes), None, &mut workspace)?;
        for (outcome, &row) in outcomes.iter().zip(rows) {
            loss += f64::from(outcome.loss);
            let label = data.labels().get(row as usize);
            correct += u64::from(label == Some(&outcome.class));
        }
    }
    let count = data.rows().max(1) as f64;
    let accuracy = (data.targets().is_none()).then(|| correct as f64 / count);
    Ok((loss / count, accuracy))
}
