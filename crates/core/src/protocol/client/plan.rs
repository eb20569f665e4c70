//! What all clients of a run do ([`ClientPlan`]), which plans are refused, and the clip bounds that
//! follow from a plan.

use std::sync::Arc;

use soteriafl_accountant::{Estimator, EventError, Over};

use crate::compress::Compressor;
use crate::data::Dataset;
use crate::estimator::{Clipping, Increment};
use crate::objective::{Objective, Regularizer};
use crate::privacy::secure::NoiseError;
use crate::privacy::{Noise, TermBound};
use crate::protocol::{ClientId, Round};
use crate::random::PublicSeed;
use crate::sampling::{Coins, Sampling};

/// What all clients of a run share.
#[derive(Clone)]
pub struct ClientPlan {
    /// The loss.
    pub objective: Arc<dyn Objective>,
    /// The compressor, participation included.
    pub compressor: Compressor,
    /// The estimator.
    pub estimator: Estimator,
    /// How each record is clipped.
    pub clipping: Clipping,
    /// Clips the client's whole estimate instead, as the authors' experiments do: no claim.
    pub estimate_clip: Option<f64>,
    /// Added to every client's estimate (`regularizer_at = "client"`); `None` when the server adds
    /// it.
    pub regularizer: Option<Regularizer>,
    /// Shift step `gamma`; `None`: direct compression.
    pub shift_step: Option<f64>,
    /// Kind of noise.
    pub noise: Noise,
    /// Whether all clients send the same coordinates, drawn from the public seed. Sound where every
    /// record is clipped on what travels (Proposition 6 of `docs/privacy.md`); random-k
    /// amplification must then not be claimed.
    pub shared_coordinates: bool,
    /// The run's public seed (snapshot coins, shared coordinates).
    pub public_seed: PublicSeed,
}

impl ClientPlan {
    /// The shared snapshot coin of `round`; always tails without SVRG.
    pub fn snapshot_coin(&self, round: Round) -> bool {
        match self.estimator {
            Estimator::Svrg {
                snapshot_probability,
                ..
            } => self.public_seed.snapshot_coin(round, snapshot_probability),
            _ => false,
        }
    }

    /// Whether the estimate of `round` is an increment, and how it is clipped for a model at this
    /// distance from the last one. Records that are not clipped have increments that are not.
    pub(super) fn increment(
        &self,
        round: Round,
        distance: impl FnOnce() -> f64,
    ) -> Option<Increment> {
        let recursion = self.estimator.recursion()?;
        if recursion.starts_anew(round) {
            return None;
        }
        let (Clipping::Record(clip) | Clipping::Selected(clip)) = self.clipping else {
            return Some(Increment {
                scale: 1.0,
                clip: None,
            });
        };
        let scale = recursion.scale(clip, distance());
        let bound = scale * clip;
        let bound = match self.noise {
            // Twice the slack of other differences: the factors `a` and `1/s` round once more each.
            Noise::Secure => bound * (1.0 - 2.0 * SLACK) - 4.0 * clip * SLACK,
            _ => bound,
        };
        Some(Increment {
            scale,
            clip: Some(bound),
        })
    }
}

/// How far below their clips records are clipped with secure noise, as a share: see [`tighten`].
const SLACK: f64 = 1.0 / (1u64 << 20) as f64;

/// Why a client cannot be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// A client without records.
    #[error("client {0} has no records")]
    Empty(ClientId),
    /// The expected batch is larger than the client's data.
    #[error("client {client} has {records} records, fewer than the batch of {batch}")]
    Batch {
        /// Which client.
        client: ClientId,
        /// Its records.
        records: usize,
        /// The batch asked for.
        batch: f64,
    },
    /// The expected batch is not a number above zero.
    #[error("client {client}: the batch must be above zero, found {batch}")]
    NoBatch {
        /// Which client.
        client: ClientId,
        /// The batch asked for.
        batch: f64,
    },
    /// More records than SAGA's integer mean can hold.
    #[error(
        "client {client} has {records} records; with this little noise saga adds up {most} at most"
    )]
    TooMany {
        /// Which client.
        client: ClientId,
        /// Its records.
        records: usize,
        /// How many there may be.
        most: u64,
    },
    /// A combination that no proof covers and that the code therefore does not have.
    #[error("{0}")]
    Unsupported(&'static str),
    /// Numbers of the recursion that make no sense.
    #[error(transparent)]
    Recursion(#[from] EventError),
    /// Secure noise does not fit.
    #[error("secure noise: {0}")]
    Noise(#[from] NoiseError),
}

/// Refuses what does not fit the client's records, and combinations that no proof covers.
pub(super) fn check(
    id: ClientId,
    plan: &ClientPlan,
    data: &Dataset,
    sampling: &Sampling,
) -> Result<(), ClientError> {
    let records = data.records();
    if data.rows() == 0 {
        return Err(ClientError::Empty(id));
    }
    let batch = sampling.divisor(records);
    if !(batch > 0.0 && batch.is_finite()) {
        return Err(ClientError::NoBatch { client: id, batch });
    }
    if matches!(sampling, Sampling::Poisson { .. }) && batch > records as f64 {
        return Err(ClientError::Batch {
            client: id,
            records,
            batch,
        });
    }
    if !plan.compressor.is_unbiased() {
        return Err(ClientError::Unsupported(
            "gradients need an unbiased compressor: grid and top-k are for what clients keep",
        ));
    }
    if let Estimator::Sag { memory } = plan.estimator
        && !(memory > 0.0 && memory <= 1.0)
    {
        return Err(ClientError::Unsupported("the memory of sag is in (0, 1]"));
    }
    if let Some(recursion) = plan.estimator.recursion() {
        recursion.check()?;
        let refused = [
            (
                plan.shift_step.is_some(),
                "recursive estimates have no shift: their increments are what a shift would leave",
            ),
            (
                plan.regularizer.is_some(),
                "with recursive estimates the server adds the regularizer, behind the recursion",
            ),
            (
                plan.estimate_clip.is_some(),
                "recursive estimates need clipped records, not clipped estimates",
            ),
        ];
        if let Some((_, reason)) = refused.into_iter().find(|(applies, _)| *applies) {
            return Err(ClientError::Unsupported(reason));
        }
    }
    if !plan.estimator.is_memoryless() && matches!(plan.clipping, Clipping::Selected(_)) {
        return Err(ClientError::Unsupported(
            "clip_scope = \"selected\" works with gd and sgd only",
        ));
    }
    if plan.estimate_clip.is_some() && matches!(plan.clipping, Clipping::Selected(_)) {
        return Err(ClientError::Unsupported(
            "clip_scope = \"selected\" does not clip the whole estimate too",
        ));
    }
    if plan.noise == Noise::Secure
        && (plan.clipping == Clipping::None || plan.estimate_clip.is_some())
    {
        return Err(ClientError::Unsupported(
            "secure noise needs clipped records",
        ));
    }
    let proved = match *sampling {
        Sampling::Full => true,
        Sampling::Poisson { coins, .. } => coins == Coins::Exact,
        Sampling::WithReplacement { .. } => false,
    };
    if plan.noise == Noise::Secure && !proved {
        return Err(ClientError::Unsupported(
            "secure noise needs whole batches or exact coins (`Coins::Exact`)",
        ));
    }
    if plan.noise == Noise::Secure && data.offset().is_some() {
        // Whether rows and offset are stored apart depends on the records, and sums over the two
        // forms round differently.
        return Err(ClientError::Unsupported(
            "secure noise needs rows with their offset in them (`Dataset::dense`)",
        ));
    }
    Ok(())
}

/// Whether the proof for secure noise covers a clip of this size: see `tighten`.
pub fn suits_secure_noise(clip: f64) -> bool {
    const FARTHEST: f64 = (1u64 << 40) as f64;
    (1.0 / FARTHEST..=FARTHEST).contains(&clip)
}

/// The bounds to which records are really clipped.
///
/// With secure noise they lie a little below the promised ones, so that a record's vector on *all*
/// coordinates obeys its bound in exact arithmetic, as random-k amplification needs: the integer
/// check sees only the coordinates that travel. A norm is known to a relative 2^-40, weights are
/// rounded down, and a coordinate is at most three rounded `f32` operations away from its exact
/// value: errors below 12 * 2^-24 of the gradient's norm, so 2^-20 of the clip is enough. A
/// difference has the errors of two gradients, each of norm at most the clip. Rounding errors are
/// relative only for normal numbers, and a malicious server could leave that range by tiny clips
/// and huge features: clips outside [2^-40, 2^40] are refused.
pub(super) fn tighten(plan: &ClientPlan) -> Result<(Clipping, Option<f64>), ClientError> {
    let difference_clip = plan.estimator.difference_clip();
    if plan.noise != Noise::Secure {
        return Ok((plan.clipping, difference_clip));
    }
    let (clipping, clip) = match plan.clipping {
        Clipping::None => return Ok((Clipping::None, difference_clip)),
        Clipping::Record(clip) => (Clipping::Record(clip * (1.0 - SLACK)), clip),
        Clipping::Selected(clip) => (Clipping::Selected(clip * (1.0 - SLACK)), clip),
    };
    if ![Some(clip), difference_clip]
        .into_iter()
        .flatten()
        .all(suits_secure_noise)
    {
        return Err(ClientError::Unsupported(
            "secure noise needs clips between 2^-40 and 2^40",
        ));
    }
    match difference_clip.map(|difference| difference * (1.0 - SLACK) - 2.0 * clip * SLACK) {
        Some(tightened) if tightened <= 0.0 => Err(ClientError::Unsupported(
            "secure noise needs a difference_clip above 2^-19 of the clip",
        )),
        tightened => Ok((clipping, tightened)),
    }
}

/// The bounds that secure noise checks in integers.
pub(super) fn secure_terms(
    plan: &ClientPlan,
    sampling: &Sampling,
    records: usize,
) -> Result<Vec<TermBound>, ClientError> {
    let clip = match plan.clipping {
        Clipping::None => return Ok(Vec::new()),
        Clipping::Record(bound) | Clipping::Selected(bound) => bound,
    };
    let divisor = sampling.divisor(records);
    if plan.estimator.has_two_terms() && plan.estimator.difference_clip().is_none() {
        return match plan.noise {
            Noise::Secure => Err(ClientError::Unsupported(
                "secure noise with svrg and saga needs a difference_clip",
            )),
            _ => Ok(Vec::new()),
        };
    }
    let terms = plan.estimator.terms(clip).map(|term| {
        let divisor = match term.over {
            Over::Batch => divisor,
            Over::All => records as f64,
        };
        TermBound {
            clip: term.clip,
            divisor: divisor / term.weight,
        }
    });
    Ok(terms.collect())
}
