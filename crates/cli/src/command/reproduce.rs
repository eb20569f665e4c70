//! `soteria reproduce`: the paper's figures.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::ValueEnum;
use soteriafl_data::{DataDirectories, DataError};

use super::inputs::DataDirectory;
use super::study::Study;
use super::{Failure, Verbosity};
use soteriafl::experiment::{Curve, Job, Setting};
use soteriafl::problem::ProblemError;
use soteriafl::report::Table;
use soteriafl::reproduce::published::{self, ALGORITHMS, Algorithm, FIGURES, Setup, Task};
use soteriafl::reproduce::settings::{Data, Mode};
use soteriafl::reproduce::{Entry, Results, figures, page, tables};

/// The paper's figures, with what stands behind them and how far a proof goes
///
/// Figures 1 to 3 (a9a) and 4 to 8 (MNIST), each as published, proved, and best proved: SVG and
/// PNG, curves as CSV, and report.html with interactive charts. a9a is built in; MNIST is looked
/// for in --data-dir, SOTERIA_DATA and the cache (`soteria data fetch mnist`). Finished runs are
/// kept: the same command goes on after an interruption.
#[derive(clap::Args, Debug)]
pub struct Options {
    /// Which problem
    #[arg(value_enum, default_value = "all")]
    problem: Which,
    /// Only these epsilons, as the figures name them, e.g. 1,5
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    epsilon: Vec<f64>,
    /// Seeds for every setting [default: 10 for a9a, 1 for MNIST]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: Option<u64>,
    #[command(flatten)]
    data: DataDirectory,
    /// Runs at a time; results do not depend on it [default: all cores]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Evaluate MNIST runs as published every so many rounds
    #[arg(
        long,
        value_name = "N",
        default_value_t = 5,
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    eval_every: u32,
    /// Output directory; one with finished runs is gone on with
    #[arg(long, value_name = "DIR", default_value = "runs/reproduce")]
    out: PathBuf,
    /// Which runs of each figure
    #[arg(
        long,
        value_enum,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "published,proved,best"
    )]
    modes: Vec<ModeChoice>,
    /// Fail if a run as published misses the authors' values by more than three standard errors
    #[arg(long)]
    check: bool,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ModeChoice {
    Published,
    Proved,
    Best,
}

impl From<ModeChoice> for Mode {
    fn from(choice: ModeChoice) -> Self {
        match choice {
            ModeChoice::Published => Mode::Published,
            ModeChoice::Proved => Mode::Proved,
            ModeChoice::Best => Mode::Best,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Which {
    A9a,
    Mnist,
    All,
}

/// The authors' starting model for a9a, which the runs as published begin with.
const START_FILE: &str = "a9a-start.csv";

/// Runs the command.
///
/// # Errors
/// When there is nothing to run, data is missing, or the run is interrupted.
pub fn run(options: &Options, verbosity: Verbosity) -> Result<(), Failure> {
    let study = Study::new(&options.out, verbosity);
    let setups = chosen(options)?;
    let start_file = options.out.join(START_FILE);
    let directories = options.data.directories();
    let plan = plan(options, &setups, &start_file, &directories, verbosity)?;
    if options.check {
        can_check(&plan)?;
    }
    // Nothing is written before everything that can be wrong has been checked.
    study.create_directory()?;
    study.write(START_FILE, published::A9A_START)?;

    let jobs: Vec<Job> = plan
        .iter()
        .flat_map(|(entry, seeds)| {
            (0..*seeds).map(|seed| Job {
                setting: Arc::clone(&entry.setting),
                seed,
            })
        })
        .collect();
    let mut outcomes = study.run(&jobs, options.threads)?.into_iter();
    let entries = plan
        .into_iter()
        .map(|(mut entry, seeds)| {
            entry.curve.runs = outcomes.by_ref().take(seeds as usize).collect();
            entry
        })
        .collect();
    let results = Results { entries };
    let summary = tables::summary(&results);
    write_everything(&study, &results, &summary)?;
    let text = format!("{}\n{}\n", shown(&results), tables::EPSILON_MEANS);
    study.conclude(options.json, &summary, &text, jobs.len())?;
    if options.check {
        check(&results)?;
    }
    Ok(())
}

/// Refuses a check that could not fail.
fn can_check(plan: &[(Entry, u64)]) -> Result<(), Failure> {
    let mut compared = plan
        .iter()
        .filter(|(entry, _)| entry.band().is_some())
        .peekable();
    if compared.peek().is_none() {
        return Err(Failure::usage(
            "--check: no run as published has values to be compared with",
        ));
    }
    if compared.any(|&(_, seeds)| seeds < 2) {
        return Err(Failure::usage(
            "--check: one seed has no spread and decides nothing; use --seeds 2 or more",
        ));
    }
    Ok(())
}

fn check(results: &Results) -> Result<(), Failure> {
    let comparisons = results.comparisons();
    let outside: Vec<String> = comparisons
        .iter()
        .filter(|(_, comparison)| comparison.within() == Some(false))
        .map(|(entry, comparison)| {
            format!(
                "{} at epsilon {}, {}, {} ({:+.1} standard errors)",
                entry.setup.task.title(),
                entry.setup.epsilon,
                entry.name(),
                comparison.measure.name(),
                comparison.distance.unwrap_or(f64::NAN)
            )
        })
        .collect();
    if !outside.is_empty() {
        return Err(Failure::Failed(format!(
            "outside of the published values: {}",
            outside.join("; ")
        )));
    }
    Ok(())
}

fn chosen(options: &Options) -> Result<Vec<Setup>, Failure> {
    let asked = |setup: &&Setup| match options.problem {
        Which::A9a => setup.task == Task::A9a,
        Which::Mnist => setup.task == Task::Mnist,
        Which::All => true,
    };
    let possible: Vec<Setup> = FIGURES.iter().filter(asked).copied().collect();
    for epsilon in &options.epsilon {
        if possible.iter().all(|setup| setup.epsilon != *epsilon) {
            return Err(Failure::Usage {
                message: format!("--epsilon {epsilon}: the paper has no such figure"),
                hint: Some("a9a has 1, 5, 10; mnist has 1, 2, 4, 8, 16".to_string()),
            });
        }
    }
    let wanted =
        |setup: &Setup| options.epsilon.is_empty() || options.epsilon.contains(&setup.epsilon);
    Ok(possible.into_iter().filter(wanted).collect())
}

/// Every curve with its number of seeds.
fn plan(
    options: &Options,
    setups: &[Setup],
    start: &Path,
    directories: &DataDirectories,
    verbosity: Verbosity,
) -> Result<Vec<(Entry, u64)>, Failure> {
    let mut plan = Vec::new();
    for task in [Task::A9a, Task::Mnist] {
        let figures: Vec<&Setup> = setups.iter().filter(|setup| setup.task == task).collect();
        if figures.is_empty() {
            continue;
        }
        let data = match Data::load(task, start, directories) {
            Ok(data) => data,
            Err(ProblemError::Data(error @ DataError::Missing { .. }))
                if options.problem == Which::All && !plan.is_empty() =>
            {
                verbosity.warn(format!("figures 4 to 8 are left out: {error}"));
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let seeds = options
            .seeds
            .unwrap_or(if task == Task::A9a { 10 } else { 1 });
        for setup in figures {
            for (mode, algorithm) in curves(&options.modes) {
                let setting = data.setting(
                    setup,
                    mode,
                    algorithm.unwrap_or(Algorithm::SoteriaSgd),
                    evaluated_every(task, mode, options.eval_every),
                )?;
                plan.push((entry(*setup, mode, algorithm, setting), seeds));
            }
        }
    }
    Ok(plan)
}

/// On MNIST an evaluation costs as much as dozens of rounds, so proved runs get half of them.
fn evaluated_every(task: Task, mode: Mode, published: u32) -> u32 {
    match (task, mode) {
        (Task::A9a, _) => 1,
        (Task::Mnist, Mode::Published) => published,
        (Task::Mnist, _) => 2 * published,
    }
}

/// The curves of a figure, in the order of tables and legends.
fn curves(modes: &[ModeChoice]) -> Vec<(Mode, Option<Algorithm>)> {
    let wanted = |mode: Mode| modes.iter().any(|choice| Mode::from(*choice) == mode);
    let mut curves = Vec::new();
    for mode in [Mode::Published, Mode::Proved]
        .into_iter()
        .filter(|mode| wanted(*mode))
    {
        curves.extend(ALGORITHMS.map(|algorithm| (mode, Some(algorithm))));
    }
    if wanted(Mode::Best) {
        curves.push((Mode::Best, None));
    }
    curves
}

fn entry(setup: Setup, mode: Mode, algorithm: Option<Algorithm>, setting: Arc<Setting>) -> Entry {
    Entry {
        setup,
        mode,
        algorithm,
        setting,
        curve: Curve { runs: Vec::new() },
    }
}

fn write_everything(
    study: &Study<'_>,
    results: &Results,
    summary: &serde_json::Value,
) -> Result<(), Failure> {
    study.create_folder("figures")?;
    study.create_folder("curves")?;
    for setup in results.setups() {
        for mode in [Mode::Published, Mode::Proved] {
            if results.of(setup.figure).all(|entry| entry.mode != mode) {
                continue;
            }
            let name = format!("figures/figure-{}-{}", setup.figure, mode.slug());
            study.write_figure(&name, &figures::figure(results, &setup, mode))?;
        }
        let name = format!("curves/figure-{}.csv", setup.figure);
        study.write(&name, tables::curves_csv(results, &setup))?;
    }
    study.write_settings(
        (results.entries.iter()).map(|entry| (entry.setting.name.as_str(), entry.written())),
    )?;
    let documents: String = all_tables(results)
        .iter()
        .map(|(title, table)| format!("## {title}\n\n{}\n", table.to_markdown()))
        .collect();
    let documents = format!("{}\n\n{documents}", tables::EPSILON_MEANS);
    study.write("tables.md", documents)?;
    study.write("summary.json", format!("{summary:#}\n"))?;
    study.write("report.html", page::page(results).to_html())
}

/// The tables for people: ends of all curves, bands, goals.
fn shown(results: &Results) -> String {
    let mut out = String::new();
    for (title, table) in all_tables(results) {
        // Forty rows and claims about pairs are for documents.
        if !title.starts_with("What") {
            out += &format!("\n{title}\n{}", table.to_text());
        }
    }
    out
}

/// Every table with its heading; those without rows are left out.
fn all_tables(results: &Results) -> Vec<(String, Table)> {
    let mut all = Vec::new();
    for setup in results.setups() {
        let title = format!(
            "Figure {}: {} at epsilon {}",
            setup.figure,
            setup.task.title(),
            setup.epsilon
        );
        all.push((title, tables::figure_table(results, &setup)));
    }
    for (title, table) in [
        ("Published against reproduced", tables::band_table(results)),
        ("Goals", tables::goal_table(results)),
        (
            "What the published noise really gives",
            tables::noise_table(&results.setups()),
        ),
        (
            "What the paper says about its algorithms",
            tables::ordering_table(results),
        ),
    ] {
        if !table.rows.is_empty() {
            all.push((title.to_string(), table));
        }
    }
    all
}
