//! The configuration: a TOML file and `--set` overrides, read key by key so that every error can
//! name the key, the line and the value at fault.
//!
//! Three stages, three types. [`Document`] is what was typed: keys with values and where they
//! stand. [`Config`] is what it means, with `"auto"` still in it. `Resolved` (see [`resolve`]) has
//! no `"auto"` left; only that can run, and it is what `config.toml` beside the results holds.

mod aggregation;
mod automatic;
mod batch;
mod compressor;
mod document;
mod downlink;
mod elsewhere;
pub mod gossip;
mod ignored;
mod images;
mod linear;
mod naming;
mod plain;
mod read;
mod recursion;
mod reference;
mod refused;
mod regression;
pub mod resolve;
mod sag;
mod table;
mod values;
mod write;

use std::sync::Arc;

pub use crate::specification::{AccountantName, NoiseName, NoiseTarget, Output};
use soteriafl_accountant::words;
pub use soteriafl_accountant::{Adjacency, ClipScope, EstimatorKind};
pub use soteriafl_core::compress::CompressorName;
use soteriafl_core::gossip::Topology;
use soteriafl_core::objective::Activation;
use soteriafl_core::protocol::Schedule;
use soteriafl_data::{FeatureKind, Partition, Source, TableSchema, TargetRange};

use crate::problem::ElsewhereModel;
pub use compressor::compressor_text;
pub use document::{ConfigError, Document};
pub use downlink::{DownlinkChoice, Part};
pub use linear::private_ranges;

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
    /// A linear model of a number.
    Linear,
    /// A network with hidden layers.
    Mlp,
    /// A model that the clients' own programs compute.
    Elsewhere,
}

words!(
    ModelKind,
    "model",
    Logistic = "logistic",
    Softmax = "softmax",
    Linear = "linear",
    Mlp = "mlp",
    Elsewhere = "elsewhere",
);

impl ModelKind {
    /// Whether its output is linear in the features and one number.
    pub fn is_linear(self) -> bool {
        matches!(self, ModelKind::Logistic | ModelKind::Linear)
    }

    /// Whether it has layers: what is chosen for it is what was found for networks.
    pub(crate) fn has_layers(self) -> bool {
        matches!(self, ModelKind::Mlp | ModelKind::Elsewhere)
    }
}

/// What a model is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// It answers with a class.
    Classification,
    /// It predicts a number.
    Regression,
}

words!(
    Task,
    "task",
    Classification = "classification",
    Regression = "regression",
);

/// What missing a number costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossName {
    /// Half of the square.
    Squared,
    /// Half of the square near zero, linear beyond.
    Huber,
}

words!(LossName, "loss", Squared = "squared", Huber = "huber");

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

words!(
    RegularizerKind,
    "regularizer",
    None = "none",
    L2 = "l2",
    Nonconvex = "nonconvex",
);

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
    /// Where the model starts that a program brings with it.
    Given,
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
    /// Recursive momentum, one client.
    DpSrm,
    /// Recursive momentum, many clients (PriSMA).
    LdpSrm,
    /// Recursive momentum, many clients and a trusted aggregation.
    DistributedDpSrm,
    /// Telescoping increments, many clients.
    LdpSpider,
    /// The same as its authors call it, with whole gradients.
    Diff2,
    /// Compressed differences of models, without a server.
    SdmDsgd,
    /// Models rounded to a grid, without a server.
    QDpsgd1,
    /// Tracked gradients, without a server.
    Porter,
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

/// What says whose record each row of the data is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NaturalClients {
    /// The column with this name.
    Column(String),
    /// The file that it stands in, of a source of several.
    Files,
}

impl NaturalClients {
    /// The column, if it is one.
    pub fn column(&self) -> Option<&str> {
        match self {
            NaturalClients::Column(name) => Some(name),
            NaturalClients::Files => None,
        }
    }
}

impl std::fmt::Display for NaturalClients {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            NaturalClients::Column(name) => write!(formatter, "column:{name}"),
            NaturalClients::Files => formatter.write_str("files"),
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
    /// What the columns of the table mean.
    pub schema: Option<Arc<TableSchema>>,
    /// Clients that the data itself names; the partition is not used then.
    pub natural: Option<NaturalClients>,
    /// The share of rows that is tested on.
    pub holdout: Option<f64>,
    /// The public range of the numbers to predict.
    pub target_range: Option<TargetRange>,
    pub clients: Auto<usize>,
    pub partition: Partition,
    pub scale: Auto<ScaleChoice>,
    /// The public map of records.
    pub feature_map: Auto<FeatureKind>,
    /// The share of the budget that second moments get, whose release whitens records.
    pub whiten: Auto<Option<f64>>,
    /// Frequencies of a cosine basis.
    pub basis: Auto<Option<usize>>,
    pub standardize: Auto<bool>,
    pub equal_weights: bool,
    pub task: Auto<Task>,
    pub model: Auto<ModelKind>,
    /// What is known of a model that is computed elsewhere.
    pub elsewhere: Option<Arc<ElsewhereModel>>,
    pub loss: LossName,
    /// Where Huber's loss becomes linear, in the unit of the target.
    pub huber: Auto<f64>,
    pub class_weights: Option<Vec<f64>>,
    pub hidden: Vec<usize>,
    pub activation: Auto<Activation>,
    pub intercept: bool,
    pub regularizer: Auto<RegularizerKind>,
    pub lambda: f64,
    pub regularizer_at_client: bool,
    pub init: Auto<Init>,
    pub preset: Preset,
    pub estimator: Auto<EstimatorKind>,
    /// `None`: all records.
    pub batch: Auto<Option<f64>>,
    pub snapshot_probability: Auto<f64>,
    pub compressor: Auto<CompressorName>,
    pub fraction: Auto<f64>,
    pub k: Auto<usize>,
    pub levels: u32,
    /// How the way down is compressed; `None`: not at all.
    pub downlink: Option<DownlinkChoice>,
    /// The distance of two levels of a grid, and the bits of a level.
    pub grid_step: f64,
    pub grid_bits: u32,
    /// Who talks to whom where there is no server.
    pub topology: Option<Topology>,
    /// How far clients without a server go towards their neighbours' mix.
    pub mixing: Auto<f64>,
    pub shift: Auto<ShiftChoice>,
    pub step_size: Auto<Theory<f64>>,
    /// Whether somebody chose the step size by looking at the records.
    pub step_size_from_data: bool,
    pub schedule: Auto<Schedule>,
    pub momentum: Auto<f64>,
    /// The weight of the table's mean (SAG).
    pub memory: Auto<f64>,
    pub keep: Auto<f64>,
    /// After how many rounds a recursion starts anew; `None`: never.
    pub restart: Auto<Option<u32>>,
    pub step_cap: Option<f64>,
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
    /// How many records of one person the claim covers at each client.
    pub records_per_person: u32,
    pub clip: Auto<Option<f64>>,
    pub clip_scope: Auto<ClipScope>,
    pub with_replacement: bool,
    pub difference_clip: Auto<Option<f64>>,
    pub difference_scale: Auto<Option<f64>>,
    pub noise_ratio: Auto<f64>,
    /// Whether only the average of all messages is assumed to be seen.
    pub trusted_aggregation: Auto<bool>,
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
