//! Labels as files spell them, turned into classes `0..classes`.
//!
//! Classes are the distinct labels in ascending order: by value if every label is a number (so "1",
//! "+1" and "1.0" are one class), by text otherwise. The two labels of a +-1 problem become class 0
//! for -1 and class 1 for +1. A [`Schema`] fixes classes and columns beforehand, as a test set or
//! one client's share needs it, which may lack some of them.
//!
//! Without a schema, numbers that are no class labels are refused: a price or an age would become a
//! classifier of hundreds of classes, which nobody asked for (`is_quantity`). Text is never refused
//! for this reason, so whoever means it writes the numbers as text.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use super::faults::Kind;
use super::reader::quote;
use super::schema::Cell;
use super::{DataError, Dataset, Place, TableSchema};
use soteriafl_core::data::{LARGEST_VALUE, Labels as Truth, TargetRange, Targets};

/// More distinct labels than this are taken for a mistake.
const MOST_CLASSES: usize = 1 << 16;

/// So many different numbers are classes, however few rows there are.
const FEW: usize = 20;

/// So many different whole numbers are classes even if they are not counted from 0 or 1.
const SOME: usize = 50;

/// Rows that a class has at least, on average, where numbers are classes and not a quantity.
const ROWS_OF_A_CLASS: usize = 10;

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
    /// What the columns of a table mean; without it, all but the label are numbers.
    pub table: Option<Arc<TableSchema>>,
    /// Whether labels are left alone and may be missing, as where a class is to be predicted.
    pub unlabelled: bool,
    /// The column of a table that says whose record each row is.
    pub client_column: Option<String>,
    /// The public range of targets, where records have numbers to predict; they have no classes
    /// then.
    pub targets: Option<TargetRange>,
}

impl Schema {
    /// What a test set must have in common with its training set.
    pub fn of(data: &Dataset) -> Schema {
        Schema {
            columns: Some(data.columns()),
            feature_names: data.feature_names().map(Into::into),
            label_names: (data.targets().is_none()).then(|| data.label_names().into()),
            targets: data.targets().map(Targets::range),
            ..Schema::default()
        }
    }
}

impl Schema {
    /// Stands for the labels of so many rows where nobody knows any: the first class, or the low
    /// end of the range.
    pub(super) fn unknown(&self, rows: usize) -> Result<Truth, DataError> {
        if let Some(range) = self.targets {
            return Ok(Truth::Targets(Targets::new(
                &vec![range.low(); rows],
                range,
            )?));
        }
        let nobody = || [String::new()].into();
        Ok(Truth::Classes {
            of: vec![0; rows],
            names: self.label_names.clone().unwrap_or_else(nobody),
        })
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
    /// The numbers, and their range, where they are what is predicted.
    targets: Option<(TargetRange, Vec<f64>)>,
    /// More different numbers than classes can be: they are only counted from here on.
    too_many: bool,
}

/// Classes of labels that a program has in memory, by the rules of files: `spellings` are the
/// different labels, `rows` the number of every row's; `name` stands for the file in errors.
///
/// # Errors
/// When there is no label, one is not known to `schema`, or they look like a quantity.
pub fn classes_of(
    spellings: &[String],
    rows: &[u32],
    schema: &Schema,
    name: &Path,
) -> Result<(Vec<u32>, Arc<[String]>), DataError> {
    let mut labels = Labels::new(false, schema);
    let mut classes = Vec::with_capacity(spellings.len());
    for spelling in spellings {
        let wrong = |refused: Refused| DataError::Format {
            place: Place::file(name),
            expected: refused.expected,
            found: quote(spelling.as_bytes()),
        };
        classes.push(labels.enter(spelling.as_bytes()).map_err(wrong)?);
    }
    labels.rows = rows.iter().map(|&row| classes[row as usize]).collect();
    labels.classes(name)
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
            targets: schema.targets.map(|range| (range, Vec::new())),
            too_many: false,
        }
    }

    pub(super) fn push(&mut self, text: &[u8]) -> Result<(), Refused> {
        if let Some((_, targets)) = &mut self.targets {
            let number = std::str::from_utf8(text).ok().and_then(number);
            let most = f64::from(LARGEST_VALUE);
            let number = number.filter(|number| number.abs() <= most);
            targets.push(number.ok_or_else(|| Refused {
                expected: "a target that is a finite number up to 2^64".to_owned(),
            })?);
            return Ok(());
        }
        let class = match self.known.get(text) {
            Some(&class) => class,
            None if self.too_many => 0,
            None => {
                let class = self.enter(text)?;
                if !self.too_many {
                    self.known.insert(text.to_owned(), class);
                }
                class
            }
        };
        self.rows.push(class);
        Ok(())
    }

    /// The same of a cell; what kind of fault it is, and what was expected.
    pub(super) fn push_cell(&mut self, cell: Cell<'_>) -> Result<(), (Kind, String)> {
        let refused = match cell {
            Cell::Gap | Cell::Text(b"") => return Err((Kind::Nothing, "a label".to_owned())),
            Cell::Text(_) if !cell.is_text() => {
                return Err((Kind::Encoding, "a label in UTF-8".to_owned()));
            }
            Cell::Text(text) => self.push(text),
            Cell::Number(number) => self.push(number.to_string().as_bytes()),
        };
        refused.map_err(|refused| (Kind::Label, refused.expected))
    }

    pub(super) fn rows(&self) -> usize {
        match &self.targets {
            Some((_, targets)) => targets.len(),
            None => self.rows.len(),
        }
    }

    /// Drops what is known of rows, not what is known of spellings.
    pub(super) fn forget(&mut self) {
        self.rows.clear();
        if let Some((_, targets)) = &mut self.targets {
            targets.clear();
        }
    }

    /// What is true of every row; `path` stands in the error.
    ///
    /// # Errors
    /// When the labels are numbers that look like a quantity.
    pub(super) fn finish(self, path: &Path) -> Result<Truth, DataError> {
        if let Some((range, targets)) = self.targets {
            return Ok(Truth::Targets(Targets::new(&targets, range)?));
        }
        let (of, names) = self.classes(path)?;
        Ok(Truth::Classes { of, names })
    }

    /// The class of every row, and what the classes are called.
    fn classes(self, path: &Path) -> Result<(Vec<u32>, Arc<[String]>), DataError> {
        if let Some(names) = self.schema {
            return Ok((self.rows, names));
        }
        let (names, class_of) = match numbers(&self.spellings) {
            Some(values) => {
                let (distinct, class_of) = rank(&values, f64::total_cmp);
                if self.too_many || is_quantity(&distinct, self.rows.len()) {
                    return Err(DataError::Quantity {
                        place: Place::file(path),
                        distinct: distinct.len(),
                        rows: self.rows.len(),
                    });
                }
                (name_numbers(&distinct), class_of)
            }
            None => rank(&self.spellings, String::cmp),
        };
        let rows = self
            .rows
            .iter()
            .map(|&spelling| class_of[spelling as usize])
            .collect();
        Ok((rows, names.into()))
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
            if value.is_some() && numbers(&self.spellings).is_some() {
                self.too_many = true;
                return Ok(0);
            }
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

/// The values of labels that are all numbers.
fn numbers(spellings: &[String]) -> Option<Vec<f64>> {
    spellings.iter().map(|text| number(text)).collect()
}

/// Whether labels of these values, ascending and distinct, in so many rows measure something
/// instead of naming classes. It depends on the column of labels alone: at most 20 values are
/// always classes; more are a quantity if they are not whole numbers, if a value has fewer than ten
/// rows on average, or if they are more than 50 and not counted from 0 or 1 without a gap.
fn is_quantity(values: &[f64], rows: usize) -> bool {
    let (Some(&first), Some(&last)) = (values.first(), values.last()) else {
        return false;
    };
    let distinct = values.len();
    let whole = values.iter().all(|value| value.fract() == 0.0);
    let counted = (first == 0.0 || first == 1.0) && last - first == (distinct - 1) as f64;
    let rare = distinct.saturating_mul(ROWS_OF_A_CLASS) > rows;
    distinct > FEW && (!whole || rare || (distinct > SOME && !counted))
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
        let (rows, names) = collected.classes(Path::new("labels")).ok()?;
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
        assert!(labels.push(b"0.5").is_ok());
        assert!(labels.push(b"0.75").is_ok());
        let error = labels.finish(Path::new("prices.csv")).unwrap_err();
        assert!(error.to_string().starts_with("prices.csv: "), "{error}");
        assert!(matches!(error, DataError::Quantity { rows: 65_538, .. }));
        let mut labels = Labels::new(false, &Schema::default());
        assert!((0..MOST_CLASSES).all(|label| labels.push(format!("n{label}").as_bytes()).is_ok()));
        assert!(labels.push(b"one too many").is_err());
    }

    #[test]
    fn numbers_are_targets_where_a_range_says_so() {
        let schema = Schema {
            targets: TargetRange::new(0.0, 10.0).ok(),
            ..Schema::default()
        };
        let mut labels = Labels::new(false, &schema);
        for text in ["2.5", "-0", "1e1", "40"] {
            assert!(labels.push(text.as_bytes()).is_ok(), "{text}");
        }
        for text in ["", "nan", "inf", "1e30", "five", "\u{fffd}"] {
            assert!(labels.push(text.as_bytes()).is_err(), "{text}");
        }
        assert_eq!(labels.rows(), 4);
        let Ok(Truth::Targets(targets)) = labels.finish(Path::new("prices.csv")) else {
            panic!("these are targets");
        };
        assert_eq!(targets.values(), [-0.5, -1.0, 1.0, 1.0]);
        assert_eq!(targets.original(), [2.5, 0.0, 10.0, 40.0]);
    }

    /// Whether `rows` labels that `label` gives are taken as classes.
    fn taken(rows: usize, label: impl Fn(usize) -> String) -> bool {
        let labels: Vec<String> = (0..rows).map(label).collect();
        let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
        classes(&labels, &Schema::default()).is_some()
    }

    #[test]
    fn labels_in_memory_are_classes_as_in_files() {
        let text = |labels: &[&str]| labels.iter().map(|&l| l.to_owned()).collect::<Vec<_>>();
        let of = |labels: &[&str], rows: &[u32], schema: &Schema| {
            classes_of(&text(labels), rows, schema, Path::new("y"))
        };
        // In the order of values, equal values one class, whatever order they come in.
        let (rows, names) = of(&["10", "9", "9.0"], &[0, 1, 2, 0], &Schema::default()).unwrap();
        assert_eq!(
            (&rows[..], &names[..]),
            (&[1, 0, 0, 1][..], &text(&["9", "10"])[..])
        );
        let schema = Schema {
            label_names: Some(names),
            ..Schema::default()
        };
        assert_eq!(of(&["10"], &[0, 0], &schema).unwrap().0, [1, 1]);
        let error = of(&["11"], &[0], &schema).unwrap_err().to_string();
        assert_eq!(
            error,
            "y: expected one of the known classes (9, 10), found \"11\""
        );
        let prices: Vec<String> = (0..300).map(|row| format!("{row}.5")).collect();
        let rows: Vec<u32> = (0..300).collect();
        let error = classes_of(&prices, &rows, &Schema::default(), Path::new("y")).unwrap_err();
        assert!(matches!(error, DataError::Quantity { distinct: 300, .. }));
    }

    #[test]
    fn a_quantity_is_not_taken_for_classes() {
        // A progression between 25 and 346, every other row another one; a price; an age of many
        // people.
        assert!(!taken(331, |row| (25 + row * 9 % 322).to_string()));
        assert!(!taken(5000, |row| format!("{}.5", row % 60)));
        assert!(!taken(30_000, |row| (17 + row % 74).to_string()));
        // Few rows of many ids say nothing about any of them.
        assert!(!taken(500, |row| (row % 100).to_string()));
    }

    #[test]
    fn classes_are_still_classes() {
        assert!(taken(20, |row| row.to_string()));
        assert!(taken(3, |row| format!("{row}.5")));
        assert!(taken(1000, |row| (row % 100).to_string()));
        assert!(taken(1000, |row| (1 + row % 100).to_string()));
        assert!(taken(500, |row| (100 + 10 * (row % 50)).to_string()));
        // Whoever means it writes text.
        assert!(taken(331, |row| format!("c{}", 25 + row * 9 % 322)));
        let names: Vec<String> = (0..200).map(|value| value.to_string()).collect();
        let schema = Schema {
            label_names: Some(names.into()),
            ..Schema::default()
        };
        assert!(classes(&["150", "199"], &schema).is_some());
    }
}
