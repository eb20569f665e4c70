//! What joining costs: shown before anything has left, and agreed to.

use std::io::{BufRead, IsTerminal, Write};

use soteriafl_accountant::{Adjacency, round_up};

use super::super::Verbosity;
use super::some_of;
use crate::logs;
use soteriafl::advice;
use soteriafl::specification::neighbours;
use soteriafl::words::{counted, readable};
use soteriafl_data::Adjustment;
use soteriafl_deploy::agreement::{AgreementError, Consent};
use soteriafl_deploy::budget::{Cost, Judged, Refusal, Spent, UNKNOWN_BITS, strict_limit};
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

    fn shown(&mut self, cost: &Cost<'_>, description: &Description) {
        Shown(cost).show(description, self.verbosity);
    }

    fn without_limit(&mut self, cost: &Cost<'_>) -> Result<(), AgreementError> {
        Shown(cost).warn_of_whole_records(self.verbosity)?;
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
            for line in self.lines(description) {
                verbosity.say(line);
            }
        }
        let price = &self.0.run.price;
        if let Some(presumed) = advice::persons(price.records_per_person, &price.claim) {
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

    /// For people.
    fn lines(&self, description: &Description) -> Vec<String> {
        let Cost { run, limits, .. } = self.0;
        let price = &run.price;
        let mut lines = vec![format!(
            "run {}: {} with {}, client {} of {}, {}, {}",
            &hex(&run.hash)[..16],
            description.resolved.algorithm(),
            counted(description.dimension() as u64, "parameter"),
            run.client,
            description.resolved.clients,
            counted(price.records, "record"),
            counted(price.rounds, "message"),
        )];
        let beside = if price.adjacency == Adjacency::ZeroOut {
            let replaced = price
                .cost(Adjacency::ReplaceOne, price.delta)
                .unwrap_or(None);
            format!("; {} replace-one", epsilon_text(replaced))
        } else {
            String::new()
        };
        lines.push(format!(
            "this run costs {} at delta {}, {}{beside} (claim: {})",
            epsilon_text(price.epsilon),
            readable(price.delta),
            neighbours(price.adjacency, price.records_per_person),
            price.claim
        ));
        if run.messages > 0 {
            lines.push(format!(
                "this run goes on: {} of its {} were made, and all of them are counted",
                run.messages,
                counted(price.rounds, "message")
            ));
        }
        lines.push(match self.0.before.runs {
            0 => "before this run nothing was spent".to_string(),
            count => format!(
                "before this run {} spent {} at delta {}, {}",
                counted(count, "run"),
                epsilon_text(self.0.before.epsilon),
                readable(self.0.before.delta),
                neighbours(self.0.before.adjacency, self.0.before.records_per_person)
            ),
        });
        let allowed = |limit: Option<f64>| {
            limit.map_or(String::new(), |limit| {
                format!(" (limit {})", readable(round_up(limit, 4)))
            })
        };
        let Judged { spent, strict, .. } = &self.0.total;
        lines.push(format!(
            "with all of this run {} at delta {}{}, {} at delta {}{}, {}",
            epsilon_text(spent.epsilon),
            readable(spent.delta),
            allowed(limits.epsilon),
            epsilon_text(strict.epsilon),
            readable(strict.delta),
            allowed(limits.epsilon.map(strict_limit)),
            neighbours(spent.adjacency, spent.records_per_person),
        ));
        if self.0.counted.is_known() {
            lines.push(format!(
                "of {} in all the server is expected to read at most {} exactly{}, \
                 if it lacks {UNKNOWN_BITS} bits of each",
                self.0.total.records,
                self.0.total.read_in_words(),
                limits.epsilon.map_or(String::new(), |_| {
                    format!(" (limit {})", readable(limits.most_read()))
                }),
            ));
        }
        lines
    }

    /// For machines, all in one event.
    fn log(&self) {
        let Judged { spent, strict, .. } = &self.0.total;
        let price = &self.0.run.price;
        tracing::info!(
            run = hex(&self.0.run.hash),
            client = self.0.run.client,
            records = price.records,
            messages = price.rounds,
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

    /// Where there is no limit: what would be refused under one that is the run's own epsilon is
    /// said aloud.
    ///
    /// # Errors
    /// When the run cannot be accounted.
    fn warn_of_whole_records(&self, verbosity: Verbosity) -> Result<(), Refusal> {
        let price = &self.0.run.price;
        let Some(claimed) = price.epsilon else {
            return Ok(());
        };
        let alone = self.0.alone()?;
        let strict = &alone.strict;
        let cheap = strict.epsilon.unwrap_or(f64::INFINITY) <= strict_limit(claimed);
        if cheap && alone.read() < self.0.limits.most_read() {
            return Ok(());
        }
        loudly(
            verbosity,
            format!(
                "this run can publish whole records: it names epsilon {} at delta {}, \
                 and costs {} at delta {}; up to {} can be expected to be read; \
                 under a limit of that epsilon it would be refused",
                readable(round_up(claimed, 4)),
                readable(price.delta),
                epsilon_text(strict.epsilon),
                readable(strict.delta),
                alone.read_in_words(),
            ),
        );
        Ok(())
    }
}

fn epsilon_text(epsilon: Option<f64>) -> String {
    match epsilon {
        Some(epsilon) if epsilon.is_finite() => {
            format!("epsilon {}", readable(round_up(epsilon, 4)))
        }
        Some(_) => "more than any accountant can say".to_string(),
        None => "nobody can say how much".to_string(),
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
