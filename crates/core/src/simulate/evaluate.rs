//! Metrics in parallel: the true loss, the squared norm of the true gradient, accuracy.
//!
//! The records of all clients, in order, are cut into at most [`UNITS`] units whose borders do not
//! depend on the number of threads. A unit sums the loss and the gradient of its records, and the
//! sums are added in the order of units, so metrics are the same bits on any number of threads.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use super::EvaluationPlan;
use crate::data::Dataset;
use crate::objective::{
    Coordinates, Gradients, Objective, ObjectiveError, Outcome, Records, Workspace,
};

/// Most pieces of an evaluation, each the work of one thread.
pub const UNITS: usize = 32;

/// Records handled at a time.
const CHUNK: usize = 256;

/// What is measured about a model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Metrics {
    /// `f(x)` over all clients' records, regularizer included.
    pub loss: f64,
    /// `|grad f(x)|^2`, unclipped.
    pub grad_norm_sq: f64,
    /// Share of held-out records classified correctly; none where they have targets.
    pub test_accuracy: Option<f64>,
    /// The mean squared distance of the clients' models to their mean, where each has its own.
    pub consensus_error: Option<f64>,
}

pub(super) struct Evaluation<'a> {
    plan: &'a EvaluationPlan<'a>,
    train: Vec<Arc<Dataset>>,
    units: Vec<Unit>,
    next: AtomicUsize,
    failure: Mutex<Option<ObjectiveError>>,
}

struct Unit {
    part: Part,
    result: Mutex<Sums>,
}

enum Part {
    /// Records `from..to` of consecutive clients: (client, from, to).
    Train(Vec<(usize, u32, u32)>),
    /// Records `from..to` of the test set.
    Test(u32, u32),
}

#[derive(Default)]
struct Sums {
    loss: f64,
    correct: u64,
    gradient: Vec<f32>,
    rows: Vec<u32>,
    outcomes: Vec<Outcome>,
    factors: Vec<f32>,
    weights: Vec<f32>,
}

impl<'a> Evaluation<'a> {
    /// An evaluation of the records of all clients, in order.
    pub(super) fn new(plan: &'a EvaluationPlan<'a>, train: Vec<Arc<Dataset>>) -> Self {
        let sizes: Vec<usize> = train.iter().map(|data| data.rows()).collect();
        // Gradients of all units together stay below 256 MB, but at least two units.
        let most = (64_000_000 / plan.objective.dimension().max(1)).clamp(2, UNITS);
        let mut parts: Vec<Part> = cut(&sizes, most).into_iter().map(Part::Train).collect();
        // What is measured of a test set in every round is how many of its classes are right.
        if let Some(test) = plan.test.filter(|test| test.targets().is_none()) {
            let spans = cut(&[test.rows()], most);
            parts.extend(
                spans
                    .into_iter()
                    .flatten()
                    .map(|(_, from, to)| Part::Test(from, to)),
            );
        }
        let units = parts
            .into_iter()
            .map(|part| Unit {
                part,
                result: Mutex::default(),
            })
            .collect();
        Self {
            plan,
            train,
            units,
            next: AtomicUsize::new(0),
            failure: Mutex::default(),
        }
    }

    pub(super) fn begin(&self) {
        self.next.store(0, Ordering::Relaxed);
    }

    pub(super) fn work(&self, model: &[f32], workspace: &mut Workspace) {
        loop {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(unit) = self.units.get(index) else {
                return;
            };
            let mut sums = unit.result.lock().expect("each unit has one thread");
            sums.reset(self.plan.objective.dimension());
            if let Err(error) = self.measure(&unit.part, &mut sums, model, workspace) {
                *self.failure() = Some(error);
                return;
            }
        }
    }

    fn measure(
        &self,
        part: &Part,
        sums: &mut Sums,
        model: &[f32],
        workspace: &mut Workspace,
    ) -> Result<(), ObjectiveError> {
        let EvaluationPlan {
            objective,
            weights,
            test,
            ..
        } = self.plan;
        match part {
            Part::Train(spans) => {
                for &(client, from, to) in spans {
                    let data = &self.train[client];
                    let weight = Some(weights[client] / data.rows() as f64);
                    sums.add(*objective, model, data, from..to, weight, workspace)?;
                }
            }
            Part::Test(from, to) => {
                if let Some(test) = test {
                    sums.add(*objective, model, test, *from..*to, None, workspace)?;
                }
            }
        }
        Ok(())
    }

    pub(super) fn finish(&self, model: &[f32]) -> Result<Metrics, ObjectiveError> {
        if let Some(error) = self.failure().take() {
            return Err(error);
        }
        let mut gradient = vec![0f64; model.len()];
        let (mut loss, mut correct) = (0.0, 0);
        for unit in &self.units {
            let sums = unit.result.lock().expect("no worker is evaluating");
            match unit.part {
                Part::Train(_) => {
                    loss += sums.loss;
                    gradient
                        .iter_mut()
                        .zip(&sums.gradient)
                        .for_each(|(sum, part)| *sum += f64::from(*part));
                }
                Part::Test(..) => correct += sums.correct,
            }
        }
        let mut regularizer = vec![0f32; model.len()];
        self.plan
            .regularizer
            .add_gradient(model, Coordinates::All, 1.0, &mut regularizer);
        loss += self.plan.regularizer.value(model);
        let grad_norm_sq = gradient
            .iter()
            .zip(regularizer)
            .map(|(g, r)| (g + f64::from(r)).powi(2))
            .sum();
        let test_accuracy = self
            .plan
            .test
            .filter(|test| test.targets().is_none())
            .map(|test| correct as f64 / test.rows().max(1) as f64);
        Ok(Metrics {
            loss,
            grad_norm_sq,
            test_accuracy,
            consensus_error: None,
        })
    }

    fn failure(&self) -> MutexGuard<'_, Option<ObjectiveError>> {
        self.failure.lock().expect("no thread panics holding it")
    }
}

impl Sums {
    fn reset(&mut self, dimension: usize) {
        self.loss = 0.0;
        self.correct = 0;
        self.gradient.clear();
        self.gradient.resize(dimension, 0.0);
    }

    /// Adds records; with a weight their loss and gradient, without one their correctness.
    fn add(
        &mut self,
        objective: &dyn Objective,
        model: &[f32],
        data: &Dataset,
        span: std::ops::Range<u32>,
        weight: Option<f64>,
        workspace: &mut Workspace,
    ) -> Result<(), ObjectiveError> {
        let Self {
            loss,
            correct,
            gradient,
            rows,
            outcomes,
            factors,
            weights,
        } = self;
        for from in span.clone().step_by(CHUNK) {
            rows.clear();
            rows.extend(from..span.end.min(from + CHUNK as u32));
            let records = Records { data, rows };
            outcomes.resize(rows.len(), Outcome::default());
            let Some(weight) = weight else {
                objective.factors(model, records, Some(outcomes), None, workspace)?;
                let labels = data.labels();
                *correct += rows
                    .iter()
                    .zip(outcomes.iter())
                    .filter(|(row, outcome)| labels[**row as usize] == outcome.class)
                    .count() as u64;
                continue;
            };
            let elsewhere = objective.elsewhere();
            if elsewhere.is_some() {
                objective.factors(model, records, Some(outcomes), None, workspace)?;
            } else {
                factors.resize(rows.len() * objective.factor_len(), 0.0);
                objective.factors(model, records, Some(outcomes), Some(factors), workspace)?;
            }
            *loss += weight
                * outcomes
                    .iter()
                    .map(|outcome| f64::from(outcome.loss))
                    .sum::<f64>();
            if let Some(elsewhere) = elsewhere {
                let all = Coordinates::All;
                elsewhere.add_clipped(model, records, None, all, weight as f32, gradient)?;
                continue;
            }
            weights.clear();
            weights.resize(rows.len(), weight as f32);
            let gradients = Gradients { factors, weights };
            objective.accumulate(records, gradients, Coordinates::All, gradient, workspace);
        }
        Ok(())
    }
}

/// Cuts items of the given sizes, laid end to end, into at most `most` pieces of nearly equal
/// size; a piece is a list of (item, from, to).
fn cut(sizes: &[usize], most: usize) -> Vec<Vec<(usize, u32, u32)>> {
    let total: usize = sizes.iter().sum();
    let piece = total.div_ceil(most).max(CHUNK);
    let mut pieces = vec![Vec::new()];
    let mut room = piece;
    for (item, &size) in sizes.iter().enumerate() {
        let mut from = 0;
        while from < size {
            if room == 0 {
                pieces.push(Vec::new());
                room = piece;
            }
            let to = size.min(from + room);
            if let Some(last) = pieces.last_mut() {
                last.push((item, from as u32, to as u32));
            }
            room -= to - from;
            from = to;
        }
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_everything_once() {
        for (sizes, most) in [
            (vec![10, 5000, 1, 700], 8),
            (vec![3; 4000], 32),
            (vec![100], 32),
            (vec![60_000], 32),
        ] {
            let pieces = cut(&sizes, most);
            assert!(pieces.len() <= most);
            let mut covered = vec![0u32; sizes.len()];
            for (item, from, to) in pieces.into_iter().flatten() {
                assert_eq!(covered[item], from);
                covered[item] = to;
            }
            assert!(
                covered
                    .iter()
                    .zip(&sizes)
                    .all(|(&found, &size)| found as usize == size)
            );
        }
    }
}
