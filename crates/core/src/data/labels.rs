//! Labels: the class of each record, or a number.
//!
//! A number, the **target**, comes with a public range `[low, high]` that was agreed on before a
//! record was seen. Models are trained on `t = 2 (y - low)/(high - low) - 1`, cut off at -1 and 1:
//! the map depends on no record, so the claim about a record stands, and no record has a target of
//! more than 1 whatever it says. What lay beyond the range is kept beside it for metrics alone.

use std::sync::Arc;

use super::RecordsError;
use super::rows::LARGEST_VALUE;

/// What is true of every row.
#[derive(Clone, Debug, PartialEq)]
pub enum Labels {
    /// A class of `0..names.len()` each.
    Classes {
        /// The class of every row.
        of: Vec<u32>,
        /// What the classes are called.
        names: Arc<[String]>,
    },
    /// A number each.
    Targets(Targets),
}

impl Labels {
    /// How many rows there are.
    pub fn rows(&self) -> usize {
        match self {
            Labels::Classes { of, .. } => of.len(),
            Labels::Targets(targets) => targets.values.len(),
        }
    }

    /// Those of the given rows.
    ///
    /// # Panics
    /// If a row does not exist.
    pub fn select(&self, rows: &[u32]) -> Self {
        match self {
            Labels::Classes { of, names } => Labels::Classes {
                of: chosen(of, rows),
                names: Arc::clone(names),
            },
            Labels::Targets(targets) => Labels::Targets(Targets {
                range: targets.range,
                values: chosen(&targets.values, rows),
                original: chosen(&targets.original, rows),
            }),
        }
    }
}

fn chosen<T: Copy>(values: &[T], rows: &[u32]) -> Vec<T> {
    rows.iter().map(|&row| values[row as usize]).collect()
}

/// The public range of targets: two finite numbers, the first below the second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TargetRange {
    low: f64,
    high: f64,
}

impl TargetRange {
    /// The range from `low` to `high`.
    ///
    /// # Errors
    /// Unless both are finite, with the first clearly below the second.
    pub fn new(low: f64, high: f64) -> Result<Self, RecordsError> {
        let width = high - low;
        let most = f64::from(LARGEST_VALUE);
        let holds = width > 0.0 && width.is_normal() && low.abs() <= most && high.abs() <= most;
        if !holds || width <= 1e-9 * low.abs().max(high.abs()) {
            return Err(RecordsError::Choice {
                what: "target range",
                value: format!("[{low}, {high}]"),
                reason:
                    "expected two finite numbers up to 2^64, the first clearly below the second"
                        .to_owned(),
            });
        }
        Ok(TargetRange { low, high })
    }

    /// The smallest target.
    pub fn low(self) -> f64 {
        self.low
    }

    /// The largest target.
    pub fn high(self) -> f64 {
        self.high
    }

    /// The place of a target, -1 at the low end and 1 at the high end; beyond them it goes on.
    pub fn scale(self, target: f64) -> f64 {
        2.0 * (target - self.low) / (self.high - self.low) - 1.0
    }

    /// The target at a place.
    pub fn unscale(self, place: f64) -> f64 {
        self.low + (place + 1.0) / 2.0 * (self.high - self.low)
    }

    /// How much of the target's unit one unit of place is.
    pub fn unit(self) -> f64 {
        (self.high - self.low) / 2.0
    }
}

/// A number for every row, mapped to [-1, 1] by a public range.
#[derive(Clone, Debug, PartialEq)]
pub struct Targets {
    range: TargetRange,
    values: Vec<f32>,
    original: Vec<f64>,
}

impl Targets {
    /// Maps targets by their range.
    ///
    /// # Errors
    /// When one is no finite number up to 2^64.
    pub fn new(targets: &[f64], range: TargetRange) -> Result<Self, RecordsError> {
        let most = f64::from(LARGEST_VALUE);
        let acceptable = |target: &f64| target.is_finite() && target.abs() <= most;
        if let Some(row) = targets.iter().position(|target| !acceptable(target)) {
            return Err(RecordsError::Target {
                row,
                target: targets[row],
            });
        }
        let place = |&target: &f64| range.scale(target).clamp(-1.0, 1.0) as f32;
        Ok(Targets {
            range,
            values: targets.iter().map(place).collect(),
            original: targets.to_vec(),
        })
    }

    /// Every row's target as models are trained on it, in [-1, 1].
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// The targets as they came, for metrics and digests; models never see them.
    pub fn original(&self) -> &[f64] {
        &self.original
    }

    /// How many targets lie outside of the range, and were cut off.
    pub fn cut_off(&self) -> usize {
        let within = self.range.low..=self.range.high;
        let targets = self.original.iter();
        targets.filter(|target| !within.contains(target)).count()
    }

    /// The public range.
    pub fn range(&self) -> TargetRange {
        self.range
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_mapped_by_the_range_and_cut_off() {
        let range = TargetRange::new(10.0, 50.0).unwrap();
        let targets = Targets::new(&[10.0, 30.0, 45.0, 50.0, 130.0, -30.0], range).unwrap();
        assert_eq!(targets.values(), [-1.0, 0.0, 0.75, 1.0, 1.0, -1.0]);
        assert_eq!(targets.original()[4..], [130.0, -30.0]);
        assert_eq!((targets.cut_off(), range.unit()), (2, 20.0));
        assert_eq!(range.unscale(0.75), 45.0);
        let labels = Labels::Targets(targets);
        let Labels::Targets(part) = labels.select(&[4, 1]) else {
            panic!("targets stay targets");
        };
        assert_eq!(part.values(), [1.0, 0.0]);
        assert_eq!((part.original(), part.cut_off()), (&[130.0, 30.0][..], 1));
    }

    #[test]
    fn what_is_no_number_is_refused() {
        let range = TargetRange::new(0.0, 1.0).unwrap();
        for wrong in [f64::NAN, f64::INFINITY, 1e30] {
            let error = Targets::new(&[0.5, wrong], range).unwrap_err();
            assert!(error.to_string().starts_with("row 1: "), "{error}");
        }
        let infinite = f64::INFINITY;
        for (low, high) in [
            (1.0, 1.0),
            (2.0, 1.0),
            (f64::NAN, 1.0),
            (0.0, infinite),
            (1e12, 1e12 + 1.0),
        ] {
            assert!(TargetRange::new(low, high).is_err(), "{low} {high}");
        }
    }
}
