//! Scaling of features: `x -> (x - center) * factor`.
//!
//! - spectral (the paper's a9a): one factor `2 sqrt(rows) / s` with `s` the largest singular value
//!   of the matrix of all rows, found by power iteration. The mean over records of the squared
//!   projection on any direction is then at most 4, so the logistic loss, whose curvature is at
//!   most 1/4, is 1-smooth.
//! - standard (the paper's MNIST): one mean and one standard deviation over all features of all
//!   rows.
//! - per-feature: each feature by its own mean and standard deviation; a constant feature stays.
//! - constants known beforehand.
//!
//! All but the constants are computed from the records: they reveal something about
//! the records, so [`Scaling::data_dependent`] says so and a privacy claim must not ignore it.
//! Sparse rows stay sparse. Sums are in `f64` and in the order of rows. Spectral costs two passes
//! over the stored values per iteration, a few dozen iterations as a rule; the others two passes.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use super::singular_value::{largest_singular_value, singular_value_after};
use super::{Dataset, LARGEST_VALUE, RecordsError};

/// A rule for scaling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Scale {
    /// Features stay as they are.
    None,
    /// Divide by half the root mean square of the largest singular value.
    Spectral,
    /// One mean and standard deviation over all features.
    Standard,
    /// A mean and standard deviation for each feature.
    PerFeature,
}

/// Numbers for `x -> (x - center) * factor`, to be applied to training and test set alike.
#[derive(Clone, Debug, PartialEq)]
pub struct Scaling {
    name: &'static str,
    center: Constants,
    factor: Constants,
    data_dependent: bool,
}

/// One number for all features, or one for each.
#[derive(Clone, Debug, PartialEq)]
pub enum Constants {
    /// The same for every feature.
    Same(f64),
    /// In the order of features.
    PerFeature(Arc<[f64]>),
}

impl Scale {
    /// The numbers that this rule gives for the records of a training set.
    pub fn fit(self, data: &Dataset) -> Result<Scaling, RecordsError> {
        if data.rows() == 0 {
            return Err(refuse(self, "expected at least one record"));
        }
        let (center, factor) = match self {
            Scale::None => return Ok(Scaling::identity()),
            Scale::Spectral => {
                let largest = largest_singular_value(&[data]);
                if largest == 0.0 {
                    return Err(refuse(self, "all features of all records are zero"));
                }
                (
                    Constants::Same(0.0),
                    Constants::Same(2.0 * (data.rows() as f64).sqrt() / largest),
                )
            }
            Scale::Standard => {
                let (mean, deviation) = Columns::of(data).moments();
                if deviation == 0.0 {
                    return Err(refuse(self, "all features of all records are equal"));
                }
                (Constants::Same(mean), Constants::Same(1.0 / deviation))
            }
            Scale::PerFeature => Columns::of(data).moments_of_each(),
        };
        Ok(Scaling {
            name: self.name(),
            center,
            factor,
            data_dependent: true,
        })
    }

    fn name(self) -> &'static str {
        match self {
            Scale::None => "none",
            Scale::Spectral => "spectral",
            Scale::Standard => "standard",
            Scale::PerFeature => "per-feature",
        }
    }
}

fn refuse(scale: Scale, reason: &str) -> RecordsError {
    RecordsError::Choice {
        what: "scale",
        value: scale.to_string(),
        reason: reason.to_owned(),
    }
}

impl Scaling {
    /// Leaves features as they are.
    pub fn identity() -> Scaling {
        let (center, factor) = (Constants::Same(0.0), Constants::Same(1.0));
        Scaling {
            name: Scale::None.name(),
            center,
            factor,
            data_dependent: false,
        }
    }

    /// Centres each column of `data` and gives it a standard deviation of one, then multiplies all
    /// by the number that makes the largest singular value twice the root of the number of rows,
    /// roughly: a logistic loss over such rows has a smoothness of about 1, so a step of 1 fits
    /// whatever the units were. Not `centred`, columns keep their zero and get a mean square of
    /// one, as a model without an intercept needs it.
    ///
    /// # Errors
    /// When there are no rows, or values leave the range of numbers.
    pub fn standardizing(data: &Dataset, centred: bool) -> Result<Scaling, RecordsError> {
        // Rough is enough: steps that are right for one smoothness still work for three times as
        // much.
        const ITERATIONS: usize = 30;
        if data.rows() == 0 {
            return Err(refuse(Scale::PerFeature, "expected at least one record"));
        }
        let columns = Columns::of(data);
        let (center, factor) = if centred {
            columns.moments_of_each()
        } else {
            columns.lengths_of_each()
        };
        let each = Scaling {
            name: Scale::PerFeature.name(),
            center,
            factor,
            data_dependent: true,
        };
        let scaled = each.apply(data.clone())?;
        let largest = singular_value_after(&[&scaled], ITERATIONS);
        let common = if largest > 0.0 {
            2.0 * (data.rows() as f64).sqrt() / largest
        } else {
            1.0
        };
        let factors = (0..data.columns()).map(|column| each.factor.at(column) * common);
        Ok(Scaling {
            factor: Constants::PerFeature(factors.collect()),
            ..each
        })
    }

    /// Constants that do not depend on the records.
    pub fn constants(center: Constants, factor: Constants) -> Result<Scaling, RecordsError> {
        let choice = |what, value: f64, reason: &str| {
            Err(RecordsError::Choice {
                what,
                value: value.to_string(),
                reason: reason.to_owned(),
            })
        };
        if let Some(&value) = center.as_slice().iter().find(|value| !value.is_finite()) {
            return choice("center", value, "expected finite numbers");
        }
        if let Some(&value) = factor
            .as_slice()
            .iter()
            .find(|&&value| !(value.is_finite() && value > 0.0))
        {
            return choice("factor", value, "expected finite numbers above zero");
        }
        Ok(Scaling::known(center, factor))
    }

    /// Constants that do not depend on the records.
    fn known(center: Constants, factor: Constants) -> Scaling {
        Scaling {
            name: "constants",
            center,
            factor,
            data_dependent: false,
        }
    }

    /// What is subtracted first.
    pub fn center(&self) -> &Constants {
        &self.center
    }

    /// What is then multiplied by.
    pub fn factor(&self) -> &Constants {
        &self.factor
    }

    /// Whether these numbers were computed from the records.
    pub fn data_dependent(&self) -> bool {
        self.data_dependent
    }

    /// Whether it changes nothing.
    pub fn is_identity(&self) -> bool {
        self.center.as_slice().iter().all(|&center| center == 0.0)
            && self.factor.as_slice().iter().all(|&factor| factor == 1.0)
    }

    /// Scales every row.
    pub fn apply(&self, data: Dataset) -> Result<Dataset, RecordsError> {
        self.apply_up_to(data, None)
    }

    /// Scales every row and cuts values off at `2^63`, so that no record makes it fail, whatever
    /// the constants: a function of each record alone. (Of sparse rows the stored value and the
    /// constant that is added to all rows are cut off, so that their sum stays below `2^64`.)
    pub fn apply_clamped(&self, data: Dataset) -> Result<Dataset, RecordsError> {
        self.apply_up_to(data, Some(LARGEST_VALUE / 2.0))
    }

    fn apply_up_to(&self, data: Dataset, most: Option<f32>) -> Result<Dataset, RecordsError> {
        for constants in [&self.center, &self.factor] {
            if let Constants::PerFeature(values) = constants
                && values.len() != data.columns()
            {
                let (expected, found) = (data.columns(), values.len());
                return Err(RecordsError::Shape {
                    what: "scaling constants",
                    expected,
                    found,
                });
            }
        }
        if self.is_identity() {
            return Ok(data);
        }
        data.affine(
            |column| self.center.at(column),
            |column| self.factor.at(column),
            most,
        )
    }
}

impl Constants {
    /// The number for a feature.
    pub fn at(&self, column: usize) -> f64 {
        match self {
            Constants::Same(value) => *value,
            Constants::PerFeature(values) => values[column],
        }
    }

    /// All numbers: one, or as many as there are features.
    pub fn as_slice(&self) -> &[f64] {
        match self {
            Constants::Same(value) => std::slice::from_ref(value),
            Constants::PerFeature(values) => values,
        }
    }
}

impl fmt::Display for Scale {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl FromStr for Scale {
    type Err = RecordsError;

    fn from_str(text: &str) -> Result<Scale, RecordsError> {
        let all = [
            Scale::None,
            Scale::Spectral,
            Scale::Standard,
            Scale::PerFeature,
        ];
        all.into_iter()
            .find(|scale| scale.name() == text)
            .ok_or_else(|| RecordsError::Choice {
                what: "scale",
                value: text.to_owned(),
                reason: "expected none, spectral, standard or per-feature".to_owned(),
            })
    }
}

impl fmt::Display for Scaling {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_identity() {
            return formatter.write_str("none");
        }
        let origin = if self.data_dependent {
            ", computed from the records"
        } else {
            ""
        };
        write!(
            formatter,
            "(x - {}) * {} ({}{origin})",
            self.center, self.factor, self.name
        )
    }
}

impl fmt::Display for Constants {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Constants::Same(value) => write!(formatter, "{value:.6}"),
            Constants::PerFeature(values) => write!(formatter, "[{} numbers]", values.len()),
        }
    }
}

/// Sums over each column, from which all moments follow.
struct Columns<'a> {
    data: &'a Dataset,
    /// How many values are stored, and their sum without the offset.
    stored: Vec<f64>,
    sums: Vec<f64>,
}

impl Columns<'_> {
    fn of(data: &Dataset) -> Columns<'_> {
        let (mut stored, mut sums) = (vec![0.0; data.columns()], vec![0.0; data.columns()]);
        for row in 0..data.rows() {
            data.features().visit_row(row, |column, value| {
                stored[column] += 1.0;
                sums[column] += f64::from(value);
            });
        }
        Columns { data, stored, sums }
    }

    fn offset(&self, column: usize) -> f64 {
        self.data
            .offset()
            .map_or(0.0, |offset| f64::from(offset[column]))
    }

    /// Each column's mean.
    fn means(&self) -> Vec<f64> {
        let rows = self.data.rows() as f64;
        self.sums
            .iter()
            .enumerate()
            .map(|(column, sum)| sum / rows + self.offset(column))
            .collect()
    }

    /// Each column's sum of squared deviations from a given center: a second pass, because the
    /// difference of two large sums would lose its digits. What is not stored deviates alike.
    fn squared_deviations(&self, center: impl Fn(usize) -> f64) -> Vec<f64> {
        let rest: Vec<f64> = (0..self.data.columns())
            .map(|column| self.offset(column) - center(column))
            .collect();
        let absent = self.stored.iter().zip(&rest);
        let mut squares: Vec<f64> = absent
            .map(|(stored, rest)| (self.data.rows() as f64 - stored) * rest * rest)
            .collect();
        for row in 0..self.data.rows() {
            self.data.features().visit_row(row, |column, value| {
                let deviation = f64::from(value) + rest[column];
                squares[column] += deviation * deviation;
            });
        }
        squares
    }

    /// Mean and standard deviation over all columns.
    fn moments(&self) -> (f64, f64) {
        let columns = self.data.columns() as f64;
        let mean = self.means().iter().sum::<f64>() / columns;
        let squares: f64 = self.squared_deviations(|_| mean).iter().sum();
        (mean, (squares / columns / self.data.rows() as f64).sqrt())
    }

    /// No centre, and the inverse root mean square of each column; a column of zeros is left alone.
    fn lengths_of_each(&self) -> (Constants, Constants) {
        let rows = self.data.rows() as f64;
        let squares = self.squared_deviations(|_| 0.0);
        let factors = squares
            .into_iter()
            .map(|square| match (square / rows).sqrt() {
                0.0 => 1.0,
                length => 1.0 / length,
            });
        (
            Constants::Same(0.0),
            Constants::PerFeature(factors.collect()),
        )
    }

    /// Mean and inverse standard deviation of each column; a constant column (an intercept) is left
    /// alone, for centring would delete it.
    fn moments_of_each(&self) -> (Constants, Constants) {
        let mut means = self.means();
        let rows = self.data.rows() as f64;
        let squares = self.squared_deviations(|column| means[column]);
        let mut factors = Vec::with_capacity(means.len());
        for (mean, square) in means.iter_mut().zip(squares) {
            let deviation = (square / rows).sqrt();
            // Rounding leaves a constant column a deviation of some 1e-16 of its mean.
            if deviation <= 1e-12 * mean.abs() {
                *mean = 0.0;
                factors.push(1.0);
            } else {
                factors.push(1.0 / deviation);
            }
        }
        (
            Constants::PerFeature(means.into()),
            Constants::PerFeature(factors.into()),
        )
    }
}

/// The sum of squares of each column, offsets included.
pub fn squared_columns(data: &Dataset) -> Vec<f64> {
    Columns::of(data).squared_deviations(|_| 0.0)
}

#[cfg(test)]
mod tests {
    use super::super::singular_value::tests::{dense, sparse};
    use super::super::{DenseRows, Features};
    use super::*;

    const VALUES: [f32; 12] = [1.0, 0.0, 3.0, 0.0, 2.0, 5.0, 0.0, 0.0, 0.0, 0.0, 3.0, -4.0];

    fn both() -> [Dataset; 2] {
        [dense(4, &VALUES), sparse(4, &VALUES)]
    }

    /// Whatever the units were: columns without a mean and of one size, a largest singular value of
    /// twice the root of the rows, and constants that stay.
    #[test]
    fn standardised_columns_fit_a_step_of_one() {
        let rows: Vec<f32> = (0..200)
            .flat_map(|row| {
                let wave = |step: usize| ((row * step) % 97) as f32;
                [
                    1e6 + 1e3 * wave(31),
                    1e-3 * wave(53),
                    wave(31) - wave(71),
                    1.0,
                ]
            })
            .collect();
        let features = Features::Dense(DenseRows::new(4, rows).unwrap());
        let data = Dataset::new(features, vec![0; 200], 1).unwrap();
        for centred in [true, false] {
            let scaling = Scaling::standardizing(&data, centred).unwrap();
            assert!(scaling.data_dependent());
            let scaled = scaling.apply(data.clone()).unwrap();
            let largest = largest_singular_value(&[&scaled]);
            assert!((largest / 200f64.sqrt() - 2.0).abs() < 0.01, "{largest}");
            let columns = Columns::of(&scaled);
            let squares = columns.squared_deviations(|_| 0.0);
            let ratio = |column: usize| squares[column] / squares[3];
            assert!(
                (0..3).all(|column| (ratio(column) - 1.0).abs() < 1e-3),
                "{squares:?}"
            );
            let means = columns.means();
            assert!((0..3).all(|column| !centred || means[column].abs() < 1e-3));
            assert!(centred || scaling.center() == &Constants::Same(0.0));
        }
        let zeros = Features::Dense(DenseRows::new(2, vec![0.0; 6]).unwrap());
        let zeros = Dataset::new(zeros, vec![0; 3], 1).unwrap();
        let scaling = Scaling::standardizing(&zeros, true).unwrap();
        assert!(scaling.is_identity());
    }

    #[test]
    fn standard_and_per_feature_give_mean_zero_and_deviation_one() {
        for data in both() {
            let offset = data.clone().with_offset(vec![0.5, 0.0, -1.0, 2.0]).unwrap();
            for data in [data, offset] {
                for scale in [Scale::Standard, Scale::PerFeature] {
                    let kind = matches!(data.features(), Features::Sparse(_));
                    let scaled = scale.fit(&data).unwrap().apply(data.clone()).unwrap();
                    assert_eq!(matches!(scaled.features(), Features::Sparse(_)), kind);
                    let rows: Vec<Vec<f64>> = (0..3).map(|row| scaled.full_row(row)).collect();
                    let groups: Vec<Vec<f64>> = match scale {
                        Scale::Standard => vec![rows.concat()],
                        _ => (0..4)
                            .map(|column| rows.iter().map(|row| row[column]).collect())
                            .collect(),
                    };
                    for group in groups {
                        let count = group.len() as f64;
                        let mean = group.iter().sum::<f64>() / count;
                        let variance =
                            group.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / count;
                        assert!(
                            mean.abs() < 1e-6 && (variance - 1.0).abs() < 1e-6,
                            "{mean} {variance}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn a_constant_feature_survives() {
        for data in both() {
            let scaling = Scale::PerFeature.fit(&data.with_intercept()).unwrap();
            assert_eq!((scaling.center().at(4), scaling.factor().at(4)), (0.0, 1.0));
        }
        let tenths = dense(1, &[0.1; 7]);
        assert_eq!(
            Scale::PerFeature
                .fit(&tenths)
                .unwrap()
                .apply(tenths.clone())
                .unwrap(),
            tenths
        );
    }

    #[test]
    fn spectral_scaling_bounds_the_mean_square_in_every_direction_by_four() {
        for data in both() {
            let offset = data.with_offset(vec![0.5, 0.0, -1.0, 2.0]).unwrap();
            let scaled = Scale::Spectral.fit(&offset).unwrap().apply(offset).unwrap();
            let mean_square = largest_singular_value(&[&scaled]).powi(2) / 3.0;
            assert!((mean_square - 4.0).abs() < 1e-5, "{mean_square}");
        }
    }

    #[test]
    fn constants_apply_and_nonsense_is_refused() {
        let scaling = Scaling::constants(Constants::Same(1.0), Constants::Same(0.5)).unwrap();
        assert!(!scaling.data_dependent());
        assert_eq!(scaling.to_string(), "(x - 1.000000) * 0.500000 (constants)");
        for data in both() {
            let scaled = scaling.apply(data).unwrap();
            assert_eq!(scaled.full_row(0), [0.0, -0.5, 1.0, -0.5]);
            assert_eq!(scaled.squared_norms()[0], 0.0 + 0.25 + 1.0 + 0.25);
            let twice = scaling.apply(scaled).unwrap();
            assert_eq!(twice.full_row(0), [-0.5, -0.75, 0.0, -0.75]);
        }
        for (center, factor) in [
            (f64::NAN, 1.0),
            (0.0, 0.0),
            (0.0, -1.0),
            (0.0, f64::INFINITY),
        ] {
            assert!(Scaling::constants(Constants::Same(center), Constants::Same(factor)).is_err());
        }
        let three = Constants::PerFeature(vec![1.0; 3].into());
        assert!(
            Scaling::constants(Constants::Same(0.0), three)
                .unwrap()
                .apply(dense(4, &VALUES))
                .is_err()
        );
        let huge = Scaling::constants(Constants::Same(0.0), Constants::Same(1e300)).unwrap();
        assert!(matches!(
            huge.apply(sparse(4, &VALUES)),
            Err(RecordsError::NotFinite { .. })
        ));
        // Cut off instead: no record makes it fail, with or without a centre.
        let far = Scaling::constants(Constants::Same(-1e30), Constants::Same(1e30)).unwrap();
        for (scaling, most) in [(&huge, 2f64.powi(63)), (&far, 2f64.powi(64))] {
            for data in both() {
                let scaled = scaling.apply_clamped(data).unwrap();
                assert!((0..3).all(|row| scaled.full_row(row).iter().all(|x| x.abs() <= most)));
            }
        }
        for data in both() {
            assert_eq!(
                scaling.apply_clamped(data.clone()).unwrap(),
                scaling.apply(data).unwrap()
            );
        }
        assert!(Scale::Spectral.fit(&dense(1, &[0.0])).is_err());
        assert!(Scale::Standard.fit(&dense(1, &[2.0])).is_err());
        assert!("auto".parse::<Scale>().is_err());
        assert_eq!("per-feature".parse::<Scale>().unwrap(), Scale::PerFeature);
        assert!(Scale::None.fit(&dense(1, &[2.0])).unwrap().is_identity());
    }
}
