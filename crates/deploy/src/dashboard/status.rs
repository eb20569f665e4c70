//! The state of a run as plain data.

use serde::Serialize;
use soteriafl_core::protocol::{ClientId, Round};

use super::waiting::Waiting;

/// Rows of clients in one event for the page.
pub const ROWS: usize = 50;

/// Points of the curves that are kept; beyond that every second one goes.
pub const POINTS: usize = 4096;

/// What does not change while the run lasts.
#[derive(Clone, Debug, Default, Serialize)]
pub struct About {
    /// The run's identifier: public, the hash of its description.
    pub run: String,
    /// Its algorithm.
    pub algorithm: String,
    /// What it trains, in a few words.
    pub model: String,
    /// Parameters.
    pub dimension: usize,
    /// Messages that each client sends.
    pub rounds: Round,
    /// How many clients there are.
    pub clients: usize,
    /// How many messages suffice after the deadline; `None` if a round waits for all.
    pub quorum: Option<usize>,
    /// After how many seconds they do.
    pub deadline: Option<f64>,
    /// What is claimed of the whole run; `None` without a claim.
    pub epsilon: Option<f64>,
    /// The delta of that claim.
    pub delta: f64,
    /// `proved`, or why there is no claim.
    pub claim: String,
    /// Whether the server has a test set.
    pub tested: bool,
    /// The version of the program.
    pub version: String,
}

/// The phase of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Clients are missing.
    #[default]
    Waiting,
    /// Rounds are under way.
    Running,
    /// All rounds are done.
    Finished,
    /// The server is shutting down before the end; started again, it continues the run.
    Stopping,
}

/// One client as the server knows it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Client {
    /// Its number.
    pub client: ClientId,
    /// Whether it has agreed to the run.
    pub joined: bool,
    /// Whether it follows the run now.
    pub connected: bool,
    /// When that last changed, in seconds since 1970; `None` if it has not since this server
    /// process started.
    pub since: Option<f64>,
    /// The round after the last one of which this process has its message.
    #[serde(skip)]
    pub answered: Round,
    /// How far it is by its own word: the round whose model it has, or the one after its last
    /// message.
    pub round: Round,
    /// Its messages that were taken.
    pub taken: u32,
    /// Rounds that closed without it.
    pub missed: u32,
    /// Whether the last round did.
    pub missed_last: bool,
    /// Bytes from it since this server process started.
    pub bytes_up: u64,
    /// Bytes to it since then.
    pub bytes_down: u64,
    /// What it has spent at most as the run defines it; `None` without a claim.
    pub epsilon: Option<f64>,
    /// When something last came from it, in seconds since 1970.
    pub last_seen: Option<f64>,
    /// Whether it has taken note of the end.
    pub finished: bool,
}

/// One closed round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Point {
    /// Rounds done, so the start is 0.
    pub round: Round,
    /// Loss on the server's test set.
    pub test_loss: Option<f64>,
    /// Accuracy on the server's test set.
    pub test_accuracy: Option<f64>,
    /// Bytes from all clients so far.
    pub uplink_bytes: u64,
    /// Bytes to all clients so far.
    pub downlink_bytes: u64,
    /// How long the round took, from its opening to its commit.
    pub seconds: f64,
    /// How many messages were taken.
    pub taken: u32,
    /// The largest epsilon that a client has spent; `None` without a claim.
    pub epsilon: Option<f64>,
}

/// What changes.
#[derive(Clone, Debug, Default)]
pub struct Status {
    /// The phase of the run.
    pub phase: Phase,
    /// Rounds closed.
    pub round: Round,
    /// When this server process started, in seconds since 1970.
    pub started: f64,
    /// When the round that is open was opened, in seconds since 1970.
    pub opened: Option<f64>,
    /// Messages that the open round has.
    pub arrived: u32,
    /// All clients, by number.
    pub clients: Vec<Client>,
    /// Why the server cannot go on; `None` when it is well.
    pub trouble: Option<String>,
}

/// How many clients are in which state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// Clients that have joined.
    pub joined: usize,
    /// Clients that have not.
    pub missing: usize,
    /// Clients that follow the run now.
    pub connected: usize,
    /// Joined clients that do not, though they do not know the end.
    pub away: usize,
    /// The other joined clients that have answered in every round lately.
    pub current: usize,
    /// The other joined clients that are behind, or without which the last round closed.
    pub behind: usize,
    /// Clients that have taken note of the end.
    pub finished: usize,
    /// How far the last one is behind.
    pub largest_lag: Round,
    /// Bytes from all clients.
    pub bytes_up: u64,
    /// Bytes to all clients.
    pub bytes_down: u64,
}

/// A client's row on the page.
#[derive(Clone, Debug, Serialize)]
pub struct ClientRow {
    /// The client.
    #[serde(flatten)]
    pub client: Client,
    /// How many rounds it is behind.
    pub lag: Round,
    /// Whether the open round has its message.
    pub answered: bool,
}

/// One event for the page, and the answer of `/api/status` (there with all clients).
#[derive(Clone, Debug, Serialize)]
pub struct Snapshot {
    /// What does not change.
    pub about: About,
    /// The phase of the run.
    pub phase: Phase,
    /// Rounds closed.
    pub round: Round,
    /// When this server process started, in seconds since 1970.
    pub started: f64,
    /// When the open round was opened.
    pub opened: Option<f64>,
    /// Messages that the open round has.
    pub arrived: u32,
    /// The server's clock, in seconds since 1970.
    pub now: f64,
    /// What the run waits for; `None` while it goes on.
    pub waiting: Option<Waiting>,
    /// Counts.
    pub summary: Summary,
    /// Clients, furthest behind first.
    pub clients: Vec<ClientRow>,
    /// Clients that are not among them.
    pub more_clients: usize,
    /// The last point of the curves.
    pub last: Option<Point>,
    /// Why the server cannot go on.
    pub trouble: Option<String>,
}

impl Status {
    /// How many rounds a client is behind by its own word, and at least one if the last round
    /// closed without it, or if rounds are under way and it is not connected; one that never joined
    /// is behind by all. Whoever knows the end is not behind.
    pub fn lag(&self, client: &Client) -> Round {
        match client.finished {
            true => 0,
            false => {
                let absent = self.phase == Phase::Running && !client.connected;
                let silent = Round::from(client.joined && (client.missed_last || absent));
                self.round.saturating_sub(client.round).max(silent)
            }
        }
    }

    /// Counts over all clients.
    pub fn summary(&self) -> Summary {
        let mut summary = Summary::default();
        for client in &self.clients {
            let lag = self.lag(client);
            match client.joined {
                false => summary.missing += 1,
                true if !client.connected && !client.finished => summary.away += 1,
                true if lag == 0 => summary.current += 1,
                true => summary.behind += 1,
            }
            summary.connected += usize::from(client.connected);
            summary.joined += usize::from(client.joined);
            summary.finished += usize::from(client.finished);
            if client.joined {
                summary.largest_lag = summary.largest_lag.max(lag);
            }
            summary.bytes_up += client.bytes_up;
            summary.bytes_down += client.bytes_down;
        }
        summary
    }

    /// The state with at most `rows` clients: the missing ones first, then those who are away, then
    /// by lag, then by silence. `pace` is how long rounds take lately.
    pub fn snapshot(
        &self,
        about: &About,
        last: Option<Point>,
        pace: Option<f64>,
        now: f64,
        rows: usize,
    ) -> Snapshot {
        let urgency = |client: &Client| {
            let seen = client.last_seen.unwrap_or(0.0);
            let here = (client.joined, client.connected || client.finished);
            (here, std::cmp::Reverse(self.lag(client)), seen)
        };
        let mut order: Vec<&Client> = self.clients.iter().collect();
        let by_urgency = |a: &&Client, b: &&Client| {
            let (a_first, b_first) = (urgency(a), urgency(b));
            (a_first.0, a_first.1)
                .cmp(&(b_first.0, b_first.1))
                .then(match self.clients.len() > rows {
                    // With everybody on the page, rows that jump about are worse than an exact
                    // order.
                    true => a_first.2.total_cmp(&b_first.2),
                    false => std::cmp::Ordering::Equal,
                })
                .then(a.client.cmp(&b.client))
        };
        if order.len() > rows && rows > 0 {
            order.select_nth_unstable_by(rows - 1, by_urgency);
        }
        order.truncate(rows);
        order.sort_by(by_urgency);
        Snapshot {
            about: about.clone(),
            phase: self.phase,
            round: self.round,
            started: self.started,
            opened: self.opened,
            arrived: self.arrived,
            now,
            waiting: self.waiting(about, pace, now),
            summary: self.summary(),
            more_clients: self.clients.len() - order.len(),
            clients: order
                .into_iter()
                .map(|client| ClientRow {
                    client: client.clone(),
                    lag: self.lag(client),
                    answered: self.answered(client),
                })
                .collect(),
            last,
            trouble: self.trouble.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status() -> Status {
        let mut status = Status {
            round: 10,
            ..Status::default()
        };
        for client in 0..100 {
            status.clients.push(Client {
                client,
                joined: client != 42,
                connected: client != 42,
                round: if client == 7 { 3 } else { 10 },
                bytes_up: 2,
                last_seen: Some(f64::from(client)),
                ..Client::default()
            });
        }
        status
    }

    #[test]
    fn the_page_sees_who_is_missing_and_who_is_behind() {
        let snapshot = status().snapshot(&About::default(), None, None, 0.0, 5);
        let order: Vec<ClientId> = snapshot
            .clients
            .iter()
            .map(|row| row.client.client)
            .collect();
        assert_eq!(order, [42, 7, 0, 1, 2]);
        assert_eq!(snapshot.more_clients, 95);
        assert_eq!(snapshot.clients[1].lag, 7);
    }

    /// A client that is only written to, or that answers too late, is not up to date.
    #[test]
    fn whoever_misses_rounds_is_behind() {
        let mut status = status();
        status.clients[8].missed_last = true;
        let behind = |status: &Status| (status.summary().behind, status.lag(&status.clients[8]));
        assert_eq!(behind(&status), (2, 1));
        status.clients[8].missed_last = false;
        // Its message for the open round is here already.
        status.clients[8].round = 11;
        assert_eq!(behind(&status), (1, 0));
        status.clients[8].round = 10;
        (status.round, status.clients[8].finished) = (12, true);
        assert_eq!(behind(&status).1, 0);
    }

    /// A client without a connection is neither up to date nor in step, whatever it said last.
    #[test]
    fn whoever_is_away_is_counted_and_listed_first() {
        let mut status = status();
        status.phase = Phase::Running;
        (status.clients[9].connected, status.clients[9].round) = (false, 11);
        let summary = status.summary();
        let counts = (summary.connected, summary.away, summary.current);
        assert_eq!(counts, (98, 1, 97));
        assert_eq!(status.lag(&status.clients[9]), 1);
        let snapshot = status.snapshot(&About::default(), None, None, 0.0, 3);
        let order: Vec<ClientId> = snapshot
            .clients
            .iter()
            .map(|row| row.client.client)
            .collect();
        assert_eq!(order, [42, 9, 7]);
        // At the end all clients leave; those that acknowledged it are not missing.
        (status.phase, status.clients[9].finished) = (Phase::Finished, true);
        assert_eq!(
            (status.summary().away, status.lag(&status.clients[9])),
            (0, 0)
        );
    }

    #[test]
    fn everybody_is_counted() {
        let summary = status().summary();
        let expected = Summary {
            joined: 99,
            missing: 1,
            connected: 99,
            away: 0,
            current: 98,
            behind: 1,
            finished: 0,
            largest_lag: 7,
            bytes_up: 200,
            bytes_down: 0,
        };
        assert_eq!(summary, expected);
    }
}
