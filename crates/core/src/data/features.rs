//! Public features: maps of records that are fixed before any record is seen.
//!
//! A map stands between the data, as it was read and scaled, and the model, which sees nothing
//! else. There are
//!
//! | name | a record `x` becomes | numbers |
//! | --- | --- | --- |
//! | `none` | `x` | `d` |
//! | `unit` | `(x, 1/2)` divided by its length | `d + 1` |
//! | `roots` | `(x, r(x), 1/2)` divided by its length | `2d + 1` |
//! | `fourier:D` | `D/2` random waves, cosine and sine, of what `unit` makes of it | `D` |
//! | `scattering` | the strengths of an image's oriented waves, and of the waves in those | `81 floor(s/4)^2`, `s = sqrt(d)` |
//!
//! with `r(x) = 2 sqrt((1 + x)/2) - sqrt(2) - (2 - sqrt(2)) x` of each feature, cut off at -1 and 1
//! before: what the square root of a range from -1 says beyond the line through its values at 0 and
//! 1.
//!
//! **Why unit length.** The gradient of a logistic or softmax loss is the record times an error of
//! bounded length, so that with `|x| = 1` one bound holds for all records, and a clip can be chosen
//! from it without looking at any. The constant `1/2` is the intercept, and keeps a record of zeros
//! from being divided by nothing.
//!
//! **Why roots.** Counts, amounts and frequencies crowd at the low end of their public range, where
//! the root spreads them; a linear model then tells little from nothing. For indicators (0 and 1)
//! `r` is zero, so that they cost nothing, and rows that are sparse stay so.
//!
//! **Guarantee.** What a record becomes depends on that record alone, to the bit: not on its place,
//! on threads, nor on who lies beside it. What is random in a map comes from a seed that is always
//! the same. So neighbouring data sets stay neighbouring, and a map costs no privacy. Rows that are
//! sparse stay so under `unit` and `roots` and rows that are dense stay dense, unless a constant is
//! added to all rows: that is written into them first. The other maps make dense rows. No
//! acceptable record makes a map fail.
//!
//! **Cost.** One pass over the records. **Place in the paper:** none.

mod fourier;
mod scattering;
mod unit;

use std::fmt;
use std::str::FromStr;

use super::{Dataset, DenseRows, Features, RecordsError};
use fourier::Waves;
use scattering::Scattering;
use unit::Roots;

/// Rows that a map may compute side by side.
const TOGETHER: usize = 8;

/// The most numbers that mapped records may have: eight gigabytes.
const MOST_VALUES: usize = 1 << 31;

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
    /// So many random Fourier features, an even number.
    Fourier(usize),
    /// Scattering coefficients of square images.
    Scattering,
}

impl FeatureKind {
    /// What can be written, for messages.
    pub const EXPECTED: &'static str =
        "\"none\", \"unit\", \"roots\", \"fourier:D\" or \"scattering\"";
}

impl fmt::Display for FeatureKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FeatureKind::None => formatter.write_str("none"),
            FeatureKind::Unit => formatter.write_str("unit"),
            FeatureKind::Roots => formatter.write_str("roots"),
            FeatureKind::Fourier(count) => write!(formatter, "fourier:{count}"),
            FeatureKind::Scattering => formatter.write_str("scattering"),
        }
    }
}

impl FromStr for FeatureKind {
    type Err = RecordsError;

    fn from_str(text: &str) -> Result<Self, RecordsError> {
        let count = text.strip_prefix("fourier:");
        match (text, count.and_then(|count| count.parse().ok())) {
            ("none", _) => Ok(FeatureKind::None),
            ("unit", _) => Ok(FeatureKind::Unit),
            ("roots", _) => Ok(FeatureKind::Roots),
            ("scattering", _) => Ok(FeatureKind::Scattering),
            (_, Some(count)) => Ok(FeatureKind::Fourier(count)),
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
        match kind {
            FeatureKind::None | FeatureKind::Unit | FeatureKind::Roots => {}
            FeatureKind::Fourier(count) => fourier::check(inputs, count)?,
            FeatureKind::Scattering => Scattering::check(inputs)?,
        }
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
            FeatureKind::Fourier(count) => count,
            FeatureKind::Scattering => Scattering::outputs(self.inputs),
        }
    }

    /// Every record mapped; labels and their names stay.
    ///
    /// # Errors
    /// When records do not have as many features as the map reads, or do not fit in memory.
    pub fn apply(&self, data: Dataset) -> Result<Dataset, RecordsError> {
        self.apply_by(data, 1)
    }

    /// The same by so many threads, which change no bit.
    ///
    /// # Errors
    /// As [`apply`](Self::apply).
    pub fn apply_by(&self, data: Dataset, threads: usize) -> Result<Dataset, RecordsError> {
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
            FeatureKind::Fourier(count) => {
                let waves = Waves::new(self.inputs, count)?;
                self.dense(data, threads, |data, first, values| {
                    waves.rows(data, first, values)
                })
            }
            FeatureKind::Scattering => {
                let scattering = Scattering::of(self.inputs)?;
                self.dense(data, threads, |data, first, values| {
                    scattering.rows(data, first, values);
                })
            }
        }
    }

    /// Dense rows from a function that fills in those from a first one on, in as many parts as
    /// there are threads; parts start at multiples of [`TOGETHER`].
    fn dense(
        &self,
        data: Dataset,
        threads: usize,
        fill: impl Fn(&Dataset, usize, &mut [f32]) + Sync,
    ) -> Result<Dataset, RecordsError> {
        let (rows, columns) = (data.rows(), self.outputs());
        let mut values = self.room_for(rows, columns)?;
        let each = rows
            .div_ceil(threads.max(1))
            .next_multiple_of(TOGETHER)
            .max(TOGETHER);
        std::thread::scope(|scope| {
            for (part, values) in values.chunks_mut(each * columns).enumerate() {
                let (data, fill) = (&data, &fill);
                scope.spawn(move || fill(data, part * each, values));
            }
        });
        let features = Features::Dense(DenseRows::new(columns, values)?);
        data.with_features(features)
    }

    /// Zeros for so many rows.
    fn room_for(&self, rows: usize, columns: usize) -> Result<Vec<f32>, RecordsError> {
        let mut values = Vec::new();
        let room = rows
            .checked_mul(columns)
            .filter(|&room| room <= MOST_VALUES);
        if room.is_none_or(|room| values.try_reserve_exact(room).is_err()) {
            return Err(RecordsError::Choice {
                what: "features",
                value: self.kind.to_string(),
                reason: format!("{rows} rows of {columns} numbers would not fit in memory"),
            });
        }
        values.resize(rows * columns, 0.0);
        Ok(values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back_and_others_are_refused() {
        for name in ["none", "unit", "roots", "fourier:200", "scattering"] {
            assert_eq!(name.parse::<FeatureKind>().unwrap().to_string(), name);
        }
        for wrong in [
            "",
            "Unit",
            "unit:3",
            "pixels",
            "fourier",
            "fourier:-2",
            "fourier:x",
        ] {
            let error = wrong.parse::<FeatureKind>().unwrap_err();
            assert!(error.to_string().contains("unit"), "{error}");
        }
    }
}
