//! A recommendation that was tried: short runs on synthetic records of the problem's shape.
//!
//! Every preset that a plan speaks of, and `auto`, is set up for the configuration as `soteria
//! train` would, noise included, and run on synthetic records with as many clients, features and
//! classes. A bound for the worst problem does not tell which algorithm does well; a run does. The
//! user's own records are not looked at: a choice made by them would be outside of every claim.
//!
//! Few records per client are enough: noise and batches are those of the real number of records, so
//! what is left out is only how well the records' mean is known. Costs at most about [`MOST_WORK`]
//! multiplications.

use std::ops::ControlFlow;

use soteriafl_core::simulate::{EvaluationPlan, Metrics};
use soteriafl_data::{DataDirectories, Dataset, FeatureKind, Partition};

use super::{Inquiry, UNSOUND, factor_table};
use crate::config::resolve::{Resolved, StepSizeOrigin};
use crate::config::{Config, Document, NoiseName};
use crate::experiment::Statistic;
use crate::problem::{Preparation, Problem, ProblemError, Records, regularizer};
use crate::reproduce::tables::plus_minus;
use crate::run;

/// Numbers that the synthetic records of one trial should have at most.
const MOST_VALUES: usize = 1_000_000;

/// Fewest records of a client.
const FEWEST_RECORDS: usize = 20;

/// Multiplications of all trials together above which none is made.
pub const MOST_WORK: f64 = 6e9;

/// Each candidate runs once for each of them.
pub(super) const SEEDS: u64 = 3;

const PRESETS: [&str; 6] = [
    "auto",
    "cdp-sgd",
    "soteriafl-gd",
    "soteriafl-sgd",
    "soteriafl-svrg",
    "soteriafl-saga",
];

/// What synthetic records are to look like.
#[derive(Clone, Copy, Debug)]
pub struct Form {
    /// Features, without the constant.
    pub features: usize,
    /// Classes.
    pub classes: usize,
}

/// What was tried, and on what.
pub struct Trial {
    /// The records, in words.
    pub data: String,
    /// What ran, from the best to the worst.
    pub tried: Vec<Tried>,
    /// What could not run, and why.
    pub refused: Vec<(String, String)>,
    /// Share of the most common class: what a model that learnt nothing reaches.
    pub(super) baseline: Statistic,
    /// Test records of a seed.
    test_rows: usize,
}

/// One candidate's runs.
pub struct Tried {
    /// The preset, or `as configured`.
    pub name: String,
    /// Its rounds.
    pub rounds: u32,
    /// Its step size.
    pub step_size: f64,
    /// Its noise, for the real number of records.
    pub sigma: f64,
    /// Share of test records that it gets right.
    pub accuracy: Statistic,
    /// The training loss at the end.
    pub loss: Statistic,
}

/// What is recommended, and why; or why nothing is.
pub struct Advice {
    /// A preset, or `as configured`.
    pub name: Option<String>,
    /// The reason.
    pub reason: String,
}

impl Trial {
    /// Runs every candidate. `form` is what records look like.
    ///
    /// # Errors
    /// In words, why nothing can be tried.
    pub fn run(inquiry: &Inquiry, form: Form) -> Result<Self, String> {
        let (candidates, refused) = candidates(inquiry);
        let clients = inquiry.numbers.clients as usize;
        let records = inquiry.numbers.records as usize;
        let each = records_each(inquiry, &candidates, clients, records)?;
        let mut trial = Self {
            data: format!(
                "{} of {} ({}) with {} and {} classes, noise as for {}",
                some(clients, "client"),
                some(each, "synthetic record"),
                dealing(inquiry.terms.partition),
                some(form.features, "feature"),
                form.classes,
                some(records, "record"),
            ),
            tried: Vec::new(),
            refused,
            baseline: Statistic::of([].into_iter()),
            test_rows: 0,
        };
        let mut ends: Vec<Vec<Metrics>> = vec![Vec::new(); candidates.len()];
        let mut baselines = Vec::new();
        for seed in 0..SEEDS {
            let problem = synthetic(inquiry, form, clients, each, seed)?;
            let test = problem.test.as_ref().ok_or("there are no test records")?;
            baselines.push(most_common(test));
            trial.test_rows = test.rows();
            for ((_, run, sigma), ends) in candidates.iter().zip(&mut ends) {
                let run = Resolved {
                    seed,
                    // The same law, without the price of exact arithmetic.
                    noise: NoiseName::Float,
                    ..run.clone()
                };
                ends.push(end_of(&run, &problem, *sigma)?);
            }
        }
        trial.baseline = Statistic::of(baselines.into_iter());
        let tried = candidates.into_iter().zip(ends);
        trial.tried = tried
            .map(|((name, run, sigma), ends)| Tried {
                name,
                rounds: run.rounds,
                step_size: run.step_size,
                sigma,
                accuracy: Statistic::of(ends.iter().map(|end| end.test_accuracy.unwrap_or(0.0))),
                loss: Statistic::of(ends.iter().map(|end| end.loss)),
            })
            .collect();
        // The most accurate first; of equals the one with the smaller loss.
        trial.tried.sort_by(|a, b| {
            let accuracy = b.accuracy.mean.total_cmp(&a.accuracy.mean);
            accuracy.then(a.loss.mean.total_cmp(&b.loss.mean))
        });
        Ok(trial)
    }

    /// The best candidate, if it learnt anything.
    pub fn advice(&self) -> Advice {
        let Some(best) = self.tried.first() else {
            return Advice {
                name: None,
                reason: "no algorithm can run with this configuration and a proof".to_string(),
            };
        };
        // Three standard errors of a share of that many test records.
        let baseline = self.baseline.mean;
        let tests = (self.test_rows as u64 * SEEDS) as f64;
        let chance = 3.0 * (baseline * (1.0 - baseline) / tests).sqrt();
        if !(best.accuracy.mean > baseline + chance && best.loss.mean.is_finite()) {
            return Advice {
                name: None,
                reason: format!(
                    "tried on {}, no algorithm does better than always answering the most common class ({:.4}): \
                     more records, a larger epsilon or fewer parameters would help",
                    self.data, baseline
                ),
            };
        }
        let mut reason = format!(
            "tried on {} ({SEEDS} seeds), it ends with test accuracy {}",
            self.data,
            plus_minus(&best.accuracy)
        );
        if let Some(next) = self.tried.get(1) {
            reason += &format!(", {} with {}", next.name, plus_minus(&next.accuracy));
            let lead = best.accuracy.against(&next.accuracy).standard_errors();
            // Not a number, where there is no spread, is no clear lead either.
            if lead.is_nan() || lead <= 3.0 {
                reason += ", which is no clear difference";
            }
        }
        Advice {
            name: Some(best.name.clone()),
            reason,
        }
    }
}

const FROM_RECORDS: &str = "its step size is chosen by the records, so that nothing is claimed";

type Candidate = (String, Resolved, f64);

/// A preset in place of what the configuration says of algorithms. The compressor stays: how much
/// may travel is part of the problem.
pub(super) fn preset_settings(document: &Document, preset: &str) -> Vec<String> {
    let mut set = vec![format!("algorithm.preset={preset}")];
    for key in ["algorithm.estimator", "algorithm.shift"] {
        if document.has(key) {
            set.push(format!("{key}=auto"));
        }
    }
    set
}

/// Every preset under this configuration that has a proof, the configuration itself included, each
/// with its noise; and why others have none.
fn candidates(inquiry: &Inquiry) -> (Vec<Candidate>, Vec<(String, String)>) {
    let mut settings: Vec<(String, Vec<String>)> = PRESETS
        .iter()
        .map(|preset| {
            let set = preset_settings(&inquiry.document, preset);
            ((*preset).to_string(), set)
        })
        .collect();
    settings.push(("as configured".to_string(), Vec::new()));
    let (mut found, mut refused) = (Vec::<Candidate>::new(), Vec::new());
    for (name, set) in settings {
        let run = match inquiry.run(&set) {
            Ok(run) => run,
            Err(error) => {
                refused.push((name, error.to_string()));
                continue;
            }
        };
        if found.iter().any(|(_, other, _)| same_run(other, &run)) {
            continue;
        }
        if run.step_size_origin != StepSizeOrigin::Public {
            refused.push((name, FROM_RECORDS.to_string()));
            continue;
        }
        match inquiry.level(&run) {
            Ok(Some(level)) => found.push((name, run, level.sigma)),
            Ok(None) => refused.push((name, UNSOUND.to_string())),
            Err(error) => refused.push((name, error.to_string())),
        }
    }
    (found, refused)
}

/// Whether two runs differ in the name of their preset at most.
fn same_run(left: &Resolved, right: &Resolved) -> bool {
    let preset = left.preset;
    *left
        == Resolved {
            preset,
            ..right.clone()
        }
}

/// How many records a client has in a trial.
pub(super) fn records_each(
    inquiry: &Inquiry,
    candidates: &[Candidate],
    clients: usize,
    records: usize,
) -> Result<usize, String> {
    let dimension = inquiry.shape.dimension;
    let batches = candidates.iter().filter_map(|(_, run, _)| run.batch);
    let largest = batches.fold(0.0, f64::max).ceil() as usize;
    let affordable = MOST_VALUES / clients.saturating_mul(dimension).max(1);
    let each = affordable
        .max(largest)
        .max(FEWEST_RECORDS)
        .min(records.max(1));
    let work: f64 = candidates
        .iter()
        .map(|(_, run, _)| {
            let passes = f64::from(run.estimator.gradients());
            let batch = run.batch.unwrap_or(each as f64).max(1.0);
            f64::from(run.rounds) * passes * batch * clients as f64 * dimension as f64
        })
        .sum();
    if SEEDS as f64 * work > MOST_WORK || clients.saturating_mul(dimension) > 64 * MOST_VALUES {
        return Err("the problem is too large to be tried quickly".to_string());
    }
    Ok(each)
}

/// So many of something.
pub(super) fn some(count: usize, name: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {name}{plural}")
}

/// How records are dealt: as configured, but shares drawn at random may be smaller than a batch.
fn dealing(partition: Partition) -> &'static str {
    match partition {
        Partition::Sorted => "sorted",
        _ => "iid",
    }
}

/// Synthetic records in place of the configuration's.
pub(super) fn synthetic(
    inquiry: &Inquiry,
    form: Form,
    clients: usize,
    each: usize,
    seed: u64,
) -> Result<Problem, String> {
    let mut document: Document = inquiry.document.clone();
    for key in [
        "data.test",
        "data.rows",
        "data.center",
        "data.factor",
        "data.basis",
        "data.holdout",
        "data.schema",
        "schema.ranges",
        "schema.columns",
        "schema.missing",
        "schema.numbers",
        "schema.task",
    ] {
        document.remove(key);
    }
    let rows = clients.saturating_mul(each);
    // Records that are mapped are those of tables.
    let table = inquiry.shape.feature_map != FeatureKind::None;
    let assignments = [
        match table {
            true => "data.source=memory".to_string(),
            false => format!(
                "data.source=synthetic:{rows}x{}x{}",
                form.features, form.classes
            ),
        },
        "data.scale=none".to_string(),
        format!("data.clients={clients}"),
        format!("data.partition={}", dealing(inquiry.terms.partition)),
        format!("run.seed={seed}"),
        // What the run's own records go through.
        format!("model.kind={}", inquiry.shape.model.word()),
        format!("data.features={}", inquiry.shape.feature_map),
        match inquiry.shape.whiten {
            Some(share) => format!("data.whiten={share:?}"),
            None => "data.whiten=none".to_string(),
        },
    ];
    for assignment in assignments {
        document
            .set(&assignment)
            .map_err(|error| error.to_string())?;
    }
    let config = Config::read(&document).map_err(|error| error.to_string())?;
    let problem = match table {
        true => factor_table::make(form, rows, seed)
            .map_err(ProblemError::from)
            .and_then(|(train, test)| Records::given(&config, train, Some(test), None))
            .and_then(|records| {
                let preparation = Preparation::of(&config, records.shape())?;
                Problem::new(records, preparation)
            }),
        false => Problem::load(&config, &DataDirectories::from_environment(None)),
    };
    let problem = problem.map_err(|error| error.to_string())?;
    if problem.objective.dimension() != inquiry.shape.dimension {
        return Err("synthetic records do not make a model of this many parameters".to_string());
    }
    Ok(problem)
}

/// The share of the most common class.
fn most_common(test: &Dataset) -> f64 {
    let mut counts = vec![0usize; test.classes()];
    for &label in test.labels() {
        counts[label as usize] += 1;
    }
    counts.into_iter().max().unwrap_or(0) as f64 / test.rows().max(1) as f64
}

/// Where a run ends.
pub(super) fn end_of(run: &Resolved, problem: &Problem, sigma: f64) -> Result<Metrics, String> {
    let problem = &*problem.whitened(run).map_err(|error| error.to_string())?;
    let sigmas = vec![sigma; problem.shards.len()];
    let mut simulation =
        run::simulation(run, problem, &sigmas).map_err(|error| error.to_string())?;
    let weights = problem.weights(run);
    let plan = EvaluationPlan {
        objective: problem.objective.as_ref(),
        regularizer: regularizer(run.regularizer, run.lambda),
        weights: &weights,
        test: problem.test.as_ref(),
        every: 0,
        from: run.rounds,
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut end = None;
    let ended = simulation.run(threads, &plan, |progress, _| {
        end = progress.metrics.or(end);
        ControlFlow::Continue(())
    });
    ended.map_err(|error| error.to_string())?;
    end.ok_or_else(|| "a trial was not evaluated".to_string())
}
