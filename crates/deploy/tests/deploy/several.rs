//! Several runs of one client: which cost applies must be known before the first message.

use soteriafl_accountant::{Adjacency, ClipScope, Estimator, Mechanism};
use soteriafl_deploy::budget::{self, Counted, Limits, Priced, Refusal};
use soteriafl_deploy::store::LedgerRun;

use crate::attack::ledger_run;
use crate::budget::judge;
use crate::consent::{calibrated, under};

/// What a run was left with is not known beforehand, so it counts in full: a second run is refused
/// that would fit beside the messages really made.
#[test]
fn a_run_that_was_left_counts_in_full() {
    let mechanism = Mechanism {
        estimator: Estimator::Sgd,
        records: 3000,
        batch: 30.0,
        clip: 1.0,
        clip_scope: ClipScope::Record,
        rand_k: None,
    };
    let first = LedgerRun {
        messages: 1,
        ..calibrated(mechanism, 300, 1.0, 1e-5, false)
    };
    let second = LedgerRun {
        hash: [2; 32],
        ..calibrated(mechanism, 300, 0.2, 1e-5, false)
    };
    let spent = |runs: &[LedgerRun]| {
        let counted = Counted::new(runs, None, false);
        Limits::default().spent(&counted).unwrap().epsilon.unwrap()
    };
    let made = |run: &LedgerRun, messages| LedgerRun {
        messages,
        ..run.clone()
    };
    let whole = spent(&[first.clone(), made(&second, 300)]);
    // If only its one message were counted, this would be the sum.
    let shortened = LedgerRun {
        price: Priced {
            rounds: 1,
            ..first.price.clone()
        },
        ..first.clone()
    };
    let fewer = spent(&[shortened, made(&second, 300)]);
    assert!(1.0 < whole && fewer < 0.8 * whole, "{fewer} {whole}");
    let limit = under(0.99 * whole);
    judge(&[], &first, &limit).unwrap();
    let refused = judge(std::slice::from_ref(&first), &second, &limit).unwrap_err();
    assert!(matches!(refused, Refusal::Budget { .. }), "{refused}");
    judge(&[first], &second, &under(whole)).unwrap();
}

/// Which cost applies must be known before the first message: under every limit that admits a
/// second run, the first one alone is within the filter, under either adjacency and at either
/// delta.
#[test]
fn a_second_run_is_admitted_only_where_the_filter_admits_the_first() {
    let mechanism = |rand_k| Mechanism {
        estimator: Estimator::Sgd,
        records: 3000,
        batch: 30.0,
        clip: 1.0,
        clip_scope: ClipScope::Record,
        rand_k,
    };
    for (one, two) in [(true, true), (true, false), (false, true), (false, false)] {
        for rand_k in [None, Some(0.05)] {
            let first = LedgerRun {
                messages: 1,
                ..calibrated(mechanism(rand_k), 100, 0.5, 1e-5, one)
            };
            let second = LedgerRun {
                hash: [2; 32],
                ..calibrated(mechanism(rand_k), 100, 0.5, 1e-7, two)
            };
            // The filter's cost of the first alone: beside a run that costs next to nothing, by its
            // own words.
            let nothing = |zero_out| LedgerRun {
                hash: [3; 32],
                price: Priced {
                    sigma: 1e9,
                    adjacency: match zero_out {
                        true => Adjacency::ZeroOut,
                        false => Adjacency::ReplaceOne,
                    },
                    ..first.price.clone()
                },
                ..first.clone()
            };
            let spent = |runs: &[&LedgerRun], delta| {
                let counted = Counted::new(runs.iter().copied(), None, false);
                counted.at(delta).unwrap().epsilon.unwrap()
            };
            let made = LedgerRun {
                messages: 1,
                ..second.clone()
            };
            for delta in [1e-5, 3e-5, 3e-8] {
                let alone = spent(&[&first, &nothing(one)], delta);
                let both = spent(&[&first, &made], 1e-7_f64.min(delta));
                assert!(both >= alone, "{one} {two}: {both} below {alone}");
            }
        }
    }
}

/// Whatever a filter admits at the client's own delta is within the stricter limit too: with
/// several runs there is nothing to buy.
#[test]
fn a_filter_keeps_the_stricter_limit_by_itself() {
    let mechanism = Mechanism {
        estimator: Estimator::Sgd,
        records: 3000,
        batch: 0.5,
        clip: 1.0,
        clip_scope: ClipScope::Record,
        rand_k: None,
    };
    let release = mechanism.release().unwrap();
    let (shifts, probabilities): (Vec<f64>, Vec<f64>) =
        release.shifts.parts().iter().copied().unzip();
    for (sigma, rounds) in [(0.3, 5), (1.0, 30), (3.0, 300)] {
        let price = Priced {
            records: 3000,
            shifts: shifts.clone(),
            probabilities: probabilities.clone(),
            sigma,
            rounds,
            delta: 1e-3,
            epsilon: Some(1.0),
            claim: soteriafl::Claim::Proved,
            ..Priced::default()
        };
        let runs = [1, 2].map(|number| LedgerRun {
            hash: [number; 32],
            messages: rounds,
            ..ledger_run(price.clone())
        });
        let counted = Counted::new(&runs, None, false);
        let limits = Limits::default();
        let total = limits.spent(&counted).unwrap().epsilon.unwrap();
        let strict = limits.strictly_spent(&counted).unwrap().epsilon.unwrap();
        assert!(strict <= 2.0 * total, "{sigma}: {strict} {total}");
    }
    assert_eq!(budget::MAX_DELTA, 1e-3);
}
