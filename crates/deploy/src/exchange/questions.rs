//! The server's side of questions and answers.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use soteriafl_core::protocol::{ClientId, Round};
use soteriafl_core::wire;

use super::{Answer, ExchangeError};
use crate::coordinator::{Coordinator, Receipt};
use crate::net::rpc::{self, progress::Event};
use crate::participant::Position;
use crate::store::ServerStore;
use crate::to_bytes;

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
