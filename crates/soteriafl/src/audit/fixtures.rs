//! A run for tests.

use soteriafl_accountant::{Adjacency, ClipScope, Estimator};
use soteriafl_core::compress::CompressorKind;
use soteriafl_core::objective::Regularizer;
use soteriafl_core::protocol::Schedule;

use crate::specification::{
    AccountantName, Aggregation, Batches, Clip, Coordinates, NoiseName, NoiseTarget, Output,
    Specification, StepSizeOrigin,
};

/// Full gradients, nothing compressed, ten rounds.
pub(crate) fn run() -> Specification {
    Specification {
        gossip: None,
        estimator: Estimator::Gd,
        batch: None,
        batches: Batches::Poisson,
        clip: Some(Clip {
            bound: 0.5,
            scope: ClipScope::Record,
        }),
        compressor: CompressorKind::Identity,
        downlink: None,
        participation: 1.0,
        coordinates: Coordinates::Own,
        shift: None,
        target: NoiseTarget::Epsilon(1.0),
        delta: 1e-3,
        adjacency: Adjacency::ReplaceOne,
        records_per_person: 1,
        accountant: AccountantName::Pld,
        direct_theorem: false,
        amplification: true,
        noise: NoiseName::Float,
        step_size_origin: StepSizeOrigin::Public,
        step_size: 1.0,
        schedule: Schedule::Constant,
        momentum: 0.0,
        regularizer: Regularizer::None,
        regularizer_at_client: false,
        moments: None,
        ranges: None,
        ranges_from_records: false,
        aggregation: Aggregation::Open,
        step_cap: None,
        rounds: 10,
        output: Output::Last,
        seed: 0,
    }
}
