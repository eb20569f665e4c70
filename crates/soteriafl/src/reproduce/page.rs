//! The report: the three runs of every figure, told so that a colleague understands them.

use super::figures::everything;
use super::published::{Setup, Task};
use super::results::{Results, real_epsilons};
use super::settings::Mode;
use super::tables;
use crate::report::{Part, StudyPage};
use crate::words::counted;

/// The page.
pub fn page(results: &Results) -> StudyPage {
    let setups = results.setups();
    let mut parts = Vec::new();
    introduction(&mut parts);
    noise(&mut parts, &setups);
    bands(&mut parts, results);
    goals(&mut parts, results);
    for setup in &setups {
        figure(&mut parts, results, setup);
    }
    orderings(&mut parts, results);
    provenance(&mut parts, results);
    StudyPage {
        kicker: "Reproduction report".to_string(),
        title: "SoteriaFL: the paper's figures, and what a proof allows".to_string(),
        subtitle: subtitle(results, &setups),
        cards: cards(results, &setups),
        parts,
    }
}

fn subtitle(results: &Results, setups: &[Setup]) -> String {
    let mut names = Vec::new();
    for task in [Task::A9a, Task::Mnist] {
        let epsilons: Vec<String> = setups
            .iter()
            .filter(|setup| setup.task == task)
            .map(|setup| setup.epsilon.to_string())
            .collect();
        let runs = results
            .entries
            .iter()
            .find(|entry| entry.setup.task == task)
            .map_or(0, |entry| entry.curve.runs.len());
        if !epsilons.is_empty() {
            let seeds = if runs == 1 { "seed" } else { "seeds" };
            names.push(format!(
                "{} at ε = {} ({runs} {seeds})",
                task.title(),
                epsilons.join(", ")
            ));
        }
    }
    format!("{}; δ = 0.001, ten clients", names.join("; "))
}

fn cards(results: &Results, setups: &[Setup]) -> Vec<(String, String, String)> {
    let mut cards = Vec::new();
    let comparisons = results.comparisons();
    let decided: Vec<bool> = comparisons.iter().filter_map(|(_, c)| c.within()).collect();
    if !decided.is_empty() {
        let within = decided.iter().filter(|&&within| within).count();
        cards.push((
            "Published values met".to_string(),
            format!("{within} of {}", decided.len()),
            "within three standard errors of the authors' algorithms".to_string(),
        ));
    }
    let spread = |task: Task| {
        let setup = setups.iter().find(|s| s.task == task && s.epsilon == 1.0)?;
        let values: Vec<f64> = real_epsilons(setup)
            .iter()
            .filter_map(|r| r.zero_out)
            .collect();
        let (low, high) = (
            values.iter().copied().reduce(f64::min)?,
            values.iter().copied().reduce(f64::max)?,
        );
        let round = |value| soteriafl_accountant::round_up(value, 2);
        Some((
            format!("“ε = 1” on {}", task.title()),
            format!("{} to {}", round(low), round(high)),
            "what its noise gives if records were clipped".to_string(),
        ))
    };
    cards.extend([Task::A9a, Task::Mnist].into_iter().filter_map(spread));
    if let Some(goal) = results
        .goals()
        .into_iter()
        .find(|goal| goal.setup.epsilon == 1.0)
    {
        cards.push((
            format!("Best proved on {}, ε = 1", goal.setup.task.title()),
            format!("{:.4}", goal.reached.mean),
            format!(
                "{}; published without proof: {}",
                goal.measure.name(),
                goal.published
            ),
        ));
    }
    cards
}

fn introduction(parts: &mut Vec<Part>) {
    parts.push(Part::heading("Three runs of every figure"));
    parts.push(Part::text(
        "As published: the authors' experiments. Each client clips its whole gradient estimate to \
         G, draws its batch with replacement, clips and noises the regularizer's gradient along \
         with the rest, and takes its noise from the paper's formula. One record can move such an \
         estimate by up to 2G, whatever the batch, so no ε follows from it: these runs claim \
         nothing.",
    ));
    parts.push(Part::text(
        "Proved: the same algorithms with the same batches, step sizes and rounds, but every \
         record's gradient is clipped to G, batches are Poisson, and the noise is the smallest \
         for which an exact accountant proves (ε, δ) for the replacement of any one record. Step \
         sizes are still those that were tuned for the published noise.",
    ));
    parts.push(Part::text(tables::EPSILON_MEANS));
    parts.push(Part::text(
        "Best proved: what the program chooses by itself for the same ε and δ (preset = \
         \"auto\"), with the same proof, within the number of bits that the published compressed \
         runs send.",
    ));
    parts.push(Part::note(
        "Utility is the mean of the squared norm of the true gradient over all rounds so far; \
         rounds that were not evaluated count as if it changed by the same factor from round to \
         round between those that were. Bits: 64 for each value sent by any client. Bands are one \
         standard deviation over seeds. Loss, accuracy and gradient norms are computed from raw \
         data: a simulation's privilege, outside every claim. Where the best proved run writes \
         records in a basis (MNIST), its utility is measured in that basis and does not compare \
         with that of the others.",
    ));
}

fn noise(parts: &mut Vec<Part>, setups: &[Setup]) {
    parts.push(Part::heading("What the published noise really gives"));
    parts.push(Part::text(
        "The last two columns are exact, for a mechanism that the published runs do not have: if \
         each record were clipped to G and batches were Poisson, without amplification by \
         random-k, SVRG with differences of up to 2G. The formula is neither safe (a9a, small \
         batches with little noise) nor tight (MNIST at small ε).",
    ));
    parts.push(Part::Table(tables::noise_table(setups)));
}

fn bands(parts: &mut Vec<Part>, results: &Results) {
    let table = tables::band_table(results);
    if table.rows.is_empty() {
        return;
    }
    parts.push(Part::heading("Published against reproduced"));
    parts.push(Part::text(
        "The authors' algorithms were measured with ten seeds on a9a and three on MNIST. \
         Distances are in standard errors of the difference of the two means; within three counts \
         as reproduced. One seed has no spread and decides nothing. On a9a every run predicts the \
         larger class for everybody (test accuracy 0.7638), so only utility and loss are \
         compared.",
    ));
    parts.push(Part::Table(table));
}

fn goals(parts: &mut Vec<Part>, results: &Results) {
    let table = tables::goal_table(results);
    if table.rows.is_empty() {
        return;
    }
    parts.push(Part::heading("How far a proof goes"));
    parts.push(Part::text(
        "Best proved runs against the goals that were set for them and against the published \
         SoteriaFL-SGD, which has no proof. The noiseless optimum of the a9a objective is a \
         training loss of 0.5713.",
    ));
    parts.push(Part::Table(table));
}

fn figure(parts: &mut Vec<Part>, results: &Results, setup: &Setup) {
    parts.push(Part::heading(format!(
        "Figure {}: {} at ε = {}",
        setup.figure,
        setup.task.title(),
        setup.epsilon
    )));
    let shown = [Mode::Published.name(), Mode::Best.name()];
    parts.push(Part::figure(everything(results, setup), &shown));
    parts.push(Part::note(
        "Hover for values, click a name or a group to show or hide it, drag to zoom, double-click \
         to zoom out. Proved runs of the published algorithms are dashed.",
    ));
    parts.push(Part::Table(tables::figure_table(results, setup)));
}

fn orderings(parts: &mut Vec<Part>, results: &Results) {
    let table = tables::ordering_table(results);
    if table.rows.is_empty() {
        return;
    }
    parts.push(Part::heading("What the paper says about its algorithms"));
    parts.push(Part::text(
        "Checked on the runs as published, at the bits of the compressed run. A statement holds, \
         or does not, where the means are more than three standard errors apart; with one seed \
         nothing is decided.",
    ));
    parts.push(Part::Table(table));
}

fn provenance(parts: &mut Vec<Part>, results: &Results) {
    parts.push(Part::heading("Provenance"));
    parts.push(Part::text(format!(
        "Written by soteria {} from {}. The configuration of each stands in settings/, every \
         curve in curves/, every number of this page in summary.json. The same version gives the \
         same bytes on any number of threads; each run can be repeated with",
        env!("CARGO_PKG_VERSION"),
        counted(results.entries.len(), "setting")
    )));
    parts.push(Part::Code(
        "soteria train --config settings/NAME.toml --seed N".to_string(),
    ));
}
