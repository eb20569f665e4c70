//! The noise for each number of records that clients may have, computed once and kept.
//!
//! Calibrating noise for a number of records takes the accountant between milliseconds and seconds,
//! and clients choose these numbers: so each is computed once, shared, and can be computed on
//! another thread than the one that answers clients. Where fewer records never need less noise,
//! numbers are rounded down to a geometric series, of which there are a few hundred.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use soteriafl::accounting::{self, Privacy};
use soteriafl::specification::Specification;

/// Records that a client can have where `deployment.most_records` does not say.
pub const MOST_RECORDS: u64 = 10_000_000;

/// Records that no configuration makes believable: the accountant's grids grow with this number,
/// and at 2^40 a single one would take a terabyte.
const BELIEVABLE: u64 = 1 << 28;

/// Noise levels kept.
const KEPT: usize = 4096;

/// What is known about the noise for a number of records.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Calibration {
    /// The noise that goes with it, at least.
    Noise(f64),
    /// No client of this run can have it, and why.
    Refused(&'static str),
    /// Not computed yet; [`CalibrationCache::compute`] does it, in up to seconds.
    Unknown,
}

/// Noise by number of records, for one run.
pub struct CalibrationCache {
    run: Specification,
    /// The most records that a client may have.
    most_records: Option<usize>,
    dimension: usize,
    known: Mutex<BTreeMap<usize, Option<f64>>>,
}

impl CalibrationCache {
    /// An empty cache for a run with `dimension` parameters.
    pub fn new(run: Specification, most_records: Option<usize>, dimension: usize) -> Self {
        Self {
            run,
            most_records,
            dimension,
            known: Mutex::default(),
        }
    }

    /// What is known of a number of records; answers at once.
    pub fn look_up(&self, records: u64) -> Calibration {
        let most = self.most_records;
        let most = most.map_or(MOST_RECORDS, |most| (most as u64).min(BELIEVABLE));
        if records == 0 || records > most {
            return Calibration::Refused(
                "expected at least one, and at most deployment.most_records",
            );
        }
        if self.run.batch.is_some_and(|batch| batch > records as f64) {
            return Calibration::Refused("fewer than the batch");
        }
        let known = self.lock();
        for size in self.stand_ins(records) {
            match known.get(&size) {
                None => return Calibration::Unknown,
                Some(Some(sigma)) => return Calibration::Noise(*sigma),
                Some(None) => {}
            }
        }
        Calibration::Refused("no noise level can be computed for that many")
    }

    /// The same, computed if need be.
    pub fn compute(&self, records: u64) -> Calibration {
        if self.look_up(records) == Calibration::Unknown {
            for size in self.stand_ins(records) {
                let known = self.lock().get(&size).copied();
                // Nobody waits for the lock while the accountant works; two may do the same work.
                let sigma = known
                    .unwrap_or_else(|| accounting::noise(&self.run, self.dimension, size).ok());
                let mut known = self.lock();
                if known.len() >= KEPT {
                    known.clear();
                }
                known.insert(size, sigma);
                if let Some(sigma) = sigma {
                    return Calibration::Noise(sigma);
                }
            }
            return Calibration::Refused("no noise level can be computed for that many");
        }
        self.look_up(records)
    }

    /// Everything that must be known before the first round of clients with so many records each.
    pub fn calibrate(&self, records: &[usize]) -> Calibrated {
        let sigma = |&records: &usize| match self.compute(records as u64) {
            Calibration::Noise(sigma) => Ok(sigma),
            Calibration::Refused(reason) => Err(reason),
            Calibration::Unknown => Err("its noise is not known"),
        };
        Calibrated {
            sigmas: records.iter().map(sigma).collect(),
            // What is shown; the rules do not depend on it.
            privacy: Privacy::calibrate(&self.run, self.dimension, records, false).ok(),
        }
    }

    /// Numbers of records with at least the noise of this one: the cheapest first.
    fn stand_ins(&self, records: u64) -> [usize; 2] {
        let records = records as usize;
        [accounting::with_more_noise(&self.run, records), records]
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<usize, Option<f64>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Noise and cost, client by client.
pub struct Calibrated {
    /// At least the noise of each client, or why there is none.
    pub sigmas: Vec<Result<f64, &'static str>>,
    /// Noise and cost as the run defines them, where they can be computed.
    pub privacy: Option<Privacy>,
}
