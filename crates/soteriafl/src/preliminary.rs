//! What the clients of a run release before its first round, in order, and what everybody makes of
//! the averages: the same in a simulation and in a deployment.
//!
//! A client makes a message by [`PreliminaryRelease::message`], a server averages those of all
//! clients ([`Average::of`]), and everybody computes the same record-wise map from the average
//! ([`Whitening`]): no matrix travels that somebody could have chosen otherwise. Noise and cost are
//! [`accounting::preliminaries`](crate::accounting::preliminaries).

use soteriafl_core::moments::{self, Aim, Whitening};
use soteriafl_core::preliminary::{self, Average, PreliminaryError};
use soteriafl_core::random::SecretKey;
use soteriafl_core::ranges;
use soteriafl_data::Dataset;

use crate::accounting::PreliminaryRelease;
use crate::config::resolve::Resolved;
use crate::specification::Preliminary;

impl PreliminaryRelease {
    /// Numbers of its message, for so many columns that it is about.
    pub fn len(&self, columns: usize) -> usize {
        match self.kind {
            Preliminary::Moments => moments::entries(columns),
            Preliminary::Magnitudes => ranges::magnitudes_len(columns),
            Preliminary::Parts => ranges::parts_len(columns),
        }
    }

    /// A client's message, the release's `number` in the run being the round that it names.
    ///
    /// # Errors
    /// When no grid suits the noise.
    pub fn message(
        &self,
        number: u32,
        data: &Dataset,
        key: &SecretKey,
    ) -> Result<Vec<u8>, PreliminaryError> {
        let released = match self.kind {
            Preliminary::Moments => moments::release(data, self.sigma, key)?,
            Preliminary::Magnitudes | Preliminary::Parts => return Err(PreliminaryError::Subject),
        };
        Ok(preliminary::message(number, &released))
    }
}

/// The map that averaged second moments give, if `averages` are those of all the run's releases.
pub fn whitening(
    kinds: &[Preliminary],
    averages: &[Average],
    columns: usize,
    aim: Aim,
) -> Option<Whitening> {
    let at = kinds
        .iter()
        .position(|kind| *kind == Preliminary::Moments)?;
    let average = averages.get(at)?;
    Some(Whitening::new(average, columns, aim))
}

/// What the records of a run are whitened for.
pub fn aim(resolved: &Resolved) -> Aim {
    match resolved.target_range {
        Some(_) => Aim::Numbers,
        None => Aim::Classes,
    }
}
