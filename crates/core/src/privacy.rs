//! The Gaussian mechanism: noise turns a raw estimate into values that may be sent.
//!
//! **What it computes.** `release = estimate + N(0, sigma^2)` on every coordinate that travels, and
//! nothing else: the perturbation in Algorithm 1.
//!
//! **Guarantee.** There is no other way out of a client, and the compiler checks it: a
//! [`RawEstimate`] can be neither printed nor encoded, [`GaussianMechanism::release`] consumes it,
//! and a compressor accepts only the result, [`Released`].
//!
//! Noise is drawn only on the coordinates that travel. Its coordinates are independent, and which
//! coordinates travel does not depend on the data, so the message has the distribution that noise
//! on all `d` coordinates would give it (`docs/privacy.md`, lazy noise).
//!
//! There are two kinds of noise. [`Noise::Float`] is rounded floating point, for simulation: a
//! claim then speaks of the ideal mechanism. [`Noise::Secure`] works on integers from the clipped
//! record to the noised sum ([`secure`]), and the claim speaks of the numbers that are sent.
//!
//! **Cost.** `O(k)` random numbers for `k` coordinates that travel.

mod raw_estimate;
pub mod secure;

use sha2::{Digest, Sha256};
use soteriafl_accountant::mutation::{Mutation, active};
use zeroize::Zeroize;

use crate::linalg::round_up;
use crate::objective::{Coordinates, Workspace};
use crate::random::{NORMAL_BLOCK, Purpose, SecretKey, SecretRng, fill_standard_normal};
pub(crate) use raw_estimate::KeptMean;
pub use raw_estimate::{Contribution, RawEstimate, Term};
use raw_estimate::{Sum, TermGrids};
pub use secure::TermBound;
use secure::{GridPlan, NoiseError, RoundedGaussian};

/// Which noise is added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noise {
    /// None: nothing is claimed.
    None,
    /// Floating-point Gaussian noise, for simulation.
    Float,
    /// Integer noise that is exactly a rounded Gaussian.
    Secure,
}

/// A client's Gaussian mechanism, fixed for the run.
#[derive(Clone, Debug)]
pub struct GaussianMechanism {
    sigma: f64,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    Silent,
    Float,
    Secure {
        grids: TermGrids,
        sampler: RoundedGaussian,
        step: f64,
    },
}

/// A value that has passed the mechanism and may be sent. Post-processing keeps it released.
#[derive(Debug)]
pub struct Released {
    values: Vec<f32>,
}

impl GaussianMechanism {
    /// A mechanism with standard deviation `sigma` per coordinate. Secure noise needs to know the
    /// terms of the estimate: the minibatch term first, then the term of all records (SVRG, SAGA,
    /// SAG).
    ///
    /// # Errors
    /// When no integer grid suits `sigma` and the terms.
    pub fn new(
        noise: Noise,
        sigma: f64,
        terms: &[TermBound],
        coordinates: usize,
    ) -> Result<Self, NoiseError> {
        let kind = match noise {
            Noise::None => Kind::Silent,
            Noise::Float => Kind::Float,
            Noise::Secure => {
                let plan = GridPlan::new(sigma, coordinates, terms)?;
                let grids = TermGrids {
                    batch: plan.grids()[0],
                    reference: plan.grids().get(1).copied(),
                };
                Kind::Secure {
                    grids,
                    sampler: *plan.noise(),
                    step: 2f64.powi(plan.exponent()),
                }
            }
        };
        Ok(Self { sigma, kind })
    }

    /// The most records whose integers of the full-batch term add up without saturation; `None` if
    /// there is no such term, or no grid.
    pub fn reference_capacity(&self) -> Option<u64> {
        match &self.kind {
            Kind::Secure { grids, .. } => Some(grids.of(Term::Reference).capacity()),
            _ => None,
        }
    }

    /// How far a grid may move a record of the first term on so many coordinates; nothing without a
    /// grid.
    pub(crate) fn truncation_bound(&self, coordinates: usize) -> f64 {
        match &self.kind {
            Kind::Secure { grids, .. } => grids.batch.truncation_bound(coordinates),
            _ => 0.0,
        }
    }

    /// The noise's standard deviation per coordinate.
    pub fn sigma(&self) -> f64 {
        self.sigma
    }

    /// The noise of one round, drawn at once, before any value of a record is computed with: so the
    /// time that a sampler takes cannot depend on values. (The minibatch is known by then, and its
    /// rows may be on their way to the cache.)
    ///
    /// With floating-point noise `meanwhile` is called between the steps of the computation, in
    /// order to ask for memory that will be needed later. Its argument is the number of calls still
    /// to come, this one included.
    pub fn draw(
        &self,
        coordinates: usize,
        rng: &mut SecretRng,
        workspace: &mut Workspace,
        mut meanwhile: impl FnMut(usize),
    ) -> RoundNoise {
        match &self.kind {
            Kind::Silent => RoundNoise::Silent,
            Kind::Float => {
                // Never less noise than was calibrated.
                let mut sigma = round_up(self.sigma);
                if active(Mutation::NoiseHalved) {
                    sigma *= 0.5;
                }
                let mut noise = workspace.take(coordinates);
                let steps = coordinates.div_ceil(NORMAL_BLOCK);
                for (step, values) in noise.chunks_mut(NORMAL_BLOCK).enumerate() {
                    fill_standard_normal(rng, values);
                    values.iter_mut().for_each(|value| *value *= sigma);
                    meanwhile(steps - step);
                }
                RoundNoise::Float(noise)
            }
            Kind::Secure { sampler, .. } => {
                let mut noise = vec![0; coordinates];
                sampler.fill(rng, &mut noise);
                if active(Mutation::NoiseHalved) {
                    noise.iter_mut().for_each(|noise| *noise /= 2);
                }
                RoundNoise::Secure(noise)
            }
        }
    }

    /// An empty sum of the kind that this mechanism adds noise to, for an estimate on `len`
    /// coordinates with the divisors of its two terms.
    pub fn empty_estimate(
        &self,
        len: usize,
        divisors: [f64; 2],
        workspace: &mut Workspace,
    ) -> RawEstimate {
        match &self.kind {
            Kind::Silent | Kind::Float => RawEstimate::float(len, divisors, workspace),
            Kind::Secure { grids, .. } => RawEstimate::grid(len, *grids, divisors),
        }
    }

    /// Draws the noise and adds it, with a key that is a hash of `key`, of `label` and of the sum
    /// itself: one secret can serve for any number of such releases, and no two sums, and no two
    /// labels, ever share their noise. What a simulation with a fixed seed publishes at two targets
    /// can then not be subtracted from each other. For a fixed sum the key is as good as fresh.
    pub(crate) fn release_bound(
        &self,
        estimate: RawEstimate,
        key: &SecretKey,
        label: &[u8],
        workspace: &mut Workspace,
    ) -> Released {
        let mut hasher = Sha256::new();
        hasher.update(key.expose());
        hasher.update((label.len() as u64).to_le_bytes());
        hasher.update(label);
        hasher.update(self.sigma.to_le_bytes());
        let len = match &estimate.sum {
            Sum::Float(sum) => {
                sum.iter()
                    .for_each(|value| hasher.update(value.to_le_bytes()));
                sum.len()
            }
            Sum::Grid { sum, .. } => {
                sum.iter()
                    .for_each(|value| hasher.update(value.to_le_bytes()));
                sum.len()
            }
        };
        let bound = SecretKey::kept(hasher.finalize().into());
        let mut stream = bound.stream(0, Purpose::Preliminary);
        let noise = self.draw(len, &mut stream, workspace, |_| {});
        self.release(estimate, noise, workspace)
    }

    /// Adds the noise. This is the only way from a raw estimate to a released one.
    pub fn release(
        &self,
        estimate: RawEstimate,
        noise: RoundNoise,
        workspace: &mut Workspace,
    ) -> Released {
        match (estimate.sum, noise) {
            (Sum::Float(mut values), RoundNoise::Float(noise)) => {
                values
                    .iter_mut()
                    .zip(&noise)
                    .for_each(|(value, noise)| *value += noise);
                workspace.put(noise);
                Released { values }
            }
            (Sum::Float(values), RoundNoise::Silent) => Released { values },
            (Sum::Grid { sum, .. }, RoundNoise::Secure(mut noise)) => {
                let Kind::Secure { step, .. } = self.kind else {
                    unreachable!("grids come from a secure mechanism")
                };
                let mut values = workspace.take(sum.len());
                for ((value, sum), noise) in values.iter_mut().zip(sum).zip(&noise) {
                    // Everything after the integer sum is post-processing.
                    *value = (sum.saturating_add(*noise) as f64 * step) as f32;
                }
                noise.zeroize();
                Released { values }
            }
            _ => unreachable!("sum and noise come from the same mechanism"),
        }
    }
}

/// The noise of one round.
pub enum RoundNoise {
    /// No noise.
    Silent,
    /// Floating point.
    Float(Vec<f32>),
    /// Integers.
    Secure(Vec<i64>),
}

impl Released {
    /// The released values.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Subtracts the shift, which is a function of released values.
    pub fn subtract(&mut self, shift: &[f32], coordinates: Coordinates<'_>) {
        match coordinates {
            Coordinates::All => self
                .values
                .iter_mut()
                .zip(shift)
                .for_each(|(value, shift)| *value -= shift),
            Coordinates::Selected(chosen) => {
                for (value, &index) in self.values.iter_mut().zip(chosen) {
                    *value -= shift[index as usize];
                }
            }
        }
    }

    /// Multiplies by a public number.
    pub fn scale(&mut self, factor: f64) {
        let factor = factor as f32;
        self.values.iter_mut().for_each(|value| *value *= factor);
    }

    /// Adds a vector that holds no data, such as the regularizer's gradient.
    pub fn add_public(&mut self, vector: &[f32]) {
        self.values
            .iter_mut()
            .zip(vector)
            .for_each(|(value, public)| *value += public);
    }

    /// A vector that was computed from released values, public ones and coins of its own alone
    /// (post-processing), such as the model of a client without a server.
    pub(crate) fn derived(values: Vec<f32>) -> Self {
        Self { values }
    }

    /// The values on some coordinates, in a buffer with one place for each.
    pub(crate) fn restricted(&self, chosen: &[u32], mut values: Vec<f32>) -> Self {
        for (value, &index) in values.iter_mut().zip(chosen) {
            *value = self.values[index as usize];
        }
        Self { values }
    }

    /// The buffer, for reuse.
    pub fn into_buffer(self) -> Vec<f32> {
        self.values
    }
}
