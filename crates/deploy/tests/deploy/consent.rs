//! What a server can get from a client that was given nothing but `--max-epsilon`: a search over
//! what a server may choose, with numbers of its own beside the accountant's; and honest runs,
//! which are joined.

use soteriafl_accountant::{Adjacency, ClipScope, Estimator, Mechanism};
use soteriafl_deploy::budget::{
    Counted, Deltas, Limits, MOST_READ, Priced, Refusal, price, strict_limit,
};
use soteriafl_deploy::store::LedgerRun;

use crate::attack::{BOUGHT, Offer, describe, ledger_run};
use crate::budget::judge;

pub fn under(epsilon: f64) -> Limits {
    Limits {
        epsilon: Some(epsilon),
        ..Limits::default()
    }
}

/// A small generator, the same everywhere.
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        self.0 >> 33
    }

    /// Between two numbers, evenly by their logarithms.
    fn between(&mut self, low: f64, high: f64) -> f64 {
        let share = self.next() as f64 / (1u64 << 31) as f64;
        low * (high / low).powf(share)
    }

    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.next() as usize % choices.len()]
    }
}

/// No limit on epsilon lets the example in, and the refusal says what to ask for.
#[test]
fn records_cannot_be_bought_with_delta() {
    let run = BOUGHT.run(0.02).unwrap();
    for limit in [0.0, 0.001, 1.0, 10.0, 100.0] {
        let refused = judge(&[], &run, &under(limit)).unwrap_err();
        assert!(matches!(refused, Refusal::Budget { .. }), "{refused}");
        let said = refused.to_string();
        assert!(
            said.contains("at delta 3e-6") && said.contains("privacy.delta = 3e-6"),
            "{said}"
        );
    }
    // Fewer records taken, so that the client's own delta pays for them: the stricter one does not.
    let fewer = Offer {
        batch: 1e-3,
        rounds: 50,
        ..BOUGHT
    };
    let run = fewer.run(20.0).unwrap();
    assert_eq!(
        run.price.cost(Adjacency::ReplaceOne, 3e-6).unwrap(),
        Some(0.0)
    );
    let refused = judge(&[], &run, &under(1.0)).unwrap_err();
    assert!(matches!(refused, Refusal::Strict { .. }), "{refused}");
    let said = refused.to_string();
    assert!(
        said.contains("at delta 3e-9") && said.contains("hint: "),
        "{said}"
    );
}

/// The least noise with which a client joins what is offered, to a percent; `None` if it
/// does so with none.
fn least_accepted(offer: &Offer, limits: &Limits) -> Option<f64> {
    let (_, high, _) = offer.moves();
    let mut run = offer.run(1e4 * high).ok()?;
    let mut accepts = |sigma: f64| {
        run.price.sigma = sigma;
        judge(&[], &run, limits).is_ok()
    };
    let (mut refused, mut least) = (1e-3 * high, 1e4 * high);
    if !accepts(least) {
        return None;
    }
    while least > 1.01 * refused {
        let middle = (refused * least).sqrt();
        match accepts(middle) {
            true => least = middle,
            false => refused = middle,
        }
    }
    // The same by the whole way of a description.
    judge(&[], &offer.run(least).unwrap(), limits).unwrap();
    Some(least)
}

/// At the least noise that a client accepts: how many records are read, and how many beyond
/// guessing, by an account that knows nothing of the accountant; and the bounds that are stated.
fn check_least(offer: &Offer, limit: f64, least: f64) -> (f64, f64) {
    let limits = under(limit);
    let run = offer.run(least).unwrap();
    let counted = Counted::new([], Some(&run), false);
    let judged = limits.judged(&counted).unwrap();
    let strict = strict_limit(limit);
    let (read, beyond) = (offer.read(least), offer.beyond_guessing(least, strict));
    let said = || format!("{offer:?} {limit} at {least}: {read} {beyond} {judged:?}");
    assert!(read < MOST_READ, "{}", said());
    assert!(
        read <= judged.read() && judged.read() < MOST_READ,
        "{}",
        said()
    );
    let records = offer.records as f64;
    let by_strict = records * (strict.exp() * 2f64.powi(-40) + judged.strict.delta);
    assert!(read <= by_strict, "{}", said());
    assert!(beyond <= 1.01e-4, "{}", said());
    (read, beyond)
}

/// For whatever a server chooses, the least noise that a client accepts is found; even there fewer
/// than 0.01 records are expected to be read.
#[test]
fn no_accepted_run_lets_records_be_read() {
    let mut draw = Draw(20);
    let (mut accepted, mut worst) = (0, (0.0_f64, 0.0_f64));
    while accepted < 40 {
        let records = draw.of(&[60, 1000, 10_854, 32_561, 1_000_000]);
        let estimator = draw.of(&["gd", "sgd", "sgd", "svrg", "saga"]);
        let offer = Offer {
            records,
            estimator,
            batch: match estimator {
                "gd" => records as f64,
                _ => draw.between(1e-3, 50.0),
            },
            rounds: draw.of(&[1, 3, 30, 100, 1000]),
            clip: draw.of(&[0.01, 1.0, 50.0]),
            delta: draw.of(&[1e-3, 1e-3, 1e-4, 1e-5, 1e-7, 1e-12]),
            adjacency: draw.of(&["replace-one", "zero-out"]),
            compressor: draw.of(&["identity", "rand-k", "qsgd"]),
            scope: match estimator {
                "gd" | "sgd" => draw.of(&["record", "selected"]),
                _ => "record",
            },
        };
        let limit = draw.of(&[0.001, 0.1, 1.0, 1.0, 4.0, 8.0, 8.0, 30.0]);
        let Some(least) = least_accepted(&offer, &under(limit)) else {
            continue;
        };
        let found = check_least(&offer, limit, least);
        worst = (worst.0.max(found.0), worst.1.max(found.1));
        accepted += 1;
    }
    // The search comes near to what it looks for: it is no proof that nothing was tried.
    assert!(worst.0 > 1e-3 && worst.1 > 1e-5, "{worst:?}");
}

/// One message of a few records is what lets most be read under a large limit. What is known to let
/// more than 0.01 records be read is refused, whatever the limit, unless the client allows it; and
/// the least noise that is accepted keeps below.
#[test]
fn a_large_limit_lets_no_more_records_be_read() {
    for (records, batch, sigma, found) in [
        (1_000_000, 5.01, 0.04211, 0.0525),
        (32_561, 2.585, 0.08559, 0.0148),
    ] {
        let offer = Offer {
            records,
            batch,
            rounds: 1,
            adjacency: "zero-out",
            ..BOUGHT
        };
        let read = offer.read(sigma);
        assert!((read / found - 1.0).abs() < 0.01, "{read}");
        let run = offer.run(sigma).unwrap();
        for limit in [8.0, 20.0, 1000.0] {
            let refused = judge(&[], &run, &under(limit)).unwrap_err();
            assert!(
                matches!(refused, Refusal::Read { .. }),
                "{limit}: {refused}"
            );
            let said = refused.to_string();
            assert!(said.contains("--max-read N"), "{said}");
            let allowing = Limits {
                read: Some(0.1),
                ..under(limit)
            };
            judge(&[], &run, &allowing).unwrap();
        }
    }
    let mut draw = Draw(7);
    let mut worst = 0.0_f64;
    for _ in 0..12 {
        let records = draw.of(&[10_854, 32_561, 1_000_000]);
        let offer = Offer {
            records,
            batch: draw.between(1.0, 100.0),
            rounds: 1,
            adjacency: "zero-out",
            ..BOUGHT
        };
        let limit = draw.of(&[6.0, 8.0, 12.0, 100.0]);
        if let Some(least) = least_accepted(&offer, &under(limit)) {
            worst = worst.max(check_least(&offer, limit, least).0);
        }
    }
    assert!(worst > 0.004, "{worst}");
}

/// The bounds behind it: records times a delta.
#[test]
fn the_deltas_of_a_client_follow_from_its_records() {
    for records in [1, 60, 100, 1000, 10_854, 1_000_000, u64::MAX] {
        for told in [None, Some(0.5), Some(1e-3), Some(1e-9), Some(1e-30)] {
            let Deltas {
                own,
                strict,
                reading,
            } = Deltas::of(records, told, MOST_READ);
            assert!(records as f64 * strict <= 1.000_001e-4 || strict <= 1e-30);
            assert!(strict <= own / 1000.0 || strict == 1e-30, "{records}");
            assert!(records as f64 * reading <= 0.002_000_01, "{records}");
            match told {
                Some(told) => assert_eq!(own, told),
                None => assert!(own <= 1e-3 && own * records as f64 <= 0.100_001),
            }
        }
    }
    let Deltas {
        own,
        strict,
        reading,
    } = Deltas::of(10_854, None, MOST_READ);
    assert_eq!((own, strict, reading), (9.2e-6, 9.2e-9, 1.8e-7));
}

/// Runs whose noise this project's own accountant has calibrated for the limit, over at least one
/// pass, are joined: the stricter point costs them less than twice their epsilon plus 2. Only where
/// epsilon is 8 and a million records would be read with it are some refused: a single pass, or
/// little more.
#[test]
fn honest_runs_are_joined() {
    let mut tightest = f64::INFINITY;
    let (mut tried, mut refused) = (0, 0);
    for records in [100u64, 10_000, 100_000, 1_000_000] {
        let own = Deltas::of(records, None, MOST_READ).own;
        for epsilon in [0.001, 0.1, 1.0, 4.0, 7.0, 8.0] {
            for (estimator, rate, rounds, rand_k, zero_out) in [
                (Estimator::Gd, 1.0, 1, None, false),
                (Estimator::Gd, 1.0, 300, Some(0.05), true),
                (Estimator::Sgd, 0.5, 2, None, false),
                (Estimator::Sgd, 0.01, 100, None, false),
                (Estimator::Sgd, 0.01, 100, Some(0.05), true),
                (Estimator::Sgd, 0.01, 3000, Some(0.25), false),
                (Estimator::Sgd, 1e-4, 10_000, None, false),
                (SVRG, 0.02, 150, Some(0.05), false),
                (SVRG, 0.01, 100, None, true),
            ] {
                let batch = rate * records as f64;
                if batch < 1.0 {
                    continue;
                }
                let mechanism = Mechanism {
                    estimator,
                    records,
                    batch,
                    clip: 1.0,
                    clip_scope: ClipScope::Record,
                    rand_k,
                };
                let run = calibrated(mechanism, rounds, epsilon, own.min(1e-5), zero_out);
                let counted = Counted::new([], Some(&run), false);
                match judge(&[], &run, &under(epsilon)) {
                    Ok(()) => {}
                    Err(Refusal::Read { .. })
                        if (records, epsilon) == (1_000_000, 8.0)
                            && Limits::default().judged(&counted).unwrap().read() < 0.03 =>
                    {
                        refused += 1;
                    }
                    Err(refused) => panic!("{mechanism:?} {rounds}: {refused}"),
                }
                let strict = Limits::default().strictly_spent(&counted).unwrap();
                tightest = tightest.min(strict_limit(epsilon) - strict.epsilon.unwrap());
                tried += 1;
            }
        }
    }
    assert!(tried > 180 && tightest > 0.5, "{tried}: {tightest}");
    assert!(refused < 8, "{refused}");
}

const SVRG: Estimator = Estimator::Svrg {
    snapshot_probability: 0.3,
    difference_clip: Some(0.25),
};

/// A run with the least noise for a target.
pub fn calibrated(
    mechanism: Mechanism,
    rounds: u64,
    epsilon: f64,
    delta: f64,
    zero_out: bool,
) -> LedgerRun {
    let adjacency = match zero_out {
        true => Adjacency::ZeroOut,
        false => Adjacency::ReplaceOne,
    };
    let question = mechanism.question(rounds, delta, adjacency).unwrap();
    let cost = question.calibrate(epsilon).unwrap();
    let (shifts, probabilities) = question.release().shifts.parts().iter().copied().unzip();
    let masked = question.release().random_k;
    ledger_run(Priced {
        records: mechanism.records,
        shifts,
        probabilities,
        noise_levels: None,
        sigma: cost.sigma,
        before: Vec::new(),
        masked: masked.map(|k| (k.fraction, k.vectors_zero_out, k.vectors_replace_one)),
        rounds,
        delta,
        adjacency,
        records_per_person: 1,
        epsilon: Some(cost.epsilon),
        claim: soteriafl::Claim::Proved,
    })
}

/// The runs of `docs/operating.md`: three parts of a9a under 1.1, and 5000 records under the run's
/// own epsilon.
#[test]
fn documented_runs_are_joined() {
    for (records, limit) in [(10_853, 1.1), (10_854, 1.1), (5000, 1.0)] {
        let settings = ["algorithm.preset=auto", "privacy.epsilon=1.0"].map(str::to_string);
        let description = describe(records, &settings);
        assert_eq!(description.resolved.delta, 1e-5);
        let run = ledger_run(price(&description, records).unwrap());
        judge(&[], &run, &under(limit)).unwrap();
    }
}
