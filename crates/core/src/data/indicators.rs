//! Sparse rows once more, in one byte a value, where a column's stored values are all the same: features that are yes or
//! no, scaled or not.
//!
//! A record of a9a takes 16 bytes in this form instead of 120, so that the records of a few clients stay next to the
//! processor that works on them, and rows have one length, which a processor can foresee. What is read back is the
//! stored value to the bit, and sums over a row have the same terms in the same order as in the other forms, and products of
//! zeros after them, which change nothing but the sign of a zero: the form depends on all records together, and no record's
//! numbers may depend on the others.

use super::packed::FEWEST;
use crate::linalg::with_room_on_large_pages;

/// Columns there may be; the byte that is left stands for none.
const COLUMNS: usize = 255;

/// Columns of a row that are read together.
const GROUP: usize = 16;

/// Longer rows are better off as they are.
const MOST_GROUPS: usize = 4;

/// Columns that can be marked at a time.
pub(crate) const MARKED: usize = 32;

/// One number per column, with room for the byte that stands for none.
pub(crate) type Table = [f32; COLUMNS + 1];

/// The columns of every row, all rows filled up to the same length, and the value of every column.
#[derive(Clone)]
pub(crate) struct Indicators {
    groups: Vec<[u8; GROUP]>,
    per_row: usize,
    values: Box<Table>,
}

impl Indicators {
    /// None if a column has two different values, there are too many columns, rows are too long or too uneven, or there
    /// are too few stored values to be worth it.
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
        let mut groups = with_room_on_large_pages(count * per_row);
        for row in rows {
            for group in 0..per_row {
                let own = indices[row.clone()].iter().skip(group * GROUP);
                let mut filled = [COLUMNS as u8; GROUP];
                filled
                    .iter_mut()
                    .zip(own)
                    .for_each(|(slot, &index)| *slot = index as u8);
                groups.push(filled);
            }
        }
        Some(Indicators {
            groups,
            per_row,
            values: table,
        })
    }

    /// The columns of a row, filled up with the one that is none.
    #[inline(always)]
    pub(crate) fn row(&self, row: usize) -> &[[u8; GROUP]] {
        &self.groups[row * self.per_row..][..self.per_row]
    }

    /// Adds `scale_j` times the value in `columns[i]`, where row `j` has one, to `sums[i]`: row after row, for at most
    /// [`MARKED`] columns. No branch depends on what a row holds.
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
        // Bit `i` of a column's marks says that it is `columns[i]`.
        let mut marks = [0u32; COLUMNS + 1];
        for (i, &column) in columns.iter().enumerate() {
            marks[column as usize] |= 1 << i;
        }
        for (rows, scales) in rows.chunks(BLOCK).zip(scales.chunks(BLOCK)) {
            let mut marked = [0; BLOCK];
            for (marked, &row) in marked.iter_mut().zip(rows) {
                for group in self.row(row as usize) {
                    for &column in group {
                        *marked |= marks[column as usize];
                    }
                }
            }
            let lanes = sums.chunks_mut(LANES).zip(columns.chunks(LANES));
            for (first, (sums, columns)) in (0..).step_by(LANES).zip(lanes) {
                let (mut sum, mut value) = ([0.0; LANES], [0.0; LANES]);
                sum[..sums.len()].copy_from_slice(sums);
                for (value, &column) in value.iter_mut().zip(columns) {
                    *value = self.values[column as usize];
                }
                for (&scale, &marked) in scales.iter().zip(&marked) {
                    for i in 0..LANES {
                        let mask = (marked >> (first + i) & 1).wrapping_neg();
                        let scale = f32::from_bits(scale.to_bits() & mask);
                        sum[i] = scale.mul_add(value[i], sum[i]);
                    }
                }
                sums.copy_from_slice(&sum[..sums.len()]);
            }
        }
    }

    /// A row's product with a vector, in the order of [`sparse_dot`](crate::linalg::kernels::sparse_dot).
    #[inline(always)]
    pub(crate) fn dot(&self, row: usize, vector: &Table) -> f32 {
        let mut sums = [0.0f32; 4];
        for group in self.row(row) {
            for (place, &column) in group.iter().enumerate() {
                let (value, factor) = (self.values[column as usize], vector[column as usize]);
                sums[place % 4] = value.mul_add(factor, sums[place % 4]);
            }
        }
        (sums[0] + sums[1]) + (sums[2] + sums[3])
    }

    /// Adds a multiple of a row, in the order of [`add_scaled_sparse`](crate::linalg::kernels::add_scaled_sparse).
    #[inline(always)]
    pub(crate) fn add_scaled(&self, target: &mut Table, scale: f32, row: usize) {
        for &column in self.row(row).as_flattened() {
            let slot = &mut target[column as usize];
            *slot = scale.mul_add(self.values[column as usize], *slot);
        }
    }
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

    /// Rows of at most `longest` entries, the value of a column being a function of it.
    fn rows(longest: usize) -> SparseRows {
        let (mut starts, mut indices) = (vec![0], Vec::new());
        while indices.len() < FEWEST {
            let row = starts.len();
            let count = longest - row % 5;
            // Ascending and different from row to row.
            let step = WIDTH / longest;
            indices.extend((0..count).map(|p| (p * step + (row * 7 + p) % step) as u32));
            starts.push(indices.len());
        }
        let value = |&index: &u32| match index {
            11 => 0.0,
            _ => (index as f32).sin(),
        };
        let values = indices.iter().map(value).collect();
        SparseRows::new(WIDTH, starts, indices, values).unwrap()
    }

    fn made(rows: &SparseRows) -> Option<Indicators> {
        Indicators::new(rows.columns(), rows.starts(), rows.indices(), rows.values())
    }

    fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|value| value.to_bits()).collect()
    }

    #[test]
    fn sums_over_a_row_are_those_of_the_other_form_to_the_bit() {
        let model: Vec<f32> = (0..WIDTH).map(|i| (1.7 * i as f32).cos()).collect();
        for longest in [14, 16, 17, 40, 64] {
            let plain = rows(longest);
            let indicators = made(&plain).unwrap();
            let table = table_of(&model);
            let (mut sum, mut expected) = (table_of(&model), model.clone());
            for row in 0..plain.rows() {
                let found = indicators.dot(row, &table);
                let dot = kernels::sparse_dot(plain.row(row), &model);
                assert_eq!(found.to_bits(), dot.to_bits(), "{longest} {row}");
                indicators.add_scaled(&mut sum, 0.3, row);
                kernels::add_scaled_sparse(&mut expected, 0.3, plain.row(row));
            }
            assert_eq!(bits(&sum[..WIDTH]), bits(&expected));
        }
    }

    #[test]
    fn marked_columns_are_found_row_after_row() {
        for longest in [14, 33] {
            let plain = rows(longest);
            let indicators = made(&plain).unwrap();
            let taken: Vec<u32> = (0..150).map(|j| j * 7 % plain.rows() as u32).collect();
            let scales: Vec<f32> = (0..150).map(|j| (j as f32).sin()).collect();
            for count in [0, 1, 6, 8, 9, MARKED] {
                let columns: Vec<u32> = (0..count).map(|i| (WIDTH - 1 - i * 6) as u32).collect();
                let mut sums = vec![0.25; count];
                indicators.add_marked(&taken, &scales, &columns, &mut sums);
                let mut expected = vec![0.25f32; count];
                for (&row, &scale) in taken.iter().zip(&scales) {
                    let SparseRow { indices, values } = plain.row(row as usize);
                    for (sum, column) in expected.iter_mut().zip(&columns) {
                        if let Ok(place) = indices.binary_search(column) {
                            *sum = scale.mul_add(values[place], *sum);
                        }
                    }
                }
                assert_eq!(bits(&sums), bits(&expected), "{longest} {count}");
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
