//! The `k` largest coordinates, as they are: biased, `E |C(x) - x|^2 <= (1 - k/d) |x|^2`.
//!
//! It looks at the values to choose what travels, so it is for vectors that have noise on *all*
//! coordinates; choosing is then post-processing. A body has the places first, packed in as many
//! bits as the dimension needs, ascending, then the values.

use super::bits::{BitReader, BitWriter, packed_len};
use super::{
    CompressError, DecodeError, Decoded, Outgoing, Scheme, Selection, Update, put_values,
    take_values,
};

pub struct TopK {
    pub k: usize,
}

impl Scheme for TopK {
    fn wire_kind(&self) -> u8 {
        6
    }

    fn check(&self, dimension: usize) -> Result<(), CompressError> {
        CompressError::check_count("top-k", self.k, dimension)
    }

    fn omega(&self, _dimension: usize) -> Option<f64> {
        None
    }

    fn contraction(&self, dimension: usize) -> Option<f64> {
        Some(self.k as f64 / dimension as f64)
    }

    fn count(&self) -> Option<usize> {
        Some(self.k)
    }

    fn encoded_len(&self, dimension: usize) -> usize {
        packed_len(self.k, width(dimension)) + 4 * self.k
    }

    fn encode(&self, values: &[f32], message: Outgoing<'_>) {
        let Outgoing { body, update, .. } = message;
        let Selection { indices, some, .. } = &mut update.selection;
        choose(values, self.k, indices);
        *some = true;
        put_places(indices, message.dimension, body);
        let largest = indices.iter().map(|&place| values[place as usize]);
        put_values(largest, message.scale, body, &mut update.values);
    }

    fn decode(&self, body: &[u8], dimension: usize, update: &mut Update) -> Decoded {
        let Selection { indices, some, .. } = &mut update.selection;
        *some = true;
        let values = take_places(body, dimension, self.k, indices)?;
        take_values(values, &mut update.values)
    }
}

/// Bits of a place.
fn width(dimension: usize) -> u32 {
    (dimension.max(2) - 1).ilog2() + 1
}

/// The places of the `k` values of the largest magnitude, ascending; of equal ones the first.
fn choose(values: &[f32], k: usize, places: &mut Vec<u32>) {
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
fn take_places<'a>(
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
