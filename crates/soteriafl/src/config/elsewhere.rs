//! `model.kind = "elsewhere"`: a model that the clients' own programs compute. The configuration
//! names its parameters and a digest of the rest, and leaves their records alone.

use std::sync::Arc;

use toml::Value;

use super::document::{ConfigError, Document};
use super::write::text;
use super::{Auto, Config, ModelKind, ScaleChoice, Task};
use crate::config::resolve::Resolved;
use crate::problem::{ElsewhereModel, ParameterShape};
use soteriafl_data::FeatureKind;

/// Hexadecimal digits of a digest.
const DIGITS: usize = 64;

/// What the configuration says of such a model.
pub(super) fn read(d: &Document) -> Result<Option<Arc<ElsewhereModel>>, ConfigError> {
    let architecture = d.read("model.architecture", None, |value| {
        let digits = value.as_str()?;
        let valid = |c: char| matches!(c, '0'..='9' | 'a'..='f');
        (digits.len() == DIGITS && digits.chars().all(valid)).then(|| Some(digits.to_owned()))
    })?;
    let architecture = architecture.unwrap_or_default();
    d.read("model.parameters", None, |value| {
        let parameters = value.as_array()?.iter();
        let parameter = |value: &Value| ParameterShape::parse(value.as_str()?);
        let parameters = parameters.map(parameter).collect::<Option<Vec<_>>>()?;
        let model = ElsewhereModel::new(parameters, architecture.clone())?;
        Some(Some(Arc::new(model)))
    })
}

/// There is no rule for the start of a model that nobody here knows.
pub(super) fn no_start() -> ConfigError {
    ConfigError::with_hint(
        "a model that is computed elsewhere has a start of its own, and `model.init` does not say \
         which",
        "give model.init = \"file:PATH\", a file with one number per parameter in their order",
    )
}

impl Config {
    /// Whether the model is computed elsewhere.
    pub fn is_elsewhere(&self) -> bool {
        self.model == Auto::Given(ModelKind::Elsewhere)
    }

    /// The model that is computed elsewhere.
    ///
    /// # Errors
    /// When it is not described, or records are to be prepared here.
    pub(crate) fn elsewhere_model(&self) -> Result<Arc<ElsewhereModel>, ConfigError> {
        let known = |model: &&Arc<ElsewhereModel>| !model.architecture().is_empty();
        let Some(model) = self.elsewhere.as_ref().filter(known) else {
            return Err(ConfigError::with_hint(
                "`model.kind = \"elsewhere\"` needs `model.parameters` and `model.architecture`",
                "soteriafl.torch.describe writes them for a PyTorch module",
            ));
        };
        let prepares = [
            (
                "data.scale",
                self.scale.or(ScaleChoice::None) != ScaleChoice::None,
            ),
            (
                "data.features",
                self.feature_map.or(FeatureKind::None) != FeatureKind::None,
            ),
            ("data.whiten", self.whiten.or(None).is_some()),
            ("data.basis", self.basis.or(None).is_some()),
            ("data.standardize", self.standardize.or(false)),
            ("data.schema", self.schema.is_some()),
            ("data.test", self.test.is_some()),
            ("data.target_range", self.target_range.is_some()),
            ("model.task", self.task == Auto::Given(Task::Regression)),
            ("model.class_weights", self.class_weights.is_some()),
        ];
        match prepares.iter().find(|(_, asked)| *asked) {
            None => Ok(Arc::clone(model)),
            Some((key, _)) => Err(ConfigError::with_hint(
                format!(
                    "`{key}` is about records, which a model that is computed elsewhere does not \
                     show to this program"
                ),
                format!("leave {key} out, and do it where the model is computed"),
            )),
        }
    }
}

impl Resolved {
    /// The keys of such a model.
    pub(super) fn elsewhere_lines(&self) -> Vec<(&'static str, String)> {
        let Some(model) = &self.elsewhere else {
            return Vec::new();
        };
        let parameters = model.parameters().iter();
        let parameters: Vec<String> = parameters.map(|part| text(&part.to_string())).collect();
        vec![
            ("parameters", format!("[{}]", parameters.join(", "))),
            ("architecture", text(model.architecture())),
        ]
    }
}
