//! The end of a run: what the last round left, written into files with the names that `train` gives
//! them. Nothing in them was measured at clients, and they say so.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use soteriafl_core::protocol::Round;
use soteriafl_core::simulate::{Clock, Metrics, Traffic};

use super::super::{Failure, Verbosity, conclude_run, table};
use super::Options;
use super::plan::Plan;
use soteriafl::accounting::Privacy;
use soteriafl::advice;
use soteriafl::model_file;
use soteriafl::output::{Deployed, RunDirectory, RunResult};
use soteriafl::problem;
use soteriafl::words::readable;
use soteriafl_deploy::coordinator::Coordinator;
use soteriafl_deploy::store::{Evaluation, ServerStore};

/// What is known of the run so far; observer and recorder keep it up to date on their threads.
#[derive(Default)]
pub(super) struct RunState {
    pub(super) model: Option<Arc<Vec<f32>>>,
    pub(super) privacy: Option<Privacy>,
    pub(super) records: Vec<usize>,
    pub(super) round: Round,
    pub(super) traffic: Traffic,
    /// What was measured at the start and at last.
    pub(super) first: Option<Evaluation>,
    pub(super) last: Option<Evaluation>,
    /// Messages of each client that were accepted.
    pub(super) taken: Vec<u32>,
    /// Time in rounds and in measurements, of this process.
    pub(super) training: Duration,
    pub(super) evaluation: Duration,
    /// Whether these times are those of the whole run: whether this process has seen its first
    /// round.
    pub(super) whole: bool,
}

impl RunState {
    /// Stores noise and cost as soon as they are known: rows are written with them.
    pub(super) fn set_privacy<S: ServerStore>(&mut self, coordinator: &Coordinator<S>) {
        if self.privacy.is_none() {
            self.privacy = coordinator.privacy().cloned();
            let members = coordinator.members().iter().flatten();
            self.records = members.map(|member| member.records as usize).collect();
        }
    }
}

pub(super) type SharedState = Arc<std::sync::Mutex<RunState>>;

pub(super) fn lock(shared: &SharedState) -> std::sync::MutexGuard<'_, RunState> {
    shared
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Writes what can be said at the end.
pub(super) fn finish(
    options: &Options,
    plan: &Plan,
    directory: RunDirectory,
    state: &SharedState,
    began: Instant,
    verbosity: Verbosity,
) -> Result<(), Failure> {
    let mut state = lock(state);
    let model = state.model.take();
    let model = model.ok_or_else(|| Failure::Failed("there is no model".to_string()))?;
    let privacy = final_privacy(options, plan, &mut state, model.len())?;
    let majority_accuracy = majority_accuracy(plan);
    let finite = model.iter().all(|parameter| parameter.is_finite());
    let found = shortcomings(&state, majority_accuracy, finite);
    let weights = problem::weights(&plan.resolved, &state.records);
    let ratio = advice::signal_to_noise(&plan.resolved, model.len(), &privacy.sigmas, &weights);
    let foreseen = advice::noise(ratio, model.len()).into_iter();
    let warnings = foreseen.chain(plan.columns()).chain(found.iter().cloned());
    let result = RunResult {
        resolved: &plan.resolved,
        records: &state.records,
        dimension: model.len(),
        privacy: &privacy,
        rounds: state.round,
        metrics: Metrics {
            loss: f64::NAN,
            grad_norm_sq: f64::NAN,
            test_accuracy: state.last.and_then(|row| row.accuracy),
        },
        utility: f64::NAN,
        traffic: state.traffic,
        clock: Clock {
            training: state.training,
            evaluation: state.evaluation,
        },
        total_seconds: began.elapsed().as_secs_f64(),
        interrupted: false,
        deployed: Some(Deployed {
            shape: &plan.shape,
            test: plan.test_set(),
            test_loss: state.last.and_then(|row| row.loss),
            test_seed: options.test_seed,
            taken: &state.taken,
            finite,
        }),
        majority_accuracy,
        signal_to_noise: ratio,
        warnings: warnings.collect(),
    };
    let mut summary = result.summary();
    if !state.whole {
        // Nobody knows how long rounds took that an earlier process saw.
        for part in ["training", "evaluation"] {
            summary["seconds"][part] = serde_json::Value::Null;
        }
    }
    let names = plan.shape.names.as_deref();
    let bytes = model_file::to_bytes(&plan.model, &model, plan.basis, plan.intercept, names)
        .map_err(Failure::Failed)?;
    directory.finish(&summary, &bytes)?;
    let lines = result_table(&result, &options.out);
    conclude_run(&found, options.json, &summary, &lines, verbosity)?;
    if !options.json {
        verbosity.detail("all clients know the end");
    }
    Ok(())
}

/// Noise and cost, of which a run with a test seed claims nothing.
fn final_privacy(
    options: &Options,
    plan: &Plan,
    state: &mut RunState,
    dimension: usize,
) -> Result<Privacy, Failure> {
    let mut privacy = match state.privacy.take() {
        Some(privacy) => privacy,
        None => Privacy::settle(&plan.resolved, dimension, &state.records, false)?,
    };
    if options.test_seed.is_some() {
        // Whoever knows the seed knows the noise.
        privacy.claim = "test seed".to_string();
        (privacy.epsilon, privacy.epsilon_unamplified) = (None, None);
        (privacy.amplified, privacy.odometer) = (false, None);
    }
    Ok(privacy)
}

/// What the most common class of the server's test set would reach on it.
fn majority_accuracy(plan: &Plan) -> Option<f64> {
    let test = plan.test.as_deref()?;
    advice::majority_accuracy([test], test)
}

/// What the server's own test set says against the model.
fn shortcomings(state: &RunState, majority_accuracy: Option<f64>, finite: bool) -> Vec<String> {
    let end = Metrics {
        loss: state.last.and_then(|row| row.loss).unwrap_or(f64::NAN),
        grad_norm_sq: f64::NAN,
        test_accuracy: state.last.and_then(|row| row.accuracy),
    };
    let start = state.first.and_then(|row| row.loss);
    let unbounded = !finite || end.loss == f64::INFINITY;
    advice::after(start, &end, majority_accuracy, unbounded)
}

/// The result for people.
fn result_table(result: &RunResult<'_>, out: &Path) -> String {
    let measured = |value: Option<f64>| match value {
        Some(value) => format!("{value:.4}"),
        None => "not measured: no test set".to_string(),
    };
    let deployed = result.deployed.as_ref();
    let loss = deployed.and_then(|deployed| deployed.test_loss);
    let epsilon = match result.privacy.epsilon {
        Some(epsilon) => format!(
            "{} at delta {} (each client by its own ledger)",
            readable(soteriafl_accountant::round_up(epsilon, 4)),
            readable(result.resolved.delta)
        ),
        None => format!("no claim: {}", result.privacy.claim),
    };
    let bytes = |count| indicatif::HumanBytes(count).to_string();
    let algorithm = result.resolved.algorithm_text(result.dimension);
    table(
        14,
        &[
            ("algorithm", algorithm),
            ("rounds", result.rounds.to_string()),
            ("test accuracy", measured(result.metrics.test_accuracy)),
            ("test loss", measured(loss)),
            ("epsilon", epsilon),
            ("sent up", bytes(result.traffic.uplink_bytes)),
            ("sent down", bytes(result.traffic.downlink_bytes)),
            ("time", format!("{:.2} s", result.total_seconds)),
            ("report", out.join("report.html").display().to_string()),
        ],
    )
}
