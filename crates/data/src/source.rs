//! Where records come from, by name, and the sets they stand for.
//!
//! A client's share is a source with a part: `a9a:0/10` is the first of ten. `clients` stands for
//! records that are not here: those that every client of a deployment has for itself; `memory` for
//! those that a program had and gave. How sources are written is said in [`text`].

mod text;

use std::path::PathBuf;

use super::directories::ImageFiles;
use super::schema::{self, Checked, Draft, TableRows};
use super::several;
use super::table::{self, Format, LabelColumn};
use super::{
    Adjustment, Constants, DataDirectories, DataError, Dataset, Grouping, Partition, Scaling,
    Schema, Synthetic, TableSchema, a9a, idx, libsvm, numpy,
};

/// Where records come from.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Source {
    /// The built-in a9a.
    A9a,
    /// MNIST, from the first data directory that has it.
    Mnist,
    /// Fashion-MNIST, likewise.
    FashionMnist,
    /// A LIBSVM file.
    Libsvm {
        /// The file, plain or gzip.
        path: PathBuf,
        /// The number of features, if rows need not show the last ones.
        features: Option<usize>,
    },
    /// A folder of IDX files, called as MNIST's are.
    Idx {
        /// The folder.
        directory: PathBuf,
    },
    /// A table, of text or in Parquet.
    Table {
        /// The file; text may be packed by gzip or zstd.
        path: PathBuf,
        /// How it is laid out.
        format: Format,
    },
    /// One array of NumPy, a row for each record.
    Npy {
        /// The file.
        path: PathBuf,
        /// Which column holds the labels: the last one, or one by its number.
        label: LabelColumn,
    },
    /// Arrays of NumPy, features and labels.
    Npz {
        /// The file.
        path: PathBuf,
    },
    /// Drawn from the seed.
    Synthetic(Synthetic),
    /// Not here: every client of a deployment has its own, and names them itself.
    Clients,
    /// Not here: a program had them, and gave them.
    Memory,
}

/// What a source gives.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The records to train on.
    pub train: Dataset,
    /// The records to test on, if there are any.
    pub test: Option<Dataset>,
    /// Which client every record to train on belongs to, where a column says so.
    pub clients: Option<Grouping>,
    /// Which person every record to train on is about, where a column says so.
    pub people: Option<Grouping>,
    /// What the schema of a table did not know, for its owner's eyes.
    pub adjustments: Vec<Adjustment>,
}

impl Loaded {
    pub(crate) fn new(train: Dataset, test: Option<Dataset>) -> Loaded {
        Loaded {
            train,
            test,
            clients: None,
            people: None,
            adjustments: Vec::new(),
        }
    }
}

impl From<TableRows> for Loaded {
    fn from(rows: TableRows) -> Loaded {
        Loaded {
            train: rows.data,
            test: None,
            clients: rows.clients,
            people: rows.people,
            adjustments: rows.adjustments,
        }
    }
}

/// A source, or one part of it for one client.
#[derive(Clone, Debug, PartialEq)]
pub struct Share {
    /// Where the records come from.
    pub source: Source,
    /// Which part of how many, counted from 0; none for all of it.
    pub part: Option<(usize, usize)>,
}

impl Source {
    /// Loads the records and, where the source has one, the test set. The seed draws synthetic
    /// data.
    pub fn load(&self, directories: &DataDirectories, seed: u64) -> Result<Loaded, DataError> {
        self.load_as(&Schema::default(), directories, seed)
    }

    /// Loads records whose features or classes are fixed beforehand, as those of a single client,
    /// whose own records may not show them all.
    pub fn load_as(
        &self,
        schema: &Schema,
        directories: &DataDirectories,
        seed: u64,
    ) -> Result<Loaded, DataError> {
        let loaded = match self {
            Source::A9a => load_a9a(directories)?,
            Source::Mnist => load_images(&directories.image_set("mnist")?, schema)?,
            Source::FashionMnist => load_images(&directories.image_set("fashion-mnist")?, schema)?,
            Source::Idx { directory } => load_images(&ImageFiles::in_folder(directory)?, schema)?,
            Source::Libsvm { path, features } => {
                let schema = Schema {
                    columns: schema.columns.or(*features),
                    ..schema.clone()
                };
                Loaded::new(libsvm::read(path, &schema)?, None)
            }
            Source::Table { path, format } if several::is_pattern(path) => {
                several::load(path, format, schema)?
            }
            Source::Table { path, format } => table::load(path, format, schema)?,
            Source::Npy { path, label } => numpy::load_array(path, label, schema)?,
            Source::Npz { path } => numpy::load_archive(path, schema)?,
            Source::Synthetic(size) => Loaded::new(size.train(seed)?, Some(size.test(seed)?)),
            Source::Clients => {
                let reason = "these records are not here: every client has its own, and `soteria serve` \
                              coordinates them; to train here, name a source";
                return Err(wrong("clients", reason));
            }
            Source::Memory => {
                let reason =
                    "these records were in a program's memory: to train here, name a source";
                return Err(wrong("memory", reason));
            }
        };
        if !matches!(self, Source::Table { .. }) {
            self.check(&loaded.train, schema)?;
        }
        Ok(loaded)
    }

    /// Loads the records to train on from here, and those to test on from another source: its test
    /// set, or all of it if it has none. They must agree in features, also in
    /// their names and order where both have names, and in classes.
    pub fn load_with_test(
        &self,
        test: &Source,
        schema: &Schema,
        directories: &DataDirectories,
        seed: u64,
    ) -> Result<Loaded, DataError> {
        let mut loaded = self.load_as(schema, directories, seed)?;
        let known = Schema {
            table: schema.table.clone(),
            client_column: schema.client_column.clone(),
            ..Schema::of(&loaded.train)
        };
        let other = test.load_as(&known, directories, seed)?;
        loaded.adjustments.extend(other.adjustments);
        loaded.test = Some(other.test.unwrap_or(other.train));
        Ok(loaded)
    }

    /// Whether it is a table, whose columns a schema can describe.
    pub fn is_table(&self) -> bool {
        matches!(self, Source::Table { .. })
    }

    /// Whether it stands for several files, each a client's.
    pub fn is_several(&self) -> bool {
        match self {
            Source::Table { path, .. } => several::is_pattern(path),
            _ => false,
        }
    }

    /// Gives every row of a table of text, its header included, to `take`, field by field.
    ///
    /// # Errors
    /// When a file cannot be read, or a row cannot be split into fields.
    pub fn for_each_row(&self, take: &mut dyn FnMut(&[&[u8]])) -> Result<(), DataError> {
        match self {
            Source::Table { path, format } => {
                for path in several::files(path)? {
                    table::for_each_row(&path, format, take)?;
                }
                Ok(())
            }
            _ => Err(wrong(&self.to_string(), NO_TABLE)),
        }
    }

    /// A schema proposed from what stands in a table.
    ///
    /// # Errors
    /// When it cannot be read, or has no names of columns.
    pub fn draft_schema(&self) -> Result<Draft, DataError> {
        match self {
            Source::Table { path, format } => schema::draft(&several::files(path)?, format),
            _ => Err(wrong(&self.to_string(), NO_TABLE)),
        }
    }

    /// What in a table does not fit a schema, file by file.
    ///
    /// # Errors
    /// When a file cannot be read, or begins as no table does.
    pub fn check_schema(
        &self,
        table: &TableSchema,
        labelled: bool,
    ) -> Result<Vec<Checked>, DataError> {
        match self {
            Source::Table { path, format } => {
                let files = several::files(path)?;
                let checked = files
                    .iter()
                    .map(|path| schema::check(path, format, table, labelled));
                checked.collect()
            }
            _ => Err(wrong(&self.to_string(), NO_TABLE)),
        }
    }

    /// Whether the features are pixels, which are standardised by default.
    pub fn is_images(&self) -> bool {
        matches!(
            self,
            Source::Mnist | Source::FashionMnist | Source::Idx { .. }
        )
    }

    /// Published constants for scaling, which do not depend on anybody's records here.
    pub fn public_scaling(&self) -> Option<Scaling> {
        let (mean, deviation) = match self {
            Source::Mnist => (0.1307, 0.3081),
            Source::FashionMnist => (0.2860, 0.3530),
            _ => return None,
        };
        Scaling::constants(Constants::Same(mean), Constants::Same(1.0 / deviation)).ok()
    }

    /// Built-in sources do not read the schema, so they are compared with it.
    fn check(&self, data: &Dataset, schema: &Schema) -> Result<(), DataError> {
        let refuse = |reason: String| Err(wrong(&self.to_string(), reason));
        if schema.table.is_some() {
            return refuse(NO_TABLE.to_owned());
        }
        if let Some(column) = &schema.client_column {
            return refuse(format!(
                "only tables have a column \"{column}\" that names clients"
            ));
        }
        if let Some(columns) = schema.columns.filter(|&columns| columns != data.columns()) {
            return refuse(format!(
                "expected {columns} features, found {}",
                data.columns()
            ));
        }
        if schema.targets.is_some() && data.targets().is_none() {
            return refuse(format!(
                "expected numbers to predict, found the classes {}",
                data.label_names().join(", ")
            ));
        }
        match &schema.label_names {
            Some(names) if names[..] != *data.label_names() => refuse(format!(
                "expected the classes {}, found {}",
                names.join(", "),
                data.label_names().join(", ")
            )),
            _ => Ok(()),
        }
    }
}

/// The built-in records, unless a directory has files of that name with others in them.
fn load_a9a(directories: &DataDirectories) -> Result<Loaded, DataError> {
    let (train, test) = a9a::load()?;
    let built_in = Loaded::new(train, Some(test));
    let Some((train, test)) = directories.libsvm_set("a9a")? else {
        return Ok(built_in);
    };
    let schema = Schema::of(&built_in.train);
    let read = |path: PathBuf| libsvm::read(&path, &schema);
    let found = Loaded::new(read(train)?, test.map(read).transpose()?);
    // Equal records in their more compact form.
    let same =
        found.train == built_in.train && (found.test.is_none() || found.test == built_in.test);
    Ok(if same { built_in } else { found })
}

fn load_images(files: &ImageFiles, schema: &Schema) -> Result<Loaded, DataError> {
    let train = idx::read(&files.train.0, &files.train.1, schema)?;
    let test = match &files.test {
        Some((images, labels)) => Some(idx::read(images, labels, &Schema::of(&train))?),
        None => None,
    };
    Ok(Loaded::new(train, test))
}

fn wrong(value: &str, reason: impl Into<String>) -> DataError {
    DataError::choice("source", value, reason)
}

const NO_TABLE: &str = "a schema is about the columns of a table, which this is not";

impl Share {
    /// Loads one client's records: its part as the partition deals it, or the whole source. The
    /// seed draws synthetic data and the partition, so all clients of a run must use the same.
    pub fn load(
        &self,
        partition: Partition,
        schema: &Schema,
        directories: &DataDirectories,
        seed: u64,
    ) -> Result<Dataset, DataError> {
        let whole = self.source.load_as(schema, directories, seed)?.train;
        match self.part {
            Some((part, parts)) => Ok(partition.part(&whole, part, parts, seed)?),
            None => Ok(whole),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_images_have_public_constants() {
        assert!(Source::A9a.public_scaling().is_none() && !Source::A9a.is_images());
        let scaling = Source::Mnist.public_scaling().unwrap();
        assert!(!scaling.data_dependent());
        assert_eq!(
            (scaling.center().at(0), scaling.factor().at(0)),
            (0.1307, 1.0 / 0.3081)
        );
    }
}
