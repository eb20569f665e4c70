//! Numbers for files and terminals: curves as CSV, everything else as JSON, and tables of text.

use serde_json::{Value, json};

use super::published::Setup;
use super::results::{Entry, Results, real_epsilons};
use super::settings::Mode;
use crate::experiment::{Curve, Guarantee, Measure, Statistic};
use crate::report::Table;

/// What the epsilons of proved runs are, and what they are not.
pub const EPSILON_MEANS: &str = "The ε of a proved run is the mechanism's, for a step size that is \
fixed beforehand. The step sizes of the paper's algorithms were tuned by its authors on these very \
records, and no accounting covers that: a9a and MNIST count as public here. The written settings of \
these runs say so (step_size_from_data), and repeating them with soteria train claims nothing.";

/// Every curve of a figure, a row for each evaluated round.
pub fn curves_csv(results: &Results, setup: &Setup) -> String {
    let mut out = format!("figure,problem,epsilon,mode,algorithm,{CURVE_COLUMNS}\n");
    for entry in results.of(setup.figure) {
        let name = entry
            .algorithm
            .map_or_else(|| "auto".to_string(), |algorithm| algorithm.preset());
        let (figure, problem, epsilon) = (setup.figure, setup.task.name(), setup.epsilon);
        let first = format!("{figure},{problem},{epsilon},{},{name}", entry.mode.slug());
        push_curve(&mut out, &first, &entry.curve);
    }
    out
}

/// The columns of a curve, after those that say which one it is.
pub const CURVE_COLUMNS: &str = "runs,round,paper_bits,uplink_bytes,\
utility_mean,utility_sd,loss_mean,loss_sd,accuracy_mean,accuracy_sd";

/// Appends a row for each evaluated round of a curve; `first` are the cells that say which it is.
pub fn push_curve(out: &mut String, first: &str, curve: &Curve) {
    for (at, point) in curve.points().iter().enumerate() {
        let (runs, round) = (curve.runs.len(), point.round);
        *out += &format!(
            "{first},{runs},{round},{},{}",
            point.paper_bits, point.uplink_bytes
        );
        for measure in [Measure::Utility, Measure::Loss, Measure::Accuracy] {
            let statistic = curve.at(at, measure);
            for value in [statistic.mean, statistic.deviation] {
                out.push(',');
                if value.is_finite() {
                    *out += &value.to_string();
                }
            }
        }
        out.push('\n');
    }
}

/// Mean and deviation for machines.
pub fn statistic_json(statistic: &Statistic) -> Value {
    let finite = |value: f64| value.is_finite().then_some(value);
    json!({
        "mean": finite(statistic.mean),
        "sd": finite(statistic.deviation),
        "runs": statistic.runs,
    })
}

/// The end of a curve for machines.
pub fn final_json(curve: &Curve) -> Value {
    json!({
        "utility": statistic_json(&curve.last(Measure::Utility)),
        "loss": statistic_json(&curve.last(Measure::Loss)),
        "test_accuracy": statistic_json(&curve.last(Measure::Accuracy)),
    })
}

/// Everything that is not a curve.
pub fn summary(results: &Results) -> Value {
    let runs: Vec<Value> = results.entries.iter().map(entry_json).collect();
    let noise: Vec<Value> = results
        .setups()
        .iter()
        .flat_map(|setup| {
            real_epsilons(setup).into_iter().map(|row| {
                json!({
                    "figure": setup.figure, "problem": setup.task.name(), "epsilon": setup.epsilon,
                    "algorithm": row.algorithm.preset(), "sigma": row.sigma,
                    "epsilon_zero_out": row.zero_out, "epsilon_replace_one": row.replace_one,
                })
            })
        })
        .collect();
    let bands: Vec<Value> = results
        .comparisons()
        .iter()
        .map(|(entry, comparison)| {
            json!({
                "figure": entry.setup.figure, "problem": entry.setup.task.name(),
                "epsilon": entry.setup.epsilon, "algorithm": entry.name(),
                "measure": comparison.measure.name(),
                "ours": statistic_json(&comparison.ours),
                "authors": statistic_json(&comparison.theirs),
                "standard_errors": comparison.distance, "within": comparison.within(),
            })
        })
        .collect();
    let goals: Vec<Value> = results
        .goals()
        .iter()
        .map(|goal| {
            json!({
                "figure": goal.setup.figure, "problem": goal.setup.task.name(),
                "epsilon": goal.setup.epsilon, "measure": goal.measure.name(),
                "published_unproved": goal.published, "goal": goal.goal,
                "reached": statistic_json(&goal.reached), "met": goal.met(),
            })
        })
        .collect();
    let orderings: Vec<Value> = results
        .orderings()
        .iter()
        .map(|ordering| {
            json!({
                "figure": ordering.setup.figure, "problem": ordering.setup.task.name(),
                "epsilon": ordering.setup.epsilon, "claim": ordering.claim,
                "better": ordering.better.name(), "worse": ordering.worse.name(),
                "measure": ordering.measure.name(),
                "first": statistic_json(&ordering.first),
                "second": statistic_json(&ordering.second),
                "verdict": ordering.verdict.name(),
            })
        })
        .collect();
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "epsilon_means": EPSILON_MEANS,
        "runs": runs,
        "published_noise": noise,
        "bands": bands,
        "goals": goals,
        "orderings": orderings,
    })
}

fn entry_json(entry: &Entry) -> Value {
    let resolved = &entry.setting.resolved;
    let guarantee = entry.curve.guarantee();
    let tuned = entry.mode.step_size_from_data();
    let mut value = json!({
        "figure": entry.setup.figure,
        "problem": entry.setup.task.name(),
        "epsilon": entry.setup.epsilon,
        "mode": entry.mode.name(),
        "algorithm": entry.name(),
        "configuration": entry.setting.name,
        "rounds": resolved.rounds,
        "batch": resolved.batch,
        "step_size": resolved.step_size,
        "sigma": guarantee.sigma,
        "claim": guarantee.claim,
        "epsilon_proved": guarantee.epsilon,
        "step_size_from_data": tuned,
        "paper_bits": entry.curve.bits(),
    });
    value["final"] = final_json(&entry.curve);
    value
}

/// `0.1527 ± 0.0021`, or without a spread where there is none.
pub fn plus_minus(statistic: &Statistic) -> String {
    if !statistic.mean.is_finite() {
        return "–".to_string();
    }
    let small = statistic.mean.abs() < 0.01 && statistic.mean != 0.0;
    let write = |value: f64| {
        if small {
            format!("{value:.2e}")
        } else {
            format!("{value:.4}")
        }
    };
    if statistic.deviation.is_finite() {
        format!("{} ± {}", write(statistic.mean), write(statistic.deviation))
    } else {
        write(statistic.mean)
    }
}

/// The epsilon that is proved for a curve's runs, as a good mark, or what stands there instead.
pub fn proved_epsilon(guarantee: &Guarantee, none: impl FnOnce() -> String) -> String {
    match guarantee.epsilon {
        Some(epsilon) => format!("+ {}", soteriafl_accountant::round_up(epsilon, 4)),
        None => format!("- {}", none()),
    }
}

/// The end of every curve of a figure.
pub fn figure_table(results: &Results, setup: &Setup) -> Table {
    let mut rows = Vec::new();
    for entry in results.of(setup.figure) {
        let guarantee = entry.curve.guarantee();
        rows.push(vec![
            entry.name(),
            entry.mode.name().to_string(),
            proved_epsilon(&guarantee, || "none".to_string()),
            format!("{:.3e}", soteriafl_accountant::round_up(guarantee.sigma, 4)),
            entry.setting.resolved.rounds.to_string(),
            quantity(entry.curve.bits()),
            plus_minus(&entry.curve.last(Measure::Utility)),
            plus_minus(&entry.curve.last(Measure::Loss)),
            plus_minus(&entry.curve.last(Measure::Accuracy)),
        ]);
    }
    Table::new(
        "algorithm|run|ε of the mechanism|noise σ|rounds|bits|utility|training loss|test accuracy",
        rows,
    )
}

/// Published runs beside the authors' values.
pub fn band_table(results: &Results) -> Table {
    let rows = results
        .comparisons()
        .into_iter()
        .map(|(entry, comparison)| {
            vec![
                entry.setup.task.title().to_string(),
                entry.setup.epsilon.to_string(),
                entry.name(),
                comparison.measure.name().to_string(),
                plus_minus(&comparison.theirs),
                plus_minus(&comparison.ours),
                comparison
                    .distance
                    .map_or_else(String::new, |distance| format!("{distance:+.1}")),
                match comparison.within() {
                    Some(true) => "+ within",
                    Some(false) => "- outside",
                    None => "one seed: not decided",
                }
                .to_string(),
            ]
        });
    Table::new(
        "problem|ε|algorithm|measure|authors|here|standard errors|band",
        rows,
    )
}

/// What the published noise really gives.
pub fn noise_table(setups: &[Setup]) -> Table {
    let epsilon = |value: Option<f64>| {
        value.map_or_else(
            || "–".to_string(),
            |value| soteriafl_accountant::round_up(value, 3).to_string(),
        )
    };
    let rows = setups.iter().flat_map(|setup| {
        real_epsilons(setup).into_iter().map(move |row| {
            vec![
                setup.task.title().to_string(),
                setup.epsilon.to_string(),
                setup.rounds.to_string(),
                row.algorithm.name().to_string(),
                setup.step_size(row.algorithm).to_string(),
                setup.batch(row.algorithm).to_string(),
                // Whoever copies it must not get less noise.
                format!("{:.6}", (row.sigma * 1e6).ceil() / 1e6),
                epsilon(row.zero_out),
                epsilon(row.replace_one),
            ]
        })
    });
    Table::new(
        "problem|ε as named|rounds|algorithm|step size|batch|σ used|ε it gives, zero-out|ε it \
         gives, replace-one",
        rows,
    )
}

/// Goals against what was reached.
pub fn goal_table(results: &Results) -> Table {
    let rows = results.goals().into_iter().map(|goal| {
        let bound = if goal.measure.more_is_better() {
            "≥"
        } else {
            "≤"
        };
        let best = results.find(goal.setup.figure, Mode::Best, None);
        vec![
            goal.setup.task.title().to_string(),
            goal.setup.epsilon.to_string(),
            goal.measure.name().to_string(),
            goal.published.to_string(),
            format!("{bound} {}", goal.goal),
            plus_minus(&goal.reached),
            best.map_or_else(String::new, |entry| entry.curve.runs.len().to_string()),
            if goal.met() {
                "+ reached"
            } else {
                "- not reached"
            }
            .to_string(),
        ]
    });
    Table::new(
        "problem|ε|measure|published, unproved|goal|best proved|seeds|",
        rows,
    )
}

/// What the paper says about its algorithms.
pub fn ordering_table(results: &Results) -> Table {
    let rows = results.orderings().into_iter().map(|ordering| {
        let verdict = ordering.verdict;
        let sign = match verdict {
            super::Verdict::Holds => "+ ",
            super::Verdict::Reversed => "- ",
            super::Verdict::Open => "",
        };
        vec![
            ordering.setup.task.title().to_string(),
            ordering.setup.epsilon.to_string(),
            ordering.claim.to_string(),
            format!("{} < {}", ordering.worse.name(), ordering.better.name()),
            ordering.measure.name().to_string(),
            plus_minus(&ordering.second),
            plus_minus(&ordering.first),
            format!("{sign}{}", verdict.name()),
        ]
    });
    Table::new(
        "problem|ε|the paper says|pair|measure|the one|the better|here",
        rows,
    )
}

/// A number of bits for people.
pub fn quantity(bits: u64) -> String {
    let bits = bits as f64;
    let (unit, name) = [(1e9, "G"), (1e6, "M"), (1e3, "k")]
        .into_iter()
        .find(|(unit, _)| bits >= *unit)
        .unwrap_or((1.0, ""));
    let value = bits / unit;
    let decimals = [(100.0, 1), (10.0, 2)]
        .into_iter()
        .find(|(least, _)| value >= *least)
        .map_or(3, |(_, decimals)| decimals);
    let digits = format!("{value:.decimals$}");
    let digits = digits.trim_end_matches('0').trim_end_matches('.');
    format!("{digits} {name}bit")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_have_four_digits() {
        let written = [0, 100, 96_000, 1_984_000, 244_224_000, 2_544_000_000].map(quantity);
        assert_eq!(
            written,
            [
                "0 bit",
                "100 bit",
                "96 kbit",
                "1.984 Mbit",
                "244.2 Mbit",
                "2.544 Gbit"
            ]
        );
    }

    #[test]
    fn spreads_are_written_where_there_are_some() {
        let statistic = |mean, deviation| Statistic {
            mean,
            deviation,
            runs: 3,
        };
        assert_eq!(plus_minus(&statistic(0.15273, 0.00214)), "0.1527 ± 0.0021");
        assert_eq!(plus_minus(&statistic(0.15273, f64::NAN)), "0.1527");
        assert_eq!(
            plus_minus(&statistic(0.001234, 0.0001)),
            "1.23e-3 ± 1.00e-4"
        );
        assert_eq!(plus_minus(&statistic(f64::NAN, 0.1)), "–");
    }
}
