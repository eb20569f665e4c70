//! The simulator: the same bits on any number of threads and as by hand, consistent when
//! interrupted, honest in its metrics and in what it counts.

mod common;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use common::*;
use soteriafl_accountant::{IncrementClip, Recursion};
use soteriafl_core::compress::{Compressor, CompressorKind, Downlink, DownlinkKind, Rounding};
use soteriafl_core::data::Dataset;
use soteriafl_core::estimator::Clipping;
use soteriafl_core::objective::{Explicit, Objective, Outcome, RecordLoss, Regularizer, RowView};
use soteriafl_core::privacy::Noise;
use soteriafl_core::protocol::{Estimator, Server, shift_step};
use soteriafl_core::sampling::{Coins, Sampling};
use soteriafl_core::simulate::{BLOCK, EvaluationPlan, Progress, Simulation};
use soteriafl_core::wire;

const ROUNDS: u32 = 7;

/// Clients of one to nine records, SoteriaFL with random-k and absences, by estimator.
fn setting(clients: usize, estimator: Estimator, noise: Noise, hidden: bool) -> Setting {
    let (columns, classes) = (7, if hidden { 3 } else { 2 });
    let data = |client: usize| {
        let (rows, labels) = table(client as u64, 1 + client * 5 % 9, columns, classes);
        match client % 2 {
            0 => Arc::new(dense(&rows, &labels, classes)),
            _ => Arc::new(sparse(&rows, &labels, classes)),
        }
    };
    let data: Vec<Arc<Dataset>> = (0..clients).map(data).collect();
    let objective = match hidden {
        true => network(columns, &[5], classes),
        false => logistic(columns),
    };
    let d = objective.dimension();
    let kind = CompressorKind::RandK { k: d / 3 };
    let mut plan = client_plan(objective, kind);
    plan.compressor = Compressor::new(kind, d, 0.8).unwrap();
    plan.estimator = estimator;
    plan.clipping = Clipping::Record(0.5);
    plan.noise = noise;
    if estimator.recursion().is_none() {
        plan.shift_step = Some(shift_step(plan.compressor.omega()));
    }
    let mut server = server_plan(&plan, clients, ROUNDS);
    let total: usize = data.iter().map(|data| data.rows()).sum();
    server.weights = data
        .iter()
        .map(|data| data.rows() as f64 / total as f64)
        .collect();
    server.regularizer = Some(Regularizer::Nonconvex { lambda: 0.1 });
    Setting {
        name: format!("{clients} {estimator:?} {noise:?} {hidden}"),
        sampling: Sampling::Poisson {
            batch: 1.0,
            coins: match noise {
                Noise::Secure => Coins::Exact,
                _ => Coins::Fast,
            },
        },
        sigma: 0.05,
        server,
        naive: naive_logistic(),
        data,
        start: Stream(1).numbers(d, 0.5),
        seed: 77,
        plan,
    }
}

fn simulation(setting: &Setting) -> Simulation {
    let server = Server::new(setting.server.clone(), setting.start.clone());
    Simulation::new(server, setting.clients())
}

fn evaluation<'a>(
    setting: &'a Setting,
    test: Option<&'a Dataset>,
    every: u32,
) -> EvaluationPlan<'a> {
    EvaluationPlan {
        objective: setting.plan.objective.as_ref(),
        regularizer: setting.server.regularizer.unwrap_or_default(),
        weights: &setting.server.weights,
        test,
        every,
        from: 0,
    }
}

/// A round as it was reported, metrics to the bit.
type Row = (u32, [u64; 3], Option<[u64; 3]>, Vec<u32>);

fn row(progress: Progress, server: &Server) -> Row {
    let traffic = progress.traffic;
    let metrics = progress.metrics.map(|metrics| {
        let accuracy = metrics.test_accuracy.unwrap_or(-1.0);
        [metrics.loss, metrics.grad_norm_sq, accuracy].map(f64::to_bits)
    });
    let bits = server.model().iter().map(|x| x.to_bits()).collect();
    (
        progress.round,
        [
            traffic.paper_bits,
            traffic.uplink_bytes,
            traffic.downlink_bytes,
        ],
        metrics,
        bits,
    )
}

fn rows(setting: &Setting, threads: usize, every: u32, test: Option<&Dataset>) -> Vec<Row> {
    let mut simulation = simulation(setting);
    let mut rows = Vec::new();
    simulation
        .run(
            threads,
            &evaluation(setting, test, every),
            |progress, server| {
                rows.push(row(progress, server));
                ControlFlow::Continue(())
            },
        )
        .unwrap();
    rows
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

const SAGA: Estimator = Estimator::Saga {
    difference_clip: Some(0.2),
};
const SVRG: Estimator = Estimator::Svrg {
    snapshot_probability: 0.3,
    difference_clip: Some(0.2),
};
const RECURSIVE: Estimator = Estimator::Recursive(Recursion {
    keep: 1.0,
    period: Some(4),
    increments: IncrementClip::Smooth(0.5),
    noise_ratio: 2.0,
});

/// Models, traffic and metrics of every round, and the model that the same clients and server give
/// by hand.
#[test]
fn threads_change_nothing() {
    let (values, labels) = table(1000, 40, 7, 2);
    let test = dense(&values, &labels, 2);
    for clients in [1, 10, BLOCK + 44] {
        for (estimator, noise, hidden) in [
            (Estimator::Sgd, Noise::Float, false),
            (SVRG, Noise::Float, true),
            (SAGA, Noise::Float, true),
            (SAGA, Noise::Secure, false),
            (RECURSIVE, Noise::Float, true),
            (RECURSIVE, Noise::Secure, false),
        ] {
            let setting = setting(clients, estimator, noise, hidden);
            let alone = rows(&setting, 1, 1, Some(&test));
            assert_eq!(alone.len(), ROUNDS as usize + 1);
            for threads in [2, 3, 7] {
                let team = rows(&setting, threads, 1, Some(&test));
                assert!(alone == team, "{}: {threads} threads", setting.name);
            }
            let (model, _, _) = setting.run_product();
            assert!(
                alone[ROUNDS as usize].3 == bits(&model),
                "{}: by hand",
                setting.name
            );
        }
    }
}

/// Long enough that rounds are tried by the team and alone, and that one way is kept.
#[test]
fn working_together_or_alone_changes_nothing() {
    let mut setting = setting(10, SAGA, Noise::Float, false);
    setting.server.rounds = 80;
    let alone = rows(&setting, 1, 0, None);
    assert_eq!(alone.len(), 81);
    for threads in [2, 3] {
        assert!(rows(&setting, threads, 0, None) == alone, "{threads}");
    }
}

/// Servers of large models are not copied: one thread steps for all.
#[test]
fn threads_change_nothing_for_a_large_model() {
    const PARAMETERS: usize = (1 << 17) + 1;
    let mut setting = setting(5, Estimator::Sgd, Noise::Float, false);
    let data = |client: usize| {
        let (values, labels) = table(client as u64, 4, 6, 2);
        let spread = values.iter().map(|few| {
            let mut row = vec![0.0; PARAMETERS];
            let places = (0..PARAMETERS).step_by(PARAMETERS / 5);
            places
                .zip(few)
                .for_each(|(place, &value)| row[place] = value);
            row
        });
        Arc::new(sparse(&spread.collect::<Vec<_>>(), &labels, 2))
    };
    setting.data = (0..5).map(data).collect();
    setting.plan.objective = logistic(PARAMETERS);
    let kind = CompressorKind::RandK { k: 501 };
    setting.plan.compressor = Compressor::new(kind, PARAMETERS, 0.8).unwrap();
    setting.server.compressor = setting.plan.compressor.clone();
    setting.start = Stream(1).numbers(PARAMETERS, 0.5);
    let alone = rows(&setting, 1, 3, None);
    assert_ne!(alone[0].3, alone[ROUNDS as usize].3);
    for threads in [2, 3] {
        assert!(rows(&setting, threads, 3, None) == alone, "{threads}");
    }
    let (model, _, _) = setting.run_product();
    assert!(alone[ROUNDS as usize].3 == bits(&model));
}

/// Evaluation happens at the start, at the end and when due, and leaves no trace in the run.
#[test]
fn evaluation_comes_when_due_and_changes_nothing() {
    let setting = setting(10, SAGA, Noise::Float, false);
    let all = rows(&setting, 2, 1, None);
    for every in [0, 1, 5] {
        let found = rows(&setting, 2, every, None);
        for (found, all) in found.iter().zip(&all) {
            let round = found.0;
            let due = round == 0 || round == ROUNDS || (every > 0 && round % every == 0);
            assert_eq!(found.2.is_some(), due, "round {round} of every {every}");
            assert_eq!((found.1, &found.3), (all.1, &all.3));
            assert!(found.2.is_none() || found.2 == all.2);
        }
    }
}

/// A run that is broken off after any round stands where the whole run stood after it, and goes on
/// to the same end.
#[test]
fn interruption_leaves_a_consistent_state() {
    for estimator in [Estimator::Sgd, SVRG, SAGA, RECURSIVE] {
        let setting = setting(BLOCK + 3, estimator, Noise::Float, false);
        let whole = rows(&setting, 2, 2, None);
        for stop in [0, 1, 4] {
            let mut simulation = simulation(&setting);
            let evaluation = evaluation(&setting, None, 2);
            let mut seen = Vec::new();
            simulation
                .run(2, &evaluation, |progress, server| {
                    seen.push(row(progress, server));
                    match progress.round == stop {
                        true => ControlFlow::Break(()),
                        false => ControlFlow::Continue(()),
                    }
                })
                .unwrap();
            assert!(seen == whole[..=stop as usize], "{estimator:?} {stop}");
            assert_eq!(simulation.server().round(), stop);
            assert!(bits(simulation.server().model()) == whole[stop as usize].3);
            let mut rest = Vec::new();
            simulation
                .run(3, &evaluation, |progress, server| {
                    rest.push(row(progress, server));
                    ControlFlow::Continue(())
                })
                .unwrap();
            assert!(rest == whole[stop as usize..], "{estimator:?} {stop}");
            // A finished run stays as it is.
            let mut calls = 0;
            simulation
                .run(2, &evaluation, |progress, server| {
                    calls += 1;
                    assert!(row(progress, server).3 == whole[ROUNDS as usize].3);
                    ControlFlow::Continue(())
                })
                .unwrap();
            assert_eq!(calls, 1);
        }
    }
}

/// Loss, squared gradient norm and accuracy against the definitions in `f64`.
#[test]
fn metrics_are_what_they_say() {
    let setting = setting(40, Estimator::Sgd, Noise::Float, false);
    let (values, labels) = table(1000, 300, 7, 2);
    let test = sparse(&values, &labels, 2);
    let mut simulation = simulation(&setting);
    let mut checked = 0;
    simulation
        .run(
            2,
            &evaluation(&setting, Some(&test), 1),
            |progress, server| {
                let x: Vec<f64> = server.model().iter().map(|&x| f64::from(x)).collect();
                let metrics = progress.metrics.unwrap();
                let (mut loss, mut gradient) = (0.0, vec![0.0; x.len()]);
                for (data, weight) in setting.data.iter().zip(&setting.server.weights) {
                    let weight = weight / data.rows() as f64;
                    for j in 0..data.rows() {
                        let (row, label) = (data.full_row(j), data.labels()[j] as usize);
                        let margin: f64 = row.iter().zip(&x).map(|(a, x)| a * x).sum();
                        let sign = if label == 1 { 1.0 } else { -1.0 };
                        loss += weight * (-sign * margin).exp().ln_1p();
                        add(&mut gradient, weight, &(setting.naive)(&x, &row, label));
                    }
                }
                loss += x
                    .iter()
                    .map(|x| f64::from(0.1f32) * x * x / (1.0 + x * x))
                    .sum::<f64>();
                let slopes = x
                    .iter()
                    .map(|x| f64::from(0.1f32) * 2.0 * x / (1.0 + x * x).powi(2));
                add(&mut gradient, 1.0, &slopes.collect::<Vec<_>>());
                let norm: f64 = gradient.iter().map(|g| g * g).sum();
                assert!(
                    (metrics.loss - loss).abs() < 1e-6,
                    "{} {loss}",
                    metrics.loss
                );
                assert!((metrics.grad_norm_sq - norm).abs() < 1e-6 * (1.0 + norm));
                let correct = (0..test.rows()).filter(|&j| {
                    let margin: f64 = test.full_row(j).iter().zip(&x).map(|(a, x)| a * x).sum();
                    u32::from(margin > 0.0) == test.labels()[j]
                });
                let accuracy = correct.count() as f64 / test.rows() as f64;
                assert!((metrics.test_accuracy.unwrap() - accuracy).abs() < 1e-12);
                checked += 1;
                ControlFlow::Continue(())
            },
        )
        .unwrap();
    assert_eq!(checked, ROUNDS + 1);
}

/// A compressed way down: the same rows on any number of threads, and what is counted is what every
/// client gets.
#[test]
fn the_way_down_is_the_same_on_any_number_of_threads() {
    for estimator in [Estimator::Sgd, SVRG, SAGA] {
        for rounding in [Rounding::Sign, Rounding::Natural] {
            let mut setting = setting(9, estimator, Noise::Float, true);
            let d = setting.start.len();
            let kind = DownlinkKind {
                coordinates: Some(d / 2),
                rounding,
            };
            let downlink = Downlink::new(kind, d, setting.plan.public_seed).unwrap();
            let each = wire::HEADER_LEN + downlink.encoded_len();
            setting.server.downlink = Some(downlink);
            let alone = rows(&setting, 1, 2, None);
            assert!(alone == rows(&setting, 3, 2, None), "{}", setting.name);
            assert_eq!(
                alone[ROUNDS as usize].1[2],
                u64::from(ROUNDS) * 9 * each as u64
            );
        }
    }
}

/// Traffic is what the messages by hand add up to: absent clients send a bare header.
#[test]
fn traffic_is_the_length_of_the_messages() {
    let setting = setting(30, Estimator::Sgd, Noise::Float, true);
    let mut server = Server::new(setting.server.clone(), setting.start.clone());
    let mut senders: Vec<Sender> = setting.clients().into_iter().map(Sender::new).collect();
    let mut traffic = [0u64; 3];
    let (mut present, mut absent) = (0, 0);
    while !server.finished() {
        let model = Arc::clone(server.model());
        let mut touched = vec![0.0; model.len()];
        for (i, sender) in senders.iter_mut().enumerate() {
            if sender.send(server.round(), &model) {
                present += 1;
                traffic[0] += 64 * setting.plan.compressor.values() as u64;
                server.add(i as u32, &sender.update).unwrap();
                sender.client.accepted(&sender.update);
                sender.update.add_to(1.0, &mut touched);
            } else {
                absent += 1;
                assert_eq!(sender.bytes.len(), wire::HEADER_LEN);
            }
            traffic[1] += sender.bytes.len() as u64;
        }
        let nonzero = touched.iter().filter(|value| **value != 0.0).count();
        let down = wire::downlink_len(model.len(), nonzero);
        traffic[2] += (senders.len() * down) as u64;
        server.close().unwrap();
    }
    // 210 coins of 0.8.
    assert!(absent > 15 && present > 130, "{present} {absent}");
    let rows = rows(&setting, 2, 0, None);
    assert_eq!(rows[ROUNDS as usize].1, traffic);
}

/// A run that starts from, or is driven to, numbers that are none ends all the same, on every
/// number of threads alike.
#[test]
fn models_that_are_no_numbers_do_not_stop_a_run() {
    for estimator in [Estimator::Sgd, SVRG, SAGA] {
        for hidden in [false, true] {
            for wrong in [f32::NAN, f32::INFINITY, 3e38, -1e30] {
                let mut setting = setting(6, estimator, Noise::Float, hidden);
                setting.start[2] = wrong;
                let alone = rows(&setting, 1, 1, None);
                assert!(alone == rows(&setting, 3, 1, None), "{}", setting.name);
                setting.start[2] = 0.0;
                setting.server.step_size = f64::from(wrong);
                rows(&setting, 2, 1, None);
            }
        }
    }
}

/// Panics once the first parameter has grown to one half.
struct Panics;

impl RecordLoss for Panics {
    fn dimension(&self) -> usize {
        2
    }

    fn loss_and_gradient(
        &self,
        model: &[f32],
        features: RowView<'_>,
        _label: u32,
        gradient: &mut [f32],
    ) -> Outcome {
        assert!(model[0] < 0.5, "an objective that gives up");
        features.add_scaled(1.0, gradient);
        Outcome::default()
    }
}

/// An objective that panics ends the run with a panic on any number of threads, instead of leaving
/// the others to wait for ever.
#[test]
fn a_panic_ends_the_run() {
    for threads in [1, 2, 4] {
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            let objective: Arc<dyn Objective> = Arc::new(Explicit(Panics));
            let data = Arc::new(dense(&vec![vec![-1.0, 0.3]; 3], &[0, 1, 0], 2));
            let plan = client_plan(objective, CompressorKind::Identity);
            let setting = Setting {
                name: String::new(),
                sampling: Sampling::Full,
                sigma: 0.01,
                server: server_plan(&plan, 12, 50),
                naive: naive_logistic(),
                data: vec![data; 12],
                start: vec![0.0; 2],
                seed: 1,
                plan,
            };
            let run = std::panic::AssertUnwindSafe(|| rows(&setting, threads, 0, None));
            let result = std::panic::catch_unwind(run);
            sender.send(result.is_err()).unwrap();
        });
        let ended = receiver.recv_timeout(Duration::from_secs(20));
        assert_eq!(ended, Ok(true), "{threads} threads");
    }
}
