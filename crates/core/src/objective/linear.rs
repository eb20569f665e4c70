//! Linear models: `f_j(x) = phi_j(<a_j, x>)`, with `phi_j` a [`MarginLoss`] of one number:
//! logistic regression `log(1 + exp(-y_j <a_j, x>))`, least squares, Huber's loss.
//!
//! The gradient is `s_j a_j` with `s_j = phi_j'(<a_j, x>)`: the factor of a record is the one
//! number `s_j`, its norm is `|s_j| |a_j|`, and `|a_j|` never changes. The intercept, where there is
//! one, is an ordinary last feature of the data.
//!
//! **Guarantee.** Every number of record `j` is the same to the bit in any batch.
//!
//! **Cost.** One pass over the stored features of the batch for the factors and one for the sum;
//! nothing for the norms. On a few selected coordinates the sum costs a binary search per
//! coordinate and record, or a table lookup per stored feature, or that same pass, whichever is
//! cheapest. Of features with two values only the columns are read (`data/indicators.rs`).
//!
//! **Place in the paper.** The first experiment (logistic regression with a nonconvex regularizer).

use super::margin_loss::{CrossEntropy, MarginLoss, TargetLoss};
use super::{
    Coordinates, Gradients, Objective, ObjectiveError, Outcome, Records, Workspace, check_columns,
};
use crate::data::indicators::{Indicators, MARKED, Table, table_of};
use crate::data::packed::{RowSource, with_rows};
use crate::data::{Dataset, Features, SparseRow, SparseRows};
use crate::linalg::sparse::SparseVector;
use crate::linalg::{self, kernels, vectorised};

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

/// `sum += sum_j weight_j s_j a_j` on the chosen coordinates.
#[inline(always)]
fn add_selected(
    records: Records<'_>,
    gradients: Gradients<'_>,
    chosen: &[u32],
    sum: &mut [f32],
    workspace: &mut Workspace,
) {
    if let Some(indicators) = indicators(records) {
        return add_selected_indicators(indicators, records, gradients, chosen, sum);
    }
    match (records.data.features(), cheapest_lookup(records, chosen)) {
        (Features::Sparse(_), Lookup::WholeRows) => {
            let mut full = workspace.take_zeroed(records.data.columns());
            add_rows(records, gradients, &mut full);
            for (sum, &coordinate) in sum.iter_mut().zip(chosen) {
                *sum += full[coordinate as usize];
            }
            workspace.put(full);
        }
        (Features::Sparse(sparse), Lookup::Table) => {
            let mut table = position_table(records.data.columns(), chosen, workspace);
            if let (&[row], Some(offset)) = (records.rows, records.data.offset()) {
                let scale = gradients.weights[0] * gradients.factors[0];
                let row = sparse.row(row as usize);
                add_one_by_table(row, offset, scale, &mut table, chosen, sum);
            } else {
                add_many_by_table(sparse, records, gradients, &table, chosen, sum);
            }
            workspace.put_indices(table);
        }
        _ => {
            for (j, &row) in records.rows.iter().enumerate() {
                let scale = gradients.weights[j] * gradients.factors[j];
                for (sum, &coordinate) in sum.iter_mut().zip(chosen) {
                    *sum = scale.mul_add(feature(records.data, row, coordinate), *sum);
                }
            }
        }
    }
}

/// One record with an offset: row and offset are added before they are scaled, as in
/// [`add_row_and_offset`]. Stored features remove their positions from the table, so that the
/// positions left over are of coordinates where the record is the offset alone.
#[inline(always)]
fn add_one_by_table(
    row: SparseRow<'_>,
    offset: &[f32],
    scale: f32,
    table: &mut [u32],
    chosen: &[u32],
    sum: &mut [f32],
) {
    for (&index, &value) in row.indices.iter().zip(row.values) {
        let position = std::mem::take(&mut table[index as usize]) as usize;
        if position > 0 {
            let feature = value + offset[index as usize];
            sum[position - 1] = scale.mul_add(feature, sum[position - 1]);
        }
    }
    for (sum, &coordinate) in sum.iter_mut().zip(chosen) {
        if table[coordinate as usize] > 0 {
            *sum = scale.mul_add(offset[coordinate as usize], *sum);
        }
    }
}

/// A batch, or records without an offset: every stored feature is looked up in the table, and the
/// offset is added once, times the sum of the scales.
#[inline(always)]
fn add_many_by_table(
    sparse: &SparseRows,
    records: Records<'_>,
    gradients: Gradients<'_>,
    table: &[u32],
    chosen: &[u32],
    sum: &mut [f32],
) {
    let mut total = 0.0;
    with_rows!(sparse, |rows| {
        for (j, &row) in records.rows.iter().enumerate() {
            let scale = gradients.weights[j] * gradients.factors[j];
            total += scale;
            for (index, value) in rows.row(row as usize).entries(0) {
                let position = table[index as usize] as usize;
                if position > 0 {
                    sum[position - 1] = scale.mul_add(value, sum[position - 1]);
                }
            }
        }
    });
    if let Some(offset) = records.data.offset() {
        for (sum, &coordinate) in sum.iter_mut().zip(chosen) {
            *sum = total.mul_add(offset[coordinate as usize], *sum);
        }
    }
}

/// [`add_selected`] for rows that are stored as columns without values: the chosen columns are
/// picked out of every row's bits, or, if there are more than [`MARKED`], whole rows are added.
#[inline(always)]
fn add_selected_indicators(
    indicators: &Indicators,
    records: Records<'_>,
    gradients: Gradients<'_>,
    chosen: &[u32],
    sum: &mut [f32],
) {
    let mut total = 0.0;
    if chosen.len() <= MARKED {
        // On the stack, a block at a time: measurably faster than in scratch memory.
        for (b, rows) in records.rows.chunks(BLOCK).enumerate() {
            let mut scales = [0.0; BLOCK];
            let scales = &mut scales[..rows.len()];
            for (j, scale) in scales.iter_mut().enumerate() {
                *scale = gradients.weights[b * BLOCK + j] * gradients.factors[b * BLOCK + j];
                total += *scale;
            }
            indicators.add_marked(rows, scales, chosen, sum);
        }
    } else {
        let mut table = table_of(&[]);
        for (&sum, &coordinate) in sum.iter().zip(chosen) {
            table[coordinate as usize] = sum;
        }
        total = add_indicators(indicators, records, gradients, &mut table);
        for (sum, &coordinate) in sum.iter_mut().zip(chosen) {
            *sum = table[coordinate as usize];
        }
    }
    if let Some(offset) = records.data.offset() {
        for (sum, &coordinate) in sum.iter_mut().zip(chosen) {
            *sum = total.mul_add(offset[coordinate as usize], *sum);
        }
    }
}

/// The sum of the squares of the chosen features of every record.
fn selected_norms(
    records: Records<'_>,
    chosen: &[u32],
    squared_norms: &mut [f64],
    workspace: &mut Workspace,
) {
    let square = |value: f32| f64::from(value) * f64::from(value);
    let offset = |coordinate: u32| match records.data.offset() {
        Some(offset) => offset[coordinate as usize],
        None => 0.0,
    };
    let searched = |row: u32| -> f64 {
        let features = chosen.iter().map(|&c| feature(records.data, row, c));
        features.map(square).sum()
    };
    let norms = squared_norms.iter_mut().zip(records.rows);
    match (records.data.features(), cheapest_lookup(records, chosen)) {
        (Features::Sparse(sparse), Lookup::Table | Lookup::WholeRows) => {
            let table = position_table(records.data.columns(), chosen, workspace);
            let constant: f64 = chosen.iter().map(|&c| square(offset(c))).sum();
            for (norm, &row) in norms {
                let stored = sparse.row(row as usize);
                // Every stored feature replaces the offset's square by its own.
                let (mut own, mut replaced) = (0.0, 0.0);
                for (&index, &value) in stored.indices.iter().zip(stored.values) {
                    if table[index as usize] > 0 {
                        own += square(value + offset(index));
                        replaced += square(offset(index));
                    }
                }
                *norm = own + (constant - replaced);
                // Where little is left of the offset's squares, the difference has no correct
                // digits.
                if *norm < constant / 256.0 {
                    *norm = searched(row);
                }
            }
            workspace.put_indices(table);
        }
        _ => {
            for (norm, &row) in norms {
                *norm = searched(row);
            }
        }
    }
}

/// One feature of one record, offset included.
#[inline(always)]
fn feature(data: &Dataset, row: u32, coordinate: u32) -> f32 {
    let stored = match data.features() {
        Features::Dense(dense) => dense.row(row as usize)[coordinate as usize],
        Features::Sparse(sparse) => {
            let row = sparse.row(row as usize);
            match row.indices.binary_search(&coordinate) {
                Ok(place) => row.values[place],
                Err(_) => 0.0,
            }
        }
    };
    stored
        + data
            .offset()
            .map_or(0.0, |offset| offset[coordinate as usize])
}

/// For every feature its position among the chosen ones plus one, zero if it is not among them.
fn position_table(columns: usize, chosen: &[u32], workspace: &mut Workspace) -> Vec<u32> {
    let mut table = workspace.take_indices(columns);
    table.fill(0);
    for (&coordinate, position) in chosen.iter().zip(1..) {
        table[coordinate as usize] = position;
    }
    table
}

/// How chosen features are found among the stored ones.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Lookup {
    /// Each is searched for in every row.
    Search,
    /// Every stored feature is looked up in a table.
    Table,
    /// Whole rows are added up and the chosen sums taken out.
    WholeRows,
}

/// The cheapest lookup. Apart from time, only the rounding of a sum depends on it: with an offset,
/// or added to a sum that is not zero.
fn cheapest_lookup(records: Records<'_>, chosen: &[u32]) -> Lookup {
    let (Features::Sparse(sparse), Some(&first)) = (records.data.features(), records.rows.first())
    else {
        return Lookup::Search;
    };
    // The first row is taken as typical. In units of an addition, measured: a step of a search
    // costs 4 and a hit in the table 8, because both are branches that processors cannot predict.
    let stored = sparse.row(first as usize).indices.len() as f64;
    let (count, columns) = (records.len() as f64, sparse.columns() as f64);
    let hits = stored * chosen.len() as f64 / columns;
    let search = 4.0 * count * chosen.len() as f64 * (2.0 + stored).log2();
    let table = columns / 16.0 + count * (0.7 * stored + 8.0 * hits);
    let whole_rows = columns / 16.0 + count * stored;
    if search < table.min(whole_rows) {
        Lookup::Search
    } else if table < whole_rows {
        Lookup::Table
    } else {
        Lookup::WholeRows
    }
}
