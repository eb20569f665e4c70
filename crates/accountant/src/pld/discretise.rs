//! From a pair of distributions to a loss distribution: connect the dots, without losing mass.
//!
//! A loss `l` between two grid points `e` and `e + h` is split: up with weight
//! `(1 - exp(e - l)) / (1 - exp(-h))`, the rest down. That preserves the probability under both
//! distributions and interpolates `delta` linearly in `exp(epsilon)` between the grid points, which
//! is the tightest safe choice on a grid (Doroshenko et al., arXiv 2207.04380). Differences of
//! `delta`, the usual way to compute it, lose about 1e-16 per cell and that error grows like
//! `(1 + eta)^rounds`; here each cell's probability is a difference of normal tails, which
//! telescopes, and only the split is a quadrature.
//!
//! Far from the bulk the grid is thinned by powers of two in proportion to the loss: a subset of a
//! grid is a grid, so this stays safe, and heavy tails cost a few thousand cells, not millions.
//! The offset puts a grid point at the loss of `y = 0`, where rare sampling piles its mass up.

use super::cut::{Cut, Cutoff};
use super::losses::LossDistribution;
use crate::error::AccountError;
use crate::mixture::MixturePair;

/// Safety added to the share that moves up: more than the quadrature's error.
const SPLIT_ALLOWANCE: f64 = 1e-10;

/// Probability below which the lower tail of `P` is merged into the lowest cell (upwards).
const LOWER_TAIL: f64 = 1e-18;

/// Most grid points on either side of the bulk.
const LARGEST_INDEX: f64 = 16_777_216.0;

/// How fine, and how much may be given up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Resolution {
    /// Distance of grid points.
    pub(crate) step: f64,
    /// Cells with unit stride on each side of the bulk.
    pub(crate) even: i64,
    /// What lies above the last point and is moved to infinity.
    pub(crate) cutoff: Cutoff,
    /// Losses below this one are raised to it.
    pub(crate) floor: f64,
}

/// The loss distribution of one round of `pair`.
///
/// # Errors
/// A range of losses that needs more than 2^24 grid points above the bulk.
pub(crate) fn discretise(
    pair: &MixturePair,
    resolution: Resolution,
) -> Result<LossDistribution, AccountError> {
    let step = resolution.step;
    let offset = pair.at(0.0).loss;
    let even = resolution.even;
    let top = pair.upper_cut(resolution.cutoff);
    let top_loss = pair.at(top).loss;
    let highest = (top_loss - offset) / step;
    if highest.is_nan() || highest > LARGEST_INDEX {
        return Err(AccountError::Unresolved {
            reason: "the losses of one round span too many grid points",
        });
    }
    let floor = resolution.floor.max(offset - LARGEST_INDEX * step);
    let mut low = lowest_point(pair, floor);
    let lowest = (pair.at(low).loss - offset) / step;
    let mut index = align_down(lowest.floor() as i64, even);
    let first = index;
    let mut cells = Cells::new(pair, low, top);
    let mut masses = Vec::new();
    // What lies below the cut is no higher than the upper end of the first cell.
    let mut below = pair.mass_below(low);
    while low < top {
        let stride = stride_at(index, even);
        let floor = offset + index as f64 * step;
        let width = stride as f64 * step;
        let high = if floor + width >= top_loss {
            top
        } else {
            cells.next_edge(floor + width, width)
        };
        let (mass, up) = cells.close(high, floor, width);
        let position = (index - first) as usize;
        masses.resize(position + stride as usize + 1, 0.0);
        masses[position] += mass * (1.0 - up);
        masses[position + stride as usize] += mass * up + below;
        below = 0.0;
        low = high;
        index += stride;
    }
    let infinity = pair.mass_above(top);
    Ok(LossDistribution::new(step, first, masses, infinity).shifted(offset))
}

/// Where the walk begins: below it `P` has next to nothing, or losses below `floor` that are
/// raised.
fn lowest_point(pair: &MixturePair, floor: f64) -> f64 {
    let mut low = pair.lower_cut(LOWER_TAIL);
    if pair.at(low).loss >= floor {
        return low;
    }
    let mut high = 0.0;
    for _ in 0..40 {
        let middle = 0.5 * (low + high);
        if pair.at(middle).loss < floor {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}

/// Stride of the cell that starts at `index`: doubles with each octave of the distance from zero.
fn stride_at(index: i64, even: i64) -> i64 {
    let inner = if index >= 0 { index } else { -index - 1 };
    1 << (inner / even).max(1).ilog2()
}

/// The nearest start of a cell at or below `index`.
fn align_down(index: i64, even: i64) -> i64 {
    let stride = stride_at(index, even);
    index.div_euclid(stride) * stride
}

/// The walk from cell to cell: where it stands, and how the loss grows there.
struct Cells<'a> {
    pair: &'a MixturePair,
    low: f64,
    top: f64,
    cut: Cut,
    next_cut: Cut,
    slope: f64,
    bend: f64,
    log_density: f64,
}

impl<'a> Cells<'a> {
    fn new(pair: &'a MixturePair, low: f64, top: f64) -> Self {
        let point = pair.at(low);
        let mut cut = Cut::default();
        pair.cut_at(low, &mut cut);
        Cells {
            pair,
            low,
            top,
            cut,
            next_cut: Cut::default(),
            slope: point.slope,
            bend: 0.0,
            log_density: point.log_density,
        }
    }

    /// Solves `L(y) = level` above `low` by Newton's iteration inside a shrinking bracket.
    fn next_edge(&mut self, level: f64, width: f64) -> f64 {
        // One more step after this residual leaves its square, far below the split's allowance.
        let close = 1e-6 * width;
        let (mut low, mut high) = (self.low, self.top);
        let straight = width / self.slope;
        let bent = straight * (1.0 - 0.5 * self.bend * straight / self.slope);
        let mut y = self.low + if bent > 0.0 { bent } else { straight };
        for _ in 0..200 {
            if !(y > low && y < high) {
                y = 0.5 * (low + high);
                if y <= low || y >= high {
                    break;
                }
            }
            let point = self.pair.at(y);
            let residual = level - point.loss;
            if residual > 0.0 {
                low = y;
            } else {
                high = y;
            }
            let next = y + residual / point.slope;
            if residual.abs() <= close && next >= low && next <= high {
                self.bend = (point.slope - self.slope) / (y - self.low);
                self.slope = point.slope;
                self.log_density = point.log_density;
                return next;
            }
            y = next;
        }
        high
    }

    /// Probability between the last edge and `high`, and its share that moves up.
    fn close(&mut self, high: f64, floor: f64, width: f64) -> (f64, f64) {
        self.pair.cut_at(high, &mut self.next_cut);
        let mass = self.pair.mass_between(&self.cut, &self.next_cut);
        let up = if mass > 0.0 {
            self.share_up(high, floor, width)
        } else {
            0.0
        };
        std::mem::swap(&mut self.cut, &mut self.next_cut);
        self.low = high;
        (mass.max(0.0), up)
    }

    fn share_up(&self, high: f64, floor: f64, width: f64) -> f64 {
        let span = high - self.low;
        let smoothness = span * self.pair.roughness();
        // Error of the n-point rule relative to the integrand: 4e-11 or less in each case.
        let (nodes, panels): (&[(f64, f64)], usize) = if smoothness < 0.02 {
            (&GAUSS_2, 1)
        } else if smoothness < 0.2 {
            (&GAUSS_3, 1)
        } else {
            (&GAUSS_6, smoothness.ceil() as usize)
        };
        // Any scale will do for the density as long as nothing overflows.
        let reference = if panels == 1 {
            self.log_density
        } else {
            let middle = self.pair.at(self.low + 0.5 * span).log_density;
            let ends = self.pair.at(self.low).log_density;
            ends.max(self.pair.at(high).log_density).max(middle)
        };
        let half = 0.5 * span / panels as f64;
        let (mut all, mut up) = (0.0, 0.0);
        for panel in 0..panels {
            let middle = self.low + (2 * panel + 1) as f64 * half;
            for &(node, weight) in nodes {
                let point = self.pair.at(middle + node * half);
                let density = weight * (point.log_density - reference).exp();
                all += density;
                up += density * (floor - point.loss).exp_m1();
            }
        }
        if all <= 0.0 {
            return 1.0;
        }
        let share = up / (all * (-width).exp_m1());
        (share + SPLIT_ALLOWANCE).clamp(0.0, 1.0)
    }
}

const GAUSS_2: [(f64, f64); 2] = [
    (-0.577_350_269_189_625_8, 1.0),
    (0.577_350_269_189_625_8, 1.0),
];

const GAUSS_3: [(f64, f64); 3] = [
    (-0.774_596_669_241_483_4, 5.0 / 9.0),
    (0.0, 8.0 / 9.0),
    (0.774_596_669_241_483_4, 5.0 / 9.0),
];

const GAUSS_6: [(f64, f64); 6] = [
    (-0.932_469_514_203_152, 0.171_324_492_379_170_4),
    (-0.661_209_386_466_264_5, 0.360_761_573_048_138_6),
    (-0.238_619_186_083_196_9, 0.467_913_934_572_691),
    (0.238_619_186_083_196_9, 0.467_913_934_572_691),
    (0.661_209_386_466_264_5, 0.360_761_573_048_138_6),
    (0.932_469_514_203_152, 0.171_324_492_379_170_4),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adjacency::Adjacency;
    use crate::mixture::ShiftMixture;

    fn pairs() -> Vec<MixturePair> {
        let mixture = ([0.1 / 1.3, 1.1 / 1.3], [0.9, 0.1]);
        let rare = ([0.0, 1.0 / 0.4], [1.0 - 1e-5, 1e-5]);
        let loud = ([0.0, 10.0], [0.7, 0.3]);
        let mut pairs = Vec::new();
        for (shifts, probabilities) in [mixture, rare, loud] {
            let shifts = ShiftMixture::new(&shifts, &probabilities).unwrap();
            for &adjacency in Adjacency::ALL {
                pairs.extend(MixturePair::directions(&shifts, adjacency));
            }
        }
        pairs
    }

    fn resolution(step: f64, even: i64) -> Resolution {
        Resolution {
            step,
            even,
            cutoff: Cutoff {
                tail: 1e-16,
                epsilon: f64::INFINITY,
            },
            floor: f64::NEG_INFINITY,
        }
    }

    /// `H_{e^epsilon}(P || Q)` by a fine midpoint rule.
    fn exact(pair: &MixturePair, epsilon: f64) -> f64 {
        let gap = 1e-4;
        (-100_000..160_000)
            .map(|index| pair.at((f64::from(index) + 0.5) * gap))
            .filter(|point| point.loss > epsilon)
            .map(|point| -point.log_density.exp() * (epsilon - point.loss).exp_m1())
            .sum::<f64>()
            * gap
            / std::f64::consts::TAU.sqrt()
    }

    #[test]
    fn both_laws_keep_their_mass() {
        for (pair, step) in pairs().iter().flat_map(|pair| [(pair, 0.01), (pair, 1e-3)]) {
            let losses = discretise(pair, resolution(step, 32)).unwrap();
            assert!((losses.total() - 1.0).abs() < 1e-13);
            let other: f64 = losses
                .entries()
                .map(|(loss, mass)| mass * (-loss).exp())
                .sum();
            // Q may have more than P below the first cell, which is raised into it; above the cut
            // it has at most 1e-16, and the allowance moves 1e-10 of a cell.
            let low = lowest_point(pair, f64::NEG_INFINITY);
            let inside = 1.0 - pair.other_mass_below(low);
            assert!(
                other > inside - 1e-10 && other < 1.0 + 1e-10,
                "{other} {inside}"
            );
        }
    }

    #[test]
    fn delta_is_exact_on_grid_points_and_above_between() {
        for pair in pairs() {
            let losses = discretise(&pair, resolution(0.05, 1 << 20)).unwrap();
            for index in [0, 3, 11, 40] {
                let on = losses.offset + f64::from(index) * losses.step;
                let (truth, found) = (exact(&pair, on), losses.delta(on));
                assert!(
                    (found - truth).abs() < 1e-7 * truth + 1e-9,
                    "{found} {truth}"
                );
                let between = on + 0.4 * losses.step;
                assert!(losses.delta(between) >= exact(&pair, between) - 1e-9);
            }
        }
    }

    #[test]
    fn thinning_refining_and_flooring_keep_their_order() {
        for pair in pairs() {
            let coarse = discretise(&pair, resolution(0.02, 16)).unwrap();
            let fine = discretise(&pair, resolution(0.01, 32)).unwrap();
            let even = discretise(&pair, resolution(0.01, 1 << 20)).unwrap();
            let mut floored = resolution(0.01, 32);
            floored.floor = -0.05;
            let floored = discretise(&pair, floored).unwrap();
            assert!(fine.entries().count() <= even.entries().count());
            for epsilon in [0.0, 0.013, 0.3, 1.0, 2.7, 5.0] {
                assert!(coarse.delta(epsilon) >= fine.delta(epsilon) - 1e-13);
                assert!(fine.delta(epsilon) >= even.delta(epsilon) - 1e-13);
                assert!(floored.delta(epsilon) >= fine.delta(epsilon) - 1e-13);
            }
        }
    }

    #[test]
    fn strides_partition_the_grid() {
        for even in [4, 32, 100] {
            let mut index = align_down(-5000, even);
            assert!(index <= -5000);
            let mut zero_seen = false;
            while index < 5000 {
                zero_seen |= index == 0;
                assert_eq!(index.rem_euclid(stride_at(index, even)), 0);
                index += stride_at(index, even);
            }
            assert!(zero_seen);
        }
    }
}
