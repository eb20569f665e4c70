//! One direction of a schedule.

use super::compose::Phase;
use super::cut::Cutoff;
use super::losses::LossDistribution;
use super::window::{Placement, Samples};
use crate::mixture::MixturePair;

/// A schedule seen in one direction: pairs and how often each is drawn.
#[derive(Clone, Debug)]
pub(super) struct Direction {
    pub(super) phases: Vec<(MixturePair, u64)>,
}

impl Direction {
    pub(super) fn samples(&self, cutoff: Cutoff) -> Vec<Samples> {
        self.phases
            .iter()
            .map(|(pair, count)| Samples::of_pair(pair, *count, cutoff))
            .collect()
    }

    pub(super) fn rounds(&self) -> f64 {
        self.phases.iter().map(|phase| phase.1 as f64).sum()
    }

    /// An upper bound of delta at epsilon zero: distances add up over rounds.
    pub(super) fn total_variation(&self) -> f64 {
        const ROUNDING: f64 = 1e-15;
        self.phases
            .iter()
            .map(|(pair, count)| *count as f64 * (pair.total_variation() + ROUNDING))
            .sum()
    }

    /// The coarsest step worth trying: a quarter of a round's spread, within reason.
    pub(super) fn coarsest_step(&self, placement: &Placement) -> f64 {
        const FEWEST_POINTS: f64 = 2048.0;
        const MOST_POINTS: f64 = 65_536.0;
        let window = placement.window.length;
        (placement.spread / self.rounds().sqrt() / 4.0)
            .min(window / FEWEST_POINTS)
            .max(window / MOST_POINTS)
    }

    pub(super) fn phases<'a>(
        &self,
        losses: &'a [LossDistribution],
        samples: &'a [Samples],
    ) -> Vec<Phase<'a>> {
        losses
            .iter()
            .zip(samples)
            .zip(&self.phases)
            .map(|((losses, samples), phase)| Phase {
                losses,
                samples,
                count: phase.1,
            })
            .collect()
    }
}
