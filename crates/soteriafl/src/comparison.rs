//! Algorithms side by side on one problem: who is ahead, against rounds and against bits.
//!
//! Every algorithm has one curve per seed. *Against rounds* compares them after as many rounds as
//! the shortest run has, *against bits* within as many bits as the run that sends least, *both
//! ways* within as many bytes as the run that moves least, up and down. A lead is called clear when
//! the means are more than three standard errors apart; for independent normal means that happens
//! by chance with probability 0.0027.
//!
//! Rows that trust somebody (one node with all records, or a sum that nobody looks into) are shown
//! beside the others and are not ranked with them: at the same epsilon they need far less noise,
//! because they promise less.

use indicatif::HumanBytes;
use serde_json::{Value, json};
use soteriafl_accountant::Adjacency;

use crate::experiment::{Curve, Measure, Point, Statistic};
use crate::report::{Figure, Panel, Part, Series, StudyPage, Table};
use crate::reproduce::figures::{self, Horizontal};
use crate::reproduce::tables::{
    CURVE_COLUMNS, final_json, plus_minus, proved_epsilon, push_curve, quantity, statistic_json,
};
use crate::specification::neighbours;
use crate::words::{counted, readable};

/// One algorithm's runs.
pub struct Contender {
    /// Its preset.
    pub name: String,
    /// Who must be trusted with it.
    pub trust: Trust,
    /// The step size that was used.
    pub step_size: f64,
    /// What came out, seed by seed.
    pub curve: Curve,
    /// Every step size that was tried with the training loss it ended at; empty without tuning.
    pub tried: Vec<(f64, Statistic)>,
}

/// Who must be trusted with the records beyond each client itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Nobody: what a client sends is private by itself.
    Nobody,
    /// Whoever adds messages up: a single message is hardly protected.
    Sum,
    /// The one node that holds all records, and sends nothing.
    OneNode,
}

impl Trust {
    /// In a word or two.
    pub fn name(self) -> &'static str {
        match self {
            Trust::Nobody => "nobody",
            Trust::Sum => "the sum",
            Trust::OneNode => "one node",
        }
    }
}

/// All of them.
pub struct Comparison {
    /// What they were run on.
    pub problem: String,
    /// The delta at which every epsilon holds.
    pub delta: f64,
    /// The neighbouring relation under which it does.
    pub adjacency: Adjacency,
    /// Up to how many records of a person the claims speak of.
    pub records_per_person: u32,
    /// The algorithms, in the order that was asked for.
    pub contenders: Vec<Contender>,
}

/// Who is ahead in something.
pub struct Lead {
    /// In what.
    pub measure: Measure,
    /// At how many rounds or bits, in words.
    pub at: String,
    /// From the best to the worst.
    pub ranking: Vec<(String, Statistic)>,
    /// Standard errors between the first two; not a number where there is no spread.
    pub distance: f64,
}

impl Lead {
    /// Whether the first is ahead beyond the spread.
    pub fn is_clear(&self) -> bool {
        self.distance.abs() > 3.0
    }

    /// One sentence.
    pub fn sentence(&self) -> String {
        let Some((first, best)) = self.ranking.first() else {
            return format!("{}: nothing to compare.", self.at);
        };
        let mut text = format!(
            "{}: {first} has the best {} ({})",
            self.at,
            self.measure.name(),
            plus_minus(best)
        );
        if let Some((second, next)) = self.ranking.get(1) {
            text += &format!(", before {second} ({})", plus_minus(next));
            text += &if self.is_clear() {
                format!(
                    "; the lead is clear, {:.1} standard errors",
                    self.distance.abs()
                )
            } else if self.distance.is_nan() {
                "; one seed cannot say whether that is more than chance".to_string()
            } else {
                format!(
                    "; that is within the spread ({:.1} standard errors), so neither is shown to \
                     be better",
                    self.distance.abs()
                )
            };
        }
        text + "."
    }
}

impl Comparison {
    /// Accuracy where there is a test set, else the loss.
    pub fn measure(&self) -> Measure {
        let known =
            |contender: &Contender| contender.curve.last(Measure::Accuracy).mean.is_finite();
        if self.contenders.iter().all(known) {
            Measure::Accuracy
        } else {
            Measure::Loss
        }
    }

    fn measures(&self) -> Vec<Measure> {
        let mut measures = vec![Measure::Utility, Measure::Loss];
        if self.measure() == Measure::Accuracy {
            measures.push(Measure::Accuracy);
        }
        measures
    }

    /// Who is ahead against rounds.
    pub fn against_rounds(&self, measure: Measure) -> Lead {
        let rounds = self.ranked().map(|c| c.curve.rounds()).min();
        let rounds = rounds.unwrap_or(0);
        self.lead(
            measure,
            format!("After {}", counted(rounds, "round")),
            |curve| curve.until(rounds, measure),
        )
    }

    /// Who is ahead against bits.
    pub fn against_bits(&self, measure: Measure) -> Lead {
        let bits = self.ranked().map(|c| c.curve.bits()).min();
        let bits = bits.unwrap_or(0);
        self.lead(measure, format!("Within {}", quantity(bits)), |curve| {
            curve.within(bits, measure)
        })
    }

    /// Who is ahead against what is really sent, up and down.
    pub fn against_both_ways(&self, measure: Measure) -> Lead {
        let bytes = self.ranked().map(|c| c.curve.bytes_both_ways()).min();
        let bytes = bytes.unwrap_or(0);
        self.lead(
            measure,
            format!("Within {} both ways", HumanBytes(bytes)),
            |curve| curve.within_by(Point::bytes_both_ways, bytes, measure),
        )
    }

    /// Those that trust nobody; all, where none does.
    fn ranked(&self) -> impl Iterator<Item = &Contender> {
        let local = |contender: &Contender| contender.trust == Trust::Nobody;
        let some = self.contenders.iter().any(local);
        let all = self.contenders.iter();
        all.filter(move |contender| !some || local(contender))
    }

    /// Those that are not ranked.
    fn apart(&self) -> impl Iterator<Item = &Contender> {
        let ranked: Vec<&str> = self.ranked().map(|c| c.name.as_str()).collect();
        let all = self.contenders.iter();
        all.filter(move |contender| !ranked.contains(&contender.name.as_str()))
    }

    fn lead(
        &self,
        measure: Measure,
        at: String,
        value: impl Fn(&Curve) -> Option<Statistic>,
    ) -> Lead {
        let mut ranking: Vec<(String, Statistic)> = self
            .ranked()
            .filter_map(|contender| Some((contender.name.clone(), value(&contender.curve)?)))
            .collect();
        // What is not a number comes last.
        let key = |statistic: &Statistic| match (statistic.mean, measure.more_is_better()) {
            (mean, _) if mean.is_nan() => f64::INFINITY,
            (mean, true) => -mean,
            (mean, false) => mean,
        };
        ranking.sort_by(|(_, a), (_, b)| key(a).total_cmp(&key(b)));
        let distance = match ranking.as_slice() {
            [(_, first), (_, second), ..] => first.against(second).standard_errors(),
            _ => f64::NAN,
        };
        Lead {
            measure,
            at,
            ranking,
            distance,
        }
    }

    /// The summary in sentences.
    pub fn sentences(&self) -> Vec<String> {
        let measure = self.measure();
        let mut text = vec![
            self.against_rounds(measure).sentence(),
            self.against_bits(measure).sentence(),
            self.against_both_ways(measure).sentence(),
        ];
        let utility = Measure::Utility;
        for (lead, main) in [
            (self.against_rounds(utility), self.against_rounds(measure)),
            (self.against_bits(utility), self.against_bits(measure)),
        ] {
            let winner = |lead: &Lead| lead.ranking.first().map(|(name, _)| name.clone());
            if winner(&lead) != winner(&main) {
                text.push(format!(
                    "By the mean squared gradient norm it is another. {}",
                    lead.sentence()
                ));
            }
        }
        text.extend(self.apart_sentence(measure));
        text
    }

    /// What those came to who are not ranked.
    fn apart_sentence(&self, measure: Measure) -> Option<String> {
        let ends = self.apart().map(|contender| {
            let end = plus_minus(&contender.curve.last(measure));
            format!(
                "{} (trusts {}) {end}",
                contender.name,
                contender.trust.name()
            )
        });
        let ends: Vec<String> = ends.collect();
        (!ends.is_empty()).then(|| {
            format!(
                "Not ranked, because they trust somebody with the records; {} at their end: {}.",
                measure.name(),
                ends.join(", ")
            )
        })
    }

    /// One row for each algorithm.
    pub fn table(&self) -> Table {
        let rows = self.contenders.iter().map(|contender| {
            let curve = &contender.curve;
            let guarantee = curve.guarantee();
            let no_claim = || format!("no claim: {}", guarantee.claim);
            vec![
                contender.name.clone(),
                contender.trust.name().to_string(),
                contender.step_size.to_string(),
                curve.rounds().to_string(),
                sent(contender, || quantity(curve.bits())),
                sent(contender, || {
                    HumanBytes(curve.bytes_both_ways()).to_string()
                }),
                proved_epsilon(&guarantee, no_claim),
                plus_minus(&curve.last(Measure::Utility)),
                plus_minus(&curve.last(Measure::Loss)),
                plus_minus(&curve.last(Measure::Accuracy)),
            ]
        });
        let epsilon = self.epsilon_heading();
        Table::new(
            &format!(
                "algorithm|trusts|step size|rounds|bits up|both ways|{epsilon}|utility|training loss|test accuracy"
            ),
            rows,
        )
    }

    /// What the epsilons of the table are: the largest of all seeds, under which conditions.
    fn epsilon_heading(&self) -> String {
        let delta = readable(self.delta);
        let neighbours = neighbours(self.adjacency, self.records_per_person);
        format!("proved ε (at delta {delta}, {neighbours})")
    }

    /// All measures against rounds, or against bits.
    pub fn figure(&self, horizontal: Horizontal) -> Figure {
        let against = match horizontal {
            Horizontal::Rounds => "rounds",
            Horizontal::Bits => "bits",
            Horizontal::BothWays => "bytes both ways",
        };
        Figure {
            title: format!("{}, against {against}", self.problem),
            panels: self
                .measures()
                .into_iter()
                .map(|measure| self.panel(measure, horizontal))
                .collect(),
        }
    }

    /// One measure against rounds, bits up and bytes both ways, side by side: for a talk.
    pub fn overview(&self) -> Figure {
        let horizontals = [Horizontal::Rounds, Horizontal::Bits, Horizontal::BothWays];
        let panel = |horizontal| self.panel(Measure::Loss, horizontal);
        Figure {
            title: self.problem.clone(),
            panels: horizontals.into_iter().map(panel).collect(),
        }
    }

    /// Those that send nothing have no place on an axis of traffic. Colours go by name, the same in
    /// every panel; who trusts somebody is dashed.
    fn panel(&self, measure: Measure, horizontal: Horizontal) -> Panel {
        let shown = self.contenders.iter().enumerate().filter(|(_, contender)| {
            horizontal == Horizontal::Rounds || contender.trust != Trust::OneNode
        });
        let several = self.contenders.len();
        let series = shown.map(|(at, contender)| {
            let mut series = Series {
                label: contender.name.clone(),
                color: (several > CROWDED).then(|| figures::one_of(at, several)),
                dashed: contender.trust != Trust::Nobody,
                ..figures::curve(&contender.curve, measure, horizontal)
            };
            if several > CROWDED {
                series.band = None;
            }
            series
        });
        Panel {
            series: series.collect(),
            ..figures::panel(measure, horizontal)
        }
    }

    /// Every curve, a row for each evaluated round.
    pub fn csv(&self) -> String {
        let mut out = format!("algorithm,step_size,{CURVE_COLUMNS}\n");
        for contender in &self.contenders {
            let first = format!("{},{}", contender.name, contender.step_size);
            push_curve(&mut out, &first, &contender.curve);
        }
        out
    }

    /// Everything that is not a curve.
    pub fn summary(&self) -> Value {
        let lead = |lead: Lead| {
            let ranking: Vec<Value> = lead
                .ranking
                .iter()
                .map(|(name, value)| json!({ "algorithm": name, "value": statistic_json(value) }))
                .collect();
            json!({
                "at": lead.at, "measure": lead.measure.name(), "ranking": ranking,
                "standard_errors": lead.distance.is_finite().then_some(lead.distance.abs()),
                "clear": lead.is_clear(),
            })
        };
        let measure = self.measure();
        let algorithms: Vec<Value> = self.contenders.iter().map(contender_json).collect();
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "problem": self.problem,
            "delta": self.delta,
            "adjacency": self.adjacency.to_string(),
            "records_per_person": self.records_per_person,
            "algorithms": algorithms,
            "against_rounds": lead(self.against_rounds(measure)),
            "against_bits": lead(self.against_bits(measure)),
            "against_both_ways": lead(self.against_both_ways(measure)),
            "summary": self.sentences(),
            "note": CHOICE,
            "tuned": self.contenders.iter().any(|contender| !contender.tried.is_empty()),
        })
    }

    /// The report.
    pub fn page(&self) -> StudyPage {
        let runs = self.contenders.first().map_or(0, |c| c.curve.runs.len());
        let mut parts = vec![Part::heading("Who is ahead")];
        parts.extend(self.sentences().into_iter().map(Part::Text));
        parts.push(Part::Table(self.table()));
        if let Some(table) = self.tuning() {
            parts.push(Part::Subheading("Step sizes that were tried".to_string()));
            parts.push(Part::note(TUNING));
            parts.push(Part::Table(table));
        }
        for (title, horizontal) in [
            ("Against rounds", Horizontal::Rounds),
            ("Against bits", Horizontal::Bits),
            ("Against bytes both ways", Horizontal::BothWays),
        ] {
            parts.push(Part::heading(title));
            parts.push(Part::figure(self.figure(horizontal), &[]));
        }
        parts.push(Part::note(
            "Hover for values, click a name to hide its curve, drag to zoom, double-click to zoom \
             out. Bands are one standard deviation over seeds.",
        ));
        parts.push(Part::note(CHOICE));
        StudyPage {
            kicker: "Comparison".to_string(),
            title: self.problem.clone(),
            subtitle: format!(
                "{}, {}",
                counted(self.contenders.len(), "algorithm"),
                counted(runs, "seed")
            ),
            cards: Vec::new(),
            parts,
        }
    }

    /// Every step size that was tried.
    pub fn tuning(&self) -> Option<Table> {
        let mut rows = Vec::new();
        for contender in &self.contenders {
            for (step, loss) in &contender.tried {
                rows.push(vec![
                    contender.name.clone(),
                    step.to_string(),
                    plus_minus(loss),
                    if *step == contender.step_size {
                        "+ used"
                    } else {
                        ""
                    }
                    .to_string(),
                ]);
            }
        }
        (!rows.is_empty()).then(|| Table::new("algorithm|step size|training loss|", rows))
    }
}

/// From so many curves on, bands would hide them.
const CROWDED: usize = 8;

/// Traffic, where there is any.
fn sent(contender: &Contender, amount: impl Fn() -> String) -> String {
    match contender.trust {
        Trust::OneNode => "-".to_string(),
        Trust::Nobody | Trust::Sum => amount(),
    }
}

/// What looking at the numbers means for a claim.
pub const CHOICE: &str = "An epsilon is the largest of all seeds, of one run by itself: \
runs of one seed draw the same noise, and whoever sees two of them can take it off, so that their \
epsilons do not add up. Loss, accuracy and gradient norms are computed from raw data: a \
simulation's privilege, outside every claim. Choosing an algorithm by them costs privacy too, unless the data is public.";

/// What tuning means for a claim.
pub const TUNING: &str = "Step sizes were chosen by the training loss they end at, which is \
computed from the records. On private data every run that is looked at costs budget, and no \
accounting covers the choice: nothing is claimed for these runs, nor for one that repeats their \
settings. A claim needs a step size that was fixed beforehand, or tuned on public data.";

fn contender_json(contender: &Contender) -> Value {
    let guarantee = contender.curve.guarantee();
    let tried: Vec<Value> = contender
        .tried
        .iter()
        .map(|(step, loss)| json!({ "step_size": step, "loss": statistic_json(loss) }))
        .collect();
    json!({
        "algorithm": contender.name,
        "trusts": contender.trust.name(),
        "step_size": contender.step_size,
        "rounds": contender.curve.rounds(),
        "paper_bits": contender.curve.bits(),
        "bytes_both_ways": contender.curve.bytes_both_ways(),
        "sigma": guarantee.sigma,
        "claim": guarantee.claim,
        "epsilon": guarantee.epsilon,
        "final": final_json(&contender.curve),
        "tried": tried,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::{Outcome, Point};

    fn contender(name: &str, bits_per_round: u64, accuracies: &[[f64; 3]]) -> Contender {
        let run = |values: &[f64; 3]| Outcome {
            points: (0..3)
                .map(|round| Point {
                    round,
                    paper_bits: u64::from(round) * bits_per_round,
                    uplink_bytes: u64::from(round) * bits_per_round / 8,
                    downlink_bytes: u64::from(round) * 1000,
                    loss: 1.0 - values[round as usize],
                    grad_norm_sq: 1.0,
                    utility: 1.0,
                    test_accuracy: Some(values[round as usize]),
                })
                .collect(),
            sigma: 0.1,
            claim: crate::claim::Claim::Proved,
            epsilon: Some(1.0),
            amplified: false,
        };
        Contender {
            name: name.to_string(),
            trust: Trust::Nobody,
            step_size: 0.1,
            curve: Curve {
                runs: accuracies.iter().map(run).collect(),
            },
            tried: Vec::new(),
        }
    }

    /// The dense one wins against rounds; against bits it has not yet left the start.
    #[test]
    fn leads_depend_on_the_axis() {
        let comparison = Comparison {
            problem: "a problem".to_string(),
            delta: 1e-5,
            adjacency: Adjacency::ZeroOut,
            records_per_person: 1,
            contenders: vec![
                contender("dense", 1000, &[[0.5, 0.8, 0.90], [0.5, 0.8, 0.91]]),
                contender("sparse", 50, &[[0.5, 0.6, 0.70], [0.5, 0.6, 0.71]]),
            ],
        };
        assert_eq!(comparison.measure(), Measure::Accuracy);
        let rounds = comparison.against_rounds(Measure::Accuracy);
        assert_eq!(rounds.ranking[0].0, "dense");
        assert!(rounds.is_clear());
        let bits = comparison.against_bits(Measure::Accuracy);
        assert_eq!(
            (bits.ranking[0].0.as_str(), bits.ranking[1].1.mean),
            ("sparse", 0.5)
        );
        assert!(
            bits.sentence()
                .starts_with("Within 100 bit: sparse has the best test accuracy")
        );
    }

    #[test]
    fn one_seed_decides_nothing() {
        let comparison = Comparison {
            problem: String::new(),
            delta: 1e-5,
            adjacency: Adjacency::ZeroOut,
            records_per_person: 1,
            contenders: vec![
                contender("a", 1, &[[0.5, 0.6, 0.7]]),
                contender("b", 1, &[[0.5, 0.6, 0.8]]),
            ],
        };
        let lead = comparison.against_rounds(Measure::Loss);
        assert_eq!(lead.ranking[0].0, "b");
        assert!(!lead.is_clear());
        assert!(
            lead.sentence().contains("one seed cannot say"),
            "{}",
            lead.sentence()
        );
    }

    /// Seeds may cost differently; what is printed holds for each of them, and says under what.
    #[test]
    fn the_printed_epsilon_is_the_largest_of_all_seeds() {
        let mut one = contender("a", 1, &[[0.5, 0.6, 0.7], [0.5, 0.6, 0.7]]);
        one.curve.runs[0].epsilon = Some(10.02);
        one.curve.runs[1].epsilon = Some(3325.0);
        one.curve.runs[1].sigma = 0.3;
        let mut other = contender("b", 1, &[[0.5, 0.6, 0.7], [0.5, 0.6, 0.7]]);
        other.curve.runs[1].epsilon = None;
        other.curve.runs[1].claim = "too little noise for any accountant".to_string().into();
        let comparison = Comparison {
            problem: String::new(),
            delta: 1e-5,
            adjacency: Adjacency::ZeroOut,
            records_per_person: 1,
            contenders: vec![one, other],
        };
        let table = comparison.table();
        assert_eq!(table.columns[6], "proved ε (at delta 1e-5, zero-out)");
        assert_eq!(table.rows[0][6], "+ 3325");
        assert_eq!(
            table.rows[1][6],
            "- no claim: too little noise for any accountant"
        );
        let summary = comparison.summary();
        assert_eq!(summary["algorithms"][0]["epsilon"], 3325.0);
        assert_eq!(summary["algorithms"][0]["sigma"], 0.3);
        assert!(summary["algorithms"][1]["epsilon"].is_null());
        assert_eq!(
            (&summary["delta"], &summary["adjacency"]),
            (&json!(1e-5), &json!("zero-out"))
        );
        let note = summary["note"].as_str().unwrap();
        assert!(note.contains("Choosing an algorithm by them costs privacy"));
        let page = comparison.page().to_html();
        assert!(page.contains("at delta 1e-5, zero-out") && page.contains("costs privacy too"));
    }
}
