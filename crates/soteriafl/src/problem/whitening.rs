//! Records whitened by second moments that every client has released once, before the first round.
//!
//! The releases are those of a deployment, byte for byte ([`preliminary`](crate::preliminary)); in
//! a simulation all clients are here, so the round trip of messages and average is made at once.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use soteriafl_core::moments::Whitening;
use soteriafl_core::preliminary::{self, Average};
use soteriafl_core::random::SecretKey;
use soteriafl_data::Dataset;

use super::{Problem, ProblemError};
use crate::accounting;
use crate::config::resolve::Resolved;
use crate::preliminary::aim;
use crate::specification::Preliminary;

impl Problem {
    /// The same with every record whitened, if the run says so: each client releases its second
    /// moments under noise of its own, and all records go through the map that their average gives.
    ///
    /// # Errors
    /// When the noise of the release cannot be set or drawn.
    pub fn whitened(&self, resolved: &Resolved) -> Result<Cow<'_, Self>, ProblemError> {
        if resolved.whiten.is_none() || self.whitening.is_some() {
            return Ok(Cow::Borrowed(self));
        }
        let run = resolved.specification();
        let columns = self.preparation.features.outputs();
        let mut sent = Vec::new();
        let clients = self.shards.iter().zip(self.weights(resolved)).enumerate();
        for (id, (shard, weight)) in clients {
            let releases = accounting::preliminaries(&run, shard.records()).map_err(unfit)?;
            let releases = releases.iter().enumerate();
            for (number, release) in releases.filter(|(_, one)| one.kind == Preliminary::Moments) {
                let key = SecretKey::simulated(resolved.seed, id as u32);
                let message = release.message(number as u32, shard, &key).map_err(unfit)?;
                let numbers = preliminary::decode(number as u32, release.len(columns), &message);
                sent.push((weight, release.sigma, numbers.map_err(unfit)?));
            }
        }
        let average = Average::of(soteriafl_core::moments::entries(columns), sent);
        let map = Whitening::new(&average, columns, aim(resolved));
        let mapped = |data: &Dataset| map.apply(data);
        let shards = self.shards.iter().map(|shard| mapped(shard).map(Arc::new));
        let digest = OnceLock::new();
        // What the records are does not change with what is made of them.
        let _ = digest.set(self.digest().to_string());
        Ok(Cow::Owned(Self {
            shards: shards.collect::<Result<_, _>>()?,
            test: self.test.as_ref().map(mapped).transpose()?,
            whitening: Some(map),
            digest,
            ..self.clone()
        }))
    }
}

fn unfit(error: impl std::fmt::Display) -> ProblemError {
    ProblemError::Model(format!("`data.whiten`: {error}"))
}
