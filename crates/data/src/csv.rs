//! Tables of comma-separated values: numeric features and one column of class labels.
//!
//! The labels, numbers or text, stand in the last column unless [`Format`] says otherwise. A first
//! line is a header if it holds no number outside of the label column. Rows are stored dense.
//!
//! A line is a row: quotes may hold separators, but no line break. The `csv` crate reads quotes leniently, so that one that is
//! never closed makes the rest of a file a single label; here it is an error at its place.
//!
//! A table with faults is read to its end all the same: whoever has to put it right is told all of
//! them at once (`faults.rs`).

use std::io::Read;
use std::path::Path;

use super::faults::{Faults, Kind};
use super::labels::{Labels, Schema};
use super::reader::{Input, feature_value, quote};
use super::{DataError, Dataset, DenseRows, Features, OtherName, Place};

/// How a table is laid out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Format {
    /// Where the labels stand.
    pub label: LabelColumn,
    /// Whether the first line names the columns; without it, its content decides.
    pub header: Option<bool>,
    /// What stands between the fields.
    pub separator: u8,
}

/// Which column holds the labels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LabelColumn {
    /// The last one.
    Last,
    /// The one with this number, counted from 1.
    Number(usize),
    /// The one that the header gives this name.
    Name(String),
}

impl Default for Format {
    fn default() -> Format {
        Format {
            label: LabelColumn::Last,
            header: None,
            separator: b',',
        }
    }
}

/// Reads a file, plain or gzip.
pub fn read(path: &Path, format: &Format, schema: &Schema) -> Result<Dataset, DataError> {
    parse(Input::open(path)?, format, schema)
}

/// Reads from anything that gives bytes, plain or gzip; `name` stands in error messages.
pub fn read_from(
    reader: impl Read,
    name: &Path,
    format: &Format,
    schema: &Schema,
) -> Result<Dataset, DataError> {
    parse(Input::new(name, reader)?, format, schema)
}

fn parse(input: Input<'_>, format: &Format, schema: &Schema) -> Result<Dataset, DataError> {
    let path = input.path().to_owned();
    let mut lines = Lines::new(input, format);
    let empty = || DataError::Empty {
        place: Place::file(&path),
    };
    if !lines.advance()? {
        return Err(empty());
    }
    let layout = Layout::new(&lines, format, schema)?;
    let mut faults = Faults::new(&path, layout.header.then(|| layout.names.clone()));
    let mut labels = Labels::new(false, schema);
    let mut values = Vec::new();
    let mut more = !layout.header || lines.advance()?;
    while more {
        faults.count_row();
        layout.push_row(&lines, &mut labels, &mut values, &mut faults);
        more = lines.advance()?;
    }
    if !faults.is_empty() {
        return Err(DataError::Table(Box::new(faults)));
    }
    if labels.rows() == 0 {
        return Err(empty());
    }
    let labels = labels.finish(&path)?;
    let features = Features::Dense(DenseRows::new(layout.names.len() - 1, values)?);
    let data = Dataset::labelled(features, labels)?;
    match layout.header {
        true => Ok(data.with_feature_names(layout.feature_names())?),
        false => Ok(data),
    }
}

/// The rows of a table, one at a time.
struct Lines<'a> {
    input: Input<'a>,
    separator: u8,
    line: Vec<u8>,
    number: u64,
    /// The fields of the line, without quotes and the blanks around them.
    fields: Fields,
    /// Where the line cannot be split into fields, and what was expected there.
    broken: Option<(usize, &'static str)>,
}

impl<'a> Lines<'a> {
    fn new(input: Input<'a>, format: &Format) -> Self {
        Lines {
            input,
            separator: format.separator,
            line: Vec::new(),
            number: 0,
            fields: Fields::default(),
            broken: None,
        }
    }

    /// Goes on to the next line with anything on it; false at the end.
    fn advance(&mut self) -> Result<bool, DataError> {
        loop {
            if !self.input.next_line(self.number + 1, &mut self.line)? {
                return Ok(false);
            }
            self.number += 1;
            if self.text().is_empty() {
                continue;
            }
            let mut fields = std::mem::take(&mut self.fields);
            self.broken = fields.split(self.text(), self.separator).err();
            self.fields = fields;
            return Ok(true);
        }
    }

    /// The line without what is not part of a row.
    fn text(&self) -> &[u8] {
        let mut line = &self.line[..];
        if self.number == 1 {
            line = line.strip_prefix("\u{feff}".as_bytes()).unwrap_or(line);
        }
        line.strip_suffix(b"\r").unwrap_or(line)
    }

    /// The field that cannot be read, as it stands in the line.
    fn broken_field(&self) -> String {
        quote(self.fields.last(self.text(), self.separator))
    }

    /// The error for a table whose first line does not fit what was asked for.
    fn unfit(&self, expected: impl Into<String>, found: String) -> DataError {
        let mut faults = Faults::new(self.input.path(), None);
        faults.add(self.number, None, Kind::Layout, expected, || found);
        DataError::Table(Box::new(faults))
    }
}

/// The fields of a line, one after the other.
#[derive(Default)]
struct Fields {
    bytes: Vec<u8>,
    ends: Vec<usize>,
    /// Where in the line the last field begins.
    last: usize,
}

impl Fields {
    fn len(&self) -> usize {
        self.ends.len()
    }

    fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts
            .zip(&self.ends)
            .map(|(start, &end)| &self.bytes[start..end])
    }

    /// The last field as it stands in the line, up to the next separator.
    fn last<'a>(&self, line: &'a [u8], separator: u8) -> &'a [u8] {
        let rest = &line[self.last..];
        let end = rest.iter().position(|&byte| byte == separator);
        &rest[..end.unwrap_or(rest.len())]
    }

    /// Splits a line; on error, the number of the field, from 0, and what was expected in it.
    fn split(&mut self, line: &[u8], separator: u8) -> Result<(), (usize, &'static str)> {
        self.bytes.clear();
        self.ends.clear();
        self.last = 0;
        // A separator is none, even if it is a tab.
        let is_blank = |byte: &&u8| **byte != separator && byte.is_ascii_whitespace();
        loop {
            let rest = &line[self.last..];
            let blanks = rest.iter().take_while(is_blank).count();
            let length = if rest.get(blanks) == Some(&b'"') {
                let end = blanks + self.quoted(&rest[blanks..])?;
                end + rest[end..].iter().take_while(is_blank).count()
            } else {
                let end = rest.iter().position(|&byte| byte == separator);
                let end = end.unwrap_or(rest.len());
                self.bytes.extend_from_slice(rest[..end].trim_ascii());
                end
            };
            match rest.get(length) {
                Some(&byte) if byte != separator => {
                    return Err((self.ends.len(), "a separator after a closing quote"));
                }
                next => {
                    self.ends.push(self.bytes.len());
                    if next.is_none() {
                        return Ok(());
                    }
                    self.last += length + 1;
                }
            }
        }
    }

    /// Adds the field that begins with a quote; how long it is, quotes included.
    fn quoted(&mut self, text: &[u8]) -> Result<usize, (usize, &'static str)> {
        let mut place = 1;
        loop {
            match (text.get(place), text.get(place + 1)) {
                (Some(b'"'), Some(b'"')) => {
                    self.bytes.push(b'"');
                    place += 2;
                }
                (Some(b'"'), _) => return Ok(place + 1),
                (Some(&byte), _) => {
                    self.bytes.push(byte);
                    place += 1;
                }
                (None, _) => return Err((self.ends.len(), "a closing quote in the same line")),
            }
        }
    }
}

/// What the first line tells about all of them.
struct Layout {
    /// The fields of the first line: what the columns are called, if it is a header.
    names: Vec<String>,
    label: usize,
    header: bool,
}

impl Layout {
    fn new(lines: &Lines<'_>, format: &Format, schema: &Schema) -> Result<Layout, DataError> {
        if let Some((field, expected)) = lines.broken {
            let mut faults = Faults::new(lines.input.path(), None);
            let found = || lines.broken_field();
            faults.add(lines.number, Some(field), Kind::Quote, expected, found);
            return Err(DataError::Table(Box::new(faults)));
        }
        let first = &lines.fields;
        let columns = first.len();
        if columns < 2 {
            let expected = "at least two columns, features and a label";
            let found = match other_separator(lines.text()) {
                Some(option) => format!("{columns} (perhaps with ?separator={option})"),
                None => columns.to_string(),
            };
            return Err(lines.unfit(expected, found));
        }
        let label = label_column(lines, &format.label)?;
        let is_number = |field: &[u8]| number(field).is_some();
        let named = matches!(format.label, LabelColumn::Name(_));
        let features = || {
            let fields = first.iter().enumerate();
            fields.filter_map(|(place, field)| (place != label).then_some(field))
        };
        let header = format
            .header
            .unwrap_or_else(|| named || !features().any(is_number));
        let text = |field: &[u8]| String::from_utf8_lossy(field).into_owned();
        let names = first.iter().map(text).collect();
        let layout = Layout {
            names,
            label,
            header,
        };
        // Names say more than their number, so they are compared first.
        if let (Some(expected), true) = (&schema.feature_names, header)
            && let Some(mut difference) = OtherName::first(expected, &layout.feature_names())
        {
            difference.guessed = format.header.is_none() && !named;
            let place = Place::line(lines.input.path(), lines.number);
            return Err(DataError::Names { place, difference });
        }
        if let Some(known) = schema.columns.filter(|&known| known != columns - 1) {
            let expected = format!("{known} features, as in training, and a label");
            return Err(lines.unfit(expected, format!("{columns} columns")));
        }
        Ok(layout)
    }

    /// What the features are called, if the first line is a header.
    fn feature_names(&self) -> Vec<String> {
        let names = self.names.iter().enumerate();
        let features = names.filter(|&(place, _)| place != self.label);
        features.map(|(_, name)| name.clone()).collect()
    }

    /// Adds a row, or what is wrong with it. Nothing is stored any more once anything was wrong.
    fn push_row(
        &self,
        lines: &Lines<'_>,
        labels: &mut Labels,
        values: &mut Vec<f32>,
        faults: &mut Faults,
    ) {
        let line = lines.number;
        if let Some((field, expected)) = lines.broken {
            let found = || lines.broken_field();
            faults.add(line, Some(field), Kind::Quote, expected, found);
            return;
        }
        if lines.fields.len() != self.names.len() {
            let expected = format!("{} columns, as in the first line", self.names.len());
            let found = || lines.fields.len().to_string();
            faults.add(line, None, Kind::Columns, expected, found);
            return;
        }
        for (place, field) in lines.fields.iter().enumerate() {
            let checked = if place == self.label {
                let pushed = labels.push(field);
                pushed.map_err(|refused| (Kind::Label, refused.expected))
            } else {
                feature(field).map(|value| {
                    if faults.is_empty() {
                        values.push(value);
                    }
                })
            };
            if let Err((kind, expected)) = checked {
                let kind = if field.is_empty() {
                    Kind::Nothing
                } else {
                    kind
                };
                faults.add(line, Some(place), kind, expected, || quote(field));
            }
        }
    }
}

/// Which column holds the labels, counted from 0.
fn label_column(lines: &Lines<'_>, label: &LabelColumn) -> Result<usize, DataError> {
    let first = &lines.fields;
    let columns = first.len();
    match label {
        LabelColumn::Last => Ok(columns - 1),
        LabelColumn::Number(number) if (1..=columns).contains(number) => Ok(number - 1),
        LabelColumn::Number(number) => {
            let expected = format!("a label in column {number}");
            Err(lines.unfit(expected, format!("{columns} columns")))
        }
        LabelColumn::Name(name) => {
            let fields = first.iter().enumerate();
            let mut named = fields.filter(|(_, field)| *field == name.as_bytes());
            match (named.next(), named.next()) {
                (Some((label, _)), None) => Ok(label),
                _ => {
                    let expected = format!("a header with one column \"{name}\"");
                    let found = first.iter().collect::<Vec<_>>().join(&b", "[..]);
                    Err(lines.unfit(expected, quote(&found)))
                }
            }
        }
    }
}

/// A feature, or what is wrong with it and what was expected.
fn feature(field: &[u8]) -> Result<f32, (Kind, String)> {
    let read = number(field);
    feature_value(read).map_err(|expected| {
        let kind = match read {
            None => Kind::Text,
            Some(value) if value.is_finite() => Kind::TooLarge,
            Some(_) => Kind::NotFinite,
        };
        (kind, expected.to_owned())
    })
}

/// What else may stand between the fields of a line that has only one.
fn other_separator(line: &[u8]) -> Option<&'static str> {
    let candidates = [(b';', ";"), (b'\t', "tab"), (b'|', "|"), (b',', ",")];
    let mut candidates = candidates.into_iter();
    candidates
        .find(|(byte, _)| line.contains(byte))
        .map(|(_, option)| option)
}

fn number(field: &[u8]) -> Option<f32> {
    std::str::from_utf8(field).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: &str, format: &Format) -> Result<Dataset, DataError> {
        read_from(
            text.as_bytes(),
            Path::new("rows.csv"),
            format,
            &Schema::default(),
        )
    }

    fn labelled(label: LabelColumn) -> Format {
        Format {
            label,
            ..Format::default()
        }
    }

    #[test]
    fn headers_are_found_and_labels_stand_anywhere() {
        let plain = Format::default();
        let data = read_text("1, 2,yes\n3,4e-1,no\n\n5,6,\"yes\"\n", &plain).unwrap();
        assert_eq!((data.rows(), data.columns()), (3, 2));
        assert_eq!(
            (data.labels(), data.label_names()),
            (&[1, 0, 1][..], &["no".to_owned(), "yes".to_owned()][..])
        );
        assert_eq!(data.full_row(1), [3.0, f64::from(0.4f32)]);

        let with_header = "class,height,width\n-1,1,2\n1,3,4\n";
        for format in [
            labelled(LabelColumn::Number(1)),
            labelled(LabelColumn::Name("class".into())),
        ] {
            let data = read_text(with_header, &format).unwrap();
            assert_eq!((data.rows(), data.labels()), (2, &[0, 1][..]));
            assert_eq!(data.label_names(), ["-1", "+1"]);
            assert_eq!(data.full_row(1), [3.0, 4.0]);
        }
        let numeric_header = Format {
            header: Some(true),
            ..Format::default()
        };
        assert_eq!(
            read_text("0,1,2\n5,6,1\n", &numeric_header).unwrap().rows(),
            1
        );
        let semicolons = Format {
            separator: b';',
            ..Format::default()
        };
        assert_eq!(
            read_text("\u{feff}a;b;c\r\n1;2;0\r\n", &semicolons)
                .unwrap()
                .full_row(0),
            [1.0, 2.0]
        );
    }

    #[test]
    fn errors_name_line_and_column() {
        let expect = |text: &str, label: LabelColumn, message: &str| {
            let error = read_text(text, &labelled(label)).unwrap_err();
            assert_eq!(error.to_string(), format!("rows.csv{message}"));
        };
        let last = || LabelColumn::Last;
        expect("", last(), ": expected at least one row, found none");
        expect("a,b\n", last(), ": expected at least one row, found none");
        expect(
            "1\n",
            last(),
            ", line 1: expected at least two columns, features and a label, found 1",
        );
        expect(
            "1,2\n1,2,3\n",
            last(),
            ", line 2: expected 2 columns, as in the first line, found 3",
        );
        expect(
            "1,2,a\n1,?,a\n",
            last(),
            ", line 2, column 2: expected a finite number, found \"?\"",
        );
        expect(
            "1,?,a\n",
            last(),
            ", line 1, column 2: expected a finite number, found \"?\"",
        );
        expect(
            "1,2,a\n1,,a\n",
            last(),
            ", line 2, column 2: expected a finite number, found nothing",
        );
        expect(
            "1,2,a\n1,inf,a\n",
            last(),
            ", line 2, column 2: expected a finite number, found \"inf\"",
        );
        expect(
            "1,2,a\n1,2,\n",
            last(),
            ", line 2, column 3: expected a label, found nothing",
        );
        expect(
            "1,2\n",
            LabelColumn::Number(3),
            ", line 1: expected a label in column 3, found 2 columns",
        );
        expect(
            "1,2\n",
            LabelColumn::Number(0),
            ", line 1: expected a label in column 0, found 2 columns",
        );
        expect(
            "a,b\n",
            LabelColumn::Name("c".into()),
            ", line 1: expected a header with one column \"c\", found \"a, b\"",
        );
        expect(
            "a,b,a\n",
            LabelColumn::Name("a".into()),
            ", line 1: expected a header with one column \"a\", found \"a, b, a\"",
        );
    }

    #[test]
    fn all_faults_are_told_at_once_by_column_name_and_kind() {
        let text = "age,city,age,outcome\n1,2,3,a\n?,2,,a\nn/a,Ulm,inf,\n4,5\nnan,7,8,b\n1,\"2,3,a\n,1e30,3,b\n";
        let error = read_text(text, &labelled(LabelColumn::Name("outcome".into()))).unwrap_err();
        assert_eq!(
            error.lines(true),
            [
                "rows.csv, line 5: expected 4 columns, as in the first line, found 2",
                "rows.csv, line 8, column 1 (\"age\"): expected a finite number, found nothing",
                "rows.csv, column 1 (\"age\"): expected a finite number, found text in 2 of 7 rows, \
                 first in lines 3 (\"?\") and 4 (\"n/a\")",
                "rows.csv, line 6, column 1 (\"age\"): expected a finite number, found \"nan\"",
                "rows.csv, line 7, column \"city\": expected a closing quote in the same line, found \"\\\"2\"",
                "rows.csv, line 4, column \"city\": expected a finite number, found \"Ulm\"",
                "rows.csv, line 8, column \"city\": expected a number of at most 2^64, found \"1e30\"",
                "rows.csv, line 3, column 3 (\"age\"): expected a finite number, found nothing",
                "rows.csv, line 4, column 3 (\"age\"): expected a finite number, found \"inf\"",
                "rows.csv, line 4, column \"outcome\": expected a label, found nothing",
            ]
        );
        // What may be sent elsewhere tells places and kinds, and nothing that stands in a record.
        let public = error.lines(false).join("\n");
        for private in ["?", "n/a", "Ulm", "1e30", "\\\"2", "age", "city"] {
            assert!(!public.contains(private), "{private} in\n{public}");
        }
        assert!(public.contains("line 4, column 2: expected a finite number, found text"));
        assert!(public.contains("found text in 2 of 7 rows, first in lines 3 and 4"));
        let advice = error.advice().unwrap();
        for part in [
            "as many fields",
            "close every quote",
            "fill in",
            "write text as numbers",
            "nan",
        ] {
            assert!(advice.contains(part), "{part} in {advice}");
        }
    }

    #[test]
    fn counts_are_of_all_rows_and_places_and_lines_are_few() {
        let rows: String = (0..1000)
            .map(|row| format!("{row},{},a\n", row % 2))
            .collect();
        let text = format!("x,y,label\n{}", rows.replace(",1,", ",,"));
        let error = read_text(&text, &Format::default()).unwrap_err();
        assert_eq!(
            error.lines(true),
            [
                "rows.csv, column \"y\": expected a finite number, found nothing in 500 of 1000 rows, \
                 first in lines 3, 5 and 7"
            ]
        );
        let wide = format!("{}z\n{}z\n", "1,".repeat(100), "b,".repeat(100));
        let error = read_text(&wide, &Format::default()).unwrap_err();
        let lines = error.lines(true);
        assert_eq!(
            (lines.len(), error.to_string().matches("; ").count()),
            (21, 20)
        );
        assert_eq!(
            lines[20],
            "rows.csv: 80 more faults like these in other columns"
        );
    }

    #[test]
    fn advice_knows_headers_of_numbers_and_other_separators() {
        let advice = |text: &str| read_text(text, &Format::default()).unwrap_err().advice();
        let names = advice("year,2020,label\n1,2,a\n3,4,b\n").unwrap();
        assert!(names.contains("?header=yes"), "{names}");
        let text = advice("1,2,a\n1,x,b\n").unwrap();
        assert!(!text.contains("?header=yes") && text.contains("write text as numbers"));
        for (text, option) in [("a;b;c\n1;2;3\n", ";"), ("a\tb\n1\t2\n", "tab")] {
            let error = read_text(text, &Format::default()).unwrap_err().to_string();
            assert!(
                error.ends_with(&format!("(perhaps with ?separator={option})")),
                "{error}"
            );
        }
        let known = Schema::of(&read_text("1,2,a\n1,2,b\n", &Format::default()).unwrap());
        let unknown = read_from(
            &b"1,2,c\n1,2,d\n"[..],
            Path::new("t"),
            &Format::default(),
            &known,
        );
        assert_eq!(
            unknown.unwrap_err().lines(true),
            [
                "t, column 3: expected one of the known classes (a, b), found something else in 2 of 2 rows, \
              first in lines 1 (\"c\") and 2 (\"d\")"
            ]
        );
    }

    #[test]
    fn quotes_are_closed_where_they_were_opened() {
        let rows = |text: &str| read_text(text, &Format::default());
        let data = rows("1, \"2\" ,\"a, \"\"b\"\"\"\n3,4, c \n").unwrap();
        assert_eq!(data.label_names(), ["a, \"b\"", "c"]);
        assert_eq!(data.full_row(0), [1.0, 2.0]);
        for (text, place) in [
            (
                "1,2,a\n3,4,\"b\n5,6,c\n",
                ", line 2, column 3: expected a closing quote in the same line, found \"\\\"b\"",
            ),
            (
                "1,2,\"",
                ", line 1, column 3: expected a closing quote in the same line, found \"\\\"\"",
            ),
            (
                "1,2,a\n3,\"4\"5,c\n",
                ", line 2, column 2: expected a separator after a closing quote, found \"\\\"4\\\"5\"",
            ),
        ] {
            let error = rows(text).unwrap_err().to_string();
            assert_eq!(error, format!("rows.csv{place}"));
        }
        // Old line ends would make one line of the whole file.
        assert!(rows("1,2,a\r3,4,b\r").is_err());
        let tabs = Format {
            separator: b'\t',
            ..Format::default()
        };
        let data = read_text("1\t2\ta\n\"3\"\t4\t\"b\"\n", &tabs).unwrap();
        assert_eq!(data.full_row(1), [3.0, 4.0]);
        for hole in ["1\t2\t\t\"a\"\n", "\t\"1\"\t2\ta\n"] {
            let both = format!("1\t2\t3\ta\n{hole}");
            let error = read_text(&both, &tabs).unwrap_err().to_string();
            assert!(
                error.ends_with("expected a finite number, found nothing"),
                "{error}"
            );
        }
        let holes = read_text("1\t\ta\n", &tabs).unwrap_err().to_string();
        assert_eq!(
            holes,
            "rows.csv, line 1, column 2: expected a finite number, found nothing"
        );
    }

    #[test]
    fn names_of_features_are_kept_and_compared() {
        let plain = Format::default();
        let train = read_text("age,\"b, m\",label\n1,2,a\n3,4,b\n", &plain).unwrap();
        assert_eq!(train.feature_names().unwrap(), ["age", "b, m"]);
        assert_eq!(
            train.clone().with_intercept().select(&[1]).feature_names(),
            train.feature_names()
        );
        let nameless = read_text("1,2,a\n3,4,b\n", &plain).unwrap();
        assert_eq!(nameless.feature_names(), None);
        let schema = Schema::of(&train);
        let read = |text: &str, label: LabelColumn| {
            read_from(text.as_bytes(), Path::new("t"), &labelled(label), &schema)
        };
        let first = || LabelColumn::Number(1);
        // Where the label stands and what it is called is nobody's business.
        read("class,age,\"b, m\"\na,1,2\n", first()).unwrap();
        read("a,1,2\n", first()).unwrap();
        for (header, number, reordered) in [
            ("\"b, m\",age", 1, true),
            ("age,other", 2, false),
            ("age", 2, false),
            ("age,\"b, m\",third", 3, false),
        ] {
            let text = format!("class,{header}\na,1,2\n");
            match read(&text, first()) {
                Err(DataError::Names { difference, .. }) => {
                    assert_eq!(
                        (difference.number, difference.reordered),
                        (number, reordered)
                    );
                }
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn a_test_set_must_match_training() {
        let train = read_text("1,2,a\n1,2,b\n", &Format::default()).unwrap();
        let read_test = |text: &str| {
            read_from(
                text.as_bytes(),
                Path::new("t"),
                &Format::default(),
                &Schema::of(&train),
            )
        };
        assert_eq!(read_test("3,4,b\n").unwrap().labels(), [1]);
        assert!(
            read_test("3,4,5,b\n")
                .unwrap_err()
                .to_string()
                .contains("2 features, as in training")
        );
        assert!(
            read_test("3,4,c\n")
                .unwrap_err()
                .to_string()
                .contains("one of the known classes (a, b)")
        );
    }
}
