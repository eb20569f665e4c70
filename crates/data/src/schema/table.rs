//! Rows of a table read through its schema: features, labels, and whose record each row is.
//!
//! Every format gives rows of [`Cell`]s, and [`Rows`] takes them one after the other: a file is
//! read once, front to back, and what is kept of a row is its features, as 32-bit numbers, its
//! class, and a number for client and person where the schema names them.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;

use super::super::faults::{Faults, Kind};
use super::super::labels::Labels;
use super::super::reader::quote;
use super::super::table::{Format, Reader};
use soteriafl_core::data::TargetRange;

use super::super::{
    DataError, Dataset, DenseRows, Features, Grouping, OtherName, Place, RecordsError, Schema,
};
use super::columns::{Layout, Use};
use super::encode::{Cell, Fit};
use super::{TableSchema, Target};

/// From here on not every whole number has a number of its own.
const INEXACT: f64 = 9_007_199_254_740_992.0;

/// What was found in a column that the schema does not know, and how often: for the table's owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adjustment {
    /// The column.
    pub column: String,
    /// How many values lie outside of its range, or are none of its categories.
    pub values: u64,
    /// Of so many rows.
    pub rows: u64,
    /// Whether they were cut off at the ends of a range; else they are unknown categories.
    pub cut: bool,
    /// The range, or the categories.
    pub known: String,
}

impl fmt::Display for Adjustment {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let column = quote(self.column.as_bytes());
        let (values, rows, known) = (self.values, self.rows, &self.known);
        match self.cut {
            true => write!(
                formatter,
                "column {column}: {values} of {rows} values lie outside of {known} and are cut off"
            ),
            false => write!(
                formatter,
                "column {column}: {values} of {rows} values are not {known}, and count as unknown"
            ),
        }
    }
}

/// A table that was read.
pub(crate) struct TableRows {
    pub(crate) data: Dataset,
    pub(crate) adjustments: Vec<Adjustment>,
    pub(crate) clients: Option<Grouping>,
    pub(crate) people: Option<Grouping>,
}

/// Reads files as one table through `table`, and says how many rows each has; `schema` says
/// whether labels are needed and which column deals the rows to clients.
pub(crate) fn read_tables<'a>(
    files: impl Iterator<Item = Result<Reader<'a>, DataError>>,
    format: &Format,
    table: &TableSchema,
    schema: &Schema,
) -> Result<(TableRows, Vec<usize>), DataError> {
    let empty = |path: &Path| DataError::Empty {
        place: Place::file(path),
    };
    if let Some(expected) = &schema.feature_names
        && let Some(difference) = OtherName::first(expected, table.features())
    {
        let place = Place::file("schema");
        return Err(DataError::Names { place, difference });
    }
    let (mut rows, mut counts) = (None, Vec::new());
    for file in files {
        let mut reader = file?;
        let path = reader.path().to_owned();
        if !reader.advance()? {
            return Err(empty(&path));
        }
        let (layout, mut more) = layout(&mut reader, format, table, schema)?;
        if !layout.faults.is_empty() {
            return Err(DataError::Columns {
                path,
                faults: layout.faults,
            });
        }
        let rows = match &mut rows {
            None => rows.insert(Rows::new(&reader, layout, table, schema)),
            Some(rows) => {
                rows.go_on(&reader, layout);
                rows
            }
        };
        while more {
            rows.push(&reader);
            more = reader.advance()?;
        }
        counts.push(rows.close(&path)?);
    }
    match rows {
        Some(rows) => Ok((rows.finish(table)?, counts)),
        None => Err(empty(Path::new(""))),
    }
}

/// The columns of a file, and whether `reader` stands at a row.
pub(super) fn layout<'s>(
    reader: &mut Reader<'_>,
    format: &Format,
    table: &'s TableSchema,
    schema: &Schema,
) -> Result<(Layout<'s>, bool), DataError> {
    let mut faults = reader.faults(None);
    if reader.add_broken(&mut faults) || reader.add_no_text(&mut faults) {
        return Err(DataError::Table(Box::new(faults)));
    }
    let (client, labelled) = (schema.client_column.as_deref(), !schema.unlabelled);
    if reader.has_names(format) == Some(false) {
        let layout = Layout::counted(reader.len(), table, client, labelled);
        return Ok((layout, true));
    }
    let layout = Layout::named(&reader.texts(), table, client, labelled);
    Ok((layout, reader.advance()?))
}

/// Rows as they come, made features.
pub(super) struct Rows<'s> {
    layout: Layout<'s>,
    table: &'s TableSchema,
    width: usize,
    values: Vec<f32>,
    labels: Labels,
    unlabelled: bool,
    /// Rows of this file, and of all files before it.
    rows: u64,
    all_rows: u64,
    /// What was adjusted in the files before.
    adjusted: Vec<Adjustment>,
    pub(super) faults: Faults,
    /// Of every column, values that were cut off, and those that nobody knows.
    counts: Vec<[u64; 2]>,
    clients: Option<Groups>,
    people: Option<Groups>,
}

impl<'s> Rows<'s> {
    pub(super) fn new(
        reader: &Reader<'_>,
        layout: Layout<'s>,
        table: &'s TableSchema,
        schema: &Schema,
    ) -> Rows<'s> {
        let names = column_names(&layout, table);
        Rows {
            width: table.features().len(),
            values: Vec::new(),
            labels: Labels::new(false, &known(table)),
            unlabelled: schema.unlabelled,
            rows: 0,
            all_rows: 0,
            adjusted: Vec::new(),
            faults: reader.faults(Some(names)).by_schema(),
            counts: vec![[0; 2]; layout.uses.len()],
            clients: layout.client.map(|_| Groups::default()),
            people: layout.person.map(|_| Groups::default()),
            layout,
            table,
        }
    }

    /// Adds the row at which `reader` stands, or what is wrong with it. Nothing is stored any more
    /// once anything was wrong.
    pub(super) fn push(&mut self, reader: &Reader<'_>) {
        self.faults.count_row();
        if reader.add_misfit(self.layout.uses.len(), &mut self.faults) {
            return;
        }
        self.rows += 1;
        if !self.faults.is_empty() {
            self.values.clear();
        }
        let start = self.values.len();
        self.values.resize(start + self.width, 0.0);
        for (place, cell) in reader.cells().enumerate() {
            let outcome = match self.layout.uses[place] {
                Use::Feature { encoder, at } => {
                    let features = &mut self.values[start + at..][..encoder.width()];
                    let missing = |cell: Cell<'_>| self.table.is_missing(cell);
                    let fit = encoder.encode(cell, missing, features);
                    fit.map(|fit| match fit {
                        Fit::Known | Fit::Gap => {}
                        Fit::Cut => self.counts[place][0] += 1,
                        Fit::Unknown => self.counts[place][1] += 1,
                    })
                }
                Use::Label if !self.unlabelled => {
                    let label = self.labels.push_cell(cell);
                    label.map_err(|refused| match self.table.is_missing(cell) {
                        true => (Kind::Nothing, "a label".to_owned()),
                        false => refused,
                    })
                }
                Use::Label | Use::Nothing => Ok(()),
            };
            let grouped = [
                (
                    self.layout.client,
                    &mut self.clients,
                    "the name of a client",
                ),
                (self.layout.person, &mut self.people, "the name of a person"),
            ];
            let mut outcome = outcome;
            for (column, groups, expected) in grouped {
                if column == Some(place)
                    && let Some(groups) = groups
                    && !groups.push(cell)
                {
                    outcome = Err((Kind::Nothing, expected.to_owned()));
                }
            }
            // Who only wants to know labels bounds nobody.
            let nobody = !self.unlabelled && self.is_nobody(cell);
            if self.layout.person == Some(place) && outcome.is_ok() && nobody {
                outcome = Err((Kind::Nothing, "the name of a person".to_owned()));
            }
            if let Err((kind, expected)) = outcome {
                let line = reader.number();
                self.faults
                    .add(line, Some(place), kind, expected, || cell.shown());
            }
        }
    }

    /// Whether a cell stands for anybody: what the schema calls a gap, or a number so large that its
    /// neighbours look the same. Taken for a name it would be that of several persons, who could
    /// then not be told apart.
    fn is_nobody(&self, cell: Cell<'_>) -> bool {
        match cell {
            Cell::Gap => true,
            Cell::Text(_) => self.table.is_missing(cell),
            Cell::Number(number) => number.is_nan() || number.abs() >= INEXACT,
        }
    }

    /// Drops what was kept of rows.
    pub(super) fn forget(&mut self) {
        self.values.clear();
        self.labels.forget();
        for groups in [&mut self.clients, &mut self.people].into_iter().flatten() {
            groups.rows.clear();
        }
    }

    /// What was found that the schema does not know.
    pub(super) fn adjustments(&self) -> Vec<Adjustment> {
        let mut found = Vec::new();
        let names = column_names(&self.layout, self.table);
        for ((name, used), counts) in names.iter().zip(&self.layout.uses).zip(&self.counts) {
            let Use::Feature { encoder, .. } = used else {
                continue;
            };
            for (&values, cut) in counts.iter().zip([true, false]) {
                if values > 0 {
                    found.push(Adjustment {
                        column: name.clone(),
                        values,
                        rows: self.rows,
                        cut,
                        known: encoder.bounds(),
                    });
                }
            }
        }
        found
    }

    /// Goes on with another file, with columns of its own.
    fn go_on(&mut self, reader: &Reader<'_>, layout: Layout<'s>) {
        self.counts = vec![[0; 2]; layout.uses.len()];
        let names = column_names(&layout, self.table);
        self.faults = reader.faults(Some(names)).by_schema();
        // One file that does not name persons leaves nobody known whose its rows are.
        if layout.person.is_none() {
            self.people = None;
        }
        self.layout = layout;
        self.rows = 0;
    }

    /// Ends a file: how many rows it has, or everything that is wrong with them.
    fn close(&mut self, path: &Path) -> Result<usize, DataError> {
        if !self.faults.is_empty() {
            let faults = std::mem::replace(&mut self.faults, Faults::new(path, None));
            return Err(DataError::Table(Box::new(faults)));
        }
        if self.rows == 0 {
            return Err(DataError::Empty {
                place: Place::file(path),
            });
        }
        for found in self.adjustments() {
            let same =
                |known: &&mut Adjustment| (&known.column, known.cut) == (&found.column, found.cut);
            match self.adjusted.iter_mut().find(same) {
                None => self.adjusted.push(found),
                Some(known) => {
                    known.values += found.values;
                    known.rows += found.rows;
                }
            }
        }
        self.all_rows += self.rows;
        usize::try_from(self.rows).map_err(|_| too_many().into())
    }

    /// The rows of all files.
    fn finish(self, table: &TableSchema) -> Result<TableRows, DataError> {
        let labels = match self.unlabelled {
            true => {
                let rows = usize::try_from(self.all_rows).map_err(|_| too_many())?;
                known(table).unknown(rows)?
            }
            false => self.labels.finish(Path::new(""))?,
        };
        let features = Features::Dense(DenseRows::new(self.width, self.values)?);
        let data = Dataset::labelled(features, labels)?
            .with_feature_names(std::sync::Arc::clone(table.features()))?;
        Ok(TableRows {
            data,
            adjustments: self.adjusted,
            clients: self.clients.map(Groups::finish),
            people: self.people.map(Groups::finish),
        })
    }
}

/// What a table's labels are known to be.
fn known(table: &TableSchema) -> Schema {
    match table.target() {
        Target::Classes(classes) => Schema {
            label_names: Some(std::sync::Arc::clone(classes)),
            ..Schema::default()
        },
        Target::Quantity { low, high } => Schema {
            targets: TargetRange::new(*low, *high).ok(),
            ..Schema::default()
        },
    }
}

fn too_many() -> RecordsError {
    RecordsError::Choice {
        what: "rows",
        value: "too many".to_owned(),
        reason: "expected as many as memory can hold".to_owned(),
    }
}

/// What the schema calls the columns of a file; nothing for those that it leaves alone.
fn column_names(layout: &Layout<'_>, table: &TableSchema) -> Vec<String> {
    let mut names = vec![String::new(); layout.uses.len()];
    let features = table.columns().iter();
    let mut features = features.filter(|column| matches!(column.role, super::Role::Feature { .. }));
    let mut order: Vec<(usize, usize)> = Vec::new();
    for (place, used) in layout.uses.iter().enumerate() {
        match used {
            Use::Feature { at, .. } => order.push((*at, place)),
            Use::Label => names[place] = table.label().to_owned(),
            Use::Nothing => {}
        }
    }
    order.sort_unstable();
    let mut at = 0;
    for encoder in table.encoders() {
        let Some(column) = features.next() else { break };
        if let Ok(found) = order.binary_search_by_key(&at, |&(at, _)| at) {
            names[order[found].1] = column.name.clone();
        }
        at += encoder.width();
    }
    let groups = [
        (layout.client, super::Role::Client),
        (layout.person, super::Role::Person),
    ];
    for (place, role) in groups {
        if let (Some(place), Some(name)) = (place, table.named_by(&role)) {
            names[place] = name.to_owned();
        }
    }
    names
}

/// Names of clients or people, as they come.
#[derive(Default)]
pub(crate) struct Groups {
    known: HashMap<Vec<u8>, u32>,
    names: Vec<String>,
    rows: Vec<u32>,
}

impl Groups {
    /// Adds a row's; false if there is none.
    pub(crate) fn push(&mut self, cell: Cell<'_>) -> bool {
        match cell {
            Cell::Gap | Cell::Text(b"") => return false,
            Cell::Text(text) => self.push_name(text),
            Cell::Number(number) => self.push_name(number.to_string().as_bytes()),
        }
        true
    }

    fn push_name(&mut self, name: &[u8]) {
        let place = match self.known.get(name) {
            Some(&place) => place,
            None => {
                let place = self.names.len() as u32;
                self.known.insert(name.to_owned(), place);
                self.names.push(String::from_utf8_lossy(name).into_owned());
                place
            }
        };
        self.rows.push(place);
    }

    /// In the order of their names, so that the order of rows does not matter.
    pub(crate) fn finish(self) -> Grouping {
        Grouping::new(self.names, self.rows)
    }
}
