//! The likelihood ratio of one canary, over all rounds of a transcript, coordinates known.
//!
//! In every round the attacker sees `z = shift + N(0, 1)` (in units of the noise) in the canary's
//! direction, if any of its coordinates travel. With `K` copies of the canary, each with a coin of
//! its own, the shift is
//!
//! ```text
//! GD, SGD     j hit                              j coins fell, of K
//! recursive   j hit                              the hit by the round's kind: whole or increment
//! SVRG        j hit + K reference
//! SAGA        j hit + (u low + (K - u) high)     j of the u copies not visited since the start
//! SAG         j hit + (K - u) mean + i again     i of the K - u copies visited before
//! ```
//!
//! The coins are never seen. They are summed out exactly: for SAGA and SAG by a forward filter over
//! `u`, for the others round by round. The score is `ln` of the probability of the transcript with the
//! canary over that with the other answer.

use super::canaries::Answer;

/// What a round adds, in units of the noise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RoundShifts {
    /// Sign of the server's choice: what is seen is multiplied by it.
    pub(crate) sign: f64,
    /// By every copy that is sampled (SAGA, SAG: and was not visited before).
    pub(crate) hit: f64,
    /// By every copy that SAGA has not visited since the start, or that SVRG holds.
    pub(crate) unvisited: f64,
    /// By every copy that SAGA or SAG has visited.
    pub(crate) visited: f64,
    /// By every copy that was visited before and is sampled again (SAG).
    pub(crate) again: f64,
    /// The noise of the round, in units of sigma.
    pub(crate) noise: f64,
}

/// What the attacker knows of the mechanism.
#[derive(Clone, Debug)]
pub(crate) struct Attack {
    /// Probability of a coin.
    pub(crate) rate: f64,
    /// Copies of a canary.
    pub(crate) copies: usize,
    /// Whether the first visit of a copy is another one than the next (SAGA, SAG).
    pub(crate) remembers: bool,
    /// What stands in a canary's place otherwise.
    pub(crate) other: Answer,
    /// `choices[n][j]`: probability of `j` heads among `n` coins.
    choices: Vec<Vec<f64>>,
}

/// What the attacker has gathered about one canary.
#[derive(Clone, Debug)]
pub(crate) struct Belief {
    score: f64,
    /// What of the likelihood ratio is not in `score` yet: a product, because a logarithm in every
    /// round would take longer than all the rest.
    ratio: f64,
    /// SAGA, SAG: the law of the number of unvisited copies, under both answers.
    present: Vec<f64>,
    opposite: Vec<f64>,
}

impl Attack {
    pub(crate) fn new(rate: f64, copies: usize, remembers: bool, other: Answer) -> Self {
        Self {
            rate,
            copies,
            remembers,
            other,
            choices: (0..=copies).map(|coins| binomial(coins, rate)).collect(),
        }
    }

    /// Whether scores are sums of what is seen: no coins.
    pub(crate) fn is_linear(&self) -> bool {
        self.rate >= 1.0 && !self.remembers
    }

    pub(crate) fn belief(&self) -> Belief {
        let states = if self.remembers { self.copies + 1 } else { 0 };
        let mut start = vec![0.0; states];
        if let Some(all) = start.last_mut() {
            *all = 1.0;
        }
        Belief {
            score: 0.0,
            ratio: 1.0,
            present: start.clone(),
            opposite: start,
        }
    }

    /// The shift between the two answers' means, per unit of what is seen, without coins.
    fn certain(&self, shifts: RoundShifts) -> f64 {
        self.copies as f64 * (shifts.hit + shifts.unvisited)
    }

    /// Without coins: what one unit of what is seen, turned by the sign, adds to the score.
    fn slope(&self, shifts: RoundShifts) -> f64 {
        let times = match self.other {
            Answer::Opposite => 2.0,
            _ => 1.0,
        };
        times * self.certain(shifts)
    }

    /// Without coins: adds to the scores of the canaries of a block what a round says, of which
    /// `count` coordinates travelled and gave these sums.
    pub(crate) fn add_up(&self, scores: &mut [f64], shifts: RoundShifts, sums: &[f32], count: u32) {
        if count == 0 {
            return;
        }
        let slope = self.slope(shifts) * shifts.sign;
        let (slope, start) = (slope / f64::from(count).sqrt(), slope * self.mean(shifts));
        for (score, &sum) in scores.iter_mut().zip(sums) {
            *score += slope * f64::from(sum) - start;
        }
    }

    /// The mean shift of a canary that is there with probability one half.
    pub(crate) fn mean(&self, shifts: RoundShifts) -> f64 {
        match self.other {
            Answer::Null if self.is_linear() => 0.5 * shifts.sign * self.certain(shifts),
            _ => 0.0,
        }
    }

    /// Learns from one round; `seen` is `None` where nothing of the canary travelled. Without coins
    /// `seen` has [`mean`](Self::mean) subtracted.
    pub(crate) fn observe(&self, belief: &mut Belief, shifts: RoundShifts, seen: Option<f64>) {
        let seen = seen.map(|z| z * shifts.sign);
        if self.is_linear() {
            belief.score += seen.map_or(0.0, |z| self.slope(shifts) * z);
            return;
        }
        if !self.remembers && self.copies == 1 {
            if let Some(z) = seen {
                self.observe_single(belief, shifts, z);
            }
            return;
        }
        if !self.remembers {
            let Some(z) = seen else { return };
            belief.score += self.log_mixture(self.copies, shifts, z);
            if self.other == Answer::Opposite {
                belief.score -= self.log_mixture(self.copies, shifts, -z);
            }
            return;
        }
        belief.score += self.filter(&mut belief.present, shifts, seen);
        if self.other == Answer::Opposite {
            belief.score -= self.filter(&mut belief.opposite, shifts, seen.map(|z| -z));
        }
    }

    /// One copy, one coin, nothing remembered: two exponentials with one argument.
    fn observe_single(&self, belief: &mut Belief, shifts: RoundShifts, z: f64) {
        /// Of a product; one more factor, at most `e^500`, is a number still.
        const LARGEST: f64 = 1e80;
        let (base, hit) = (shifts.unvisited, shifts.hit);
        // Under the present answer: e^(base z - base^2/2) (1 - q + q e^(hit (z - base) - hit^2/2)).
        let exponent = hit * (z - base) - 0.5 * hit * hit;
        if exponent.abs() > 300.0 {
            belief.score += self.log_mixture(1, shifts, z);
            if self.other == Answer::Opposite {
                belief.score -= self.log_mixture(1, shifts, -z);
            }
            return;
        }
        let above = exponent.exp();
        let mut ratio = 1.0 - self.rate + self.rate * above;
        if self.other == Answer::Opposite {
            // The same with -z.
            let below = (-hit * (z + base) - 0.5 * hit * hit).exp();
            ratio /= 1.0 - self.rate + self.rate * below;
            belief.score += 2.0 * base * z;
        } else {
            belief.score += base * (z - 0.5 * base);
        }
        belief.ratio *= ratio;
        if !(1.0 / LARGEST..LARGEST).contains(&belief.ratio) {
            belief.score += belief.ratio.ln();
            belief.ratio = 1.0;
        }
    }

    /// Adds a likelihood ratio that something else than a round has.
    pub(crate) fn add(belief: &mut Belief, log_ratio: f64) {
        belief.score += log_ratio;
    }

    pub(crate) fn score(belief: &Belief) -> f64 {
        belief.score + belief.ratio.ln()
    }

    /// `ln sum_j p_j e^{a_j z - a_j^2/2}` over the coins of `coins` copies, all in one state.
    fn log_mixture(&self, coins: usize, shifts: RoundShifts, z: f64) -> f64 {
        let base = coins as f64 * shifts.unvisited;
        let law = &self.choices[coins];
        let exponent = |j: usize| {
            let shift = base + j as f64 * shifts.hit;
            shift * (z - 0.5 * shift)
        };
        let largest = (0..law.len()).map(exponent).fold(f64::MIN, f64::max);
        let terms = law.iter().enumerate();
        let sum: f64 = terms.map(|(j, p)| p * (exponent(j) - largest).exp()).sum();
        largest + sum.ln()
    }

    /// One step of the forward filter; returns the log probability of what is seen, over that under
    /// `N(0, 1)`.
    fn filter(&self, law: &mut [f64], shifts: RoundShifts, seen: Option<f64>) -> f64 {
        let copies = self.copies;
        // How many of the visited ones are sampled again matters to SAG alone.
        let most_again = |unvisited: usize| match shifts.again == 0.0 {
            true => 0,
            false => copies - unvisited,
        };
        let exponent = |unvisited: usize, hits: usize, again: usize| {
            let u = unvisited as f64;
            let shift = u * shifts.unvisited
                + (copies as f64 - u) * shifts.visited
                + hits as f64 * shifts.hit
                + again as f64 * shifts.again;
            seen.map_or(0.0, |z| shift * (z - 0.5 * shift))
        };
        let ways = || {
            let pairs = (0..law.len()).flat_map(|u| (0..=u).map(move |j| (u, j)));
            pairs.flat_map(|(u, j)| (0..=most_again(u)).map(move |i| (u, j, i)))
        };
        let largest = ways()
            .map(|(u, j, i)| exponent(u, j, i))
            .fold(f64::MIN, f64::max);
        let mut next = vec![0.0; law.len()];
        for (u, j, i) in ways() {
            let again = match most_again(u) {
                0 => 1.0,
                visited => self.choices[visited][i],
            };
            let likely = (exponent(u, j, i) - largest).exp();
            next[u - j] += law[u] * self.choices[u][j] * again * likely;
        }
        let total: f64 = next.iter().sum();
        for (law, next) in law.iter_mut().zip(next) {
            *law = next / total;
        }
        largest + total.ln()
    }
}

/// The binomial law, by convolution.
pub(crate) fn binomial(coins: usize, rate: f64) -> Vec<f64> {
    let mut law = vec![1.0];
    for _ in 0..coins {
        let mut next = vec![0.0; law.len() + 1];
        for (heads, &probability) in law.iter().enumerate() {
            next[heads] += (1.0 - rate) * probability;
            next[heads + 1] += rate * probability;
        }
        law = next;
    }
    law
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHIFTS: RoundShifts = RoundShifts {
        sign: -1.0,
        hit: 0.9,
        unvisited: 0.3,
        visited: 0.5,
        again: 0.6,
        noise: 1.0,
    };

    fn density(z: f64, shift: f64) -> f64 {
        (-0.5 * (z - shift).powi(2)).exp()
    }

    /// All coins of all rounds written out: 2^(K T) terms.
    fn brute(attack: &Attack, shifts: RoundShifts, seen: &[Option<f64>], sign: f64) -> f64 {
        let (copies, rounds) = (attack.copies, seen.len());
        let mut total = 0.0;
        for coins in 0..1u32 << (copies * rounds) {
            let mut weight = 1.0;
            let mut visited = vec![false; copies];
            for (round, z) in seen.iter().enumerate() {
                let mut shift = 0.0;
                for (copy, visited) in visited.iter_mut().enumerate() {
                    let falls = coins >> (round * copies + copy) & 1 == 1;
                    weight *= if falls {
                        attack.rate
                    } else {
                        1.0 - attack.rate
                    };
                    let was = attack.remembers && *visited;
                    shift += match was {
                        true => shifts.visited,
                        false => shifts.unvisited,
                    };
                    shift += match (falls, was) {
                        (true, false) => shifts.hit,
                        (true, true) => shifts.again,
                        (false, _) => 0.0,
                    };
                    *visited |= falls;
                }
                if let Some(z) = z {
                    weight *= density(z * shifts.sign, sign * shift);
                }
            }
            total += weight;
        }
        total
    }

    #[test]
    fn scores_are_the_likelihood_ratio_with_all_coins_summed_out() {
        let seen = [Some(0.4), None, Some(-1.7), Some(2.2)];
        for (copies, again) in [(1, 0.0), (2, 0.0), (3, 0.0), (1, 0.6), (2, 0.6), (3, 0.6)] {
            let shifts = RoundShifts { again, ..SHIFTS };
            for remembers in [false, true] {
                for other in [Answer::Null, Answer::Opposite] {
                    let attack = Attack::new(0.3, copies, remembers, other);
                    let mut belief = attack.belief();
                    for z in seen {
                        attack.observe(&mut belief, shifts, z);
                    }
                    let below = match other {
                        Answer::Opposite => brute(&attack, shifts, &seen, -1.0),
                        _ => seen.iter().flatten().map(|z| density(*z, 0.0)).product(),
                    };
                    let expected = (brute(&attack, shifts, &seen, 1.0) / below).ln();
                    let found = Attack::score(&belief);
                    assert!(
                        (found - expected).abs() < 1e-9,
                        "{copies} {again} {remembers} {other:?}: {found} instead of {expected}"
                    );
                }
            }
        }
    }

    /// The product of ratios is that of mixtures, also far out, where it leaves the numbers.
    #[test]
    fn products_are_sums_of_logarithms() {
        for other in [Answer::Null, Answer::Opposite] {
            let attack = Attack::new(0.01, 1, false, other);
            for base in [0.0, 0.3] {
                let shifts = RoundShifts {
                    unvisited: base,
                    ..SHIFTS
                };
                let (mut belief, mut expected) = (attack.belief(), 0.0);
                for round in 0..400 {
                    let z = f64::from(round - 200) * if round % 97 == 0 { 9.0 } else { 0.05 };
                    attack.observe(&mut belief, shifts, Some(z));
                    let z = z * shifts.sign;
                    expected += attack.log_mixture(1, shifts, z);
                    if other == Answer::Opposite {
                        expected -= attack.log_mixture(1, shifts, -z);
                    }
                }
                let found = Attack::score(&belief);
                assert!((found - expected).abs() < 1e-8, "{found} {expected}");
            }
        }
    }

    /// Without coins the score of a centred message is the likelihood ratio, too.
    #[test]
    fn certain_shifts_need_no_coins() {
        for other in [Answer::Null, Answer::Opposite] {
            let attack = Attack::new(1.0, 2, false, other);
            let (z, low) = (0.7, if other == Answer::Null { 0.0 } else { -2.4 });
            let mut belief = attack.belief();
            attack.observe(&mut belief, SHIFTS, Some(z - attack.mean(SHIFTS)));
            let seen = z * SHIFTS.sign;
            let expected = (density(seen, 2.4) / density(seen, low)).ln();
            assert!((Attack::score(&belief) - expected).abs() < 1e-12);
        }
    }
}
