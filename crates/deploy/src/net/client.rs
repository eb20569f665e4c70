//! A client's side of the wire: calls, tries again, follows.
//!
//! Whatever fails for a reason that may pass (no server, a cut connection, a server going down) is
//! tried again with growing pauses, forever; what the server refuses on its merits, or a
//! certificate that is not accepted, ends the client.

use std::hash::{BuildHasher, RandomState};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use bytes::Bytes;
use soteriafl_core::protocol::ClientId;
use tonic::transport::Channel;
use tonic::{Code, Request, Status, Streaming};

use super::connect::{self, Target};
use super::rpc::coordinator_client::CoordinatorClient;
use super::rpc::{self, progress::Event};
use crate::exchange::apply;
use crate::participant::{Opening, Participant, ParticipantError, Position};
use crate::printable;
use crate::store::ClientStore;

/// How long a call may take.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);

/// A round that takes longer than this lets the connection live on beside it, on another thread;
/// for a shorter one that would take longer than it does.
const QUICK: Duration = Duration::from_millis(250);

/// How often a client that waits for the server is asked what to show.
const LOOK: Duration = Duration::from_secs(1);

/// Pauses between attempts: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(3));

/// Why a client cannot go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FollowError {
    /// May pass: try again.
    #[error("{0}")]
    Passing(String),
    /// The server refuses what was asked of it.
    #[error("the server refused: {0}")]
    Refused(String),
    /// One side does not accept the other's certificate; the reason says which.
    #[error("{0}")]
    Certificate(String),
    /// The server speaks of another run, or sends what is no answer.
    #[error("the server does not keep to the protocol: {0}")]
    Protocol(&'static str),
    /// The server has another message of this client for the same round, the open one or the one
    /// before.
    #[error(
        "the server already has another message of this client for this round: a copy of this state is at work, or this one is older \
         than the last message ({0})"
    )]
    Twice(String),
    /// Whoever watches this client has stopped it.
    #[error("stopped; started again with the same state it goes on")]
    Stopped,
    /// This side stops.
    #[error(transparent)]
    Participant(#[from] ParticipantError),
}

impl FollowError {
    /// What a person can do about it, if anything.
    pub fn hints(&self) -> &'static [&'static str] {
        match self {
            FollowError::Twice(_) => &HINTS_TWICE,
            FollowError::Participant(error) => error.hints(),
            _ => &[],
        }
    }
}

/// Both messages have left this client's machines, and the ledger of each copy knows of one.
const HINTS_TWICE: [&str; 3] = [
    "both messages have left; if the other is of a copy of this state, count what both ledgers say",
    "find the copy (a clone of the machine, a second directory, a backup that was restored) and end it; \
     if it has gone on, its state is the newer one: keep that",
    "if there is none, somebody has sent as this client: see who has its key (without TLS any process of \
     this machine may)",
];

impl From<Status> for FollowError {
    fn from(status: Status) -> Self {
        if let Some(reason) = connect::refusal(&status) {
            return FollowError::Certificate(reason);
        }
        match status.code() {
            Code::InvalidArgument
            | Code::FailedPrecondition
            | Code::PermissionDenied
            | Code::Unauthenticated
            | Code::AlreadyExists
            | Code::Unimplemented
            | Code::OutOfRange => FollowError::Refused(printable(status.message())),
            _ => FollowError::Passing(format!(
                "{} ({})",
                printable(status.message()),
                status.code()
            )),
        }
    }
}

/// Pauses that grow from attempt to attempt, each between half and all of its length: clients that
/// were cut off together do not come back together.
#[derive(Default)]
pub struct Patience(u32);

impl Patience {
    /// Waits; longer each time.
    pub async fn pause(&mut self) {
        let (first, longest) = PAUSES;
        let pause = first.saturating_mul(1 << self.0.min(10)).min(longest);
        self.0 += 1;
        let share = (RandomState::new().hash_one(self.0) >> 40) as f64 / f64::from(1 << 24);
        tokio::time::sleep(pause.mul_f64(0.5 + 0.5 * share)).await;
    }

    /// Something worked.
    pub fn reset(&mut self) {
        self.0 = 0;
    }
}

/// A way to a server, as one client.
#[derive(Clone)]
pub struct Caller {
    stub: CoordinatorClient<Channel>,
    client: ClientId,
    run: Bytes,
}

impl Caller {
    /// A caller; nothing is dialled before the first call. The run is not known yet.
    pub fn new(target: &Target, client: ClientId) -> Self {
        let endpoint = target
            .endpoint()
            .http2_keep_alive_interval(super::ASKED_AFTER)
            .keep_alive_timeout(super::ANSWERS_WITHIN)
            .keep_alive_while_idle(true)
            .initial_stream_window_size(8 << 20)
            .initial_connection_window_size(8 << 20);
        Self {
            stub: CoordinatorClient::new(target.channel(&endpoint)),
            client,
            run: Bytes::new(),
        }
    }

    /// The same for a run that was agreed on: answers are no larger than its model, or
    /// what is released before it, allows.
    pub fn for_run(self, run: Bytes, dimension: usize, longest_release: usize) -> Self {
        let longest = (12 * dimension).max(longest_release) + 4096;
        Self {
            stub: self.stub.max_decoding_message_size(longest),
            run,
            ..self
        }
    }

    /// The text of the run.
    ///
    /// # Errors
    /// When the server does not answer, or refuses.
    pub async fn describe(&mut self) -> Result<String, FollowError> {
        let request = self.request(rpc::DescribeRequest {});
        let reply = self.stub.describe(request).await?;
        Ok(reply.into_inner().description)
    }

    /// Joins, or comes back.
    ///
    /// # Errors
    /// When the server does not answer, or refuses.
    pub async fn join(&mut self, records: u64) -> Result<(), FollowError> {
        let run = self.run.clone();
        let request = self.request(rpc::JoinRequest { run, records });
        self.stub.join(request).await?;
        Ok(())
    }

    /// Says that the end is known.
    ///
    /// # Errors
    /// When the server does not answer, or refuses.
    pub async fn acknowledge(&mut self) -> Result<(), FollowError> {
        let run = self.run.clone();
        let request = self.request(rpc::AcknowledgeRequest { run });
        self.stub.acknowledge(request).await?;
        Ok(())
    }

    /// Sends the message of a release, or asks whether it is open, and waits for an answer.
    async fn release(
        &mut self,
        number: u32,
        message: Option<Bytes>,
    ) -> Result<rpc::ReleaseReply, FollowError> {
        let run = self.run.clone();
        let request = self.request(rpc::ReleaseRequest {
            run,
            number,
            message,
        });
        match self.stub.release(request).await {
            Err(status) if status.code() == Code::AlreadyExists => {
                Err(FollowError::Twice(printable(status.message())))
            }
            other => Ok(other?.into_inner()),
        }
    }

    async fn submit(&mut self, message: Bytes) -> Result<(), FollowError> {
        let run = self.run.clone();
        let request = self.request(rpc::SubmitRequest { run, message });
        match self.stub.submit(request).await {
            Err(status) if status.code() == Code::AlreadyExists => {
                Err(FollowError::Twice(printable(status.message())))
            }
            other => Ok(other.map(drop)?),
        }
    }

    async fn follow(
        &mut self,
        position: Position,
    ) -> Result<Streaming<rpc::Progress>, FollowError> {
        let mut request = self.request(rpc::FollowRequest {
            run: self.run.clone(),
            have: position.have,
            pending: position.pending,
            every_round: position.every_round,
            tell_waiting: true,
        });
        // A stream has no end that could be waited for.
        request.metadata_mut().remove("grpc-timeout");
        Ok(self.stub.follow(request).await?.into_inner())
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.set_timeout(CALL_TIMEOUT);
        let metadata = request.metadata_mut();
        metadata.insert(rpc::CLIENT_METADATA, self.client.into());
        request
    }
}

/// What a client waits for between two events of the server.
#[derive(Clone, Copy, Debug)]
pub struct Wait {
    /// Since when, as far as this client knows.
    pub since: Instant,
    /// What the server has said: how many others have not answered, and how many of those are not
    /// connected.
    pub others: Option<(u32, u32)>,
}

impl Wait {
    fn from_now() -> Self {
        Self {
            since: Instant::now(),
            others: None,
        }
    }

    /// Notes what the server says. It is only shown: nothing else depends on it.
    fn update(&mut self, waiting: rpc::Waiting) {
        let lasted = Duration::from_secs(u64::from(waiting.seconds));
        let began = Instant::now().checked_sub(lasted);
        self.since = began.map_or(self.since, |began| began.min(self.since));
        self.others = Some((waiting.missing, waiting.away));
    }
}

/// Is told how a client gets on, e.g. to show it.
pub trait Audience<S> {
    /// The participant has taken another step. Where it breaks, the client stops before it makes
    /// another message ([`FollowError::Stopped`]).
    fn advanced(&mut self, participant: &Participant<S>) -> ControlFlow<()>;

    /// It waits: asked now and then while that lasts, and at once when the server says what for.
    fn waits(&mut self, wait: &Wait);
}

/// Goes through all that is released before the first round, once: an error that may pass leaves
/// the client where it is. Nothing is made before the server says that everybody has joined.
///
/// # Errors
/// When the connection fails, or one side cannot go on.
pub async fn release<S: ClientStore>(
    caller: &mut Caller,
    opening: &mut Opening<S>,
) -> Result<(), FollowError> {
    let mut open = None;
    while !opening.finished() {
        let number = opening.averages();
        // A message that exists is shown at once: a server that took another one, of a copy of this
        // state, says so.
        let message = match open == Some(number) || opening.has_message() {
            true => tokio::task::block_in_place(|| opening.message(number))?,
            false => None,
        };
        let reply = caller.release(number, message).await?;
        open = reply.open.then_some(number);
        let Some(average) = reply.average else {
            continue;
        };
        if average.number != number {
            return Err(FollowError::Protocol("it answers about another release"));
        }
        let Some(average) = average.read() else {
            return Err(FollowError::Protocol("an average is no numbers"));
        };
        opening.heard(number, &average)?;
    }
    Ok(())
}

/// Follows the run until its end, once: an error that may pass leaves the participant where it is.
///
/// `audience` is told of every change.
///
/// # Errors
/// When the connection fails, or one side cannot go on.
pub async fn follow<S: ClientStore>(
    caller: &mut Caller,
    participant: &mut Participant<S>,
    audience: &mut impl Audience<S>,
) -> Result<(), FollowError> {
    let mut stream = caller.follow(participant.position()).await?;
    let mut took = Duration::MAX;
    let mut looks = tokio::time::interval(LOOK);
    looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut wait = Wait::from_now();
    while !participant.replica().finished() {
        let event = tokio::select! {
            biased;
            event = stream.message() => event?,
            _ = looks.tick() => {
                audience.waits(&wait);
                continue;
            }
        };
        let Some(progress) = event else {
            return Err(FollowError::Passing("the server hung up".to_string()));
        };
        if progress.run != caller.run {
            return Err(FollowError::Protocol("it answers for another run"));
        }
        if let Some(Event::Waiting(waiting)) = progress.event {
            wait.update(waiting);
            audience.waits(&wait);
            continue;
        }
        let open = progress.open;
        let opened = matches!(progress.event, Some(Event::Opened(_)));
        let mut step = || {
            apply(participant, progress.event.as_ref())?;
            if audience.advanced(participant).is_break() {
                return Err(FollowError::Stopped);
            }
            // Closed rounds are only applied: a message for them would be spent for
            // nothing.
            if participant.replica().round() >= open {
                Ok(participant.message()?)
            } else {
                Ok(None)
            }
        };
        let start = Instant::now();
        let message = if took < QUICK {
            step()
        } else {
            tokio::task::block_in_place(step)
        }?;
        // Rounds with a message are measured. At a stream's first event it may be one that was made
        // earlier.
        if message.is_some() && !opened {
            took = start.elapsed();
        }
        if let Some((_, message)) = message {
            caller.submit(message).await?;
        }
        wait = Wait::from_now();
    }
    Ok(())
}
