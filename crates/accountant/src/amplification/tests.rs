use proptest::prelude::*;

use super::*;
use crate::normal::upper_tail;
use crate::rdp::log_moment;

fn random_k(fraction: f64, vectors: u32) -> RandomK {
    RandomK {
        fraction,
        vectors_zero_out: vectors,
        vectors_replace_one: vectors,
    }
}

fn mixture(shifts: &[f64], probabilities: &[f64]) -> ShiftMixture {
    ShiftMixture::new(shifts, probabilities).unwrap()
}

/// The losses of a masked round that is not refused.
fn laws_of(
    shifts: &[f64],
    probabilities: &[f64],
    adjacency: Adjacency,
    mask: &RandomK,
    step: f64,
) -> Vec<LossDistribution> {
    masked_losses(&mixture(shifts, probabilities), adjacency, mask, step).unwrap()
}

/// `H_{e^epsilon}` of a law, straight from the definition.
fn curve_of(law: &LossDistribution, epsilon: f64) -> f64 {
    let losses = (law.first..).map(|index| index as f64 * law.step);
    let gain = |(loss, mass): (f64, &f64)| mass * (-(epsilon - loss).exp_m1()).max(0.0);
    law.infinity + losses.zip(&law.masses).map(gain).sum::<f64>()
}

/// Sum of two independent losses by the schoolbook convolution; tails below 1e-16 go to infinity
/// (above) or up to the lowest kept loss (below).
fn convolve(a: &LossDistribution, b: &LossDistribution) -> LossDistribution {
    let mut masses = vec![0.0; a.masses.len() + b.masses.len() - 1];
    for (i, x) in a.masses.iter().enumerate().filter(|(_, x)| **x > 0.0) {
        for (total, y) in masses[i..].iter_mut().zip(&b.masses) {
            *total += x * y;
        }
    }
    let mut infinity = a.infinity + b.infinity - a.infinity * b.infinity;
    let mut dropped = 0.0;
    while masses.last().is_some_and(|mass| dropped + mass < 1e-16) {
        dropped += masses.pop().unwrap();
    }
    infinity += dropped;
    let mut lifted = 0.0;
    let mut cut = 0;
    while lifted + masses[cut] < 1e-16 {
        lifted += masses[cut];
        cut += 1;
    }
    masses[cut] += lifted;
    masses.drain(..cut);
    LossDistribution::new(a.step, a.first + b.first + cut as i64, masses, infinity)
}

fn power(law: &LossDistribution, mut rounds: u64) -> LossDistribution {
    let mut base = law.clone();
    let mut result: Option<LossDistribution> = None;
    while rounds > 0 {
        if rounds & 1 == 1 {
            result = Some(result.map_or_else(|| base.clone(), |r| convolve(&r, &base)));
        }
        rounds >>= 1;
        if rounds > 0 {
            base = convolve(&base, &base);
        }
    }
    result.unwrap()
}

fn epsilon_of(law: &LossDistribution, delta: f64) -> f64 {
    let (mut low, mut high) = (0.0, 50.0);
    for _ in 0..60 {
        let middle = 0.5 * (low + high);
        if curve_of(law, middle) > delta {
            low = middle;
        } else {
            high = middle;
        }
    }
    high
}

/// The release of which the first coordinate alone matters: with probability `kappa` the unmasked
/// pair, otherwise nothing. A lower reference for every bound on the masked release.
fn one_coordinate(law: &LossDistribution, fraction: f64) -> LossDistribution {
    let mut masked = law.clone();
    masked.masses.iter_mut().for_each(|mass| *mass *= fraction);
    masked.masses[(-law.first) as usize] += 1.0 - fraction;
    masked.infinity *= fraction;
    masked
}

#[test]
fn composed_epsilons_of_the_reference_settings() {
    // q, sigma, rounds, kappa, delta, step; then Renyi rule, envelope on a coarse rho grid, and
    // one coordinate, as computed by an independent script to three digits.
    let rows = [
        (1.0, 20.0, 100, 0.05, 1e-5, 1e-3, 0.531, 0.581, 0.459),
        (1.0, 50.0, 2000, 0.05, 1e-5, 5e-4, 0.812, 1.019, 0.737),
        (0.0625, 4.0, 3000, 0.05, 1e-3, 4e-4, 0.534, 0.635, 0.451),
        (0.01, 1.0, 1000, 0.1, 1e-5, 4e-4, 1.226, 0.792, 0.720),
    ];
    for (q, sigma, rounds, kappa, delta, step, renyi, envelope, lower) in rows {
        let (shifts, probabilities) = ([0.0, 1.0 / sigma], [1.0 - q, q]);
        let mask = random_k(kappa, 1);
        let laws = |k: &RandomK| laws_of(&shifts, &probabilities, Adjacency::ZeroOut, k, step);
        let masked = laws(&mask)
            .iter()
            .map(|law| epsilon_of(&power(law, rounds), delta))
            .fold(0.0, f64::max);
        let one = laws(&random_k(1.0, 1))
            .iter()
            .map(|law| epsilon_of(&power(&one_coordinate(law, kappa), rounds), delta))
            .fold(0.0, f64::max);
        let rule = masked_rdp(&mixture(&shifts, &probabilities), Adjacency::ZeroOut, &mask);
        let rule = rule.unwrap().unwrap().epsilon(rounds, delta);
        println!("q {q}: rule {rule:.4}, envelope {masked:.4}, one coordinate {one:.4}");
        assert!(
            rule <= renyi * 1.002 && rule > renyi * 0.97,
            "rule {rule} {renyi}"
        );
        assert!(
            masked <= envelope * 1.002 && masked > envelope * 0.9,
            "{masked} {envelope}"
        );
        assert!(
            (one / lower - 1.0).abs() < 5e-3,
            "one coordinate {one} {lower}"
        );
        assert!(rule > one && masked > one);
    }
}

/// All `size`-subsets of `0..dimension`.
fn subsets(dimension: usize, size: usize) -> Vec<Vec<usize>> {
    let bits = |mask: u32| {
        (0..dimension)
            .filter(|&j| mask >> j & 1 == 1)
            .collect::<Vec<_>>()
    };
    (0..1u32 << dimension)
        .map(bits)
        .filter(|set| set.len() == size)
        .collect()
}

/// A vector of norm `norm` in a direction chosen by `kind`: random, equal on the first few
/// coordinates, or one coordinate.
fn direction(weights: &[f64], kind: usize, norm: f64) -> Vec<f64> {
    let spread: Vec<f64> = match kind {
        0 => weights.to_vec(),
        n => (0..weights.len())
            .map(|j| if j < n { 1.0 } else { 0.0 })
            .collect(),
    };
    let length = spread.iter().map(|x| x * x).sum::<f64>().sqrt().max(1e-300);
    spread.iter().map(|x| x * norm / length).collect()
}

fn masked_norm(vector: &[f64], set: &[usize]) -> f64 {
    set.iter()
        .map(|&j| vector[j] * vector[j])
        .sum::<f64>()
        .sqrt()
}

/// `H_g((1-q) N(0) + q N(r) || N(0))` by its closed form.
fn sampled_gaussian(q: f64, r: f64, epsilon: f64) -> f64 {
    let strike = 1.0 + epsilon.exp_m1() / q;
    if strike <= 0.0 || r == 0.0 {
        return (-epsilon.exp_m1()).max(0.0);
    }
    let k = strike.ln();
    q * (upper_tail(k / r - r / 2.0) - strike * upper_tail(k / r + r / 2.0))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..Default::default() })]

    /// One vector: full gradients and Poisson samples under zero-out, both directions, exactly.
    #[test]
    fn no_vector_beats_the_bounds(
        weights in prop::collection::vec(-1.0f64..1.0, 2..9),
        kind in 0usize..5,
        size in 1usize..8,
        q in prop_oneof![Just(1.0), 0.01f64..0.9],
        r in 0.05f64..3.0,
        shrink in prop_oneof![Just(1.0), 0.2f64..1.0],
        points in prop::collection::vec(-1.0f64..1.0, 12),
    ) {
        let dimension = weights.len();
        let size = size.min(dimension);
        let vector = direction(&weights, kind.min(dimension), r * shrink);
        let sets = subsets(dimension, size);
        let norms: Vec<f64> = sets.iter().map(|set| masked_norm(&vector, set)).collect();
        let average = |f: &dyn Fn(f64) -> f64| {
            norms.iter().map(|&norm| f(norm)).sum::<f64>() / norms.len() as f64
        };
        let mask = random_k(size as f64 / dimension as f64, 1);
        let (shifts, probabilities) = ([0.0, r], [1.0 - q, q]);
        let laws = laws_of(&shifts, &probabilities, Adjacency::ZeroOut, &mask, 1e-3);
        for point in points {
            let epsilon = 4.0 * r * point * point.abs();
            let remove = average(&|norm| sampled_gaussian(q, norm, epsilon));
            let add = average(&|norm| {
                -epsilon.exp_m1() + epsilon.exp() * sampled_gaussian(q, norm, -epsilon)
            });
            prop_assert!(curve_of(&laws[0], epsilon) >= remove - 1e-14);
            // The reference itself is a difference of numbers near e^epsilon.
            prop_assert!(curve_of(&laws[1], epsilon) >= add - 1e-14 * (1.0 + epsilon.exp()));
        }
        let curve = masked_rdp(&mixture(&shifts, &probabilities), Adjacency::ZeroOut, &mask);
        let curve = curve.unwrap().unwrap();
        for (order, value) in orders().iter().zip(curve.values()).step_by(11) {
            if order * order * r * r > 600.0 {
                continue;
            }
            let moment = average(&|norm| {
                let moved = mixture(&[0.0, norm], &probabilities);
                let pairs = MixturePair::directions(&moved, Adjacency::ZeroOut);
                log_moment(&pairs[0], *order).exp()
            });
            prop_assert!((order - 1.0) * value >= moment.ln() * (1.0 - 1e-9) - 1e-12);
        }
    }
}

/// A small generator for the two-dimensional cases below.
fn next(state: &mut u64) -> f64 {
    *state = state
        .wrapping_mul(6364136223846793005)
        .wrapping_add(1442695040888963407);
    (*state >> 11) as f64 / (1u64 << 53) as f64 * 2.0 - 1.0
}

/// Coordinates in the plane spanned by two vectors, restricted to `set`.
fn in_plane(first: &[f64], second: &[f64], set: &[usize]) -> ((f64, f64), (f64, f64)) {
    let dot = |a: &[f64], b: &[f64]| set.iter().map(|&j| a[j] * b[j]).sum::<f64>();
    let length = dot(first, first).sqrt();
    if length < 1e-12 {
        return ((0.0, 0.0), (dot(second, second).sqrt(), 0.0));
    }
    let along = dot(first, second) / length;
    let across = (dot(second, second) - along * along).max(0.0).sqrt();
    ((length, 0.0), (along, across))
}

type Plane = Vec<((f64, f64), f64)>;

/// Hockey-stick divergences of two planar Gaussian mixtures at several epsilons, by a sum over a
/// square grid (error below 1e-4 for the shifts used here).
fn planar(p: &Plane, q: &Plane, epsilons: &[f64]) -> Vec<f64> {
    let step = 0.1;
    let levels: Vec<f64> = epsilons.iter().map(|epsilon| epsilon.exp()).collect();
    let mut totals = vec![0.0; epsilons.len()];
    for i in -80..=80 {
        for j in -80..=80 {
            let (x, y) = (f64::from(i) * step, f64::from(j) * step);
            let density = |law: &Plane| {
                law.iter()
                    .map(|((a, b), w)| w * (-0.5 * ((x - a).powi(2) + (y - b).powi(2))).exp())
                    .sum::<f64>()
            };
            let (dp, dq) = (density(p), density(q));
            for (total, g) in totals.iter_mut().zip(&levels) {
                *total += (dp - g * dq).max(0.0);
            }
        }
    }
    let scale = step * step / (2.0 * std::f64::consts::PI);
    totals.iter().map(|total| total * scale).collect()
}

#[test]
fn no_pair_of_vectors_beats_the_envelope() {
    let epsilons = [-0.8, -0.2, 0.0, 0.1, 0.4, 1.0, 2.0];
    let mut state = 7;
    for case in 0..24 {
        let dimension = 2 + case % 4;
        let size = 1 + case / 4 % (dimension - 1);
        let q = [0.05, 0.3, 0.8][case % 3];
        let r = [0.4, 1.0, 2.0][case / 3 % 3];
        let mut weights = || (0..dimension).map(|_| next(&mut state)).collect::<Vec<_>>();
        let (a, b) = (weights(), weights());
        let kappa = size as f64 / dimension as f64;
        let sets = subsets(dimension, size);

        // Replace-one: record u against record v, which share no direction in general.
        let u = direction(&a, case % 3, r);
        let v: Vec<f64> = match case % 2 {
            0 => u.iter().map(|x| -x).collect(),
            _ => direction(&b, 0, r),
        };
        let mut truth = vec![0.0; epsilons.len()];
        // Zero-out with a full-batch term: shift h always, D + h when sampled.
        let low = 0.3 * r;
        let h = direction(&b, case % 2, low);
        let sum: Vec<f64> = u.iter().zip(&h).map(|(x, y)| x + y).collect();
        let (mut remove, mut add) = (truth.clone(), truth.clone());
        for set in &sets {
            let (pu, pv) = in_plane(&u, &v, set);
            let p = vec![((0.0, 0.0), 1.0 - q), (pu, q)];
            let w = vec![((0.0, 0.0), 1.0 - q), (pv, q)];
            let (ph, ps) = in_plane(&h, &sum, set);
            let mixture = vec![(ph, 1.0 - q), (ps, q)];
            let null = vec![((0.0, 0.0), 1.0)];
            let parts = [
                (&mut truth, planar(&p, &w, &epsilons)),
                (&mut remove, planar(&mixture, &null, &epsilons)),
                (&mut add, planar(&null, &mixture, &epsilons)),
            ];
            for (totals, values) in parts {
                for (total, value) in totals.iter_mut().zip(values) {
                    *total += value / sets.len() as f64;
                }
            }
        }
        let law = |shifts: &[f64], adjacency| {
            laws_of(shifts, &[1.0 - q, q], adjacency, &random_k(kappa, 2), 1e-3)
        };
        let replace = law(&[0.0, r], Adjacency::ReplaceOne);
        let zero_out = law(&[low, low + r], Adjacency::ZeroOut);
        for (at, &epsilon) in epsilons.iter().enumerate() {
            for (bound, exact) in [
                (&replace[0], truth[at]),
                (&zero_out[0], remove[at]),
                (&zero_out[1], add[at]),
            ] {
                let bound = curve_of(bound, epsilon);
                assert!(
                    bound >= exact - 1e-4,
                    "case {case}, {epsilon}: {exact} above {bound}"
                );
            }
        }
    }
}

#[test]
fn the_bounds_are_attained_at_both_ends() {
    // A vector spread over all coordinates has |u_I|^2 = kappa |u|^2 exactly: at epsilon 0 nothing
    // is lost. One coordinate is the worst at large epsilon.
    let (r, kappa) = (0.5, 0.25);
    let law = &laws_of(&[r], &[1.0], Adjacency::ZeroOut, &random_k(kappa, 1), 1e-3)[0];
    let spread = sampled_gaussian(1.0, r * kappa.sqrt(), 0.0);
    assert!((curve_of(law, 0.0) / spread - 1.0).abs() < 1e-6);
    let single = kappa * sampled_gaussian(1.0, r, 2.0);
    assert!((curve_of(law, 2.0) / single - 1.0).abs() < 2e-2);
}

#[test]
fn laws_are_laws() {
    let cases: [(&[f64], &[f64], u32, f64); 4] = [
        (&[0.05], &[1.0], 1, 1e-4),
        (&[0.0, 1.0], &[0.99, 0.01], 2, 1e-4),
        (&[0.025, 0.275], &[0.95, 0.05], 4, 1e-3),
        (&[0.0, 4.0], &[0.5, 0.5], 2, 1e-3),
    ];
    for (shifts, probabilities, vectors, step) in cases {
        for adjacency in [Adjacency::ZeroOut, Adjacency::ReplaceOne] {
            let mask = random_k(0.05, vectors);
            for law in laws_of(shifts, probabilities, adjacency, &mask, step) {
                let total = law.infinity + law.masses.iter().sum::<f64>();
                assert!((total - 1.0).abs() < 1e-12, "{shifts:?}: {total}");
                assert!(law.masses.iter().all(|mass| *mass >= 0.0));
                assert!(law.infinity < 1e-18, "{}", law.infinity);
                // The denominator is a law as well: its mass is that of e^{-loss}.
                let losses = (law.first..).map(|index| index as f64 * step);
                let other: f64 = losses.zip(&law.masses).map(|(l, m)| m * (-l).exp()).sum();
                assert!(other <= 1.0 + 1e-12, "{shifts:?}: {other}");
            }
        }
    }
}

#[test]
fn unmasked_fraction_gives_the_plain_pair() {
    let law = &laws_of(
        &[0.0, 1.0],
        &[0.9, 0.1],
        Adjacency::ZeroOut,
        &random_k(1.0, 1),
        1e-3,
    )[0];
    for epsilon in [-0.05, 0.0, 0.2, 1.0] {
        let exact = sampled_gaussian(0.1, 1.0, epsilon);
        let ours = curve_of(law, epsilon);
        assert!(
            ours >= exact - 1e-15 && ours <= exact * 1.001 + 1e-12,
            "{ours} {exact}"
        );
    }
}

#[test]
fn discretisation_costs_less_than_a_thousandth() {
    // Full gradients without a mask: 100 rounds at z = 20 have an exact epsilon.
    let law = &laws_of(&[0.05], &[1.0], Adjacency::ZeroOut, &random_k(1.0, 1), 1e-3)[0];
    let epsilon = epsilon_of(&power(law, 100), 1e-5);
    let exact = 1.993091404;
    assert!(epsilon >= exact && epsilon < exact * 1.001, "{epsilon}");
}

#[test]
fn more_coordinates_cost_more() {
    let epsilon = |kappa: f64, vectors: u32| {
        let mask = random_k(kappa, vectors);
        let laws = laws_of(&[0.0, 0.5], &[0.9, 0.1], Adjacency::ReplaceOne, &mask, 1e-3);
        curve_of(&laws[0], 0.05)
    };
    assert!(epsilon(0.05, 2) < epsilon(0.1, 2));
    assert!(epsilon(0.05, 2) <= epsilon(0.05, 4));
    assert!(epsilon(0.05, 40) < epsilon(0.1, 40));
    assert!((epsilon(1.0, 2) - epsilon(1.0, 4)).abs() < 1e-15);
}

/// A grid that no memory holds is refused before it is built, and a typical loss beyond every
/// integer does not overflow.
#[test]
fn a_grid_that_is_too_long_is_not_built() {
    let losses = |shift: f64, step: f64| {
        let mask = random_k(0.05, 1);
        masked_losses(
            &mixture(&[0.0, shift], &[0.9, 0.1]),
            Adjacency::ZeroOut,
            &mask,
            step,
        )
    };
    let long = losses(1e3, 1e-9);
    assert!(
        matches!(long, Err(AccountError::Unresolved { .. })),
        "{long:?}"
    );
    let pair = &MixturePair::directions(&mixture(&[0.0, 30.0], &[0.9, 0.1]), Adjacency::ZeroOut)[0];
    for scale in [1e30, f64::INFINITY, f64::NAN] {
        let nodes = grid::nodes(pair, 1e-4, scale).unwrap();
        assert!(
            nodes.is_sorted() && nodes.contains(&0) && nodes.len() < 100_000,
            "{scale}"
        );
    }
}

#[test]
fn refuses_what_is_not_proved() {
    let law = |shifts: &[f64], adjacency, mask: &RandomK| {
        masked_losses(&mixture(shifts, &[0.9, 0.1]), adjacency, mask, 1e-3)
    };
    let sgd = [0.0, 0.5];
    let event = |result| match result {
        Err(AccountError::Event(event)) => event,
        other => panic!("{other:?}"),
    };
    let few = law(&sgd, Adjacency::ReplaceOne, &random_k(0.1, 1));
    assert!(matches!(event(few), EventError::Unproved(_)));
    let few = law(&[0.1, 0.5], Adjacency::ZeroOut, &random_k(0.1, 1));
    assert!(matches!(event(few), EventError::Unproved(_)));
    let none = law(&sgd, Adjacency::ZeroOut, &random_k(0.0, 1));
    assert!(matches!(event(none), EventError::OutOfRange { .. }));
    // No Renyi rule where none is proved.
    for (shifts, adjacency, vectors) in [
        ([0.0, 0.5], Adjacency::ReplaceOne, 2),
        ([0.1, 0.5], Adjacency::ZeroOut, 2),
        ([0.0, 0.5], Adjacency::ZeroOut, 2),
    ] {
        let curve = masked_rdp(
            &mixture(&shifts, &[0.9, 0.1]),
            adjacency,
            &random_k(0.1, vectors),
        );
        assert_eq!(curve.unwrap(), None);
    }
}

#[test]
fn full_gradients_under_replace_one_are_one_vector_of_twice_the_length() {
    let mask = random_k(0.05, 1);
    let rule = |shift: f64, adjacency| masked_rdp(&mixture(&[shift], &[1.0]), adjacency, &mask);
    let replace = rule(0.05, Adjacency::ReplaceOne).unwrap();
    let doubled = rule(0.1, Adjacency::ZeroOut).unwrap();
    assert_eq!(replace, doubled);
    let laws = |shift: f64, adjacency| laws_of(&[shift], &[1.0], adjacency, &mask, 1e-3)[0].clone();
    let (replace, doubled) = (
        laws(0.05, Adjacency::ReplaceOne),
        laws(0.1, Adjacency::ZeroOut),
    );
    for epsilon in [-0.1, 0.0, 0.1, 0.3] {
        let (a, b) = (curve_of(&replace, epsilon), curve_of(&doubled, epsilon));
        assert!((a - b).abs() < 1e-5, "{a} {b}");
    }
}

#[test]
fn no_four_vectors_beat_the_chain() {
    // Replace-one with a full-batch term: h and D + h under one data set, others under the other,
    // in three dimensions of which one or two travel, so that the outcome is planar as it is.
    let epsilons = [-0.5, -0.1, 0.0, 0.1, 0.3, 0.8, 1.6];
    let mut state = 11;
    for case in 0..16 {
        let size = 1 + case % 2;
        let q = [0.05, 0.4][case / 2 % 2];
        let r = [0.3, 1.2][case / 4 % 2];
        let low = [0.5, 0.1][case / 8 % 2] * r;
        let mut vector = |norm: f64| {
            let weights: Vec<f64> = (0..3).map(|_| next(&mut state)).collect();
            direction(&weights, [0, 0, 1, 3][case % 4], norm)
        };
        let (h, d) = (vector(low), vector(r));
        let opposed = case % 3 == 0;
        let (k, e) = match opposed {
            true => (
                h.iter().map(|x| -x).collect(),
                d.iter().map(|x| -x).collect(),
            ),
            false => (vector(low), vector(r)),
        };
        let law = |h: &[f64], d: &[f64], set: &[usize]| {
            let place = |scale: f64| {
                let at = |j: usize| set.get(j).map_or(0.0, |&c| h[c] + scale * d[c]);
                (at(0), at(1))
            };
            vec![(place(0.0), 1.0 - q), (place(1.0), q)]
        };
        let sets = subsets(3, size);
        let mut truth = vec![0.0; epsilons.len()];
        for set in &sets {
            let values = planar(&law(&h, &d, set), &law(&k, &e, set), &epsilons);
            for (total, value) in truth.iter_mut().zip(values) {
                *total += value / sets.len() as f64;
            }
        }
        let mask = random_k(size as f64 / 3.0, 4);
        let shifts = [low, low + r];
        let laws = laws_of(&shifts, &[1.0 - q, q], Adjacency::ReplaceOne, &mask, 1e-3);
        for (&epsilon, exact) in epsilons.iter().zip(truth) {
            let bound = curve_of(&laws[0], epsilon);
            assert!(
                bound >= exact - 1e-4,
                "case {case}, {epsilon}: {exact} above {bound}"
            );
        }
    }
}

#[test]
fn one_vector_at_a_time_is_better_than_all_at_once() {
    // Shifts, probabilities, adjacency, vectors, rounds, kappa, delta, step.
    type Row = (
        &'static [f64],
        &'static [f64],
        Adjacency,
        u32,
        u64,
        f64,
        f64,
        f64,
    );
    let (replace, zero_out) = (Adjacency::ReplaceOne, Adjacency::ZeroOut);
    let rows: [Row; 3] = [
        (&[0.0, 1.0], &[0.99, 0.01], replace, 2, 500, 0.1, 1e-5, 2e-3),
        (
            &[0.00625, 0.0375],
            &[0.95, 0.05],
            replace,
            4,
            1000,
            0.05,
            1e-5,
            4e-4,
        ),
        (
            &[0.00625, 0.0375],
            &[0.95, 0.05],
            zero_out,
            2,
            1000,
            0.05,
            1e-5,
            2e-4,
        ),
    ];
    for (shifts, probabilities, adjacency, vectors, rounds, kappa, delta, step) in rows {
        let mixture = mixture(shifts, probabilities);
        let mean = kappa * f64::from(vectors);
        let pair = &MixturePair::directions(&mixture, adjacency)[0];
        let nodes = grid::nodes(pair, step, typical_loss(&mixture, adjacency, mean)).unwrap();
        let mut at_once = MaskedCurve::new(&mixture, adjacency, mean);
        let at_once = grid::connect(
            grid::dots(&nodes, step, |epsilon| at_once.excess(epsilon)),
            step,
        );
        let laws = |mask| laws_of(shifts, probabilities, adjacency, &mask, step);
        let cost = |law: &LossDistribution| epsilon_of(&power(law, rounds), delta);
        let ours = cost(&laws(random_k(kappa, vectors))[0]);
        let before = cost(&at_once);
        let lower = cost(&one_coordinate(&laws(random_k(1.0, vectors))[0], kappa));
        println!("{shifts:?} {adjacency:?}: {before:.3} at once, {ours:.3}, lower {lower:.3}");
        assert!(ours < 0.8 * before, "{ours} {before}");
        assert!(ours > lower && ours < 1.5 * lower, "{ours} {lower}");
    }
}
