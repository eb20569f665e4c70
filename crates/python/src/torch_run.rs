//! A simulated run of a model that Python computes: the library's [`Training`] with a
//! [`PythonObjective`].
//!
//! One thread drives all clients, because the framework has threads of its own and shares one
//! module among all calls. An exception, of the module, the loss or `observe`, ends the run before
//! the message of its round is handed out.

use std::ops::ControlFlow;

use numpy::{PyReadonlyArray1, ToPyArray};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use soteriafl::accountant::EstimatorKind;
use soteriafl::core::compress::CompressorKind;
use soteriafl::core::objective::{Objective, Regularizer};
use soteriafl::core::protocol::Schedule;
use soteriafl::core::simulate::Progress;
use soteriafl::training::MeasuredRound;
use soteriafl::{Adjacency, Claim, ClipScope, Estimator, Run, Target, Training};

use crate::errors;
use crate::objective::{MOST_RECORDS, PythonObjective, stand_ins};

/// Settings of a run, as `soteriafl.torch.simulate` checked them.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Settings {
    epsilon: Option<f64>,
    sigma: Option<f64>,
    delta: f64,
    adjacency: String,
    secure: bool,
    clip: Option<f64>,
    clip_scope: String,
    estimator: String,
    batch: Option<f64>,
    difference_clip: Option<f64>,
    snapshot_probability: f64,
    compressor: String,
    fraction: f64,
    levels: u32,
    shift: bool,
    participation: f64,
    rounds: u32,
    step_size: f64,
    schedule: String,
    momentum: f64,
    weight_decay: f64,
    seed: u64,
    evaluate_every: u32,
    prepared_by_records: bool,
}

/// Calibrates and makes a run. `records` are the clients' numbers of records, whose numbers follow
/// one another; those of the `test` records follow them.
#[pyfunction]
#[pyo3(signature = (objective, settings, *, records, test, start, observe))]
pub fn simulate_objective<'py>(
    py: Python<'py>,
    objective: &Bound<'py, PyAny>,
    settings: Settings,
    records: Vec<usize>,
    test: usize,
    start: PyReadonlyArray1<'py, f32>,
    observe: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyDict>> {
    let all = records.iter().sum::<usize>().saturating_add(test);
    if all > MOST_RECORDS {
        return Err(errors::data(format!(
            "`clients` and `test` hold {all} records; at most {MOST_RECORDS} can be numbered"
        )));
    }
    let objective = PythonObjective::new(objective)?;
    let unfit = |error: soteriafl::core::data::RecordsError| errors::data(error.to_string());
    let mut shards = Vec::with_capacity(records.len());
    let mut first = 0;
    for &count in &records {
        shards.push(stand_ins(first, count).map_err(unfit)?);
        first += count;
    }
    let test = match test {
        0 => None,
        count => Some(stand_ins(first, count).map_err(unfit)?),
    };
    let training = settings.training(objective, shards, start.as_slice()?.to_vec())?;
    let run = py
        .detach(|| training.build())
        .map_err(|error| errors::training(py, error))?;
    let mut log = Log::default();
    let result = py.detach(|| {
        run.simulate_while(test.as_ref(), |progress| {
            log.round(progress, observe.as_ref())
        })
    });
    if let Some(raised) = log.raised.take() {
        return Err(raised);
    }
    let result = result.map_err(|error| errors::training(py, error))?;
    let answer = PyDict::new(py);
    answer.set_item("model", result.model.to_pyarray(py))?;
    answer.set_item("rounds", log.columns(py, &result.rounds)?)?;
    describe(&run, &answer)?;
    Ok(answer)
}

/// What `answer` says about noise and claim.
fn describe(run: &Run, answer: &Bound<'_, PyDict>) -> PyResult<()> {
    let privacy = run.privacy();
    let reason = match run.claim() {
        Claim::Proved => None,
        Claim::Withheld(reason) => Some(reason.to_string()),
    };
    answer.set_item("epsilon", run.epsilon())?;
    answer.set_item("reason", reason)?;
    answer.set_item("sigmas", &privacy.sigmas)?;
    answer.set_item("amplified", privacy.amplified)
}

impl Settings {
    fn training(
        &self,
        objective: PythonObjective,
        shards: Vec<soteriafl::Dataset>,
        start: Vec<f32>,
    ) -> PyResult<Training> {
        let adjacency: Adjacency = self.adjacency.parse().map_err(|e| errors::event(&e))?;
        let clip_scope: ClipScope = self.clip_scope.parse().map_err(|e| errors::event(&e))?;
        let kind: EstimatorKind = self.estimator.parse().map_err(|e| errors::event(&e))?;
        let dimension = objective.dimension();
        let mut training = Training::new(objective, shards)
            .estimator(Estimator::new(kind, self.difference_clip))
            .compress(self.compressor(dimension)?)
            .participation(self.participation)
            .snapshot_probability(self.snapshot_probability)
            .rounds(self.rounds)
            .step_size(self.step_size)
            .schedule(self.schedule()?)
            .momentum(self.momentum)
            .regularizer(self.regularizer())
            .start(start)
            .seed(self.seed)
            .evaluate_every(self.evaluate_every)
            .threads(1);
        if let Some(batch) = self.batch {
            training = training.batch(batch);
        }
        if let Some(clip) = self.clip {
            training = training.clip(clip, clip_scope);
        }
        if self.shift {
            training = training.shifted();
        }
        if self.secure {
            training = training.secure_noise();
        }
        if self.prepared_by_records {
            training = training.prepared_by_records();
        }
        Ok(match (self.epsilon, self.sigma) {
            (Some(epsilon), None) => {
                training.private(Target::epsilon(epsilon, self.delta, adjacency))
            }
            (None, Some(sigma)) => training.private(Target::sigma(sigma, self.delta, adjacency)),
            (None, None) => training,
            (Some(_), Some(_)) => {
                return Err(errors::setting(
                    "give `epsilon` or `sigma`, not both".to_owned(),
                ));
            }
        })
    }

    fn compressor(&self, dimension: usize) -> PyResult<CompressorKind> {
        Ok(match self.compressor.as_str() {
            "identity" => CompressorKind::Identity,
            "rand-k" => {
                let k = (self.fraction * dimension as f64).round() as usize;
                CompressorKind::RandK {
                    k: k.clamp(1, dimension),
                }
            }
            "qsgd" => CompressorKind::Qsgd {
                levels: self.levels,
            },
            "natural" => CompressorKind::Natural,
            other => {
                return Err(errors::setting(format!(
                    "`compressor` must be identity, rand-k, qsgd or natural, found {other}"
                )));
            }
        })
    }

    fn schedule(&self) -> PyResult<Schedule> {
        match self.schedule.as_str() {
            "constant" => Ok(Schedule::Constant),
            "cosine" => Ok(Schedule::Cosine),
            "inverse-sqrt" => Ok(Schedule::InverseSqrt),
            other => Err(errors::setting(format!(
                "`schedule` must be constant, cosine or inverse-sqrt, found {other}"
            ))),
        }
    }

    fn regularizer(&self) -> Regularizer {
        match self.weight_decay {
            0.0 => Regularizer::None,
            lambda => Regularizer::L2 {
                lambda: lambda as f32,
            },
        }
    }
}

/// What was seen of a run, and the exception that ended it.
#[derive(Default)]
struct Log {
    sent: Vec<(u64, u64)>,
    raised: Option<PyErr>,
}

impl Log {
    fn round(&mut self, progress: &Progress, observe: Option<&Py<PyAny>>) -> ControlFlow<()> {
        let traffic = progress.traffic;
        if progress.metrics.is_some() {
            self.sent
                .push((traffic.uplink_bytes, traffic.downlink_bytes));
        }
        let asked = Python::attach(|py| {
            py.check_signals()?;
            let Some(observe) = observe else {
                return Ok(true);
            };
            let metrics = progress
                .metrics
                .map(|metrics| (metrics.loss, metrics.test_accuracy));
            let answer = observe.call1(py, (progress.round, traffic.uplink_bytes, metrics))?;
            PyResult::Ok(answer.extract::<Option<bool>>(py)? != Some(false))
        });
        match asked {
            Ok(true) => ControlFlow::Continue(()),
            Ok(false) => ControlFlow::Break(()),
            Err(raised) => {
                self.raised = Some(raised);
                ControlFlow::Break(())
            }
        }
    }

    /// The columns of `rounds.csv` that a simulation by a program has.
    fn columns<'py>(
        &self,
        py: Python<'py>,
        rounds: &[MeasuredRound],
    ) -> PyResult<Bound<'py, PyDict>> {
        let columns = PyDict::new(py);
        let column = |value: &dyn Fn(&MeasuredRound) -> f64| {
            rounds
                .iter()
                .map(value)
                .collect::<Vec<f64>>()
                .to_pyarray(py)
        };
        let numbers = rounds.iter().map(|row| i64::from(row.round));
        columns.set_item("round", numbers.collect::<Vec<i64>>().to_pyarray(py))?;
        let bytes = |part: fn(&(u64, u64)) -> u64| {
            self.sent
                .iter()
                .map(|sent| part(sent) as i64)
                .collect::<Vec<i64>>()
                .to_pyarray(py)
        };
        columns.set_item("uplink_bytes", bytes(|sent| sent.0))?;
        columns.set_item("downlink_bytes", bytes(|sent| sent.1))?;
        columns.set_item("loss", column(&|row| row.metrics.loss))?;
        columns.set_item("grad_norm_sq", column(&|row| row.metrics.grad_norm_sq))?;
        let accuracy = |row: &MeasuredRound| row.metrics.test_accuracy.unwrap_or(f64::NAN);
        columns.set_item("test_accuracy", column(&accuracy))?;
        let epsilon = |row: &MeasuredRound| row.epsilon.unwrap_or(f64::NAN);
        columns.set_item("epsilon", column(&epsilon))?;
        Ok(columns)
    }
}
