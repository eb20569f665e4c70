//! What a client shows while it takes part: a bar at a terminal, elsewhere a line now and then
//! while it waits, for the other clients or for the server.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use jiff::{SignedDuration, Timestamp};

use super::super::Verbosity;
use crate::logs::{self, Reminder};
use soteriafl_deploy::log_quota;
use soteriafl_deploy::net::client::{Audience, Wait};
use soteriafl_deploy::participant::Participant;

/// How long a client waits before it says so, unless the server has said what for.
const PATIENCE: Duration = Duration::from_secs(10);

/// While rounds are done.
const ROUNDS: &str = "{bar:32.cyan/dim} {pos}/{len} rounds  {per_sec:.dim}  {eta:.dim} left";

/// While the run waits: nobody knows how much time is left, so what it waits for is shown instead.
const WAITING: &str = "{bar:16.cyan/dim} {pos}/{len}  {wide_msg}";

/// What is shown of one client's run.
pub(super) struct Progress {
    bar: ProgressBar,
    usual: ProgressStyle,
    verbosity: Verbosity,
    /// When a line was last written about other clients, and about the server.
    others: Reminder,
    server: Reminder,
    /// Since when there is no connection, and whether that was said.
    cut_off: Option<(Instant, bool)>,
    waits: bool,
}

impl Progress {
    /// For a run of so many rounds.
    pub(super) fn new(rounds: u32, verbosity: Verbosity) -> Self {
        let bar = verbosity.bar(Some(u64::from(rounds)), ROUNDS);
        Self {
            usual: bar.style(),
            bar,
            verbosity,
            others: Reminder::default(),
            server: Reminder::default(),
            cut_off: None,
            waits: false,
        }
    }

    /// There is no connection, for a reason that may pass.
    pub(super) fn cut_off(&mut self, reason: &str) {
        let (since, said) = self.cut_off.unwrap_or((Instant::now(), false));
        let text = format!("no connection to the server ({reason}); trying again");
        let due = self.server.due(since.elapsed(), Instant::now());
        self.cut_off = Some((since, said || due));
        self.show(&text, since, due);
    }

    /// There is one again.
    pub(super) fn connected(&mut self) {
        let Some((since, said)) = self.cut_off.take() else {
            return;
        };
        self.go_on();
        if said && self.bar.is_hidden() {
            let seconds = since.elapsed().as_secs();
            self.verbosity
                .say(format!("connected again after {seconds} s"));
        }
    }

    /// Nothing more will be shown.
    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }

    /// Shows what is waited for, at a terminal always, elsewhere when it is time for another line.
    fn show(&mut self, text: &str, since: Instant, due: bool) {
        log_quota::tell_left_out();
        let lasted = since.elapsed();
        let (clock, seconds) = (clock(lasted), lasted.as_secs());
        if !self.bar.is_hidden() {
            if !std::mem::replace(&mut self.waits, true)
                && let Ok(style) = ProgressStyle::with_template(WAITING)
            {
                self.bar.set_style(style);
            }
            // The end of it may not fit on the line.
            let message = format!("since {clock} UTC ({seconds} s): {text}");
            self.bar.set_message(message);
            return;
        }
        self.waits = true;
        if due {
            let round = self.bar.position();
            match logs::for_machines() {
                true => tracing::info!(round, seconds, "{text}"),
                false => self.verbosity.say(format!(
                    "round {round}: {text}, since {clock} UTC ({seconds} s)"
                )),
            }
        }
    }

    fn go_on(&mut self) {
        if std::mem::take(&mut self.waits) && !self.bar.is_hidden() {
            self.bar.set_message("");
            self.bar.set_style(self.usual.clone());
        }
    }
}

impl<S> Audience<S> for Progress
where
    S: soteriafl_deploy::store::ClientStore,
{
    fn advanced(&mut self, participant: &Participant<S>) -> ControlFlow<()> {
        self.go_on();
        self.bar
            .set_position(u64::from(participant.replica().round()));
        ControlFlow::Continue(())
    }

    fn waits(&mut self, wait: &Wait) {
        if wait.others.is_some() || wait.since.elapsed() >= PATIENCE {
            let due = self.others.due(wait.since.elapsed(), Instant::now());
            self.show(&others(wait.others), wait.since, due);
        }
    }
}

/// Whom a client waits for, in words.
fn others(others: Option<(u32, u32)>) -> String {
    let clients = |count: u32| match count {
        1 => "1 other client".to_string(),
        count => format!("{count} other clients"),
    };
    match others {
        None => "waiting for the other clients".to_string(),
        Some((missing, 0)) => format!("waiting for {}", clients(missing)),
        Some((missing, away)) if missing == away => {
            format!("waiting for {} without a connection", clients(missing))
        }
        Some((missing, away)) => format!(
            "waiting for {}, {away} of them without a connection",
            clients(missing)
        ),
    }
}

/// The time of day so long ago.
fn clock(ago: Duration) -> String {
    let ago = SignedDuration::try_from(ago).unwrap_or_default();
    let then = Timestamp::now().saturating_sub(ago);
    then.map_or_else(
        |_| String::new(),
        |then| then.strftime("%H:%M:%S").to_string(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_says_for_whom_as_far_as_that_is_known() {
        assert_eq!(others(None), "waiting for the other clients");
        assert_eq!(others(Some((1, 0))), "waiting for 1 other client");
        let away = "waiting for 1 other client without a connection";
        assert_eq!(others(Some((1, 1))), away);
        let some = "waiting for 3 other clients, 1 of them without a connection";
        assert_eq!(others(Some((3, 1))), some);
        assert_eq!(clock(Duration::ZERO).len(), 8);
    }
}
