//! A server under load: `soteria serve` as it is, in a process of its own, and clients with their
//! state in memory, which send prepared messages over TLS from this process.
//!
//! `cargo bench -p soteriafl-cli --bench network -- --clients 10,1000` measures these numbers of
//! clients; without them, the table of `docs/performance.md`. Processor time and memory are read
//! from `/proc`; where there is none, they are 0.
//!
//! Prepared messages have random coordinates and small values, so a client's own work is its TLS
//! and HTTP/2 alone. It is done on the same machine, so a round takes the time of server *and*
//! clients; the server's share is its processor time, as the operating system counts it.

use std::error::Error;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use clap::Parser;
use serde_json::{Value, json};
use soteriafl_core::protocol::{ClientId, Round};
use soteriafl_deploy::description::Description;
use soteriafl_deploy::net::client::{FollowError, Patience};
use soteriafl_deploy::net::connect::{Security, Target};
use soteriafl_deploy::net::keys::Directory;
use soteriafl_deploy::net::rpc::coordinator_client::CoordinatorClient;
use soteriafl_deploy::net::rpc::{self, progress::Event};
use soteriafl_deploy::net::{raise_file_limit, tls};
use tempfile::TempDir;

type Failure = Box<dyn Error + Send + Sync>;

/// Rounds before the clock starts: connections grow their windows, memory its pools.
const WARM_UP: Round = 3;

/// How often a client tries again at most.
const MOST_RETRIES: u32 = 100;

/// Records that every client says it has.
const RECORDS: usize = 10;

/// Parameters of the paper's 784-64-10 network.
const DIMENSION: usize = 50_890;

/// A server under load: clients with prepared messages over TLS
#[derive(Parser, Debug)]
struct Options {
    /// Two small loads only
    #[arg(long)]
    quick: bool,
    /// Numbers of clients, e.g. 10,1000
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(1..=20_000)
    )]
    clients: Vec<u32>,
    /// What the server sends, as algorithm.downlink
    #[arg(long, value_name = "FORM", default_value = "none")]
    downlink: String,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Passed by `cargo bench`; changes nothing
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> Result<(), Failure> {
    let options = Options::parse();
    let mut measured = Vec::new();
    for load in loads(options.quick, &options.clients) {
        eprintln!(
            "{} clients over TLS, {} rounds, {}% of the coordinates",
            load.clients,
            load.rounds,
            100.0 * load.fraction
        );
        let measurement = measure(load, &options.downlink)?;
        if !options.json {
            println!("network    {}", measurement.to_text());
        }
        measured.push(measurement);
    }
    if options.json {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let network: Vec<Value> = measured.iter().map(Measurement::to_json).collect();
        println!("{:#}", json!({ "cores": cores, "network": network }));
    }
    Ok(())
}

/// What is measured.
#[derive(Clone, Copy, Debug)]
struct Load {
    /// Clients, each with a connection of its own.
    clients: u32,
    /// The share of coordinates that is sent.
    fraction: f64,
    /// Rounds, warm-up included.
    rounds: Round,
}

impl Load {
    /// How many coordinates are sent.
    fn k(&self) -> usize {
        ((self.fraction * DIMENSION as f64) as usize).max(1)
    }
}

/// The result for one load.
#[derive(Clone, Debug)]
struct Measurement {
    load: Load,
    /// Seconds of a round on average after the warm-up: from the first client that is told of one
    /// to the first that is told of the next.
    round: f64,
    /// Processor seconds of the server for a round.
    server: f64,
    /// Processor seconds of all clients for a round.
    clients: f64,
    /// The largest memory of the server so far, in bytes.
    memory: u64,
    /// Bytes of one message.
    message: usize,
    /// Bytes of one round's answer to a client, on average.
    answer: f64,
    /// Seconds between the first and the last client that are told of a round: the median over
    /// rounds, and the largest.
    spread: (f64, f64),
    /// Fewest messages of a client that were accepted, out of the number of rounds.
    fewest: u32,
    /// How often a client had to connect or ask again.
    retries: u32,
}

impl Measurement {
    fn to_json(&self) -> Value {
        json!({
            "clients": self.load.clients, "fraction": self.load.fraction,
            "rounds": self.load.rounds, "round_seconds": self.round,
            "server_cpu_seconds": self.server, "clients_cpu_seconds": self.clients,
            "server_memory_bytes": self.memory, "message_bytes": self.message,
            "answer_bytes": self.answer,
            "spread_seconds": { "median": self.spread.0, "worst": self.spread.1 },
            "fewest_taken": self.fewest, "again": self.retries,
        })
    }

    fn to_text(&self) -> String {
        format!(
            "{:>5} clients, {:>5.2}% of {DIMENSION}: {:>8.1} ms a round ({:.2}/s), \
             server {:>7.1} ms cpu and {:>4.0} MB, clients {:>7.1} ms cpu, \
             {} B up, {:.0} B down, spread {:.0}/{:.0} ms, fewest {}/{}, {} tried again",
            self.load.clients,
            100.0 * self.load.fraction,
            1e3 * self.round,
            1.0 / self.round,
            1e3 * self.server,
            self.memory as f64 / 1e6,
            1e3 * self.clients,
            self.message,
            self.answer,
            1e3 * self.spread.0,
            1e3 * self.spread.1,
            self.fewest,
            self.load.rounds,
            self.retries,
        )
    }
}

/// The loads of the table, or those of so many clients.
fn loads(quick: bool, clients: &[u32]) -> Vec<Load> {
    let load = |clients, fraction, rounds| Load {
        clients,
        fraction,
        rounds,
    };
    let rounds = |clients: u32| (10_000 / clients.max(1)).clamp(25, 250);
    match clients {
        [] if quick => vec![load(10, 0.05, 50), load(100, 0.05, 15)],
        [] => vec![
            load(10, 0.05, 250),
            load(30, 0.05, 250),
            load(100, 0.05, 100),
            load(300, 0.05, 33),
            load(1000, 0.05, 25),
            load(300, 0.0125, 33),
            load(300, 0.025, 33),
            load(300, 0.1, 33),
            load(300, 0.2, 33),
        ],
        given => given
            .iter()
            .map(|&clients| load(clients, 0.05, rounds(clients)))
            .collect(),
    }
}

/// Starts a server, lets the clients of one load run against it, and stops it.
fn measure(load: Load, downlink: &str) -> Result<Measurement, Failure> {
    raise_file_limit();
    let place = TempDir::new()?;
    let keys = place.path().join("keys");
    Directory::init(&keys, load.clients, &[], 1, false)?;
    let config = place.path().join("run.toml");
    std::fs::write(&config, configuration(load, downlink))?;
    let server = Server::start(place.path(), &config, &keys)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let measurement = runtime.block_on(run_clients(load, &keys, &server))?;
    runtime.shutdown_background();
    Ok(measurement)
}

fn configuration(load: Load, downlink: &str) -> String {
    // The records are only there to give the model its shape; clients bring their own numbers.
    format!(
        "[data]\nsource = \"synthetic:{}x784x10\"\nclients = {}\n\
         [model]\nkind = \"mlp\"\nhidden = [64]\n\
         [algorithm]\npreset = \"soteriafl-sgd\"\nbatch = 5\nk = {}\nrounds = {}\n\
         step_size = 0.001\ndownlink = \"{downlink}\"\n\
         [privacy]\nsigma = 0.1\n[run]\neval_every = 0\n",
        RECORDS * load.clients as usize,
        load.clients,
        load.k(),
        load.rounds
    )
}

/// A server process; it ends with this.
struct Server {
    process: Child,
    address: SocketAddr,
}

impl Server {
    fn start(place: &Path, config: &Path, keys: &Path) -> Result<Self, Failure> {
        // Asked for and given back: somebody else could take it, and then the server says so.
        let address =
            TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr())?;
        let process = Command::new(env!("CARGO_BIN_EXE_soteria"))
            .arg("serve")
            .arg("--config")
            .arg(config)
            .args(["--listen", &address.to_string(), "--quiet"])
            .arg("--tls")
            .arg(keys)
            .arg("--state")
            .arg(place.join("state"))
            .arg("--out")
            .arg(place.join("out"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()?;
        Ok(Self { process, address })
    }

    /// Processor seconds so far: the server's, and those of this process, which are the clients'.
    fn processor(&self) -> (f64, f64) {
        let clients = processor(std::process::id());
        (processor(self.process.id()), clients)
    }

    /// The largest memory that it has had, in bytes.
    fn memory(&self) -> u64 {
        let path = format!("/proc/{}/status", self.process.id());
        let text = std::fs::read_to_string(path).unwrap_or_default();
        text.lines()
            .find_map(|line| line.strip_prefix("VmHWM:"))
            .and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok())
            .map_or(0, |kilobytes| 1024 * kilobytes)
    }
}

/// Processor seconds of a process so far.
fn processor(process: u32) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // The name in parentheses may hold anything; numbers follow it, in hundredths of a second.
    let mut fields = text.rsplit(')').next().unwrap_or_default().split(' ');
    let mut ticks = |skipped| {
        let field = fields.nth(skipped);
        field.and_then(|field| field.parse::<f64>().ok())
    };
    let (user, system) = (ticks(12), ticks(0));
    (user.unwrap_or(0.0) + system.unwrap_or(0.0)) / 100.0
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// What all clients together have seen.
struct Journal {
    /// For every round, when the first and when the last client was told of it.
    told: Vec<Option<(Instant, Instant)>>,
    /// Processor seconds of server and clients at the end of the warm-up.
    before: Option<(f64, f64)>,
    /// Bytes and number of the answers.
    answers: (u64, u64),
}

impl Journal {
    fn first(&self, round: Round) -> Option<Instant> {
        self.told[round as usize].map(|times| times.0)
    }

    /// Seconds of a round on average after the warm-up.
    fn round_seconds(&self, rounds: Round) -> f64 {
        match (self.first(WARM_UP), self.first(rounds)) {
            (Some(start), Some(end)) => (end - start).as_secs_f64() / f64::from(rounds - WARM_UP),
            _ => f64::NAN,
        }
    }

    /// Median and maximum of the seconds between the first and the last client told of a round.
    fn spread(&self) -> (f64, f64) {
        let rounds = self.told[WARM_UP as usize..].iter().flatten();
        let mut spreads: Vec<f64> = rounds
            .map(|(first, last)| (*last - *first).as_secs_f64())
            .collect();
        spreads.sort_by(f64::total_cmp);
        let median = spreads.get(spreads.len() / 2).copied();
        (
            median.unwrap_or(0.0),
            spreads.last().copied().unwrap_or(0.0),
        )
    }
}

type SharedJournal = Arc<Mutex<Journal>>;

fn lock(journal: &SharedJournal) -> std::sync::MutexGuard<'_, Journal> {
    journal.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lets all clients take part to the end, and measures.
async fn run_clients(load: Load, keys: &Path, server: &Server) -> Result<Measurement, Failure> {
    let journal = Arc::new(Mutex::new(Journal {
        told: vec![None; load.rounds as usize + 1],
        before: None,
        answers: (0, 0),
    }));
    let message = prepared(load);
    let run = Bytes::copy_from_slice(&describe(keys, server).await?.run_id());
    let mut tasks = tokio::task::JoinSet::new();
    for client in 0..load.clients {
        let client = LoadClient {
            stub: stub(keys, client, server.address)?,
            client,
            run: run.clone(),
            message: message.clone(),
            journal: Arc::clone(&journal),
            rounds: load.rounds,
            next_round: 0,
            sent: None,
            accepted: 0,
            retries: 0,
        };
        tasks.spawn(client.run());
    }
    let all_clients = async {
        let (mut fewest, mut retries) = (u32::MAX, 0);
        while let Some(done) = tasks.join_next().await {
            let client = done?.map_err(|error| format!("a client failed: {error}"))?;
            fewest = fewest.min(client.accepted);
            retries += client.retries;
        }
        Ok::<_, Failure>((fewest, retries))
    };
    let processor_time = sample_processor(&journal, load.rounds, server);
    let ((fewest, retries), (after, memory)) =
        tokio::try_join!(all_clients, async { Ok(processor_time.await) })?;
    let journal = lock(&journal);
    let before = journal.before.unwrap_or_default();
    let counted = f64::from(load.rounds - WARM_UP);
    Ok(Measurement {
        load,
        round: journal.round_seconds(load.rounds),
        server: (after.0 - before.0) / counted,
        clients: (after.1 - before.1) / counted,
        memory,
        message: message.len(),
        answer: journal.answers.0 as f64 / journal.answers.1.max(1) as f64,
        spread: journal.spread(),
        fewest,
        retries,
    })
}

/// Writes down the processor times when the warm-up ends; returns those of the end of the run, and
/// the server's largest memory.
async fn sample_processor(
    journal: &SharedJournal,
    rounds: Round,
    server: &Server,
) -> ((f64, f64), u64) {
    loop {
        tokio::time::sleep(Duration::from_millis(1)).await;
        let mut journal = lock(journal);
        if journal.first(WARM_UP).is_some() && journal.before.is_none() {
            journal.before = Some(server.processor());
        }
        if journal.first(rounds).is_some() {
            return (server.processor(), server.memory());
        }
    }
}

fn stub(
    keys: &Path,
    client: ClientId,
    address: SocketAddr,
) -> Result<CoordinatorClient<tonic::transport::Channel>, Failure> {
    let security = Security::Tls(tls::client(keys, client)?);
    let target = Target::new(&format!("https://{address}"), &security)?;
    let endpoint = target.endpoint().initial_stream_window_size(1 << 20);
    let endpoint = endpoint.initial_connection_window_size(1 << 20);
    Ok(CoordinatorClient::new(target.channel(&endpoint))
        .max_decoding_message_size(16 * DIMENSION + 4096))
}

/// Waits for the server and asks what it coordinates.
async fn describe(keys: &Path, server: &Server) -> Result<Description, Failure> {
    let start = Instant::now();
    loop {
        match stub(keys, 0, server.address)?
            .describe(rpc::DescribeRequest {})
            .await
        {
            Ok(reply) => {
                let text = reply.into_inner().description;
                return Ok(Description::parse(&text, RECORDS)?);
            }
            Err(_) if start.elapsed() < Duration::from_secs(60) => {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            Err(status) => {
                return Err(format!("the server does not answer: {}", status.message()).into());
            }
        }
    }
}

/// A message of round 0: version, kind, round, dimension, seed, values (docs/architecture.md).
fn prepared(load: Load) -> BytesMut {
    let k = load.k();
    let mut message = BytesMut::with_capacity(26 + 4 * k);
    message.extend_from_slice(&[1, 2]);
    message.extend_from_slice(&0u32.to_le_bytes());
    message.extend_from_slice(&(DIMENSION as u32).to_le_bytes());
    message.extend_from_slice(&[0; 16]);
    for index in 0..k {
        let value = ((index * 37 % 101) as f32 - 50.0) / 1000.0;
        message.extend_from_slice(&value.to_le_bytes());
    }
    message
}

/// One of the clients of a load.
struct LoadClient {
    stub: CoordinatorClient<tonic::transport::Channel>,
    client: ClientId,
    run: Bytes,
    message: BytesMut,
    journal: SharedJournal,
    rounds: Round,
    /// The round that it answers next.
    next_round: Round,
    /// The round of its last message.
    sent: Option<Round>,
    /// Messages that were accepted.
    accepted: u32,
    retries: u32,
}

impl LoadClient {
    /// Takes part until the end. Temporary failures are tried again, as `soteria join` does it.
    async fn run(mut self) -> Result<Self, FollowError> {
        // Coordinates of its own, as a real client has them.
        self.message[10..14].copy_from_slice(&self.client.to_le_bytes());
        let mut patience = Patience::default();
        loop {
            let before = self.next_round;
            match self.attempt().await.map_err(FollowError::from) {
                Ok(()) => return Ok(self),
                Err(FollowError::Passing(_)) if self.retries < MOST_RETRIES => self.retries += 1,
                Err(error) => return Err(error),
            }
            if self.next_round > before {
                patience.reset();
            }
            patience.pause().await;
        }
    }

    async fn attempt(&mut self) -> Result<(), tonic::Status> {
        let run = self.run.clone();
        let records = RECORDS as u64;
        self.stub.join(rpc::JoinRequest { run, records }).await?;
        let request = rpc::FollowRequest {
            run: self.run.clone(),
            have: Some(self.next_round),
            pending: self.sent,
            every_round: true,
            tell_waiting: false,
        };
        let mut stream = self.stub.follow(request).await?.into_inner();
        let mut sent = None;
        while self.next_round < self.rounds {
            let Some(progress) = stream.message().await? else {
                return Err(tonic::Status::unavailable("the server ended the stream"));
            };
            if let Some(Event::Closed(closed)) = progress.event {
                self.accepted += u32::from(closed.accepted);
                self.next_round = closed.round + 1;
                self.note(self.next_round, closed.average.len());
            }
            let round = self.next_round;
            if progress.open == round && round < self.rounds && sent != Some(round) {
                sent = Some(round);
                self.sent = sent;
                self.submit(round).await?;
            }
        }
        let run = self.run.clone();
        let request = rpc::AcknowledgeRequest { run };
        self.stub.acknowledge(request).await?;
        Ok(())
    }

    async fn submit(&mut self, round: Round) -> Result<(), tonic::Status> {
        self.message[2..6].copy_from_slice(&round.to_le_bytes());
        let run = self.run.clone();
        let message = self.message.clone().freeze();
        self.stub
            .submit(rpc::SubmitRequest { run, message })
            .await?;
        Ok(())
    }

    fn note(&self, round: Round, bytes: usize) {
        let now = Instant::now();
        let mut journal = lock(&self.journal);
        journal.answers.0 += bytes as u64;
        journal.answers.1 += 1;
        if let Some(times) = journal.told.get_mut(round as usize) {
            let first = times.map_or(now, |times| times.0);
            *times = Some((first, now));
        }
    }
}
