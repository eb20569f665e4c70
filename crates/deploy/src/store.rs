//! What outlives a process: an append-only journal on either side.
//!
//! Every method that changes something is one transaction: after a crash it has happened or it has
//! not. Two implementations: [`sqlite`](super::sqlite) for use, and `memory` for tests (feature
//! `test-util`), whose changes fail at a chosen step.
//!
//! The server appends one closed round at a time (accepted set and averaged message, `O(n/8)` bytes
//! and the average in its cheapest form) and now and then the dense state. The client appends one
//! row a round, *before* its message leaves.

use bytes::Bytes;
use soteriafl_core::preliminary::Average;
use soteriafl_core::protocol::{ClientId, ClientState, Round, ServerState};

use super::Hash;
use super::budget::Priced;

/// Why something is not stored. After one of these a process must end: what it knows is no longer
/// what the store knows.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Another process has the state.
    #[error("{0} is in use by another process")]
    Locked(String),
    /// There is none where one was to be read.
    #[error("{0} holds no client's state")]
    Missing(String),
    /// The one that is there was never finished, so that no run can be in it.
    #[error(
        "{0} holds a client's state that was begun and not finished: no run is in it yet, and `soteria join` can use it"
    )]
    Unfinished(String),
    /// The medium refuses.
    #[error("{path}: {reason}")]
    Failed {
        /// The file.
        path: String,
        /// Why.
        reason: String,
    },
    /// What an earlier or later version of the program wrote.
    #[error(
        "{path}: a state of version {found}, where this program knows {known} only; it is left as it is, and what its ledger says stays spent: go on with the program that wrote it, or begin with another --state"
    )]
    Version {
        /// The file.
        path: String,
        /// Its version.
        found: i64,
        /// The one that can be read.
        known: i64,
    },
    /// What is read makes no sense.
    #[error("{path}: not a state of this program ({what})")]
    Corrupt {
        /// The file.
        path: String,
        /// What is wrong.
        what: String,
    },
}

/// A round that is over.
#[derive(Clone, Debug, PartialEq)]
pub struct ClosedRound {
    /// Which.
    pub round: Round,
    /// One bit per client, lowest first: whose message is in the average.
    pub accepted: Vec<u8>,
    /// The averaged message, or what is told in its place where the way down is compressed, as it
    /// goes over the wire; shared by everybody who gets it.
    pub average: Bytes,
    /// The average itself where something else goes over the wire, for the server to start again
    /// from; empty otherwise, and before the latest dense state.
    pub uncompressed: Bytes,
    /// Values that the accepted messages carried.
    pub values: u64,
    /// Bytes of the messages that arrived in time.
    pub uplink: u64,
}

/// Whether a set of clients, one bit each and the lowest first, has this one.
pub fn accepts(accepted: &[u8], client: ClientId) -> bool {
    let byte = accepted.get(client as usize / 8).copied();
    byte.unwrap_or(0) >> (client % 8) & 1 == 1
}

/// Adds a set of clients to the numbers of their messages that were taken.
pub fn count_taken(taken: &mut Vec<u32>, accepted: &[u8]) {
    if let Some(last) = accepted.iter().rposition(|byte| *byte != 0) {
        let most = 8 * last + accepted[last].ilog2() as usize + 1;
        taken.resize(taken.len().max(most), 0);
    }
    for (client, taken) in taken.iter_mut().enumerate() {
        *taken += u32::from(accepts(accepted, client as ClientId));
    }
}

impl ClosedRound {
    /// Whether the client's message is in the average.
    pub fn accepts(&self, client: ClientId) -> bool {
        accepts(&self.accepted, client)
    }

    /// The average itself.
    pub fn averaged(&self) -> &[u8] {
        match self.uncompressed.is_empty() {
            true => &self.average,
            false => &self.uncompressed,
        }
    }

    /// How many messages are in the average.
    pub fn taken(&self) -> u32 {
        self.accepted.iter().map(|byte| byte.count_ones()).sum()
    }
}

/// A client as the server knows it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Member {
    /// Its records.
    pub records: u64,
    /// Whether it has acknowledged the end.
    pub done: bool,
    /// A bound on the norm of its shift, where messages are judged by it.
    pub radius: f64,
}

/// Sums over closed rounds, as in `rounds.csv`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// Values sent up.
    pub values: u64,
    /// Bytes sent up.
    pub uplink: u64,
    /// Bytes of averages, to every client.
    pub downlink: u64,
}

/// A row of the run's table: measured on the server's own test set, if it has one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Evaluation {
    /// Rounds done.
    pub round: Round,
    /// Traffic up to here.
    pub sums: Sums,
    /// Messages in the last round.
    pub taken: u32,
    /// How long the last round was open.
    pub seconds: f64,
    /// Share of test records classified correctly.
    pub accuracy: Option<f64>,
    /// Mean loss over test records.
    pub loss: Option<f64>,
}

/// What the server finds when it starts, beyond rounds and states.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServerRecord {
    /// The run's description; `None` before the first start.
    pub description: Option<String>,
    /// Clients that have joined.
    pub members: Vec<(ClientId, Member)>,
    /// Averages of the releases before the first round that are over, in order.
    pub released: Vec<Average>,
    /// Bytes of every closed round's average, in order.
    pub averages: Vec<u32>,
    /// Sums over closed rounds: values and bytes up.
    pub traffic: (u64, u64),
    /// Messages of each client that were taken; those beyond the end have none.
    pub taken: Vec<u32>,
    /// Rounds before which a dense state is kept, ascending.
    pub snapshots: Vec<Round>,
    /// Measurements, ascending.
    pub evaluations: Vec<Evaluation>,
}

/// The server's journal.
pub trait ServerStore: Send {
    /// Everything but rounds and states.
    ///
    /// # Errors
    /// When it cannot be read.
    fn load(&mut self) -> Result<ServerRecord, StoreError>;

    /// Notes the run, with the state before its first round.
    ///
    /// # Errors
    /// When it cannot be written.
    fn begin(&mut self, description: &str, start: &ServerState) -> Result<(), StoreError>;

    /// Notes a client.
    ///
    /// # Errors
    /// When it cannot be written.
    fn join(&mut self, client: ClientId, records: u64) -> Result<(), StoreError>;

    /// Notes the average of the next release before the first round.
    ///
    /// # Errors
    /// When it cannot be written.
    fn released(&mut self, number: u32, average: &Average) -> Result<(), StoreError>;

    /// Notes a closed round, what it did to the clients' radii and, if given, the state after it.
    ///
    /// # Errors
    /// When it cannot be written.
    fn close(
        &mut self,
        round: &ClosedRound,
        radii: &[(ClientId, f64)],
        state: Option<&ServerState>,
    ) -> Result<(), StoreError>;

    /// Notes that a client knows the end.
    ///
    /// # Errors
    /// When it cannot be written.
    fn acknowledge(&mut self, client: ClientId) -> Result<(), StoreError>;

    /// Notes a measurement.
    ///
    /// # Errors
    /// When it cannot be written.
    fn evaluated(&mut self, evaluation: Evaluation) -> Result<(), StoreError>;

    /// A closed round.
    ///
    /// # Errors
    /// When it cannot be read or is not there.
    fn round(&mut self, round: Round) -> Result<ClosedRound, StoreError>;

    /// The dense state before `round`, one of [`ServerRecord::snapshots`].
    ///
    /// # Errors
    /// When it cannot be read or is not there.
    fn snapshot(&mut self, round: Round) -> Result<ServerState, StoreError>;
}

/// A run as a client's ledger knows it.
#[derive(Clone, Debug, PartialEq)]
pub struct LedgerRun {
    /// The run's name.
    pub hash: Hash,
    /// Its description.
    pub description: String,
    /// Which client this is in it.
    pub client: ClientId,
    /// Digest of the records.
    pub data: Hash,
    /// Which part of them, of how many; `None` for all.
    pub part: Option<(usize, usize)>,
    /// What every message costs.
    pub price: Priced,
    /// Messages that were made, hence paid; releases before the first round are messages, too.
    pub messages: u64,
    /// Whether it came to its end.
    pub finished: bool,
}

/// One message: made, paid, and kept.
#[derive(Clone, PartialEq)]
pub struct StoredMessage {
    /// The round it is for.
    pub round: Round,
    /// The very bytes that leave; empty once nobody can ask for them again.
    pub message: Vec<u8>,
    /// The key of the round's coins, where the estimator's memory cannot be rebuilt without it.
    /// Noise has a key of its own, which is never stored.
    pub coins: Option<[u8; 32]>,
    /// Digest of the model it was made for.
    pub model: Hash,
    /// Whether the server took it; `None` while that is not known.
    pub accepted: Option<bool>,
}

/// A release before the first round: its message made, paid, and kept, and what came of it.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredRelease {
    /// The very bytes that leave; empty once the average is known.
    pub message: Vec<u8>,
    /// What the server said that all clients released. The first word stands: records are mapped by
    /// it for the whole run.
    pub average: Option<Average>,
}

/// A client's state before a round.
#[derive(Clone, PartialEq)]
pub struct Checkpoint {
    /// The server's, as this client follows it.
    pub server: ServerState,
    /// Its own.
    pub client: ClientState,
}

/// A client's journal and ledger.
pub trait ClientStore: Send {
    /// Every run that was ever joined with this state.
    ///
    /// # Errors
    /// When it cannot be read.
    fn runs(&mut self) -> Result<Vec<LedgerRun>, StoreError>;

    /// The shape that a source was tried with, if it was.
    ///
    /// # Errors
    /// When it cannot be read.
    fn shape(&mut self, source: &str) -> Result<Option<String>, StoreError>;

    /// Notes the shape that a source is about to be tried with. Must be durable when this returns.
    ///
    /// # Errors
    /// When it cannot be written.
    fn keep_shape(&mut self, source: &str, shape: &str) -> Result<(), StoreError>;

    /// Notes a run that the server has taken this client into, before its first message. The same
    /// run without a message is replaced: nothing was spent, so nothing is bound.
    ///
    /// # Errors
    /// When it cannot be written, or there are messages of this run.
    fn begin(&mut self, run: &LedgerRun) -> Result<(), StoreError>;

    /// Notes the message of the next release before the first round. Must be durable when this
    /// returns.
    ///
    /// # Errors
    /// When it cannot be written, or there is one of this number already.
    fn pay_release(&mut self, run: &Hash, number: u32, message: &[u8]) -> Result<(), StoreError>;

    /// Notes the average of a release whose message was made; the bytes of the message are erased.
    ///
    /// # Errors
    /// When it cannot be written.
    fn hear_release(
        &mut self,
        run: &Hash,
        number: u32,
        average: &Average,
    ) -> Result<(), StoreError>;

    /// The releases of a run, in order.
    ///
    /// # Errors
    /// When they cannot be read.
    fn releases(&mut self, run: &Hash) -> Result<Vec<StoredRelease>, StoreError>;

    /// Notes a message, what became of the one before, and, if given, the state before its round,
    /// as [`checkpoint`](Self::checkpoint) does: all or nothing. Must be durable when this returns.
    ///
    /// # Errors
    /// When it cannot be written, or there is a message for this round already.
    fn pay(
        &mut self,
        run: &Hash,
        row: &StoredMessage,
        before: Option<(Round, bool)>,
        state: Option<&Checkpoint>,
    ) -> Result<(), StoreError>;

    /// Notes the state before a round. Coins and bytes of earlier rounds are erased.
    ///
    /// # Errors
    /// When it cannot be written.
    fn checkpoint(
        &mut self,
        run: &Hash,
        state: &Checkpoint,
        before: Option<(Round, bool)>,
    ) -> Result<(), StoreError>;

    /// Notes that the run is over. All coins, bytes and states are erased; the ledger stays.
    ///
    /// # Errors
    /// When it cannot be written.
    fn finish(&mut self, run: &Hash, before: Option<(Round, bool)>) -> Result<(), StoreError>;

    /// The latest state.
    ///
    /// # Errors
    /// When it cannot be read.
    fn state(&mut self, run: &Hash) -> Result<Option<Checkpoint>, StoreError>;

    /// How many messages of a run the server is known to have taken.
    ///
    /// # Errors
    /// When it cannot be read.
    fn taken(&mut self, run: &Hash) -> Result<u32, StoreError>;

    /// Rows from the latest state on, ascending; without a state, all.
    ///
    /// # Errors
    /// When it cannot be read.
    fn rows(&mut self, run: &Hash) -> Result<Vec<StoredMessage>, StoreError>;
}
