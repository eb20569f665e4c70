//! Linear models: `f_j(x) = phi_j(<a_j, x>)`, with `phi_j` a [`MarginLoss`] of one number:
//! logistic regression `log(1 + exp(-y_j <a_j, x>))`, least squares, Huber's loss.
//!
//! The gradient is `s_j a_j` with `s_j = phi_j'(<a_j, x>)`: the factor of a record is the one
//! number `s_j`, its norm is `|s_j| |a_j|`, and `|a_j|` never changes. The intercept, where there
//! is one, is an ordinary last feature of the data.
//!
//! **Guarantee.** Every number of record `j` is the same to the bit in any batch.
//!
//! **Cost.** One pass over the stored features of the batch for the factors and one for the sum;
//! nothing for the norms. On a few selected coordinates the sum costs a binary search per
//! coordinate and record, or a table lookup per stored feature, or that same pass, whichever is
//! cheapest. Of features with two values only the columns are read (`data/indicators.rs`).
//!
//! **Place in the paper.** The first experiment (logistic regression with a nonconvex regularizer).

mod selected;

use super::margin_loss::{CrossEntropy, MarginLoss, TargetLoss};
use super::{
    Coordinates, Gradients, Objective, ObjectiveError, Outcome, Records, Workspace, check_columns,
};
use crate::data::indicators::{Indicators, Table, table_of};
use crate::data::packed::{RowSource, with_rows};
use crate::data::{Dataset, Features};
use crate::linalg::sparse::SparseVector;
use crate::linalg::{self, kernels, vectorised};

use selected::{add_selected, selected_norms};

/// Rows that are prefetched together.
pub(super) const BLOCK: usize = 64;

/// A linear model with this loss; see the module.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Linear<Loss> {
    features: usize,
    loss: Loss,
}

/// Two-class logistic regression.
pub type Logistic = Linear<CrossEntropy>;

/// A linear model of a target.
pub type LinearRegression = Linear<TargetLoss>;

impl Logistic {
    /// Logistic regression over this many features, which is the dimension of the model.
    pub fn new(features: usize) -> Self {
        Self::with_loss(features, CrossEntropy::default())
    }
}

impl<Loss: MarginLoss> Linear<Loss> {
    /// A linear model over this many features, which is its dimension, with this loss.
    pub fn with_loss(features: usize, loss: Loss) -> Self {
        Linear { features, loss }
    }

    /// `max_j |a_j|^2` times the largest `phi''`, a Lipschitz constant of every record's gradient;
    /// none without records.
    pub fn smoothness(&self, data: &Dataset) -> Option<f64> {
        data.squared_norms()
            .iter()
            .copied()
            .reduce(f64::max)
            .map(|largest| largest * self.loss.curvature())
    }

    fn assert_fits(&self, data: &Dataset) {
        let fits = self.check(data);
        assert!(fits.is_ok(), "{fits:?}");
    }
}

impl<Loss: MarginLoss> Objective for Linear<Loss> {
    fn dimension(&self) -> usize {
        self.features
    }

    fn check(&self, data: &Dataset) -> Result<(), String> {
        check_columns(data, self.features)?;
        self.loss.check_records(data)
    }

    fn factor_len(&self) -> usize {
        1
    }

    fn factors(
        &self,
        model: &[f32],
        records: Records<'_>,
        mut outcomes: Option<&mut [Outcome]>,
        factors: Option<&mut [f32]>,
        workspace: &mut Workspace,
    ) -> Result<(), ObjectiveError> {
        self.assert_fits(records.data);
        assert_eq!(model.len(), self.features, "one number per parameter");
        let mut own = workspace.take(if factors.is_none() { records.len() } else { 0 });
        let margins = match factors {
            Some(factors) => factors,
            None => &mut own[..],
        };
        assert_eq!(margins.len(), records.len(), "one factor per record");
        if let Some(outcomes) = outcomes.as_deref() {
            assert_eq!(outcomes.len(), records.len(), "one outcome per record");
        }
        let data = records.data;
        let constant = data
            .offset()
            .map_or(0.0, |offset| linalg::dot(offset, model));
        let indicators = indicators(records);
        if let Some(indicators) = indicators {
            indicators.dots(records.rows, model, constant, margins);
        }
        vectorised(
            #[inline(always)]
            || {
                for (b, rows) in records.rows.chunks(BLOCK).enumerate() {
                    let records = Records { data, rows };
                    let margins = &mut margins[b * BLOCK..][..rows.len()];
                    let outcomes = outcomes.as_deref_mut();
                    let outcomes =
                        outcomes.map(|outcomes| &mut outcomes[b * BLOCK..][..rows.len()]);
                    if indicators.is_none() {
                        multiply(model, constant, records, margins);
                    }
                    self.loss.turn_into_factors(records, margins, outcomes);
                }
            },
        );
        workspace.put(own);
        Ok(())
    }

    fn outputs(&self) -> usize {
        self.loss.outputs()
    }

    fn predict(
        &self,
        model: &[f32],
        records: Records<'_>,
        predictions: &mut [f32],
        workspace: &mut Workspace,
    ) {
        self.assert_fits(records.data);
        assert_eq!(model.len(), self.features, "one number per parameter");
        let numbers = self.loss.outputs() * records.len();
        assert_eq!(predictions.len(), numbers, "all outputs of every record");
        let mut margins = workspace.take(records.len());
        let offset = records.data.offset();
        let constant = offset.map_or(0.0, |offset| linalg::dot(offset, model));
        vectorised(
            #[inline(always)]
            || {
                let blocks = records.rows.chunks(BLOCK).zip(margins.chunks_mut(BLOCK));
                for (rows, margins) in blocks {
                    let data = records.data;
                    multiply(model, constant, Records { data, rows }, margins);
                }
                self.loss.predict(&margins, predictions);
            },
        );
        workspace.put(margins);
    }

    fn squared_norms(
        &self,
        records: Records<'_>,
        gradients: Gradients<'_>,
        coordinates: Coordinates<'_>,
        squared_norms: &mut [f64],
        workspace: &mut Workspace,
    ) {
        self.assert_fits(records.data);
        match coordinates {
            Coordinates::All => known_norms(records, squared_norms),
            Coordinates::Selected(chosen) => {
                selected_norms(records, chosen, squared_norms, workspace);
            }
        }
        vectorised(
            #[inline(always)]
            || {
                for (squared_norm, scale) in squared_norms.iter_mut().zip(products(gradients)) {
                    *squared_norm *= scale * scale;
                }
            },
        );
    }

    fn squared_distances(
        &self,
        records: Records<'_>,
        left: Gradients<'_>,
        right: Gradients<'_>,
        squared_distances: &mut [f64],
        _workspace: &mut Workspace,
    ) {
        self.assert_fits(records.data);
        known_norms(records, squared_distances);
        // The record is the same on both sides, so the difference is one of two numbers; their
        // products with the weights are exact in f64.
        vectorised(
            #[inline(always)]
            || {
                let scales = products(left).zip(products(right));
                for (squared, (left, right)) in squared_distances.iter_mut().zip(scales) {
                    *squared *= (left - right) * (left - right);
                }
            },
        );
    }

    fn accumulate(
        &self,
        records: Records<'_>,
        gradients: Gradients<'_>,
        coordinates: Coordinates<'_>,
        sum: &mut [f32],
        workspace: &mut Workspace,
    ) {
        self.assert_fits(records.data);
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

/// `|a_j|^2` of every record.
fn known_norms(records: Records<'_>, squared_norms: &mut [f64]) {
    let norms = records.data.squared_norms();
    for (target, &row) in squared_norms.iter_mut().zip(records.rows) {
        *target = norms[row as usize];
    }
}

/// `weight_j s_j` for every record.
#[inline(always)]
fn products<'a>(gradients: Gradients<'a>) -> impl Iterator<Item = f64> + use<'a> {
    let pairs = gradients.weights.iter().zip(gradients.factors);
    pairs.map(|(&weight, &factor)| f64::from(weight) * f64::from(factor))
}

/// The records as columns without values, where they are stored so and there are enough of them to
/// be worth the tables. Sums over several records may then be rounded in another order; a single
/// record is never computed this way.
#[inline(always)]
fn indicators<'a>(records: Records<'a>) -> Option<&'a Indicators> {
    const FEWEST: usize = 8;
    match records.data.features() {
        Features::Sparse(sparse) if records.len() >= FEWEST => sparse.indicators(),
        _ => None,
    }
}

/// `<a_j, x>` of at most [`BLOCK`] records, `constant` being the offset's share.
#[inline(always)]
fn multiply(model: &[f32], constant: f32, records: Records<'_>, margins: &mut [f32]) {
    match records.data.features() {
        Features::Dense(dense) => {
            for (margin, &row) in margins.iter_mut().zip(records.rows) {
                *margin = constant + kernels::dot(dense.row(row as usize), model);
            }
        }
        Features::Sparse(sparse) => {
            // Rows lie anywhere in memory: all are prefetched before the first is read.
            with_rows!(sparse, |rows| {
                let found = rows.block::<BLOCK>(records.rows);
                found.iter().for_each(|row| row.prefetch());
                for (margin, &row) in margins.iter_mut().zip(&found) {
                    *margin = constant + kernels::sparse_dot(row, model);
                }
            });
        }
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
    if let Some(indicators) = indicators(records) {
        let mut table = table_of(sum);
        total = add_indicators(indicators, records, gradients, &mut table);
        sum.copy_from_slice(&table[..sum.len()]);
    } else {
        for (j, &row) in records.rows.iter().enumerate() {
            let scale = gradients.weights[j] * gradients.factors[j];
            total += scale;
            match records.data.features() {
                Features::Dense(dense) => kernels::add_scaled(sum, scale, dense.row(row as usize)),
                Features::Sparse(sparse) => with_rows!(sparse, |rows| {
                    kernels::add_scaled_sparse(sum, scale, rows.row(row as usize));
                }),
            }
        }
    }
    if let Some(offset) = records.data.offset() {
        kernels::add_scaled(sum, total, offset);
    }
}

/// Adds weighted rows to a table; returns the sum of the weights.
#[inline(always)]
fn add_indicators(
    indicators: &Indicators,
    records: Records<'_>,
    gradients: Gradients<'_>,
    table: &mut Table,
) -> f32 {
    let mut total = 0.0;
    for (j, &row) in records.rows.iter().enumerate() {
        let scale = gradients.weights[j] * gradients.factors[j];
        total += scale;
        indicators.add_scaled(table, scale, row as usize);
    }
    total
}

/// One record: row and offset are added before they are scaled. Where they nearly cancel, two
/// products would leave rounding errors that are large against the record's norm, by which it was
/// clipped.
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
