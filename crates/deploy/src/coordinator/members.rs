//! Membership: clients join with their numbers of records, the run begins when the last one has
//! joined, and at the end each acknowledges the result. A client's first statement is binding, and
//! durable before it is answered.
//!
//! Weights, noise and bounds for messages follow from the numbers of records. Computing them can
//! take seconds, so a coordinator that must answer other clients meanwhile leaves it to its caller
//! ([`Coordinator::calibrated_by_caller`]).

use std::time::Duration;

use soteriafl_core::compress::Update;
use soteriafl_core::protocol::ClientId;

use super::super::calibration_cache::{Calibrated, Calibration};
use super::super::message_bounds::Rule;
use super::super::store::{Member, ServerStore};
use super::{Coordinator, CoordinatorError, Running};
use soteriafl::problem::weights;

impl<S: ServerStore> Coordinator<S> {
    /// Once, when all clients have joined: the numbers of records for which
    /// [`calibrate`](super::super::calibration_cache::CalibrationCache::calibrate) is to be called.
    pub fn to_calibrate(&mut self) -> Option<Vec<usize>> {
        std::mem::take(&mut self.uncalibrated).then(|| self.records())
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
        let calibration = match self.calibrated_by_caller {
            true => self.calibrations.look_up(records),
            false => self.calibrations.compute(records),
        };
        match calibration {
            Calibration::Noise(_) => {}
            Calibration::Unknown => return Err(CoordinatorError::Uncalibrated(records)),
            Calibration::Refused(reason) => {
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
            self.uncalibrated = true;
            if !self.calibrated_by_caller {
                self.calibrate_and_begin(now)?;
            }
        }
        self.failed = false;
        Ok(())
    }

    /// A client acknowledges the end of the run.
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

    /// The clients' numbers of records, once all have joined.
    pub(super) fn records(&self) -> Vec<usize> {
        let members = self.members.iter().flatten();
        members.map(|member| member.records as usize).collect()
    }

    pub(super) fn calibrate_and_begin(&mut self, now: Duration) -> Result<(), CoordinatorError> {
        match self.to_calibrate() {
            Some(records) => self.begin(self.calibrations.calibrate(&records), now),
            None => Ok(()),
        }
    }

    /// All clients have joined and their noise is known: the first round, or what comes before it,
    /// is open.
    ///
    /// # Errors
    /// When there is no noise for one of them.
    pub fn begin(&mut self, calibrated: Calibrated, now: Duration) -> Result<(), CoordinatorError> {
        if self.begun() || self.releases.is_some() || self.joined < self.members.len() {
            return Ok(());
        }
        match self.releases_missing() {
            true => self.open_releases(calibrated),
            false => self.begin_rounds(calibrated, now),
        }
    }

    /// Weights, noise and rules follow from the numbers of records.
    pub(super) fn begin_rounds(
        &mut self,
        calibrated: Calibrated,
        now: Duration,
    ) -> Result<(), CoordinatorError> {
        let records = self.records();
        let Calibrated { sigmas, privacy } = calibrated;
        let resolved = &self.description.resolved;
        let sampling = resolved.specification().sampling();
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
            names: vec![None; records.len()],
            last_names: vec![None; records.len()],
            received: 0,
            opened: now,
            update: Update::default(),
            privacy,
        });
        self.announce(self.released, 0, 0.0, 0);
        Ok(())
    }
}
