//! A second copy of sparse rows with four bytes per value instead of eight, for loops that read
//! rows at random.
//!
//! The rows of a random batch come from main memory, and waiting for them is a good part of a
//! round. Images have at most 256 different values, and so have binary features: a value is then
//! stored as a number of one byte, and together with its column, in two bytes, fits into one word.
//! What is read back is the original value to the bit.

use crate::linalg::memory::{prefetch, with_room_on_large_pages};
use crate::linalg::sparse::SparseVector;

/// How many different values there may be.
const VALUES: usize = 256;

/// Which multiple of `unit` a value is: the nearest whole number, so that it does not depend on how
/// the value was rounded.
pub(crate) fn steps(value: f32, unit: f32) -> u8 {
    (value / unit).round() as u8
}

/// Data with fewer stored values stay in the cache anyway.
pub(super) const FEWEST: usize = 1 << 14;

/// The stored values of [`SparseRows`](super::SparseRows), in the same order: the column in the
/// lower half of a word, the number of the value in the upper half. Where values are multiples of a
/// unit, that number is the multiple.
#[derive(Clone)]
pub(super) struct Packed {
    entries: Vec<u32>,
    values: Box<[f32; VALUES]>,
}

impl Packed {
    /// `None` if there are too many columns or different values, too few stored values to be worth
    /// it, or two different values that are the same multiple of the unit.
    pub(super) fn new(
        columns: usize,
        indices: &[u32],
        values: &[f32],
        unit: Option<f32>,
    ) -> Option<Packed> {
        if columns > usize::from(u16::MAX) + 1 || values.len() < FEWEST {
            return None;
        }
        let mut dictionary = Dictionary::new();
        let mut entries = with_room_on_large_pages(values.len());
        for (&index, &value) in indices.iter().zip(values) {
            entries.push(index | u32::from(dictionary.number(value)?) << 16);
        }
        let mut values = Box::new(dictionary.values);
        if let Some(unit) = unit {
            let (mut numbers, mut given) = ([0; VALUES], [false; VALUES]);
            for (number, &value) in numbers.iter_mut().zip(&dictionary.values[..dictionary.len]) {
                *number = steps(value, unit);
                values[usize::from(*number)] = value;
                if std::mem::replace(&mut given[usize::from(*number)], true) {
                    return None;
                }
            }
            for entry in &mut entries {
                *entry = *entry & 0xffff | u32::from(numbers[(*entry >> 16) as usize]) << 16;
            }
        }
        Some(Packed { entries, values })
    }
}

/// The different values so far, found by their bits: a hash table with open addressing.
struct Dictionary {
    values: [f32; VALUES],
    len: usize,
    /// The number of a value plus one, at the place of its hash or after it; zero where there is
    /// none.
    slots: [u16; Self::SLOTS],
}

impl Dictionary {
    const SLOTS: usize = 4 * VALUES;

    fn new() -> Self {
        Dictionary {
            values: [0.0; VALUES],
            len: 0,
            slots: [0; Self::SLOTS],
        }
    }

    /// The number of a value, a new one if the value is new; `None` when there are no numbers left.
    #[inline]
    fn number(&mut self, value: f32) -> Option<u8> {
        let hash = value.to_bits().wrapping_mul(0x9E37_79B1) as usize >> 22;
        for slot in (hash..).map(|place| place % Self::SLOTS) {
            match self.slots[slot] {
                0 if self.len == VALUES => return None,
                0 => {
                    self.values[self.len] = value;
                    self.len += 1;
                    self.slots[slot] = self.len as u16;
                    return Some((self.len - 1) as u8);
                }
                number if self.values[usize::from(number) - 1].to_bits() == value.to_bits() => {
                    return Some((number - 1) as u8);
                }
                _ => {}
            }
        }
        unreachable!("most slots are free")
    }
}

/// One row in packed form.
#[derive(Clone, Copy)]
pub(crate) struct PackedRow<'a> {
    entries: &'a [u32],
    values: &'a [f32; VALUES],
}

impl SparseVector for PackedRow<'_> {
    const NONE: Self = PackedRow {
        entries: &[],
        values: &[0.0; VALUES],
    };

    type Stored = u32;

    #[inline(always)]
    fn stored(self, first: usize) -> impl Iterator<Item = u32> {
        self.entries[first..].iter().copied()
    }

    #[inline(always)]
    fn unpack(self, stored: u32) -> (u32, f32) {
        (
            stored & 0xffff,
            self.values[usize::from(Self::number(stored))],
        )
    }

    #[inline(always)]
    fn number(stored: u32) -> u8 {
        (stored >> 16) as u8
    }

    #[inline(always)]
    fn fours(
        self,
    ) -> (
        impl Iterator<Item = [(u32, f32); 4]>,
        impl Iterator<Item = (u32, f32)>,
    ) {
        let (fours, _) = self.entries.as_chunks::<4>();
        let fours = fours.iter();
        let fours = fours.map(move |four| {
            four.map(
                #[inline(always)]
                |entry| self.unpack(entry),
            )
        });
        (fours, self.entries(self.entries.len() / 4 * 4))
    }

    #[inline(always)]
    fn prefetch(self) {
        prefetch(self.entries);
    }
}

/// Where sparse rows come from.
pub(crate) trait RowSource: Copy {
    /// One row.
    type Row: SparseVector;

    /// The row of this number.
    fn row(self, row: usize) -> Self::Row;

    /// The given rows in a block; rows beyond them are empty.
    #[inline(always)]
    fn block<const BLOCK: usize>(self, rows: &[u32]) -> [Self::Row; BLOCK] {
        let mut block = [Self::Row::NONE; BLOCK];
        for (slot, &row) in block.iter_mut().zip(rows) {
            *slot = self.row(row as usize);
        }
        block
    }
}

/// Rows in packed form.
#[derive(Clone, Copy)]
pub(crate) struct PackedRows<'a> {
    starts: &'a [usize],
    packed: &'a Packed,
}

impl<'a> PackedRows<'a> {
    pub(super) fn new(starts: &'a [usize], packed: &'a Packed) -> Self {
        PackedRows { starts, packed }
    }
}

impl<'a> RowSource for PackedRows<'a> {
    type Row = PackedRow<'a>;

    #[inline(always)]
    fn row(self, row: usize) -> PackedRow<'a> {
        PackedRow {
            entries: &self.packed.entries[self.starts[row]..self.starts[row + 1]],
            values: &self.packed.values,
        }
    }
}

/// Runs the same code for packed rows, where there are any, and for plain ones.
macro_rules! with_rows {
    ($sparse:expr, |$rows:ident| $work:expr) => {
        match $sparse.packed() {
            Some($rows) => $work,
            None => {
                let $rows = $sparse;
                $work
            }
        }
    };
}
pub(crate) use with_rows;

#[cfg(test)]
mod tests {
    use super::super::SparseRows;
    use super::*;

    /// As many rows as the stored values need, of 7 values each.
    fn rows(values: Vec<f32>) -> SparseRows {
        let starts = (0..=values.len() / 7).map(|row| 7 * row).collect();
        let indices = (0..values.len()).map(|p| (p % 7 * 9000) as u32).collect();
        SparseRows::new(65536, starts, indices, values).unwrap()
    }

    #[test]
    fn packed_rows_are_the_rows_to_the_bit() {
        let stored = FEWEST.next_multiple_of(7);
        let values = |different: usize| {
            let value = |p: usize| match p % different {
                0 => -0.0,
                number => (number as f32).sin(),
            };
            rows((0..stored).map(value).collect())
        };
        for different in [1, 2, 255, 256] {
            let plain = values(different);
            let packed = Packed::new(65536, plain.indices(), plain.values(), None).unwrap();
            let packed = PackedRows::new(plain.starts(), &packed);
            for row in 0..plain.rows() {
                for first in [0, 3, 7] {
                    let bits = |(index, value): (u32, f32)| (index, value.to_bits());
                    let found: Vec<_> = packed.row(row).entries(first).map(bits).collect();
                    let expected: Vec<_> = plain.row(row).entries(first).map(bits).collect();
                    assert_eq!(found, expected);
                }
                let (fours, rest) = packed.row(row).fours();
                let found: Vec<_> = fours.flatten().chain(rest).collect();
                let (fours, rest) = plain.row(row).fours();
                let expected: Vec<_> = fours.flatten().chain(rest).collect();
                assert_eq!(found, expected);
                assert_eq!(expected, plain.row(row).entries(0).collect::<Vec<_>>());
            }
        }
        let plain = values(257);
        assert!(Packed::new(65536, plain.indices(), plain.values(), None).is_none());
        let plain = values(3);
        assert!(Packed::new(65537, plain.indices(), plain.values(), None).is_none());
        assert!(Packed::new(9, &[8; FEWEST - 1], &[1.0; FEWEST - 1], None).is_none());
    }

    /// With a unit, numbers of values are their numbers of steps, whatever the order in which
    /// values are met.
    #[test]
    fn numbers_of_values_are_their_steps() {
        let unit = 1.0 / 255.0;
        let stored = FEWEST.next_multiple_of(7);
        // Not quite whole steps, as after scaling; every one of 256, the highest first.
        let value = |p: usize| (255 - p % 256) as f32 * unit * (1.0 + 1e-6);
        let plain = rows((0..stored).map(value).collect());
        let pack = |unit| Packed::new(65536, plain.indices(), plain.values(), unit).unwrap();
        let (renumbered, numbered) = (pack(Some(unit)), pack(None));
        assert_ne!(renumbered.entries, numbered.entries);
        let packed = PackedRows::new(plain.starts(), &renumbered);
        for row in 0..plain.rows() {
            let found = packed.row(row).stored(0);
            for (stored, (index, value)) in found.zip(plain.row(row).entries(0)) {
                assert_eq!(PackedRow::number(stored), steps(value, unit));
                let (column, found) = packed.row(row).unpack(stored);
                assert_eq!((column, found.to_bits()), (index, value.to_bits()));
            }
        }
    }

    #[test]
    fn two_values_with_one_number_of_steps_are_refused() {
        let stored = FEWEST.next_multiple_of(7);
        let packs = |pair: [f32; 2], unit| {
            let plain = rows((0..stored).map(|p| pair[p % 2]).collect());
            Packed::new(65536, plain.indices(), plain.values(), unit).is_some()
        };
        assert!(packs([3.0, 4.0], Some(1.0)));
        for pair in [[3.0, 3.0f32.next_up()], [255.0, 300.0], [0.0, -7.0]] {
            assert!(packs(pair, None) && !packs(pair, Some(1.0)), "{pair:?}");
        }
    }
}
