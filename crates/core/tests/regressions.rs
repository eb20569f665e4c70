//! Attacks that once succeeded, kept so that they fail for good.

use std::sync::Arc;

use soteriafl_core::compress::{Compressor, CompressorKind};
use soteriafl_core::data::{Dataset, DenseRows, Features, LARGEST_VALUE, SparseRows};
use soteriafl_core::estimator::Clipping;
use soteriafl_core::objective::{Activation, Coordinates, Logistic, Network, Objective};
use soteriafl_core::privacy::Noise;
use soteriafl_core::protocol::{Client, ClientPlan, Estimator, RoundScratch};
use soteriafl_core::random::{PublicSeed, SecretKey};
use soteriafl_core::sampling::{Coins, Sampling};

fn plan(
    objective: Arc<dyn Objective>,
    kind: CompressorKind,
    estimator: Estimator,
    clip: f64,
    noise: Noise,
) -> Arc<ClientPlan> {
    let dimension = objective.dimension();
    Arc::new(ClientPlan {
        objective,
        compressor: Compressor::new(kind, dimension, 1.0).unwrap(),
        estimator,
        clipping: Clipping::Record(clip),
        estimate_clip: None,
        regularizer: None,
        shift_step: None,
        noise,
        shared_coordinates: false,
        public_seed: PublicSeed(1),
    })
}

fn norm(values: &[f32]) -> f64 {
    let squares = values.iter().map(|&value| f64::from(value).powi(2));
    squares.sum::<f64>().sqrt()
}

/// A server chose a snapshot and a model between which activations and errors differ by 53 binary
/// orders; the norm of the difference came out as zero and the difference was sent unclipped.
#[test]
fn a_difference_of_extremes_is_clipped() {
    let (clip, difference, batch, sigma) = (1.0, 0.25, 0.01, 1e-3);
    for noise in [Noise::Float, Noise::Secure] {
        let network = Network::new(1, &[1], 2, Activation::Relu).unwrap();
        let rows = Features::Dense(DenseRows::new(1, vec![1.0]).unwrap());
        let data = Arc::new(Dataset::new(rows, vec![0], 2).unwrap());
        let estimator = Estimator::Svrg {
            snapshot_probability: 1e-12,
            difference_clip: Some(difference),
        };
        let plan = plan(
            Arc::new(network),
            CompressorKind::Identity,
            estimator,
            clip,
            noise,
        );
        let sampling = Sampling::Poisson {
            batch,
            coins: Coins::Exact,
        };
        let key = SecretKey::simulated(3, 0);
        let mut client = Client::new(0, plan, data, sampling, sigma, key).unwrap();
        let snapshot = Arc::new(vec![0.0, 2f32.powi(100), 0.0, 0.0, 0.0, 40.0]);
        let current = Arc::new(vec![0.0, -1.0, 0.0, 0.0, 10.0, 0.0]);
        let mut scratch = RoundScratch::default();
        let mut largest = 0.0f64;
        for round in 0..1000 {
            let model = if round == 0 { &snapshot } else { &current };
            let message = client.message(round, model, &mut scratch).unwrap();
            let update = message.update.expect("all take part");
            if round > 0 {
                largest = largest.max(norm(update.values()));
            }
        }
        // Six coordinates of noise add less than ten sigma.
        let bound = difference / batch + clip + 10.0 * sigma;
        assert!(largest <= bound, "{noise:?}: {largest} > {bound}");
    }
}

/// A record that differs from the centre in one coordinate only must show nothing elsewhere,
/// however far away the centre is: value and centre are added before they are scaled.
#[test]
fn a_far_centre_does_not_leak_rounding() {
    let dimension = 1000usize;
    for (center, k) in [
        (1e4f32, 50usize),
        (1e6, 5),
        (1e6, 30),
        (1e7, 30),
        (1e7, 50),
        (1e7, 400),
    ] {
        let mut values = vec![center; dimension];
        values[0] += 1.0;
        let rows = SparseRows::new(
            dimension,
            vec![0, dimension],
            (0..dimension as u32).collect(),
            values,
        );
        let data = Dataset::new(Features::Sparse(rows.unwrap()), vec![0], 2).unwrap();
        let data = data.with_offset(vec![-center; dimension]).unwrap();
        let logistic = Arc::new(Logistic::new(dimension));
        let plan = plan(
            logistic,
            CompressorKind::RandK { k },
            Estimator::Sgd,
            0.5,
            Noise::Secure,
        );
        let (sigma, key) = (1e-9, SecretKey::simulated(3, 0));
        let mut client = Client::new(0, plan, Arc::new(data), Sampling::Full, sigma, key).unwrap();
        let mut scratch = RoundScratch::default();
        for round in 0..200u32 {
            let mut model = vec![0.0f32; dimension];
            model[0] = 0.01 * (round as f32 - 100.0);
            let message = client
                .message(round, &Arc::new(model), &mut scratch)
                .unwrap();
            let update = message.update.expect("all take part");
            if matches!(update.coordinates(), Coordinates::Selected(chosen) if chosen[0] == 0) {
                continue;
            }
            let shown = norm(update.values()) * k as f64 / dimension as f64;
            assert!(
                shown < 2.0 * sigma * (k as f64).sqrt() + 10.0 * sigma,
                "centre {center}, round {round}: {shown}"
            );
        }
    }
}

/// A second form of the first attack: two hidden layers, an activation of 1e18 against one of 10.
#[test]
fn a_difference_of_deep_extremes_is_clipped() {
    let (clip, difference, batch, sigma) = (1.0, 0.25, 0.01, 1e-3);
    let network = Network::new(1, &[1, 1], 2, Activation::Relu).unwrap();
    let rows = Features::Dense(DenseRows::new(1, vec![1.0]).unwrap());
    let data = Arc::new(Dataset::new(rows, vec![0], 2).unwrap());
    let estimator = Estimator::Svrg {
        snapshot_probability: 1e-12,
        difference_clip: Some(difference),
    };
    let plan = plan(
        Arc::new(network),
        CompressorKind::Identity,
        estimator,
        clip,
        Noise::Float,
    );
    let sampling = Sampling::Poisson {
        batch,
        coins: Coins::Exact,
    };
    let mut client =
        Client::new(0, plan, data, sampling, sigma, SecretKey::simulated(3, 0)).unwrap();
    let snapshot = Arc::new(vec![0.0, 10.0, 0.0, 1.0, 0.0, -1000.0, 0.0, 1002.0]);
    let current = Arc::new(vec![0.0, 1e18, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0]);
    let mut scratch = RoundScratch::default();
    for round in 0..1000 {
        let model = if round == 0 { &snapshot } else { &current };
        let message = client.message(round, model, &mut scratch).unwrap();
        let update = message.update.expect("all take part");
        let bound = difference / batch + clip + 10.0 * sigma;
        assert!(
            round == 0 || norm(update.values()) <= bound,
            "{}",
            norm(update.values())
        );
    }
}

/// Products with numbers near the end of the range fell among the smallest numbers, where
/// rounding is not relative, and exceeded the clip. Such features are refused.
#[test]
fn features_at_the_end_of_the_range_are_refused() {
    assert!(DenseRows::new(2, vec![1.0, 3.4e38]).is_err());
    assert!(DenseRows::new(2, vec![1.0, -LARGEST_VALUE]).is_ok());
    assert!(SparseRows::new(2, vec![0, 1], vec![1], vec![LARGEST_VALUE.next_up()]).is_err());
}
