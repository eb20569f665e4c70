//! Records whitened by second moments that every client has released once, before the first round.
//!
//! The releases are those of [`moments`], with the noise that [`accounting::moments`] sets; the map that
//! their average gives acts on each record alone. In a simulation all clients are here, so the round trip of
//! moments and average is made at once.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use soteriafl_core::moments::{self, Whitening};
use soteriafl_core::random::SecretKey;
use soteriafl_data::Dataset;

use super::{Problem, ProblemError};
use crate::accounting;
use crate::config::resolve::Resolved;

impl Problem {
    /// The same with every record whitened, if the run says so: each client releases its second moments
    /// under noise of its own, and all records go through the map that their average gives.
    ///
    /// # Errors
    /// When the noise of the release cannot be set or drawn.
    pub fn whitened(&self, resolved: &Resolved) -> Result<Cow<'_, Self>, ProblemError> {
        if resolved.whiten.is_none() || self.whitening.is_some() {
            return Ok(Cow::Borrowed(self));
        }
        let run = resolved.specification();
        let unfit =
            |error: &dyn std::fmt::Display| ProblemError::Model(format!("`data.whiten`: {error}"));
        let columns = self.preparation.features.outputs();
        let mut average = vec![0.0; moments::entries(columns)];
        let mut variance = 0.0;
        let clients = self.shards.iter().zip(self.weights(resolved)).enumerate();
        for (id, (shard, weight)) in clients {
            let noised = accounting::moments(&run, shard.rows()).map_err(|error| unfit(&error))?;
            // Without noise only where nothing is private.
            let sigma = noised.map_or(0.0, |noised| noised.sigma);
            let key = SecretKey::simulated(resolved.seed, id as u32);
            let released = moments::release(shard, sigma, run.noise_kind(), &key)
                .map_err(|error| unfit(&error))?;
            for (sum, &value) in average.iter_mut().zip(released.values()) {
                *sum += weight * f64::from(value);
            }
            variance += (weight * sigma).powi(2);
        }
        let map = Whitening::new(&average, columns, variance.sqrt());
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
