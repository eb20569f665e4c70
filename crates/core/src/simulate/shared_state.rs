//! What the worker threads of a run share: the clients, the messages of a block, and the server, of
//! which each thread has a copy unless the model is large. Whatever a thread writes lies in cache
//! lines of its own.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard};

use super::SimulationError;
use super::evaluate::Evaluation;
use super::mailbox::{Mailbox, Received};
use super::task::{ClientBlock, Task};
use super::workers::Barrier;
use super::{BLOCK, Traffic};
use crate::linalg::memory::prefetch_to_write;
use crate::objective::ObjectiveError;
use crate::protocol::{Client, ClientId, Round, RoundScratch, Server};

pub(super) struct SharedState<'a> {
    /// One for each thread, or one for all.
    replicas: Vec<RwLock<Replica<'a>>>,
    clients: &'a [ClientSlot],
    /// The messages of the last block. Where every thread reads them, those of the last two blocks:
    /// one may still be read while the other is written.
    mailboxes: Vec<Mailbox>,
    queues: Vec<ClientQueue>,
    failure: Failure,
}

/// The first client, in the order of clients, that could not compute its message.
#[derive(Default)]
struct Failure {
    failed: AtomicBool,
    first: Mutex<Option<SimulationError>>,
}

/// A client, in cache lines of its own: its neighbour may belong to another thread.
#[repr(align(128))]
pub(super) struct ClientSlot(Mutex<Client>);

impl ClientSlot {
    pub(super) fn new(client: Client) -> Self {
        Self(Mutex::new(client))
    }

    pub(super) fn client(&self) -> MutexGuard<'_, Client> {
        self.0.lock().expect("each client has one thread at a time")
    }
}

/// The server, or a copy of it that gets the same messages in the same order and so has the same
/// bits.
#[repr(align(128))]
pub(super) struct Replica<'a> {
    pub(super) server: &'a mut Server,
    pub(super) traffic: Traffic,
}

impl<'a> SharedState<'a> {
    pub(super) fn new(
        server: &'a mut Server,
        copies: &'a mut [Server],
        traffic: Traffic,
        clients: &'a [ClientSlot],
        threads: usize,
    ) -> Self {
        let mailbox = |_| Mailbox::new(clients.len().min(BLOCK), &server.plan().compressor);
        let mailboxes = (0..1 + copies.len().min(1)).map(mailbox).collect();
        let servers = std::iter::once(server).chain(copies);
        let replicas = servers.map(|server| RwLock::new(Replica { server, traffic }));
        Self {
            replicas: replicas.collect(),
            clients,
            mailboxes,
            queues: (0..threads).map(|_| ClientQueue::default()).collect(),
            failure: Failure::default(),
        }
    }

    /// Why no further message can be made, if so. Known after every task.
    pub(super) fn failure(&self) -> Option<SimulationError> {
        let failed = self.failure.failed.load(Ordering::Acquire);
        let mut first = failed.then(|| self.failure.first())?;
        first.take()
    }

    /// Does one thread's part of a task.
    pub(super) fn work(
        &self,
        thread: usize,
        task: Task,
        evaluation: &Evaluation<'_>,
        barrier: &Barrier,
        scratch: &mut RoundScratch,
    ) {
        match task {
            Task::Messages(block) => {
                self.compute_messages(thread, block, scratch);
                if barrier.wait(thread) {
                    self.deliver(thread, block);
                }
            }
            Task::MessagesAlone(block) => {
                self.compute_messages(thread, block, scratch);
                self.deliver(thread, block);
            }
            Task::Reallocate => {
                self.reallocate(thread);
                barrier.wait(thread);
            }
            Task::CopyServer => {
                self.copy_server(thread);
                barrier.wait(thread);
            }
            Task::Evaluate => {
                let replica = self.replica(thread);
                let workspace = scratch.workspace();
                workspace.begin_phase(phase(replica.server));
                evaluation.work(replica.server.model(), workspace);
                barrier.wait(thread);
            }
            Task::Speak | Task::Hear => unreachable!("clients of a server do not gossip"),
        }
    }

    /// The copy of the server that a thread reads: its own, or the first where there is only one.
    pub(super) fn replica(&self, thread: usize) -> RwLockReadGuard<'_, Replica<'a>> {
        let replica = self.replicas.get(thread).unwrap_or(&self.replicas[0]);
        replica.read().expect("no thread panics holding it")
    }

    /// The clients of a block.
    fn clients_of(&self, block: ClientBlock) -> Range<usize> {
        let first = block.index as usize * BLOCK;
        first..self.clients.len().min(first + BLOCK)
    }

    /// Moves what a thread writes in every round to memory that it has allocated itself.
    fn reallocate(&self, thread: usize) {
        for clients in self.clients.chunks(BLOCK) {
            for client in &clients[share(clients.len(), thread, self.queues.len())] {
                client.client().reallocate();
            }
        }
        self.copy_server(thread);
    }

    /// Where the messages of a block are.
    fn mailbox(&self, block: ClientBlock) -> &Mailbox {
        &self.mailboxes[block.number as usize % self.mailboxes.len()]
    }

    /// Replaces a thread's own copy of the server by the first thread's server.
    fn copy_server(&self, thread: usize) {
        if thread > 0
            && let Some(replica) = self.replicas.get(thread)
        {
            let mut replica = replica.write().expect("it has one thread");
            // A new allocation instead of the old one: this memory is then the thread's own.
            *replica.server = self.replica(0).server.clone();
        }
    }

    /// Computes messages of a block until none is left: first those of the thread's own clients,
    /// whose records and shifts are still in its cache from the round before, then those of clients
    /// that no other thread has started.
    fn compute_messages(&self, thread: usize, block: ClientBlock, scratch: &mut RoundScratch) {
        let replica = self.replica(thread);
        let (round, model) = (replica.server.round(), replica.server.model());
        scratch.workspace().begin_phase(phase(replica.server));
        let clients = &self.clients[self.clients_of(block)];
        let mailbox = self.mailbox(block);
        mailbox.prefetch_to_write(share(clients.len(), thread, self.queues.len()));
        for owner in (thread..self.queues.len()).chain(0..thread) {
            let share = share(clients.len(), owner, self.queues.len());
            while let Some(slot) = self.queues[owner].next(block.number, &share) {
                let mut client = clients[slot].client();
                let message = match client.message(round, model, scratch) {
                    Ok(message) => message,
                    Err(error) => {
                        self.failure.record(client.id(), round, error);
                        continue;
                    }
                };
                if let Some(update) = message.update {
                    client.accepted(update);
                }
                mailbox.write(slot, message.bytes.len(), message.update);
            }
        }
    }

    /// Adds the messages of a block to the thread's copy of the server, if it has one, in the order
    /// of clients. The last block closes the round.
    ///
    /// If a message is missing, none of the block is added, and the round stays open.
    fn deliver(&self, thread: usize, block: ClientBlock) {
        if self.failure.failed.load(Ordering::Acquire) {
            return;
        }
        let Some(replica) = self.replicas.get(thread) else {
            return;
        };
        let mut replica = replica.write().expect("others read it between tasks only");
        prefetch_to_write(std::slice::from_ref(&self.queues[thread]));
        let Replica { server, traffic } = &mut *replica;
        let clients = self.clients_of(block);
        let mailbox = self.mailbox(block);
        mailbox.prefetch_to_read(clients.len());
        for (slot, id) in clients.clone().enumerate() {
            let Received { bytes, update } = mailbox.read(slot);
            traffic.uplink_bytes += bytes as u64;
            if let Some(update) = update {
                traffic.paper_bits += 64 * update.count as u64;
                server
                    .add_with(id as ClientId, |scale, average| {
                        update.add_to(scale, average);
                    })
                    .expect("clients are delivered in order");
            }
        }
        if clients.end == self.clients.len() {
            let summary = server.close().expect("the run has rounds left");
            traffic.downlink_bytes += (self.clients.len() * summary.down) as u64;
        }
    }
}

impl Failure {
    fn first(&self) -> MutexGuard<'_, Option<SimulationError>> {
        self.first.lock().expect("no thread panics holding it")
    }

    fn record(&self, client: ClientId, round: Round, error: ObjectiveError) {
        let mut first = self.first();
        let earlier = matches!(&*first, Some(SimulationError::Client { client: known, .. }) if *known < client);
        if !earlier {
            *first = Some(SimulationError::Client {
                client,
                round,
                error,
            });
        }
        self.failed.store(true, Ordering::Release);
    }
}

/// The clients of a block of `len` that belong to one of the threads.
fn share(len: usize, thread: usize, threads: usize) -> Range<usize> {
    len * thread / threads..len * (thread + 1) / threads
}

/// Hands out one thread's share of a block, each client once.
///
/// The upper half of the word is the block's number, the lower half counts the clients handed out.
/// The first request with another number starts again at zero, so that queues need not be filled
/// between blocks. It has cache lines of its own, so that threads do not slow each other down.
#[derive(Default)]
#[repr(align(128))]
struct ClientQueue(AtomicU64);

impl ClientQueue {
    /// The next client of the share, if one is left.
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

/// Models change when a round closes, and only then: what was prepared for a model holds that long.
fn phase(server: &Server) -> u64 {
    u64::from(server.round()) + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_hand_out_every_client_once_for_each_number() {
        let queue = ClientQueue::default();
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
