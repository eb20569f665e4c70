//! How to guess, chosen on a pilot; and the count of what guessing by that rule came to.
//!
//! A rule says `present` above a threshold, `absent` below its mirror image, or both, at most so
//! many times in a run. The pilot's runs choose the rule whose bound would be best if the other
//! runs went alike; the others are then counted once, with everything about the count fixed before.

use super::bound::{Tally, Terms};
use super::game::Scores;

/// Which answers are guessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Present,
    Absent,
    Both,
}

impl Side {
    /// How strongly a score speaks for a guess, and which.
    fn opinion(self, score: f32) -> (f32, bool) {
        match self {
            Side::Present => (score, true),
            Side::Absent => (-score, false),
            Side::Both => (score.abs(), score > 0.0),
        }
    }

    fn answers(self) -> u64 {
        if self == Side::Both { 2 } else { 1 }
    }
}

/// How to guess.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rule {
    pub(crate) side: Side,
    pub(crate) threshold: f32,
    /// Most guesses in a run.
    pub(crate) cap: u64,
}

impl Rule {
    /// Chosen on the runs of a pilot, for `terms` of the runs to be counted.
    pub(crate) fn choose(pilot: &[Scores], terms: &dyn Fn(u64, u64) -> Terms) -> Self {
        let sides = [Side::Present, Side::Absent, Side::Both];
        let best = sides
            .into_iter()
            .filter_map(|side| Self::best_of(side, pilot, terms))
            .max_by(|one, other| one.1.total_cmp(&other.1));
        best.map_or(
            Rule {
                side: Side::Both,
                threshold: 0.0,
                cap: 1,
            },
            |(rule, _)| rule,
        )
    }

    /// The best threshold of a side with the bound it promises.
    fn best_of(
        side: Side,
        pilot: &[Scores],
        terms: &dyn Fn(u64, u64) -> Terms,
    ) -> Option<(Self, f64)> {
        /// Each candidate guesses so many times as often as the one before.
        const RATIO: f64 = 1.15;
        const FEWEST: f64 = 40.0;
        let mut opinions: Vec<(f32, bool, u32)> = Vec::new();
        for (run, scores) in pilot.iter().enumerate() {
            opinions.extend(scores.iter().map(|&(coin, score)| {
                let (strength, guess) = side.opinion(score);
                (strength, guess == coin, run as u32)
            }));
        }
        opinions.sort_unstable_by(|one, other| other.0.total_cmp(&one.0));
        let mut by_run = vec![0u64; pilot.len()];
        let (mut right, mut next) = (0u64, FEWEST);
        let mut best: Option<(Self, f64)> = None;
        for (index, &(strength, is_right, run)) in opinions.iter().enumerate() {
            by_run[run as usize] += 1;
            right += u64::from(is_right);
            let guesses = index as u64 + 1;
            if (guesses as f64) < next {
                continue;
            }
            next = (guesses as f64 * RATIO).max(guesses as f64 + 1.0);
            let cap = cap(&by_run, guesses);
            let terms = terms(cap, side.answers());
            let times = terms.runs as f64 / pilot.len() as f64;
            // Less one standard deviation of a fair coin: of many candidates the luckiest would
            // win, and few guesses are the luckiest.
            let sure = (right as f64 - 0.5 * (guesses as f64).sqrt()).max(0.0);
            let tally = Tally {
                guesses: (guesses as f64 * times).round() as u64,
                right: (sure * times).round() as u64,
            };
            let promise = terms.roughly(tally);
            if best.is_none_or(|(_, most)| promise > most) {
                let rule = Rule {
                    side,
                    threshold: strength,
                    cap,
                };
                best = Some((rule, promise));
            }
        }
        best
    }

    /// The guesses of one run: the strongest first, no more than the cap.
    pub(crate) fn count(&self, scores: &Scores) -> Tally {
        let mut guesses: Vec<(f32, bool)> = scores
            .iter()
            .map(|&(coin, score)| {
                let (strength, guess) = self.side.opinion(score);
                (strength, guess == coin)
            })
            .filter(|(strength, _)| *strength >= self.threshold)
            .collect();
        guesses.sort_unstable_by(|one, other| other.0.total_cmp(&one.0));
        guesses.truncate(self.cap as usize);
        Tally {
            guesses: guesses.len() as u64,
            right: guesses.iter().filter(|(_, right)| *right).count() as u64,
        }
    }

    pub(crate) fn answers(&self) -> u64 {
        self.side.answers()
    }
}

/// The smallest cap that loses no more than a guess in a hundred.
fn cap(by_run: &[u64], guesses: u64) -> u64 {
    let largest = by_run.iter().copied().max().unwrap_or(1).max(1);
    let mut runs_with = vec![0u64; largest as usize + 1];
    for &count in by_run {
        runs_with[count as usize] += 1;
    }
    // Runs with more than `cap` guesses lose one more each time the cap falls by one.
    let (mut cap, mut above, mut lost) = (largest, 0, 0);
    while cap > 1 {
        above += runs_with[cap as usize];
        lost += above;
        if lost * 100 > guesses {
            break;
        }
        cap -= 1;
    }
    cap
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caps_lose_one_in_a_hundred_at_most() {
        let by_run: Vec<u64> = (0..1000)
            .map(|run| if run % 100 == 0 { 3 } else { 1 })
            .collect();
        let guesses = by_run.iter().sum();
        assert_eq!(cap(&by_run, guesses), 3 - u64::from(10 * 100 <= guesses));
        assert_eq!(cap(&[1; 50], 50), 1);
        assert_eq!(cap(&[], 0), 1);
    }

    /// Scores that say nothing below 2 and everything above: the rule guesses above.
    #[test]
    fn the_rule_guesses_where_scores_speak() {
        let run = |run: usize| -> Scores {
            let score = |i: usize| ((i * 7919 + run * 104_729) % 1000) as f32 / 300.0 - 1.0;
            let toss = |i: usize| (i * 31 + run * 17).is_multiple_of(2);
            (0..50)
                .map(|i| match score(i) {
                    strong if strong > 2.0 => (true, strong),
                    weak => (toss(i), weak),
                })
                .collect()
        };
        let pilot: Vec<Scores> = (0..200).map(run).collect();
        let terms = |cap, sides| Terms {
            runs: 400,
            canaries: 50,
            cap,
            sides,
            delta: 1e-5,
            error: 0.05,
        };
        let rule = Rule::choose(&pilot, &terms);
        assert!(
            rule.side != Side::Absent && rule.threshold >= 1.9,
            "{rule:?}"
        );
        let tally = rule.count(&vec![(true, 2.2), (false, 2.1), (true, -3.0), (true, 0.1)]);
        assert!(tally.guesses <= rule.cap && tally.right >= 1);
    }
}
