//! Natural compression: random rounding of every coordinate to one of the two powers of two
//! around it; only sign and exponent travel.
//!
//! Horvath et al. (2019), Theorem 1: unbiased, `omega = 1/8`. Below the smallest normal number
//! (1.2e-38) a coordinate is rounded to zero or to that number: still unbiased, and the variance
//! there is below 1e-75, outside of any bound that matters.

use rand::Rng;

use super::bits::{BitReader, BitWriter, packed_len};
use super::{DecodeError, Decoded, Outgoing, Scheme, Update};
use crate::random::unit;

pub struct Natural;

impl Scheme for Natural {
    fn wire_kind(&self) -> u8 {
        4
    }

    fn omega(&self, _dimension: usize) -> Option<f64> {
        Some(OMEGA)
    }

    fn encoded_len(&self, dimension: usize) -> usize {
        encoded_len(dimension)
    }

    fn encode(&self, values: &[f32], message: Outgoing<'_>) {
        let scale = message.scale;
        message.write_and_read(self, |coins, body| encode(values, scale, coins, body));
    }

    fn decode(&self, body: &[u8], dimension: usize, update: &mut Update) -> Decoded {
        decode(body, dimension, &mut update.values)
    }
}

pub const OMEGA: f64 = 0.125;
const WIDTH: u32 = 9;

pub fn encoded_len(dimension: usize) -> usize {
    packed_len(dimension, WIDTH)
}

pub fn encode(values: &[f32], scale: f64, coins: &mut impl Rng, body: &mut Vec<u8>) {
    let mut writer = BitWriter::new(body);
    for &value in values {
        let value = super::clamp((f64::from(super::clamp(value)) * scale) as f32);
        let bits = value.abs().to_bits();
        // The fraction bits say how far the number is on its way to the next power of two, and the
        // same holds between zero and the smallest normal number.
        let (floor, fraction) = (
            bits >> 23,
            f64::from(bits & 0x7f_ffff) / f64::from(1u32 << 23),
        );
        let exponent = (floor + u32::from(unit(coins) < fraction)).min(254);
        writer.put(exponent << 1 | u32::from(value < 0.0), WIDTH);
    }
    writer.finish();
}

pub fn decode(body: &[u8], dimension: usize, values: &mut Vec<f32>) -> Result<(), DecodeError> {
    let mut reader = BitReader::new(body);
    values.clear();
    for position in 0..dimension {
        let field = reader.take(WIDTH);
        let exponent = field >> 1;
        if exponent == 255 {
            return Err(DecodeError::NotFinite { position });
        }
        let size = f32::from_bits(exponent << 23);
        values.push(if field & 1 == 1 { -size } else { size });
    }
    Ok(())
}
