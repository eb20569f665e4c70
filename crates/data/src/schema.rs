//! What a table means, said in public: its columns with roles, kinds, ranges and values, and the
//! record-wise map that makes features of them.
//!
//! A number or a date `x` with the range `[lo, hi]` becomes `2u - 1` with
//! `u = clip((x - lo)/(hi - lo), 0, 1)`, and, if the schema says so, `2 sqrt(u) - 1` beside it; a
//! category becomes one coordinate of 0 and 1 for each of its values; yes and no become 1 and 0. A
//! gap stands where nothing is known: all of its column's features are 0, and an indicator may say
//! so.
//!
//! Every feature of a record follows from that record and the schema alone. The map therefore keeps
//! neighbouring data sets neighbouring, and a claim made for encoded records holds for the table.
//! It costs no privacy, provided that nobody looked at records to write the schema:
//! [`Ranges::ReadFromRecords`] says that somebody did.
//!
//! Values outside of a range are cut off, unknown categories taken as the schema says. Both are
//! counted ([`Adjustment`]) for the owner of the table, and for nobody else.

mod check;
mod columns;
mod date;
mod draft;
mod encode;
mod missing;
mod table;

use std::collections::HashSet;
use std::sync::Arc;

pub use check::{Checked, check};
pub use columns::ColumnFault;
pub use date::Date;
pub use draft::{Draft, Seen, draft};
pub use encode::Cell;
pub use table::Adjustment;
pub(crate) use table::{Groups, TableRows, read_tables};

use encode::Encoder;
use missing::Missing;

/// Whether the ranges and values of a schema were known without its records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ranges {
    /// A person says that they were.
    Public,
    /// They were read from records, by a draft: nothing can be claimed.
    ReadFromRecords,
}

/// How many features a number becomes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Numbers {
    /// One, `2u - 1`.
    #[default]
    Linear,
    /// Two, `2u - 1` and `2 sqrt(u) - 1`, for numbers that crowd at the lower end of their range.
    Root,
}

/// What becomes of a field that says nothing, or nothing known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Treatment {
    /// It is a fault of the table.
    Refuse,
    /// All features of the column are 0: the middle of a range, no category.
    Neutral,
    /// The same, and a feature of its own is 1.
    Indicator,
}

/// What the fields of a feature can be.
#[derive(Clone, Debug, PartialEq)]
pub enum ColumnKind {
    /// A number.
    Number {
        /// The lower end of its range.
        low: f64,
        /// The upper end.
        high: f64,
    },
    /// A number of which nobody knows the range: clients estimate it, privately, before the run.
    PrivateNumber,
    /// One of some values.
    Category {
        /// All of them, in the order of their features.
        values: Vec<String>,
        /// What becomes of other values.
        unknown: Treatment,
    },
    /// Yes or no, in one of the usual spellings or in these two words.
    YesNo {
        /// The words for no and yes.
        words: Option<[String; 2]>,
    },
    /// A date.
    Date {
        /// The first day of its range.
        low: Date,
        /// The last day.
        high: Date,
    },
}

/// What is predicted.
#[derive(Clone, Debug, PartialEq)]
pub enum Target {
    /// One of these classes, in this order.
    Classes(Arc<[String]>),
    /// A number in this range.
    Quantity {
        /// The lower end.
        low: f64,
        /// The upper end.
        high: f64,
    },
}

/// What a column is for.
#[derive(Clone, Debug, PartialEq)]
pub enum Role {
    /// The model sees it.
    Feature {
        /// What stands in it.
        kind: ColumnKind,
        /// What becomes of a gap.
        gap: Treatment,
    },
    /// The model predicts it.
    Label(Target),
    /// Nobody looks at it.
    Ignored,
    /// It says whose record this is, where several clients' records stand in one table.
    Client,
    /// It says which person a record is about.
    Person,
}

/// One column.
#[derive(Clone, Debug, PartialEq)]
pub struct Column {
    /// What the header calls it.
    pub name: String,
    /// What it is for.
    pub role: Role,
}

/// What stands in a schema that cannot be one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SchemaError(String);

/// Fields that say nothing, unless a schema lists others.
pub const MISSING: &[&str] = &["", "NA", "N/A", "NaN", "nan", "null", "NULL", "?"];

/// Most features that a schema may make of its columns.
const MOST_ENCODED: usize = 1 << 20;

/// A whole table's schema. What exists is consistent.
#[derive(Clone, Debug, PartialEq)]
pub struct TableSchema {
    ranges: Ranges,
    numbers: Numbers,
    missing: Missing,
    columns: Vec<Column>,
    encoders: Vec<Encoder>,
    features: Arc<[String]>,
}

impl TableSchema {
    /// Checks that these columns make a table. `missing` lists the fields that say nothing.
    ///
    /// # Errors
    /// With the first column that cannot be, and why.
    pub fn new(
        ranges: Ranges,
        numbers: Numbers,
        missing: Vec<String>,
        columns: Vec<Column>,
    ) -> Result<TableSchema, SchemaError> {
        check_roles(&columns)?;
        let mut encoders = Vec::new();
        for column in &columns {
            check_column(column)?;
            if let Role::Feature { kind, gap } = &column.role {
                encoders.push(Encoder::new(kind, *gap, numbers));
            }
        }
        let width: usize = encoders.iter().map(Encoder::width).sum();
        if width > MOST_ENCODED {
            return Err(SchemaError(format!(
                "the columns make {width} features, of at most {MOST_ENCODED}"
            )));
        }
        let features = columns.iter().flat_map(|column| names(column, numbers));
        let features: Arc<[String]> = features.collect();
        Ok(TableSchema {
            ranges,
            numbers,
            missing: Missing::new(missing),
            columns,
            encoders,
            features,
        })
    }

    /// Whether its ranges and values were known without records.
    pub fn ranges(&self) -> Ranges {
        self.ranges
    }

    /// How many features a number becomes.
    pub fn numbers(&self) -> Numbers {
        self.numbers
    }

    /// The fields that say nothing.
    pub fn missing(&self) -> &[String] {
        self.missing.words()
    }

    /// The columns, in the order of the table.
    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// What the features are called that the columns become, in their order.
    pub fn features(&self) -> &Arc<[String]> {
        &self.features
    }

    /// What is predicted.
    pub fn target(&self) -> &Target {
        let target = self.columns.iter().find_map(|column| match &column.role {
            Role::Label(target) => Some(target),
            _ => None,
        });
        target.expect("a schema has a label")
    }

    /// The name of the column with the label.
    pub fn label(&self) -> &str {
        let mut columns = self.columns.iter();
        let label = columns.find(|column| matches!(column.role, Role::Label(_)));
        label.map_or("", |column| &column.name)
    }

    /// The name of the column with this role, client or person.
    pub fn named_by(&self, role: &Role) -> Option<&str> {
        let mut columns = self.columns.iter();
        let found = columns.find(|column| column.role == *role);
        found.map(|column| &*column.name)
    }

    /// The features, by number, whose ranges nobody knows: read by this schema they are numbers as
    /// they stand in the table.
    pub fn private_numbers(&self) -> Vec<usize> {
        let (mut next, mut found) = (0, Vec::new());
        let kinds = self.columns.iter().filter_map(|column| match &column.role {
            Role::Feature { kind, .. } => Some(kind),
            _ => None,
        });
        for (kind, encoder) in kinds.zip(&self.encoders) {
            if *kind == ColumnKind::PrivateNumber {
                found.push(next);
            }
            next += encoder.width();
        }
        found
    }

    /// The same with ranges that were estimated, one for each of [`private_numbers`].
    ///
    /// [`private_numbers`]: Self::private_numbers
    ///
    /// # Errors
    /// When one is no range.
    pub fn with_ranges(&self, ranges: &[(f64, f64)]) -> Result<TableSchema, SchemaError> {
        let mut ranges = ranges.iter();
        let known = |column: &Column| {
            let mut column = column.clone();
            if let Role::Feature { kind, .. } = &mut column.role
                && *kind == ColumnKind::PrivateNumber
                && let Some(&(low, high)) = ranges.next()
            {
                *kind = ColumnKind::Number { low, high };
            }
            column
        };
        let columns = self.columns.iter().map(known).collect();
        TableSchema::new(
            self.ranges,
            self.numbers,
            self.missing.words().to_vec(),
            columns,
        )
    }

    /// The encoder of every feature column, in the order of columns.
    fn encoders(&self) -> &[Encoder] {
        &self.encoders
    }

    /// Whether a field says nothing.
    fn is_missing(&self, field: Cell<'_>) -> bool {
        self.missing.has(field)
    }
}

/// What the features of a column are called.
fn names(column: &Column, numbers: Numbers) -> Vec<String> {
    let Role::Feature { kind, gap } = &column.role else {
        return Vec::new();
    };
    let name = &column.name;
    let mut names = match kind {
        ColumnKind::Number { .. } | ColumnKind::PrivateNumber | ColumnKind::Date { .. } => {
            match numbers {
                Numbers::Linear => vec![name.clone()],
                Numbers::Root => vec![name.clone(), format!("sqrt({name})")],
            }
        }
        ColumnKind::YesNo { .. } => vec![name.clone()],
        ColumnKind::Category { values, unknown } => {
            let mut names: Vec<String> = values.iter().map(|v| format!("{name}={v}")).collect();
            if *unknown == Treatment::Indicator {
                names.push(format!("{name} is unknown"));
            }
            names
        }
    };
    if *gap == Treatment::Indicator {
        names.push(format!("{name} is missing"));
    }
    names
}

fn check_roles(columns: &[Column]) -> Result<(), SchemaError> {
    let mut seen = HashSet::new();
    for column in columns {
        if column.name.trim().is_empty() || column.name.contains(['\n', '\r']) {
            let reason = "every column needs a name of one line";
            return Err(SchemaError(reason.to_owned()));
        }
        if !seen.insert(&column.name) {
            return Err(wrong(column, "stands there twice"));
        }
    }
    let count = |is: fn(&Role) -> bool| columns.iter().filter(|c| is(&c.role)).count();
    let most_one = [
        (count(|role| matches!(role, Role::Label(_))), "label"),
        (count(|role| *role == Role::Client), "client"),
        (count(|role| *role == Role::Person), "person"),
    ];
    for (found, role) in most_one {
        if found > 1 {
            return Err(SchemaError(format!(
                "{found} columns have the role \"{role}\", of at most one"
            )));
        }
    }
    if most_one[0].0 == 0 {
        return Err(SchemaError(
            "no column has the role \"label\": say which one is predicted".to_owned(),
        ));
    }
    if count(|role| matches!(role, Role::Feature { .. })) == 0 {
        return Err(SchemaError("no column is a feature".to_owned()));
    }
    Ok(())
}

fn check_column(column: &Column) -> Result<(), SchemaError> {
    let range = |low: f64, high: f64| match (low, high) {
        (low, high) if low < high && (high - low).is_finite() => Ok(()),
        _ => Err(wrong(
            column,
            format!("expected a range [low, high] with low < high, found [{low}, {high}]"),
        )),
    };
    let list = |what: &str, values: &[String], least: usize| {
        let distinct: HashSet<&String> = values.iter().collect();
        if distinct.len() < values.len() {
            return Err(wrong(
                column,
                format!("one of its {what} stands there twice"),
            ));
        }
        if values.len() < least {
            let found = values.len();
            return Err(wrong(
                column,
                format!("expected at least {least} {what}, found {found}"),
            ));
        }
        if values.iter().any(|value| value.contains(['\n', '\r'])) {
            return Err(wrong(column, format!("{what} cannot have line breaks")));
        }
        Ok(())
    };
    match &column.role {
        Role::Feature { kind, .. } => match kind {
            ColumnKind::Number { low, high } => range(*low, *high),
            ColumnKind::Date { low, high } => range(f64::from(low.days()), f64::from(high.days())),
            ColumnKind::Category { values, .. } => list("values", values, 1),
            ColumnKind::YesNo { words: Some(words) } => list("values", words, 2),
            ColumnKind::YesNo { words: None } | ColumnKind::PrivateNumber => Ok(()),
        },
        Role::Label(Target::Classes(classes)) => list("classes", classes, 2),
        Role::Label(Target::Quantity { low, high }) => range(*low, *high),
        Role::Ignored | Role::Client | Role::Person => Ok(()),
    }
}

fn wrong(column: &Column, reason: impl std::fmt::Display) -> SchemaError {
    SchemaError(format!("column \"{}\": {reason}", column.name))
}
