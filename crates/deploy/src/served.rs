//! A run that is coordinated over a transport of questions and answers, from its configuration to
//! its files: what `soteria serve` does without the network. The transport asks
//! [`ServedRun::ask`], carries bytes, and gives what comes back to [`ServedRun::hear`].
//!
//! **Guarantee.** A round is durable in the state directory before any client can hear of it, so a
//! process may be killed at any instant and another one opened with the same configuration and
//! state: it goes on, and ends with the same bytes. **Cost.** The [`Coordinator`]'s, and a pass
//! over the server's own test set for every measured round, in the call that closed it.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bytes::Bytes;
use soteriafl::config::Document;
use soteriafl::output::{self, OutputError, RunDirectory};
use soteriafl_core::objective::ObjectiveError;
use soteriafl_core::protocol::ClientId;
use soteriafl_data::DataDirectories;

use super::coordinator::{Coordinator, CoordinatorError, SNAPSHOT_EVERY, Unmeasured};
use super::ending::{self, Ending, EndingError};
use super::exchange::{ExchangeError, Heard, Questions};
use super::run_plan::{RunPlan, RunPlanError};
use super::sqlite::ServerSqlite;
use super::store::{ServerStore, StoreError};

/// Why a run is not coordinated, or not any longer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServedError {
    /// There is nothing to coordinate.
    #[error(transparent)]
    Plan(Box<RunPlanError>),
    /// The state cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The coordinator stops.
    #[error(transparent)]
    Coordinator(#[from] CoordinatorError),
    /// An answer is of no use; the run goes on.
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
    /// The test set cannot be measured.
    #[error("the test set cannot be measured: {0}")]
    Test(#[from] ObjectiveError),
    /// The run's files cannot be made.
    #[error(transparent)]
    Ending(#[from] EndingError),
    /// The results cannot be written.
    #[error(transparent)]
    Output(#[from] OutputError),
}

impl From<RunPlanError> for ServedError {
    fn from(error: RunPlanError) -> Self {
        Self::Plan(Box::new(error))
    }
}

impl ServedError {
    /// Whether an answer is at fault, and the run goes on without it.
    pub fn is_about_an_answer(&self) -> bool {
        match self {
            Self::Exchange(ExchangeError::Server(error)) => !error.ends_the_server(),
            Self::Exchange(_) => true,
            _ => false,
        }
    }

    /// What a person can do about it.
    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::Plan(error) => error.hint(),
            _ => None,
        }
    }
}

/// Where a run is kept, and where its results go.
pub struct Places {
    /// What the server needs to go on.
    pub state: PathBuf,
    /// The run's directory.
    pub out: PathBuf,
    /// Whether files of something else may be overwritten there.
    pub force: bool,
    /// Where data sets are looked for.
    pub data: DataDirectories,
}

/// A run with its server, its table and its end.
pub struct ServedRun {
    plan: RunPlan,
    questions: Questions<ServerSqlite>,
    /// `None` once the files are written.
    directory: Option<RunDirectory>,
    out: PathBuf,
    ending: Ending,
    began: Instant,
    warnings: Vec<String>,
}

impl ServedRun {
    /// Begins a run, or goes on with the one in the state, which must be this configuration's.
    ///
    /// # Errors
    /// When the configuration, the state or the results' directory do not allow it.
    pub fn open(
        document: Document,
        test_seed: Option<u64>,
        places: &Places,
    ) -> Result<Self, ServedError> {
        let began = Instant::now();
        let (plan, warnings) = RunPlan::make(document, &places.data, test_seed)?;
        let mut store = ServerSqlite::open(&places.state)?;
        let stored = store.load()?.description;
        let config = plan.config_toml(test_seed);
        // A run that goes on writes its files anew, but never over those of another.
        if stored.is_none() || !output::belongs(&places.out, &config) {
            output::check_empty(&places.out, places.force)?;
        }
        let place = places.state.display().to_string();
        let description = plan.describe(test_seed, stored.as_deref(), &place)?;
        let start = plan.model.start(&plan.resolved);
        let start = start.map_err(RunPlanError::from)?;
        let coordinator =
            Coordinator::new(store, description, start, SNAPSHOT_EVERY, Duration::ZERO)?;
        let over = coordinator.finished() && output::is_complete(&places.out);
        let mut run = Self {
            ending: Ending::of(&coordinator, test_seed),
            questions: Questions::new(coordinator),
            directory: None,
            out: places.out.clone(),
            began,
            plan,
            warnings,
        };
        if !over {
            run.directory = Some(RunDirectory::create_deployed(&places.out, &config)?);
            for known in run.questions.coordinator().evaluations().to_vec() {
                run.row(&known)?;
            }
            run.measure()?;
        }
        Ok(run)
    }

    /// What the owner of the configuration should be warned of.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// What is coordinated.
    pub fn plan(&self) -> &RunPlan {
        &self.plan
    }

    /// Where the results are.
    pub fn out(&self) -> &Path {
        &self.out
    }

    /// Who has been asked and has answered, and the coordinator.
    pub fn questions(&mut self) -> &mut Questions<ServerSqlite> {
        &mut self.questions
    }

    /// The question to somebody of whom nothing is known.
    pub fn introduce(&self) -> Vec<u8> {
        self.questions.introduce()
    }

    /// The question to a client, if there is one.
    ///
    /// # Errors
    /// As [`Questions::ask`].
    pub fn ask(&mut self, client: ClientId) -> Result<Option<Vec<u8>>, ServedError> {
        Ok(self.questions.ask(client)?)
    }

    /// Hears an answer: see [`Questions::hear`]. Rounds that it closes are measured.
    ///
    /// # Errors
    /// When the answer is of no use ([`ServedError::is_about_an_answer`]), or the process cannot go
    /// on; another one can.
    pub fn hear(&mut self, peer: u64, answer: Bytes, now: Duration) -> Result<Heard, ServedError> {
        let before = self.questions.round();
        let heard = self.questions.hear(peer, answer, now)?;
        self.changed(before)?;
        Ok(heard)
    }

    /// Closes the open round if it is time; says whether it did.
    ///
    /// # Errors
    /// When the round cannot be stored: then it is not closed.
    pub fn tick(&mut self, now: Duration) -> Result<bool, ServedError> {
        let before = self.questions.round();
        let closed = self.questions.coordinator().tick(now)?;
        self.changed(before)?;
        Ok(closed)
    }

    fn changed(&mut self, before: u32) -> Result<(), ServedError> {
        let coordinator = self.questions.coordinator();
        let closed = coordinator.round() > before;
        self.ending.follow(coordinator, closed);
        self.measure()
    }

    /// Measures what is due, and writes it down.
    fn measure(&mut self) -> Result<(), ServedError> {
        for due in self.questions.coordinator().take_unmeasured() {
            let Unmeasured {
                mut evaluation,
                model,
            } = due;
            if let Some(test) = self.ending.test(self.plan.test.as_ref())? {
                let start = Instant::now();
                let objective = self.plan.model.objective();
                let (loss, accuracy) = ending::measure(objective.as_ref(), &model, &test)?;
                self.ending.measured_for(start.elapsed());
                (evaluation.loss, evaluation.accuracy) = (Some(loss), accuracy);
            }
            self.row(&evaluation)?;
            self.questions.coordinator().evaluated(evaluation)?;
        }
        Ok(())
    }

    fn row(&mut self, evaluation: &super::store::Evaluation) -> Result<(), ServedError> {
        match &mut self.directory {
            Some(directory) => Ok(self.ending.row(directory, evaluation)?),
            None => Ok(()),
        }
    }

    /// `model.safetensors` of the open round; `None` before the run has begun.
    ///
    /// # Errors
    /// When the model cannot be written down.
    pub fn model_file(&mut self) -> Result<Option<Vec<u8>>, ServedError> {
        let model = self.questions.coordinator().model().cloned();
        let file = model.map(|model| self.ending.model_file(&self.plan, &model));
        Ok(file.transpose()?)
    }

    /// Writes the files of a run whose rounds are over, the summary last; does nothing where they
    /// are written. Returns what the server's own test set says against the model.
    ///
    /// # Errors
    /// When rounds are missing, or the file system refuses.
    pub fn finish(&mut self, threads: usize) -> Result<Vec<String>, ServedError> {
        let coordinator = self.questions.coordinator();
        if !coordinator.finished() {
            let (found, open) = (
                coordinator.description().resolved.rounds,
                coordinator.round(),
            );
            return Err(CoordinatorError::Early { found, open }.into());
        }
        let Some(directory) = self.directory.take() else {
            return Ok(Vec::new());
        };
        let seconds = self.began.elapsed().as_secs_f64();
        let end = self.ending.conclude(&self.plan, threads, seconds)?;
        directory.finish(&end.summary, &end.model)?;
        Ok(end.found)
    }
}
