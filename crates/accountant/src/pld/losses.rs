//! A privacy-loss distribution on a grid, always at least as bad as the pair it stands for.
//!
//! Losses lie at `offset + (first + i) * step`; `infinity` is the probability that is given up
//! (the loss counts as infinite). "At least as bad" means `delta(epsilon)` is never smaller than
//! the pair's, for any `epsilon` and after any composition.

/// Probabilities of losses on an even grid.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LossDistribution {
    pub(crate) step: f64,
    pub(crate) offset: f64,
    pub(crate) first: i64,
    pub(crate) masses: Vec<f64>,
    pub(crate) infinity: f64,
}

impl LossDistribution {
    /// Masses at `(first + i) * step`.
    pub(crate) fn new(step: f64, first: i64, masses: Vec<f64>, infinity: f64) -> Self {
        LossDistribution {
            step,
            offset: 0.0,
            first,
            masses,
            infinity,
        }
    }

    /// The same masses, all losses `offset` higher.
    pub(crate) fn shifted(mut self, offset: f64) -> Self {
        self.offset += offset;
        self
    }

    /// Losses that can happen, with their probabilities.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (f64, f64)> + '_ {
        self.masses
            .iter()
            .enumerate()
            .filter(|(_, mass)| **mass > 0.0)
            .map(|(index, &mass)| (self.loss(index), mass))
    }

    /// The loss at a position of the mass vector.
    pub(crate) fn loss(&self, index: usize) -> f64 {
        self.offset + (self.first + index as i64) as f64 * self.step
    }

    /// `delta(epsilon)` of a single round: `infinity + sum (1 - exp(epsilon - loss))_+`.
    #[cfg(test)]
    pub(crate) fn delta(&self, epsilon: f64) -> f64 {
        let finite: f64 = self
            .entries()
            .filter(|(loss, _)| *loss > epsilon)
            .map(|(loss, mass)| -mass * (epsilon - loss).exp_m1())
            .sum();
        self.infinity + finite
    }

    /// All probability, finite and infinite; one up to rounding.
    #[cfg(test)]
    pub(crate) fn total(&self) -> f64 {
        self.masses.iter().sum::<f64>() + self.infinity
    }
}
