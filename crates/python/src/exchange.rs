//! The two ends of a deployed run for transports that Python programs have: a [`Node`] answers
//! questions about its own records, a [`Server`] asks them and leaves the files of the run.
//!
//! Bytes in, bytes out; the interpreter's lock is released meanwhile. Both keep everything that
//! matters in a directory, so a process may end at any instant.

// Errors of the library, handed over once.
#![allow(clippy::result_large_err)]

use std::path::PathBuf;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use soteriafl::advice;
use soteriafl::data::{Adjustment, DataDirectories};
use soteriafl::persons::Bounded;
use soteriafl::words::readable;
use soteriafl_deploy::agreement::{AgreementError, Consent};
use soteriafl_deploy::budget::Cost;
use soteriafl_deploy::description::Description;
use soteriafl_deploy::exchange::{Answer, Heard};
use soteriafl_deploy::node::{self, NodeError};
use soteriafl_deploy::served::{Places, ServedRun};
use soteriafl_deploy::shortened;

use crate::errors;
use crate::holding::{GivenTerms, Holding};
use crate::results::{Tensor, tensors};
use crate::simulation::{Setting, document};

/// A client that is asked.
#[pyclass(frozen, module = "soteriafl._soteriafl")]
pub struct Node {
    node: Mutex<node::Node>,
}

#[pymethods]
impl Node {
    /// `keep`: the process lives through the run, and no other one uses the state meanwhile.
    #[new]
    fn new(state: PathBuf, holding: &Holding, terms: GivenTerms, keep: bool) -> PyResult<Self> {
        let node = node::Node::new(state, terms.with(holding)?);
        let node = match keep {
            true => node.kept_open(),
            false => node,
        };
        Ok(Self {
            node: Mutex::new(node),
        })
    }

    /// The answer to a question. `shown(lines, warnings)` is told what taking part costs.
    fn answer<'py>(
        &self,
        py: Python<'py>,
        question: &[u8],
        shown: Py<PyAny>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let mut told = Told::default();
        let answer = py.detach(|| {
            let mut node = self.node.lock().unwrap_or_else(|lost| lost.into_inner());
            node.answer(question, &mut told)
        });
        if !(told.lines.is_empty() && told.warnings.is_empty()) {
            shown.call1(py, (told.lines, told.warnings))?;
        }
        let error = match answer {
            Ok(answer) => return Ok(PyBytes::new(py, &answer.encode())),
            Err(error) => error,
        };
        let failed = matches!(error, NodeError::Failed { .. });
        let raised = errors::node(py, error);
        match errors::interruption(py, &raised).filter(|_| failed) {
            Some(interruption) => {
                // That is the owner's word, or the system's, and not about a record.
                let mut node = self.node.lock().unwrap_or_else(|lost| lost.into_inner());
                node.resume().map_err(|error| errors::state(&error))?;
                Err(interruption)
            }
            None => Err(raised),
        }
    }
}

/// Which client an answer says it is of; `None` where it says nothing.
#[pyfunction]
pub fn client_of_answer(answer: &[u8]) -> PyResult<Option<u32>> {
    match Answer::decode(answer.to_vec().into()) {
        Ok(Answer::TakesPart { client, .. }) => Ok(Some(client)),
        Ok(Answer::Refused) => Ok(None),
        Err(error) => Err(errors::served(error.into())),
    }
}

/// Collects what the owner of the records should hear. There is a limit, or nobody is asked: the
/// Python program refuses to start without one.
#[derive(Default)]
struct Told {
    lines: Vec<String>,
    warnings: Vec<String>,
}

impl Consent for Told {
    fn unnamed(&mut self, names: &[String]) {
        let first = names.first().map(|name| shortened(name));
        self.warnings.push(format!(
            "these records do not say what their columns are called, so their order is not \
             checked; the run's first of {} is {}",
            names.len(),
            first.unwrap_or_default()
        ));
    }

    /// What stands in records is not for logs, which may be sent elsewhere.
    fn adjusted(&mut self, _: &[Adjustment]) {}

    /// Nor is how many records persons have.
    fn bounded(&mut self, _: &Bounded, _: u32) {}

    fn shown(&mut self, cost: &Cost<'_>, description: &Description) {
        // Every process computes it anew, and says so once.
        if cost.run.messages > 0 {
            return;
        }
        self.lines.extend(cost.lines(description));
        let price = &cost.run.price;
        let presumed = advice::persons(price.records_per_person, &price.claim);
        let presumed = presumed.filter(|_| !description.bounds_persons());
        self.warnings.extend(presumed);
        let warnings = description.warnings.iter();
        self.warnings
            .extend(warnings.map(|warning| shortened(warning)));
    }

    fn without_limit(&mut self, cost: &Cost<'_>) -> Result<(), AgreementError> {
        self.warnings.extend(cost.publishes_records()?);
        Ok(())
    }
}

/// A run that is coordinated.
#[pyclass(frozen, module = "soteriafl._soteriafl")]
pub struct Server {
    run: Mutex<ServedRun>,
}

impl Server {
    fn run(&self) -> std::sync::MutexGuard<'_, ServedRun> {
        self.run.lock().unwrap_or_else(|lost| lost.into_inner())
    }
}

#[pymethods]
impl Server {
    #[new]
    #[pyo3(signature = (*, file, settings, state, out, overwrite, data_dir, test_seed))]
    fn new(
        py: Python<'_>,
        file: Option<PathBuf>,
        settings: Vec<Setting>,
        state: PathBuf,
        out: PathBuf,
        overwrite: bool,
        data_dir: Option<PathBuf>,
        test_seed: Option<u64>,
    ) -> PyResult<Self> {
        let document = document(file, &settings).map_err(|error| errors::config(&error))?;
        let places = Places {
            state,
            out,
            force: overwrite,
            data: DataDirectories::from_environment(data_dir.as_deref()),
        };
        let run = py.detach(|| ServedRun::open(document, test_seed, &places));
        let run = run.map_err(errors::served)?;
        Ok(Self {
            run: Mutex::new(run),
        })
    }

    /// The question to somebody of whom nothing is known.
    fn introduce<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.run().introduce())
    }

    /// The question to a client; `None` if it is to wait, or knows the end.
    fn ask<'py>(&self, py: Python<'py>, client: u32) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let question = py.detach(|| self.run().ask(client));
        let question = question.map_err(errors::served)?;
        Ok(question.map(|bytes| PyBytes::new(py, &bytes)))
    }

    /// Hears the answer of a peer `seconds` after the process began. Returns what it was and of
    /// which client.
    fn hear(
        &self,
        py: Python<'_>,
        peer: u64,
        answer: &[u8],
        seconds: f64,
    ) -> PyResult<(&'static str, Option<u32>)> {
        let answer = answer.to_vec().into();
        let heard = py.detach(|| self.run().hear(peer, answer, time(seconds)));
        Ok(match heard.map_err(errors::served)? {
            Heard::Refused => ("refused", None),
            Heard::Joined(client) => ("joined", Some(client)),
            Heard::Behind(client) => ("behind", Some(client)),
            Heard::Message(client, _) => ("message", Some(client)),
            Heard::Done(client) => ("done", Some(client)),
        })
    }

    /// Closes the open round if it is time; says whether it did.
    fn tick(&self, py: Python<'_>, seconds: f64) -> PyResult<bool> {
        let closed = py.detach(|| self.run().tick(time(seconds)));
        closed.map_err(errors::served)
    }

    /// A peer is gone: another one may answer as its client.
    fn forget(&self, peer: u64) {
        self.run().questions().forget(peer);
    }

    /// Which client answers from there, if any has.
    fn client_of(&self, peer: u64) -> Option<u32> {
        self.run().questions().client_of(peer)
    }

    /// The clients whose answer is waited for.
    fn missing(&self) -> Vec<u32> {
        self.run().questions().missing()
    }

    /// The open round; the number of rounds at the end.
    #[getter]
    fn round(&self) -> u32 {
        self.run().questions().round()
    }

    #[getter]
    fn rounds(&self) -> u32 {
        self.run().plan().resolved.rounds
    }

    #[getter]
    fn clients(&self) -> usize {
        self.run().plan().resolved.clients
    }

    /// Whether all clients have joined.
    #[getter]
    fn begun(&self) -> bool {
        self.run().questions().coordinator().begun()
    }

    /// Whether all rounds are done.
    #[getter]
    fn finished(&self) -> bool {
        self.run().questions().coordinator().finished()
    }

    /// Whether all clients know that.
    #[getter]
    fn acknowledged(&self) -> bool {
        self.run().questions().coordinator().acknowledged()
    }

    /// What is coordinated, in a line.
    #[getter]
    fn about(&self) -> String {
        let mut run = self.run();
        let coordinator = run.questions().coordinator();
        let description = coordinator.description();
        let resolved = &description.resolved;
        format!(
            "run {}: {}, {} parameters, {} clients, {} rounds; round {} is open",
            &soteriafl_deploy::hex(description.hash())[..16],
            resolved.algorithm_text(description.dimension()),
            readable(description.dimension() as f64),
            resolved.clients,
            resolved.rounds,
            coordinator.round(),
        )
    }

    /// What the owner of the configuration should be warned of.
    #[getter]
    fn warnings(&self) -> Vec<String> {
        self.run().warnings().to_vec()
    }

    /// The tensors of the open round's model by name, flat, with their shapes; none before the run
    /// has begun.
    fn tensors<'py>(&self, py: Python<'py>) -> PyResult<Vec<Tensor<'py>>> {
        let file = py.detach(|| self.run().model_file());
        match file.map_err(errors::served)? {
            Some(file) => tensors(py, &file),
            None => Ok(Vec::new()),
        }
    }

    /// What was measured on the server's own test set at last: round, loss, accuracy.
    #[getter]
    fn measured(&self) -> Option<(u32, Option<f64>, Option<f64>)> {
        let mut run = self.run();
        let last = run.questions().coordinator().evaluations().last();
        last.map(|last| (last.round, last.loss, last.accuracy))
    }

    /// Writes the files of a run whose rounds are over. Returns what the server's own test set says
    /// against the model.
    fn finish(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let found = py.detach(|| self.run().finish(threads));
        found.map_err(errors::served)
    }
}

fn time(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}
