//! `k` coordinates chosen uniformly, multiplied by `d/k`: unbiased, `omega = d/k - 1`.
//!
//! The coordinates do not depend on the values, so they are drawn from a seed before anything is
//! computed, and the seed travels instead of them.

use super::{CompressError, Decoded, Outgoing, Scheme, Selection, Update, put_values, take_values};
use crate::random::IndexSeed;

pub struct RandK {
    pub k: usize,
}

impl Scheme for RandK {
    fn wire_kind(&self) -> u8 {
        2
    }

    fn check(&self, dimension: usize) -> Result<(), CompressError> {
        CompressError::check_count("random-k", self.k, dimension)
    }

    fn omega(&self, dimension: usize) -> Option<f64> {
        Some(self.scaling(dimension) - 1.0)
    }

    fn scaling(&self, dimension: usize) -> f64 {
        dimension as f64 / self.k as f64
    }

    fn count(&self) -> Option<usize> {
        Some(self.k)
    }

    fn draws_coordinates(&self) -> bool {
        true
    }

    fn encoded_len(&self, _dimension: usize) -> usize {
        IndexSeed::LEN + 4 * self.k
    }

    fn encode(&self, values: &[f32], message: Outgoing<'_>) {
        let Outgoing {
            selection,
            body,
            update,
            ..
        } = message;
        body.extend_from_slice(&selection.seed.map_or([0; IndexSeed::LEN], |seed| seed.0));
        let scale = message.scale * message.dimension as f64 / self.k as f64;
        put_values(values.iter().copied(), scale, body, &mut update.values);
        // Drawing the coordinates again from the seed would give the same.
        std::mem::swap(selection, &mut update.selection);
    }

    fn decode(&self, body: &[u8], dimension: usize, update: &mut Update) -> Decoded {
        let (seed, values) = body.split_at(IndexSeed::LEN);
        let mut bytes = [0; IndexSeed::LEN];
        bytes.copy_from_slice(seed);
        let seed = IndexSeed(bytes);
        let Selection { indices, marks, .. } = &mut update.selection;
        seed.choose(self.k, dimension, indices, marks);
        (update.selection.seed, update.selection.some) = (Some(seed), true);
        take_values(values, &mut update.values)
    }
}
