//! Weighted sums of a network's per-record gradients, from their factors.

use super::super::{Gradients, Records, Workspace};
use super::columns::{self, Chosen, Gathered, Inputs, Tile};
use super::{BLOCK, Network};
use crate::data::Features;
use crate::linalg::kernels::{self, LANES};
use crate::linalg::{Matrix, matmul, vectorised};

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

/// Over the chosen coordinates: for each of them the dot product of two columns, in eight partial
/// sums that are added up at the end.
pub(super) fn selected(
    network: &Network,
    records: Records<'_>,
    gradients: Gradients<'_>,
    chosen: &[u32],
    sum: &mut [f32],
    workspace: &mut Workspace,
) {
    let mut inputs_scratch = workspace.take(columns::inputs_len(network, records));
    let mut errors_scratch = workspace.take(columns::errors_len(network));
    let len = network.factor_len;
    for (l, (layer, place)) in network.layers.iter().zip(&network.places).enumerate() {
        let Some(chosen) = Chosen::new(layer, chosen, workspace) else {
            continue;
        };
        let mut partial = workspace.take_zeroed(LANES * chosen.weights().len());
        let mut totals = workspace.take_zeroed(layer.outputs);
        for (b, rows) in records.rows.chunks(BLOCK).enumerate() {
            let gradients = columns::block(gradients, len, b);
            let data = records.data;
            let inputs = match l {
                0 => Inputs::of_data(Records { data, rows }, &mut inputs_scratch),
                _ => Inputs::of_factors(gradients.factors, len, place),
            };
            let errors = Tile::of_errors(len, place, gradients, None, &mut errors_scratch);
            vectorised(
                #[inline(always)]
                || {
                    match &inputs {
                        Inputs::Tile(tile) => {
                            add_products(&chosen, &mut partial, errors, |input| *tile.column(input))
                        }
                        Inputs::Rows(rows) => {
                            let mut gathered = Gathered::new(rows);
                            add_products(&chosen, &mut partial, errors, |input| {
                                *gathered.column(input)
                            });
                        }
                    }
                    for (output, total) in totals.iter_mut().enumerate() {
                        *total += kernels::sum(errors.column(output));
                    }
                },
            );
        }
        let offset = records.data.offset().filter(|_| l == 0);
        let sum = &mut sum[chosen.places.clone()];
        vectorised(
            #[inline(always)]
            || {
                finish(
                    &chosen,
                    offset.map(|offset| &offset[..]),
                    &partial,
                    &totals,
                    sum,
                )
            },
        );
        workspace.put(totals);
        workspace.put(partial);
        chosen.put(workspace);
    }
    workspace.put(errors_scratch);
    workspace.put(inputs_scratch);
}

/// Adds `<column c, error r>` of one block to the partial sums of every chosen weight `(c, r)`.
#[inline(always)]
fn add_products(
    chosen: &Chosen,
    partial: &mut [f32],
    errors: Tile<'_>,
    mut column: impl FnMut(usize) -> [f32; BLOCK],
) {
    let (partial, _) = partial.as_chunks_mut::<LANES>();
    for (sums, &[input, output]) in partial.iter_mut().zip(chosen.weights()) {
        let (column, errors) = (column(input as usize), errors.column(output as usize));
        let mut both = [*sums, [0.0; LANES]];
        for pair in 0..BLOCK / (2 * LANES) {
            for half in 0..2 {
                for lane in 0..LANES {
                    let at = (2 * pair + half) * LANES + lane;
                    both[half][lane] = column[at].mul_add(errors[at], both[half][lane]);
                }
            }
        }
        for lane in 0..LANES {
            sums[lane] = both[0][lane] + both[1][lane];
        }
    }
}

/// Adds up the partial sums; the offset's share of a weight is its product with the sum of errors.
#[inline(always)]
fn finish(
    chosen: &Chosen,
    offset: Option<&[f32]>,
    partial: &[f32],
    totals: &[f32],
    sum: &mut [f32],
) {
    let (weights, biases) = sum.split_at_mut(chosen.weights().len());
    for (sum, &partial) in weights.iter_mut().zip(partial.as_chunks().0) {
        *sum += kernels::sum_lanes(partial);
    }
    if let Some(offset) = offset {
        for (sum, &[input, output]) in weights.iter_mut().zip(chosen.weights()) {
            *sum = offset[input as usize].mul_add(totals[output as usize], *sum);
        }
    }
    for (sum, &output) in biases.iter_mut().zip(chosen.biases()) {
        *sum += totals[output as usize];
    }
}
