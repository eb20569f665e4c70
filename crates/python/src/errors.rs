//! The library's errors as Python exceptions: its messages, the classes of `soteriafl.errors`.
//!
//! The classes are written in Python because each derives from two others (`ValueError`, too). Where
//! the library has advice, it follows on a line of its own.

use pyo3::exceptions::{PyFileExistsError, PyOSError, PyRuntimeError};
use pyo3::prelude::*;
use soteriafl::TrainingError;
use soteriafl::accountant::{AccountError, EventError};
use soteriafl::accounting::PrivacyError;
use soteriafl::config::ConfigError;
use soteriafl::core::simulate::SimulationError;
use soteriafl::data::DataError;
use soteriafl::output::OutputError;
use soteriafl::problem::ProblemError;

mod python {
    pyo3::import_exception!(soteriafl.errors, AccountError);
    pyo3::import_exception!(soteriafl.errors, ConfigError);
    pyo3::import_exception!(soteriafl.errors, DataError);
    pyo3::import_exception!(soteriafl.errors, SoteriaError);
}

/// A question that makes no sense or has no answer.
pub fn account(error: &AccountError) -> PyErr {
    python::AccountError::new_err(error.to_string())
}

/// A release that makes no sense or has no proof.
pub fn event(error: &EventError) -> PyErr {
    python::AccountError::new_err(error.to_string())
}

/// A sentence of our own about a release.
pub fn refused(message: String) -> PyErr {
    python::AccountError::new_err(message)
}

/// Settings that do not exist, do not fit or do not go together.
pub fn config(error: &ConfigError) -> PyErr {
    python::ConfigError::new_err(advised(error.to_string(), error.hint()))
}

/// A sentence of our own about settings.
pub fn setting(message: String) -> PyErr {
    python::ConfigError::new_err(message)
}

/// Noise that nobody vouches for.
pub fn privacy(error: &PrivacyError) -> PyErr {
    python::ConfigError::new_err(error.to_string())
}

/// A problem that cannot be set up.
pub fn problem(error: &ProblemError) -> PyErr {
    match error {
        ProblemError::Config(error) => config(error),
        ProblemError::Data(error) => data(said(error)),
        other => python::ConfigError::new_err(other.to_string()),
    }
}

/// Records that cannot be used.
pub fn data(message: String) -> PyErr {
    python::DataError::new_err(message)
}

/// The same of an argument, which is named unless the error names a place itself.
pub fn records(argument: &str, error: DataError) -> PyErr {
    match error {
        DataError::Records(error) => data(format!("`{argument}`: {error}")),
        other => data(said(&other)),
    }
}

/// Rows are given to one run only.
pub fn taken() -> PyErr {
    PyRuntimeError::new_err("these rows were given to another run")
}

/// Files that cannot be read or written.
pub fn output(error: &OutputError) -> PyErr {
    match error {
        OutputError::NotEmpty(path) => PyFileExistsError::new_err(format!(
            "{} exists and is not empty: give another path, or overwrite=True",
            path.display()
        )),
        other => PyOSError::new_err(other.to_string()),
    }
}

/// A run's files that do not read as those of a run.
pub fn unreadable(message: String) -> PyErr {
    python::DataError::new_err(message)
}

/// Why a run described by a program cannot be built or made. An exception of the objective comes
/// out as it was raised, with a note that says where.
pub fn training(py: Python<'_>, error: TrainingError) -> PyErr {
    let message = error.to_string();
    match error {
        TrainingError::Simulation(error) => simulation(py, error),
        TrainingError::Privacy(_) => python::AccountError::new_err(message),
        TrainingError::Diverged(_) => python::SoteriaError::new_err(message),
        _ => python::ConfigError::new_err(message),
    }
}

fn simulation(py: Python<'_>, error: SimulationError) -> PyErr {
    let (place, error) = match error {
        SimulationError::Client {
            client,
            round,
            error,
        } => (
            format!("client {client} in round {round}: nothing was sent"),
            error,
        ),
        SimulationError::Metrics(error) => ("metrics of the model".to_owned(), error),
        other => return python::SoteriaError::new_err(other.to_string()),
    };
    match error.into_inner().downcast::<PyErr>() {
        Ok(raised) => {
            // A note is a courtesy; without it the exception says enough.
            let _ = raised.value(py).call_method1("add_note", (place,));
            *raised
        }
        Err(other) => python::SoteriaError::new_err(format!("{place}: {other}")),
    }
}

fn said(error: &DataError) -> String {
    let lines = error.lines(true).join("\n");
    advised(lines, error.advice().as_deref())
}

fn advised(message: String, hint: Option<&str>) -> String {
    match hint {
        Some(hint) => format!("{message}\nhint: {hint}"),
        None => message,
    }
}
