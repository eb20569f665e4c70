//! Threads that live for a whole run and wait for each other at a spinning barrier.
//!
//! [`Workers::run`] gives one task to every thread. Within every task each thread passes the
//! [`Barrier`] once; before and after that, threads do not wait for each other.
//!
//! **Cost.** Waiting threads spin for a few microseconds, then yield for a millisecond, then sleep
//! 50 microseconds at a time, so that a run on a busy machine leaves its cores to others.
//!
//! **Guarantee.** If the work panics on one thread, no other thread waits for it: the panic comes
//! out of [`Workers::scope`].

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use super::task::Task;
use crate::protocol::RoundScratch;

/// All threads of a run, seen from the first one.
pub(super) struct Workers<'a, W> {
    work: &'a W,
    barrier: &'a Barrier,
    scratch: RoundScratch,
}

/// Where threads wait for each other.
///
/// Each thread counts its arrivals in a cache line that it alone writes and the others read: one
/// line moves on the way from one thread to another, where a common counter would need three.
pub(super) struct Barrier {
    flags: Vec<CacheLine<ThreadFlags>>,
    stop: CacheLine<Stop>,
}

/// What one thread tells the others.
#[derive(Default)]
struct ThreadFlags {
    /// How often it has arrived at the barrier.
    arrivals: AtomicUsize,
    /// Only of the first thread: how many tasks it has published, and the last one.
    published: AtomicUsize,
    task: AtomicU64,
}

/// Why no thread needs to wait any longer.
#[derive(Default)]
struct Stop {
    finished: AtomicBool,
    panicked: AtomicBool,
}

/// A value with cache lines of its own: two, because processors fetch them in pairs.
#[derive(Default)]
#[repr(align(128))]
struct CacheLine<T>(T);

impl<W: Fn(usize, Task, &Barrier, &mut RoundScratch) + Sync> Workers<'_, W> {
    /// Runs `lead` on this thread, with `threads` workers, this thread included.
    pub(super) fn scope<T>(
        threads: usize,
        work: W,
        lead: impl FnOnce(&mut Workers<'_, W>) -> T,
    ) -> T {
        let barrier = Barrier {
            flags: (0..threads.max(1)).map(|_| CacheLine::default()).collect(),
            stop: CacheLine::default(),
        };
        std::thread::scope(|scope| {
            for thread in 1..barrier.flags.len() {
                let (barrier, work) = (&barrier, &work);
                scope.spawn(move || {
                    let mut scratch = RoundScratch::default();
                    let mut taken = 0;
                    while let Some(task) = barrier.next_task(&mut taken) {
                        let _guard = PanicGuard(barrier);
                        work(thread, task, barrier, &mut scratch);
                    }
                });
            }
            // Dropped even if `lead` panics, so that no thread waits for ever.
            let _guard = FinishGuard(&barrier);
            lead(&mut Workers {
                work: &work,
                barrier: &barrier,
                scratch: RoundScratch::default(),
            })
        })
    }

    /// Does a task on this thread, while the others wait or finish the task before.
    pub(super) fn run_alone(&mut self, task: Task) {
        (self.work)(0, task, self.barrier, &mut self.scratch);
    }

    /// Does a task on every thread. Returns when this thread is done: the others may still be busy
    /// with what comes after the barrier.
    ///
    /// # Panics
    /// If the work panics on any thread.
    pub(super) fn run(&mut self, task: Task) {
        let _guard = PanicGuard(self.barrier);
        self.barrier.publish(task);
        self.run_alone(task);
        let panicked = self.barrier.stop.0.panicked.load(Ordering::Acquire);
        assert!(!panicked, "a worker thread panicked");
    }
}

/// Tells the other threads when the run is over.
struct FinishGuard<'a>(&'a Barrier);

impl Drop for FinishGuard<'_> {
    fn drop(&mut self) {
        self.0.stop.0.finished.store(true, Ordering::Release);
    }
}

/// Tells the other threads when its thread panics.
struct PanicGuard<'a>(&'a Barrier);

impl Drop for PanicGuard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.stop.0.panicked.store(true, Ordering::Release);
        }
    }
}

impl Barrier {
    /// Publishes the next task. All threads have taken the last one, because they have passed its
    /// barrier.
    fn publish(&self, task: Task) {
        let flags = &self.flags[0].0;
        flags.task.store(task.to_word(), Ordering::Relaxed);
        let published = flags.published.load(Ordering::Relaxed).wrapping_add(1);
        flags.published.store(published, Ordering::Release);
    }

    /// Waits for the next task; none when the run is over.
    fn next_task(&self, taken: &mut usize) -> Option<Task> {
        let flags = &self.flags[0].0;
        let finished = &self.stop.0.finished;
        let published = || flags.published.load(Ordering::Acquire) != *taken;
        if !self.wait_until(|| published() || finished.load(Ordering::Acquire)) || !published() {
            return None;
        }
        *taken = taken.wrapping_add(1);
        Some(Task::from_word(flags.task.load(Ordering::Relaxed)))
    }

    /// Waits until all threads have arrived; `false` if one of them has panicked and will not.
    pub(super) fn wait(&self, thread: usize) -> bool {
        let own = &self.flags[thread].0.arrivals;
        let arrivals = own.load(Ordering::Relaxed).wrapping_add(1);
        own.store(arrivals, Ordering::Release);
        let others = self.flags.iter().enumerate();
        others
            .filter(|&(other, _)| other != thread)
            .all(|(_, flags)| {
                // No thread is more than one arrival ahead.
                self.wait_until(|| {
                    let other = flags.0.arrivals.load(Ordering::Acquire);
                    other.wrapping_sub(arrivals) <= 1
                })
            })
    }

    /// `false` if a thread has panicked before the condition held.
    fn wait_until(&self, condition: impl Fn() -> bool) -> bool {
        let mut turns = 0u32;
        while !condition() {
            if self.stop.0.panicked.load(Ordering::Acquire) {
                return false;
            }
            turns += 1;
            // Spinning lasts a few microseconds only: if the system has put both threads on one
            // core, the other cannot go on before this one yields. Yielding lasts longer than one
            // sleep: otherwise two threads that sleep in turn would wait for each other's waking
            // in every round.
            match turns {
                0..300 => std::hint::spin_loop(),
                300..5_000 => std::thread::yield_now(),
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
    fn every_thread_does_every_task() {
        for threads in [1, 2, 5] {
            let count = AtomicUsize::new(0);
            let work = |thread: usize, task: Task, barrier: &Barrier, _: &mut RoundScratch| {
                assert_eq!(task, Task::Evaluate);
                count.fetch_add(1, Ordering::Relaxed);
                assert!(barrier.wait(thread));
            };
            Workers::scope(threads, work, |workers| {
                for round in 1..=300 {
                    workers.run(Task::Evaluate);
                    assert_eq!(count.load(Ordering::Relaxed), round * threads);
                }
            });
        }
    }
}
