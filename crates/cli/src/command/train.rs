//! `soteria train`: a whole run in one process.

mod progress;

use std::fmt::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Instant;

use indicatif::HumanBytes;

use super::inputs::{self, CacheOption, DataDirectory};
use super::{Failure, Verbosity, all_cores, conclude_run, table, watch_interrupts};
use progress::Progress;
use soteriafl::accounting::Privacy;
use soteriafl::claim::START_IS_PUBLIC;
use soteriafl::config::compressor_text;
use soteriafl::config::resolve::Resolved;
use soteriafl::config::{Config, Init, NoiseTarget, Output};
use soteriafl::output::{self, RunDirectory, RunResult};
use soteriafl::prepared::{Prepared, Stopped};
use soteriafl::problem::Problem;
use soteriafl::words::{counted, readable};
use soteriafl_accountant::round_up;

/// Train a model over simulated clients
///
/// Without arguments: the built-in a9a census data on ten clients, 5% of the coordinates per round,
/// at a proved epsilon of 1. Writes config.toml, rounds.csv, summary.json, model.safetensors and
/// report.html into the output directory.
#[derive(clap::Args, Debug)]
pub struct Options {
    /// Configuration file (TOML)
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Override a key, e.g. privacy.epsilon=5
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Output directory [default: runs/TIME-ALGORITHM]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Overwrite an output directory that has files in it
    #[arg(long)]
    force: bool,
    /// Seed of everything random; the same seed gives the same bytes
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Threads; the result does not depend on it [default: all cores]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Go on with an interrupted run
    #[arg(long, value_name = "DIR", conflicts_with_all = ["config", "set", "out", "seed", "force"])]
    resume: Option<PathBuf>,
    #[command(flatten)]
    data: DataDirectory,
    #[command(flatten)]
    cache: CacheOption,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
///
/// # Errors
/// When the configuration, the data or the file system do not allow it, or the run is interrupted.
pub fn run(options: &Options, verbosity: Verbosity) -> Result<(), Failure> {
    let began = Instant::now();
    let interrupted = watch_interrupts();
    let prepared = prepare(options, verbosity)?;
    // Refuses what does not fit into memory, so it comes before everything that needs much of it.
    let mut simulation = prepared.simulation()?;
    announce(&prepared, verbosity);
    let foreseen = prepared.foreseen();
    for warning in &foreseen {
        verbosity.warn(warning);
    }
    // Nothing is written before everything that can be wrong has been checked.
    let path = output_directory(options, &prepared.resolved);
    let (mut directory, known) = match &options.resume {
        None => (RunDirectory::create(&path, &prepared.resolved)?, None),
        Some(_) => RunDirectory::resume(&path, &output::columns(&prepared.resolved))?,
    };
    directory.remember_records(prepared.problem.digest())?;
    if let Some(last) = &known {
        verbosity.say(format!(
            "going on after round {}: earlier rounds are recomputed without metrics",
            last.round
        ));
    }
    let mut progress = Progress::new(prepared.last_round(), verbosity);
    let threads = options.threads.unwrap_or_else(all_cores);
    let reached = prepared.simulate(
        &mut simulation,
        threads,
        known,
        |round, traffic, metrics, spent| directory.row(round, traffic, metrics, spent),
        |reached| {
            progress.show(reached);
            match interrupted.load(Ordering::Relaxed) {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        },
    );
    let reached = reached.map_err(|stopped| match stopped {
        Stopped::Row(error) => error.into(),
        Stopped::Simulation(error) => Failure::failed(error),
    })?;
    progress.finish();
    let mut result = prepared.result(&simulation, &reached, threads, began);
    result.warnings = foreseen;
    let start = directory.start_loss();
    let end = prepared.conclude(&simulation, &mut result, start);
    let end = end.map_err(Failure::Failed)?;
    directory.finish(&end.summary, &end.model)?;
    let lines = result_table(&result, &path);
    conclude_run(&end.found, options.json, &end.summary, &lines, verbosity)?;
    whole(&result, prepared.last_round(), &path)
}

/// Reads what was asked for, and finds its noise.
fn prepare(options: &Options, verbosity: Verbosity) -> Result<Prepared, Failure> {
    let config = configuration(options)?;
    if let Some(path) = &options.out {
        output::check_empty(path, options.force)?;
    }
    let problem =
        Problem::load_cached(&config, &options.data.directories(), &options.cache.cache())?;
    if let Some(directory) = &options.resume {
        same_records(directory, problem.digest(), verbosity)?;
    }
    let (resolved, warnings) = problem.resolve(&config)?;
    for warning in &warnings {
        verbosity.warn(warning);
    }
    Ok(Prepared::calibrate(resolved, problem)?)
}

/// Refuses to call an interrupted run a success.
fn whole(result: &RunResult<'_>, last_round: u32, path: &Path) -> Result<(), Failure> {
    if !result.interrupted {
        return Ok(());
    }
    let path = path.display();
    Err(Failure::Failed(format!(
        "interrupted after {} of {}; what there is stands in {path}, \
         `soteria train --resume {path}` goes on",
        result.rounds,
        counted(last_round, "round"),
    )))
}

/// Rounds of other records than those of the interrupted run would end in one curve and one claim
/// with its own.
fn same_records(path: &Path, digest: &str, verbosity: Verbosity) -> Result<(), Failure> {
    match output::remembered_records(path)? {
        Some(known) if known == digest => {}
        Some(_) => {
            return Err(Failure::Usage {
                message: format!(
                    "the records are not those that the run in {} began with",
                    path.display()
                ),
                hint: Some(format!(
                    "bring the files back, or begin anew: soteria train --config {} --out DIR",
                    path.join("config.toml").display()
                )),
            });
        }
        None => verbosity.warn(format!(
            "{} does not say which records its run began with: make sure that they are the same",
            path.display()
        )),
    }
    Ok(())
}

fn configuration(options: &Options) -> Result<Config, Failure> {
    let resumed = options.resume.as_ref().map(|path| path.join("config.toml"));
    let file = resumed.as_deref().or(options.config.as_deref());
    let mut document = inputs::document(file, &options.set)?;
    if let Some(seed) = options.seed {
        document.set(&format!("run.seed={seed}"))?;
    }
    Ok(Config::read(&document)?)
}

fn output_directory(options: &Options, resolved: &Resolved) -> PathBuf {
    if let Some(path) = options.resume.as_ref().or(options.out.as_ref()) {
        return path.clone();
    }
    let time = jiff::Timestamp::now().strftime("%Y%m%d-%H%M%S");
    let name = format!("{time}-{}", resolved.algorithm());
    let mut path = Path::new("runs").join(&name);
    for number in 2.. {
        if !path.exists() {
            break;
        }
        path = Path::new("runs").join(format!("{name}-{number}"));
    }
    path
}

/// Says what was chosen and why, before the first round.
fn announce(prepared: &Prepared, verbosity: Verbosity) {
    let (resolved, problem, privacy) = (&prepared.resolved, &prepared.problem, &prepared.privacy);
    let dimension = problem.objective.dimension();
    let down = resolved.downlink_text(dimension);
    let down = down.map_or(String::new(), |text| format!(", {text} down"));
    verbosity.say(format!(
        "{} on {}: {}, {}, {}, {} up{down}",
        resolved.algorithm_text(dimension),
        resolved.source,
        counted(problem.shards.len(), "client"),
        counted(dimension, "parameter"),
        counted(resolved.rounds, "round"),
        compressor_text(resolved.compressor, dimension),
    ));
    if let Some(graph) = resolved.graph_text() {
        verbosity.say(graph);
    }
    for choice in resolved.choices(&prepared.records, dimension) {
        verbosity.say(choice);
    }
    if resolved.output == Output::Random {
        verbosity.say(format!(
            "the result is the model of a random round: of round {} of {}, where the run ends \
             (noise is for all of them)",
            prepared.last_round(),
            resolved.rounds
        ));
    }
    verbosity.say(format!(
        "privacy: {}; claim: {}",
        noise_text(resolved, privacy),
        privacy.claim
    ));
    if problem.data_dependent() && resolved.noise_target != NoiseTarget::None {
        verbosity.warn(
            "no epsilon can be claimed, because the features are scaled by constants computed \
             from the records (data.scale or data.standardize); give constants that are known \
             without them, such as data.center=0.5 and data.factor=2 for pixels (they lie \
             between 0 and 1), or data.scale=none and data.standardize=false",
        );
    }
    if resolved.specification().ranges_from_records && resolved.noise_target != NoiseTarget::None {
        verbosity.warn(
            "no epsilon can be claimed, because the ranges and values of the schema were read from \
             records: look at every column, and once each says what you would know without these \
             records, write ranges = \"public\" in it",
        );
    }
    for adjustment in &problem.adjustments {
        verbosity.say(adjustment.to_string());
    }
    if let Some(told) = problem.persons_told(resolved.records_per_person) {
        verbosity.say(told);
    }
    if matches!(resolved.init, Init::File(_)) && privacy.claim.is_proved() {
        verbosity.say(format!("privacy: {START_IS_PUBLIC}"));
    }
    for premise in &privacy.broken_premises {
        verbosity.warn(format!("the paper's theorem does not apply: {premise}"));
    }
    if let Some(epsilon) = privacy.epsilon_exact {
        verbosity.say(format!(
            "privacy: with each record clipped and Poisson coins this noise really gives epsilon \
         {}",
            round_up(epsilon, 4)
        ));
    }
    verbosity.detail(format!(
        "calibration took {:.0} ms",
        prepared.calibration.as_secs_f64() * 1e3
    ));
}

/// How much noise there is, and why so much.
fn noise_text(resolved: &Resolved, privacy: &Privacy) -> String {
    let sigma = privacy.sigmas.iter().copied().fold(0.0, f64::max);
    match resolved.noise_target {
        NoiseTarget::None => without_noise(resolved),
        NoiseTarget::Sigma(_) => format!("sigma {sigma:.3e} as given"),
        NoiseTarget::Epsilon(epsilon) => {
            // Rounded up: whoever copies it gets no more than this epsilon.
            let enough = round_up(sigma, 4);
            let mut line = format!("sigma {enough:.3e} for epsilon {}", readable(epsilon));
            if let Some(paper) = privacy
                .paper_sigma
                .filter(|_| privacy.accountant != "paper")
            {
                line += &format!(" (the paper's formula: {paper:.3e})");
            }
            if privacy.amplified {
                line += ", amplified by random-k";
            }
            line
        }
    }
}

/// What a run without noise does with records and steps.
fn without_noise(resolved: &Resolved) -> String {
    let mut line = String::from("no noise");
    if !resolved.clipped {
        line += ", nothing clipped";
    }
    if resolved.standardize {
        line += ", columns standardised by the records (the saved model reads them as they are)";
    }
    let _ = write!(line, ", step {}", resolved.step_size);
    if resolved.equalize > 0.0 {
        line += " of equalised layers";
    }
    if resolved.momentum > 0.0 {
        let _ = write!(line, ", momentum {}", resolved.momentum);
    }
    if let Some(recursion) = &resolved.recursion {
        let _ = write!(line, ", keeping {} of the velocity", recursion.keep);
    }
    line
}

/// The result for people.
fn result_table(result: &RunResult<'_>, path: &Path) -> String {
    let (metrics, training) = (&result.metrics, result.clock.training.as_secs_f64());
    let accuracy = match (metrics.test_accuracy, result.majority_accuracy) {
        (Some(accuracy), Some(majority)) => {
            format!("{accuracy:.4} ({majority:.4} by the most common class)")
        }
        (Some(accuracy), None) => format!("{accuracy:.4}"),
        (None, _) if result.quality.is_some() => "the model predicts a number".to_string(),
        (None, _) => "no test set".to_string(),
    };
    let quality = result.quality.as_ref().map(soteriafl::quality::text);
    let loss = match metrics.loss {
        loss if loss < 1e7 => format!("{loss:.5}"),
        loss => format!("{loss:.4e}"),
    };
    let down = result.traffic.downlink_bytes;
    let sent_down = match result.resolved.downlink {
        Some(_) => sent_text(result, down),
        None => HumanBytes(down).to_string(),
    };
    let rate = f64::from(result.rounds) / training.max(1e-9);
    let time = format!(
        "{:.2} s, of it training {training:.2} s ({rate:.0} rounds/s)",
        result.total_seconds
    );
    let algorithm = result.resolved.algorithm_text(result.dimension);
    let mut lines = vec![("algorithm", algorithm), ("test accuracy", accuracy)];
    lines.extend(quality.map(|text| ("quality", text)));
    lines.extend([
        ("training loss", loss),
        ("utility", format!("{:.3e}", result.utility)),
        ("epsilon", epsilon_text(result.resolved, result.privacy)),
        ("sent up", sent_text(result, result.traffic.uplink_bytes)),
        ("sent down", sent_down),
    ]);
    let consensus = metrics.consensus_error;
    let apart = |error| format!("mean squared distance to the mean model {error:.3e}");
    lines.extend(consensus.map(|error| ("agreement", apart(error))));
    lines.extend([
        ("time", time),
        ("report", path.join("report.html").display().to_string()),
    ]);
    table(14, &lines)
}

/// What clients sent, and how much less it is than whole vectors to the same receivers.
fn sent_text(result: &RunResult<'_>, bytes: u64) -> String {
    let (messages, note) = match result.resolved.graph() {
        Some(graph) if !graph.has_server() => (2 * graph.edges(), ", once for each neighbour"),
        _ => (result.records.len(), ""),
    };
    let dense = 4 * result.dimension as u64 * u64::from(result.rounds) * messages as u64;
    let ratio = dense as f64 / bytes.max(1) as f64;
    let bytes = HumanBytes(bytes);
    match ratio > 1.0 {
        true => format!("{bytes}{note} ({ratio:.1}x less than all coordinates)"),
        false => format!("{bytes}{note}"),
    }
}

fn epsilon_text(resolved: &Resolved, privacy: &Privacy) -> String {
    match privacy.epsilon {
        Some(epsilon) => format!(
            "{} at delta {}, {} (proved, for secret seeds)",
            readable(round_up(epsilon, 4)),
            readable(resolved.delta),
            resolved.specification().neighbours(),
        ),
        None => format!("no claim: {}", privacy.claim),
    }
}
