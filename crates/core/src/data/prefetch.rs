//! Asking for the rows of a random batch before they are read, so that a round does not wait for
//! main memory. No result depends on it, only time.

use super::packed::{RowSource, with_rows};
use super::{Dataset, Features};
use crate::linalg::LINE;
use crate::linalg::memory::prefetch;
use crate::linalg::sparse::SparseVector;

impl Dataset {
    /// Asks for these rows and all that belongs to them.
    pub(crate) fn prefetch(&self, rows: &[u32]) {
        if !self.finds_rows_itself() {
            self.prefetch_places(rows);
            self.prefetch_rows(rows);
        }
    }

    /// Whether rows are so short that the processor finds the next ones by itself while it works on
    /// those before: asking for them would cost more than it gains.
    fn finds_rows_itself(&self) -> bool {
        matches!(self.features(), Features::Sparse(sparse) if sparse.indicators().is_some())
    }

    /// Asks for what a row is found by (where it starts) and for its label and norm.
    fn prefetch_places(&self, rows: &[u32]) {
        for &row in rows {
            let row = row as usize;
            prefetch(&self.squared_norms()[row..=row]);
            match self.targets() {
                None => prefetch(&self.labels()[row..=row]),
                Some(targets) => prefetch(&targets.values()[row..=row]),
            }
            if let Features::Sparse(sparse) = self.features() {
                prefetch(&sparse.starts()[row..row + 2]);
            }
        }
    }

    /// Asks for the rows themselves, after [`prefetch_places`](Self::prefetch_places).
    #[inline]
    fn prefetch_rows(&self, rows: &[u32]) {
        for &row in rows {
            match self.features() {
                Features::Sparse(sparse) => {
                    with_rows!(sparse, |rows| rows.row(row as usize).prefetch())
                }
                Features::Dense(dense) => {
                    // The start is enough: the processor sees that a long row goes on.
                    let row = dense.row(row as usize);
                    prefetch(&row[..row.len().min(4 * LINE)]);
                }
            }
        }
    }
}

/// Asks for the first rows of a batch, some at a time, between the steps of another computation.
pub(crate) struct BatchPrefetch<'a> {
    data: &'a Dataset,
    rows: &'a [u32],
}

impl<'a> BatchPrefetch<'a> {
    /// More rows than this would push each other out of the cache.
    const MOST: usize = 128;

    pub(crate) fn new(data: &'a Dataset, batch: &'a [u32]) -> Self {
        let rows = match data.finds_rows_itself() {
            true => &[],
            false => &batch[..batch.len().min(Self::MOST)],
        };
        data.prefetch_places(rows);
        Self { data, rows }
    }

    /// Asks for one of `left` equal parts of the rows that have not been asked for.
    #[inline(always)]
    pub(crate) fn part(&mut self, left: usize) {
        let (now, later) = self.rows.split_at(self.rows.len().div_ceil(left.max(1)));
        self.data.prefetch_rows(now);
        self.rows = later;
    }
}
