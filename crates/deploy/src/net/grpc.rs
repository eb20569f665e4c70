//! The coordinator as a gRPC service: identifies the client, checks the run, calls the actor.
//!
//! Everything a peer sends is bounded before it is looked at: the size of a message by what the
//! run's compressor produces, streams per connection, time per call. A client follows once: a newer
//! stream ends its older one, and a stream that nobody reads any more ends at once, also while it
//! waits for the run to begin. Following costs two items in a queue; averages and dense states are
//! shared, not copied, until they are written to a connection.
//!
//! A client is connected for as long as it follows. That it is lost is noted and logged at once
//! when its connection ends, and within half a minute when it goes silent ([`super::ASKED_AFTER`]).
//! Those who follow are told for how many others the run waits, if they have asked for that.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use soteriafl_core::protocol::{ClientId, Round, ServerState};
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Response, Status};

use super::actor::{CoordinatorHandle, Stopped};
use super::listen::{Incoming, Peer};
use super::rpc::coordinator_server::{Coordinator, CoordinatorServer};
use super::rpc::{self, progress::Event};
use crate::coordinator::{CoordinatorError, Receipt};
use crate::dashboard::FeedWriter;
use crate::description::{Description, RUN_ID_LEN};
use crate::log_quota::may_say;
use crate::message_bounds::longest_message;
use crate::participant::Position;
use crate::to_bytes;
use soteriafl_core::compress::Compressor;
use soteriafl_core::wire;

/// How long a call other than following may take.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);

/// For how long a client is left waiting for a release before it is asked to ask again.
const RELEASE_WAIT: Duration = Duration::from_secs(20);

/// Streams of one connection.
const STREAMS: u32 = 16;

/// The service of one run.
pub struct Service {
    coordinator: CoordinatorHandle,
    text: String,
    run: [u8; RUN_ID_LEN],
    /// Bytes of the longest message before the first round.
    longest_release: usize,
    dashboard: FeedWriter,
    streams: Streams,
    /// After how long a silent connection is probed, and how long it may take to
    /// answer.
    keepalive: (Duration, Duration),
}

/// The streams of those who follow, one per client.
#[derive(Clone, Default)]
pub struct Streams(Arc<Shared>);

#[derive(Default)]
struct Shared {
    open: Mutex<Open>,
    /// The dense state that was sent last, in the form in which it travels.
    dense: Mutex<Option<rpc::Snapshot>>,
    /// What the run waits for.
    wait: watch::Sender<Option<Wait>>,
    alive: Arc<()>,
}

/// The newest stream of every client that follows, with its number.
#[derive(Default)]
struct Open {
    streams: HashMap<ClientId, (u64, AbortHandle)>,
    next: u64,
}

/// What a run waits for, as those who follow are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// Clients that have not answered.
    pub missing: usize,
    /// Those of them that are not connected.
    pub away: usize,
    /// For how long.
    pub lasted: Duration,
}

impl Streams {
    /// How many there are.
    pub fn alive(&self) -> usize {
        Arc::strong_count(&self.0.alive) - 1
    }

    /// Tells what the run waits for, if it does, to those followers that asked for it.
    pub fn tell(&self, wait: Option<Wait>) {
        self.0.wait.send_replace(wait);
    }

    /// Begins a client's stream, which gets a number; the one before ends. From now on the client
    /// is connected.
    fn enter(
        &self,
        client: ClientId,
        dashboard: &FeedWriter,
        begin: impl FnOnce(u64) -> AbortHandle,
    ) {
        // The stream may end before this returns, and then waits for the lock.
        let mut open = self.lock();
        let number = open.next;
        open.next += 1;
        let stream = (number, begin(number));
        if let Some((_, older)) = open.streams.insert(client, stream) {
            older.abort();
        }
        let away = dashboard.connected(client, true);
        drop(open);
        if let Some(seconds) = away.filter(|_| may_say("connected again", Some(client))) {
            tracing::info!(client, away = seconds.round(), "connected again");
        }
    }

    /// Ends a client's stream; says whether that was its newest one, without which it is not
    /// connected.
    fn leave(&self, client: ClientId, number: u64, dashboard: &FeedWriter) -> bool {
        let mut open = self.lock();
        let newest = open.streams.get(&client).map(|(number, _)| *number);
        let left = newest == Some(number);
        if left {
            open.streams.remove(&client);
            dashboard.connected(client, false);
        }
        left
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.0.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A dense state as it travels. The state before a round is the same for everybody, so it is
    /// encoded once.
    fn encoded(&self, state: &ServerState, accepted: bool, taken: u32) -> rpc::Snapshot {
        let mut dense = self.0.dense.lock().unwrap_or_else(PoisonError::into_inner);
        let known = dense.take().filter(|known| known.round == state.round);
        let known = known.unwrap_or_else(|| rpc::Snapshot {
            round: state.round,
            accepted: false,
            model: to_bytes(&state.model).into(),
            shift: to_bytes(&state.shift).into(),
            velocity: to_bytes(&state.velocity).into(),
            taken: 0,
        });
        *dense = Some(known.clone());
        rpc::Snapshot {
            accepted,
            taken,
            ..known
        }
    }
}

impl Service {
    /// A service for the run of `description`, which `coordinator` runs.
    pub fn new(
        coordinator: CoordinatorHandle,
        description: &Description,
        dashboard: FeedWriter,
    ) -> Self {
        Self {
            coordinator,
            text: description.text().to_string(),
            run: description.run_id(),
            longest_release: description.longest_release(),
            dashboard,
            streams: Streams::default(),
            keepalive: (super::ASKED_AFTER, super::ANSWERS_WITHIN),
        }
    }

    /// With other patience for silent connections, for tests.
    #[doc(hidden)]
    #[must_use]
    pub fn with_keepalive(self, asked_after: Duration, answers_within: Duration) -> Self {
        Self {
            keepalive: (asked_after, answers_within),
            ..self
        }
    }

    /// The streams of the clients that follow.
    pub fn streams(&self) -> Streams {
        self.streams.clone()
    }

    /// Serves accepted connections until `stop` is ready; then no new calls are taken and the open
    /// ones are given a moment.
    ///
    /// # Errors
    /// When the transport fails.
    pub async fn run(
        self,
        incoming: Incoming,
        compressor: &Compressor,
        stop: impl Future<Output = ()>,
    ) -> Result<(), tonic::transport::Error> {
        let (asked_after, answers_within) = self.keepalive;
        let largest = longest_message(compressor).max(self.longest_release);
        let largest = (largest + 256).max(4096);
        let service = CoordinatorServer::new(self)
            .max_decoding_message_size(largest)
            .max_encoding_message_size(usize::MAX);
        tonic::transport::Server::builder()
            .http2_keepalive_interval(Some(asked_after))
            .http2_keepalive_timeout(Some(answers_within))
            .max_concurrent_streams(STREAMS)
            .concurrency_limit_per_connection(STREAMS as usize)
            .initial_stream_window_size(1 << 20)
            .initial_connection_window_size(1 << 20)
            .add_service(service)
            .serve_with_incoming_shutdown(incoming, stop)
            .await
    }

    /// The client that sent a request, if it is permitted.
    fn client<T>(&self, request: &Request<T>) -> Result<ClientId, Status> {
        let peer = request
            .extensions()
            .get::<Peer>()
            .ok_or_else(|| Status::unauthenticated("nobody is known at the other end"))?;
        if !peer.permitted() {
            return Err(Status::permission_denied("the certificate is revoked"));
        }
        match peer.client() {
            Some(client) => Ok(client),
            // Without TLS, on loopback, a client's own statement is all there is.
            None => request
                .metadata()
                .get(rpc::CLIENT_METADATA)
                .and_then(|value| value.to_str().ok()?.parse().ok())
                .ok_or_else(|| Status::unauthenticated("which client is this?")),
        }
    }

    fn check(&self, run: &Bytes) -> Result<(), Status> {
        if run[..] == self.run {
            Ok(())
        } else {
            Err(Status::failed_precondition(
                "this server coordinates another run",
            ))
        }
    }
}

#[tonic::async_trait]
impl Coordinator for Service {
    async fn describe(
        &self,
        request: Request<rpc::DescribeRequest>,
    ) -> Result<Response<rpc::DescribeReply>, Status> {
        let client = self.client(&request)?;
        self.dashboard.described(client, self.text.len() as u64);
        Ok(Response::new(rpc::DescribeReply {
            description: self.text.clone(),
        }))
    }

    async fn join(
        &self,
        request: Request<rpc::JoinRequest>,
    ) -> Result<Response<rpc::JoinReply>, Status> {
        let client = self.client(&request)?;
        let rpc::JoinRequest { run, records } = request.into_inner();
        self.check(&run)?;
        timed(self.coordinator.join(client, records)).await?;
        if may_say("joined", Some(client)) {
            tracing::info!(client, records, "joined");
        }
        self.dashboard.joined(client);
        Ok(Response::new(rpc::JoinReply {}))
    }

    async fn submit(
        &self,
        request: Request<rpc::SubmitRequest>,
    ) -> Result<Response<rpc::SubmitReply>, Status> {
        let client = self.client(&request)?;
        let rpc::SubmitRequest { run, message } = request.into_inner();
        self.check(&run)?;
        // The round is the client's claim; the coordinator judges it below.
        let next = wire::claimed_round(&message).map_or(0, |round| round.saturating_add(1));
        self.dashboard.submitted(client, message.len() as u64, next);
        let receipt = timed(self.coordinator.submit(client, message))
            .await
            .inspect_err(|status| {
                if may_say("a message was not taken", Some(client)) {
                    tracing::warn!(client, reason = status.message(), "a message was not taken");
                }
            })?;
        self.dashboard.answered(client, next);
        let (closed, accepted) = match receipt {
            Receipt::Received => (false, false),
            Receipt::Closed { accepted } => (true, accepted),
        };
        Ok(Response::new(rpc::SubmitReply { closed, accepted }))
    }

    type FollowStream = Pin<Box<ReceiverStream<Result<rpc::Progress, Status>>>>;

    async fn follow(
        &self,
        request: Request<rpc::FollowRequest>,
    ) -> Result<Response<Self::FollowStream>, Status> {
        let client = self.client(&request)?;
        let rpc::FollowRequest {
            run,
            have,
            pending,
            every_round,
            tell_waiting,
        } = request.into_inner();
        self.check(&run)?;
        let position = Position {
            have,
            pending,
            every_round,
        };
        // A client that may not follow is refused by the call itself, not within the stream.
        timed(self.coordinator.may_follow(client, position)).await?;
        self.dashboard.followed(client, position.have);
        let (sender, receiver) = mpsc::channel(1);
        let follower = Follower {
            coordinator: self.coordinator.clone(),
            dashboard: self.dashboard.clone(),
            run: Bytes::copy_from_slice(&self.run),
            client,
            sender,
            tell_waiting,
            streams: self.streams.clone(),
            _alive: Arc::clone(&self.streams.0.alive),
        };
        self.streams.enter(client, &self.dashboard, |number| {
            tokio::spawn(follower.run(number, position)).abort_handle()
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    async fn acknowledge(
        &self,
        request: Request<rpc::AcknowledgeRequest>,
    ) -> Result<Response<rpc::AcknowledgeReply>, Status> {
        let client = self.client(&request)?;
        self.check(&request.into_inner().run)?;
        timed(self.coordinator.acknowledge(client)).await?;
        self.dashboard.acknowledged(client);
        Ok(Response::new(rpc::AcknowledgeReply {}))
    }

    async fn release(
        &self,
        request: Request<rpc::ReleaseRequest>,
    ) -> Result<Response<rpc::ReleaseReply>, Status> {
        let client = self.client(&request)?;
        let rpc::ReleaseRequest {
            run,
            number,
            message,
        } = request.into_inner();
        self.check(&run)?;
        let mut presence = Presence::of(client, &self.dashboard);
        let mut state = self.coordinator.state();
        let late = tokio::time::Instant::now() + RELEASE_WAIT;
        loop {
            // Seen before it is asked, so that no change in between is missed.
            let open = {
                let seen = state.borrow_and_update();
                seen.begun || seen.release.is_some_and(|open| open >= number)
            };
            let asked = self.coordinator.release(client, number, message.clone());
            let average = timed(asked).await.inspect_err(|status| {
                if may_say("a release was not taken", Some(client)) {
                    tracing::warn!(client, reason = status.message(), "a release was not taken");
                }
            })?;
            let wait = average.is_none() && (!open || message.is_some());
            let changed = tokio::time::timeout_at(late, state.changed());
            if wait && let Ok(changed) = changed.await {
                changed.map_err(|_| down())?;
                continue;
            }
            presence.answered = true;
            let average = average.map(|average| rpc::Average::of(number, &average));
            return Ok(Response::new(rpc::ReleaseReply { open, average }));
        }
    }
}

/// A client is connected while it waits for a release, and no longer if it hangs up meanwhile.
struct Presence<'a> {
    client: ClientId,
    dashboard: &'a FeedWriter,
    answered: bool,
}

impl<'a> Presence<'a> {
    fn of(client: ClientId, dashboard: &'a FeedWriter) -> Self {
        dashboard.connected(client, true);
        Self {
            client,
            dashboard,
            answered: false,
        }
    }
}

impl Drop for Presence<'_> {
    fn drop(&mut self) {
        if !self.answered {
            self.dashboard.connected(self.client, false);
        }
    }
}

/// One client that follows the run.
struct Follower {
    coordinator: CoordinatorHandle,
    dashboard: FeedWriter,
    run: Bytes,
    client: ClientId,
    sender: mpsc::Sender<Result<rpc::Progress, Status>>,
    /// Whether it asked to be told what the run waits for.
    tell_waiting: bool,
    streams: Streams,
    _alive: Arc<()>,
}

impl Follower {
    /// Follows until one side ends it.
    async fn run(self, number: u64, position: Position) {
        tokio::select! {
            // The client has closed its side.
            () = self.sender.closed() => {}
            ended = self.follow(position) => if let Err(status) = ended {
                // The receiver may be gone, which is why this ended.
                let _ = self.sender.send(Err(status)).await;
            }
        }
        let newest = self.streams.leave(self.client, number, &self.dashboard);
        // No client is lost when the server shuts down, or when they leave after the last round.
        let (round, finished) = {
            let state = self.coordinator.state();
            let state = state.borrow();
            (state.open, state.finished)
        };
        let lost = newest && !finished && self.dashboard.feed().goes_on();
        if lost && may_say("the connection has ended", Some(self.client)) {
            tracing::warn!(client = self.client, round, "the connection has ended");
        }
    }

    async fn follow(&self, position: Position) -> Result<(), Status> {
        let mut state = self.coordinator.state();
        let mut wait = self.streams.0.wait.subscribe();
        // What is known already is told first.
        wait.mark_changed();
        loop {
            let told = tokio::select! {
                biased;
                begun = state.wait_for(|state| state.begun) => {
                    begun.map_err(|_| down())?;
                    break;
                }
                told = self.waits(&mut wait) => told,
            };
            self.send(0, Event::Waiting(told)).await?;
        }
        let start = timed(self.coordinator.catch_up(self.client, position)).await?;
        self.send(start.open, Event::Opened(rpc::Opened {})).await?;
        let mut next = start.from;
        if let Some(state) = start.snapshot {
            let snapshot = self.streams.encoded(&state, start.accepted, start.taken);
            drop(state);
            self.send(start.open, Event::Snapshot(snapshot)).await?;
        }
        loop {
            let seen = tokio::select! {
                biased;
                seen = state.wait_for(|state| state.open > next) => {
                    let seen = seen.map_err(|_| down())?;
                    Ok((seen.open, seen.latest.clone()))
                }
                told = self.waits(&mut wait) => Err(told),
            };
            let (open, latest) = match seen {
                Ok(seen) => seen,
                Err(told) => {
                    self.send(next, Event::Waiting(told)).await?;
                    continue;
                }
            };
            let closed = match latest.filter(|latest| latest.round == next) {
                Some(latest) => latest,
                None => timed(self.coordinator.closed(next)).await?,
            };
            let event = Event::Closed(rpc::Closed {
                round: next,
                accepted: closed.accepts(self.client),
                average: closed.average.clone(),
            });
            self.send(open, event).await?;
            next += 1;
        }
    }

    /// Returns when there is something to tell about others for whom the run waits.
    async fn waits(&self, wait: &mut watch::Receiver<Option<Wait>>) -> rpc::Waiting {
        loop {
            // The sender is in `self.streams`, so this does not fail while `self` exists.
            if !self.tell_waiting || wait.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
            let Some(known) = *wait.borrow_and_update() else {
                continue;
            };
            let own = usize::from(self.dashboard.feed().awaits(self.client));
            let count = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
            // Counted a moment ago, when this client itself may have been missing.
            let most = self.dashboard.feed().about().clients.saturating_sub(1);
            let others = known.missing.saturating_sub(own).min(most);
            if others > 0 {
                return rpc::Waiting {
                    missing: count(others),
                    away: count(known.away.min(others)),
                    seconds: u32::try_from(known.lasted.as_secs()).unwrap_or(u32::MAX),
                };
            }
        }
    }

    async fn send(&self, open: Round, event: Event) -> Result<(), Status> {
        let bytes = match &event {
            Event::Opened(_) | Event::Waiting(_) => 0,
            Event::Closed(closed) => closed.average.len(),
            Event::Snapshot(snapshot) => {
                snapshot.model.len() + snapshot.shift.len() + snapshot.velocity.len()
            }
        };
        let progress = rpc::Progress {
            run: self.run.clone(),
            open,
            event: Some(event),
        };
        let gone = |_| Status::cancelled("the client is gone");
        self.sender.send(Ok(progress)).await.map_err(gone)?;
        self.dashboard.sent(self.client, bytes as u64);
        Ok(())
    }
}

async fn timed<T>(
    call: impl Future<Output = Result<Result<T, CoordinatorError>, Stopped>>,
) -> Result<T, Status> {
    match tokio::time::timeout(CALL_TIMEOUT, call).await {
        Err(_) => Err(Status::unavailable("the server is busy")),
        Ok(Err(Stopped)) => Err(down()),
        Ok(Ok(result)) => result.map_err(|error| status(&error)),
    }
}

fn down() -> Status {
    Status::unavailable("the server is going down")
}

fn status(error: &CoordinatorError) -> Status {
    let code = match error {
        CoordinatorError::UnknownClient { .. } => Code::PermissionDenied,
        CoordinatorError::NotJoined(_)
        | CoordinatorError::Records { .. }
        | CoordinatorError::BadRecords { .. }
        | CoordinatorError::Early { .. }
        | CoordinatorError::Ahead { .. } => Code::FailedPrecondition,
        CoordinatorError::Malformed(_) | CoordinatorError::Implausible { .. } => {
            Code::InvalidArgument
        }
        CoordinatorError::Conflict { .. } => Code::AlreadyExists,
        _ => Code::Unavailable,
    };
    Status::new(code, error.to_string())
}
