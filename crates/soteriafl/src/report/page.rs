//! The page itself: head, headline numbers, sections, and everything it needs inside it.
//!
//! The page forbids itself the network (a content security policy of `default-src 'none'`), so even a
//! mistake in what follows could not load or send anything.

use super::claim::Claim;
use super::files::RunFiles;
use super::setup::{Settings, number_at, numbers_at, text_at, title};
use super::text::{self, escape, push, script_json};
use super::{charts, claim, setup};

pub(super) const STYLE: &str = include_str!("../../assets/report.css");
const SCRIPT: &str = include_str!("../../assets/report.js");
pub(super) const AXES_SCRIPT: &str = include_str!("../../assets/axes.js");
pub(super) const UPLOT_STYLE: &str = include_str!("../../../../third-party/uplot/uPlot.min.css");
pub(super) const UPLOT_SCRIPT: &str =
    include_str!("../../../../third-party/uplot/uPlot.iife.min.js");
pub(super) const UPLOT_LICENCE: &str = include_str!("../../../../third-party/uplot/LICENSE");

pub(super) fn html(run: &RunFiles) -> String {
    let mut out = String::with_capacity(256 * 1024);
    push(
        &mut out,
        format_args!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>{}</title>\n\
         <style>{UPLOT_STYLE}</style>\n<style>\n{STYLE}</style>\n\
         <noscript><style>.charts, .segmented, #curves > .note {{ display: none; }}</style></noscript>\n</head>\n<body>\n<main>\n",
            escape(&title(run))
        ),
    );
    out.push_str(&header(run));
    out.push_str(&warnings(run));
    out.push_str(&cards(run));
    out.push_str(&charts::section(run));
    out.push_str(&claim::section(run));
    out.push_str(&setup::section(run));
    out.push_str(&provenance(run));
    push(
        &mut out,
        format_args!(
            "</main>\n<script type=\"application/json\" id=\"run-data\">{}</script>\n\
         <script>\n/* uPlot 1.6.32\n{UPLOT_LICENCE}\n*/\n{UPLOT_SCRIPT}</script>\n<script>\n{AXES_SCRIPT}</script>\n<script>\n{SCRIPT}</script>\n</body>\n</html>\n",
            script_json(&charts::data(run))
        ),
    );
    out
}

fn header(run: &RunFiles) -> String {
    let mut parts = Vec::new();
    let mut part = |pointer: &str, one: &str, many: &str| {
        if let Some(value) = number_at(run, pointer) {
            parts.push(format!(
                "{} {}",
                text::count(value as u64),
                if value == 1.0 { one } else { many }
            ));
        }
    };
    part("/clients", "client", "clients");
    part("/dimension", "parameter", "parameters");
    part("/rounds", "round", "rounds");
    if let Some(seed) = number_at(run, "/seed") {
        let whose = if run.deployed() { "test seed" } else { "seed" };
        parts.push(format!("{whose} {seed}"));
    }
    let mut badges = String::new();
    if run.diverged() {
        badges += " <span class=\"badge unproved\">diverged</span>";
    }
    if run.interrupted() {
        let last = run
            .rounds
            .last()
            .map_or("before its first row".to_owned(), |row| {
                format!("after round {}", row.round)
            });
        push(
            &mut badges,
            format_args!(" <span class=\"badge unproved\">interrupted, last seen {last}</span>"),
        );
    }
    let kicker = if run.deployed() {
        "Report of a deployment, by its server"
    } else {
        "Training report"
    };
    format!(
        "<header>\n<p class=\"kicker\">{kicker}</p>\n<h1>{}</h1>\n<p class=\"subtitle\">{}{badges}</p>\n</header>\n",
        escape(&title(run)),
        parts.join(" <span class=\"dot\">·</span> ")
    )
}

/// What a reader must know before the numbers; nothing where there is nothing.
fn warnings(run: &RunFiles) -> String {
    let sentences = run.summary.get("warnings").and_then(|list| list.as_array());
    let items: String = sentences
        .into_iter()
        .flatten()
        .filter_map(|sentence| sentence.as_str())
        .map(|sentence| format!("<li>{}</li>\n", escape(&text::capitalised(sentence))))
        .collect();
    if items.is_empty() {
        return String::new();
    }
    format!(
        "<section class=\"warnings\" role=\"note\" aria-label=\"Warnings\">\n\
         <h2>Before you use this model</h2>\n<ul>\n{items}</ul>\n</section>\n"
    )
}

/// One number of the headline row; `lines` stand below it, already escaped.
fn card(class: &str, name: &str, value: &str, lines: &[String]) -> String {
    let lines: String = lines
        .iter()
        .filter(|line| !line.is_empty())
        .map(|line| format!("<p>{line}</p>"))
        .collect();
    format!(
        "<div class=\"card {class}\"><h2>{name}</h2><div class=\"value\">{value}</div>{lines}</div>\n"
    )
}

fn cards(run: &RunFiles) -> String {
    let mut out = String::from("<section class=\"cards\" aria-label=\"Headline numbers\">\n");
    if run.deployed() {
        out.push_str(&tested_cards(run));
    } else {
        out.push_str(&accuracy_card(run));
        out.push_str(&loss_card(run));
    }
    out.push_str(&privacy_card(run));
    out.push_str(&rounds_card(run));
    out.push_str(&traffic_card(run));
    out.push_str(&compression_card(run));
    out.push_str(&time_card(run));
    out.push_str("</section>\n");
    out
}

fn accuracy_card(run: &RunFiles) -> String {
    let last = run.rounds.last().and_then(|row| row.test_accuracy);
    match number_at(run, "/final/test_accuracy").or(last) {
        Some(value) => {
            let start = run.rounds.first().and_then(|row| row.test_accuracy);
            let start = start.map_or(String::new(), |start| {
                format!("{} at the start", text::percent(start))
            });
            let majority = number_at(run, "/final/majority_accuracy");
            let majority = majority.map_or(String::new(), |share| {
                format!("{} by the most common class", text::percent(share))
            });
            card(
                "",
                "Test accuracy",
                &text::percent(value),
                &[start, majority],
            )
        }
        None => card(
            "",
            "Test accuracy",
            "<span class=\"none\">none</span>",
            &["not recorded".to_owned()],
        ),
    }
}

/// What a server has measured, or that it has nothing to measure on.
fn tested_cards(run: &RunFiles) -> String {
    let Some(records) = number_at(run, "/test/records") else {
        let lines = ["the server has no test set".to_owned()];
        let value = "<span class=\"none\">not measured</span>";
        return card("", "Accuracy", value, &lines);
    };
    let on = format!("on {} test records", text::count(records as u64));
    let start = run.rounds.first().and_then(|row| row.test_loss);
    let start = start.filter(|loss| loss.is_finite());
    let start = start.map_or(String::new(), |start| {
        format!("{} at the start", text::number(start, 4))
    });
    let loss = match number_at(run, "/final/test_loss") {
        Some(loss) => text::number(loss, 4),
        // It was measured, and was none.
        None => "<span class=\"none\">not a number</span>".to_owned(),
    };
    accuracy_card(run) + &card("", "Test loss", &loss, &[start, on])
}

fn loss_card(run: &RunFiles) -> String {
    let row = run.rounds.last();
    let finite = |value: Option<f64>| value.filter(|value| value.is_finite());
    let loss = number_at(run, "/final/loss").or(finite(row.map(|row| row.loss)));
    let value = loss.map_or("<span class=\"none\">none</span>".to_owned(), |loss| {
        text::number(loss, 4)
    });
    let start = finite(run.rounds.first().map(|row| row.loss));
    let start = start.map_or(String::new(), |start| {
        format!("{} at the start", text::number(start, 4))
    });
    let gradient =
        number_at(run, "/final/grad_norm_sq").or(finite(row.map(|row| row.grad_norm_sq)));
    let gradient = gradient.map_or(String::new(), |value| {
        format!("‖∇f‖² = {}", text::number(value, 3))
    });
    card("", "Loss", &value, &[start, gradient])
}

fn privacy_card(run: &RunFiles) -> String {
    let claim = Claim::of(run);
    let value = match claim.epsilon {
        Some(epsilon) => format!("ε = {}", text::number_rounded_up(epsilon, 4)),
        None => "<span class=\"none\">no ε</span>".to_owned(),
    };
    let accountant =
        text_at(run, "/privacy/accountant").map(|name| format!("{} accountant", escape(name)));
    let noise = text_at(run, "/privacy/noise").map(|name| format!("noise: {}", escape(name)));
    let method = accountant
        .into_iter()
        .chain(noise)
        .collect::<Vec<_>>()
        .join(", ");
    let spent = run
        .rounds
        .last()
        .filter(|_| run.interrupted())
        .and_then(|row| Some((row.round, row.epsilon?)));
    let spent = spent.map_or(String::new(), |(round, epsilon)| {
        format!(
            "{} spent up to round {round}",
            text::number_rounded_up(epsilon, 4)
        )
    });
    card(
        "wide",
        "Privacy",
        &format!("{value} {}", claim.badge()),
        &[claim.terms(), method, spent],
    )
}

fn rounds_card(run: &RunFiles) -> String {
    let planned = number_at(run, "/rounds").map(|value| value as u64);
    let last = run.rounds.last().map(|row| row.round);
    let rounds = if run.interrupted() {
        last.or(planned)
    } else {
        planned.or(last)
    };
    let value = rounds.map_or("<span class=\"none\">none</span>".to_owned(), text::count);
    let clients = number_at(run, "/clients").map(|clients| clients as u64);
    let clients = clients.map_or(String::new(), |n| {
        format!("{} client{}", text::count(n), if n == 1 { "" } else { "s" })
    });
    let records: f64 = numbers_at(run, "/samples_per_client").iter().sum();
    let records = if records > 0.0 {
        let whose = if run.deployed() { ", as they say" } else { "" };
        format!("{} records{whose}", text::count(records as u64))
    } else {
        String::new()
    };
    let missing = planned.filter(|planned| run.interrupted() && Some(*planned) > rounds);
    let missing = missing.map_or(String::new(), |planned| {
        format!("of {} planned", text::count(planned))
    });
    card("", "Rounds", &value, &[missing, clients, records])
}

fn traffic_card(run: &RunFiles) -> String {
    let row = run.rounds.last();
    let up = number_at(run, "/traffic/uplink_bytes").or(row.map(|row| row.uplink_bytes as f64));
    let down =
        number_at(run, "/traffic/downlink_bytes").or(row.map(|row| row.downlink_bytes as f64));
    let paper = number_at(run, "/traffic/paper_bits").or(row.map(|row| row.paper_bits));
    let value = up.map_or("<span class=\"none\">none</span>".to_owned(), |bytes| {
        text::quantity(bytes, "B")
    });
    let paper = paper.map_or(String::new(), |bits| {
        format!("{} as the paper counts", text::quantity(bits, "bit"))
    });
    let down = down.map_or(String::new(), |bytes| {
        format!("{} down", text::quantity(bytes, "B"))
    });
    card("", "Sent by clients", &value, &[paper, down])
}

/// How much less was sent than if every message held all coordinates as 32-bit floats.
fn compression_card(run: &RunFiles) -> String {
    let Some((dense, ratio)) = compression(run) else {
        return card(
            "",
            "Compression",
            "<span class=\"none\">none</span>",
            &["nothing was sent".to_owned()],
        );
    };
    let (factor, than) = if ratio < 1.0 {
        (1.0 / ratio, "more than all coordinates as f32")
    } else {
        (ratio, "less than all coordinates as f32")
    };
    let value = format!("{}×", text::number(factor, 3));
    card(
        "",
        "Compression",
        &value,
        &[than.to_owned(), format!("({})", text::quantity(dense, "B"))],
    )
}

fn compression(run: &RunFiles) -> Option<(f64, f64)> {
    // Both numbers from one row: an interrupted run may have sent more than it evaluated.
    let row = run.rounds.last()?;
    // A client that takes part with a probability sends that share of the messages, on average.
    let participation = Settings::of(run)
        .float("algorithm", "participation")
        .filter(|p| *p > 0.0 && *p <= 1.0);
    let planned = row.round as f64 * number_at(run, "/clients")? * participation.unwrap_or(1.0);
    // A server has counted them.
    let taken: f64 = numbers_at(run, "/messages_taken").iter().sum();
    let messages = if taken > 0.0 { taken } else { planned };
    let dense = messages * number_at(run, "/dimension")? * 4.0;
    let ratio = dense / row.uplink_bytes as f64;
    (ratio.is_finite() && ratio > 0.0).then_some((dense, ratio))
}

fn time_card(run: &RunFiles) -> String {
    let training = number_at(run, "/seconds/training");
    let total = number_at(run, "/seconds/total");
    let evaluation = number_at(run, "/seconds/evaluation");
    let value = training.or(total).map_or(
        "<span class=\"none\">none</span>".to_owned(),
        text::duration,
    );
    let line = |time: Option<f64>, name: &str| {
        time.map_or(String::new(), |time| {
            format!("{} {name}", text::duration(time))
        })
    };
    let name = if training.is_some() {
        "Training time"
    } else {
        "Time"
    };
    card(
        "",
        name,
        &value,
        &[
            line(evaluation.filter(|time| *time > 0.0), "evaluation"),
            line(total.filter(|_| training.is_some()), "in all"),
        ],
    )
}

fn provenance(run: &RunFiles) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let wrote = text_at(run, "/version").map_or(String::new(), |by| {
        format!("The run was made by soteria {}. ", escape(by))
    });
    let (again, command) = repeated(run);
    format!(
        "<section id=\"provenance\">\n<h2>Provenance</h2>\n\
         <p>{wrote}This report was written by soteria {version} from <code>config.toml</code>, <code>rounds.csv</code> and \
         <code>summary.json</code> of the run's directory, and holds nothing else. {again}</p>\n\
         <pre><code>{command}</code></pre>\n\
         <p class=\"note\">Charts: uPlot 1.6.32, © 2022 Leon Sorokin, MIT licence (its text is in this file).</p>\n</section>\n"
    )
}

/// What repeating the run gives, and the command for it.
fn repeated(run: &RunFiles) -> (String, String) {
    let seed = run.summary.get("seed").filter(|seed| !seed.is_null());
    let seed = seed.map(|seed| escape(&seed.to_string()));
    let train = "soteria train --config config.toml --out repeated".to_owned();
    let serve = "soteria serve --config config.toml --tls keys --state new-state --out repeated";
    match (run.deployed(), seed) {
        (true, None) => (
            "Its secrets were drawn by each client's operating system and are used once. The same configuration starts \
             another run with the same terms, for which clients are asked anew:"
                .to_owned(),
            serve.to_owned(),
        ),
        (true, Some(seed)) => (
            format!(
                "All randomness came from the test seed {seed}: with clients that have the same records, this \
                 configuration gives the same bytes again."
            ),
            format!("{serve} --test-seed {seed}"),
        ),
        (false, None) => (
            "It has no fixed seed: repeated, it gives another run with the same terms.".to_owned(),
            train,
        ),
        (false, Some(seed)) => (
            format!(
                "With seed {seed} and this configuration the same version gives the same bytes:"
            ),
            train,
        ),
    }
}
