//! Unbiased compression of the shifted estimate, after noise was added.
//!
//! A compressor is a random map `C` with `E C(x) = x` and `E |C(x) - x|^2 <= omega |x|^2`
//! (Definition 1 of the paper). It acts on [`Released`] values only, so that it cannot cost
//! privacy. Biased operators are not compressors in this sense: the paper's theorems need
//! unbiasedness, and shifted compression diverges from its fixed point without it. So a
//! [`Client`](crate::protocol::Client) refuses the last two rows, which are for clients without a
//! server ([`crate::gossip`]); top-k of a gradient that has noise on some coordinates only would
//! leak through the choice of coordinates.
//!
//! | compressor | omega | a message of dimension `d` |
//! | --- | --- | --- |
//! | identity | 0 | 32 bits per coordinate |
//! | random-k | d/k - 1 | a seed and `k` values; no indices |
//! | QSGD, `s` levels | min(d/s^2, sqrt(d)/s) | the norm, then a sign and a level per coordinate |
//! | natural | 1/8 | a sign and an exponent: 9 bits per coordinate |
//! | grid | none: the error is absolute, `d step^2/4` | a level per coordinate |
//! | top-k | none: biased | `k` places and values |
//!
//! **Participation is a compressor.** A client that takes part with probability `p` and scales by
//! `1/p` is unbiased with `1 + omega' = (1 + omega)/p`: same theory, same shift step, one code
//! path.
//!
//! **Cost.** Only what travels is computed. Random-k chooses its coordinates before anything is
//! computed ([`Compressor::select`]), from a seed that is independent of the data; gradient, noise
//! and shift are then needed on those coordinates alone.

mod bits;
mod downlink;
mod grid;
mod natural;
mod qsgd;
mod top_k;

pub use downlink::{BUCKET, Downlink, DownlinkKind, Rounding};

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
    /// Random rounding to multiples of `step`: for whole models, not for gradients.
    Grid {
        /// The distance of two levels.
        step: f64,
        /// Bits of a level; what needs more is cut off.
        bits: u32,
    },
    /// The `k` coordinates of the largest magnitude. Biased: where all coordinates have noise and
    /// what is left out is sent later.
    TopK {
        /// How many.
        k: usize,
    },
}

/// Why a compressor cannot be built.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CompressError {
    /// Random-k or top-k with a `k` outside `1..=d`.
    #[error("{name} needs 1 <= k <= {dimension}, found k = {k}")]
    Count {
        /// The compressor.
        name: &'static str,
        /// The `k` asked for.
        k: usize,
        /// The model's dimension.
        dimension: usize,
    },
    /// QSGD with a useless number of levels.
    #[error("qsgd needs 1 <= levels <= 32767, found {0}")]
    Levels(u32),
    /// A grid with a useless step or number of bits.
    #[error(
        "a grid needs a step between 1e-20 and 1e20 and 2 to {most} bits, found {step:e} and {bits}",
        most = grid::MOST_BITS
    )]
    Grid {
        /// The step asked for.
        step: f64,
        /// The bits asked for.
        bits: u32,
    },
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
    /// A place that is none, or not after the one before.
    #[error("place {position} is {place}, which is none of the model or not after the one before")]
    Place {
        /// Its position in the message.
        position: usize,
        /// The place found.
        place: u32,
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
    /// Whether only `indices` travel: drawn from the seed, or chosen by the values themselves.
    some: bool,
    indices: Vec<u32>,
    marks: Vec<u64>,
}

impl Selection {
    /// An empty selection with the buffers of one thread.
    pub(crate) fn for_thread() -> Self {
        Self {
            seed: None,
            some: false,
            indices: thread_buffer(0),
            marks: thread_buffer(0),
        }
    }

    /// The coordinates, ascending.
    pub fn coordinates(&self) -> Coordinates<'_> {
        match self.some {
            true => Coordinates::Selected(&self.indices),
            false => Coordinates::All,
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

    /// Forgets everything: adding it adds nothing.
    pub fn clear(&mut self) {
        self.selection.seed = None;
        self.values.clear();
    }

    /// Where the values belong.
    pub fn coordinates(&self) -> Coordinates<'_> {
        self.selection.coordinates()
    }

    /// The values, in the order of the coordinates.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Marks the coordinates with a value that is not zero.
    pub(crate) fn mark_nonzero(&self, marks: &mut [bool]) {
        match self.coordinates() {
            Coordinates::All => {
                let marks = marks.iter_mut().zip(&self.values);
                marks.for_each(|(mark, value)| *mark |= *value != 0.0);
            }
            Coordinates::Selected(indices) => {
                for (&index, value) in indices.iter().zip(&self.values) {
                    marks[index as usize] |= *value != 0.0;
                }
            }
        }
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
            CompressorKind::RandK { k } if k == 0 || k > dimension => Err(CompressError::Count {
                name: "random-k",
                k,
                dimension,
            }),
            CompressorKind::TopK { k } if k == 0 || k > dimension => Err(CompressError::Count {
                name: "top-k",
                k,
                dimension,
            }),
            CompressorKind::Grid { step, bits }
                if !(1e-20..=1e20).contains(&step) || !(2..=grid::MOST_BITS).contains(&bits) =>
            {
                Err(CompressError::Grid { step, bits })
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

    /// Whether `E C(x) = x` with an error relative to `x`: what the theory of shifted and of direct
    /// compression needs.
    pub fn is_unbiased(&self) -> bool {
        !matches!(
            self.kind,
            CompressorKind::Grid { .. } | CompressorKind::TopK { .. }
        )
    }

    /// The variance parameter omega, participation included; infinite where there is none
    /// ([`is_unbiased`](Self::is_unbiased)).
    pub fn omega(&self) -> f64 {
        let d = self.dimension as f64;
        let omega = match self.kind {
            CompressorKind::Identity => 0.0,
            CompressorKind::RandK { k } => d / k as f64 - 1.0,
            CompressorKind::Qsgd { levels } => qsgd::omega(d, levels),
            CompressorKind::Natural => natural::OMEGA,
            CompressorKind::Grid { .. } | CompressorKind::TopK { .. } => f64::INFINITY,
        };
        (1.0 + omega) / self.participation - 1.0
    }

    /// The share `a` of `E |a' C(x) - x|^2 <= (1 - a) |x|^2`, which biased compression needs: with
    /// `a' = 1` for top-k, and for unbiased compressors with `a' = a = 1/(1 + omega)`. Zero for a
    /// grid, whose error is not relative.
    pub fn contraction(&self) -> f64 {
        match self.kind {
            CompressorKind::TopK { k } => k as f64 / self.dimension as f64,
            _ => 1.0 / (1.0 + self.omega()),
        }
    }

    /// `k/d` where some coordinates travel, `None` where all do.
    pub fn fraction(&self) -> Option<f64> {
        match self.kind {
            CompressorKind::RandK { k } | CompressorKind::TopK { k } => {
                Some(k as f64 / self.dimension as f64)
            }
            _ => None,
        }
    }

    /// Values in one message.
    pub fn values(&self) -> usize {
        match self.kind {
            CompressorKind::RandK { k } | CompressorKind::TopK { k } => k,
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
            CompressorKind::Grid { bits, .. } => grid::encoded_len(self.dimension, bits),
            CompressorKind::TopK { k } => top_k::encoded_len(self.dimension, k),
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
        selection.some = selection.seed.is_some();
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
                put_values(values.iter().copied(), scale, body, &mut update.values);
                update.selection.some = false;
            }
            CompressorKind::RandK { k } => {
                body.extend_from_slice(&selection.seed.map_or([0; IndexSeed::LEN], |seed| seed.0));
                put_values(
                    values.iter().copied(),
                    scale * self.dimension as f64 / k as f64,
                    body,
                    &mut update.values,
                );
                // Drawing the coordinates again from the seed would give the same.
                std::mem::swap(selection, &mut update.selection);
            }
            CompressorKind::TopK { k } => {
                let Selection { indices, some, .. } = &mut update.selection;
                top_k::choose(values, k, indices);
                *some = true;
                top_k::put_places(indices, self.dimension, body);
                let largest = indices.iter().map(|&place| values[place as usize]);
                put_values(largest, scale, body, &mut update.values);
            }
            CompressorKind::Qsgd { .. } | CompressorKind::Natural | CompressorKind::Grid { .. } => {
                match self.kind {
                    CompressorKind::Qsgd { levels } => {
                        qsgd::encode(values, scale, levels, coins, body)
                    }
                    CompressorKind::Grid { step, bits } => {
                        grid::encode(values, step, bits, coins, body)
                    }
                    _ => natural::encode(values, scale, coins, body),
                }
                let own = self.decode(&body[start..], update);
                debug_assert_eq!(own, Ok(()), "a message must be readable by its sender");
            }
        }
    }

    /// How many of these values lie beyond the range of a grid, which cuts them off.
    pub fn beyond_range(&self, values: &[f32]) -> usize {
        match self.kind {
            CompressorKind::Grid { step, bits } => grid::beyond(values, step, bits),
            _ => 0,
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
        update.selection.some = false;
        match self.kind {
            CompressorKind::Identity => take_values(body, &mut update.values),
            CompressorKind::RandK { k } => {
                let (seed, values) = body.split_at(IndexSeed::LEN);
                let mut bytes = [0; IndexSeed::LEN];
                bytes.copy_from_slice(seed);
                let seed = IndexSeed(bytes);
                let Selection { indices, marks, .. } = &mut update.selection;
                seed.choose(k, self.dimension, indices, marks);
                (update.selection.seed, update.selection.some) = (Some(seed), true);
                take_values(values, &mut update.values)
            }
            CompressorKind::TopK { k } => {
                let Selection { indices, some, .. } = &mut update.selection;
                *some = true;
                let values = top_k::take_places(body, self.dimension, k, indices)?;
                take_values(values, &mut update.values)
            }
            CompressorKind::Grid { step, bits } => {
                grid::decode(body, self.dimension, step, bits, &mut update.values);
                Ok(())
            }
            CompressorKind::Qsgd { levels } => {
                qsgd::decode(body, self.dimension, levels, &mut update.values)
            }
            CompressorKind::Natural => natural::decode(body, self.dimension, &mut update.values),
        }
    }
}

fn put_values(
    values: impl Iterator<Item = f32>,
    scale: f64,
    body: &mut Vec<u8>,
    sent: &mut Vec<f32>,
) {
    let scale = scale as f32;
    sent.clear();
    sent.extend(values.map(|value| clamp(value * scale)));
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

    /// Those that are not unbiased, or whose error is not relative.
    fn others(dimension: usize) -> Vec<CompressorKind> {
        vec![
            CompressorKind::Grid {
                step: 0.01,
                bits: 9,
            },
            CompressorKind::TopK {
                k: dimension.div_ceil(3),
            },
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
            &Released::derived(chosen),
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

    /// A grid: on levels, unbiased, never further away than a step, cut off at the ends of its
    /// range. 4,000 draws of 24 coordinates; a mean may be off by 6 of its standard errors (at most
    /// half a step each), which a fresh seed would miss with probability below 1e-7.
    #[test]
    fn a_grid_is_unbiased_with_an_absolute_error() {
        let (step, bits) = (0.25, 4);
        let compressor = Compressor::new(CompressorKind::Grid { step, bits }, 24, 1.0).unwrap();
        let x: Vec<f32> = (0..24).map(|i| 0.13 * i as f32 - 1.7).collect();
        let (mut mean, mut error) = (vec![0f64; 24], 0.0);
        let (draws, mut update) = (4_000u32, Update::default());
        for draw in 0..draws {
            compress_once(&compressor, &x, draw, &mut update);
            for (i, &value) in update.values().iter().enumerate() {
                let (value, x) = (f64::from(value), f64::from(x[i]));
                assert_eq!(value, (value / step).round() * step);
                assert!((value - x).abs() <= step, "{value} for {x}");
                mean[i] += value / f64::from(draws);
                error += (value - x).powi(2) / f64::from(draws);
            }
        }
        assert!(error <= 24.0 * step * step / 4.0, "{error}");
        for (mean, &x) in mean.iter().zip(&x) {
            let tolerance = 6.0 * step / 2.0 / f64::from(draws).sqrt();
            assert!((mean - f64::from(x)).abs() < tolerance, "{mean} for {x}");
        }
        let far = [-2.1f32, -2.0, 1.75, 1.8];
        let compressor = Compressor::new(CompressorKind::Grid { step, bits }, 4, 1.0).unwrap();
        compress_once(&compressor, &far, 0, &mut update);
        assert_eq!(update.values(), [-2.0, -2.0, 1.75, 1.75]);
        assert_eq!(compressor.beyond_range(&far), 2);
    }

    #[test]
    fn top_k_sends_the_largest_as_they_are() {
        let compressor = Compressor::new(CompressorKind::TopK { k: 3 }, 7, 1.0).unwrap();
        let mut update = Update::default();
        compress_once(
            &compressor,
            &[1.0, -4.0, 0.5, 4.0, -1.0, 9.0, 4.0],
            0,
            &mut update,
        );
        assert!(matches!(
            update.coordinates(),
            Coordinates::Selected([1, 3, 5])
        ));
        assert_eq!(update.values(), [-4.0, 4.0, 9.0]);
        assert_eq!(compressor.contraction(), 3.0 / 7.0);
        // Places that do not ascend, or are none, are refused.
        let mut body = Vec::new();
        top_k::put_places(&[1, 1, 5], 7, &mut body);
        body.resize(compressor.encoded_len(), 0);
        let refused = compressor.decode(&body, &mut update);
        let place = DecodeError::Place {
            position: 1,
            place: 1,
        };
        assert_eq!(refused, Err(place));
    }

    #[test]
    fn refuses_impossible_parameters() {
        let build = |kind, p| Compressor::new(kind, 10, p).map(|_| ());
        assert_eq!(
            build(CompressorKind::RandK { k: 11 }, 1.0),
            Err(CompressError::Count {
                name: "random-k",
                k: 11,
                dimension: 10
            })
        );
        assert!(build(CompressorKind::RandK { k: 0 }, 1.0).is_err());
        assert!(build(CompressorKind::TopK { k: 0 }, 1.0).is_err());
        for (step, bits) in [
            (0.0, 8),
            (f64::NAN, 8),
            (f64::INFINITY, 8),
            (0.1, 1),
            (0.1, 25),
        ] {
            assert!(build(CompressorKind::Grid { step, bits }, 1.0).is_err());
        }
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
        for kind in kinds(x.len()).into_iter().chain(others(x.len())) {
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
            for kind in kinds(dimension).into_iter().chain(others(dimension)) {
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
