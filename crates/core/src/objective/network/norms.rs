//! Norms of a network's per-record gradients, from their factors.

// Loops over lanes read better by number, and the compiler unrolls them.
#![allow(clippy::needless_range_loop)]

use super::super::{Gradients, Records, Workspace};
use super::columns::{self, Chosen, Gathered, Inputs, Tile};
use super::{BLOCK, FactorPlace, Network};
use crate::linalg::{LINE, aligned, kernels, vectorised};

/// Over all coordinates: `sum_l (|a_l|^2 + 1) |delta_l|^2` in `f64`.
pub(super) fn ghost(
    network: &Network,
    records: Records<'_>,
    left: Gradients<'_>,
    right: Option<Gradients<'_>>,
    squared_norms: &mut [f64],
) {
    let features = records.data.squared_norms();
    let len = network.factor_len;
    vectorised(
        #[inline(always)]
        || {
            for (j, (target, &row)) in squared_norms.iter_mut().zip(records.rows).enumerate() {
                let factors = &left.factors[j * len..][..len];
                let scale = f64::from(left.weights[j]);
                let features = features[row as usize];
                *target = match right {
                    None => scale * scale * one_norm(&network.places, features, factors),
                    Some(right) => {
                        let other = &right.factors[j * len..][..len];
                        let sides = [(factors, scale), (other, f64::from(right.weights[j]))];
                        difference_norm(&network.places, features, sides)
                    }
                };
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
            0 => (features + 1.0) * squared_difference(error, other_error),
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
        total = (input + 1.0).mul_add(error, total);
    }
    total
}

/// `|w d - w' d'|^2`; the products are exact in `f64`.
#[inline(always)]
fn squared_difference(left: (&[f32], f64), right: (&[f32], f64)) -> f64 {
    changes(left, right)[0]
}

/// With `v = w d` and `e = w d - w' d'`: `|e|^2`, `|v|^2`, `<v, e>` and `|v - e|^2`.
///
/// Products of two `f32` are exact in `f64`, so every entry of `e` is rounded once.
#[inline(always)]
fn changes(left: (&[f32], f64), right: (&[f32], f64)) -> [f64; 4] {
    const LANES: usize = 4;
    let mut sums = [[0.0f64; LANES]; 4];
    let mut add = |lane: usize, a: f32, b: f32| {
        let value = left.1 * f64::from(a);
        let other = right.1 * f64::from(b);
        let change = value - other;
        sums[0][lane] = change.mul_add(change, sums[0][lane]);
        sums[1][lane] = value.mul_add(value, sums[1][lane]);
        sums[2][lane] = value.mul_add(change, sums[2][lane]);
        sums[3][lane] = other.mul_add(other, sums[3][lane]);
    };
    let (left_chunks, left_rest) = left.0.as_chunks::<LANES>();
    let (right_chunks, right_rest) = right.0.as_chunks::<LANES>();
    for (a, b) in left_chunks.iter().zip(right_chunks) {
        for lane in 0..LANES {
            add(lane, a[lane], b[lane]);
        }
    }
    for (&a, &b) in left_rest.iter().zip(right_rest) {
        add(0, a, b);
    }
    sums.map(|[a, b, c, d]| (a + c) + (b + d))
}

/// `|a v^T - a' v'^T|^2 + |v - v'|^2` with `v = w d`: a layer's weights and biases.
///
/// `a v^T - a' v'^T = u v^T + a' e^T` with the changes `u = a - a'` and `e = v - v'`, so its square is
/// `|u|^2 |v|^2 + 2 <u, a'> <v, e> + |a'|^2 |e|^2`. Nothing cancels unless the input grew in its own
/// direction just as the error shrank in its own; then the entries are squared one by one.
#[inline(always)]
fn outer_difference(
    input: &[f32],
    error: (&[f32], f64),
    other_input: &[f32],
    other_error: (&[f32], f64),
) -> f64 {
    let [moved, _, input_change, other_inputs] = changes((input, 1.0), (other_input, 1.0));
    let [changed, errors, error_change, _] = changes(error, other_error);
    // <u, a'> = <a, u> - |u|^2, each within rounding of |u| times a norm.
    let along = input_change - moved;
    let apart = moved * errors + other_inputs * changed;
    let weights = apart + 2.0 * along * error_change;
    if weights >= apart / 8.0 {
        return weights + changed;
    }
    let mut total = changed;
    for (&d, &e) in error.0.iter().zip(other_error.0) {
        let (here, there) = (error.1 * f64::from(d), other_error.1 * f64::from(e));
        for (&a, &b) in input.iter().zip(other_input) {
            // One rounding of each product, so the error is below 2^-51 of the two gradients. (The
            // form (a - b) d + b (d - e) would lose an entry whose sides differ by 53 binary orders,
            // which a server can arrange.)
            let entry = f64::from(a).mul_add(here, -(f64::from(b) * there));
            total = entry.mul_add(entry, total);
        }
    }
    total
}

/// Over the chosen coordinates: `sum (a_c (w delta_r))^2` in `f32` for a few inputs at a time, those
/// sums in `f64`.
pub(super) fn selected(
    network: &Network,
    records: Records<'_>,
    left: Gradients<'_>,
    right: Option<Gradients<'_>>,
    chosen: &[u32],
    squared_norms: &mut [f64],
    workspace: &mut Workspace,
) {
    let inputs_len = columns::inputs_len(network, records);
    let mut inputs_buffer = workspace.take(inputs_len + LINE);
    let inputs_scratch = &mut aligned(&mut inputs_buffer)[..inputs_len];
    let mut left_buffer = workspace.take(columns::errors_len(network) + LINE);
    let left_scratch = aligned(&mut left_buffer);
    let mut right_buffer = workspace.take(columns::errors_len(network) + LINE);
    let right_scratch = aligned(&mut right_buffer);
    let len = network.factor_len;
    squared_norms.fill(0.0);
    for (l, (layer, place)) in network.layers.iter().zip(&network.places).enumerate() {
        let Some(chosen) = Chosen::new(layer, chosen, workspace) else {
            continue;
        };
        for (b, rows) in records.rows.chunks(BLOCK).enumerate() {
            let data = records.data;
            let left = columns::block(left, len, b);
            let right = right.map(|right| columns::block(right, len, b));
            let norms = &mut squared_norms[b * BLOCK..][..rows.len()];
            // The first layer's input is the same on both sides: the difference is one of errors
            // alone.
            let together = right.filter(|_| l == 0);
            let errors = Tile::of_errors(len, place, left, together, left_scratch);
            let inputs = match l {
                0 => Inputs::of_data(Records { data, rows }, inputs_scratch),
                _ => Inputs::of_factors(left.factors, len, place),
            };
            vectorised(
                #[inline(always)]
                || match (&inputs, right) {
                    (Inputs::Tile(tile), _) => {
                        add_squares(&chosen, errors, norms, |input| *tile.column(input));
                    }
                    (Inputs::Rows(rows), Some(right)) if l > 0 => {
                        let changes = Tile::of_errors(len, place, left, Some(right), right_scratch);
                        let Inputs::Rows(other_rows) =
                            Inputs::of_factors(right.factors, len, place)
                        else {
                            unreachable!("factors are rows");
                        };
                        let inputs = (Gathered::new(rows), Gathered::new(&other_rows));
                        add_squared_differences(&chosen, inputs, (errors, changes), norms);
                    }
                    (Inputs::Rows(rows), _) => {
                        let mut gathered = Gathered::new(rows);
                        add_squares(&chosen, errors, norms, |input| *gathered.column(input));
                    }
                },
            );
        }
        chosen.put(workspace);
    }
    workspace.put(right_buffer);
    workspace.put(left_buffer);
    workspace.put(inputs_buffer);
}

/// Weights whose squares are summed in `f32` before they join the `f64` sum.
const RUN: usize = 32;

#[inline(always)]
fn add_squares(
    chosen: &Chosen,
    errors: Tile<'_>,
    norms: &mut [f64],
    mut column: impl FnMut(usize) -> [f32; BLOCK],
) {
    for weights in chosen.weights().chunks(RUN) {
        let mut run = [0.0f32; BLOCK];
        for &[input, output] in weights {
            let (column, errors) = (column(input as usize), errors.column(output as usize));
            for j in 0..BLOCK {
                let entry = column[j] * errors[j];
                run[j] = entry.mul_add(entry, run[j]);
            }
        }
        add_to(norms, &run);
    }
    add_squared_biases(chosen, errors, norms);
}

/// With the entries `(a - a') v + a' e` of [`outer_difference`], so that close gradients lose nothing;
/// `inputs` are `a` and `a'`, `errors` are `v` and `e`.
#[inline(always)]
fn add_squared_differences(
    chosen: &Chosen,
    mut inputs: (Gathered<'_>, Gathered<'_>),
    errors: (Tile<'_>, Tile<'_>),
    norms: &mut [f64],
) {
    for weights in chosen.weights().chunks(RUN) {
        let mut run = [0.0f32; BLOCK];
        for &[input, output] in weights {
            let (input, output) = (input as usize, output as usize);
            let (here, there) = (inputs.0.column(input), inputs.1.column(input));
            let (errors, changes) = (errors.0.column(output), errors.1.column(output));
            for j in 0..BLOCK {
                let moved = here[j] - there[j];
                let entry = moved.mul_add(errors[j], there[j] * changes[j]);
                run[j] = entry.mul_add(entry, run[j]);
            }
        }
        add_to(norms, &run);
    }
    add_squared_biases(chosen, errors.1, norms);
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
