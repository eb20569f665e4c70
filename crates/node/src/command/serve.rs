//! `soteria serve`: coordinates a run over the network.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use soteria_core::data::{Cosine, DataDirectories, Dataset, Schema};
use soteria_core::objective::{Objective, Outcome, Records, Workspace};
use soteria_core::protocol::Round;
use soteria_core::random::SecretKey;
use soteria_core::simulate::{Clock, Metrics, Traffic};
use tokio::sync::mpsc::UnboundedSender;

use super::{Failure, Verbosity, print};
use crate::accounting::Privacy;
use crate::config::resolve::{Resolved, Shape};
use crate::config::{Auto, Config, ConfigError, Document, NoiseName, NoiseTarget};
use crate::dashboard::{self, About, Feed, Phase, Point};
use crate::deploy::coordinator::{Coordinator, CoordinatorError, News, SNAPSHOT_EVERY};
use crate::deploy::description::{Description, DescriptionError, RecordShape};
use crate::deploy::hex;
use crate::deploy::sqlite::ServerSqlite;
use crate::deploy::store::{Evaluation, ServerStore};
use crate::logs::LogOptions;
use crate::model_file;
use crate::net::desk::{self, Observer};
use crate::net::listen::{self, Limits, Security};
use crate::net::service::Service;
use crate::net::tls;
use crate::output::{self, Ending, RunDirectory};
use crate::problem::{Model, Problem, constant_feature, image_side};
use crate::run as setup;

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
    /// Where data sets are looked for first
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
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
    if stored.is_none() {
        output::check_empty(&options.out, options.force)?;
    }
    let description = plan.describe(options, stored.as_deref())?;
    let start = plan.model.start(&plan.resolved)?;
    let coordinator = Coordinator::new(store, description, start, SNAPSHOT_EVERY, Duration::ZERO)?;
    let over = coordinator.settled();
    if over && options.out.join("summary.json").exists() {
        verbosity.say("the run is over");
        return Ok(());
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::Failed(format!("no runtime: {error}")))?;
    runtime.block_on(coordinate(options, &plan, coordinator, began, verbosity))
}

/// Everything that follows from configuration and data.
struct Plan {
    resolved: Resolved,
    shape: RecordShape,
    model: Model,
    test: Option<Arc<Dataset>>,
    basis: Option<Cosine>,
    intercept: f64,
    /// Whether scaling constants were computed from records.
    data_dependent: bool,
}

impl Plan {
    fn make(options: &Options, verbosity: Verbosity) -> Result<Self, Failure> {
        let mut document = match &options.config {
            Some(file) => Document::from_file(file)?,
            None => Document::default(),
        };
        for assignment in &options.set {
            document.set(assignment)?;
        }
        if let Some(seed) = options.test_seed {
            document.set(&format!("run.seed={seed}"))?;
        }
        let mut config = Config::read(&document)?;
        if config.noise == Auto::Auto && options.test_seed.is_none() {
            config.noise = Auto::Given(NoiseName::Secure);
        }
        let directories = DataDirectories::from_environment(options.data.as_deref());
        let (plan, warnings) = if config.records.is_some() {
            Self::without_records(&config, &directories)?
        } else {
            Self::with_records(&config, &directories)?
        };
        for warning in &warnings {
            verbosity.warn(warning);
        }
        Ok(plan)
    }

    /// The server can load what the clients have: a public set, or a simulation on one machine.
    fn with_records(
        config: &Config,
        directories: &DataDirectories,
    ) -> Result<(Self, Vec<String>), Failure> {
        let problem = Problem::load(config, directories)?;
        let (resolved, warnings) = config.resolve(&problem.shape(config)?)?;
        let intercept = matches!(
            problem.model,
            Model::Logistic {
                intercept: true,
                ..
            }
        );
        let records = &problem.shards[0];
        let plan = Self {
            resolved,
            shape: RecordShape {
                features: problem.features() - usize::from(intercept),
                labels: label_names(records),
            },
            model: problem.model,
            test: problem.test.map(Arc::new),
            basis: problem.basis,
            intercept: problem.intercept,
            data_dependent: problem.scaling.data_dependent(),
        };
        Ok((plan, warnings))
    }

    /// The server owns no records: the configuration, or the test set, says what they look like.
    fn without_records(
        config: &Config,
        directories: &DataDirectories,
    ) -> Result<(Self, Vec<String>), Failure> {
        let schema = Schema {
            columns: config.features,
            label_names: config.labels.clone().map(Into::into),
        };
        let test = match &config.test {
            None => None,
            Some(source) => {
                let loaded = source.load_as(&schema, directories, config.seed)?;
                Some(loaded.test.unwrap_or(loaded.train))
            }
        };
        let shape = match (config.features, &config.labels, &test) {
            (Some(features), Some(labels), _) => RecordShape {
                features,
                labels: labels.clone(),
            },
            (features, labels, Some(test)) => RecordShape {
                features: features.unwrap_or(test.columns()),
                labels: labels.clone().unwrap_or_else(|| label_names(test)),
            },
            _ => {
                return Err(ConfigError::with_hint(
                    "`deployment.records` says that the server owns no records, but not what they look like",
                    "give deployment.features and deployment.labels, or a test set in data.test",
                )
                .into());
            }
        };
        let kind = config.model_for(shape.labels.len())?;
        let model = shape.model(config, kind)?;
        let basis = shape.basis(config, kind)?;
        let records = config.records.unwrap_or(1);
        let (resolved, warnings) = config.resolve(&Shape {
            dimension: model.objective().dimension(),
            records: vec![records; config.clients()?],
            model: kind,
            image: basis.is_none() && image_side(shape.features).is_some(),
            basis,
            whole: model.whole(basis),
            smoothness: None,
        })?;
        let mut plan = Self {
            resolved,
            shape,
            model,
            test: None,
            basis,
            intercept: 0.0,
            data_dependent: false,
        };
        // The description knows the constants, or that there are none.
        let start = plan.model.start(&plan.resolved)?;
        let (shape, resolved) = (plan.shape.clone(), &plan.resolved);
        let outline = Description::new(resolved, shape, &plan.model, &start, None, [0; 16])?;
        let scaling = outline.scaling()?;
        if outline.intercept() {
            plan.intercept = constant_feature(&scaling, plan.shape.features + 1);
        }
        if let Some(mut test) = test {
            if outline.intercept() {
                test = test.with_intercept();
            }
            test = scaling.apply(test)?;
            if let Some(basis) = basis {
                test = basis.apply(test)?;
            }
            plan.test = Some(Arc::new(test));
        }
        Ok((plan, warnings))
    }

    /// The description of a new run, or of the stored one, which must be this configuration's.
    fn describe(&self, options: &Options, stored: Option<&str>) -> Result<Description, Failure> {
        if self.data_dependent {
            return Err(Failure::usage(
                "deployment takes scaling constants only: give data.center and data.factor, or data.scale = \"none\"",
            ));
        }
        let mut nonce = [0; 16];
        match stored {
            Some(text) => {
                let line = text.lines().find_map(|line| line.strip_prefix("nonce = "));
                let found = line.and_then(|line| crate::deploy::unhex(line.trim_matches('"')));
                nonce = found.unwrap_or_default();
            }
            None => {
                let key = SecretKey::from_operating_system()
                    .map_err(|error| Failure::Failed(error.to_string()))?;
                nonce.copy_from_slice(&key.expose()[..16]);
            }
        }
        let description = Description::new(
            &self.resolved,
            self.shape.clone(),
            &self.model,
            &self.model.start(&self.resolved)?,
            options.test_seed,
            nonce,
        )?;
        match stored {
            Some(text) if text != description.text() => Err(Failure::Usage {
                message: format!(
                    "{} holds a run with another configuration",
                    options.state.display()
                ),
                hint: Some("give the configuration it was started with, or another --state".into()),
            }),
            _ => Ok(description),
        }
    }
}

fn label_names(data: &Dataset) -> Vec<String> {
    data.label_names().to_vec()
}

/// Runs the server until the run is over.
async fn coordinate(
    options: &Options,
    plan: &Plan,
    coordinator: Coordinator<ServerSqlite>,
    began: Instant,
    verbosity: Verbosity,
) -> Result<(), Failure> {
    crate::net::raise_file_limit();
    let description = coordinator.description().clone();
    let clients = description.resolved.clients;
    let security = match &options.tls {
        Some(directory) => Security::Tls(
            tls::server(directory).map_err(|error| Failure::usage(error.to_string()))?,
        ),
        None => Security::Plain,
    };
    let feed = Feed::new(about(&description));
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
    let directory = RunDirectory::create(&options.out, &plan.resolved)?;
    verbosity.say(format!(
        "run {} on {address}: {} with {} parameters, {clients} clients, {} rounds; round {} is open",
        &hex(description.hash())[..16],
        description.resolved.algorithm(),
        description.dimension(),
        description.resolved.rounds,
        coordinator.round(),
    ));
    tracing::info!(%address, run = %hex(&description.hash()[..8]), clients, round = coordinator.round(), "listening");

    let (news, to_measure) = sync_channel(4);
    let watch = Watch {
        feed: feed.clone(),
        news,
        last: None,
        joined: usize::MAX,
        last_state: None,
        told: Some(coordinator.round()),
        test_seed: options.test_seed.is_some(),
        ending: Arc::default(),
    };
    let ending = Arc::clone(&watch.ending);
    let opened = desk::open(coordinator, watch, Instant::now());
    let recorder = Recorder {
        directory,
        test: plan.test.clone(),
        objective: plan.model.objective(),
        measured: opened.measured.clone(),
        feed: feed.clone(),
        ending: Arc::clone(&ending),
        test_seed: options.test_seed.is_some(),
    };
    let recorder = std::thread::spawn(move || recorder.run(&known, &to_measure));
    let service = Service::new(opened.desk.clone(), &description, feed.clone());
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
        result = &mut ended => Err(match result {
            Ok(Err(error)) => error.into(),
            _ => Failure::Failed("the coordinator ended".to_string()),
        }),
        finished = standing.wait_for(|standing| standing.finished) => {
            finished.map(|_| true).map_err(|_| Failure::Failed("the coordinator ended".to_string()))
        }
    };
    match &outcome {
        Ok(true) => feed.phase(Phase::Finished),
        Ok(false) => feed.phase(Phase::Stopping),
        Err(failure) => feed.trouble(Some(format!("{failure:?}"))),
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

/// Returns when everybody knows the end, or the time is over.
async fn wait_for_acknowledgements(
    standing: &mut tokio::sync::watch::Receiver<desk::Standing>,
    linger: Duration,
) {
    let all = standing.wait_for(|standing| standing.settled);
    if tokio::time::timeout(linger, all).await.is_err() {
        tracing::warn!("not all clients know the end");
    }
}

/// What is left when the last round is closed.
#[derive(Default)]
struct Final {
    model: Option<Arc<Vec<f32>>>,
    privacy: Option<Privacy>,
    records: Vec<usize>,
    round: Round,
    traffic: Traffic,
    last: Option<Evaluation>,
}

type Shared = Arc<std::sync::Mutex<Final>>;

fn lock(shared: &Shared) -> std::sync::MutexGuard<'_, Final> {
    shared
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Hears what happens at the desk: keeps the dashboard and the table fed.
struct Watch {
    feed: Feed,
    news: SyncSender<News>,
    last: Option<(Round, bool)>,
    joined: usize,
    last_state: Option<(Round, u32)>,
    /// The round up to which the curves are drawn.
    told: Option<Round>,
    test_seed: bool,
    ending: Shared,
}

impl Watch {
    /// What a client that took part in all rounds has spent.
    fn spent<S: ServerStore>(&self, coordinator: &Coordinator<S>) -> Option<f64> {
        let privacy = coordinator.privacy().filter(|_| !self.test_seed)?;
        let odometer = privacy.odometer.as_ref()?;
        Some(odometer.after(u64::from(coordinator.messages())))
    }
}

impl<S: ServerStore> Observer<S> for Watch {
    fn changed(&mut self, coordinator: &Coordinator<S>, news: Vec<News>) {
        let round = coordinator.round();
        let joined = coordinator.joined();
        let begun = coordinator.begun();
        if self.last != Some((round, begun)) || self.joined != joined {
            (self.last, self.joined) = (Some((round, begun)), joined);
            let phase = match (begun, coordinator.finished()) {
                (_, true) => Phase::Finished,
                (true, _) => Phase::Running,
                _ => Phase::Waiting,
            };
            self.feed.phase(phase);
            let now = now();
            let spent = self.spent(coordinator);
            let closed = coordinator
                .latest()
                .filter(|latest| latest.round + 1 == round);
            let fresh =
                closed.filter(|_| self.told.replace(round).is_some_and(|told| told < round));
            let taken = coordinator.taken();
            self.feed.update(|status| {
                (status.round, status.opened) = (round, Some(now));
                for row in &mut status.clients {
                    row.epsilon = spent;
                    row.taken = taken.get(row.client as usize).copied().unwrap_or(0);
                    row.missed = round.saturating_sub(row.taken);
                }
            });
            // Rounds that are not measured have a time and traffic too.
            if let Some(closed) = fresh {
                let sums = coordinator.sums();
                self.feed.append(Point {
                    round,
                    uplink_bytes: sums.uplink,
                    downlink_bytes: sums.downlink,
                    seconds: coordinator.last_seconds(),
                    taken: closed.taken(),
                    epsilon: spent,
                    ..Point::default()
                });
            }
            let mut ending = lock(&self.ending);
            ending.model = coordinator.model().cloned();
            if ending.privacy.is_none() {
                ending.privacy = coordinator.privacy().cloned();
                let members = coordinator.members().iter().flatten();
                ending.records = members.map(|member| member.records as usize).collect();
            }
            ending.round = round;
            ending.traffic = traffic(coordinator.sums());
        }
        let arrived = coordinator.arrived();
        if self.last_state != Some((round, arrived)) {
            self.last_state = Some((round, arrived));
            self.feed.update(|status| status.arrived = arrived);
        }
        for item in news {
            // A slow measurement holds the run up instead of filling memory; one that ended ends with it.
            let _ = self.news.send(item);
        }
    }
}

/// Measures on the test set and writes the table, on a thread of its own.
struct Recorder {
    directory: RunDirectory,
    test: Option<Arc<Dataset>>,
    objective: Arc<dyn Objective>,
    measured: UnboundedSender<Evaluation>,
    feed: Feed,
    ending: Shared,
    test_seed: bool,
}

impl Recorder {
    fn run(
        mut self,
        known: &[Evaluation],
        to_measure: &Receiver<News>,
    ) -> Result<RunDirectory, Failure> {
        for evaluation in known {
            self.write(evaluation)?;
        }
        while let Ok(News {
            mut evaluation,
            model,
        }) = to_measure.recv()
        {
            if let Some(test) = &self.test {
                let (loss, accuracy) = measure(self.objective.as_ref(), &model, test);
                (evaluation.loss, evaluation.accuracy) = (Some(loss), Some(accuracy));
            }
            self.write(&evaluation)?;
            let epsilon = self.epsilon(evaluation.round);
            if evaluation.round > 0 {
                self.feed.append(point(&evaluation, epsilon));
            }
            tracing::info!(
                round = evaluation.round,
                taken = evaluation.taken,
                accuracy = evaluation.accuracy,
                "round closed"
            );
            // The desk may be closed already; the row is in the file.
            let _ = self.measured.send(evaluation);
        }
        Ok(self.directory)
    }

    fn epsilon(&self, round: Round) -> Option<f64> {
        // Whoever knows the test seed knows the noise.
        let ending = Some(lock(&self.ending)).filter(|_| !self.test_seed)?;
        let odometer = ending.privacy.as_ref()?.odometer.as_ref()?;
        Some(odometer.after(u64::from(round)))
    }

    fn write(&mut self, evaluation: &Evaluation) -> Result<(), Failure> {
        let epsilon = self.epsilon(evaluation.round);
        lock(&self.ending).last = Some(*evaluation);
        let traffic = traffic(evaluation.sums);
        self.directory
            .measured_row(evaluation.round, traffic, evaluation.accuracy, epsilon)?;
        Ok(())
    }
}

fn traffic(sums: crate::deploy::store::Sums) -> Traffic {
    Traffic {
        paper_bits: 64 * sums.values,
        uplink_bytes: sums.uplink,
        downlink_bytes: sums.downlink,
    }
}

/// Mean loss and share of correct classes.
fn measure(objective: &dyn Objective, model: &[f32], data: &Dataset) -> (f64, f64) {
    const CHUNK: usize = 256;
    let mut workspace = Workspace::new();
    let mut outcomes = vec![Outcome::default(); CHUNK];
    let rows: Vec<u32> = (0..data.rows() as u32).collect();
    let (mut loss, mut correct) = (0.0, 0u64);
    for rows in rows.chunks(CHUNK) {
        let outcomes = &mut outcomes[..rows.len()];
        let records = Records { data, rows };
        objective.factors(model, records, Some(outcomes), None, &mut workspace);
        for (outcome, &row) in outcomes.iter().zip(rows) {
            loss += f64::from(outcome.loss);
            correct += u64::from(outcome.class == data.labels()[row as usize]);
        }
    }
    let count = data.rows().max(1) as f64;
    (loss / count, correct as f64 / count)
}

fn point(evaluation: &Evaluation, epsilon: Option<f64>) -> Point {
    Point {
        round: evaluation.round,
        test_loss: evaluation.loss,
        test_accuracy: evaluation.accuracy,
        uplink_bytes: evaluation.sums.uplink,
        downlink_bytes: evaluation.sums.downlink,
        seconds: evaluation.seconds,
        taken: evaluation.taken,
        epsilon,
    }
}

fn about(description: &Description) -> About {
    let run = &description.resolved;
    let (epsilon, claim) = match (description.test_seed, run.noise_target) {
        (Some(_), _) => (None, "test seed".to_string()),
        (None, NoiseTarget::Epsilon(epsilon)) => (Some(epsilon), "proved".to_string()),
        (None, _) => (None, "each client's own".to_string()),
    };
    About {
        run: hex(description.hash()),
        algorithm: run.algorithm(),
        model: format!("{:?}", run.model).to_lowercase(),
        dimension: description.dimension(),
        rounds: run.rounds,
        clients: run.clients,
        epsilon,
        delta: run.delta,
        claim,
        version: env!("CARGO_PKG_VERSION").to_string(),
    }
}

/// Writes what can be said at the end.
fn finish(
    options: &Options,
    plan: &Plan,
    directory: RunDirectory,
    ending: &Shared,
    began: Instant,
    verbosity: Verbosity,
) -> Result<(), Failure> {
    let mut last = lock(ending);
    let model = last.model.take();
    let model = model.ok_or_else(|| Failure::Failed("there is no model".to_string()))?;
    let mut privacy = match last.privacy.take() {
        Some(privacy) => privacy,
        None => Privacy::settle(&plan.resolved, model.len(), &last.records, false)?,
    };
    if options.test_seed.is_some() {
        // Whoever knows the seed knows the noise.
        privacy.claim = "test seed".to_string();
        (privacy.epsilon, privacy.epsilon_unamplified) = (None, None);
        (privacy.amplified, privacy.odometer) = (false, None);
    }
    let ending = Ending {
        resolved: &plan.resolved,
        records: &last.records,
        dimension: model.len(),
        privacy: &privacy,
        rounds: last.round,
        metrics: Metrics {
            loss: f64::NAN,
            grad_norm_sq: f64::NAN,
            test_accuracy: last.last.and_then(|row| row.accuracy),
        },
        utility: f64::NAN,
        traffic: last.traffic,
        clock: Clock::default(),
        total_seconds: began.elapsed().as_secs_f64(),
        interrupted: false,
    };
    let summary = ending.summary();
    let bytes = model_file::to_bytes(&plan.model, &model, plan.basis, plan.intercept)
        .map_err(Failure::Failed)?;
    directory.finish(&summary, &bytes)?;
    if options.json {
        print(&format!("{summary:#}\n"))
    } else {
        print(&table(&ending, &options.out))?;
        verbosity.detail("all clients know the end");
        Ok(())
    }
}

fn table(ending: &Ending<'_>, out: &Path) -> String {
    let accuracy = ending
        .metrics
        .test_accuracy
        .map_or("no test set".to_string(), |accuracy| {
            format!("{accuracy:.4}")
        });
    let epsilon = match ending.privacy.epsilon {
        Some(epsilon) => format!(
            "{} at delta {} (each client by its own ledger)",
            soteria_accountant::round_up(epsilon, 4),
            ending.resolved.delta
        ),
        None => format!("no claim: {}", ending.privacy.claim),
    };
    let lines = [
        ("algorithm", ending.resolved.algorithm()),
        ("rounds", ending.rounds.to_string()),
        ("test accuracy", accuracy),
        ("epsilon", epsilon),
        (
            "sent up",
            indicatif::HumanBytes(ending.traffic.uplink_bytes).to_string(),
        ),
        (
            "sent down",
            indicatif::HumanBytes(ending.traffic.downlink_bytes).to_string(),
        ),
        ("time", format!("{:.2} s", ending.total_seconds)),
        ("report", out.join("report.html").display().to_string()),
    ];
    lines
        .iter()
        .map(|(name, value)| format!("{name:>14}  {value}\n"))
        .collect()
}

fn now() -> f64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0.0, |since| since.as_secs_f64())
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
