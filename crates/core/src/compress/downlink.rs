//! Compression of what the server sends: the difference between its own model and the one that
//! everybody holds.
//!
//! Both are public, functions of released messages and public randomness, so this costs no privacy,
//! and the coordinates, the coins and the rounding may be chosen by anything that is public. So
//! nothing has to be unbiased either: what a round leaves out stays in the difference and travels
//! later (error feedback; see [`crate::protocol`]). All that is needed is a contraction,
//! `E |C(x) - x|^2 <= (1 - delta) |x|^2`:
//!
//! | what travels | delta | bytes for `k` coordinates |
//! | --- | --- | --- |
//! | exact values | 1 | `4 k` |
//! | natural: powers of two | 8/9 | `9 k / 8` |
//! | sign, and the mean magnitude of a bucket | 2/pi = 0.64 for normal `x`, at least `1/b` | `k/8 + 4 k/b` |
//! | QSGD, `s` levels of the norm of a bucket | `1 / (1 + min(b/s^2, sqrt(b)/s))` | `k (1 + bits of s) / 8 + 4 k/b` |
//!
//! A bucket is `b` = [`BUCKET`] coordinates in a row. With `k < d` coordinates, chosen anew in
//! every round by the public seed and so without an index, `delta` is multiplied by `k/d`. Unbiased
//! roundings are divided by `1 + omega`, which makes them contractions (`delta = 1/(1 + omega)`).
//!
//! **Cost.** `O(d)`.

use rand::Rng;

use super::bits::{BitReader, BitWriter, packed_len};
use super::{CompressError, DecodeError, Selection, Update, check_finite, clamp, natural, qsgd};
use crate::linalg::bytes::{append_floats, floats};
use crate::random::{IndexSeed, PublicPurpose, PublicSeed};

/// Coordinates that share a scale.
pub const BUCKET: usize = 512;

/// The choice of a compression of the way down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DownlinkKind {
    /// How many coordinates travel in a round; `None`: all.
    pub coordinates: Option<usize>,
    /// How each of them is written.
    pub rounding: Rounding,
}

/// How a value on its way down is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// As it is.
    Exact,
    /// One of so many levels of its bucket's norm.
    Qsgd {
        /// Number of levels `s`.
        levels: u32,
    },
    /// A power of two.
    Natural,
    /// Its sign, with the mean magnitude of its bucket.
    Sign,
}

/// Compression of the way down for models of one dimension.
#[derive(Clone, Debug, PartialEq)]
pub struct Downlink {
    kind: DownlinkKind,
    dimension: usize,
    seed: PublicSeed,
}

impl Downlink {
    /// Compression for models with `dimension` parameters in the run with this public seed.
    ///
    /// # Errors
    /// When a parameter is out of range.
    pub fn new(
        kind: DownlinkKind,
        dimension: usize,
        seed: PublicSeed,
    ) -> Result<Self, CompressError> {
        if dimension > 1 << 31 {
            return Err(CompressError::Dimension(dimension));
        }
        if let Some(k) = kind.coordinates {
            CompressError::check_count("rand-k", k, dimension)?;
        }
        if let Rounding::Qsgd { levels } = kind.rounding {
            qsgd::check(levels)?;
        }
        Ok(Self {
            kind,
            dimension,
            seed,
        })
    }

    /// The choice behind it.
    pub fn kind(&self) -> DownlinkKind {
        self.kind
    }

    /// The model's dimension.
    pub fn dimension(&self) -> usize {
        self.dimension
    }

    /// Values in one message.
    pub fn values(&self) -> usize {
        self.kind.coordinates.unwrap_or(self.dimension)
    }

    /// Bytes of one message body.
    pub fn encoded_len(&self) -> usize {
        let count = self.values();
        let buckets = |bytes: &dyn Fn(usize) -> usize| {
            let last = match count % BUCKET {
                0 => 0,
                rest => bytes(rest),
            };
            count / BUCKET * bytes(BUCKET) + last
        };
        match self.kind.rounding {
            Rounding::Exact => 4 * count,
            Rounding::Natural => natural::encoded_len(count),
            Rounding::Sign => buckets(&|len| 4 + packed_len(len, 1)),
            Rounding::Qsgd { levels } => buckets(&|len| qsgd::encoded_len(len, levels)),
        }
    }

    /// Appends the body that tells how `target` differs from `model` in `round`. `difference` and
    /// `selection` are scratch memory.
    pub fn encode(
        &self,
        round: u32,
        target: &[f32],
        model: &[f32],
        difference: &mut Vec<f32>,
        selection: &mut Selection,
        body: &mut Vec<u8>,
    ) {
        let mut coins = self.choose(round, selection);
        let between = |index: usize| clamp(target[index] - model[index]);
        difference.clear();
        match self.kind.coordinates {
            None => difference.extend((0..self.dimension).map(between)),
            Some(_) => {
                let chosen = selection.indices.iter();
                difference.extend(chosen.map(|&index| between(index as usize)));
            }
        }
        match self.kind.rounding {
            Rounding::Exact => append_floats(difference, body),
            Rounding::Natural => natural::encode(difference, 1.0, &mut coins, body),
            Rounding::Sign => difference
                .chunks(BUCKET)
                .for_each(|bucket| encode_signs(bucket, body)),
            Rounding::Qsgd { levels } => {
                for bucket in difference.chunks(BUCKET) {
                    qsgd::encode(bucket, 1.0, levels, &mut coins, body);
                }
            }
        }
    }

    /// Reads a body of `round` into `update`, which is then to be added to the model. Never panics;
    /// allocates what this run's own messages need, whatever the bytes say.
    ///
    /// # Errors
    /// When the bytes are no body of this run; `update` is then empty.
    pub fn decode(&self, round: u32, body: &[u8], update: &mut Update) -> Result<(), DecodeError> {
        update.clear();
        if body.len() != self.encoded_len() {
            return Err(DecodeError::Length {
                expected: self.encoded_len(),
                found: body.len(),
            });
        }
        let result = self.decode_values(body, &mut update.values);
        if result.is_err() {
            update.clear();
        } else {
            self.choose(round, &mut update.selection);
        }
        result
    }

    fn decode_values(&self, body: &[u8], values: &mut Vec<f32>) -> Result<(), DecodeError> {
        let count = self.values();
        match self.kind.rounding {
            Rounding::Exact => values.extend(floats(body)),
            Rounding::Natural => {
                natural::decode(body, count, values)?;
                let contraction = (1.0 / (1.0 + natural::OMEGA)) as f32;
                values.iter_mut().for_each(|value| *value *= contraction);
            }
            Rounding::Sign => {
                for (start, bucket) in buckets(body, count, |len| 4 + packed_len(len, 1)) {
                    decode_signs(bucket, BUCKET.min(count - start), values);
                }
            }
            Rounding::Qsgd { levels } => {
                let mut levelled = Vec::with_capacity(BUCKET.min(count));
                for (start, bucket) in buckets(body, count, |len| qsgd::encoded_len(len, levels)) {
                    let len = BUCKET.min(count - start);
                    qsgd::decode(bucket, len, levels, &mut levelled)
                        .map_err(|error| behind(start, error))?;
                    let contraction = (1.0 / (1.0 + qsgd::omega(len as f64, levels))) as f32;
                    values.extend(levelled.iter().map(|value| value * contraction));
                }
            }
        }
        check_finite(values)
    }

    /// The coordinates of a round, and the coins that come after them.
    fn choose(&self, round: u32, selection: &mut Selection) -> impl Rng + use<> {
        let mut stream = self.seed.stream(PublicPurpose::Downlink, round);
        selection.some = self.kind.coordinates.is_some();
        selection.seed = self.kind.coordinates.map(|k| {
            let mut seed = IndexSeed([0; IndexSeed::LEN]);
            stream.fill_bytes(&mut seed.0);
            let Selection { indices, marks, .. } = selection;
            seed.choose(k, self.dimension, indices, marks);
            seed
        });
        stream
    }
}

/// The parts of a body that belong to buckets of `count` coordinates, each with its first one.
fn buckets(
    body: &[u8],
    count: usize,
    len: impl Fn(usize) -> usize,
) -> impl Iterator<Item = (usize, &[u8])> {
    let whole = len(BUCKET.min(count)).max(1);
    (0..count).step_by(BUCKET).zip(body.chunks(whole))
}

/// The same error where the values stand behind `start` others.
fn behind(start: usize, mut error: DecodeError) -> DecodeError {
    if let DecodeError::NotFinite { position } | DecodeError::Level { position, .. } = &mut error {
        *position += start;
    }
    error
}

/// The mean magnitude, and a bit for every negative value.
fn encode_signs(bucket: &[f32], body: &mut Vec<u8>) {
    let sum: f64 = bucket.iter().map(|value| f64::from(value.abs())).sum();
    let mean = clamp((sum / bucket.len() as f64) as f32);
    body.extend_from_slice(&mean.to_le_bytes());
    let mut writer = BitWriter::new(body);
    for value in bucket {
        writer.put(u32::from(*value < 0.0), 1);
    }
    writer.finish();
}

fn decode_signs(bucket: &[u8], len: usize, values: &mut Vec<f32>) {
    let Some((mean, signs)) = bucket.split_first_chunk::<4>() else {
        return;
    };
    let mean = f32::from_le_bytes(*mean);
    let mut reader = BitReader::new(signs);
    values.extend((0..len).map(|_| if reader.take(1) == 1 { -mean } else { mean }));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::random::{Purpose, SecretKey, fill_standard_normal};

    const ROUNDINGS: [Rounding; 5] = [
        Rounding::Exact,
        Rounding::Qsgd { levels: 1 },
        Rounding::Qsgd { levels: 16 },
        Rounding::Natural,
        Rounding::Sign,
    ];

    fn downlink(coordinates: Option<usize>, rounding: Rounding, dimension: usize) -> Downlink {
        let kind = DownlinkKind {
            coordinates,
            rounding,
        };
        Downlink::new(kind, dimension, PublicSeed(9)).unwrap()
    }

    fn compress(downlink: &Downlink, round: u32, x: &[f32]) -> (Vec<u8>, Vec<f32>) {
        let (mut body, mut update) = (Vec::new(), Update::default());
        let (mut difference, mut selection) = (Vec::new(), Selection::default());
        let zeros = vec![0.0; x.len()];
        downlink.encode(round, x, &zeros, &mut difference, &mut selection, &mut body);
        assert_eq!(body.len(), downlink.encoded_len(), "{downlink:?}");
        downlink.decode(round, &body, &mut update).unwrap();
        let mut dense = zeros;
        update.add_to(1.0, &mut dense);
        (body, dense)
    }

    fn squares(x: impl Iterator<Item = f32>) -> f64 {
        x.map(|value| f64::from(value).powi(2)).sum()
    }

    /// The worst case that the module's table allows.
    fn contraction(downlink: &Downlink) -> f64 {
        let count = downlink.values();
        let bucket = BUCKET.min(count) as f64;
        let rounding = match downlink.kind.rounding {
            Rounding::Exact => 1.0,
            Rounding::Natural => 8.0 / 9.0,
            Rounding::Qsgd { levels } => 1.0 / (1.0 + qsgd::omega(bucket, levels)),
            Rounding::Sign => 1.0 / bucket,
        };
        rounding * count as f64 / downlink.dimension as f64
    }

    /// `E |C(x) - x|^2 <= (1 - delta) |x|^2` for all forms on three vectors: 400 rounds each, and
    /// 5% of room for their mean. The seed is fixed.
    #[test]
    fn every_form_contracts() {
        let dimension = 700;
        let mut normal = vec![0.0; dimension];
        fill_standard_normal(
            &mut SecretKey::simulated(5, 0).stream(0, Purpose::Noise),
            &mut normal,
        );
        let mut spike = vec![0.0; dimension];
        spike[600] = -3.0;
        let spread: Vec<f32> = (0..dimension).map(|i| (i as f32 - 311.3).powi(3)).collect();
        for rounding in ROUNDINGS {
            for coordinates in [None, Some(700), Some(350), Some(600)] {
                let downlink = downlink(coordinates, rounding, dimension);
                for x in [&normal, &spike, &spread] {
                    let rounds = 400;
                    let errors = (0..rounds).map(|round| {
                        let (_, sent) = compress(&downlink, round, x);
                        squares(sent.iter().zip(x).map(|(sent, x)| sent - x))
                    });
                    let error = errors.sum::<f64>() / f64::from(rounds);
                    let norm = squares(x.iter().copied());
                    let bound = (1.0 - contraction(&downlink)) * norm;
                    assert!(
                        error <= bound + 0.05 * norm,
                        "{downlink:?}: {error} > {bound}"
                    );
                }
            }
        }
        // What the table says of signs of normal numbers.
        let (_, sent) = compress(&downlink(None, Rounding::Sign, dimension), 0, &normal);
        let error = squares(sent.iter().zip(&normal).map(|(sent, x)| sent - x));
        let share = 1.0 - error / squares(normal.iter().copied());
        assert!((share - 2.0 / std::f64::consts::PI).abs() < 0.05, "{share}");
    }

    /// Buckets of every length: none, one short one, whole ones, and a rest.
    #[test]
    fn signs_and_sizes_are_those_of_their_bucket() {
        for dimension in [1, 7, 8, 9, 511, 512, 513, 1030] {
            let x: Vec<f32> = (0..dimension)
                .map(|i| (i as f32 * 0.7).sin() - 0.1)
                .collect();
            let (body, sent) = compress(&downlink(None, Rounding::Sign, dimension), 3, &x);
            let lens = x.chunks(BUCKET).map(|bucket| 4 + bucket.len().div_ceil(8));
            assert_eq!(body.len(), lens.sum::<usize>());
            for (bucket, sent) in x.chunks(BUCKET).zip(sent.chunks(BUCKET)) {
                let sum: f64 = bucket.iter().map(|value| f64::from(value.abs())).sum();
                let mean = (sum / bucket.len() as f64) as f32;
                for (value, sent) in bucket.iter().zip(sent) {
                    assert_eq!(*sent, if *value < 0.0 { -mean } else { mean });
                }
            }
        }
    }

    /// The bytes are a contract: these were written down when the format was made.
    #[test]
    fn bytes_are_pinned() {
        let x: Vec<f32> = (0..1030).map(|i| (i as f32 - 500.25) / 64.0).collect();
        let digests = ROUNDINGS.map(|rounding| {
            [None, Some(600)].map(|coordinates| {
                let (body, _) = compress(&downlink(coordinates, rounding, x.len()), 5, &x);
                body.iter().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
                    (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
                })
            })
        });
        let written = [
            [0x6df4_66e7_96b1_4505, 0xb6c6_1243_1173_67fc],
            [0xc3cd_f0e9_e019_6b7f, 0x588a_b825_f760_c1f4],
            [0xea0b_73f8_45ff_5c86, 0xd5d7_d6bf_05e4_fe8e],
            [0x67d1_bf7c_c7ea_90e3, 0x4bea_bf7c_a5a5_65c1],
            [0x543a_5e74_c6d4_3414, 0xd63f_22e2_9737_0047],
        ];
        assert_eq!(digests, written, "{digests:x?}");
    }

    #[test]
    fn refuses_impossible_parameters() {
        let build = |coordinates, rounding| {
            let kind = DownlinkKind {
                coordinates,
                rounding,
            };
            Downlink::new(kind, 10, PublicSeed(0)).map(|_| ())
        };
        assert!(build(Some(0), Rounding::Sign).is_err());
        assert!(build(Some(11), Rounding::Exact).is_err());
        assert!(build(None, Rounding::Qsgd { levels: 0 }).is_err());
        assert!(build(None, Rounding::Qsgd { levels: 40_000 }).is_err());
        assert_eq!(build(Some(10), Rounding::Natural), Ok(()));
    }

    /// Models that have left the range of numbers are told of in finite numbers.
    #[test]
    fn what_is_told_is_finite() {
        let x = [f32::NAN, f32::INFINITY, f32::MIN, f32::MAX, 1.0, -0.0];
        for rounding in ROUNDINGS {
            let (_, sent) = compress(&downlink(None, rounding, x.len()), 0, &x);
            assert!(sent.iter().all(|value| value.is_finite()), "{rounding:?}");
        }
    }

    proptest! {
        /// Whatever bytes come: an error, or finite values for the round's coordinates.
        #[test]
        fn arbitrary_bytes_never_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..300),
            fill in any::<u8>(),
            dimension in 1usize..1100,
            part in 0usize..1100,
            round in any::<u32>(),
        ) {
            let coordinates = Some(part).filter(|part| (1..=dimension).contains(part));
            for rounding in ROUNDINGS {
                let downlink = downlink(coordinates, rounding, dimension);
                let mut update = Update::default();
                let result = downlink.decode(round, &bytes, &mut update);
                prop_assert!(result.is_ok() || update.values().is_empty());
                let mut fitting = bytes.clone();
                fitting.resize(downlink.encoded_len(), fill);
                if downlink.decode(round, &fitting, &mut update).is_ok() {
                    prop_assert_eq!(update.values().len(), downlink.values());
                    prop_assert!(update.values().iter().all(|value| value.is_finite()));
                } else {
                    prop_assert!(update.values().is_empty());
                }
            }
        }
    }
}
