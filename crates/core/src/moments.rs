//! Second moments, released once by every client, and the public map that they give: whitening.
//!
//! **What it computes.** Each client sends the noised mean of `x x^T` over its records, all of length one:
//!
//! ```text
//! M_i = (1/m) sum_j x_j x_j^T + N,          A = sum_i w_i M_i,
//! P   = (A+ + lambda)^(-1/2),               every record becomes  P x / |P x|,
//! ```
//!
//! with `A+` the part of `A` with eigenvalues above zero. Directions in which all records agree (a common mean) no longer
//! drown the others, so that a few private steps do what takes thousands otherwise.
//!
//! **What travels** is the upper triangle as a vector `v(x)`: `x_a^2` on the diagonal, `sqrt(2) x_a x_b` off it. Then
//! `|v(x)| = |x x^T|_F = |x|^2` and `v(x) . v(y) = (x . y)^2 >= 0`: a record left out changes the sum by at most 1, a
//! record replaced by at most `sqrt(2)` (`docs/privacy.md`, Proposition 6a). Noise is the same on all of `v`.
//!
//! **Guarantee.** The sum is a `RawEstimate`, so it leaves through [`GaussianMechanism::release`] alone. Records that are
//! longer than one are shortened, each by itself; with secure noise each is put on the grid by itself. The map acts on
//! each record alone and is a function of what was released: post-processing. The bits do not depend on threads or machine.
//!
//! **Cost.** `m D^2/2` products and `D (D + 1)/2` values for records of `D` numbers, one eigendecomposition
//! (some `40 D^3`), `m D^2` products for the map. **Place in the paper:** none.

use crate::data::{Dataset, DenseRows, Features, RecordsError};
use crate::linalg::eigen;
use crate::objective::Workspace;
use crate::privacy::secure::NoiseError;
use crate::privacy::{GaussianMechanism, Noise, Released, TermBound};
use crate::random::{Purpose, SecretKey};

/// By how much one replaced record may exceed `sqrt(2)`, relatively, after each was put on a grid: what the
/// accountant is told. On a grid records end within `2^-19` of where they were ([`release`] refuses coarser ones).
pub const SLACK: f64 = 1.0 / (1u64 << 18) as f64;

/// How far a grid may move a record.
const COARSEST: f64 = 1.0 / (1u64 << 19) as f64;

/// Numbers of a released matrix of this many rows.
pub fn entries(columns: usize) -> usize {
    columns * (columns + 1) / 2
}

/// Why moments cannot be released.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MomentsError {
    /// No grid suits the noise.
    #[error(transparent)]
    Noise(#[from] NoiseError),
    /// The noise is so large that a grid under it would be too coarse for the proof.
    #[error("a grid under this noise moves records by {found:e} of their length, more than 2^-19")]
    Coarse {
        /// By how much.
        found: f64,
    },
}

/// The released second moments of one client's records, with noise of standard deviation `sigma`.
///
/// # Errors
/// When no grid suits the noise.
pub fn release(
    data: &Dataset,
    sigma: f64,
    noise: Noise,
    key: &SecretKey,
) -> Result<Released, MomentsError> {
    let (columns, records) = (data.columns(), data.rows() as f64);
    let len = entries(columns);
    let term = TermBound {
        clip: 1.0,
        divisor: records,
    };
    let mechanism = GaussianMechanism::new(noise, sigma, &[term], len)?;
    let found = mechanism.truncation_bound(len);
    if found > COARSEST {
        return Err(MomentsError::Coarse { found });
    }
    let mut workspace = Workspace::new();
    // Before a record is read, as in every round.
    let mut stream = key.stream(0, Purpose::Moments);
    let noise = mechanism.draw(len, &mut stream, &mut workspace, |_| {});
    let mut sum = mechanism.empty_estimate(len, records, records, &mut workspace);
    let mut vector = Vec::with_capacity(len);
    for row in 0..data.rows() {
        upper_triangle(&data.full_row(row), &mut vector);
        sum.add_vector(&vector);
    }
    Ok(mechanism.release(sum, noise, &mut workspace))
}

/// `v(x)` of the module, of a record shortened to length one.
fn upper_triangle(record: &[f64], vector: &mut Vec<f64>) {
    let square: f64 = record.iter().map(|value| value * value).sum();
    let scale = 1.0 / square.max(1.0);
    vector.clear();
    for (a, &x) in record.iter().enumerate() {
        vector.push(scale * x * x);
        let rest = record[a + 1..].iter();
        vector.extend(rest.map(|&y| scale * std::f64::consts::SQRT_2 * x * y));
    }
}

/// The public map `x -> P x / |P x|`.
#[derive(Clone, Debug, PartialEq)]
pub struct Whitening {
    columns: usize,
    /// `P`, row after row.
    matrix: Vec<f32>,
}

impl Whitening {
    /// The map that averaged moments give, whose entries have noise of standard deviation `noise` on the diagonal:
    /// `lambda = 0.2 noise sqrt(D) + 10^-4`, a fifth of the size that noise alone gives an eigenvalue.
    ///
    /// # Panics
    /// If there are not as many entries as a matrix of `columns` rows has.
    pub fn new(moments: &[f64], columns: usize, noise: f64) -> Self {
        assert_eq!(moments.len(), entries(columns), "one number per entry");
        let mut matrix = vec![0.0; columns * columns];
        let mut next = moments.iter();
        for a in 0..columns {
            for b in a..columns {
                let entry = next.next().copied().unwrap_or_default();
                let entry = match a == b {
                    true => entry,
                    false => entry / std::f64::consts::SQRT_2,
                };
                (matrix[a * columns + b], matrix[b * columns + a]) = (entry, entry);
            }
        }
        let floor = 0.2 * noise * (columns as f64).sqrt() + 1e-4;
        let root = eigen::function(matrix, columns, |value| {
            1.0 / (value.max(0.0) + floor).sqrt()
        });
        Self {
            columns,
            matrix: root.into_iter().map(|value| value as f32).collect(),
        }
    }

    /// The map with this matrix, row after row; `None` unless it is square and finite.
    pub fn from_matrix(columns: usize, matrix: Vec<f32>) -> Option<Self> {
        let fits = columns.checked_mul(columns) == Some(matrix.len())
            && matrix.iter().all(|value| value.is_finite());
        fits.then_some(Self { columns, matrix })
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
            let scale = if length > 0.0 && length.is_finite() {
                1.0 / length
            } else {
                0.0
            };
            values.extend(mapped.iter().map(|value| (scale * value) as f32));
        }
        data.with_features(Features::Dense(DenseRows::new(self.columns, values)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: usize = 4;

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
        let released = release(&data, 0.0, Noise::None, &key).unwrap();
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

    /// Neighbouring data sets with the same noise: what differs is within the sensitivities, whatever the
    /// record is, in floating point and, exactly, on the grid.
    #[test]
    fn one_record_moves_the_release_by_no_more_than_is_claimed() {
        let data = records(30);
        let key = SecretKey::simulated(5, 3);
        for (noise, rounding) in [(Noise::Float, 1e-6), (Noise::Secure, 1e-6)] {
            let values = |data: &Dataset| release(data, 0.05, noise, &key).unwrap().into_buffer();
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
                assert!(moved <= bound * (1.0 + SLACK) + 30.0 * rounding, "{moved}");
                assert!(moved > 0.5, "{moved}");
            }
        }
    }

    /// Standard deviation over 6 x 400 draws within 6%: a fresh seed would fail once in 10^4 times or so.
    #[test]
    fn the_noise_has_its_size_on_every_entry() {
        let data = records(10);
        for noise in [Noise::Float, Noise::Secure] {
            let exact = release(&data, 0.0, Noise::None, &SecretKey::simulated(0, 0)).unwrap();
            let (mut squares, mut count) = (0.0, 0.0);
            for seed in 0..240 {
                let key = SecretKey::simulated(seed, 1);
                let found = release(&data, 0.3, noise, &key).unwrap();
                for (a, b) in found.values().iter().zip(exact.values()) {
                    squares += f64::from(a - b).powi(2);
                    count += 1.0;
                }
            }
            let deviation = (squares / count).sqrt();
            assert!((deviation / 0.3 - 1.0).abs() < 0.06, "{deviation}");
        }
    }

    /// The moments of whitened but not yet shortened records are `A/(A + lambda)`: the definition of `P`.
    #[test]
    fn whitening_meets_its_definition() {
        let data = records(300);
        let mean = naive(&data);
        let upper: Vec<f64> = (0..COLUMNS)
            .flat_map(|a| (a..COLUMNS).map(move |b| (a, b)))
            .map(|(a, b)| mean[a * COLUMNS + b] * if a == b { 1.0 } else { 2f64.sqrt() })
            .collect();
        let noise = 0.01;
        let map = Whitening::new(&upper, COLUMNS, noise);
        let floor = 0.2 * noise * (COLUMNS as f64).sqrt() + 1e-4;
        let p = |a: usize, b: usize| f64::from(map.matrix()[a * COLUMNS + b]);
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
        assert!(
            mapped
                .squared_norms()
                .iter()
                .all(|norm| (norm - 1.0).abs() < 1e-6)
        );
        let back = Whitening::from_matrix(COLUMNS, map.matrix().to_vec());
        assert_eq!(back, Some(map));
        assert_eq!(Whitening::from_matrix(4, vec![0.0; 15]), None);
        assert_eq!(Whitening::from_matrix(1, vec![f32::NAN]), None);
    }

    #[test]
    fn noise_without_any_signal_gives_a_map_all_the_same() {
        let noise: Vec<f64> = (0..entries(6))
            .map(|i| (i as f64 * 1.7).sin() * 5.0)
            .collect();
        let map = Whitening::new(&noise, 6, 5.0);
        assert!(map.matrix().iter().all(|value| value.is_finite()));
    }
}
