//! `soteria ledger`: what a client's records have spent.

use std::fmt::Write;
use std::path::PathBuf;

use serde_json::json;
use soteria_accountant::round_up;

use super::{Failure, Verbosity, print};
use crate::deploy::budget::{self, Spent, adjacency_name};
use crate::deploy::sqlite::ClientSqlite;
use crate::deploy::store::{ClientStore, LedgerRun};
use crate::deploy::{Hash, hex};

/// Show what a client's records have spent, run by run and altogether
///
/// The ledger belongs to a data set, which is known by a digest of its records; data sets are shown by
/// numbers, in the order in which they first took part, for a digest would let others test guesses. Every message that was ever
/// made counts, whether the server took it or not.
#[derive(clap::Args, Debug)]
pub struct Options {
    /// The client's state directory
    #[arg(long, value_name = "DIR")]
    state: PathBuf,
    /// Print the ledger as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
///
/// # Errors
/// When there is no ledger, or it cannot be read.
pub fn run(options: &Options, _verbosity: Verbosity) -> Result<(), Failure> {
    let mut store = ClientSqlite::open_to_read(&options.state)?;
    let runs = store.runs()?;
    let mut sets: Vec<(Hash, Vec<LedgerRun>)> = Vec::new();
    for run in runs {
        match sets.iter_mut().find(|(data, _)| *data == run.data) {
            Some((_, runs)) => runs.push(run),
            None => sets.push((run.data, vec![run])),
        }
    }
    let mut totals = Vec::new();
    for (number, (data, runs)) in (1..).zip(&sets) {
        totals.push((number, runs, budget::spent(runs, data, None, false)?));
    }
    let shown = if options.json {
        let sets: Vec<_> = totals
            .iter()
            .map(|(number, runs, spent)| set_json(*number, runs, spent))
            .collect();
        format!("{:#}\n", json!({ "datasets": sets }))
    } else if totals.is_empty() {
        "no runs yet\n".to_string()
    } else {
        totals
            .iter()
            .map(|(number, runs, spent)| set_text(*number, runs, spent))
            .collect()
    };
    print(&shown)
}

/// Whether all that is counted carries a claim.
fn claimed(runs: &[LedgerRun]) -> bool {
    runs.iter()
        .all(|run| run.price.claim == "proved" || run.messages == 0)
}

fn set_json(number: u32, runs: &[LedgerRun], spent: &Spent) -> serde_json::Value {
    let entries: Vec<_> = runs
        .iter()
        .map(|run| {
            json!({
                "run": hex(&run.hash),
                "client": run.client,
                "messages": run.messages,
                "rounds": run.price.rounds,
                "finished": run.finished,
                "epsilon": run.price.epsilon,
                "epsilon_replace_one": run.price.epsilon_replace_one,
                "delta": run.price.delta,
                "adjacency": adjacency_name(run.price.zero_out),
                "sigma": run.price.sigma,
                "claim": run.price.claim,
            })
        })
        .collect();
    json!({
        "data": number,
        "records": runs.first().map(|run| run.price.records),
        "messages": runs.iter().map(|run| run.messages).sum::<u64>(),
        "epsilon": spent.epsilon,
        "delta": spent.delta,
        "adjacency": adjacency_name(spent.zero_out),
        "method": spent.method,
        "claim": if claimed(runs) { "proved" } else { "some messages carry no claim" },
        "runs": entries,
    })
}

fn set_text(number: u32, runs: &[LedgerRun], spent: &Spent) -> String {
    let mut text = String::new();
    let records = runs.first().map_or(0, |run| run.price.records);
    let _ = writeln!(text, "data set {number}: {records} records");
    for run in runs {
        let epsilon = run.price.epsilon.map_or("unknown".to_string(), |epsilon| {
            round_up(epsilon, 4).to_string()
        });
        let _ = writeln!(
            text,
            "  run {}  client {}  {} of {} messages{}  epsilon {epsilon} for all of them, delta {}  {}",
            &hex(&run.hash)[..16],
            run.client,
            run.messages,
            run.price.rounds,
            if run.finished { ", finished" } else { "" },
            run.price.delta,
            run.price.claim,
        );
    }
    let _ = match spent.epsilon {
        Some(epsilon) => writeln!(
            text,
            "  spent: epsilon {} at delta {}, {} ({}){}",
            round_up(epsilon, 4),
            spent.delta,
            adjacency_name(spent.zero_out),
            spent.method,
            if claimed(runs) {
                ""
            } else {
                "; no claim: see the runs"
            },
        ),
        None => writeln!(text, "  spent: nobody can say; there is no claim"),
    };
    text
}
