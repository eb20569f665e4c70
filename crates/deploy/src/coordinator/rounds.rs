//! The open round: messages are judged when they arrive and wait as bytes; when everybody has
//! answered, or enough have and it is time, they are added in the order of clients, and the round
//! is durable before any client is told of it.
//!
//! Whether a round closes depends on who has answered and on the time alone, and what it becomes on
//! the messages alone.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use soteriafl_core::compress::Update;
use soteriafl_core::linalg;
use soteriafl_core::protocol::{ClientId, Round};
use soteriafl_core::wire;

use super::super::averaging::{self, LARGEST};
use super::super::store::{ClosedRound, Evaluation, ServerStore, Sums, count_taken};
use super::history::remember;
use super::{Coordinator, CoordinatorError, Receipt, Unmeasured};

impl<S: ServerStore> Coordinator<S> {
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
            // Two messages of one round are of two copies of a state, also if the second one comes
            // late.
            let running = self.running.as_ref();
            let last = running.and_then(|running| running.last_names[client as usize]);
            if found + 1 == open && last.is_some_and(|last| last != blake3::hash(&message)) {
                return Err(CoordinatorError::Conflict {
                    client,
                    round: found,
                });
            }
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
        running.names[client as usize] = Some(blake3::hash(&message));
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
        let mut closed = ClosedRound {
            round,
            accepted: averaged.accepted,
            average: averaged.average,
            uncompressed: averaged.uncompressed,
            values: averaged.values,
            uplink: uplink.sum(),
        };
        radii.retain(|&client, _| closed.accepts(client));
        let radii: Vec<(ClientId, f64)> = radii.into_iter().collect();
        let due = (round + 1).is_multiple_of(self.snapshot_every);
        let state = due.then(|| running.server.state());
        // No client is told of the round before this returns; if it fails, this process must end.
        self.store.close(&closed, &radii, state.as_ref())?;
        for (client, radius) in radii {
            if let Some(member) = &mut self.members[client as usize] {
                member.radius = radius;
            }
        }
        for (client, (missed, last)) in self.missed.iter_mut().enumerate() {
            let left_out = averaged.left_out.contains(&(client as ClientId));
            *last = running.open[client].is_none() || left_out;
            *missed += u32::from(*last);
        }
        running.open.fill(None);
        std::mem::swap(&mut running.names, &mut running.last_names);
        running.names.fill(None);
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
        // Nobody but a process that starts again asks for it, and that one asks the store.
        closed.uncompressed = Bytes::new();
        remember(&mut self.recent, Arc::new(closed));
        Ok(())
    }

    /// Asks for a measurement after `done` rounds, if one is due and not there yet.
    pub(super) fn announce(&mut self, sums: Sums, taken: u32, seconds: f64, done: Round) {
        let run = &self.description.resolved;
        let due = done == 0
            || done == run.rounds
            || (run.eval_every > 0 && done.is_multiple_of(run.eval_every));
        let known = self.evaluations.iter().any(|known| known.round == done);
        if let (true, false, Some(running)) = (due, known, &self.running) {
            self.unmeasured.push(Unmeasured {
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
}
