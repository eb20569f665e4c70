//! Tables whose features are numbers, and one column of class labels.
//!
//! The labels, numbers or text, stand in the last column unless [`Format`] says otherwise. A first
//! line of text is a header if it holds no number outside of the label column. Rows are stored
//! dense.
//!
//! A table with faults is read to its end all the same: whoever has to put it right is told all of
//! them at once (`faults.rs`).

use std::path::{Path, PathBuf};

use super::super::faults::{Faults, Kind};
use super::super::labels::{Labels, Schema};
use super::super::reader::feature_value;
use super::super::schema::{Cell, Groups};
use super::super::source::Loaded;
use super::super::{DataError, Dataset, DenseRows, Features, OtherName, Place};
use super::{Format, LabelColumn, Reader};

/// Reads files as one table; all have the columns of the first. Says how many rows each has.
pub(super) fn read<'a>(
    files: impl Iterator<Item = Result<Reader<'a>, DataError>>,
    format: &Format,
    schema: &Schema,
) -> Result<(Loaded, Vec<usize>), DataError> {
    let mut schema = schema.clone();
    let mut rows = Rows::new(&schema);
    let (mut counts, mut first, mut last) = (Vec::new(), None, PathBuf::new());
    for file in files {
        let mut reader = file?;
        let path = reader.path().to_owned();
        let empty = || DataError::Empty {
            place: Place::file(&path),
        };
        if !reader.advance()? {
            return Err(empty());
        }
        let layout = Layout::new(&reader, format, &schema)?;
        rows.faults = reader.faults(layout.header.then(|| layout.names.clone()));
        let before = rows.count;
        let mut more = !layout.header || reader.advance()?;
        while more {
            rows.faults.count_row();
            layout.push_row(&reader, &mut rows);
            more = reader.advance()?;
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
    fn new(reader: &Reader<'_>, format: &Format, schema: &Schema) -> Result<Layout, DataError> {
        let mut faults = reader.faults(None);
        if reader.add_broken(&mut faults) {
            return Err(DataError::Table(Box::new(faults)));
        }
        let names = reader.texts();
        let columns = names.len();
        if columns < 2 {
            let expected = "at least two columns, features and a label";
            let found = match other_separator(reader.line()) {
                Some(option) => format!("{columns} (perhaps with ?separator={option})"),
                None => columns.to_string(),
            };
            return Err(reader.unfit(expected, found));
        }
        let client = schema.client_column.as_ref();
        let client = client.and_then(|client| names.iter().position(|name| name == client));
        let taken = usize::from(client.is_some());
        let only_features = schema.columns == Some(columns - taken);
        let label = match schema.unlabelled && only_features {
            true => None,
            false => Some(label_column(reader, &names, &format.label, client)?),
        };
        let named = matches!(format.label, LabelColumn::Name(_));
        let has_number = || {
            let mut fields = names.iter().enumerate();
            fields.any(|(place, field)| {
                Some(place) != label && Some(place) != client && number(field.as_bytes()).is_some()
            })
        };
        let said = reader.has_names(format);
        let header = said.unwrap_or_else(|| named || client.is_some() || !has_number());
        let layout = Layout {
            label,
            client,
            header,
            unlabelled: schema.unlabelled,
            names,
        };
        // Names say more than their number, so they are compared first.
        if let (Some(expected), true) = (&schema.feature_names, header)
            && let Some(mut difference) = OtherName::first(expected, &layout.feature_names())
        {
            difference.guessed = said.is_none() && !named;
            let place = reader.place();
            return Err(DataError::Names { place, difference });
        }
        if layout.features() == 0 {
            return Err(reader.unfit("at least one feature", format!("{columns} columns")));
        }
        if let Some(known) = schema.columns.filter(|&known| known != layout.features()) {
            let expected = format!("{known} features, as in training, and a label");
            return Err(reader.unfit(expected, format!("{columns} columns")));
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
    fn push_row(&self, reader: &Reader<'_>, rows: &mut Rows) {
        let Rows {
            faults,
            labels,
            values,
            clients,
            count,
        } = rows;
        *count += 1;
        if reader.add_misfit(self.names.len(), faults) {
            return;
        }
        for (place, cell) in reader.cells().enumerate() {
            let checked = if Some(place) == self.client {
                let expected = || (Kind::Nothing, "the name of a client".to_owned());
                clients.push(cell).then_some(()).ok_or_else(expected)
            } else if Some(place) == self.label && self.unlabelled {
                Ok(())
            } else if Some(place) == self.label {
                labels.push_cell(cell)
            } else {
                feature(cell).map(|value| {
                    if faults.is_empty() {
                        values.push(value);
                    }
                })
            };
            if let Err((kind, expected)) = checked {
                let kind = match cell {
                    Cell::Gap | Cell::Text(b"") => Kind::Nothing,
                    Cell::Text(_) | Cell::Number(_) => kind,
                };
                faults.add(reader.number(), Some(place), kind, expected, || {
                    cell.shown()
                });
            }
        }
    }
}

/// Which column holds the labels, counted from 0.
fn label_column(
    reader: &Reader<'_>,
    names: &[String],
    label: &LabelColumn,
    client: Option<usize>,
) -> Result<usize, DataError> {
    match label {
        // The last one that could be it.
        LabelColumn::Last if client == Some(names.len() - 1) => Ok(names.len() - 2),
        _ => label.place(reader, names),
    }
}

/// A feature, or what is wrong with it and what was expected.
fn feature(cell: Cell<'_>) -> Result<f32, (Kind, String)> {
    let read = match cell {
        Cell::Text(field) => number(field),
        Cell::Number(value) => Some(value as f32),
        Cell::Gap => None,
    };
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
