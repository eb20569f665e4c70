//! What a run is called: in the terminal, in `summary.json`, in the name of its directory and in
//! its report.
//!
//! The names are those of the table of presets, so that whoever reads one finds it there.

use soteriafl_accountant::Recursion;
use soteriafl_core::compress::CompressorKind;
use soteriafl_core::data::FeatureKind;

use super::compressor::compressor_text;
use super::resolve::Resolved;
use super::table::PRESETS;
use super::{EstimatorKind, NoiseTarget, Output, Preset, ShiftChoice};

impl Resolved {
    /// What runs, by a name of the table of presets: that of the row whose slots it fills; where
    /// there is none, `auto` if they are what the system chooses, else `custom`.
    pub fn algorithm(&self) -> String {
        let named = self.row();
        if PRESETS.iter().any(|(known, _)| *known == named) {
            return named;
        }
        // Without a shift the system chooses only full gradients: on coordinates that all clients
        // share, or whole ones, without noise or of linear models on records of length one.
        let shared =
            self.shared_coordinates && matches!(self.compressor, CompressorKind::RandK { .. });
        let whole = self.compressor == CompressorKind::Identity;
        let plain = whole && self.noise_target == NoiseTarget::None;
        let linear = whole && self.feature_map != FeatureKind::None;
        let chosen = self.preset == Preset::Auto
            && self.estimator == EstimatorKind::Gd
            && (shared || plain || linear);
        if chosen { "auto" } else { "custom" }.to_string()
    }

    /// The same for people, who want to know what is behind a name that does not tell: `auto (gd,
    /// all 7114 coordinates)`.
    pub fn algorithm_text(&self, dimension: usize) -> String {
        let name = self.algorithm();
        if name == self.row() {
            return name;
        }
        // Every row with a shift is in the table, so that there is none here.
        let travels = compressor_text(self.compressor, dimension);
        format!("{name} ({}, {travels})", self.estimator.word())
    }

    /// What the system chose, in short: `auto (soteriafl-gd)`, or `auto (gd)` where the table has
    /// no row for it.
    pub fn chosen(&self) -> String {
        match self.algorithm().as_str() {
            "auto" => format!("auto ({})", self.estimator.word()),
            named => format!("auto ({named})"),
        }
    }

    /// Family and estimator, whether or not the table has them.
    fn row(&self) -> String {
        let estimator = self.estimator.word();
        let compressed = self.compressor != CompressorKind::Identity;
        let shifted = matches!(self.shift, ShiftChoice::Step(_));
        if self.output == Output::Random && self.batch == Some(1.0) && self.clients == 1 {
            return "rrpsgd".to_string();
        }
        if self.gossip.is_some() {
            return self.preset.word().to_string();
        }
        if let Some(recursion) = &self.recursion {
            return self.recursive_row(recursion).to_string();
        }
        let family = match (compressed, shifted, self.clients) {
            (_, true, _) => "soteriafl",
            (true, false, _) => "cdp",
            (false, false, 1) => "dp",
            (false, false, _) => "ldp",
        };
        format!("{family}-{estimator}")
    }

    /// The row of a recursion, or the estimator's name where the table has none.
    fn recursive_row(&self, recursion: &Recursion) -> &'static str {
        let whole = self.compressor == CompressorKind::Identity;
        match (recursion.keep, recursion.period, self.clients) {
            _ if !whole => "recursive",
            (_, None, _) if self.trusted_aggregation => "distributed-dp-srm",
            _ if self.trusted_aggregation => "recursive",
            (1.0, Some(_), _) if self.preset == Preset::Diff2 => "diff2",
            (1.0, Some(_), 2..) => "ldp-spider",
            (0.0 | 1.0, ..) => "recursive",
            (_, None, 1) => "dp-srm",
            (_, None, _) => "ldp-srm",
            _ => "recursive",
        }
    }
}
