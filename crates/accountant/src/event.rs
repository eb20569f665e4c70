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
