//! The configuration: a TOML file and `--set` overrides, read key by key so that every error can
//! name the key, the line and the value at fault.
//!
//! Three stages, three types. [`Document`] is what was typed: keys with values and where they
//! stand. [`Config`] is what it means, with `"auto"` still in it. `Resolved` (see [`resolve`]) has
//! no `"auto"` left; only that can run, and it is what `config.toml` beside the results holds.

mod automatic;
mod document;
mod naming;
mod plain;
mod read;
mod reference;
pub mod resolve;
mod write;

pub use crate::specification::{AccountantName, NoiseName, NoiseTarget, Output};
pub use soteriafl_accountant::{Adjacency, ClipScope, EstimatorKind};
use soteriafl_core::objective::Activation;
use soteriafl_core::protocol::Schedule;
use soteriafl_data::{FeatureKind, Partition, Source};

pub use document::{ConfigError, Document};

/// A value, or the system's choice.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Auto<T> {
    /// The system chooses.
    Auto,
    /// Given.
    Given(T),
}

impl<T> Auto<T> {
    /// The given value, or `choice`.
    pub fn or(self, choice: T) -> T {
        match self {
            Auto::Auto => choice,
            Auto::Given(value) => value,
        }
    }

    /// The given value, or what `choose` returns.
    pub fn or_else(self, choose: impl FnOnce() -> T) -> T {
        match self {
            Auto::Auto => choose(),
            Auto::Given(value) => value,
        }
    }
}

/// How features are scaled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ScaleChoice {
    /// Not at all.
    None,
    /// By the largest singular value.
    Spectral,
    /// One mean and standard deviation for all features.
    Standard,
    /// A mean and standard deviation for every feature.
    PerFeature,
    /// Given public constants.
    Constant {
        /// Subtracted.
        center: f64,
        /// Multiplied.
        factor: f64,
    },
}

/// The model family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelKind {
    /// Logistic regression, two classes.
    Logistic,
    /// Softmax regression.
    Softmax,
    /// A network with hidden layers.
    Mlp,
}

/// The regularizer's form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegularizerKind {
    /// None.
    None,
    /// Squared norm.
    L2,
    /// The paper's nonconvex one.
    Nonconvex,
}

/// Where the model starts.
#[derive(Clone, Debug, PartialEq)]
pub enum Init {
    /// At zero.
    Zeros,
    /// Independent normal numbers.
    Normal(f64),
    /// Layer by layer, by its size.
    Glorot,
    /// One number per line.
    File(String),
}

/// A row of the table of algorithms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preset {
    /// The system's best proved choice.
    Auto,
    /// SoteriaFL with this estimator.
    Soteria(EstimatorKind),
    /// Direct compression.
    CdpSgd,
    /// No compression, many clients.
    Ldp(EstimatorKind),
    /// No compression, one client.
    Dp(EstimatorKind),
    /// One client, batches of one record, a random iterate (the paper's table: RPPSGD).
    Rrpsgd,
}

/// The compressors' names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompressorName {
    /// None.
    Identity,
    /// Random coordinates.
    RandK,
    /// Random dithering.
    Qsgd,
    /// Powers of two.
    Natural,
}

/// The shift step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ShiftChoice {
    /// Direct compression.
    Off,
    /// This step.
    Step(f64),
}

/// A number, or the theory's value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Theory<T> {
    /// From the corollaries.
    Theory,
    /// Given.
    Given(T),
}

/// What is said about features by a server that owns no records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FeatureList {
    /// How many there are.
    Count(usize),
    /// What they are called, in their order.
    Names(Vec<String>),
}

impl FeatureList {
    /// How many there are.
    pub fn count(&self) -> usize {
        match self {
            FeatureList::Count(count) => *count,
            FeatureList::Names(names) => names.len(),
        }
    }

    /// What they are called, if that is said.
    pub fn names(&self) -> Option<&[String]> {
        match self {
            FeatureList::Count(_) => None,
            FeatureList::Names(names) => Some(names),
        }
    }
}

/// What a configuration means, `"auto"` still in it.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)] // The fields are the keys of the file, explained there and in `docs/configuration.md`.
pub struct Config {
    pub source: Source,
    pub test: Option<Source>,
    pub rows: Option<usize>,
    pub clients: Auto<usize>,
    pub partition: Partition,
    pub scale: Auto<ScaleChoice>,
    /// The public map of records.
    pub feature_map: Auto<FeatureKind>,
    /// Frequencies of a cosine basis.
    pub basis: Auto<Option<usize>>,
    pub standardize: Auto<bool>,
    pub equal_weights: bool,
    pub model: Auto<ModelKind>,
    pub hidden: Vec<usize>,
    pub activation: Auto<Activation>,
    pub intercept: bool,
    pub regularizer: Auto<RegularizerKind>,
    pub lambda: f64,
    pub regularizer_at_client: bool,
    pub init: Auto<Init>,
    pub preset: Preset,
    pub estimator: Auto<EstimatorKind>,
    pub batch: Auto<f64>,
    pub snapshot_probability: Auto<f64>,
    pub compressor: Auto<CompressorName>,
    pub fraction: Auto<f64>,
    pub k: Auto<usize>,
    pub levels: u32,
    pub shift: Auto<ShiftChoice>,
    pub step_size: Auto<Theory<f64>>,
    /// Whether somebody chose the step size by looking at the records.
    pub step_size_from_data: bool,
    pub schedule: Auto<Schedule>,
    pub momentum: Auto<f64>,
    pub smoothing: Auto<u32>,
    pub equalize: Auto<f64>,
    pub shared_coordinates: Auto<bool>,
    pub values: Auto<usize>,
    pub rounds: Auto<Theory<u32>>,
    pub output: Auto<Output>,
    pub participation: f64,
    pub noise_target: NoiseTarget,
    pub delta: f64,
    pub adjacency: Adjacency,
    pub clip: Auto<Option<f64>>,
    pub clip_scope: Auto<ClipScope>,
    pub with_replacement: bool,
    pub difference_clip: Auto<Option<f64>>,
    pub accountant: AccountantName,
    pub amplification: bool,
    pub noise: Auto<NoiseName>,
    pub quorum: Option<usize>,
    pub deadline: Option<f64>,
    pub features: Option<FeatureList>,
    pub labels: Option<Vec<String>>,
    pub records: Option<usize>,
    pub most_records: Option<usize>,
    pub seed: u64,
    pub eval_every: u32,
    /// Keys that were given, for warnings about those that are not used.
    pub given: Vec<String>,
}
