//! The paper's own noise formula, and which of its premises a setting breaks.
//!
//! **What.** Theorem 1 of the paper claims `(epsilon, delta)` for
//!
//! ```text
//! sigma^2 = c S T log(1/delta) / (m^2 epsilon^2),    S = G_A^2/4 + G_B^2,
//! ```
//!
//! with an unspecified `c`. Following its proof gives `c = 4 * 12 = 48`: the lemma bounds the log
//! moment by `6 lambda (lambda+1) S T / ((1-q) m^2 sigma^2)`, `lambda (lambda+1) <= 2 lambda^2`
//! makes that `12 lambda^2 ...`, and its two conditions on `lambda` meet at `c = 4 * 12`. Its
//! theorem for CDP-SGD has `S = G^2` and `lambda (lambda+1)`, hence `c = 4 * 2 = 8`. Per algorithm
//! the factor of `G^2` is 8 (CDP-SGD, LDP-SGD), 12 (SoteriaFL-SGD and -GD: `G_A = G`) and 96 (SVRG,
//! SAGA: `G_A = 2G`, `G_B = G`).
//!
//! **What it does not give.** The constants drop a factor `1/(1-q)` and a third-order term, and the
//! lemma has premises that practical settings break ([`PaperFormula::violated_conditions`]). Its
//! minibatch term measures a record against nothing and its full-batch term against another record,
//! so the claim is about neither adjacency. No epsilon that we claim rests on this module: it
//! reproduces the published settings and says what is wrong with them.

use thiserror::Error;

/// `log 16`: the premise `q < G_A / (16 b sigma)` makes the logarithm of the lemma at least this.
const LOG_SIXTEEN: f64 = 4.0 * std::f64::consts::LN_2;

/// One client's setting under one of the paper's two theorems.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PaperFormula {
    /// Which theorem, with its clips.
    pub theorem: PaperTheorem,
    /// Records `m` of the client.
    pub records: u64,
    /// Minibatch size `b`.
    pub batch: f64,
    /// Rounds `T`.
    pub rounds: u64,
}

/// The two privacy theorems of the paper.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PaperTheorem {
    /// CDP-SGD (and LDP-SGD, which is CDP-SGD without compression): every gradient bounded by
    /// `clip`.
    Direct {
        /// `G`.
        clip: f64,
    },
    /// Theorem 1: a minibatch term bounded by `minibatch_clip` per record plus a full-batch term
    /// bounded by `full_clip` per record.
    Framework {
        /// `G_A`.
        minibatch_clip: f64,
        /// `G_B`.
        full_clip: f64,
    },
}

impl PaperTheorem {
    /// SoteriaFL-SGD and SoteriaFL-GD with gradients bounded by `clip`.
    pub fn sgd(clip: f64) -> Self {
        let full_clip = 0.0;
        Self::Framework {
            minibatch_clip: clip,
            full_clip,
        }
    }

    /// SVRG and SAGA with gradients bounded by `clip`, whose differences are bounded by twice that.
    pub fn variance_reduced(clip: f64) -> Self {
        Self::Framework {
            minibatch_clip: 2.0 * clip,
            full_clip: clip,
        }
    }

    /// `c`.
    fn constant(self) -> f64 {
        match self {
            Self::Direct { .. } => 8.0,
            Self::Framework { .. } => 48.0,
        }
    }

    /// `S`.
    fn square(self) -> f64 {
        match self {
            Self::Direct { clip } => clip * clip,
            Self::Framework {
                minibatch_clip,
                full_clip,
            } => 0.25 * minibatch_clip * minibatch_clip + full_clip * full_clip,
        }
    }

    /// Bound of the sampled term and the share of the noise variance that the proof gives it.
    fn sampled(self) -> (f64, f64) {
        match self {
            Self::Direct { clip } => (clip, 1.0),
            Self::Framework { minibatch_clip, .. } => (minibatch_clip, 2.0 / 3.0),
        }
    }
}

/// A premise of the paper's proof that a setting does not meet.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum ViolatedCondition {
    /// The lemma divides by `1 - q`.
    #[error("the batch is the whole data set, and the lemma divides by 1 - q = 0")]
    FullBatch,
    /// The moment lemma of Abadi et al. asks for a noise multiplier of one or more.
    #[error(
        "the noise multiplier of the sampled term is {multiplier}, and the lemma needs at least 1"
    )]
    LittleNoise {
        /// `sqrt(share) b sigma / G_A`.
        multiplier: f64,
    },
    /// `q < G_A / (16 b sigma)` fails.
    #[error("the sampling rate is {rate}, and the lemma needs it below G_A/(16 b sigma) = {limit}")]
    SamplingRate {
        /// `q = b/m`.
        rate: f64,
        /// The limit.
        limit: f64,
    },
    /// No integer order satisfies both tail conditions.
    #[error("{}", no_integer_order(*least, *most))]
    NoIntegerOrder {
        /// `(2/epsilon) log(1/delta)`.
        least: f64,
        /// `epsilon m^2 sigma^2 / (2 (c/4) T S)`.
        most: f64,
    },
    /// The smallest admissible order is above the range of the moment lemma.
    #[error("{}", order_out_of_range(*least, *limit))]
    OrderOutOfRange {
        /// `(2/epsilon) log(1/delta)`.
        least: f64,
        /// `share (b sigma/G_A)^2 log(G_A/(q b sigma))`.
        limit: f64,
    },
    /// `epsilon < c' b^2 T / m^2` fails, with `c' = share c S log(16) / (2 G_A^2)`.
    #[error("epsilon is {epsilon}, and the theorem needs it below c' b^2 T/m^2 = {limit}")]
    LargeEpsilon {
        /// The claim.
        epsilon: f64,
        /// The limit.
        limit: f64,
    },
}

/// The two tail conditions may cross, meet in one number, or enclose no integer; each is said as it
/// is.
fn no_integer_order(least: f64, most: f64) -> String {
    if (most / least - 1.0).abs() < 1e-3 {
        // At the prescribed sigma they meet, up to rounding.
        format!("the proof needs an integer order, and its conditions leave none near {least}")
    } else if most < least {
        format!(
            "the proof needs an order that is at least {least} and at most {most}: there is none"
        )
    } else {
        format!("the proof needs an integer order between {least} and {most}, and there is none")
    }
}

/// Orders are integers from 1 on: a limit below that is no range.
fn order_out_of_range(least: f64, limit: f64) -> String {
    if limit >= 1.0 {
        format!("the proof needs an order of at least {least}, and the lemma holds up to {limit}")
    } else {
        format!(
            "the proof needs an order of at least {least}, and the lemma holds for no order here"
        )
    }
}

impl PaperFormula {
    /// The noise the paper prescribes for `(epsilon, delta)`.
    pub fn sigma(&self, epsilon: f64, delta: f64) -> f64 {
        self.product(delta) / epsilon
    }

    /// The epsilon the paper claims for noise `sigma` at `delta`.
    pub fn epsilon(&self, sigma: f64, delta: f64) -> f64 {
        self.product(delta) / sigma
    }

    /// `sigma * epsilon`.
    fn product(&self, delta: f64) -> f64 {
        let scale = self.theorem.constant() * self.theorem.square();
        (scale * self.rounds as f64 * -delta.ln()).sqrt() / self.records as f64
    }

    /// Every premise of the theorem and its lemma that the claim `(epsilon, delta)` with noise
    /// `sigma` breaks; empty when the proof, with the constants above, applies.
    pub fn violated_conditions(
        &self,
        sigma: f64,
        epsilon: f64,
        delta: f64,
    ) -> Vec<ViolatedCondition> {
        let (clip, share) = self.theorem.sampled();
        let (constant, square) = (self.theorem.constant(), self.theorem.square());
        let (records, rounds) = (self.records as f64, self.rounds as f64);
        let rate = self.batch / records;
        let multiplier = self.batch * sigma / clip;
        let mut broken = Vec::new();

        if rate >= 1.0 {
            broken.push(ViolatedCondition::FullBatch);
        }
        let inner = share.sqrt() * multiplier;
        if inner < 1.0 {
            broken.push(ViolatedCondition::LittleNoise { multiplier: inner });
        }
        let limit = 1.0 / (16.0 * multiplier);
        if rate >= limit {
            broken.push(ViolatedCondition::SamplingRate { rate, limit });
        }

        let least = 2.0 * -delta.ln() / epsilon;
        let most = epsilon * (records * sigma).powi(2) / (0.5 * constant * rounds * square);
        // At exactly the prescribed sigma the two ends coincide; rounding must not open or close
        // the interval.
        let order = (least * (1.0 - 1e-12)).ceil().max(1.0);
        if order > most * (1.0 + 1e-12) {
            broken.push(ViolatedCondition::NoIntegerOrder { least, most });
        }
        let limit = share * multiplier * multiplier * -(rate * multiplier).ln();
        if order > limit {
            broken.push(ViolatedCondition::OrderOutOfRange { least, limit });
        }
        let constant = share * constant * square * LOG_SIXTEEN / (2.0 * clip * clip);
        let limit = constant * rate * rate * rounds;
        if epsilon >= limit {
            broken.push(ViolatedCondition::LargeEpsilon { epsilon, limit });
        }
        broken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn formula(theorem: PaperTheorem, records: u64, batch: f64, rounds: u64) -> PaperFormula {
        PaperFormula {
            theorem,
            records,
            batch,
            rounds,
        }
    }

    #[test]
    fn the_published_settings() {
        // Clip, records, epsilon, rounds; sigma of LDP-/CDP-SGD, SoteriaFL-SGD and SVRG.
        let rows = [
            (0.5, 3256, 1.0, 25, 0.005708, 0.006991, 0.019772),
            (0.5, 3256, 5.0, 100, 0.002283, 0.002796, 0.007909),
            (0.5, 3256, 10.0, 150, 0.001398, 0.001712, 0.004843),
            (1.0, 6000, 1.0, 150, 0.015174, 0.018585, 0.052565),
            (1.0, 6000, 2.0, 200, 0.008761, 0.010730, 0.030349),
            (1.0, 6000, 4.0, 300, 0.005365, 0.006571, 0.018585),
            (1.0, 6000, 8.0, 500, 0.003463, 0.004241, 0.011996),
            (1.0, 6000, 16.0, 1000, 0.002449, 0.002999, 0.008483),
        ];
        for (clip, records, epsilon, rounds, direct, sgd, svrg) in rows {
            for (theorem, expected) in [
                (PaperTheorem::Direct { clip }, direct),
                (PaperTheorem::sgd(clip), sgd),
                (PaperTheorem::variance_reduced(clip), svrg),
            ] {
                let formula = formula(theorem, records, 100.0, rounds);
                let sigma = formula.sigma(epsilon, 1e-3);
                assert!(
                    (sigma - expected).abs() < 6e-7,
                    "{theorem:?}: {sigma} {expected}"
                );
                assert!((formula.epsilon(sigma, 1e-3) / epsilon - 1.0).abs() < 1e-14);
            }
        }
    }

    #[test]
    fn the_constants_of_the_notebooks() {
        let factor = |theorem: PaperTheorem| theorem.constant() * theorem.square();
        assert_eq!(factor(PaperTheorem::Direct { clip: 1.0 }), 8.0);
        assert_eq!(factor(PaperTheorem::sgd(1.0)), 12.0);
        assert_eq!(factor(PaperTheorem::variance_reduced(1.0)), 96.0);
        // Noise multiplier sigma b/G of m = 1000, b = 50, T = 1000, epsilon = 1, delta = 1e-5.
        let sgd = formula(PaperTheorem::sgd(1.0), 1000, 50.0, 1000);
        assert!((sgd.sigma(1.0, 1e-5) * 50.0 - 18.58).abs() < 0.01);
    }

    /// Many rounds, a small rate, and an epsilon for which (2/epsilon) log(1/delta) is the integer
    /// 20: what it takes to meet every premise.
    fn sound() -> (PaperFormula, f64, f64) {
        let delta: f64 = 1e-5;
        let epsilon = -delta.ln() / 10.0;
        (
            formula(PaperTheorem::sgd(1.0), 100_000, 100.0, 150_000),
            epsilon,
            delta,
        )
    }

    #[test]
    fn a_setting_that_meets_every_premise() {
        let (formula, epsilon, delta) = sound();
        let sigma = formula.sigma(epsilon, delta);
        assert_eq!(formula.violated_conditions(sigma, epsilon, delta), vec![]);
        // With c' = 48/4 * log(16)/3 = 11.09 the limit on epsilon is 11.09 * 1e-6 * 150000 = 1.66.
        let tenfold = 10.0 * epsilon;
        let broken = formula.violated_conditions(formula.sigma(tenfold, delta), tenfold, delta);
        let large = |condition: &ViolatedCondition| match condition {
            ViolatedCondition::LargeEpsilon { limit, .. } => (limit - 1.6636).abs() < 1e-3,
            _ => false,
        };
        assert!(broken.iter().any(large), "{broken:?}");
    }

    #[test]
    fn each_premise_is_named_when_it_breaks() {
        let (formula, epsilon, delta) = sound();
        let sigma = formula.sigma(epsilon, delta);
        let names = |formula: &PaperFormula, sigma: f64, epsilon: f64| {
            let broken = formula.violated_conditions(sigma, epsilon, delta);
            broken
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join("; ")
        };
        // 1% less noise closes the interval of orders; it is not called an interval then.
        let closed = names(&formula, 0.99 * sigma, epsilon);
        assert!(
            closed.contains("at least")
                && closed.contains("and at most")
                && !closed.contains("between"),
            "{closed}"
        );
        // An epsilon that puts no integer at the only admissible order: one number is no interval.
        let off = epsilon * 1.01;
        let single = names(&formula, formula.sigma(off, delta), off);
        assert!(
            single.contains("leave none near") && !single.contains("between"),
            "{single}"
        );
        // A little more noise opens an interval without an integer in it.
        let open = names(&formula, 1.002 * formula.sigma(off, delta), off);
        assert!(open.contains("an integer order between"), "{open}");
        // A hundred times the batch breaks the rate; everything of the full batch breaks more.
        let large = PaperFormula {
            batch: 10_000.0,
            ..formula
        };
        assert!(names(&large, sigma, epsilon).contains("the sampling rate is 0.1"));
        let full = PaperFormula {
            batch: 100_000.0,
            ..formula
        };
        assert!(names(&full, sigma, epsilon).contains("1 - q = 0"));
        // A tenth of the batch leaves too little noise per record.
        let small = PaperFormula {
            batch: 10.0,
            ..formula
        };
        let broken = names(&small, sigma, epsilon);
        assert!(
            broken.contains("noise multiplier") && broken.contains("holds up to"),
            "{broken}"
        );
    }

    /// A lemma that holds for no order does not "hold up to" a number below one.
    #[test]
    fn no_range_of_orders_is_not_called_a_range() {
        // All of 3256 records in every batch: q b sigma/G is above 1, and the logarithm negative.
        let gd = formula(PaperTheorem::sgd(0.5), 3256, 3256.0, 448);
        let broken = gd.violated_conditions(gd.sigma(1.0, 1e-3), 1.0, 1e-3);
        let (least, limit) = broken
            .iter()
            .find_map(|condition| match condition {
                ViolatedCondition::OrderOutOfRange { least, limit } => Some((*least, *limit)),
                _ => None,
            })
            .unwrap();
        assert!(limit < 0.0, "{limit}");
        let said = ViolatedCondition::OrderOutOfRange { least, limit }.to_string();
        assert!(
            said.ends_with("the lemma holds for no order here"),
            "{said}"
        );
        assert!(!said.contains('-'), "{said}");
    }

    #[test]
    fn the_published_settings_break_premises() {
        // a9a at epsilon 1: ten records per batch, noise multiplier 0.1; exactly accounted it is
        // epsilon 43 (zero-out).
        let a9a = formula(PaperTheorem::sgd(0.5), 3256, 10.0, 25);
        let broken = a9a.violated_conditions(a9a.sigma(1.0, 1e-3), 1.0, 1e-3);
        let has = |wanted: fn(&ViolatedCondition) -> bool| broken.iter().any(wanted);
        assert!(has(|c| matches!(c, ViolatedCondition::LittleNoise { .. })));
        assert!(has(|c| matches!(
            c,
            ViolatedCondition::OrderOutOfRange { .. }
        )));
        assert!(has(|c| matches!(c, ViolatedCondition::LargeEpsilon { .. })));
    }
}
