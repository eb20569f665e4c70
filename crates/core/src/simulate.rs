//! All clients in one process: fast, and the same bits on any number of threads.
//!
//! A team of threads lives for the whole run. Within a round each thread computes the messages of
//! its own clients, then of those that nobody has come to, and writes each to the client's place among the letters of the block.
//! When all are there, they are added to the server in the order of clients, and the server steps. Messages depend on (seed,
//! client, round) and sums have one order, so the result does not depend on who did what.
//!
//! A round of small clients lasts some ten microseconds, and every line of memory that changes hands costs a hundredth of
//! that. So threads meet at a spinning barrier, and unless the model is large each of them has a copy of the server and steps
//! for itself: the same messages in the same order give the same bits, and no model has to travel.
//!
//! **Metrics** (loss, squared gradient norm, accuracy) look at raw data. They are a simulation's
//! privilege, stand outside every privacy claim, and are kept off the training clock.
//!
//! **Memory** beyond records and client state: the messages of one block of [`BLOCK`] clients, or of two and one copy of the server
//! a thread where the server is copied, and, for metrics, a few dozen gradients.

mod evaluate;
mod mailbox;
mod parallelism;
mod shared_state;
mod task;
mod workers;

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use crate::data::Dataset;
use crate::objective::{Objective, Regularizer};
use crate::protocol::{Client, Round, Server};
use evaluate::Evaluation;
pub use evaluate::Metrics;
use parallelism::Pace;
use shared_state::{Desk, Hall, Replica, Seat};
use task::{Block, Job};
use workers::{Meeting, Team};

/// Clients in a block: their messages are computed, then delivered, before the next block's turn.
pub const BLOCK: usize = 256;

/// Servers of models up to this size are copied, one for each thread.
const LARGEST_COPY: usize = 1 << 17;

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
    server: Server,
    clients: Vec<Seat>,
    traffic: Traffic,
    clock: Clock,
}

impl Simulation {
    /// A run of these clients, numbered from 0 in order, with this server.
    pub fn new(server: Server, clients: Vec<Client>) -> Self {
        Self {
            server,
            clients: clients.into_iter().map(Seat::new).collect(),
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
        let Self {
            server,
            clients,
            traffic,
            clock,
        } = self;
        let threads = threads.max(1);
        let evaluation = Evaluation::new(plan, clients);
        let mut copies = match server.model().len() {
            0..=LARGEST_COPY => vec![server.clone(); threads - 1],
            _ => Vec::new(),
        };
        let (first, rounds) = (server.round(), server.rounds());
        let hall = Hall::new(server, &mut copies, *traffic, clients, threads);
        let work = |thread: usize, job: Job, meeting: &Meeting, desk: &mut Desk| {
            hall.work(thread, job, &evaluation, meeting, desk);
        };
        Team::scope(threads, work, |team| {
            team.work(Job::Settle);
            let mut report = |team: &mut Team<'_, _>, round: Round, clock: &mut Clock| {
                let metrics = plan.due(round, rounds).then(|| {
                    let start = Instant::now();
                    evaluation.begin();
                    team.work(Job::Copy);
                    team.work(Job::Metrics);
                    let metrics = evaluation.finish(hall.look(0).server.model());
                    clock.evaluation += start.elapsed();
                    metrics
                });
                let Replica { server, traffic } = &*hall.look(0);
                let progress = Progress {
                    round,
                    traffic: *traffic,
                    metrics,
                };
                observe(progress, server)
            };
            if report(team, first, clock).is_break() {
                return;
            }
            let mut pace = Pace::new(threads);
            let mut together = true;
            let mut number = 0u32;
            let mut start = Instant::now();
            for round in first + 1..=rounds {
                let before = together;
                together = pace.together();
                if together != before {
                    // Either way: nobody is still reading the last messages, and everybody is up to date.
                    team.work(Job::Copy);
                }
                for index in 0..clients.len().div_ceil(BLOCK).max(1) as u32 {
                    number = number.wrapping_add(1);
                    let block = Block { number, index };
                    match together {
                        true => team.work(Job::Messages(block)),
                        false => team.alone(Job::Alone(block)),
                    }
                }
                let end = Instant::now();
                pace.record(end - start);
                clock.training += end - start;
                if report(team, round, clock).is_break() {
                    return;
                }
                // Looking at the clock takes its time, too: once a round where nothing is evaluated.
                start = match plan.due(round, rounds) {
                    true => Instant::now(),
                    false => end,
                };
            }
        });
        *traffic = hall.look(0).traffic;
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
            .map(|seat| seat.client().state_bytes())
            .sum()
    }
}
