//! A crash at every storage step of every party, before and after the step took hold: the run goes
//! on and ends with the bytes of the simulated run, and no ledger says less than what was sent.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use soteriafl::run as setup;
use soteriafl_core::protocol::{Client, Server};
use soteriafl_core::random::SecretKey;
use soteriafl_deploy::coordinator::CoordinatorError;
use soteriafl_deploy::digest;
use soteriafl_deploy::memory::{ClientMemory, PlannedFailure};
use soteriafl_deploy::participant::{Opening, Participant, ParticipantError, Parts};
use soteriafl_deploy::store::ClientStore;

use crate::harness::{
    Deployment, PartyError, Session, TestCoordinator, TestParticipant, bits, next_message,
};

const NOW: Duration = Duration::ZERO;

/// Everything that ever left a client: by client and round.
type Sent = BTreeMap<(usize, u32), Bytes>;

/// Runs everybody in turn until the end; whoever fails is started again. Returns the final model
/// and how often somebody failed.
pub fn run(deployment: &Deployment) -> (Vec<u32>, u32) {
    let mut sent = Sent::new();
    let mut crashes = 0;
    let mut coordinator: Option<TestCoordinator> = None;
    let mut parties: Vec<Option<(TestParticipant, Option<Session>)>> =
        (0..deployment.clients()).map(|_| None).collect();
    let mut over = vec![false; deployment.clients()];
    for _ in 0..2000 {
        let Some(server) = &mut coordinator else {
            match deployment.coordinator(NOW) {
                Ok(server) => coordinator = Some(server),
                Err(_) => {
                    crashes += 1;
                    deployment.server_store.failure(PlannedFailure::heal);
                }
            }
            // A new server knows nobody's connection.
            for party in parties.iter_mut().flatten() {
                party.1 = None;
            }
            continue;
        };
        if server.acknowledged() {
            return (bits(server.model().unwrap()), crashes);
        }
        for client in 0..deployment.clients() {
            match turn(
                deployment,
                server,
                client,
                &mut parties[client],
                &mut over[client],
                &mut sent,
            ) {
                Ok(()) => {}
                Err(PartyError::Server(CoordinatorError::Store(_) | CoordinatorError::Failed)) => {
                    crashes += 1;
                    deployment.server_store.failure(PlannedFailure::heal);
                    coordinator = None;
                    break;
                }
                Err(PartyError::Client(ParticipantError::Store(_) | ParticipantError::Failed)) => {
                    crashes += 1;
                    deployment.client_stores[client].failure(PlannedFailure::heal);
                    parties[client] = None;
                }
                Err(other) => panic!("{other:?}"),
            }
        }
    }
    panic!("the run does not end");
}

/// One client's turn before the first round; its process ends with it.
fn open_turn(
    deployment: &Deployment,
    server: &mut TestCoordinator,
    client: usize,
    opening: &mut Opening<ClientMemory>,
    sent: &mut Sent,
) -> Result<(), PartyError> {
    let id = client as u32;
    server
        .join(id, deployment.records(client), NOW)
        .map_err(PartyError::Server)?;
    let number = opening.averages();
    let message = match server.open_release() {
        Some(open) if open == number => opening.message(number).map_err(PartyError::Client)?,
        _ => None,
    };
    if let Some(message) = &message {
        // Paid before it leaves, and the same whenever it leaves.
        let stored = deployment.client_stores[client].all_releases();
        assert_eq!(stored[number as usize].message, message[..]);
        let runs = deployment.client_stores[client].clone().runs().unwrap();
        assert!(runs[0].messages > u64::from(number));
        let first = sent.entry((client, u32::MAX - number));
        assert_eq!(first.or_insert_with(|| message.clone()), message);
    }
    let average = server.release(id, number, message, NOW);
    match average.map_err(PartyError::Server)? {
        Some(average) => opening.heard(number, &average).map_err(PartyError::Client),
        None => Ok(()),
    }
}

/// One client's turn.
fn turn(
    deployment: &Deployment,
    server: &mut TestCoordinator,
    client: usize,
    party: &mut Option<(TestParticipant, Option<Session>)>,
    over: &mut bool,
    sent: &mut Sent,
) -> Result<(), PartyError> {
    if *over {
        return server
            .acknowledge(client as u32)
            .map_err(PartyError::Server);
    }
    let Some((participant, session)) = party else {
        match deployment.opening(client).map_err(PartyError::Client)? {
            Some(mut opening) if !opening.finished() => {
                open_turn(deployment, server, client, &mut opening, sent)?;
            }
            Some(_) => {
                let participant = deployment.participant(client);
                *party = participant
                    .map_err(PartyError::Client)?
                    .map(|one| (one, None));
            }
            None => *over = true,
        }
        return Ok(());
    };
    let Some(open) = session else {
        server
            .join(client as u32, deployment.records(client), NOW)
            .map_err(PartyError::Server)?;
        *session = Some(Session::open(server, client, participant)?);
        return Ok(());
    };
    open.deliver_next(server, client, participant)?;
    if participant.replica().finished() {
        *over = true;
        return Ok(());
    }
    if let Some((round, message)) = next_message(server, participant).map_err(PartyError::Client)? {
        // Paid before it leaves, and the same whenever it leaves.
        let rows = deployment.client_stores[client].all_rows();
        let row = rows
            .iter()
            .find(|row| row.round == round)
            .expect("an unpaid message");
        assert_eq!(row.message, message);
        let first = sent
            .entry((client, round))
            .or_insert_with(|| message.clone());
        assert_eq!(
            *first, message,
            "client {client} said two things in round {round}"
        );
        server
            .submit(client as u32, message, NOW)
            .map_err(PartyError::Server)?;
    }
    Ok(())
}

pub fn every_step(overrides: &[&str]) {
    every_step_of(&Deployment::new(overrides), overrides);
}

fn every_step_of(deployment: &Deployment, overrides: &[&str]) {
    let (found, crashes) = run(deployment);
    let expected = if deployment.split {
        found.clone()
    } else {
        deployment.simulated()
    };
    assert_eq!((found == expected, crashes), (true, 0), "{overrides:?}");
    let mut failures = 0;
    // Party 0 is the server, then the clients.
    for party in 0..=deployment.clients() {
        for after in [false, true] {
            for step in 0.. {
                let deployment = deployment.anew();
                let plan = PlannedFailure::at(step, after);
                match party {
                    0 => deployment.server_store.failure(|current| *current = plan),
                    client => {
                        deployment.client_stores[client - 1].failure(|current| *current = plan)
                    }
                }
                let (found, crashes) = run(&deployment);
                assert_eq!(
                    found, expected,
                    "party {party}, step {step}, after: {after}"
                );
                for (client, store) in deployment.client_stores.iter().enumerate() {
                    let rows = store.all_rows();
                    assert_eq!(
                        rows.len(),
                        deployment.resolved.rounds as usize,
                        "client {client}"
                    );
                    assert!(
                        rows.iter().all(|row| row.coins.is_none()),
                        "coins outlive the run"
                    );
                }
                if crashes == 0 {
                    break;
                }
                failures += 1;
            }
        }
    }
    // Steps: joins, rounds, checkpoints, ends.
    let least = 8 * deployment.resolved.rounds as usize + 4;
    assert!(failures > least, "only {failures} failures were played");
}

#[test]
fn sgd_survives_a_failure_at_every_step() {
    every_step(&[]);
}

#[test]
fn a_release_before_the_rounds_survives_a_failure_at_every_step() {
    every_step_of(&Deployment::whitened(), &[]);
}

#[test]
fn svrg_survives_a_failure_at_every_step() {
    every_step(&[
        "algorithm.preset=soteriafl-svrg",
        "algorithm.snapshot_probability=0.4",
    ]);
}

#[test]
fn recursive_estimates_survive_a_failure_at_every_step() {
    every_step(&["algorithm.preset=ldp-srm"]);
    every_step(&[
        "algorithm.preset=ldp-spider",
        "algorithm.restart=3",
        "privacy.noise=secure",
    ]);
}

#[test]
fn saga_survives_a_failure_at_every_step() {
    every_step(&["algorithm.preset=soteriafl-saga"]);
}

#[test]
fn saga_with_secure_noise_survives_a_failure_at_every_step() {
    every_step(&["algorithm.preset=soteriafl-saga", "privacy.noise=secure"]);
}

#[test]
fn sag_survives_a_failure_at_every_step() {
    every_step(&["algorithm.preset=soteriafl-sag"]);
    every_step(&[
        "algorithm.preset=soteriafl-sag",
        "algorithm.memory=1",
        "privacy.noise=secure",
    ]);
}

/// With coins alone on disk: the memory is rebuilt without the noise of the messages, also where
/// clients sit out.
#[test]
fn saga_is_rebuilt_without_noise() {
    for overrides in [
        &["algorithm.preset=soteriafl-saga", "privacy.noise=secure"][..],
        &[
            "algorithm.preset=soteriafl-saga",
            "algorithm.participation=0.6",
        ],
    ] {
        let mut deployment = Deployment::new(overrides);
        deployment.split = true;
        every_step_of(&deployment, overrides);
        assert_ne!(run(&deployment.anew()).0, deployment.simulated());
    }
}

/// SAGA remembers by row. Rows in another order would each meet what is remembered of another
/// record, and a record would then have two shares in a message.
#[test]
fn records_in_another_order_are_refused_once_they_are_remembered() {
    let deployment = Deployment::new(&["algorithm.preset=soteriafl-saga", "privacy.noise=secure"]);
    let open = |turned: bool| {
        let shard = &deployment.problem.shards[0];
        let mut rows: Vec<u32> = (0..shard.rows() as u32).collect();
        if turned {
            rows.reverse();
        }
        let keys = deployment.keys(0);
        let secrets = Box::new(move |_, _: &_| Ok(keys.clone()));
        let data = Arc::new(shard.select(&rows));
        deployment.participant_on(data, deployment.client_stores[0].clone(), 0, secrets)
    };
    let mut participant = open(false).unwrap().unwrap();
    let mut average = Vec::new();
    for round in 0..=deployment.checkpoint_every {
        participant.message().unwrap().unwrap();
        let zeros = vec![0.0; participant.replica().model().len()];
        soteriafl_core::wire::put_average(&zeros, round, &mut average);
        participant.closed(round, true, &average).unwrap();
    }
    drop(participant);
    let error = open(true).err().unwrap();
    assert!(matches!(error, ParticipantError::Stored { .. }), "{error}");
    assert!(open(false).unwrap().is_some());
}

/// SAGA must replay its rounds. Where the start came from the server and no checkpoint
/// has been made, the start comes again, and then every round.
#[test]
fn rounds_are_repeated_from_a_start_that_is_sent() {
    let deployment = Deployment::new(&["algorithm.preset=soteriafl-saga"]);
    let mut server = deployment.coordinator(NOW).unwrap();
    for client in 0..deployment.clients() {
        let joined = server.join(client as u32, deployment.records(client), NOW);
        joined.unwrap();
    }
    let mut others: Vec<_> = (1..deployment.clients())
        .map(|client| deployment.participant(client).unwrap().unwrap())
        .collect();
    let mut store = ClientMemory::default();
    store.begin(&deployment.ledger_run(0)).unwrap();
    let awaiting = || {
        let plan = Arc::new(setup::client_plan(&deployment.resolved, &deployment.problem).unwrap());
        let zeros = vec![0.0; deployment.start.len()];
        let key = SecretKey::simulated(0, 0);
        let server = setup::server_plan(
            &deployment.resolved,
            &deployment.problem.preparation.model,
            &plan,
            vec![1.0],
        );
        Participant::new(Parts {
            store: store.clone(),
            trained_on: None,
            run: *deployment.description.hash(),
            client: Client::new(
                0,
                Arc::clone(&plan),
                Arc::clone(&deployment.problem.shards[0]),
                deployment.resolved.specification().sampling(),
                deployment.sigmas[0],
                key,
            )
            .unwrap(),
            compressor: plan.compressor.clone(),
            replica: Server::new(server, zeros),
            awaits_start: Some(digest(&deployment.start)),
            secrets: Box::new(|round, _| Ok(SecretKey::simulated(u64::from(round), 9).into())),
            checkpoint_every: 1000,
        })
        .unwrap()
    };
    for round in 0..4 {
        // Killed after every message, also before it arrives.
        let mut messages = Vec::new();
        for _ in 0..2 {
            let mut party = awaiting();
            let mut session = Session::open(&mut server, 0, &mut party).unwrap();
            while session.deliver_next(&mut server, 0, &mut party).unwrap() {}
            assert_eq!(party.replica().round(), round);
            messages.push(next_message(&server, &mut party).unwrap().unwrap().1);
        }
        assert_eq!(messages[0], messages[1]);
        server.submit(0, messages.remove(0), NOW).unwrap();
        for (i, party) in others.iter_mut().enumerate() {
            let mut session = Session::open(&mut server, i + 1, party).unwrap();
            while session.deliver_next(&mut server, i + 1, party).unwrap() {}
            let (_, message) = next_message(&server, party).unwrap().unwrap();
            server.submit(i as u32 + 1, message, NOW).unwrap();
        }
    }
}

/// Every combination ends with the simulator's bytes, without any failure.
#[test]
fn networked_runs_equal_simulated_ones() {
    for noise in ["float", "secure"] {
        for estimator in ["gd", "sgd", "svrg", "saga", "sag", "recursive"] {
            for compressor in ["rand-k", "qsgd", "natural", "identity"] {
                for more in [
                    &[][..],
                    match estimator {
                        "recursive" => &["algorithm.keep=1", "algorithm.participation=0.6"],
                        _ => &["algorithm.momentum=0.5", "algorithm.participation=0.6"],
                    },
                    &["algorithm.shift=off", "data.weighting=equal"],
                ] {
                    let noise = format!("privacy.noise={noise}");
                    let estimator = format!("algorithm.estimator={estimator}");
                    let compressor = format!("algorithm.compressor={compressor}");
                    let mut overrides = vec![noise.as_str(), &estimator, &compressor];
                    overrides.extend(more);
                    let deployment = Deployment::new(&overrides);
                    let (found, _) = run(&deployment);
                    assert_eq!(found, deployment.simulated(), "{overrides:?}");
                }
            }
        }
    }
}
