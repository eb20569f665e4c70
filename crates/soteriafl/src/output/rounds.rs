//! The table `rounds.csv`, row by row.

use std::fmt;
use std::io::{self, Write};

use soteriafl_core::simulate::{Metrics, Traffic};

use crate::config::resolve::Resolved;

/// The header of `rounds.csv`.
pub const COLUMNS: &str =
    "round,paper_bits,uplink_bytes,downlink_bytes,loss,grad_norm_sq,utility,test_accuracy,epsilon";

/// The last column of `rounds.csv` where every client has a model of its own.
const CONSENSUS_ERROR: &str = "consensus_error";

/// The columns of a run's `rounds.csv`.
pub fn columns(resolved: &Resolved) -> String {
    match resolved.gossip {
        Some(_) => format!("{COLUMNS},{CONSENSUS_ERROR}"),
        None => COLUMNS.to_string(),
    }
}

/// The last column of `rounds.csv` in a deployment, whose server measures the loss of its test set.
pub(super) const TEST_LOSS: &str = "test_loss";

/// The table `rounds.csv` as it grows, in a file or in memory, with the utility so far.
pub struct RoundTable<W> {
    pub(super) to: W,
    pub(super) utility: f64,
    rows: u64,
    start_loss: Option<f64>,
}

impl<W: Write> RoundTable<W> {
    /// An empty table with these [columns].
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn new(mut to: W, columns: &str) -> io::Result<Self> {
        writeln!(to, "{columns}")?;
        Ok(Self::over(to))
    }

    pub(super) fn over(to: W) -> Self {
        Self {
            to,
            utility: 0.0,
            rows: 0,
            start_loss: None,
        }
    }

    /// Appends an evaluated round and returns the utility so far.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn row(
        &mut self,
        round: u32,
        traffic: Traffic,
        metrics: &Metrics,
        epsilon: Option<f64>,
    ) -> io::Result<f64> {
        self.count(round, metrics);
        let utility = self.utility;
        let own = metrics.consensus_error;
        self.append(format_args!(
            "{round},{},{},{},{utility},{},{}{}",
            traffic_cells(traffic),
            metrics.loss,
            metrics.grad_norm_sq,
            optional(metrics.test_accuracy),
            optional(epsilon),
            own.map(|error| format!(",{error}")).unwrap_or_default(),
        ))?;
        Ok(utility)
    }

    /// Takes a row into the utility.
    pub(super) fn count(&mut self, round: u32, metrics: &Metrics) {
        if round == 0 {
            self.start_loss = Some(metrics.loss);
        }
        self.rows += 1;
        self.utility += (metrics.grad_norm_sq - self.utility) / self.rows as f64;
    }

    pub(super) fn append(&mut self, row: fmt::Arguments<'_>) -> io::Result<()> {
        writeln!(self.to, "{row}")?;
        self.to.flush()
    }

    /// The loss of the model that the run started from, once it is known.
    pub fn start_loss(&self) -> Option<f64> {
        self.start_loss
    }

    /// What it was written to.
    pub fn into_inner(self) -> W {
        self.to
    }
}

/// The last evaluated round of an interrupted run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LastRow {
    /// The round.
    pub round: u32,
    /// What it achieved.
    pub metrics: Metrics,
    /// The utility up to it.
    pub utility: f64,
}

impl LastRow {
    pub(super) fn parse(line: &str, columns: &str) -> Option<Self> {
        let cells: Vec<&str> = line.split(',').collect();
        if cells.len() != columns.split(',').count() {
            return None;
        }
        let own = cells.get(9).map(|cell| cell.parse().ok());
        let metrics = Metrics {
            loss: cells[4].parse().ok()?,
            grad_norm_sq: cells[5].parse().ok()?,
            test_accuracy: if cells[7].is_empty() {
                None
            } else {
                Some(cells[7].parse().ok()?)
            },
            consensus_error: own.flatten(),
        };
        Some(Self {
            round: cells[0].parse().ok()?,
            metrics,
            utility: cells[6].parse().ok()?,
        })
    }
}

pub(super) fn optional(value: Option<f64>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

pub(super) fn traffic_cells(traffic: Traffic) -> String {
    let Traffic {
        paper_bits,
        uplink_bytes,
        downlink_bytes,
    } = traffic;
    format!("{paper_bits},{uplink_bytes},{downlink_bytes}")
}
