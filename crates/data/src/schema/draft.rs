//! A first schema, proposed from what stands in a file.
//!
//! Whoever drafts looks at records, so the draft says [`Ranges::ReadFromRecords`], and a run with
//! it claims nothing until a person has put ranges in their place that are known without these
//! records.
//!
//! One pass; of every column at most [`MOST_VALUES`] different values are kept.

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;

use super::super::reader::quote;
use super::super::table::{Format, Reader};
use super::super::{DataError, OtherName, Place};
use super::encode::{Cell, NO, YES, number};
use super::{
    Column, ColumnKind, Date, MISSING, Ranges, Role, SchemaError, TableSchema, Target, Treatment,
};

/// So many different values of a column are counted; more are only known to be more.
const MOST_VALUES: usize = 1000;

/// A text column of so many different values is a category.
const MOST_CATEGORIES: usize = 50;

/// A label of so many different numbers is a class, one of more is a quantity.
const MOST_CLASSES: usize = 30;

/// Below so many rows it means nothing that all values differ.
const FEW_ROWS: u64 = 20;

/// A column that was looked at.
#[derive(Clone, Debug)]
pub struct Seen {
    /// What is proposed.
    pub column: Column,
    /// What was seen that made it so.
    pub because: String,
}

/// A proposal for all columns of a file.
#[derive(Clone, Debug)]
pub struct Draft {
    /// How many rows were looked at.
    pub rows: u64,
    /// The columns, in their order.
    pub columns: Vec<Seen>,
}

impl Draft {
    /// The schema that is proposed.
    ///
    /// # Errors
    /// When the columns are no table, as when none is left as a feature.
    pub fn schema(&self) -> Result<TableSchema, SchemaError> {
        let columns = self.columns.iter().map(|seen| seen.column.clone());
        let missing = MISSING.iter().map(|&word| word.to_owned()).collect();
        TableSchema::new(
            Ranges::ReadFromRecords,
            super::Numbers::default(),
            missing,
            columns.collect(),
        )
    }
}

/// Looks at the files of a table whose columns have names.
///
/// # Errors
/// When one cannot be read, has no header, no rows, rows that are none, or other columns than the
/// first.
pub fn draft(paths: &[PathBuf], format: &Format) -> Result<Draft, DataError> {
    let mut table: Option<(Vec<String>, usize, Vec<Values>)> = None;
    let mut rows = 0;
    for path in paths {
        let mut reader = Reader::open(path, format)?;
        let empty = || DataError::Empty {
            place: Place::file(path),
        };
        if !reader.advance()? {
            return Err(empty());
        }
        let names = header(&reader, format)?;
        if let Some((known, ..)) = &table
            && let Some(difference) = OtherName::first(known, &names)
        {
            let place = reader.place();
            return Err(DataError::Names { place, difference });
        }
        let (_, _, columns) = match &mut table {
            Some(table) => table,
            None => {
                let label = format.label.place(&reader, &names)?;
                let columns = names.iter().map(|_| Values::default()).collect();
                table.insert((names, label, columns))
            }
        };
        match look_at(&mut reader, columns)? {
            0 => return Err(empty()),
            found => rows += found,
        }
    }
    match table {
        Some((names, label, columns)) => Ok(propose(&names, &columns, label, rows)),
        None => Err(DataError::Empty {
            place: Place::file(""),
        }),
    }
}

/// The names in the first row.
fn header(reader: &Reader<'_>, format: &Format) -> Result<Vec<String>, DataError> {
    let mut faults = reader.faults(None);
    if reader.add_broken(&mut faults) || reader.add_no_text(&mut faults) {
        return Err(DataError::Table(Box::new(faults)));
    }
    let names = reader.texts();
    let is_number = |name: &&String| number(name.as_bytes()).is_some();
    let numbers = names.iter().filter(is_number).count();
    let said = reader.has_names(format);
    if said == Some(false) || (said.is_none() && numbers > 0) {
        let expected = "names of columns in the first line, which a schema is about";
        return Err(reader.unfit(expected, format!("{numbers} numbers")));
    }
    if names.len() < 2 {
        let expected = "at least two columns, features and a label";
        return Err(reader.unfit(expected, names.len().to_string()));
    }
    let nameless: Vec<String> = (1..=names.len())
        .filter(|&number| names[number - 1].is_empty())
        .map(|number| number.to_string())
        .collect();
    if !nameless.is_empty() {
        let found = format!("none for column {}", listed(nameless.into_iter()));
        return Err(reader.unfit("a name for every column in the first line", found));
    }
    let (mut known, mut twice) = (HashSet::new(), Vec::new());
    for name in &names {
        if !known.insert(name) && !twice.contains(&quote(name.as_bytes())) {
            twice.push(quote(name.as_bytes()));
        }
    }
    if !twice.is_empty() {
        let found = format!("more than one column {}", listed(twice.into_iter()));
        return Err(reader.unfit("a name of its own for every column", found));
    }
    Ok(names)
}

/// Looks at all rows of a file; how many there are.
fn look_at(reader: &mut Reader<'_>, columns: &mut [Values]) -> Result<u64, DataError> {
    let (mut faults, mut rows) = (reader.faults(None), 0);
    while reader.advance()? {
        faults.count_row();
        if reader.add_misfit(columns.len(), &mut faults) || reader.add_no_text(&mut faults) {
            continue;
        }
        rows += 1;
        for (column, cell) in columns.iter_mut().zip(reader.cells()) {
            column.add(cell);
        }
    }
    match faults.is_empty() {
        true => Ok(rows),
        false => Err(DataError::Table(Box::new(faults))),
    }
}

/// A proposal for columns whose values were seen.
pub(crate) fn propose(names: &[String], columns: &[Values], label: usize, rows: u64) -> Draft {
    let seen = names.iter().zip(columns).enumerate();
    let columns = seen.map(|(place, (name, values))| {
        let (role, because) = match place == label {
            true => values.as_label(),
            false => values.as_feature(name, rows),
        };
        Seen {
            column: Column {
                name: name.clone(),
                role,
            },
            because,
        }
    });
    Draft {
        rows,
        columns: columns.collect(),
    }
}

/// What is known of the values of a column.
#[derive(Default)]
pub(crate) struct Values {
    rows: u64,
    missing: u64,
    numbers: u64,
    whole: u64,
    low: f64,
    high: f64,
    /// Whether every value is a number above the one before.
    ascending: bool,
    last: f64,
    dates: u64,
    first_date: Option<Date>,
    last_date: Option<Date>,
    distinct: BTreeMap<String, u64>,
    many: bool,
    /// The first text that is neither a number nor a date.
    odd: Option<String>,
    /// Fields that would be numbers with a point in the place of their comma.
    commas: u64,
}

impl Values {
    pub(crate) fn add(&mut self, cell: Cell<'_>) {
        self.rows += 1;
        let buffer;
        let text = match cell {
            Cell::Gap => b"",
            Cell::Text(text) => text,
            Cell::Number(value) if value.is_nan() => b"",
            Cell::Number(value) => {
                buffer = value.to_string().into_bytes();
                &buffer[..]
            }
        };
        if MISSING.iter().any(|word| word.as_bytes() == text) {
            self.missing += 1;
            return;
        }
        if let Some(value) = number(text).filter(|value| value.is_finite()) {
            self.add_number(value);
        } else if let Some(date) = Date::parse(text) {
            self.dates += 1;
            self.first_date = Some(self.first_date.map_or(date, |first| first.min(date)));
            self.last_date = Some(self.last_date.map_or(date, |last| last.max(date)));
        } else {
            self.commas += u64::from(has_decimal_comma(text));
            self.odd.get_or_insert_with(|| quote(text));
        }
        if !self.many {
            // Most values have been seen before.
            let text = String::from_utf8_lossy(text);
            match self.distinct.get_mut(&*text) {
                Some(count) => *count += 1,
                None => {
                    self.distinct.insert(text.into_owned(), 1);
                    self.many = self.distinct.len() > MOST_VALUES;
                }
            }
        }
    }

    fn add_number(&mut self, value: f64) {
        if self.numbers == 0 {
            (self.low, self.high, self.ascending) = (value, value, true);
        } else {
            self.low = self.low.min(value);
            self.high = self.high.max(value);
            self.ascending &= value > self.last;
        }
        self.last = value;
        self.numbers += 1;
        self.whole += u64::from(value.fract() == 0.0);
    }

    fn known(&self) -> u64 {
        self.rows - self.missing
    }

    fn all_numbers(&self) -> bool {
        self.numbers > 0 && self.numbers == self.known()
    }

    /// Whether there are more different values than `most`.
    fn many_or(&self, most: usize) -> bool {
        self.many || self.distinct.len() > most
    }

    /// How many different values there are, in words.
    fn different(&self) -> String {
        match self.many {
            true => format!("more than {MOST_VALUES} different values"),
            false => format!("{} different values", self.distinct.len()),
        }
    }

    fn as_label(&self) -> (Role, String) {
        let mut classes: Vec<String> = self.distinct.keys().cloned().collect();
        let whole = self.whole == self.numbers;
        let few = !self.many && classes.len() <= MOST_CLASSES;
        if self.all_numbers() && (!few || (!whole && classes.len() > 2)) {
            let (low, high) = outward(self.low, self.high);
            let because = format!(
                "a quantity: {}, from {} to {}",
                self.different(),
                self.low,
                self.high
            );
            return (Role::Label(Target::Quantity { low, high }), because);
        }
        if self.all_numbers() {
            let value = |text: &String| number(text.as_bytes()).unwrap_or(0.0);
            classes.sort_by(|a, b| value(a).total_cmp(&value(b)));
        }
        let counts = classes
            .iter()
            .map(|class| format!("{class}: {}", self.distinct[class]));
        let because = format!("rows of each class: {}", listed(counts));
        (Role::Label(Target::Classes(classes.into())), because)
    }

    fn as_feature(&self, name: &str, rows: u64) -> (Role, String) {
        let gap = match self.missing {
            0 => Treatment::Refuse,
            _ => Treatment::Indicator,
        };
        let feature = |kind| Role::Feature { kind, gap };
        let missing = match self.missing {
            0 => String::new(),
            missing => format!("; {missing} of {rows} are missing"),
        };
        let ignored = |why: String| (Role::Ignored, format!("{why}{missing}"));
        if self.known() == 0 {
            return ignored("no value at all".to_owned());
        }
        if !self.many && self.distinct.len() == 1 {
            return ignored("the same value in every row".to_owned());
        }
        if self.commas > 0 && self.commas + self.numbers == self.known() {
            return ignored(format!(
                "{} numbers with a comma: write them with a point, or this column stays out",
                self.commas
            ));
        }
        let odd = self.odd.as_deref().unwrap_or_default();
        if self.numbers.max(self.dates) * 2 > self.known() && self.many_or(MOST_CATEGORIES) {
            let (count, what) = match self.numbers >= self.dates {
                true => (self.numbers, "numbers"),
                false => (self.dates, "dates"),
            };
            if count < self.known() {
                return ignored(format!(
                    "{count} {what} and {} other values, such as {odd}: put those right, or list words \
                     for a gap under `missing`, then draft again",
                    self.known() - count
                ));
            }
        }
        if self.looks_like_an_identifier(name) {
            return ignored(format!(
                "looks like an identifier: {} in {rows} rows",
                self.different()
            ));
        }
        if self.distinct.keys().all(|text| is_truth(text)) && !self.many {
            let kind = ColumnKind::YesNo { words: None };
            return (feature(kind), format!("{}{missing}", listed(self.counts())));
        }
        if self.all_numbers() {
            let (low, high) = outward(self.low, self.high);
            let because = format!(
                "{}, from {} to {}{missing}",
                self.different(),
                self.low,
                self.high
            );
            return (feature(ColumnKind::Number { low, high }), because);
        }
        if let (Some(first), Some(last)) = (self.first_date, self.last_date)
            && self.dates == self.known()
        {
            let because = format!("days from {first} to {last}{missing}");
            let (low, high) = whole_years(first, last);
            return (feature(ColumnKind::Date { low, high }), because);
        }
        if self.many_or(MOST_CATEGORIES) {
            let text = match self.numbers {
                0 => "text".to_owned(),
                numbers => format!("{numbers} numbers, and text"),
            };
            return ignored(format!("{text} with {}", self.different()));
        }
        let values = self.distinct.keys().cloned().collect();
        let unknown = Treatment::Neutral;
        let because = format!("{}{missing}", listed(self.counts()));
        (feature(ColumnKind::Category { values, unknown }), because)
    }

    fn counts(&self) -> impl Iterator<Item = String> {
        let counts = self.distinct.iter();
        counts.map(|(text, count)| format!("{text}: {count}"))
    }

    /// Whether nearly every row has a value of its own, and it is no measurement: text, numbers
    /// that count the rows, or whole numbers of a column that says that it identifies.
    fn looks_like_an_identifier(&self, name: &str) -> bool {
        if self.known() < FEW_ROWS {
            return false;
        }
        let name = name.to_ascii_lowercase();
        let named = name == "id"
            || ["_id", "-id", " id", ".id", "uuid"]
                .iter()
                .any(|end| name.ends_with(end))
            || ["id_", "id-", "id "]
                .iter()
                .any(|start| name.starts_with(start));
        let distinct = match self.many {
            true => self.known(),
            false => self.distinct.len() as u64,
        };
        let nearly_all = distinct * 10 >= self.known() * 9;
        let text = self.numbers == 0 && self.dates == 0;
        let whole = self.all_numbers() && self.whole == self.numbers;
        (nearly_all && (text || (whole && (self.ascending || named))))
            || (named && distinct * 2 >= self.known())
    }
}

/// Whether a text is a number of a country that writes 1,5 for 1.5.
fn has_decimal_comma(text: &[u8]) -> bool {
    let mut commas = text.iter().filter(|&&byte| byte == b',');
    commas.next().is_some() && commas.next().is_none() && {
        let pointed: Vec<u8> = text
            .iter()
            .map(|&b| if b == b',' { b'.' } else { b })
            .collect();
        !text.contains(&b'.') && number(&pointed).is_some_and(f64::is_finite)
    }
}

fn is_truth(text: &str) -> bool {
    let mut words = YES.iter().chain(NO);
    words.any(|word| text.eq_ignore_ascii_case(word))
}

/// The first of some things, and how many more there are.
fn listed(items: impl Iterator<Item = String>) -> String {
    const SHOWN: usize = 8;
    let items: Vec<String> = items.collect();
    let shown = items
        .iter()
        .take(SHOWN)
        .cloned()
        .collect::<Vec<_>>()
        .join(", ");
    match items.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// A range around `[low, high]` whose ends are round, and zero where the values come near it.
fn outward(low: f64, high: f64) -> (f64, f64) {
    let length = match high - low {
        length if length > 0.0 && length.is_finite() => length,
        _ => high.abs().max(1.0),
    };
    let power = 10f64.powf(length.log10().floor());
    let step = if length / power >= 5.0 {
        power
    } else {
        power / 2.0
    };
    let (mut down, up) = ((low / step).floor() * step, (high / step).ceil() * step);
    if low >= 0.0 && low <= high / 2.0 {
        down = 0.0;
    }
    let (down, up) = (tidy(down), tidy(up));
    // Where numbers are so large that a step is lost in their last digit, they are the ends.
    if down < up && down <= low && up >= high {
        return (down, up);
    }
    let length = length.max(high.abs() * 1e-9);
    (low - length, high + length)
}

/// Without the last digits that only the binary form of steps like 0.1 has.
fn tidy(value: f64) -> f64 {
    format!("{value:.12e}").parse().unwrap_or(value)
}

fn whole_years(first: Date, last: Date) -> (Date, Date) {
    let year = |date: Date| date.to_string()[..4].to_owned();
    let day = |text: String| text.parse::<Date>().ok();
    let low = day(format!("{}-01-01", year(first))).unwrap_or(first);
    let high = day(format!("{}-12-31", year(last))).unwrap_or(last);
    (low, high)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_rounded_outward_and_hold_every_value() {
        for (low, high, range) in [
            (18.0, 68.0, (0.0, 70.0)),
            (41.3, 58.9, (40.0, 60.0)),
            (0.05, 0.16, (0.0, 0.2)),
            (-3.2, 4.1, (-4.0, 5.0)),
            (1e6, 1e6 + 3.0, (1e6, 1e6 + 3.0)),
            (-0.0, 1.0, (0.0, 1.0)),
        ] {
            let found = outward(low, high);
            assert_eq!(found, range);
            assert!(found.0 <= low && high <= found.1);
        }
        // A fixed sequence of pairs.
        let mut state = 7u64;
        for _ in 0..10_000 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
            let a = ((state >> 20) as f64 - 1e13) * 10f64.powi((state % 30) as i32 - 20);
            let b = a + (state % 1000) as f64 * 10f64.powi((state % 13) as i32 - 6);
            let (low, high) = outward(a, b);
            assert!(low < high && low <= a && b <= high, "{a} {b}");
        }
    }
}
