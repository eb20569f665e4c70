//! The choice of a compressor, and what each of them says in its own file.
//!
//! A new compressor is a variant of both enums here, with its word, and a file that implements
//! [`Scheme`].

use super::{CompressError, DecodeError, Selection, Update};
use super::{grid, identity, natural, qsgd, rand_k, top_k};
use crate::random::SecretRng;

/// The compressors' names, without their parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CompressorName {
    /// Sends everything.
    Identity,
    /// Random coordinates.
    RandK,
    /// Random dithering.
    Qsgd,
    /// Powers of two.
    Natural,
    /// Multiples of a step.
    Grid,
    /// The largest coordinates.
    TopK,
}

soteriafl_accountant::words!(
    CompressorName,
    "compressor",
    Identity = "identity",
    RandK = "rand-k",
    Qsgd = "qsgd",
    Natural = "natural",
    Grid = "grid",
    TopK = "top-k",
);

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

impl CompressorKind {
    /// The compressor of this name that sends `k` coordinates, if it sends some only, with what is
    /// usual for the rest.
    pub fn new(name: CompressorName, k: usize) -> Self {
        match name {
            CompressorName::Identity => Self::Identity,
            CompressorName::RandK => Self::RandK { k },
            CompressorName::Qsgd => Self::Qsgd { levels: 16 },
            CompressorName::Natural => Self::Natural,
            CompressorName::Grid => Self::Grid {
                step: 0.01,
                bits: 10,
            },
            CompressorName::TopK => Self::TopK { k },
        }
    }

    /// The same without its parameters.
    pub fn name(self) -> CompressorName {
        match self {
            Self::Identity => CompressorName::Identity,
            Self::RandK { .. } => CompressorName::RandK,
            Self::Qsgd { .. } => CompressorName::Qsgd,
            Self::Natural => CompressorName::Natural,
            Self::Grid { .. } => CompressorName::Grid,
            Self::TopK { .. } => CompressorName::TopK,
        }
    }

    /// How many coordinates travel, if not all.
    pub fn count(self) -> Option<usize> {
        self.ask(|scheme| scheme.count())
    }

    /// Asks the compressor's own file.
    pub(super) fn ask<T>(self, question: impl FnOnce(&dyn Scheme) -> T) -> T {
        match self {
            Self::Identity => question(&identity::Identity),
            Self::RandK { k } => question(&rand_k::RandK { k }),
            Self::Qsgd { levels } => question(&qsgd::Qsgd { levels }),
            Self::Natural => question(&natural::Natural),
            Self::Grid { step, bits } => question(&grid::Grid { step, bits }),
            Self::TopK { k } => question(&top_k::TopK { k }),
        }
    }
}

/// Whether a body could be read.
pub(super) type Decoded = Result<(), DecodeError>;

/// What each compressor says in its own file. `dimension` is the model's.
pub(super) trait Scheme {
    /// Its number in the header of a message. Numbers in use never change.
    fn wire_kind(&self) -> u8;

    /// Refuses parameters that are out of range.
    fn check(&self, _dimension: usize) -> Result<(), CompressError> {
        Ok(())
    }

    /// The variance parameter; `None` where `C` is biased or its error is not relative.
    fn omega(&self, dimension: usize) -> Option<f64>;

    /// The contraction of a biased compressor that has one: see [`Compressor::contraction`].
    fn contraction(&self, _dimension: usize) -> Option<f64> {
        None
    }

    /// What every value is multiplied by to be unbiased.
    fn scaling(&self, _dimension: usize) -> f64 {
        1.0
    }

    /// Values in one message, if not all coordinates travel.
    fn count(&self) -> Option<usize> {
        None
    }

    /// Whether the coordinates that travel are drawn from a seed before anything is computed.
    fn draws_coordinates(&self) -> bool {
        false
    }

    /// Bytes of one message body.
    fn encoded_len(&self, dimension: usize) -> usize;

    /// Compresses values that are given on the selected coordinates.
    fn encode(&self, values: &[f32], message: Outgoing<'_>);

    /// Reads a body of [`encoded_len`](Self::encoded_len) bytes into an update of all coordinates.
    fn decode(&self, body: &[u8], dimension: usize, update: &mut Update) -> Decoded;

    /// How many of these values would be cut off.
    fn beyond_range(&self, _values: &[f32]) -> usize {
        0
    }
}

/// A message that is being written.
pub(super) struct Outgoing<'a> {
    pub dimension: usize,
    /// What values are multiplied by because not all clients take part.
    pub scale: f64,
    pub selection: &'a mut Selection,
    pub coins: &'a mut SecretRng,
    /// Where the body is appended.
    pub body: &'a mut Vec<u8>,
    /// What whoever reads the body gets: to be written as well.
    pub update: &'a mut Update,
}

impl Outgoing<'_> {
    /// Appends a body by `write`, and reads it back for the update.
    pub(super) fn write_and_read(
        self,
        scheme: &dyn Scheme,
        write: impl FnOnce(&mut SecretRng, &mut Vec<u8>),
    ) {
        let start = self.body.len();
        write(self.coins, self.body);
        self.update.selection.some = false;
        let own = scheme.decode(&self.body[start..], self.dimension, self.update);
        debug_assert_eq!(own, Ok(()), "a message must be readable by its sender");
    }
}
