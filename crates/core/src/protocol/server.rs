//! The server: averages messages, takes the step, and tracks the mean shift (the server's part of
//! Algorithm 1). It sees released values only and need not be trusted.
//!
//! **Guarantee.** Messages are added in the order of clients, so the same messages give the same
//! bits.
//!
//! **Cost.** `O(k)` per message and `O(d)` per round.

use std::sync::Arc;

use soteriafl_accountant::Recursion;

use super::broadcast::Broadcast;
use super::{ClientId, Equalizing, Round, Smoothing};
use crate::compress::{Compressor, DecodeError, Downlink, Update};
use crate::linalg::{all_finite, largest, vectorised_widely};
use crate::objective::{Coordinates, Regularizer};
use crate::wire;

/// How the step size changes over a run of `rounds` rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// The step size is constant.
    Constant,
    /// Falls to zero along half a period of a cosine.
    Cosine,
    /// Divided by `sqrt(t + 1)`.
    InverseSqrt,
}

soteriafl_accountant::words!(
    Schedule,
    "schedule",
    Constant = "constant",
    Cosine = "cosine",
    InverseSqrt = "inverse-sqrt",
);

impl Schedule {
    /// The factor in `round` of `rounds`.
    pub fn factor(&self, round: Round, rounds: Round) -> f64 {
        match self {
            Schedule::Constant => 1.0,
            Schedule::Cosine => {
                0.5 * (1.0
                    + (std::f64::consts::PI * f64::from(round) / f64::from(rounds.max(1))).cos())
            }
            Schedule::InverseSqrt => 1.0 / f64::from(round + 1).sqrt(),
        }
    }
}

/// What the server does in a run.
#[derive(Clone, Debug)]
pub struct ServerPlan {
    /// The compressor of all clients.
    pub compressor: Compressor,
    /// `w_i`, one per client, summing to one (`1/n` in the paper; by records otherwise).
    pub weights: Vec<f64>,
    /// Step size `eta`.
    pub step_size: f64,
    /// How the step size changes.
    pub schedule: Schedule,
    /// Heavy-ball momentum; 0 is the paper's step.
    pub momentum: f64,
    /// Whether messages are increments, and how they are added up; `None` in the paper. It stands
    /// where momentum would, but before the regularizer, whose gradient must not be added up.
    pub recursion: Option<Recursion>,
    /// The longest step, as a norm; the paper's step has `None`.
    pub step_cap: Option<f64>,
    /// Shift step `gamma`; `None`: direct compression.
    pub shift_step: Option<f64>,
    /// The public regularizer, when the server adds its exact gradient.
    pub regularizer: Option<Regularizer>,
    /// Averages the direction over neighbouring pixels; the paper's step has `None`.
    pub smoothing: Option<Smoothing>,
    /// Equalises the direction's singular values, layer by layer; the paper's step has `None`. The
    /// direction is then `1 - momentum` times the velocity, an average of gradients, because that
    /// is what the floor is compared with.
    pub equalizing: Option<Equalizing>,
    /// How the way down is compressed; the paper's server sends every average in full: `None`.
    pub downlink: Option<Downlink>,
    /// Total number of rounds.
    pub rounds: Round,
}

/// Why the server refuses a message, an average or a state.
#[derive(Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// No such client.
    #[error("client {client} is not one of the {clients} clients of this run")]
    UnknownClient {
        /// The number found.
        client: ClientId,
        /// How many there are.
        clients: usize,
    },
    /// Messages must be added in ascending order of clients, each once.
    #[error("client {client} came after client {last} in round {round}")]
    Order {
        /// The client.
        client: ClientId,
        /// The last one added.
        last: ClientId,
        /// The round.
        round: Round,
    },
    /// All rounds are done.
    #[error("the run has ended after {0} rounds")]
    Finished(Round),
    /// A state of the wrong size, or with a value that is not a finite number.
    #[error("{0} does not fit this run")]
    Unfit(&'static str),
    /// The bytes are no average of this round.
    #[error("no average of round {round}: {error}")]
    Average {
        /// The round.
        round: Round,
        /// What is wrong with it.
        error: DecodeError,
    },
    /// The bytes are no message of this round.
    #[error("client {client}: {error}")]
    Message {
        /// Whose message.
        client: ClientId,
        /// What is wrong with it.
        error: DecodeError,
    },
}

/// What happened in a closed round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoundSummary {
    /// The round.
    pub round: Round,
    /// How many messages were added.
    pub messages: usize,
    /// Nonzero coordinates of the averaged message.
    pub nonzero: usize,
    /// Bytes that every client gets of it: the average, or what the server tells in its place.
    pub down: usize,
}

/// Everything that a server carries from round to round. All of it is public, and a function of
/// the start and the averaged messages.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServerState {
    /// The open round.
    pub round: Round,
    /// The model `x^t` that everybody holds.
    pub model: Vec<f32>,
    /// The mean shift `s^t`; empty under direct compression.
    pub shift: Vec<f32>,
    /// The velocity; empty without momentum or recursion.
    pub velocity: Vec<f32>,
    /// The server's own model, which the one that everybody holds follows; empty where the way down
    /// is not compressed.
    pub target: Vec<f32>,
}

impl ServerState {
    /// What of it somebody has who [follows](Server::follower) a server with a compressed way down.
    #[must_use]
    pub fn followed(self) -> Self {
        Self {
            round: self.round,
            model: self.model,
            ..Self::default()
        }
    }
}

/// The server's state: model, mean shift, and the average under construction.
#[derive(Clone, Debug)]
pub struct Server {
    plan: ServerPlan,
    model: Arc<Vec<f32>>,
    /// Where the next model is written when clients keep this one: in a recursion.
    next: Arc<Vec<f32>>,
    shift: Vec<f32>,
    velocity: Vec<f32>,
    average: Vec<f32>,
    line: Vec<f32>,
    /// Where the way down is compressed.
    broadcast: Option<Broadcast>,
    /// Whether this is a copy that gets what a server tells, and no messages.
    follows: bool,
    round: Round,
    last: Option<ClientId>,
    messages: usize,
}

impl Server {
    /// A server that starts at `start`.
    ///
    /// # Panics
    /// If `start` does not have the compressor's dimension, or a smoothed or equalised layer is
    /// larger than it.
    pub fn new(plan: ServerPlan, start: Vec<f32>) -> Self {
        Self::in_role(plan, start, false)
    }

    /// A copy, from the same start, of a server that is somewhere else: it takes in what that one
    /// sends down ([`apply`](Self::apply)) and so has its model, to the bit. Where the way down is
    /// compressed this is all it has.
    ///
    /// # Panics
    /// As [`new`](Self::new).
    pub fn follower(plan: ServerPlan, start: Vec<f32>) -> Self {
        let follows = plan.downlink.is_some();
        Self::in_role(plan, start, follows)
    }

    fn in_role(plan: ServerPlan, start: Vec<f32>, follows: bool) -> Self {
        let dimension = plan.compressor.dimension();
        assert_eq!(
            start.len(),
            dimension,
            "the start must have one number per parameter"
        );
        if let Some(smoothing) = &plan.smoothing {
            assert!(
                smoothing.weights() <= dimension,
                "the smoothed layer must be part of the model"
            );
        }
        if let Some(equalizing) = &plan.equalizing {
            assert!(
                equalizing.end() <= dimension,
                "equalised layers must be part of the model"
            );
        }
        let zeros = |needed: bool| {
            if needed {
                vec![0.0; dimension]
            } else {
                Vec::new()
            }
        };
        let broadcast = |downlink| Broadcast::new(downlink, &start, follows);
        Self {
            shift: zeros(plan.shift_step.is_some() && !follows),
            velocity: zeros((plan.momentum != 0.0 || plan.recursion.is_some()) && !follows),
            broadcast: plan.downlink.as_ref().map(broadcast),
            follows,
            average: vec![0.0; dimension],
            line: Vec::new(),
            next: Arc::new(zeros(plan.recursion.is_some())),
            model: Arc::new(start),
            plan,
            round: 0,
            last: None,
            messages: 0,
        }
    }

    /// What a later process, or a client that follows the run, needs to go on from here.
    pub fn state(&self) -> ServerState {
        ServerState {
            round: self.round,
            model: self.model.as_ref().clone(),
            shift: self.shift.clone(),
            velocity: self.velocity.clone(),
            target: self.target().to_vec(),
        }
    }

    /// The server's own model where the way down is compressed; empty otherwise.
    fn target(&self) -> &[f32] {
        let broadcast = self.broadcast.as_ref();
        broadcast.map_or(&[], |broadcast| &broadcast.target)
    }

    /// Goes on from a state of this run. Messages of the open round are forgotten.
    ///
    /// # Errors
    /// When it does not fit; nothing has changed then.
    pub fn restore(&mut self, state: ServerState) -> Result<(), ServerError> {
        let fits = state.round <= self.plan.rounds
            && state.model.len() == self.model.len()
            && state.shift.len() == self.shift.len()
            && state.velocity.len() == self.velocity.len()
            && state.target.len() == self.target().len();
        let values = [&state.model, &state.shift, &state.velocity, &state.target];
        if !fits || !values.into_iter().all(|values| all_finite(values)) {
            return Err(ServerError::Unfit("the state"));
        }
        self.round = state.round;
        self.model = Arc::new(state.model);
        self.shift = state.shift;
        self.velocity = state.velocity;
        if let Some(broadcast) = &mut self.broadcast {
            broadcast.target = state.target;
        }
        self.reset();
        Ok(())
    }

    /// Forgets the messages of the open round.
    pub fn reset(&mut self) {
        self.average.fill(0.0);
        if let Some(broadcast) = &mut self.broadcast {
            broadcast.reset();
        }
        self.last = None;
        self.messages = 0;
    }

    /// The average of what was added in the open round so far.
    pub fn average(&self) -> &[f32] {
        &self.average
    }

    /// What goes down of the last round that closed in place of its average; `None` where that
    /// itself does.
    pub fn broadcast(&self) -> Option<&[u8]> {
        self.broadcast.as_ref().map(Broadcast::bytes)
    }

    /// Uses the encoded average of the open round instead of messages, whatever was added before:
    /// for a server with its own journal after a restart, and for a client with the average that it
    /// receives. [`close`](Self::close) then takes the same step, to the bit, as where the average
    /// was made. One that [follows](Self::follower) a server with a compressed way down is given
    /// its [broadcast](Self::broadcast) instead.
    ///
    /// # Errors
    /// When the run has ended, or the bytes are no average of the open round; nothing is added
    /// then.
    pub fn apply(&mut self, average: &[u8]) -> Result<(), ServerError> {
        if self.finished() {
            return Err(ServerError::Finished(self.plan.rounds));
        }
        (self.last, self.messages) = (None, 0);
        let decoded = match &mut self.broadcast {
            Some(broadcast) if self.follows => broadcast.hear(self.round, average),
            _ => wire::decode_average(self.round, average, &mut self.average),
        };
        decoded.map_err(|error| {
            self.reset();
            ServerError::Average {
                round: self.round,
                error,
            }
        })
    }

    /// What the server does in this run.
    pub fn plan(&self) -> &ServerPlan {
        &self.plan
    }

    /// The model `x^t` that everybody holds.
    pub fn model(&self) -> &Arc<Vec<f32>> {
        &self.model
    }

    /// The mean shift `s^t`; empty under direct compression.
    pub fn shift(&self) -> &[f32] {
        &self.shift
    }

    /// The largest magnitude in the models, mean shift and velocity; infinite if one is not finite.
    pub fn largest(&self) -> f32 {
        let all = [
            self.model.as_slice(),
            &self.shift,
            &self.velocity,
            self.target(),
        ];
        all.into_iter().map(largest).fold(0.0, f32::max)
    }

    /// The open round `t`: messages for it are awaited. Equal to the number of rounds at the end.
    pub fn round(&self) -> Round {
        self.round
    }

    /// How many rounds the run has.
    pub fn rounds(&self) -> Round {
        self.plan.rounds
    }

    /// Whether all rounds are done.
    pub fn finished(&self) -> bool {
        self.round >= self.plan.rounds
    }

    /// Parses a client's bytes for the open round; `false` when the client skips the round.
    ///
    /// # Errors
    /// When the bytes are no message of this run and round.
    pub fn decode(
        &self,
        client: ClientId,
        message: &[u8],
        update: &mut Update,
    ) -> Result<bool, ServerError> {
        wire::decode(&self.plan.compressor, self.round, message, update)
            .map_err(|error| ServerError::Message { client, error })
    }

    /// Adds a client's update to the average. Clients are added in ascending order, so that sums
    /// have one order whatever arrived first. For a client that sends nothing, nothing is added: it
    /// contributes its shift.
    ///
    /// # Errors
    /// When the client is unknown or out of order, or the run has ended.
    pub fn add(&mut self, client: ClientId, update: &Update) -> Result<(), ServerError> {
        self.add_with(client, |scale, average| update.add_to(scale, average))
    }

    /// The same for an update in any form: `add(scale, average)` adds `scale` times it.
    pub(crate) fn add_with(
        &mut self,
        client: ClientId,
        add: impl FnOnce(f32, &mut [f32]),
    ) -> Result<(), ServerError> {
        let clients = self.plan.weights.len();
        let Some(&weight) = self.plan.weights.get(client as usize) else {
            return Err(ServerError::UnknownClient { client, clients });
        };
        if self.finished() {
            return Err(ServerError::Finished(self.plan.rounds));
        }
        if let Some(last) = self.last
            && client <= last
        {
            return Err(ServerError::Order {
                client,
                last,
                round: self.round,
            });
        }
        self.last = Some(client);
        self.messages += 1;
        add(weight as f32, &mut self.average);
        Ok(())
    }

    /// Closes the round: `x -= eta K (s + average + grad R(x))`, where `K` is the smoothing, the
    /// equalising or the identity, and `s += gamma average`. In a recursion `v = a v + average`
    /// stands for the average. Where the way down is compressed, the step is that of the server's
    /// own model, and the one that everybody holds moves by what is told of it.
    ///
    /// # Errors
    /// When the run has ended.
    pub fn close(&mut self) -> Result<RoundSummary, ServerError> {
        if self.finished() {
            return Err(ServerError::Finished(self.plan.rounds));
        }
        let plan = &self.plan;
        let step = (plan.step_size * plan.schedule.factor(self.round, plan.rounds)) as f32;
        let shift_step = plan.shift_step.unwrap_or(0.0) as f32;
        let plain = plan.regularizer.is_none()
            && plan.momentum == 0.0
            && plan.recursion.is_none()
            && plan.step_cap.is_none()
            && plan.smoothing.is_none()
            && plan.equalizing.is_none()
            && plan.downlink.is_none();
        let nonzero = if plain && !self.shift.is_empty() {
            // The usual case in one pass over memory.
            let model = Arc::make_mut(&mut self.model);
            let state = model.iter_mut().zip(&mut self.shift);
            vectorised_widely(
                #[inline(always)]
                || {
                    let mut nonzero = 0;
                    for ((x, s), v) in state.zip(&mut self.average) {
                        nonzero += u32::from(v.to_bits() != 0);
                        *x -= step * (*s + *v);
                        *s += shift_step * *v;
                        *v = 0.0;
                    }
                    nonzero as usize
                },
            )
        } else {
            let nonzero = wire::nonzero(&self.average);
            self.step(step, shift_step);
            nonzero
        };
        let summary = RoundSummary {
            round: self.round,
            messages: self.messages,
            nonzero,
            down: match self.broadcast() {
                Some(bytes) => bytes.len(),
                None => wire::downlink_len(self.average.len(), nonzero),
            },
        };
        self.round += 1;
        self.last = None;
        self.messages = 0;
        Ok(summary)
    }

    /// The step with everything that a plan may ask for; leaves the average zero.
    fn step(&mut self, step: f32, shift_step: f32) {
        if self.plan.recursion.is_some() {
            // Clients keep this round's model until the next one. It lies still, and what they kept
            // before is overwritten, so that no round asks for memory.
            std::mem::swap(&mut self.model, &mut self.next);
            match Arc::get_mut(&mut self.model) {
                Some(model) => model.copy_from_slice(&self.next),
                None => self.model = Arc::clone(&self.next),
            }
        }
        if !self.follows {
            let step = self.turn_into_direction(step, shift_step);
            let stepped = match &mut self.broadcast {
                Some(broadcast) => broadcast.target.as_mut_slice(),
                None => Arc::make_mut(&mut self.model),
            };
            for (x, v) in stepped.iter_mut().zip(&mut self.average) {
                *x -= step * *v;
                *v = 0.0;
            }
            if let Some(broadcast) = &mut self.broadcast {
                broadcast.tell(self.round, &self.model);
            }
        }
        if let Some(broadcast) = &mut self.broadcast {
            let model: &mut Vec<f32> = Arc::make_mut(&mut self.model);
            broadcast.apply(model);
        }
    }

    /// Makes the direction of the step from the average, and returns the step size.
    fn turn_into_direction(&mut self, step: f32, shift_step: f32) -> f32 {
        if let Some(recursion) = &self.plan.recursion {
            let keep = match recursion.starts_anew(self.round) {
                true => 0.0,
                false => recursion.keep as f32,
            };
            for (velocity, v) in self.velocity.iter_mut().zip(&mut self.average) {
                // Not `0 * velocity + v`: that would turn a `-0` into `0`.
                *velocity = if keep == 0.0 {
                    *v
                } else {
                    keep * *velocity + *v
                };
                *v = *velocity;
            }
        }
        for (s, v) in self.shift.iter_mut().zip(&mut self.average) {
            let sum = *s + *v;
            *s += shift_step * *v;
            *v = sum;
        }
        if let Some(regularizer) = &self.plan.regularizer {
            regularizer.add_gradient(&self.model, Coordinates::All, 1.0, &mut self.average);
        }
        if let Some(smoothing) = &self.plan.smoothing {
            smoothing.apply(&mut self.average, &mut self.line);
        }
        if self.plan.momentum != 0.0 {
            let momentum = self.plan.momentum as f32;
            for (velocity, v) in self.velocity.iter_mut().zip(&mut self.average) {
                *velocity = momentum * *velocity + *v;
                *v = *velocity;
            }
        }
        if let Some(equalizing) = &self.plan.equalizing {
            let share = (1.0 - self.plan.momentum) as f32;
            self.average.iter_mut().for_each(|v| *v *= share);
            equalizing.apply(&mut self.average);
        }
        match self.plan.step_cap {
            Some(cap) => step.min((cap / norm(&self.average)) as f32),
            None => step,
        }
    }
}

/// The Euclidean norm, in `f64`.
fn norm(values: &[f32]) -> f64 {
    let squares = values.iter().map(|&value| f64::from(value).powi(2));
    squares.sum::<f64>().sqrt()
}
