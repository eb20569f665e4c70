//! After every change of the coordinator, on its thread: brings the dashboard and the state for the
//! end up to date, and passes rounds that are to be measured on to the recorder.

use std::sync::mpsc::SyncSender;
use std::time::Duration;

use soteriafl_core::protocol::Round;

use super::finish::{SharedState, lock};
use super::recorder::traffic;
use soteriafl::accounting;
use soteriafl::config::{NoiseName, NoiseTarget};
use soteriafl_deploy::coordinator::{Coordinator, News};
use soteriafl_deploy::dashboard::{About, Feed, Phase, Point};
use soteriafl_deploy::description::Description;
use soteriafl_deploy::hex;
use soteriafl_deploy::net::actor::Observer;
use soteriafl_deploy::store::ServerStore;

/// Keeps dashboard and state up to date.
pub(super) struct RunObserver {
    feed: Feed,
    to_measure: SyncSender<News>,
    /// The open round, whether the run had begun, and how many clients had joined, when last shown.
    shown: Option<(Round, bool, usize)>,
    /// The open round, and how many messages had arrived in it, when last shown.
    arrived: Option<(Round, u32)>,
    /// The round up to which the curves are drawn.
    drawn: Round,
    test_seed: bool,
    state: SharedState,
}

impl RunObserver {
    /// Has shown nothing yet of a run in which `round` is open.
    pub(super) fn new(
        feed: Feed,
        to_measure: SyncSender<News>,
        round: Round,
        test_seed: bool,
        state: SharedState,
    ) -> Self {
        Self {
            feed,
            to_measure,
            shown: None,
            arrived: None,
            drawn: round,
            test_seed,
            state,
        }
    }

    /// What a client that took part in all rounds has spent.
    fn spent<S: ServerStore>(&self, coordinator: &Coordinator<S>) -> Option<f64> {
        let privacy = coordinator.privacy().filter(|_| !self.test_seed)?;
        let odometer = privacy.odometer.as_ref()?;
        Some(odometer.after(u64::from(coordinator.messages())))
    }

    /// Phase, open round and every client's line.
    fn show_round<S: ServerStore>(&self, coordinator: &Coordinator<S>, spent: Option<f64>) {
        self.feed.phase(match coordinator.finished() {
            true => Phase::Finished,
            false if coordinator.begun() => Phase::Running,
            false => Phase::Waiting,
        });
        let (accepted, missed) = (coordinator.taken(), coordinator.missed());
        self.feed.update(|status| {
            (status.round, status.opened) = (coordinator.round(), Some(now()));
            for row in &mut status.clients {
                let client = row.client as usize;
                row.epsilon = spent;
                row.taken = accepted.get(client).copied().unwrap_or(0);
                (row.missed, row.missed_last) = missed.get(client).copied().unwrap_or_default();
            }
        });
    }

    /// Appends the round that has just closed to the curves: also rounds that are not measured have
    /// a time and traffic. Returns how long it took, unless it is there already.
    fn draw_closed<S: ServerStore>(
        &mut self,
        coordinator: &Coordinator<S>,
        spent: Option<f64>,
    ) -> Option<Duration> {
        let round = coordinator.round();
        let closed = coordinator
            .latest()
            .filter(|latest| latest.round + 1 == round)?;
        if std::mem::replace(&mut self.drawn, round) >= round {
            return None;
        }
        let (sums, seconds) = (coordinator.sums(), coordinator.last_seconds());
        self.feed.append(Point {
            round,
            uplink_bytes: sums.uplink,
            downlink_bytes: sums.downlink,
            seconds,
            taken: closed.taken(),
            epsilon: spent,
            ..Point::default()
        });
        Some(Duration::from_secs_f64(seconds))
    }

    fn keep_state<S: ServerStore>(&self, coordinator: &Coordinator<S>, took: Option<Duration>) {
        let mut state = lock(&self.state);
        state.training += took.unwrap_or_default();
        state.model = coordinator.model().cloned();
        state.set_privacy(coordinator);
        state.taken = coordinator.taken().to_vec();
        let clients = coordinator.description().resolved.clients;
        state.taken.resize(clients, 0);
        state.round = coordinator.round();
        state.traffic = traffic(coordinator.sums());
    }
}

impl<S: ServerStore> Observer<S> for RunObserver {
    fn changed(&mut self, coordinator: &Coordinator<S>, news: Vec<News>) {
        let round = coordinator.round();
        let now = Some((round, coordinator.begun(), coordinator.joined()));
        if std::mem::replace(&mut self.shown, now) != now {
            let spent = self.spent(coordinator);
            self.show_round(coordinator, spent);
            let took = self.draw_closed(coordinator, spent);
            self.keep_state(coordinator, took);
        }
        let arrived = Some((round, coordinator.arrived()));
        if std::mem::replace(&mut self.arrived, arrived) != arrived {
            let arrived = coordinator.arrived();
            self.feed.update(|status| status.arrived = arrived);
        }
        for round in news {
            // A slow measurement holds the run up instead of filling memory. Where the recorder has
            // failed, the server stops for that reason.
            let _ = self.to_measure.send(round);
        }
    }
}

/// What the dashboard says about a run before anything else.
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
