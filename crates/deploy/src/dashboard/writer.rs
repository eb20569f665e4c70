//! The only writer of a [`Feed`]: turns what happens in a run into what the dashboard shows.
//!
//! Three parties report. The gRPC service says what clients do; the observer of the coordinator
//! says what has changed in it; the recorder says what it has measured. How that changes the
//! status, the rows of clients and the curves is decided here alone.

use std::sync::{Arc, PoisonError};

use soteriafl_core::protocol::{ClientId, Round};

use super::feed::{Feed, unix_time};
use super::status::{About, Client, Phase, Point, Status};
use crate::accept::ConnectionCounters;
use crate::coordinator::Coordinator;
use crate::store::{ClosedRound, Evaluation, ServerStore};

/// Writes into the feed of a run; clones write into the same one.
///
/// Every call is a short critical section without allocation proportional to the run, so it can be
/// made for every message of every client. None waits for a viewer, and none fails.
#[derive(Clone)]
pub struct FeedWriter {
    feed: Feed,
}

impl FeedWriter {
    /// Begins the feed of a run in which nothing has happened.
    pub fn new(about: About) -> Self {
        Self {
            feed: Feed::new(about),
        }
    }

    /// The feed that is written.
    pub fn feed(&self) -> &Feed {
        &self.feed
    }

    /// A client was sent the run's description, of so many bytes.
    pub fn described(&self, client: ClientId, bytes: u64) {
        self.received(client, 0, |client| client.bytes_down += bytes);
    }

    /// A client has joined the run.
    pub fn joined(&self, client: ClientId) {
        self.received(client, 0, |client| client.joined = true);
    }

    /// A message of `bytes` bytes came from a client, for the round before `next` as it says. To be
    /// called before the coordinator gets the message and may close the round with it.
    pub fn submitted(&self, client: ClientId, bytes: u64, next: Round) {
        let rounds = self.feed.about().rounds;
        // An older message that comes once more does not set the client back.
        self.received(client, bytes, |client| {
            client.round = client.round.max(next).min(rounds);
        });
    }

    /// The coordinator has a client's message for the round before `next`.
    pub fn answered(&self, client: ClientId, next: Round) {
        self.client(client, |client| client.answered = client.answered.max(next));
    }

    /// A client asked to follow the run from the model of round `have`.
    pub fn followed(&self, client: ClientId, have: Option<Round>) {
        self.received(client, 0, |client| client.round = have.unwrap_or(0));
    }

    /// A client follows the run from now on, or does so no longer. Returns for how many seconds
    /// that had not been so.
    pub fn connected(&self, client: ClientId, connected: bool) -> Option<f64> {
        let (now, mut before) = (unix_time(), None);
        self.client(client, |client| {
            if client.connected != connected {
                before = client.since.map(|since| (now - since).max(0.0));
                (client.connected, client.since) = (connected, Some(now));
            }
        });
        before
    }

    /// Bytes were sent to a client, which is no sign that it reads them.
    pub fn sent(&self, client: ClientId, bytes: u64) {
        self.client(client, |client| client.bytes_down += bytes);
    }

    /// A client has acknowledged the end of the run.
    pub fn acknowledged(&self, client: ClientId) {
        let rounds = self.feed.about().rounds;
        self.received(client, 0, |client| {
            (client.round, client.finished) = (rounds, true);
        });
    }

    /// A coordinator goes on with a stored run: its members, and its measured rounds with the
    /// epsilon that was spent after each.
    pub fn resumed<S: ServerStore>(
        &self,
        coordinator: &Coordinator<S>,
        spent_after: impl Fn(Round) -> Option<f64>,
    ) {
        let measured = coordinator.evaluations().iter();
        let measured = measured.filter(|evaluation| evaluation.round > 0);
        self.restore(measured.map(|evaluation| point(evaluation, spent_after(evaluation.round))));
        for (client, member) in coordinator.members().iter().enumerate() {
            let Some(member) = member else { continue };
            self.client(client as ClientId, |client| {
                (client.joined, client.finished) = (true, member.done);
            });
        }
    }

    /// A client has joined, the run has begun, or a round has closed. `closed` is that round,
    /// unless it is on the curves already; `spent` is the epsilon of a client that took part in all
    /// rounds.
    pub fn coordinator_changed<S: ServerStore>(
        &self,
        coordinator: &Coordinator<S>,
        closed: Option<&ClosedRound>,
        spent: Option<f64>,
    ) {
        self.phase(match (coordinator.begun(), coordinator.finished()) {
            (_, true) => Phase::Finished,
            (true, _) => Phase::Running,
            _ => Phase::Waiting,
        });
        let (round, now) = (coordinator.round(), unix_time());
        let (taken, missed) = (coordinator.taken(), coordinator.missed());
        self.update(|status| {
            (status.round, status.opened) = (round, Some(now));
            for client in &mut status.clients {
                let index = client.client as usize;
                client.epsilon = spent;
                client.taken = taken.get(index).copied().unwrap_or(0);
                (client.missed, client.missed_last) =
                    missed.get(index).copied().unwrap_or_default();
            }
        });
        // Rounds that are not measured have a time and traffic, too.
        if let Some(closed) = closed {
            let sums = coordinator.sums();
            self.append(Point {
                round,
                uplink_bytes: sums.uplink,
                downlink_bytes: sums.downlink,
                seconds: coordinator.last_seconds(),
                taken: closed.taken(),
                epsilon: spent,
                ..Point::default()
            });
        }
    }

    /// The open round has messages of so many clients.
    pub fn arrived(&self, clients: u32) {
        self.update(|status| status.arrived = clients);
    }

    /// A closed round was measured; the model before the first round is not shown.
    pub fn measured(&self, evaluation: &Evaluation, spent: Option<f64>) {
        if evaluation.round > 0 {
            self.append(point(evaluation, spent));
        }
    }

    /// The run is in another phase. A server that is shutting down stays so, whatever round closes
    /// meanwhile.
    pub fn phase(&self, phase: Phase) {
        self.update(|status| {
            if status.phase != Phase::Stopping {
                status.phase = phase;
            }
        });
    }

    /// The server cannot go on, or it can again.
    pub fn trouble(&self, trouble: Option<String>) {
        self.update(|status| status.trouble = trouble);
    }

    /// Shows these counters in the metrics.
    pub fn count_connections(&self, counters: Arc<ConnectionCounters>) {
        let connections = self.feed.shared.connections.lock();
        *connections.unwrap_or_else(PoisonError::into_inner) = Some(counters);
    }

    /// Adds a closed round to the curves, or to a round that is there what was measured of it
    /// later.
    pub fn append(&self, point: Point) {
        let mut state = self.feed.lock();
        if point.round > state.status.round {
            state.status.round = point.round;
            state.status.arrived = 0;
        }
        if state.history.push(point) && point.round > 0 {
            self.feed.shared.seconds.observe(point.seconds);
        }
    }

    /// Replaces the curves by stored rounds, in order.
    pub fn restore(&self, points: impl IntoIterator<Item = Point>) {
        let mut state = self.feed.lock();
        state.history.clear();
        for point in points {
            state.history.push(point);
        }
        if let Some(last) = state.history.last() {
            state.status.round = state.status.round.max(last.round);
        }
    }

    /// Sets what is known of a client, as a test wants it.
    #[cfg(feature = "test-util")]
    pub fn set_client(&self, client: ClientId, change: impl FnOnce(&mut Client)) {
        self.client(client, change);
    }

    /// Sets the status, as a test wants it.
    #[cfg(feature = "test-util")]
    pub fn set_status(&self, change: impl FnOnce(&mut Status)) {
        self.update(change);
    }

    /// Bytes came from a client now, and change what is known of it.
    fn received(&self, client: ClientId, bytes: u64, change: impl FnOnce(&mut Client)) {
        let now = unix_time();
        self.client(client, |client| {
            client.bytes_up += bytes;
            client.last_seen = Some(now);
            change(client);
        });
    }

    /// Changes what is known of a client; one that the run does not have is ignored.
    fn client(&self, client: ClientId, change: impl FnOnce(&mut Client)) {
        if let Some(client) = self.feed.lock().status.clients.get_mut(client as usize) {
            change(client);
        }
    }

    fn update(&self, change: impl FnOnce(&mut Status)) {
        change(&mut self.feed.lock().status);
    }
}

/// A measured round as a point of the curves.
fn point(evaluation: &Evaluation, epsilon: Option<f64>) -> Point {
    Point {
        round: evaluation.round,
        test_loss: evaluation.loss,
        test_accuracy: evaluation.accuracy,
        uplink_bytes: evaluation.sums.uplink,
        downlink_bytes: evaluation.sums.downlink,
        seconds: evaluation.seconds,
        taken: evaluation.taken,
        epsilon,
    }
}
