//! SVRG with a loopless snapshot (Option II of Algorithm 3): differences to the gradients at a past
//! model, plus the full gradient there.
//!
//! `w^0 = x^0`; after round `t` all clients move their snapshot to `x^t` if the shared public coin
//! says so. The full pass over the records is made when the snapshot is first used.

use std::sync::Arc;

use super::{Clipping, EstimatorState, RoundInput, Scratch, add_differences};
use crate::linalg::bytes::{append_floats, floats};
use crate::objective::{Objective, ObjectiveError};
use crate::privacy::{KeptMean, RawEstimate};

/// Option II of Algorithm 3.
pub struct Svrg {
    difference_clip: Option<f64>,
    snapshot: Option<Snapshot>,
}

struct Snapshot {
    model: Arc<Vec<f32>>,
    fresh: bool,
    /// The weight that clips each record's gradient at the snapshot: clipped once, used in both
    /// terms.
    weights: Vec<f32>,
    mean: Option<KeptMean>,
}

impl Svrg {
    /// An estimator whose snapshot is the first model it sees.
    pub fn new(difference_clip: Option<f64>) -> Self {
        Self {
            difference_clip,
            snapshot: None,
        }
    }
}

impl EstimatorState for Svrg {
    fn estimate(
        &mut self,
        input: RoundInput<'_>,
        scratch: &mut Scratch,
        sum: &mut RawEstimate,
    ) -> Result<(), ObjectiveError> {
        let first = self.snapshot.is_none();
        let estimated = self.differences(input, scratch, sum);
        match estimated {
            Ok(()) => self.skip_round(input.model, input.snapshot),
            Err(_) if first => self.snapshot = None,
            Err(_) => {}
        }
        estimated
    }

    fn skip_round(&mut self, model: &Arc<Vec<f32>>, snapshot: bool) {
        let kept = self.snapshot.get_or_insert_with(|| Snapshot::at(model));
        if snapshot {
            kept.model = Arc::clone(model);
            kept.fresh = true;
        }
    }

    /// The snapshot's model is enough: weights and mean are functions of it and the records.
    fn save(&self) -> Vec<u8> {
        let mut state = Vec::new();
        if let Some(snapshot) = &self.snapshot {
            append_floats(&snapshot.model, &mut state);
        }
        state
    }

    fn restore(
        &mut self,
        state: &[u8],
        _records: usize,
        objective: &dyn Objective,
        _on_grid: bool,
    ) -> bool {
        let fits = state.is_empty() || state.len() == 4 * objective.dimension();
        if fits {
            self.snapshot =
                (!state.is_empty()).then(|| Snapshot::at(&Arc::new(floats(state).collect())));
        }
        fits
    }

    fn state_bytes(&self) -> usize {
        // The snapshot itself is shared with all clients that hold that model.
        self.snapshot.as_ref().map_or(0, |snapshot| {
            size_of_val(&snapshot.weights[..]) + snapshot.mean.as_ref().map_or(0, KeptMean::bytes)
        })
    }
}

impl Svrg {
    /// The estimate; of the state only what follows from the snapshot's model may change.
    fn differences(
        &mut self,
        input: RoundInput<'_>,
        scratch: &mut Scratch,
        sum: &mut RawEstimate,
    ) -> Result<(), ObjectiveError> {
        let snapshot = self
            .snapshot
            .get_or_insert_with(|| Snapshot::at(input.model));
        if snapshot.fresh {
            snapshot.refresh(input, scratch, sum)?;
            snapshot.fresh = false;
        }
        for rows in input.batch.chunks(input.chunk()) {
            scratch.compute_batch(input, rows, sum)?;
            snapshot.load(input, rows, scratch, sum)?;
            add_differences(input, rows, self.difference_clip, 1.0, scratch, sum);
        }
        if let Some(mean) = &snapshot.mean {
            sum.add_mean(mean, input.coordinates);
        }
        Ok(())
    }
}

impl Snapshot {
    fn at(model: &Arc<Vec<f32>>) -> Self {
        Self {
            model: Arc::clone(model),
            fresh: true,
            weights: Vec::new(),
            mean: None,
        }
    }

    fn refresh(
        &mut self,
        input: RoundInput<'_>,
        scratch: &mut Scratch,
        sum: &RawEstimate,
    ) -> Result<(), ObjectiveError> {
        self.weights.clear();
        let mean = self
            .mean
            .get_or_insert_with(|| KeptMean::zero(input.objective.dimension(), sum));
        mean.reset();
        let rows: Vec<u32> = (0..input.data.rows() as u32).collect();
        let Scratch {
            reference,
            norms,
            workspace,
            ..
        } = scratch;
        for rows in rows.chunks(input.chunk()) {
            let single = sum.needs_single_records();
            reference.compute(input, &self.model, rows, single, norms, workspace)?;
            self.weights.extend_from_slice(&reference.weights);
            mean.add(1, input.contribution(rows, reference), sum, workspace);
        }
        Ok(())
    }

    /// Computes `rows` at the snapshot into the scratch's `reference`, with the weights that
    /// clipped them when the snapshot was new.
    fn load(
        &self,
        input: RoundInput<'_>,
        rows: &[u32],
        scratch: &mut Scratch,
        sum: &RawEstimate,
    ) -> Result<(), ObjectiveError> {
        let Scratch {
            reference,
            norms,
            workspace,
            ..
        } = scratch;
        let unclipped = RoundInput {
            clipping: Clipping::None,
            ..input
        };
        let single = sum.needs_single_records();
        reference.compute(unclipped, &self.model, rows, single, norms, workspace)?;
        for (weight, &row) in reference.weights.iter_mut().zip(rows) {
            *weight = self.weights[row as usize];
        }
        reference.clear_unweighted();
        Ok(())
    }
}
