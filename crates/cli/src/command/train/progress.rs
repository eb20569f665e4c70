//! What `train` shows while it runs.

use std::fmt::Write;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressState};

use super::super::Verbosity;
use soteriafl::prepared::Reached;
use soteriafl_accountant::round_up;

/// How often the bar is drawn anew at most: rounds may take microseconds.
const REDRAW: Duration = Duration::from_millis(50);

/// What does not fit into the line is cut off at its end.
const FORM: &str = "{bar:20.cyan/dim} {pos}/{len} rounds  {rate:.dim}  {eta:.dim} left  {wide_msg}";

/// The progress bar.
pub(super) struct Progress {
    bar: ProgressBar,
    drawn: Instant,
}

impl Progress {
    /// Of a run of so many rounds.
    pub(super) fn new(rounds: u32, verbosity: Verbosity) -> Self {
        let bar = verbosity.bar(Some(u64::from(rounds)), FORM);
        let rate = |state: &ProgressState, text: &mut dyn Write| {
            let _ = write!(text, "{:.0}/s", state.per_sec());
        };
        bar.set_style(bar.style().with_key("rate", rate));
        Self {
            bar,
            drawn: Instant::now(),
        }
    }

    /// A round is over.
    pub(super) fn show(&mut self, reached: &Reached) {
        if self.bar.is_hidden() || self.drawn.elapsed() <= REDRAW {
            return;
        }
        self.drawn = Instant::now();
        self.bar.set_position(u64::from(reached.round));
        self.bar.set_message(message(reached));
    }

    /// Removes the bar.
    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// What was measured last; nothing before the first time.
fn message(reached: &Reached) -> String {
    let metrics = reached.metrics;
    if metrics.loss.is_nan() {
        return String::new();
    }
    let mut message = format!("loss {:.4}", metrics.loss);
    if let Some(accuracy) = metrics.test_accuracy {
        let _ = write!(message, "  accuracy {accuracy:.4}");
    }
    if let Some(spent) = reached.spent {
        let _ = write!(message, "  epsilon {}", round_up(spent, 4));
    }
    message
}
