//! A networked run under load: `soteria serve` as it is, in a process of its own, and clients that keep
//! their state in memory and send prepared messages over TLS from this one.
//!
//! Prepared messages have random coordinates and small values, so a client's own work is its TLS and HTTP/2
//! alone; but it is done on the same machine, so the rates below are those of server *and* clients. The
//! server's share is its processor time, as the operating system counts it.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use serde_json::{Value, json};
use soteriafl_core::protocol::{ClientId, Round};
use tempfile::TempDir;

use super::super::{Failure, Verbosity};
use soteriafl_deploy::description::Description;
use soteriafl_deploy::net::client::{FollowError, Patience};
use soteriafl_deploy::net::connect::{Security, Target};
use soteriafl_deploy::net::keys::Directory;
use soteriafl_deploy::net::rpc::coordinator_client::CoordinatorClient;
use soteriafl_deploy::net::rpc::{self, progress::Event};
use soteriafl_deploy::net::{raise_file_limit, tls};

/// Rounds before the clock starts: connections grow their windows, memory its pools.
const WARM: Round = 3;

/// How often a client tries again at most.
const PATIENCE: u32 = 100;

/// Records that every client says it has.
const RECORDS: usize = 10;

/// The 784-64-10 network of the paper.
pub const DIMENSION: usize = 50_890;

/// What is measured.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Clients, each with a connection of its own.
    pub clients: u32,
    /// The share of coordinates that travels.
    pub fraction: f64,
    /// Rounds, warm-up included.
    pub rounds: Round,
}

impl Load {
    /// How many coordinates travel.
    fn k(&self) -> usize {
        ((self.fraction * DIMENSION as f64) as usize).max(1)
    }
}

/// What came out.
#[derive(Clone, Debug)]
pub struct Held {
    /// The load.
    pub load: Load,
    /// Seconds of a round on average after the warm-up, from the first client's news of one to its news of the next.
    pub round: f64,
    /// Processor seconds of the server for a round.
    pub server: f64,
    /// Processor seconds of all clients for a round.
    pub clients: f64,
    /// The largest memory of the server so far, in bytes.
    pub memory: u64,
    /// Bytes of one message.
    pub message: usize,
    /// Bytes of one round's answer to a client, on average.
    pub answer: f64,
    /// Between the first and the last client that hear of a round: the median over rounds, and the worst, in seconds.
    pub spread: (f64, f64),
    /// Fewest messages of a client that were taken, out of the number of rounds.
    pub fewest: u32,
    /// How often a client had to connect or ask again.
    pub again: u32,
}

impl Held {
    /// One JSON object.
    pub fn to_json(&self) -> Value {
        json!({
            "clients": self.load.clients, "fraction": self.load.fraction, "rounds": self.load.rounds,
            "round_seconds": self.round, "server_cpu_seconds": self.server,
            "clients_cpu_seconds": self.clients, "server_memory_bytes": self.memory,
            "message_bytes": self.message, "answer_bytes": self.answer,
            "spread_seconds": { "median": self.spread.0, "worst": self.spread.1 }, "fewest_taken": self.fewest,
            "again": self.again,
        })
    }

    /// One line.
    pub fn to_text(&self) -> String {
        format!(
            "{:>5} clients, {:>5.2}% of {DIMENSION}: {:>8.1} ms a round ({:.2}/s), server {:>7.1} ms cpu and {:>4.0} MB, clients {:>7.1} ms cpu, \
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
            self.again,
        )
    }
}

/// The loads of the table, or those of so many clients.
pub fn loads(quick: bool, clients: &[u32]) -> Vec<Load> {
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

/// Runs one load.
///
/// # Errors
/// When the server cannot be started or a client is refused.
pub fn measure(load: Load, verbosity: Verbosity) -> Result<Held, Failure> {
    verbosity.say(format!(
        "{} clients over TLS, {} rounds, {}% of the coordinates",
        load.clients,
        load.rounds,
        100.0 * load.fraction
    ));
    raise_file_limit();
    let place = TempDir::new().map_err(|error| Failure::Failed(error.to_string()))?;
    let keys = place.path().join("keys");
    Directory::init(&keys, load.clients, &[], 1, false)?;
    let config = place.path().join("run.toml");
    write(&config, &configuration(load))?;
    let server = Server::start(place.path(), &config, &keys)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::Failed(error.to_string()))?;
    let held = runtime.block_on(drive(load, &keys, &server))?;
    runtime.shutdown_background();
    Ok(held)
}

fn configuration(load: Load) -> String {
    // The records are only there to give the model its shape; clients bring their own numbers.
    format!(
        "[data]\nsource = \"synthetic:{}x784x10\"\nclients = {}\n[model]\nkind = \"mlp\"\nhidden = [64]\n\
         [algorithm]\npreset = \"soteriafl-sgd\"\nbatch = 5\nk = {}\nrounds = {}\nstep_size = 0.001\n\
         [privacy]\nsigma = 0.1\n[run]\neval_every = 0\n",
        RECORDS * load.clients as usize,
        load.clients,
        load.k(),
        load.rounds
    )
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(path, text)
        .map_err(|error| Failure::Failed(format!("{}: {error}", path.display())))
}

/// A server process; it ends with this.
struct Server {
    process: Child,
    address: SocketAddr,
}

impl Server {
    fn start(place: &Path, config: &Path, keys: &Path) -> Result<Self, Failure> {
        let fail =
            |error: std::io::Error| Failure::Failed(format!("cannot start a server: {error}"));
        // Asked for and given back: somebody else could take it, and then the server says so.
        let address = TcpListener::bind(("127.0.0.1", 0))
            .and_then(|listener| listener.local_addr())
            .map_err(fail)?;
        let process = Command::new(std::env::current_exe().map_err(fail)?)
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
            .spawn()
            .map_err(fail)?;
        Ok(Self { process, address })
    }

    /// Processor seconds so far: the server's, and those of this process, which are the clients'.
    fn processor(&self) -> (f64, f64) {
        let clients = processor(std::process::id());
        (processor(self.process.id()), clients)
    }

    /// The most memory that it had at a time.
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
    // The name in parentheses may hold anything; what follows it is numbers, in hundredths of a second.
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

/// When clients heard of rounds, over all clients.
#[derive(Default)]
struct Journal {
    /// First and last time that somebody heard of a round.
    heard: Vec<Option<(Instant, Instant)>>,
    processor: Option<(f64, f64)>,
    answers: (u64, u64),
}

async fn drive(load: Load, keys: &Path, server: &Server) -> Result<Held, Failure> {
    let journal = Arc::new(Mutex::new(Journal {
        heard: vec![None; load.rounds as usize + 1],
        ..Journal::default()
    }));
    let message = prepared(load);
    let description = describe(keys, server).await?;
    let run = Bytes::copy_from_slice(&description.run_id());
    let mut tasks = tokio::task::JoinSet::new();
    for client in 0..load.clients {
        let stub = stub(keys, client, server.address)?;
        let one = OneClient {
            stub,
            client,
            run: run.clone(),
            message: message.clone(),
            journal: Arc::clone(&journal),
            rounds: load.rounds,
            heard: 0,
            sent: None,
            taken: 0,
            again: 0,
        };
        tasks.spawn(one.run());
    }
    let (mut fewest, mut again) = (u32::MAX, 0);
    let watch = async {
        while let Some(done) = tasks.join_next().await {
            let client = done
                .map_err(|error| Failure::Failed(error.to_string()))?
                .map_err(|error| Failure::Failed(format!("a client failed: {error}")))?;
            fewest = fewest.min(client.taken);
            again += client.again;
        }
        Ok::<(), Failure>(())
    };
    let sample = async {
        // The clock and the server's processor time start together, when the warm-up is over.
        loop {
            tokio::time::sleep(Duration::from_millis(1)).await;
            let mut journal = journal.lock().unwrap_or_else(PoisonError::into_inner);
            if journal.heard[WARM as usize].is_some() && journal.processor.is_none() {
                journal.processor = Some(server.processor());
            }
            if journal.heard[load.rounds as usize].is_some() {
                return Ok((server.processor(), server.memory()));
            }
        }
    };
    let ((), (processor, memory)) = tokio::try_join!(watch, sample)?;
    let journal = journal.lock().unwrap_or_else(PoisonError::into_inner);
    let first = |round: Round| journal.heard[round as usize].map(|times| times.0);
    let counted = f64::from(load.rounds - WARM);
    let round = match (first(WARM), first(load.rounds)) {
        (Some(start), Some(end)) => (end - start).as_secs_f64() / counted,
        _ => f64::NAN,
    };
    let mut spreads: Vec<f64> = journal.heard[WARM as usize..]
        .iter()
        .flatten()
        .map(|(first, last)| (*last - *first).as_secs_f64())
        .collect();
    spreads.sort_by(f64::total_cmp);
    let before = journal.processor.unwrap_or_default();
    Ok(Held {
        load,
        round,
        server: (processor.0 - before.0) / counted,
        clients: (processor.1 - before.1) / counted,
        memory,
        message: message.len(),
        answer: journal.answers.0 as f64 / journal.answers.1.max(1) as f64,
        spread: (
            spreads[spreads.len() / 2],
            spreads.last().copied().unwrap_or(0.0),
        ),
        fewest,
        again,
    })
}

fn stub(
    keys: &Path,
    client: ClientId,
    address: SocketAddr,
) -> Result<CoordinatorClient<tonic::transport::Channel>, Failure> {
    let config = tls::client(keys, client).map_err(|error| Failure::Failed(error.to_string()))?;
    let target = Target::new(&format!("https://{address}"), &Security::Tls(config))
        .map_err(|error| Failure::Failed(error.to_string()))?;
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
                return Description::parse(&text, RECORDS)
                    .map_err(|error| Failure::Failed(error.to_string()));
            }
            Err(_) if start.elapsed() < Duration::from_secs(60) => {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            Err(status) => {
                return Err(Failure::Failed(format!(
                    "the server does not answer: {}",
                    status.message()
                )));
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

struct OneClient {
    stub: CoordinatorClient<tonic::transport::Channel>,
    client: ClientId,
    run: Bytes,
    message: BytesMut,
    journal: Arc<Mutex<Journal>>,
    rounds: Round,
    /// Rounds that it has heard of.
    heard: Round,
    /// The round of its last message.
    sent: Option<Round>,
    /// Messages that were taken.
    taken: u32,
    again: u32,
}

impl OneClient {
    /// Takes part until the end. What may pass is tried again, as `soteria join` does it.
    async fn run(mut self) -> Result<Self, FollowError> {
        // Coordinates of its own, as a real client has them.
        self.message[10..14].copy_from_slice(&self.client.to_le_bytes());
        let mut patience = Patience::default();
        loop {
            let heard = self.heard;
            match self.attempt().await.map_err(FollowError::from) {
                Ok(()) => return Ok(self),
                Err(FollowError::Passing(_)) if self.again < PATIENCE => self.again += 1,
                Err(error) => return Err(error),
            }
            if self.heard > heard {
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
            have: Some(self.heard),
            pending: self.sent,
            every_round: true,
            tell_waiting: false,
        };
        let mut stream = self.stub.follow(request).await?.into_inner();
        let mut sent = None;
        while self.heard < self.rounds {
            let Some(progress) = stream.message().await? else {
                return Err(tonic::Status::unavailable("the server hung up"));
            };
            if let Some(Event::Closed(closed)) = progress.event {
                self.taken += u32::from(closed.accepted);
                self.heard = closed.round + 1;
                self.note(self.heard, closed.average.len());
            }
            if progress.open == self.heard && self.heard < self.rounds && sent != Some(self.heard) {
                sent = Some(self.heard);
                self.sent = sent;
                self.submit(self.heard).await?;
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
        let mut journal = self.journal.lock().unwrap_or_else(PoisonError::into_inner);
        journal.answers.0 += bytes as u64;
        journal.answers.1 += 1;
        if let Some(heard) = journal.heard.get_mut(round as usize) {
            let first = heard.map_or(now, |times| times.0);
            *heard = Some((first, now));
        }
    }
}
