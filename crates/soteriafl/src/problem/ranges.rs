//! Ranges of columns that nobody knows (`range = "private"`), estimated before the records are read
//! by them.
//!
//! The table is read twice: once with those columns as they stand there, of which every client
//! releases places of values ([`ranges`]), and then, by a schema that has the estimated ranges,
//! as any table. What follows, model file included, knows public ranges alone.

use std::sync::Arc;

use soteriafl_core::preliminary::{self, Average};
use soteriafl_core::random::SecretKey;
use soteriafl_core::ranges::{self, Range};
use soteriafl_data::schema::Role;
use soteriafl_data::{Dataset, TableSchema};

use super::ProblemError;
use crate::accounting::{self, PreliminaryRelease};
use crate::config::{Config, ConfigError, NoiseTarget, private_ranges};
use crate::specification::Preliminary;

/// Clients with their raw records.
type Clients = Vec<Dataset>;

/// What was estimated.
pub(super) struct Estimated {
    /// The schema with ranges for all columns.
    pub(super) schema: Arc<TableSchema>,
    /// The noise on the share of a column's records in one power of two, which follows from public
    /// quantities alone.
    pub(super) noise: f64,
}

/// Ranges for all columns; none where the schema has them.
///
/// # Errors
/// When noise cannot be set or drawn, or what goes with it has no proof.
pub(super) fn estimated(
    config: &Config,
    schema: &Arc<TableSchema>,
    clients: &Clients,
) -> Result<Option<Estimated>, ProblemError> {
    let Some(share) = private_ranges(Some(schema)) else {
        return Ok(None);
    };
    if schema.named_by(&Role::Person).is_some() {
        return Err(ConfigError::conflict(
            "`range = \"private\"` does not go with a column of the role \"person\": which records \
             of a person count would depend on the ranges",
        )
        .into());
    }
    let columns = schema.private_numbers();
    let released = Released {
        config,
        clients,
        columns: &columns,
        share: share / 2.0,
    };
    let first = released.average(0, Preliminary::Magnitudes, &[])?;
    let intervals = ranges::intervals(&first, columns.len());
    let second = released.average(1, Preliminary::Parts, &intervals)?;
    let ranges = ranges::ranges(&intervals, &second);
    let schema = schema.with_ranges(&ranges).map_err(unfit)?;
    Ok(Some(Estimated {
        schema: Arc::new(schema),
        noise: ranges::noise_of_a_share(&first, columns.len()),
    }))
}

/// Bytes and numbers of the two messages of a client.
pub(crate) fn traffic(columns: usize) -> (u64, u64) {
    let lens = [ranges::magnitudes_len(columns), ranges::parts_len(columns)];
    let bytes = lens.map(preliminary::message_len).iter().sum::<usize>();
    (bytes as u64, lens.iter().sum::<usize>() as u64)
}

/// What is common to both releases.
struct Released<'a> {
    config: &'a Config,
    clients: &'a Clients,
    columns: &'a [usize],
    share: f64,
}

impl Released<'_> {
    fn average(
        &self,
        number: u32,
        kind: Preliminary,
        intervals: &[Range],
    ) -> Result<Average, ProblemError> {
        let records: Vec<usize> = self.clients.iter().map(Dataset::rows).collect();
        let weights = accounting::weights(false, &records);
        let mut sent = Vec::new();
        let mut len = 0;
        for (id, (raw, weight)) in self.clients.iter().zip(weights).enumerate() {
            let release = self.release(kind, raw.rows())?;
            let sigma = release.as_ref().map_or(0.0, |release| release.sigma);
            let key = SecretKey::simulated(self.config.seed, id as u32);
            let columns = self.columns;
            let released = match kind {
                Preliminary::Parts => ranges::release_parts(raw, columns, intervals, sigma, &key),
                _ => ranges::release_magnitudes(raw, columns, sigma, &key),
            };
            let message = preliminary::message(number, &released.map_err(unfit)?);
            len = match kind {
                Preliminary::Parts => ranges::parts_len(columns.len()),
                _ => ranges::magnitudes_len(columns.len()),
            };
            let numbers = preliminary::decode(number, len, &message).map_err(unfit)?;
            sent.push((weight, sigma, numbers));
        }
        Ok(Average::of(len, sent))
    }

    /// A client's release; without privacy none, and no noise.
    fn release(
        &self,
        kind: Preliminary,
        records: usize,
    ) -> Result<Option<PreliminaryRelease>, ProblemError> {
        let config = self.config;
        let epsilon = match config.noise_target {
            NoiseTarget::Epsilon(epsilon) => epsilon,
            NoiseTarget::None => return Ok(None),
            NoiseTarget::Sigma(_) => {
                return Err(ConfigError::conflict(
                    "`range = \"private\"` needs `privacy.epsilon`: its noise is a share of that target",
                )
                .into());
            }
        };
        let budget = self.share * accounting::share_of(epsilon, config.delta);
        let people = (config.adjacency, config.records_per_person);
        let release = accounting::preliminary(kind, budget, people, records);
        release.map(Some).map_err(unfit)
    }
}

fn unfit(error: impl std::fmt::Display) -> ProblemError {
    ProblemError::Model(format!("`range = \"private\"`: {error}"))
}
