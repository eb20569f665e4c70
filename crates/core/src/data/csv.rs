//! Tables of comma-separated values: numeric features and one column of class labels.
//!
//! The labels, numbers or text, stand in the last column unless [`Format`] says otherwise. A first
//! line is a header if it holds no number outside of the label column. Rows are stored dense.

use std::io::Read;
use std::path::Path;

use ::csv::{ByteRecord, Reader, ReaderBuilder, Trim};

use super::input::{Input, quote};
use super::labels::{Labels, Schema};
use super::rows::is_acceptable;
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

fn parse(input: Input<'_>, format: &Format, schema: &Schema) -> Result<Dataset, DataError> {
    let path = input.path().to_owned();
    let reader = ReaderBuilder::new()
        .has_headers(false)
        // Rows of unequal length are found here, where the message can say which columns there are.
        .flexible(true)
        .trim(Trim::All)
        .delimiter(format.separator)
        .from_reader(input);
    let mut lines = Lines {
        path: &path,
        reader,
        record: ByteRecord::new(),
    };
    if !lines.advance()? {
        return Err(DataError::Empty {
            place: Place::file(&path),
        });
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
        return Err(DataError::Empty {
            place: Place::file(&path),
        });
    }
    let (labels, names) = labels.finish();
    let features = Features::Dense(DenseRows::new(layout.columns - 1, values)?);
    Dataset::new(features, labels, names.len())?.with_label_names(names)
}

/// The records of a table, one at a time.
struct Lines<'a> {
    path: &'a Path,
    reader: Reader<Input<'a>>,
    record: ByteRecord,
}

impl Lines<'_> {
    fn advance(&mut self) -> Result<bool, DataError> {
        match self.reader.read_byte_record(&mut self.record) {
            Ok(more) => Ok(more),
            Err(error) => Err(match error.into_kind() {
                ::csv::ErrorKind::Io(error) => self.reader.get_ref().failed(error),
                // The other kinds concern UTF-8 and lengths, which byte records and `flexible` leave
                // to us; should the library add one, its text still reaches the user.
                kind => self.wrong(None, "a table", format!("{kind:?}")),
            }),
        }
    }

    fn line(&self) -> u64 {
        self.record.position().map_or(0, ::csv::Position::line)
    }

    /// The error for a field, counted from 0, or for the whole line.
    fn wrong(&self, field: Option<usize>, expected: impl Into<String>, found: String) -> DataError {
        let place = Place {
            file: self.path.to_owned(),
            line: Some(self.line()),
            column: field.map(|field| field as u64 + 1),
        };
        DataError::Format {
            place,
            expected: expected.into(),
            found,
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
        let first = &lines.record;
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
                match first.iter().position(|field| field == name.as_bytes()) {
                    Some(label) => label,
                    None => {
                        let expected = format!("a header with a column \"{name}\"");
                        return Err(lines.wrong(
                            None,
                            expected,
                            quote(&first.iter().collect::<Vec<_>>().join(&b", "[..])),
                        ));
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
        if lines.record.len() != self.columns {
            let expected = format!("{} columns, as in the first line", self.columns);
            return Err(lines.wrong(None, expected, lines.record.len().to_string()));
        }
        for (place, field) in lines.record.iter().enumerate() {
            if place == self.label {
                let pushed = labels.push(field);
                pushed
                    .map_err(|refused| lines.wrong(Some(place), refused.expected, quote(field)))?;
                continue;
            }
            match number(field).filter(|value| is_acceptable(*value)) {
                Some(value) => values.push(value),
                None => return Err(lines.wrong(Some(place), "a finite number", quote(field))),
            }
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
            ", line 1: expected a header with a column \"c\", found \"a, b\"",
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
