//! `soteria join` for Python programs: the same way through the library, over records that Python
//! holds.
//!
//! The client's steps run on the thread that called, without the interpreter's lock except while
//! Python computes or is told something; the connection lives on another. A few times a second
//! Python may handle its signals. Whatever is raised, by a signal, a model, a loss or whoever
//! watches, ends the client before its next message exists, and comes out as it was raised; started
//! again with the same state it goes on.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use soteriafl::advice;
use soteriafl::persons::{self, Bounded};
use soteriafl_data::Adjustment;
use soteriafl_deploy::agreement::{AgreementError, Consent, Terms};
use soteriafl_deploy::budget::{Cost, epsilon_text};
use soteriafl_deploy::description::Description;
use soteriafl_deploy::net::client::{Audience, Wait};
use soteriafl_deploy::net::connect::{Security, Target};
use soteriafl_deploy::net::join::{Companion, JoinError, take_part};
use soteriafl_deploy::net::term::{Term, Validity};
use soteriafl_deploy::net::tls;
use soteriafl_deploy::participant::Participant;
use soteriafl_deploy::sqlite::ClientSqlite;
use soteriafl_deploy::stopped;
use soteriafl_deploy::store::LedgerRun;
use soteriafl_deploy::{hex, shortened};
use tokio::runtime::{Builder, Runtime};

use crate::errors;
use crate::holding::{GivenTerms, Holding};

/// How often Python may handle its signals, and is told how far the run has come.
const LOOK: Duration = Duration::from_millis(50);

/// How long a client waits before it says so.
const PATIENCE: Duration = Duration::from_secs(10);

/// Takes part in a run to its end. `companion` is told of everything, by name:
/// `agrees(cost, warnings)`, which returns whether to take part, and `says(event, text)`,
/// `reached(round, rounds)`. Returns what the ledger says of the run.
#[pyfunction]
#[pyo3(signature = (*, server, tls, state, holding, terms, companion))]
pub fn join<'py>(
    py: Python<'py>,
    server: &str,
    tls: Option<PathBuf>,
    state: PathBuf,
    holding: &Holding,
    terms: GivenTerms,
    companion: Py<PyAny>,
) -> PyResult<Option<Bound<'py, PyDict>>> {
    let target = target(server, tls.as_deref(), &terms)?;
    let mut watch = Watch::new(companion);
    if let Some(directory) = &tls {
        watch.certificate(directory, terms.client)?;
    }
    let terms = terms.with(holding)?;
    let over = py.detach(|| {
        let store = ClientSqlite::open(&state).map_err(|error| errors::state(&error))?;
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .map_err(|error| errors::state(&error))?;
        let over = follow(&runtime, &terms, store, &target, &mut watch);
        // A connection that is still open has nothing to say to anybody.
        runtime.shutdown_background();
        match (watch.raised.take(), over) {
            (Some(raised), _) => Err(raised),
            (None, over) => over,
        }
    })?;
    over.map(|run| ended(py, &run)).transpose()
}

/// The whole way, while Python may handle its signals.
fn follow(
    runtime: &Runtime,
    terms: &Terms,
    store: ClientSqlite,
    target: &Target,
    watch: &mut Watch,
) -> PyResult<Option<LedgerRun>> {
    let state = store.directory().to_owned();
    let signals = async {
        loop {
            tokio::time::sleep(LOOK).await;
            if let Err(raised) = Python::attach(|py| py.check_signals()) {
                return raised;
            }
        }
    };
    runtime.block_on(async {
        tokio::select! {
            over = take_part(terms, store, target, watch) => {
                over.map_err(|error| Python::attach(|py| exception(py, error, &state)))
            }
            raised = signals => Err(raised),
        }
    })
}

/// What comes of an error. What told the process to end is the owner's word, or the system's, and
/// not about a record, so it stops no state.
fn exception(py: Python<'_>, error: JoinError, state: &Path) -> PyErr {
    let failed = matches!(error, JoinError::Failed { .. });
    let raised = errors::join(py, error);
    if failed && !raised.is_instance_of::<PyException>(py) {
        return match stopped::resume(state) {
            Ok(()) => raised,
            Err(error) => errors::state(&error),
        };
    }
    raised
}

/// Where the server is, and how the connection to it is protected.
fn target(server: &str, tls: Option<&Path>, terms: &GivenTerms) -> PyResult<Target> {
    let wrong = |error: String| errors::setting(error);
    let security = match tls {
        Some(directory) => {
            let tls = tls::client(directory, terms.client);
            Security::Tls(tls.map_err(|error| wrong(error.to_string()))?)
        }
        None => Security::Plain,
    };
    let target = Target::new(server, &security).map_err(|error| wrong(error.to_string()))?;
    match terms.test_seed {
        Some(_) if !target.is_loopback() => Err(wrong(
            "`test_seed` is for a server on this machine".to_owned(),
        )),
        // Its name says so; its address will have to.
        Some(_) => Ok(target.only_loopback()),
        None => Ok(target),
    }
}

/// What the ledger says of a run.
fn ended<'py>(py: Python<'py>, run: &LedgerRun) -> PyResult<Bound<'py, PyDict>> {
    let price = &run.price;
    let answer = PyDict::new(py);
    let epsilon = price.cost(price.adjacency, price.delta);
    answer.set_item("run", hex(&run.hash))?;
    answer.set_item("client", run.client)?;
    answer.set_item("messages", run.messages)?;
    answer.set_item("records", price.records)?;
    answer.set_item(
        "epsilon",
        epsilon.map_err(|error| errors::refused(error.to_string()))?,
    )?;
    answer.set_item("delta", price.delta)?;
    answer.set_item("adjacency", price.adjacency.word())?;
    answer.set_item("records_per_person", price.records_per_person)?;
    answer.set_item("claim", price.claim.to_string())?;
    answer.set_item("finished", run.finished)?;
    Ok(answer)
}

/// What taking part costs, kept until Python is asked.
struct Seen {
    run: String,
    records: u64,
    messages: u64,
    made: u64,
    epsilon: Option<f64>,
    delta: f64,
    adjacency: &'static str,
    records_per_person: u32,
    claim: String,
    before: Option<f64>,
    total: Option<f64>,
    total_delta: f64,
    limit: Option<f64>,
}

/// Tells Python, and keeps what it raises.
struct Watch {
    companion: Py<PyAny>,
    raised: Option<PyErr>,
    cost: Option<Seen>,
    warnings: Vec<String>,
    rounds: u32,
    /// The round that was told last, and when.
    told: (u32, Instant),
    waiting: bool,
}

impl Watch {
    fn new(companion: Py<PyAny>) -> Self {
        Self {
            companion,
            raised: None,
            cost: None,
            warnings: Vec::new(),
            rounds: 0,
            told: (0, Instant::now()),
            waiting: false,
        }
    }

    /// Looks at the term of the client's own certificate.
    fn certificate(&mut self, directory: &Path, client: u32) -> PyResult<()> {
        let term = Term::of(directory, &format!("client-{client}"));
        match term
            .map_err(|error| errors::setting(error.to_string()))?
            .now()
        {
            Validity::Good => {}
            Validity::Warning(text) => self.warnings.push(text),
            Validity::Over(text) => return Err(errors::setting(text)),
        }
        Ok(())
    }

    fn says(&mut self, event: &str, text: &str) {
        let said = Python::attach(|py| {
            let arguments = (event, text);
            self.companion.call_method1(py, "says", arguments).map(drop)
        });
        self.keep(said);
    }

    /// The first exception is the one that is raised.
    fn keep(&mut self, told: PyResult<()>) {
        if let (Err(raised), None) = (told, &self.raised) {
            self.raised = Some(raised);
        }
    }

    fn ask(&self) -> PyResult<bool> {
        Python::attach(|py| {
            let cost = self.cost.as_ref().map(|cost| cost.described(py));
            let arguments = (cost.transpose()?, self.warnings.clone());
            let answer = self.companion.call_method1(py, "agrees", arguments)?;
            answer.is_truthy(py)
        })
    }
}

impl Seen {
    fn described<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let cost = PyDict::new(py);
        cost.set_item("run", &self.run)?;
        cost.set_item("records", self.records)?;
        cost.set_item("messages", self.messages)?;
        cost.set_item("messages_made", self.made)?;
        cost.set_item("epsilon", self.epsilon)?;
        cost.set_item("delta", self.delta)?;
        cost.set_item("adjacency", self.adjacency)?;
        cost.set_item("records_per_person", self.records_per_person)?;
        cost.set_item("claim", &self.claim)?;
        cost.set_item("spent_before", self.before)?;
        cost.set_item("total", self.total)?;
        cost.set_item("total_delta", self.total_delta)?;
        cost.set_item("max_epsilon", self.limit)?;
        Ok(cost)
    }
}

impl Consent for Watch {
    fn unnamed(&mut self, names: &[String]) {
        let shown: Vec<String> = names.iter().take(12).map(|name| shortened(name)).collect();
        self.warnings.push(format!(
            "these records do not say what their columns are called, so their order is not \
             checked; the run has {} of them: {}",
            names.len(),
            shown.join(", ")
        ));
    }

    fn adjusted(&mut self, adjustments: &[Adjustment]) {
        self.warnings
            .extend(adjustments.iter().map(Adjustment::to_string));
    }

    fn bounded(&mut self, bounded: &Bounded, most: u32) {
        let told = persons::told(bounded.left_out, bounded.null_records, most);
        self.warnings.push(told);
    }

    fn shown(&mut self, cost: &Cost<'_>, description: &Description) {
        let price = &cost.run.price;
        self.cost = Some(Seen {
            run: hex(&cost.run.hash),
            records: price.records,
            messages: price.messages(),
            made: cost.run.messages,
            epsilon: price.epsilon,
            delta: price.delta,
            adjacency: price.adjacency.word(),
            records_per_person: price.records_per_person,
            claim: price.claim.to_string(),
            before: cost.before.epsilon,
            total: cost.total.spent.epsilon,
            total_delta: cost.total.spent.delta,
            limit: cost.limits.epsilon,
        });
        let presumed = advice::persons(price.records_per_person, &price.claim);
        let presumed = presumed.filter(|_| !description.bounds_persons());
        self.warnings.extend(presumed);
        let others = description.warnings.iter().map(|text| shortened(text));
        self.warnings.extend(others);
    }

    fn without_limit(&mut self, cost: &Cost<'_>) -> Result<(), AgreementError> {
        self.warnings.extend(cost.publishes_records()?);
        self.warnings.push(format!(
            "no limit was given, so the run's own epsilon is the only one: these records will have \
             spent {} in all; `max_epsilon` sets a limit",
            epsilon_text(cost.total.spent.epsilon)
        ));
        Ok(())
    }
}

impl Audience<ClientSqlite> for Watch {
    fn advanced(&mut self, participant: &Participant<ClientSqlite>) -> ControlFlow<()> {
        self.waiting = false;
        let round = participant.replica().round();
        let (last, when) = self.told;
        let over = round == self.rounds;
        if self.raised.is_none() && round != last && (over || when.elapsed() >= LOOK) {
            self.told = (round, Instant::now());
            let told = Python::attach(|py| {
                py.check_signals()?;
                let arguments = (round, self.rounds);
                self.companion
                    .call_method1(py, "reached", arguments)
                    .map(drop)
            });
            self.keep(told);
        }
        match self.raised {
            Some(_) => ControlFlow::Break(()),
            None => ControlFlow::Continue(()),
        }
    }

    fn waits(&mut self, wait: &Wait) {
        if !self.waiting && wait.since.elapsed() >= PATIENCE {
            self.waiting = true;
            let text = match wait.others {
                Some((missing, _)) => format!("waiting for {missing} other clients"),
                None => "waiting for the other clients".to_owned(),
            };
            self.says("waits", &text);
        }
    }
}

impl Companion for Watch {
    fn no_answer(&mut self, reason: &str) {
        let text = format!("no answer yet ({reason}); trying until there is one");
        self.says("waits", &text);
    }

    fn nothing_to_do(&mut self, reason: &str) {
        let text = format!("no answer ({reason}), and the last run of this state is over");
        self.says("over", &text);
    }

    fn agrees(&mut self) -> Result<(), AgreementError> {
        match self.ask() {
            Ok(true) => Ok(()),
            Ok(false) => Err(AgreementError::Declined(
                "refused by you; nothing has been sent".to_owned(),
            )),
            Err(raised) => {
                self.keep(Err(raised));
                Err(AgreementError::Declined("nothing has been sent".to_owned()))
            }
        }
    }

    fn begins(&mut self, rounds: u32) {
        self.rounds = rounds;
    }

    fn connected(&mut self) {}

    fn cut_off(&mut self, reason: &str) {
        let text = format!("no connection to the server ({reason}); trying again");
        self.says("waits", &text);
    }
}
