//! All threads or one: whichever is faster on this machine at this moment. It decides about time
//! only; results do not depend on it.
//!
//! A round of small clients lasts some ten microseconds. On idle cores, two threads halve that;
//! where another program occupies a core, waiting for the other thread costs many such rounds. So
//! short rounds are timed both ways now and then (a trial), and the faster way is used until the
//! next trial.
//!
//! A trial compares medians, so that a single slow round decides nothing. What several threads lose
//! by being interrupted shows in the mean round since the last trial: where that is slower than one
//! thread alone, one thread is used for some periods, for more of them each time. Trials take
//! half a per cent of the time.

use std::time::Duration;

/// Rounds of each way in a trial; the first of them, when caches are cold, does not count.
const TRIAL: usize = 12;

/// The time from one trial to the next, in multiples of a trial.
const PERIOD: u32 = 200;

/// The most periods in a row without a trial of all threads.
const LONGEST_PAUSE: u32 = 15;

/// Longer rounds use all threads without a trial, if they all last about equally long: where
/// threads wait for other programs, some rounds are quick and others take whole time slices of the
/// system.
const LONG: Duration = Duration::from_micros(800);

/// Rounds after which a trial is decided.
const DECIDED: usize = 2 * TRIAL;

/// The choice between all threads and one, for one run.
pub(super) struct Parallelism {
    threads: usize,
    /// Rounds of the trial so far; [`DECIDED`] when it is over.
    position: usize,
    /// Times of its rounds, with all threads and with one.
    trial: [[Duration; TRIAL]; 2],
    /// Whether all threads won the last trial.
    all_threads: bool,
    /// How long its result is used, how much of that has passed, and in how many rounds.
    period: Duration,
    since: Duration,
    rounds: u32,
    /// Periods that are still without a trial of all threads, and how many there were the last
    /// time.
    pause: u32,
    last_pause: u32,
}

impl Parallelism {
    pub(super) fn new(threads: usize) -> Self {
        Self {
            threads,
            position: 0,
            trial: Default::default(),
            all_threads: threads > 1,
            period: Duration::ZERO,
            since: Duration::ZERO,
            rounds: 0,
            pause: 0,
            last_pause: 0,
        }
    }

    /// Whether the coming round uses all threads.
    pub(super) fn all_threads(&self) -> bool {
        match self.position {
            _ if self.threads == 1 => false,
            0..TRIAL => true,
            TRIAL..DECIDED => false,
            _ => self.all_threads,
        }
    }

    /// Records how long the round took.
    pub(super) fn record(&mut self, took: Duration) {
        if self.threads == 1 {
            return;
        }
        if self.position < DECIDED {
            self.trial[self.position / TRIAL][self.position % TRIAL] = took;
            self.position += 1;
            let [all, alone] = [0, 1].map(|way: usize| median(self.trial[way]));
            let (least, most) = extremes(&self.trial[0]);
            if self.position == TRIAL && all > LONG && most < 2 * least {
                // One thread need not be tried.
                self.decide(all, Duration::MAX);
            } else if self.position > TRIAL && took > most.max(LONG) {
                // Slower than the slowest round of all threads: trying again may take long.
                self.decide(all, took);
            } else if self.position == DECIDED {
                self.decide(all, alone);
            }
            return;
        }
        self.since += took;
        self.rounds += 1;
        if self.since < self.period {
            return;
        }
        if self.pause > 0 {
            self.pause -= 1;
            (self.since, self.rounds) = (Duration::ZERO, 0);
        } else {
            self.position = 0;
        }
    }

    /// Ends a trial in which a round typically took `all` with all threads and `alone` with one.
    fn decide(&mut self, all: Duration, alone: Duration) {
        let interrupted = self.all_threads && self.rounds > 0 && self.since / self.rounds > alone;
        if interrupted {
            self.last_pause = LONGEST_PAUSE.min(2 * self.last_pause + 1);
            self.pause = self.last_pause;
        } else if self.all_threads {
            self.last_pause = 0;
        }
        self.all_threads = !interrupted && all <= alone;
        self.period = PERIOD * TRIAL as u32 * (all + alone.min(all));
        (self.position, self.since, self.rounds) = (DECIDED, Duration::ZERO, 0);
    }
}

/// The quickest and the slowest of the rounds that count.
fn extremes(times: &[Duration; TRIAL]) -> (Duration, Duration) {
    let counted = times[1..].iter().copied();
    let most = counted.clone().max().unwrap_or_default();
    (counted.min().unwrap_or_default(), most)
}

/// The median of the rounds that count.
fn median(mut times: [Duration; TRIAL]) -> Duration {
    let counted = &mut times[1..];
    counted.sort_unstable();
    counted[counted.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUNDS: u32 = 40_000;
    const QUICK: Duration = Duration::from_micros(10);

    /// How many rounds use all threads, if they then take what `all` says, and `alone` otherwise.
    fn run(choice: &mut Parallelism, all: impl Fn(u32) -> Duration, alone: Duration) -> u32 {
        let mut count = 0;
        for round in 0..ROUNDS {
            if choice.all_threads() {
                count += 1;
                choice.record(all(round));
            } else {
                choice.record(alone);
            }
        }
        count
    }

    #[test]
    fn keeps_the_faster_way() {
        assert_eq!(run(&mut Parallelism::new(1), |_| QUICK, 2 * QUICK), 0);
        // Trials are rare, but do not cease.
        let trials = 5 * TRIAL as u32..=ROUNDS / 150;
        let count = run(&mut Parallelism::new(2), |_| 2 * QUICK, QUICK);
        assert!(trials.contains(&count), "{count}");
        let count = ROUNDS - run(&mut Parallelism::new(2), |_| QUICK, 2 * QUICK);
        assert!(trials.contains(&count), "{count}");
        // Long rounds are not tried alone at all.
        let long = Duration::from_millis(5);
        assert_eq!(run(&mut Parallelism::new(2), |_| long, QUICK), ROUNDS);
    }

    /// Other programs occupy the cores: most rounds of all threads last as long as a time slice,
    /// and look like long ones.
    #[test]
    fn threads_that_wait_for_others_are_not_taken_for_long_rounds() {
        let waiting = |round: u32| match round % 5 {
            4 => QUICK,
            _ => Duration::from_millis(3),
        };
        let count = run(&mut Parallelism::new(2), waiting, 2 * QUICK);
        assert!(count < ROUNDS / 50, "{count}");
        // Long rounds of different length are tried alone, but seldom twice in a row.
        let long = |round: u32| Duration::from_millis(2 + 5 * u64::from(round % 2));
        let count = ROUNDS - run(&mut Parallelism::new(8), long, Duration::from_millis(40));
        assert!(count <= ROUNDS / 1000, "{count}");
    }

    #[test]
    fn single_slow_rounds_decide_nothing() {
        let sometimes_slow = |round: u32| match round % 500 {
            3 => 100 * QUICK,
            _ => QUICK,
        };
        let count = run(&mut Parallelism::new(2), sometimes_slow, 2 * QUICK);
        assert!(count > ROUNDS - ROUNDS / 50, "{count}");
    }

    /// Most rounds are as quick as before, but now and then all threads wait for a whole time
    /// slice.
    #[test]
    fn threads_that_are_interrupted_again_and_again_pause() {
        let mut choice = Parallelism::new(2);
        run(&mut choice, |_| QUICK, 2 * QUICK);
        let interrupted = |round: u32| match round % 50 {
            49 => 400 * QUICK,
            _ => QUICK,
        };
        let count = run(&mut choice, interrupted, 2 * QUICK);
        assert!(count < ROUNDS / 5, "{count}");
        // And are used again later.
        let count = run(&mut choice, |_| QUICK, 2 * QUICK);
        assert!(count > ROUNDS / 10, "{count}");
    }
}
