//! The end of a run: what the last round left, written into files with the names that `train` gives
//! them. Nothing in them was measured at clients, and they say so.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use soteriafl_core::protocol::Round;
use soteriafl_core::quality;
use soteriafl_core::simulate::{Clock, Metrics, Traffic};

use super::super::{Failure, Verbosity, all_cores, print};
use super::Options;
use super::plan::Plan;
use soteriafl::accounting::Privacy;
use soteriafl::advice;
use soteriafl::claim::{Claim, Reason};
use soteriafl::model_file::{self, About};
use soteriafl::output::{Deployed, RunDirectory, RunResult};
use soteriafl::problem;
use soteriafl::words::readable;
use soteriafl_deploy::coordinator::Coordinator;
use soteriafl_deploy::store::{Evaluation, ServerStore};

/// What is left when the last round is closed.
#[derive(Default)]
pub(super) struct Final {
    pub(super) model: Option<Arc<Vec<f32>>>,
    pub(super) privacy: Option<Privacy>,
    pub(super) records: Vec<usize>,
    pub(super) round: Round,
    pub(super) traffic: Traffic,
    /// What was measured at the start and at last.
    pub(super) first: Option<Evaluation>,
    pub(super) last: Option<Evaluation>,
    /// Messages of each client that were taken.
    pub(super) taken: Vec<u32>,
    /// Time in rounds and in measurements, of this process.
    pub(super) training: Duration,
    pub(super) evaluation: Duration,
    /// Whether that is all of it: whether this process has seen the first round.
    pub(super) whole: bool,
}

impl Final {
    /// Takes over noise and cost as soon as they are known: rows are written with them.
    pub(super) fn settle<S: ServerStore>(&mut self, coordinator: &Coordinator<S>) {
        if self.privacy.is_none() {
            self.privacy = coordinator.privacy().cloned();
            let members = coordinator.members().iter().flatten();
            self.records = members.map(|member| member.records as usize).collect();
        }
    }
}

pub(super) type Shared = Arc<std::sync::Mutex<Final>>;

pub(super) fn lock(shared: &Shared) -> std::sync::MutexGuard<'_, Final> {
    shared
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Writes what can be said at the end.
pub(super) fn finish(
    options: &Options,
    plan: &Plan,
    directory: RunDirectory,
    ending: &Shared,
    began: Instant,
    verbosity: Verbosity,
) -> Result<(), Failure> {
    let mut last = lock(ending);
    let model = last.model.take();
    let model = model.ok_or_else(|| Failure::Failed("there is no model".to_string()))?;
    let mut privacy = match last.privacy.take() {
        Some(privacy) => privacy,
        None => Privacy::settle(
            &plan.resolved.specification(),
            model.len(),
            &last.records,
            false,
        )?,
    };
    if options.test_seed.is_some() {
        // Whoever knows the seed knows the noise.
        privacy.claim = Claim::Withheld(Reason::TestSeed);
        (privacy.epsilon, privacy.epsilon_unamplified) = (None, None);
        (privacy.amplified, privacy.odometer) = (false, None);
    }
    let weights = problem::weights(&plan.resolved, &last.records);
    let ratio = advice::signal_to_noise(&plan.resolved, model.len(), &privacy.sigmas, &weights);
    let majority_accuracy = majority_accuracy(plan);
    let quality = plan.test.as_deref().and_then(|test| {
        quality::measure(plan.model.objective().as_ref(), &model, test, all_cores())
    });
    let finite = model.iter().all(|parameter| parameter.is_finite());
    let mut found = shortcomings(&last, majority_accuracy, finite);
    let no_better = quality
        .as_ref()
        .and_then(soteriafl::quality::no_better_than_mean);
    found.extend(no_better);
    let persons = advice::persons(plan.resolved.records_per_person, &privacy.claim);
    let foreseen = advice::noise(ratio, model.len()).into_iter().chain(persons);
    let ending = RunResult {
        resolved: &plan.resolved,
        records: &last.records,
        dimension: model.len(),
        privacy: &privacy,
        rounds: last.round,
        metrics: Metrics {
            loss: f64::NAN,
            grad_norm_sq: f64::NAN,
            test_accuracy: last.last.and_then(|row| row.accuracy),
        },
        utility: f64::NAN,
        traffic: last.traffic,
        clock: Clock {
            training: last.training,
            evaluation: last.evaluation,
        },
        total_seconds: began.elapsed().as_secs_f64(),
        interrupted: false,
        deployed: Some(Deployed {
            shape: &plan.shape,
            test: plan.test_set(),
            test_loss: last.last.and_then(|row| row.loss),
            test_seed: options.test_seed,
            taken: &last.taken,
            finite,
        }),
        majority_accuracy,
        quality,
        class_names: &plan.shape.labels,
        signal_to_noise: ratio,
        warnings: foreseen
            .chain(plan.columns())
            .chain(found.iter().cloned())
            .collect(),
    };
    let mut summary = ending.summary();
    if !last.whole {
        // Nobody knows how long rounds took that an earlier process saw.
        for part in ["training", "evaluation"] {
            summary["seconds"][part] = serde_json::Value::Null;
        }
    }
    let about = About {
        shape: &plan.shape,
        scaling: &plan.scaling,
    };
    let map = model_file::RecordMap {
        features: &plan.features,
        whitening: None,
        basis: plan.basis,
    };
    let bytes = model_file::to_bytes(&plan.model, &model, map, plan.intercept, about)
        .map_err(Failure::Failed)?;
    directory.finish(&summary, &bytes)?;
    for warning in &found {
        verbosity.warn(warning);
    }
    if options.json {
        print(&format!("{summary:#}\n"))
    } else {
        verbosity.conclude(&table(&ending, &options.out))?;
        verbosity.detail("all clients know the end");
        Ok(())
    }
}

/// What the most common class of the server's test set would reach on it.
fn majority_accuracy(plan: &Plan) -> Option<f64> {
    let test = plan.test.as_deref()?;
    advice::majority_accuracy([test], test)
}

/// What the server's own test set says against the model.
fn shortcomings(last: &Final, majority_accuracy: Option<f64>, finite: bool) -> Vec<String> {
    let end = Metrics {
        loss: last.last.and_then(|row| row.loss).unwrap_or(f64::NAN),
        grad_norm_sq: f64::NAN,
        test_accuracy: last.last.and_then(|row| row.accuracy),
    };
    let start = last.first.and_then(|row| row.loss);
    let unbounded = !finite || end.loss == f64::INFINITY;
    advice::after(start, &end, majority_accuracy, unbounded)
}

fn table(ending: &RunResult<'_>, out: &Path) -> String {
    let measured = |value: Option<f64>| {
        value.map_or("not measured: no test set".to_string(), |value| {
            format!("{value:.4}")
        })
    };
    let accuracy = measured(ending.metrics.test_accuracy);
    let deployed = ending.deployed.as_ref();
    let loss = measured(deployed.and_then(|deployed| deployed.test_loss));
    let epsilon = match ending.privacy.epsilon {
        Some(epsilon) => format!(
            "{} at delta {}, {} (each client by its own ledger)",
            readable(soteriafl_accountant::round_up(epsilon, 4)),
            readable(ending.resolved.delta),
            ending.resolved.specification().neighbours()
        ),
        None => format!("no claim: {}", ending.privacy.claim),
    };
    let algorithm = ending.resolved.algorithm_text(ending.dimension);
    let mut lines = vec![
        ("algorithm", algorithm),
        ("rounds", ending.rounds.to_string()),
        ("test accuracy", accuracy),
    ];
    let quality = ending.quality.as_ref().map(soteriafl::quality::text);
    lines.extend(quality.map(|text| ("quality", text)));
    lines.extend([
        ("test loss", loss),
        ("epsilon", epsilon),
        (
            "sent up",
            indicatif::HumanBytes(ending.traffic.uplink_bytes).to_string(),
        ),
        (
            "sent down",
            indicatif::HumanBytes(ending.traffic.downlink_bytes).to_string(),
        ),
        ("time", format!("{:.2} s", ending.total_seconds)),
        ("report", out.join("report.html").display().to_string()),
    ]);
    lines
        .iter()
        .map(|(name, value)| format!("{name:>14}  {value}\n"))
        .collect()
}
