//! One question, one answer: what does a release cost over so many rounds, and which noise meets a
//! target?
//!
//! Puts the accountants together. The cost without amplification is exact (loss distributions, or the
//! closed form) or Rényi, as asked. Where a release allows random-k amplification
//! ([`crate::event::Mechanism::release`] decides), the proved masked costs are computed too: the Rényi rule
//! and, unless only Rényi was asked for, the envelope. Each is a bound for the whole run by itself, so
//! the smallest holds; it is always reported beside the unamplified one.

use crate::account::{self, AccountError, check_delta};
use crate::amplification;
use crate::calibrate::{estimate, smallest_sigma};
use crate::event::{Adjacency, RandomK, Release};
use crate::odometer::Odometer;
use crate::pld::{LossDistribution, epsilon_of_losses};
use crate::rdp::{self, RdpCurve};

/// Which accountant decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Privacy-loss distributions, or the closed form where there is one.
    Pld,
    /// Rényi divergences.
    Rdp,
}

/// What is asked.
#[derive(Clone, Debug)]
pub struct Question {
    /// What is released in every round ([`Mechanism::release`](crate::event::Mechanism::release), or
    /// any mixture of shifts); its `sigma` is replaced by the one asked about.
    pub release: Release,
    /// Messages sent.
    pub rounds: u64,
    /// The probability that may escape.
    pub delta: f64,
    /// Which data sets are neighbours.
    pub adjacency: Adjacency,
    /// Which accountant decides.
    pub method: Method,
    /// Whether random-k amplification may be used where it is proved.
    pub amplification: bool,
}

/// What it costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Assessment {
    /// The epsilon that may be claimed: the smallest proved one.
    pub epsilon: f64,
    /// Without amplification, by the chosen method.
    pub epsilon_unamplified: f64,
    /// Whether amplification made `epsilon` smaller.
    pub amplified: bool,
}

impl Question {
    /// The cost with noise of standard deviation `sigma`.
    ///
    /// # Errors
    /// When the release is refused or the numerics cannot vouch.
    pub fn assess(&self, sigma: f64) -> Result<Assessment, AccountError> {
        let release = self.at(sigma)?;
        let epsilon_unamplified = self.unamplified(&release)?;
        let masked = self.masked(&release)?;
        let amplified = masked
            .map(|masked| masked.epsilon(self.rounds, self.delta))
            .transpose()?;
        let epsilon = amplified.map_or(epsilon_unamplified, |amplified| {
            amplified.min(epsilon_unamplified)
        });
        Ok(Assessment {
            epsilon,
            epsilon_unamplified,
            amplified: epsilon < epsilon_unamplified,
        })
    }

    /// The smallest sigma (six digits, rounded up) whose epsilon does not exceed `target`, with its
    /// cost there.
    ///
    /// # Errors
    /// As [`assess`](Self::assess), or when no finite noise reaches the target.
    pub fn calibrate(&self, target: f64) -> Result<(f64, Assessment), AccountError> {
        check_delta(self.delta)?;
        let unit = self.at(1.0)?;
        let start = estimate(&unit, self.rounds, target, self.delta, self.adjacency);
        if let Some(random_k) = self.random_k(&unit) {
            // In the limit of many small rounds the noise falls with the square root of k/d.
            let start = start * (self.vectors(random_k) * random_k.fraction).min(1.0).sqrt();
            let found = smallest_sigma(target, start, |sigma| {
                match self.masked(&self.at(sigma)?)? {
                    Some(masked) => masked.epsilon(self.rounds, self.delta),
                    None => self.unamplified(&self.at(sigma)?),
                }
            });
            match found {
                // Where the masked bounds are too loose to help, the exact cost asks for less noise.
                Ok(found) => {
                    let cost = self.assess(found.sigma)?;
                    if cost.amplified {
                        return Ok((found.sigma, cost));
                    }
                }
                Err(AccountError::Unreachable { .. } | AccountError::Unresolved { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        let found = smallest_sigma(target, start, |sigma| self.unamplified(&self.at(sigma)?))?;
        Ok((found.sigma, self.assess(found.sigma)?))
    }

    /// What has been spent after every round, computed at about `checkpoints` of them.
    ///
    /// # Errors
    /// As [`assess`](Self::assess).
    pub fn odometer(&self, sigma: f64, checkpoints: usize) -> Result<Odometer, AccountError> {
        let release = self.at(sigma)?;
        let cost = self.assess(sigma)?;
        let odometer = match self.masked(&release)? {
            Some(masked) if cost.amplified => Odometer::by(self.rounds, checkpoints, |rounds| {
                masked.epsilon(rounds, self.delta)
            }),
            _ if self.method == Method::Rdp => {
                let curve = self.curve(&release)?;
                Odometer::by(self.rounds, checkpoints, |rounds| {
                    Ok(curve.epsilon(rounds, self.delta))
                })
            }
            _ => Odometer::new(
                &release,
                self.rounds,
                self.delta,
                self.adjacency,
                checkpoints,
            ),
        }?;
        Ok(odometer.capped(cost.epsilon))
    }

    /// The release with this noise.
    fn at(&self, sigma: f64) -> Result<Release, AccountError> {
        let release = Release::new(self.release.shifts.clone(), sigma)?;
        Ok(Release {
            amplification: self.release.amplification,
            ..release
        })
    }

    fn unamplified(&self, release: &Release) -> Result<f64, AccountError> {
        match self.method {
            Method::Pld => account::epsilon(
                &[release.clone().times(self.rounds)],
                self.delta,
                self.adjacency,
            ),
            Method::Rdp => {
                check_delta(self.delta)?;
                if self.rounds == 0 {
                    return Err(AccountError::NoRounds { found: 0 });
                }
                Ok(self.curve(release)?.epsilon(self.rounds, self.delta))
            }
        }
    }

    fn curve(&self, release: &Release) -> Result<RdpCurve, AccountError> {
        Ok(rdp::rdp_curve(
            &scaled(release),
            release.shifts.probabilities(),
            self.adjacency,
        )?)
    }

    fn random_k<'a>(&self, release: &'a Release) -> Option<&'a RandomK> {
        release
            .amplification
            .as_ref()
            .filter(|random_k| self.amplification && random_k.fraction < 1.0)
    }

    fn vectors(&self, random_k: &RandomK) -> f64 {
        f64::from(match self.adjacency {
            Adjacency::ZeroOut => random_k.vectors_zero_out,
            Adjacency::ReplaceOne => random_k.vectors_replace_one,
        })
    }

    /// One masked round, where amplification may be used.
    fn masked(&self, release: &Release) -> Result<Option<Masked>, AccountError> {
        let Some(random_k) = self.random_k(release) else {
            return Ok(None);
        };
        let (shifts, probabilities) = (scaled(release), release.shifts.probabilities());
        let curve = amplification::masked_curve(&shifts, probabilities, self.adjacency, random_k)?;
        let step = amplification::suggested_step(&shifts, probabilities, self.adjacency, random_k)?;
        let round = MaskedRound {
            shifts,
            probabilities: probabilities.to_vec(),
            adjacency: self.adjacency,
            random_k: *random_k,
        };
        let laws = match self.method {
            Method::Rdp => Vec::new(),
            Method::Pld => round.laws(step)?,
        };
        let usable = curve.is_some() || !laws.is_empty();
        Ok(usable.then_some(Masked {
            curve,
            round,
            step,
            laws,
        }))
    }
}

/// One masked round: the proved bounds of it.
struct Masked {
    curve: Option<RdpCurve>,
    round: MaskedRound,
    /// The step of `laws`.
    step: f64,
    /// One per direction; all must hold. Empty where only Rényi was asked for.
    laws: Vec<LossDistribution>,
}

/// What the envelope is computed from.
struct MaskedRound {
    shifts: Vec<f64>,
    probabilities: Vec<f64>,
    adjacency: Adjacency,
    random_k: RandomK,
}

impl MaskedRound {
    fn laws(&self, step: f64) -> Result<Vec<LossDistribution>, AccountError> {
        let Self {
            shifts,
            probabilities,
            adjacency,
            random_k,
        } = self;
        let laws = amplification::masked_laws(shifts, probabilities, *adjacency, random_k, step)?;
        let grids = laws.into_iter();
        Ok(grids
            .map(|law| LossDistribution::new(law.step, law.first, law.masses, law.infinity))
            .collect())
    }
}

impl Masked {
    /// The smallest proved epsilon after `rounds` rounds.
    fn epsilon(&self, rounds: u64, delta: f64) -> Result<f64, AccountError> {
        let renyi = self
            .curve
            .as_ref()
            .map(|curve| curve.epsilon(rounds, delta));
        if self.laws.is_empty() {
            return Ok(renyi.unwrap_or(f64::INFINITY));
        }
        let mut envelope = composed(&self.laws, rounds, delta);
        // So many rounds, or so little noise, that a fine grid is too long: every step gives a bound.
        let mut step = self.step;
        while matches!(envelope, Err(AccountError::Unresolved { .. })) && step < COARSEST_STEP {
            step *= 8.0;
            envelope = composed(&self.round.laws(step)?, rounds, delta);
        }
        match (renyi, envelope) {
            (Some(renyi), Ok(envelope)) => Ok(renyi.min(envelope)),
            (Some(renyi), Err(AccountError::Unresolved { .. })) => Ok(renyi),
            (None, Err(AccountError::Unresolved { .. })) => Ok(f64::INFINITY),
            (None, envelope) | (_, envelope @ Err(_)) => envelope,
        }
    }
}

/// A grid of losses this coarse says nothing any more.
const COARSEST_STEP: f64 = 0.5;

/// The largest epsilon of any direction after `rounds` rounds.
fn composed(laws: &[LossDistribution], rounds: u64, delta: f64) -> Result<f64, AccountError> {
    let mut worst = 0.0_f64;
    for losses in laws {
        worst = worst.max(epsilon_of_losses(&[(losses, rounds)], delta)?);
    }
    Ok(worst)
}

fn scaled(release: &Release) -> Vec<f64> {
    release
        .shifts
        .shifts()
        .iter()
        .map(|shift| shift / release.sigma)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{ClipScope, Estimator, Mechanism};

    fn question(
        estimator: Estimator,
        q: f64,
        rounds: u64,
        kappa: Option<f64>,
        delta: f64,
        adjacency: Adjacency,
    ) -> Question {
        // m = b/q with b = 1, so that sigma is the noise multiplier of SGD.
        let mechanism = Mechanism {
            estimator,
            records: (1.0 / q).round() as u64,
            batch: (1.0 / q).round() * q,
            clip: if estimator == Estimator::Gd {
                (1.0 / q).round()
            } else {
                1.0
            },
            clip_scope: ClipScope::Record,
            rand_k: kappa,
        };
        let release = mechanism.release(1.0).unwrap();
        Question {
            release,
            rounds,
            delta,
            adjacency,
            method: Method::Pld,
            amplification: true,
        }
    }

    /// The table of `docs/privacy.md` on random-k: never below the one-coordinate case, which is a
    /// lower bound, and not above what was found there.
    #[test]
    fn amplified_costs_lie_between_the_bounds() {
        let zero_out = Adjacency::ZeroOut;
        for (estimator, q, z, rounds, kappa, delta, lower, upper, plain) in [
            (
                Estimator::Gd,
                1.0,
                20.0,
                100,
                0.05,
                1e-5,
                0.4594,
                0.5309,
                1.993092,
            ),
            (
                Estimator::Gd,
                1.0,
                50.0,
                2000,
                0.05,
                1e-5,
                0.7366,
                0.8120,
                3.849,
            ),
            (
                Estimator::Sgd,
                0.0625,
                4.0,
                3000,
                0.05,
                1e-3,
                0.4507,
                0.5337,
                2.654,
            ),
            (
                Estimator::Sgd,
                0.01,
                1.0,
                1000,
                0.1,
                1e-5,
                0.7203,
                0.7530,
                1.8283,
            ),
        ] {
            let asked = question(estimator, q, rounds, Some(kappa), delta, zero_out);
            let found = asked.assess(z).unwrap();
            assert!(found.amplified, "{estimator:?}");
            assert!(
                found.epsilon > lower && found.epsilon < upper,
                "{estimator:?}: {found:?}"
            );
            assert!(
                (found.epsilon_unamplified / plain - 1.0).abs() < 1e-3,
                "{estimator:?}: {found:?}"
            );
            let plain = Question {
                amplification: false,
                ..asked
            }
            .assess(z)
            .unwrap();
            assert!(!plain.amplified && plain.epsilon == found.epsilon_unamplified);
        }
    }

    #[test]
    fn calibration_meets_the_target_from_below() {
        for (estimator, q, kappa) in [
            (Estimator::Gd, 0.01, None),
            (Estimator::Gd, 0.01, Some(0.05)),
            (Estimator::Sgd, 0.02, None),
            (Estimator::Sgd, 0.02, Some(0.05)),
            (
                Estimator::Svrg {
                    difference_clip: Some(0.25),
                },
                0.02,
                Some(0.05),
            ),
            (
                Estimator::Saga {
                    difference_clip: None,
                },
                0.02,
                None,
            ),
        ] {
            for adjacency in [Adjacency::ZeroOut, Adjacency::ReplaceOne] {
                for method in [Method::Pld, Method::Rdp] {
                    let asked = Question {
                        method,
                        ..question(estimator, q, 150, kappa, 1e-5, adjacency)
                    };
                    let (sigma, cost) = asked.calibrate(1.0).unwrap();
                    assert!(
                        cost.epsilon <= 1.0 && cost.epsilon > 0.99,
                        "{estimator:?} {adjacency:?} {method:?}: {cost:?}"
                    );
                    assert_eq!(asked.assess(sigma).unwrap(), cost);
                    let odometer = asked.odometer(sigma, 24).unwrap();
                    assert!(
                        odometer.after(150) <= cost.epsilon
                            && odometer.after(150) >= cost.epsilon * (1.0 - 1e-3)
                    );
                    let spent: Vec<f64> = (0..=150).map(|round| odometer.after(round)).collect();
                    assert!(spent[0] == 0.0 && spent.is_sorted());
                }
            }
        }
    }

    /// So little noise over so many rounds that a fine grid is too long: still an answer.
    #[test]
    fn large_costs_are_answered() {
        for (q, z, rounds) in [
            (0.0157, 0.29, 20_000),
            (0.02, 0.3, 5_000),
            (0.3, 1.0, 100_000),
        ] {
            for adjacency in [Adjacency::ZeroOut, Adjacency::ReplaceOne] {
                let asked = question(Estimator::Sgd, q, rounds, Some(0.05), 1e-5, adjacency);
                let found = asked.assess(z).unwrap();
                assert!(
                    found.epsilon.is_finite() && found.epsilon <= found.epsilon_unamplified,
                    "{found:?}"
                );
            }
        }
    }

    /// Clipping what travels is never amplified, whatever is asked.
    #[test]
    fn selected_scope_is_never_amplified() {
        let mechanism = Mechanism {
            estimator: Estimator::Gd,
            records: 1000,
            batch: 1000.0,
            clip: 1.0,
            clip_scope: ClipScope::Selected,
            rand_k: Some(0.05),
        };
        let release = mechanism.release(1.0).unwrap();
        let asked = Question {
            release,
            rounds: 100,
            delta: 1e-5,
            adjacency: Adjacency::ZeroOut,
            method: Method::Pld,
            amplification: true,
        };
        let found = asked.assess(20.0 / 1000.0).unwrap();
        assert!(
            !found.amplified && (found.epsilon - 1.993091).abs() < 1e-4,
            "{found:?}"
        );
    }
}
