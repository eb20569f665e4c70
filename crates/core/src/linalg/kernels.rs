//! Loops written so that the compiler turns them into vector code. All are `#[inline(always)]`, to
//! be called inside a [`vectorised`](super::vectorised) block.
//!
//! The two products with a matrix sum each output number in the order of its inputs, one fused
//! multiply-add after the other, whatever the shape of the register tile. So what comes out for a
//! row is the same to the bit for any company the row is computed in, and the same for a dense row
//! as for the sparse row that leaves out its zeros.

// Loops over lanes read better by number, and the compiler unrolls them.
#![allow(clippy::needless_range_loop)]

/// Numbers per vector register of AVX2; shorter and longer registers work too.
pub(crate) const LANES: usize = 8;

/// `count` rounded up to whole registers.
pub(crate) const fn padded(count: usize) -> usize {
    count.next_multiple_of(LANES)
}

/// The sum of eight numbers, in pairs.
#[inline(always)]
pub(crate) fn sum_lanes(v: [f32; LANES]) -> f32 {
    let half = [v[0] + v[4], v[1] + v[5], v[2] + v[6], v[3] + v[7]];
    (half[0] + half[2]) + (half[1] + half[3])
}

/// `sum_i left_i right_i` over the shorter length.
#[inline(always)]
pub(crate) fn dot(left: &[f32], right: &[f32]) -> f32 {
    let len = left.len().min(right.len());
    let (left, right) = (&left[..len], &right[..len]);
    let (left_pairs, left_rest) = left.as_chunks::<16>();
    let (right_pairs, right_rest) = right.as_chunks::<16>();
    let mut sums = [[0.0f32; LANES]; 2];
    for (a, b) in left_pairs.iter().zip(right_pairs) {
        for half in 0..2 {
            for lane in 0..LANES {
                let place = half * LANES + lane;
                sums[half][lane] = a[place].mul_add(b[place], sums[half][lane]);
            }
        }
    }
    let mut both = [0.0; LANES];
    for lane in 0..LANES {
        both[lane] = sums[0][lane] + sums[1][lane];
    }
    let mut total = sum_lanes(both);
    for (&a, &b) in left_rest.iter().zip(right_rest) {
        total = a.mul_add(b, total);
    }
    total
}

/// `sum_i values_i^2` in `f64`.
#[inline(always)]
pub(crate) fn squared_norm(values: &[f32]) -> f64 {
    let (chunks, rest) = values.as_chunks::<LANES>();
    let mut sums = [0.0f64; LANES];
    for chunk in chunks {
        for lane in 0..LANES {
            let value = f64::from(chunk[lane]);
            sums[lane] = value.mul_add(value, sums[lane]);
        }
    }
    let mut total = 0.0;
    for &value in rest {
        total = f64::from(value).mul_add(f64::from(value), total);
    }
    for lane in 0..LANES / 2 {
        sums[lane] += sums[lane + LANES / 2];
    }
    total + ((sums[0] + sums[2]) + (sums[1] + sums[3]))
}

/// `target += scale * source`.
#[inline(always)]
pub(crate) fn add_scaled(target: &mut [f32], scale: f32, source: &[f32]) {
    for (target, &source) in target.iter_mut().zip(source) {
        *target = scale.mul_add(source, *target);
    }
}

/// The indexed numbers' product with a dense vector, in four interleaved partial sums.
#[inline(always)]
pub(crate) fn sparse_dot(indices: &[u32], values: &[f32], dense: &[f32]) -> f32 {
    let (index_chunks, index_rest) = indices.as_chunks::<4>();
    let (value_chunks, value_rest) = values.as_chunks::<4>();
    let mut sums = [0.0f32; 4];
    for (index, value) in index_chunks.iter().zip(value_chunks) {
        for lane in 0..4 {
            sums[lane] = value[lane].mul_add(dense[index[lane] as usize], sums[lane]);
        }
    }
    for (lane, (&index, &value)) in index_rest.iter().zip(value_rest).enumerate() {
        sums[lane] = value.mul_add(dense[index as usize], sums[lane]);
    }
    (sums[0] + sums[1]) + (sums[2] + sums[3])
}

/// `target[o] = start[o] + sum_p values_p matrix[indices_p][o]` for a matrix of `start.len()`
/// columns, a multiple of eight.
#[inline(always)]
pub(crate) fn sparse_row_times_matrix(
    indices: &[u32],
    values: &[f32],
    matrix: &[f32],
    start: &[f32],
    target: &mut [f32],
) {
    let columns = start.len();
    let mut column = 0;
    while column + 64 <= columns {
        sparse_row_times_panel::<64>(indices, values, matrix, column, start, target);
        column += 64;
    }
    if column + 32 <= columns {
        sparse_row_times_panel::<32>(indices, values, matrix, column, start, target);
        column += 32;
    }
    if column + 16 <= columns {
        sparse_row_times_panel::<16>(indices, values, matrix, column, start, target);
        column += 16;
    }
    if column + 8 <= columns {
        sparse_row_times_panel::<8>(indices, values, matrix, column, start, target);
    }
}

#[inline(always)]
fn sparse_row_times_panel<const WIDTH: usize>(
    indices: &[u32],
    values: &[f32],
    matrix: &[f32],
    column: usize,
    start: &[f32],
    target: &mut [f32],
) {
    let columns = start.len();
    let mut sums = panel::<WIDTH>(start, column);
    for (&index, &value) in indices.iter().zip(values) {
        let weights: [f32; WIDTH] = panel(matrix, index as usize * columns + column);
        for o in 0..WIDTH {
            sums[o] = value.mul_add(weights[o], sums[o]);
        }
    }
    target[column..column + WIDTH].copy_from_slice(&sums);
}

/// `WIDTH` numbers from `start` on.
#[inline(always)]
pub(crate) fn panel<const WIDTH: usize>(values: &[f32], start: usize) -> [f32; WIDTH] {
    *values[start..]
        .first_chunk()
        .expect("matrices are padded to whole panels")
}

/// `targets[j][o] = start[o] + sum_c rows[j][c] matrix[c][o]` for any number of rows. `row(j)` is
/// the `j`-th row; the matrix and the target have `start.len()` columns, a multiple of eight.
#[inline(always)]
pub(crate) fn rows_times_matrix<'a>(
    count: usize,
    row: impl Fn(usize) -> &'a [f32],
    matrix: &[f32],
    start: &[f32],
    targets: &mut [f32],
) {
    let columns = start.len();
    let mut column = 0;
    while column + 16 <= columns {
        rows_times_panel::<16>(count, &row, matrix, column, start, targets);
        column += 16;
    }
    if column + 8 <= columns {
        rows_times_panel::<8>(count, &row, matrix, column, start, targets);
    }
}

#[inline(always)]
fn rows_times_panel<'a, const WIDTH: usize>(
    count: usize,
    row: &impl Fn(usize) -> &'a [f32],
    matrix: &[f32],
    column: usize,
    start: &[f32],
    targets: &mut [f32],
) {
    let mut first = 0;
    while first + 6 <= count {
        tile::<6, WIDTH>(first, row, matrix, column, start, targets);
        first += 6;
    }
    while first + 2 <= count {
        tile::<2, WIDTH>(first, row, matrix, column, start, targets);
        first += 2;
    }
    if first < count {
        tile::<1, WIDTH>(first, row, matrix, column, start, targets);
    }
}

/// A register tile: `ROWS` rows times a panel of `WIDTH` columns.
#[inline(always)]
fn tile<'a, const ROWS: usize, const WIDTH: usize>(
    first: usize,
    row: &impl Fn(usize) -> &'a [f32],
    matrix: &[f32],
    column: usize,
    start: &[f32],
    targets: &mut [f32],
) {
    let columns = start.len();
    let depth = row(first).len();
    let rows: [&[f32]; ROWS] = std::array::from_fn(|j| &row(first + j)[..depth]);
    let mut sums = [panel::<WIDTH>(start, column); ROWS];
    for c in 0..depth {
        let weights: [f32; WIDTH] = panel(matrix, c * columns + column);
        for j in 0..ROWS {
            let value = rows[j][c];
            for o in 0..WIDTH {
                sums[j][o] = value.mul_add(weights[o], sums[j][o]);
            }
        }
    }
    for (j, sums) in sums.iter().enumerate() {
        targets[(first + j) * columns + column..][..WIDTH].copy_from_slice(sums);
    }
}

/// Copies a matrix of `columns` columns into one of `padded(columns)`, zeros in the gaps.
pub(crate) fn pad_columns(matrix: &[f32], columns: usize, target: &mut [f32]) {
    let width = padded(columns);
    for (source, target) in matrix
        .chunks_exact(columns)
        .zip(target.chunks_exact_mut(width))
    {
        target[..columns].copy_from_slice(source);
        target[columns..].fill(0.0);
    }
}

/// Writes the transpose of a matrix of `rows` rows with the given stride and `columns` columns into
/// rows of `target_stride`, zeros in the gaps.
#[inline(always)]
pub(crate) fn transpose(
    matrix: &[f32],
    rows: usize,
    columns: usize,
    stride: usize,
    target: &mut [f32],
    target_stride: usize,
) {
    for c in 0..columns {
        let line = &mut target[c * target_stride..][..target_stride];
        for (r, slot) in line[..rows].iter_mut().enumerate() {
            *slot = matrix[r * stride + c];
        }
        line[rows..].fill(0.0);
    }
}
