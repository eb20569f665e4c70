//! Random dithering: every coordinate becomes a sign and one of `s + 1` levels of the norm.
//!
//! With `N >= max |x_i|`, coordinate `x_i` lies between levels `l` and `l + 1` of `N/s` and goes up
//! with the probability that makes it unbiased. Alistarh et al. (2017), Lemma 3.1: with `N = |x|`,
//! `omega = min(d/s^2, sqrt(d)/s)`. `N` is the norm rounded up to `f32`, which keeps every
//! coordinate in range and unbiased whatever the rounding.

use rand::Rng;

use super::bits::{BitReader, BitWriter, packed_len};
use super::{CompressError, DecodeError, Decoded, Outgoing, Scheme, Update};
use crate::linalg::round_up;
use crate::random::unit;

pub struct Qsgd {
    pub levels: u32,
}

impl Scheme for Qsgd {
    fn wire_kind(&self) -> u8 {
        3
    }

    fn check(&self, _dimension: usize) -> Result<(), CompressError> {
        check(self.levels)
    }

    fn omega(&self, dimension: usize) -> Option<f64> {
        Some(omega(dimension as f64, self.levels))
    }

    fn encoded_len(&self, dimension: usize) -> usize {
        encoded_len(dimension, self.levels)
    }

    fn encode(&self, values: &[f32], message: Outgoing<'_>) {
        let (scale, levels) = (message.scale, self.levels);
        message.write_and_read(self, |coins, body| {
            encode(values, scale, levels, coins, body);
        });
    }

    fn decode(&self, body: &[u8], dimension: usize, update: &mut Update) -> Decoded {
        decode(body, dimension, self.levels, &mut update.values)
    }
}

/// Refuses a useless number of levels.
pub fn check(levels: u32) -> Result<(), CompressError> {
    match (1..=32_767).contains(&levels) {
        true => Ok(()),
        false => Err(CompressError::Levels(levels)),
    }
}

pub fn omega(dimension: f64, levels: u32) -> f64 {
    let s = f64::from(levels);
    (dimension / (s * s)).min(dimension.sqrt() / s)
}

pub fn encoded_len(dimension: usize, levels: u32) -> usize {
    4 + packed_len(dimension, width(levels))
}

pub fn encode(values: &[f32], scale: f64, levels: u32, coins: &mut impl Rng, body: &mut Vec<u8>) {
    let values = || {
        values
            .iter()
            .map(|&value| f64::from(super::clamp(value)) * scale)
    };
    let squared = values().map(|value| value * value).sum::<f64>();
    let norm = round_up(squared.sqrt()).min(f32::MAX);
    body.extend_from_slice(&norm.to_le_bytes());
    let per_unit = if norm > 0.0 {
        f64::from(levels) / f64::from(norm)
    } else {
        0.0
    };
    let mut writer = BitWriter::new(body);
    for value in values() {
        // At most `levels` up to rounding, and clamped against it.
        let position = (value.abs() * per_unit).min(f64::from(levels));
        let floor = position.floor();
        let up = unit(coins) < position - floor;
        let level = (floor as u32 + u32::from(up)).min(levels);
        writer.put(level << 1 | u32::from(value < 0.0), width(levels));
    }
    writer.finish();
}

pub fn decode(
    body: &[u8],
    dimension: usize,
    levels: u32,
    values: &mut Vec<f32>,
) -> Result<(), DecodeError> {
    let (norm, fields) = body.split_at(4);
    let norm = f32::from_le_bytes([norm[0], norm[1], norm[2], norm[3]]);
    if !norm.is_finite() {
        return Err(DecodeError::NotFinite { position: 0 });
    }
    let step = f64::from(norm) / f64::from(levels);
    let mut reader = BitReader::new(fields);
    values.clear();
    for position in 0..dimension {
        let field = reader.take(width(levels));
        let level = field >> 1;
        if level > levels {
            return Err(DecodeError::Level {
                position,
                found: level,
                levels,
            });
        }
        let size = (step * f64::from(level)) as f32;
        values.push(if field & 1 == 1 { -size } else { size });
    }
    Ok(())
}

/// One bit for the sign, the rest for a level in `0..=levels`.
fn width(levels: u32) -> u32 {
    1 + (32 - levels.leading_zeros())
}
