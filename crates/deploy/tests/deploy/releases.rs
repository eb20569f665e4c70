//! What is released before the first round: what servers and clients may try, and what it costs.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use soteriafl::accounting::{self, Privacy};
use soteriafl_accountant::Adjacency;
use soteriafl_core::preliminary::{self, Average};
use soteriafl_deploy::budget::{self, Counted, Limits, Priced};
use soteriafl_deploy::coordinator::CoordinatorError;
use soteriafl_deploy::participant::ParticipantError;
use soteriafl_deploy::store::{ClientStore, LedgerRun};

use crate::harness::{Deployment, TARGETED, TestCoordinator, WHITENED};

const NOW: Duration = Duration::ZERO;

/// A coordinator whose clients have all joined.
fn joined(deployment: &Deployment) -> TestCoordinator {
    let mut server = deployment.coordinator(NOW).unwrap();
    for client in 0..deployment.clients() {
        assert_eq!(
            server.open_release(),
            None,
            "nothing opens before all are here"
        );
        server
            .join(client as u32, deployment.records(client), NOW)
            .unwrap();
    }
    assert_eq!((server.open_release(), server.begun()), (Some(0), false));
    server
}

fn message(deployment: &Deployment, client: usize) -> Bytes {
    let mut opening = deployment.opening(client).unwrap().unwrap();
    opening.message(0).unwrap().unwrap()
}

/// The average that an honest server tells.
fn average(deployment: &Deployment) -> Arc<Average> {
    let mut server = joined(deployment);
    let mut last = None;
    for client in 0..deployment.clients() {
        let message = message(deployment, client);
        last = server
            .release(client as u32, 0, Some(message), NOW)
            .unwrap();
    }
    assert!(server.begun());
    last.expect("all have answered")
}

/// The server's map, the map of the simulation, and the records that clients train on are one.
#[test]
fn everybody_computes_the_simulated_map() {
    let deployment = Deployment::whitened();
    let mut server = joined(&deployment);
    for client in 0..deployment.clients() {
        let message = message(&deployment, client);
        server
            .release(client as u32, 0, Some(message), NOW)
            .unwrap();
    }
    assert_eq!(server.whitening(), deployment.problem.whitening);
    let average = Arc::clone(&server.averages()[0]);
    let traffic = (server.sums().uplink, server.sums().downlink);
    let bytes = 3 * preliminary::message_len(average.values.len()) as u64;
    assert_eq!(traffic, (bytes, bytes));
    for client in 0..deployment.clients() {
        let mut opening = deployment.opening(client).unwrap().unwrap();
        opening.heard(0, &average).unwrap();
        let (_, data) = opening.into_parts().unwrap();
        let expected = &deployment.problem.shards[client];
        assert!(data.features() == expected.features());
    }
    // A server that starts anew knows it.
    drop(server);
    let server = deployment.coordinator(NOW).unwrap();
    assert!(server.begun());
    assert_eq!(server.whitening(), deployment.problem.whitening);
    assert_eq!((server.sums().uplink, server.sums().downlink), traffic);
}

/// What a server may say of the average: numbers that are none are refused and change nothing, any
/// others give records of length one or zero, the first word stands, and nothing more is sent.
#[test]
fn a_server_may_say_what_it_likes() {
    let deployment = Deployment::whitened();
    let honest = average(&deployment);
    let deployment = deployment.anew();
    let sent = message(&deployment, 0);
    let told = |values: Vec<f32>, noise: f64| {
        let mut opening = deployment.opening(0).unwrap().unwrap();
        opening.heard(0, &Average { values, noise })
    };
    let len = honest.values.len();
    for (values, noise) in [
        (vec![0.0; len - 1], 0.1),
        (vec![f32::NAN; len], 0.1),
        (vec![f32::INFINITY; len], 0.1),
        (vec![0.0; len], f64::NAN),
        (vec![0.0; len], -1.0),
        (vec![0.0; len], f64::INFINITY),
    ] {
        let error = told(values, noise).unwrap_err();
        assert!(matches!(error, ParticipantError::Release { .. }), "{error}");
    }
    let mut opening = deployment.opening(0).unwrap().unwrap();
    assert_eq!(opening.averages(), 0);
    assert_eq!(
        opening.message(0).unwrap(),
        Some(sent),
        "the same bytes again"
    );
    assert!(opening.message(1).is_err(), "there is one release");
    opening.heard(0, &honest).unwrap();
    opening.heard(0, &honest).unwrap();
    assert_eq!(opening.message(0).unwrap(), None);
    let other = Average {
        noise: 2.0 * honest.noise,
        ..(*honest).clone()
    };
    let error = opening.heard(0, &other).unwrap_err();
    assert!(error.to_string().contains("another average"), "{error}");
    // Started again it has not forgotten.
    let mut opening = deployment.opening(0).unwrap().unwrap();
    assert!(opening.finished() && opening.heard(0, &other).is_err());

    for (values, noise) in [
        (vec![0.0; len], 0.0),
        (vec![f32::MAX; len], 0.0),
        (vec![-f32::MAX; len], f64::MAX),
    ] {
        let deployment = deployment.anew();
        message(&deployment, 0);
        let mut opening = deployment.opening(0).unwrap().unwrap();
        opening.heard(0, &Average { values, noise }).unwrap();
        let (_, data) = opening.into_parts().unwrap();
        for &norm in data.squared_norms() {
            assert!(norm == 0.0 || (norm - 1.0).abs() < 1e-5, "{norm}");
        }
    }
}

/// An average is of all clients' messages: who has made none is an older copy, or the server lies.
#[test]
fn an_average_without_an_own_message_stops_the_client() {
    let deployment = Deployment::whitened();
    let honest = average(&deployment);
    let copy = deployment.anew();
    let mut opening = copy.opening(0).unwrap().unwrap();
    let error = opening.heard(0, &honest).unwrap_err();
    assert!(matches!(
        error,
        ParticipantError::Forgotten { taken: 1, known: 0 }
    ));
    assert!(opening.message(0).is_err(), "it makes nothing more");
}

#[test]
fn clients_may_not_say_what_they_like() {
    let deployment = Deployment::whitened();
    let early = message(&deployment, 0);
    let mut server = deployment.coordinator(NOW).unwrap();
    let error = server.release(0, 0, Some(early.clone()), NOW).unwrap_err();
    assert!(matches!(error, CoordinatorError::NotJoined(0)), "{error}");
    server.join(0, deployment.records(0), NOW).unwrap();
    let error = server.release(0, 0, Some(early.clone()), NOW).unwrap_err();
    assert!(matches!(error, CoordinatorError::NotBegun), "{error}");
    let mut server = joined(&deployment);
    assert!(matches!(
        server.release(3, 0, None, NOW).unwrap_err(),
        CoordinatorError::UnknownClient { .. }
    ));
    for end in [0, 5, early.len() - 1] {
        let error = server.release(0, 0, Some(early.slice(..end)), NOW);
        assert!(matches!(error, Err(CoordinatorError::Malformed(_))));
    }
    let mut large = early.to_vec();
    let at = large.len() - 4;
    large[at..].copy_from_slice(&1e6f32.to_le_bytes());
    let error = server.release(0, 0, Some(large.into()), NOW).unwrap_err();
    assert!(
        matches!(error, CoordinatorError::Implausible { .. }),
        "{error}"
    );
    let error = server.release(0, 1, Some(early.clone()), NOW).unwrap_err();
    assert!(matches!(error, CoordinatorError::Early { .. }), "{error}");
    assert_eq!(
        server.release(0, 0, Some(early.clone()), NOW).unwrap(),
        None
    );
    assert_eq!(
        server.release(0, 0, Some(early.clone()), NOW).unwrap(),
        None
    );
    let mut other = early.to_vec();
    other[at] ^= 1;
    let other = Bytes::from(other);
    for late in [false, true] {
        let error = server.release(0, 0, Some(other.clone()), NOW).unwrap_err();
        assert!(
            matches!(error, CoordinatorError::Conflict { .. }),
            "{late}: {error}"
        );
        // No round is open before all have released.
        if !late {
            assert!(server.submit(0, early.clone(), NOW).is_err());
            for client in 1..3 {
                let message = message(&deployment, client);
                server
                    .release(client as u32, 0, Some(message), NOW)
                    .unwrap();
            }
        }
    }
    assert!(server.begun());
}

fn judged(runs: &[LedgerRun], whole: &LedgerRun) -> f64 {
    let limits = Limits {
        epsilon: None,
        delta: Some(1e-5),
        read: None,
        replace_one: false,
        accept_unknown: false,
    };
    let counted = Counted::new(runs, Some(whole), false);
    limits.spent(&counted).unwrap().epsilon.unwrap()
}

/// The ledger's price is that of release and rounds together: the run's epsilon, and more than that
/// of the rounds alone; for persons with more records more; alone, and beside other runs.
#[test]
fn the_ledger_pays_for_it() {
    for adjacency in [Adjacency::ReplaceOne, Adjacency::ZeroOut] {
        let word = format!("privacy.adjacency={}", adjacency.word());
        let mut settings = WHITENED.to_vec();
        settings.push(&word);
        let deployment = Deployment::of_secrets(TARGETED, &settings, true);
        let run = deployment.ledger_run(0);
        let price = &run.price;
        let rows = deployment.records(0) as usize;
        let specification = deployment.resolved.specification();
        let whole = Privacy::calibrate(
            &specification,
            deployment.description.dimension(),
            &[rows],
            false,
        )
        .unwrap();
        let found = price.epsilon.unwrap();
        assert!(
            (found / whole.epsilon.unwrap() - 1.0).abs() < 1e-3,
            "{found}"
        );
        assert!(found <= 8.0);
        let released = accounting::preliminaries(&specification, rows).unwrap();
        assert_eq!(price.before.len(), 1);
        assert_eq!(price.before[0].1, released[0].sigma);
        assert_eq!(price.messages(), price.rounds + 1);
        let cost = |price: &Priced| price.cost(adjacency, price.delta).unwrap().unwrap();
        let rounds_alone = Priced {
            before: Vec::new(),
            ..price.clone()
        };
        assert!(cost(&rounds_alone) < 0.97 * cost(price));
        assert!(price.difference(&rounds_alone).is_some());
        let persons = budget::price_of_persons(&deployment.description, rows, 2).unwrap();
        assert_eq!(
            persons.before[0].1, price.before[0].1,
            "the noise is the run's"
        );
        let twice = persons.before[0].0 / price.before[0].0;
        assert!((twice - 2.0).abs() < 1e-12);
        assert!(cost(&persons) > 1.5 * cost(price));
        // What is stored is what is read.
        let text = serde_json::to_string(price).unwrap();
        assert_eq!(serde_json::from_str::<Priced>(&text).unwrap(), *price);
        // Beside another run by a filter, which counts it as well.
        let earlier = LedgerRun {
            hash: [9; 32],
            messages: 1,
            ..run.clone()
        };
        let cheaper = LedgerRun {
            price: rounds_alone.clone(),
            ..earlier.clone()
        };
        assert!(judged(&[cheaper], &run) < 0.99 * judged(&[earlier], &run));
        let broken = Priced {
            before: vec![(0.1, 0.0)],
            ..price.clone()
        };
        assert!(broken.cost(adjacency, price.delta).is_err());
    }
}

/// A run of which the release alone was made is spent, and binds.
#[test]
fn a_release_is_a_message() {
    let deployment = Deployment::whitened();
    message(&deployment, 0);
    let mut store = deployment.client_stores[0].clone();
    assert_eq!(store.runs().unwrap()[0].messages, 1);
    assert!(store.begin(&deployment.ledger_run(0)).is_err());
}
