//! The schema of a table as TOML, in a configuration under `[schema]` or in a file of its own, and
//! as JSON in a model file.
//!
//! ```toml
//! ranges = "public"          # or "read from records": a draft, with which a run claims nothing
//! columns = [
//!   { name = "age", kind = "number", range = [18, 90] },
//!   { name = "income", kind = "number", range = "private" },   # nobody knows: estimated privately
//!   { name = "job", kind = "category", values = ["fixed", "partime"], gap = "indicator" },
//!   { name = "married", kind = "yes/no" },
//!   { name = "since", kind = "date", range = ["2000-01-01", "2030-12-31"], gap = "neutral" },
//!   { name = "number", role = "ignored" },
//!   { name = "status", role = "label", classes = ["bad", "good"] },
//! ]
//! ```
//!
//! What is written reads back as the same schema, and equal schemas are equal text.

use std::path::Path;

use soteriafl_data::TableSchema;
use soteriafl_data::schema::{
    Column, ColumnKind, Date, Draft, MISSING, Numbers, Ranges, Role, Target, Treatment,
};
use toml::{Table, Value};

use crate::config::ConfigError;

const RANGES: &[(&str, Ranges)] = &[
    ("public", Ranges::Public),
    ("read from records", Ranges::ReadFromRecords),
];
const NUMBERS: &[(&str, Numbers)] = &[("linear", Numbers::Linear), ("root", Numbers::Root)];
const TREATMENTS: &[(&str, Treatment)] = &[
    ("refuse", Treatment::Refuse),
    ("neutral", Treatment::Neutral),
    ("indicator", Treatment::Indicator),
];
const TASKS: &[(&str, bool)] = &[("classification", true), ("regression", false)];
/// What stands for the range of a number that nobody knows.
const PRIVATE: &str = "private";
const KINDS: &str = "number | category | yes/no | date";
const ROLES: &str = "feature | label | ignored | client | person";

/// Reads the keys of a schema; `place` is where they stand.
///
/// # Errors
/// With the key or the column that is wrong, and what it should be.
pub fn read(table: &Table, place: &str) -> Result<TableSchema, ConfigError> {
    let keys = Keys { table, place };
    keys.only(&["ranges", "task", "numbers", "missing", "columns"])?;
    let ranges = keys.choice("ranges", RANGES)?.ok_or_else(|| {
        keys.wrong(
            "`ranges` is missing: \"public\" says that nobody looked at records for the \
                    ranges and values, \"read from records\" that somebody did",
        )
    })?;
    let numbers = keys.choice("numbers", NUMBERS)?.unwrap_or_default();
    let missing = match keys.texts("missing")? {
        Some(words) => words,
        None => MISSING.iter().map(|&word| word.to_owned()).collect(),
    };
    let columns = match table.get("columns") {
        Some(Value::Array(columns)) if !columns.is_empty() => columns,
        _ => return Err(keys.wrong("`columns` expects a list of columns, one { name = ... } each")),
    };
    let columns = columns.iter().enumerate();
    let columns = columns.map(|(number, value)| column(value, number + 1, place));
    let columns = columns.collect::<Result<Vec<Column>, _>>()?;
    let schema = TableSchema::new(ranges, numbers, missing, columns)
        .map_err(|error| keys.wrong(&error.to_string()))?;
    if let Some(classes) = keys.choice("task", TASKS)?
        && classes != matches!(schema.target(), Target::Classes(_))
    {
        return Err(keys.wrong(
            "`task` contradicts the label: classification has `classes`, regression a `range`",
        ));
    }
    Ok(schema)
}

/// Reads a file with the keys of a schema, at its top or under `[schema]`.
///
/// # Errors
/// When it cannot be read, or is none.
pub fn from_file(path: &Path) -> Result<TableSchema, ConfigError> {
    let place = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|error| ConfigError::Unreadable {
        path: place.clone(),
        reason: error.to_string(),
    })?;
    let table: Table = text.parse().map_err(|error: toml::de::Error| {
        let at = error.span().map_or(0, |span| span.start);
        let line = text[..at.min(text.len())].matches('\n').count() + 1;
        ConfigError::Syntax {
            place: format!("{place}:{line}"),
            reason: error.message().replace('\n', ", "),
        }
    })?;
    match table.get("schema") {
        Some(Value::Table(inner)) if table.len() == 1 => read(inner, &place),
        _ => read(&table, &place),
    }
}

/// Reads what [`to_json`] has made.
///
/// # Errors
/// When it is no schema.
pub fn from_json(value: &serde_json::Value) -> Result<TableSchema, ConfigError> {
    let table = serde_json::from_value(value.clone());
    let table: Table = table.map_err(|error| ConfigError::conflict(format!("schema: {error}")))?;
    read(&table, "schema")
}

/// The schema for programs in other languages.
pub fn to_json(schema: &TableSchema) -> serde_json::Value {
    serde_json::to_value(to_value(schema)).expect("what TOML can say, JSON can")
}

/// The schema as one TOML value.
pub fn to_value(schema: &TableSchema) -> Value {
    let mut text = String::new();
    for (key, value) in lines(schema) {
        text += &format!("{key} = {value}\n");
    }
    Value::Table(text.parse().expect("what was just written is TOML"))
}

/// The keys of the schema with their values, for a section of a configuration.
pub fn lines(schema: &TableSchema) -> Vec<(&'static str, String)> {
    let mut lines = head(schema);
    let columns = schema.columns().iter();
    let columns: String = columns
        .map(|c| format!("  {},\n", column_text(c)))
        .collect();
    lines.push(("columns", format!("[\n{columns}]")));
    lines
}

/// A draft as a file of its own, with what was seen of every column.
pub fn draft(draft: &Draft, schema: &TableSchema, source: &str) -> String {
    let mut text = format!(
        "# A schema drafted from {source}, {rows} rows.\n\
         #\n\
         # Its ranges, values and classes were read from these records, so a run with it claims\n\
         # nothing. Go through the columns: give each range and list as you would know it without\n\
         # these records (a percentage lies in [0, 100], an age in [18, 100]), leave out columns\n\
         # that should not be seen (role = \"ignored\"), and then say so here: ranges = \"public\".\n\
         # Values outside of a range are cut off, so it need not hold every record.\n\
         #\n\
         # kind: {KINDS}\n\
         # role: {ROLES} (feature, unless it is said)\n\
         # gap, what a missing value becomes: refuse (unless it is said) | neutral (the middle of\n\
         #   the range, or no category) | indicator (the same, and a feature that says so)\n\
         # unknown, what another category becomes: neutral (unless it is said) | indicator | refuse\n\
         # The comments tell what stands in the records. They are for you: delete them before you\n\
         # give this file away.\n\n",
        rows = draft.rows,
    );
    for (key, value) in head(schema) {
        text += &format!("{key} = {value}\n");
    }
    text += "columns = [\n";
    for seen in &draft.columns {
        let because = seen.because.replace(|c: char| c.is_control(), " ");
        text += &format!("  # {because}\n  {},\n", column_text(&seen.column));
    }
    text + "]\n"
}

fn head(schema: &TableSchema) -> Vec<(&'static str, String)> {
    let task = matches!(schema.target(), Target::Classes(_));
    let mut head = vec![
        ("ranges", string(name(RANGES, schema.ranges()))),
        ("task", string(name(TASKS, task))),
    ];
    if schema.numbers() != Numbers::default() {
        head.push(("numbers", string(name(NUMBERS, schema.numbers()))));
    }
    head.push(("missing", list(schema.missing())));
    head
}

/// One column, in one line.
fn column_text(column: &Column) -> String {
    let mut parts = vec![format!("name = {}", string(&column.name))];
    let range = |low: f64, high: f64| format!("range = [{}, {}]", number(low), number(high));
    match &column.role {
        Role::Ignored => parts.push("role = \"ignored\"".to_owned()),
        Role::Client => parts.push("role = \"client\"".to_owned()),
        Role::Person => parts.push("role = \"person\"".to_owned()),
        Role::Label(target) => {
            parts.push("role = \"label\"".to_owned());
            parts.push(match target {
                Target::Classes(classes) => format!("classes = {}", list(classes)),
                Target::Quantity { low, high } => range(*low, *high),
            });
        }
        Role::Feature { kind, gap } => {
            match kind {
                ColumnKind::Number { low, high } => {
                    parts.extend(["kind = \"number\"".to_owned(), range(*low, *high)]);
                }
                ColumnKind::PrivateNumber => parts.extend([
                    "kind = \"number\"".to_owned(),
                    format!("range = \"{PRIVATE}\""),
                ]),
                ColumnKind::Date { low, high } => parts.extend([
                    "kind = \"date\"".to_owned(),
                    format!("range = [\"{low}\", \"{high}\"]"),
                ]),
                ColumnKind::YesNo { words } => {
                    parts.push("kind = \"yes/no\"".to_owned());
                    let words = words
                        .as_ref()
                        .map(|words| format!("values = {}", list(words)));
                    parts.extend(words);
                }
                ColumnKind::Category { values, unknown } => {
                    parts.push("kind = \"category\"".to_owned());
                    parts.push(format!("values = {}", list(values)));
                    if *unknown != Treatment::Neutral {
                        parts.push(format!("unknown = \"{}\"", name(TREATMENTS, *unknown)));
                    }
                }
            }
            if *gap != Treatment::Refuse {
                parts.push(format!("gap = \"{}\"", name(TREATMENTS, *gap)));
            }
        }
    }
    format!("{{ {} }}", parts.join(", "))
}

/// Reads one column.
fn column(value: &Value, number: usize, place: &str) -> Result<Column, ConfigError> {
    let unnamed = format!("{place}: column {number}");
    let Value::Table(table) = value else {
        return Err(ConfigError::conflict(format!(
            "{unnamed}: expected {{ name = \"...\", kind = \"...\" }}, found {value}"
        )));
    };
    let Some(name) = table.get("name").and_then(Value::as_str) else {
        return Err(ConfigError::conflict(format!(
            "{unnamed}: expected a `name`"
        )));
    };
    let place = format!("{place}: column \"{}\"", name.escape_debug());
    let keys = Keys {
        table,
        place: &place,
    };
    let role = match keys.text("role")?.unwrap_or("feature") {
        "feature" => {
            let gap = keys.choice("gap", TREATMENTS)?.unwrap_or(Treatment::Refuse);
            let kind = keys.kind()?;
            Role::Feature { kind, gap }
        }
        "label" => {
            keys.only(&["name", "role", "classes", "range"])?;
            match (keys.texts("classes")?, keys.range("range")?) {
                (Some(classes), None) => Role::Label(Target::Classes(classes.into())),
                (None, Some((low, high))) => Role::Label(Target::Quantity { low, high }),
                _ => {
                    return Err(keys.wrong(
                        "a label has `classes`, all of them in a list, or, if it is a quantity, a \
                         `range`",
                    ));
                }
            }
        }
        "ignored" => Role::Ignored,
        "client" => Role::Client,
        "person" => Role::Person,
        other => return Err(keys.expects("role", ROLES, &format!("\"{other}\""))),
    };
    if matches!(role, Role::Client | Role::Person) {
        keys.only(&["name", "role"])?;
    }
    let name = name.to_owned();
    Ok(Column { name, role })
}

/// The keys of one table, and where they stand.
struct Keys<'a> {
    table: &'a Table,
    place: &'a str,
}

impl Keys<'_> {
    fn wrong(&self, reason: &str) -> ConfigError {
        ConfigError::conflict(format!("{}: {reason}", self.place))
    }

    fn expects(&self, key: &str, expected: &str, found: &str) -> ConfigError {
        self.wrong(&format!("`{key}` expects {expected}, found {found}"))
    }

    /// Refuses keys that mean nothing here.
    fn only(&self, known: &[&str]) -> Result<(), ConfigError> {
        match self.table.keys().find(|key| !known.contains(&&***key)) {
            None => Ok(()),
            Some(key) => Err(self.wrong(&format!(
                "unknown key `{key}`; possible here: {}",
                known.join(", ")
            ))),
        }
    }

    fn text(&self, key: &str) -> Result<Option<&str>, ConfigError> {
        match self.table.get(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.expects(key, "text in quotes", &other.to_string())),
        }
    }

    /// A list of texts; numbers in it are taken as they are written.
    fn texts(&self, key: &str) -> Result<Option<Vec<String>>, ConfigError> {
        let Some(value) = self.table.get(key) else {
            return Ok(None);
        };
        let text = |value: &Value| match value {
            Value::String(text) => Some(text.clone()),
            Value::Integer(_) | Value::Float(_) => Some(value.to_string()),
            _ => None,
        };
        let texts = value.as_array().map(|list| list.iter().map(text).collect());
        let texts: Option<Option<Vec<String>>> = texts;
        match texts.flatten() {
            Some(texts) => Ok(Some(texts)),
            None => Err(self.expects(key, "a list of texts", &value.to_string())),
        }
    }

    fn range(&self, key: &str) -> Result<Option<(f64, f64)>, ConfigError> {
        let Some(value) = self.table.get(key) else {
            return Ok(None);
        };
        let number = |value: &Value| match value {
            Value::Integer(number) => Some(*number as f64),
            Value::Float(number) => Some(*number),
            _ => None,
        };
        match value.as_array().map(Vec::as_slice) {
            Some([low, high]) if number(low).is_some() && number(high).is_some() => {
                Ok(number(low).zip(number(high)))
            }
            _ => Err(self.expects(key, "[low, high]", &value.to_string())),
        }
    }

    fn choice<T: Copy>(&self, key: &str, choices: &[(&str, T)]) -> Result<Option<T>, ConfigError> {
        let Some(text) = self.text(key)? else {
            return Ok(None);
        };
        match choices.iter().find(|(name, _)| *name == text) {
            Some((_, choice)) => Ok(Some(*choice)),
            None => {
                let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
                Err(self.expects(key, &names.join(" | "), &format!("\"{text}\"")))
            }
        }
    }

    fn kind(&self) -> Result<ColumnKind, ConfigError> {
        const COMMON: [&str; 4] = ["name", "role", "kind", "gap"];
        let only = |more: &[&str]| self.only(&[&COMMON[..], more].concat());
        match self.text("kind")? {
            Some("number") => {
                only(&["range"])?;
                if self.table.get("range").and_then(Value::as_str) == Some(PRIVATE) {
                    return Ok(ColumnKind::PrivateNumber);
                }
                let (low, high) = self.range("range")?.ok_or_else(|| {
                    self.wrong(
                        "a number needs its `range`, [low, high]; what lies outside is cut off. Who knows \
                         none says \"private\": then a share of the budget estimates it",
                    )
                })?;
                Ok(ColumnKind::Number { low, high })
            }
            Some("date") => {
                only(&["range"])?;
                let days = self.table.get("range").and_then(Value::as_array);
                match days
                    .map(|days| days.iter().map(day).collect::<Vec<_>>())
                    .as_deref()
                {
                    Some(&[Some(low), Some(high)]) => Ok(ColumnKind::Date { low, high }),
                    _ => {
                        Err(self
                            .wrong("a date needs its `range`, [\"2000-01-01\", \"2030-12-31\"]"))
                    }
                }
            }
            Some("yes/no") => {
                only(&["values"])?;
                let words = match self.texts("values")? {
                    None => None,
                    Some(words) => Some(<[String; 2]>::try_from(words).map_err(|_| {
                        self.wrong("`values` expects the words for no and yes, in this order")
                    })?),
                };
                Ok(ColumnKind::YesNo { words })
            }
            Some("category") => {
                only(&["values", "unknown"])?;
                let values = self.texts("values")?;
                let values = values.ok_or_else(|| self.wrong("a category needs its `values`"))?;
                let unknown = self.choice("unknown", TREATMENTS)?;
                let unknown = unknown.unwrap_or(Treatment::Neutral);
                Ok(ColumnKind::Category { values, unknown })
            }
            Some(other) => Err(self.expects("kind", KINDS, &format!("\"{other}\""))),
            None => Err(self.wrong(&format!("a feature needs its `kind`: {KINDS}"))),
        }
    }
}

fn day(value: &Value) -> Option<Date> {
    match value {
        Value::String(text) => text.parse().ok(),
        Value::Datetime(day) => day.to_string().parse().ok(),
        _ => None,
    }
}

fn name<T: PartialEq>(choices: &[(&'static str, T)], value: T) -> &'static str {
    let found = choices.iter().find(|(_, choice)| *choice == value);
    found.map_or("", |(name, _)| name)
}

fn string(text: &str) -> String {
    Value::String(text.to_owned()).to_string()
}

fn list(texts: &[String]) -> String {
    let texts: Vec<String> = texts.iter().map(|text| string(text)).collect();
    format!("[{}]", texts.join(", "))
}

/// The shortest text that reads back as the same number.
fn number(value: f64) -> String {
    if value.fract() == 0.0 && value.abs() < 1e15 {
        format!("{}", value as i64)
    } else {
        Value::Float(value).to_string()
    }
}

#[cfg(test)]
mod tests;
