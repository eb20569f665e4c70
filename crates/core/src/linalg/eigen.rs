//! Functions of symmetric matrices, by Jacobi's rotations.
//!
//! The bits are the same on every machine: `f64`, in a fixed order, with no operation but `+ - * /`
//! and the square root (and what the function itself does). Cost: some `40 n^3` operations for `n`
//! rows.

/// `sum_k f(s_k) u_k u_k^T` for the eigenvalues `s_k` and eigenvectors `u_k` of a symmetric matrix
/// of `side` rows.
pub(crate) fn function(matrix: Vec<f64>, side: usize, f: impl Fn(f64) -> f64) -> Vec<f64> {
    function_of_all(matrix, side, |values| {
        values.iter().copied().map(&f).collect()
    })
}

/// The same where the weight of an eigenvector depends on all eigenvalues: `weights` gets them in
/// no particular order and answers in theirs.
pub(crate) fn function_of_all(
    mut matrix: Vec<f64>,
    side: usize,
    weights: impl FnOnce(&[f64]) -> Vec<f64>,
) -> Vec<f64> {
    let vectors = diagonalise(&mut matrix, side);
    let values: Vec<f64> = (0..side)
        .map(|number| matrix[number * side + number])
        .collect();
    let mut result = vec![0.0; side * side];
    for (weight, vector) in weights(&values)
        .into_iter()
        .zip(vectors.chunks_exact(side.max(1)))
    {
        for (i, &left) in vector.iter().enumerate() {
            for (sum, &right) in result[i * side..][..side].iter_mut().zip(vector) {
                *sum += weight * left * right;
            }
        }
    }
    result
}

/// Jacobi's rotations, sweep after sweep, until what is off the diagonal is lost in rounding.
/// Leaves the eigenvalues on the diagonal and returns the eigenvectors as rows.
fn diagonalise(matrix: &mut [f64], side: usize) -> Vec<f64> {
    const MOST_SWEEPS: usize = 40;
    let mut vectors = vec![0.0; side * side];
    for i in 0..side {
        vectors[i * side + i] = 1.0;
    }
    let size: f64 = matrix.iter().map(|value| value * value).sum();
    for _ in 0..MOST_SWEEPS {
        let mut rest = 0.0;
        for p in 0..side {
            for q in p + 1..side {
                let off = matrix[p * side + q];
                rest += off * off;
                if off != 0.0 {
                    rotate(matrix, &mut vectors, side, p, q);
                }
            }
        }
        if rest <= 1e-26 * size {
            break;
        }
    }
    vectors
}

/// Makes the entry `(p, q)` zero by a rotation in this plane.
fn rotate(matrix: &mut [f64], vectors: &mut [f64], side: usize, p: usize, q: usize) {
    let (pp, qq, pq) = (
        matrix[p * side + p],
        matrix[q * side + q],
        matrix[p * side + q],
    );
    let ratio = (qq - pp) / (2.0 * pq);
    let tangent = ratio.signum() / (ratio.abs() + (1.0 + ratio * ratio).sqrt());
    let cosine = 1.0 / (1.0 + tangent * tangent).sqrt();
    let sine = tangent * cosine;
    turn(matrix, side, p, q, cosine, sine);
    turn(vectors, side, p, q, cosine, sine);
    // The columns follow from the rows: the matrix stays symmetric.
    for k in 0..side {
        if k != p && k != q {
            matrix[k * side + p] = matrix[p * side + k];
            matrix[k * side + q] = matrix[q * side + k];
        }
    }
    matrix[p * side + p] = pp - tangent * pq;
    matrix[q * side + q] = qq + tangent * pq;
    matrix[p * side + q] = 0.0;
    matrix[q * side + p] = 0.0;
}

/// Turns the rows `p < q` of a square matrix into each other.
fn turn(matrix: &mut [f64], side: usize, p: usize, q: usize, cosine: f64, sine: f64) {
    let (upper, lower) = matrix.split_at_mut(q * side);
    let first = &mut upper[p * side..][..side];
    for (first, second) in first.iter_mut().zip(&mut lower[..side]) {
        let (a, b) = (*first, *second);
        *first = cosine * a - sine * b;
        *second = sine * a + cosine * b;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The square of the root is the matrix, also where eigenvalues are equal or zero.
    #[test]
    fn a_root_squared_is_the_matrix() {
        for side in [1usize, 2, 7] {
            let vector = |k: usize| (0..side).map(move |i| ((i * 5 + k * 3 + 1) as f64).sin());
            let mut matrix = vec![0.0; side * side];
            for k in 0..side - side / 3 {
                for (i, a) in vector(k).enumerate() {
                    for (j, b) in vector(k).enumerate() {
                        matrix[i * side + j] += a * b;
                    }
                }
            }
            let root = function(matrix.clone(), side, |value| value.max(0.0).sqrt());
            for i in 0..side {
                for j in 0..side {
                    let found: f64 = (0..side)
                        .map(|k| root[i * side + k] * root[k * side + j])
                        .sum();
                    assert!(
                        (found - matrix[i * side + j]).abs() < 1e-12,
                        "{side}: {found}"
                    );
                }
            }
        }
    }
}
