//! `soteria audit`: the game of the definition, played with the client that runs; or a look at a
//! client's own books.

mod books;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::inputs::{self, DataDirectory};
use super::{Failure, Verbosity, all_cores, print_json, table, watch_interrupts};
use soteriafl::audit::{self, Audit, AuditError, Findings, Outcome, Settings, Subject, Verdict};
use soteriafl::claim::Reason;
use soteriafl::config::Config;
use soteriafl::config::resolve::Resolved;
use soteriafl::output::{self, write_whole};
use soteriafl::problem::Problem;
use soteriafl::run::{plan_for, server_plan};
use soteriafl::words::{counted, readable};
use soteriafl_accountant::round_up;

/// How often the bar is drawn.
const FORM: &str = "{bar:20.cyan/dim} {pos}/{len} runs  {eta:.dim} left";

/// Attack a client many times, and bound its epsilon from below
///
/// Plays the game of the definition with the real client: records with and without canaries, a
/// server that chooses its models so that they stand out, and the best guess of who was there. The
/// lower bound on epsilon that follows holds with the stated confidence, whatever the noise is.
/// Exits with 1 if it exceeds what the configuration claims. Without a configuration: that of
/// `soteria train`.
#[derive(clap::Args, Debug)]
pub struct Options {
    /// Configuration file (TOML)
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Override a key, e.g. privacy.epsilon=5
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Look at the books of a client's state directory instead: every stored message against what
    /// was charged for it. For its owner's eyes; exits with 1 if they do not agree
    #[arg(long, value_name = "STATE", conflicts_with_all = ["config", "set", "runs", "out", "canaries"])]
    ledger: Option<PathBuf>,
    /// Which records are canaries: the worst that are thought of, against a server that chooses its
    /// models, or records of the data, against the server of the run
    #[arg(long, value_enum, default_value_t = Canaries::Worst)]
    canaries: Canaries,
    /// Runs of the client; more give a bound nearer to the claim [default: about a minute's]
    #[arg(long, value_name = "N")]
    runs: Option<u32>,
    /// Seed of coins and keys; the same seed gives the same result
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Threads; the result does not depend on it [default: all cores]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Write config.toml, audit.json, report.html and tradeoff.svg into this directory
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Overwrite an output directory that has files in it
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    data: DataDirectory,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Which records are canaries.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Canaries {
    /// The worst that are thought of
    Worst,
    /// Records of the data, as they are or with another class
    Natural,
}

/// Runs the command.
///
/// # Errors
/// When nothing is claimed, the configuration or the data do not allow it, or the claim is
/// violated.
pub fn run(options: &Options, verbosity: Verbosity) -> Result<(), Failure> {
    if let Some(state) = &options.ledger {
        return books::run(state, options.json);
    }
    let interrupted = watch_interrupts();
    let config = Config::read(&inputs::document(options.config.as_deref(), &options.set)?)?;
    if let Some(path) = &options.out {
        output::check_empty(path, options.force)?;
    }
    let problem = Problem::load(&config, &options.data.directories())?;
    let (resolved, warnings) = problem.resolve(&config)?;
    warnings.iter().for_each(|warning| verbosity.warn(warning));
    if problem.data_dependent() {
        verbosity.warn(
            "features are scaled by constants computed from the records, which ends any claim; \
             the audit is of the mechanism behind it",
        );
    }
    let settings = Settings {
        runs: options.runs,
        seed: options.seed,
        threads: options.threads.unwrap_or_else(all_cores),
    };
    let withheld = problem
        .data_dependent()
        .then_some(Reason::DataDependentScaling);
    let audit = audit_of(options.canaries, &resolved, &problem, settings)?.withheld(withheld);
    verbosity.say(format!(
        "playing {} of {} each with a client's code; more runs come nearer to the claim",
        counted(audit.runs() as usize, "run"),
        counted(resolved.rounds, "round")
    ));
    let bar = verbosity.bar(Some(audit.runs()), FORM);
    let findings = audit.play(&|| bar.inc(1), &interrupted)?;
    bar.finish_and_clear();
    if let Some(path) = &options.out {
        write(path, &resolved, &problem, &findings)?;
    }
    if options.json {
        print_json(&findings.to_json())?;
    } else {
        super::print(&lines(&findings, options.out.as_deref()))?;
    }
    match findings.verdict() {
        Verdict::Consistent => Ok(()),
        Verdict::Violated => Err(Failure::failed(
            "the attack proves a larger epsilon than is claimed",
        )),
    }
}

/// The audit of the client with the fewest records, which has the most to hide.
fn audit_of(
    canaries: Canaries,
    resolved: &Resolved,
    problem: &Problem,
    settings: Settings,
) -> Result<Audit, Failure> {
    let run = resolved.specification();
    if canaries == Canaries::Worst {
        let records = problem.sizes().into_iter().min().unwrap_or(0);
        let dimension = problem.objective.dimension();
        return Ok(Audit::new(&run, dimension, records, settings)?);
    }
    let smallest = problem.shards.iter().min_by_key(|shard| shard.records());
    let plan = plan_for(resolved, &problem.objective)
        .map_err(|error| Failure::failed(error.to_string()))?;
    let subject = Subject {
        server: server_plan(resolved, &problem.preparation.model, &plan, vec![1.0]),
        objective: Arc::clone(&problem.objective),
        data: Arc::clone(smallest.ok_or_else(|| Failure::failed("there are no clients"))?),
        start: problem.start(resolved)?,
    };
    Ok(Audit::natural(&run, subject, settings)?)
}

impl From<AuditError> for Failure {
    fn from(error: AuditError) -> Self {
        match error {
            AuditError::Privacy(error) => error.into(),
            AuditError::Interrupted => Failure::failed(error),
            error => Failure::usage(error.to_string()),
        }
    }
}

fn write(
    path: &Path,
    resolved: &Resolved,
    problem: &Problem,
    findings: &Findings,
) -> Result<(), Failure> {
    std::fs::create_dir_all(path).map_err(Failure::at(path))?;
    let title = format!(
        "{} on {}",
        resolved.algorithm_text(problem.objective.dimension()),
        resolved.source
    );
    let files = [
        ("config.toml", resolved.to_toml()),
        ("audit.json", format!("{:#}\n", findings.to_json())),
        ("report.html", audit::html(findings, &title)),
        ("tradeoff.svg", audit::figure(findings).to_svg()),
    ];
    for (name, text) in files {
        let path = path.join(name);
        write_whole(&path, text.as_bytes()).map_err(Failure::at(&path))?;
    }
    Ok(())
}

fn percent(share: f64) -> String {
    readable((1e4 * share).round() / 100.0)
}

/// What the attack proves, in words.
fn proved(outcome: &Outcome) -> String {
    let confidence = percent(outcome.confidence);
    if outcome.empirical_epsilon <= 0.0 {
        return format!("nothing at {confidence}% confidence: the guesses could be luck");
    }
    let share = 100.0 * outcome.empirical_epsilon / outcome.claimed_epsilon;
    format!(
        "epsilon above {:.3} with {confidence}% confidence ({share:.0}% of the claim)",
        outcome.empirical_epsilon
    )
}

fn lines(findings: &Findings, out: Option<&Path>) -> String {
    let mut text = String::new();
    for outcome in &findings.outcomes {
        let games = u64::from(outcome.runs) * outcome.canaries as u64;
        text += &table(
            14,
            &[
                ("neighbours", outcome.neighbours.clone()),
                ("canaries", outcome.canary_records.to_string()),
                (
                    "claimed",
                    format!(
                        "epsilon {} at delta {}",
                        readable(round_up(outcome.claimed_epsilon, 4)),
                        readable(findings.delta)
                    ),
                ),
                ("attack proves", proved(outcome)),
                (
                    "guesses",
                    format!(
                        "{} of {} right, in {} games",
                        outcome.right, outcome.guesses, games
                    ),
                ),
            ],
        );
        text.push('\n');
    }
    let verdict = match findings.verdict() {
        Verdict::Consistent if findings.shows_little() => {
            "consistent with the claim, of which these games show little: more come nearer (--runs)"
                .to_string()
        }
        Verdict::Consistent => "consistent with the claim (evidence, not proof)".to_string(),
        Verdict::Violated => format!(
            "violated: the claim is false, with {}% confidence",
            percent(findings.confidence)
        ),
    };
    text += &table(14, &[("verdict", verdict)]);
    if let Some(caveat) = findings.caveat() {
        text += &table(14, &[("no claim", caveat)]);
    }
    if let Some(out) = out {
        let report = out.join("report.html").display().to_string();
        text += &table(14, &[("report", report)]);
    }
    text
}
