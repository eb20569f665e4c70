//! The end of a run: what the last round left, written into files with the names that `train` gives
//! them, and said in a table.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use super::super::{Failure, Verbosity, all_cores, print};
use super::Options;
use soteriafl::output::{RunDirectory, RunResult};
use soteriafl::words::readable;
use soteriafl_deploy::ending::{Ending, EndingError};
use soteriafl_deploy::run_plan::RunPlan;

pub(super) type Shared = Arc<std::sync::Mutex<Ending>>;

pub(super) fn lock(shared: &Shared) -> std::sync::MutexGuard<'_, Ending> {
    shared
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl From<EndingError> for Failure {
    fn from(error: EndingError) -> Self {
        match error {
            EndingError::Privacy(error) => error.into(),
            EndingError::Output(error) => error.into(),
            other => Failure::Failed(other.to_string()),
        }
    }
}

/// Writes what can be said at the end.
pub(super) fn finish(
    options: &Options,
    plan: &RunPlan,
    directory: RunDirectory,
    ending: &Shared,
    began: Instant,
    verbosity: Verbosity,
) -> Result<(), Failure> {
    let mut last = lock(ending);
    let end = last.conclude(plan, all_cores(), began.elapsed().as_secs_f64())?;
    directory.finish(&end.summary, &end.model)?;
    for warning in &end.found {
        verbosity.warn(warning);
    }
    if options.json {
        print(&format!("{:#}\n", end.summary))
    } else {
        verbosity.conclude(&table(&end.result, &options.out))?;
        verbosity.detail("all clients know the end");
        Ok(())
    }
}

fn table(ending: &RunResult<'_>, out: &Path) -> String {
    let measured = |value: Option<f64>| {
        value.map_or("not measured: no test set".to_string(), |value| {
            format!("{value:.4}")
        })
    };
    let accuracy = match (ending.metrics.test_accuracy, &ending.quality) {
        (None, Some(_)) => "the model predicts a number".to_string(),
        (accuracy, _) => measured(accuracy),
    };
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
