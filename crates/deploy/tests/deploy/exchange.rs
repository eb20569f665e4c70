//! The protocol as questions and answers: the same bits as the simulated run, whatever is lost,
//! repeated or late, with a new process for every message.

use std::time::Duration;

use bytes::Bytes;
use soteriafl::persons::Bounded;
use soteriafl_core::random::SecretKey;
use soteriafl_data::{Adjustment, DataDirectories};
use soteriafl_deploy::agreement::{AgreementError, Consent, Terms};
use soteriafl_deploy::budget::{Cost, Limits};
use soteriafl_deploy::coordinator::Coordinator;
use soteriafl_deploy::description::Description;
use soteriafl_deploy::exchange::{self, Answer, ExchangeError, Heard, Question, Questions};
use soteriafl_deploy::holding::Holding;
use soteriafl_deploy::memory::{ClientMemory, ServerMemory};
use soteriafl_deploy::node::{Node, NodeError};
use soteriafl_deploy::participant::{ParticipantError, Position, Secrets};
use soteriafl_deploy::sqlite::ClientSqlite;
use soteriafl_deploy::store::ClientStore;

use super::harness::{Deployment, bits};

pub const NOW: Duration = Duration::ZERO;

pub fn questions(deployment: &Deployment) -> Questions<ServerMemory> {
    Questions::new(deployment.coordinator(NOW).unwrap())
}

/// What a client answers that was started for this question, and ends with it.
fn answer(deployment: &Deployment, client: usize, question: &[u8]) -> Vec<u8> {
    let question = Question::decode(question).unwrap();
    let run = deployment.description.run_id();
    let (id, records) = (client as u32, deployment.records(client));
    let Some(_) = question.run() else {
        let answer = Answer::TakesPart {
            run: Bytes::copy_from_slice(&run),
            client: id,
            records,
            position: None,
            message: None,
            averages: None,
            release: None,
        };
        return answer.encode();
    };
    if let Some(mut opening) = deployment.opening(client).unwrap() {
        let answer = exchange::answer_opening(&mut opening, &question, &run, id, records);
        if let Some(answer) = answer.unwrap() {
            return answer.encode();
        }
    }
    match deployment.participant(client).unwrap() {
        Some(mut participant) => {
            let answer = exchange::answer(&mut participant, &question, &run, id, records);
            answer.unwrap().encode()
        }
        // Its run is over.
        None => {
            let end = Position {
                have: Some(deployment.resolved.rounds),
                pending: None,
                every_round: false,
            };
            let answer = Answer::TakesPart {
                run: Bytes::copy_from_slice(&run),
                client: id,
                records,
                position: Some(end),
                message: None,
                averages: None,
                release: None,
            };
            answer.encode()
        }
    }
}

/// A number below `below`, from a sequence that is the same in every run of the tests.
fn draw(state: &mut u64, below: u64) -> u64 {
    *state = state
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1);
    (*state >> 33) % below
}

/// Plays a run in which one of four questions and one of four answers is lost, some come twice or
/// late, and the server starts anew now and then.
pub fn play(deployment: &mut Deployment, seed: u64) -> Vec<u32> {
    let mut state = seed;
    let mut server = questions(deployment);
    let mut late: Vec<(u64, Vec<u8>)> = Vec::new();
    for turn in 0.. {
        assert!(turn < 10_000, "the run does not end");
        if server.coordinator().acknowledged() {
            break;
        }
        if draw(&mut state, 9) == 0 {
            drop(server);
            server = questions(deployment);
        }
        let missing = server.missing();
        let client = missing[draw(&mut state, missing.len() as u64) as usize];
        let Some(question) = server.ask(client).unwrap() else {
            continue;
        };
        if draw(&mut state, 4) == 0 {
            continue;
        }
        let peer = u64::from(client) + 100;
        let reply = answer(deployment, client as usize, &question);
        // Asked once more, it says the same message.
        if draw(&mut state, 4) == 0 {
            let again = answer(deployment, client as usize, &question);
            let message = |bytes: &[u8]| match Answer::decode(Bytes::copy_from_slice(bytes)) {
                Ok(Answer::TakesPart {
                    message, release, ..
                }) => (message, release),
                other => panic!("{other:?}"),
            };
            assert_eq!(message(&reply), message(&again));
        }
        match draw(&mut state, 8) {
            0 | 1 => continue,
            2 => late.push((peer, reply.clone())),
            _ => {}
        }
        server.hear(peer, reply.into(), NOW).unwrap();
        if draw(&mut state, 3) == 0
            && let Some((peer, old)) = late.pop()
        {
            // Late answers change nothing: the round is over, or has the same bytes.
            server.hear(peer, old.into(), NOW).unwrap();
        }
    }
    bits(server.coordinator().model().unwrap())
}

#[test]
fn lost_repeated_and_late_messages_give_the_simulated_bits() {
    for preset in [
        "soteriafl-gd",
        "soteriafl-sgd",
        "soteriafl-svrg",
        "soteriafl-saga",
        "soteriafl-sag",
        "ldp-srm",
        "ldp-spider",
        "diff2",
    ] {
        let preset = format!("algorithm.preset={preset}");
        for seed in 0..3 {
            let mut deployment = Deployment::new(&[&preset]);
            // Every process ends after one message.
            deployment.checkpoint_every = 1;
            let expected = deployment.simulated();
            assert_eq!(play(&mut deployment, seed), expected, "{preset}, {seed}");
            let rounds = deployment.resolved.rounds;
            for (client, store) in deployment.client_stores.iter_mut().enumerate() {
                let runs = store.runs().unwrap();
                assert_eq!(
                    runs[0].messages,
                    u64::from(rounds),
                    "client {client} has paid once a round"
                );
            }
        }
    }
}

/// The same with a release before the first round.
#[test]
fn a_whitened_run_survives_the_same() {
    for seed in 0..6 {
        let mut deployment = Deployment::whitened();
        deployment.checkpoint_every = 1;
        let expected = deployment.simulated();
        assert_eq!(play(&mut deployment, seed), expected, "{seed}");
        let made = u64::from(deployment.resolved.rounds) + 1;
        for store in &mut deployment.client_stores {
            assert_eq!(store.runs().unwrap()[0].messages, made);
        }
    }
}

/// The server took the message of a copy: this state must not move its shift by its own.
#[test]
fn a_copy_whose_message_was_not_the_one_taken_stops() {
    let mut deployment = Deployment::with_secrets(&["privacy.noise=secure"], true);
    deployment.checkpoint_every = 1;
    let mut server = questions(&deployment);
    for _ in 0..2 {
        for client in server.missing() {
            let question = server.ask(client).unwrap().unwrap();
            let reply = answer(&deployment, client as usize, &question);
            server.hear(u64::from(client), reply.into(), NOW).unwrap();
        }
    }
    // Both copies make a message of the open round; the original's reaches nobody.
    let copy = deployment.client_stores[0].copy();
    let round = server.round();
    let question = server.ask(0).unwrap().unwrap();
    let made = |store: ClientMemory, seed| {
        let secrets: Secrets = Box::new(move |_, _: &_| Ok(SecretKey::simulated(seed, 0).into()));
        let mut participant = deployment
            .participant_over(store, 0, secrets)
            .unwrap()
            .unwrap();
        let (question, run) = (Question::decode(&question), deployment.description.run_id());
        let question = question.unwrap();
        let records = deployment.records(0);
        exchange::answer(&mut participant, &question, &run, 0, records).unwrap()
    };
    let own = made(deployment.client_stores[0].clone(), 1);
    let theirs = made(copy, 2);
    assert_ne!(own, theirs);
    server.hear(0, theirs.encode().into(), NOW).unwrap();
    for client in [1, 2] {
        let question = server.ask(client).unwrap().unwrap();
        let reply = answer(&deployment, client as usize, &question);
        server.hear(u64::from(client), reply.into(), NOW).unwrap();
    }
    assert_eq!(server.round(), round + 1);
    let question = Question::decode(&server.ask(0).unwrap().unwrap()).unwrap();
    let mut original = deployment.participant(0).unwrap().unwrap();
    let (run, records) = (deployment.description.run_id(), deployment.records(0));
    let stopped = exchange::answer(&mut original, &question, &run, 0, records);
    let copied = ExchangeError::Client(ParticipantError::Copied(round));
    assert_eq!(stopped.unwrap_err().to_string(), copied.to_string());
    assert_eq!(original.position().have, Some(round), "nothing was learned");
}

#[test]
fn one_peer_is_one_client_and_the_other_way_round() {
    let deployment = Deployment::new(&[]);
    let mut server = questions(&deployment);
    let join = |client| answer(&deployment, client, &server_question(&deployment));
    let (first, second) = (join(0), join(1));
    assert_eq!(
        server.hear(7, first.clone().into(), NOW).unwrap(),
        Heard::Joined(0)
    );
    let error = server.hear(7, second.into(), NOW).unwrap_err();
    assert!(
        matches!(error, ExchangeError::OtherClient { .. }),
        "{error}"
    );
    let error = server.hear(8, first.clone().into(), NOW).unwrap_err();
    assert!(matches!(error, ExchangeError::Twice { .. }), "{error}");
    // The first peer is gone, and its client comes back by another way.
    server.forget(7);
    server.hear(8, first.into(), NOW).unwrap();
    assert_eq!(server.client_of(8), Some(0));
}

fn server_question(deployment: &Deployment) -> Vec<u8> {
    questions(deployment).introduce()
}

#[test]
fn foreign_bytes_are_errors() {
    let deployment = Deployment::new(&[]);
    let mut server = questions(&deployment);
    for bytes in [&b""[..], b"\x08", b"hello, who is there?", &[0xff; 40]] {
        assert!(Question::decode(bytes).is_err(), "{bytes:?}");
    }
    for bytes in [&b"\x08"[..], b"hello, who is there?", &[0xff; 40]] {
        assert!(server.hear(1, Bytes::copy_from_slice(bytes), NOW).is_err());
    }
    // Nothing at all is how a client says that it takes no part.
    assert_eq!(server.hear(1, Bytes::new(), NOW).unwrap(), Heard::Refused);
    let other = Answer::TakesPart {
        run: Bytes::from_static(&[9; 16]),
        client: 0,
        records: 20,
        position: None,
        message: None,
        averages: None,
        release: None,
    };
    let error = server.hear(1, other.encode().into(), NOW).unwrap_err();
    assert!(matches!(error, ExchangeError::OtherRun(_)), "{error}");
}

/// Agrees to everything, and counts what it was shown.
#[derive(Default)]
pub struct Silent(pub usize);

impl Consent for Silent {
    fn unnamed(&mut self, _: &[String]) {}

    fn adjusted(&mut self, _: &[Adjustment]) {}

    fn bounded(&mut self, _: &Bounded, _: u32) {}

    fn shown(&mut self, _: &Cost<'_>, _: &Description) {
        self.0 += 1;
    }

    fn without_limit(&mut self, _: &Cost<'_>) -> Result<(), AgreementError> {
        Ok(())
    }
}

pub fn node(
    deployment: &Deployment,
    client: usize,
    state: &std::path::Path,
    limit: Option<f64>,
) -> Node {
    let part = format!("synthetic:61x6:{client}/3");
    let terms = Terms {
        client: client as u32,
        holding: Holding::Source {
            share: part.parse().unwrap(),
            directories: DataDirectories::default(),
        },
        limits: Limits {
            epsilon: limit,
            delta: None,
            read: None,
            replace_one: false,
            accept_unknown: false,
        },
        records_per_person: 1,
        person: None,
        disjoint: false,
        shape: None,
        test_seed: deployment.description.test_seed,
    };
    Node::new(state.join(client.to_string()), terms)
}

#[test]
fn nodes_that_remember_only_their_directory_give_the_simulated_bits() {
    remember(Deployment::new(&["data.partition=iid"]));
    remember(Deployment::whitened());
}

fn remember(mut deployment: Deployment) {
    let releases = deployment.resolved.specification().preliminaries().len() as u64;
    let expected = deployment.simulated();
    for keep in [false, true] {
        deployment = deployment.anew();
        let states = tempfile::tempdir().unwrap();
        let mut kept: Vec<Node> = (0..3)
            .map(|client| node(&deployment, client, states.path(), None).kept_open())
            .collect();
        let mut server = questions(&deployment);
        let mut shown = Silent::default();
        while !server.coordinator().acknowledged() {
            for client in server.missing() {
                let Some(question) = server.ask(client).unwrap() else {
                    continue;
                };
                let reply = match keep {
                    true => kept[client as usize].answer(&question, &mut shown),
                    false => node(&deployment, client as usize, states.path(), None)
                        .answer(&question, &mut shown),
                };
                let reply = reply.unwrap().encode();
                server.hear(u64::from(client), reply.into(), NOW).unwrap();
            }
        }
        assert!(shown.0 >= 3, "every client was shown the cost");
        assert_eq!(
            bits(server.coordinator().model().unwrap()),
            expected,
            "{keep}"
        );
        drop(kept);
        for client in 0..3 {
            let path = states.path().join(client.to_string());
            let runs = ClientSqlite::open(&path).unwrap().runs().unwrap();
            assert!(runs[0].finished);
            let made = u64::from(deployment.resolved.rounds) + releases;
            assert_eq!(runs[0].messages, made);
        }
    }
}

#[test]
fn a_run_above_the_limit_is_refused_and_binds_nothing() {
    // No test seed: the noise is secret, and there is a price.
    let overrides = ["privacy.noise=secure"];
    let deployment = Deployment::with_secrets(&overrides, true);
    let states = tempfile::tempdir().unwrap();
    let mut refusing = node(&deployment, 0, states.path(), Some(0.5));
    let question = server_question(&deployment);
    let error = refusing
        .answer(&question, &mut Silent::default())
        .unwrap_err();
    let refused = match &error {
        NodeError::Agreement(error) => matches!(**error, AgreementError::Refused(_)),
        _ => false,
    };
    assert!(refused, "{error}");
    drop(refusing);
    let mut store = ClientSqlite::open(&states.path().join("0")).unwrap();
    assert!(store.runs().unwrap().is_empty());
    assert_eq!(Answer::Refused.encode(), Vec::<u8>::new());
}

#[test]
fn a_server_needs_its_coordinator_only() {
    // What the transport's process loses, the store has.
    let deployment = Deployment::new(&[]);
    let first = questions(&deployment).introduce();
    let again: Coordinator<ServerMemory> = deployment.coordinator(NOW).unwrap();
    assert_eq!(Questions::new(again).introduce(), first);
}
