//! Where to look: the exponential tilt and the window of a composition, from its cumulants.
//!
//! Composing `T` rounds by Fourier transform leaves an absolute error near `T * 1e-16`, too much
//! for `delta` = 1e-10. Under the tilted law `p(l) exp(lambda l) / M` the sum concentrates where
//! the answer is, and the same error becomes relative to `delta`. The tilt is found from a few
//! hundred sample points of the loss: it decides how sharp the result is, never whether it is
//! safe, because every bound is evaluated again on the distribution that is really composed.

use super::distribution::LossDistribution;
use super::pair::Pair;

/// What a composition is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Goal {
    /// Find epsilon at this delta.
    Delta(f64),
    /// Find delta at this epsilon.
    Epsilon(f64),
}

/// Sample points of one round's loss with their probabilities, and how often it happens.
pub(crate) struct Samples {
    points: Vec<(f64, f64)>,
    count: f64,
}

/// Tilt and Chernoff exponents.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// The tilt `lambda >= 0`.
    pub(crate) tilt: f64,
    /// Mean of the tilted sum: near the epsilon that is looked for.
    pub(crate) centre: f64,
    /// Its standard deviation.
    pub(crate) spread: f64,
    /// Exponent of the Chernoff bound above.
    pub(crate) above: f64,
    /// Exponent of the Chernoff bound below.
    pub(crate) below: f64,
    /// Length of the window the two bounds give.
    pub(crate) window: f64,
}

/// `-ln` of the tilted probability that may fall outside the window on either side.
pub(crate) const WINDOW_DEPTH: f64 = 23.5;

/// Sample points of a round: enough for a smooth integrand over thirty standard deviations.
const SAMPLE_POINTS: usize = 500;

/// `ln sum p exp(lambda l)` with the first two derivatives, summed over phases.
#[derive(Clone, Copy, Default)]
struct Cumulants {
    value: f64,
    mean: f64,
    variance: f64,
}

impl Samples {
    /// Trapezoidal rule over the line.
    pub(crate) fn of_pair(pair: &Pair, count: u64, tail: f64) -> Self {
        let (low, high) = (pair.lower_cut(1e-18), pair.upper_cut(tail));
        let gap = (high - low) / SAMPLE_POINTS as f64;
        let points = (0..SAMPLE_POINTS)
            .map(|index| {
                let y = low + (index as f64 + 0.5) * gap;
                let mass = pair.mass(y - 0.5 * gap, y + 0.5 * gap);
                (pair.at(y).loss, mass)
            })
            .filter(|point| point.1 > 0.0)
            .collect();
        Samples {
            points,
            count: count as f64,
        }
    }

    /// Neighbouring grid points merged into their mean.
    pub(crate) fn of_distribution(distribution: &LossDistribution, count: u64) -> Self {
        let entries: Vec<(f64, f64)> = distribution.entries().collect();
        let group = entries.len().div_ceil(SAMPLE_POINTS).max(1);
        let points = entries
            .chunks(group)
            .map(|chunk| {
                let mass: f64 = chunk.iter().map(|entry| entry.1).sum();
                let moment: f64 = chunk.iter().map(|entry| entry.0 * entry.1).sum();
                (moment / mass, mass)
            })
            .collect();
        Samples {
            points,
            count: count as f64,
        }
    }
}

impl Plan {
    /// The tilt that centres the composition on its answer.
    pub(crate) fn new(phases: &[Samples], goal: Goal) -> Plan {
        let tilt = match goal {
            Goal::Delta(delta) => tilt_for_delta(phases, delta.ln()),
            Goal::Epsilon(epsilon) => tilt_for_mean(phases, epsilon),
        };
        let at = cumulants(phases, tilt);
        let spread = at.variance.max(0.0).sqrt().max(f64::MIN_POSITIVE);
        let gauss = (2.0 * WINDOW_DEPTH).sqrt() / spread;
        let reach = |sign: f64, exponent: f64| {
            let moved = cumulants(phases, tilt + sign * exponent).value - at.value;
            (moved + WINDOW_DEPTH) / exponent
        };
        let above = least_argument(gauss, |exponent| reach(1.0, exponent));
        let below = least_argument(gauss, |exponent| reach(-1.0, exponent));
        Plan {
            tilt,
            centre: at.mean,
            spread,
            above,
            below,
            window: reach(1.0, above) + reach(-1.0, below),
        }
    }
}

/// `sum count * K(lambda)` of a distribution, for bounds that must hold exactly for it.
pub(crate) fn log_moment(distribution: &LossDistribution, tilt: f64) -> f64 {
    let peak = distribution
        .entries()
        .map(|(loss, _)| tilt * loss)
        .fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = distribution
        .entries()
        .map(|(loss, mass)| mass * (tilt * loss - peak).exp())
        .sum();
    peak + sum.ln()
}

fn cumulants(phases: &[Samples], tilt: f64) -> Cumulants {
    let mut total = Cumulants::default();
    for phase in phases {
        let peak = phase
            .points
            .iter()
            .map(|point| tilt * point.0)
            .fold(f64::NEG_INFINITY, f64::max);
        let (mut zeroth, mut first, mut second) = (0.0, 0.0, 0.0);
        for &(loss, mass) in &phase.points {
            let weight = mass * (tilt * loss - peak).exp();
            zeroth += weight;
            first += weight * loss;
            second += weight * loss * loss;
        }
        let mean = first / zeroth;
        total.value += phase.count * (peak + zeroth.ln());
        total.mean += phase.count * mean;
        total.variance += phase.count * (second / zeroth - mean * mean);
    }
    total
}

/// Solves the saddle-point approximation of `delta` at its own centre for the tilt.
fn tilt_for_delta(phases: &[Samples], log_delta: f64) -> f64 {
    search_tilt(phases, |tilt, at| {
        let spread = at.variance.max(0.0).sqrt();
        let width = 1.0 + (std::f64::consts::TAU).sqrt() * spread * tilt;
        at.value - tilt * at.mean - (width * (1.0 + tilt)).ln() > log_delta
    })
}

fn tilt_for_mean(phases: &[Samples], mean: f64) -> f64 {
    search_tilt(phases, |_, at| at.mean < mean)
}

/// Bisection on the logarithm of the tilt, in units of the sum's own scale.
fn search_tilt(phases: &[Samples], too_small: impl Fn(f64, Cumulants) -> bool) -> f64 {
    let start = cumulants(phases, 0.0);
    if !too_small(0.0, start) {
        return 0.0;
    }
    let scale = 1.0 / start.variance.max(f64::MIN_POSITIVE).sqrt();
    let (mut low, mut high) = ((1e-4 * scale).ln(), (1e4 * scale).ln());
    for _ in 0..30 {
        let middle = 0.5 * (low + high);
        let tilt = middle.exp();
        if too_small(tilt, cumulants(phases, tilt)) {
            low = middle;
        } else {
            high = middle;
        }
    }
    (0.5 * (low + high)).exp()
}

/// Golden-section search for the least value of a unimodal function of `ln x` around `start`.
fn least_argument(start: f64, value: impl Fn(f64) -> f64) -> f64 {
    const GOLDEN: f64 = 0.618_033_988_749_895;
    let (mut low, mut high) = ((start * 0.02).ln(), (start * 4.0).ln());
    let mut left = high - GOLDEN * (high - low);
    let mut right = low + GOLDEN * (high - low);
    let (mut at_left, mut at_right) = (value(left.exp()), value(right.exp()));
    for _ in 0..14 {
        if at_left < at_right {
            (high, right, at_right) = (right, left, at_left);
            left = high - GOLDEN * (high - low);
            at_left = value(left.exp());
        } else {
            (low, left, at_left) = (left, right, at_right);
            right = low + GOLDEN * (high - low);
            at_right = value(right.exp());
        }
    }
    (0.5 * (low + high)).exp()
}
