//! Threads that meet at a spinning barrier.
//!
//! [`Team::work`] runs one closure on every thread, with the thread's number, and returns when all are done. Waiting threads
//! spin for a few microseconds, then yield, then sleep in short naps, so that a team on a busy machine
//! does not fight for its cores. If the closure panics on one thread, no thread waits for it: the
//! panic comes out of [`Team::scope`].

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
    broken: AtomicBool,
}

impl<W: Fn(usize, &mut RoundScratch) + Sync> Team<'_, W> {
    /// Runs `lead` on this thread with a team of `threads` threads, itself included.
    pub fn scope<T>(threads: usize, work: W, lead: impl FnOnce(&mut Team<'_, W>) -> T) -> T {
        let meeting = Meeting {
            threads: threads.max(1),
            arrived: AtomicUsize::new(0),
            generation: AtomicUsize::new(0),
            over: AtomicBool::new(false),
            broken: AtomicBool::new(false),
        };
        std::thread::scope(|scope| {
            for thread in 1..meeting.threads {
                let (meeting, work) = (&meeting, &work);
                scope.spawn(move || {
                    let mut scratch = RoundScratch::default();
                    while meeting.wait() && !meeting.over.load(Ordering::Acquire) {
                        let _alarm = Alarm(meeting);
                        work(thread, &mut scratch);
                        if !meeting.wait() {
                            return;
                        }
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

    /// Runs the work on this thread alone.
    pub fn alone(&mut self) {
        (self.work)(0, &mut self.scratch);
    }

    /// Runs the work on every thread and waits for all.
    ///
    /// # Panics
    /// If the work panics on any thread.
    pub fn work(&mut self) {
        self.meeting.wait();
        let _alarm = Alarm(self.meeting);
        (self.work)(0, &mut self.scratch);
        assert!(self.meeting.wait(), "a thread of the team panicked");
    }
}

struct Dismissal<'a>(&'a Meeting);

impl Drop for Dismissal<'_> {
    fn drop(&mut self) {
        self.0.over.store(true, Ordering::Release);
        self.0.wait();
    }
}

/// Tells the others when its thread panics at work.
struct Alarm<'a>(&'a Meeting);

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.broken.store(true, Ordering::Release);
        }
    }
}

impl Meeting {
    /// Waits for everybody; `false` if somebody panicked and will not come.
    fn wait(&self) -> bool {
        if self.threads == 1 {
            return true;
        }
        let generation = self.generation.load(Ordering::Acquire);
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.threads {
            self.arrived.store(0, Ordering::Relaxed);
            self.generation.fetch_add(1, Ordering::Release);
            return true;
        }
        let mut turns = 0u32;
        while self.generation.load(Ordering::Acquire) == generation {
            if self.broken.load(Ordering::Acquire) {
                return false;
            }
            turns += 1;
            match turns {
                0..4_000 => std::hint::spin_loop(),
                4_000..4_200 => std::thread::yield_now(),
                _ => std::thread::sleep(Duration::from_micros(50)),
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_works_every_time() {
        for threads in [1, 2, 5] {
            let count = AtomicUsize::new(0);
            let work = |_: usize, _: &mut RoundScratch| {
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
