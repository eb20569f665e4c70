//! Whole runs against a naive `f64` reference for Algorithms 1 to 3 with the same random numbers,
//! and the memory of SVRG and SAGA over many rounds.

mod common;

use std::sync::Arc;

use common::*;
use soteriafl_accountant::{IncrementClip, Recursion};
use soteriafl_core::compress::{Compressor, CompressorKind};
use soteriafl_core::data::Dataset;
use soteriafl_core::estimator::Clipping;
use soteriafl_core::objective::{Activation, Network, Objective, Regularizer};
use soteriafl_core::privacy::Noise;
use soteriafl_core::protocol::{
    Client, Equalizing, Estimator, ParameterBlock, Schedule, Smoothing, shift_step,
};
use soteriafl_core::random::{PublicSeed, SecretKey};
use soteriafl_core::sampling::{Coins, Sampling};

/// The objectives, with data for three clients of different sizes.
#[derive(Clone, Copy, Debug)]
enum Model {
    DenseLogistic,
    /// Sparse rows with an offset, as standardising leaves them.
    SparseLogistic,
    Network,
    SparseNetwork,
}

const MODELS: [Model; 4] = [
    Model::DenseLogistic,
    Model::SparseLogistic,
    Model::Network,
    Model::SparseNetwork,
];

impl Model {
    fn build(self, sizes: &[usize]) -> (Arc<dyn Objective>, NaiveGradient, Vec<Arc<Dataset>>) {
        let (columns, hidden, classes) = (5, 3, 3);
        let classes = match self {
            Model::DenseLogistic | Model::SparseLogistic => 2,
            _ => classes,
        };
        let data = sizes.iter().enumerate().map(|(client, &rows)| {
            let (values, labels) = table(client as u64 + 7, rows, columns, classes);
            let data = match self {
                Model::DenseLogistic | Model::Network => dense(&values, &labels, classes),
                _ => sparse(&values, &labels, classes)
                    .with_offset(Stream(99).numbers(columns, 0.5))
                    .unwrap(),
            };
            Arc::new(data)
        });
        let data = data.collect();
        match self {
            Model::DenseLogistic | Model::SparseLogistic => {
                (logistic(columns), naive_logistic(), data)
            }
            Model::Network | Model::SparseNetwork => {
                let activation = Activation::Tanh;
                let network = Network::new(columns, &[hidden], classes, activation).unwrap();
                let naive = naive_network(vec![columns, hidden, classes], activation);
                (Arc::new(network), naive, data)
            }
        }
    }
}

const ESTIMATORS: [Estimator; 9] = [
    Estimator::Sgd,
    Estimator::Svrg {
        snapshot_probability: 0.3,
        difference_clip: None,
    },
    Estimator::Svrg {
        snapshot_probability: 0.3,
        difference_clip: Some(0.1),
    },
    Estimator::Saga {
        difference_clip: None,
    },
    Estimator::Saga {
        difference_clip: Some(0.1),
    },
    Estimator::Sag { memory: 0.4 },
    Estimator::Sag { memory: 1.0 },
    Estimator::Recursive(Recursion {
        keep: 0.8,
        period: None,
        increments: IncrementClip::Fixed(0.1),
        noise_ratio: 1.0,
    }),
    Estimator::Recursive(Recursion {
        keep: 1.0,
        period: Some(3),
        increments: IncrementClip::Smooth(0.5),
        noise_ratio: 2.0,
    }),
];

/// A setting with all its lesser choices drawn from `stream`.
fn setting(
    model: Model,
    estimator: Estimator,
    random_k: bool,
    shifted: bool,
    stream: &mut Stream,
) -> Setting {
    let (objective, naive, data) = model.build(&[17, 9, 26]);
    let d = objective.dimension();
    let kind = match random_k {
        true => CompressorKind::RandK { k: d / 2 },
        false => CompressorKind::Identity,
    };
    let mut plan = client_plan(objective, kind);
    plan.estimator = estimator;
    let participation = [1.0, 1.0, 0.6][stream.pick(3)];
    plan.compressor = Compressor::new(kind, d, participation).unwrap();
    plan.shift_step = shifted.then(|| shift_step(plan.compressor.omega()));
    plan.clipping = match (stream.pick(4), estimator) {
        (0, _) => Clipping::None,
        (1, Estimator::Sgd) => Clipping::Selected(0.2),
        _ => Clipping::Record(0.3),
    };
    if !matches!(plan.clipping, Clipping::Selected(_)) {
        plan.estimate_clip = [None, None, Some(0.15)][stream.pick(3)];
    }
    plan.noise = [Noise::Float, Noise::Float, Noise::None][stream.pick(3)];
    let sampling = match stream.pick(4) {
        0 => Sampling::Full,
        1 => Sampling::WithReplacement { batch: 6 },
        2 => Sampling::Poisson {
            batch: 2.5,
            coins: Coins::Exact,
        },
        _ => Sampling::Poisson {
            batch: 5.0,
            coins: Coins::Fast,
        },
    };
    let mut server = server_plan(&plan, data.len(), 10);
    if stream.pick(2) == 0 {
        server.weights = vec![17.0 / 52.0, 9.0 / 52.0, 26.0 / 52.0];
    }
    server.momentum = [0.0, 0.0, 0.5][stream.pick(3)];
    server.schedule = [Schedule::Constant, Schedule::Cosine, Schedule::InverseSqrt][stream.pick(3)];
    let regularizer = [
        Regularizer::L2 { lambda: 0.1 },
        Regularizer::Nonconvex { lambda: 0.2 },
    ][stream.pick(2)];
    match stream.pick(3) {
        0 => server.regularizer = Some(regularizer),
        1 => plan.regularizer = Some(regularizer),
        _ => {}
    }
    plan.shared_coordinates = stream.pick(3) == 0;
    server.smoothing = [
        None,
        None,
        Some(Smoothing {
            rows: 2,
            columns: 2,
            units: 1,
            passes: 2,
        }),
    ][stream.pick(3)];
    let equalizing = Equalizing {
        blocks: vec![ParameterBlock {
            start: 0,
            rows: 2,
            columns: 2,
        }],
        floor: 1.0,
    };
    server.equalizing = (stream.pick(3) == 0).then_some(equalizing);
    server.step_cap = [None, None, Some(0.1)][stream.pick(3)];
    if let Some(recursion) = estimator.recursion() {
        // What goes with a recursion.
        server.recursion = Some(recursion);
        (plan.shift_step, server.shift_step) = (None, None);
        plan.estimate_clip = None;
        server.regularizer = server.regularizer.or(plan.regularizer.take());
        server.momentum = 0.0;
    }
    let name = format!(
        "{model:?} {estimator:?} {sampling:?} {:?} {:?} shift {:?} estimate {:?} {regularizer:?} {:?} {:?}",
        plan.compressor,
        plan.clipping,
        plan.shift_step,
        plan.estimate_clip,
        plan.regularizer,
        server.regularizer
    );
    Setting {
        name,
        sampling,
        sigma: 0.05,
        server,
        naive,
        data,
        start: stream.numbers(d, 0.8),
        seed: stream.pick(1 << 20) as u64,
        plan,
    }
}

/// Every estimator with every objective, compressor and shift, the rest of the choices drawn anew
/// for each of three repetitions: 240 runs of ten rounds. The tolerance is some fifty units in the
/// last place: a wrong divisor or sign would be off by a hundred times more.
#[test]
fn runs_agree_with_the_reference() {
    let mut stream = Stream(2);
    for _ in 0..3 {
        for model in MODELS {
            for estimator in ESTIMATORS {
                for random_k in [false, true] {
                    for shifted in [false, true] {
                        setting(model, estimator, random_k, shifted, &mut stream).check(1e-5);
                    }
                }
            }
        }
    }
}

/// Batches larger than the chunks in which records are worked through.
#[test]
fn large_batches_agree_with_the_reference() {
    for estimator in ESTIMATORS {
        for sampling in [
            Sampling::Full,
            Sampling::WithReplacement { batch: 600 },
            Sampling::Poisson {
                batch: 500.0,
                coins: Coins::Exact,
            },
        ] {
            let (objective, naive, data) = Model::SparseLogistic.build(&[700, 513]);
            let mut plan = client_plan(objective, CompressorKind::RandK { k: 3 });
            plan.estimator = estimator;
            plan.clipping = Clipping::Record(0.4);
            plan.shift_step = estimator
                .recursion()
                .is_none()
                .then(|| shift_step(plan.compressor.omega()));
            let setting = Setting {
                name: format!("{estimator:?} {sampling:?}"),
                sampling,
                sigma: 0.01,
                server: server_plan(&plan, 2, 6),
                naive,
                data,
                start: vec![0.3; 5],
                seed: 5,
                plan,
            };
            setting.check(1e-5);
        }
    }
}

/// A snapshot is taken at every heads of the shared coin by every client, absent ones included:
/// with a client that is absent most of the time, and coins that often fall while it is.
#[test]
fn snapshots_follow_the_coin_while_absent() {
    let (objective, _, data) = Model::DenseLogistic.build(&[12, 8]);
    let kind = CompressorKind::Identity;
    let mut plan = client_plan(objective, kind);
    plan.compressor = Compressor::new(kind, 5, 0.25).unwrap();
    plan.shift_step = Some(shift_step(plan.compressor.omega()));
    plan.estimator = Estimator::Svrg {
        snapshot_probability: 0.5,
        difference_clip: None,
    };
    let sampling = Sampling::Poisson {
        batch: 3.0,
        coins: Coins::Exact,
    };
    let coins: Vec<bool> = (0..40)
        .map(|t| PublicSeed(3).snapshot_coin(t, 0.5))
        .collect();
    assert!(coins.contains(&true) && coins.contains(&false));
    for seed in 0..5 {
        let setting = Setting {
            name: format!("seed {seed}"),
            sampling,
            sigma: 0.01,
            server: server_plan(&plan, 2, 40),
            naive: naive_logistic(),
            data: data.clone(),
            start: vec![0.5, -0.5, 0.2, 0.0, -1.0],
            seed,
            plan: plan.clone(),
        };
        setting.check(3e-5);
    }
}

/// One client of SAGA is shown 1,500 unrelated models, by which time every table entry has been
/// replaced some 300 times, and must still send what the reference, whose table is recomputed from
/// scratch every round, sends: the kept mean has not drifted from the table.
#[test]
fn the_mean_of_the_table_does_not_drift() {
    for model in [Model::SparseLogistic, Model::DenseLogistic] {
        for difference_clip in [None, Some(0.1)] {
            let (objective, naive, data) = model.build(&[25]);
            let mut plan = client_plan(objective, CompressorKind::Identity);
            plan.estimator = Estimator::Saga { difference_clip };
            plan.clipping = Clipping::Record(0.3);
            plan.noise = Noise::None;
            let setting = Setting {
                name: format!("{model:?} {difference_clip:?}"),
                sampling: Sampling::Poisson {
                    batch: 5.0,
                    coins: Coins::Fast,
                },
                sigma: 0.0,
                server: server_plan(&plan, 1, 1),
                naive,
                data,
                start: vec![0.0; 5],
                seed: 8,
                plan,
            };
            let mut sender = Sender::new(setting.clients().remove(0));
            let mut reference = ReferenceClient::new(&setting, 0);
            let mut stream = Stream(5);
            let mut worst = 0.0f64;
            for round in 0..1500 {
                let x = Arc::new(stream.numbers(5, 3.0));
                let wide: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
                let expected = reference.message(&setting, round, &wide).unwrap();
                assert!(sender.send(round, &x));
                for (found, expected) in sender.update.values().iter().zip(&expected) {
                    worst = worst.max((f64::from(*found) - expected).abs());
                }
            }
            assert!(worst < 2e-6, "{}: {worst}", setting.name);
        }
    }
}

/// After every record has been visited at one model, the table is what a fresh client would fill in
/// at that model, whatever was in it before.
#[test]
fn a_table_remembers_only_the_last_visit() {
    let (columns, classes) = (6, 3);
    let (values, labels) = table(4, 30, columns, classes);
    let data = Arc::new(dense(&values, &labels, classes));
    let objective = network(columns, &[4], classes);
    let d = objective.dimension();
    let mut plan = client_plan(objective, CompressorKind::RandK { k: d / 2 });
    plan.estimator = Estimator::Saga {
        difference_clip: Some(0.2),
    };
    plan.clipping = Clipping::Record(0.5);
    let plan = Arc::new(plan);
    let build = |sampling| {
        let (plan, data) = (Arc::clone(&plan), Arc::clone(&data));
        let key = SecretKey::simulated(1, 0);
        Sender::new(Client::new(0, plan, data, sampling, 1e-4, key).unwrap())
    };
    for sampling in [
        Sampling::Full,
        Sampling::Poisson {
            batch: 6.0,
            coins: Coins::Exact,
        },
        Sampling::WithReplacement { batch: 20 },
    ] {
        let (mut old, mut fresh) = (build(sampling), build(sampling));
        let mut stream = Stream(6);
        for round in 0..20 {
            old.send(round, &Arc::new(stream.numbers(d, 2.0)));
        }
        let model = Arc::new(stream.numbers(d, 1.0));
        // Every record is drawn in 100 rounds but with probability 30 (1 - 1/5)^100 < 1e-8.
        for round in 20..120 {
            old.send(round, &model);
        }
        for round in 120..123 {
            old.send(round, &model);
            fresh.send(round, &model);
            for (old, fresh) in old.update.values().iter().zip(fresh.update.values()) {
                assert!((old - fresh).abs() < 1e-5, "{sampling:?}: {old} {fresh}");
            }
        }
    }
}

/// Where every record is visited in every round, the table's mean is the full gradient, and
/// whatever the memory is, SAG is GD: up to the rounding of two sums, in floating point.
#[test]
fn whole_batches_of_sag_are_full_gradients() {
    let (values, labels) = table(4, 30, 6, 3);
    let data = Arc::new(dense(&values, &labels, 3));
    let objective = network(6, &[4], 3);
    let d = objective.dimension();
    let build = |estimator| {
        let mut plan = client_plan(Arc::clone(&objective), CompressorKind::RandK { k: d / 2 });
        plan.estimator = estimator;
        plan.clipping = Clipping::Record(0.5);
        let key = SecretKey::simulated(1, 0);
        let data = Arc::clone(&data);
        Sender::new(Client::new(0, Arc::new(plan), data, Sampling::Full, 1e-4, key).unwrap())
    };
    let mut gd = build(Estimator::Sgd);
    let mut sags = [0.3, 1.0].map(|memory| build(Estimator::Sag { memory }));
    let mut stream = Stream(6);
    for round in 0..20 {
        let model = Arc::new(stream.numbers(d, 2.0));
        assert!(gd.send(round, &model));
        for sag in &mut sags {
            assert!(sag.send(round, &model));
            let pairs = sag.update.values().iter().zip(gd.update.values());
            for (found, expected) in pairs {
                assert!((found - expected).abs() < 1e-5, "{found} {expected}");
            }
        }
    }
}

/// SAGA on the network of the paper's second experiment keeps at most 1 KB per record beyond one
/// mean, and logistic regression 8 bytes.
#[test]
fn tables_are_small() {
    let state = |objective: Arc<dyn Objective>, columns: usize, rows: usize| {
        let (values, labels) = table(1, rows, columns, 2);
        let d = objective.dimension();
        let mut plan = client_plan(objective, CompressorKind::RandK { k: 5 });
        plan.estimator = Estimator::Saga {
            difference_clip: None,
        };
        let data = Arc::new(dense(&values, &labels, 2));
        let key = SecretKey::simulated(1, 0);
        let sampling = Sampling::Poisson {
            batch: 2.0,
            coins: Coins::Fast,
        };
        let client = Client::new(0, Arc::new(plan), data, sampling, 0.1, key).unwrap();
        assert_eq!(client.state_bytes(), 0);
        let mut sender = Sender::new(client);
        sender.send(0, &Arc::new(vec![0.01; d]));
        sender.client.state_bytes() - 4 * d
    };
    for rows in [20, 300] {
        let per_record = state(network(784, &[64], 10), 784, rows) / rows;
        assert!(per_record <= 1024, "{per_record} bytes");
        assert_eq!(per_record, 4 * (64 + 64 + 10 + 1));
        assert_eq!(state(logistic(50), 50, rows), 8 * rows);
    }
}
