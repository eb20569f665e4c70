//! One masked round with every bound that is proved for it; the smallest holds.

use super::{masked_losses, masked_rdp, suggested_step};
use crate::adjacency::Adjacency;
use crate::error::AccountError;
use crate::mechanism::RandomK;
use crate::mixture::ShiftMixture;
use crate::pld::{LossDistribution, epsilon_of_losses};
use crate::rdp::RdpCurve;

/// A grid of losses this coarse says nothing any more.
const COARSEST_STEP: f64 = 0.5;

/// The proved bounds of one masked round.
pub(crate) struct MaskedRound {
    mixture: ShiftMixture,
    adjacency: Adjacency,
    random_k: RandomK,
    /// The Rényi rule, where it is proved.
    curve: Option<RdpCurve>,
    /// The step of `losses`.
    step: f64,
    /// The envelope: one distribution per direction, all must hold. Empty where only Rényi was
    /// asked for.
    losses: Vec<LossDistribution>,
}

impl MaskedRound {
    /// A round of `mixture` (in units of the noise) by the Rényi rule and, if asked for, by the
    /// envelope; `None` where nothing of that is proved.
    ///
    /// # Errors
    /// A mask that the proof does not cover.
    pub(crate) fn new(
        mixture: ShiftMixture,
        adjacency: Adjacency,
        random_k: RandomK,
        with_envelope: bool,
    ) -> Result<Option<Self>, AccountError> {
        let curve = masked_rdp(&mixture, adjacency, &random_k)?;
        let step = suggested_step(&mixture, adjacency, &random_k);
        let losses = if with_envelope {
            masked_losses(&mixture, adjacency, &random_k, step)?
        } else {
            Vec::new()
        };
        let proved = curve.is_some() || !losses.is_empty();
        Ok(proved.then_some(MaskedRound {
            mixture,
            adjacency,
            random_k,
            curve,
            step,
            losses,
        }))
    }

    /// The smallest proved epsilon after `rounds` rounds.
    pub(crate) fn epsilon(&self, rounds: u64, delta: f64) -> Result<f64, AccountError> {
        let renyi = self.curve.as_ref();
        let renyi = renyi.map_or(f64::INFINITY, |curve| curve.epsilon(rounds, delta));
        if self.losses.is_empty() {
            return Ok(renyi);
        }
        let mut envelope = composed(&self.losses, rounds, delta);
        // So many rounds, or so little noise, that a fine grid is too long: every step gives a
        // bound.
        let mut step = self.step;
        while matches!(envelope, Err(AccountError::Unresolved { .. })) && step < COARSEST_STEP {
            step *= 8.0;
            let losses = masked_losses(&self.mixture, self.adjacency, &self.random_k, step)?;
            if losses.is_empty() {
                break;
            }
            envelope = composed(&losses, rounds, delta);
        }
        match envelope {
            Ok(envelope) => Ok(renyi.min(envelope)),
            Err(AccountError::Unresolved { .. }) => Ok(renyi),
            Err(error) => Err(error),
        }
    }
}

/// The largest epsilon of any direction after `rounds` rounds.
fn composed(losses: &[LossDistribution], rounds: u64, delta: f64) -> Result<f64, AccountError> {
    let mut worst = 0.0_f64;
    for losses in losses {
        worst = worst.max(epsilon_of_losses(&[(losses, rounds)], delta)?);
    }
    Ok(worst)
}
