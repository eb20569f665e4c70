//! The reference values of `vectors/accounting.csv`.

use soteria_accountant::event::{Adjacency, Event, Release, ShiftMixture};
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
            other => panic!("adjacency {other}"),
        }
    }

    fn event(&self) -> Event {
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
        let mixture = ShiftMixture::new(shifts, probabilities).unwrap();
        Release::new(mixture, self.number("sigma").unwrap())
            .unwrap()
            .times(self.number("steps").unwrap() as u64)
    }
}

fn rows() -> Vec<Row> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../vectors/accounting.csv");
    let text = std::fs::read_to_string(path).unwrap();
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
    let rows = rows();
    assert_eq!(rows.len(), 28);
    for row in &rows {
        let id = &row.0["id"];
        let delta = row.number("delta").unwrap();
        let found = soteria_accountant::epsilon(&[row.event()], delta, row.adjacency()).unwrap();
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
