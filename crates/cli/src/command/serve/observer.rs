//! Passes every change of the coordinator on: to the dashboard, to the recorder, which measures
//! rounds, and to the end of the run. Runs on the thread of the coordinator's actor.

use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use soteriafl_core::protocol::Round;

use super::finish::{Shared, lock};
use soteriafl::accounting;
use soteriafl::claim::Claim;
use soteriafl::config::{NoiseName, NoiseTarget};
use soteriafl_deploy::coordinator::{Coordinator, Unmeasured};
use soteriafl_deploy::dashboard::{About, FeedWriter};
use soteriafl_deploy::description::Description;
use soteriafl_deploy::hex;
use soteriafl_deploy::net::actor::Observer;
use soteriafl_deploy::store::ServerStore;

/// Observes a coordinator for the dashboard and the table.
pub(super) struct RunObserver {
    dashboard: FeedWriter,
    unmeasured: SyncSender<Unmeasured>,
    last: Option<(Round, bool)>,
    joined: usize,
    last_state: Option<(Round, u32)>,
    /// The round up to which the curves are drawn.
    drawn: Option<Round>,
    ending: Shared,
}

impl RunObserver {
    /// An observer that has reported nothing yet of a run in which `round` is open.
    pub(super) fn new(
        dashboard: FeedWriter,
        unmeasured: SyncSender<Unmeasured>,
        round: Round,
        ending: Shared,
    ) -> Self {
        Self {
            dashboard,
            unmeasured,
            last: None,
            joined: usize::MAX,
            last_state: None,
            drawn: Some(round),
            ending,
        }
    }
}

impl<S: ServerStore> Observer<S> for RunObserver {
    fn changed(&mut self, coordinator: &Coordinator<S>, unmeasured: Vec<Unmeasured>) {
        let round = coordinator.round();
        let joined = coordinator.joined();
        let begun = coordinator.begun();
        if self.last != Some((round, begun)) || self.joined != joined {
            (self.last, self.joined) = (Some((round, begun)), joined);
            let closed = coordinator
                .latest()
                .filter(|latest| latest.round + 1 == round);
            let fresh = closed.filter(|_| {
                let drawn = self.drawn.replace(round);
                drawn.is_some_and(|drawn| drawn < round)
            });
            let mut ending = lock(&self.ending);
            ending.follow(coordinator, fresh.is_some());
            let spent = ending.spent(coordinator.messages());
            self.dashboard
                .coordinator_changed(coordinator, fresh.map(Arc::as_ref), spent);
        }
        let arrived = coordinator.arrived();
        if self.last_state != Some((round, arrived)) {
            self.last_state = Some((round, arrived));
            self.dashboard.arrived(arrived);
        }
        for item in unmeasured {
            // A slow measurement holds the run up instead of filling memory; one that ended ends
            // with it.
            let _ = self.unmeasured.send(item);
        }
    }
}

pub(super) fn about(description: &Description, tested: bool) -> About {
    let run = &description.resolved;
    let (epsilon, claim) = match (accounting::claim(&run.specification()), run.noise_target) {
        _ if description.test_seed.is_some() => (None, "no claim: test seed".to_string()),
        // What clients refuse to join is not called proved while it waits for them.
        _ if run.noise != NoiseName::Secure => {
            (None, "no claim: its noise is not secure".to_string())
        }
        (Claim::Proved, NoiseTarget::Epsilon(epsilon)) => {
            (Some(epsilon), Claim::Proved.to_string())
        }
        (Claim::Proved, _) => (None, "each client's own".to_string()),
        (withheld, _) => (None, withheld.to_string()),
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
        claim,
        tested,
        version: env!("CARGO_PKG_VERSION").to_string(),
    }
}
