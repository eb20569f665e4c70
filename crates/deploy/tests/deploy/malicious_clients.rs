//! Clients that do not keep to the protocol cost the server nothing but the answer.

use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;
use soteriafl::run;
use soteriafl_core::wire;
use soteriafl_deploy::averaging::LARGEST;
use soteriafl_deploy::calibration_cache::{Calibration, MOST_RECORDS};
use soteriafl_deploy::coordinator::{CoordinatorError, Receipt};
use soteriafl_deploy::description::Description;
use soteriafl_deploy::participant::Position;

use crate::harness::{BASE, Deployment, TestCoordinator};

/// Where a message's header has its round.
const ROUND_AT: usize = 2;

const NOW: Duration = Duration::ZERO;

fn begun(deployment: &Deployment) -> TestCoordinator {
    let mut coordinator = deployment.coordinator(NOW).unwrap();
    for client in 0..deployment.clients() {
        coordinator
            .join(client as u32, deployment.records(client), NOW)
            .unwrap();
    }
    coordinator
}

fn honest(deployment: &Deployment, client: usize) -> Bytes {
    let mut participant = deployment.participant(client).unwrap().unwrap();
    participant.message().unwrap().unwrap().1
}

#[test]
fn joins_are_checked() {
    let deployment = Deployment::new(&[]);
    let mut coordinator = deployment.coordinator(NOW).unwrap();
    let message = honest(&deployment, 0);
    let early = coordinator.submit(0, message.clone(), NOW).unwrap_err();
    assert!(matches!(early, CoordinatorError::NotJoined(0)));
    for (client, records) in [(3, 20), (u32::MAX, 20), (0, 0), (0, 4), (0, u64::MAX)] {
        assert!(
            coordinator.join(client, records, NOW).is_err(),
            "{client} {records}"
        );
    }
    coordinator.join(0, deployment.records(0), NOW).unwrap();
    coordinator.join(0, deployment.records(0), NOW).unwrap();
    let other = coordinator
        .join(0, deployment.records(0) + 1, NOW)
        .unwrap_err();
    assert!(matches!(other, CoordinatorError::Records { .. }));
    let early = coordinator.submit(0, message, NOW).unwrap_err();
    assert!(matches!(early, CoordinatorError::NotBegun));
    assert!(coordinator.acknowledge(0).is_err());
}

#[test]
fn the_first_message_of_a_round_stands() {
    let deployment = Deployment::new(&[]);
    let mut coordinator = begun(&deployment);
    let first = honest(&deployment, 0);
    let mut other = first.to_vec();
    let last = other.len() - 1;
    other[last] ^= 1;
    assert_eq!(
        coordinator.submit(0, first.clone(), NOW).unwrap(),
        (Receipt::Received, false)
    );
    assert_eq!(
        coordinator.submit(0, first.clone(), NOW).unwrap(),
        (Receipt::Received, false)
    );
    let error = coordinator.submit(0, other.into(), NOW).unwrap_err();
    assert!(matches!(
        error,
        CoordinatorError::Conflict {
            client: 0,
            round: 0
        }
    ));
    coordinator.submit(1, honest(&deployment, 1), NOW).unwrap();
    let (receipt, closed) = coordinator.submit(2, honest(&deployment, 2), NOW).unwrap();
    assert_eq!(
        (receipt, closed),
        (Receipt::Closed { accepted: true }, true)
    );
    // Late: the recorded outcome, not an error.
    let (receipt, _) = coordinator.submit(0, first, NOW).unwrap();
    assert_eq!(receipt, Receipt::Closed { accepted: true });
    assert_eq!(coordinator.round(), 1);
}

/// Messages that are larger than an honest client's are refused; the largest honest ones are not.
#[test]
fn implausible_messages_are_refused() {
    for compressor in ["rand-k", "identity", "natural", "qsgd"] {
        for noise in ["float", "secure"] {
            let (compressor, noise) = (
                format!("algorithm.compressor={compressor}"),
                format!("privacy.noise={noise}"),
            );
            let deployment = Deployment::new(&[&compressor, &noise]);
            let plan = run::client_plan(&deployment.resolved, &deployment.problem).unwrap();
            let mut coordinator = begun(&deployment);
            let good = honest(&deployment, 0);
            let mut update = Default::default();
            wire::decode(&plan.compressor, 0, &good, &mut update).unwrap();
            let mut bad = good.to_vec();
            match compressor.as_str() {
                // The exponent of the first coordinate, as far up as it goes.
                "algorithm.compressor=natural" => {
                    (bad[wire::HEADER_LEN], bad[wire::HEADER_LEN + 1]) = (0xfc, 0x01);
                }
                "algorithm.compressor=qsgd" => {
                    bad[wire::HEADER_LEN..wire::HEADER_LEN + 4]
                        .copy_from_slice(&1e6f32.to_le_bytes());
                }
                _ => {
                    let last = bad.len() - 4;
                    bad[last..].copy_from_slice(&1e6f32.to_le_bytes());
                }
            }
            let error = coordinator.submit(0, bad.into(), NOW).unwrap_err();
            assert!(
                matches!(error, CoordinatorError::Implausible { .. }),
                "{compressor}: {error}"
            );
            coordinator.submit(0, good, NOW).unwrap();
        }
    }
}

/// The message of an uncompressed client whose coordinates are all `value`.
fn flat(round: u32, deployment: &Deployment, value: f32) -> Bytes {
    let mut bytes = honest(deployment, 0).to_vec();
    bytes[wire::HEADER_LEN..]
        .as_chunks_mut::<4>()
        .0
        .fill(value.to_le_bytes());
    renumber(&mut bytes, round);
    bytes.into()
}

/// Makes a message of round 0 one of another round.
fn renumber(message: &mut [u8], round: u32) {
    message[ROUND_AT..ROUND_AT + 4].copy_from_slice(&round.to_le_bytes());
    assert_eq!(wire::claimed_round(message), Some(round));
}

/// Whatever number of records a client claims, the others' messages are judged as before.
#[test]
fn one_client_does_not_switch_off_the_rules() {
    let compressor = "algorithm.compressor=identity";
    let deployment = Deployment::new(&[compressor]);
    let mut coordinator = deployment.coordinator(NOW).unwrap();
    for records in [MOST_RECORDS + 1, 1 << 40, u64::MAX] {
        let error = coordinator.join(0, records, NOW).unwrap_err();
        assert!(
            matches!(error, CoordinatorError::BadRecords { .. }),
            "{error}"
        );
    }
    let deployment = Deployment::new(&[compressor, "deployment.most_records=30"]);
    assert!(
        deployment
            .coordinator(NOW)
            .unwrap()
            .join(0, 31, NOW)
            .is_err()
    );
    for most in [1 << 12, 1 << 20] {
        let deployment = Deployment::new(&[compressor, &format!("deployment.most_records={most}")]);
        let mut coordinator = deployment.coordinator(NOW).unwrap();
        coordinator.join(0, most, NOW).unwrap();
        for client in 1..3 {
            coordinator
                .join(client, deployment.records(client as usize), NOW)
                .unwrap();
        }
        let error = coordinator
            .submit(1, flat(0, &deployment, 1e6), NOW)
            .unwrap_err();
        assert!(
            matches!(error, CoordinatorError::Implausible { .. }),
            "{most}: {error}"
        );
    }
}

/// Whatever the configuration allows, sizes that would exhaust the accountant's memory are refused
/// before it is asked.
#[test]
fn sizes_beyond_belief_are_refused() {
    let deployment = Deployment::with(
        &BASE.replace("sigma = 0.05", "epsilon = 1.0"),
        &[
            "deployment.most_records=1099511627776",
            "privacy.accountant=pld",
            "privacy.amplification=auto",
        ],
    );
    let mut coordinator = deployment.coordinator(NOW).unwrap();
    let error = coordinator.join(0, 1 << 40, NOW).unwrap_err();
    assert!(
        matches!(error, CoordinatorError::BadRecords { .. }),
        "{error}"
    );
    coordinator.join(0, deployment.records(0), NOW).unwrap();
}

/// Where the caller computes the noise, joining, the last one included, takes none of the
/// accountant's time.
#[test]
fn noise_can_be_computed_elsewhere() {
    let deployment = Deployment::with(&BASE.replace("sigma = 0.05", "epsilon = 4.0"), &[]);
    let mut coordinator = deployment.coordinator(NOW).unwrap().calibrated_by_caller();
    for client in 0..3 {
        let records = deployment.records(client as usize);
        if coordinator.calibrations().look_up(records) == Calibration::Unknown {
            let error = coordinator.join(client, records, NOW).unwrap_err();
            assert!(
                matches!(error, CoordinatorError::Uncalibrated(_)),
                "{error}"
            );
            coordinator.calibrations().compute(records);
        }
        assert_eq!(coordinator.joined(), client as usize);
        coordinator.join(client, records, NOW).unwrap();
    }
    assert!(!coordinator.begun());
    let records = coordinator.to_calibrate().unwrap();
    assert!(coordinator.to_calibrate().is_none());
    let settled = coordinator.calibrations().calibrate(&records);
    assert_eq!(settled.privacy.as_ref().unwrap().sigmas, deployment.sigmas);
    let sigmas: Vec<f64> = settled.sigmas.iter().map(|sigma| sigma.unwrap()).collect();
    assert!(
        sigmas
            .iter()
            .zip(&deployment.sigmas)
            .all(|(more, own)| more >= own)
    );
    coordinator.begin(settled, NOW).unwrap();
    assert!(coordinator.begun() && coordinator.privacy().is_some());
    // Nobody refuses what can be refused at once any later.
    for records in [0, 4, u64::MAX] {
        assert!(matches!(
            coordinator.calibrations().look_up(records),
            Calibration::Refused(_)
        ));
    }
}

/// Whose messages were taken is counted over all rounds, also after a restart.
#[test]
fn taken_messages_are_counted_across_restarts() {
    let deployment = Deployment::new(&[
        "deployment.quorum=2",
        "deployment.deadline=10",
        "algorithm.rounds=3",
    ]);
    let mut coordinator = begun(&deployment);
    for (round, absent) in [2, 0, 2].into_iter().enumerate() {
        for client in (0..3).filter(|client| *client != absent) {
            let mut message = honest(&deployment, client as usize).to_vec();
            renumber(&mut message, round as u32);
            coordinator.submit(client, message.into(), NOW).unwrap();
        }
        let late = NOW + Duration::from_secs(11 * (round as u64 + 1));
        assert!(coordinator.tick(late).unwrap());
    }
    assert_eq!(coordinator.taken(), [2, 3, 1]);
    assert_eq!(deployment.coordinator(NOW).unwrap().taken(), [2, 3, 1]);
}

/// Without clipping there is no rule, but no message leads out of the range of numbers: larger ones
/// are refused, and those that would do it together with the state are left out of their round,
/// again after a restart.
#[test]
fn messages_cannot_make_the_run_diverge() {
    let deployment = Deployment::new(&[
        "algorithm.compressor=identity",
        "privacy.sigma=0",
        "privacy.clip=none",
        "data.standardize=false",
        "algorithm.step_size=10",
    ]);
    let mut coordinator = begun(&deployment);
    for value in [f32::MAX, -f32::MAX, 2.0 * LARGEST] {
        let error = coordinator
            .submit(0, flat(0, &deployment, value), NOW)
            .unwrap_err();
        assert!(
            matches!(error, CoordinatorError::Implausible { .. }),
            "{error}"
        );
    }
    for restart in [false, true] {
        let round = coordinator.round();
        coordinator
            .submit(0, flat(round, &deployment, LARGEST), NOW)
            .unwrap();
        if restart {
            coordinator = deployment.coordinator(NOW).unwrap();
            coordinator
                .submit(0, flat(round, &deployment, LARGEST), NOW)
                .unwrap();
        }
        coordinator
            .submit(1, flat(round, &deployment, 1.0), NOW)
            .unwrap();
        let (_, closed) = coordinator
            .submit(2, flat(round, &deployment, -1.0), NOW)
            .unwrap();
        assert!(closed);
        let mut again = deployment.coordinator(NOW).unwrap();
        for coordinator in [&mut coordinator, &mut again] {
            let closed = coordinator.closed(round).unwrap();
            let accepted = [0, 1, 2].map(|client| closed.accepts(client));
            assert_eq!(accepted, [false, true, true]);
            assert!(
                coordinator
                    .model()
                    .unwrap()
                    .iter()
                    .all(|value| value.abs() < 100.0)
            );
        }
        assert_eq!(coordinator.model(), again.model());
    }
    // What comes from everybody at once is left out too.
    let round = coordinator.round();
    for client in 0..3 {
        coordinator
            .submit(client, flat(round, &deployment, LARGEST), NOW)
            .unwrap();
    }
    assert_eq!(coordinator.closed(round).unwrap().taken(), 0);
    assert_eq!(coordinator.round(), round + 1);
}

#[test]
fn positions_ahead_of_the_server_are_refused() {
    let deployment = Deployment::new(&[]);
    let mut coordinator = begun(&deployment);
    let position = |have, pending| Position {
        have,
        pending,
        every_round: false,
    };
    let ahead = [
        (Some(1), None),
        (Some(0), Some(1)),
        (None, Some(1)),
        (Some(0), Some(u32::MAX)),
    ];
    for (have, pending) in ahead {
        let position = position(have, pending);
        for error in [
            coordinator.may_follow(0, position).unwrap_err(),
            coordinator.catch_up(0, position).unwrap_err(),
        ] {
            assert!(matches!(error, CoordinatorError::Ahead { .. }), "{error}");
        }
    }
    assert!(coordinator.catch_up(9, position(Some(0), None)).is_err());
    assert!(coordinator.catch_up(0, position(Some(0), Some(0))).is_ok());
    assert!(
        coordinator
            .catch_up(0, position(None, None))
            .unwrap()
            .snapshot
            .is_some()
    );
}

/// What may have been spent counts the message for the open round.
#[test]
fn the_open_round_counts_as_spent() {
    let deployment = Deployment::new(&["algorithm.rounds=2"]);
    let mut coordinator = deployment.coordinator(NOW).unwrap();
    assert_eq!(coordinator.messages(), 0);
    coordinator = begun(&deployment);
    assert_eq!((coordinator.round(), coordinator.messages()), (0, 1));
    for round in 0..2 {
        for client in 0..3 {
            let mut message = honest(&deployment, client as usize).to_vec();
            renumber(&mut message, round);
            coordinator.submit(client, message.into(), NOW).unwrap();
        }
        assert_eq!(
            (coordinator.round(), coordinator.messages()),
            (round + 1, 2)
        );
    }
    assert!(coordinator.finished());
}

/// Where to start from is the cheapest way that skips no snapshot coin, for every position.
#[test]
fn catching_up_does_not_skip_coins() {
    let deployment = Deployment::new(&[
        "algorithm.preset=soteriafl-svrg",
        "algorithm.snapshot_probability=0.4",
        "algorithm.compressor=identity",
        "algorithm.rounds=24",
    ]);
    let mut coordinator = begun(&deployment);
    let plan = run::client_plan(&deployment.resolved, &deployment.problem).unwrap();
    for round in 0..24 {
        for client in 0..3 {
            let mut message = honest(&deployment, client as usize).to_vec();
            renumber(&mut message, round);
            coordinator.submit(client, message.into(), NOW).unwrap();
        }
        let mut again = deployment.coordinator(NOW).unwrap();
        for have in 0..=round + 1 {
            let position = Position {
                have: Some(have),
                pending: None,
                every_round: false,
            };
            let from = coordinator.catch_up(0, position).unwrap().from;
            assert_eq!(again.catch_up(0, position).unwrap().from, from);
            let skipped = |coin: &u32| plan.public_seed.snapshot_coin(*coin, 0.4);
            let last = (have..round + 1).rev().find(skipped);
            assert!(
                from >= have && last.is_none_or(|last| from <= last),
                "{have} {from} {last:?}"
            );
        }
    }
    // Outcomes of all rounds, however old.
    for round in (0..24).chain(0..24) {
        let mut message = honest(&deployment, 0).to_vec();
        renumber(&mut message, round);
        let (receipt, _) = coordinator.submit(0, message.into(), NOW).unwrap();
        assert_eq!(receipt, Receipt::Closed { accepted: true });
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// Arbitrary bytes, with and without an honest header, are answered and change nothing.
    #[test]
    fn arbitrary_messages_change_nothing(
        cut in 0usize..80,
        bytes in prop::collection::vec(any::<u8>(), 0..80),
        client in 0u32..5,
    ) {
        thread_local! {
            static WORLD: Deployment = Deployment::new(&[]);
        }
        WORLD.with(|deployment| {
            let deployment = deployment.anew();
            let mut coordinator = begun(&deployment);
            let mut message = honest(&deployment, 0).to_vec();
            message.truncate(cut);
            message.extend(bytes);
            let _ = coordinator.submit(client, message.into(), NOW);
            assert_eq!(coordinator.round(), 0);
        });
    }

    #[test]
    fn arbitrary_descriptions_are_refused(text in "\\PC{0,200}", records in 0usize..100) {
        prop_assert!(Description::parse(&text, records).is_err());
        let text = format!("# SoteriaFL run description, version 2\n{text}");
        prop_assert!(Description::parse(&text, records).is_err());
    }
}
