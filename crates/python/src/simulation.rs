//! `soteria train` for Python programs: the same configuration, the same way through the library,
//! the same bytes. The model may be one that Python computes ([`PythonObjective`]): then one thread
//! drives all clients, because the framework has threads of its own and shares one module among all
//! calls.
//!
//! The interpreter's lock is held while arrays are read and while Python is asked something; the
//! rounds run without it. A few times a second, between two rounds, Python may handle its signals
//! (Ctrl-C) and is told how far the run has come; what it raises ends the run.

use std::num::NonZero;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use numpy::PyReadonlyArray1;
use pyo3::prelude::*;
use soteriafl::config::{Config, ConfigError, Document, NoiseTarget};
use soteriafl::core::data::RecordsError;
use soteriafl::data::{DataDirectories, Schema};
use soteriafl::output::{FinishedRun, RoundTable, columns};
use soteriafl::prepared::{Prepared, Reached, Stopped};
use soteriafl::problem::{Preparation, Problem, Records};

use crate::errors;
use crate::objective::{MOST_RECORDS, PythonObjective, stand_ins};
use crate::records::Rows;
use crate::results::Finished;

/// How often Python may handle its signals.
const LOOK: Duration = Duration::from_millis(20);

/// A key of the configuration, its value as TOML, and where it comes from.
pub type Setting = (String, String, String);

/// Runs a configuration, on records from memory if there are some, and returns what `soteria train`
/// would have written. `progress(round, rounds, loss, accuracy, epsilon, uplink_bytes)` is called
/// at evaluated rounds, `every` seconds apart; what is false stops the run. With a model that is
/// `computed` by Python it is called in every round, with a loss of none where nothing was
/// evaluated.
#[pyfunction]
#[pyo3(signature = (
    *, file, settings, train, test, clients, prepared_by_records, threads, progress, every,
    computed=None
))]
pub fn simulate(
    py: Python<'_>,
    file: Option<PathBuf>,
    settings: Vec<Setting>,
    train: Option<Py<Rows>>,
    test: Option<Py<Rows>>,
    clients: Option<PyReadonlyArray1<'_, u32>>,
    prepared_by_records: bool,
    threads: Option<usize>,
    progress: Option<Py<PyAny>>,
    every: f64,
    computed: Option<Computed<'_>>,
) -> PyResult<Finished> {
    let began = Instant::now();
    let config = configuration(file, &settings)?;
    let dealt = clients.map(|clients| dealt(&clients.as_array().to_vec()));
    let computed = computed.map(|computed| computed.read()).transpose()?;
    let every_round = computed.is_some();
    let (records, classes) = match (train, &computed) {
        (None, Some(computed)) => (computed.records(py, &config)?, Vec::new()),
        (None, None) => {
            let directories = DataDirectories::from_environment(None);
            let read = py.detach(|| Records::read(&config, &directories));
            (read.map_err(|error| errors::problem(&error))?, Vec::new())
        }
        (Some(train), _) => given(py, &config, &train, test, dealt)?,
    };
    let records = match prepared_by_records {
        true => records.prepared_by_records(),
        false => records,
    };
    let watch = Watch {
        progress,
        every: Duration::try_from_secs_f64(every).unwrap_or_default(),
        every_round,
        looked: began,
        shown: began,
        raised: None,
    };
    let threads =
        threads.unwrap_or_else(|| thread::available_parallelism().map_or(1, NonZero::get));
    let (run, warnings) = py.detach(|| run(&config, records, computed, threads, watch, began))?;
    Ok(Finished::new(run, warnings, classes))
}

/// A model that Python computes, the clients' numbers of records, whose numbers follow one another
/// from 0, and after them those of the test records; `settled(estimator, noisy)` is asked once it
/// is known which estimator the run has, and may refuse it.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Computed<'py> {
    objective: Bound<'py, PyAny>,
    records: Vec<usize>,
    test: usize,
    start: PyReadonlyArray1<'py, f32>,
    settled: Py<PyAny>,
}

/// The same, read.
struct Elsewhere {
    objective: PythonObjective,
    counts: Vec<usize>,
    test: usize,
    start: Vec<f32>,
    settled: Py<PyAny>,
}

impl Computed<'_> {
    fn read(self) -> PyResult<Elsewhere> {
        let all = self.records.iter().sum::<usize>().saturating_add(self.test);
        if all > MOST_RECORDS {
            return Err(errors::data(format!(
                "`clients` and `test` hold {all} records; at most {MOST_RECORDS} can be numbered"
            )));
        }
        Ok(Elsewhere {
            objective: PythonObjective::new(&self.objective)?,
            start: self.start.as_slice()?.to_vec(),
            counts: self.records,
            test: self.test,
            settled: self.settled,
        })
    }
}

impl Elsewhere {
    /// Stand-ins for all records, dealt as they were given.
    fn records(&self, py: Python<'_>, config: &Config) -> PyResult<Records> {
        let unfit = |error: RecordsError| errors::data(error.to_string());
        let all: usize = self.counts.iter().sum();
        let train = stand_ins(0, all).map_err(unfit)?;
        let test = (self.test > 0).then(|| stand_ins(all, self.test));
        let test = test.transpose().map_err(unfit)?;
        let mut first = 0;
        let dealt = self.counts.iter().map(|&count| {
            let rows = (first..first + count as u32).collect();
            first += count as u32;
            rows
        });
        let dealt = dealt.collect();
        let records = py.detach(|| Records::given(config, train, test, Some(dealt)));
        records.map_err(|error| errors::problem(&error))
    }
}

fn configuration(file: Option<PathBuf>, settings: &[Setting]) -> PyResult<Config> {
    document(file, settings)
        .and_then(|document| Config::read(&document))
        .map_err(|error| errors::config(&error))
}

/// What was typed: a file, and settings above it.
pub fn document(file: Option<PathBuf>, settings: &[Setting]) -> Result<Document, ConfigError> {
    let mut document = match file {
        Some(file) => Document::from_file(&file)?,
        None => Document::default(),
    };
    for (key, value, place) in settings {
        document.assign(key, value, place)?;
    }
    Ok(document)
}

/// Every client's rows, from every row's client.
fn dealt(client_of: &[u32]) -> Vec<Vec<u32>> {
    let clients = client_of.iter().max().map_or(0, |&most| most as usize + 1);
    let mut rows = vec![Vec::new(); clients];
    for (row, &client) in (0..).zip(client_of) {
        rows[client as usize].push(row);
    }
    rows
}

/// Records from memory, and the class of every label.
fn given(
    py: Python<'_>,
    config: &Config,
    train: &Py<Rows>,
    test: Option<Py<Rows>>,
    dealt: Option<Vec<Vec<u32>>>,
) -> PyResult<(Records, Vec<u32>)> {
    let targets = config.regression();
    let wanted = Schema {
        targets: targets.map_err(|error| errors::config(&error))?,
        ..Schema::default()
    };
    let (train, classes) = train.get().take(&wanted)?;
    let schema = Schema::of(&train);
    let test = test.map(|test| test.get().take(&schema)).transpose()?;
    let test = test.map(|(test, _)| test);
    let records = py.detach(|| Records::given(config, train, test, dealt));
    Ok((records.map_err(|error| errors::problem(&error))?, classes))
}

/// From records to what is written of a run, and everything that it warns of.
fn run(
    config: &Config,
    records: Records,
    computed: Option<Elsewhere>,
    threads: usize,
    mut watch: Watch,
    began: Instant,
) -> PyResult<(FinishedRun, Vec<String>)> {
    let preparation = Preparation::of(config, records.shape());
    let problem = preparation.and_then(|preparation| Problem::new(records, preparation));
    let mut problem = problem.map_err(|error| errors::problem(&error))?;
    let mut settled = None;
    if let Some(elsewhere) = computed {
        problem = problem.computed_by(Arc::new(elsewhere.objective), elsewhere.start);
        settled = Some(elsewhere.settled);
    }
    let resolved = problem.resolve(config);
    let (resolved, mut warnings) = resolved.map_err(|error| errors::problem(&error))?;
    if let Some(settled) = settled {
        let noisy = resolved.noise_target != NoiseTarget::None;
        let word = resolved.estimator.word();
        Python::attach(|py| settled.call1(py, (word, noisy)))?;
    }
    let prepared =
        Prepared::calibrate(resolved, problem).map_err(|error| errors::privacy(&error))?;
    let simulation = prepared.simulation();
    let mut simulation = simulation.map_err(|error| errors::problem(&error))?;
    let foreseen = prepared.foreseen();
    warnings.extend(foreseen.iter().cloned());
    let last = prepared.last_round();
    let mut table = RoundTable::new(Vec::new(), &columns(&prepared.resolved))?;
    let reached = prepared.simulate(
        &mut simulation,
        threads,
        None,
        |round, traffic, metrics, spent| table.row(round, traffic, metrics, spent),
        |reached| watch.round(reached, last),
    );
    if let Some(error) = watch.raised {
        return Err(error);
    }
    let reached = reached.map_err(|stopped| match stopped {
        Stopped::Row(error) => PyErr::from(error),
        Stopped::Simulation(error) => Python::attach(|py| errors::simulation(py, error)),
    })?;
    let mut result = prepared.result(&simulation, &reached, threads, began);
    result.warnings = foreseen;
    let end = prepared.conclude(&simulation, &mut result, table.start_loss());
    let end = end.map_err(errors::unreadable)?;
    warnings.extend(end.found.iter().cloned());
    let rounds = String::from_utf8_lossy(&table.into_inner()).into_owned();
    let config = prepared.resolved.to_toml();
    Ok((FinishedRun::new(config, rounds, end), warnings))
}

/// What Python sees of a run while it runs.
struct Watch {
    progress: Option<Py<PyAny>>,
    every: Duration,
    /// Whether it is told of rounds that are not evaluated, too.
    every_round: bool,
    looked: Instant,
    shown: Instant,
    raised: Option<PyErr>,
}

impl Watch {
    fn round(&mut self, reached: &Reached, last: u32) -> ControlFlow<()> {
        let now = Instant::now();
        let due = now.duration_since(self.shown) >= self.every || reached.round == last;
        let told = self.every_round || (reached.evaluated && due);
        let show = self.progress.is_some() && told;
        if !show && now.duration_since(self.looked) < LOOK {
            return ControlFlow::Continue(());
        }
        self.looked = now;
        let answer = Python::attach(|py| {
            py.check_signals()?;
            match &self.progress {
                Some(progress) if show => tell(py, progress, reached, last),
                _ => Ok(true),
            }
        });
        if show {
            self.shown = Instant::now();
        }
        match answer {
            Ok(true) => ControlFlow::Continue(()),
            Ok(false) => ControlFlow::Break(()),
            Err(error) => {
                self.raised = Some(error);
                ControlFlow::Break(())
            }
        }
    }
}

/// Whether the run goes on: `None` means that it does.
fn tell(py: Python<'_>, progress: &Py<PyAny>, reached: &Reached, last: u32) -> PyResult<bool> {
    let metrics = reached.metrics;
    let answer = progress.call1(
        py,
        (
            reached.round,
            last,
            reached.evaluated.then_some(metrics.loss),
            metrics.test_accuracy,
            reached.spent,
            reached.traffic.uplink_bytes,
        ),
    )?;
    if answer.is_none(py) {
        return Ok(true);
    }
    answer.is_truthy(py)
}
