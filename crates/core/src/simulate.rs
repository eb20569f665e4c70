//! All clients in one process: fast, and the same bits on any number of threads.
//!
//! **What it computes.** The rounds of Algorithm 1. In a round, each worker thread computes the
//! messages of its own clients, then those of clients that no other thread has started, and writes
//! every message to the client's place in a mailbox. When all messages of a block of clients are
//! there, they are added to the server in the order of clients; after the last block the server
//! takes its step.
//!
//! **Guarantee.** A message depends on (key, round, model) alone and sums have one order, so the
//! result does not depend on the number of threads or on which thread computed what.
//!
//! **Why it has its own threads.** A round of small clients lasts some ten microseconds, and moving
//! one cache line between cores costs a hundredth of that. So threads wait for each other at a
//! spinning barrier, and unless the model is large each thread has its own copy of the server and
//! takes the step itself: the same messages in the same order give the same bits, and no model has
//! to move between cores.
//!
//! **Metrics** (loss, squared gradient norm, accuracy) are computed from raw data. Only a
//! simulation can do that; they stand outside every privacy claim and are not counted as training
//! time.
//!
//! **Memory** beyond records and client state: the messages of one block of [`BLOCK`] clients (of
//! two blocks where the server is copied), one copy of the server for each further thread, and, for
//! metrics, a few dozen gradients.

mod evaluate;
mod gossip;
mod mailbox;
mod parallelism;
mod shared_state;
mod task;
mod workers;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::data::Dataset;
use crate::objective::{Objective, ObjectiveError, Regularizer};
use crate::protocol::{Client, ClientId, Round, RoundScratch, Server};
use evaluate::Evaluation;
pub use evaluate::Metrics;
pub use gossip::GossipSimulation;
use parallelism::Parallelism;
use shared_state::{ClientSlot, Replica, SharedState};
use task::{ClientBlock, Task};
use workers::{Barrier, Workers};

/// Clients in a block. The messages of a block are computed and then added to the server before the
/// next block begins, so that few messages are in memory.
pub const BLOCK: usize = 256;

/// Models with more parameters than this have one server for all threads: a copy for each would not
/// stay in its cache.
const LARGEST_COPIED_MODEL: usize = 1 << 17;

/// Traffic since the start, over all clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Values that clients sent, counted as the paper does: 64 bits each.
    pub paper_bits: u64,
    /// Bytes that clients sent.
    pub uplink_bytes: u64,
    /// Bytes that clients received: each of them the averaged message, in its shortest form.
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

/// Why a simulation ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SimulationError {
    /// A client could not compute its message: the round stays open.
    #[error("client {client} in round {round}: {error}")]
    Client {
        /// Which client; the first one, if there are several.
        client: ClientId,
        /// In which round.
        round: Round,
        /// Why.
        #[source]
        error: ObjectiveError,
    },
    /// Metrics could not be computed.
    #[error("metrics: {0}")]
    Metrics(#[source] ObjectiveError),
    /// It has failed before: some clients have gone on, others have not.
    #[error("this simulation has failed and cannot go on")]
    Failed,
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
    server: Server,
    clients: Vec<ClientSlot>,
    traffic: Traffic,
    clock: Clock,
    /// The run ends after this round.
    last: Round,
    failed: bool,
}

impl Simulation {
    /// A run of these clients, numbered from 0 in order, with this server.
    pub fn new(server: Server, clients: Vec<Client>) -> Self {
        Self {
            last: server.rounds(),
            failed: false,
            server,
            clients: clients.into_iter().map(ClientSlot::new).collect(),
            traffic: Traffic::default(),
            clock: Clock::default(),
        }
    }

    /// The same, ending after round `last` of the server's schedule.
    #[must_use]
    pub fn ending_after(mut self, last: Round) -> Self {
        self.last = last.min(self.server.rounds());
        self
    }

    /// The same with traffic that there was before the first round.
    #[must_use]
    pub fn sent_before(self, traffic: Traffic) -> Self {
        Self { traffic, ..self }
    }

    /// Runs to the last round, or until `observe` breaks. `observe` is called at the start and
    /// after every round.
    ///
    /// # Errors
    /// When the objective fails. The model is that of the last whole round, and the simulation
    /// cannot go on.
    pub fn run(
        &mut self,
        threads: usize,
        plan: &EvaluationPlan<'_>,
        mut observe: impl FnMut(Progress, &Server) -> ControlFlow<()>,
    ) -> Result<(), SimulationError> {
        if self.failed {
            return Err(SimulationError::Failed);
        }
        let Self {
            server,
            clients,
            traffic,
            clock,
            last,
            failed,
        } = self;
        let threads = threads.max(1);
        let records = clients.iter().map(|slot| Arc::clone(slot.client().data()));
        let evaluation = Evaluation::new(plan, records.collect());
        let mut copies = match server.model().len() {
            0..=LARGEST_COPIED_MODEL => vec![server.clone(); threads - 1],
            _ => Vec::new(),
        };
        let (first, rounds) = (server.round(), *last);
        let shared = SharedState::new(server, &mut copies, *traffic, clients, threads);
        let work = |thread: usize, task: Task, barrier: &Barrier, scratch: &mut RoundScratch| {
            shared.work(thread, task, &evaluation, barrier, scratch);
        };
        let ended = Workers::scope(threads, work, |workers| {
            workers.run(Task::Reallocate);
            let mut report = |workers: &mut Workers<'_, _>, round: Round, clock: &mut Clock| {
                let mut metrics = None;
                if plan.due(round, rounds) {
                    let start = Instant::now();
                    evaluation.begin();
                    workers.run(Task::CopyServer);
                    workers.run(Task::Evaluate);
                    let measured = evaluation.finish(shared.replica(0).server.model());
                    metrics = Some(measured.map_err(SimulationError::Metrics)?);
                    clock.evaluation += start.elapsed();
                }
                let Replica { server, traffic } = &*shared.replica(0);
                let progress = Progress {
                    round,
                    traffic: *traffic,
                    metrics,
                };
                Ok(observe(progress, server))
            };
            if report(workers, first, clock)?.is_break() {
                return Ok(());
            }
            let mut parallelism = Parallelism::new(threads);
            let mut all_threads = true;
            let mut number = 0u32;
            let mut start = Instant::now();
            for round in first + 1..=rounds {
                let before = all_threads;
                all_threads = parallelism.all_threads();
                if all_threads != before {
                    // In both directions: afterwards no thread still reads the last messages, and
                    // all copies of the server are up to date.
                    workers.run(Task::CopyServer);
                }
                for index in 0..clients.len().div_ceil(BLOCK).max(1) as u32 {
                    number = number.wrapping_add(1);
                    let block = ClientBlock { number, index };
                    match all_threads {
                        true => workers.run(Task::Messages(block)),
                        false => workers.run_alone(Task::MessagesAlone(block)),
                    }
                    if let Some(failure) = shared.failure() {
                        return Err(failure);
                    }
                }
                let end = Instant::now();
                parallelism.record(end - start);
                clock.training += end - start;
                if report(workers, round, clock)?.is_break() {
                    return Ok(());
                }
                // Reading the clock takes time, too: once in a round without metrics.
                start = match plan.due(round, rounds) {
                    true => Instant::now(),
                    false => end,
                };
            }
            Ok(())
        });
        *traffic = shared.replica(0).traffic;
        *failed = ended.is_err();
        ended
    }

    /// The server, for its model.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// Time spent so far.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// Bytes that clients keep between rounds beyond their records.
    pub fn state_bytes(&self) -> usize {
        self.clients
            .iter()
            .map(|slot| slot.client().state_bytes())
            .sum()
    }
}
