//! Client and server against each other's mistakes and malice.

mod common;

use std::sync::Arc;

use common::*;
use soteriafl_core::compress::{Compressor, CompressorKind, DecodeError, Update};
use soteriafl_core::estimator::Clipping;
use soteriafl_core::objective::{Objective, Regularizer};
use soteriafl_core::privacy::Noise;
use soteriafl_core::protocol::{
    Client, ClientError, ClientPlan, Estimator, RoundScratch, Server, ServerError, shift_step,
};
use soteriafl_core::random::{ClientKeys, SecretKey};
use soteriafl_core::sampling::{Coins, Sampling};

const POISSON: Sampling = Sampling::Poisson {
    batch: 3.0,
    coins: Coins::Exact,
};

fn kinds(d: usize) -> [CompressorKind; 4] {
    [
        CompressorKind::Identity,
        CompressorKind::RandK { k: d.div_ceil(4) },
        CompressorKind::Qsgd { levels: 4 },
        CompressorKind::Natural,
    ]
}

fn client(plan: ClientPlan, sampling: Sampling) -> Client {
    let columns = 4;
    let (rows, labels) = table(2, 9, columns, 2);
    let data = Arc::new(dense(&rows, &labels, 2));
    let key = SecretKey::simulated(3, 0);
    Client::new(0, Arc::new(plan), data, sampling, 0.1, key).unwrap()
}

/// A server that lies about the model, round after round, and with it about everything that
/// follows: messages are finite, of the right length, and readable; nobody panics.
#[test]
fn messages_stay_finite_whatever_the_server_sends() {
    let objectives: [Arc<dyn Objective>; 2] = [logistic(4), network(4, &[3], 2)];
    let difference_clip = Some(0.3);
    let estimators = [
        Estimator::Sgd,
        Estimator::Svrg {
            snapshot_probability: 0.5,
            difference_clip,
        },
        Estimator::Saga { difference_clip },
        Estimator::Saga {
            difference_clip: None,
        },
        Estimator::Sag { memory: 0.5 },
        Estimator::Sag { memory: 1.0 },
    ];
    let lies = [
        f32::NAN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::MAX,
        -f32::MAX,
        1e-45,
        1e20,
    ];
    for objective in objectives {
        let d = objective.dimension();
        for kind in kinds(d) {
            for estimator in estimators {
                for (clipping, estimate_clip) in [
                    (Clipping::Record(1.0), None),
                    (Clipping::None, None),
                    (Clipping::None, Some(1.0)),
                ] {
                    for regularizer in [None, Some(Regularizer::L2 { lambda: 2.0 })] {
                        let mut plan = client_plan(Arc::clone(&objective), kind);
                        plan.compressor = Compressor::new(kind, d, 0.9).unwrap();
                        plan.estimator = estimator;
                        plan.clipping = clipping;
                        plan.estimate_clip = estimate_clip;
                        plan.regularizer = regularizer;
                        plan.shift_step = Some(shift_step(plan.compressor.omega()));
                        let compressor = plan.compressor.clone();
                        let mut sender = Sender::new(client(plan, POISSON));
                        let mut stream = Stream(7);
                        for round in 0..40u32 {
                            let lie = lies[round as usize % lies.len()];
                            let mut model = stream.numbers(d, 1.0);
                            match round % 3 {
                                0 => model[stream.pick(d)] = lie,
                                1 => model.fill(lie),
                                _ => {}
                            }
                            if sender.send(round, &Arc::new(model)) {
                                let update = decoded(&compressor, round, &sender.bytes);
                                assert_eq!(update.values(), sender.update.values());
                                assert!(update.values().iter().all(|value| value.is_finite()));
                                sender.client.accepted(&update);
                            }
                        }
                    }
                }
            }
        }
    }
}

/// With clipped records and no regularizer of its own a client recovers from lies: SVRG and SAGA
/// have forgotten them once the snapshot and the table have moved on.
#[test]
fn lies_are_forgotten() {
    for estimator in [
        Estimator::Sgd,
        Estimator::Svrg {
            snapshot_probability: 1.0,
            difference_clip: None,
        },
        Estimator::Saga {
            difference_clip: None,
        },
    ] {
        let mut plan = client_plan(logistic(4), CompressorKind::Identity);
        plan.estimator = estimator;
        let honest = Arc::new(vec![0.3, -0.2, 0.5, 0.1]);
        let (mut deceived, mut lucky) = (
            Sender::new(client(plan.clone(), Sampling::Full)),
            Sender::new(client(plan, Sampling::Full)),
        );
        for (round, lie) in [f32::NAN, 1e38, f32::INFINITY].into_iter().enumerate() {
            deceived.send(round as u32, &Arc::new(vec![lie; 4]));
            lucky.send(round as u32, &honest);
        }
        for round in 3..6 {
            deceived.send(round, &honest);
            lucky.send(round, &honest);
        }
        for (a, b) in deceived.update.values().iter().zip(lucky.update.values()) {
            assert!((a - b).abs() < 1e-6, "{estimator:?}: {a} {b}");
        }
    }
}

/// With a round's coins alone a client comes to the memory that its messages left: noise,
/// coordinates and rounding have a key of their own, which nobody needs again.
#[test]
fn memory_is_rebuilt_from_coins_alone() {
    let objectives: [Arc<dyn Objective>; 2] = [logistic(4), network(4, &[3], 2)];
    for objective in objectives {
        let d = objective.dimension();
        for kind in kinds(d) {
            for noise in [Noise::Float, Noise::Secure] {
                let mut plan = client_plan(Arc::clone(&objective), kind);
                plan.compressor = Compressor::new(kind, d, 0.7).unwrap();
                plan.estimator = Estimator::Saga {
                    difference_clip: Some(0.3),
                };
                plan.noise = noise;
                let mut sender = Sender::new(client(plan.clone(), POISSON));
                let mut later = client(plan, POISSON);
                let (mut scratch, mut stream) = (RoundScratch::default(), Stream(5));
                let mut sent = 0;
                for round in 0..12u32 {
                    let model = Arc::new(stream.numbers(d, 1.0));
                    let coins = SecretKey::simulated(u64::from(round), 1);
                    sender.client.set_keys(ClientKeys {
                        coins: coins.clone(),
                        noise: SecretKey::simulated(u64::from(round), 2),
                    });
                    let present = sender.send(round, &model);
                    assert_eq!(
                        later
                            .replay_round(round, &model, &coins, &mut scratch)
                            .unwrap(),
                        present
                    );
                    assert!(later.save() == sender.client.save(), "{kind:?} {noise:?}");
                    sent += u32::from(present);
                }
                assert!(sent > 3 && sent < 12, "{sent}");
            }
        }
    }
}

/// Asked twice for the same round and model, a client without memory sends the same bytes.
#[test]
fn a_message_is_a_function_of_key_round_and_model() {
    let model = Arc::new(vec![0.1, 0.2, -0.3, 0.4]);
    for kind in kinds(4) {
        for noise in [Noise::Float, Noise::Secure, Noise::None] {
            let mut plan = client_plan(logistic(4), kind);
            plan.noise = noise;
            let mut sender = Sender::new(client(plan, POISSON));
            sender.send(5, &model);
            let first = sender.bytes.clone();
            sender.send(6, &model);
            assert_ne!(first[10..], sender.bytes[10..], "{kind:?} {noise:?}");
            sender.send(5, &model);
            assert_eq!(first, sender.bytes);
        }
    }
}

fn server(clients: usize) -> (Server, ClientPlan) {
    let mut plan = client_plan(logistic(4), CompressorKind::RandK { k: 2 });
    plan.shift_step = Some(0.4);
    let server = Server::new(server_plan(&plan, clients, 2), vec![0.1; 4]);
    (server, plan)
}

/// Every way not to be taken, each leaving the server as it was.
#[test]
fn the_server_takes_each_client_once_and_in_order() {
    let (mut server, plan) = server(3);
    let mut sender = Sender::new(client(plan, POISSON));
    sender.send(0, server.model());
    let update = sender.update.clone();
    let refuses = |server: &mut Server, client: u32, expected: ServerError| {
        let before = format!("{server:?}");
        assert_eq!(server.add(client, &update), Err(expected));
        assert_eq!(before, format!("{server:?}"));
    };
    let unknown = |client| ServerError::UnknownClient { client, clients: 3 };
    refuses(&mut server, 3, unknown(3));
    refuses(&mut server, u32::MAX, unknown(u32::MAX));
    server.add(1, &update).unwrap();
    let order = |client, last, round| ServerError::Order {
        client,
        last,
        round,
    };
    refuses(&mut server, 1, order(1, 1, 0));
    refuses(&mut server, 0, order(0, 1, 0));
    server.add(2, &update).unwrap();
    refuses(&mut server, 2, order(2, 2, 0));
    let closed = server.close().unwrap();
    assert_eq!((closed.round, closed.messages, closed.nonzero), (0, 2, 2));
    // A new round begins with any client; one with no client at all closes too, on the shift alone.
    let (model, shift) = (server.model().to_vec(), server.shift().to_vec());
    assert_eq!(server.round(), 1);
    let closed = server.close().unwrap();
    assert_eq!((closed.round, closed.messages, closed.nonzero), (1, 0, 0));
    for ((new, old), shift) in server.model().iter().zip(model).zip(&shift) {
        assert_eq!(*new, old - 0.3 * shift);
    }
    assert_eq!(server.shift(), shift);
    assert!(server.finished());
    refuses(&mut server, 0, ServerError::Finished(2));
    let before = format!("{server:?}");
    assert!(matches!(server.close(), Err(ServerError::Finished(2))));
    assert_eq!(before, format!("{server:?}"));
}

/// Bytes that are no message of the open round are refused with the client's number.
#[test]
fn the_server_reads_only_messages_of_its_round() {
    let (mut server, plan) = server(3);
    let mut sender = Sender::new(client(plan, POISSON));
    let model = Arc::clone(server.model());
    sender.send(0, &model);
    let good = sender.bytes.clone();
    let before = format!("{server:?}");
    let mut update = Update::default();
    let mut refused = |server: &Server, bytes: &[u8]| match server.decode(2, bytes, &mut update) {
        Err(ServerError::Message { client: 2, error }) => error,
        other => panic!("{other:?}"),
    };
    for len in 0..good.len() {
        let error = refused(&server, &good[..len]);
        assert!(matches!(error, DecodeError::Length { .. }), "{error}");
    }
    let mut long = good.clone();
    long.push(0);
    assert!(matches!(
        refused(&server, &long),
        DecodeError::Length { .. }
    ));
    for at in 0..10 {
        for bit in 0..8 {
            let mut bad = good.clone();
            bad[at] ^= 1 << bit;
            refused(&server, &bad);
        }
    }
    let mut infinite = good.clone();
    let end = infinite.len();
    infinite[end - 4..].copy_from_slice(&f32::INFINITY.to_le_bytes());
    assert_eq!(
        refused(&server, &infinite),
        DecodeError::NotFinite { position: 1 }
    );
    assert_eq!(before, format!("{server:?}"));
    server.close().unwrap();
    let error = refused(&server, &good);
    assert!(matches!(error, DecodeError::Header { field: "round", .. }));
    sender.send(1, &model);
    assert_eq!(
        server.decode(2, &sender.bytes, &mut Update::default()),
        Ok(true)
    );
}

/// A client that disappears contributes its shift: the others' rounds go on, and the server's shift
/// is still the weighted mean of the clients' shifts, which is what makes the estimate unbiased.
#[test]
fn shifts_stay_together_whoever_drops_out() {
    let (columns, clients) = (4, 4);
    let mut plan = client_plan(logistic(columns), CompressorKind::RandK { k: 2 });
    plan.shift_step = Some(shift_step(plan.compressor.omega()));
    let mut run = server_plan(&plan, clients, 50);
    run.weights = vec![0.1, 0.2, 0.3, 0.4];
    let plan = Arc::new(plan);
    let mut server = Server::new(run.clone(), vec![0.0; columns]);
    let mut senders: Vec<Sender> = (0..clients as u32)
        .map(|id| {
            let (rows, labels) = table(u64::from(id), 6, columns, 2);
            let data = Arc::new(dense(&rows, &labels, 2));
            let key = SecretKey::simulated(1, id);
            let plan = Arc::clone(&plan);
            Sender::new(Client::new(id, plan, data, Sampling::Full, 0.1, key).unwrap())
        })
        .collect();
    let mut stream = Stream(3);
    for round in 0..50 {
        let model = Arc::clone(server.model());
        for (id, sender) in senders.iter_mut().enumerate() {
            sender.send(round, &model);
            // Lost on the way: neither side moves its shift.
            if stream.next() > -0.4 {
                server.add(id as u32, &sender.update).unwrap();
                sender.client.accepted(&sender.update);
            }
        }
        drop(model);
        server.close().unwrap();
        for i in 0..columns {
            let shifts = senders.iter().zip(&run.weights);
            let mean: f64 = shifts
                .map(|(s, w)| w * f64::from(s.client.shift()[i]))
                .sum();
            assert!(
                (f64::from(server.shift()[i]) - mean).abs() < 1e-5,
                "round {round}"
            );
        }
    }
}

/// Clients that cannot be built say why.
#[test]
fn impossible_clients_are_refused() {
    let (rows, labels) = table(2, 9, 4, 2);
    let all = dense(&rows, &labels, 2);
    let build = |plan: ClientPlan, rows: &[u32], sampling| {
        let data = Arc::new(all.select(rows));
        let key = SecretKey::simulated(3, 0);
        Client::new(7, Arc::new(plan), data, sampling, 0.1, key).map(|_| ())
    };
    let plan = || client_plan(logistic(4), CompressorKind::Identity);
    assert!(matches!(
        build(plan(), &[], Sampling::Full),
        Err(ClientError::Empty(7))
    ));
    let error = build(plan(), &[0, 1], POISSON).unwrap_err();
    assert_eq!(
        error.to_string(),
        "client 7 has 2 records, fewer than the batch of 3"
    );
    assert!(build(plan(), &[0, 1, 2], POISSON).is_ok());
    for batch in [0.0, -1.0, f64::NAN] {
        for coins in [Coins::Exact, Coins::Fast] {
            let result = build(plan(), &[0, 1, 2], Sampling::Poisson { batch, coins });
            assert!(matches!(
                result,
                Err(ClientError::NoBatch { client: 7, .. })
            ));
        }
    }
    let result = build(plan(), &[0], Sampling::WithReplacement { batch: 0 });
    assert!(matches!(result, Err(ClientError::NoBatch { .. })));
    let mut both = plan();
    both.clipping = Clipping::Selected(1.0);
    both.estimate_clip = Some(1.0);
    let result = build(both, &[0, 1, 2], POISSON);
    assert!(matches!(result, Err(ClientError::Unsupported(_))));
    for estimator in [
        Estimator::Sag { memory: 1.0 },
        Estimator::Saga {
            difference_clip: None,
        },
        Estimator::Svrg {
            snapshot_probability: 0.1,
            difference_clip: None,
        },
    ] {
        let mut plan = plan();
        plan.estimator = estimator;
        plan.clipping = Clipping::Selected(1.0);
        let result = build(plan, &[0, 1, 2], POISSON);
        assert!(matches!(result, Err(ClientError::Unsupported(_))));
    }
}

/// A memory is a share, and not nothing.
#[test]
fn a_memory_is_a_share() {
    for memory in [0.0, -0.5, 1.5, f64::NAN] {
        let mut plan = client_plan(logistic(4), CompressorKind::Identity);
        plan.estimator = Estimator::Sag { memory };
        let (rows, labels) = table(2, 9, 4, 2);
        let data = Arc::new(dense(&rows, &labels, 2));
        let key = SecretKey::simulated(3, 0);
        let built = Client::new(7, Arc::new(plan), data, POISSON, 0.1, key).map(|_| ());
        assert!(
            matches!(built, Err(ClientError::Unsupported(_))),
            "{memory}"
        );
    }
}

/// SAGA's integer mean must not saturate: what is added is taken away again.
#[test]
fn saga_refuses_more_records_than_its_mean_can_hold() {
    let (rows, labels) = table(2, 9, 4, 2);
    let all = dense(&rows, &labels, 2);
    let build = |records: usize, sigma: f64| {
        let mut plan = client_plan(logistic(4), CompressorKind::Identity);
        plan.clipping = Clipping::Record(1.0);
        plan.noise = Noise::Secure;
        plan.estimator = Estimator::Saga {
            difference_clip: Some(1e-4),
        };
        let data = Arc::new(all.select(&vec![0; records]));
        let key = SecretKey::simulated(3, 0);
        Client::new(7, Arc::new(plan), data, POISSON, sigma, key).map(|_| ())
    };
    // A record measures 2^51.7 steps, of which 2^11.3 fit into 63 bits.
    let result = build(5000, 2f64.powi(-44));
    assert!(matches!(result, Err(ClientError::TooMany { client: 7, most, .. }) if most < 5000));
    assert!(build(5000, 2f64.powi(-34)).is_ok());
}
