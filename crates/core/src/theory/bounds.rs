//! A whole schedule from the theory: rounds, batch, step sizes, and the utility that is guaranteed
//! for them.
//!
//! Theorem 2 bounds the mean squared gradient norm of SoteriaFL by
//!
//! ```text
//! 2 Phi_0 / (eta T)  +  3 beta / ((1 + omega) L eta) * (C_2 + d sigma^2),
//! ```
//!
//! and the proof of the theorem for CDP-SGD its own by
//!
//! ```text
//! 2 D / (eta T)  +  (L eta / n) * ((1 + omega + omega b) / b G^2 + (1 + omega) d sigma^2),
//! ```
//!
//! both for any noise `sigma`: with the paper's, or with the exact one of an accountant.
//! `D = f(x_0) - f*`; shifts start at zero, so `Phi_0 <= D + beta G^2 / L`. Constants are kept
//! where the proofs give them.

use super::{Corollary, EstimatorKind, NOISE_CONSTANT, Problem};

/// `c` of the theorem for CDP-SGD: following its proof as that of Theorem 1 gives `4 * 2`.
pub const DIRECT_NOISE_CONSTANT: f64 = 8.0;

/// An algorithm with everything that the theory chooses for it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// The estimator; none for CDP-SGD, which compresses an SGD estimate directly.
    pub estimator: Option<EstimatorKind>,
    /// Rounds `T`, a whole number.
    pub rounds: f64,
    /// Batch `b`, a whole number.
    pub batch: f64,
    /// Probability of a new snapshot; zero where there are none.
    pub snapshot_probability: f64,
    /// Step size `eta`.
    pub step_size: f64,
    /// `Phi_0`, or `D` for CDP-SGD.
    pub potential: f64,
}

impl Problem {
    /// The schedule of a SoteriaFL algorithm, for a start that is `gap = f(x_0) - f*` above the
    /// optimum.
    pub fn choose(&self, estimator: EstimatorKind, gap: f64) -> Choice {
        // Rounding must not cost a whole record: 1000^(2/3) is a little below 100.
        let batch = (self.batch(estimator) * (1.0 + 1e-12))
            .floor()
            .clamp(1.0, self.records);
        let probability = batch / self.records;
        let beta = self.beta(estimator, batch, probability);
        let potential = gap + beta * self.clip.powi(2) / self.smoothness;
        Choice {
            estimator: Some(estimator),
            rounds: self
                .rounds(estimator, batch, probability, potential)
                .ceil()
                .max(1.0),
            batch,
            snapshot_probability: if estimator == EstimatorKind::Svrg {
                probability
            } else {
                0.0
            },
            step_size: self.step_size(estimator, batch, probability),
            potential,
        }
    }

    /// The schedule of CDP-SGD; its batch is free and taken as that of SoteriaFL-SGD, as in the
    /// authors' experiments.
    pub fn choose_direct(&self, gap: f64) -> Choice {
        let noise = DIRECT_NOISE_CONSTANT * self.dimension * self.log();
        let budget = self.records * self.epsilon;
        let spread = (1.0 + self.omega) * noise;
        let first =
            budget * (self.clients * self.smoothness * gap).sqrt() / (self.clip * spread.sqrt());
        let step = (self.clients * gap * noise).sqrt()
            / (self.clip * budget * ((1.0 + self.omega) * self.smoothness).sqrt());
        Choice {
            estimator: None,
            rounds: first.max(budget.powi(2) / noise).ceil().max(1.0),
            batch: self
                .batch(EstimatorKind::Sgd)
                .floor()
                .clamp(1.0, self.records),
            snapshot_probability: 0.0,
            step_size: step.min(1.0 / self.smoothness),
            potential: gap,
        }
    }

    /// The bound on the mean squared gradient norm for this schedule with noise of standard
    /// deviation `sigma`.
    pub fn utility(&self, choice: &Choice, sigma: f64) -> f64 {
        let Choice {
            rounds,
            batch: b,
            step_size: eta,
            potential,
            ..
        } = *choice;
        let (w, l) = (self.omega, self.smoothness);
        let (square, noise) = (self.clip.powi(2), self.dimension * sigma.powi(2));
        let start = 2.0 * potential / (eta * rounds);
        let Some(estimator) = choice.estimator else {
            let variance = (1.0 + w + w * b) / b * square + (1.0 + w) * noise;
            return start + l * eta / self.clients * variance;
        };
        let beta = self.beta(estimator, b, b / self.records);
        start + 3.0 * beta / ((1.0 + w) * l * eta) * (self.variance(estimator, b) + noise)
    }

    /// Conditions of the theorem that this schedule breaks, in words; empty when it applies.
    /// `epsilon` conditions of the privacy theorems are left to the accountant.
    pub fn broken_conditions(&self, choice: &Choice) -> Vec<String> {
        let (eta, l) = (choice.step_size, self.smoothness);
        // The formulas satisfy their own conditions with equality; rounding must not break them.
        let above = |value: f64, limit: f64| value > limit * (1.0 + 1e-9);
        let mut broken = Vec::new();
        let Some(estimator) = choice.estimator else {
            if above(eta, 1.0 / l) {
                broken.push(format!(
                    "the step size {eta:.3e} is above 1/L = {:.3e}",
                    1.0 / l
                ));
            }
            let least = (self.records * self.epsilon).powi(2)
                / (DIRECT_NOISE_CONSTANT * self.dimension * self.log());
            if above(least, choice.rounds) {
                broken.push(format!(
                    "fewer than m^2 epsilon^2/(c d log(1/delta)) = {least:.0} rounds"
                ));
            }
            return broken;
        };
        let (first, second) = self.step_limits(choice, estimator);
        for (limit, name) in [(first, "first"), (second, "second")] {
            if above(eta, limit) {
                broken.push(format!(
                    "the step size {eta:.3e} is above the {name} bound {limit:.3e} of Theorem 2"
                ));
            }
        }
        let p = choice.batch / self.records;
        match estimator {
            EstimatorKind::Svrg => {
                let product = p.powf(2.0 / 3.0) * choice.batch.cbrt();
                if above(p, 0.25) {
                    broken.push(format!("the snapshot probability {p:.3} is above 1/4"));
                }
                if above(product, 0.25) {
                    broken.push(format!("p^(2/3) b^(1/3) = {product:.3} is above 1/4"));
                }
            }
            EstimatorKind::Saga if 3.0 * self.records.powf(2.0 / 3.0) > self.records => {
                broken.push("3 m^(2/3) is above m: fewer than 27 records".to_string());
            }
            _ => {}
        }
        broken
    }

    /// The two upper bounds of Theorem 2 on the step size, with the constants of Lemma 1.
    pub(super) fn step_limits(&self, choice: &Choice, estimator: EstimatorKind) -> (f64, f64) {
        let (b, m, l, w) = (choice.batch, self.records, self.smoothness, self.omega);
        let (p, eta) = (b / m, choice.step_size);
        let beta = self.beta(estimator, b, p);
        let (c1, c3, c4, theta) = match Corollary::of(estimator) {
            Corollary::Gd | Corollary::Sgd => (0.0, 0.0, 0.0, 1.0),
            Corollary::Svrg => (l * l / b, 2.0 * (1.0 - p) * eta * eta / p, 1.0, p / 2.0),
            Corollary::Saga => (l * l / b, 2.0 * (m - b) * eta * eta / b, 1.0, b / (2.0 * m)),
        };
        let alpha = 3.0 * beta * c1 / (2.0 * (1.0 + w) * theta * l * l);
        let base = 1.0 + 2.0 * alpha * c4 + 4.0 * beta * (1.0 + w);
        let first = 1.0 / ((base + 2.0 * alpha * c3 / (eta * eta)) * l);
        let second = (beta * self.clients).sqrt() / (base.sqrt() * (1.0 + w) * l);
        (first, second)
    }

    /// `C_2` of Lemma 1.
    pub(super) fn variance(&self, estimator: EstimatorKind, batch: f64) -> f64 {
        match estimator {
            EstimatorKind::Sgd => {
                (self.records - batch) * self.clip.powi(2) / (self.records * batch)
            }
            _ => 0.0,
        }
    }

    /// `log(1/delta)`.
    pub(super) fn log(&self) -> f64 {
        -self.delta.ln()
    }

    /// The noise of Theorem 1 for a schedule, or of the theorem for CDP-SGD.
    pub fn paper_sigma(&self, choice: &Choice) -> f64 {
        let factor = match choice.estimator {
            None => DIRECT_NOISE_CONSTANT * self.clip.powi(2),
            Some(estimator) => NOISE_CONSTANT * self.bounds(estimator),
        };
        (factor * choice.rounds * self.log()).sqrt() / (self.records * self.epsilon)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ESTIMATORS: [EstimatorKind; 4] = [
        EstimatorKind::Gd,
        EstimatorKind::Sgd,
        EstimatorKind::Svrg,
        EstimatorKind::Saga,
    ];

    fn round_numbers() -> Problem {
        // 1 + omega = 4, n = 64: tau = 8/8 = 1. log(1/delta) = 10.
        Problem {
            clients: 64.0,
            records: 1000.0,
            dimension: 100.0,
            omega: 3.0,
            smoothness: 2.0,
            clip: 1.0,
            epsilon: 0.5,
            delta: (-10.0f64).exp(),
        }
    }

    fn close(found: f64, expected: f64) {
        assert!(
            (found / expected - 1.0).abs() < 1e-9,
            "{found}, expected {expected}"
        );
    }

    /// Worked out by hand for numbers that make it easy.
    #[test]
    fn schedules_by_hand() {
        let problem = round_numbers();
        // beta = 1/8, Phi_0 = 1 + (1/8)/2, T = 500 sqrt(2*4*2*Phi_0) / sqrt(3/8 * 48 * 100 * 10/4).
        let gd = problem.choose(EstimatorKind::Gd, 1.0);
        close(gd.potential, 1.0625);
        assert_eq!(
            gd.rounds,
            (500.0 * 17.0f64.sqrt() / 4500.0f64.sqrt()).ceil()
        );
        close(gd.step_size, 1.0 / (3.0 * 2.0));
        // b = 1000 * 0.5 * sqrt(1/8) / sqrt(4 * 2 * 100 * 10) = 1.976...
        let sgd = problem.choose(EstimatorKind::Sgd, 1.0);
        assert_eq!(sgd.batch, 1.0);
        // C_2 = 0.999, so the variance asks for 0.999 * 250000 / (48 * 100 * 10/4) = 20.8 rounds:
        // fewer than the 31 of GD.
        assert_eq!(sgd.rounds, 31.0);
        let lucky = problem.choose(EstimatorKind::Sgd, 0.001);
        assert_eq!(lucky.rounds, 21.0);
        // b = 100/4, p = 1/40, p^(2/3) b^(1/3) = (25/1600)^(1/3) = 1/4.
        let svrg = problem.choose(EstimatorKind::Svrg, 1.0);
        assert_eq!((svrg.batch, svrg.snapshot_probability), (25.0, 0.025));
        close(svrg.step_size, 0.25 / 4.0);
        let saga = problem.choose(EstimatorKind::Saga, 1.0);
        assert_eq!(saga.batch, 300.0);
        close(saga.step_size, 1.0 / 6.0);
        // CDP-SGD: c d log = 8000; T = max(500 sqrt(128)/sqrt(32000), 250000/8000).
        let direct = problem.choose_direct(1.0);
        assert_eq!(direct.rounds, 32.0);
        // sqrt(64 * 8000)/(500 sqrt 8) = 0.506 is above 1/L.
        close(direct.step_size, 0.5);
    }

    #[test]
    fn utilities_by_hand() {
        let problem = round_numbers();
        let choice = Choice {
            estimator: Some(EstimatorKind::Gd),
            rounds: 10.0,
            batch: 1000.0,
            snapshot_probability: 0.0,
            step_size: 0.1,
            potential: 1.0,
        };
        // 2/(0.1*10) + 3/8 / (4*2*0.1) * 100 * 0.01.
        close(problem.utility(&choice, 0.1), 2.0 + 0.375 / 0.8);
        let direct = Choice {
            estimator: None,
            batch: 2.0,
            ..choice
        };
        // 2 + (2*0.1/64) * ((4 + 6)/2 + 4 * 1).
        close(problem.utility(&direct, 0.1), 2.0 + 0.2 / 64.0 * 9.0);
        // sqrt(12 * 10 * 10)/500 and sqrt(8 * 10 * 10)/500.
        close(problem.paper_sigma(&choice), 1200.0f64.sqrt() / 500.0);
        close(problem.paper_sigma(&direct), 800.0f64.sqrt() / 500.0);
    }

    /// At the theory's own rounds the noise term of Theorem 2 with the paper's sigma is at most the
    /// start's times the rounding of `T`, so that the bound is four start terms at most.
    #[test]
    fn rounds_balance_the_bound() {
        for records in [1000.0, 50_000.0] {
            let problem = Problem {
                records,
                ..round_numbers()
            };
            for estimator in ESTIMATORS {
                let choice = problem.choose(estimator, 1.0);
                let start = 2.0 * choice.potential / (choice.step_size * choice.rounds);
                let bound = problem.utility(&choice, problem.paper_sigma(&choice));
                let limit = if estimator == EstimatorKind::Sgd {
                    f64::INFINITY
                } else {
                    3.0
                };
                assert!(
                    bound > start && bound < limit * start,
                    "{estimator:?}: {bound} {start}"
                );
                assert_eq!(problem.broken_conditions(&choice), Vec::<String>::new());
            }
            let direct = problem.choose_direct(1.0);
            assert_eq!(problem.broken_conditions(&direct), Vec::<String>::new());
            // The proof's end: at most 2 + 3 times G sqrt(D L (1+w) c d log)/(m epsilon sqrt n).
            let order = (2.0f64 * 4.0 * 8000.0).sqrt() / (records * 0.5 * 8.0);
            let bound = problem.utility(&direct, problem.paper_sigma(&direct));
            assert!(bound <= 5.0 * order * 1.1, "{bound} {order}");
        }
    }

    #[test]
    fn broken_conditions_are_named() {
        let problem = round_numbers();
        let mut choice = problem.choose(EstimatorKind::Gd, 1.0);
        choice.step_size *= 3.0;
        assert_eq!(problem.broken_conditions(&choice).len(), 2);
        let mut direct = problem.choose_direct(1.0);
        (direct.step_size, direct.rounds) = (10.0, 1.0);
        assert_eq!(problem.broken_conditions(&direct).len(), 2);
        let few = Problem {
            records: 20.0,
            ..problem
        };
        let saga = few.choose(EstimatorKind::Saga, 1.0);
        assert!(!few.broken_conditions(&saga).is_empty());
    }
}
