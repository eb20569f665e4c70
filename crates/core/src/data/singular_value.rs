//! The largest singular value of the records, as a matrix: spectral scaling and the smoothness of
//! logistic regression need it.
//!
//! **Cost.** Two passes over the stored values per iteration; a few dozen iterations as a rule.
//! Sums are in `f64` and in the order of rows.

use super::{Dataset, Features, public_random};

/// The largest singular value of the matrix of all rows of `parts`, offsets included.
///
/// Power iteration on `A^T A` from a fixed start without structure; it ends when `|A v|^2` no
/// longer changes in its 13th digit. The parts must have the same columns.
pub fn largest_singular_value(parts: &[&Dataset]) -> f64 {
    singular_value_after(parts, 5_000)
}

/// The same after at most so many iterations: never too large.
pub(super) fn singular_value_after(parts: &[&Dataset], iterations: usize) -> f64 {
    let columns = parts.first().map_or(0, |part| part.columns());
    let mut random = public_random::generator("spectral start", 0);
    let mut direction: Vec<f64> = (0..columns)
        .map(|_| public_random::open_unit(&mut random))
        .collect();
    let mut images: Vec<Vec<f64>> = parts.iter().map(|part| vec![0.0; part.rows()]).collect();
    let mut before = 0.0;
    for _ in 0..iterations {
        let length = norm(&direction);
        if length == 0.0 {
            return 0.0;
        }
        direction.iter_mut().for_each(|value| *value /= length);
        let mut square = 0.0;
        for (part, image) in parts.iter().zip(&mut images) {
            multiply(part, &direction, image);
            square += image.iter().map(|value| value * value).sum::<f64>();
        }
        if (square - before).abs() <= 1e-13 * square {
            return square.sqrt();
        }
        before = square;
        direction.fill(0.0);
        for (part, image) in parts.iter().zip(&images) {
            add_transposed(part, image, &mut direction);
        }
    }
    before.sqrt()
}

fn norm(vector: &[f64]) -> f64 {
    vector.iter().map(|value| value * value).sum::<f64>().sqrt()
}

fn offset_of(data: &Dataset) -> &[f32] {
    data.offset().map_or(&[], |offset| offset)
}

/// `image = A direction`.
fn multiply(data: &Dataset, direction: &[f64], image: &mut [f64]) {
    let shared: f64 = offset_of(data)
        .iter()
        .zip(direction)
        .map(|(&o, d)| f64::from(o) * d)
        .sum();
    for (row, value) in image.iter_mut().enumerate() {
        *value = shared + dot(data.features(), row, direction);
    }
}

fn dot(features: &Features, row: usize, direction: &[f64]) -> f64 {
    let mut sum = 0.0;
    features.visit_row(row, |column, value| {
        sum += f64::from(value) * direction[column]
    });
    sum
}

/// `direction += A^T image`.
fn add_transposed(data: &Dataset, image: &[f64], direction: &mut [f64]) {
    for (row, weight) in image.iter().enumerate() {
        data.features().visit_row(row, |column, value| {
            direction[column] += f64::from(value) * weight
        });
    }
    let total: f64 = image.iter().sum();
    for (value, &offset) in direction.iter_mut().zip(offset_of(data)) {
        *value += f64::from(offset) * total;
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::{DenseRows, SparseRows};
    use super::*;

    pub(in crate::data) fn dense(columns: usize, values: &[f32]) -> Dataset {
        let rows = DenseRows::new(columns, values.to_vec()).unwrap();
        let labels = vec![0; rows.rows()];
        Dataset::new(Features::Dense(rows), labels, 1).unwrap()
    }

    /// The same rows with only the nonzero values stored.
    pub(in crate::data) fn sparse(columns: usize, values: &[f32]) -> Dataset {
        let (mut starts, mut indices, mut stored) = (vec![0], vec![], vec![]);
        for row in values.chunks(columns) {
            for (column, &value) in row.iter().enumerate().filter(|(_, value)| **value != 0.0) {
                indices.push(column as u32);
                stored.push(value);
            }
            starts.push(stored.len());
        }
        let rows = SparseRows::new(columns, starts, indices, stored).unwrap();
        let labels = vec![0; rows.rows()];
        Dataset::new(Features::Sparse(rows), labels, 1).unwrap()
    }

    #[test]
    fn singular_values_agree_with_closed_forms() {
        // Of [[a, b], [c, d]]: the larger root of s^4 - (a^2+b^2+c^2+d^2) s^2 + (ad - bc)^2.
        let (a, b, c, d) = (1.0f64, 2.0, -3.0, 0.5);
        let (trace, determinant) = (a * a + b * b + c * c + d * d, a * d - b * c);
        let exact =
            ((trace + (trace * trace - 4.0 * determinant * determinant).sqrt()) / 2.0).sqrt();
        let data = dense(2, &[a as f32, b as f32, c as f32, d as f32]);
        assert!((largest_singular_value(&[&data]) / exact - 1.0).abs() < 1e-12);
        // An offset of ones on zero rows: a matrix of ones, whose singular value is sqrt(rows *
        // columns).
        let ones = sparse(3, &[0.0; 15]).with_offset(vec![1.0; 3]).unwrap();
        assert!((largest_singular_value(&[&ones]) - 15f64.sqrt()).abs() < 1e-12);
        assert_eq!(largest_singular_value(&[&sparse(3, &[0.0; 15])]), 0.0);
    }
}
