//! The coordinator's desk: one thread that owns the [`Coordinator`] and its disk, and answers one call
//! after the other. Everybody else talks to it by messages and hears of closed rounds by a watch.
//!
//! Calls wait in a short queue, so a flood of them costs senders time, not the server memory. When the
//! coordinator can no longer keep its state, the desk closes, every waiting call fails, and
//! [`Opened::ended`] says why.
//!
//! What takes the accountant's time is done on other threads: noise for a number of records while its client
//! waits to join, one at a time; noise and cost of the whole run when everybody has joined. Everybody else is
//! answered meanwhile.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use soteriafl_core::protocol::{ClientId, Round};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};

use crate::calibration_cache::Sizes;
use crate::coordinator::{CatchUp, Coordinator, CoordinatorError, News, Receipt};
use crate::participant::Position;
use crate::store::{ClosedRound, Evaluation, ServerStore};

/// Calls that may wait.
const QUEUE: usize = 256;

type Reply<T> = oneshot::Sender<Result<T, CoordinatorError>>;

enum Call {
    Join(ClientId, u64, Reply<()>),
    Submit(ClientId, Bytes, Reply<Receipt>),
    MayFollow(ClientId, Position, Reply<()>),
    CatchUp(ClientId, Position, Reply<CatchUp>),
    Closed(Round, Reply<Arc<ClosedRound>>),
    Acknowledge(ClientId, Reply<()>),
}

/// Where the run stands, for those who follow it.
#[derive(Clone, Debug, Default)]
pub struct Standing {
    /// Whether everybody has joined.
    pub begun: bool,
    /// The open round.
    pub open: Round,
    /// Whether all rounds are done.
    pub finished: bool,
    /// Whether everybody knows.
    pub settled: bool,
    /// The last round that closed.
    pub latest: Option<Arc<ClosedRound>>,
}

/// A way to the desk.
#[derive(Clone)]
pub struct Desk {
    calls: mpsc::Sender<Call>,
    sizes: Arc<Sizes>,
    /// Who may have noise computed.
    calibrating: Arc<Semaphore>,
    standing: watch::Receiver<Standing>,
}

/// The desk is closed: the server is going down.
#[derive(Debug, thiserror::Error)]
#[error("the server is going down")]
pub struct Closed;

/// What the owner of a coordinator wants to hear, on the desk's thread.
pub trait Observer<S>: Send {
    /// Something changed; `news` are rounds to be measured.
    fn changed(&mut self, coordinator: &Coordinator<S>, news: Vec<News>);
}

/// A desk that was opened.
pub struct Opened {
    /// The way to it.
    pub desk: Desk,
    /// Where measurements go.
    pub measured: mpsc::UnboundedSender<Evaluation>,
    /// Why it closed: `Ok` when nobody needs it any more.
    pub ended: oneshot::Receiver<Result<(), CoordinatorError>>,
    /// Dropping it closes the desk.
    pub stop: oneshot::Sender<()>,
}

/// Opens a desk for a coordinator, on a thread of its own. Times are since `clock`.
pub fn open<S: ServerStore + 'static>(
    coordinator: Coordinator<S>,
    mut observer: impl Observer<S> + 'static,
    clock: Instant,
) -> Opened {
    let mut coordinator = coordinator.settled_elsewhere();
    let sizes = Arc::clone(coordinator.sizes());
    let (calls, mut waiting) = mpsc::channel(QUEUE);
    let (settle, mut settled) = mpsc::unbounded_channel();
    let (measured, mut measurements) = mpsc::unbounded_channel();
    let (announce, standing) = watch::channel(stand(&mut coordinator));
    let (end, ended) = oneshot::channel();
    let (stop, mut stopped) = oneshot::channel::<()>();
    let runtime = tokio::runtime::Handle::current();
    std::thread::spawn(move || {
        let result = runtime.block_on(async move {
            let news = coordinator.news();
            observer.changed(&coordinator, news);
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
                let before = (coordinator.begun(), coordinator.settled());
                tokio::select! {
                    biased;
                    _ = &mut stopped => return Ok(()),
                    Some(settled) = settled.recv() => coordinator.begin(settled, clock.elapsed())?,
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
                if let Some(records) = coordinator.to_settle() {
                    let (settle, sizes) = (settle.clone(), Arc::clone(coordinator.sizes()));
                    tracing::info!("everybody has joined: noise and cost are computed");
                    // The desk may be closed before this is done.
                    std::thread::spawn(move || drop(settle.send(sizes.settle(&records))));
                }
                let after = (coordinator.begun(), coordinator.settled());
                if coordinator.round() != round || before != after {
                    announce.send_replace(stand(&mut coordinator));
                }
                let news = coordinator.news();
                observer.changed(&coordinator, news);
            }
        });
        let _ = end.send(result);
    });
    Opened {
        desk: Desk {
            calls,
            sizes,
            calibrating: Arc::new(Semaphore::new(1)),
            standing,
        },
        measured,
        ended,
        stop,
    }
}

fn stand<S: ServerStore>(coordinator: &mut Coordinator<S>) -> Standing {
    let open = coordinator.round();
    Standing {
        begun: coordinator.begun(),
        open,
        finished: coordinator.finished(),
        settled: coordinator.settled(),
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
        Call::Join(client, records, reply) => give(reply, coordinator.join(client, records, now)),
        Call::Submit(client, message, reply) => {
            let result = coordinator.submit(client, message, now);
            give(reply, result.map(|(receipt, _)| receipt))
        }
        Call::MayFollow(client, position, reply) => {
            give(reply, coordinator.may_follow(client, position))
        }
        Call::CatchUp(client, position, reply) => {
            give(reply, coordinator.catch_up(client, position))
        }
        Call::Closed(round, reply) => give(reply, coordinator.closed(round)),
        Call::Acknowledge(client, reply) => give(reply, coordinator.acknowledge(client)),
    }
}

fn give<T>(reply: Reply<T>, result: Result<T, CoordinatorError>) -> Result<(), CoordinatorError> {
    match result {
        Err(
            fatal @ (CoordinatorError::Store(_)
            | CoordinatorError::Diverged(_)
            | CoordinatorError::Server(_)
            | CoordinatorError::Failed),
        ) => Err(fatal),
        result => {
            // Whoever asked may be gone.
            let _ = reply.send(result);
            Ok(())
        }
    }
}

impl Desk {
    /// Where the run stands, now and later.
    pub fn standing(&self) -> watch::Receiver<Standing> {
        self.standing.clone()
    }

    /// As [`Coordinator::join`].
    ///
    /// # Errors
    /// [`Closed`] if the desk is.
    pub async fn join(
        &self,
        client: ClientId,
        records: u64,
    ) -> Result<Result<(), CoordinatorError>, Closed> {
        let join = || self.ask(|reply| Call::Join(client, records, reply));
        let answer = join().await?;
        if !matches!(answer, Err(CoordinatorError::Uncalibrated(_))) {
            return Ok(answer);
        }
        let permit = Arc::clone(&self.calibrating).acquire_owned().await;
        let sizes = Arc::clone(&self.sizes);
        let computed = tokio::task::spawn_blocking(move || {
            // Whoever hung up is computed for all the same, and the next one waits for that.
            let _permit = permit;
            sizes.compute(records)
        });
        computed.await.map_err(|_| Closed)?;
        join().await
    }

    /// As [`Coordinator::submit`].
    ///
    /// # Errors
    /// [`Closed`] if the desk is.
    pub async fn submit(
        &self,
        client: ClientId,
        message: Bytes,
    ) -> Result<Result<Receipt, CoordinatorError>, Closed> {
        self.ask(|reply| Call::Submit(client, message, reply)).await
    }

    /// As [`Coordinator::may_follow`].
    ///
    /// # Errors
    /// [`Closed`] if the desk is.
    pub async fn may_follow(
        &self,
        client: ClientId,
        position: Position,
    ) -> Result<Result<(), CoordinatorError>, Closed> {
        self.ask(|reply| Call::MayFollow(client, position, reply))
            .await
    }

    /// As [`Coordinator::catch_up`].
    ///
    /// # Errors
    /// [`Closed`] if the desk is.
    pub async fn catch_up(
        &self,
        client: ClientId,
        position: Position,
    ) -> Result<Result<CatchUp, CoordinatorError>, Closed> {
        self.ask(|reply| Call::CatchUp(client, position, reply))
            .await
    }

    /// As [`Coordinator::closed`].
    ///
    /// # Errors
    /// [`Closed`] if the desk is.
    pub async fn closed(
        &self,
        round: Round,
    ) -> Result<Result<Arc<ClosedRound>, CoordinatorError>, Closed> {
        self.ask(|reply| Call::Closed(round, reply)).await
    }

    /// As [`Coordinator::acknowledge`].
    ///
    /// # Errors
    /// [`Closed`] if the desk is.
    pub async fn acknowledge(
        &self,
        client: ClientId,
    ) -> Result<Result<(), CoordinatorError>, Closed> {
        self.ask(|reply| Call::Acknowledge(client, reply)).await
    }

    async fn ask<T>(
        &self,
        call: impl FnOnce(Reply<T>) -> Call,
    ) -> Result<Result<T, CoordinatorError>, Closed> {
        let (reply, answer) = oneshot::channel();
        self.calls.send(call(reply)).await.map_err(|_| Closed)?;
        answer.await.map_err(|_| Closed)
    }
}
