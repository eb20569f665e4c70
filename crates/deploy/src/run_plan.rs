//! What a server coordinates: configuration and data, resolved; and its description, which for a
//! state that holds a run must be that run's.

use std::io::ErrorKind;
use std::sync::Arc;

use soteriafl::accounting::{self, PrivacyError};
use soteriafl::advice;
use soteriafl::config::resolve::Resolved;
use soteriafl::config::{
    Auto, Config, ConfigError, Document, FeatureList, NoiseName, NoiseTarget, private_ranges,
};
use soteriafl::output::TestSet;
use soteriafl::problem::{self, Model, Preparation, Problem, ProblemError, constant_feature};
use soteriafl::record_shape::RecordShape;
use soteriafl::words::{counted, readable};
use soteriafl_core::random::{EntropyError, SecretKey};
use soteriafl_data::schema::Target;
use soteriafl_data::{
    Cosine, DataDirectories, DataError, Dataset, FeatureKind, FeatureMap, RecordsError, Scaling,
    Schema, Source, TableSchema,
};

use super::budget::{Deltas, MOST_READ};
use super::description::{Description, DescriptionError};

/// Why there is nothing to coordinate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunPlanError {
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Data or model are.
    #[error(transparent)]
    Problem(#[from] ProblemError),
    /// The data cannot be read.
    #[error(transparent)]
    Data(#[from] DataError),
    /// Records cannot be prepared.
    #[error(transparent)]
    Records(#[from] RecordsError),
    /// The noise cannot be computed.
    #[error(transparent)]
    Privacy(#[from] PrivacyError),
    /// The run cannot be described.
    #[error(transparent)]
    Description(#[from] DescriptionError),
    /// No nonce is to be had.
    #[error(transparent)]
    Entropy(#[from] EntropyError),
    /// A file that the configuration names is not there.
    #[error("{0}")]
    Missing(DataError),
    /// Scaling constants were computed from records.
    #[error(
        "deployment takes scaling constants only: give data.center and data.factor, or data.scale = \"none\""
    )]
    DataDependent,
    /// The state is another run's.
    #[error("{0} holds a run with another configuration")]
    OtherRun(String),
}

impl RunPlanError {
    /// What a person can do about it.
    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::Config(error) => error.hint(),
            Self::Missing(_) => Some(
                "data.source and data.test are looked for from where the server runs: give the \
                 whole path",
            ),
            Self::OtherRun(_) => {
                Some("give the configuration it was started with, or another --state")
            }
            _ => None,
        }
    }
}

/// Everything that follows from configuration and data.
pub struct RunPlan {
    /// The configuration, with nothing left to choose.
    pub resolved: Resolved,
    /// What records look like.
    pub shape: RecordShape,
    /// The model.
    pub model: Model,
    /// The server's own test set, prepared.
    pub test: Option<Arc<Dataset>>,
    /// How features are scaled.
    pub scaling: Scaling,
    /// The public map of records.
    pub features: FeatureMap,
    /// The basis that features are written in.
    pub basis: Option<Cosine>,
    /// The constant feature.
    pub intercept: f64,
    /// Records of each client, as far as the server knows before they join.
    records: Vec<usize>,
    /// Whether scaling constants were computed from records.
    data_dependent: bool,
    /// Records of the smallest client.
    smallest: usize,
}

impl RunPlan {
    /// What `document` means, and what its owner should be warned of.
    ///
    /// # Errors
    /// When it cannot be coordinated.
    pub fn make(
        mut document: Document,
        directories: &DataDirectories,
        test_seed: Option<u64>,
    ) -> Result<(Self, Vec<String>), RunPlanError> {
        if let Some(seed) = test_seed {
            document.set(&format!("run.seed={seed}"))?;
        }
        let mut config = Config::read(&document)?;
        if config.noise == Auto::Auto && test_seed.is_none() {
            config.noise = Auto::Given(NoiseName::Secure);
        }
        // A server has no records to standardise by.
        config.standardize = Auto::Given(config.standardize.or(false));
        if private_ranges(config.schema.as_deref()).is_some() {
            return Err(ConfigError::with_hint(
                "`range = \"private\"` is for simulations: a deployment needs ranges that are known",
                "give the columns ranges, or ask whoever owns the records for what they would know \
                 without them",
            )
            .into());
        }
        if config.holdout.is_some() {
            return Err(ConfigError::with_hint(
                "`data.holdout` is for simulations: the records of a deployment are the clients', \
                 and a server holds none of them out",
                "give the server a test set of its own in data.test, or none",
            )
            .into());
        }
        if config.source == Source::Clients && config.records.is_none() {
            return Err(ConfigError::with_hint(
                "`data.source = \"clients\"` says that the server owns no records, but not how \
                 many the clients have",
                "give deployment.records: how many the smallest client has",
            )
            .into());
        }
        let (plan, warnings) = if config.records.is_some() {
            Self::without_records(&config, directories)?
        } else {
            Self::with_records(&config, directories)?
        };
        let own = (test_seed.is_none())
            .then(|| delta_of_clients(&plan.resolved, plan.smallest))
            .flatten();
        let advice = plan.advice()?;
        let warnings = warnings.into_iter().chain(advice).chain(own).collect();
        Ok((plan, warnings))
    }

    /// What can be foreseen from public quantities and the server's own test set.
    fn advice(&self) -> Result<Vec<String>, RunPlanError> {
        let dimension = self.model.objective().dimension();
        let run = self.resolved.specification();
        let sigmas = self
            .records
            .iter()
            .map(|&records| accounting::noise(&run, dimension, records))
            .collect::<Result<Vec<f64>, _>>()?;
        let weights = problem::weights(&self.resolved, &self.records);
        let ratio = advice::signal_to_noise(&self.resolved, dimension, &sigmas, &weights);
        let noise = advice::noise(ratio, dimension);
        let claim = accounting::claim(&run);
        let presumed = advice::persons(run.records_per_person, &claim);
        let persons = presumed.filter(|_| !self.shape.bounds_persons());
        Ok(noise
            .into_iter()
            .chain(persons)
            .chain(self.columns())
            .collect())
    }

    /// Whether the columns of the server's own test set are far out of scale.
    pub fn columns(&self) -> Option<String> {
        let as_read = self.basis.is_none() && self.features.kind() == FeatureKind::None;
        let test = self.test.as_deref().filter(|_| as_read)?;
        let constant = self.model.intercept();
        advice::columns([test], constant, "the server's own test set")
    }

    /// The server can load what the clients have: a public set, or a simulation on one machine.
    fn with_records(
        config: &Config,
        directories: &DataDirectories,
    ) -> Result<(Self, Vec<String>), RunPlanError> {
        let problem = Problem::load(config, directories).map_err(|error| match error {
            ProblemError::Data(error) => configured(error),
            error => error.into(),
        })?;
        let (resolved, warnings) = problem.resolve(config)?;
        let data_dependent = problem.data_dependent();
        let records = problem.sizes();
        let smallest = records.iter().copied().min().unwrap_or(1);
        let plan = Self {
            resolved,
            shape: problem.shape,
            model: problem.preparation.model,
            test: problem.test.map(Arc::new),
            scaling: problem.scaling,
            features: problem.preparation.features,
            basis: problem.preparation.basis,
            intercept: problem.intercept,
            records,
            data_dependent,
            smallest,
        };
        Ok((plan, warnings))
    }

    /// The server owns no records: the configuration, or the test set, says what they look like.
    fn without_records(
        config: &Config,
        directories: &DataDirectories,
    ) -> Result<(Self, Vec<String>), RunPlanError> {
        let given = config.features.as_ref();
        let schema = Schema {
            columns: given.map(FeatureList::count),
            feature_names: given.and_then(|list| list.names().map(Into::into)),
            label_names: config.labels.clone().map(Into::into),
            table: config.schema.clone(),
            targets: config.regression()?,
            ..Schema::default()
        };
        let test = match &config.test {
            None => None,
            Some(source) => {
                let loaded = source.load_as(&schema, directories, config.seed);
                let loaded = loaded.map_err(configured)?;
                Some(loaded.test.unwrap_or(loaded.train))
            }
        };
        let shape = match &config.schema {
            _ if config.is_elsewhere() => RecordShape::elsewhere(),
            Some(schema) => shape_of_table(config, schema)?,
            None => shape_of_numbers(config, test.as_ref())?,
        };
        let preparation = Preparation::of(config, &shape)?;
        let records = vec![config.records.unwrap_or(1); config.clients()?];
        let (mut resolved, warnings) = config.resolve(&preparation.shape(records.clone()))?;
        let Preparation {
            model,
            features: map,
            basis,
            ..
        } = preparation;
        // What was found in the test set is written down: another one cannot change what was
        // agreed.
        if config.schema.is_none() && !config.is_elsewhere() {
            let count = FeatureList::Count(shape.features);
            resolved.features = Some(shape.names.clone().map_or(count, FeatureList::Names));
            resolved.labels = Some(shape.labels.clone());
        }
        let mut plan = Self {
            resolved,
            shape,
            model,
            test: None,
            scaling: Scaling::identity(),
            features: map,
            basis,
            intercept: 0.0,
            smallest: records.first().copied().unwrap_or(1),
            records,
            data_dependent: false,
        };
        // The description knows the constants, or that there are none.
        let start = plan.model.start(&plan.resolved)?;
        let (shape, resolved) = (plan.shape.clone(), &plan.resolved);
        let outline = Description::new(resolved, shape, &plan.model, &start, None, [0; 16])?;
        let scaling = outline.scaling()?;
        plan.scaling = scaling.clone();
        if outline.intercept() {
            plan.intercept = constant_feature(&scaling, plan.shape.features + 1);
        }
        if let Some(mut test) = test {
            if outline.intercept() {
                test = test.with_intercept();
            }
            test = scaling.apply(test)?;
            if plan.features.kind() != FeatureKind::None {
                let threads = std::thread::available_parallelism().map_or(1, usize::from);
                test = plan.features.apply_by(test, threads)?;
            }
            if let Some(basis) = basis {
                test = basis.apply(test)?;
            }
            plan.test = Some(Arc::new(test));
        }
        Ok((plan, warnings))
    }

    /// The file `config.toml`.
    pub fn config_toml(&self, test_seed: Option<u64>) -> String {
        self.resolved.to_deployed_toml(test_seed)
    }

    /// What the server measures on.
    pub fn test_set(&self) -> Option<TestSet> {
        let test = self.test.as_ref()?;
        let source = self.resolved.test.as_ref();
        Some(TestSet {
            // A public set may bring its own.
            source: source.unwrap_or(&self.resolved.source).to_string(),
            records: test.rows(),
        })
    }

    /// The description of a new run, or of the one that the state at `place` holds, which must be
    /// this configuration's.
    ///
    /// # Errors
    /// When it is not, or cannot be described.
    pub fn describe(
        &self,
        test_seed: Option<u64>,
        stored: Option<&str>,
        place: &str,
    ) -> Result<Description, RunPlanError> {
        if self.data_dependent {
            return Err(RunPlanError::DataDependent);
        }
        let mut nonce = [0; 16];
        match stored {
            Some(text) => {
                let line = text.lines().find_map(|line| line.strip_prefix("nonce = "));
                let found = line.and_then(|line| super::unhex(line.trim_matches('"')));
                nonce = found.unwrap_or_default();
            }
            None => {
                let key = SecretKey::from_operating_system()?;
                nonce.copy_from_slice(&key.expose()[..16]);
            }
        }
        let description = Description::new(
            &self.resolved,
            self.shape.clone(),
            &self.model,
            &self.model.start(&self.resolved)?,
            test_seed,
            nonce,
        )?;
        match stored {
            Some(text) if text != description.text() => {
                Err(RunPlanError::OtherRun(place.to_string()))
            }
            _ => Ok(description),
        }
    }
}

/// What records look like that are read through a schema.
fn shape_of_table(config: &Config, schema: &Arc<TableSchema>) -> Result<RecordShape, ConfigError> {
    if config.features.is_some() || config.labels.is_some() {
        return Err(ConfigError::with_hint(
            "the schema says what records look like, and so do `deployment.features` and \
             `deployment.labels`",
            "leave those two out",
        ));
    }
    let labels = match schema.target() {
        Target::Classes(classes) => classes.to_vec(),
        // Numbers to predict have no names.
        Target::Quantity { .. } => Vec::new(),
    };
    Ok(RecordShape {
        features: schema.features().len(),
        names: Some(schema.features().to_vec()),
        schema: Some(Arc::clone(schema)),
        labels,
        targets: config.regression()?,
    })
}

/// What records of numbers look like, by the configuration or by the test set.
fn shape_of_numbers(config: &Config, test: Option<&Dataset>) -> Result<RecordShape, ConfigError> {
    let given = config.features.as_ref();
    let names = || Some(test?.feature_names()?.to_vec());
    let features = given.map(FeatureList::count).or(test.map(Dataset::columns));
    let targets = config.regression()?;
    // Numbers to predict have no names.
    let none = targets.map(|_| Vec::new());
    let labels = none.or(config.labels.clone());
    let labels = labels.or_else(|| Some(test?.label_names().to_vec()));
    let (Some(features), Some(labels)) = (features, labels) else {
        return Err(ConfigError::with_hint(
            "`deployment.records` says that the server owns no records, but not what they look like",
            "give the table's [schema], or deployment.features and deployment.labels, or a test \
             set in data.test",
        ));
    };
    Ok(RecordShape {
        features,
        names: given
            .and_then(FeatureList::names)
            .map(<[String]>::to_vec)
            .or_else(names),
        schema: None,
        labels,
        targets,
    })
}

/// What a coordinator should hear whose delta is larger than that of some client: its epsilon is
/// not the one that clients compare with their limits.
fn delta_of_clients(resolved: &Resolved, smallest: usize) -> Option<String> {
    let own = Deltas::of(smallest as u64, None, MOST_READ).own;
    if resolved.noise_target == NoiseTarget::None || resolved.delta <= own {
        return None;
    }
    let (delta, own) = (readable(resolved.delta), readable(own));
    Some(format!(
        "clients judge at a delta of their own, {own} for {}: there this run costs more than at \
         `privacy.delta` = {delta}, and one whose --max-epsilon is the run's epsilon refuses it; \
         with `privacy.delta` = {own} both sides mean the same",
        counted(smallest, "record"),
    ))
}

/// A file that the configuration names and that is not there makes the configuration wrong: whoever
/// starts servers should not try it again, as it does what merely failed.
fn configured(error: DataError) -> RunPlanError {
    match &error {
        DataError::File { error: reason, .. } if reason.kind() == ErrorKind::NotFound => {
            RunPlanError::Missing(error)
        }
        _ => error.into(),
    }
}
