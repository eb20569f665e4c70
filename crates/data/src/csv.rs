//! Tables of comma-separated values: numeric features and one column of class labels.
//!
//! A line is a row: quotes may hold separators, but no line break, so that one that is never closed
//! is an error at its place and not the rest of a file made a single label.

use std::io::Read;
use std::path::Path;

use super::reader::Input;
use super::table::{Reader, load, load_all};
use super::{DataError, Dataset, Schema};

pub use super::table::{Format, LabelColumn, TableKind};

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
    let rows = Reader::text(Input::new(name, reader)?.into_text()?, format);
    Ok(load_all([Ok(rows)].into_iter(), format, schema)?.0.train)
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
