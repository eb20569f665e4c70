//! What the tests of whole rounds share: made-up data, builders, and a naive twin of the algorithm.
//!
//! The twin is Algorithms 1 to 3 of the paper written down in `f64`: dense vectors, one gradient per
//! record, SAGA's table as the models of the last visits. It shares nothing with the product but the
//! plan and the random numbers, which it draws for itself from the same keys.
#![allow(dead_code)] // Every test file uses a part of this.

use std::sync::Arc;

use soteria_core::compress::{Compressor, CompressorKind, Selection, Update};
use soteria_core::data::{Dataset, DenseRows, Features, SparseRows};
use soteria_core::estimator::Clipping;
use soteria_core::objective::{
    Activation, Coordinates, Logistic, Network, Objective, Outcome, RecordLoss, Regularizer,
    RowView,
};
use soteria_core::privacy::Noise;
use soteria_core::protocol::{
    Client, ClientPlan, Equalizing, EstimatorPlan, Round, RoundScratch, Schedule, Server,
    ServerPlan, Smoothing,
};
use soteria_core::random::{IndexSeed, PublicSeed, Purpose, SecretKey, fill_standard_normal, unit};
use soteria_core::sampling::Sampling;
use soteria_core::wire;

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
        estimator: EstimatorPlan::Minibatch,
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
        smoothing: None,
        equalizing: None,
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
        let message = self.client.message(round, model, &mut self.scratch);
        self.bytes.clear();
        self.bytes.extend_from_slice(message.bytes);
        if let Some(update) = message.update {
            self.update = update.clone();
        }
        message.update.is_some()
    }
}

/// The gradient of one record (model, row, class) in `f64`.
pub type NaiveGradient = Box<dyn Fn(&[f64], &[f64], usize) -> Vec<f64>>;

pub fn naive_logistic() -> NaiveGradient {
    Box::new(|model, row, label| {
        let sign = if label == 1 { 1.0 } else { -1.0 };
        let margin: f64 = model.iter().zip(row).map(|(x, a)| x * a).sum();
        let slope = -sign / (1.0 + (sign * margin).exp());
        row.iter().map(|a| slope * a).collect()
    })
}

/// Central differences of a loss that is written down from the definition of the network.
pub fn naive_network(sizes: Vec<usize>, activation: Activation) -> NaiveGradient {
    Box::new(move |model, row, label| {
        let mut moved = model.to_vec();
        let step = 1e-5;
        (0..model.len())
            .map(|i| {
                moved[i] = model[i] + step;
                let above = network_loss(&sizes, activation, &moved, row, label);
                moved[i] = model[i] - step;
                let below = network_loss(&sizes, activation, &moved, row, label);
                moved[i] = model[i];
                (above - below) / (2.0 * step)
            })
            .collect()
    })
}

fn network_loss(
    sizes: &[usize],
    activation: Activation,
    model: &[f64],
    row: &[f64],
    label: usize,
) -> f64 {
    let (mut values, mut next) = (row.to_vec(), 0);
    for (l, pair) in sizes.windows(2).enumerate() {
        let weights = &model[next..next + pair[0] * pair[1]];
        let biases = &model[next + pair[0] * pair[1]..][..pair[1]];
        next += (pair[0] + 1) * pair[1];
        let outputs = (0..pair[1]).map(|r| {
            let inputs = values.iter().enumerate();
            let z = biases[r]
                + inputs
                    .map(|(c, a)| a * weights[c * pair[1] + r])
                    .sum::<f64>();
            match activation {
                _ if l + 2 == sizes.len() => z,
                Activation::Sigmoid => 1.0 / (1.0 + (-z).exp()),
                Activation::Tanh => z.tanh(),
                Activation::Relu => z.max(0.0),
            }
        });
        values = outputs.collect();
    }
    values.iter().map(|z| z.exp()).sum::<f64>().ln() - values[label]
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

    /// The twin: model, server's shift, clients' shifts.
    pub fn run_twin(&self) -> (Vec<f64>, Vec<f64>, Vec<Vec<f64>>) {
        let plan = &self.server;
        let mut clients: Vec<TwinClient> = (0..self.data.len())
            .map(|i| TwinClient::new(self, i))
            .collect();
        let mut x: Vec<f64> = self.start.iter().map(|&x| f64::from(x)).collect();
        let mut s = vec![0.0; x.len()];
        let mut velocity = vec![0.0; x.len()];
        for round in 0..plan.rounds {
            let mut mean = vec![0.0; x.len()];
            for (i, client) in clients.iter_mut().enumerate() {
                if let Some(v) = client.message(self, round, &x) {
                    add(&mut mean, plan.weights[i], &v);
                    add(&mut client.shift, plan.shift_step.unwrap_or(0.0), &v);
                }
            }
            let mut direction = s.clone();
            add(&mut direction, 1.0, &mean);
            if let Some(regularizer) = plan.regularizer {
                add(&mut direction, 1.0, &regularizer_gradient(regularizer, &x));
            }
            if let Some(smoothing) = plan.smoothing {
                direction = smoothed(smoothing, &direction);
            }
            for (velocity, v) in velocity.iter_mut().zip(&direction) {
                *velocity = plan.momentum * *velocity + v;
            }
            let direction = match &plan.equalizing {
                Some(equalizing) => {
                    let share = 1.0 - plan.momentum;
                    let average: Vec<f64> = velocity.iter().map(|v| share * v).collect();
                    equalized(equalizing, &average)
                }
                None => velocity.clone(),
            };
            let t = f64::from(round);
            let factor = match plan.schedule {
                Schedule::Constant => 1.0,
                Schedule::Cosine => {
                    (1.0 + (std::f64::consts::PI * t / f64::from(plan.rounds)).cos()) / 2.0
                }
                Schedule::InverseSqrt => (t + 1.0).powf(-0.5),
            };
            add(&mut x, -plan.step_size * factor, &direction);
            add(&mut s, plan.shift_step.unwrap_or(0.0), &mean);
        }
        let shifts = clients.into_iter().map(|client| client.shift).collect();
        (x, s, shifts)
    }

    /// Both, compared to `tolerance`, relative to the largest number.
    pub fn check(&self, tolerance: f64) {
        let (model, shift, shifts) = self.run_product();
        let (twin_model, twin_shift, twin_shifts) = self.run_twin();
        self.close(&model, &twin_model, tolerance, "model");
        assert_eq!(shift.is_empty(), self.server.shift_step.is_none());
        if !shift.is_empty() {
            self.close(&shift, &twin_shift, tolerance, "server's shift");
            for (shift, twin) in shifts.iter().zip(&twin_shifts) {
                self.close(shift, twin, tolerance, "client's shift");
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

/// One client of the twin.
pub struct TwinClient {
    rows: Vec<Vec<f64>>,
    labels: Vec<usize>,
    key: SecretKey,
    pub shift: Vec<f64>,
    /// SVRG's `w`.
    snapshot: Option<Vec<f64>>,
    /// SAGA's `w_j`.
    visits: Option<Vec<Vec<f64>>>,
}

impl TwinClient {
    pub fn new(setting: &Setting, client: usize) -> Self {
        let data = &setting.data[client];
        Self {
            rows: (0..data.rows()).map(|row| data.full_row(row)).collect(),
            labels: data.labels().iter().map(|&label| label as usize).collect(),
            key: setting.key(client),
            shift: vec![0.0; setting.start.len()],
            snapshot: None,
            visits: None,
        }
    }

    /// `v_i` on all coordinates, or nothing from a client that sits out.
    pub fn message(&mut self, setting: &Setting, round: Round, x: &[f64]) -> Option<Vec<f64>> {
        let plan = &setting.plan;
        let p = plan.compressor.participation();
        let mut stream = self.key.stream(round, Purpose::Participation);
        let present = p >= 1.0 || unit(&mut stream) < p;
        let w = self.snapshot.get_or_insert_with(|| x.to_vec()).clone();
        let message = present.then(|| self.release(setting, round, x, &w));
        if let EstimatorPlan::Svrg {
            snapshot_probability,
            ..
        } = plan.estimator
            && plan.public_seed.snapshot_coin(round, snapshot_probability)
        {
            self.snapshot = Some(x.to_vec());
        }
        message
    }

    fn release(&mut self, setting: &Setting, round: Round, x: &[f64], w: &[f64]) -> Vec<f64> {
        let plan = &setting.plan;
        let d = x.len();
        let mut selection = Selection::default();
        let mut noise = self.key.stream(round, Purpose::Noise);
        let own = IndexSeed::draw(&mut noise);
        let seed = match plan.shared_coordinates {
            true => plan.public_seed.coordinates(round),
            false => own,
        };
        plan.compressor.select(seed, &mut selection);
        let chosen: Vec<usize> = match selection.coordinates() {
            Coordinates::All => (0..d).collect(),
            Coordinates::Selected(chosen) => chosen.iter().map(|&i| i as usize).collect(),
        };
        let mut g = self.estimate(setting, round, x, w, &chosen);
        if let Some(regularizer) = plan.regularizer {
            add(&mut g, 1.0, &regularizer_gradient(regularizer, x));
        }
        if let Some(bound) = plan.estimate_clip {
            g = clipped(g, bound);
        }
        let scale = d as f64 / chosen.len() as f64 / plan.compressor.participation();
        let mut v = vec![0.0; d];
        let mut standard = vec![0.0; chosen.len()];
        if plan.noise != Noise::None {
            fill_standard_normal(&mut noise, &mut standard);
        }
        for (&i, xi) in chosen.iter().zip(standard) {
            v[i] = scale * (g[i] + setting.sigma * f64::from(xi) - self.shift[i]);
        }
        v
    }

    fn estimate(
        &mut self,
        setting: &Setting,
        round: Round,
        x: &[f64],
        w: &[f64],
        chosen: &[usize],
    ) -> Vec<f64> {
        let m = self.rows.len();
        let gradient = |j: usize, at: &[f64]| {
            let g = (setting.naive)(at, &self.rows[j], self.labels[j]);
            match setting.plan.clipping {
                Clipping::None => g,
                Clipping::Record(bound) => clipped(g, bound),
                Clipping::Selected(bound) => {
                    let norm = chosen.iter().map(|&i| g[i] * g[i]).sum::<f64>().sqrt();
                    scaled(g, (bound / norm).min(1.0))
                }
            }
        };
        let mut batch = Vec::new();
        let mut coins = self.key.stream(round, Purpose::Sampling);
        setting.sampling.draw(m, &mut coins, &mut batch);
        let b = match setting.sampling {
            Sampling::Full => m as f64,
            Sampling::Poisson { batch, .. } => batch,
            Sampling::WithReplacement { batch } => batch as f64,
        };
        let mut sum = vec![0.0; x.len()];
        let (difference_clip, references) = match setting.plan.estimator {
            EstimatorPlan::Minibatch => {
                for &j in &batch {
                    add(&mut sum, 1.0 / b, &gradient(j as usize, x));
                }
                return sum;
            }
            EstimatorPlan::Svrg {
                difference_clip, ..
            } => (difference_clip, vec![w.to_vec(); m]),
            EstimatorPlan::Saga { difference_clip } => {
                let visits = self.visits.take().unwrap_or_else(|| vec![x.to_vec(); m]);
                (difference_clip, visits)
            }
        };
        for &j in &batch {
            let j = j as usize;
            let mut difference = gradient(j, x);
            add(&mut difference, -1.0, &gradient(j, &references[j]));
            let bound = difference_clip.unwrap_or(f64::INFINITY);
            add(&mut sum, 1.0 / b, &clipped(difference, bound));
        }
        for (j, reference) in references.iter().enumerate() {
            add(&mut sum, 1.0 / m as f64, &gradient(j, reference));
        }
        if let EstimatorPlan::Saga { .. } = setting.plan.estimator {
            let visits = self.visits.insert(references);
            batch.iter().for_each(|&j| visits[j as usize] = x.to_vec());
        }
        sum
    }
}

pub fn add(target: &mut [f64], scale: f64, source: &[f64]) {
    for (target, source) in target.iter_mut().zip(source) {
        *target += scale * source;
    }
}

fn scaled(mut vector: Vec<f64>, scale: f64) -> Vec<f64> {
    vector.iter_mut().for_each(|value| *value *= scale);
    vector
}

fn clipped(vector: Vec<f64>, bound: f64) -> Vec<f64> {
    let norm = vector.iter().map(|value| value * value).sum::<f64>().sqrt();
    let scale = if norm > bound { bound / norm } else { 1.0 };
    scaled(vector, scale)
}

fn regularizer_gradient(regularizer: Regularizer, x: &[f64]) -> Vec<f64> {
    x.iter()
        .map(|x| match regularizer {
            Regularizer::None => 0.0,
            Regularizer::L2 { lambda } => f64::from(lambda) * x,
            Regularizer::Nonconvex { lambda } => {
                f64::from(lambda) * 2.0 * x / (1.0 + x * x).powi(2)
            }
        })
        .collect()
}

/// An objective whose every record has gradient `x_0 a`, `a` the record's features: a server that
/// chooses `x_0` steers all gradients. Records whose first feature is one of these go wrong instead.
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

/// Equalising by its definition, for blocks of two columns: the root of a positive 2x2 matrix `A` is
/// `(A + r I) / sqrt(trace A + 2 r)` with `r = sqrt(det A)`.
fn equalized(equalizing: &Equalizing, direction: &[f64]) -> Vec<f64> {
    let mut values = direction.to_vec();
    for block in &equalizing.blocks {
        assert_eq!(block.columns, 2);
        let rows = &mut values[block.start..block.end()];
        let (mut a, mut b, mut c) = (equalizing.floor.powi(2), 0.0, equalizing.floor.powi(2));
        for row in rows.chunks_exact(2) {
            a += row[0] * row[0];
            b += row[0] * row[1];
            c += row[1] * row[1];
        }
        let r = (a * c - b * b).sqrt();
        let scale = (a + c + 2.0 * r).sqrt();
        let (a, b, c) = ((a + r) / scale, b / scale, (c + r) / scale);
        let determinant = a * c - b * b;
        for row in rows.chunks_exact_mut(2) {
            let (x, y) = (row[0], row[1]);
            row[0] = (c * x - b * y) / determinant;
            row[1] = (a * y - b * x) / determinant;
        }
    }
    values
}

/// The smoothing by its definition: one matrix `(1, 2, 1)/4` per axis, pass after pass.
fn smoothed(smoothing: Smoothing, direction: &[f64]) -> Vec<f64> {
    let Smoothing {
        rows,
        columns,
        units,
        passes,
    } = smoothing;
    let mut values = direction.to_vec();
    for _ in 0..passes {
        for (dr, dc) in [(1, 0), (0, 1)] {
            let old = values.clone();
            let at = |row: isize, column: isize, unit: usize| {
                let inside =
                    (0..rows as isize).contains(&row) && (0..columns as isize).contains(&column);
                match inside {
                    true => old[(row as usize * columns + column as usize) * units + unit],
                    false => 0.0,
                }
            };
            for row in 0..rows as isize {
                for column in 0..columns as isize {
                    for unit in 0..units {
                        let sum = at(row - dr, column - dc, unit)
                            + 2.0 * at(row, column, unit)
                            + at(row + dr, column + dc, unit);
                        values[(row as usize * columns + column as usize) * units + unit] =
                            sum / 4.0;
                    }
                }
            }
        }
    }
    values
}
