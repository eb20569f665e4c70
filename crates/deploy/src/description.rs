//! The run as both sides see it: one canonical text, whose hash names the run in every message.
//!
//! The text has two parts. The head says what a client cannot know without the server's files: the
//! shape of the records (with the names of features, where they have some), the digest of the
//! start, whether secrets are derived from a test seed, and a nonce, so that the same configuration
//! started anew is another run. The rest is a resolved configuration, as in `config.toml`, without
//! file names. Reading it back resolves it again and must give the same text, so nothing in it can
//! be left to choice.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use sha2::{Digest, Sha256};
use soteriafl_core::{moments, preliminary};
use soteriafl_data::schema::Ranges;
use soteriafl_data::{
    Constants, Cosine, FeatureMap, Partition, RecordsError, Scaling, Schema, Source, TargetRange,
};

use super::{Hash, digest, hex, unhex};
use soteriafl::config::resolve::{Resolved, StepSizeOrigin};
use soteriafl::config::{Config, ConfigError, Document, Init, Output, ScaleChoice};
use soteriafl::problem::{Model, Preparation, ProblemError};
use soteriafl::record_shape::RecordShape;
use soteriafl::schema_text;

/// Bytes of the run's name in messages.
pub const RUN_ID_LEN: usize = 16;

/// Most parameters that a client holds in memory for a server (1 GB a vector).
pub const LARGEST_MODEL: usize = 1 << 28;

/// Most clients of a run.
pub const MOST_CLIENTS: usize = 1 << 24;

/// Largest scaling constant, and the inverse of the smallest factor.
const LARGEST_CONSTANT: f64 = (1u64 << 62) as f64;

/// Longest text that a client reads.
pub const LONGEST: usize = 1 << 20;

const FIRST_LINE: &str = "# SoteriaFL run description, version 2";
const ANY_VERSION: &str = "# SoteriaFL run description, version ";
const DIVIDER: &str = "---\n";

/// Why a text describes no run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DescriptionError {
    /// The text is not one of ours, or of another version.
    #[error("the run description is not understood: {0}")]
    Malformed(String),
    /// The configuration in it is wrong.
    #[error("the run description: {0}")]
    Config(#[from] ConfigError),
    /// The model cannot be built.
    #[error("the run description: {0}")]
    Problem(#[from] ProblemError),
    /// Only constants are taken for scaling.
    #[error("deployment takes scaling constants only, not `data.scale = \"{0}\"`")]
    Scale(&'static str),
    /// Ranges that only records have given.
    #[error(
        "deployment takes a schema whose ranges are public: look at every range, and write `ranges = \"public\"` once they are what you would know without records"
    )]
    Ranges,
    /// Numbers that only records can give.
    #[error("deployment does not standardise columns by their records (`data.standardize`)")]
    Standardize,
    /// Scaling constants that no features need.
    #[error("the run description scales by constants beyond 2^62")]
    Constants,
    /// Clients would not read it.
    #[error(
        "the run description has {0} bytes, of at most {LONGEST}: features or classes have too many or too long names"
    )]
    TooLong(usize),
    /// Names that cannot be read back.
    #[error("names of features and classes cannot have line breaks")]
    Names,
    /// It names a file.
    #[error("the run description names a file or folder, which is refused")]
    Path,
    /// Something that only simulations have.
    #[error("networked runs do not have {0}")]
    Simulated(&'static str),
    /// The step size depends on somebody's records.
    #[error(
        "deployment needs a step size that no record decided: a number, not \"theory\", and no `algorithm.step_size_from_data = true`"
    )]
    StepSize,
}

/// A run that was agreed on.
#[derive(Clone, Debug)]
pub struct Description {
    text: String,
    hash: Hash,
    /// The configuration, for a client with the number of records that it was resolved for.
    pub resolved: Resolved,
    /// The records' shape.
    pub shape: RecordShape,
    /// The model.
    pub model: Model,
    /// Digest of the start.
    pub start: Hash,
    /// The seed of all secrets in a test; such a run claims nothing.
    pub test_seed: Option<u64>,
    /// What its reader should hear, e.g. of a large delta.
    pub warnings: Vec<String>,
}

impl Description {
    /// Describes a run. `start` is the model it starts from, `nonce` makes it one of its kind.
    ///
    /// # Errors
    /// When the configuration uses what deployment does not take.
    pub fn new(
        resolved: &Resolved,
        shape: RecordShape,
        model: &Model,
        start: &[f32],
        test_seed: Option<u64>,
        nonce: [u8; 16],
    ) -> Result<Self, DescriptionError> {
        if resolved.step_size_origin != StepSizeOrigin::Public {
            return Err(DescriptionError::StepSize);
        }
        check_simulated(resolved)?;
        check_ranges(&shape)?;
        let mut resolved = resolved.clone();
        if resolved.standardize {
            return Err(DescriptionError::Standardize);
        }
        resolved.scale = constants(resolved.scale, &resolved.source)?;
        resolved.source = without_folder(&resolved.source);
        resolved.test = None;
        // The head says it, for every run.
        (resolved.features, resolved.labels) = (None, None);
        (resolved.schema, resolved.natural) = (None, None);
        if matches!(resolved.init, Init::File(_)) {
            // The start travels as numbers; its digest is what counts.
            resolved.init = Init::Zeros;
        }
        let dimension = start.len();
        let start = digest(start);
        let text = text(&resolved, &shape, dimension, &start, test_seed, nonce);
        if text.len() > LONGEST {
            return Err(DescriptionError::TooLong(text.len()));
        }
        // A name with line breaks could look like the end of the head.
        if shape_of(&text).as_ref() != Some(&shape) {
            return Err(DescriptionError::Names);
        }
        Ok(Self {
            hash: Sha256::digest(text.as_bytes()).into(),
            text,
            resolved,
            shape,
            model: model.clone(),
            start,
            test_seed,
            warnings: Vec::new(),
        })
    }

    /// Reads a text, for a client with `records` records (or, at the server, any number).
    ///
    /// # Errors
    /// When it is none, or does not fit that many records.
    pub fn parse(text: &str, records: usize) -> Result<Self, DescriptionError> {
        let malformed = |reason: &str| DescriptionError::Malformed(reason.to_string());
        if text.len() > LONGEST {
            return Err(malformed("it is too long"));
        }
        if text.starts_with(ANY_VERSION) && text.lines().next() != Some(FIRST_LINE) {
            return Err(malformed("it is of another version of the program"));
        }
        let (head, rest) = text
            .split_once(DIVIDER)
            .filter(|_| text.starts_with(FIRST_LINE))
            .ok_or_else(|| malformed("it begins differently"))?;
        let head: toml::Table = head.parse().map_err(|_| malformed("its head is no TOML"))?;
        let number = |key: &str| head.get(key).and_then(toml::Value::as_integer);
        let string = |key: &str| head.get(key).and_then(toml::Value::as_str);
        let size = |key: &str| number(key).and_then(|value| usize::try_from(value).ok());
        let (Some(shape), Some(dimension), Some(start), Some(nonce)) = (
            shape_of(text),
            size("dimension"),
            string("start").and_then(unhex::<32>),
            string("nonce").and_then(unhex::<16>),
        ) else {
            return Err(malformed("its head lacks something"));
        };
        let test_seed = string("test_seed").and_then(|seed| seed.parse().ok());
        let document = Document::from_text(rest, "run description")?;
        // Reading the configuration would open it.
        if document.has("data.schema") {
            return Err(DescriptionError::Path);
        }
        let config = Config::read(&document)?;
        // The head says it.
        if config.schema.is_some() || config.natural.is_some() {
            return Err(malformed("its configuration names columns"));
        }
        if config.is_elsewhere() && shape != RecordShape::elsewhere() {
            return Err(malformed("it shapes records that it does not read"));
        }
        check_ranges(&shape)?;
        let clients = config.clients()?;
        let preparation = Preparation::of(&config, &shape)?;
        // Before anything of this size is made.
        if preparation.model.objective().dimension() != dimension
            || dimension > LARGEST_MODEL
            || clients > MOST_CLIENTS
        {
            return Err(malformed("its numbers contradict each other"));
        }
        let shape_of_run = preparation.shape(vec![records; clients]);
        let (resolved, warnings) = config.resolve(&shape_of_run)?;
        check_simulated(&resolved)?;
        let again =
            super::description::text(&resolved, &shape, dimension, &start, test_seed, nonce);
        if again != text {
            return Err(malformed("it is not canonical"));
        }
        if resolved.step_size_origin != StepSizeOrigin::Public {
            return Err(DescriptionError::StepSize);
        }
        if resolved.standardize {
            return Err(DescriptionError::Standardize);
        }
        match resolved.scale {
            ScaleChoice::None => {}
            // Judged as they are written; what they do to a record must not be heard of.
            ScaleChoice::Constant { center, factor }
                if center.abs() <= LARGEST_CONSTANT
                    && (1.0 / LARGEST_CONSTANT..=LARGEST_CONSTANT).contains(&factor) => {}
            ScaleChoice::Constant { .. } => return Err(DescriptionError::Constants),
            _ => return Err(DescriptionError::Scale("that of this run")),
        }
        // A server has no business with files of its clients.
        if matches!(resolved.init, Init::File(_))
            || resolved.test.is_some()
            || without_folder(&resolved.source) != resolved.source
        {
            return Err(DescriptionError::Path);
        }
        Ok(Self {
            text: again,
            hash: Sha256::digest(text.as_bytes()).into(),
            resolved,
            shape,
            model: preparation.model,
            start,
            test_seed,
            // Every key is given in a resolved configuration, whether it is used or not.
            warnings: warnings
                .into_iter()
                .filter(|warning| !warning.contains("is ignored"))
                .collect(),
        })
    }

    /// The text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Its SHA-256 digest: the run's name.
    pub fn hash(&self) -> &Hash {
        &self.hash
    }

    /// What stands for it in messages: the digest's first half.
    pub fn run_id(&self) -> [u8; RUN_ID_LEN] {
        let mut id = [0; RUN_ID_LEN];
        id.copy_from_slice(&self.hash[..RUN_ID_LEN]);
        id
    }

    /// Parameters of the model.
    pub fn dimension(&self) -> usize {
        self.model.objective().dimension()
    }

    /// How features are scaled: by constants, or not at all.
    ///
    /// # Errors
    /// When the constants are none.
    pub fn scaling(&self) -> Result<Scaling, RecordsError> {
        match self.resolved.scale {
            ScaleChoice::Constant { center, factor } => {
                Scaling::constants(Constants::Same(center), Constants::Same(factor))
            }
            _ => Ok(Scaling::identity()),
        }
    }

    /// The public map that scaled records go through.
    ///
    /// # Errors
    /// When it is not for them.
    pub fn features(&self) -> Result<FeatureMap, RecordsError> {
        FeatureMap::new(self.resolved.feature_map, self.shape.features)
    }

    /// Bytes of the longest message that a client sends before the first round.
    pub fn longest_release(&self) -> usize {
        let columns = self.features().map_or(0, |features| features.outputs());
        match self.resolved.whiten {
            Some(_) => preliminary::message_len(moments::entries(columns)),
            None => 0,
        }
    }

    /// The basis that scaled records are written in.
    ///
    /// # Errors
    /// When it is not for them.
    pub fn basis(&self) -> Result<Option<Cosine>, RecordsError> {
        let frequencies = self.resolved.basis;
        frequencies
            .map(|frequencies| Cosine::new(self.shape.features, frequencies))
            .transpose()
    }

    /// Whether a column says whose each record is, so that clients bound what they bring of one
    /// person.
    pub fn bounds_persons(&self) -> bool {
        self.shape.bounds_persons()
    }

    /// That column.
    pub fn person_column(&self) -> Option<&str> {
        self.shape.person_column()
    }

    /// Whether records get a constant feature.
    pub fn intercept(&self) -> bool {
        self.resolved.model.is_linear() && self.resolved.intercept
    }

    /// What records must look like.
    pub fn schema(&self) -> Schema {
        Schema {
            columns: Some(self.shape.features),
            feature_names: self.shape.names.clone().map(Into::into),
            label_names: (self.shape.targets.is_none()).then(|| self.shape.labels.clone().into()),
            targets: self.shape.targets,
            table: self.shape.schema.clone(),
            ..Schema::default()
        }
    }

    /// The start, if the description is enough to compute it; otherwise it must be asked for.
    pub fn compute_start(&self) -> Option<Vec<f32>> {
        let start = self.model.start(&self.resolved).ok()?;
        (digest(&start) == self.start).then_some(start)
    }
}

/// Refuses what only simulations have, with the reason.
fn check_simulated(resolved: &Resolved) -> Result<(), DescriptionError> {
    if resolved.holdout.is_some() {
        return Err(DescriptionError::Simulated(
            "`data.holdout`: the records are the clients', who train on all that they bring",
        ));
    }
    if resolved.gossip.is_some() {
        return Err(DescriptionError::Simulated(
            "clients without a server (sdm-dsgd, q-dpsgd-1, porter): in a deployment all clients have the model of one",
        ));
    }
    if resolved.output == Output::Random {
        return Err(DescriptionError::Simulated(
            "`algorithm.output = \"random\"`: all clients see every model, and the last one is the result",
        ));
    }
    if resolved.trusted_aggregation {
        return Err(DescriptionError::Simulated(
            "`privacy.trusted_aggregation`: their server sees every message, and each client hides its own records",
        ));
    }
    Ok(())
}

/// Refuses a schema that somebody read from records: a run with it claims nothing.
fn check_ranges(shape: &RecordShape) -> Result<(), DescriptionError> {
    match &shape.schema {
        Some(schema) if schema.ranges() == Ranges::ReadFromRecords => Err(DescriptionError::Ranges),
        Some(schema) if !schema.private_numbers().is_empty() => {
            Err(DescriptionError::Simulated("private ranges"))
        }
        _ => Ok(()),
    }
}

/// The shape of records that a description's text names.
pub fn shape_of(text: &str) -> Option<RecordShape> {
    let head: toml::Table = text.split_once(DIVIDER)?.0.parse().ok()?;
    let strings = |value: &toml::Value| {
        let strings = value.as_array()?.iter();
        let strings = strings.map(|text| text.as_str().map(str::to_string));
        strings.collect::<Option<Vec<_>>>()
    };
    let features = usize::try_from(head.get("features")?.as_integer()?).ok()?;
    let names = match head.get("names") {
        Some(names) => Some(strings(names).filter(|names| names.len() == features)?),
        None => None,
    };
    let schema = match head.get("schema") {
        Some(schema) => {
            let schema = schema_text::read(schema.as_table()?, "run description").ok()?;
            Some(Arc::new(schema))
        }
        None => None,
    };
    // The schema makes the features and classes, so they cannot be others.
    if let Some(schema) = &schema
        && names.as_deref() != Some(&schema.features()[..])
    {
        return None;
    }
    Some(RecordShape {
        features,
        names,
        schema,
        labels: strings(head.get("labels")?)?,
        targets: match head.get("target_range") {
            Some(range) => Some(range_of(range)?),
            None => None,
        },
    })
}

/// The range of targets in a description's head.
fn range_of(value: &toml::Value) -> Option<TargetRange> {
    match &value.as_array()?[..] {
        [low, high] => TargetRange::new(low.as_float()?, high.as_float()?).ok(),
        _ => None,
    }
}

/// What decides which records of a source are in a run: of a part `SOURCE:i/n`, besides `i` and
/// `n`, and of persons with too many.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dealing {
    seed: u64,
    rows: Option<usize>,
    partition: Partition,
    /// How many records of a person are kept, where a column says who is who, and by which schema: a
    /// record's digest is of what the schema makes of it.
    bounded: Option<(u32, Hash)>,
}

impl Dealing {
    /// How the run with this description deals; `None` if the text is none.
    pub fn of(text: &str) -> Option<Self> {
        let (head, config) = unchecked(text)?;
        let shape = shape_of(text)?;
        Some(Self {
            bounded: shape.bounds_persons().then(|| {
                let schema = Sha256::digest(super::schema_pin::text(&shape).as_bytes());
                (config.records_per_person, schema.into())
            }),
            seed: config.seed,
            rows: config.rows,
            partition: Self::partition(config.partition, head.contains_key("test_seed")),
        })
    }

    /// Whether the run chooses among the records of a person.
    pub fn bounds_persons(&self) -> bool {
        self.bounded.is_some()
    }

    /// Dealing by labels, one record would move others from part to part: only a test, which claims
    /// nothing, may do it.
    pub fn partition(configured: Partition, test: bool) -> Partition {
        if test { configured } else { Partition::Iid }
    }
}

/// Whether the clients of the run with this description compute its model themselves, or may: a
/// text that cannot be read says nothing.
pub fn may_be_elsewhere(text: &str) -> bool {
    unchecked(text).is_none_or(|(_, config)| config.is_elsewhere())
}

/// The head of a text that nobody has checked, and the settings that follow it.
fn unchecked(text: &str) -> Option<(toml::Table, Config)> {
    let (head, rest) = text.split_once(DIVIDER)?;
    let mut document = Document::from_text(rest, "run description").ok()?;
    // It must not open files.
    document.remove("data.schema");
    Some((head.parse().ok()?, Config::read(&document).ok()?))
}

fn text(
    resolved: &Resolved,
    shape: &RecordShape,
    dimension: usize,
    start: &Hash,
    test_seed: Option<u64>,
    nonce: [u8; 16],
) -> String {
    let seed = test_seed.map_or(String::new(), |seed| format!("test_seed = \"{seed}\"\n"));
    format!(
        "{FIRST_LINE}\nnonce = \"{}\"\n{}dimension = {dimension}\nstart = \"{}\"\n{seed}{DIVIDER}{}",
        hex(&nonce),
        super::schema_pin::text(shape),
        hex(start),
        resolved.sections(),
    )
}

/// The same scaling by constants that depend on nobody's records.
fn constants(scale: ScaleChoice, source: &Source) -> Result<ScaleChoice, DescriptionError> {
    match scale {
        ScaleChoice::None | ScaleChoice::Constant { .. } => Ok(scale),
        ScaleChoice::Standard => match source.public_scaling() {
            Some(scaling) => Ok(ScaleChoice::Constant {
                center: scaling.center().at(0),
                factor: scaling.factor().at(0),
            }),
            None => Err(DescriptionError::Scale("standard")),
        },
        ScaleChoice::Spectral => Err(DescriptionError::Scale("spectral")),
        ScaleChoice::PerFeature => Err(DescriptionError::Scale("per-feature")),
    }
}

/// Where the server keeps its files is nobody's business.
fn without_folder(source: &Source) -> Source {
    let name = |path: &Path| PathBuf::from(path.file_name().unwrap_or_default());
    match source {
        Source::Libsvm { path, features } => Source::Libsvm {
            path: name(path),
            features: *features,
        },
        Source::Table { path, format } => Source::Table {
            path: name(path),
            format: format.clone(),
        },
        Source::Npy { path, label } => Source::Npy {
            path: name(path),
            label: label.clone(),
        },
        Source::Npz { path } => Source::Npz { path: name(path) },
        Source::Idx { directory } => Source::Idx {
            directory: name(directory),
        },
        other => other.clone(),
    }
}
