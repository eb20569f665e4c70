//! A second copy of sparse rows with one byte per value and one bit per column, where all stored
//! values of a column are equal: binary features, scaled or not.
//!
//! **Cost.** A record of a9a takes 32 bytes in this form instead of 120, 16 of columns and 16 of
//! bits, so that the records of a few clients stay in the cache, and all rows have the same length,
//! which processors can predict.
//!
//! **Guarantee.** What is read back is the original value to the bit. Sums over a row have the same
//! terms in the same order as in the other forms, then products of zeros, which change nothing but
//! the sign of a zero. That matters because whether this form exists depends on all records
//! together, and the numbers computed for one record must not depend on the others.

// Loops over lanes read better by number, and the compiler unrolls them.
#![allow(clippy::needless_range_loop)]

use super::packed::FEWEST;
use crate::linalg::memory::with_room_on_large_pages;
use crate::linalg::simd::{BitPicker, LOOKUPS, sum_lookups};
use crate::linalg::vectorised;

/// The most columns; the byte that is left means "no column".
const COLUMNS: usize = 255;

/// Columns of a row that are read together.
const GROUP: usize = LOOKUPS;

/// Longer rows gain nothing by this form.
const MOST_GROUPS: usize = 4;

/// The largest lookup table that fits in vector registers, the entry of "no column" included.
const SMALL: usize = 128;

/// More columns than these are not picked out one by one.
pub(crate) const MARKED: usize = 32;

/// One number per column, and an entry for "no column".
pub(crate) type Table = [f32; COLUMNS + 1];

/// The columns of every row, all rows filled up to the same length, the same as bits, and the value
/// of every column.
#[derive(Clone)]
pub(crate) struct Indicators {
    /// For every row its columns, then its bits.
    groups: Vec<[u8; GROUP]>,
    /// Groups of columns in a row.
    per_row: usize,
    /// Groups of bits in a row: bit `c` says that the row has column `c`.
    bit_groups: usize,
    values: Box<Table>,
}

impl Indicators {
    /// `None` if a column has two different values, there are too many columns, rows are too long
    /// or of too different length, or there are too few stored values to be worth it.
    pub(super) fn new(
        columns: usize,
        starts: &[usize],
        indices: &[u32],
        values: &[f32],
    ) -> Option<Indicators> {
        if columns > COLUMNS || values.len() < FEWEST {
            return None;
        }
        let rows = starts.windows(2).map(|ends| ends[0]..ends[1]);
        let longest = rows.clone().map(|row| row.len()).max()?;
        let (per_row, count) = (longest.div_ceil(GROUP), rows.len());
        if per_row > MOST_GROUPS || per_row * count * GROUP > 4 * values.len() {
            return None;
        }
        let mut found = [None; COLUMNS];
        for (&index, value) in indices.iter().zip(values) {
            let first = *found[index as usize].get_or_insert(value.to_bits());
            if first != value.to_bits() {
                return None;
            }
        }
        let mut table = Box::new([0.0; COLUMNS + 1]);
        for (value, bits) in table.iter_mut().zip(found) {
            *value = bits.map_or(0.0, f32::from_bits);
        }
        let bit_groups = columns.div_ceil(8 * GROUP);
        let mut groups = with_room_on_large_pages(count * (per_row + bit_groups));
        for row in rows {
            let own = &indices[row];
            for group in 0..per_row {
                let mut filled = [COLUMNS as u8; GROUP];
                let slots = filled.iter_mut().zip(own.iter().skip(group * GROUP));
                slots.for_each(|(slot, &index)| *slot = index as u8);
                groups.push(filled);
            }
            let first = groups.len();
            groups.resize(first + bit_groups, [0; GROUP]);
            let bits = groups[first..].as_flattened_mut();
            for &index in own {
                bits[index as usize / 8] |= 1 << (index % 8);
            }
        }
        Some(Indicators {
            groups,
            per_row,
            bit_groups,
            values: table,
        })
    }

    /// Columns and bits of a row.
    #[inline(always)]
    pub(crate) fn row(&self, row: usize) -> &[[u8; GROUP]] {
        let stride = self.per_row + self.bit_groups;
        &self.groups[row * stride..][..stride]
    }

    /// The columns of a row, filled up with "no column".
    #[inline(always)]
    fn columns(&self, row: usize) -> &[[u8; GROUP]] {
        &self.row(row)[..self.per_row]
    }

    /// Adds `scale_j` times the value in `columns[i]`, where row `j` has one, to `sums[i]`, the
    /// columns ascending. No branch depends on what a row holds.
    #[inline(always)]
    pub(crate) fn add_marked(
        &self,
        rows: &[u32],
        scales: &[f32],
        columns: &[u32],
        sums: &mut [f32],
    ) {
        const LANES: usize = 8;
        const BLOCK: usize = 64;
        let picker = BitPicker::new();
        for (columns, sums) in columns.chunks(LANES).zip(sums.chunks_mut(LANES)) {
            let mut wanted = [[0; GROUP]; (COLUMNS + 1) / (8 * GROUP)];
            for &column in columns {
                wanted.as_flattened_mut()[column as usize / 8] |= 1 << (column % 8);
            }
            let mut found = [[0.0f32; LANES]; 2];
            for (rows, scales) in rows.chunks(BLOCK).zip(scales.chunks(BLOCK)) {
                let mut marked = [0u32; BLOCK];
                for (marked, &row) in marked.iter_mut().zip(rows) {
                    let bits = &self.row(row as usize)[self.per_row..];
                    *marked = pick(picker, bits, &wanted);
                }
                // Even and odd rows in separate sums, because every addition waits for the one
                // before it.
                for (marked, scales) in marked.chunks_exact(2).zip(scales.chunks(2)) {
                    for half in 0..2 {
                        let scale = scales.get(half).copied().unwrap_or(0.0);
                        for i in 0..LANES {
                            let mask = (marked[half] >> i & 1).wrapping_neg();
                            found[half][i] += f32::from_bits(scale.to_bits() & mask);
                        }
                    }
                }
            }
            for (i, (sum, &column)) in sums.iter_mut().zip(columns).enumerate() {
                let found = found[0][i] + found[1][i];
                *sum = self.values[column as usize].mul_add(found, *sum);
            }
        }
    }

    /// `dots[j] = constant + <row_j, vector>`, in the order of
    /// [`sparse_dot`](crate::linalg::kernels::sparse_dot).
    pub(crate) fn dots(&self, rows: &[u32], vector: &[f32], constant: f32, dots: &mut [f32]) {
        let mut products = [0.0; COLUMNS + 1];
        for ((product, value), factor) in products.iter_mut().zip(&*self.values).zip(vector) {
            *product = value * factor;
        }
        // The byte that means "no column" has to be beyond the columns of a small table, too.
        let small = self.per_row == 1 && vector.len() < SMALL;
        if let Some(table) = products.first_chunk::<SMALL>()
            && small
            && sum_lookups(
                table,
                |j| &self.columns(rows[j] as usize)[0],
                constant,
                dots,
            )
        {
            return;
        }
        vectorised(
            #[inline(always)]
            || {
                for (dot, &row) in dots.iter_mut().zip(rows) {
                    *dot = constant + self.dot(row as usize, &products);
                }
            },
        );
    }

    #[inline(always)]
    fn dot(&self, row: usize, products: &Table) -> f32 {
        let mut sums = [0.0f32; 4];
        for group in self.columns(row) {
            for (place, &column) in group.iter().enumerate() {
                sums[place % 4] += products[column as usize];
            }
        }
        (sums[0] + sums[1]) + (sums[2] + sums[3])
    }

    /// Adds a multiple of a row, in the order of
    /// [`add_scaled_sparse`](crate::linalg::kernels::add_scaled_sparse).
    #[inline(always)]
    pub(crate) fn add_scaled(&self, target: &mut Table, scale: f32, row: usize) {
        for &column in self.columns(row).as_flattened() {
            let slot = &mut target[column as usize];
            *slot = scale.mul_add(self.values[column as usize], *slot);
        }
    }
}

/// The bits at the places of those that are wanted, next to each other.
#[inline(always)]
fn pick(picker: BitPicker, bits: &[[u8; GROUP]], wanted: &[[u8; GROUP]]) -> u32 {
    let (mut picked, mut first) = (0, 0);
    for (bits, wanted) in bits.iter().zip(wanted) {
        for (bits, wanted) in bits.as_chunks().0.iter().zip(wanted.as_chunks().0) {
            let mask = u64::from_le_bytes(*wanted);
            picked |= picker.pick(u64::from_le_bytes(*bits), mask) << first;
            first += mask.count_ones();
        }
    }
    picked as u32
}

/// A vector as a table; what lies beyond it is zero.
#[inline(always)]
pub(crate) fn table_of(vector: &[f32]) -> Table {
    let mut table = [0.0; COLUMNS + 1];
    table[..vector.len()].copy_from_slice(vector);
    table
}

#[cfg(test)]
mod tests {
    use super::super::{SparseRow, SparseRows};
    use super::*;
    use crate::linalg::kernels;

    const WIDTH: usize = 200;

    /// Rows of at most `longest` entries in `width` columns, the value of a column being a function
    /// of it.
    fn rows_of(width: usize, longest: usize) -> SparseRows {
        let (mut starts, mut indices) = (vec![0], Vec::new());
        while indices.len() < FEWEST {
            let row = starts.len();
            let count = longest - row % 5;
            // Ascending and different from row to row.
            let step = width / longest;
            indices.extend((0..count).map(|p| (p * step + (row * 7 + p) % step) as u32));
            starts.push(indices.len());
        }
        let value = |&index: &u32| match index {
            11 => 0.0,
            _ => (index as f32).sin(),
        };
        let values = indices.iter().map(value).collect();
        SparseRows::new(width, starts, indices, values).unwrap()
    }

    fn rows(longest: usize) -> SparseRows {
        rows_of(WIDTH, longest)
    }

    fn made(rows: &SparseRows) -> Option<Indicators> {
        Indicators::new(rows.columns(), rows.starts(), rows.indices(), rows.values())
    }

    fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|value| value.to_bits()).collect()
    }

    /// Tables that fit into registers, just or by far, and those that do not.
    #[test]
    fn sums_over_a_row_are_those_of_the_other_form_to_the_bit() {
        for (width, longest) in [
            (14, 14),
            (124, 15),
            (127, 16),
            (127, 17),
            (128, 16),
            (WIDTH, 14),
            (WIDTH, 40),
            (WIDTH, 64),
        ] {
            let model: Vec<f32> = (0..width).map(|i| (1.7 * i as f32).cos()).collect();
            let plain = rows_of(width, longest);
            let indicators = made(&plain).unwrap();
            let all: Vec<u32> = (0..plain.rows() as u32).rev().collect();
            let mut dots = vec![f32::NAN; all.len()];
            indicators.dots(&all, &model, 0.125, &mut dots);
            let (mut sum, mut expected) = (table_of(&model), model.clone());
            for (&row, found) in all.iter().zip(&dots) {
                let row = row as usize;
                let dot = 0.125 + kernels::sparse_dot(plain.row(row), &model);
                assert_eq!(found.to_bits(), dot.to_bits(), "{width} {longest} {row}");
                indicators.add_scaled(&mut sum, 0.3, row);
                kernels::add_scaled_sparse(&mut expected, 0.3, plain.row(row));
            }
            assert_eq!(bits(&sum[..width]), bits(&expected));
        }
    }

    /// Against sums in `f64`: 150 numbers of magnitude 1, added in any order, are rounded by less
    /// than 1e-5.
    #[test]
    fn marked_columns_are_found_in_every_row() {
        for (width, longest) in [(WIDTH, 14), (WIDTH, 33), (60, 12)] {
            let plain = rows_of(width, longest);
            let indicators = made(&plain).unwrap();
            for batch in [0, 1, 63, 64, 65, 150] {
                let taken: Vec<u32> = (0..batch).map(|j| j * 7 % plain.rows() as u32).collect();
                let scales: Vec<f32> = (0..batch).map(|j| (j as f32).sin()).collect();
                for count in [0, 1, 6, 8, 9, MARKED] {
                    let columns: Vec<u32> = (0..count)
                        .map(|i| (i * (width - 1) / MARKED) as u32)
                        .collect();
                    let mut sums = vec![0.25; count];
                    indicators.add_marked(&taken, &scales, &columns, &mut sums);
                    for (&sum, column) in sums.iter().zip(&columns) {
                        let mut expected = 0.25;
                        for (&row, &scale) in taken.iter().zip(&scales) {
                            let SparseRow { indices, values } = plain.row(row as usize);
                            if let Ok(place) = indices.binary_search(column) {
                                expected += f64::from(scale) * f64::from(values[place]);
                            }
                        }
                        let error = (f64::from(sum) - expected).abs();
                        assert!(
                            error < 1e-5,
                            "{width} {longest} {batch} {column}: {error:e}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn rows_of_another_kind_are_left_as_they_are() {
        assert!(made(&rows(14)).is_some());
        // Too long a row, or too many empty ones.
        assert!(made(&rows(65)).is_none());
        let plain = rows(14);
        let mut starts = plain.starts().to_vec();
        starts.extend(vec![plain.values().len(); 4 * plain.rows()]);
        let uneven = SparseRows::new(WIDTH, starts, plain.indices().into(), plain.values().into());
        assert!(made(&uneven.unwrap()).is_none());
        // One entry that differs from the others of its column.
        let mut values = plain.values().to_vec();
        values[77] = 2.0;
        let (starts, indices) = (plain.starts().to_vec(), plain.indices().to_vec());
        let changed = SparseRows::new(WIDTH, starts.clone(), indices.clone(), values).unwrap();
        assert!(made(&changed).is_none());
        // Too many columns, too few values.
        let wide = SparseRows::new(COLUMNS + 1, starts, indices, plain.values().into()).unwrap();
        assert!(made(&wide).is_none());
        let short = SparseRows::new(3, vec![0, 2], vec![0, 2], vec![1.0, 1.0]).unwrap();
        assert!(made(&short).is_none());
    }
}
