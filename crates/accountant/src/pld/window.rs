//! Where to look: the exponential tilt and the window of a composition, from its cumulants.
//!
//! Composing `T` rounds by Fourier transform leaves an absolute error near `T * 1e-16`, too much
//! for `delta` = 1e-10. Under the tilted distribution `p(l) exp(lambda l) / M` the sum concentrates
//! where the answer is, and the same error becomes relative to `delta`. The tilt is found from a
//! few hundred sample points of the loss: it decides how sharp the result is, never whether it is
//! safe, because every bound is evaluated again on the distribution that is really composed.

use super::cut::Cutoff;
use super::losses::LossDistribution;
use crate::mixture::MixturePair;

/// What a composition is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Goal {
    /// Find epsilon at this delta.
    Delta(f64),
    /// Find delta at this epsilon.
    Epsilon(f64),
}

/// Sample points of one round's loss with their probabilities, and how often it happens.
#[derive(Clone)]
pub(crate) struct Samples {
    points: Vec<(f64, f64)>,
    count: f64,
}

/// The tilt, and where the composed losses lie under it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placement {
    /// The tilt `lambda >= 0`.
    pub(crate) tilt: f64,
    /// Standard deviation of the tilted sum.
    pub(crate) spread: f64,
    /// Where the sum must be computed.
    pub(crate) window: Window,
}

/// Chernoff exponents for both sides of a sum.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    /// Exponent of the bound above.
    pub(crate) above: f64,
    /// Exponent of the bound below.
    pub(crate) below: f64,
    /// `-ln` of the tilted probability that may lie outside on either side.
    pub(crate) depth: f64,
    /// Length between the two bounds, as far as the samples tell.
    pub(crate) length: f64,
}

/// `-ln` of the share of delta that a window may cut or fold.
const RELATIVE_DEPTH: f64 = 14.0;

/// Largest `ln` of the factor by which errors of the tilted distribution may grow relative to
/// delta.
const LARGEST_FACTOR: f64 = 8.0;

/// A factor that is small enough: tilting further would gain nothing.
const SMALL_FACTOR: f64 = 3.0;

/// Sample points of a round: enough for a smooth integrand over thirty standard deviations.
const SAMPLE_POINTS: usize = 300;

/// Sample points of a given distribution, whose bulk may be a small part of its range.
const MERGED_POINTS: usize = 4000;

/// `ln sum p exp(lambda l)` with the first two derivatives, summed over phases.
#[derive(Clone, Copy, Default)]
struct Cumulants {
    value: f64,
    mean: f64,
    variance: f64,
}

impl Samples {
    /// Trapezoidal rule over the line.
    pub(crate) fn of_pair(pair: &MixturePair, count: u64, cutoff: Cutoff) -> Self {
        let (low, high) = (pair.lower_cut(1e-18), pair.upper_cut(cutoff));
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

    /// The same round, `count` times.
    pub(crate) fn times(&self, count: u64) -> Self {
        Samples {
            points: self.points.clone(),
            count: count as f64,
        }
    }

    /// Neighbouring grid points merged into their mean.
    pub(crate) fn of_distribution(distribution: &LossDistribution, count: u64) -> Self {
        let entries: Vec<(f64, f64)> = distribution.entries().collect();
        let group = entries.len().div_ceil(MERGED_POINTS).max(1);
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

impl Placement {
    /// The placement for a question whose answer is not known yet.
    pub(crate) fn new(phases: &[Samples], goal: Goal) -> Placement {
        match goal {
            Goal::Delta(delta) => {
                // The Renyi bound is some ten percent further from the mean than the answer.
                let mean = cumulants(phases, 0.0).mean;
                let bound = renyi_bound(phases, delta);
                let epsilon = mean.min(bound) + 0.9 * (bound - mean).max(0.0);
                Placement::around(phases, epsilon.max(0.0), delta.ln())
            }
            Goal::Epsilon(epsilon) => {
                let tilt = tilt_for_mean(phases, epsilon);
                let at = cumulants(phases, tilt);
                let width = 1.0 + std::f64::consts::TAU.sqrt() * spread_of(at) * tilt;
                let log_delta = at.value - tilt * epsilon - (width * (1.0 + tilt)).ln();
                Placement::around(phases, epsilon, log_delta)
            }
        }
    }

    /// The placement for a composition with `delta(epsilon)` near `exp(log_delta)`.
    ///
    /// Errors of the tilted distribution enter delta times
    /// `exp(K - lambda epsilon) / (1 + lambda)`. That is smallest when the tilted mean is epsilon;
    /// where rare large losses make the tilted distribution wide, a smaller tilt has the shorter
    /// window although it must be deeper.
    pub(crate) fn around(phases: &[Samples], epsilon: f64, log_delta: f64) -> Placement {
        const GAIN: f64 = 0.95;
        const SHRINK: f64 = 0.7;
        let excess = |tilt: f64| {
            let value = cumulants(phases, tilt).value;
            value - tilt * epsilon - tilt.ln_1p() - log_delta
        };
        let factor = |tilt: f64| excess(tilt).max(0.0);
        let mut tilt = tilt_for_mean(phases, epsilon);
        if excess(tilt) < SMALL_FACTOR {
            tilt = smallest_tilt(tilt, |tilt| excess(tilt) < SMALL_FACTOR);
        }
        let mut window = Window::new(phases, tilt, RELATIVE_DEPTH + factor(tilt));
        while tilt > 0.0 && factor(SHRINK * tilt) < LARGEST_FACTOR {
            let lower = SHRINK * tilt;
            let other = Window::new(phases, lower, RELATIVE_DEPTH + factor(lower));
            if other.length > GAIN * window.length {
                break;
            }
            (tilt, window) = (lower, other);
        }
        Placement {
            tilt,
            spread: spread_of(cumulants(phases, tilt)),
            window,
        }
    }
}

impl Window {
    /// The exponents that give the tightest window for the sum of all phases under `tilt`.
    pub(crate) fn new(phases: &[Samples], tilt: f64, depth: f64) -> Window {
        let at = cumulants(phases, tilt);
        let gauss = (2.0 * depth).sqrt() / spread_of(at);
        let reach = |sign: f64, exponent: f64| {
            let moved = cumulants(phases, tilt + sign * exponent).value - at.value;
            (moved + depth) / exponent
        };
        let above = least_argument(gauss, |exponent| reach(1.0, exponent));
        let below = least_argument(gauss, |exponent| reach(-1.0, exponent));
        Window {
            above,
            below,
            depth,
            length: reach(1.0, above) + reach(-1.0, below),
        }
    }

    /// The same exponents of another sum, one that is repeated `times` times.
    pub(crate) fn for_part(&self, part: &[Samples], tilt: f64, times: f64) -> Window {
        Window::new(part, tilt, self.depth + times.ln())
    }
}

fn spread_of(at: Cumulants) -> f64 {
    at.variance.max(0.0).sqrt().max(f64::MIN_POSITIVE)
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

/// `epsilon` at which the tilt's Chernoff bound of the hockey stick meets delta.
fn renyi_epsilon(phases: &[Samples], log_delta: f64, tilt: f64) -> f64 {
    let weight = tilt * (tilt / (1.0 + tilt)).ln() - tilt.ln_1p();
    (cumulants(phases, tilt).value + weight - log_delta) / tilt
}

/// The least [`renyi_epsilon`]: above the answer, as far as the samples tell.
pub(crate) fn renyi_bound(phases: &[Samples], delta: f64) -> f64 {
    let scale = 1.0 / spread_of(cumulants(phases, 0.0));
    let start = (1.0 - 2.0 * delta.ln()).sqrt() * scale;
    let value = |tilt: f64| renyi_epsilon(phases, delta.ln(), tilt);
    value(least_argument(start, value)).max(0.0)
}

/// The tilt, not below zero, that moves the mean of the sum to `mean`.
fn tilt_for_mean(phases: &[Samples], mean: f64) -> f64 {
    let start = cumulants(phases, 0.0);
    if start.mean >= mean {
        return 0.0;
    }
    let scale = 1.0 / spread_of(start);
    let (mut low, mut high) = ((1e-4 * scale).ln(), (1e4 * scale).ln());
    // Newton's step and bisection in turns: rare large losses make Newton alone creep.
    let mut point = (mean - start.mean) / start.variance;
    for turn in 0..60 {
        if turn % 2 == 1 || !(point.ln() > low && point.ln() < high) {
            point = (0.5 * (low + high)).exp();
        }
        let at = cumulants(phases, point);
        if at.mean < mean {
            low = point.ln();
        } else {
            high = point.ln();
        }
        if high - low < 1e-3 || (at.mean - mean).abs() < 0.02 * spread_of(at) {
            break;
        }
        point += (mean - at.mean) / at.variance;
    }
    point
}

/// Roughly the smallest tilt up to `largest` that is `enough`; `largest` is.
fn smallest_tilt(largest: f64, enough: impl Fn(f64) -> bool) -> f64 {
    if enough(0.0) {
        return 0.0;
    }
    let (mut low, mut high) = ((1e-8 * largest).ln(), largest.ln());
    while high - low > 0.1 {
        let middle = 0.5 * (low + high);
        if enough(middle.exp()) {
            high = middle;
        } else {
            low = middle;
        }
    }
    high.exp()
}

/// The least value of a function of `ln x` with one valley: a coarse scan from `start` downwards,
/// then golden sections.
fn least_argument(start: f64, value: impl Fn(f64) -> f64) -> f64 {
    const GOLDEN: f64 = 0.618_033_988_749_895;
    const STRIDE: f64 = 1.2;
    let at = |place: f64| value(place.exp());
    let mut middle = (2.0 * start).ln();
    let mut best = at(middle);
    // Downhill in strides; the valley of a Gaussian sum is one stride away.
    for _ in 0..24 {
        let next = at(middle - STRIDE);
        if best.is_finite() && (next.is_nan() || next >= best) {
            break;
        }
        (middle, best) = (middle - STRIDE, next);
    }
    let (mut low, mut high) = (middle - STRIDE, middle + STRIDE);
    let mut left = high - GOLDEN * (high - low);
    let mut right = low + GOLDEN * (high - low);
    let (mut at_left, mut at_right) = (at(left), at(right));
    for _ in 0..7 {
        if at_left < at_right {
            (high, right, at_right) = (right, left, at_left);
            left = high - GOLDEN * (high - low);
            at_left = at(left);
        } else {
            (low, left, at_left) = (left, right, at_right);
            right = low + GOLDEN * (high - low);
            at_right = at(right);
        }
    }
    (0.5 * (low + high)).exp()
}
