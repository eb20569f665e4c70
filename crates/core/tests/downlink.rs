//! The compressed way down: equal to the naive loop, the same bits for all who follow, and after a
//! restart; nothing is lost, only late.

mod common;

use std::sync::Arc;

use common::*;
use proptest::prelude::*;
use soteriafl_accountant::{IncrementClip, Recursion};
use soteriafl_core::compress::{Compressor, CompressorKind, Downlink, DownlinkKind, Rounding};
use soteriafl_core::estimator::Clipping;
use soteriafl_core::objective::Regularizer;
use soteriafl_core::privacy::Noise;
use soteriafl_core::protocol::{Estimator, Schedule, Server, ServerError, shift_step};
use soteriafl_core::sampling::{Coins, Sampling};
use soteriafl_core::wire;

const COLUMNS: usize = 9;

const SVRG: Estimator = Estimator::Svrg {
    snapshot_probability: 0.4,
    difference_clip: Some(0.3),
};
const SAGA: Estimator = Estimator::Saga {
    difference_clip: Some(0.3),
};
const RECURSIVE: Estimator = Estimator::Recursive(Recursion {
    keep: 1.0,
    period: Some(5),
    increments: IncrementClip::Smooth(0.5),
    noise_ratio: 2.0,
});
const ESTIMATORS: [Estimator; 4] = [Estimator::Sgd, SVRG, SAGA, RECURSIVE];

fn kinds() -> Vec<DownlinkKind> {
    let roundings = [
        Rounding::Exact,
        Rounding::Sign,
        Rounding::Natural,
        Rounding::Qsgd { levels: 4 },
    ];
    let both = |rounding| {
        [None, Some(4)].map(|coordinates| DownlinkKind {
            coordinates,
            rounding,
        })
    };
    roundings.into_iter().flat_map(both).collect()
}

/// Four clients with random-k, absences, a regularizer and, but for recursions, shift and momentum.
fn setting(estimator: Estimator, kind: Option<DownlinkKind>) -> Setting {
    let compressor = CompressorKind::RandK { k: 4 };
    let mut plan = client_plan(logistic(COLUMNS), compressor);
    plan.compressor = Compressor::new(compressor, COLUMNS, 0.8).unwrap();
    plan.estimator = estimator;
    plan.clipping = Clipping::Record(0.5);
    plan.noise = Noise::Float;
    let alone = estimator.recursion().is_none();
    plan.shift_step = alone.then(|| shift_step(plan.compressor.omega()));
    let data = (0..4).map(|client| {
        let (rows, labels) = table(client, 20, COLUMNS, 2);
        Arc::new(dense(&rows, &labels, 2))
    });
    let mut server = server_plan(&plan, 4, 14);
    server.regularizer = Some(Regularizer::Nonconvex { lambda: 0.1 });
    server.schedule = Schedule::InverseSqrt;
    server.momentum = if alone { 0.5 } else { 0.0 };
    server.downlink = kind.map(|kind| Downlink::new(kind, COLUMNS, plan.public_seed).unwrap());
    Setting {
        name: format!("{estimator:?} {kind:?}"),
        sampling: Sampling::Poisson {
            batch: 5.0,
            coins: Coins::Exact,
        },
        sigma: 0.05,
        server,
        naive: naive_logistic(),
        data: data.collect(),
        start: Stream(5).numbers(COLUMNS, 0.5),
        seed: 17,
        plan,
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Every estimator, every form, with everything else a server does: as written down in `f64`.
#[test]
fn the_run_is_that_of_the_naive_loop() {
    for estimator in ESTIMATORS {
        for kind in kinds() {
            setting(estimator, Some(kind)).check(1e-4);
        }
    }
}

/// Nobody but the server has more than the bytes: a follower of any round, a server that starts
/// again from a state and the averages since, and one that only repeats averages end at the same
/// bits, and what is told is the same.
#[test]
fn everybody_who_follows_has_the_same_bits() {
    for estimator in ESTIMATORS {
        for kind in kinds() {
            let setting = setting(estimator, Some(kind));
            let mut server = Server::new(setting.server.clone(), setting.start.clone());
            let mut follower = Server::follower(setting.server.clone(), setting.start.clone());
            let mut late = follower.clone();
            let mut again = server.clone();
            let mut senders: Vec<Sender> = setting.clients().into_iter().map(Sender::new).collect();
            let mut average = Vec::new();
            while !server.finished() {
                let (round, model) = (server.round(), Arc::clone(server.model()));
                if round == 6 {
                    late.restore(server.state().followed()).unwrap();
                    let mut other = Server::new(setting.server.clone(), setting.start.clone());
                    other.restore(again.state()).unwrap();
                    again = other;
                }
                for (i, sender) in senders.iter_mut().enumerate() {
                    if sender.send(round, &model) {
                        server.add(i as u32, &sender.update).unwrap();
                        sender.client.accepted(&sender.update);
                    }
                }
                drop(model);
                wire::put_average(server.average(), round, &mut average);
                let summary = server.close().unwrap();
                let told = server.broadcast().unwrap().to_vec();
                assert_eq!(summary.down, told.len());
                assert_eq!(
                    told.len(),
                    wire::HEADER_LEN + setting.server.downlink.as_ref().unwrap().encoded_len()
                );
                again.apply(&average).unwrap();
                again.close().unwrap();
                assert_eq!(again.broadcast().unwrap(), told);
                assert_eq!(again.state(), server.state(), "{}", setting.name);
                follower.apply(&told).unwrap();
                follower.close().unwrap();
                assert_eq!(
                    bits(follower.model()),
                    bits(server.model()),
                    "{}",
                    setting.name
                );
                if round >= 6 {
                    late.apply(&told).unwrap();
                    late.close().unwrap();
                    assert_eq!(late.state(), follower.state());
                }
            }
            let state = follower.state();
            assert!(state.shift.is_empty() && state.velocity.is_empty() && state.target.is_empty());
            assert!(!server.state().target.is_empty());
        }
    }
}

/// A state without the server's own model, or with one for a run without, is refused.
#[test]
fn states_of_another_kind_are_refused() {
    let kind = kinds()[2];
    let with = setting(Estimator::Sgd, Some(kind));
    let without = setting(Estimator::Sgd, None);
    let server = |setting: &Setting| Server::new(setting.server.clone(), setting.start.clone());
    let refused = Err(ServerError::Unfit("the state"));
    assert_eq!(server(&with).restore(server(&without).state()), refused);
    assert_eq!(server(&without).restore(server(&with).state()), refused);
    assert_eq!(
        server(&with).restore(server(&with).state().followed()),
        refused
    );
    let mut follower = Server::follower(with.server.clone(), with.start.clone());
    assert_eq!(follower.restore(server(&with).state()), refused);
    let mut state = server(&with).state();
    state.target[3] = f32::NAN;
    assert_eq!(server(&with).restore(state), refused);
}

/// What is not told in a round is told later, once: after rounds in which the server stands still,
/// everybody has its model. No noise and no signal is lost or doubled.
#[test]
fn nothing_is_lost() {
    for kind in kinds() {
        let mut setting = setting(Estimator::Sgd, Some(kind));
        setting.server.rounds = 400;
        setting.server.schedule = Schedule::Constant;
        setting.server.momentum = 0.0;
        setting.server.regularizer = None;
        setting.server.shift_step = None;
        let mut server = Server::new(setting.server.clone(), setting.start.clone());
        let mut moved = vec![0.0f32; COLUMNS];
        let mut stream = Stream(8);
        let mut average = Vec::new();
        for round in 0..400 {
            let direction = match round < 10 {
                true => stream.numbers(COLUMNS, 1.0),
                false => vec![0.0; COLUMNS],
            };
            for (moved, v) in moved.iter_mut().zip(&direction) {
                *moved -= 0.3 * v;
            }
            wire::put_average(&direction, round, &mut average);
            server.apply(&average).unwrap();
            server.close().unwrap();
        }
        for ((model, start), moved) in server.model().iter().zip(&setting.start).zip(&moved) {
            let off = model - start - moved;
            assert!(off.abs() < 1e-3, "{kind:?}: {off}");
        }
    }
}

/// Sending all coordinates as they are is what no compression does, up to rounding.
#[test]
fn everything_told_is_nothing_compressed() {
    for estimator in ESTIMATORS {
        let all = DownlinkKind {
            coordinates: Some(COLUMNS),
            rounding: Rounding::Exact,
        };
        let (compressed, ..) = setting(estimator, Some(all)).run_product();
        let (plain, ..) = setting(estimator, None).run_product();
        for (one, other) in compressed.iter().zip(&plain) {
            assert!((one - other).abs() < 1e-5, "{estimator:?}: {one} {other}");
        }
    }
}

proptest! {
    /// Whatever bytes a follower is given: it refuses them and is as before, or has moved by finite
    /// numbers.
    #[test]
    fn hostile_bytes_do_no_harm(
        noise in prop::collection::vec(any::<u8>(), 0..60),
        keep in 0usize..60,
        form in 0usize..8,
    ) {
        let setting = setting(Estimator::Sgd, Some(kinds()[form]));
        let mut server = Server::new(setting.server.clone(), setting.start.clone());
        server.close().unwrap();
        let mut bytes = server.broadcast().unwrap().to_vec();
        let keep = keep.min(bytes.len());
        for (byte, noise) in bytes[keep..].iter_mut().zip(&noise) {
            *byte = *noise;
        }
        let mut follower = Server::follower(setting.server.clone(), setting.start.clone());
        match follower.apply(&bytes) {
            Ok(()) => { follower.close().unwrap(); }
            Err(_) => {
                prop_assert_eq!(bits(follower.model()), bits(&setting.start));
                prop_assert_eq!(follower.round(), 0);
                // And the right bytes are still taken.
                follower.apply(server.broadcast().unwrap()).unwrap();
                follower.close().unwrap();
                prop_assert_eq!(bits(follower.model()), bits(server.model()));
            }
        }
        let mut other = Server::follower(setting.server.clone(), setting.start.clone());
        prop_assert!(other.apply(&noise).is_err());
        bytes.push(0);
        prop_assert!(other.apply(&bytes).is_err());
    }
}
