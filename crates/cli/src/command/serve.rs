//! `soteria serve`: coordinates a run over the network.
//!
//! This file opens the state, the port and the coordinator's actor, and takes them down in order
//! when the run is over or somebody stops it. Meanwhile `observer` passes changes to the dashboard,
//! `recorder` writes the table, and `missing` says what the run waits for; `finish` writes what is
//! left.

mod finish;
mod missing;
mod observer;
mod recorder;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::{oneshot, watch};

use super::inputs::{self, DataDirectory};
use super::{Failure, Verbosity};
use crate::logs::LogOptions;
use finish::{Shared, finish};
use observer::{RunObserver, about};
use recorder::Recorder;
use soteriafl::output::{self, RunDirectory};
use soteriafl::run as setup;
use soteriafl::words::counted;
use soteriafl_deploy::coordinator::{Coordinator, CoordinatorError, SNAPSHOT_EVERY};
use soteriafl_deploy::dashboard::{self, FeedWriter, Phase};
use soteriafl_deploy::description::DescriptionError;
use soteriafl_deploy::ending::Ending;
use soteriafl_deploy::hex;
use soteriafl_deploy::net::actor;
use soteriafl_deploy::net::grpc::Service;
use soteriafl_deploy::net::listen::{self, Limits, Security};
use soteriafl_deploy::net::tls;
use soteriafl_deploy::run_plan::{RunPlan, RunPlanError};
use soteriafl_deploy::sqlite::ServerSqlite;
use soteriafl_deploy::store::ServerStore;

/// How long the server waits at most for clients to take note of the end.
const LINGER: Duration = Duration::from_secs(300);

/// The same where rounds do not wait for stragglers either: ten deadlines, but at least this.
const SHORT_LINGER: Duration = Duration::from_secs(10);

/// Coordinate a run over the network
///
/// Waits for `data.clients` clients, runs all rounds, writes the files that `train` writes (metrics
/// from the server's own test set only), waits until the clients know the end, and exits. Stopped
/// or killed, it goes on when started again with the same --state.
#[derive(clap::Args, Debug)]
pub struct Options {
    /// Configuration file (TOML)
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Override a key, e.g. privacy.epsilon=5
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Address to listen on
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7443")]
    listen: SocketAddr,
    /// Directory with ca.pem, server.pem and server.key (see `soteria keys`)
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
    /// Where the server keeps what it needs to go on
    #[arg(long, value_name = "DIR")]
    state: PathBuf,
    /// Output directory
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Overwrite an output directory that has files in it
    #[arg(long)]
    force: bool,
    /// Address of the dashboard
    #[arg(long, value_name = "ADDRESS")]
    dashboard: Option<SocketAddr>,
    /// Derive all randomness from N as `train --seed N` does; the run then claims nothing (this
    /// machine only)
    #[arg(long, value_name = "N")]
    test_seed: Option<u64>,
    #[command(flatten)]
    data: DataDirectory,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    logs: LogOptions,
}

/// Waits for a signal to stop; 0 for SIGTERM, which is how services are stopped, 1 for Ctrl-C.
pub async fn stop_signal() -> u8 {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        if let Ok(mut terminate) = signal(SignalKind::terminate()) {
            return tokio::select! {
                _ = terminate.recv() => 0,
                _ = tokio::signal::ctrl_c() => 1,
            };
        }
    }
    let _ = tokio::signal::ctrl_c().await;
    1
}

/// Runs the command.
///
/// # Errors
/// When the configuration, the state, the network or the file system do not allow it.
pub fn run(options: &Options, verbosity: Verbosity) -> Result<(), Failure> {
    options.logs.init(verbosity);
    if options.test_seed.is_some() && !options.listen.ip().is_loopback() {
        return Err(Failure::usage(
            "--test-seed needs a loopback address to listen on",
        ));
    }
    let began = Instant::now();
    let document = inputs::document(options.config.as_deref(), &options.set)?;
    let directories = options.data.directories();
    let (plan, warnings) = RunPlan::make(document, &directories, options.test_seed)?;
    for warning in warnings {
        verbosity.warn(warning);
    }
    let mut store = ServerSqlite::open(&options.state)?;
    let stored = store.load()?.description;
    // A run that goes on writes its files anew, but never over those of another.
    if stored.is_none() || !output::belongs(&options.out, &plan.config_toml(options.test_seed)) {
        output::check_empty(&options.out, options.force)?;
    }
    let place = options.state.display().to_string();
    let description = plan.describe(options.test_seed, stored.as_deref(), &place)?;
    let start = plan.model.start(&plan.resolved)?;
    let coordinator = Coordinator::new(store, description, start, SNAPSHOT_EVERY, Duration::ZERO)?;
    if coordinator.acknowledged() && output::is_complete(&options.out) {
        verbosity.say("the run is over");
        return Ok(());
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::Failed(format!("no runtime: {error}")))?;
    runtime.block_on(coordinate(options, &plan, coordinator, began, verbosity))
}

/// Runs the server until the run is over.
async fn coordinate(
    options: &Options,
    plan: &RunPlan,
    coordinator: Coordinator<ServerSqlite>,
    began: Instant,
    verbosity: Verbosity,
) -> Result<(), Failure> {
    soteriafl_deploy::net::raise_file_limit();
    let description = coordinator.description().clone();
    let clients = description.resolved.clients;
    let security = security(options, verbosity)?;
    let feed = FeedWriter::new(about(&description, plan.test.is_some()));
    let known = coordinator.evaluations().to_vec();
    let odometer = coordinator
        .privacy()
        .filter(|_| options.test_seed.is_none())
        .and_then(|privacy| privacy.odometer.as_ref());
    feed.resumed(&coordinator, |round| {
        odometer.map(|odometer| odometer.after(u64::from(round)))
    });
    let (address, incoming) =
        listen::listen(options.listen, security, Limits::for_clients(clients))
            .await
            .map_err(|error| Failure::Failed(error.to_string()))?;
    feed.count_connections(incoming.counters());
    let dashboard = match options.dashboard {
        Some(address) => Some(open_dashboard(address, &feed, verbosity).await?),
        None => None,
    };
    let directory =
        RunDirectory::create_deployed(&options.out, &plan.config_toml(options.test_seed))?;
    verbosity.say(format!(
        "run {} on {address}: {} with {}, {}, {}; round {} is open",
        &hex(description.hash())[..16],
        description.resolved.algorithm_text(description.dimension()),
        counted(description.dimension(), "parameter"),
        counted(clients, "client"),
        counted(description.resolved.rounds, "round"),
        coordinator.round(),
    ));
    tracing::info!(%address, run = %hex(&description.hash()[..8]), clients, round = coordinator.round(), "listening");

    let (unmeasured, to_measure) = sync_channel(4);
    // Before the rows of earlier rounds are written anew, on another thread.
    let ending: Shared = Arc::new(Mutex::new(Ending::of(&coordinator, options.test_seed)));
    let observer = RunObserver::new(
        feed.clone(),
        unmeasured,
        coordinator.round(),
        Arc::clone(&ending),
    );
    let actor = actor::start(coordinator, observer, Instant::now());
    let recorder = Recorder {
        directory,
        test: plan.test.clone(),
        objective: plan.model.objective(),
        measured: actor.measured.clone(),
        dashboard: feed.clone(),
        ending: Arc::clone(&ending),
    };
    let (give_up, mut gave_up) = oneshot::channel::<()>();
    let recorder = std::thread::spawn(move || {
        let result = recorder.run(&known, &to_measure);
        if result.is_err() {
            // Whoever waits may be gone; the error is in the result.
            let _ = give_up.send(());
        }
        result
    });
    let service = Service::new(actor.coordinator.clone(), &description, feed.clone());
    let missing = tokio::spawn(missing::remind(feed.feed().clone(), service.streams()));
    let (stop, stopped) = oneshot::channel::<()>();
    let compressor =
        setup::plan_for(&description.resolved, &description.model.objective())?.compressor;
    let serving = tokio::spawn(async move {
        let wait = async {
            let _ = stopped.await;
        };
        service.run(incoming, &compressor, wait).await
    });
    let mut state = actor.coordinator.state();
    let outcome = until_ended(options, &mut state, actor.ended, &mut gave_up).await;
    match &outcome {
        Ok(true) => feed.phase(Phase::Finished),
        Ok(false) => feed.phase(Phase::Stopping),
        Err(failure) => feed.trouble(Some(failure.message().to_string())),
    }
    if outcome.as_ref().is_ok_and(|finished| *finished) {
        tracing::info!("all rounds are done");
        linger(plan, &mut state).await;
    }
    missing.abort();
    drop(stop);
    drop(actor.stop);
    drop(actor.coordinator);
    drop(actor.measured);
    // Open streams end with the actor; what is left after a moment is cut off.
    let _ = tokio::time::timeout(Duration::from_secs(2), serving).await;
    let directory = tokio::task::block_in_place(|| recorder.join())
        .map_err(|_| Failure::Failed("the recorder failed".to_string()))??;
    drop(dashboard);
    match outcome? {
        true => finish(options, plan, directory, &ending, began, verbosity),
        false => {
            verbosity.say(format!(
                "stopped; `soteria serve` with --state {} goes on",
                options.state.display()
            ));
            Ok(())
        }
    }
}

/// What connections are secured by.
fn security(options: &Options, verbosity: Verbosity) -> Result<Security, Failure> {
    let Some(directory) = &options.tls else {
        return Ok(Security::Plain);
    };
    let tls = tls::server(directory).map_err(|error| Failure::usage(error.to_string()))?;
    let hint = "`soteria keys server KEYS --host NAME`, where ca.key is, makes another one; \
                the server reads it when it starts";
    super::watch_certificate(directory, "server", hint.to_string(), verbosity)?;
    Ok(Security::Tls(tls))
}

async fn open_dashboard(
    address: SocketAddr,
    feed: &FeedWriter,
    verbosity: Verbosity,
) -> Result<dashboard::Running, Failure> {
    let running = dashboard::serve(dashboard::Options::at(address), feed.feed().clone())
        .await
        .map_err(|error| Failure::Failed(error.to_string()))?;
    verbosity.say(format!("dashboard: http://{}/", running.address));
    Ok(running)
}

/// Waits for the first that ends the coordination: `true` if that is the end of the run, `false` if
/// it goes on another time.
async fn until_ended(
    options: &Options,
    state: &mut watch::Receiver<actor::RunState>,
    mut ended: oneshot::Receiver<Result<(), CoordinatorError>>,
    gave_up: &mut oneshot::Receiver<()>,
) -> Result<bool, Failure> {
    tokio::select! {
        code = stop_signal() => match code {
            0 => Ok(false),
            _ => Err(Failure::Failed(format!(
                "interrupted; `soteria serve` with --state {} goes on", options.state.display()
            ))),
        },
        result = &mut ended => Err(cause(result.ok())),
        // Its own error is found later, where it is joined.
        Ok(()) = gave_up => Err(Failure::Failed("the table cannot be written".to_string())),
        finished = state.wait_for(|state| state.finished) => match finished {
            Ok(_) => Ok(true),
            // The actor has stopped, and sends the reason a moment later.
            Err(_) => Err(cause((&mut ended).await.ok())),
        },
    }
}

/// After the last round: until all clients know the end, for a while, or somebody stops it.
async fn linger(plan: &RunPlan, state: &mut watch::Receiver<actor::RunState>) {
    let linger = plan.resolved.deadline.map_or(LINGER, |deadline| {
        Duration::from_secs_f64((10.0 * deadline).min(LINGER.as_secs_f64())).max(SHORT_LINGER)
    });
    let quiet = wait_for_acknowledgements(state, linger);
    tokio::select! {
        () = quiet => {}
        _ = stop_signal() => {}
    }
}

/// Why the coordinator's actor stopped before the end.
fn cause(ended: Option<Result<(), CoordinatorError>>) -> Failure {
    match ended {
        Some(Err(error)) => error.into(),
        Some(Ok(())) => Failure::Failed("the coordinator ended before the run did".to_string()),
        None => Failure::Failed("the coordinator's thread failed".to_string()),
    }
}

/// Returns when all clients have acknowledged the end, or `linger` is over.
async fn wait_for_acknowledgements(state: &mut watch::Receiver<actor::RunState>, linger: Duration) {
    let all = state.wait_for(|state| state.acknowledged);
    if tokio::time::timeout(linger, all).await.is_err() {
        tracing::warn!("not all clients know the end");
    }
}

impl From<CoordinatorError> for Failure {
    fn from(error: CoordinatorError) -> Self {
        Failure::Failed(error.to_string())
    }
}

impl From<RunPlanError> for Failure {
    fn from(error: RunPlanError) -> Self {
        let hint = error.hint().map(str::to_string);
        let message = error.to_string();
        match error {
            RunPlanError::Config(error) => error.into(),
            RunPlanError::Problem(error) => error.into(),
            RunPlanError::Data(error) => error.into(),
            RunPlanError::Records(error) => error.into(),
            RunPlanError::Privacy(error) => error.into(),
            RunPlanError::Description(error) => error.into(),
            RunPlanError::Missing(_) | RunPlanError::DataDependent | RunPlanError::OtherRun(_) => {
                Failure::Usage { message, hint }
            }
            _ => Failure::Failed(message),
        }
    }
}

impl From<DescriptionError> for Failure {
    fn from(error: DescriptionError) -> Self {
        match error {
            DescriptionError::Config(error) => error.into(),
            DescriptionError::Problem(error) => error.into(),
            other => Failure::usage(other.to_string()),
        }
    }
}
