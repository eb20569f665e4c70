//! One client without a server: its records and secrets, and a model of its own.
//!
//! A round has three parts. Every node *speaks*, from its own state and from what it has heard
//! before; everybody hears its neighbours; every node *finishes* the round. All of it is post-processing of
//! the client's releases, of what others said, and of rounding coins.

use std::sync::Arc;

use rand::Rng;

use super::mixture::{Mixture, Sent};
use super::plan::{GossipPlan, Transport};
use crate::compress::{CompressorKind, Update};
use crate::objective::{Coordinates, ObjectiveError};
use crate::privacy::Released;
use crate::protocol::{Client, Round, RoundScratch};
use crate::random::{IndexSeed, SecretRng};
use crate::wire;

/// A node of the graph.
pub struct Node {
    plan: Arc<GossipPlan>,
    client: Client,
    /// By what its releases are multiplied.
    share: f64,
    /// `W_ii`.
    own_weight: f64,
    model: Arc<Vec<f32>>,
    /// Models: the last release. Tracking: the same.
    release: Vec<f32>,
    tracked: Option<Box<Tracked>>,
    /// How many values a grid has cut off so far.
    cut_off: u64,
}

/// What a node keeps that tracks a direction.
struct Tracked {
    /// `d_i`.
    direction: Vec<f32>,
    /// `x'_i`, `d'_i`: what all who hear it know.
    known_model: Vec<f32>,
    known_direction: Vec<f32>,
}

impl Node {
    /// A node that starts at `start`, as all do.
    ///
    /// # Panics
    /// If `start` has not one number per parameter, or the client is not one of the plan's.
    pub fn new(plan: Arc<GossipPlan>, client: Client, own_weight: f64, start: &[f32]) -> Self {
        let dimension = plan.compressor.dimension();
        assert_eq!(start.len(), dimension, "one number per parameter");
        let zeros = || vec![0.0; dimension];
        let keeps = plan.transport.keeps_noise();
        let tracks = plan.transport == Transport::Tracking;
        Self {
            share: plan.share(client.id() as usize),
            own_weight,
            model: Arc::new(start.to_vec()),
            release: if keeps { zeros() } else { Vec::new() },
            tracked: tracks.then(|| {
                Box::new(Tracked {
                    direction: zeros(),
                    known_model: start.to_vec(),
                    known_direction: zeros(),
                })
            }),
            cut_off: 0,
            client,
            plan,
        }
    }

    /// The client of this node.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The node's model.
    pub fn model(&self) -> &Arc<Vec<f32>> {
        &self.model
    }

    /// How many values a grid has cut off so far.
    pub fn cut_off(&self) -> u64 {
        self.cut_off
    }

    /// Computes the messages of `round` into `sent`.
    ///
    /// # Errors
    /// When the objective fails. Then nothing was released, and the node is as it was.
    pub fn speak(
        &mut self,
        round: Round,
        mixture: &Mixture,
        scratch: &mut RoundScratch,
        sent: &mut Sent,
    ) -> Result<(), ObjectiveError> {
        (sent.bytes, sent.values) = (0, 0);
        let release = self.release(round, scratch)?;
        match self.plan.transport {
            Transport::Differences => {
                self.speak_differences(round, release, mixture, scratch, sent)
            }
            Transport::Models => self.speak_models(round, release, scratch, sent),
            Transport::Tracking => self.speak_tracking(round, release, mixture, scratch, sent),
        }
        Ok(())
    }

    /// After everybody was heard in `round`: moves the model, where that needs this round's
    /// messages.
    pub fn finish_round(&mut self, round: Round, mixture: &Mixture, sent: &Sent) {
        if self.plan.transport != Transport::Models {
            return;
        }
        let mixing = self.plan.mixing as f32;
        let step = (self.plan.mixing * self.plan.step(round)) as f32;
        let own = self.own_weight as f32;
        let rest = 1.0 - own;
        let others = mixture.model.iter().zip(sent.model.values());
        let model = Arc::make_mut(&mut self.model).iter_mut();
        for ((x, release), (mixed, said)) in model.zip(&self.release).zip(others) {
            *x = *x + mixing * (mixed - own * said - rest * *x) - step * release;
        }
    }

    /// The release of the round, with the client's share and the regularizer's gradient.
    fn release(
        &mut self,
        round: Round,
        scratch: &mut RoundScratch,
    ) -> Result<Released, ObjectiveError> {
        let mut released = self
            .client
            .select_and_release(round, &self.model, scratch)?;
        if self.share != 1.0 {
            released.scale(self.share);
        }
        let coordinates = scratch.selection.coordinates();
        let workspace = &mut scratch.estimator.workspace;
        let mut gradient = workspace.take_zeroed(released.values().len());
        let regularizer = &self.plan.regularizer;
        regularizer.add_gradient(&self.model, coordinates, 1.0, &mut gradient);
        released.add_public(&gradient);
        workspace.put(gradient);
        Ok(released)
    }

    /// `v_i = C(a (mixed - x_i) - a s release)`, on the coordinates of the release.
    fn speak_differences(
        &mut self,
        round: Round,
        mut release: Released,
        mixture: &Mixture,
        scratch: &mut RoundScratch,
        sent: &mut Sent,
    ) {
        release.scale(-(self.plan.mixing * self.plan.step(round)));
        let coordinates = scratch.selection.coordinates();
        let workspace = &mut scratch.estimator.workspace;
        let mut pull = workspace.take(release.values().len());
        let mixing = self.plan.mixing as f32;
        let towards = |place: usize| mixing * (mixture.model[place] - self.model[place]);
        match coordinates {
            Coordinates::All => {
                let places = pull.iter_mut().enumerate();
                places.for_each(|(place, pull)| *pull = towards(place));
            }
            Coordinates::Selected(chosen) => {
                let places = pull.iter_mut().zip(chosen);
                places.for_each(|(pull, &place)| *pull = towards(place as usize));
            }
        }
        release.add_public(&pull);
        workspace.put(pull);
        let mut coins = self.client.rounding_coins(round);
        self.encode(
            round,
            release,
            &mut coins,
            scratch,
            |sent| &mut sent.model,
            sent,
        );
        let model: &mut Vec<f32> = Arc::make_mut(&mut self.model);
        sent.model.add_to(1.0, model);
    }

    /// `z_i = Q(x_i)`; the step waits until everybody was heard.
    fn speak_models(
        &mut self,
        round: Round,
        release: Released,
        scratch: &mut RoundScratch,
        sent: &mut Sent,
    ) {
        self.release.copy_from_slice(release.values());
        scratch.estimator.recycle(release.into_buffer());
        self.cut_off += self.plan.compressor.beyond_range(&self.model) as u64;
        let mut model = scratch.estimator.workspace.take(self.model.len());
        model.copy_from_slice(&self.model);
        let mut coins = self.client.rounding_coins(round);
        let model = Released::derived(model);
        self.encode(
            round,
            model,
            &mut coins,
            scratch,
            |sent| &mut sent.model,
            sent,
        );
    }

    /// Moves direction and model, and sends how both differ from what all know of them.
    fn speak_tracking(
        &mut self,
        round: Round,
        release: Released,
        mixture: &Mixture,
        scratch: &mut RoundScratch,
        sent: &mut Sent,
    ) {
        let (mixing, step) = (self.plan.mixing as f32, self.plan.step(round) as f32);
        let mut coins = self.client.rounding_coins(round);
        let tracked = self.tracked.as_mut().expect("the transport tracks");
        let known = tracked.known_direction.iter().zip(&mixture.direction);
        let releases = self.release.iter_mut().zip(release.values());
        for ((d, (known, mixed)), (last, new)) in
            tracked.direction.iter_mut().zip(known).zip(releases)
        {
            // In this order a single node's direction is its release, to the bit.
            *d = (*d - *last) + *new + mixing * (mixed - known);
            *last = *new;
        }
        let residual = release_of(release, &tracked.direction, &tracked.known_direction);
        self.encode(
            round,
            residual,
            &mut coins,
            scratch,
            |sent| &mut sent.direction,
            sent,
        );
        let tracked = self.tracked.as_mut().expect("the transport tracks");
        sent.direction.add_to(1.0, &mut tracked.known_direction);

        let known = tracked.known_model.iter().zip(&mixture.model);
        let model = Arc::make_mut(&mut self.model);
        for ((x, (known, mixed)), d) in model.iter_mut().zip(known).zip(&tracked.direction) {
            *x = (*x + mixing * (mixed - known)) - step * d;
        }
        let buffer = Released::derived(scratch.estimator.workspace.take(model.len()));
        let residual = release_of(buffer, model, &tracked.known_model);
        self.encode(
            round,
            residual,
            &mut coins,
            scratch,
            |sent| &mut sent.model,
            sent,
        );
        let tracked = self.tracked.as_mut().expect("the transport tracks");
        sent.model.add_to(1.0, &mut tracked.known_model);
    }

    /// Encodes one message. Where the noise was on all coordinates, those that travel are chosen
    /// here.
    fn encode(
        &self,
        round: Round,
        mut values: Released,
        coins: &mut SecretRng,
        scratch: &mut RoundScratch,
        place: fn(&mut Sent) -> &mut Update,
        sent: &mut Sent,
    ) {
        let compressor = &self.plan.compressor;
        if self.plan.transport.keeps_noise() {
            let mut seed = IndexSeed([0; IndexSeed::LEN]);
            if matches!(compressor.kind(), CompressorKind::RandK { .. }) {
                coins.fill_bytes(&mut seed.0);
            }
            compressor.select(seed, &mut scratch.selection);
            if let Coordinates::Selected(chosen) = scratch.selection.coordinates() {
                let buffer = scratch.estimator.workspace.take(chosen.len());
                let selected = values.restricted(chosen, buffer);
                let whole = std::mem::replace(&mut values, selected);
                scratch.estimator.recycle(whole.into_buffer());
            }
        }
        if self.plan.transport == Transport::Tracking && compressor.is_unbiased() {
            // Shortened so that it contracts: an unbiased message would be too long by 1 + omega.
            values.scale(compressor.contraction());
        }
        wire::put_header(compressor, round, &mut scratch.bytes);
        let update = place(sent);
        compressor.encode(
            &values,
            &mut scratch.selection,
            coins,
            &mut scratch.bytes,
            update,
        );
        scratch.estimator.recycle(values.into_buffer());
        let count = update.values().len();
        sent.values += count;
        sent.bytes += scratch.bytes.len();
    }
}

/// `vector - known`, in the buffer of a release that is no longer needed: both are functions of
/// released values.
fn release_of(buffer: Released, vector: &[f32], known: &[f32]) -> Released {
    let mut values = buffer.into_buffer();
    for ((value, vector), known) in values.iter_mut().zip(vector).zip(known) {
        *value = vector - known;
    }
    Released::derived(values)
}
