//! What a run does to its records and what it claims for that: the one description from which the
//! accountant's mechanism ([`accounting`](crate::accounting)) and the plans of clients and server
//! ([`run`](crate::run)) are derived.
//!
//! Whoever sets up a run fills one of these: a configuration file
//! ([`Resolved`](crate::config::resolve::Resolved)), or a program that uses the library
//! ([`Training`](crate::training::Training)). It says nothing about where records come from, what
//! the model is or which files are written.

use std::sync::Arc;

use soteriafl_accountant::{Adjacency, ClipScope, Estimator, words};
use soteriafl_core::compress::{CompressError, Compressor, CompressorKind, Downlink, DownlinkKind};
use soteriafl_core::estimator::Clipping;
use soteriafl_core::gossip::{GossipPlan, Topology, Transport};
use soteriafl_core::objective::{Objective, Regularizer};
use soteriafl_core::privacy::Noise;
use soteriafl_core::protocol::{ClientPlan, Schedule, ServerPlan};
use soteriafl_core::random::PublicSeed;
use soteriafl_core::sampling::{Coins, Sampling};

/// One run, with nothing left to choose.
#[derive(Clone, Debug, PartialEq)]
pub struct Specification {
    /// How clients estimate their gradients, and the clip of differences.
    pub estimator: Estimator,
    /// The expected number of records of an estimate; `None`: all.
    pub batch: Option<f64>,
    /// How a batch is drawn.
    pub batches: Batches,
    /// The bound on each record; `None` only without noise.
    pub clip: Option<Clip>,
    /// What travels.
    pub compressor: CompressorKind,
    /// How the way down is compressed; `None`: every average is sent in full.
    pub downlink: Option<DownlinkKind>,
    /// The probability with which a client takes part in a round.
    pub participation: f64,
    /// Who chooses the coordinates that travel.
    pub coordinates: Coordinates,
    /// What clients tell each other where there is no server; `None`: there is one.
    pub gossip: Option<Gossip>,
    /// Shift step; `None`: direct compression.
    pub shift: Option<f64>,
    /// The share of the budget (of `mu^2`) that a release of second moments before the first round
    /// gets; `None`: there is none.
    pub moments: Option<f64>,
    /// The share of the budget that two releases get by which ranges of columns are estimated;
    /// `None`: all ranges are known.
    pub ranges: Option<f64>,
    /// What the noise is set by.
    pub target: NoiseTarget,
    /// The probability that the bound may miss.
    pub delta: f64,
    /// Which data sets are neighbours.
    pub adjacency: Adjacency,
    /// How many records of one person the claim covers at each client: neighbours differ in all of
    /// them.
    pub records_per_person: u32,
    /// Who computes noise and cost.
    pub accountant: AccountantName,
    /// Whether the paper's formula is that of its theorem for direct compression.
    pub direct_theorem: bool,
    /// Whether random-k amplification may be counted where it is proved.
    pub amplification: bool,
    /// Who sees the messages.
    pub aggregation: Aggregation,
    /// How noise is drawn.
    pub noise: NoiseName,
    /// Where the step size comes from.
    pub step_size_origin: StepSizeOrigin,
    /// Whether the ranges of the records' schema were read from records.
    pub ranges_from_records: bool,
    /// The server's step.
    pub step_size: f64,
    /// How it changes over the rounds.
    pub schedule: Schedule,
    /// The server's momentum.
    pub momentum: f64,
    /// The longest step of the server, as a norm.
    pub step_cap: Option<f64>,
    /// The public term of the objective.
    pub regularizer: Regularizer,
    /// Whether clients add it, as in the paper, instead of the server.
    pub regularizer_at_client: bool,
    /// Messages of each client.
    pub rounds: u32,
    /// Which model is the result.
    pub output: Output,
    /// Seed of all that is public, and in simulations of everything.
    pub seed: u64,
}

/// What clients release once, before the first round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preliminary {
    /// In which power of two the values of columns lie whose ranges nobody knows.
    Magnitudes,
    /// In which part of what that has given.
    Parts,
    /// Second moments of their records, which whiten all records.
    Moments,
}

/// The bound on what a record contributes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Clip {
    /// The norm.
    pub bound: f64,
    /// Of what.
    pub scope: ClipScope,
}

/// How a batch is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Batches {
    /// Every record by a coin of its own.
    Poisson,
    /// So many records, some perhaps twice, as in the authors' experiments: no claim.
    WithReplacement,
}

/// Who chooses the coordinates that travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coordinates {
    /// Each client for itself, in secret, after it has the model.
    Own,
    /// The public seed, the same for all: known beforehand.
    Shared,
}

/// Clients without a server, each with a model of its own ([`soteriafl_core::gossip`]). Only
/// simulated.
#[derive(Clone, Debug, PartialEq)]
pub struct Gossip {
    /// What they tell each other.
    pub transport: Transport,
    /// Who talks to whom.
    pub topology: Topology,
    /// How far each goes towards the mix of what it hears, in a round.
    pub mixing: f64,
}

/// Which of the models of a run is its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// The last one.
    Last,
    /// One of all rounds' models, each as likely as any other: what the theory of nonconvex
    /// problems speaks about. Its round is drawn from the public seed, and the run ends with it.
    Random,
}

words!(Output, "output", Last = "last", Random = "random");

/// What the noise is set by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum NoiseTarget {
    /// Calibrated to this epsilon.
    Epsilon(f64),
    /// Fixed.
    Sigma(f64),
    /// None.
    None,
}

/// Which accountant decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccountantName {
    /// Privacy-loss distributions.
    Pld,
    /// Rényi divergences.
    Rdp,
    /// The paper's formula: no claim.
    Paper,
}

words!(
    AccountantName,
    "accountant",
    Pld = "pld",
    Rdp = "rdp",
    Paper = "paper"
);

/// Who sees the messages of single clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aggregation {
    /// Everybody: each client hides its own records.
    Open,
    /// Nobody: whoever adds them up is trusted, and clients share the noise that hides the average.
    /// Only simulated, and nothing is claimed.
    Trusted {
        /// Whether clients count alike, instead of by their records.
        equal_weights: bool,
    },
}

/// Which noise is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoiseName {
    /// Floating point.
    Float,
    /// Exact, on integers.
    Secure,
}

words!(NoiseName, "noise", Float = "float", Secure = "secure");

/// What decided the step size. Only a step that no record decided leaves the claim as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepSizeOrigin {
    /// A number that was fixed beforehand, or the system's rule of public quantities.
    Public,
    /// Computed from the records (`step_size = "theory"`).
    Theory,
    /// A number that somebody chose by looking at the records (`step_size_from_data = true`).
    Records,
}

/// Which data sets are neighbours, in words: the adjacency, and whose records are exchanged where
/// it is more than one.
pub fn neighbours(adjacency: Adjacency, records_per_person: u32) -> String {
    match records_per_person {
        1 => adjacency.to_string(),
        most => format!("{adjacency} of persons with up to {most} records"),
    }
}

impl Default for Specification {
    /// Full gradients, nothing compressed, no shift, no clip and no noise, 100 rounds of step size
    /// 1.
    fn default() -> Self {
        Self {
            gossip: None,
            moments: None,
            ranges: None,
            estimator: Estimator::Gd,
            batch: None,
            batches: Batches::Poisson,
            clip: None,
            compressor: CompressorKind::Identity,
            downlink: None,
            participation: 1.0,
            coordinates: Coordinates::Own,
            shift: None,
            target: NoiseTarget::None,
            delta: 1e-5,
            adjacency: Adjacency::ReplaceOne,
            records_per_person: 1,
            accountant: AccountantName::Pld,
            direct_theorem: false,
            amplification: true,
            aggregation: Aggregation::Open,
            noise: NoiseName::Float,
            step_size_origin: StepSizeOrigin::Public,
            ranges_from_records: false,
            step_size: 1.0,
            schedule: Schedule::Constant,
            momentum: 0.0,
            step_cap: None,
            regularizer: Regularizer::None,
            regularizer_at_client: false,
            rounds: 100,
            output: Output::Last,
            seed: 0,
        }
    }
}

impl Specification {
    /// What clients release before the first round, in order, each with its share of the budget.
    pub fn preliminaries(&self) -> Vec<(Preliminary, f64)> {
        let ranges = self.ranges.into_iter().flat_map(|share| {
            [Preliminary::Magnitudes, Preliminary::Parts].map(|kind| (kind, share / 2.0))
        });
        let moments = self.moments.map(|share| (Preliminary::Moments, share));
        ranges.chain(moments).collect()
    }

    /// Whether random-k amplification may be counted. Shared coordinates are known beforehand:
    /// nothing is hidden (A12).
    pub fn may_amplify(&self) -> bool {
        self.amplification && self.coordinates == Coordinates::Own
    }

    /// What decides on which coordinates estimates have noise: the compressor, unless clients keep
    /// noisy vectors. Of those everything is sent sooner or later, so there it is on all of them,
    /// and random coordinates hide nothing (Proposition 5c of `docs/privacy.md`).
    pub fn released_by(&self) -> CompressorKind {
        match &self.gossip {
            Some(gossip) if gossip.transport.keeps_noise() => CompressorKind::Identity,
            _ => self.compressor,
        }
    }

    /// Which data sets are neighbours, in words.
    pub fn neighbours(&self) -> String {
        neighbours(self.adjacency, self.records_per_person)
    }

    /// Whether each record's share of a message is bounded, and its coins are Poisson.
    pub fn bounds_records(&self) -> bool {
        let by_record = self
            .clip
            .is_none_or(|clip| clip.scope != ClipScope::Estimate);
        by_record && !self.draws_with_replacement()
    }

    /// Whether a batch may hold a record twice.
    pub fn draws_with_replacement(&self) -> bool {
        self.batches == Batches::WithReplacement && self.batch.is_some()
    }

    /// After which round the run ends. Noise is calibrated for all of [`rounds`](Self::rounds).
    pub fn last_round(&self) -> u32 {
        match self.output {
            Output::Last => self.rounds,
            Output::Random => PublicSeed(self.seed).random_iterate(self.rounds),
        }
    }

    /// What all clients of a run with this loss share.
    ///
    /// # Errors
    /// When a compressor, up or down, does not fit the model.
    pub fn client_plan(&self, objective: &Arc<dyn Objective>) -> Result<ClientPlan, CompressError> {
        let dimension = objective.dimension();
        self.way_down(dimension)?;
        let (clipping, estimate_clip) = match self.clip {
            None => (Clipping::None, None),
            Some(Clip { bound, scope }) => match scope {
                ClipScope::Record => (Clipping::Record(bound), None),
                ClipScope::Selected => (Clipping::Selected(bound), None),
                ClipScope::Estimate => (Clipping::None, Some(bound)),
            },
        };
        Ok(ClientPlan {
            objective: Arc::clone(objective),
            compressor: Compressor::new(self.released_by(), dimension, self.participation)?,
            // Where records are not clipped, neither are their differences.
            estimator: match clipping {
                Clipping::None => self.estimator.without_difference_clip(),
                _ => self.estimator,
            },
            clipping,
            estimate_clip,
            regularizer: self.regularizer_at_client.then_some(self.regularizer),
            shift_step: self.shift,
            noise: self.noise_kind(),
            shared_coordinates: self.coordinates == Coordinates::Shared,
            public_seed: PublicSeed(self.seed),
        })
    }

    /// What compresses the way down for models of this size.
    fn way_down(&self, dimension: usize) -> Result<Option<Downlink>, CompressError> {
        let compress = |kind| Downlink::new(kind, dimension, PublicSeed(self.seed));
        self.downlink.map(compress).transpose()
    }

    /// What clients without a server share, if this is such a run.
    ///
    /// # Errors
    /// When the compressor does not fit the model.
    pub fn gossip_plan(
        &self,
        dimension: usize,
        weights: Vec<f64>,
    ) -> Result<Option<GossipPlan>, CompressError> {
        let Some(gossip) = &self.gossip else {
            return Ok(None);
        };
        Ok(Some(GossipPlan {
            transport: gossip.transport,
            mixing: gossip.mixing,
            step_size: self.step_size,
            schedule: self.schedule,
            compressor: Compressor::new(self.compressor, dimension, self.participation)?,
            regularizer: self.regularizer,
            weights,
            rounds: self.rounds,
        }))
    }

    /// Which noise a client draws.
    pub fn noise_kind(&self) -> Noise {
        match (self.target, self.noise) {
            (NoiseTarget::None, _) => Noise::None,
            (_, NoiseName::Float) => Noise::Float,
            (_, NoiseName::Secure) => Noise::Secure,
        }
    }

    /// How a client draws its batch.
    pub fn sampling(&self) -> Sampling {
        let coins = match self.noise {
            NoiseName::Secure => Coins::Exact,
            NoiseName::Float => Coins::Fast,
        };
        // Whatever a batch says: what is charged for full gradients is charged for all records.
        match self.batch.filter(|_| self.estimator != Estimator::Gd) {
            None => Sampling::Full,
            Some(batch) if self.draws_with_replacement() => Sampling::WithReplacement {
                batch: batch as usize,
            },
            Some(batch) => Sampling::Poisson { batch, coins },
        }
    }

    /// What the server of these clients must know: derived from their plan, so that the two cannot
    /// disagree.
    ///
    /// # Panics
    /// If the clients' plan is of another specification.
    pub fn server_plan(&self, clients: &ClientPlan, weights: Vec<f64>) -> ServerPlan {
        let public = (!self.regularizer_at_client).then_some(self.regularizer);
        ServerPlan {
            compressor: clients.compressor.clone(),
            weights,
            step_size: self.step_size,
            schedule: self.schedule,
            momentum: self.momentum,
            recursion: clients.estimator.recursion(),
            step_cap: self.step_cap,
            shift_step: clients.shift_step,
            regularizer: public.filter(|regularizer| *regularizer != Regularizer::None),
            smoothing: None,
            equalizing: None,
            downlink: self
                .way_down(clients.compressor.dimension())
                .expect("the clients' plan was made with it"),
            rounds: self.rounds,
        }
    }
}
