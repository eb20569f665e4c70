//! `algorithm.downlink`: what the server sends back, out of words and into them.
//!
//! ```text
//! none                 the averaged message, every bit of it
//! sign                 one bit for each coordinate, and a size for every 512
//! natural, qsgd:16     powers of two; so many levels of a norm
//! rand-k:0.05          5% of the coordinates as they are, the same for all, new in every round
//! rand-k:0.25+sign     both: one bit for each of a quarter of the coordinates
//! ```

use soteriafl_core::compress::{CompressError, Downlink, DownlinkKind, Rounding};
use soteriafl_core::random::PublicSeed;
use toml::Value;

use super::automatic::share;
use super::document::{ConfigError, Document};
use super::resolve::{Resolved, StepSizeOrigin};

/// Levels of QSGD where none are given, as for clients.
const LEVELS: u32 = 16;

/// A compression of the way down as it was asked for, of a model of any size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DownlinkChoice {
    /// Which part of the coordinates travels in a round; `None`: all.
    pub coordinates: Option<Part>,
    /// How each of them is written.
    pub rounding: Rounding,
}

/// A part of the coordinates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Part {
    /// This share of them.
    Share(f64),
    /// So many.
    Count(usize),
}

impl DownlinkChoice {
    /// The choice for a model of this size.
    pub fn of(self, dimension: usize) -> DownlinkKind {
        DownlinkKind {
            coordinates: self.coordinates.map(|part| match part {
                Part::Share(fraction) => share(fraction, dimension),
                Part::Count(count) => count,
            }),
            rounding: self.rounding,
        }
    }
}

/// Reads the key.
///
/// # Errors
/// When it says nothing that can be sent.
pub(super) fn read(document: &Document) -> Result<Option<DownlinkChoice>, ConfigError> {
    let key = "algorithm.downlink";
    let whole = document.read(key, false, |value| Some(value.as_str() == Some("identity")))?;
    if whole {
        return Err(ConfigError::with_hint(
            "`algorithm.downlink = \"identity\"` would send every coordinate and round it on the way",
            "use algorithm.downlink = \"none\", which sends the averaged message as it is, in its shortest form",
        ));
    }
    document.read(key, None, |value| match value.as_str()? {
        "none" => Some(None),
        _ => parse(value).map(Some),
    })
}

fn parse(value: &Value) -> Option<DownlinkChoice> {
    let text = value.as_str()?;
    let (coordinates, rounding) = match text.split_once('+') {
        Some((part, rounding)) => (Some(part), Some(rounding)),
        None if text.starts_with("rand-k") => (Some(text), None),
        None => (None, Some(text)),
    };
    Some(DownlinkChoice {
        coordinates: match coordinates {
            Some(text) => Some(part(text.strip_prefix("rand-k:")?)?),
            None => None,
        },
        rounding: match rounding {
            Some(text) => self::rounding(text)?,
            None => Rounding::Exact,
        },
    })
}

/// A count, or a share of all where it has a point.
fn part(text: &str) -> Option<Part> {
    if let Ok(count) = text.parse::<usize>() {
        return (count > 0).then_some(Part::Count(count));
    }
    let share: f64 = text.parse().ok()?;
    (share > 0.0 && share <= 1.0).then_some(Part::Share(share))
}

fn rounding(text: &str) -> Option<Rounding> {
    match text.split_once(':') {
        None => match text {
            "sign" => Some(Rounding::Sign),
            "natural" => Some(Rounding::Natural),
            "qsgd" => Some(Rounding::Qsgd { levels: LEVELS }),
            _ => None,
        },
        Some(("qsgd", levels)) => {
            let levels = levels.parse().ok().filter(|levels| *levels > 0)?;
            Some(Rounding::Qsgd { levels })
        }
        Some(_) => None,
    }
}

/// How the key is written.
pub(super) fn word(kind: DownlinkKind) -> String {
    let rounding = match kind.rounding {
        Rounding::Exact => None,
        Rounding::Sign => Some("sign".to_string()),
        Rounding::Natural => Some("natural".to_string()),
        Rounding::Qsgd { levels } => Some(format!("qsgd:{levels}")),
    };
    let part = kind.coordinates.map(|count| format!("rand-k:{count}"));
    let both: Vec<String> = part.into_iter().chain(rounding).collect();
    both.join("+")
}

impl Resolved {
    /// One line on what the server sends, where that is compressed.
    pub fn downlink_text(&self, dimension: usize) -> Option<String> {
        let kind = self.downlink?;
        let values = match kind.rounding {
            Rounding::Exact => "values",
            Rounding::Qsgd { .. } => "qsgd levels",
            Rounding::Natural => "powers of two",
            Rounding::Sign => "signs",
        };
        Some(match kind.coordinates {
            None => format!("{values} of all coordinates"),
            Some(count) => format!(
                "{values} of {count} coordinates ({:.1}%), the same for all",
                100.0 * count as f64 / dimension as f64
            ),
        })
    }

    /// Refuses what a compressed way down does not go with.
    pub(super) fn check_downlink(&self, dimension: usize) -> Result<(), ConfigError> {
        let Some(kind) = self.downlink else {
            return Ok(());
        };
        Downlink::new(kind, dimension, PublicSeed(self.seed)).map_err(|error| {
            let hint = match error {
                CompressError::Count { .. } => "a share has a point: rand-k:0.05",
                _ => "see docs/configuration.md, \"The way down\"",
            };
            ConfigError::with_hint(format!("`algorithm.downlink`: {error}"), hint)
        })?;
        if self.step_size_origin == StepSizeOrigin::Theory {
            return Err(ConfigError::with_hint(
                "`algorithm.step_size = \"theory\"` rests on clients that have the server's model, \
                 and with `algorithm.downlink` they have one that follows it",
                "give a number for algorithm.step_size, or leave algorithm.downlink out",
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Option<DownlinkChoice> {
        let mut document = Document::default();
        document.set(&format!("algorithm.downlink={text}")).unwrap();
        read(&document).ok().flatten()
    }

    #[test]
    fn words_mean_one_thing_and_come_back() {
        let share = |share, rounding| DownlinkChoice {
            coordinates: Some(Part::Share(share)),
            rounding,
        };
        let all = |rounding| DownlinkChoice {
            coordinates: None,
            rounding,
        };
        assert_eq!(found("sign"), Some(all(Rounding::Sign)));
        assert_eq!(found("qsgd"), Some(all(Rounding::Qsgd { levels: 16 })));
        assert_eq!(found("natural"), Some(all(Rounding::Natural)));
        assert_eq!(found("rand-k:0.05"), Some(share(0.05, Rounding::Exact)));
        assert_eq!(found("rand-k:1.0+sign"), Some(share(1.0, Rounding::Sign)));
        for text in ["sign", "natural", "qsgd:7", "rand-k:12", "rand-k:12+qsgd:3"] {
            let kind = found(text).unwrap().of(100);
            assert_eq!(word(kind), text);
        }
        assert_eq!(
            word(found("rand-k:0.25+sign").unwrap().of(10)),
            "rand-k:2+sign"
        );
    }

    #[test]
    fn anything_else_is_refused() {
        for text in [
            "identity",
            "top-k:0.1",
            "rand-k",
            "rand-k:",
            "rand-k:0",
            "rand-k:0.0",
            "rand-k:1.5",
            "rand-k:-1",
            "rand-k:nan",
            "sign+rand-k:0.1",
            "rand-k:0.1+",
            "rand-k:0.1+sign+sign",
            "+sign",
            "qsgd:0",
            "qsgd:x",
            "sign:2",
            "",
            "0.05",
            "7",
        ] {
            let mut document = Document::default();
            document.set(&format!("algorithm.downlink={text}")).unwrap();
            assert!(read(&document).is_err(), "{text}");
        }
    }
}
