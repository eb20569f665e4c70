//! A plan as text and as JSON.

use serde_json::{Value, json};
use soteriafl_accountant::{EstimatorKind, round_up};
use soteriafl_core::protocol::shift_step;
use soteriafl_core::theory::{Problem as Numbers, ResultRow, Tables};

use soteriafl::planning::outlook::Outlook;
use soteriafl::planning::persons::PersonRow;
use soteriafl::planning::trial::{Advice, Trial};
use soteriafl::planning::{Inquiry, Row};
use soteriafl::report::Table;
use soteriafl::reproduce::tables::{plus_minus, statistic_json};
use soteriafl::specification::neighbours;
use soteriafl::words::readable;

/// Everything that is shown.
pub(super) struct Shown<'a> {
    pub(super) inquiry: &'a Inquiry,
    /// Whether rows are runs of the configuration, so that their settings mean something.
    pub(super) is_a_run: bool,
    pub(super) rows: &'a [Row],
    pub(super) persons: &'a [PersonRow],
    pub(super) tables: Tables,
    pub(super) trial: Option<&'a Trial>,
    pub(super) advice: &'a Advice,
    pub(super) outlook: Option<&'a Outlook>,
}

impl Shown<'_> {
    pub(super) fn json(&self) -> Value {
        let (numbers, terms) = (&self.inquiry.numbers, &self.inquiry.terms);
        let bounds = |rows: &[ResultRow]| -> Vec<Value> { rows.iter().map(bound_json).collect() };
        let first = bounds(&self.tables.results);
        let newer = bounds(&self.tables.newer);
        let second: Vec<Value> = self
            .tables
            .gradients
            .iter()
            .map(|(estimator, count)| {
                json!({ "algorithm": soteria(*estimator), "gradient_complexity": count })
            })
            .collect();
        let algorithms = self.rows.iter().map(|row| {
            let mut value = row_json(row, numbers);
            value["settings"] = json!(self.is_a_run.then_some(&row.settings));
            value
        });
        let algorithms: Vec<Value> = algorithms.collect();
        json!({
            "clients": numbers.clients, "samples": numbers.records, "dimension": numbers.dimension,
            "omega": numbers.omega, "tau": numbers.tau(), "smoothness": numbers.smoothness,
            "clip": numbers.clip, "epsilon": numbers.epsilon, "delta": numbers.delta,
            "adjacency": terms.adjacency.word(),
            "records_per_person": terms.records_per_person,
            "amplification": if terms.amplification { "auto" } else { "off" },
            "accountant": terms.accountant.word(),
            "algorithms": algorithms, "table_1": first, "newer_bounds": newer,
            "table_2": second,
            "persons": persons_json(self.persons),
            "trial": self.trial.map(trial_json),
            "outlook": self.outlook.map(outlook_json),
            "recommended": self.advice.name,
            "reason": self.advice.reason,
            "remarks": self.inquiry.remarks,
        })
    }

    pub(super) fn text(&self) -> String {
        let mut out = self.heading();
        out += "The theory's choices\n";
        out += &self.choices();
        if self.rows.iter().any(is_amplified) {
            out += "* amplified by random-k\n";
        }
        for row in self.rows {
            if let Some(missing) = &row.missing {
                out += &format!("{}: no exact sigma: {missing}\n", row.name);
            }
        }
        out += &persons_text(self.persons);
        out += &self.papers_tables();
        out += "\nConditions of the theorems that do not hold\n";
        let broken: Vec<String> = self
            .rows
            .iter()
            .flat_map(|row| {
                let conditions = row.broken.iter();
                conditions.map(|condition| format!("  {}: {condition}\n", row.name))
            })
            .collect();
        out += &if broken.is_empty() {
            "  none\n".to_string()
        } else {
            broken.concat()
        };
        if let Some(trial) = self.trial {
            out += &tried(trial);
        }
        let reason = &self.advice.reason;
        out += &match &self.advice.name {
            Some(name) => format!(
                "\nRecommended: {name}. Why: {reason}.\nSynthetic records are not yours: where \
                 yours may be looked at, `soteria compare` tries algorithms on them.\n"
            ),
            None => format!("\nNothing is recommended: {reason}.\n"),
        };
        if let Some(outlook) = self.outlook {
            out += &expected(outlook);
        }
        out
    }

    fn heading(&self) -> String {
        let Numbers {
            clients,
            records,
            dimension,
            omega,
            smoothness,
            clip,
            epsilon,
            delta,
        } = self.inquiry.numbers;
        let terms = &self.inquiry.terms;
        let amplification = if terms.amplification {
            "random-k amplification where it is proved (clip of whole records, coordinates of the \
             client's own)"
        } else {
            "no amplification"
        };
        let clip = round_up(clip, 6);
        format!(
            "n = {clients} clients of m = {records} records, d = {dimension}, omega = {omega:.4}, \
             L = {smoothness:.4}, G = {clip}, epsilon = {epsilon}, delta = {}; tau = {:.4}, shift \
             step {:.4}\n\
             exact noise: {}, {amplification}, accountant {}\n\n",
            readable(delta),
            self.inquiry.numbers.tau(),
            shift_step(omega),
            neighbours(terms.adjacency, terms.records_per_person),
            terms.accountant.word(),
        )
    }

    fn choices(&self) -> String {
        let rows = self.rows.iter().map(|row| {
            let up = |value| round_up(value, 3).to_string();
            vec![
                row.name.to_string(),
                row.choice.rounds.to_string(),
                row.choice.batch.to_string(),
                format!("{:.4}", row.choice.step_size),
                format!("{:.4} {}", row.clip, row.clip_scope.word()),
                row.coordinates.name().to_string(),
                short(Some(row.sigma)),
                row.epsilon_of_sigma.map_or("-".to_string(), up),
                noise(row.exact.map(|level| level.sigma))
                    + if is_amplified(row) { " *" } else { "" },
                short(Some(row.utility)),
                short(row.utility_exact),
                short(Some(row.values)),
                short(Some(64.0 * row.values)),
                short(Some(row.gradients())),
            ]
        });
        table(
            &[
                "algorithm",
                "rounds",
                "batch",
                "step size",
                "clip G",
                "coordinates",
                "sigma (theorem)",
                "its epsilon",
                "sigma (exact)",
                "utility bound",
                "with exact sigma",
                "values sent",
                "bits",
                "gradients",
            ],
            rows.collect(),
        )
    }

    fn papers_tables(&self) -> String {
        let mut out =
            "\nTable 1 for these numbers (orders of magnitude: no constants, no G, no L), as printed in 2022\n"
                .to_string();
        out += &bounds_table(&self.tables.results);
        out += "\nBounds of later texts, in the same orders of magnitude\n";
        out += &bounds_table(&self.tables.newer);
        out += "\nTable 2: gradient complexity\n";
        let rows = self
            .tables
            .gradients
            .iter()
            .map(|(estimator, count)| vec![soteria(*estimator), short(Some(*count))]);
        out += &table(&["algorithm", "gradients of a client"], rows.collect());
        out
    }
}

fn bound_json(row: &ResultRow) -> Value {
    json!({
        "algorithm": row.algorithm, "presets": row.presets, "source": row.source,
        "privacy": row.privacy, "utility": row.utility, "communication": row.communication,
        "remark": row.remark,
    })
}

/// Bounds with the text that each is from.
fn bounds_table(rows: &[ResultRow]) -> String {
    let rows = rows.iter().map(|row| {
        vec![
            row.algorithm.to_string(),
            row.presets.to_string(),
            row.privacy.to_string(),
            short(Some(row.utility)),
            short(row.communication),
            row.source.to_string(),
            row.remark.to_string(),
        ]
    });
    let heads = [
        "algorithm",
        "presets",
        "privacy",
        "utility",
        "values sent",
        "from",
        "remark",
    ];
    table(&heads, rows.collect())
}

fn row_json(row: &Row, numbers: &Numbers) -> Value {
    let shifted = row.choice.estimator.is_some();
    json!({
        "algorithm": row.name,
        "rounds": row.choice.rounds,
        "batch": row.choice.batch,
        "snapshot_probability": row.choice.snapshot_probability,
        "step_size": row.choice.step_size,
        "clip": row.clip,
        "clip_scope": row.clip_scope.word(),
        "coordinates": row.coordinates.name(),
        "shift_step": shifted.then(|| shift_step(numbers.omega)),
        "sigma": { "theorem": row.sigma, "exact": row.exact.map(|level| level.sigma) },
        "no_exact_sigma": row.missing,
        "epsilon_of_theorem_sigma": row.epsilon_of_sigma,
        "amplified": is_amplified(row),
        "utility_bound": { "theorem": row.utility, "exact": row.utility_exact },
        "communication": { "values": row.values, "bits": 64.0 * row.values },
        "gradient_complexity": row.gradients(),
        "broken_conditions": row.broken,
    })
}

fn trial_json(trial: &Trial) -> Value {
    let tried: Vec<Value> = trial
        .tried
        .iter()
        .map(|tried| {
            json!({
                "algorithm": tried.name, "rounds": tried.rounds, "step_size": tried.step_size,
                "sigma": tried.sigma, "test_accuracy": statistic_json(&tried.accuracy),
                "loss": statistic_json(&tried.loss),
            })
        })
        .collect();
    let refused: Vec<Value> = trial
        .refused
        .iter()
        .map(|(name, reason)| json!({ "algorithm": name, "reason": reason }))
        .collect();
    json!({ "data": trial.data, "tried": tried, "refused": refused })
}

/// What was tried, as a table.
fn tried(trial: &Trial) -> String {
    let rows = trial.tried.iter().map(|tried| {
        vec![
            tried.name.clone(),
            tried.rounds.to_string(),
            tried.step_size.to_string(),
            noise(Some(tried.sigma)),
            plus_minus(&tried.accuracy),
            plus_minus(&tried.loss),
        ]
    });
    let mut out = format!("\nTried on {}\n", trial.data);
    out += &table(
        &[
            "algorithm",
            "rounds",
            "step size",
            "sigma",
            "test accuracy",
            "training loss",
        ],
        rows.collect(),
    );
    for (name, reason) in &trial.refused {
        out += &format!("{name}: not tried: {reason}\n");
    }
    out
}

fn outlook_json(outlook: &Outlook) -> Value {
    let rows: Vec<Value> = outlook
        .rows
        .iter()
        .map(|row| {
            let share = outlook.share(row);
            json!({
                "what": row.what, "clients": row.clients, "samples": row.records,
                "epsilon": row.epsilon, "sigma": row.sigma,
                "signal_to_noise": row.signal_to_noise,
                "test_accuracy": statistic_json(&row.accuracy),
                "share": share, "model": Outlook::word(share),
            })
        })
        .collect();
    json!({
        "rows": rows, "majority_accuracy": outlook.majority,
        "accuracy_without_noise": outlook.without_noise, "sentence": outlook.sentence(),
    })
}

/// What can be expected, as a table.
fn expected(outlook: &Outlook) -> String {
    let rows = outlook.rows.iter().map(|row| {
        let share = outlook.share(row);
        vec![
            row.what.clone(),
            row.clients.to_string(),
            row.records.to_string(),
            readable(row.epsilon),
            noise(Some(row.sigma)),
            format!("{:.3}", row.signal_to_noise),
            plus_minus(&row.accuracy),
            format!("{:.0}%", 100.0 * share),
            Outlook::word(share).to_string(),
        ]
    });
    let heads = [
        "problem",
        "clients",
        "records each",
        "epsilon",
        "sigma",
        "signal/noise",
        "test accuracy",
        "of what can be won",
        "model",
    ];
    format!(
        "\nWhat to expect of it\n{}{}\n",
        table(&heads, rows.collect()),
        outlook.sentence()
    )
}

fn is_amplified(row: &Row) -> bool {
    row.exact.is_some_and(|level| level.amplified)
}

fn short(value: Option<f64>) -> String {
    value.map_or("-".to_string(), |value| format!("{value:.3e}"))
}

/// A sigma that somebody may copy: never below the one that was computed.
fn noise(sigma: Option<f64>) -> String {
    short(sigma.map(|sigma| round_up(sigma, 4)))
}

/// As the paper calls it; recursive estimates are not among the algorithms that are compared.
fn soteria(estimator: EstimatorKind) -> String {
    match estimator {
        EstimatorKind::Recursive => estimator.to_string(),
        named => format!("SoteriaFL-{}", named.word().to_uppercase()),
    }
}

fn table(columns: &[&str], rows: Vec<Vec<String>>) -> String {
    let columns = columns.iter().map(ToString::to_string).collect();
    Table { columns, rows }.to_text()
}

fn persons_json(rows: &[PersonRow]) -> Value {
    let row = |row: &PersonRow| {
        json!({
            "records_per_person": row.records_per_person,
            "sigma": row.sigma,
            "epsilon_of_single_noise": row.epsilon,
        })
    };
    rows.iter().map(row).collect()
}

/// What persons with several records cost the configuration itself.
fn persons_text(rows: &[PersonRow]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let shown = |value: f64| readable(round_up(value, 4));
    let row = |row: &PersonRow| {
        vec![
            row.records_per_person.to_string(),
            shown(row.sigma),
            row.epsilon.map_or("unknown".to_string(), shown),
        ]
    };
    let columns =
        "records of a person|sigma for the target|epsilon with the sigma of the first row";
    let table = Table::new(columns, rows.iter().map(row));
    format!(
        "\nPersons (privacy.records_per_person), for the configuration itself\n{}",
        table.to_text()
    )
}
