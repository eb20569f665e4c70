//! The curves of a run, those that its kind of run has: as data for the page's interactive charts,
//! and as a static figure.

use serde_json::{Value, json};

use super::decimate;
use super::figure::{Figure, Panel, Series};
use super::files::{Row, RunFiles};
use super::setup::Settings;
use super::svg::PALETTE;
use super::text;

/// How many rows of a run a page holds at most; of longer runs extremes and ends stay.
pub const MAX_POINTS: usize = 2000;

/// One chart of the page. `id` is what the page's script knows it by.
struct Chart {
    /// Which runs have it.
    of: Runs,
    id: &'static str,
    title: &'static str,
    subtitle: &'static str,
    /// What to say instead of an empty chart.
    absent: &'static str,
    log_y: bool,
    value: fn(&Row) -> f64,
}

/// Which runs a chart is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Runs {
    All,
    /// What only the clients' records can tell.
    Simulations,
    /// What a server measures instead.
    Deployments,
    /// Where every client has a model of its own.
    WithoutServer,
}

const CHARTS: [Chart; 6] = [
    Chart {
        of: Runs::Simulations,
        id: "utility",
        title: "Utility",
        subtitle: "running mean of the squared gradient norm",
        absent: "No gradient norms are recorded.",
        log_y: true,
        value: |row| row.utility,
    },
    Chart {
        of: Runs::Simulations,
        id: "loss",
        title: "Loss",
        subtitle: "the objective over all clients' records",
        absent: "No loss is recorded.",
        log_y: false,
        value: |row| row.loss,
    },
    Chart {
        of: Runs::Deployments,
        id: "test_loss",
        title: "Test loss",
        subtitle: "mean over the server's test set, without regularizer",
        absent: "",
        log_y: false,
        value: |row| row.test_loss.unwrap_or(f64::NAN),
    },
    Chart {
        of: Runs::All,
        id: "accuracy",
        title: "Test accuracy",
        subtitle: "share of the test set classified rightly",
        absent: "No accuracy is recorded, as in runs without a test set.",
        log_y: false,
        value: |row| row.test_accuracy.unwrap_or(f64::NAN),
    },
    Chart {
        of: Runs::All,
        id: "epsilon",
        title: "Privacy spent",
        subtitle: "epsilon up to each round, at the run's delta",
        absent: "No epsilon is recorded, as in runs without a privacy claim.",
        log_y: false,
        value: |row| row.epsilon.unwrap_or(f64::NAN),
    },
    Chart {
        of: Runs::WithoutServer,
        id: "consensus_error",
        title: "Consensus error",
        subtitle: "mean squared distance of the clients' models to their mean",
        absent: "No distances are recorded.",
        log_y: true,
        value: |row| row.consensus_error.unwrap_or(f64::NAN),
    },
];

/// The section with the charts: empty frames that the page's script fills, and a static figure for
/// readers without scripts.
pub(super) fn section(run: &RunFiles) -> String {
    let mut out = String::from(
        "<section id=\"curves\">\n<div class=\"section-head\"><h2>Curves</h2>\n\
         <div class=\"segmented\" id=\"horizontal\" role=\"group\" aria-label=\"Horizontal axis\">\
         <button type=\"button\" data-x=\"round\" aria-pressed=\"true\">rounds</button>\
         <button type=\"button\" data-x=\"uplink_bytes\" aria-pressed=\"false\">bytes \
         sent</button>\
         <button type=\"button\" data-x=\"paper_bits\" aria-pressed=\"false\">paper bits</button>\
         </div></div>\n\
         <div class=\"charts\">\n",
    );
    for chart in charts(run) {
        chart.frame(&mut out, &run.rounds);
    }
    out.push_str("</div>\n");
    out.push_str(&unmeasured(run));
    let mut notes = vec![
        "Hover for values, click a name to hide its curve, drag to zoom, double-click to zoom out."
            .to_owned(),
        "Traffic is the sum over all clients; paper bits count 64 bits per transmitted value."
            .to_owned(),
    ];
    if run.rounds.len() > MAX_POINTS {
        notes.push(format!(
            "Drawn from a selection of the {} rows that keeps the extremes and the last row.",
            text::count(run.rounds.len() as u64)
        ));
    }
    text::append!(&mut out, "<p class=\"note\">{}</p>\n", notes.join(" "));
    text::append!(
        &mut out,
        "<noscript><div class=\"static\">{}</div></noscript>\n",
        figure(run).to_svg()
    );
    out.push_str("</section>\n");
    out
}

/// The charts of this run. A server's are those of what it measured: a frame for anything else
/// would stay empty.
fn charts(run: &RunFiles) -> impl Iterator<Item = &'static Chart> {
    let deployed = run.deployed();
    let without_server = run.summary.get("gossip").is_some();
    // A model of numbers has no accuracy.
    let numbers = run.summary.pointer("/final/rmse").is_some();
    let fits = move |chart: &&Chart| match chart.of {
        Runs::All => true,
        Runs::Simulations => !deployed,
        Runs::Deployments => deployed,
        Runs::WithoutServer => without_server,
    };
    CHARTS
        .iter()
        .filter(fits)
        .filter(move |chart| !numbers || chart.id != "accuracy")
        .filter(move |chart| !deployed || chart.has_values(&run.rounds))
}

/// What a deployment cannot show, and why.
fn unmeasured(run: &RunFiles) -> String {
    if !run.deployed() {
        return String::new();
    }
    let mut text = String::from("<p class=\"unmeasured\"><strong>Not measured:</strong> ");
    text += if run.summary.get("test").is_some_and(|test| !test.is_null()) {
        "the objective over the clients' records, its gradient and the utility. They need the \
         records, which stay with the clients; what is shown of the model's quality was measured \
         on the server's own test set."
    } else {
        "how good the model is. The records stay with the clients, and the server has no test set \
         (<code>data.test</code>). <code>soteria evaluate</code> measures the model on records \
         that you have."
    };
    if run.rounds.iter().all(|row| row.epsilon.is_none()) {
        text += " No epsilon is drawn, because the run claims none.";
    }
    text + "</p>\n"
}

impl Chart {
    fn has_values(&self, rows: &[Row]) -> bool {
        rows.iter().any(|row| (self.value)(row).is_finite())
    }

    fn frame(&self, out: &mut String, rows: &[Row]) {
        let missing = rows
            .iter()
            .filter(|row| !(self.value)(row).is_finite())
            .count();
        let head = format!(
            "<div><h3>{}</h3><span>{}</span></div>",
            self.title, self.subtitle
        );
        if missing == rows.len() {
            text::append!(
                out,
                "<figure class=\"chart\"><figcaption>{head}</figcaption><p class=\"absent\">{}</p>\
                 </figure>\n",
                self.absent
            );
            return;
        }
        text::append!(
            out,
            "<figure class=\"chart\" data-chart=\"{}\"><figcaption>{head}<div class=\"switches\">\
             <button type=\"button\" data-log=\"x\" aria-pressed=\"false\" title=\"logarithmic \
             horizontal axis\">log x</button>\
             <button type=\"button\" data-log=\"y\" aria-pressed=\"{}\" title=\"logarithmic \
             vertical axis\">log y</button>\
             </div></figcaption><div class=\"plot\"></div>",
            self.id,
            self.log_y
        );
        if missing > 0 {
            text::append!(
                out,
                "<p class=\"note\">{missing} of {} rows hold no finite value and are not \
                 drawn.</p>",
                rows.len()
            );
        }
        out.push_str("</figure>\n");
    }
}

/// The data of the charts: columns of equal length, null where there is nothing to draw.
pub(super) fn data(run: &RunFiles) -> Value {
    let rows = &run.rounds;
    // A deployment has the one loss, a simulation the other.
    let loss = |at: usize| rows[at].test_loss.unwrap_or(rows[at].loss);
    let kept = decimate::keep(
        rows.len(),
        MAX_POINTS,
        &[&loss, &|at| rows[at].grad_norm_sq, &|at| {
            rows[at].test_accuracy.unwrap_or(f64::NAN)
        }],
    );
    let column = |value: &dyn Fn(&Row) -> f64| -> Vec<Value> {
        // serde_json writes a number that is not finite as null.
        kept.iter().map(|at| json!(value(&rows[*at]))).collect()
    };
    json!({
        "round": kept.iter().map(|at| rows[*at].round).collect::<Vec<_>>(),
        "uplink_bytes": kept.iter().map(|at| rows[*at].uplink_bytes).collect::<Vec<_>>(),
        "paper_bits": column(&|row| row.paper_bits),
        "loss": column(&|row| row.loss),
        "grad_norm_sq": column(&|row| row.grad_norm_sq),
        "utility": column(&|row| row.utility),
        "test_accuracy": column(&|row| row.test_accuracy.unwrap_or(f64::NAN)),
        "test_loss": column(&|row| row.test_loss.unwrap_or(f64::NAN)),
        "epsilon": column(&|row| row.epsilon.unwrap_or(f64::NAN)),
        "consensus_error": column(&|row| row.consensus_error.unwrap_or(f64::NAN)),
        "target": Settings::of(run).float("privacy", "epsilon"),
    })
}

/// The curves against rounds as a static figure; charts without a value are left out.
pub(super) fn figure(run: &RunFiles) -> Figure {
    let mut panels = Vec::new();
    for (index, chart) in charts(run).enumerate() {
        let points: Vec<(f64, f64)> = run
            .rounds
            .iter()
            .map(|row| (row.round as f64, (chart.value)(row)))
            .collect();
        if points.iter().all(|(_, value)| !value.is_finite()) {
            continue;
        }
        let color = Some(PALETTE[index].to_owned());
        panels.push(Panel {
            title: chart.title.to_owned(),
            x_label: "rounds".to_owned(),
            log_y: chart.log_y,
            series: vec![Series {
                color,
                ..Series::new("", points)
            }],
            ..Panel::default()
        });
    }
    Figure {
        title: super::setup::title(run),
        panels,
    }
}
