//! While a run waits for clients, tells which ones: the log with numbers and times, and connected
//! clients with a count.
//!
//! The log has a line after five seconds, later one a minute, then one in ten minutes, as long as
//! the wait lasts; who lost its connection, and when, is logged at once elsewhere
//! ([`Service`](soteriafl_deploy::net::grpc::Service)). Clients hear numbers, not names.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use soteriafl_core::protocol::Round;

use crate::logs::Reminder;
use soteriafl_deploy::dashboard::{Awaited, Feed, Phase, Waiting};
use soteriafl_deploy::net::grpc::{Streams, Wait};

/// How often the run is looked at.
const LOOK: Duration = Duration::from_secs(1);

/// How long a wait has lasted when the log first mentions it.
const MENTIONED: Duration = Duration::from_secs(5);

/// How often clients are told that the numbers have changed.
const TOLD: Duration = Duration::from_secs(5);

/// Clients that one line of the log names.
const NAMED: usize = 8;

/// Looks every second at what the run waits for, until the task is ended.
pub(super) async fn remind(feed: Feed, streams: Streams) {
    let mut looks = tokio::time::interval(LOOK);
    let (mut reminder, mut told) = (Reminder::default(), None);
    loop {
        looks.tick().await;
        let (phase, round, waiting) = feed.waiting();
        // That not all have joined in the first seconds is nothing to tell.
        let early = |waiting: &&Waiting| phase == Phase::Waiting && lasted(waiting) < MENTIONED;
        let notable = waiting.as_ref().filter(|waiting| !early(waiting));
        tell(&streams, notable, &mut told, Instant::now());
        let Some(waiting) = waiting else { continue };
        if lasted(&waiting) >= MENTIONED && reminder.due(known_for(&waiting), Instant::now()) {
            mention(phase, round, &waiting);
        }
    }
}

/// Tells those who follow: at once when the run begins to wait, and not too often that the numbers
/// have changed. A round that will close by its deadline is nothing to tell.
fn tell(
    streams: &Streams,
    waiting: Option<&Waiting>,
    told: &mut Option<(Instant, usize, usize)>,
    now: Instant,
) {
    let Some(waiting) = waiting.filter(|waiting| waiting.closes.is_none()) else {
        if told.take().is_some() {
            streams.tell(None);
        }
        return;
    };
    let (missing, away) = (waiting.missing, waiting.away);
    let due = match *told {
        None => true,
        Some((_, known, gone)) if (known, gone) == (missing, away) => false,
        Some((last, ..)) => now.saturating_duration_since(last) >= TOLD,
    };
    if due {
        *told = Some((now, missing, away));
        streams.tell(Some(Wait {
            missing,
            away,
            lasted: lasted(waiting),
        }));
    }
}

fn lasted(waiting: &Waiting) -> Duration {
    Duration::try_from_secs_f64(waiting.seconds).unwrap_or_default()
}

/// For how long the log has known of it: whoever is away for many rounds is not news in each of
/// them.
fn known_for(waiting: &Waiting) -> Duration {
    let since = waiting.clients.iter().map(|client| client.since);
    let first = since.fold(waiting.since, f64::min);
    let now = waiting.since + waiting.seconds;
    Duration::try_from_secs_f64(now - first).unwrap_or_default()
}

fn mention(phase: Phase, round: Round, waiting: &Waiting) {
    let clients = names(waiting);
    let (missing, away, seconds) = (waiting.missing, waiting.away, waiting.seconds.round());
    let since = utc(waiting.since);
    match phase {
        Phase::Waiting => {
            tracing::info!(missing, %since, seconds, %clients, "waiting for clients to join");
        }
        Phase::Finished => {
            tracing::info!(
                missing, %since, seconds, %clients,
                "waiting for clients to know the end"
            );
        }
        _ => tracing::warn!(
            round, missing, away, %since, seconds, %clients,
            "the round waits for clients that have not answered"
        ),
    }
}

/// Whom a line names: `1 (no connection since 2026-01-02T03:04:05Z), 7 and 3 more`.
fn names(waiting: &Waiting) -> String {
    let name = |awaited: &Awaited| match awaited.connected {
        true => awaited.client.to_string(),
        false => format!(
            "{} (no connection since {})",
            awaited.client,
            utc(awaited.since)
        ),
    };
    let named: Vec<String> = waiting.clients.iter().take(NAMED).map(name).collect();
    match waiting.missing - named.len() {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}

/// A time in seconds since 1970, to the second.
fn utc(time: f64) -> String {
    let time = Timestamp::from_second(time as i64);
    time.map_or_else(|_| "an unknown time".to_string(), |time| time.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_names_a_few_and_counts_the_others() {
        let clients = (0..50).map(|client| Awaited {
            client,
            connected: client > 0,
            since: 1.0,
        });
        let mut waiting = Waiting {
            since: 1.0,
            seconds: 1.0,
            missing: 1000,
            away: 1,
            closes: None,
            clients: clients.collect(),
        };
        let expected =
            "0 (no connection since 1970-01-01T00:00:01Z), 1, 2, 3, 4, 5, 6, 7 and 992 more";
        assert_eq!(names(&waiting), expected);
        waiting.clients.truncate(2);
        waiting.missing = 2;
        assert_eq!(
            names(&waiting),
            "0 (no connection since 1970-01-01T00:00:01Z), 1"
        );
    }
}
