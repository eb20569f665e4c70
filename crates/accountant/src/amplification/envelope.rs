//! The concave envelope at one point, of functions of the squared shift.
//!
//! Two ways. [`s_shaped`] is exact for functions that are first convex, then concave. [`stepped`]
//! asks only that the function does not decrease, and returns an upper bound.

/// Relative precision of the tangent point; the envelope's error is its square.
const TANGENT: f64 = 1e-8;

/// Values below this are not told from zero: Gaussian tails underflow there, first the slope's sign
/// and then the value itself. It is added where it matters, and far below any delta.
const TINY: f64 = 1e-280;

/// Envelope at `mean` of a nondecreasing function on `[0, end]` that vanishes at 0 and is convex up
/// to some point and concave from there.
///
/// Its envelope is the tangent from the origin up to the tangent point, then the function itself.
/// The sign of `s v'(s) - v(s)` tells on which side of the tangent point `s` lies, except where
/// both have underflowed: that is the foot of the function, always on the left. `function` returns
/// `(v(s), s v'(s))`. Whatever the signs say, the result is not below the chord to `end`.
pub(super) fn s_shaped(function: impl Fn(f64) -> (f64, f64), mean: f64, end: f64) -> f64 {
    if mean <= 0.0 {
        return 0.0;
    }
    if mean >= end {
        return function(mean).0;
    }
    let left_of_tangent = |(value, scaled_slope): (f64, f64)| value < TINY || scaled_slope > value;
    let at_end = function(end);
    let chord = mean / end * at_end.0 + TINY;
    let at_mean = function(mean);
    if !left_of_tangent(at_mean) {
        return at_mean.0.max(chord);
    }
    if left_of_tangent(at_end) {
        return chord;
    }
    let (mut low, mut high) = (mean, end);
    while high > low * (1.0 + TANGENT) {
        let middle = (low * high).sqrt();
        if left_of_tangent(function(middle)) {
            low = middle;
        } else {
            high = middle;
        }
    }
    (mean / low * function(low).0).max(chord)
}

/// A cell `(low, high]` of rho with the function's value at its upper end, its largest there.
#[derive(Clone, Copy)]
struct Cell {
    low: f64,
    high: f64,
    value: f64,
}

/// Cells that decide the envelope are split until `high / low` is below this: the result is at most
/// the exact envelope at `mean * RATIO`, but for the first cell.
const RATIO: f64 = 1.02;

/// How much the cell that begins at zero may add, relative to the result.
const FIRST: f64 = 1e-3;

/// Evaluations after which the bound is returned as it is; it is valid at any time.
const BUDGET: usize = 150;

/// Upper bound of the envelope at `mean` of a nondecreasing function on `[0, 1]`.
///
/// On a cell the function is at most its value at the upper end, so the envelope of the points
/// `(low, value)` lies above the function's. Only cells that touch the answer are refined.
pub(super) fn stepped(mut function: impl FnMut(f64) -> f64, mean: f64) -> f64 {
    if mean >= 1.0 {
        return function(1.0);
    }
    let mut cells = Vec::with_capacity(BUDGET);
    let mut high = 1.0;
    while high > mean / 8.0 {
        let low = high / 1.5;
        cells.push(Cell {
            low,
            high,
            value: function(high),
        });
        high = low;
    }
    cells.push(Cell {
        low: 0.0,
        high,
        value: function(high),
    });
    cells.reverse();
    loop {
        let (bound, left, right) = hull_at(&cells, mean);
        let rough = |at: usize| match cells[at] {
            Cell {
                low: 0.0, value, ..
            } => value > FIRST * bound,
            cell => cell.high > cell.low * RATIO,
        };
        // The right one first: splitting it leaves the left one's index in place.
        let split: Vec<usize> = [right, left].into_iter().filter(|&at| rough(at)).collect();
        if split.is_empty() || cells.len() >= BUDGET {
            return bound;
        }
        for (turn, &at) in split.iter().enumerate() {
            if turn == 1 && at == split[0] {
                break;
            }
            let Cell { low, high, value } = cells[at];
            let middle = if low == 0.0 {
                high / 4.0
            } else {
                (low * high).sqrt()
            };
            let lower = Cell {
                low,
                high: middle,
                value: function(middle),
            };
            cells[at] = Cell {
                low: middle,
                high,
                value,
            };
            cells.insert(at, lower);
        }
    }
}

/// Value at `mean` of the upper hull of the points `(low, value)` and `(1, value at 1)`, with the
/// cells that carry the hull's segment there. Cells are in increasing order, values nondecreasing.
fn hull_at(cells: &[Cell], mean: f64) -> (f64, usize, usize) {
    let last = cells.len() - 1;
    let point = |at: usize| (cells[at].low, cells[at].value);
    // The segment over `mean` maximises the value there over all pairs on either side: for a
    // fixed left point the best right point is the steepest, and the other way round.
    let split = cells.partition_point(|cell| cell.low <= mean).max(1);
    let (mut left, mut right) = (split - 1, last);
    let at_mean = |left: usize, right: usize| {
        let (a, b) = (point(left), point(right));
        if right <= left || b.0 <= mean {
            return a.1.max(b.1);
        }
        a.1 + (b.1 - a.1) * ((mean - a.0) / (b.0 - a.0))
    };
    loop {
        let before = (left, right);
        for candidate in split..cells.len() {
            if at_mean(left, candidate) > at_mean(left, right) {
                right = candidate;
            }
        }
        for candidate in 0..split {
            if at_mean(candidate, right) > at_mean(left, right) {
                left = candidate;
            }
        }
        if (left, right) == before {
            break;
        }
    }
    // Without points to the right of the mean, the last cell's value bounds everything.
    (at_mean(left, right), left, right)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Envelope by all pairs of points on a fine grid.
    fn by_pairs(function: impl Fn(f64) -> f64, mean: f64) -> f64 {
        let points: Vec<(f64, f64)> = (0..=2000)
            .map(|i| f64::from(i) / 2000.0)
            .map(|x| (x, function(x)))
            .collect();
        let mut best = 0.0f64;
        for a in points.iter().filter(|p| p.0 <= mean) {
            for b in points.iter().filter(|p| p.0 > mean) {
                best = best.max(a.1 + (b.1 - a.1) * (mean - a.0) / (b.0 - a.0));
            }
        }
        best
    }

    #[test]
    fn both_ways_agree_with_all_pairs() {
        // Convex then concave; concave; convex; and two bumps (only for the stepped way).
        let sigmoid = |x: f64| x * x / (x * x + 0.04);
        let sigmoid_slope = |x: f64| 2.0 * 0.04 * x * x / (x * x + 0.04).powi(2);
        let stairs = |x: f64| 0.3 * (x / (x + 0.02)) + x.powi(6);
        for mean in [0.01, 0.05, 0.2, 0.5, 0.9] {
            let exact = by_pairs(sigmoid, mean);
            let ours = s_shaped(|x| (sigmoid(x), sigmoid_slope(x)), mean, 1.0);
            assert!((ours / exact - 1.0).abs() < 1e-4, "{mean}: {ours} {exact}");
            for function in [sigmoid as fn(f64) -> f64, f64::sqrt, |x| x.powi(3), stairs] {
                let exact = by_pairs(function, mean);
                let ours = stepped(function, mean);
                assert!(ours >= exact * (1.0 - 1e-12), "{mean}: {ours} {exact}");
                assert!(ours <= exact * 1.03, "{mean}: {ours} {exact}");
            }
        }
        assert_eq!(stepped(f64::sqrt, 1.0), 1.0);
    }

    #[test]
    fn a_foot_that_underflows_is_no_plateau() {
        // exp(-1/x) is zero in double precision below 1/746 and has its tangent point at 1.
        let foot = |x: f64| ((-1.0 / x).exp(), (-1.0 / x).exp() / x);
        for mean in [1e-9, 1e-6, 1e-4, 1.0 / 745.0, 1e-2, 0.3] {
            for end in [0.5, 1.0, 40.0] {
                let tangent = f64::min(1.0, end);
                let exact = mean / tangent * foot(tangent).0;
                let ours = s_shaped(foot, mean, end);
                assert!(
                    (ours / exact - 1.0).abs() < 1e-6,
                    "{mean} {end}: {ours} {exact}"
                );
            }
        }
    }
}
