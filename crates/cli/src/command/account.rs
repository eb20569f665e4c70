//! `soteria account` and `soteria calibrate`: what a run costs, and which noise meets a target.
//!
//! Both ask [`Question`]; nothing is computed here but the other accountant's opinion beside it and
//! the curves of `--plot`. Printed costs are rounded up, JSON has every digit.

use std::path::PathBuf;
use std::time::Instant;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde_json::json;
use soteriafl_accountant::{
    AccountError, Adjacency, ClipScope, Cost, Estimator, EstimatorKind, EventError, Mechanism,
    Method, Question, Release, ShiftMixture, round_up,
};

use super::digits::shortened;
use super::{Failure, Verbosity, print, print_json, table};
use soteriafl::output::write_whole;
use soteriafl::report::{Figure, Series};
use soteriafl::specification::neighbours;
use soteriafl::words::{counted, readable};

/// What noise of a given size costs
///
/// Describe the mechanism by its estimator, or give the shifts themselves with --pair.
///
/// Example: soteria account --estimator sgd --samples 6000 --batch 128 --clip 1 --sigma 0.01
/// --rounds 150 --delta 1e-3 --adjacency zero-out
#[derive(clap::Args, Debug)]
pub struct AccountOptions {
    #[command(flatten)]
    question: QuestionOptions,
    /// Standard deviation of the noise per coordinate of the message, in the unit of the clip
    #[arg(long, value_name = "S", value_parser = positive, allow_hyphen_values = true)]
    sigma: f64,
}

/// The smallest noise that meets a target
///
/// Takes the description of `soteria account`, and --epsilon instead of --sigma.
#[derive(clap::Args, Debug)]
pub struct CalibrateOptions {
    #[command(flatten)]
    question: QuestionOptions,
    /// The target
    #[arg(long, value_name = "E", value_parser = positive, allow_hyphen_values = true)]
    epsilon: f64,
}

const MECHANISM: [&str; 9] = [
    "estimator",
    "samples",
    "batch",
    "clip",
    "difference_clip",
    "memory",
    "rand_k",
    "clip_scope",
    "records_per_person",
];

#[derive(clap::Args, Debug)]
struct QuestionOptions {
    /// The gradient estimator
    #[arg(long, value_parser = estimator())]
    estimator: Option<EstimatorKind>,
    /// The client's number of records
    #[arg(long, value_name = "M", value_parser = count, allow_hyphen_values = true)]
    samples: Option<u64>,
    /// Expected number of records per round (sgd, svrg, saga, sag)
    #[arg(long, value_name = "B", value_parser = positive, allow_hyphen_values = true)]
    batch: Option<f64>,
    /// The bound on each record's gradient
    #[arg(long, value_name = "G", value_parser = positive, allow_hyphen_values = true)]
    clip: Option<f64>,
    /// The bound on each record's gradient difference (svrg, saga) [default: none, gradients are
    /// clipped only]
    #[arg(long, value_name = "C", value_parser = positive, allow_hyphen_values = true)]
    difference_clip: Option<f64>,
    /// The weight of the mean of all records' last gradients (sag) [default: 0.5]
    #[arg(long, value_name = "A", value_parser = fraction, allow_hyphen_values = true)]
    memory: Option<f64>,
    /// The fraction of coordinates that travel, drawn by the client afresh for every message
    #[arg(long, value_name = "FRACTION", value_parser = fraction, allow_hyphen_values = true)]
    rand_k: Option<f64>,
    /// What the clip bounds: the record's whole gradient, or its coordinates that travel
    #[arg(long, value_enum)]
    clip_scope: Option<ScopeChoice>,
    /// How many records of one person are meant: the cost is of all of them together
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    records_per_person: u32,
    /// Instead of an estimator: how far one record moves the message, with which probability
    #[arg(
        long,
        value_name = "SHIFT@PROBABILITY,...",
        value_parser = pair,
        allow_hyphen_values = true,
        conflicts_with_all = MECHANISM
    )]
    pair: Option<ShiftMixture>,
    /// Messages sent
    #[arg(long, value_name = "T", value_parser = count, allow_hyphen_values = true)]
    rounds: u64,
    /// The probability with which the bound may fail
    #[arg(
        long,
        value_name = "D",
        value_parser = delta,
        allow_hyphen_values = true,
        default_value = "1e-5"
    )]
    delta: f64,
    /// Which data sets are neighbours
    #[arg(long, value_enum, default_value_t = AdjacencyChoice::ReplaceOne)]
    adjacency: AdjacencyChoice,
    /// Which accountant decides
    #[arg(long, value_enum, default_value_t = AccountantChoice::Pld)]
    accountant: AccountantChoice,
    /// Whether random-k amplification is used where it is proved
    #[arg(long, value_enum, default_value_t = AmplificationChoice::Auto)]
    amplification: AmplificationChoice,
    /// Print as JSON
    #[arg(long)]
    json: bool,
    /// Draw epsilon against rounds and delta against epsilon
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
}

/// Estimators that the accountant's other options describe: a recursion has numbers of its own.
fn estimator() -> impl TypedValueParser<Value = EstimatorKind> {
    let known = EstimatorKind::ALL.iter();
    let described = known.filter(|kind| **kind != EstimatorKind::Recursive);
    PossibleValuesParser::new(described.map(|kind| kind.word()))
        .try_map(|word| word.parse::<EstimatorKind>())
}

#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum ScopeChoice {
    Record,
    Selected,
}

#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AdjacencyChoice {
    ReplaceOne,
    ZeroOut,
}

impl From<AdjacencyChoice> for Adjacency {
    fn from(choice: AdjacencyChoice) -> Self {
        match choice {
            AdjacencyChoice::ReplaceOne => Adjacency::ReplaceOne,
            AdjacencyChoice::ZeroOut => Adjacency::ZeroOut,
        }
    }
}

#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum AccountantChoice {
    Pld,
    Rdp,
}

#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum AmplificationChoice {
    Auto,
    Off,
}

/// Runs `soteria account`.
///
/// # Errors
/// When the description makes no sense or the accountant cannot vouch.
pub fn account(options: &AccountOptions, verbosity: Verbosity) -> Result<(), Failure> {
    let start = Instant::now();
    let question = options.question.question(verbosity)?;
    let cost = question.clone().compared().cost(options.sigma)?;
    options.question.answer(&question, cost, start, verbosity)
}

/// Runs `soteria calibrate`.
///
/// # Errors
/// As [`account`], or when no noise reaches the target.
pub fn calibrate(options: &CalibrateOptions, verbosity: Verbosity) -> Result<(), Failure> {
    let start = Instant::now();
    let question = options.question.question(verbosity)?;
    let cost = question.clone().compared().calibrate(options.epsilon)?;
    options.question.answer(&question, cost, start, verbosity)
}

impl QuestionOptions {
    fn question(&self, verbosity: Verbosity) -> Result<Question, Failure> {
        let release = match &self.pair {
            Some(shifts) => Release::from(shifts.clone()),
            None => {
                let mechanism = self.mechanism(verbosity)?;
                mechanism.release_of_person(self.records_per_person)?
            }
        };
        if release.shifts.largest() == 0.0 {
            return Err(Failure::usage(
                "every shift is zero: the message does not depend on the record",
            ));
        }
        let method = match self.accountant {
            AccountantChoice::Pld => Method::Pld,
            AccountantChoice::Rdp => Method::Rdp,
        };
        let question = Question::new(release, self.rounds, self.delta, self.adjacency.into());
        let amplification = self.amplification == AmplificationChoice::Auto;
        Ok(question.by(method).amplification(amplification))
    }

    fn mechanism(&self, verbosity: Verbosity) -> Result<Mechanism, Failure> {
        let Some(estimator) = self.estimator else {
            return Err(missing(
                "--estimator",
                "gd, sgd, svrg or saga; or give the shifts with --pair",
            ));
        };
        let Some(records) = self.samples else {
            return Err(missing("--samples", "the client's number of records"));
        };
        let Some(clip) = self.clip else {
            return Err(missing("--clip", "the bound on each record's gradient"));
        };
        let batch = match (estimator, self.batch) {
            (EstimatorKind::Gd, given) => {
                if given.is_some() {
                    verbosity.warn("`--batch` is ignored: gd uses every record in every round");
                }
                records as f64
            }
            (_, None) => {
                return Err(missing(
                    "--batch",
                    "the expected number of records per round",
                ));
            }
            (_, Some(batch)) if batch > records as f64 => {
                return Err(Failure::usage(format!(
                    "`--batch` is {}, but there are only {}",
                    readable(batch),
                    counted(records, "record")
                )));
            }
            (_, Some(batch)) => batch,
        };
        let difference_clip = self.difference_clip;
        let estimator = match (Estimator::new(estimator, difference_clip), self.memory) {
            (Estimator::Sag { .. }, Some(memory)) => Estimator::Sag { memory },
            (estimator, _) => estimator,
        };
        if self.memory.is_some() && !matches!(estimator, Estimator::Sag { .. }) {
            verbosity.warn("`--memory` is ignored: only sag has it");
        }
        if difference_clip.is_some() && !estimator.has_two_terms() {
            verbosity.warn("`--difference-clip` is ignored: only svrg and saga have it");
        }
        let clip_scope = match self.clip_scope {
            Some(ScopeChoice::Selected) => ClipScope::Selected,
            Some(ScopeChoice::Record) | None => ClipScope::Record,
        };
        Ok(Mechanism {
            estimator,
            records,
            batch,
            clip,
            clip_scope,
            rand_k: self.rand_k,
        })
    }

    fn answer(
        &self,
        question: &Question,
        cost: Cost,
        start: Instant,
        verbosity: Verbosity,
    ) -> Result<(), Failure> {
        if !(cost.epsilon.is_finite() && cost.epsilon_unamplified.is_finite()) {
            return Err(Failure::usage(format!(
                "no finite epsilon is proved at delta {}",
                readable(self.delta)
            )));
        }
        let seconds = start.elapsed().as_secs_f64();
        if let Some(path) = &self.plot {
            let drawing = plot(question, cost)?;
            write_whole(path, drawing.as_bytes()).map_err(Failure::at(path))?;
            verbosity.say(format!("wrote {}", path.display()));
        }
        if cost.epsilon == 0.0 {
            verbosity.warn(format!(
                "epsilon is 0: all that this noise does not hide happens with a probability below \
                 delta = {}",
                readable(self.delta)
            ));
        }
        let (accountant, adjacency) = (cost.method.word(), cost.adjacency.word());
        let whose = neighbours(cost.adjacency, self.records_per_person);
        if self.json {
            let mut answer = json!({
                "epsilon": cost.epsilon,
                "delta": self.delta,
                "sigma": cost.sigma,
                "rounds": self.rounds,
                "adjacency": adjacency,
                "accountant": accountant,
                "epsilon_rdp": cost.epsilon_rdp,
                "epsilon_pld": cost.epsilon_pld,
                "epsilon_unamplified": cost.epsilon_unamplified,
                "amplified": cost.amplified(),
                "seconds": seconds,
            });
            if self.records_per_person > 1 {
                answer["records_per_person"] = self.records_per_person.into();
            }
            return print_json(&answer);
        }
        let shown = |epsilon: f64| readable(round_up(epsilon, 4));
        let optional = |epsilon: Option<f64>| epsilon.map_or("none".to_owned(), shown);
        let amplified = if cost.amplified() {
            ", amplified by random-k"
        } else {
            ""
        };
        let mut lines = vec![
            (
                "epsilon",
                format!(
                    "{} at delta {}, {whose} ({accountant}{amplified})",
                    shown(cost.epsilon),
                    readable(self.delta)
                ),
            ),
            ("sigma", readable(round_up(cost.sigma, 6))),
            ("rounds", self.rounds.to_string()),
            ("by pld", optional(cost.epsilon_pld)),
            ("by rdp", optional(cost.epsilon_rdp)),
        ];
        if question.release().random_k.is_some() {
            lines.push(("unamplified", shown(cost.epsilon_unamplified)));
        }
        lines.push(("time", format!("{:.1} ms", 1e3 * seconds)));
        print(&table(12, &lines))
    }
}

/// Epsilon against rounds and delta against epsilon, with and without amplification where it
/// applies.
fn plot(question: &Question, cost: Cost) -> Result<String, Failure> {
    let (last, sigma) = (cost.rounds, cost.sigma);
    let mut marks: Vec<u64> = (1..=32)
        .map(|part| (last as f64 * f64::from(part) / 32.0).ceil() as u64)
        .collect();
    marks.insert(0, 1);
    marks.dedup();
    let by_round = curves(
        cost,
        marks.into_iter().map(|rounds| {
            let cost = question.clone().rounds(rounds).cost(sigma)?;
            Ok((cost, move |epsilon| (rounds as f64, epsilon)))
        }),
    )?;
    // Two decades around the delta that was asked for, as far as there are deltas.
    let deltas = (-16..=8).map(|eighth| cost.delta * 10f64.powf(f64::from(eighth) / 8.0));
    let deltas =
        deltas.filter(|delta| *delta < 1.0 && *delta >= soteriafl_accountant::SMALLEST_DELTA);
    let by_delta = curves(
        cost,
        deltas.map(|delta| {
            let cost = question.clone().delta(delta).cost(sigma)?;
            Ok((cost, move |epsilon| (epsilon, delta)))
        }),
    )?;
    let title = format!(
        "sigma {}, {}, delta {}",
        readable(round_up(sigma, 4)),
        counted(last, "round"),
        readable(cost.delta)
    );
    let mut figure = Figure::epsilon_by_round(title, by_round);
    figure
        .panels
        .extend(Figure::delta_by_epsilon("", by_delta).panels);
    Ok(figure.to_svg())
}

/// The claimed curve and, where amplification applies, the one without it.
fn curves<P: Fn(f64) -> (f64, f64)>(
    at_end: Cost,
    costs: impl Iterator<Item = Result<(Cost, P), AccountError>>,
) -> Result<Vec<Series>, Failure> {
    let (mut claimed, mut unamplified) = (Vec::new(), Vec::new());
    for cost in costs {
        let (cost, point) = cost?;
        claimed.push(point(cost.epsilon));
        unamplified.push(point(cost.epsilon_unamplified));
    }
    if !at_end.amplified() {
        return Ok(vec![Series::new("", claimed)]);
    }
    let reference = Series {
        dashed: true,
        ..Series::new("without amplification", unamplified)
    };
    Ok(vec![
        reference,
        Series::new("amplified by random-k", claimed),
    ])
}

impl From<AccountError> for Failure {
    fn from(error: AccountError) -> Self {
        match error {
            // The question is a fair one; the numerics have no answer.
            AccountError::Unresolved { .. } => Failure::Failed(error.to_string()),
            other => Failure::usage(shortened(&other.to_string())),
        }
    }
}

impl From<EventError> for Failure {
    fn from(error: EventError) -> Self {
        Failure::usage(shortened(&error.to_string()))
    }
}

fn missing(flag: &str, meaning: &str) -> Failure {
    Failure::usage(format!("`{flag}` is missing: {meaning}"))
}

fn number(text: &str) -> Result<f64, String> {
    text.trim()
        .parse()
        .map_err(|_| "expected a number".to_owned())
}

pub(super) fn positive(text: &str) -> Result<f64, String> {
    let value = number(text)?;
    if value.is_finite() && value > 0.0 {
        Ok(value)
    } else {
        Err("expected a finite number above 0".to_owned())
    }
}

pub(super) fn fraction(text: &str) -> Result<f64, String> {
    number(text)?;
    positive(text)
        .ok()
        .filter(|value| *value <= 1.0)
        .ok_or("expected a number in (0, 1]".to_owned())
}

pub(super) fn delta(text: &str) -> Result<f64, String> {
    number(text)?;
    positive(text)
        .ok()
        .filter(|value| *value < 1.0)
        .ok_or("expected a number in (0, 1)".to_owned())
}

pub(super) fn count(text: &str) -> Result<u64, String> {
    text.parse()
        .ok()
        .filter(|count| *count > 0)
        .ok_or("expected a whole number of at least 1".to_owned())
}

fn pair(text: &str) -> Result<ShiftMixture, String> {
    let mut shifts = Vec::new();
    let mut probabilities = Vec::new();
    for part in text.split(',') {
        let Some((shift, probability)) = part.split_once('@') else {
            return Err(format!("expected SHIFT@PROBABILITY, found `{part}`"));
        };
        for (text, values) in [(shift, &mut shifts), (probability, &mut probabilities)] {
            values.push(
                number(text)
                    .map_err(|_| format!("expected a number in `{part}`, found `{text}`"))?,
            );
        }
    }
    ShiftMixture::new(&shifts, &probabilities).map_err(|error| error.to_string())
}
