//! From guesses to a lower bound on epsilon (the propositions of `docs/audit.md`).
//!
//! In each of `R` independent runs a fair coin is tossed for every canary, the transcript is shown
//! to an attacker, and the attacker guesses at most `c` of the coins. Let `p = e^epsilon / (1 +
//! e^epsilon)`, and `sides` be 1 where only one answer is ever guessed and 2 otherwise. If the
//! mechanism is `(epsilon, delta)`-private, the number of right guesses among `r` is at most
//!
//! ```text
//! c = 1   F + Binomial(r - F, p) given all transcripts and F, the guesses that delta gives away;
//!         F is at most Binomial(R, canaries sides delta / 2)
//! c > 1   W + B:  W at most Binomial(r, p), given all transcripts
//!                 B a sum over the runs of independent terms in [0, c], of mean at most
//!                 canaries sides delta / (2 (1 + e^epsilon))
//! ```
//!
//! With one guess in a run both kinds of chance are weighed together; with several, each takes its
//! share of the error. Binomial tails are exact (Clopper and Pearson), that of `B` is Chernoff's. No
//! law of scores is presumed, and noise that is shared by the canaries of a run is allowed.

/// What guessing came to.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Tally {
    /// Coins that were guessed.
    pub(crate) guesses: u64,
    /// Of these, how many were guessed right.
    pub(crate) right: u64,
}

/// What is known of the guessing before it begins.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Terms {
    /// Independent runs.
    pub(crate) runs: u64,
    /// Coins of a run.
    pub(crate) canaries: u64,
    /// Most guesses in a run.
    pub(crate) cap: u64,
    /// Answers that are ever guessed: 1 or 2.
    pub(crate) sides: u64,
    /// About how many guesses there will be in all. The bound holds whatever it is, and is best
    /// where it is right.
    pub(crate) expected: u64,
    /// The delta of the claim.
    pub(crate) delta: f64,
    /// The probability with which the bound may be too large.
    pub(crate) error: f64,
}

impl Terms {
    /// The share of the error that the excess `B` takes.
    const EXCESS_SHARE: f64 = 0.2;

    /// The lower bound on epsilon: the last point of a grid before the first that is not ruled
    /// out. A grid, because a bound by bisection would presume that what rules out a point rules
    /// out all below it.
    pub(crate) fn epsilon(&self, tally: Tally) -> f64 {
        const STEP: f64 = 1.0 / 512.0;
        const LARGEST: u32 = 40 * 512;
        let gifts = self.gifts();
        let mut bound = 0.0;
        for point in 0..=LARGEST {
            let epsilon = f64::from(point) * STEP;
            if !self.rules_out(tally, epsilon, &gifts) {
                break;
            }
            bound = epsilon;
        }
        bound
    }

    /// The same by bisection: for choosing how to guess, where nothing is concluded.
    pub(crate) fn roughly(&self, tally: Tally) -> f64 {
        let gifts = self.gifts();
        let (mut low, mut high) = (0.0, 40.0);
        for _ in 0..24 {
            let middle = 0.5 * (low + high);
            if self.rules_out(tally, middle, &gifts) {
                low = middle;
            } else {
                high = middle;
            }
        }
        low
    }

    /// Whether so many right guesses rule out that epsilon holds.
    fn rules_out(&self, tally: Tally, epsilon: f64, gifts: &Gifts) -> bool {
        let probability = 1.0 / (1.0 + (-epsilon).exp());
        match self.cap {
            1 => gifts.rule_out(tally, probability, self.expected, self.error),
            _ => self.rules_out_apart(tally, epsilon, probability),
        }
    }

    /// Several guesses in a run: both kinds of chance apart.
    fn rules_out_apart(&self, tally: Tally, epsilon: f64, probability: f64) -> bool {
        let excess = self.excess(epsilon);
        let right = (tally.right as f64 - excess).ceil();
        if right <= 0.0 {
            return false;
        }
        let tail = binomial_tail(tally.guesses, right as u64, probability);
        tail <= (1.0 - Self::EXCESS_SHARE) * self.error
    }

    /// What `B` reaches with no more than its share of the error.
    fn excess(&self, epsilon: f64) -> f64 {
        let (runs, cap) = (self.runs as f64, self.cap as f64);
        let mean =
            self.canaries as f64 * self.sides as f64 * self.delta / (2.0 * (1.0 + epsilon.exp()));
        let share = mean / cap;
        if share >= 1.0 {
            return runs * cap;
        }
        let needed = -(Self::EXCESS_SHARE * self.error).ln() / runs;
        let (mut low, mut high) = (share, 1.0);
        for _ in 0..60 {
            let middle = 0.5 * (low + high);
            if divergence(middle, share) < needed {
                low = middle;
            } else {
                high = middle;
            }
        }
        runs * cap * high
    }

    /// The law of `F`.
    fn gifts(&self) -> Gifts {
        let share = (0.5 * (self.canaries * self.sides) as f64 * self.delta).min(1.0);
        let rest = 1e-3 * self.error;
        let mean = self.runs as f64 * share;
        let first = (mean - 4.0 * mean.sqrt()).max(0.0) as u64;
        let (mut low, mut last) = (first, self.runs);
        while low < last {
            let middle = low + (last - low) / 2;
            if binomial_tail(self.runs, middle + 1, share) > rest {
                low = middle + 1;
            } else {
                last = middle;
            }
        }
        let masses = (first..=last).map(|f| ln_binomial(self.runs as f64, f as f64, share).exp());
        let mut law: Vec<f64> = masses.collect();
        // What is less than the first counts as the first.
        law[0] = 1.0 - law[1..].iter().sum::<f64>();
        Gifts { first, law, rest }
    }
}

/// Guesses that delta gives away, where a run has one guess at most: the law of a number that is at
/// least as large.
struct Gifts {
    first: u64,
    /// Probabilities of `first`, `first + 1`, ..., as far as they are counted.
    law: Vec<f64>,
    /// The probability of more.
    rest: f64,
}

impl Gifts {
    /// Whether so many right guesses have a probability of at most `error`, however many guesses
    /// delta gives away, and whatever that has to do with the number of guesses.
    ///
    /// `G(f)`, the tail that would just suffice for the expected number of guesses, is fixed before
    /// anything is counted, and has mean at most `error` over `F`. What was counted is compared with
    /// it for every `f`.
    fn rule_out(&self, tally: Tally, probability: f64, expected: u64, error: f64) -> bool {
        let Some(limit) = self.limit(probability, expected, error) else {
            return false;
        };
        let found = self.tails(tally.guesses, tally.right, probability);
        found.zip(limit).all(|(found, limit)| found <= limit)
    }

    /// `G`: the least number of right guesses whose tails have a small enough mean gives it.
    fn limit(&self, probability: f64, expected: u64, error: f64) -> Option<Vec<f64>> {
        let mean = |right: u64| -> f64 {
            let tails = self.tails(expected, right, probability);
            tails
                .zip(&self.law)
                .map(|(tail, weight)| tail * weight)
                .sum()
        };
        let allowed = error - self.rest;
        if mean(expected) > allowed {
            return None;
        }
        let (mut low, mut high) = (0, expected);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if mean(middle) > allowed {
                low = middle;
            } else {
                high = middle;
            }
        }
        Some(self.tails(expected, high, probability).collect())
    }

    /// For every number `f` of guesses given away `P(f + Binomial(guesses - f, p) >= right)`, which
    /// ascends: the next is this one and `(1 - p) P(Binomial(guesses - f - 1, p) = right - f - 1)`.
    fn tails(&self, guesses: u64, right: u64, p: f64) -> impl Iterator<Item = f64> {
        let most = right.min(guesses).saturating_sub(self.first);
        let (mut trials, mut least) = (guesses.saturating_sub(self.first), most);
        let mut tail = binomial_tail(trials, least, p);
        let mut ln_mass = ln_binomial(trials as f64, least as f64, p);
        (0..self.law.len()).map(move |_| {
            if least == 0 {
                return 1.0;
            }
            let found = tail.min(1.0);
            // Of one trial and one right guess fewer.
            ln_mass += (least as f64 / (trials as f64 * p)).ln();
            tail += (1.0 - p) * ln_mass.exp();
            (trials, least) = (trials - 1, least - 1);
            found
        })
    }
}

/// `ln P(Binomial(trials, p) = count)`.
fn ln_binomial(trials: f64, count: f64, p: f64) -> f64 {
    let term = |count: f64, p: f64| if count > 0.0 { count * p.ln() } else { 0.0 };
    ln_gamma(trials + 1.0) - ln_gamma(count + 1.0) - ln_gamma(trials - count + 1.0)
        + term(count, p)
        + term(trials - count, 1.0 - p)
}

/// `KL(p || q)` of two coins.
fn divergence(p: f64, q: f64) -> f64 {
    let term = |p: f64, q: f64| if p > 0.0 { p * (p / q).ln() } else { 0.0 };
    term(p, q) + term(1.0 - p, 1.0 - q)
}

/// `P(Binomial(trials, probability) >= least)`, as a regularised incomplete beta function.
pub(crate) fn binomial_tail(trials: u64, least: u64, probability: f64) -> f64 {
    if least == 0 {
        return 1.0;
    }
    if least > trials {
        return 0.0;
    }
    incomplete_beta(least as f64, (trials - least + 1) as f64, probability)
}

/// The regularised incomplete beta function by its continued fraction (modified Lentz), used where
/// it converges fast.
fn incomplete_beta(a: f64, b: f64, x: f64) -> f64 {
    if x <= 0.0 {
        return 0.0;
    }
    if x >= 1.0 {
        return 1.0;
    }
    let front = (ln_gamma(a + b) - ln_gamma(a) - ln_gamma(b) + a * x.ln() + b * (-x).ln_1p()).exp();
    if x < (a + 1.0) / (a + b + 2.0) {
        front * fraction(a, b, x) / a
    } else {
        1.0 - front * fraction(b, a, 1.0 - x) / b
    }
}

fn fraction(a: f64, b: f64, x: f64) -> f64 {
    const TINY: f64 = 1e-300;
    let sure = |value: f64| if value.abs() < TINY { TINY } else { value };
    let mut c = 1.0;
    let mut d = 1.0 / sure(1.0 - (a + b) * x / (a + 1.0));
    let mut result = d;
    for m in 1..100_000 {
        let m = f64::from(m);
        let even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        d = 1.0 / sure(1.0 + even * d);
        c = sure(1.0 + even / c);
        result *= d * c;
        let odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        d = 1.0 / sure(1.0 + odd * d);
        c = sure(1.0 + odd / c);
        result *= d * c;
        if (d * c - 1.0).abs() < 1e-14 {
            break;
        }
    }
    result
}

/// Stirling's series after shifting the argument beyond 10; relative error below 1e-14.
fn ln_gamma(mut x: f64) -> f64 {
    let mut product = 1.0;
    while x < 10.0 {
        product *= x;
        x += 1.0;
    }
    let inverse = 1.0 / x;
    let square = inverse * inverse;
    let series = inverse
        * (1.0 / 12.0
            - square
                * (1.0 / 360.0
                    - square * (1.0 / 1260.0 - square * (1.0 / 1680.0 - square / 1188.0))));
    (x - 0.5) * x.ln() - x + 0.5 * (2.0 * std::f64::consts::PI).ln() + series - product.ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tail summed term by term.
    fn naive_tail(trials: u64, least: u64, p: f64) -> f64 {
        let mut term = (1.0 - p).powi(trials as i32);
        assert!(
            term > 1e-300,
            "no sum from numbers that have lost their digits"
        );
        let mut sum = 0.0;
        for k in 0..=trials {
            if k >= least {
                sum += term;
            }
            term *= (trials - k) as f64 / (k + 1) as f64 * p / (1.0 - p);
        }
        sum
    }

    #[test]
    fn tails_match_their_sums() {
        for (trials, p) in [(1, 0.3), (10, 0.5), (57, 0.9), (300, 0.73), (900, 0.52)] {
            for least in [0, 1, 5, trials / 2, trials * 3 / 4, trials] {
                let (found, expected) = (
                    binomial_tail(trials, least, p),
                    naive_tail(trials, least, p),
                );
                assert!(
                    (found - expected).abs() < 1e-11,
                    "{trials} {least} {p}: {found} instead of {expected}"
                );
            }
        }
        assert_eq!(binomial_tail(10, 11, 0.5), 0.0);
    }

    #[test]
    fn factorials() {
        let mut factorial = 1.0f64;
        for n in 1..30 {
            factorial *= f64::from(n);
            assert!((ln_gamma(f64::from(n) + 1.0) - factorial.ln()).abs() < 1e-12 * n as f64);
        }
    }

    fn terms(delta: f64) -> Terms {
        Terms {
            runs: 2000,
            canaries: 100,
            cap: 4,
            sides: 2,
            expected: 5000,
            delta,
            error: 0.05,
        }
    }

    /// Without delta it is the limit of Clopper and Pearson: at four fifths of the error with many
    /// guesses in a run, at all of it with one.
    #[test]
    fn without_delta_it_is_the_exact_binomial_limit() {
        let tally = Tally {
            guesses: 5000,
            right: 3700,
        };
        let tail = |epsilon: f64| binomial_tail(5000, 3700, 1.0 / (1.0 + (-epsilon).exp()));
        for (cap, error) in [(4, 0.04), (1, 0.05)] {
            let terms = Terms {
                cap,
                ..terms(1e-300)
            };
            let bound = terms.epsilon(tally);
            // One right guess may be lost to the excess of a delta that is not quite zero, or to
            // the error that more gifts than are counted take.
            assert!(
                tail(bound) <= error && tail(bound + 0.02) > 0.75 * error,
                "{bound}"
            );
            assert!((terms.roughly(tally) - bound).abs() < 0.01);
        }
    }

    /// The tails of gifts against their definition.
    #[test]
    fn tails_with_gifts_are_those_of_fewer_guesses() {
        for first in [0, 7] {
            let gifts = Gifts {
                first,
                law: vec![0.0; 40],
                rest: 0.0,
            };
            for (guesses, right, p) in [(300, 220, 0.7), (50, 45, 0.55), (20, 20, 0.9), (5, 0, 0.6)]
            {
                for (place, found) in gifts.tails(guesses, right, p).enumerate() {
                    let given = first + place as u64;
                    let expected = match right.saturating_sub(given) {
                        0 => 1.0,
                        least => binomial_tail(guesses - given, least, p),
                    };
                    assert!(
                        (found - expected).abs() < 1e-11,
                        "{guesses} {right} {given}"
                    );
                }
            }
        }
    }

    /// Fewer or more guesses than were expected cost little, and a wild expectation does not make
    /// the bound larger.
    #[test]
    fn expectations_are_no_presumption() {
        let tally = Tally {
            guesses: 5000,
            right: 3700,
        };
        let bound = |expected| {
            let terms = Terms {
                cap: 1,
                expected,
                ..terms(1e-4)
            };
            terms.epsilon(tally)
        };
        let exact = bound(5000);
        assert!(exact > 0.9, "{exact}");
        for (expected, loss) in [(4800, 0.01), (5200, 0.01), (2500, 0.2), (10_000, 0.2)] {
            let found = bound(expected);
            assert!(
                found <= exact + 0.005 && found > exact - loss,
                "{expected}: {found}, {exact}"
            );
        }
        assert_eq!(bound(0), 0.0);
    }

    #[test]
    fn a_larger_delta_leaves_less() {
        let tally = Tally {
            guesses: 5000,
            right: 3700,
        };
        let bounds = [1e-12, 1e-6, 1e-5, 1e-4, 1e-3].map(|delta| terms(delta).epsilon(tally));
        assert!(bounds.is_sorted_by(|a, b| a >= b), "{bounds:?}");
        assert!(bounds[0] > 0.95 && bounds[4] < bounds[0] - 0.03);
        let nothing = Tally {
            guesses: 0,
            right: 0,
        };
        assert_eq!(terms(1e-5).epsilon(nothing), 0.0);
    }

    /// Mechanisms that are exactly `(epsilon, delta)`-private in the worst ways: with probability
    /// `delta` a run shows all its coins (`true`), or every coin is shown with probability `delta`,
    /// otherwise each by randomised response. With one guess in a run an attacker who sees a coin
    /// that is shown guesses that one, so its number of gifts is as large as the proposition
    /// allows; and its other guesses are more in runs without gifts, so the two are not independent.
    /// The bound may exceed epsilon in 5% of 400 audits each; more than 38 would have a probability
    /// below 1e-4.
    #[test]
    fn the_bound_holds_for_mechanisms_that_fail() {
        use soteriafl_core::random::{Purpose, SecretKey, unit};
        let (epsilon, delta) = (0.7f64, 0.002);
        let truth = 1.0 / (1.0 + (-epsilon).exp());
        let mut rng = SecretKey::simulated(5, 5).stream(0, Purpose::Sampling);
        let mut means = Vec::new();
        for (cap, together) in [(4, true), (4, false), (1, true), (1, false)] {
            let terms = Terms {
                runs: 300,
                canaries: 4,
                cap,
                sides: 2,
                expected: 300 * cap,
                delta,
                error: 0.05,
            };
            let (mut exceeded, mut sum) = (0, 0.0);
            for _ in 0..400 {
                let mut tally = Tally::default();
                for _ in 0..terms.runs {
                    let all = together && unit(&mut rng) < delta;
                    let shown = (0..terms.canaries)
                        .filter(|_| all || (!together && unit(&mut rng) < delta))
                        .count() as u64;
                    let right = (0..cap).filter(|&guess| guess < shown || unit(&mut rng) < truth);
                    tally.right += right.count() as u64;
                    tally.guesses += cap;
                }
                let bound = terms.epsilon(tally);
                exceeded += u32::from(bound > epsilon);
                sum += bound / 400.0;
            }
            assert!(exceeded <= 38, "{cap} {together}: {exceeded}");
            means.push(sum);
        }
        // Nor is it idle.
        assert!(means.iter().all(|&mean| mean > 0.3), "{means:?}");
    }

    /// The error is nearly used up, where one run has one guess: the largest share of gifts that
    /// delta allows, guesses that a run only makes sometimes, and a wrong expectation.
    #[test]
    fn the_error_is_used_and_kept() {
        use soteriafl_core::random::{Purpose, SecretKey, unit};
        let (epsilon, delta) = (0.7f64, 0.004);
        let truth = 1.0 / (1.0 + (-epsilon).exp());
        let mut rng = SecretKey::simulated(6, 6).stream(0, Purpose::Sampling);
        let terms = Terms {
            runs: 2000,
            canaries: 5,
            cap: 1,
            sides: 2,
            expected: 990,
            delta,
            error: 0.05,
        };
        let gifts = terms.gifts();
        let mut exceeded = 0;
        for _ in 0..2000 {
            let mut tally = Tally::default();
            for _ in 0..terms.runs {
                // Some coin of the five is shown; otherwise half the runs have a guess.
                let shown = unit(&mut rng) < 5.0 * delta;
                if shown || unit(&mut rng) < 0.5 {
                    tally.guesses += 1;
                    tally.right += u64::from(shown || unit(&mut rng) < truth);
                }
            }
            exceeded += u32::from(terms.rules_out(tally, epsilon, &gifts));
        }
        // 5% are 100, five standard deviations 49; at a probability of 2% more than 75 would have
        // a probability below 1e-7.
        assert!((20..=149).contains(&exceeded), "{exceeded}");
    }
}
