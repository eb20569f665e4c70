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
use std::path::{Path, PathBuf};

use super::faults::{Faults, Kind};
use super::labels::{Labels, Schema};
use super::reader::{Input, feature_value, quote};
use super::schema::{Cell, Groups, read_tables};
use super::source::Loaded;
use super::{DataError, Dataset, DenseRows, Features, OtherName, Place};

mod lines;

pub(super) use lines::Lines;

/// How a table is laid out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Format {
    /// Where the labels stand.
    pub label: LabelColumn,
    /// Whether the first line names the columns; without it, its content decides.
    pub header: Option<bool>,
    /// What stands between the fields; without it, the first lines show it.
    pub separator: Option<u8>,
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
            separator: None,
        }
    }
}

/// Reads a file, plain or packed.
pub fn read(path: &Path, format: &Format, schema: &Schema) -> Result<Dataset, DataError> {
    Ok(load(path, format, schema)?.train)
}

/// Reads from anything that gives bytes, plain or packed; `name` stands in error messages.
pub fn read_from(
    reader: impl Read,
    name: &Path,
    format: &Format,
    schema: &Schema,
) -> Result<Dataset, DataError> {
    let input = Input::new(name, reader)?;
    Ok(load_all([Ok(input)].into_iter(), format, schema)?.0.train)
}

/// Reads a file with all that is known of its rows.
pub(super) fn load(path: &Path, format: &Format, schema: &Schema) -> Result<Loaded, DataError> {
    Ok(load_all([Input::open(path)].into_iter(), format, schema)?.0)
}

/// Reads files as one table, and says how many rows each has.
pub(super) fn load_all<'a>(
    inputs: impl Iterator<Item = Result<Input<'a>, DataError>>,
    format: &Format,
    schema: &Schema,
) -> Result<(Loaded, Vec<usize>), DataError> {
    match &schema.table {
        Some(table) => {
            let (rows, counts) = read_tables(inputs, format, table, schema)?;
            Ok((rows.into(), counts))
        }
        None => parse(inputs, format, schema),
    }
}

/// Gives every line of a file, its header included, to `take`, field by field.
pub(super) fn for_each_row(
    path: &Path,
    format: &Format,
    take: &mut dyn FnMut(&[&[u8]]),
) -> Result<(), DataError> {
    let mut lines = Lines::new(Input::open(path)?, format.separator);
    while lines.advance()? {
        let mut faults = Faults::new(path, None);
        if lines.add_broken(&mut faults) {
            return Err(DataError::Table(Box::new(faults)));
        }
        take(&lines.fields().collect::<Vec<_>>());
    }
    Ok(())
}

/// Reads tables whose features are numbers; all have the columns of the first.
fn parse<'a>(
    inputs: impl Iterator<Item = Result<Input<'a>, DataError>>,
    format: &Format,
    schema: &Schema,
) -> Result<(Loaded, Vec<usize>), DataError> {
    let mut schema = schema.clone();
    let mut rows = Rows::new(&schema);
    let (mut counts, mut first, mut last) = (Vec::new(), None, PathBuf::new());
    for input in inputs {
        let mut lines = Lines::new(input?, format.separator);
        let path = lines.input.path().to_owned();
        let empty = || DataError::Empty {
            place: Place::file(&path),
        };
        if !lines.advance()? {
            return Err(empty());
        }
        let layout = Layout::new(&lines, format, &schema)?;
        rows.faults = Faults::new(&path, layout.header.then(|| layout.names.clone()));
        let before = rows.count;
        let mut more = !layout.header || lines.advance()?;
        while more {
            rows.faults.count_row();
            layout.push_row(&lines, &mut rows);
            more = lines.advance()?;
        }
        if !rows.faults.is_empty() {
            return Err(DataError::Table(Box::new(rows.faults)));
        }
        if rows.count == before {
            return Err(empty());
        }
        counts.push(rows.count - before);
        schema.columns = Some(layout.features());
        if schema.feature_names.is_none() && layout.header {
            schema.feature_names = Some(layout.feature_names().into());
        }
        first.get_or_insert(layout);
        last = path;
    }
    let layout = first.ok_or_else(|| DataError::Empty {
        place: Place::file(&last),
    })?;
    Ok((rows.finish(&last, &layout, &schema)?, counts))
}

/// What is kept of rows.
struct Rows {
    faults: Faults,
    labels: Labels,
    values: Vec<f32>,
    clients: Groups,
    count: usize,
}

impl Rows {
    fn new(schema: &Schema) -> Rows {
        Rows {
            faults: Faults::new(Path::new(""), None),
            labels: Labels::new(false, schema),
            values: Vec::new(),
            clients: Groups::default(),
            count: 0,
        }
    }

    /// All of them, in the columns of `layout`.
    fn finish(self, path: &Path, layout: &Layout, schema: &Schema) -> Result<Loaded, DataError> {
        let labels = match schema.unlabelled {
            true => schema.unknown(self.count)?,
            false => self.labels.finish(path)?,
        };
        let features = Features::Dense(DenseRows::new(layout.features(), self.values)?);
        let mut data = Dataset::labelled(features, labels)?;
        if layout.header {
            data = data.with_feature_names(layout.feature_names())?;
        }
        Ok(Loaded {
            clients: layout.client.map(|_| self.clients.finish()),
            ..Loaded::new(data, None)
        })
    }
}

/// What the first line tells about all of them.
struct Layout {
    /// The fields of the first line: what the columns are called, if it is a header.
    names: Vec<String>,
    /// Which column is the label; none where nobody needs one and it is not there.
    label: Option<usize>,
    /// Which column says whose record each row is.
    client: Option<usize>,
    header: bool,
    /// Whether nobody looks at labels.
    unlabelled: bool,
}

impl Layout {
    fn new(lines: &Lines<'_>, format: &Format, schema: &Schema) -> Result<Layout, DataError> {
        let mut faults = Faults::new(lines.input.path(), None);
        if lines.add_broken(&mut faults) {
            return Err(DataError::Table(Box::new(faults)));
        }
        let columns = lines.len();
        if columns < 2 {
            let expected = "at least two columns, features and a label";
            let found = match other_separator(lines.text()) {
                Some(option) => format!("{columns} (perhaps with ?separator={option})"),
                None => columns.to_string(),
            };
            return Err(lines.unfit(expected, found));
        }
        let client = schema.client_column.as_deref();
        let client = client.and_then(|name| lines.fields().position(|f| f == name.as_bytes()));
        let taken = usize::from(client.is_some());
        let only_features = schema.columns == Some(columns - taken);
        let label = match schema.unlabelled && only_features {
            true => None,
            false => Some(label_column(lines, &format.label, client)?),
        };
        let is_number = |field: &[u8]| number(field).is_some();
        let named = matches!(format.label, LabelColumn::Name(_));
        let features = || {
            let fields = lines.fields().enumerate();
            fields.filter_map(|(place, field)| {
                (Some(place) != label && Some(place) != client).then_some(field)
            })
        };
        let header = format
            .header
            .unwrap_or_else(|| named || client.is_some() || !features().any(is_number));
        let layout = Layout {
            names: lines.texts(),
            label,
            client,
            header,
            unlabelled: schema.unlabelled,
        };
        // Names say more than their number, so they are compared first.
        if let (Some(expected), true) = (&schema.feature_names, header)
            && let Some(mut difference) = OtherName::first(expected, &layout.feature_names())
        {
            difference.guessed = format.header.is_none() && !named;
            let place = Place::line(lines.input.path(), lines.number);
            return Err(DataError::Names { place, difference });
        }
        if layout.features() == 0 {
            return Err(lines.unfit("at least one feature", format!("{columns} columns")));
        }
        if let Some(known) = schema.columns.filter(|&known| known != layout.features()) {
            let expected = format!("{known} features, as in training, and a label");
            return Err(lines.unfit(expected, format!("{columns} columns")));
        }
        Ok(layout)
    }

    fn is_feature(&self, place: usize) -> bool {
        Some(place) != self.label && Some(place) != self.client
    }

    /// How many features there are.
    fn features(&self) -> usize {
        (0..self.names.len())
            .filter(|&place| self.is_feature(place))
            .count()
    }

    /// What the features are called, if the first line is a header.
    fn feature_names(&self) -> Vec<String> {
        let names = self.names.iter().enumerate();
        let features = names.filter(|&(place, _)| self.is_feature(place));
        features.map(|(_, name)| name.clone()).collect()
    }

    /// Adds a row, or what is wrong with it. Nothing is stored any more once anything was wrong.
    fn push_row(&self, lines: &Lines<'_>, rows: &mut Rows) {
        let line = lines.number;
        let Rows {
            faults,
            labels,
            values,
            clients,
            count,
        } = rows;
        *count += 1;
        if lines.add_broken(faults) {
            return;
        }
        if lines.len() != self.names.len() {
            let expected = format!("{} columns, as in the first line", self.names.len());
            let found = || lines.len().to_string();
            faults.add(line, None, Kind::Columns, expected, found);
            return;
        }
        for (place, field) in lines.fields().enumerate() {
            let checked = if Some(place) == self.client {
                let named = clients.push(Cell::Text(field));
                let expected = || (Kind::Nothing, "the name of a client".to_owned());
                named.then_some(()).ok_or_else(expected)
            } else if Some(place) == self.label && self.unlabelled {
                Ok(())
            } else if Some(place) == self.label {
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
fn label_column(
    lines: &Lines<'_>,
    label: &LabelColumn,
    client: Option<usize>,
) -> Result<usize, DataError> {
    let columns = lines.len();
    match label {
        // The last one that could be it.
        LabelColumn::Last if client == Some(columns - 1) => Ok(columns - 2),
        LabelColumn::Last => Ok(columns - 1),
        LabelColumn::Number(number) if (1..=columns).contains(number) => Ok(number - 1),
        LabelColumn::Number(number) => {
            let expected = format!("a label in column {number}");
            Err(lines.unfit(expected, format!("{columns} columns")))
        }
        LabelColumn::Name(name) => {
            let fields = lines.fields().enumerate();
            let mut named = fields.filter(|(_, field)| *field == name.as_bytes());
            match (named.next(), named.next()) {
                (Some((label, _)), None) => Ok(label),
                _ => {
                    let expected = format!("a header with one column \"{name}\"");
                    let found = lines.fields().collect::<Vec<_>>().join(&b", "[..]);
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
            separator: Some(b';'),
            ..Format::default()
        };
        // Said or found.
        for format in [semicolons, Format::default()] {
            let data = read_text("\u{feff}a;b;c\r\n1;2;0\r\n", &format).unwrap();
            assert_eq!(data.full_row(0), [1.0, 2.0]);
        }
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
            let commas = Format {
                separator: Some(b','),
                ..Format::default()
            };
            let error = read_text(text, &commas).unwrap_err().to_string();
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
            separator: Some(b'\t'),
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
