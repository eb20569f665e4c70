//! What the dashboard shows of a run, and the news for whoever measures: heard at the desk, on its thread, after every change.

use std::sync::mpsc::SyncSender;
use std::time::Duration;

use soteriafl_core::protocol::Round;

use super::finish::{Shared, lock};
use super::recorder::traffic;
use soteriafl::accounting;
use soteriafl::config::{NoiseName, NoiseTarget};
use soteriafl_deploy::coordinator::{Coordinator, Unmeasured};
use soteriafl_deploy::dashboard::{About, Feed, Phase, Point};
use soteriafl_deploy::description::Description;
use soteriafl_deploy::hex;
use soteriafl_deploy::net::actor::Observer;
use soteriafl_deploy::store::ServerStore;

/// Hears what happens at the desk: keeps the dashboard and the table fed.
pub(super) struct Watch {
    feed: Feed,
    unmeasured: SyncSender<Unmeasured>,
    last: Option<(Round, bool)>,
    joined: usize,
    last_state: Option<(Round, u32)>,
    /// The round up to which the curves are drawn.
    told: Option<Round>,
    test_seed: bool,
    ending: Shared,
}

impl Watch {
    /// One that has not told anything of a run in which `round` is open.
    pub(super) fn new(
        feed: Feed,
        unmeasured: SyncSender<Unmeasured>,
        round: Round,
        test_seed: bool,
        ending: Shared,
    ) -> Self {
        lock(&ending).whole = round == 0;
        Self {
            feed,
            unmeasured,
            last: None,
            joined: usize::MAX,
            last_state: None,
            told: Some(round),
            test_seed,
            ending,
        }
    }

    /// What a client that took part in all rounds has spent.
    fn spent<S: ServerStore>(&self, coordinator: &Coordinator<S>) -> Option<f64> {
        let privacy = coordinator.privacy().filter(|_| !self.test_seed)?;
        let odometer = privacy.odometer.as_ref()?;
        Some(odometer.after(u64::from(coordinator.messages())))
    }
}

impl<S: ServerStore> Observer<S> for Watch {
    fn changed(&mut self, coordinator: &Coordinator<S>, unmeasured: Vec<Unmeasured>) {
        let round = coordinator.round();
        let joined = coordinator.joined();
        let begun = coordinator.begun();
        if self.last != Some((round, begun)) || self.joined != joined {
            (self.last, self.joined) = (Some((round, begun)), joined);
            let phase = match (begun, coordinator.finished()) {
                (_, true) => Phase::Finished,
                (true, _) => Phase::Running,
                _ => Phase::Waiting,
            };
            self.feed.phase(phase);
            let now = now();
            let spent = self.spent(coordinator);
            let closed = coordinator
                .latest()
                .filter(|latest| latest.round + 1 == round);
            let fresh =
                closed.filter(|_| self.told.replace(round).is_some_and(|told| told < round));
            let (taken, missed) = (coordinator.taken(), coordinator.missed());
            self.feed.update(|status| {
                (status.round, status.opened) = (round, Some(now));
                for row in &mut status.clients {
                    row.epsilon = spent;
                    row.taken = taken.get(row.client as usize).copied().unwrap_or(0);
                    let missed = missed.get(row.client as usize);
                    (row.missed, row.missed_last) = missed.copied().unwrap_or_default();
                }
            });
            // Rounds that are not measured have a time and traffic too.
            let new = fresh.is_some();
            if let Some(closed) = fresh {
                let sums = coordinator.sums();
                self.feed.append(Point {
                    round,
                    uplink_bytes: sums.uplink,
                    downlink_bytes: sums.downlink,
                    seconds: coordinator.last_seconds(),
                    taken: closed.taken(),
                    epsilon: spent,
                    ..Point::default()
                });
            }
            let mut ending = lock(&self.ending);
            if new {
                ending.training += Duration::from_secs_f64(coordinator.last_seconds());
            }
            ending.model = coordinator.model().cloned();
            ending.settle(coordinator);
            ending.taken = coordinator.taken().to_vec();
            let clients = coordinator.description().resolved.clients;
            ending.taken.resize(clients, 0);
            ending.round = round;
            ending.traffic = traffic(coordinator.sums());
        }
        let arrived = coordinator.arrived();
        if self.last_state != Some((round, arrived)) {
            self.last_state = Some((round, arrived));
            self.feed.update(|status| status.arrived = arrived);
        }
        for item in unmeasured {
            // A slow measurement holds the run up instead of filling memory; one that ended ends with it.
            let _ = self.unmeasured.send(item);
        }
    }
}

pub(super) fn about(description: &Description, tested: bool) -> About {
    let run = &description.resolved;
    let (epsilon, claim) = match (accounting::claim(run), run.noise_target) {
        _ if description.test_seed.is_some() => (None, "no claim: test seed"),
        // What clients refuse to join is not called proved while it waits for them.
        _ if run.noise != NoiseName::Secure => (None, "no claim: its noise is not secure"),
        ("proved", NoiseTarget::Epsilon(epsilon)) => (Some(epsilon), "proved"),
        ("proved", _) => (None, "each client's own"),
        (obstacle, _) => (None, obstacle),
    };
    About {
        run: hex(description.hash()),
        algorithm: run.algorithm(),
        model: format!("{:?}", run.model).to_lowercase(),
        dimension: description.dimension(),
        rounds: run.rounds,
        clients: run.clients,
        quorum: run.quorum.filter(|_| run.deadline.is_some()),
        deadline: run.deadline.filter(|_| run.quorum.is_some()),
        epsilon,
        delta: run.delta,
        claim: claim.to_string(),
        tested,
        version: env!("CARGO_PKG_VERSION").to_string(),
    }
}

fn now() -> f64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0.0, |since| since.as_secs_f64())
}
