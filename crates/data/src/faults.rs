//! What is wrong with a table, collected while it is read: one entry for each column and kind of
//! fault, with how often it occurs and where it stands first, so that a person can put a file right
//! at once and not fault by fault.
//!
//! A table is private. [`Faults::lines`] therefore quotes fields only where it is asked to;
//! without, it tells places and kinds, and numbers of columns: what was taken for a header may be a
//! record. Costs: nothing for a table without faults; otherwise memory for the first few places of
//! each column and kind.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use super::reader::quote;

/// How many places of a fault are told.
const PLACES: usize = 3;

/// How many faults are told; a table with the wrong separator has one in every column.
const MOST_LINES: usize = 20;

/// What a field, or a whole row, has against it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// The file as a whole does not read as the table that was asked for.
    Layout,
    /// A row has more or fewer fields than the first line.
    Columns,
    /// A quote that is not closed in its line, or something right behind a closing one.
    Quote,
    /// A field without anything in it.
    Nothing,
    /// A feature that is no number.
    Text,
    /// A feature that is infinite or nan.
    NotFinite,
    /// A feature beyond 2^64.
    TooLarge,
    /// A label that cannot be taken.
    Label,
    /// A gap that the schema does not provide for.
    Gap,
    /// A category that the schema does not know.
    Unknown,
    /// What is neither yes nor no.
    Truth,
    /// What is no date.
    Date,
    /// Bytes that are no text.
    Encoding,
}

impl Kind {
    /// What is found, without saying what it is.
    fn found(self) -> &'static str {
        match self {
            Kind::Layout => "something else",
            Kind::Columns => "another number",
            Kind::Quote => "none",
            Kind::Nothing => "nothing",
            Kind::Text => "text",
            Kind::NotFinite => "infinity or nan",
            Kind::TooLarge => "a larger one",
            Kind::Label | Kind::Unknown | Kind::Truth | Kind::Date | Kind::Encoding => {
                "something else"
            }
            Kind::Gap => "a gap",
        }
    }

    /// What a person can do about it, who has a schema or has none.
    fn advice(self, by_schema: bool) -> Option<&'static str> {
        Some(match self {
            Kind::Layout => return None,
            Kind::Nothing if by_schema => "fill in what is missing, or leave those rows out",
            Kind::Text if by_schema => {
                "write numbers with a point and without units, list words that stand for a gap \
                 under `missing` in the schema, or give the column another kind or role there"
            }
            Kind::Label if by_schema => {
                "write the labels as the schema has them, or add what is missing to its `classes`"
            }
            Kind::Columns => {
                "give every row as many fields as the first line (a separator inside of a field \
                 needs quotes around it)"
            }
            Kind::Quote => {
                "close every quote in its line (a line is a row: take line breaks out of quoted \
                 text), and double quotes inside of quotes"
            }
            Kind::Nothing => {
                "fill in what is missing, leave those rows or columns out, or describe the table \
                 by a schema, which `soteria schema draft` proposes"
            }
            Kind::Text => {
                "write text as numbers (decimals with a point), leave the column out, or describe \
                 the table by a schema, which `soteria schema draft` proposes"
            }
            Kind::NotFinite | Kind::TooLarge => {
                "replace what is infinite, nan or beyond 2^64, or leave those rows out"
            }
            Kind::Label => {
                "the labels stand in the last column unless the source says which, as in \
                 csv:FILE?label=NAME, or a schema does, with all their classes"
            }
            Kind::Gap => {
                "say in the schema what a gap becomes: gap = \"indicator\" (the middle of the range \
                 or no category, and a feature that says so), or gap = \"neutral\" without that \
                 feature"
            }
            Kind::Unknown => {
                "add the value to the column's `values`, or say unknown = \"neutral\" or \
                 \"indicator\""
            }
            Kind::Truth => {
                "write yes or no (also true and false, 1 and 0), or name the two words: \
                 values = [\"M\", \"F\"] has the second one for yes"
            }
            Kind::Date => "write dates as 2024-12-31, 2024/12/31 or 31.12.2024",
            Kind::Encoding => {
                "write the file in UTF-8: with iconv -f LATIN1 -t UTF-8, if it is Latin-1"
            }
        })
    }
}

/// One kind of fault in one column.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Fault {
    expected: String,
    count: u64,
    /// The first lines, with what stands there.
    first: Vec<(u64, String)>,
}

/// Everything that is wrong with a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Faults {
    file: PathBuf,
    /// What the header calls the columns, if there is one.
    names: Option<Vec<String>>,
    rows: u64,
    /// What is counted to say where a row stands: lines, or rows.
    places: &'static str,
    /// Whether a schema says what should stand in the table.
    by_schema: bool,
    /// By column, counted from 0, whole rows first.
    faults: BTreeMap<(Option<usize>, Kind), Fault>,
}

impl Faults {
    /// None so far. Columns are called by their names if there are some, else by their numbers.
    pub(super) fn new(file: &Path, names: Option<Vec<String>>) -> Faults {
        Faults {
            file: file.to_owned(),
            names,
            rows: 0,
            places: "line",
            by_schema: false,
            faults: BTreeMap::new(),
        }
    }

    /// The same for a file whose rows are counted in these.
    pub(super) fn counted_in(self, places: &'static str) -> Faults {
        Faults { places, ..self }
    }

    /// The same for a table that a schema describes.
    pub(super) fn by_schema(self) -> Faults {
        Faults {
            by_schema: true,
            ..self
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.faults.is_empty()
    }

    /// A row more has been looked at.
    pub(super) fn count_row(&mut self) {
        self.rows += 1;
    }

    /// Adds what was found in a line, in a column counted from 0 or in the row as a whole.
    pub(super) fn add(
        &mut self,
        line: u64,
        column: Option<usize>,
        kind: Kind,
        expected: impl Into<String>,
        found: impl FnOnce() -> String,
    ) {
        let fault = self.faults.entry((column, kind)).or_insert_with(|| Fault {
            expected: expected.into(),
            count: 0,
            first: Vec::new(),
        });
        fault.count += 1;
        if fault.first.len() < PLACES {
            fault.first.push((line, found()));
        }
    }

    /// What is wrong, one fault a line. `values` allows to quote what stands in the file: only for
    /// the eyes of its owner.
    pub fn lines(&self, values: bool) -> Vec<String> {
        let shown = self.faults.iter().take(MOST_LINES);
        let mut lines: Vec<String> = shown
            .map(|(&(column, kind), fault)| self.line(column, kind, fault, values))
            .collect();
        let left = self.faults.len().saturating_sub(MOST_LINES);
        if left > 0 {
            let file = self.file.display();
            lines.push(format!(
                "{file}: {left} more faults like these in other columns"
            ));
        }
        lines
    }

    fn line(&self, column: Option<usize>, kind: Kind, fault: &Fault, values: bool) -> String {
        let file = self.file.display();
        let column = match column {
            None => String::new(),
            Some(column) if values => self.column(column),
            Some(column) => format!(", column {}", column + 1),
        };
        let expected = &fault.expected;
        if let ([(line, found)], 1) = (&fault.first[..], fault.count) {
            let found = if values { found } else { kind.found() };
            let place = match line {
                0 => String::new(),
                line => format!(", {} {line}", self.places),
            };
            return format!("{file}{place}{column}: expected {expected}, found {found}");
        }
        let quoted = values && kind != Kind::Nothing;
        let places: Vec<String> = fault
            .first
            .iter()
            .map(|(line, found)| match quoted && found != "nothing" {
                true => format!("{line} ({found})"),
                false => line.to_string(),
            })
            .collect();
        let found = kind.found();
        format!(
            "{file}{column}: expected {expected}, found {found} in {} of {} rows, \
             first in {}s {}",
            fault.count,
            self.rows,
            self.places,
            enumerate(&places)
        )
    }

    /// `, column "age"`: by its name if the header gives it one of its own, else by its number,
    /// counted from 1.
    fn column(&self, column: usize) -> String {
        let number = column + 1;
        let names = self.names.as_deref().unwrap_or_default();
        match names.get(column).filter(|name| !name.is_empty()) {
            None => format!(", column {number}"),
            Some(name) => {
                let quoted = quote(name.as_bytes());
                match names.iter().filter(|other| *other == name).count() {
                    1 => format!(", column {quoted}"),
                    _ => format!(", column {number} ({quoted})"),
                }
            }
        }
    }

    /// What a person can do about it.
    pub fn advice(&self) -> Option<String> {
        let only_first_line = |fault: &Fault| fault.count == 1 && fault.first[0].0 == 1;
        let could_be_names =
            |(key, fault): (&(_, Kind), &Fault)| key.1 == Kind::Text && only_first_line(fault);
        if self.names.is_none() && self.rows > 1 && self.faults.iter().all(could_be_names) {
            let advice = "if the first line names the columns, say so: csv:FILE?header=yes";
            return Some(advice.to_owned());
        }
        let mut kinds: Vec<Kind> = self.faults.keys().map(|&(_, kind)| kind).collect();
        kinds.sort_unstable();
        let advice = |kind: Kind| kind.advice(self.by_schema);
        let mut advice: Vec<&str> = kinds.into_iter().filter_map(advice).collect();
        advice.dedup();
        (!advice.is_empty()).then(|| advice.join("; "))
    }
}

/// `3`, `3 and 7`, `3, 7 and 9`.
fn enumerate(items: &[String]) -> String {
    match items {
        [before @ .., last] if !before.is_empty() => format!("{} and {last}", before.join(", ")),
        _ => items.concat(),
    }
}

/// All of it in one line, quotes included.
impl fmt::Display for Faults {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.lines(true).join("; "))
    }
}
