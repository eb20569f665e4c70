//! `soteria join`: one client with its own records. The library decides whether to take part
//! ([`soteriafl_deploy::agreement`]); `consent` shows what that costs, and asks; `progress` shows
//! how it goes.

mod consent;
mod person;
mod progress;

use std::path::PathBuf;

use soteriafl_accountant::SMALLEST_DELTA;
use soteriafl_core::protocol::ClientId;
use soteriafl_data::{DataDirectories, Share};

use super::{Failure, Verbosity, print_json};
use crate::logs::{self, LogOptions};
use person::Person;
use soteriafl::words::readable;
use soteriafl_deploy::agreement::{AgreementError, Terms};
use soteriafl_deploy::budget::{Limits, Refusal};
use soteriafl_deploy::holding::Holding;
use soteriafl_deploy::net::client::FollowError;
use soteriafl_deploy::net::connect::{Security, Target};
use soteriafl_deploy::net::join::{self, JoinError};
use soteriafl_deploy::net::tls;
use soteriafl_deploy::records::LoadError;
use soteriafl_deploy::schema_pin::ShapeError;
use soteriafl_deploy::sqlite::ClientSqlite;
use soteriafl_deploy::store::{LedgerRun, StoreError};
use soteriafl_deploy::{hex, printable};

/// Take part in a run with one's own records
///
/// Shows what the run will cost and what the records of this state have spent before anything is
/// sent, and refuses with exit code 3 above --max-epsilon, which holds at a delta of the client's
/// own: a tenth of one over its records, at most 0.001. At a delta a thousand times smaller twice
/// the limit plus 2 must hold, so that no server can buy whole records with a large delta; and
/// whatever the limit is, fewer than 0.01 records may be expected to be read, of those of which the
/// server lacks 40 bits (--max-read). Without a limit it asks at a terminal; elsewhere it warns and
/// joins, and the run's own epsilon is the only limit. Tries again until the server answers;
/// stopped or killed, it goes on when started again with the same --state.
#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// The server, e.g. https://127.0.0.1:7443
    #[arg(long, value_name = "URL")]
    server: String,
    /// Which client this is, from 0
    #[arg(long, value_name = "N")]
    client: ClientId,
    /// Directory with ca.pem and this client's certificate and key
    #[arg(
        long,
        value_name = "DIR",
        required_unless_present = "insecure",
        conflicts_with = "insecure"
    )]
    tls: Option<PathBuf>,
    /// Plain text, on this machine only
    #[arg(long)]
    insecure: bool,
    /// Where this client keeps its ledger and what it needs to go on
    #[arg(long, value_name = "DIR")]
    state: PathBuf,
    /// The records: a source as in data.source, or one part of it, e.g. a9a:0/10
    #[arg(long, value_name = "SPEC")]
    data: String,
    /// Refuse if all that this state has spent, this run included, exceeds E, or if nobody can say
    #[arg(long, value_name = "E")]
    max_epsilon: Option<f64>,
    /// Largest delta that a run may name, and the delta at which the limit is judged
    /// [default: 0.001 and, for the limit, a tenth of one over the records if that is less]
    #[arg(long, value_name = "D")]
    max_delta: Option<f64>,
    /// Under --max-epsilon, refuse if N or more records can be expected to be read exactly, of
    /// those of which the server lacks 40 bits [default: 0.01]
    #[arg(long, value_name = "N", requires = "max_epsilon")]
    max_read: Option<f64>,
    /// Check limits under this adjacency instead of the run's own
    #[arg(long, value_name = "KIND", value_parser = ["replace-one"])]
    adjacency: Option<String>,
    /// Check limits for persons with up to K records, where the run speaks of fewer
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..=1000))]
    records_per_person: Option<u32>,
    /// The column that names persons: a run that takes one for that is refused unless it is this
    /// one, for the server is told how many different names it holds
    #[arg(long, value_name = "COLUMN")]
    person: Option<String>,
    /// Do not count what other data sets of this state have spent: if no record is in two of them
    #[arg(long)]
    disjoint_data_sets: bool,
    /// What is done anyway: accepted, so that older command lines still work
    #[arg(long, hide = true, conflicts_with = "disjoint_data_sets")]
    count_all: bool,
    /// Join a test run under --max-epsilon although nobody can say what it costs
    #[arg(long)]
    accept_unknown_cost: bool,
    /// Do not ask, and do not warn that there is no limit
    #[arg(long)]
    yes: bool,
    /// Derive all randomness from N as `train --seed N` does; the run then claims nothing (this
    /// machine only)
    #[arg(long, value_name = "N")]
    test_seed: Option<u64>,
    /// Permit this shape (named in the refusal) besides the one fixed first
    #[arg(long, value_name = "NAME")]
    shape: Option<String>,
    /// Where data sets are looked for first
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Print the ending as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    logs: LogOptions,
}

impl Options {
    /// On which terms this client takes part.
    fn terms(&self, share: Share) -> Terms {
        Terms {
            client: self.client,
            holding: Holding::Source {
                share,
                directories: DataDirectories::from_environment(self.data_dir.as_deref()),
            },
            limits: Limits {
                epsilon: self.max_epsilon,
                delta: self.max_delta,
                read: self.max_read,
                replace_one: self.adjacency.is_some(),
                accept_unknown: self.accept_unknown_cost,
            },
            records_per_person: self.records_per_person.unwrap_or(1),
            person: self.person.clone(),
            disjoint: self.disjoint_data_sets,
            shape: self.shape.clone(),
            test_seed: self.test_seed,
        }
    }
}

/// Runs the command.
///
/// # Errors
/// When the run is refused, the server refuses, or the state cannot be kept.
pub fn run(options: &Options, verbosity: Verbosity) -> Result<(), Failure> {
    options.logs.init(verbosity);
    let share: Share = options.data.parse()?;
    if let Some(limit) = options.max_epsilon
        && !(limit >= 0.0 && limit.is_finite())
    {
        return Err(Failure::usage(format!(
            "--max-epsilon expects a number >= 0, found {}",
            readable(limit)
        )));
    }
    if let Some(delta) = options.max_delta
        && !(SMALLEST_DELTA..1.0).contains(&delta)
    {
        return Err(Failure::usage(format!(
            "--max-delta expects a number from {} to below 1, found {}",
            readable(SMALLEST_DELTA),
            readable(delta)
        )));
    }
    if let Some(most) = options.max_read
        && !(most > 0.0 && most.is_finite())
    {
        return Err(Failure::usage(format!(
            "--max-read expects a number > 0, found {}",
            readable(most)
        )));
    }
    let security = match &options.tls {
        Some(directory) => Security::Tls(
            tls::client(directory, options.client)
                .map_err(|error| Failure::usage(error.to_string()))?,
        ),
        None => Security::Plain,
    };
    let target = Target::new(&options.server, &security)
        .map_err(|error| Failure::usage(error.to_string()))?;
    let target = match options.test_seed {
        Some(_) if !target.is_loopback() => {
            return Err(Failure::usage(
                "--test-seed is for a server on this machine",
            ));
        }
        // Its name says so; its address will have to.
        Some(_) => target.only_loopback(),
        None => target,
    };
    let store = ClientSqlite::open(&options.state)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .map_err(|error| Failure::Failed(format!("no runtime: {error}")))?;
    runtime.block_on(async {
        // On the thread that the connection lives on, too: every average and every message would
        // otherwise wake another.
        let part = tokio::spawn(take_part(options.clone(), share, target, store, verbosity));
        tokio::select! {
            result = part => match result {
                Ok(result) => result,
                Err(failed) => std::panic::resume_unwind(failed.into_panic()),
            },
            code = super::serve::stop_signal() => match code {
                0 => {
                    verbosity.say("stopped; started again with the same --state it goes on");
                    Ok(())
                }
                _ => Err(Failure::Failed(
                    "interrupted; started again with the same --state it goes on".to_string(),
                )),
            },
        }
    })
}

async fn take_part(
    options: Options,
    share: Share,
    target: Target,
    store: ClientSqlite,
    verbosity: Verbosity,
) -> Result<(), Failure> {
    let options = &options;
    if let Some(directory) = &options.tls {
        let client = options.client;
        let hint = format!(
            "`soteria keys add KEYS --client {client} --force`, where ca.key is, makes another \
             one; it is read at the next start"
        );
        super::watch_certificate(directory, &format!("client-{client}"), hint, verbosity)?;
    }
    let mut companion = Person::new(options.yes, verbosity);
    let over = join::take_part(&options.terms(share), store, &target, &mut companion).await?;
    companion.finish();
    ended(options, over.as_ref(), verbosity)
}

fn ended(options: &Options, run: Option<&LedgerRun>, verbosity: Verbosity) -> Result<(), Failure> {
    let Some(run) = run else { return Ok(()) };
    if options.json {
        let price = &run.price;
        let ending = serde_json::json!({
            "run": hex(&run.hash),
            "client": run.client,
            "messages": run.messages,
            "epsilon": price.cost(price.adjacency, price.delta)?,
            "delta": price.delta,
            "claim": price.claim,
        });
        return print_json(&ending);
    }
    verbosity.say(format!(
        "run {} is over; `soteria ledger --state {}` shows what was spent",
        &hex(&run.hash)[..16],
        options.state.display()
    ));
    Ok(())
}

impl From<JoinError> for Failure {
    fn from(error: JoinError) -> Self {
        match error {
            JoinError::Agreement(error) => error.into(),
            JoinError::Follow(error) => error.into(),
            JoinError::Data(error) => error.into(),
            JoinError::Store(error) => error.into(),
            other => Failure::failed(other),
        }
    }
}

impl From<AgreementError> for Failure {
    fn from(error: AgreementError) -> Self {
        let message = error.to_string();
        match error {
            AgreementError::NoSuchClient { .. }
            | AgreementError::OtherClient { .. }
            | AgreementError::OtherPart { .. }
            | AgreementError::OtherRecords => Failure::usage(message),
            AgreementError::TestRun
            | AgreementError::NoTestRun
            | AgreementError::Person(_)
            | AgreementError::Declined(_) => Failure::Refused(message),
            AgreementError::Shape(error) => error.into(),
            AgreementError::Records(error, names) => unfit(&error, names.as_deref()),
            AgreementError::Refused(error) => error.into(),
            AgreementError::Problem(error) => error.into(),
            AgreementError::Participant(error) => FollowError::from(error).into(),
            AgreementError::Store(error) => error.into(),
            _ => Failure::Failed(message),
        }
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Failure::Failed(error.to_string())
    }
}

/// Why records cannot take part. Where columns only stand in another order, the hint says in which
/// one they should.
fn unfit(error: &LoadError, names: Option<&[String]>) -> Failure {
    let hint = match (error, names) {
        (LoadError::Names(difference), Some(names)) if difference.reordered => Some(format!(
            "nothing was spent or sent; the file has the same columns in another order: write \
             them in that of the run ({})",
            some_of(names)
        )),
        (LoadError::Names(difference), _) if difference.guessed => Some(
            "nothing was spent or sent; if the first line is a record, say so: csv:FILE?header=no; \
             if it names the columns, csv:FILE?header=yes shows how they differ"
                .to_string(),
        ),
        (LoadError::Names(_), _) => Some(
            "nothing was spent or sent; rename the columns if they are the run's, or ask who runs \
             it which ones it means"
                .to_string(),
        ),
        _ => None,
    };
    let message = match error {
        // What was taken for a header may be a record.
        LoadError::Names(difference) if logs::for_machines() => format!(
            "feature {} of these records is called otherwise than in the run",
            difference.number
        ),
        error => error.to_string(),
    };
    Failure::Usage { message, hint }
}

/// The first names of a list, as a server gave them, and how many there are more.
fn some_of(names: &[String]) -> String {
    const SHOWN: usize = 12;
    let short = |name: &String| printable(&name.chars().take(40).collect::<String>());
    let shown: Vec<String> = names.iter().take(SHOWN).map(short).collect();
    match names.len().saturating_sub(SHOWN) {
        0 => shown.join(", "),
        more => format!("{}, and {more} more", shown.join(", ")),
    }
}

impl From<ShapeError> for Failure {
    fn from(error: ShapeError) -> Self {
        let message = error.to_string();
        match error {
            ShapeError::Store(error) => error.into(),
            ShapeError::Other { name, .. } => Failure::Usage {
                message,
                hint: Some(format!(
                    "ask why; if your records are of that kind now, --shape {name} permits it"
                )),
            },
            _ => Failure::usage(message),
        }
    }
}

impl From<FollowError> for Failure {
    fn from(error: FollowError) -> Self {
        let failure = match error {
            // For a person to look at: started again, it would go on beside its copy.
            FollowError::Twice(_) => Failure::Refused(error.to_string()),
            _ => Failure::Failed(error.to_string()),
        };
        failure.with_hints(error.hints().iter().copied())
    }
}

impl From<Refusal> for Failure {
    fn from(error: Refusal) -> Self {
        match error {
            Refusal::Privacy(error) => error.into(),
            Refusal::Ledger(_) => Failure::Failed(error.to_string()),
            _ => {
                let text = error.to_string();
                let mut lines = text.split("\nhint: ");
                let message = lines.next().unwrap_or_default().to_string();
                Failure::Refused(message).with_hints(lines)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use soteriafl_deploy::budget::Sent;
    use soteriafl_deploy::description::Description;

    /// A server may write a megabyte into one key: a log line does not grow with it, nor the time.
    #[test]
    fn a_hostile_description_makes_no_long_line() {
        let head = "# SoteriaFL run description, version 2\nnonce = \"00000000000000000000000000000000\"\n\
                    features = 1\nlabels = [\"a\", \"b\"]\ndimension = 1\n";
        let start = format!("start = \"{}\"\n---\n", "0".repeat(64));
        let key = "a".repeat(900_000);
        for rest in [
            format!("[{key}]\n{key} = 1\n"),
            format!("[privacy]\n{key} = 1\n"),
            format!("[privacy]\ndelta = \"{key}\"\n"),
        ] {
            let text = format!("{head}{start}{}", &rest[..rest.len().min(1_000_000)]);
            let error = Description::parse(&text, 10).unwrap_err();
            let Failure::Failed(said) = Failure::from(AgreementError::Unusable(error)) else {
                panic!("it has failed");
            };
            assert!(said.chars().count() < 400, "{}", said.len());
        }
        let tiny = soteriafl_accountant::AccountError::Delta { value: 1e-320 };
        assert!(tiny.to_string().len() < 80, "{tiny}");
    }

    /// What no accountant takes is refused for privacy; a ledger that cannot be read has failed.
    #[test]
    fn a_new_run_is_not_called_a_ledger() {
        let ledger = || Refusal::Ledger("its noise is 0".to_string());
        let said = match Failure::from(ledger().of_the_run(Sent::Nothing)) {
            Failure::Refused(said) => said,
            other => panic!("{other:?}"),
        };
        assert_eq!(
            said,
            "refused: this run cannot be accounted: its noise is 0; nothing has been sent"
        );
        assert!(matches!(ledger().into(), Failure::Failed(_)));
    }
}
