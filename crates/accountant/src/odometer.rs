//! What has been spent after each round of a run.
//!
//! Computed once, before the run: the cost at a few dozen round counts, on one discretised round
//! that all of them share. In between, the next computed cost holds: never too low, and never
//! falling.
//!
//! The bound after `t` rounds is that of a schedule fixed in advance. Stopping at a round chosen by
//! looking at the data is outside of it.

use crate::error::AccountError;

/// Costs after every round of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Odometer {
    /// What was spent before the first round.
    before: f64,
    /// Round counts, ascending, the last one the whole run; and the cost after each.
    marks: Vec<(u64, f64)>,
}

impl Odometer {
    /// Costs of up to `rounds` rounds, computed at about `checkpoints` of them.
    pub(crate) fn new(
        before: f64,
        rounds: u64,
        checkpoints: usize,
        mut cost: impl FnMut(u64) -> Result<f64, AccountError>,
    ) -> Result<Self, AccountError> {
        let mut marks = Vec::new();
        // More rounds cost at least as much; differences of discretisation must not show.
        let mut largest = before;
        for count in spread(rounds, checkpoints) {
            largest = largest.max(cost(count)?);
            marks.push((count, largest));
        }
        Ok(Odometer { before, marks })
    }

    /// The same with no mark above `whole`, a bound for the whole run: fewer rounds cost no more.
    pub(crate) fn capped(mut self, whole: f64) -> Self {
        self.before = self.before.min(whole);
        for mark in &mut self.marks {
            mark.1 = mark.1.min(whole);
        }
        self
    }

    /// An upper bound of the cost after `rounds` rounds; infinite beyond the run it was made for.
    #[must_use]
    pub fn after(&self, rounds: u64) -> f64 {
        if rounds == 0 {
            return self.before;
        }
        let next = self.marks.partition_point(|mark| mark.0 < rounds);
        self.marks.get(next).map_or(f64::INFINITY, |mark| mark.1)
    }

    /// The computed points: rounds and cost after them.
    #[must_use]
    pub fn checkpoints(&self) -> &[(u64, f64)] {
        &self.marks
    }
}

/// About `wanted` round counts up to `rounds`: half of them evenly spaced, half in proportion, so
/// that neither the beginning nor the end is coarse.
fn spread(rounds: u64, wanted: usize) -> Vec<u64> {
    let wanted = wanted.max(2) as u64;
    if rounds <= wanted {
        return (1..=rounds).collect();
    }
    let half = wanted / 2;
    let even = (1..=half).map(|step| (rounds as f64 * step as f64 / half as f64).round() as u64);
    let proportional = (0..wanted - half).map(|step| {
        let share = step as f64 / (wanted - half) as f64;
        (rounds as f64).powf(share).ceil() as u64
    });
    let mut counts: Vec<u64> = even
        .chain(proportional)
        .map(|count| count.clamp(1, rounds))
        .collect();
    counts.sort_unstable();
    counts.dedup();
    counts
}
