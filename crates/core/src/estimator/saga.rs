//! SAGA: every record remembers the gradient of its last visit.
//!
//! The table holds factors, not gradients: one number per record for logistic regression,
//! 138 (and the clip weight: 556 bytes) for the 784-64-10 network instead of 50,890. The mean of
//! the table is kept on all coordinates and corrected for the records of each batch.

use super::collector::Mean;
use super::svrg::add_differences;
use super::{
    CHUNK, Collector, Estimator, Factored, RoundInput, Scratch, clip_differences, put_floats,
    take_floats,
};
use crate::objective::Objective;

/// Option III of Algorithm 3.
pub struct Saga {
    difference_clip: Option<f64>,
    table: Option<Table>,
}

struct Table {
    gradients: Factored,
    mean: Mean,
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
    fn estimate(&mut self, input: RoundInput<'_>, scratch: &mut Scratch, sum: &mut Collector) {
        let table = self
            .table
            .get_or_insert_with(|| Table::fill(input, scratch, sum));
        // The mean of the table as it was before this round's visits.
        sum.add_mean(&table.mean, input.coordinates);
        let repeats = !input.batch.is_sorted_by(|one, next| one < next);
        for chunk in input.batch.chunks(CHUNK) {
            scratch.load(input, chunk, table, sum);
            let clipped =
                clip_differences(input, chunk, self.difference_clip, sum.alone(), scratch);
            add_differences(input, chunk, clipped, scratch, sum);
            if !repeats {
                table.remember(input, chunk, scratch, sum);
            }
        }
        if repeats {
            // A record that was visited twice is remembered once.
            let mut rows = input.batch.to_vec();
            rows.sort_unstable();
            rows.dedup();
            for chunk in rows.chunks(CHUNK) {
                scratch.load(input, chunk, table, sum);
                table.remember(input, chunk, scratch, sum);
            }
        }
    }

    /// Factors, then weights, then the mean: what was remembered depends on secret coins, and in
    /// floating point the mean on the order of visits.
    fn save(&self) -> Vec<u8> {
        let mut state = Vec::new();
        if let Some(table) = &self.table {
            put_floats(&table.gradients.factors, &mut state);
            put_floats(&table.gradients.weights, &mut state);
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
                factors: take_floats(&state[..factors]),
                weights: take_floats(&state[factors..weights]),
            },
            mean: Mean::restore(&state[weights..], on_grid),
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
    fn fill(input: RoundInput<'_>, scratch: &mut Scratch, sum: &Collector) -> Self {
        let mut table = Self {
            gradients: Factored::default(),
            mean: Mean::zero(input.objective.dimension(), sum),
        };
        let rows: Vec<u32> = (0..input.data.rows() as u32).collect();
        table
            .gradients
            .factors
            .reserve_exact(rows.len() * input.objective.factor_len());
        table.gradients.weights.reserve_exact(rows.len());
        let Scratch {
            reference,
            norms,
            workspace,
            ..
        } = scratch;
        for chunk in rows.chunks(CHUNK) {
            reference.compute(input, input.model, chunk, sum.alone(), norms, workspace);
            table
                .gradients
                .factors
                .extend_from_slice(&reference.factors);
            table
                .gradients
                .weights
                .extend_from_slice(&reference.weights);
            table.mean.add(1, input, chunk, reference, sum, workspace);
        }
        table
    }

    /// Replaces what the table holds for `rows` by their gradients at the current model.
    fn remember(
        &mut self,
        input: RoundInput<'_>,
        rows: &[u32],
        scratch: &mut Scratch,
        sum: &Collector,
    ) {
        self.mean
            .add(1, input, rows, &scratch.batch, sum, &mut scratch.workspace);
        self.mean.add(
            -1,
            input,
            rows,
            &scratch.reference,
            sum,
            &mut scratch.workspace,
        );
        let len = input.objective.factor_len();
        for (j, &row) in rows.iter().enumerate() {
            let row = row as usize;
            self.gradients.factors[row * len..(row + 1) * len]
                .copy_from_slice(&scratch.batch.factors[j * len..(j + 1) * len]);
            self.gradients.weights[row] = scratch.batch.weights[j];
        }
    }
}

impl Scratch {
    /// Computes `rows` at the current model into `batch` and looks them up in the table into
    /// `reference`.
    fn load(&mut self, input: RoundInput<'_>, rows: &[u32], table: &Table, sum: &Collector) {
        self.batch.compute(
            input,
            input.model,
            rows,
            sum.alone(),
            &mut self.norms,
            &mut self.workspace,
        );
        let len = input.objective.factor_len();
        self.reference.factors.clear();
        self.reference.weights.clear();
        for &row in rows {
            let row = row as usize;
            self.reference
                .factors
                .extend_from_slice(&table.gradients.factors[row * len..(row + 1) * len]);
            self.reference.weights.push(table.gradients.weights[row]);
        }
    }
}
