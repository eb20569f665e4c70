//! Data and model of a run, in three steps: [`Records`] as they were read and dealt to clients; the
//! [`Preparation`] that the configuration asks for, which is a function of their public shape alone
//! and the only place where it is decided; and the [`Problem`], which applies it.

mod digest;
mod elsewhere;
mod feature_cache;
mod model;
mod preparation;
mod ranges;
mod records;
mod whitening;

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use soteriafl_core::moments::Whitening;
use soteriafl_core::objective::{Objective, Regularizer};
use soteriafl_data::{
    Adjustment, Constants, DataDirectories, DataError, Dataset, FeatureKind, RecordsError, Scale,
    Scaling, Source,
};

use crate::advice;
use crate::config::resolve::{Resolved, Shape};
use crate::config::{Config, ConfigError, RegularizerKind, ScaleChoice};
use crate::model_file::{self, About};
use crate::persons::{self, Bounded};
use crate::record_shape::RecordShape;

pub use elsewhere::{ElsewhereModel, ParameterShape};
pub use feature_cache::FeatureCache;
pub use model::{Model, image_side};
pub use preparation::Preparation;
pub(crate) use ranges::traffic as range_traffic;
pub use records::Records;

/// Why a run cannot be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProblemError {
    /// The configuration does not fit.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The data cannot be read.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The model cannot be built.
    #[error("{0}")]
    Model(String),
}

impl From<RecordsError> for ProblemError {
    fn from(error: RecordsError) -> Self {
        ProblemError::Data(error.into())
    }
}

/// Data and model, ready to run.
#[derive(Clone)]
pub struct Problem {
    /// Every client's records.
    pub shards: Vec<Arc<Dataset>>,
    /// The test set.
    pub test: Option<Dataset>,
    /// The loss.
    pub objective: Arc<dyn Objective>,
    /// How features were scaled.
    pub scaling: Scaling,
    /// How scaled features were standardised by their records; the saved model knows nothing of it.
    pub standardizing: Option<Scaling>,
    /// Whether columns were far out of scale before the public map, in a sentence.
    pub out_of_scale: Option<String>,
    /// How records were whitened by released second moments.
    pub whitening: Option<Whitening>,
    /// How many columns have ranges that clients have released.
    pub private_ranges: usize,
    /// The noise on the share of a column's records in one power of two, by which those ranges were
    /// found.
    pub range_noise: Option<f64>,
    /// Value of the constant feature after scaling, before it was standardised.
    pub intercept: f64,
    /// Features and classes of the records as they were read.
    pub shape: RecordShape,
    /// What the schema of their table did not know, for its owner's eyes.
    pub adjustments: Vec<Adjustment>,
    /// Where a column says whose records are whose: what bounding persons did at every client, for
    /// their owner's eyes.
    pub bounded: Option<Vec<Bounded>>,
    /// What was decided about them.
    pub preparation: Preparation,
    /// Where it starts, if that came with the model.
    given_start: Option<Vec<f32>>,
    digest: OnceLock<String>,
    prepared_by_records: bool,
}

impl Problem {
    /// Reads what `config` asks for and prepares it.
    ///
    /// # Errors
    /// When data, model or numbers of clients do not fit.
    pub fn load(config: &Config, directories: &DataDirectories) -> Result<Self, ProblemError> {
        Self::load_cached(config, directories, &FeatureCache::none())
    }

    /// The same, with what public maps took long to compute kept and looked up here.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn load_cached(
        config: &Config,
        directories: &DataDirectories,
        cache: &FeatureCache,
    ) -> Result<Self, ProblemError> {
        if config.is_elsewhere() {
            return Err(ConfigError::with_hint(
                "`model.kind = \"elsewhere\"`: the clients' own programs compute this model, and \
                 this one cannot",
                "`soteria serve` coordinates it, with `deployment.records`; soteriafl.torch.simulate \
                 trains it in Python",
            )
            .into());
        }
        let records = Records::read(config, directories)?;
        let preparation = Preparation::of(config, records.shape())?;
        Self::prepared(records, preparation, cache)
    }

    /// Applies what was decided to records as they were read: it chooses nothing.
    ///
    /// # Errors
    /// When the records cannot be scaled so.
    pub fn new(records: Records, preparation: Preparation) -> Result<Self, ProblemError> {
        Self::prepared(records, preparation, &FeatureCache::none())
    }

    fn prepared(
        records: Records,
        preparation: Preparation,
        cache: &FeatureCache,
    ) -> Result<Self, ProblemError> {
        let Records {
            source,
            mut train,
            mut test,
            dealt,
            shape,
            adjustments,
            prepared_by_records,
            bounded,
            private_ranges,
            range_noise,
        } = records;
        let intercept = preparation.model.intercept();
        if intercept {
            train = train.with_intercept();
            test = test.map(Dataset::with_intercept);
        }
        let scaling = scaling(preparation.scale, &source, &train)?;
        let value = constant_feature(&scaling, train.columns());
        if preparation.secure && needs_dense_rows(&source, &scaling) {
            train = train.dense()?;
        }
        train = scaling.apply(train)?;
        test = test.map(|test| scaling.apply(test)).transpose()?;
        let standardizing = if preparation.standardize {
            // Without an intercept a centre would be one.
            let centred = !preparation.kind.is_linear() || intercept;
            let found = Scaling::standardizing(&train, centred)?;
            train = found.apply(train)?;
            test = test.map(|test| found.apply(test)).transpose()?;
            Some(found)
        } else {
            None
        };
        let mut out_of_scale = None;
        // With an intercept of its own the records have one column more, and the map is none.
        if preparation.features.kind() != FeatureKind::None {
            // A few bytes of data can name any number of columns.
            const MOST_LOOKED_AT: usize = 1 << 20;
            if train.columns() <= MOST_LOOKED_AT {
                out_of_scale = advice::columns([&train], false, advice::LOOKED_AT);
            }
            let threads = std::thread::available_parallelism().map_or(1, usize::from);
            let map = |data| cache.apply(&preparation.features, data, threads);
            train = map(train)?;
            test = test.map(map).transpose()?;
        }
        if let Some(basis) = preparation.basis {
            train = basis.apply(train)?;
            test = test.map(|test| basis.apply(test)).transpose()?;
        }
        let shards = dealt.iter().enumerate().map(|(client, rows)| {
            let null = bounded.as_ref().map_or(0, |all| all[client].null_records);
            Arc::new(train.select(rows).with_null_records(null))
        });
        Ok(Self {
            shards: shards.collect(),
            test,
            objective: preparation.model.objective(),
            scaling,
            standardizing,
            out_of_scale,
            whitening: None,
            private_ranges,
            range_noise,
            intercept: if intercept { value } else { 0.0 },
            shape,
            adjustments,
            bounded,
            preparation,
            given_start: None,
            digest: OnceLock::new(),
            prepared_by_records,
        })
    }

    /// What the records are, whatever their files are called: 64 hexadecimal digits, computed once.
    /// Whoever has it can check a guess of all records, so it is not for publication.
    pub fn digest(&self) -> &str {
        self.digest.get_or_init(|| digest::of(self))
    }

    /// Whether features were scaled by numbers that were computed from records, here or before.
    pub fn data_dependent(&self) -> bool {
        self.scaling.data_dependent() || self.standardizing.is_some() || self.prepared_by_records
    }

    /// The model file of these parameters.
    ///
    /// # Errors
    /// When it cannot be encoded.
    pub fn model_file(&self, parameters: &[f32]) -> Result<Vec<u8>, String> {
        let Preparation {
            model,
            features,
            basis,
            ..
        } = &self.preparation;
        let (parameters, intercept) = match &self.standardizing {
            None => (Cow::Borrowed(parameters), self.intercept),
            Some(standardizing) => (
                Cow::Owned(model.absorb(parameters, standardizing, self.intercept)),
                // The bias is the last parameter as it is.
                1.0,
            ),
        };
        let about = About {
            shape: &self.shape,
            scaling: &self.scaling,
        };
        let map = model_file::RecordMap {
            features,
            whitening: self.whitening.as_ref(),
            basis: *basis,
        };
        model_file::to_bytes(model, &parameters, map, intercept, about)
    }

    /// Replaces what `config` still leaves open by what suits these records, and lists what its
    /// author should know.
    ///
    /// # Errors
    /// When values do not go together, or `config` prepares records otherwise than these were.
    pub fn resolve(&self, config: &Config) -> Result<(Resolved, Vec<String>), ProblemError> {
        Ok(config.resolve(&self.shape(config)?)?)
    }

    /// What resolving the configuration needs to know, the smoothness of these records included.
    ///
    /// # Errors
    /// When the configuration would prepare the records otherwise than they were prepared.
    pub fn shape(&self, config: &Config) -> Result<Shape, ProblemError> {
        if Preparation::of(config, &self.shape)? != self.preparation {
            return Err(ConfigError::conflict(
                "the configuration prepares records otherwise than they were prepared",
            )
            .into());
        }
        let records = self.sizes();
        Ok(Shape {
            smoothness: self.smoothness(config),
            ..self.preparation.shape(records)
        })
    }

    /// Smoothness of the loss and its regularizer on the worst client, where it is known.
    fn smoothness(&self, config: &Config) -> Option<f64> {
        let largest = self.preparation.model.smoothness(&self.shards)?;
        let kind = config.regularizer_for(self.preparation.kind, self.preparation.features.kind());
        Some(largest + regularizer(kind, config.lambda).smoothness())
    }

    /// Every client's public number of records.
    pub fn sizes(&self) -> Vec<usize> {
        self.shards.iter().map(|shard| shard.records()).collect()
    }

    /// What bounding persons did, in words for the owner of the records.
    pub fn persons_told(&self, most: u32) -> Option<String> {
        let bounded = self.bounded.as_ref()?;
        let sum = |count: fn(&Bounded) -> usize| bounded.iter().map(count).sum();
        let (left_out, null) = (sum(|one| one.left_out), sum(|one| one.null_records));
        Some(persons::told(left_out, null, most))
    }

    /// Client weights in the objective, summing to one.
    pub fn weights(&self, resolved: &Resolved) -> Vec<f64> {
        weights(resolved, &self.sizes())
    }

    /// The model to start from.
    ///
    /// # Errors
    /// When a start file cannot be read or does not fit.
    pub fn start(&self, resolved: &Resolved) -> Result<Vec<f32>, ProblemError> {
        match &self.given_start {
            Some(start) => Ok(start.clone()),
            None => self.preparation.model.start(resolved),
        }
    }

    /// The same of a model that is computed elsewhere: by this objective, from this start.
    #[must_use]
    pub fn computed_by(self, objective: Arc<dyn Objective>, start: Vec<f32>) -> Self {
        Self {
            objective,
            given_start: Some(start),
            ..self
        }
    }

    /// Whether the model is computed elsewhere: then records are known there alone.
    pub fn is_elsewhere(&self) -> bool {
        matches!(self.preparation.model, Model::Elsewhere(_))
    }
}

/// Whether rows of `source` have to be dense under secure noise, before they are scaled.
///
/// Sums over sparse and over dense rows round differently. Where the records themselves decide how
/// they are stored (pictures by how many pixels are dark, rows with a centre by how near they come
/// to it), one record would change how all others are rounded, by as much as a server that chooses
/// the model likes; clipping cannot bound that. So the form follows from the kind of the source and
/// from the run alone.
pub fn needs_dense_rows(source: &Source, scaling: &Scaling) -> bool {
    source.is_images()
        || scaling
            .center()
            .as_slice()
            .iter()
            .any(|&center| center != 0.0)
}

/// Client weights in the objective for clients of these sizes, summing to one.
pub fn weights(resolved: &Resolved, records: &[usize]) -> Vec<f64> {
    crate::accounting::weights(resolved.equal_weights, records)
}

/// Value of the constant feature, the last of `columns`, after scaling.
pub fn constant_feature(scaling: &Scaling, columns: usize) -> f64 {
    let constant = columns.saturating_sub(1);
    (1.0 - scaling.center().at(constant)) * scaling.factor().at(constant)
}

/// The regularizer of this form.
pub fn regularizer(kind: RegularizerKind, lambda: f64) -> Regularizer {
    let lambda = lambda as f32;
    match kind {
        RegularizerKind::None => Regularizer::None,
        RegularizerKind::L2 => Regularizer::L2 { lambda },
        RegularizerKind::Nonconvex => Regularizer::Nonconvex { lambda },
    }
}

fn scaling(choice: ScaleChoice, source: &Source, train: &Dataset) -> Result<Scaling, RecordsError> {
    match choice {
        ScaleChoice::None => Ok(Scaling::identity()),
        ScaleChoice::Spectral => Scale::Spectral.fit(train),
        // Published constants where there are some: they depend on nobody's records.
        ScaleChoice::Standard => match source.public_scaling() {
            Some(published) => Ok(published),
            None => Scale::Standard.fit(train),
        },
        ScaleChoice::PerFeature => Scale::PerFeature.fit(train),
        ScaleChoice::Constant { center, factor } => {
            Scaling::constants(Constants::Same(center), Constants::Same(factor))
        }
    }
}
