//! The coordinator as an actor: one thread owns the [`Coordinator`] and its store, and answers one
//! call after the other. Other threads call it through a [`CoordinatorHandle`] and are notified of
//! closed rounds by a watch channel.
//!
//! Calls wait in a short queue, so a flood of them costs the senders time, not the server memory.
//! When the coordinator can no longer store its state, the actor stops, every waiting call fails
//! with [`Stopped`], and [`Actor::ended`] has the reason.
//!
//! Calibration can take seconds, so it runs on other threads while calls are answered: the noise
//! for one number of records while its client waits to join, one at a time, and noise and cost of
//! the whole run once all clients have joined.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use soteriafl_core::preliminary::Average;
use soteriafl_core::protocol::{ClientId, Round};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};

use crate::calibration_cache::CalibrationCache;
use crate::coordinator::{CatchUp, Coordinator, CoordinatorError, Receipt, Unmeasured};
use crate::participant::Position;
use crate::store::{ClosedRound, Evaluation, ServerStore};

/// Calls that may wait.
const QUEUE: usize = 256;

type Reply<T> = oneshot::Sender<Result<T, CoordinatorError>>;

enum Call {
    Join(ClientId, u64, Reply<()>),
    Release(ClientId, u32, Option<Bytes>, Reply<Option<Arc<Average>>>),
    Submit(ClientId, Bytes, Reply<Receipt>),
    MayFollow(ClientId, Position, Reply<()>),
    CatchUp(ClientId, Position, Reply<CatchUp>),
    Closed(Round, Reply<Arc<ClosedRound>>),
    Acknowledge(ClientId, Reply<()>),
}

/// How far the run is, as every follower sees it.
#[derive(Clone, Debug, Default)]
pub struct RunState {
    /// The release that is open, before the first round.
    pub release: Option<u32>,
    /// Whether the rounds have begun.
    pub begun: bool,
    /// The open round.
    pub open: Round,
    /// Whether all rounds are done.
    pub finished: bool,
    /// Whether all clients have acknowledged the end.
    pub acknowledged: bool,
    /// The last round that closed.
    pub latest: Option<Arc<ClosedRound>>,
}

/// Calls the coordinator's actor; clones call the same one.
#[derive(Clone)]
pub struct CoordinatorHandle {
    calls: mpsc::Sender<Call>,
    calibrations: Arc<CalibrationCache>,
    /// One permit: noise is computed for one client at a time.
    calibrating: Arc<Semaphore>,
    state: watch::Receiver<RunState>,
}

/// The actor has stopped: the server is shutting down.
#[derive(Debug, thiserror::Error)]
#[error("the server is going down")]
pub struct Stopped;

/// Is told of every change of the coordinator, on the actor's thread.
pub trait Observer<S>: Send {
    /// Something changed; `unmeasured` are rounds to be measured.
    fn changed(&mut self, coordinator: &Coordinator<S>, unmeasured: Vec<Unmeasured>);
}

/// A coordinator's actor that was started.
pub struct Actor {
    /// Calls it.
    pub coordinator: CoordinatorHandle,
    /// Where measurements go.
    pub measured: mpsc::UnboundedSender<Evaluation>,
    /// Why it stopped: `Ok` when all handles are dropped or it was told to stop.
    pub ended: oneshot::Receiver<Result<(), CoordinatorError>>,
    /// Dropping it stops the actor.
    pub stop: oneshot::Sender<()>,
}

/// Starts the actor of a coordinator on a thread of its own. Times are since `clock`.
pub fn start<S: ServerStore + 'static>(
    coordinator: Coordinator<S>,
    mut observer: impl Observer<S> + 'static,
    clock: Instant,
) -> Actor {
    let mut coordinator = coordinator.calibrated_by_caller();
    let calibrations = Arc::clone(coordinator.calibrations());
    let (calls, mut waiting) = mpsc::channel(QUEUE);
    let (calibrate, mut calibrated) = mpsc::unbounded_channel();
    let (measured, mut measurements) = mpsc::unbounded_channel();
    let (announce, state) = watch::channel(run_state(&mut coordinator));
    let (end, ended) = oneshot::channel();
    let (stop, mut stopped) = oneshot::channel::<()>();
    let runtime = tokio::runtime::Handle::current();
    std::thread::spawn(move || {
        let result = runtime.block_on(async move {
            let unmeasured = coordinator.take_unmeasured();
            observer.changed(&coordinator, unmeasured);
            // The round whose deadline passed with too few answers: its next message decides.
            let mut overdue = None;
            loop {
                let round = coordinator.round();
                let deadline = coordinator.deadline().filter(|_| overdue != Some(round));
                let wait = async {
                    match deadline {
                        Some(deadline) => tokio::time::sleep_until((clock + deadline).into()).await,
                        None => std::future::pending().await,
                    }
                };
                let progress = |coordinator: &Coordinator<S>| {
                    let release = coordinator.open_release();
                    (release, coordinator.begun(), coordinator.acknowledged())
                };
                let before = progress(&coordinator);
                tokio::select! {
                    biased;
                    _ = &mut stopped => return Ok(()),
                    Some(result) = calibrated.recv() => coordinator.begin(result, clock.elapsed())?,
                    Some(evaluation) = measurements.recv() => coordinator.evaluated(evaluation)?,
                    call = waiting.recv() => match call {
                        Some(call) => answer(&mut coordinator, call, clock)?,
                        None => return Ok(()),
                    },
                    () = wait => {
                        if !coordinator.tick(clock.elapsed())? {
                            overdue = Some(round);
                        }
                    }
                }
                if let Some(records) = coordinator.to_calibrate() {
                    let calibrate = calibrate.clone();
                    let calibrations = Arc::clone(coordinator.calibrations());
                    tracing::info!("everybody has joined: noise and cost are computed");
                    // The actor may have stopped before this is done.
                    std::thread::spawn(move || {
                        drop(calibrate.send(calibrations.calibrate(&records)))
                    });
                }
                let after = progress(&coordinator);
                if coordinator.round() != round || before != after {
                    announce.send_replace(run_state(&mut coordinator));
                }
                let unmeasured = coordinator.take_unmeasured();
                observer.changed(&coordinator, unmeasured);
            }
        });
        let _ = end.send(result);
    });
    Actor {
        coordinator: CoordinatorHandle {
            calls,
            calibrations,
            calibrating: Arc::new(Semaphore::new(1)),
            state,
        },
        measured,
        ended,
        stop,
    }
}

fn run_state<S: ServerStore>(coordinator: &mut Coordinator<S>) -> RunState {
    let open = coordinator.round();
    RunState {
        release: coordinator.open_release(),
        begun: coordinator.begun(),
        open,
        finished: coordinator.finished(),
        acknowledged: coordinator.acknowledged(),
        latest: open
            .checked_sub(1)
            .and_then(|last| coordinator.closed(last).ok()),
    }
}

/// Answers a call; an error here is one after which the process must end.
fn answer<S: ServerStore>(
    coordinator: &mut Coordinator<S>,
    call: Call,
    clock: Instant,
) -> Result<(), CoordinatorError> {
    let now = clock.elapsed();
    match call {
        Call::Join(client, records, reply) => send(reply, coordinator.join(client, records, now)),
        Call::Release(client, number, message, reply) => {
            send(reply, coordinator.release(client, number, message, now))
        }
        Call::Submit(client, message, reply) => {
            let result = coordinator.submit(client, message, now);
            send(reply, result.map(|(receipt, _)| receipt))
        }
        Call::MayFollow(client, position, reply) => {
            send(reply, coordinator.may_follow(client, position))
        }
        Call::CatchUp(client, position, reply) => {
            send(reply, coordinator.catch_up(client, position))
        }
        Call::Closed(round, reply) => send(reply, coordinator.closed(round)),
        Call::Acknowledge(client, reply) => send(reply, coordinator.acknowledge(client)),
    }
}

fn send<T>(reply: Reply<T>, result: Result<T, CoordinatorError>) -> Result<(), CoordinatorError> {
    match result {
        Err(
            fatal @ (CoordinatorError::Store(_)
            | CoordinatorError::Diverged(_)
            | CoordinatorError::Server(_)
            | CoordinatorError::Failed),
        ) => Err(fatal),
        result => {
            // The caller may have given up waiting.
            let _ = reply.send(result);
            Ok(())
        }
    }
}

impl CoordinatorHandle {
    /// How far the run is, now and later.
    pub fn state(&self) -> watch::Receiver<RunState> {
        self.state.clone()
    }

    /// As [`Coordinator::join`].
    ///
    /// # Errors
    /// [`Stopped`] if the actor has stopped.
    pub async fn join(
        &self,
        client: ClientId,
        records: u64,
    ) -> Result<Result<(), CoordinatorError>, Stopped> {
        let join = || self.ask(|reply| Call::Join(client, records, reply));
        let answer = join().await?;
        if !matches!(answer, Err(CoordinatorError::Uncalibrated(_))) {
            return Ok(answer);
        }
        let permit = Arc::clone(&self.calibrating).acquire_owned().await;
        let calibrations = Arc::clone(&self.calibrations);
        let computed = tokio::task::spawn_blocking(move || {
            // Runs to its end even if the client hangs up; the next client waits for the permit.
            let _permit = permit;
            calibrations.compute(records)
        });
        computed.await.map_err(|_| Stopped)?;
        join().await
    }

    /// As [`Coordinator::release`].
    ///
    /// # Errors
    /// [`Stopped`] if the actor has stopped.
    pub async fn release(
        &self,
        client: ClientId,
        number: u32,
        message: Option<Bytes>,
    ) -> Result<Result<Option<Arc<Average>>, CoordinatorError>, Stopped> {
        self.ask(|reply| Call::Release(client, number, message, reply))
            .await
    }

    /// As [`Coordinator::submit`].
    ///
    /// # Errors
    /// [`Stopped`] if the actor has stopped.
    pub async fn submit(
        &self,
        client: ClientId,
        message: Bytes,
    ) -> Result<Result<Receipt, CoordinatorError>, Stopped> {
        self.ask(|reply| Call::Submit(client, message, reply)).await
    }

    /// As [`Coordinator::may_follow`].
    ///
    /// # Errors
    /// [`Stopped`] if the actor has stopped.
    pub async fn may_follow(
        &self,
        client: ClientId,
        position: Position,
    ) -> Result<Result<(), CoordinatorError>, Stopped> {
        self.ask(|reply| Call::MayFollow(client, position, reply))
            .await
    }

    /// As [`Coordinator::catch_up`].
    ///
    /// # Errors
    /// [`Stopped`] if the actor has stopped.
    pub async fn catch_up(
        &self,
        client: ClientId,
        position: Position,
    ) -> Result<Result<CatchUp, CoordinatorError>, Stopped> {
        self.ask(|reply| Call::CatchUp(client, position, reply))
            .await
    }

    /// As [`Coordinator::closed`].
    ///
    /// # Errors
    /// [`Stopped`] if the actor has stopped.
    pub async fn closed(
        &self,
        round: Round,
    ) -> Result<Result<Arc<ClosedRound>, CoordinatorError>, Stopped> {
        self.ask(|reply| Call::Closed(round, reply)).await
    }

    /// As [`Coordinator::acknowledge`].
    ///
    /// # Errors
    /// [`Stopped`] if the actor has stopped.
    pub async fn acknowledge(
        &self,
        client: ClientId,
    ) -> Result<Result<(), CoordinatorError>, Stopped> {
        self.ask(|reply| Call::Acknowledge(client, reply)).await
    }

    async fn ask<T>(
        &self,
        call: impl FnOnce(Reply<T>) -> Call,
    ) -> Result<Result<T, CoordinatorError>, Stopped> {
        let (reply, answer) = oneshot::channel();
        self.calls.send(call(reply)).await.map_err(|_| Stopped)?;
        answer.await.map_err(|_| Stopped)
    }
}
