//! Objectives whose numbers are computed elsewhere: by another language, another process, another
//! device. They can fail, and they want whole batches.
//!
//! **Guarantee.** An error ends what asked for it before anything is released: no message is made,
//! shift and estimator stay as they were, and the same round can be asked for again
//! ([`Client::message`](crate::protocol::Client::message)).
//!
//! **Cost.** One call for a whole batch of GD or SGD ([`Elsewhere::add_clipped`]), which needs no
//! gradient of a record in memory; one per [`Elsewhere::most_records`] where records' gradients are
//! needed one by one (SVRG, SAGA, secure noise).

use std::error::Error;

use super::{Coordinates, Records};

/// Why an objective could not compute, in the words of the code that it called.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ObjectiveError(Box<dyn Error + Send + Sync>);

impl ObjectiveError {
    /// This error, whatever it is.
    pub fn new(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self(error.into())
    }

    /// The error as it was given, for callers that know its type.
    pub fn into_inner(self) -> Box<dyn Error + Send + Sync> {
        self.0
    }
}

/// The norm to which gradients are clipped, and the coordinates over which it is taken.
#[derive(Clone, Copy, Debug)]
pub struct ClipBound<'a> {
    /// The largest norm.
    pub norm: f64,
    /// Over these coordinates.
    pub over: Coordinates<'a>,
}

/// What an objective adds to [`Objective`](super::Objective) if its numbers are computed elsewhere.
pub trait Elsewhere: Send + Sync {
    /// How many records [`factors`](super::Objective::factors) is asked for at a time: bounds the
    /// memory for factors.
    fn most_records(&self) -> usize;

    /// Adds `scale sum_j c_j g_j`, restricted to `coordinates`, to `sum`: gradients at `model` of
    /// all these records, each scaled by the `c_j <= 1` that clips it; 1 without a bound. A record
    /// whose gradient has no finite norm adds nothing if there is a bound.
    ///
    /// # Errors
    /// When it cannot be computed; `sum` is then of no use.
    fn add_clipped(
        &self,
        model: &[f32],
        records: Records<'_>,
        clip: Option<ClipBound<'_>>,
        coordinates: Coordinates<'_>,
        scale: f32,
        sum: &mut [f32],
    ) -> Result<(), ObjectiveError>;
}
