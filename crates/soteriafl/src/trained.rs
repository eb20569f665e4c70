//! A trained model from its file, applied to records.
//!
//! A model file holds weights and shapes, names of features and classes, the schema of a table and
//! how features were scaled. Nothing in a model file is trusted: shapes are compared with its
//! description, numbers must be finite.

use std::sync::Arc;

use safetensors::{Dtype, SafeTensors};
use serde_json::Value;
use soteriafl_core::moments::{Aim, Whitening};
use soteriafl_core::objective::{
    LinearRegression, Logistic, Network, Objective, Outcome, Records, TargetLoss, Workspace,
};
use soteriafl_core::quality::{self, Quality};
use soteriafl_data::{
    Constants, DataError, Dataset, FeatureKind, FeatureMap, RecordsError, Scaling, TableSchema,
    TargetRange,
};

use crate::config::{Config, ModelKind, ScaleChoice};
use crate::schema_text;

/// Records handled at a time.
const CHUNK: usize = 1024;

/// The scaling of a run whose records go through this map, where it does not depend on records.
///
/// # Errors
/// When given constants are out of range.
pub fn public_scaling(config: &Config, map: FeatureKind) -> Result<Option<Scaling>, RecordsError> {
    Ok(match config.scale_choice(map) {
        ScaleChoice::None => Some(Scaling::identity()),
        ScaleChoice::Standard => config.source.public_scaling(),
        ScaleChoice::Constant { center, factor } => Some(Scaling::constants(
            Constants::Same(center),
            Constants::Same(factor),
        )?),
        ScaleChoice::Spectral | ScaleChoice::PerFeature => None,
    })
}

/// A model from its file, ready to be applied.
pub struct Trained {
    /// Its kind, as in the file.
    pub kind: &'static str,
    objective: Box<dyn Objective>,
    parameters: Vec<f32>,
    /// How many numbers it reads of a record.
    inputs: usize,
    /// The public map that records go through before.
    pub features: FeatureMap,
    /// The map that released second moments gave, after it.
    whitening: Option<Whitening>,
    /// What the inputs are called, if the file says so.
    pub names: Option<Arc<[String]>>,
    /// How many classes it knows.
    pub classes: usize,
    /// What they are called, if the file says so.
    pub class_names: Option<Arc<[String]>>,
    /// What the columns of a table mean, if it was trained on one.
    pub schema: Option<Arc<TableSchema>>,
    /// How features are scaled before they are mapped and read, as the file says.
    pub scaling: Scaling,
    /// The range of what it predicts, where that is a number.
    pub targets: Option<TargetRange>,
    /// Whether it reads a constant feature after all others.
    intercept: bool,
}

impl Trained {
    /// Reads a file.
    ///
    /// # Errors
    /// When it is no model file, or not what it says itself.
    pub fn read(bytes: &[u8]) -> Result<Trained, String> {
        let (_, header) = SafeTensors::read_metadata(bytes)
            .map_err(|error| format!("not a model file: {error}"))?;
        let file = SafeTensors::deserialize(bytes)
            .map_err(|error| format!("not a model file: {error}"))?;
        let description = header
            .metadata()
            .as_ref()
            .and_then(|metadata| metadata.get("soteria"));
        let description: Value = description
            .and_then(|text| serde_json::from_str(text).ok())
            .ok_or("its metadata do not describe a model of this program")?;
        let kind = description["kind"].as_str().map(str::parse);
        let model = match kind {
            Some(Ok(ModelKind::Logistic)) => {
                Trained::logistic(&file, size(&description["inputs"])?)
            }
            Some(Ok(ModelKind::Linear)) => Trained::linear(&file, &description),
            Some(Ok(kind @ (ModelKind::Softmax | ModelKind::Mlp))) => {
                Trained::network(&file, kind.word(), &description)
            }
            Some(Ok(ModelKind::Elsewhere)) => Err(
                "its model is computed by a program of its own: load its tensors there".to_owned(),
            ),
            _ => Err(format!("unknown kind of model {}", description["kind"])),
        }?;
        let features = features(&description["map"], model.inputs)?;
        Ok(Trained {
            names: list_of(
                &description["features"],
                features.inputs(),
                "names of features",
            )?,
            class_names: list_of(&description["classes"], model.classes, "classes")?,
            schema: schema(&description["schema"])?,
            scaling: scaling(&description["scale"], features.inputs())?,
            features,
            whitening: whitening(&file, &description["map"], model.inputs)?,
            ..model
        })
    }

    fn logistic(file: &SafeTensors<'_>, inputs: usize) -> Result<Trained, String> {
        let mut parameters = tensor(file, "weight", &[1, inputs])?;
        let intercept = file.names().contains(&"bias");
        if intercept {
            parameters.extend(tensor(file, "bias", &[1])?);
        }
        let objective = Box::new(Logistic::new(parameters.len()));
        Ok(Trained {
            kind: ModelKind::Logistic.word(),
            objective,
            parameters,
            inputs,
            features: unmapped(inputs)?,
            whitening: None,
            names: None,
            class_names: None,
            schema: None,
            scaling: Scaling::identity(),
            classes: 2,
            targets: None,
            intercept,
        })
    }

    fn linear(file: &SafeTensors<'_>, description: &Value) -> Result<Trained, String> {
        let target = target(description)?.ok_or("it does not say what it predicts")?;
        let model = Trained::logistic(file, size(&description["inputs"])?)?;
        let features = model.parameters.len();
        Ok(Trained {
            kind: ModelKind::Linear.word(),
            objective: Box::new(LinearRegression::with_loss(features, target.1)),
            classes: 0,
            targets: Some(target.0),
            ..model
        })
    }

    fn network(
        file: &SafeTensors<'_>,
        kind: &'static str,
        description: &Value,
    ) -> Result<Trained, String> {
        let layers = description["layers"]
            .as_array()
            .filter(|layers| !layers.is_empty())
            .ok_or("it has no layers")?;
        let activation = description["activation"].as_str().map(str::parse);
        let Some(Ok(activation)) = activation else {
            return Err(format!("unknown activation {}", description["activation"]));
        };
        let mut sizes: Vec<usize> = Vec::new();
        let (mut parameters, mut without_biases) = (Vec::new(), false);
        for (number, layer) in layers.iter().enumerate() {
            let (inputs, outputs) = (size(&layer[0])?, size(&layer[1])?);
            match sizes.last() {
                None => sizes.push(inputs),
                Some(&last) if last == inputs => {}
                Some(last) => {
                    return Err(format!(
                        "layer {number} takes {inputs} numbers, but {last} come in"
                    ));
                }
            }
            sizes.push(outputs);
            let prefix = if layers.len() == 1 {
                String::new()
            } else {
                format!("layers.{number}.")
            };
            let weights = tensor(file, &format!("{prefix}weight"), &[outputs, inputs])?;
            // The file is output-major, the network input-major.
            parameters.extend(
                (0..inputs)
                    .flat_map(|c| (0..outputs).map(move |r| r * inputs + c))
                    .map(|at| weights[at]),
            );
            let bias = format!("{prefix}bias");
            // Where a map appends a constant, softmax has none.
            without_biases = layers.len() == 1
                && !description["map"].is_null()
                && !file.names().contains(&bias.as_str());
            if !without_biases {
                parameters.extend(tensor(file, &bias, &[outputs])?);
            }
        }
        let (inputs, classes) = (sizes[0], sizes[sizes.len() - 1]);
        let (hidden, target) = (&sizes[1..sizes.len() - 1], target(description)?);
        let network = match target {
            Some(_) if classes != 1 => return Err("a number is one output".to_owned()),
            Some((_, loss)) => Network::regression(inputs, hidden, activation, loss),
            None if without_biases => Network::softmax_without_biases(inputs, classes),
            None => Network::new(inputs, hidden, classes, activation),
        };
        let network = network.map_err(|error| error.to_string())?;
        Ok(Trained {
            kind,
            objective: Box::new(network),
            parameters,
            inputs,
            features: unmapped(inputs)?,
            whitening: None,
            names: None,
            class_names: None,
            schema: None,
            scaling: Scaling::identity(),
            classes,
            targets: target.map(|(range, _)| range),
            intercept: false,
        })
    }

    /// Records as the model reads them: scaled as in training, through the maps of the run, and
    /// with the constant feature where it has one, whose scale is part of the model's bias.
    ///
    /// # Errors
    /// When they have other columns, or leave the range of numbers.
    pub fn prepared(&self, data: Dataset, scaling: &Scaling) -> Result<Dataset, DataError> {
        let columns = data.columns();
        let first = |constants: &Constants| match constants {
            Constants::Same(value) => Constants::Same(*value),
            Constants::PerFeature(values) => {
                Constants::PerFeature(values.iter().take(columns).copied().collect())
            }
        };
        let scaling = Scaling::constants(first(scaling.center()), first(scaling.factor()))?;
        let mut data = {
            let threads = std::thread::available_parallelism().map_or(1, usize::from);
            self.features.apply_by(scaling.apply(data)?, threads)?
        };
        if let Some(whitening) = &self.whitening {
            data = whitening.apply(&data)?;
        }
        Ok(match self.intercept {
            true => data.with_intercept(),
            false => data,
        })
    }

    /// The probability of every class, record after record.
    pub fn probabilities(&self, data: &Dataset) -> Vec<f64> {
        let mut found = self.predictions(data);
        for row in found.chunks_exact_mut(self.objective.outputs().max(1)) {
            row.iter_mut().for_each(|value| *value = value.exp());
            // The logarithms were rounded one by one.
            let sum: f64 = row.iter().sum();
            row.iter_mut().for_each(|probability| *probability /= sum);
        }
        found
    }

    /// The number that is predicted for every record, in its unit and within its range.
    pub fn numbers(&self, data: &Dataset, range: TargetRange) -> Vec<f64> {
        let places = self.predictions(data).into_iter();
        places
            .map(|place| range.unscale(place.clamp(-1.0, 1.0)))
            .collect()
    }

    /// What the objective predicts, record after record.
    fn predictions(&self, data: &Dataset) -> Vec<f64> {
        let outputs = self.objective.outputs();
        let mut workspace = Workspace::new();
        let mut chunk = vec![0.0; outputs * CHUNK];
        let mut found = Vec::with_capacity(outputs * data.rows());
        let rows: Vec<u32> = (0..data.rows() as u32).collect();
        for rows in rows.chunks(CHUNK) {
            let chunk = &mut chunk[..outputs * rows.len()];
            let records = Records { data, rows };
            self.objective
                .predict(&self.parameters, records, chunk, &mut workspace);
            found.extend(chunk.iter().map(|&value| f64::from(value)));
        }
        found
    }

    /// What there is to say about the model on these records beyond its accuracy.
    pub fn quality(&self, data: &Dataset, threads: usize) -> Option<Quality> {
        quality::measure(self.objective.as_ref(), &self.parameters, data, threads)
    }

    /// Loss and predicted class of every record.
    pub fn outcomes(&self, data: &Dataset) -> Vec<Outcome> {
        let mut workspace = Workspace::new();
        let mut outcomes = vec![Outcome::default(); data.rows()];
        let rows: Vec<u32> = (0..data.rows() as u32).collect();
        for (rows, outcomes) in rows.chunks(CHUNK).zip(outcomes.chunks_mut(CHUNK)) {
            let (records, model) = (Records { data, rows }, &self.parameters);
            self.objective
                .factors(model, records, Some(outcomes), None, &mut workspace)
                .expect("models of a file compute here and do not fail");
        }
        outcomes
    }
}

/// What a description says about the number that is predicted; `None` of a model of classes.
fn target(description: &Value) -> Result<Option<(TargetRange, TargetLoss)>, String> {
    let Some(range) = description.get("target_range") else {
        return Ok(None);
    };
    let wrong = || format!("expected a target range and a loss, found {description}");
    let ends = (range[0].as_f64().zip(range[1].as_f64())).ok_or_else(wrong)?;
    let range = TargetRange::new(ends.0, ends.1).map_err(|error| error.to_string())?;
    let loss = match (&description["loss"], description["loss"]["huber"].as_f64()) {
        (Value::String(name), _) if name == "squared" => TargetLoss::Squared,
        (_, Some(bound)) if bound > 0.0 && bound <= 1e6 => TargetLoss::Huber(bound as f32),
        _ => return Err(wrong()),
    };
    Ok(Some((range, loss)))
}

/// A size in a description; at least one, and small enough to be a parameter's number.
fn size(value: &Value) -> Result<usize, String> {
    let size = value
        .as_u64()
        .filter(|size| (1..=u64::from(u32::MAX)).contains(size));
    size.map(|size| size as usize)
        .ok_or_else(|| format!("expected a size in its description, found {value}"))
}

/// The map in a description, whose results a model of `inputs` numbers reads.
fn features(value: &Value, inputs: usize) -> Result<FeatureMap, String> {
    if value.is_null() {
        return unmapped(inputs);
    }
    let kind = value["kind"].as_str().unwrap_or_default();
    let kind: FeatureKind = kind.parse().map_err(|error| format!("its map: {error}"))?;
    let map = FeatureMap::new(kind, size(&value["inputs"])?)
        .map_err(|error| format!("its map: {error}"))?;
    match map.outputs() {
        outputs if outputs == inputs => Ok(map),
        outputs => Err(format!(
            "its map makes {outputs} numbers of a record, but {inputs} are read"
        )),
    }
}

/// The whitening of a description's map, if it has one.
fn whitening(
    file: &SafeTensors<'_>,
    map: &Value,
    inputs: usize,
) -> Result<Option<Whitening>, String> {
    if map["whitened"] != true {
        return Ok(None);
    }
    let matrix = tensor(file, "whitening", &[inputs, inputs])?;
    let aim = match map["lengths"].as_str() {
        None => Aim::Classes,
        Some("kept") => Aim::Numbers,
        Some(other) => return Err(format!("its whitening has unknown lengths \"{other}\"")),
    };
    Ok(Whitening::from_matrix(inputs, matrix, aim))
}

/// Records as they are.
fn unmapped(inputs: usize) -> Result<FeatureMap, String> {
    FeatureMap::new(FeatureKind::None, inputs).map_err(|error| error.to_string())
}

/// A list of names in a description, one for each of `count`; `None` if it has none.
fn list_of(value: &Value, count: usize, what: &str) -> Result<Option<Arc<[String]>>, String> {
    if value.is_null() {
        return Ok(None);
    }
    let list = value.as_array().filter(|list| list.len() == count);
    let texts = list.and_then(|list| {
        let texts = list.iter().map(|name| name.as_str().map(str::to_owned));
        texts.collect::<Option<Arc<[String]>>>()
    });
    texts
        .map(Some)
        .ok_or_else(|| format!("expected {count} {what} in its description"))
}

/// The schema in a description; `None` if it has none.
fn schema(value: &Value) -> Result<Option<Arc<TableSchema>>, String> {
    if value.is_null() {
        return Ok(None);
    }
    match schema_text::from_json(value) {
        Ok(schema) => Ok(Some(Arc::new(schema))),
        Err(error) => Err(format!("its schema: {error}")),
    }
}

/// The scaling in a description, for so many features; none at all if it says nothing.
fn scaling(value: &Value, features: usize) -> Result<Scaling, String> {
    if value.is_null() {
        return Ok(Scaling::identity());
    }
    let constants = |key: &str| {
        let numbers = value[key].as_array()?.iter().map(Value::as_f64);
        match numbers.collect::<Option<Vec<f64>>>()?.as_slice() {
            [number] => Some(Constants::Same(*number)),
            numbers if numbers.len() == features => Some(Constants::PerFeature(numbers.into())),
            _ => None,
        }
    };
    let (Some(center), Some(factor)) = (constants("center"), constants("factor")) else {
        return Err("its scale is not one number, or one for each feature".to_owned());
    };
    Scaling::constants(center, factor).map_err(|error| format!("its scale: {error}"))
}

/// A tensor: its name, its shape and its numbers in row-major order.
pub type Tensor = (String, Vec<usize>, Vec<f32>);

/// The tensors of a model file, in the order of names.
///
/// # Errors
/// When it is no model file.
pub fn tensors(bytes: &[u8]) -> Result<Vec<Tensor>, String> {
    let file =
        SafeTensors::deserialize(bytes).map_err(|error| format!("not a model file: {error}"))?;
    let mut names = file.names();
    names.sort_unstable();
    let read = |name: &&str| {
        let view = file.tensor(name).map_err(|error| error.to_string())?;
        let shape = view.shape().to_vec();
        Ok((
            name.to_string(),
            shape.clone(),
            tensor(&file, name, &shape)?,
        ))
    };
    names.iter().map(read).collect()
}

/// The numbers of a tensor of this shape.
fn tensor(file: &SafeTensors<'_>, name: &str, shape: &[usize]) -> Result<Vec<f32>, String> {
    let view = file
        .tensor(name)
        .map_err(|_| format!("there is no tensor `{name}`"))?;
    if view.dtype() != Dtype::F32 || view.shape() != shape {
        return Err(format!(
            "`{name}`: expected F32 {shape:?}, found {} {:?}",
            view.dtype(),
            view.shape()
        ));
    }
    let numbers = view
        .data()
        .chunks_exact(4)
        .map(|bytes| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
    let values: Vec<f32> = numbers.collect();
    match values.iter().position(|value| !value.is_finite()) {
        Some(at) => Err(format!(
            "`{name}`: expected finite numbers, found {} at {at}",
            values[at]
        )),
        None => Ok(values),
    }
}
