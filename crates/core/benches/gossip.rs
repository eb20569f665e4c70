//! Rounds without a server: 100 clients of a network with 7,114 parameters, on a ring and on a
//! torus against the star, which adds up one mean for all. Prints the best of several stretches.
//!
//! `cargo bench -p soteriafl-core --bench gossip`

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use soteriafl_core::compress::{Compressor, CompressorKind};
use soteriafl_core::estimator::Clipping;
use soteriafl_core::gossip::{GossipPlan, Graph, Topology, Transport};
use soteriafl_core::objective::{Activation, Network, Objective, Regularizer};
use soteriafl_core::privacy::Noise;
use soteriafl_core::protocol::{Client, ClientPlan, Estimator, Schedule};
use soteriafl_core::random::{PublicSeed, SecretKey};
use soteriafl_core::sampling::{Coins, Sampling};
use soteriafl_core::simulate::{EvaluationPlan, GossipSimulation};
use soteriafl_data::{Dataset, Partition, Synthetic};

const CLIENTS: usize = 100;
const WARM: u32 = 5;
const ROUNDS: u32 = 10;
const STRETCHES: u32 = 12;

struct Setting {
    objective: Arc<dyn Objective>,
    shards: Vec<Arc<Dataset>>,
    weights: Vec<f64>,
}

impl Setting {
    fn simulation(
        &self,
        transport: Transport,
        kind: CompressorKind,
        topology: &Topology,
    ) -> GossipSimulation {
        let dimension = self.objective.dimension();
        let build = |kind| Compressor::new(kind, dimension, 1.0).expect("a compressor that fits");
        let estimates = match transport.keeps_noise() {
            true => CompressorKind::Identity,
            false => kind,
        };
        let plan = Arc::new(ClientPlan {
            objective: Arc::clone(&self.objective),
            compressor: build(estimates),
            estimator: Estimator::Sgd,
            clipping: Clipping::Record(1.0),
            estimate_clip: None,
            regularizer: None,
            shift_step: None,
            noise: Noise::Float,
            shared_coordinates: false,
            public_seed: PublicSeed(0),
        });
        let sampling = Sampling::Poisson {
            batch: 16.0,
            coins: Coins::Fast,
        };
        let clients = self.shards.iter().enumerate().map(|(id, shard)| {
            let (plan, shard) = (Arc::clone(&plan), Arc::clone(shard));
            let key = SecretKey::simulated(0, id as u32);
            Client::new(id as u32, plan, shard, sampling, 0.001, key).expect("a client that fits")
        });
        let plan = GossipPlan {
            transport,
            mixing: 0.02,
            step_size: 0.1,
            schedule: Schedule::Constant,
            compressor: build(kind),
            regularizer: Regularizer::None,
            weights: self.weights.clone(),
            rounds: WARM + ROUNDS * STRETCHES,
        };
        let graph = Graph::new(topology, CLIENTS).expect("a connected graph");
        let start = vec![0.01; dimension];
        GossipSimulation::new(Arc::new(plan), Arc::new(graph), clients.collect(), start)
    }

    /// The shortest time of a round, over the stretches.
    fn time(
        &self,
        (transport, kind): (Transport, CompressorKind),
        topology: &Topology,
        threads: usize,
    ) -> Duration {
        let evaluation = EvaluationPlan {
            objective: self.objective.as_ref(),
            regularizer: Regularizer::None,
            weights: &self.weights,
            test: None,
            every: 0,
            from: u32::MAX,
        };
        let (mut best, mut start) = (Duration::MAX, Instant::now());
        let ended =
            self.simulation(transport, kind, topology)
                .run(threads, &evaluation, |progress| {
                    let done = progress.round.saturating_sub(WARM);
                    if done > 0 && done.is_multiple_of(ROUNDS) {
                        best = best.min(start.elapsed());
                    }
                    if done.is_multiple_of(ROUNDS) {
                        start = Instant::now();
                    }
                    ControlFlow::Continue(())
                });
        ended.expect("built-in objectives do not fail");
        best / ROUNDS
    }
}

fn main() {
    let data = Synthetic::new(60 * CLIENTS as u32, 100, 10)
        .and_then(|size| size.train(0))
        .expect("a valid size");
    let shards = Partition::Iid
        .split(&data, CLIENTS, 0)
        .expect("enough records");
    let setting = Setting {
        objective: Arc::new(Network::new(100, &[64], 10, Activation::Sigmoid).expect("valid")),
        shards: shards.into_iter().map(Arc::new).collect(),
        weights: vec![1.0 / CLIENTS as f64; CLIENTS],
    };
    let dimension = setting.objective.dimension();
    let k = dimension / 20;
    println!("{CLIENTS} clients, {dimension} parameters, batches of 16: a round in microseconds");
    for (name, of) in [
        (
            "sdm-dsgd, random-k 5%",
            (Transport::Differences, CompressorKind::RandK { k }),
        ),
        (
            "sdm-dsgd, whole",
            (Transport::Differences, CompressorKind::Identity),
        ),
        (
            "q-dpsgd-1, grid",
            (
                Transport::Models,
                CompressorKind::Grid {
                    step: 0.01,
                    bits: 10,
                },
            ),
        ),
        (
            "porter, top-k 5%",
            (Transport::Tracking, CompressorKind::TopK { k }),
        ),
    ] {
        for threads in [1, 2] {
            let times = [Topology::Star, Topology::Ring, Topology::Torus(None)]
                .map(|topology| setting.time(of, &topology, threads).as_secs_f64() * 1e6);
            let [star, ring, torus] = times;
            println!(
                "{name}, {threads} threads: star {star:.0}, ring {ring:.0} ({:.2}), torus {torus:.0} ({:.2})",
                ring / star,
                torus / star
            );
        }
    }
}
