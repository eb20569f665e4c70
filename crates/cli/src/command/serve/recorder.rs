//! The table of a run: measures rounds on the server's own test set, if there is one, and writes a
//! row for each, on a thread of its own. A slow measurement holds the run up and does not fill
//! memory.

use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Instant;

use soteriafl_core::data::Dataset;
use soteriafl_core::objective::Objective;
use soteriafl_core::protocol::Round;
use tokio::sync::mpsc::UnboundedSender;

use super::super::Failure;
use super::finish::{Shared, lock};
use soteriafl::output::RunDirectory;
use soteriafl_deploy::coordinator::Unmeasured;
use soteriafl_deploy::dashboard::FeedWriter;
use soteriafl_deploy::ending::measure;
use soteriafl_deploy::store::Evaluation;

/// Measures on the test set and writes the table, on a thread of its own.
pub(super) struct Recorder {
    pub(super) directory: RunDirectory,
    pub(super) test: Option<Arc<Dataset>>,
    pub(super) objective: Arc<dyn Objective>,
    pub(super) measured: UnboundedSender<Evaluation>,
    pub(super) dashboard: FeedWriter,
    pub(super) ending: Shared,
}

impl Recorder {
    pub(super) fn run(
        mut self,
        known: &[Evaluation],
        to_measure: &Receiver<Unmeasured>,
    ) -> Result<RunDirectory, Failure> {
        for evaluation in known {
            self.write(evaluation)?;
        }
        while let Ok(Unmeasured {
            mut evaluation,
            model,
        }) = to_measure.recv()
        {
            let test = lock(&self.ending).test(self.test.as_ref())?;
            if let Some(test) = test {
                let start = Instant::now();
                let (loss, accuracy) = measure(self.objective.as_ref(), &model, &test)
                    .expect("the program's models compute here");
                lock(&self.ending).measured_for(start.elapsed());
                (evaluation.loss, evaluation.accuracy) = (Some(loss), accuracy);
            }
            self.write(&evaluation)?;
            let epsilon = self.epsilon(evaluation.round);
            self.dashboard.measured(&evaluation, epsilon);
            let accuracy = evaluation.accuracy;
            // Rows count rounds that are done; a round's own number, as in the protocol, begins at
            // 0.
            match evaluation.round.checked_sub(1) {
                Some(round) => {
                    tracing::info!(round, taken = evaluation.taken, accuracy, "round closed");
                }
                None if accuracy.is_some() => tracing::info!(accuracy, "the start is measured"),
                None => {}
            }
            // The actor may have stopped already; the row is in the file.
            let _ = self.measured.send(evaluation);
        }
        Ok(self.directory)
    }

    fn epsilon(&self, round: Round) -> Option<f64> {
        lock(&self.ending).spent(round)
    }

    fn write(&mut self, evaluation: &Evaluation) -> Result<(), Failure> {
        Ok(lock(&self.ending).row(&mut self.directory, evaluation)?)
    }
}
