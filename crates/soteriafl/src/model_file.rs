//! The model as `model.safetensors`: readable by every safetensors library, equal models equal
//! bytes.
//!
//! Weights are `[out, in]` as everywhere else. The one metadata entry holds kind, shapes and
//! classes and, where there are some, the names of features, the schema of the table and the
//! scaling as JSON (one entry, so that its order cannot vary): whoever has the file can apply the
//! model to rows as they were before anything was made of them. Where records go through a public
//! map before the model reads them (`data.features`), `map` says which: then names are of what goes
//! into the map, and weights for what comes out of it. Where it is `whitened`, the tensor
//! `whitening` holds `P`, and a record `x` that comes out of the map becomes `P x / |P x|`; where
//! the map says `"lengths": "kept"`, it becomes `P x min(1, 1.5 / |P x|)`.

use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};

use soteriafl_core::data::{Cosine, FeatureKind, FeatureMap};
use soteriafl_core::moments::{Aim, Whitening};
use soteriafl_core::objective::{Network, TargetLoss};
use soteriafl_data::{Constants, Scaling};

use crate::config::ModelKind;
use crate::problem::Model;
use crate::record_shape::RecordShape;
use crate::schema_text;

/// What a model's user needs besides the weights.
#[derive(Clone, Copy, Debug)]
pub struct About<'a> {
    /// What the records are: names of features, the schema of their table, classes.
    pub shape: &'a RecordShape,
    /// How features are scaled before they are mapped and read.
    pub scaling: &'a Scaling,
}

impl About<'_> {
    fn describe(&self, description: &mut Value) {
        let RecordShape {
            features,
            names,
            schema,
            labels,
            targets: _,
        } = self.shape;
        if !labels.is_empty() {
            description["classes"] = json!(labels);
        }
        if let Some(names) = names {
            description["features"] = json!(names);
        }
        if let Some(schema) = schema {
            description["schema"] = schema_text::to_json(schema);
        }
        // The constant feature has its scale in the bias. A single number is for all features.
        let first = |constants: &Constants| {
            let all = constants.as_slice();
            json!(&all[..all.len().min(*features)])
        };
        let changes = |constants: &Constants, neutral: f64| {
            constants.as_slice().iter().any(|&value| value != neutral)
        };
        let (center, factor) = (self.scaling.center(), self.scaling.factor());
        if changes(center, 0.0) || changes(factor, 1.0) {
            description["scale"] = json!({ "center": first(center), "factor": first(factor) });
        }
    }
}

/// What becomes of scaled records before the model reads them.
#[derive(Clone, Copy)]
pub struct RecordMap<'a> {
    /// The public map.
    pub features: &'a FeatureMap,
    /// The map that released second moments gave, after it.
    pub whitening: Option<&'a Whitening>,
    /// The basis that records are written in.
    pub basis: Option<Cosine>,
}

/// Bytes of the file for a model with these parameters. `intercept` is the value of the constant
/// feature after scaling, so that `weight . x + bias` is the model's output. Weights that read
/// records written in a `basis` are composed with it, so that the file's model reads scaled
/// features as they are.
///
/// # Errors
/// When the model cannot be encoded.
pub fn to_bytes(
    model: &Model,
    parameters: &[f32],
    map: RecordMap<'_>,
    intercept: f64,
    about: About<'_>,
) -> Result<Vec<u8>, String> {
    let RecordMap {
        features,
        whitening,
        basis,
    } = map;
    let (mut description, mut tensors) = tensors(model, parameters, basis, intercept);
    if let (Some(loss), Some(range)) = (model.target_loss(), about.shape.targets) {
        // The output is the place of the target in its range: -1 at the low end, 1 at the high one.
        description["target_range"] = json!([range.low(), range.high()]);
        description["loss"] = match loss {
            TargetLoss::Squared => json!("squared"),
            TargetLoss::Huber(bound) => json!({ "huber": bound }),
        };
    }
    // What its records are is not known here.
    if !matches!(model, Model::Elsewhere(_)) {
        about.describe(&mut description);
    }
    if features.kind() != FeatureKind::None {
        description["map"] = json!({
            "kind": features.kind().to_string(),
            "inputs": features.inputs(),
        });
        if let Some(whitening) = whitening {
            let columns = whitening.columns();
            description["map"]["whitened"] = json!(true);
            if whitening.aim() == Aim::Numbers {
                description["map"]["lengths"] = json!("kept");
            }
            let matrix = whitening.matrix().to_vec();
            tensors.push(("whitening".into(), vec![columns, columns], matrix));
        }
    }
    let bytes: Vec<Vec<u8>> = tensors
        .iter()
        .map(|(_, _, values)| {
            values
                .iter()
                .flat_map(|value| value.to_le_bytes())
                .collect()
        })
        .collect();
    let views = tensors
        .iter()
        .zip(&bytes)
        .map(|((name, shape, _), bytes)| {
            TensorView::new(Dtype::F32, shape.clone(), bytes)
                .map(|view| (name.clone(), view))
                .map_err(|error| error.to_string())
        })
        .collect::<Result<Vec<_>, _>>()?;
    let metadata =
        std::collections::HashMap::from([("soteria".to_string(), description.to_string())]);
    safetensors::serialize(views, Some(metadata)).map_err(|error| error.to_string())
}

/// A tensor of the file: its name, its sides and its values.
type Tensor = (String, Vec<usize>, Vec<f32>);

/// What the file says of the model, and its tensors.
fn tensors(
    model: &Model,
    parameters: &[f32],
    basis: Option<Cosine>,
    intercept: f64,
) -> (Value, Vec<Tensor>) {
    let mut tensors: Vec<Tensor> = Vec::new();
    let description = match model {
        Model::Logistic {
            features,
            intercept: has_intercept,
            ..
        }
        | Model::Linear {
            features,
            intercept: has_intercept,
            ..
        } => {
            let inputs = features - usize::from(*has_intercept);
            tensors.push((
                "weight".into(),
                vec![1, inputs],
                parameters[..inputs].to_vec(),
            ));
            if *has_intercept {
                let bias = (f64::from(parameters[inputs]) * intercept) as f32;
                tensors.push(("bias".into(), vec![1], vec![bias]));
            }
            let kind = match model {
                Model::Linear { .. } => ModelKind::Linear,
                _ => ModelKind::Logistic,
            };
            json!({ "kind": kind.word(), "inputs": inputs })
        }
        Model::Network(network) => {
            let composed = basis.map(|basis| compose(network, parameters, basis));
            let (network, parameters) = match &composed {
                Some(composed) => (&composed.0, &composed.1[..]),
                None => (network, parameters),
            };
            let layers = network.layers();
            for (number, layer) in layers.iter().enumerate() {
                let prefix = if layers.len() == 1 {
                    String::new()
                } else {
                    format!("layers.{number}.")
                };
                let shape = vec![layer.outputs, layer.inputs];
                tensors.push((
                    format!("{prefix}weight"),
                    shape,
                    layer.output_major(parameters),
                ));
                let biases = parameters[layer.biases.clone()].to_vec();
                if !biases.is_empty() {
                    tensors.push((format!("{prefix}bias"), vec![layer.outputs], biases));
                }
            }
            let shapes: Vec<_> = layers
                .iter()
                .map(|layer| [layer.inputs, layer.outputs])
                .collect();
            let kind = match layers.len() {
                1 => ModelKind::Softmax,
                _ => ModelKind::Mlp,
            };
            json!({
                "kind": kind.word(),
                "layers": shapes,
                "activation": network.activation().word(),
            })
        }
        Model::Elsewhere(model) => {
            let mut rest = parameters;
            for part in model.parameters() {
                let values;
                (values, rest) = rest.split_at(part.count());
                tensors.push((part.name.clone(), part.sides.clone(), values.to_vec()));
            }
            json!({ "kind": ModelKind::Elsewhere.word(), "architecture": model.architecture() })
        }
    };
    (description, tensors)
}

/// The network that reads pixels, and its parameters: `W = B V` in the first layer, all else as it
/// was.
fn compose(network: &Network, parameters: &[f32], basis: Cosine) -> (Network, Vec<f32>) {
    let layers = network.layers();
    let first = &layers[0];
    let whole = network.with_inputs(basis.pixels());
    let whole = whole.expect("a network with more inputs is one");
    let mut composed = basis.weights(&parameters[first.weights.clone()], first.outputs);
    composed.extend_from_slice(&parameters[first.weights.end..]);
    (whole, composed)
}
