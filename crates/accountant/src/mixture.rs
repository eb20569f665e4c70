//! Mixtures of shifts, and the pairs of normal mixtures on a line that they lead to.
//!
//! One record moves a release by a shift that depends on coins: a [`ShiftMixture`]. Proposition 2
//! of `docs/privacy.md` reduces everything to a line. In units of the noise,
//! `P = sum_i p_i N(r_i, 1)` stands against `Q = sum_j w_j N(-t_j, 1)` with all `r_i, t_j >= 0`.
//! The loss `L(y) = ln P(y)/Q(y)` increases in `y`, so every level has one root. Both adjacencies
//! and both directions have this form:
//!
//! | | P | Q |
//! | --- | --- | --- |
//! | zero-out, record present first | the mixture | `N(0, 1)` |
//! | zero-out, record absent first (mirrored) | `N(0, 1)` | the mixture |
//! | replace-one (symmetric) | the mixture | the mixture |

use crate::adjacency::Adjacency;
use crate::error::{AccountError, EventError, check_positive, check_range};
use crate::normal;

/// How far one record can move the estimate (Euclidean norm), with which probability: shifts
/// strictly ascending, probabilities positive with a sum of one.
#[derive(Clone, Debug, PartialEq)]
pub struct ShiftMixture {
    parts: Vec<(f64, f64)>,
}

impl ShiftMixture {
    /// How far the given probabilities may be from summing to one.
    const SUM_TOLERANCE: f64 = 1e-9;

    /// A checked mixture, shifts ascending, equal shifts merged, impossible ones dropped.
    ///
    /// A sum that misses one by rounding is repaired in the safe direction: a deficit goes to the
    /// largest shift, an excess is taken off the smallest shifts.
    ///
    /// # Errors
    /// Lengths that differ or are zero, a shift that is negative or not finite, a probability
    /// outside `[0, 1]`, a sum further than 1e-9 from one.
    pub fn new(shifts: &[f64], probabilities: &[f64]) -> Result<Self, EventError> {
        if shifts.is_empty() || shifts.len() != probabilities.len() {
            return Err(EventError::Length {
                shifts: shifts.len(),
                probabilities: probabilities.len(),
            });
        }
        for &value in shifts {
            let holds = value >= 0.0 && value.is_finite();
            check_range("a shift", "[0, infinity)", value, holds)?;
        }
        for &value in probabilities {
            let holds = (0.0..=1.0).contains(&value);
            check_range("a probability", "[0, 1]", value, holds)?;
        }
        let sum: f64 = probabilities.iter().sum();
        if (sum - 1.0).abs() > Self::SUM_TOLERANCE {
            return Err(EventError::ProbabilitySum { sum });
        }
        let parts = shifts.iter().copied().zip(probabilities.iter().copied());
        let mut parts: Vec<(f64, f64)> = parts.collect();
        parts.sort_by(|left, right| left.0.total_cmp(&right.0));
        repair_sum(&mut parts);
        parts.retain(|part| part.1 > 0.0);
        Ok(Self::merged(parts))
    }

    /// One shift that happens in every round.
    ///
    /// # Errors
    /// A shift that is negative or not finite.
    pub fn certain(shift: f64) -> Result<Self, EventError> {
        Self::new(&[shift], &[1.0])
    }

    /// No shift at all.
    pub(crate) fn null() -> Self {
        ShiftMixture {
            parts: vec![(0.0, 1.0)],
        }
    }

    /// Ascending parts, equal shifts made one.
    fn merged(mut parts: Vec<(f64, f64)>) -> Self {
        parts.dedup_by(|next, kept| {
            let same = next.0 == kept.0;
            kept.1 += if same { next.1 } else { 0.0 };
            same
        });
        ShiftMixture { parts }
    }

    /// Shift and probability, shifts strictly ascending.
    #[must_use]
    pub fn parts(&self) -> &[(f64, f64)] {
        &self.parts
    }

    /// The largest shift.
    #[must_use]
    pub fn largest(&self) -> f64 {
        self.parts.last().map_or(0.0, |part| part.0)
    }

    /// The same in units of the noise.
    ///
    /// # Errors
    /// A `sigma` that is not finite and positive, or so small that the shifts overflow.
    pub(crate) fn over(&self, sigma: f64) -> Result<Self, AccountError> {
        check_positive("sigma", sigma)?;
        let ratio = self.largest() / sigma;
        if !ratio.is_finite() {
            let largest = f64::MAX;
            return Err(AccountError::NoiseTooSmall { ratio, largest });
        }
        let parts = self.parts.iter();
        Ok(Self::merged(
            parts.map(|&(shift, p)| (shift / sigma, p)).collect(),
        ))
    }

    /// All shifts times `factor`.
    pub(crate) fn scaled(&self, factor: f64) -> Self {
        let parts = self.parts.iter();
        ShiftMixture {
            parts: parts.map(|&(shift, p)| (shift * factor, p)).collect(),
        }
    }

    /// One shift only.
    pub(crate) fn is_single(&self) -> bool {
        self.parts.len() == 1
    }

    /// A single shift, or nothing with probability `1 - q` and one shift with probability `q`.
    pub(crate) fn is_subsampled(&self) -> bool {
        match self.parts[..] {
            [_] => true,
            [low, _] => low.0 == 0.0,
            _ => false,
        }
    }

    /// The shifts that move something.
    pub(crate) fn moving(&self) -> impl Iterator<Item = (f64, f64)> + '_ {
        self.parts.iter().copied().filter(|part| part.0 > 0.0)
    }

    /// The mean of `term(shift)`.
    pub(crate) fn mean(&self, term: impl Fn(f64) -> f64) -> f64 {
        let parts = self.parts.iter();
        parts.map(|&(shift, p)| p * term(shift)).sum()
    }

    /// `ln` of the mixture's density at `y` over that of `N(0, 1)`, for integrals that need no
    /// slope.
    pub(crate) fn log_density(&self, y: f64) -> f64 {
        let exponent = |shift: f64| shift * (y - 0.5 * shift);
        if let [(only, _)] = self.parts[..] {
            return exponent(only);
        }
        let exponents = self.parts.iter().map(|part| exponent(part.0));
        let largest = exponents.fold(f64::NEG_INFINITY, f64::max);
        if largest < 1.0 {
            // Relative to one: shifts far below the noise must not drown in the rounding of 1.
            self.mean(|shift| exponent(shift).exp_m1()).ln_1p()
        } else {
            largest + self.mean(|shift| (exponent(shift) - largest).exp()).ln()
        }
    }

    /// The same with its derivative, the mean shift given `y`.
    ///
    /// The smallest shift is factored out and the rest enters through `expm1`, so that a rate of
    /// 1e-6 keeps all its digits in the slope as well.
    fn log_density_and_slope(&self, y: f64) -> (f64, f64) {
        const LARGE: f64 = 30.0;
        let base = self.parts[0].0;
        let log_base = base * (y - 0.5 * base);
        if self.parts.len() == 1 {
            return (log_base, base);
        }
        let exponent = |shift: f64| (shift - base) * (y - 0.5 * (shift + base));
        // Exponents are convex in the shift's rank but not monotone: take the true maximum.
        let exponents = self.parts.iter().map(|part| exponent(part.0));
        let peak = exponents.fold(0.0_f64, f64::max);
        let (mut excess, mut total, mut moment) = (0.0, 0.0, 0.0);
        for &(shift, probability) in &self.parts {
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

/// Moves what is missing from a sum of one to the largest shift, takes what is too much off the
/// smallest: both can only raise the cost.
fn repair_sum(parts: &mut [(f64, f64)]) {
    let mut excess = parts.iter().map(|part| part.1).sum::<f64>() - 1.0;
    if excess < 0.0 {
        if let Some(last) = parts.last_mut() {
            last.1 -= excess;
        }
        return;
    }
    for part in parts {
        let taken = excess.min(part.1);
        part.1 -= taken;
        excess -= taken;
    }
}

/// `P`, shifted up by one mixture, against `Q`, shifted down by another; in units of the noise.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MixturePair {
    /// The shifts of `P`.
    pub(crate) up: ShiftMixture,
    /// The shifts of `Q`, downwards.
    pub(crate) down: ShiftMixture,
}

/// The loss at one point, its slope, and the log density of `P` up to a constant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Point {
    pub(crate) loss: f64,
    pub(crate) slope: f64,
    pub(crate) log_density: f64,
}

impl MixturePair {
    /// The pairs whose worst one is the cost under `adjacency`, one per direction that is not the
    /// mirror of another; the first has the record in `P`.
    pub(crate) fn directions(mixture: &ShiftMixture, adjacency: Adjacency) -> Vec<Self> {
        let pair = |up: &ShiftMixture, down: &ShiftMixture| MixturePair {
            up: up.clone(),
            down: down.clone(),
        };
        let null = ShiftMixture::null();
        match adjacency {
            Adjacency::ReplaceOne => vec![pair(mixture, mixture)],
            Adjacency::ZeroOut => vec![pair(mixture, &null), pair(&null, mixture)],
        }
    }

    /// All shifts times `factor`.
    pub(crate) fn scaled(&self, factor: f64) -> Self {
        MixturePair {
            up: self.up.scaled(factor),
            down: self.down.scaled(factor),
        }
    }

    /// Loss, slope and density at `y`.
    pub(crate) fn at(&self, y: f64) -> Point {
        let (log_up, mean_up) = self.up.log_density_and_slope(y);
        let (log_down, mean_down) = self.down.log_density_and_slope(-y);
        Point {
            loss: log_up - log_down,
            slope: mean_up + mean_down,
            log_density: log_up - 0.5 * y * y,
        }
    }

    /// The loss alone, at half the price of [`Self::at`] and equal to its loss up to rounding.
    pub(crate) fn loss(&self, y: f64) -> f64 {
        self.up.log_density(y) - self.down.log_density(-y)
    }

    /// `P(y > point)`.
    pub(crate) fn mass_above(&self, point: f64) -> f64 {
        self.up.mean(|shift| normal::upper_tail(point - shift))
    }

    /// `P(y <= point)`.
    pub(crate) fn mass_below(&self, point: f64) -> f64 {
        self.up.mean(|shift| normal::upper_tail(shift - point))
    }

    /// `Q(y > point)`.
    pub(crate) fn other_mass_above(&self, point: f64) -> f64 {
        self.down.mean(|shift| normal::upper_tail(point + shift))
    }

    /// `Q(y <= point)`.
    pub(crate) fn other_mass_below(&self, point: f64) -> f64 {
        self.down.mean(|shift| normal::upper_tail(-point - shift))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mixture() -> ShiftMixture {
        ShiftMixture::new(&[0.2, 1.4, 4.0], &[0.9, 0.07, 0.03]).unwrap()
    }

    #[test]
    fn mixtures_are_checked_and_repaired_upwards() {
        let bad: [(&[f64], &[f64]); 8] = [
            (&[], &[]),
            (&[1.0], &[0.5, 0.5]),
            (&[1.0], &[0.9]),
            (&[1.0, 2.0], &[0.5, 0.6]),
            (&[-1.0], &[1.0]),
            (&[f64::NAN], &[1.0]),
            (&[1.0, 2.0], &[1.5, -0.5]),
            (&[1.0], &[f64::NAN]),
        ];
        for (shifts, probabilities) in bad {
            assert!(ShiftMixture::new(shifts, probabilities).is_err());
        }
        let deficit = ShiftMixture::new(&[2.0, 0.0], &[0.25, 0.75 - 1e-10]).unwrap();
        assert_eq!([deficit.parts()[0].0, deficit.parts()[1].0], [0.0, 2.0]);
        assert!((deficit.parts()[1].1 - (0.25 + 1e-10)).abs() < 1e-15);
        let excess = ShiftMixture::new(&[0.0, 2.0], &[0.75 + 1e-10, 0.25]).unwrap();
        assert!((excess.parts()[0].1 - 0.75).abs() < 1e-15);
        let merged = ShiftMixture::new(&[1.0, 1.0, 3.0], &[0.5, 0.5, 0.0]).unwrap();
        assert_eq!(merged, ShiftMixture::certain(1.0).unwrap());
    }

    #[test]
    fn noise_is_checked_where_it_enters() {
        for sigma in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(mixture().over(sigma).is_err(), "{sigma}");
        }
        let overflow = mixture().over(f64::MIN_POSITIVE / 8.0);
        assert!(matches!(overflow, Err(AccountError::NoiseTooSmall { .. })));
        assert_eq!(mixture().over(2.0).unwrap(), mixture().scaled(0.5));
    }

    fn naive(pair: &MixturePair, y: f64) -> f64 {
        let sum = |mixture: &ShiftMixture, sign: f64| {
            mixture.mean(|shift| (-0.5 * (y - sign * shift).powi(2)).exp())
        };
        (sum(&pair.up, 1.0) / sum(&pair.down, -1.0)).ln()
    }

    #[test]
    fn loss_and_slope_match_the_definition() {
        for &adjacency in Adjacency::ALL {
            for pair in MixturePair::directions(&mixture(), adjacency) {
                for y in [-6.0, -1.0, 0.0, 0.3, 2.0, 7.0, 12.0] {
                    let point = pair.at(y);
                    assert!((point.loss - naive(&pair, y)).abs() < 1e-10);
                    assert!((point.loss - pair.loss(y)).abs() < 1e-13 * (1.0 + point.loss.abs()));
                    let slope = (pair.at(y + 1e-5).loss - pair.at(y - 1e-5).loss) / 2e-5;
                    assert!((point.slope - slope).abs() < 1e-6, "{y}");
                }
            }
        }
    }

    #[test]
    fn far_points_stay_finite() {
        let shifts = ShiftMixture::new(&[0.0, 200.0], &[1.0 - 1e-6, 1e-6]).unwrap();
        for pair in MixturePair::directions(&shifts, Adjacency::ReplaceOne) {
            for y in [-300.0, -200.0, 0.0, 200.0, 300.0] {
                let point = pair.at(y);
                assert!(point.loss.is_finite() && point.slope >= 0.0);
            }
        }
    }
}
