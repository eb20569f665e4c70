//! Synthetic tables that are about as hard as real ones.
//!
//! **What it computes.** Columns of a real table say much the same thing in different words. So `F`
//! columns are made of `k = floor(sqrt(F)) + 1` hidden factors `z` (at most `F`), each column a
//! random mixture of them beside something of its own, around a middle that is not that of its
//! public range [-1, 1]:
//!
//! ```text
//!     x_j = o_j + 0.3 (l_j . z + 0.5 e_j), cut off at -1 and 1,     o_j in [-1/2, 1/2],  var(z) = var(e) = 1
//! ```
//!
//! The class follows from the factors by the noisy linear rule of [`Synthetic`]. With independent
//! columns instead, a plan called hopeless what real tables of that shape do well
//! (`docs/defaults.md` compares both with eleven of them).
//!
//! **Guarantee.** The same table from the same seed on every machine. **Place in the paper:** none.

use soteriafl_core::data::Synthetic;
use soteriafl_data::{Dataset, DenseRows, Features, RecordsError};

use super::trial::Form;

/// Records to test on.
const TESTS: u64 = 1000;

/// How far columns spread over their range.
const SPREAD: f64 = 0.3;

/// How loud what a column has of its own is.
const OWN: f64 = 0.5;

/// A table of so many records, and one to test on.
///
/// # Errors
/// When it does not fit into memory.
pub(super) fn make(form: Form, rows: usize, seed: u64) -> Result<(Dataset, Dataset), RecordsError> {
    let size = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let (features, rows) = (form.features, rows as u64);
    let factors = (features.isqrt() + 1).min(features);
    let hidden = Synthetic::new(size(rows as usize), size(factors), size(form.classes))?;
    let own = Synthetic::new(size(rows as usize), size(features), 2)?;
    // Row after row a column's mixture, and its middle.
    let mixtures = Synthetic::new(size(features), size(factors), 2)?.train(seed)?;
    let middles = Synthetic::new(size(features), 1, 2)?.train(seed)?;
    let table = |range: std::ops::Range<u64>| {
        let hidden = hidden.generate(seed, range.clone())?;
        // Another sequence than the hidden one.
        let own = own.generate(!seed, range)?;
        let mut values = Vec::with_capacity(hidden.rows() * features);
        for row in 0..hidden.rows() {
            let (z, e) = (hidden.full_row(row), own.full_row(row));
            for (column, &e) in e.iter().enumerate() {
                let mixture = mixtures.full_row(column);
                let mixed: f64 = mixture.iter().zip(&z).map(|(l, z)| l * z).sum();
                // Features of n columns have variance 1/n each there.
                let mixed = mixed * (factors as f64).sqrt() + OWN * e * (features as f64).sqrt();
                let middle = middles.full_row(column)[0] / 12f64.sqrt();
                values.push((middle + SPREAD * mixed).clamp(-1.0, 1.0) as f32);
            }
        }
        hidden.with_features(Features::Dense(DenseRows::new(features, values)?))
    };
    Ok((table(0..rows)?, table(rows..rows + TESTS)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_lie_in_their_range_and_say_much_the_same() {
        let form = Form {
            features: 16,
            classes: 3,
        };
        let (train, test) = make(form, 400, 1).unwrap();
        assert_eq!(
            (train.rows(), train.columns(), train.classes()),
            (400, 16, 3)
        );
        assert_eq!((test.rows(), test.columns()), (1000, 16));
        let rows: Vec<Vec<f64>> = (0..400).map(|row| train.full_row(row)).collect();
        assert!(rows.iter().flatten().all(|x| x.abs() <= 1.0));
        let mean = |column: usize| rows.iter().map(|row| row[column]).sum::<f64>() / 400.0;
        let covariance = |a: usize, b: usize| {
            let (first, second) = (mean(a), mean(b));
            rows.iter()
                .map(|row| (row[a] - first) * (row[b] - second))
                .sum::<f64>()
                / 400.0
        };
        // Five factors: correlations between columns are of size 0.3 or so, not 0.05 as by chance.
        let pairs = (0..16).flat_map(|a| (0..a).map(move |b| (a, b)));
        let squares =
            pairs.map(|(a, b)| covariance(a, b).powi(2) / (covariance(a, a) * covariance(b, b)));
        let size = (squares.sum::<f64>() / 120.0).sqrt();
        assert!(size > 0.2 && size < 0.7, "{size}");
        assert_eq!(make(form, 400, 1).unwrap().0, train);
        assert_ne!(make(form, 400, 2).unwrap().0, train);
    }

    #[test]
    fn one_column_is_a_table_too() {
        let form = Form {
            features: 1,
            classes: 2,
        };
        assert_eq!(make(form, 10, 0).unwrap().0.columns(), 1);
    }
}
