//! The coordinator as a gRPC service: who is speaking, is it about this run, then the desk.
//!
//! Everything a peer sends is bounded before it is looked at: the size of a message by what the run's
//! compressor produces, streams per connection, time per call. A client follows once: a newer stream ends its older one, and a stream
//! that nobody reads any more ends at once, also while it waits for the run to begin. Following costs two items in a
//! queue; averages and dense states are shared, not copied, until they are written to a connection.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use soteria_core::protocol::{ClientId, Round, ServerState};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Response, Status};

use super::desk::{Closed, Desk};
use super::listen::{Incoming, Peer};
use super::rpc::coordinator_server::{Coordinator, CoordinatorServer};
use super::rpc::{self, progress::Event};
use crate::dashboard::Feed;
use crate::deploy::coordinator::{CoordinatorError, Receipt};
use crate::deploy::description::{Description, RUN_ID_LEN};
use crate::deploy::participant::Position;
use crate::deploy::plausible::longest_message;
use crate::deploy::to_bytes;
use soteria_core::compress::Compressor;
use soteria_core::wire;

/// How long a call other than following may take.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);

/// How often a silent connection is asked whether it lives, and how long it may take to answer.
const KEEPALIVE: Duration = Duration::from_secs(20);

/// Streams of one connection.
const STREAMS: u32 = 16;

/// The service of one run.
pub struct Service {
    desk: Desk,
    text: String,
    run: [u8; RUN_ID_LEN],
    feed: Feed,
    streams: Streams,
}

/// The streams of those who follow, one per client.
#[derive(Clone, Default)]
pub struct Streams(Arc<Shared>);

#[derive(Default)]
struct Shared {
    open: Mutex<HashMap<ClientId, AbortHandle>>,
    /// The dense state that was sent last, in the form in which it travels.
    dense: Mutex<Option<rpc::Snapshot>>,
    alive: Arc<()>,
}

impl Streams {
    /// How many there are.
    pub fn alive(&self) -> usize {
        Arc::strong_count(&self.0.alive) - 1
    }

    /// Notes a client's stream; the one before ends.
    fn enter(&self, client: ClientId, stream: AbortHandle) {
        let mut open = self.0.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(older) = open.insert(client, stream) {
            older.abort();
        }
    }

    /// A dense state as it travels. The state before a round is the same for everybody, so it is encoded once.
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
    /// A service for the run of `description`, whose desk this is.
    pub fn new(desk: Desk, description: &Description, feed: Feed) -> Self {
        Self {
            desk,
            text: description.text().to_string(),
            run: description.run_id(),
            feed,
            streams: Streams::default(),
        }
    }

    /// Who follows.
    pub fn streams(&self) -> Streams {
        self.streams.clone()
    }

    /// Serves accepted connections until `stop` is ready; then no new calls are taken and the open ones
    /// are given a moment.
    ///
    /// # Errors
    /// When the transport fails.
    pub async fn run(
        self,
        incoming: Incoming,
        compressor: &Compressor,
        stop: impl Future<Output = ()>,
    ) -> Result<(), tonic::transport::Error> {
        let largest = (longest_message(compressor) + 256).max(4096);
        let service = CoordinatorServer::new(self)
            .max_decoding_message_size(largest)
            .max_encoding_message_size(usize::MAX);
        tonic::transport::Server::builder()
            .http2_keepalive_interval(Some(KEEPALIVE))
            .http2_keepalive_timeout(Some(KEEPALIVE))
            .max_concurrent_streams(STREAMS)
            .concurrency_limit_per_connection(STREAMS as usize)
            .initial_stream_window_size(1 << 20)
            .initial_connection_window_size(1 << 20)
            .add_service(service)
            .serve_with_incoming_shutdown(incoming, stop)
            .await
    }

    /// Who is speaking, if it may.
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
            // Without TLS, on loopback, a client is whom it says it is.
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
        self.feed.heard(client, 0);
        self.feed.sent(client, self.text.len() as u64);
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
        timed(self.desk.join(client, records)).await?;
        tracing::info!(client, records, "joined");
        self.feed.heard(client, 0);
        self.feed.client(client, |row| row.joined = true);
        Ok(Response::new(rpc::JoinReply {}))
    }

    async fn submit(
        &self,
        request: Request<rpc::SubmitRequest>,
    ) -> Result<Response<rpc::SubmitReply>, Status> {
        let client = self.client(&request)?;
        let rpc::SubmitRequest { run, message } = request.into_inner();
        self.check(&run)?;
        self.feed.heard(client, message.len() as u64);
        // Its word, before the desk can close the round by it; whether it was taken in time is another matter. An older message
        // that comes once more says nothing new.
        let rounds = self.feed.about().rounds;
        let next = wire::claimed_round(&message).map_or(0, |round| round.saturating_add(1));
        self.feed.client(client, |row| {
            row.round = row.round.max(next).min(rounds);
        });
        let receipt = timed(self.desk.submit(client, message))
            .await
            .inspect_err(|status| {
                tracing::warn!(client, reason = status.message(), "a message was not taken");
            })?;
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
        } = request.into_inner();
        self.check(&run)?;
        let position = Position {
            have,
            pending,
            every_round,
        };
        // Whoever has no business here hears it at once, not in the stream.
        timed(self.desk.may_follow(client, position)).await?;
        self.feed.heard(client, 0);
        self.feed
            .client(client, |row| row.round = position.have.unwrap_or(0));
        let (sender, receiver) = mpsc::channel(1);
        let follower = Follower {
            desk: self.desk.clone(),
            feed: self.feed.clone(),
            run: Bytes::copy_from_slice(&self.run),
            client,
            sender,
            streams: self.streams.clone(),
            _alive: Arc::clone(&self.streams.0.alive),
        };
        let task = tokio::spawn(async move {
            tokio::select! {
                // Whoever is gone is not waited for.
                () = follower.sender.closed() => {}
                ended = follower.follow(position) => if let Err(status) = ended {
                    // The receiver may be gone, which is why this ended.
                    let _ = follower.sender.send(Err(status)).await;
                }
            }
        });
        self.streams.enter(client, task.abort_handle());
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    async fn acknowledge(
        &self,
        request: Request<rpc::AcknowledgeRequest>,
    ) -> Result<Response<rpc::AcknowledgeReply>, Status> {
        let client = self.client(&request)?;
        self.check(&request.into_inner().run)?;
        timed(self.desk.acknowledge(client)).await?;
        self.feed.heard(client, 0);
        let rounds = self.feed.about().rounds;
        self.feed
            .client(client, |row| (row.round, row.finished) = (rounds, true));
        Ok(Response::new(rpc::AcknowledgeReply {}))
    }
}

/// One client that follows the run.
struct Follower {
    desk: Desk,
    feed: Feed,
    run: Bytes,
    client: ClientId,
    sender: mpsc::Sender<Result<rpc::Progress, Status>>,
    streams: Streams,
    _alive: Arc<()>,
}

impl Follower {
    async fn follow(&self, position: Position) -> Result<(), Status> {
        let mut standing = self.desk.standing();
        standing
            .wait_for(|standing| standing.begun)
            .await
            .map_err(|_| down())?;
        let start = timed(self.desk.catch_up(self.client, position)).await?;
        self.send(start.open, Event::Opened(rpc::Opened {})).await?;
        let mut next = start.from;
        if let Some(state) = start.snapshot {
            let snapshot = self.streams.encoded(&state, start.accepted, start.taken);
            drop(state);
            self.send(start.open, Event::Snapshot(snapshot)).await?;
        }
        loop {
            let (open, latest) = {
                let seen = standing
                    .wait_for(|standing| standing.open > next)
                    .await
                    .map_err(|_| down())?;
                (seen.open, seen.latest.clone())
            };
            let closed = match latest.filter(|latest| latest.round == next) {
                Some(latest) => latest,
                None => timed(self.desk.closed(next)).await?,
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

    async fn send(&self, open: Round, event: Event) -> Result<(), Status> {
        let bytes = match &event {
            Event::Opened(_) => 0,
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
        self.feed.sent(self.client, bytes as u64);
        Ok(())
    }
}

async fn timed<T>(
    call: impl Future<Output = Result<Result<T, CoordinatorError>, Closed>>,
) -> Result<T, Status> {
    match tokio::time::timeout(CALL_TIMEOUT, call).await {
        Err(_) => Err(Status::unavailable("the server is busy")),
        Ok(Err(Closed)) => Err(down()),
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
