//! What a client of a networked run brings, as Python programs have it: the name of a source,
//! arrays in memory, or records behind a model that Python computes; and on which terms it takes
//! part.

use std::path::PathBuf;
use std::sync::Arc;

use numpy::{PyReadonlyArray2, PyUntypedArrayMethods};
use pyo3::prelude::*;
use soteriafl::accountant::EstimatorKind;
use soteriafl::core::objective::{Objective, ObjectiveError};
use soteriafl::data::DataDirectories;
use soteriafl::problem::{ElsewhereModel, ParameterShape};
use soteriafl_deploy::agreement::Terms;
use soteriafl_deploy::budget::Limits;
use soteriafl_deploy::hex;
use soteriafl_deploy::holding::{self, ElsewhereRecords};

use crate::errors;
use crate::objective::{MOST_RECORDS, PythonObjective, stand_ins};
use crate::records::Rows;

/// A client's own records.
#[pyclass(frozen, module = "soteriafl._soteriafl")]
pub struct Holding {
    held: holding::Holding,
}

impl Holding {
    /// The records as networked runs take them.
    pub fn held(&self) -> holding::Holding {
        self.held.clone()
    }
}

#[pymethods]
impl Holding {
    /// Records that a source names, as in `soteria join --data`.
    #[staticmethod]
    fn source(spec: &str, data_dir: Option<PathBuf>) -> PyResult<Self> {
        let share = spec
            .parse()
            .map_err(|error| errors::records("data", error))?;
        let directories = DataDirectories::from_environment(data_dir.as_deref());
        Ok(Self {
            held: holding::Holding::Source { share, directories },
        })
    }

    /// Rows in memory.
    #[staticmethod]
    fn memory(rows: &Rows) -> PyResult<Self> {
        Ok(Self {
            held: holding::Holding::Memory(Arc::new(rows.taken()?)),
        })
    }

    /// Records of a model that Python computes. `maker(estimator, secure)` gives, for a run, the
    /// object that does ([`PythonObjective`]); `parts` are the bytes of every record, and `kind`
    /// says what they mean.
    #[staticmethod]
    fn elsewhere(
        py: Python<'_>,
        maker: Py<PyAny>,
        parameters: Vec<String>,
        architecture: String,
        kind: &str,
        parts: Vec<PyReadonlyArray2<'_, u8>>,
    ) -> PyResult<Self> {
        let records = parts.first().map_or(0, |part| part.shape()[0]);
        let same = parts.iter().all(|part| part.shape()[0] == records);
        if records == 0 || records > MOST_RECORDS || !same {
            return Err(errors::data(format!(
                "a client has from 1 to {MOST_RECORDS} records, all of their parts as many; found \
                 {records}"
            )));
        }
        let bytes = parts
            .iter()
            .map(|part| Ok((part.as_slice()?, part.shape()[1])))
            .collect::<PyResult<Vec<_>>>()?;
        let (digest, in_order) = py.detach(|| holding::digests(kind, records, &bytes));
        let shapes = parameters.iter().map(|text| ParameterShape::parse(text));
        let shapes = shapes.collect::<Option<Vec<_>>>();
        let model = shapes.and_then(|shapes| ElsewhereModel::new(shapes, architecture));
        let model = model.ok_or_else(|| {
            errors::setting(
                "the module's parameters cannot be named: their names must differ, and none may \
                 hold control characters"
                    .to_owned(),
            )
        })?;
        let stand_ins = stand_ins(0, records).map_err(|error| errors::data(error.to_string()))?;
        let held = ElsewhereRecords {
            model,
            stand_ins: Arc::new(stand_ins),
            digest,
            in_order,
            objective: Box::new(move |run| {
                Python::attach(|py| {
                    let secure =
                        run.specification().noise_kind() == soteriafl::core::privacy::Noise::Secure;
                    let word = EstimatorKind::word(run.estimator);
                    let problem = maker.call1(py, (word, secure))?;
                    let objective = PythonObjective::new(problem.bind(py))?;
                    Ok(Arc::new(objective) as Arc<dyn Objective>)
                })
                .map_err(|error: PyErr| ObjectiveError::new(error))
            }),
        };
        Ok(Self {
            held: holding::Holding::Elsewhere(Arc::new(held)),
        })
    }

    /// By what the ledger knows these records.
    fn digest(&self, py: Python<'_>) -> PyResult<String> {
        let digest = py.detach(|| self.held.digest());
        let digest = digest.map_err(|error| errors::records("data", error))?;
        Ok(hex(&digest))
    }
}

/// On which terms a client takes part, as `soteriafl.deployment` checked them.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct GivenTerms {
    pub client: u32,
    pub test_seed: Option<u64>,
    max_epsilon: Option<f64>,
    max_delta: Option<f64>,
    max_read: Option<f64>,
    replace_one: bool,
    records_per_person: u32,
    person: Option<String>,
    disjoint_data_sets: bool,
    accept_unknown_cost: bool,
    shape: Option<String>,
}

impl GivenTerms {
    /// The same for the library.
    ///
    /// Records behind a module are known by the bytes of their tensors: the same ones in another
    /// type or shape would be another data set.
    pub fn with(&self, holding: &Holding) -> PyResult<Terms> {
        if self.disjoint_data_sets && matches!(holding.held, holding::Holding::Elsewhere(_)) {
            return Err(errors::setting(
                "`disjoint_data_sets` cannot go with a module: its records have another name for \
                 each type and shape of their tensors, so all runs of a state count together; give \
                 data sets that share no record a state each"
                    .to_owned(),
            ));
        }
        Ok(Terms {
            client: self.client,
            holding: holding.held(),
            limits: Limits {
                epsilon: self.max_epsilon,
                delta: self.max_delta,
                read: self.max_read,
                replace_one: self.replace_one,
                accept_unknown: self.accept_unknown_cost,
            },
            records_per_person: self.records_per_person,
            person: self.person.clone(),
            disjoint: self.disjoint_data_sets,
            shape: self.shape.clone(),
            test_seed: self.test_seed,
        })
    }
}
