//! What several runs on the same records cost together.

use soteria_node::deploy::Hash;
use soteria_node::deploy::budget::{self, Limits, MAX_DELTA, Priced, Refusal, Spent, price};
use soteria_node::deploy::store::LedgerRun;

use crate::world::World;

fn spent(runs: &[LedgerRun], data: &Hash, whole: Option<&LedgerRun>) -> Result<Spent, Refusal> {
    budget::spent(runs, data, whole, false)
}

const OPEN: Limits = Limits {
    epsilon: None,
    delta: MAX_DELTA,
    replace_one: false,
};

fn check_limit(spent: &Spent, epsilon: Option<f64>) -> Result<(), Refusal> {
    let price = Priced {
        delta: spent.delta,
        ..Priced::default()
    };
    budget::check_limits(spent, &price, false, &Limits { epsilon, ..OPEN })
}

const LARGE: [&str; 3] = [
    "data.source=synthetic:3000x6",
    "privacy.sigma=0.1",
    "algorithm.rounds=20",
];

fn runs(count: u8, messages: u64) -> Vec<LedgerRun> {
    let world = World::with_secrets(&LARGE, true);
    (0..count)
        .map(|number| LedgerRun {
            hash: [number; 32],
            messages,
            data: [1; 32],
            ..world.ledger_run(0)
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

/// More runs cost more, never less than the exact cost of all their messages together, and fewer messages
/// cost no more.
#[test]
fn several_runs_compose() {
    use soteria_accountant::{Adjacency, Question, ShiftMixture};
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
    let few = spent(&runs(4, 1), &[1; 32], None).unwrap();
    assert!(few.epsilon.unwrap() < last);
}

#[test]
fn limits_count_what_was_spent_before() {
    let all = runs(2, 20);
    let first = spent(&[], &[1; 32], Some(&all[0])).unwrap();
    let alone = first.epsilon.unwrap();
    check_limit(&first, Some(alone)).unwrap();
    check_limit(&first, None).unwrap();
    let both = spent(&all[..1], &[1; 32], Some(&all[1])).unwrap();
    let refused = check_limit(&both, Some(alone * 1.01)).unwrap_err();
    assert!(matches!(refused, Refusal::Budget { .. }), "{refused}");
    // Other records do not matter.
    let other = LedgerRun {
        data: [9; 32],
        ..all[1].clone()
    };
    let found = spent(&all[..1], &[9; 32], Some(&other)).unwrap();
    check_limit(&found, Some(alone)).unwrap();
}

/// A run without noise costs what nobody can say, and no limit allows it.
#[test]
fn what_cannot_be_accounted_is_never_within_a_limit() {
    let world = World::with_secrets(&["privacy.sigma=0"], true);
    let price = price(&world.description, 20).unwrap();
    assert_eq!((price.epsilon, price.claim.as_str()), (None, "no noise"));
    let run = LedgerRun {
        price,
        ..world.ledger_run(0)
    };
    let found = spent(&[], &run.data, Some(&run)).unwrap();
    assert!(check_limit(&found, Some(1e300)).is_err());
    // Nor does a proved run afterwards repair it.
    let mut before = run;
    before.messages = 1;
    let after = LedgerRun {
        data: before.data,
        ..runs(1, 0).remove(0)
    };
    let found = spent(&[before], &after.data, Some(&after)).unwrap();
    assert_eq!(found.epsilon, None);
}

/// A server that names a large delta gets a small epsilon for no noise at all; the client refuses, in a new
/// run and in the ledger's sum, and says at which delta and for which neighbours it judges.
#[test]
fn a_large_delta_is_refused() {
    let world = World::with_secrets(&[&LARGE[..], &["privacy.delta=0.05"]].concat(), true);
    let run = world.ledger_run(0);
    let found = spent(&[], &run.data, Some(&run)).unwrap();
    let error = budget::check_limits(&found, &run.price, false, &OPEN).unwrap_err();
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
    let found = spent(&[before], &run.data, Some(&run)).unwrap();
    assert!(budget::check_limits(&found, &run.price, false, &OPEN).is_err());
    let told = Limits {
        delta: 0.05,
        ..OPEN
    };
    budget::check_limits(&found, &run.price, false, &told).unwrap();
    // Whoever reads the description hears of it.
    let warnings = &world.description.warnings;
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
    let world = World::with_secrets(
        &[&LARGE[..], &["privacy.adjacency=zero-out"]].concat(),
        true,
    );
    let run = world.ledger_run(0);
    let own = spent(&[], &run.data, Some(&run)).unwrap();
    let strict = budget::spent(&[], &run.data, Some(&run), true).unwrap();
    assert!(own.zero_out && !strict.zero_out);
    // The same noise and the same clip: as if the run had said replace-one.
    assert_eq!(strict.epsilon, runs(1, 0)[0].price.epsilon);
    assert!(strict.epsilon.unwrap() > own.epsilon.unwrap());
    let limits = Limits {
        epsilon: own.epsilon,
        ..OPEN
    };
    budget::check_limits(&own, &run.price, false, &limits).unwrap();
    let error = budget::check_limits(&strict, &run.price, false, &limits).unwrap_err();
    assert!(error.to_string().contains("replace-one"), "{error}");
}

/// Noise that anybody can compute hides nothing: the ledger knows no epsilon from then on.
#[test]
fn a_test_seed_is_booked_as_unknown() {
    let world = World::new(&LARGE);
    let run = LedgerRun {
        messages: 1,
        ..world.ledger_run(0)
    };
    assert_eq!(
        (run.price.epsilon, run.price.claim.as_str()),
        (None, "test seed")
    );
    let limits = Limits {
        epsilon: Some(1e6),
        ..OPEN
    };
    let total = spent(&[], &run.data, Some(&run)).unwrap();
    budget::check_limits(&total, &run.price, true, &limits).unwrap();
    let next = LedgerRun {
        data: run.data,
        ..runs(1, 0).remove(0)
    };
    let total = spent(&[run], &next.data, Some(&next)).unwrap();
    assert_eq!(total.epsilon, None);
    assert!(budget::check_limits(&total, &next.price, false, &limits).is_err());
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

/// A file that has grown is another data set; whoever counts everything in the state counts the old one too.
#[test]
fn everything_in_a_state_can_be_counted() {
    let mut all = runs(3, 20);
    all[1].data = [2; 32];
    let count = |whole| budget::spent_in(all[..2].iter(), whole, false).unwrap();
    let new = LedgerRun {
        data: [3; 32],
        ..all[2].clone()
    };
    let alone = spent(&all, &[3; 32], Some(&new)).unwrap();
    assert_eq!((alone.epsilon, alone.runs), (new.price.epsilon, 1));
    let counted = count(Some(&new));
    let same = spent(&runs(3, 20), &[1; 32], None).unwrap();
    assert_eq!((counted.epsilon, counted.runs), (same.epsilon, 3));
    assert_eq!(count(None).runs, 2);
    let refused = check_limit(&counted, alone.epsilon).unwrap_err();
    assert!(matches!(refused, Refusal::Budget { .. }), "{refused}");
}
