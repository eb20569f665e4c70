//! What real tables hold that no table should: told by column and kind, with what to do.

use std::path::Path;
use std::sync::Arc;

use soteriafl_data::csv::{Format, read_from};
use soteriafl_data::schema::{
    Column, ColumnKind, Draft, Numbers, Ranges, Role, TableSchema, Target, Treatment, draft,
};
use soteriafl_data::{DataError, Dataset, Schema};

fn feature(name: &str, kind: ColumnKind, gap: Treatment) -> Column {
    Column {
        name: name.to_owned(),
        role: Role::Feature { kind, gap },
    }
}

/// Columns age, city and y.
fn table(missing: &[&str]) -> Schema {
    let values = ["Ulm", "Köln"].map(str::to_owned).to_vec();
    let unknown = Treatment::Neutral;
    let classes = ["ill", "well"].map(str::to_owned);
    let columns = vec![
        feature(
            "age",
            ColumnKind::Number {
                low: 0.0,
                high: 100.0,
            },
            Treatment::Indicator,
        ),
        feature(
            "city",
            ColumnKind::Category { values, unknown },
            Treatment::Refuse,
        ),
        Column {
            name: "y".to_owned(),
            role: Role::Label(Target::Classes(classes.to_vec().into())),
        },
    ];
    let missing = missing.iter().map(|&word| word.to_owned()).collect();
    let table = TableSchema::new(Ranges::Public, Numbers::Linear, missing, columns).unwrap();
    Schema {
        table: Some(Arc::new(table)),
        ..Schema::default()
    }
}

fn read(bytes: &[u8], schema: &Schema) -> Result<Dataset, DataError> {
    read_from(bytes, Path::new("t.csv"), &Format::default(), schema)
}

#[test]
fn numbers_that_stand_for_gaps_are_gaps() {
    let schema = table(&["", "999", "-1"]);
    let data = read(
        b"age,city,y\n50,Ulm,ill\n999,Ulm,well\n-1,Ulm,ill\n,Ulm,ill\n",
        &schema,
    );
    let data = data.unwrap();
    assert_eq!(data.full_row(0)[..2], [0.0, 0.0]);
    for row in 1..4 {
        assert_eq!(data.full_row(row)[..2], [0.0, 1.0], "row {row}");
    }
}

#[test]
fn letters_of_another_encoding_are_no_unknown_category() {
    let latin: &[u8] = b"age,city,y\n50,K\xf6ln,ill\n50,Ulm,well\n50,K\xf6ln,ill\n50,Bonn,ill\n";
    let error = read(latin, &table(&[""])).unwrap_err();
    let lines = error.lines(true);
    assert_eq!(lines.len(), 1, "{lines:?}");
    let said =
        "t.csv, column \"city\": expected text in UTF-8, found something else in 2 of 4 rows";
    assert!(lines[0].starts_with(said), "{lines:?}");
    assert!(error.advice().unwrap().contains("iconv"));
    for latin in [
        &b"age,city,y\n50,Ulm,\xfcbel\n"[..],
        b"age,city,\xfc\n50,Ulm,ill\n",
    ] {
        let error = read(latin, &table(&[""])).unwrap_err();
        assert!(error.to_string().contains("UTF-8"), "{error}");
    }
}

#[test]
fn advice_knows_that_there_is_a_schema_already() {
    let text = b"age,city,y\nx,Ulm,ill\n50,,well\n50,Ulm,NA\n50,Ulm,sick\n";
    let error = read(text, &table(&["", "NA"])).unwrap_err();
    let lines = error.lines(true);
    assert_eq!(lines.len(), 4, "{lines:?}");
    assert!(
        lines[2].ends_with("column \"y\": expected a label, found \"NA\""),
        "{lines:?}"
    );
    let advice = error.advice().unwrap();
    assert!(
        !advice.contains("schema draft") && !advice.contains("?label"),
        "{advice}"
    );
    assert!(
        advice.contains("`classes`") && advice.contains("`missing`"),
        "{advice}"
    );
}

#[test]
fn columns_that_do_not_fit_are_told_once_and_not_without_end() {
    let schema = table(&[""]);
    let expect = |header: &str, said: &[&str]| {
        let text = format!(
            "{header}\n{}\n",
            "1,".repeat(header.matches(',').count()) + "1"
        );
        assert_eq!(
            read(text.as_bytes(), &schema).unwrap_err().lines(true),
            said
        );
    };
    expect(
        "age,city,y,",
        &["t.csv: column 4, which has no name, is not in the schema"],
    );
    expect(
        "age,city,y,age,age",
        &["t.csv: column \"age\" stands there twice"],
    );
    let many: String = (0..100).map(|place| format!("c{place},")).collect();
    let text = format!("{many}age,city,y\n");
    let error = read(text.as_bytes(), &schema).unwrap_err();
    let lines = error.lines(true);
    assert_eq!(lines.len(), 21);
    assert_eq!(lines[20], "t.csv: 80 more columns that do not fit");
    let advice = error.advice().unwrap();
    assert_eq!(advice.matches("role = \"ignored\"").count(), 1, "{advice}");
}

fn drafted(text: &[u8]) -> Result<Draft, DataError> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t.csv");
    std::fs::write(&path, text).unwrap();
    draft(&[path], &Format::default())
}

#[test]
fn a_draft_says_what_keeps_a_column_from_being_numbers() {
    let mut text = String::from("weight;height;since;y\n");
    for row in 0..200 {
        let weight = if row == 7 {
            "heavy".to_owned()
        } else {
            format!("{row}.5")
        };
        let since = match row {
            9 => "never".to_owned(),
            _ => format!("20{:02}-0{}-11", row % 90 + 10, row % 9 + 1),
        };
        text += &format!("{weight};1,{:03};{since};{}\n", row + 500, row % 2);
    }
    let draft = drafted(text.as_bytes()).unwrap();
    let because: Vec<&str> = draft.columns.iter().map(|seen| &*seen.because).collect();
    assert!(
        because[0].starts_with("199 numbers and 1 other values, such as \"heavy\""),
        "{because:?}"
    );
    assert!(
        because[1].starts_with("200 numbers with a comma"),
        "{because:?}"
    );
    assert!(
        because[2].starts_with("199 dates and 1 other values, such as \"never\""),
        "{because:?}"
    );
    for seen in &draft.columns[..3] {
        assert_eq!(seen.column.role, Role::Ignored);
    }
}

#[test]
fn a_draft_refuses_headers_that_name_nothing() {
    for (text, said) in [
        ("a,,y\n1,2,3\n", "none for column 2"),
        ("a,b,y,\n1,2,3,\n", "none for column 4"),
        ("a,a,y\n1,2,3\n", "more than one column \"a\""),
    ] {
        let error = drafted(text.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
    let error = drafted(b"a,b,y\n1,K\xf6ln,3\n").unwrap_err();
    assert!(
        error
            .to_string()
            .contains("column 2: expected text in UTF-8"),
        "{error}"
    );
}
