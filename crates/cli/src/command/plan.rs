//! `soteria plan`: what the paper's theory says for given numbers, what an exact accountant says
//! beside it, and which algorithm did best when tried on synthetic records of that shape.
//!
//! Everything is computed by [`planning`](soteriafl::planning); here numbers are gathered and
//! shown.

mod show;

use std::path::PathBuf;
use std::sync::Arc;

use soteriafl_data::{Dataset, FeatureKind, largest_singular_value};

use super::inputs::{self, DataDirectory};
use super::{Failure, Verbosity, print, print_json};
use soteriafl::config::resolve::Shape;
use soteriafl::config::{Config, Document, ModelKind};
use soteriafl::planning::outlook::Outlook;
use soteriafl::planning::persons::panels;
use soteriafl::planning::trial::{Advice, Form, Trial};
use soteriafl::planning::{Inquiry, Known, PlanError};
use soteriafl::problem::{Preparation, Problem, regularizer};
use soteriafl::record_shape::RecordShape;

/// What the paper's theory says for your numbers, beside exact noise
///
/// For CDP-SGD and every SoteriaFL algorithm: rounds, batch, step sizes, noise, a bound on utility,
/// communication and gradients; Tables 1 and 2 of the paper; and which conditions of the theorems
/// do not hold.
///
/// With --config the numbers come from a configuration and its data, the smoothness included; what
/// is given besides wins. A row is then the configuration with that estimator and shift and the
/// theory's rounds, batch and step size, and its exact noise is what `soteria train` uses for it.
/// Without one, exact noise is for records clipped to G, coordinates that each client draws itself,
/// and random-k amplification where it is proved.
///
/// Recommended is what did best in short runs on synthetic records of that shape: presets as
/// `soteria train` runs them, `auto` included. Your records are not used for that. Where nothing
/// could be tried, or nothing was learnt, nothing is recommended. The winner is then run without
/// noise and with more epsilon, records and clients: whether a useful model can be expected, and
/// what would buy a better one.
///
/// With --features, no data is needed: whether a useful model can be expected of so many clients,
/// records, features and classes at an epsilon.
///
/// Example: soteria plan --clients 10 --samples 300 --features 30 --classes 2 --epsilon 1
///
/// Example: soteria plan --clients 10 --samples 3256 --dimension 124 --epsilon 1 --delta 1e-3
/// --clip 0.5 --smoothness 1
/// --rand-k 0.05
#[derive(clap::Args, Debug)]
pub struct Options {
    /// Number of clients n
    #[arg(long, value_name = "N", value_parser = super::account::count)]
    clients: Option<u64>,
    /// Records per client m
    #[arg(long, value_name = "M", value_parser = super::account::count)]
    samples: Option<u64>,
    /// Parameters d
    #[arg(long, value_name = "D", value_parser = super::account::count)]
    dimension: Option<u64>,
    /// Features of a table that is not there yet: what can be expected of `soteria train` on it
    #[arg(
        long,
        value_name = "F",
        value_parser = super::account::count,
        conflicts_with_all = ["dimension", "config", "set", "omega"]
    )]
    features: Option<u64>,
    /// Its classes
    #[arg(
        long,
        value_name = "C",
        value_parser = clap::value_parser!(u64).range(2..=1000),
        default_value_t = 2,
        requires = "features"
    )]
    classes: u64,
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
    /// The compressor's omega; no amplification is counted with it
    #[arg(long, value_name = "W", value_parser = not_negative, conflicts_with = "rand_k")]
    omega: Option<f64>,
    /// Random-k with this fraction of the coordinates [default: 0.05]
    #[arg(long, value_name = "FRACTION", value_parser = super::account::fraction)]
    rand_k: Option<f64>,
    /// How far the start is above the optimum, f(x0) - f*
    #[arg(long, value_name = "GAP", value_parser = super::account::positive, default_value_t = 1.0)]
    gap: f64,
    /// Which data sets are neighbours, for the exact noise [default: the configuration's, or
    /// replace-one]
    #[arg(long, value_enum)]
    adjacency: Option<super::account::AdjacencyChoice>,
    /// Take the numbers from this configuration and its data
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Override a key of the configuration
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
    #[command(flatten)]
    data: DataDirectory,
    /// Print as JSON
    #[arg(long)]
    json: bool,
    /// Draw what more epsilon, records or clients would buy
    #[arg(long, visible_alias = "svg", value_name = "FILE.svg")]
    plot: Option<PathBuf>,
}

/// Runs the command.
///
/// # Errors
/// When a number is missing or makes no sense.
pub fn run(options: &Options, verbosity: Verbosity) -> Result<(), Failure> {
    let (inquiry, form) = options.inquiry()?;
    for remark in &inquiry.remarks {
        verbosity.say(remark);
    }
    let rows = inquiry.rows(options.gap)?;
    // The numbers of a problem that is not the configuration's have no run to price.
    let persons = match options.omega {
        None => inquiry.persons()?,
        Some(_) => Vec::new(),
    };
    let trial = form.clone().and_then(|form| Trial::run(&inquiry, form));
    let advice = match &trial {
        Ok(trial) => trial.advice(),
        Err(reason) => Advice {
            name: None,
            reason: reason.clone(),
        },
    };
    let outlook = match (&form, &trial, &advice.name) {
        (Ok(form), Ok(trial), Some(name)) => Outlook::of(&inquiry, *form, trial, name).ok(),
        _ => None,
    };
    if let Some(path) = &options.plot {
        let Some(outlook) = &outlook else {
            return Err(Failure::Usage {
                message: format!("there is nothing to draw: {}", advice.reason),
                hint: Some("leave --plot out".to_string()),
            });
        };
        let mut figure = outlook.figure();
        figure.panels.extend(panels(&persons));
        std::fs::write(path, figure.to_svg()).map_err(Failure::at(path))?;
        verbosity.say(format!("wrote {}", path.display()));
    }
    let shown = show::Shown {
        inquiry: &inquiry,
        is_a_run: options.is_configured() && !options.changes_the_problem(),
        rows: &rows,
        persons: &persons,
        tables: inquiry.numbers.tables(),
        trial: trial.as_ref().ok(),
        advice: &advice,
        outlook: outlook.as_ref(),
    };
    if options.json {
        print_json(&shown.json())
    } else {
        print(&shown.text())
    }
}

impl From<PlanError> for Failure {
    fn from(error: PlanError) -> Self {
        match error {
            PlanError::Config(error) => error.into(),
            other => Failure::Usage {
                message: other.to_string(),
                hint: Some("check --smoothness, --gap and --clip".to_string()),
            },
        }
    }
}

/// What records look like, or why nothing can be tried on synthetic ones.
type Tryable = Result<Form, String>;

impl Options {
    /// What is asked, and what it may be tried on.
    fn inquiry(&self) -> Result<(Inquiry, Tryable), Failure> {
        if self.is_configured() {
            self.for_configuration()
        } else if let Some(features) = self.features {
            self.for_table(size(features))
        } else {
            self.for_numbers()
        }
    }

    /// A plan for a table that is not there yet: what `auto` does with it.
    fn for_table(&self, features: usize) -> Result<(Inquiry, Tryable), Failure> {
        let missing = |key: &str| Failure::Usage {
            message: format!("{key} is missing"),
            hint: Some("--features needs --clients and --samples besides".to_string()),
        };
        let clients = size(self.clients.ok_or_else(|| missing("--clients"))?);
        let samples = size(self.samples.ok_or_else(|| missing("--samples"))?);
        let mut document = Document::default();
        document.set("data.source=clients")?;
        document.set(&format!("data.clients={clients}"))?;
        let set = self.assignments(&document);
        let mut asked = document.clone();
        for assignment in &set {
            asked.set(assignment)?;
        }
        let classes = size(self.classes);
        let preparation = Preparation::of(
            &Config::read(&asked)?,
            &RecordShape {
                features,
                names: None,
                schema: None,
                labels: (0..classes).map(|class| class.to_string()).collect(),
                targets: None,
            },
        )?;
        let shape = preparation.shape(vec![samples; clients.min(MOST_CLIENTS)]);
        let known = Known {
            clients: clients as f64,
            // Of a logistic or softmax loss on records of length one.
            smoothness: (self.smoothness).unwrap_or(if classes == 2 { 0.25 } else { 0.5 }),
            smoothness_from_data: false,
            omega: None,
        };
        let inquiry = Inquiry::new(document, set, shape, &known)?;
        Ok((inquiry, Ok(Form { features, classes })))
    }

    fn is_configured(&self) -> bool {
        self.config.is_some() || !self.set.is_empty()
    }

    /// Whether numbers are given that a configuration takes from its data.
    fn changes_the_problem(&self) -> bool {
        let sizes = [self.clients, self.samples, self.dimension];
        sizes.iter().any(Option::is_some) || self.omega.is_some()
    }

    /// What was given besides the configuration, in its words.
    fn assignments(&self, document: &Document) -> Vec<String> {
        let mut set = Vec::new();
        let numbers = [
            ("privacy.epsilon", self.epsilon),
            ("privacy.delta", self.delta),
            ("privacy.clip", self.clip),
            ("algorithm.fraction", self.rand_k),
        ];
        for (key, value) in numbers {
            set.extend(value.map(|value| format!("{key}={value}")));
        }
        if self.rand_k.is_some() {
            set.push("algorithm.compressor=rand-k".to_string());
            if document.has("algorithm.k") {
                set.push("algorithm.k=auto".to_string());
            }
        }
        set.extend(self.adjacency.map(|adjacency| {
            let name = soteriafl_accountant::Adjacency::from(adjacency).word();
            format!("privacy.adjacency={name}")
        }));
        set
    }

    /// A plan for numbers alone: logistic regression with that many parameters.
    fn for_numbers(&self) -> Result<(Inquiry, Tryable), Failure> {
        fn given<T>(value: Option<T>, key: &str) -> Result<T, Failure> {
            value.ok_or_else(|| Failure::Usage {
                message: format!("{key} is missing"),
                hint: Some("give it, or a configuration with --config".to_string()),
            })
        }
        let dimension = size(given(self.dimension, "--dimension")?);
        let smoothness = given(self.smoothness, "--smoothness")?;
        let clients = given(self.clients, "--clients")? as f64;
        let samples = size(given(self.samples, "--samples")?);
        given(self.clip, "--clip")?;
        given(self.epsilon, "--epsilon")?;
        given(self.delta, "--delta")?;
        let shape = Shape {
            dimension,
            // All clients are alike, and so is their noise.
            records: vec![samples],
            model: ModelKind::Logistic,
            smoothness: None,
            image: false,
            feature_map: FeatureKind::None,
            whiten: None,
            basis: None,
            whole: dimension,
        };
        let known = Known {
            clients,
            smoothness,
            smoothness_from_data: false,
            omega: self.omega,
        };
        let mut document = Document::default();
        // The paper's algorithms: records are clipped, clients draw their own coordinates.
        document.set("algorithm.preset=soteriafl-gd")?;
        // One parameter is a feature without a constant.
        document.set(&format!("model.intercept={}", dimension > 1))?;
        let set = self.assignments(&document);
        let form = match self.omega {
            Some(_) => Err(UNKNOWN_COMPRESSOR.to_string()),
            None => Ok(Form {
                features: dimension.saturating_sub(1).max(1),
                classes: 2,
            }),
        };
        Ok((Inquiry::new(document, set, shape, &known)?, form))
    }

    /// A plan for a configuration and its data.
    fn for_configuration(&self) -> Result<(Inquiry, Tryable), Failure> {
        let document = inputs::document(self.config.as_deref(), &self.set)?;
        let config = Config::read(&document)?;
        let directories = self.data.directories();
        let problem = Problem::load(&config, &directories)?;
        let mut shape = problem.shape(&config)?;
        let clients = self.clients.map_or(shape.records.len(), size);
        if let Some(samples) = self.samples {
            shape.records = vec![size(samples)];
        }
        // As many as there are to be, alike to those that there are.
        let known = shape.records.iter().copied().cycle();
        shape.records = known.take(clients.min(MOST_CLIENTS)).collect();
        let clients = clients as f64;
        let form = self.form(&config, &problem);
        if let Some(dimension) = self.dimension {
            shape.dimension = size(dimension);
        }
        let (smoothness, remark) = self.smoothness(&config, &problem)?;
        let known = Known {
            clients,
            smoothness,
            smoothness_from_data: remark.is_some(),
            omega: self.omega,
        };
        let set = self.assignments(&document);
        let mut inquiry = Inquiry::new(document, set, shape, &known)?;
        inquiry.remarks.extend(remark);
        if problem.data_dependent() {
            inquiry.remarks.push(SCALED.to_string());
        }
        if inquiry.terms.specification().ranges_from_records {
            inquiry.remarks.push(UNCONFIRMED.to_string());
        }
        Ok((inquiry, form))
    }

    fn form(&self, config: &Config, problem: &Problem) -> Tryable {
        if self.omega.is_some() {
            return Err(UNKNOWN_COMPRESSOR.to_string());
        }
        if self.dimension.is_some() {
            return Err("--dimension is not the configuration's".to_string());
        }
        if problem.data_dependent() {
            return Err(SCALED.to_string());
        }
        if config.source.is_images() {
            return Err("records are images, and synthetic records are not".to_string());
        }
        if problem.shape.targets.is_some() {
            return Err(
                "records have numbers to predict, and synthetic ones have classes".to_string(),
            );
        }
        Ok(Form {
            features: problem.shape.features,
            classes: problem.shape.labels.len(),
        })
    }

    /// The smoothness that was given, or that of the records with a remark.
    fn smoothness(
        &self,
        config: &Config,
        problem: &Problem,
    ) -> Result<(f64, Option<String>), Failure> {
        if let Some(given) = self.smoothness {
            return Ok((given, None));
        }
        let Some(curvature) = problem.preparation.model.curvature() else {
            return Err(Failure::Usage {
                message: "the smoothness of a network is not known".to_string(),
                hint: Some("give a value with --smoothness".to_string()),
            });
        };
        let kind = config.regularizer_for(
            problem.preparation.kind,
            problem.preparation.features.kind(),
        );
        let strongest = regularizer(kind, config.lambda).smoothness();
        let shards: Vec<&Dataset> = problem.shards.iter().map(Arc::as_ref).collect();
        let rows: usize = shards.iter().map(|shard| shard.rows()).sum();
        let mean = largest_singular_value(&shards).powi(2) * curvature / rows as f64;
        let norms = shards.iter().flat_map(|shard| shard.squared_norms());
        let each = norms.copied().fold(0.0, f64::max) * curvature;
        let remark = format!(
            "smoothness from the data: L = {:.4} of the mean loss, {:.4} of the worst record, \
             regularizer included; Assumption 1 asks for the latter, the authors' experiments use \
             the former, and so does this plan. Rounds, batches and step sizes that follow from \
             it depend on the records and are outside every privacy claim; give --smoothness to \
             avoid that",
            mean + strongest,
            each + strongest
        );
        Ok((mean + strongest, Some(remark)))
    }
}

/// Clients beyond these change nothing but what it takes to list them.
const MOST_CLIENTS: usize = 100_000;

const SCALED: &str = "features are scaled by constants computed from the records, so that no run \
of this configuration claims anything";

const UNCONFIRMED: &str = "the ranges and values of the schema were read from records, so that no \
run of this configuration claims anything and no epsilon below is one: look at every column, and \
once each says what you would know without these records, write ranges = \"public\" in it";

const UNKNOWN_COMPRESSOR: &str = "--omega does not say which compressor it is";

fn size(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

fn not_negative(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value >= 0.0 && value.is_finite() => Ok(value),
        _ => Err("expected a number of at least 0".to_string()),
    }
}
