//! How a client that is behind is brought up to date: by the averages since its model, or by a
//! dense state and the averages since that, whichever is fewer bytes. What it skips it is told in
//! numbers: the outcome of its pending message, and how many of its messages were taken, by which
//! an older copy of a client's state is found out.
//!
//! Two things limit the choice: a model that clients compare with must pass by (with SVRG that of
//! the last snapshot coin, with recursive estimates the last one), and a client that repeats rounds
//! gets all of them. Finding the place takes a look at every kept state,
//! not at every round.

use std::sync::Arc;

use soteriafl_core::protocol::{ClientId, Estimator, Round, ServerState};

use super::super::participant::Position;
use super::super::store::ServerStore;
use super::{CatchUp, Coordinator, CoordinatorError};

impl<S: ServerStore> Coordinator<S> {
    /// Whether a client at `position` may follow this run; costs nothing.
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

    /// How to bring a client at `position` up to date, by the fewest bytes.
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
                None => Arc::new(self.followed(from)?),
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

    /// The dense state before a round, as far as clients have it.
    fn followed(&mut self, round: Round) -> Result<ServerState, CoordinatorError> {
        let state = self.store.snapshot(round)?;
        Ok(match self.description.resolved.downlink {
            None => state,
            Some(_) => state.followed(),
        })
    }

    /// The round to start from so that the fewest bytes bring a client to the open round.
    fn cheapest(&self, have: Option<Round>, every_round: bool) -> Round {
        let open = self.round();
        let until = |round: Round| match round.checked_sub(1) {
            Some(last) => self.bytes.get(last as usize).copied().unwrap_or(0),
            None => 0,
        };
        let bytes = |from: Round| until(open) - until(from);
        let resolved = &self.description.resolved;
        let vectors = match resolved.downlink {
            Some(_) => 1,
            None => {
                1 + u64::from(self.plan.shift_step.is_some())
                    + u64::from(resolved.momentum != 0.0)
                    + u64::from(self.plan.estimator.recursion().is_some())
            }
        };
        let state = 4 * vectors * self.description.dimension() as u64;
        // The model that clients compare with must not be skipped.
        let needed = match self.plan.estimator.recursion() {
            Some(_) => open.saturating_sub(1),
            None => self.last_coin(have.unwrap_or(0), open).unwrap_or(open),
        };
        let candidates = self
            .snapshots
            .iter()
            .copied()
            .filter(|&round| have.is_none_or(|have| round > have) && round <= needed)
            .map(|round| (state + bytes(round), round));
        let by_averages = have.map(|have| (bytes(have), have));
        if every_round {
            return have.unwrap_or(0);
        }
        by_averages
            .into_iter()
            .chain(candidates)
            .min()
            .map_or(0, |(_, round)| round)
    }

    /// The last round of `from..to` after which all clients move their SVRG snapshot.
    fn last_coin(&self, from: Round, to: Round) -> Option<Round> {
        if !matches!(self.plan.estimator, Estimator::Svrg { .. }) {
            return None;
        }
        let before = self.coins.partition_point(|&round| round < to);
        let last = self.coins[..before].last().copied();
        last.filter(|&round| round >= from)
            // Without any, the client's first model counts, which must not be skipped either.
            .or((from == 0 && to > 0).then_some(0))
    }
}
