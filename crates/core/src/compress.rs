//! Unbiased compression of the shifted estimate, after noise was added.
//!
//! A compressor is a random map `C` with `E C(x) = x` and `E |C(x) - x|^2 <= omega |x|^2`
//! (Definition 1 of the paper). It acts on [`Released`] values only, so that it cannot cost
//! privacy. Biased operators (top-k, sign) are not compressors in this sense: the paper's theorems
//! need unbiasedness, shifted compression diverges from its fixed point without it, and top-k of a
//! gradient would leak through the choice of coordinates.
//!
//! | compressor | omega | a message of dimension `d` |
//! | --- | --- | --- |
//! | identity | 0 | 32 bits per coordinate |
//! | random-k | d/k - 1 | a seed and `k` values; no indices |
//! | QSGD, `s` levels | min(d/s^2, sqrt(d)/s) | the norm, then a sign and a level per coordinate |
//! | natural | 1/8 | a sign and an exponent: 9 bits per coordinate |
//!
//! **Participation is a compressor.** A client that takes part with probability `p` and scales by
//! `1/p` is unbiased with `1 + omega' = (1 + omega)/p`: same theory, same shift step, one code
//! path.
//!
//! **Cost.** Only what travels is computed. Random-k chooses its coordinates before anything is
//! computed ([`Compressor::select`]), from a seed that is independent of the data; gradient, noise
//! and shift are then needed on those coordinates alone.

mod bits;
mod natural;
mod qsgd;

use crate::linalg::all_finite;
use crate::linalg::bytes::floats;
use crate::linalg::memory::thread_buffer;
use crate::objective::Coordinates;
use crate::privacy::Released;
use crate::random::{IndexSeed, SecretRng};

/// The choice of a compressor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CompressorKind {
    /// Sends everything.
    Identity,
    /// Sends `k` coordinates chosen uniformly.
    RandK {
        /// How many.
        k: usize,
    },
    /// Random dithering with `levels` levels (Alistarh et al. 2017).
    Qsgd {
        /// Number of levels `s`.
        levels: u32,
    },
    /// Random rounding to a power of two (Horvath et al. 2019).
    Natural,
}

/// Why a compressor cannot be built.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CompressError {
    /// Random-k with a `k` outside `1..=d`.
    #[error("random-k needs 1 <= k <= {dimension}, found k = {k}")]
    Count {
        /// The `k` asked for.
        k: usize,
        /// The model's dimension.
        dimension: usize,
    },
    /// QSGD with a useless number of levels.
    #[error("qsgd needs 1 <= levels <= 32767, found {0}")]
    Levels(u32),
    /// A participation probability outside `(0, 1]`.
    #[error("participation must lie in (0, 1], found {0}")]
    Participation(f64),
    /// A dimension the wire format cannot carry.
    #[error("the model has {0} parameters, but at most 2^31 can be sent")]
    Dimension(usize),
}

/// Why the body of a message cannot be read.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// Too short or too long.
    #[error("expected {expected} bytes, found {found}")]
    Length {
        /// Bytes that a message of this kind has.
        expected: usize,
        /// Bytes received.
        found: usize,
    },
    /// A header field differs from what the run prescribes.
    #[error("expected {field} {expected}, found {found}")]
    Header {
        /// Which field.
        field: &'static str,
        /// What the run prescribes.
        expected: u64,
        /// What the message says.
        found: u64,
    },
    /// A value that is not a finite number.
    #[error("value {position} is not a finite number")]
    NotFinite {
        /// Its position in the message.
        position: usize,
    },
    /// A level above the number of levels.
    #[error("value {position} has level {found}, above {levels}")]
    Level {
        /// Its position in the message.
        position: usize,
        /// The level found.
        found: u32,
        /// The number of levels.
        levels: u32,
    },
}

/// A compressor for models of one dimension, participation included.
#[derive(Clone, Debug, PartialEq)]
pub struct Compressor {
    kind: CompressorKind,
    dimension: usize,
    participation: f64,
}

/// The coordinates that will travel this round, with the scratch memory to draw them.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    seed: Option<IndexSeed>,
    indices: Vec<u32>,
    marks: Vec<u64>,
}

impl Selection {
    /// An empty selection with the buffers of one thread.
    pub(crate) fn for_thread() -> Self {
        Self {
            seed: None,
            indices: thread_buffer(0),
            marks: thread_buffer(0),
        }
    }

    /// The coordinates, ascending.
    pub fn coordinates(&self) -> Coordinates<'_> {
        match self.seed {
            Some(_) => Coordinates::Selected(&self.indices),
            None => Coordinates::All,
        }
    }
}

/// A decoded message: values on coordinates. Buffers are reused.
#[derive(Clone, Debug, Default)]
pub struct Update {
    selection: Selection,
    values: Vec<f32>,
}

impl Update {
    /// An empty update with the buffers of one thread.
    pub(crate) fn for_thread() -> Self {
        Self {
            selection: Selection::for_thread(),
            values: thread_buffer(0),
        }
    }

    /// Where the values belong.
    pub fn coordinates(&self) -> Coordinates<'_> {
        self.selection.coordinates()
    }

    /// The values, in the order of the coordinates.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Adds `scale` times this update to a dense vector.
    pub fn add_to(&self, scale: f32, target: &mut [f32]) {
        match self.coordinates() {
            Coordinates::All => {
                for (target, value) in target.iter_mut().zip(&self.values) {
                    *target += scale * value;
                }
            }
            Coordinates::Selected(indices) => {
                for (&index, value) in indices.iter().zip(&self.values) {
                    target[index as usize] += scale * value;
                }
            }
        }
    }
}

impl Compressor {
    /// A compressor for models with `dimension` parameters, used by clients that take part with
    /// probability `participation`.
    ///
    /// # Errors
    /// When a parameter is out of range.
    pub fn new(
        kind: CompressorKind,
        dimension: usize,
        participation: f64,
    ) -> Result<Self, CompressError> {
        if dimension > 1 << 31 {
            return Err(CompressError::Dimension(dimension));
        }
        if !(participation > 0.0 && participation <= 1.0) {
            return Err(CompressError::Participation(participation));
        }
        match kind {
            CompressorKind::RandK { k } if k == 0 || k > dimension => {
                Err(CompressError::Count { k, dimension })
            }
            CompressorKind::Qsgd { levels } if levels == 0 || levels > 32_767 => {
                Err(CompressError::Levels(levels))
            }
            _ => Ok(Self {
                kind,
                dimension,
                participation,
            }),
        }
    }

    /// The choice behind this compressor.
    pub fn kind(&self) -> CompressorKind {
        self.kind
    }

    /// The model's dimension.
    pub fn dimension(&self) -> usize {
        self.dimension
    }

    /// The probability with which a client takes part.
    pub fn participation(&self) -> f64 {
        self.participation
    }

    /// The variance parameter omega, participation included.
    pub fn omega(&self) -> f64 {
        let d = self.dimension as f64;
        let omega = match self.kind {
            CompressorKind::Identity => 0.0,
            CompressorKind::RandK { k } => d / k as f64 - 1.0,
            CompressorKind::Qsgd { levels } => qsgd::omega(d, levels),
            CompressorKind::Natural => natural::OMEGA,
        };
        (1.0 + omega) / self.participation - 1.0
    }

    /// `k/d` where coordinates are chosen at random, `None` where all travel.
    pub fn fraction(&self) -> Option<f64> {
        match self.kind {
            CompressorKind::RandK { k } => Some(k as f64 / self.dimension as f64),
            _ => None,
        }
    }

    /// Values in one message.
    pub fn values(&self) -> usize {
        match self.kind {
            CompressorKind::RandK { k } => k,
            _ => self.dimension,
        }
    }

    /// Bytes of one message body.
    pub fn encoded_len(&self) -> usize {
        match self.kind {
            CompressorKind::Identity => 4 * self.dimension,
            CompressorKind::RandK { k } => IndexSeed::LEN + 4 * k,
            CompressorKind::Qsgd { levels } => qsgd::encoded_len(self.dimension, levels),
            CompressorKind::Natural => natural::encoded_len(self.dimension),
        }
    }

    /// Derives the coordinates that will travel from `seed`: a fresh one, drawn after the model of
    /// the round is known from a stream that nothing else uses, or a public one.
    pub fn select(&self, seed: IndexSeed, selection: &mut Selection) {
        selection.seed = match self.kind {
            CompressorKind::RandK { k } => {
                seed.choose(
                    k,
                    self.dimension,
                    &mut selection.indices,
                    &mut selection.marks,
                );
                Some(seed)
            }
            _ => None,
        };
    }

    /// Compresses `residual`, given on the selected coordinates: appends the body to `body` and
    /// writes what [`decode`](Self::decode) makes of it to `update`. The content of `selection` is
    /// unspecified afterwards.
    pub fn encode(
        &self,
        residual: &Released,
        selection: &mut Selection,
        coins: &mut SecretRng,
        body: &mut Vec<u8>,
        update: &mut Update,
    ) {
        let values = residual.values();
        let scale = 1.0 / self.participation;
        let start = body.len();
        match self.kind {
            CompressorKind::Identity => {
                put_values(values, scale, body, &mut update.values);
                update.selection.seed = None;
            }
            CompressorKind::RandK { k } => {
                body.extend_from_slice(&selection.seed.map_or([0; IndexSeed::LEN], |seed| seed.0));
                put_values(
                    values,
                    scale * self.dimension as f64 / k as f64,
                    body,
                    &mut update.values,
                );
                // Drawing the coordinates again from the seed would give the same.
                std::mem::swap(selection, &mut update.selection);
            }
            CompressorKind::Qsgd { .. } | CompressorKind::Natural => {
                match self.kind {
                    CompressorKind::Qsgd { levels } => {
                        qsgd::encode(values, scale, levels, coins, body)
                    }
                    _ => natural::encode(values, scale, coins, body),
                }
                let own = self.decode(&body[start..], update);
                debug_assert_eq!(own, Ok(()), "a message must be readable by its sender");
            }
        }
    }

    /// Reads a body into `update`. Never panics; allocates what this compressor's own messages
    /// need, whatever the bytes say.
    ///
    /// # Errors
    /// When the bytes are no message of this compressor.
    pub fn decode(&self, body: &[u8], update: &mut Update) -> Result<(), DecodeError> {
        if body.len() != self.encoded_len() {
            return Err(DecodeError::Length {
                expected: self.encoded_len(),
                found: body.len(),
            });
        }
        update.selection.seed = None;
        match self.kind {
            CompressorKind::Identity => take_values(body, &mut update.values),
            CompressorKind::RandK { k } => {
                let (seed, values) = body.split_at(IndexSeed::LEN);
                let mut bytes = [0; IndexSeed::LEN];
                bytes.copy_from_slice(seed);
                let seed = IndexSeed(bytes);
                let Selection { indices, marks, .. } = &mut update.selection;
                seed.choose(k, self.dimension, indices, marks);
                update.selection.seed = Some(seed);
                take_values(values, &mut update.values)
            }
            CompressorKind::Qsgd { levels } => {
                qsgd::decode(body, self.dimension, levels, &mut update.values)
            }
            CompressorKind::Natural => natural::decode(body, self.dimension, &mut update.values),
        }
    }
}

fn put_values(values: &[f32], scale: f64, body: &mut Vec<u8>, sent: &mut Vec<f32>) {
    let scale = scale as f32;
    sent.clear();
    sent.extend(values.iter().map(|value| clamp(value * scale)));
    let start = body.len();
    body.resize(start + 4 * sent.len(), 0);
    for (bytes, value) in body[start..]
        .as_chunks_mut::<4>()
        .0
        .iter_mut()
        .zip(sent.iter())
    {
        *bytes = value.to_le_bytes();
    }
}

/// Noise and clipping keep released values far from the range of `f32`, but a shift fed by a
/// malicious server may not: what is sent must be finite, and clamping is post-processing.
fn clamp(value: f32) -> f32 {
    if value.is_nan() {
        0.0
    } else {
        value.clamp(f32::MIN, f32::MAX)
    }
}

fn take_values(bytes: &[u8], values: &mut Vec<f32>) -> Result<(), DecodeError> {
    values.clear();
    values.extend(floats(bytes));
    check_finite(values)
}

/// Refuses values that are not finite, with the place of the first.
pub(crate) fn check_finite(values: &[f32]) -> Result<(), DecodeError> {
    if all_finite(values) {
        return Ok(());
    }
    let position = values.iter().take_while(|value| value.is_finite()).count();
    Err(DecodeError::NotFinite { position })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::random::{Purpose, SecretKey, unit};

    fn kinds(dimension: usize) -> Vec<CompressorKind> {
        vec![
            CompressorKind::Identity,
            CompressorKind::RandK {
                k: dimension.div_ceil(3),
            },
            CompressorKind::Qsgd { levels: 1 },
            CompressorKind::Qsgd { levels: 16 },
            CompressorKind::Natural,
        ]
    }

    fn compress_once(compressor: &Compressor, x: &[f32], round: u32, update: &mut Update) {
        let key = SecretKey::simulated(11, 0);
        let mut selection = Selection::default();
        let seed = IndexSeed::draw(&mut key.stream(round, Purpose::Noise));
        compressor.select(seed, &mut selection);
        let chosen: Vec<f32> = match selection.coordinates() {
            Coordinates::All => x.to_vec(),
            Coordinates::Selected(indices) => indices.iter().map(|&i| x[i as usize]).collect(),
        };
        let mut body = Vec::new();
        let mut coins = key.stream(round, Purpose::Rounding);
        let mut sent = Update::default();
        compressor.encode(
            &Released::for_tests(chosen),
            &mut selection,
            &mut coins,
            &mut body,
            &mut sent,
        );
        assert_eq!(body.len(), compressor.encoded_len());
        compressor.decode(&body, update).unwrap();
        assert_eq!(update.coordinates(), sent.coordinates());
        assert_eq!(update.values(), sent.values());
    }

    /// Unbiased in every coordinate, and within omega, for every compressor on three vectors:
    /// 4,000 draws each. A mean may be off by 6 standard errors of its own bound
    /// `omega |x|^2 / draws`, a squared error by 10% of its bound: the fixed seed passes, and a
    /// fresh one would fail with probability below 1e-6.
    #[test]
    fn unbiased_and_within_omega() {
        let dimension = 24;
        let mut rng = SecretKey::simulated(5, 0).stream(0, Purpose::Noise);
        let random: Vec<f32> = (0..dimension)
            .map(|_| (unit(&mut rng) - 0.5) as f32)
            .collect();
        let mut spike = vec![0.0; dimension];
        spike[7] = -3.0;
        let spread: Vec<f32> = (0..dimension).map(|i| (i as f32 - 11.3).powi(3)).collect();
        for kind in kinds(dimension) {
            for participation in [1.0, 0.4] {
                let compressor = Compressor::new(kind, dimension, participation).unwrap();
                for x in [&random, &spike, &spread] {
                    check_unbiased(&compressor, x);
                }
            }
        }
    }

    fn check_unbiased(compressor: &Compressor, x: &[f32]) {
        let draws = 4_000u32;
        let mut mean = vec![0f64; x.len()];
        let mut error = 0f64;
        let mut update = Update::default();
        let mut coin = SecretKey::simulated(6, 0).stream(0, Purpose::Participation);
        for draw in 0..draws {
            let mut dense = vec![0f32; x.len()];
            if unit(&mut coin) < compressor.participation() {
                compress_once(compressor, x, draw, &mut update);
                update.add_to(1.0, &mut dense);
            }
            for (i, value) in dense.iter().enumerate() {
                mean[i] += f64::from(*value) / f64::from(draws);
                error += f64::from(value - x[i]).powi(2) / f64::from(draws);
            }
        }
        let norm: f64 = x.iter().map(|&v| f64::from(v).powi(2)).sum();
        let bound = compressor.omega() * norm;
        assert!(
            error <= 1.1 * bound + 1e-9 * norm,
            "{compressor:?}: {error} > {bound}"
        );
        let tolerance = 6.0 * (bound / f64::from(draws)).sqrt() + 1e-6 * norm.sqrt();
        for (mean, &x) in mean.iter().zip(x) {
            assert!(
                (mean - f64::from(x)).abs() < tolerance,
                "{compressor:?}: {mean} for {x}"
            );
        }
    }

    #[test]
    fn identity_is_exact_and_omega_is_as_proved() {
        let mut update = Update::default();
        let x = [1.5, -0.25, f32::MIN_POSITIVE, 0.0];
        let identity = Compressor::new(CompressorKind::Identity, 4, 1.0).unwrap();
        compress_once(&identity, &x, 0, &mut update);
        assert_eq!(update.values(), x);
        let omega = |kind, p| Compressor::new(kind, 100, p).unwrap().omega();
        assert_eq!(omega(CompressorKind::RandK { k: 5 }, 1.0), 19.0);
        assert_eq!(omega(CompressorKind::RandK { k: 5 }, 0.5), 39.0);
        assert_eq!(omega(CompressorKind::Qsgd { levels: 1 }, 1.0), 10.0);
        assert_eq!(omega(CompressorKind::Qsgd { levels: 20 }, 1.0), 0.25);
        assert_eq!(omega(CompressorKind::Natural, 1.0), 0.125);
    }

    #[test]
    fn refuses_impossible_parameters() {
        let build = |kind, p| Compressor::new(kind, 10, p).map(|_| ());
        assert_eq!(
            build(CompressorKind::RandK { k: 11 }, 1.0),
            Err(CompressError::Count {
                k: 11,
                dimension: 10
            })
        );
        assert!(build(CompressorKind::RandK { k: 0 }, 1.0).is_err());
        assert!(build(CompressorKind::Qsgd { levels: 0 }, 1.0).is_err());
        assert!(build(CompressorKind::Identity, 0.0).is_err());
        assert!(build(CompressorKind::Identity, f64::NAN).is_err());
        assert!(build(CompressorKind::Identity, 1.1).is_err());
    }

    #[test]
    fn hostile_residuals_are_sent_finite() {
        let x = [
            f32::NAN,
            f32::INFINITY,
            f32::NEG_INFINITY,
            1.0,
            f32::MAX,
            -f32::MAX,
        ];
        for kind in kinds(x.len()) {
            let compressor = Compressor::new(kind, x.len(), 0.5).unwrap();
            let mut update = Update::default();
            compress_once(&compressor, &x, 0, &mut update);
            assert!(
                update.values().iter().all(|value| value.is_finite()),
                "{kind:?}"
            );
        }
    }

    proptest! {
        #[test]
        fn decoding_arbitrary_bytes_never_panics(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
            dimension in 1usize..40,
        ) {
            for kind in kinds(dimension) {
                let compressor = Compressor::new(kind, dimension, 1.0).unwrap();
                let mut update = Update::default();
                let _ = compressor.decode(&bytes, &mut update);
                let mut fitting = bytes.clone();
                fitting.resize(compressor.encoded_len(), 0xff);
                if compressor.decode(&fitting, &mut update).is_ok() {
                    prop_assert!(update.values().iter().all(|value| value.is_finite()));
                }
            }
        }
    }
}
