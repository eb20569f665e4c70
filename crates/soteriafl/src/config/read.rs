//! From what was typed to what it means.

use std::path::Path;
use std::sync::Arc;

use soteriafl_data::schema::{Role, Target};
use soteriafl_data::{FeatureKind, Partition, Source, TableSchema, TargetRange};
use toml::Value;

use super::document::{ConfigError, Document, KEYS};
use super::elsewhere;
use super::gossip;
use super::table::PRESETS;
use super::values::{
    COORDINATES, MOST_OF_PERSON, auto, basis, choice, class_weights, count, feature_list, init,
    names, not_negative, number, optional, positive, probability, range, share, small, some,
    theory_or, word, word_or,
};
use super::{
    AccountantName, Adjacency, Auto, ClipScope, Config, EstimatorKind, LossName, NaturalClients,
    NoiseTarget, Preset, ScaleChoice, ShiftChoice,
};
use crate::schema_text;

/// Reads keys into the fields of a configuration: field, key, and what parses it.
macro_rules! read_keys {
    ($config:expr, $document:expr; $($field:ident: $key:literal = $parse:expr;)+) => {
        $($document.read_into(&mut $config.$field, $key, $parse)?;)+
    };
}

impl Config {
    /// Reads every key; the literal says what holds where nothing is typed.
    ///
    /// # Errors
    /// When a value is of the wrong type, out of range, or contradicts another.
    pub fn read(document: &Document) -> Result<Self, ConfigError> {
        let d = document;
        refuse_biased(d)?;
        refuse_missing_rows(d)?;
        let source = source_of(d, "data.source")?.unwrap_or_else(|| source_without_name(d));
        let schema = schema(d)?;
        let mut config = Self {
            test: source_of(d, "data.test")?,
            rows: None,
            holdout: None,
            target_range: target_range(d, schema.as_deref())?,
            natural: natural(d, &source, schema.as_deref())?,
            schema,
            source,
            clients: Auto::Auto,
            partition: Partition::Sorted,
            scale: scale(d)?,
            feature_map: Auto::Auto,
            whiten: Auto::Auto,
            basis: Auto::Auto,
            standardize: Auto::Auto,
            equal_weights: false,
            task: Auto::Auto,
            loss: LossName::Squared,
            huber: Auto::Auto,
            class_weights: None,
            model: Auto::Auto,
            elsewhere: elsewhere::read(d)?,
            hidden: vec![64],
            activation: Auto::Auto,
            intercept: true,
            regularizer: Auto::Auto,
            lambda: 0.001,
            regularizer_at_client: false,
            init: Auto::Auto,
            preset: Preset::Auto,
            estimator: Auto::Auto,
            batch: Auto::Auto,
            snapshot_probability: Auto::Auto,
            compressor: Auto::Auto,
            fraction: Auto::Auto,
            k: Auto::Auto,
            values: Auto::Auto,
            shared_coordinates: Auto::Auto,
            levels: 16,
            downlink: super::downlink::read(d)?,
            grid_step: 0.01,
            grid_bits: 10,
            topology: gossip::topology(d)?,
            mixing: Auto::Auto,
            shift: Auto::Auto,
            step_size: Auto::Auto,
            step_size_from_data: false,
            schedule: Auto::Auto,
            momentum: Auto::Auto,
            memory: Auto::Auto,
            keep: Auto::Auto,
            restart: Auto::Auto,
            step_cap: None,
            smoothing: Auto::Auto,
            equalize: Auto::Auto,
            rounds: Auto::Auto,
            output: Auto::Auto,
            participation: 1.0,
            noise_target: noise_target(d)?,
            delta: 1e-5,
            adjacency: Adjacency::ReplaceOne,
            records_per_person: 1,
            clip: Auto::Auto,
            clip_scope: Auto::Auto,
            with_replacement: false,
            difference_clip: Auto::Auto,
            difference_scale: Auto::Auto,
            noise_ratio: Auto::Auto,
            trusted_aggregation: Auto::Auto,
            accountant: AccountantName::Pld,
            amplification: true,
            noise: Auto::Auto,
            quorum: None,
            deadline: None,
            features: None,
            labels: None,
            records: None,
            most_records: None,
            seed: 0,
            eval_every: 1,
            given: KEYS
                .iter()
                .filter(|(key, _)| d.has(key))
                .map(|(key, _)| (*key).to_string())
                .collect(),
        };
        config.read_data(d)?;
        config.read_model(d)?;
        config.read_messages(d)?;
        config.read_steps(d)?;
        config.read_privacy(d)?;
        config.read_deployment(d)?;
        Ok(config)
    }

    /// The section `data`.
    fn read_data(&mut self, d: &Document) -> Result<(), ConfigError> {
        read_keys! { self, d;
            rows: "data.rows" = optional("all", count);
            holdout: "data.holdout" = some(share);
            clients: "data.clients" = |value| count(value).map(Auto::Given);
        }
        let alpha = d.read("data.alpha", 0.3, positive)?;
        let partition = |value: &Value| match value.as_str()? {
            // The data decides, and nothing is left to deal.
            "files" => Some(Partition::Sorted),
            name if name.len() > 7 && name.starts_with("column:") => Some(Partition::Sorted),
            name => Partition::from_name(name, alpha).ok(),
        };
        read_keys! { self, d;
            partition: "data.partition" = partition;
            feature_map: "data.features" = auto(word::<FeatureKind>);
            whiten: "data.whiten" = auto(optional("none", share));
            basis: "data.basis" = auto(basis);
            standardize: "data.standardize" = auto(Value::as_bool);
            equal_weights: "data.weighting" = choice(&[("records", false), ("equal", true)]);
        }
        Ok(())
    }

    /// The section `model`.
    fn read_model(&mut self, d: &Document) -> Result<(), ConfigError> {
        read_keys! { self, d;
            task: "model.task" = auto(word);
            loss: "model.loss" = word;
            huber: "model.huber" = auto(positive);
            class_weights: "model.class_weights" = some(class_weights);
            model: "model.kind" = auto(word);
            hidden: "model.hidden" = |value| value.as_array()?.iter().map(count).collect();
            activation: "model.activation" = auto(word);
            intercept: "model.intercept" = Value::as_bool;
            regularizer: "model.regularizer" = auto(word);
            lambda: "model.lambda" = not_negative;
            regularizer_at_client: "model.regularizer_at" =
                choice(&[("server", false), ("client", true)]);
            init: "model.init" = auto(init);
        }
        Ok(())
    }

    /// Of the section `algorithm`: what a client estimates, and what of it travels.
    fn read_messages(&mut self, d: &Document) -> Result<(), ConfigError> {
        read_keys! { self, d;
            preset: "algorithm.preset" = choice(PRESETS);
            estimator: "algorithm.estimator" = auto(word::<EstimatorKind>);
            batch: "algorithm.batch" = auto(optional("all", positive));
            snapshot_probability: "algorithm.snapshot_probability" = auto(probability);
            compressor: "algorithm.compressor" = auto(word);
            fraction: "algorithm.fraction" = auto(probability);
            k: "algorithm.k" = auto(count);
            values: "algorithm.values" = auto(count);
            shared_coordinates: "algorithm.coordinates" = auto(choice(COORDINATES));
            levels: "algorithm.levels" = small;
            grid_step: "algorithm.grid_step" = positive;
            grid_bits: "algorithm.grid_bits" =
                |value| small(value).filter(|bits| (2..=24).contains(bits));
            memory: "algorithm.memory" = auto(probability);
            keep: "algorithm.keep" = auto(|value| not_negative(value).filter(|keep| *keep <= 1.0));
            restart: "algorithm.restart" = auto(optional("first", small));
        }
        Ok(())
    }

    /// Of the section `algorithm`: what becomes of the messages.
    fn read_steps(&mut self, d: &Document) -> Result<(), ConfigError> {
        let step = |value: &Value| not_negative(value).map(ShiftChoice::Step);
        let passes = |n: &f64| n.fract() == 0.0 && *n <= 64.0;
        read_keys! { self, d;
            mixing: "algorithm.mixing" = auto(positive);
            shift: "algorithm.shift" = auto(word_or("off", ShiftChoice::Off, step));
            step_size: "algorithm.step_size" = auto(theory_or(positive));
            step_size_from_data: "algorithm.step_size_from_data" = Value::as_bool;
            schedule: "algorithm.schedule" = auto(word);
            momentum: "algorithm.momentum" = auto(|value| not_negative(value).filter(|m| *m < 1.0));
            step_cap: "algorithm.step_cap" = optional("none", positive);
            smoothing: "algorithm.smoothing" =
                auto(|value| not_negative(value).filter(passes).map(|n| n as u32));
            equalize: "algorithm.equalize" = auto(not_negative);
            rounds: "algorithm.rounds" = auto(theory_or(small));
            output: "algorithm.output" = auto(word);
            participation: "algorithm.participation" = probability;
        }
        Ok(())
    }

    /// The section `privacy`.
    fn read_privacy(&mut self, d: &Document) -> Result<(), ConfigError> {
        read_keys! { self, d;
            delta: "privacy.delta" = share;
            adjacency: "privacy.adjacency" = word;
            records_per_person: "privacy.records_per_person" =
                |value| small(value).filter(|most| *most <= MOST_OF_PERSON);
            clip: "privacy.clip" = auto(optional("none", positive));
            clip_scope: "privacy.clip_scope" = auto(word::<ClipScope>);
            with_replacement: "privacy.sampling" =
                choice(&[("poisson", false), ("with-replacement", true)]);
            difference_clip: "privacy.difference_clip" = auto(optional("none", positive));
            difference_scale: "privacy.difference_scale" = auto(optional("none", positive));
            noise_ratio: "privacy.noise_ratio" =
                auto(|value| number(value).filter(|ratio| *ratio >= 1.0));
            trusted_aggregation: "privacy.trusted_aggregation" = auto(Value::as_bool);
            accountant: "privacy.accountant" = word;
            amplification: "privacy.amplification" = choice(&[("auto", true), ("off", false)]);
            noise: "privacy.noise" = auto(word);
        }
        Ok(())
    }

    /// The sections `deployment` and `run`.
    fn read_deployment(&mut self, d: &Document) -> Result<(), ConfigError> {
        read_keys! { self, d;
            quorum: "deployment.quorum" = optional("all", count);
            deadline: "deployment.deadline" = optional("none", positive);
            features: "deployment.features" = some(feature_list);
            labels: "deployment.labels" = some(names);
            records: "deployment.records" = some(count);
            most_records: "deployment.most_records" = some(count);
            seed: "run.seed" = |value| value.as_integer()?.try_into().ok();
            eval_every: "run.eval_every" = |value| value.as_integer()?.try_into().ok();
        }
        Ok(())
    }
}

/// What is trained on if nobody says: the built-in records, but never where a server says that it
/// owns none.
fn source_without_name(document: &Document) -> Source {
    if document.has("deployment.records") {
        Source::Clients
    } else {
        Source::A9a
    }
}

fn source_of(document: &Document, key: &str) -> Result<Option<Source>, ConfigError> {
    let text = document.read(key, None, |value| {
        value.as_str().map(|text| Some(text.to_string()))
    })?;
    match text {
        None => Ok(None),
        Some(text) => match text.parse() {
            Ok(source) => Ok(Some(source)),
            Err(error) => Err(ConfigError::conflict(format!("`{key}`: {error}"))),
        },
    }
}

/// What says whose record each row is: what the configuration names, else what the data offers.
fn natural(
    document: &Document,
    source: &Source,
    schema: Option<&TableSchema>,
) -> Result<Option<NaturalClients>, ConfigError> {
    let named = document.read("data.partition", None, |value| {
        value.as_str().map(|text| Some(text.to_string()))
    })?;
    let column = |name: &str| Some(NaturalClients::Column(name.to_string()));
    match named.as_deref() {
        Some("files") if !source.is_several() => Err(ConfigError::with_hint(
            "`data.partition = \"files\"` needs a source of several files",
            "give one with a pattern, such as csv:sites/*.csv",
        )),
        Some("files") => Ok(Some(NaturalClients::Files)),
        Some(name) => Ok(name.strip_prefix("column:").and_then(column)),
        None if source.is_several() => Ok(Some(NaturalClients::Files)),
        None => Ok(schema
            .and_then(|schema| schema.named_by(&Role::Client))
            .and_then(column)),
    }
}

/// The range of the numbers to predict: what is given, else that of the schema's label.
fn target_range(
    document: &Document,
    schema: Option<&TableSchema>,
) -> Result<Option<TargetRange>, ConfigError> {
    let given = document.read("data.target_range", None, |value| range(value).map(Some))?;
    let own = match schema.map(TableSchema::target) {
        Some(Target::Quantity { low, high }) => TargetRange::new(*low, *high).ok(),
        _ => None,
    };
    match (given, own) {
        (Some(given), _) if schema.is_some() && own != Some(given) => Err(ConfigError::with_hint(
            "`data.target_range` is not the range of the schema's label",
            "leave `data.target_range` out: the schema says it",
        )),
        (given, own) => Ok(given.or(own)),
    }
}

/// The schema of the table, from the section or from the file that a key names.
fn schema(document: &Document) -> Result<Option<Arc<TableSchema>>, ConfigError> {
    let inside = document.section("schema");
    let file = document.read("data.schema", None, |value| {
        value.as_str().map(|text| Some(text.to_string()))
    })?;
    match (file, inside.is_empty()) {
        (None, true) => Ok(None),
        (None, false) => Ok(Some(Arc::new(schema_text::read(&inside, "[schema]")?))),
        (Some(file), true) => Ok(Some(Arc::new(schema_text::from_file(Path::new(&file))?))),
        (Some(_), false) => Err(ConfigError::with_hint(
            "`data.schema` and [schema] are both given",
            "leave one of them out",
        )),
    }
}

fn scale(document: &Document) -> Result<Auto<ScaleChoice>, ConfigError> {
    let center = document.read("data.center", None, |value| number(value).map(Some))?;
    let factor = document.read("data.factor", None, |value| positive(value).map(Some))?;
    let named = document.read("data.scale", None, |value| {
        value.as_str().map(|text| Some(text.to_string()))
    })?;
    match (named.as_deref(), center.is_some() || factor.is_some()) {
        (None | Some("constant"), true) => Ok(Auto::Given(ScaleChoice::Constant {
            center: center.unwrap_or(0.0),
            factor: factor.unwrap_or(1.0),
        })),
        (Some("constant"), false) => Err(ConfigError::conflict(
            "`data.scale = \"constant\"` needs `data.center` or `data.factor`",
        )),
        (Some(_), true) => Err(ConfigError::conflict(
            "`data.center` and `data.factor` go with `data.scale = \"constant\"` only",
        )),
        (None | Some("auto"), false) => Ok(Auto::Auto),
        (Some("none"), false) => Ok(Auto::Given(ScaleChoice::None)),
        (Some("spectral"), false) => Ok(Auto::Given(ScaleChoice::Spectral)),
        (Some("standard"), false) => Ok(Auto::Given(ScaleChoice::Standard)),
        (Some("per-feature"), false) => Ok(Auto::Given(ScaleChoice::PerFeature)),
        _ => Err(document.refuse("data.scale")),
    }
}

/// The largest target that is accepted.
const LARGEST_EPSILON: f64 = 1e6;

fn noise_target(document: &Document) -> Result<NoiseTarget, ConfigError> {
    let sigma = document.read("privacy.sigma", None, |value| not_negative(value).map(Some))?;
    let default = NoiseTarget::Epsilon(1.0);
    let epsilon = document.read(
        "privacy.epsilon",
        default,
        word_or("none", NoiseTarget::None, |value| {
            positive(value).map(NoiseTarget::Epsilon)
        }),
    )?;
    // Far above it numerics have nothing to say, and far below it so has the guarantee.
    if let NoiseTarget::Epsilon(target) = epsilon
        && target > LARGEST_EPSILON
    {
        return Err(ConfigError::with_hint(
            format!("`privacy.epsilon` = {target} has no meaning as a privacy target"),
            "at most 1000000 is accepted; privacy.epsilon = \"none\" adds no noise and claims nothing",
        ));
    }
    match sigma {
        None => Ok(epsilon),
        Some(_) if document.has("privacy.epsilon") => Err(ConfigError::with_hint(
            "`privacy.sigma` and `privacy.epsilon` are both given, but one follows from the other",
            "leave one of them out",
        )),
        Some(0.0) => Ok(NoiseTarget::None),
        Some(sigma) => Ok(NoiseTarget::Sigma(sigma)),
    }
}

/// Rows of the paper's table that do not run are refused with the reason, not as unknown names.
fn refuse_missing_rows(document: &Document) -> Result<(), ConfigError> {
    let name = document.read("algorithm.preset", None, |value| {
        value.as_str().map(|text| Some(text.to_string()))
    })?;
    let (reason, hint) = match name.as_deref() {
        Some("rppsgd") => (
            "the paper's table calls Random Round Private SGD so, whose name is rrpsgd",
            "use rrpsgd",
        ),
        _ => return Ok(()),
    };
    Err(ConfigError::with_hint(
        format!(
            "`algorithm.preset = \"{}\"` does not run: {reason}",
            name.unwrap_or_default()
        ),
        hint,
    ))
}

/// Biased operators are refused with the reason, not as unknown names.
fn refuse_biased(document: &Document) -> Result<(), ConfigError> {
    let name = document.read("algorithm.compressor", None, |value| {
        value.as_str().map(|text| Some(text.to_string()))
    })?;
    let preset = document.read("algorithm.preset", None, |value| {
        value.as_str().map(|text| Some(text.to_string()))
    })?;
    // There noise is on all coordinates, and what is left out is sent later.
    let keeps = preset.as_deref() == Some("porter");
    let chosen = match name.as_deref() {
        Some("top-k") if keeps => return Ok(()),
        Some("top-k" | "top_k" | "topk") => {
            ", and coordinates chosen by the size of a gradient leak it"
        }
        Some("sign" | "signsgd" | "rank-k" | "rank_k" | "powersgd") => "",
        _ => return Ok(()),
    };
    Err(ConfigError::with_hint(
        format!(
            "`algorithm.compressor = \"{}\"` is biased: the theory of shifted compression needs E C(x) = x{chosen}",
            name.unwrap_or_default()
        ),
        match chosen {
            "" => "use rand-k, qsgd or natural",
            _ => {
                "use rand-k, qsgd or natural; the preset porter has top-k, of vectors with noise on all coordinates"
            }
        },
    ))
}
