//! A coordinator and a client that are told anything in any order: joins, messages, positions,
//! averages. Neither panics, the run has no more rounds than were agreed on, and the client never
//! makes two messages for one round.
#![no_main]

use std::time::Duration;

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use soteriafl_deploy::participant::Position;

#[allow(dead_code)]
#[path = "../../crates/deploy/tests/deploy/harness.rs"]
mod harness;

use harness::{Deployment, bits, next_message};

#[derive(Arbitrary, Clone, Debug)]
enum Call {
    Join {
        client: u8,
        records: Option<u64>,
    },
    /// The honest message, with some bytes written over it.
    Submit {
        client: u8,
        at: u8,
        bytes: Vec<u8>,
    },
    SubmitBytes {
        client: u8,
        bytes: Vec<u8>,
    },
    Acknowledge {
        client: u8,
    },
    CatchUp {
        client: u8,
        have: Option<u32>,
        pending: Option<u32>,
        every_round: bool,
    },
    Tick {
        seconds: u16,
    },
    /// The client hears of a closed round: what the coordinator has, or other bytes.
    Closed {
        round: Option<u32>,
        accepted: bool,
        average: Option<Vec<u8>>,
    },
    /// The client is started again.
    Restart,
}

fuzz_target!(|calls: Vec<Call>| {
    thread_local! {
        static RUNS: [Deployment; 2] = ["none", "rand-k:0.5+sign"].map(|form| {
            let downlink = format!("algorithm.downlink={form}");
            Deployment::new(&["deployment.quorum=2", "deployment.deadline=30", &downlink])
        });
    }
    RUNS.with(|runs| {
        let [plain, compressed] = runs;
        play(&plain.anew(), calls.clone());
        play(&compressed.anew(), calls);
    });
});

fn play(run: &Deployment, calls: Vec<Call>) {
    let mut now = Duration::ZERO;
    let mut coordinator = run.coordinator(now).expect("a new run");
    let mut participant = run
        .participant(0)
        .expect("a new client")
        .expect("its run");
    let rounds = participant.replica().rounds();
    let mut made = vec![None; rounds as usize];
    for call in calls.into_iter().take(64) {
        match call {
            Call::Join { client, records } => {
                let honest =
                    (usize::from(client) < run.clients()).then(|| run.records(client.into()));
                let records = records.or(honest).unwrap_or_default();
                let _ = coordinator.join(client.into(), records, now);
            }
            Call::Submit { client, at, bytes } => {
                if let Ok(Some((round, message))) = next_message(&coordinator, &mut participant) {
                    let first = made[round as usize].get_or_insert_with(|| message.clone());
                    assert_eq!(*first, message, "a second message for round {round}");
                    let mut message = message.to_vec();
                    let places = message.iter_mut().skip(at.into());
                    places.zip(bytes).for_each(|(place, byte)| *place = byte);
                    let _ = coordinator.submit(client.into(), message.into(), now);
                }
            }
            Call::SubmitBytes { client, bytes } => {
                let _ = coordinator.submit(client.into(), bytes.into(), now);
            }
            Call::Acknowledge { client } => {
                let _ = coordinator.acknowledge(client.into());
            }
            Call::CatchUp {
                client,
                have,
                pending,
                every_round,
            } => {
                let position = Position {
                    have,
                    pending,
                    every_round,
                };
                let _ = coordinator.may_follow(client.into(), position);
                let _ = coordinator.catch_up(client.into(), position);
            }
            Call::Tick { seconds } => {
                now += Duration::from_secs(seconds.into());
                let _ = coordinator.tick(now);
            }
            Call::Closed {
                round,
                accepted,
                average,
            } => {
                let own = participant.replica().round();
                let told = coordinator.round() > own;
                let stored = told.then(|| coordinator.closed(own).expect("a closed round"));
                let bytes = average.or(stored.map(|closed| closed.average.to_vec()));
                let before = bits(participant.replica().model());
                if participant
                    .closed(round.unwrap_or(own), accepted, &bytes.unwrap_or_default())
                    .is_err()
                {
                    assert_eq!(before, bits(participant.replica().model()));
                }
                assert!(participant.replica().model().iter().all(|x| x.is_finite()));
            }
            Call::Restart => match run.participant(0) {
                Ok(Some(again)) => participant = again,
                _ => return,
            },
        }
        assert!(coordinator.round() <= rounds);
    }
}
