//! Messages as bytes: a short versioned header, then the compressor's body.
//!
//! ```text
//! offset  0        1       2            6                10
//!         version  kind    round (u32)  dimension (u32)  body of the compressor ...
//! ```
//! All numbers are little-endian. A message is parsed against what the run prescribes (version,
//! kind, round, dimension), so the same bytes cannot mean two things, and its length is known
//! before a byte of the body is read. `kind` 0 says that the client skips this round; it has no
//! body.
//!
//! **Guarantee.** No bytes make a decoder panic, and nothing is allocated because a header says so.
//! The body of a message is described in [`crate::compress`], an average at [`put_average`], what
//! the server sends in its place when the way down is compressed at [`Downlink`].

use crate::compress::{Compressor, DecodeError, Downlink, Rounding, Update, check_finite};
use crate::linalg::bytes::{append_floats, floats};
use crate::linalg::vectorised;

/// Version of the format.
pub const VERSION: u8 = 1;

/// Bytes before the body.
pub const HEADER_LEN: usize = 10;

const ABSENT: u8 = 0;

/// Writes the header of a message that carries a body.
pub fn put_header(compressor: &Compressor, round: u32, message: &mut Vec<u8>) {
    put(
        compressor.wire_kind(),
        compressor.dimension(),
        round,
        message,
    );
}

/// Writes the message of a client that skips the round.
pub fn put_absence(compressor: &Compressor, round: u32, message: &mut Vec<u8>) {
    put(ABSENT, compressor.dimension(), round, message);
}

fn put(kind: u8, dimension: usize, round: u32, message: &mut Vec<u8>) {
    message.clear();
    message.push(VERSION);
    message.push(kind);
    message.extend_from_slice(&round.to_le_bytes());
    message.extend_from_slice(&(dimension as u32).to_le_bytes());
}

/// Reads a message of `round` into `update`; `false` if the client skips the round.
///
/// # Errors
/// When the bytes are not a message of this run and round.
pub fn decode(
    compressor: &Compressor,
    round: u32,
    message: &[u8],
    update: &mut Update,
) -> Result<bool, DecodeError> {
    let (header, body) = split_header(message, HEADER_LEN + compressor.encoded_len())?;
    check_header(header, round, compressor.dimension())?;
    if header[1] == ABSENT {
        return match body.len() {
            0 => Ok(false),
            found => Err(DecodeError::Length { expected: 0, found }),
        };
    }
    expect(
        "kind",
        u64::from(compressor.wire_kind()),
        u64::from(header[1]),
    )?;
    compressor.decode(body, update)?;
    Ok(true)
}

fn split_header(message: &[u8], expected: usize) -> Result<(&[u8], &[u8]), DecodeError> {
    let found = message.len();
    message
        .split_at_checked(HEADER_LEN)
        .ok_or(DecodeError::Length { expected, found })
}

fn check_header(header: &[u8], round: u32, dimension: usize) -> Result<(), DecodeError> {
    let number = |at: usize| {
        u64::from(u32::from_le_bytes([
            header[at],
            header[at + 1],
            header[at + 2],
            header[at + 3],
        ]))
    };
    expect("version", u64::from(VERSION), u64::from(header[0]))?;
    expect("round", u64::from(round), number(2))?;
    expect("dimension", dimension as u64, number(6))
}

/// The round that a message claims to belong to, if it is long enough to say.
pub fn claimed_round(message: &[u8]) -> Option<u32> {
    let bytes = message.get(2..6)?.try_into().ok()?;
    Some(u32::from_le_bytes(bytes))
}

fn expect(field: &'static str, expected: u64, found: u64) -> Result<(), DecodeError> {
    if expected == found {
        Ok(())
    } else {
        Err(DecodeError::Header {
            field,
            expected,
            found,
        })
    }
}

const DENSE: u8 = 16;
const BITMAP: u8 = 17;
const PAIRS: u8 = 18;

/// Values of an average that must be written: all but the zero whose bits are zero.
pub fn nonzero(average: &[f32]) -> usize {
    vectorised(
        #[inline(always)]
        || {
            // Coordinates are numbered by 32 bits, and so are sums of eight at a time.
            let nonzero = average.iter().map(|value| u32::from(value.to_bits() != 0));
            nonzero.sum::<u32>() as usize
        },
    )
}

/// Writes the average that closed `round`, in its shortest form.
///
/// The header is that of a message; `kind` 16 is followed by all values, 17 by a bitmap (lowest bit
/// first) and the values of its marks, 18 by pairs of index (u32, ascending) and value. The bits of
/// every value are kept, so that all who apply an average get the same model.
pub fn put_average(average: &[f32], round: u32, message: &mut Vec<u8>) {
    let nonzero = nonzero(average);
    let [dense, bitmap, pairs] = average_lens(average.len(), nonzero);
    let least = dense.min(bitmap).min(pairs);
    let kind = if dense == least {
        DENSE
    } else if bitmap == least {
        BITMAP
    } else {
        PAIRS
    };
    message.clear();
    message.reserve_exact(HEADER_LEN + least + 4);
    put(kind, average.len(), round, message);
    match kind {
        DENSE => append_floats(average, message),
        BITMAP => {
            message.extend(average.chunks(8).map(|chunk| {
                let marks = chunk.iter().enumerate();
                marks.fold(0u8, |byte, (bit, value)| {
                    byte | (u8::from(value.to_bits() != 0) << bit)
                })
            }));
            let start = message.len();
            // Room for one more: a value that is not marked is written, too, and then overwritten.
            message.resize(HEADER_LEN + least + 4, 0);
            let values = message[start..].as_chunks_mut::<4>().0;
            let mut next = 0;
            for value in average {
                values[next] = value.to_le_bytes();
                next += usize::from(value.to_bits() != 0);
            }
            message.truncate(HEADER_LEN + least);
        }
        _ => {
            for (index, value) in average.iter().enumerate() {
                if value.to_bits() != 0 {
                    message.extend_from_slice(&(index as u32).to_le_bytes());
                    message.extend_from_slice(&value.to_le_bytes());
                }
            }
        }
    }
}

/// Reads the average of `round` for models of as many parameters as `average` has numbers. All of
/// them are replaced.
///
/// # Errors
/// When the bytes are no such average; some of the numbers may then have been replaced.
pub fn decode_average(round: u32, message: &[u8], average: &mut [f32]) -> Result<(), DecodeError> {
    let dimension = average.len();
    let (header, body) = split_header(message, HEADER_LEN)?;
    check_header(header, round, dimension)?;
    let lens = |expected: usize| match body.len() {
        found if found == expected => Ok(()),
        found => Err(DecodeError::Length { expected, found }),
    };
    match header[1] {
        DENSE => {
            lens(4 * dimension)?;
            for (value, number) in average.iter_mut().zip(floats(body)) {
                *value = number;
            }
        }
        BITMAP => {
            let Some((marks, values)) = body.split_at_checked(dimension.div_ceil(8)) else {
                return lens(dimension.div_ceil(8));
            };
            let count: usize = marks.iter().map(|byte| byte.count_ones() as usize).sum();
            lens(marks.len() + 4 * count)?;
            let beyond = 8 * marks.len() - dimension;
            if marks
                .last()
                .is_some_and(|last| last.leading_zeros() < beyond as u32)
            {
                return Err(index_error(dimension, dimension));
            }
            vectorised(
                #[inline(always)]
                || expand(marks, values.as_chunks::<4>().0, average),
            );
        }
        PAIRS => {
            let (pairs, _) = body.as_chunks::<8>();
            lens(8 * pairs.len())?;
            average.fill(0.0);
            // Indices ascend, so there cannot be more pairs than numbers.
            let mut next = 0;
            for pair in pairs {
                let [a, b, c, d, rest @ ..] = *pair;
                let index = u32::from_le_bytes([a, b, c, d]) as usize;
                if index < next || index >= dimension {
                    return Err(index_error(index, dimension));
                }
                next = index + 1;
                average[index] = f32::from_le_bytes(rest);
            }
        }
        kind => return expect("kind", u64::from(DENSE), u64::from(kind)),
    }
    check_finite(average)
}

/// Writes the values, one after the other, to the places whose bit is set, and zero to the others.
/// Processors cannot predict the bits, so no branch depends on them: for eight places at a time the
/// next eight values are read, and each place takes the one given by its rank among the set bits.
#[inline(always)]
fn expand(marks: &[u8], values: &[[u8; 4]], places: &mut [f32]) {
    let mut rest = values;
    for (places, &byte) in places.chunks_mut(8).zip(marks) {
        let mut next = [0; 8];
        match rest.first_chunk::<8>() {
            Some(first) => next = first.map(u32::from_le_bytes),
            None => (next.iter_mut().zip(rest)).for_each(|(n, &v)| *n = u32::from_le_bytes(v)),
        }
        let ranks = &RANKS[usize::from(byte)];
        let expanded: [u32; 8] = std::array::from_fn(|bit| {
            let present = u32::from(byte >> bit & 1).wrapping_neg();
            next[usize::from(ranks[bit] % 8)] & present
        });
        for (place, bits) in places.iter_mut().zip(expanded) {
            *place = f32::from_bits(bits);
        }
        rest = &rest[(byte.count_ones() as usize).min(rest.len())..];
    }
}

/// For every byte and every bit of it: how many bits below are set.
static RANKS: [[u8; 8]; 256] = {
    let mut ranks = [[0; 8]; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut bit = 0;
        while bit < 8 {
            ranks[byte][bit] = (byte & ((1 << bit) - 1)).count_ones() as u8;
            bit += 1;
        }
        byte += 1;
    }
    ranks
};

fn index_error(found: usize, dimension: usize) -> DecodeError {
    DecodeError::Header {
        field: "an ascending index below",
        expected: dimension as u64,
        found: found as u64,
    }
}

/// Writes the header of what the server sends in `round`; the body is [`Downlink::encode`]'s.
pub fn put_downlink_header(downlink: &Downlink, round: u32, message: &mut Vec<u8>) {
    let kind = downlink_byte(downlink);
    put(kind, downlink.dimension(), round, message);
}

/// Reads what the server sends in `round` into `update`, which is to be added to the model.
///
/// # Errors
/// When the bytes are none of this run and round; `update` is then empty.
pub fn decode_downlink(
    downlink: &Downlink,
    round: u32,
    message: &[u8],
    update: &mut Update,
) -> Result<(), DecodeError> {
    update.clear();
    let (header, body) = split_header(message, HEADER_LEN + downlink.encoded_len())?;
    check_header(header, round, downlink.dimension())?;
    let kind = downlink_byte(downlink);
    expect("kind", u64::from(kind), u64::from(header[1]))?;
    downlink.decode(round, body, update)
}

fn downlink_byte(downlink: &Downlink) -> u8 {
    match downlink.kind().rounding {
        Rounding::Exact => 24,
        Rounding::Qsgd { .. } => 25,
        Rounding::Natural => 26,
        Rounding::Sign => 27,
    }
}

/// Bytes of the three forms of an average, without the header.
fn average_lens(dimension: usize, nonzero: usize) -> [usize; 3] {
    let dense = 4 * dimension;
    let bitmap = dimension.div_ceil(8) + 4 * nonzero;
    let pairs = 8 * nonzero;
    [dense, bitmap, pairs]
}

/// Bytes of one averaged message on its way to a client, header included: the shortest of all
/// values, a bitmap with the nonzero values, and pairs of index and value.
pub fn downlink_len(dimension: usize, nonzero: usize) -> usize {
    let [dense, bitmap, pairs] = average_lens(dimension, nonzero);
    HEADER_LEN + dense.min(bitmap).min(pairs)
}

/// Most bytes that an average of this dimension can have.
pub fn largest_average(dimension: usize) -> usize {
    downlink_len(dimension, dimension)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::compress::CompressorKind;

    fn compressor() -> Compressor {
        Compressor::new(CompressorKind::RandK { k: 2 }, 5, 1.0).unwrap()
    }

    fn message(round: u32) -> Vec<u8> {
        let mut message = Vec::new();
        put_header(&compressor(), round, &mut message);
        message.extend_from_slice(b"0123456789abcdef");
        message.extend([1.5f32, -2.0].iter().flat_map(|value| value.to_le_bytes()));
        message
    }

    #[test]
    fn reads_what_it_wrote_and_nothing_else() {
        let mut update = Update::default();
        let good = message(7);
        assert_eq!(decode(&compressor(), 7, &good, &mut update), Ok(true));
        assert_eq!(update.values(), [1.5, -2.0]);
        let field = |result: Result<bool, DecodeError>| match result {
            Err(DecodeError::Header { field, .. }) => field,
            other => panic!("{other:?}"),
        };
        assert_eq!(field(decode(&compressor(), 8, &good, &mut update)), "round");
        for (at, name) in [(0, "version"), (1, "kind"), (6, "dimension")] {
            let mut bad = good.clone();
            bad[at] += 1;
            assert_eq!(field(decode(&compressor(), 7, &bad, &mut update)), name);
        }
        for len in 0..good.len() {
            assert!(matches!(
                decode(&compressor(), 7, &good[..len], &mut update),
                Err(DecodeError::Length { .. })
            ));
        }
        let mut nan = good;
        nan[HEADER_LEN + 16..HEADER_LEN + 20].copy_from_slice(&f32::NAN.to_le_bytes());
        assert_eq!(
            decode(&compressor(), 7, &nan, &mut update),
            Err(DecodeError::NotFinite { position: 0 })
        );
    }

    #[test]
    fn absence_has_no_body() {
        let mut absent = Vec::new();
        put_absence(&compressor(), 3, &mut absent);
        let mut update = Update::default();
        assert_eq!(decode(&compressor(), 3, &absent, &mut update), Ok(false));
        absent.push(0);
        assert!(decode(&compressor(), 3, &absent, &mut update).is_err());
    }

    #[test]
    fn the_downlink_takes_the_cheapest_form() {
        assert_eq!(downlink_len(100, 100), HEADER_LEN + 400);
        assert_eq!(downlink_len(100, 20), HEADER_LEN + 13 + 80);
        assert_eq!(downlink_len(1000, 3), HEADER_LEN + 24);
    }

    /// More pairs than numbers were once taken for an average, and nothing of them was read.
    #[test]
    fn a_list_of_too_many_pairs_is_refused() {
        for pairs in [9u32, 10, 17] {
            let mut bytes = vec![VERSION, PAIRS, 3, 0, 0, 0, 9, 0, 0, 0];
            for index in 0..pairs {
                bytes.extend(index.min(8).to_le_bytes());
                bytes.extend(1.0f32.to_le_bytes());
            }
            let mut average = [f32::NAN; 9];
            let result = decode_average(3, &bytes, &mut average);
            assert_eq!(result.is_ok(), pairs == 9, "{pairs}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = decode(&compressor(), 7, &bytes, &mut Update::default());
        }

        /// Any average survives the trip to the bit, has the promised length, and its truncations
        /// are refused.
        #[test]
        fn averages_keep_their_bits(
            dimension in 1usize..70,
            filled in prop::collection::vec((0usize..70, -1e30f32..1e30), 0..70),
        ) {
            let mut average = vec![0.0f32; dimension];
            for (index, value) in filled {
                average[index % dimension] = value;
            }
            average[0] = -0.0;
            // What was there before must not show.
            let (mut bytes, mut back) = (Vec::new(), vec![f32::NAN; dimension]);
            put_average(&average, 3, &mut bytes);
            prop_assert_eq!(bytes.len(), downlink_len(dimension, nonzero(&average)));
            prop_assert!(bytes.len() <= largest_average(dimension));
            decode_average(3, &bytes, &mut back).unwrap();
            let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            prop_assert_eq!(bits(&average), bits(&back));
            prop_assert!(decode_average(4, &bytes, &mut back).is_err());
            prop_assert!(decode_average(3, &bytes, &mut vec![0.0; dimension + 1]).is_err());
            for len in 0..bytes.len() {
                let cut = decode_average(3, &bytes[..len], &mut back);
                // A list of pairs may end earlier; it is still one.
                prop_assert!(cut.is_err() || bytes[1] == PAIRS);
            }
        }

        #[test]
        fn arbitrary_averages_never_panic(
            kind in 15u8..20,
            body in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let mut bytes = vec![VERSION, kind, 3, 0, 0, 0, 9, 0, 0, 0];
            bytes.extend(body);
            let mut average = [f32::NAN; 9];
            if decode_average(3, &bytes, &mut average).is_ok() {
                prop_assert!(average.iter().all(|v| v.is_finite()));
            }
        }
    }
}
