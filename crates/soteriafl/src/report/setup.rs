//! What ran: data, model and algorithm, from the resolved configuration and the summary.

use serde_json::Value;

use super::files::RunFiles;
use super::text::{self, append, escape};

/// The resolved configuration, as far as it can be parsed; a key that is absent reads as none.
pub(super) struct Settings(toml::Table);

impl Settings {
    pub(super) fn of(run: &RunFiles) -> Settings {
        // `RunFiles::read` has refused broken TOML; files built by hand then show fewer facts.
        Settings(run.config.parse().unwrap_or_default())
    }

    /// A setting as people write it: strings without quotes.
    pub(super) fn text(&self, section: &str, key: &str) -> Option<String> {
        match self.0.get(section)?.get(key)? {
            toml::Value::String(text) => Some(text.clone()),
            toml::Value::Float(value) => Some(text::number(*value, 6)),
            other => Some(other.to_string()),
        }
    }

    /// A setting that is a number.
    pub(super) fn float(&self, section: &str, key: &str) -> Option<f64> {
        match self.0.get(section)?.get(key)? {
            toml::Value::Float(value) => Some(*value),
            toml::Value::Integer(value) => Some(*value as f64),
            _ => None,
        }
    }
}

/// The number at a place of the summary such as `/privacy/epsilon`, also where it is written as
/// text (`"inf"`).
pub(super) fn number_at(run: &RunFiles, pointer: &str) -> Option<f64> {
    match run.summary.pointer(pointer)? {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => text.parse().ok(),
        _ => None,
    }
}

/// The text at a place of the summary.
pub(super) fn text_at<'a>(run: &'a RunFiles, pointer: &str) -> Option<&'a str> {
    run.summary.pointer(pointer)?.as_str()
}

/// The numbers of a list in the summary.
pub(super) fn numbers_at(run: &RunFiles, pointer: &str) -> Vec<f64> {
    let list = run.summary.pointer(pointer).and_then(Value::as_array);
    list.map(|list| list.iter().filter_map(Value::as_f64).collect())
        .unwrap_or_default()
}

/// `SoteriaFL-GD on a9a`, unescaped.
pub(super) fn title(run: &RunFiles) -> String {
    let algorithm = match text_at(run, "/algorithm").unwrap_or("") {
        "" => "Training run".to_owned(),
        "auto" => "Automatic choice".to_owned(),
        "custom" => "Own choice".to_owned(),
        name => proper_name(name),
    };
    match text_at(run, "/dataset").unwrap_or("") {
        "" => algorithm,
        dataset => format!("{algorithm} on {}", proper_name(dataset)),
    }
}

/// The names of algorithms and data sets as their authors write them; any other name as it is.
fn proper_name(name: &str) -> String {
    match name {
        "sdm-dsgd" => return "SDM-DSGD".to_owned(),
        "q-dpsgd-1" => return "Q-DPSGD-1".to_owned(),
        "porter" => return "PORTER-DP".to_owned(),
        "diff2" => return "DIFF2".to_owned(),
        "distributed-dp-srm" => return "Distributed DP-SRM".to_owned(),
        "mnist" => return "MNIST".to_owned(),
        "fashion-mnist" => return "Fashion-MNIST".to_owned(),
        _ => {}
    }
    match name.split_once('-') {
        Some(("soteriafl", estimator)) => format!("SoteriaFL-{}", estimator.to_uppercase()),
        Some(("cdp" | "ldp" | "dp", "gd" | "sgd" | "svrg" | "saga" | "srm" | "spider")) => {
            name.to_uppercase()
        }
        _ => name.to_owned(),
    }
}

/// The section with the tables of data, model and algorithm, and the configuration itself.
pub(super) fn section(run: &RunFiles) -> String {
    let settings = Settings::of(run);
    let mut out = String::from("<section id=\"setup\">\n<h2>What ran</h2>\n");
    out.push_str(&slots(run, &settings));
    out.push_str("<div class=\"tables\">\n");
    out.push_str(&facts("Data", &data_facts(run, &settings)));
    out.push_str(&facts("Model", &model_facts(run, &settings)));
    out.push_str(&facts("Steps and clipping", &step_facts(&settings)));
    out.push_str("</div>\n");
    append!(
        &mut out,
        "<details><summary>Resolved configuration <code>config.toml</code></summary>\n\
         <pre><code>{}</code></pre></details>\n",
        escape(&run.config)
    );
    out.push_str("</section>\n");
    out
}

/// The slots in which the algorithms of the framework differ, as a table.
fn slots(run: &RunFiles, settings: &Settings) -> String {
    let clients = number_at(run, "/clients").map(|clients| text::count(clients as u64));
    let rows = [
        (
            "Estimator",
            settings
                .text("algorithm", "estimator")
                .map(|name| name.to_uppercase()),
            estimator_details(settings),
        ),
        (
            "Compressor",
            compressor_choice(run, settings),
            compressor_details(run, settings),
        ),
        match text_at(run, "/gossip/topology") {
            Some(topology) => ("Graph", Some(topology.to_owned()), graph_details(run)),
            None => (
                "Shift",
                settings.text("algorithm", "shift"),
                shift_details(settings),
            ),
        },
        (
            "Way down",
            settings.text("algorithm", "downlink"),
            "the server sends how far its model is from the one that everybody holds".to_owned(),
        ),
        (
            "Clients",
            clients.or(settings.text("data", "clients")),
            client_details(run, settings),
        ),
    ];
    let mut out = String::from(
        "<table class=\"slots\"><thead><tr><th>Slot</th><th>Choice</th><th>Parameters</th></tr>\
         </thead><tbody>\n",
    );
    for (slot, choice, details) in rows {
        let Some(choice) = choice else { continue };
        append!(
            &mut out,
            "<tr><th scope=\"row\">{slot}</th><td><strong>{}</strong></td><td>{}</td></tr>\n",
            escape(&choice),
            escape(&details)
        );
    }
    out.push_str("</tbody></table>\n");
    out
}

/// `batch 54, snapshot probability 0.016`: those of the settings that are there.
fn named(settings: &Settings, names: &[(&str, &str)]) -> String {
    let present = names
        .iter()
        .filter_map(|(name, key)| Some(format!("{name} {}", settings.text("algorithm", key)?)));
    present.collect::<Vec<_>>().join(", ")
}

fn estimator_details(settings: &Settings) -> String {
    match settings.text("algorithm", "estimator").as_deref() {
        Some("gd") => "every record, every round".to_owned(),
        Some("sag") => named(settings, &[("batch", "batch"), ("memory", "memory")]),
        Some("svrg") => named(
            settings,
            &[
                ("batch", "batch"),
                ("snapshot probability", "snapshot_probability"),
            ],
        ),
        Some("recursive") => named(
            settings,
            &[
                ("batch", "batch"),
                ("keeps", "keep"),
                ("starts anew", "restart"),
            ],
        ),
        _ => named(settings, &[("batch", "batch")]),
    }
}

/// Whether random-k keeps every coordinate, so that nothing is random about it.
fn keeps_all(run: &RunFiles, settings: &Settings) -> bool {
    let k = settings.float("algorithm", "k");
    k.is_some() && k == number_at(run, "/dimension")
}

fn compressor_choice(run: &RunFiles, settings: &Settings) -> Option<String> {
    match settings.text("algorithm", "compressor") {
        Some(name) if name == "rand-k" && keeps_all(run, settings) => Some("none".to_owned()),
        other => other,
    }
}

fn compressor_details(run: &RunFiles, settings: &Settings) -> String {
    match settings.text("algorithm", "compressor").as_deref() {
        Some("identity") => "all coordinates travel".to_owned(),
        Some("rand-k") if keeps_all(run, settings) => {
            "all coordinates travel (rand-k that keeps every one)".to_owned()
        }
        Some("rand-k") => named(settings, &[("fraction", "fraction"), ("k", "k")]),
        Some("qsgd") => named(settings, &[("levels", "levels")]),
        Some("grid") => named(settings, &[("step", "grid_step"), ("bits", "grid_bits")]),
        Some("top-k") => named(settings, &[("k", "k")]),
        _ => String::new(),
    }
}

fn shift_details(settings: &Settings) -> String {
    match settings.text("algorithm", "shift").as_deref() {
        Some("off") => "messages are compressed as they are".to_owned(),
        _ => "each client sends the difference to a reference that both sides keep".to_owned(),
    }
}

/// How clients without a server mix their models.
fn graph_details(run: &RunFiles) -> String {
    let number = |key: &str| number_at(run, &format!("/gossip/{key}")).map(|n| text::number(n, 3));
    let named = [
        ("edges", "edges"),
        ("spectral gap", "spectral_gap"),
        ("mixing", "mixing"),
        ("consensus error at the end", "consensus_error"),
    ];
    let present = named
        .iter()
        .filter_map(|(name, key)| Some(format!("{name} {}", number(key)?)));
    let details: Vec<String> = present.collect();
    format!("clients keep models of their own; {}", details.join(", "))
}

fn client_details(run: &RunFiles, settings: &Settings) -> String {
    if run.deployed() {
        return waiting(run, settings);
    }
    match settings.float("algorithm", "participation") {
        Some(1.0) => "all take part in every round".to_owned(),
        Some(share) => format!(
            "each takes part with probability {}",
            text::number(share, 3)
        ),
        None => String::new(),
    }
}

/// For whom a server waits, and how many messages it has taken.
fn waiting(run: &RunFiles, settings: &Settings) -> String {
    let set = |key: &str| settings.float("deployment", key);
    let rule = match (set("quorum"), set("deadline")) {
        (Some(quorum), Some(deadline)) => format!(
            "a round closes with {} of them after {}",
            text::count(quorum as u64),
            text::duration(deadline)
        ),
        _ => "a round waits for all".to_owned(),
    };
    let taken: f64 = numbers_at(run, "/messages_taken").iter().sum();
    let all = number_at(run, "/clients").zip(number_at(run, "/rounds"));
    match all.map(|(clients, rounds)| clients * rounds) {
        Some(all) if taken > 0.0 => format!(
            "{rule}; {} of {} messages were taken",
            text::count(taken as u64),
            text::count(all as u64)
        ),
        _ => rule,
    }
}

type Facts = Vec<(&'static str, Option<String>)>;

/// What a server knows of records that are not its own.
fn own_records_facts(run: &RunFiles, settings: &Settings) -> Facts {
    let get = |key: &str| settings.text("data", key);
    let list = |pointer: &str| {
        let list = run.summary.pointer(pointer).and_then(Value::as_array)?;
        Some(list.iter().filter_map(Value::as_str).collect::<Vec<_>>())
    };
    let features = number_at(run, "/data/features").map(|count| text::count(count as u64));
    let test = match (
        text_at(run, "/test/source"),
        number_at(run, "/test/records"),
    ) {
        (Some(source), Some(records)) => {
            format!("{source}, {} records", text::count(records as u64))
        }
        _ => "none".to_owned(),
    };
    let records = numbers_at(run, "/samples_per_client");
    let total = text::count(records.iter().sum::<f64>() as u64);
    vec![
        ("Records", text_at(run, "/dataset").map(str::to_owned)),
        (
            "How many, as they say",
            (!records.is_empty()).then_some(total),
        ),
        (
            "Per client",
            range(&records, |value| text::count(value as u64)),
        ),
        ("Features", features),
        (
            "Called",
            list("/data/feature_names").map(|names| some_of(&names)),
        ),
        (
            "Classes",
            list("/data/classes").map(|names| some_of(&names)),
        ),
        ("The server's test set", Some(test)),
        ("Scaling", get("scale")),
        ("Map of records", get("features")),
        ("Basis", get("basis")),
        ("Weighting", get("weighting")),
    ]
}

/// The first of many names.
fn some_of(names: &[&str]) -> String {
    const SHOWN: usize = 12;
    let shown = names[..names.len().min(SHOWN)].join(", ");
    match names.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} and {} more", text::count(more as u64)),
    }
}

fn data_facts(run: &RunFiles, settings: &Settings) -> Facts {
    if run.deployed() {
        return own_records_facts(run, settings);
    }
    let get = |key: &str| settings.text("data", key);
    let records = numbers_at(run, "/samples_per_client");
    let total: f64 = records.iter().sum();
    vec![
        (
            "Source",
            get("source").or(text_at(run, "/dataset").map(str::to_owned)),
        ),
        ("Test set", get("test")),
        (
            "Records",
            (!records.is_empty()).then(|| text::count(total as u64)),
        ),
        (
            "Records per client",
            range(&records, |value| text::count(value as u64)),
        ),
        (
            "Partition",
            match (get("partition"), get("alpha")) {
                (Some(name), Some(alpha)) if name == "dirichlet" => {
                    Some(format!("{name}, alpha {alpha}"))
                }
                (name, _) => name,
            },
        ),
        ("Scaling", get("scale")),
        ("Map of records", get("features")),
        ("Basis", get("basis")),
        ("Weighting", get("weighting")),
    ]
}

fn model_facts(run: &RunFiles, settings: &Settings) -> Facts {
    let get = |key: &str| settings.text("model", key);
    let kind = get("kind");
    let is = |name: &str| kind.as_deref() == Some(name);
    let regularizer = get("regularizer");
    let regularized = regularizer.as_deref().is_some_and(|name| name != "none");
    vec![
        ("Kind", kind.clone()),
        (
            "Parameters",
            number_at(run, "/dimension").map(|value| text::count(value as u64)),
        ),
        ("Hidden layers", get("hidden").filter(|_| is("mlp"))),
        ("Activation", get("activation").filter(|_| is("mlp"))),
        ("Intercept", get("intercept").filter(|_| is("logistic"))),
        ("Regularizer", regularizer),
        ("Lambda", get("lambda").filter(|_| regularized)),
        (
            "Regularized at",
            get("regularizer_at").filter(|_| regularized),
        ),
        ("Start", get("init")),
    ]
}

fn step_facts(settings: &Settings) -> Facts {
    let (algorithm, privacy) = (
        |key: &str| settings.text("algorithm", key),
        |key: &str| settings.text("privacy", key),
    );
    vec![
        ("Preset", algorithm("preset")),
        ("Rounds", algorithm("rounds")),
        ("Step size", algorithm("step_size")),
        ("Schedule", algorithm("schedule")),
        ("Momentum", algorithm("momentum")),
        ("Smoothing", algorithm("smoothing")),
        ("Equalizing floor", algorithm("equalize")),
        ("Longest step", algorithm("step_cap")),
        ("Coordinates", algorithm("coordinates")),
        ("Clip", privacy("clip")),
        ("Clip scope", privacy("clip_scope")),
        ("Difference clip", privacy("difference_clip")),
        ("Difference scale", privacy("difference_scale")),
        ("Noise ratio", privacy("noise_ratio")),
        ("Sampling", privacy("sampling")),
        ("Target epsilon", privacy("epsilon")),
    ]
}

/// `3256`, or `3200 to 3256`; none of nothing.
pub(super) fn range(values: &[f64], write: impl Fn(f64) -> String) -> Option<String> {
    let low = values.iter().copied().reduce(f64::min)?;
    let high = values.iter().copied().reduce(f64::max)?;
    let (low, high) = (write(low), write(high));
    Some(if low == high {
        low
    } else {
        format!("{low} to {high}")
    })
}

/// A table of names and values under a heading; facts that are not known are left out.
pub(super) fn facts(heading: &str, facts: &[(&'static str, Option<String>)]) -> String {
    let mut out = format!("<div class=\"facts\"><h3>{heading}</h3><dl>\n");
    for (name, value) in facts {
        if let Some(value) = value {
            append!(
                &mut out,
                "<div><dt>{name}</dt><dd>{}</dd></div>\n",
                escape(value)
            );
        }
    }
    out.push_str("</dl></div>\n");
    out
}
