//! What the tests of whole rounds share: made-up data, builders, and a naive reference for whole
//! runs.
#![allow(dead_code)] // Every test file uses a part of this.

mod reference;

use std::sync::Arc;

use soteriafl_core::compress::{Compressor, CompressorKind, Update};
use soteriafl_core::data::{Dataset, DenseRows, Features, SparseRows};
use soteriafl_core::estimator::Clipping;
use soteriafl_core::objective::{
    Activation, Logistic, Network, Objective, Outcome, RecordLoss, RowView,
};
use soteriafl_core::privacy::Noise;
use soteriafl_core::protocol::{
    Client, ClientPlan, Estimator, Round, RoundScratch, Schedule, Server, ServerPlan,
};
use soteriafl_core::random::{PublicSeed, SecretKey};
use soteriafl_core::sampling::Sampling;
use soteriafl_core::wire;

pub use reference::*;

/// A fixed stream of numbers in [-1, 1).
pub struct Stream(pub u64);

impl Stream {
    pub fn next(&mut self) -> f32 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    pub fn numbers(&mut self, count: usize, scale: f32) -> Vec<f32> {
        (0..count).map(|_| scale * self.next()).collect()
    }

    /// About one in `one_in` of `0..count`.
    pub fn choice(&mut self, count: usize, one_in: f32) -> Vec<u32> {
        (0..count as u32)
            .filter(|_| (self.next() + 1.0) * one_in < 2.0)
            .collect()
    }

    /// One of `0..count`.
    pub fn pick(&mut self, count: usize) -> usize {
        ((self.next() + 1.0) / 2.0 * count as f32) as usize % count
    }
}

/// Rows with about half of the features zero, and their classes.
pub fn table(seed: u64, rows: usize, columns: usize, classes: usize) -> (Vec<Vec<f32>>, Vec<u32>) {
    let mut stream = Stream(seed);
    let mut row = |_| {
        (0..columns)
            .map(|_| match stream.next() < 0.0 {
                true => 0.0,
                false => stream.next(),
            })
            .collect()
    };
    let values = (0..rows).map(&mut row).collect();
    let labels = (0..rows).map(|_| stream.pick(classes) as u32).collect();
    (values, labels)
}

pub fn dense(rows: &[Vec<f32>], labels: &[u32], classes: usize) -> Dataset {
    let features = DenseRows::new(rows[0].len(), rows.concat()).unwrap();
    Dataset::new(Features::Dense(features), labels.to_vec(), classes).unwrap()
}

pub fn sparse(rows: &[Vec<f32>], labels: &[u32], classes: usize) -> Dataset {
    let (mut starts, mut indices, mut values) = (vec![0], Vec::new(), Vec::new());
    for row in rows {
        for (index, &value) in row.iter().enumerate().filter(|(_, value)| **value != 0.0) {
            indices.push(index as u32);
            values.push(value);
        }
        starts.push(indices.len());
    }
    let features = SparseRows::new(rows[0].len(), starts, indices, values).unwrap();
    Dataset::new(Features::Sparse(features), labels.to_vec(), classes).unwrap()
}

/// A plan with nothing special; tests change what they are about.
pub fn client_plan(objective: Arc<dyn Objective>, kind: CompressorKind) -> ClientPlan {
    ClientPlan {
        compressor: Compressor::new(kind, objective.dimension(), 1.0).unwrap(),
        objective,
        estimator: Estimator::Sgd,
        clipping: Clipping::Record(1.0),
        estimate_clip: None,
        regularizer: None,
        shift_step: None,
        noise: Noise::Float,
        shared_coordinates: false,
        public_seed: PublicSeed(3),
    }
}

/// The server that goes with a client plan.
pub fn server_plan(plan: &ClientPlan, clients: usize, rounds: Round) -> ServerPlan {
    ServerPlan {
        compressor: plan.compressor.clone(),
        weights: vec![1.0 / clients as f64; clients],
        step_size: 0.3,
        schedule: Schedule::Constant,
        momentum: 0.0,
        recursion: plan.estimator.recursion(),
        step_cap: None,
        smoothing: None,
        equalizing: None,
        downlink: None,
        shift_step: plan.shift_step,
        regularizer: None,
        rounds,
    }
}

/// One client with its message of a round as dense numbers.
pub struct Sender {
    pub client: Client,
    pub scratch: RoundScratch,
    pub bytes: Vec<u8>,
    pub update: Update,
}

impl Sender {
    pub fn new(client: Client) -> Self {
        Self {
            client,
            scratch: RoundScratch::default(),
            bytes: Vec::new(),
            update: Update::default(),
        }
    }

    /// Whether the client takes part; the message is then in `bytes` and `update`.
    pub fn send(&mut self, round: Round, model: &Arc<Vec<f32>>) -> bool {
        let message = self
            .client
            .message(round, model, &mut self.scratch)
            .unwrap();
        self.bytes.clear();
        self.bytes.extend_from_slice(message.bytes);
        if let Some(update) = message.update {
            self.update = update.clone();
        }
        message.update.is_some()
    }
}

/// A run in all its particulars, and the naive gradient of its objective.
pub struct Setting {
    pub name: String,
    pub plan: ClientPlan,
    pub sampling: Sampling,
    pub sigma: f64,
    pub server: ServerPlan,
    pub naive: NaiveGradient,
    pub data: Vec<Arc<Dataset>>,
    pub start: Vec<f32>,
    pub seed: u64,
}

impl Setting {
    pub fn key(&self, client: usize) -> SecretKey {
        SecretKey::simulated(self.seed, client as u32)
    }

    pub fn clients(&self) -> Vec<Client> {
        let plan = Arc::new(self.plan.clone());
        let build = |(i, data): (usize, &Arc<Dataset>)| {
            let (plan, data) = (Arc::clone(&plan), Arc::clone(data));
            Client::new(i as u32, plan, data, self.sampling, self.sigma, self.key(i)).unwrap()
        };
        self.data.iter().enumerate().map(build).collect()
    }

    /// The product, driven by hand through its bytes: model, server's shift, clients' shifts.
    pub fn run_product(&self) -> (Vec<f32>, Vec<f32>, Vec<Vec<f32>>) {
        let mut server = Server::new(self.server.clone(), self.start.clone());
        let mut senders: Vec<Sender> = self.clients().into_iter().map(Sender::new).collect();
        let mut received = Update::default();
        while !server.finished() {
            let (round, model) = (server.round(), Arc::clone(server.model()));
            for (i, sender) in senders.iter_mut().enumerate() {
                let present = sender.send(round, &model);
                let decoded = server.decode(i as u32, &sender.bytes, &mut received);
                assert_eq!(decoded, Ok(present), "{}", self.name);
                if present {
                    assert_eq!(received.values(), sender.update.values());
                    assert_eq!(received.coordinates(), sender.update.coordinates());
                    server.add(i as u32, &received).unwrap();
                    sender.client.accepted(&received);
                }
            }
            drop(model);
            server.close().unwrap();
        }
        let shifts = senders.iter().map(|sender| sender.client.shift().to_vec());
        (
            server.model().to_vec(),
            server.shift().to_vec(),
            shifts.collect(),
        )
    }

    /// Both, compared to `tolerance`, relative to the largest number.
    pub fn check(&self, tolerance: f64) {
        let (model, shift, shifts) = self.run_product();
        let (reference_model, reference_shift, reference_shifts) = self.run_reference();
        self.close(&model, &reference_model, tolerance, "model");
        assert_eq!(shift.is_empty(), self.server.shift_step.is_none());
        if !shift.is_empty() {
            self.close(&shift, &reference_shift, tolerance, "server's shift");
            for (shift, reference) in shifts.iter().zip(&reference_shifts) {
                self.close(shift, reference, tolerance, "client's shift");
            }
        }
    }

    fn close(&self, found: &[f32], expected: &[f64], tolerance: f64, what: &str) {
        let largest = expected.iter().fold(1.0f64, |most, x| most.max(x.abs()));
        for (i, (&found, expected)) in found.iter().zip(expected).enumerate() {
            let error = (f64::from(found) - expected).abs();
            assert!(
                error <= tolerance * largest,
                "{}: {what} {i}: {found} instead of {expected}",
                self.name
            );
        }
    }
}

/// An objective whose every record has gradient `x_0 a`, `a` the record's features: a server that
/// chooses `x_0` steers all gradients. Records whose first feature is one of these go wrong
/// instead.
pub struct Marked(pub usize);

/// The gradient is not a number.
pub const NOT_A_NUMBER: f32 = 1001.0;
/// The gradient is infinite in one coordinate.
pub const INFINITE: f32 = 1002.0;
/// The gradient is infinite in all coordinates, with both signs.
pub const ALL_INFINITE: f32 = 1003.0;
/// The gradient is as large as 32 bits allow.
pub const HUGE: f32 = 1004.0;

impl RecordLoss for Marked {
    fn dimension(&self) -> usize {
        self.0
    }

    fn loss_and_gradient(
        &self,
        model: &[f32],
        features: RowView<'_>,
        _label: u32,
        gradient: &mut [f32],
    ) -> Outcome {
        features.add_scaled(1.0, gradient);
        let mark = gradient[0];
        let last = gradient.len() - 1;
        for (i, value) in gradient.iter_mut().enumerate() {
            let sign = if i % 2 == 0 { 1.0 } else { -1.0 };
            if mark == NOT_A_NUMBER {
                *value = f32::NAN;
            } else if mark == ALL_INFINITE {
                *value = sign * f32::INFINITY;
            } else if mark == HUGE {
                *value = sign * f32::MAX;
            } else {
                *value *= model[0];
            }
        }
        if mark == INFINITE {
            gradient[last] = f32::NEG_INFINITY;
        }
        Outcome::default()
    }
}

pub fn logistic(columns: usize) -> Arc<dyn Objective> {
    Arc::new(Logistic::new(columns))
}

pub fn network(columns: usize, hidden: &[usize], classes: usize) -> Arc<dyn Objective> {
    Arc::new(Network::new(columns, hidden, classes, Activation::Sigmoid).unwrap())
}

/// Reads `bytes` as a message of `round`, and insists that it is one.
pub fn decoded(compressor: &Compressor, round: Round, bytes: &[u8]) -> Update {
    let mut update = Update::default();
    assert_eq!(
        wire::decode(compressor, round, bytes, &mut update),
        Ok(true)
    );
    update
}
