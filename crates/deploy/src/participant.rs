//! One client of a networked run: follows the server's model, makes at most one message a round,
//! and keeps every message before it leaves. Pure: the network, the clock and the disk are somebody
//! else's.
//!
//! **The model is a function of the averages.** The participant holds a replica of the server and
//! applies each average to it, so the server sends averages and the bits agree. Where the way down
//! is compressed, what is told stands for the average, and the replica has the model alone.
//!
//! **A message is made once.** It is computed for the first model that this client sees for a
//! round, with secrets drawn at that moment, stored with its round, and only then given out;
//! whoever asks for the same round again gets the stored bytes, whatever model the server claims
//! now. No more than one message per round below the run's number of rounds can exist, and that is
//! what was paid for.
//!
//! **After a crash** the state is rebuilt from the last checkpoint: averages come from the server
//! again, the shift follows from the stored messages that the server took, SVRG's snapshot from the
//! public coin. Only SAGA's table depends on secret coins; for it alone the coins of rounds since
//! the checkpoint are kept, and the visits are made again. What noise is made of is never stored.
//!
//! **A noise is for one message**: `secrets` says how its keys are bound to it.

mod error;
mod opening;
mod secrets;

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use soteriafl_core::compress::{Compressor, Update};
use soteriafl_core::linalg;
use soteriafl_core::protocol::{Client, Round, RoundScratch, Server, ServerError, ServerState};
use soteriafl_core::random::SecretKey;
use soteriafl_core::wire;

use super::store::{Checkpoint, ClientStore, StoredMessage};
use super::{Hash, digest, records};
pub use error::ParticipantError;
pub use opening::Opening;
use secrets::{HistoryDigest, server_bytes, vector_digest};
pub use secrets::{Secrets, fresh_secrets};

/// Rounds between checkpoints: so many that what they write is little beside the messages, within
/// limits. Fewer mean less to replay after a crash, and less to keep until then.
pub fn checkpoint_every(compressor: &Compressor) -> Round {
    // Model, mean shift and the client's own.
    let state = 12 * compressor.dimension();
    (4 * state / compressor.encoded_len().max(1)).clamp(64, 256) as Round
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
    /// Digest of the records, in their order.
    trained_on: Hash,
    history: HistoryDigest,
    scratch: RoundScratch,
    /// Messages of an earlier process that have not been replayed yet.
    rows: BTreeMap<Round, StoredMessage>,
    pending: Option<Pending>,
    /// What became of the last message, if that is not stored yet.
    outcome: Option<(Round, bool)>,
    /// Messages that the server has said it took, ever since the run began.
    taken: u32,
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
    /// The digest of its records, in their order, where the client's rows do not hold them.
    pub trained_on: Option<Hash>,
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
            trained_on,
            compressor,
            mut replica,
            mut awaits_start,
            secrets,
            checkpoint_every,
        } = parts;
        let mut last_checkpoint = 0;
        let (state, rows) = (store.state(&run)?, store.rows(&run)?);
        let taken = store.taken(&run)?;
        let trained_on = trained_on.unwrap_or_else(|| records::trained_on(client.data()));
        let history = HistoryDigest::from(&trained_on, state.as_ref(), &rows);
        if let Some(Checkpoint {
            server,
            client: mut own,
        }) = state
        {
            let round = server.round;
            let unfit = |reason| ParticipantError::Stored { round, reason };
            replica
                .restore(server)
                .map_err(|_| unfit("it does not fit the run"))?;
            // SAGA remembers by row: of rows in another order it would be a second share of
            // somebody.
            let Some((rows, memory)) = own.memory.split_at_checked(trained_on.len()) else {
                return Err(unfit("it is cut off"));
            };
            if client.remembers_coins() && rows != trained_on {
                return Err(unfit("the order of the records has changed since"));
            }
            own.memory = memory.to_vec();
            if !client.restore(&own) {
                return Err(unfit("it does not fit the records"));
            }
            (awaits_start, last_checkpoint) = (None, round);
        }
        Ok(Self {
            store,
            run,
            client,
            compressor,
            replica,
            awaits_start,
            secrets,
            trained_on,
            history,
            scratch: RoundScratch::default(),
            rows: rows.into_iter().map(|row| (row.round, row)).collect(),
            pending: None,
            outcome: None,
            taken,
            checkpoint_every: checkpoint_every.max(1),
            last_checkpoint,
            failed: false,
        })
    }

    /// How far it is.
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
    /// When it cannot be computed or stored: then it does not exist. After the objective has
    /// failed, and only then, it can be asked for again.
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
                None => self.make(round).inspect_err(|error| {
                    // Nothing was made, so nothing in memory differs from what is stored.
                    self.failed = !matches!(error, ParticipantError::Objective { .. });
                })?,
            });
            self.failed = false;
        }
        let pending = self.pending.as_ref();
        Ok(pending.map(|pending| (pending.round, pending.message.clone())))
    }

    /// The server names the message of this client that it took in `round`, by its BLAKE3 hash.
    ///
    /// # Errors
    /// When this state has made another one: then it is one of two copies, and makes nothing more.
    pub fn check_taken(&mut self, round: Round, name: &[u8]) -> Result<(), ParticipantError> {
        let pending = self.pending.as_ref().filter(|own| own.round == round);
        let stored = self.rows.get(&round).map(|row| &row.message[..]);
        let own = pending.map(|own| &own.message[..]).or(stored);
        match own {
            Some(own) if blake3::hash(own).as_bytes()[..] != *name => {
                self.failed = true;
                Err(ParticipantError::Copied(round))
            }
            _ => Ok(()),
        }
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
        let waits = self
            .pending
            .as_ref()
            .is_some_and(|pending| pending.round == round);
        if accepted && !waits && !self.rows.contains_key(&round) {
            return Err(self.forgotten(self.taken + 1, self.taken));
        }
        self.replica.apply(average).map_err(|error| match error {
            ServerError::Average { round, error } => ParticipantError::Average { round, error },
            other => other.into(),
        })?;
        self.failed = true;
        self.history.add(b"heard", round, accepted, &[average]);
        match self.pending.take() {
            Some(pending) if pending.round == round => self.record_outcome(pending, None, accepted),
            other => {
                self.pending = other;
                match self.rows.remove(&round) {
                    Some(row) => {
                        let pending = self.repeat(&row, true)?;
                        self.record_outcome(pending, row.accepted, accepted);
                    }
                    None => self.client.skip_round(round, self.replica.model()),
                }
            }
        }
        self.replica.close()?;
        if !linalg::all_finite(self.replica.model()) {
            return Err(ParticipantError::Diverged(round));
        }
        self.keep()?;
        self.failed = false;
        Ok(())
    }

    /// The server sends the state before a round instead of the averages that lead to it.
    /// `accepted` is the outcome of the round that [`position`](Self::position) named as pending,
    /// and `taken` the number of messages that the server has taken of this client in all. A server
    /// that has taken more than this state knows of has seen messages that its ledger lacks. One
    /// that says fewer proves nothing, and the ledger is what counts.
    ///
    /// # Errors
    /// When the state is none of this run or lies behind, or the client's own is an older copy.
    pub fn jump(
        &mut self,
        state: ServerState,
        accepted: bool,
        taken: u32,
    ) -> Result<(), ParticipantError> {
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
        // The start skips no round.
        if self.position().every_round && round > 0 {
            return refuse("rounds must be repeated one by one");
        }
        let known = self.taken + u32::from(accepted && self.waits_for_an_outcome());
        if taken > known {
            return Err(self.forgotten(taken, known));
        }
        let told = server_bytes(&state);
        self.replica
            .restore(state)
            .map_err(|_| ParticipantError::State {
                round,
                reason: "it does not fit the run",
            })?;
        self.failed = true;
        self.history.add(b"moved", round, accepted, &[&told]);
        self.awaits_start = None;
        while let Some(entry) = self.rows.first_entry().filter(|entry| *entry.key() < round) {
            let row = entry.remove();
            let pending = self.decode(&row)?;
            self.record_outcome(pending, row.accepted, accepted);
        }
        if let Some(pending) = self.pending.take_if(|pending| pending.round < round) {
            self.record_outcome(pending, None, accepted);
        }
        self.keep()?;
        self.failed = false;
        Ok(())
    }

    /// Makes the message of the open round and stores it.
    fn make(&mut self, round: Round) -> Result<Pending, ParticipantError> {
        let model = Arc::clone(self.replica.model());
        let name = vector_digest(&model);
        let purpose = self.history.purpose(&self.run, round, &name);
        let keys = (self.secrets)(round, &purpose)?;
        let coins = self.client.remembers_coins().then(|| *keys.coins.expose());
        // Before the message changes what the estimator remembers.
        let state = self.due();
        self.client.set_keys(keys);
        let message = self
            .client
            .message(round, &model, &mut self.scratch)
            .map_err(|error| ParticipantError::Objective { round, error })?;
        let present = message.update.is_some();
        let update = message.update.cloned().unwrap_or_default();
        self.history.add(b"spoke", round, present, &[message.bytes]);
        let row = StoredMessage {
            round,
            message: message.bytes.to_vec(),
            coins,
            model: name,
            accepted: None,
        };
        self.store
            .pay(&self.run, &row, self.outcome, state.as_ref())?;
        self.outcome = None;
        if let Some(state) = state {
            self.last_checkpoint = state.server.round;
        }
        Ok(Pending {
            round,
            present,
            update,
            message: row.message.into(),
        })
    }

    /// Replays a round of an earlier process. `past`: the round is known to be over, so
    /// its model must be the one that the message was made for.
    fn repeat(&mut self, row: &StoredMessage, past: bool) -> Result<Pending, ParticipantError> {
        let round = row.round;
        let model = Arc::clone(self.replica.model());
        let same = vector_digest(&model) == row.model;
        if past && !same {
            return Err(ParticipantError::Past(round));
        }
        let pending = self.decode(row)?;
        match row.coins {
            Some(coins) if same => {
                let coins = SecretKey::kept(coins);
                let present = self
                    .client
                    .replay_round(round, &model, &coins, &mut self.scratch)
                    .map_err(|error| ParticipantError::Objective { round, error })?;
                if present != pending.present {
                    return Err(ParticipantError::Repeat(round));
                }
            }
            _ => self.client.skip_round(round, &model),
        }
        Ok(pending)
    }

    /// What the server will read from a stored message.
    fn decode(&self, row: &StoredMessage) -> Result<Pending, ParticipantError> {
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

    /// A message's outcome is known: the shift follows if the server took it. What was known
    /// `before` counts, for outcomes do not change.
    fn record_outcome(&mut self, pending: Pending, before: Option<bool>, told: bool) {
        self.taken += u32::from(before.is_none() && told);
        let accepted = before.unwrap_or(told);
        if accepted && pending.present {
            self.client.accepted(&pending.update);
        }
        self.outcome = Some((pending.round, accepted));
    }

    /// Whether the outcome of the message that [`position`](Self::position) names is not known:
    /// that of a stored one may be.
    fn waits_for_an_outcome(&self) -> bool {
        let last = self.rows.values().next_back();
        self.pending.is_some() || last.is_some_and(|row| row.accepted.is_none())
    }

    /// An older copy makes nothing more: its ledger would say too little about that, too.
    fn forgotten(&mut self, taken: u32, known: u32) -> ParticipantError {
        self.failed = true;
        ParticipantError::Forgotten { taken, known }
    }

    /// The end when it has come.
    fn keep(&mut self) -> Result<(), ParticipantError> {
        if self.replica.finished() {
            self.store.finish(&self.run, self.outcome)?;
            self.outcome = None;
        }
        Ok(())
    }

    /// The state before the open round, if it is time to keep it. It goes with the next message, in
    /// one transaction.
    fn due(&self) -> Option<Checkpoint> {
        let round = self.replica.round();
        let due = round - self.last_checkpoint >= self.checkpoint_every;
        if !due || !self.rows.is_empty() || self.replica.finished() {
            return None;
        }
        let mut client = self.client.save();
        client.memory.splice(..0, self.trained_on);
        Some(Checkpoint {
            server: self.replica.state(),
            client,
        })
    }

    /// Keeps a state that is due although no message is made: for a process that ends here.
    ///
    /// # Errors
    /// When it cannot be kept.
    pub fn keep_due_state(&mut self) -> Result<(), ParticipantError> {
        if self.failed || self.pending.is_some() {
            return Ok(());
        }
        if let Some(state) = self.due() {
            self.failed = true;
            self.store.checkpoint(&self.run, &state, self.outcome)?;
            (self.outcome, self.last_checkpoint) = (None, state.server.round);
            self.failed = false;
        }
        Ok(())
    }
}
