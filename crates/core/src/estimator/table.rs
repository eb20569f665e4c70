//! The table of last visits, which SAGA and SAG keep: every record's gradient at the model at which
//! it was last in a batch, and the mean of all of them.
//!
//! **Guarantee.** A record's entry depends on that record, on models and on its own coins alone,
//! and has norm `G` at most. On a grid the mean is the exact sum of the entries over `m`.
//!
//! **Cost.** The table holds factors, not gradients: one number per record for logistic regression,
//! 138 (and the clip weight: 556 bytes) for the 784-64-10 network instead of 50,890. The mean of
//! the table is kept on all coordinates and corrected for the records of each batch.

use super::{CHUNK, Factored, RoundInput, Scratch};
use crate::linalg::bytes::{append_floats, floats};
use crate::objective::{Coordinates, Objective, ObjectiveError};
use crate::privacy::{KeptMean, RawEstimate};

/// Gradients at last visits, and their mean.
pub(super) struct Table {
    gradients: Factored,
    mean: KeptMean,
}

impl Table {
    /// A table of no visits: every entry is zero.
    pub(super) fn unvisited(input: RoundInput<'_>, sum: &RawEstimate) -> Self {
        let records = input.data.rows();
        Self {
            gradients: Factored {
                factors: vec![0.0; records * input.objective.factor_len()],
                weights: vec![0.0; records],
            },
            mean: KeptMean::zero(input.objective.dimension(), sum),
        }
    }

    /// A table of visits at the model of this round.
    pub(super) fn fill(
        input: RoundInput<'_>,
        scratch: &mut Scratch,
        sum: &RawEstimate,
    ) -> Result<Self, ObjectiveError> {
        let mut table = Self {
            gradients: Factored::default(),
            mean: KeptMean::zero(input.objective.dimension(), sum),
        };
        let rows: Vec<u32> = (0..input.data.rows() as u32).collect();
        let Factored { factors, weights } = &mut table.gradients;
        factors.reserve_exact(rows.len() * input.objective.factor_len());
        weights.reserve_exact(rows.len());
        for rows in rows.chunks(input.chunk()) {
            scratch.compute_batch(input, rows, sum)?;
            let Scratch {
                batch, workspace, ..
            } = &mut *scratch;
            factors.extend_from_slice(&batch.factors);
            weights.extend_from_slice(&batch.weights);
            let contribution = input.contribution(rows, batch);
            table.mean.add(1, contribution, sum, workspace);
        }
        Ok(table)
    }

    /// Visits the batch: `use_entries` is called with every part of it, its gradients in the
    /// scratch's `batch` and the entries of the table in `reference`; the table then holds those
    /// gradients. Nothing changes in it if the objective fails.
    pub(super) fn visit(
        &mut self,
        input: RoundInput<'_>,
        scratch: &mut Scratch,
        sum: &mut RawEstimate,
        mut use_entries: impl FnMut(&[u32], &mut Scratch, &mut RawEstimate),
    ) -> Result<(), ObjectiveError> {
        let repeats = !input.batch.is_sorted_by(|one, next| one < next);
        // What may fail is computed whole before the table changes. It is not more than the table.
        let chunk = match input.objective.elsewhere() {
            Some(_) => input.batch.len().max(1),
            None => CHUNK,
        };
        for rows in input.batch.chunks(chunk) {
            self.load(input, rows, scratch, sum)?;
            use_entries(rows, scratch, sum);
            if !repeats {
                self.remember(input, rows, scratch, sum);
            }
        }
        if repeats {
            // A record that was visited twice is remembered once.
            let mut rows = input.batch.to_vec();
            rows.sort_unstable();
            rows.dedup();
            for rows in rows.chunks(chunk) {
                self.load(input, rows, scratch, sum)?;
                self.remember(input, rows, scratch, sum);
            }
        }
        Ok(())
    }

    /// Adds the mean of the entries, as they are now.
    pub(super) fn add_mean(&self, coordinates: Coordinates<'_>, sum: &mut RawEstimate) {
        sum.add_mean(&self.mean, coordinates);
    }

    /// Appends factors, then weights, then the mean: what was remembered depends on secret coins,
    /// and in floating point the mean on the order of visits.
    pub(super) fn save(&self, state: &mut Vec<u8>) {
        append_floats(&self.gradients.factors, state);
        append_floats(&self.gradients.weights, state);
        self.mean.save(state);
    }

    /// The table of a saved state of a client with `records` records; `None` if it does not fit.
    pub(super) fn restore(
        state: &[u8],
        records: usize,
        objective: &dyn Objective,
        on_grid: bool,
    ) -> Option<Self> {
        let factors = 4 * records * objective.factor_len();
        let weights = factors + 4 * records;
        let end = weights + objective.dimension() * if on_grid { 8 } else { 4 };
        (state.len() == end).then(|| Self {
            gradients: Factored {
                factors: floats(&state[..factors]).collect(),
                weights: floats(&state[factors..weights]).collect(),
            },
            mean: KeptMean::restore(&state[weights..], on_grid),
        })
    }

    /// Bytes of memory.
    pub(super) fn bytes(&self) -> usize {
        4 * (self.gradients.factors.len() + self.gradients.weights.len()) + self.mean.bytes()
    }

    /// Computes `rows` at the current model into the scratch's `batch`, and copies what the table
    /// holds for them into `reference`.
    fn load(
        &self,
        input: RoundInput<'_>,
        rows: &[u32],
        scratch: &mut Scratch,
        sum: &RawEstimate,
    ) -> Result<(), ObjectiveError> {
        scratch.compute_batch(input, rows, sum)?;
        let len = input.objective.factor_len();
        let Factored { factors, weights } = &mut scratch.reference;
        factors.clear();
        weights.clear();
        for &row in rows {
            let row = row as usize;
            factors.extend_from_slice(&self.gradients.factors[row * len..(row + 1) * len]);
            weights.push(self.gradients.weights[row]);
        }
        Ok(())
    }

    /// Replaces what the table holds for `rows` by their gradients at the current model.
    fn remember(
        &mut self,
        input: RoundInput<'_>,
        rows: &[u32],
        scratch: &mut Scratch,
        sum: &RawEstimate,
    ) {
        let Scratch {
            batch,
            reference,
            workspace,
            ..
        } = scratch;
        for (sign, gradients) in [(1, &*batch), (-1, &*reference)] {
            let contribution = input.contribution(rows, gradients);
            self.mean.add(sign, contribution, sum, workspace);
        }
        let len = input.objective.factor_len();
        for (j, &row) in rows.iter().enumerate() {
            let row = row as usize;
            self.gradients.factors[row * len..(row + 1) * len]
                .copy_from_slice(&batch.factors[j * len..(j + 1) * len]);
            self.gradients.weights[row] = batch.weights[j];
        }
    }
}
