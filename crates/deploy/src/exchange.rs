//! The protocol as questions and answers: for transports that carry one request to a client and one
//! reply back, and start a process for each, as Flower does.
//!
//! ```text
//!   Server                                            client
//!     | question: description -------------------------> |  agrees, or does not take part
//!     | <-------------- answer: client, records -------- |
//!     |  all have joined: round 0 opens                   |
//!     | question: what happened since its position ----> |  applies it; makes and stores a message
//!     | <------ answer: position, message of the round - |
//!     |  all have answered: the round is closed, durable  |
//!     | question: closed, am I in it?, the average ----> |  moves its shift, and so on
//! ```
//!
//! [`Questions`] wraps the [`Coordinator`](crate::coordinator::Coordinator), [`answer`] the
//! [`Participant`]; both are as pure as those, and everything they guarantee holds: a message is stored before it leaves, a retry sends
//! the same bytes, a round is durable before anybody hears of it, and a client learns by round, and
//! by the digest of the message, whether it was taken. Questions and answers may be lost, repeated
//! and delayed: a question is built from the position of the client's last answer, what a client
//! knows already it passes over, and a client that is behind its last answer (a restored copy)
//! answers with its position alone and is asked again from there.

mod questions;

use bytes::Bytes;
use prost::Message;
use soteriafl_core::preliminary::Average;
use soteriafl_core::protocol::{ClientId, ServerState};

use crate::coordinator::CoordinatorError;
use crate::description::{LONGEST, RUN_ID_LEN};
use crate::from_bytes;
use crate::net::rpc::{self, progress::Event};
use crate::participant::{Opening, Participant, ParticipantError, Position};
use crate::store::ClientStore;

pub use questions::{Heard, Questions};

/// Why a question or an answer is not understood, or not answered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExchangeError {
    /// The bytes are none of ours.
    #[error("not a {what} of this protocol: {reason}")]
    Malformed {
        /// What was expected.
        what: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// The other side speaks of another run.
    #[error("the {0} is about another run")]
    OtherRun(&'static str),
    /// One peer speaks for two clients.
    #[error("peer {peer} answers as client {client}, and has answered as client {known}")]
    OtherClient {
        /// The transport's name of it.
        peer: u64,
        /// The first client.
        known: ClientId,
        /// The other one.
        client: ClientId,
    },
    /// Two peers speak for one client.
    #[error("peers {known} and {peer} both answer as client {client}: give each its own number")]
    Twice {
        /// Which client.
        client: ClientId,
        /// The peer that was first.
        known: u64,
        /// The other one.
        peer: u64,
    },
    /// The server refuses.
    #[error(transparent)]
    Server(#[from] CoordinatorError),
    /// The client stops.
    #[error(transparent)]
    Client(#[from] ParticipantError),
}

fn malformed(what: &'static str, reason: impl std::fmt::Display) -> ExchangeError {
    ExchangeError::Malformed {
        what,
        reason: reason.to_string(),
    }
}

/// A question as a client reads it.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    /// The run's description, if the server thinks that the client needs it.
    pub description: Option<String>,
    progress: Vec<rpc::Progress>,
    /// What all clients have released before the first round, as far as the client lacks it.
    averages: Vec<(u32, Average)>,
    /// The release that is open, before the first round.
    release: Option<u32>,
    /// The digest of the client's message that was taken last, where the server knows it.
    taken: Option<Bytes>,
}

impl Question {
    /// Reads what [`Questions::ask`] wrote.
    ///
    /// # Errors
    /// When it is something else.
    pub fn decode(bytes: &[u8]) -> Result<Self, ExchangeError> {
        let what = "question";
        let question = rpc::Question::decode(bytes).map_err(|error| malformed(what, error))?;
        if question.description.len() > LONGEST {
            return Err(malformed(what, "its description is too long"));
        }
        if question.description.is_empty() && question.progress.is_empty() {
            return Err(malformed(what, "it asks nothing"));
        }
        let averages = question.averages.iter();
        let averages = averages.map(|average| Some((average.number, average.read()?)));
        Ok(Self {
            description: Some(question.description.clone()).filter(|text| !text.is_empty()),
            progress: question.progress,
            averages: averages
                .collect::<Option<_>>()
                .ok_or_else(|| malformed(what, "an average is no numbers"))?,
            release: question.release,
            taken: question.taken,
        })
    }

    /// The run that has begun, by the beginning of its hash; `None` before it has.
    pub fn run(&self) -> Option<&[u8]> {
        self.progress.first().map(|progress| &progress.run[..])
    }
}

/// What a client answers.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// It does not take part, and says no more.
    Refused,
    /// It does.
    TakesPart {
        /// Which run, by the beginning of its hash.
        run: Bytes,
        /// Which client it is.
        client: ClientId,
        /// Its records.
        records: u64,
        /// How far it is; `None` before the run has begun.
        position: Option<Position>,
        /// Its message of the open round.
        message: Option<Bytes>,
        /// How many averages of releases before the first round it knows, where it lacks some.
        averages: Option<u32>,
        /// Its message of the open release.
        release: Option<Bytes>,
    },
}

impl Answer {
    /// The bytes that travel.
    pub fn encode(&self) -> Vec<u8> {
        let answer = match self {
            Answer::Refused => rpc::Answer::default(),
            Answer::TakesPart {
                run,
                client,
                records,
                position,
                message,
                averages,
                release,
            } => rpc::Answer {
                run: run.clone(),
                client: *client,
                records: *records,
                have: position.and_then(|position| position.have),
                pending: position.and_then(|position| position.pending),
                every_round: position.is_some_and(|position| position.every_round),
                message: message.clone(),
                averages: *averages,
                release: release.clone(),
            },
        };
        answer.encode_to_vec()
    }

    /// Reads them.
    ///
    /// # Errors
    /// When they are something else.
    pub fn decode(bytes: Bytes) -> Result<Self, ExchangeError> {
        let answer = rpc::Answer::decode(bytes).map_err(|error| malformed("answer", error))?;
        match answer.run.len() {
            0 => Ok(Answer::Refused),
            RUN_ID_LEN => Ok(Answer::TakesPart {
                run: answer.run,
                client: answer.client,
                records: answer.records,
                position: Some(Position {
                    have: answer.have,
                    pending: answer.pending,
                    every_round: answer.every_round,
                }),
                message: answer.message,
                averages: answer.averages,
                release: answer.release,
            }),
            _ => Err(malformed("answer", "its run has another length")),
        }
    }
}

/// A client's answer to a question about a run that has begun: applies what happened, and makes, or
/// repeats, the message of the open round.
///
/// # Errors
/// When the server lies in a way that leaves no model, or the state cannot be kept. A question that
/// leaves a gap is no error: the answer says from where to tell.
pub fn answer<S: ClientStore>(
    participant: &mut Participant<S>,
    question: &Question,
    run: &[u8],
    client: ClientId,
    records: u64,
) -> Result<Answer, ExchangeError> {
    let (mut open, mut gap) = (None, false);
    for progress in &question.progress {
        if progress.run != *run {
            return Err(ExchangeError::OtherRun("question"));
        }
        open = open.max(Some(progress.open));
        if let Some(Event::Snapshot(snapshot)) = &progress.event {
            let position = participant.position();
            if position.have.is_some_and(|have| snapshot.round <= have) {
                continue;
            }
            // It was started anew since its last answer, and must live through every round.
            if position.every_round && snapshot.round > 0 {
                gap = true;
                continue;
            }
        }
        // Of another copy's message nothing may be learned, least of all a shift.
        if let (Some(Event::Closed(closed)), Some(taken)) = (&progress.event, &question.taken)
            && closed.round + 1 == progress.open
        {
            participant.check_taken(closed.round, taken)?;
        }
        match apply(participant, progress.event.as_ref()) {
            Ok(()) => {}
            Err(ParticipantError::Gap { .. }) => gap = true,
            Err(error) => return Err(error.into()),
        }
    }
    // Closed rounds are only applied: a message for them would be spent for nothing.
    let current = open.is_some_and(|open| participant.replica().round() >= open);
    let message = match current && !gap {
        true => participant.message()?.map(|(_, message)| message),
        false => None,
    };
    if message.is_none() {
        participant.keep_due_state()?;
    }
    Ok(Answer::TakesPart {
        run: Bytes::copy_from_slice(run),
        client,
        records,
        position: Some(participant.position()),
        message,
        averages: None,
        release: None,
    })
}

/// The answer of a client that has not heard all that comes before the first round: notes what the
/// question tells, and makes, or repeats, the message of the open release. `None` once there is
/// nothing left to release: then [`answer`] goes on.
///
/// # Errors
/// When the server lies in a way that leaves no records, or the state cannot be kept.
pub fn answer_opening<S: ClientStore>(
    opening: &mut Opening<S>,
    question: &Question,
    run: &[u8],
    client: ClientId,
    records: u64,
) -> Result<Option<Answer>, ExchangeError> {
    for (number, average) in &question.averages {
        if *number <= opening.averages() {
            opening.heard(*number, average)?;
        }
    }
    if opening.finished() {
        return Ok(None);
    }
    let next = opening.averages();
    let release = match question.release {
        Some(open) if open == next => opening.message(open)?,
        _ => None,
    };
    Ok(Some(Answer::TakesPart {
        run: Bytes::copy_from_slice(run),
        client,
        records,
        position: None,
        message: None,
        averages: Some(next),
        release,
    }))
}

/// What the server tells, done to the participant. What it knows already is passed over.
pub(crate) fn apply<S: ClientStore>(
    participant: &mut Participant<S>,
    event: Option<&Event>,
) -> Result<(), ParticipantError> {
    match event {
        None | Some(Event::Opened(_) | Event::Waiting(_)) => Ok(()),
        Some(Event::Closed(closed)) => {
            participant.closed(closed.round, closed.accepted, &closed.average)
        }
        Some(Event::Snapshot(snapshot)) => {
            let vector = |bytes: &Bytes| {
                from_bytes(bytes).ok_or(ParticipantError::State {
                    round: snapshot.round,
                    reason: "its bytes are no numbers",
                })
            };
            let state = ServerState {
                round: snapshot.round,
                model: vector(&snapshot.model)?,
                shift: vector(&snapshot.shift)?,
                velocity: vector(&snapshot.velocity)?,
                target: Vec::new(),
            };
            participant.jump(state, snapshot.accepted, snapshot.taken)
        }
    }
}
