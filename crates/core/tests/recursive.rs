//! Recursive estimates: what they are equal to in special cases, and what they may not do.

mod common;

use std::sync::Arc;

use common::*;
use soteriafl_accountant::{IncrementClip, Recursion};
use soteriafl_core::compress::CompressorKind;
use soteriafl_core::estimator::Clipping;
use soteriafl_core::objective::Regularizer;
use soteriafl_core::privacy::Noise;
use soteriafl_core::protocol::{Client, ClientPlan, Estimator, Round};
use soteriafl_core::random::SecretKey;
use soteriafl_core::sampling::{Coins, Sampling};

const COLUMNS: usize = 8;
const RECORDS: usize = 24;

const TELESCOPING: Recursion = Recursion {
    keep: 1.0,
    period: Some(6),
    increments: IncrementClip::Smooth(0.5),
    noise_ratio: 2.0,
};

fn setting(estimator: Estimator, kind: CompressorKind, noise: Noise) -> Setting {
    let mut plan = client_plan(logistic(COLUMNS), kind);
    plan.estimator = estimator;
    plan.clipping = Clipping::Record(0.4);
    plan.noise = noise;
    let data = (0..3).map(|client| {
        let (rows, labels) = table(client, RECORDS, COLUMNS, 2);
        Arc::new(dense(&rows, &labels, 2))
    });
    let mut server = server_plan(&plan, 3, 15);
    server.regularizer = Some(Regularizer::Nonconvex { lambda: 0.1 });
    Setting {
        name: format!("{estimator:?} {kind:?} {noise:?}"),
        sampling: Sampling::Poisson {
            batch: 6.0,
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

fn model_bits(setting: &Setting) -> Vec<u32> {
    let (model, _, _) = setting.run_product();
    model.iter().map(|value| value.to_bits()).collect()
}

/// A recursion that keeps nothing, and one that starts anew in every round, are SGD, bit for bit.
#[test]
fn nothing_kept_is_sgd() {
    let keeps_nothing = Recursion {
        keep: 0.0,
        ..Recursion::momentum(0.1)
    };
    let every_round = Recursion {
        period: Some(1),
        ..TELESCOPING
    };
    for kind in [CompressorKind::Identity, CompressorKind::RandK { k: 3 }] {
        for noise in [Noise::None, Noise::Float, Noise::Secure] {
            let sgd = model_bits(&setting(Estimator::Sgd, kind, noise));
            for recursion in [keeps_nothing, every_round] {
                let setting = setting(Estimator::Recursive(recursion), kind, noise);
                assert!(model_bits(&setting) == sgd, "{}", setting.name);
            }
            let other = setting(Estimator::Recursive(TELESCOPING), kind, noise);
            assert!(model_bits(&other) != sgd, "{}", other.name);
        }
    }
}

/// Without noise, of all records and with no clip in the way, the increments add up to the
/// gradient, whatever share is kept: the run is that of gradient descent, up to rounding. With a
/// clip of increments in the way it is another run.
#[test]
fn whole_increments_telescope_to_gradient_descent() {
    let run = |estimator, clipping| {
        let mut setting = setting(estimator, CompressorKind::Identity, Noise::None);
        setting.sampling = Sampling::Full;
        setting.plan.clipping = clipping;
        setting.run_product().0
    };
    let gd = run(Estimator::Sgd, Clipping::None);
    let moved = distance(&gd, &Stream(5).numbers(COLUMNS, 0.5));
    assert!(moved > 0.2, "{moved}");
    for keep in [0.3, 0.9, 1.0] {
        for period in [None, Some(4)] {
            let recursion = |increments| {
                Estimator::Recursive(Recursion {
                    keep,
                    period,
                    increments,
                    noise_ratio: 1.0,
                })
            };
            for increments in [IncrementClip::Fixed(1e3), IncrementClip::Smooth(1e3)] {
                for clipping in [Clipping::None, Clipping::Record(1e2)] {
                    let model = run(recursion(increments), clipping);
                    let error = distance(&model, &gd);
                    assert!(error < 1e-5, "{keep} {period:?} {increments:?}: {error}");
                }
            }
            let clipped = run(recursion(IncrementClip::Fixed(1e-3)), Clipping::Record(1.0));
            assert!(distance(&clipped, &gd) > 1e-3, "{keep} {period:?}");
        }
    }
}

fn distance(one: &[f32], other: &[f32]) -> f64 {
    let squares = one.iter().zip(other).map(|(a, b)| f64::from(a - b).powi(2));
    squares.sum::<f64>().sqrt()
}

/// Without records in the batch a message is noise alone: `sigma` where the recursion starts anew,
/// and `ratio s sigma` elsewhere, with `s` from the models of two rounds. 8,000 numbers each, six
/// standard errors: a fresh seed fails with probability 1e-8.
#[test]
fn noise_follows_the_public_scale() {
    for noise in [Noise::Float, Noise::Secure] {
        let (sigma, clip, columns) = (0.05, 0.4, 800);
        let mut plan = client_plan(logistic(columns), CompressorKind::Identity);
        plan.estimator = Estimator::Recursive(TELESCOPING);
        plan.clipping = Clipping::Record(clip);
        plan.noise = noise;
        let data = Arc::new(dense(&[vec![0.0; columns]], &[0], 2));
        let key = SecretKey::simulated(1, 0);
        let client = Client::new(0, Arc::new(plan), data, Sampling::Full, sigma, key);
        let mut sender = Sender::new(client.unwrap());
        let mut squares = [(0.0, 0.0); 2];
        // Models on a line, half a unit of distance apart.
        let apart = 0.5 / (columns as f32).sqrt();
        for round in 0..60 {
            let model = Arc::new(vec![apart * round as f32; columns]);
            assert!(sender.send(round, &model));
            let increment = round % 6 != 0;
            let factor = if increment {
                2.0 * (0.5 * 0.5 / clip)
            } else {
                1.0
            };
            let entry = &mut squares[usize::from(increment)];
            for value in sender.update.values() {
                entry.0 += (f64::from(*value) / (sigma * factor)).powi(2);
                entry.1 += 1.0;
            }
        }
        for (sum, count) in squares {
            let allowed = 6.0 * f64::sqrt(2.0 / count) + 1e-3;
            assert!(
                (sum / count - 1.0).abs() < allowed,
                "{noise:?} {}",
                sum / count
            );
        }
    }
}

/// A client that goes on from a saved state, and one that was told of a round that it missed, send
/// what they would have sent.
#[test]
fn states_are_saved_and_missed_rounds_followed() {
    for noise in [Noise::Float, Noise::Secure] {
        let estimator = Estimator::Recursive(TELESCOPING);
        let setting = setting(estimator, CompressorKind::RandK { k: 3 }, noise);
        let model = |round: Round| Arc::new(Stream(u64::from(round)).numbers(COLUMNS, 1.0));
        let new = || Sender::new(setting.clients().remove(0));
        let mut whole = new();
        for round in 0..20 {
            assert!(whole.send(round, &model(round)));
            if round == 0 {
                continue;
            }
            // Of the rounds before, the last one alone is needed, and only as a model.
            let mut late = new();
            late.client.skip_round(round - 1, &model(round - 1));
            let state = late.client.save();
            late.send(round, &model(round));
            assert_eq!(late.bytes, whole.bytes, "{noise:?} {round}");
            let mut restored = new();
            assert!(restored.client.restore(&state));
            restored.send(round, &model(round));
            assert_eq!(restored.bytes, whole.bytes, "{noise:?} {round}");
            let mut cut = state;
            cut.memory.pop();
            assert!(!restored.client.restore(&cut));
        }
    }
}

/// What the step moves the model by never exceeds the cap.
#[test]
fn steps_are_capped() {
    let mut setting = setting(
        Estimator::Recursive(Recursion::momentum(0.1)),
        CompressorKind::Identity,
        Noise::None,
    );
    setting.sampling = Sampling::Full;
    setting.server.rounds = 1;
    let start = setting.start.clone();
    let moved = |cap| {
        let mut setting = Setting {
            server: setting.server.clone(),
            plan: setting.plan.clone(),
            data: setting.data.clone(),
            start: start.clone(),
            name: setting.name.clone(),
            naive: naive_logistic(),
            ..setting
        };
        setting.server.step_cap = cap;
        distance(&setting.run_product().0, &start)
    };
    let free = moved(None);
    assert!(free > 0.02, "{free}");
    assert!((moved(Some(0.01)) - 0.01).abs() < 1e-6);
    assert_eq!(moved(Some(10.0)), free);
}

/// What no proof covers is refused by name.
#[test]
fn what_does_not_go_with_it_is_refused() {
    type Change = fn(&mut ClientPlan);
    let changes: [(Change, &str); 5] = [
        (|plan| plan.shift_step = Some(0.1), "shift"),
        (
            |plan| plan.regularizer = Some(Regularizer::L2 { lambda: 0.1 }),
            "regularizer",
        ),
        (|plan| plan.estimate_clip = Some(1.0), "clipped records"),
        (|plan| plan.clipping = Clipping::Selected(0.1), "selected"),
        (
            |plan| plan.estimator = Estimator::Recursive(Recursion::momentum(f64::NAN)),
            "difference clip",
        ),
    ];
    for (change, expected) in changes {
        let estimator = Estimator::Recursive(TELESCOPING);
        let setting = setting(estimator, CompressorKind::RandK { k: 3 }, Noise::Float);
        let mut plan = setting.plan.clone();
        change(&mut plan);
        let (data, key) = (Arc::clone(&setting.data[0]), setting.key(0));
        let built = Client::new(0, Arc::new(plan), data, setting.sampling, 0.1, key);
        let error = built.err().expect("it is refused").to_string();
        assert!(error.contains(expected), "{error}");
    }
}
