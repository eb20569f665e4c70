use super::*;
use crate::audit::fixtures::run;
use crate::specification::Clip;
use soteriafl_accountant::recursion::{IncrementClip, Recursion};
use soteriafl_core::compress::{DownlinkKind, Rounding};

const RECORDS: usize = 200;
const DIMENSION: usize = 100;

fn scores(run: &Specification, sigma: f64, adjacency: Adjacency, runs: u32) -> [Vec<f64>; 2] {
    let game = Game::new(run, DIMENSION, RECORDS, sigma, adjacency, 5).unwrap();
    let mut by_coin = [Vec::new(), Vec::new()];
    let mut scratch = RoundScratch::default();
    for number in 0..runs {
        for (coin, score) in game.play(number, &mut scratch).unwrap() {
            by_coin[usize::from(coin)].push(f64::from(score));
        }
    }
    by_coin
}

fn mean_and_variance(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares = values.iter().map(|value| (value - mean).powi(2));
    (mean, squares.sum::<f64>() / (count - 1.0))
}

/// Full gradients: the likelihood ratio is Gaussian with mean `+-mu^2/2` and variance `mu^2`, `mu`
/// the root of the rounds times the distance over sigma. Each of 2 x 4 x 2 statistics may be five
/// standard errors off (failure probability below 1e-5 in all), or half a percent, which is what
/// canaries of one block disturb each other.
#[test]
fn full_gradients_have_the_likelihood_ratio_of_the_closed_form() {
    let selected = Specification {
        clip: Some(Clip {
            bound: 0.5,
            scope: ClipScope::Selected,
        }),
        compressor: CompressorKind::RandK { k: 10 },
        shift: Some(0.1),
        ..run()
    };
    let secure = Specification {
        noise: NoiseName::Secure,
        ..selected.clone()
    };
    for (run, runs) in [(run(), 100), (selected, 100), (secure, 40)] {
        for (adjacency, distance) in [(Adjacency::ZeroOut, 1.0), (Adjacency::ReplaceOne, 2.0)] {
            let sigma = 0.02;
            let mu2 = f64::from(run.rounds) * (distance * 0.5 / RECORDS as f64 / sigma).powi(2);
            for (coin, values) in scores(&run, sigma, adjacency, runs).into_iter().enumerate() {
                let count = values.len() as f64;
                let (mean, variance) = mean_and_variance(&values);
                let expected = if coin == 1 { 0.5 * mu2 } else { -0.5 * mu2 };
                let (off, spread) = (mean - expected, (mu2 / count).sqrt());
                assert!(
                    off.abs() < 5.0 * spread + 0.02 * mu2,
                    "{adjacency} {coin}: {mean}, {expected}"
                );
                let spread = mu2 * (2.0 / count).sqrt();
                let off = variance - mu2;
                assert!(
                    off.abs() < 5.0 * spread + 0.02 * mu2,
                    "{adjacency} {coin}: {variance}, {mu2}"
                );
            }
        }
    }
}

/// A likelihood ratio has mean one under the law below it, if the law above is what the attack
/// takes it for, and its inverse under the other: the attack knows the client's law, coins and
/// hidden tables included. Both means within five standard errors as they were found.
#[test]
fn likelihood_ratios_of_hidden_coins_are_those_of_the_client() {
    let with = |estimator| Specification {
        estimator,
        batch: Some(20.0),
        rounds: 12,
        ..run()
    };
    let difference_clip = Some(0.2);
    for run in [
        with(Estimator::Sgd),
        with(Estimator::Svrg {
            snapshot_probability: 0.3,
            difference_clip,
        }),
        with(Estimator::Saga { difference_clip }),
        with(Estimator::Saga {
            difference_clip: None,
        }),
        with(Estimator::Sag { memory: 0.4 }),
        with(Estimator::Sag { memory: 1.0 }),
        Specification {
            records_per_person: 2,
            ..with(Estimator::Sag { memory: 0.7 })
        },
        with(Estimator::Recursive(Recursion::momentum(0.2))),
        with(Estimator::Recursive(Recursion {
            period: Some(4),
            noise_ratio: 1.5,
            increments: IncrementClip::Smooth(0.02),
            ..Recursion::momentum(1.0)
        })),
        Specification {
            records_per_person: 3,
            ..with(Estimator::Sgd)
        },
    ] {
        for adjacency in [Adjacency::ZeroOut, Adjacency::ReplaceOne] {
            let [absent, present] = scores(&run, 0.03, adjacency, 100);
            let above: Vec<f64> = absent.iter().map(|score| score.exp()).collect();
            let below: Vec<f64> = present.iter().map(|score| (-score).exp()).collect();
            for ratios in [above, below] {
                let (mean, variance) = mean_and_variance(&ratios);
                let spread = (variance / ratios.len() as f64).sqrt();
                assert!(
                    (mean - 1.0).abs() < 5.0 * spread && spread < 0.1,
                    "{:?} {adjacency}: {mean} +- {spread}",
                    run.estimator
                );
            }
        }
    }
}

/// Any thread may play any run.
#[test]
fn a_run_depends_on_its_number_alone() {
    let game = Game::new(&run(), DIMENSION, RECORDS, 0.1, Adjacency::ZeroOut, 1).unwrap();
    let (mut one, mut other) = (RoundScratch::default(), RoundScratch::default());
    let first = game.play(3, &mut one).unwrap();
    game.play(4, &mut other).unwrap();
    assert_eq!(game.play(3, &mut other).unwrap(), first);
    assert_ne!(game.play(5, &mut other).unwrap(), first);
}

/// Amplification is priced by the share of the coordinates that travel: of a game it is never a
/// greater one than of the run, however few its canaries are, and next to the same.
#[test]
fn no_greater_share_travels_than_was_priced() {
    for (k, dimension) in [
        (2, 2000),
        (1, 999),
        (7, 1000),
        (10, 100),
        (99, 100),
        (1, 20_000),
    ] {
        for scope in [ClipScope::Record, ClipScope::Selected] {
            for batch in [None, Some(20.0)] {
                let run = Specification {
                    estimator: batch.map_or(Estimator::Gd, |_| Estimator::Sgd),
                    batch,
                    compressor: CompressorKind::RandK { k },
                    clip: Some(Clip { bound: 0.5, scope }),
                    ..run()
                };
                let adjacency = Adjacency::ReplaceOne;
                let game = Game::new(&run, dimension, RECORDS, 0.1, adjacency, 5).unwrap();
                let all = game.layout.dimension();
                let travelling = game.plan.compressor.values();
                assert_eq!(game.plan.compressor.dimension(), all);
                assert!(
                    travelling >= 1 && travelling * dimension <= k * all,
                    "{k}/{dimension}"
                );
                assert!(all - game.layout.used() <= dimension.div_ceil(k));
                // Rounding by less than one coordinate.
                assert!((travelling + 1) * dimension > k * all, "{k}/{dimension}");
            }
        }
    }
}

/// With a thousandth of the coordinates: a canary is seen in a thousandth of the rounds, and the
/// likelihood ratio has the variance that this gives.
#[test]
fn idle_coordinates_make_canaries_as_rare_as_in_the_run() {
    let run = Specification {
        compressor: CompressorKind::RandK { k: 1 },
        rounds: 2000,
        ..run()
    };
    let (dimension, sigma, runs) = (1000, 0.01, 40);
    let adjacency = Adjacency::ReplaceOne;
    let game = Game::new(&run, dimension, RECORDS, sigma, adjacency, 5).unwrap();
    let mut scratch = RoundScratch::default();
    let (mut sum, mut count) = (0.0, 0.0);
    for number in 0..runs {
        for (coin, score) in game.play(number, &mut scratch).unwrap() {
            sum += f64::from(score) * if coin { 1.0 } else { -1.0 };
            count += 1.0;
        }
    }
    // A visit is worth mu^2/2 on average, with variance mu^2; visits are nearly Poisson.
    let mu2 = (2.0 * 0.5 / RECORDS as f64 / sigma).powi(2);
    let visits = f64::from(run.rounds) / dimension as f64;
    let spread = (visits * (mu2 + mu2 * mu2 / 4.0) / count).sqrt();
    let mean = sum / count;
    assert!((mean - visits * mu2 / 2.0).abs() < 5.0 * spread, "{mean}");
}

#[test]
fn shares_that_no_game_has_room_for_are_refused() {
    let few = Specification {
        compressor: CompressorKind::RandK { k: 1 },
        ..run()
    };
    let game = Game::new(&few, LARGEST + 1, RECORDS, 0.1, Adjacency::ZeroOut, 1);
    let refused = game.err().unwrap();
    assert!(refused.to_string().contains("too many"), "{refused}");
}

/// The adversary sends the models themselves.
#[test]
fn runs_with_a_compressed_way_down_are_played() {
    let compressed = Specification {
        downlink: Some(DownlinkKind {
            coordinates: Some(90),
            rounding: Rounding::Exact,
        }),
        ..run()
    };
    let play = |run: &Specification| {
        let game = Game::new(run, DIMENSION, RECORDS, 0.1, Adjacency::ZeroOut, 1).unwrap();
        game.play(0, &mut RoundScratch::default()).unwrap()
    };
    assert_eq!(play(&compressed), play(&run()));
}
