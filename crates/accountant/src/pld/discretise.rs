//! From a pair of laws to a loss distribution: connect the dots, without losing mass.
//!
//! A loss `l` between two grid points `e` and `e + h` is split: up with weight
//! `(1 - exp(e - l)) / (1 - exp(-h))`, the rest down. That preserves the probability under both
//! laws and interpolates `delta` linearly in `exp(epsilon)` between the grid points, which is the
//! tightest safe choice on a grid (Doroshenko et al., arXiv 2207.04380). Differences of `delta`,
//! the usual way to compute it, lose about 1e-16 per cell and that error grows like
//! `(1 + eta)^rounds`; here each cell's probability is a difference of normal tails, which
//! telescopes, and only the split is a quadrature.
//!
//! Far from the bulk the grid is thinned by powers of two in proportion to the loss: a subset of a
//! grid is a grid, so this stays safe, and heavy tails cost a few thousand cells, not millions.
//! The offset puts a grid point at the loss of `y = 0`, where rare sampling piles its mass up.

use super::distribution::LossDistribution;
use super::pair::{Pair, Point};

/// Cells with unit stride on each side of the bulk at the coarsest step.
const EVEN_CELLS: i64 = 256;

/// Safety added to the share that moves up: more than the quadrature's error.
const SPLIT_ALLOWANCE: f64 = 1e-10;

/// Probability below which the lower tail of `P` is merged into the lowest cell (upwards).
const LOWER_TAIL: f64 = 1e-18;

/// How fine, and how much may be given up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Resolution {
    /// Distance of grid points.
    pub(crate) step: f64,
    /// How often the coarsest step was halved to get there; keeps refined grids nested.
    pub(crate) halvings: u32,
    /// Probability above the last point, moved to infinity.
    pub(crate) tail: f64,
}

/// The loss distribution of one round of `pair`.
pub(crate) fn discretise(pair: &Pair, resolution: Resolution) -> LossDistribution {
    let step = resolution.step;
    let offset = pair.at(0.0).loss;
    let even = EVEN_CELLS << resolution.halvings;
    let top = pair.upper_cut(resolution.tail);
    let top_loss = pair.at(top).loss;
    let mut low = pair.lower_cut(LOWER_TAIL);
    let lowest = ((pair.at(low).loss - offset) / step).floor() as i64;
    let mut index = align_down(lowest, even);
    let first = index;
    let mut masses = Vec::new();
    // What lies below the cut is no higher than the upper end of the first cell.
    let mut below = pair.mass_below(low);
    let mut infinity = pair.mass_above(top);
    while low < top {
        let stride = stride_at(index, even);
        let floor = offset + index as f64 * step;
        let width = stride as f64 * step;
        let high = if floor + width >= top_loss {
            top
        } else {
            invert(pair, floor + width, low, top, width)
        };
        let mass = pair.mass(low, high);
        let up = if mass > 0.0 {
            share_up(pair, low, high, floor, width)
        } else {
            0.0
        };
        let position = (index - first) as usize;
        masses.resize(position + stride as usize + 1, 0.0);
        masses[position] += mass * (1.0 - up);
        masses[position + stride as usize] += mass * up + below;
        below = 0.0;
        low = high;
        index += stride;
    }
    infinity += below;
    LossDistribution::with_offset(step, offset, first, masses, infinity)
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

/// Newton's iteration for `L(y) = level` between `low` and `high`, falling back to bisection.
fn invert(pair: &Pair, level: f64, mut low: f64, mut high: f64, width: f64) -> f64 {
    // One more step after this residual leaves its square, far below the split's allowance.
    let close = 1e-6 * width;
    let start = pair.at(low);
    let mut y = low + (level - start.loss) / start.slope;
    for _ in 0..200 {
        if !(y > low && y < high) {
            y = 0.5 * (low + high);
            if y <= low || y >= high {
                return high;
            }
        }
        let Point { loss, slope, .. } = pair.at(y);
        let residual = level - loss;
        if residual > 0.0 {
            low = y;
        } else {
            high = y;
        }
        let next = y + residual / slope;
        if residual.abs() <= close && next >= low && next <= high {
            return next;
        }
        y = next;
    }
    high
}

/// Share of the cell's probability that moves to its upper end.
fn share_up(pair: &Pair, low: f64, high: f64, floor: f64, width: f64) -> f64 {
    let smoothness = (high - low) * pair.roughness();
    // Error of the n-point rule relative to the integrand: 2e-11 or less in each case.
    let (nodes, panels): (&[(f64, f64)], usize) = if smoothness < 0.02 {
        (&GAUSS_2, 1)
    } else if smoothness < 0.2 {
        (&GAUSS_3, 1)
    } else {
        (&GAUSS_6, smoothness.ceil() as usize)
    };
    // Any scale will do for the density as long as nothing overflows.
    let reference = if panels == 1 {
        pair.at(0.5 * (low + high)).log_density
    } else {
        let ends = pair.at(low).log_density.max(pair.at(high).log_density);
        ends.max(pair.at(0.5 * (low + high)).log_density)
    };
    let half = 0.5 * (high - low) / panels as f64;
    let (mut all, mut up) = (0.0, 0.0);
    for panel in 0..panels {
        let middle = low + (2 * panel + 1) as f64 * half;
        for &(node, weight) in nodes {
            let point = pair.at(middle + node * half);
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
    (-0.932_469_514_203_152_1, 0.171_324_492_379_170_36),
    (-0.661_209_386_466_264_5, 0.360_761_573_048_138_6),
    (-0.238_619_186_083_196_9, 0.467_913_934_572_691_04),
    (0.238_619_186_083_196_9, 0.467_913_934_572_691_04),
    (0.661_209_386_466_264_5, 0.360_761_573_048_138_6),
    (0.932_469_514_203_152_1, 0.171_324_492_379_170_36),
];
