//! A naive reference for whole runs: Algorithms 1 to 3 of the paper written down in `f64`, with
//! dense vectors, one gradient per record, and SAGA's table as the models of the last visits. It
//! shares nothing with the product but the plan and the random numbers, which it draws for itself
//! from the same keys.

use rand::Rng;
use soteriafl_core::compress::{DownlinkKind, Rounding, Selection};
use soteriafl_core::estimator::Clipping;
use soteriafl_core::objective::{Activation, Coordinates, Regularizer};
use soteriafl_core::privacy::Noise;
use soteriafl_core::protocol::{ClientPlan, Equalizing, Estimator, Round, Schedule, Smoothing};
use soteriafl_core::random::{
    IndexSeed, PublicPurpose, PublicSeed, Purpose, SecretKey, fill_standard_normal, unit,
};
use soteriafl_core::sampling::Sampling;

use super::Setting;

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

/// Softmax cross-entropy of a fully connected network, from its definition.
pub fn network_loss(
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

impl Setting {
    /// The reference run: model, server's shift, clients' shifts.
    pub fn run_reference(&self) -> (Vec<f64>, Vec<f64>, Vec<Vec<f64>>) {
        let plan = &self.server;
        let mut clients: Vec<ReferenceClient> = (0..self.data.len())
            .map(|i| ReferenceClient::new(self, i))
            .collect();
        let mut x: Vec<f64> = self.start.iter().map(|&x| f64::from(x)).collect();
        let mut s = vec![0.0; x.len()];
        let mut velocity = vec![0.0; x.len()];
        let mut recursive = vec![0.0; x.len()];
        // Where the way down is compressed, the server's own model; `x` is what everybody has.
        let mut target = x.clone();
        for round in 0..plan.rounds {
            let mut mean = vec![0.0; x.len()];
            for (i, client) in clients.iter_mut().enumerate() {
                if let Some(v) = client.message(self, round, &x) {
                    add(&mut mean, plan.weights[i], &v);
                    add(&mut client.shift, plan.shift_step.unwrap_or(0.0), &v);
                }
            }
            let mut direction = s.clone();
            if let Some(recursion) = &plan.recursion {
                if recursion.starts_anew(round) {
                    recursive.fill(0.0);
                }
                recursive = scaled(recursive, recursion.keep);
                add(&mut recursive, 1.0, &mean);
                mean.clone_from(&recursive);
            }
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
            let norm = direction.iter().map(|v| v * v).sum::<f64>().sqrt();
            let step = (plan.step_size * factor).min(plan.step_cap.unwrap_or(f64::INFINITY) / norm);
            add(&mut target, -step, &direction);
            match &plan.downlink {
                Some(downlink) => {
                    let told = told(downlink.kind(), self.plan.public_seed, round, &target, &x);
                    add(&mut x, 1.0, &told);
                }
                None => x.clone_from(&target),
            }
            add(&mut s, plan.shift_step.unwrap_or(0.0), &mean);
        }
        let shifts = clients.into_iter().map(|client| client.shift).collect();
        (x, s, shifts)
    }
}

/// What the server tells of the difference of two models, from the definitions: dense, in `f64`.
fn told(kind: DownlinkKind, seed: PublicSeed, round: Round, x: &[f64], w: &[f64]) -> Vec<f64> {
    let d = x.len();
    let mut stream = seed.stream(PublicPurpose::Downlink, round);
    let chosen: Vec<usize> = match kind.coordinates {
        None => (0..d).collect(),
        Some(k) => {
            let (mut chosen, mut marks) = (Vec::new(), Vec::new());
            let mut seed = IndexSeed([0; IndexSeed::LEN]);
            stream.fill_bytes(&mut seed.0);
            seed.choose(k, d, &mut chosen, &mut marks);
            chosen.into_iter().map(|index| index as usize).collect()
        }
    };
    let mut told = vec![0.0; d];
    for bucket in chosen.chunks(512) {
        let values: Vec<f64> = bucket.iter().map(|&i| x[i] - w[i]).collect();
        let b = values.len() as f64;
        let sum: f64 = values.iter().map(|v| v.abs()).sum();
        let norm = values.iter().map(|v| v * v).sum::<f64>().sqrt();
        for (&i, v) in bucket.iter().zip(&values) {
            told[i] = match kind.rounding {
                Rounding::Exact => *v,
                Rounding::Sign => (sum / b).copysign(if *v < 0.0 { -1.0 } else { 1.0 }),
                Rounding::Natural => {
                    let coin = unit(&mut stream);
                    let low = 2f64.powf(v.abs().log2().floor());
                    let up = coin < v.abs() / low - 1.0;
                    let rounded = if *v == 0.0 {
                        0.0
                    } else {
                        low * f64::from(1 + u8::from(up))
                    };
                    rounded.copysign(*v) * 8.0 / 9.0
                }
                Rounding::Qsgd { levels } => {
                    let (coin, s) = (unit(&mut stream), f64::from(levels));
                    let position = if norm > 0.0 { v.abs() / norm * s } else { 0.0 };
                    let up = coin < position - position.floor();
                    let level = position.floor() + f64::from(u8::from(up));
                    let omega = (b / (s * s)).min(b.sqrt() / s);
                    (norm * level / s).copysign(*v) / (1.0 + omega)
                }
            };
        }
    }
    told
}

/// One client of the reference run.
pub struct ReferenceClient {
    rows: Vec<Vec<f64>>,
    labels: Vec<usize>,
    key: SecretKey,
    pub shift: Vec<f64>,
    /// SVRG's `w`, or the model of the round before.
    snapshot: Option<Vec<f64>>,
    /// SAGA's `w_j`.
    visits: Option<Vec<Vec<f64>>>,
    /// The models of SAG's last visits; no model where there was none.
    last_visits: Option<Vec<Option<Vec<f64>>>>,
}

impl ReferenceClient {
    pub fn new(setting: &Setting, client: usize) -> Self {
        let data = &setting.data[client];
        Self {
            rows: (0..data.rows()).map(|row| data.full_row(row)).collect(),
            labels: data.labels().iter().map(|&label| label as usize).collect(),
            key: setting.key(client),
            shift: vec![0.0; setting.start.len()],
            snapshot: None,
            visits: None,
            last_visits: None,
        }
    }

    /// `v_i` on all coordinates, or nothing from a client that skips the round.
    pub fn message(&mut self, setting: &Setting, round: Round, x: &[f64]) -> Option<Vec<f64>> {
        let plan = &setting.plan;
        let p = plan.compressor.participation();
        let mut stream = self.key.stream(round, Purpose::Participation);
        let present = p >= 1.0 || unit(&mut stream) < p;
        let w = self.snapshot.get_or_insert_with(|| x.to_vec()).clone();
        let message = present.then(|| self.release(setting, round, x, &w));
        if let Estimator::Svrg {
            snapshot_probability,
            ..
        } = plan.estimator
            && plan.public_seed.snapshot_coin(round, snapshot_probability)
        {
            self.snapshot = Some(x.to_vec());
        }
        if plan.estimator.recursion().is_some() {
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
        let sigma = setting.sigma * noise_factor(plan, round, x, w);
        let mut v = vec![0.0; d];
        let mut standard = vec![0.0; chosen.len()];
        if plan.noise != Noise::None {
            fill_standard_normal(&mut noise, &mut standard);
        }
        for (&i, xi) in chosen.iter().zip(standard) {
            let shift = self.shift.get(i).copied().unwrap_or(0.0);
            v[i] = scale * (g[i] + sigma * f64::from(xi) - shift);
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
            Estimator::Gd | Estimator::Sgd => {
                for &j in &batch {
                    add(&mut sum, 1.0 / b, &gradient(j as usize, x));
                }
                return sum;
            }
            Estimator::Svrg {
                difference_clip, ..
            } => (difference_clip, vec![w.to_vec(); m]),
            Estimator::Recursive(recursion) => {
                let scale = increment_scale(&setting.plan, round, x, w);
                for &j in &batch {
                    let mut increment = gradient(j as usize, x);
                    if let Some(scale) = scale {
                        let reference = gradient(j as usize, w);
                        add(&mut increment, -recursion.keep, &reference);
                        let bound = match setting.plan.clipping {
                            Clipping::Record(clip) => scale * clip,
                            _ => f64::INFINITY,
                        };
                        increment = clipped(increment, bound);
                    }
                    add(&mut sum, 1.0 / b, &increment);
                }
                return sum;
            }
            Estimator::Sag { memory } => {
                let unvisited = || vec![None; m];
                let visits = self.last_visits.get_or_insert_with(unvisited);
                batch
                    .iter()
                    .for_each(|&j| visits[j as usize] = Some(x.to_vec()));
                for (j, visit) in visits.iter().enumerate() {
                    if let Some(visit) = visit {
                        add(&mut sum, memory / m as f64, &gradient(j, visit));
                    }
                }
                for &j in &batch {
                    add(&mut sum, (1.0 - memory) / b, &gradient(j as usize, x));
                }
                return sum;
            }
            Estimator::Saga { difference_clip } => {
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
        if let Estimator::Saga { .. } = setting.plan.estimator {
            let visits = self.visits.insert(references);
            batch.iter().for_each(|&j| visits[j as usize] = x.to_vec());
        }
        sum
    }
}

/// `H/G` of an increment; `None` where the recursion starts anew, or there is none.
pub fn increment_scale(plan: &ClientPlan, round: Round, x: &[f64], before: &[f64]) -> Option<f64> {
    let recursion = plan.estimator.recursion()?;
    let Clipping::Record(clip) = plan.clipping else {
        return (!recursion.starts_anew(round)).then_some(1.0);
    };
    let pairs = x.iter().zip(before);
    let distance = pairs.map(|(x, y)| (x - y).powi(2)).sum::<f64>().sqrt();
    (!recursion.starts_anew(round)).then(|| recursion.scale(clip, distance))
}

/// By how much the noise of this round exceeds `sigma`.
fn noise_factor(plan: &ClientPlan, round: Round, x: &[f64], before: &[f64]) -> f64 {
    match (
        increment_scale(plan, round, x, before),
        plan.estimator.recursion(),
    ) {
        (Some(scale), Some(recursion)) => scale * recursion.noise_ratio,
        _ => 1.0,
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

pub fn regularizer_gradient(regularizer: Regularizer, x: &[f64]) -> Vec<f64> {
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

/// Equalising by its definition, for blocks of two columns: the root of a positive 2x2 matrix `A`
/// is `(A + r I) / sqrt(trace A + 2 r)` with `r = sqrt(det A)`.
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
