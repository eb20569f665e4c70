//! The server of a networked run: who has joined, what has arrived, when a round closes. Pure:
//! messages and the time come in, closed rounds go out; the disk is behind [`ServerStore`].
//!
//! A round is open until every client has answered, or until its deadline has passed and enough
//! have. Then messages are added in ascending order of clients, and the round (who is in it, the
//! averaged message) is committed in one transaction *before* any client is told of it. Messages of
//! the open round live in memory only: if the process dies, clients send the same bytes again.
//!
//! This file has the coordinator's state and what can be asked of it. What changes it is in
//! `members` (who takes part), `releases` (what comes before the first round), `rounds` (the open
//! round), `history` (closed ones), `catch_up` (clients that are behind) and `resume` (after a
//! restart).
//!
//! Cost: `O(k)` per message, twice (checked when it arrives, added when the round closes, so that
//! what waits is the bytes alone); `O(d)` per round; `O(1)` per client and round beyond its
//! message.

mod catch_up;
mod error;
mod history;
mod members;
mod releases;
mod resume;
mod rounds;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use soteriafl_core::compress::Update;
use soteriafl_core::preliminary::Average;
use soteriafl_core::protocol::{ClientId, ClientPlan, Round, Server, ServerState};

use super::calibration_cache::CalibrationCache;
use super::description::Description;
use super::message_bounds::Rule;
use super::store::{ClosedRound, Evaluation, Member, ServerStore, Sums};
pub use error::CoordinatorError;
use soteriafl::accounting::Privacy;
use soteriafl::problem::ProblemError;
use soteriafl::run;

/// Rounds between dense states.
pub const SNAPSHOT_EVERY: Round = 64;

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receipt {
    /// It waits for its round to close. Nothing is promised.
    Received,
    /// Its round is over.
    Closed {
        /// Whether the client's message is in it.
        accepted: bool,
    },
}

/// How to bring a client up to date.
#[derive(Clone, Debug, PartialEq)]
pub struct CatchUp {
    /// A state to jump to first.
    pub snapshot: Option<Arc<ServerState>>,
    /// The round from which averages follow.
    pub from: Round,
    /// Whether the message that the client has pending was taken.
    pub accepted: bool,
    /// How many messages of the client were taken, in all rounds that are over.
    pub taken: u32,
    /// The open round.
    pub open: Round,
}

/// A closed round whose model is still to be measured on the test set.
#[derive(Clone, Debug)]
pub struct Unmeasured {
    /// What is known without measuring.
    pub evaluation: Evaluation,
    /// The model to measure.
    pub model: Arc<Vec<f32>>,
}

/// The server of a run.
pub struct Coordinator<S> {
    store: S,
    description: Description,
    plan: ClientPlan,
    start: Vec<f32>,
    members: Vec<Option<Member>>,
    joined: usize,
    /// Numbers of a record as it is when nothing was released.
    columns: usize,
    /// What is released before the first round, while that goes on.
    releases: Option<releases::Releases>,
    averages: Vec<Arc<Average>>,
    /// Their traffic.
    released: Sums,
    /// Digests of the messages in the averages, as far as this process has seen them.
    release_names: Vec<Vec<blake3::Hash>>,
    running: Option<Running>,
    /// Bytes of all averages up to each closed round's.
    bytes: Vec<u64>,
    /// Closed rounds after which clients move their SVRG snapshot, ascending.
    coins: Vec<Round>,
    /// Accepted sets that were read from the store.
    outcomes: BTreeMap<Round, Vec<u8>>,
    snapshots: Vec<Round>,
    recent: VecDeque<Arc<ClosedRound>>,
    calibrations: Arc<CalibrationCache>,
    /// Whether the caller computes noise: see [`calibrated_by_caller`](Self::calibrated_by_caller).
    calibrated_by_caller: bool,
    /// Whether all clients have joined and the noise is still to be computed.
    uncalibrated: bool,
    /// Messages of each client that were taken.
    taken: Vec<u32>,
    /// Rounds that closed without an answer of each client, and whether the last one did.
    missed: Vec<(u32, bool)>,
    /// The dense state that was read last.
    dense: Option<Arc<ServerState>>,
    sums: Sums,
    evaluations: Vec<Evaluation>,
    unmeasured: Vec<Unmeasured>,
    snapshot_every: Round,
    last_seconds: f64,
    failed: bool,
}

/// What exists once all clients have joined.
struct Running {
    server: Server,
    rules: Vec<Rule>,
    privacy: Option<Privacy>,
    open: Vec<Option<Bytes>>,
    /// Digests of the messages of the open round, and of the one before as far as this process has
    /// seen it.
    names: Vec<Option<blake3::Hash>>,
    last_names: Vec<Option<blake3::Hash>>,
    received: usize,
    opened: Duration,
    update: Update,
}

impl<S: ServerStore> Coordinator<S> {
    /// Begins the run, or goes on where the store ends. `start` is the model before round 0.
    ///
    /// # Errors
    /// When the store cannot be used or holds another run.
    pub fn new(
        mut store: S,
        description: Description,
        start: Vec<f32>,
        snapshot_every: Round,
        now: Duration,
    ) -> Result<Self, CoordinatorError> {
        let record = store.load()?;
        let objective = description.model.objective();
        let plan = run::plan_for(&description.resolved, &objective)?;
        let features = description.features();
        let features = features.map_err(|error| ProblemError::Model(error.to_string()))?;
        let clients = description.resolved.clients;
        let mut coordinator = Self {
            store,
            plan,
            start,
            members: vec![None; clients],
            joined: 0,
            columns: features.outputs(),
            releases: None,
            averages: Vec::new(),
            released: Sums::default(),
            release_names: Vec::new(),
            running: None,
            bytes: Vec::new(),
            coins: Vec::new(),
            outcomes: BTreeMap::new(),
            snapshots: vec![0],
            recent: VecDeque::new(),
            calibrations: Arc::new(CalibrationCache::new(
                description.resolved.specification(),
                description.resolved.most_records,
                description.dimension(),
            )),
            calibrated_by_caller: false,
            uncalibrated: false,
            taken: vec![0; clients],
            missed: vec![(0, false); clients],
            dense: None,
            sums: Sums::default(),
            evaluations: Vec::new(),
            unmeasured: Vec::new(),
            snapshot_every: snapshot_every.max(1),
            description,
            last_seconds: 0.0,
            failed: false,
        };
        match record.description {
            None => {
                let state = coordinator.server(vec![0.0; clients]).state();
                let text = coordinator.description.text();
                coordinator.store.begin(text, &state)?;
            }
            Some(_) => coordinator.resume(record, now)?,
        }
        Ok(coordinator)
    }

    /// The same, but what takes the accountant's time is left to the caller: [`join`](Self::join)
    /// refuses numbers of records whose noise is not among [`calibrations`](Self::calibrations)
    /// yet, and after the last one the run waits for [`begin`](Self::begin) with what
    /// [`to_calibrate`](Self::to_calibrate) asks for.
    #[must_use]
    pub fn calibrated_by_caller(self) -> Self {
        Self {
            calibrated_by_caller: true,
            ..self
        }
    }

    /// Numbers of records and their noise, as far as they are known.
    pub fn calibrations(&self) -> &Arc<CalibrationCache> {
        &self.calibrations
    }

    /// The run's description.
    pub fn description(&self) -> &Description {
        &self.description
    }

    /// Who has joined.
    pub fn members(&self) -> &[Option<Member>] {
        &self.members
    }

    /// How many have joined.
    pub fn joined(&self) -> usize {
        self.joined
    }

    /// Messages of each client that were taken, over all rounds.
    pub fn taken(&self) -> &[u32] {
        &self.taken
    }

    /// How many rounds closed without each client, and whether the last one did. A client that
    /// answered that it sits a round out has not missed it. Where clients may do that, the journal
    /// cannot tell the two apart, and the count begins with the process.
    pub fn missed(&self) -> &[(u32, bool)] {
        &self.missed
    }

    /// The last round that closed, if it is at hand.
    pub fn latest(&self) -> Option<&Arc<ClosedRound>> {
        self.recent.back()
    }

    /// Whether all clients have joined, everything before the first round is over, and the run has
    /// begun.
    pub fn begun(&self) -> bool {
        self.running.is_some()
    }

    /// The open round; the number of rounds at the end.
    pub fn round(&self) -> Round {
        self.bytes.len() as Round
    }

    /// How many messages a client can have made: one for the open round, too, as soon as there is
    /// one.
    pub fn messages(&self) -> Round {
        let open = Round::from(self.begun());
        (self.round() + open).min(self.description.resolved.rounds)
    }

    /// Whether all rounds are done.
    pub fn finished(&self) -> bool {
        self.round() >= self.description.resolved.rounds
    }

    /// Whether all rounds are done and all clients have acknowledged it.
    pub fn acknowledged(&self) -> bool {
        self.finished() && self.members.iter().flatten().all(|member| member.done)
    }

    /// The model of the open round.
    pub fn model(&self) -> Option<&Arc<Vec<f32>>> {
        self.running.as_ref().map(|running| running.server.model())
    }

    /// The mean shift.
    pub fn shift(&self) -> Option<&[f32]> {
        self.running.as_ref().map(|running| running.server.shift())
    }

    /// Noise and cost as the run defines them for the clients' numbers of records, once they are
    /// known.
    pub fn privacy(&self) -> Option<&Privacy> {
        self.running
            .as_ref()
            .and_then(|running| running.privacy.as_ref())
    }

    /// Sums over closed rounds.
    pub fn sums(&self) -> Sums {
        self.sums
    }

    /// How long the last round was open that closed in this process.
    pub fn last_seconds(&self) -> f64 {
        self.last_seconds
    }

    /// Measurements so far.
    pub fn evaluations(&self) -> &[Evaluation] {
        &self.evaluations
    }

    /// Rounds to be measured since the last call. Each is answered by
    /// [`evaluated`](Self::evaluated).
    pub fn take_unmeasured(&mut self) -> Vec<Unmeasured> {
        std::mem::take(&mut self.unmeasured)
    }

    /// Whether a client has answered in the open round.
    pub fn has_answered(&self, client: ClientId) -> bool {
        let open = self.running.as_ref().map(|running| &running.open);
        open.and_then(|open| open.get(client as usize))
            .is_some_and(Option::is_some)
    }

    /// The BLAKE3 hash of a client's message of the last round, if it was taken and this process
    /// has seen it.
    pub fn last_taken(&self, client: ClientId) -> Option<Bytes> {
        let names = &self.running.as_ref()?.last_names;
        let name = names.get(client as usize).copied().flatten()?;
        let latest = self
            .latest()
            .filter(|last| last.round + 1 == self.round())?;
        latest
            .accepts(client)
            .then(|| Bytes::copy_from_slice(name.as_bytes()))
    }

    /// How many clients have answered in the open round.
    pub fn arrived(&self) -> u32 {
        self.running
            .as_ref()
            .map_or(0, |running| running.received as u32)
    }

    /// Notes a measurement on the server's own test set.
    ///
    /// # Errors
    /// When it cannot be stored.
    pub fn evaluated(&mut self, evaluation: Evaluation) -> Result<(), CoordinatorError> {
        self.store.evaluated(evaluation)?;
        self.evaluations
            .retain(|known| known.round != evaluation.round);
        self.evaluations.push(evaluation);
        self.evaluations.sort_by_key(|known| known.round);
        Ok(())
    }

    fn check(&self, client: ClientId) -> Result<(), CoordinatorError> {
        if self.failed {
            return Err(CoordinatorError::Failed);
        }
        let clients = self.members.len();
        if (client as usize) < clients {
            Ok(())
        } else {
            Err(CoordinatorError::UnknownClient { client, clients })
        }
    }

    fn server(&self, weights: Vec<f64>) -> Server {
        let plan = run::server_plan(
            &self.description.resolved,
            &self.description.model,
            &self.plan,
            weights,
        );
        Server::new(plan, self.start.clone())
    }
}
