//! Linear models on chosen coordinates: sums and norms by whichever way of finding them is
//! cheapest.

use super::{BLOCK, add_indicators, add_rows, indicators};
use crate::data::indicators::{Indicators, MARKED, table_of};
use crate::data::packed::{RowSource, with_rows};
use crate::data::{Dataset, Features, SparseRow, SparseRows};
use crate::linalg::sparse::SparseVector;
use crate::objective::{Gradients, Records, Workspace};

/// `sum += sum_j weight_j s_j a_j` on the chosen coordinates.
#[inline(always)]
pub(super) fn add_selected(
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
pub(super) fn selected_norms(
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
