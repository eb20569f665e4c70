//! What a model does on test records, as pictures: which classes it takes for which, how well its
//! scores rank, whether its probabilities mean what they say.
//!
//! Everything comes from `final` of `summary.json`; a picture whose numbers are not there is left
//! out. The pictures are SVG with the page's own colours, so they are right on dark pages, too, and
//! need no script.

use serde_json::Value;

use super::files::RunFiles;
use super::setup::{facts, number_at};
use super::text::{self, append, escape};

/// More classes than this get colours without numbers.
const MOST_WRITTEN: usize = 12;

/// The side of a picture, without margins.
const SIDE: f64 = 300.0;

/// The section; empty where nothing but accuracy was measured.
pub(super) fn section(run: &RunFiles) -> String {
    let Some(found) = run.summary.get("final").filter(|found| found.is_object()) else {
        return String::new();
    };
    let pictures = [
        confusion(found),
        ranking(found),
        calibration(found),
        classes(found),
        targets(found),
    ];
    let pictures = pictures.into_iter().flatten().collect::<String>();
    if pictures.is_empty() {
        return String::new();
    }
    let whose = if run.deployed() {
        "the server's own test set"
    } else {
        "the test records"
    };
    format!(
        "<section id=\"quality\">\n<h2>Quality</h2>\n\
         <p class=\"note\">Measured on {whose} at the end of the run, outside of the privacy \
         claim.</p>\n<div class=\"pictures\">\n{pictures}{}</div>\n</section>\n",
        numbers(run)
    )
}

fn numbers(run: &RunFiles) -> String {
    let number = |key: &str| number_at(run, &format!("/final/{key}"));
    let percent = |key: &str| number(key).map(text::percent);
    let digits = |key: &str| number(key).map(|value| text::number(value, 4));
    let list = [
        ("Accuracy", percent("test_accuracy")),
        ("By the most common class", percent("majority_accuracy")),
        ("Balanced accuracy", percent("balanced_accuracy")),
        ("Area under the ROC curve", digits("auc")),
        ("Log loss", digits("log_loss")),
        ("Calibration error", percent("calibration_error")),
        ("R²", digits("r2")),
        ("Root mean squared error", digits("rmse")),
        ("The same, by the mean", digits("mean_rmse")),
        ("Mean absolute error", digits("mae")),
    ];
    facts("In numbers", &list)
}

/// One picture with its heading; `body` is not escaped.
fn picture(title: &str, subtitle: &str, body: &str) -> String {
    format!(
        "<figure class=\"chart\"><figcaption><div><h3>{title}</h3><span>{subtitle}</span></div>\
         </figcaption>{body}</figure>\n"
    )
}

/// The confusion matrix as a grid: the darker, the larger the share of the row.
fn confusion(found: &Value) -> Option<String> {
    let rows: Vec<Vec<f64>> = found["confusion"]
        .as_array()?
        .iter()
        .map(|row| Some(row.as_array()?.iter().filter_map(Value::as_f64).collect()))
        .collect::<Option<_>>()?;
    let count = rows.len();
    if count == 0 || rows.iter().any(|row| row.len() != count) {
        return None;
    }
    let names = names(found, count);
    let cell = SIDE / count as f64;
    let mut out = opening(110.0, 56.0, "Confusion matrix");
    for (truth, row) in rows.iter().enumerate() {
        let all: f64 = row.iter().sum();
        for (answer, &records) in row.iter().enumerate() {
            let share = if all > 0.0 { records / all } else { 0.0 };
            let (x, y) = (answer as f64 * cell, truth as f64 * cell);
            append!(
                &mut out,
                "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{cell:.1}\" height=\"{cell:.1}\" \
                 fill=\"var(--accent)\" fill-opacity=\"{:.3}\" stroke=\"var(--line)\">\
                 <title>{} answered by {}: {} records, {}</title></rect>\n",
                0.04 + 0.86 * share,
                escape(&names[truth]),
                escape(&names[answer]),
                text::count(records as u64),
                text::percent(share),
            );
            if count <= MOST_WRITTEN {
                let ink = if share > 0.6 { "--panel" } else { "--ink" };
                append!(
                    &mut out,
                    "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" \
                     fill=\"var({ink})\">{}</text>\n",
                    x + cell / 2.0,
                    y + cell / 2.0 + 4.0,
                    text::count(records as u64)
                );
            }
        }
    }
    if count <= 2 * MOST_WRITTEN {
        for (class, name) in names.iter().enumerate() {
            let middle = (class as f64 + 0.5) * cell;
            let (short, long) = (escape(&shortened(name, 8)), escape(&shortened(name, 14)));
            append!(
                &mut out,
                "<text x=\"-8\" y=\"{:.1}\" text-anchor=\"end\" fill=\"var(--muted)\">{long}</text>\
                 <text transform=\"translate({:.1} {:.1}) rotate(-30)\" text-anchor=\"end\" \
                 fill=\"var(--muted)\">{short}</text>\n",
                middle + 4.0,
                middle + 4.0,
                SIDE + 15.0,
            );
        }
    }
    out += "</svg>";
    Some(picture(
        "Confusion matrix",
        "rows: the true class; columns: the answer; colour: share of the row",
        &out,
    ))
}

/// Predicted against true numbers, by cells: the darker, the more records.
fn targets(found: &Value) -> Option<String> {
    let picture_of = found.get("predicted_against_true")?;
    let (low, high) = (picture_of["low"].as_f64()?, picture_of["high"].as_f64()?);
    let rows = picture_of["records"].as_array()?;
    let rows: Vec<Vec<f64>> = rows.iter().map(numbers_of).collect::<Option<_>>()?;
    let most = rows.iter().flatten().copied().fold(0.0, f64::max);
    if most <= 0.0 || rows.iter().any(|row| row.len() != rows.len()) {
        return None;
    }
    let mark = |share: f64| text::number(low + share * (high - low), 3);
    let mut out = axes_with("true", "predicted", "Predicted against true", mark);
    let cell = SIDE / rows.len() as f64;
    for (truth, row) in rows.iter().enumerate() {
        for (predicted, &records) in row.iter().enumerate().filter(|(_, n)| **n > 0.0) {
            append!(
                &mut out,
                "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{cell:.1}\" height=\"{cell:.1}\" \
                 fill=\"var(--accent)\" fill-opacity=\"{:.3}\"><title>{} records</title></rect>\n",
                truth as f64 * cell,
                SIDE - (predicted + 1) as f64 * cell,
                0.08 + 0.82 * (records / most).sqrt(),
                text::count(records as u64),
            );
        }
    }
    out += "</svg>";
    Some(picture(
        "Predicted against true",
        "test records by cells over the public range; dashed: exactly right",
        &out,
    ))
}

/// The ROC curve of two classes.
fn ranking(found: &Value) -> Option<String> {
    let roc = found.get("roc")?;
    let x = numbers_of(&roc["false_positive_rate"])?;
    let y = numbers_of(&roc["true_positive_rate"])?;
    let points: Vec<(f64, f64)> = x.into_iter().zip(y).collect();
    if points.is_empty() {
        return None;
    }
    let mut out = axes(
        "share of the others taken for it",
        "share found",
        "ROC curve",
    );
    line(&mut out, &points);
    out += "</svg>";
    let positive = names(found, 2).pop().unwrap_or_default();
    let title = format!("Finding {}", escape(&shortened(&positive, 30)));
    let subtitle = "every threshold at once (ROC curve); dashed: guessing";
    Some(picture(&title, subtitle, &out))
}

/// Probability against share of right answers.
fn calibration(found: &Value) -> Option<String> {
    let bins = found["calibration"].as_array()?;
    let all: f64 = bins.iter().filter_map(|bin| bin["records"].as_f64()).sum();
    if bins.is_empty() || all <= 0.0 {
        return None;
    }
    let mut out = axes(
        "probability of the answer",
        "share right",
        "Calibration curve",
    );
    let place = |bin: &Value| Some((bin["confidence"].as_f64()?, bin["accuracy"].as_f64()?));
    let points: Vec<(f64, f64)> = bins.iter().filter_map(place).collect();
    line(&mut out, &points);
    for bin in bins {
        let (Some((x, y)), Some(records)) = (place(bin), bin["records"].as_f64()) else {
            continue;
        };
        append!(
            &mut out,
            "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"{:.1}\" fill=\"var(--accent)\" \
             fill-opacity=\"0.35\"><title>{} records: {} expected, {} right</title></circle>\n",
            x * SIDE,
            (1.0 - y) * SIDE,
            3.0 + 15.0 * (records / all).sqrt(),
            text::count(records as u64),
            text::percent(x),
            text::percent(y),
        );
    }
    out += "</svg>";
    Some(picture(
        "Calibration",
        "whether probabilities are right; dashed: exactly so; circles: how many records",
        &out,
    ))
}

/// Recall and precision of every class as bars.
fn classes(found: &Value) -> Option<String> {
    let list = found["classes"]
        .as_array()
        .filter(|list| !list.is_empty())?;
    let names = names(found, list.len());
    let mut out = String::from(
        "<table class=\"bars\"><thead><tr><th>class</th><th>records</th><th>found (recall)</th>\
         <th>right when answered (precision)</th></tr></thead><tbody>\n",
    );
    for (class, name) in list.iter().zip(&names) {
        append!(
            &mut out,
            "<tr><th>{}</th><td>{}</td>{}{}</tr>\n",
            escape(&shortened(name, 30)),
            class["records"].as_u64().map_or(String::new(), text::count),
            bar(class["recall"].as_f64()),
            bar(class["precision"].as_f64()),
        );
    }
    out += "</tbody></table>";
    Some(picture("Class by class", "shares of test records", &out))
}

fn bar(share: Option<f64>) -> String {
    let Some(share) = share.filter(|share| (0.0..=1.0).contains(share)) else {
        return "<td>none</td>".to_owned();
    };
    format!(
        "<td><svg viewBox=\"0 0 100 8\" width=\"100\" height=\"8\" aria-hidden=\"true\">\
         <rect width=\"100\" height=\"8\" fill=\"var(--grid)\"/>\
         <rect width=\"{:.1}\" height=\"8\" fill=\"var(--accent)\"/></svg> {}</td>",
        100.0 * share,
        text::percent(share)
    )
}

/// The names of classes, their numbers where there are none.
fn names(found: &Value, count: usize) -> Vec<String> {
    let name = |class: usize| match found["classes"][class]["name"].as_str() {
        Some(name) => name.to_owned(),
        None => class.to_string(),
    };
    (0..count).map(name).collect()
}

/// At most so many characters of a name.
fn shortened(name: &str, most: usize) -> String {
    if name.chars().count() <= most {
        return name.to_owned();
    }
    let start: String = name.chars().take(most - 1).collect();
    format!("{start}…")
}

fn numbers_of(list: &Value) -> Option<Vec<f64>> {
    list.as_array()?.iter().map(Value::as_f64).collect()
}

/// The root element of a picture whose area begins at the origin.
fn opening(left: f64, bottom: f64, label: &str) -> String {
    format!(
        "<svg role=\"img\" aria-label=\"{label}\" viewBox=\"{:.1} -10 {:.1} {:.1}\" \
         font-size=\"12\">\n",
        -left,
        left + SIDE + 14.0,
        SIDE + 10.0 + bottom
    )
}

/// A unit square with marks at quarters and a dashed diagonal.
fn axes(x_label: &str, y_label: &str, label: &str) -> String {
    axes_with(x_label, y_label, label, |share| share.to_string())
}

/// The same with other words at the marks.
fn axes_with(x_label: &str, y_label: &str, label: &str, mark: impl Fn(f64) -> String) -> String {
    let mut out = opening(56.0, 46.0, label);
    for quarter in 0..=4 {
        let place = f64::from(quarter) / 4.0 * SIDE;
        append!(
            &mut out,
            "<path d=\"M0 {place:.1}H{SIDE}M{place:.1} 0V{SIDE}\" stroke=\"var(--grid)\"/>\
             <text x=\"-8\" y=\"{:.1}\" text-anchor=\"end\" fill=\"var(--muted)\">{}</text>\
             <text x=\"{place:.1}\" y=\"{:.1}\" text-anchor=\"middle\" \
             fill=\"var(--muted)\">{}</text>\n",
            place + 4.0,
            mark(1.0 - f64::from(quarter) / 4.0),
            SIDE + 18.0,
            mark(f64::from(quarter) / 4.0),
        );
    }
    append!(
        &mut out,
        "<path d=\"M0 {SIDE}L{SIDE} 0\" stroke=\"var(--muted)\" stroke-dasharray=\"5 4\"/>\
         <text x=\"{half}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"var(--ink)\">{x_label}</text>\
         <text transform=\"translate(-44 {half}) rotate(-90)\" text-anchor=\"middle\" \
         fill=\"var(--ink)\">{y_label}</text>\n",
        SIDE + 38.0,
        half = SIDE / 2.0,
    );
    out
}

fn line(out: &mut String, points: &[(f64, f64)]) {
    *out += "<path fill=\"none\" stroke=\"var(--accent)\" stroke-width=\"2.5\" d=\"";
    for (index, (x, y)) in points.iter().enumerate() {
        let step = if index == 0 { 'M' } else { 'L' };
        append!(out, "{step}{:.1} {:.1}", x * SIDE, (1.0 - y) * SIDE);
    }
    *out += "\"/>\n";
}
