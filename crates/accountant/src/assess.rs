//! One question, one answer: what does this mechanism cost over so many rounds, and which noise
//! meets a target?
//!
//! Puts the accountants together. The unamplified cost is exact (loss distributions or the closed form) or
//! Rényi. Where the mechanism allows random-k amplification, the proved masked costs are computed
//! too and the smallest is reported, always beside the unamplified one.

use crate::account::{self, AccountError};
use crate::amplification;
use crate::event::{Adjacency, Release};
use crate::rdp;

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
    /// What is released in every round ([`Mechanism::release`](crate::event::Mechanism::release), or any mixture of shifts); its `sigma` is
    /// replaced by the one asked about.
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
    /// The epsilon that is claimed: the smallest proved one.
    pub epsilon: f64,
    /// Without amplification, by the chosen method.
    pub epsilon_unamplified: f64,
    /// Whether amplification made `epsilon` smaller.
    pub amplified: bool,
}

/// Epsilon spent after every round: exact at a few dozen rounds, the next exact value in between.
#[derive(Clone, Debug, PartialEq)]
pub struct Odometer {
    /// (rounds, epsilon), ascending.
    marks: Vec<(u64, f64)>,
}

impl Odometer {
    /// Epsilon spent after `rounds` rounds; never too low.
    pub fn after(&self, rounds: u64) -> f64 {
        if rounds == 0 {
            return 0.0;
        }
        let at = self.marks.partition_point(|(mark, _)| *mark < rounds);
        self.marks.get(at).or(self.marks.last()).map_or(f64::INFINITY, |(_, epsilon)| *epsilon)
    }
}

impl Question {
    /// The cost with noise of standard deviation `sigma`.
    ///
    /// # Errors
    /// When the mechanism is refused or the numerics cannot vouch.
    pub fn assess(&self, sigma: f64) -> Result<Assessment, AccountError> {
        let release = Release { sigma, ..self.release.clone() };
        let epsilon_unamplified = self.unamplified(&release)?;
        let amplified = if self.amplification { self.amplified(&release)? } else { None };
        let epsilon = amplified.map_or(epsilon_unamplified, |amplified| amplified.min(epsilon_unamplified));
        Ok(Assessment { epsilon, epsilon_unamplified, amplified: epsilon < epsilon_unamplified })
    }

    /// The smallest sigma (to a relative 1e-4, from above) whose epsilon does not exceed `target`, with its cost.
    ///
    /// # Errors
    /// As [`assess`](Self::assess), or when no finite noise reaches the target.
    pub fn calibrate(&self, target: f64) -> Result<(f64, Assessment), AccountError> {
        let unit = self.release.shifts.largest();
        let (mut low, mut high) = (unit * 1e-3, unit * 1e-3);
        let mut best = None;
        for _ in 0..60 {
            match self.assess(high) {
                Ok(cost) if cost.epsilon <= target => {
                    best = Some(cost);
                    break;
                }
                _ => {
                    low = high;
                    high *= 4.0;
                }
            }
        }
        let Some(mut best) = best else {
            return Err(AccountError::Unreachable { target, sigma: high, found: f64::INFINITY });
        };
        while high / low > 1.0001 {
            let middle = (low * high).sqrt();
            match self.assess(middle) {
                Ok(cost) if cost.epsilon <= target => (high, best) = (middle, cost),
                _ => low = middle,
            }
        }
        Ok((high, best))
    }

    /// Epsilon after every round.
    ///
    /// # Errors
    /// As [`assess`](Self::assess).
    pub fn odometer(&self, sigma: f64) -> Result<Odometer, AccountError> {
        let marks = (1..=24u64).map(|part| (self.rounds * part).div_ceil(24)).filter(|rounds| *rounds > 0);
        let mut curve: Vec<(u64, f64)> = Vec::new();
        for rounds in marks {
            if curve.last().is_none_or(|(last, _)| *last < rounds) {
                let epsilon = Question { rounds, ..self.clone() }.assess(sigma)?.epsilon;
                curve.push((rounds, epsilon));
            }
        }
        Ok(Odometer { marks: curve })
    }

    fn unamplified(&self, release: &Release) -> Result<f64, AccountError> {
        match self.method {
            Method::Pld => account::epsilon(&[release.clone().times(self.rounds)], self.delta, self.adjacency),
            Method::Rdp => {
                let curve = rdp::rdp_curve(&scaled(release), release.shifts.probabilities(), self.adjacency)?;
                Ok(curve.epsilon(self.rounds, self.delta))
            }
        }
    }

    fn amplified(&self, release: &Release) -> Result<Option<f64>, AccountError> {
        let Some(random_k) = &release.amplification else { return Ok(None) };
        let curve = amplification::masked_curve(&scaled(release), release.shifts.probabilities(), self.adjacency, random_k)?;
        Ok(curve.map(|curve| curve.epsilon(self.rounds, self.delta)))
    }
}

fn scaled(release: &Release) -> Vec<f64> {
    release.shifts.shifts().iter().map(|shift| shift / release.sigma).collect()
}
