//! Releases, and questions about them: `soteriafl.accounting` gives names and defaults to what is
//! here. A call costs some ten microseconds above the library's own time.

use numpy::{PyArray1, ToPyArray};
use pyo3::prelude::*;
use soteriafl::accountant::rdp::RdpCurve;
use soteriafl::accountant::{
    self, AccountError, Adjacency, ClipScope, Cost, Estimator, EstimatorKind, Mechanism, Method,
    Question, SMALLEST_DELTA, ShiftMixture,
};

use crate::errors;

/// What one message reveals of one record, or of all records of one person, before its noise.
#[pyclass(frozen, module = "soteriafl._soteriafl")]
#[derive(Clone)]
pub struct Release {
    release: accountant::Release,
}

/// A release that was made before, its sigma and its rounds.
type Before = Vec<(Py<Release>, f64, u64)>;

/// Epsilon, delta, sigma, whether it is amplified, why or why not, epsilon without amplification.
type CostParts = (f64, f64, f64, bool, String, f64);

#[pymethods]
impl Release {
    #[staticmethod]
    #[pyo3(signature = (
        *, estimator, records, batch, clip, difference_clip, memory, clip_scope, rand_k,
        records_per_person
    ))]
    fn of_mechanism(
        estimator: &str,
        records: u64,
        batch: Option<f64>,
        clip: f64,
        difference_clip: Option<f64>,
        memory: Option<f64>,
        clip_scope: &str,
        rand_k: Option<f64>,
        records_per_person: u32,
    ) -> PyResult<Self> {
        let kind: EstimatorKind = estimator.parse().map_err(|error| errors::event(&error))?;
        let clip_scope: ClipScope = clip_scope.parse().map_err(|error| errors::event(&error))?;
        if batch.is_none() && kind != EstimatorKind::Gd {
            return Err(errors::refused(format!(
                "{kind} draws batches: say how many records by `batch`"
            )));
        }
        let estimator = match (Estimator::new(kind, difference_clip), memory) {
            (Estimator::Sag { .. }, Some(memory)) => Estimator::Sag { memory },
            (_, Some(_)) => {
                return Err(errors::refused(format!(
                    "`memory` is of sag; {kind} has none"
                )));
            }
            (estimator, None) => estimator,
        };
        let mechanism = Mechanism {
            estimator,
            records,
            batch: batch.unwrap_or(records as f64),
            clip,
            clip_scope,
            rand_k,
        };
        let release = mechanism.release_of_person(records_per_person);
        let release = release.map_err(|error| errors::event(&error))?;
        Ok(Self { release })
    }

    #[staticmethod]
    fn of_shifts(shifts: Vec<f64>, probabilities: Vec<f64>) -> PyResult<Self> {
        let mixture =
            ShiftMixture::new(&shifts, &probabilities).map_err(|error| errors::event(&error))?;
        Ok(Self {
            release: mixture.into(),
        })
    }

    /// How far one record moves the estimate, with which probability.
    #[getter]
    fn shifts(&self) -> Vec<(f64, f64)> {
        self.release.shifts.parts().to_vec()
    }

    /// `k/d` where random-k hides a part of a record.
    #[getter]
    fn hidden_fraction(&self) -> Option<f64> {
        self.release.random_k.map(|mask| mask.fraction)
    }

    #[pyo3(signature = (*, sigma, rounds, delta, adjacency, method, amplification, before))]
    fn cost(
        &self,
        py: Python<'_>,
        sigma: f64,
        rounds: u64,
        delta: f64,
        adjacency: &str,
        method: &str,
        amplification: bool,
        before: Before,
    ) -> PyResult<CostParts> {
        let question = self.question(rounds, delta, adjacency, method, amplification, before)?;
        answer(py, || question.cost(sigma)).map(parts)
    }

    #[pyo3(signature = (*, epsilon, rounds, delta, adjacency, method, amplification, before))]
    fn calibrate(
        &self,
        py: Python<'_>,
        epsilon: f64,
        rounds: u64,
        delta: f64,
        adjacency: &str,
        method: &str,
        amplification: bool,
        before: Before,
    ) -> PyResult<CostParts> {
        let question = self.question(rounds, delta, adjacency, method, amplification, before)?;
        answer(py, || question.calibrate(epsilon)).map(parts)
    }

    #[pyo3(signature = (*, sigma, rounds, epsilon, adjacency, method, before))]
    fn delta_at(
        &self,
        py: Python<'_>,
        sigma: f64,
        rounds: u64,
        epsilon: f64,
        adjacency: &str,
        method: &str,
        before: Before,
    ) -> PyResult<f64> {
        // The question's own delta plays no part.
        let question = self.question(rounds, SMALLEST_DELTA, adjacency, method, false, before)?;
        answer(py, || question.delta_at(epsilon, sigma)).map(|cost| cost.delta)
    }

    /// Epsilon after 0, 1, ... rounds, computed at about `checkpoints` of them.
    #[pyo3(signature = (
        *, sigma, rounds, delta, adjacency, method, amplification, checkpoints, before
    ))]
    fn spent<'py>(
        &self,
        py: Python<'py>,
        sigma: f64,
        rounds: u64,
        delta: f64,
        adjacency: &str,
        method: &str,
        amplification: bool,
        checkpoints: usize,
        before: Before,
    ) -> PyResult<Bound<'py, PyArray1<f64>>> {
        const MOST_ROUNDS: u64 = 1 << 28;
        if rounds > MOST_ROUNDS {
            return Err(errors::refused(format!(
                "`rounds`: a table of at most {MOST_ROUNDS} rounds can be made, found {rounds}"
            )));
        }
        let question = self.question(rounds, delta, adjacency, method, amplification, before)?;
        let spent: Vec<f64> = answer(py, || {
            let odometer = question.odometer(sigma, checkpoints)?;
            Ok((0..=rounds).map(|round| odometer.after(round)).collect())
        })?;
        Ok(spent.to_pyarray(py))
    }
}

impl Release {
    fn question(
        &self,
        rounds: u64,
        delta: f64,
        adjacency: &str,
        method: &str,
        amplification: bool,
        before: Before,
    ) -> PyResult<Question> {
        let adjacency: Adjacency = adjacency.parse().map_err(|error| errors::event(&error))?;
        let method: Method = method.parse().map_err(|error| errors::event(&error))?;
        let mut question = Question::new(self.release.clone(), rounds, delta, adjacency)
            .by(method)
            .amplification(amplification);
        for (release, sigma, rounds) in before {
            let release = &release.get().release;
            let composed = question.after(release, sigma, rounds);
            question = composed.map_err(|error| errors::account(&error))?;
        }
        Ok(question)
    }
}

/// The epsilon of releases of which each may have been chosen by what those before it showed.
#[pyfunction]
#[pyo3(signature = (releases, *, delta, adjacency))]
pub fn filter_epsilon(
    py: Python<'_>,
    releases: Before,
    delta: f64,
    adjacency: &str,
) -> PyResult<f64> {
    let adjacency: Adjacency = adjacency.parse().map_err(|error| errors::event(&error))?;
    if !(SMALLEST_DELTA..1.0).contains(&delta) {
        return Err(errors::account(&AccountError::Delta { value: delta }));
    }
    answer(py, || {
        let mut sum = RdpCurve::zero();
        for (release, sigma, rounds) in &releases {
            let curve = release.get().release.rdp_curve(*sigma, adjacency)?;
            sum = sum.plus(&curve.times(*rounds));
        }
        Ok(sum.filter_epsilon(delta))
    })
}

/// Computes without the interpreter's lock.
fn answer<T: Send>(
    py: Python<'_>,
    compute: impl FnOnce() -> Result<T, AccountError> + Send,
) -> PyResult<T> {
    py.detach(compute).map_err(|error| errors::account(&error))
}

fn parts(cost: Cost) -> CostParts {
    let amplified = cost.amplified();
    let words = cost.amplification.to_string();
    let (epsilon, delta, sigma) = (cost.epsilon, cost.delta, cost.sigma);
    let unamplified = cost.epsilon_unamplified;
    (epsilon, delta, sigma, amplified, words, unamplified)
}
