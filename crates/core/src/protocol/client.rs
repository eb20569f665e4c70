//! The client: from its records and the model to one message a round.

use std::sync::Arc;

use super::{ClientId, Round};
use crate::compress::{Compressor, Selection, Update};
use crate::data::Dataset;
use crate::estimator::{
    Clipping, Collector, Estimator, Minibatch, RoundInput, Saga, Scratch, Svrg,
};
use crate::linalg::processor::{prefetch_places, roomy};
use crate::objective::{Coordinates, Objective, Regularizer, Workspace};
use crate::privacy::secure::NoiseError;
use crate::privacy::{Mechanism, NOISE_STEP, Noise, Released, TermBound};
use crate::random::{ClientKeys, IndexSeed, PublicSeed, Purpose, SecretKey, SecretRng, unit};
use crate::sampling::{Coins, Sampling};
use crate::wire;

/// The choice of an estimator.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum EstimatorPlan {
    /// Full gradient, or a minibatch of it: GD, SGD.
    Minibatch,
    /// SVRG.
    Svrg {
        /// Probability of the shared snapshot coin.
        snapshot_probability: f64,
        /// `C_A`; `None` leaves differences as they are.
        difference_clip: Option<f64>,
    },
    /// SAGA.
    Saga {
        /// `C_A`; `None` leaves differences as they are.
        difference_clip: Option<f64>,
    },
}

/// What all clients of a run share.
#[derive(Clone)]
pub struct ClientPlan {
    /// The loss.
    pub objective: Arc<dyn Objective>,
    /// The compressor, participation included.
    pub compressor: Compressor,
    /// The estimator.
    pub estimator: EstimatorPlan,
    /// How each record is clipped.
    pub clipping: Clipping,
    /// Clips the client's whole estimate instead, as the authors' experiments do: no claim.
    pub estimate_clip: Option<f64>,
    /// Added to every client's estimate (`regularizer_at = "client"`); `None` when the server adds it.
    pub regularizer: Option<Regularizer>,
    /// Shift step `gamma`; `None`: direct compression.
    pub shift_step: Option<f64>,
    /// Kind of noise.
    pub noise: Noise,
    /// Whether all clients send the same coordinates, drawn from the public seed. Sound where every
    /// record is clipped on what travels (Proposition 6 of `docs/privacy.md`); random-k
    /// amplification must then not be claimed.
    pub shared_coordinates: bool,
    /// The run's public seed (snapshot coins, shared coordinates).
    pub public_seed: PublicSeed,
}

impl ClientPlan {
    /// The shared snapshot coin of `round`; always tails without SVRG.
    fn snapshot_coin(&self, round: Round) -> bool {
        match self.estimator {
            EstimatorPlan::Svrg {
                snapshot_probability,
                ..
            } => self.public_seed.snapshot_coin(round, snapshot_probability),
            _ => false,
        }
    }
}

/// Why a client cannot be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// A client without records.
    #[error("client {0} has no records")]
    Empty(ClientId),
    /// The expected batch is larger than the client's data.
    #[error("client {client} has {records} records, fewer than the batch of {batch}")]
    Batch {
        /// Which client.
        client: ClientId,
        /// Its records.
        records: usize,
        /// The batch asked for.
        batch: f64,
    },
    /// The expected batch is not a number above zero.
    #[error("client {client}: the batch must be above zero, found {batch}")]
    NoBatch {
        /// Which client.
        client: ClientId,
        /// The batch asked for.
        batch: f64,
    },
    /// More records than SAGA's integer mean can hold.
    #[error(
        "client {client} has {records} records; with this little noise saga adds up {most} at most"
    )]
    TooMany {
        /// Which client.
        client: ClientId,
        /// Its records.
        records: usize,
        /// How many there may be.
        most: u64,
    },
    /// A combination that no proof covers and that the code therefore does not have.
    #[error("{0}")]
    Unsupported(&'static str),
    /// Secure noise does not fit.
    #[error("secure noise: {0}")]
    Noise(#[from] NoiseError),
}

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
        let records = data.rows();
        if records == 0 {
            return Err(ClientError::Empty(id));
        }
        let batch = sampling.divisor(records);
        if !(batch > 0.0 && batch.is_finite()) {
            return Err(ClientError::NoBatch { client: id, batch });
        }
        if matches!(sampling, Sampling::Poisson { .. }) && batch > records as f64 {
            return Err(ClientError::Batch {
                client: id,
                records,
                batch,
            });
        }
        let two_terms = plan.estimator != EstimatorPlan::Minibatch;
        if two_terms && matches!(plan.clipping, Clipping::Selected(_)) {
            return Err(ClientError::Unsupported(
                "clip_scope = \"selected\" works with gd and sgd only",
            ));
        }
        if plan.estimate_clip.is_some() && matches!(plan.clipping, Clipping::Selected(_)) {
            return Err(ClientError::Unsupported(
                "clip_scope = \"selected\" does not clip the whole estimate too",
            ));
        }
        if plan.noise == Noise::Secure
            && (plan.clipping == Clipping::None || plan.estimate_clip.is_some())
        {
            return Err(ClientError::Unsupported(
                "secure noise needs clipped records",
            ));
        }
        let proved = match sampling {
            Sampling::Full => true,
            Sampling::Poisson { coins, .. } => coins == Coins::Exact,
            Sampling::WithReplacement { .. } => false,
        };
        if plan.noise == Noise::Secure && !proved {
            return Err(ClientError::Unsupported(
                "secure noise needs whole batches or exact coins (`Coins::Exact`)",
            ));
        }
        if plan.noise == Noise::Secure && data.offset().is_some() {
            // Rows and offset are apart or together depending on the records, and sums over the two round differently.
            return Err(ClientError::Unsupported(
                "secure noise needs rows with their offset in them (`Dataset::dense`)",
            ));
        }
        let terms = secure_terms(&plan, &sampling, records)?;
        let (clipping, difference_clip) = tighten(&plan)?;
        let dimension = plan.objective.dimension();
        let coordinates = if two_terms {
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

/// Whether secure noise can vouch for a clip of this size: `tighten` says why.
pub fn suits_secure_noise(clip: f64) -> bool {
    const FARTHEST: f64 = (1u64 << 40) as f64;
    (1.0 / FARTHEST..=FARTHEST).contains(&clip)
}

/// The bounds to which records are really clipped.
///
/// With secure noise they lie a little below the promised ones, so that a record's vector on *all*
/// coordinates obeys its bound in exact arithmetic, as random-k amplification needs: the integer
/// check sees only the coordinates that travel. A norm is known to a relative 2^-40, weights are
/// rounded down, and a coordinate is at most three rounded `f32` operations away from its exact
/// value: with an offset apart from the rows an error below 12 * 2^-24 of the gradient's norm, so
/// 2^-20 of the clip is enough. A difference has the errors of two gradients, each of norm at most
/// the clip. Roundings are relative only above the smallest numbers, where a server could push them
/// by tiny clips and huge features: clips outside [2^-40, 2^40] are refused.
fn tighten(plan: &ClientPlan) -> Result<(Clipping, Option<f64>), ClientError> {
    let difference_clip = match plan.estimator {
        EstimatorPlan::Minibatch => None,
        EstimatorPlan::Svrg {
            difference_clip, ..
        }
        | EstimatorPlan::Saga { difference_clip } => difference_clip,
    };
    if plan.noise != Noise::Secure {
        return Ok((plan.clipping, difference_clip));
    }
    const SLACK: f64 = 1.0 / (1u64 << 20) as f64;
    let (clipping, clip) = match plan.clipping {
        Clipping::None => return Ok((Clipping::None, difference_clip)),
        Clipping::Record(clip) => (Clipping::Record(clip * (1.0 - SLACK)), clip),
        Clipping::Selected(clip) => (Clipping::Selected(clip * (1.0 - SLACK)), clip),
    };
    if ![Some(clip), difference_clip]
        .into_iter()
        .flatten()
        .all(suits_secure_noise)
    {
        return Err(ClientError::Unsupported(
            "secure noise needs clips between 2^-40 and 2^40",
        ));
    }
    match difference_clip.map(|difference| difference * (1.0 - SLACK) - 2.0 * clip * SLACK) {
        Some(tightened) if tightened <= 0.0 => Err(ClientError::Unsupported(
            "secure noise needs a difference_clip above 2^-19 of the clip",
        )),
        tightened => Ok((clipping, tightened)),
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

/// The bounds that secure noise checks in integers.
fn secure_terms(
    plan: &ClientPlan,
    sampling: &Sampling,
    records: usize,
) -> Result<Vec<TermBound>, ClientError> {
    let clip = match plan.clipping {
        Clipping::None => return Ok(Vec::new()),
        Clipping::Record(bound) | Clipping::Selected(bound) => bound,
    };
    let divisor = sampling.divisor(records);
    match plan.estimator {
        EstimatorPlan::Minibatch => Ok(vec![TermBound { clip, divisor }]),
        EstimatorPlan::Svrg {
            difference_clip, ..
        }
        | EstimatorPlan::Saga { difference_clip } => match (difference_clip, plan.noise) {
            (Some(difference), _) => Ok(vec![
                TermBound {
                    clip: difference,
                    divisor,
                },
                TermBound {
                    clip,
                    divisor: records as f64,
                },
            ]),
            (None, Noise::Secure) => Err(ClientError::Unsupported(
                "secure noise with svrg and saga needs a difference_clip",
            )),
            (None, _) => Ok(Vec::new()),
        },
    }
}
