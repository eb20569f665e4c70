//! `soteria train`: a whole run in one process.

use std::fmt::Write;
use std::io::IsTerminal;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use soteriafl_core::data::DataDirectories;
use soteriafl_core::simulate::{EvaluationPlan, Metrics, Traffic};

use super::{Failure, Verbosity, print, watch_interrupts};
use soteriafl::accounting::Privacy;
use soteriafl::advice;
use soteriafl::claim::START_IS_PUBLIC;
use soteriafl::config::resolve::Resolved;
use soteriafl::config::{Config, Document, Init, NoiseTarget};
use soteriafl::output::{self, Ending, LastRow, RunDirectory, compressor_text};
use soteriafl::problem::{Problem, regularizer};
use soteriafl::run;
use soteriafl::words::{counted, readable};

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
    /// Directory in which known data sets (mnist, ...) are looked for first; `--data` is the same
    /// here
    #[arg(
        long = "data-dir",
        alias = "data",
        value_name = "DIR",
        value_parser = super::data_directory
    )]
    data_dir: Option<PathBuf>,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
///
/// # Errors
/// When the configuration, the data or the file system do not allow it, or the run is interrupted.
pub fn run(options: &Options, verbosity: Verbosity) -> Result<(), Failure> {
    let start = Instant::now();
    let interrupted = watch_interrupts();
    let config = Config::read(&document(options)?)?;
    if let Some(path) = &options.out {
        output::check_empty(path, options.force)?;
    }
    let directories = DataDirectories::from_environment(options.data_dir.as_deref());
    let problem = Problem::load(&config, &directories)?;
    if let Some(directory) = &options.resume {
        same_records(directory, problem.digest(), verbosity)?;
    }
    let (resolved, warnings) = config.resolve(&problem.shape(&config)?)?;
    for warning in &warnings {
        verbosity.warn(warning);
    }
    let records: Vec<usize> = problem.shards.iter().map(|shard| shard.rows()).collect();
    let dimension = problem.objective.dimension();
    let calibration = Instant::now();
    let privacy = Privacy::settle(
        &resolved.specification(),
        dimension,
        &records,
        problem.data_dependent(),
    )?;
    let calibrated = calibration.elapsed();
    let mut simulation = run::simulation(&resolved, &problem, &privacy.sigmas)?;
    announce(&resolved, &problem, &privacy, calibrated, verbosity);
    let weights = problem.weights(&resolved);
    let ratio = advice::signal_to_noise(&resolved, dimension, &privacy.sigmas, &weights);
    let advised: Vec<String> = advice::noise(ratio, dimension)
        .into_iter()
        .chain(advice::columns_of(&problem))
        .collect();
    for warning in &advised {
        verbosity.warn(warning);
    }

    // Nothing is written before everything that can be wrong has been checked.
    let path = output_directory(options, &resolved)?;
    let (mut directory, known) = match &options.resume {
        None => (RunDirectory::create(&path, &resolved)?, None),
        Some(_) => RunDirectory::resume(&path)?,
    };
    directory.remember_records(problem.digest())?;
    if let Some(last) = &known {
        verbosity.say(format!(
            "going on after round {}: earlier rounds are recomputed without metrics",
            last.round
        ));
    }
    let plan = EvaluationPlan {
        objective: problem.objective.as_ref(),
        regularizer: regularizer(resolved.regularizer, resolved.lambda),
        weights: &weights,
        test: problem.test.as_ref(),
        every: resolved.eval_every,
        from: known.as_ref().map_or(0, |last| last.round + 1),
    };
    let threads = options
        .threads
        .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let mut watch = Watch::new(&resolved, known, verbosity);
    let mut failure = None;
    simulation.run(threads, &plan, |progress, _| {
        let stop = interrupted.load(Ordering::Relaxed);
        if let Some(metrics) = progress.metrics {
            let whole = privacy
                .epsilon
                .filter(|_| progress.round == resolved.rounds);
            let spent = privacy.odometer.as_ref().map(|odometer| {
                // Both are bounds of the same; files should not disagree about the end.
                let after = odometer.after(u64::from(progress.round));
                whole.map_or(after, |whole| whole.max(after))
            });
            match directory.row(progress.round, progress.traffic, &metrics, spent) {
                Ok(utility) => {
                    watch.evaluated(progress.round, progress.traffic, metrics, utility, spent)
                }
                Err(error) => {
                    failure = Some(error);
                    return ControlFlow::Break(());
                }
            }
        }
        watch.round(progress.round, progress.traffic);
        if stop {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    });
    watch.bar.finish_and_clear();
    if let Some(error) = failure {
        return Err(error.into());
    }
    let majority_accuracy = problem
        .test
        .as_ref()
        .and_then(|test| advice::majority_accuracy(problem.shards.iter().map(AsRef::as_ref), test));
    let mut ending = Ending {
        resolved: &resolved,
        records: &records,
        dimension,
        privacy: &privacy,
        rounds: watch.rounds,
        metrics: watch.metrics,
        utility: watch.utility,
        traffic: watch.traffic,
        clock: simulation.clock(),
        total_seconds: start.elapsed().as_secs_f64(),
        interrupted: watch.rounds < resolved.rounds,
        deployed: None,
        majority_accuracy,
        signal_to_noise: ratio,
        warnings: advised,
    };
    let start = directory.start_loss();
    let found = advice::after(start, &ending.metrics, majority_accuracy, ending.diverged());
    ending.warnings.extend(found.iter().cloned());
    let summary = ending.summary();
    let model = problem
        .model_file(simulation.server().model())
        .map_err(Failure::Failed)?;
    directory.finish(&summary, &model)?;
    for warning in &found {
        verbosity.warn(warning);
    }
    if options.json {
        print(&format!("{summary:#}\n"))?;
    } else {
        verbosity.conclude(&table(&ending, &path))?;
    }
    if ending.interrupted {
        return Err(Failure::Failed(format!(
            "interrupted after {} of {}; what there is stands in {}, `soteria train --resume {}` \
             goes on",
            ending.rounds,
            counted(resolved.rounds, "round"),
            path.display(),
            path.display()
        )));
    }
    Ok(())
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

fn document(options: &Options) -> Result<Document, Failure> {
    let mut document = match (&options.resume, &options.config) {
        (Some(directory), _) => Document::from_file(&directory.join("config.toml"))?,
        (None, Some(file)) => Document::from_file(file)?,
        (None, None) => Document::default(),
    };
    for assignment in &options.set {
        document.set(assignment)?;
    }
    if let Some(seed) = options.seed {
        document.set(&format!("run.seed={seed}"))?;
    }
    Ok(document)
}

fn output_directory(options: &Options, resolved: &Resolved) -> Result<PathBuf, Failure> {
    if let Some(directory) = &options.resume {
        return Ok(directory.clone());
    }
    match &options.out {
        Some(path) => Ok(path.clone()),
        None => {
            let time = jiff::Timestamp::now().strftime("%Y%m%d-%H%M%S");
            let name = format!("{time}-{}", resolved.algorithm());
            let mut path = Path::new("runs").join(&name);
            for number in 2.. {
                if !path.exists() {
                    break;
                }
                path = Path::new("runs").join(format!("{name}-{number}"));
            }
            Ok(path)
        }
    }
}

/// Says what was chosen and why, before the first round.
fn announce(
    resolved: &Resolved,
    problem: &Problem,
    privacy: &Privacy,
    took: Duration,
    verbosity: Verbosity,
) {
    let dimension = problem.objective.dimension();
    verbosity.say(format!(
        "{} on {}: {}, {}, {}, {} up",
        resolved.algorithm_text(dimension),
        resolved.source,
        counted(problem.shards.len(), "client"),
        counted(dimension, "parameter"),
        counted(resolved.rounds, "round"),
        compressor_text(resolved.compressor, dimension),
    ));
    let sigma = privacy.sigmas.iter().copied().fold(0.0, f64::max);
    let noise = match resolved.noise_target {
        NoiseTarget::None => without_noise(resolved),
        NoiseTarget::Sigma(_) => format!("sigma {sigma:.3e} as given"),
        NoiseTarget::Epsilon(epsilon) => {
            // Rounded up: whoever copies it gets no more than this epsilon.
            let enough = soteriafl_accountant::round_up(sigma, 4);
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
    };
    verbosity.say(format!("privacy: {noise}; claim: {}", privacy.claim));
    if problem.data_dependent() && resolved.noise_target != NoiseTarget::None {
        verbosity.warn(
            "no epsilon can be claimed, because the features are scaled by constants computed \
             from the records (data.scale or data.standardize); \
             give constants that are known without them, such as data.center=0.5 and \
             data.factor=2 for pixels (they lie between \
             0 and 1), or data.scale=none and data.standardize=false",
        );
    }
    if matches!(resolved.init, Init::File(_)) && privacy.claim.is_proved() {
        verbosity.say(format!("privacy: {START_IS_PUBLIC}"));
    }
    for premise in &privacy.broken_premises {
        verbosity.warn(format!("the paper's theorem does not apply: {premise}"));
    }
    if let Some(epsilon) = privacy.epsilon_exact {
        verbosity.say(format!(
            "privacy: with each record clipped and Poisson coins this noise really gives epsilon {}",
            soteriafl_accountant::round_up(epsilon, 4)
        ));
    }
    verbosity.detail(format!(
        "calibration took {:.0} ms",
        took.as_secs_f64() * 1e3
    ));
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
    line
}

/// Follows a run: the bar, and the latest of everything.
struct Watch {
    bar: ProgressBar,
    visible: bool,
    rounds: u32,
    traffic: Traffic,
    metrics: Metrics,
    utility: f64,
    message: String,
    ticked: Instant,
}

impl Watch {
    fn new(resolved: &Resolved, known: Option<LastRow>, verbosity: Verbosity) -> Self {
        let visible = std::io::stderr().is_terminal() && !verbosity.quiet;
        let target = if visible {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        };
        let bar = ProgressBar::with_draw_target(Some(u64::from(resolved.rounds)), target);
        // What does not fit into the line is cut off at its end.
        let style = ProgressStyle::with_template(
            "{bar:20.cyan/dim} {pos}/{len} rounds  {rate:.dim}  {eta:.dim} left  {wide_msg}",
        );
        bar.set_style(
            style
                .unwrap_or_else(|_| ProgressStyle::default_bar())
                .with_key("rate", |state: &ProgressState, text: &mut dyn Write| {
                    let _ = write!(text, "{:.0}/s", state.per_sec());
                }),
        );
        let nothing = Metrics {
            loss: f64::NAN,
            grad_norm_sq: f64::NAN,
            test_accuracy: None,
        };
        let (metrics, utility) =
            known.map_or((nothing, f64::NAN), |last| (last.metrics, last.utility));
        let (rounds, traffic, message, ticked) =
            (0, Traffic::default(), String::new(), Instant::now());
        Self {
            bar,
            visible,
            rounds,
            traffic,
            metrics,
            utility,
            message,
            ticked,
        }
    }

    fn evaluated(
        &mut self,
        round: u32,
        traffic: Traffic,
        metrics: Metrics,
        utility: f64,
        spent: Option<f64>,
    ) {
        (self.rounds, self.traffic, self.metrics, self.utility) =
            (round, traffic, metrics, utility);
        if !self.visible {
            return;
        }
        self.message = format!("loss {:.4}", metrics.loss);
        if let Some(accuracy) = metrics.test_accuracy {
            self.message += &format!("  accuracy {accuracy:.4}");
        }
        if let Some(spent) = spent {
            self.message += &format!("  epsilon {}", soteriafl_accountant::round_up(spent, 4));
        }
    }

    fn round(&mut self, round: u32, traffic: Traffic) {
        (self.rounds, self.traffic) = (round, traffic);
        if self.visible && self.ticked.elapsed() > Duration::from_millis(50) {
            self.ticked = Instant::now();
            self.bar.set_position(u64::from(round));
            self.bar.set_message(self.message.clone());
        }
    }
}

/// The final table.
fn table(ending: &Ending<'_>, path: &Path) -> String {
    let Ending {
        resolved,
        privacy,
        metrics,
        traffic,
        clock,
        ..
    } = ending;
    let up = traffic.uplink_bytes;
    let dense =
        4 * ending.dimension as u64 * u64::from(ending.rounds) * ending.records.len() as u64;
    let epsilon = match privacy.epsilon {
        Some(epsilon) => format!(
            "{} at delta {}, {} (proved, for secret seeds)",
            readable(soteriafl_accountant::round_up(epsilon, 4)),
            readable(resolved.delta),
            resolved.adjacency,
        ),
        None => format!("no claim: {}", privacy.claim),
    };
    let accuracy = metrics
        .test_accuracy
        .map_or("no test set".to_string(), |accuracy| {
            format!("{accuracy:.4}")
        });
    let rate = f64::from(ending.rounds) / clock.training.as_secs_f64().max(1e-9);
    let lines = [
        ("algorithm", resolved.algorithm_text(ending.dimension)),
        ("test accuracy", accuracy),
        (
            "training loss",
            match metrics.loss {
                loss if loss < 1e7 => format!("{loss:.5}"),
                loss => format!("{loss:.4e}"),
            },
        ),
        ("utility", format!("{:.3e}", ending.utility)),
        ("epsilon", epsilon),
        (
            "sent up",
            match dense as f64 / up.max(1) as f64 {
                ratio if ratio > 1.0 => format!(
                    "{} ({ratio:.1}x less than all coordinates)",
                    indicatif::HumanBytes(up)
                ),
                _ => indicatif::HumanBytes(up).to_string(),
            },
        ),
        (
            "sent down",
            indicatif::HumanBytes(traffic.downlink_bytes).to_string(),
        ),
        (
            "time",
            format!(
                "{:.2} s, of it training {:.2} s ({rate:.0} rounds/s)",
                ending.total_seconds,
                clock.training.as_secs_f64()
            ),
        ),
        ("report", path.join("report.html").display().to_string()),
    ];
    lines
        .iter()
        .map(|(name, value)| format!("{name:>14}  {value}\n"))
        .collect()
}
