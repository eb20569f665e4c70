//! What an audit looks like to people: the trade-off curve, and a page around it.

use super::{Findings, Outcome, Verdict};
use crate::report::{Figure, Panel, Part, Series, StudyPage, Table};
use crate::words::{counted, readable};
use soteriafl_accountant::round_up;

/// What the attack reached against what the claim allows: the share of canaries that are found
/// against the share of false alarms.
pub fn figure(findings: &Findings) -> Figure {
    let panels = findings
        .outcomes
        .iter()
        .map(|outcome| panel(outcome, findings.delta));
    Figure {
        title: "What the attack reached, and what the claim allows".to_string(),
        panels: panels.collect(),
    }
}

fn panel(outcome: &Outcome, delta: f64) -> Panel {
    let least = outcome
        .curve
        .iter()
        .map(|point| point.0)
        .filter(|&alarms| alarms > 0.0)
        .fold(1.0, f64::min);
    let allowed = |alarms: f64| {
        let ratio = outcome.claimed_epsilon.exp();
        (ratio * alarms + delta).min(1.0 - (1.0 - delta - alarms).max(0.0) / ratio)
    };
    let grid = (0..=100).map(|i| least.powf(1.0 - f64::from(i) / 100.0));
    let claim: Vec<(f64, f64)> = grid
        .clone()
        .map(|alarms| (alarms, allowed(alarms)))
        .collect();
    let blind = grid.map(|alarms| (alarms, alarms)).collect();
    let reached = outcome.curve.iter().copied().filter(|point| point.0 > 0.0);
    let dashed = |label: &str, points| Series {
        dashed: true,
        ..Series::new(label, points)
    };
    Panel {
        title: format!(
            "{}: canaries found against false alarms",
            outcome.neighbours
        ),
        x_label: "false alarms".to_string(),
        y_label: "canaries found".to_string(),
        log_x: true,
        log_y: true,
        series: vec![
            dashed("guessing blindly", blind),
            dashed("most that the claim allows", claim),
            Series {
                bold: true,
                ..Series::new("reached", reached.collect())
            },
        ],
    }
}

/// The page.
pub fn html(findings: &Findings, title: &str) -> String {
    let main = &findings.outcomes[0];
    let verdict = match findings.verdict() {
        Verdict::Consistent if findings.shows_little() => "consistent, shows little",
        Verdict::Consistent => "consistent",
        Verdict::Violated => "violated",
    };
    let card = |name: &str, value: String, line: String| (name.to_string(), value, line);
    let caveat = findings.caveat().into_iter();
    let caveat = caveat.map(|said| Part::note(format!("No claim is made: {said}.")));
    let percent = |share: f64| format!("{}%", readable((1e4 * share).round() / 100.0));
    StudyPage {
        kicker: "Audit".to_string(),
        title: title.to_string(),
        subtitle: format!(
            "one client of {}, {}, noise {}",
            counted(findings.records, "record"),
            counted(findings.rounds, "round"),
            findings.noise
        ),
        cards: vec![
            card("Verdict", verdict.to_string(), "of all games".to_string()),
            card(
                "Claimed ε",
                readable(round_up(main.claimed_epsilon, 4)),
                format!("at δ = {}, {}", readable(findings.delta), main.neighbours),
            ),
            card(
                "Attack proves ε above",
                format!("{:.3}", main.empirical_epsilon),
                format!("with {} confidence", percent(main.confidence)),
            ),
            card(
                "Games",
                (u64::from(main.runs) * main.canaries as u64).to_string(),
                format!("in {}", counted(main.runs, "run")),
            ),
        ],
        parts: caveat.chain(vec![
            Part::heading("The game"),
            Part::text(format!(
                "In every run an honest client with fresh keys answers {}. Each canary is \
                 there, or something else in its place, by a fair coin. An attacker who sees what \
                 a server sees, every message with its coordinates, computes for each canary the \
                 likelihood ratio of the whole transcript and guesses the coins that it is surest \
                 of. If the claim is true, right guesses can outnumber wrong ones by a certain \
                 factor at most, and exceed it only with small probability.",
                match main.canaries_are_natural() {
                    false => {
                        "a server that chooses its models so that canaries among the client's \
                         records stand out"
                    }
                    true => {
                        "the server of the run; some of its own records are the canaries, as they \
                         are or with another class"
                    }
                }
            )),
            Part::figure(figure(findings), &[]),
            Part::note(
                "Where the curve stays below the dashed limit, the claim is consistent with what \
                 was seen. The curve itself is not a bound: its left end rests on few events.",
            ),
            Part::Table(table(findings)),
            Part::heading("What it says"),
            Part::text(
                "The bound holds whatever the client's noise really is: it presumes that the coins \
                 are fair and runs independent, nothing else. The rule of guessing was fixed on \
                 runs that are not counted. A passed audit is evidence, not proof; a failed one is \
                 a proof, up to the stated confidence, that the claim is false for this program on \
                 this machine.",
            ),
        ])
        .collect(),
    }
    .to_html()
}

fn table(findings: &Findings) -> Table {
    let row = |outcome: &Outcome| {
        vec![
            outcome.neighbours.clone(),
            outcome.canary_records.to_string(),
            readable(round_up(outcome.claimed_epsilon, 4)),
            format!("{:.3}", outcome.empirical_epsilon),
            format!("{:.2}", outcome.empirical_epsilon / outcome.claimed_epsilon),
            outcome.runs.to_string(),
            outcome.canaries.to_string(),
            format!("{} of {}", outcome.right, outcome.guesses),
            match outcome.violates() {
                false => "+ consistent".to_string(),
                true => "- violated".to_string(),
            },
        ]
    };
    Table::new(
        "neighbours|canaries|claimed ε|attack proves|share|runs|canaries a run|right guesses|verdict",
        findings.outcomes.iter().map(row),
    )
}
