//! Together or alone: whichever is faster on this machine at this moment.
//!
//! A round of small clients lasts tens of microseconds. On idle cores a team halves it; where
//! another program holds a core, waiting for a team mate costs many such rounds. So short rounds are
//! timed both ways now and then, and the better way is kept until the next trial. What is computed
//! does not depend on it.

use std::time::Duration;

/// Rounds from one trial to the next.
const CYCLE: u32 = 1024;

/// Rounds of each way in a trial.
const TRIAL: u32 = 12;

/// Position at which a trial is decided.
const DECIDED: u32 = 2 * TRIAL;

/// Rounds that last longer are always worth a team: the scheduler's hiccups are shorter.
const LONG: Duration = Duration::from_micros(800);

/// Chooses for one run.
pub struct Pace {
    threads: usize,
    position: u32,
    /// Total time of the rounds of this trial, together and alone.
    trial: [Duration; 2],
    /// Which way won the last trial.
    together: bool,
}

impl Pace {
    pub fn new(threads: usize) -> Self {
        Self {
            threads,
            position: 0,
            trial: [Duration::ZERO; 2],
            together: threads > 1,
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
        match self.position {
            // The first round wakes the team up and warms the caches.
            0 => self.trial = [Duration::ZERO; 2],
            1..TRIAL => self.trial[0] += took,
            // The first round alone is warm already; one is left out of both for fairness.
            _ if self.position > TRIAL && self.position < DECIDED => self.trial[1] += took,
            _ => {}
        }
        self.position += 1;
        if self.position == TRIAL && self.trial[0] > LONG * (TRIAL - 1) {
            // No need to try alone.
            (self.together, self.position) = (true, DECIDED);
        } else if self.position == DECIDED {
            self.together = self.trial[0] <= self.trial[1];
        } else if self.position == CYCLE {
            self.position = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(threads: usize, together: Duration, alone: Duration) -> (u32, u32) {
        let mut pace = Pace::new(threads);
        let mut counts = (0, 0);
        for _ in 0..10 * CYCLE {
            if pace.together() {
                counts.0 += 1;
                pace.record(together);
            } else {
                counts.1 += 1;
                pace.record(alone);
            }
        }
        counts
    }

    #[test]
    fn keeps_the_faster_way() {
        let (fast, slow) = (Duration::from_micros(10), Duration::from_micros(20));
        assert_eq!(run(1, slow, fast), (0, 10 * CYCLE));
        assert_eq!(run(2, slow, fast).0, 10 * TRIAL);
        assert_eq!(run(2, fast, slow).1, 10 * TRIAL);
        // Long rounds are not tried alone at all.
        assert_eq!(run(2, Duration::from_millis(5), fast).1, 0);
    }
}
