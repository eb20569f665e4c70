//! What was released, as plain data: descriptions say what happens, accountants say what it costs.
//!
//! A client that sends one message releases `estimate + N(0, sigma^2 I)`. A [`Mechanism`] describes
//! how the estimate is made; its [`Release`] says how far one record can move it, with which
//! probability, and what random-k hides of that. The noise comes last, with the question
//! ([`Question`](crate::Question)). Nothing here computes a privacy cost.

use crate::adjacency::Adjacency;
use crate::error::{EventError, check_positive, check_range};
use crate::estimator::Estimator;
use crate::mixture::ShiftMixture;
use crate::mutation::{self, Mutation};

/// Which vector each record's clip bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ClipScope {
    /// The record's whole gradient.
    Record,
    /// Only the record's coordinates that travel this round.
    Selected,
    /// The client's whole estimate and no single record: what one record can do is not bounded,
    /// so every claim is refused. (The authors' experiments are made so.)
    Estimate,
}

words!(
    ClipScope,
    "clip scope",
    Record = "record",
    Selected = "selected",
    Estimate = "estimate",
);

/// What one client does in every round, before any noise.
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

impl Mechanism {
    /// What a message reveals of one record: the row of [`crate::estimator`], and random-k where
    /// the record's whole gradient is clipped.
    ///
    /// # Errors
    /// Numbers outside their range, a batch larger than the data, and combinations without a
    /// proof: [`ClipScope::Selected`] with anything but GD and SGD, [`ClipScope::Estimate`].
    pub fn release(&self) -> Result<Release, EventError> {
        self.release_of_person(1)
    }

    /// What a message reveals of one person, of whom the client has at most so many records. It is
    /// a matter of who counts as a neighbour, not of what the client does. A person cannot have
    /// more records than there are.
    ///
    /// # Errors
    /// As [`release`](Self::release), and numbers of records outside `[1, 1000]`.
    pub fn release_of_person(&self, most_records: u32) -> Result<Release, EventError> {
        let holds = (1..=MOST_OF_PERSON).contains(&most_records);
        let value = f64::from(most_records);
        check_range(
            "the number of records of a person",
            "[1, 1000]",
            value,
            holds,
        )?;
        let person = match mutation::active(Mutation::PersonChargedOnce) {
            true => 1,
            false => u32::try_from(self.records).map_or(most_records, |m| most_records.min(m)),
        };
        let records = self.records as f64;
        check_positive("the number of records", records)?;
        check_positive("the clip", self.clip)?;
        if let Some(fraction) = self.rand_k {
            check_fraction(fraction)?;
        }
        let refused = match self.clip_scope {
            ClipScope::Estimate => Some("a clip of the whole estimate does not bound one record"),
            ClipScope::Selected if !matches!(self.estimator, Estimator::Gd | Estimator::Sgd) => {
                Some("clipping only the selected coordinates is proved for gd and sgd alone")
            }
            ClipScope::Selected | ClipScope::Record => None,
        };
        if let Some(reason) = refused {
            return Err(EventError::Unproved(reason));
        }
        let shifts = self
            .estimator
            .shifts(self.clip, records, self.batch, person)?;
        // A clip of the travelling coordinates gives every choice of them the full shift.
        let hides =
            self.clip_scope == ClipScope::Record || mutation::active(Mutation::SelectedAmplified);
        let fraction = self.rand_k.filter(|_| hides);
        let (vectors_zero_out, vectors_replace_one) = self.estimator.masked_vectors(person);
        let random_k = fraction.map(|fraction| RandomK {
            fraction,
            vectors_zero_out,
            vectors_replace_one,
        });
        Ok(Release { shifts, random_k })
    }
}

/// Beyond it the mixture of a person's shifts takes too long to compose.
const MOST_OF_PERSON: u32 = 1000;

pub(crate) fn check_fraction(fraction: f64) -> Result<(), EventError> {
    let holds = fraction > 0.0 && fraction <= 1.0;
    check_range("the random-k fraction", "(0, 1]", fraction, holds)
}

/// What one message reveals of one record, before its noise.
#[derive(Clone, Debug, PartialEq)]
pub struct Release {
    /// How far one record moves the estimate.
    pub shifts: ShiftMixture,
    /// What random-k hides of it, where amplification may be claimed.
    pub random_k: Option<RandomK>,
}

impl From<ShiftMixture> for Release {
    /// Shifts of which nothing is hidden.
    fn from(shifts: ShiftMixture) -> Self {
        Release {
            shifts,
            random_k: None,
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

impl RandomK {
    /// How many record vectors are masked together under this adjacency.
    #[must_use]
    pub fn vectors(&self, adjacency: Adjacency) -> u32 {
        match adjacency {
            Adjacency::ZeroOut => self.vectors_zero_out,
            Adjacency::ReplaceOne => self.vectors_replace_one,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recursion::Recursion;

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

    fn sag(memory: f64) -> Estimator {
        Estimator::Sag { memory }
    }

    fn recursive() -> Estimator {
        Estimator::Recursive(Recursion::momentum(0.3))
    }

    #[test]
    fn shifts_are_those_of_the_analysis() {
        let svrg = Estimator::Svrg {
            snapshot_probability: 0.3,
            difference_clip: Some(0.5),
        };
        let saga = Estimator::Saga {
            difference_clip: None,
        };
        let cases = [
            (Estimator::Gd, vec![(0.002, 1.0)], (1, 1)),
            (Estimator::Sgd, vec![(0.0, 0.95), (0.04, 0.05)], (1, 2)),
            (svrg, vec![(0.002, 0.95), (0.012, 0.05)], (2, 4)),
            (saga, vec![(0.002, 0.95), (1.95 * 0.04, 0.05)], (2, 4)),
            (recursive(), vec![(0.0, 0.95), (0.04, 0.05)], (1, 2)),
            (sag(0.25), vec![(0.0005, 0.95), (0.0305, 0.05)], (2, 4)),
            (sag(1.0), vec![(0.002, 1.0)], (1, 1)),
        ];
        for (estimator, parts, (zero_out, replace_one)) in cases {
            let release = mechanism(estimator).release().unwrap();
            assert_eq!(release.shifts.parts().len(), parts.len());
            for (found, expected) in release.shifts.parts().iter().zip(parts) {
                assert!((found.0 - expected.0).abs() < 1e-15);
                assert!((found.1 - expected.1).abs() < 1e-15);
            }
            let random_k = release.random_k.unwrap();
            assert_eq!(random_k.vectors(Adjacency::ZeroOut), zero_out);
            assert_eq!(random_k.vectors(Adjacency::ReplaceOne), replace_one);
        }
    }

    #[test]
    fn the_rows_of_a_person_add_up() {
        let loose = Estimator::Saga {
            difference_clip: None,
        };
        let close = Estimator::Svrg {
            snapshot_probability: 0.3,
            difference_clip: Some(0.5),
        };
        // G/m = 0.002, G/b = 0.04, q = 0.05, K = 2.
        let weights = [0.95 * 0.95, 2.0 * 0.95 * 0.05, 0.05 * 0.05];
        let cases = [
            (Estimator::Sgd, [0.0, 0.04, 0.08], (2, 4)),
            (close, [0.004, 0.014, 0.024], (4, 8)),
            (loose, [0.004, 0.08, 0.156], (4, 8)),
            (sag(0.5), [0.002, 0.022, 0.042], (4, 8)),
        ];
        for (estimator, shifts, (zero_out, replace_one)) in cases {
            let release = mechanism(estimator).release_of_person(2).unwrap();
            let expected = shifts.into_iter().zip(weights);
            for (found, expected) in release.shifts.parts().iter().zip(expected) {
                assert!(
                    (found.0 - expected.0).abs() < 1e-15,
                    "{estimator:?} {found:?}"
                );
                assert!(
                    (found.1 - expected.1).abs() < 1e-15,
                    "{estimator:?} {found:?}"
                );
            }
            let random_k = release.random_k.unwrap();
            assert_eq!(random_k.vectors(Adjacency::ZeroOut), zero_out);
            assert_eq!(random_k.vectors(Adjacency::ReplaceOne), replace_one);
        }
        let gd = mechanism(Estimator::Gd);
        for certain in [gd, mechanism(sag(1.0))] {
            let release = certain.release_of_person(3).unwrap();
            assert_eq!(release.shifts, ShiftMixture::certain(0.006).unwrap());
            assert_eq!(release.random_k, gd.release().unwrap().random_k);
        }
        // All of the client's records, and no more.
        let few = Mechanism { records: 5, ..gd };
        assert_eq!(
            few.release_of_person(900).unwrap(),
            few.release_of_person(5).unwrap()
        );
        for (estimator, _, _) in cases {
            let one = mechanism(estimator);
            assert_eq!(one.release_of_person(1).unwrap(), one.release().unwrap());
        }
        for refused in [0, 1001] {
            assert!(gd.release_of_person(refused).is_err());
        }
    }

    #[test]
    fn a_full_batch_of_sgd_is_gd() {
        let mut sgd = mechanism(Estimator::Sgd);
        sgd.batch = 1000.0;
        assert_eq!(
            sgd.release().unwrap().shifts,
            mechanism(Estimator::Gd).release().unwrap().shifts
        );
    }

    #[test]
    fn selected_scope_is_never_amplified_and_only_for_gd_and_sgd() {
        for estimator in [Estimator::Gd, Estimator::Sgd] {
            let mut selected = mechanism(estimator);
            selected.clip_scope = ClipScope::Selected;
            assert_eq!(selected.release().unwrap().random_k, None);
        }
        let saga = Estimator::Saga {
            difference_clip: Some(1.0),
        };
        for estimator in [saga, sag(1.0), recursive()] {
            let mut selected = mechanism(estimator);
            selected.clip_scope = ClipScope::Selected;
            assert!(matches!(selected.release(), Err(EventError::Unproved(_))));
        }
        let mut whole = mechanism(Estimator::Sgd);
        whole.rand_k = None;
        assert_eq!(whole.release().unwrap().random_k, None);
        whole.clip_scope = ClipScope::Estimate;
        assert!(matches!(whole.release(), Err(EventError::Unproved(_))));
    }

    #[test]
    fn bad_numbers_are_refused_with_their_value() {
        let base = mechanism(Estimator::Sgd);
        let batch = |batch| Mechanism { batch, ..base };
        let clip = |clip| Mechanism { clip, ..base };
        let rand_k = |fraction| Mechanism {
            rand_k: Some(fraction),
            ..base
        };
        let bad = [
            Mechanism { records: 0, ..base },
            batch(0.0),
            batch(1001.0),
            batch(f64::NAN),
            clip(-1.0),
            clip(f64::INFINITY),
            rand_k(0.0),
            rand_k(1.5),
            Mechanism {
                estimator: Estimator::Svrg {
                    snapshot_probability: 0.3,
                    difference_clip: Some(f64::NAN),
                },
                ..base
            },
            Mechanism {
                estimator: Estimator::Recursive(Recursion::momentum(f64::NAN)),
                ..base
            },
            mechanism(sag(0.0)),
            mechanism(sag(1.0 + f64::EPSILON)),
            mechanism(sag(f64::NAN)),
        ];
        for mechanism in bad {
            assert!(mechanism.release().is_err(), "{mechanism:?}");
        }
    }

    #[test]
    fn words_lead_back() {
        for &scope in ClipScope::ALL {
            assert_eq!(scope.to_string().parse(), Ok(scope));
        }
        assert!("whole".parse::<ClipScope>().is_err());
    }
}
