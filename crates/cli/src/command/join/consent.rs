//! What joining costs: shown before anything has left, and agreed to.

use std::io::{BufRead, IsTerminal, Write};

use soteriafl_accountant::Adjacency;

use super::super::Verbosity;
use super::some_of;
use crate::logs;
use soteriafl::advice;
use soteriafl::persons::{self, Bounded};
use soteriafl::words::counted;
use soteriafl_data::Adjustment;
use soteriafl_deploy::agreement::{AgreementError, Consent};
use soteriafl_deploy::budget::{Cost, Judged, Spent, epsilon_text};
use soteriafl_deploy::description::Description;
use soteriafl_deploy::{hex, shortened};

/// Shows what taking part costs, and asks where there is no limit.
pub(super) struct Asking {
    /// Whether the answer is yes beforehand.
    pub(super) yes: bool,
    pub(super) verbosity: Verbosity,
}

impl Consent for Asking {
    fn unnamed(&mut self, names: &[String]) {
        self.verbosity.warn(format!(
            "these records do not say what their columns are called, so their order is not \
             checked; the run has {}",
            some_of(names)
        ));
    }

    fn adjusted(&mut self, adjustments: &[Adjustment]) {
        // A person at a terminal may hear what stands in the records; a log may be sent elsewhere.
        if !logs::for_machines() {
            for adjustment in adjustments {
                self.verbosity.say(adjustment.to_string());
            }
        }
    }

    fn bounded(&mut self, bounded: &Bounded, most: u32) {
        // How many records persons have is told to nobody else, and a log may be sent elsewhere.
        if !logs::for_machines() {
            let told = persons::told(bounded.left_out, bounded.null_records, most);
            self.verbosity.say(told);
        }
    }

    fn shown(&mut self, cost: &Cost<'_>, description: &Description) {
        Shown(cost).show(description, self.verbosity);
    }

    fn without_limit(&mut self, cost: &Cost<'_>) -> Result<(), AgreementError> {
        if let Some(warning) = cost.publishes_records()? {
            loudly(self.verbosity, warning);
        }
        match self.yes || agreed(&cost.total.spent, self.verbosity) {
            true => Ok(()),
            false => Err(AgreementError::Declined(
                "refused by you; nothing has been sent".to_string(),
            )),
        }
    }
}

/// What a run costs, in words.
struct Shown<'a>(&'a Cost<'a>);

impl Shown<'_> {
    /// Shows it, to people or to machines.
    fn show(&self, description: &Description, verbosity: Verbosity) {
        if logs::for_machines() {
            self.log();
        } else {
            for line in self.0.lines(description) {
                verbosity.say(line);
            }
        }
        let price = &self.0.run.price;
        let presumed = advice::persons(price.records_per_person, &price.claim);
        if let Some(presumed) = presumed.filter(|_| !description.bounds_persons()) {
            verbosity.warn(presumed);
        }
        for warning in &description.warnings {
            verbosity.warn(shortened(warning));
        }
        if self.0.others.runs > 0 {
            verbosity.warn(format!(
                "--disjoint-data-sets: {} on other data sets spent {}, which is not counted here; \
                 that is right only if no record is in two of them",
                counted(self.0.others.runs, "run"),
                epsilon_text(self.0.others.epsilon),
            ));
        }
    }

    /// For machines, all in one event.
    fn log(&self) {
        let Judged { spent, strict, .. } = &self.0.total;
        let price = &self.0.run.price;
        tracing::info!(
            run = hex(&self.0.run.hash),
            client = self.0.run.client,
            records = price.records,
            messages = price.messages(),
            messages_made = self.0.run.messages,
            epsilon = price.epsilon,
            epsilon_replace_one = price.cost(Adjacency::ReplaceOne, price.delta).unwrap_or(None),
            delta = price.delta,
            adjacency = price.adjacency.word(),
            records_per_person = price.records_per_person,
            claim = %price.claim,
            spent = self.0.before.epsilon,
            runs_before = self.0.before.runs,
            total = spent.epsilon,
            total_delta = spent.delta,
            strict = strict.epsilon,
            strict_delta = strict.delta,
            total_adjacency = spent.adjacency.word(),
            read = self.0.counted.is_known().then(|| self.0.total.read()),
            "cost"
        );
    }
}

/// A warning that is heard even if nothing else is said.
fn loudly(verbosity: Verbosity, warning: String) {
    if logs::for_machines() && verbosity.quiet {
        // The one level that is left.
        tracing::error!("{warning}");
    } else {
        let loud = Verbosity {
            quiet: false,
            ..verbosity
        };
        loud.warn(warning);
    }
}

/// Asks a person. Without one the run's own epsilon is the only limit, which is said even if
/// nothing else is.
fn agreed(total: &Spent, verbosity: Verbosity) -> bool {
    let (stdin, stderr) = (std::io::stdin(), std::io::stderr());
    if !(stdin.is_terminal() && stderr.is_terminal()) {
        loudly(
            verbosity,
            format!(
                "no limit was given, so the run's own epsilon is the only one: these records will have spent {} in all; --max-epsilon E sets a limit, --yes silences this",
                epsilon_text(total.epsilon)
            ),
        );
        return true;
    }
    let _ = write!(stderr.lock(), "Take part? [y/N] ");
    let mut answer = String::new();
    let read = stdin.lock().read_line(&mut answer);
    read.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes")
}
