use super::*;
use crate::{ClipScope, Estimator, IncrementClip, Recursion};

fn question(
    estimator: Estimator,
    q: f64,
    rounds: u64,
    kappa: Option<f64>,
    delta: f64,
    adjacency: Adjacency,
) -> Question {
    // m = b/q with b = 1, so that sigma is the noise multiplier of SGD.
    let mechanism = Mechanism {
        estimator,
        records: (1.0 / q).round() as u64,
        batch: (1.0 / q).round() * q,
        clip: if estimator == Estimator::Gd {
            (1.0 / q).round()
        } else {
            1.0
        },
        clip_scope: ClipScope::Record,
        rand_k: kappa,
    };
    mechanism.question(rounds, delta, adjacency).unwrap()
}

/// The table of `docs/privacy.md` on random-k: never below the one-coordinate case, which is a
/// lower bound, and not above what was found there.
#[test]
fn amplified_costs_lie_between_the_bounds() {
    let zero_out = Adjacency::ZeroOut;
    for (estimator, q, z, rounds, kappa, delta, lower, upper, plain) in [
        (
            Estimator::Gd,
            1.0,
            20.0,
            100,
            0.05,
            1e-5,
            0.4594,
            0.5309,
            1.993092,
        ),
        (
            Estimator::Gd,
            1.0,
            50.0,
            2000,
            0.05,
            1e-5,
            0.7366,
            0.8120,
            3.849,
        ),
        (
            Estimator::Sgd,
            0.0625,
            4.0,
            3000,
            0.05,
            1e-3,
            0.4507,
            0.5337,
            2.654,
        ),
        (
            Estimator::Sgd,
            0.01,
            1.0,
            1000,
            0.1,
            1e-5,
            0.7203,
            0.7530,
            1.8283,
        ),
    ] {
        let asked = question(estimator, q, rounds, Some(kappa), delta, zero_out);
        let found = asked.cost(z).unwrap();
        assert!(found.amplified(), "{estimator:?}");
        assert!(
            found.epsilon > lower && found.epsilon < upper,
            "{estimator:?}: {found:?}"
        );
        assert!(
            (found.epsilon_unamplified / plain - 1.0).abs() < 1e-3,
            "{estimator:?}: {found:?}"
        );
        let plain = asked.amplification(false).cost(z).unwrap();
        assert_eq!(plain.amplification, Amplification::SwitchedOff);
        assert_eq!(plain.epsilon, found.epsilon_unamplified);
    }
}

#[test]
fn calibration_meets_the_target_from_below() {
    for (estimator, q, kappa) in [
        (Estimator::Gd, 0.01, None),
        (Estimator::Gd, 0.01, Some(0.05)),
        (Estimator::Sgd, 0.02, None),
        (Estimator::Sgd, 0.02, Some(0.05)),
        (
            Estimator::Svrg {
                snapshot_probability: 0.3,
                difference_clip: Some(0.25),
            },
            0.02,
            Some(0.05),
        ),
        (
            Estimator::Saga {
                difference_clip: None,
            },
            0.02,
            None,
        ),
    ] {
        for adjacency in [Adjacency::ZeroOut, Adjacency::ReplaceOne] {
            for method in [Method::Pld, Method::Rdp] {
                let asked = question(estimator, q, 150, kappa, 1e-5, adjacency).by(method);
                let cost = asked.calibrate(1.0).unwrap();
                assert!(
                    cost.epsilon <= 1.0 && cost.epsilon > 0.99,
                    "{estimator:?} {adjacency:?} {method:?}: {cost:?}"
                );
                assert_eq!(asked.cost(cost.sigma).unwrap(), cost);
                let odometer = asked.odometer(cost.sigma, 24).unwrap();
                assert!(
                    odometer.after(150) <= cost.epsilon
                        && odometer.after(150) >= cost.epsilon * (1.0 - 1e-3)
                );
                let spent: Vec<f64> = (0..=150).map(|round| odometer.after(round)).collect();
                assert!(spent[0] == 0.0 && spent.is_sorted());
            }
        }
    }
}

/// So little noise over so many rounds that a fine grid is too long: still an answer.
#[test]
fn large_costs_are_answered() {
    for (q, z, rounds) in [
        (0.0157, 0.29, 20_000),
        (0.02, 0.3, 5_000),
        (0.3, 1.0, 100_000),
    ] {
        for adjacency in [Adjacency::ZeroOut, Adjacency::ReplaceOne] {
            let asked = question(Estimator::Sgd, q, rounds, Some(0.05), 1e-5, adjacency);
            let found = asked.cost(z).unwrap();
            assert!(
                found.epsilon.is_finite() && found.epsilon <= found.epsilon_unamplified,
                "{found:?}"
            );
        }
    }
}

/// Clipping what travels is never amplified, whatever is asked.
#[test]
fn selected_scope_is_never_amplified() {
    let mechanism = Mechanism {
        estimator: Estimator::Gd,
        records: 1000,
        batch: 1000.0,
        clip: 1.0,
        clip_scope: ClipScope::Selected,
        rand_k: Some(0.05),
    };
    let asked = mechanism.question(100, 1e-5, Adjacency::ZeroOut).unwrap();
    let found = asked.cost(20.0 / 1000.0).unwrap();
    assert_eq!(found.amplification, Amplification::NothingHidden);
    assert!((found.epsilon - 1.993091).abs() < 1e-4, "{found:?}");
}

/// A cost that leaves amplification out says why.
#[test]
fn amplification_is_never_left_out_in_silence() {
    let sgd = |kappa, adjacency| question(Estimator::Sgd, 0.02, 150, kappa, 1e-5, adjacency);
    let reason = |question: Question| question.cost(2.0).unwrap().amplification;
    let masked = || sgd(Some(0.05), Adjacency::ReplaceOne);
    assert_eq!(reason(masked()), Amplification::Used);
    for nothing in [None, Some(1.0)] {
        let asked = sgd(nothing, Adjacency::ReplaceOne);
        assert_eq!(reason(asked), Amplification::NothingHidden);
    }
    let off = masked().amplification(false);
    assert_eq!(reason(off), Amplification::SwitchedOff);
    // The Rényi rule is proved for samples under zero-out, and not under replace-one.
    let renyi = masked().by(Method::Rdp);
    assert_eq!(reason(renyi), Amplification::Unproved);
    let proved = sgd(Some(0.05), Adjacency::ZeroOut).by(Method::Rdp);
    assert_eq!(reason(proved), Amplification::Used);
    let release = masked().release;
    let several = masked().after(&release, 2.0, 150).unwrap();
    assert_eq!(reason(several), Amplification::SeveralReleases);
    // Also where it is the earlier release that is masked.
    let plain = sgd(None, Adjacency::ReplaceOne);
    let several = plain.clone().after(&release, 2.0, 150).unwrap();
    assert_eq!(reason(several), Amplification::SeveralReleases);
    let unmasked = plain.clone().after(plain.release(), 2.0, 150).unwrap();
    assert_eq!(reason(unmasked), Amplification::NothingHidden);
    let loose = question(
        Estimator::Sgd,
        0.3,
        1,
        Some(0.999),
        1e-5,
        Adjacency::ReplaceOne,
    );
    assert_eq!(reason(loose), Amplification::NotSmaller);
    let delta = masked().delta_at(1.0, 2.0).unwrap();
    assert_eq!(delta.amplification, Amplification::NotForDelta);
    let cost = masked().cost(2.0).unwrap();
    assert!(cost.to_string().ends_with("(pld, amplified by random-k)"));
    let text = Amplification::SwitchedOff.to_string();
    assert_eq!(text, "not amplified: switched off");
}

/// Releases of different kinds compose, whichever of them the question is about.
#[test]
fn compositions_go_through_the_same_door() {
    for method in [Method::Pld, Method::Rdp] {
        for &adjacency in Adjacency::ALL {
            let gd = question(Estimator::Gd, 0.01, 40, None, 1e-5, adjacency).by(method);
            let sgd = question(Estimator::Sgd, 0.02, 300, None, 1e-5, adjacency).by(method);
            let alone = [gd.cost(30.0).unwrap(), sgd.cost(1.5).unwrap()];
            let first = gd.clone().after(&sgd.release, 1.5, 300).unwrap();
            let second = sgd.clone().after(&gd.release, 30.0, 40).unwrap();
            let (first, other) = (first.cost(30.0).unwrap(), second.cost(1.5).unwrap());
            assert!((first.epsilon / other.epsilon - 1.0).abs() < 1e-4);
            let sum = alone[0].epsilon + alone[1].epsilon;
            assert!(other.epsilon > alone[0].epsilon.max(alone[1].epsilon));
            assert!(other.epsilon < sum, "{} {sum}", other.epsilon);
            // What the first has spent is there before the second begins.
            let odometer = second.odometer(1.5, 8).unwrap();
            assert_eq!(odometer.after(0), alone[0].epsilon);
            assert!(odometer.after(1) > alone[0].epsilon * (1.0 - 1e-9));
            assert!((odometer.after(300) / other.epsilon - 1.0).abs() < 1e-3);
            // Calibration meets the target together with what is spent, or says it cannot.
            let target = 1.5 * alone[0].epsilon;
            let found = second.calibrate(target).unwrap();
            assert!(found.epsilon <= target && found.epsilon > 0.999 * target);
            let spent = second.calibrate(0.9 * alone[0].epsilon);
            assert!(matches!(spent, Err(AccountError::Unreachable { .. })));
            let delta = second.delta_at(other.epsilon, 1.5).unwrap().delta;
            assert!((delta / 1e-5 - 1.0).abs() < 1e-2, "{delta}");
        }
    }
}

#[test]
fn the_other_accountant_is_heard_when_asked() {
    let asked = question(Estimator::Sgd, 0.02, 150, None, 1e-5, Adjacency::ZeroOut);
    let alone = asked.cost(1.0).unwrap();
    assert_eq!(
        (alone.epsilon_pld, alone.epsilon_rdp),
        (Some(alone.epsilon), None)
    );
    let renyi = asked.clone().by(Method::Rdp).cost(1.0).unwrap();
    let both = asked.compared().cost(1.0).unwrap();
    assert_eq!(both.epsilon_pld, alone.epsilon_pld);
    assert_eq!(both.epsilon_rdp, Some(renyi.epsilon));
    assert_eq!(both.epsilon, alone.epsilon);
}

/// Two levels of noise are two releases: composed with `after`, where the second noise is fixed,
/// they give the same epsilon, delta and costs on the way; calibrated noise keeps its ratio.
#[test]
fn two_levels_of_noise_are_two_releases() {
    let recursion = Recursion {
        keep: 1.0,
        period: Some(7),
        increments: IncrementClip::Smooth(1.0),
        noise_ratio: 2.5,
    };
    let (rounds, sigma, delta) = (40, 0.05, 1e-5);
    for (adjacency, method) in [
        (Adjacency::ZeroOut, Method::Pld),
        (Adjacency::ReplaceOne, Method::Pld),
        (Adjacency::ReplaceOne, Method::Rdp),
    ] {
        for batch in [20.0, 1000.0] {
            let mechanism = Mechanism {
                estimator: Estimator::Recursive(recursion),
                records: 1000,
                batch,
                clip: 1.0,
                clip_scope: ClipScope::Record,
                rand_k: None,
            };
            let release = mechanism.release().unwrap();
            let split = |rounds: u64, sigma: f64| {
                let first = rounds.div_ceil(7);
                let question = Question::new(release.clone(), first, delta, adjacency).by(method);
                match rounds - first {
                    0 => question.cost(sigma).unwrap(),
                    second => question
                        .after(&release, 2.5 * sigma, second)
                        .unwrap()
                        .cost(sigma)
                        .unwrap(),
                }
            };
            let question = mechanism.question(rounds, delta, adjacency).unwrap();
            let question = question.by(method);
            let cost = question.cost(sigma).unwrap();
            let twin = split(rounds, sigma);
            assert!(
                (cost.epsilon / twin.epsilon - 1.0).abs() < 1e-6,
                "{cost:?} {twin:?}"
            );
            let odometer = question.odometer(sigma, 40).unwrap();
            for spent in [1, 7, 8, 15, 39] {
                let (found, twin) = (odometer.after(spent), split(spent, sigma).epsilon);
                assert!((found / twin - 1.0).abs() < 1e-6, "{spent}: {found} {twin}");
            }
            let calibrated = question.calibrate(1.0).unwrap();
            assert!(calibrated.epsilon <= 1.0 && calibrated.epsilon > 0.99);
            let twin = split(rounds, calibrated.sigma).epsilon;
            assert!((calibrated.epsilon / twin - 1.0).abs() < 1e-6, "{twin}");
            // With equal ratios it is SGD.
            let equal = Recursion {
                noise_ratio: 1.0,
                ..recursion
            };
            let of = |estimator| {
                let mechanism = Mechanism {
                    estimator,
                    ..mechanism
                };
                let question = mechanism.question(rounds, delta, adjacency).unwrap();
                question.by(method).cost(sigma).unwrap()
            };
            assert_eq!(of(Estimator::Recursive(equal)), of(Estimator::Sgd));
        }
    }
}

/// What the ratio is for (full batches, increments bounded to a tenth of the clip, `Q` = 13): the
/// direction's variance is `sigma^2 (1 + t (z h)^2)` in the `t`-th round after a start, on average
/// over a period against gradient descent's at the same cost. With equal ratios of noise to clip it
/// is never smaller, whatever the period; with `z^2 = sqrt(2)/h` it falls to `4 h' (1 - h')`,
/// `h' = h/sqrt(2)`.
#[test]
fn a_recursion_gains_by_its_two_levels_alone() {
    let target = 1.0;
    let calibrated = |estimator| {
        let mechanism = Mechanism {
            estimator,
            records: 1000,
            batch: 1000.0,
            clip: 1.0,
            clip_scope: ClipScope::Record,
            rand_k: None,
        };
        let question = mechanism.question(130, 1e-5, Adjacency::ReplaceOne);
        question.unwrap().calibrate(target).unwrap().sigma
    };
    let whole = calibrated(Estimator::Gd);
    let variance = |period: u32, bound: f64, noise_ratio: f64| {
        let sigma = calibrated(Estimator::Recursive(Recursion {
            keep: 1.0,
            period: Some(period),
            increments: IncrementClip::Fixed(bound),
            noise_ratio,
        }));
        let rounds_since = (f64::from(period) - 1.0) / 2.0;
        (sigma / whole).powi(2) * (1.0 + rounds_since * (noise_ratio * bound).powi(2))
    };
    for period in [2, 13, 130] {
        for bound in [0.01, 0.1, 0.5] {
            assert!(
                variance(period, bound, 1.0) > 1.0 - 1e-5,
                "{period} {bound}"
            );
        }
    }
    let half = 0.1 / 2f64.sqrt();
    let best = variance(13, 0.1, half.powf(-0.5));
    assert!(
        (best / (4.0 * half * (1.0 - half)) - 1.0).abs() < 0.01,
        "{best}"
    );
}

/// Random-k hides a part of every increment: with two levels of noise the cost is bounded by that
/// of the lower one, and never above the exact one.
#[test]
fn amplification_with_two_levels_counts_the_lower_one() {
    let of = |noise_ratio, keep| {
        let mechanism = Mechanism {
            estimator: Estimator::Recursive(Recursion {
                keep,
                noise_ratio,
                ..Recursion::momentum(1.0)
            }),
            records: 1000,
            batch: 1000.0,
            clip: 1.0,
            clip_scope: ClipScope::Record,
            rand_k: Some(0.05),
        };
        let question = mechanism
            .question(100, 1e-5, Adjacency::ReplaceOne)
            .unwrap();
        question.cost(0.02).unwrap()
    };
    let (one, two) = (of(1.0, 0.9), of(1.1, 0.9));
    assert!(one.amplified() && two.amplified());
    assert_eq!(one.epsilon, two.epsilon);
    assert!(two.epsilon_unamplified < one.epsilon_unamplified);
    let far = of(1e3, 0.9);
    assert!(!far.amplified() && far.epsilon < one.epsilon);
}
