//! What must hold for every schedule: monotone, ordered, consistent, and never a silent failure.

use proptest::prelude::*;
use soteriafl_accountant::{
    AccountError, Adjacency, ClipScope, Cost, Estimator, Mechanism, Question, ShiftMixture,
};

const BOTH: [Adjacency; 2] = [Adjacency::ZeroOut, Adjacency::ReplaceOne];

/// Twice the share of epsilon that the discretisation may add.
const SLACK: f64 = 1e-4;

/// A release with its noise and its rounds.
#[derive(Clone)]
struct Event {
    shifts: ShiftMixture,
    sigma: f64,
    rounds: u64,
}

/// The question about the last event, after those before it.
fn question(events: &[Event], delta: f64, adjacency: Adjacency) -> (Question, f64) {
    let (last, before) = events.split_last().unwrap();
    let first = Question::new(last.shifts.clone(), last.rounds, delta, adjacency);
    let after = |question: Question, event: &Event| {
        let release = event.shifts.clone().into();
        question.after(&release, event.sigma, event.rounds).unwrap()
    };
    (before.iter().fold(first, after), last.sigma)
}

fn epsilon(events: &[Event], delta: f64, adjacency: Adjacency) -> Result<f64, AccountError> {
    let (question, sigma) = question(events, delta, adjacency);
    question.cost(sigma).map(|cost| cost.epsilon)
}

fn delta(events: &[Event], epsilon: f64, adjacency: Adjacency) -> Result<f64, AccountError> {
    let (question, sigma) = question(events, 0.5, adjacency);
    question.delta_at(epsilon, sigma).map(|cost| cost.delta)
}

fn event(parts: &[(f64, f64)], sigma: f64, rounds: u64) -> Event {
    let (shifts, probabilities): (Vec<f64>, Vec<f64>) = parts.iter().copied().unzip();
    Event {
        shifts: ShiftMixture::new(&shifts, &probabilities).unwrap(),
        sigma,
        rounds,
    }
}

fn sgd(rate: f64, sigma: f64, rounds: u64) -> Event {
    event(&[(0.0, 1.0 - rate), (1.0, rate)], sigma, rounds)
}

fn calibrate(
    mechanism: &Mechanism,
    rounds: u64,
    target: f64,
    delta: f64,
    adjacency: Adjacency,
) -> Result<Cost, AccountError> {
    mechanism
        .question(rounds, delta, adjacency)?
        .calibrate(target)
}

fn mechanism(estimator: Estimator, records: u64, batch: f64) -> Mechanism {
    Mechanism {
        estimator,
        records,
        batch,
        clip: 1.0,
        clip_scope: ClipScope::Record,
        rand_k: None,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]

    #[test]
    fn monotone_in_everything(
        log_rate in -9.0..-0.1_f64,
        log_sigma in -0.7..4.0_f64,
        log_rounds in 0.0..9.0_f64,
        log_delta in -23.0..-5.0_f64,
        replace in any::<bool>(),
    ) {
        let (rate, sigma) = (log_rate.exp(), log_sigma.exp());
        let (rounds, delta) = (log_rounds.exp() as u64, log_delta.exp());
        let adjacency = BOTH[usize::from(replace)];
        let cost = |rate: f64, sigma: f64, rounds: u64, delta: f64| {
            epsilon(&[sgd(rate, sigma, rounds)], delta, adjacency).unwrap()
        };
        let base = cost(rate, sigma, rounds, delta);
        prop_assert!(base.is_finite() && base >= 0.0);
        let at_most = base * (1.0 + SLACK);
        prop_assert!(cost(rate, sigma * 1.1, rounds, delta) <= at_most);
        prop_assert!(cost(rate * 0.9, sigma, rounds, delta) <= at_most);
        prop_assert!(cost(rate, sigma, rounds, delta * 1.5) <= at_most);
        prop_assert!(cost(rate, sigma, rounds + rounds / 4 + 1, delta) >= base * (1.0 - SLACK));
    }

    #[test]
    fn replacing_costs_at_least_removing(
        low in 0.0..0.5_f64, high in 0.5..2.0_f64, rate in 0.001..0.9_f64,
        sigma in 0.7..20.0_f64, rounds in 1..2000_u64,
    ) {
        let event = [event(&[(low, 1.0 - rate), (high, rate)], sigma, rounds)];
        let zero_out = epsilon(&event, 1e-5, Adjacency::ZeroOut).unwrap();
        let replace = epsilon(&event, 1e-5, Adjacency::ReplaceOne).unwrap();
        prop_assert!(replace >= zero_out * (1.0 - SLACK), "{replace} {zero_out}");
    }

    #[test]
    fn calibration_never_exceeds_and_wastes_little(
        rate in 0.002..1.0_f64, rounds in 1..3000_u64, log_target in -3.0..2.5_f64,
        kind in 0..4_usize, replace in any::<bool>(),
    ) {
        let estimator = [
            Estimator::Gd,
            Estimator::Sgd,
            Estimator::Svrg { snapshot_probability: 0.3, difference_clip: Some(0.25) },
            Estimator::Saga { difference_clip: None },
        ][kind];
        let mechanism = mechanism(estimator, 1000, 1000.0 * rate);
        let (target, adjacency) = (log_target.exp(), BOTH[usize::from(replace)]);
        let found = calibrate(&mechanism, rounds, target, 1e-5, adjacency).unwrap();
        let question = mechanism.question(rounds, 1e-5, adjacency).unwrap();
        let cost = question.cost(found.sigma).unwrap().epsilon;
        prop_assert!(found.epsilon <= target);
        prop_assert!((cost - found.epsilon).abs() <= SLACK * target);
        let less = question.cost(found.sigma * 0.998).unwrap();
        prop_assert!(less.epsilon > target * (1.0 - SLACK));
    }
}

#[test]
fn costs_are_finite_over_the_whole_range() {
    let mut checked = 0;
    for rate in [1e-6, 1e-3, 0.1, 0.999] {
        for sigma in [0.1, 1.0, 30.0, 1000.0] {
            for rounds in [1, 1000, 1_000_000] {
                let mut last = f64::INFINITY;
                for delta in [1e-10, 1e-4] {
                    let cost = epsilon(&[sgd(rate, sigma, rounds)], delta, Adjacency::ZeroOut);
                    let cost = cost.unwrap_or_else(|error| {
                        panic!("q {rate} sigma {sigma} T {rounds} delta {delta}: {error}")
                    });
                    assert!(cost.is_finite() && cost >= 0.0 && cost <= last * (1.0 + SLACK));
                    last = cost;
                    checked += 1;
                }
            }
        }
    }
    assert_eq!(checked, 96);
    // Far beyond any run, and where nothing is ever likely to be seen.
    let long = epsilon(&[sgd(1e-4, 50.0, 100_000_000)], 1e-6, Adjacency::ReplaceOne);
    assert!(long.unwrap() > 0.0);
    let endless = epsilon(
        &[sgd(1e-4, 50.0, 10_000_000_000)],
        1e-6,
        Adjacency::ReplaceOne,
    );
    assert!(matches!(endless, Err(AccountError::Unresolved { .. })));
    let nothing = epsilon(&[sgd(1e-6, 5.0, 3)], 1e-4, Adjacency::ReplaceOne);
    assert_eq!(nothing, Ok(0.0));
    let (rare, sigma) = question(&[sgd(1e-6, 5.0, 100)], 1e-4, Adjacency::ZeroOut);
    let odometer = rare.odometer(sigma, 5).unwrap();
    assert_eq!(odometer.after(100), 0.0);
}

#[test]
fn targets_from_a_hundredth_to_a_hundred_are_met() {
    let mechanism = mechanism(Estimator::Sgd, 1000, 20.0);
    let mut last = f64::INFINITY;
    for target in [0.01, 0.1, 1.0, 10.0, 100.0] {
        let found = calibrate(&mechanism, 200, target, 1e-6, Adjacency::ReplaceOne).unwrap();
        assert!(found.epsilon <= target && found.epsilon > 0.999 * target);
        assert!(found.sigma < last);
        last = found.sigma;
    }
}

#[test]
fn without_a_small_shift_a_mixture_is_sampling() {
    for adjacency in BOTH {
        let parts = event(&[(0.0, 0.95), (0.04, 0.05)], 0.08, 500);
        let mixture = epsilon(&[parts], 1e-5, adjacency).unwrap();
        let sampling = epsilon(&[sgd(0.05, 2.0, 500)], 1e-5, adjacency).unwrap();
        assert!((mixture / sampling - 1.0).abs() < 1e-9);
        // And nearly so for a small shift that is hardly there.
        let almost = event(&[(1e-9, 0.95), (0.04, 0.05)], 0.08, 500);
        let almost = epsilon(&[almost], 1e-5, adjacency).unwrap();
        assert!((almost / sampling - 1.0).abs() < SLACK);
    }
}

#[test]
fn a_full_batch_approaches_the_closed_form() {
    for adjacency in BOTH {
        let exact = epsilon(&[event(&[(1.0, 1.0)], 20.0, 100)], 1e-5, adjacency).unwrap();
        let nearly = epsilon(&[sgd(1.0 - 1e-9, 20.0, 100)], 1e-5, adjacency).unwrap();
        assert!((nearly / exact - 1.0).abs() < SLACK, "{nearly} {exact}");
        let full = epsilon(&[sgd(1.0, 20.0, 100)], 1e-5, adjacency).unwrap();
        assert!((full / exact - 1.0).abs() < 1e-12);
    }
}

#[test]
fn a_vanishing_difference_clip_leaves_the_full_gradient() {
    for adjacency in BOTH {
        let cost = |difference_clip: f64| {
            let estimator = Estimator::Svrg {
                snapshot_probability: 0.3,
                difference_clip: Some(difference_clip),
            };
            let svrg = mechanism(estimator, 1000, 50.0);
            let question = svrg.question(1000, 1e-5, adjacency).unwrap();
            question.cost(0.05).unwrap().epsilon
        };
        let gd = mechanism(Estimator::Gd, 1000, 0.0);
        let gaussian = gd.question(1000, 1e-5, adjacency).unwrap();
        let gaussian = gaussian.cost(0.05).unwrap().epsilon;
        assert!((cost(0.0) / gaussian - 1.0).abs() < 1e-12);
        assert!((cost(1e-6) / gaussian - 1.0).abs() < 3e-4);
    }
}

#[test]
fn equal_phases_compose_like_one() {
    for adjacency in BOTH {
        let whole = epsilon(&[sgd(0.05, 2.0, 600)], 1e-5, adjacency).unwrap();
        let split = [sgd(0.05, 2.0, 250), sgd(0.05, 2.0, 350)];
        assert_eq!(epsilon(&split, 1e-5, adjacency).unwrap(), whole);
        // Phases that are equal but for a hair are composed as two.
        let hair = [sgd(0.05, 2.0, 250), sgd(0.05, 2.0 + 1e-9, 350)];
        let hair = epsilon(&hair, 1e-5, adjacency).unwrap();
        assert!((hair / whole - 1.0).abs() < SLACK, "{hair} {whole}");
    }
}

#[test]
fn phases_lie_between_their_extremes() {
    for adjacency in BOTH {
        let (mild, harsh) = (sgd(0.02, 3.0, 500), sgd(0.1, 1.5, 40));
        let gaussian = event(&[(1.0, 1.0)], 20.0, 25);
        let alone: Vec<f64> = [&mild, &harsh, &gaussian]
            .map(|event| epsilon(std::slice::from_ref(event), 1e-5, adjacency).unwrap())
            .to_vec();
        let all = epsilon(&[mild, harsh, gaussian], 1e-5, adjacency).unwrap();
        let largest = alone.iter().copied().fold(0.0, f64::max);
        assert!(all > largest && all < alone.iter().sum::<f64>());
    }
}

#[test]
fn delta_and_epsilon_invert_each_other() {
    for adjacency in BOTH {
        for target in [1e-3, 1e-6, 1e-10] {
            let event = [sgd(0.01, 0.8, 700)];
            let at = epsilon(&event, target, adjacency).unwrap();
            let back = delta(&event, at, adjacency).unwrap();
            assert!(
                back > 0.99 * target && back < 1.003 * target,
                "{back} {target}"
            );
        }
    }
}

#[test]
fn the_odometer_is_exact_at_its_marks_and_never_low() {
    for adjacency in BOTH {
        let round = sgd(0.02, 1.3, 3000);
        let (run, sigma) = question(std::slice::from_ref(&round), 1e-5, adjacency);
        let odometer = run.odometer(sigma, 24).unwrap();
        assert!((12..=24).contains(&odometer.checkpoints().len()));
        let mut last = 0.0;
        for rounds in 0..=3000 {
            let cost = odometer.after(rounds);
            assert!(cost >= last);
            last = cost;
        }
        for rounds in [1, 7, 100, 1111, 2999, 3000] {
            let exact = run.clone().rounds(rounds).cost(sigma).unwrap().epsilon;
            assert!(odometer.after(rounds) >= exact * (1.0 - SLACK), "{rounds}");
        }
        let (rounds, cost) = odometer.checkpoints()[10];
        let exact = run.clone().rounds(rounds).cost(sigma).unwrap().epsilon;
        assert!(cost <= exact * 1.002, "{rounds}: {cost} {exact}");
        assert_eq!(odometer.after(3001), f64::INFINITY);
    }
    let (full, sigma) = question(&[event(&[(1.0, 1.0)], 30.0, 500)], 1e-5, Adjacency::ZeroOut);
    let odometer = full.odometer(sigma, 10).unwrap();
    for rounds in [1, 33, 500] {
        let exact = full.clone().rounds(rounds).cost(sigma).unwrap().epsilon;
        assert!((odometer.after(rounds) - exact).abs() <= 1e-9);
    }
}

#[test]
fn bad_questions_are_refused() {
    let event = [sgd(0.1, 1.0, 10)];
    for bad in [0.0, 1.0, -1.0, 1e-31, f64::NAN, f64::INFINITY] {
        assert!(matches!(
            epsilon(&event, bad, Adjacency::ZeroOut),
            Err(AccountError::Delta { .. })
        ));
    }
    for bad in [-1.0, f64::NAN, f64::INFINITY] {
        assert!(matches!(
            delta(&event, bad, Adjacency::ZeroOut),
            Err(AccountError::Epsilon { .. })
        ));
    }
    for none in [
        vec![sgd(0.1, 1.0, 0)],
        vec![sgd(0.1, 1.0, 0), sgd(0.1, 1.0, 5)],
    ] {
        assert!(matches!(
            epsilon(&none, 1e-5, Adjacency::ZeroOut),
            Err(AccountError::NoRounds { .. })
        ));
    }
    for sigma in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let (question, _) = question(&event, 1e-5, Adjacency::ZeroOut);
        let before = event[0].shifts.clone().into();
        assert!(question.cost(sigma).is_err() && question.delta_at(1.0, sigma).is_err());
        assert!(question.after(&before, sigma, 3).is_err());
    }
    assert!(matches!(
        epsilon(&[sgd(0.1, 1e-4, 10)], 1e-5, Adjacency::ZeroOut),
        Err(AccountError::NoiseTooSmall { .. })
    ));
    let many = [sgd(0.1, 1.0, u64::MAX), sgd(0.2, 1.0, u64::MAX)];
    assert_eq!(
        epsilon(&many, 1e-5, Adjacency::ZeroOut),
        Err(AccountError::TooManyRounds)
    );
    let mechanism = mechanism(Estimator::Sgd, 100, 10.0);
    for bad in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert!(calibrate(&mechanism, 10, bad, 1e-5, Adjacency::ZeroOut).is_err());
    }
    assert!(calibrate(&mechanism, 0, 1.0, 1e-5, Adjacency::ZeroOut).is_err());
}
