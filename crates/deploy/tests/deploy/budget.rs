//! What several runs on the same records cost together.

use soteriafl::{Claim, Reason};
use soteriafl_accountant::Adjacency;
use soteriafl_deploy::Hash;
use soteriafl_deploy::budget::{Counted, Limits, Priced, Refusal, Spent, check_limits, price};
use soteriafl_deploy::store::LedgerRun;

use crate::harness::Deployment;

/// What the runs on some records have spent, at the deltas of a client that names none.
fn spent(runs: &[LedgerRun], data: &Hash, whole: Option<&LedgerRun>) -> Result<Spent, Refusal> {
    let runs = runs.iter().filter(|run| run.data == *data);
    OPEN.spent(&Counted::new(runs, whole, false))
}

const OPEN: Limits = Limits {
    epsilon: None,
    delta: None,
    read: None,
    replace_one: false,
    accept_unknown: false,
};

/// Whether a client that has spent `before` joins a run.
pub fn judge(before: &[LedgerRun], run: &LedgerRun, limits: &Limits) -> Result<(), Refusal> {
    let counted = Counted::new(before, Some(run), limits.replace_one);
    check_limits(&counted, &limits.judged(&counted)?, run, limits)
}

fn under(epsilon: Option<f64>) -> Limits {
    Limits { epsilon, ..OPEN }
}

const LARGE: [&str; 3] = [
    "data.source=synthetic:3000x6",
    "privacy.sigma=0.1",
    "algorithm.rounds=20",
];

fn runs(count: u8, messages: u64) -> Vec<LedgerRun> {
    let deployment = Deployment::with_secrets(&LARGE, true);
    (0..count)
        .map(|number| LedgerRun {
            hash: [number; 32],
            messages,
            data: [1; 32],
            ..deployment.ledger_run(0)
        })
        .collect()
}

#[test]
fn a_single_run_costs_its_whole_schedule() {
    let one = runs(1, 3);
    let found = spent(&one, &[1; 32], None).unwrap();
    assert_eq!(found.epsilon, one[0].price.epsilon);
    assert_eq!(spent(&one, &[2; 32], None).unwrap().epsilon, Some(0.0));
    // Not yet begun, all of it counts; begun, it counts once.
    let new = spent(&[], &[1; 32], Some(&one[0])).unwrap();
    assert_eq!(new.epsilon, found.epsilon);
    assert_eq!(
        spent(&one, &[1; 32], Some(&one[0])).unwrap().epsilon,
        found.epsilon
    );
}

/// More runs cost more, never less than the exact cost of all their messages together, however many
/// of them were made.
#[test]
fn several_runs_compose() {
    use soteriafl_accountant::{Adjacency, Question, ShiftMixture};
    let all = runs(4, 20);
    let mut last = 0.0;
    for count in 1..=4u64 {
        let found = spent(&all[..count as usize], &[1; 32], None).unwrap();
        let epsilon = found.epsilon.unwrap();
        let Priced {
            shifts,
            probabilities,
            sigma,
            delta,
            ..
        } = &all[0].price;
        let mixture = ShiftMixture::new(shifts, probabilities).unwrap();
        let question = Question::new(mixture, 20 * count, *delta, Adjacency::ReplaceOne);
        let exact = question.cost(*sigma).unwrap().epsilon;
        if count > 1 {
            // The mask of random-k is not in `exact`; without it the filter lies above.
            assert!(all[0].price.masked.is_none() || epsilon > 0.0);
            assert!(epsilon > last, "{epsilon} after {last}");
        }
        if all[0].price.masked.is_none() {
            assert!(epsilon >= exact, "{epsilon} below {exact}");
        }
        last = epsilon;
    }
    // A run that was left counts in full: whether it would be left was not known beforehand.
    let few = spent(&runs(4, 1), &[1; 32], None).unwrap();
    assert_eq!(few.epsilon, Some(last));
    // One without a message does not count.
    let none = spent(&runs(4, 0), &[1; 32], None).unwrap();
    assert_eq!((none.epsilon, none.runs), (Some(0.0), 0));
}

#[test]
fn limits_count_what_was_spent_before() {
    let all = runs(2, 20);
    let alone = all[0].price.epsilon;
    judge(&[], &all[0], &under(alone)).unwrap();
    judge(&[], &all[0], &OPEN).unwrap();
    let refused = judge(&all[..1], &all[1], &under(alone.map(|limit| limit * 1.01))).unwrap_err();
    assert!(matches!(refused, Refusal::Budget { .. }), "{refused}");
    // A run that was joined without a message costs nothing.
    judge(&runs(1, 0), &all[1], &under(alone)).unwrap();
}

/// A run without noise costs what nobody can say, and no limit allows it.
#[test]
fn what_cannot_be_accounted_is_never_within_a_limit() {
    let deployment = Deployment::with_secrets(&["privacy.sigma=0"], true);
    let price = price(&deployment.description, 20).unwrap();
    assert_eq!(
        (price.epsilon, price.claim.to_string().as_str()),
        (None, "no noise")
    );
    let run = LedgerRun {
        price,
        ..deployment.ledger_run(0)
    };
    assert!(judge(&[], &run, &under(Some(1e300))).is_err());
    // Nor does a proved run afterwards repair it.
    let mut before = run;
    before.messages = 1;
    let after = LedgerRun {
        data: before.data,
        ..runs(1, 0).remove(0)
    };
    let found = spent(std::slice::from_ref(&before), &after.data, Some(&after)).unwrap();
    assert_eq!(found.epsilon, None);
    let refused = judge(&[before], &after, &under(Some(1e300))).unwrap_err();
    assert!(matches!(refused, Refusal::Unknown { .. }), "{refused}");
}

/// A server that names a large delta gets a small epsilon for no noise at all; the client refuses,
/// in a new run and in the ledger's sum, and says at which delta and for which neighbours it
/// judges.
#[test]
fn a_large_delta_is_refused() {
    let deployment =
        Deployment::with_secrets(&[&LARGE[..], &["privacy.delta=0.05"]].concat(), true);
    let run = deployment.ledger_run(0);
    let error = judge(&[], &run, &OPEN).unwrap_err();
    assert!(matches!(error, Refusal::Delta { .. }), "{error}");
    let said = error.to_string();
    assert!(
        said.contains("delta 0.05") && said.contains("replace-one"),
        "{said}"
    );
    // A smaller delta in the ledger does not hide it.
    let before = LedgerRun {
        data: run.data,
        ..runs(1, 20).remove(0)
    };
    assert!(judge(std::slice::from_ref(&before), &run, &OPEN).is_err());
    let told = Limits {
        delta: Some(0.05),
        ..OPEN
    };
    judge(&[before], &run, &told).unwrap();
    // Whoever reads the description hears of it.
    let warnings = &deployment.description.warnings;
    assert!(
        warnings
            .iter()
            .any(|warning| warning.contains("privacy.delta")),
        "{warnings:?}"
    );
}

/// A run may speak of zeroed records; a client may judge it for replaced ones, at the very noise.
#[test]
fn the_client_chooses_the_neighbours() {
    let deployment = Deployment::with_secrets(
        &[&LARGE[..], &["privacy.adjacency=zero-out"]].concat(),
        true,
    );
    let run = deployment.ledger_run(0);
    let [own, strict] = [false, true].map(|replace_one| {
        let counted = Counted::new([], Some(&run), replace_one);
        OPEN.spent(&counted).unwrap()
    });
    assert!(own.adjacency == Adjacency::ZeroOut && strict.adjacency == Adjacency::ReplaceOne);
    // The same noise and the same clip: as if the run had said replace-one.
    let same = spent(&[], &[1; 32], Some(&runs(1, 0)[0])).unwrap();
    assert_eq!(strict.epsilon, same.epsilon);
    assert!(strict.epsilon.unwrap() > own.epsilon.unwrap());
    judge(&[], &run, &under(own.epsilon)).unwrap();
    let replaced = Limits {
        replace_one: true,
        ..under(own.epsilon)
    };
    let error = judge(&[], &run, &replaced).unwrap_err();
    assert!(error.to_string().contains("replace-one"), "{error}");
}

/// Noise that anybody can compute hides nothing: under a limit it is refused unless that is said to
/// be meant, and the ledger knows no epsilon from then on.
#[test]
fn a_test_seed_is_refused_under_a_limit_and_booked_as_unknown() {
    let deployment = Deployment::new(&LARGE);
    let run = LedgerRun {
        messages: 1,
        ..deployment.ledger_run(0)
    };
    assert_eq!(
        (run.price.epsilon, run.price.claim.to_string().as_str()),
        (None, "test seed")
    );
    let limits = under(Some(1e6));
    let refused = judge(&[], &run, &limits).unwrap_err();
    assert!(matches!(refused, Refusal::Unknown { .. }), "{refused}");
    assert!(refused.to_string().contains("--accept-unknown-cost"));
    judge(&[], &run, &OPEN).unwrap();
    let accepting = Limits {
        accept_unknown: true,
        ..limits
    };
    judge(&[], &run, &accepting).unwrap();
    let again = LedgerRun {
        hash: [9; 32],
        ..run.clone()
    };
    judge(std::slice::from_ref(&run), &again, &accepting).unwrap();
    // Not even that lets a run with a claim follow: its limit cannot be kept.
    let next = LedgerRun {
        data: run.data,
        ..runs(1, 0).remove(0)
    };
    let before = [run];
    assert_eq!(
        spent(&before, &next.data, Some(&next)).unwrap().epsilon,
        None
    );
    for limits in [limits, accepting] {
        let refused = judge(&before, &next, &limits).unwrap_err();
        assert!(
            refused.to_string().contains("an earlier run of this state"),
            "{refused}"
        );
    }
}

/// Prices are read back from a ledger as they were written, to the last bit.
#[test]
fn prices_survive_their_text() {
    let mut price = runs(1, 0).remove(0).price;
    for step in 0..2000u32 {
        price.sigma = 0.1 * f64::from(step).sqrt() / 3.0;
        let text = serde_json::to_string(&price).unwrap();
        let read: Priced = serde_json::from_str(&text).unwrap();
        assert_eq!(read.sigma.to_bits(), price.sigma.to_bits());
    }
}

/// What an earlier version wrote beside a run is read, and costs the same.
#[test]
fn prices_of_the_version_before_are_read() {
    let price = runs(1, 0).remove(0).price;
    let mut text: serde_json::Value = serde_json::to_value(&price).unwrap();
    text["epsilon_replace_one"] = serde_json::json!(0.25);
    let read: Priced = serde_json::from_value(text).unwrap();
    assert_eq!(read, price);
}

/// What is shown and judged is computed from the release, not from a number that was written down
/// with it.
#[test]
fn a_stale_epsilon_is_not_believed() {
    let honest = runs(1, 20);
    let mut stale = honest.clone();
    stale[0].price.epsilon = Some(1e-6);
    assert_eq!(
        spent(&stale, &[1; 32], None).unwrap(),
        spent(&honest, &[1; 32], None).unwrap()
    );
    let limits = under(Some(1e-3));
    assert!(judge(&[], &stale[0], &limits).is_err());
}

/// Whatever the noise depends on, a run does not go on with another one than was paid for.
#[test]
fn another_release_than_was_paid_for_is_noticed() {
    let price = runs(1, 0).remove(0).price;
    assert_eq!(price.difference(&price.clone()), None);
    // What is only said about it may change.
    let other = Priced {
        epsilon: Some(0.1),
        ..price.clone()
    };
    assert_eq!(price.difference(&other), None);
    let changes: [fn(&mut Priced); 8] = [
        |price| price.sigma *= 1.0 + f64::EPSILON,
        |price| price.shifts[1] *= 1.0 + f64::EPSILON,
        |price| price.probabilities[1] *= 0.5,
        |price| price.masked = Some((0.5, 1, 2)),
        |price| price.rounds += 1,
        |price| price.records += 1,
        |price| price.delta *= 2.0,
        |price| price.adjacency = Adjacency::ZeroOut,
    ];
    for change in changes {
        let mut other = price.clone();
        change(&mut other);
        assert!(price.difference(&other).is_some(), "{other:?}");
    }
}

/// A file that has grown or shrunk is another data set, and everything in the state counts
/// nevertheless.
#[test]
fn everything_in_a_state_is_counted() {
    let mut all = runs(3, 20);
    all[1].data = [2; 32];
    let new = LedgerRun {
        data: [3; 32],
        ..all[2].clone()
    };
    let counted = Counted::new(&all[..2], Some(&new), false);
    assert_eq!(counted.records(), 3 * new.price.records);
    let found = OPEN.spent(&counted).unwrap();
    assert_eq!(found.runs, 3);
    let alone = OPEN.spent(&Counted::new([], Some(&new), false)).unwrap();
    assert!(found.epsilon.unwrap() > 1.5 * alone.epsilon.unwrap());
    let refused = judge(&all[..2], &new, &under(alone.epsilon)).unwrap_err();
    assert!(matches!(refused, Refusal::Budget { .. }), "{refused}");
}

/// How many records have been in a message: of one source never more than it has, of several their
/// sum.
#[test]
fn records_are_counted_once() {
    let run = runs(1, 1).remove(0);
    let records = run.price.records;
    let of = |number: u8, data: u8, part| LedgerRun {
        hash: [number; 32],
        data: [data; 32],
        part,
        ..run.clone()
    };
    let count = |runs: &[LedgerRun]| Counted::new(runs, None, false).records();
    assert_eq!(count(&[]), 0);
    assert_eq!(count(&[of(0, 1, None), of(1, 1, None)]), records);
    assert_eq!(count(&[of(0, 1, None), of(1, 2, None)]), 2 * records);
    // Dealt by one seed: the same part is the same records, another part others.
    let part = |number, part| of(number, 1, Some((part, 3)));
    assert_eq!(count(&[part(0, 0)]), records);
    assert_eq!(count(&[part(0, 0), part(1, 0)]), records);
    assert_eq!(count(&[part(0, 0), part(1, 1)]), 2 * records);
    // Dealt anew, by another seed or from fewer rows; and by what cannot be read.
    let anew = |number: u8, change: &dyn Fn(&str) -> String| LedgerRun {
        description: change(&run.description),
        ..part(number, 0)
    };
    let seed = |number: u8| {
        anew(number, &|text: &str| {
            let changed = text.replace("\nseed = 11\n", &format!("\nseed = {number}\n"));
            assert_ne!(changed, text);
            changed
        })
    };
    assert_eq!(count(&[seed(0), seed(1), seed(1)]), 2 * records);
    let unreadable = |number| anew(number, &|_| String::new());
    assert_eq!(count(&[unreadable(0), unreadable(1)]), 2 * records);
    let many: Vec<LedgerRun> = (0..9).map(seed).collect();
    assert_eq!(count(&many), 3 * (records + 1));
}

/// Whoever is refused hears what would help, and whether anything has left.
#[test]
fn refusals_say_what_helps_and_what_has_left() {
    let run = runs(1, 0).remove(0);
    let said = |before: &[LedgerRun], run: &LedgerRun, limits: &Limits| {
        judge(before, run, limits).unwrap_err().to_string()
    };
    let at = |run: &LedgerRun, delta| {
        run.price
            .cost(Adjacency::ReplaceOne, delta)
            .unwrap()
            .unwrap()
    };
    // The delta is all that is wrong: within the limit at the run's, not at the client's.
    let large = LedgerRun {
        price: Priced {
            delta: 1e-3,
            ..run.price.clone()
        },
        ..run.clone()
    };
    let between = under(Some(1.01 * at(&large, 1e-3)));
    let text = said(&[], &large, &between);
    assert!(text.contains("hint: the run names delta 1e-3"), "{text}");
    // It is not: the run costs too much at its own delta, too; or another one was before.
    let text = said(&[], &large, &under(Some(0.9 * at(&large, 1e-3))));
    assert!(
        !text.contains("privacy.delta") && text.contains("privacy.epsilon"),
        "{text}"
    );
    let before = LedgerRun {
        hash: [7; 32],
        messages: 1,
        ..run.clone()
    };
    let text = said(std::slice::from_ref(&before), &large, &between);
    assert!(
        !text.contains("privacy.delta") && text.contains("soteria ledger"),
        "{text}"
    );
    // A test before: on other records it may be left out, on the same ones it may not.
    let mut unknown = before;
    (unknown.price.epsilon, unknown.price.claim) = (None, Claim::Withheld(Reason::TestSeed));
    for (data, offered) in [(run.data, false), ([9; 32], true)] {
        unknown.data = data;
        let text = said(std::slice::from_ref(&unknown), &run, &under(Some(100.0)));
        assert!(text.contains("an earlier run of this state"), "{text}");
        assert_eq!(text.contains("--disjoint-data-sets"), offered, "{text}");
    }
    // With messages of the run before, and without.
    let tiny = Limits {
        delta: Some(1e-9),
        ..OPEN
    };
    for (messages, left) in [
        (0, "; nothing has been sent"),
        (6, "; nothing more has been sent"),
    ] {
        let run = LedgerRun {
            messages,
            ..large.clone()
        };
        for limits in [under(Some(1e-6)), tiny] {
            let text = said(&[], &run, &limits);
            assert!(text.contains(left), "{text}");
        }
        let text = said(std::slice::from_ref(&unknown), &run, &under(Some(1.0)));
        assert!(text.contains(left), "{text}");
    }
}

/// Losses that no memory holds are no reason to say that the ledger cannot be added up.
#[test]
fn a_run_with_losses_beyond_any_grid_has_a_price() {
    let settings = [
        "algorithm.preset=soteriafl-sgd",
        "algorithm.compressor=rand-k",
        "algorithm.coordinates=own",
        "algorithm.fraction=0.05",
        "algorithm.rounds=10",
        "algorithm.batch=1e-7",
        "privacy.clip=1",
        "privacy.sigma=3.3e6",
        "privacy.accountant=rdp",
    ];
    let description = crate::attack::describe(1_000_000, &settings.map(str::to_string));
    let price = price(&description, 1_000_000).unwrap();
    assert!(price.epsilon.is_some(), "{price:?}");
}

/// A run that names a tiny delta is judged at it; later ones are not.
#[test]
fn a_tiny_delta_makes_no_later_run_dearer() {
    let tiny = |mut run: LedgerRun| {
        run.price.delta = 1e-25;
        run
    };
    let all = runs(2, 20);
    let before = [tiny(all[0].clone())];
    let alone = spent(&[], &[1; 32], Some(&before[0])).unwrap();
    assert_eq!(alone.delta, 1e-25);
    assert_eq!(
        spent(&before, &[1; 32], Some(&all[1])).unwrap(),
        spent(&all[..1], &[1; 32], Some(&all[1])).unwrap()
    );
}
