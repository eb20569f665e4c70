//! Clients without a server: a naive loop in `f64`, a single client as with a server, the star as
//! the complete graph, how fast models agree and when they do not, what a record can do, threads.

#[path = "../common/mod.rs"]
mod common;
mod naive;
mod rates;

use std::ops::ControlFlow;
use std::sync::Arc;

use common::*;
use naive::{matrix, naive};
use rates::mixed;
use soteriafl_core::compress::{Compressor, CompressorKind, Selection};
use soteriafl_core::data::Dataset;
use soteriafl_core::estimator::Clipping;
use soteriafl_core::gossip::{GossipPlan, Graph, Mixture, Node, Sent, Topology, Transport};
use soteriafl_core::objective::{Coordinates, Explicit, Outcome, RecordLoss, Regularizer, RowView};
use soteriafl_core::privacy::Noise;
use soteriafl_core::protocol::{Client, Schedule, Server};
use soteriafl_core::random::{IndexSeed, Purpose, SecretKey, unit};
use soteriafl_core::sampling::{Coins, Sampling};
use soteriafl_core::simulate::{EvaluationPlan, GossipSimulation, Simulation};

const ROUNDS: u32 = 6;
const COLUMNS: usize = 8;
const ALL: [Transport; 3] = [
    Transport::Differences,
    Transport::Models,
    Transport::Tracking,
];

/// A run of clients of different sizes, with the plan of its nodes.
struct Run {
    setting: Setting,
    plan: GossipPlan,
}

fn run(transport: Transport, clients: usize, kind: CompressorKind, noise: Noise) -> Run {
    let data = |client: usize| {
        let (rows, labels) = table(client as u64, 4 + client * 3 % 5, COLUMNS, 2);
        Arc::new(dense(&rows, &labels, 2))
    };
    let data: Vec<Arc<Dataset>> = (0..clients).map(data).collect();
    let estimates = match transport.keeps_noise() {
        true => CompressorKind::Identity,
        false => kind,
    };
    let mut plan = client_plan(logistic(COLUMNS), estimates);
    plan.clipping = Clipping::Record(0.5);
    plan.noise = noise;
    let total: usize = data.iter().map(|data| data.rows()).sum();
    let share = |data: &Arc<Dataset>| data.rows() as f64 / total as f64;
    let nodes = GossipPlan {
        transport,
        mixing: 0.25,
        step_size: 0.7,
        schedule: Schedule::InverseSqrt,
        compressor: Compressor::new(kind, COLUMNS, 1.0).unwrap(),
        regularizer: Regularizer::Nonconvex { lambda: 0.1 },
        weights: data.iter().map(share).collect(),
        rounds: ROUNDS,
    };
    let coins = match noise {
        Noise::Secure => Coins::Exact,
        _ => Coins::Fast,
    };
    let setting = Setting {
        name: format!("{transport:?} {kind:?} {noise:?}"),
        sampling: Sampling::Poisson { batch: 2.0, coins },
        sigma: 0.05,
        server: server_plan(&plan, clients, ROUNDS),
        naive: naive_logistic(),
        data,
        start: Stream(1).numbers(COLUMNS, 0.5),
        seed: 77,
        plan,
    };
    Run {
        setting,
        plan: nodes,
    }
}

/// A compressor that the transport takes and that loses something.
fn lossy(transport: Transport) -> CompressorKind {
    match transport {
        Transport::Differences => CompressorKind::RandK { k: 3 },
        Transport::Models => CompressorKind::Grid {
            step: 0.01,
            bits: 12,
        },
        Transport::Tracking => CompressorKind::TopK { k: 3 },
    }
}

impl Run {
    fn simulation(&self, topology: &Topology) -> GossipSimulation {
        let graph = Graph::new(topology, self.setting.data.len()).unwrap();
        let (plan, graph) = (Arc::new(self.plan.clone()), Arc::new(graph));
        let start = self.setting.start.clone();
        GossipSimulation::new(plan, graph, self.setting.clients(), start)
    }

    fn evaluation(&self) -> EvaluationPlan<'_> {
        EvaluationPlan {
            objective: self.setting.plan.objective.as_ref(),
            regularizer: self.plan.regularizer,
            weights: &self.plan.weights,
            test: None,
            every: 1,
            from: 0,
        }
    }

    /// Every node's model at the end.
    fn models(&self, topology: &Topology) -> Vec<Arc<Vec<f32>>> {
        let mut simulation = self.simulation(topology);
        let going_on = |_| ControlFlow::Continue(());
        simulation.run(1, &self.evaluation(), going_on).unwrap();
        assert_eq!(simulation.round(), ROUNDS);
        simulation.models()
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn a_naive_loop_agrees() {
    let path = Topology::Edges(vec![[0, 1], [1, 2], [2, 3], [1, 3], [3, 4]]);
    for transport in ALL {
        for topology in [&Topology::Ring, &path, &Topology::Complete] {
            let run = run(transport, 5, lossy(transport), Noise::Float);
            let graph = Graph::new(topology, 5).unwrap();
            let (found, expected) = (run.models(topology), naive(&run, &graph));
            for (found, expected) in found.iter().zip(&expected) {
                for (&found, expected) in found.iter().zip(expected) {
                    let error = (f64::from(found) - expected).abs();
                    assert!(
                        error < 2e-5,
                        "{transport:?} {topology:?}: {found} {expected}"
                    );
                }
            }
        }
    }
}

/// With a single client all three are DP-SGD, to the bit: with the step `a s` where the mixing
/// multiplies it, whatever the compressor does to what nobody hears, with either noise.
#[test]
fn a_single_client_is_dp_sgd() {
    for (transport, kind) in [
        (Transport::Differences, CompressorKind::Identity),
        (Transport::Differences, CompressorKind::RandK { k: COLUMNS }),
        (Transport::Models, lossy(Transport::Models)),
        (Transport::Tracking, lossy(Transport::Tracking)),
        (Transport::Tracking, CompressorKind::RandK { k: 2 }),
    ] {
        for noise in [Noise::Float, Noise::Secure] {
            for topology in [Topology::Star, Topology::Complete, Topology::Ring] {
                let mut run = run(transport, 1, kind, noise);
                run.plan.schedule = Schedule::Constant;
                let mut server = run.setting.server.clone();
                server.regularizer = Some(run.plan.regularizer);
                server.step_size = match transport {
                    Transport::Tracking => run.plan.step_size,
                    _ => run.plan.mixing * run.plan.step_size,
                };
                let start = run.setting.start.clone();
                let mut alone = Simulation::new(Server::new(server, start), run.setting.clients());
                let going_on = |_, _: &Server| ControlFlow::Continue(());
                alone.run(1, &run.evaluation(), going_on).unwrap();
                let found = run.models(&topology);
                let expected = bits(alone.server().model());
                assert!(
                    bits(&found[0]) == expected,
                    "{transport:?} {kind:?} {noise:?}"
                );
                assert_ne!(bits(&found[0]), bits(&run.setting.start));
            }
        }
    }
}

/// Every pair as an edge gives `W = 11'/n` by the way of graphs; the star and the complete graph
/// add up one mean, to the same bits.
#[test]
fn a_star_is_the_complete_graph() {
    let pairs = (0..5).flat_map(|a| (a + 1..5).map(move |b| [a, b]));
    let pairs = Topology::Edges(pairs.collect());
    for transport in ALL {
        let run = run(transport, 5, lossy(transport), Noise::Float);
        let [star, complete, pairs] =
            [&Topology::Star, &Topology::Complete, &pairs].map(|topology| run.models(topology));
        assert_eq!(star, complete, "{transport:?}");
        for (star, pairs) in star.iter().zip(&pairs) {
            for (star, pairs) in star.iter().zip(pairs.iter()) {
                assert!((star - pairs).abs() < 1e-5, "{transport:?}: {star} {pairs}");
            }
        }
    }
}

/// Mixing leaves the mean where it is, on any graph and whatever a compressor loses of tracked
/// differences: it moves by releases alone, and of a flat loss there are none. (The naive loop
/// above has the whole recursion, releases and what is rounded included.)
#[test]
fn mixing_leaves_the_mean() {
    for (transport, kind) in [
        (Transport::Differences, CompressorKind::Identity),
        (Transport::Models, CompressorKind::Identity),
        (Transport::Tracking, CompressorKind::TopK { k: 10 }),
        (Transport::Tracking, CompressorKind::RandK { k: 50 }),
        (Transport::Tracking, CompressorKind::Qsgd { levels: 4 }),
    ] {
        for topology in [Topology::Ring, Topology::Torus(None), Topology::Complete] {
            let (errors, mean) = mixed(transport, kind, &topology, 0.02, 100);
            assert!(errors[100] < 0.99 * errors[0], "{transport:?} {kind:?}");
            // All start at zero on average, up to 1e-7.
            let largest = mean
                .iter()
                .fold(0.0f64, |most, value| most.max(value.abs()));
            assert!(largest < 1e-5, "{transport:?} {kind:?}: {largest}");
        }
    }
}

/// In the first round a record moves what is kept or sent by the accounted shift at most, times
/// public constants: `a s n w_i G/b` for a record's own coin (`2 G/b` where it is replaced), and
/// `d/k` where random-k scales.
#[test]
fn a_record_moves_a_node_by_its_shift() {
    for transport in ALL {
        let kind = match transport {
            Transport::Tracking => CompressorKind::Identity,
            Transport::Models => lossy(transport),
            Transport::Differences => CompressorKind::RandK { k: COLUMNS - 1 },
        };
        for noise in [Noise::Float, Noise::Secure] {
            let models = |target: f32, label: u32| {
                // Across the start, so that a record is as far from either class.
                let start = Stream(1).numbers(COLUMNS, 0.5);
                let across = |c: usize| {
                    if c.is_multiple_of(2) {
                        start[c + 1]
                    } else {
                        -start[c - 1]
                    }
                };
                let mut run = run(transport, 3, kind, noise);
                run.setting.sigma = 1e-3;
                run.plan.rounds = 1;
                let (mut rows, mut labels) = table(9, 6, COLUMNS, 2);
                rows[2] = (0..COLUMNS).map(|c| target * across(c)).collect();
                labels[2] = label;
                run.setting.data[1] = Arc::new(dense(&rows, &labels, 2));
                run.setting.sampling = Sampling::Full;
                let mut simulation = run.simulation(&Topology::Ring);
                let going_on = |_| ControlFlow::Continue(());
                simulation.run(1, &run.evaluation(), going_on).unwrap();
                (run.plan.clone(), simulation.models())
            };
            let (plan, first) = models(1e3, 0);
            let mut largest: f64 = 0.0;
            for (target, label, distance) in [(1e3, 1, 2.0), (-30.0, 0, 2.0), (0.0, 0, 1.0)] {
                let (_, second) = models(target, label);
                let (a, b) = (&first[1], &second[1]);
                let squares = a
                    .iter()
                    .zip(b.iter())
                    .map(|(a, b)| f64::from(a - b).powi(2));
                let moved = squares.sum::<f64>().sqrt();
                let step = match transport {
                    Transport::Tracking => plan.step_size,
                    _ => plan.mixing * plan.step_size,
                };
                let scale = match kind {
                    CompressorKind::RandK { k } => COLUMNS as f64 / k as f64,
                    _ => 1.0,
                };
                let shift = distance * 0.5 / 6.0;
                let bound = step * 3.0 * plan.weights[1] * scale * shift;
                assert!(
                    moved <= bound * (1.0 + 1e-4),
                    "{transport:?}: {moved} > {bound}"
                );
                largest = largest.max(moved / bound);
                for other in [0, 2] {
                    assert_eq!(first[other], second[other], "one round reaches nobody else");
                }
            }
            // One coordinate of eight does not travel.
            let least = if transport.keeps_noise() { 0.99 } else { 0.5 };
            assert!(largest > least, "{transport:?}: {largest}");
        }
    }
}

/// What is kept has noise on all coordinates, whatever travels; under differences, on what travels
/// alone.
#[test]
fn noise_is_on_all_that_is_kept() {
    for (transport, kind, moved) in [
        (Transport::Differences, CompressorKind::RandK { k: 3 }, 3),
        (Transport::Models, lossy(Transport::Models), COLUMNS),
        (Transport::Tracking, CompressorKind::TopK { k: 1 }, COLUMNS),
        (Transport::Tracking, CompressorKind::RandK { k: 1 }, COLUMNS),
    ] {
        let mut run = run(transport, 3, kind, Noise::Float);
        run.plan.rounds = 1;
        let mut simulation = run.simulation(&Topology::Ring);
        let going_on = |_| ControlFlow::Continue(());
        simulation.run(1, &run.evaluation(), going_on).unwrap();
        for model in simulation.models() {
            let changed = model.iter().zip(&run.setting.start);
            let changed = changed.filter(|(x, start)| x != start).count();
            assert_eq!(changed, moved, "{transport:?} {kind:?}");
        }
    }
}

/// Models, metrics and traffic are the same bits on any number of threads.
#[test]
fn threads_do_not_matter() {
    for transport in ALL {
        for (topology, noise) in [
            (Topology::Ring, Noise::Float),
            (Topology::Star, Noise::Float),
            (Topology::Torus(None), Noise::Secure),
        ] {
            let run = run(transport, 12, lossy(transport), noise);
            let rows = |threads| {
                let mut simulation = run.simulation(&topology);
                let mut rows = Vec::new();
                let observe = |progress: soteriafl_core::simulate::Progress| {
                    let metrics = progress.metrics.unwrap();
                    let consensus = metrics.consensus_error.unwrap();
                    let numbers = [metrics.loss, metrics.grad_norm_sq, consensus];
                    rows.push((progress.traffic, numbers.map(f64::to_bits)));
                    ControlFlow::Continue(())
                };
                simulation.run(threads, &run.evaluation(), observe).unwrap();
                let models = simulation.models().into_iter().map(|model| bits(&model));
                (rows, models.collect::<Vec<_>>(), bits(&simulation.mean()))
            };
            let alone = rows(1);
            assert_eq!(alone.0.len(), ROUNDS as usize + 1);
            assert!(alone == rows(2), "{transport:?} {topology:?}");
            assert!(alone == rows(5), "{transport:?} {topology:?}");
        }
    }
}

/// A message counts once for every neighbour; a star sends its mean back.
#[test]
fn traffic_is_counted_per_neighbour() {
    let run = run(Transport::Models, 9, CompressorKind::Identity, Noise::Float);
    let traffic = |topology| {
        let mut simulation = run.simulation(&topology);
        let mut last = None;
        let observe = |progress: soteriafl_core::simulate::Progress| {
            last = Some(progress.traffic);
            ControlFlow::Continue(())
        };
        simulation.run(1, &run.evaluation(), observe).unwrap();
        last.unwrap()
    };
    let message = 10 + 4 * COLUMNS as u64;
    let once = 9 * u64::from(ROUNDS) * message;
    for (topology, receivers) in [
        (Topology::Ring, 2),
        (Topology::Torus(None), 4),
        (Topology::Complete, 8),
    ] {
        let traffic = traffic(topology);
        assert_eq!(traffic.uplink_bytes, receivers * once);
        let values = receivers * 9 * u64::from(ROUNDS) * COLUMNS as u64;
        assert_eq!(traffic.paper_bits, 64 * values);
        assert_eq!(traffic.downlink_bytes, 0);
    }
    let star = traffic(Topology::Star);
    assert_eq!((star.uplink_bytes, star.downlink_bytes), (once, once));
}

/// A run that is stopped and goes on ends as one that was not stopped.
#[test]
fn stopping_changes_nothing() {
    for transport in ALL {
        let run = run(transport, 4, lossy(transport), Noise::Float);
        let mut simulation = run.simulation(&Topology::Ring);
        for stop in [2, 3, ROUNDS] {
            let observe = |progress: soteriafl_core::simulate::Progress| match progress.round {
                round if round == stop => ControlFlow::Break(()),
                _ => ControlFlow::Continue(()),
            };
            simulation.run(2, &run.evaluation(), observe).unwrap();
            assert_eq!(simulation.round(), stop);
        }
        assert_eq!(simulation.models(), run.models(&Topology::Ring));
    }
}

#[test]
fn compressors_must_suit_the_transport() {
    let check = |transport: Transport, kind, participation| {
        let compressor = Compressor::new(kind, COLUMNS, participation).unwrap();
        transport.check(&compressor).is_ok()
    };
    let grid = lossy(Transport::Models);
    let (top, random) = (
        CompressorKind::TopK { k: 3 },
        CompressorKind::RandK { k: 3 },
    );
    for (transport, suits) in [
        (Transport::Differences, [true, true, false, false]),
        (Transport::Models, [true, false, true, false]),
        (Transport::Tracking, [true, true, false, true]),
    ] {
        let kinds = [CompressorKind::Identity, random, grid, top];
        assert_eq!(kinds.map(|kind| check(transport, kind, 1.0)), suits);
        assert!(!check(transport, CompressorKind::Identity, 0.5));
    }
    // Clients of a server send gradients, for which neither is made.
    for kind in [grid, top] {
        let plan = Arc::new(client_plan(logistic(COLUMNS), kind));
        let (rows, labels) = table(1, 4, COLUMNS, 2);
        let data = Arc::new(dense(&rows, &labels, 2));
        let key = SecretKey::simulated(1, 0);
        assert!(Client::new(0, plan, data, Sampling::Full, 0.1, key).is_err());
    }
}
