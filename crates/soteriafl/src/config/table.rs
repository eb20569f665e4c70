//! The presets: their words, their estimators, and which of them are rows of the paper's Table 1.
//!
//! Both lists follow the list of presets, so that a new one is in the table unless it is named
//! here.

use super::{EstimatorKind, Preset};

/// Algorithms that are newer than the table, or that it leaves out.
const SUCCESSORS: [&str; 4] = ["ldp-srm", "diff2", "porter", "soteriafl-sag"];

/// The program's own choice, and the plain method whose variance-reduced form is the table's row.
const NEITHER: [&str; 2] = ["auto", "ldp-sgd"];

/// The rows' words in configurations.
pub(super) const PRESETS: &[(&str, Preset)] = &[
    ("auto", Preset::Auto),
    ("soteriafl-gd", Preset::Soteria(EstimatorKind::Gd)),
    ("soteriafl-sgd", Preset::Soteria(EstimatorKind::Sgd)),
    ("soteriafl-svrg", Preset::Soteria(EstimatorKind::Svrg)),
    ("soteriafl-saga", Preset::Soteria(EstimatorKind::Saga)),
    ("soteriafl-sag", Preset::Soteria(EstimatorKind::Sag)),
    ("cdp-sgd", Preset::CdpSgd),
    ("ldp-sgd", Preset::Ldp(EstimatorKind::Sgd)),
    ("ldp-svrg", Preset::Ldp(EstimatorKind::Svrg)),
    ("ldp-srm", Preset::LdpSrm),
    ("distributed-dp-srm", Preset::DistributedDpSrm),
    ("ldp-spider", Preset::LdpSpider),
    ("diff2", Preset::Diff2),
    ("sdm-dsgd", Preset::SdmDsgd),
    ("q-dpsgd-1", Preset::QDpsgd1),
    ("porter", Preset::Porter),
    ("dp-gd", Preset::Dp(EstimatorKind::Gd)),
    ("dp-sgd", Preset::Dp(EstimatorKind::Sgd)),
    ("dp-srm", Preset::DpSrm),
    ("rrpsgd", Preset::Rrpsgd),
];

impl Preset {
    /// The word for it in configurations.
    pub fn word(self) -> &'static str {
        let row = PRESETS.iter().find(|(_, preset)| *preset == self);
        row.map_or("", |(word, _)| word)
    }

    /// The estimator of its row.
    pub(super) fn estimator(self) -> EstimatorKind {
        match self {
            Preset::Auto => EstimatorKind::Gd,
            Preset::Soteria(estimator) | Preset::Ldp(estimator) | Preset::Dp(estimator) => {
                estimator
            }
            Preset::CdpSgd
            | Preset::Rrpsgd
            | Preset::SdmDsgd
            | Preset::QDpsgd1
            | Preset::Porter => EstimatorKind::Sgd,
            Preset::DpSrm
            | Preset::LdpSrm
            | Preset::DistributedDpSrm
            | Preset::LdpSpider
            | Preset::Diff2 => EstimatorKind::Recursive,
        }
    }

    /// The presets that are rows of Table 1 (NeurIPS 2022), in the order in which presets are
    /// listed.
    pub fn table_1() -> impl Iterator<Item = &'static str> {
        let other = |name: &&str| !SUCCESSORS.contains(name) && !NEITHER.contains(name);
        PRESETS.iter().map(|(name, _)| *name).filter(other)
    }

    /// The presets that came after the table, or that it leaves out.
    pub fn successors() -> impl Iterator<Item = &'static str> {
        let names = PRESETS.iter().map(|(name, _)| *name);
        names.filter(|name| SUCCESSORS.contains(name))
    }

    /// Whether it is about one node that holds all records.
    pub fn has_one_node(self) -> bool {
        matches!(self, Preset::Dp(_) | Preset::Rrpsgd | Preset::DpSrm)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_has_its_place() {
        let (table, newer): (Vec<_>, Vec<_>) =
            (Preset::table_1().collect(), Preset::successors().collect());
        assert_eq!(table.len() + newer.len() + NEITHER.len(), PRESETS.len());
        for row in [
            "rrpsgd",
            "dp-gd",
            "dp-srm",
            "distributed-dp-srm",
            "ldp-spider",
            "cdp-sgd",
        ] {
            assert!(table.contains(&row), "{row}");
        }
        assert!(newer.contains(&"diff2") && newer.contains(&"soteriafl-sag"));
    }
}
