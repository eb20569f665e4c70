//! The only door out: Gaussian noise turns a raw estimate into something that may be sent.
//!
//! `release` adds `N(0, sigma^2)` to every coordinate that travels and nothing else. The types make
//! the order a matter of compilation: a raw estimate ([`Collector`]) can be neither printed nor
//! encoded, [`Mechanism::release`] consumes it, and only its result, [`Released`], is accepted by a
//! compressor.
//!
//! Noise is drawn on the coordinates that travel alone. Its coordinates are independent, and which
//! ones travel does not depend on the data, so the law of the message is the one of noise on all
//! `d` coordinates (`docs/privacy.md`, lazy noise).
//!
//! Two kinds of noise. [`Noise::Float`] is rounded floating point, for simulation: a claim then
//! speaks of the ideal mechanism. [`Noise::Secure`] works on integers from the clipped record to the noised
//! sum ([`secure`]), and the claim speaks of the very numbers that are sent.

pub mod secure;

use zeroize::Zeroize;

use crate::estimator::{Collector, Grids, Sum};
use crate::objective::{Coordinates, Workspace};
use crate::random::{NORMAL_BLOCK, SecretRng, fill_standard_normal};
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

/// One clipped term of an estimate: who is bounded by what, divided by what.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TermBound {
    /// Bound on each record's norm.
    pub clip: f64,
    /// The constant by which the sum is divided.
    pub divisor: f64,
}

/// A client's Gaussian mechanism, fixed for the run.
#[derive(Clone, Debug)]
pub struct Mechanism {
    sigma: f64,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    Silent,
    Float,
    Secure {
        grids: Grids,
        sampler: RoundedGaussian,
        step: f64,
    },
}

/// See [`Mechanism::draw`].
pub const NOISE_STEP: usize = NORMAL_BLOCK;

/// A value that has passed the mechanism and may be sent. Post-processing keeps it released.
#[derive(Debug)]
pub struct Released {
    values: Vec<f32>,
}

impl Mechanism {
    /// A mechanism with standard deviation `sigma` per coordinate. Secure noise needs to know the
    /// terms of the estimate: the minibatch term first, then the full-batch term of SVRG and SAGA.
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
                let plan: Vec<secure::Term> = terms
                    .iter()
                    .map(|term| secure::Term {
                        clip: term.clip,
                        divisor: term.divisor,
                    })
                    .collect();
                let plan = GridPlan::new(sigma, coordinates, &plan)?;
                let grids = Grids {
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

    /// Most records whose integers of the full-batch term add up without saturation; `None` if there
    /// is no such term, or no grid.
    pub fn reference_capacity(&self) -> Option<u64> {
        match &self.kind {
            Kind::Secure { grids, .. } => grids.reference.map(|grid| grid.capacity()),
            _ => None,
        }
    }

    /// The noise's standard deviation per coordinate.
    pub fn sigma(&self) -> f64 {
        self.sigma
    }

    /// The noise of one round, drawn in one batch before any record is read, so that the time a
    /// sampler takes cannot depend on the data.
    ///
    /// With floating point noise `meanwhile` is called after every [`NOISE_STEP`] numbers: memory
    /// that will be needed can be asked for while the processor is busy with something else.
    pub fn draw(
        &self,
        coordinates: usize,
        rng: &mut SecretRng,
        workspace: &mut Workspace,
        mut meanwhile: impl FnMut(),
    ) -> RoundNoise {
        match &self.kind {
            Kind::Silent => RoundNoise::Silent,
            Kind::Float => {
                let sigma = round_up(self.sigma);
                let mut noise = workspace.take(coordinates);
                for values in noise.chunks_mut(NOISE_STEP) {
                    fill_standard_normal(rng, values);
                    values.iter_mut().for_each(|value| *value *= sigma);
                    meanwhile();
                }
                RoundNoise::Float(noise)
            }
            Kind::Secure { sampler, .. } => {
                let mut noise = vec![0; coordinates];
                sampler.fill(rng, &mut noise);
                RoundNoise::Secure(noise)
            }
        }
    }

    /// An empty sum of the kind this mechanism noises, for an estimate on `len` coordinates.
    pub fn collector(
        &self,
        len: usize,
        batch: f64,
        records: f64,
        workspace: &mut Workspace,
    ) -> Collector {
        match &self.kind {
            Kind::Silent | Kind::Float => Collector::float(len, batch, records, workspace),
            Kind::Secure { grids, .. } => Collector::grid(len, *grids, batch, records),
        }
    }

    /// Adds the noise. This is the only way from a raw estimate to a released one.
    pub fn release(
        &self,
        estimate: Collector,
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

/// Never less noise than was asked for.
fn round_up(sigma: f64) -> f32 {
    let nearest = sigma as f32;
    if f64::from(nearest) < sigma {
        nearest.next_up()
    } else {
        nearest
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

    /// Takes `shift` away, which is known to everybody.
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

    /// Adds a vector that holds no data, such as the regularizer's gradient.
    pub fn add_public(&mut self, vector: &[f32]) {
        self.values
            .iter_mut()
            .zip(vector)
            .for_each(|(value, public)| *value += public);
    }

    /// The buffer, for reuse.
    pub fn into_buffer(self) -> Vec<f32> {
        self.values
    }

    #[cfg(test)]
    pub(crate) fn for_tests(values: Vec<f32>) -> Self {
        Self { values }
    }
}
