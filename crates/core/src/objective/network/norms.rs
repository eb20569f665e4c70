//! Norms of a network's per-record gradients, from their factors.

use super::super::{Gradients, Records, Workspace};
use super::{FactorPlace, Network, visit_chosen, write_row};
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

/// Over the chosen coordinates.
pub(super) fn selected(
    network: &Network,
    records: Records<'_>,
    left: Gradients<'_>,
    right: Option<Gradients<'_>>,
    chosen: &[u32],
    squared_norms: &mut [f64],
    workspace: &mut Workspace,
) {
    let len = network.factor_len;
    let mut features = workspace.take(network.layers[0].inputs);
    for (j, (target, &row)) in squared_norms.iter_mut().zip(records.rows).enumerate() {
        write_row(records.data, row as usize, &mut features);
        let mut total = 0.0;
        for (l, (layer, place)) in network.layers.iter().zip(&network.places).enumerate() {
            let entry = |gradients: Gradients<'_>, c: Option<usize>, r: usize| {
                let factors = &gradients.factors[j * len..][..len];
                let input = match (l, c) {
                    (_, None) => 1.0,
                    (0, Some(c)) => features[c],
                    (_, Some(c)) => factors[place.input.start + c],
                };
                let error = gradients.weights[j] * factors[place.error.start + r];
                f64::from(input) * f64::from(error)
            };
            visit_chosen(layer, chosen, |_, c, r| {
                let here = entry(left, c, r);
                let value = right.map_or(here, |right| here - entry(right, c, r));
                total += value * value;
            });
        }
        *target = total;
    }
    workspace.put(features);
}
