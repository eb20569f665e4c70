//! Logistic regression: `f_j(x) = log(1 + exp(-y_j <a_j, x>))` with `y_j = -1` for class 0 and
//! `+1` for class 1.
//!
//! The gradient is `s_j a_j` with `s_j = -y_j sigmoid(-y_j <a_j, x>)`: the factor of a record is the
//! one number `s_j`, its norm is `|s_j| |a_j|`, and `|a_j|` never changes. The intercept, where there
//! is one, is an ordinary last feature of the data.
//!
//! **Guarantee.** Every number of record `j` is the same to the bit in any batch.
//!
//! **Cost.** One pass over the stored features of the batch for the factors and one for the sum;
//! nothing for the norms. On a few selected coordinates the sum costs a binary search per
//! coordinate and record or that same pass, whichever is cheaper.
//!
//! **Place in the paper.** The first experiment (logistic regression with a nonconvex regularizer).

use super::{Coordinates, Gradients, Objective, Outcome, Records, Workspace};
use crate::data::{Dataset, Features, SparseRows};
use crate::linalg::{elementary, kernels, vectorised};

/// Two-class logistic regression; see the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Logistic {
    features: usize,
}

impl Logistic {
    /// Logistic regression over this many features, which is the dimension of the model.
    pub fn new(features: usize) -> Self {
        Logistic { features }
    }

    /// `max_j |a_j|^2 / 4`, a Lipschitz constant of every record's gradient; none without records.
    pub fn smoothness(&self, data: &Dataset) -> Option<f64> {
        data.squared_norms()
            .iter()
            .copied()
            .reduce(f64::max)
            .map(|largest| largest / 4.0)
    }

    fn check(&self, data: &Dataset) {
        assert_eq!(data.columns(), self.features, "features of the data");
        assert!(data.classes() <= 2, "logistic regression has two classes");
    }
}

impl Objective for Logistic {
    fn dimension(&self) -> usize {
        self.features
    }

    fn factor_len(&self) -> usize {
        1
    }

    fn factors(
        &self,
        model: &[f32],
        records: Records<'_>,
        outcomes: Option<&mut [Outcome]>,
        factors: Option<&mut [f32]>,
        workspace: &mut Workspace,
    ) {
        self.check(records.data);
        assert_eq!(model.len(), self.features, "one number per parameter");
        let mut own = workspace.take(if factors.is_none() { records.len() } else { 0 });
        let margins = match factors {
            Some(factors) => factors,
            None => &mut own[..],
        };
        assert_eq!(margins.len(), records.len(), "one factor per record");
        let labels = records.data.labels();
        vectorised(
            #[inline(always)]
            || {
                predict(model, records, margins);
                if let Some(outcomes) = outcomes {
                    assert_eq!(outcomes.len(), records.len(), "one outcome per record");
                    write_outcomes(margins, records.rows, labels, outcomes);
                }
                // -y sigmoid(-y m): the sigmoid of the margin with the label's sign turned.
                for (value, &row) in margins.iter_mut().zip(records.rows) {
                    let sign = sign(labels[row as usize]);
                    *value = -sign * elementary::sigmoid(-sign * *value);
                }
            },
        );
        workspace.put(own);
    }

    fn squared_norms(
        &self,
        records: Records<'_>,
        left: Gradients<'_>,
        right: Option<Gradients<'_>>,
        coordinates: Coordinates<'_>,
        squared_norms: &mut [f64],
        workspace: &mut Workspace,
    ) {
        self.check(records.data);
        match coordinates {
            Coordinates::All => {
                let norms = records.data.squared_norms();
                for (target, &row) in squared_norms.iter_mut().zip(records.rows) {
                    *target = norms[row as usize];
                }
            }
            Coordinates::Selected(chosen) => {
                selected_norms(self.features, records, chosen, squared_norms, workspace);
            }
        }
        // The record is the same on both sides, so the difference is one of two numbers; their
        // products with the weights are exact in f64.
        for (j, squared_norm) in squared_norms.iter_mut().enumerate() {
            let mut scale = f64::from(left.weights[j]) * f64::from(left.factors[j]);
            if let Some(right) = right {
                scale -= f64::from(right.weights[j]) * f64::from(right.factors[j]);
            }
            *squared_norm *= scale * scale;
        }
    }

    fn accumulate(
        &self,
        records: Records<'_>,
        gradients: Gradients<'_>,
        coordinates: Coordinates<'_>,
        sum: &mut [f32],
        workspace: &mut Workspace,
    ) {
        self.check(records.data);
        assert_eq!(
            sum.len(),
            coordinates.count(self.features),
            "one sum per coordinate"
        );
        let Gradients { factors, weights } = gradients;
        assert!(factors.len() == records.len() && weights.len() == records.len());
        vectorised(
            #[inline(always)]
            || match coordinates {
                Coordinates::All => add_rows(records, gradients, sum),
                Coordinates::Selected(chosen) => {
                    add_selected(records, gradients, chosen, sum, workspace);
                }
            },
        );
    }
}

/// `y` of a class.
#[inline(always)]
fn sign(label: u32) -> f32 {
    if label == 0 { -1.0 } else { 1.0 }
}

/// `<a_j, x>`, offset included.
#[inline(always)]
fn predict(model: &[f32], records: Records<'_>, margins: &mut [f32]) {
    let constant = match records.data.offset() {
        Some(offset) => kernels::dot(offset, model),
        None => 0.0,
    };
    match records.data.features() {
        Features::Dense(dense) => {
            for (margin, &row) in margins.iter_mut().zip(records.rows) {
                *margin = constant + kernels::dot(dense.row(row as usize), model);
            }
        }
        Features::Sparse(sparse) => {
            for (margin, &row) in margins.iter_mut().zip(records.rows) {
                let row = sparse.row(row as usize);
                *margin = constant + kernels::sparse_dot(row.indices, row.values, model);
            }
        }
    }
}

#[inline(always)]
fn write_outcomes(margins: &[f32], rows: &[u32], labels: &[u32], outcomes: &mut [Outcome]) {
    for ((outcome, &margin), &row) in outcomes.iter_mut().zip(margins).zip(rows) {
        *outcome = Outcome {
            loss: elementary::softplus(-sign(labels[row as usize]) * margin),
            class: u32::from(margin > 0.0),
        };
    }
}

/// `sum += sum_j weight_j s_j a_j`.
#[inline(always)]
fn add_rows(records: Records<'_>, gradients: Gradients<'_>, sum: &mut [f32]) {
    if let (&[row], Some(offset)) = (records.rows, records.data.offset()) {
        let scale = gradients.weights[0] * gradients.factors[0];
        return add_row_and_offset(records.data.features(), row, offset, scale, sum);
    }
    let mut total = 0.0;
    for (j, &row) in records.rows.iter().enumerate() {
        let scale = gradients.weights[j] * gradients.factors[j];
        total += scale;
        match records.data.features() {
            Features::Dense(dense) => kernels::add_scaled(sum, scale, dense.row(row as usize)),
            Features::Sparse(sparse) => {
                let row = sparse.row(row as usize);
                for (&index, &value) in row.indices.iter().zip(row.values) {
                    let slot = &mut sum[index as usize];
                    *slot = scale.mul_add(value, *slot);
                }
            }
        }
    }
    if let Some(offset) = records.data.offset() {
        kernels::add_scaled(sum, total, offset);
    }
}

/// One record alone: row and offset are added before they are scaled. Where they nearly cancel, two products would
/// leave rounding errors out of proportion to the record's norm, by which it was clipped.
#[inline(always)]
fn add_row_and_offset(features: &Features, row: u32, offset: &[f32], scale: f32, sum: &mut [f32]) {
    match features {
        Features::Dense(dense) => {
            let row = dense.row(row as usize);
            for ((slot, &value), &shift) in sum.iter_mut().zip(row).zip(offset) {
                *slot = scale.mul_add(value + shift, *slot);
            }
        }
        Features::Sparse(sparse) => {
            let row = sparse.row(row as usize);
            let mut stored = row.indices.iter().zip(row.values).peekable();
            for (i, (slot, &shift)) in sum.iter_mut().zip(offset).enumerate() {
                let value = stored
                    .next_if(|&(&index, _)| index as usize == i)
                    .map_or(0.0, |(_, &value)| value);
                *slot = scale.mul_add(value + shift, *slot);
            }
        }
    }
}

#[inline(always)]
fn add_selected(
    records: Records<'_>,
    gradients: Gradients<'_>,
    chosen: &[u32],
    sum: &mut [f32],
    workspace: &mut Workspace,
) {
    match records.data.features() {
        Features::Sparse(sparse) if !searching_pays(sparse, records.rows, chosen.len()) => {
            let mut full = workspace.take_zeroed(sparse.columns());
            add_rows(records, gradients, &mut full);
            for (sum, &coordinate) in sum.iter_mut().zip(chosen) {
                *sum += full[coordinate as usize];
            }
            workspace.put(full);
        }
        features => {
            for (j, &row) in records.rows.iter().enumerate() {
                let scale = gradients.weights[j] * gradients.factors[j];
                visit_selected(records.data, features, row, chosen, |place, value| {
                    sum[place] = scale.mul_add(value, sum[place]);
                });
            }
        }
    }
}

/// `sum` of the squares of the chosen features of every record.
fn selected_norms(
    dimension: usize,
    records: Records<'_>,
    chosen: &[u32],
    squared_norms: &mut [f64],
    workspace: &mut Workspace,
) {
    let _ = (dimension, workspace);
    let features = records.data.features();
    for (target, &row) in squared_norms.iter_mut().zip(records.rows) {
        let mut total = 0.0;
        visit_selected(records.data, features, row, chosen, |_, value| {
            total += f64::from(value) * f64::from(value);
        });
        *target = total;
    }
}

/// Calls `visit(position in chosen, feature)` for every chosen feature of a row that may not be
/// zero.
#[inline(always)]
fn visit_selected(
    data: &Dataset,
    features: &Features,
    row: u32,
    chosen: &[u32],
    mut visit: impl FnMut(usize, f32),
) {
    let offset = |coordinate: u32| {
        data.offset()
            .map_or(0.0, |offset| offset[coordinate as usize])
    };
    match features {
        Features::Dense(dense) => {
            let row = dense.row(row as usize);
            for (place, &coordinate) in chosen.iter().enumerate() {
                visit(place, row[coordinate as usize] + offset(coordinate));
            }
        }
        Features::Sparse(sparse) => {
            let row = sparse.row(row as usize);
            for (place, &coordinate) in chosen.iter().enumerate() {
                let stored = row
                    .indices
                    .binary_search(&coordinate)
                    .map_or(0.0, |found| row.values[found]);
                visit(place, stored + offset(coordinate));
            }
        }
    }
}

/// Whether looking up every chosen coordinate in every row costs less than adding whole rows.
fn searching_pays(sparse: &SparseRows, rows: &[u32], chosen: usize) -> bool {
    let Some(&first) = rows.first() else {
        return true;
    };
    // The first row speaks for all: only speed depends on it. A search step costs some four
    // times what one addition costs, because its branches cannot be foreseen.
    let stored = sparse.row(first as usize).indices.len();
    let steps = 1 + stored.checked_ilog2().unwrap_or(0) as usize;
    4 * chosen * steps * rows.len() < sparse.columns() + stored * rows.len()
}
