//! SAGA (Option III of Algorithm 3): differences to the gradients of a table of last visits, plus
//! the mean of the table as it was before the round.

use super::table::Table;
use super::{EstimatorState, RoundInput, Scratch, add_differences};
use crate::objective::{Objective, ObjectiveError};
use crate::privacy::RawEstimate;

/// Option III of Algorithm 3.
pub struct Saga {
    difference_clip: Option<f64>,
    table: Option<Table>,
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

impl EstimatorState for Saga {
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
        // As it was before this round's visits.
        table.add_mean(input.coordinates, sum);
        let clip = self.difference_clip;
        let visited = table.visit(input, scratch, sum, |rows, scratch, sum| {
            add_differences(input, rows, clip, 1.0, scratch, sum);
        });
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

/// Replaces a table by that of a saved state, an empty one where there was none yet; `false`, with
/// nothing changed, if the state does not fit.
pub(super) fn restore(
    table: &mut Option<Table>,
    state: &[u8],
    records: usize,
    objective: &dyn Objective,
    on_grid: bool,
) -> bool {
    let restored = Table::restore(state, records, objective, on_grid);
    let fits = state.is_empty() || restored.is_some();
    if fits {
        *table = restored.filter(|_| !state.is_empty());
    }
    fits
}
