use super::*;
use crate::error::EventError;
use crate::normal::upper_tail;

fn index_of(order: f64) -> usize {
    orders().iter().position(|&o| o == order).unwrap()
}

fn curve_of(shifts: &[f64], probabilities: &[f64], adjacency: Adjacency) -> RdpCurve {
    rdp_curve(
        &ShiftMixture::new(shifts, probabilities).unwrap(),
        adjacency,
    )
}

fn subsampled(q: f64, sigma: f64, adjacency: Adjacency) -> RdpCurve {
    curve_of(&[0.0, 1.0 / sigma], &[1.0 - q, q], adjacency)
}

/// The record present in `P` and absent in `Q`.
fn remove(mixture: &ShiftMixture) -> MixturePair {
    MixturePair::directions(mixture, Adjacency::ZeroOut).swap_remove(0)
}

/// Mironov, Talwar, Zhang (2019), section 3.3: the moment of the subsampled Gaussian at real orders
/// as two alternating series. Slow and cancelling at small orders, hence only a cross-check.
fn fractional_series(order: f64, q: f64, sigma: f64) -> f64 {
    let split = sigma * sigma * ((1.0 - q) / q).ln() + 0.5;
    let mut coefficient = 1.0;
    let mut total = 0.0;
    for index in 0..20_000 {
        let i = f64::from(index);
        let j = order - i;
        let quadratic = |x: f64| (x * x - x) / (2.0 * sigma * sigma);
        // Both exponents are large with opposite signs: the tail enters through its logarithm.
        let lower =
            (i * q.ln() + j * (1.0 - q).ln() + quadratic(i) + log_upper_tail((i - split) / sigma))
                .exp();
        let upper =
            (j * q.ln() + i * (1.0 - q).ln() + quadratic(j) + log_upper_tail((split - j) / sigma))
                .exp();
        total += coefficient * (lower + upper);
        if coefficient.abs() * (lower + upper) < 1e-17 && i > order {
            break;
        }
        coefficient *= j / (i + 1.0);
    }
    total.ln()
}

fn log_upper_tail(y: f64) -> f64 {
    if y < 30.0 {
        return upper_tail(y).ln();
    }
    // Asymptotic series; at 30 the first omitted term is below 1e-9 relative.
    let s = 1.0 / (y * y);
    -0.5 * y * y - (y * (2.0 * std::f64::consts::PI).sqrt()).ln()
        + (1.0 - s * (1.0 - 3.0 * s * (1.0 - 5.0 * s))).ln()
}

#[test]
fn full_batch_is_the_closed_form() {
    for (adjacency, distance) in [(Adjacency::ZeroOut, 0.05), (Adjacency::ReplaceOne, 0.1)] {
        let curve = curve_of(&[0.05], &[1.0], adjacency);
        for (order, value) in orders().iter().zip(curve.values()) {
            let exact: f64 = order * distance * distance / 2.0;
            assert!((value / exact - 1.0).abs() < 2e-11 + 2e-13 / exact / (order - 1.0));
        }
    }
}

#[test]
fn quadrature_agrees_with_the_fractional_series() {
    for (q, sigma) in [(0.01, 1.0), (0.1, 2.0), (0.5, 5.0), (0.2, 0.7), (1e-4, 0.5)] {
        let mixture = ShiftMixture::new(&[0.0, 1.0 / sigma], &[1.0 - q, q]).unwrap();
        let pair = remove(&mixture);
        for order in [1.5, 2.5, 3.7, 6.1, 10.9] {
            let ours = quadrature::log_moment(&pair, order).unwrap();
            let series = fractional_series(order, q, sigma);
            let gap = (ours - series).abs();
            assert!(
                gap < 1e-9 * series.abs() + 2e-12,
                "{q} {sigma} {order}: {ours} {series}"
            );
        }
    }
}

#[test]
fn quadrature_agrees_with_the_binomial_sum() {
    let laws: [(&[f64], &[f64]); 4] = [
        (&[0.0, 1.0], &[0.99, 0.01]),
        (&[0.0, 1e-3], &[0.95, 0.05]),
        (&[0.025, 1.025], &[0.95, 0.05]),
        (&[0.0156, 0.516], &[0.9375, 0.0625]),
    ];
    for (shifts, probabilities) in laws {
        let mixture = ShiftMixture::new(shifts, probabilities).unwrap();
        let pair = remove(&mixture);
        for order in [2u32, 3, 5, 10, 32, 128] {
            let [low, high] = mixture.parts() else {
                panic!("two components")
            };
            let exact = integer_moment(order, *low, *high);
            let ours = quadrature::log_moment(&pair, f64::from(order)).unwrap();
            assert!(
                (ours / exact - 1.0).abs() < 1e-11,
                "{shifts:?} {order}: {ours} {exact}"
            );
        }
    }
}

/// A plain fine Riemann sum over `log P` and `log Q` directly, with no identity used.
fn plain_moment(pair: &MixturePair, order: f64) -> f64 {
    let step = 0.002;
    let log_sum = |mixture: &ShiftMixture, y: f64, sign: f64| {
        let terms = mixture.parts().iter();
        terms
            .map(|&(s, p)| p * (-0.5 * (y - sign * s).powi(2)).exp())
            .sum::<f64>()
            .ln()
    };
    let total: f64 = (-15_000..15_000)
        .map(|i| {
            let y = f64::from(i) * step;
            let p = log_sum(&pair.up, y, 1.0);
            let q = log_sum(&pair.down, y, -1.0);
            (order * p + (1.0 - order) * q).exp()
        })
        .sum();
    (total * step / (2.0 * std::f64::consts::PI).sqrt()).ln()
}

#[test]
fn all_directions_agree_with_a_plain_sum() {
    let mixture = ShiftMixture::new(&[0.1, 0.4, 0.9], &[0.6, 0.3, 0.1]).unwrap();
    let mut pairs = MixturePair::directions(&mixture, Adjacency::ZeroOut);
    pairs.extend(MixturePair::directions(&mixture, Adjacency::ReplaceOne));
    assert_eq!(pairs.len(), 3);
    for pair in pairs {
        for order in [1.3, 2.0, 4.5, 9.0] {
            let (ours, plain) = (log_moment(&pair, order), plain_moment(&pair, order));
            assert!(
                (ours - plain).abs() < 1e-11 * (1.0 + plain),
                "{order}: {ours} {plain}"
            );
        }
    }
}

#[test]
fn remove_dominates_add_for_the_subsampled_gaussian() {
    for (q, r) in [(0.01, 1.0), (0.3, 0.5), (0.9, 2.0)] {
        let mixture = ShiftMixture::new(&[0.0, r], &[1.0 - q, q]).unwrap();
        let directions = MixturePair::directions(&mixture, Adjacency::ZeroOut);
        let [remove, add] = [0, 1].map(|way: usize| direction_curve(&directions[way]));
        for (at, &order) in orders().iter().enumerate() {
            // Beyond this the add direction is only the Gaussian fallback.
            if order * r * r < 300.0 {
                let (larger, smaller) = (remove.values()[at], add.values()[at]);
                assert!(larger >= smaller * (1.0 - 1e-10) - 1e-15, "{q} {r} {order}");
            }
        }
    }
}

#[test]
fn epsilon_matches_published_accountants() {
    // q, sigma, rounds, delta, epsilon of dp_accounting 0.6.0's RDP accountant. Its orders are
    // others than ours, and fewer above 64: close, and never better by more than rounding.
    let golden = [
        (0.01, 1.0, 1000, 1e-5, 2.101366525),
        (0.1, 2.0, 500, 1e-5, 6.034562203),
        (0.5, 5.0, 200, 1e-5, 7.23178224),
        (1e-4, 0.5, 100_000, 1e-6, 3.975689245),
        (1e-6, 0.3, 1_000_000, 1e-8, 11.93124598),
        (0.01, 100.0, 1_000_000, 1e-6, 0.4299730387),
        (0.2, 0.7, 1, 1e-3, 3.264939464),
        (0.05, 1000.0, 1_000_000, 1e-6, 0.2187559876),
        (0.0625, 4.0, 3000, 1e-3, 3.004057461),
        (1.0, 1.0, 1, 1e-5, 4.728507067),
        (1.0, 20.0, 100, 1e-5, 2.165715659),
        (1.0, 50.0, 10_000, 1e-8, 13.3863908),
    ];
    for (q, sigma, rounds, delta, expected) in golden {
        let epsilon = subsampled(q, sigma, Adjacency::ZeroOut).epsilon(rounds, delta);
        assert!(
            epsilon <= expected * (1.0 + 1e-8),
            "{q} {sigma}: {epsilon} {expected}"
        );
        assert!(
            epsilon >= expected * 0.94,
            "{q} {sigma}: {epsilon} {expected}"
        );
    }
    // Fine Riemann sums at exactly our orders (independent script).
    for (q, sigma, rounds, expected) in [
        (0.01, 1.0, 1000, 2.1013652718329237),
        (0.1, 2.0, 500, 6.0343224420536234),
    ] {
        let epsilon = subsampled(q, sigma, Adjacency::ZeroOut).epsilon(rounds, 1e-5);
        assert!(
            (epsilon / expected - 1.0).abs() < 1e-9,
            "{epsilon} {expected}"
        );
    }
}

#[test]
fn never_below_the_exact_epsilon() {
    // low shift, high shift, probability of the high one, sigma, rounds, delta, exact epsilons
    // under zero-out and replace-one (converged numerical composition).
    let golden = [
        (
            0.001,
            0.041,
            0.05,
            0.04,
            1000,
            1e-5,
            15.36307551,
            31.0244675,
        ),
        (
            0.001,
            0.101,
            0.01,
            0.1,
            5000,
            1e-5,
            7.424117414,
            15.75184908,
        ),
        (
            0.0009765625,
            0.0322265625,
            0.0625,
            0.0625,
            3000,
            1e-3,
            11.07804029,
            28.04166805,
        ),
        (
            0.0005,
            0.0105,
            0.01,
            0.15,
            100_000,
            1e-6,
            6.400077831,
            14.66458084,
        ),
        (0.0, 1.0, 0.01, 1.0, 1000, 1e-5, 1.828236667, 2.843440261),
        (0.0, 1.0, 0.02, 10.0, 100_000, 1e-6, 0.0, 6.398614397),
        (0.0, 1.0, 0.5, 5.0, 200, 1e-5, 6.701169256, 15.35780894),
    ];
    for (low, high, q, sigma, rounds, delta, zero_out, replace) in golden {
        let cases = [
            (Adjacency::ZeroOut, zero_out),
            (Adjacency::ReplaceOne, replace),
        ];
        for (adjacency, exact) in cases {
            let shifts = [low / sigma, high / sigma];
            let curve = curve_of(&shifts, &[1.0 - q, q], adjacency);
            let epsilon = curve.epsilon(rounds, delta);
            assert!(
                epsilon >= exact,
                "{adjacency:?} {low} {high}: {epsilon} {exact}"
            );
            assert!(
                exact == 0.0 || epsilon <= 1.2 * exact,
                "{adjacency:?}: {epsilon} {exact}"
            );
        }
    }
}

#[test]
fn curves_compose_and_convert_back() {
    let first = subsampled(0.01, 1.0, Adjacency::ZeroOut);
    let second = curve_of(&[0.05], &[1.0], Adjacency::ZeroOut);
    let sum = first.times(10).plus(&second.times(3));
    let at = index_of(7.0);
    let expected = 10.0 * first.values()[at] + 3.0 * second.values()[at];
    assert!((sum.values()[at] - expected).abs() < 1e-15);
    assert_eq!(RdpCurve::zero().plus(&first), first);
    for (rounds, delta) in [(1, 1e-5), (100, 1e-3)] {
        let epsilon = sum.epsilon(rounds, delta);
        assert!(epsilon > 0.0);
        assert!((sum.delta(rounds, epsilon) / delta - 1.0).abs() < 1e-9);
    }
    assert_eq!(first.epsilon(10, 0.0), f64::INFINITY);
    let integers = first.at_integer_orders();
    assert_eq!(integers.values()[at], first.values()[at]);
    assert_eq!(integers.values()[index_of(7.1)], f64::INFINITY);
    assert!(integers.epsilon(1000, 1e-5) > first.epsilon(1000, 1e-5));
    assert_eq!(first.tighter(&RdpCurve::zero()), RdpCurve::zero());
}

#[test]
fn monotone_where_it_must_be() {
    let base = subsampled(0.05, 2.0, Adjacency::ZeroOut);
    assert!(base.epsilon(200, 1e-5) > base.epsilon(100, 1e-5));
    assert!(base.epsilon(100, 1e-6) > base.epsilon(100, 1e-5));
    let noisier = subsampled(0.05, 2.1, Adjacency::ZeroOut);
    let rarer = subsampled(0.04, 2.0, Adjacency::ZeroOut);
    let replace = subsampled(0.05, 2.0, Adjacency::ReplaceOne);
    for at in 0..orders().len() {
        assert!(noisier.values()[at] < base.values()[at]);
        assert!(rarer.values()[at] < base.values()[at]);
        assert!(replace.values()[at] > base.values()[at]);
    }
}

#[test]
fn large_shifts_fall_back_to_a_finite_bound() {
    let curve = curve_of(&[1.0, 80.0], &[0.99, 0.01], Adjacency::ReplaceOne);
    for (order, value) in orders().iter().zip(curve.values()) {
        assert!(value.is_finite() && *value <= order * 12_800.0 * (1.0 + 1e-10));
    }
}

#[test]
fn refuses_what_is_not_a_distribution() {
    let curve = |shifts: &[f64], probabilities: &[f64]| {
        ShiftMixture::new(shifts, probabilities).unwrap_err()
    };
    assert!(matches!(
        curve(&[0.1], &[0.5, 0.5]),
        EventError::Length { .. }
    ));
    assert!(matches!(
        curve(&[-0.1], &[1.0]),
        EventError::OutOfRange { .. }
    ));
    assert!(matches!(
        curve(&[f64::NAN], &[1.0]),
        EventError::OutOfRange { .. }
    ));
    assert!(matches!(
        curve(&[0.1], &[0.9]),
        EventError::ProbabilitySum { .. }
    ));
}
