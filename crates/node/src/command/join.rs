//! `soteria join`: one client with its own records. `cost` shows what that costs, and asks;
//! `progress` shows how it goes.

mod cost;
mod progress;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use soteria_core::data::{DataDirectories, Share};
use soteria_core::protocol::{Client, ClientId, Server};
use soteria_core::random::SecretKey;

use super::{Failure, Verbosity, print};
use crate::deploy::budget::{self, Limits, Refusal};
use crate::deploy::description::Description;
use crate::deploy::participant::{
    Participant, ParticipantError, Parts, checkpoint_every, fresh_secrets,
};
use crate::deploy::records::{self, LoadError, Records};
use crate::deploy::shape::{self, ShapeError};
use crate::deploy::sqlite::ClientSqlite;
use crate::deploy::store::{ClientStore, LedgerRun, StoreError};
use crate::deploy::{Hash, hex, printable};
use crate::logs::LogOptions;
use crate::net::dial::{Security, Target};
use crate::net::follow::{self, Caller, FollowError, Patience};
use crate::net::tls;
use crate::problem::weights;
use crate::run as setup;
use crate::words::readable;
use cost::{ask, show};
use progress::Progress;

/// What a person can do whose state does not know what the server says. It stays closed until then: only a person can tell an
/// older copy from a lie, and a ledger that says too little cannot be mended afterwards.
const FORGOTTEN: &str = "
hint: nothing more was sent, and the state is as it was
hint: if it was restored from a copy, put the newest one back; if that is lost, leave this run, and count all of it as spent
hint: if it is the newest for certain, this is not the server that it has spoken to: see who answers at that address (without TLS \
any process of this machine may), and start again when the right one does";

/// The same for a client that finds out by its message: both have left this client's machines, and the ledger of each knows of one.
const TWICE: &str = "
hint: both messages have left; if the other is of a copy of this state, count what both ledgers say
hint: find the copy (a clone of the machine, a second directory, a backup that was restored) and end it; if it has gone on, its state is the newer one: keep that
hint: if there is none, somebody has sent as this client: see who has its key (without TLS any process of this machine may)";

/// How long a client whose last run is over looks for a server with another one, which may have been started with it.
const AFTER_THE_END: Duration = Duration::from_secs(4);

/// Take part in a run with one's own records
///
/// Shows what the run will cost and what these records have spent before anything is sent, and refuses
/// with exit code 3 above --max-epsilon. Without a limit it asks at a terminal; elsewhere it warns and joins, and
/// the run's own epsilon is the only limit. Tries again until the server answers; stopped or killed, it goes on
/// when started again with the same --state.
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
    /// Refuse if the records' total epsilon would exceed E
    #[arg(long, value_name = "E")]
    max_epsilon: Option<f64>,
    /// Largest delta of a run, and of the ledger's sum
    #[arg(long, value_name = "D", default_value_t = budget::MAX_DELTA)]
    max_delta: f64,
    /// Check limits under this adjacency instead of the run's own
    #[arg(long, value_name = "KIND", value_parser = ["replace-one"])]
    adjacency: Option<String>,
    /// Count every run in this state against the limit, also those on other data: for records that grow or change
    #[arg(long)]
    count_all: bool,
    /// Do not ask, and do not warn that there is no limit
    #[arg(long)]
    yes: bool,
    /// Derive all randomness from N as `train --seed N` does; the run then claims nothing (this machine only)
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
    if !(options.max_delta > 0.0 && options.max_delta < 1.0) {
        return Err(Failure::usage(format!(
            "--max-delta expects a number between 0 and 1, found {}",
            readable(options.max_delta)
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
        // On the thread that the connection lives on, too: every average and every message would otherwise wake another.
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
    mut store: ClientSqlite,
    verbosity: Verbosity,
) -> Result<(), Failure> {
    let options = &options;
    if let Some(directory) = &options.tls {
        let client = options.client;
        let hint = format!(
            "`soteria keys add KEYS --client {client} --force`, where ca.key is, makes another one; \
             it is read at the next start"
        );
        super::watch_certificate(directory, &format!("client-{client}"), hint, verbosity)?;
    }
    let mut caller = Caller::new(&target, options.client);
    let known = store.runs()?;
    // Before the server can say anything about them.
    let directories = DataDirectories::from_environment(options.data_dir.as_deref());
    let own = records::source_digest(&share.source, &directories)?;
    let Some(text) = describe(&mut caller, known.last(), verbosity).await? else {
        return ended(options, known.last(), verbosity);
    };
    let agreed = Agreed::reach(options, &share, own, &text, &known, &mut store, verbosity)?;
    let Agreed {
        description,
        records,
        run,
        sigma,
    } = agreed;
    let mut caller = caller.for_run(
        Bytes::copy_from_slice(&description.run_id()),
        description.dimension(),
    );
    let rows = records.data.rows() as u64;
    if known
        .iter()
        .any(|known| known.hash == run.hash && known.finished)
    {
        acknowledge(&mut caller).await?;
        return ended(options, Some(&run), verbosity);
    }
    if !known.iter().any(|known| known.hash == run.hash) {
        store.begin(&run)?;
    }
    let mut participant = participant(store, &description, &records, sigma, options)?;
    let mut progress = Progress::new(description.resolved.rounds, verbosity);
    let mut patience = Patience::default();
    loop {
        let attempt = async {
            caller.join(rows).await?;
            patience.reset();
            progress.connected();
            follow::follow(&mut caller, &mut participant, &mut progress).await
        };
        match attempt.await {
            Ok(()) => break,
            Err(FollowError::Passing(reason)) => progress.cut_off(&reason),
            Err(error) => return Err(error.into()),
        }
        patience.pause().await;
    }
    progress.finish();
    acknowledge(&mut caller).await?;
    let runs = participant.store().runs()?;
    ended(
        options,
        runs.iter().find(|known| known.hash == run.hash),
        verbosity,
    )
}

/// The run that the server coordinates; `None` if there is no server and nothing left to do.
async fn describe(
    caller: &mut Caller,
    last: Option<&LedgerRun>,
    verbosity: Verbosity,
) -> Result<Option<String>, Failure> {
    let over = last.is_some_and(|run| run.finished);
    let (start, mut patience, mut said) = (Instant::now(), Patience::default(), false);
    loop {
        match caller.describe().await {
            Ok(text) => return Ok(Some(text)),
            Err(FollowError::Passing(reason)) if over && start.elapsed() > AFTER_THE_END => {
                verbosity.say(format!(
                    "no answer ({reason}), and nothing left to do: the last run of this state is over"
                ));
                return Ok(None);
            }
            Err(FollowError::Passing(reason)) => {
                if !std::mem::replace(&mut said, true) {
                    verbosity.say(format!(
                        "no answer yet ({reason}); trying until there is one"
                    ));
                }
            }
            Err(error) => return Err(error.into()),
        }
        patience.pause().await;
    }
}

/// The server may be gone already: it waits for this, but not forever.
async fn acknowledge(caller: &mut Caller) -> Result<(), Failure> {
    let mut patience = Patience::default();
    for _ in 0..6 {
        match caller.acknowledge().await {
            Ok(()) => return Ok(()),
            Err(FollowError::Passing(_)) => patience.pause().await,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// What both sides agree on, before anything has left.
struct Agreed {
    description: Description,
    records: Records,
    run: LedgerRun,
    sigma: f64,
}

impl Agreed {
    fn reach(
        options: &Options,
        share: &Share,
        own: Hash,
        text: &str,
        known: &[LedgerRun],
        store: &mut ClientSqlite,
        verbosity: Verbosity,
    ) -> Result<Self, Failure> {
        // Any number of records will do to read the shape; then the real one.
        let outline = Description::parse(text, 1 << 40).map_err(unusable)?;
        if outline.test_seed != options.test_seed {
            return Err(Failure::Refused(match outline.test_seed {
                Some(_) => "refused: this is a test run, whose secrets are known; join it with the same --test-seed or not at all".to_string(),
                None => "refused: --test-seed is given, but this is no test run".to_string(),
            }));
        }
        let same = known.iter().filter(|run| run.data == own);
        shape::admit(
            store,
            share,
            &outline.shape,
            same.map(|run| run.description.as_str()),
            options.shape.as_deref(),
        )?;
        let directories = DataDirectories::from_environment(options.data_dir.as_deref());
        let records = records::load(share, own, &outline, &directories)?;
        let rows = records.data.rows();
        let description = Description::parse(text, rows).map_err(unusable)?;
        let price = budget::price(&description, rows)?;
        budget::check_claim(&description, &price)?;
        let sigma = price.sigma;
        let hash = *description.hash();
        if let Some(known) = known.iter().find(|known| known.hash == hash) {
            if known.client != options.client {
                return Err(Failure::usage(format!(
                    "this state has joined this run as client {}, not {}",
                    known.client, options.client
                )));
            }
            // The description is the same by its hash, so the noise is, with as many records.
            if known.data != records.digest || known.price.records != rows as u64 {
                return Err(Failure::usage(
                    "this state has joined this run with other records",
                ));
            }
            // What the estimator remembers is about that part.
            if known.part != share.part {
                let name = |part: Option<(usize, usize)>| {
                    part.map_or("all".to_string(), |(part, parts)| {
                        format!("part {part}/{parts}")
                    })
                };
                return Err(Failure::usage(format!(
                    "this state has joined this run with {} of the source, not with {}",
                    name(known.part),
                    name(share.part)
                )));
            }
        }
        let run = LedgerRun {
            hash,
            description: text.to_string(),
            client: options.client,
            data: records.digest,
            part: share.part,
            price,
            messages: 0,
            finished: false,
        };
        let limits = Limits {
            epsilon: options.max_epsilon,
            delta: options.max_delta,
            replace_one: options.adjacency.is_some(),
        };
        let total = show(&description, &run, known, options, verbosity)?;
        budget::check_limits(&total, &run.price, description.test_seed.is_some(), &limits)?;
        let joined = known.iter().any(|known| known.hash == hash);
        if options.max_epsilon.is_none() && !options.yes && !joined {
            ask(&total, verbosity)?;
        }
        Ok(Self {
            description,
            records,
            run,
            sigma,
        })
    }
}

fn participant(
    store: ClientSqlite,
    description: &Description,
    records: &Records,
    sigma: f64,
    options: &Options,
) -> Result<Participant<ClientSqlite>, Failure> {
    let resolved = &description.resolved;
    let plan = Arc::new(setup::plan_for(resolved, &description.model.objective())?);
    // Replaced before every message.
    let first = SecretKey::from_operating_system().map_err(failed)?;
    let client = Client::new(
        options.client,
        Arc::clone(&plan),
        Arc::clone(&records.data),
        setup::sampling(resolved),
        sigma,
        first,
    )
    .map_err(failed)?;
    let start = description.compute_start();
    let awaits_start = start.is_none().then_some(description.start);
    let start = start.unwrap_or_else(|| vec![0.0; description.dimension()]);
    // Weights are the server's business: a replica is given averages.
    let server_plan =
        setup::server_plan(resolved, &description.model, &plan, weights(resolved, &[1]));
    let (test_seed, id) = (options.test_seed, options.client);
    Participant::new(Parts {
        store,
        run: *description.hash(),
        client,
        compressor: plan.compressor.clone(),
        replica: Server::new(server_plan, start),
        awaits_start,
        secrets: Box::new(move |_, purpose| match test_seed {
            Some(seed) => Ok(SecretKey::simulated(seed, id).into()),
            None => fresh_secrets(purpose),
        }),
        checkpoint_every: checkpoint_every(&plan.compressor),
    })
    .map_err(|error| FollowError::from(error).into())
}

fn ended(options: &Options, run: Option<&LedgerRun>, verbosity: Verbosity) -> Result<(), Failure> {
    let Some(run) = run else { return Ok(()) };
    if options.json {
        let ending = serde_json::json!({
            "run": hex(&run.hash),
            "client": run.client,
            "messages": run.messages,
            "epsilon": run.price.epsilon,
            "delta": run.price.delta,
            "claim": run.price.claim,
        });
        return print(&format!("{ending:#}\n"));
    }
    verbosity.say(format!(
        "run {} is over; `soteria ledger --state {}` shows what was spent",
        &hex(&run.hash)[..16],
        options.state.display()
    ));
    Ok(())
}

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::Failed(error.to_string())
}

fn unusable(error: impl std::fmt::Display) -> Failure {
    let error = printable(&error.to_string());
    Failure::Failed(format!("the server's run cannot be joined: {error}"))
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Failure::Failed(error.to_string())
    }
}

impl From<LoadError> for Failure {
    fn from(error: LoadError) -> Self {
        Failure::usage(error.to_string())
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
        match error {
            // For a person to look at: started again, it would go on beside its copy.
            FollowError::Twice(_) => Failure::Refused(format!("{error}{TWICE}")),
            FollowError::Participant(ParticipantError::Forgotten { .. }) => {
                Failure::Failed(format!("{error}{FORGOTTEN}"))
            }
            _ => Failure::Failed(error.to_string()),
        }
    }
}

impl From<Refusal> for Failure {
    fn from(error: Refusal) -> Self {
        match error {
            Refusal::Unproved(_) | Refusal::Budget { .. } | Refusal::Delta { .. } => {
                Failure::Refused(error.to_string())
            }
            Refusal::Privacy(error) => error.into(),
            other => Failure::Failed(other.to_string()),
        }
    }
}
