//! Norms of a network's per-record gradients, and of differences of two, from their factors.

// Loops over lanes read better by number, and the compiler unrolls them.
#![allow(clippy::needless_range_loop)]

use super::super::{Gradients, Records, Workspace};
use super::columns::{self, Chosen, Columns, Gathered, Inputs, Tile};
use super::{BLOCK, FactorPlace, Network};
use crate::linalg::{LINE, aligned, kernels, vectorised_widely};

/// Over all coordinates: `sum_l (|a_l|^2 + 1) |delta_l|^2` in `f64`.
pub(super) fn ghost(
    network: &Network,
    records: Records<'_>,
    gradients: Gradients<'_>,
    squared_norms: &mut [f64],
) {
    let features = records.data.squared_norms();
    let len = network.factor_len;
    vectorised_widely(
        #[inline(always)]
        || {
            for (j, (target, &row)) in squared_norms.iter_mut().zip(records.rows).enumerate() {
                let factors = &gradients.factors[j * len..][..len];
                let scale = f64::from(gradients.weights[j]);
                let norm = one_norm(&network.places, features[row as usize], factors);
                *target = scale * scale * norm;
            }
        },
    );
}

/// Over all coordinates: `|w g - w' g'|^2` in `f64`.
pub(super) fn distances(
    network: &Network,
    records: Records<'_>,
    left: Gradients<'_>,
    right: Gradients<'_>,
    squared_distances: &mut [f64],
) {
    let features = records.data.squared_norms();
    let len = network.factor_len;
    vectorised_widely(
        #[inline(always)]
        || {
            let targets = squared_distances.iter_mut().zip(records.rows);
            for (j, (target, &row)) in targets.enumerate() {
                let sides = [left, right].map(|side| {
                    let factors = &side.factors[j * len..][..len];
                    (factors, f64::from(side.weights[j]))
                });
                *target = difference_norm(&network.places, features[row as usize], sides);
            }
        },
    );
}

/// `|w g - w' g'|^2` from two records' factors with their weights.
#[inline(always)]
fn difference_norm(places: &[FactorPlace], features: f64, sides: [(&[f32], f64); 2]) -> f64 {
    let mut total = 0.0;
    for (l, place) in places.iter().enumerate() {
        let [error, other_error] = sides.map(|(factors, w)| (&factors[place.error.clone()], w));
        let [input, other_input] = sides.map(|(factors, _)| &factors[place.input.clone()]);
        total += match l {
            0 => (features + place.constant) * squared_difference(error, other_error),
            _ => outer_difference(input, error, other_input, other_error),
        };
    }
    total
}

#[inline(always)]
fn one_norm(places: &[FactorPlace], features: f64, factors: &[f32]) -> f64 {
    let mut total = 0.0;
    for (l, place) in places.iter().enumerate() {
        let input = match l {
            0 => features,
            _ => kernels::squared_norm(&factors[place.input.clone()]),
        };
        let error = kernels::squared_norm(&factors[place.error.clone()]);
        total = (input + place.constant).mul_add(error, total);
    }
    total
}

/// `|w d - w' d'|^2`; products of two `f32` are exact in `f64`, so every entry is rounded once.
#[inline(always)]
fn squared_difference(left: (&[f32], f64), right: (&[f32], f64)) -> f64 {
    sum_of_squares(left.0, right.0, |a, b| {
        left.1 * f64::from(a) - right.1 * f64::from(b)
    })
}

/// `|a v^T - a' v'^T|^2 + |v - v'|^2` with `v = w d`: a layer's weights and biases.
///
/// Entry by entry, each with one rounding of its two products, so the error is below 2^-51 of the
/// two gradients. Shorter formulas with `a - a'` and `v - v'` lose entries whose sides differ by a
/// factor of 2^53, and a malicious server could arrange that to get around the clip.
#[inline(always)]
fn outer_difference(
    input: &[f32],
    error: (&[f32], f64),
    other_input: &[f32],
    other_error: (&[f32], f64),
) -> f64 {
    let mut total = squared_difference(error, other_error);
    for (&d, &e) in error.0.iter().zip(other_error.0) {
        let (here, there) = (error.1 * f64::from(d), other_error.1 * f64::from(e));
        total += sum_of_squares(input, other_input, |a, b| {
            f64::from(a).mul_add(here, -(f64::from(b) * there))
        });
    }
    total
}

/// `sum entry(a_i, b_i)^2`, in lanes that become vector code.
#[inline(always)]
fn sum_of_squares(left: &[f32], right: &[f32], entry: impl Fn(f32, f32) -> f64) -> f64 {
    const LANES: usize = 4;
    let mut sums = [0.0f64; LANES];
    let (left_chunks, left_rest) = left.as_chunks::<LANES>();
    let (right_chunks, right_rest) = right.as_chunks::<LANES>();
    for (a, b) in left_chunks.iter().zip(right_chunks) {
        for lane in 0..LANES {
            let value = entry(a[lane], b[lane]);
            sums[lane] = value.mul_add(value, sums[lane]);
        }
    }
    for (&a, &b) in left_rest.iter().zip(right_rest) {
        let value = entry(a, b);
        sums[0] = value.mul_add(value, sums[0]);
    }
    (sums[0] + sums[2]) + (sums[1] + sums[3])
}

/// Over the chosen coordinates: `sum (a_c (w delta_r))^2` in `f32` for a few inputs at a time,
/// those sums in `f64`.
pub(super) fn selected(
    network: &Network,
    records: Records<'_>,
    gradients: Gradients<'_>,
    chosen: &[u32],
    squared_norms: &mut [f64],
    workspace: &mut Workspace,
) {
    let inputs_len = columns::inputs_len(network, records);
    let mut inputs_buffer = workspace.take(inputs_len + LINE);
    let inputs_scratch = &mut aligned(&mut inputs_buffer)[..inputs_len];
    let mut errors_buffer = workspace.take(columns::errors_len(network) + LINE);
    let errors_scratch = aligned(&mut errors_buffer);
    let len = network.factor_len;
    squared_norms.fill(0.0);
    for (l, (layer, place)) in network.layers.iter().zip(&network.places).enumerate() {
        let Some(chosen) = Chosen::new(layer, chosen, workspace) else {
            continue;
        };
        for (b, rows) in records.rows.chunks(BLOCK).enumerate() {
            let data = records.data;
            let gradients = columns::block(gradients, len, b);
            let norms = &mut squared_norms[b * BLOCK..][..rows.len()];
            let errors = Tile::of_errors(len, place, gradients, errors_scratch);
            let inputs = match l {
                0 => Inputs::of_data(Records { data, rows }, inputs_scratch),
                _ => Inputs::of_factors(gradients.factors, len, place),
            };
            vectorised_widely(
                #[inline(always)]
                || match &inputs {
                    Inputs::Tile(tile) => add_squares(&chosen, errors, norms, *tile),
                    Inputs::Rows(rows) => {
                        add_squares(&chosen, errors, norms, Gathered::new(rows));
                    }
                },
            );
        }
        chosen.put(workspace);
    }
    workspace.put(errors_buffer);
    workspace.put(inputs_buffer);
}

/// Weights whose squares are summed in `f32` before they join the `f64` sum.
const RUN: usize = 32;

#[inline(always)]
fn add_squares(chosen: &Chosen, errors: Tile<'_>, norms: &mut [f64], mut columns: impl Columns) {
    for weights in chosen.weights().chunks(RUN) {
        let mut run = [0.0f32; BLOCK];
        for &[input, output] in weights {
            let (column, errors) = (
                columns.column(input as usize),
                errors.column(output as usize),
            );
            for j in 0..BLOCK {
                let entry = column[j] * errors[j];
                run[j] = entry.mul_add(entry, run[j]);
            }
        }
        add_to(norms, &run);
    }
    add_squared_biases(chosen, errors, norms);
}

#[inline(always)]
fn add_squared_biases(chosen: &Chosen, errors: Tile<'_>, norms: &mut [f64]) {
    for outputs in chosen.biases().chunks(RUN) {
        let mut run = [0.0f32; BLOCK];
        for &output in outputs {
            let errors = errors.column(output as usize);
            for j in 0..BLOCK {
                run[j] = errors[j].mul_add(errors[j], run[j]);
            }
        }
        add_to(norms, &run);
    }
}

#[inline(always)]
fn add_to(norms: &mut [f64], run: &[f32; BLOCK]) {
    for (norm, &sum) in norms.iter_mut().zip(run) {
        *norm += f64::from(sum);
    }
}
