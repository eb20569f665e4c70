//! The one door: what do releases cost, and which noise meets a target?
//!
//! ```text
//! Mechanism --release()--> Release --+
//!                                    +--> Question --cost(sigma), calibrate(epsilon)--> Cost
//!              rounds, delta, adjacency --+        --odometer(sigma)--> Odometer
//! ```
//!
//! Puts the accountants together. The cost without amplification is exact (loss distributions, or
//! the closed form) or Rényi, as asked. Where a release allows random-k amplification
//! ([`Mechanism::release`] decides), the proved masked costs are computed too: the Rényi rule and,
//! unless only Rényi was asked for, the envelope. Each is a bound for the whole run by itself, so
//! the smallest holds; it is always reported beside the unamplified one, and where amplification is
//! not in a cost, [`Cost::amplification`] says why.
//!
//! All costs are upper bounds, for a schedule that is fixed in advance.

use std::fmt;

use crate::adjacency::Adjacency;
use crate::amplification::MaskedRound;
use crate::calibrate::{first_guess, smallest_sigma};
use crate::error::{AccountError, EventError, check_delta};
use crate::gaussian;
use crate::mechanism::{Mechanism, RandomK, Release};
use crate::mixture::ShiftMixture;
use crate::odometer::Odometer;
use crate::pld::{RoundCosts, Schedule};
use crate::rdp::{RdpCurve, rdp_curve};
use crate::rounding::round_up;
use crate::words::words;

/// Which accountant decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    /// Privacy-loss distributions, or the closed form where there is one.
    Pld,
    /// Rényi divergences.
    Rdp,
}

words!(Method, "accountant", Pld = "pld", Rdp = "rdp");

impl Method {
    fn other(self) -> Self {
        match self {
            Self::Pld => Self::Rdp,
            Self::Rdp => Self::Pld,
        }
    }
}

/// Whether random-k amplification is in a cost, and if not, why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Amplification {
    /// The amplified bound is the smaller one.
    Used,
    /// The release has no mask: all coordinates travel, or those that do are clipped by themselves.
    NothingHidden,
    /// The question does not want it.
    SwitchedOff,
    /// No rule of the chosen accountant is proved for this release.
    Unproved,
    /// The amplified bound is not below the unamplified one.
    NotSmaller,
    /// It is computed for one release at a time, and the question has others before it.
    SeveralReleases,
    /// It is computed for epsilon at a given delta, not for delta at a given epsilon.
    NotForDelta,
}

impl fmt::Display for Amplification {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::Used => "amplified by random-k",
            Self::NothingHidden => "not amplified: no part of a clipped record is hidden",
            Self::SwitchedOff => "not amplified: switched off",
            Self::Unproved => "not amplified: no rule is proved for this release and accountant",
            Self::NotSmaller => "not amplified: the amplified bound is not smaller",
            Self::SeveralReleases => "not amplified: several releases are composed",
            Self::NotForDelta => "not amplified: delta is asked for",
        })
    }
}

/// What releases cost, with everything the number refers to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// The bound of the privacy loss that may be claimed: the smallest proved one.
    pub epsilon: f64,
    /// The probability with which the bound may fail.
    pub delta: f64,
    /// Which data sets are neighbours.
    pub adjacency: Adjacency,
    /// Standard deviation of the noise, in the unit of the shifts.
    pub sigma: f64,
    /// Messages sent with this noise.
    pub rounds: u64,
    /// Which accountant decided.
    pub method: Method,
    /// Whether amplification made `epsilon` smaller, or why not.
    pub amplification: Amplification,
    /// Without amplification, by `method`.
    pub epsilon_unamplified: f64,
    /// Without amplification, by loss distributions; `None` where they were not asked
    /// ([`Question::compared`]) or have no answer.
    pub epsilon_pld: Option<f64>,
    /// The same by Rényi divergences.
    pub epsilon_rdp: Option<f64>,
}

impl Cost {
    /// Whether amplification made `epsilon` smaller.
    #[must_use]
    pub fn amplified(&self) -> bool {
        self.amplification == Amplification::Used
    }
}

impl fmt::Display for Cost {
    /// The claim in words, epsilon rounded up.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let epsilon = round_up(self.epsilon, 4);
        let (delta, adjacency, method) = (self.delta, self.adjacency, self.method);
        let amplified = if self.amplified() {
            ", amplified by random-k"
        } else {
            ""
        };
        write!(
            formatter,
            "epsilon {epsilon} at delta {delta:e}, {adjacency} ({method}{amplified})"
        )
    }
}

/// A release, its rounds, and what its cost shall refer to. The noise is what a question is about.
#[derive(Clone, Debug)]
pub struct Question {
    release: Release,
    rounds: u64,
    before: Vec<(ShiftMixture, u64)>,
    delta: f64,
    adjacency: Adjacency,
    method: Method,
    amplification: bool,
    compared: bool,
}

impl Mechanism {
    /// What `rounds` rounds of this mechanism cost: [`Question::new`] about its release.
    ///
    /// # Errors
    /// As [`Mechanism::release`].
    pub fn question(
        &self,
        rounds: u64,
        delta: f64,
        adjacency: Adjacency,
    ) -> Result<Question, EventError> {
        Ok(Question::new(self.release()?, rounds, delta, adjacency))
    }
}

impl Question {
    /// About `rounds` rounds of `release`, by loss distributions, amplified where that is proved.
    /// Numbers that make no sense are refused when the question is asked.
    #[must_use]
    pub fn new(release: impl Into<Release>, rounds: u64, delta: f64, adjacency: Adjacency) -> Self {
        Question {
            release: release.into(),
            rounds,
            before: Vec::new(),
            delta,
            adjacency,
            method: Method::Pld,
            amplification: true,
            compared: false,
        }
    }

    /// What is asked about.
    #[must_use]
    pub fn release(&self) -> &Release {
        &self.release
    }

    /// The same with another release composed with it, whose noise is fixed: costs then are those
    /// of all releases together, and amplification is in none of them.
    ///
    /// # Errors
    /// A `sigma` that is not finite and positive.
    pub fn after(
        mut self,
        release: &Release,
        sigma: f64,
        rounds: u64,
    ) -> Result<Self, AccountError> {
        self.before.push((release.shifts.over(sigma)?, rounds));
        Ok(self)
    }

    /// The same for another number of rounds.
    #[must_use]
    pub fn rounds(self, rounds: u64) -> Self {
        Question { rounds, ..self }
    }

    /// The same at another delta.
    #[must_use]
    pub fn delta(self, delta: f64) -> Self {
        Question { delta, ..self }
    }

    /// The same by another accountant.
    #[must_use]
    pub fn by(self, method: Method) -> Self {
        Question { method, ..self }
    }

    /// Whether random-k amplification may be used where it is proved.
    #[must_use]
    pub fn amplification(self, amplification: bool) -> Self {
        Question {
            amplification,
            ..self
        }
    }

    /// The same with the other accountant's opinion beside the answer, which takes its time.
    #[must_use]
    pub fn compared(self) -> Self {
        Question {
            compared: true,
            ..self
        }
    }

    /// The cost with noise of standard deviation `sigma`.
    ///
    /// # Errors
    /// No rounds, a delta outside `[1e-30, 1)`, a release that is refused, or numerics that cannot
    /// vouch.
    pub fn cost(&self, sigma: f64) -> Result<Cost, AccountError> {
        let round = self.release.shifts.over(sigma)?;
        let unamplified = self.unamplified(&round)?;
        let amplified = match self.masked(&round)? {
            Ok(masked) => match masked.epsilon(self.rounds, self.delta)? {
                found if found < unamplified => Ok(found),
                _ => Err(Amplification::NotSmaller),
            },
            Err(reason) => Err(reason),
        };
        let mut cost = self.plain(sigma, unamplified);
        cost.amplification = amplified.err().unwrap_or(Amplification::Used);
        cost.epsilon = amplified.unwrap_or(unamplified);
        if self.compared {
            let other = self.clone().by(self.method.other()).unamplified(&round);
            // A second opinion is a courtesy: where there is none, the answer stands without it.
            let other = other.ok().filter(|epsilon| epsilon.is_finite());
            match self.method {
                Method::Pld => cost.epsilon_rdp = other,
                Method::Rdp => cost.epsilon_pld = other,
            }
        }
        Ok(cost)
    }

    /// The smallest sigma (six digits, rounded up) whose epsilon does not exceed `target`, with its
    /// cost.
    ///
    /// # Errors
    /// As [`cost`](Self::cost), or when no finite noise reaches the target.
    pub fn calibrate(&self, target: f64) -> Result<Cost, AccountError> {
        check_delta(self.delta)?;
        let found = self.spent_before()?;
        if found >= target && !self.before.is_empty() {
            let sigma = f64::INFINITY;
            return Err(AccountError::Unreachable {
                target,
                sigma,
                found,
            });
        }
        let shifts = &self.release.shifts;
        let start = first_guess(shifts, self.rounds, target, self.delta, self.adjacency);
        if let Ok(random_k) = self.mask() {
            // In the limit of many small rounds the noise falls with the square root of k/d.
            let hidden = f64::from(random_k.vectors(self.adjacency)) * random_k.fraction;
            let found = smallest_sigma(target, start * hidden.min(1.0).sqrt(), |sigma| {
                let round = shifts.over(sigma)?;
                match self.masked(&round)? {
                    Ok(masked) => masked.epsilon(self.rounds, self.delta),
                    Err(_) => self.unamplified(&round),
                }
            });
            match found {
                // Where the masked bounds are too loose to help, the exact cost asks for less
                // noise.
                Ok((sigma, _)) => {
                    let cost = self.cost(sigma)?;
                    if cost.amplified() {
                        return Ok(cost);
                    }
                }
                Err(AccountError::Unreachable { .. } | AccountError::Unresolved { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        let exact = |sigma| self.unamplified(&shifts.over(sigma)?);
        let (sigma, _) = smallest_sigma(target, start, exact)?;
        self.cost(sigma)
    }

    /// The delta at which `epsilon` holds with noise of standard deviation `sigma`. Amplification
    /// is not in it, and the question's own delta plays no part.
    ///
    /// # Errors
    /// An epsilon that is negative or not finite; otherwise as [`cost`](Self::cost).
    pub fn delta_at(&self, epsilon: f64, sigma: f64) -> Result<Cost, AccountError> {
        if !(epsilon >= 0.0 && epsilon.is_finite()) {
            let bound = "at least 0";
            let value = epsilon;
            return Err(AccountError::Epsilon { bound, value });
        }
        let round = self.release.shifts.over(sigma)?;
        let delta = match self.method {
            Method::Pld => self.schedule(&round)?.delta(epsilon)?,
            Method::Rdp => self.curve(&round)?.delta(1, epsilon),
        };
        Ok(Cost {
            delta,
            amplification: match self.mask() {
                Ok(_) => Amplification::NotForDelta,
                Err(reason) => reason,
            },
            ..self.plain(sigma, epsilon)
        })
    }

    /// What has been spent after every round, computed at about `checkpoints` of them.
    ///
    /// # Errors
    /// As [`cost`](Self::cost).
    pub fn odometer(&self, sigma: f64, checkpoints: usize) -> Result<Odometer, AccountError> {
        // With a closed form, checkpoints are nearly free.
        const CLOSED_FORM_CHECKPOINTS: usize = 2000;
        let round = self.release.shifts.over(sigma)?;
        let cost = self.cost(sigma)?;
        let (rounds, delta) = (self.rounds, self.delta);
        let odometer = match self.masked(&round)? {
            Ok(masked) if cost.amplified() => Odometer::new(0.0, rounds, checkpoints, |count| {
                masked.epsilon(count, delta)
            }),
            _ if !self.before.is_empty() => {
                Odometer::new(self.spent_before()?, rounds, checkpoints, |count| {
                    self.clone().rounds(count).unamplified(&round)
                })
            }
            _ if self.method == Method::Rdp => {
                let curve = rdp_curve(&round, self.adjacency);
                Odometer::new(0.0, rounds, checkpoints, |count| {
                    Ok(curve.epsilon(count, delta))
                })
            }
            _ => {
                let schedule = self.schedule(&round)?;
                if let Some(mu) = schedule.closed_form() {
                    let per_round = mu / (rounds as f64).sqrt();
                    let checkpoints = checkpoints.max(CLOSED_FORM_CHECKPOINTS);
                    Odometer::new(0.0, rounds, checkpoints, |count| {
                        Ok(gaussian::epsilon(per_round * (count as f64).sqrt(), delta))
                    })
                } else {
                    let costs = RoundCosts::new(&schedule, delta)?;
                    Odometer::new(0.0, rounds, checkpoints, |count| costs.epsilon(count))
                }
            }
        }?;
        Ok(odometer.capped(cost.epsilon))
    }

    /// A cost without amplification.
    fn plain(&self, sigma: f64, epsilon: f64) -> Cost {
        let of = |method: Method| (method == self.method).then_some(epsilon);
        Cost {
            epsilon,
            delta: self.delta,
            adjacency: self.adjacency,
            sigma,
            rounds: self.rounds,
            method: self.method,
            amplification: Amplification::NothingHidden,
            epsilon_unamplified: epsilon,
            epsilon_pld: of(Method::Pld),
            epsilon_rdp: of(Method::Rdp),
        }
    }

    /// Epsilon without amplification; `round` is the release in units of the noise.
    fn unamplified(&self, round: &ShiftMixture) -> Result<f64, AccountError> {
        check_delta(self.delta)?;
        match self.method {
            Method::Pld => self.schedule(round)?.epsilon(self.delta),
            Method::Rdp => Ok(self.curve(round)?.epsilon(1, self.delta)),
        }
    }

    /// What the releases before this one have spent by themselves.
    fn spent_before(&self) -> Result<f64, AccountError> {
        let mut before = self.clone();
        match before.before.pop() {
            Some((round, rounds)) => before.rounds(rounds).unamplified(&round),
            None => Ok(0.0),
        }
    }

    /// All releases, this one last.
    fn all(&self, round: &ShiftMixture) -> Vec<(ShiftMixture, u64)> {
        let this = (round.clone(), self.rounds);
        self.before.iter().cloned().chain([this]).collect()
    }

    fn schedule(&self, round: &ShiftMixture) -> Result<Schedule, AccountError> {
        Schedule::new(&self.all(round), self.adjacency)
    }

    /// The sum of all releases' Rényi curves.
    fn curve(&self, round: &ShiftMixture) -> Result<RdpCurve, AccountError> {
        let mut sum = RdpCurve::zero();
        for (shifts, rounds) in self.all(round) {
            if rounds == 0 {
                return Err(AccountError::NoRounds { found: 0 });
            }
            sum = sum.plus(&rdp_curve(&shifts, self.adjacency).times(rounds));
        }
        Ok(sum)
    }

    /// What random-k hides, or why that does not count.
    fn mask(&self) -> Result<RandomK, Amplification> {
        let mask = self.release.random_k.filter(|mask| mask.fraction < 1.0);
        match mask {
            None => Err(Amplification::NothingHidden),
            Some(_) if !self.amplification => Err(Amplification::SwitchedOff),
            Some(_) if !self.before.is_empty() => Err(Amplification::SeveralReleases),
            Some(mask) => Ok(mask),
        }
    }

    /// One masked round, or why amplification does not count.
    fn masked(
        &self,
        round: &ShiftMixture,
    ) -> Result<Result<MaskedRound, Amplification>, AccountError> {
        let mask = match self.mask() {
            Ok(mask) => mask,
            Err(reason) => return Ok(Err(reason)),
        };
        let with_envelope = self.method == Method::Pld;
        let masked = MaskedRound::new(round.clone(), self.adjacency, mask, with_envelope)?;
        Ok(masked.ok_or(Amplification::Unproved))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ClipScope, Estimator};

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
        mechanism.question(rounds, delta, adjacency).unwrap()
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
            let found = asked.cost(z).unwrap();
            assert!(found.amplified(), "{estimator:?}");
            assert!(
                found.epsilon > lower && found.epsilon < upper,
                "{estimator:?}: {found:?}"
            );
            assert!(
                (found.epsilon_unamplified / plain - 1.0).abs() < 1e-3,
                "{estimator:?}: {found:?}"
            );
            let plain = asked.amplification(false).cost(z).unwrap();
            assert_eq!(plain.amplification, Amplification::SwitchedOff);
            assert_eq!(plain.epsilon, found.epsilon_unamplified);
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
                    let asked = question(estimator, q, 150, kappa, 1e-5, adjacency).by(method);
                    let cost = asked.calibrate(1.0).unwrap();
                    assert!(
                        cost.epsilon <= 1.0 && cost.epsilon > 0.99,
                        "{estimator:?} {adjacency:?} {method:?}: {cost:?}"
                    );
                    assert_eq!(asked.cost(cost.sigma).unwrap(), cost);
                    let odometer = asked.odometer(cost.sigma, 24).unwrap();
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
                let found = asked.cost(z).unwrap();
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
        let asked = mechanism.question(100, 1e-5, Adjacency::ZeroOut).unwrap();
        let found = asked.cost(20.0 / 1000.0).unwrap();
        assert_eq!(found.amplification, Amplification::NothingHidden);
        assert!((found.epsilon - 1.993091).abs() < 1e-4, "{found:?}");
    }

    /// A cost that leaves amplification out says why.
    #[test]
    fn amplification_is_never_left_out_in_silence() {
        let sgd = |kappa, adjacency| question(Estimator::Sgd, 0.02, 150, kappa, 1e-5, adjacency);
        let reason = |question: Question| question.cost(2.0).unwrap().amplification;
        let masked = || sgd(Some(0.05), Adjacency::ReplaceOne);
        assert_eq!(reason(masked()), Amplification::Used);
        for nothing in [None, Some(1.0)] {
            let asked = sgd(nothing, Adjacency::ReplaceOne);
            assert_eq!(reason(asked), Amplification::NothingHidden);
        }
        let off = masked().amplification(false);
        assert_eq!(reason(off), Amplification::SwitchedOff);
        // The Rényi rule is proved for samples under zero-out, and not under replace-one.
        let renyi = masked().by(Method::Rdp);
        assert_eq!(reason(renyi), Amplification::Unproved);
        let proved = sgd(Some(0.05), Adjacency::ZeroOut).by(Method::Rdp);
        assert_eq!(reason(proved), Amplification::Used);
        let release = masked().release;
        let several = masked().after(&release, 2.0, 150).unwrap();
        assert_eq!(reason(several), Amplification::SeveralReleases);
        let loose = question(
            Estimator::Sgd,
            0.3,
            1,
            Some(0.999),
            1e-5,
            Adjacency::ReplaceOne,
        );
        assert_eq!(reason(loose), Amplification::NotSmaller);
        let delta = masked().delta_at(1.0, 2.0).unwrap();
        assert_eq!(delta.amplification, Amplification::NotForDelta);
        let cost = masked().cost(2.0).unwrap();
        assert!(cost.to_string().ends_with("(pld, amplified by random-k)"));
        let text = Amplification::SwitchedOff.to_string();
        assert_eq!(text, "not amplified: switched off");
    }

    /// Releases of different kinds compose, whichever of them the question is about.
    #[test]
    fn compositions_go_through_the_same_door() {
        for method in [Method::Pld, Method::Rdp] {
            for &adjacency in Adjacency::ALL {
                let gd = question(Estimator::Gd, 0.01, 40, None, 1e-5, adjacency).by(method);
                let sgd = question(Estimator::Sgd, 0.02, 300, None, 1e-5, adjacency).by(method);
                let alone = [gd.cost(30.0).unwrap(), sgd.cost(1.5).unwrap()];
                let first = gd.clone().after(&sgd.release, 1.5, 300).unwrap();
                let second = sgd.clone().after(&gd.release, 30.0, 40).unwrap();
                let (first, other) = (first.cost(30.0).unwrap(), second.cost(1.5).unwrap());
                assert!((first.epsilon / other.epsilon - 1.0).abs() < 1e-4);
                let sum = alone[0].epsilon + alone[1].epsilon;
                assert!(other.epsilon > alone[0].epsilon.max(alone[1].epsilon));
                assert!(other.epsilon < sum, "{} {sum}", other.epsilon);
                // What the first has spent is there before the second begins.
                let odometer = second.odometer(1.5, 8).unwrap();
                assert_eq!(odometer.after(0), alone[0].epsilon);
                assert!(odometer.after(1) > alone[0].epsilon * (1.0 - 1e-9));
                assert!((odometer.after(300) / other.epsilon - 1.0).abs() < 1e-3);
                // Calibration meets the target together with what is spent, or says it cannot.
                let target = 1.5 * alone[0].epsilon;
                let found = second.calibrate(target).unwrap();
                assert!(found.epsilon <= target && found.epsilon > 0.999 * target);
                let spent = second.calibrate(0.9 * alone[0].epsilon);
                assert!(matches!(spent, Err(AccountError::Unreachable { .. })));
                let delta = second.delta_at(other.epsilon, 1.5).unwrap().delta;
                assert!((delta / 1e-5 - 1.0).abs() < 1e-2, "{delta}");
            }
        }
    }

    #[test]
    fn the_other_accountant_is_heard_when_asked() {
        let asked = question(Estimator::Sgd, 0.02, 150, None, 1e-5, Adjacency::ZeroOut);
        let alone = asked.cost(1.0).unwrap();
        assert_eq!(
            (alone.epsilon_pld, alone.epsilon_rdp),
            (Some(alone.epsilon), None)
        );
        let renyi = asked.clone().by(Method::Rdp).cost(1.0).unwrap();
        let both = asked.compared().cost(1.0).unwrap();
        assert_eq!(both.epsilon_pld, alone.epsilon_pld);
        assert_eq!(both.epsilon_rdp, Some(renyi.epsilon));
        assert_eq!(both.epsilon, alone.epsilon);
    }
}
