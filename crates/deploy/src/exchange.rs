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
//! [`Questions`] wraps the [`Coordinator`], [`answer`] the [`Participant`]; both are as pure as
//! those, and everything they guarantee holds: a message is stored before it leaves, a retry sends
//! the same bytes, a round is durable before anybody hears of it, and a client learns by round, and
//! by the digest of the message, whether it was taken. Questions and answers may be lost, repeated and delayed: a
//! question is built from the position of the client's last answer, what a client knows already it
//! passes over, and a client that is behind its last answer (a restored copy) answers with its
//! position alone and is asked again from there.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use soteriafl_core::preliminary::Average;
use soteriafl_core::protocol::{ClientId, Round, ServerState};
use soteriafl_core::wire;

use crate::coordinator::{Coordinator, CoordinatorError, Receipt};
use crate::description::{LONGEST, RUN_ID_LEN};
use crate::net::rpc::{self, progress::Event};
use crate::participant::{Opening, Participant, ParticipantError, Position};
use crate::store::{ClientStore, ServerStore};
use crate::{from_bytes, to_bytes};

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
        participant.settle()?;
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

/// What became of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// The client does not take part.
    Refused,
    /// It has joined, or comes back.
    Joined(ClientId),
    /// It is behind what it had answered before, and is to be asked again.
    Behind(ClientId),
    /// Its message waits for the round to close, or the round is over.
    Message(ClientId, Receipt),
    /// It knows the end.
    Done(ClientId),
}

/// The server of a run over a transport of questions and answers.
pub struct Questions<S> {
    coordinator: Coordinator<S>,
    run: Bytes,
    /// What each client answered last, in this process.
    positions: Vec<Option<Position>>,
    /// How many averages of releases each client knows, as far as it has said.
    averages: Vec<u32>,
    /// Who answers as which client: the transport's name of it, in this process.
    peers: BTreeMap<u64, ClientId>,
    /// The same, by client.
    speakers: Vec<Option<u64>>,
}

impl<S: ServerStore> Questions<S> {
    /// Asks the clients of this run.
    pub fn new(coordinator: Coordinator<S>) -> Self {
        Self {
            run: Bytes::copy_from_slice(&coordinator.description().run_id()),
            positions: vec![None; coordinator.members().len()],
            averages: vec![0; coordinator.members().len()],
            peers: BTreeMap::new(),
            speakers: vec![None; coordinator.members().len()],
            coordinator,
        }
    }

    /// The run.
    pub fn coordinator(&mut self) -> &mut Coordinator<S> {
        &mut self.coordinator
    }

    /// The question to somebody of whom nothing is known.
    pub fn introduce(&self) -> Vec<u8> {
        let question = rpc::Question {
            description: self.coordinator.description().text().to_string(),
            ..rpc::Question::default()
        };
        question.encode_to_vec()
    }

    /// The question to a client: all it needs to make the message of the open round, or to learn
    /// the end. `None` if there is nothing to ask: it waits for others, or knows the end.
    ///
    /// # Errors
    /// When it is none of this run, or something cannot be read.
    pub fn ask(&mut self, client: ClientId) -> Result<Option<Vec<u8>>, ExchangeError> {
        let coordinator = &mut self.coordinator;
        let position = self.positions.get(client as usize).copied().flatten();
        let member = coordinator
            .members()
            .get(client as usize)
            .cloned()
            .flatten();
        let Some(member) = member else {
            return Ok(Some(self.introduce()));
        };
        let release = coordinator.open_release();
        let waits = match release {
            Some(_) => coordinator.has_released(client),
            None => !coordinator.begun(),
        };
        if waits || member.done {
            return Ok(None);
        }
        // A client that has made no message may have nothing in its state but what it was told.
        let known = position.is_some_and(|position| position.pending.is_some());
        let description = match known {
            true => String::new(),
            false => coordinator.description().text().to_string(),
        };
        let mut progress = vec![self.progress(Event::Opened(rpc::Opened {}))];
        if let (Some(position), None) = (position, release) {
            progress.extend(self.since(client, position)?);
        }
        let known = self.averages.get(client as usize).copied().unwrap_or(0);
        let averages = self.coordinator.averages().iter().enumerate();
        let averages = averages.skip(known as usize);
        let question = rpc::Question {
            description,
            progress,
            averages: averages
                .map(|(number, average)| rpc::Average::of(number as u32, average))
                .collect(),
            release,
            taken: self.coordinator.last_taken(client),
        };
        Ok(Some(question.encode_to_vec()))
    }

    fn progress(&self, event: Event) -> rpc::Progress {
        rpc::Progress {
            run: self.run.clone(),
            open: self.coordinator.round(),
            event: Some(event),
        }
    }

    /// What has happened since a client's position.
    fn since(
        &mut self,
        client: ClientId,
        position: Position,
    ) -> Result<Vec<rpc::Progress>, ExchangeError> {
        let up = self.coordinator.catch_up(client, position)?;
        let mut told = Vec::new();
        if let Some(state) = up.snapshot {
            told.push(self.progress(Event::Snapshot(rpc::Snapshot {
                round: state.round,
                accepted: up.accepted,
                taken: up.taken,
                model: to_bytes(&state.model).into(),
                shift: to_bytes(&state.shift).into(),
                velocity: to_bytes(&state.velocity).into(),
            })));
        }
        for round in up.from..up.open {
            let closed = self.coordinator.closed(round)?;
            told.push(self.progress(Event::Closed(rpc::Closed {
                round,
                accepted: closed.accepts(client),
                average: closed.average.clone(),
            })));
        }
        Ok(told)
    }

    /// Which client answers from there, if any has.
    pub fn client_of(&self, peer: u64) -> Option<ClientId> {
        self.peers.get(&peer).copied()
    }

    /// A peer is gone: another one may answer as its client.
    pub fn forget(&mut self, peer: u64) {
        if let Some(client) = self.peers.remove(&peer) {
            self.speakers[client as usize] = None;
        }
    }

    /// Hears the answer of a peer, as the transport knows it; `now` is the time since the process
    /// began. Rounds close as soon as everybody has answered, and by [`Coordinator::tick`].
    ///
    /// # Errors
    /// When it is no answer of this run's clients, or the peer or the client is another one's; the
    /// run goes on.
    pub fn hear(
        &mut self,
        peer: u64,
        answer: Bytes,
        now: Duration,
    ) -> Result<Heard, ExchangeError> {
        let Answer::TakesPart {
            run,
            client,
            records,
            position,
            message,
            averages,
            release,
        } = Answer::decode(answer)?
        else {
            return Ok(Heard::Refused);
        };
        if run != self.run {
            return Err(ExchangeError::OtherRun("answer"));
        }
        self.check_peer(peer, client)?;
        let coordinator = &mut self.coordinator;
        // An answer from before the beginning has no position.
        let begun = coordinator.begun();
        coordinator.join(client, records, now)?;
        self.peers.insert(peer, client);
        self.speakers[client as usize] = Some(peer);
        let all = coordinator.averages().len() as u32;
        match averages {
            Some(known) => {
                self.averages[client as usize] = known.min(all);
                let Some(message) = release else {
                    return Ok(Heard::Behind(client));
                };
                let number = wire::claimed_round(&message).unwrap_or(known);
                coordinator.release(client, number, Some(message), now)?;
                return Ok(Heard::Message(client, Receipt::Received));
            }
            // A client that follows the rounds knows all of them.
            None if begun => self.averages[client as usize] = all,
            None => {}
        }
        let Some(position) = position.filter(|_| begun) else {
            return Ok(Heard::Joined(client));
        };
        // Refused before it is noted, so that a false position asks nothing of the next question.
        coordinator.may_follow(client, position)?;
        let before = self.positions[client as usize].replace(position);
        if coordinator.finished() && position.have == Some(coordinator.round()) {
            coordinator.acknowledge(client)?;
            return Ok(Heard::Done(client));
        }
        match message {
            Some(message) => {
                let (receipt, _) = coordinator.submit(client, message, now)?;
                Ok(Heard::Message(client, receipt))
            }
            None if before.is_none() => Ok(Heard::Joined(client)),
            None => Ok(Heard::Behind(client)),
        }
    }

    /// One peer is one client, and one client is one peer.
    fn check_peer(&self, peer: u64, client: ClientId) -> Result<(), ExchangeError> {
        if let Some(&known) = self.peers.get(&peer)
            && known != client
        {
            return Err(ExchangeError::OtherClient {
                peer,
                known,
                client,
            });
        }
        match self.speakers.get(client as usize).copied().flatten() {
            Some(known) if known != peer => Err(ExchangeError::Twice {
                client,
                known,
                peer,
            }),
            _ => Ok(()),
        }
    }

    /// The clients whose answer the open round, or the end, waits for; before the run has begun,
    /// those that have not joined.
    pub fn missing(&self) -> Vec<ClientId> {
        let coordinator = &self.coordinator;
        let lacks = |client: &ClientId| match (coordinator.begun(), coordinator.finished()) {
            (false, _) => match coordinator.open_release() {
                Some(_) => !coordinator.has_released(*client),
                None => coordinator.members()[*client as usize].is_none(),
            },
            (true, true) => {
                let member = coordinator.members()[*client as usize].as_ref();
                member.is_none_or(|member| !member.done)
            }
            (true, false) => !coordinator.has_answered(*client),
        };
        (0..coordinator.members().len() as ClientId)
            .filter(lacks)
            .collect()
    }

    /// The open round.
    pub fn round(&self) -> Round {
        self.coordinator.round()
    }
}
