//! Symmetric matrices: eigenvectors by Jacobi's rotations, and the inverse square root.
//!
//! **Guarantee.** `f64` in a fixed order, with no operation but `+ - * /` and the square root: the
//! same bits on every machine. **Cost.** Some `40 n^3` operations.

/// `(A + c I)^(-1/2)` of a symmetric `A`, `side x side`, for `c > 0`; eigenvalues below zero count
/// as zero.
pub(crate) fn inverse_root(mut matrix: Vec<f64>, side: usize, ridge: f64) -> Vec<f64> {
    let vectors = diagonalise(&mut matrix, side);
    let mut root = vec![0.0; side * side];
    for (number, vector) in vectors.chunks_exact(side).enumerate() {
        let eigenvalue = matrix[number * side + number].max(0.0);
        let weight = 1.0 / (eigenvalue + ridge).sqrt();
        for (i, &left) in vector.iter().enumerate() {
            for (sum, &right) in root[i * side..][..side].iter_mut().zip(vector) {
                *sum += weight * left * right;
            }
        }
    }
    root
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

    /// `R (A + c I) R = I`, also where `A` has rank one only.
    #[test]
    fn the_inverse_root_undoes_the_matrix_from_both_sides() {
        let (side, ridge) = (7, 0.3);
        let wave = |i: usize| (i as f64 * 1.3).sin();
        let mut matrix = vec![0.0; side * side];
        for (place, entry) in matrix.iter_mut().enumerate() {
            *entry = wave(place / side) * wave(place % side);
        }
        let root = inverse_root(matrix.clone(), side, ridge);
        let times = |a: &[f64], b: &[f64]| -> Vec<f64> {
            let entry = |place: usize| {
                (0..side)
                    .map(|k| a[place / side * side + k] * b[k * side + place % side])
                    .sum()
            };
            (0..side * side).map(entry).collect()
        };
        (0..side).for_each(|i| matrix[i * side + i] += ridge);
        let unit = times(&times(&root, &matrix), &root);
        for (place, entry) in unit.iter().enumerate() {
            let expected = f64::from(u8::from(place / side == place % side));
            assert!((entry - expected).abs() < 1e-12, "{place}: {entry}");
        }
    }
}
