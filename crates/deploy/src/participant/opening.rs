//! A client before the first round: makes one message for each release that the run begins with,
//! and maps its records by what all clients have released.
//!
//! **A message is made once**, as in the rounds: with secrets drawn at that moment, stored and paid
//! before it is given out; whoever asks again gets the stored bytes. **The first average stands**:
//! it is stored, and another one is refused, so that the records of a run are the same after any
//! restart. Privacy does not depend on it: the map follows from the average here, it acts on single
//! records, and whatever it gives, gradients are clipped after it (`docs/privacy.md`,
//! Proposition 6a). An average that is no numbers is refused.

use std::sync::Arc;

use bytes::Bytes;
use soteriafl::accounting::PreliminaryRelease;
use soteriafl::preliminary;
use soteriafl_core::data::Dataset;
use soteriafl_core::moments::Aim;
use soteriafl_core::preliminary::Average;

use super::super::store::{ClientStore, StoredRelease};
use super::super::{Hash, records, to_bytes};
use super::ParticipantError;
use super::secrets::{HistoryDigest, Secrets};

/// A client of a run whose first round has not come.
pub struct Opening<S> {
    store: S,
    run: Hash,
    releases: Vec<PreliminaryRelease>,
    data: Arc<Dataset>,
    aim: Aim,
    secrets: Secrets,
    known: Vec<StoredRelease>,
    failed: bool,
}

impl<S: ClientStore> Opening<S> {
    /// Goes on where the store ends; the run has begun in it. `data` are the records as they are
    /// before anything was released, `aim` what they are mapped for.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn new(
        mut store: S,
        run: Hash,
        releases: Vec<PreliminaryRelease>,
        data: Arc<Dataset>,
        aim: Aim,
        secrets: Secrets,
    ) -> Result<Self, ParticipantError> {
        let known = store.releases(&run)?;
        Ok(Self {
            store,
            run,
            releases,
            data,
            aim,
            secrets,
            known,
            failed: false,
        })
    }

    /// How many averages it knows: the number of the next release.
    pub fn averages(&self) -> u32 {
        let known = self.known.iter();
        known
            .take_while(|release| release.average.is_some())
            .count() as u32
    }

    /// Whether there is nothing left to release.
    pub fn finished(&self) -> bool {
        self.averages() as usize >= self.releases.len()
    }

    /// The store.
    pub fn store(&mut self) -> &mut S {
        &mut self.store
    }

    /// Whether the message of the next release was made already.
    pub fn has_message(&self) -> bool {
        self.known.len() > self.averages() as usize
    }

    /// The message of release `number`, made now or earlier; `None` if it is over.
    ///
    /// # Errors
    /// When it cannot be computed or stored: then it does not exist.
    pub fn message(&mut self, number: u32) -> Result<Option<Bytes>, ParticipantError> {
        self.check()?;
        let next = self.averages();
        if number < next {
            return Ok(None);
        }
        let refuse = |reason| ParticipantError::Release { number, reason };
        let Some(release) = self
            .releases
            .get(number as usize)
            .filter(|_| number == next)
        else {
            return Err(refuse("it is not the next one of this run"));
        };
        if let Some(known) = self.known.get(number as usize) {
            return Ok(Some(known.message.clone().into()));
        }
        self.failed = true;
        let mut history = HistoryDigest::from(&records::trained_on(&self.data), None, &[]);
        for (earlier, known) in self.known.iter().enumerate() {
            let average = known.average.as_ref();
            let values = average.map(|average| to_bytes(&average.values));
            history.add(
                b"heard",
                earlier as u32,
                true,
                &[&values.unwrap_or_default()],
            );
        }
        let purpose = history.purpose(&self.run, number, &[0; 32]);
        let keys = (self.secrets)(number, &purpose)?;
        let message = release
            .message(number, &self.data, &keys.noise)
            .map_err(|_| refuse("no grid suits its noise"))?;
        self.store.pay_release(&self.run, number, &message)?;
        self.known.push(StoredRelease {
            message: message.clone(),
            average: None,
        });
        self.failed = false;
        Ok(Some(message.into()))
    }

    /// The server says what all clients have released. What is known already is passed over.
    ///
    /// # Errors
    /// When it is no average of this release, another one than before, or one that this client's
    /// message cannot be in; or it cannot be stored.
    pub fn heard(&mut self, number: u32, average: &Average) -> Result<(), ParticipantError> {
        self.check()?;
        let refuse = |reason| Err(ParticipantError::Release { number, reason });
        let Some(release) = self.releases.get(number as usize) else {
            return refuse("this run has no such release");
        };
        let finite = average.values.iter().all(|value| value.is_finite());
        if average.values.len() != release.len(self.data.columns()) || !finite {
            return refuse("its average is not as many finite numbers");
        }
        if !(average.noise.is_finite() && average.noise >= 0.0) {
            return refuse("its average has no noise level");
        }
        let Some(known) = self.known.get_mut(number as usize) else {
            // No average is complete without this client's message.
            self.failed = true;
            let (taken, known) = (number + 1, self.known.len() as u32);
            return Err(ParticipantError::Forgotten { taken, known });
        };
        match &known.average {
            Some(before) if before == average => return Ok(()),
            Some(_) => return refuse("the server has told another average before"),
            None => {}
        }
        self.failed = true;
        self.store.hear_release(&self.run, number, average)?;
        (known.message, known.average) = (Vec::new(), Some(average.clone()));
        self.failed = false;
        Ok(())
    }

    /// The store, and the records as the rounds train on them; `None` while a release is missing.
    ///
    /// # Panics
    /// If records have other columns than their own release: every map takes every record.
    pub fn into_parts(self) -> Option<(S, Arc<Dataset>)> {
        if !self.finished() {
            return None;
        }
        let kinds: Vec<_> = self.releases.iter().map(|release| release.kind).collect();
        let averages = self.known.into_iter().filter_map(|known| known.average);
        let averages: Vec<Average> = averages.collect();
        let columns = self.data.columns();
        let data = match preliminary::whitening(&kinds, &averages, columns, self.aim) {
            Some(map) => Arc::new(map.apply(&self.data).expect("a map of these columns")),
            None => self.data,
        };
        Some((self.store, data))
    }

    fn check(&self) -> Result<(), ParticipantError> {
        match self.failed {
            true => Err(ParticipantError::Failed),
            false => Ok(()),
        }
    }
}
