//! From an upper bound of a hockey-stick curve to a loss distribution on a grid.
//!
//! **Connect the dots** (Doroshenko et al., arXiv 2207.04380). Let `E(g)` be a hockey-stick curve
//! and `U >= E` numbers at nodes `g_0 < ... < g_n`. The largest convex function below the polygon
//! through `(0, 1)`, the dots `(g_j, U_j)` and the level `U_n` beyond still lies above `E`: the
//! polygon through the values of `E` is convex, lies above `E` (a chord of a convex function does)
//! and below the dots. A convex polygon from `(0, 1)` with slopes in `[-1, 0]` is the curve of a
//! discrete pair: its slope changes at `g_j` by the mass of `Q` there, so that of `P` is `g_j`
//! times that, and the final level is the mass at infinity. Nothing is lost: the masses
//! telescope to one.
//!
//! **Nodes** are multiples of the step, dense around zero and one percent of the loss apart farther
//! out: a chord of relative width `1/100` adds `1/60000` to the second moment of the loss, and
//! saves nine tenths of the evaluations.

use crate::error::AccountError;
use crate::mixture::MixturePair;
use crate::pld::LossDistribution;

/// Outcomes farther than this from every mean have probability below 1e-20.
const REACH: f64 = 9.3;

/// Losses are cut at this size; beyond, mass counts as infinite.
const LARGEST_LOSS: f64 = 300.0;

/// Steps of the grid from the first node to the last.
const LONGEST: f64 = (1_u64 << 27) as f64;

/// Node spacing around zero, in parts of the typical loss.
const DENSE: f64 = 20.0;

/// Relative node spacing farther out.
const RELATIVE: f64 = 0.01;

/// Smallest and largest loss worth a node.
pub(super) fn range(pair: &MixturePair) -> (f64, f64) {
    let top = pair.loss(pair.up.largest() + REACH).min(LARGEST_LOSS);
    let bottom = pair.loss(-pair.down.largest() - REACH).max(-LARGEST_LOSS);
    (bottom.min(0.0), top.max(0.0))
}

/// Positive nodes up to `end`, `dense` apart near zero and relatively farther out.
pub(super) fn geometric(end: f64, dense: f64) -> Vec<f64> {
    let mut nodes = Vec::new();
    let mut at = 0.0;
    while at < end && dense > 0.0 {
        at = (at + dense.max(RELATIVE * at)).min(end);
        nodes.push(at);
    }
    nodes
}

/// Nodes as multiples of `step`, increasing, zero among them.
///
/// A shift of very many times the noise has losses that no memory holds in steps of this size. Who
/// states the shift (a peer, by a target or by its number of records) must not choose how much is
/// allocated, so the length is looked at before anything is built.
///
/// # Errors
/// More than [`LONGEST`] steps from the first node to the last.
pub(super) fn nodes(pair: &MixturePair, step: f64, scale: f64) -> Result<Vec<i64>, AccountError> {
    let (bottom, top) = range(pair);
    let dense = scale / DENSE;
    let last = |end: f64| (end / step).ceil().max(1.0);
    // Written so that what is not a number is too long.
    let fits = last(-bottom) + last(top) <= LONGEST;
    if !fits {
        return Err(AccountError::Unresolved {
            reason: "the losses of one round need more than 2^27 steps of the grid",
        });
    }
    let side = |end: f64| {
        let last = last(end) as i64;
        let mut at = 0;
        let mut indices = Vec::new();
        while at < last {
            let gap = dense.max(RELATIVE * at as f64 * step) / step;
            // The gap is as large as the typical loss, which nothing bounds.
            at = at.saturating_add((gap as i64).max(1)).min(last);
            indices.push(at);
        }
        indices
    };
    let below = side(-bottom).into_iter().rev().map(|index| -index);
    Ok(below.chain([0]).chain(side(top)).collect())
}

/// A dot `(g, U - max(0, 1 - g))` with `g = e^{index * step}`.
#[derive(Clone, Copy)]
pub(super) struct Dot {
    pub(super) index: i64,
    excess: f64,
}

/// The dots of an excess at the nodes.
pub(super) fn dots(nodes: &[i64], step: f64, mut excess: impl FnMut(f64) -> f64) -> Vec<Dot> {
    let dot = |&index: &i64| Dot {
        index,
        excess: excess(index as f64 * step),
    };
    nodes.iter().map(dot).collect()
}

/// The dots of the exchanged pair: `V_g` becomes `g V_{1/g}`.
pub(super) fn mirrored(dots: &[Dot], step: f64) -> Vec<Dot> {
    let mirror = |dot: &Dot| Dot {
        index: -dot.index,
        excess: (-dot.index as f64 * step).exp() * dot.excess,
    };
    dots.iter().rev().map(mirror).collect()
}

/// The losses whose curve is the convex polygon below the dots `excess + max(0, 1 - g)`; there are
/// dots below, at and above zero.
pub(super) fn connect(mut dots: Vec<Dot>, step: f64) -> LossDistribution {
    let zero = dots.partition_point(|dot| dot.index < 0);
    // The excess falls away from zero on both sides; where rounding says otherwise, a neighbour's
    // smaller bound holds here as well.
    for at in (0..zero).rev() {
        dots[at].excess = dots[at].excess.min(dots[at + 1].excess);
    }
    for at in zero + 1..dots.len() {
        dots[at].excess = dots[at].excess.min(dots[at - 1].excess);
    }
    lower_at_one(&mut dots, zero, step);
    let below = polygon(&dots[..=zero], step, true);
    let above = polygon(&dots[zero..], step, false);

    let first = dots[0].index;
    let length = (dots[dots.len() - 1].index - first + 1) as usize;
    let mut masses = vec![0.0; length];
    let mut left = None;
    for &(dot, slope) in below.iter().chain(&above) {
        // Slopes are those of the excess: the curve's own kink at g = 1 is one more.
        if let Some((corner, before)) = left {
            add_mass(&mut masses, first, step, corner, before, slope);
        }
        left = Some((dot, slope));
    }
    if let Some((corner, before)) = left {
        add_mass(&mut masses, first, step, corner, before, 0.0);
    }
    LossDistribution::new(step, first, masses, dots[dots.len() - 1].excess)
}

/// Lowers the dot at `g = 1` to the lowest chord over it: the two sides' hulls then meet in a
/// convex corner.
fn lower_at_one(dots: &mut [Dot], zero: usize, step: f64) {
    let chord = |a: Dot, b: Dot| {
        let (left, right) = (
            -(a.index as f64 * step).exp_m1(),
            (b.index as f64 * step).exp_m1(),
        );
        ((left + a.excess) * right + b.excess * left) / (left + right)
    };
    let (mut left, mut right) = (zero - 1, zero + 1);
    // Each side's best partner in turn; when neither changes, all dots lie above the chord.
    loop {
        let before = (left, right);
        for at in 0..zero {
            if chord(dots[at], dots[right]) < chord(dots[left], dots[right]) {
                left = at;
            }
        }
        for at in zero + 1..dots.len() {
            if chord(dots[left], dots[at]) < chord(dots[left], dots[right]) {
                right = at;
            }
        }
        if (left, right) == before {
            break;
        }
    }
    dots[zero].excess = dots[zero].excess.min(chord(dots[left], dots[right]));
}

/// Adds the numerator mass of a corner between two slopes of the excess.
fn add_mass(masses: &mut [f64], first: i64, step: f64, corner: Dot, before: f64, after: f64) {
    let kink = if corner.index == 0 { 1.0 } else { 0.0 };
    let mass = (corner.index as f64 * step).exp() * (after - before + kink);
    masses[(corner.index - first) as usize] += mass.max(0.0);
}

/// Lower convex hull of dots in increasing order, on one side of `g = 1`: for each edge its right
/// end and its slope. `from_origin` adds the edge from `(0, 0)` to the first dot.
///
/// Slopes are of the excess, not of the curve: near -1 the curve's slope has no digits left.
fn polygon(dots: &[Dot], step: f64, from_origin: bool) -> Vec<(Dot, f64)> {
    let g = |dot: Dot| (dot.index as f64 * step).exp();
    let slope = |from: Option<Dot>, to: Dot| match from {
        None => to.excess / g(to),
        Some(from) => {
            let width = g(from) * ((to.index - from.index) as f64 * step).exp_m1();
            (to.excess - from.excess) / width
        }
    };
    let mut edges: Vec<(Dot, f64)> = Vec::with_capacity(dots.len());
    let (start, rest) = if from_origin {
        (None, dots)
    } else {
        (Some(dots[0]), &dots[1..])
    };
    for &dot in rest {
        loop {
            let from = edges.last().map(|edge| edge.0).or(start);
            let next = slope(from, dot);
            match edges.last() {
                Some(&(_, previous)) if next < previous => edges.pop(),
                _ => {
                    edges.push((dot, next));
                    break;
                }
            };
        }
    }
    edges
}
