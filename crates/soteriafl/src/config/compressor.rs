//! What travels: the compressor with its parameters, as it is read, written and named.

use soteriafl_core::compress::{CompressorKind, CompressorName};

use super::automatic::share;
use super::document::ConfigError;
use super::read::{COORDINATES, name};
use super::resolve::{Resolved, Shape};
use super::write::{number, text};
use super::{Auto, Config, Preset};
use crate::words::readable;

/// What a key is ignored for, if it was given.
pub(super) type Ignored = (&'static [&'static str], String);

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
        let usual = CompressorKind::new(name, 1);
        Ok(match usual {
            kind if kind.count().is_some() => {
                CompressorKind::new(name, self.coordinates_sent(shape)?)
            }
            CompressorKind::Qsgd { .. } => CompressorKind::Qsgd {
                levels: self.levels,
            },
            CompressorKind::Grid { .. } => CompressorKind::Grid {
                step: self.grid_step,
                bits: self.grid_bits,
            },
            kind => kind,
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
}

impl Resolved {
    /// The lines of the compressor in the section `algorithm`.
    pub(super) fn compressor_lines(&self) -> Vec<(&'static str, String)> {
        let mut lines = vec![("compressor", text(self.compressor.name().word()))];
        lines.extend(self.compressor.count().map(|k| ("k", k.to_string())));
        match self.compressor {
            CompressorKind::RandK { .. } => {
                let coordinates = name(COORDINATES, self.shared_coordinates);
                lines.push(("coordinates", text(coordinates)));
            }
            CompressorKind::Qsgd { levels } => lines.push(("levels", levels.to_string())),
            CompressorKind::Grid { step, bits } => {
                lines.extend([("grid_step", number(step)), ("grid_bits", bits.to_string())])
            }
            CompressorKind::Identity | CompressorKind::Natural | CompressorKind::TopK { .. } => {}
        }
        lines
    }

    /// The keys of other compressors than this one.
    pub(super) fn ignored_by_compressor(&self) -> Vec<Ignored> {
        let compressor = self.compressor;
        let mut ignored: Vec<Ignored> = Vec::new();
        let mut only = |has: bool, keys: &'static [&'static str], owners: &str| {
            if !has {
                ignored.push((keys, format!("only {owners} it")));
            }
        };
        only(
            compressor.count().is_some(),
            &["algorithm.fraction", "algorithm.k"],
            "rand-k and top-k have",
        );
        only(
            matches!(compressor, CompressorKind::RandK { .. }),
            &["algorithm.coordinates"],
            "rand-k has",
        );
        only(
            matches!(compressor, CompressorKind::Grid { .. }),
            &["algorithm.grid_step", "algorithm.grid_bits"],
            "grid has",
        );
        only(
            matches!(compressor, CompressorKind::Qsgd { .. }),
            &["algorithm.levels"],
            "qsgd has",
        );
        ignored
    }
}

/// One line on what travels.
pub fn compressor_text(compressor: CompressorKind, dimension: usize) -> String {
    match compressor {
        CompressorKind::Identity => format!("all {dimension} coordinates"),
        CompressorKind::RandK { k } if k == dimension => format!("all {dimension} coordinates"),
        CompressorKind::RandK { k } => {
            format!(
                "random-k, {k} of {dimension} coordinates ({:.1}%)",
                100.0 * k as f64 / dimension as f64
            )
        }
        CompressorKind::Qsgd { levels } => format!("qsgd, {levels} levels"),
        CompressorKind::Grid { step, bits } => {
            format!("multiples of {} in {bits} bits", readable(step))
        }
        CompressorKind::TopK { k } => format!(
            "the {k} largest of {dimension} coordinates ({:.1}%)",
            100.0 * k as f64 / dimension as f64
        ),
        CompressorKind::Natural => "natural compression, 9 bits a coordinate".to_string(),
    }
}
