//! Tables of comma-separated values: numeric features and one column of class labels.
//!
//! The labels, numbers or text, stand in the last column unless [`Format`] says otherwise. A first
//! line is a header if it holds no number outside of the label column. Rows are stored dense.
//!
//! A line is a row: quotes may hold separators, but no line break. The `csv` crate reads quotes leniently, so that one that is
//! never closed makes the rest of a file a single label; here it is an error at its place.

use std::io::Read;
use std::path::Path;

use super::input::{Input, quote};
use super::labels::{Labels, Schema};
use super::rows::feature_value;
use super::{DataError, Dataset, DenseRows, Features, Place};

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

/// The names of the columns that hold features, if the file has a header.
pub fn feature_names(path: &Path, format: &Format) -> Result<Option<Vec<String>>, DataError> {
    let mut lines = Lines::new(Input::open(path)?, format);
    if !lines.advance()? {
        return Ok(None);
    }
    let layout = Layout::new(&lines, format, &Schema::default())?;
    let fields = lines.fields.iter().enumerate();
    let features = fields.filter(|&(place, _)| place != layout.label);
    let names = features.map(|(_, name)| String::from_utf8_lossy(name).into_owned());
    Ok(layout.header.then(|| names.collect()))
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
    let mut labels = Labels::new(false, schema);
    let mut values = Vec::new();
    let mut more = if layout.header {
        lines.advance()?
    } else {
        true
    };
    while more {
        layout.push_row(&lines, &mut labels, &mut values)?;
        more = lines.advance()?;
    }
    if labels.rows() == 0 {
        return Err(empty());
    }
    let (labels, names) = labels.finish(&path)?;
    let features = Features::Dense(DenseRows::new(layout.columns - 1, values)?);
    Dataset::new(features, labels, names.len())?.with_label_names(names)
}

/// The rows of a table, one at a time.
struct Lines<'a> {
    input: Input<'a>,
    separator: u8,
    line: Vec<u8>,
    number: u64,
    /// The fields of the line, without quotes and the blanks around them.
    fields: Fields,
}

impl<'a> Lines<'a> {
    fn new(input: Input<'a>, format: &Format) -> Self {
        Lines {
            input,
            separator: format.separator,
            line: Vec::new(),
            number: 0,
            fields: Fields::default(),
        }
    }

    /// Goes on to the next line with anything on it; false at the end.
    fn advance(&mut self) -> Result<bool, DataError> {
        loop {
            if !self.input.next_line(self.number + 1, &mut self.line)? {
                return Ok(false);
            }
            self.number += 1;
            let mut line = &self.line[..];
            if self.number == 1 {
                line = line.strip_prefix("\u{feff}".as_bytes()).unwrap_or(line);
            }
            line = line.strip_suffix(b"\r").unwrap_or(line);
            if line.is_empty() {
                continue;
            }
            return match self.fields.split(line, self.separator) {
                Ok(()) => Ok(true),
                Err((field, expected)) => {
                    let found = quote(self.fields.last(line, self.separator));
                    Err(self.wrong(Some(field), expected, found))
                }
            };
        }
    }

    /// The error for a field, counted from 0, or for the whole line.
    fn wrong(&self, field: Option<usize>, expected: impl Into<String>, found: String) -> DataError {
        let place = Place {
            file: self.input.path().to_owned(),
            line: Some(self.number),
            column: field.map(|field| field as u64 + 1),
        };
        DataError::Format {
            place,
            expected: expected.into(),
            found,
        }
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
    columns: usize,
    label: usize,
    header: bool,
}

impl Layout {
    fn new(lines: &Lines<'_>, format: &Format, schema: &Schema) -> Result<Layout, DataError> {
        let first = &lines.fields;
        let columns = first.len();
        if columns < 2 {
            let expected = "at least two columns, features and a label";
            return Err(lines.wrong(None, expected, columns.to_string()));
        }
        if let Some(known) = schema.columns.filter(|&known| known != columns - 1) {
            let expected = format!("{known} features, as in training, and a label");
            return Err(lines.wrong(None, expected, format!("{columns} columns")));
        }
        let label = match &format.label {
            LabelColumn::Last => columns - 1,
            LabelColumn::Number(number) if (1..=columns).contains(number) => number - 1,
            LabelColumn::Number(number) => {
                let expected = format!("a label in column {number}");
                return Err(lines.wrong(None, expected, format!("{columns} columns")));
            }
            LabelColumn::Name(name) => {
                let fields = first.iter().enumerate();
                let mut named = fields.filter(|(_, field)| *field == name.as_bytes());
                match (named.next(), named.next()) {
                    (Some((label, _)), None) => label,
                    _ => {
                        let expected = format!("a header with one column \"{name}\"");
                        let found = first.iter().collect::<Vec<_>>().join(&b", "[..]);
                        return Err(lines.wrong(None, expected, quote(&found)));
                    }
                }
            }
        };
        let is_number = |field: &[u8]| number(field).is_some();
        let named = matches!(format.label, LabelColumn::Name(_));
        let mut features = first
            .iter()
            .enumerate()
            .filter(|&(place, _)| place != label);
        let header = format
            .header
            .unwrap_or_else(|| named || !features.any(|(_, field)| is_number(field)));
        Ok(Layout {
            columns,
            label,
            header,
        })
    }

    fn push_row(
        &self,
        lines: &Lines<'_>,
        labels: &mut Labels,
        values: &mut Vec<f32>,
    ) -> Result<(), DataError> {
        if lines.fields.len() != self.columns {
            let expected = format!("{} columns, as in the first line", self.columns);
            return Err(lines.wrong(None, expected, lines.fields.len().to_string()));
        }
        for (place, field) in lines.fields.iter().enumerate() {
            if place == self.label {
                let pushed = labels.push(field);
                pushed
                    .map_err(|refused| lines.wrong(Some(place), refused.expected, quote(field)))?;
                continue;
            }
            let value = feature_value(number(field));
            values
                .push(value.map_err(|expected| lines.wrong(Some(place), expected, quote(field)))?);
        }
        Ok(())
    }
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
