//! Why a description is refused, or has no answer.

use thiserror::Error;

/// The smallest delta that is accounted.
pub const SMALLEST_DELTA: f64 = 1e-30;

/// Why a description of what is released is refused.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum EventError {
    /// A number that must be finite and positive is not.
    #[error("{name} must be finite and positive, found {value:?}")]
    NotPositive {
        /// Which one.
        name: &'static str,
        /// What was given.
        value: f64,
    },
    /// A number lies outside its range.
    #[error("{name} must lie in {range}, found {value:?}")]
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
    /// A word that names none of the choices.
    #[error("no {what} is called `{found}`; there are {known}")]
    UnknownWord {
        /// What was to be named.
        what: &'static str,
        /// What was given.
        found: String,
        /// The words that would do.
        known: String,
    },
    /// The combination has no proof.
    #[error("{0}")]
    Unproved(&'static str),
}

/// Why there is no answer.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum AccountError {
    /// The description itself is refused.
    #[error(transparent)]
    Event(#[from] EventError),
    /// Nothing is released, or a release happens zero times.
    #[error("there must be at least one round, found {found}")]
    NoRounds {
        /// Rounds of the release in question.
        found: u64,
    },
    /// More rounds than can be counted.
    #[error("the rounds of all events together exceed 2^36")]
    TooManyRounds,
    /// A delta that means nothing or is below what the numerics can vouch for.
    #[error("delta must lie in [1e-30, 1), found {value:?}")]
    Delta {
        /// What was given.
        value: f64,
    },
    /// An epsilon that means nothing.
    #[error("epsilon must be finite and {bound}, found {value:?}")]
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

pub(crate) fn check_delta(delta: f64) -> Result<(), AccountError> {
    if (SMALLEST_DELTA..1.0).contains(&delta) {
        Ok(())
    } else {
        Err(AccountError::Delta { value: delta })
    }
}

pub(crate) fn check_positive(name: &'static str, value: f64) -> Result<(), EventError> {
    if value > 0.0 && value.is_finite() {
        Ok(())
    } else {
        Err(EventError::NotPositive { name, value })
    }
}

pub(crate) fn check_range(
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
