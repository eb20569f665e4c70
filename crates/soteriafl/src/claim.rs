//! What is claimed for the messages of a run, or why nothing is.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Whether the messages of a run are proved to be private.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", from = "String")]
pub enum Claim {
    /// They are: an epsilon, a delta and an adjacency stand beside this.
    Proved,
    /// Nothing is claimed.
    Withheld(Reason),
}

impl Claim {
    /// Whether there is one.
    pub fn is_proved(&self) -> bool {
        *self == Claim::Proved
    }
}

/// What every claim presumes about the model that a run starts from.
pub const START_IS_PUBLIC: &str = "the start counts as public: a start that was computed from the \
records, as by training on them, ends the claim";

/// Why nothing is claimed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// There is no noise.
    NoNoise,
    /// The paper's formula set the noise.
    PaperCalibration,
    /// Whole estimates are clipped, so one record is not bounded.
    WholeEstimates,
    /// Batches are drawn with replacement.
    WithReplacement,
    /// Features are scaled by constants computed from the records.
    DataDependentScaling,
    /// The ranges of the table's schema were read from the records.
    RangesFromRecords,
    /// The step size was computed from the records.
    DataDependentStepSize,
    /// The step size was chosen by what it did on the records.
    TunedStepSize,
    /// No accountant gives a bound for so little noise.
    TooLittleNoise,
    /// Clients share the noise of one, which hides their average and hardly any single message.
    TrustedAggregation,
    /// Whoever knows the seed knows the noise.
    TestSeed,
    /// A reason that another version of the program gave.
    Other(String),
}

/// The words of every reason but the last.
const WORDS: [(Reason, &str); 11] = [
    (Reason::NoNoise, "no noise"),
    (Reason::PaperCalibration, "paper calibration"),
    (
        Reason::WholeEstimates,
        "whole estimates are clipped, not records",
    ),
    (Reason::WithReplacement, "sampling with replacement"),
    (Reason::DataDependentScaling, "data-dependent scaling"),
    (
        Reason::RangesFromRecords,
        "the schema's ranges were read from records",
    ),
    (Reason::DataDependentStepSize, "data-dependent step size"),
    (Reason::TunedStepSize, "step size tuned on the records"),
    (
        Reason::TooLittleNoise,
        "too little noise for any accountant",
    ),
    (
        Reason::TrustedAggregation,
        "trusted aggregation: only averages are seen",
    ),
    (Reason::TestSeed, "test seed"),
];

impl Reason {
    /// The words of every reason that this version gives.
    #[cfg(test)]
    pub(crate) fn words() -> impl Iterator<Item = &'static str> {
        WORDS.iter().map(|(_, words)| *words)
    }
}

const PROVED: &str = "proved";

impl fmt::Display for Reason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = match self {
            Reason::Other(words) => words,
            known => WORDS
                .iter()
                .find(|(reason, _)| reason == known)
                .map_or("", |(_, words)| words),
        };
        formatter.pad(words)
    }
}

impl fmt::Display for Claim {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Claim::Proved => formatter.pad(PROVED),
            Claim::Withheld(reason) => reason.fmt(formatter),
        }
    }
}

impl FromStr for Claim {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(if text == PROVED {
            Claim::Proved
        } else {
            let known = WORDS.iter().find(|(_, words)| *words == text);
            Claim::Withheld(known.map_or_else(
                || Reason::Other(text.to_string()),
                |(reason, _)| reason.clone(),
            ))
        })
    }
}

impl From<Claim> for String {
    fn from(claim: Claim) -> String {
        claim.to_string()
    }
}

impl From<String> for Claim {
    fn from(text: String) -> Claim {
        let Ok(claim) = text.parse();
        claim
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_lead_back() {
        let reasons = WORDS.map(|(reason, _)| Claim::Withheld(reason));
        let other = Claim::Withheld(Reason::Other("a reason of later".to_string()));
        for claim in reasons.into_iter().chain([Claim::Proved, other]) {
            let text = serde_json::to_string(&claim).unwrap();
            assert_eq!(text, format!("\"{claim}\""));
            assert_eq!(serde_json::from_str::<Claim>(&text).unwrap(), claim);
            assert_eq!(claim.is_proved(), claim == Claim::Proved);
        }
    }
}
