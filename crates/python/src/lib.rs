//! The native module of the Python package `soteriafl`.
//!
//! Everything that Python programs see is written in Python (`python/soteriafl/`): classes with
//! names, defaults and documentation. Here is what those call: numbers and arrays in, numbers and
//! arrays out, with the interpreter's lock released while the library computes.
//!
//! | module | contents |
//! | --- | --- |
//! | `accounting` | releases and questions about them |
//! | `records` | rows and labels from arrays |
//! | `simulation` | a whole run, on the way of `soteria train` |
//! | `results` | what a run leaves |
//! | `objective` | models and losses that Python computes |
//! | `clipping` | lengths and weights of gradients that a framework has computed |
//! | `holding`, `deployment` | networked clients |
//! | `exchange` | clients and servers behind any transport |
//! | `errors` | the library's errors as Python exceptions |

// `#[pyfunction]` and `#[pymethods]` are called by Python, with one argument per keyword.
#![allow(clippy::too_many_arguments)]

mod accounting;
mod clipping;
mod deployment;
mod errors;
mod exchange;
mod holding;
mod objective;
mod records;
mod results;
mod simulation;

use pyo3::prelude::*;

#[pymodule]
mod _soteriafl {
    #[pymodule_export]
    use super::accounting::{Release, filter_epsilon};
    #[pymodule_export]
    use super::clipping::{clip_weights, squared_lengths};
    #[pymodule_export]
    use super::deployment::join;
    #[pymodule_export]
    use super::exchange::{Node, Server, client_of_answer};
    #[pymodule_export]
    use super::holding::Holding;
    #[pymodule_export]
    use super::records::Rows;
    #[pymodule_export]
    use super::results::Finished;
    #[pymodule_export]
    use super::simulation::simulate;

    /// The version of the library.
    #[pymodule_export]
    #[allow(non_upper_case_globals)]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
