//! From what was typed to what it means.

use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use soteriafl_data::schema::{Role, Target};
use soteriafl_data::{FeatureKind, Partition, Source, TableSchema, TargetRange};
use toml::Value;

use super::document::{ConfigError, Document, KEYS};
use super::elsewhere;
use super::gossip;
use super::{
    AccountantName, Adjacency, Auto, ClipScope, Config, EstimatorKind, FeatureList, Init, LossName,
    NaturalClients, NoiseTarget, Preset, ScaleChoice, ShiftChoice, Theory,
};
use crate::schema_text;

impl Config {
    /// Reads every key.
    ///
    /// # Errors
    /// When a value is of the wrong type, out of range, or contradicts another.
    pub fn read(document: &Document) -> Result<Self, ConfigError> {
        let d = document;
        refuse_biased(d)?;
        refuse_missing_rows(d)?;
        let alpha = d.read("data.alpha", 0.3, positive)?;
        let source = source_of(d, "data.source")?.unwrap_or_else(|| source_without_name(d));
        let schema = schema(d)?;
        Ok(Self {
            test: source_of(d, "data.test")?,
            rows: d.read(
                "data.rows",
                None,
                word_or("all", None, |value| count(value).map(Some)),
            )?,
            holdout: d.read("data.holdout", None, |value| {
                probability(value).filter(|share| *share < 1.0).map(Some)
            })?,
            target_range: target_range(d, schema.as_deref())?,
            natural: natural(d, &source, schema.as_deref())?,
            schema,
            source,
            clients: d.read("data.clients", Auto::Auto, |value| {
                count(value).map(Auto::Given)
            })?,
            partition: d.read("data.partition", Partition::Sorted, |value| {
                match value.as_str()? {
                    // The data decides, and nothing is left to deal.
                    "files" => Some(Partition::Sorted),
                    name if name.len() > 7 && name.starts_with("column:") => {
                        Some(Partition::Sorted)
                    }
                    name => Partition::from_name(name, alpha).ok(),
                }
            })?,
            scale: scale(d)?,
            feature_map: d.read("data.features", Auto::Auto, auto(word::<FeatureKind>))?,
            whiten: d.read(
                "data.whiten",
                Auto::Auto,
                auto(word_or("none", None, |value| {
                    probability(value).filter(|share| *share < 1.0).map(Some)
                })),
            )?,
            basis: d.read("data.basis", Auto::Auto, auto(basis))?,
            standardize: d.read("data.standardize", Auto::Auto, auto(Value::as_bool))?,
            equal_weights: d.read(
                "data.weighting",
                false,
                choice(&[("records", false), ("equal", true)]),
            )?,
            task: d.read("model.task", Auto::Auto, auto(word))?,
            loss: d.read("model.loss", LossName::Squared, word)?,
            huber: d.read("model.huber", Auto::Auto, auto(positive))?,
            class_weights: d.read("model.class_weights", None, |value| {
                let weights = value.as_array()?.iter();
                let weight = |value| positive(value).filter(|weight| *weight <= 1e6);
                let weights: Vec<f64> = weights.map(weight).collect::<Option<_>>()?;
                (!weights.is_empty()).then_some(Some(weights))
            })?,
            model: d.read("model.kind", Auto::Auto, auto(word))?,
            elsewhere: elsewhere::read(d)?,
            hidden: d.read("model.hidden", vec![64], |value| {
                value.as_array()?.iter().map(count).collect()
            })?,
            activation: d.read("model.activation", Auto::Auto, auto(word))?,
            intercept: d.read("model.intercept", true, Value::as_bool)?,
            regularizer: d.read("model.regularizer", Auto::Auto, auto(word))?,
            lambda: d.read("model.lambda", 0.001, not_negative)?,
            regularizer_at_client: d.read(
                "model.regularizer_at",
                false,
                choice(&[("server", false), ("client", true)]),
            )?,
            init: d.read("model.init", Auto::Auto, auto(init))?,
            preset: d.read("algorithm.preset", Preset::Auto, choice(PRESETS))?,
            estimator: d.read(
                "algorithm.estimator",
                Auto::Auto,
                auto(word::<EstimatorKind>),
            )?,
            batch: d.read(
                "algorithm.batch",
                Auto::Auto,
                auto(word_or("all", None, |value| positive(value).map(Some))),
            )?,
            snapshot_probability: d.read(
                "algorithm.snapshot_probability",
                Auto::Auto,
                auto(probability),
            )?,
            compressor: d.read("algorithm.compressor", Auto::Auto, auto(word))?,
            fraction: d.read("algorithm.fraction", Auto::Auto, auto(probability))?,
            k: d.read("algorithm.k", Auto::Auto, auto(count))?,
            values: d.read("algorithm.values", Auto::Auto, auto(count))?,
            shared_coordinates: d.read(
                "algorithm.coordinates",
                Auto::Auto,
                auto(choice(COORDINATES)),
            )?,
            levels: d.read("algorithm.levels", 16, |value| {
                count(value)?.try_into().ok()
            })?,
            downlink: super::downlink::read(d)?,
            grid_step: d.read("algorithm.grid_step", 0.01, positive)?,
            grid_bits: d.read("algorithm.grid_bits", 10, |value| {
                let bits = u32::try_from(count(value)?).ok()?;
                (2..=24).contains(&bits).then_some(bits)
            })?,
            topology: gossip::topology(d)?,
            mixing: d.read("algorithm.mixing", Auto::Auto, auto(positive))?,
            shift: d.read(
                "algorithm.shift",
                Auto::Auto,
                auto(word_or("off", ShiftChoice::Off, |value| {
                    not_negative(value).map(ShiftChoice::Step)
                })),
            )?,
            step_size: d.read(
                "algorithm.step_size",
                Auto::Auto,
                auto(word_or("theory", Theory::Theory, |value| {
                    positive(value).map(Theory::Given)
                })),
            )?,
            step_size_from_data: d.read("algorithm.step_size_from_data", false, Value::as_bool)?,
            schedule: d.read("algorithm.schedule", Auto::Auto, auto(word))?,
            momentum: d.read(
                "algorithm.momentum",
                Auto::Auto,
                auto(|value| not_negative(value).filter(|m| *m < 1.0)),
            )?,
            memory: d.read(
                "algorithm.memory",
                Auto::Auto,
                auto(|value| positive(value).filter(|share| *share <= 1.0)),
            )?,
            keep: d.read(
                "algorithm.keep",
                Auto::Auto,
                auto(|value| not_negative(value).filter(|share| *share <= 1.0)),
            )?,
            restart: d.read(
                "algorithm.restart",
                Auto::Auto,
                auto(word_or("first", None, |value| {
                    Some(Some(count(value)?.try_into().ok()?))
                })),
            )?,
            step_cap: d.read(
                "algorithm.step_cap",
                None,
                word_or("none", None, |value| positive(value).map(Some)),
            )?,
            smoothing: d.read(
                "algorithm.smoothing",
                Auto::Auto,
                auto(|value| {
                    not_negative(value)
                        .filter(|n| n.fract() == 0.0 && *n <= 64.0)
                        .map(|n| n as u32)
                }),
            )?,
            equalize: d.read("algorithm.equalize", Auto::Auto, auto(not_negative))?,
            rounds: d.read(
                "algorithm.rounds",
                Auto::Auto,
                auto(word_or("theory", Theory::Theory, |value| {
                    Some(Theory::Given(count(value)?.try_into().ok()?))
                })),
            )?,
            output: d.read("algorithm.output", Auto::Auto, auto(word))?,
            participation: d.read("algorithm.participation", 1.0, probability)?,
            noise_target: noise_target(d)?,
            delta: d.read("privacy.delta", 1e-5, |value| {
                probability(value).filter(|delta| *delta < 1.0)
            })?,
            adjacency: d.read("privacy.adjacency", Adjacency::ReplaceOne, word)?,
            records_per_person: d.read("privacy.records_per_person", 1, |value| {
                u32::try_from(count(value)?)
                    .ok()
                    .filter(|most| *most <= MOST_OF_PERSON)
            })?,
            clip: d.read(
                "privacy.clip",
                Auto::Auto,
                auto(word_or("none", None, |value| positive(value).map(Some))),
            )?,
            clip_scope: d.read("privacy.clip_scope", Auto::Auto, auto(word::<ClipScope>))?,
            with_replacement: d.read(
                "privacy.sampling",
                false,
                choice(&[("poisson", false), ("with-replacement", true)]),
            )?,
            difference_clip: d.read(
                "privacy.difference_clip",
                Auto::Auto,
                auto(word_or("none", None, |value| positive(value).map(Some))),
            )?,
            difference_scale: d.read(
                "privacy.difference_scale",
                Auto::Auto,
                auto(word_or("none", None, |value| positive(value).map(Some))),
            )?,
            noise_ratio: d.read(
                "privacy.noise_ratio",
                Auto::Auto,
                auto(|value| number(value).filter(|ratio| *ratio >= 1.0)),
            )?,
            trusted_aggregation: d.read(
                "privacy.trusted_aggregation",
                Auto::Auto,
                auto(Value::as_bool),
            )?,
            accountant: d.read("privacy.accountant", AccountantName::Pld, word)?,
            amplification: d.read(
                "privacy.amplification",
                true,
                choice(&[("auto", true), ("off", false)]),
            )?,
            noise: d.read("privacy.noise", Auto::Auto, auto(word))?,
            quorum: d.read(
                "deployment.quorum",
                None,
                word_or("all", None, |value| count(value).map(Some)),
            )?,
            deadline: d.read(
                "deployment.deadline",
                None,
                word_or("none", None, |value| positive(value).map(Some)),
            )?,
            features: d.read("deployment.features", None, |value| {
                let counted = count(value).map(FeatureList::Count);
                let named = || {
                    names(value)
                        .filter(|names| !names.is_empty())
                        .map(FeatureList::Names)
                };
                counted.or_else(named).map(Some)
            })?,
            labels: d.read("deployment.labels", None, |value| names(value).map(Some))?,
            records: d.read("deployment.records", None, |value| count(value).map(Some))?,
            most_records: d.read("deployment.most_records", None, |value| {
                count(value).map(Some)
            })?,
            seed: d.read("run.seed", 0, |value| value.as_integer()?.try_into().ok())?,
            eval_every: d.read("run.eval_every", 1, |value| {
                value.as_integer()?.try_into().ok()
            })?,
            given: KEYS
                .iter()
                .filter(|(key, _)| d.has(key))
                .map(|(key, _)| (*key).to_string())
                .collect(),
        })
    }
}

pub(super) const PRESETS: &[(&str, Preset)] = &[
    ("auto", Preset::Auto),
    ("soteriafl-gd", Preset::Soteria(EstimatorKind::Gd)),
    ("soteriafl-sgd", Preset::Soteria(EstimatorKind::Sgd)),
    ("soteriafl-svrg", Preset::Soteria(EstimatorKind::Svrg)),
    ("soteriafl-saga", Preset::Soteria(EstimatorKind::Saga)),
    ("soteriafl-sag", Preset::Soteria(EstimatorKind::Sag)),
    ("cdp-sgd", Preset::CdpSgd),
    ("ldp-sgd", Preset::Ldp(EstimatorKind::Sgd)),
    ("ldp-svrg", Preset::Ldp(EstimatorKind::Svrg)),
    ("ldp-srm", Preset::LdpSrm),
    ("distributed-dp-srm", Preset::DistributedDpSrm),
    ("ldp-spider", Preset::LdpSpider),
    ("diff2", Preset::Diff2),
    ("sdm-dsgd", Preset::SdmDsgd),
    ("q-dpsgd-1", Preset::QDpsgd1),
    ("porter", Preset::Porter),
    ("dp-gd", Preset::Dp(EstimatorKind::Gd)),
    ("dp-sgd", Preset::Dp(EstimatorKind::Sgd)),
    ("dp-srm", Preset::DpSrm),
    ("rrpsgd", Preset::Rrpsgd),
];
pub(super) const COORDINATES: &[(&str, bool)] = &[("own", false), ("shared", true)];

/// The name under which a choice is written.
pub(super) fn name<T: PartialEq>(choices: &[(&'static str, T)], value: T) -> &'static str {
    choices
        .iter()
        .find(|(_, choice)| *choice == value)
        .map_or("", |(name, _)| name)
}

fn choice<T: Copy>(choices: &[(&'static str, T)]) -> impl Fn(&Value) -> Option<T> {
    move |value| {
        choices
            .iter()
            .find(|(name, _)| value.as_str() == Some(name))
            .map(|(_, choice)| *choice)
    }
}

/// A choice that knows its own words.
fn word<T: FromStr>(value: &Value) -> Option<T> {
    value.as_str()?.parse().ok()
}

fn auto<T>(parse: impl Fn(&Value) -> Option<T>) -> impl Fn(&Value) -> Option<Auto<T>> {
    move |value| match value.as_str() {
        Some("auto") => Some(Auto::Auto),
        _ => parse(value).map(Auto::Given),
    }
}

fn word_or<T: Copy>(
    word: &'static str,
    meaning: T,
    parse: impl Fn(&Value) -> Option<T>,
) -> impl Fn(&Value) -> Option<T> {
    move |value| {
        if value.as_str() == Some(word) {
            Some(meaning)
        } else {
            parse(value)
        }
    }
}

fn number(value: &Value) -> Option<f64> {
    let number = value
        .as_float()
        .or_else(|| value.as_integer().map(|integer| integer as f64))?;
    number.is_finite().then_some(number)
}

fn positive(value: &Value) -> Option<f64> {
    number(value).filter(|number| *number > 0.0)
}

fn not_negative(value: &Value) -> Option<f64> {
    number(value).filter(|number| *number >= 0.0)
}

fn probability(value: &Value) -> Option<f64> {
    positive(value).filter(|number| *number <= 1.0)
}

/// The most records of one person that the accountant composes.
const MOST_OF_PERSON: u32 = 1000;

fn count(value: &Value) -> Option<usize> {
    usize::try_from(value.as_integer()?)
        .ok()
        .filter(|count| *count > 0)
}

fn range(value: &Value) -> Option<TargetRange> {
    match &value.as_array()?[..] {
        [low, high] => TargetRange::new(number(low)?, number(high)?).ok(),
        _ => None,
    }
}

fn names(value: &Value) -> Option<Vec<String>> {
    let names = value.as_array()?.iter();
    names.map(|name| Some(name.as_str()?.to_string())).collect()
}

fn basis(value: &Value) -> Option<Option<usize>> {
    let text = value.as_str()?;
    match text.split_once(':') {
        None if text == "none" => Some(None),
        Some(("cosine", frequencies)) => {
            let frequencies = frequencies.parse().ok().filter(|count| *count > 0);
            frequencies.map(Some)
        }
        _ => None,
    }
}

fn init(value: &Value) -> Option<Init> {
    let text = value.as_str()?;
    match text.split_once(':') {
        None if text == "zeros" => Some(Init::Zeros),
        None if text == "glorot" => Some(Init::Glorot),
        None if text == "given" => Some(Init::Given),
        Some(("normal", deviation)) => deviation
            .parse()
            .ok()
            .filter(|d: &f64| d.is_finite() && *d >= 0.0)
            .map(Init::Normal),
        Some(("file", path)) if !path.is_empty() => Some(Init::File(path.to_string())),
        _ => None,
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
        Some(text) => match Source::from_str(&text) {
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
