//! The Gaussian mechanism in closed form (Balle and Wang, arXiv 1805.06530).
//!
//! Rounds with a certain shift compose exactly: `mu^2 = sum (shift / sigma)^2`, doubled `mu` under
//! replace-one, and
//!
//! ```text
//! delta(epsilon) = Phi(mu/2 - epsilon/mu) - exp(epsilon) Phi(-mu/2 - epsilon/mu)
//! ```
//!
//! Since `exp(epsilon) phi(x + mu) = phi(x)` at `x = epsilon/mu - mu/2`, this is
//! `phi(x) (R(x) - R(x + mu))` with Mills' ratio `R`: no large number meets another, and the
//! result has full relative accuracy wherever it is a normal number.

use crate::normal;

/// `delta(epsilon)` of a Gaussian mechanism with `mu > 0`.
pub(crate) fn delta(mu: f64, epsilon: f64) -> f64 {
    let x = epsilon / mu - 0.5 * mu;
    let beyond = normal::mills(x + mu);
    if x >= 0.0 {
        normal::density(x) * (normal::mills(x) - beyond)
    } else {
        normal::upper_tail(x) - normal::density(x) * beyond
    }
}

/// The least `epsilon >= 0` with `delta(epsilon) <= delta`.
pub(crate) fn epsilon(mu: f64, target: f64) -> f64 {
    if mu <= 0.0 || delta(mu, 0.0) <= target {
        return 0.0;
    }
    // delta(epsilon) <= P(Z > x), and below 1e-300 the tail ends at 38 standard deviations.
    let (mut low, mut high) = (0.0, mu * (0.5 * mu + 40.0));
    while high - low > 4.0 * f64::EPSILON * high {
        let middle = 0.5 * (low + high);
        if delta(mu, middle) > target {
            low = middle;
        } else {
            high = middle;
        }
    }
    high
}

/// The largest `mu` of a Gaussian mechanism whose `delta(epsilon)` is at most `target`: what a
/// target (epsilon, delta) allows, in the one number that composes by its square.
#[must_use]
pub fn largest_mu(epsilon: f64, target: f64) -> f64 {
    let (mut low, mut high) = (0.0, 1.0);
    while delta(high, epsilon) <= target && high < 1e8 {
        low = high;
        high *= 2.0;
    }
    for _ in 0..100 {
        let middle = 0.5 * (low + high);
        if delta(middle, epsilon) > target {
            high = middle;
        } else {
            low = middle;
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `int (p - e^epsilon q)_+` over the line by the midpoint rule.
    fn integral(mu: f64, epsilon: f64) -> f64 {
        let gap = 1e-4;
        (0..400_000)
            .map(|index| -20.0 + (f64::from(index) + 0.5) * gap)
            .map(|y| (normal::density(y - mu) - epsilon.exp() * normal::density(y)).max(0.0))
            .sum::<f64>()
            * gap
    }

    #[test]
    fn delta_matches_the_integral() {
        for (mu, epsilon) in [(0.1, 0.05), (0.5, 1.0), (1.0, 0.0), (2.0, 4.0), (4.0, 3.0)] {
            let exact = integral(mu, epsilon);
            assert!((delta(mu, epsilon) - exact).abs() < 1e-6 * exact + 1e-12);
        }
    }

    #[test]
    fn epsilon_inverts_delta_over_its_whole_range() {
        for mu in [1e-6, 1e-3, 0.1, 1.0, 10.0, 300.0] {
            for target in [1e-3, 1e-5, 1e-10, 1e-30, 1e-100] {
                let epsilon = epsilon(mu, target);
                assert!(epsilon.is_finite());
                if epsilon > 0.0 {
                    let back = delta(mu, epsilon);
                    assert!(
                        back <= target && back > target * (1.0 - 1e-6),
                        "{mu} {target}"
                    );
                    let mu_back = largest_mu(epsilon, target);
                    assert!((mu_back / mu - 1.0).abs() < 1e-9);
                } else {
                    assert!(delta(mu, 0.0) <= target);
                }
            }
        }
    }
}
