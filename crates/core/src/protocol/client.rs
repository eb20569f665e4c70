//! The client: from its records and the model to one message a round (the client's part of
//! Algorithm 1).
//!
//! **Guarantee.** What leaves a client has passed [`GaussianMechanism::release`]; a round reads the
//! records of its batch only, and the same keys, round and model give the same bytes.
//!
//! **Cost.** That of the estimator ([`crate::estimator`]), plus `O(k)` for `k` coordinates that
//! travel. After the first rounds nothing is allocated, except with secure noise.

mod plan;

pub use plan::{ClientError, ClientPlan, suits_secure_noise};
pub use soteriafl_accountant::Estimator;

use std::sync::Arc;

use soteriafl_accountant::Over;
use soteriafl_accountant::mutation::{Mutation, active};

use super::{ClientId, Round};
use crate::compress::{Selection, Update};
use crate::data::Dataset;
use crate::data::prefetch::BatchPrefetch;
use crate::estimator::{Clipping, EstimatorState, Increment, RoundInput, Scratch, with_state};
use crate::linalg::memory::{prefetch_places, thread_buffer};
use crate::objective::{Coordinates, ObjectiveError, Workspace};
use crate::privacy::{GaussianMechanism, Noise, RawEstimate, Released, RoundNoise};
use crate::random::{ClientKeys, IndexSeed, Purpose, SecretKey, SecretRng, unit};
use crate::sampling::Sampling;
use crate::wire;

/// One client: its records, its secrets, its shift and its estimator's memory.
pub struct Client {
    id: ClientId,
    plan: Arc<ClientPlan>,
    data: Arc<Dataset>,
    keys: ClientKeys,
    mechanism: GaussianMechanism,
    /// The mechanism of increments, where they have noise of their own.
    increments: Option<GaussianMechanism>,
    sampling: Sampling,
    estimator: Box<dyn EstimatorState>,
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

/// A client's message of one round, in the buffers of the [`RoundScratch`] that it was made with.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// What is sent.
    pub bytes: &'a [u8],
    /// What the server will decode from it; `None` when the client skips the round.
    pub update: Option<&'a Update>,
}

/// Buffers of one thread, shared by all clients that it runs.
pub struct RoundScratch {
    rows: Vec<u32>,
    pub(crate) estimator: Scratch,
    pub(crate) selection: Selection,
    pub(crate) bytes: Vec<u8>,
    update: Update,
}

impl Default for RoundScratch {
    fn default() -> Self {
        Self {
            rows: thread_buffer(0),
            estimator: Scratch::default(),
            selection: Selection::for_thread(),
            bytes: thread_buffer(0),
            update: Update::for_thread(),
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
        let records = data.records();
        let terms = plan::secure_terms(&plan, &sampling, records)?;
        let (clipping, difference_clip) = plan::tighten(&plan)?;
        let dimension = plan.objective.dimension();
        let coordinates = if plan.estimator.kind().keeps_mean() {
            dimension
        } else {
            plan.compressor.values()
        };
        let with_noise = |sigma| GaussianMechanism::new(plan.noise, sigma, &terms, coordinates);
        let mechanism = with_noise(sigma)?;
        let recursion = plan.estimator.recursion();
        let increments = match recursion.and_then(|recursion| recursion.noise_levels()) {
            Some(levels) => {
                let ratio = match active(Mutation::IncrementsQuieter) {
                    true => 1.0,
                    false => levels.ratio,
                };
                Some(with_noise(sigma * ratio)?)
            }
            None => None,
        };
        // A table's mean loses what was added to it, which is exact as long as nothing saturates.
        if plan.estimator.kind().keeps_table()
            && let Some(most) = mechanism.reference_capacity()
            && records as u64 > most
        {
            return Err(ClientError::TooMany {
                client: id,
                records,
                most,
            });
        }
        let estimator = with_state(plan.estimator, difference_clip);
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
            increments,
            sampling,
            estimator,
            clipping,
            shift,
        })
    }

    /// What all clients of the run do.
    pub fn plan(&self) -> &Arc<ClientPlan> {
        &self.plan
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

    /// Moves what the client writes in every round to memory that the calling thread allocates: two
    /// threads that write to the same cache line slow each other down.
    pub(crate) fn reallocate(&mut self) {
        self.shift = self.shift.clone();
    }

    /// Replaces the client's keys: a deployed client draws fresh ones for every round, after the
    /// round's model has arrived, so that no copy of its state can ever repeat noise.
    pub fn set_keys(&mut self, keys: ClientKeys) {
        self.keys = keys;
    }

    /// A round without a message of this client, or one whose message was computed by an earlier
    /// process and is known: only public state (SVRG's snapshot) is updated.
    pub fn skip_round(&mut self, round: Round, model: &Arc<Vec<f32>>) {
        let coin = self.plan.snapshot_coin(round);
        self.estimator.skip_round(model, coin);
    }

    /// Whether the estimator remembers secret coins, so that only the coins of past rounds (or a
    /// saved state) can rebuild it: SAGA and SAG. See [`replay_round`](Self::replay_round).
    pub fn remembers_coins(&self) -> bool {
        self.plan.estimator.kind().keeps_table()
    }

    /// Brings the estimator's memory to the state in which [`message`](Self::message) left it in
    /// `round` with the same coins, model and memory, without any noise and without a message:
    /// `coins` is all that is kept of the round's secrets. Returns whether the client took part in
    /// the round.
    ///
    /// # Errors
    /// When the objective fails; the memory is then as it was.
    pub fn replay_round(
        &mut self,
        round: Round,
        model: &Arc<Vec<f32>>,
        coins: &SecretKey,
        scratch: &mut RoundScratch,
    ) -> Result<bool, ObjectiveError> {
        if self.skips(round, coins) {
            self.skip_round(round, model);
            return Ok(false);
        }
        let mut sampled = coins.stream(round, Purpose::Sampling);
        self.draw_batch(&mut sampled, &mut scratch.rows);
        // The memory is on all coordinates whichever travelled, and the estimate is not needed.
        let RoundScratch {
            rows, estimator, ..
        } = scratch;
        let increment = self.increment(round, model);
        let nowhere = Coordinates::Selected(&[]);
        self.estimate(round, model, nowhere, increment, rows, estimator)?;
        Ok(true)
    }

    /// Whether this client sends nothing in the round, by its participation coin.
    fn skips(&self, round: Round, coins: &SecretKey) -> bool {
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

    /// Computes the message of `round` for `model`.
    ///
    /// Every call draws the same randomness for the same round: asking twice with two different
    /// models would release twice under one noise, so a driver must never do it
    /// (the deployed client refuses).
    ///
    /// # Errors
    /// When the objective fails, which only one that computes
    /// [elsewhere](crate::objective::Elsewhere) does. Then there is no message, nothing has been
    /// released, the client is as it was, and the round can be asked for again.
    pub fn message<'s>(
        &mut self,
        round: Round,
        model: &Arc<Vec<f32>>,
        scratch: &'s mut RoundScratch,
    ) -> Result<Message<'s>, ObjectiveError> {
        if self.skips(round, &self.keys.coins) {
            // No record is read.
            self.skip_round(round, model);
            wire::put_absence(&self.plan.compressor, round, &mut scratch.bytes);
            return Ok(Message {
                bytes: &scratch.bytes,
                update: None,
            });
        }
        let mut released = self.select_and_release(round, model, scratch)?;
        let RoundScratch {
            estimator,
            selection,
            bytes,
            update,
            ..
        } = scratch;
        if !self.shift.is_empty() {
            released.subtract(&self.shift, selection.coordinates());
        }
        let compressor = &self.plan.compressor;
        wire::put_header(compressor, round, bytes);
        let mut coins = self.rounding_coins(round);
        compressor.encode(&released, selection, &mut coins, bytes, update);
        estimator.recycle(released.into_buffer());
        Ok(Message {
            bytes,
            update: Some(update),
        })
    }

    /// Chooses the coordinates of the round, and releases the estimate on them: a message before
    /// shift and compressor.
    pub(crate) fn select_and_release(
        &mut self,
        round: Round,
        model: &Arc<Vec<f32>>,
        scratch: &mut RoundScratch,
    ) -> Result<Released, ObjectiveError> {
        let RoundScratch {
            rows,
            estimator,
            selection,
            ..
        } = scratch;
        let noise_of = if active(Mutation::NoiseReused) {
            0
        } else {
            round
        };
        let mut noise = self.keys.stream(noise_of, Purpose::Noise);
        // Also where coordinates are shared, so that noise always begins at the second block.
        let own_seed = IndexSeed::draw(&mut noise);
        let mut seed = if self.plan.shared_coordinates {
            self.plan.public_seed.coordinates(round)
        } else {
            own_seed
        };
        if active(Mutation::CoordinatesFromRecords) {
            let norms = self.data.squared_norms().iter();
            seed.0[0] ^= norms.fold(0, |mixed, norm| mixed ^ norm.to_bits().to_le_bytes()[6]);
        }
        self.plan.compressor.select(seed, selection);
        let coordinates = selection.coordinates();
        self.release(round, model, coordinates, &mut noise, rows, estimator)
    }

    /// The coins with which the messages of a round are rounded.
    pub(crate) fn rounding_coins(&self, round: Round) -> SecretRng {
        self.keys.stream(round, Purpose::Rounding)
    }

    /// The server has added the message that `update` decodes: moves the shift.
    pub fn accepted(&mut self, update: &Update) {
        if let Some(step) = self.plan.shift_step {
            update.add_to(step as f32, &mut self.shift);
        }
    }

    /// Estimate and noise. What it returns may be sent.
    fn release(
        &mut self,
        round: Round,
        model: &Arc<Vec<f32>>,
        coordinates: Coordinates<'_>,
        noise: &mut SecretRng,
        rows: &mut Vec<u32>,
        scratch: &mut Scratch,
    ) -> Result<Released, ObjectiveError> {
        let coins_of = if active(Mutation::CoinsReused) {
            0
        } else {
            round
        };
        let mut coins = self.keys.stream(coins_of, Purpose::Sampling);
        self.draw_batch(&mut coins, rows);
        let increment = self.increment(round, model);
        let mechanism = self.mechanism(increment);
        let noise = self.draw_noise(mechanism, coordinates, noise, rows, &mut scratch.workspace);
        // Clipping the whole estimate needs all of its coordinates.
        let computed = match self.plan.estimate_clip {
            Some(_) => Coordinates::All,
            None => coordinates,
        };
        let mut sum = self.estimate(round, model, computed, increment, rows, scratch)?;
        let (plan, workspace) = (&self.plan, &mut scratch.workspace);
        if let Some(clip) = plan.estimate_clip {
            let regularizer = plan.regularizer.as_ref();
            sum = sum.clip_whole(clip, regularizer, model, coordinates, workspace);
        }
        let mut released = self.mechanism(increment).release(sum, noise, workspace);
        if let Some(increment) = increment {
            released.scale(increment.scale);
        }
        if let (Some(regularizer), None) = (&plan.regularizer, plan.estimate_clip) {
            let count = coordinates.count(plan.objective.dimension());
            let mut gradient = workspace.take_zeroed(count);
            regularizer.add_gradient(model, coordinates, 1.0, &mut gradient);
            released.add_public(&gradient);
            workspace.put(gradient);
        }
        Ok(released)
    }

    /// The batch of a round.
    fn draw_batch(&self, coins: &mut SecretRng, rows: &mut Vec<u32>) {
        let (records, present) = (self.data.records(), self.data.rows());
        self.sampling.draw_present(records, present, coins, rows);
    }

    /// What the round asks for beside a plain estimate: a function of public models.
    fn increment(&self, round: Round, model: &[f32]) -> Option<Increment> {
        self.plan
            .increment(round, || self.estimator.distance(model))
    }

    /// Which noise the round has.
    fn mechanism(&self, increment: Option<Increment>) -> &GaussianMechanism {
        let own = self.increments.as_ref().filter(|_| increment.is_some());
        own.unwrap_or(&self.mechanism)
    }

    /// The noise of the round, before any value of a record is used. While it is drawn, the memory
    /// of what is read next, the batch's rows and the selected places of the shift, is asked for.
    fn draw_noise(
        &self,
        mechanism: &GaussianMechanism,
        coordinates: Coordinates<'_>,
        noise: &mut SecretRng,
        rows: &[u32],
        workspace: &mut Workspace,
    ) -> RoundNoise {
        let count = coordinates.count(self.plan.objective.dimension());
        let mut prefetch = BatchPrefetch::new(&self.data, rows);
        let noise = mechanism.draw(count, noise, workspace, |left| prefetch.part(left));
        // What is left: everything, where noise is not drawn in steps.
        prefetch.part(1);
        if let (Coordinates::Selected(chosen), false) = (coordinates, self.shift.is_empty()) {
            prefetch_places(&self.shift, chosen);
        }
        noise
    }

    /// The estimate on some coordinates for the batch `rows`; updates the estimator's memory.
    fn estimate(
        &mut self,
        round: Round,
        model: &Arc<Vec<f32>>,
        coordinates: Coordinates<'_>,
        increment: Option<Increment>,
        rows: &[u32],
        scratch: &mut Scratch,
    ) -> Result<RawEstimate, ObjectiveError> {
        let plan = &self.plan;
        let input = RoundInput {
            objective: plan.objective.as_ref(),
            data: &self.data,
            model,
            batch: rows,
            coordinates,
            clipping: self.clipping,
            snapshot: plan.snapshot_coin(round),
            increment,
        };
        let records = self.data.records();
        let (mut batch, all) = (self.sampling.divisor(records), records as f64);
        if active(Mutation::RealisedDivisor) {
            batch = rows.len().max(1) as f64;
        }
        let count = coordinates.count(plan.objective.dimension());
        // A term of weight zero has no divisor.
        let mut divisors = [batch, all];
        for term in plan.estimator.terms(1.0) {
            divisors[usize::from(term.over == Over::All)] /= term.weight;
        }
        let mut sum =
            self.mechanism(increment)
                .empty_estimate(count, divisors, &mut scratch.workspace);
        self.estimator.estimate(input, scratch, &mut sum)?;
        if let (true, Clipping::Record(clip)) =
            (active(Mutation::ClippedAfterTheSum), self.clipping)
        {
            let workspace = &mut scratch.workspace;
            sum = sum.clip_whole(clip, None, model, Coordinates::All, workspace);
        }
        Ok(sum)
    }
}
