//! All clients in one process: fast, and the same bits on any number of threads.
//!
//! A team of threads lives for the whole run. Within a round each thread computes the messages of
//! its own clients, then of those that nobody has come to, and puts them into the outbox; the first thread then adds the
//! outbox to the server in the order of clients and steps. Messages depend on (seed, client,
//! round) and sums have one order, so the result does not depend on who did what. Threads meet at
//! a spinning barrier: a round of small clients lasts tens of microseconds, less than it takes
//! to wake a sleeping thread.
//!
//! **Metrics** (loss, squared gradient norm, accuracy) look at raw data. They are a simulation's
//! privilege, stand outside every privacy claim, and are kept off the training clock.
//!
//! **Memory** beyond records and client state: an outbox of at most [`BLOCK`] messages and, for
//! metrics, a few dozen gradients.

mod evaluate;
mod pace;
mod team;

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, RwLock};
use std::time::{Duration, Instant};

use crate::compress::Update;
use crate::data::Dataset;
use crate::objective::{Objective, Regularizer};
use crate::protocol::{Client, ClientId, Round, RoundScratch, Server};
use crate::wire;
use evaluate::Evaluation;
pub use evaluate::Metrics;
use pace::Pace;
use team::Team;

/// Clients whose messages are in memory at the same time.
pub const BLOCK: usize = 256;

/// Traffic since the start, over all clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Values sent up, at 64 bits each as the paper counts.
    pub paper_bits: u64,
    /// Bytes that clients really sent.
    pub uplink_bytes: u64,
    /// Bytes that clients really received: the averaged message, in its cheapest form, each.
    pub downlink_bytes: u64,
}

/// Where a run stands after a round.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Rounds done.
    pub round: Round,
    /// Traffic so far.
    pub traffic: Traffic,
    /// Metrics, if this round is evaluated.
    pub metrics: Option<Metrics>,
}

/// Time spent.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clock {
    /// In rounds.
    pub training: Duration,
    /// In metrics.
    pub evaluation: Duration,
}

/// How metrics are computed.
pub struct EvaluationPlan<'a> {
    /// The loss.
    pub objective: &'a dyn Objective,
    /// Added to the loss.
    pub regularizer: Regularizer,
    /// Client weights, as the server uses them.
    pub weights: &'a [f64],
    /// Held-out records for accuracy.
    pub test: Option<&'a Dataset>,
    /// Every so many rounds; 0: only at the start and the end.
    pub every: Round,
    /// Rounds before this one are not evaluated: their metrics are known from an earlier attempt.
    pub from: Round,
}

impl EvaluationPlan<'_> {
    fn due(&self, round: Round, rounds: Round) -> bool {
        let regular =
            round == 0 || round == rounds || (self.every > 0 && round.is_multiple_of(self.every));
        regular && round >= self.from
    }
}

/// A run in one process.
pub struct Simulation {
    server: RwLock<Server>,
    clients: Vec<Mutex<Client>>,
    outbox: Vec<Mutex<Outgoing>>,
    traffic: Traffic,
    clock: Clock,
}

#[derive(Default)]
struct Outgoing {
    message: Vec<u8>,
    update: Update,
    present: bool,
}

/// What the team is working on.
enum Job {
    /// Messages of the clients from `first` to `first + len`.
    Messages { first: usize, len: usize },
    /// Metrics.
    Metrics,
}

impl Simulation {
    /// A run of these clients, numbered from 0 in order, with this server.
    pub fn new(server: Server, clients: Vec<Client>) -> Self {
        let outbox = (0..clients.len().min(BLOCK))
            .map(|_| Mutex::default())
            .collect();
        Self {
            server: RwLock::new(server),
            clients: clients.into_iter().map(Mutex::new).collect(),
            outbox,
            traffic: Traffic::default(),
            clock: Clock::default(),
        }
    }

    /// Runs until the server has finished or `observe` breaks. `observe` is called at the start and
    /// after every round.
    pub fn run(
        &mut self,
        threads: usize,
        plan: &EvaluationPlan<'_>,
        mut observe: impl FnMut(Progress, &Server) -> ControlFlow<()>,
    ) {
        let (mut traffic, mut clock) = (self.traffic, self.clock);
        let shared = &*self;
        let evaluation = Evaluation::new(plan, &shared.clients);
        let queues: Vec<Queue> = (0..threads.max(1)).map(|_| Queue::default()).collect();
        let job = RwLock::new(Job::Metrics);
        let work = |thread: usize, scratch: &mut RoundScratch| match *job
            .read()
            .expect("no thread panics holding it")
        {
            Job::Messages { first, len } => shared.messages(first, len, thread, &queues, scratch),
            Job::Metrics => {
                let server = shared.server.read().expect("no thread panics holding it");
                scratch.workspace().begin_phase(phase(&server));
                evaluation.work(server.model(), scratch.workspace());
            }
        };
        Team::scope(threads, work, |team| {
            let metrics = |team: &mut Team<'_, _>, clock: &mut Clock| {
                let start = Instant::now();
                evaluation.begin();
                *job.write().expect("the team is at rest") = Job::Metrics;
                team.work();
                let metrics =
                    evaluation.finish(shared.server.read().expect("the team is at rest").model());
                clock.evaluation += start.elapsed();
                metrics
            };
            let report =
                |round,
                 traffic,
                 metrics,
                 observe: &mut dyn FnMut(Progress, &Server) -> ControlFlow<()>| {
                    observe(
                        Progress {
                            round,
                            traffic,
                            metrics,
                        },
                        &shared.server.read().expect("the team is at rest"),
                    )
                };
            let (mut round, rounds) = {
                let server = shared.server.read().expect("the team is at rest");
                (server.round(), server.rounds())
            };
            let first = plan.due(round, rounds).then(|| metrics(team, &mut clock));
            if report(round, traffic, first, &mut observe).is_break() {
                return;
            }
            let mut pace = Pace::new(threads);
            while round < rounds {
                let start = Instant::now();
                for first in (0..shared.clients.len()).step_by(BLOCK) {
                    let len = (shared.clients.len() - first).min(BLOCK);
                    for (thread, queue) in queues.iter().enumerate() {
                        queue.fill(len * thread / queues.len());
                    }
                    *job.write().expect("the team is at rest") = Job::Messages { first, len };
                    if pace.together() {
                        team.work();
                    } else {
                        team.alone();
                    }
                    shared.deliver(first, len, &mut traffic);
                }
                round = shared.close(&mut traffic);
                let took = start.elapsed();
                pace.record(took);
                clock.training += took;
                let metrics = plan.due(round, rounds).then(|| metrics(team, &mut clock));
                if report(round, traffic, metrics, &mut observe).is_break() {
                    return;
                }
            }
        });
        self.traffic = traffic;
        self.clock = clock;
    }

    /// The server, for its model.
    pub fn server(&self) -> std::sync::RwLockReadGuard<'_, Server> {
        self.server.read().expect("no thread panics holding it")
    }

    /// Time spent so far.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// Bytes that clients keep between rounds beyond their records.
    pub fn state_bytes(&self) -> usize {
        self.clients
            .iter()
            .map(|client| {
                client
                    .lock()
                    .expect("no thread panics holding it")
                    .state_bytes()
            })
            .sum()
    }

    /// Computes messages of a block until none is left: those of the thread's own clients first, whose records and shifts
    /// are still near its processor from the round before, then those that other threads have not come to.
    fn messages(
        &self,
        first: usize,
        len: usize,
        thread: usize,
        queues: &[Queue],
        scratch: &mut RoundScratch,
    ) {
        let server = self.server.read().expect("no thread panics holding it");
        let (round, model) = (server.round(), server.model());
        scratch.workspace().begin_phase(phase(&server));
        for owner in (thread..queues.len()).chain(0..thread) {
            let end = len * (owner + 1) / queues.len();
            while let Some(slot) = queues[owner].next(end) {
                let mut client = self.clients[first + slot]
                    .lock()
                    .expect("each client has one thread");
                let mut outgoing = self.outbox[slot].lock().expect("each slot has one thread");
                let Outgoing {
                    message,
                    update,
                    present,
                } = &mut *outgoing;
                *present = client.message(round, model, scratch, message, update);
                if *present {
                    client.accepted(update);
                }
            }
        }
    }

    /// Adds the outbox to the server, in the order of clients.
    fn deliver(&self, first: usize, len: usize, traffic: &mut Traffic) {
        let mut server = self.server.write().expect("the team is at rest");
        for (slot, outgoing) in self.outbox[..len].iter().enumerate() {
            let outgoing = outgoing.lock().expect("the team is at rest");
            traffic.uplink_bytes += outgoing.message.len() as u64;
            if outgoing.present {
                traffic.paper_bits += 64 * outgoing.update.values().len() as u64;
                let id = (first + slot) as ClientId;
                server
                    .take(id, &outgoing.update)
                    .expect("clients are delivered in order");
            }
        }
    }

    fn close(&self, traffic: &mut Traffic) -> Round {
        let mut server = self.server.write().expect("the team is at rest");
        let closed = server.close().expect("the run has rounds left");
        let down = wire::downlink_len(server.model().len(), closed.nonzero);
        traffic.downlink_bytes += (self.clients.len() * down) as u64;
        server.round()
    }
}

/// The clients of a block that one thread begins with. In a cache line of its own, so that threads do not wait for each
/// other.
#[derive(Default)]
#[repr(align(128))]
struct Queue(AtomicUsize);

impl Queue {
    fn fill(&self, first: usize) {
        self.0.store(first, Ordering::Relaxed);
    }

    /// Takes the first that is left before `end`.
    fn next(&self, end: usize) -> Option<usize> {
        let slot = self.0.fetch_add(1, Ordering::Relaxed);
        (slot < end).then_some(slot)
    }
}

/// Models change when a round closes, and only then.
fn phase(server: &Server) -> u64 {
    u64::from(server.round()) + 1
}
