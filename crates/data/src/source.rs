//! Names of data sources as users write them, and the sets they stand for.
//!
//! `a9a`, `mnist`, `fashion-mnist`, `libsvm:PATH`, `idx:DIR`, `csv:PATH`,
//! `synthetic:ROWSxFEATURES`. A path may be followed by options: `libsvm:PATH?features=123`, and
//! `csv:PATH?label=NAME&header=yes&separator=;` where the label is a column's name or its number
//! from 1. A client's share is a source with a part: `a9a:0/10` is the first of ten. `clients`
//! stands for records that are not here: those that every client of a deployment has for itself;
//! `memory` for those that a program had and gave.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use super::csv::{Format, LabelColumn};
use super::directories::ImageFiles;
use super::schema::{self, Checked, Draft, TableRows};
use super::several;
use super::{
    Adjustment, Constants, DataDirectories, DataError, Dataset, Grouping, MOST_FEATURES, Partition,
    Scaling, Schema, Synthetic, TableSchema, a9a, csv, idx, libsvm, numpy,
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
    /// A table.
    Csv {
        /// The file, plain or gzip.
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
            Source::Csv { path, format } if several::is_pattern(path) => {
                several::load(path, format, schema)?
            }
            Source::Csv { path, format } => csv::load(path, format, schema)?,
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
        if !matches!(self, Source::Csv { .. }) {
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
        matches!(self, Source::Csv { .. })
    }

    /// Whether it stands for several files, each a client's.
    pub fn is_several(&self) -> bool {
        match self {
            Source::Csv { path, .. } => several::is_pattern(path),
            _ => false,
        }
    }

    /// Gives every row of a table of text, its header included, to `take`, field by field.
    ///
    /// # Errors
    /// When a file cannot be read, or a row cannot be split into fields.
    pub fn for_each_row(&self, take: &mut dyn FnMut(&[&[u8]])) -> Result<(), DataError> {
        match self {
            Source::Csv { path, format } => {
                for path in several::files(path)? {
                    csv::for_each_row(&path, format, take)?;
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
            Source::Csv { path, format } => schema::draft(&several::files(path)?, format),
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
            Source::Csv { path, format } => {
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

const FORMS: &str = "expected a9a, mnist, fashion-mnist, libsvm:PATH, idx:DIR, csv:PATH, npy:PATH, npz:PATH or synthetic:ROWSxFEATURES";

impl FromStr for Source {
    type Err = DataError;

    fn from_str(text: &str) -> Result<Source, DataError> {
        let (kind, rest) = match text.split_once(':') {
            Some((kind, rest)) if !rest.is_empty() => (kind, rest),
            Some(_) => return Err(wrong(text, FORMS)),
            None => {
                return match text {
                    "a9a" => Ok(Source::A9a),
                    "mnist" => Ok(Source::Mnist),
                    "fashion-mnist" => Ok(Source::FashionMnist),
                    "clients" => Ok(Source::Clients),
                    "memory" => Ok(Source::Memory),
                    _ => Err(unknown(text)),
                };
            }
        };
        let (path, options) = split_options(rest);
        match kind {
            "libsvm" => {
                let mut features = None;
                for (key, value) in options {
                    match (key, value.parse()) {
                        ("features", Ok(count))
                            if (1..=MOST_FEATURES as usize).contains(&count) =>
                        {
                            features = Some(count)
                        }
                        _ => {
                            return Err(wrong(
                                text,
                                format!(
                                    "cannot use {key}={value}; possible: features=NUMBER, at most {}",
                                    MOST_FEATURES
                                ),
                            ));
                        }
                    }
                }
                Ok(Source::Libsvm {
                    path: path.into(),
                    features,
                })
            }
            "csv" => Ok(Source::Csv {
                path: path.into(),
                format: csv_format(text, &options)?,
            }),
            "npy" => match csv_format(text, &options)? {
                Format {
                    label,
                    header: None,
                    separator: None,
                } if !matches!(label, LabelColumn::Name(_)) => Ok(Source::Npy {
                    path: path.into(),
                    label,
                }),
                _ => Err(wrong(text, "possible: label=NUMBER, label=last")),
            },
            "npz" => Ok(Source::Npz { path: rest.into() }),
            "idx" => Ok(Source::Idx {
                directory: rest.into(),
            }),
            "synthetic" => Ok(Source::Synthetic(rest.parse()?)),
            _ => Err(unknown(text)),
        }
    }
}

/// The error for what is no source, with what may have been meant.
fn unknown(text: &str) -> DataError {
    match meant(text) {
        Some(source) => wrong(text, format!("did you mean {source}? {FORMS}")),
        None => wrong(text, FORMS),
    }
}

/// The source that a bare path stands for, by its ending. Only its text is looked at: a server's
/// description is read here, too, and must not make a client look into its own folders.
fn meant(text: &str) -> Option<String> {
    let place = text.find('?').unwrap_or(text.len());
    let (path, options) = text.split_at(place);
    // One letter is a drive; a longer word before a colon was meant as a kind of source.
    let path = match path.split_once(':') {
        Some((drive, rest)) if drive.len() == 1 => rest,
        Some((file, _)) if file.contains('.') => file,
        Some(_) => return None,
        None => path,
    };
    let path = path.to_ascii_lowercase();
    if path.ends_with(['/', '\\']) {
        return Some(format!("idx:{text}"));
    }
    let path = path.strip_suffix(".gz").unwrap_or(&path);
    match path.rsplit_once('.')?.1 {
        "csv" => Some(format!("csv:{text}")),
        "tsv" | "tab" if options.is_empty() => Some(format!("csv:{text}?separator=tab")),
        "svm" | "libsvm" | "svmlight" => Some(format!("libsvm:{text}")),
        "npy" => Some(format!("npy:{text}")),
        "npz" => Some(format!("npz:{text}")),
        "txt" | "data" | "dat" => Some(format!("csv:{text} or libsvm:{text}")),
        _ => None,
    }
}

/// Options follow the last question mark, if all that follows reads as `key=value&...`; otherwise
/// the question mark belongs to the file's name.
fn split_options(rest: &str) -> (&str, Vec<(&str, &str)>) {
    let split = rest.rsplit_once('?').and_then(|(path, options)| {
        let pairs: Option<Vec<_>> = options
            .split('&')
            .map(|pair| pair.split_once('='))
            .collect();
        Some((path, pairs?))
    });
    split
        .filter(|(path, _)| !path.is_empty())
        .unwrap_or((rest, Vec::new()))
}

fn csv_format(text: &str, options: &[(&str, &str)]) -> Result<Format, DataError> {
    let mut format = Format::default();
    for &(key, value) in options {
        match (key, value, value.as_bytes()) {
            ("label", "last", _) => format.label = LabelColumn::Last,
            ("label", name, [_, ..]) => {
                format.label = match name.parse() {
                    Ok(number) => LabelColumn::Number(number),
                    Err(_) => LabelColumn::Name(name.to_owned()),
                };
            }
            ("header", "yes", _) => format.header = Some(true),
            ("header", "no", _) => format.header = Some(false),
            ("separator", "tab", _) => format.separator = Some(b'\t'),
            ("separator", _, &[byte]) if byte.is_ascii_punctuation() && byte != b'"' => {
                format.separator = Some(byte);
            }
            _ => {
                let possible =
                    "label=NAME, label=NUMBER, label=last, header=yes|no, separator=CHARACTER|tab";
                return Err(wrong(
                    text,
                    format!("cannot use {key}={value}; possible: {possible}"),
                ));
            }
        }
    }
    if format.header == Some(false) && matches!(format.label, LabelColumn::Name(_)) {
        return Err(wrong(text, "a label column with a name needs a header"));
    }
    Ok(format)
}

impl fmt::Display for Source {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::A9a => formatter.write_str("a9a"),
            Source::Mnist => formatter.write_str("mnist"),
            Source::FashionMnist => formatter.write_str("fashion-mnist"),
            Source::Clients => formatter.write_str("clients"),
            Source::Memory => formatter.write_str("memory"),
            Source::Libsvm { path, features } => {
                write!(formatter, "libsvm:{}", path.display())?;
                features.map_or(Ok(()), |count| write!(formatter, "?features={count}"))
            }
            Source::Npy { path, label } => {
                write!(formatter, "npy:{}", path.display())?;
                match label {
                    LabelColumn::Number(number) => write!(formatter, "?label={number}"),
                    LabelColumn::Last | LabelColumn::Name(_) => Ok(()),
                }
            }
            Source::Npz { path } => write!(formatter, "npz:{}", path.display()),
            Source::Idx { directory } => write!(formatter, "idx:{}", directory.display()),
            Source::Csv { path, format } => {
                write!(formatter, "csv:{}", path.display())?;
                let mut options = Vec::new();
                match &format.label {
                    LabelColumn::Last => {}
                    LabelColumn::Number(number) => options.push(format!("label={number}")),
                    LabelColumn::Name(name) => options.push(format!("label={name}")),
                }
                match format.header {
                    None => {}
                    Some(true) => options.push("header=yes".to_owned()),
                    Some(false) => options.push("header=no".to_owned()),
                }
                match format.separator {
                    None => {}
                    Some(b'\t') => options.push("separator=tab".to_owned()),
                    Some(other) => options.push(format!("separator={}", char::from(other))),
                }
                if options.is_empty() {
                    Ok(())
                } else {
                    write!(formatter, "?{}", options.join("&"))
                }
            }
            Source::Synthetic(size) => write!(formatter, "synthetic:{size}"),
        }
    }
}

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

impl FromStr for Share {
    type Err = DataError;

    fn from_str(text: &str) -> Result<Share, DataError> {
        if let Some((head, tail)) = text.rsplit_once(':')
            && let Some((part, parts)) = tail.split_once('/')
            && let (Ok(part), Ok(parts)) = (part.parse::<usize>(), parts.parse::<usize>())
            // What comes before must be a source: `libsvm:0/10` is a file.
            && let Ok(source) = head.parse()
        {
            if part >= parts {
                let reason = format!("expected a part from 0 to below {parts}, found {part}");
                return Err(wrong(text, reason));
            }
            return Ok(Share {
                source,
                part: Some((part, parts)),
            });
        }
        Ok(Share {
            source: text.parse()?,
            part: None,
        })
    }
}

impl fmt::Display for Share {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.source)?;
        self.part
            .map_or(Ok(()), |(part, parts)| write!(formatter, ":{part}/{parts}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_source_is_parsed_and_printed() {
        for text in [
            "a9a",
            "mnist",
            "fashion-mnist",
            "clients",
            "libsvm:some/file.gz",
            "libsvm:C:/odd?name",
            "libsvm:f?features=123",
            "idx:folder",
            "idx:folder?a=b",
            "csv:rows.csv",
            "csv:rows.csv?label=class&header=yes",
            "csv:rows.csv?label=1&separator=;",
            "csv:rows.csv?separator=tab",
            "csv:why?.csv",
            "npy:rows.npy",
            "npy:rows.npy?label=1",
            "npz:rows.npz",
            "synthetic:100x5",
            "synthetic:100x5x3",
        ] {
            let source: Source = text.parse().unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(source.to_string(), text);
        }
        let Source::Csv { format, .. } = "csv:r?label=3&header=no".parse().unwrap() else {
            panic!()
        };
        assert_eq!(
            format,
            Format {
                label: LabelColumn::Number(3),
                header: Some(false),
                separator: None
            }
        );
    }

    #[test]
    fn what_is_no_source_is_refused_with_the_possibilities() {
        for text in [
            "",
            "a9b",
            "a9a:",
            "libsvm:",
            "libsvm",
            "http://x",
            "synthetic:5",
            "csv:",
            "mnist:x",
        ] {
            assert!(text.parse::<Source>().is_err(), "{text}");
        }
        assert_eq!(
            "a9b".parse::<Source>().unwrap_err().to_string(),
            format!("source \"a9b\": {FORMS}")
        );
        for (text, source) in [
            ("clean.csv", "csv:clean.csv"),
            ("a/b.CSV.gz", "csv:a/b.CSV.gz"),
            ("clean.csv?label=y", "csv:clean.csv?label=y"),
            ("C:\\rows.csv", "csv:C:\\rows.csv"),
            ("clean.csv:0/3", "csv:clean.csv:0/3"),
            ("rows.tsv", "csv:rows.tsv?separator=tab"),
            ("train.svm", "libsvm:train.svm"),
            ("rows.txt", "csv:rows.txt or libsvm:rows.txt"),
            ("rows.npy", "npy:rows.npy"),
            ("a/rows.npz", "npz:a/rows.npz"),
            ("images/", "idx:images/"),
        ] {
            let error = text.parse::<Source>().unwrap_err().to_string();
            let wanted = format!("source {text:?}: did you mean {source}? {FORMS}");
            assert_eq!(error.replace('\\', ""), wanted.replace('\\', ""));
            for source in source.split(" or ") {
                assert!(source.parse::<Share>().is_ok(), "{source}");
            }
        }
        for text in ["http://x/y.csv", "parquet:x.csv", "mnist2", "x.parquet"] {
            let error = text.parse::<Source>().unwrap_err().to_string();
            assert_eq!(error, format!("source \"{text}\": {FORMS}"));
        }
        for text in [
            "libsvm:f?features=0",
            "libsvm:f?label=1",
            "csv:f?label=",
            "csv:f?header=no&label=x",
            "csv:f?separator=ab",
            "npy:f?label=x",
            "npy:f?header=yes",
        ] {
            assert!(text.parse::<Source>().is_err(), "{text}");
        }
    }

    #[test]
    fn shares_name_a_part() {
        let share: Share = "a9a:0/10".parse().unwrap();
        assert_eq!((&share.source, share.part), (&Source::A9a, Some((0, 10))));
        assert_eq!(share.to_string(), "a9a:0/10");
        assert_eq!("libsvm:x:2/3".parse::<Share>().unwrap().part, Some((2, 3)));
        assert_eq!(
            "synthetic:100x5:1/2".parse::<Share>().unwrap().part,
            Some((1, 2))
        );
        let file: Share = "libsvm:0/10".parse().unwrap();
        assert_eq!(
            file,
            Share {
                source: Source::Libsvm {
                    path: "0/10".into(),
                    features: None
                },
                part: None
            }
        );
        let second = "synthetic:101x5:1/2".parse::<Share>().unwrap();
        let second = second
            .load(
                Partition::Sorted,
                &Schema::default(),
                &DataDirectories::default(),
                3,
            )
            .unwrap();
        let whole = "101x5".parse::<Synthetic>().unwrap().train(3).unwrap();
        assert_eq!(second.rows(), 50);
        assert!(second == Partition::Sorted.split(&whole, 2, 3).unwrap()[1]);
        assert!("a9a:10/10".parse::<Share>().is_err());
        assert!("a9a:0/0".parse::<Share>().is_err());
    }

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
