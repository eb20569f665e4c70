//! A client's state that was restored from an older copy has a ledger that says too little. An
//! honest server knows better, whichever way it brings the client up to date: round by round, or by
//! a state and a count.

use std::time::Duration;

use soteriafl_core::random::SecretKey;
use soteriafl_core::wire;
use soteriafl_deploy::coordinator::{CatchUp, CoordinatorError, Receipt};
use soteriafl_deploy::memory::ClientMemory;
use soteriafl_deploy::participant::ParticipantError;
use soteriafl_deploy::store::ClientStore;

use crate::harness::{Deployment, Session, TestCoordinator, TestParticipant, bits, next_message};

/// A run whose rounds close by quorum, so that client 0 may be away.
const MORE: [&str; 3] = [
    "algorithm.rounds=24",
    "deployment.quorum=2",
    "deployment.deadline=1",
];

const PRESETS: [&str; 5] = [
    "soteriafl-gd",
    "soteriafl-sgd",
    "soteriafl-svrg",
    "soteriafl-gd+sign",
    "soteriafl-svrg+natural",
];

/// The run, its clients, and the time.
struct Play {
    deployment: Deployment,
    server: TestCoordinator,
    parties: Vec<TestParticipant>,
    sessions: Vec<Session>,
    now: Duration,
}

impl Play {
    /// A run of `soteriafl-sgd`, or of `soteriafl-sgd+sign` with that for its way down.
    fn new(preset: &str) -> Self {
        let (preset, down) = preset.split_once('+').unwrap_or((preset, "none"));
        let preset = format!("algorithm.preset={preset}");
        let down = format!("algorithm.downlink={down}");
        let deployment = Deployment::new(&[&[preset.as_str(), &down], &MORE[..]].concat());
        let mut server = deployment.coordinator(Duration::ZERO).unwrap();
        let clients = 0..deployment.clients();
        for client in clients.clone() {
            let joined = server.join(client as u32, deployment.records(client), Duration::ZERO);
            joined.unwrap();
        }
        let mut parties: Vec<_> = clients
            .map(|client| deployment.participant(client).unwrap().unwrap())
            .collect();
        let sessions = parties
            .iter_mut()
            .enumerate()
            .map(|(client, party)| Session::open(&mut server, client, party).unwrap());
        Self {
            sessions: sessions.collect(),
            parties,
            server,
            deployment,
            now: Duration::ZERO,
        }
    }

    /// Closes rounds until `round` is open. Client 0 sends its message if `sends(round)`, and makes
    /// it if `makes(round)`.
    fn until(&mut self, round: u32, makes: impl Fn(u32) -> bool, sends: impl Fn(u32) -> bool) {
        while self.server.round() < round {
            let open = self.server.round();
            for client in 0..self.parties.len() {
                let party = &mut self.parties[client];
                if client == 0 && !makes(open) {
                    continue;
                }
                let session = &mut self.sessions[client];
                while session
                    .deliver_next(&mut self.server, client, party)
                    .unwrap()
                {}
                let (_, message) = next_message(&self.server, party).unwrap().unwrap();
                if client > 0 || sends(open) {
                    self.server
                        .submit(client as u32, message, self.now)
                        .unwrap();
                }
            }
            if self.server.round() == open {
                self.now += Duration::from_secs(2);
                assert!(self.server.tick(self.now).unwrap());
            }
        }
    }

    /// Client 0 started on a store.
    fn start(&self, store: ClientMemory) -> TestParticipant {
        let keys = self.deployment.keys(0);
        let secrets = Box::new(move |_, _: &_| Ok(keys.clone()));
        let started = self.deployment.participant_over(store, 0, secrets);
        started.unwrap().unwrap()
    }

    /// What the server tells client 0 at the position of `party`, which must be a state.
    fn state_for(&mut self, party: &TestParticipant) -> CatchUp {
        let told = self.server.catch_up(0, party.position()).unwrap();
        assert!(told.snapshot.is_some(), "by a state, at {:?}", told.from);
        told
    }
}

fn jump(party: &mut TestParticipant, told: &CatchUp, taken: u32) -> Result<(), ParticipantError> {
    let state = told.snapshot.as_ref().unwrap().as_ref().clone();
    party.jump(state, told.accepted, taken)
}

/// It makes no more messages, and its ledger is as it was.
fn stopped(mut party: TestParticipant, error: &ParticipantError) {
    assert!(
        matches!(error, ParticipantError::Forgotten { .. }),
        "{error}"
    );
    assert!(matches!(party.message(), Err(ParticipantError::Failed)));
    let mut average = Vec::new();
    let zeros = vec![0.0; party.replica().model().len()];
    wire::put_average(&zeros, party.replica().round(), &mut average);
    let round = party.replica().round();
    let heard = party.closed(round, false, &average);
    assert!(matches!(heard, Err(ParticipantError::Failed)));
}

#[test]
fn an_older_copy_that_hears_of_rounds_one_by_one_stops() {
    let deployment = Deployment::new(&["algorithm.preset=soteriafl-sgd"]);
    let mut average = Vec::new();
    let mut participant = deployment.participant(0).unwrap().unwrap();
    let zeros = vec![0.0; participant.replica().model().len()];
    wire::put_average(&zeros, 0, &mut average);
    let error = participant.closed(0, true, &average).unwrap_err();
    stopped(participant, &error);
    assert!(deployment.client_stores[0].all_rows().is_empty());
    // That was one server's word: started again, another one may say otherwise.
    let mut again = deployment.participant(0).unwrap().unwrap();
    again.closed(0, false, &average).unwrap();
    assert_eq!(again.replica().round(), 1);
}

/// Copies of all ages, also of a time when the run had not begun or messages were made that nobody
/// took: one message more, and they are found out. So they are by a server that was started again
/// since.
#[test]
fn an_older_copy_that_is_given_a_state_stops() {
    for preset in PRESETS {
        let mut play = Play::new(preset);
        let mut copies = vec![(0, ClientMemory::default())];
        // Every third message is made and does not arrive.
        for round in 1..8 {
            play.until(round, |_| true, |round| round % 3 != 1);
            copies.push((round, play.deployment.client_stores[0].copy()));
        }
        play.until(19, |_| true, |round| round % 3 != 1);
        for restarted in [false, true] {
            if restarted {
                play.server = play.deployment.coordinator(play.now).unwrap();
            }
            for (age, copy) in &copies {
                let before = copy.all_rows().len();
                let mut old = play.start(copy.copy());
                let told = play.state_for(&old);
                assert_eq!(told.taken, 13, "of 19 rounds, without every third");
                let error = jump(&mut old, &told, told.taken).unwrap_err();
                stopped(old, &error);
                assert_eq!(copy.all_rows().len(), before, "{preset}: age {age}");
            }
        }
    }
}

/// The newest state is never taken for an older one: killed at any age, away for long, with a
/// message that was taken, refused or never sent. The server's count is what such a client knows,
/// so that one message more would be found out.
#[test]
fn the_newest_state_goes_on_from_a_state() {
    for preset in PRESETS {
        for age in [1, 3, 6] {
            for (makes, sends) in [(true, true), (true, false), (false, false)] {
                let mut play = Play::new(preset);
                play.until(age, |_| true, |round| round % 3 != 1);
                play.until(age + 1, |_| makes, |_| sends);
                play.until(18, |_| false, |_| false);
                let store = play.deployment.client_stores[0].clone();
                for restarted in [false, true] {
                    if restarted {
                        play.server = play.deployment.coordinator(play.now).unwrap();
                    }
                    let mut copy = play.start(store.copy());
                    let told = play.state_for(&copy);
                    let error = jump(&mut copy, &told, told.taken + 1).unwrap_err();
                    stopped(copy, &error);
                    // Fewer prove nothing.
                    for taken in [0, told.taken] {
                        let mut copy = play.start(store.copy());
                        jump(&mut copy, &told, taken).unwrap();
                    }
                }
                // The process that was away, and one that is started anew, end with everybody's
                // model.
                if age % 2 == 0 {
                    play.parties[0] = play.start(store.clone());
                }
                let party = &mut play.parties[0];
                play.sessions[0] = Session::open(&mut play.server, 0, party).unwrap();
                let clients = 1..play.parties.len();
                for client in clients {
                    let party = &mut play.parties[client];
                    play.sessions[client] = Session::open(&mut play.server, client, party).unwrap();
                }
                play.until(24, |_| true, |_| true);
                let party = &mut play.parties[0];
                while play.sessions[0]
                    .deliver_next(&mut play.server, 0, party)
                    .unwrap()
                {}
                assert_eq!(
                    bits(party.replica().model()),
                    bits(play.server.model().unwrap()),
                    "{preset}: age {age}"
                );
                let known = party.store().taken(play.deployment.description.hash());
                assert_eq!(known.unwrap(), play.server.taken()[0]);
            }
        }
    }
}

/// A copy in step makes a message for the round that its original has answered, and it comes when
/// the round is over: it is told apart from the first one sent again.
#[test]
fn a_second_message_is_noticed_though_it_comes_late() {
    let deployment = Deployment::new(&["algorithm.preset=soteriafl-sgd"]);
    let mut server = deployment.coordinator(Duration::ZERO).unwrap();
    for client in 0..deployment.clients() {
        let joined = server.join(client as u32, deployment.records(client), Duration::ZERO);
        joined.unwrap();
    }
    let mut messages = Vec::new();
    for client in 0..deployment.clients() {
        let mut party = deployment.participant(client).unwrap().unwrap();
        Session::open(&mut server, client, &mut party).unwrap();
        messages.push(next_message(&server, &mut party).unwrap().unwrap().1);
    }
    let mut store = ClientMemory::default();
    store.begin(&deployment.ledger_run(0)).unwrap();
    let secrets = Box::new(|_, _: &_| Ok(SecretKey::simulated(77, 0).into()));
    let copy = deployment.participant_over(store, 0, secrets);
    let mut copy = copy.unwrap().unwrap();
    Session::open(&mut server, 0, &mut copy).unwrap();
    let second = next_message(&server, &mut copy).unwrap().unwrap().1;
    for (client, message) in messages.iter().enumerate() {
        let sent = server.submit(client as u32, message.clone(), Duration::ZERO);
        sent.unwrap();
    }
    assert_eq!(server.round(), 1);
    assert!(matches!(
        server.submit(0, second, Duration::ZERO),
        Err(CoordinatorError::Conflict {
            client: 0,
            round: 0
        })
    ));
    let again = server.submit(0, messages.swap_remove(0), Duration::ZERO);
    assert_eq!(again.unwrap(), (Receipt::Closed { accepted: true }, false));
}
