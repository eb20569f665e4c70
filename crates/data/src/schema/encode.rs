//! One column's fields made features: the record-wise map of the module, field by field.
//!
//! An encoder is a function of its column alone. It writes all features of a field, of which a
//! number makes one or two, a category one for each value, and never looks at another field. Costs:
//! reading a number; of a category with more than a few values, one lookup in a table.

use std::borrow::Cow;
use std::collections::HashMap;

use soteriafl_core::ranges::{GAP, LARGEST};

use super::super::faults::Kind;
use super::super::reader::quote;
use super::{ColumnKind, Date, Numbers, Treatment};

/// What stands in a field.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Cell<'a> {
    /// Text, without the blanks around it.
    Text(&'a [u8]),
    /// A number, of a format that has numbers.
    Number(f64),
    /// Nothing.
    Gap,
}

impl Cell<'_> {
    /// As it would stand in a file of text.
    fn text(&self) -> Cow<'_, [u8]> {
        match self {
            Cell::Number(value) => Cow::Owned(value.to_string().into_bytes()),
            Cell::Text(text) => Cow::Borrowed(text),
            Cell::Gap => Cow::Borrowed(b""),
        }
    }

    /// Whether it can be read: bytes of another encoding cannot.
    pub(crate) fn is_text(self) -> bool {
        match self {
            Cell::Text(text) => text.is_ascii() || std::str::from_utf8(text).is_ok(),
            _ => true,
        }
    }

    /// For an error message.
    pub(crate) fn shown(self) -> String {
        match self {
            Cell::Text(text) => quote(text),
            Cell::Number(number) => number.to_string(),
            Cell::Gap => "nothing".to_owned(),
        }
    }
}

/// How a field fitted what the schema says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fit {
    /// As it should be.
    Known,
    /// There was none.
    Gap,
    /// Outside of the range, and cut off.
    Cut,
    /// Not one of the values.
    Unknown,
}

/// A field that cannot be taken: what kind of fault, and what was expected.
pub(super) type Refused = (Kind, String);

/// So many values are compared one by one; more are looked up.
const FEW: usize = 8;

/// What makes features of a column.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Encoder {
    rule: Rule,
    gap: Treatment,
    /// Features, those for what is missing or unknown included.
    width: usize,
}

#[derive(Clone, Debug, PartialEq)]
enum Rule {
    Number {
        low: f64,
        high: f64,
        root: bool,
    },
    Date {
        low: f64,
        high: f64,
        root: bool,
    },
    /// As it stands there: its range is not known yet.
    Raw,
    YesNo(Option<[String; 2]>),
    Category {
        values: Vec<String>,
        places: HashMap<Vec<u8>, usize>,
        unknown: Treatment,
    },
}

impl Encoder {
    pub(super) fn new(kind: &ColumnKind, gap: Treatment, numbers: Numbers) -> Encoder {
        let root = numbers == Numbers::Root;
        let (rule, width) = match kind {
            ColumnKind::Number { low, high } => {
                let (low, high) = (*low, *high);
                (Rule::Number { low, high, root }, 1 + usize::from(root))
            }
            ColumnKind::PrivateNumber => (Rule::Raw, 1 + usize::from(root)),
            ColumnKind::Date { low, high } => {
                let (low, high) = (f64::from(low.days()), f64::from(high.days()));
                (Rule::Date { low, high, root }, 1 + usize::from(root))
            }
            ColumnKind::YesNo { words } => (Rule::YesNo(words.clone()), 1),
            ColumnKind::Category { values, unknown } => {
                let places = values.iter().enumerate();
                let places = places.map(|(place, value)| (value.clone().into_bytes(), place));
                let rule = Rule::Category {
                    values: values.clone(),
                    places: places.collect(),
                    unknown: *unknown,
                };
                let indicator = *unknown == Treatment::Indicator;
                (rule, values.len() + usize::from(indicator))
            }
        };
        Encoder {
            rule,
            gap,
            width: width + usize::from(gap == Treatment::Indicator),
        }
    }

    /// How many features it makes.
    pub(super) fn width(&self) -> usize {
        self.width
    }

    /// Whether this text is one of the column's values, whatever else it could mean: a category
    /// called `NA` is no gap.
    fn names_a_value(&self, text: &[u8]) -> bool {
        match &self.rule {
            Rule::Category { values, places, .. } => place_of(values, places, text).is_some(),
            Rule::YesNo(Some(words)) => words.iter().any(|word| word.as_bytes() == text),
            _ => false,
        }
    }

    /// Writes the features of a field. `is_missing` knows the fields that say nothing.
    pub(super) fn encode(
        &self,
        cell: Cell<'_>,
        is_missing: impl Fn(Cell<'_>) -> bool,
        features: &mut [f32],
    ) -> Result<Fit, Refused> {
        features.fill(0.0);
        let gap = match cell {
            Cell::Text(text) => is_missing(cell) && !self.names_a_value(text),
            _ => is_missing(cell),
        };
        if gap {
            if self.rule == Rule::Raw && self.gap != Treatment::Refuse {
                features[0] = GAP;
            }
            return match self.gap {
                Treatment::Refuse => Err((Kind::Gap, self.expected())),
                Treatment::Neutral => Ok(Fit::Gap),
                Treatment::Indicator => {
                    features[self.width - 1] = 1.0;
                    Ok(Fit::Gap)
                }
            };
        }
        match &self.rule {
            &Rule::Number { low, high, root } => {
                let value = self.finite(cell)?;
                Ok(on_range(value, low, high, root, features))
            }
            Rule::Raw => {
                features[0] = self.finite(cell)?.clamp(-LARGEST, LARGEST) as f32;
                Ok(Fit::Known)
            }
            &Rule::Date { low, high, root } => {
                let date = match cell {
                    Cell::Text(text) => Date::parse(text).map(|date| f64::from(date.days())),
                    // Formats with numbers count days.
                    Cell::Number(days) => Some(days).filter(|days| days.is_finite()),
                    Cell::Gap => None,
                };
                let date = date.ok_or_else(|| (Kind::Date, self.expected()))?;
                Ok(on_range(date, low, high, root, features))
            }
            Rule::YesNo(words) => {
                let text = &cell.text()[..];
                let truth = truth(words.as_ref(), text);
                let truth = truth.ok_or_else(|| self.unknown(cell, Kind::Truth))?;
                features[0] = f32::from(u8::from(truth));
                Ok(Fit::Known)
            }
            Rule::Category {
                values,
                places,
                unknown,
            } => {
                let text = &cell.text()[..];
                match (place_of(values, places, text), unknown) {
                    (Some(place), _) => features[place] = 1.0,
                    // Letters of another encoding would make every word with one unknown.
                    (None, _) if !cell.is_text() => return Err(self.unknown(cell, Kind::Unknown)),
                    (None, Treatment::Refuse) => return Err(self.unknown(cell, Kind::Unknown)),
                    (None, Treatment::Neutral) => return Ok(Fit::Unknown),
                    (None, Treatment::Indicator) => {
                        features[values.len()] = 1.0;
                        return Ok(Fit::Unknown);
                    }
                }
                Ok(Fit::Known)
            }
        }
    }

    /// The number in a field.
    fn finite(&self, cell: Cell<'_>) -> Result<f64, Refused> {
        let value = match cell {
            Cell::Number(value) => Some(value),
            Cell::Text(text) => number(text),
            Cell::Gap => None,
        };
        match value {
            None => Err((Kind::Text, self.expected())),
            Some(value) if !value.is_finite() => Err((Kind::NotFinite, self.expected())),
            Some(value) => Ok(value),
        }
    }

    /// Why a field is none of the words that it could be.
    fn unknown(&self, cell: Cell<'_>, kind: Kind) -> Refused {
        match cell.is_text() {
            true => (kind, self.expected()),
            false => (Kind::Encoding, "text in UTF-8".to_owned()),
        }
    }

    /// What should stand in a field, for a message.
    pub(super) fn expected(&self) -> String {
        match &self.rule {
            Rule::Number { .. } | Rule::Raw => "a number".to_owned(),
            Rule::Date { .. } => "a date as 2024-12-31".to_owned(),
            Rule::YesNo(Some([no, yes])) => format!("\"{no}\" or \"{yes}\""),
            Rule::YesNo(None) => "yes or no".to_owned(),
            Rule::Category { values, .. } => format!("one of {}", some_of(values)),
        }
    }

    /// What a field outside of what is known was meant to be, for the owner's eyes.
    pub(super) fn bounds(&self) -> String {
        match &self.rule {
            Rule::Number { low, high, .. } => format!("[{low}, {high}]"),
            Rule::Date { low, high, .. } => {
                let day = |days: f64| Date::from_days(days as i32).map(|date| date.to_string());
                let (low, high) = (day(*low), day(*high));
                format!(
                    "[{}, {}]",
                    low.unwrap_or_default(),
                    high.unwrap_or_default()
                )
            }
            _ => self.expected(),
        }
    }
}

/// Writes the place of a value on its range.
fn on_range(value: f64, low: f64, high: f64, root: bool, features: &mut [f32]) -> Fit {
    let inside = value.clamp(low, high);
    let share = (inside - low) / (high - low);
    features[0] = (2.0 * share - 1.0) as f32;
    if root {
        features[1] = (2.0 * share.sqrt() - 1.0) as f32;
    }
    match inside == value {
        true => Fit::Known,
        false => Fit::Cut,
    }
}

fn place_of(values: &[String], places: &HashMap<Vec<u8>, usize>, text: &[u8]) -> Option<usize> {
    if values.len() <= FEW {
        values.iter().position(|value| value.as_bytes() == text)
    } else {
        places.get(text).copied()
    }
}

/// Yes or no, in the two words or in a usual spelling.
fn truth(words: Option<&[String; 2]>, text: &[u8]) -> Option<bool> {
    if let Some([no, yes]) = words {
        return match text {
            text if text == no.as_bytes() => Some(false),
            text if text == yes.as_bytes() => Some(true),
            _ => None,
        };
    }
    let is = |words: &[&str]| {
        let mut words = words.iter();
        words.any(|word| text.eq_ignore_ascii_case(word.as_bytes()))
    };
    if is(YES) {
        Some(true)
    } else if is(NO) {
        Some(false)
    } else {
        None
    }
}

/// What means yes, in any case of letters.
pub(super) const YES: &[&str] = &["yes", "true", "1", "1.0", "y", "t"];

/// What means no.
pub(super) const NO: &[&str] = &["no", "false", "0", "0.0", "n", "f"];

/// A number as text has it: by its digits where they are few, which is exact and most of the cases,
/// else by the standard library.
///
/// With at most 15 digits, the digits are a whole number below 2^53 and the power of ten is exact,
/// so that one division rounds once: the result is the nearest number to what stands there.
pub(super) fn number(text: &[u8]) -> Option<f64> {
    const POWERS: [f64; 16] = [
        1.0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
    ];
    let (negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        rest => (false, rest),
    };
    if (1..=16).contains(&digits.len()) {
        let (mut whole, mut count, mut point) = (0u64, 0usize, None);
        let plain = digits.iter().enumerate().all(|(place, &byte)| match byte {
            b'0'..=b'9' => {
                whole = whole * 10 + u64::from(byte - b'0');
                count += 1;
                true
            }
            b'.' if point.is_none() => {
                point = Some(place);
                true
            }
            _ => false,
        });
        if plain && (1..=15).contains(&count) {
            let behind = point.map_or(0, |place| digits.len() - 1 - place);
            let value = whole as f64 / POWERS[behind];
            return Some(if negative { -value } else { value });
        }
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// The first few of some values, for a message.
pub(super) fn some_of(values: &[String]) -> String {
    const SHOWN: usize = 8;
    let shown: Vec<&str> = values.iter().take(SHOWN).map(String::as_str).collect();
    let more = if values.len() > SHOWN { ", ..." } else { "" };
    format!("{}{more}", shown.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use Treatment::{Indicator, Neutral, Refuse};

    fn encode(kind: &ColumnKind, gap: Treatment, numbers: Numbers, text: &str) -> (Fit, Vec<f32>) {
        let encoder = Encoder::new(kind, gap, numbers);
        let mut features = vec![9.0; encoder.width()];
        let missing = |cell: Cell<'_>| matches!(cell, Cell::Text(b"" | b"NA"));
        let fit = encoder.encode(Cell::Text(text.as_bytes()), missing, &mut features);
        (fit.unwrap(), features)
    }

    #[test]
    fn numbers_are_read_as_the_standard_library_reads_them() {
        for text in [
            "0",
            "-0",
            "7",
            "-12.5",
            "0.1",
            "123456789012345",
            "12345.6789012345",
            ".5",
            "5.",
            "1e3",
            "-1.5E-7",
            "9007199254740993",
            "0.000000000000001",
            "+4",
            "00012.50",
            "1.7e308",
        ] {
            let expected: f64 = text.parse().unwrap();
            let found = number(text.as_bytes()).unwrap();
            assert_eq!(found.to_bits(), expected.to_bits(), "{text}");
        }
        for text in ["", "-", ".", "1.2.3", "1,5", "x", "1 2", "--1", "0x10"] {
            assert_eq!(number(text.as_bytes()), None, "{text}");
        }
        // Numbers of all lengths, from a fixed sequence.
        let mut state = 1u64;
        for _ in 0..20_000 {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            let digits = 1 + (state >> 59) as usize % 18;
            let whole = (state >> 8) % 10u64.pow(digits as u32);
            let text = format!("{}.{:03}", whole, state % 1000);
            let expected: f64 = text.parse().unwrap();
            assert_eq!(
                number(text.as_bytes()).unwrap().to_bits(),
                expected.to_bits()
            );
        }
    }

    #[test]
    fn ranges_become_minus_one_to_one_and_gaps_zero() {
        let kind = ColumnKind::Number {
            low: 10.0,
            high: 30.0,
        };
        let linear = |text| encode(&kind, Indicator, Numbers::Linear, text);
        assert_eq!(linear("10"), (Fit::Known, vec![-1.0, 0.0]));
        assert_eq!(linear("15"), (Fit::Known, vec![-0.5, 0.0]));
        assert_eq!(linear("30"), (Fit::Known, vec![1.0, 0.0]));
        assert_eq!(linear("31"), (Fit::Cut, vec![1.0, 0.0]));
        assert_eq!(linear("-5e9"), (Fit::Cut, vec![-1.0, 0.0]));
        assert_eq!(linear("NA"), (Fit::Gap, vec![0.0, 1.0]));
        let root = |text| encode(&kind, Neutral, Numbers::Root, text);
        assert_eq!(root("15"), (Fit::Known, vec![-0.5, 0.0]));
        assert_eq!(root("30"), (Fit::Known, vec![1.0, 1.0]));
        assert_eq!(root(""), (Fit::Gap, vec![0.0, 0.0]));
        let dates = ColumnKind::Date {
            low: "2000-01-01".parse().unwrap(),
            high: "2000-01-05".parse().unwrap(),
        };
        let date = encode(&dates, Refuse, Numbers::Linear, "2000-01-02");
        assert_eq!(date, (Fit::Known, vec![-0.5]));
    }

    #[test]
    fn categories_become_indicators_and_their_names_are_never_gaps() {
        let values = |values: &[&str]| values.iter().map(|v| (*v).to_owned()).collect();
        let kind = |unknown| ColumnKind::Category {
            values: values(&["NA", "b", "c"]),
            unknown,
        };
        let with = |unknown, text| encode(&kind(unknown), Indicator, Numbers::Linear, text);
        assert_eq!(with(Neutral, "NA"), (Fit::Known, vec![1.0, 0.0, 0.0, 0.0]));
        assert_eq!(with(Neutral, "c"), (Fit::Known, vec![0.0, 0.0, 1.0, 0.0]));
        assert_eq!(with(Neutral, "x"), (Fit::Unknown, vec![0.0; 4]));
        assert_eq!(
            with(Indicator, "x"),
            (Fit::Unknown, vec![0.0, 0.0, 0.0, 1.0, 0.0])
        );
        assert_eq!(with(Neutral, ""), (Fit::Gap, vec![0.0, 0.0, 0.0, 1.0]));
        let encoder = Encoder::new(&kind(Refuse), Refuse, Numbers::Linear);
        let mut features = [0.0; 3];
        let none = |_: Cell<'_>| false;
        let refused = encoder.encode(Cell::Text(b"x"), none, &mut features);
        assert_eq!(refused, Err((Kind::Unknown, "one of NA, b, c".to_owned())));
        // More values than are compared one by one.
        let many: Vec<String> = (0..40).map(|value| format!("v{value}")).collect();
        let kind = ColumnKind::Category {
            values: many,
            unknown: Neutral,
        };
        let (fit, features) = encode(&kind, Refuse, Numbers::Linear, "v33");
        assert_eq!(
            (fit, features.iter().position(|&x| x == 1.0)),
            (Fit::Known, Some(33))
        );
    }

    #[test]
    fn yes_and_no_have_many_spellings_or_two() {
        let any = ColumnKind::YesNo { words: None };
        for text in YES {
            assert_eq!(encode(&any, Refuse, Numbers::Linear, text).1, [1.0]);
        }
        for text in NO {
            assert_eq!(
                encode(&any, Refuse, Numbers::Linear, &text.to_uppercase()).1,
                [0.0]
            );
        }
        let words = ColumnKind::YesNo {
            words: Some(["M".to_owned(), "F".to_owned()]),
        };
        assert_eq!(encode(&words, Refuse, Numbers::Linear, "F").1, [1.0]);
        let encoder = Encoder::new(&words, Refuse, Numbers::Linear);
        let refused = encoder.encode(Cell::Text(b"yes"), |_| false, &mut [0.0]);
        assert_eq!(refused, Err((Kind::Truth, "\"M\" or \"F\"".to_owned())));
    }
}
