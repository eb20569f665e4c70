//! One client of a networked run: follows the server's model, makes at most one message a round, and
//! keeps every message before it leaves. Pure: the network, the clock and the disk are somebody else's.
//!
//! **The model is a function of the averages.** The participant holds a replica of the server and
//! applies each average to it, so the server sends averages and the bits agree.
//!
//! **A message is made once.** It is computed for the first model that this client sees for a round, with
//! secrets drawn at that moment, stored with its round, and only then given out; whoever asks for the
//! same round again gets the stored bytes, whatever model he claims now. No more than one message per
//! round below the run's number of rounds can exist, and that is what was paid for.
//!
//! **After a crash** the state is rebuilt from the last checkpoint: averages come from the server
//! again, the shift follows from the stored messages that the server took, SVRG's snapshot from the
//! public coin. Only SAGA's table depends on secret coins; for it alone the coins of rounds since the
//! checkpoint are kept, and the visits are made again. What noise is made of is never stored.
//!
//! **A noise is for one message.** A round's keys are a hash of fresh bytes of the operating system and of
//! everything that the message depends on: run, round, model, records, and a running digest of all that this
//! process was told, found in its store and said. Copies of a machine whose generators are in the same state
//! can repeat a message, but not a noise on another one.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use sha2::{Digest, Sha256};
use soteriafl_core::compress::{Compressor, DecodeError, Update};
use soteriafl_core::linalg;
use soteriafl_core::protocol::{Client, Round, RoundScratch, Server, ServerError, ServerState};
use soteriafl_core::random::{ClientKeys, EntropyError, SecretKey};
use soteriafl_core::wire;

use super::store::{Checkpoint, ClientStore, StoreError, StoredMessage};
use super::{Hash, digest, records};

/// Rounds between checkpoints: so many that what they write is little beside the messages, within limits. Fewer mean less
/// to live through again after a crash, and less to keep until then.
pub fn checkpoint_every(compressor: &Compressor) -> Round {
    // Model, mean shift and the client's own.
    let state = 12 * compressor.dimension();
    (4 * state / compressor.encoded_len().max(1)).clamp(64, 256) as Round
}

/// Where a message's keys come from: drawn after the round's model has arrived. The digest is one of everything
/// that the message depends on.
pub type Secrets = Box<dyn FnMut(Round, &Hash) -> Result<ClientKeys, EntropyError> + Send>;

/// Fresh keys of the operating system, bound to the message that they are for: two copies of a machine whose
/// generators are in the same state still do not use one noise for two messages.
///
/// # Errors
/// When the operating system has none.
pub fn fresh_secrets(purpose: &Hash) -> Result<ClientKeys, EntropyError> {
    Ok(bind(&SecretKey::from_operating_system()?, purpose))
}

/// `SHA-256(label || bytes || purpose)`, one for each label: neither key tells anything about the other.
fn bind(drawn: &SecretKey, purpose: &Hash) -> ClientKeys {
    let key = |label: &[u8; 16]| {
        let mut hasher = Sha256::new();
        hasher.update(label);
        hasher.update(drawn.expose());
        hasher.update(purpose);
        SecretKey::kept(hasher.finalize().into())
    };
    ClientKeys {
        coins: key(b"soteria coins 1."),
        noise: key(b"soteria noise 1."),
    }
}

/// A running digest of what a client has lived through. It need not be the same after a restart; it must differ
/// wherever the client's state does.
struct HistoryDigest(Hash);

impl HistoryDigest {
    /// From the records, in their order, and from what the store holds.
    fn from(records: &Hash, state: Option<&Checkpoint>, rows: &[StoredMessage]) -> Self {
        let mut history = Self(*records);
        if let Some(Checkpoint { server, client }) = state {
            history.add(b"state", server.round, true, &[&server_bytes(server)]);
            let shift = super::to_bytes(&client.shift);
            history.add(b"own  ", server.round, true, &[&shift, &client.memory]);
        }
        for row in rows {
            let coins = row.coins.as_ref().map_or(&[][..], |coins| coins);
            let parts: [&[u8]; 3] = [&row.model, &row.message, coins];
            history.add(b"row  ", row.round, row.accepted.is_some(), &parts);
            history.add(b"taken", row.round, row.accepted == Some(true), &[]);
        }
        history
    }

    /// `BLAKE3(before || event || round || flag || length and bytes of each part)`.
    fn add(&mut self, event: &[u8; 5], round: Round, flag: bool, parts: &[&[u8]]) {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.0);
        hasher.update(event);
        hasher.update(&round.to_le_bytes());
        hasher.update(&[u8::from(flag)]);
        for part in parts {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        self.0 = hasher.finalize().into();
    }

    /// What the message of a round depends on.
    fn purpose(&self, run: &Hash, round: Round, model: &Hash) -> Hash {
        let mut purpose = Self(self.0);
        purpose.add(b"speak", round, true, &[run, model]);
        purpose.0
    }
}

/// A server's state as bytes: the digests of its vectors.
fn server_bytes(state: &ServerState) -> Vec<u8> {
    let vectors = [&state.model, &state.shift, &state.velocity];
    vectors.iter().flat_map(|values| name(values)).collect()
}

/// A vector's name in this client's state: the BLAKE3 digest of the bytes of its numbers. One is computed for every message,
/// which is why it is not SHA-256.
fn name(values: &[f32]) -> Hash {
    let mut hasher = blake3::Hasher::new();
    super::in_pieces(values, |bytes| {
        hasher.update(bytes);
    });
    hasher.finalize().into()
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
    /// The client's own state is none of this run and these records.
    #[error("the stored state of round {round} cannot be used: {reason}")]
    Stored {
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
    /// The server took messages that this state knows nothing of.
    #[error(
        "the server took at least {taken} messages of this client in this run, and this state knows of {known}: it is an older copy, \
         and its ledger says too little (or the server lies)"
    )]
    Forgotten {
        /// Messages that the server took.
        taken: u32,
        /// Those of them that this state has made.
        known: u32,
    },
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
    /// Digest of the records, in their order.
    trained_on: Hash,
    history: HistoryDigest,
    scratch: RoundScratch,
    /// Messages of an earlier process that have not been lived through again.
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
        let (state, rows) = (store.state(&run)?, store.rows(&run)?);
        let taken = store.taken(&run)?;
        let trained_on = records::trained_on(client.data());
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
            // SAGA remembers by row: of rows in another order it would be a second share of somebody.
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

    /// The server sends the state before a round instead of the averages that lead to it. `accepted` is
    /// the outcome of the round that [`position`](Self::position) named as pending, and `taken` the number of
    /// messages that the server has taken of this client in all. A server that has taken more than this state knows
    /// of has seen messages that its ledger lacks. One that says fewer proves nothing, and the ledger is what counts.
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
        let name = name(&model);
        let purpose = self.history.purpose(&self.run, round, &name);
        let keys = (self.secrets)(round, &purpose)?;
        let coins = self.client.remembers_coins().then(|| *keys.coins.expose());
        self.client.set_keys(keys);
        let message = self.client.message(round, &model, &mut self.scratch);
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
    fn repeat(&mut self, row: &StoredMessage, past: bool) -> Result<Pending, ParticipantError> {
        let round = row.round;
        let model = Arc::clone(self.replica.model());
        let same = name(&model) == row.model;
        if past && !same {
            return Err(ParticipantError::Past(round));
        }
        let pending = self.decode(row)?;
        match row.coins {
            Some(coins) if same => {
                let coins = SecretKey::kept(coins);
                let present = self
                    .client
                    .replay_round(round, &model, &coins, &mut self.scratch);
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

    /// A message's outcome is known: the shift follows if the server took it. What was known `before` counts, for
    /// outcomes do not change.
    fn record_outcome(&mut self, pending: Pending, before: Option<bool>, told: bool) {
        self.taken += u32::from(before.is_none() && told);
        let accepted = before.unwrap_or(told);
        if accepted && pending.present {
            self.client.accepted(&pending.update);
        }
        self.outcome = Some((pending.round, accepted));
    }

    /// Whether the outcome of the message that [`position`](Self::position) names is not known: that of a stored one
    /// may be.
    fn waits_for_an_outcome(&self) -> bool {
        let last = self.rows.values().next_back();
        self.pending.is_some() || last.is_some_and(|row| row.accepted.is_none())
    }

    /// An older copy makes nothing more: its ledger would say too little about that, too.
    fn forgotten(&mut self, taken: u32, known: u32) -> ParticipantError {
        self.failed = true;
        ParticipantError::Forgotten { taken, known }
    }

    /// A checkpoint when one is due; the end when it has come.
    fn keep(&mut self) -> Result<(), ParticipantError> {
        let round = self.replica.round();
        if self.replica.finished() {
            self.store.finish(&self.run, self.outcome)?;
            self.outcome = None;
        } else if round - self.last_checkpoint >= self.checkpoint_every && self.rows.is_empty() {
            let mut client = self.client.save();
            client.memory.splice(..0, self.trained_on);
            let state = Checkpoint {
                server: self.replica.state(),
                client,
            };
            self.store.checkpoint(&self.run, &state, self.outcome)?;
            (self.outcome, self.last_checkpoint) = (None, round);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use soteriafl_core::protocol::ClientState;

    use super::*;

    /// A generator that repeats itself gives one noise per message, and the coins tell nothing about it.
    #[test]
    fn secrets_are_bound_to_what_they_are_for() {
        let drawn = SecretKey::kept([9; 32]);
        let secrets = |purpose| {
            let ClientKeys { coins, noise } = bind(&drawn, &[purpose; 32]);
            [*coins.expose(), *noise.expose()]
        };
        let first = secrets(1);
        assert_eq!(first, secrets(1));
        let [coins, noise] = secrets(2);
        let different = [first[0], first[1], coins, noise, *drawn.expose()];
        for (at, one) in different.iter().enumerate() {
            assert!(different[at + 1..].iter().all(|other| other != one));
        }
    }

    /// Every change in what was lived through, however the parts are cut, is another purpose.
    #[test]
    fn what_was_lived_through_names_the_secrets() {
        let row = |message: &[u8], coins: Option<u8>, accepted| StoredMessage {
            round: 4,
            message: message.to_vec(),
            coins: coins.map(|byte| [byte; 32]),
            model: [3; 32],
            accepted,
        };
        let checkpoint = |value: f32, memory: u8| Checkpoint {
            server: ServerState {
                round: 4,
                model: vec![value; 2],
                shift: vec![0.0; 2],
                velocity: Vec::new(),
            },
            client: ClientState {
                shift: vec![0.0; 2],
                memory: vec![memory],
            },
        };
        let first = HistoryDigest::from(&[1; 32], None, &[]);
        let mut all = vec![
            first.purpose(&[2; 32], 4, &[3; 32]),
            first.purpose(&[0; 32], 4, &[3; 32]),
            first.purpose(&[2; 32], 0, &[3; 32]),
            first.purpose(&[2; 32], 4, &[0; 32]),
        ];
        let purpose = |history: HistoryDigest| history.purpose(&[2; 32], 4, &[3; 32]);
        all.push(purpose(HistoryDigest::from(&[0; 32], None, &[])));
        for (value, memory) in [(0.0, 0), (1.0, 0), (0.0, 1)] {
            let state = checkpoint(value, memory);
            all.push(purpose(HistoryDigest::from(&[1; 32], Some(&state), &[])));
        }
        for row in [
            row(b"a", None, None),
            row(b"b", None, None),
            row(b"a", Some(1), None),
            row(b"a", Some(2), None),
            row(b"a", None, Some(true)),
            row(b"a", None, Some(false)),
        ] {
            all.push(purpose(HistoryDigest::from(&[1; 32], None, &[row])));
        }
        type Parts<'a> = (&'a [u8; 5], u32, bool, &'a [&'a [u8]]);
        let parts: [Parts<'_>; 7] = [
            (b"heard", 3, true, &[b"ab"]),
            (b"heard", 3, false, &[b"ab"]),
            (b"heard", 2, true, &[b"ab"]),
            (b"heard", 3, true, &[b"a", b"b"]),
            (b"heard", 3, true, &[b"ac"]),
            (b"moved", 3, true, &[b"ab"]),
            (b"spoke", 3, true, &[b"ab"]),
        ];
        for (event, round, flag, parts) in parts {
            let mut history = HistoryDigest::from(&[1; 32], None, &[]);
            history.add(event, round, flag, parts);
            all.push(purpose(history));
        }
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
    }
}
