//! Before the first round: what clients release once. All have joined; a release is open until
//! every client has answered it, without a deadline, since the rounds of all depend on it. Then the
//! messages are averaged in ascending order of clients, and the average is durable before anybody
//! hears of it. Messages of the open release live in memory only: if the process dies, clients send
//! the same bytes again.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use soteriafl::accounting::{self, PreliminaryRelease};
use soteriafl::problem::weights;
use soteriafl::{preliminary as map, specification::Preliminary};
use soteriafl_core::moments::Whitening;
use soteriafl_core::preliminary::{self, Average};
use soteriafl_core::protocol::ClientId;

use super::super::calibration_cache::Calibrated;
use super::super::message_bounds::plausible_release;
use super::super::store::ServerStore;
use super::{Coordinator, CoordinatorError};

/// What exists from the time when all clients have joined until the first round.
pub(super) struct Releases {
    /// What the rounds will begin with.
    calibrated: Calibrated,
    /// Each client's releases.
    clients: Vec<Vec<PreliminaryRelease>>,
    /// The messages of the open release.
    messages: Vec<Option<Bytes>>,
}

impl<S: ServerStore> Coordinator<S> {
    /// The release that is open; `None` before all clients have joined, and once the rounds have
    /// begun.
    pub fn open_release(&self) -> Option<u32> {
        let open = self.releases.as_ref();
        open.map(|_| self.averages.len() as u32)
    }

    /// The averages of releases that are over.
    pub fn averages(&self) -> &[Arc<Average>] {
        &self.averages
    }

    /// Whether a client has answered the open release.
    pub fn has_released(&self, client: ClientId) -> bool {
        let messages = self.releases.as_ref().map(|open| &open.messages);
        messages
            .and_then(|messages| messages.get(client as usize))
            .is_some_and(Option::is_some)
    }

    /// How records were whitened by what clients have released, once that is known.
    pub fn whitening(&self) -> Option<Whitening> {
        let averages: Vec<Average> = self.averages.iter().map(|one| (**one).clone()).collect();
        let aim = map::aim(&self.description.resolved);
        map::whitening(&self.kinds(), &averages, self.columns, aim)
    }

    fn kinds(&self) -> Vec<Preliminary> {
        let asked = self.description.resolved.specification().preliminaries();
        asked.into_iter().map(|(kind, _)| kind).collect()
    }

    /// A client sends the message of a release, or asks how far it is. Returns the average, if it
    /// is there.
    ///
    /// # Errors
    /// When the message is not taken; everything is as before.
    pub fn release(
        &mut self,
        client: ClientId,
        number: u32,
        message: Option<Bytes>,
        now: Duration,
    ) -> Result<Option<Arc<Average>>, CoordinatorError> {
        self.check(client)?;
        if self.members[client as usize].is_none() {
            return Err(CoordinatorError::NotJoined(client));
        }
        let conflict = Err(CoordinatorError::Conflict {
            client,
            round: number,
        });
        if let Some(average) = self.averages.get(number as usize) {
            let taken = self.release_names.get(number as usize);
            let known = taken.and_then(|names| names.get(client as usize));
            // Two messages of one release are of two copies of a state.
            return match (message, known) {
                (Some(message), Some(known)) if *known != blake3::hash(&message) => conflict,
                _ => Ok(Some(Arc::clone(average))),
            };
        }
        let Some(message) = message else {
            return Ok(None);
        };
        let (open, clients) = (self.averages.len() as u32, self.members.len());
        let Some(releases) = self.releases.as_mut() else {
            return Err(CoordinatorError::NotBegun);
        };
        if number != open {
            return Err(CoordinatorError::Early {
                found: number,
                open,
            });
        }
        match &releases.messages[client as usize] {
            Some(known) if *known == message => return Ok(None),
            Some(_) => return conflict,
            None => {}
        }
        let release = &releases.clients[client as usize][number as usize];
        let numbers = preliminary::decode(number, release.len(self.columns), &message)
            .map_err(|error| CoordinatorError::Malformed(error.to_string()))?;
        if !plausible_release(&numbers, release.sigma, clients) {
            return Err(CoordinatorError::Implausible {
                client,
                round: number,
            });
        }
        releases.messages[client as usize] = Some(message);
        self.close_release(now)?;
        Ok(self.averages.get(number as usize).map(Arc::clone))
    }

    /// All clients have joined and the noise of their rounds is known: opens the first release that
    /// is not over.
    pub(super) fn open_releases(&mut self, calibrated: Calibrated) -> Result<(), CoordinatorError> {
        let run = self.description.resolved.specification();
        let each = |records: usize| accounting::preliminaries(&run, records);
        let clients = self.records().into_iter().map(each);
        let clients: Result<Vec<_>, _> = clients.collect();
        let clients = clients.map_err(|error| CoordinatorError::Malformed(error.to_string()))?;
        self.releases = Some(Releases {
            calibrated,
            clients,
            messages: vec![None; self.members.len()],
        });
        Ok(())
    }

    /// Closes the open release if everybody has answered it; after the last one the rounds begin.
    fn close_release(&mut self, now: Duration) -> Result<(), CoordinatorError> {
        let number = self.averages.len();
        let Some(releases) = &mut self.releases else {
            return Ok(());
        };
        let messages: Option<Vec<Bytes>> = releases.messages.iter().cloned().collect();
        let Some(messages) = messages else {
            return Ok(());
        };
        self.failed = true;
        let records = self.members.iter().flatten();
        let records: Vec<usize> = records.map(|member| member.records as usize).collect();
        let weights = weights(&self.description.resolved, &records);
        let mut sent = Vec::with_capacity(messages.len());
        let mut len = 0;
        for ((message, weight), client) in messages.iter().zip(weights).zip(&releases.clients) {
            let release = &client[number];
            len = release.len(self.columns);
            let numbers = preliminary::decode(number as u32, len, message)
                .map_err(|error| CoordinatorError::Malformed(error.to_string()))?;
            sent.push((weight, release.sigma, numbers));
        }
        let average = Average::of(len, sent);
        // No client is told before this returns; if it fails, this process must end.
        self.store.released(number as u32, &average)?;
        self.release_names.push(
            messages
                .iter()
                .map(|message| blake3::hash(message))
                .collect(),
        );
        releases.messages.fill(None);
        self.note_released(average);
        if self.averages.len() == self.kinds().len()
            && let Some(releases) = self.releases.take()
        {
            self.begin_rounds(releases.calibrated, now)?;
        }
        self.failed = false;
        Ok(())
    }

    /// Notes the average of the next release, and its traffic.
    pub(super) fn note_released(&mut self, average: Average) {
        let (clients, len) = (self.members.len() as u64, average.values.len());
        let bytes = clients * preliminary::message_len(len) as u64;
        for sums in [&mut self.sums, &mut self.released] {
            sums.values += clients * len as u64;
            sums.uplink += bytes;
            sums.downlink += bytes;
        }
        self.averages.push(Arc::new(average));
    }

    /// Whether releases are missing.
    pub(super) fn releases_missing(&self) -> bool {
        self.averages.len() < self.kinds().len()
    }
}
