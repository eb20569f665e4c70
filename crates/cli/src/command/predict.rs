//! `soteria predict`: what a trained model says about rows that need no label.
//!
//! Everything it takes stands in the run's directory: `model.safetensors` holds weights, classes,
//! the schema of the table, scaling and public map. Nothing in it is trusted, see
//! `soteriafl::trained`.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use serde_json::json;
use soteriafl_core::data::Dataset;
use soteriafl_data::{DataDirectories, DataError, Schema, Source};

use super::evaluate::{field, other_columns};
use super::{Failure, Verbosity, print, print_json};
use soteriafl::config::{Config, Document, NaturalClients};
use soteriafl::trained::Trained;
use soteriafl::words::counted;

/// Apply a trained model to rows, which need no label
///
/// Writes a table with the column `prediction` (a class, or a number in the unit of the target)
/// and, for each class, `probability_CLASS`, one row for each row of the data, in its order. A
/// source with a test set is predicted there, any other on all of its rows. The columns of a table
/// must be those of training, by name and order; a column with labels may be there, and is not
/// read.
#[derive(clap::Args, Debug)]
pub struct Options {
    /// The directory of a run, or its model file
    #[arg(long, value_name = "DIR")]
    model: PathBuf,
    /// As in `data.source`: csv:PATH, libsvm:PATH, idx:DIR, a9a, ...
    #[arg(long, value_name = "SPEC")]
    data: Source,
    /// Where to write the table [default: stdout]
    #[arg(long, value_name = "FILE.csv")]
    out: Option<PathBuf>,
    /// Where data sets are looked for first
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// The seed of synthetic data
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Print as JSON; with --out, how many rows of each class
    #[arg(long)]
    json: bool,
}

/// Runs the command.
///
/// # Errors
/// When model or data cannot be read or do not fit each other.
pub fn run(options: &Options, verbosity: Verbosity) -> Result<(), Failure> {
    let path = match options.model.is_dir() {
        true => options.model.join("model.safetensors"),
        false => options.model.clone(),
    };
    let bytes = std::fs::read(&path).map_err(Failure::at(&path))?;
    let model = Trained::read(&bytes).map_err(Failure::at(&path))?;
    let data = load(options, &model, &path, verbosity)?;
    let predictions = Predictions::of(&model, &data);
    if let Some(out) = &options.out {
        let table = predictions.table();
        soteriafl::output::write_whole(out, table.as_bytes()).map_err(Failure::at(out))?;
        verbosity.say(format!(
            "wrote {}: {}",
            out.display(),
            counted(data.rows(), "row")
        ));
    }
    match (options.json, &options.out) {
        (true, _) => print_json(&predictions.json(options)),
        (false, None) => print(&predictions.table()),
        (false, Some(_)) => Ok(()),
    }
}

/// The rows to predict, as the model reads them.
fn load(
    options: &Options,
    model: &Trained,
    path: &Path,
    verbosity: Verbosity,
) -> Result<Dataset, Failure> {
    let schema = Schema {
        columns: Some(model.features.inputs()),
        feature_names: model.names.clone(),
        label_names: model.class_names.clone(),
        table: model.schema.clone(),
        targets: model.targets,
        unlabelled: true,
        client_column: client_column(path),
    };
    let directories = DataDirectories::from_environment(options.data_dir.as_deref());
    let loaded = options.data.load_as(&schema, &directories, options.seed);
    let loaded = loaded.map_err(|error| match error {
        DataError::Names { difference, .. } => other_columns(&options.data, &difference),
        other => other.into(),
    })?;
    for adjustment in &loaded.adjustments {
        verbosity.say(adjustment.to_string());
    }
    let data = loaded.test.unwrap_or(loaded.train);
    Ok(model.prepared(data, &model.scaling)?)
}

/// The column that dealt the rows of training to clients, where the run's configuration is at hand:
/// it is no feature.
fn client_column(model: &Path) -> Option<String> {
    let mut document = Document::from_file(&model.with_file_name("config.toml")).ok()?;
    document.remove("data.schema");
    let config = Config::read(&document).ok()?;
    config
        .natural
        .as_ref()
        .and_then(NaturalClients::column)
        .map(str::to_owned)
}

/// What the model says of every row.
struct Predictions {
    classes: Vec<String>,
    /// Of every row, the probabilities of all classes.
    probabilities: Vec<f64>,
    /// Of every row, the number that is predicted, where it is one.
    numbers: Vec<f64>,
}

impl Predictions {
    fn of(model: &Trained, data: &Dataset) -> Predictions {
        let classes = match &model.class_names {
            Some(names) => names.to_vec(),
            None => (0..model.classes).map(|class| class.to_string()).collect(),
        };
        match model.targets {
            Some(range) => Predictions {
                classes: Vec::new(),
                probabilities: Vec::new(),
                numbers: model.numbers(data, range),
            },
            None => Predictions {
                classes,
                probabilities: model.probabilities(data),
                numbers: Vec::new(),
            },
        }
    }

    /// Of every row, the class that is most likely, the first of equally likely ones, and the
    /// probabilities.
    fn rows(&self) -> impl Iterator<Item = (usize, &[f64])> {
        self.probabilities
            // A model of a number has no classes, and no probabilities.
            .chunks_exact(self.classes.len().max(1))
            .map(|row| {
                let best = (0..row.len())
                    .rev()
                    .max_by(|&a, &b| row[a].total_cmp(&row[b]));
                (best.unwrap_or(0), row)
            })
    }

    fn table(&self) -> String {
        let mut text = String::from("prediction");
        for class in &self.classes {
            let _ = write!(text, ",{}", field(&format!("probability_{class}")));
        }
        text.push('\n');
        for number in &self.numbers {
            let _ = writeln!(text, "{number}");
        }
        let names: Vec<String> = self.classes.iter().map(|name| field(name)).collect();
        for (best, probabilities) in self.rows() {
            text += &names[best];
            for probability in probabilities {
                let _ = write!(text, ",{}", *probability as f32);
            }
            text.push('\n');
        }
        text
    }

    fn json(&self, options: &Options) -> serde_json::Value {
        let mut counts = vec![0u64; self.classes.len()];
        self.rows().for_each(|(best, _)| counts[best] += 1);
        let counts = self.classes.iter().zip(counts);
        let counts: serde_json::Map<_, _> = counts
            .map(|(class, count)| (class.clone(), json!(count)))
            .collect();
        let mut summary = json!({
            "model": options.model,
            "data": options.data.to_string(),
            "rows": self.rows().count() + self.numbers.len(),
            "classes": self.classes,
            "counts": counts,
            "out": options.out,
        });
        if options.out.is_none() {
            let rows = self.rows().map(|(best, probabilities)| {
                json!({ "prediction": self.classes[best], "probabilities": probabilities })
            });
            let numbers = self
                .numbers
                .iter()
                .map(|number| json!({ "prediction": number }));
            summary["predictions"] = rows.chain(numbers).collect();
        }
        summary
    }
}
