//! What was released, as plain data: events say what happened, accountants say what it costs.
//!
//! A client that sends one message releases `estimate + N(0, sigma^2 I)`. How far one record can
//! move the estimate, and with which probability, is a [`ShiftMixture`]; a [`Release`] adds the
//! noise and what is known about the coordinates that travel; an [`Event`] repeats a release.
//! Nothing here computes a privacy cost, and nothing is checked twice: constructors check, and an
//! accountant may rely on it.

use thiserror::Error;

/// Which two data sets count as neighbours. Every cost is stated under one of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Adjacency {
    /// One record is replaced by another (the paper's "differ by one entry").
    ReplaceOne,
    /// One record is replaced by a null record whose gradient is zero; the number of records is
    /// public and stays.
    ZeroOut,
}

/// Which vector each record's clip bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ClipScope {
    /// The record's whole gradient.
    Record,
    /// Only the coordinates that travel this round.
    Selected,
}

/// The four gradient estimators of the paper, with what their privacy depends on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Estimator {
    /// Full local gradient.
    Gd,
    /// Poisson minibatch, divided by the constant expected size.
    Sgd,
    /// SVRG; `difference_clip` bounds each record's gradient difference, `None`: both gradients
    /// are clipped and their difference is not.
    Svrg {
        /// The bound `C_A`.
        difference_clip: Option<f64>,
    },
    /// SAGA; as SVRG, with the reference gradients from its table.
    Saga {
        /// The bound `C_A`.
        difference_clip: Option<f64>,
    },
}

/// What one client does in every round, before any noise: the input of [`Mechanism::release`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mechanism {
    /// Gradient estimator.
    pub estimator: Estimator,
    /// The client's number of records `m` (public).
    pub records: u64,
    /// Expected minibatch size `b`; ignored by [`Estimator::Gd`].
    pub batch: f64,
    /// Per-record clip `G` (or `G_k` when the scope is [`ClipScope::Selected`]).
    pub clip: f64,
    /// What the clip bounds.
    pub clip_scope: ClipScope,
    /// `k/d` of random-k with coordinates drawn by the client after it has the model; `None` when
    /// all coordinates travel.
    pub rand_k: Option<f64>,
}

/// How far one record can move the estimate (Euclidean norm, gradient units), with which
/// probability. Probabilities sum to one.
#[derive(Clone, Debug, PartialEq)]
pub struct ShiftMixture {
    shifts: Vec<f64>,
    probabilities: Vec<f64>,
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
    pub fn new(shifts: Vec<f64>, probabilities: Vec<f64>) -> Result<Self, EventError> {
        if shifts.is_empty() || shifts.len() != probabilities.len() {
            return Err(EventError::Length {
                shifts: shifts.len(),
                probabilities: probabilities.len(),
            });
        }
        for &value in &shifts {
            check_range(
                "a shift",
                "[0, infinity)",
                value,
                value >= 0.0 && value.is_finite(),
            )?;
        }
        for &value in &probabilities {
            check_range(
                "a probability",
                "[0, 1]",
                value,
                (0.0..=1.0).contains(&value),
            )?;
        }
        let sum: f64 = probabilities.iter().sum();
        if (sum - 1.0).abs() > Self::SUM_TOLERANCE {
            return Err(EventError::ProbabilitySum { sum });
        }
        let mut parts: Vec<(f64, f64)> = shifts.into_iter().zip(probabilities).collect();
        parts.sort_by(|left, right| left.0.total_cmp(&right.0));
        repair_sum(&mut parts);
        let mut mixture = ShiftMixture {
            shifts: Vec::with_capacity(parts.len()),
            probabilities: Vec::with_capacity(parts.len()),
        };
        for (shift, probability) in parts.into_iter().filter(|part| part.1 > 0.0) {
            if mixture.shifts.last() == Some(&shift) {
                let last = mixture.probabilities.len() - 1;
                mixture.probabilities[last] += probability;
            } else {
                mixture.shifts.push(shift);
                mixture.probabilities.push(probability);
            }
        }
        Ok(mixture)
    }

    /// One shift that happens in every round.
    ///
    /// # Errors
    /// A shift that is negative or not finite.
    pub fn certain(shift: f64) -> Result<Self, EventError> {
        Self::new(vec![shift], vec![1.0])
    }

    /// The shifts, strictly ascending.
    #[must_use]
    pub fn shifts(&self) -> &[f64] {
        &self.shifts
    }

    /// Their probabilities, all positive.
    #[must_use]
    pub fn probabilities(&self) -> &[f64] {
        &self.probabilities
    }

    /// The largest shift.
    #[must_use]
    pub fn largest(&self) -> f64 {
        self.shifts.last().copied().unwrap_or(0.0)
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

/// One released vector: a mixture of shifts under Gaussian noise.
#[derive(Clone, Debug, PartialEq)]
pub struct Release {
    /// How far one record moves the estimate.
    pub shifts: ShiftMixture,
    /// Standard deviation of the noise per coordinate, in the same unit as the shifts.
    pub sigma: f64,
    /// Random-k amplification that may be claimed for this release, if any.
    pub amplification: Option<RandomK>,
}

impl Release {
    /// A checked release without amplification.
    ///
    /// # Errors
    /// A `sigma` that is not finite and positive.
    pub fn new(shifts: ShiftMixture, sigma: f64) -> Result<Self, EventError> {
        check_positive("sigma", sigma)?;
        Ok(Release {
            shifts,
            sigma,
            amplification: None,
        })
    }

    /// This release, `count` times.
    #[must_use]
    pub fn times(self, count: u64) -> Event {
        Event {
            release: self,
            count,
        }
    }
}

impl Mechanism {
    /// The sampling rate `b / m`; one for [`Estimator::Gd`].
    #[must_use]
    pub fn sampling_rate(&self) -> f64 {
        match self.estimator {
            Estimator::Gd => 1.0,
            _ => self.batch / self.records as f64,
        }
    }

    /// What one round releases under noise `sigma`: the pairs of the table below, each proved to
    /// dominate the round under both adjacencies.
    ///
    /// | estimator | not sampled (1-q) | sampled (q) |
    /// | --- | --- | --- |
    /// | GD | - | `G/m` (always) |
    /// | SGD | 0 | `G/b` |
    /// | SVRG, SAGA, difference clipped to `C_A` | `G/m` | `C_A/b + G/m` |
    /// | SVRG, SAGA, gradients clipped only | `G/m` | `(2-q) G/b` |
    ///
    /// # Errors
    /// Numbers outside their range, a batch larger than the data, and combinations without a
    /// proof: [`ClipScope::Selected`] with anything but GD and SGD.
    pub fn release(&self, sigma: f64) -> Result<Release, EventError> {
        check_positive("sigma", sigma)?;
        let shifts = self.shifts()?;
        let amplification = match (self.clip_scope, self.rand_k) {
            // A clip of the travelling coordinates gives every choice of them the full shift.
            (ClipScope::Selected, _) | (ClipScope::Record, None) => None,
            (ClipScope::Record, Some(fraction)) => Some(self.random_k(fraction)),
        };
        Ok(Release {
            shifts,
            sigma,
            amplification,
        })
    }

    fn shifts(&self) -> Result<ShiftMixture, EventError> {
        check_positive("the number of records", self.records as f64)?;
        check_positive("the clip", self.clip)?;
        if let Some(fraction) = self.rand_k {
            check_range(
                "the random-k fraction",
                "(0, 1]",
                fraction,
                fraction > 0.0 && fraction <= 1.0,
            )?;
        }
        let all = self.clip / self.records as f64;
        let difference_clip = match self.estimator {
            Estimator::Gd => return ShiftMixture::certain(all),
            Estimator::Sgd => None,
            Estimator::Svrg { difference_clip } | Estimator::Saga { difference_clip } => {
                if self.clip_scope == ClipScope::Selected {
                    return Err(EventError::Unproved(
                        "clipping only the selected coordinates is proved for gd and sgd alone",
                    ));
                }
                difference_clip
            }
        };
        check_positive("the batch", self.batch)?;
        let rate = self.sampling_rate();
        check_range("the sampling rate b/m", "(0, 1]", rate, rate <= 1.0)?;
        let sampled = self.clip / self.batch;
        let pair = match (self.estimator, difference_clip) {
            (Estimator::Sgd, _) => vec![0.0, sampled],
            (_, Some(bound)) => {
                check_range(
                    "the difference clip",
                    "[0, infinity)",
                    bound,
                    bound >= 0.0 && bound.is_finite(),
                )?;
                vec![all, bound / self.batch + all]
            }
            (_, None) => vec![all, (2.0 - rate) * sampled],
        };
        ShiftMixture::new(pair, vec![1.0 - rate, rate])
    }

    /// How many record vectors one draw of the coordinates masks together.
    fn random_k(&self, fraction: f64) -> RandomK {
        let (vectors_zero_out, vectors_replace_one) = match self.estimator {
            Estimator::Gd => (1, 1),
            Estimator::Sgd => (1, 2),
            Estimator::Svrg { .. } | Estimator::Saga { .. } => (2, 4),
        };
        RandomK {
            fraction,
            vectors_zero_out,
            vectors_replace_one,
        }
    }
}

/// What the random-k rules need to know.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RandomK {
    /// `k/d`, with the `k` really used.
    pub fraction: f64,
    /// How many record vectors are masked together under zero-out (see `docs/privacy.md`).
    pub vectors_zero_out: u32,
    /// The same under replace-one.
    pub vectors_replace_one: u32,
}

/// A release repeated `count` times.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// What is released.
    pub release: Release,
    /// How often.
    pub count: u64,
}

/// Why a description of an event is refused.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum EventError {
    /// A number that must be finite and positive is not.
    #[error("{name} must be finite and positive, found {value}")]
    NotPositive {
        /// Which one.
        name: &'static str,
        /// What was given.
        value: f64,
    },
    /// A number lies outside its range.
    #[error("{name} must lie in {range}, found {value}")]
    OutOfRange {
        /// Which one.
        name: &'static str,
        /// The range, in words.
        range: &'static str,
        /// What was given.
        value: f64,
    },
    /// Probabilities do not sum to one.
    #[error("the probabilities sum to {sum}, not to 1 within 1e-9")]
    ProbabilitySum {
        /// Their sum.
        sum: f64,
    },
    /// Shifts and probabilities differ in number, or there are none.
    #[error("{shifts} shifts with {probabilities} probabilities")]
    Length {
        /// Number of shifts.
        shifts: usize,
        /// Number of probabilities.
        probabilities: usize,
    },
    /// The combination has no proof.
    #[error("{0}")]
    Unproved(&'static str),
}

fn check_positive(name: &'static str, value: f64) -> Result<(), EventError> {
    if value > 0.0 && value.is_finite() {
        Ok(())
    } else {
        Err(EventError::NotPositive { name, value })
    }
}

fn check_range(
    name: &'static str,
    range: &'static str,
    value: f64,
    holds: bool,
) -> Result<(), EventError> {
    if holds {
        Ok(())
    } else {
        Err(EventError::OutOfRange { name, range, value })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mechanism(estimator: Estimator) -> Mechanism {
        Mechanism {
            estimator,
            records: 1000,
            batch: 50.0,
            clip: 2.0,
            clip_scope: ClipScope::Record,
            rand_k: Some(0.05),
        }
    }

    #[test]
    fn pairs_are_those_of_the_analysis() {
        let clipped = Some(0.5);
        let cases = [
            (Estimator::Gd, vec![(0.002, 1.0)], (1, 1)),
            (Estimator::Sgd, vec![(0.0, 0.95), (0.04, 0.05)], (1, 2)),
            (
                Estimator::Svrg {
                    difference_clip: clipped,
                },
                vec![(0.002, 0.95), (0.012, 0.05)],
                (2, 4),
            ),
            (
                Estimator::Saga {
                    difference_clip: None,
                },
                vec![(0.002, 0.95), (1.95 * 0.04, 0.05)],
                (2, 4),
            ),
        ];
        for (estimator, pairs, (zero_out, replace_one)) in cases {
            let release = mechanism(estimator).release(3.0).unwrap();
            assert_eq!(release.shifts.shifts().len(), pairs.len());
            for (index, (shift, probability)) in pairs.iter().enumerate() {
                assert!((release.shifts.shifts()[index] - shift).abs() < 1e-15);
                assert!((release.shifts.probabilities()[index] - probability).abs() < 1e-15);
            }
            let amplification = release.amplification.unwrap();
            assert_eq!(amplification.vectors_zero_out, zero_out);
            assert_eq!(amplification.vectors_replace_one, replace_one);
        }
    }

    #[test]
    fn a_full_batch_of_sgd_is_gd() {
        let mut sgd = mechanism(Estimator::Sgd);
        sgd.batch = 1000.0;
        assert_eq!(
            sgd.release(1.0).unwrap().shifts,
            mechanism(Estimator::Gd).release(1.0).unwrap().shifts
        );
    }

    #[test]
    fn selected_scope_is_never_amplified_and_only_for_gd_and_sgd() {
        for estimator in [Estimator::Gd, Estimator::Sgd] {
            let mut selected = mechanism(estimator);
            selected.clip_scope = ClipScope::Selected;
            assert_eq!(selected.release(1.0).unwrap().amplification, None);
        }
        let mut saga = mechanism(Estimator::Saga {
            difference_clip: Some(1.0),
        });
        saga.clip_scope = ClipScope::Selected;
        assert!(matches!(saga.release(1.0), Err(EventError::Unproved(_))));
        let mut whole = mechanism(Estimator::Sgd);
        whole.rand_k = None;
        assert_eq!(whole.release(1.0).unwrap().amplification, None);
    }

    #[test]
    fn bad_numbers_are_refused_with_their_value() {
        let base = mechanism(Estimator::Sgd);
        let bad = [
            Mechanism { records: 0, ..base },
            Mechanism { batch: 0.0, ..base },
            Mechanism {
                batch: 1001.0,
                ..base
            },
            Mechanism {
                batch: f64::NAN,
                ..base
            },
            Mechanism { clip: -1.0, ..base },
            Mechanism {
                clip: f64::INFINITY,
                ..base
            },
            Mechanism {
                rand_k: Some(0.0),
                ..base
            },
            Mechanism {
                rand_k: Some(1.5),
                ..base
            },
            Mechanism {
                estimator: Estimator::Svrg {
                    difference_clip: Some(f64::NAN),
                },
                ..base
            },
        ];
        for mechanism in bad {
            assert!(mechanism.release(1.0).is_err(), "{mechanism:?}");
        }
        for sigma in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(base.release(sigma).is_err(), "{sigma}");
        }
    }

    #[test]
    fn mixtures_are_checked_and_repaired_upwards() {
        for (shifts, probabilities) in [
            (vec![], vec![]),
            (vec![1.0], vec![0.5, 0.5]),
            (vec![1.0], vec![0.9]),
            (vec![1.0, 2.0], vec![0.5, 0.6]),
            (vec![-1.0], vec![1.0]),
            (vec![f64::NAN], vec![1.0]),
            (vec![1.0, 2.0], vec![1.5, -0.5]),
            (vec![1.0], vec![f64::NAN]),
        ] {
            assert!(ShiftMixture::new(shifts, probabilities).is_err());
        }
        let deficit = ShiftMixture::new(vec![2.0, 0.0], vec![0.25, 0.75 - 1e-10]).unwrap();
        assert_eq!(deficit.shifts(), [0.0, 2.0]);
        assert!((deficit.probabilities()[1] - (0.25 + 1e-10)).abs() < 1e-15);
        let excess = ShiftMixture::new(vec![0.0, 2.0], vec![0.75 + 1e-10, 0.25]).unwrap();
        assert!((excess.probabilities()[0] - 0.75).abs() < 1e-15);
        let merged = ShiftMixture::new(vec![1.0, 1.0, 3.0], vec![0.5, 0.5, 0.0]).unwrap();
        assert_eq!(merged, ShiftMixture::certain(1.0).unwrap());
    }
}
