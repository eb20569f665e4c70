//! `soteria serve`: coordinates a run over the network.
//!
//! `plan` says what is coordinated; this file opens the state, the port and the desk, and takes them down in order when the
//! run is over or somebody stops it. Meanwhile `watch` feeds the dashboard and `record` the table,
//! and `missing` says what the run waits for; `ending` writes what is left.

mod finish;
mod missing;
mod observer;
mod plan;
mod recorder;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use super::inputs::DataDirectory;
use super::{Failure, Verbosity};
use crate::logs::LogOptions;
use finish::{Shared, finish, lock};
use observer::{Watch, about};
use plan::Plan;
use recorder::{Recorder, point};
use soteriafl::output::{self, RunDirectory};
use soteriafl::run as setup;
use soteriafl::words::counted;
use soteriafl_deploy::coordinator::{Coordinator, CoordinatorError, SNAPSHOT_EVERY};
use soteriafl_deploy::dashboard::{self, Feed, Phase};
use soteriafl_deploy::description::DescriptionError;
use soteriafl_deploy::hex;
use soteriafl_deploy::net::actor;
use soteriafl_deploy::net::grpc::Service;
use soteriafl_deploy::net::listen::{self, Limits, Security};
use soteriafl_deploy::net::tls;
use soteriafl_deploy::sqlite::ServerSqlite;
use soteriafl_deploy::store::ServerStore;

/// How long the server waits at most for clients to take note of the end.
const LINGER: Duration = Duration::from_secs(300);

/// The same where rounds do not wait for stragglers either: ten deadlines, but at least this.
const SHORT_LINGER: Duration = Duration::from_secs(10);

/// Coordinate a run over the network
///
/// Waits for `data.clients` clients, runs all rounds, writes the files that `train` writes (metrics from the
/// server's own test set only), waits until the clients know the end, and exits. Stopped or killed, it goes on
/// when started again with the same --state.
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
    /// Derive all randomness from N as `train --seed N` does; the run then claims nothing (this machine only)
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
    let plan = Plan::make(options, verbosity)?;
    let mut store = ServerSqlite::open(&options.state)?;
    let stored = store.load()?.description;
    // A run that goes on writes its files anew, but never over those of another.
    if stored.is_none() || !output::belongs(&options.out, &plan.config_toml(options)) {
        output::check_empty(&options.out, options.force)?;
    }
    let description = plan.describe(options, stored.as_deref())?;
    let start = plan.model.start(&plan.resolved)?;
    let coordinator = Coordinator::new(store, description, start, SNAPSHOT_EVERY, Duration::ZERO)?;
    if coordinator.settled() && output::is_complete(&options.out) {
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
    plan: &Plan,
    coordinator: Coordinator<ServerSqlite>,
    began: Instant,
    verbosity: Verbosity,
) -> Result<(), Failure> {
    soteriafl_deploy::net::raise_file_limit();
    let description = coordinator.description().clone();
    let clients = description.resolved.clients;
    let security = match &options.tls {
        Some(directory) => {
            let tls = tls::server(directory).map_err(|error| Failure::usage(error.to_string()))?;
            let hint = "`soteria keys server KEYS --host NAME`, where ca.key is, makes another one; \
                        the server reads it when it starts";
            super::watch_certificate(directory, "server", hint.to_string(), verbosity)?;
            Security::Tls(tls)
        }
        None => Security::Plain,
    };
    let feed = Feed::new(about(&description, plan.test.is_some()));
    let known = coordinator.evaluations().to_vec();
    let odometer = coordinator
        .privacy()
        .filter(|_| options.test_seed.is_none())
        .and_then(|privacy| privacy.odometer.as_ref());
    feed.restore(known.iter().filter(|row| row.round > 0).map(|row| {
        let epsilon = odometer.map(|odometer| odometer.after(u64::from(row.round)));
        point(row, epsilon)
    }));
    for (client, member) in coordinator.members().iter().enumerate() {
        let Some(member) = member else { continue };
        feed.client(client as u32, |row| {
            (row.joined, row.finished) = (true, member.done);
        });
    }
    let (address, incoming) =
        listen::listen(options.listen, security, Limits::for_clients(clients))
            .await
            .map_err(|error| Failure::Failed(error.to_string()))?;
    feed.watch_door(incoming.counters());
    let dashboard = match options.dashboard {
        Some(address) => {
            let running = dashboard::serve(dashboard::Options::at(address), feed.clone())
                .await
                .map_err(|error| Failure::Failed(error.to_string()))?;
            verbosity.say(format!("dashboard: http://{}/", running.address));
            Some(running)
        }
        None => None,
    };
    let directory = RunDirectory::create_deployed(&options.out, &plan.config_toml(options))?;
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

    let (news, to_measure) = sync_channel(4);
    let (ending, test_seed) = (Shared::default(), options.test_seed.is_some());
    let watch = Watch::new(
        feed.clone(),
        news,
        coordinator.round(),
        test_seed,
        Arc::clone(&ending),
    );
    // Before the rows of earlier rounds are written anew, on another thread.
    lock(&ending).settle(&coordinator);
    let opened = actor::open(coordinator, watch, Instant::now());
    let recorder = Recorder {
        directory,
        test: plan.test.clone(),
        objective: plan.model.objective(),
        measured: opened.measured.clone(),
        feed: feed.clone(),
        ending: Arc::clone(&ending),
        test_seed,
    };
    let (give_up, mut gave_up) = tokio::sync::oneshot::channel::<()>();
    let recorder = std::thread::spawn(move || {
        let result = recorder.run(&known, &to_measure);
        if result.is_err() {
            // Whoever waits may be gone; the error is in the result.
            let _ = give_up.send(());
        }
        result
    });
    let service = Service::new(opened.desk.clone(), &description, feed.clone());
    let missing = tokio::spawn(missing::keep(feed.clone(), service.streams()));
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let compressor =
        setup::plan_for(&description.resolved, &description.model.objective())?.compressor;
    let serving = tokio::spawn(async move {
        let wait = async {
            let _ = stopped.await;
        };
        service.run(incoming, &compressor, wait).await
    });
    let mut standing = opened.desk.standing();
    let mut ended = opened.ended;
    let outcome: Result<bool, Failure> = tokio::select! {
        code = stop_signal() => match code {
            0 => Ok(false),
            _ => Err(Failure::Failed(format!(
                "interrupted; `soteria serve` with --state {} goes on", options.state.display()
            ))),
        },
        result = &mut ended => Err(cause(result.ok())),
        // Its own error is found below, where it is joined.
        Ok(()) = &mut gave_up => Err(Failure::Failed("the table cannot be written".to_string())),
        finished = standing.wait_for(|standing| standing.finished) => match finished {
            Ok(_) => Ok(true),
            // The desk is gone, and says why a moment later.
            Err(_) => Err(cause((&mut ended).await.ok())),
        },
    };
    match &outcome {
        Ok(true) => feed.phase(Phase::Finished),
        Ok(false) => feed.phase(Phase::Stopping),
        Err(failure) => feed.trouble(Some(failure.message().to_string())),
    }
    if outcome.as_ref().is_ok_and(|finished| *finished) {
        tracing::info!("all rounds are done");
        let linger = plan.resolved.deadline.map_or(LINGER, |deadline| {
            Duration::from_secs_f64((10.0 * deadline).min(LINGER.as_secs_f64())).max(SHORT_LINGER)
        });
        let quiet = wait_for_acknowledgements(&mut standing, linger);
        tokio::select! {
            () = quiet => {}
            _ = stop_signal() => {}
        }
    }
    missing.abort();
    drop(stop);
    drop(opened.stop);
    drop(opened.desk);
    drop(opened.measured);
    // Open streams end with the desk; what is left after a moment is cut off.
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

/// Why the desk closed before the end.
fn cause(ended: Option<Result<(), CoordinatorError>>) -> Failure {
    match ended {
        Some(Err(error)) => error.into(),
        Some(Ok(())) => Failure::Failed("the coordinator ended before the run did".to_string()),
        None => Failure::Failed("the coordinator's thread failed".to_string()),
    }
}

/// Returns when everybody knows the end, or the time is over.
async fn wait_for_acknowledgements(
    standing: &mut tokio::sync::watch::Receiver<actor::Standing>,
    linger: Duration,
) {
    let all = standing.wait_for(|standing| standing.settled);
    if tokio::time::timeout(linger, all).await.is_err() {
        tracing::warn!("not all clients know the end");
    }
}

impl From<CoordinatorError> for Failure {
    fn from(error: CoordinatorError) -> Self {
        Failure::Failed(error.to_string())
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
