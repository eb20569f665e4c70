//! Sparse vectors, as the kernels read them.

use std::fmt;

use super::memory::prefetch;

/// A sparse vector, however it is stored: entries of column and value, columns ascending.
pub(crate) trait SparseVector: Copy {
    /// A vector without entries.
    const NONE: Self;

    /// What is stored of an entry.
    type Stored: Copy;

    /// The stored entries from the entry `first` on.
    fn stored(self, first: usize) -> impl Iterator<Item = Self::Stored>;

    /// Column and value of a stored entry.
    fn unpack(self, stored: Self::Stored) -> (u32, f32);

    /// The number of the entry's value, where values are stored as numbers (`data/packed.rs`); else
    /// 0.
    fn number(stored: Self::Stored) -> u8;

    /// Columns and values from the entry `first` on.
    #[inline(always)]
    fn entries(self, first: usize) -> impl Iterator<Item = (u32, f32)> {
        self.stored(first).map(
            #[inline(always)]
            move |stored| self.unpack(stored),
        )
    }

    /// All entries, four at a time, and those that are left over.
    fn fours(
        self,
    ) -> (
        impl Iterator<Item = [(u32, f32); 4]>,
        impl Iterator<Item = (u32, f32)>,
    );

    /// Asks for its memory while something else is computed ([`prefetch`]).
    fn prefetch(self);
}

/// One sparse row: `values[p]` stands in column `indices[p]`.
#[derive(Clone, Copy, PartialEq)]
pub struct SparseRow<'a> {
    /// The columns, ascending and without duplicates.
    pub indices: &'a [u32],
    /// The values in those columns.
    pub values: &'a [f32],
}

impl SparseVector for SparseRow<'_> {
    const NONE: Self = SparseRow {
        indices: &[],
        values: &[],
    };

    type Stored = (u32, f32);

    #[inline(always)]
    fn stored(self, first: usize) -> impl Iterator<Item = (u32, f32)> {
        let (indices, values) = (&self.indices[first..], &self.values[first..]);
        indices.iter().copied().zip(values.iter().copied())
    }

    #[inline(always)]
    fn unpack(self, stored: (u32, f32)) -> (u32, f32) {
        stored
    }

    #[inline(always)]
    fn number(_: (u32, f32)) -> u8 {
        0
    }

    #[inline(always)]
    fn fours(
        self,
    ) -> (
        impl Iterator<Item = [(u32, f32); 4]>,
        impl Iterator<Item = (u32, f32)>,
    ) {
        let (indices, _) = self.indices.as_chunks::<4>();
        let (values, _) = self.values.as_chunks::<4>();
        let fours = indices.iter().zip(values);
        let fours = fours.map(|(index, value)| std::array::from_fn(|p| (index[p], value[p])));
        (fours, self.entries(self.indices.len() / 4 * 4))
    }

    #[inline(always)]
    fn prefetch(self) {
        prefetch(self.indices);
        prefetch(self.values);
    }
}

impl fmt::Debug for SparseRow<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "SparseRow({} stored)", self.values.len())
    }
}
