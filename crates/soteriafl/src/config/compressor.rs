//! What travels: the compressor with its parameters, as it is read, written and named.

use soteriafl_core::compress::{CompressError, Compressor, CompressorKind, CompressorName};

use super::automatic::share;
use super::document::ConfigError;
use super::resolve::{Resolved, Shape};
use super::values::{COORDINATES, name};
use super::write::{number, text};
use super::{Auto, Config, Preset};
use crate::words::readable;

impl Config {
    /// The compressor for this shape, if there is such a one.
    ///
    /// # Errors
    /// When a parameter is out of range, or gradients cannot be compressed so.
    pub(super) fn checked_compressor(&self, shape: &Shape) -> Result<Compressor, ConfigError> {
        let kind = self.compressor_kind(shape)?;
        let checked = Compressor::new(kind, shape.dimension, self.participation);
        let checked = checked.map_err(|error| {
            let key = match error {
                CompressError::Count { .. } => "algorithm.k",
                CompressError::Grid { .. } => "algorithm.grid_step",
                CompressError::Levels(_) => "algorithm.levels",
                CompressError::Participation(_) => "algorithm.participation",
                _ => "algorithm.compressor",
            };
            ConfigError::conflict(format!("`{key}`: {error}"))
        })?;
        if !checked.is_unbiased() && self.preset.transport().is_none() {
            return Err(ConfigError::with_hint(
                "`algorithm.compressor = \"grid\"` rounds whole models: its error does not shrink with what is sent, and the theory of compressed gradients needs one that does",
                "use rand-k, qsgd or natural; the preset q-dpsgd-1 has grid",
            ));
        }
        Ok(checked)
    }

    /// The compressor with its parameter.
    ///
    /// # Errors
    /// When both forms of its parameter are given.
    fn compressor_kind(&self, shape: &Shape) -> Result<CompressorKind, ConfigError> {
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
