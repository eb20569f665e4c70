//! The client: from its records and the model to one message a round.

mod plan;

pub use plan::{ClientError, ClientPlan, EstimatorPlan, suits_secure_noise};

use std::sync::Arc;

use super::{ClientId, Round};
use crate::compress::{Selection, Update};
use crate::data::Dataset;
use crate::estimator::{
    Clipping, Collector, Estimator, Minibatch, RoundInput, Saga, Scratch, Svrg,
};
use crate::linalg::simd::{prefetch_places, roomy};
use crate::objective::{Coordinates, Regularizer, Workspace};
use crate::privacy::{Mechanism, NOISE_STEP, Noise, Released};
use crate::random::{ClientKeys, IndexSeed, Purpose, SecretKey, SecretRng, unit};
use crate::sampling::Sampling;
use crate::wire;

/// One client: its records, its secrets, its shift and its estimator's memory.
pub struct Client {
    id: ClientId,
    plan: Arc<ClientPlan>,
    data: Arc<Dataset>,
    keys: ClientKeys,
    mechanism: Mechanism,
    sampling: Sampling,
    estimator: Box<dyn Estimator>,
    clipping: Clipping,
    shift: Vec<f32>,
}

/// What a client carries from round to round.
#[derive(Clone, Default, PartialEq)]
pub struct ClientState {
    /// The shift `s_i`; empty under direct compression.
    pub shift: Vec<f32>,
    /// The estimator's memory.
    pub memory: Vec<u8>,
}

/// Buffers of one thread, shared by all clients that it runs.
pub struct RoundScratch {
    rows: Vec<u32>,
    estimator: Scratch,
    selection: Selection,
}

impl Default for RoundScratch {
    fn default() -> Self {
        Self {
            rows: roomy(0),
            estimator: Scratch::default(),
            selection: Selection::roomy(),
        }
    }
}

impl RoundScratch {
    /// Scratch memory for objectives.
    pub fn workspace(&mut self) -> &mut Workspace {
        &mut self.estimator.workspace
    }
}

impl Client {
    /// A client with noise of standard deviation `sigma`.
    ///
    /// # Errors
    /// When the plan does not fit the client's data, or a combination is unsupported.
    pub fn new(
        id: ClientId,
        plan: Arc<ClientPlan>,
        data: Arc<Dataset>,
        sampling: Sampling,
        sigma: f64,
        key: SecretKey,
    ) -> Result<Self, ClientError> {
        plan::check(id, &plan, &data, &sampling)?;
        let records = data.rows();
        let terms = plan::secure_terms(&plan, &sampling, records)?;
        let (clipping, difference_clip) = plan::tighten(&plan)?;
        let dimension = plan.objective.dimension();
        let coordinates = if plan.estimator.has_two_terms() {
            dimension
        } else {
            plan.compressor.values()
        };
        let mechanism = Mechanism::new(plan.noise, sigma, &terms, coordinates)?;
        // SAGA takes away from its mean what it has added, which is exact as long as nothing saturates.
        if matches!(plan.estimator, EstimatorPlan::Saga { .. })
            && let Some(most) = mechanism.reference_capacity()
            && records as u64 > most
        {
            return Err(ClientError::TooMany {
                client: id,
                records,
                most,
            });
        }
        let estimator: Box<dyn Estimator> = match plan.estimator {
            EstimatorPlan::Minibatch => Box::new(Minibatch),
            EstimatorPlan::Svrg { .. } => Box::new(Svrg::new(difference_clip)),
            EstimatorPlan::Saga { .. } => Box::new(Saga::new(difference_clip)),
        };
        let shift = if plan.shift_step.is_some() {
            vec![0.0; dimension]
        } else {
            Vec::new()
        };
        Ok(Self {
            id,
            plan,
            data,
            keys: key.into(),
            mechanism,
            sampling,
            estimator,
            clipping,
            shift,
        })
    }

    /// The client's number.
    pub fn id(&self) -> ClientId {
        self.id
    }

    /// The client's records.
    pub fn data(&self) -> &Arc<Dataset> {
        &self.data
    }

    /// Standard deviation of the client's noise.
    pub fn sigma(&self) -> f64 {
        self.mechanism.sigma()
    }

    /// The shift `s_i`; empty under direct compression.
    pub fn shift(&self) -> &[f32] {
        &self.shift
    }

    /// Bytes kept between rounds beyond the records.
    pub fn state_bytes(&self) -> usize {
        4 * self.shift.len() + self.estimator.state_bytes()
    }

    /// Moves what the client writes in every round to memory that the calling thread has asked for: two threads
    /// that write next to each other wait for each other.
    pub(crate) fn settle(&mut self) {
        self.shift = self.shift.clone();
    }

    /// Gives the client other secrets: a deployed client draws fresh ones for every round, after
    /// the round's model has arrived, so that no copy of its state can ever repeat noise.
    pub fn renew(&mut self, keys: ClientKeys) {
        self.keys = keys;
    }

    /// A round without a message of this client, or one whose message was computed by an earlier
    /// process and is known: only public state (SVRG's snapshot) follows the others.
    pub fn sit_out(&mut self, round: Round, model: &Arc<Vec<f32>>) {
        let coin = self.plan.snapshot_coin(round);
        self.estimator.sit_out(model, coin);
    }

    /// Whether the estimator remembers secret coins, so that only the coins of past rounds (or a
    /// saved state) can rebuild it: SAGA. See [`revisit`](Self::revisit).
    pub fn remembers_coins(&self) -> bool {
        matches!(self.plan.estimator, EstimatorPlan::Saga { .. })
    }

    /// Brings the estimator's memory to where [`message`](Self::message) left it in `round` with the same coins,
    /// model and memory, without any noise and without a message: `coins` is all that is left of the
    /// round's secrets. Says whether the client took part in the round.
    pub fn revisit(
        &mut self,
        round: Round,
        model: &Arc<Vec<f32>>,
        coins: &SecretKey,
        scratch: &mut RoundScratch,
    ) -> bool {
        if self.sits_out(round, coins) {
            self.sit_out(round, model);
            return false;
        }
        let mut sampled = coins.stream(round, Purpose::Sampling);
        let records = self.data.rows();
        self.sampling.draw(records, &mut sampled, &mut scratch.rows);
        // The memory is about all coordinates whichever travelled, and the estimate is not wanted.
        let RoundScratch {
            rows, estimator, ..
        } = scratch;
        self.estimate(round, model, Coordinates::Selected(&[]), rows, estimator);
        true
    }

    /// Whether the round's coin says that this client sends nothing.
    fn sits_out(&self, round: Round, coins: &SecretKey) -> bool {
        let participation = self.plan.compressor.participation();
        participation < 1.0
            && unit(&mut coins.stream(round, Purpose::Participation)) >= participation
    }

    /// What the client carries from round to round: its shift and its estimator's memory. It is as
    /// private as the records.
    pub fn save(&self) -> ClientState {
        ClientState {
            shift: self.shift.clone(),
            memory: self.estimator.save(),
        }
    }

    /// Goes on from a saved state of a client with the same plan and records; `false`, with nothing
    /// changed, if it does not fit.
    #[must_use]
    pub fn restore(&mut self, state: &ClientState) -> bool {
        let fits = state.shift.len() == self.shift.len()
            && self.estimator.restore(
                &state.memory,
                self.data.rows(),
                self.plan.objective.as_ref(),
                self.plan.noise == Noise::Secure,
            );
        if fits {
            self.shift.copy_from_slice(&state.shift);
        }
        fits
    }

    /// Computes the message of `round` for `model` into `message`, and what the server will decode
    /// from it into `update`; `false` when the client sits the round out (nothing in `update`).
    ///
    /// Every call draws the same randomness for the same round: asking twice with two different
    /// models would release twice under one noise, so a driver must never do it
    /// (the deployed client refuses).
    pub fn message(
        &mut self,
        round: Round,
        model: &Arc<Vec<f32>>,
        scratch: &mut RoundScratch,
        message: &mut Vec<u8>,
        update: &mut Update,
    ) -> bool {
        if self.sits_out(round, &self.keys.coins) {
            // No record is touched; only the shared snapshot moves on.
            self.sit_out(round, model);
            wire::put_absence(&self.plan.compressor, round, message);
            return false;
        }
        let mut selection = std::mem::take(&mut scratch.selection);
        let mut noise = self.keys.stream(round, Purpose::Noise);
        // Also where coordinates are shared, so that noise always begins at the second block.
        let own_seed = IndexSeed::draw(&mut noise);
        let seed = if self.plan.shared_coordinates {
            self.plan.public_seed.coordinates(round)
        } else {
            own_seed
        };
        self.plan.compressor.select(seed, &mut selection);
        let mut released = self.release(
            round,
            model,
            selection.coordinates(),
            &mut noise,
            &mut scratch.rows,
            &mut scratch.estimator,
        );
        if !self.shift.is_empty() {
            released.subtract(&self.shift, selection.coordinates());
        }
        let compressor = &self.plan.compressor;
        wire::put_header(compressor, round, message);
        let mut coins = self.keys.stream(round, Purpose::Rounding);
        compressor.encode(&released, &mut selection, &mut coins, message, update);
        scratch.estimator.recycle(released.into_buffer());
        scratch.selection = selection;
        true
    }

    /// The server took the message that `update` decodes: the shift follows.
    pub fn accepted(&mut self, update: &Update) {
        if let Some(step) = self.plan.shift_step {
            update.add_to(step as f32, &mut self.shift);
        }
    }

    /// Estimate and noise: from here on everything is public.
    fn release(
        &mut self,
        round: Round,
        model: &Arc<Vec<f32>>,
        coordinates: Coordinates<'_>,
        noise: &mut SecretRng,
        rows: &mut Vec<u32>,
        scratch: &mut Scratch,
    ) -> Released {
        let plan = &self.plan;
        let dimension = plan.objective.dimension();
        let count = coordinates.count(dimension);
        let records = self.data.rows();
        let mut coins = self.keys.stream(round, Purpose::Sampling);
        self.sampling.draw(records, &mut coins, rows);
        let mut ahead = Ahead::new(&self.data, rows, count.div_ceil(NOISE_STEP));
        let noise = self
            .mechanism
            .draw(count, noise, &mut scratch.workspace, || ahead.step());
        ahead.finish();
        // Clipping the whole estimate needs all of its coordinates.
        let computed = if plan.estimate_clip.is_some() {
            Coordinates::All
        } else {
            coordinates
        };
        if let (Coordinates::Selected(chosen), false) = (coordinates, self.shift.is_empty()) {
            // What will be subtracted lies anywhere in the shift, too.
            prefetch_places(&self.shift, chosen);
        }
        let mut sum = self.estimate(round, model, computed, rows, scratch);
        let plan = &self.plan;
        if let Some(clip) = plan.estimate_clip {
            sum = clip_estimate(
                sum,
                clip,
                plan.regularizer.as_ref(),
                model,
                coordinates,
                &mut scratch.workspace,
            );
        }
        let mut released = self.mechanism.release(sum, noise, &mut scratch.workspace);
        if let (Some(regularizer), None) = (&plan.regularizer, plan.estimate_clip) {
            let mut gradient = scratch.workspace.take_zeroed(count);
            regularizer.add_gradient(model, coordinates, 1.0, &mut gradient);
            released.add_public(&gradient);
            scratch.workspace.put(gradient);
        }
        released
    }

    /// The estimate on some coordinates for the batch `rows`; the estimator's memory follows.
    fn estimate(
        &mut self,
        round: Round,
        model: &Arc<Vec<f32>>,
        coordinates: Coordinates<'_>,
        rows: &[u32],
        scratch: &mut Scratch,
    ) -> Collector {
        let plan = &self.plan;
        let input = RoundInput {
            objective: plan.objective.as_ref(),
            data: &self.data,
            model,
            batch: rows,
            coordinates,
            clipping: self.clipping,
            snapshot: plan.snapshot_coin(round),
        };
        let records = self.data.rows();
        let (batch, all) = (self.sampling.divisor(records), records as f64);
        let count = coordinates.count(plan.objective.dimension());
        let mut sum = self
            .mechanism
            .collector(count, batch, all, &mut scratch.workspace);
        self.estimator.estimate(input, scratch, &mut sum);
        sum
    }
}

/// Asks for the first rows of a batch a few at a time, so that they are near when they are read.
struct Ahead<'a> {
    data: &'a Dataset,
    rows: &'a [u32],
    per_step: usize,
}

impl<'a> Ahead<'a> {
    /// More rows than this would push each other out of the cache.
    const MOST: usize = 128;

    fn new(data: &'a Dataset, batch: &'a [u32], steps: usize) -> Self {
        let rows = &batch[..batch.len().min(Self::MOST)];
        data.fetch_places(rows);
        Self {
            data,
            rows,
            per_step: rows.len().div_ceil(steps.max(1)),
        }
    }

    #[inline(always)]
    fn step(&mut self) {
        let (now, later) = self.rows.split_at(self.per_step.min(self.rows.len()));
        self.data.fetch(now);
        self.rows = later;
    }

    fn finish(self) {
        self.data.fetch(self.rows);
    }
}

/// The authors' clipping: the whole estimate, regularizer included, scaled to norm `clip`; then
/// restricted to the coordinates that travel.
fn clip_estimate(
    sum: Collector,
    clip: f64,
    regularizer: Option<&Regularizer>,
    model: &[f32],
    coordinates: Coordinates<'_>,
    workspace: &mut Workspace,
) -> Collector {
    sum.map_float(|mut values| {
        if let Some(regularizer) = regularizer {
            regularizer.add_gradient(model, Coordinates::All, 1.0, &mut values);
        }
        let norm = values
            .iter()
            .map(|&value| f64::from(value).powi(2))
            .sum::<f64>()
            .sqrt();
        let scale = if norm > clip {
            (clip / norm) as f32
        } else {
            1.0
        };
        match coordinates {
            Coordinates::All => {
                values.iter_mut().for_each(|value| *value *= scale);
                values
            }
            Coordinates::Selected(chosen) => {
                let mut selected = workspace.take(chosen.len());
                for (selected, &index) in selected.iter_mut().zip(chosen) {
                    *selected = scale * values[index as usize];
                }
                workspace.put(values);
                selected
            }
        }
    })
}
