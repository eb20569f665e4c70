//! [`Dataset`]: rows with a class or a number each, their constant offset and their norms.
//!
//! The row `x_j` that models see is `row + offset`. Norms `|x_j|^2` are computed once, because
//! clipping needs them in every round: in `f64`, each row summed in the order of its columns, so
//! that they are the same on every machine. Label names and offset are shared between a set and the
//! parts selected from it: a hundred thousand clients with a few records each cost their records
//! and some 300 bytes.

use std::fmt;
use std::sync::Arc;

use super::identity::Identity;
use super::rows::is_acceptable;
use super::{DenseRows, Features, Labels, RecordsError, Targets};

/// Rows of features with classes or targets; rows stay as they came: dense or sparse.
#[derive(Clone, PartialEq)]
pub struct Dataset {
    features: Features,
    labels: Labels,
    feature_names: Option<Arc<[String]>>,
    offset: Option<Offset>,
    squared_norms: Vec<f64>,
    null_records: usize,
}

/// What is added to every row, with an identity for caches.
#[derive(Clone)]
struct Offset {
    identity: Identity,
    values: Arc<[f32]>,
}

impl Offset {
    fn new(values: Arc<[f32]>) -> Self {
        let identity = Identity::new();
        Offset { identity, values }
    }
}

impl PartialEq for Offset {
    fn eq(&self, other: &Self) -> bool {
        self.values == other.values
    }
}

impl Dataset {
    /// Rows with one class of `0..classes` each. The classes are called by their numbers until
    /// [`with_label_names`](Self::with_label_names) says better.
    pub fn new(
        features: Features,
        labels: Vec<u32>,
        classes: usize,
    ) -> Result<Dataset, RecordsError> {
        let names = (0..classes).map(|class| class.to_string()).collect();
        Self::labelled(features, Labels::Classes { of: labels, names })
    }

    /// Rows with what is true of them.
    ///
    /// # Errors
    /// When there are not as many labels as rows, or a class has no name.
    pub fn labelled(features: Features, labels: Labels) -> Result<Dataset, RecordsError> {
        let (rows, found) = (features.rows(), labels.rows());
        if found != rows {
            let (what, expected) = ("labels", rows);
            return Err(RecordsError::Shape {
                what,
                expected,
                found,
            });
        }
        if let Labels::Classes { of, names } = &labels {
            let classes = names.len();
            if let Some(row) = of.iter().position(|&label| label as usize >= classes) {
                let label = of[row];
                return Err(RecordsError::Label {
                    row,
                    classes,
                    label,
                });
            }
        }
        let squared_norms = squared_norms(&features, None);
        Ok(Dataset {
            features,
            labels,
            feature_names: None,
            offset: None,
            squared_norms,
            null_records: 0,
        })
    }

    /// The same with so many null records beside the rows: records whose gradient is zero at every
    /// model. Nothing is stored of them; they count in [`records`](Self::records) alone, so that
    /// sums are divided, and coins tossed, by a number that the rows do not decide
    /// (`docs/privacy.md`, persons).
    #[must_use]
    pub fn with_null_records(self, count: usize) -> Dataset {
        Dataset {
            null_records: count,
            ..self
        }
    }

    /// Says what the features are called in the source, in their order.
    pub fn with_feature_names(
        self,
        feature_names: impl Into<Arc<[String]>>,
    ) -> Result<Dataset, RecordsError> {
        let feature_names = feature_names.into();
        if feature_names.len() != self.columns() {
            return Err(RecordsError::Shape {
                what: "names of features",
                expected: self.columns(),
                found: feature_names.len(),
            });
        }
        Ok(Dataset {
            feature_names: Some(feature_names),
            ..self
        })
    }

    /// Gives the classes their names, in the order of their numbers.
    pub fn with_label_names(
        self,
        label_names: impl Into<Arc<[String]>>,
    ) -> Result<Dataset, RecordsError> {
        let names = label_names.into();
        if names.len() != self.classes() {
            let (expected, found) = (self.classes(), names.len());
            return Err(RecordsError::Shape {
                what: "names of classes",
                expected,
                found,
            });
        }
        let labels = match self.labels {
            Labels::Classes { of, .. } => Labels::Classes { of, names },
            targets @ Labels::Targets(_) => targets,
        };
        Ok(Dataset { labels, ..self })
    }

    /// Other features of the same records: what is true of them stays, names of features and the
    /// offset go.
    ///
    /// # Errors
    /// When there are not as many rows.
    pub fn with_features(&self, features: Features) -> Result<Dataset, RecordsError> {
        let made = Dataset::labelled(features, self.labels.clone())?;
        Ok(made.with_null_records(self.null_records))
    }

    /// Replaces the constant that is added to every row.
    ///
    /// Where it is far larger than a row with it (a centre far away), sums that add rows and offset
    /// apart would lose the row in rounding, and clipping would not hold: then rows become dense,
    /// offset included.
    pub fn with_offset(self, offset: impl Into<Arc<[f32]>>) -> Result<Dataset, RecordsError> {
        let offset = offset.into();
        if offset.len() != self.columns() {
            return Err(RecordsError::Shape {
                what: "offsets",
                expected: self.columns(),
                found: offset.len(),
            });
        }
        if let Some(value) = offset.iter().find(|value| !is_acceptable(**value)) {
            return Err(RecordsError::Choice {
                what: "offset",
                value: value.to_string(),
                reason: "expected finite numbers up to 2^64".to_owned(),
            });
        }
        let offset = offset.iter().any(|&value| value != 0.0).then_some(offset);
        let norms = squared_norms(&self.features, offset.as_deref());
        let offset = offset.map(Offset::new);
        if let (Features::Sparse(_), Some(offset)) = (&self.features, &offset)
            && dominates(&offset.values, &norms)
        {
            let offset = Some(offset.clone());
            return Dataset { offset, ..self }.dense();
        }
        Ok(Dataset {
            offset,
            squared_norms: norms,
            ..self
        })
    }

    /// The same rows, dense, with the offset in them, however they were stored before: equal
    /// records become equal to the bit, whatever lies beside them.
    ///
    /// # Errors
    /// When they would not fit in memory; it depends on the numbers of rows and columns alone.
    pub fn dense(self) -> Result<Dataset, RecordsError> {
        let zeros = vec![0.0; self.columns()];
        let offset = self.offset().map_or(&zeros[..], |offset| &offset[..]);
        let features = dense_with(&self.features, offset)?;
        let squared_norms = squared_norms(&features, None);
        Ok(Dataset {
            features,
            offset: None,
            squared_norms,
            ..self
        })
    }

    /// The number of rows.
    pub fn rows(&self) -> usize {
        self.labels.rows()
    }

    /// The public number of records `m`: rows and null records.
    pub fn records(&self) -> usize {
        self.rows() + self.null_records
    }

    /// The number of features, the intercept included once there is one.
    pub fn columns(&self) -> usize {
        self.features.columns()
    }

    /// The number of classes; none where records have targets.
    pub fn classes(&self) -> usize {
        self.label_names().len()
    }

    /// The rows without the offset.
    pub fn features(&self) -> &Features {
        &self.features
    }

    /// The class of every row; empty where records have targets.
    pub fn labels(&self) -> &[u32] {
        match &self.labels {
            Labels::Classes { of, .. } => of,
            Labels::Targets(_) => &[],
        }
    }

    /// The target of every row; `None` where records have classes.
    pub fn targets(&self) -> Option<&Targets> {
        match &self.labels {
            Labels::Classes { .. } => None,
            Labels::Targets(targets) => Some(targets),
        }
    }

    /// The target of every row as models are trained on it, in [-1, 1]; empty where records have
    /// classes.
    pub fn target_values(&self) -> &[f32] {
        self.targets().map_or(&[], Targets::values)
    }

    /// A constant added to every row (`x = row + offset`); keeps sparse rows sparse under
    /// standardisation. None when zero.
    pub fn offset(&self) -> Option<&Arc<[f32]>> {
        self.offset.as_ref().map(|offset| &offset.values)
    }

    /// Identifies the offset in caches.
    pub(crate) fn offset_identity(&self) -> Option<Identity> {
        self.offset.as_ref().map(|offset| offset.identity)
    }

    /// `|x_j|^2` of every row, offset included.
    pub fn squared_norms(&self) -> &[f64] {
        &self.squared_norms
    }

    /// What the classes are called in the source: "-1", "+1" for a9a; digits for MNIST.
    pub fn label_names(&self) -> &[String] {
        match &self.labels {
            Labels::Classes { names, .. } => names,
            Labels::Targets(_) => &[],
        }
    }

    /// What the features are called in the source, if it says so. A constant that is appended later
    /// has no name, and coefficients in another basis have none.
    pub fn feature_names(&self) -> Option<&[String]> {
        self.feature_names.as_deref()
    }

    /// Copies of the given rows, in the given order; the offset and the names are shared, null
    /// records stay behind.
    ///
    /// # Panics
    /// If a row does not exist.
    pub fn select(&self, rows: &[u32]) -> Dataset {
        Dataset {
            features: self.features.select(rows),
            labels: self.labels.select(rows),
            feature_names: self.feature_names.clone(),
            offset: self.offset.clone(),
            squared_norms: rows
                .iter()
                .map(|&row| self.squared_norms[row as usize])
                .collect(),
            null_records: 0,
        }
    }

    /// Appends one constant feature 1, the last coordinate. An offset does not move it.
    pub fn with_intercept(self) -> Dataset {
        let offset = self
            .offset
            .map(|offset| Offset::new(offset.values.iter().copied().chain([0.0]).collect()));
        let squared_norms = self
            .squared_norms
            .into_iter()
            .map(|norm| norm + 1.0)
            .collect();
        Dataset {
            features: self.features.with_ones(),
            offset,
            squared_norms,
            ..self
        }
    }

    /// The row as models see it, offset added in `f64`; for exports and checks, not for training.
    pub fn full_row(&self, row: usize) -> Vec<f64> {
        let mut full = match self.offset() {
            Some(offset) => offset.iter().map(|&value| f64::from(value)).collect(),
            None => vec![0.0; self.columns()],
        };
        self.features
            .visit_row(row, |column, value| full[column] += f64::from(value));
        full
    }

    /// Every coordinate `x` replaced by `(x - center[column]) * factor[column]`, computed in `f64`.
    ///
    /// Of dense rows every value is replaced. Sparse rows are only multiplied, and the rest becomes
    /// the offset: `(row + offset - center) * factor = row * factor + (offset - center) * factor`.
    ///
    /// With `most`, every value of rows and offset is limited to that magnitude.
    pub(super) fn affine(
        mut self,
        center: impl Fn(usize) -> f64,
        factor: impl Fn(usize) -> f64,
        most: Option<f32>,
    ) -> Result<Dataset, RecordsError> {
        let cut = |value: f64| match most {
            Some(most) => value.clamp(-f64::from(most), f64::from(most)) as f32,
            None => value as f32,
        };
        let offset = |column: usize| {
            self.offset()
                .map_or(0.0, |offset| f64::from(offset[column]))
        };
        let moved: Vec<f64> = (0..self.columns())
            .map(|column| offset(column) - center(column))
            .collect();
        let factors: Vec<f64> = (0..self.columns()).map(factor).collect();
        let sparse = matches!(self.features, Features::Sparse(_));
        let unit = unit_after(&self.features, &factors);
        self.features = self.features.map(|column, value| {
            let moved = if sparse { 0.0 } else { moved[column] };
            cut((f64::from(value) + moved) * factors[column])
        })?;
        if let (Features::Sparse(rows), Some(unit)) = (&mut self.features, unit) {
            rows.set_unit(unit);
        }
        let rest = moved
            .iter()
            .zip(&factors)
            .map(|(moved, factor)| if sparse { cut(moved * factor) } else { 0.0 });
        let rest: Vec<f32> = rest.collect();
        self.with_offset(rest)
    }
}

impl fmt::Debug for Dataset {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Dataset")
            .field("features", &self.features)
            .field("classes", &self.classes())
            .field("offset", &self.offset.is_some())
            .finish()
    }
}

/// The unit of the values after they were multiplied; `None` if columns have different factors, or
/// it is so large or small that values are limited.
fn unit_after(features: &Features, factors: &[f64]) -> Option<f32> {
    let Features::Sparse(rows) = features else {
        return None;
    };
    let factor = *factors.first()?;
    let unit = (f64::from(rows.unit()?) * factor) as f32;
    let ordinary = unit > 1e-30 && unit < 1e15;
    (ordinary && factors.iter().all(|&other| other == factor)).then_some(unit)
}

/// Whether the offset is longer than four times some row that it is part of.
fn dominates(offset: &[f32], squared_norms: &[f64]) -> bool {
    let length: f64 = offset.iter().map(|&value| f64::from(value).powi(2)).sum();
    squared_norms.iter().any(|&norm| length > 16.0 * norm)
}

/// Rows with the offset in them.
fn dense_with(features: &Features, offset: &[f32]) -> Result<Features, RecordsError> {
    const MOST: usize = 1 << 29;
    let (rows, columns) = (features.rows(), features.columns());
    let Some(len) = rows.checked_mul(columns).filter(|&len| len <= MOST) else {
        return Err(RecordsError::Choice {
            what: "center",
            value: format!("{rows} rows of {columns} features"),
            reason: "these rows have to be dense (with a centre, or as pictures under secure noise), and would not fit in memory".to_owned(),
        });
    };
    let mut values = Vec::with_capacity(len);
    for row in 0..rows {
        values.extend_from_slice(offset);
        let target = &mut values[row * columns..];
        features.visit_row(row, |column, value| {
            target[column] = (f64::from(value) + f64::from(offset[column])) as f32;
        });
    }
    Ok(Features::Dense(DenseRows::new(columns, values)?))
}

fn squared_norms(features: &Features, offset: Option<&[f32]>) -> Vec<f64> {
    (0..features.rows())
        .map(|row| match offset {
            Some(offset) => squared_norm_with_offset(features, row, offset),
            None => {
                let mut sum = 0.0;
                features.visit_row(row, |_, value| sum += f64::from(value) * f64::from(value));
                sum
            }
        })
        .collect()
}

/// With an offset every coordinate counts, stored or not: the gaps between stored values are
/// summed, too.
fn squared_norm_with_offset(features: &Features, row: usize, offset: &[f32]) -> f64 {
    let square_gap = |sum: f64, gap: &[f32]| {
        gap.iter()
            .fold(sum, |sum, &o| sum + f64::from(o) * f64::from(o))
    };
    let (mut sum, mut next) = (0.0, 0);
    features.visit_row(row, |column, value| {
        sum = square_gap(sum, &offset[next..column]);
        let shifted = f64::from(value) + f64::from(offset[column]);
        sum += shifted * shifted;
        next = column + 1;
    });
    square_gap(sum, &offset[next..])
}

#[cfg(test)]
mod tests {
    use super::super::{DenseRows, SparseRows};
    use super::*;

    fn dense() -> Dataset {
        let rows = DenseRows::new(3, vec![1.0, 0.0, 2.0, 0.0, 0.0, 0.0, 0.0, -3.0, 0.5]).unwrap();
        Dataset::new(Features::Dense(rows), vec![1, 0, 1], 2).unwrap()
    }

    fn sparse() -> Dataset {
        let rows = SparseRows::new(
            3,
            vec![0, 2, 2, 4],
            vec![0, 2, 1, 2],
            vec![1.0, 2.0, -3.0, 0.5],
        )
        .unwrap();
        Dataset::new(Features::Sparse(rows), vec![1, 0, 1], 2).unwrap()
    }

    fn norms_by_hand(data: &Dataset) -> Vec<f64> {
        (0..data.rows())
            .map(|row| data.full_row(row).iter().map(|x| x * x).sum())
            .collect()
    }

    #[test]
    fn norms_are_those_of_the_full_rows_under_every_operation() {
        for data in [dense(), sparse()] {
            assert_eq!(data.squared_norms(), [5.0, 0.0, 9.25]);
            let shifted = data.clone().with_offset(vec![0.5, -1.0, 0.25]).unwrap();
            assert_eq!(shifted.squared_norms(), norms_by_hand(&shifted));
            assert_eq!(shifted.squared_norms()[1], 0.25 + 1.0 + 0.0625);
            for changed in [
                shifted.clone().with_intercept(),
                shifted.select(&[2, 2, 0]),
                shifted.select(&[1]).with_intercept(),
                shifted.with_intercept().select(&[2, 0]),
            ] {
                assert_eq!(changed.squared_norms(), norms_by_hand(&changed));
            }
        }
    }

    #[test]
    fn dense_and_sparse_agree() {
        let (dense, sparse) = (dense().with_intercept(), sparse().with_intercept());
        assert_eq!((dense.columns(), sparse.columns()), (4, 4));
        for row in 0..3 {
            assert_eq!(dense.full_row(row), sparse.full_row(row));
            assert_eq!(dense.full_row(row)[3], 1.0);
        }
    }

    #[test]
    fn selection_shares_names_and_offset_and_keeps_labels() {
        let data = sparse()
            .with_label_names(vec!["-1".to_owned(), "+1".to_owned()])
            .and_then(|data| data.with_offset(vec![1.0, 0.0, 0.0]))
            .unwrap();
        let part = data.select(&[1, 0]);
        assert_eq!(part.labels(), [0, 1]);
        assert!(Arc::ptr_eq(part.offset().unwrap(), data.offset().unwrap()));
        assert!(std::ptr::eq(part.label_names(), data.label_names()));
        assert_eq!(part.classes(), 2);
        assert_eq!(data.select(&[]).rows(), 0);
        assert_eq!(
            data.clone().with_intercept().offset().unwrap().as_ref(),
            [1.0, 0.0, 0.0, 0.0]
        );
        assert!(data.with_offset(vec![0.0; 3]).unwrap().offset().is_none());
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let rows = || Features::Dense(DenseRows::new(1, vec![1.0, 2.0]).unwrap());
        assert!(matches!(
            Dataset::new(rows(), vec![0], 2),
            Err(RecordsError::Shape {
                expected: 2,
                found: 1,
                ..
            })
        ));
        assert!(matches!(
            Dataset::new(rows(), vec![0, 2], 2),
            Err(RecordsError::Label {
                row: 1,
                label: 2,
                ..
            })
        ));
        let data = Dataset::new(rows(), vec![0, 1], 2).unwrap();
        assert!(data.clone().with_offset(vec![1.0, 1.0]).is_err());
        assert!(data.clone().with_offset(vec![f32::NAN]).is_err());
        assert!(data.with_label_names(vec!["only".to_owned()]).is_err());
    }

    #[test]
    fn debug_prints_sizes_only() {
        assert_eq!(
            format!("{:?}", sparse()),
            "Dataset { features: SparseRows(3 x 3, 4 stored), classes: 2, offset: false }"
        );
    }
}
