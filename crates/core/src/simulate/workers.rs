//! Threads that meet at a spinning barrier.
//!
//! [`Team::work`] gives one job to every thread. In the middle or at the end of every job the threads meet
//! ([`Meeting::wait`]); before that, nobody waits for anybody. Waiting threads
//! spin for a few microseconds, then yield for a millisecond, then sleep in short naps, so that a team on a busy machine
//! does not fight for its cores. If the closure panics on one thread, no thread waits for it: the
//! panic comes out of [`Team::scope`].

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use super::shared_state::Desk;
use super::task::Job;

/// A team, seen from its first thread.
pub struct Team<'a, W> {
    work: &'a W,
    meeting: &'a Meeting,
    desk: Desk,
}

/// Where threads wait for each other.
///
/// Each thread says how often it has come, in a line of memory of its own that it alone writes and the others read: one line changes
/// hands on the way from one thread to another, where a common counter needs three.
pub struct Meeting {
    flags: Vec<Line<Flag>>,
    ending: Line<Ending>,
}

/// What one thread says.
#[derive(Default)]
struct Flag {
    /// How often it has come.
    times: AtomicUsize,
    /// Of the first thread: how many jobs it has given, and the last one.
    given: AtomicUsize,
    job: AtomicU64,
}

/// Why nobody needs to wait any longer.
#[derive(Default)]
struct Ending {
    over: AtomicBool,
    broken: AtomicBool,
}

/// Alone in its lines of memory; processors fetch them in pairs.
#[derive(Default)]
#[repr(align(128))]
struct Line<T>(T);

impl<W: Fn(usize, Job, &Meeting, &mut Desk) + Sync> Team<'_, W> {
    /// Runs `lead` on this thread with a team of `threads` threads, itself included.
    pub fn scope<T>(threads: usize, work: W, lead: impl FnOnce(&mut Team<'_, W>) -> T) -> T {
        let meeting = Meeting {
            flags: (0..threads.max(1)).map(|_| Line::default()).collect(),
            ending: Line::default(),
        };
        std::thread::scope(|scope| {
            for thread in 1..meeting.flags.len() {
                let (meeting, work) = (&meeting, &work);
                scope.spawn(move || {
                    let mut desk = Desk::default();
                    let mut taken = 0;
                    while let Some(job) = meeting.next(&mut taken) {
                        let _alarm = Alarm(meeting);
                        work(thread, job, meeting, &mut desk);
                    }
                });
            }
            // Dropped even if the lead panics, so that nobody waits for ever.
            let _dismissal = Dismissal(&meeting);
            lead(&mut Team {
                work: &work,
                meeting: &meeting,
                desk: Desk::default(),
            })
        })
    }

    /// Does a job on this thread, while the others rest or finish the last one.
    pub fn alone(&mut self, job: Job) {
        (self.work)(0, job, self.meeting, &mut self.desk);
    }

    /// Does a job on every thread. Returns when this thread is done: the others may still be busy with what comes after the
    /// meeting.
    ///
    /// # Panics
    /// If the work panics on any thread.
    pub fn work(&mut self, job: Job) {
        let _alarm = Alarm(self.meeting);
        self.meeting.give(job);
        self.alone(job);
        let broken = self.meeting.ending.0.broken.load(Ordering::Acquire);
        assert!(!broken, "a thread of the team panicked");
    }
}

struct Dismissal<'a>(&'a Meeting);

impl Drop for Dismissal<'_> {
    fn drop(&mut self) {
        self.0.ending.0.over.store(true, Ordering::Release);
    }
}

/// Tells the others when its thread panics at work.
struct Alarm<'a>(&'a Meeting);

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.ending.0.broken.store(true, Ordering::Release);
        }
    }
}

impl Meeting {
    /// Says what is to be done. The others have taken the last job: they came to its meeting.
    fn give(&self, job: Job) {
        let flag = &self.flags[0].0;
        flag.job.store(job.to_word(), Ordering::Relaxed);
        let given = flag.given.load(Ordering::Relaxed).wrapping_add(1);
        flag.given.store(given, Ordering::Release);
    }

    /// Waits for the next job; none when there will be no more.
    fn next(&self, taken: &mut usize) -> Option<Job> {
        let flag = &self.flags[0].0;
        let over = &self.ending.0.over;
        let given = || flag.given.load(Ordering::Acquire) != *taken;
        if !self.wait_until(|| given() || over.load(Ordering::Acquire)) || !given() {
            return None;
        }
        *taken = taken.wrapping_add(1);
        Some(Job::from_word(flag.job.load(Ordering::Relaxed)))
    }

    /// Waits for everybody; `false` if somebody panicked and will not come.
    pub fn wait(&self, thread: usize) -> bool {
        let own = &self.flags[thread].0.times;
        let times = own.load(Ordering::Relaxed).wrapping_add(1);
        own.store(times, Ordering::Release);
        let others = self.flags.iter().enumerate();
        others
            .filter(|&(other, _)| other != thread)
            .all(|(_, flag)| {
                // Nobody is more than one meeting ahead.
                self.wait_until(|| flag.0.times.load(Ordering::Acquire).wrapping_sub(times) <= 1)
            })
    }

    fn wait_until(&self, come: impl Fn() -> bool) -> bool {
        let mut turns = 0u32;
        while !come() {
            if self.ending.0.broken.load(Ordering::Acquire) {
                return false;
            }
            turns += 1;
            // A few microseconds only: if the system has put both threads on one processor, the other cannot come before this
            // one yields. And yielding lasts longer than a nap: else two threads that nap in turn would wait for each
            // other's waking in every round.
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
    fn everybody_works_every_time() {
        for threads in [1, 2, 5] {
            let count = AtomicUsize::new(0);
            let work = |thread: usize, job: Job, meeting: &Meeting, _: &mut Desk| {
                assert_eq!(job, Job::Metrics);
                count.fetch_add(1, Ordering::Relaxed);
                assert!(meeting.wait(thread));
            };
            Team::scope(threads, work, |team| {
                for round in 1..=300 {
                    team.work(Job::Metrics);
                    assert_eq!(count.load(Ordering::Relaxed), round * threads);
                }
            });
        }
    }
}
