//! The paper's own choices of batch, snapshot probability, step size and rounds, and the utility
//! that it proves for them.
//!
//! Theorem 2 and Corollaries 1 to 3, with their constants where the paper gives them. Notation: `n`
//! clients of `m` records, dimension `d`, compression `omega`, smoothness `L`, clip `G`,
//! `tau = (1 + omega)^(3/2) / sqrt(n)`. The noise constant is `c = 48` throughout, as in the
//! authors' experiments. Whole schedules with their utility bounds are [`Choice`]s; Tables 1 and 2
//! for given numbers are [`Tables`]. Recursive estimates and SAG are in no theorem of the paper:
//! where a number is needed all the same, as for a batch, they count as SGD and as SAGA.

mod bounds;
mod tables;

use soteriafl_accountant::EstimatorKind;

pub use bounds::{Choice, DIRECT_NOISE_CONSTANT};
pub use tables::{ResultRow, Tables};

/// The constant of Theorem 1 in the authors' experiments.
pub const NOISE_CONSTANT: f64 = 48.0;

/// The quantities in the formulas.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Problem {
    /// Number of clients `n`.
    pub clients: f64,
    /// Records per client `m`.
    pub records: f64,
    /// Parameters `d`.
    pub dimension: f64,
    /// Compression parameter.
    pub omega: f64,
    /// Smoothness `L`.
    pub smoothness: f64,
    /// Gradient bound `G`.
    pub clip: f64,
    /// Privacy target.
    pub epsilon: f64,
    /// Privacy target.
    pub delta: f64,
}

/// The estimators that the paper has a corollary for.
#[derive(Clone, Copy)]
enum Corollary {
    Gd,
    Sgd,
    Svrg,
    Saga,
}

impl Corollary {
    /// The corollary whose numbers are taken: the estimator's own, or that of the nearest one.
    fn of(estimator: EstimatorKind) -> Self {
        match estimator {
            EstimatorKind::Gd => Self::Gd,
            EstimatorKind::Sgd | EstimatorKind::Recursive => Self::Sgd,
            EstimatorKind::Svrg => Self::Svrg,
            EstimatorKind::Saga | EstimatorKind::Sag => Self::Saga,
        }
    }
}

impl Problem {
    /// `tau`.
    pub fn tau(&self) -> f64 {
        (1.0 + self.omega).powf(1.5) / self.clients.sqrt()
    }

    /// Expected minibatch size, not rounded.
    pub fn batch(&self, estimator: EstimatorKind) -> f64 {
        let m = self.records;
        match Corollary::of(estimator) {
            Corollary::Gd => m,
            Corollary::Sgd => {
                let beta = self.tau() / (2.0 * (1.0 + self.omega));
                let log = (1.0 / self.delta).ln();
                let spread = ((1.0 + self.omega) * self.smoothness * self.dimension * log).sqrt();
                (m * self.epsilon * self.clip * beta.sqrt() / spread).min(m)
            }
            Corollary::Svrg => m.powf(2.0 / 3.0) / 4.0,
            Corollary::Saga => (3.0 * m.powf(2.0 / 3.0)).min(m),
        }
    }

    /// Largest step size that the corollary allows, for the batch `b` and snapshot probability `p`.
    pub fn step_size(&self, estimator: EstimatorKind, batch: f64, probability: f64) -> f64 {
        let slow = (1.0 / self.tau()).min(1.0);
        match Corollary::of(estimator) {
            Corollary::Gd | Corollary::Sgd => 1.0 / ((1.0 + 2.0 * self.tau()) * self.smoothness),
            Corollary::Svrg => {
                probability.powf(2.0 / 3.0) * batch.powf(1.0 / 3.0) * slow / (2.0 * self.smoothness)
            }
            Corollary::Saga => slow / (3.0 * self.smoothness),
        }
    }

    /// `beta` of the corollary.
    pub fn beta(&self, estimator: EstimatorKind, batch: f64, probability: f64) -> f64 {
        let fast = (1.0 / self.tau().powi(2)).min(1.0);
        let square = (1.0 + self.omega).powi(2) / self.clients;
        match Corollary::of(estimator) {
            Corollary::Gd | Corollary::Sgd => self.tau() / (2.0 * (1.0 + self.omega)),
            Corollary::Svrg => probability.powf(4.0 / 3.0) * batch.powf(2.0 / 3.0) * square * fast,
            Corollary::Saga => square * fast / 3.0,
        }
    }

    /// Number of rounds of equation (choice-T), for a start whose potential `Phi_0` is `potential`.
    pub fn rounds(
        &self,
        estimator: EstimatorKind,
        batch: f64,
        probability: f64,
        potential: f64,
    ) -> f64 {
        let beta = self.beta(estimator, batch, probability);
        let noise =
            NOISE_CONSTANT * self.dimension * self.bounds(estimator) * (1.0 / self.delta).ln();
        let budget = (self.records * self.epsilon).powi(2);
        let first = (budget * 2.0 * (1.0 + self.omega) * self.smoothness * potential
            / (3.0 * beta * noise))
            .sqrt();
        first.max(self.variance(estimator, batch) * budget / noise)
    }

    /// `G_A^2/4 + G_B^2` of Lemma 1.
    pub fn bounds(&self, estimator: EstimatorKind) -> f64 {
        let square = self.clip.powi(2);
        match Corollary::of(estimator) {
            Corollary::Gd | Corollary::Sgd => square / 4.0,
            Corollary::Svrg | Corollary::Saga => 2.0 * square,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::shift_step;

    fn a9a(epsilon: f64) -> Problem {
        let omega = 124.0 / 6.0 - 1.0;
        Problem {
            clients: 10.0,
            records: 3256.0,
            dimension: 124.0,
            omega,
            smoothness: 1.0,
            clip: 0.5,
            epsilon,
            delta: 1e-3,
        }
    }

    /// The batches of the paper's a9a figures: 10, 51, 103 and 54.
    #[test]
    fn batches_of_the_figures() {
        let floor = |epsilon| a9a(epsilon).batch(EstimatorKind::Sgd).floor();
        assert_eq!([floor(1.0), floor(5.0), floor(10.0)], [10.0, 51.0, 103.0]);
        assert_eq!(a9a(1.0).batch(EstimatorKind::Svrg).floor(), 54.0);
        assert_eq!(a9a(1e9).batch(EstimatorKind::Sgd), 3256.0);
    }

    /// Every step size satisfies the two conditions of Theorem 2 for its corollary's `beta`.
    #[test]
    fn step_sizes_satisfy_theorem_2() {
        for (clients, omega) in [(10.0, 19.0), (10_000.0, 19.0), (100.0, 0.0), (3.0, 2.5)] {
            for records in [3256.0, 100_000.0] {
                let problem = Problem {
                    clients,
                    omega,
                    records,
                    ..a9a(1.0)
                };
                for estimator in [
                    EstimatorKind::Gd,
                    EstimatorKind::Sgd,
                    EstimatorKind::Svrg,
                    EstimatorKind::Saga,
                ] {
                    check(problem, estimator);
                }
            }
        }
    }

    fn check(problem: Problem, estimator: EstimatorKind) {
        let batch = problem.batch(estimator);
        let choice = Choice {
            batch,
            step_size: problem.step_size(estimator, batch, batch / problem.records),
            ..problem.choose(estimator, 1.0)
        };
        let (first, second) = problem.step_limits(&choice, estimator);
        assert!(
            choice.step_size <= first.min(second) * (1.0 + 1e-12),
            "{estimator:?} {problem:?}: {} > {first}, {second}",
            choice.step_size
        );
    }

    #[test]
    fn shift_step_of_the_paper() {
        assert!((shift_step(0.0) - 0.5f64.sqrt()).abs() < 1e-15);
        assert!((shift_step(19.0) - (39.0f64 / 16_000.0).sqrt()).abs() < 1e-15);
    }
}
