//! Labels as files spell them, turned into classes `0..classes`.
//!
//! Classes are the distinct labels in ascending order: by value if every label is a number (so "1",
//! "+1" and "1.0" are one class), by text otherwise. The two labels of a +-1 problem become class 0
//! for -1 and class 1 for +1. A [`Schema`] fixes classes and columns beforehand, as a test set or one
//! client's share needs it, which may lack some of them.

use std::collections::HashMap;
use std::sync::Arc;

use super::Dataset;

/// More distinct labels than this are taken for a mistake, such as a regression target.
const MOST_CLASSES: usize = 1 << 16;

/// What is known about data before it is read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Schema {
    /// The number of features; without it, the largest index that occurs.
    pub columns: Option<usize>,
    /// What the features are called, in their order: compared with the names of a source that has
    /// some.
    pub feature_names: Option<Arc<[String]>>,
    /// The names of all classes in their order; without them, the labels that occur.
    pub label_names: Option<Arc<[String]>>,
}

impl Schema {
    /// What a test set must have in common with its training set.
    pub fn of(data: &Dataset) -> Schema {
        Schema {
            columns: Some(data.columns()),
            feature_names: data.feature_names().map(Into::into),
            label_names: Some(data.label_names().into()),
        }
    }
}

/// Collects the labels of rows as they are read.
pub(super) struct Labels {
    numeric_only: bool,
    /// Class of a spelling: final with a schema, else the place in `spellings`.
    known: HashMap<Vec<u8>, u32>,
    spellings: Vec<String>,
    schema: Option<Arc<[String]>>,
    rows: Vec<u32>,
}

/// Why a label is refused; the reader adds the place.
pub(super) struct Refused {
    pub(super) expected: String,
}

impl Labels {
    /// Labels of a format that knows only numbers (`numeric_only`) or any text.
    pub(super) fn new(numeric_only: bool, schema: &Schema) -> Labels {
        Labels {
            numeric_only,
            known: HashMap::new(),
            spellings: Vec::new(),
            schema: schema.label_names.clone(),
            rows: Vec::new(),
        }
    }

    pub(super) fn push(&mut self, text: &[u8]) -> Result<(), Refused> {
        let class = match self.known.get(text) {
            Some(&class) => class,
            None => {
                let class = self.enter(text)?;
                self.known.insert(text.to_owned(), class);
                class
            }
        };
        self.rows.push(class);
        Ok(())
    }

    pub(super) fn rows(&self) -> usize {
        self.rows.len()
    }

    /// The class of every row, and what the classes are called.
    pub(super) fn finish(self) -> (Vec<u32>, Arc<[String]>) {
        if let Some(names) = self.schema {
            return (self.rows, names);
        }
        let values: Option<Vec<f64>> = self.spellings.iter().map(|text| number(text)).collect();
        let (names, class_of) = match values {
            Some(values) => {
                let (distinct, class_of) = rank(&values, f64::total_cmp);
                (name_numbers(&distinct), class_of)
            }
            None => rank(&self.spellings, String::cmp),
        };
        let rows = self
            .rows
            .iter()
            .map(|&spelling| class_of[spelling as usize])
            .collect();
        (rows, names.into())
    }

    /// A spelling that is seen for the first time.
    fn enter(&mut self, text: &[u8]) -> Result<u32, Refused> {
        let refused = |expected: &str| Refused {
            expected: expected.to_owned(),
        };
        let text = std::str::from_utf8(text).map_err(|_| refused("a label in UTF-8"))?;
        if text.is_empty() {
            return Err(refused("a label"));
        }
        let value = number(text);
        if self.numeric_only && value.is_none() {
            return Err(refused("a label that is a finite number"));
        }
        if let Some(names) = &self.schema {
            let same = |name: &String| name == text || (value.is_some() && number(name) == value);
            return match names.iter().position(same) {
                Some(class) => Ok(class as u32),
                None => Err(refused(&format!(
                    "one of the known classes ({})",
                    some_of(names)
                ))),
            };
        }
        if self.spellings.len() == MOST_CLASSES {
            return Err(refused(&format!(
                "at most {MOST_CLASSES} different class labels"
            )));
        }
        self.spellings.push(text.to_owned());
        Ok(self.spellings.len() as u32 - 1)
    }
}

/// The distinct items in order, and each item's place among them.
fn rank<T: Clone>(items: &[T], order: impl Fn(&T, &T) -> std::cmp::Ordering) -> (Vec<T>, Vec<u32>) {
    let mut distinct = items.to_vec();
    distinct.sort_by(&order);
    distinct.dedup_by(|a, b| order(a, b).is_eq());
    // Every item is among the distinct ones, so the search always succeeds.
    let place = |item| match distinct.binary_search_by(|other| order(other, item)) {
        Ok(place) | Err(place) => place as u32,
    };
    let places = items.iter().map(place).collect();
    (distinct, places)
}

/// A finite number; minus zero counts as zero, so that the two are one class.
fn number(text: &str) -> Option<f64> {
    text.parse::<f64>()
        .ok()
        .filter(|value| value.is_finite())
        .map(|value| value + 0.0)
}

fn name_numbers(values: &[f64]) -> Vec<String> {
    match values {
        [-1.0, 1.0] => vec!["-1".to_owned(), "+1".to_owned()],
        values => values.iter().map(f64::to_string).collect(),
    }
}

/// The first few names, for a message.
fn some_of(names: &[String]) -> String {
    const SHOWN: usize = 10;
    let shown = names
        .iter()
        .take(SHOWN)
        .map(String::as_str)
        .collect::<Vec<_>>()
        .join(", ");
    if names.len() > SHOWN {
        format!("{shown}, ...")
    } else {
        shown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn classes(labels: &[&str], schema: &Schema) -> Option<(Vec<u32>, Vec<String>)> {
        let mut collected = Labels::new(false, schema);
        for label in labels {
            collected.push(label.as_bytes()).ok()?;
        }
        let (rows, names) = collected.finish();
        Some((rows, names.to_vec()))
    }

    fn expect(labels: &[&str], rows: &[u32], names: &[&str]) {
        let found = classes(labels, &Schema::default()).unwrap();
        assert_eq!(found.0, rows);
        assert_eq!(found.1, names);
    }

    #[test]
    fn numbers_are_ordered_by_value_and_texts_by_letters() {
        expect(&["+1", "-1", "1", "-1.0"], &[1, 0, 1, 0], &["-1", "+1"]);
        expect(&["10", "9", "2.5"], &[2, 1, 0], &["2.5", "9", "10"]);
        expect(&["0", "-0"], &[0, 0], &["0"]);
        expect(
            &["dog", "cat", "10", "9"],
            &[3, 2, 0, 1],
            &["10", "9", "cat", "dog"],
        );
        expect(&["1"], &[0], &["1"]);
        expect(&["nan", "1"], &[1, 0], &["1", "nan"]);
    }

    #[test]
    fn a_schema_fixes_the_classes() {
        let names: Arc<[String]> = vec!["-1".to_owned(), "+1".to_owned()].into();
        let schema = Schema {
            label_names: Some(names),
            ..Schema::default()
        };
        assert_eq!(classes(&["1", "1.0"], &schema).unwrap().0, [1, 1]);
        assert!(classes(&["0"], &schema).is_none());
        assert!(classes(&["yes"], &schema).is_none());
    }

    #[test]
    fn numeric_formats_refuse_text_and_nobody_takes_a_regression_target() {
        let mut labels = Labels::new(true, &Schema::default());
        assert!(labels.push(b"yes").is_err());
        assert!(labels.push(b"inf").is_err());
        assert!(labels.push(b"").is_err());
        assert!(labels.push(b"\xff").is_err());
        assert!((0..MOST_CLASSES).all(|label| labels.push(label.to_string().as_bytes()).is_ok()));
        assert!(labels.push(b"0.5").is_err());
    }
}
