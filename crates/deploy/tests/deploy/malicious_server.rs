//! A server may say anything. Whatever it says, a client makes at most one message for each round
//! of the run that it agreed to, pays for it before it leaves, and never says two things in one
//! round.

use std::sync::{Arc, Mutex};

use soteriafl::run;
use soteriafl_core::protocol::{Client, Server, ServerState};
use soteriafl_core::random::SecretKey;
use soteriafl_core::wire;
use soteriafl_deploy::description::Description;
use soteriafl_deploy::digest;
use soteriafl_deploy::memory::ClientMemory;
use soteriafl_deploy::participant::{Participant, ParticipantError, Parts};
use soteriafl_deploy::store::ClientStore;

use crate::harness::{Deployment, TestParticipant, bits};

fn average(deployment: &Deployment, round: u32, value: f32) -> Vec<u8> {
    let values = vec![value; deployment.start.len()];
    let mut bytes = Vec::new();
    wire::put_average(&values, round, &mut bytes);
    bytes
}

fn state(deployment: &Deployment, round: u32, value: f32) -> ServerState {
    let values = || vec![value; deployment.start.len()];
    ServerState {
        round,
        model: values(),
        shift: values(),
        velocity: Vec::new(),
        target: Vec::new(),
    }
}

fn client(deployment: &Deployment) -> TestParticipant {
    deployment.participant(0).unwrap().unwrap()
}

fn paid(deployment: &Deployment) -> usize {
    deployment.client_stores[0].all_rows().len()
}

#[test]
fn averages_that_are_none_are_refused_and_cost_nothing() {
    let deployment = Deployment::new(&[]);
    let mut participant = client(&deployment);
    let first = participant.message().unwrap().unwrap();
    let mut nan = average(&deployment, 0, 1.0);
    let last = nan.len() - 4;
    nan[last..].copy_from_slice(&f32::NAN.to_le_bytes());
    let mut infinite = nan.clone();
    infinite[last..].copy_from_slice(&f32::INFINITY.to_le_bytes());
    let mut long = average(&deployment, 0, 1.0);
    long.push(0);
    for lie in [
        nan,
        infinite,
        long,
        Vec::new(),
        vec![1; 9],
        average(&deployment, 1, 1.0),
    ] {
        let error = participant.closed(0, true, &lie).unwrap_err();
        assert!(
            matches!(error, ParticipantError::Average { round: 0, .. }),
            "{error}"
        );
        // Nothing has changed: the same message for the same round.
        assert_eq!(participant.message().unwrap().unwrap(), first);
    }
    assert_eq!(paid(&deployment), 1);
}

#[test]
fn huge_values_end_the_run_before_another_message() {
    let deployment = Deployment::new(&["algorithm.rounds=7", "algorithm.step_size=100"]);
    let mut participant = client(&deployment);
    participant.message().unwrap();
    let error = participant
        .closed(0, true, &average(&deployment, 0, 3e38))
        .unwrap_err();
    assert!(matches!(error, ParticipantError::Diverged(0)), "{error}");
    assert!(matches!(
        participant.message().unwrap_err(),
        ParticipantError::Failed
    ));
    // Started again, it still has said one thing in round 0.
    let mut again = client(&deployment);
    assert_eq!(again.message().unwrap().unwrap().0, 0);
    assert_eq!(paid(&deployment), 1);
}

/// Models at the far ends of the numbers give messages that are finite and paid for, nothing else.
#[test]
fn far_models_give_finite_messages() {
    for preset in ["soteriafl-gd", "soteriafl-svrg", "soteriafl-saga"] {
        let preset = format!("algorithm.preset={preset}");
        let deployment = Deployment::new(&[&preset, "privacy.noise=secure"]);
        let mut participant = client(&deployment);
        for (round, value) in [(1, 1e30f32), (3, -3e38), (5, f32::MIN_POSITIVE)] {
            participant
                .jump(state(&deployment, round, value), false, 0)
                .unwrap();
            let (made, message) = participant.message().unwrap().unwrap();
            assert_eq!(made, round);
            let plan = run::client_plan(&deployment.resolved, &deployment.problem).unwrap();
            let mut update = Default::default();
            wire::decode(&plan.compressor, round, &message, &mut update).unwrap();
        }
        assert_eq!(paid(&deployment), 3);
    }
}

#[test]
fn rounds_repeated_reordered_skipped_or_beyond_the_run_give_nothing_more() {
    let deployment = Deployment::new(&[]);
    let rounds = deployment.resolved.rounds;
    let mut participant = client(&deployment);
    let mut made = Vec::new();
    for round in 0..rounds {
        made.push(participant.message().unwrap().unwrap());
        let gap = participant.closed(round + 1, true, &average(&deployment, round + 1, 0.1));
        assert!(matches!(gap, Err(ParticipantError::Gap { .. })));
        participant
            .closed(round, round % 2 == 0, &average(&deployment, round, 0.1))
            .unwrap();
        // The past again, with another average: nothing happens.
        for past in 0..=round {
            participant
                .closed(past, false, &average(&deployment, past, 9.0))
                .unwrap();
        }
    }
    assert!(participant.message().unwrap().is_none(), "the run is over");
    assert!(
        participant
            .closed(rounds, true, &average(&deployment, rounds, 0.1))
            .is_err()
    );
    assert!(
        participant
            .jump(state(&deployment, rounds + 1, 0.0), true, 0)
            .is_err()
    );
    assert!(
        participant
            .jump(state(&deployment, 2, 0.0), true, 0)
            .is_err()
    );
    assert!(participant.message().unwrap().is_none());
    assert_eq!(paid(&deployment), rounds as usize);
    let mut seen: Vec<u32> = made.iter().map(|(round, _)| *round).collect();
    seen.dedup();
    assert_eq!(seen.len(), rounds as usize);
}

/// The same round with another model, after a restart: the stored bytes, never new ones.
#[test]
fn another_model_for_the_same_round_gets_the_stored_bytes() {
    for preset in ["soteriafl-sgd", "soteriafl-svrg", "soteriafl-saga"] {
        let preset = format!("algorithm.preset={preset}");
        let deployment = Deployment::new(&[&preset]);
        let mut participant = client(&deployment);
        participant.message().unwrap();
        participant
            .closed(0, true, &average(&deployment, 0, 0.1))
            .unwrap();
        let (_, honest) = participant.message().unwrap().unwrap();
        drop(participant);
        // Started again, it is told that round 0 ended differently.
        let mut again = client(&deployment);
        again
            .closed(0, true, &average(&deployment, 0, -5.0))
            .unwrap();
        let (round, bytes) = again.message().unwrap().unwrap();
        assert_eq!((round, bytes), (1, honest), "{preset}");
        assert_eq!(paid(&deployment), 2);
        // And when that round is over as well, the lie shows.
        let error = again.closed(1, true, &average(&deployment, 1, 0.1));
        assert!(error.is_ok(), "it lives through what it has sent");
        drop(again);
        let mut third = client(&deployment);
        third
            .closed(0, true, &average(&deployment, 0, -5.0))
            .unwrap();
        let error = third
            .closed(1, true, &average(&deployment, 1, 0.1))
            .unwrap_err();
        assert!(
            matches!(error, ParticipantError::Past(1)),
            "{preset}: {error}"
        );
    }
}

#[test]
fn states_of_the_wrong_shape_are_refused() {
    let deployment = Deployment::new(&[]);
    let mut participant = client(&deployment);
    let good = state(&deployment, 2, 0.5);
    let mut lies = vec![good.clone(); 6];
    lies[0].model.push(0.0);
    lies[1].model[0] = f32::NAN;
    lies[2].shift[0] = f32::INFINITY;
    lies[3].shift.clear();
    lies[4].velocity.push(1.0);
    lies[5].round = deployment.resolved.rounds + 1;
    for lie in lies {
        let error = participant.jump(lie, false, 0).unwrap_err();
        assert!(matches!(error, ParticipantError::State { .. }), "{error}");
    }
    participant.jump(good, false, 0).unwrap();
    assert_eq!(participant.message().unwrap().unwrap().0, 2);
    assert_eq!(paid(&deployment), 1);
}

/// A false outcome harms the model, not the budget: the shift is public.
#[test]
fn false_outcomes_cost_nothing() {
    for lie in [false, true] {
        let deployment = Deployment::new(&[]);
        let mut participant = client(&deployment);
        for round in 0..deployment.resolved.rounds {
            participant.message().unwrap();
            participant
                .closed(round, lie, &average(&deployment, round, 0.01))
                .unwrap();
        }
        assert_eq!(paid(&deployment), deployment.resolved.rounds as usize);
    }
}

#[test]
fn another_start_than_the_agreed_one_is_refused() {
    let deployment = Deployment::new(&[]);
    let plan = Arc::new(run::client_plan(&deployment.resolved, &deployment.problem).unwrap());
    let core = Client::new(
        0,
        Arc::clone(&plan),
        Arc::clone(&deployment.problem.shards[0]),
        deployment.resolved.specification().sampling(),
        deployment.sigmas[0],
        SecretKey::simulated(0, 0),
    )
    .unwrap();
    let mut store = ClientMemory::default();
    store.begin(&deployment.ledger_run(0)).unwrap();
    let mut participant = Participant::new(Parts {
        store,
        trained_on: None,
        run: *deployment.description.hash(),
        client: core,
        compressor: plan.compressor.clone(),
        replica: Server::new(
            run::server_plan(
                &deployment.resolved,
                &deployment.problem.preparation.model,
                &plan,
                vec![1.0],
            ),
            vec![0.0; deployment.start.len()],
        ),
        awaits_start: Some(digest(&vec![0.25; deployment.start.len()])),
        secrets: Box::new(|_, _| Ok(SecretKey::simulated(1, 0).into())),
        checkpoint_every: 3,
    })
    .unwrap();
    assert!(participant.position().have.is_none());
    assert!(
        participant.message().unwrap().is_none(),
        "no start, no message"
    );
    assert!(
        participant
            .closed(0, true, &average(&deployment, 0, 0.1))
            .is_err()
    );
    let state = |value: f32| ServerState {
        shift: vec![0.0; deployment.start.len()],
        ..state(&deployment, 0, value)
    };
    assert!(participant.jump(state(0.5), false, 0).is_err());
    participant.jump(state(0.25), false, 0).unwrap();
    assert_eq!(participant.message().unwrap().unwrap().0, 0);
}

/// A run description with anything changed is another run, or none.
#[test]
fn a_changed_description_is_another_run() {
    let deployment = Deployment::new(&[]);
    let text = deployment.description.text();
    for (from, to) in [
        ("rounds = 7", "rounds = 8"),
        ("sigma = 0.05", "sigma = 0.04"),
        ("clip = 1.0", "clip = 2.0"),
        ("batch = 5.0", "batch = 6.0"),
        ("accountant = \"rdp\"", "accountant = \"pld\""),
        ("seed = 11", "seed = 12"),
    ] {
        assert!(text.contains(from), "{from} in {text}");
        let other = Description::parse(&text.replace(from, to), 20).unwrap();
        assert_ne!(other.hash(), deployment.description.hash());
    }
    for (from, to) in [
        ("dimension = 7", "dimension = 8"),
        ("features = 6", "features = 60"),
        ("rounds = 7", "rounds = 7.0"),
        ("rounds = 7", "rounds = 07"),
        ("step_size = 0.3", "step_size = \"theory\""),
        (
            "step_size = 0.3",
            "step_size = 0.3\nstep_size_from_data = true",
        ),
        ("scale = \"none\"", "scale = \"spectral\""),
        ("weighting = ", "standardize = true\nweighting = "),
        ("sigma = 0.05", "sigma = 0.05 # trust me"),
        ("---\n", "----\n"),
    ] {
        assert!(text.contains(from), "{from} in {text}");
        let found = Description::parse(&text.replace(from, to), 20);
        assert!(found.is_err(), "{from} -> {to}");
    }
    // A batch that this client's records do not fill.
    assert!(Description::parse(text, 4).is_err());
}

/// Two copies of a machine whose generators are in the same state: a server that leads them to one
/// model by two ways, past two snapshots, gets no noise twice. What makes the secrets is the same
/// only where everything is.
#[test]
fn copies_that_lived_through_other_things_have_other_secrets() {
    let deployment = Deployment::new(&[
        "algorithm.preset=soteriafl-svrg",
        "algorithm.snapshot_probability=1",
        "algorithm.shift=off",
        "model.regularizer=none",
    ]);
    let purposes = |lead: &dyn Fn(&mut TestParticipant)| {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (kept, keys) = (Arc::clone(&seen), deployment.keys(0));
        let secrets = Box::new(move |round, purpose: &[u8; 32]| {
            kept.lock().unwrap().push((round, *purpose));
            Ok(keys.clone())
        });
        let store = ClientMemory::default();
        let mut client = deployment
            .participant_over(store, 0, secrets)
            .unwrap()
            .unwrap();
        lead(&mut client);
        let (round, _) = client.message().unwrap().unwrap();
        let (made, purpose) = *seen.lock().unwrap().last().unwrap();
        assert_eq!((round, made), (2, 2));
        (bits(client.replica().model()), purpose)
    };
    let close = |client: &mut TestParticipant, round, value| {
        let average = average(&deployment, round, value);
        client.closed(round, false, &average).unwrap();
    };
    let by_rounds = |client: &mut TestParticipant| {
        close(client, 0, 0.1);
        close(client, 1, 0.0);
    };
    let (model, first) = purposes(&by_rounds);
    assert_eq!(purposes(&by_rounds), (model.clone(), first));
    // The snapshot would be another one, the model is the same.
    let by_other_rounds = |client: &mut TestParticipant| {
        close(client, 0, 0.0);
        close(client, 1, 0.1);
    };
    let by_state = |client: &mut TestParticipant| {
        let mut copy = deployment.participant(1).unwrap().unwrap();
        by_rounds(&mut copy);
        client.jump(copy.replica().state(), false, 0).unwrap();
    };
    let spoken = |client: &mut TestParticipant| {
        client.message().unwrap();
        by_rounds(client);
    };
    let mut seen = vec![first];
    for lead in [
        &by_other_rounds as &dyn Fn(&mut TestParticipant),
        &by_state,
        &spoken,
    ] {
        let (led, purpose) = purposes(lead);
        assert_eq!(led, model);
        assert!(!seen.contains(&purpose));
        seen.push(purpose);
    }
}
