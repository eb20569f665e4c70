//! From events to a cost: the closed form where every shift is certain, loss distributions
//! otherwise.
//!
//! These are exact accounts of the pairs in [`crate::event`], from above, for a schedule fixed in
//! advance. Random-k amplification is not used here, even where an event would allow it.

use crate::event::{Adjacency, Event, EventError, Release};
use crate::gaussian;
use crate::pld::Schedule;
use thiserror::Error;

/// The smallest delta that is accounted.
pub const SMALLEST_DELTA: f64 = 1e-30;

/// A cost, never without what it refers to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// The bound of the privacy loss.
    pub epsilon: f64,
    /// The probability with which the bound may fail.
    pub delta: f64,
    /// Which data sets are neighbours.
    pub adjacency: Adjacency,
}

/// Why there is no answer.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum AccountError {
    /// The event itself is refused.
    #[error(transparent)]
    Event(#[from] EventError),
    /// Nothing is released, or an event happens zero times.
    #[error("there must be at least one round, found {found}")]
    NoRounds {
        /// Rounds in the offending event.
        found: u64,
    },
    /// More rounds than can be counted.
    #[error("the rounds of all events together exceed 2^36")]
    TooManyRounds,
    /// A delta that means nothing or is below what the numerics can vouch for.
    #[error("delta must lie in [1e-30, 1), found {value}")]
    Delta {
        /// What was given.
        value: f64,
    },
    /// An epsilon that means nothing.
    #[error("epsilon must be finite and {bound}, found {value}")]
    Epsilon {
        /// The bound, in words.
        bound: &'static str,
        /// What was given.
        value: f64,
    },
    /// The noise is so small that the cost is beyond any use.
    #[error("the shift is {ratio} times the noise; at most {largest} is accounted")]
    NoiseTooSmall {
        /// Largest shift over the noise.
        ratio: f64,
        /// Largest that is accepted.
        largest: f64,
    },
    /// The numerics cannot vouch for an answer.
    #[error("no trustworthy answer: {reason}")]
    Unresolved {
        /// What stood in the way.
        reason: &'static str,
    },
    /// No noise reaches the target.
    #[error("no sigma up to {sigma} reaches epsilon {target}; there it is {found}")]
    Unreachable {
        /// Target epsilon.
        target: f64,
        /// Largest sigma tried.
        sigma: f64,
        /// Epsilon there.
        found: f64,
    },
}

/// The least epsilon, from above, that holds with the given delta for all events together.
///
/// # Errors
/// No events, a count of zero, a delta outside `[1e-30, 1)`, or numerics that cannot vouch.
pub fn epsilon(events: &[Event], delta: f64, adjacency: Adjacency) -> Result<f64, AccountError> {
    check_delta(delta)?;
    let parts = Parts::new(events, adjacency)?;
    if parts.mixtures.is_empty() {
        return Ok(gaussian::epsilon(parts.mu(), delta));
    }
    parts.schedule()?.epsilon(delta)
}

/// [`epsilon`] together with what it refers to.
///
/// # Errors
/// As [`epsilon`].
pub fn cost(events: &[Event], delta: f64, adjacency: Adjacency) -> Result<Cost, AccountError> {
    Ok(Cost {
        epsilon: epsilon(events, delta, adjacency)?,
        delta,
        adjacency,
    })
}

/// The delta, from above, at which the given epsilon holds for all events together.
///
/// # Errors
/// No events, a count of zero, an epsilon that is negative or not finite, or numerics that cannot
/// vouch.
pub fn delta(events: &[Event], epsilon: f64, adjacency: Adjacency) -> Result<f64, AccountError> {
    if !(epsilon >= 0.0 && epsilon.is_finite()) {
        return Err(AccountError::Epsilon {
            bound: "at least 0",
            value: epsilon,
        });
    }
    let parts = Parts::new(events, adjacency)?;
    if parts.mixtures.is_empty() {
        return Ok(match parts.mu() {
            mu if mu > 0.0 => gaussian::delta(mu, epsilon),
            _ => 0.0,
        });
    }
    parts.schedule()?.delta(epsilon)
}

/// `value` rounded up to `digits` significant decimal digits: for numbers that must not be
/// understated when printed.
#[must_use]
pub fn round_up(value: f64, digits: u32) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let digits = digits.clamp(1, 17) as usize;
    let near: f64 = format!("{value:.*e}", digits - 1).parse().unwrap_or(value);
    if near >= value {
        return near;
    }
    // One unit in the last place more; printing it again removes the dust of the addition.
    let unit = 10_f64.powi(value.abs().log10().floor() as i32 - (digits as i32 - 1));
    let up: f64 = format!("{:.*e}", digits - 1, near + unit)
        .parse()
        .unwrap_or(value);
    up.max(value)
}

pub(crate) fn check_delta(delta: f64) -> Result<(), AccountError> {
    if (SMALLEST_DELTA..1.0).contains(&delta) {
        Ok(())
    } else {
        Err(AccountError::Delta { value: delta })
    }
}

/// Events sorted by what they need: certain shifts add up in squares, mixtures are merged when
/// they are equal.
pub(crate) struct Parts<'a> {
    squares: f64,
    mixtures: Vec<(&'a Release, u64)>,
    adjacency: Adjacency,
}

impl<'a> Parts<'a> {
    pub(crate) fn new(events: &'a [Event], adjacency: Adjacency) -> Result<Self, AccountError> {
        // Grid positions times rounds must fit an integer, and rounding times rounds stay small.
        const MOST_ROUNDS: u64 = 1 << 36;
        if events.is_empty() {
            return Err(AccountError::NoRounds { found: 0 });
        }
        let mut parts = Parts {
            squares: 0.0,
            mixtures: Vec::new(),
            adjacency,
        };
        let mut rounds = 0_u64;
        for Event { release, count } in events {
            if *count == 0 {
                return Err(AccountError::NoRounds { found: 0 });
            }
            rounds = rounds.saturating_add(*count);
            if rounds > MOST_ROUNDS {
                return Err(AccountError::TooManyRounds);
            }
            parts.add(release, *count)?;
        }
        Ok(parts)
    }

    fn add(&mut self, release: &'a Release, count: u64) -> Result<(), AccountError> {
        // The fields of a release are public: what was changed after its making is checked here.
        if !(release.sigma > 0.0 && release.sigma.is_finite()) {
            return Err(AccountError::Event(EventError::NotPositive {
                name: "sigma",
                value: release.sigma,
            }));
        }
        if release.shifts.shifts().len() == 1 {
            self.squares += count as f64 * (release.shifts.largest() / release.sigma).powi(2);
            return Ok(());
        }
        let equal = |other: &&mut (&Release, u64)| {
            other.0.sigma == release.sigma && other.0.shifts == release.shifts
        };
        match self.mixtures.iter_mut().find(equal) {
            Some(same) => same.1 += count,
            None => self.mixtures.push((release, count)),
        }
        Ok(())
    }

    /// Total shift over noise of the certain shifts between neighbours.
    pub(crate) fn mu(&self) -> f64 {
        match self.adjacency {
            Adjacency::ZeroOut => self.squares.sqrt(),
            Adjacency::ReplaceOne => 2.0 * self.squares.sqrt(),
        }
    }

    pub(crate) fn is_gaussian(&self) -> bool {
        self.mixtures.is_empty()
    }

    pub(crate) fn schedule(&self) -> Result<Schedule, AccountError> {
        Schedule::new(&self.mixtures, self.squares.sqrt(), self.adjacency)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_goes_up_and_no_further_than_one_unit() {
        for (value, digits, expected) in [
            (1.23456, 3, 1.24),
            (1.23, 3, 1.23),
            (0.999_96, 4, 1.0),
            (99.991, 3, 100.0),
            (1.000_000_1e-5, 3, 1.01e-5),
            (123_456.0, 2, 130_000.0),
            (0.0, 3, 0.0),
        ] {
            assert_eq!(round_up(value, digits), expected, "{value}");
        }
        let mut value = 1e-9;
        while value < 1e9 {
            let up = round_up(value, 6);
            assert!(
                up >= value && up <= value * (1.0 + 1.0001e-5),
                "{value} {up}"
            );
            assert_eq!(round_up(up, 6), up);
            value *= 1.37;
        }
        assert!(round_up(f64::NAN, 3).is_nan());
    }
}
