//! Every compressor, by what it promises.

use proptest::prelude::*;

use super::*;
use crate::objective::Coordinates;
use crate::random::{Purpose, SecretKey, unit};

/// Every compressor, and the coarsest QSGD.
fn kinds(dimension: usize) -> impl Iterator<Item = CompressorKind> {
    let names = CompressorName::ALL.iter();
    let usual = names.map(move |&name| CompressorKind::new(name, dimension.div_ceil(3)));
    usual.chain([CompressorKind::Qsgd { levels: 1 }])
}

#[test]
fn words_kinds_and_numbers_on_the_wire_are_different() {
    let mut numbers = std::collections::BTreeSet::new();
    for &name in CompressorName::ALL {
        assert_eq!(name.to_string().parse(), Ok(name));
        let kind = CompressorKind::new(name, 3);
        assert_eq!(kind.name(), name);
        // 0 is absence, and from 16 on are averages.
        let number = kind.ask(|scheme| scheme.wire_kind());
        assert!((1..16).contains(&number) && numbers.insert(number));
    }
}

fn compress_once(compressor: &Compressor, x: &[f32], round: u32, update: &mut Update) {
    let key = SecretKey::simulated(11, 0);
    let mut selection = Selection::default();
    let seed = IndexSeed::draw(&mut key.stream(round, Purpose::Noise));
    compressor.select(seed, &mut selection);
    let chosen: Vec<f32> = match selection.coordinates() {
        Coordinates::All => x.to_vec(),
        Coordinates::Selected(indices) => indices.iter().map(|&i| x[i as usize]).collect(),
    };
    let mut body = Vec::new();
    let mut coins = key.stream(round, Purpose::Rounding);
    let mut sent = Update::default();
    compressor.encode(
        &Released::derived(chosen),
        &mut selection,
        &mut coins,
        &mut body,
        &mut sent,
    );
    assert_eq!(body.len(), compressor.encoded_len());
    compressor.decode(&body, update).unwrap();
    assert_eq!(update.coordinates(), sent.coordinates());
    assert_eq!(update.values(), sent.values());
}

/// Unbiased in every coordinate, and within omega, for every compressor on three vectors:
/// 4,000 draws each. A mean may be off by 6 standard errors of its own bound
/// `omega |x|^2 / draws`, a squared error by 10% of its bound: the fixed seed passes, and a
/// fresh one would fail with probability below 1e-6.
#[test]
fn unbiased_and_within_omega() {
    let dimension = 24;
    let mut rng = SecretKey::simulated(5, 0).stream(0, Purpose::Noise);
    let random: Vec<f32> = (0..dimension)
        .map(|_| (unit(&mut rng) - 0.5) as f32)
        .collect();
    let mut spike = vec![0.0; dimension];
    spike[7] = -3.0;
    let spread: Vec<f32> = (0..dimension).map(|i| (i as f32 - 11.3).powi(3)).collect();
    for kind in kinds(dimension) {
        for participation in [1.0, 0.4] {
            let compressor = Compressor::new(kind, dimension, participation).unwrap();
            if !compressor.is_unbiased() {
                continue;
            }
            for x in [&random, &spike, &spread] {
                check_unbiased(&compressor, x);
            }
        }
    }
}

fn check_unbiased(compressor: &Compressor, x: &[f32]) {
    let draws = 4_000u32;
    let mut mean = vec![0f64; x.len()];
    let mut error = 0f64;
    let mut update = Update::default();
    let mut coin = SecretKey::simulated(6, 0).stream(0, Purpose::Participation);
    for draw in 0..draws {
        let mut dense = vec![0f32; x.len()];
        if unit(&mut coin) < compressor.participation() {
            compress_once(compressor, x, draw, &mut update);
            update.add_to(1.0, &mut dense);
        }
        for (i, value) in dense.iter().enumerate() {
            mean[i] += f64::from(*value) / f64::from(draws);
            error += f64::from(value - x[i]).powi(2) / f64::from(draws);
        }
    }
    let norm: f64 = x.iter().map(|&v| f64::from(v).powi(2)).sum();
    let bound = compressor.omega() * norm;
    assert!(
        error <= 1.1 * bound + 1e-9 * norm,
        "{compressor:?}: {error} > {bound}"
    );
    let tolerance = 6.0 * (bound / f64::from(draws)).sqrt() + 1e-6 * norm.sqrt();
    for (mean, &x) in mean.iter().zip(x) {
        assert!(
            (mean - f64::from(x)).abs() < tolerance,
            "{compressor:?}: {mean} for {x}"
        );
    }
}

#[test]
fn identity_is_exact_and_omega_is_as_proved() {
    let mut update = Update::default();
    let x = [1.5, -0.25, f32::MIN_POSITIVE, 0.0];
    let identity = Compressor::new(CompressorKind::Identity, 4, 1.0).unwrap();
    compress_once(&identity, &x, 0, &mut update);
    assert_eq!(update.values(), x);
    let omega = |kind, p| Compressor::new(kind, 100, p).unwrap().omega();
    assert_eq!(omega(CompressorKind::RandK { k: 5 }, 1.0), 19.0);
    assert_eq!(omega(CompressorKind::RandK { k: 5 }, 0.5), 39.0);
    assert_eq!(omega(CompressorKind::Qsgd { levels: 1 }, 1.0), 10.0);
    assert_eq!(omega(CompressorKind::Qsgd { levels: 20 }, 1.0), 0.25);
    assert_eq!(omega(CompressorKind::Natural, 1.0), 0.125);
}

/// A grid: on levels, unbiased, never further away than a step, cut off at the ends of its
/// range. 4,000 draws of 24 coordinates; a mean may be off by 6 of its standard errors (at most
/// half a step each), which a fresh seed would miss with probability below 1e-7.
#[test]
fn a_grid_is_unbiased_with_an_absolute_error() {
    let (step, bits) = (0.25, 4);
    let compressor = Compressor::new(CompressorKind::Grid { step, bits }, 24, 1.0).unwrap();
    let x: Vec<f32> = (0..24).map(|i| 0.13 * i as f32 - 1.7).collect();
    let (mut mean, mut error) = (vec![0f64; 24], 0.0);
    let (draws, mut update) = (4_000u32, Update::default());
    for draw in 0..draws {
        compress_once(&compressor, &x, draw, &mut update);
        for (i, &value) in update.values().iter().enumerate() {
            let (value, x) = (f64::from(value), f64::from(x[i]));
            assert_eq!(value, (value / step).round() * step);
            assert!((value - x).abs() <= step, "{value} for {x}");
            mean[i] += value / f64::from(draws);
            error += (value - x).powi(2) / f64::from(draws);
        }
    }
    assert!(error <= 24.0 * step * step / 4.0, "{error}");
    for (mean, &x) in mean.iter().zip(&x) {
        let tolerance = 6.0 * step / 2.0 / f64::from(draws).sqrt();
        assert!((mean - f64::from(x)).abs() < tolerance, "{mean} for {x}");
    }
    let far = [-2.1f32, -2.0, 1.75, 1.8];
    let compressor = Compressor::new(CompressorKind::Grid { step, bits }, 4, 1.0).unwrap();
    compress_once(&compressor, &far, 0, &mut update);
    assert_eq!(update.values(), [-2.0, -2.0, 1.75, 1.75]);
    assert_eq!(compressor.beyond_range(&far), 2);
}

#[test]
fn top_k_sends_the_largest_as_they_are() {
    let compressor = Compressor::new(CompressorKind::TopK { k: 3 }, 7, 1.0).unwrap();
    let mut update = Update::default();
    compress_once(
        &compressor,
        &[1.0, -4.0, 0.5, 4.0, -1.0, 9.0, 4.0],
        0,
        &mut update,
    );
    assert!(matches!(
        update.coordinates(),
        Coordinates::Selected([1, 3, 5])
    ));
    assert_eq!(update.values(), [-4.0, 4.0, 9.0]);
    assert_eq!(compressor.contraction(), 3.0 / 7.0);
    // Places that do not ascend, or are none, are refused.
    let mut body = Vec::new();
    top_k::put_places(&[1, 1, 5], 7, &mut body);
    body.resize(compressor.encoded_len(), 0);
    let refused = compressor.decode(&body, &mut update);
    let place = DecodeError::Place {
        position: 1,
        place: 1,
    };
    assert_eq!(refused, Err(place));
}

#[test]
fn refuses_impossible_parameters() {
    let build = |kind, p| Compressor::new(kind, 10, p).map(|_| ());
    assert_eq!(
        build(CompressorKind::RandK { k: 11 }, 1.0),
        Err(CompressError::Count {
            name: "random-k",
            k: 11,
            dimension: 10
        })
    );
    assert!(build(CompressorKind::RandK { k: 0 }, 1.0).is_err());
    assert!(build(CompressorKind::TopK { k: 0 }, 1.0).is_err());
    for (step, bits) in [
        (0.0, 8),
        (f64::NAN, 8),
        (f64::INFINITY, 8),
        (0.1, 1),
        (0.1, 25),
    ] {
        assert!(build(CompressorKind::Grid { step, bits }, 1.0).is_err());
    }
    assert!(build(CompressorKind::Qsgd { levels: 0 }, 1.0).is_err());
    assert!(build(CompressorKind::Identity, 0.0).is_err());
    assert!(build(CompressorKind::Identity, f64::NAN).is_err());
    assert!(build(CompressorKind::Identity, 1.1).is_err());
}

#[test]
fn hostile_residuals_are_sent_finite() {
    let x = [
        f32::NAN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        1.0,
        f32::MAX,
        -f32::MAX,
    ];
    for kind in kinds(x.len()) {
        let compressor = Compressor::new(kind, x.len(), 0.5).unwrap();
        let mut update = Update::default();
        compress_once(&compressor, &x, 0, &mut update);
        assert!(
            update.values().iter().all(|value| value.is_finite()),
            "{kind:?}"
        );
    }
}

proptest! {
    #[test]
    fn decoding_arbitrary_bytes_never_panics(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        dimension in 1usize..40,
    ) {
        for kind in kinds(dimension) {
            let compressor = Compressor::new(kind, dimension, 1.0).unwrap();
            let mut update = Update::default();
            let _ = compressor.decode(&bytes, &mut update);
            let mut fitting = bytes.clone();
            fitting.resize(compressor.encoded_len(), 0xff);
            if compressor.decode(&fitting, &mut update).is_ok() {
                prop_assert!(update.values().iter().all(|value| value.is_finite()));
            }
        }
    }
}
