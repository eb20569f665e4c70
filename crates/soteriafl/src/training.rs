//! A private training run in a few lines: say what shall run, and it is calibrated or refused.
//!
//! ```
//! use soteriafl::core::data::{Partition, Synthetic};
//! use soteriafl::core::objective::Logistic;
//! use soteriafl::{Adjacency, ClipScope, CompressorKind, Estimator, Target, Training};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let source: Synthetic = "8000x20".parse()?;
//! let (train, test) = (source.train(7)?, source.test(7)?);
//! let run = Training::new(Logistic::new(20), Partition::Iid.split(&train, 4, 7)?)
//!     .estimator(Estimator::Gd)
//!     .compress(CompressorKind::RandK { k: 5 })
//!     .shifted()
//!     .clip(0.25, ClipScope::Selected)
//!     .private(Target::epsilon(1.0, 1e-5, Adjacency::ReplaceOne))
//!     .rounds(100)
//!     .step_size(2.0)
//!     .seed(7)
//!     .build()?;
//! let result = run.simulate(&test)?;
//! assert!(run.claim().is_proved() && run.epsilon() <= Some(1.0));
//! assert!(result.test_accuracy > Some(0.8));
//! # Ok(())
//! # }
//! ```
//!
//! [`Training::build`] computes every client's noise from its own number of records and checks what
//! can be checked before anything runs. What it returns, a [`Run`], holds the plans of clients and
//! server, derived from one [`Specification`]: plans that disagree cannot be built. A claim speaks
//! about the messages, for records that were prepared by public constants alone: whoever scales
//! features by numbers computed from the records, or chooses settings by looking at results, has to
//! withdraw it ([`Training::prepared_by_records`]).

mod run;

use std::sync::Arc;

use soteriafl_accountant::{Adjacency, ClipScope, Estimator};
use soteriafl_core::compress::{CompressError, Compressor, CompressorKind, DownlinkKind};
use soteriafl_core::data::Dataset;
use soteriafl_core::objective::{Objective, Regularizer};
use soteriafl_core::protocol::{ClientError, Round, Schedule, shift_step};
use soteriafl_core::simulate::SimulationError;

use crate::accounting::{Privacy, PrivacyError};
use crate::specification::{Clip, Coordinates, NoiseName, NoiseTarget, Output, Specification};

pub use run::{MeasuredRound, Run, TrainingResult};

/// What the noise must achieve.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Target {
    noise: NoiseTarget,
    delta: f64,
    adjacency: Adjacency,
}

impl Target {
    /// Noise for this epsilon at this delta, for these neighbours.
    pub fn epsilon(epsilon: f64, delta: f64, adjacency: Adjacency) -> Self {
        Self {
            noise: NoiseTarget::Epsilon(epsilon),
            delta,
            adjacency,
        }
    }

    /// Noise of this standard deviation; what it costs is computed.
    pub fn sigma(sigma: f64, delta: f64, adjacency: Adjacency) -> Self {
        Self {
            noise: NoiseTarget::Sigma(sigma),
            delta,
            adjacency,
        }
    }
}

/// Why a run cannot be built or simulated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainingError {
    /// Nobody takes part.
    #[error("there are no clients: expected at least one set of records")]
    NoClients,
    /// A number makes no sense.
    #[error("{what} must be {expected}, found {found}")]
    Number {
        /// Which one.
        what: &'static str,
        /// What it may be.
        expected: &'static str,
        /// What it is.
        found: f64,
    },
    /// The estimator draws batches and does not know how large.
    #[error("{0} draws batches: say how many records by `batch`")]
    NoBatch(&'static str),
    /// Full gradients are charged for all records.
    #[error("gd computes gradients of all records: leave `batch` out, or choose sgd")]
    GdBatch,
    /// Noise hides no more than what is bounded.
    #[error("noise hides no more than what is bounded: give a bound on records by `clip`")]
    NoClip,
    /// Records, model and start do not fit each other.
    #[error("{0}")]
    Unfit(String),
    /// The compressor does not fit the model.
    #[error("the compressor: {0}")]
    Compressor(#[from] CompressError),
    /// The accountant does not vouch for it.
    #[error(transparent)]
    Privacy(#[from] PrivacyError),
    /// A client cannot run it.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The objective failed.
    #[error(transparent)]
    Simulation(#[from] SimulationError),
    /// The computation left the range of numbers.
    #[error("the run diverged after {0} rounds: try a smaller step size or shift")]
    Diverged(Round),
}

/// A run being described. Without further words: full gradients, nothing compressed, no shift, no
/// clip and no noise, 100 rounds of step size 1, from zero.
#[derive(Clone)]
pub struct Training {
    objective: Arc<dyn Objective>,
    shards: Vec<Arc<Dataset>>,
    run: Specification,
    shifted: bool,
    prepared_by_records: bool,
    start: Option<Vec<f32>>,
    evaluate_every: Round,
    threads: Option<usize>,
}

impl Training {
    /// Of a model over the records of each client.
    pub fn new(
        objective: impl Objective + 'static,
        shards: impl IntoIterator<Item = Dataset>,
    ) -> Self {
        Self {
            objective: Arc::new(objective),
            shards: shards.into_iter().map(Arc::new).collect(),
            run: Specification::default(),
            shifted: false,
            prepared_by_records: false,
            start: None,
            evaluate_every: 0,
            threads: None,
        }
    }

    /// How clients estimate their gradients.
    #[must_use]
    pub fn estimator(mut self, estimator: Estimator) -> Self {
        self.run.estimator = estimator;
        self
    }

    /// The expected number of records of an estimate (SGD, SVRG, SAGA).
    #[must_use]
    pub fn batch(mut self, batch: f64) -> Self {
        self.run.batch = Some(batch);
        self
    }

    /// What travels.
    #[must_use]
    pub fn compress(mut self, compressor: CompressorKind) -> Self {
        self.run.compressor = compressor;
        self
    }

    /// What the server sends back, instead of every average in full.
    #[must_use]
    pub fn compress_downlink(mut self, downlink: DownlinkKind) -> Self {
        self.run.downlink = Some(downlink);
        self
    }

    /// The same coordinates at all clients, by the public seed, instead of each client's own.
    #[must_use]
    pub fn shared_coordinates(mut self) -> Self {
        self.run.coordinates = Coordinates::Shared;
        self
    }

    /// The probability with which a client takes part in a round.
    #[must_use]
    pub fn participation(mut self, probability: f64) -> Self {
        self.run.participation = probability;
        self
    }

    /// Sends differences to a shift, with the paper's step for the compressor.
    #[must_use]
    pub fn shifted(mut self) -> Self {
        self.shifted = true;
        self
    }

    /// Sends differences to a shift that moves by this step.
    #[must_use]
    pub fn shift_step(mut self, step: f64) -> Self {
        (self.shifted, self.run.shift) = (false, Some(step));
        self
    }

    /// Bounds what each record contributes.
    #[must_use]
    pub fn clip(mut self, bound: f64, scope: ClipScope) -> Self {
        self.run.clip = Some(Clip { bound, scope });
        self
    }

    /// Adds noise.
    #[must_use]
    pub fn private(mut self, target: Target) -> Self {
        self.run.target = target.noise;
        (self.run.delta, self.run.adjacency) = (target.delta, target.adjacency);
        self
    }

    /// Speaks of persons instead of records: of each, a client has so many at most. The library
    /// does not know who is who; that no client has more is for the caller to see to.
    #[must_use]
    pub fn records_per_person(mut self, most: u32) -> Self {
        self.run.records_per_person = most;
        self
    }

    /// Draws exact integer noise, with the law that the theorems speak about, instead of floating
    /// point.
    #[must_use]
    pub fn secure_noise(mut self) -> Self {
        self.run.noise = NoiseName::Secure;
        self
    }

    /// Says that features were scaled by numbers computed from the records, or settings chosen by
    /// looking at results: nothing is claimed then.
    #[must_use]
    pub fn prepared_by_records(mut self) -> Self {
        self.prepared_by_records = true;
        self
    }

    /// Messages of each client.
    #[must_use]
    pub fn rounds(mut self, rounds: Round) -> Self {
        self.run.rounds = rounds;
        self
    }

    /// Returns the model of a random round, drawn from the seed, instead of the last one; the run
    /// ends there.
    #[must_use]
    pub fn random_iterate(mut self) -> Self {
        self.run.output = Output::Random;
        self
    }

    /// The server's step.
    #[must_use]
    pub fn step_size(mut self, step_size: f64) -> Self {
        self.run.step_size = step_size;
        self
    }

    /// How the step changes over the rounds.
    #[must_use]
    pub fn schedule(mut self, schedule: Schedule) -> Self {
        self.run.schedule = schedule;
        self
    }

    /// The server's momentum.
    #[must_use]
    pub fn momentum(mut self, momentum: f64) -> Self {
        self.run.momentum = momentum;
        self
    }

    /// The longest step of the server, as a norm; any unless given.
    #[must_use]
    pub fn step_cap(mut self, longest: f64) -> Self {
        self.run.step_cap = Some(longest);
        self
    }

    /// A public term of the objective; the server adds its gradient, exactly and for free.
    #[must_use]
    pub fn regularizer(mut self, regularizer: Regularizer) -> Self {
        self.run.regularizer = regularizer;
        self
    }

    /// The model to start from; zero unless given.
    #[must_use]
    pub fn start(mut self, model: Vec<f32>) -> Self {
        self.start = Some(model);
        self
    }

    /// The seed of everything random in a simulation. Whoever knows it knows the noise.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.run.seed = seed;
        self
    }

    /// Measures every so many rounds; only at the start and the end unless given.
    #[must_use]
    pub fn evaluate_every(mut self, rounds: Round) -> Self {
        self.evaluate_every = rounds;
        self
    }

    /// How many threads compute; all cores unless given. The result does not depend on it.
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = Some(threads);
        self
    }

    /// Checks everything and calibrates every client's noise.
    ///
    /// # Errors
    /// When something is missing, does not fit, or cannot be vouched for.
    pub fn build(mut self) -> Result<Run, TrainingError> {
        self.check_numbers()?;
        let dimension = self.objective.dimension();
        let compressor = Compressor::new(self.run.compressor, dimension, self.run.participation)?;
        if self.shifted {
            self.run.shift = Some(shift_step(compressor.omega()));
        }
        for (client, shard) in self.shards.iter().enumerate() {
            let fits = self.objective.check(shard);
            fits.map_err(|reason| TrainingError::Unfit(format!("client {client}: {reason}")))?;
        }
        let start = self.start.unwrap_or_else(|| vec![0.0; dimension]);
        if start.len() != dimension {
            let found = start.len();
            return Err(TrainingError::Unfit(format!(
                "the start has {found} numbers, the model {dimension} parameters"
            )));
        }
        let records: Vec<usize> = self.shards.iter().map(|shard| shard.records()).collect();
        let privacy = Privacy::calibrate(&self.run, dimension, &records, self.prepared_by_records)?;
        let total: usize = records.iter().sum();
        let weights = records.iter().map(|&rows| rows as f64 / total as f64);
        let run = Run {
            plan: Arc::new(self.run.client_plan(&self.objective)?),
            weights: weights.collect(),
            shards: self.shards,
            specification: self.run,
            privacy,
            start,
            evaluate_every: self.evaluate_every,
            threads: self.threads,
        };
        // Whatever a client refuses is found now, not when the run begins.
        run.clients()?;
        Ok(run)
    }

    fn check_numbers(&self) -> Result<(), TrainingError> {
        let run = &self.run;
        let check = |what, expected, found: f64, holds: bool| match holds && found.is_finite() {
            true => Ok(()),
            false => Err(TrainingError::Number {
                what,
                expected,
                found,
            }),
        };
        if self.shards.is_empty() {
            return Err(TrainingError::NoClients);
        }
        // Recursive estimates may be of all records.
        let draws = !matches!(run.estimator, Estimator::Gd | Estimator::Recursive(_));
        match run.batch {
            Some(_) if run.estimator == Estimator::Gd => return Err(TrainingError::GdBatch),
            None if draws => return Err(TrainingError::NoBatch(run.estimator.kind().word())),
            Some(batch) => {
                let smallest = self.shards.iter().map(|shard| shard.records()).min();
                let expected = "above 0, and at most the records of the smallest client";
                let holds = batch > 0.0 && batch <= smallest.unwrap_or(0) as f64;
                check("the batch", expected, batch, holds)?;
            }
            None => {}
        }
        match (run.clip, run.target) {
            (None, NoiseTarget::Epsilon(_) | NoiseTarget::Sigma(_)) => {
                return Err(TrainingError::NoClip);
            }
            (Some(clip), _) => check("the clip", "above 0", clip.bound, clip.bound > 0.0)?,
            (None, NoiseTarget::None) => {}
        }
        if let NoiseTarget::Epsilon(value) | NoiseTarget::Sigma(value) = run.target {
            check("epsilon or sigma", "above 0", value, value > 0.0)?;
        }
        if let Estimator::Svrg {
            snapshot_probability,
            ..
        } = run.estimator
        {
            let holds = snapshot_probability > 0.0 && snapshot_probability <= 1.0;
            let what = "the snapshot probability";
            check(what, "in (0, 1]", snapshot_probability, holds)?;
        }
        check(
            "rounds",
            "at least 1",
            f64::from(run.rounds),
            run.rounds > 0,
        )?;
        check(
            "the step size",
            "above 0",
            run.step_size,
            run.step_size > 0.0,
        )?;
        let momentum = run.momentum;
        check(
            "the momentum",
            "in [0, 1)",
            momentum,
            (0.0..1.0).contains(&momentum),
        )?;
        let recursive = matches!(run.estimator, Estimator::Recursive(_));
        let expected = "0 with recursive estimates, whose server has one of its own";
        check(
            "the momentum",
            expected,
            momentum,
            !recursive || momentum == 0.0,
        )?;
        let cap = run.step_cap.unwrap_or(1.0);
        check("the longest step", "above 0", cap, cap > 0.0)?;
        let shift = run.shift.unwrap_or(0.0);
        check("the shift step", "at least 0", shift, shift >= 0.0)
    }
}
