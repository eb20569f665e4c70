//! Attacks on the bounds that the accountant relies on: two clients that differ in one record, the
//! same random numbers, a server that chooses its models at will. On the coordinates that travel
//! their messages may never differ by more than the estimator's pair allows:
//!
//! | estimator | record not sampled | record sampled |
//! | --- | --- | --- |
//! | GD | | `G/m` |
//! | SGD | 0 | `G/b` |
//! | SVRG, SAGA | `G/m` | `(2 - q) G/b` |
//! | SVRG, SAGA, differences clipped to `C_A` | `G/m` | `C_A/b + G/m` |
//! | recursive, in units of the round's public scale | 0 | `G/b` |
//!
//! once where the other record is null, twice where it is any other; and as the sum of these for all
//! records of a person.

mod common;

use std::sync::Arc;

use common::*;
use soteriafl_accountant::{IncrementClip, Recursion};
use soteriafl_core::compress::CompressorKind;
use soteriafl_core::data::Dataset;
use soteriafl_core::estimator::Clipping;
use soteriafl_core::objective::{Activation, Coordinates, Explicit, Network, Objective};
use soteriafl_core::protocol::{Client, ClientPlan, Estimator, Round};
use soteriafl_core::random::{Purpose, SecretKey};
use soteriafl_core::sampling::{Coins, Sampling};

const RECORDS: usize = 12;
const BATCH: f64 = 3.0;
const CLIP: f64 = 0.5;
const DIFFERENCE: f64 = 0.2;
/// The records under attack: one, or all of a person.
const TARGETS: [usize; 3] = [7, 2, 9];
const KEY: (u64, u32) = (31, 4);
/// A single record.
const RECORD: (&[usize], usize) = (&[TARGETS[0]], 0);

const POISSON: Sampling = Sampling::Poisson {
    batch: BATCH,
    coins: Coins::Exact,
};

/// An estimator, how it samples, and its pair `(c0, c1)`.
fn estimators() -> Vec<(Estimator, Sampling, (f64, f64))> {
    let m = RECORDS as f64;
    let q = BATCH / m;
    let svrg = |difference_clip| Estimator::Svrg {
        snapshot_probability: 0.3,
        difference_clip,
    };
    let saga = |difference_clip| Estimator::Saga { difference_clip };
    let sag = |memory| Estimator::Sag { memory };
    let mixed = |a: f64| (a * CLIP / m, (1.0 - a) * CLIP / BATCH + a * CLIP / m);
    let loose = (CLIP / m, (2.0 - q) * CLIP / BATCH);
    let clipped = (CLIP / m, DIFFERENCE / BATCH + CLIP / m);
    vec![
        (Estimator::Sgd, Sampling::Full, (0.0, CLIP / m)),
        (Estimator::Sgd, POISSON, (0.0, CLIP / BATCH)),
        (svrg(None), POISSON, loose),
        (svrg(Some(DIFFERENCE)), POISSON, clipped),
        (saga(None), POISSON, loose),
        (saga(Some(DIFFERENCE)), POISSON, clipped),
        (sag(0.6), POISSON, mixed(0.6)),
        (sag(1.0), POISSON, (CLIP / m, CLIP / m)),
        (recursive(0.7, None), POISSON, (0.0, CLIP / BATCH)),
        (recursive(1.0, Some(4)), POISSON, (0.0, CLIP / BATCH)),
        (recursive(1.0, Some(9)), Sampling::Full, (0.0, CLIP / m)),
    ]
}

/// Increments bounded by a number, or by how far the server's models are apart.
fn recursive(keep: f64, period: Option<u32>) -> Estimator {
    Estimator::Recursive(Recursion {
        keep,
        period,
        increments: match period {
            Some(_) => IncrementClip::Smooth(0.01),
            None => IncrementClip::Fixed(DIFFERENCE),
        },
        noise_ratio: 1.0,
    })
}

struct Attack {
    name: &'static str,
    objective: Arc<dyn Objective>,
    /// All records; the targets' stand for nobody.
    rows: Vec<Vec<f32>>,
    labels: Vec<u32>,
    classes: usize,
    sparse: bool,
    /// What stands in a target's place: row, class.
    targets: Vec<(Vec<f32>, u32)>,
    /// Whether the first target has a gradient of zero at any model.
    null_first: bool,
    models: Vec<Arc<Vec<f32>>>,
}

impl Attack {
    /// What stands in each of the places: the same record, or with `apart` one after the other. A
    /// person is replaced by null records as a whole.
    fn data(&self, target: usize, places: &[usize], apart: usize) -> Dataset {
        let (mut rows, mut labels) = (self.rows.clone(), self.labels.clone());
        for (number, &place) in places.iter().enumerate() {
            let null = self.null_first && target == 0;
            let target = match null {
                true => 0,
                false => (target + number * apart) % self.targets.len(),
            };
            (rows[place], labels[place]) = self.targets[target].clone();
        }
        match self.sparse {
            true => sparse(&rows, &labels, self.classes),
            false => dense(&rows, &labels, self.classes),
        }
    }

    /// What every target makes a client send, round after round, brought back to estimates.
    fn messages(
        &self,
        plan: &Arc<ClientPlan>,
        sampling: Sampling,
        (places, apart): (&[usize], usize),
    ) -> Vec<Vec<Vec<f32>>> {
        let send = |target| {
            let key = SecretKey::simulated(KEY.0, KEY.1);
            let data = self.data(target, places, apart);
            let (plan, data) = (Arc::clone(plan), Arc::new(data));
            let client = Client::new(0, Arc::clone(&plan), data, sampling, 1e-7, key).unwrap();
            let mut sender = Sender::new(client);
            let round = |(round, model)| {
                assert!(sender.send(round as Round, model), "all take part");
                let update = decoded(&plan.compressor, round as Round, &sender.bytes);
                assert_eq!(update.values().len(), plan.compressor.values());
                let scale = (1.0 + plan.compressor.omega()) as f32;
                update.values().iter().map(|value| value / scale).collect()
            };
            self.models.iter().enumerate().map(round).collect()
        };
        (0..self.targets.len()).map(send).collect()
    }

    /// In which units the bound of a round is: a function of the models that the server sends.
    fn scale(&self, plan: &ClientPlan, round: usize) -> f64 {
        let model = |round: usize| -> Vec<f64> {
            self.models[round].iter().map(|&x| f64::from(x)).collect()
        };
        let before = model(round.saturating_sub(1));
        increment_scale(plan, round as Round, &model(round), &before).unwrap_or(1.0)
    }

    /// Tries all pairs of targets in all of these places; returns the largest difference as a share
    /// of its bound, which is the sum of the records' (Proposition 14).
    fn worst(
        &self,
        plan: &Arc<ClientPlan>,
        sampling: Sampling,
        pair: (f64, f64),
        person: (&[usize], usize),
    ) -> f64 {
        let messages = self.messages(plan, sampling, person);
        let bound = |round| {
            let places = person.0.iter();
            let share = |&place: &usize| match sampled(sampling, round, place) {
                true => pair.1,
                false => pair.0,
            };
            self.scale(plan, round) * places.map(share).sum::<f64>()
        };
        let bounds: Vec<f64> = (0..self.models.len()).map(bound).collect();
        let mut worst = 0.0f64;
        for (a, left) in messages.iter().enumerate() {
            for (b, right) in messages.iter().enumerate().skip(a + 1) {
                let times = if self.null_first && a == 0 { 1.0 } else { 2.0 };
                for (round, (left, right)) in left.iter().zip(right).enumerate() {
                    let bound = times * bounds[round];
                    let differences = left.iter().zip(right).map(|(l, r)| f64::from(l - r));
                    let distance = differences.map(|x| x * x).sum::<f64>().sqrt();
                    // Rounding in f32 of sums of about the clip.
                    assert!(
                        distance <= bound + 1e-6,
                        "{}: targets {a} and {b}, round {round}, {:?} {:?} {sampling:?}: {distance} > {bound}",
                        self.name,
                        plan.estimator,
                        plan.compressor.kind(),
                    );
                    if bound > 0.0 {
                        worst = worst.max(distance / bound);
                    }
                }
            }
        }
        worst
    }
}

/// Whether the record in this place is in the batch of this round.
fn sampled(sampling: Sampling, round: usize, place: usize) -> bool {
    let mut rows = Vec::new();
    let key = SecretKey::simulated(KEY.0, KEY.1);
    let mut coins = key.stream(round as Round, Purpose::Sampling);
    sampling.draw(RECORDS, &mut coins, &mut rows);
    rows.contains(&(place as u32))
}

/// Models that a server may send: ordinary, far away, tiny, not numbers at all.
fn models(dimension: usize) -> Vec<Arc<Vec<f32>>> {
    let mut stream = Stream(12);
    let scales = [
        1.0, 30.0, 1e-3, 1e6, 1.0, 1e30, 3.0, 1.0, 1e38, 1.0, 0.0, 2.0,
    ];
    let mut models: Vec<Vec<f32>> = (0..36)
        .map(|round| stream.numbers(dimension, scales[round % scales.len()]))
        .collect();
    models[14][dimension / 2] = f32::NAN;
    models[20][0] = f32::INFINITY;
    models[26].fill(f32::NEG_INFINITY);
    models.into_iter().map(Arc::new).collect()
}

/// Rows made to do harm, and their classes.
fn hostile_rows(columns: usize, null: bool) -> Vec<(Vec<f32>, u32)> {
    let ordinary = Stream(77).numbers(columns, 1.0);
    let times = |scale: f32| {
        ordinary
            .iter()
            .map(|value| scale * value)
            .collect::<Vec<_>>()
    };
    let mut spike = vec![0.0; columns];
    spike[columns / 2] = 1e19;
    let alternating = (0..columns).map(|i| if i % 2 == 0 { 1.8e19 } else { -1.8e19 });
    let mut rows = vec![
        (times(1.0), 0),
        (times(1.0), 1),
        (times(-1.0), 1),
        (times(100.0), 0),
        (times(-100.0), 0),
        (times(1e-20), 1),
        (times(1e-42), 0),
        (times(1e18), 1),
        (times(-1e18), 1),
        (vec![1.8e19; columns], 0),
        (alternating.collect(), 1),
        (spike, 0),
    ];
    if null {
        rows.insert(0, (vec![0.0; columns], 0));
    }
    rows
}

fn attacks() -> Vec<Attack> {
    let columns = 6;
    let (rows, labels) = table(3, RECORDS, columns, 2);
    let base = |name, objective: Arc<dyn Objective>, sparse, null_first| Attack {
        name,
        models: models(objective.dimension()),
        objective,
        rows: rows.clone(),
        labels: labels.clone(),
        classes: 2,
        sparse,
        targets: hostile_rows(columns, null_first),
        null_first,
    };
    let relu = Network::new(columns, &[5, 3], 2, Activation::Relu).unwrap();
    vec![
        base("dense logistic", logistic(columns), false, true),
        base("sparse logistic", logistic(columns), true, true),
        base("network", network(columns, &[4], 2), false, false),
        base("sparse network", network(columns, &[4], 2), true, false),
        base("relu network", Arc::new(relu), false, false),
        marked(columns),
    ]
}

/// Gradients that go wrong, and gradients that the server turns round at will.
fn marked(columns: usize) -> Attack {
    let (rows, labels) = table(3, RECORDS, columns, 2);
    let row = |first: f32| {
        let mut row = vec![0.3; columns];
        row[0] = first;
        (row, 0)
    };
    let mut targets = vec![(vec![0.0; columns], 0)];
    targets.extend(
        [
            NOT_A_NUMBER,
            INFINITE,
            ALL_INFINITE,
            HUGE,
            0.3,
            900.0,
            -900.0,
            1e18,
        ]
        .map(row),
    );
    // A gradient of exactly the clip, from the server's choice of +1 or -1.
    let mut exact = vec![0.0; columns];
    exact[2] = CLIP as f32;
    targets.push((exact.clone(), 0));
    exact[2] = -exact[2];
    targets.push((exact, 0));
    // The server's choices: at first small ones, so that differences are not cut; then a sign per
    // round.
    let signs = [0.6, 1.0, -1.0, 1.0, 1.0, -1.0, -1.0, 1.0, 0.6, 1.0];
    let steered = |round: usize| {
        let mut model = vec![0.1; columns];
        model[0] = signs[round % signs.len()];
        Arc::new(model)
    };
    Attack {
        name: "marked",
        objective: Arc::new(Explicit(Marked(columns))),
        rows,
        labels,
        classes: 2,
        sparse: false,
        targets,
        null_first: true,
        models: (0..240).map(steered).chain(models(columns)).collect(),
    }
}

/// No pair of records, no model, no estimator and no scope gets beyond the bounds; and the steered
/// gradients come close to them, so that a divisor that is too large would not pass either.
#[test]
fn no_record_moves_a_message_beyond_its_bound() {
    for attack in attacks() {
        let d = attack.objective.dimension();
        for kind in [
            CompressorKind::Identity,
            CompressorKind::RandK { k: d.div_ceil(3) },
        ] {
            for (estimator, sampling, pair) in estimators() {
                let mut plan = client_plan(Arc::clone(&attack.objective), kind);
                plan.estimator = estimator;
                plan.clipping = Clipping::Record(CLIP);
                let worst = attack.worst(&Arc::new(plan.clone()), sampling, pair, RECORD);
                if attack.name == "marked" {
                    // Clipped to the difference, the pair asks for a gradient longer than the clip:
                    // attained is `C_A/b + (G - C_A)/m` at least.
                    let attained = match (estimator, pair.1) {
                        (Estimator::Gd | Estimator::Sgd | Estimator::Recursive(_), _) => 1.0,
                        (_, c1) if c1 < (DIFFERENCE + CLIP) / BATCH => 0.6,
                        _ => 1.0,
                    };
                    assert!(worst > 0.999 * attained, "{estimator:?} {kind:?}: {worst}");
                }
                if matches!(estimator, Estimator::Gd | Estimator::Sgd) {
                    plan.clipping = Clipping::Selected(CLIP);
                    let worst = attack.worst(&Arc::new(plan), sampling, pair, RECORD);
                    assert!(
                        worst > 0.99 || !attack.null_first,
                        "{}: {worst}",
                        attack.name
                    );
                }
            }
        }
    }
}

/// All records of a person together: `j c_1 + (K - j) c_0` where `j` of its `K` coins fall, for every
/// estimator, scope and adjacency, whether the records pull the same way or not. Records that do
/// attain it, so nothing less would hold.
#[test]
fn no_person_moves_a_message_beyond_its_bound() {
    for attack in attacks() {
        // The others take long, and differ in how gradients are computed, not in how they add up.
        if !["marked", "sparse logistic"].contains(&attack.name) {
            continue;
        }
        let k = attack.objective.dimension().div_ceil(2);
        for kind in [CompressorKind::Identity, CompressorKind::RandK { k }] {
            for (estimator, sampling, pair) in estimators() {
                let mut plan = client_plan(Arc::clone(&attack.objective), kind);
                plan.estimator = estimator;
                let mut scopes = vec![Clipping::Record(CLIP)];
                if matches!(estimator, Estimator::Gd | Estimator::Sgd) {
                    scopes.push(Clipping::Selected(CLIP));
                }
                for scope in scopes {
                    plan.clipping = scope;
                    let plan = Arc::new(plan.clone());
                    for person in [2, 3] {
                        let places = &TARGETS[..person];
                        attack.worst(&plan, sampling, pair, (places, 1));
                        let aligned = attack.worst(&plan, sampling, pair, (places, 0));
                        let least = match (attack.name, estimator) {
                            ("marked", Estimator::Svrg { .. } | Estimator::Saga { .. }) => 0.5,
                            ("marked", _) => 0.99,
                            _ => 0.0,
                        };
                        assert!(
                            aligned > least,
                            "{estimator:?} {kind:?} {scope:?}: {aligned}"
                        );
                    }
                }
            }
        }
    }
}

/// `1/b` and `1/m` are constants: in rounds with no record in the batch the message is the kept
/// mean (SVRG, SAGA) or nothing but noise (SGD), and it is sent; in rounds with `r` equal records
/// it is `r/b` of their gradient.
#[test]
fn divisors_are_constants_and_empty_batches_are_sent() {
    let (columns, batch, records) = (3, 1.5, 8);
    let row = vec![0.0, 0.25, -0.1];
    let data = Arc::new(dense(&vec![row.clone(); records], &vec![0; records], 2));
    let sampling = Sampling::Poisson {
        batch,
        coins: Coins::Exact,
    };
    let difference_clip = None;
    for estimator in [
        Estimator::Sgd,
        Estimator::Saga { difference_clip },
        Estimator::Svrg {
            snapshot_probability: 0.0,
            difference_clip,
        },
    ] {
        let mut plan = client_plan(
            Arc::new(Explicit(Marked(columns))),
            CompressorKind::Identity,
        );
        plan.estimator = estimator;
        let key = SecretKey::simulated(9, 0);
        let sigma = 1e-6;
        let client = Client::new(0, Arc::new(plan), Arc::clone(&data), sampling, sigma, key);
        let mut sender = Sender::new(client.unwrap());
        let mut table = vec![1.0; records];
        let mut sizes = [0; 9];
        for round in 0..60u32 {
            let scale = if round == 0 {
                1.0
            } else {
                0.5 + (round % 7) as f32 / 10.0
            };
            assert!(sender.send(round, &Arc::new(vec![scale, 0.0, 0.0])));
            let mut rows = Vec::new();
            let mut coins = SecretKey::simulated(9, 0).stream(round, Purpose::Sampling);
            sampling.draw(records, &mut coins, &mut rows);
            sizes[rows.len()] += 1;
            let mut expected = 0.0;
            if estimator != Estimator::Sgd {
                expected += table.iter().sum::<f32>() / records as f32;
            }
            for &j in &rows {
                let reference = match estimator {
                    Estimator::Gd | Estimator::Sgd => 0.0,
                    _ => table[j as usize],
                };
                expected += (scale - reference) / batch as f32;
                if matches!(estimator, Estimator::Saga { .. }) {
                    table[j as usize] = scale;
                }
            }
            for (found, a) in sender.update.values().iter().zip(&row) {
                assert!((found - expected * a).abs() < 1e-5, "{estimator:?} {round}");
            }
            // The noise is there even if no record is.
            assert!(sender.update.values().iter().all(|&value| value != 0.0));
        }
        assert!(sizes[0] > 3 && sizes[1] > 3 && sizes[2] > 3, "{sizes:?}");
    }
}

/// A record that is no number contributes exactly what a null record does, in both of its terms and
/// for ever after.
#[test]
fn what_is_no_number_counts_as_nothing() {
    let attack = marked(6);
    for kind in [CompressorKind::Identity, CompressorKind::RandK { k: 2 }] {
        for (estimator, sampling, _) in estimators() {
            let mut plan = client_plan(Arc::clone(&attack.objective), kind);
            plan.estimator = estimator;
            plan.clipping = Clipping::Record(CLIP);
            let messages = attack.messages(&Arc::new(plan), sampling, RECORD);
            for wrong in 1..4 {
                assert_eq!(
                    messages[0], messages[wrong],
                    "{estimator:?} {kind:?} {wrong}"
                );
            }
        }
    }
}

/// Selected clipping looks at the coordinates that travel and at nothing else: a record that is
/// huge elsewhere is not shortened.
#[test]
fn selected_clipping_ignores_what_stays() {
    let columns = 6;
    let mut row = vec![0.1; columns];
    let data = |row: &[f32]| Arc::new(dense(&[row.to_vec()], &[0], 2));
    let mut plan = client_plan(
        Arc::new(Explicit(Marked(columns))),
        CompressorKind::RandK { k: 3 },
    );
    plan.clipping = Clipping::Selected(1.0);
    let plan = Arc::new(plan);
    let model = Arc::new(vec![1.0; columns]);
    let send = |row: &[f32], round| {
        let key = SecretKey::simulated(2, 0);
        let client = Client::new(0, Arc::clone(&plan), data(row), Sampling::Full, 1e-7, key);
        let mut sender = Sender::new(client.unwrap());
        sender.send(round, &model);
        sender.update
    };
    row[5] = 1e10;
    let (mut stays, mut travels) = (0, 0);
    for round in 0..20 {
        let update = send(&row, round);
        let Coordinates::Selected(chosen) = update.coordinates() else {
            panic!("three coordinates travel");
        };
        // Random-k scales by d/k = 2.
        let norm = update
            .values()
            .iter()
            .map(|v| (v / 2.0).powi(2))
            .sum::<f32>()
            .sqrt();
        if chosen.contains(&5) {
            travels += 1;
            assert!((norm - 1.0).abs() < 1e-5, "{norm}");
        } else {
            stays += 1;
            assert!((norm - 0.03f32.sqrt()).abs() < 1e-5, "{norm}");
        }
    }
    assert!(stays > 0 && travels > 0);
}
