//! `soteria evaluate`: loss and quality of a trained model on any data: accuracy, confusion, AUC
//! and calibration of classes, R2, RMSE and MAE of numbers.
//!
//! A model file says how features were scaled. With the run's `config.toml` its scaling is taken
//! instead: constants computed from records are computed again from the run's training data,
//! exactly as `train` did. Nothing in a model file is trusted: shapes are compared with its
//! description, numbers must be finite.
//!
//! Where both the model and the data name their features, names and order must be the same: a
//! weight applied to another column gives a number that means nothing.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::json;
use soteriafl_core::objective::Outcome;
use soteriafl_data::schema::Target;
use soteriafl_data::{
    DataDirectories, DataError, Dataset, OtherName, Scaling, Schema, Source, TableSchema, Targets,
};

use super::{Failure, Verbosity, all_cores, print, print_json, table};
use soteriafl::advice;
use soteriafl::config::{Config, Document, FeatureList, NaturalClients};
use soteriafl::problem::{Problem, ProblemError};
use soteriafl::trained::{Trained, public_scaling};
use soteriafl::words::counted;

/// Loss and quality of a trained model on any data
///
/// Of classes: accuracy, recall and precision, AUC, log loss, calibration. Of numbers: R2, RMSE and
/// MAE in their unit. The loss is the mean that was trained on, without regularizer and weights of
/// classes. A source with a test set is evaluated on it, any other on all of its rows.
///
/// The model file says how features were scaled and what the columns of a table mean. With --config
/// the scaling of that run is applied: given and published constants as they are, others computed
/// again from the run's training data, which must then be there. Its classes keep their order, too.
/// Columns of a table with a header must have the names and the
/// order of training.
#[derive(clap::Args, Debug)]
pub struct Options {
    /// The model file of a run
    #[arg(long, value_name = "model.safetensors")]
    model: PathBuf,
    /// As in `data.source`: a9a, mnist, fashion-mnist, libsvm:PATH, idx:DIR, csv:PATH,
    /// parquet:PATH, synthetic:ROWSxFEATURES
    #[arg(long, value_name = "SPEC")]
    data: Source,
    /// The run's configuration, for its scaling and classes
    #[arg(long, value_name = "config.toml")]
    config: Option<PathBuf>,
    /// Evaluate the training rows of a source that has a test set
    #[arg(long)]
    train: bool,
    /// Write one row per record: row, label, prediction, loss
    #[arg(long, value_name = "predictions.csv")]
    out: Option<PathBuf>,
    /// Where data sets are looked for first
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// The seed of synthetic data [default: the configuration's, else 0]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
///
/// # Errors
/// When model, data or configuration cannot be read or do not fit each other.
pub fn run(options: &Options, verbosity: Verbosity) -> Result<(), Failure> {
    let path = &options.model;
    let bytes = std::fs::read(path).map_err(Failure::at(path))?;
    let model = Trained::read(&bytes).map_err(Failure::at(path))?;
    let directories = DataDirectories::from_environment(options.data_dir.as_deref());
    let context = Context::of(options, &model, &directories, verbosity)?;
    let (split, data) = load(options, &model, &context, &directories)?;
    let outcomes = model.outcomes(&data);
    if let Some(path) = &options.out {
        let written = match data.targets() {
            Some(targets) => write_numbers(path, &model, &data, targets, &outcomes),
            None => write_predictions(path, &data, &outcomes),
        };
        written.map_err(Failure::at(path))?;
        verbosity.say(format!("wrote {}", path.display()));
    }
    let (loss, accuracy) = averages(&data, &outcomes);
    let accuracy = (model.targets.is_none()).then_some(accuracy);
    let majority = advice::majority_accuracy([&data], &data);
    if let Some(warning) = advice::no_better(accuracy, majority) {
        verbosity.warn(&warning);
    }
    let found = model.quality(&data, all_cores());
    if let Some(warning) = found
        .as_ref()
        .and_then(soteriafl::quality::no_better_than_mean)
    {
        verbosity.warn(&warning);
    }
    if options.json {
        let mut summary = json!({
            "model": options.model,
            "kind": model.kind,
            "data": options.data.to_string(),
            "split": split,
            "rows": data.rows(),
            "loss": loss.is_finite().then_some(loss),
            "accuracy": accuracy,
            "majority_accuracy": majority,
        });
        if let Some(found) = &found {
            soteriafl::quality::describe(found, data.label_names(), &mut summary);
        }
        return print_json(&summary);
    }
    let rows = counted(data.rows(), "row");
    let baseline = majority.map_or(String::new(), |majority| {
        format!(" ({majority:.4} by the most common class)")
    });
    let mut lines = vec![
        ("model", format!("{} ({})", model.kind, path.display())),
        ("data", format!("{}, {rows} ({split})", options.data)),
        ("loss", format!("{loss:.5}")),
    ];
    lines.extend(accuracy.map(|share| ("accuracy", format!("{share:.4}{baseline}"))));
    lines.extend(found.map(|found| ("quality", soteriafl::quality::text(&found))));
    print(&table(9, &lines))
}

/// The records to evaluate on, as the model reads them, and which part of the source they are.
fn load(
    options: &Options,
    model: &Trained,
    context: &Context,
    directories: &DataDirectories,
) -> Result<(&'static str, Dataset), Failure> {
    let seed = options.seed.unwrap_or(context.seed);
    let schema = Schema {
        columns: Some(model.features.inputs()),
        feature_names: model.names.clone().or(context.feature_names.clone()),
        // A table says what its classes are called; elsewhere they are those of the data.
        label_names: match &model.schema {
            Some(_) => model.class_names.clone(),
            None => context.label_names.clone(),
        },
        table: model.schema.clone().or(context.schema.clone()),
        client_column: context.client_column.clone(),
        targets: model.targets,
        ..Schema::default()
    };
    let loaded = options.data.load_as(&schema, directories, seed);
    let loaded = loaded.map_err(|error| match error {
        DataError::Names { difference, .. } => other_columns(&options.data, &difference),
        other => other.into(),
    })?;
    let (split, data) = match loaded.test {
        Some(test) if !options.train => ("test", test),
        Some(_) => ("train", loaded.train),
        None => ("all", loaded.train),
    };
    if model.targets.is_none() && data.classes() != model.classes {
        let named = context.label_names.is_some();
        return Err(Failure::Usage {
            message: format!(
                "{} has {} classes, {} has {}",
                options.model.display(),
                model.classes,
                options.data,
                data.classes()
            ),
            hint: (!named).then(|| "give the run's --config, which names its classes".to_owned()),
        });
    }
    Ok((split, model.prepared(data, &context.scaling)?))
}

/// The mean loss, and the share of records whose class is predicted.
fn averages(data: &Dataset, outcomes: &[Outcome]) -> (f64, f64) {
    let rows = data.rows() as f64;
    let losses = outcomes.iter().map(|outcome| f64::from(outcome.loss));
    let classes = outcomes.iter().zip(data.labels());
    let correct = classes.filter(|(outcome, label)| outcome.class == **label);
    (losses.sum::<f64>() / rows, correct.count() as f64 / rows)
}

/// Refuses data whose columns are not those that the model was trained on.
pub(super) fn other_columns(data: &Source, difference: &OtherName) -> Failure {
    Failure::Usage {
        message: format!(
            "{data} does not have the columns that the model was trained on: {}",
            difference.beside("the model")
        ),
        hint: difference.reordered.then(|| {
            "they have the same names in another order: write them in the order of training"
                .to_owned()
        }),
    }
}

/// What a run's configuration adds: scaling, names of the features and classes, seed.
struct Context {
    scaling: Scaling,
    feature_names: Option<Arc<[String]>>,
    label_names: Option<Arc<[String]>>,
    /// What the columns of the run's table mean.
    schema: Option<Arc<TableSchema>>,
    /// The column that dealt the run's rows to clients.
    client_column: Option<String>,
    seed: u64,
}

impl Context {
    fn of(
        options: &Options,
        model: &Trained,
        directories: &DataDirectories,
        verbosity: Verbosity,
    ) -> Result<Context, Failure> {
        let Some(path) = &options.config else {
            return Ok(Context {
                scaling: model.scaling.clone(),
                feature_names: None,
                label_names: None,
                schema: None,
                client_column: None,
                seed: 0,
            });
        };
        let config = Config::read(&Document::from_file(path)?)?;
        let names = config.features.as_ref().and_then(FeatureList::names);
        let labels: Option<Arc<[String]>> = config.labels.clone().map(Into::into);
        let schema = config.schema.clone();
        // A schema says what the classes are, and in which order.
        let classes = schema.as_ref().and_then(|schema| match schema.target() {
            Target::Classes(classes) => Some(Arc::clone(classes)),
            Target::Quantity { .. } => None,
        });
        let labels = labels.or(classes);
        let client_column = config.natural.as_ref().and_then(NaturalClients::column);
        let client_column = client_column.map(str::to_owned);
        let named = labels.is_some();
        let public = public_scaling(&config, model.features.kind())?.map(|scaling| Context {
            scaling,
            feature_names: names.map(Into::into),
            label_names: labels,
            schema: schema.clone(),
            client_column: client_column.clone(),
            seed: config.seed,
        });
        // The configuration of a deployment, whose records were never here, says what they look
        // like.
        if config.source == Source::Clients
            && named
            && let Some(public) = public
        {
            return Ok(public);
        }
        match (Problem::load(&config, directories), public) {
            (Ok(problem), _) => Ok(Context {
                label_names: Some(problem.shape.labels.into()),
                scaling: problem.scaling,
                feature_names: problem.shape.names.map(Into::into),
                schema,
                client_column,
                seed: config.seed,
            }),
            // Published and given constants need no records; only the names of the classes are
            // unknown.
            (Err(ProblemError::Data(error)), Some(public)) => {
                if !named {
                    verbosity.warn(format!(
                        "the run's training data is not here, so classes are numbered as in the \
                         data: {error}"
                    ));
                }
                Ok(public)
            }
            (Err(error), _) => Err(error.into()),
        }
    }
}

fn write_predictions(path: &Path, data: &Dataset, outcomes: &[Outcome]) -> std::io::Result<()> {
    let mut text = Vec::new();
    writeln!(text, "row,label,prediction,loss")?;
    let names: Vec<String> = data.label_names().iter().map(|name| field(name)).collect();
    for (row, (outcome, &label)) in outcomes.iter().zip(data.labels()).enumerate() {
        let predicted = names.get(outcome.class as usize).map_or("", String::as_str);
        writeln!(
            text,
            "{row},{},{predicted},{}",
            names[label as usize], outcome.loss
        )?;
    }
    soteriafl::output::write_whole(path, &text)
}

/// The same for numbers, in their unit.
fn write_numbers(
    path: &Path,
    model: &Trained,
    data: &Dataset,
    targets: &Targets,
    outcomes: &[Outcome],
) -> std::io::Result<()> {
    let mut text = Vec::new();
    writeln!(text, "row,label,prediction,loss")?;
    let predicted = model.numbers(data, targets.range());
    let both = targets.original().iter().zip(predicted).zip(outcomes);
    for (row, ((truth, predicted), outcome)) in both.enumerate() {
        writeln!(text, "{row},{truth},{predicted},{}", outcome.loss)?;
    }
    soteriafl::output::write_whole(path, &text)
}

/// A name as a field of a table.
pub(super) fn field(name: &str) -> String {
    if name.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", name.replace('"', "\"\""))
    } else {
        name.to_owned()
    }
}
