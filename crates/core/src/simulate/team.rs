//! Threads that meet at a spinning barrier.
//!
//! [`Team::work`] runs one closure on every thread and returns when all are done. Waiting threads
//! spin for a few microseconds, then yield, then sleep in short naps, so that a team on a busy machine
//! does not fight for its cores.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::protocol::RoundScratch;

/// A team, seen from its first thread.
pub struct Team<'a, W> {
    work: &'a W,
    meeting: &'a Meeting,
    scratch: RoundScratch,
}

struct Meeting {
    threads: usize,
    arrived: AtomicUsize,
    generation: AtomicUsize,
    over: AtomicBool,
}

impl<W: Fn(&mut RoundScratch) + Sync> Team<'_, W> {
    /// Runs `lead` on this thread with a team of `threads` threads, itself included.
    pub fn scope<T>(threads: usize, work: W, lead: impl FnOnce(&mut Team<'_, W>) -> T) -> T {
        let meeting = Meeting {
            threads: threads.max(1),
            arrived: AtomicUsize::new(0),
            generation: AtomicUsize::new(0),
            over: AtomicBool::new(false),
        };
        std::thread::scope(|scope| {
            for _ in 1..meeting.threads {
                scope.spawn(|| {
                    let mut scratch = RoundScratch::default();
                    loop {
                        meeting.wait();
                        if meeting.over.load(Ordering::Acquire) {
                            return;
                        }
                        work(&mut scratch);
                        meeting.wait();
                    }
                });
            }
            // Dropped even if the lead panics, so that nobody waits for ever.
            let _dismissal = Dismissal(&meeting);
            lead(&mut Team {
                work: &work,
                meeting: &meeting,
                scratch: RoundScratch::default(),
            })
        })
    }

    /// Runs the work on every thread and waits for all.
    pub fn work(&mut self) {
        self.meeting.wait();
        (self.work)(&mut self.scratch);
        self.meeting.wait();
    }
}

struct Dismissal<'a>(&'a Meeting);

impl Drop for Dismissal<'_> {
    fn drop(&mut self) {
        self.0.over.store(true, Ordering::Release);
        self.0.wait();
    }
}

impl Meeting {
    fn wait(&self) {
        if self.threads == 1 {
            return;
        }
        let generation = self.generation.load(Ordering::Acquire);
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.threads {
            self.arrived.store(0, Ordering::Relaxed);
            self.generation.fetch_add(1, Ordering::Release);
            return;
        }
        let mut turns = 0u32;
        while self.generation.load(Ordering::Acquire) == generation {
            turns += 1;
            match turns {
                0..4_000 => std::hint::spin_loop(),
                4_000..4_200 => std::thread::yield_now(),
                _ => std::thread::sleep(Duration::from_micros(50)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_works_every_time() {
        for threads in [1, 2, 5] {
            let count = AtomicUsize::new(0);
            let work = |_: &mut RoundScratch| {
                count.fetch_add(1, Ordering::Relaxed);
            };
            Team::scope(threads, work, |team| {
                for round in 1..=300 {
                    team.work();
                    assert_eq!(count.load(Ordering::Relaxed), round * threads);
                }
            });
        }
    }
}
