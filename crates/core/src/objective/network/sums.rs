//! Weighted sums of a network's per-record gradients, from their factors.

use super::super::{Gradients, Records, Workspace};
use super::columns::{self, Chosen, Errors, Inputs, Room};
use super::{BLOCK, Network};
use crate::data::Features;
use crate::linalg::{Matrix, Simd, WithSimd, dispatch, kernels, matmul, vectorised};

/// Over all coordinates.
pub(super) fn all(
    network: &Network,
    records: Records<'_>,
    gradients: Gradients<'_>,
    sum: &mut [f32],
    workspace: &mut Workspace,
) {
    let len = network.factor_len;
    let widest = network
        .layers
        .iter()
        .map(|layer| layer.outputs)
        .max()
        .unwrap_or(0);
    let mut scaled = workspace.take(BLOCK * widest);
    let mut total = workspace.take_zeroed(network.layers[0].outputs);
    let mut gathered = workspace.take(match records.data.features() {
        Features::Dense(dense) => BLOCK * dense.columns(),
        Features::Sparse(_) => 0,
    });
    for (b, rows) in records.rows.chunks(BLOCK).enumerate() {
        let first = b * BLOCK;
        let factors = &gradients.factors[first * len..][..rows.len() * len];
        let weights = &gradients.weights[first..][..rows.len()];
        for (l, (layer, place)) in network.layers.iter().zip(&network.places).enumerate() {
            let scaled = &mut scaled[..rows.len() * layer.outputs];
            let biases = &mut sum[layer.biases.clone()];
            scale_errors(
                factors,
                len,
                place.error.start,
                weights,
                layer.outputs,
                scaled,
            );
            for errors in scaled.chunks_exact(layer.outputs) {
                kernels_add(biases, errors);
                if l == 0 {
                    kernels_add(&mut total, errors);
                }
            }
            let errors = Matrix::new(scaled, rows.len(), layer.outputs, layer.outputs);
            let target = &mut sum[layer.weights.clone()];
            if l > 0 {
                let inputs = &factors[place.input.start..];
                let inputs = Matrix::new(inputs, rows.len(), layer.inputs, len);
                matmul(target, inputs.transposed(), errors);
                continue;
            }
            match records.data.features() {
                Features::Sparse(sparse) => vectorised(
                    #[inline(always)]
                    || {
                        for (&row, errors) in rows.iter().zip(scaled.chunks_exact(layer.outputs)) {
                            let row = sparse.row(row as usize);
                            for (&index, &value) in row.indices.iter().zip(row.values) {
                                let line =
                                    &mut target[index as usize * layer.outputs..][..layer.outputs];
                                kernels::add_scaled(line, value, errors);
                            }
                        }
                    },
                ),
                Features::Dense(dense) => {
                    let columns = dense.columns();
                    for (&row, target) in rows.iter().zip(gathered.chunks_exact_mut(columns)) {
                        target.copy_from_slice(dense.row(row as usize));
                    }
                    let inputs = Matrix::new(&gathered, rows.len(), columns, columns);
                    matmul(target, inputs.transposed(), errors);
                }
            }
        }
    }
    if let Some(offset) = records.data.offset() {
        let layer = &network.layers[0];
        let target = &mut sum[layer.weights.clone()];
        vectorised(
            #[inline(always)]
            || {
                for (line, &shift) in target.chunks_exact_mut(layer.outputs).zip(&offset[..]) {
                    kernels::add_scaled(line, shift, &total);
                }
            },
        );
    }
    workspace.put(gathered);
    workspace.put(total);
    workspace.put(scaled);
}

fn kernels_add(target: &mut [f32], source: &[f32]) {
    for (target, &source) in target.iter_mut().zip(source) {
        *target += source;
    }
}

/// `scaled_j = weight_j delta_j`, rows without gaps.
fn scale_errors(
    factors: &[f32],
    len: usize,
    start: usize,
    weights: &[f32],
    outputs: usize,
    scaled: &mut [f32],
) {
    for ((target, factors), &weight) in scaled
        .chunks_exact_mut(outputs)
        .zip(factors.chunks_exact(len))
        .zip(weights)
    {
        for (target, &error) in target.iter_mut().zip(&factors[start..][..outputs]) {
            *target = weight * error;
        }
    }
}

/// Over the chosen coordinates.
pub(super) fn selected(
    network: &Network,
    records: Records<'_>,
    gradients: Gradients<'_>,
    chosen: &[u32],
    sum: &mut [f32],
    workspace: &mut Workspace,
) {
    let mut tile = workspace.take(columns::tile_len(network, records));
    let mut errors = workspace.take(columns::errors_len(network));
    let len = network.factor_len;
    for (b, rows) in records.rows.chunks(BLOCK).enumerate() {
        let block = Records {
            data: records.data,
            rows,
        };
        let gradients = columns::block(gradients, len, b);
        for (l, (layer, place)) in network.layers.iter().zip(&network.places).enumerate() {
            let chosen = Chosen::new(layer, chosen);
            if chosen.is_empty() {
                continue;
            }
            let (inputs, offset) = match l {
                0 => (Inputs::of_data(block, &mut tile), records.data.offset()),
                _ => (Inputs::of_factors(gradients.factors, len, place), None),
            };
            dispatch(AddProducts {
                inputs: &inputs,
                errors: Errors::new(len, place, gradients, None, &mut errors),
                chosen,
                offset: offset.map(|offset| &offset[..]),
                sum,
            });
        }
    }
    workspace.put(errors);
    workspace.put(tile);
}

/// `sum[(c, r)] += <column c, error r>` for the chosen weights and biases of one layer.
struct AddProducts<'a> {
    inputs: &'a Inputs<'a>,
    errors: Errors<'a>,
    chosen: Chosen<'a>,
    offset: Option<&'a [f32]>,
    sum: &'a mut [f32],
}

impl WithSimd for AddProducts<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let AddProducts {
            inputs,
            errors,
            chosen,
            offset,
            sum,
        } = self;
        let mut room = Room::new();
        chosen.visit_weights(
            #[inline(always)]
            |position, input, output| {
                let column = inputs.column(input, &mut room);
                let product = kernels::dot_in_registers(simd, column, errors.column(output));
                let shift = offset.map_or(0.0, |offset| offset[input]);
                sum[position] += shift.mul_add(errors.total(output), product);
            },
        );
        chosen.visit_biases(
            #[inline(always)]
            |position, output| sum[position] += errors.total(output),
        );
    }
}
