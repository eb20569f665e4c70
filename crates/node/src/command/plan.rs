//! `soteria plan`: what the paper's theory says for given numbers, and what an exact accountant says beside it.
//!
//! Theorems 1 and 2, Corollaries 1 to 3, the theorem for CDP-SGD, and Tables 1 and 2. Bounds keep the constants of the
//! proofs (`c = 48`, or 8 for CDP-SGD), so they are guarantees where the conditions hold; the tables are orders of
//! magnitude, as in the paper. The exact noise is for records clipped to `G`, Poisson batches, the rounds of the theory.

use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Value, json};
use soteria_accountant::paper::{PaperFormula, PaperTheorem};
use soteria_accountant::{Adjacency, ClipScope, Estimator as Accounted, Mechanism, Question};
use soteria_core::compress::{Compressor, CompressorKind};
use soteria_core::data::{DataDirectories, Dataset, largest_singular_value};
use soteria_core::protocol::shift_step;
use soteria_core::theory::{Choice, Estimator, Problem as Numbers, Tables};

use super::{Failure, Verbosity, print};
use crate::config::{Config, Document, NoiseTarget};
use crate::problem::{Model, Problem, regularizer};
use crate::report::Table;

/// What the paper's theory says for your numbers, beside exact noise
///
/// For CDP-SGD and every SoteriaFL algorithm: rounds, batch, step sizes, noise, a bound on utility, communication and
/// gradients; Tables 1 and 2 of the paper; which conditions hold; and a recommendation. With --config the numbers
/// come from a configuration and its data, the smoothness included; what is given besides wins.
///
/// Example: soteria plan --clients 10 --samples 3256 --dimension 124 --epsilon 1 --delta 1e-3 --clip 0.5 --smoothness 1
/// --rand-k 0.05
#[derive(clap::Args, Debug)]
pub struct Options {
    /// Number of clients n
    #[arg(long, value_name = "N", value_parser = super::account::positive)]
    clients: Option<f64>,
    /// Records per client m
    #[arg(long, value_name = "M", value_parser = super::account::count)]
    samples: Option<u64>,
    /// Parameters d
    #[arg(long, value_name = "D", value_parser = super::account::count)]
    dimension: Option<u64>,
    /// The target
    #[arg(long, value_name = "E", value_parser = super::account::positive)]
    epsilon: Option<f64>,
    /// The probability with which the bound may fail
    #[arg(long, value_name = "D", value_parser = super::account::delta)]
    delta: Option<f64>,
    /// The bound G on each record's gradient
    #[arg(long, value_name = "G", value_parser = super::account::positive)]
    clip: Option<f64>,
    /// Smoothness L
    #[arg(long, value_name = "L", value_parser = super::account::positive)]
    smoothness: Option<f64>,
    /// The compressor's omega
    #[arg(long, value_name = "W", value_parser = not_negative, conflicts_with = "rand_k")]
    omega: Option<f64>,
    /// Random-k with this fraction of the coordinates [default: 0.05]
    #[arg(long, value_name = "FRACTION", value_parser = super::account::fraction)]
    rand_k: Option<f64>,
    /// How far the start is above the optimum, f(x0) - f*
    #[arg(long, value_name = "GAP", value_parser = super::account::positive, default_value_t = 1.0)]
    gap: f64,
    /// Which data sets are neighbours, for the exact noise
    #[arg(long, value_enum, default_value_t = super::account::AdjacencyChoice::ReplaceOne)]
    adjacency: super::account::AdjacencyChoice,
    /// Take the numbers from this configuration and its data
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Override a key of the configuration
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Where data sets are looked for first
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
///
/// # Errors
/// When a number is missing or makes no sense.
pub fn run(options: &Options, verbosity: Verbosity) -> Result<(), Failure> {
    let (numbers, rand_k, remarks) = options.numbers()?;
    for remark in &remarks {
        verbosity.say(remark);
    }
    let adjacency = options.adjacency.into();
    let plans = plans(&numbers, rand_k, options.gap, adjacency)?;
    let tables = numbers.tables();
    let advice = advice(&plans, numbers.tau());
    print(&if options.json {
        format!("{:#}\n", json(&numbers, &plans, &tables, &advice, &remarks))
    } else {
        text(&numbers, &plans, &tables, &advice)
    })
}

/// One algorithm with all that can be said before it runs.
struct Plan {
    name: &'static str,
    choice: Choice,
    /// By the theorem.
    sigma: f64,
    /// What that noise really gives.
    epsilon_of_sigma: Option<f64>,
    /// By the accountant.
    exact_sigma: Option<f64>,
    /// Whether random-k amplification is part of it.
    amplified: bool,
    utility: f64,
    utility_exact: Option<f64>,
    values: f64,
    broken: Vec<String>,
}

fn plans(
    numbers: &Numbers,
    rand_k: Option<f64>,
    gap: f64,
    adjacency: Adjacency,
) -> Result<Vec<Plan>, Failure> {
    let named = [
        ("CDP-SGD", None),
        ("SoteriaFL-GD", Some(Estimator::Gd)),
        ("SoteriaFL-SGD", Some(Estimator::Sgd)),
        ("SoteriaFL-SVRG", Some(Estimator::Svrg)),
        ("SoteriaFL-SAGA", Some(Estimator::Saga)),
    ];
    named
        .into_iter()
        .map(|(name, estimator)| {
            let choice = match estimator {
                None => numbers.choose_direct(gap),
                Some(estimator) => numbers.choose(estimator, gap),
            };
            if choice.rounds > 1e7 {
                return Err(Failure::Usage {
                    message: format!("{name}: the theory asks for {:.1e} rounds", choice.rounds),
                    hint: Some("check --smoothness, --gap and --clip".to_string()),
                });
            }
            let question = question(numbers, &choice, rand_k, adjacency)?;
            let sigma = numbers.paper_sigma(&choice);
            let exact = question.calibrate(numbers.epsilon).ok();
            let exact_sigma = exact.map(|cost| cost.sigma);
            let formula = PaperFormula {
                theorem: match estimator {
                    None => PaperTheorem::Direct { clip: numbers.clip },
                    Some(Estimator::Gd | Estimator::Sgd) => PaperTheorem::sgd(numbers.clip),
                    Some(_) => PaperTheorem::variance_reduced(numbers.clip),
                },
                records: numbers.records as u64,
                batch: choice.batch,
                rounds: choice.rounds as u64,
            };
            let premises = formula.violated_conditions(sigma, numbers.epsilon, numbers.delta);
            let mut broken = numbers.broken_conditions(&choice);
            broken.extend(
                premises
                    .iter()
                    .map(|premise| format!("privacy: {}", shortened(&premise.to_string()))),
            );
            Ok(Plan {
                name,
                choice,
                sigma,
                epsilon_of_sigma: question.cost(sigma).ok().map(|cost| cost.epsilon),
                exact_sigma,
                amplified: exact.is_some_and(|cost| cost.amplified()),
                utility: numbers.utility(&choice, sigma),
                utility_exact: exact_sigma.map(|sigma| numbers.utility(&choice, sigma)),
                values: numbers.clients * numbers.dimension * choice.rounds / (1.0 + numbers.omega),
                broken,
            })
        })
        .collect()
}

/// A sentence whose long numbers have four digits.
fn shortened(text: &str) -> String {
    let words = text.split(' ').map(|word| {
        let bare = word.trim_end_matches([',', ';']);
        match bare.parse::<f64>() {
            Ok(value) if bare.len() > 6 => {
                format!(
                    "{}{}",
                    soteria_accountant::round_up(value, 4),
                    &word[bare.len()..]
                )
            }
            _ => word.to_string(),
        }
    });
    words.collect::<Vec<_>>().join(" ")
}

/// The mechanism of a schedule for the accountant. Differences of SVRG and SAGA have no clip of their own in the theory.
fn question(
    numbers: &Numbers,
    choice: &Choice,
    rand_k: Option<f64>,
    adjacency: Adjacency,
) -> Result<Question, Failure> {
    let difference_clip = None;
    let mechanism = Mechanism {
        estimator: match choice.estimator {
            None | Some(Estimator::Sgd) => Accounted::Sgd,
            Some(Estimator::Gd) => Accounted::Gd,
            Some(Estimator::Svrg) => Accounted::Svrg { difference_clip },
            Some(Estimator::Saga) => Accounted::Saga { difference_clip },
        },
        records: numbers.records as u64,
        batch: choice.batch,
        clip: numbers.clip,
        clip_scope: ClipScope::Record,
        rand_k,
    };
    Ok(mechanism.question(choice.rounds as u64, numbers.delta, adjacency)?)
}

/// Which algorithm, and why.
struct Advice {
    name: &'static str,
    reason: String,
}

/// The smallest guaranteed utility with exact noise; of those within a tenth of it the one that sends least, and of those the
/// one that computes least.
fn advice(plans: &[Plan], tau: f64) -> Option<Advice> {
    let utility = |plan: &Plan| plan.utility_exact.filter(|value| value.is_finite());
    let best = plans.iter().filter_map(utility).reduce(f64::min)?;
    let near: Vec<&Plan> = plans
        .iter()
        .filter(|plan| utility(plan).is_some_and(|value| value <= 1.1 * best))
        .collect();
    let fewest = near.iter().map(|plan| plan.values).reduce(f64::min)?;
    let cheap = near.iter().filter(|plan| plan.values <= 1.1 * fewest);
    let chosen = cheap.min_by(|a, b| gradients(a).total_cmp(&gradients(b)))?;
    let mut reason = format!(
        "with exact noise it is guaranteed a mean squared gradient norm of {:.3e}",
        utility(chosen)?
    );
    let others: Vec<&Plan> = plans
        .iter()
        .filter(|plan| plan.name != chosen.name)
        .collect();
    let worse: Vec<String> = others
        .iter()
        .filter_map(|plan| Some((plan.name, utility(plan)? / utility(chosen)?)))
        .filter(|(_, ratio)| *ratio > 1.1)
        .map(|(name, ratio)| format!("{name} {ratio:.1} times that"))
        .collect();
    if !worse.is_empty() {
        reason += &format!(" ({})", worse.join(", "));
    }
    let level: Vec<String> = near
        .iter()
        .filter(|plan| plan.name != chosen.name)
        .map(|plan| {
            format!(
                "{} is within a tenth but sends {:.1} and computes {:.1} times as much",
                plan.name,
                plan.values / chosen.values,
                gradients(plan) / gradients(chosen)
            )
        })
        .collect();
    if !level.is_empty() {
        reason += &format!("; {}", level.join("; "));
    }
    if chosen.choice.estimator.is_none() && tau > 1.0 {
        reason += &format!(
            "; tau = (1 + omega)^(3/2)/sqrt(n) = {tau:.1} is above 1, where the theory's step sizes for shifted compression are small"
        );
    }
    Some(Advice {
        name: chosen.name,
        reason,
    })
}

/// Gradients that a client computes, as Table 2 counts: `b T`.
fn gradients(plan: &Plan) -> f64 {
    plan.choice.batch * plan.choice.rounds
}

impl Options {
    /// The numbers, the fraction of random-k if that is the compressor, and remarks on where they come from.
    fn numbers(&self) -> Result<(Numbers, Option<f64>, Vec<String>), Failure> {
        let mut remarks = Vec::new();
        let known = if self.config.is_some() || !self.set.is_empty() {
            Some(self.measured(&mut remarks)?)
        } else {
            None
        };
        let missing = |key: &str| Failure::Usage {
            message: format!("{key} is missing"),
            hint: Some("give it, or a configuration with --config".to_string()),
        };
        let number = |given: Option<f64>, known: Option<f64>, key: &str| {
            given.or(known).ok_or_else(|| missing(key))
        };
        let of = |value: fn(&Numbers) -> f64| known.as_ref().map(|(numbers, _)| value(numbers));
        let dimension = number(
            self.dimension.map(|d| d as f64),
            of(|n| n.dimension),
            "--dimension",
        )?;
        let (omega, rand_k) = match (self.omega, self.rand_k, &known) {
            (Some(omega), _, _) => (omega, None),
            (None, None, Some((numbers, rand_k))) => (numbers.omega, *rand_k),
            (None, fraction, _) => {
                let k = (fraction.unwrap_or(0.05) * dimension).floor().max(1.0);
                (dimension / k - 1.0, Some(k / dimension))
            }
        };
        let smoothness = number(
            self.smoothness,
            of(|n| n.smoothness).filter(|value| value.is_finite()),
            "--smoothness",
        )?;
        let numbers = Numbers {
            clients: number(self.clients, of(|n| n.clients), "--clients")?,
            records: number(
                self.samples.map(|m| m as f64),
                of(|n| n.records),
                "--samples",
            )?,
            dimension,
            omega,
            smoothness,
            clip: number(self.clip, of(|n| n.clip), "--clip")?,
            epsilon: number(self.epsilon, of(|n| n.epsilon), "--epsilon")?,
            delta: number(self.delta, of(|n| n.delta), "--delta")?,
        };
        Ok((numbers, rand_k, remarks))
    }

    /// The numbers of a configuration and its data; the smoothness is not a number where it is not known.
    fn measured(&self, remarks: &mut Vec<String>) -> Result<(Numbers, Option<f64>), Failure> {
        let mut document = match &self.config {
            Some(path) => Document::from_file(path)?,
            None => Document::default(),
        };
        for assignment in &self.set {
            document.set(assignment)?;
        }
        let config = Config::read(&document)?;
        let directories = DataDirectories::from_environment(self.data.as_deref());
        let problem = Problem::load(&config, &directories)?;
        let (resolved, _) = config.resolve(&problem.shape(&config)?)?;
        let dimension = problem.objective.dimension();
        let compressor = Compressor::new(resolved.compressor, dimension, resolved.participation)
            .map_err(|error| Failure::usage(format!("`algorithm.compressor`: {error}")))?;
        let strongest = regularizer(resolved.regularizer, resolved.lambda).smoothness();
        let smoothness = match &problem.model {
            Model::Logistic { .. } => {
                let shards: Vec<&Dataset> = problem.shards.iter().map(Arc::as_ref).collect();
                let rows: usize = shards.iter().map(|shard| shard.rows()).sum();
                let mean = largest_singular_value(&shards).powi(2) / (4.0 * rows as f64);
                let each = shards
                    .iter()
                    .flat_map(|shard| shard.squared_norms())
                    .copied();
                let each = each.fold(0.0, f64::max) / 4.0;
                remarks.push(format!(
                    "smoothness from the data (outside every privacy claim): L = {:.4} of the mean loss, {:.4} of the worst record, \
                     regularizer included; Assumption 1 asks for the latter, the authors' experiments use the former, and so does this plan",
                    mean + strongest,
                    each + strongest
                ));
                mean + strongest
            }
            Model::Network(_) => {
                if self.smoothness.is_none() {
                    return Err(Failure::Usage {
                        message: "the smoothness of a network is not known".to_string(),
                        hint: Some("give a value with --smoothness".to_string()),
                    });
                }
                f64::NAN
            }
        };
        let rand_k = match resolved.compressor {
            CompressorKind::RandK { k } => Some(k as f64 / dimension as f64),
            _ => None,
        };
        let records = problem.shards.iter().map(|shard| shard.rows()).min();
        let epsilon = match resolved.noise_target {
            NoiseTarget::Epsilon(epsilon) => epsilon,
            _ => self.epsilon.unwrap_or(1.0),
        };
        let numbers = Numbers {
            clients: problem.shards.len() as f64,
            records: records.unwrap_or(0) as f64,
            dimension: dimension as f64,
            omega: compressor.omega(),
            smoothness,
            clip: resolved.clip,
            epsilon,
            delta: resolved.delta,
        };
        Ok((numbers, rand_k))
    }
}

fn not_negative(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value >= 0.0 && value.is_finite() => Ok(value),
        _ => Err("expected a number of at least 0".to_string()),
    }
}

fn json(
    numbers: &Numbers,
    plans: &[Plan],
    tables: &Tables,
    advice: &Option<Advice>,
    remarks: &[String],
) -> Value {
    let algorithms: Vec<Value> = plans
        .iter()
        .map(|plan| {
            let shifted = plan.choice.estimator.is_some();
            json!({
                "algorithm": plan.name,
                "rounds": plan.choice.rounds,
                "batch": plan.choice.batch,
                "snapshot_probability": plan.choice.snapshot_probability,
                "step_size": plan.choice.step_size,
                "shift_step": shifted.then(|| shift_step(numbers.omega)),
                "sigma": { "theorem": plan.sigma, "exact": plan.exact_sigma },
                "epsilon_of_theorem_sigma": plan.epsilon_of_sigma,
                "amplified": plan.amplified,
                "utility_bound": { "theorem": plan.utility, "exact": plan.utility_exact },
                "communication": { "values": plan.values, "bits": 64.0 * plan.values },
                "gradient_complexity": gradients(plan),
                "broken_conditions": plan.broken,
            })
        })
        .collect();
    let first: Vec<Value> = tables
        .results
        .iter()
        .map(|row| {
            json!({
                "algorithm": row.algorithm, "privacy": row.privacy, "utility": row.utility,
                "communication": row.communication, "remark": row.remark,
            })
        })
        .collect();
    let second: Vec<Value> = tables
        .gradients
        .iter()
        .map(|(estimator, count)| {
            json!({ "algorithm": soteria(*estimator), "gradient_complexity": count })
        })
        .collect();
    json!({
        "clients": numbers.clients, "samples": numbers.records, "dimension": numbers.dimension,
        "omega": numbers.omega, "tau": numbers.tau(), "smoothness": numbers.smoothness,
        "clip": numbers.clip, "epsilon": numbers.epsilon, "delta": numbers.delta,
        "algorithms": algorithms, "table_1": first, "table_2": second,
        "recommended": advice.as_ref().map(|advice| advice.name),
        "reason": advice.as_ref().map(|advice| advice.reason.clone()),
        "remarks": remarks,
    })
}

fn soteria(estimator: Estimator) -> &'static str {
    match estimator {
        Estimator::Gd => "SoteriaFL-GD",
        Estimator::Sgd => "SoteriaFL-SGD",
        Estimator::Svrg => "SoteriaFL-SVRG",
        Estimator::Saga => "SoteriaFL-SAGA",
    }
}

fn text(numbers: &Numbers, plans: &[Plan], tables: &Tables, advice: &Option<Advice>) -> String {
    let Numbers {
        clients,
        records,
        dimension,
        omega,
        smoothness,
        clip,
        epsilon,
        delta,
    } = *numbers;
    let mut out = format!(
        "n = {clients} clients of m = {records} records, d = {dimension}, omega = {omega:.4}, L = {smoothness:.4}, G = {clip}, \
         epsilon = {epsilon}, delta = {delta}; tau = {:.4}, shift step {:.4}\n\n",
        numbers.tau(),
        shift_step(omega)
    );
    let short = |value: Option<f64>| value.map_or("-".to_string(), |value| format!("{value:.3e}"));
    let rows = plans.iter().map(|plan| {
        let up = |value| soteria_accountant::round_up(value, 3).to_string();
        vec![
            plan.name.to_string(),
            plan.choice.rounds.to_string(),
            plan.choice.batch.to_string(),
            format!("{:.4}", plan.choice.step_size),
            short(Some(plan.sigma)),
            plan.epsilon_of_sigma.map_or("-".to_string(), up),
            short(plan.exact_sigma) + if plan.amplified { " *" } else { "" },
            short(Some(plan.utility)),
            short(plan.utility_exact),
            short(Some(plan.values)),
            short(Some(64.0 * plan.values)),
            short(Some(gradients(plan))),
        ]
    });
    out += "The theory's choices\n";
    out += &table(
        &[
            "algorithm",
            "rounds",
            "batch",
            "step size",
            "sigma (theorem)",
            "its epsilon",
            "sigma (exact)",
            "utility bound",
            "with exact sigma",
            "values sent",
            "bits",
            "gradients",
        ],
        rows.collect(),
    );
    if plans.iter().any(|plan| plan.amplified) {
        out += "* amplified by random-k\n";
    }
    out += "\nTable 1 for these numbers (orders of magnitude: no constants, no G, no L)\n";
    let rows = tables.results.iter().map(|row| {
        vec![
            row.algorithm.to_string(),
            row.privacy.to_string(),
            short(Some(row.utility)),
            short(row.communication),
            row.remark.to_string(),
        ]
    });
    out += &table(
        &["algorithm", "privacy", "utility", "values sent", "remark"],
        rows.collect(),
    );
    out += "\nTable 2: gradient complexity\n";
    let rows = tables
        .gradients
        .iter()
        .map(|(estimator, count)| vec![soteria(*estimator).to_string(), short(Some(*count))]);
    out += &table(&["algorithm", "gradients of a client"], rows.collect());
    let mut broken: Vec<String> = Vec::new();
    for plan in plans {
        broken.extend(
            plan.broken
                .iter()
                .map(|condition| format!("  {}: {condition}\n", plan.name)),
        );
    }
    out += "\nConditions of the theorems that do not hold\n";
    out += &if broken.is_empty() {
        "  none\n".to_string()
    } else {
        broken.concat()
    };
    if let Some(advice) = advice {
        out += &format!("\nRecommended: {}. Why: {}.\n", advice.name, advice.reason);
        out += "The bounds hold for the worst problem with these numbers. In practice `soteria train` (preset = \"auto\") clips on the \
                coordinates that travel, which the theorems do not cover and the accountant does.\n";
    }
    out
}

fn table(columns: &[&str], rows: Vec<Vec<String>>) -> String {
    let columns = columns.iter().map(ToString::to_string).collect();
    Table { columns, rows }.to_text()
}
