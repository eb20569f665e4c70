//! The filters of a scattering transform: oriented waves in two sizes, and the average.
//!
//! With the grid `n x n`, wrapped around at its ends, and the sum over all its copies left out of
//! the notation:
//!
//! ```text
//!     envelope  g(x) = exp(-(a^2 + b^2/4) / (2 s^2)) / (4 pi s^2)      a along, b across direction t
//!     wave      w(x) = g(x) (exp(i f a) - K),   K such that w sums to zero     (Morlet)
//!     average   h(x) = exp(-|x|^2 / (2 s_h^2)) / (2 pi s_h^2)
//! ```
//!
//! Wave `(j, t)` has the size `s = 0.8 * 2^j` pixels, the frequency `f = 3 pi / (4 * 2^j)` and the
//! direction `(3 - t) pi / 8`; `j = 0, 1`, `t = 0..8`. The average has `s_h = 1.6`. These are the
//! constants of the published transform (Bruna and Mallat, as in the package Kymatio).
//!
//! Waves are kept as their Fourier transforms, which are real; entries below `1e-6` of the largest
//! are left out. The average is the product of two one-dimensional ones, and is computed at every
//! fourth pixel only.

use std::f64::consts::PI;

/// Sizes of waves.
pub(super) const SIZES: usize = 2;

/// Directions of waves.
pub(super) const DIRECTIONS: usize = 8;

/// Pixels from one place of the output to the next.
pub(super) const STRIDE: usize = 1 << SIZES;

/// How much longer an envelope is across the wave than along it.
const SLANT: f64 = 4.0 / DIRECTIONS as f64;

/// Copies of the grid on each side that an envelope may reach.
const COPIES: i64 = 2;

/// A wave in the Fourier domain, applied to a grid and thinned out to every `2^j`-th pixel:
/// thinning adds up the frequencies that become one.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Wave {
    /// From which frequency, to which, and its weight.
    pub(super) taps: Vec<(u32, u32, f32)>,
}

/// The one-dimensional average: which places, by which weights, make every place of the output.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Average {
    pub(super) taps: Vec<Vec<(u32, f32)>>,
}

/// The wave of size `j` and direction `t` in space, `n x n` complex numbers as `(re, im)`.
pub(super) fn morlet(n: usize, j: usize, t: usize) -> Vec<(f64, f64)> {
    let size = 0.8 * f64::from(1 << j);
    let frequency = 0.75 * PI / f64::from(1 << j);
    let direction = (DIRECTIONS as f64 / 2.0 - 1.0 - t as f64) * PI / DIRECTIONS as f64;
    let (cosine, sine) = (libm::cos(direction), libm::sin(direction));
    // The envelope alone, and the envelope with its wave.
    let mut plain = vec![0.0; n * n];
    let mut waved = vec![(0.0, 0.0); n * n];
    for (place, (plain, waved)) in plain.iter_mut().zip(&mut waved).enumerate() {
        for copy in 0..(2 * COPIES + 1).pow(2) {
            let (row, column) = (copy / (2 * COPIES + 1), copy % (2 * COPIES + 1));
            let x = ((place / n) as i64 + (row - COPIES) * n as i64) as f64;
            let y = ((place % n) as i64 + (column - COPIES) * n as i64) as f64;
            let (along, across) = (x * cosine + y * sine, y * cosine - x * sine);
            let exponent = (along * along + SLANT * SLANT * across * across) / (2.0 * size * size);
            let height = libm::exp(-exponent) * SLANT / (2.0 * PI * size * size);
            *plain += height;
            waved.0 += height * libm::cos(frequency * along);
            waved.1 += height * libm::sin(frequency * along);
        }
    }
    let sums = waved
        .iter()
        .fold((0.0, 0.0), |sum, w| (sum.0 + w.0, sum.1 + w.1));
    let mass: f64 = plain.iter().sum();
    let without_mean = waved.iter().zip(&plain);
    without_mean
        .map(|(w, g)| (w.0 - sums.0 / mass * g, w.1 - sums.1 / mass * g))
        .collect()
}

/// The one-dimensional average on `n` places, thinned out by `2^level`, as weights by distance.
pub(super) fn gaussian(n: usize, level: usize) -> Vec<f64> {
    let size = 0.8 * f64::from(1 << (SIZES - 1));
    let step = f64::from(1 << level);
    let weight = |place: usize| -> f64 {
        let copies = (-COPIES..=COPIES).map(|copy| {
            let x = step * ((place as i64 + copy * n as i64) as f64);
            libm::exp(-x * x / (2.0 * size * size))
        });
        step * copies.sum::<f64>() / ((2.0 * PI).sqrt() * size)
    };
    (0..n).map(weight).collect()
}

impl Wave {
    /// The wave `(j, t)` on an `n x n` grid whose result is thinned out by `thinning`.
    pub(super) fn new(n: usize, j: usize, t: usize, thinning: usize) -> Wave {
        let spectrum = spectrum(&morlet(n, j, t), n);
        let largest = spectrum
            .iter()
            .fold(0.0, |largest: f64, value| largest.max(value.abs()));
        let kept = n / thinning;
        let taps = spectrum.iter().enumerate();
        let taps = taps.filter(|(_, value)| value.abs() > 1e-6 * largest);
        let taps = taps.map(|(place, &value)| {
            let target = place / n % kept * kept + place % n % kept;
            (place as u32, target as u32, (value / (n * n) as f64) as f32)
        });
        Wave {
            taps: taps.collect(),
        }
    }
}

impl Average {
    /// The average of `n` places, thinned out by `2^level` before, at `places` places from the
    /// first that is a whole stride inside.
    pub(super) fn new(n: usize, level: usize, places: usize) -> Average {
        let weights = gaussian(n, level);
        let step = STRIDE >> level;
        let taps = (1..=places).map(|place| {
            let taps = (0..n).map(|from| (from, weights[(from + n - step * place) % n]));
            let taps = taps.filter(|(_, weight)| *weight > 1e-9);
            taps.map(|(from, weight)| (from as u32, weight as f32))
                .collect()
        });
        Average {
            taps: taps.collect(),
        }
    }
}

/// The Fourier transform of an `n x n` grid that is its own mirror image conjugated, so that it is
/// real. Lines first, then columns.
fn spectrum(grid: &[(f64, f64)], n: usize) -> Vec<f64> {
    let roots: Vec<(f64, f64)> = (0..n)
        .map(|k| {
            let angle = -2.0 * PI * k as f64 / n as f64;
            (libm::cos(angle), libm::sin(angle))
        })
        .collect();
    let sum = |values: &mut dyn Iterator<Item = (f64, f64)>, u: usize| {
        values.enumerate().fold((0.0, 0.0), |sum, (i, (re, im))| {
            let (cosine, sine) = roots[u * i % n];
            (
                sum.0 + re * cosine - im * sine,
                sum.1 + re * sine + im * cosine,
            )
        })
    };
    let mut lines = Vec::with_capacity(n * n);
    for line in grid.chunks_exact(n) {
        lines.extend((0..n).map(|v| sum(&mut line.iter().copied(), v)));
    }
    let places = (0..n).flat_map(|u| (0..n).map(move |v| (u, v)));
    places
        .map(|(u, v)| sum(&mut (0..n).map(|i| lines[i * n + v]), u).0)
        .collect()
}
