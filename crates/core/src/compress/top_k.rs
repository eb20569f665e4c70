//! The `k` largest coordinates, as they are: biased, `E |C(x) - x|^2 <= (1 - k/d) |x|^2`.
//!
//! It looks at the values to choose what travels, so it is for vectors that have noise on *all*
//! coordinates; choosing is then post-processing. A body has the places first, packed in as many
//! bits as the dimension needs, ascending, then the values.

use super::DecodeError;
use super::bits::{BitReader, BitWriter, packed_len};

/// Bits of a place.
fn width(dimension: usize) -> u32 {
    (dimension.max(2) - 1).ilog2() + 1
}

pub fn encoded_len(dimension: usize, k: usize) -> usize {
    packed_len(k, width(dimension)) + 4 * k
}

/// The places of the `k` values of the largest magnitude, ascending; of equal ones the first.
pub fn choose(values: &[f32], k: usize, places: &mut Vec<u32>) {
    // Bits without the sign are ordered as magnitudes are.
    let size = |place: &u32| values[*place as usize].to_bits() & (u32::MAX >> 1);
    places.clear();
    places.extend(0..values.len() as u32);
    if k < places.len() {
        let order = |left: &u32, right: &u32| size(right).cmp(&size(left)).then(left.cmp(right));
        places.select_nth_unstable_by(k, order);
        places.truncate(k);
        places.sort_unstable();
    }
}

pub fn put_places(places: &[u32], dimension: usize, body: &mut Vec<u8>) {
    let mut writer = BitWriter::new(body);
    for &place in places {
        writer.put(place, width(dimension));
    }
    writer.finish();
}

/// Reads the places and returns the bytes of the values.
pub fn take_places<'a>(
    body: &'a [u8],
    dimension: usize,
    k: usize,
    places: &mut Vec<u32>,
) -> Result<&'a [u8], DecodeError> {
    let (packed, values) = body.split_at(packed_len(k, width(dimension)));
    let mut reader = BitReader::new(packed);
    places.clear();
    for position in 0..k {
        let place = reader.take(width(dimension));
        let ascending = places.last().is_none_or(|&last| last < place);
        if !ascending || place as usize >= dimension {
            return Err(DecodeError::Place { position, place });
        }
        places.push(place);
    }
    Ok(values)
}
