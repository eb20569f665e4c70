//! A public preconditioner for networks: the step gives all directions of a layer about the same
//! weight.
//!
//! The server's direction for one layer's weights is a matrix `M`. Its singular values `s` become
//! `s / sqrt(s^2 + f^2)` with a fixed [`floor`](Equalizing::floor) `f`, its singular vectors stay:
//!
//! ```text
//!     M  ->  M (M^T M + f^2 I)^(-1/2)      ( = (M M^T + f^2 I)^(-1/2) M )
//! ```
//!
//! Biases are matrices of one column: `b -> b / sqrt(|b|^2 + f^2)`.
//!
//! **Why it helps.** Gradients of a network have nearly low rank: features have a common mean, and
//! the few directions along it dominate for hundreds of steps, while a private run has a few dozen
//! whole gradients. Singular values above the floor are all treated as about 1, whatever their
//! size. Those below it (mostly noise) are only divided by `f`, so that they average out over
//! rounds as in a plain step; far below the floor the step *is* the plain one with step size
//! `eta/f`.
//!
//! **Guarantee.** The matrix that multiplies `M` is symmetric and positive definite, so the
//! direction descends where `M` does, and no layer moves by more than the step size (in its largest
//! singular value) in a round: a single noisy round cannot spoil a model. It acts on released
//! values only: post-processing, which costs no privacy. The bits are the same on every machine:
//! `f64`, in a fixed order, with no operation but `+ - * /` and the square root.
//!
//! **Cost.** For a layer of `a x b`, `b` the smaller: `2 a b^2` additions and an eigendecomposition
//! of `b x b` (some `40 b^3`). **Place in the paper:** none; Algorithm 1 with a step matrix. The
//! limit `f = 0` after momentum is known as orthogonalised momentum.

use crate::linalg::eigen;

/// A layer's weights, or biases, among the model's parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParameterBlock {
    /// Its first parameter.
    pub start: usize,
    /// Rows, one after the other.
    pub rows: usize,
    /// Numbers in a row.
    pub columns: usize,
}

/// Which matrices are equalised, and the floor.
#[derive(Clone, Debug, PartialEq)]
pub struct Equalizing {
    /// The matrices.
    pub blocks: Vec<ParameterBlock>,
    /// What a singular value must exceed to count fully; above zero.
    pub floor: f64,
}

impl ParameterBlock {
    /// The parameter after its last.
    pub fn end(&self) -> usize {
        self.start + self.rows * self.columns
    }

    /// The smaller side, whose third power is the cost.
    pub fn side(&self) -> usize {
        self.rows.min(self.columns)
    }
}

impl Equalizing {
    /// The parameter after the last of all blocks.
    pub fn end(&self) -> usize {
        self.blocks
            .iter()
            .map(ParameterBlock::end)
            .max()
            .unwrap_or(0)
    }

    /// Equalises the blocks of `direction` in place; the rest does not change.
    ///
    /// # Panics
    /// If `direction` is shorter than a block needs.
    pub fn apply(&self, direction: &mut [f32]) {
        for block in &self.blocks {
            let matrix = &mut direction[block.start..block.end()];
            let (rows, columns) = (block.rows, block.columns);
            if block.side() == 0 {
                continue;
            }
            if columns <= rows {
                let root =
                    inverse_root(gram(matrix, rows, columns, columns, 1), columns, self.floor);
                times(matrix, rows, columns, columns, 1, &root);
            } else {
                // The same with rows and columns exchanged.
                let root = inverse_root(gram(matrix, columns, rows, 1, columns), rows, self.floor);
                times(matrix, columns, rows, 1, columns, &root);
            }
        }
    }
}

/// `M^T M` of the `long x short` matrix whose entry `(i, j)` is `values[i * along + j * across]`.
fn gram(values: &[f32], long: usize, short: usize, along: usize, across: usize) -> Vec<f64> {
    let mut product = vec![0.0; short * short];
    let mut line = vec![0.0; short];
    for i in 0..long {
        for (j, value) in line.iter_mut().enumerate() {
            *value = f64::from(values[i * along + j * across]);
        }
        for (j, &left) in line.iter().enumerate() {
            for (sum, &right) in product[j * short..][..short].iter_mut().zip(&line) {
                *sum += left * right;
            }
        }
    }
    product
}

/// `M <- M R` for a symmetric `R`.
fn times(values: &mut [f32], long: usize, short: usize, along: usize, across: usize, root: &[f64]) {
    let mut sums = vec![0.0; short];
    for i in 0..long {
        sums.fill(0.0);
        for (j, root) in root.chunks_exact(short).enumerate() {
            let value = f64::from(values[i * along + j * across]);
            for (sum, root) in sums.iter_mut().zip(root) {
                *sum += value * root;
            }
        }
        for (j, &sum) in sums.iter().enumerate() {
            values[i * along + j * across] = sum as f32;
        }
    }
}

/// `(A + f^2 I)^(-1/2)` of a symmetric `A` without negative eigenvalues.
fn inverse_root(matrix: Vec<f64>, side: usize, floor: f64) -> Vec<f64> {
    eigen::function(matrix, side, |eigenvalue| {
        1.0 / (eigenvalue.max(0.0) + floor * floor).sqrt()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wave(length: usize, shift: f32) -> Vec<f32> {
        (0..length)
            .map(|i| (i as f32 * i as f32 * 0.37 + shift).sin())
            .collect()
    }

    fn apply(values: &[f32], rows: usize, columns: usize, floor: f64) -> Vec<f32> {
        let block = ParameterBlock {
            start: 0,
            rows,
            columns,
        };
        let mut values = values.to_vec();
        let blocks = vec![block];
        Equalizing { blocks, floor }.apply(&mut values);
        values
    }

    /// `A^T B` of two matrices with `columns` columns.
    fn product(a: &[f32], b: &[f32], columns: usize) -> Vec<f64> {
        let mut sums = vec![0.0; columns * columns];
        for (a, b) in a.chunks_exact(columns).zip(b.chunks_exact(columns)) {
            for i in 0..columns {
                for j in 0..columns {
                    sums[i * columns + j] += f64::from(a[i]) * f64::from(b[j]);
                }
            }
        }
        sums
    }

    /// `D = M (M^T M + f^2)^(-1/2)` is the one matrix `D` with `D^T D (M^T M + f^2 I) = M^T M` and
    /// `D^T M` symmetric and positive.
    #[test]
    fn it_meets_its_definition() {
        let (rows, columns, floor) = (9, 5, 0.7);
        let matrix = wave(rows * columns, 0.2);
        let equal = apply(&matrix, rows, columns, floor);
        let gram = product(&matrix, &matrix, columns);
        let squared = product(&equal, &equal, columns);
        let mixed = product(&equal, &matrix, columns);
        for i in 0..columns {
            for j in 0..columns {
                let with_floor = (0..columns).map(|k| {
                    let diagonal = if k == j { floor * floor } else { 0.0 };
                    squared[i * columns + k] * (gram[k * columns + j] + diagonal)
                });
                let found: f64 = with_floor.sum();
                assert!((found - gram[i * columns + j]).abs() < 1e-5, "{i} {j}");
                assert!((mixed[i * columns + j] - mixed[j * columns + i]).abs() < 1e-5);
            }
            assert!(mixed[i * columns + i] > 0.0);
        }
    }

    /// Singular values 3, 0.4 and 0 in known directions.
    #[test]
    fn singular_values_are_equalised_and_directions_stay() {
        let (s, c) = (0.6f32, 0.8f32);
        // Columns are rotated by a known angle; rows 0 and 2 hold the two values.
        let matrix = [3.0 * c, 3.0 * s, 0.0, 0.0, -0.4 * s, 0.4 * c];
        let equal = apply(&matrix, 3, 2, 0.3);
        let (large, small) = (3.0 / 9.09f32.sqrt(), 0.8);
        let expected = [large * c, large * s, 0.0, 0.0, -small * s, small * c];
        for (found, expected) in equal.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-6, "{equal:?}");
        }
        assert_eq!(apply(&[0.0; 6], 3, 2, 0.3), [0.0; 6]);
        let bias = apply(&[3.0, 0.0, 4.0], 3, 1, 12.0);
        for (found, expected) in bias.iter().zip([3.0, 0.0, 4.0]) {
            assert!((found - expected / 13.0).abs() < 1e-6);
        }
    }

    #[test]
    fn it_does_not_matter_which_side_is_smaller() {
        let tall = wave(7 * 4, 0.5);
        let wide: Vec<f32> = (0..28).map(|i| tall[(i % 7) * 4 + i / 7]).collect();
        let (tall, wide) = (apply(&tall, 7, 4, 0.1), apply(&wide, 4, 7, 0.1));
        for (i, value) in wide.iter().enumerate() {
            assert!((value - tall[(i % 7) * 4 + i / 7]).abs() < 1e-6);
        }
    }

    /// Far below the floor it is a division by the floor; numbers outside the blocks stay.
    #[test]
    fn far_below_the_floor_it_is_the_plain_step() {
        let matrix = wave(12, 0.1);
        let equal = apply(&matrix, 4, 3, 1e4);
        for (found, value) in equal.iter().zip(&matrix) {
            assert!((found * 1e4 - value).abs() < 1e-5);
        }
        let blocks = vec![ParameterBlock {
            start: 2,
            rows: 1,
            columns: 2,
        }];
        let equalizing = Equalizing { blocks, floor: 1.0 };
        let mut values = [5.0, 6.0, 1.0, 1.0, 7.0];
        equalizing.apply(&mut values);
        assert_eq!(equalizing.end(), 4);
        assert_eq!([values[0], values[1], values[4]], [5.0, 6.0, 7.0]);
        assert!((values[2] - 1.0 / 3.0f32.sqrt()).abs() < 1e-6);
    }

    /// A side of 64 and numbers of all sizes: what comes out has no singular value above one, so no
    /// row is longer.
    #[test]
    fn large_layers_converge() {
        let (rows, columns) = (100, 64);
        let matrix: Vec<f32> = wave(rows * columns, 0.3)
            .iter()
            .enumerate()
            .map(|(i, value)| value * 10f32.powi((i % 9) as i32 - 6))
            .collect();
        let equal = apply(&matrix, rows, columns, 1e-3);
        let squared = product(&equal, &equal, columns);
        let again = product(&apply(&equal, rows, columns, 1e-9), &equal, columns);
        for i in 0..columns {
            assert!(squared[i * columns + i] <= 1.0 + 1e-6);
            assert!(again[i * columns + i] > 0.0);
        }
    }
}
