//! Objectives of your own: write one record's loss and gradient, get an [`Objective`].
//!
//! [`Explicit`] keeps each record's gradient explicitly: its factors *are* the gradient, `d`
//! numbers per record. Everything else (clipping, selected coordinates, SAGA's table) follows from
//! that at a cost of `O(batch x d)` time and memory, where the built-in objectives need far less.
//! Every number of a record is computed from that record alone, to the bit.

use super::{Coordinates, Gradients, Objective, ObjectiveError, Outcome, Records, Workspace};
use crate::data::{Dataset, Features, SparseRow};
use crate::linalg;

/// A loss of one record with its gradient: all that [`Explicit`] needs.
///
/// ```
/// use soteriafl_core::objective::{Outcome, RecordLoss, RowView};
///
/// /// `(<a, x> - y)^2 / 2` with `y` the number of the class.
/// struct Squares(usize);
///
/// impl RecordLoss for Squares {
///     fn dimension(&self) -> usize {
///         self.0
///     }
///     fn loss_and_gradient(
///         &self,
///         model: &[f32],
///         features: RowView<'_>,
///         label: u32,
///         gradient: &mut [f32],
///     ) -> Outcome {
///         let residual = features.dot(model) - label as f32;
///         features.add_scaled(residual, gradient);
///         let class = (residual + label as f32).round() as u32;
///         Outcome { loss: residual * residual / 2.0, class }
///     }
/// }
/// ```
pub trait RecordLoss {
    /// Number of parameters.
    fn dimension(&self) -> usize;

    /// Adds the gradient at `model` to `gradient`, which comes as zeros, and returns loss and
    /// predicted class. Where records have targets, `label` is 0 and the features know the target
    /// ([`RowView::target`]).
    fn loss_and_gradient(
        &self,
        model: &[f32],
        features: RowView<'_>,
        label: u32,
        gradient: &mut [f32],
    ) -> Outcome;
}

/// One record's features, dense or sparse, offset included.
#[derive(Clone, Copy)]
pub struct RowView<'a> {
    row: StoredRow<'a>,
    offset: Option<&'a [f32]>,
    squared_norm: f64,
    target: Option<f32>,
}

#[derive(Clone, Copy)]
enum StoredRow<'a> {
    Dense(&'a [f32]),
    Sparse(SparseRow<'a>),
}

impl<'a> RowView<'a> {
    /// Row `row` of `data`.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn new(data: &'a Dataset, row: usize) -> Self {
        RowView {
            row: match data.features() {
                Features::Dense(dense) => StoredRow::Dense(dense.row(row)),
                Features::Sparse(sparse) => StoredRow::Sparse(sparse.row(row)),
            },
            offset: data.offset().map(|offset| &offset[..]),
            squared_norm: data.squared_norms()[row],
            target: data.target_values().get(row).copied(),
        }
    }

    /// `<a, weights>` for this row `a`.
    ///
    /// # Panics
    /// If there are fewer weights than features; more are ignored.
    pub fn dot(&self, weights: &[f32]) -> f32 {
        let stored = match self.row {
            StoredRow::Dense(row) => linalg::dot(row, &weights[..row.len()]),
            StoredRow::Sparse(row) => linalg::vectorised(
                #[inline(always)]
                || linalg::kernels::sparse_dot(row, weights),
            ),
        };
        self.offset.map_or(stored, |offset| {
            stored + linalg::dot(offset, &weights[..offset.len()])
        })
    }

    /// `target += scale * a` for this row `a`.
    ///
    /// # Panics
    /// If `target` is shorter than the row; numbers beyond the row do not change.
    pub fn add_scaled(&self, scale: f32, target: &mut [f32]) {
        if let Some(offset) = self.offset {
            linalg::add_scaled(&mut target[..offset.len()], scale, offset);
        }
        match self.row {
            StoredRow::Dense(row) => linalg::add_scaled(&mut target[..row.len()], scale, row),
            StoredRow::Sparse(row) => {
                for (&index, &value) in row.indices.iter().zip(row.values) {
                    target[index as usize] += scale * value;
                }
            }
        }
    }

    /// The record's target in [-1, 1], where records have targets.
    pub fn target(&self) -> Option<f32> {
        self.target
    }

    /// `|a|^2`.
    pub fn squared_norm(&self) -> f64 {
        self.squared_norm
    }
}

/// An [`Objective`] made of a [`RecordLoss`]; see the module for what it costs.
#[derive(Clone, Copy, Debug)]
pub struct Explicit<Loss>(
    /// The loss of one record.
    pub Loss,
);

impl<Loss: RecordLoss + Send + Sync> Objective for Explicit<Loss> {
    fn dimension(&self) -> usize {
        self.0.dimension()
    }

    fn factors(
        &self,
        model: &[f32],
        records: Records<'_>,
        mut outcomes: Option<&mut [Outcome]>,
        mut factors: Option<&mut [f32]>,
        workspace: &mut Workspace,
    ) -> Result<(), ObjectiveError> {
        let dimension = self.dimension();
        assert_eq!(model.len(), dimension, "one number per parameter");
        let mut unused = workspace.take(if factors.is_none() { dimension } else { 0 });
        for (j, &row) in records.rows.iter().enumerate() {
            let gradient = match factors.as_deref_mut() {
                Some(factors) => &mut factors[j * dimension..][..dimension],
                None => &mut unused[..],
            };
            gradient.fill(0.0);
            let view = RowView::new(records.data, row as usize);
            let label = match view.target {
                Some(_) => 0,
                None => records.data.labels()[row as usize],
            };
            let outcome = self.0.loss_and_gradient(model, view, label, gradient);
            if let Some(outcomes) = outcomes.as_deref_mut() {
                outcomes[j] = outcome;
            }
        }
        workspace.put(unused);
        Ok(())
    }
}

/// [`Objective::squared_norms`] where factors are the gradients themselves.
pub(super) fn norms_of_rows(
    dimension: usize,
    gradients: Gradients<'_>,
    coordinates: Coordinates<'_>,
    squared_norms: &mut [f64],
) {
    for (j, squared_norm) in squared_norms.iter_mut().enumerate() {
        let gradient = scaled(gradients, j, dimension);
        *squared_norm = match coordinates {
            Coordinates::All => (0..dimension).map(|i| gradient(i).powi(2)).sum(),
            Coordinates::Selected(chosen) => {
                chosen.iter().map(|&i| gradient(i as usize).powi(2)).sum()
            }
        };
    }
}

/// [`Objective::squared_distances`] where factors are the gradients themselves.
pub(super) fn distances_of_rows(
    dimension: usize,
    left: Gradients<'_>,
    right: Gradients<'_>,
    squared_distances: &mut [f64],
) {
    for (j, squared_distance) in squared_distances.iter_mut().enumerate() {
        let (left, right) = (scaled(left, j, dimension), scaled(right, j, dimension));
        *squared_distance = (0..dimension).map(|i| (left(i) - right(i)).powi(2)).sum();
    }
}

/// [`Objective::accumulate`] where factors are the gradients themselves.
pub(super) fn sum_rows(
    dimension: usize,
    gradients: Gradients<'_>,
    coordinates: Coordinates<'_>,
    sum: &mut [f32],
) {
    let count = coordinates.count(dimension);
    assert_eq!(sum.len(), count, "one sum per coordinate");
    for (j, &weight) in gradients.weights.iter().enumerate() {
        let gradient = &gradients.factors[j * dimension..][..dimension];
        match coordinates {
            Coordinates::All => linalg::add_scaled(sum, weight, gradient),
            Coordinates::Selected(chosen) => {
                for (sum, &coordinate) in sum.iter_mut().zip(chosen) {
                    *sum += weight * gradient[coordinate as usize];
                }
            }
        }
    }
}

/// `weight_j g_j`, entry by entry. Products of two `f32` are exact in `f64`, so differences of two
/// of them have no other error than their own rounding.
fn scaled<'a>(
    gradients: Gradients<'a>,
    j: usize,
    dimension: usize,
) -> impl Fn(usize) -> f64 + use<'a> {
    let gradient = &gradients.factors[j * dimension..][..dimension];
    let weight = f64::from(gradients.weights[j]);
    move |i| weight * f64::from(gradient[i])
}
