//! One client of a networked run: follows the server's model, makes at most one message a round, and
//! keeps every message before it leaves. Pure: the network, the clock and the disk are somebody else's.
//!
//! **The model is a function of the averages.** The participant holds a replica of the server and
//! applies each average to it, so the server sends averages and the bits agree.
//!
//! **A message is made once.** It is computed for the first model that this client sees for a round, with
//! a secret drawn at that moment, stored with its round, and only then given out; whoever asks for the
//! same round again gets the stored bytes, whatever model he claims now. No more than one message per
//! round below the run's number of rounds can exist, and that is what was paid for.
//!
//! **After a crash** the state is rebuilt from the last checkpoint: averages come from the server
//! again, the shift follows from the stored messages that the server took, SVRG's snapshot from the
//! public coin. Only SAGA's table depends on secret coins; for it alone the secrets of rounds since the
//! checkpoint are kept, and the messages are computed again (and not sent again).

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use sha2::{Digest, Sha256};
use soteria_core::compress::{Compressor, DecodeError, Update};
use soteria_core::protocol::{Client, Round, RoundScratch, Server, ServerError, ServerState};
use soteria_core::random::{EntropyError, SecretKey};
use soteria_core::wire;

use super::store::{Checkpoint, ClientStore, Row, StoreError};
use super::{Hash, digest};

/// Rounds between checkpoints.
pub const CHECKPOINT_EVERY: Round = 64;

/// Where a round's secret comes from: drawn after the round's model, whose digest is given, has arrived.
pub type Secrets = Box<dyn FnMut(Round, &Hash) -> Result<SecretKey, EntropyError> + Send>;

/// A fresh secret of the operating system, bound to what it is for: two copies of a machine whose
/// generators are in the same state still do not use one noise for two models.
///
/// # Errors
/// When the operating system has none.
pub fn fresh_secret(run: &Hash, round: Round, model: &Hash) -> Result<SecretKey, EntropyError> {
    Ok(bind(
        &SecretKey::from_operating_system()?,
        run,
        round,
        model,
    ))
}

/// `SHA-256(bytes || run || round || model)`.
fn bind(drawn: &SecretKey, run: &Hash, round: Round, model: &Hash) -> SecretKey {
    let mut hasher = Sha256::new();
    hasher.update(drawn.expose());
    hasher.update(run);
    hasher.update(round.to_le_bytes());
    hasher.update(model);
    SecretKey::kept(hasher.finalize().into())
}

/// Why a participant stops. Nothing that a server says makes it send more.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ParticipantError {
    /// The state cannot be kept: the process must end and start again.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// No randomness.
    #[error(transparent)]
    Entropy(#[from] EntropyError),
    /// The average is none of this run.
    #[error("the server sent no average of round {round}: {error}")]
    Average {
        /// The round.
        round: Round,
        /// What is wrong.
        error: DecodeError,
    },
    /// A round is missing.
    #[error("the server skipped from round {expected} to {found}")]
    Gap {
        /// The round that should have come.
        expected: Round,
        /// The round that came.
        found: Round,
    },
    /// A state that is none of this run, or lies behind.
    #[error("the server sent no usable state of round {round}: {reason}")]
    State {
        /// Its round.
        round: Round,
        /// What is wrong.
        reason: &'static str,
    },
    /// The model left the range of numbers.
    #[error(
        "after round {0} the model is no longer finite: the run has diverged, or the server lies"
    )]
    Diverged(Round),
    /// The server tells another story than before.
    #[error(
        "round {0} had another model when this client sent its message: the server has lost or changed its past"
    )]
    Past(Round),
    /// A stored message cannot be repeated.
    #[error("the message of round {0} cannot be computed again from the stored state")]
    Repeat(Round),
    /// The core refuses.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// Something failed before: what is in memory may not be what is stored.
    #[error("this client has failed and must be started again")]
    Failed,
}

/// What a participant tells a server to be brought up to date.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The round whose model it has; `None` if it has none, not even the start.
    pub have: Option<Round>,
    /// The round whose outcome it waits for.
    pub pending: Option<Round>,
    /// Whether it needs every round, because it must repeat some.
    pub every_round: bool,
}

/// A message that waits for its outcome.
struct Pending {
    round: Round,
    present: bool,
    update: Update,
    message: Bytes,
}

/// One client of a run.
pub struct Participant<S> {
    store: S,
    run: Hash,
    client: Client,
    compressor: Compressor,
    replica: Server,
    /// Digest that the start must have, until it is there.
    awaits_start: Option<Hash>,
    secrets: Secrets,
    scratch: RoundScratch,
    average: Vec<f32>,
    /// Messages of an earlier process that have not been lived through again.
    rows: BTreeMap<Round, Row>,
    pending: Option<Pending>,
    /// What became of the last message, if that is not stored yet.
    outcome: Option<(Round, bool)>,
    checkpoint_every: Round,
    last_checkpoint: Round,
    failed: bool,
}

/// What a participant is made of.
pub struct Parts<S> {
    /// Its journal, in which the run has begun.
    pub store: S,
    /// The run's name.
    pub run: Hash,
    /// The client, as at the start of the run.
    pub client: Client,
    /// The compressor of all clients.
    pub compressor: Compressor,
    /// A server at the start of the run, to follow the real one.
    pub replica: Server,
    /// Digest that the start must have, if the replica does not have it yet.
    pub awaits_start: Option<Hash>,
    /// Where secrets come from.
    pub secrets: Secrets,
    /// Rounds between checkpoints.
    pub checkpoint_every: Round,
}

impl<S: ClientStore> Participant<S> {
    /// Goes on where the store ends.
    ///
    /// # Errors
    /// When the store cannot be read or belongs to something else.
    pub fn new(parts: Parts<S>) -> Result<Self, ParticipantError> {
        let Parts {
            mut store,
            run,
            mut client,
            compressor,
            mut replica,
            mut awaits_start,
            secrets,
            checkpoint_every,
        } = parts;
        let mut last_checkpoint = 0;
        if let Some(Checkpoint {
            server,
            client: own,
        }) = store.state(&run)?
        {
            let round = server.round;
            let state = |reason| ParticipantError::State { round, reason };
            replica
                .restore(server)
                .map_err(|_| state("the stored one does not fit the run"))?;
            if !client.restore(&own) {
                return Err(state("the stored one does not fit the records"));
            }
            (awaits_start, last_checkpoint) = (None, round);
        }
        let rows = store.rows(&run)?;
        Ok(Self {
            store,
            run,
            client,
            compressor,
            replica,
            awaits_start,
            secrets,
            scratch: RoundScratch::default(),
            average: Vec::new(),
            rows: rows.into_iter().map(|row| (row.round, row)).collect(),
            pending: None,
            outcome: None,
            checkpoint_every: checkpoint_every.max(1),
            last_checkpoint,
            failed: false,
        })
    }

    /// Where it stands.
    pub fn position(&self) -> Position {
        let waiting = self.pending.as_ref().map(|pending| pending.round);
        Position {
            have: self.awaits_start.is_none().then(|| self.replica.round()),
            pending: waiting.or_else(|| self.rows.keys().next_back().copied()),
            every_round: self.client.remembers_coins() && !self.rows.is_empty(),
        }
    }

    /// The model, the round, and whether the run is over.
    pub fn replica(&self) -> &Server {
        &self.replica
    }

    /// The client's own shift.
    pub fn shift(&self) -> &[f32] {
        self.client.shift()
    }

    /// The store.
    pub fn store(&mut self) -> &mut S {
        &mut self.store
    }

    /// The message of the open round, made now or earlier; `None` if there is nothing to send.
    ///
    /// # Errors
    /// When it cannot be stored: then it does not exist.
    pub fn message(&mut self) -> Result<Option<(Round, Bytes)>, ParticipantError> {
        if self.failed {
            return Err(ParticipantError::Failed);
        }
        if self.awaits_start.is_some() || self.replica.finished() {
            return Ok(None);
        }
        let round = self.replica.round();
        if self
            .pending
            .as_ref()
            .is_none_or(|pending| pending.round != round)
        {
            self.failed = true;
            self.pending = Some(match self.rows.remove(&round) {
                Some(row) => self.repeat(&row, false)?,
                None => self.make(round)?,
            });
            self.failed = false;
        }
        let pending = self.pending.as_ref();
        Ok(pending.map(|pending| (pending.round, pending.message.clone())))
    }

    /// The server closed `round`. Rounds that are known already are passed over.
    ///
    /// # Errors
    /// When the server lies in a way that leaves no model, or the state cannot be kept.
    pub fn closed(
        &mut self,
        round: Round,
        accepted: bool,
        average: &[u8],
    ) -> Result<(), ParticipantError> {
        if self.failed {
            return Err(ParticipantError::Failed);
        }
        let expected = self.replica.round();
        if round < expected {
            return Ok(());
        }
        if round > expected || self.awaits_start.is_some() {
            return Err(ParticipantError::Gap {
                expected,
                found: round,
            });
        }
        if self.replica.finished() {
            return Err(ServerError::Finished(expected).into());
        }
        wire::decode_average(
            self.compressor.dimension(),
            round,
            average,
            &mut self.average,
        )
        .map_err(|error| ParticipantError::Average { round, error })?;
        self.failed = true;
        match self.pending.take() {
            Some(pending) if pending.round == round => self.settle(pending, accepted),
            other => {
                self.pending = other;
                match self.rows.remove(&round) {
                    Some(row) => {
                        let pending = self.repeat(&row, true)?;
                        // What was known before counts: outcomes do not change.
                        self.settle(pending, row.accepted.unwrap_or(accepted));
                    }
                    None => self.client.sit_out(round, self.replica.model()),
                }
            }
        }
        self.replica.apply(&self.average)?;
        if !self.replica.model().iter().all(|value| value.is_finite()) {
            return Err(ParticipantError::Diverged(round));
        }
        self.keep()?;
        self.failed = false;
        Ok(())
    }

    /// The server sends the state before a round instead of the averages that lead to it. `accepted` is
    /// the outcome of the round that [`position`](Self::position) named as pending.
    ///
    /// # Errors
    /// When the state is none of this run or lies behind.
    pub fn jump(&mut self, state: ServerState, accepted: bool) -> Result<(), ParticipantError> {
        if self.failed {
            return Err(ParticipantError::Failed);
        }
        let round = state.round;
        let refuse = |reason| Err(ParticipantError::State { round, reason });
        match &self.awaits_start {
            Some(start) if round == 0 && digest(&state.model) != *start => {
                return refuse("it is not the start that was agreed on");
            }
            None if round <= self.replica.round() => return refuse("it lies behind"),
            _ => {}
        }
        if self.position().every_round {
            return refuse("rounds must be repeated one by one");
        }
        self.replica
            .restore(state)
            .map_err(|_| ParticipantError::State {
                round,
                reason: "it does not fit the run",
            })?;
        self.failed = true;
        self.awaits_start = None;
        let mut settled: Vec<(Pending, bool)> = Vec::new();
        while let Some(entry) = self.rows.first_entry().filter(|entry| *entry.key() < round) {
            let row = entry.remove();
            let known = row.accepted.unwrap_or(accepted);
            settled.push((self.decode(&row)?, known));
        }
        if let Some(pending) = self.pending.take_if(|pending| pending.round < round) {
            settled.push((pending, accepted));
        }
        for (pending, accepted) in settled {
            self.settle(pending, accepted);
        }
        self.keep()?;
        self.failed = false;
        Ok(())
    }

    /// Makes the message of the open round and stores it.
    fn make(&mut self, round: Round) -> Result<Pending, ParticipantError> {
        let model = Arc::clone(self.replica.model());
        let name = digest(&model);
        let key = (self.secrets)(round, &name)?;
        let kept = self.client.remembers_coins().then(|| *key.expose());
        let (mut message, mut update) = (Vec::new(), Update::default());
        self.client.renew(key);
        let present =
            self.client
                .message(round, &model, &mut self.scratch, &mut message, &mut update);
        let row = Row {
            round,
            message,
            key: kept,
            model: name,
            accepted: None,
        };
        self.store.pay(&self.run, &row, self.outcome)?;
        self.outcome = None;
        Ok(Pending {
            round,
            present,
            update,
            message: row.message.into(),
        })
    }

    /// Lives through a round of an earlier process again. `past`: the round is known to be over, so its
    /// model must be the one that the message was made for.
    fn repeat(&mut self, row: &Row, past: bool) -> Result<Pending, ParticipantError> {
        let round = row.round;
        let model = Arc::clone(self.replica.model());
        let same = digest(&model) == row.model;
        if past && !same {
            return Err(ParticipantError::Past(round));
        }
        match row.key {
            Some(key) if same => {
                let (mut message, mut update) = (Vec::new(), Update::default());
                self.client.renew(SecretKey::kept(key));
                self.client
                    .message(round, &model, &mut self.scratch, &mut message, &mut update);
                if message != row.message {
                    return Err(ParticipantError::Repeat(round));
                }
            }
            _ => self.client.sit_out(round, &model),
        }
        self.decode(row)
    }

    /// What the server will read from a stored message.
    fn decode(&self, row: &Row) -> Result<Pending, ParticipantError> {
        let mut update = Update::default();
        let present = wire::decode(&self.compressor, row.round, &row.message, &mut update)
            .map_err(|_| ParticipantError::Repeat(row.round))?;
        Ok(Pending {
            round: row.round,
            present,
            update,
            message: row.message.clone().into(),
        })
    }

    /// A message's outcome is known: the shift follows if the server took it.
    fn settle(&mut self, pending: Pending, accepted: bool) {
        if accepted && pending.present {
            self.client.accepted(&pending.update);
        }
        self.outcome = Some((pending.round, accepted));
    }

    /// A checkpoint when one is due; the end when it has come.
    fn keep(&mut self) -> Result<(), ParticipantError> {
        let round = self.replica.round();
        if self.replica.finished() {
            self.store.finish(&self.run, self.outcome)?;
            self.outcome = None;
        } else if round - self.last_checkpoint >= self.checkpoint_every && self.rows.is_empty() {
            let state = Checkpoint {
                server: self.replica.state(),
                client: self.client.save(),
            };
            self.store.checkpoint(&self.run, &state, self.outcome)?;
            (self.outcome, self.last_checkpoint) = (None, round);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A generator that repeats itself gives one secret per run, round and model, and the same for the same.
    #[test]
    fn secrets_are_bound_to_what_they_are_for() {
        let drawn = SecretKey::kept([9; 32]);
        let secret = |run, round, model| *bind(&drawn, &[run; 32], round, &[model; 32]).expose();
        let first = secret(1, 2, 3);
        assert_eq!(first, secret(1, 2, 3));
        for other in [
            secret(0, 2, 3),
            secret(1, 0, 3),
            secret(1, 2, 0),
            *drawn.expose(),
        ] {
            assert_ne!(other, first);
        }
    }
}
