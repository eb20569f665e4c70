//! Whole rounds of the paper's two problems: ten clients, random-k at 5%, no metrics.
//!
//! The network runs on MNIST when `SOTERIA_DATA` names a directory that has it, else on dense
//! synthetic data of the same shape, which costs more.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use soteriafl_core::compress::{Compressor, CompressorKind};
use soteriafl_core::estimator::Clipping;
use soteriafl_core::objective::{Activation, Logistic, Network, Objective, Regularizer};
use soteriafl_core::privacy::Noise;
use soteriafl_core::protocol::{
    Client, ClientPlan, Estimator, Schedule, Server, ServerPlan, shift_step,
};
use soteriafl_core::random::{PublicSeed, SecretKey};
use soteriafl_core::sampling::{Coins, Sampling};
use soteriafl_core::simulate::{EvaluationPlan, Simulation};
use soteriafl_data::{DataDirectories, Dataset, Partition, Source, Synthetic, a9a};

const CLIENTS: usize = 10;

struct Problem {
    name: &'static str,
    objective: Arc<dyn Objective>,
    shards: Vec<Arc<Dataset>>,
    batch: f64,
}

impl Problem {
    fn new(name: &'static str, objective: Arc<dyn Objective>, data: &Dataset, batch: f64) -> Self {
        let shards = Partition::Sorted
            .split(data, CLIENTS, 0)
            .expect("enough records");
        Self {
            name,
            objective,
            shards: shards.into_iter().map(Arc::new).collect(),
            batch,
        }
    }

    fn simulation(&self, estimator: Estimator, full: bool, rounds: u32) -> Simulation {
        let dimension = self.objective.dimension();
        let compressor =
            Compressor::new(CompressorKind::RandK { k: dimension / 20 }, dimension, 1.0)
                .expect("k <= d");
        let step = shift_step(compressor.omega());
        let plan = Arc::new(ClientPlan {
            objective: Arc::clone(&self.objective),
            compressor: compressor.clone(),
            estimator,
            clipping: Clipping::Record(1.0),
            estimate_clip: None,
            regularizer: None,
            shift_step: Some(step),
            noise: Noise::Float,
            shared_coordinates: false,
            public_seed: PublicSeed(0),
        });
        let sampling = if full {
            Sampling::Full
        } else {
            Sampling::Poisson {
                batch: self.batch,
                coins: Coins::Fast,
            }
        };
        let clients = self.shards.iter().enumerate().map(|(id, shard)| {
            let key = SecretKey::simulated(0, id as u32);
            Client::new(
                id as u32,
                Arc::clone(&plan),
                Arc::clone(shard),
                sampling,
                0.01,
                key,
            )
            .expect("a client that fits")
        });
        let server = ServerPlan {
            compressor,
            weights: vec![1.0 / CLIENTS as f64; CLIENTS],
            step_size: 0.1,
            schedule: Schedule::Constant,
            momentum: 0.0,
            recursion: None,
            step_cap: None,
            smoothing: None,
            equalizing: None,
            downlink: None,
            shift_step: Some(step),
            regularizer: None,
            rounds,
        };
        Simulation::new(
            Server::new(server, vec![0.01; dimension]),
            clients.collect(),
        )
    }

    /// Time of `rounds` rounds after a warm-up.
    fn time(&self, estimator: Estimator, full: bool, threads: usize, rounds: u32) -> Duration {
        const WARM: u32 = 5;
        let weights = vec![1.0 / CLIENTS as f64; CLIENTS];
        let plan = EvaluationPlan {
            objective: self.objective.as_ref(),
            regularizer: Regularizer::None,
            weights: &weights,
            test: None,
            every: 0,
            from: u32::MAX,
        };
        let mut simulation = self.simulation(estimator, full, WARM + rounds);
        let mut start = Instant::now();
        let ended = simulation.run(threads, &plan, |progress, _| {
            if progress.round == WARM {
                start = Instant::now();
            }
            ControlFlow::Continue(())
        });
        ended.expect("built-in objectives do not fail");
        start.elapsed()
    }
}

fn problems() -> Vec<Problem> {
    let (a9a, _) = a9a::load().expect("built in");
    let a9a = a9a.with_intercept();
    let logistic = Arc::new(Logistic::new(a9a.columns()));
    let images = Source::Mnist
        .load(&DataDirectories::from_environment(None), 0)
        .ok()
        .and_then(|loaded| Source::Mnist.public_scaling()?.apply(loaded.train).ok())
        .unwrap_or_else(|| {
            Synthetic::new(60_000, 784, 10)
                .and_then(|size| size.train(0))
                .expect("a valid size")
        });
    let network =
        Arc::new(Network::new(784, &[64], 10, Activation::Sigmoid).expect("a valid network"));
    vec![
        Problem::new("a9a", logistic, &a9a, 51.0),
        Problem::new("784-64-10", network, &images, 128.0),
    ]
}

fn rounds(criterion: &mut Criterion) {
    let svrg = Estimator::Svrg {
        snapshot_probability: 0.01,
        difference_clip: Some(0.25),
    };
    let saga = Estimator::Saga {
        difference_clip: Some(0.25),
    };
    for problem in problems() {
        let mut group = criterion.benchmark_group(problem.name);
        group
            .sample_size(10)
            .measurement_time(Duration::from_secs(2))
            .warm_up_time(Duration::from_millis(300));
        for threads in [1, 2] {
            for (name, estimator, full) in [
                ("gd", Estimator::Sgd, true),
                ("sgd", Estimator::Sgd, false),
                ("svrg", svrg, false),
                ("saga", saga, false),
            ] {
                group.bench_function(format!("{name}, {threads} threads"), |bencher| {
                    bencher
                        .iter_custom(|count| problem.time(estimator, full, threads, count as u32));
                });
            }
        }
        group.finish();
    }
}

criterion_group!(benches, rounds);
criterion_main!(benches);
