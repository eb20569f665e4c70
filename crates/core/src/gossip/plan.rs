//! What all nodes of a run do, and how strongly they may mix.

use crate::compress::{Compressor, CompressorKind};
use crate::gossip::Graph;
use crate::objective::Regularizer;
use crate::protocol::{Round, Schedule};

/// What clients without a server tell each other; see the [module](crate::gossip).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Compressed differences of models, which all who hear them add up (SDM-DSGD).
    Differences,
    /// Models, rounded to a grid (Q-DPSGD-1).
    Models,
    /// Compressed differences of models and of tracked gradients (PORTER).
    Tracking,
}

impl Transport {
    /// Whether a client keeps noisy vectors and sends of them later what does not travel now. Noise
    /// must then be on all coordinates, and random coordinates hide nothing.
    pub fn keeps_noise(self) -> bool {
        self != Transport::Differences
    }

    /// Whether the compressor is one for what this transport sends.
    ///
    /// # Errors
    /// With the reason, if it is not.
    pub fn check(self, compressor: &Compressor) -> Result<(), PlanError> {
        if compressor.participation() < 1.0 {
            return Err(PlanError("every client speaks in every round"));
        }
        let kind = compressor.kind();
        match self {
            Transport::Differences if !compressor.is_unbiased() => Err(PlanError(
                "differences of models need an unbiased compressor with a relative error",
            )),
            Transport::Models
                if !matches!(kind, CompressorKind::Grid { .. } | CompressorKind::Identity) =>
            {
                Err(PlanError(
                    "whole models need an error that does not grow with them: a grid, or identity",
                ))
            }
            Transport::Tracking if matches!(kind, CompressorKind::Grid { .. }) => Err(PlanError(
                "differences of models need a relative error, which a grid has not",
            )),
            _ => Ok(()),
        }
    }

    /// Whether [`largest_mixing`](Self::largest_mixing) follows from a proof, or is a rule.
    pub fn bound_is_proved(self, compressor: &Compressor) -> bool {
        self != Transport::Tracking || compressor.kind() == CompressorKind::Identity
    }

    /// The largest mixing under which differences between clients do not grow in the mean square,
    /// for losses whose gradient changes by `curvature` at most in one step of size one
    /// (`docs/gossip.md` has the derivation).
    ///
    /// For an eigenvalue `m` of `I - W` plus the curvature, *differences* multiply the second
    /// moment by `(1 - a m)^2 + omega (a m)^2`, which is at most one up to `a m = 2/(1 + omega)`,
    /// and *models* multiply the mean by `1 - a m`. *Tracking* takes `t` equal steps of `a m`
    /// between two messages of a coordinate; for a geometric `t` with mean `1/c`, `E (1 - a m t)^2
    /// <= 1` up to `a m = 2c/(2 - c)`, where `c` is the compressor's contraction. That is exact
    /// where all send the same random coordinates, and a rule elsewhere
    /// ([`bound_is_proved`](Self::bound_is_proved)).
    pub fn largest_mixing(self, compressor: &Compressor, graph: &Graph, curvature: f64) -> f64 {
        let most = match self {
            Transport::Differences => 2.0 / (1.0 + compressor.omega()),
            Transport::Models => 2.0,
            Transport::Tracking => {
                let contraction = compressor.contraction();
                2.0 * contraction / (2.0 - contraction)
            }
        };
        most / (graph.widest() + curvature)
    }
}

/// Why a plan makes no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PlanError(&'static str);

/// What all nodes of a run share.
#[derive(Clone, Debug)]
pub struct GossipPlan {
    /// What is sent.
    pub transport: Transport,
    /// How far a node goes towards the mix of what it hears, in a round.
    pub mixing: f64,
    /// Step size.
    pub step_size: f64,
    /// How the step size changes.
    pub schedule: Schedule,
    /// Compresses messages.
    pub compressor: Compressor,
    /// The public regularizer, of which every node adds the exact gradient at its own model.
    pub regularizer: Regularizer,
    /// What clients count for in the objective. The mean of models weighs all alike, so the
    /// releases of a client are multiplied by its weight times the number of clients.
    pub weights: Vec<f64>,
    /// Total number of rounds.
    pub rounds: Round,
}

impl GossipPlan {
    /// The step size of a round.
    pub(super) fn step(&self, round: Round) -> f64 {
        self.step_size * self.schedule.factor(round, self.rounds)
    }

    /// By what a client's releases are multiplied.
    pub(super) fn share(&self, client: usize) -> f64 {
        self.weights[client] * self.weights.len() as f64
    }
}
