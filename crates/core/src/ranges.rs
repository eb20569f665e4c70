//! Ranges of columns that nobody knows, estimated from two preliminary releases.
//!
//! **What it computes.** For `c` columns every client first releases in which power of two the
//! values of each column lie, then, inside of what all clients' average says, in which sixteenth.
//! Both are [`preliminary`] releases of one vector per record: for each column a 1 in the place of
//! its value, 0 everywhere else, all divided by `sqrt(c)`. A gap is no 1 at all.
//!
//! **Guarantee.** `|v(x)| <= 1`, no entry is negative, so `v(x) . v(y) >= 0`: Proposition 6a of
//! `docs/privacy.md` holds for both. What becomes of the averages is post-processing. Places are
//! fixed beforehand or follow from what was released.
//!
//! **The estimate.** From the three neighbouring powers of two that hold most the interval grows up
//! and down while the next one holds more than noise does and more than a fiftieth; the other sign
//! counts if it holds more than noise does. Of the sixteenths of that interval those at its ends
//! are dropped that hold no more than noise does, unless too little would be left. Values outside
//! are cut off, as with any range. Where noise is as large as what a power of two holds, nothing
//! can be estimated, and a range is a guess (`docs/defaults.md`).
//!
//! **Cost.** Two messages, of `101 c` and `16 c` numbers. **Place in the paper:** none.

use crate::data::Dataset;
use crate::preliminary::{self, Average, Plan, PreliminaryError};
use crate::privacy::Released;
use crate::random::SecretKey;

/// What stands for a gap among raw values.
pub const GAP: f32 = (1u64 << 63) as f32;

/// The largest raw value; what is beyond is cut off.
pub const LARGEST: f64 = 1e18;

/// Powers of two that are told apart, from `2^-20` on.
const POWERS: usize = 50;

/// The lowest of them.
const LOWEST: i64 = -20;

/// Places of a value among powers of two: negative ones, nothing, positive ones, ascending.
const MAGNITUDES: usize = 2 * POWERS + 1;

/// Parts of an interval.
const PARTS: usize = 16;

/// How many standard deviations of the noise a place must hold to be no noise.
const NOTICED: f64 = 2.5;

/// What a place must hold besides.
const FEW: f64 = 0.02;

/// What must be left of an interval that is narrowed.
const MOST: f64 = 0.7;

/// An interval of values.
pub type Range = (f64, f64);

/// Numbers of the first release.
pub fn magnitudes_len(columns: usize) -> usize {
    MAGNITUDES * columns
}

/// Numbers of the second release.
pub fn parts_len(columns: usize) -> usize {
    PARTS * columns
}

/// The power of two of a value, from 0 on.
fn power(value: f64) -> usize {
    let exponent = ((value.abs().to_bits() >> 52) as i64) - 1023;
    (exponent - LOWEST).clamp(0, POWERS as i64 - 1) as usize
}

fn magnitude(value: f64) -> usize {
    match value {
        _ if value.abs() < edge(0) => POWERS,
        _ if value > 0.0 => POWERS + 1 + power(value),
        _ => POWERS - 1 - power(value),
    }
}

/// `2` to the power of a place.
fn edge(place: usize) -> f64 {
    2f64.powi(place as i32 + LOWEST as i32)
}

/// The released places of one client's raw `values`, a row a record, among powers of two.
///
/// # Errors
/// When no grid suits the noise.
pub fn release_magnitudes(
    raw: &Dataset,
    columns: &[usize],
    sigma: f64,
    key: &SecretKey,
) -> Result<Released, PreliminaryError> {
    let plan = plan(raw, "magnitudes", magnitudes_len(columns.len()), sigma);
    one_hot(raw, columns, plan, key, MAGNITUDES, |_, value| {
        magnitude(value)
    })
}

/// The same among the parts of an interval for each column.
///
/// # Errors
/// When no grid suits the noise.
pub fn release_parts(
    raw: &Dataset,
    columns: &[usize],
    intervals: &[Range],
    sigma: f64,
    key: &SecretKey,
) -> Result<Released, PreliminaryError> {
    let plan = plan(raw, "parts", parts_len(columns.len()), sigma);
    one_hot(raw, columns, plan, key, PARTS, |column, value| {
        let (low, high) = intervals[column];
        let share = (value.clamp(low, high) - low) / (high - low);
        ((share * PARTS as f64) as usize).min(PARTS - 1)
    })
}

fn plan<'a>(raw: &Dataset, label: &'a str, len: usize, sigma: f64) -> Plan<'a> {
    Plan {
        label,
        rows: raw.rows(),
        records: raw.records(),
        len,
        sigma,
    }
}

fn one_hot(
    raw: &Dataset,
    columns: &[usize],
    plan: Plan<'_>,
    key: &SecretKey,
    places: usize,
    place: impl Fn(usize, f64) -> usize,
) -> Result<Released, PreliminaryError> {
    let one = 1.0 / (columns.len() as f64).sqrt();
    preliminary::release(plan, key, |row, vector| {
        let values = raw.full_row(row);
        vector.resize(places * columns.len(), 0.0);
        for (number, &column) in columns.iter().enumerate() {
            let value = values[column];
            if value < f64::from(GAP) {
                vector[number * places + place(number, value)] = one;
            }
        }
    })
}

/// The shares of a column's records in each place, and the noise on each.
fn shares(average: &Average, columns: usize, places: usize) -> (Vec<Vec<f64>>, f64) {
    let scale = (columns as f64).sqrt();
    let noise = noise_of_a_share(average, columns);
    let share = |&value: &f32| scale * f64::from(value);
    let each = average.values.chunks_exact(places);
    let each = each.map(|column| column.iter().map(share).collect());
    (each.collect(), noise)
}

/// An interval for each column, from the average of the first release.
pub fn intervals(average: &Average, columns: usize) -> Vec<Range> {
    let (shares, noise) = shares(average, columns, MAGNITUDES);
    shares
        .iter()
        .map(|shares| interval(shares, noise))
        .collect()
}

fn interval(shares: &[f64], noise: f64) -> Range {
    let least = NOTICED * noise;
    let positive = |power: usize| shares[POWERS + 1 + power];
    let negative = |power: usize| shares[POWERS - 1 - power];
    let both = |power: usize| positive(power) + negative(power);
    let three = |middle: usize| (middle - 1..=middle + 1).map(both).sum::<f64>();
    let middles = 1..POWERS - 1;
    let middle = middles.max_by(|&a, &b| three(a).total_cmp(&three(b)));
    let middle = middle.unwrap_or(1);
    let (mut bottom, mut top) = (middle - 1, middle + 1);
    while top > bottom && both(top) <= FEW {
        top -= 1;
    }
    while bottom < top && both(bottom) <= FEW {
        bottom += 1;
    }
    // The noise of a sum of two places.
    let noticed = FEW.max(least * 2f64.sqrt());
    while top + 1 < POWERS && both(top + 1) > noticed {
        top += 1;
    }
    while bottom > 0 && both(bottom - 1) > noticed {
        bottom -= 1;
    }
    let side = |share: &dyn Fn(usize) -> f64| {
        let mut powers = (bottom..=top).rev();
        powers.find(|&power| share(power) > least)
    };
    let (up, down) = (side(&positive), side(&negative));
    let held: f64 = (bottom..=top).map(both).sum();
    let near_zero = held < 0.9;
    match (up, down) {
        (Some(up), Some(down)) => (-edge(down + 1), edge(up + 1)),
        (None, Some(down)) if near_zero => (-edge(down + 1), 0.0),
        (None, Some(down)) => (-edge(down + 1), -edge(bottom)),
        (Some(up), None) if !near_zero => (edge(bottom), edge(up + 1)),
        (up, None) => (0.0, edge(up.unwrap_or(top) + 1)),
    }
}

/// The standard deviation of the noise on the share of a column's records in one place.
pub fn noise_of_a_share(average: &Average, columns: usize) -> f64 {
    (columns as f64).sqrt() * average.noise
}

/// The ranges, from the intervals and the average of the second release.
pub fn ranges(intervals: &[Range], average: &Average) -> Vec<Range> {
    let (shares, noise) = shares(average, intervals.len(), PARTS);
    let each = intervals.iter().zip(&shares);
    let narrowed = each.map(|(&(low, high), shares)| {
        let held = |share: &f64| *share > NOTICED * noise;
        let part = (high - low) / PARTS as f64;
        match (shares.iter().position(held), shares.iter().rposition(held)) {
            (Some(first), Some(last)) if shares[first..=last].iter().sum::<f64>() > MOST => {
                (low + part * first as f64, low + part * (last + 1) as f64)
            }
            _ => (low, high),
        }
    });
    narrowed.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{DenseRows, Features};

    fn data(columns: usize, values: Vec<f32>) -> Dataset {
        let rows = values.len() / columns;
        let features = Features::Dense(DenseRows::new(columns, values).unwrap());
        Dataset::new(features, vec![0; rows], 2).unwrap()
    }

    /// What all that is released for one client's records comes to.
    fn found(raw: &Dataset, columns: &[usize], sigma: f64, seed: u64) -> Vec<Range> {
        let average = |released: Released| Average {
            values: released.into_buffer(),
            noise: sigma,
        };
        let key = SecretKey::simulated(seed, 0);
        let first = release_magnitudes(raw, columns, sigma, &key).unwrap();
        let intervals = intervals(&average(first), columns.len());
        let second = release_parts(raw, columns, &intervals, sigma, &key).unwrap();
        ranges(&intervals, &average(second))
    }

    #[test]
    fn places_ascend_with_values() {
        let values = [
            -1e30, -3.0, -1.0, -0.4, -1e-20, 0.0, 1e-5, 0.4, 1.0, 3.0, 1e30,
        ];
        let places: Vec<usize> = values.iter().map(|&value| magnitude(value)).collect();
        assert!(places.is_sorted(), "{places:?}");
        assert_eq!((places[0], places[5], places[10]), (0, POWERS, 2 * POWERS));
        for value in [0.3, 1.0, 1.9, 77.0] {
            let at = power(value);
            assert!(edge(at) <= value && value < edge(at + 1));
        }
    }

    /// Years, signed numbers, shares, counts with gaps: without noise, and with noise of 2% (of the
    /// records; 4 standard deviations are far below what the ends hold).
    #[test]
    fn ranges_hold_the_records_and_are_not_wide() {
        let rows = 2000;
        let values = (0..rows).flat_map(|row| {
            let u = (row as f32 * 0.618_034).fract();
            let count = if row % 5 == 0 { GAP } else { 90.0 * u };
            [1990.0 + 30.0 * u, 8.0 * u - 4.0, 0.05 + 0.9 * u, count]
        });
        let raw = data(4, values.collect());
        let truth = [(1990.0, 2020.0), (-4.0, 4.0), (0.05, 0.95), (0.0, 90.0)];
        for (sigma, widest) in [(0.0, 2.6), (0.005, 2.6)] {
            let found = found(&raw, &[0, 1, 2, 3], sigma, 7);
            for ((low, high), (least, most)) in found.into_iter().zip(truth) {
                let width = most - least;
                assert!(
                    high - low <= widest * width,
                    "[{low}, {high}] for [{least}, {most}]"
                );
                let within = high.min(most) - low.max(least);
                assert!(
                    within > 0.8 * width,
                    "[{low}, {high}] for [{least}, {most}]"
                );
            }
        }
    }

    /// Whatever the noise, a range is one.
    #[test]
    fn noise_alone_gives_a_range() {
        let raw = data(2, vec![3.0, GAP, -2.0, GAP, 0.0, GAP]);
        for seed in 0..50 {
            for (low, high) in found(&raw, &[0, 1], 5.0, seed) {
                assert!(low < high && (high - low).is_finite(), "[{low}, {high}]");
            }
        }
    }

    /// Neighbouring records: what the sums differ by is within the bound, for any values and gaps.
    #[test]
    fn one_record_moves_the_release_by_no_more_than_is_claimed() {
        let before = vec![3.0, GAP, -2.0, 5.0, 0.0, 1e15];
        let released = |values: Vec<f32>| {
            let key = SecretKey::simulated(1, 1);
            let raw = data(2, values);
            let first = release_magnitudes(&raw, &[0, 1], 0.0, &key).unwrap();
            let intervals = [(0.0, 1.0), (-8.0, 8.0)];
            let second = release_parts(&raw, &[0, 1], &intervals, 0.0, &key).unwrap();
            [first.into_buffer(), second.into_buffer()]
        };
        let old = released(before.clone());
        for other in [[GAP, GAP], [-1e15, 7.0], [0.5, 0.5]] {
            let mut after = before.clone();
            after[2..4].copy_from_slice(&other);
            for (old, new) in old.iter().zip(released(after)) {
                let moved = old.iter().zip(new).map(|(a, b)| f64::from(a - b).powi(2));
                let moved = 3.0 * moved.sum::<f64>().sqrt();
                assert!(
                    moved <= 2f64.sqrt() * (1.0 + preliminary::SLACK) + 1e-6,
                    "{moved}"
                );
            }
        }
    }
}
