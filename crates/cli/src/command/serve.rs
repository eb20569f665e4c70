//! `soteria serve`: coordinates a run over the network.
//!
//! `plan` decides what is coordinated; this file opens state, port and dashboard; `running` starts
//! everything that serves the run, and ends it in order. Meanwhile `observer` feeds the dashboard,
//! `recorder` writes the table of rounds, and `missing` tells which clients the run waits for;
//! `finish` writes the last files.

mod finish;
mod missing;
mod observer;
mod plan;
mod recorder;
mod running;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::inputs::DataDirectory;
use super::{Failure, Verbosity};
use crate::logs::LogOptions;
use finish::{SharedState, finish};
use observer::about;
use plan::Plan;
use recorder::point;
use running::{Running, Stopped};
use soteriafl::output::{self, RunDirectory};
use soteriafl::words::counted;
use soteriafl_deploy::coordinator::{Coordinator, CoordinatorError, SNAPSHOT_EVERY};
use soteriafl_deploy::dashboard::{self, Feed};
use soteriafl_deploy::description::DescriptionError;
use soteriafl_deploy::hex;
use soteriafl_deploy::net::listen::{self, Limits, Security};
use soteriafl_deploy::net::tls;
use soteriafl_deploy::sqlite::ServerSqlite;
use soteriafl_deploy::store::ServerStore;

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
    let security = security(options, verbosity)?;
    let feed = feed(options, plan, &coordinator);
    let limits = Limits::for_clients(coordinator.description().resolved.clients);
    let (address, incoming) = listen::listen(options.listen, security, limits)
        .await
        .map_err(Failure::failed)?;
    feed.watch_door(incoming.counters());
    let dashboard = open_dashboard(options, &feed, verbosity).await?;
    let directory = RunDirectory::create_deployed(&options.out, &plan.config_toml(options))?;
    announce(address, &coordinator, verbosity);

    let state = SharedState::default();
    let shared = (&feed, &state);
    let mut running = Running::start(options, plan, coordinator, directory, incoming, shared)?;
    let outcome = running.wait(options, plan.resolved.deadline).await;
    // What failed first may be found only here, in the table's own error.
    let directory = running.shut_down().await?;
    drop(dashboard);
    match outcome? {
        Stopped::Finished => finish(options, plan, directory, &state, began, verbosity),
        Stopped::Asked => {
            verbosity.say(format!(
                "stopped; `soteria serve` with --state {} goes on",
                options.state.display()
            ));
            Ok(())
        }
    }
}

/// How connections are protected.
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

/// What the dashboard shows, with what an earlier process has stored.
fn feed(options: &Options, plan: &Plan, coordinator: &Coordinator<ServerSqlite>) -> Feed {
    let feed = Feed::new(about(coordinator.description(), plan.test.is_some()));
    let odometer = coordinator
        .privacy()
        .filter(|_| options.test_seed.is_none())
        .and_then(|privacy| privacy.odometer.as_ref());
    let measured = coordinator.evaluations().iter();
    feed.restore(measured.filter(|row| row.round > 0).map(|row| {
        let epsilon = odometer.map(|odometer| odometer.after(u64::from(row.round)));
        point(row, epsilon)
    }));
    for (client, member) in coordinator.members().iter().enumerate() {
        let Some(member) = member else { continue };
        feed.client(client as u32, |row| {
            (row.joined, row.finished) = (true, member.done);
        });
    }
    feed
}

async fn open_dashboard(
    options: &Options,
    feed: &Feed,
    verbosity: Verbosity,
) -> Result<Option<dashboard::Running>, Failure> {
    let Some(address) = options.dashboard else {
        return Ok(None);
    };
    let running = dashboard::serve(dashboard::Options::at(address), feed.clone())
        .await
        .map_err(Failure::failed)?;
    verbosity.say(format!("dashboard: http://{}/", running.address));
    Ok(Some(running))
}

/// Says what is coordinated and where.
fn announce(address: SocketAddr, coordinator: &Coordinator<ServerSqlite>, verbosity: Verbosity) {
    let description = coordinator.description();
    let (run, round) = (hex(description.hash()), coordinator.round());
    let clients = description.resolved.clients;
    verbosity.say(format!(
        "run {} on {address}: {} with {}, {}, {}; round {round} is open",
        &run[..16],
        description.resolved.algorithm_text(description.dimension()),
        counted(description.dimension(), "parameter"),
        counted(clients, "client"),
        counted(description.resolved.rounds, "round"),
    ));
    tracing::info!(%address, run = %&run[..16], clients, round, "listening");
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
