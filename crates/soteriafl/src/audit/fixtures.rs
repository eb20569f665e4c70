//! A run for tests.

use soteriafl_accountant::ClipScope;

use crate::specification::{Clip, NoiseTarget, Specification};

/// Full gradients, nothing compressed, ten rounds.
pub(crate) fn run() -> Specification {
    Specification {
        clip: Some(Clip {
            bound: 0.5,
            scope: ClipScope::Record,
        }),
        target: NoiseTarget::Epsilon(1.0),
        delta: 1e-3,
        rounds: 10,
        ..Specification::default()
    }
}
