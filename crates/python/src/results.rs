//! What a run leaves, for Python: the texts and bytes of its files, its columns and tensors, its
//! figure, and its model applied to records.

use std::path::{Path, PathBuf};

use numpy::{IntoPyArray, PyArray1, PyArray2, PyArrayMethods};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use soteriafl::config::{Config, Document};
use soteriafl::data::{Constants, Scaling, Schema};
use soteriafl::output::FinishedRun;
use soteriafl::report::{self, RunFiles};
use soteriafl::trained::{self, Trained};

use crate::errors;
use crate::records::Rows;

/// A tensor's name, shape and numbers.
pub type Tensor<'py> = (String, Vec<usize>, Bound<'py, PyArray1<f32>>);

/// The tensors of a model file.
pub fn tensors<'py>(py: Python<'py>, model: &[u8]) -> PyResult<Vec<Tensor<'py>>> {
    let tensors = trained::tensors(model).map_err(errors::unreadable)?;
    let array = |(name, shape, values): (_, _, Vec<f32>)| (name, shape, values.into_pyarray(py));
    Ok(tensors.into_iter().map(array).collect())
}

/// A finished run.
#[pyclass(frozen, module = "soteriafl._soteriafl")]
pub struct Finished {
    run: FinishedRun,
    warnings: Vec<String>,
    classes: Vec<u32>,
}

impl Finished {
    /// A run that has just ended; `classes` are those of the labels that it was given.
    pub fn new(run: FinishedRun, warnings: Vec<String>, classes: Vec<u32>) -> Self {
        Self {
            run,
            warnings,
            classes,
        }
    }

    fn files(&self) -> PyResult<RunFiles> {
        let files = self.run.files(Path::new("run"));
        files.map_err(|error| errors::unreadable(error.to_string()))
    }
}

#[pymethods]
impl Finished {
    /// What a directory holds that `soteria train` or `write` has written.
    #[staticmethod]
    fn read(path: PathBuf) -> PyResult<Self> {
        let run = FinishedRun::read(&path).map_err(|error| errors::output(&error))?;
        let files = run.files(&path);
        files.map_err(|error| errors::unreadable(error.to_string()))?;
        Ok(Self::new(run, Vec::new(), Vec::new()))
    }

    /// What the getters of another one gave.
    #[staticmethod]
    fn of(
        config: String,
        rounds: String,
        summary: String,
        model: Vec<u8>,
        warnings: Vec<String>,
        classes: Vec<u32>,
    ) -> Self {
        let run = FinishedRun {
            config,
            rounds,
            summary,
            model,
        };
        Self::new(run, warnings, classes)
    }

    fn write(&self, py: Python<'_>, path: PathBuf, overwrite: bool) -> PyResult<()> {
        let written = py.detach(|| self.run.write(&path, overwrite));
        written.map_err(|error| errors::output(&error))
    }

    #[getter]
    fn config(&self) -> &str {
        &self.run.config
    }

    #[getter]
    fn rounds(&self) -> &str {
        &self.run.rounds
    }

    #[getter]
    fn summary(&self) -> &str {
        &self.run.summary
    }

    #[getter]
    fn model<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.run.model)
    }

    #[getter]
    fn warnings(&self) -> Vec<String> {
        self.warnings.clone()
    }

    /// The class of each of the labels that were given, in their order.
    #[getter]
    fn classes(&self) -> Vec<u32> {
        self.classes.clone()
    }

    /// The claim in a sentence, or why there is none.
    fn statement(&self) -> PyResult<String> {
        Ok(report::statement(&self.files()?))
    }

    /// The curves as a figure.
    fn svg(&self, py: Python<'_>) -> PyResult<String> {
        let files = self.files()?;
        Ok(py.detach(|| report::svg(&files)))
    }

    /// The whole report.
    fn html(&self, py: Python<'_>) -> PyResult<String> {
        let files = self.files()?;
        Ok(py.detach(|| report::html(&files)))
    }

    /// The columns of `rounds.csv`: whole numbers where all are, else numbers, with nan for none.
    fn columns<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let mut lines = self.run.rounds.lines();
        let names: Vec<&str> = lines.next().unwrap_or_default().split(',').collect();
        let rows: Vec<Vec<&str>> = lines.map(|line| line.split(',').collect()).collect();
        let columns = PyDict::new(py);
        for (place, name) in names.into_iter().enumerate() {
            let cells = || {
                rows.iter()
                    .map(|row| row.get(place).copied().unwrap_or_default())
            };
            let whole: Result<Vec<i64>, _> = cells().map(str::parse).collect();
            match whole {
                Ok(whole) => columns.set_item(name, whole.into_pyarray(py))?,
                Err(_) => {
                    let number = |cell: &str| cell.parse().unwrap_or(f64::NAN);
                    let numbers: Vec<f64> = cells().map(number).collect();
                    columns.set_item(name, numbers.into_pyarray(py))?;
                }
            }
        }
        Ok(columns)
    }

    /// The tensors of the model by name, flat, with their shapes.
    fn tensors<'py>(&self, py: Python<'py>) -> PyResult<Vec<Tensor<'py>>> {
        tensors(py, &self.run.model)
    }

    /// The class that the model predicts for every row.
    fn predict<'py>(&self, py: Python<'py>, rows: &Rows) -> PyResult<Bound<'py, PyArray1<u32>>> {
        let (model, scaling) = self.applied()?;
        let rows = rows.unlabelled(&read_by(&model), model.classes)?;
        let predicted = py.detach(|| {
            let data = model.prepared(rows, &scaling)?;
            let outcomes = model.outcomes(&data);
            Ok(outcomes.iter().map(|outcome| outcome.class).collect())
        });
        let predicted: Vec<u32> = predicted.map_err(|error| errors::records("X", error))?;
        Ok(predicted.into_pyarray(py))
    }

    /// Whether the model predicts a number.
    #[getter]
    fn regression(&self) -> PyResult<bool> {
        let model = Trained::read(&self.run.model).map_err(errors::unreadable)?;
        Ok(model.targets.is_some())
    }

    /// The number that the model predicts for every row.
    fn numbers<'py>(&self, py: Python<'py>, rows: &Rows) -> PyResult<Bound<'py, PyArray1<f64>>> {
        let (model, scaling) = self.applied()?;
        let range = model.targets.ok_or_else(|| {
            errors::unreadable("this model predicts classes, not a number".to_string())
        })?;
        let rows = rows.unlabelled(&read_by(&model), 1)?;
        let found = py.detach(|| {
            let data = model.prepared(rows, &scaling)?;
            Ok(model.numbers(&data, range))
        });
        let found: Vec<f64> = found.map_err(|error| errors::records("X", error))?;
        Ok(found.into_pyarray(py))
    }

    /// The probability of every class for every row.
    fn probabilities<'py>(
        &self,
        py: Python<'py>,
        rows: &Rows,
    ) -> PyResult<Bound<'py, PyArray2<f64>>> {
        let (model, scaling) = self.applied()?;
        let rows = rows.unlabelled(&read_by(&model), model.classes)?;
        let found = py.detach(|| {
            let data = model.prepared(rows, &scaling)?;
            Ok(model.probabilities(&data))
        });
        let found: Vec<f64> = found.map_err(|error| errors::records("X", error))?;
        let rows = found.len() / model.classes;
        found.into_pyarray(py).reshape([rows, model.classes])
    }
}

impl Finished {
    /// The model, and how records are scaled for it.
    fn applied(&self) -> PyResult<(Trained, Scaling)> {
        let model = Trained::read(&self.run.model).map_err(errors::unreadable)?;
        let summary = self.files()?.summary;
        let constants = |name: &str| -> Option<Constants> {
            let list = summary.pointer("/data/scaling")?.get(name)?.as_array()?;
            let values: Option<Vec<f64>> = list.iter().map(|value| value.as_f64()).collect();
            Some(match &values?[..] {
                &[same] => Constants::Same(same),
                values => Constants::PerFeature(values.into()),
            })
        };
        if let (Some(center), Some(factor)) = (constants("center"), constants("factor")) {
            let scaling = Scaling::constants(center, factor);
            let scaling = scaling.map_err(|error| errors::records("scaling", error.into()))?;
            return Ok((model, scaling));
        }
        let document = Document::from_text(&self.run.config, "config.toml");
        let config = document.and_then(|document| Config::read(&document));
        let config = config.map_err(|error| errors::config(&error))?;
        let scaling = trained::public_scaling(&config, model.features.kind());
        let scaling = scaling.map_err(|error| errors::records("scaling", error.into()))?;
        scaling.map(|scaling| (model, scaling)).ok_or_else(|| {
            errors::unreadable(
                "features were scaled by constants computed from the records, and this run's \
                 summary does not say which: `soteria evaluate --config` computes them again"
                    .to_string(),
            )
        })
    }
}

/// The columns that a model reads.
fn read_by(model: &Trained) -> Schema {
    Schema {
        columns: Some(model.features.inputs()),
        feature_names: model.names.clone(),
        label_names: None,
        targets: model.targets,
        table: model.schema.clone(),
        ..Schema::default()
    }
}
