//! Local gradient estimates: what a client computes before noise is added (Options I to III of
//! Algorithm 3).
//!
//! | estimator | estimate of `grad f_i(x)` |
//! | --- | --- |
//! | GD | `1/m sum_j g_j` |
//! | SGD | `1/b sum_{j in B} g_j` |
//! | SVRG | `1/b sum_{j in B} D(g_j - h_j) + 1/m sum_j h_j`, `h_j` at the snapshot |
//! | SAGA | the same, `h_j` from the table of last visits |
//! | SAG | `(1-a)/b sum_{j in B} g_j + a/m sum_j h_j`, `h_j` from that table, `B` visited already |
//! | recursive | `1/b sum_{j in B} D(g_j - a h_j)`, `h_j` at the model before, or as SGD |
//!
//! `g_j` and `h_j` are record gradients, each clipped to `G` once; `D` clips the difference to
//! `C_A`. Every record's share is bounded one by one, which is what the accountant relies on: under
//! [`Clipping::None`] (the authors' experiments clip the whole estimate instead) no claim can be
//! made.
//!
//! **Guarantees.** Divisors are the constants `b` and `m`. `h_j` is the same vector in both of its
//! terms. Coins are fresh in every round, and all state that depends on them (SAGA's table) is
//! indexed by record. A record whose gradient is not finite contributes zero.
//!
//! **Cost.** One or two passes over the batch; on the coordinates that travel only, except for
//! SVRG's snapshots and SAGA's table mean, which are kept on all coordinates.

mod recursive;
mod sag;
mod saga;
mod svrg;
mod table;

use std::ops::Range;
use std::sync::Arc;

use soteriafl_accountant::Estimator;
use soteriafl_accountant::mutation::{Mutation, active};

use crate::data::Dataset;
use crate::linalg::memory::thread_buffer;
use crate::linalg::vectorised;
use crate::objective::{
    ClipBound, Coordinates, Gradients, Objective, ObjectiveError, Records, Workspace,
};
use crate::privacy::{Contribution, RawEstimate, Term};

pub use recursive::{Increment, Recursive};
pub use sag::Sag;
pub use saga::Saga;
pub use svrg::Svrg;

/// Records handled at a time: bounds the memory for factors, and keeps them in the cache.
const CHUNK: usize = 256;

/// With secure noise a record with a larger factor counts as not finite. Together with the bound on
/// features ([`crate::data::LARGEST_VALUE`]) it keeps the absolute rounding errors of subnormal
/// numbers far below the clip.
const LARGEST_FACTOR: f32 = crate::data::LARGEST_VALUE;

/// What each record's clip bounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Clipping {
    /// Records are not clipped (no noise, or the authors' whole-estimate clipping).
    None,
    /// Every record's gradient to this norm.
    Record(f64),
    /// Every record's gradient, restricted to the coordinates that travel, to this norm.
    Selected(f64),
}

/// What an estimator sees in a round.
#[derive(Clone, Copy)]
pub struct RoundInput<'a> {
    /// The loss.
    pub objective: &'a dyn Objective,
    /// The client's records.
    pub data: &'a Dataset,
    /// The model `x^t`.
    pub model: &'a Arc<Vec<f32>>,
    /// The records drawn for this round: ascending, unless they were drawn with replacement.
    pub batch: &'a [u32],
    /// The coordinates on which the estimate is wanted.
    pub coordinates: Coordinates<'a>,
    /// How records are clipped.
    pub clipping: Clipping,
    /// The shared snapshot coin of this round (SVRG).
    pub snapshot: bool,
    /// Whether an increment is asked for, and how it is clipped (recursive estimates).
    pub increment: Option<Increment>,
}

impl<'a> RoundInput<'a> {
    fn records<'b>(&self, rows: &'b [u32]) -> Records<'b>
    where
        'a: 'b,
    {
        Records {
            data: self.data,
            rows,
        }
    }

    /// The bound on every record's gradient, if there is one.
    fn clip(&self) -> Option<ClipBound<'a>> {
        let (norm, over) = match self.clipping {
            Clipping::None => return None,
            Clipping::Record(norm) => (norm, Coordinates::All),
            Clipping::Selected(norm) => (norm, self.coordinates),
        };
        Some(ClipBound { norm, over })
    }

    /// How many records are handled at a time.
    fn chunk(&self) -> usize {
        let elsewhere = self.objective.elsewhere();
        elsewhere.map_or(CHUNK, |elsewhere| elsewhere.most_records().max(1))
    }

    /// What gradients of some records add to a sum, as they are.
    fn contribution<'b>(&self, rows: &'b [u32], gradients: &'b Factored) -> Contribution<'b>
    where
        'a: 'b,
    {
        Contribution {
            objective: self.objective,
            records: self.records(rows),
            gradients: gradients.all(),
            references: None,
            scales: None,
        }
    }
}

/// A local gradient estimator with its state.
pub trait EstimatorState: Send {
    /// Adds this round's estimate to `sum`.
    ///
    /// # Errors
    /// When the objective fails. The estimator's state is then as it was, and the sum of no use.
    fn estimate(
        &mut self,
        input: RoundInput<'_>,
        scratch: &mut Scratch,
        sum: &mut RawEstimate,
    ) -> Result<(), ObjectiveError>;

    /// A round in which the client takes no part: only public state is updated.
    fn skip_round(&mut self, _model: &Arc<Vec<f32>>, _snapshot: bool) {}

    /// How far `model` is from the last one that the client has seen (recursive estimates): public,
    /// as both models are.
    fn distance(&self, _model: &[f32]) -> f64 {
        0.0
    }

    /// Bytes of state kept between rounds.
    fn state_bytes(&self) -> usize {
        0
    }

    /// The state kept between rounds, for [`restore`](Self::restore).
    fn save(&self) -> Vec<u8> {
        Vec::new()
    }

    /// Restores a saved state of a client with `records` records; `on_grid` says which kind of sums
    /// it keeps. `false`, with nothing changed, if the state does not fit.
    fn restore(
        &mut self,
        state: &[u8],
        _records: usize,
        _objective: &dyn Objective,
        _on_grid: bool,
    ) -> bool {
        state.is_empty()
    }
}

/// The state of a new client with this estimator, whose differences are clipped to what a client
/// really clips to ([`Estimator::difference_clip`] or a little less).
pub fn with_state(estimator: Estimator, difference_clip: Option<f64>) -> Box<dyn EstimatorState> {
    match estimator {
        Estimator::Gd | Estimator::Sgd => Box::new(Minibatch),
        Estimator::Svrg { .. } => Box::new(Svrg::new(difference_clip)),
        Estimator::Saga { .. } => Box::new(Saga::new(difference_clip)),
        Estimator::Sag { memory } => Box::new(Sag::new(memory)),
        Estimator::Recursive(recursion) => Box::new(Recursive::new(&recursion)),
    }
}

/// The local full gradient or a minibatch of it (GD, SGD).
#[derive(Debug)]
pub struct Minibatch;

impl EstimatorState for Minibatch {
    fn estimate(
        &mut self,
        input: RoundInput<'_>,
        scratch: &mut Scratch,
        sum: &mut RawEstimate,
    ) -> Result<(), ObjectiveError> {
        if let Some(elsewhere) = input.objective.elsewhere() {
            let (model, coordinates, clip) = (input.model, input.coordinates, input.clip());
            let records = input.records(input.batch);
            let added = sum.add_whole(Term::Batch, |scale, sum| {
                elsewhere.add_clipped(model, records, clip, coordinates, scale, sum)
            });
            if let Some(added) = added {
                return added;
            }
        }
        for rows in input.batch.chunks(input.chunk()) {
            scratch.compute_batch(input, rows, sum)?;
            let contribution = input.contribution(rows, &scratch.batch);
            let coordinates = input.coordinates;
            sum.add(
                Term::Batch,
                contribution,
                coordinates,
                &mut scratch.workspace,
            );
        }
        Ok(())
    }
}

/// Buffers of one thread, reused from round to round and from client to client.
#[derive(Debug)]
pub struct Scratch {
    /// Scratch memory for objectives.
    pub workspace: Workspace,
    norms: Vec<f64>,
    scales: Vec<f32>,
    batch: Factored,
    reference: Factored,
}

impl Default for Scratch {
    fn default() -> Self {
        Self {
            workspace: Workspace::new(),
            norms: thread_buffer(0),
            scales: thread_buffer(0),
            batch: Factored::for_thread(),
            reference: Factored::for_thread(),
        }
    }
}

impl Scratch {
    /// Takes a buffer back for later rounds.
    pub fn recycle(&mut self, values: Vec<f32>) {
        self.workspace.put(values);
    }

    /// Computes the clipped gradients of `rows` at the current model into `batch`.
    fn compute_batch(
        &mut self,
        input: RoundInput<'_>,
        rows: &[u32],
        sum: &RawEstimate,
    ) -> Result<(), ObjectiveError> {
        let single = sum.needs_single_records();
        let (norms, workspace) = (&mut self.norms, &mut self.workspace);
        self.batch
            .compute(input, input.model, rows, single, norms, workspace)
    }

    /// Computes the clipped gradients of `rows` at another model into `reference`.
    fn compute_reference(
        &mut self,
        input: RoundInput<'_>,
        model: &[f32],
        rows: &[u32],
        sum: &RawEstimate,
    ) -> Result<(), ObjectiveError> {
        let single = sum.needs_single_records();
        let (norms, workspace) = (&mut self.norms, &mut self.workspace);
        self.reference
            .compute(input, model, rows, single, norms, workspace)
    }
}

/// Record gradients in factored form, each with its clip weight.
#[derive(Debug, Default)]
struct Factored {
    factors: Vec<f32>,
    weights: Vec<f32>,
}

impl Factored {
    fn for_thread() -> Self {
        Self {
            factors: thread_buffer(0),
            weights: thread_buffer(0),
        }
    }

    fn all(&self) -> Gradients<'_> {
        Gradients {
            factors: &self.factors,
            weights: &self.weights,
        }
    }

    fn part(&self, records: Range<usize>, factor_len: usize) -> Gradients<'_> {
        Gradients {
            factors: &self.factors[records.start * factor_len..records.end * factor_len],
            weights: &self.weights[records],
        }
    }

    /// Gradients of `rows` at `model` with the weights that clip them. With `single`, every record
    /// is computed by itself, so that its numbers cannot depend on the other records of the batch.
    fn compute(
        &mut self,
        input: RoundInput<'_>,
        model: &[f32],
        rows: &[u32],
        single: bool,
        norms: &mut Vec<f64>,
        workspace: &mut Workspace,
    ) -> Result<(), ObjectiveError> {
        let len = input.objective.factor_len();
        self.factors.resize(rows.len() * len, 0.0);
        let step = if single { 1 } else { rows.len().max(1) };
        for (rows, factors) in rows.chunks(step).zip(self.factors.chunks_mut(step * len)) {
            let records = input.records(rows);
            input
                .objective
                .factors(model, records, None, Some(factors), workspace)?;
        }
        self.weights.clear();
        self.weights.resize(rows.len(), 1.0);
        if active(Mutation::ClippedAfterTheSum) {
            return Ok(());
        }
        let Some(clip) = input.clip() else {
            return Ok(());
        };
        norms.resize(rows.len(), 0.0);
        for (start, rows) in rows.chunks(step).enumerate() {
            let at = start * step;
            let records = input.records(rows);
            let gradients = self.part(at..at + rows.len(), len);
            let norms = &mut norms[at..at + rows.len()];
            input
                .objective
                .squared_norms(records, gradients, clip.over, norms, workspace);
        }
        if single {
            // Products with such numbers could round by more than the slack under the clip allows.
            for (factors, squared) in self.factors.chunks(len.max(1)).zip(norms.iter_mut()) {
                if factors.iter().any(|factor| factor.abs() > LARGEST_FACTOR) {
                    *squared = f64::INFINITY;
                }
            }
        }
        clip_weights(clip.norm, norms, &mut self.weights);
        self.clear_unweighted();
        Ok(())
    }

    /// Sets the factors of records of weight zero to zero: they may not be finite.
    fn clear_unweighted(&mut self) {
        let len = self.factors.len() / self.weights.len().max(1);
        for (factors, &weight) in self.factors.chunks_mut(len.max(1)).zip(&self.weights) {
            if weight == 0.0 {
                factors.fill(0.0);
            }
        }
    }
}

/// The weight of every record that clips it to `bound`, from its squared norm.
fn clip_weights(bound: f64, squared_norms: &[f64], weights: &mut [f32]) {
    vectorised(
        #[inline(always)]
        || {
            for (weight, &squared) in weights.iter_mut().zip(squared_norms) {
                *weight = clip_weight(bound, squared);
            }
        },
    );
}

/// `min(1, bound/norm)`, rounded down; zero where the norm is not a finite number.
#[inline(always)]
fn clip_weight(bound: f64, squared_norm: f64) -> f32 {
    // Without branches: processors cannot predict whether a record is clipped.
    let exact = bound / squared_norm.sqrt();
    let nearest = exact as f32;
    // Above `exact` it is above zero, and the bits of the next lower number are one less.
    let above = f64::from(nearest) > exact;
    let below = f32::from_bits(nearest.to_bits().wrapping_sub(u32::from(above)));
    let clipped = if squared_norm <= bound * bound {
        1.0
    } else {
        below
    };
    if squared_norm.is_finite() {
        clipped
    } else {
        0.0
    }
}

/// Adds `unit/b sum_j D(g_j - h_j)` over `rows`, where `g_j` and `h_j` stand in the scratch as
/// `batch` and `reference`, and `D` clips to `bound`. Without a bound the unit is 1.
fn add_differences(
    input: RoundInput<'_>,
    rows: &[u32],
    bound: Option<f64>,
    unit: f32,
    scratch: &mut Scratch,
    sum: &mut RawEstimate,
) {
    let Scratch {
        workspace,
        norms,
        scales,
        batch,
        reference,
    } = scratch;
    let unclipped = [
        Mutation::DifferencesUnclipped,
        Mutation::IncrementsUnclipped,
    ];
    let bound = bound.filter(|_| !unclipped.into_iter().any(active));
    if let Some(bound) = bound {
        let len = input.objective.factor_len();
        norms.resize(rows.len(), 0.0);
        let step = match sum.needs_single_records() {
            true => 1,
            false => rows.len().max(1),
        };
        for (start, rows) in rows.chunks(step).enumerate() {
            let place = start * step..start * step + rows.len();
            let (left, right) = (
                batch.part(place.clone(), len),
                reference.part(place.clone(), len),
            );
            let (records, norms) = (input.records(rows), &mut norms[place]);
            input
                .objective
                .squared_distances(records, left, right, norms, workspace);
        }
        scales.resize(rows.len(), 0.0);
        clip_weights(bound, norms, scales);
        if unit != 1.0 {
            scales.iter_mut().for_each(|scale| *scale *= unit);
        }
    }
    let contribution = Contribution {
        references: Some(reference.all()),
        scales: bound.is_some().then_some(scales.as_slice()),
        ..input.contribution(rows, batch)
    };
    sum.add(Term::Batch, contribution, input.coordinates, workspace);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_the_largest_numbers_that_clip() {
        let norms: Vec<f64> = (0..4000).map(|i| 1e-3 * f64::from(i) * 1.01).collect();
        let squared: Vec<f64> = norms.iter().map(|norm| norm * norm).collect();
        for bound in [1.0, 0.3, 1e-12, 1e12] {
            let mut weights = vec![f32::NAN; norms.len()];
            clip_weights(bound, &squared, &mut weights);
            for (&weight, &squared) in weights.iter().zip(&squared) {
                let exact = (bound / squared.sqrt()).min(1.0);
                assert!(f64::from(weight) <= exact && f64::from(weight.next_up()) > exact);
            }
        }
        let odd = [f64::NAN, f64::INFINITY, 0.0, f64::MAX, 1e-320];
        let mut weights = [f32::NAN; 5];
        clip_weights(1.0, &odd, &mut weights);
        assert_eq!(weights[..3], [0.0, 0.0, 1.0]);
        assert!(weights[3] < 1e-40 && weights[4] == 1.0);
    }
}
