//! The accountant's interface: what do releases cost, and which noise meets a target?
//!
//! ```text
//! Mechanism --> Release --+             +--> cost(sigma), calibrate(epsilon): Cost
//!                         +--> Question +--> delta_at(epsilon, sigma): Cost
//! rounds, delta, adjacency+             +--> odometer(sigma): Odometer
//! ```
//!
//! Puts the accountants together. The cost without amplification is exact (loss distributions, or
//! the closed form) or Rényi, as asked. Where a release allows random-k amplification
//! ([`Mechanism::release`] decides), the proved masked costs are computed too: the Rényi rule and,
//! unless only Rényi was asked for, the envelope. Each is a bound for the whole run by itself, so
//! the smallest holds; it is always reported beside the unamplified one, and where amplification is
//! not in a cost, [`Cost::amplification`] says why. The accountants themselves take mixtures of
//! shifts, so that a mask cannot get lost in one that has no use for it.
//!
//! All costs are upper bounds, for a schedule that is fixed in advance.

use crate::adjacency::Adjacency;
use crate::amplification::MaskedRound;
use crate::calibrate::{first_guess, smallest_sigma};
use crate::cost::{Amplification, Cost, Method};
use crate::error::{AccountError, EventError, check_delta};
use crate::gaussian;
use crate::mechanism::{Mechanism, RandomK, Release};
use crate::mixture::ShiftMixture;
use crate::odometer::Odometer;
use crate::pld::{RoundCosts, Schedule};
use crate::rdp::{RdpCurve, rdp_curve};
use crate::recursion::NoiseLevels;

/// Above this target no noise is sought by the masked bounds: their losses are cut at 300 a round,
/// each try may take seconds, and the exact cost asks for enough noise anyway.
const LARGEST_AMPLIFIED: f64 = 100.0;

/// Above this cost the masked bounds are not asked at all: no fraction that hides anything brings
/// it down to a cost that means something.
const LARGEST_MASKED: f64 = 1e4;

/// A release, its rounds, and what its cost shall refer to. The noise is what a question is about.
#[derive(Clone, Debug)]
pub struct Question {
    release: Release,
    rounds: u64,
    /// Earlier releases in units of their noise, and whether random-k hides a part of any.
    before: Vec<(ShiftMixture, u64)>,
    hidden_before: bool,
    /// Where some rounds have more noise than others.
    levels: Option<NoiseLevels>,
    delta: f64,
    adjacency: Adjacency,
    method: Method,
    amplification: bool,
    compared: bool,
}

impl Mechanism {
    /// What `rounds` rounds of this mechanism cost: [`Question::new`] about its release, with the
    /// noise levels of its estimator.
    ///
    /// # Errors
    /// As [`Mechanism::release`].
    pub fn question(
        &self,
        rounds: u64,
        delta: f64,
        adjacency: Adjacency,
    ) -> Result<Question, EventError> {
        let question = Question::new(self.release()?, rounds, delta, adjacency);
        Ok(question.noise_levels(self.estimator.noise_levels()))
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
            hidden_before: false,
            levels: None,
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
    /// of all releases together, and amplification is in none of them. Rounds and noise of either
    /// must not depend on what the other has released; where they do, a filter is needed
    /// ([`Release::rdp_curve`]).
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
        self.hidden_before |= release.random_k.is_some_and(|mask| mask.fraction < 1.0);
        Ok(self)
    }

    /// The same where some rounds have more noise: a `sigma` then is that of the others.
    #[must_use]
    pub fn noise_levels(self, levels: Option<NoiseLevels>) -> Self {
        Question { levels, ..self }
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
        let masked = match self.mask() {
            Ok(_) if unamplified > LARGEST_MASKED => Ok(Err(Amplification::NotSmaller)),
            _ => self.masked(&round),
        };
        let amplified = match masked {
            Ok(Ok(masked)) => match masked.epsilon(self.rounds, self.delta)? {
                found if found < unamplified => Ok(found),
                _ => Err(Amplification::NotSmaller),
            },
            Ok(Err(reason)) => Err(reason),
            // Too little noise for the grid of the masked round; the other bound stands.
            Err(AccountError::Unresolved { .. }) => Err(Amplification::NotSmaller),
            Err(error) => return Err(error),
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
        if let Ok(random_k) = self.mask()
            && target <= LARGEST_AMPLIFIED
        {
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

    /// The delta at which `epsilon` holds with noise of standard deviation `sigma`, as a cost with
    /// this epsilon. Amplification is not in it, and the question's own delta plays no part.
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
        let masked = if cost.amplified() {
            self.masked(&round)?.ok()
        } else {
            None
        };
        let odometer = match masked {
            Some(masked) => Odometer::new(0.0, rounds, checkpoints, |count| {
                masked.epsilon(count, delta)
            }),
            None if !self.before.is_empty() || self.levels.is_some() => {
                Odometer::new(self.spent_before()?, rounds, checkpoints, |count| {
                    self.clone().rounds(count).unamplified(&round)
                })
            }
            None if self.method == Method::Rdp => {
                let curve = rdp_curve(&round, self.adjacency);
                Odometer::new(0.0, rounds, checkpoints, |count| {
                    Ok(curve.epsilon(count, delta))
                })
            }
            None => {
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
        let mut before = self.clone().noise_levels(None);
        match before.before.pop() {
            Some((round, rounds)) => before.rounds(rounds).unamplified(&round),
            None => Ok(0.0),
        }
    }

    /// All releases, this one last: with two levels of noise, as two.
    fn all(&self, round: &ShiftMixture) -> Result<Vec<(ShiftMixture, u64)>, AccountError> {
        let mut all = self.before.clone();
        match self
            .levels
            .map(|levels| (levels, levels.split(self.rounds)))
        {
            Some((levels, (first, second @ 1..))) => {
                all.push((round.clone(), first));
                all.push((round.over(levels.ratio)?, second));
            }
            _ => all.push((round.clone(), self.rounds)),
        }
        Ok(all)
    }

    fn schedule(&self, round: &ShiftMixture) -> Result<Schedule, AccountError> {
        Schedule::new(&self.all(round)?, self.adjacency)
    }

    /// The sum of all releases' Rényi curves.
    fn curve(&self, round: &ShiftMixture) -> Result<RdpCurve, AccountError> {
        let mut sum = RdpCurve::zero();
        for (shifts, rounds) in self.all(round)? {
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
            None if !self.hidden_before => Err(Amplification::NothingHidden),
            _ if !self.amplification => Err(Amplification::SwitchedOff),
            Some(mask) if self.before.is_empty() => Ok(mask),
            _ => Err(Amplification::SeveralReleases),
        }
    }

    /// One masked round, or why amplification does not count. With two levels of noise it has the
    /// lower one, as a bound for all rounds.
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
mod tests;
