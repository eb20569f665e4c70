//! Stores in memory that outlive their users and fail when told to: a crash at every storage step
//! without a disk.
//!
//! A clone is another handle to the same medium. Step `i` counts changes from 0; failing *before* a
//! step loses the change (a full disk, a torn write that the journal undoes), failing *after* it
//! keeps the change though the caller gets an error (a crash between the commit and the
//! answer). From then on every change fails, as for a process that is gone, until
//! [`PlannedFailure::heal`].

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use soteriafl_core::preliminary::Average;
use soteriafl_core::protocol::{ClientId, Round, ServerState};

use super::Hash;
use super::store::{
    Checkpoint, ClientStore, ClosedRound, Evaluation, LedgerRun, Member, ServerRecord, ServerStore,
    StoreError, StoredMessage, StoredRelease, count_taken,
};

/// When changes fail.
#[derive(Clone, Copy, Debug, Default)]
pub struct PlannedFailure {
    /// Changes tried so far.
    pub steps: usize,
    /// The change that fails.
    pub fail_at: Option<usize>,
    /// Whether it happens nevertheless.
    pub after: bool,
    failed: bool,
}

impl PlannedFailure {
    /// Fails at the change number `step`, before or after it happens.
    pub fn at(step: usize, after: bool) -> Self {
        Self {
            fail_at: Some(step),
            after,
            ..Self::default()
        }
    }

    /// Whether the planned failure has come.
    pub fn failed(&self) -> bool {
        self.failed
    }

    /// No failure from now on.
    pub fn heal(&mut self) {
        (self.fail_at, self.failed) = (None, false);
    }

    fn step(&mut self, change: impl FnOnce() -> Result<(), StoreError>) -> Result<(), StoreError> {
        let gone = || {
            Err(StoreError::Failed {
                path: "memory".into(),
                reason: "no space left on device".into(),
            })
        };
        if self.failed {
            return gone();
        }
        let now = self.fail_at == Some(self.steps);
        self.steps += 1;
        self.failed = now;
        if now && !self.after {
            return gone();
        }
        change()?;
        if now { gone() } else { Ok(()) }
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

fn missing(what: &str) -> StoreError {
    StoreError::Corrupt {
        path: "memory".into(),
        what: what.into(),
    }
}

/// A server's journal in memory.
#[derive(Clone, Default)]
pub struct ServerMemory(Arc<Mutex<(PlannedFailure, ServerMedium)>>);

#[derive(Default)]
struct ServerMedium {
    description: Option<String>,
    members: Vec<(ClientId, Member)>,
    released: Vec<Average>,
    rounds: Vec<ClosedRound>,
    states: Vec<ServerState>,
    evaluations: Vec<Evaluation>,
}

impl ServerMemory {
    /// Lets a test look at the planned failure or change it.
    pub fn failure<T>(&self, change: impl FnOnce(&mut PlannedFailure) -> T) -> T {
        change(&mut lock(&self.0).0)
    }

    fn change(
        &self,
        change: impl FnOnce(&mut ServerMedium) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let (failure, medium) = &mut *lock(&self.0);
        failure.step(|| change(medium))
    }
}

impl ServerStore for ServerMemory {
    fn load(&mut self) -> Result<ServerRecord, StoreError> {
        let (_, medium) = &*lock(&self.0);
        Ok(ServerRecord {
            description: medium.description.clone(),
            members: medium.members.clone(),
            released: medium.released.clone(),
            averages: medium
                .rounds
                .iter()
                .map(|round| round.average.len() as u32)
                .collect(),
            traffic: medium.rounds.iter().fold((0, 0), |(values, bytes), round| {
                (values + round.values, bytes + round.uplink)
            }),
            taken: medium.rounds.iter().fold(Vec::new(), |mut taken, round| {
                count_taken(&mut taken, &round.accepted);
                taken
            }),
            snapshots: medium.states.iter().map(|state| state.round).collect(),
            evaluations: medium.evaluations.clone(),
        })
    }

    fn begin(&mut self, description: &str, start: &ServerState) -> Result<(), StoreError> {
        self.change(|medium| {
            medium.description = Some(description.to_string());
            medium.states.push(start.clone());
            Ok(())
        })
    }

    fn join(&mut self, client: ClientId, records: u64) -> Result<(), StoreError> {
        self.change(|medium| {
            let member = Member {
                records,
                ..Member::default()
            };
            medium.members.push((client, member));
            Ok(())
        })
    }

    fn released(&mut self, number: u32, average: &Average) -> Result<(), StoreError> {
        self.change(|medium| {
            if number as usize != medium.released.len() {
                return Err(missing("releases out of order"));
            }
            medium.released.push(average.clone());
            Ok(())
        })
    }

    fn close(
        &mut self,
        round: &ClosedRound,
        radii: &[(ClientId, f64)],
        state: Option<&ServerState>,
    ) -> Result<(), StoreError> {
        self.change(|medium| {
            if round.round as usize != medium.rounds.len() {
                return Err(missing("rounds out of order"));
            }
            medium.rounds.push(round.clone());
            if let Some(state) = state {
                for closed in &mut medium.rounds {
                    closed.uncompressed = Bytes::new();
                }
                let last = medium.states.iter().map(|state| state.round).max();
                medium
                    .states
                    .retain(|kept| kept.round == 0 || Some(kept.round) == last);
                medium.states.push(state.clone());
            }
            for (client, radius) in radii {
                for (id, member) in &mut medium.members {
                    if id == client {
                        member.radius = *radius;
                    }
                }
            }
            Ok(())
        })
    }

    fn acknowledge(&mut self, client: ClientId) -> Result<(), StoreError> {
        self.change(|medium| {
            for (id, member) in &mut medium.members {
                member.done |= *id == client;
            }
            Ok(())
        })
    }

    fn evaluated(&mut self, evaluation: Evaluation) -> Result<(), StoreError> {
        self.change(|medium| {
            medium
                .evaluations
                .retain(|known| known.round != evaluation.round);
            medium.evaluations.push(evaluation);
            Ok(())
        })
    }

    fn round(&mut self, round: Round) -> Result<ClosedRound, StoreError> {
        let (_, medium) = &*lock(&self.0);
        let found = medium.rounds.get(round as usize).cloned();
        found.ok_or_else(|| missing("no such round"))
    }

    fn snapshot(&mut self, round: Round) -> Result<ServerState, StoreError> {
        let (_, medium) = &*lock(&self.0);
        let found = medium.states.iter().find(|state| state.round == round);
        found.cloned().ok_or_else(|| missing("no such state"))
    }
}

/// A client's journal in memory.
#[derive(Clone, Default)]
pub struct ClientMemory(Arc<Mutex<ClientMedium>>);

/// Everything of one client.
#[derive(Clone, Default)]
struct ClientMedium {
    failure: PlannedFailure,
    runs: Vec<RunMedium>,
    shapes: BTreeMap<String, String>,
}

#[derive(Clone)]
struct RunMedium {
    run: LedgerRun,
    releases: Vec<StoredRelease>,
    rows: Vec<StoredMessage>,
    state: Option<Checkpoint>,
}

impl RunMedium {
    fn keep(&mut self, state: &Checkpoint) {
        for row in &mut self.rows {
            if row.round < state.server.round {
                (row.message, row.coins) = (Vec::new(), None);
            }
        }
        self.state = Some(state.clone());
    }
}

impl ClientMemory {
    /// Lets a test look at the planned failure or change it.
    pub fn failure<T>(&self, change: impl FnOnce(&mut PlannedFailure) -> T) -> T {
        change(&mut lock(&self.0).failure)
    }

    /// All rows of all runs, as they are on the medium.
    pub fn all_rows(&self) -> Vec<StoredMessage> {
        let runs = &lock(&self.0).runs;
        runs.iter().flat_map(|run| run.rows.clone()).collect()
    }

    /// The releases before the first round of all runs, as they are on the medium.
    pub fn all_releases(&self) -> Vec<StoredRelease> {
        let runs = &lock(&self.0).runs;
        runs.iter().flat_map(|run| run.releases.clone()).collect()
    }

    /// A copy of the medium as it is now, of which later changes know nothing: a backup.
    pub fn copy(&self) -> Self {
        let copy = ClientMedium {
            failure: PlannedFailure::default(),
            ..lock(&self.0).clone()
        };
        Self(Arc::new(Mutex::new(copy)))
    }

    fn change(
        &self,
        hash: &Hash,
        before: Option<(Round, bool)>,
        change: impl FnOnce(&mut RunMedium) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let ClientMedium { failure, runs, .. } = &mut *lock(&self.0);
        failure.step(|| {
            let found = runs.iter_mut().find(|run| run.run.hash == *hash);
            let run = found.ok_or_else(|| missing("no such run"))?;
            if let Some((round, accepted)) = before {
                let row = run.rows.iter_mut().find(|row| row.round == round);
                row.ok_or_else(|| missing("no such round"))?.accepted = Some(accepted);
            }
            change(run)
        })
    }
}

impl ClientStore for ClientMemory {
    fn runs(&mut self) -> Result<Vec<LedgerRun>, StoreError> {
        let runs = &lock(&self.0).runs;
        Ok(runs
            .iter()
            .map(|run| LedgerRun {
                messages: (run.releases.len() + run.rows.len()) as u64,
                ..run.run.clone()
            })
            .collect())
    }

    fn shape(&mut self, source: &str) -> Result<Option<String>, StoreError> {
        Ok(lock(&self.0).shapes.get(source).cloned())
    }

    fn keep_shape(&mut self, source: &str, shape: &str) -> Result<(), StoreError> {
        let ClientMedium {
            failure, shapes, ..
        } = &mut *lock(&self.0);
        failure.step(|| {
            shapes.insert(source.to_string(), shape.to_string());
            Ok(())
        })
    }

    fn begin(&mut self, run: &LedgerRun) -> Result<(), StoreError> {
        let ClientMedium { failure, runs, .. } = &mut *lock(&self.0);
        failure.step(|| {
            let unspent = |known: &RunMedium| {
                known.releases.is_empty() && known.rows.is_empty() && !known.run.finished
            };
            runs.retain(|known| known.run.hash != run.hash || !unspent(known));
            if runs.iter().any(|known| known.run.hash == run.hash) {
                return Err(missing("a run begun twice"));
            }
            runs.push(RunMedium {
                run: run.clone(),
                releases: Vec::new(),
                rows: Vec::new(),
                state: None,
            });
            Ok(())
        })
    }

    fn pay_release(&mut self, run: &Hash, number: u32, message: &[u8]) -> Result<(), StoreError> {
        self.change(run, None, |run| {
            if run.releases.len() != number as usize {
                return Err(missing("a second message for a release"));
            }
            run.releases.push(StoredRelease {
                message: message.to_vec(),
                average: None,
            });
            Ok(())
        })
    }

    fn hear_release(
        &mut self,
        run: &Hash,
        number: u32,
        average: &Average,
    ) -> Result<(), StoreError> {
        self.change(run, None, |run| {
            let release = run.releases.get_mut(number as usize);
            let release = release.ok_or_else(|| missing("no such release"))?;
            (release.message, release.average) = (Vec::new(), Some(average.clone()));
            Ok(())
        })
    }

    fn releases(&mut self, run: &Hash) -> Result<Vec<StoredRelease>, StoreError> {
        let runs = &lock(&self.0).runs;
        let found = runs.iter().find(|known| known.run.hash == *run);
        Ok(found.map_or_else(Vec::new, |run| run.releases.clone()))
    }

    fn pay(
        &mut self,
        run: &Hash,
        row: &StoredMessage,
        before: Option<(Round, bool)>,
        state: Option<&Checkpoint>,
    ) -> Result<(), StoreError> {
        self.change(run, before, |run| {
            if run.rows.iter().any(|known| known.round == row.round) {
                return Err(missing("a second message for a round"));
            }
            if let Some(state) = state {
                run.keep(state);
            }
            run.rows.push(row.clone());
            Ok(())
        })
    }

    fn checkpoint(
        &mut self,
        run: &Hash,
        state: &Checkpoint,
        before: Option<(Round, bool)>,
    ) -> Result<(), StoreError> {
        self.change(run, before, |run| {
            run.keep(state);
            Ok(())
        })
    }

    fn finish(&mut self, run: &Hash, before: Option<(Round, bool)>) -> Result<(), StoreError> {
        self.change(run, before, |run| {
            run.run.finished = true;
            run.state = None;
            for row in &mut run.rows {
                (row.message, row.coins) = (Vec::new(), None);
            }
            Ok(())
        })
    }

    fn state(&mut self, run: &Hash) -> Result<Option<Checkpoint>, StoreError> {
        let runs = &lock(&self.0).runs;
        let found = runs.iter().find(|known| known.run.hash == *run);
        Ok(found.and_then(|run| run.state.clone()))
    }

    fn taken(&mut self, run: &Hash) -> Result<u32, StoreError> {
        let runs = &lock(&self.0).runs;
        let found = runs.iter().find(|known| known.run.hash == *run);
        let rows = found.map_or(&[][..], |run| &run.rows);
        let taken = rows.iter().filter(|row| row.accepted == Some(true));
        Ok(taken.count() as u32)
    }

    fn rows(&mut self, run: &Hash) -> Result<Vec<StoredMessage>, StoreError> {
        let runs = &lock(&self.0).runs;
        let Some(found) = runs.iter().find(|known| known.run.hash == *run) else {
            return Ok(Vec::new());
        };
        let from = found.state.as_ref().map_or(0, |state| state.server.round);
        let mut rows: Vec<StoredMessage> = found
            .rows
            .iter()
            .filter(|row| row.round >= from)
            .cloned()
            .collect();
        rows.sort_by_key(|row| row.round);
        Ok(rows)
    }
}
