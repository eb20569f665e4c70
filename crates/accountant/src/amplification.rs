//! Random-k amplifies privacy: a record whose pull lies on coordinates that do not travel is not
//! seen.
//!
//! **When.** The client draws `k` of `d` coordinates uniformly, afresh for every message, after it
//! has the model and independently of data, noise and minibatch; each record is clipped as a whole
//! (`ClipScope::Record`). With `kappa = k/d` and a record vector `u`, the part that travels
//! satisfies `E |u_I|^2 = kappa |u|^2`. `docs/privacy.md` (Theorems 7, 8 and 10) has the proofs; in
//! short:
//!
//! **Rényi rule** ([`masked_rdp`]). `A(s) = E_Q[(P/Q)^a]` is convex in the squared shift `s` for
//! the Gaussian and for the subsampled Gaussian, at every real order, so the worst distribution of
//! `|u_I|^2` is all or nothing:
//!
//! ```text
//! A_masked <= 1 - kappa + kappa A.
//! ```
//!
//! **Envelope** ([`masked_losses`]). A hockey-stick divergence is not convex in the squared shift,
//! but the worst distribution of `rho = |u_I|^2/|u|^2` with mean at most
//! `rho_bar = min(1, vectors * kappa)` gives its concave envelope:
//!
//! ```text
//! H_g(masked) <= sup { E H_g(pair scaled by sqrt(rho)) : 0 <= rho <= 1, E rho <= rho_bar }.
//! ```
//!
//! As a supremum of hockey-stick curves it is convex in `g` and composes. With several vectors a
//! second bound moves one vector at a time (`amplification/chain.rs`), each at mean `kappa`, and
//! the smaller one counts. The curve is computed rounded up, and returned as a loss distribution on
//! a grid whose own curve lies above it.
//!
//! [`MaskedRound`] takes the smaller epsilon of the two; neither is always better. **Cost**: 0.5 to
//! 20 milliseconds.
//!
//! Not in the paper, which uses compression after the noise as post-processing only.

mod chain;
mod curve;
mod envelope;
mod excess;
mod grid;
mod round;

pub(crate) use round::MaskedRound;

use crate::adjacency::Adjacency;
use crate::error::{AccountError, EventError, check_positive};
use crate::mechanism::{RandomK, Release, check_fraction};
use crate::mixture::{MixturePair, ShiftMixture};
use crate::pld::LossDistribution;
use crate::rdp::{RdpCurve, direction_curve, log_one_plus, orders, rdp_curve};
use chain::Table;
use curve::MaskedCurve;

impl Release {
    /// The Rényi curve of one message with noise of standard deviation `sigma`, amplified at every
    /// order where that is proved and smaller. For filters, which add up curves of releases that
    /// are chosen as one goes; everything else asks a [`Question`](crate::Question).
    ///
    /// # Errors
    /// A `sigma` that is not finite and positive, or a mask that the proof does not cover.
    pub fn rdp_curve(&self, sigma: f64, adjacency: Adjacency) -> Result<RdpCurve, AccountError> {
        let round = self.shifts.over(sigma)?;
        let plain = rdp_curve(&round, adjacency);
        let masked = match &self.random_k {
            Some(random_k) => masked_rdp(&round, adjacency, random_k)?,
            None => None,
        };
        Ok(masked.map_or_else(|| plain.clone(), |masked| masked.tighter(&plain)))
    }
}

/// The loss distributions of one masked round, each an upper bound for its direction: one under
/// replace-one (which is symmetric), remove and add under zero-out. Epsilon is the larger one.
///
/// `mixture` is in units of the noise; `step` is the grid on which rounds will be composed, see
/// [`suggested_step`]. Where losses are too many steps long there is no bound, and no law.
///
/// # Errors
/// Refuses a fraction outside (0, 1], a step that is not positive, and a number of masked vectors
/// below the one the proof needs for this mixture; losses that need too many steps.
fn masked_losses(
    mixture: &ShiftMixture,
    adjacency: Adjacency,
    random_k: &RandomK,
    step: f64,
) -> Result<Vec<LossDistribution>, AccountError> {
    check_positive("grid step", step)?;
    let mean = mean_fraction(mixture, adjacency, random_k)?;
    let scale = typical_loss(mixture, adjacency, random_k.fraction);
    let nodes = grid::nodes(&MixturePair::directions(mixture, adjacency)[0], step, scale)?;
    let mut curve = MaskedCurve::new(mixture, adjacency, mean);
    let chain = (curve.has_several_vectors() && random_k.fraction < 1.0)
        .then(|| Table::of_release(mixture, adjacency, random_k.fraction, scale));
    let excess = |epsilon: f64| {
        let chained = chain
            .as_ref()
            .map_or(f64::INFINITY, |chain| chain.at(epsilon));
        curve.excess_within(epsilon, chained)
    };
    let dots = grid::dots(&nodes, step, excess);
    Ok(match adjacency {
        Adjacency::ReplaceOne => vec![grid::connect(dots, step)],
        // H_g(Q||P) = 1 - g + g H_{1/g}(P||Q): the add direction mirrors the remove direction.
        Adjacency::ZeroOut => {
            let mirrored = grid::mirrored(&dots, step);
            vec![grid::connect(dots, step), grid::connect(mirrored, step)]
        }
    })
}

/// A step fine enough for [`masked_losses`]: a fortieth of the typical loss, at most 1e-4.
fn suggested_step(mixture: &ShiftMixture, adjacency: Adjacency, random_k: &RandomK) -> f64 {
    let scale = typical_loss(mixture, adjacency, random_k.fraction);
    if scale > 0.0 {
        (scale / 40.0).min(1e-4)
    } else {
        1e-4
    }
}

/// The Rényi curve of one masked round, or `None` where no rule is proved: it is for a single shift
/// (full gradients, both adjacencies) and for the subsampled Gaussian under zero-out.
///
/// # Errors
/// As [`masked_losses`].
fn masked_rdp(
    mixture: &ShiftMixture,
    adjacency: Adjacency,
    random_k: &RandomK,
) -> Result<Option<RdpCurve>, EventError> {
    mean_fraction(mixture, adjacency, random_k)?;
    let proved =
        mixture.is_single() || (adjacency == Adjacency::ZeroOut && mixture.is_subsampled());
    // One masked vector only: with more, the mean of rho is not kappa.
    if !proved || random_k.vectors(adjacency) != 1 {
        return Ok(None);
    }
    // In both cases the first direction is the larger one at every mask (equal for a single
    // shift; Mironov, Talwar, Zhang, Thm. 5 for the subsampled Gaussian).
    let unmasked = direction_curve(&MixturePair::directions(mixture, adjacency)[0]);
    let per_order = orders().iter().zip(unmasked.values());
    let masked = per_order.map(|(&order, &value)| mask(value, order, random_k.fraction));
    Ok(Some(RdpCurve::from_values(masked.collect())))
}

/// `log(1 - kappa + kappa e^{(a-1) D}) / (a - 1)`.
fn mask(divergence: f64, order: f64, fraction: f64) -> f64 {
    let log_moment = (order - 1.0) * divergence;
    if log_moment <= 0.0 {
        return 0.0;
    }
    // log(kappa (A - 1)), with A - 1 = A (1 - 1/A) so that a large A cannot overflow.
    let excess = fraction.ln() + log_moment + (-(-log_moment).exp_m1()).ln();
    log_one_plus(excess) / (order - 1.0)
}

/// `rho_bar = min(1, vectors * kappa)`, after checking that so many vectors are enough.
fn mean_fraction(
    mixture: &ShiftMixture,
    adjacency: Adjacency,
    random_k: &RandomK,
) -> Result<f64, EventError> {
    check_fraction(random_k.fraction)?;
    // Every shift that can occur is a vector of its own; a certain one needs no coin, so under
    // replace-one the two records' difference is one vector.
    let needed = match (adjacency, mixture.is_single()) {
        (_, true) => 1,
        (Adjacency::ZeroOut, false) => mixture.moving().count(),
        (Adjacency::ReplaceOne, false) => 2 * mixture.moving().count(),
    };
    let given = random_k.vectors(adjacency);
    if (given as usize) < needed {
        return Err(EventError::Unproved(
            "random-k amplification is proved only with one masked vector per possible shift",
        ));
    }
    Ok((f64::from(given) * random_k.fraction).min(1.0))
}

/// A guess of the standard deviation of one round's loss, `sqrt(2 kappa KL)`; sets resolutions,
/// never safety.
fn typical_loss(mixture: &ShiftMixture, adjacency: Adjacency, mean: f64) -> f64 {
    let pair = &MixturePair::directions(mixture, adjacency)[0];
    let (bottom, top) = (-8.0 - pair.down.largest(), 8.0 + pair.up.largest());
    let count = 400;
    let width = (top - bottom) / f64::from(count);
    let divergence: f64 = (0..count)
        .map(|index| {
            let y = bottom + (f64::from(index) + 0.5) * width;
            let log_p = pair.up.log_density(y);
            let loss = log_p - pair.down.log_density(-y);
            // KL as E_P[L - 1 + 1/e^L], whose integrand is nonnegative.
            (log_p - 0.5 * y * y).exp() * (loss + (-loss).exp_m1())
        })
        .sum();
    let divergence = divergence * width / (2.0 * std::f64::consts::PI).sqrt();
    (2.0 * mean * divergence.max(0.0)).sqrt()
}

#[cfg(test)]
mod tests;
