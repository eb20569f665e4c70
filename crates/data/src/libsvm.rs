//! LIBSVM text: one row per line, `label index:value index:value ...`, indices from 1, ascending.
//!
//! A `#` starts a comment that runs to the end of its line; blank lines are skipped. Rows stay
//! sparse; a value that is written but zero is not stored. Reading takes one pass and the memory of
//! the result.

use std::io::Read;
use std::path::Path;

use super::labels::{Labels, Schema};
use super::reader::{Input, feature_value, quote};
use super::{DataError, Dataset, Features, MOST_FEATURES, Place, SparseRows};

/// Reads a file, plain or gzip.
pub fn read(path: &Path, schema: &Schema) -> Result<Dataset, DataError> {
    parse(Input::open(path)?.into_text()?, schema)
}

/// Reads from anything that gives bytes, plain or gzip; `name` stands in error messages.
pub fn read_from(reader: impl Read, name: &Path, schema: &Schema) -> Result<Dataset, DataError> {
    parse(Input::new(name, reader)?.into_text()?, schema)
}

fn parse(mut input: Input<'_>, schema: &Schema) -> Result<Dataset, DataError> {
    let mut rows = Rows {
        labels: Labels::new(true, schema),
        known_columns: schema.columns,
        columns: schema.columns.unwrap_or(0),
        starts: vec![0],
        indices: Vec::new(),
        values: Vec::new(),
    };
    let mut line = Vec::new();
    let mut number = 1;
    while input.next_line(number, &mut line)? {
        let mark: &[u8] = b"\xef\xbb\xbf";
        let text = if number == 1 {
            line.strip_prefix(mark).unwrap_or(&line)
        } else {
            &line
        };
        rows.push_line(text).map_err(|fault| DataError::Format {
            place: Place::column(input.path(), number, fault.column as u64),
            expected: fault.expected,
            found: fault.found,
        })?;
        number += 1;
    }
    if rows.labels.rows() == 0 {
        return Err(DataError::Empty {
            place: Place::file(input.path()),
        });
    }
    rows.finish(input.path())
}

/// What is wrong in a line, and in which column.
struct Fault {
    column: usize,
    expected: String,
    found: String,
}

/// The rows read so far.
struct Rows {
    labels: Labels,
    known_columns: Option<usize>,
    columns: usize,
    starts: Vec<usize>,
    indices: Vec<u32>,
    values: Vec<f32>,
}

impl Rows {
    fn push_line(&mut self, line: &[u8]) -> Result<(), Fault> {
        let text = line.split(|&byte| byte == b'#').next().unwrap_or_default();
        let mut tokens = tokens(text);
        let Some((column, label)) = tokens.next() else {
            return Ok(());
        };
        if label.contains(&b':') {
            return Err(fault(column, "a label before the features", label));
        }
        self.labels
            .push(label)
            .map_err(|refused| fault(column, refused.expected, label))?;
        let mut previous = 0;
        for (column, token) in tokens {
            let (index, value) = self.feature(column, token, previous)?;
            previous = index;
            self.columns = self.columns.max(index as usize);
            if value != 0.0 {
                self.indices.push(index - 1);
                self.values.push(value);
            }
        }
        self.starts.push(self.values.len());
        Ok(())
    }

    /// One `index:value`; the index counts from 1.
    fn feature(&self, column: usize, token: &[u8], previous: u32) -> Result<(u32, f32), Fault> {
        let Some(colon) = token.iter().position(|&byte| byte == b':') else {
            return Err(fault(column, "a feature as index:value", token));
        };
        let (name, value) = (&token[..colon], &token[colon + 1..]);
        if name == b"qid" {
            let expected = "class labels (a ranking problem with query ids cannot be trained here)";
            return Err(fault(column, expected, token));
        }
        let index = match number::<u64>(name) {
            Some(0) => return Err(fault(column, "a feature index of at least 1", name)),
            Some(index) => index,
            None => {
                return Err(fault(
                    column,
                    "a feature index that is a whole number",
                    name,
                ));
            }
        };
        if let Some(columns) = self.known_columns.filter(|&columns| index > columns as u64) {
            let expected =
                format!("a feature index of at most {columns}, the number of features in training");
            return Err(fault(column, expected, name));
        }
        if index > u64::from(MOST_FEATURES) {
            return Err(fault(
                column,
                format!("a feature index of at most {MOST_FEATURES}"),
                name,
            ));
        }
        if index <= u64::from(previous) {
            let expected = format!("a feature index above {previous} (indices ascend in a row)");
            return Err(fault(column, expected, name));
        }
        match feature_value(number(value)) {
            Ok(value) => Ok((index as u32, value)),
            Err(expected) => Err(fault(column + colon + 1, expected, value)),
        }
    }

    fn finish(self, path: &Path) -> Result<Dataset, DataError> {
        if self.columns == 0 {
            return Err(DataError::Format {
                place: Place::file(path),
                expected: "at least one feature".to_owned(),
                found: "labels only".to_owned(),
            });
        }
        let features = SparseRows::new(self.columns, self.starts, self.indices, self.values)?;
        let labels = self.labels.finish(path)?;
        Ok(Dataset::labelled(Features::Sparse(features), labels)?)
    }
}

fn fault(column: usize, expected: impl Into<String>, found: &[u8]) -> Fault {
    Fault {
        column,
        expected: expected.into(),
        found: quote(found),
    }
}

fn number<T: std::str::FromStr>(text: &[u8]) -> Option<T> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// The words of a line with the columns they start in, counted from 1.
fn tokens(line: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let mut place = 0;
    std::iter::from_fn(move || {
        let start = place
            + line[place..]
                .iter()
                .position(|byte| !byte.is_ascii_whitespace())?;
        let length = line[start..].iter().position(u8::is_ascii_whitespace);
        place = length.map_or(line.len(), |length| start + length);
        Some((start + 1, &line[start..place]))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: &str) -> Result<Dataset, DataError> {
        read_from(text.as_bytes(), Path::new("rows.txt"), &Schema::default())
    }

    #[test]
    fn rows_labels_and_comments_are_read() {
        let text =
            "\u{feff}# a comment\n+1 1:0.5 3:-2 # tail\n\n \t\r\n-1\t2:1e-3\r\n+1 1:0 4:0\n-1";
        let data = read_text(text).unwrap();
        assert_eq!((data.rows(), data.columns(), data.classes()), (4, 4, 2));
        assert_eq!(data.labels(), [1, 0, 1, 0]);
        assert_eq!(data.label_names(), ["-1", "+1"]);
        let Features::Sparse(rows) = data.features() else {
            panic!("expected sparse rows")
        };
        assert_eq!(rows.row(0).indices, [0, 2]);
        assert_eq!(rows.row(0).values, [0.5, -2.0]);
        assert_eq!(rows.row(1).values, [0.001]);
        assert_eq!((rows.row(2).values.len(), rows.row(3).values.len()), (0, 0));
    }

    #[test]
    fn errors_name_the_place_and_what_was_expected() {
        let expect = |text: &str, message: &str| {
            assert_eq!(
                read_text(text).unwrap_err().to_string(),
                format!("rows.txt{message}")
            );
        };
        expect("", ": expected at least one row, found none");
        expect("# nothing\n\n", ": expected at least one row, found none");
        expect(
            "1\n2\n",
            ": expected at least one feature, found labels only",
        );
        expect(
            "1 1:1\n1 1:1 x",
            ", line 2, column 7: expected a feature as index:value, found \"x\"",
        );
        expect(
            "1 3:1 2:1",
            ", line 1, column 7: expected a feature index above 3 (indices ascend in a row), found \"2\"",
        );
        expect(
            "1 3:1 3:1",
            ", line 1, column 7: expected a feature index above 3 (indices ascend in a row), found \"3\"",
        );
        expect(
            "1 0:1",
            ", line 1, column 3: expected a feature index of at least 1, found \"0\"",
        );
        expect(
            "1 -1:1",
            ", line 1, column 3: expected a feature index that is a whole number, found \"-1\"",
        );
        expect(
            "1 1:x",
            ", line 1, column 5: expected a finite number, found \"x\"",
        );
        expect(
            "1 1:nan",
            ", line 1, column 5: expected a finite number, found \"nan\"",
        );
        expect(
            "1 1:1e99",
            ", line 1, column 5: expected a finite number, found \"1e99\"",
        );
        expect(
            "1 1:",
            ", line 1, column 5: expected a finite number, found nothing",
        );
        expect(
            "yes 1:1",
            ", line 1, column 1: expected a label that is a finite number, found \"yes\"",
        );
        expect(
            "1:1",
            ", line 1, column 1: expected a label before the features, found \"1:1\"",
        );
        expect(
            "1 4000000000:1",
            ", line 1, column 3: expected a feature index of at most 134217728, found \"4000000000\"",
        );
        let ranking = read_text("1 qid:3 1:1").unwrap_err().to_string();
        assert!(
            ranking.contains("column 3") && ranking.contains("ranking"),
            "{ranking}"
        );
    }

    #[test]
    fn a_test_set_takes_columns_and_classes_from_training() {
        let train = read_text("+1 1:1 5:1\n-1 2:1\n").unwrap();
        let read_test =
            |text: &str| read_from(text.as_bytes(), Path::new("t"), &Schema::of(&train));
        let test = read_test("1 1:1\n").unwrap();
        assert_eq!(
            (test.columns(), test.classes(), test.labels()),
            (5, 2, &[1][..])
        );
        assert_eq!(
            read_test("1 6:1\n").unwrap_err().to_string(),
            "t, line 1, column 3: expected a feature index of at most 5, the number of features in training, found \"6\""
        );
        assert!(
            read_test("3 1:1\n")
                .unwrap_err()
                .to_string()
                .contains("one of the known classes (-1, +1)")
        );
    }
}
