//! What a run waits for, and since when: one answer for the page, the metrics, the log and the
//! clients.
//!
//! Before the first round a run waits for clients to join, in a round for those whose message is
//! not there, and after the last one for those who do not know the end. A round that has just
//! opened is no reason to say anything: it *waits* from the moment one of them is without a
//! connection, and otherwise when it has been open for longer than five seconds and three times the
//! usual.
//!
//! Cost: one pass over all clients whenever somebody asks.

use serde::Serialize;
use soteriafl_core::protocol::ClientId;

use super::status::{About, Client, Phase, Status};

/// How many clients are named.
pub const NAMED: usize = 50;

/// The shortest time in seconds after which a round that nobody has left is said to wait.
const PATIENCE: f64 = 5.0;

/// A run that waits.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Waiting {
    /// Since when, in seconds since 1970.
    pub since: f64,
    /// For how many seconds.
    pub seconds: f64,
    /// How many clients have not answered.
    pub missing: usize,
    /// How many of them are not connected.
    pub away: usize,
    /// When the round closes without them, in seconds since 1970; `None` if it does not.
    pub closes: Option<f64>,
    /// The first `NAMED` of them, those without a connection first.
    pub clients: Vec<Awaited>,
}

/// A client that is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Awaited {
    /// Its number.
    pub client: ClientId,
    /// Whether it is connected.
    pub connected: bool,
    /// Since when it is waited for, or, if it is not connected, since when it is not; in seconds
    /// since 1970.
    pub since: f64,
}

impl Status {
    /// Whether a client keeps the run waiting, now or as soon as it takes long.
    pub fn awaits(&self, client: &Client) -> bool {
        match self.phase {
            Phase::Waiting => !(client.joined && client.connected),
            Phase::Running => !self.answered(client),
            Phase::Finished => client.joined && !client.finished,
            Phase::Stopping => false,
        }
    }

    /// Whether the open round has a client's message.
    pub fn answered(&self, client: &Client) -> bool {
        client.answered > self.round
    }

    /// What the run waits for, if it waits. `pace` is how long rounds take lately.
    pub fn waiting(&self, about: &About, pace: Option<f64>, now: f64) -> Option<Waiting> {
        let opened = self.opened.unwrap_or(self.started);
        let since = |client: &Client| match client.connected {
            true => opened,
            false => client.since.unwrap_or(self.started),
        };
        let (mut missing, mut away, mut first) = (0, 0, f64::INFINITY);
        let mut awaited: Vec<Awaited> = Vec::new();
        for client in self.clients.iter().filter(|client| self.awaits(client)) {
            missing += 1;
            away += usize::from(!client.connected);
            first = first.min(since(client));
            awaited.push(Awaited {
                client: client.client,
                connected: client.connected,
                since: since(client),
            });
        }
        let patience = PATIENCE.max(3.0 * pace.unwrap_or(0.0));
        let long = self.opened.is_some_and(|opened| now - opened > patience);
        if missing == 0 || (away == 0 && !long) {
            return None;
        }
        awaited.sort_by_key(|client| (client.connected, client.client));
        awaited.truncate(NAMED);
        // A client that has been away for long holds this round up since it is open.
        let since = first.max(opened);
        Some(Waiting {
            since,
            seconds: (now - since).max(0.0),
            missing,
            away,
            closes: self.closes(about, away, opened),
            clients: awaited,
        })
    }

    /// When the open round closes without those who are away, if the others are enough.
    fn closes(&self, about: &About, away: usize, opened: f64) -> Option<f64> {
        let enough = self.clients.len().saturating_sub(away) >= about.quorum?;
        let running = self.phase == Phase::Running;
        about
            .deadline
            .filter(|_| enough && running)
            .map(|deadline| opened + deadline)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(clients: u32) -> (About, Status) {
        let status = Status {
            phase: Phase::Running,
            round: 7,
            started: 50.0,
            opened: Some(100.0),
            clients: (0..clients)
                .map(|client| Client {
                    client,
                    joined: true,
                    connected: true,
                    since: Some(60.0),
                    ..Client::default()
                })
                .collect(),
            ..Status::default()
        };
        (About::default(), status)
    }

    fn named(waiting: &Waiting) -> Vec<(ClientId, bool, f64)> {
        let clients = waiting.clients.iter();
        clients
            .map(|client| (client.client, client.connected, client.since))
            .collect()
    }

    #[test]
    fn a_lost_client_is_waited_for_at_once() {
        let (about, mut status) = run(3);
        assert_eq!(status.waiting(&about, Some(0.1), 101.0), None);
        (status.clients[1].connected, status.clients[1].since) = (false, Some(100.5));
        for client in [0, 2] {
            status.clients[client].answered = 8;
        }
        let waiting = status.waiting(&about, Some(0.1), 101.0).expect("it waits");
        assert_eq!((waiting.since, waiting.seconds), (100.5, 0.5));
        assert_eq!((waiting.missing, waiting.away), (1, 1));
        assert_eq!(named(&waiting), [(1, false, 100.5)]);
        assert_eq!(waiting.closes, None);
        // Its message is there: whether it is connected does not matter to this round.
        status.clients[1].answered = 8;
        assert_eq!(status.waiting(&about, Some(0.1), 101.0), None);
    }

    #[test]
    fn a_slow_one_is_waited_for_when_it_takes_longer_than_usual() {
        let (about, mut status) = run(2);
        status.clients[0].answered = 8;
        assert_eq!(status.waiting(&about, Some(0.1), 105.0), None);
        let waiting = status.waiting(&about, Some(0.1), 105.1).expect("it waits");
        assert_eq!(named(&waiting), [(1, true, 100.0)]);
        assert_eq!(status.waiting(&about, Some(10.0), 129.0), None);
        assert!(status.waiting(&about, Some(10.0), 131.0).is_some());
    }

    #[test]
    fn with_enough_others_a_round_closes_by_its_deadline() {
        let (mut about, mut status) = run(3);
        (about.quorum, about.deadline) = (Some(2), Some(60.0));
        (status.clients[1].connected, status.clients[1].since) = (false, Some(70.0));
        let waiting = status.waiting(&about, None, 101.0).expect("it waits");
        // It was lost before the round began to wait for it.
        assert_eq!((waiting.since, waiting.closes), (100.0, Some(160.0)));
        (status.clients[2].connected, status.clients[2].since) = (false, Some(100.0));
        let waiting = status.waiting(&about, None, 101.0).expect("it waits");
        assert_eq!(waiting.closes, None);
    }

    #[test]
    fn before_and_after_the_rounds() {
        let (about, mut status) = run(3);
        status.phase = Phase::Waiting;
        status.clients[2] = Client {
            client: 2,
            ..Client::default()
        };
        let waiting = status.waiting(&about, None, 101.0).expect("it waits");
        assert_eq!(named(&waiting), [(2, false, 50.0)]);
        status.phase = Phase::Finished;
        status.clients[2].joined = true;
        for client in [0, 1] {
            (
                status.clients[client].finished,
                status.clients[client].connected,
            ) = (true, false);
        }
        let waiting = status.waiting(&about, None, 101.0).expect("it waits");
        assert_eq!((waiting.missing, waiting.clients[0].client), (1, 2));
        status.phase = Phase::Stopping;
        assert_eq!(status.waiting(&about, None, 101.0), None);
    }
}
