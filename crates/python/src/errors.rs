//! The library's errors as Python exceptions: its messages, the classes of `soteriafl.errors`.
//!
//! The classes are written in Python because each derives from two others (`ValueError`, too).

use pyo3::prelude::*;
use soteriafl::TrainingError;
use soteriafl::accountant::{AccountError, EventError};
use soteriafl::core::simulate::SimulationError;

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

/// Records or arrays that do not fit.
pub fn data(message: String) -> PyErr {
    python::DataError::new_err(message)
}

/// Settings that do not fit.
pub fn config(message: String) -> PyErr {
    python::ConfigError::new_err(message)
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
