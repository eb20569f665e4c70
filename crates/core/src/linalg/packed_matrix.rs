//! Products with matrices that are packed in panels, and sums of outer products in the same form.
//!
//! A panel is 64, 32, 16 or 8 columns of a matrix, row after row, so that the sums of a panel fit
//! into vector registers. The functions are `#[inline(always)]`, to be called inside a
//! [`vectorised`](super::vectorised) block.
//!
//! **Guarantee.** Every output number is summed in the order of its inputs, one fused multiply-add
//! after the other, whatever the width of the panel. So the result for a row is the same, to the
//! bit, whichever other rows are computed with it, and the same for a dense row as for the sparse
//! row that leaves out its zeros.

// Loops over lanes read better by number, and the compiler unrolls them.
#![allow(clippy::needless_range_loop)]

use super::kernels::{add_scaled, padded};
use super::simd::has_wide_vectors;
use super::sparse::SparseVector;

/// How a matrix of `columns` columns is cut into panels: the first column and the width of each,
/// the widest at most `widest`, the last one padded. A packed matrix holds one panel after the
/// other.
#[inline(always)]
pub(crate) fn panels(columns: usize, widest: usize) -> impl Iterator<Item = (usize, usize)> {
    let (columns, mut first, mut width) = (padded(columns), 0, widest);
    std::iter::from_fn(move || {
        while first + width > columns {
            if first == columns {
                return None;
            }
            width /= 2;
        }
        first += width;
        Some((first - width, width))
    })
}

/// Copies a matrix of `columns` columns into panels, padded with zeros. Where `row` is given, adds
/// its product with the matrix to `start`.
#[inline(always)]
pub(crate) fn pack(
    matrix: &[f32],
    columns: usize,
    widest: usize,
    row: Option<&[f32]>,
    start: &mut [f32],
    target: &mut [f32],
) {
    let inputs = matrix.len() / columns;
    for (first, width) in panels(columns, widest) {
        let target = &mut target[first * inputs..][..width * inputs];
        let start = &mut start[first..][..width];
        let whole = first + width <= columns;
        match width {
            64 if whole => pack_panel::<64>(matrix, columns, first, row, start, target),
            16 if whole => pack_panel::<16>(matrix, columns, first, row, start, target),
            _ => {
                for (source, target) in matrix
                    .chunks_exact(columns)
                    .zip(target.chunks_exact_mut(width))
                {
                    let source = &source[first..columns.min(first + width)];
                    target[..source.len()].copy_from_slice(source);
                    target[source.len()..].fill(0.0);
                }
                for (&value, weights) in row.unwrap_or(&[]).iter().zip(target.chunks_exact(width)) {
                    add_scaled(start, value, weights);
                }
            }
        }
    }
}

/// Packs the transpose of a matrix of `columns` columns into panels, padded with zeros.
pub(crate) fn pack_transposed(matrix: &[f32], columns: usize, widest: usize, target: &mut [f32]) {
    let rows = matrix.len() / columns;
    for (first, width) in panels(rows, widest) {
        let target = &mut target[first * columns..][..width * columns];
        for o in 0..width {
            for c in 0..columns {
                target[c * width + o] = match first + o < rows {
                    true => matrix[(first + o) * columns + c],
                    false => 0.0,
                };
            }
        }
    }
}

/// One panel without padding: a single pass over the matrix.
#[inline(always)]
fn pack_panel<const WIDTH: usize>(
    matrix: &[f32],
    columns: usize,
    first: usize,
    row: Option<&[f32]>,
    start: &mut [f32],
    target: &mut [f32],
) {
    let lines = matrix
        .chunks_exact(columns)
        .zip(target.as_chunks_mut::<WIDTH>().0);
    let Some(row) = row else {
        for (source, target) in lines {
            *target = panel(source, first);
        }
        return;
    };
    let mut sums = panel::<WIDTH>(start, 0);
    for ((source, target), &value) in lines.zip(row) {
        let weights = panel::<WIDTH>(source, first);
        for o in 0..WIDTH {
            sums[o] = value.mul_add(weights[o], sums[o]);
        }
        *target = weights;
    }
    start.copy_from_slice(&sums);
}

/// `WIDTH` numbers from `start` on.
#[inline(always)]
fn panel<const WIDTH: usize>(values: &[f32], start: usize) -> [f32; WIDTH] {
    *values[start..]
        .first_chunk()
        .expect("matrices are padded to whole panels")
}

/// The widest panel for sparse rows: its sums fill half of the vector registers.
pub(crate) const SPARSE_PANEL: usize = 64;

/// The most rows of one [`sparse_rows_times_matrix`].
pub(crate) const MOST_ROWS: usize = 128;

/// Numbers of a matrix that are worked through at once (a slab). Measured: the first-level cache
/// holds half as much, but rows of one kind use much the same part of it, and every slab costs a
/// pass over all rows.
const SLAB: usize = 72 * 1024 / 4;

/// `targets[j][o] += sum_p values_p matrix[indices_p][o]` for every row `j`, given by its ascending
/// indices and its values, and a matrix packed in panels of at most [`SPARSE_PANEL`]. The targets
/// lie without gaps, `columns` numbers each, a multiple of eight. There may be at most
/// [`MOST_ROWS`] rows.
///
/// A matrix larger than the first-level cache is worked through in slabs of inputs, so that all
/// rows use a slab while it is in the cache.
///
/// On the way the number of every stored value ([`SparseVector::number`]) is recorded as
/// `numbers[index][place(j)]`, if there is such a place. There is one array for every index; its
/// length may be zero.
#[inline(always)]
pub(crate) fn sparse_rows_times_matrix<Row: SparseVector, const PLACES: usize>(
    rows: &[Row],
    matrix: &[f32],
    columns: usize,
    targets: &mut [f32],
    numbers: &mut [[u8; PLACES]],
    place: impl Fn(usize) -> usize,
) {
    let inputs = matrix.len() / columns;
    for (first, width) in panels(columns, SPARSE_PANEL) {
        let panel = &matrix[first * inputs..][..width * inputs];
        match width {
            64 => sparse_rows_times_panel::<64, _, PLACES>(
                rows, panel, columns, first, targets, numbers, &place,
            ),
            32 => sparse_rows_times_panel::<32, _, PLACES>(
                rows, panel, columns, first, targets, numbers, &place,
            ),
            16 => sparse_rows_times_panel::<16, _, PLACES>(
                rows, panel, columns, first, targets, numbers, &place,
            ),
            _ => sparse_rows_times_panel::<8, _, PLACES>(
                rows, panel, columns, first, targets, numbers, &place,
            ),
        }
    }
}

#[inline(always)]
fn sparse_rows_times_panel<const WIDTH: usize, Row: SparseVector, const PLACES: usize>(
    rows: &[Row],
    matrix: &[f32],
    columns: usize,
    first: usize,
    targets: &mut [f32],
    numbers: &mut [[u8; PLACES]],
    place: &impl Fn(usize) -> usize,
) {
    let matrix = matrix.as_chunks::<WIDTH>().0;
    let mut done = [0usize; MOST_ROWS];
    for end in slabs::<WIDTH>(rows.len(), matrix.len()) {
        let (slab, numbers) = (&matrix[..end], &mut numbers[..end]);
        let targets = targets.chunks_exact_mut(columns);
        for (j, ((row, done), target)) in rows.iter().zip(&mut done).zip(targets).enumerate() {
            let target: &mut [f32; WIDTH] = target[first..]
                .first_chunk_mut()
                .expect("targets are padded to whole panels");
            let mut sums = *target;
            let mut taken = *done;
            let place = place(j);
            for stored in row.stored(taken) {
                let (index, value) = row.unpack(stored);
                // Indices ascend: the first one outside belongs to a later slab.
                let Some(weights) = slab.get(index as usize) else {
                    break;
                };
                if let Some(number) = numbers[index as usize].get_mut(place) {
                    *number = Row::number(stored);
                }
                for o in 0..WIDTH {
                    sums[o] = value.mul_add(weights[o], sums[o]);
                }
                taken += 1;
            }
            *done = taken;
            *target = sums;
        }
    }
}

/// Where slabs of a panel end. For a few rows, one slab: they would not pay for more.
#[inline(always)]
fn slabs<const WIDTH: usize>(rows: usize, inputs: usize) -> impl Iterator<Item = usize> {
    // All of the same size, because a short one costs as much as the others.
    let count = match rows {
        0..=4 => 1,
        _ => inputs.div_ceil(SLAB / WIDTH).max(1),
    };
    let slab = inputs.div_ceil(count).max(1);
    (0..inputs)
        .step_by(slab)
        .map(move |start| (start + slab).min(inputs))
}

/// `target[indices_p][o] += values_p errors[j][o]` for every row `j`: the sum of outer products of
/// sparse rows and dense ones, in the packed form and the slabs of [`sparse_rows_times_matrix`].
#[inline(always)]
pub(crate) fn add_outer_products(
    rows: &[impl SparseVector],
    errors: &[f32],
    columns: usize,
    target: &mut [f32],
) {
    let inputs = target.len() / columns;
    for (first, width) in panels(columns, SPARSE_PANEL) {
        let panel = &mut target[first * inputs..][..width * inputs];
        match width {
            64 => add_outer_products_to_panel::<64>(rows, errors, columns, first, panel),
            32 => add_outer_products_to_panel::<32>(rows, errors, columns, first, panel),
            16 => add_outer_products_to_panel::<16>(rows, errors, columns, first, panel),
            _ => add_outer_products_to_panel::<8>(rows, errors, columns, first, panel),
        }
    }
}

#[inline(always)]
fn add_outer_products_to_panel<const WIDTH: usize>(
    rows: &[impl SparseVector],
    errors: &[f32],
    columns: usize,
    first: usize,
    target: &mut [f32],
) {
    let target = target.as_chunks_mut::<WIDTH>().0;
    let mut done = [0usize; MOST_ROWS];
    for end in slabs::<WIDTH>(rows.len(), target.len()) {
        let slab = &mut target[..end];
        for ((row, done), errors) in rows.iter().zip(&mut done).zip(errors.chunks_exact(columns)) {
            let errors: [f32; WIDTH] = panel(errors, first);
            let mut taken = *done;
            for (index, value) in row.entries(taken) {
                let Some(sums) = slab.get_mut(index as usize) else {
                    break;
                };
                for o in 0..WIDTH {
                    sums[o] = value.mul_add(errors[o], sums[o]);
                }
                taken += 1;
            }
            *done = taken;
        }
    }
}

/// `target += packed + row totals^T`, the target without padding.
#[inline(always)]
pub(crate) fn unpack_sum(
    packed: &[f32],
    columns: usize,
    row: Option<&[f32]>,
    totals: &[f32],
    target: &mut [f32],
) {
    let inputs = target.len() / columns;
    for (first, width) in panels(columns, SPARSE_PANEL) {
        let packed = packed[first * inputs..][..width * inputs].chunks_exact(width);
        let totals = &totals[first..][..width];
        for (c, (sums, target)) in packed.zip(target.chunks_exact_mut(columns)).enumerate() {
            let value = row.map_or(0.0, |row| row[c]);
            let target = target[first..].iter_mut().zip(sums).zip(totals);
            for ((target, &sum), &total) in target {
                *target += value.mul_add(total, sum);
            }
        }
    }
}

/// The widest panel for dense rows. The sums of four rows fill half of the vector registers (8 of
/// 16, or 16 of 32 with AVX-512), their values and the weights most of the others. Six rows would
/// leave no register for values that are loaded ahead.
pub(crate) fn dense_panel() -> usize {
    if has_wide_vectors() { 64 } else { 16 }
}

/// `targets[j][o] = start[o] + sum_c rows[j][c] matrix[c][o]` for any number of rows and a matrix
/// packed in panels of at most `widest`. `row(j)` is the `j`-th row; the target has
/// `start.len()` columns, a multiple of eight.
#[inline(always)]
pub(crate) fn rows_times_matrix<'a>(
    count: usize,
    row: impl Fn(usize) -> &'a [f32],
    matrix: &[f32],
    widest: usize,
    start: &[f32],
    targets: &mut [f32],
) {
    let columns = start.len();
    let inputs = matrix.len() / columns;
    for (first, width) in panels(columns, widest) {
        let panel = &matrix[first * inputs..][..width * inputs];
        match width {
            64 => rows_times_panel::<64>(count, &row, panel, first, start, targets),
            32 => rows_times_panel::<32>(count, &row, panel, first, start, targets),
            16 => rows_times_panel::<16>(count, &row, panel, first, start, targets),
            _ => rows_times_panel::<8>(count, &row, panel, first, start, targets),
        }
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
    let matrix = matrix.as_chunks::<WIDTH>().0;
    let mut first = 0;
    while first + 4 <= count {
        tile::<4, WIDTH>(first, row, matrix, column, start, targets);
        first += 4;
    }
    while first < count {
        tile::<1, WIDTH>(first, row, matrix, column, start, targets);
        first += 1;
    }
}

/// A register tile: `ROWS` rows times a panel of `WIDTH` columns.
#[inline(always)]
fn tile<'a, const ROWS: usize, const WIDTH: usize>(
    first: usize,
    row: &impl Fn(usize) -> &'a [f32],
    matrix: &[[f32; WIDTH]],
    column: usize,
    start: &[f32],
    targets: &mut [f32],
) {
    let columns = start.len();
    let depth = matrix.len();
    let mut rows = [&[] as &[f32]; ROWS];
    for j in 0..ROWS {
        rows[j] = &row(first + j)[..depth];
    }
    let mut sums = [panel::<WIDTH>(start, column); ROWS];
    for c in 0..depth {
        let weights = matrix[c];
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linalg::sparse::SparseRow;

    fn numbers(count: usize, seed: u32) -> Vec<f32> {
        let next = |i: u32| i.wrapping_add(seed).wrapping_mul(2_654_435_769) >> 8;
        (0..count as u32)
            .map(|i| next(i) as f32 / (1 << 23) as f32 - 1.0)
            .collect()
    }

    /// Shapes with every width of panel, gaps, several slabs and rest rows.
    const SHAPES: [(usize, usize, usize); 6] = [
        (1, 3, 8),
        (5, 300, 120),
        (9, 140, 64),
        (6, 7, 10),
        (4, 1, 1),
        (13, 33, 17),
    ];

    #[test]
    fn products_with_packed_matrices_agree_with_three_loops() {
        for (count, inputs, columns) in SHAPES {
            let width = padded(columns);
            let (matrix, rows) = (numbers(inputs * columns, 1), numbers(count * inputs, 2));
            let (offset, bias) = (numbers(inputs, 3), numbers(columns, 4));
            let naive = |j: usize, o: usize| -> f64 {
                let term = |c: usize| {
                    let value = f64::from(rows[j * inputs + c]) + f64::from(offset[c]);
                    value * f64::from(matrix[c * columns + o])
                };
                f64::from(bias[o]) + (0..inputs).map(term).sum::<f64>()
            };
            let indices: Vec<u32> = (0..inputs as u32).collect();
            let sparse: Vec<SparseRow<'_>> = rows
                .chunks(inputs)
                .map(|values| SparseRow {
                    indices: &indices,
                    values,
                })
                .collect();
            for (widest, is_sparse) in [(16, false), (64, false), (SPARSE_PANEL, true)] {
                let mut start = vec![0.0; width];
                start[..columns].copy_from_slice(&bias);
                let mut packed = vec![f32::NAN; inputs * width];
                pack(
                    &matrix,
                    columns,
                    widest,
                    Some(&offset),
                    &mut start,
                    &mut packed,
                );
                let mut targets = start.repeat(count);
                if is_sparse {
                    sparse_rows_times_matrix(
                        &sparse,
                        &packed,
                        width,
                        &mut targets,
                        &mut vec![[]; inputs],
                        |j| j,
                    );
                } else {
                    let row = |j: usize| &rows[j * inputs..][..inputs];
                    rows_times_matrix(count, row, &packed, widest, &start, &mut targets);
                }
                for j in 0..count {
                    for o in 0..columns {
                        let error = f64::from(targets[j * width + o]) - naive(j, o);
                        assert!(error.abs() < 1e-4, "{inputs} x {columns}: {error}");
                    }
                    assert!(
                        targets[j * width..][columns..width]
                            .iter()
                            .all(|&x| x == 0.0)
                    );
                }
            }
        }
    }

    #[test]
    fn transposed_packing_is_packing_of_the_transpose() {
        for (_, rows, columns) in SHAPES {
            let matrix = numbers(rows * columns, 5);
            let turned: Vec<f32> = (0..rows * columns)
                .map(|i| matrix[i % rows * columns + i / rows])
                .collect();
            for widest in [16, 64] {
                let mut found = vec![f32::NAN; padded(rows) * columns];
                let mut expected = found.clone();
                pack_transposed(&matrix, columns, widest, &mut found);
                let mut start = vec![0.0; padded(rows)];
                pack(&turned, rows, widest, None, &mut start, &mut expected);
                assert_eq!(found, expected);
            }
        }
    }

    #[test]
    fn outer_products_agree_with_loops() {
        for (count, inputs, columns) in SHAPES {
            let width = padded(columns);
            let indices: Vec<u32> = (0..inputs as u32).step_by(2).collect();
            let values = numbers(count * indices.len(), 6);
            let rows: Vec<SparseRow<'_>> = values
                .chunks(indices.len())
                .map(|values| SparseRow {
                    indices: &indices,
                    values,
                })
                .collect();
            let errors = numbers(count * width, 7);
            let (offset, totals) = (numbers(inputs, 8), numbers(width, 9));
            let mut packed = vec![0.0; inputs * width];
            add_outer_products(&rows, &errors, width, &mut packed);
            let mut target = vec![1.0; inputs * columns];
            unpack_sum(&packed, columns, Some(&offset), &totals, &mut target);
            for c in 0..inputs {
                for o in 0..columns {
                    let mut expected = 1.0 + f64::from(offset[c]) * f64::from(totals[o]);
                    for j in 0..count {
                        if c % 2 == 0 {
                            let value = values[j * indices.len() + c / 2];
                            expected += f64::from(value) * f64::from(errors[j * width + o]);
                        }
                    }
                    let error = f64::from(target[c * columns + o]) - expected;
                    assert!(error.abs() < 1e-5, "{inputs} x {columns}: {error}");
                }
            }
        }
    }

    #[test]
    fn panels_cover_the_padded_columns() {
        for columns in 1..200 {
            let mut next = 0;
            for (first, width) in panels(columns, SPARSE_PANEL) {
                assert_eq!(first, next);
                next += width;
            }
            assert_eq!(next, padded(columns));
        }
    }
}
