//! A compressed way down in networked runs: the simulated bits, whatever crashes, gets lost or
//! comes late; clients have nothing of the server's but the model.

use std::time::Duration;

use bytes::Bytes;
use soteriafl_core::compress::{Downlink, DownlinkKind, Rounding};
use soteriafl_core::protocol::{Round, ServerState};
use soteriafl_core::random::PublicSeed;
use soteriafl_core::wire;
use soteriafl_deploy::participant::ParticipantError;
use soteriafl_deploy::sqlite::ServerSqlite;
use soteriafl_deploy::store::{ClosedRound, ServerStore};

use crate::crashes::{every_step, run};
use crate::exchange::play;
use crate::harness::{Deployment, Session, bits, next_message};

const FORMS: [&str; 5] = ["sign", "natural", "qsgd:4", "rand-k:0.5", "rand-k:0.5+sign"];

fn downlink(form: &str) -> String {
    format!("algorithm.downlink={form}")
}

#[test]
fn all_estimators_and_forms_equal_the_simulated_run() {
    for form in FORMS {
        for estimator in ["gd", "sgd", "svrg", "saga", "recursive"] {
            for more in [
                &["privacy.noise=secure"][..],
                match estimator {
                    "recursive" => &["algorithm.keep=1", "algorithm.participation=0.6"],
                    _ => &["algorithm.momentum=0.5", "algorithm.participation=0.6"],
                },
                &["algorithm.shift=off", "data.weighting=equal"],
            ] {
                let (form, estimator) =
                    (downlink(form), format!("algorithm.estimator={estimator}"));
                let overrides = [&[form.as_str(), &estimator], more].concat();
                let deployment = Deployment::new(&overrides);
                assert_eq!(run(&deployment).0, deployment.simulated(), "{overrides:?}");
            }
        }
    }
}

#[test]
fn a_failure_at_every_step_is_survived() {
    let sign = downlink("sign");
    for preset in [
        "soteriafl-sgd",
        "soteriafl-svrg",
        "soteriafl-saga",
        "ldp-spider",
    ] {
        every_step(&[&format!("algorithm.preset={preset}"), &sign]);
    }
    every_step(&["algorithm.momentum=0.5", &downlink("rand-k:0.5+qsgd:4")]);
}

#[test]
fn lost_repeated_and_late_messages_give_the_simulated_bits() {
    for preset in [
        "soteriafl-gd",
        "soteriafl-svrg",
        "soteriafl-saga",
        "ldp-srm",
    ] {
        let preset = format!("algorithm.preset={preset}");
        let mut deployment = Deployment::new(&[&preset, &downlink("rand-k:0.5+sign")]);
        deployment.checkpoint_every = 1;
        let expected = deployment.simulated();
        assert_eq!(play(&mut deployment, 1), expected, "{preset}");
    }
}

/// Who has missed most of the run gets one vector, the model, and what was told since.
#[test]
fn a_client_that_is_far_behind_gets_the_model_alone() {
    let deployment = Deployment::new(&[
        "algorithm.rounds=24",
        "algorithm.momentum=0.5",
        "deployment.quorum=2",
        "deployment.deadline=1",
        &downlink("sign"),
    ]);
    let mut now = Duration::ZERO;
    let mut server = deployment.coordinator(now).unwrap();
    for client in 0..3 {
        let joined = server.join(client as u32, deployment.records(client), now);
        joined.unwrap();
    }
    let mut parties: Vec<_> = (0..3)
        .map(|client| deployment.participant(client).unwrap().unwrap())
        .collect();
    let mut sessions: Vec<_> = parties
        .iter_mut()
        .enumerate()
        .map(|(client, party)| Session::open(&mut server, client, party).unwrap())
        .collect();
    while server.round() < 18 {
        for client in 1..3 {
            let party = &mut parties[client];
            while sessions[client]
                .deliver_next(&mut server, client, party)
                .unwrap()
            {}
            let (_, message) = next_message(&server, party).unwrap().unwrap();
            server.submit(client as u32, message, now).unwrap();
        }
        now += Duration::from_secs(2);
        server.tick(now).unwrap();
    }
    for restarted in [false, true] {
        if restarted {
            server = deployment.coordinator(now).unwrap();
        }
        let told = server.catch_up(0, parties[0].position()).unwrap();
        let state = told.snapshot.expect("a state instead of eighteen rounds");
        assert_eq!(state.model.len(), deployment.start.len());
        assert!(state.shift.is_empty() && state.velocity.is_empty() && state.target.is_empty());
    }
    let mut session = Session::open(&mut server, 0, &mut parties[0]).unwrap();
    while session
        .deliver_next(&mut server, 0, &mut parties[0])
        .unwrap()
    {}
    let model = bits(server.model().unwrap());
    assert_eq!(bits(parties[0].replica().model()), model);
    let (_, message) = next_message(&server, &mut parties[0]).unwrap().unwrap();
    server.submit(0, message, now).unwrap();
}

/// An average in full, bytes cut off, another round's: refused, and the client is as before.
#[test]
fn a_client_takes_nothing_else_for_what_is_told() {
    let deployment = Deployment::new(&[&downlink("rand-k:0.5+sign")]);
    let mut participant = deployment.participant(0).unwrap().unwrap();
    let d = deployment.start.len();
    let kind = DownlinkKind {
        coordinates: Some(d / 2),
        rounding: Rounding::Sign,
    };
    assert_eq!(deployment.resolved.downlink, Some(kind));
    let form = Downlink::new(kind, d, PublicSeed(deployment.resolved.seed)).unwrap();
    let told = |round: Round| {
        let mut bytes = Vec::new();
        wire::put_downlink_header(&form, round, &mut bytes);
        bytes.extend(0.5f32.to_le_bytes());
        bytes.push(1);
        bytes
    };
    let mut full = Vec::new();
    wire::put_average(&vec![0.5; d], 0, &mut full);
    let mut nan = told(0);
    nan[wire::HEADER_LEN..wire::HEADER_LEN + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    let wrong = [full, nan, told(1), told(0)[..12].to_vec(), Vec::new()];
    for bytes in wrong {
        let error = participant.closed(0, false, &bytes).unwrap_err();
        assert!(matches!(error, ParticipantError::Average { .. }), "{error}");
        assert_eq!(bits(participant.replica().model()), bits(&deployment.start));
    }
    participant.closed(0, false, &told(0)).unwrap();
    assert_ne!(bits(participant.replica().model()), bits(&deployment.start));
}

fn closed(round: Round, uncompressed: &'static [u8]) -> ClosedRound {
    ClosedRound {
        round,
        accepted: vec![1],
        average: Bytes::from_static(b"told"),
        uncompressed: Bytes::from_static(uncompressed),
        values: 3,
        uplink: 40,
    }
}

fn state(round: Round, target: Vec<f32>) -> ServerState {
    ServerState {
        round,
        model: vec![1.0, 2.0],
        shift: vec![0.5; 2],
        velocity: Vec::new(),
        target,
    }
}

/// What a server needs to start again is on its disk, and no longer than it is needed.
#[test]
fn averages_are_kept_until_the_next_state() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = ServerSqlite::open(directory.path()).unwrap();
    store.begin("a run", &state(0, vec![3.0, 4.0])).unwrap();
    store.close(&closed(0, b"the average"), &[], None).unwrap();
    assert_eq!(store.round(0).unwrap(), closed(0, b"the average"));
    assert_eq!(store.round(0).unwrap().averaged(), b"the average");
    let later = state(2, vec![5.0, 6.0]);
    store
        .close(&closed(1, b"another one"), &[], Some(&later))
        .unwrap();
    store.close(&closed(2, b"a third one"), &[], None).unwrap();
    drop(store);
    let mut store = ServerSqlite::open(directory.path()).unwrap();
    assert_eq!(store.load().unwrap().averages, [4, 4, 4]);
    assert_eq!(store.round(1).unwrap(), closed(1, b""));
    assert_eq!(store.round(2).unwrap(), closed(2, b"a third one"));
    assert_eq!(store.snapshot(2).unwrap(), later);
    assert_eq!(store.snapshot(0).unwrap().target, [3.0, 4.0]);
}

/// A state of the version before goes on: its rounds have nothing but averages.
#[test]
fn states_of_the_version_before_go_on() {
    let directory = tempfile::tempdir().unwrap();
    drop(ServerSqlite::open(directory.path()).unwrap());
    let path = directory.path().join("server.sqlite");
    let database = rusqlite::Connection::open(&path).unwrap();
    database
        .execute_batch(
            "ALTER TABLE rounds DROP COLUMN uncompressed;
             ALTER TABLE states DROP COLUMN target;
             DROP TABLE released;
             INSERT INTO run VALUES (1, 'a run');
             INSERT INTO rounds VALUES (0, x'01', x'746f6c64', 3, 40);
             INSERT INTO states VALUES (0, x'0000803f00000040', x'0000003f0000003f', x'');
             PRAGMA user_version = 1;",
        )
        .unwrap();
    drop(database);
    let mut store = ServerSqlite::open(directory.path()).unwrap();
    let found = store.round(0).unwrap();
    assert_eq!(found, closed(0, b""));
    assert_eq!(found.averaged(), b"told");
    assert_eq!(store.snapshot(0).unwrap(), state(0, Vec::new()));
    store.close(&closed(1, b"new"), &[], None).unwrap();
    drop(store);
    let mut store = ServerSqlite::open(directory.path()).unwrap();
    assert_eq!(store.round(1).unwrap(), closed(1, b"new"));
}
