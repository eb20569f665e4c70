//! `soteria data`: which data there are, what is in them, and how to get or convert them.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::builder::PossibleValuesParser;
use indicatif::HumanBytes;
use serde_json::{Value, json};
use soteriafl_data::export::{self, ExportFormat};
use soteriafl_data::{DataDirectories, Dataset, Features, Loaded, Source};

use super::{Failure, Verbosity, print, print_json, table};
use soteriafl::words::counted;
use soteriafl_data::fetch::{self, FetchError, KNOWN, Known, Presence, Step};

/// List, show, fetch and export data sets
#[derive(clap::Args, Debug)]
pub struct Options {
    #[command(subcommand)]
    action: Action,
    /// Directory in which known data sets are looked for first, and where `fetch` puts them;
    /// `--data` is the same here
    /// [default: the cache directory]
    #[arg(
        long = "data-dir",
        alias = "data",
        value_name = "DIR",
        global = true,
        value_parser = super::inputs::not_a_source
    )]
    data_dir: Option<PathBuf>,
}

#[derive(clap::Subcommand, Debug)]
enum Action {
    /// List the known sources and where they are found
    List {
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
    /// Show what a source holds
    Show {
        /// As in `data.source`: a9a, mnist, fashion-mnist, libsvm:PATH, idx:DIR, csv:PATH,
        /// parquet:PATH, synthetic:ROWSxFEATURES
        source: Source,
        /// The seed of synthetic data
        #[arg(long, value_name = "N", default_value_t = 0)]
        seed: u64,
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
    /// Download a known public data set, checksum verified; goes on where an earlier download
    /// stopped
    ///
    /// The mirrors are tried in order. SOTERIA_MIRROR names another one: its files are looked for
    /// under SOTERIA_MIRROR/NAME/.
    Fetch {
        /// The data set
        #[arg(value_parser = known_names())]
        name: String,
    },
    /// Write a source as LIBSVM text or as a table
    Export {
        /// As in `data.source`
        source: Source,
        /// The format
        #[arg(long, value_enum)]
        format: Format,
        /// The file to write, or - for stdout
        path: PathBuf,
        /// Write the test set instead of the training set
        #[arg(long)]
        test: bool,
        /// Overwrite an existing file
        #[arg(long)]
        force: bool,
        /// The seed of synthetic data
        #[arg(long, value_name = "N", default_value_t = 0)]
        seed: u64,
    },
}

#[derive(clap::ValueEnum, Clone, Copy, Debug)]
enum Format {
    /// label index:value ...
    Libsvm,
    /// A header, then all values of a row and its label
    Csv,
}

fn known_names() -> PossibleValuesParser {
    PossibleValuesParser::new(KNOWN.iter().map(|known| known.name))
}

/// Runs the command.
///
/// # Errors
/// When a source cannot be read, fetched or written.
pub fn run(options: &Options, verbosity: Verbosity) -> Result<(), Failure> {
    let explicit = options.data_dir.as_deref();
    let directories = DataDirectories::from_environment(explicit);
    match &options.action {
        Action::List { json } => list(&directories, *json),
        Action::Show { source, seed, json } => {
            show(source, &source.load(&directories, *seed)?, *json)
        }
        Action::Fetch { name } => fetch(name, explicit, verbosity),
        Action::Export {
            source,
            format,
            path,
            test,
            force,
            seed,
        } => {
            let exported = Export {
                format: (*format).into(),
                path,
                test: *test,
                force: *force,
            };
            exported.write(source, || Ok(source.load(&directories, *seed)?), verbosity)
        }
    }
}

/// Sources that are files or drawn, with what they are.
const FORMS: &[(&str, &str)] = &[
    (
        "libsvm:PATH",
        "LIBSVM text; libsvm:PATH?features=N fixes the number of features",
    ),
    ("idx:DIR", "a folder of IDX files called as MNIST's are"),
    (
        "csv:PATH",
        "a table; csv:PATH?label=NAME&header=yes&separator=; where the defaults do not fit; csv:DIR/*.csv \
         has a client in each file",
    ),
    (
        "parquet:PATH",
        "a table in Parquet; parquet:PATH?label=NAME where the label is not the last column",
    ),
    (
        "npy:PATH",
        "a NumPy array, a row for each record, the label in its last column; or npy:PATH?label=NUMBER",
    ),
    ("npz:PATH", "NumPy arrays x (features) and y (labels)"),
    (
        "synthetic:ROWSxFEATURES",
        "drawn from the seed; synthetic:ROWSxFEATURESxCLASSES for more than two classes",
    ),
];

fn list(directories: &DataDirectories, json: bool) -> Result<(), Failure> {
    let searched = directories.as_slice();
    if json {
        let sources: Vec<Value> = KNOWN
            .iter()
            .map(|known| known_json(known, searched))
            .collect();
        let forms: Vec<&str> = FORMS.iter().map(|(form, _)| *form).collect();
        return print_json(&json!({ "sources": sources, "forms": forms, "directories": searched }));
    }
    let mut text = format!(
        "{:<14} {:>7} {:>7} {:>8} {:>7}  {}\n",
        "source", "rows", "test", "features", "classes", "where"
    );
    for known in KNOWN {
        let place = match known.presence(searched) {
            Presence::BuiltIn => "built in".to_owned(),
            Presence::In(folder) => folder.display().to_string(),
            Presence::Incomplete(folder) => {
                format!(
                    "{} lacks files: soteria data fetch {}",
                    folder.display(),
                    known.name
                )
            }
            Presence::Absent => format!("not here: soteria data fetch {}", known.name),
        };
        let Known {
            name,
            rows,
            test_rows,
            features,
            classes,
            ..
        } = known;
        text +=
            &format!("{name:<14} {rows:>7} {test_rows:>7} {features:>8} {classes:>7}  {place}\n");
    }
    text.push('\n');
    for (form, meaning) in FORMS {
        text += &format!("{form:<24} {meaning}\n");
    }
    let searched: Vec<String> = searched
        .iter()
        .map(|directory| directory.display().to_string())
        .collect();
    text += &format!(
        "\nlooked in: {}\n",
        if searched.is_empty() {
            "nowhere".to_owned()
        } else {
            searched.join(", ")
        }
    );
    print(&text)
}

fn known_json(known: &Known, searched: &[PathBuf]) -> Value {
    let (present, location) = match known.presence(searched) {
        Presence::BuiltIn => (true, json!("built in")),
        Presence::In(folder) => (true, json!(folder)),
        Presence::Incomplete(folder) => (false, json!(folder)),
        Presence::Absent => (false, Value::Null),
    };
    json!({
        "name": known.name,
        "rows": known.rows,
        "test_rows": known.test_rows,
        "features": known.features,
        "classes": known.classes,
        "present": present,
        "location": location,
    })
}

/// What one set of records holds.
struct Contents {
    counts: Vec<usize>,
    density: f64,
    smallest: f64,
    largest: f64,
}

impl Contents {
    fn of(data: &Dataset) -> Contents {
        let mut counts = vec![0; data.classes()];
        for &label in data.labels() {
            counts[label as usize] += 1;
        }
        let values = data.features().values();
        let cells = data.rows() as f64 * data.columns() as f64;
        let nonzero = values.iter().filter(|value| **value != 0.0).count();
        let (mut smallest, mut largest) = (f64::INFINITY, f64::NEG_INFINITY);
        // What is not stored is zero.
        let unstored = matches!(data.features(), Features::Sparse(_))
            && (data.features().stored() as f64) < cells;
        for value in values
            .iter()
            .map(|value| f64::from(*value))
            .chain(unstored.then_some(0.0))
        {
            (smallest, largest) = (smallest.min(value), largest.max(value));
        }
        Contents {
            counts,
            density: nonzero as f64 / cells,
            smallest,
            largest,
        }
    }
}

fn show(source: &Source, loaded: &Loaded, json: bool) -> Result<(), Failure> {
    let train = &loaded.train;
    let contents = Contents::of(train);
    let tested = loaded.test.as_ref().map(Contents::of);
    let storage = if matches!(train.features(), Features::Sparse(_)) {
        "sparse"
    } else {
        "dense"
    };
    let test_rows = loaded.test.as_ref().map(Dataset::rows);
    if json {
        let classes: Vec<Value> = train
            .label_names()
            .iter()
            .enumerate()
            .map(|(class, name)| {
                let test = tested.as_ref().and_then(|test| test.counts.get(class));
                json!({ "name": name, "rows": contents.counts[class], "test_rows": test })
            })
            .collect();
        return print_json(&json!({
            "source": source.to_string(),
            "rows": train.rows(),
            "test_rows": test_rows,
            "features": train.columns(),
            "classes": classes,
            "density": contents.density,
            "storage": storage,
            "values": { "min": contents.smallest, "max": contents.largest },
        }));
    }
    let rows = match test_rows {
        Some(test) => format!("{} to train, {test} to test", train.rows()),
        None => format!("{}, no test set", train.rows()),
    };
    let mut text = table(
        9,
        &[
            ("source", source.to_string()),
            ("rows", rows),
            ("features", train.columns().to_string()),
            (
                "density",
                format!(
                    "{:.2}% of the values are not zero, stored {storage}",
                    100.0 * contents.density
                ),
            ),
            (
                "values",
                format!("{} to {}", contents.smallest, contents.largest),
            ),
            ("classes", train.classes().to_string()),
        ],
    );
    let width = train
        .label_names()
        .iter()
        .map(|name| name.chars().count())
        .max()
        .unwrap_or(0)
        .max(5);
    text += &format!(
        "\n{:<width$} {:>9} {:>7}  {:>9}\n",
        "class", "rows", "share", "test rows"
    );
    for (class, name) in train.label_names().iter().enumerate() {
        let count = contents.counts[class];
        let share = 100.0 * count as f64 / train.rows().max(1) as f64;
        let test = tested
            .as_ref()
            .and_then(|test| test.counts.get(class))
            .map_or("-".to_owned(), usize::to_string);
        text += &format!("{name:<width$} {count:>9} {share:>6.2}%  {test:>9}\n");
    }
    print(&text)
}

fn fetch(name: &str, explicit: Option<&Path>, verbosity: Verbosity) -> Result<(), Failure> {
    let Some(known) = Known::named(name) else {
        return Err(Failure::usage(format!("unknown data set `{name}`")));
    };
    let Some(directory) = explicit.map(Path::to_owned).or_else(DataDirectories::cache) else {
        return Err(Failure::Usage {
            message: "there is no cache directory: neither XDG_CACHE_HOME nor HOME is set"
                .to_owned(),
            hint: Some("name a directory with --data-dir".to_owned()),
        });
    };
    let folder = directory.join(known.name);
    let mirrors = match std::env::var("SOTERIA_MIRROR") {
        Ok(base) if !base.is_empty() => {
            vec![format!("{}/{}/", base.trim_end_matches('/'), known.name)]
        }
        _ => known
            .mirrors
            .iter()
            .map(|mirror| (*mirror).to_owned())
            .collect(),
    };
    let bar = verbosity.bar(None, DOWNLOADED);
    let outcome = fetch::fetch(known, &folder, &mirrors, |step| match step {
        Step::Present(file) => {
            bar.suspend(|| verbosity.say(format!("{}: here already, checksum verified", file.name)))
        }
        Step::Differs(file) => {
            bar.suspend(|| {
                verbosity.warn(format!(
                    "{} is not the published file and is fetched again",
                    file.name
                ))
            });
        }
        Step::Begin(file, length) => {
            bar.set_length(file.bytes);
            bar.set_position(length);
            bar.set_message(file.name);
            if length > 0 {
                bar.suspend(|| {
                    verbosity.say(format!(
                        "{}: going on after {}",
                        file.name,
                        HumanBytes(length)
                    ))
                });
            }
        }
        Step::Progress(length) => bar.set_position(length),
        Step::Done(file) => {
            let size = HumanBytes(file.bytes);
            bar.suspend(|| verbosity.say(format!("{}: {size}, checksum verified", file.name)));
        }
    });
    bar.finish_and_clear();
    outcome?;
    // A pipe wants the folder, a person a sentence; both get it on stdout.
    print(&format!("{}\n", folder.display()))
}

/// Of one download; its length becomes known when it begins.
const DOWNLOADED: &str =
    "{msg}  {bar:32.cyan/dim} {bytes}/{total_bytes}  {bytes_per_sec:.dim}  {eta:.dim} left";

impl From<FetchError> for Failure {
    fn from(error: FetchError) -> Self {
        Failure::Failed(error.to_string())
    }
}

impl From<Format> for ExportFormat {
    fn from(format: Format) -> Self {
        match format {
            Format::Libsvm => ExportFormat::Libsvm,
            Format::Csv => ExportFormat::Csv,
        }
    }
}

/// What is to be written where.
struct Export<'a> {
    format: ExportFormat,
    path: &'a Path,
    test: bool,
    force: bool,
}

impl Export<'_> {
    fn write(
        &self,
        source: &Source,
        load: impl FnOnce() -> Result<Loaded, Failure>,
        verbosity: Verbosity,
    ) -> Result<(), Failure> {
        let to_stdout = self.path == Path::new("-");
        if !to_stdout && !self.force && self.path.exists() {
            return Err(Failure::Usage {
                message: format!("{} exists", self.path.display()),
                hint: Some("give another path, or --force to overwrite".to_owned()),
            });
        }
        let loaded = load()?;
        let data = match (self.test, loaded.test) {
            (false, _) => loaded.train,
            (true, Some(test)) => test,
            (true, None) => return Err(Failure::usage(format!("{source} has no test set"))),
        };
        if to_stdout {
            let mut bytes = Vec::new();
            export::write_to(&data, self.format, &mut bytes)
                .and_then(|()| super::write_stdout(&bytes))
                .map_err(|error| Failure::Failed(format!("stdout: {error}")))?;
            return Ok(());
        }
        self.write_file(&data)
            .map_err(|error| Failure::Failed(format!("{}: {error}", self.path.display())))?;
        verbosity.say(format!(
            "wrote {} to {}",
            counted(data.rows(), "row"),
            self.path.display()
        ));
        Ok(())
    }

    /// Whole or not at all.
    fn write_file(&self, data: &Dataset) -> std::io::Result<()> {
        let mut name = self.path.file_name().unwrap_or_default().to_os_string();
        name.push(".tmp");
        let temporary = self.path.with_file_name(name);
        let mut output = std::io::BufWriter::new(std::fs::File::create(&temporary)?);
        let written = export::write_to(data, self.format, &mut output)
            .and_then(|()| output.flush())
            .and_then(|()| output.get_ref().sync_all())
            .and_then(|()| std::fs::rename(&temporary, self.path));
        if written.is_err() {
            let _ = std::fs::remove_file(&temporary);
        }
        written
    }
}
