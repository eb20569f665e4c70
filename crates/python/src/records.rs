//! Records that a Python program has in memory: arrays in, rows of the library out.
//!
//! An array is copied once, while it is turned into 32-bit numbers; that is also what keeps other
//! threads of the program from writing to records while a run reads them. Everything is checked
//! here as it is in files: finite values, ascending indices, labels that are classes.

use std::path::Path;
use std::sync::Mutex;

use numpy::{Element, PyReadonlyArray1, PyReadonlyArray2};
use pyo3::prelude::*;
use soteriafl::core::data::Labels as Truth;
use soteriafl::data::{
    DataError, Dataset, DenseRows, Features, LARGEST_VALUE, OtherName, Place, Schema, SparseRows,
    TargetRange, Targets, classes_of,
};

use crate::errors;

/// Numbers of one row after the other, in either precision.
#[derive(FromPyObject)]
pub enum Matrix<'py> {
    #[pyo3(transparent)]
    Single(PyReadonlyArray2<'py, f32>),
    #[pyo3(transparent)]
    Double(PyReadonlyArray2<'py, f64>),
}

/// Numbers in either precision.
#[derive(FromPyObject)]
pub enum Vector<'py> {
    #[pyo3(transparent)]
    Single(PyReadonlyArray1<'py, f32>),
    #[pyo3(transparent)]
    Double(PyReadonlyArray1<'py, f64>),
}

/// Rows of features and, where they have one, their labels; a run takes them out.
#[pyclass(frozen, module = "soteriafl._soteriafl")]
pub struct Rows {
    held: Mutex<Option<Held>>,
}

struct Held {
    /// What they are called in errors.
    argument: String,
    features: Features,
    names: Option<Vec<String>>,
    labels: Option<Labels>,
}

/// The different labels, and which one every row has.
struct Labels {
    argument: String,
    distinct: Distinct,
    rows: Vec<u32>,
}

/// Different labels: text, or numbers, which name classes or are what is predicted.
#[derive(FromPyObject)]
enum Distinct {
    #[pyo3(transparent)]
    Numbers(Vec<f64>),
    #[pyo3(transparent)]
    Text(Vec<String>),
}

impl Distinct {
    fn len(&self) -> usize {
        match self {
            Distinct::Numbers(numbers) => numbers.len(),
            Distinct::Text(text) => text.len(),
        }
    }

    /// As a file would spell them.
    fn spellings(&self) -> Vec<String> {
        match self {
            Distinct::Numbers(numbers) => numbers.iter().map(f64::to_string).collect(),
            Distinct::Text(text) => text.clone(),
        }
    }
}

#[pymethods]
impl Rows {
    #[staticmethod]
    fn dense(
        py: Python<'_>,
        argument: String,
        values: Matrix<'_>,
        names: Option<Vec<String>>,
    ) -> PyResult<Self> {
        let (columns, values) = match &values {
            Matrix::Single(values) => flat(values, |value| value),
            Matrix::Double(values) => flat(values, |value| value as f32),
        };
        let rows = py.detach(|| DenseRows::new(columns, values));
        let features = rows.map_err(|error| errors::records(&argument, error.into()))?;
        Ok(Self::new(argument, Features::Dense(features), names))
    }

    #[staticmethod]
    fn sparse(
        py: Python<'_>,
        argument: String,
        columns: usize,
        starts: PyReadonlyArray1<'_, i64>,
        indices: PyReadonlyArray1<'_, i32>,
        values: Vector<'_>,
        names: Option<Vec<String>>,
    ) -> PyResult<Self> {
        let starts = starts.as_array().to_vec();
        let indices = indices.as_array().to_vec();
        let values = match &values {
            Vector::Single(values) => values.as_array().to_vec(),
            Vector::Double(values) => values.as_array().iter().map(|&v| v as f32).collect(),
        };
        let rows = py.detach(|| compressed(columns, &starts, &indices, &values));
        let features = rows.map_err(|error| errors::records(&argument, error))?;
        Ok(Self::new(argument, Features::Sparse(features), names))
    }

    /// How many rows there are.
    #[getter]
    fn count(&self) -> PyResult<usize> {
        let held = self.held()?;
        let held = held.as_ref().ok_or_else(errors::taken)?;
        Ok(held.features.rows())
    }

    /// Gives every row its label: one of `distinct`, by its number.
    fn label(
        &self,
        argument: String,
        distinct: Distinct,
        rows: PyReadonlyArray1<'_, u32>,
    ) -> PyResult<()> {
        let rows = rows.as_array().to_vec();
        let known = rows.iter().all(|&row| (row as usize) < distinct.len());
        let mut held = self.held()?;
        let Some(held) = held.as_mut() else {
            return Err(errors::taken());
        };
        if rows.len() != held.features.rows() || !known {
            return Err(errors::data(format!(
                "`{argument}` has {} labels, `{}` has {} rows",
                rows.len(),
                held.argument,
                held.features.rows()
            )));
        }
        held.labels = Some(Labels {
            argument,
            distinct,
            rows,
        });
        Ok(())
    }
}

impl Rows {
    fn new(argument: String, features: Features, names: Option<Vec<String>>) -> Self {
        Self {
            held: Mutex::new(Some(Held {
                argument,
                features,
                names,
                labels: None,
            })),
        }
    }

    fn held(&self) -> PyResult<std::sync::MutexGuard<'_, Option<Held>>> {
        self.held.lock().map_err(|_| errors::taken())
    }

    /// The records, whose features and classes must be those of `schema`, and the class of each of
    /// the labels that were given.
    pub fn take(&self, schema: &Schema) -> PyResult<(Dataset, Vec<u32>)> {
        let held = self.held()?.take().ok_or_else(errors::taken)?;
        let argument = held.argument.clone();
        held.dataset(schema)
            .map_err(|error| errors::records(&argument, error))
    }

    /// The records as their owner has them: with numbers to predict where there are too many
    /// different ones to be classes.
    pub fn taken(&self) -> PyResult<Dataset> {
        let held = self.held()?.take().ok_or_else(errors::taken)?;
        let argument = held.argument.clone();
        held.into_data()
            .map_err(|error| errors::records(&argument, error))
    }

    /// The rows without labels, as records to which labels of any kind are given.
    pub fn unlabelled(&self, schema: &Schema, classes: usize) -> PyResult<Dataset> {
        let mut held = self.held()?.take().ok_or_else(errors::taken)?;
        held.labels = None;
        let argument = held.argument.clone();
        let records = held.fitting(schema).and_then(|held| {
            let rows = held.features.rows();
            Ok(match schema.targets {
                // Models look whether they are asked for what they predict, not at its values.
                Some(range) => {
                    let any = vec![range.unscale(0.0); rows];
                    let targets = Truth::Targets(Targets::new(&any, range)?);
                    Dataset::labelled(held.features, targets)?
                }
                None => Dataset::new(held.features, vec![0; rows], classes)?,
            })
        });
        records.map_err(|error| errors::records(&argument, error))
    }
}

impl Held {
    fn dataset(self, schema: &Schema) -> Result<(Dataset, Vec<u32>), DataError> {
        let held = self.fitting(schema)?;
        let place = |text: &str| Place::file(text);
        let labels = held.labels.ok_or(DataError::Format {
            place: place(&held.argument),
            expected: "labels".to_owned(),
            found: "none".to_owned(),
        })?;
        if let Some(range) = schema.targets {
            let data = labels.targets(range)?;
            return Ok((
                named(Dataset::labelled(held.features, data)?, held.names)?,
                Vec::new(),
            ));
        }
        let name = Path::new(&labels.argument);
        let spellings = labels.distinct.spellings();
        let (rows, names) = classes_of(&spellings, &labels.rows, schema, name)?;
        let mut classes = vec![0; spellings.len()];
        for (&spelling, &class) in labels.rows.iter().zip(&rows) {
            classes[spelling as usize] = class;
        }
        let data = Dataset::new(held.features, rows, names.len())?.with_label_names(names)?;
        Ok((named(data, held.names)?, classes))
    }

    fn into_data(self) -> Result<Dataset, DataError> {
        let classes = Schema::default();
        let quantity = self.labels.as_ref().is_some_and(|labels| {
            let spellings = labels.distinct.spellings();
            let name = Path::new(&labels.argument);
            let found = classes_of(&spellings, &labels.rows, &classes, name);
            matches!(found, Err(DataError::Quantity { .. }))
        });
        let schema = match quantity {
            true => Schema {
                targets: Some(TargetRange::new(-1.0, 1.0)?),
                ..Schema::default()
            },
            false => classes,
        };
        Ok(self.dataset(&schema)?.0)
    }

    /// Itself, if its columns are those of `schema`.
    fn fitting(self, schema: &Schema) -> Result<Self, DataError> {
        let place = Place::file(&self.argument);
        let found = self.features.columns();
        if let Some(expected) = schema.columns.filter(|&columns| columns != found) {
            return Err(DataError::Format {
                place,
                expected: format!("{expected} features"),
                found: found.to_string(),
            });
        }
        if let (Some(expected), Some(names)) = (&schema.feature_names, &self.names)
            && let Some(difference) = OtherName::first(expected, names)
        {
            return Err(DataError::Names { place, difference });
        }
        Ok(self)
    }
}

impl Labels {
    /// The numbers themselves, where they are what is predicted.
    fn targets(self, range: TargetRange) -> Result<Truth, DataError> {
        let wrong = |found: String| DataError::Format {
            place: Place::file(&self.argument),
            expected: "numbers up to 2^64 to predict".to_owned(),
            found,
        };
        let Distinct::Numbers(numbers) = &self.distinct else {
            return Err(wrong("text".to_owned()));
        };
        let most = f64::from(LARGEST_VALUE);
        if let Some(number) = numbers
            .iter()
            .find(|number| number.is_nan() || number.abs() > most)
        {
            return Err(wrong(number.to_string()));
        }
        // Minus zero is zero, as in files.
        let each = self.rows.iter().map(|&row| numbers[row as usize] + 0.0);
        let each: Vec<f64> = each.collect();
        Ok(Truth::Targets(Targets::new(&each, range)?))
    }
}

/// Records with the names of their columns, if they have some.
fn named(data: Dataset, names: Option<Vec<String>>) -> Result<Dataset, DataError> {
    Ok(match names {
        Some(names) => data.with_feature_names(names)?,
        None => data,
    })
}

/// All values in the order of rows, and how many a row has.
fn flat<T: Element + Copy>(
    values: &PyReadonlyArray2<'_, T>,
    single: impl Fn(T) -> f32,
) -> (usize, Vec<f32>) {
    let values = values.as_array();
    let mut flat = DenseRows::room(values.len());
    match values.as_slice() {
        Some(rows) => flat.extend(rows.iter().map(|&value| single(value))),
        None => flat.extend(values.iter().map(|&value| single(value))),
    }
    (values.ncols(), flat)
}

/// Compressed rows with the zeros left out, as readers of files leave them out.
fn compressed(
    columns: usize,
    starts: &[i64],
    indices: &[i32],
    values: &[f32],
) -> Result<SparseRows, DataError> {
    let broken = || DataError::Format {
        place: Place::file("csr"),
        expected: "ascending starts of rows within the values".to_owned(),
        found: "others".to_owned(),
    };
    let mut kept = (vec![0], Vec::new(), Vec::new());
    for bounds in starts.windows(2) {
        let (Ok(from), Ok(to)) = (usize::try_from(bounds[0]), usize::try_from(bounds[1])) else {
            return Err(broken());
        };
        let (Some(indices), Some(values)) = (indices.get(from..to), values.get(from..to)) else {
            return Err(broken());
        };
        for (&index, &value) in indices
            .iter()
            .zip(values)
            .filter(|(_, value)| **value != 0.0)
        {
            kept.1.push(u32::try_from(index).map_err(|_| broken())?);
            kept.2.push(value);
        }
        kept.0.push(kept.2.len());
    }
    let (starts, indices, values) = kept;
    Ok(SparseRows::new(columns, starts, indices, values)?)
}
