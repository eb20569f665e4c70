//! Which column of a file is which column of a schema: by name, features in the schema's order.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;

use super::super::reader::quote;
use super::encode::Encoder;
use super::{Role, TableSchema};

/// How the columns of a file differ from those of a schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ColumnFault {
    /// The file lacks it.
    Missing(String),
    /// The schema lacks the column with this number, counted from 1.
    Unexpected {
        /// Its number.
        number: usize,
        /// What the file calls it.
        name: String,
    },
    /// Two columns of the file have this name.
    Twice(String),
    /// This feature stands behind that one, and the schema has them the other way round.
    Order(String, String),
    /// Without a header, columns are told apart by their number alone.
    Count {
        /// The schema's.
        expected: usize,
        /// The file's.
        found: usize,
    },
}

/// How many columns are told; a file with other columns altogether has a fault for each.
const MOST_LINES: usize = 20;

impl ColumnFault {
    /// All of a file, one a line, and how many more there are; `values` allows to quote what the
    /// file calls its columns.
    pub(crate) fn lines(faults: &[ColumnFault], file: &Path, values: bool) -> Vec<String> {
        let text = |fault: &ColumnFault| match values {
            true => fault.to_string(),
            false => fault.without_names(),
        };
        let file = file.display();
        let shown = faults.iter().take(MOST_LINES);
        let mut lines: Vec<String> = shown
            .map(|fault| format!("{file}: {}", text(fault)))
            .collect();
        let left = faults.len().saturating_sub(MOST_LINES);
        if left > 0 {
            lines.push(format!("{file}: {left} more columns that do not fit"));
        }
        lines
    }

    /// What a person can do about them, every sentence once.
    pub(crate) fn all_advice(faults: &[ColumnFault]) -> Vec<String> {
        let mut advice: Vec<String> = Vec::new();
        for fault in faults {
            if !advice.iter().any(|known| known == fault.advice()) {
                advice.push(fault.advice().to_owned());
            }
        }
        advice
    }

    /// The same without a word of the file's own, whose first line may be a record.
    pub fn without_names(&self) -> String {
        match self {
            ColumnFault::Unexpected { number, .. } => {
                format!("column {number} is not in the schema")
            }
            // What is in the schema is public.
            other => other.to_string(),
        }
    }

    /// What a person can do about it.
    pub(crate) fn advice(&self) -> &'static str {
        match self {
            ColumnFault::Missing(_) => {
                "the first line names the columns (of a file without such a line say ?header=no); \
                 a column that the file does not have is taken out of the schema"
            }
            ColumnFault::Unexpected { name, .. } if name.is_empty() => {
                "give every column a name in the first line; a separator at the end of every line \
                 makes one more column"
            }
            ColumnFault::Unexpected { .. } => {
                "columns that the model must not see stand in the schema with role = \"ignored\""
            }
            ColumnFault::Twice(_) => "give every column a name of its own",
            ColumnFault::Order(..) => {
                "write the features in the order of the schema, as every file of a run has them"
            }
            ColumnFault::Count { .. } => "without a header a file has exactly the schema's columns",
        }
    }
}

impl fmt::Display for ColumnFault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |name: &str| quote(name.as_bytes());
        match self {
            ColumnFault::Missing(name) => write!(formatter, "column {} is missing", text(name)),
            ColumnFault::Unexpected { number, name } if name.is_empty() => {
                write!(
                    formatter,
                    "column {number}, which has no name, is not in the schema"
                )
            }
            ColumnFault::Unexpected { name, .. } => {
                write!(formatter, "column {} is not in the schema", text(name))
            }
            ColumnFault::Twice(name) if name.is_empty() => {
                formatter.write_str("more than one column has no name")
            }
            ColumnFault::Twice(name) => {
                write!(formatter, "column {} stands there twice", text(name))
            }
            ColumnFault::Order(name, other) => write!(
                formatter,
                "column {} stands behind {}, and before it in the schema",
                text(name),
                text(other)
            ),
            ColumnFault::Count { expected, found } => write!(
                formatter,
                "expected the {expected} columns of the schema, found {found}"
            ),
        }
    }
}

/// What is done with a column of a file.
#[derive(Clone, Copy)]
pub(super) enum Use<'s> {
    /// It becomes features, from this one on.
    Feature { encoder: &'s Encoder, at: usize },
    /// It is predicted.
    Label,
    /// Nothing.
    Nothing,
}

/// The columns of a file as a schema sees them.
pub(super) struct Layout<'s> {
    pub(super) uses: Vec<Use<'s>>,
    /// Which columns name clients and people.
    pub(super) client: Option<usize>,
    pub(super) person: Option<usize>,
    /// What is wrong with them as a whole; what is wrong is not used.
    pub(super) faults: Vec<ColumnFault>,
}

impl<'s> Layout<'s> {
    /// Of a file with these names of columns. `client` names the column that deals the rows to
    /// clients instead of the schema's own. Without `labelled`, only features have to be there.
    pub(super) fn named(
        names: &[String],
        schema: &'s TableSchema,
        client: Option<&str>,
        labelled: bool,
    ) -> Layout<'s> {
        let mut places: HashMap<&str, usize> = HashMap::new();
        let mut faults = Vec::new();
        for (place, name) in names.iter().enumerate() {
            let first = *places.entry(name).or_insert(place) == place;
            let twice = || ColumnFault::Twice(name.clone());
            if !first && !faults.contains(&twice()) {
                faults.push(twice());
            }
        }
        let mut uses = vec![Use::Nothing; names.len()];
        let (mut encoders, mut at) = (schema.encoders().iter(), 0);
        let mut furthest: Option<(usize, &str)> = None;
        for column in schema.columns() {
            let found = places.remove(&*column.name);
            let needed;
            match &column.role {
                Role::Feature { .. } => {
                    let encoder = encoders
                        .next()
                        .expect("one encoder for each feature column");
                    if let Some(place) = found {
                        uses[place] = Use::Feature { encoder, at };
                        match furthest {
                            Some((before, name)) if place < before => {
                                faults
                                    .push(ColumnFault::Order(name.to_owned(), column.name.clone()));
                            }
                            _ => furthest = Some((place, &column.name)),
                        }
                    }
                    at += encoder.width();
                    needed = true;
                }
                Role::Label(_) => {
                    if let Some(place) = found {
                        uses[place] = Use::Label;
                    }
                    needed = labelled;
                }
                Role::Client | Role::Person | Role::Ignored => needed = false,
            }
            if needed && found.is_none() {
                faults.push(ColumnFault::Missing(column.name.clone()));
            }
        }
        let mut left: Vec<usize> = places.into_values().collect();
        left.sort_unstable();
        faults.extend(left.into_iter().map(|place| ColumnFault::Unexpected {
            number: place + 1,
            name: names[place].clone(),
        }));
        let place = |name: Option<&str>| names.iter().position(|n| Some(&**n) == name);
        Layout {
            uses,
            client: place(client.or(schema.named_by(&Role::Client))),
            person: place(schema.named_by(&Role::Person)),
            faults,
        }
    }

    /// Of a file without names, which has the schema's columns in the schema's order; where nobody
    /// needs a label, it may lack the one column with it.
    pub(super) fn counted(
        columns: usize,
        schema: &'s TableSchema,
        client: Option<&str>,
        labelled: bool,
    ) -> Layout<'s> {
        let all = schema.columns().iter();
        let without_label = !labelled && columns + 1 == schema.columns().len();
        let names: Vec<String> = all
            .filter(|column| !(without_label && matches!(column.role, Role::Label(_))))
            .map(|column| column.name.clone())
            .collect();
        let mut layout = Layout::named(&names, schema, client, labelled && !without_label);
        if names.len() != columns {
            layout.faults = vec![ColumnFault::Count {
                expected: schema.columns().len(),
                found: columns,
            }];
            layout.uses = vec![Use::Nothing; columns];
            (layout.client, layout.person) = (None, None);
        }
        layout
    }
}
