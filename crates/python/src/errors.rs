//! The library's errors as Python exceptions: its messages, the classes of `soteriafl.errors`.
//!
//! The classes are written in Python because each derives from two others (`ValueError`, too).
//! Where the library has advice, it follows on a line of its own.

use pyo3::exceptions::{PyException, PyFileExistsError, PyOSError, PyRuntimeError};
use pyo3::prelude::*;
use soteriafl::accountant::{AccountError, EventError};
use soteriafl::accounting::PrivacyError;
use soteriafl::config::ConfigError;
use soteriafl::core::objective::ObjectiveError;
use soteriafl::core::simulate::SimulationError;
use soteriafl::data::DataError;
use soteriafl::output::OutputError;
use soteriafl::problem::ProblemError;
use soteriafl_deploy::agreement::AgreementError;
use soteriafl_deploy::budget::Refusal;
use soteriafl_deploy::exchange::ExchangeError;
use soteriafl_deploy::net::client::FollowError;
use soteriafl_deploy::net::join::JoinError;
use soteriafl_deploy::node::NodeError;
use soteriafl_deploy::participant::ParticipantError;
use soteriafl_deploy::served::ServedError;

mod python {
    pyo3::import_exception!(soteriafl.errors, AccountError);
    pyo3::import_exception!(soteriafl.errors, BudgetExceeded);
    pyo3::import_exception!(soteriafl.errors, ConfigError);
    pyo3::import_exception!(soteriafl.errors, DataError);
    pyo3::import_exception!(soteriafl.errors, MessageError);
    pyo3::import_exception!(soteriafl.errors, RunRefused);
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

/// Why a run ended before its end. An exception of the objective comes out as it was raised, with a
/// note that says where.
pub fn simulation(py: Python<'_>, error: SimulationError) -> PyErr {
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
    objective(py, error, place)
}

/// Why Python did not compute: as it was raised, with a note that says where.
fn objective(py: Python<'_>, error: ObjectiveError, place: String) -> PyErr {
    match error.into_inner().downcast::<PyErr>() {
        Ok(raised) => {
            // A note is a courtesy; without it the exception says enough.
            let _ = raised.value(py).call_method1("add_note", (place,));
            *raised
        }
        Err(other) => python::SoteriaError::new_err(format!("{place}: {other}")),
    }
}

/// A client's state that cannot be opened or kept.
pub fn state(error: &dyn std::error::Error) -> PyErr {
    PyOSError::new_err(error.to_string())
}

/// Why a client does not take part in a networked run, or no longer.
pub fn join(py: Python<'_>, error: JoinError) -> PyErr {
    match error {
        JoinError::Agreement(error) => agreement(py, error),
        JoinError::Follow(FollowError::Participant(error)) => participant(py, error),
        JoinError::Follow(error) => {
            let message = with_hints(&error.to_string(), error.hints());
            match error {
                FollowError::Twice(_) | FollowError::Refused(_) => {
                    python::RunRefused::new_err(message)
                }
                FollowError::Certificate(_) => python::ConfigError::new_err(message),
                FollowError::Protocol(_) => python::MessageError::new_err(message),
                _ => python::SoteriaError::new_err(message),
            }
        }
        JoinError::Data(error) => data(said(&error)),
        JoinError::Store(error) => state(&error),
        JoinError::Failed { round, note, error } => {
            let place = format!(
                "in round {round}: nothing was sent; that may be about a record, so this state goes \
                 on only once {} has been removed",
                note.display()
            );
            objective(py, error, place)
        }
        JoinError::Stopped(_) => python::RunRefused::new_err(error.to_string()),
        other => python::SoteriaError::new_err(other.to_string()),
    }
}

/// Why a client does not agree to a run; nothing has left.
pub fn agreement(py: Python<'_>, error: AgreementError) -> PyErr {
    let message = in_python(&error.to_string());
    match error {
        AgreementError::NoSuchClient { .. } => python::ConfigError::new_err(message),
        AgreementError::OtherClient { .. }
        | AgreementError::OtherPart { .. }
        | AgreementError::OtherRecords
        | AgreementError::Records(..)
        | AgreementError::Shape(_) => data(message),
        AgreementError::Refused(Refusal::Privacy(error)) => privacy(&error),
        AgreementError::Refused(Refusal::Ledger(_)) => python::AccountError::new_err(message),
        AgreementError::Refused(Refusal::Unproved { .. })
        | AgreementError::TestRun
        | AgreementError::NoTestRun
        | AgreementError::Person(_)
        | AgreementError::Declined(_) => python::RunRefused::new_err(message),
        AgreementError::Refused(_) => python::BudgetExceeded::new_err(message),
        AgreementError::Unusable(_) => python::MessageError::new_err(message),
        AgreementError::Objective(error) => objective(
            py,
            error,
            "before the run began: nothing was sent".to_owned(),
        ),
        AgreementError::Participant(error) => participant(py, error),
        AgreementError::Problem(error) => problem(&error),
        AgreementError::Store(error) => state(&error),
        _ => python::SoteriaError::new_err(message),
    }
}

/// Why a client cannot go on with a run.
pub fn participant(py: Python<'_>, error: ParticipantError) -> PyErr {
    let message = with_hints(&error.to_string(), error.hints());
    match error {
        ParticipantError::Objective { round, error } => {
            objective(py, error, format!("in round {round}: nothing was sent"))
        }
        ParticipantError::Store(error) => state(&error),
        _ => python::SoteriaError::new_err(message),
    }
}

/// Why a client that is asked does not answer. Only what says that it does not take part is a
/// refusal.
pub fn node(py: Python<'_>, error: NodeError) -> PyErr {
    let message = error.to_string();
    match error {
        NodeError::Agreement(error) => match *error {
            AgreementError::Objective(error) => {
                let what = "the model cannot be computed; nothing was sent".to_owned();
                refused_because(py, what, error)
            }
            error => agreement(py, error),
        },
        // Whoever is asked is a service, whose log is collected: no record is quoted.
        NodeError::Data(error) => data(error.lines(false).join("\n")),
        // A refusal, whatever was raised: its type may be about a record.
        NodeError::Failed { round, error, note } => {
            let what = format!(
                "the model could not be computed in round {round}, and nothing was sent; this \
                 state answers nothing more until its owner has removed {}",
                note.display()
            );
            refused_because(py, what, error)
        }
        NodeError::Stopped(_) => python::RunRefused::new_err(message),
        NodeError::Exchange(ExchangeError::Client(error)) => participant(py, error),
        NodeError::Exchange(_) => python::MessageError::new_err(message),
        NodeError::Store(error) => state(&error),
        _ => python::SoteriaError::new_err(message),
    }
}

/// A refusal that something raised has led to.
fn refused_because(py: Python<'_>, what: String, error: ObjectiveError) -> PyErr {
    let raised = objective(py, error, what.clone());
    let refused = python::RunRefused::new_err(format!("{what}: {raised}"));
    refused.set_cause(py, Some(raised));
    refused
}

/// What told the process to end, if that is why a model could not be computed.
pub fn interruption(py: Python<'_>, refused: &PyErr) -> Option<PyErr> {
    let raised = refused.cause(py);
    raised.filter(|raised| !raised.is_instance_of::<PyException>(py))
}

/// Why a run is not coordinated, or an answer is of no use.
pub fn served(error: ServedError) -> PyErr {
    let message = advised(error.to_string(), error.hint());
    if error.is_about_an_answer() {
        return python::MessageError::new_err(message);
    }
    match error {
        ServedError::Plan(_) => python::ConfigError::new_err(message),
        ServedError::Output(error) => output(&error),
        ServedError::Store(error) => state(&error),
        _ => python::SoteriaError::new_err(message),
    }
}

/// The program's options, as arguments are called here.
fn in_python(message: &str) -> String {
    let mut told = String::with_capacity(message.len());
    let mut rest = message;
    while let Some(at) = rest.find("--") {
        let option = &rest[at + 2..];
        let end = option.find(|c: char| !c.is_ascii_lowercase() && c != '-');
        let name = &option[..end.unwrap_or(option.len())];
        told += &rest[..at];
        match name.starts_with(|c: char| c.is_ascii_lowercase()) {
            true => told += &format!("`{}`", name.replace('-', "_")),
            false => told += &rest[at..at + 2 + name.len()],
        }
        rest = &option[name.len()..];
    }
    told + rest
}

fn with_hints(message: &str, hints: &[&str]) -> String {
    let lines = std::iter::once(message.to_owned());
    let hints = hints.iter().map(|hint| format!("hint: {hint}"));
    lines.chain(hints).collect::<Vec<_>>().join("\n")
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
