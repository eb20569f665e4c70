//! What a server can get from a client that was given nothing but `--max-epsilon`: a search over
//! what a server may choose, with numbers of its own beside the accountant's; and honest runs,
//! which are joined.

use soteriafl::config::resolve::Shape;
use soteriafl::config::{Config, Document};
use soteriafl::record_shape::RecordShape;
use soteriafl_accountant::{Adjacency, ClipScope, Estimator, Mechanism};
use soteriafl_deploy::budget::{
    self, Counted, Deltas, Limits, Priced, Refusal, check_claim, price, strict_limit,
};
use soteriafl_deploy::description::Description;
use soteriafl_deploy::store::LedgerRun;

use crate::budget::judge;

fn under(epsilon: f64) -> Limits {
    Limits {
        epsilon: Some(epsilon),
        ..Limits::default()
    }
}

fn ledger_run(price: Priced) -> LedgerRun {
    LedgerRun {
        hash: [1; 32],
        description: String::new(),
        client: 0,
        data: [1; 32],
        part: None,
        price,
        messages: 0,
        finished: false,
    }
}

/// What some server describes, as a client with `records` records of 40 features reads it.
fn describe(records: usize, settings: &[String]) -> Description {
    let text = "[data]\nsource = \"libsvm:d.txt\"\nclients = 1\n[model]\nkind = \"logistic\"\nintercept = false\n[privacy]\nnoise = \"secure\"\n";
    let mut document = Document::from_text(text, "server").unwrap();
    for setting in settings {
        document.set(setting).unwrap();
    }
    let config = Config::read(&document).unwrap();
    let shape = RecordShape {
        names: None,
        features: 40,
        labels: vec!["-1".to_string(), "+1".to_string()],
    };
    let kind = config.model_for(2).unwrap();
    let model = shape.model(&config, kind).unwrap();
    let dimension = model.objective().dimension();
    let resolved = config.resolve(&Shape {
        dimension,
        records: vec![records],
        model: kind,
        image: false,
        basis: None,
        whole: dimension,
        smoothness: None,
    });
    let start = vec![0.0; dimension];
    let (resolved, _) = resolved.unwrap();
    let described = Description::new(&resolved, shape, &model, &start, None, [3; 16]).unwrap();
    Description::parse(described.text(), records).unwrap()
}

/// What a server may choose, and what the client has.
#[derive(Clone, Copy, Debug)]
struct Offer {
    records: usize,
    estimator: &'static str,
    /// Expected size of a minibatch; all records for gd.
    batch: f64,
    rounds: u32,
    clip: f64,
    delta: f64,
    adjacency: &'static str,
    compressor: &'static str,
    scope: &'static str,
}

impl Offer {
    fn settings(&self, sigma: f64) -> Vec<String> {
        let mut settings = vec![
            format!("algorithm.preset=soteriafl-{}", self.estimator),
            format!("algorithm.compressor={}", self.compressor),
            format!("algorithm.rounds={}", self.rounds),
            format!("privacy.clip={}", self.clip),
            format!("privacy.clip_scope={}", self.scope),
            format!("privacy.delta={}", self.delta),
            format!("privacy.adjacency={}", self.adjacency),
            format!("privacy.sigma={sigma}"),
        ];
        if self.estimator != "gd" {
            settings.push(format!("algorithm.batch={}", self.batch));
        }
        if self.two_terms() {
            settings.push(format!("privacy.difference_clip={}", self.clip / 4.0));
        }
        if self.compressor == "rand-k" {
            settings.push("algorithm.fraction=0.25".to_string());
        }
        settings
    }

    fn two_terms(&self) -> bool {
        matches!(self.estimator, "svrg" | "saga")
    }

    /// The run as a client prices it, or why it proves nothing.
    fn run(&self, sigma: f64) -> Result<LedgerRun, Refusal> {
        let description = describe(self.records, &self.settings(sigma));
        let price = price(&description, self.records)?;
        check_claim(&description, &price)?;
        Ok(ledger_run(price))
    }

    /// How far a record moves a message: if its coin says no, if it says yes, and how probable that
    /// is. From the estimators' formulas.
    fn moves(&self) -> (f64, f64, f64) {
        let all = self.clip / self.records as f64;
        let rate = self.batch / self.records as f64;
        match self.estimator {
            "gd" => (all, all, 1.0),
            "sgd" => (0.0, self.clip / self.batch, rate),
            _ => (all, 0.25 * self.clip / self.batch + all, rate),
        }
    }

    /// Attacks on one record, all of whose gradient lies in one coordinate, by a server that knows
    /// everything else: from the best single message, and from the sum of all. Each as (how often
    /// it succeeds, how often it would without the record) for a threshold in standard deviations.
    fn attacks(&self, sigma: f64, threshold: f64) -> [(f64, f64); 2] {
        let (low, high, rate) = self.moves();
        let travels = match self.compressor {
            "rand-k" => 0.25,
            _ => 1.0,
        };
        let rounds = f64::from(self.rounds);
        // Every message is looked at; the record is in it and its coordinate travels.
        let seen = travels
            * (rate * tail(threshold - high / sigma)
                + (1.0 - rate) * tail(threshold - low / sigma));
        let once = (travels * tail(threshold), seen);
        let any = |one: f64| -f64::exp_m1(rounds * f64::ln_1p(-one.min(1.0 - 1e-16)));
        let mean = rate * high + (1.0 - rate) * low;
        let sum = tail(threshold - (rounds * travels).sqrt() * mean / sigma);
        [(any(once.1), any(once.0)), (sum, tail(threshold))]
    }

    /// How many records are expected to be read exactly, where 40 bits of each are not known and
    /// all of them must come out right.
    fn read(&self, sigma: f64) -> f64 {
        let guess = 2f64.powi(-40);
        let single = threshold(guess / f64::from(self.rounds));
        let [(one, _), _] = self.attacks(sigma, single);
        let [_, (sum, _)] = self.attacks(sigma, threshold(guess));
        self.records as f64 * f64::max(one, sum)
    }

    /// How many records are expected to be found beyond `e^epsilon` times guessing, over all
    /// thresholds.
    fn beyond_guessing(&self, sigma: f64, epsilon: f64) -> f64 {
        let thresholds = (0..200).map(|step| -3.0 + 0.1 * f64::from(step));
        let beyond = thresholds.flat_map(|threshold| {
            self.attacks(sigma, threshold)
                .map(|(with, without)| with - epsilon.exp() * without)
        });
        self.records as f64 * beyond.fold(0.0, f64::max)
    }
}

/// The probability that a standard normal number exceeds `x`, by Simpson's rule.
fn tail(x: f64) -> f64 {
    if x < 0.0 {
        return 1.0 - tail(-x);
    }
    let (steps, width) = (400, 12.0 / (1.0 + x));
    let density = |at: f64| (-0.5 * at * at).exp() / (2.0 * std::f64::consts::PI).sqrt();
    let sum: f64 = (0..=steps)
        .map(|step| {
            let weight = match step {
                0 => 1.0,
                step if step == steps => 1.0,
                step if step % 2 == 1 => 4.0,
                _ => 2.0,
            };
            weight * density(x + width * f64::from(step) / f64::from(steps))
        })
        .sum();
    sum * width / f64::from(steps) / 3.0
}

/// Where the tail has this probability.
fn threshold(probability: f64) -> f64 {
    let (mut low, mut high) = (0.0, 20.0);
    for _ in 0..60 {
        let middle = 0.5 * (low + high);
        if tail(middle) > probability {
            low = middle;
        } else {
            high = middle;
        }
    }
    high
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

    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.next() as usize % choices.len()]
    }
}

/// The example that was found: 22 of 100 messages were single records in the clear, at "epsilon 0".
const BOUGHT: Offer = Offer {
    records: 32_561,
    estimator: "sgd",
    batch: 0.3,
    rounds: 100,
    clip: 1.0,
    delta: 1e-3,
    adjacency: "replace-one",
    compressor: "identity",
    scope: "record",
};

#[test]
fn the_numbers_of_this_test_are_right() {
    // From tables.
    for (x, expected) in [
        (0.0, 0.5),
        (1.0, 0.158_655_25),
        (3.0, 1.349_898e-3),
        (7.0, 1.279_81e-12),
    ] {
        assert!((tail(x) / expected - 1.0).abs() < 1e-5, "{x}: {}", tail(x));
    }
    assert!((threshold(1.349_898e-3) - 3.0).abs() < 1e-5);
    assert!((tail(-1.0) + tail(1.0) - 1.0).abs() < 1e-12);
    // The example gives away about thirty records, each at some time with probability 100 * 0.3 /
    // 32561.
    let read = BOUGHT.read(0.02);
    assert!((29.0..31.0).contains(&read), "{read}");
    assert!(BOUGHT.beyond_guessing(0.02, 3.0) > 20.0);
    // It was within the limit at the server's delta.
    let run = BOUGHT.run(0.02).unwrap();
    assert_eq!(run.price.cost(false, 1e-3).unwrap(), Some(0.0));
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
    assert_eq!(run.price.cost(false, 3e-6).unwrap(), Some(0.0));
    let refused = judge(&[], &run, &under(1.0)).unwrap_err();
    assert!(matches!(refused, Refusal::Strict { .. }), "{refused}");
    let said = refused.to_string();
    assert!(
        said.contains("at delta 3e-9") && said.contains("hint: "),
        "{said}"
    );
}

/// For whatever a server chooses, the least noise that a client accepts is found; even there fewer
/// than 0.01 records are expected to be read, by an account that knows nothing of the accountant.
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
                _ => draw.of(&[1e-3, 0.05, 0.3, 1.0, 7.0, 50.0]),
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
        let limits = under(draw.of(&[0.001, 0.1, 1.0, 1.0, 4.0, 8.0]));
        // As much noise as anybody could want; then as little as is accepted.
        let (_, high, _) = offer.moves();
        let Ok(mut run) = offer.run(1e4 * high) else {
            continue;
        };
        let accepts = |sigma: f64, run: &mut LedgerRun| {
            run.price.sigma = sigma;
            judge(&[], run, &limits).is_ok()
        };
        if !accepts(1e4 * high, &mut run) {
            continue;
        }
        let (mut refused, mut least) = (1e-3 * high, 1e4 * high);
        for _ in 0..9 {
            let middle = (refused * least).sqrt();
            match accepts(middle, &mut run) {
                true => least = middle,
                false => refused = middle,
            }
        }
        // The same by the whole way of a description.
        judge(&[], &offer.run(least).unwrap(), &limits).unwrap();
        let strict = strict_limit(limits.epsilon.unwrap());
        let found = (offer.read(least), offer.beyond_guessing(least, strict));
        assert!(found.0 < 0.01, "{offer:?} {limits:?} at {least}: {found:?}");
        assert!(
            found.1 <= 1.01e-4,
            "{offer:?} {limits:?} at {least}: {found:?}"
        );
        worst = (worst.0.max(found.0), worst.1.max(found.1));
        accepted += 1;
    }
    // The search comes near to what it looks for: it is no proof that nothing was tried.
    assert!(worst.1 > 1e-5, "{worst:?}");
}

/// The bound behind it: records times the stricter delta.
#[test]
fn the_deltas_of_a_client_follow_from_its_records() {
    for records in [1, 60, 100, 1000, 10_854, 1_000_000, u64::MAX] {
        for told in [None, Some(0.5), Some(1e-3), Some(1e-9), Some(1e-30)] {
            let Deltas { own, strict } = Deltas::of(records, told);
            assert!(records as f64 * strict <= 1.000_001e-4 || strict <= 1e-30);
            assert!(strict <= own / 1000.0 || strict == 1e-30, "{records}");
            match told {
                Some(told) => assert_eq!(own, told),
                None => assert!(own <= 1e-3 && own * records as f64 <= 0.100_001),
            }
        }
    }
    let Deltas { own, strict } = Deltas::of(10_854, None);
    assert_eq!((own, strict), (9.2e-6, 9.2e-9));
}

/// Runs whose noise this project's own accountant has calibrated for the limit, over at least one
/// pass, are joined: the stricter point costs them less than twice their epsilon plus 2.
#[test]
fn honest_runs_are_joined() {
    let mut tightest = f64::INFINITY;
    let mut tried = 0;
    for records in [100u64, 10_000, 1_000_000] {
        let own = Deltas::of(records, None).own;
        for epsilon in [0.001, 0.1, 0.5, 1.0, 2.0, 8.0] {
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
                judge(&[], &run, &under(epsilon))
                    .unwrap_or_else(|refused| panic!("{mechanism:?} {rounds}: {refused}"));
                let strict = Limits::default().strictly_spent(&counted).unwrap();
                tightest = tightest.min(strict_limit(epsilon) - strict.epsilon.unwrap());
                tried += 1;
            }
        }
    }
    assert!(tried > 130 && tightest > 0.5, "{tried}: {tightest}");
}

const SVRG: Estimator = Estimator::Svrg {
    difference_clip: Some(0.25),
};

/// A run with the least noise for a target.
fn calibrated(
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
        sigma: cost.sigma,
        masked: masked.map(|k| (k.fraction, k.vectors_zero_out, k.vectors_replace_one)),
        rounds,
        delta,
        zero_out,
        epsilon: Some(cost.epsilon),
        claim: "proved".to_string(),
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
                    zero_out,
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
            claim: "proved".to_string(),
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
