//! Tails of the standard normal law, accurate relative to their own size however small they are.

use std::f64::consts::{FRAC_1_SQRT_2, PI};

/// `P(Z > x)`.
pub(crate) fn upper_tail(x: f64) -> f64 {
    0.5 * libm::erfc(x * FRAC_1_SQRT_2)
}

/// `P(low < Z <= high)`, from whichever tail loses nothing to cancellation; the pieces of a
/// partition add up to one to the last bits.
pub(crate) fn between(low: f64, high: f64) -> f64 {
    if low >= 0.0 {
        upper_tail(low) - upper_tail(high)
    } else if high <= 0.0 {
        upper_tail(-high) - upper_tail(-low)
    } else {
        1.0 - upper_tail(high) - upper_tail(-low)
    }
}

/// Density at `x`.
pub(crate) fn density(x: f64) -> f64 {
    (-0.5 * x * x).exp() / (2.0 * PI).sqrt()
}

/// Mills ratio `P(Z > x) / density(x)` for `x >= 0`; decreasing from `sqrt(pi/2)` like `1/x`.
pub(crate) fn mills(x: f64) -> f64 {
    const SWITCH: f64 = 5.0;
    const TERMS: u32 = 80;
    if x < SWITCH {
        return upper_tail(x) / density(x);
    }
    // Laplace's continued fraction x + 1/(x + 2/(x + ...)), evaluated from the inside.
    let mut value = x;
    for term in (1..=TERMS).rev() {
        value = x + f64::from(term) / value;
    }
    1.0 / value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mills_branches_agree_and_obey_their_bounds() {
        for x in [4.0, 5.0, 6.0, 8.0] {
            let direct = upper_tail(x) / density(x);
            assert!((mills(x) / direct - 1.0).abs() < 1e-12, "{x}");
        }
        for x in [1.0, 10.0, 40.0, 1e3, 1e6] {
            assert!(mills(x) < 1.0 / x);
            assert!(mills(x) >= x / (1.0 + x * x));
        }
    }

    #[test]
    fn pieces_of_a_partition_sum_to_one() {
        let edges: Vec<f64> = (-160..=160).map(|i| f64::from(i) * 0.05).collect();
        let inner: f64 = edges.windows(2).map(|w| between(w[0], w[1])).sum();
        assert!((inner + 2.0 * upper_tail(8.0) - 1.0).abs() < 1e-15);
    }
}
