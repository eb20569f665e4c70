//! Clients that do not keep to the protocol cost the server nothing but the answer.

use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;
use soteria_core::wire;
use soteria_node::deploy::coordinator::{CoordinatorError, Receipt};
use soteria_node::deploy::description::Description;
use soteria_node::deploy::participant::Position;
use soteria_node::run;

use crate::world::{Coordinates, World};

const NOW: Duration = Duration::ZERO;

fn begun(world: &World) -> Coordinates {
    let mut coordinator = world.coordinator(NOW).unwrap();
    for client in 0..world.clients() {
        coordinator
            .join(client as u32, world.records(client), NOW)
            .unwrap();
    }
    coordinator
}

fn honest(world: &World, client: usize) -> Bytes {
    let mut participant = world.participant(client).unwrap().unwrap();
    participant.message().unwrap().unwrap().1
}

#[test]
fn joins_are_checked() {
    let world = World::new(&[]);
    let mut coordinator = world.coordinator(NOW).unwrap();
    let message = honest(&world, 0);
    let early = coordinator.submit(0, message.clone(), NOW).unwrap_err();
    assert!(matches!(early, CoordinatorError::NotJoined(0)));
    for (client, records) in [(3, 20), (u32::MAX, 20), (0, 0), (0, 4), (0, u64::MAX)] {
        assert!(
            coordinator.join(client, records, NOW).is_err(),
            "{client} {records}"
        );
    }
    coordinator.join(0, world.records(0), NOW).unwrap();
    coordinator.join(0, world.records(0), NOW).unwrap();
    let other = coordinator.join(0, world.records(0) + 1, NOW).unwrap_err();
    assert!(matches!(other, CoordinatorError::Records { .. }));
    let early = coordinator.submit(0, message, NOW).unwrap_err();
    assert!(matches!(early, CoordinatorError::NotBegun));
    assert!(coordinator.acknowledge(0).is_err());
}

#[test]
fn the_first_message_of_a_round_stands() {
    let world = World::new(&[]);
    let mut coordinator = begun(&world);
    let first = honest(&world, 0);
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
    coordinator.submit(1, honest(&world, 1), NOW).unwrap();
    let (receipt, closed) = coordinator.submit(2, honest(&world, 2), NOW).unwrap();
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
            let world = World::new(&[&compressor, &noise]);
            let plan = run::client_plan(&world.resolved, &world.problem).unwrap();
            let mut coordinator = begun(&world);
            let good = honest(&world, 0);
            let mut update = Default::default();
            wire::decode(&plan.compressor, 0, &good, &mut update).unwrap();
            let mut bad = good.to_vec();
            match compressor.as_str() {
                // The exponent of the first coordinate, as far up as it goes.
                "algorithm.compressor=natural" => {
                    (bad[wire::HEADER_LEN], bad[wire::HEADER_LEN + 1]) = (0xfe, 0x01);
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

#[test]
fn positions_ahead_of_the_server_are_refused() {
    let world = World::new(&[]);
    let mut coordinator = begun(&world);
    let position = |have| Position {
        have,
        pending: Some(u32::MAX),
        every_round: false,
    };
    assert!(coordinator.catch_up(0, position(Some(1))).is_err());
    assert!(coordinator.catch_up(9, position(Some(0))).is_err());
    assert!(coordinator.catch_up(0, position(Some(0))).is_ok());
    assert!(
        coordinator
            .catch_up(0, position(None))
            .unwrap()
            .snapshot
            .is_some()
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Arbitrary bytes, with and without an honest header, are answered and change nothing.
    #[test]
    fn arbitrary_messages_change_nothing(
        cut in 0usize..80,
        bytes in prop::collection::vec(any::<u8>(), 0..80),
        client in 0u32..5,
    ) {
        thread_local! {
            static WORLD: World = World::new(&[]);
        }
        WORLD.with(|world| {
            let mut coordinator = begun(&World::new(&[]));
            let mut message = honest(world, 0).to_vec();
            message.truncate(cut);
            message.extend(bytes);
            let _ = coordinator.submit(client, message.into(), NOW);
            assert_eq!(coordinator.round(), 0);
        });
    }

    #[test]
    fn arbitrary_descriptions_are_refused(text in "\\PC{0,200}", records in 0usize..100) {
        prop_assert!(Description::parse(&text, records).is_err());
        let text = format!("# SoteriaFL run description, version 1\n{text}");
        prop_assert!(Description::parse(&text, records).is_err());
    }
}
