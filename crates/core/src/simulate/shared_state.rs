//! Where a team works: the clients, the messages of a block on their way, and the server, of which each thread has a copy unless
//! the model is large. What every thread writes lies in lines of memory of its own.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard};

use super::evaluate::Evaluation;
use super::mailbox::{Letter, Letters};
use super::task::{Block, Job};
use super::workers::Meeting;
use super::{BLOCK, Traffic};
use crate::compress::Update;
use crate::linalg::simd::prefetch_to_write;
use crate::linalg::simd::roomy;
use crate::protocol::{Client, ClientId, RoundScratch, Server};
use crate::wire;

/// What the threads of a team share.
pub(super) struct Hall<'a> {
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
pub(super) struct Seat(Mutex<Client>);

impl Seat {
    pub(super) fn new(client: Client) -> Self {
        Self(Mutex::new(client))
    }

    pub(super) fn client(&self) -> MutexGuard<'_, Client> {
        self.0.lock().expect("each client has one thread at a time")
    }
}

/// Buffers of one thread.
pub(super) struct Desk {
    pub(super) scratch: RoundScratch,
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
pub(super) struct Replica<'a> {
    pub(super) server: &'a mut Server,
    pub(super) traffic: Traffic,
}

impl<'a> Hall<'a> {
    pub(super) fn new(
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

    /// Does a thread's part of a job.
    pub(super) fn work(
        &self,
        thread: usize,
        job: Job,
        evaluation: &Evaluation<'_>,
        meeting: &Meeting,
        desk: &mut Desk,
    ) {
        match job {
            Job::Messages(block) => {
                self.messages(thread, block, desk);
                if meeting.wait(thread) {
                    self.deliver(thread, block);
                }
            }
            Job::Alone(block) => {
                self.messages(thread, block, desk);
                self.deliver(thread, block);
            }
            Job::Settle => {
                self.settle(thread);
                meeting.wait(thread);
            }
            Job::Copy => {
                self.copy(thread);
                meeting.wait(thread);
            }
            Job::Metrics => {
                let replica = self.look(thread);
                let workspace = desk.scratch.workspace();
                workspace.begin_phase(phase(replica.server));
                evaluation.work(replica.server.model(), workspace);
                meeting.wait(thread);
            }
        }
    }

    /// What a thread takes for the server.
    pub(super) fn look(&self, thread: usize) -> RwLockReadGuard<'_, Replica<'a>> {
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

#[cfg(test)]
mod tests {
    use super::*;

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
