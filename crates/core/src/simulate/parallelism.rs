//! Together or alone: whichever is faster on this machine at this moment.
//!
//! A round of small clients lasts some ten microseconds. On idle cores a team halves it; where
//! another program holds a core, waiting for a team mate costs many such rounds. So short rounds are
//! timed both ways now and then, and the better way is kept until the next trial. What is computed does not depend on it.
//!
//! A trial compares typical rounds, its medians, so that one hiccup decides nothing. What a team loses by being interrupted
//! shows in the mean over the time since the last trial: where that is worse than being alone, it stays alone for a while, longer
//! each time. Trials take half a per cent of the time.

use std::time::Duration;

/// Rounds of each way in a trial; the first of them, when caches are cold, does not count.
const TRIAL: usize = 12;

/// The time from one trial to the next, in times of a trial.
const PERIOD: u32 = 200;

/// The most periods in a row without a trial of the team.
const LONGEST_REST: u32 = 15;

/// Rounds that last longer are worth a team without a trial, if they all last alike: where a team is kept waiting by other
/// programs, some rounds are quick and others take whole slices of time.
const LONG: Duration = Duration::from_micros(800);

/// Chooses for one run.
pub struct Pace {
    threads: usize,
    /// Rounds of the trial so far; it is over when there are twice [`TRIAL`].
    position: usize,
    /// Times of its rounds, together and alone.
    trial: [[Duration; TRIAL]; 2],
    /// Which way won the last trial.
    together: bool,
    /// How long it is valid, how much of that has passed, and with how many rounds.
    period: Duration,
    since: Duration,
    rounds: u32,
    /// Periods that the team still rests, and how many the last time.
    rest: u32,
    rested: u32,
}

impl Pace {
    pub fn new(threads: usize) -> Self {
        Self {
            threads,
            position: 0,
            trial: Default::default(),
            together: threads > 1,
            period: Duration::ZERO,
            since: Duration::ZERO,
            rounds: 0,
            rest: 0,
            rested: 0,
        }
    }

    /// Whether the coming round is run by the team.
    pub fn together(&self) -> bool {
        match self.position {
            _ if self.threads == 1 => false,
            0..TRIAL => true,
            TRIAL..DECIDED => false,
            _ => self.together,
        }
    }

    /// Records how long the round took.
    pub fn record(&mut self, took: Duration) {
        if self.threads == 1 {
            return;
        }
        if self.position < DECIDED {
            self.trial[self.position / TRIAL][self.position % TRIAL] = took;
            self.position += 1;
            let [together, alone] = [0, 1].map(|way: usize| typical(self.trial[way]));
            let (least, most) = extremes(&self.trial[0]);
            if self.position == TRIAL && together > LONG && most < 2 * least {
                // No need to try alone.
                self.decide(together, Duration::MAX);
            } else if self.position > TRIAL && took > most.max(LONG) {
                // Worse than the worst of the team: no need to try again, which may take long.
                self.decide(together, took);
            } else if self.position == DECIDED {
                self.decide(together, alone);
            }
            return;
        }
        self.since += took;
        self.rounds += 1;
        if self.since < self.period {
            return;
        }
        if self.rest > 0 {
            self.rest -= 1;
            (self.since, self.rounds) = (Duration::ZERO, 0);
        } else {
            self.position = 0;
        }
    }

    fn decide(&mut self, together: Duration, alone: Duration) {
        let interrupted = self.together && self.rounds > 0 && self.since / self.rounds > alone;
        if interrupted {
            self.rested = LONGEST_REST.min(2 * self.rested + 1);
            self.rest = self.rested;
        } else if self.together {
            self.rested = 0;
        }
        self.together = !interrupted && together <= alone;
        self.period = PERIOD * TRIAL as u32 * (together + alone.min(together));
        (self.position, self.since, self.rounds) = (DECIDED, Duration::ZERO, 0);
    }
}

/// Position at which a trial is decided.
const DECIDED: usize = 2 * TRIAL;

fn extremes(times: &[Duration; TRIAL]) -> (Duration, Duration) {
    let counted = times[1..].iter().copied();
    let most = counted.clone().max().unwrap_or_default();
    (counted.min().unwrap_or_default(), most)
}

fn typical(mut times: [Duration; TRIAL]) -> Duration {
    let counted = &mut times[1..];
    counted.sort_unstable();
    counted[counted.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUNDS: u32 = 40_000;
    const QUICK: Duration = Duration::from_micros(10);

    /// How many rounds are run together, where they take what `together` says, and `alone` otherwise.
    fn run(pace: &mut Pace, together: impl Fn(u32) -> Duration, alone: Duration) -> u32 {
        let mut count = 0;
        for round in 0..ROUNDS {
            if pace.together() {
                count += 1;
                pace.record(together(round));
            } else {
                pace.record(alone);
            }
        }
        count
    }

    #[test]
    fn keeps_the_faster_way() {
        assert_eq!(run(&mut Pace::new(1), |_| QUICK, 2 * QUICK), 0);
        // Trials are rare, but do not cease.
        let trials = 5 * TRIAL as u32..=ROUNDS / 150;
        let count = run(&mut Pace::new(2), |_| 2 * QUICK, QUICK);
        assert!(trials.contains(&count), "{count}");
        let count = ROUNDS - run(&mut Pace::new(2), |_| QUICK, 2 * QUICK);
        assert!(trials.contains(&count), "{count}");
        // Long rounds are not tried alone at all.
        let long = Duration::from_millis(5);
        assert_eq!(run(&mut Pace::new(2), |_| long, QUICK), ROUNDS);
    }

    /// Other programs hold the cores: most rounds of the team last as long as a slice of time, and look like long ones.
    #[test]
    fn a_team_that_is_kept_waiting_is_not_taken_for_long_rounds() {
        let kept = |round: u32| match round % 5 {
            4 => QUICK,
            _ => Duration::from_millis(3),
        };
        let count = run(&mut Pace::new(2), kept, 2 * QUICK);
        assert!(count < ROUNDS / 50, "{count}");
        // Long rounds that do not last alike are tried alone, but seldom twice in a row.
        let long = |round: u32| Duration::from_millis(2 + 5 * u64::from(round % 2));
        let count = ROUNDS - run(&mut Pace::new(8), long, Duration::from_millis(40));
        assert!(count <= ROUNDS / 1000, "{count}");
    }

    #[test]
    fn hiccups_decide_nothing() {
        let hiccup = |round: u32| match round % 500 {
            3 => 100 * QUICK,
            _ => QUICK,
        };
        let count = run(&mut Pace::new(2), hiccup, 2 * QUICK);
        assert!(count > ROUNDS - ROUNDS / 50, "{count}");
    }

    /// Most rounds are as quick as ever, but now and then the team waits for a whole slice of time.
    #[test]
    fn a_team_that_is_interrupted_all_the_time_rests() {
        let mut pace = Pace::new(2);
        run(&mut pace, |_| QUICK, 2 * QUICK);
        let interrupted = |round: u32| match round % 50 {
            49 => 400 * QUICK,
            _ => QUICK,
        };
        let count = run(&mut pace, interrupted, 2 * QUICK);
        assert!(count < ROUNDS / 5, "{count}");
        // And comes back.
        let count = run(&mut pace, |_| QUICK, 2 * QUICK);
        assert!(count > ROUNDS / 10, "{count}");
    }
}
