//! From guesses to a lower bound on epsilon (the proposition of `docs/audit.md`).
//!
//! In each of `R` independent runs a fair coin is tossed for every canary, the transcript is shown
//! to an attacker, and the attacker guesses at most `c` of the coins. If the mechanism is
//! `(epsilon, delta)`-private, the number of right guesses among `r` is at most `W + B`:
//!
//! ```text
//! W  at most Binomial(r, e^epsilon / (1 + e^epsilon)), given all transcripts
//! B  a sum over the runs of independent terms in [0, c], of mean at most
//!    (games in a run) sides delta / (2 (1 + e^epsilon))
//! ```
//!
//! `sides` is 1 where only one answer is ever guessed and 2 otherwise. `W` has an exact binomial
//! tail (Clopper and Pearson), `B` Chernoff's. No law of scores is presumed, and noise that is
//! shared by the canaries of a run is allowed.

/// What guessing came to.
#[derive(Clone, Copy, Debug, PartialEq)]
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
    /// The delta of the claim.
    pub(crate) delta: f64,
    /// The probability with which the bound may be too large.
    pub(crate) error: f64,
}

impl Terms {
    /// The share of the error that the excess `B` takes.
    const EXCESS_SHARE: f64 = 0.2;

    /// Whether so many right guesses rule out that epsilon holds.
    fn rules_out(&self, tally: Tally, epsilon: f64) -> bool {
        let excess = self.excess(epsilon);
        let right = (tally.right as f64 - excess).ceil();
        if right <= 0.0 {
            return false;
        }
        let probability = 1.0 / (1.0 + (-epsilon).exp());
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

    /// The lower bound on epsilon: the last point of a grid before the first that is not ruled
    /// out. A grid, because a bound by bisection would presume that what rules out a point rules
    /// out all below it.
    pub(crate) fn epsilon(&self, tally: Tally) -> f64 {
        const STEP: f64 = 1.0 / 512.0;
        const LARGEST: u32 = 40 * 512;
        let mut bound = 0.0;
        for point in 0..=LARGEST {
            let epsilon = f64::from(point) * STEP;
            if !self.rules_out(tally, epsilon) {
                break;
            }
            bound = epsilon;
        }
        bound
    }

    /// The same by bisection: for choosing how to guess, where nothing is concluded.
    pub(crate) fn roughly(&self, tally: Tally) -> f64 {
        let (mut low, mut high) = (0.0, 40.0);
        for _ in 0..24 {
            let middle = 0.5 * (low + high);
            if self.rules_out(tally, middle) {
                low = middle;
            } else {
                high = middle;
            }
        }
        low
    }
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
            delta,
            error: 0.05,
        }
    }

    /// Without delta it is the limit of Clopper and Pearson, at four fifths of the error.
    #[test]
    fn without_delta_it_is_the_exact_binomial_limit() {
        let tally = Tally {
            guesses: 5000,
            right: 3700,
        };
        let bound = terms(1e-300).epsilon(tally);
        let tail = |epsilon: f64| binomial_tail(5000, 3700, 1.0 / (1.0 + (-epsilon).exp()));
        // One right guess may be lost to the excess of a delta that is not quite zero.
        assert!(tail(bound) <= 0.04 && tail(bound + 0.02) > 0.03, "{bound}");
        assert!((terms(1e-300).roughly(tally) - bound).abs() < 0.01);
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

    /// A mechanism that is exactly `(epsilon, delta)`-private in the worst way: with probability
    /// `delta` it shows all coins, otherwise each by randomised response. The bound may exceed
    /// epsilon in 5% of 400 audits; more than 38 would have a probability below 1e-4.
    #[test]
    fn the_bound_holds_for_mechanisms_that_fail_all_at_once() {
        use soteriafl_core::random::{Purpose, SecretKey, unit};
        let (epsilon, delta) = (0.7f64, 0.002);
        let truth = 1.0 / (1.0 + (-epsilon).exp());
        let mut rng = SecretKey::simulated(5, 5).stream(0, Purpose::Sampling);
        let terms = Terms {
            runs: 300,
            canaries: 4,
            cap: 4,
            sides: 2,
            delta,
            error: 0.05,
        };
        let mut exceeded = 0;
        for _ in 0..400 {
            let mut tally = Tally {
                guesses: 0,
                right: 0,
            };
            for _ in 0..terms.runs {
                let fails = unit(&mut rng) < delta;
                for _ in 0..terms.canaries {
                    tally.guesses += 1;
                    tally.right += u64::from(fails || unit(&mut rng) < truth);
                }
            }
            exceeded += u32::from(terms.epsilon(tally) > epsilon);
        }
        assert!(exceeded <= 38, "{exceeded}");
    }
}
