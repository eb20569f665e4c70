//! The parts of a server while it serves a run: the coordinator, which is a thread of its own, the
//! table of measured rounds, which is another, and the tasks that answer clients and remind of
//! those that are missing. Started together, waited for together, ended in order.

use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use super::super::Failure;
use super::finish::{SharedState, lock};
use super::missing;
use super::observer::RunObserver;
use super::plan::Plan;
use super::recorder::Recorder;
use super::{Options, stop_signal};
use soteriafl::output::RunDirectory;
use soteriafl::run as setup;
use soteriafl_deploy::coordinator::{Coordinator, CoordinatorError};
use soteriafl_deploy::dashboard::{Feed, Phase};
use soteriafl_deploy::net::actor::{self, Opened, Standing};
use soteriafl_deploy::net::grpc::Service;
use soteriafl_deploy::net::listen::Incoming;
use soteriafl_deploy::sqlite::ServerSqlite;

/// How long the server waits at most for clients to acknowledge the end.
const LINGER: Duration = Duration::from_secs(300);

/// The same where rounds do not wait for late clients either: ten deadlines, but at least this.
const SHORT_LINGER: Duration = Duration::from_secs(10);

/// How long open streams may take to end when the server stops.
const STREAMS_END: Duration = Duration::from_secs(2);

/// Measurements that may wait for the recorder before they hold the run up.
const QUEUE: usize = 4;

/// Why a server stops serving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stopped {
    /// All rounds are done.
    Finished,
    /// A service manager asked for it; the run goes on another time.
    Asked,
}

/// A server that serves.
pub(super) struct Running {
    coordinator: Opened,
    recorder: thread::JoinHandle<Result<RunDirectory, Failure>>,
    /// Ready when the recorder has failed; its error is in its result.
    recorder_failed: oneshot::Receiver<()>,
    reminders: JoinHandle<()>,
    serving: JoinHandle<()>,
    /// Dropping it ends `serving`.
    stop_serving: oneshot::Sender<()>,
    feed: Feed,
}

impl Running {
    pub(super) fn start(
        options: &Options,
        plan: &Plan,
        coordinator: Coordinator<ServerSqlite>,
        directory: RunDirectory,
        incoming: Incoming,
        (feed, state): (&Feed, &SharedState),
    ) -> Result<Self, Failure> {
        let description = coordinator.description().clone();
        let objective = description.model.objective();
        let compressor = setup::plan_for(&description.resolved, &objective)?.compressor;
        let known = coordinator.evaluations().to_vec();
        let test_seed = options.test_seed.is_some();
        let (news, to_measure) = sync_channel(QUEUE);
        // Noise and cost first: the recorder writes the rows of earlier rounds with them.
        lock(state).set_privacy(&coordinator);
        lock(state).whole = coordinator.round() == 0;
        let round = coordinator.round();
        let observer = RunObserver::new(feed.clone(), news, round, test_seed, Arc::clone(state));
        let coordinator = actor::open(coordinator, observer, Instant::now());
        let recorder = Recorder {
            directory,
            test: plan.test.clone(),
            objective: plan.model.objective(),
            measured: coordinator.measured.clone(),
            feed: feed.clone(),
            state: Arc::clone(state),
            test_seed,
        };
        let (fail, recorder_failed) = oneshot::channel();
        let recorder = thread::spawn(move || {
            let result = recorder.run(&known, &to_measure);
            if result.is_err() {
                // Nobody waits for it when the server stops for another reason.
                let _ = fail.send(());
            }
            result
        });
        let service = Service::new(coordinator.desk.clone(), &description, feed.clone());
        let reminders = tokio::spawn(missing::remind(feed.clone(), service.streams()));
        let (stop_serving, stopped) = oneshot::channel::<()>();
        let serving = tokio::spawn(async move {
            let stopped = async {
                let _ = stopped.await;
            };
            // A transport that fails ends the streams; clients connect again when there is another.
            let _ = service.run(incoming, &compressor, stopped).await;
        });
        Ok(Self {
            coordinator,
            recorder,
            recorder_failed,
            reminders,
            serving,
            stop_serving,
            feed: feed.clone(),
        })
    }

    /// Returns when the run is over and clients have been told, or why it ended before.
    pub(super) async fn wait(
        &mut self,
        options: &Options,
        deadline: Option<f64>,
    ) -> Result<Stopped, Failure> {
        let mut standing = self.coordinator.desk.standing();
        let outcome = self.wait_for_the_end(options, &mut standing).await;
        match &outcome {
            Ok(Stopped::Finished) => self.feed.phase(Phase::Finished),
            Ok(Stopped::Asked) => self.feed.phase(Phase::Stopping),
            Err(failure) => self.feed.trouble(Some(failure.message().to_string())),
        }
        if matches!(outcome, Ok(Stopped::Finished)) {
            tracing::info!("all rounds are done");
            tokio::select! {
                () = wait_for_acknowledgements(&mut standing, linger(deadline)) => {}
                _ = stop_signal() => {}
            }
        }
        outcome
    }

    async fn wait_for_the_end(
        &mut self,
        options: &Options,
        standing: &mut watch::Receiver<Standing>,
    ) -> Result<Stopped, Failure> {
        let ended = &mut self.coordinator.ended;
        tokio::select! {
            code = stop_signal() => match code {
                0 => Ok(Stopped::Asked),
                _ => Err(Failure::Failed(format!(
                    "interrupted; `soteria serve` with --state {} goes on",
                    options.state.display()
                ))),
            },
            result = &mut *ended => Err(cause(result.ok())),
            // Its own error is found where it is joined.
            Ok(()) = &mut self.recorder_failed => {
                Err(Failure::Failed("the table cannot be written".to_string()))
            }
            finished = standing.wait_for(|standing| standing.finished) => match finished {
                Ok(_) => Ok(Stopped::Finished),
                // The coordinator is gone, and says why a moment later.
                Err(_) => Err(cause(ended.await.ok())),
            },
        }
    }

    /// Ends everything and returns the directory, in which all measured rounds are written.
    pub(super) async fn shut_down(self) -> Result<RunDirectory, Failure> {
        self.reminders.abort();
        drop(self.stop_serving);
        // With it the coordinator ends, then its observer, then the recorder, which waits for news.
        drop(self.coordinator);
        // Open streams end with the coordinator; what is left after a moment is cut off.
        let _ = tokio::time::timeout(STREAMS_END, self.serving).await;
        tokio::task::block_in_place(|| self.recorder.join())
            .map_err(|_| Failure::Failed("the recorder failed".to_string()))?
    }
}

/// How long clients are waited for at the end, where rounds have this deadline in seconds.
fn linger(deadline: Option<f64>) -> Duration {
    deadline.map_or(LINGER, |deadline| {
        let seconds = (10.0 * deadline).min(LINGER.as_secs_f64());
        Duration::from_secs_f64(seconds).max(SHORT_LINGER)
    })
}

/// Why the coordinator ended before the run did.
fn cause(ended: Option<Result<(), CoordinatorError>>) -> Failure {
    match ended {
        Some(Err(error)) => error.into(),
        Some(Ok(())) => Failure::Failed("the coordinator ended before the run did".to_string()),
        None => Failure::Failed("the coordinator's thread failed".to_string()),
    }
}

/// Returns when all clients have acknowledged the end, or the time is over.
async fn wait_for_acknowledgements(standing: &mut watch::Receiver<Standing>, linger: Duration) {
    let all = standing.wait_for(|standing| standing.settled);
    if tokio::time::timeout(linger, all).await.is_err() {
        tracing::warn!("not all clients know the end");
    }
}
