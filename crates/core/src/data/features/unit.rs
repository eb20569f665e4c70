//! Unit length: `x` becomes `(x, 1/2) / |(x, 1/2)|`, or `(x, r(x), 1/2)` divided by its length.
//!
//! Squares are summed in `f64` in the order of columns, zeros left out (they add nothing, to the
//! bit), so a record has the same values whether its row is sparse or dense. The result has length
//! 1 up to the rounding of its values, a relative `2^-24`.

use std::f64::consts::SQRT_2;

use super::super::{Dataset, DenseRows, Features, RecordsError, SparseRows};

/// The appended constant: with features in [-1, 1] of which some are set, neither drowned nor
/// drowning.
pub(super) const CONSTANT: f64 = 0.5;

/// Whether roots of features stand beside them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Roots {
    With,
    Without,
}

impl Roots {
    /// Numbers of a record of `columns` features.
    fn outputs(self, columns: usize) -> usize {
        match self {
            Roots::With => 2 * columns + 1,
            Roots::Without => columns + 1,
        }
    }
}

/// Every record with the constant appended, at unit length.
pub(super) fn apply(data: Dataset, roots: Roots) -> Result<Dataset, RecordsError> {
    let data = match data.offset() {
        Some(_) => data.dense()?,
        None => data,
    };
    let features = match data.features() {
        Features::Dense(rows) => {
            let outputs = roots.outputs(rows.columns());
            let mut values = Vec::with_capacity(rows.rows() * outputs);
            for row in (0..rows.rows()).map(|row| rows.row(row)) {
                append_unit(row, roots, &mut values);
            }
            Features::Dense(DenseRows::new(outputs, values)?)
        }
        Features::Sparse(rows) => {
            let columns = rows.columns();
            let outputs = roots.outputs(columns);
            let stored = roots.outputs(rows.values().len()) + rows.rows();
            let (mut indices, mut values) =
                (Vec::with_capacity(stored), Vec::with_capacity(stored));
            let mut starts = Vec::with_capacity(rows.rows() + 1);
            starts.push(0);
            for row in (0..rows.rows()).map(|row| rows.row(row)) {
                indices.extend_from_slice(row.indices);
                if roots == Roots::With {
                    indices.extend(row.indices.iter().map(|index| index + columns as u32));
                }
                indices.push(outputs as u32 - 1);
                append_unit(row.values, roots, &mut values);
                starts.push(values.len());
            }
            Features::Sparse(SparseRows::new(outputs, starts, indices, values)?)
        }
    };
    data.with_features(features)
}

/// Appends `row`, perhaps its roots, and the constant, divided by their length.
pub(super) fn append_unit(row: &[f32], roots: Roots, values: &mut Vec<f32>) {
    let plain = || row.iter().map(|&value| f64::from(value));
    let rooted = || {
        plain().map(root).take(match roots {
            Roots::With => row.len(),
            Roots::Without => 0,
        })
    };
    let record = || plain().chain(rooted()).chain([CONSTANT]);
    let length = record().fold(0.0, |sum, value| sum + value * value).sqrt();
    values.extend(record().map(|value| (value / length) as f32));
}

/// `2 sqrt((1 + x)/2) - sqrt(2) - (2 - sqrt(2)) x` of `x` cut off at -1 and 1: exactly zero at 0
/// and at 1.
fn root(value: f64) -> f64 {
    let value = value.clamp(-1.0, 1.0);
    2.0 * (0.5 * (1.0 + value)).sqrt() - SQRT_2 - (2.0 - SQRT_2) * value
}

#[cfg(test)]
mod tests {
    use super::super::super::LARGEST_VALUE;
    use super::*;

    fn rows() -> Vec<Vec<f32>> {
        let large = LARGEST_VALUE;
        vec![
            vec![0.0; 4],
            vec![1.0, 0.0, -2.0, 0.0],
            vec![0.0, 1e-30, 0.0, 0.3],
            vec![large, -large, large, large],
        ]
    }

    fn dense(rows: &[Vec<f32>]) -> Dataset {
        let values = DenseRows::new(4, rows.concat()).unwrap();
        let labels = (0..rows.len() as u32).map(|row| row % 2).collect();
        Dataset::new(Features::Dense(values), labels, 2).unwrap()
    }

    fn sparse(rows: &[Vec<f32>]) -> Dataset {
        let (mut starts, mut indices, mut values) = (vec![0], vec![], vec![]);
        for row in rows {
            for (column, &value) in row.iter().enumerate().filter(|(_, value)| **value != 0.0) {
                indices.push(column as u32);
                values.push(value);
            }
            starts.push(values.len());
        }
        let values = SparseRows::new(4, starts, indices, values).unwrap();
        let labels = (0..rows.len() as u32).map(|row| row % 2).collect();
        Dataset::new(Features::Sparse(values), labels, 2).unwrap()
    }

    #[test]
    fn every_record_has_length_one_and_its_direction() {
        let mapped = apply(dense(&rows()), Roots::Without).unwrap();
        assert_eq!((mapped.rows(), mapped.columns()), (4, 5));
        for (row, &norm) in mapped.squared_norms().iter().enumerate() {
            assert!((norm - 1.0).abs() < 1e-6, "{row}: {norm}");
        }
        assert_eq!(mapped.full_row(0), [0.0, 0.0, 0.0, 0.0, 1.0]);
        let length = 5.25f64.sqrt();
        let expected = [1.0, 0.0, -2.0, 0.0, 0.5].map(|value| value / length);
        for (found, expected) in mapped.full_row(1).iter().zip(expected) {
            assert!((found - expected).abs() < 1e-7);
        }
        assert_eq!(mapped.labels(), [0, 1, 0, 1]);
    }

    /// The closed form, what it leaves alone, and values beyond the range.
    #[test]
    fn roots_are_what_a_line_does_not_say() {
        assert_eq!((root(0.0), root(1.0), root(7.0)), (0.0, 0.0, 0.0));
        for value in [-1.0, -0.98, -0.5, 0.3, 0.9] {
            let line = SQRT_2 - 1.0 + (2.0 - SQRT_2) * value;
            let expected = 2.0 * ((value + 1.0) / 2.0).sqrt() - 1.0 - line;
            assert!((root(value) - expected).abs() < 1e-15, "{value}");
        }
        assert_eq!(root(-1.0), root(-5.0));
        let mapped = apply(dense(&rows()), Roots::With).unwrap();
        assert_eq!(mapped.columns(), 9);
        for &norm in mapped.squared_norms() {
            assert!((norm - 1.0).abs() < 1e-6, "{norm}");
        }
        let (row, was) = (mapped.full_row(1), [1.0, 0.0, -2.0, 0.0]);
        for (column, value) in was.into_iter().enumerate() {
            assert!((row[4 + column] - root(value) * row[8] / CONSTANT).abs() < 1e-7);
        }
    }

    #[test]
    fn sparse_rows_stay_sparse_and_mean_the_same_to_the_bit() {
        for roots in [Roots::Without, Roots::With] {
            let of_sparse = apply(sparse(&rows()), roots).unwrap();
            let of_dense = apply(dense(&rows()), roots).unwrap();
            assert!(matches!(of_sparse.features(), Features::Sparse(_)));
            assert!(matches!(of_dense.features(), Features::Dense(_)));
            for row in 0..4 {
                assert_eq!(of_sparse.full_row(row), of_dense.full_row(row));
            }
            let moved = sparse(&rows())
                .with_offset(vec![0.1, 0.2, 0.3, 0.4])
                .unwrap();
            let moved = apply(moved, roots).unwrap();
            assert!(matches!(moved.features(), Features::Dense(_)) && moved.offset().is_none());
        }
    }

    #[test]
    fn a_record_alone_becomes_what_it_becomes_among_others() {
        let all = apply(sparse(&rows()), Roots::With).unwrap();
        for (row, record) in rows().into_iter().enumerate() {
            let alone = apply(sparse(&[record]), Roots::With).unwrap();
            assert_eq!(alone.full_row(0), all.full_row(row));
        }
    }
}
