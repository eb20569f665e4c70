//! How good a model is on records: what it says about each, set against what is true.
//!
//! [`measure`] asks the objective for its predictions, a block of records at a time, and sums them
//! up in the order of records. Predictions of a record are the same bits in any batch, so the
//! result does not depend on the number of threads.
//!
//! Records are looked at as they are: whatever comes out stands outside every privacy claim.
//!
//! **Cost.** Two forward passes; ranking sorts the scores of one class at a time. Predictions are
//! kept, one number per record and class, which is less than the records themselves hold unless
//! there are more classes than features.

mod classification;
mod ranking;
mod regression;

pub use classification::{CALIBRATION_BINS, CalibrationBin, Classification};
pub use ranking::{Roc, auc, roc};
pub use regression::{GRID, Regression};

use crate::data::Dataset;
use crate::objective::{Objective, Outcome, Records, Workspace};

/// Records that a thread asks for at a time.
const BLOCK: usize = 1024;

/// What was found about a model.
#[derive(Clone, Debug, PartialEq)]
pub enum Quality {
    /// Of a model that answers with classes.
    Classes(Classification),
    /// Of a model that predicts a number.
    Targets(Regression),
}

/// Measures `model` on `data`; `None` without records, and where an objective predicts no target.
///
/// # Panics
/// If records and model do not fit; see [`Objective::check`].
pub fn measure(
    objective: &dyn Objective,
    model: &[f32],
    data: &Dataset,
    threads: usize,
) -> Option<Quality> {
    if data.rows() == 0 {
        return None;
    }
    let said = Said::by(objective, model, data, threads);
    if let Some(targets) = data.targets() {
        // An objective of one's own may predict nothing.
        let predicted = (said.outputs == 1).then_some(&said.predictions[..])?;
        return Some(Quality::Targets(Regression::new(targets, predicted)));
    }
    let scores = (said.outputs > 0).then_some(&said.predictions[..]);
    let classes = data.classes().max(said.outputs);
    let found = Classification::new(data.labels(), &said.answers, scores, classes);
    Some(Quality::Classes(found))
}

/// What a model says about all records, in their order.
struct Said {
    answers: Vec<u32>,
    outputs: usize,
    predictions: Vec<f32>,
}

impl Said {
    fn by(objective: &dyn Objective, model: &[f32], data: &Dataset, threads: usize) -> Self {
        let (rows, outputs) = (data.rows(), objective.outputs());
        let all: Vec<u32> = (0..rows as u32).collect();
        let mut answers = vec![0; rows];
        let mut predictions = vec![0.0; rows * outputs];
        // Whole blocks for every thread.
        let share = rows.div_ceil(threads.max(1)).next_multiple_of(BLOCK);
        std::thread::scope(|scope| {
            let (mut answers, mut predictions) = (&mut answers[..], &mut predictions[..]);
            for rows in all.chunks(share) {
                let (own_answers, rest) = answers.split_at_mut(rows.len());
                answers = rest;
                let (own_predictions, rest) = predictions.split_at_mut(rows.len() * outputs);
                predictions = rest;
                scope.spawn(move || {
                    let records = Records { data, rows };
                    ask(objective, model, records, own_answers, own_predictions);
                });
            }
        });
        Self {
            answers,
            outputs,
            predictions,
        }
    }
}

/// Answers and predictions of some records, block by block.
fn ask(
    objective: &dyn Objective,
    model: &[f32],
    records: Records<'_>,
    answers: &mut [u32],
    predictions: &mut [f32],
) {
    let mut workspace = Workspace::new();
    let mut outcomes = vec![Outcome::default(); BLOCK.min(records.len())];
    let (data, outputs) = (records.data, objective.outputs());
    for (block, rows) in records.rows.chunks(BLOCK).enumerate() {
        let records = Records { data, rows };
        let first = block * BLOCK;
        let outcomes = &mut outcomes[..rows.len()];
        objective
            .factors(model, records, Some(outcomes), None, &mut workspace)
            .expect("objectives with outputs compute here");
        for (answer, outcome) in answers[first..].iter_mut().zip(&*outcomes) {
            *answer = outcome.class;
        }
        let predictions = &mut predictions[first * outputs..][..rows.len() * outputs];
        objective.predict(model, records, predictions, &mut workspace);
    }
}
