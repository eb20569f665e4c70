//! The pair of one-dimensional laws that dominates a round, and its privacy loss.
//!
//! In units of the noise, `P = sum_i p_i N(r_i, 1)` and `Q = sum_j w_j N(-t_j, 1)` with all
//! `r_i, t_j >= 0`. The loss `L(y) = ln P(y)/Q(y)` is increasing in `y`, so every level has one
//! root. Both adjacencies and both directions have this form:
//!
//! | | P | Q |
//! | --- | --- | --- |
//! | zero-out, record present first | the mixture | `N(0, 1)` |
//! | zero-out, record absent first (mirrored) | `N(0, 1)` | the mixture |
//! | replace-one (symmetric) | the mixture | the mixture |

use crate::event::{Adjacency, Release};
use crate::normal;

/// Shifts in units of the noise, strictly ascending, with positive probabilities.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Mixture {
    shifts: Vec<f64>,
    probabilities: Vec<f64>,
}

/// `P` shifted up by one mixture against `Q` shifted down by another.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Pair {
    up: Mixture,
    down: Mixture,
}

/// The loss at one point, its slope, and the log density of `P` up to a constant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Point {
    pub(crate) loss: f64,
    pub(crate) slope: f64,
    pub(crate) log_density: f64,
}

/// How much of the largest losses may be counted as infinite.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cutoff {
    /// What giving up may add to delta in one round.
    pub(crate) tail: f64,
    /// An epsilon not below the one in question, or infinity: a loss `l` that is given up adds
    /// only its `exp(epsilon - l)`.
    pub(crate) epsilon: f64,
}

/// Normal tails at one point: positive the upper tail, negative minus the lower one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cut {
    tails: Vec<f64>,
}

impl Pair {
    /// The pairs whose worst one is the cost of `release`.
    pub(crate) fn of(release: &Release, adjacency: Adjacency) -> Vec<Pair> {
        let mixture = Mixture {
            shifts: release
                .shifts
                .shifts()
                .iter()
                .map(|shift| shift / release.sigma)
                .collect(),
            probabilities: release.shifts.probabilities().to_vec(),
        };
        Self::of_mixture(mixture, adjacency)
    }

    /// A certain shift, in units of the noise.
    pub(crate) fn certain(shift: f64, adjacency: Adjacency) -> Vec<Pair> {
        let mixture = Mixture {
            shifts: vec![shift],
            probabilities: vec![1.0],
        };
        Self::of_mixture(mixture, adjacency)
    }

    fn of_mixture(mixture: Mixture, adjacency: Adjacency) -> Vec<Pair> {
        let still = Mixture {
            shifts: vec![0.0],
            probabilities: vec![1.0],
        };
        match adjacency {
            Adjacency::ReplaceOne => vec![Pair {
                up: mixture.clone(),
                down: mixture,
            }],
            Adjacency::ZeroOut => vec![
                Pair {
                    up: mixture.clone(),
                    down: still.clone(),
                },
                Pair {
                    up: still,
                    down: mixture,
                },
            ],
        }
    }

    /// Total variation distance: delta of one round at epsilon zero.
    pub(crate) fn total_variation(&self) -> f64 {
        let (mut low, mut high) = (-40.0, self.up.largest() + 40.0);
        for _ in 0..60 {
            let middle = 0.5 * (low + high);
            if self.at(middle).loss > 0.0 {
                high = middle;
            } else {
                low = middle;
            }
        }
        self.mass_above(high) - self.down.sum(|shift| normal::upper_tail(high + shift))
    }

    /// Distance over which everything smooth about the pair changes: its largest slope, plus what
    /// the normal density itself does within its tails.
    pub(crate) fn roughness(&self) -> f64 {
        10.0 + 2.0 * (self.up.largest() + self.down.largest())
    }

    /// The largest shift of either side.
    pub(crate) fn largest_shift(&self) -> f64 {
        self.up.largest().max(self.down.largest())
    }

    pub(crate) fn at(&self, y: f64) -> Point {
        let (log_up, mean_up) = self.up.log_ratio(y);
        let (log_down, mean_down) = self.down.log_ratio(-y);
        Point {
            loss: log_up - log_down,
            slope: mean_up + mean_down,
            log_density: log_up - 0.5 * y * y,
        }
    }

    /// `P(low < y <= high)`.
    pub(crate) fn mass(&self, low: f64, high: f64) -> f64 {
        self.up
            .sum(|shift| normal::between(low - shift, high - shift))
    }

    /// Moves a cut to `point`; neighbouring cells share one.
    pub(crate) fn cut_at(&self, point: f64, cut: &mut Cut) {
        cut.tails.clear();
        for shift in &self.up.shifts {
            let distance = point - shift;
            let tail = normal::upper_tail(distance.abs());
            cut.tails.push(if distance < 0.0 { -tail } else { tail });
        }
    }

    /// The mass between two cuts. Tails telescope, so the cells of a partition lose nothing.
    pub(crate) fn mass_between(&self, low: &Cut, high: &Cut) -> f64 {
        let mut mass = 0.0;
        for (part, probability) in self.up.probabilities.iter().enumerate() {
            let (from, to) = (low.tails[part], high.tails[part]);
            // Both above the shift: upper tails; both below: lower tails, stored negative.
            let same_side = from.is_sign_negative() == to.is_sign_negative();
            let between = if same_side {
                from - to
            } else {
                1.0 - to + from
            };
            mass += probability * between;
        }
        mass
    }

    /// `P(y > point)`.
    pub(crate) fn mass_above(&self, point: f64) -> f64 {
        self.up.sum(|shift| normal::upper_tail(point - shift))
    }

    /// `P(y <= point)`.
    pub(crate) fn mass_below(&self, point: f64) -> f64 {
        self.up.sum(|shift| normal::upper_tail(shift - point))
    }

    /// `Q(y <= point)`.
    #[cfg(test)]
    pub(crate) fn other_mass_below(&self, point: f64) -> f64 {
        self.down.sum(|shift| normal::upper_tail(-point - shift))
    }

    /// The lowest point, nearly, above which giving everything up costs at most `cutoff.tail`: the
    /// probability under `P`, or that under `Q` times `exp(epsilon)`.
    pub(crate) fn upper_cut(&self, cutoff: Cutoff) -> f64 {
        let weight = cutoff.epsilon.exp();
        let cost = |point: f64| {
            let under_q = self.down.sum(|shift| normal::upper_tail(point + shift));
            self.mass_above(point).min(weight * under_q)
        };
        let (mut low, mut high) = (-40.0, self.up.largest() + 40.0);
        for _ in 0..40 {
            let middle = 0.5 * (low + high);
            // Not a number is infinity times zero: the probability under `P` decides.
            if cost(middle) > cutoff.tail {
                low = middle;
            } else {
                high = middle;
            }
        }
        high
    }

    /// A point with at most `tail` of `P` below it, and hardly less.
    pub(crate) fn lower_cut(&self, tail: f64) -> f64 {
        let (mut low, mut high) = (-40.0, self.up.largest());
        for _ in 0..40 {
            let middle = 0.5 * (low + high);
            if self.mass_below(middle) > tail {
                high = middle;
            } else {
                low = middle;
            }
        }
        low
    }
}

impl Mixture {
    fn largest(&self) -> f64 {
        self.shifts.last().copied().unwrap_or(0.0)
    }

    fn sum(&self, term: impl Fn(f64) -> f64) -> f64 {
        self.shifts
            .iter()
            .zip(&self.probabilities)
            .map(|(&shift, &probability)| probability * term(shift))
            .sum()
    }

    /// `ln sum_i p_i exp(s_i y - s_i^2/2)`, the log density against `N(0, 1)`, and its derivative.
    ///
    /// The smallest shift is factored out and the rest enters through `expm1`, so that a rate of
    /// 1e-6 keeps all its digits.
    fn log_ratio(&self, y: f64) -> (f64, f64) {
        const LARGE: f64 = 30.0;
        let base = self.shifts[0];
        let log_base = base * (y - 0.5 * base);
        if self.shifts.len() == 1 {
            return (log_base, base);
        }
        let exponent = |shift: f64| (shift - base) * (y - 0.5 * (shift + base));
        // Exponents are convex in the shift's rank but not monotone: take the true maximum.
        let peak = self
            .shifts
            .iter()
            .fold(0.0_f64, |peak, &shift| peak.max(exponent(shift)));
        let (mut excess, mut total, mut moment) = (0.0, 0.0, 0.0);
        for (&shift, &probability) in self.shifts.iter().zip(&self.probabilities) {
            let weight = if peak < LARGE {
                let beyond = exponent(shift).exp_m1();
                excess += probability * beyond;
                1.0 + beyond
            } else {
                (exponent(shift) - peak).exp()
            };
            total += probability * weight;
            moment += probability * weight * (shift - base);
        }
        let log_sum = if peak >= LARGE {
            peak + total.ln()
        } else if excess > -0.5 {
            excess.ln_1p()
        } else {
            total.ln()
        };
        (log_base + log_sum, base + moment / total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::ShiftMixture;

    fn release() -> Release {
        let shifts = ShiftMixture::new(vec![0.1, 0.7, 2.0], vec![0.9, 0.07, 0.03]).unwrap();
        Release::new(shifts, 0.5).unwrap()
    }

    fn naive(pair: &Pair, y: f64) -> f64 {
        let sum = |mixture: &Mixture, sign: f64| {
            mixture.sum(|shift| (-0.5 * (y - sign * shift).powi(2)).exp())
        };
        (sum(&pair.up, 1.0) / sum(&pair.down, -1.0)).ln()
    }

    #[test]
    fn loss_and_slope_match_the_definition() {
        for adjacency in [Adjacency::ZeroOut, Adjacency::ReplaceOne] {
            for pair in Pair::of(&release(), adjacency) {
                for y in [-6.0, -1.0, 0.0, 0.3, 2.0, 7.0, 12.0] {
                    let point = pair.at(y);
                    assert!((point.loss - naive(&pair, y)).abs() < 1e-10);
                    let slope = (pair.at(y + 1e-5).loss - pair.at(y - 1e-5).loss) / 2e-5;
                    assert!((point.slope - slope).abs() < 1e-6, "{y}");
                }
            }
        }
    }

    #[test]
    fn far_points_stay_finite() {
        let shifts = ShiftMixture::new(vec![0.0, 1.0], vec![1.0 - 1e-6, 1e-6]).unwrap();
        let release = Release::new(shifts, 0.005).unwrap();
        for pair in Pair::of(&release, Adjacency::ReplaceOne) {
            for y in [-300.0, -200.0, 0.0, 200.0, 300.0] {
                let point = pair.at(y);
                assert!(point.loss.is_finite() && point.slope >= 0.0);
            }
        }
    }

    #[test]
    fn cuts_leave_the_promised_tail() {
        for pair in Pair::of(&release(), Adjacency::ZeroOut) {
            for tail in [1e-5, 1e-20, 1e-40] {
                let epsilon = f64::INFINITY;
                let cut = pair.upper_cut(Cutoff { tail, epsilon });
                let above = pair.mass_above(cut);
                assert!(above <= tail && above > 0.99 * tail);
                let near = pair.upper_cut(Cutoff { tail, epsilon: 0.0 });
                assert!(near <= cut && pair.at(near).loss > 0.0);
                let below = pair.mass_below(pair.lower_cut(tail));
                assert!(below <= tail && below > 0.99 * tail);
            }
        }
    }
}
