//! An objective that Python computes: what [`PythonObjective`] asks of a Python object, and its
//! errors on their way through the core and back.
//!
//! The object (`soteriafl.torch.records.Problem`) holds the records itself. The core knows them by
//! number: a [`Dataset`] of one column, whose value is the record's number. It has these members:
//!
//! | member | gives |
//! | --- | --- |
//! | `dimension`, `chunk` | numbers of parameters, and of records that are asked for at a time |
//! | `parameters` | an array of its own, into which every model is written before it is asked |
//! | `gradients(model, records)` | one row of `dimension` numbers per record |
//! | `clipped_sum(model, records, clip, over_selected, coordinates)` | the sum, on `coordinates` |
//! | `outcomes(model, records)` | losses, and whether each prediction is right |
//!
//! **Guarantee.** An exception ends the round before anything is released
//! ([`Elsewhere`]), and reaches the caller as it was raised.
//!
//! **Cost.** One call a client and round for GD and SGD; it copies the model, once and into the
//! memory that computes with it, the numbers of the records and the coordinates that travel.

use numpy::{
    PyArray1, PyArrayMethods, PyReadonlyArray1, PyReadonlyArray2, PyUntypedArrayMethods, ToPyArray,
};
use pyo3::prelude::*;
use soteriafl::Dataset;
use soteriafl::core::data::{DenseRows, Features, RecordsError};
use soteriafl::core::linalg;
use soteriafl::core::objective::{
    ClipBound, Coordinates, Elsewhere, Objective, ObjectiveError, Outcome, Records, Workspace,
};

use crate::errors;

/// A record's class where its prediction is right; every record is labelled with it.
const RIGHT: u32 = 0;
/// A record's class where it is wrong.
const WRONG: u32 = 1;

/// An objective whose numbers a Python object computes.
pub struct PythonObjective {
    object: Py<PyAny>,
    parameters: Py<PyArray1<f32>>,
    dimension: usize,
    chunk: usize,
}

impl PythonObjective {
    pub fn new(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let parameters: Bound<'_, PyArray1<f32>> = object.getattr("parameters")?.extract()?;
        Ok(Self {
            dimension: object.getattr("dimension")?.extract()?,
            chunk: object.getattr("chunk")?.extract()?,
            parameters: parameters.unbind(),
            object: object.clone().unbind(),
        })
    }

    /// Writes a model where the object has its parameters; all that it is asked then is about them.
    fn written<'py>(&self, py: Python<'py>, model: &[f32]) -> PyResult<Bound<'py, PyArray1<f32>>> {
        let parameters = self.parameters.bind(py);
        let mut writable = parameters.try_readwrite().map_err(PyErr::from)?;
        let values = writable.as_slice_mut()?;
        if values.len() != model.len() {
            return Err(misshaped("parameters", &[model.len()], &[values.len()]));
        }
        values.copy_from_slice(model);
        Ok(parameters.clone())
    }
}

/// Stand-ins for `count` records, whose numbers begin with `first`.
pub fn stand_ins(first: usize, count: usize) -> Result<Dataset, RecordsError> {
    let numbers = (first..first + count).map(|number| number as f32).collect();
    let features = Features::Dense(DenseRows::new(1, numbers)?);
    Dataset::new(features, vec![RIGHT; count], 2)
}

/// Record numbers are kept as `f32`, which holds whole numbers exactly up to here.
pub const MOST_RECORDS: usize = 1 << 24;

fn numbers(records: Records<'_>) -> Vec<i64> {
    let Features::Dense(stored) = records.data.features() else {
        unreachable!("stand-ins are dense")
    };
    let number = |&row: &u32| stored.row(row as usize)[0] as i64;
    records.rows.iter().map(number).collect()
}

fn failed(error: PyErr) -> ObjectiveError {
    ObjectiveError::new(error)
}

fn misshaped(what: &str, expected: &[usize], found: &[usize]) -> PyErr {
    errors::data(format!(
        "`{what}` must give an array of shape {expected:?}, it gave {found:?}"
    ))
}

impl PythonObjective {
    fn losses(
        &self,
        py: Python<'_>,
        model: &[f32],
        records: Records<'_>,
        outcomes: &mut [Outcome],
    ) -> PyResult<()> {
        let arguments = (self.written(py, model)?, numbers(records).to_pyarray(py));
        let found = self.object.call_method1(py, "outcomes", arguments)?;
        let (losses, right): (PyReadonlyArray1<'_, f32>, PyReadonlyArray1<'_, bool>) =
            found.extract(py)?;
        let (losses, right) = (losses.as_slice()?, right.as_slice()?);
        if losses.len() != outcomes.len() || right.len() != outcomes.len() {
            return Err(misshaped("outcomes", &[outcomes.len()], &[losses.len()]));
        }
        for ((outcome, &loss), &right) in outcomes.iter_mut().zip(losses).zip(right) {
            let class = if right { RIGHT } else { WRONG };
            *outcome = Outcome { loss, class };
        }
        Ok(())
    }

    fn gradients(
        &self,
        py: Python<'_>,
        model: &[f32],
        records: Records<'_>,
        factors: &mut [f32],
    ) -> PyResult<()> {
        let arguments = (self.written(py, model)?, numbers(records).to_pyarray(py));
        let found = self.object.call_method1(py, "gradients", arguments)?;
        let found: PyReadonlyArray2<'_, f32> = found.extract(py)?;
        let expected = [records.len(), self.dimension];
        if found.shape() != expected {
            return Err(misshaped("gradients", &expected, found.shape()));
        }
        factors.copy_from_slice(found.as_slice()?);
        Ok(())
    }

    fn sum(
        &self,
        py: Python<'_>,
        model: &[f32],
        records: Records<'_>,
        clip: Option<ClipBound<'_>>,
        coordinates: Coordinates<'_>,
        scale: f32,
        sum: &mut [f32],
    ) -> PyResult<()> {
        let chosen: Option<Bound<'_, PyArray1<i64>>> = match coordinates {
            Coordinates::All => None,
            Coordinates::Selected(chosen) => {
                let chosen: Vec<i64> = chosen.iter().map(|&index| i64::from(index)).collect();
                Some(chosen.to_pyarray(py))
            }
        };
        let over_selected = clip.is_some_and(|clip| clip.over != Coordinates::All);
        let arguments = (
            self.written(py, model)?,
            numbers(records).to_pyarray(py),
            clip.map(|clip| clip.norm),
            over_selected,
            chosen,
        );
        let found = self.object.call_method1(py, "clipped_sum", arguments)?;
        let found: PyReadonlyArray1<'_, f32> = found.extract(py)?;
        if found.len() != sum.len() {
            return Err(misshaped("clipped_sum", &[sum.len()], found.shape()));
        }
        linalg::add_scaled(sum, scale, found.as_slice()?);
        Ok(())
    }
}

impl Elsewhere for PythonObjective {
    fn most_records(&self) -> usize {
        self.chunk
    }

    fn add_clipped(
        &self,
        model: &[f32],
        records: Records<'_>,
        clip: Option<ClipBound<'_>>,
        coordinates: Coordinates<'_>,
        scale: f32,
        sum: &mut [f32],
    ) -> Result<(), ObjectiveError> {
        if records.is_empty() {
            return Ok(());
        }
        Python::attach(|py| self.sum(py, model, records, clip, coordinates, scale, sum))
            .map_err(failed)
    }
}

impl Objective for PythonObjective {
    fn dimension(&self) -> usize {
        self.dimension
    }

    fn factors(
        &self,
        model: &[f32],
        records: Records<'_>,
        outcomes: Option<&mut [Outcome]>,
        factors: Option<&mut [f32]>,
        _workspace: &mut Workspace,
    ) -> Result<(), ObjectiveError> {
        if records.is_empty() {
            return Ok(());
        }
        let computed = Python::attach(|py| {
            if let Some(outcomes) = outcomes {
                self.losses(py, model, records, outcomes)?;
            }
            match factors {
                Some(factors) => self.gradients(py, model, records, factors),
                None => Ok(()),
            }
        });
        computed.map_err(failed)
    }

    fn elsewhere(&self) -> Option<&dyn Elsewhere> {
        Some(self)
    }
}
