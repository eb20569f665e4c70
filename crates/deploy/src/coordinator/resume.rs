//! Going on after a restart: members, sums and counts as the journal of rounds gives them, the
//! model from the last dense state and the averages since. Messages of the open round are gone;
//! clients send them again.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::super::store::{ServerRecord, ServerStore, Sums};
use super::history::remember;
use super::{Coordinator, CoordinatorError};

impl<S: ServerStore> Coordinator<S> {
    pub(super) fn resume(
        &mut self,
        record: ServerRecord,
        now: Duration,
    ) -> Result<(), CoordinatorError> {
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
        for average in record.released {
            self.note_released(average);
        }
        for bytes in record.averages {
            self.note_average(bytes as usize);
        }
        self.taken = record.taken;
        self.taken.resize(self.members.len(), 0);
        if self.plan.compressor.participation() >= 1.0 {
            let closed = self.round();
            for (missed, &taken) in self.missed.iter_mut().zip(&self.taken) {
                missed.0 = closed.saturating_sub(taken);
            }
        }
        self.snapshots = record.snapshots;
        self.evaluations = record.evaluations;
        if self.joined < self.members.len() {
            return Ok(());
        }
        self.uncalibrated = true;
        self.calibrate_and_begin(now)?;
        let last = self.snapshots.last().copied().unwrap_or(0);
        let state = self.store.snapshot(last)?;
        if let Some(running) = &mut self.running {
            running.server.restore(state)?;
        }
        let mut replayed = Vec::new();
        for round in last..self.round() {
            replayed.push(self.store.round(round)?);
        }
        // The sums at the last dense state, then round by round.
        let mut sums = self.sums;
        for closed in &replayed {
            sums.values -= closed.values;
            sums.uplink -= closed.uplink;
            sums.downlink -= clients * closed.average.len() as u64;
        }
        for mut closed in replayed {
            let round = closed.round;
            if let Some(running) = &mut self.running {
                let applied = running.server.apply(closed.averaged());
                applied.map_err(|_| CoordinatorError::Diverged(round))?;
                running.server.close()?;
            }
            sums.values += closed.values;
            sums.uplink += closed.uplink;
            sums.downlink += clients * closed.average.len() as u64;
            self.announce(sums, closed.taken(), 0.0, round + 1);
            closed.uncompressed = Bytes::new();
            remember(&mut self.recent, Arc::new(closed));
        }
        Ok(())
    }
}
