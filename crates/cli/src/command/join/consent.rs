//! What joining costs: shown before anything has left, and agreed to.

use std::io::{BufRead, IsTerminal, Write};

use soteriafl_accountant::{Adjacency, round_up};

use super::super::{Failure, Verbosity};
use crate::logs;
use soteriafl::advice;
use soteriafl::specification::neighbours;
use soteriafl::words::{counted, readable};
use soteriafl_deploy::budget::{
    Counted, Judged, Limits, Refusal, Sent, Spent, UNKNOWN_BITS, strict_limit,
};
use soteriafl_deploy::description::Description;
use soteriafl_deploy::store::LedgerRun;
use soteriafl_deploy::{hex, shortened};

/// What a run costs, alone and with what was spent before.
pub(super) struct Cost<'a> {
    run: &'a LedgerRun,
    limits: Limits,
    /// All runs that count, with all of this one.
    pub(super) counted: Counted<'a>,
    /// What they cost.
    pub(super) total: Judged,
    /// Without this run.
    before: Spent,
    /// On other data sets, where those are not counted.
    others: Spent,
}

impl<'a> Cost<'a> {
    /// Adds up. Every run of the state counts, as if each record had been in all of them, unless
    /// data sets are `disjoint`.
    pub(super) fn of(
        run: &'a LedgerRun,
        known: &'a [LedgerRun],
        limits: &Limits,
        disjoint: bool,
    ) -> Result<Self, Refusal> {
        let earlier = known.iter().filter(|known| known.hash != run.hash);
        let (counted, apart): (Vec<_>, Vec<_>) =
            earlier.partition(|earlier| !disjoint || earlier.data == run.data);
        let before = Counted::new(counted.iter().copied(), None, limits.replace_one);
        let apart = Counted::new(apart, None, limits.replace_one);
        let counted = Counted::new(counted, Some(run), limits.replace_one);
        // First what is in the ledger: if that can be added up, the rest is about the run.
        let (before, others) = (limits.spent(&before)?, limits.spent(&apart)?);
        let of_the_run = |refusal: Refusal| refusal.of_the_run(Sent::of(run));
        Ok(Self {
            run,
            limits: *limits,
            total: limits.judged(&counted).map_err(of_the_run)?,
            before,
            others,
            counted,
        })
    }

    /// Shows it, to people or to machines.
    pub(super) fn show(&self, description: &Description, verbosity: Verbosity) {
        if logs::for_machines() {
            self.log();
        } else {
            for line in self.lines(description) {
                verbosity.say(line);
            }
        }
        let price = &self.run.price;
        if let Some(presumed) = advice::persons(price.records_per_person, &price.claim) {
            verbosity.warn(presumed);
        }
        for warning in &description.warnings {
            verbosity.warn(shortened(warning));
        }
        if self.others.runs > 0 {
            verbosity.warn(format!(
                "--disjoint-data-sets: {} on other data sets spent {}, which is not counted here; \
                 that is right only if no record is in two of them",
                counted(self.others.runs, "run"),
                epsilon_text(self.others.epsilon),
            ));
        }
    }

    /// For people.
    fn lines(&self, description: &Description) -> Vec<String> {
        let Self { run, limits, .. } = self;
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
        lines.push(match self.before.runs {
            0 => "before this run nothing was spent".to_string(),
            count => format!(
                "before this run {} spent {} at delta {}, {}",
                counted(count, "run"),
                epsilon_text(self.before.epsilon),
                readable(self.before.delta),
                neighbours(self.before.adjacency, self.before.records_per_person)
            ),
        });
        let allowed = |limit: Option<f64>| {
            limit.map_or(String::new(), |limit| {
                format!(" (limit {})", readable(round_up(limit, 4)))
            })
        };
        let Judged { spent, strict, .. } = &self.total;
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
        if self.counted.is_known() {
            lines.push(format!(
                "of {} in all the server is expected to read at most {} exactly{}, \
                 if it lacks {UNKNOWN_BITS} bits of each",
                self.total.records,
                self.total.read_in_words(),
                limits.epsilon.map_or(String::new(), |_| {
                    format!(" (limit {})", readable(limits.most_read()))
                }),
            ));
        }
        lines
    }

    /// For machines, all in one event.
    fn log(&self) {
        let Judged { spent, strict, .. } = &self.total;
        let price = &self.run.price;
        tracing::info!(
            run = hex(&self.run.hash),
            client = self.run.client,
            records = price.records,
            messages = price.rounds,
            messages_made = self.run.messages,
            epsilon = price.epsilon,
            epsilon_replace_one = price.cost(Adjacency::ReplaceOne, price.delta).unwrap_or(None),
            delta = price.delta,
            adjacency = price.adjacency.word(),
            records_per_person = price.records_per_person,
            claim = %price.claim,
            spent = self.before.epsilon,
            runs_before = self.before.runs,
            total = spent.epsilon,
            total_delta = spent.delta,
            strict = strict.epsilon,
            strict_delta = strict.delta,
            total_adjacency = spent.adjacency.word(),
            read = self.counted.is_known().then(|| self.total.read()),
            "cost"
        );
    }

    /// Where there is no limit: what would be refused under one that is the run's own epsilon is
    /// said aloud.
    ///
    /// # Errors
    /// When the run cannot be accounted.
    pub(super) fn warn_of_whole_records(&self, verbosity: Verbosity) -> Result<(), Refusal> {
        let price = &self.run.price;
        let Some(claimed) = price.epsilon else {
            return Ok(());
        };
        let alone = Counted::new([], Some(self.run), self.limits.replace_one);
        let alone = self.limits.judged(&alone)?;
        let strict = &alone.strict;
        let cheap = strict.epsilon.unwrap_or(f64::INFINITY) <= strict_limit(claimed);
        if cheap && alone.read() < self.limits.most_read() {
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
pub(super) fn ask(total: &Spent, verbosity: Verbosity) -> Result<(), Failure> {
    let (stdin, stderr) = (std::io::stdin(), std::io::stderr());
    if !(stdin.is_terminal() && stderr.is_terminal()) {
        loudly(
            verbosity,
            format!(
                "no limit was given, so the run's own epsilon is the only one: these records will have spent {} in all; --max-epsilon E sets a limit, --yes silences this",
                epsilon_text(total.epsilon)
            ),
        );
        return Ok(());
    }
    let _ = write!(stderr.lock(), "Take part? [y/N] ");
    let mut answer = String::new();
    let read = stdin.lock().read_line(&mut answer);
    if read.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes") {
        Ok(())
    } else {
        Err(Failure::Refused(
            "refused by you; nothing has been sent".to_string(),
        ))
    }
}
