//! What came out, beside what it is compared with.

use std::sync::{Arc, OnceLock};

use soteriafl_accountant::Adjacency;
use soteriafl_data::FeatureKind;

use super::published::{self, ALGORITHMS, Algorithm, Band, DELTA, FIGURES, Setup};
use super::settings::{self, Mode};
use crate::accounting;
use crate::config::resolve::{Resolved, Shape};
use crate::config::{Config, ConfigError, ModelKind};
use crate::experiment::{Curve, Measure, Setting, Statistic};
use crate::specification::StepSizeOrigin;

/// One curve of a figure.
pub struct Entry {
    /// The figure.
    pub setup: Setup,
    /// How it was run.
    pub mode: Mode,
    /// The algorithm; none where the system chose.
    pub algorithm: Option<Algorithm>,
    /// What ran.
    pub setting: Arc<Setting>,
    /// What came out.
    pub curve: Curve,
}

impl Entry {
    /// The algorithm's name.
    pub fn name(&self) -> String {
        self.algorithm.map_or_else(
            || self.setting.resolved.chosen(),
            |algorithm| algorithm.name().to_string(),
        )
    }

    /// The configuration that repeats this curve. Whoever runs it on records of their own must not
    /// claim what step sizes that were tuned on records do not allow, so it says where they are
    /// from.
    pub fn written(&self) -> Resolved {
        let mut resolved = self.setting.resolved.clone();
        if self.mode.step_size_from_data() {
            resolved.step_size_origin = StepSizeOrigin::Records;
        }
        resolved
    }

    /// The measure that the figure shows beside utility.
    pub fn measure(&self) -> Measure {
        measure(&self.setup)
    }

    /// What the authors' algorithm gives, for runs as published where it was measured.
    pub fn band(&self) -> Option<Band> {
        let algorithm = self.algorithm.filter(|_| self.mode == Mode::Published)?;
        published::band(self.setup.figure, algorithm)
    }

    /// The largest standard deviation of the noise of any run.
    pub fn sigma(&self) -> f64 {
        self.curve.guarantee().sigma
    }
}

/// The measure that a figure shows beside utility.
pub fn measure(setup: &Setup) -> Measure {
    if setup.shows_accuracy() {
        Measure::Accuracy
    } else {
        Measure::Loss
    }
}

/// Ours against the authors'.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Comparison {
    /// What is compared.
    pub measure: Measure,
    /// Ours.
    pub ours: Statistic,
    /// Theirs.
    pub theirs: Statistic,
    /// The difference in standard errors of the difference; none for one run, which has no spread
    /// of its own.
    pub distance: Option<f64>,
}

impl Comparison {
    /// Whether ours falls into the band; none where one run cannot tell.
    pub fn within(&self) -> Option<bool> {
        self.distance.map(|distance| distance.abs() <= 3.0)
    }
}

/// A goal for proved runs, and what was reached.
#[derive(Clone, Copy, Debug)]
pub struct Goal {
    /// The figure.
    pub setup: Setup,
    /// What is measured.
    pub measure: Measure,
    /// To be reached.
    pub goal: f64,
    /// What the published SoteriaFL-SGD has, unproved.
    pub published: f64,
    /// Reached, proved.
    pub reached: Statistic,
}

impl Goal {
    /// Whether the mean reaches it.
    pub fn met(&self) -> bool {
        if self.measure.more_is_better() {
            self.reached.mean >= self.goal
        } else {
            self.reached.mean <= self.goal
        }
    }
}

/// Whether something that the paper says holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The first is better by more than three standard errors.
    Holds,
    /// The second is.
    Reversed,
    /// Neither, or there is one seed only.
    Open,
}

impl Verdict {
    /// In a word.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Holds => "holds",
            Verdict::Reversed => "does not hold",
            Verdict::Open => "not decided",
        }
    }
}

/// Two algorithms compared on something the paper says about them.
#[derive(Clone, Debug)]
pub struct Ordering {
    /// The figure.
    pub setup: Setup,
    /// What is claimed.
    pub claim: &'static str,
    /// Who should be better.
    pub better: Algorithm,
    /// Than whom.
    pub worse: Algorithm,
    /// By what.
    pub measure: Measure,
    /// Mean of the first.
    pub first: Statistic,
    /// Mean of the second.
    pub second: Statistic,
    /// Whether it is so.
    pub verdict: Verdict,
}

/// Everything that came out.
pub struct Results {
    /// The curves: figure by figure, mode by mode.
    pub entries: Vec<Entry>,
}

impl Results {
    /// The figures that were run.
    pub fn setups(&self) -> Vec<Setup> {
        let mut setups: Vec<Setup> = Vec::new();
        for entry in &self.entries {
            if setups
                .last()
                .is_none_or(|last| last.figure != entry.setup.figure)
            {
                setups.push(entry.setup);
            }
        }
        setups
    }

    /// One curve.
    pub fn find(&self, figure: u32, mode: Mode, algorithm: Option<Algorithm>) -> Option<&Entry> {
        self.entries.iter().find(|entry| {
            entry.setup.figure == figure && entry.mode == mode && entry.algorithm == algorithm
        })
    }

    /// The curves of a figure.
    pub fn of(&self, figure: u32) -> impl Iterator<Item = &Entry> {
        self.entries
            .iter()
            .filter(move |entry| entry.setup.figure == figure)
    }

    /// Published runs against the authors' bands.
    pub fn comparisons(&self) -> Vec<(&Entry, Comparison)> {
        let mut found = Vec::new();
        for entry in &self.entries {
            if let Some(band) = entry.band() {
                for comparison in compare(entry, &band) {
                    found.push((entry, comparison));
                }
            }
        }
        found
    }

    /// Goals against what proved runs reach.
    pub fn goals(&self) -> Vec<Goal> {
        let goals = self.setups().into_iter().filter_map(|setup| {
            let (goal, published) = published::goal(setup.figure)?;
            let entry = self.find(setup.figure, Mode::Best, None)?;
            let measure = entry.measure();
            Some(Goal {
                setup,
                measure,
                goal,
                published,
                reached: entry.curve.last(measure),
            })
        });
        goals.collect()
    }

    /// What the paper says about its algorithms, checked on runs as published.
    pub fn orderings(&self) -> Vec<Ordering> {
        const BITS: &str = "compressed beats uncompressed against bits";
        const SHIFT: &str = "shifted beats direct compression";
        let pairs = [
            (BITS, Algorithm::CdpSgd, Algorithm::LdpSgd),
            (BITS, Algorithm::SoteriaSgd, Algorithm::LdpSgd),
            (BITS, Algorithm::SoteriaSvrg, Algorithm::LdpSvrg),
            (SHIFT, Algorithm::SoteriaSgd, Algorithm::CdpSgd),
        ];
        let mut found = Vec::new();
        for setup in self.setups() {
            for (claim, better, worse) in pairs {
                let get = |algorithm| self.find(setup.figure, Mode::Published, Some(algorithm));
                let (Some(first), Some(second)) = (get(better), get(worse)) else {
                    continue;
                };
                for measure in [Measure::Utility, measure(&setup)] {
                    let first = first.curve.last(measure);
                    // At the bits of the compressed run, which is all of a compressed one and a
                    // twentieth of another. Evaluated rounds lie around that: a verdict must hold
                    // for the less favourable one.
                    let after = second.curve.beyond(setup.bits(), measure);
                    let before = second.curve.within(setup.bits(), measure);
                    let verdict = match (
                        verdict(&first, &after, measure),
                        before.map(|before| verdict(&first, &before, measure)),
                    ) {
                        (Verdict::Holds, _) => Verdict::Holds,
                        (_, Some(Verdict::Reversed)) => Verdict::Reversed,
                        _ => Verdict::Open,
                    };
                    let second = after;
                    found.push(Ordering {
                        setup,
                        claim,
                        better,
                        worse,
                        measure,
                        first,
                        second,
                        verdict,
                    });
                }
            }
        }
        found
    }
}

fn verdict(first: &Statistic, second: &Statistic, measure: Measure) -> Verdict {
    let towards = first.against(second).standard_errors();
    let towards = if measure.more_is_better() {
        towards
    } else {
        -towards
    };
    if towards > 3.0 {
        Verdict::Holds
    } else if towards < -3.0 {
        Verdict::Reversed
    } else {
        Verdict::Open
    }
}

/// Ours against a band, in every measure that tells something.
fn compare(entry: &Entry, band: &Band) -> Vec<Comparison> {
    let mut measures = vec![(Measure::Utility, band.utility), (Measure::Loss, band.loss)];
    // On a9a every run ends with the larger class for everybody.
    if entry.setup.shows_accuracy() {
        measures.push((Measure::Accuracy, band.accuracy));
    }
    let compared = measures.into_iter().map(|(measure, (mean, deviation))| {
        let ours = entry.curve.last(measure);
        let theirs = Statistic {
            mean,
            deviation,
            runs: band.seeds,
        };
        // The authors' spread cannot stand in for ours: on MNIST starts differ by more than their
        // three runs do.
        let distance = (ours.runs > 1).then(|| ours.against(&theirs).standard_errors());
        Comparison {
            measure,
            ours,
            theirs,
            distance,
        }
    });
    compared.collect()
}

/// The epsilon that the published noise of an algorithm gives if every record were clipped to `G`
/// and batches were Poisson: no amplification, SVRG with differences of up to `2G`. `None` where no
/// accountant vouches for so little noise.
pub fn noise_really_gives(
    setup: &Setup,
    algorithm: Algorithm,
    sigma: f64,
    adjacency: Adjacency,
) -> Option<f64> {
    let run = clipped_by_record(setup, algorithm, sigma, adjacency)
        .expect("the published numbers make a configuration");
    let (dimension, records) = (setup.task.dimension(), setup.task.records());
    let level = accounting::level(
        &run.specification(),
        dimension as usize,
        &[records as usize],
    );
    level.ok().flatten().map(|level| level.epsilon)
}

/// The published run, but with the mechanism that the accountants speak of.
fn clipped_by_record(
    setup: &Setup,
    algorithm: Algorithm,
    sigma: f64,
    adjacency: Adjacency,
) -> Result<Resolved, ConfigError> {
    let clip = setup.task.clip();
    let mut keys = vec![
        format!("algorithm.preset={}", algorithm.preset()),
        format!("algorithm.batch={}", setup.batch(algorithm)),
        format!("algorithm.rounds={}", setup.rounds),
        format!("privacy.sigma={sigma}"),
        format!("privacy.delta={DELTA}"),
        format!("privacy.clip={clip}"),
        "privacy.amplification=off".to_string(),
        match adjacency {
            Adjacency::ZeroOut => "privacy.adjacency=zero-out".to_string(),
            Adjacency::ReplaceOne => "privacy.adjacency=replace-one".to_string(),
        },
    ];
    if algorithm.is_svrg() {
        keys.push(format!("privacy.difference_clip={}", 2.0 * clip));
    }
    let dimension = setup.task.dimension() as usize;
    let shape = Shape {
        dimension,
        records: vec![setup.task.records() as usize],
        model: ModelKind::Logistic,
        smoothness: None,
        image: false,
        feature_map: FeatureKind::None,
        whiten: None,
        basis: None,
        whole: dimension,
    };
    let (run, _) = Config::read(&settings::document(&keys)?)?.resolve(&shape)?;
    Ok(run)
}

/// The noise of the paper's formula.
pub fn published_sigma(setup: &Setup, algorithm: Algorithm) -> f64 {
    use soteriafl_accountant::paper::{PaperFormula, PaperTheorem};
    let clip = setup.task.clip();
    let theorem = match algorithm {
        Algorithm::LdpSgd | Algorithm::CdpSgd => PaperTheorem::Direct { clip },
        Algorithm::SoteriaSgd => PaperTheorem::sgd(clip),
        Algorithm::LdpSvrg | Algorithm::SoteriaSvrg => PaperTheorem::variance_reduced(clip),
    };
    let formula = PaperFormula {
        theorem,
        records: setup.task.records(),
        batch: f64::from(setup.batch(algorithm)),
        rounds: u64::from(setup.rounds),
    };
    formula.sigma(setup.epsilon, DELTA)
}

/// What the published noise of every algorithm of a figure really gives, zero-out and replace-one.
/// Computed once for each figure of the paper.
pub fn real_epsilons(setup: &Setup) -> Vec<RealEpsilon> {
    static KNOWN: [OnceLock<Vec<RealEpsilon>>; FIGURES.len()] =
        [const { OnceLock::new() }; FIGURES.len()];
    match FIGURES.iter().position(|figure| figure == setup) {
        Some(at) => KNOWN[at].get_or_init(|| assess_all(setup)).clone(),
        None => assess_all(setup),
    }
}

fn assess_all(setup: &Setup) -> Vec<RealEpsilon> {
    let rows = ALGORITHMS.map(|algorithm| {
        let sigma = published_sigma(setup, algorithm);
        let epsilon = |adjacency| noise_really_gives(setup, algorithm, sigma, adjacency);
        RealEpsilon {
            algorithm,
            sigma,
            zero_out: epsilon(Adjacency::ZeroOut),
            replace_one: epsilon(Adjacency::ReplaceOne),
        }
    });
    rows.to_vec()
}

/// See [`real_epsilons`].
#[derive(Clone, Copy, Debug)]
pub struct RealEpsilon {
    /// Whose noise.
    pub algorithm: Algorithm,
    /// Its standard deviation.
    pub sigma: f64,
    /// Against a record that is not there.
    pub zero_out: Option<f64>,
    /// Against another record.
    pub replace_one: Option<f64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sigma and epsilon of all forty published settings, computed independently.
    #[test]
    fn what_the_published_noise_gives() {
        let expected: [[(f64, f64); 5]; 8] = [
            [
                (0.005708, 68.7),
                (0.019772, 0.348),
                (0.005708, 68.7),
                (0.006991, 42.6),
                (0.019772, 0.348),
            ],
            [
                (0.002283, 43.3),
                (0.007909, 8.44),
                (0.002283, 43.3),
                (0.002796, 25.1),
                (0.007909, 8.44),
            ],
            [
                (0.001398, 47.7),
                (0.004843, 41.1),
                (0.001398, 47.7),
                (0.001712, 27.1),
                (0.004843, 41.1),
            ],
            [
                (0.015174, 0.324),
                (0.052565, 0.253),
                (0.015174, 0.324),
                (0.018585, 0.244),
                (0.052565, 0.253),
            ],
            [
                (0.008761, 0.936),
                (0.030349, 0.643),
                (0.008761, 0.936),
                (0.010730, 0.649),
                (0.030349, 0.643),
            ],
            [
                (0.005365, 3.78),
                (0.018585, 2.07),
                (0.005365, 3.78),
                (0.006571, 2.19),
                (0.018585, 2.07),
            ],
            [
                (0.003463, 18.5),
                (0.011996, 9.47),
                (0.003463, 18.5),
                (0.004241, 9.8),
                (0.011996, 9.47),
            ],
            [
                (0.002449, 85.7),
                (0.008483, 42.5),
                (0.002449, 85.7),
                (0.002999, 44.2),
                (0.008483, 42.5),
            ],
        ];
        for (setup, row) in FIGURES.iter().zip(expected) {
            for (found, (sigma, epsilon)) in real_epsilons(setup).iter().zip(row) {
                let name = found.algorithm.name();
                assert!(
                    (found.sigma - sigma).abs() < 6e-7,
                    "{name} {setup:?}: {}",
                    found.sigma
                );
                // Three digits are given.
                let zero_out = found.zero_out.unwrap();
                assert!(
                    (zero_out / epsilon - 1.0).abs() < 6e-3,
                    "{name} {setup:?}: {zero_out}"
                );
                assert!(found.replace_one.unwrap() >= zero_out);
            }
        }
    }
}
