//! A network that delays, loses, repeats and reorders messages, cuts connections and keeps parties
//! apart, and parties that crash at any moment: played by a seeded generator, so that every failure
//! can be repeated by its seed.

use std::time::Duration;

use bytes::Bytes;
use soteriafl_deploy::coordinator::CoordinatorError;

use crate::harness::{
    Deployment, PartyError, Session, TestCoordinator, TestParticipant, bits, next_message,
};

/// SplitMix64: enough to choose what happens next.
struct Generator(u64);

impl Generator {
    fn next_u32(&mut self) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 32) as u32
    }
}

struct Play {
    deployment: Deployment,
    rng: Generator,
    now: Duration,
    server: TestCoordinator,
    parties: Vec<Option<(TestParticipant, Option<Session>)>>,
    over: Vec<bool>,
    /// Clients that cannot reach the server until then.
    apart: Vec<Duration>,
    /// Messages on their way: to be lost, late, doubled, out of order.
    flying: Vec<(usize, Bytes)>,
    crashes: u32,
}

impl Play {
    fn new(deployment: Deployment, seed: u64) -> Self {
        let server = deployment.coordinator(Duration::ZERO).unwrap();
        let clients = deployment.clients();
        Self {
            rng: Generator(seed),
            now: Duration::ZERO,
            server,
            parties: (0..clients).map(|_| None).collect(),
            over: vec![false; clients],
            apart: vec![Duration::ZERO; clients],
            flying: Vec::new(),
            crashes: 0,
            deployment,
        }
    }

    fn chance(&mut self, percent: u32) -> bool {
        self.rng.next_u32() % 100 < percent
    }

    fn below(&mut self, bound: usize) -> usize {
        self.rng.next_u32() as usize % bound
    }

    /// Plays to the end.
    fn play(&mut self) {
        for _ in 0..200_000 {
            if self.server.acknowledged() {
                return;
            }
            self.now += Duration::from_millis(u64::from(self.rng.next_u32() % 20));
            self.step();
        }
        panic!("the run does not end");
    }

    fn step(&mut self) {
        let client = self.below(self.deployment.clients());
        match self.below(100) {
            0 => {
                // The server's process dies; the network still holds what was sent to it.
                self.server = self.deployment.coordinator(self.now).unwrap();
                self.cut_all();
                self.crashes += 1;
            }
            1 | 2 => {
                self.parties[client] = None;
                self.crashes += 1;
            }
            3 | 4 => {
                if let Some(party) = &mut self.parties[client] {
                    party.1 = None;
                }
            }
            5 => {
                let pause = self.rng.next_u32() % 3000;
                self.apart[client] = self.now + Duration::from_millis(u64::from(pause));
                if let Some(party) = &mut self.parties[client] {
                    party.1 = None;
                }
            }
            6..30 => self.deliver(),
            30..35 => {
                self.server.tick(self.now).unwrap();
            }
            _ => self
                .turn(client)
                .unwrap_or_else(|trouble| panic!("{trouble:?}")),
        }
    }

    fn cut_all(&mut self) {
        for party in self.parties.iter_mut().flatten() {
            party.1 = None;
        }
    }

    /// Some message arrives, or is lost; some stay for another time as well.
    fn deliver(&mut self) {
        if self.flying.is_empty() {
            return;
        }
        let at = self.below(self.flying.len());
        let (client, message) = if self.chance(20) {
            self.flying[at].clone()
        } else {
            self.flying.swap_remove(at)
        };
        if self.chance(20) {
            return;
        }
        match self.server.submit(client as u32, message, self.now) {
            Ok(_) | Err(CoordinatorError::NotBegun) => {}
            // Whatever came late or twice, nothing is refused that an honest client sent.
            Err(error) => panic!("{error}"),
        }
    }

    fn turn(&mut self, client: usize) -> Result<(), PartyError> {
        if self.apart[client] > self.now {
            return Ok(());
        }
        if self.over[client] {
            return self
                .server
                .acknowledge(client as u32)
                .map_err(PartyError::Server);
        }
        let Some((participant, session)) = &mut self.parties[client] else {
            match self
                .deployment
                .participant(client)
                .map_err(PartyError::Client)?
            {
                Some(participant) => self.parties[client] = Some((participant, None)),
                None => self.over[client] = true,
            }
            return Ok(());
        };
        let Some(open) = session else {
            let records = self.deployment.records(client);
            self.server
                .join(client as u32, records, self.now)
                .map_err(PartyError::Server)?;
            *session = Some(Session::open(&mut self.server, client, participant)?);
            return Ok(());
        };
        open.deliver_next(&mut self.server, client, participant)?;
        if participant.replica().finished() {
            self.over[client] = true;
        } else if let Some((_, message)) =
            next_message(&self.server, participant).map_err(PartyError::Client)?
        {
            self.flying.push((client, message));
            if self.flying.len() > 40 {
                self.flying.remove(0);
            }
        }
        Ok(())
    }
}

/// Whatever the network does and whoever crashes, all clients take part in every round, so the
/// result is the simulated one.
#[test]
fn faults_do_not_change_the_result() {
    let (mut crashes, mut plays) = (0, 0);
    for preset in [
        "soteriafl-sgd",
        "soteriafl-svrg",
        "soteriafl-saga",
        "ldp-srm",
        "ldp-spider",
    ] {
        let preset = format!("algorithm.preset={preset}");
        let overrides = [preset.as_str(), "algorithm.rounds=12"];
        let deployment = Deployment::new(&overrides);
        let expected = deployment.simulated();
        for seed in 0..6 {
            let mut play = Play::new(deployment.anew(), seed);
            play.play();
            let found = bits(play.server.model().unwrap());
            assert_eq!(found, expected, "{preset}, seed {seed}");
            for store in &play.deployment.client_stores {
                assert_eq!(store.all_rows().len(), 12, "{preset}, seed {seed}");
            }
            crashes += play.crashes;
            plays += 1;
        }
    }
    assert!(crashes > 3 * plays, "{crashes} crashes in {plays} plays");
}

/// With a deadline and a quorum rounds close without stragglers. Then nobody knows the result
/// beforehand, but everybody who is told of it has the same model, every shift is in step with the
/// server's mean, and nobody pays for more than one message a round.
#[test]
fn stragglers_stay_in_step() {
    let mut missed = 0;
    for preset in ["soteriafl-sgd", "soteriafl-svrg", "soteriafl-saga"] {
        for compressor in ["rand-k", "qsgd"] {
            let (preset, compressor) = (
                format!("algorithm.preset={preset}"),
                format!("algorithm.compressor={compressor}"),
            );
            let overrides = [
                preset.as_str(),
                &compressor,
                "algorithm.rounds=30",
                "deployment.quorum=1",
                "deployment.deadline=0.3",
            ];
            let deployment = Deployment::new(&overrides);
            for seed in 0..3 {
                let mut play = Play::new(deployment.anew(), seed);
                play.play();
                let model = bits(play.server.model().unwrap());
                for (client, party) in play.parties.iter().enumerate() {
                    let rows = play.deployment.client_stores[client].all_rows();
                    assert!(rows.len() <= 30);
                    missed += 30 - rows.len();
                    let Some((participant, _)) = party else {
                        continue;
                    };
                    if participant.replica().finished() {
                        assert_eq!(
                            bits(participant.replica().model()),
                            model,
                            "client {client}"
                        );
                    }
                }
                check_shifts(&play);
            }
        }
    }
    assert!(missed > 30, "only {missed} rounds were missed");
}

/// The server's mean shift is the weighted mean of the clients' shifts, for clients that are still
/// there.
fn check_shifts(play: &Play) {
    let weights = play.deployment.problem.weights(&play.deployment.resolved);
    let Some(expected) = play.server.shift() else {
        return;
    };
    let mut mean = vec![0.0f64; expected.len()];
    for (party, weight) in play.parties.iter().zip(weights) {
        let Some((participant, _)) = party else {
            return;
        };
        for (sum, &value) in mean.iter_mut().zip(participant.shift()) {
            *sum += weight * f64::from(value);
        }
    }
    for (found, expected) in mean.iter().zip(expected) {
        assert!(
            (found - f64::from(*expected)).abs() < 1e-4,
            "{found} {expected}"
        );
    }
}
