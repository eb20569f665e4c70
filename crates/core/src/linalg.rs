//! Arithmetic over slices: sums of products, elementwise functions, one matrix product.
//!
//! **Guarantee.** Everything runs on one thread (the program runs clients in parallel, never a
//! product) and every reduction has a fixed order, so results do not depend on the number of
//! threads. Different processors may round differently.
//!
//! **Vector code in a portable binary.** The functions here find out at run time whether the
//! processor has AVX2 and FMA, or AVX-512, and run code compiled for them ([`vectorised`],
//! [`vectorised_widely`]). Functions for use inside a larger loop (`kernels`, `packed_matrix`,
//! `vector_math`) are `#[inline(always)]`: they are compiled for the instructions of the
//! [`vectorised`] block that they are called from, and are slow outside of one, because `mul_add`
//! without FMA instructions is a library call.
//!
//! `unsafe` is used in [`matmul`], for the call of the general matrix product, whose bounds are
//! checked first, and in `linalg/simd.rs` and `linalg/memory.rs` for single instructions and system
//! calls.

pub(crate) mod bytes;
pub(crate) mod eigen;
pub(crate) mod kernels;
pub(crate) mod memory;
pub(crate) mod packed_matrix;
pub(crate) mod simd;
pub(crate) mod sparse;
pub(crate) mod vector_math;

pub(crate) use memory::{LINE, aligned};
pub use simd::{vectorised, vectorised_widely};
pub use sparse::SparseRow;

/// `sum_i left_i right_i`, in sixteen interleaved partial sums.
///
/// # Panics
/// If the lengths differ.
pub fn dot(left: &[f32], right: &[f32]) -> f32 {
    assert_eq!(left.len(), right.len(), "lengths of a dot product");
    vectorised(
        #[inline(always)]
        || kernels::dot(left, right),
    )
}

/// `sum_i values_i^2` in `f64`; the products are exact, so the relative error is that of the sum.
pub fn squared_norm(values: &[f32]) -> f64 {
    vectorised(
        #[inline(always)]
        || kernels::squared_norm(values),
    )
}

/// The largest magnitude, 0 if there is none; infinite if one is not finite.
pub fn largest(values: &[f32]) -> f32 {
    // Without their signs, numbers have the order of their bits, and not-a-number comes after
    // infinity.
    let largest = vectorised(
        #[inline(always)]
        || {
            let magnitudes = values.iter().map(|value| value.to_bits() & 0x7fff_ffff);
            magnitudes.fold(0, u32::max)
        },
    );
    f32::from_bits(largest.min(f32::INFINITY.to_bits()))
}

/// Whether all are finite.
pub fn all_finite(values: &[f32]) -> bool {
    largest(values) < f32::INFINITY
}

/// `target += scale * source`.
///
/// # Panics
/// If the lengths differ.
pub fn add_scaled(target: &mut [f32], scale: f32, source: &[f32]) {
    assert_eq!(target.len(), source.len(), "lengths of a scaled sum");
    vectorised(
        #[inline(always)]
        || kernels::add_scaled(target, scale, source),
    );
}

/// `target = left_scale * target + right_scale * source`.
///
/// # Panics
/// If the lengths differ.
pub fn combine(target: &mut [f32], left_scale: f32, right_scale: f32, source: &[f32]) {
    assert_eq!(
        target.len(),
        source.len(),
        "lengths of a linear combination"
    );
    vectorised(
        #[inline(always)]
        || {
            for (target, &source) in target.iter_mut().zip(source) {
                *target = right_scale.mul_add(source, left_scale * *target);
            }
        },
    );
}

/// Replaces every value by its exponential. Relative error below `2e-7` where the result is normal.
pub fn exp(values: &mut [f32]) {
    replace_each(values, vector_math::exp);
}

/// Replaces every `x` by `1 / (1 + exp(-x))`. Relative error below `2e-7` for `x > -87`, where it
/// stops falling.
pub fn sigmoid(values: &mut [f32]) {
    replace_each(values, vector_math::sigmoid);
}

/// Replaces every value by its hyperbolic tangent. Relative error below `2e-7`.
pub fn tanh(values: &mut [f32]) {
    replace_each(values, vector_math::tanh);
}

/// Replaces every `x` by `log(1 + exp(x))`. Relative error below `3e-7` for `x > -87`.
pub fn softplus(values: &mut [f32]) {
    replace_each(values, vector_math::softplus);
}

#[inline(always)]
fn replace_each(values: &mut [f32], function: impl Fn(f32) -> f32) {
    vectorised(
        #[inline(always)]
        || values.iter_mut().for_each(|x| *x = function(*x)),
    );
}

/// The smallest `f32` that is at least `value`.
pub(crate) fn round_up(value: f64) -> f32 {
    let nearest = value as f32;
    if f64::from(nearest) < value {
        nearest.next_up()
    } else {
        nearest
    }
}

/// A matrix inside a slice: entry `(i, j)` is `values[i * row_stride + j * column_stride]`.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    values: &'a [f32],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a> Matrix<'a> {
    /// `rows` rows of `columns` numbers, the starts of two rows `stride` numbers apart.
    ///
    /// # Panics
    /// If an entry lies outside `values`.
    pub fn new(values: &'a [f32], rows: usize, columns: usize, stride: usize) -> Self {
        assert_inside(values.len(), rows, columns, stride, 1);
        Matrix {
            values,
            rows,
            columns,
            row_stride: stride,
            column_stride: 1,
        }
    }

    /// The same numbers, rows and columns exchanged.
    pub fn transposed(self) -> Self {
        Matrix {
            values: self.values,
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
        }
    }
}

/// `target += left * right`; `target` holds `left.rows` rows of `right.columns` numbers without
/// gaps.
///
/// # Panics
/// If the shapes do not fit.
#[allow(unsafe_code)] // The general product takes pointers.
pub fn matmul(target: &mut [f32], left: Matrix<'_>, right: Matrix<'_>) {
    let (rows, depth, columns) = (left.rows, left.columns, right.columns);
    assert_eq!(depth, right.rows, "inner dimensions of a product");
    assert_eq!(
        Some(target.len()),
        rows.checked_mul(columns),
        "size of a product"
    );
    if rows == 0 || columns == 0 || depth == 0 {
        return;
    }
    // A `Matrix` cannot be built with an entry outside its slice; checked here again so that the
    // proof below does not depend on another function.
    for matrix in [left, right] {
        assert_inside(
            matrix.values.len(),
            matrix.rows,
            matrix.columns,
            matrix.row_stride,
            matrix.column_stride,
        );
    }
    // SAFETY: every entry `(i, j)` of both factors lies inside its slice (checked above, by
    // products that cannot overflow), those of the target are `i * columns + j < rows * columns`,
    // its length. The target is borrowed mutably, so it overlaps neither factor. Strides fit
    // `isize` because a slice spans at most `isize::MAX` bytes and strides of dimensions of one
    // entry are never used; those that are used are bounded by the length of the slice.
    unsafe {
        gemm::gemm(
            rows,
            columns,
            depth,
            target.as_mut_ptr(),
            1,
            columns as isize,
            true,
            left.values.as_ptr(),
            left.column_stride as isize,
            left.row_stride as isize,
            right.values.as_ptr(),
            right.column_stride as isize,
            right.row_stride as isize,
            1.0,
            1.0,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}

/// Checks that the last entry exists; then all do.
fn assert_inside(len: usize, rows: usize, columns: usize, row_stride: usize, column_stride: usize) {
    if rows == 0 || columns == 0 {
        return;
    }
    let last = (rows - 1)
        .checked_mul(row_stride)
        .zip((columns - 1).checked_mul(column_stride))
        .and_then(|(down, right)| down.checked_add(right));
    assert!(
        last.is_some_and(|last| last < len),
        "a matrix of {rows} x {columns} with strides {row_stride}, {column_stride} does not fit {len} numbers"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(count: usize, seed: u32) -> Vec<f32> {
        let mut state = seed.wrapping_mul(2_654_435_769).wrapping_add(1);
        (0..count)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 8) as f32 / (1 << 23) as f32 - 1.0
            })
            .collect()
    }

    #[test]
    fn the_largest_magnitude_is_found_and_what_is_not_finite_is_noticed() {
        assert_eq!(largest(&[]), 0.0);
        let mut values: Vec<f32> = (0..37).map(|i| 0.5 - i as f32).collect();
        assert_eq!(largest(&values), 35.5);
        for (place, odd) in [(0, f32::NAN), (36, -f32::INFINITY), (20, -f32::NAN)] {
            let before = std::mem::replace(&mut values[place], odd);
            assert_eq!(largest(&values), f32::INFINITY);
            assert!(!all_finite(&values));
            values[place] = before;
        }
        values[9] = -f32::MAX;
        assert_eq!(largest(&values), f32::MAX);
        assert!(all_finite(&values));
    }

    #[test]
    fn products_and_sums_agree_with_naive_loops() {
        for len in [0, 1, 7, 8, 15, 16, 17, 64, 129] {
            let (left, right) = (numbers(len, 1), numbers(len, 2));
            let pairs = || {
                left.iter()
                    .zip(&right)
                    .map(|(&a, &b)| (f64::from(a), f64::from(b)))
            };
            let expected: f64 = pairs().map(|(a, b)| a * b).sum();
            assert!((f64::from(dot(&left, &right)) - expected).abs() < 1e-5);
            let norm: f64 = pairs().map(|(a, _)| a * a).sum();
            assert!((squared_norm(&left) - norm).abs() <= 1e-14 * norm);
            let mut sum = left.clone();
            add_scaled(&mut sum, 0.5, &right);
            let mut mixed = left.clone();
            combine(&mut mixed, -2.0, 0.25, &right);
            for (i, (a, b)) in pairs().enumerate() {
                assert!((f64::from(sum[i]) - (a + 0.5 * b)).abs() < 1e-6);
                assert!((f64::from(mixed[i]) - (0.25 * b - 2.0 * a)).abs() < 1e-6);
            }
        }
    }

    #[test]
    fn matmul_agrees_with_three_loops() {
        for (rows, depth, columns) in [(1, 1, 1), (3, 5, 2), (17, 9, 33), (64, 20, 10), (0, 3, 4)] {
            let (left_stride, right_stride) = (depth + 3, columns + 2);
            let left = numbers(rows * left_stride, 3);
            let right = numbers(depth * right_stride, 4);
            let start = numbers(rows * columns, 5);
            let naive = |i: usize, j: usize| -> f64 {
                f64::from(start[i * columns + j])
                    + (0..depth)
                        .map(|k| {
                            f64::from(left[i * left_stride + k])
                                * f64::from(right[k * right_stride + j])
                        })
                        .sum::<f64>()
            };
            // Once as it is, once with the left factor given as a transpose.
            let mut turned = vec![0.0; rows * depth];
            for i in 0..rows {
                for k in 0..depth {
                    turned[k * rows + i] = left[i * left_stride + k];
                }
            }
            let right = Matrix::new(&right, depth, columns, right_stride);
            for left in [
                Matrix::new(&left, rows, depth, left_stride),
                Matrix::new(&turned, depth, rows, rows).transposed(),
            ] {
                let mut target = start.clone();
                matmul(&mut target, left, right);
                for i in 0..rows {
                    for j in 0..columns {
                        let error = f64::from(target[i * columns + j]) - naive(i, j);
                        assert!(error.abs() < 1e-5, "({i}, {j}): {error}");
                    }
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "does not fit")]
    fn a_matrix_outside_its_slice_is_refused() {
        Matrix::new(&[0.0; 11], 3, 4, 4);
    }

    #[test]
    #[should_panic(expected = "inner dimensions")]
    fn factors_that_do_not_meet_are_refused() {
        let values = [0.0; 12];
        matmul(
            &mut [0.0; 9],
            Matrix::new(&values, 3, 4, 4),
            Matrix::new(&values, 3, 3, 3),
        );
    }

    #[test]
    #[should_panic(expected = "size of a product")]
    fn a_target_of_the_wrong_size_is_refused() {
        let values = [0.0; 12];
        matmul(
            &mut [0.0; 8],
            Matrix::new(&values, 3, 4, 4),
            Matrix::new(&values, 4, 3, 3),
        );
    }
}
