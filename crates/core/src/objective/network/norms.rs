//! Norms of a network's per-record gradients, from their factors.

use super::super::{Gradients, Records, Workspace};
use super::columns::{self, Chosen, Errors, Inputs, Room};
use super::{BLOCK, FactorPlace, Network};
use crate::linalg::{kernels, vectorised};

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
                *target = match right {
                    None => {
                        scale * scale * one_norm(&network.places, features[row as usize], factors)
                    }
                    Some(right) => {
                        let other = &right.factors[j * len..][..len];
                        let other_scale = f64::from(right.weights[j]);
                        let mut total = 0.0;
                        for (l, place) in network.places.iter().enumerate() {
                            let errors = (&factors[place.error.clone()], scale);
                            let others = (&other[place.error.clone()], other_scale);
                            if l == 0 {
                                total += (features[row as usize] + 1.0)
                                    * squared_difference(errors, others);
                            } else {
                                total += outer_difference(
                                    &factors[place.input.clone()],
                                    errors,
                                    &other[place.input.clone()],
                                    others,
                                );
                            }
                        }
                        total
                    }
                };
            }
        },
    );
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
    let mut total = 0.0;
    for (&a, &b) in left.0.iter().zip(right.0) {
        let difference = left.1 * f64::from(a) - right.1 * f64::from(b);
        total = difference.mul_add(difference, total);
    }
    total
}

/// `|a (w d)^T - a' (w' d')^T|^2 + |w d - w' d'|^2`: a layer's weights and biases.
#[inline(always)]
fn outer_difference(
    input: &[f32],
    error: (&[f32], f64),
    other_input: &[f32],
    other_error: (&[f32], f64),
) -> f64 {
    let mut total = squared_difference(error, other_error);
    for (&d, &e) in error.0.iter().zip(other_error.0) {
        let here = error.1 * f64::from(d);
        let change = here - other_error.1 * f64::from(e);
        for (&a, &b) in input.iter().zip(other_input) {
            // a d - b e = (a - b) d + b (d - e): both differences are exact or rounded once.
            let (a, b) = (f64::from(a), f64::from(b));
            let entry = (a - b).mul_add(here, b * change);
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
    let mut tile = workspace.take(columns::tile_len(network, records));
    let mut left_tile = workspace.take(columns::errors_len(network));
    let mut right_tile = workspace.take(columns::errors_len(network));
    let len = network.factor_len;
    for (b, rows) in records.rows.chunks(BLOCK).enumerate() {
        let block = Records {
            data: records.data,
            rows,
        };
        let left = columns::block(left, len, b);
        let right = right.map(|right| columns::block(right, len, b));
        let mut totals = [0.0f64; BLOCK];
        for (l, (layer, place)) in network.layers.iter().zip(&network.places).enumerate() {
            let chosen = Chosen::new(layer, chosen);
            if chosen.is_empty() {
                continue;
            }
            vectorised(
                #[inline(always)]
                || match right {
                    // The first layer's input is the same on both sides: the difference is one of
                    // errors alone.
                    _ if l == 0 => {
                        let errors = Errors::new(len, place, left, right, &mut left_tile);
                        let inputs = Inputs::of_data(block, &mut tile);
                        let offset = records.data.offset().map(|offset| &offset[..]);
                        add_squares(&inputs, errors, chosen, offset, &mut totals);
                    }
                    None => {
                        let errors = Errors::new(len, place, left, None, &mut left_tile);
                        let inputs = Inputs::of_factors(left.factors, len, place);
                        add_squares(&inputs, errors, chosen, None, &mut totals);
                    }
                    Some(right) => {
                        let errors = Errors::new(len, place, left, None, &mut left_tile);
                        let others = Errors::new(len, place, right, None, &mut right_tile);
                        let inputs = Inputs::of_factors(left.factors, len, place);
                        let other_inputs = Inputs::of_factors(right.factors, len, place);
                        let (here, there) = ((&inputs, errors), (&other_inputs, others));
                        add_squared_differences(here, there, chosen, &mut totals);
                    }
                },
            );
        }
        squared_norms[b * BLOCK..][..rows.len()].copy_from_slice(&totals[..rows.len()]);
    }
    workspace.put(right_tile);
    workspace.put(left_tile);
    workspace.put(tile);
}

/// Weights whose squares are summed in `f32` before they join the `f64` sum.
const RUN: usize = 32;

#[inline(always)]
fn add_squares(
    inputs: &Inputs<'_>,
    errors: Errors<'_>,
    chosen: Chosen<'_>,
    offset: Option<&[f32]>,
    totals: &mut [f64; BLOCK],
) {
    let mut run = [0.0f32; BLOCK];
    let mut room = Room::new();
    chosen.visit_weights(
        #[inline(always)]
        |position, input, output| {
            let column = inputs.column(input, &mut room);
            let errors = errors.column(output);
            let shift = offset.map_or(0.0, |offset| offset[input]);
            for j in 0..BLOCK {
                let entry = (column[j] + shift) * errors[j];
                run[j] = entry.mul_add(entry, run[j]);
            }
            if position % RUN == 0 {
                flush(&mut run, totals);
            }
        },
    );
    chosen.visit_biases(
        #[inline(always)]
        |_, output| {
            for (square, &error) in run.iter_mut().zip(errors.column(output)) {
                *square = error.mul_add(error, *square);
            }
        },
    );
    flush(&mut run, totals);
}

#[inline(always)]
fn add_squared_differences(
    left: (&Inputs<'_>, Errors<'_>),
    right: (&Inputs<'_>, Errors<'_>),
    chosen: Chosen<'_>,
    totals: &mut [f64; BLOCK],
) {
    let mut run = [0.0f32; BLOCK];
    let (mut room, mut other_room) = (Room::new(), Room::new());
    chosen.visit_weights(
        #[inline(always)]
        |position, input, output| {
            let here = left.0.column(input, &mut room);
            let there = right.0.column(input, &mut other_room);
            let (errors, others) = (left.1.column(output), right.1.column(output));
            for j in 0..BLOCK {
                // Written with differences, so that close gradients lose nothing.
                let moved = here[j] - there[j];
                let changed = errors[j] - others[j];
                let entry = moved.mul_add(errors[j], there[j] * changed);
                run[j] = entry.mul_add(entry, run[j]);
            }
            if position % RUN == 0 {
                flush(&mut run, totals);
            }
        },
    );
    chosen.visit_biases(
        #[inline(always)]
        |_, output| {
            let (errors, others) = (left.1.column(output), right.1.column(output));
            for j in 0..BLOCK {
                let changed = errors[j] - others[j];
                run[j] = changed.mul_add(changed, run[j]);
            }
        },
    );
    flush(&mut run, totals);
}

#[inline(always)]
fn flush(run: &mut [f32; BLOCK], totals: &mut [f64; BLOCK]) {
    for (total, sum) in totals.iter_mut().zip(run) {
        *total += f64::from(*sum);
        *sum = 0.0;
    }
}
