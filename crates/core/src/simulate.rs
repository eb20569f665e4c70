//! All clients in one process: fast, and the same bits on any number of threads.
//!
//! A team of threads lives for the whole run. Within a round each thread computes the messages of
//! its own clients, then of those that nobody has come to, and keeps them in an outbox of its own. When all are there,
//! they are added to the server in the order of clients, and the server steps. Messages depend on (seed, client,
//! round) and sums have one order, so the result does not depend on who did what.
//!
//! A round of small clients lasts less than ten microseconds, and every line of memory that changes hands costs a hundredth of
//! that. So threads meet at a spinning barrier, and unless the model is large each of them has a copy of the server and steps
//! for itself: the same messages in the same order give the same bits, and no model has to travel.
//!
//! **Metrics** (loss, squared gradient norm, accuracy) look at raw data. They are a simulation's
//! privilege, stand outside every privacy claim, and are kept off the training clock.
//!
//! **Memory** beyond records and client state: at most [`BLOCK`] messages at a time and, for
//! metrics, a few dozen gradients.

mod evaluate;
mod letters;
mod pace;
mod team;

use std::ops::{ControlFlow, Range};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

use crate::compress::Update;
use crate::data::Dataset;
use crate::linalg::processor::prefetch_to_write;
use crate::objective::{Objective, Regularizer, roomy};
use crate::protocol::{Client, ClientId, Round, RoundScratch, Server};
use crate::wire;
use evaluate::Evaluation;
pub use evaluate::Metrics;
use letters::{Letter, Letters};
use pace::Pace;
use team::{Meeting, Team};

/// Clients whose messages are in memory at the same time.
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
        let hall = Hall::new(server, &mut copies, *traffic, clients, threads);
        let work = |thread: usize, job: Job, meeting: &Meeting, desk: &mut Desk| match job {
            Job::Messages(block) => {
                hall.messages(thread, block, desk);
                if meeting.wait(thread) {
                    hall.deliver(thread, block);
                }
            }
            Job::Alone(block) => {
                hall.messages(thread, block, desk);
                hall.deliver(thread, block);
            }
            Job::Settle => {
                hall.settle(thread);
                meeting.wait(thread);
            }
            Job::Copy => {
                hall.copy(thread);
                meeting.wait(thread);
            }
            Job::Metrics => {
                let replica = hall.look(thread);
                let workspace = desk.scratch.workspace();
                workspace.begin_phase(phase(replica.server));
                evaluation.work(replica.server.model(), workspace);
                meeting.wait(thread);
            }
        };
        Team::scope(threads, work, |team| {
            team.work(Job::Settle);
            let metrics = |team: &mut Team<'_, _>, clock: &mut Clock| {
                let start = Instant::now();
                evaluation.begin();
                team.work(Job::Copy);
                team.work(Job::Metrics);
                let metrics = evaluation.finish(hall.look(0).server.model());
                clock.evaluation += start.elapsed();
                metrics
            };
            let mut report = |metrics| {
                let Replica { server, traffic } = &*hall.look(0);
                let progress = Progress {
                    round: server.round(),
                    traffic: *traffic,
                    metrics,
                };
                observe(progress, server)
            };
            let (mut round, rounds) = {
                let server = &hall.look(0).server;
                (server.round(), server.rounds())
            };
            let first = plan.due(round, rounds).then(|| metrics(team, clock));
            if report(first).is_break() {
                return;
            }
            let mut pace = Pace::new(threads);
            let mut together = true;
            let mut number = 0u32;
            let mut start = Instant::now();
            while round < rounds {
                if std::mem::replace(&mut together, pace.together()) != together {
                    // Either way: nobody is still reading the last messages, and everybody is up to date.
                    team.work(Job::Copy);
                }
                for first in (0..clients.len().max(1)).step_by(BLOCK) {
                    number = number.wrapping_add(1);
                    let block = Block {
                        number,
                        index: (first / BLOCK) as u32,
                    };
                    if together {
                        team.work(Job::Messages(block));
                    } else {
                        team.alone(Job::Alone(block));
                    }
                }
                round += 1;
                let end = Instant::now();
                let took = end - start;
                pace.record(took);
                clock.training += took;
                let metrics = plan.due(round, rounds).then(|| metrics(team, clock));
                if report(metrics).is_break() {
                    return;
                }
                // Looking at the clock takes its time, too: once a round where nothing is evaluated.
                start = match metrics {
                    Some(_) => Instant::now(),
                    None => end,
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

/// What a team is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Job {
    /// Take a seat.
    Settle,
    /// Catch up with the first thread's server.
    Copy,
    /// Metrics.
    Metrics,
    /// The messages of a block, and what the server makes of them.
    Messages(Block),
    /// The same by the first thread alone, while the others rest and fall behind.
    Alone(Block),
}

/// [`BLOCK`] clients or fewer, in the order of blocks, for the `number`-th time that messages are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Block {
    number: u32,
    index: u32,
}

/// Where a team works: what its threads share.
struct Hall<'a> {
    /// One for each thread, or one for all.
    replicas: Vec<RwLock<Replica<'a>>>,
    clients: &'a [Seat],
    /// The messages of the last block. Where every thread reads them, those of the last two: one may still be read while the other is
    /// written.
    letters: Vec<Letters>,
    queues: Vec<Queue>,
}

/// A client, in lines of memory of its own: its neighbour may belong to another thread.
#[repr(align(128))]
struct Seat(Mutex<Client>);

impl Seat {
    fn new(client: Client) -> Self {
        Self(Mutex::new(client))
    }

    fn client(&self) -> MutexGuard<'_, Client> {
        self.0.lock().expect("each client has one thread at a time")
    }
}

/// Buffers of one thread.
struct Desk {
    scratch: RoundScratch,
    message: Vec<u8>,
    update: Update,
}

impl Default for Desk {
    fn default() -> Self {
        Self {
            scratch: RoundScratch::default(),
            message: roomy(0),
            update: Update::roomy(),
        }
    }
}

/// The server, or a copy of it that gets the same messages in the same order and so has the same bits.
#[repr(align(128))]
struct Replica<'a> {
    server: &'a mut Server,
    traffic: Traffic,
}

impl<'a> Hall<'a> {
    fn new(
        server: &'a mut Server,
        copies: &'a mut [Server],
        traffic: Traffic,
        clients: &'a [Seat],
        threads: usize,
    ) -> Self {
        let room = |_| Letters::new(clients.len().min(BLOCK), &server.plan().compressor);
        let letters = (0..1 + copies.len().min(1)).map(room).collect();
        let servers = std::iter::once(server).chain(copies);
        let replicas = servers.map(|server| RwLock::new(Replica { server, traffic }));
        Self {
            replicas: replicas.collect(),
            clients,
            letters,
            queues: (0..threads).map(|_| Queue::default()).collect(),
        }
    }

    /// What a thread takes for the server.
    fn look(&self, thread: usize) -> RwLockReadGuard<'_, Replica<'a>> {
        let replica = self.replicas.get(thread).unwrap_or(&self.replicas[0]);
        replica.read().expect("no thread panics holding it")
    }

    /// The clients of a block.
    fn block(&self, block: Block) -> Range<usize> {
        let first = block.index as usize * BLOCK;
        first..self.clients.len().min(first + BLOCK)
    }

    /// Moves what belongs to a thread to memory of its own.
    fn settle(&self, thread: usize) {
        for clients in self.clients.chunks(BLOCK) {
            for client in &clients[share(clients.len(), thread, self.queues.len())] {
                client.client().settle();
            }
        }
        self.copy(thread);
    }

    /// Where the messages of a block are.
    fn letters(&self, block: Block) -> &Letters {
        &self.letters[block.number as usize % self.letters.len()]
    }

    /// Brings a thread's own replica up to date.
    fn copy(&self, thread: usize) {
        if thread > 0
            && let Some(replica) = self.replicas.get(thread)
        {
            let mut replica = replica.write().expect("it has one thread");
            // Not into the old one: this memory is the thread's own.
            *replica.server = self.look(0).server.clone();
        }
    }

    /// Computes messages of a block until none is left: those of the thread's own clients first, whose records and shifts
    /// are still near its processor from the round before, then those that other threads have not come to.
    fn messages(&self, thread: usize, block: Block, desk: &mut Desk) {
        let replica = self.look(thread);
        let (round, model) = (replica.server.round(), replica.server.model());
        let Desk {
            scratch,
            message,
            update,
        } = desk;
        scratch.workspace().begin_phase(phase(replica.server));
        let clients = &self.clients[self.block(block)];
        let letters = self.letters(block);
        letters.expect(share(clients.len(), thread, self.queues.len()));
        for owner in (thread..self.queues.len()).chain(0..thread) {
            let share = share(clients.len(), owner, self.queues.len());
            while let Some(slot) = self.queues[owner].next(block.number, &share) {
                let mut client = clients[slot].client();
                let present = client.message(round, model, scratch, message, update);
                if present {
                    client.accepted(update);
                }
                letters.write(slot, message.len(), present.then_some(update));
            }
        }
    }

    /// Adds the messages of a block to the thread's replica, if it has one, in the order of clients. The last block closes the round.
    fn deliver(&self, thread: usize, block: Block) {
        let Some(replica) = self.replicas.get(thread) else {
            return;
        };
        let mut replica = replica.write().expect("others look while it rests");
        prefetch_to_write(std::slice::from_ref(&self.queues[thread]));
        let Replica { server, traffic } = &mut *replica;
        let clients = self.block(block);
        let letters = self.letters(block);
        letters.fetch(clients.len());
        for (slot, id) in clients.clone().enumerate() {
            let Letter { bytes, update } = letters.read(slot);
            traffic.uplink_bytes += bytes as u64;
            if let Some(update) = update {
                traffic.paper_bits += 64 * update.count as u64;
                server
                    .take_with(id as ClientId, |scale, average| {
                        update.add_to(scale, average);
                    })
                    .expect("clients are delivered in order");
            }
        }
        if clients.end == self.clients.len() {
            let closed = server.close().expect("the run has rounds left");
            let down = wire::downlink_len(server.model().len(), closed.nonzero);
            traffic.downlink_bytes += (self.clients.len() * down) as u64;
        }
    }
}

/// The clients of a block of `len` that belong to one of the threads.
fn share(len: usize, thread: usize, threads: usize) -> Range<usize> {
    len * thread / threads..len * (thread + 1) / threads
}

/// Hands out one thread's share of a block, each client once: the block's number in the upper half, in the lower half how
/// many have been taken. Whoever comes first with another number begins anew, so nobody has to fill queues between
/// blocks. In a cache line of its own, so that threads do not wait for each other.
#[derive(Default)]
#[repr(align(128))]
struct Queue(AtomicU64);

impl Queue {
    /// Takes the next client of the share, if one is left.
    fn next(&self, number: u32, share: &Range<usize>) -> Option<usize> {
        let taken = |state: u64| match (state >> 32) as u32 == number {
            true => state & u64::from(u32::MAX),
            false => 0,
        };
        let more = |state: u64| {
            let taken = taken(state);
            (taken < share.len() as u64).then(|| u64::from(number) << 32 | (taken + 1))
        };
        let before = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        before.ok().map(|state| share.start + taken(state) as usize)
    }
}

/// Models change when a round closes, and only then.
fn phase(server: &Server) -> u64 {
    u64::from(server.round()) + 1
}

impl Job {
    /// As one word, for the signal that threads wait for.
    fn to_word(self) -> u64 {
        let word = |kind: u64, block: Block| {
            kind | u64::from(block.index) << 2 | u64::from(block.number) << 32
        };
        match self {
            Job::Settle => 0,
            Job::Copy => 4,
            Job::Metrics => 1,
            Job::Messages(block) => word(2, block),
            Job::Alone(block) => word(3, block),
        }
    }

    fn from_word(word: u64) -> Self {
        let block = Block {
            number: (word >> 32) as u32,
            index: word as u32 >> 2,
        };
        match word & 3 {
            0 if word == 0 => Job::Settle,
            0 => Job::Copy,
            1 => Job::Metrics,
            2 => Job::Messages(block),
            _ => Job::Alone(block),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_are_words() {
        let block = Block {
            number: u32::MAX,
            index: (1 << 30) - 1,
        };
        for job in [
            Job::Copy,
            Job::Metrics,
            Job::Messages(block),
            Job::Alone(block),
        ] {
            assert_eq!(Job::from_word(job.to_word()), job);
        }
    }

    #[test]
    fn queues_hand_out_every_client_once_for_each_number() {
        let queue = Queue::default();
        for number in [1, 2, 7, u32::MAX, 0, 1] {
            for expected in 3..6 {
                assert_eq!(queue.next(number, &(3..6)), Some(expected));
            }
            assert_eq!(queue.next(number, &(3..6)), None);
            assert_eq!(queue.next(number, &(3..6)), None);
        }
        assert_eq!(queue.next(8, &(4..4)), None);
    }
}
