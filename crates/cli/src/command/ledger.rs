//! `soteria ledger`: what a client's records have spent. Every number is computed anew from the
//! releases that are stored, at the deltas at which `soteria join` judges unless it is told
//! otherwise.

use std::fmt::Write;
use std::path::PathBuf;

use serde_json::json;
use soteriafl_accountant::{Adjacency, round_up};

use super::{Failure, Verbosity, print};
use soteriafl::specification::neighbours;
use soteriafl::words::{counted, readable};
use soteriafl_deploy::budget::{Counted, Limits, Refusal, Spent};
use soteriafl_deploy::sqlite::ClientSqlite;
use soteriafl_deploy::store::{ClientStore, LedgerRun};
use soteriafl_deploy::{Hash, hex};

/// Show what a client's records have spent, run by run and altogether
///
/// Data sets are known by a digest of their records and shown by numbers, in the order in which
/// they first took part, for a digest would let others test guesses. A run counts in full from its
/// first message on, whether the server took it or not. `join` counts all data sets together, as if
/// one record had been in all of them.
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
    let all = Total::of(sets.iter().flat_map(|(_, runs)| runs))?;
    let mut shown = Vec::new();
    for (number, (_, runs)) in (1..).zip(&sets) {
        shown.push((number, runs, Total::of(runs)?));
    }
    if options.json {
        let sets = shown
            .iter()
            .map(|(number, runs, total)| set_json(*number, runs, total))
            .collect::<Result<Vec<_>, _>>()?;
        let ledger = json!({ "datasets": sets, "altogether": total_json(&all) });
        return print(&format!("{ledger:#}\n"));
    }
    let mut text = String::new();
    for (number, runs, total) in &shown {
        text += &set_text(*number, runs, total)?;
    }
    match shown.len() {
        0 => text.push_str("no runs yet\n"),
        1 => {}
        count => {
            let _ = writeln!(
                text,
                "all {count} data sets, {}, as if {} had been in all of them\n  {}",
                counted(all.records, "record"),
                match all.spent.records_per_person {
                    1 => "one record",
                    _ => "one person",
                },
                all.text()
            );
        }
    }
    print(&text)
}

/// What some runs have spent together.
struct Total {
    /// How many records they have been about: the number that the deltas follow from.
    records: u64,
    spent: Spent,
    /// At the stricter delta that `join` looks at.
    strict: Spent,
    messages: u64,
    /// Whether all that is counted carries a claim.
    claimed: bool,
}

impl Total {
    fn of<'a>(runs: impl IntoIterator<Item = &'a LedgerRun> + Clone) -> Result<Self, Refusal> {
        let counted = Counted::new(runs.clone(), None, false);
        let limits = Limits::default();
        Ok(Self {
            records: counted.records(),
            spent: limits.spent(&counted)?,
            strict: limits.strictly_spent(&counted)?,
            messages: runs.into_iter().map(|run| run.messages).sum(),
            claimed: counted.is_known(),
        })
    }

    fn text(&self) -> String {
        let Spent {
            delta,
            adjacency,
            records_per_person,
            method,
            runs,
            ..
        } = self.spent;
        match (self.spent.epsilon, self.strict.epsilon) {
            _ if runs == 0 => "spent: nothing".to_string(),
            (Some(epsilon), Some(strict)) => format!(
                "spent: {} at delta {}, {} at delta {}, {} ({method})",
                epsilon_text(Some(epsilon)),
                readable(delta),
                epsilon_text(Some(strict)),
                readable(self.strict.delta),
                neighbours(adjacency, records_per_person),
            ),
            _ => "spent: nobody can say; there is no claim".to_string(),
        }
    }
}

fn total_json(total: &Total) -> serde_json::Value {
    let Total { spent, strict, .. } = total;
    json!({
        "records": total.records,
        "messages": total.messages,
        "epsilon": spent.epsilon,
        "delta": spent.delta,
        "strict_epsilon": strict.epsilon,
        "strict_delta": strict.delta,
        "adjacency": spent.adjacency.word(),
        "records_per_person": spent.records_per_person,
        "method": spent.method,
        "claim": if total.claimed { "proved" } else { "some messages carry no claim" },
    })
}

fn set_json(number: u32, runs: &[LedgerRun], total: &Total) -> Result<serde_json::Value, Refusal> {
    let entry = |run: &LedgerRun| -> Result<serde_json::Value, Refusal> {
        let price = &run.price;
        Ok(json!({
            "run": hex(&run.hash),
            "client": run.client,
            "records": price.records,
            "messages": run.messages,
            "rounds": price.rounds,
            "finished": run.finished,
            "epsilon": price.cost(price.adjacency, price.delta)?,
            "epsilon_replace_one": price.cost(Adjacency::ReplaceOne, price.delta)?,
            "delta": price.delta,
            "adjacency": price.adjacency.word(),
            "records_per_person": price.records_per_person,
            "sigma": price.sigma,
            "claim": price.claim,
        }))
    };
    let mut set = total_json(total);
    set["data"] = number.into();
    set["runs"] = runs.iter().map(entry).collect::<Result<_, Refusal>>()?;
    Ok(set)
}

fn epsilon_text(epsilon: Option<f64>) -> String {
    match epsilon {
        Some(epsilon) if epsilon.is_finite() => {
            format!("epsilon {}", readable(round_up(epsilon, 4)))
        }
        Some(_) => "epsilon beyond any accountant".to_string(),
        None => "epsilon unknown".to_string(),
    }
}

fn set_text(number: u32, runs: &[LedgerRun], total: &Total) -> Result<String, Refusal> {
    let mut text = String::new();
    let records = counted(total.records, "record");
    let _ = writeln!(text, "data set {number}: {records} in messages");
    for run in runs {
        let price = &run.price;
        let _ = writeln!(
            text,
            "  run {}  client {}  {}  {} of {}{}  {} for all of them, delta {}  {}",
            &hex(&run.hash)[..16],
            run.client,
            counted(price.records, "record"),
            run.messages,
            counted(price.messages(), "message"),
            if run.finished { ", finished" } else { "" },
            epsilon_text(price.cost(price.adjacency, price.delta)?),
            readable(price.delta),
            price.claim,
        );
    }
    let _ = writeln!(text, "  {}", total.text());
    Ok(text)
}
