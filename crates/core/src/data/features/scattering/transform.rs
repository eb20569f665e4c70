//! The scattering transform of eight images at a time.
//!
//! ```text
//!     U1[j, t]      = | x * w[j, t] |                  first order, thinned out to every 2^j-th pixel
//!     U2[t, t']     = | U1[0, t] * w[1, t'] |          second order, of fine waves by coarse ones
//!     S             = x * h,  U1 * h,  U2 * h          at every fourth pixel
//! ```
//!
//! `*` is convolution on the padded grid, wrapped around at its ends. An image of side `s` is
//! padded by reflection (without repeating the border) to `n = 4 (floor((s + 4)/4) + 1)`, half of
//! it before; places of the output are `4, 8, .., n - 8` in the padded image: `p x p` of them, `p =
//! n/4 - 2`. Channels are in this order: the average, first orders by size and direction, second
//! orders by the direction of the first and of the second wave: `1 + 16 + 64 = 81`.

use super::filters::{Average, DIRECTIONS, SIZES, STRIDE, Wave};
use super::fourier::{Complex, Fourier, LANES, Real, Scratch};

/// Numbers at every place.
pub(super) const CHANNELS: usize = 1 + SIZES * DIRECTIONS + DIRECTIONS * DIRECTIONS;

/// The transform for images of one size.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Transform {
    side: usize,
    places: usize,
    fine: Fourier,
    coarse: Fourier,
    /// By size, then by direction.
    waves: [Vec<Wave>; SIZES],
    /// By how often its input was thinned out.
    averages: [Average; SIZES],
}

/// Memory of a transform, reused.
#[derive(Default)]
pub(super) struct Memory {
    padded: Vec<Real>,
    image: Vec<Complex>,
    first: Vec<Complex>,
    grid: Vec<Complex>,
    modulus: Vec<Real>,
    lines: Vec<Real>,
    scratch: Scratch,
}

impl Transform {
    /// The transform of `side x side` images; `None` where the padded side has too large a factor.
    pub(super) fn new(side: usize) -> Option<Transform> {
        let padded = STRIDE * ((side + STRIDE) / STRIDE + 1);
        let places = padded / STRIDE - 2;
        let waves = |j: usize| {
            let waves = (0..DIRECTIONS).map(|t| Wave::new(padded, j, t, 1 << j));
            waves.collect()
        };
        Some(Transform {
            side,
            places,
            fine: Fourier::new(padded)?,
            coarse: Fourier::new(padded / 2)?,
            waves: [waves(0), waves(1)],
            averages: [0, 1].map(|level| Average::new(padded >> level, level, places)),
        })
    }

    /// Places of the output for images of this side.
    pub(super) fn places_of(side: usize) -> usize {
        (side / STRIDE).pow(2)
    }

    /// Places of the output.
    pub(super) fn places(&self) -> usize {
        self.places * self.places
    }

    /// The coefficients of eight images, `[channel][place]`, from their pixels.
    #[inline(always)]
    pub(super) fn block(&self, pixels: &[Real], memory: &mut Memory, out: &mut [Real]) {
        let Memory {
            padded,
            image,
            first,
            grid,
            modulus,
            lines,
            scratch,
        } = memory;
        let places = self.places();
        let mut average = |level: usize, values: &[Real], channel: usize| {
            let out = &mut out[channel * places..][..places];
            self.averages[level].apply(values, lines, out);
        };
        self.pad(pixels, padded);
        average(0, padded, 0);
        real_grid(padded, image);
        self.fine.grid(image, scratch);
        for (t, wave) in self.waves[0].iter().enumerate() {
            wave.modulus(image, &self.fine, grid, modulus, scratch);
            average(0, modulus, 1 + t);
            real_grid(modulus, first);
            self.fine.grid(first, scratch);
            for (second, coarser) in self.waves[1].iter().enumerate() {
                coarser.modulus(first, &self.coarse, grid, modulus, scratch);
                average(1, modulus, 1 + (SIZES + t) * DIRECTIONS + second);
            }
        }
        for (t, wave) in self.waves[1].iter().enumerate() {
            wave.modulus(image, &self.coarse, grid, modulus, scratch);
            average(1, modulus, 1 + DIRECTIONS + t);
        }
    }

    /// The padded image of the first lane.
    #[cfg(test)]
    pub(super) fn padded(&self, pixels: &[Real]) -> Vec<f32> {
        let mut padded = Vec::new();
        self.pad(pixels, &mut padded);
        padded.iter().map(|value| value[0]).collect()
    }

    /// The image with its border, by reflection.
    fn pad(&self, pixels: &[Real], padded: &mut Vec<Real>) {
        let n = self.fine.side();
        let before = (n - self.side) / 2;
        let inside = |place: usize| {
            let from = place.abs_diff(before);
            from.min((2 * (self.side - 1)).abs_diff(from))
        };
        padded.clear();
        for i in 0..n {
            let line = &pixels[inside(i) * self.side..][..self.side];
            padded.extend((0..n).map(|j| line[inside(j)]));
        }
    }
}

impl Wave {
    /// The modulus of the convolution with this wave, from the transform of what is convolved.
    ///
    /// The inverse transform is the forward one of the conjugate, conjugated; the modulus does not
    /// see the latter.
    #[inline(always)]
    fn modulus(
        &self,
        from: &[Complex],
        fourier: &Fourier,
        grid: &mut Vec<Complex>,
        modulus: &mut Vec<Real>,
        scratch: &mut Scratch,
    ) {
        grid.clear();
        grid.resize(fourier.side() * fourier.side(), Complex::default());
        for &(source, target, weight) in &self.taps {
            let (source, target) = (&from[source as usize], &mut grid[target as usize]);
            for lane in 0..LANES {
                target.re[lane] += source.re[lane] * weight;
                target.im[lane] -= source.im[lane] * weight;
            }
        }
        fourier.grid(grid, scratch);
        modulus.clear();
        modulus.extend(grid.iter().map(
            #[inline(always)]
            |value| -> Real {
                std::array::from_fn(|lane| {
                    let (re, im) = (value.re[lane], value.im[lane]);
                    (re * re + im * im).sqrt()
                })
            },
        ));
    }
}

impl Average {
    /// The average along lines, then along columns.
    #[inline(always)]
    fn apply(&self, values: &[Real], lines: &mut Vec<Real>, out: &mut [Real]) {
        let places = self.taps.len();
        let side = values.len().isqrt();
        lines.clear();
        for line in values.chunks_exact(side) {
            for taps in &self.taps {
                lines.push(weighted(taps, |place| &line[place]));
            }
        }
        for (number, out) in out.iter_mut().enumerate() {
            let (row, column) = (number / places, number % places);
            *out = weighted(&self.taps[row], |place| &lines[place * places + column]);
        }
    }
}

/// A weighted sum, in the order of the weights.
#[inline(always)]
fn weighted<'a>(taps: &[(u32, f32)], value: impl Fn(usize) -> &'a Real) -> Real {
    let mut sums = [0.0; LANES];
    for &(place, weight) in taps {
        let values = value(place as usize);
        for (sum, value) in sums.iter_mut().zip(values) {
            *sum += weight * value;
        }
    }
    sums
}

/// Real numbers as complex ones.
#[inline(always)]
fn real_grid(values: &[Real], grid: &mut Vec<Complex>) {
    grid.clear();
    grid.extend(values.iter().map(|&re| Complex {
        re,
        im: [0.0; LANES],
    }));
}
