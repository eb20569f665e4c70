//! How to guess, chosen on a pilot; and the count of what guessing by that rule came to.
//!
//! A rule says `present` above a threshold, `absent` below its mirror image, or both, at most so
//! many times in a run, the strongest opinions first. The pilot's runs choose the rule whose bound
//! would be best if the other runs went alike; the others are then counted once, with everything
//! about the count fixed before.
//!
//! How often a guess is right is not counted on the pilot, which has too few guesses beyond any
//! threshold worth having: the luckiest of many candidates would win. A score is a log likelihood
//! ratio, so a guess of strength `x` is right with probability `1/(1 + e^-x)`, or, if the program is
//! not what the attack takes it for, about `1/(1 + e^{-kx})` with a factor `k` that all games of the
//! pilot agree on. If that is wrong the rule is not the best one; what is counted is a bound anyway.

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
    /// About how many guesses the runs to be counted will have.
    pub(crate) expected: u64,
}

/// A rule with the bound it promises.
type Candidate = (Rule, f64);

impl Rule {
    /// Chosen on the runs of a pilot, for `terms` of the runs to be counted.
    pub(crate) fn choose(pilot: &[Scores], terms: &dyn Fn(&Rule) -> Terms) -> Self {
        let factor = calibration(pilot);
        let mut best: Option<Candidate> = None;
        for side in [Side::Present, Side::Absent, Side::Both] {
            let opinions = opinions(side, pilot);
            for once in [true, false] {
                let found = Self::best_of(side, once, &opinions, factor, pilot.len(), terms);
                let better = |found: &Candidate| best.is_none_or(|(_, most)| found.1 > most);
                best = found.filter(better).or(best);
            }
        }
        best.map_or(
            Rule {
                side: Side::Both,
                threshold: 0.0,
                cap: 1,
                expected: pilot.len() as u64,
            },
            |(rule, _)| rule,
        )
    }

    /// The best threshold of a side: with one guess in a run, or with so many that few are lost.
    fn best_of(
        side: Side,
        once: bool,
        opinions: &[(f32, u32)],
        factor: f64,
        runs: usize,
        terms: &dyn Fn(&Rule) -> Terms,
    ) -> Option<Candidate> {
        /// Each candidate guesses so many times as often as the one before.
        const RATIO: f64 = 1.15;
        const FEWEST: f64 = 10.0;
        let mut by_run = vec![0u64; runs];
        let (mut guesses, mut right, mut next) = (0u64, 0.0, FEWEST);
        let mut best: Option<Candidate> = None;
        for &(strength, run) in opinions {
            if once && by_run[run as usize] > 0 {
                continue;
            }
            by_run[run as usize] += 1;
            guesses += 1;
            right += chance(factor * f64::from(strength));
            if (guesses as f64) < next {
                continue;
            }
            next = (guesses as f64 * RATIO).max(guesses as f64 + 1.0);
            let mut rule = Rule {
                side,
                threshold: strength,
                cap: if once { 1 } else { cap(&by_run, guesses) },
                expected: guesses,
            };
            let times = terms(&rule).runs as f64 / runs as f64;
            rule.expected = (guesses as f64 * times).round() as u64;
            let tally = Tally {
                guesses: rule.expected,
                right: (right * times).round() as u64,
            };
            let promise = terms(&rule).roughly(tally);
            if best.is_none_or(|(_, most)| promise > most) {
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

/// Every game's opinion and run, the strongest first.
fn opinions(side: Side, pilot: &[Scores]) -> Vec<(f32, u32)> {
    let runs = pilot.iter().enumerate();
    let mut opinions: Vec<(f32, u32)> = runs
        .flat_map(|(run, scores)| {
            let strengths = scores.iter().map(move |&(_, score)| side.opinion(score).0);
            strengths.map(move |strength| (strength, run as u32))
        })
        .collect();
    opinions.sort_unstable_by(|one, other| other.0.total_cmp(&one.0));
    opinions
}

/// The chance that a guess is right, by the logarithm of its odds.
fn chance(log_odds: f64) -> f64 {
    1.0 / (1.0 + (-log_odds).exp())
}

/// By which factor scores must be multiplied to be the logarithm of the odds that the canary is
/// there: the most likely one, for all games of the pilot together.
fn calibration(pilot: &[Scores]) -> f64 {
    const LARGEST: f64 = 100.0;
    // The slope of the log likelihood, which falls as the factor grows.
    let slope = |factor: f64| -> f64 {
        let games = pilot.iter().flatten();
        games
            .map(|&(coin, score)| {
                let score = f64::from(score);
                score * (f64::from(u8::from(coin)) - chance(factor * score))
            })
            .sum()
    };
    let (mut low, mut high) = (1.0 / LARGEST, LARGEST);
    for _ in 0..20 {
        let middle = (low * high).sqrt();
        if slope(middle) > 0.0 {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
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
        let terms = |rule: &Rule| Terms {
            runs: 400,
            canaries: 50,
            cap: rule.cap,
            sides: rule.answers(),
            expected: rule.expected,
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
