//! What several runs on the same records cost together.

use soteria_node::deploy::budget::{Priced, Refusal, check_limit, price, spent};
use soteria_node::deploy::store::LedgerRun;

use crate::world::World;

fn runs(count: u8, messages: u64) -> Vec<LedgerRun> {
    let world = World::new(&[
        "data.source=synthetic:3000x6",
        "privacy.sigma=0.1",
        "algorithm.rounds=20",
    ]);
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
    use soteria_accountant::event::{Adjacency, Release, ShiftMixture};
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
        let mixture = ShiftMixture::new(shifts.clone(), probabilities.clone()).unwrap();
        let event = Release::new(mixture, *sigma).unwrap().times(20 * count);
        let exact = soteria_accountant::epsilon(&[event], *delta, Adjacency::ReplaceOne).unwrap();
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
    let world = World::new(&["privacy.sigma=0"]);
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
