//! SAGA (Option III of Algorithm 3): a table holds the gradient of every record at its last visit.
//!
//! **Cost.** The table holds factors, not gradients: one number per record for logistic regression,
//! 138 (and the clip weight: 556 bytes) for the 784-64-10 network instead of 50,890. The mean of
//! the table is kept on all coordinates and corrected for the records of each batch.

use super::{CHUNK, Estimator, Factored, RoundInput, Scratch, add_differences};
use crate::linalg::bytes::{append_floats, floats};
use crate::objective::{Objective, ObjectiveError};
use crate::privacy::{KeptMean, RawEstimate};

/// Option III of Algorithm 3.
pub struct Saga {
    difference_clip: Option<f64>,
    table: Option<Table>,
}

struct Table {
    gradients: Factored,
    mean: KeptMean,
}

impl Saga {
    /// An estimator whose table is filled at the first model it sees.
    pub fn new(difference_clip: Option<f64>) -> Self {
        Self {
            difference_clip,
            table: None,
        }
    }
}

impl Estimator for Saga {
    fn estimate(
        &mut self,
        input: RoundInput<'_>,
        scratch: &mut Scratch,
        sum: &mut RawEstimate,
    ) -> Result<(), ObjectiveError> {
        let known = self.table.is_some();
        let mut table = match self.table.take() {
            Some(table) => table,
            None => Table::fill(input, scratch, sum)?,
        };
        let visited = table.visit(input, self.difference_clip, scratch, sum);
        if known || visited.is_ok() {
            self.table = Some(table);
        }
        visited
    }

    /// Factors, then weights, then the mean: what was remembered depends on secret coins, and in
    /// floating point the mean on the order of visits.
    fn save(&self) -> Vec<u8> {
        let mut state = Vec::new();
        if let Some(table) = &self.table {
            append_floats(&table.gradients.factors, &mut state);
            append_floats(&table.gradients.weights, &mut state);
            table.mean.save(&mut state);
        }
        state
    }

    fn restore(
        &mut self,
        state: &[u8],
        records: usize,
        objective: &dyn Objective,
        on_grid: bool,
    ) -> bool {
        if state.is_empty() {
            self.table = None;
            return true;
        }
        let factors = 4 * records * objective.factor_len();
        let weights = factors + 4 * records;
        let end = weights + objective.dimension() * if on_grid { 8 } else { 4 };
        if state.len() != end {
            return false;
        }
        self.table = Some(Table {
            gradients: Factored {
                factors: floats(&state[..factors]).collect(),
                weights: floats(&state[factors..weights]).collect(),
            },
            mean: KeptMean::restore(&state[weights..], on_grid),
        });
        true
    }

    fn state_bytes(&self) -> usize {
        self.table.as_ref().map_or(0, |table| {
            4 * (table.gradients.factors.len() + table.gradients.weights.len()) + table.mean.bytes()
        })
    }
}

impl Table {
    fn fill(
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

    /// The estimate, and what the batch's visits leave in the table; nothing if the objective fails.
    fn visit(
        &mut self,
        input: RoundInput<'_>,
        difference_clip: Option<f64>,
        scratch: &mut Scratch,
        sum: &mut RawEstimate,
    ) -> Result<(), ObjectiveError> {
        // The mean of the table as it was before this round's visits.
        sum.add_mean(&self.mean, input.coordinates);
        let repeats = !input.batch.is_sorted_by(|one, next| one < next);
        // What may fail is computed whole before the table changes. It is not more than the table.
        let chunk = match input.objective.elsewhere() {
            Some(_) => input.batch.len().max(1),
            None => CHUNK,
        };
        for rows in input.batch.chunks(chunk) {
            self.load(input, rows, scratch, sum)?;
            add_differences(input, rows, difference_clip, 1.0, scratch, sum);
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
