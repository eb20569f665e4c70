//! Messages as bytes: a short versioned header, then the compressor's body.
//!
//! ```text
//! offset  0        1       2            6                10
//!         version  kind    round (u32)  dimension (u32)  body of the compressor ...
//! ```
//! All numbers are little-endian. A message is parsed against what the run prescribes (version,
//! kind, round, dimension), so the same bytes cannot mean two things, and its length is known
//! before a byte of the body is read. `kind` 0 says that the client sits this round out; it has no
//! body.

use crate::compress::{Compressor, CompressorKind, DecodeError, Update};

/// Version of the format.
pub const VERSION: u8 = 1;

/// Bytes before the body.
pub const HEADER_LEN: usize = 10;

const ABSENT: u8 = 0;

/// Writes the header of a message that carries a body.
pub fn put_header(compressor: &Compressor, round: u32, message: &mut Vec<u8>) {
    put(kind_byte(compressor.kind()), compressor, round, message);
}

/// Writes the message of a client that sits the round out.
pub fn put_absence(compressor: &Compressor, round: u32, message: &mut Vec<u8>) {
    put(ABSENT, compressor, round, message);
}

fn put(kind: u8, compressor: &Compressor, round: u32, message: &mut Vec<u8>) {
    message.clear();
    message.push(VERSION);
    message.push(kind);
    message.extend_from_slice(&round.to_le_bytes());
    message.extend_from_slice(&(compressor.dimension() as u32).to_le_bytes());
}

/// Reads a message of `round` into `update`; `false` if the client sits the round out.
///
/// # Errors
/// When the bytes are not a message of this run and round. Nothing is allocated on the word of a
/// header.
pub fn decode(
    compressor: &Compressor,
    round: u32,
    message: &[u8],
    update: &mut Update,
) -> Result<bool, DecodeError> {
    let Some((header, body)) = message.split_at_checked(HEADER_LEN) else {
        let expected = HEADER_LEN + compressor.encoded_len();
        return Err(DecodeError::Length {
            expected,
            found: message.len(),
        });
    };
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
    expect("dimension", compressor.dimension() as u64, number(6))?;
    if header[1] == ABSENT {
        return match body.len() {
            0 => Ok(false),
            found => Err(DecodeError::Length { expected: 0, found }),
        };
    }
    expect(
        "kind",
        u64::from(kind_byte(compressor.kind())),
        u64::from(header[1]),
    )?;
    compressor.decode(body, update)?;
    Ok(true)
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

fn kind_byte(kind: CompressorKind) -> u8 {
    match kind {
        CompressorKind::Identity => 1,
        CompressorKind::RandK { .. } => 2,
        CompressorKind::Qsgd { .. } => 3,
        CompressorKind::Natural => 4,
    }
}

/// Bytes of one averaged message on its way down: the cheapest of all values, a bitmap with the
/// nonzero values, or index and value pairs; plus the header.
pub fn downlink_len(dimension: usize, nonzero: usize) -> usize {
    let dense = 4 * dimension;
    let bitmap = dimension.div_ceil(8) + 4 * nonzero;
    let pairs = 8 * nonzero;
    HEADER_LEN + dense.min(bitmap).min(pairs)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = decode(&compressor(), 7, &bytes, &mut Update::default());
        }
    }
}
