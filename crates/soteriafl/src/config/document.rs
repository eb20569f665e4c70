//! What was typed: dotted keys with TOML values, each with its place.

use std::collections::BTreeMap;
use std::path::Path;

use toml::de::{DeTable, DeValue};
use toml::{Spanned, Value};

use soteriafl_core::objective::Activation;
use soteriafl_core::protocol::Schedule;

use super::table::PRESETS;
use super::{
    AccountantName, Adjacency, ClipScope, CompressorName, EstimatorKind, LossName, ModelKind,
    NoiseName, Output, RegularizerKind, Task,
};
use crate::words::readable;

/// A table of pairs, a line each.
macro_rules! table {
    ($($key:literal: $value:expr;)+) => { &[$(($key, $value)),+] };
}

/// Keys that a configuration may have, with what they expect, in the order of the sections. WORDS
/// stands for those of [`CHOICES`].
pub const KEYS: &[(&str, &str)] = table! {
    "data.source":
        "a9a | mnist | fashion-mnist | libsvm:PATH | idx:DIR | csv:PATH | parquet:PATH | npy:PATH | npz:PATH | synthetic:ROWSxFEATURES | clients | memory";
    "data.test": "a data source for the test set";
    "data.rows": "\"all\", or how many of the first training rows to use";
    "data.schema": "a file with the public schema of the table (or write it under [schema])";
    "data.holdout": "a number in (0, 1): the share of rows to test on";
    "data.target_range": "[LOW, HIGH], the public range of the numbers to predict";
    "data.clients": "a positive integer";
    "data.partition": "sorted | iid | dirichlet | column:NAME | files | given";
    "data.alpha": "a positive number (dirichlet)";
    "data.scale": "auto | none | spectral | standard | per-feature | constant";
    "data.center": "a number, with scale = \"constant\"";
    "data.factor": "a positive number, with scale = \"constant\"";
    "data.features": "auto | none | unit | roots | fourier:NUMBER | scattering";
    "data.whiten": "auto | none, or a number in (0, 1)";
    "data.basis": "auto | none | cosine:NUMBER";
    "data.standardize": "auto | true | false";
    "data.weighting": "records | equal";
    "schema.ranges": "public | \"read from records\"";
    "schema.task": "classification | regression";
    "schema.numbers": "linear | root";
    "schema.missing": "a list of the fields that say nothing";
    "schema.columns": "a list of columns, { name = ..., kind = ... } each";
    "model.task": "auto | WORDS";
    "model.kind": "auto | WORDS";
    "model.loss": "WORDS (regression)";
    "model.huber": "auto, or a positive number in the unit of the target";
    "model.class_weights": "a list of positive numbers up to 1e6, one for each class in its order";
    "model.hidden": "a list of layer sizes";
    "model.parameters":
        "a list of different NAME[SIDE,SIDE], one for each tensor, in their order (elsewhere)";
    "model.architecture": "the digest of a model, 64 hexadecimal digits (elsewhere)";
    "model.activation": "auto | WORDS";
    "model.intercept": "true | false";
    "model.regularizer": "auto | WORDS";
    "model.lambda": "a number >= 0";
    "model.regularizer_at": "server | client";
    "model.init": "auto | zeros | normal:STD | glorot | file:PATH | given (elsewhere)";
    "algorithm.preset": "WORDS";
    "algorithm.estimator": "auto | WORDS";
    "algorithm.batch": "auto | all, or the expected number of records per round";
    "algorithm.snapshot_probability": "auto, or a probability";
    "algorithm.compressor": "auto | WORDS";
    "algorithm.fraction": "auto, or a number in (0, 1]";
    "algorithm.k": "auto, or how many coordinates travel";
    "algorithm.values": "auto, or how many values each client may send in the whole run";
    "algorithm.coordinates": "auto | own | shared";
    "algorithm.levels": "a positive integer (qsgd)";
    "algorithm.downlink":
        "none | sign | natural | qsgd:LEVELS | rand-k:SHARE, or two of them as in rand-k:0.25+sign";
    "algorithm.grid_step": "a positive number (grid)";
    "algorithm.grid_bits": "an integer from 2 to 24 (grid)";
    "algorithm.topology":
        "star | complete | ring | torus | torus:ROWSxCOLUMNS | random:P | random:P:SEED | edges:FILE, or a list of pairs [A, B]";
    "algorithm.mixing": "auto, or a positive number";
    "algorithm.shift": "auto | off, or a number >= 0";
    "algorithm.step_size": "auto | theory, or a positive number";
    "algorithm.step_size_from_data":
        "true | false (true: chosen by looking at the records, so nothing is claimed)";
    "algorithm.schedule": "auto | WORDS";
    "algorithm.momentum": "auto, or a number in [0, 1)";
    "algorithm.memory": "auto, or a number in (0, 1]";
    "algorithm.keep": "auto, or a number in [0, 1]";
    "algorithm.restart": "auto | first, or a positive number of rounds";
    "algorithm.step_cap": "none, or a positive number (the longest step)";
    "algorithm.smoothing": "auto, or how often (an integer from 0 to 64)";
    "algorithm.equalize": "auto, or a number >= 0 (0: not at all)";
    "algorithm.rounds": "auto | theory, or a positive integer";
    "algorithm.output": "auto | WORDS";
    "algorithm.participation": "a probability in (0, 1]";
    "privacy.epsilon": "a positive number, or \"none\"";
    "privacy.sigma": "a number >= 0";
    "privacy.delta": "a number in (0, 1)";
    "privacy.adjacency": "WORDS";
    "privacy.records_per_person":
        "how many records one person has at a client at most (an integer from 1 to 1000)";
    "privacy.clip": "auto, or a positive number";
    "privacy.clip_scope": "auto | WORDS";
    "privacy.sampling": "poisson | with-replacement";
    "privacy.difference_clip": "auto | none, or a positive number";
    "privacy.difference_scale": "auto | none, or a positive number";
    "privacy.trusted_aggregation": "auto | true | false";
    "privacy.noise_ratio": "auto, or a number >= 1";
    "privacy.accountant": "WORDS";
    "privacy.amplification": "auto | off";
    "privacy.noise": "auto | WORDS";
    "deployment.quorum": "\"all\", or a positive integer";
    "deployment.deadline": "\"none\", or a positive number of seconds";
    "deployment.features":
        "how many features records have, or a list of their names, for a server without records";
    "deployment.labels": "a list of class names, for a server without records";
    "deployment.records": "how many records the smallest client has, for a server without records";
    "deployment.most_records": "how many records a client can have at most";
    "run.seed": "an integer from 0 to 2^63 - 1";
    "run.eval_every": "an integer >= 0";
};

/// All words of an enum, for a message.
type List = fn() -> String;

/// The words of keys that choose by an enum.
const CHOICES: &[(&str, List)] = &[
    ("model.task", Task::list),
    ("model.kind", ModelKind::list),
    ("model.loss", LossName::list),
    ("model.activation", Activation::list),
    ("model.regularizer", RegularizerKind::list),
    ("algorithm.preset", || {
        let words: Vec<&str> = PRESETS.iter().map(|(word, _)| *word).collect();
        words.join(" | ")
    }),
    ("algorithm.estimator", EstimatorKind::list),
    ("algorithm.compressor", CompressorName::list),
    ("algorithm.schedule", Schedule::list),
    ("algorithm.output", Output::list),
    ("privacy.adjacency", Adjacency::list),
    ("privacy.clip_scope", ClipScope::list),
    ("privacy.accountant", AccountantName::list),
    ("privacy.noise", NoiseName::list),
];

/// What a key expects.
fn expected(key: &str) -> String {
    let known = KEYS.iter().find(|(known, _)| *known == key);
    let text = known.map_or("", |(_, expected)| expected);
    match CHOICES.iter().find(|(choice, _)| *choice == key) {
        Some((_, words)) => text.replace("WORDS", &words()),
        None => text.to_string(),
    }
}

/// What is wrong with a configuration. One line, naming the key or the place.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{path}: {reason}")]
    Unreadable {
        /// The file.
        path: String,
        /// Why.
        reason: String,
    },
    /// The text is not TOML.
    #[error("{place}: {reason}")]
    Syntax {
        /// File, line and column, or the option.
        place: String,
        /// Why.
        reason: String,
    },
    /// A key that does not exist.
    #[error("{place}: unknown key `{key}`{}", nearest.as_ref().map(|near| format!(", did you mean `{near}`?")).unwrap_or_default())]
    UnknownKey {
        /// File and line, or the option.
        place: String,
        /// The key.
        key: String,
        /// The nearest existing one.
        nearest: Option<String>,
    },
    /// A value of the wrong type or outside its range.
    #[error("{place}: `{key}` expects {expected}, found {found}")]
    Value {
        /// File and line, or the option.
        place: String,
        /// The key.
        key: String,
        /// What it expects.
        expected: String,
        /// What was given.
        found: String,
    },
    /// Values that do not go together.
    #[error("{message}")]
    Conflict {
        /// What and why.
        message: String,
        /// What to do.
        hint: Option<String>,
    },
}

impl ConfigError {
    /// Values that do not go together.
    pub fn conflict(message: impl Into<String>) -> Self {
        ConfigError::Conflict {
            message: message.into(),
            hint: None,
        }
    }

    /// The same with advice.
    pub fn with_hint(message: impl Into<String>, hint: impl Into<String>) -> Self {
        ConfigError::Conflict {
            message: message.into(),
            hint: Some(hint.into()),
        }
    }

    /// Advice, where there is some.
    pub fn hint(&self) -> Option<&str> {
        match self {
            ConfigError::Conflict { hint, .. } => hint.as_deref(),
            _ => None,
        }
    }
}

/// Keys with values and places, later entries overriding earlier ones.
#[derive(Clone, Debug, Default)]
pub struct Document {
    entries: BTreeMap<String, (Value, String)>,
}

impl Document {
    /// Reads a file.
    ///
    /// # Errors
    /// When it cannot be read, is no TOML, or has unknown keys.
    pub fn from_file(path: &Path) -> Result<Self, ConfigError> {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|error| ConfigError::Unreadable {
            path: name.clone(),
            reason: error.to_string(),
        })?;
        Self::from_text(&text, &name)
    }

    /// Reads TOML text; `file` stands for its name in errors.
    ///
    /// # Errors
    /// When it is no TOML or has unknown keys.
    pub fn from_text(text: &str, file: &str) -> Result<Self, ConfigError> {
        let place = |at: usize| {
            let before = &text[..at.min(text.len())];
            let line = before.matches('\n').count() + 1;
            let column = before.len() - before.rfind('\n').map_or(0, |newline| newline + 1) + 1;
            (line, column)
        };
        let table = DeTable::parse(text).map_err(|error| {
            let (line, column) = place(error.span().map_or(0, |span| span.start));
            let reason = error.message().replace('\n', ", ");
            ConfigError::Syntax {
                place: format!("{file}:{line}:{column}"),
                reason,
            }
        })?;
        let mut document = Self::default();
        for (section, value) in table.get_ref() {
            let line = |at| format!("{file}:{}", place(at).0);
            let DeValue::Table(entries) = value.get_ref() else {
                let key = section.get_ref().to_string();
                return Err(unknown(line(section.span().start), key));
            };
            let name = section.get_ref();
            let known = KEYS
                .iter()
                .filter_map(|(key, _)| key.split_once('.'))
                .any(|(known, _)| known == name);
            if !known {
                return Err(unknown(line(section.span().start), name.to_string()));
            }
            for (key, value) in entries {
                let dotted = format!("{}.{}", section.get_ref(), key.get_ref());
                document.insert(dotted, plain(value), line(key.span().start))?;
            }
        }
        Ok(document)
    }

    /// Applies `key=VALUE`: VALUE is TOML if it parses as such, else a bare string.
    ///
    /// # Errors
    /// When there is no `=` or the key is unknown.
    pub fn set(&mut self, assignment: &str) -> Result<(), ConfigError> {
        let Some((key, text)) = assignment.split_once('=') else {
            let place = format!("--set {assignment}");
            return Err(ConfigError::Syntax {
                place,
                reason: "expected key=VALUE".to_string(),
            });
        };
        self.assign(key.trim(), text, "--set")
    }

    /// Gives `key` the value that `text` is as TOML, or `text` itself where it is none; `place`
    /// stands for where it comes from in errors.
    ///
    /// # Errors
    /// When the key is unknown.
    pub fn assign(&mut self, key: &str, text: &str, place: &str) -> Result<(), ConfigError> {
        let value = toml::from_str::<toml::Table>(&format!("value = {text}"))
            .ok()
            .and_then(|mut table| table.remove("value"))
            .unwrap_or_else(|| Value::String(text.to_string()));
        self.insert(key.to_string(), value, place.to_string())
    }

    fn insert(&mut self, key: String, value: Value, place: String) -> Result<(), ConfigError> {
        if !KEYS.iter().any(|(known, _)| *known == key) {
            return Err(unknown(place, key));
        }
        self.entries.insert(key, (value, place));
        Ok(())
    }

    /// The keys of a section with their values.
    pub fn section(&self, name: &str) -> toml::Table {
        let entries = self.entries.iter();
        let inside = entries.filter_map(|(key, (value, _))| {
            let (section, key) = key.split_once('.')?;
            (section == name).then(|| (key.to_string(), value.clone()))
        });
        inside.collect()
    }

    /// Takes a key out, and says whether it was there.
    pub fn remove(&mut self, key: &str) -> bool {
        self.entries.remove(key).is_some()
    }

    /// Whether a key was given.
    pub fn has(&self, key: &str) -> bool {
        self.entries.contains_key(key)
    }

    /// Reads a key with `parse`, which returns `None` for a value it does not take.
    ///
    /// # Errors
    /// When the value is not taken.
    pub fn read<T>(
        &self,
        key: &str,
        default: T,
        parse: impl Fn(&Value) -> Option<T>,
    ) -> Result<T, ConfigError> {
        match self.entries.get(key) {
            None => Ok(default),
            Some((value, _)) => parse(value).ok_or_else(|| self.refuse(key)),
        }
    }

    /// Reads a key into `field`, which keeps what it has where the key is not given.
    ///
    /// # Errors
    /// When the value is not taken.
    pub fn read_into<T>(
        &self,
        field: &mut T,
        key: &str,
        parse: impl Fn(&Value) -> Option<T>,
    ) -> Result<(), ConfigError> {
        if let Some((value, _)) = self.entries.get(key) {
            *field = parse(value).ok_or_else(|| self.refuse(key))?;
        }
        Ok(())
    }

    /// The error for a key whose value is not taken.
    pub fn refuse(&self, key: &str) -> ConfigError {
        let (found, place) = match self.entries.get(key) {
            Some((value, place)) => {
                let text = match value {
                    // Three hundred digits tell nobody more than an exponent.
                    Value::Float(value) if value.to_string().len() > 16 => readable(*value),
                    value => value.to_string(),
                };
                (text, place.clone())
            }
            None => ("nothing".to_string(), "configuration".to_string()),
        };
        ConfigError::Value {
            place,
            key: key.to_string(),
            expected: expected(key),
            found,
        }
    }
}

fn unknown(place: String, key: String) -> ConfigError {
    // Comparing takes time by the square of the length, and a peer may have written the key.
    const LONGEST: usize = 64;
    let last = |key: &str| key.rsplit('.').next().unwrap_or_default().to_string();
    let known = if key.len() <= LONGEST { KEYS } else { &[] };
    let nearest = known
        .iter()
        .map(|(known, _)| {
            let whole = strsim::jaro_winkler(known, &key);
            let leaf = strsim::jaro_winkler(&last(known), &last(&key));
            (whole.max(leaf), *known)
        })
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .filter(|(likeness, _)| *likeness > 0.75)
        .map(|(_, known)| known.to_string());
    ConfigError::UnknownKey {
        place,
        key,
        nearest,
    }
}

/// A parsed value without its places.
fn plain(value: &Spanned<DeValue<'_>>) -> Value {
    match value.get_ref() {
        DeValue::String(text) => Value::String(text.to_string()),
        DeValue::Boolean(truth) => Value::Boolean(*truth),
        DeValue::Datetime(datetime) => Value::Datetime(*datetime),
        DeValue::Array(items) => Value::Array(items.iter().map(plain).collect()),
        DeValue::Table(table) => Value::Table(
            table
                .iter()
                .map(|(key, value)| (key.get_ref().to_string(), plain(value)))
                .collect(),
        ),
        DeValue::Integer(integer) => {
            let digits = integer.as_str().replace('_', "");
            match i64::from_str_radix(&digits, integer.radix()) {
                Ok(number) => Value::Integer(number),
                Err(_) => Value::String(digits),
            }
        }
        DeValue::Float(float) => match float.as_str().replace('_', "").parse() {
            Ok(number) => Value::Float(number),
            Err(_) => Value::String(float.as_str().to_string()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_entries_win_and_places_are_known() {
        let mut document =
            Document::from_text("[data]\nclients = 3\n[run]\nseed = 1\n", "run.toml").unwrap();
        document.set("data.clients=7").unwrap();
        document.set("data.source=csv:some file.csv").unwrap();
        assert_eq!(document.read("data.clients", 0, Value::as_integer), Ok(7));
        let text = document.read("data.source", String::new(), |value| {
            value.as_str().map(str::to_string)
        });
        assert_eq!(text.unwrap(), "csv:some file.csv");
        assert_eq!(document.read("run.eval_every", 5, Value::as_integer), Ok(5));
        let error = document.read("run.seed", 0.5, Value::as_float).unwrap_err();
        assert_eq!(
            error.to_string(),
            "run.toml:4: `run.seed` expects an integer from 0 to 2^63 - 1, found 1"
        );
    }

    #[test]
    fn keys_that_choose_list_their_words() {
        for (key, expected) in KEYS {
            let listed = CHOICES.iter().any(|(choice, _)| choice == key);
            assert_eq!(expected.contains("WORDS"), listed, "{key}");
        }
        assert_eq!(
            expected("algorithm.estimator"),
            "auto | gd | sgd | svrg | saga | sag | recursive"
        );
    }

    #[test]
    fn unknown_keys_suggest_the_nearest() {
        let error = Document::from_text("[privacy]\nepsilom = 1\n", "x.toml").unwrap_err();
        assert_eq!(
            error.to_string(),
            "x.toml:2: unknown key `privacy.epsilom`, did you mean `privacy.epsilon`?"
        );
        let error = Document::default().set("rounds=3").unwrap_err();
        assert_eq!(
            error.to_string(),
            "--set: unknown key `rounds`, did you mean `algorithm.rounds`?"
        );
        for text in ["[foo]\n", "foo = {}\n", "[foo]\nbar = 1\n"] {
            let error = Document::from_text(text, "x.toml").unwrap_err();
            let said = error.to_string();
            assert!(said.starts_with("x.toml:1: unknown key `foo`"), "{said}");
        }
        let error = Document::from_text("privacy = 3", "x.toml").unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("x.toml:1: unknown key `privacy`"),
            "{error}"
        );
    }

    #[test]
    fn syntax_errors_name_the_place() {
        let error = Document::from_text("[data]\nclients = = 3\n", "x.toml").unwrap_err();
        assert!(error.to_string().starts_with("x.toml:2:"), "{error}");
        assert!(!error.to_string().contains('\n'));
        assert!(Document::default().set("data.clients").is_err());
    }
}
