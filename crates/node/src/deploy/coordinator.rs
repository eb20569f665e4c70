//! The server of a networked run: who has joined, what has arrived, when a round closes. Pure: messages
//! and the time come in, closed rounds go out; the disk is behind [`ServerStore`].
//!
//! A round is open until every client has answered, or until its deadline has passed and enough have.
//! Then messages are added in ascending order of clients, and the round (who is in it, the averaged
//! message) is committed in one transaction *before* anybody can hear of it. Messages of the open round
//! live in memory only: if the process dies, clients send the same bytes again.
//!
//! Cost: `O(k)` per message, twice (checked when it arrives, added when the round closes, so that what
//! waits is the bytes alone); `O(d)` per round; `O(1)` per client and round beyond its message.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use soteria_core::compress::Update;
use soteria_core::linalg;
use soteria_core::protocol::{
    ClientId, ClientPlan, EstimatorPlan, Round, Server, ServerError, ServerState,
};
use soteria_core::wire;

use super::averaging::{self, LARGEST};
use super::description::Description;
use super::participant::Position;
use super::plausible::Rule;
use super::sizes::{Settled, Size, Sizes};
use super::store::{
    ClosedRound, Evaluation, Member, ServerRecord, ServerStore, StoreError, Sums, accepts,
    count_taken,
};
use crate::accounting::Privacy;
use crate::problem::{ProblemError, weights};
use crate::run;

/// Rounds between dense states.
pub const SNAPSHOT_EVERY: Round = 64;

/// Bytes of accepted sets of older rounds kept in memory.
const OUTCOMES: usize = 16 << 20;

/// Closed rounds kept in memory for those who are nearly up to date: by number and by bytes.
const RECENT_ROUNDS: usize = 64;
const RECENT_BYTES: usize = 64 << 20;

/// Why a call is not answered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CoordinatorError {
    /// The state cannot be kept: the process must end and start again.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// No such client.
    #[error("client {client} is not one of the {clients} clients of this run")]
    UnknownClient {
        /// The number found.
        client: ClientId,
        /// How many there are.
        clients: usize,
    },
    /// The client has not joined.
    #[error("client {0} has not joined")]
    NotJoined(ClientId),
    /// The client joined with another number of records.
    #[error("client {client} joined with {known} records, not {found}")]
    Records {
        /// Which client.
        client: ClientId,
        /// What it said first.
        known: u64,
        /// What it says now.
        found: u64,
    },
    /// A number of records that no client of this run can have.
    #[error("client {client} has {found} records: {reason}")]
    BadRecords {
        /// Which client.
        client: ClientId,
        /// What it says.
        found: u64,
        /// What is wrong.
        reason: &'static str,
    },
    /// The noise for this number of records has not been computed yet, and whoever answers does not do it.
    #[error("the noise of a client with {0} records is not known yet")]
    Uncalibrated(u64),
    /// Not all clients have joined yet.
    #[error("the run has not begun")]
    NotBegun,
    /// The bytes are no message of this run.
    #[error("not a message of this run: {0}")]
    Malformed(String),
    /// A round that is not open yet.
    #[error("round {found} is not open, round {open} is")]
    Early {
        /// The message's round.
        found: Round,
        /// The open round.
        open: Round,
    },
    /// The client's model is ahead of ours.
    #[error(
        "client {client} has been in round {found}, but round {open} is open here: this server has lost rounds"
    )]
    Ahead {
        /// Which client.
        client: ClientId,
        /// The client's round: of its model, or of a message that it made.
        found: Round,
        /// The open round.
        open: Round,
    },
    /// Another message for the same round; the first one stands.
    #[error("client {client} has sent another message for round {round} before")]
    Conflict {
        /// Which client.
        client: ClientId,
        /// Which round.
        round: Round,
    },
    /// No honest client sends this.
    #[error("the message of client {client} in round {round} is larger than any honest one")]
    Implausible {
        /// Which client.
        client: ClientId,
        /// Which round.
        round: Round,
    },
    /// The model left the range of numbers, whatever the clients send.
    #[error(
        "in round {0} the model is no longer finite, whatever the clients send: the run has diverged"
    )]
    Diverged(Round),
    /// The plan does not fit.
    #[error(transparent)]
    Problem(#[from] ProblemError),
    /// The core refuses.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// Something failed before: what is in memory may not be what is stored.
    #[error("this server has failed and must be started again")]
    Failed,
}

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

/// A round after which the run is to be measured.
#[derive(Clone, Debug)]
pub struct News {
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
    running: Option<Running>,
    /// Bytes of all averages up to each closed round's.
    bytes: Vec<u64>,
    /// Closed rounds after which clients move their SVRG snapshot, ascending.
    coins: Vec<Round>,
    /// Accepted sets that were read from the store.
    outcomes: BTreeMap<Round, Vec<u8>>,
    snapshots: Vec<Round>,
    recent: VecDeque<Arc<ClosedRound>>,
    sizes: Arc<Sizes>,
    /// Whether somebody else computes noise.
    elsewhere: bool,
    /// Whether everybody has joined and the noise is to be computed.
    unsettled: bool,
    /// Messages of each client that were taken.
    taken: Vec<u32>,
    /// The dense state that was read last.
    dense: Option<Arc<ServerState>>,
    sums: Sums,
    evaluations: Vec<Evaluation>,
    news: Vec<News>,
    snapshot_every: Round,
    last_seconds: f64,
    failed: bool,
}

/// What exists once everybody has joined.
struct Running {
    server: Server,
    rules: Vec<Rule>,
    privacy: Option<Privacy>,
    open: Vec<Option<Bytes>>,
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
        let clients = description.resolved.clients;
        let mut coordinator = Self {
            store,
            plan,
            start,
            members: vec![None; clients],
            joined: 0,
            running: None,
            bytes: Vec::new(),
            coins: Vec::new(),
            outcomes: BTreeMap::new(),
            snapshots: vec![0],
            recent: VecDeque::new(),
            sizes: Arc::new(Sizes::new(&description.resolved, description.dimension())),
            elsewhere: false,
            unsettled: false,
            taken: vec![0; clients],
            dense: None,
            sums: Sums::default(),
            evaluations: Vec::new(),
            news: Vec::new(),
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

    /// The same, but what takes the accountant's time is left to whoever calls: [`join`](Self::join) refuses
    /// numbers of records whose noise is not among [`sizes`](Self::sizes) yet, and after the last one the run
    /// waits for [`begin`](Self::begin) with what [`to_settle`](Self::to_settle) asks for.
    #[must_use]
    pub fn settled_elsewhere(self) -> Self {
        Self {
            elsewhere: true,
            ..self
        }
    }

    /// Numbers of records and their noise, as far as they are known.
    pub fn sizes(&self) -> &Arc<Sizes> {
        &self.sizes
    }

    /// Once, when everybody has joined: the numbers of records for which [`Sizes::settle`] is to be called.
    pub fn to_settle(&mut self) -> Option<Vec<usize>> {
        std::mem::take(&mut self.unsettled).then(|| self.records())
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

    /// The last round that closed, if it is at hand.
    pub fn latest(&self) -> Option<&Arc<ClosedRound>> {
        self.recent.back()
    }

    /// Whether everybody has joined.
    pub fn begun(&self) -> bool {
        self.running.is_some()
    }

    /// The open round; the number of rounds at the end.
    pub fn round(&self) -> Round {
        self.bytes.len() as Round
    }

    /// How many messages a client can have made: one for the open round, too, as soon as there is one.
    pub fn messages(&self) -> Round {
        let open = Round::from(self.begun());
        (self.round() + open).min(self.description.resolved.rounds)
    }

    /// Whether all rounds are done.
    pub fn finished(&self) -> bool {
        self.round() >= self.description.resolved.rounds
    }

    /// Whether all rounds are done and everybody knows.
    pub fn settled(&self) -> bool {
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

    /// Noise and cost as the run defines them for the clients' numbers of records, once they are known.
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

    /// Rounds to be measured since the last call. Each wants an answer by [`evaluated`](Self::evaluated).
    pub fn news(&mut self) -> Vec<News> {
        std::mem::take(&mut self.news)
    }

    /// How many clients have answered in the open round.
    pub fn arrived(&self) -> u32 {
        self.running
            .as_ref()
            .map_or(0, |running| running.received as u32)
    }

    /// A client joins, or comes back.
    ///
    /// # Errors
    /// When it is none of this run's, or says something else than before.
    pub fn join(
        &mut self,
        client: ClientId,
        records: u64,
        now: Duration,
    ) -> Result<(), CoordinatorError> {
        self.check(client)?;
        if let Some(member) = &self.members[client as usize] {
            return if member.records == records {
                Ok(())
            } else {
                Err(CoordinatorError::Records {
                    client,
                    known: member.records,
                    found: records,
                })
            };
        }
        let size = match self.elsewhere {
            true => self.sizes.look_up(records),
            false => self.sizes.compute(records),
        };
        match size {
            Size::Noise(_) => {}
            Size::Unknown => return Err(CoordinatorError::Uncalibrated(records)),
            Size::Refused(reason) => {
                return Err(CoordinatorError::BadRecords {
                    client,
                    found: records,
                    reason,
                });
            }
        }
        self.failed = true;
        self.store.join(client, records)?;
        self.members[client as usize] = Some(Member {
            records,
            ..Member::default()
        });
        self.joined += 1;
        if self.joined == self.members.len() {
            self.unsettled = true;
            if !self.elsewhere {
                self.settle(now)?;
            }
        }
        self.failed = false;
        Ok(())
    }

    /// A client sends bytes. Returns the receipt, and whether a round closed by it.
    ///
    /// # Errors
    /// When they are not taken; the round is as before.
    pub fn submit(
        &mut self,
        client: ClientId,
        message: Bytes,
        now: Duration,
    ) -> Result<(Receipt, bool), CoordinatorError> {
        self.check(client)?;
        let Some(member) = &self.members[client as usize] else {
            return Err(CoordinatorError::NotJoined(client));
        };
        let radius = member.radius;
        let open = self.round();
        let finished = self.finished();
        let found = wire::claimed_round(&message)
            .ok_or_else(|| CoordinatorError::Malformed("it has no header".to_string()))?;
        if found < open {
            let accepted = self.accepted(found, client)?;
            return Ok((Receipt::Closed { accepted }, false));
        }
        if found > open || finished {
            return Err(CoordinatorError::Early { found, open });
        }
        let running = self.running.as_mut().ok_or(CoordinatorError::NotBegun)?;
        if let Some(known) = &running.open[client as usize] {
            return if *known == message {
                Ok((Receipt::Received, false))
            } else {
                Err(CoordinatorError::Conflict {
                    client,
                    round: open,
                })
            };
        }
        let present = running
            .server
            .decode(client, &message, &mut running.update)
            .map_err(|error| CoordinatorError::Malformed(error.to_string()))?;
        let bounded = linalg::largest(running.update.values()) <= LARGEST;
        if present && !(bounded && running.rules[client as usize].allows(&running.update, radius)) {
            return Err(CoordinatorError::Implausible {
                client,
                round: open,
            });
        }
        running.open[client as usize] = Some(message);
        running.received += 1;
        let closed = self.tick(now)?;
        let receipt = if closed {
            let accepted = self.closed(open)?.accepts(client);
            Receipt::Closed { accepted }
        } else {
            Receipt::Received
        };
        Ok((receipt, closed))
    }

    /// Closes the open round if it is time; says whether it did.
    ///
    /// # Errors
    /// When the round cannot be stored: then it is not closed.
    pub fn tick(&mut self, now: Duration) -> Result<bool, CoordinatorError> {
        if self.failed {
            return Err(CoordinatorError::Failed);
        }
        if self.finished() {
            return Ok(false);
        }
        let run = &self.description.resolved;
        let Some(running) = &self.running else {
            return Ok(false);
        };
        let everybody = running.received == self.members.len();
        let enough = running.received >= run.quorum.unwrap_or(self.members.len());
        let late = run
            .deadline
            .is_some_and(|deadline| now.saturating_sub(running.opened).as_secs_f64() >= deadline);
        if !(everybody || (enough && late)) {
            return Ok(false);
        }
        self.failed = true;
        self.close(now)?;
        self.failed = false;
        Ok(true)
    }

    /// When the open round may close without stragglers, if it may.
    pub fn deadline(&self) -> Option<Duration> {
        let running = self.running.as_ref().filter(|_| !self.finished())?;
        let seconds = self.description.resolved.deadline?;
        Some(running.opened + Duration::from_secs_f64(seconds.min(1e9)))
    }

    /// A closed round.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn closed(&mut self, round: Round) -> Result<Arc<ClosedRound>, CoordinatorError> {
        let known = self.recent.iter().find(|closed| closed.round == round);
        match known {
            Some(closed) => Ok(Arc::clone(closed)),
            None => Ok(Arc::new(self.store.round(round)?)),
        }
    }

    /// Whether a client's message is in a closed round. A round is read once, however often it is asked for.
    fn accepted(&mut self, round: Round, client: ClientId) -> Result<bool, CoordinatorError> {
        if let Some(closed) = self.recent.iter().find(|closed| closed.round == round) {
            return Ok(closed.accepts(client));
        }
        if !self.outcomes.contains_key(&round) {
            let each = self.members.len().div_ceil(8).max(1);
            if self.outcomes.len() >= OUTCOMES / each {
                self.outcomes.clear();
            }
            self.outcomes
                .insert(round, self.store.round(round)?.accepted);
        }
        Ok(self
            .outcomes
            .get(&round)
            .is_some_and(|accepted| accepts(accepted, client)))
    }

    /// Notes the bytes of the next round's average, and the round's coin.
    fn note_average(&mut self, bytes: usize) {
        let round = self.round();
        if let EstimatorPlan::Svrg {
            snapshot_probability,
            ..
        } = self.plan.estimator
            && self
                .plan
                .public_seed
                .snapshot_coin(round, snapshot_probability)
        {
            self.coins.push(round);
        }
        let before = self.bytes.last().copied().unwrap_or(0);
        self.bytes.push(before + bytes as u64);
    }

    /// Whether a client that stands at `position` may follow this run; costs nothing.
    ///
    /// # Errors
    /// When it is unknown, or ahead.
    pub fn may_follow(&self, client: ClientId, position: Position) -> Result<(), CoordinatorError> {
        self.check(client)?;
        if self.members[client as usize].is_none() {
            return Err(CoordinatorError::NotJoined(client));
        }
        let open = self.round();
        // A message for a later round, too, was made for a model that is not known here.
        let ahead = position
            .have
            .max(position.pending)
            .filter(|round| *round > open);
        match ahead {
            Some(found) => Err(CoordinatorError::Ahead {
                client,
                found,
                open,
            }),
            None => Ok(()),
        }
    }

    /// How to bring a client that stands at `position` up to date, by the fewest bytes.
    ///
    /// # Errors
    /// As [`may_follow`](Self::may_follow), or when something cannot be read.
    pub fn catch_up(
        &mut self,
        client: ClientId,
        position: Position,
    ) -> Result<CatchUp, CoordinatorError> {
        self.may_follow(client, position)?;
        let open = self.round();
        let accepted = match position.pending.filter(|pending| *pending < open) {
            Some(pending) => self.accepted(pending, client)?,
            None => false,
        };
        let from = self.cheapest(position.have, position.every_round);
        let snapshot = if Some(from) == position.have {
            None
        } else {
            let known = self.dense.take().filter(|dense| dense.round == from);
            let dense = match known {
                Some(dense) => dense,
                None => Arc::new(self.store.snapshot(from)?),
            };
            self.dense = Some(Arc::clone(&dense));
            Some(dense)
        };
        Ok(CatchUp {
            snapshot,
            from,
            accepted,
            taken: self.taken[client as usize],
            open,
        })
    }

    /// A client knows the end.
    ///
    /// # Errors
    /// When there is no end yet, or it cannot be stored.
    pub fn acknowledge(&mut self, client: ClientId) -> Result<(), CoordinatorError> {
        self.check(client)?;
        let finished = self.finished();
        let open = self.round();
        match &mut self.members[client as usize] {
            None => Err(CoordinatorError::NotJoined(client)),
            Some(_) if !finished => Err(CoordinatorError::Early {
                found: self.description.resolved.rounds,
                open,
            }),
            Some(member) if member.done => Ok(()),
            Some(member) => {
                self.store.acknowledge(client)?;
                member.done = true;
                Ok(())
            }
        }
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

    /// Clients' numbers of records, once everybody has joined.
    fn records(&self) -> Vec<usize> {
        let members = self.members.iter().flatten();
        members.map(|member| member.records as usize).collect()
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

    fn settle(&mut self, now: Duration) -> Result<(), CoordinatorError> {
        match self.to_settle() {
            Some(records) => self.begin(self.sizes.settle(&records), now),
            None => Ok(()),
        }
    }

    /// Everybody is there: weights, noise and rules follow from the numbers of records.
    ///
    /// # Errors
    /// When there is no noise for one of them.
    pub fn begin(&mut self, settled: Settled, now: Duration) -> Result<(), CoordinatorError> {
        if self.begun() || self.joined < self.members.len() {
            return Ok(());
        }
        let records = self.records();
        let Settled { sigmas, privacy } = settled;
        let resolved = &self.description.resolved;
        let sampling = run::sampling(resolved);
        let (clients, rounds) = (records.len(), resolved.rounds);
        let mut rules = Vec::with_capacity(clients);
        for (client, (&records, sigma)) in records.iter().zip(sigmas).enumerate() {
            let sigma = sigma.map_err(|reason| CoordinatorError::BadRecords {
                client: client as ClientId,
                found: records as u64,
                reason,
            })?;
            rules.push(Rule::new(
                &self.plan, &sampling, records, sigma, clients, rounds,
            ));
        }
        self.running = Some(Running {
            server: self.server(weights(resolved, &records)),
            rules,
            open: vec![None; records.len()],
            received: 0,
            opened: now,
            update: Update::default(),
            privacy,
        });
        self.announce(Sums::default(), 0, 0.0, 0);
        Ok(())
    }

    /// Asks for a measurement after `done` rounds, if one is due and not there yet.
    fn announce(&mut self, sums: Sums, taken: u32, seconds: f64, done: Round) {
        let run = &self.description.resolved;
        let due = done == 0
            || done == run.rounds
            || (run.eval_every > 0 && done.is_multiple_of(run.eval_every));
        let known = self.evaluations.iter().any(|known| known.round == done);
        if let (true, false, Some(running)) = (due, known, &self.running) {
            self.news.push(News {
                evaluation: Evaluation {
                    round: done,
                    sums,
                    taken,
                    seconds,
                    ..Evaluation::default()
                },
                model: Arc::clone(running.server.model()),
            });
        }
    }

    fn resume(&mut self, record: ServerRecord, now: Duration) -> Result<(), CoordinatorError> {
        for (client, member) in record.members {
            self.check(client)?;
            self.members[client as usize] = Some(member);
            self.joined += 1;
        }
        let clients = self.members.len() as u64;
        self.sums = Sums {
            values: record.traffic.0,
            uplink: record.traffic.1,
            downlink: record
                .averages
                .iter()
                .map(|&bytes| clients * u64::from(bytes))
                .sum(),
        };
        for bytes in record.averages {
            self.note_average(bytes as usize);
        }
        self.taken = record.taken;
        self.taken.resize(self.members.len(), 0);
        self.snapshots = record.snapshots;
        self.evaluations = record.evaluations;
        if self.joined < self.members.len() {
            return Ok(());
        }
        self.unsettled = true;
        self.settle(now)?;
        let last = self.snapshots.last().copied().unwrap_or(0);
        let state = self.store.snapshot(last)?;
        if let Some(running) = &mut self.running {
            running.server.restore(state)?;
        }
        let mut replayed = Vec::new();
        for round in last..self.round() {
            replayed.push(Arc::new(self.store.round(round)?));
        }
        // The sums at the last dense state, then round by round.
        let mut sums = self.sums;
        for closed in &replayed {
            sums.values -= closed.values;
            sums.uplink -= closed.uplink;
            sums.downlink -= clients * closed.average.len() as u64;
        }
        let (dimension, mut average) = (self.plan.compressor.dimension(), Vec::new());
        for closed in replayed {
            let round = closed.round;
            wire::decode_average(dimension, round, &closed.average, &mut average)
                .map_err(|_| CoordinatorError::Diverged(round))?;
            if let Some(running) = &mut self.running {
                running.server.apply(&average)?;
            }
            sums.values += closed.values;
            sums.uplink += closed.uplink;
            sums.downlink += clients * closed.average.len() as u64;
            self.announce(sums, closed.taken(), 0.0, round + 1);
            remember(&mut self.recent, closed);
        }
        Ok(())
    }

    fn close(&mut self, now: Duration) -> Result<(), CoordinatorError> {
        let Some(running) = &mut self.running else {
            return Err(CoordinatorError::NotBegun);
        };
        let round = running.server.round();
        let mut radii = BTreeMap::new();
        let (rules, members) = (&running.rules, &self.members);
        let note = |client: ClientId, update: &Update| {
            let radius = members[client as usize]
                .as_ref()
                .map_or(0.0, |member| member.radius);
            if let Some(radius) = rules[client as usize].grown(update, radius) {
                radii.insert(client, radius);
            }
        };
        let averaged = averaging::close(
            &mut running.server,
            &running.open,
            &mut running.update,
            note,
        )?
        .ok_or(CoordinatorError::Diverged(round))?;
        for client in &averaged.left_out {
            tracing::warn!(
                client,
                round,
                "left out: with this message the model would leave the range of numbers"
            );
        }
        let uplink = running
            .open
            .iter()
            .flatten()
            .map(|message| message.len() as u64);
        let closed = ClosedRound {
            round,
            accepted: averaged.accepted,
            average: averaged.average,
            values: averaged.values,
            uplink: uplink.sum(),
        };
        radii.retain(|&client, _| closed.accepts(client));
        let radii: Vec<(ClientId, f64)> = radii.into_iter().collect();
        let due = (round + 1).is_multiple_of(self.snapshot_every);
        let state = due.then(|| running.server.state());
        // Nobody has heard of the round before this returns; if it fails, this process must end.
        self.store.close(&closed, &radii, state.as_ref())?;
        for (client, radius) in radii {
            if let Some(member) = &mut self.members[client as usize] {
                member.radius = radius;
            }
        }
        running.open.fill(None);
        let seconds = now.saturating_sub(running.opened).as_secs_f64();
        (running.received, running.opened) = (0, now);
        self.last_seconds = seconds;
        if state.is_some() {
            let last = self.snapshots.last().copied().unwrap_or(0);
            self.snapshots.retain(|&kept| kept == 0 || kept >= last);
            self.snapshots.push(round + 1);
        }
        self.sums.values += closed.values;
        self.sums.uplink += closed.uplink;
        self.sums.downlink += closed.average.len() as u64 * self.members.len() as u64;
        count_taken(&mut self.taken, &closed.accepted);
        self.note_average(closed.average.len());
        self.announce(self.sums, closed.taken(), seconds, round + 1);
        remember(&mut self.recent, Arc::new(closed));
        Ok(())
    }

    /// The round to start from so that the fewest bytes bring a client to the open round.
    fn cheapest(&self, have: Option<Round>, every_round: bool) -> Round {
        let open = self.round();
        let until = |round: Round| match round.checked_sub(1) {
            Some(last) => self.bytes.get(last as usize).copied().unwrap_or(0),
            None => 0,
        };
        let bytes = |from: Round| until(open) - until(from);
        let vectors = 1
            + u64::from(self.plan.shift_step.is_some())
            + u64::from(self.description.resolved.momentum != 0.0);
        let state = 4 * vectors * self.description.dimension() as u64;
        // The model of a snapshot coin's round must not be skipped.
        let needed = self.last_coin(have.unwrap_or(0), open).unwrap_or(open);
        let candidates = self
            .snapshots
            .iter()
            .copied()
            .filter(|&round| have.is_none_or(|have| round > have) && round <= needed)
            .map(|round| (state + bytes(round), round));
        let by_averages = have.map(|have| (bytes(have), have));
        if every_round && let Some(have) = have {
            return have;
        }
        by_averages
            .into_iter()
            .chain(candidates)
            .min()
            .map_or(0, |(_, round)| round)
    }

    /// The last round of `from..to` after which all clients move their SVRG snapshot.
    fn last_coin(&self, from: Round, to: Round) -> Option<Round> {
        if !matches!(self.plan.estimator, EstimatorPlan::Svrg { .. }) {
            return None;
        }
        let before = self.coins.partition_point(|&round| round < to);
        let last = self.coins[..before].last().copied();
        last.filter(|&round| round >= from)
            // Without any, the client's first model counts, which must not be skipped either.
            .or((from == 0 && to > 0).then_some(0))
    }
}

/// Keeps a closed round at hand, within limits.
fn remember(recent: &mut VecDeque<Arc<ClosedRound>>, closed: Arc<ClosedRound>) {
    recent.push_back(closed);
    let bytes = |recent: &VecDeque<Arc<ClosedRound>>| -> usize {
        recent.iter().map(|closed| closed.average.len()).sum()
    };
    while recent.len() > RECENT_ROUNDS || (recent.len() > 2 && bytes(recent) > RECENT_BYTES) {
        recent.pop_front();
    }
}
