//! Losses under an exponential tilt, and their sums over many rounds.
//!
//! [`TiltedLosses`] are a loss distribution under the tilt `lambda`: the true probability of loss
//! `l` is `mass * exp(log_total - lambda l)`. It may miss up to `error` of its own (tilted)
//! mass; whatever it has too much only raises the cost. Errors of this kind add up over rounds,
//! and enter `delta` relative to `delta` itself.
//!
//! Powers go through the Fourier transform on a window:
//!
//! - The circular transform folds what lies outside into the window, which only adds. What it
//!   takes away from above is bounded by Chernoff and joins the error.
//! - Powers are taken of `F - 1`, with the largest atom rolled to the origin, so a round that
//!   almost never moves the loss has an error relative to how much it moves it.
//! - The rounding error of the result has an L1 norm below `sqrt(sum |F^T|^2)` times the error per
//!   bin (Parseval and Cauchy-Schwarz).
//!
//! Cost: two transforms of the window over the step, and `2 log2 T` products per bin.

use super::losses::LossDistribution;
use super::transform::{Bin, fast_length, forward, inverse};
use super::window::Window;
use crate::error::AccountError;

/// Largest transform: beyond it a finer step is refused and the coarser answer stands.
pub(crate) const LARGEST_TRANSFORM: usize = 1 << 21;

/// Tilted mass of a point that is dropped and counted as error.
const NEGLIGIBLE: f64 = 1e-40;

/// A loss distribution under a tilt, sparse, in ascending order.
#[derive(Clone, Debug)]
pub(crate) struct TiltedLosses {
    pub(crate) tilt: f64,
    pub(crate) step: f64,
    pub(crate) offset: f64,
    /// Grid index and tilted mass; the masses sum to one.
    pub(crate) points: Vec<(i64, f64)>,
    /// `ln sum p exp(lambda l)`.
    pub(crate) log_total: f64,
    /// Bound for the tilted mass that is missing somewhere.
    pub(crate) error: f64,
}

impl TiltedLosses {
    /// The tilted distribution of one round's finite losses.
    pub(crate) fn new(losses: &LossDistribution, tilt: f64) -> TiltedLosses {
        let mut points: Vec<(i64, f64)> = Vec::new();
        let mut peak = f64::NEG_INFINITY;
        for (index, &mass) in losses.masses.iter().enumerate() {
            if mass > 0.0 {
                points.push((losses.first + index as i64, mass));
                // The largest loss has the largest factor.
                peak = tilt * losses.loss(index);
            }
        }
        let mut part = TiltedLosses {
            tilt,
            step: losses.step,
            offset: losses.offset,
            points,
            log_total: peak,
            error: 0.0,
        };
        for point in &mut part.points {
            let loss = losses.offset + point.0 as f64 * losses.step;
            point.1 *= (tilt * loss - peak).exp();
        }
        part.normalise();
        // Points that weigh nothing would still dominate a moment of the opposite sign.
        part.points.retain(|point| point.1 > NEGLIGIBLE);
        part.error = NEGLIGIBLE * losses.masses.len() as f64;
        part
    }

    fn normalise(&mut self) {
        let total: f64 = self.points.iter().map(|point| point.1).sum();
        for point in &mut self.points {
            point.1 /= total;
        }
        self.log_total += total.ln();
    }

    /// `ln sum mass exp(exponent l)`: how the log moment changes with the tilt.
    fn log_moment(&self, exponent: f64) -> f64 {
        let ends = [self.points.first(), self.points.last()];
        let peak = ends
            .into_iter()
            .flatten()
            .map(|point| exponent * self.loss(point.0))
            .fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = self
            .points
            .iter()
            .map(|&(index, mass)| mass * (exponent * self.loss(index) - peak).exp())
            .sum();
        peak + sum.ln()
    }

    fn loss(&self, index: i64) -> f64 {
        self.offset + index as f64 * self.step
    }

    /// The place of the largest atom.
    fn largest(&self) -> usize {
        let mut best = 0;
        for (place, point) in self.points.iter().enumerate() {
            if point.1 > self.points[best].1 {
                best = place;
            }
        }
        best
    }
}

/// A composed distribution on a window, with the signs that rounding left.
#[derive(Clone, Debug)]
pub(crate) struct TiltedSum {
    pub(crate) tilt: f64,
    pub(crate) step: f64,
    /// Loss of the first mass.
    pub(crate) bottom: f64,
    pub(crate) masses: Vec<f64>,
    pub(crate) log_total: f64,
    pub(crate) error: f64,
}

impl TiltedSum {
    /// The distribution of independent rounds, each distribution as often as its count says.
    ///
    /// # Errors
    /// A window that needs more than [`LARGEST_TRANSFORM`] points, or a tilt that is no number.
    pub(crate) fn new(
        parts: &[(&TiltedLosses, u64)],
        window: &Window,
    ) -> Result<TiltedSum, AccountError> {
        let (tilt, step) = (parts[0].0.tilt, parts[0].0.step);
        // Sums of losses beyond all floating point have no cumulants to find a tilt from.
        if !tilt.is_finite() || parts.iter().any(|(part, _)| part.points.is_empty()) {
            return Err(AccountError::Unresolved {
                reason: "the losses are too large or too small to be composed",
            });
        }
        debug_assert!(
            parts
                .iter()
                .all(|(part, _)| part.step == step && part.tilt == tilt)
        );
        let total = |value: &dyn Fn(&TiltedLosses) -> f64| -> f64 {
            parts
                .iter()
                .map(|(part, count)| *count as f64 * value(part))
                .sum()
        };
        let raised = total(&|part| part.log_moment(window.above));
        let lowered = total(&|part| part.log_moment(-window.below));
        let top = (raised + window.depth) / window.above;
        let bottom = -(lowered + window.depth) / window.below;
        let points = (top - bottom) / step + 3.0;
        if points.is_nan() || points > LARGEST_TRANSFORM as f64 {
            return Err(AccountError::Unresolved {
                reason: "the window needs more grid points than a transform may have",
            });
        }
        let length = fast_length(points as usize);
        let offset = total(&|part| part.offset);
        let bottom_index = ((bottom - offset) / step).floor() as i64;
        let bottom = offset + bottom_index as f64 * step;

        let mut product = Product::new(length);
        for (part, count) in parts {
            product.multiply(part, *count);
        }
        let above = bottom + length as f64 * step;
        let missing = (raised - window.above * above).min(0.0).exp();
        Ok(TiltedSum {
            tilt,
            step,
            bottom,
            log_total: total(&|part| part.log_total),
            error: total(&|part| part.error) + product.rounding() + missing,
            masses: product.masses(bottom_index),
        })
    }

    /// The sum as a distribution on every `factor`-th grid point, by connecting the dots once more.
    pub(crate) fn coarsened(&self, factor: usize) -> TiltedLosses {
        let width = factor as f64 * self.step;
        let atom = self
            .masses
            .iter()
            .enumerate()
            .max_by(|left, right| left.1.total_cmp(right.1))
            .map_or(0, |best| best.0);
        // The largest atom stays on the grid; the first cell starts at or below the window.
        let before = (factor - atom % factor) % factor;
        let cells = (before + self.masses.len()).div_ceil(factor) + 1;
        let mut coarse = vec![0.0; cells];
        // The tilt weighs a loss by its place, so moved mass is weighed anew.
        let shares: Vec<(f64, f64)> = (0..factor)
            .map(|place| {
                let inside = place as f64 * self.step;
                let up = (-inside).exp_m1() / (-width).exp_m1();
                let stay = (1.0 - up) * (-self.tilt * inside).exp();
                (stay, up * (self.tilt * (width - inside)).exp())
            })
            .collect();
        for (index, &mass) in self.masses.iter().enumerate() {
            let (cell, place) = ((before + index) / factor, (before + index) % factor);
            // Negative masses come from rounding, within the error already counted; dropping them
            // only adds.
            let mass = mass.max(0.0);
            coarse[cell] += mass * shares[place].0;
            coarse[cell + 1] += mass * shares[place].1;
        }
        let mut part = TiltedLosses {
            tilt: self.tilt,
            step: width,
            offset: self.bottom - before as f64 * self.step,
            points: coarse
                .into_iter()
                .enumerate()
                .filter(|(_, mass)| *mass > 0.0)
                .map(|(index, mass)| (index as i64, mass))
                .collect(),
            log_total: self.log_total,
            error: self.error * (self.tilt * width).exp(),
        };
        part.normalise();
        part
    }
}

/// `prod F^count - 1` over half the spectrum.
struct Product {
    bins: Vec<Bin>,
    length: usize,
    /// Grid index that the transform's first value stands for.
    origin: i64,
    /// Rounds times the mass each of them moves.
    moved: f64,
}

impl Product {
    fn new(length: usize) -> Self {
        Product {
            bins: vec![Bin::new(0.0, 0.0); length / 2 + 1],
            length,
            origin: 0,
            moved: 0.0,
        }
    }

    fn multiply(&mut self, part: &TiltedLosses, count: u64) {
        let atom = part.largest();
        let origin = part.points[atom].0;
        let mut values = vec![0.0; self.length];
        let mut rest = 0.0;
        for (place, &(index, mass)) in part.points.iter().enumerate() {
            if place != atom {
                values[(index - origin).rem_euclid(self.length as i64) as usize] += mass;
                rest += mass;
            }
        }
        values[0] -= rest;
        let spectrum = forward(&mut values);
        raise_into(&mut self.bins, &spectrum, count);
        self.origin += origin * count as i64;
        self.moved += count as f64 * 2.0 * rest;
    }

    /// Bound for the L1 norm of the error in [`Self::masses`].
    fn rounding(&self) -> f64 {
        let energy: f64 = self.bins.iter().map(|bin| (bin + 1.0).norm_sqr()).sum();
        // Three times the root mean square error of a transform (Schatzman 1996).
        let per_bin = f64::EPSILON * (self.length as f64).log2().sqrt();
        (2.0 * energy).sqrt() * per_bin * (1.0 + self.moved)
    }

    /// The masses from grid index `bottom` on.
    fn masses(mut self, bottom: i64) -> Vec<f64> {
        for bin in &mut self.bins {
            *bin += 1.0;
        }
        let mut masses = inverse(&mut self.bins, self.length);
        let shift = (bottom - self.origin).rem_euclid(self.length as i64) as usize;
        masses.rotate_left(shift);
        masses
    }
}

/// `product <- (1 + product) (1 + base)^count - 1`, by squaring `(1+e)^2 - 1 = e (2 + e)`.
///
/// Blocks of bins keep the working set in registers and let the compiler vectorise. High
/// frequencies of many rounds vanish; their power is zero without being computed.
fn raise_into(product: &mut [Bin], base: &[Bin], count: u64) {
    const BLOCK: usize = 8;
    // Squared modulus whose power is below exp(-60), a billionth of the rounding error.
    let vanishing = (-120.0 / count as f64).exp();
    for (targets, bases) in product.chunks_mut(BLOCK).zip(base.chunks(BLOCK)) {
        if bases.iter().all(|bin| (bin + 1.0).norm_sqr() < vanishing) {
            targets.fill(Bin::new(-1.0, 0.0));
            continue;
        }
        let (mut re, mut im) = ([0.0; BLOCK], [0.0; BLOCK]);
        let (mut acc_re, mut acc_im) = ([0.0; BLOCK], [0.0; BLOCK]);
        for (lane, bin) in bases.iter().enumerate() {
            (re[lane], im[lane]) = (bin.re, bin.im);
            (acc_re[lane], acc_im[lane]) = (targets[lane].re, targets[lane].im);
        }
        let mut left = count;
        while left > 0 {
            if left & 1 == 1 {
                for lane in 0..BLOCK {
                    let (x, y, u, v) = (acc_re[lane], acc_im[lane], re[lane], im[lane]);
                    acc_re[lane] = x + u + (x * u - y * v);
                    acc_im[lane] = y + v + (x * v + y * u);
                }
            }
            left >>= 1;
            if left > 0 {
                for lane in 0..BLOCK {
                    let (u, v) = (re[lane], im[lane]);
                    re[lane] = u * (2.0 + u) - v * v;
                    im[lane] = v * (2.0 + 2.0 * u);
                }
            }
        }
        for (lane, target) in targets.iter_mut().enumerate() {
            *target = Bin::new(acc_re[lane], acc_im[lane]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dice() -> LossDistribution {
        LossDistribution::new(0.25, -1, vec![0.5, 0.2, 0.0, 0.3], 0.0).shifted(0.1)
    }

    /// All sums by explicit convolution: loss index and probability.
    fn naive(losses: &LossDistribution, rounds: u32) -> Vec<f64> {
        let mut sums = vec![1.0];
        for _ in 0..rounds {
            let mut next = vec![0.0; sums.len() + losses.masses.len() - 1];
            for (i, a) in sums.iter().enumerate() {
                for (j, b) in losses.masses.iter().enumerate() {
                    next[i + j] += a * b;
                }
            }
            sums = next;
        }
        sums
    }

    fn window() -> Window {
        Window {
            above: 4.0,
            below: 4.0,
            depth: 40.0,
            length: 0.0,
        }
    }

    #[test]
    fn powers_match_explicit_convolution() {
        let losses = dice();
        for (rounds, tilt) in [(1, 0.0), (7, 0.0), (7, 1.5), (20, 0.7)] {
            let part = TiltedLosses::new(&losses, tilt);
            let sum = TiltedSum::new(&[(&part, u64::from(rounds))], &window()).unwrap();
            let first = f64::from(rounds) * losses.loss(0);
            let mut covered = 0.0;
            for (index, truth) in naive(&losses, rounds).into_iter().enumerate() {
                let loss = first + index as f64 * losses.step;
                let place = ((loss - sum.bottom) / sum.step).round() as usize;
                let weight = (sum.log_total - tilt * loss).exp();
                assert!((sum.masses[place] * weight - truth).abs() < 1e-13);
                covered += sum.masses[place];
            }
            assert!((covered - 1.0).abs() < 1e-12);
            assert!(sum.error < 1e-12);
        }
    }

    #[test]
    fn phases_multiply() {
        let part = TiltedLosses::new(&dice(), 0.5);
        let split = TiltedSum::new(&[(&part, 5), (&part, 8)], &window()).unwrap();
        let whole = TiltedSum::new(&[(&part, 13)], &window()).unwrap();
        assert_eq!(split.bottom, whole.bottom);
        for (left, right) in split.masses.iter().zip(&whole.masses) {
            assert!((left - right).abs() < 1e-14);
        }
    }

    #[test]
    fn coarsening_keeps_both_masses() {
        let part = TiltedLosses::new(&dice(), 0.8);
        let sum = TiltedSum::new(&[(&part, 9)], &window()).unwrap();
        let coarse = sum.coarsened(4);
        // Untilted mass, and mass under the other distribution.
        for power in [0.0, 1.0] {
            let before: f64 = sum
                .masses
                .iter()
                .enumerate()
                .map(|(index, mass)| {
                    let loss = sum.bottom + index as f64 * sum.step;
                    mass.max(0.0) * (sum.log_total - (sum.tilt + power) * loss).exp()
                })
                .sum();
            let after: f64 = coarse
                .points
                .iter()
                .map(|&(index, mass)| {
                    let loss = coarse.loss(index);
                    mass * (coarse.log_total - (coarse.tilt + power) * loss).exp()
                })
                .sum();
            assert!((before - after).abs() < 1e-10 * before, "{before} {after}");
        }
        assert_eq!(coarse.step, 4.0 * sum.step);
    }

    #[test]
    fn a_tilt_that_is_no_number_is_an_error() {
        for tilt in [f64::NAN, f64::INFINITY] {
            let part = TiltedLosses::new(&dice(), tilt);
            let sum = TiltedSum::new(&[(&part, 3)], &window());
            assert!(
                matches!(sum, Err(AccountError::Unresolved { .. })),
                "{tilt}"
            );
        }
    }

    /// A mass that never moves but once in a million rounds keeps its digits.
    #[test]
    fn a_rare_loss_keeps_its_digits() {
        let losses = LossDistribution::new(1.0, 0, vec![1.0 - 1e-9, 0.0, 1e-9], 0.0);
        let part = TiltedLosses::new(&losses, 0.0);
        let sum = TiltedSum::new(&[(&part, 1_000_000)], &window()).unwrap();
        let place = ((2.0 - sum.bottom) / sum.step).round() as usize;
        let truth = 1e-3 * (-1e-3_f64).exp();
        assert!((sum.masses[place] - truth).abs() < 1e-14 + 2e-9 * truth);
    }
}
