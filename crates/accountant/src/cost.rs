//! The answer: a cost with everything it refers to.

use std::fmt;

use crate::adjacency::Adjacency;
use crate::rounding::round_up;

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
    pub(crate) fn other(self) -> Self {
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
    /// The amplified bound is not below the unamplified one, or there is so little noise that it
    /// was not computed.
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
    /// ([`Question::compared`](crate::Question::compared)) or have no answer.
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
