//! What `train` shows while it runs, and the latest state of the run, which the end is told from.

use std::fmt::Write;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressState};
use soteriafl_core::simulate::{Metrics, Traffic};

use super::super::Verbosity;
use soteriafl::output::LastRow;
use soteriafl_accountant::round_up;

/// How often the bar is drawn anew at most: rounds may take microseconds.
const REDRAW: Duration = Duration::from_millis(50);

/// What does not fit into the line is cut off at its end.
const FORM: &str = "{bar:20.cyan/dim} {pos}/{len} rounds  {rate:.dim}  {eta:.dim} left  {wide_msg}";

/// The progress bar, and how far the run has come.
pub(super) struct Progress {
    bar: ProgressBar,
    message: String,
    drawn: Instant,
    pub(super) rounds: u32,
    pub(super) traffic: Traffic,
    pub(super) metrics: Metrics,
    pub(super) utility: f64,
}

impl Progress {
    /// Of a run of so many rounds, of which an earlier process may have evaluated some.
    pub(super) fn new(rounds: u32, known: Option<LastRow>, verbosity: Verbosity) -> Self {
        let bar = verbosity.bar(Some(u64::from(rounds)), FORM);
        let rate = |state: &ProgressState, text: &mut dyn Write| {
            let _ = write!(text, "{:.0}/s", state.per_sec());
        };
        bar.set_style(bar.style().with_key("rate", rate));
        let unknown = Metrics {
            loss: f64::NAN,
            grad_norm_sq: f64::NAN,
            test_accuracy: None,
        };
        Self {
            bar,
            message: String::new(),
            drawn: Instant::now(),
            rounds: 0,
            traffic: Traffic::default(),
            metrics: known.map_or(unknown, |last| last.metrics),
            utility: known.map_or(f64::NAN, |last| last.utility),
        }
    }

    /// The model was evaluated; `spent` is the epsilon so far.
    pub(super) fn evaluated(&mut self, metrics: Metrics, utility: f64, spent: Option<f64>) {
        (self.metrics, self.utility) = (metrics, utility);
        if self.bar.is_hidden() {
            return;
        }
        self.message = format!("loss {:.4}", metrics.loss);
        if let Some(accuracy) = metrics.test_accuracy {
            let _ = write!(self.message, "  accuracy {accuracy:.4}");
        }
        if let Some(spent) = spent {
            let _ = write!(self.message, "  epsilon {}", round_up(spent, 4));
        }
    }

    /// A round is over.
    pub(super) fn closed(&mut self, round: u32, traffic: Traffic) {
        (self.rounds, self.traffic) = (round, traffic);
        if !self.bar.is_hidden() && self.drawn.elapsed() > REDRAW {
            self.drawn = Instant::now();
            self.bar.set_position(u64::from(round));
            self.bar.set_message(self.message.clone());
        }
    }

    /// Removes the bar.
    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
