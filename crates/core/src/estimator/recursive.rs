//! Increments for a recursion at the server ([`soteriafl_accountant::recursion`]): DP-SRM, PriSMA,
//! LDP-SPIDER and DIFF2, none of which is in Algorithm 3.
//!
//! Where the recursion starts anew the estimate is that of SGD (of GD, with whole batches). In any
//! other round it is
//!
//! ```text
//! 1/b sum_{j in B} C_H(C_G(g_j(x_t)) - a C_G(g_j(x_{t-1}))) / s,     H = s G,
//! ```
//!
//! in units of the round's public scale `s`, so that in every round a record's share has norm
//! `G/b` at most, whatever `s` is; what is released is multiplied by `s` afterwards. Both gradients
//! are clipped before their difference is, so that a record without a finite gradient counts as
//! nothing at either model; a projection does not expand, so a bound on how fast gradients change
//! holds for clipped ones as well.
//!
//! **Cost.** Two passes over the batch; kept between rounds is the last public model, which
//! simulated clients share.

use std::sync::Arc;

use soteriafl_accountant::Recursion;

use super::{EstimatorState, Minibatch, RoundInput, Scratch, add_differences};
use crate::linalg::bytes::{append_floats, floats};
use crate::objective::{Objective, ObjectiveError};
use crate::privacy::RawEstimate;

/// The clip of an increment and the unit it is counted in.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Increment {
    /// The scale `s` of the round, a function of public numbers.
    pub scale: f64,
    /// The bound on the difference of two clipped gradients; `None`: unclipped.
    pub clip: Option<f64>,
}

/// The clients' part of a recursion.
pub struct Recursive {
    keep: f32,
    previous: Option<Arc<Vec<f32>>>,
}

impl Recursive {
    /// An estimator that has seen no model yet.
    pub fn new(recursion: &Recursion) -> Self {
        Self {
            keep: recursion.keep as f32,
            previous: None,
        }
    }
}

impl EstimatorState for Recursive {
    fn estimate(
        &mut self,
        input: RoundInput<'_>,
        scratch: &mut Scratch,
        sum: &mut RawEstimate,
    ) -> Result<(), ObjectiveError> {
        match input.increment {
            None => Minibatch.estimate(input, scratch, sum)?,
            Some(increment) => {
                // Whoever missed the last model compares with this one: a server that keeps it back
                // gets less information, not more.
                let previous = self.previous.as_ref().unwrap_or(input.model);
                for rows in input.batch.chunks(input.chunk()) {
                    scratch.compute_batch(input, rows, sum)?;
                    scratch.compute_reference(input, previous, rows, sum)?;
                    for weight in &mut scratch.reference.weights {
                        *weight *= self.keep;
                    }
                    let unit = (1.0 / increment.scale) as f32;
                    add_differences(input, rows, increment.clip, unit, scratch, sum);
                }
            }
        }
        self.skip_round(input.model, input.snapshot);
        Ok(())
    }

    fn skip_round(&mut self, model: &Arc<Vec<f32>>, _snapshot: bool) {
        self.previous = Some(Arc::clone(model));
    }

    /// In `f64`, in the order of coordinates: all clients of a round find the same number.
    fn distance(&self, model: &[f32]) -> f64 {
        let Some(previous) = &self.previous else {
            return 0.0;
        };
        let pairs = model.iter().zip(previous.iter());
        let squares = pairs.map(|(&new, &old)| (f64::from(new) - f64::from(old)).powi(2));
        squares.sum::<f64>().sqrt()
    }

    fn save(&self) -> Vec<u8> {
        let mut state = Vec::new();
        if let Some(previous) = &self.previous {
            append_floats(previous, &mut state);
        }
        state
    }

    fn restore(
        &mut self,
        state: &[u8],
        _records: usize,
        objective: &dyn Objective,
        _on_grid: bool,
    ) -> bool {
        let fits = state.is_empty() || state.len() == 4 * objective.dimension();
        if fits {
            self.previous = (!state.is_empty()).then(|| Arc::new(floats(state).collect()));
        }
        fits
    }
}
