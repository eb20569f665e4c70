//! Public features: maps of records that are fixed before any record is seen.
//!
//! A map stands between the data, as it was read and scaled, and the model, which sees nothing else. There are
//!
//! | name | a record `x` becomes | numbers |
//! | --- | --- | --- |
//! | `none` | `x` | `d` |
//! | `unit` | `(x, 1/2)` divided by its length | `d + 1` |
//! | `roots` | `(x, r(x), 1/2)` divided by its length | `2d + 1` |
//!
//! with `r(x) = 2 sqrt((1 + x)/2) - sqrt(2) - (2 - sqrt(2)) x` of each feature, cut off at -1 and 1 before: what the
//! square root of a range from -1 says beyond the line through its values at 0 and 1.
//!
//! **Why unit length.** The gradient of a logistic or softmax loss is the record times an error of bounded length, so
//! that with `|x| = 1` one bound holds for all records, and a clip can be chosen from it without looking at any. The
//! constant `1/2` is the intercept, and keeps a record of zeros from being divided by nothing.
//!
//! **Why roots.** Counts, amounts and frequencies crowd at the low end of their public range, where the root spreads
//! them; a linear model then tells little from nothing. For indicators (0 and 1) `r` is zero, so that they cost nothing,
//! and rows that are sparse stay so.
//!
//! **Guarantee.** What a record becomes depends on that record alone, to the bit: not on its place, on threads, nor on
//! who lies beside it. So neighbouring data sets stay neighbouring, and a map costs no privacy. Rows that are sparse stay
//! so under `unit` and rows that are dense stay dense, unless a constant is added to all rows: that is written into them
//! first. No acceptable record makes a map fail.
//!
//! **Cost.** One pass over the records. **Place in the paper:** none.

mod unit;

use std::fmt;
use std::str::FromStr;

use super::{Dataset, RecordsError};
use unit::Roots;

/// Which public map is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum FeatureKind {
    /// Records as they are.
    #[default]
    None,
    /// A constant appended, then unit length.
    Unit,
    /// Every feature's root and a constant appended, then unit length.
    Roots,
}

impl FeatureKind {
    /// What can be written, for messages.
    pub const EXPECTED: &'static str = "\"none\", \"unit\" or \"roots\"";
}

impl fmt::Display for FeatureKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FeatureKind::None => formatter.write_str("none"),
            FeatureKind::Unit => formatter.write_str("unit"),
            FeatureKind::Roots => formatter.write_str("roots"),
        }
    }
}

impl FromStr for FeatureKind {
    type Err = RecordsError;

    fn from_str(text: &str) -> Result<Self, RecordsError> {
        match text {
            "none" => Ok(FeatureKind::None),
            "unit" => Ok(FeatureKind::Unit),
            "roots" => Ok(FeatureKind::Roots),
            _ => Err(RecordsError::Choice {
                what: "features",
                value: text.to_owned(),
                reason: format!("expected {}", FeatureKind::EXPECTED),
            }),
        }
    }
}

/// A public map for records with a known number of features.
#[derive(Clone, Debug, PartialEq)]
pub struct FeatureMap {
    kind: FeatureKind,
    inputs: usize,
}

impl FeatureMap {
    /// The map of this kind for records of `inputs` features.
    ///
    /// # Errors
    /// When the kind does not fit such records.
    pub fn new(kind: FeatureKind, inputs: usize) -> Result<FeatureMap, RecordsError> {
        Ok(FeatureMap { kind, inputs })
    }

    /// Which map it is.
    pub fn kind(&self) -> FeatureKind {
        self.kind
    }

    /// Features of a record before.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Features of a record after.
    pub fn outputs(&self) -> usize {
        match self.kind {
            FeatureKind::None => self.inputs,
            FeatureKind::Unit => self.inputs + 1,
            FeatureKind::Roots => 2 * self.inputs + 1,
        }
    }

    /// Whether every record has length one afterwards.
    pub fn is_unit(&self) -> bool {
        self.kind != FeatureKind::None
    }

    /// Every record mapped; labels and their names stay.
    ///
    /// # Errors
    /// When records do not have as many features as the map reads.
    pub fn apply(&self, data: Dataset) -> Result<Dataset, RecordsError> {
        if data.columns() != self.inputs {
            return Err(RecordsError::Shape {
                what: "features",
                expected: self.inputs,
                found: data.columns(),
            });
        }
        match self.kind {
            FeatureKind::None => Ok(data),
            FeatureKind::Unit => unit::apply(data, Roots::Without),
            FeatureKind::Roots => unit::apply(data, Roots::With),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back_and_others_are_refused() {
        for name in ["none", "unit", "roots"] {
            assert_eq!(name.parse::<FeatureKind>().unwrap().to_string(), name);
        }
        for wrong in ["", "Unit", "unit:3", "pixels"] {
            let error = wrong.parse::<FeatureKind>().unwrap_err();
            assert!(error.to_string().contains("unit"), "{error}");
        }
    }
}
