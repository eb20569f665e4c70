//! How many records a gradient estimate is computed from.

use soteriafl_core::theory;

use super::document::ConfigError;
use super::{Config, EstimatorKind, Preset};
use crate::words::counted;

impl Config {
    /// The expected batch; `None`: all records.
    ///
    /// # Errors
    /// When the smallest client has fewer, or the estimator does not go with it.
    pub(super) fn batch_size(
        &self,
        estimator: EstimatorKind,
        problem: &theory::Problem,
        smallest: usize,
    ) -> Result<Option<f64>, ConfigError> {
        if estimator == EstimatorKind::Gd {
            return Ok(None);
        }
        let batch = self.batch.or_else(|| match self.preset {
            Preset::Rrpsgd => Some(1.0),
            Preset::LdpSpider | Preset::Diff2 => None,
            _ => Some(problem.batch(estimator).floor().clamp(1.0, smallest as f64)),
        });
        let Some(batch) = batch else {
            return match estimator {
                EstimatorKind::Recursive => Ok(None),
                _ => Err(ConfigError::with_hint(
                    format!("`algorithm.batch = \"all\"` does not go with {estimator}"),
                    "use the estimator gd, or recursive, or give a number",
                )),
            };
        };
        if batch > smallest as f64 {
            return Err(ConfigError::with_hint(
                format!(
                    "`algorithm.batch` is {batch}, but the smallest client has {}",
                    counted(smallest, "record")
                ),
                format!("use a batch of at most {smallest}, or the estimator gd"),
            ));
        }
        if self.with_replacement && batch.fract() != 0.0 {
            return Err(ConfigError::conflict(
                "`privacy.sampling = \"with-replacement\"` needs a whole number as batch",
            ));
        }
        Ok(Some(batch))
    }
}
