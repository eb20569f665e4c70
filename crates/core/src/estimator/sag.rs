//! SAG, the stochastic average gradient (Schmidt, Le Roux, Bach 2017), mixed with the minibatch:
//! none of the options of Algorithm 3.
//!
//! ```text
//! a 1/m sum_j h_j + (1 - a) 1/b sum_{j in B} g_j,     h_j = g_j at the record's last visit
//! ```
//!
//! The visits of the round are in the table already, and a record that has not been visited yet has
//! `h_j = 0`: there is no pass over all records at the start, and the first steps are short instead
//! of following gradients of the first model for long. With `a = 1` a record enters every round
//! with one vector of norm `G/m`, visited or not, which is what it enters full gradients with: a
//! message costs what one of GD costs, at the price of a minibatch. No gradient is subtracted, so
//! unlike SAGA's estimate this one is biased by the age of the table, and needs no clip of
//! differences.
//!
//! **Cost.** One gradient for each record of the batch, and SAGA's memory.

use super::saga::restore;
use super::table::Table;
use super::{EstimatorState, RoundInput, Scratch};
use crate::objective::{Objective, ObjectiveError};
use crate::privacy::{RawEstimate, Term};

/// A table of last visits whose mean is mixed with the minibatch's. The weights `a` and `1 - a` are
/// in the divisors of the estimate's terms.
pub struct Sag {
    /// Whether the minibatch has a weight of its own, which it has not for `a = 1`.
    mixed: bool,
    table: Option<Table>,
}

impl Sag {
    /// An estimator that has visited nothing yet.
    pub fn new(memory: f64) -> Self {
        Self {
            mixed: memory < 1.0,
            table: None,
        }
    }
}

impl EstimatorState for Sag {
    fn estimate(
        &mut self,
        input: RoundInput<'_>,
        scratch: &mut Scratch,
        sum: &mut RawEstimate,
    ) -> Result<(), ObjectiveError> {
        let known = self.table.is_some();
        let taken = self.table.take();
        let mut table = taken.unwrap_or_else(|| Table::unvisited(input, sum));
        let mixed = self.mixed;
        let visited = table.visit(input, scratch, sum, |rows, scratch, sum| {
            if mixed {
                let contribution = input.contribution(rows, &scratch.batch);
                let workspace = &mut scratch.workspace;
                sum.add(Term::Batch, contribution, input.coordinates, workspace);
            }
        });
        table.add_mean(input.coordinates, sum);
        if known || visited.is_ok() {
            self.table = Some(table);
        }
        visited
    }

    fn save(&self) -> Vec<u8> {
        let mut state = Vec::new();
        if let Some(table) = &self.table {
            table.save(&mut state);
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
        restore(&mut self.table, state, records, objective, on_grid)
    }

    fn state_bytes(&self) -> usize {
        self.table.as_ref().map_or(0, Table::bytes)
    }
}
