//! SVRG with a loopless snapshot: differences to a past model, plus the full gradient there.
//!
//! `w^0 = x^0`; after round `t` all clients move their snapshot to `x^t` if the shared public coin
//! says so. The full pass over the records is made when the snapshot is first used.

use std::sync::Arc;

use super::collector::Mean;
use super::{
    CHUNK, Clipping, Collector, Estimator, Factored, RoundInput, Scratch, Term, clip_differences,
    put_floats, take_floats,
};
use crate::objective::{Objective, Records};

/// Option II of Algorithm 3.
pub struct Svrg {
    difference_clip: Option<f64>,
    snapshot: Option<Snapshot>,
}

struct Snapshot {
    model: Arc<Vec<f32>>,
    fresh: bool,
    /// The weight that clips each record's gradient at the snapshot: clipped once, used in both terms.
    weights: Vec<f32>,
    mean: Option<Mean>,
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

impl Estimator for Svrg {
    fn estimate(&mut self, input: RoundInput<'_>, scratch: &mut Scratch, sum: &mut Collector) {
        let snapshot = self
            .snapshot
            .get_or_insert_with(|| Snapshot::at(input.model));
        if std::mem::take(&mut snapshot.fresh) {
            snapshot.refresh(input, scratch, sum);
        }
        for chunk in input.batch.chunks(CHUNK) {
            let alone = sum.alone();
            scratch.batch.compute(
                input,
                input.model,
                chunk,
                alone,
                &mut scratch.norms,
                &mut scratch.workspace,
            );
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
            reference.compute(unclipped, &snapshot.model, chunk, alone, norms, workspace);
            for (weight, &row) in reference.weights.iter_mut().zip(chunk) {
                *weight = snapshot.weights[row as usize];
            }
            reference.drop_weightless();
            let clipped = clip_differences(input, chunk, self.difference_clip, alone, scratch);
            add_differences(input, chunk, clipped, scratch, sum);
        }
        if let Some(mean) = &snapshot.mean {
            sum.add_mean(mean, input.coordinates);
        }
        self.sit_out(input.model, input.snapshot);
    }

    fn sit_out(&mut self, model: &Arc<Vec<f32>>, snapshot: bool) {
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
            put_floats(&snapshot.model, &mut state);
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
                (!state.is_empty()).then(|| Snapshot::at(&Arc::new(take_floats(state))));
        }
        fits
    }

    fn state_bytes(&self) -> usize {
        // The snapshot itself is shared with whoever holds that model.
        self.snapshot.as_ref().map_or(0, |snapshot| {
            4 * snapshot.weights.len() + snapshot.mean.as_ref().map_or(0, Mean::bytes)
        })
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

    fn refresh(&mut self, input: RoundInput<'_>, scratch: &mut Scratch, sum: &Collector) {
        self.weights.clear();
        let mean = self
            .mean
            .get_or_insert_with(|| Mean::zero(input.objective.dimension(), sum));
        mean.reset();
        let rows: Vec<u32> = (0..input.data.rows() as u32).collect();
        let Scratch {
            reference,
            norms,
            workspace,
            ..
        } = scratch;
        for chunk in rows.chunks(CHUNK) {
            reference.compute(input, &self.model, chunk, sum.alone(), norms, workspace);
            self.weights.extend_from_slice(&reference.weights);
            mean.add(1, input, chunk, reference, sum, workspace);
        }
    }
}

/// Adds the clipped differences of a chunk whose two sides stand in the scratch.
pub(super) fn add_differences(
    input: RoundInput<'_>,
    chunk: &[u32],
    clipped: bool,
    scratch: &mut Scratch,
    sum: &mut Collector,
) {
    let records = Records {
        data: input.data,
        rows: chunk,
    };
    let Scratch {
        batch,
        reference,
        scales,
        workspace,
        ..
    } = scratch;
    let (batch, reference): (&Factored, &Factored) = (batch, reference);
    let scales = clipped.then_some(scales.as_slice());
    sum.add(
        Term::Batch,
        input.objective,
        records,
        input.coordinates,
        batch,
        Some(reference),
        scales,
        workspace,
    );
}
