//! Rows of numbers, dense or sparse: the two storage forms of a [`Dataset`](super::Dataset).
//!
//! Both are checked on construction: every value finite, every index in range and ascending. Code
//! that receives them need not check again.

use std::fmt;

use super::RecordsError;
use super::identity::Identity;
use super::indicators::Indicators;
use super::packed::{Packed, PackedRows, RowSource};
use crate::linalg::SparseRow;
use crate::linalg::memory::with_room_on_large_pages;

/// Largest absolute value of a feature, 2^64. No measured quantity is larger, and the rounding of
/// products with larger numbers would be hard to bound.
pub const LARGEST_VALUE: f32 = 18_446_744_073_709_551_616.0;

/// More features than any public data set has; a larger index is taken for damage, because a model
/// has at least as many parameters as there are features.
pub const MOST_FEATURES: u32 = 1 << 27;

/// Whether a feature may have this value.
pub(super) fn is_acceptable(value: f32) -> bool {
    value.abs() <= LARGEST_VALUE
}

/// The feature rows of a data set, in the form they came in.
#[derive(Clone, PartialEq)]
pub enum Features {
    /// Every value stored.
    Dense(DenseRows),
    /// Only nonzero values stored.
    Sparse(SparseRows),
}

/// Values that are checked at a time.
const CHECKED: usize = 4096;

/// Rows with every value stored, one row after the other.
#[derive(Clone, PartialEq)]
pub struct DenseRows {
    columns: usize,
    values: Vec<f32>,
}

/// Rows with only some values stored; the others are zero (compressed sparse rows).
///
/// Row `i` is `indices[starts[i]..starts[i + 1]]` with the values at the same places; its indices
/// ascend.
#[derive(Clone)]
pub struct SparseRows {
    identity: Identity,
    columns: usize,
    starts: Vec<usize>,
    indices: Vec<u32>,
    values: Vec<f32>,
    unit: Option<f32>,
    /// The same values for loops that read rows at random; only in selected parts of a data set.
    packed: Option<Packed>,
    indicators: Option<Indicators>,
}

impl Features {
    /// The number of rows.
    pub fn rows(&self) -> usize {
        match self {
            Features::Dense(dense) => dense.rows(),
            Features::Sparse(sparse) => sparse.rows(),
        }
    }

    /// The number of columns.
    pub fn columns(&self) -> usize {
        match self {
            Features::Dense(dense) => dense.columns,
            Features::Sparse(sparse) => sparse.columns,
        }
    }

    /// How many values are stored: all of them if dense, the nonzero ones if sparse.
    pub fn stored(&self) -> usize {
        match self {
            Features::Dense(dense) => dense.values.len(),
            Features::Sparse(sparse) => sparse.values.len(),
        }
    }

    /// The stored values, row after row.
    pub fn values(&self) -> &[f32] {
        match self {
            Features::Dense(dense) => &dense.values,
            Features::Sparse(sparse) => &sparse.values,
        }
    }

    /// Every stored value replaced by `change(column, value)`; what is no longer finite is refused.
    pub(super) fn map(self, change: impl Fn(usize, f32) -> f32) -> Result<Features, RecordsError> {
        match self {
            Features::Dense(DenseRows {
                columns,
                mut values,
            }) => {
                for row in values.chunks_exact_mut(columns) {
                    row.iter_mut()
                        .enumerate()
                        .for_each(|(column, value)| *value = change(column, *value));
                }
                DenseRows::new(columns, values).map(Features::Dense)
            }
            Features::Sparse(SparseRows {
                identity: _,
                columns,
                starts,
                indices,
                mut values,
                unit: _,
                packed: _,
                indicators: _,
            }) => {
                for (value, &index) in values.iter_mut().zip(&indices) {
                    *value = change(index as usize, *value);
                }
                SparseRows::new(columns, starts, indices, values).map(Features::Sparse)
            }
        }
    }

    /// Calls `visit(column, value)` for every stored value of a row, in the order of columns.
    pub fn visit_row(&self, row: usize, mut visit: impl FnMut(usize, f32)) {
        match self {
            Features::Dense(dense) => dense
                .row(row)
                .iter()
                .enumerate()
                .for_each(|(column, &value)| visit(column, value)),
            Features::Sparse(sparse) => {
                let row = sparse.row(row);
                row.indices
                    .iter()
                    .zip(row.values)
                    .for_each(|(&index, &value)| visit(index as usize, value));
            }
        }
    }

    /// Copies of the given rows, in the given order.
    pub(super) fn select(&self, rows: &[u32]) -> Features {
        match self {
            Features::Dense(dense) => Features::Dense(dense.select(rows)),
            Features::Sparse(sparse) => Features::Sparse(sparse.select(rows)),
        }
    }

    /// The same rows with a 1 after the last column.
    pub(super) fn with_ones(self) -> Features {
        match self {
            Features::Dense(dense) => Features::Dense(dense.with_ones()),
            Features::Sparse(sparse) => Features::Sparse(sparse.with_ones()),
        }
    }
}

impl DenseRows {
    /// Rows of `columns` values each, one after the other.
    pub fn new(columns: usize, values: Vec<f32>) -> Result<DenseRows, RecordsError> {
        check_columns(columns)?;
        let excess = values.len() % columns;
        if excess != 0 {
            return Err(RecordsError::Shape {
                what: "values in the last row",
                expected: columns,
                found: excess,
            });
        }
        check_rows(values.len() / columns)?;
        // By blocks, which are checked as vectors.
        let unacceptable = |block: &[f32]| {
            let all = |all: bool, value: &f32| all & is_acceptable(*value);
            !block.iter().fold(true, all)
        };
        if let Some(block) = values.chunks(CHECKED).position(unacceptable) {
            let before = block * CHECKED;
            let inside = values[before..].iter();
            let place = before + inside.take_while(|value| is_acceptable(**value)).count();
            return Err(RecordsError::NotFinite {
                row: place / columns,
                column: place % columns,
                value: values[place],
            });
        }
        Ok(DenseRows { columns, values })
    }

    /// An empty vector for so many values, in memory of few large pages: to ask for many small ones
    /// takes as long as to copy a large set.
    pub fn room(values: usize) -> Vec<f32> {
        with_room_on_large_pages(values)
    }

    /// The number of rows.
    pub fn rows(&self) -> usize {
        self.values.len() / self.columns
    }

    /// The number of columns.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// All values, row after row.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// One row.
    pub fn row(&self, row: usize) -> &[f32] {
        &self.values[row * self.columns..][..self.columns]
    }

    fn select(&self, rows: &[u32]) -> DenseRows {
        let mut values = with_room_on_large_pages(rows.len() * self.columns);
        rows.iter()
            .for_each(|&row| values.extend_from_slice(self.row(row as usize)));
        DenseRows {
            columns: self.columns,
            values,
        }
    }

    fn with_ones(self) -> DenseRows {
        let columns = self.columns + 1;
        let mut values = Vec::with_capacity(self.rows() * columns);
        for row in self.values.chunks_exact(self.columns) {
            values.extend_from_slice(row);
            values.push(1.0);
        }
        DenseRows { columns, values }
    }
}

impl PartialEq for SparseRows {
    fn eq(&self, other: &Self) -> bool {
        self.columns == other.columns
            && self.starts == other.starts
            && self.indices == other.indices
            && self.values == other.values
    }
}

impl SparseRows {
    /// Rows in compressed form: row `i` holds `values[starts[i]..starts[i + 1]]` in the columns
    /// `indices` names there.
    pub fn new(
        columns: usize,
        starts: Vec<usize>,
        indices: Vec<u32>,
        values: Vec<f32>,
    ) -> Result<SparseRows, RecordsError> {
        check_columns(columns)?;
        check_rows(starts.len().saturating_sub(1))?;
        if indices.len() != values.len() {
            return Err(RecordsError::Shape {
                what: "indices of sparse rows",
                expected: values.len(),
                found: indices.len(),
            });
        }
        let first = *starts.first().ok_or(RecordsError::Shape {
            what: "starts of sparse rows",
            expected: 1,
            found: 0,
        })?;
        if first != 0 {
            return Err(RecordsError::Shape {
                what: "start of the first sparse row",
                expected: 0,
                found: first,
            });
        }
        let last = starts[starts.len() - 1];
        if last != values.len() {
            return Err(RecordsError::Shape {
                what: "end of the last sparse row",
                expected: values.len(),
                found: last,
            });
        }
        for (row, bounds) in starts.windows(2).enumerate() {
            if bounds[1] < bounds[0] || bounds[1] > values.len() {
                let expected = bounds[0].min(values.len());
                return Err(RecordsError::Shape {
                    what: "end of a sparse row",
                    expected,
                    found: bounds[1],
                });
            }
            check_row(
                row,
                columns,
                &indices[bounds[0]..bounds[1]],
                &values[bounds[0]..bounds[1]],
            )?;
        }
        Ok(SparseRows {
            identity: Identity::new(),
            columns,
            starts,
            indices,
            values,
            unit: None,
            packed: None,
            indicators: None,
        })
    }

    /// The same rows, known to hold multiples of this unit, from 1 to 255 times, up to rounding:
    /// the pixels of images. Sums over many rows are then faster.
    ///
    /// # Errors
    /// When a value is no such multiple.
    pub fn with_unit(mut self, unit: f32) -> Result<SparseRows, RecordsError> {
        let is_multiple = |&value: &f32| {
            let steps = (value / unit).round();
            (1.0..=255.0).contains(&steps) && (steps * unit - value).abs() <= 1e-6 * value.abs()
        };
        if !self.values.iter().all(is_multiple) {
            return Err(RecordsError::Choice {
                what: "unit",
                value: unit.to_string(),
                reason: "expected values of 1 to 255 times the unit".to_owned(),
            });
        }
        self.set_unit(unit);
        Ok(self)
    }

    /// As [`with_unit`](Self::with_unit), for values that are known to be multiples.
    pub(super) fn set_unit(&mut self, unit: f32) {
        self.identity = Identity::new();
        self.unit = Some(unit);
        self.packed = None;
    }

    /// The unit, where values are known to be multiples of one: the pixels of images. It follows
    /// from the kind of the source and its scaling, never from the values.
    pub fn unit(&self) -> Option<f32> {
        self.unit
    }

    /// Identifies these rows in caches.
    pub(crate) fn identity(&self) -> Identity {
        self.identity
    }

    /// The number of rows.
    pub fn rows(&self) -> usize {
        self.starts.len() - 1
    }

    /// The number of columns.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Where each row starts in [`indices`](Self::indices) and [`values`](Self::values), and last
    /// where the rows end.
    pub fn starts(&self) -> &[usize] {
        &self.starts
    }

    /// The columns of the stored values, row after row.
    pub fn indices(&self) -> &[u32] {
        &self.indices
    }

    /// The stored values, row after row.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// One row.
    pub fn row(&self, row: usize) -> SparseRow<'_> {
        let place = self.starts[row]..self.starts[row + 1];
        SparseRow {
            indices: &self.indices[place.clone()],
            values: &self.values[place],
        }
    }

    /// The packed copy of the rows, if there is one.
    #[inline]
    pub(crate) fn packed(&self) -> Option<PackedRows<'_>> {
        let packed = self.packed.as_ref()?;
        Some(PackedRows::new(&self.starts, packed))
    }

    /// The copy of the rows as columns without values, if there is one.
    #[inline]
    pub(crate) fn indicators(&self) -> Option<&Indicators> {
        self.indicators.as_ref()
    }

    fn select(&self, rows: &[u32]) -> SparseRows {
        let stored = rows
            .iter()
            .map(|&row| self.row(row as usize).values.len())
            .sum();
        let mut selected = SparseRows {
            identity: Identity::new(),
            columns: self.columns,
            starts: Vec::with_capacity(rows.len() + 1),
            indices: with_room_on_large_pages(stored),
            values: with_room_on_large_pages(stored),
            unit: self.unit,
            packed: None,
            indicators: None,
        };
        selected.starts.push(0);
        for &row in rows {
            let row = self.row(row as usize);
            selected.indices.extend_from_slice(row.indices);
            selected.values.extend_from_slice(row.values);
            selected.starts.push(selected.values.len());
        }
        selected.packed = Packed::new(self.columns, &selected.indices, &selected.values, self.unit);
        selected.indicators = Indicators::new(
            self.columns,
            &selected.starts,
            &selected.indices,
            &selected.values,
        );
        selected
    }

    fn with_ones(self) -> SparseRows {
        let mut extended = SparseRows {
            identity: Identity::new(),
            columns: self.columns + 1,
            starts: Vec::with_capacity(self.starts.len()),
            indices: Vec::with_capacity(self.indices.len() + self.rows()),
            values: Vec::with_capacity(self.values.len() + self.rows()),
            unit: None,
            packed: None,
            indicators: None,
        };
        extended.starts.push(0);
        for row in (0..self.rows()).map(|row| self.row(row)) {
            extended.indices.extend_from_slice(row.indices);
            extended.indices.push(self.columns as u32);
            extended.values.extend_from_slice(row.values);
            extended.values.push(1.0);
            extended.starts.push(extended.values.len());
        }
        extended
    }
}

impl<'a> RowSource for &'a SparseRows {
    type Row = SparseRow<'a>;

    #[inline(always)]
    fn row(self, row: usize) -> SparseRow<'a> {
        SparseRows::row(self, row)
    }
}

impl fmt::Debug for Features {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Features::Dense(dense) => dense.fmt(formatter),
            Features::Sparse(sparse) => sparse.fmt(formatter),
        }
    }
}

impl fmt::Debug for DenseRows {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "DenseRows({} x {})", self.rows(), self.columns)
    }
}

impl fmt::Debug for SparseRows {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "SparseRows({} x {}, {} stored)",
            self.rows(),
            self.columns,
            self.values.len()
        )
    }
}

/// Columns are named by `u32`, and an intercept must still fit in.
const MOST_COLUMNS: usize = u32::MAX as usize - 1;

fn check_columns(columns: usize) -> Result<(), RecordsError> {
    match columns {
        0 => Err(RecordsError::Shape {
            what: "columns",
            expected: 1,
            found: 0,
        }),
        1..=MOST_COLUMNS => Ok(()),
        found => Err(RecordsError::Shape {
            what: "columns, at most",
            expected: MOST_COLUMNS,
            found,
        }),
    }
}

fn check_rows(rows: usize) -> Result<(), RecordsError> {
    if rows > u32::MAX as usize {
        return Err(RecordsError::Shape {
            what: "rows, at most",
            expected: u32::MAX as usize,
            found: rows,
        });
    }
    Ok(())
}

fn check_row(
    row: usize,
    columns: usize,
    indices: &[u32],
    values: &[f32],
) -> Result<(), RecordsError> {
    let mut least = 0u64;
    for (&index, &value) in indices.iter().zip(values) {
        if u64::from(index) < least || index as usize >= columns {
            return Err(RecordsError::Index {
                row,
                columns,
                index,
            });
        }
        least = u64::from(index) + 1;
        if !is_acceptable(value) {
            return Err(RecordsError::NotFinite {
                row,
                column: index as usize,
                value,
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_shapes_are_refused_and_right_ones_read_back() {
        let dense = DenseRows::new(2, vec![1.0, 2.0, 3.0, 4.0]).unwrap();
        assert_eq!((dense.rows(), dense.row(1)), (2, &[3.0, 4.0][..]));
        assert!(DenseRows::new(0, vec![]).is_err());
        assert!(DenseRows::new(2, vec![1.0]).is_err());
        assert!(matches!(
            DenseRows::new(2, vec![1.0, 2.0, 3.0, f32::NAN]),
            Err(RecordsError::NotFinite {
                row: 1,
                column: 1,
                ..
            })
        ));

        let sparse =
            SparseRows::new(4, vec![0, 2, 2, 3], vec![0, 3, 1], vec![1.0, 2.0, 3.0]).unwrap();
        assert_eq!(sparse.rows(), 3);
        assert_eq!(sparse.row(0).indices, [0, 3]);
        assert!(sparse.row(1).values.is_empty());
        assert_eq!(sparse.row(2).values, [3.0]);
    }

    #[test]
    fn a_unit_is_taken_only_from_values_that_are_its_multiples() {
        let rows = |values: &[f32]| {
            let indices = (0..values.len() as u32).collect();
            SparseRows::new(300, vec![0, values.len()], indices, values.to_vec()).unwrap()
        };
        let pixels: Vec<f32> = (1..=255).map(|pixel| pixel as f32 / 255.0).collect();
        let declared = rows(&pixels).with_unit(1.0 / 255.0).unwrap();
        assert_eq!(declared.unit(), Some(1.0 / 255.0));
        assert_eq!(rows(&pixels).unit(), None);
        for wrong in [-1.0 / 255.0, 256.0 / 255.0, 1.5 / 255.0, 1e-9] {
            assert!(rows(&[wrong]).with_unit(1.0 / 255.0).is_err(), "{wrong}");
        }
        for unit in [0.0, -1.0, f32::NAN, f32::INFINITY] {
            assert!(rows(&[1.0]).with_unit(unit).is_err(), "{unit}");
        }
    }

    #[test]
    fn inconsistent_sparse_rows_are_refused() {
        type Parts = (usize, Vec<usize>, Vec<u32>, Vec<f32>);
        let wrong: Vec<Parts> = vec![
            (4, vec![], vec![], vec![]),
            (4, vec![1, 1], vec![0], vec![1.0]),
            (4, vec![0, 2], vec![0], vec![1.0]),
            (4, vec![0, 1], vec![0, 1], vec![1.0]),
            (4, vec![0, 2, 1], vec![0, 1], vec![1.0, 1.0]),
            (4, vec![0, 9, 2], vec![0, 1], vec![1.0, 1.0]),
            (4, vec![0, 2], vec![1, 0], vec![1.0, 1.0]),
            (4, vec![0, 2], vec![1, 1], vec![1.0, 1.0]),
            (4, vec![0, 1], vec![4], vec![1.0]),
            (4, vec![0, 1], vec![u32::MAX], vec![1.0]),
            (4, vec![0, 1], vec![0], vec![f32::INFINITY]),
            (0, vec![0], vec![], vec![]),
        ];
        for (columns, starts, indices, values) in wrong {
            let described = format!("{columns} {starts:?} {indices:?} {values:?}");
            assert!(
                SparseRows::new(columns, starts, indices, values).is_err(),
                "{described}"
            );
        }
    }
}
