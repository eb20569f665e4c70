//! What joining costs: shown before anything has left, and agreed to.

use std::io::{BufRead, IsTerminal, Write};

use soteria_accountant::round_up;

use super::super::{Failure, Verbosity};
use super::Options;
use crate::deploy::budget::{self, Priced, Spent, adjacency_name};
use crate::deploy::description::Description;
use crate::deploy::store::LedgerRun;
use crate::deploy::{hex, printable};
use crate::logs;
use crate::words::readable;

/// Shows what the run costs and what was spent before, and returns the sum, all of the run in it.
pub(super) fn show(
    description: &Description,
    run: &LedgerRun,
    known: &[LedgerRun],
    options: &Options,
    verbosity: Verbosity,
) -> Result<Spent, Failure> {
    let Priced {
        records,
        epsilon,
        epsilon_replace_one,
        delta,
        zero_out,
        claim,
        rounds,
        ..
    } = &run.price;
    let beside = if *zero_out {
        format!("; {} replace-one", epsilon_text(*epsilon_replace_one))
    } else {
        String::new()
    };
    let replace_one = options.adjacency.is_some();
    let counted = |other: &&LedgerRun| options.count_all || other.data == run.data;
    let before = budget::spent_in(known.iter().filter(counted), None, replace_one)?;
    let total = budget::spent_in(known.iter().filter(counted), Some(run), replace_one)?;
    if logs::for_machines() {
        tracing::info!(
            run = hex(&run.hash),
            client = run.client,
            records,
            messages = rounds,
            epsilon,
            epsilon_replace_one,
            delta,
            adjacency = adjacency_name(*zero_out),
            claim,
            spent = before.epsilon,
            runs_before = before.runs,
            total = total.epsilon,
            total_delta = total.delta,
            total_adjacency = adjacency_name(total.zero_out),
            "cost"
        );
    }
    // For people; machines have it all in one event.
    let tell = |line: String| {
        if !logs::for_machines() {
            verbosity.say(line);
        }
    };
    tell(format!(
        "run {}: {} with {} parameters, client {} of {}, {records} records, {rounds} messages",
        &hex(&run.hash)[..16],
        description.resolved.algorithm(),
        description.dimension(),
        run.client,
        description.resolved.clients,
    ));
    tell(format!(
        "this run costs epsilon {} at delta {delta}, {}{beside} (claim: {claim})",
        epsilon_text(*epsilon),
        adjacency_name(*zero_out),
    ));
    for warning in &description.warnings {
        verbosity.warn(printable(warning));
    }
    let whose = if options.count_all {
        "all records of this state have"
    } else {
        "these records have"
    };
    tell(format!(
        "{whose} spent epsilon {} so far in {} runs; with all of this run {} at delta {}, {}",
        epsilon_text(before.epsilon),
        before.runs,
        epsilon_text(total.epsilon),
        total.delta,
        adjacency_name(total.zero_out),
    ));
    let uncounted = known.iter().filter(|other| !counted(other));
    let others = budget::spent_in(uncounted, None, replace_one)?;
    if others.runs > 0 {
        verbosity.warn(format!(
            "runs of this state on other data sets have spent epsilon {} ({} runs), which is not counted here; if they shared records with this one, --count-all counts it",
            epsilon_text(others.epsilon),
            others.runs,
        ));
    }
    Ok(total)
}

fn epsilon_text(epsilon: Option<f64>) -> String {
    epsilon.map_or("unknown".to_string(), |epsilon| {
        readable(round_up(epsilon, 4))
    })
}

/// Asks a person. Without one the run's own epsilon is the only limit, which is said even if nothing else is.
pub(super) fn ask(total: &Spent, verbosity: Verbosity) -> Result<(), Failure> {
    let (stdin, stderr) = (std::io::stdin(), std::io::stderr());
    if !(stdin.is_terminal() && stderr.is_terminal()) {
        let warning = format!(
            "no limit was given, so the run's own epsilon is the only one: these records will have spent {} in all; --max-epsilon E sets a limit, --yes silences this",
            epsilon_text(total.epsilon)
        );
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
