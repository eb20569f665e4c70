//! The person at the terminal, or reader of the log: agrees to the cost, and is shown the progress.

use std::ops::ControlFlow;

use soteriafl::persons::Bounded;
use soteriafl_data::Adjustment;
use soteriafl_deploy::agreement::{AgreementError, Consent};
use soteriafl_deploy::budget::Cost;
use soteriafl_deploy::description::Description;
use soteriafl_deploy::net::client::{Audience, Wait};
use soteriafl_deploy::net::join::Companion;
use soteriafl_deploy::participant::Participant;
use soteriafl_deploy::sqlite::ClientSqlite;

use super::super::Verbosity;
use super::consent::Asking;
use super::progress::Progress;

/// Asks and shows.
pub(super) struct Person {
    asking: Asking,
    /// Of the run, as soon as it has begun.
    progress: Option<Progress>,
}

impl Person {
    /// Somebody whose answer may be yes beforehand.
    pub(super) fn new(yes: bool, verbosity: Verbosity) -> Self {
        Self {
            asking: Asking { yes, verbosity },
            progress: None,
        }
    }

    /// Nothing more will be shown.
    pub(super) fn finish(&self) {
        if let Some(progress) = &self.progress {
            progress.finish();
        }
    }
}

impl Consent for Person {
    fn unnamed(&mut self, names: &[String]) {
        self.asking.unnamed(names);
    }

    fn adjusted(&mut self, adjustments: &[Adjustment]) {
        self.asking.adjusted(adjustments);
    }

    fn bounded(&mut self, bounded: &Bounded, most: u32) {
        self.asking.bounded(bounded, most);
    }

    fn shown(&mut self, cost: &Cost<'_>, description: &Description) {
        self.asking.shown(cost, description);
    }

    fn without_limit(&mut self, cost: &Cost<'_>) -> Result<(), AgreementError> {
        self.asking.without_limit(cost)
    }
}

impl Audience<ClientSqlite> for Person {
    fn advanced(&mut self, participant: &Participant<ClientSqlite>) -> ControlFlow<()> {
        match &mut self.progress {
            Some(progress) => progress.advanced(participant),
            None => ControlFlow::Continue(()),
        }
    }

    fn waits(&mut self, wait: &Wait) {
        if let Some(progress) = &mut self.progress {
            Audience::<ClientSqlite>::waits(progress, wait);
        }
    }
}

impl Companion for Person {
    fn no_answer(&mut self, reason: &str) {
        self.asking.verbosity.say(format!(
            "no answer yet ({reason}); trying until there is one"
        ));
    }

    fn nothing_to_do(&mut self, reason: &str) {
        self.asking.verbosity.say(format!(
            "no answer ({reason}), and nothing left to do: the last run of this state is over"
        ));
    }

    fn begins(&mut self, rounds: u32) {
        self.progress = Some(Progress::new(rounds, self.asking.verbosity));
    }

    fn connected(&mut self) {
        if let Some(progress) = &mut self.progress {
            progress.connected();
        }
    }

    fn cut_off(&mut self, reason: &str) {
        if let Some(progress) = &mut self.progress {
            progress.cut_off(reason);
        }
    }
}
