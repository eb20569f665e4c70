//! The page itself: head, headline numbers, sections, and everything it needs inside it.
//!
//! The page forbids itself the network (a content security policy of `default-src 'none'`), so even
//! a mistake in what follows could not load or send anything.

use serde_json::Value;

use super::claim::Claim;
use super::files::RunFiles;
use super::setup::{Settings, number_at, numbers_at, text_at, title};
use super::text::{self, append, escape, script_json};
use super::{charts, claim, quality, setup};

const STYLE: &str = include_str!("../../assets/report.css");
const SCRIPT: &str = include_str!("../../assets/report.js");
const AXES_SCRIPT: &str = include_str!("../../assets/axes.js");
const UPLOT_STYLE: &str = include_str!("../../../../third-party/uplot/uPlot.min.css");
const UPLOT_SCRIPT: &str = include_str!("../../../../third-party/uplot/uPlot.iife.min.js");
const UPLOT_LICENCE: &str = include_str!("../../../../third-party/uplot/LICENSE");

/// The note on the charts' authors that every page ends with.
pub(super) const CREDIT: &str = "<p class=\"note\">Charts: uPlot 1.6.32, © 2022 Leon Sorokin, \
MIT licence (its text is in this file).</p>\n";

pub(super) fn html(run: &RunFiles) -> String {
    let body = [
        header(run),
        warnings(run),
        cards(run),
        quality::section(run),
        charts::section(run),
        claim::section(run),
        choices(run),
        setup::section(run),
        provenance(run),
    ];
    Shell {
        title: &title(run),
        style: "",
        hidden: ".charts, .segmented, #curves > .note",
        data: ("run-data", &charts::data(run)),
        script: SCRIPT,
    }
    .around(&body.concat())
}

/// Everything of a page but its body.
pub(super) struct Shell<'a> {
    /// The title, unescaped.
    pub(super) title: &'a str,
    /// Styles besides those that all pages have.
    pub(super) style: &'a str,
    /// What is not shown to readers without scripts.
    pub(super) hidden: &'a str,
    /// What the script draws, and under which name it finds it.
    pub(super) data: (&'a str, &'a Value),
    /// The script.
    pub(super) script: &'a str,
}

impl Shell<'_> {
    /// The whole page.
    pub(super) fn around(&self, body: &str) -> String {
        let Self {
            style,
            hidden,
            script,
            ..
        } = self;
        let (name, data) = (self.data.0, script_json(self.data.1));
        format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; \
             style-src 'unsafe-inline'; script-src 'unsafe-inline'\">\n\
             <meta name=\"color-scheme\" content=\"light dark\">\n<title>{}</title>\n\
             <style>{UPLOT_STYLE}</style>\n<style>\n{STYLE}{style}</style>\n\
             <noscript><style>{hidden} {{ display: none; }}</style></noscript>\n\
             </head>\n<body>\n<main>\n{body}</main>\n\
             <script type=\"application/json\" id=\"{name}\">{data}</script>\n\
             <script>\n/* uPlot 1.6.32\n{UPLOT_LICENCE}\n*/\n{UPLOT_SCRIPT}</script>\n\
             <script>\n{AXES_SCRIPT}</script>\n<script>\n{script}</script>\n</body>\n</html>\n",
            escape(self.title)
        )
    }
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
        append!(
            &mut badges,
            " <span class=\"badge unproved\">interrupted, last seen {last}</span>"
        );
    }
    let kicker = if run.deployed() {
        "Report of a deployment, by its server"
    } else {
        "Training report"
    };
    format!(
        "<header>\n<p class=\"kicker\">{kicker}</p>\n<h1>{}</h1>\n\
         <p class=\"subtitle\">{}{badges}</p>\n</header>\n",
        escape(&title(run)),
        parts.join(" <span class=\"dot\">·</span> ")
    )
}

/// The sentences of a list in the summary, as items.
fn sentences(run: &RunFiles, list: &str) -> String {
    let sentences = run.summary.get(list).and_then(|list| list.as_array());
    sentences
        .into_iter()
        .flatten()
        .filter_map(|sentence| sentence.as_str())
        .map(|sentence| format!("<li>{}</li>\n", escape(&text::capitalised(sentence))))
        .collect()
}

/// What the system chose, and why; nothing where it chose nothing.
fn choices(run: &RunFiles) -> String {
    let items = sentences(run, "choices");
    if items.is_empty() {
        return String::new();
    }
    format!("<section>\n<h2>What was chosen, and why</h2>\n<ul>\n{items}</ul>\n</section>\n")
}

/// What a reader must know before the numbers; nothing where there is nothing.
fn warnings(run: &RunFiles) -> String {
    let items = sentences(run, "warnings");
    if items.is_empty() {
        return String::new();
    }
    format!(
        "<section class=\"warnings\" role=\"note\" aria-label=\"Warnings\">\n\
         <h2>Before you use this model</h2>\n<ul>\n{items}</ul>\n</section>\n"
    )
}

/// One number of the headline row, or that there is none; `lines` stand below it. All is escaped.
fn card(class: &str, name: &str, value: Option<String>, lines: &[Option<String>]) -> String {
    let value = value.unwrap_or_else(|| missing("none"));
    let lines: String = lines
        .iter()
        .flatten()
        .filter(|line| !line.is_empty())
        .map(|line| format!("<p>{line}</p>"))
        .collect();
    format!(
        "<div class=\"card {class}\"><h2>{name}</h2>\
         <div class=\"value\">{value}</div>{lines}</div>\n"
    )
}

/// Instead of a number.
fn missing(why: &str) -> String {
    format!("<span class=\"none\">{why}</span>")
}

/// What a curve began with.
fn at_start(value: Option<f64>, write: impl Fn(f64) -> String) -> Option<String> {
    value.map(|value| format!("{} at the start", write(value)))
}

fn four_digits(value: f64) -> String {
    text::number(value, 4)
}

fn finite(value: Option<f64>) -> Option<f64> {
    value.filter(|value| value.is_finite())
}

fn cards(run: &RunFiles) -> String {
    let learnt = if run.deployed() {
        tested_cards(run)
    } else {
        accuracy_card(run) + &loss_card(run)
    };
    let rest = [
        privacy_card(run),
        rounds_card(run),
        traffic_card(run),
        compression_card(run),
        time_card(run),
    ];
    format!(
        "<section class=\"cards\" aria-label=\"Headline numbers\">\n{learnt}{}</section>\n",
        rest.concat()
    )
}

fn accuracy_card(run: &RunFiles) -> String {
    if let Some(rmse) = number_at(run, "/final/rmse") {
        let by_mean = number_at(run, "/final/mean_rmse").map(four_digits);
        let lines = [
            Some(format!("RMSE {}", four_digits(rmse))),
            by_mean.map(|rmse| format!("{rmse} by the mean")),
        ];
        let r2 = number_at(run, "/final/r2").map(four_digits);
        return card("", "R² on test records", r2, &lines);
    }
    let last = run.rounds.last().and_then(|row| row.test_accuracy);
    let value = number_at(run, "/final/test_accuracy").or(last);
    let lines = match value {
        Some(_) => {
            let start = run.rounds.first().and_then(|row| row.test_accuracy);
            let majority = number_at(run, "/final/majority_accuracy");
            let majority =
                majority.map(|share| format!("{} by the most common class", text::percent(share)));
            [at_start(start, text::percent), majority]
        }
        None => [Some("not recorded".to_owned()), None],
    };
    card("", "Test accuracy", value.map(text::percent), &lines)
}

/// What a server has measured, or that it has nothing to measure on.
fn tested_cards(run: &RunFiles) -> String {
    let Some(records) = number_at(run, "/test/records") else {
        let lines = [Some("the server has no test set".to_owned())];
        return card("", "Accuracy", Some(missing("not measured")), &lines);
    };
    let on = format!("on {} test records", text::count(records as u64));
    let start = finite(run.rounds.first().and_then(|row| row.test_loss));
    let loss = number_at(run, "/final/test_loss").map(four_digits);
    // It was measured, and was none.
    let loss = loss.unwrap_or_else(|| missing("not a number"));
    let lines = [at_start(start, four_digits), Some(on)];
    accuracy_card(run) + &card("", "Test loss", Some(loss), &lines)
}

fn loss_card(run: &RunFiles) -> String {
    let (first, last) = (run.rounds.first(), run.rounds.last());
    let loss = number_at(run, "/final/loss").or(finite(last.map(|row| row.loss)));
    let start = at_start(finite(first.map(|row| row.loss)), four_digits);
    let gradient = number_at(run, "/final/grad_norm_sq");
    let gradient = gradient.or(finite(last.map(|row| row.grad_norm_sq)));
    let gradient = gradient.map(|value| format!("‖∇f‖² = {}", text::number(value, 3)));
    card("", "Loss", loss.map(four_digits), &[start, gradient])
}

fn privacy_card(run: &RunFiles) -> String {
    let claim = Claim::of(run);
    let value = match claim.epsilon {
        Some(epsilon) => format!("ε = {}", text::number_rounded_up(epsilon, 4)),
        None => missing("no ε"),
    };
    let accountant =
        text_at(run, "/privacy/accountant").map(|name| format!("{} accountant", escape(name)));
    let noise = text_at(run, "/privacy/noise").map(|name| format!("noise: {}", escape(name)));
    let method: Vec<String> = accountant.into_iter().chain(noise).collect();
    let last = run.rounds.last().filter(|_| run.interrupted());
    let spent = last.and_then(|row| {
        let epsilon = text::number_rounded_up(row.epsilon?, 4);
        Some(format!("{epsilon} spent up to round {}", row.round))
    });
    card(
        "wide",
        "Privacy",
        Some(format!("{value} {}", claim.badge())),
        &[Some(claim.terms()), Some(method.join(", ")), spent],
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
    let clients = number_at(run, "/clients").map(|clients| clients as u64);
    let clients =
        clients.map(|n| format!("{} client{}", text::count(n), if n == 1 { "" } else { "s" }));
    let records: f64 = numbers_at(run, "/samples_per_client").iter().sum();
    let whose = if run.deployed() { ", as they say" } else { "" };
    let records =
        (records > 0.0).then(|| format!("{} records{whose}", text::count(records as u64)));
    let planned = planned.filter(|planned| run.interrupted() && Some(*planned) > rounds);
    let planned = planned.map(|planned| format!("of {} planned", text::count(planned)));
    let value = rounds.map(text::count);
    card("", "Rounds", value, &[planned, clients, records])
}

fn traffic_card(run: &RunFiles) -> String {
    let row = run.rounds.last();
    let up = number_at(run, "/traffic/uplink_bytes").or(row.map(|row| row.uplink_bytes as f64));
    let down =
        number_at(run, "/traffic/downlink_bytes").or(row.map(|row| row.downlink_bytes as f64));
    let paper = number_at(run, "/traffic/paper_bits").or(row.map(|row| row.paper_bits));
    let paper = paper.map(|bits| format!("{} as the paper counts", text::quantity(bits, "bit")));
    let down = down.map(|bytes| format!("{} down", text::quantity(bytes, "B")));
    let value = up.map(|bytes| text::quantity(bytes, "B"));
    card("", "Sent by clients", value, &[paper, down])
}

/// How much less was sent than if every message held all coordinates as 32-bit floats.
fn compression_card(run: &RunFiles) -> String {
    let Some((dense, ratio)) = compression(run) else {
        let lines = [Some("nothing was sent".to_owned())];
        return card("", "Compression", None, &lines);
    };
    let (factor, than) = if ratio < 1.0 {
        (1.0 / ratio, "more than all coordinates as f32")
    } else {
        (ratio, "less than all coordinates as f32")
    };
    let value = format!("{}×", text::number(factor, 3));
    let dense = format!("({})", text::quantity(dense, "B"));
    let lines = [Some(than.to_owned()), Some(dense)];
    card("", "Compression", Some(value), &lines)
}

fn compression(run: &RunFiles) -> Option<(f64, f64)> {
    // Both numbers from one row: an interrupted run may have sent more than it evaluated.
    let row = run.rounds.last()?;
    // A client that takes part with a probability sends that share of the messages, on average.
    let participation = Settings::of(run)
        .float("algorithm", "participation")
        .filter(|p| *p > 0.0 && *p <= 1.0);
    // Without a server every message goes to each neighbour.
    let edges = number_at(run, "/gossip/edges");
    let receivers = match text_at(run, "/gossip/topology") {
        Some(topology) if topology != "star" => edges.map(|edges| 2.0 * edges),
        _ => number_at(run, "/clients"),
    };
    let planned = row.round as f64 * receivers? * participation.unwrap_or(1.0);
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
    let evaluation = number_at(run, "/seconds/evaluation").filter(|time| *time > 0.0);
    let evaluation = evaluation.map(|time| format!("{} evaluation", text::duration(time)));
    let in_all = total.filter(|_| training.is_some());
    let in_all = in_all.map(|time| format!("{} in all", text::duration(time)));
    let name = if training.is_some() {
        "Training time"
    } else {
        "Time"
    };
    let value = training.or(total).map(text::duration);
    card("", name, value, &[evaluation, in_all])
}

fn provenance(run: &RunFiles) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let wrote = text_at(run, "/version").map_or(String::new(), |by| {
        format!("The run was made by soteria {}. ", escape(by))
    });
    let (again, command) = repeated(run);
    format!(
        "<section id=\"provenance\">\n<h2>Provenance</h2>\n\
         <p>{wrote}This report was written by soteria {version} from <code>config.toml</code>, \
         <code>rounds.csv</code> and <code>summary.json</code> of the run's directory, and holds \
         nothing else. {again}</p>\n\
         <pre><code>{command}</code></pre>\n\
         {CREDIT}</section>\n"
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
            "Its secrets were drawn by each client's operating system and are used once. The same \
             configuration starts another run with the same terms, for which clients are asked \
             anew:"
                .to_owned(),
            serve.to_owned(),
        ),
        (true, Some(seed)) => (
            format!(
                "All randomness came from the test seed {seed}: with clients that have the same \
                 records, this configuration gives the same bytes again."
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
