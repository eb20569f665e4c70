//! Rounding to a grid that does not depend on the vector: multiples of `step`, up or down by a
//! coin.
//!
//! `Q(x)_j = step (floor(x_j/step) + Bernoulli(frac(x_j/step)))`, with the level kept in `bits`
//! bits (two's complement). Unbiased inside the range, and its error is *absolute*: at most `d
//! step^2/4` in the mean square, whatever `x` is. So whole models can be sent with it, where the
//! error of the other compressors, which is relative, would not vanish as a run converges. What
//! lies beyond the range is cut off.

use super::bits::{BitReader, BitWriter, packed_len};
use super::{CompressError, Decoded, Outgoing, Scheme, Update};
use crate::random::{SecretRng, unit};

/// The most bits of a level: every level times `step` is then as exact as `f32` allows.
pub const MOST_BITS: u32 = 24;

pub struct Grid {
    pub step: f64,
    pub bits: u32,
}

impl Scheme for Grid {
    fn wire_kind(&self) -> u8 {
        5
    }

    fn check(&self, _dimension: usize) -> Result<(), CompressError> {
        let Self { step, bits } = *self;
        match (1e-20..=1e20).contains(&step) && (2..=MOST_BITS).contains(&bits) {
            true => Ok(()),
            false => Err(CompressError::Grid { step, bits }),
        }
    }

    fn omega(&self, _dimension: usize) -> Option<f64> {
        None
    }

    fn encoded_len(&self, dimension: usize) -> usize {
        packed_len(dimension, self.bits)
    }

    fn encode(&self, values: &[f32], message: Outgoing<'_>) {
        message.write_and_read(self, |coins, body| {
            encode(values, self.step, self.bits, coins, body);
        });
    }

    fn decode(&self, body: &[u8], dimension: usize, update: &mut Update) -> Decoded {
        decode(body, dimension, self.step, self.bits, &mut update.values);
        Ok(())
    }

    fn beyond_range(&self, values: &[f32]) -> usize {
        let (least, most) = range(self.bits);
        let outside = |value: &&f32| !(least..=most).contains(&(f64::from(**value) / self.step));
        values.iter().filter(outside).count()
    }
}

/// The largest and the smallest level.
fn range(bits: u32) -> (f64, f64) {
    let half = f64::from(1u32 << (bits - 1));
    (-half, half - 1.0)
}

fn encode(values: &[f32], step: f64, bits: u32, coins: &mut SecretRng, body: &mut Vec<u8>) {
    let (least, most) = range(bits);
    let mask = (1u32 << bits) - 1;
    let mut writer = BitWriter::new(body);
    for &value in values {
        let position = f64::from(super::clamp(value)) / step;
        let floor = position.floor();
        let up = unit(coins) < position - floor;
        let level = (floor + f64::from(u8::from(up))).clamp(least, most);
        writer.put(level as i32 as u32 & mask, bits);
    }
    writer.finish();
}

fn decode(body: &[u8], dimension: usize, step: f64, bits: u32, values: &mut Vec<f32>) {
    let mut reader = BitReader::new(body);
    let unused = 32 - bits;
    values.clear();
    values.extend((0..dimension).map(|_| {
        // Shifted up and down again, so that the sign is that of the highest bit.
        let level = (reader.take(bits) << unused) as i32 >> unused;
        (f64::from(level) * step) as f32
    }));
}
