//! The model as `model.safetensors`: readable by every safetensors library, equal models equal bytes.
//!
//! Weights are `[out, in]` as everywhere else. The one metadata entry holds kind and shapes as JSON
//! (one entry, so that its order cannot vary).

use std::path::Path;

use safetensors::tensor::{Dtype, TensorView};
use serde_json::json;

use crate::problem::Model;

/// Bytes of the file for a model with these parameters. `intercept` is the value of the constant feature after
/// scaling, so that `weight . x + bias` is the model's output.
pub fn to_bytes(model: &Model, parameters: &[f32], intercept: f64) -> Result<Vec<u8>, String> {
    let mut tensors: Vec<(String, Vec<usize>, Vec<f32>)> = Vec::new();
    let description = match model {
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

/// Writes the file, whole or not at all.
///
/// # Errors
/// When the model cannot be encoded or the file not written.
pub fn write(path: &Path, model: &Model, parameters: &[f32], intercept: f64) -> Result<(), String> {
    let bytes = to_bytes(model, parameters, intercept)?;
    crate::output::write_whole(path, &bytes).map_err(|error| format!("{}: {error}", path.display()))
}
