//! Whether a useful model can be expected, and what would buy a better one.
//!
//! The algorithm that won on synthetic records ([`trial`](super::trial)) runs once more on records
//! of the same shape: without noise, with more epsilon, with more records and with more clients,
//! each with the noise that this problem needs. What an answer is worth is the share that it has of
//! what can be won:
//!
//! ```text
//!     share = (accuracy - most common class) / (accuracy without noise - most common class)
//! ```
//!
//! where the run without noise goes as far as a generous target would let it.
//!
//! Beside it stands the ratio of signal to noise, which no record decides: the clip's length over
//! the noise's in the mean of all messages of a run,
//!
//! ```text
//!     sqrt(T) G / (sigma sqrt(k / n)),       k of d values travel in each of T rounds
//! ```
//!
//! Synthetic records stand for none of the user's: real ones may be easier or harder, and the table
//! shows mostly how answers move. Costs some five trials of one algorithm.

use soteriafl_core::compress::Compressor;
use soteriafl_core::simulate::Metrics;

use super::trial::{Form, SEEDS, Trial, end_of, preset_settings, records_each, some, synthetic};
use super::{Inquiry, Known};
use crate::config::NoiseTarget;
use crate::config::resolve::Resolved;
use crate::experiment::Statistic;
use crate::report::{Figure, Panel, Series};
use crate::words::readable;

/// Shares from which a model is called good, and useful.
const GOOD: f64 = 0.8;
const USEFUL: f64 = 0.5;

/// How many times the target is taken for one that noise does not limit.
const GENEROUS: f64 = 30.0;

/// By how much records, clients and epsilon are multiplied.
const CHANGES: [(&str, [usize; 3]); 4] = [
    ("twice the epsilon", [1, 1, 2]),
    ("four times the epsilon", [1, 1, 4]),
    ("four times the records", [4, 1, 1]),
    ("four times the clients", [1, 4, 1]),
];

/// What can be expected.
pub struct Outlook {
    /// The problem as it was asked first, then what was changed.
    pub rows: Vec<Expectation>,
    /// Share of the most common class.
    pub majority: f64,
    /// Accuracy of the same run without noise.
    pub without_noise: f64,
}

/// One problem and what a run of it reaches.
pub struct Expectation {
    /// What was changed.
    pub what: String,
    /// Clients.
    pub clients: usize,
    /// Records of a client.
    pub records: usize,
    /// The target.
    pub epsilon: f64,
    /// The noise of a run.
    pub sigma: f64,
    /// Length of the clip over that of the noise, in the mean of all messages.
    pub signal_to_noise: f64,
    /// Test accuracy.
    pub accuracy: Statistic,
}

impl Outlook {
    /// Runs the algorithm called `name`, which did best in `trial`, on changed problems.
    ///
    /// # Errors
    /// In words, why nothing can be said.
    pub fn of(inquiry: &Inquiry, form: Form, trial: &Trial, name: &str) -> Result<Outlook, String> {
        let (clients, records) = (
            inquiry.numbers.clients as usize,
            inquiry.numbers.records as usize,
        );
        let (first, short) = run_once(inquiry, form, name, clients, records, 1e-9)?;
        // Rules take a longer way where there is less noise: without any, the way of a generous
        // target.
        let generous = changed(
            inquiry,
            clients,
            records,
            GENEROUS * inquiry.numbers.epsilon,
        )
        .and_then(|generous| run_once(&generous, form, name, clients, records, 1e-9));
        let without_noise = match generous {
            Ok((_, long)) if long.mean > short.mean => long,
            _ => short,
        };
        let best = trial.tried.first().ok_or("nothing was tried")?;
        let asked = Expectation {
            what: "as asked".to_string(),
            clients,
            records,
            epsilon: inquiry.numbers.epsilon,
            sigma: best.sigma,
            signal_to_noise: signal_to_noise(&first, best.sigma, inquiry, clients),
            accuracy: best.accuracy,
        };
        let mut rows = vec![asked];
        for (what, [more_records, more_clients, more_epsilon]) in CHANGES {
            let (clients, records) = (clients * more_clients, records * more_records);
            let epsilon = inquiry.numbers.epsilon * more_epsilon as f64;
            let changed = changed(inquiry, clients, records, epsilon)?;
            // What is too large to be tried is left out.
            let Ok((run, accuracy)) = run_once(&changed, form, name, clients, records, 1.0) else {
                continue;
            };
            let sigma = sigma_of(&changed, &run)?;
            rows.push(Expectation {
                what: what.to_string(),
                clients,
                records,
                epsilon,
                sigma,
                signal_to_noise: signal_to_noise(&run, sigma, &changed, clients),
                accuracy,
            });
        }
        Ok(Outlook {
            rows,
            majority: trial.baseline.mean,
            without_noise: without_noise.mean,
        })
    }

    /// The share of what can be won, between 0 and 1; 0 where nothing can.
    pub fn share(&self, row: &Expectation) -> f64 {
        let whole = self.without_noise - self.majority;
        let share = (row.accuracy.mean - self.majority) / whole;
        if whole > 0.0 {
            share.clamp(0.0, 1.0)
        } else {
            0.0
        }
    }

    /// What a share means, in one word.
    pub fn word(share: f64) -> &'static str {
        match share {
            share if share >= GOOD => "good",
            share if share >= USEFUL => "useful",
            share if share > 0.1 => "weak",
            _ => "none",
        }
    }

    /// Whether a useful model can be expected, and what would help most, in two sentences.
    pub fn sentence(&self) -> String {
        let asked = &self.rows[0];
        let share = self.share(asked);
        let verdict = match Self::word(share) {
            "good" => "A good model can be expected",
            "useful" => "A useful model can be expected",
            "weak" => "A weak model can be expected",
            _ => "No useful model can be expected",
        };
        let mut said = format!(
            "{verdict}: on synthetic records, test accuracy {:.3} at epsilon {}, where the most common class has \
             {:.3} and the same run without noise {:.3}.",
            asked.accuracy.mean,
            readable(asked.epsilon),
            self.majority,
            self.without_noise,
        );
        let changed = self.rows[1..].iter();
        let best = changed.max_by(|a, b| a.accuracy.mean.total_cmp(&b.accuracy.mean));
        if let Some(best) = best.filter(|best| best.accuracy.mean > asked.accuracy.mean + 0.01) {
            said += &format!(
                " Most would be bought by {}: {:.3}.",
                best.what, best.accuracy.mean
            );
        } else {
            said += " More of anything would buy little.";
        }
        said
    }

    /// Accuracy against signal to noise, for each kind of change.
    pub fn figure(&self) -> Figure {
        let asked = &self.rows[0];
        let point = |row: &Expectation| (row.signal_to_noise, row.accuracy.mean);
        let curve = |label: &str, word: &str| {
            let changed = self.rows[1..].iter().filter(|row| row.what.ends_with(word));
            let points = [asked].into_iter().chain(changed).map(point).collect();
            Series::new(label, points)
        };
        let ends = self.rows.iter().map(|row| row.signal_to_noise);
        let (low, high) = ends.fold((f64::MAX, 0.0f64), |(low, high), x| {
            (low.min(x), high.max(x))
        });
        let level = |label: &str, y: f64| Series {
            dashed: true,
            ..Series::new(label, vec![(low, y), (high, y)])
        };
        Figure {
            title: "What more epsilon, records or clients would buy".to_string(),
            panels: vec![Panel {
                x_label: "signal to noise".to_string(),
                y_label: "test accuracy on synthetic records".to_string(),
                log_x: true,
                series: vec![
                    curve("epsilon", "epsilon"),
                    curve("records", "records"),
                    curve("clients", "clients"),
                    level("most common class", self.majority),
                    level("without noise", self.without_noise),
                ],
                ..Panel::default()
            }],
        }
    }
}

/// The same question about another problem.
fn changed(
    inquiry: &Inquiry,
    clients: usize,
    records: usize,
    epsilon: f64,
) -> Result<Inquiry, String> {
    let mut shape = inquiry.shape.clone();
    let times = records / (inquiry.numbers.records as usize).max(1);
    let more = clients / (inquiry.numbers.clients as usize).max(1);
    shape.records.iter_mut().for_each(|count| *count *= times);
    // What a rule chooses follows from how many clients there are.
    shape.records = shape.records.repeat(more.max(1));
    let known = Known {
        clients: clients as f64,
        smoothness: inquiry.numbers.smoothness,
        smoothness_from_data: inquiry.step_size_from_data,
        omega: None,
    };
    let set = vec![format!("privacy.epsilon={epsilon}")];
    Inquiry::new(inquiry.document.clone(), set, shape, &known).map_err(|error| error.to_string())
}

/// The run called `name` and its accuracy, its noise multiplied by `noise`.
fn run_once(
    inquiry: &Inquiry,
    form: Form,
    name: &str,
    clients: usize,
    records: usize,
    noise: f64,
) -> Result<(Resolved, Statistic), String> {
    let set = match name {
        "as configured" => Vec::new(),
        preset => preset_settings(&inquiry.document, preset),
    };
    let run = inquiry.run(&set).map_err(|error| error.to_string())?;
    let sigma = sigma_of(inquiry, &run)?;
    let candidate = [(name.to_string(), run.clone(), sigma)];
    let each = records_each(inquiry, &candidate, clients, records)?;
    let mut ends: Vec<Metrics> = Vec::new();
    for seed in 0..SEEDS {
        let problem = synthetic(inquiry, form, clients, each, seed)?;
        let seeded = Resolved {
            seed,
            noise: crate::config::NoiseName::Float,
            ..run.clone()
        };
        ends.push(end_of(&seeded, &problem, noise * sigma)?);
    }
    let accuracy = ends.iter().map(|end| end.test_accuracy.unwrap_or(0.0));
    Ok((run, Statistic::of(accuracy)))
}

/// The noise of a run.
fn sigma_of(inquiry: &Inquiry, run: &Resolved) -> Result<f64, String> {
    debug_assert!(matches!(run.noise_target, NoiseTarget::Epsilon(_)));
    let level = inquiry.level(run).map_err(|error| error.to_string())?;
    let level = level.ok_or_else(|| format!("no noise makes {} private", some(1, "run")))?;
    Ok(level.sigma)
}

/// Length of the clip over that of the noise, in the mean of all messages of a run.
fn signal_to_noise(run: &Resolved, sigma: f64, inquiry: &Inquiry, clients: usize) -> f64 {
    let dimension = inquiry.shape.dimension;
    let travel = Compressor::new(run.compressor, dimension, run.participation)
        .map_or(dimension, |compressor| compressor.values());
    let noise = sigma * (travel as f64 / clients as f64).sqrt();
    f64::from(run.rounds).sqrt() * run.clip / noise
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(what: &str, accuracy: f64, signal_to_noise: f64) -> Expectation {
        Expectation {
            what: what.to_string(),
            clients: 10,
            records: 100,
            epsilon: 1.0,
            sigma: 0.1,
            signal_to_noise,
            accuracy: Statistic::of([accuracy].into_iter()),
        }
    }

    #[test]
    fn a_share_is_measured_between_the_most_common_class_and_no_noise() {
        let outlook = Outlook {
            rows: vec![
                row("as asked", 0.6, 1.0),
                row("twice the epsilon", 0.8, 2.0),
                row("four times the records", 0.95, 4.0),
            ],
            majority: 0.5,
            without_noise: 0.9,
        };
        let shares: Vec<f64> = outlook.rows.iter().map(|row| outlook.share(row)).collect();
        assert!((shares[0] - 0.25).abs() < 1e-12 && (shares[1] - 0.75).abs() < 1e-12);
        assert_eq!(shares[2], 1.0, "no more than all");
        let words: Vec<_> = shares.into_iter().map(Outlook::word).collect();
        assert_eq!(words, ["weak", "useful", "good"]);
        let said = outlook.sentence();
        assert!(said.starts_with("A weak model") && said.contains("four times the records: 0.950"));
        let panel = &outlook.figure().panels[0];
        assert_eq!(panel.series[0].points, [(1.0, 0.6), (2.0, 0.8)]);
        assert_eq!(panel.series[1].points, [(1.0, 0.6), (4.0, 0.95)]);
        assert_eq!(panel.series[3].points, [(1.0, 0.5), (4.0, 0.5)]);
    }

    #[test]
    fn nothing_can_be_won_where_noise_is_not_what_hurts() {
        let outlook = Outlook {
            rows: vec![row("as asked", 0.5, 1.0)],
            majority: 0.5,
            without_noise: 0.5,
        };
        assert_eq!(outlook.share(&outlook.rows[0]), 0.0);
        let said = outlook.sentence();
        assert!(
            said.starts_with("No useful model") && said.contains("buy little"),
            "{said}"
        );
    }
}
