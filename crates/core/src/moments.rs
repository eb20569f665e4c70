//! Second moments, released once by every client, and the public map that they give: whitening.
//!
//! **What it computes.** A [`preliminary`] release: each client sends the noised mean of `x x^T`
//! over its records, all of length one:
//!
//! ```text
//! M_i = (1/m) sum_j x_j x_j^T + N,          A = sum_i w_i M_i,
//! P   = (A+ + lambda)^(-1/2),               every record becomes  P x / |P x|,
//! ```
//!
//! with `A+` the part of `A` with eigenvalues above zero. Directions in which all records agree (a
//! common mean) no longer drown the others, so that a few private steps do what takes thousands
//! otherwise.
//!
//! **What travels** is the upper triangle as a vector `v(x)`: `x_a^2` on the diagonal,
//! `sqrt(2) x_a x_b` off it. Then `|v(x)| = |x x^T|_F = |x|^2` and `v(x) . v(y) = (x . y)^2 >= 0`:
//! a record left out changes the sum by at most 1, a record replaced by at most `sqrt(2)`
//! (`docs/privacy.md`, Proposition 6a). Noise is the same on all of `v`.
//!
//! For classes the direction in which records agree most gets no more than a fifth of the next
//! one's weight ([`MOST_OF_FIRST`]): noise along it moves all records to the same class, and where
//! noise is loud, `lambda` alone leaves it nearly as it was. For numbers to predict, that direction
//! holds their mean, and lengths mean something: records become `P x / c` with `c^2` the trace of
//! `A+ (A+ + lambda)^-1`, their mean square, and are cut off at length [`LONGEST`].
//!
//! **Guarantee.** Records that are longer than one are shortened, each by itself, and each is put
//! on the grid by itself. The map acts on each record alone and is a function of what was released:
//! post-processing, whatever matrix it is, for a record's gradient is clipped whatever its length.
//! The bits do not depend on threads or machine: nothing but `+ - * /` and square roots in `f64`.
//!
//! **Cost.** `m D^2/2` products and `D (D + 1)/2` values for records of `D` numbers, one
//! eigendecomposition (some `40 D^3`), `m D^2` products for the map. **Place in the paper:** none.

use crate::data::{Dataset, DenseRows, Features, RecordsError};
use crate::linalg::eigen;
use crate::preliminary::{self, Average, Plan, PreliminaryError};
use crate::privacy::Released;
use crate::random::SecretKey;

/// The most weight of the direction in which records agree most, over that of the next.
pub const MOST_OF_FIRST: f64 = 0.2;

/// Where whitened records for numbers to predict are cut off, whose root mean square is 1.
pub const LONGEST: f64 = 1.5;

/// Entries of a map beyond it make it the map to zero.
const LARGEST_ENTRY: f64 = (1u64 << 63) as f64;

/// Numbers of a released matrix of this many rows.
pub fn entries(columns: usize) -> usize {
    columns * (columns + 1) / 2
}

/// The released second moments of one client's records, with noise of standard deviation `sigma`.
///
/// # Errors
/// When no grid suits the noise.
pub fn release(data: &Dataset, sigma: f64, key: &SecretKey) -> Result<Released, PreliminaryError> {
    let plan = Plan {
        label: "moments",
        rows: data.rows(),
        records: data.records(),
        len: entries(data.columns()),
        sigma,
    };
    preliminary::release(plan, key, |row, vector| {
        upper_triangle(&data.full_row(row), vector);
    })
}

/// `v(x)` of the module, of a record shortened to length one.
fn upper_triangle(record: &[f64], vector: &mut Vec<f64>) {
    let square: f64 = record.iter().map(|value| value * value).sum();
    let scale = 1.0 / square.max(1.0);
    for (a, &x) in record.iter().enumerate() {
        vector.push(scale * x * x);
        let rest = record[a + 1..].iter();
        vector.extend(rest.map(|&y| scale * std::f64::consts::SQRT_2 * x * y));
    }
}

/// What is to be learnt from whitened records, which decides how long they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aim {
    /// Classes: every record has length one.
    Classes,
    /// Numbers: lengths stay in proportion, up to [`LONGEST`].
    Numbers,
}

/// The public map `x -> P x / |P x|`, or `x -> P x` cut off at [`LONGEST`].
#[derive(Clone, Debug, PartialEq)]
pub struct Whitening {
    columns: usize,
    aim: Aim,
    /// `P`, row after row, divided by `c` of the module where lengths stay.
    matrix: Vec<f32>,
}

impl Whitening {
    /// The map that averaged moments give, whose entries have noise of standard deviation `noise`
    /// on the diagonal: `lambda = 0.2 noise sqrt(D) + 10^-4`, a fifth of the size that noise alone
    /// gives an eigenvalue.
    ///
    /// # Panics
    /// If there are not as many entries as a matrix of `columns` rows has.
    pub fn new(average: &Average, columns: usize, aim: Aim) -> Self {
        let Average {
            values: moments,
            noise,
        } = average;
        assert_eq!(moments.len(), entries(columns), "one number per entry");
        let mut matrix = vec![0.0; columns * columns];
        let mut next = moments.iter();
        for a in 0..columns {
            for b in a..columns {
                let entry = next.next().copied().map_or(0.0, f64::from);
                let entry = match a == b {
                    true => entry,
                    false => entry / std::f64::consts::SQRT_2,
                };
                (matrix[a * columns + b], matrix[b * columns + a]) = (entry, entry);
            }
        }
        let floor = 0.2 * noise * (columns as f64).sqrt() + 1e-4;
        let root = eigen::function_of_all(matrix, columns, |values| weights(values, floor, aim));
        // An average that no client can have released may give entries beyond all numbers: whether
        // a record meets them would tell what stands in it.
        let fits = root.iter().all(|entry| entry.abs() <= LARGEST_ENTRY);
        let entry = |value: f64| if fits { value as f32 } else { 0.0 };
        Self {
            columns,
            aim,
            matrix: root.into_iter().map(entry).collect(),
        }
    }

    /// The map with this matrix, row after row; `None` unless it is square and finite.
    pub fn from_matrix(columns: usize, matrix: Vec<f32>, aim: Aim) -> Option<Self> {
        let fits = columns.checked_mul(columns) == Some(matrix.len())
            && matrix.iter().all(|value| value.is_finite());
        fits.then_some(Self {
            columns,
            aim,
            matrix,
        })
    }

    /// What records are for.
    pub fn aim(&self) -> Aim {
        self.aim
    }

    /// Numbers of a record.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// `P`, row after row.
    pub fn matrix(&self) -> &[f32] {
        &self.matrix
    }

    /// Every record mapped; labels and their names stay.
    ///
    /// # Errors
    /// When records do not have as many numbers.
    pub fn apply(&self, data: &Dataset) -> Result<Dataset, RecordsError> {
        if data.columns() != self.columns {
            return Err(RecordsError::Shape {
                what: "features",
                expected: self.columns,
                found: data.columns(),
            });
        }
        let mut values = Vec::with_capacity(data.rows() * self.columns);
        let mut mapped = vec![0.0f64; self.columns];
        for row in 0..data.rows() {
            mapped.fill(0.0);
            // The matrix is symmetric: its rows are its columns.
            for (&x, line) in
                (data.full_row(row).iter()).zip(self.matrix.chunks_exact(self.columns))
            {
                if x != 0.0 {
                    for (sum, &entry) in mapped.iter_mut().zip(line) {
                        *sum += x * f64::from(entry);
                    }
                }
            }
            let length = mapped.iter().map(|value| value * value).sum::<f64>().sqrt();
            if !(length > 0.0 && length.is_finite()) {
                values.extend(std::iter::repeat_n(0.0, self.columns));
                continue;
            }
            let scale = match self.aim {
                Aim::Classes => 1.0 / length,
                Aim::Numbers => (LONGEST / length).min(1.0),
            };
            values.extend(mapped.iter().map(|value| (scale * value) as f32));
        }
        data.with_features(Features::Dense(DenseRows::new(self.columns, values)?))
    }
}

/// The weights of eigenvectors with these eigenvalues.
fn weights(values: &[f64], floor: f64, aim: Aim) -> Vec<f64> {
    let energy = |value: f64| value.max(0.0) + floor;
    let mut weights: Vec<f64> = values
        .iter()
        .map(|&value| 1.0 / energy(value).sqrt())
        .collect();
    match aim {
        Aim::Classes => {
            // The first of the largest, where several are.
            let first = (0..values.len()).reduce(|a, b| if values[b] > values[a] { b } else { a });
            if let Some(first) = first {
                let others = (0..values.len()).filter(|&other| other != first);
                let next = others
                    .map(|other| weights[other])
                    .fold(f64::INFINITY, f64::min);
                weights[first] = weights[first].min(MOST_OF_FIRST * next);
            }
        }
        Aim::Numbers => {
            let square: f64 = values
                .iter()
                .map(|&value| value.max(0.0) / energy(value))
                .sum();
            let scale = if square > 0.0 {
                1.0 / square.sqrt()
            } else {
                0.0
            };
            weights.iter_mut().for_each(|weight| *weight *= scale);
        }
    }
    weights
}

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};

    use super::*;

    const COLUMNS: usize = 4;

    const PINNED: [u8; 4] = [161, 40, 90, 194];

    /// Records of length one with a common direction; the last one is too long.
    fn records(rows: usize) -> Dataset {
        let mut values = Vec::new();
        for row in 0..rows {
            let wave =
                |a: usize| ((row * 7 + a * 3) as f32).sin() * 0.4 + f32::from(u8::from(a == 0));
            let record: Vec<f32> = (0..COLUMNS).map(wave).collect();
            let length = record.iter().map(|x| x * x).sum::<f32>().sqrt();
            let scale = if row + 1 == rows { 50.0 } else { 1.0 };
            values.extend(record.iter().map(|x| scale * x / length));
        }
        let features = Features::Dense(DenseRows::new(COLUMNS, values).unwrap());
        Dataset::new(features, (0..rows as u32).map(|row| row % 2).collect(), 2).unwrap()
    }

    /// `x x^T` averaged by loops, of records cut to length one.
    fn naive(data: &Dataset) -> Vec<f64> {
        let mut mean = vec![0.0; COLUMNS * COLUMNS];
        for row in 0..data.rows() {
            let x = data.full_row(row);
            let square: f64 = x.iter().map(|x| x * x).sum();
            for a in 0..COLUMNS {
                for b in 0..COLUMNS {
                    mean[a * COLUMNS + b] += x[a] * x[b] / square.max(1.0) / data.rows() as f64;
                }
            }
        }
        mean
    }

    #[test]
    fn without_noise_it_is_the_mean_of_the_products() {
        let data = records(30);
        let key = SecretKey::simulated(1, 0);
        let released = release(&data, 0.0, &key).unwrap();
        let expected = naive(&data);
        let mut next = released.values().iter();
        for a in 0..COLUMNS {
            for b in a..COLUMNS {
                let factor = if a == b { 1.0 } else { 2f64.sqrt() };
                let found = f64::from(*next.next().unwrap());
                assert!((found - factor * expected[a * COLUMNS + b]).abs() < 1e-6);
            }
        }
    }

    /// Neighbouring data sets: the sums differ within the sensitivities, whatever the record is.
    /// (`privacy::secure::grid` has the twin of this on integers, where it is exact.)
    #[test]
    fn one_record_moves_the_release_by_no_more_than_is_claimed() {
        let data = records(30);
        let key = SecretKey::simulated(5, 3);
        let values = |data: &Dataset| release(data, 0.0, &key).unwrap().into_buffer();
        let before = values(&data);
        for other in [[0.0, 0.0, 0.0, 1.0], [-9.0, 7e5, 0.1, 3.0], [0.0; 4]] {
            let mut all: Vec<f32> = (0..30)
                .flat_map(|row| data.full_row(row))
                .map(|x| x as f32)
                .collect();
            all[4 * 11..4 * 12].copy_from_slice(&other);
            let features = Features::Dense(DenseRows::new(COLUMNS, all).unwrap());
            let changed = Dataset::new(features, data.labels().to_vec(), 2).unwrap();
            let after = values(&changed);
            let moved = before
                .iter()
                .zip(&after)
                .map(|(a, b)| f64::from(a - b).powi(2));
            let bound = if other == [0.0; 4] { 1.0 } else { 2f64.sqrt() };
            let moved = 30.0 * moved.sum::<f64>().sqrt();
            assert!(
                moved <= bound * (1.0 + preliminary::SLACK) + 3e-5,
                "{moved}"
            );
            assert!(moved > 0.5, "{moved}");
        }
    }

    /// Standard deviation over 6 x 400 draws within 6%: a fresh seed would fail once in 10^4 times
    /// or so.
    #[test]
    fn the_noise_has_its_size_on_every_entry() {
        let data = records(10);
        let exact = release(&data, 0.0, &SecretKey::simulated(0, 0)).unwrap();
        let (mut squares, mut count) = (0.0, 0.0);
        for seed in 0..240 {
            let found = release(&data, 0.3, &SecretKey::simulated(seed, 1)).unwrap();
            for (a, b) in found.values().iter().zip(exact.values()) {
                squares += f64::from(a - b).powi(2);
                count += 1.0;
            }
        }
        let deviation = f64::sqrt(squares / count);
        assert!((deviation / 0.3 - 1.0).abs() < 0.06, "{deviation}");
    }

    /// The moments of whitened but not yet shortened records are `A/(A + lambda)`: the definition
    /// of `P`.
    #[test]
    fn whitening_meets_its_definition() {
        let data = records(300);
        let mean = naive(&data);
        let upper = (0..COLUMNS)
            .flat_map(|a| (a..COLUMNS).map(move |b| (a, b)))
            .map(|(a, b)| mean[a * COLUMNS + b] * if a == b { 1.0 } else { 2f64.sqrt() });
        let noise = 0.01;
        let average = Average {
            values: upper.map(|value| value as f32).collect(),
            noise,
        };
        let map = Whitening::new(&average, COLUMNS, Aim::Numbers);
        let floor = 0.2 * noise * (COLUMNS as f64).sqrt() + 1e-4;
        // Its scale makes the mean square of the mapped records, before any is cut off, 1.
        let scale = |matrix: &[f32]| {
            let row = |a: usize| {
                matrix[a * COLUMNS..][..COLUMNS]
                    .iter()
                    .map(|&p| f64::from(p))
            };
            let mapped = |x: usize, y: usize| mean[x * COLUMNS + y];
            (0..COLUMNS)
                .map(|a| {
                    let pairs = row(a)
                        .enumerate()
                        .flat_map(|(x, p)| row(a).enumerate().map(move |(y, q)| (x, y, p * q)));
                    pairs
                        .map(|(x, y, product)| product * mapped(x, y))
                        .sum::<f64>()
                })
                .sum::<f64>()
        };
        let square = scale(map.matrix());
        assert!((square - 1.0).abs() < 1e-5, "{square}");
        let trace = {
            let plain = eigen::function(mean.clone(), COLUMNS, |value| value / (value + floor));
            (0..COLUMNS).map(|a| plain[a * COLUMNS + a]).sum::<f64>()
        };
        let p = |a: usize, b: usize| trace.sqrt() * f64::from(map.matrix()[a * COLUMNS + b]);
        let product = |left: &dyn Fn(usize, usize) -> f64, right: &dyn Fn(usize, usize) -> f64| {
            let entry = |a, b| (0..COLUMNS).map(|k| left(a, k) * right(k, b)).sum::<f64>();
            (0..COLUMNS * COLUMNS)
                .map(|i| entry(i / COLUMNS, i % COLUMNS))
                .collect::<Vec<f64>>()
        };
        let squared = product(&p, &p);
        let regular = |a: usize, b: usize| mean[a * COLUMNS + b] + if a == b { floor } else { 0.0 };
        let identity = product(&|a, b| squared[a * COLUMNS + b], &regular);
        for a in 0..COLUMNS {
            for b in 0..COLUMNS {
                let expected = f64::from(u8::from(a == b));
                assert!((identity[a * COLUMNS + b] - expected).abs() < 1e-5);
            }
        }
        let mapped = map.apply(&data).unwrap();
        let longest = mapped
            .squared_norms()
            .iter()
            .fold(0.0f64, |most, &norm| most.max(norm));
        assert!(
            (longest.sqrt() - LONGEST).abs() < 1e-6,
            "the last record is too long: {longest}"
        );
        let back = Whitening::from_matrix(COLUMNS, map.matrix().to_vec(), Aim::Numbers);
        assert_eq!(back, Some(map));
        assert_eq!(Whitening::from_matrix(4, vec![0.0; 15], Aim::Classes), None);
        assert_eq!(
            Whitening::from_matrix(1, vec![f32::NAN], Aim::Classes),
            None
        );
    }

    /// The direction of most agreement has a fifth of the next one's weight, the others their own;
    /// without an only one, or where it has less anyway, nothing is held back. Records have length
    /// one.
    #[test]
    fn for_classes_the_first_direction_is_held_back() {
        let found = |values: &[f64]| weights(values, 0.5, Aim::Classes);
        let of = |value: f64| 1.0 / (value + 0.5).sqrt();
        let expected = [of(0.2), MOST_OF_FIRST * of(0.2), of(0.0), of(0.0)];
        assert_eq!(found(&[0.2, 0.8, 0.0, -3.0]), expected);
        assert_eq!(
            found(&[99.5, 0.0])[0],
            of(99.5),
            "a tenth, which is less than a fifth"
        );
        assert_eq!(found(&[0.3, 0.3]), [MOST_OF_FIRST * of(0.3), of(0.3)]);
        assert_eq!(found(&[0.7]), [of(0.7)]);
        let data = records(300);
        let average = Average {
            values: vec![0.1; entries(COLUMNS)],
            noise: 0.01,
        };
        let map = Whitening::new(&average, COLUMNS, Aim::Classes);
        let mapped = map.apply(&data).unwrap();
        assert!(
            mapped
                .squared_norms()
                .iter()
                .all(|norm| (norm - 1.0).abs() < 1e-6)
        );
    }

    /// Whatever a server says the average is, the map is finite and records end at length one or
    /// zero, or at no more than [`LONGEST`]: a client stays private whatever it is told.
    #[test]
    fn no_average_gives_a_map_that_lengthens_records() {
        let data = records(20);
        let wave = |scale: f64| move |i: usize| (scale * (i as f64 * 1.7).sin()) as f32;
        let largest = |i: usize| {
            if i.is_multiple_of(2) {
                f32::MAX
            } else {
                -f32::MAX
            }
        };
        let tiny = |i: usize| if i == 0 { f32::MIN_POSITIVE } else { 0.0 };
        let averages: [(&dyn Fn(usize) -> f32, f64); 5] = [
            (&wave(5.0), 5.0),
            (&wave(1e30), 0.0),
            (&largest, 0.0),
            (&tiny, f64::from(f32::MAX)),
            (&|_| 0.0, 0.0),
        ];
        for (at, (value, noise)) in averages.into_iter().enumerate() {
            let values = (0..entries(COLUMNS)).map(value).collect();
            let average = Average { values, noise };
            for aim in [Aim::Classes, Aim::Numbers] {
                let map = Whitening::new(&average, COLUMNS, aim);
                assert!(map.matrix().iter().all(|value| value.is_finite()), "{at}");
                let mapped = map.apply(&data).unwrap();
                for &norm in mapped.squared_norms() {
                    let fits = match aim {
                        Aim::Classes => norm == 0.0 || (norm - 1.0).abs() < 1e-6,
                        Aim::Numbers => norm <= LONGEST * LONGEST + 1e-5,
                    };
                    assert!(fits, "{at}: {norm}");
                }
            }
        }
    }

    /// An average of finite numbers that nobody can have released, found by search: without a bound
    /// two entries of its map were infinite, and records that meet them were not numbers. Whether a
    /// client has such a record must not decide whether it goes on.
    #[test]
    fn a_false_average_tells_nothing_about_records() {
        const D: usize = 7;
        let mut values = vec![0.0f32; entries(D)];
        let at = |a: usize, b: usize| (0..a).map(|row| D - row).sum::<usize>() + b - a;
        for (a, b, value) in [
            (0usize, 0usize, -8.236_271_764_766_549e37),
            (0, 1, 3.771_732_597_562_12e-20),
            (2, 2, -9.999_999_680_285_692e37),
            (2, 3, 6.091_705_789_126_51e-24),
            (4, 4, -2.0),
            (4, 5, 0.7),
            (5, 5, -2.259_354_114_532_470_7),
        ] {
            values[at(a, b)] = value as f32;
        }
        let average = Average { values, noise: 0.5 };
        let map = Whitening::new(&average, D, Aim::Numbers);
        assert!(map.matrix().iter().all(|value| value.is_finite()));
        for met in [0.0f32, 1.0] {
            let mut record = vec![0.5f32; D];
            record[4..6].fill(met);
            let rows = DenseRows::new(D, record).unwrap();
            let data = Dataset::new(Features::Dense(rows), vec![0], 2).unwrap();
            assert!(map.apply(&data).is_ok(), "{met}");
        }
        // A map of a model file may have any finite numbers.
        let huge = Whitening::from_matrix(1, vec![f32::MAX], Aim::Classes).unwrap();
        let rows = DenseRows::new(1, vec![1e19]).unwrap();
        let data = Dataset::new(Features::Dense(rows), vec![0], 2).unwrap();
        assert!(huge.apply(&data).is_ok());
    }

    /// The matrix of one average, to the last bit, on any machine.
    #[test]
    fn the_bits_of_the_map_are_pinned() {
        let values: Vec<f32> = (0..entries(5)).map(|i| (i * i % 7) as f32 / 8.0).collect();
        let map = Whitening::new(
            &Average {
                values,
                noise: 0.125,
            },
            5,
            Aim::Classes,
        );
        let mut hasher = Sha256::new();
        for value in map.matrix() {
            hasher.update(value.to_le_bytes());
        }
        let digest: [u8; 32] = hasher.finalize().into();
        assert_eq!(digest[..4], PINNED, "{:?}", &map.matrix()[..3]);
    }
}
