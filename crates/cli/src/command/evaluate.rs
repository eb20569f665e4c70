//! `soteria evaluate`: loss and accuracy of a trained model on any data.
//!
//! A model file holds weights, shapes and names of features, not how features were scaled: that is
//! in the run's `config.toml`. Constants computed from records are computed again from the run's
//! training data, exactly as `train` did. Nothing in a model file is trusted: shapes are compared
//! with its description, numbers must be finite.
//!
//! Where both the model and the data name their features, names and order must be the same: a
//! weight applied to another column gives a number that means nothing.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};
use soteriafl_core::objective::{
    Activation, Logistic, Network, Objective, Outcome, Records, Workspace,
};
use soteriafl_core::quality;
use soteriafl_data::{
    Constants, DataDirectories, DataError, Dataset, FeatureKind, FeatureMap, OtherName, Scaling,
    Schema, Source,
};

use super::{Failure, Verbosity, all_cores, print, print_json, table};
use soteriafl::advice;
use soteriafl::config::{Config, Document, FeatureList, ScaleChoice};
use soteriafl::problem::{Problem, ProblemError};
use soteriafl::words::counted;

/// Records handled at a time.
const CHUNK: usize = 1024;

/// Loss and accuracy of a trained model on any data
///
/// The loss is the mean cross-entropy, without regularizer. A source with a test set is evaluated
/// on it, any other on all of its rows.
///
/// A model file does not say how features were scaled. With --config the scaling of that run is
/// applied: given and published constants as they are, others computed again from the run's
/// training data, which must then be there. Its classes keep their order, too. Without --config
/// features are taken as they are. Columns of a table with a header must have the names and the
/// order of training.
#[derive(clap::Args, Debug)]
pub struct Options {
    /// The model file of a run
    #[arg(long, value_name = "model.safetensors")]
    model: PathBuf,
    /// As in `data.source`: a9a, mnist, fashion-mnist, libsvm:PATH, idx:DIR, csv:PATH,
    /// synthetic:ROWSxFEATURES
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
    let context = Context::of(options, &directories, verbosity)?;
    let (split, data) = load(options, &model, &context, &directories)?;
    let outcomes = model.outcomes(&data);
    if let Some(path) = &options.out {
        write_predictions(path, &data, &outcomes).map_err(Failure::at(path))?;
        verbosity.say(format!("wrote {}", path.display()));
    }
    let (loss, accuracy) = averages(&data, &outcomes);
    let majority = advice::majority_accuracy([&data], &data);
    if let Some(warning) = advice::no_better(Some(accuracy), majority) {
        verbosity.warn(&warning);
    }
    let objective = model.objective.as_ref();
    let found = quality::measure(objective, &model.parameters, &data, all_cores());
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
        ("accuracy", format!("{accuracy:.4}{baseline}")),
    ];
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
        label_names: context.label_names.clone(),
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
    if data.classes() != model.classes {
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
    let mut data = model.features.apply(context.scale(data)?)?;
    if model.intercept {
        data = data.with_intercept();
    }
    Ok((split, data))
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
fn other_columns(data: &Source, difference: &OtherName) -> Failure {
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
    seed: u64,
}

impl Context {
    fn of(
        options: &Options,
        directories: &DataDirectories,
        verbosity: Verbosity,
    ) -> Result<Context, Failure> {
        let Some(path) = &options.config else {
            if options.data.is_images() {
                verbosity
                    .warn("images are usually scaled: without --config they are taken as they are");
            }
            return Ok(Context {
                scaling: Scaling::identity(),
                feature_names: None,
                label_names: None,
                seed: 0,
            });
        };
        let config = Config::read(&Document::from_file(path)?)?;
        let names = config.features.as_ref().and_then(FeatureList::names);
        let labels: Option<Arc<[String]>> = config.labels.clone().map(Into::into);
        let named = labels.is_some();
        let public = public_scaling(&config)?.map(|scaling| Context {
            scaling,
            feature_names: names.map(Into::into),
            label_names: labels,
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

    /// Applies the scaling to features without the constant one, whose scale is part of the model's
    /// bias.
    fn scale(&self, data: Dataset) -> Result<Dataset, Failure> {
        let columns = data.columns();
        let first = |constants: &Constants| match constants {
            Constants::Same(value) => Constants::Same(*value),
            Constants::PerFeature(values) => {
                Constants::PerFeature(values.iter().take(columns).copied().collect())
            }
        };
        let scaling =
            Scaling::constants(first(self.scaling.center()), first(self.scaling.factor()))?;
        Ok(scaling.apply(data)?)
    }
}

/// The scaling of a run, where it does not depend on records.
fn public_scaling(config: &Config) -> Result<Option<Scaling>, Failure> {
    Ok(match config.scale_choice() {
        ScaleChoice::None => Some(Scaling::identity()),
        ScaleChoice::Standard => config.source.public_scaling(),
        ScaleChoice::Constant { center, factor } => Some(Scaling::constants(
            Constants::Same(center),
            Constants::Same(factor),
        )?),
        ScaleChoice::Spectral | ScaleChoice::PerFeature => None,
    })
}

/// A model from its file, ready to be applied.
struct Trained {
    kind: &'static str,
    objective: Box<dyn Objective>,
    parameters: Vec<f32>,
    inputs: usize,
    /// The public map that records go through before.
    features: FeatureMap,
    /// What the inputs are called, if the file says so.
    names: Option<Arc<[String]>>,
    classes: usize,
    intercept: bool,
}

impl Trained {
    fn read(bytes: &[u8]) -> Result<Trained, String> {
        let (_, header) = SafeTensors::read_metadata(bytes)
            .map_err(|error| format!("not a model file: {error}"))?;
        let file = SafeTensors::deserialize(bytes)
            .map_err(|error| format!("not a model file: {error}"))?;
        let description = header
            .metadata()
            .as_ref()
            .and_then(|metadata| metadata.get("soteria"));
        let description: Value = description
            .and_then(|text| serde_json::from_str(text).ok())
            .ok_or("its metadata do not describe a model of this program")?;
        let model = match description["kind"].as_str() {
            Some("logistic") => Trained::logistic(&file, size(&description["inputs"])?),
            Some("softmax") => Trained::network(&file, "softmax", &description),
            Some("mlp") => Trained::network(&file, "mlp", &description),
            _ => Err(format!("unknown kind of model {}", description["kind"])),
        }?;
        let features = features(&description["map"], model.inputs)?;
        Ok(Trained {
            names: names(&description["features"], features.inputs())?,
            features,
            ..model
        })
    }

    fn logistic(file: &SafeTensors<'_>, inputs: usize) -> Result<Trained, String> {
        let mut parameters = tensor(file, "weight", &[1, inputs])?;
        let intercept = file.names().contains(&"bias");
        if intercept {
            parameters.extend(tensor(file, "bias", &[1])?);
        }
        let objective = Box::new(Logistic::new(parameters.len()));
        Ok(Trained {
            kind: "logistic",
            objective,
            parameters,
            inputs,
            features: unmapped(inputs)?,
            names: None,
            classes: 2,
            intercept,
        })
    }

    fn network(
        file: &SafeTensors<'_>,
        kind: &'static str,
        description: &Value,
    ) -> Result<Trained, String> {
        let layers = description["layers"]
            .as_array()
            .filter(|layers| !layers.is_empty())
            .ok_or("it has no layers")?;
        let activation = match description["activation"].as_str() {
            Some("sigmoid") => Activation::Sigmoid,
            Some("tanh") => Activation::Tanh,
            Some("relu") => Activation::Relu,
            _ => return Err(format!("unknown activation {}", description["activation"])),
        };
        let mut sizes: Vec<usize> = Vec::new();
        let mut parameters = Vec::new();
        for (number, layer) in layers.iter().enumerate() {
            let (inputs, outputs) = (size(&layer[0])?, size(&layer[1])?);
            match sizes.last() {
                None => sizes.push(inputs),
                Some(&last) if last == inputs => {}
                Some(last) => {
                    return Err(format!(
                        "layer {number} takes {inputs} numbers, but {last} come in"
                    ));
                }
            }
            sizes.push(outputs);
            let prefix = if layers.len() == 1 {
                String::new()
            } else {
                format!("layers.{number}.")
            };
            let weights = tensor(file, &format!("{prefix}weight"), &[outputs, inputs])?;
            // The file is output-major, the network input-major.
            parameters.extend(
                (0..inputs)
                    .flat_map(|c| (0..outputs).map(move |r| r * inputs + c))
                    .map(|at| weights[at]),
            );
            parameters.extend(tensor(file, &format!("{prefix}bias"), &[outputs])?);
        }
        let (inputs, classes) = (sizes[0], sizes[sizes.len() - 1]);
        let network = Network::new(inputs, &sizes[1..sizes.len() - 1], classes, activation)
            .map_err(|error| error.to_string())?;
        Ok(Trained {
            kind,
            objective: Box::new(network),
            parameters,
            inputs,
            features: unmapped(inputs)?,
            names: None,
            classes,
            intercept: false,
        })
    }

    /// Loss and predicted class of every record.
    fn outcomes(&self, data: &Dataset) -> Vec<Outcome> {
        let mut workspace = Workspace::new();
        let mut outcomes = vec![Outcome::default(); data.rows()];
        let rows: Vec<u32> = (0..data.rows() as u32).collect();
        for (rows, outcomes) in rows.chunks(CHUNK).zip(outcomes.chunks_mut(CHUNK)) {
            self.objective.factors(
                &self.parameters,
                Records { data, rows },
                Some(outcomes),
                None,
                &mut workspace,
            );
        }
        outcomes
    }
}

/// A size in a description; at least one, and small enough to be a parameter's number.
fn size(value: &Value) -> Result<usize, String> {
    let size = value
        .as_u64()
        .filter(|size| (1..=u64::from(u32::MAX)).contains(size));
    size.map(|size| size as usize)
        .ok_or_else(|| format!("expected a size in its description, found {value}"))
}

/// The map in a description, whose results a model of `inputs` numbers reads.
fn features(value: &Value, inputs: usize) -> Result<FeatureMap, String> {
    if value.is_null() {
        return unmapped(inputs);
    }
    let kind = value["kind"].as_str().unwrap_or_default();
    let kind: FeatureKind = kind.parse().map_err(|error| format!("its map: {error}"))?;
    let map = FeatureMap::new(kind, size(&value["inputs"])?)
        .map_err(|error| format!("its map: {error}"))?;
    match map.outputs() {
        outputs if outputs == inputs => Ok(map),
        outputs => Err(format!(
            "its map makes {outputs} numbers of a record, but {inputs} are read"
        )),
    }
}

/// Records as they are.
fn unmapped(inputs: usize) -> Result<FeatureMap, String> {
    FeatureMap::new(FeatureKind::None, inputs).map_err(|error| error.to_string())
}

/// The names of features in a description, one for each; `None` if it has none.
fn names(value: &Value, inputs: usize) -> Result<Option<Arc<[String]>>, String> {
    if value.is_null() {
        return Ok(None);
    }
    let list = value.as_array().filter(|list| list.len() == inputs);
    let texts = list.and_then(|list| {
        let texts = list.iter().map(|name| name.as_str().map(str::to_owned));
        texts.collect::<Option<Arc<[String]>>>()
    });
    texts
        .map(Some)
        .ok_or_else(|| format!("expected {inputs} names of features in its description"))
}

/// The numbers of a tensor of this shape.
fn tensor(file: &SafeTensors<'_>, name: &str, shape: &[usize]) -> Result<Vec<f32>, String> {
    let view = file
        .tensor(name)
        .map_err(|_| format!("there is no tensor `{name}`"))?;
    if view.dtype() != Dtype::F32 || view.shape() != shape {
        return Err(format!(
            "`{name}`: expected F32 {shape:?}, found {} {:?}",
            view.dtype(),
            view.shape()
        ));
    }
    let numbers = view
        .data()
        .chunks_exact(4)
        .map(|bytes| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
    let values: Vec<f32> = numbers.collect();
    match values.iter().position(|value| !value.is_finite()) {
        Some(at) => Err(format!(
            "`{name}`: expected finite numbers, found {} at {at}",
            values[at]
        )),
        None => Ok(values),
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

/// A name as a field of a table.
fn field(name: &str) -> String {
    if name.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", name.replace('"', "\"\""))
    } else {
        name.to_owned()
    }
}
