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
mod identity;
mod kind;
mod natural;
mod qsgd;
mod rand_k;
mod top_k;
mod update;

pub use downlink::{BUCKET, Downlink, DownlinkKind, Rounding};
pub use kind::{CompressorKind, CompressorName};
pub use update::{Selection, Update};

use crate::linalg::all_finite;
use crate::linalg::bytes::floats;
use crate::privacy::Released;
use crate::random::{IndexSeed, SecretRng};
use kind::{Decoded, Outgoing, Scheme};

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

impl CompressError {
    /// Refuses to send no coordinates, or more than there are.
    fn check_count(name: &'static str, k: usize, dimension: usize) -> Result<(), Self> {
        match (1..=dimension).contains(&k) {
            true => Ok(()),
            false => Err(Self::Count { name, k, dimension }),
        }
    }
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
        kind.ask(|scheme| scheme.check(dimension))?;
        Ok(Self {
            kind,
            dimension,
            participation,
        })
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
        self.ask(|scheme, dimension| scheme.omega(dimension))
            .is_some()
    }

    fn ask<T>(&self, question: impl FnOnce(&dyn Scheme, usize) -> T) -> T {
        self.kind.ask(|scheme| question(scheme, self.dimension))
    }

    /// Its number in the header of a message.
    pub(crate) fn wire_kind(&self) -> u8 {
        self.ask(|scheme, _| scheme.wire_kind())
    }

    /// The variance parameter omega, participation included; infinite where there is none
    /// ([`is_unbiased`](Self::is_unbiased)).
    pub fn omega(&self) -> f64 {
        let omega = self.ask(|scheme, dimension| scheme.omega(dimension));
        (1.0 + omega.unwrap_or(f64::INFINITY)) / self.participation - 1.0
    }

    /// The share `a` of `E |a' C(x) - x|^2 <= (1 - a) |x|^2`, which biased compression needs: with
    /// `a' = 1` for top-k, and for unbiased compressors with `a' = a = 1/(1 + omega)`. Zero for a
    /// grid, whose error is not relative.
    pub fn contraction(&self) -> f64 {
        let biased = self.ask(|scheme, dimension| scheme.contraction(dimension));
        biased.unwrap_or_else(|| 1.0 / (1.0 + self.omega()))
    }

    /// What the values of a message were multiplied by to be unbiased, participation included.
    pub fn scaling(&self) -> f64 {
        self.ask(|scheme, dimension| scheme.scaling(dimension)) / self.participation
    }

    /// `k/d` where some coordinates travel, `None` where all do.
    pub fn fraction(&self) -> Option<f64> {
        Some(self.kind.count()? as f64 / self.dimension as f64)
    }

    /// Values in one message.
    pub fn values(&self) -> usize {
        self.kind.count().unwrap_or(self.dimension)
    }

    /// Bytes of one message body.
    pub fn encoded_len(&self) -> usize {
        self.ask(|scheme, dimension| scheme.encoded_len(dimension))
    }

    /// Derives the coordinates that will travel from `seed`: a fresh one, drawn after the model of
    /// the round is known from a stream that nothing else uses, or a public one.
    pub fn select(&self, seed: IndexSeed, selection: &mut Selection) {
        let drawn = self.ask(|scheme, _| scheme.count().filter(|_| scheme.draws_coordinates()));
        selection.seed = drawn.map(|count| {
            let Selection { indices, marks, .. } = &mut *selection;
            seed.choose(count, self.dimension, indices, marks);
            seed
        });
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
        let message = Outgoing {
            dimension: self.dimension,
            scale: 1.0 / self.participation,
            selection,
            coins,
            body,
            update,
        };
        self.ask(|scheme, _| scheme.encode(residual.values(), message));
    }

    /// How many of these values lie beyond the range of a grid, which cuts them off.
    pub fn beyond_range(&self, values: &[f32]) -> usize {
        self.ask(|scheme, _| scheme.beyond_range(values))
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
        self.ask(|scheme, dimension| scheme.decode(body, dimension, update))
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
mod tests;
