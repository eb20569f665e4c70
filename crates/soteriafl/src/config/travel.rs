//! What travels, and of how many records: compressor and batch.

use soteriafl_core::compress::CompressorKind;
use soteriafl_core::theory;

use super::automatic::share;
use super::document::ConfigError;
use super::resolve::Shape;
use super::{Auto, CompressorName, Config, EstimatorKind, Preset};
use crate::words::counted;

impl Config {
    /// The compressor with its parameter.
    ///
    /// # Errors
    /// When both forms of its parameter are given.
    pub(super) fn compressor_kind(&self, shape: &Shape) -> Result<CompressorKind, ConfigError> {
        let name = self.compressor.or(match self.preset {
            _ if self.plain(shape) || self.number_rule(shape) => CompressorName::Identity,
            Preset::Auto if self.sends_whole(shape) => CompressorName::Identity,
            Preset::Auto | Preset::Soteria(_) | Preset::CdpSgd | Preset::SdmDsgd => {
                CompressorName::RandK
            }
            Preset::QDpsgd1 => CompressorName::Grid,
            Preset::Porter => CompressorName::TopK,
            _ => CompressorName::Identity,
        });
        Ok(match name {
            CompressorName::Identity => CompressorKind::Identity,
            CompressorName::Qsgd => CompressorKind::Qsgd {
                levels: self.levels,
            },
            CompressorName::Natural => CompressorKind::Natural,
            CompressorName::Grid => CompressorKind::Grid {
                step: self.grid_step,
                bits: self.grid_bits,
            },
            CompressorName::RandK | CompressorName::TopK => {
                let k = self.coordinates_sent(shape)?;
                match name {
                    CompressorName::TopK => CompressorKind::TopK { k },
                    _ => CompressorKind::RandK { k },
                }
            }
        })
    }

    /// How many coordinates travel.
    fn coordinates_sent(&self, shape: &Shape) -> Result<usize, ConfigError> {
        Ok(match (self.k, self.fraction) {
            (Auto::Given(_), Auto::Given(_)) => {
                return Err(ConfigError::with_hint(
                    "`algorithm.k` and `algorithm.fraction` are both given",
                    "leave one of them out",
                ));
            }
            (Auto::Given(k), Auto::Auto) => k,
            (Auto::Auto, Auto::Given(fraction)) => share(fraction, shape.dimension),
            (Auto::Auto, Auto::Auto) => self.message_size(shape),
        })
    }

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
