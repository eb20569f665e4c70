//! The library's errors as Python exceptions: its messages, the classes of `soteriafl.errors`.
//!
//! The classes are written in Python because each derives from two others (`ValueError`, too).

use pyo3::PyErr;
use soteriafl::accountant::{AccountError, EventError};

mod python {
    pyo3::import_exception!(soteriafl.errors, AccountError);
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
