//! Rounds that are over: the latest at hand, older ones read from the store, and of those only the
//! accepted sets kept. Memory is bounded, by bytes as well as by number, whatever clients ask for.

use std::collections::VecDeque;
use std::sync::Arc;

use soteriafl_core::protocol::{ClientId, Round};

use super::super::store::{ClosedRound, ServerStore, accepts};
use super::{Coordinator, CoordinatorError};

/// Bytes of accepted sets of older rounds kept in memory.
const OUTCOMES: usize = 16 << 20;

/// Closed rounds kept in memory for those who are nearly up to date: by number and by bytes.
const RECENT_ROUNDS: usize = 64;
const RECENT_BYTES: usize = 64 << 20;

impl<S: ServerStore> Coordinator<S> {
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

    /// Whether a client's message is in a closed round. A round is read once, however often it is
    /// asked for.
    pub(super) fn accepted(
        &mut self,
        round: Round,
        client: ClientId,
    ) -> Result<bool, CoordinatorError> {
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
    pub(super) fn note_average(&mut self, bytes: usize) {
        let round = self.round();
        if self.plan.snapshot_coin(round) {
            self.coins.push(round);
        }
        let before = self.bytes.last().copied().unwrap_or(0);
        self.bytes.push(before + bytes as u64);
    }
}

/// Keeps a closed round at hand, within limits.
pub(super) fn remember(recent: &mut VecDeque<Arc<ClosedRound>>, closed: Arc<ClosedRound>) {
    recent.push_back(closed);
    let bytes = |recent: &VecDeque<Arc<ClosedRound>>| -> usize {
        recent.iter().map(|closed| closed.average.len()).sum()
    };
    while recent.len() > RECENT_ROUNDS || (recent.len() > 2 && bytes(recent) > RECENT_BYTES) {
        recent.pop_front();
    }
}
