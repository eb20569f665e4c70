//! What stands beside a model, for whoever is handed it: `MODEL_CARD.md`, with the data's shape,
//! the claim, what was measured, and how to apply the model with this program or with a few lines
//! of Python.
//!
//! It is made from the files of the run alone, `summary.json` and the description in
//! `model.safetensors`, and says nothing that they do not.

use std::fmt::Write;

use serde_json::Value;
use soteriafl_accountant::round_up;

use crate::claim::START_IS_PUBLIC;
use crate::words::{counted, readable};

/// The card of a model with these bytes, from the run with this summary.
pub fn markdown(summary: &Value, model: &[u8]) -> String {
    let about = description(model).unwrap_or(Value::Null);
    let mut card = String::from("# Model card\n\n");
    what_it_is(&mut card, summary, &about);
    data(&mut card, summary, &about);
    privacy(&mut card, summary);
    quality(&mut card, summary);
    usage(&mut card, &about);
    card
}

/// The description in a model file.
fn description(model: &[u8]) -> Option<Value> {
    let (_, header) = safetensors::SafeTensors::read_metadata(model).ok()?;
    serde_json::from_str(header.metadata().as_ref()?.get("soteria")?).ok()
}

fn word(value: &Value) -> &str {
    value.as_str().unwrap_or("unknown")
}

/// A text that stands in a line of Markdown as it is.
fn plain(text: &str) -> String {
    let text: String = text
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    text.replace('\\', "\\\\")
        .replace('|', "\\|")
        .replace('<', "&lt;")
}

fn listed(values: &Value) -> String {
    let values = values.as_array().map(Vec::as_slice).unwrap_or_default();
    let texts = values.iter().map(|value| match value {
        Value::String(text) => plain(text),
        other => other.to_string(),
    });
    texts.collect::<Vec<_>>().join(", ")
}

fn what_it_is(card: &mut String, summary: &Value, about: &Value) {
    let dimension = summary["dimension"].as_u64().unwrap_or(0);
    let rounds = summary["rounds"].as_u64().unwrap_or(0);
    let kind = match about["kind"] == "elsewhere" {
        true => "model of a program of its own,".to_owned(),
        false => format!("{} model", word(&about["kind"])),
    };
    let _ = writeln!(
        card,
        "A {kind} with {}, trained by SoteriaFL {} ({}, {}).\n",
        counted(dimension, "parameter"),
        word(&summary["version"]),
        word(&summary["algorithm"]),
        counted(rounds, "round"),
    );
    if about["classes"].is_array() {
        let _ = writeln!(card, "It predicts one of: {}.\n", listed(&about["classes"]));
    }
    if about["target_range"].is_array() {
        let range = listed(&about["target_range"]);
        let _ = writeln!(card, "It predicts a number in [{range}].\n");
    }
}

fn data(card: &mut String, summary: &Value, about: &Value) {
    card.push_str("## Data\n\n");
    let sizes: Vec<u64> = summary["samples_per_client"]
        .as_array()
        .map(|sizes| sizes.iter().filter_map(Value::as_u64).collect())
        .unwrap_or_default();
    let clients = summary["clients"].as_u64().unwrap_or(0);
    let _ = write!(
        card,
        "`{}`, {}",
        plain(word(&summary["dataset"])),
        counted(clients, "client")
    );
    if let (Some(least), Some(most)) = (sizes.iter().min(), sizes.iter().max()) {
        let _ = write!(
            card,
            " with {least} to {most} records, {} together",
            sizes.iter().sum::<u64>()
        );
    }
    card.push_str(".\n\n");
    let Some(columns) = about["schema"]["columns"].as_array() else {
        return;
    };
    card.push_str("| column | role | values | a gap becomes |\n| --- | --- | --- | --- |\n");
    for column in columns {
        let kind = column["kind"].as_str();
        let role = column["role"].as_str().unwrap_or("feature");
        let values = match (
            kind,
            &column["values"],
            &column["classes"],
            &column["range"],
        ) {
            (_, values, _, _) if values.is_array() => listed(values),
            (_, _, classes, _) if classes.is_array() => listed(classes),
            (_, _, _, range) if range.is_array() => {
                format!("{} in [{}]", kind.unwrap_or("number"), listed(range))
            }
            (kind, ..) => kind.unwrap_or_default().to_owned(),
        };
        let gap = match (kind, column["gap"].as_str()) {
            (None, _) => "",
            (Some(_), Some("indicator")) => "nothing known, and a feature that says so",
            (Some(_), Some("neutral")) => "nothing known",
            (Some(_), _) => "an error",
        };
        let _ = writeln!(
            card,
            "| {} | {role} | {values} | {gap} |",
            plain(word(&column["name"]))
        );
    }
    card.push_str("\nValues outside of a range are cut off at its ends.\n\n");
}

fn privacy(card: &mut String, summary: &Value) {
    let privacy = &summary["privacy"];
    card.push_str("## Privacy\n\n");
    match privacy["epsilon"].as_f64() {
        Some(epsilon) => {
            let column = privacy["person_column"].as_str();
            let whom = match (column, privacy["records_per_person"].as_u64()) {
                (Some(column), _) => format!(
                    "everything that a client has about one person, named by its column \"{}\"",
                    plain(column)
                ),
                (None, Some(most)) if most > 1 => {
                    format!("one person with up to {most} records at a client")
                }
                _ => "one record".to_owned(),
            };
            let _ = writeln!(
                card,
                "Proved: the messages of every client are ({}, {})-locally differentially \
                 private for {whom} ({}), with noise that is {}. The model is computed from \
                 these messages alone. Metrics of training records and schemas or settings that \
                 somebody chose by looking at records stand outside of this claim.\n",
                readable(round_up(epsilon, 4)),
                privacy["delta"],
                word(&privacy["adjacency"]),
                word(&privacy["noise"]),
            );
            if summary["kind"] == "simulation" {
                let ideal = match privacy["noise"] == "secure" {
                    true => "",
                    false => "ideal Gaussian noise, ideal coins and ",
                };
                let _ = writeln!(
                    card,
                    "This was a simulation: the claim speaks of the same mechanism with {ideal}secret \
                     seeds. The seed of this run stands in its configuration, and whoever knows it can \
                     take the noise off.\n",
                );
            }
            let _ = writeln!(
                card,
                "Numbers of records, features and classes count as public; {START_IS_PUBLIC}.\n"
            );
            if privacy["ranges"].is_object() {
                card.push_str(
                    "Ranges above that nobody knew were estimated from the records, by releases that \
                     the claim covers.\n\n",
                );
            }
        }
        None => {
            let claim = word(&privacy["claim"]);
            let _ = writeln!(
                card,
                "Nothing is claimed for the records it was trained on: {claim}.\n"
            );
        }
    }
}

fn quality(card: &mut String, summary: &Value) {
    card.push_str("## Quality\n\n");
    let mut found = false;
    for (name, value) in summary["final"].as_object().into_iter().flatten() {
        let shown = !matches!(name.as_str(), "loss" | "grad_norm_sq" | "utility");
        let value = match value.as_u64() {
            Some(count) => Some(count.to_string()),
            None => value.as_f64().map(|value| format!("{value:.4}")),
        };
        if let Some(value) = value.filter(|_| shown) {
            let _ = writeln!(card, "- {}: {value}", called(name));
            found = true;
        }
    }
    match found {
        true => card.push_str("\nMeasured on records that were not trained on.\n\n"),
        false => card.push_str("Not measured: there was no test set.\n\n"),
    }
    for warning in summary["warnings"].as_array().into_iter().flatten() {
        let _ = writeln!(card, "**Warning:** {}\n", plain(word(warning)));
    }
}

/// What a metric is called in words.
fn called(name: &str) -> String {
    match name {
        "auc" => "area under the ROC curve".to_owned(),
        "r2" => "R²".to_owned(),
        "rmse" => "root mean squared error".to_owned(),
        "mean_rmse" => "the same by always answering the mean".to_owned(),
        "mae" => "mean absolute error".to_owned(),
        "majority_accuracy" => "test accuracy by always answering the most common class".to_owned(),
        "outside_range" => "true numbers outside of the range".to_owned(),
        other => other.replace('_', " "),
    }
}

fn usage(card: &mut String, about: &Value) {
    if about["kind"] == "elsewhere" {
        card.push_str(
            "## Use\n\n`model.safetensors` holds the trained parameters by name, for the program that \
             computes the model: `soteriafl.torch.load(DIR, module)` for a PyTorch module.\n",
        );
        return;
    }
    card.push_str(
        "## Use\n\n```console\nsoteria predict --model DIR --data csv:NEW.csv --out predictions.csv\n```\n\n\
         where DIR is the folder with this file. Rows need no label.\n",
    );
    if let Some(python) = python(about) {
        let _ = write!(
            card,
            "\nThe same in Python, without any library (`python3 predict.py NEW.csv`, where \
             `model.safetensors` is):\n\n```python\n{python}```\n"
        );
    }
}

/// Python that applies the model to the rows of a table, where it takes few lines: of models whose
/// records go through no map that has a longer formula than those to unit length.
fn python(about: &Value) -> Option<String> {
    let (roots, unit) = match about["map"]["kind"].as_str() {
        None => (false, false),
        Some("unit") => (false, true),
        Some("roots") => (true, true),
        Some(_) => return None,
    };
    if !about["target_range"].is_null() {
        return None;
    }
    let encode = match about["schema"]["columns"].as_array() {
        Some(columns) => python_of_schema(columns, about["schema"]["numbers"] == "root"),
        None => "    x = [float(row[name]) for name in about[\"features\"]]\n".to_owned(),
    };
    if about["schema"].is_null() && about["features"].is_null() {
        return None;
    }
    let mut code = String::from(
        "import csv, datetime, json, math, struct, sys\n\
         raw = open(\"model.safetensors\", \"rb\").read()\n\
         size = int.from_bytes(raw[:8], \"little\")\n\
         head = json.loads(raw[8:8 + size])\n\
         about = json.loads(head[\"__metadata__\"][\"soteria\"])\n\
         def tensor(name):\n    \
             a, b = head[name][\"data_offsets\"]\n    \
             return struct.unpack(f\"<{(b - a) // 4}f\", raw[8 + size + a:8 + size + b])\n\
         def encode(row):\n",
    );
    code += &encode;
    if !about["scale"].is_null() {
        code += "    at = lambda key, i: about[\"scale\"][key][i % len(about[\"scale\"][key])]\n    \
                 x = [(v - at(\"center\", i)) * at(\"factor\", i) for i, v in enumerate(x)]\n";
    }
    if roots {
        code += "    c = [min(max(v, -1), 1) for v in x]\n    r = math.sqrt(2)\n    \
                 x += [2 * math.sqrt((1 + v) / 2) - r - (2 - r) * v for v in c]\n";
    }
    if unit {
        code += "    x = [v / math.sqrt(sum(u * u for u in x) + 0.25) for v in x + [0.5]]\n";
    }
    if about["map"]["whitened"] == true {
        code += "    p = tensor(\"whitening\")\n    \
                 x = [sum(u * v for u, v in zip(p[i:], x)) for i in range(0, len(p), len(x))]\n    \
                 x = [v / math.sqrt(sum(u * u for u in x)) for v in x]\n";
    }
    code += "    return x\n";
    code += "def layer(x, name):\n    \
                 w, b = tensor(name + \"weight\"), name + \"bias\"\n    \
                 rows = [w[i:i + len(x)] for i in range(0, len(w), len(x))]\n    \
                 b = tensor(b) if b in head else [0] * len(rows)\n    \
                 return [sum(u * v for u, v in zip(row, x)) + c for row, c in zip(rows, b)]\n";
    code += "for row in csv.DictReader(open(sys.argv[1])):\n    x = encode(row)\n";
    match about["kind"].as_str()? {
        "logistic" => {
            code += "    p = 1 / (1 + math.exp(-layer(x, \"\")[0]))\n    p = [1 - p, p]\n";
        }
        kind => {
            match (kind, about["activation"].as_str()) {
                ("softmax", _) => code += "    x = layer(x, \"\")\n",
                (_, Some(activation)) => {
                    let function = match activation {
                        "sigmoid" => "1 / (1 + math.exp(-v))",
                        "tanh" => "math.tanh(v)",
                        _ => "max(v, 0)",
                    };
                    let last = about["layers"].as_array()?.len().checked_sub(1)?;
                    let _ = write!(
                        code,
                        "    for i in range({last}):\n        \
                                 x = [{function} for v in layer(x, f\"layers.{{i}}.\")]\n    \
                             x = layer(x, \"layers.{last}.\")\n"
                    );
                }
                _ => return None,
            }
            code += "    p = [math.exp(v - max(x)) for v in x]\n    p = [v / sum(p) for v in p]\n";
        }
    }
    code += "    print(about[\"classes\"][p.index(max(p))], *p, sep=\",\")\n";
    Some(code)
}

/// The lines that make features of a row, for the kinds of columns that there are.
fn python_of_schema(columns: &[Value], root: bool) -> String {
    let has = |kind: &str| columns.iter().any(|column| column["kind"] == kind);
    let mut code = String::from(
        "    x = []\n    \
             for c in (c for c in about[\"schema\"][\"columns\"] if \"kind\" in c):\n        \
                 v, values = row[c[\"name\"]].strip(), c.get(\"values\", [])\n        \
                 gap = v in about[\"schema\"][\"missing\"] and v not in values\n",
    );
    if has("category") {
        code += "        if c[\"kind\"] == \"category\":\n            \
                             x += [float(v == w) for w in values]\n            \
                             if c.get(\"unknown\") == \"indicator\":\n                \
                                 x.append(float(not gap and v not in values))\n";
    }
    if has("yes/no") {
        code += "        if c[\"kind\"] == \"yes/no\":\n            \
                             yes = values[1:] or [\"yes\", \"true\", \"1\", \"1.0\", \"y\", \"t\"]\n            \
                             x.append(float((v if values else v.lower()) in yes and not gap))\n";
    }
    if has("date") {
        code += "        if c[\"kind\"] == \"date\":\n            \
                             day = lambda text: datetime.date.fromisoformat(text[:10]).toordinal()\n            \
                             v, (lo, hi) = gap or day(v), map(day, c[\"range\"])\n";
    }
    if has("number") {
        code += "        if c[\"kind\"] == \"number\":\n            \
                             v, (lo, hi) = gap or float(v), c[\"range\"]\n";
    }
    if has("number") || has("date") {
        code += "        if c[\"kind\"] in (\"number\", \"date\"):\n            \
                             u = (min(max(v, lo), hi) - lo) / (hi - lo)\n            \
                             x.append(0 if gap else 2 * u - 1)\n";
        if root {
            code += "            x.append(0 if gap else 2 * math.sqrt(u) - 1)\n";
        }
    }
    code + "        if c.get(\"gap\") == \"indicator\":\n            x.append(float(gap))\n"
}
