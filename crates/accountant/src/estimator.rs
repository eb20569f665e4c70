//! The gradient estimators, each with its row of the proof: how far one record can move the
//! estimate, with which probability, and how many of its vectors random-k masks together.
//!
//! | estimator | not sampled (1-q) | sampled (q) | masked vectors: zero-out, replace-one |
//! | --- | --- | --- | --- |
//! | GD | - | `G/m` (always) | 1, 1 |
//! | SGD; recursive, in units of a round's public scale | 0 | `G/b` | 1, 2 |
//! | SVRG, SAGA, difference clipped to `C_A` | `G/m` | `C_A/b + G/m` | 2, 4 |
//! | SVRG, SAGA, gradients clipped only | `G/m` | `(2-q) G/b` | 2, 4 |
//! | SAG with memory `a < 1` | `a G/m` | `(1-a) G/b + a G/m` | 2, 4 |
//! | SAG with memory 1 | - | `G/m` (always) | 1, 1 |
//!
//! `m` records, expected batch `b`, sampling rate `q = b/m`, clip `G`. A row is proved in
//! `docs/privacy.md`; it holds under both adjacencies and whatever the estimator's hidden state is.
//!
//! Where `K` records belong to one person, `j` of their `K` coins fall with binomial probability,
//! and the rows add up (`docs/privacy.md`, persons):
//!
//! | estimator | `j` of `K` sampled | masked vectors |
//! | --- | --- | --- |
//! | GD | `K G/m` (always) | 1, 1 |
//! | SGD | `j G/b` | `K`, `2 K` |
//! | SVRG, SAGA, difference clipped to `C_A` | `j C_A/b + K G/m` | `2 K`, `4 K` |
//! | SVRG, SAGA, gradients clipped only | `j (2-q) G/b + (K-j) G/m` | `2 K`, `4 K` |
//! | SAG with memory `a < 1` | `j (1-a) G/b + K a G/m` | `2 K`, `4 K` |
//! | SAG with memory 1 | `K G/m` (always) | 1, 1 |
//!
//! A new estimator is a variant of both enums here and a row in [`Estimator::terms`], from which
//! the shifts, the masked vectors and the clients' bounds follow.

use crate::error::{EventError, check_positive, check_range};
use crate::mixture::ShiftMixture;
use crate::recursion::{NoiseLevels, Recursion};

/// Which gradient estimator: the choice without its parameters, as configuration and theory need
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EstimatorKind {
    /// Full local gradient.
    Gd,
    /// Poisson minibatch.
    Sgd,
    /// Minibatch of differences to a snapshot, plus the snapshot's mean.
    Svrg,
    /// Minibatch of differences to a table of last visits, plus the table's mean.
    Saga,
    /// Minibatch and the mean of a table of last visits, each with a constant weight.
    Sag,
    /// Increments that the server adds up.
    Recursive,
}

words!(
    EstimatorKind,
    "estimator",
    Gd = "gd",
    Sgd = "sgd",
    Svrg = "svrg",
    Saga = "saga",
    Sag = "sag",
    Recursive = "recursive",
);

impl EstimatorKind {
    /// Whether an estimate is a clipped difference plus a mean over all records.
    #[must_use]
    pub fn has_two_terms(self) -> bool {
        matches!(self, Self::Svrg | Self::Saga)
    }

    /// Whether an estimate holds a mean over all records, whose terms are clipped on all
    /// coordinates.
    #[must_use]
    pub fn keeps_mean(self) -> bool {
        self.has_two_terms() || self == Self::Sag
    }

    /// Whether the estimator remembers when each record was last in a batch.
    #[must_use]
    pub fn keeps_table(self) -> bool {
        matches!(self, Self::Saga | Self::Sag)
    }

    /// Whether an estimate is a mean of clipped gradients and nothing else, so that nothing is
    /// remembered from round to round.
    #[must_use]
    pub fn is_memoryless(self) -> bool {
        matches!(self, Self::Gd | Self::Sgd)
    }

    /// How many gradients of a record an estimate asks for.
    #[must_use]
    pub fn gradients(self) -> u32 {
        match self {
            Self::Gd | Self::Sgd | Self::Sag => 1,
            Self::Svrg | Self::Saga | Self::Recursive => 2,
        }
    }
}

/// A gradient estimator with its parameters.
///
/// The expected batch stands in [`Mechanism`](crate::Mechanism), since it is a matter of sampling.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Estimator {
    /// Full local gradient.
    Gd,
    /// Poisson minibatch, divided by the constant expected size.
    Sgd,
    /// SVRG; `difference_clip` bounds each record's gradient difference, `None`: both gradients
    /// are clipped and their difference is not.
    Svrg {
        /// With which probability the snapshot moves in a round. Its coin is public and costs
        /// nothing.
        snapshot_probability: f64,
        /// The bound `C_A`.
        difference_clip: Option<f64>,
    },
    /// SAGA; as SVRG, with the reference gradients from its table.
    Saga {
        /// The bound `C_A`.
        difference_clip: Option<f64>,
    },
    /// Stochastic average gradient: `a` times the mean of the table of last visits, this round's
    /// included, plus `1 - a` times the minibatch's mean. No gradient is ever subtracted, so that
    /// no difference needs a clip.
    Sag {
        /// `a`, in (0, 1].
        memory: f64,
    },
    /// Increments that the server adds up. Their noise follows their clip, so that a message costs
    /// what one of SGD does.
    Recursive(Recursion),
}

impl Estimator {
    /// The estimator of this kind, with what is usual for the rest: the recursive one has the
    /// momentum of DP-SRM ([`Recursion::momentum`]), whose cost does not depend on the difference
    /// clip, SVRG's snapshot moves with probability 0.3, and SAG remembers a half. GD, SGD and SAG
    /// have no differences and no use for their clip.
    #[must_use]
    pub fn new(kind: EstimatorKind, difference_clip: Option<f64>) -> Self {
        match kind {
            EstimatorKind::Gd => Self::Gd,
            EstimatorKind::Sgd => Self::Sgd,
            EstimatorKind::Svrg => Self::Svrg {
                snapshot_probability: SNAPSHOT_PROBABILITY,
                difference_clip,
            },
            EstimatorKind::Saga => Self::Saga { difference_clip },
            EstimatorKind::Sag => Self::Sag { memory: MEMORY },
            EstimatorKind::Recursive => {
                Self::Recursive(Recursion::momentum(difference_clip.unwrap_or(1.0)))
            }
        }
    }

    /// The same without its parameters.
    #[must_use]
    pub fn kind(self) -> EstimatorKind {
        match self {
            Self::Gd => EstimatorKind::Gd,
            Self::Sgd => EstimatorKind::Sgd,
            Self::Svrg { .. } => EstimatorKind::Svrg,
            Self::Saga { .. } => EstimatorKind::Saga,
            Self::Sag { .. } => EstimatorKind::Sag,
            Self::Recursive(_) => EstimatorKind::Recursive,
        }
    }

    /// The two levels of noise of a run, where there are two.
    #[must_use]
    pub fn noise_levels(self) -> Option<NoiseLevels> {
        match self {
            Self::Recursive(recursion) => recursion.noise_levels(),
            _ => None,
        }
    }

    /// Whether an estimate is a clipped difference plus a mean over all records.
    #[must_use]
    pub fn has_two_terms(self) -> bool {
        self.kind().has_two_terms()
    }

    /// Whether an estimate is a mean of clipped gradients and nothing else.
    #[must_use]
    pub fn is_memoryless(self) -> bool {
        self.kind().is_memoryless()
    }

    /// The recursion that the server must follow, if there is one.
    #[must_use]
    pub fn recursion(self) -> Option<Recursion> {
        match self {
            Self::Recursive(recursion) => Some(recursion),
            _ => None,
        }
    }

    /// The bound on differences of gradients that is the same in every round, if there is one.
    #[must_use]
    pub fn difference_clip(self) -> Option<f64> {
        match self {
            Self::Svrg {
                difference_clip, ..
            }
            | Self::Saga { difference_clip } => difference_clip,
            Self::Gd | Self::Sgd | Self::Sag { .. } | Self::Recursive(_) => None,
        }
    }

    /// The same without a bound on differences: of records that are not clipped.
    #[must_use]
    pub fn without_difference_clip(mut self) -> Self {
        if let Self::Svrg {
            difference_clip, ..
        }
        | Self::Saga { difference_clip } = &mut self
        {
            *difference_clip = None;
        }
        self
    }

    /// The means that an estimate is the sum of, where every gradient is clipped to `clip`; of
    /// recursive estimates in units of a round's public scale. Terms of weight zero are left out.
    pub fn terms(self, clip: f64) -> impl Iterator<Item = MeanTerm> {
        let batch = |clip, weight| MeanTerm {
            clip,
            weight,
            over: Over::Batch,
        };
        let all = |clip, weight| MeanTerm {
            clip,
            weight,
            over: Over::All,
        };
        // No vector: clients ask in every round.
        let terms = match self {
            Self::Gd | Self::Sgd | Self::Recursive(_) => [Some(batch(clip, 1.0)), None],
            Self::Svrg {
                difference_clip, ..
            }
            | Self::Saga { difference_clip } => {
                let difference = batch(difference_clip.unwrap_or(2.0 * clip), 1.0);
                [Some(difference), Some(all(clip, 1.0))]
            }
            Self::Sag { memory } => [Some(batch(clip, 1.0 - memory)), Some(all(clip, memory))],
        };
        let terms = terms.into_iter().flatten();
        terms.filter(|term| term.weight != 0.0)
    }

    /// Whether every record moves the estimate by one vector of norm `G/m` at most in every round,
    /// whichever coins fall: the coins then have no part in the bound.
    fn is_certain(self) -> bool {
        matches!(self, Self::Gd) || self == Self::Sag { memory: 1.0 }
    }

    /// How far the `person` records of one person move the estimate: the row of the table above.
    pub(crate) fn shifts(
        self,
        clip: f64,
        records: f64,
        batch: f64,
        person: u32,
    ) -> Result<ShiftMixture, EventError> {
        let all = |clip: f64| clip / records;
        if let Self::Sag { memory } = self {
            let holds = memory > 0.0 && memory <= 1.0;
            check_range("the memory", "(0, 1]", memory, holds)?;
        }
        if self.is_certain() {
            return ShiftMixture::certain(f64::from(person) * all(clip));
        }
        check_positive("the batch", batch)?;
        let rate = batch / records;
        check_range("the sampling rate b/m", "(0, 1]", rate, rate <= 1.0)?;
        if let Self::Recursive(recursion) = self {
            recursion.check()?;
        }
        if let Some(bound) = self.difference_clip() {
            let holds = bound >= 0.0 && bound.is_finite();
            check_range("the difference clip", "[0, infinity)", bound, holds)?;
        }
        let mut shifts = [0.0, 0.0];
        for term in self.terms(clip) {
            match term.over {
                Over::Batch => shifts[1] += term.weight * (term.clip / batch),
                Over::All => shifts = shifts.map(|shift| shift + term.weight * all(term.clip)),
            }
        }
        if self.has_two_terms() && self.difference_clip().is_none() {
            // Less than what the terms say: the gradient at the reference appears in both of them.
            shifts = [all(clip), (2.0 - rate) * (clip / batch)];
        }
        if person == 1 {
            return ShiftMixture::new(&shifts, &[1.0 - rate, rate]);
        }
        let sums = (0..=person)
            .map(|heads| f64::from(heads) * shifts[1] + f64::from(person - heads) * shifts[0]);
        ShiftMixture::new(&sums.collect::<Vec<_>>(), &binomial(person, rate))
    }

    /// How many vectors of a person with `person` records one draw of the coordinates masks
    /// together, under zero-out and under replace-one. Without coins all records are one vector.
    pub(crate) fn masked_vectors(self, person: u32) -> (u32, u32) {
        let of_record = self.terms(1.0).count() as u32;
        if self.is_certain() {
            return (1, 1);
        }
        (of_record * person, 2 * of_record * person)
    }
}

/// How much SAG remembers unless told otherwise: with less, noise and the spread of batches grow;
/// with more, so does the age of what it follows.
pub const MEMORY: f64 = 0.5;

/// How likely SVRG's snapshot moves in a round unless told otherwise.
pub const SNAPSHOT_PROBABILITY: f64 = 0.3;

/// A part of an estimate: `weight` times a mean of vectors, one of each record and none longer than
/// `clip`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MeanTerm {
    /// The bound on each vector.
    pub clip: f64,
    /// What the mean is multiplied by; not zero.
    pub weight: f64,
    /// Whose vectors are added, and by what their sum is divided.
    pub over: Over,
}

/// The records that a mean is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// Those of the round's batch, divided by its expected number.
    Batch,
    /// All of them, as the estimator remembers them.
    All,
}

/// The law of the number of heads among `coins` coins, by convolution: sums of positive numbers,
/// so each probability is right up to `coins` roundings.
fn binomial(coins: u32, rate: f64) -> Vec<f64> {
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

    #[test]
    fn words_and_kinds_lead_back() {
        for &kind in EstimatorKind::ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
            assert_eq!(Estimator::new(kind, Some(1.0)).kind(), kind);
        }
        let error = "adam".parse::<EstimatorKind>().unwrap_err().to_string();
        assert_eq!(
            error,
            "no estimator is called `adam`; there are gd, sgd, svrg, saga, sag, recursive"
        );
    }
}
