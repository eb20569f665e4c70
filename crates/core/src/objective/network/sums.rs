//! Weighted sums of a network's per-record gradients, from their factors.

// Loops over lanes read better by number, and the compiler unrolls them.
#![allow(clippy::needless_range_loop)]

use super::super::{Gradients, Records, Workspace};
use super::columns::{self, Chosen, Columns, Gathered, Inputs, Tile};
use super::quantised_pixels::QuantisedPixels;
use super::{BLOCK, Network};
use crate::data::packed::{RowSource, with_rows};
use crate::data::{Features, SparseRows};
use crate::linalg::kernels::{self, LANES, padded};
use crate::linalg::{LINE, Matrix, aligned, matmul, packed_matrix, vectorised_widely};

/// Over all coordinates: for every layer `sum_j a_j (w_j delta_j)^T`, block by block.
pub(super) fn all(
    network: &Network,
    records: Records<'_>,
    gradients: Gradients<'_>,
    sum: &mut [f32],
    workspace: &mut Workspace,
) {
    for l in 0..network.layers.len() {
        let layer = &network.layers[l];
        let mut totals = workspace.take_zeroed(padded(layer.outputs));
        let target = &mut sum[layer.weights.clone()];
        let batch = Batch {
            network,
            l,
            records,
            gradients,
        };
        match records.data.features() {
            Features::Sparse(sparse) if l == 0 => {
                add_sparse(batch, sparse, target, &mut totals, workspace);
            }
            _ => add_dense(batch, target, &mut totals, workspace),
        }
        for (bias, &total) in sum[layer.biases.clone()].iter_mut().zip(&totals) {
            *bias += total;
        }
        workspace.put(totals);
    }
}

/// One layer's share of a sum over a batch.
#[derive(Clone, Copy)]
struct Batch<'a> {
    network: &'a Network,
    l: usize,
    records: Records<'a>,
    gradients: Gradients<'a>,
}

impl<'a> Batch<'a> {
    /// Rows and gradients block by block.
    fn blocks(self) -> impl Iterator<Item = (&'a [u32], Gradients<'a>)> {
        let len = self.network.factor_len;
        let rows = self.records.rows.chunks(BLOCK).enumerate();
        rows.map(move |(b, rows)| (rows, columns::block(self.gradients, len, b)))
    }

    /// Writes `w_j delta_j` in rows of whole registers, and adds them to the totals.
    fn scale_errors(self, block: Gradients<'_>, scaled: &mut [f32], totals: &mut [f32]) {
        let place = &self.network.places[self.l];
        let records = block.factors.chunks_exact(self.network.factor_len);
        let targets = scaled.chunks_exact_mut(totals.len());
        vectorised_widely(
            #[inline(always)]
            || {
                for ((target, factors), &weight) in targets.zip(records).zip(block.weights) {
                    let errors = &factors[place.error.clone()];
                    for ((target, total), &error) in
                        target.iter_mut().zip(totals.iter_mut()).zip(errors)
                    {
                        *target = weight * error;
                        *total += *target;
                    }
                    target[errors.len()..].fill(0.0);
                }
            },
        );
    }

    /// The offset, where this layer's inputs have one.
    fn offset(self) -> Option<&'a [f32]> {
        let offset = self.records.data.offset().filter(|_| self.l == 0);
        offset.map(|offset| &offset[..])
    }
}

/// The first layer of sparse records: every stored feature adds a multiple of the record's errors
/// to one row of weights. They are collected in packed form and added to the target at the end.
fn add_sparse(
    batch: Batch<'_>,
    sparse: &SparseRows,
    target: &mut [f32],
    totals: &mut [f32],
    workspace: &mut Workspace,
) {
    let (width, outputs) = (totals.len(), batch.network.layers[0].outputs);
    let mut packed_buffer = workspace.take_zeroed(sparse.columns() * width + LINE);
    let mut scaled_buffer = workspace.take(BLOCK * width + LINE);
    let packed = &mut aligned(&mut packed_buffer)[..sparse.columns() * width];
    let scaled = aligned(&mut scaled_buffer);
    for (rows, block) in batch.blocks() {
        batch.scale_errors(block, scaled, totals);
        vectorised_widely(
            #[inline(always)]
            || {
                with_rows!(sparse, |all| {
                    let block = &all.block::<BLOCK>(rows)[..rows.len()];
                    packed_matrix::add_outer_products(block, scaled, width, packed);
                });
            },
        );
    }
    vectorised_widely(
        #[inline(always)]
        || packed_matrix::unpack_sum(packed, outputs, batch.offset(), totals, target),
    );
    workspace.put(scaled_buffer);
    workspace.put(packed_buffer);
}

/// A layer with dense inputs: a matrix product per block.
fn add_dense(batch: Batch<'_>, target: &mut [f32], totals: &mut [f32], workspace: &mut Workspace) {
    let Batch { network, l, .. } = batch;
    let (len, layer, place) = (network.factor_len, &network.layers[l], &network.places[l]);
    let (inputs, outputs, width) = (layer.inputs, layer.outputs, totals.len());
    let mut scaled = workspace.take(BLOCK * width);
    let mut gathered = workspace.take(if l == 0 { BLOCK * inputs } else { 0 });
    for (rows, block) in batch.blocks() {
        let count = rows.len();
        batch.scale_errors(block, &mut scaled, totals);
        let errors = Matrix::new(&scaled, count, outputs, width);
        let inputs = match batch.records.data.features() {
            _ if l > 0 => Matrix::new(&block.factors[place.input.start..], count, inputs, len),
            Features::Dense(dense) if rows.windows(2).all(|pair| pair[1] == pair[0] + 1) => {
                let values = &dense.values()[rows[0] as usize * inputs..];
                Matrix::new(values, count, inputs, inputs)
            }
            Features::Dense(dense) => {
                for (&row, target) in rows.iter().zip(gathered.chunks_exact_mut(inputs)) {
                    target.copy_from_slice(dense.row(row as usize));
                }
                Matrix::new(&gathered, count, inputs, inputs)
            }
            Features::Sparse(_) => unreachable!("sparse inputs are not gathered"),
        };
        matmul(target, inputs.transposed(), errors);
    }
    if let Some(offset) = batch.offset() {
        let totals = &totals[..outputs];
        vectorised_widely(
            #[inline(always)]
            || {
                for (line, &shift) in target.chunks_exact_mut(outputs).zip(offset) {
                    kernels::add_scaled(line, shift, totals);
                }
            },
        );
    }
    workspace.put(gathered);
    workspace.put(scaled);
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
    if records.is_empty() {
        return;
    }
    let pixels = QuantisedPixels::of(records);
    let inputs_len = match pixels {
        Some(_) => 0,
        None => columns::inputs_len(network, records),
    };
    let mut inputs_buffer = workspace.take(inputs_len + LINE);
    let inputs_scratch = &mut aligned(&mut inputs_buffer)[..inputs_len];
    let mut errors_buffer = workspace.take(columns::errors_len(network) + LINE);
    let errors_scratch = aligned(&mut errors_buffer);
    let len = network.factor_len;
    for (l, (layer, place)) in network.layers.iter().zip(&network.places).enumerate() {
        let Some(chosen) = Chosen::new(layer, chosen, workspace) else {
            continue;
        };
        if let Some(pixels) = pixels.filter(|_| l == 0) {
            pixels.accumulate(network, gradients, &chosen, sum, workspace);
            chosen.put(workspace);
            continue;
        }
        let mut partial_buffer = workspace.take(LANES * chosen.weights().len() + LINE);
        let partial = aligned(&mut partial_buffer);
        let mut totals = workspace.take_zeroed(layer.outputs);
        for (b, rows) in records.rows.chunks(BLOCK).enumerate() {
            let gradients = columns::block(gradients, len, b);
            let data = records.data;
            let inputs = match l {
                0 => Inputs::of_data(Records { data, rows }, inputs_scratch),
                _ => Inputs::of_factors(gradients.factors, len, place),
            };
            let errors = Tile::of_errors(len, place, gradients, errors_scratch);
            let add = AddProducts {
                chosen: &chosen,
                errors,
                first: b == 0,
                pairs: rows.len().div_ceil(2 * LANES),
            };
            vectorised_widely(
                #[inline(always)]
                || {
                    match &inputs {
                        Inputs::Tile(tile) => add.to(partial, *tile),
                        Inputs::Rows(rows) => add.to(partial, Gathered::new(rows)),
                    }
                    for (output, total) in totals.iter_mut().enumerate() {
                        *total += kernels::sum(errors.column(output));
                    }
                },
            );
        }
        let (weights, biases) = sum[chosen.places.clone()].split_at_mut(chosen.weights().len());
        vectorised_widely(
            #[inline(always)]
            || {
                for (sum, &partial) in weights.iter_mut().zip(partial.as_chunks().0) {
                    *sum += kernels::sum_lanes(partial);
                }
            },
        );
        for (sum, &output) in biases.iter_mut().zip(chosen.biases()) {
            *sum += totals[output as usize];
        }
        workspace.put(totals);
        workspace.put(partial_buffer);
        chosen.put(workspace);
    }
    workspace.put(errors_buffer);
    workspace.put(inputs_buffer);
}

/// Adds `<column c, error r>` of one block to the partial sums of every chosen weight `(c, r)`.
struct AddProducts<'a> {
    chosen: &'a Chosen,
    errors: Tile<'a>,
    /// The first block begins the sums.
    first: bool,
    /// Pairs of registers that the records of the block fill; beyond them errors are zeros.
    pairs: usize,
}

impl AddProducts<'_> {
    #[inline(always)]
    fn to(self, partial: &mut [f32], mut columns: impl Columns) {
        let (partial, _) = partial.as_chunks_mut::<LANES>();
        let pairs = self.pairs.min(BLOCK / (2 * LANES));
        for (sums, &[input, output]) in partial.iter_mut().zip(self.chosen.weights()) {
            let column = columns.column(input as usize);
            let errors = self.errors.column(output as usize);
            let start = if self.first { [0.0; LANES] } else { *sums };
            let mut both = [start, [0.0; LANES]];
            for pair in 0..pairs {
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
}
