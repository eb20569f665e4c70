//! Tables 1 and 2 of the paper for given numbers, and bounds that were published after Table 1.
//!
//! Orders of magnitude, as printed there: constants are dropped, and Table 1 drops `G` and `L` too.
//! Communication counts values, `n d T / (1 + omega)`; gradient complexity counts gradients of one
//! client, `b T`.

use super::{EstimatorKind, Problem};

/// One row of Table 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ResultRow {
    /// The algorithms, as their authors name them.
    pub algorithm: &'static str,
    /// The presets that run them.
    pub presets: &'static str,
    /// The text that the bound is from.
    pub source: &'static str,
    /// What is guaranteed: DP or LDP.
    pub privacy: &'static str,
    /// The mean squared gradient norm.
    pub utility: f64,
    /// Values sent; none for one node.
    pub communication: Option<f64>,
    /// The paper's remark.
    pub remark: &'static str,
}

/// Both tables.
#[derive(Clone, Debug, PartialEq)]
pub struct Tables {
    /// Table 1: utility and communication.
    pub results: Vec<ResultRow>,
    /// Bounds of later texts, for rows of Table 1 and for methods that came after it.
    pub newer: Vec<ResultRow>,
    /// Table 2: gradient complexity of SoteriaFL-GD, -SGD, -SVRG and -SAGA.
    pub gradients: [(EstimatorKind, f64); 4],
}

impl Problem {
    /// Tables 1 and 2.
    pub fn tables(&self) -> Tables {
        let (n, m, d, w) = (self.clients, self.records, self.dimension, self.omega);
        let (log, tau) = (self.log(), self.tau());
        let budget = m * self.epsilon;
        let single = (d * log).sqrt() / budget;
        let local = single / n.sqrt();
        let compressed = (1.0 + w).sqrt() * local;
        let dense = n.powf(1.5) * budget * (d / log).sqrt();
        let sparse = dense / (1.0 + w).powf(1.5);
        let square = n * budget.powi(2) / ((1.0 + w) * log);
        // `1 + omega` plays the part of the variance that Q-DPSGD-1 assumes, as the paper's note
        // says.
        let quantised = (1.0 + w) / n + 1.0 / m;
        let row = |algorithm, presets, privacy, utility, communication, remark| ResultRow {
            algorithm,
            presets,
            source: "Table 1, NeurIPS 2022",
            privacy,
            utility,
            communication,
            remark,
        };
        let one = "single node";
        let results = vec![
            row(
                "RRPSGD (RPPSGD in the table)",
                "rrpsgd",
                "DP",
                single * (m / self.delta).ln().sqrt(),
                None,
                one,
            ),
            row("DP-GD/SGD", "dp-gd, dp-sgd", "DP", single, None, one),
            row("DP-SRM", "dp-srm", "DP", single, None, one),
            row(
                "Distributed DP-SRM",
                "distributed-dp-srm",
                "DP",
                single / n,
                Some(n * n * budget * (d / log).sqrt()),
                "no compression",
            ),
            row(
                "LDP SVRG, LDP SPIDER",
                "ldp-svrg, ldp-spider",
                "LDP",
                local,
                Some(dense),
                "no compression",
            ),
            row(
                "Q-DPSGD-1",
                "q-dpsgd-1",
                "LDP",
                quantised.powf(2.0 / 3.0) * (d * log).cbrt() / budget.powf(2.0 / 3.0),
                Some((1.0 + n / (m * (1.0 + w))) * budget.powi(2) / (d * log)),
                "direct compression",
            ),
            row(
                "SDM-DSGD",
                "sdm-dsgd",
                "LDP",
                local,
                Some(n * n * sparse + square),
                "direct compression, random-k alone, up to logarithms",
            ),
            row(
                "CDP-SGD",
                "cdp-sgd",
                "LDP",
                compressed,
                Some(sparse + square),
                "direct compression",
            ),
            row(
                "SoteriaFL-SGD, SoteriaFL-GD",
                "soteriafl-sgd, soteriafl-gd",
                "LDP",
                compressed * (1.0 + tau.sqrt()),
                Some(sparse * (1.0 + tau.sqrt())),
                "shifted compression",
            ),
            row(
                "SoteriaFL-SVRG, SoteriaFL-SAGA",
                "soteriafl-svrg, soteriafl-saga",
                "LDP",
                compressed,
                Some(sparse * (1.0 + tau)),
                "shifted compression",
            ),
        ];
        Tables {
            results,
            newer: self.newer(),
            gradients: self.gradients(),
        }
    }

    /// Table 2.
    fn gradients(&self) -> [(EstimatorKind, f64); 4] {
        let (n, m, d, w) = (self.clients, self.records, self.dimension, self.omega);
        let (log, tau) = (self.log(), self.tau());
        let budget = m * self.epsilon;
        let k = (n * self.smoothness).sqrt() * budget / (self.clip * ((1.0 + w) * d * log).sqrt());
        let reduced = k * (1.0 + tau) * m.powf(2.0 / 3.0);
        [
            (EstimatorKind::Gd, k * (1.0 + tau.sqrt()) * m),
            (
                EstimatorKind::Sgd,
                k * (1.0 + tau.sqrt()) * self.batch(EstimatorKind::Sgd),
            ),
            (EstimatorKind::Svrg, reduced),
            (EstimatorKind::Saga, reduced),
        ]
    }

    /// Bounds of later texts for the squared gradient norm, in the same orders of magnitude: `G`,
    /// `L` and the start's gap are dropped as in Table 1. Communication is not quoted. No bound of
    /// PORTER is, whose text could not be had.
    fn newer(&self) -> Vec<ResultRow> {
        let (n, m, d) = (self.clients, self.records, self.dimension);
        let budget = m * self.epsilon;
        let single = (d * self.log()).sqrt() / budget;
        let local = single / n.sqrt();
        let row = |algorithm, presets, source, privacy, utility, remark| ResultRow {
            algorithm,
            presets,
            source,
            privacy,
            utility,
            communication: None,
            remark,
        };
        vec![
            row(
                "DP-SRM",
                "dp-srm",
                "UAI 2023, Theorem 5.4, squared",
                "DP",
                single.powf(4.0 / 3.0),
                "single node",
            ),
            row(
                "LDP-SPIDER",
                "ldp-spider",
                "AISTATS 2023, Theorem F.1",
                "LDP",
                local.powf(4.0 / 3.0) + local.powi(2),
                "no compression, full batches",
            ),
            row(
                "DIFF2",
                "diff2",
                "ICML 2023",
                "DP, trusted server in the text",
                d.powf(2.0 / 3.0) / (n * budget).powf(4.0 / 3.0),
                "no compression, up to logarithms; the preset is LDP",
            ),
            row(
                "PriSMA",
                "ldp-srm",
                "AISTATS 2025, squared",
                "LDP",
                (d.sqrt() / (n.sqrt() * budget)).powf(4.0 / 5.0),
                "no compression, gradients need no bound, up to logarithms",
            ),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand: n = 64, m = 1000, d = 1000, 1 + omega = 4, log(1/delta) = 10, epsilon = 0.1, so
    /// that tau = 1, sqrt(d log) = 100, sqrt(d/log) = 10 and m epsilon = 100.
    #[test]
    fn tables_by_hand() {
        let problem = Problem {
            clients: 64.0,
            records: 1000.0,
            dimension: 1000.0,
            omega: 3.0,
            smoothness: 4.0,
            clip: 2.0,
            epsilon: 0.1,
            delta: (-10.0f64).exp(),
        };
        let tables = problem.tables();
        let expected = [
            (
                10.0f64.sqrt().recip() * (10.0f64 * (1000.0f64.ln() + 10.0)).sqrt(),
                None,
            ),
            (1.0, None),
            (1.0, None),
            (1.0 / 64.0, Some(4096.0 * 1000.0)),
            (0.125, Some(512.0 * 1000.0)),
            (
                (1.0f64 / 16.0 + 0.001).powf(2.0 / 3.0) * 10_000f64.cbrt() / 100f64.powf(2.0 / 3.0),
                Some((1.0 + 64.0 / 4000.0) * 1.0),
            ),
            (0.125, Some(4096.0 * 64_000.0 + 16_000.0)),
            (0.25, Some(64_000.0 + 16_000.0)),
            (0.5, Some(128_000.0)),
            (0.25, Some(128_000.0)),
        ];
        assert_eq!(tables.results.len(), expected.len());
        let close = |found: f64, expected: f64| (found / expected - 1.0).abs() < 1e-9;
        for (row, (utility, communication)) in tables.results.iter().zip(expected) {
            assert!(
                close(row.utility, utility),
                "{}: {}",
                row.algorithm,
                row.utility
            );
            match (row.communication, communication) {
                (None, None) => {}
                (Some(found), Some(expected)) => {
                    assert!(close(found, expected), "{}: {found}", row.algorithm);
                }
                other => panic!("{}: {other:?}", row.algorithm),
            }
        }
        // single = 1, local = 1/8; (1000^2/(6400^4))^(1/3) and (sqrt(1000)/800)^(4/5).
        let newer = [
            1.0,
            0.0625 + 1.0 / 64.0,
            100.0 / 6400f64.powf(4.0 / 3.0),
            (1000f64.sqrt() / 800.0).powf(0.8),
        ];
        assert_eq!(tables.newer.len(), newer.len());
        for (row, expected) in tables.newer.iter().zip(newer) {
            assert!(close(row.utility, expected), "{}", row.algorithm);
        }
        // K = sqrt(256) * 100 / (2 * sqrt(40000)) = 4; b = 100 * 2 sqrt(1/8) / sqrt(160000).
        let batch = 200.0 * 0.125f64.sqrt() / 400.0;
        for ((estimator, found), expected) in
            tables
                .gradients
                .iter()
                .zip([8000.0, 8.0 * batch, 800.0, 800.0])
        {
            assert!(close(*found, expected), "{estimator:?}: {found}");
        }
    }
}
