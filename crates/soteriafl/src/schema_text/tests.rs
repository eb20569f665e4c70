use super::*;

const WHOLE: &str = r#"
ranges = "public"
missing = ["", "-"]
numbers = "root"
columns = [
  { name = "age", kind = "number", range = [18, 90.5], gap = "neutral" },
  { name = "a \"b\", c", kind = "category", values = ["x", 2, ""], unknown = "indicator", gap = "indicator" },
  { name = "sex", kind = "yes/no", values = ["M", "F"] },
  { name = "paid", kind = "yes/no" },
  { name = "since", kind = "date", range = [2000-01-01, "2030-12-31"] },
  { name = "number", role = "ignored", kind = "number" },
  { name = "site", role = "client" },
  { name = "patient", role = "person" },
  { name = "status", role = "label", classes = ["bad", "good"] },
]
"#;

fn parse(text: &str) -> Result<TableSchema, ConfigError> {
    read(&text.parse().unwrap(), "s.toml")
}

#[test]
fn what_is_written_reads_back_in_every_form() {
    let schema = parse(WHOLE).unwrap();
    assert_eq!(
        schema.features()[..],
        [
            "age",
            "sqrt(age)",
            "a \"b\", c=x",
            "a \"b\", c=2",
            "a \"b\", c=",
            "a \"b\", c is unknown",
            "a \"b\", c is missing",
            "sex",
            "paid",
            "since",
            "sqrt(since)",
        ]
    );
    assert_eq!(schema.label(), "status");
    assert_eq!(schema.named_by(&Role::Person), Some("patient"));
    let text: String = lines(&schema)
        .iter()
        .map(|(key, value)| format!("{key} = {value}\n"))
        .collect();
    assert_eq!(parse(&text).unwrap(), schema);
    assert_eq!(from_json(&to_json(&schema)).unwrap(), schema);
    assert_eq!(
        to_json(&parse(&text).unwrap()).to_string(),
        to_json(&schema).to_string()
    );
    let file = tempfile::NamedTempFile::new().unwrap();
    for text in [text.clone(), format!("[schema]\n{text}")] {
        std::fs::write(file.path(), text).unwrap();
        assert_eq!(from_file(file.path()).unwrap(), schema);
    }
}

#[test]
fn what_is_wrong_is_told_with_its_column() {
    let table = |columns: &str| format!("ranges = \"public\"\ncolumns = [{columns}]");
    let label = "{ name = \"y\", role = \"label\", classes = [0, 1] }";
    for (columns, said) in [
        ("1", "column 1: expected { name"),
        ("{ kind = \"number\" }", "column 1: expected a `name`"),
        (
            "{ name = \"x\" }",
            "column \"x\": a feature needs its `kind`: number | category",
        ),
        (
            "{ name = \"x\", kind = \"int\" }",
            "`kind` expects number | category",
        ),
        (
            "{ name = \"x\", kind = \"number\" }",
            "a number needs its `range`",
        ),
        (
            "{ name = \"x\", kind = \"number\", range = [1] }",
            "`range` expects [low, high], found [1]",
        ),
        (
            "{ name = \"x\", kind = \"number\", range = [2, 2] }",
            "with low < high, found [2, 2]",
        ),
        (
            "{ name = \"x\", kind = \"number\", range = [nan, 2] }",
            "low < high",
        ),
        (
            "{ name = \"x\", kind = \"number\", range = [0, 1], values = [] }",
            "unknown key `values`",
        ),
        (
            "{ name = \"x\", kind = \"category\" }",
            "a category needs its `values`",
        ),
        (
            "{ name = \"x\", kind = \"category\", values = [1, 1] }",
            "one of its values stands there twice",
        ),
        (
            "{ name = \"x\", kind = \"yes/no\", values = [\"a\"] }",
            "the words for no and yes",
        ),
        (
            "{ name = \"x\", kind = \"date\", range = [\"2000-02-30\", \"2001-01-01\"] }",
            "a date needs its `range`",
        ),
        (
            "{ name = \"x\", role = \"target\" }",
            "`role` expects feature | label",
        ),
        (
            "{ name = \"x\", role = \"label\" }",
            "a label has `classes`",
        ),
        (
            "{ name = \"x\", kind = \"yes/no\", gap = \"mean\" }",
            "`gap` expects refuse | neutral | indicator",
        ),
        (label, "no column is a feature"),
        (
            "{ name = \"x\", kind = \"yes/no\" }",
            "no column has the role \"label\"",
        ),
        (&format!("{label}, {label}"), "stands there twice"),
    ] {
        // A range is looked at once there is a label.
        let listed = ["range = [", "values = ["]
            .iter()
            .any(|list| columns.contains(list));
        let labelled = match listed && !columns.contains("role") {
            true => format!("{columns}, {label}"),
            false => columns.to_string(),
        };
        let error = parse(&table(&labelled)).unwrap_err().to_string();
        assert!(
            error.starts_with("s.toml: ") && error.contains(said),
            "{error}\n{said}"
        );
    }
    let columns = format!("columns = [{{ name = \"x\", kind = \"yes/no\" }}, {label}]");
    for (head, said) in [
        ("", "`ranges` is missing"),
        (
            "ranges = \"mine\"",
            "`ranges` expects public | read from records, found \"mine\"",
        ),
        (
            "ranges = \"public\"\ntask = \"regression\"",
            "`task` contradicts the label",
        ),
        ("ranges = \"public\"\ncolumn = 1", "unknown key `column`"),
    ] {
        let error = parse(&format!("{head}\n{columns}"))
            .unwrap_err()
            .to_string();
        assert!(error.contains(said), "{error}");
    }
}
