//! Scattering: an image becomes the strengths of its waves, and of the waves in those.
//!
//! Two layers of oriented wavelets with a modulus after each, averaged over places
//! (`scattering/transform.rs`; Bruna and Mallat, 2013): `c x p` numbers `S`, of `c = 81` channels
//! at `p` places, for 28 x 28 pixels `7 x 7`. Then channels are mixed, at every place alike, and
//! the record is brought to unit length:
//!
//! ```text
//!     x  ->  P S / |P S|,      P = (M + 1e-5 I)^(-1/2)
//! ```
//!
//! where `M` (`c x c`) is the mean of `sum over places of s s^T` over 256 pictures of unit `|S|`
//! that were drawn by a public seed (`scattering/pictures.rs`).
//!
//! **Why it helps.** What a small shift or deformation does to an image, it hardly does to `S`, so
//! that a linear model reaches on `S` what takes a deep network on pixels; and linear models of
//! unit records are what privacy noise hurts least. Without `P` nine tenths of `S` lie in one
//! direction (how much ink there is), which a private run has not enough steps to get out of.
//! Pictures that nobody took know that as well as the records do, and knowing it from them costs
//! nothing.
//!
//! **Guarantee.** A function of each record alone, to the bit, fixed before any is seen: neighbours
//! stay neighbours. Eight records are computed side by side, each in its own lane, by `+ - * /` and
//! square roots in a fixed order, so results depend neither on a record's neighbours nor on threads
//! or machines. An image is first divided by its largest value, which changes nothing but that no
//! number overflows; one without any light counts as an even one. Every record has length 1.
//!
//! **Cost.** Some 3 million operations an image of 28 x 28 pixels (`docs/features.md` has times),
//! rows become dense: 3969 numbers of 4 bytes. **Place in the paper:** none.

mod filters;
mod fourier;
mod pictures;
mod transform;

use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, PoisonError};

use super::super::{Dataset, RecordsError};
use crate::linalg::eigen;
use crate::linalg::vectorised;
use fourier::{LANES, Real};
use transform::{CHANNELS, Memory, Transform};

/// Sides of images that can be transformed.
const SIDES: RangeInclusive<usize> = 8..=128;

/// Pictures behind the mixing of channels.
const PICTURES: usize = 256;

/// What is added to their moments: below it a direction is as good as empty.
const RIDGE: f64 = 1e-5;

/// The scattering transform of square images.
pub(super) struct Scattering {
    transform: Transform,
    /// `P`, symmetric.
    mixing: Vec<f32>,
}

impl Scattering {
    /// The transform of images with this many pixels; the last one that was made is remembered.
    ///
    /// # Errors
    /// When they are not square, or too small or large.
    pub(super) fn of(pixels: usize) -> Result<Arc<Scattering>, RecordsError> {
        static LAST: Mutex<Option<(usize, Arc<Scattering>)>> = Mutex::new(None);
        let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
        match &*last {
            Some((known, scattering)) if *known == pixels => Ok(Arc::clone(scattering)),
            _ => {
                let made = Arc::new(Scattering::new(pixels)?);
                *last = Some((pixels, Arc::clone(&made)));
                Ok(made)
            }
        }
    }

    fn new(pixels: usize) -> Result<Scattering, RecordsError> {
        Self::check(pixels)?;
        let side = pixels.isqrt();
        let transform = Transform::new(side).expect("sides in range have small factors");
        let mixing = mixing(&transform, side);
        Ok(Scattering { transform, mixing })
    }

    /// Whether images with this many pixels can be transformed.
    ///
    /// # Errors
    /// When they are not square, or too small or large.
    pub(super) fn check(pixels: usize) -> Result<(), RecordsError> {
        let side = pixels.isqrt();
        let reason = if side * side != pixels {
            format!("it needs square images, not {pixels} features")
        } else if !SIDES.contains(&side) {
            format!("it needs images of 8x8 to 128x128 pixels, not {side}x{side}")
        } else {
            return Ok(());
        };
        Err(RecordsError::Choice {
            what: "features",
            value: "scattering".to_owned(),
            reason,
        })
    }

    /// Numbers that an image with this many pixels becomes.
    pub(super) fn outputs(pixels: usize) -> usize {
        Transform::places_of(pixels.isqrt()) * CHANNELS
    }

    /// The rows from `first` on, as many as there is room for.
    pub(super) fn rows(&self, data: &Dataset, first: usize, values: &mut [f32]) {
        let Scattering { transform, mixing } = self;
        let outputs = CHANNELS * transform.places();
        let mut memory = Memory::default();
        let mut pixels = vec![[0.0; LANES]; data.columns()];
        let (mut plain, mut mixed) = (vec![[0.0; LANES]; outputs], vec![[0.0; LANES]; outputs]);
        let blocks = values.chunks_mut(LANES * outputs).enumerate();
        for (block, values) in blocks {
            let records = values.chunks_exact_mut(outputs);
            for lane in 0..records.len() {
                read_lane(data, first + block * LANES + lane, lane, &mut pixels);
            }
            vectorised(
                #[inline(always)]
                || {
                    transform.block(&pixels, &mut memory, &mut plain);
                    mix(mixing, &plain, &mut mixed);
                },
            );
            for (lane, record) in records.enumerate() {
                write_unit(&mixed, lane, record);
            }
        }
    }
}

/// Puts a record into its lane, its largest magnitude 1.
fn read_lane(data: &Dataset, row: usize, lane: usize, pixels: &mut [Real]) {
    match data.offset() {
        Some(offset) => {
            let places = pixels.iter_mut().zip(offset.iter());
            places.for_each(|(pixel, &value)| pixel[lane] = value);
        }
        None => pixels.iter_mut().for_each(|pixel| pixel[lane] = 0.0),
    }
    data.features()
        .visit_row(row, |column, value| pixels[column][lane] += value);
    scale_lane(lane, pixels);
}

/// Divides a lane by its largest magnitude; an empty one becomes an even one.
fn scale_lane(lane: usize, pixels: &mut [Real]) {
    let largest = pixels
        .iter()
        .fold(0.0, |largest: f32, pixel| largest.max(pixel[lane].abs()));
    for pixel in pixels {
        pixel[lane] = if largest > 0.0 {
            pixel[lane] / largest
        } else {
            1.0
        };
    }
}

/// `P S` at every place.
#[inline(always)]
fn mix(mixing: &[f32], plain: &[Real], mixed: &mut [Real]) {
    let places = plain.len() / CHANNELS;
    for (weights, out) in mixing
        .chunks_exact(CHANNELS)
        .zip(mixed.chunks_exact_mut(places))
    {
        out.fill([0.0; LANES]);
        for (&weight, channel) in weights.iter().zip(plain.chunks_exact(places)) {
            for (out, value) in out.iter_mut().zip(channel) {
                for lane in 0..LANES {
                    out[lane] += weight * value[lane];
                }
            }
        }
    }
}

/// A lane at unit length.
fn write_unit(mixed: &[Real], lane: usize, record: &mut [f32]) {
    let square = |value: f32| f64::from(value) * f64::from(value);
    let length = mixed
        .iter()
        .fold(0.0, |sum, value| sum + square(value[lane]))
        .sqrt();
    for (out, value) in record.iter_mut().zip(mixed) {
        *out = (f64::from(value[lane]) / length) as f32;
    }
}

/// `P`, from the public pictures.
fn mixing(transform: &Transform, side: usize) -> Vec<f32> {
    let places = transform.places();
    let mut random = pictures::stream();
    let mut memory = Memory::default();
    let mut pixels = vec![[0.0; LANES]; side * side];
    let mut values = vec![[0.0; LANES]; CHANNELS * places];
    let mut record = vec![0.0; CHANNELS * places];
    let mut moments = vec![0.0; CHANNELS * CHANNELS];
    for _ in 0..PICTURES / LANES {
        for lane in 0..LANES {
            let picture = pictures::picture(side, &mut random);
            for (pixel, value) in pixels.iter_mut().zip(picture) {
                pixel[lane] = value;
            }
            scale_lane(lane, &mut pixels);
        }
        vectorised(
            #[inline(always)]
            || transform.block(&pixels, &mut memory, &mut values),
        );
        for lane in 0..LANES {
            write_unit(&values, lane, &mut record);
            add_moments(&record, places, &mut moments);
        }
    }
    moments
        .iter_mut()
        .for_each(|moment| *moment /= PICTURES as f64);
    let root = eigen::function(moments, CHANNELS, |value| {
        1.0 / (value.max(0.0) + RIDGE).sqrt()
    });
    root.into_iter().map(|entry| entry as f32).collect()
}

/// Adds `sum over places of s s^T`.
fn add_moments(record: &[f32], places: usize, moments: &mut [f64]) {
    for (left, moments) in record
        .chunks_exact(places)
        .zip(moments.chunks_exact_mut(CHANNELS))
    {
        for (right, moment) in record.chunks_exact(places).zip(moments) {
            let products = left.iter().zip(right);
            let products = products.map(|(&a, &b)| f64::from(a) * f64::from(b));
            *moment += products.fold(0.0, |sum, product| sum + product);
        }
    }
}

#[cfg(test)]
mod tests;
