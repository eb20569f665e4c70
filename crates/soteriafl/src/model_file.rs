//! The model as `model.safetensors`: readable by every safetensors library, equal models equal bytes.
//!
//! Weights are `[out, in]` as everywhere else. The one metadata entry holds kind, shapes and, where
//! the records have them, the names of features as JSON (one entry, so that its order cannot vary):
//! whoever applies the model can see which column each weight is for. Where records go through a
//! public map before the model reads them (`data.features`), `map` says which: then names are of
//! what goes into the map, and weights for what comes out of it.

use safetensors::tensor::{Dtype, TensorView};
use serde_json::json;

use soteriafl_core::data::{Cosine, FeatureKind, FeatureMap};
use soteriafl_core::objective::Network;

use crate::problem::Model;

/// Bytes of the file for a model with these parameters. `intercept` is the value of the constant feature after
/// scaling, so that `weight . x + bias` is the model's output. Weights that read records written in a `basis` are
/// composed with it, so that the file's model reads scaled features as they are. `names` is what
/// these are called, and `features` the public map that they go through.
///
/// # Errors
/// When the model cannot be encoded.
pub fn to_bytes(
    model: &Model,
    parameters: &[f32],
    features: &FeatureMap,
    basis: Option<Cosine>,
    intercept: f64,
    names: Option<&[String]>,
) -> Result<Vec<u8>, String> {
    let mut tensors: Vec<(String, Vec<usize>, Vec<f32>)> = Vec::new();
    let mut description = match model {
        Model::Logistic {
            features,
            intercept: has_intercept,
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
            json!({ "kind": "logistic", "inputs": inputs })
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
                tensors.push((format!("{prefix}bias"), vec![layer.outputs], biases));
            }
            let shapes: Vec<_> = layers
                .iter()
                .map(|layer| [layer.inputs, layer.outputs])
                .collect();
            let kind = if layers.len() == 1 { "softmax" } else { "mlp" };
            json!({ "kind": kind, "layers": shapes, "activation": format!("{:?}", network.activation()).to_lowercase() })
        }
    };
    if let Some(names) = names {
        description["features"] = json!(names);
    }
    if features.kind() != FeatureKind::None {
        description["map"] = json!({
            "kind": features.kind().to_string(),
            "inputs": features.inputs(),
        });
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

/// The network that reads pixels, and its parameters: `W = B V` in the first layer, all else as it was.
fn compose(network: &Network, parameters: &[f32], basis: Cosine) -> (Network, Vec<f32>) {
    let layers = network.layers();
    let first = &layers[0];
    let hidden: Vec<usize> = layers[1..].iter().map(|layer| layer.inputs).collect();
    let classes = layers.last().map_or(first.outputs, |layer| layer.outputs);
    let whole = Network::new(basis.pixels(), &hidden, classes, network.activation())
        .expect("a network with more inputs is one");
    let mut composed = basis.weights(&parameters[first.weights.clone()], first.outputs);
    composed.extend_from_slice(&parameters[first.weights.end..]);
    (whole, composed)
}
