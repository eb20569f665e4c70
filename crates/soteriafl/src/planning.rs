//! What the paper's theory chooses for a problem, and which noise a run of that choice really
//! needs.
//!
//! Theorems 1 and 2, Corollaries 1 to 3 and the theorem for CDP-SGD. An [`Inquiry`] is a
//! configuration with the numbers of its problem. Each [`Row`] is that configuration with another
//! estimator and shift, and with the rounds, batch and step size of the theory. Its exact noise is
//! the one that `soteria train` would use for it, computed by the same function
//! ([`accounting::level`]): clip and its scope, coordinates, amplification, adjacency and
//! accountant are those of the run.
//!
//! Bounds keep the constants of the proofs (`c = 48`, or 8 for CDP-SGD), so they are guarantees
//! where the conditions hold; [`Row::broken`] lists those that do not. Which algorithm does well is
//! not told by bounds for the worst problem: see [`trial`].

mod factor_table;
pub mod outlook;
pub mod persons;
pub mod trial;

use soteriafl_accountant::EstimatorKind;
use soteriafl_accountant::paper::{PaperFormula, PaperTheorem};
use soteriafl_core::compress::{Compressor, CompressorKind};
use soteriafl_core::protocol::{Schedule, shift_step};
use soteriafl_core::theory::{Choice, Problem as Numbers};

use crate::accounting::{self, Level, PrivacyError};
use crate::config::resolve::{Resolved, Shape};
use crate::config::{AccountantName, Auto, ClipScope, Config, ConfigError, Document, NoiseTarget};

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The configuration does not fit.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The theory asks for more rounds than anybody runs.
    #[error("{name}: the theory asks for {rounds:.1e} rounds")]
    Rounds {
        /// Which algorithm.
        name: &'static str,
        /// How many.
        rounds: f64,
    },
}

/// A configuration, and what the theory has to know about its problem.
pub struct Inquiry {
    /// The configuration, with an epsilon as its target.
    document: Document,
    /// What was set beside the configuration, as `KEY=VALUE`.
    set: Vec<String>,
    shape: Shape,
    /// The numbers of the theory, with the configuration's clip.
    pub numbers: Numbers,
    /// The configuration, nothing left to choose: what rows share stands here.
    pub terms: Resolved,
    /// What the reader should know about them.
    pub remarks: Vec<String>,
    step_size_from_data: bool,
}

/// What is known about the problem besides the configuration and its shape.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// Number of clients `n`.
    pub clients: f64,
    /// Smoothness `L`.
    pub smoothness: f64,
    /// Whether that was computed from the records.
    pub smoothness_from_data: bool,
    /// The compressor's omega, if it is not the configuration's compressor that counts. Its
    /// coordinates are unknown then, and no amplification is counted.
    pub omega: Option<f64>,
}

impl Inquiry {
    /// Takes `document` and `set` on top of it, as `soteria train --set` does, and gives it an
    /// epsilon as target if it has none.
    ///
    /// # Errors
    /// When the values do not go together.
    pub fn new(
        mut document: Document,
        mut set: Vec<String>,
        shape: Shape,
        known: &Known,
    ) -> Result<Self, PlanError> {
        let mut remarks = Vec::new();
        if known.omega.is_some() {
            set.push("algorithm.compressor=identity".to_string());
            remarks.push(
                "--omega says nothing of coordinates: no random-k amplification is counted"
                    .to_string(),
            );
        }
        if set.iter().any(|set| set.starts_with("privacy.epsilon=")) {
            document.remove("privacy.sigma");
        }
        for assignment in &set {
            document.set(assignment)?;
        }
        let config = Config::read(&document)?;
        if !matches!(config.noise_target, NoiseTarget::Epsilon(_)) {
            remarks.push("the configuration has no epsilon: planned for epsilon 1".to_string());
            document.remove("privacy.sigma");
            let mut target = vec!["privacy.epsilon=1".to_string()];
            if config.clip == Auto::Given(None) {
                target.push("privacy.clip=auto".to_string());
            }
            for assignment in target {
                document.set(&assignment)?;
                set.push(assignment);
            }
        }
        if config.accountant == AccountantName::Paper {
            remarks.push(
                "the configuration sets its noise by the paper's formula, which proves nothing: \
                 exact noise is by the accountant pld"
                    .to_string(),
            );
            let pld = "privacy.accountant=pld".to_string();
            document.set(&pld)?;
            set.push(pld);
        }
        let terms = terms(&document, &shape)?;
        let numbers = numbers(&terms, &shape, known)?;
        Ok(Self {
            document,
            set,
            shape,
            numbers,
            terms,
            remarks,
            step_size_from_data: known.smoothness_from_data,
        })
    }

    /// CDP-SGD and the four SoteriaFL algorithms, for a start that is `gap = f(x0) - f*` above the
    /// optimum.
    ///
    /// # Errors
    /// When the theory asks for more rounds than can be run.
    pub fn rows(&self, gap: f64) -> Result<Vec<Row>, PlanError> {
        let row = |(name, estimator)| self.row(name, estimator, gap);
        ALGORITHMS.into_iter().map(row).collect()
    }

    fn row(
        &self,
        name: &'static str,
        estimator: Option<EstimatorKind>,
        gap: f64,
    ) -> Result<Row, PlanError> {
        let mut set = self.algorithm(estimator);
        // The clip may depend on the estimator, but not on rounds and batch, which come later.
        let draft = self.run(&[set.clone(), vec!["algorithm.rounds=1".to_string()]].concat());
        let numbers = Numbers {
            clip: draft.as_ref().map_or(self.terms.clip, |run| run.clip),
            ..self.numbers
        };
        let choice = match estimator {
            None => numbers.choose_direct(gap),
            Some(estimator) => numbers.choose(estimator, gap),
        };
        if choice.rounds > MOST_ROUNDS {
            let rounds = choice.rounds;
            return Err(PlanError::Rounds { name, rounds });
        }
        set.extend(self.schedule(&choice));
        let sigma = numbers.paper_sigma(&choice);
        let run = self.run(&set);
        let noise = run.as_ref().map_err(ToString::to_string).map(|run| {
            let with_theorem = Resolved {
                noise_target: NoiseTarget::Sigma(sigma),
                ..run.clone()
            };
            (self.level(run), self.level(&with_theorem).ok().flatten())
        });
        let (exact, missing, with_theorem) = match noise {
            Ok((Ok(Some(level)), theorem)) => (Some(level), None, theorem),
            Ok((Ok(None), theorem)) => (None, Some(UNSOUND.to_string()), theorem),
            Ok((Err(error), theorem)) => (None, Some(error.to_string()), theorem),
            Err(error) => (None, Some(error), None),
        };
        let run = run.as_ref().unwrap_or(&self.terms);
        Ok(Row {
            name,
            choice,
            clip: numbers.clip,
            clip_scope: run.clip_scope,
            coordinates: match run.compressor {
                CompressorKind::RandK { .. } if run.shared_coordinates => Coordinates::Shared,
                CompressorKind::RandK { .. } => Coordinates::Own,
                _ => Coordinates::All,
            },
            sigma,
            epsilon_of_sigma: with_theorem.map(|level| level.epsilon),
            exact,
            missing,
            utility: numbers.utility(&choice, sigma),
            utility_exact: exact.map(|level| numbers.utility(&choice, level.sigma)),
            values: numbers.clients * numbers.dimension * choice.rounds / (1.0 + numbers.omega),
            broken: broken(&numbers, run, &choice, sigma),
            settings: [self.set.clone(), set].concat(),
        })
    }

    /// What makes the configuration run this algorithm; the rest of it stays.
    fn algorithm(&self, estimator: Option<EstimatorKind>) -> Vec<String> {
        // Direct compression has no estimator of its own in the tables: it is SGD's.
        let name = estimator.unwrap_or(EstimatorKind::Sgd).word();
        let shift = match estimator {
            None => "off".to_string(),
            Some(_) => shift_step(self.numbers.omega).to_string(),
        };
        let mut set = vec![
            format!("algorithm.estimator={name}"),
            format!("algorithm.shift={shift}"),
        ];
        if let CompressorKind::RandK { k } = self.terms.compressor {
            set.push("algorithm.compressor=rand-k".to_string());
            set.push(format!("algorithm.k={k}"));
            if self.document.has("algorithm.fraction") {
                set.push("algorithm.fraction=auto".to_string());
            }
        }
        set
    }

    /// The theory's rounds, batch and step size.
    fn schedule(&self, choice: &Choice) -> Vec<String> {
        let mut set = vec![format!("algorithm.rounds={}", choice.rounds)];
        if choice.estimator != Some(EstimatorKind::Gd) {
            set.push(format!("algorithm.batch={}", choice.batch));
        }
        if choice.estimator == Some(EstimatorKind::Svrg) {
            let probability = choice.snapshot_probability;
            set.push(format!("algorithm.snapshot_probability={probability}"));
        }
        set.push(format!("algorithm.step_size={}", choice.step_size));
        if self.step_size_from_data {
            set.push("algorithm.step_size_from_data=true".to_string());
        }
        set
    }

    /// The run that the configuration becomes with `set`.
    fn run(&self, set: &[String]) -> Result<Resolved, ConfigError> {
        let mut document = self.document.clone();
        for assignment in set {
            document.set(assignment)?;
        }
        let (resolved, _) = Config::read(&document)?.resolve(&self.shape)?;
        Ok(resolved)
    }

    fn level(&self, run: &Resolved) -> Result<Option<Level>, PrivacyError> {
        accounting::level(
            &run.specification(),
            self.shape.dimension,
            &self.shape.records,
        )
    }
}

/// Conditions of the theorems that do not hold for a run, in words.
fn broken(numbers: &Numbers, run: &Resolved, choice: &Choice, sigma: f64) -> Vec<String> {
    let mut broken = numbers.broken_conditions(choice);
    let random_k = matches!(run.compressor, CompressorKind::RandK { .. });
    let beyond = [
        (
            run.clip_scope == ClipScope::Selected,
            "the clip bounds the coordinates that travel, and the theorems need a bound on whole gradients",
        ),
        (
            run.clip_scope == ClipScope::Estimate,
            "the clip bounds each client's estimate, and the theorems need a bound on each record's gradient",
        ),
        (
            run.shared_coordinates && random_k,
            "all clients send the same coordinates, and the theorems need independent ones",
        ),
        (
            run.schedule != Schedule::Constant,
            "the step size changes over the rounds, and the theorems keep it",
        ),
        (
            run.momentum != 0.0,
            "the server has momentum, and the theorems have none",
        ),
    ];
    let beyond = beyond.iter().filter(|(applies, _)| *applies);
    broken.extend(beyond.map(|(_, condition)| (*condition).to_string()));
    let clip = numbers.clip;
    let formula = PaperFormula {
        theorem: match choice.estimator {
            None => PaperTheorem::Direct { clip },
            Some(EstimatorKind::Gd | EstimatorKind::Sgd) => PaperTheorem::sgd(clip),
            Some(_) => PaperTheorem::variance_reduced(clip),
        },
        records: numbers.records as u64,
        batch: choice.batch,
        rounds: choice.rounds as u64,
    };
    let premises = formula.violated_conditions(sigma, numbers.epsilon, numbers.delta);
    let premises = premises.iter().map(ToString::to_string);
    broken.extend(premises.map(|premise| format!("privacy: {}", shortened(&premise))));
    broken
}

/// One algorithm with all that can be said before it runs.
pub struct Row {
    /// As the paper writes it.
    pub name: &'static str,
    /// What the theory chooses.
    pub choice: Choice,
    /// The clip `G`.
    pub clip: f64,
    /// What it bounds.
    pub clip_scope: ClipScope,
    /// Which coordinates travel.
    pub coordinates: Coordinates,
    /// The theorem's noise.
    pub sigma: f64,
    /// What that noise really gives.
    pub epsilon_of_sigma: Option<f64>,
    /// The smallest noise that meets the target, and its cost.
    pub exact: Option<Level>,
    /// Why there is none.
    pub missing: Option<String>,
    /// The bound on the mean squared gradient norm with the theorem's noise.
    pub utility: f64,
    /// The same with the exact noise.
    pub utility_exact: Option<f64>,
    /// Values that all clients send together.
    pub values: f64,
    /// Conditions of the theorems that do not hold.
    pub broken: Vec<String>,
    /// What makes the configuration this row's run, as `soteria train --set` takes it.
    pub settings: Vec<String>,
}

/// Which coordinates travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coordinates {
    /// All.
    All,
    /// Some that each client draws itself: the only ones that can hide anything.
    Own,
    /// Some that everybody knows.
    Shared,
}

impl Coordinates {
    /// Their name.
    pub fn name(self) -> &'static str {
        match self {
            Coordinates::All => "all",
            Coordinates::Own => "own",
            Coordinates::Shared => "shared",
        }
    }
}

impl Row {
    /// Gradients that a client computes, as Table 2 counts: `b T`.
    pub fn gradients(&self) -> f64 {
        self.choice.batch * self.choice.rounds
    }
}

/// The rows; CDP-SGD compresses an SGD estimate directly.
const ALGORITHMS: [(&str, Option<EstimatorKind>); 5] = [
    ("CDP-SGD", None),
    ("SoteriaFL-GD", Some(EstimatorKind::Gd)),
    ("SoteriaFL-SGD", Some(EstimatorKind::Sgd)),
    ("SoteriaFL-SVRG", Some(EstimatorKind::Svrg)),
    ("SoteriaFL-SAGA", Some(EstimatorKind::Saga)),
];

/// More rounds are a mistake in the numbers.
const MOST_ROUNDS: f64 = 1e7;

const UNSOUND: &str = "no epsilon follows where records are not clipped one by one and drawn by \
Poisson coins, or where clients share the noise of one";

/// The configuration with nothing left to choose. Rows have rounds of their own, and with given
/// rounds messages have another size than with free ones (unless `values` limits them).
fn terms(document: &Document, shape: &Shape) -> Result<Resolved, ConfigError> {
    let mut document = document.clone();
    // What cannot be trained cannot be planned.
    let (resolved, _) = Config::read(&document)?.resolve(shape)?;
    if document.has("algorithm.values") {
        return Ok(resolved);
    }
    document.set(&format!("algorithm.rounds={}", resolved.rounds))?;
    let (resolved, _) = Config::read(&document)?.resolve(shape)?;
    Ok(resolved)
}

fn numbers(terms: &Resolved, shape: &Shape, known: &Known) -> Result<Numbers, ConfigError> {
    let omega = match known.omega {
        Some(omega) => omega,
        None => Compressor::new(terms.compressor, shape.dimension, terms.participation)
            .map_err(|error| ConfigError::conflict(format!("`algorithm.compressor`: {error}")))?
            .omega(),
    };
    Ok(Numbers {
        clients: known.clients,
        records: shape.records.iter().copied().min().unwrap_or(0) as f64,
        dimension: shape.dimension as f64,
        omega,
        smoothness: known.smoothness,
        clip: terms.clip,
        epsilon: match terms.noise_target {
            NoiseTarget::Epsilon(epsilon) => epsilon,
            NoiseTarget::Sigma(_) | NoiseTarget::None => f64::NAN,
        },
        delta: terms.delta,
    })
}

/// A sentence whose long numbers have four digits.
fn shortened(text: &str) -> String {
    let words = text.split(' ').map(|word| {
        let bare = word.trim_end_matches([',', ';', ':']);
        match bare.parse::<f64>() {
            Ok(value) if bare.len() > 6 => {
                let short = soteriafl_accountant::round_up(value, 4);
                format!("{short}{}", &word[bare.len()..])
            }
            _ => word.to_string(),
        }
    });
    words.collect::<Vec<_>>().join(" ")
}
