//! The table of a run: measures rounds on the server's own test set, if there is one, and writes a row for each, on a thread of its
//! own. A slow measurement holds the run up and does not fill memory.

use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Instant;

use soteriafl_core::data::Dataset;
use soteriafl_core::objective::{Objective, Outcome, Records, Workspace};
use soteriafl_core::protocol::Round;
use soteriafl_core::simulate::Traffic;
use tokio::sync::mpsc::UnboundedSender;

use super::super::Failure;
use super::finish::{Shared, lock};
use soteriafl::output::RunDirectory;
use soteriafl_deploy::coordinator::Unmeasured;
use soteriafl_deploy::dashboard::FeedWriter;
use soteriafl_deploy::store::{Evaluation, Sums};

/// Measures on the test set and writes the table, on a thread of its own.
pub(super) struct Recorder {
    pub(super) directory: RunDirectory,
    pub(super) test: Option<Arc<Dataset>>,
    pub(super) objective: Arc<dyn Objective>,
    pub(super) measured: UnboundedSender<Evaluation>,
    pub(super) dashboard: FeedWriter,
    pub(super) ending: Shared,
    pub(super) test_seed: bool,
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
            if let Some(test) = &self.test {
                let start = Instant::now();
                let (loss, accuracy) = measure(self.objective.as_ref(), &model, test);
                lock(&self.ending).evaluation += start.elapsed();
                (evaluation.loss, evaluation.accuracy) = (Some(loss), accuracy);
            }
            self.write(&evaluation)?;
            let epsilon = self.epsilon(evaluation.round);
            self.dashboard.measured(&evaluation, epsilon);
            let accuracy = evaluation.accuracy;
            // Rows count rounds that are done; a round's own number, as in the protocol, begins at 0.
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
        // Whoever knows the test seed knows the noise.
        let ending = Some(lock(&self.ending)).filter(|_| !self.test_seed)?;
        let odometer = ending.privacy.as_ref()?.odometer.as_ref()?;
        Some(odometer.after(u64::from(round)))
    }

    fn write(&mut self, evaluation: &Evaluation) -> Result<(), Failure> {
        let epsilon = self.epsilon(evaluation.round);
        let mut ending = lock(&self.ending);
        ending.last = Some(*evaluation);
        if evaluation.round == 0 {
            ending.first = Some(*evaluation);
        }
        drop(ending);
        let traffic = traffic(evaluation.sums);
        let measured = (evaluation.loss, evaluation.accuracy);
        self.directory
            .measured_row(evaluation.round, traffic, measured, epsilon)?;
        Ok(())
    }
}

pub(super) fn traffic(sums: Sums) -> Traffic {
    Traffic {
        paper_bits: 64 * sums.values,
        uplink_bytes: sums.uplink,
        downlink_bytes: sums.downlink,
    }
}

/// Mean loss, and the share of correct classes where there are classes.
fn measure(objective: &dyn Objective, model: &[f32], data: &Dataset) -> (f64, Option<f64>) {
    const CHUNK: usize = 256;
    let mut workspace = Workspace::new();
    let mut outcomes = vec![Outcome::default(); CHUNK];
    let rows: Vec<u32> = (0..data.rows() as u32).collect();
    let (mut loss, mut correct) = (0.0, 0u64);
    for rows in rows.chunks(CHUNK) {
        let outcomes = &mut outcomes[..rows.len()];
        let records = Records { data, rows };
        objective
            .factors(model, records, Some(outcomes), None, &mut workspace)
            .expect("the program's models compute here");
        for (outcome, &row) in outcomes.iter().zip(rows) {
            loss += f64::from(outcome.loss);
            let label = data.labels().get(row as usize);
            correct += u64::from(label == Some(&outcome.class));
        }
    }
    let count = data.rows().max(1) as f64;
    let accuracy = (data.targets().is_none()).then(|| correct as f64 / count);
    (loss / count, accuracy)
}
