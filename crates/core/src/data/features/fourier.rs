//! Random Fourier features: a Gaussian kernel for linear models.
//!
//! With `u` the record at unit length (`features/unit.rs`) and `w_1 .. w_{D/2}` drawn once from the
//! normal law with covariance `I/h^2`,
//!
//! ```text
//!     z = sqrt(2/D) (cos w_1.u, sin w_1.u, cos w_2.u, ...),      z.z' -> exp(-|u - u'|^2 / (2 h^2))
//! ```
//!
//! (Rahimi and Recht, 2007): `z.z'` is the mean of `D/2` numbers `cos w.(u - u')` in [-1, 1] whose
//! expectation is the kernel, so it is off by more than `t` with probability at most
//! `2 exp(-D t^2 / 4)` over the seed (Hoeffding).
//!
//! **Bandwidth.** `h = 1/2`. Unit records lie at distances of at most 2, however many features
//! there are and whatever their unit, so that one bandwidth serves every dimension; that division
//! is the only place where the dimension has to come in.
//!
//! **Guarantee.** `|z| = 1` up to rounding, exactly so for every record because cosine and sine
//! come in pairs. The waves come from a public seed that never changes. Sums are in `f64` in the
//! order of columns, zeros left out, so that sparse and dense rows give the same bits.
//!
//! **Cost.** `D/2` multiplications for every stored feature, and `D` values of cosine and sine, a
//! record; rows become dense. **Place in the paper:** none.

use super::super::public_random::{generator, normal};
use super::super::{Dataset, LARGEST_VALUE, RecordsError};
use super::unit::CONSTANT;

/// The width of the kernel.
const BANDWIDTH: f64 = 0.5;

/// Most features, and most entries of all waves together.
const MOST: (usize, usize) = (1 << 16, 1 << 28);

/// The waves, `[feature of a unit record][wave]`.
pub(super) struct Waves {
    count: usize,
    entries: Vec<f32>,
}

/// Whether records of `inputs` features can have `count` Fourier features.
///
/// # Errors
/// When `count` is odd, zero, or too large.
pub(super) fn check(inputs: usize, count: usize) -> Result<(), RecordsError> {
    let entries = (inputs + 1).saturating_mul(count / 2);
    let reason = if count == 0 || count % 2 == 1 || count > MOST.0 {
        format!("expected an even number from 2 to {}", MOST.0)
    } else if entries > MOST.1 {
        format!(
            "{inputs} features and {} waves are more than {} numbers",
            count / 2,
            MOST.1
        )
    } else {
        return Ok(());
    };
    Err(RecordsError::Choice {
        what: "features",
        value: format!("fourier:{count}"),
        reason,
    })
}

impl Waves {
    /// The waves for records of `inputs` features.
    ///
    /// # Errors
    /// As [`check`].
    pub(super) fn new(inputs: usize, count: usize) -> Result<Waves, RecordsError> {
        check(inputs, count)?;
        let mut random = generator("fourier features", 0);
        let entries = (0..(inputs + 1) * (count / 2))
            .map(|_| (normal(&mut random) / BANDWIDTH) as f32)
            .collect();
        Ok(Waves { count, entries })
    }

    /// The rows from `first` on, as many as there is room for.
    pub(super) fn rows(&self, data: &Dataset, first: usize, values: &mut [f32]) {
        let waves = self.count / 2;
        let mut record = vec![0.0; data.columns()];
        let mut angles = vec![0.0; waves];
        let height = (1.0 / waves as f64).sqrt();
        for (number, values) in values.chunks_exact_mut(self.count).enumerate() {
            read(data, first + number, &mut record);
            let square = |sum: f64, value: &f64| sum + value * value;
            let length = record.iter().fold(0.0, square) + CONSTANT * CONSTANT;
            let length = length.sqrt();
            angles.fill(0.0);
            let features = record.iter().copied().chain([CONSTANT]);
            for (feature, wave) in features.zip(self.entries.chunks_exact(waves)) {
                if feature != 0.0 {
                    let share = feature / length;
                    for (angle, &entry) in angles.iter_mut().zip(wave) {
                        *angle += share * f64::from(entry);
                    }
                }
            }
            for (pair, &angle) in values.chunks_exact_mut(2).zip(&angles) {
                pair[0] = (height * libm::cos(angle)) as f32;
                pair[1] = (height * libm::sin(angle)) as f32;
            }
        }
    }
}

/// A record, offset included, as models would see it.
fn read(data: &Dataset, row: usize, record: &mut [f64]) {
    record.fill(0.0);
    data.features()
        .visit_row(row, |column, value| record[column] = f64::from(value));
    if let Some(offset) = data.offset() {
        let most = f64::from(LARGEST_VALUE);
        for (value, &constant) in record.iter_mut().zip(offset.iter()) {
            let moved = (*value + f64::from(constant)).clamp(-most, most);
            *value = f64::from(moved as f32);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::{DenseRows, Features, SparseRows};
    use super::super::{FeatureKind, FeatureMap};
    use super::*;

    fn dense(rows: &[[f32; 4]]) -> Dataset {
        let values = DenseRows::new(4, rows.concat()).unwrap();
        Dataset::new(Features::Dense(values), vec![0; rows.len()], 2).unwrap()
    }

    const ROWS: [[f32; 4]; 4] = [
        [0.0; 4],
        [1.0, 0.0, -2.0, 0.0],
        [0.9, 0.2, -1.7, 0.1],
        [LARGEST_VALUE, 0.0, 1.0, -LARGEST_VALUE],
    ];

    /// 4000 features: off by more than 0.1 with probability below `2 exp(-10)`, one in ten
    /// thousand, for each of six pairs.
    #[test]
    fn products_are_the_gaussian_kernel() {
        let map = |kind| {
            FeatureMap::new(kind, 4)
                .unwrap()
                .apply(dense(&ROWS))
                .unwrap()
        };
        let (unit, waves) = (map(FeatureKind::Unit), map(FeatureKind::Fourier(4000)));
        assert_eq!(waves.columns(), 4000);
        for left in 0..ROWS.len() {
            assert!((waves.squared_norms()[left] - 1.0).abs() < 1e-5);
            for right in 0..left {
                let (a, b) = (unit.full_row(left), unit.full_row(right));
                let squares = a.iter().zip(&b).map(|(a, b)| (a - b) * (a - b));
                let kernel = (-squares.sum::<f64>() / (2.0 * BANDWIDTH * BANDWIDTH)).exp();
                let (a, b) = (waves.full_row(left), waves.full_row(right));
                let product: f64 = a.iter().zip(&b).map(|(a, b)| a * b).sum();
                assert!(
                    (product - kernel).abs() < 0.1,
                    "{left} {right}: {product} {kernel}"
                );
            }
        }
        // Near ones are told from far ones.
        let product = |row: usize| -> f64 {
            let (a, b) = (waves.full_row(1), waves.full_row(row));
            a.iter().zip(&b).map(|(a, b)| a * b).sum()
        };
        assert!(product(2) > 0.9 && product(0) < 0.3);
    }

    #[test]
    fn a_record_has_the_same_bits_alone_sparse_and_by_any_number_of_threads() {
        let map = FeatureMap::new(FeatureKind::Fourier(6), 4).unwrap();
        let rows = ROWS.repeat(5);
        let all = map.apply_by(dense(&rows), 3).unwrap();
        for (row, record) in rows.iter().enumerate() {
            let alone = map.apply(dense(&[*record])).unwrap();
            assert_eq!(alone.full_row(0), all.full_row(row));
        }
        let stored = SparseRows::new(4, vec![0, 2], vec![0, 2], vec![1.0, -2.0]).unwrap();
        let sparse = Dataset::new(Features::Sparse(stored), vec![1], 2).unwrap();
        assert_eq!(map.apply(sparse).unwrap().full_row(0), all.full_row(1));
    }

    #[test]
    fn odd_and_huge_counts_are_refused() {
        for (inputs, count) in [(4, 0), (4, 7), (4, 1 << 17), (1 << 20, 1 << 16)] {
            let error = FeatureMap::new(FeatureKind::Fourier(count), inputs).unwrap_err();
            assert!(error.to_string().contains("fourier:"), "{error}");
        }
    }
}
