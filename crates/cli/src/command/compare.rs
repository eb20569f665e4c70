//! `soteria compare`: algorithms side by side on the user's problem.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use soteriafl_data::{DataDirectories, Partition, Source};

use super::inputs::{self, CacheOption, DataDirectory};
use super::study::Study;
use super::{Failure, Verbosity};
use soteriafl::comparison::{CHOICE, Comparison, Contender, TUNING, Trust};
use soteriafl::config::{Config, Document, Preset};
use soteriafl::experiment::{Curve, Job, Measure, Outcome, Setting, Statistic};
use soteriafl::problem::Problem;
use soteriafl::reproduce::figures::Horizontal;
use soteriafl::words::counted;

/// The step sizes of the paper's experiments.
const GRID: &str = "0.01,0.03,0.06,0.1,0.3,0.6,1";

/// Compare algorithms on your own problem
///
/// Runs every algorithm for every seed, several at a time, and tells who is ahead against rounds,
/// against bits up and against bytes both ways, and whether that is more than chance. A step size
/// that --tune chose by the records leaves no privacy claim, here and in the written settings.
/// Writes report.html, figures (SVG and PNG), curves.csv and summary.json. Finished runs are kept:
/// the same command goes on after an interruption.
///
/// Example: soteria compare --algorithms ldp-sgd,cdp-sgd,soteriafl-sgd,auto --seeds 0..5 --out
/// comparison
#[derive(clap::Args, Debug)]
pub struct Options {
    /// What the algorithms share (TOML) [default: the defaults of `soteria train`]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Override a key, e.g. privacy.epsilon=5
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Presets to compare, e.g. cdp-sgd,soteriafl-sgd,auto; table1: all rows of the paper's Table
    /// 1; successors: those that came after it
    #[arg(long, value_name = "LIST", value_delimiter = ',', required = true)]
    algorithms: Vec<String>,
    /// Seeds: a range (the end is not part of it) or one seed
    #[arg(long, value_name = "RANGE", default_value = "0..5", value_parser = seeds)]
    seeds: Range<u64>,
    /// Try step sizes and use each algorithm's best, without a claim [without a list:
    /// 0.01,0.03,0.06,0.1,0.3,0.6,1]
    #[arg(
        long,
        value_name = "GRID",
        num_args = 0..=1,
        default_missing_value = GRID,
        value_parser = grid
    )]
    tune: Option<Grid>,
    #[command(flatten)]
    data: DataDirectory,
    #[command(flatten)]
    cache: CacheOption,
    /// Runs at a time; results do not depend on it [default: all cores]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Output directory; one with finished runs is gone on with
    #[arg(long, value_name = "DIR", default_value = "runs/compare")]
    out: PathBuf,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
}

/// Step sizes to try.
#[derive(Clone, Debug)]
struct Grid(Vec<f64>);

fn grid(text: &str) -> Result<Grid, String> {
    let step = |part: &str| match part.trim().parse::<f64>() {
        Ok(step) if step > 0.0 && step.is_finite() => Ok(step),
        _ => Err(format!("`{part}` is not a positive number")),
    };
    text.split(',')
        .map(step)
        .collect::<Result<Vec<_>, _>>()
        .map(Grid)
}

fn seeds(text: &str) -> Result<Range<u64>, String> {
    let number = |part: &str| {
        part.trim()
            .parse::<u64>()
            .map_err(|_| "expected a range like 0..5, or one seed".to_string())
    };
    let range = match text.split_once("..") {
        Some((from, to)) => number(from)?..number(to)?,
        None => {
            let one = number(text)?;
            one..one.saturating_add(1)
        }
    };
    match range.end.saturating_sub(range.start) {
        0 => Err("the range has no seed in it".to_string()),
        1..=1000 => Ok(range),
        _ => Err("more than 1000 seeds".to_string()),
    }
}

/// The presets that are meant, each once, in the order that was asked for.
fn presets(asked: &[String]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    let mut add = |name: &str| {
        if names.iter().all(|known| known != name) {
            names.push(name.to_string());
        }
    };
    for name in asked.iter().map(|name| name.trim()) {
        match name {
            "table1" => Preset::table_1().for_each(&mut add),
            "successors" => Preset::successors().for_each(&mut add),
            name => add(name),
        }
    }
    names
}

/// Keys that a preset fills: given in the base they would make all algorithms one.
const PRESET_KEYS: [&str; 4] = [
    "algorithm.preset",
    "algorithm.estimator",
    "algorithm.compressor",
    "algorithm.shift",
];

/// Runs the command.
///
/// # Errors
/// When the configuration or the data do not allow it, or the run is interrupted.
pub fn run(options: &Options, verbosity: Verbosity) -> Result<(), Failure> {
    let study = Study::new(&options.out, verbosity);
    let base = base(options, verbosity)?;
    let settings = Settings::new(options, &base, verbosity).all()?;
    study.create_directory()?;
    let jobs: Vec<Job> = settings.iter().map(|tried| tried.job.clone()).collect();
    let outcomes = study.run(&jobs, options.threads)?;
    let comparison = gather(options, &settings, outcomes);
    let summary = comparison.summary();
    write_everything(&study, options, &comparison, &settings, &summary)?;
    let mut text = comparison.table().to_text();
    if let Some(tuning) = comparison.tuning() {
        text += &format!("\n{}{TUNING}\n", tuning.to_text());
    }
    text += &format!("\n{}\n", comparison.sentences().join("\n"));
    text += &format!("{CHOICE}\n");
    study.conclude(options.json, &summary, &text, jobs.len())
}

/// What the algorithms share, without what each of them, or each seed, has of its own.
fn base(options: &Options, verbosity: Verbosity) -> Result<Document, Failure> {
    let mut document = inputs::document(options.config.as_deref(), &options.set)?;
    for key in PRESET_KEYS {
        if document.remove(key) {
            verbosity.warn(format!("`{key}` is ignored: each algorithm has its own"));
        }
    }
    if options.tune.is_some() && document.remove("algorithm.step_size") {
        verbosity.warn("`algorithm.step_size` is ignored: --tune chooses it");
    }
    document.remove("run.seed");
    Ok(document)
}

/// One run and what it is a run of.
struct Tried {
    algorithm: usize,
    job: Job,
}

/// Makes the runs. Settings and problems that do not depend on the seed are made once.
struct Settings<'a> {
    options: &'a Options,
    presets: Vec<String>,
    base: &'a Document,
    directories: DataDirectories,
    /// By seed, or 0 where the data does not depend on it, by whether the system chooses the
    /// algorithm (it may write records in another basis than the named ones), and by the number of
    /// clients.
    problems: BTreeMap<(u64, bool, usize), Arc<Problem>>,
    /// Warnings that were given.
    warned: Vec<String>,
    verbosity: Verbosity,
}

impl<'a> Settings<'a> {
    fn new(options: &'a Options, base: &'a Document, verbosity: Verbosity) -> Self {
        Self {
            options,
            presets: presets(&options.algorithms),
            base,
            directories: options.data.directories(),
            problems: BTreeMap::new(),
            warned: Vec::new(),
            verbosity,
        }
    }

    /// Every algorithm with every step size and every seed, in this order.
    fn all(mut self) -> Result<Vec<Tried>, Failure> {
        let steps: Vec<Option<f64>> = match &self.options.tune {
            Some(Grid(steps)) => steps.iter().copied().map(Some).collect(),
            None => vec![None],
        };
        let mut all = Vec::new();
        for (algorithm, name) in self.presets.clone().iter().enumerate() {
            for step in &steps {
                let mut shared: Option<Arc<Setting>> = None;
                for seed in self.options.seeds.clone() {
                    let config = self.config(name, *step, seed)?;
                    let own_data = data_depends_on_seed(&config);
                    let setting = match shared.filter(|_| !own_data) {
                        Some(setting) => setting,
                        None => {
                            let data_seed = if own_data { seed } else { 0 };
                            self.setting(name, &config, data_seed)?
                        }
                    };
                    shared = Some(Arc::clone(&setting));
                    let job = Job { setting, seed };
                    all.push(Tried { algorithm, job });
                }
            }
        }
        Ok(all)
    }

    fn config(&self, name: &str, step: Option<f64>, seed: u64) -> Result<Config, Failure> {
        let mut document = self.base.clone();
        document.set(&format!("algorithm.preset={name}"))?;
        document.set(&format!("run.seed={seed}"))?;
        if Config::read(&document)?.preset.has_one_node() {
            // It holds the records of all clients of the others.
            document.remove("data.clients");
        }
        if let Some(step) = step {
            document.set(&format!("algorithm.step_size={step}"))?;
            // Whichever is used is used because of the records.
            document.set("algorithm.step_size_from_data=true")?;
        }
        Ok(Config::read(&document)?)
    }

    fn setting(
        &mut self,
        name: &str,
        config: &Config,
        data_seed: u64,
    ) -> Result<Arc<Setting>, Failure> {
        let key = (data_seed, config.preset == Preset::Auto, config.clients()?);
        let problem = match self.problems.get(&key) {
            Some(problem) => Arc::clone(problem),
            None => {
                let cache = self.options.cache.cache();
                let problem = Problem::load_cached(config, &self.directories, &cache)?;
                let problem = Arc::new(problem);
                self.problems.insert(key, Arc::clone(&problem));
                problem
            }
        };
        let (resolved, warnings) = problem.resolve(config)?;
        for warning in warnings {
            if !self.warned.contains(&warning) {
                self.verbosity.warn(&warning);
                self.warned.push(warning);
            }
        }
        let name = format!("{name}-step-{}", resolved.step_size);
        Ok(Setting::new(name, resolved, problem))
    }
}

/// Whether another seed deals or makes other records.
fn data_depends_on_seed(config: &Config) -> bool {
    config.partition != Partition::Sorted || matches!(config.source, Source::Synthetic { .. })
}

fn gather(options: &Options, settings: &[Tried], outcomes: Vec<Outcome>) -> Comparison {
    let mut contenders = Vec::new();
    let mut outcomes = outcomes.into_iter();
    let seeds = options.seeds.clone().count();
    for (algorithm, name) in presets(&options.algorithms).into_iter().enumerate() {
        let mine = settings.iter().filter(|tried| tried.algorithm == algorithm);
        let steps: Vec<f64> = mine
            .map(|tried| tried.job.setting.resolved.step_size)
            .step_by(seeds)
            .collect();
        let curves: Vec<(f64, Curve)> = steps
            .into_iter()
            .map(|step| {
                let runs = outcomes.by_ref().take(seeds).collect();
                (step, Curve { runs })
            })
            .collect();
        let losses: Vec<(f64, Statistic)> = curves
            .iter()
            .map(|(step, curve)| (*step, curve.last(Measure::Loss)))
            .collect();
        // What is not a number is no candidate.
        let key = |(_, curve): &(f64, Curve)| {
            let loss = curve.last(Measure::Loss).mean;
            if loss.is_nan() { f64::INFINITY } else { loss }
        };
        let best = curves.into_iter().min_by(|a, b| key(a).total_cmp(&key(b)));
        let Some((step_size, curve)) = best else {
            continue;
        };
        contenders.push(Contender {
            trust: trust(settings, algorithm),
            name,
            step_size,
            curve,
            tried: if options.tune.is_some() {
                losses
            } else {
                Vec::new()
            },
        });
    }
    // Every algorithm shares these; the command line asks for at least one of each. A single node
    // stands for all clients of the others.
    let shared = &settings[0].job.setting.resolved;
    let clients = settings
        .iter()
        .map(|tried| tried.job.setting.resolved.clients);
    let clients = counted(clients.max().unwrap_or(1), "client");
    Comparison {
        problem: format!("{} on {clients}", shared.source),
        delta: shared.delta,
        adjacency: shared.adjacency,
        records_per_person: shared.records_per_person,
        contenders,
    }
}

/// Who must be trusted with this algorithm's messages. One node among others holds what they hold.
fn trust(settings: &[Tried], algorithm: usize) -> Trust {
    let several = settings
        .iter()
        .any(|tried| tried.job.setting.resolved.clients > 1);
    let mine = settings.iter().find(|tried| tried.algorithm == algorithm);
    match mine.map(|tried| &tried.job.setting.resolved) {
        Some(resolved) if resolved.trusted_aggregation => Trust::Sum,
        Some(resolved) if several && resolved.preset.has_one_node() => Trust::OneNode,
        _ => Trust::Nobody,
    }
}

fn write_everything(
    study: &Study<'_>,
    options: &Options,
    comparison: &Comparison,
    settings: &[Tried],
    summary: &serde_json::Value,
) -> Result<(), Failure> {
    let first_seeds = settings.iter().step_by(options.seeds.clone().count());
    study.write_settings(first_seeds.map(|tried| {
        let setting = &tried.job.setting;
        (setting.name.as_str(), setting.resolved.clone())
    }))?;
    for (name, horizontal) in [
        ("against-rounds", Horizontal::Rounds),
        ("against-bits", Horizontal::Bits),
        ("against-bytes-both-ways", Horizontal::BothWays),
    ] {
        study.write_figure(name, &comparison.figure(horizontal))?;
    }
    study.write_figure("overview", &comparison.overview())?;
    study.write("curves.csv", comparison.csv())?;
    study.write("summary.json", format!("{summary:#}\n"))?;
    study.write("report.html", comparison.page().to_html())
}
