//! The reference values of `vectors/accounting.csv`, and the costs of `vectors/costs.csv` as they
//! were before.

use soteriafl_accountant::{
    Adjacency, ClipScope, Estimator, EstimatorKind, Mechanism, Method, Question, ShiftMixture,
};
use std::collections::HashMap;

struct Row(HashMap<String, String>);

impl Row {
    fn number(&self, column: &str) -> Option<f64> {
        self.0.get(column).and_then(|text| text.parse().ok())
    }

    fn list(&self, column: &str) -> Vec<f64> {
        self.0[column]
            .split(';')
            .map(|text| text.parse().unwrap())
            .collect()
    }

    fn adjacency(&self) -> Adjacency {
        match self.0["adjacency"].as_str() {
            "add_remove" => Adjacency::ZeroOut,
            "replace_one" => Adjacency::ReplaceOne,
            other => other.parse().unwrap(),
        }
    }

    fn question(&self) -> Question {
        let rate = self.number("q").unwrap();
        let (shifts, probabilities) = if self.0["mechanism"] == "mixture_gaussian" {
            // Written with twelve digits: the last one is put right first.
            let mut probabilities = self.list("probs");
            let sum: f64 = probabilities.iter().sum();
            probabilities.iter_mut().for_each(|value| *value /= sum);
            (self.list("sensitivities"), probabilities)
        } else {
            (
                vec![0.0, self.list("sensitivities")[0]],
                vec![1.0 - rate, rate],
            )
        };
        let mixture = ShiftMixture::new(&shifts, &probabilities).unwrap();
        let (rounds, delta) = (self.number("steps").unwrap(), self.number("delta").unwrap());
        Question::new(mixture, rounds as u64, delta, self.adjacency())
    }
}

fn rows(file: &str) -> Vec<Row> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../vectors/");
    let text = std::fs::read_to_string(format!("{folder}{file}")).unwrap();
    let mut lines = text.lines().filter(|line| !line.starts_with('#'));
    let header: Vec<&str> = lines.next().unwrap().split(',').collect();
    lines
        .map(|line| {
            let cells = line.split(',').map(str::to_owned);
            Row(header
                .iter()
                .map(|name| (*name).to_owned())
                .zip(cells)
                .collect())
        })
        .collect()
}

#[test]
fn epsilon_lies_between_the_converged_centre_and_the_reference_bound() {
    let rows = rows("accounting.csv");
    assert_eq!(rows.len(), 28);
    for row in &rows {
        let id = &row.0["id"];
        let cost = row.question().cost(row.number("sigma").unwrap());
        let found = cost.unwrap().epsilon;
        let centre = row.number("eps_ref_richardson").unwrap();
        let upper = row.number("eps_ref_upper").unwrap();
        let bound = row
            .number("eps_dpacct_h1e4")
            .map_or(upper, |other| upper.max(other));
        assert!(
            found >= centre * (1.0 - 1e-4),
            "{id}: {found} below {centre}"
        );
        assert!(found <= bound * (1.0 + 1e-4), "{id}: {found} above {bound}");
        if let Some(exact) = row.number("eps_exact_analytic") {
            assert!(
                (found - exact).abs() <= 1e-6 * exact,
                "{id}: {found} {exact}"
            );
        }
    }
}

/// Every number of `vectors/costs.csv` again. Other processors and libraries round differently, so
/// digits beyond the ninth may differ there; with `SAME_BITS` set none may.
#[test]
fn costs_are_what_they_were() {
    let tolerance = match std::env::var_os("SAME_BITS") {
        Some(_) => 0.0,
        None => 1e-9,
    };
    let rows = rows("costs.csv");
    assert_eq!(rows.len(), 88);
    for row in &rows {
        let kind: EstimatorKind = row.0["estimator"].parse().unwrap();
        let method: Method = row.0["method"].parse().unwrap();
        let scope: ClipScope = row.0["clip_scope"].parse().unwrap();
        let mechanism = Mechanism {
            estimator: Estimator::new(kind, row.number("difference_clip")),
            records: 1000,
            batch: 20.0,
            clip: 1.0,
            clip_scope: scope,
            rand_k: row.number("rand_k"),
        };
        let rounds = row.number("rounds").unwrap() as u64;
        let question = mechanism.question(rounds, 1e-5, row.adjacency()).unwrap();
        let question = question.by(method);
        let sigma = row.number("sigma").unwrap();
        let cost = question.cost(sigma).unwrap();
        let calibrated = question.calibrate(row.number("target").unwrap()).unwrap();
        let odometer = question.odometer(sigma, 12).unwrap();
        let mut found = vec![
            ("epsilon", cost.epsilon),
            ("epsilon_unamplified", cost.epsilon_unamplified),
            ("spent_half_way", odometer.after(rounds / 2)),
            ("calibrated_sigma", calibrated.sigma),
            ("calibrated_epsilon", calibrated.epsilon),
        ];
        if method == Method::Pld {
            found.push(("delta_at_one", question.delta_at(1.0, sigma).unwrap().delta));
        }
        for (name, value) in found {
            let expected = row.number(name).unwrap();
            let close = (value - expected).abs() <= tolerance * expected;
            assert!(close, "{name} is {value:e}: {:?}", row.0);
        }
    }
}
