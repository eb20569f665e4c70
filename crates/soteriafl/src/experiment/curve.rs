//! Runs that differ in their seed alone, taken together.

use super::job::{Outcome, Point};
use crate::claim::{Claim, Reason};

/// Mean and sample standard deviation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Statistic {
    /// The mean.
    pub mean: f64,
    /// The sample standard deviation; not a number for a single run.
    pub deviation: f64,
    /// Over how many runs.
    pub runs: usize,
}

/// How two means lie to each other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The first mean minus the second.
    pub difference: f64,
    /// The standard error of that difference; not a number where a mean has none.
    pub error: f64,
}

impl Statistic {
    /// Of these values. Two passes, so that the spread of nearly equal values is not lost.
    pub fn of(values: impl Iterator<Item = f64> + Clone) -> Self {
        let runs = values.clone().count();
        let mean = values.clone().sum::<f64>() / runs as f64;
        let squares: f64 = values.map(|value| (value - mean).powi(2)).sum();
        Self {
            mean,
            deviation: (squares / (runs as f64 - 1.0)).sqrt(),
            runs,
        }
    }

    /// This mean against another.
    pub fn against(&self, other: &Statistic) -> Spread {
        let variance = |s: &Statistic| s.deviation.powi(2) / s.runs as f64;
        Spread {
            difference: self.mean - other.mean,
            error: (variance(self) + variance(other)).sqrt(),
        }
    }
}

impl Spread {
    /// The difference in standard errors; not a number where there is no spread to compare with.
    pub fn standard_errors(&self) -> f64 {
        if self.difference == 0.0 {
            0.0
        } else {
            self.difference / self.error
        }
    }
}

/// What is measured in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// The mean of `|grad f|^2` so far.
    Utility,
    /// The training loss.
    Loss,
    /// The test accuracy.
    Accuracy,
}

impl Measure {
    /// Its value in a round; not a number where there is none.
    pub fn of(self, point: &Point) -> f64 {
        match self {
            Measure::Utility => point.utility,
            Measure::Loss => point.loss,
            Measure::Accuracy => point.test_accuracy.unwrap_or(f64::NAN),
        }
    }

    /// Its name for people.
    pub fn name(self) -> &'static str {
        match self {
            Measure::Utility => "utility",
            Measure::Loss => "training loss",
            Measure::Accuracy => "test accuracy",
        }
    }

    /// Whether more of it is better.
    pub fn more_is_better(self) -> bool {
        self == Measure::Accuracy
    }
}

/// What holds for every run of a curve.
#[derive(Clone, Debug, PartialEq)]
pub struct Guarantee {
    /// The largest standard deviation of the noise of any run; not a number without a run.
    pub sigma: f64,
    /// Proved only where it is for every run, else the first reason why not.
    pub claim: Claim,
    /// The largest epsilon of any run, where all are proved.
    pub epsilon: Option<f64>,
}

/// One setting's runs.
#[derive(Clone, Debug)]
pub struct Curve {
    /// The runs, one for each seed.
    pub runs: Vec<Outcome>,
}

impl Curve {
    /// Rounds that every run evaluated.
    pub fn len(&self) -> usize {
        let lengths = self.runs.iter().map(|run| run.points.len());
        lengths.min().unwrap_or(0)
    }

    /// Whether there is no round.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A measure at the evaluated round number `at`.
    pub fn at(&self, at: usize, measure: Measure) -> Statistic {
        Statistic::of(self.runs.iter().map(|run| measure.of(&run.points[at])))
    }

    /// A measure at the end.
    pub fn last(&self, measure: Measure) -> Statistic {
        self.at(self.len().saturating_sub(1), measure)
    }

    /// The rounds, as the first run has them.
    pub fn points(&self) -> &[Point] {
        let runs = self.runs.first().map(|run| run.points.as_slice());
        &runs.unwrap_or_default()[..self.len()]
    }

    /// A measure of every run at a number of bits: the last round that was evaluated before they
    /// were used up. `None` where not even the start fits.
    pub fn within(&self, bits: u64, measure: Measure) -> Option<Statistic> {
        self.within_by(|point| point.paper_bits, bits, measure)
    }

    /// The same for any traffic that does not fall over the rounds.
    pub fn within_by(
        &self,
        traffic: impl Fn(&Point) -> u64,
        most: u64,
        measure: Measure,
    ) -> Option<Statistic> {
        let points = self.points();
        let at = points.iter().rposition(|point| traffic(point) <= most)?;
        Some(self.at(at, measure))
    }

    /// A measure of every run at the first evaluated round in which these bits were used up, or at
    /// the end.
    pub fn beyond(&self, bits: u64, measure: Measure) -> Statistic {
        let points = self.points();
        let at = points.iter().position(|point| point.paper_bits >= bits);
        self.at(at.unwrap_or(points.len().saturating_sub(1)), measure)
    }

    /// A measure of every run at a round, or at the last one that was evaluated before it.
    pub fn until(&self, round: u32, measure: Measure) -> Option<Statistic> {
        let points = self.points();
        let at = points.iter().rposition(|point| point.round <= round)?;
        Some(self.at(at, measure))
    }

    /// The last evaluated round.
    pub fn rounds(&self) -> u32 {
        self.points().last().map_or(0, |point| point.round)
    }

    /// What may be said of all runs together. Seeds may deal the records otherwise, and a client
    /// with fewer of them pays more for the same noise: one run's epsilon is not the others'.
    pub fn guarantee(&self) -> Guarantee {
        let claim_of = |run: &Outcome| match (&run.claim, run.epsilon) {
            (Claim::Proved, None) => Claim::Withheld(Reason::TooLittleNoise),
            (claim, _) => claim.clone(),
        };
        let claim = if self.runs.is_empty() {
            Claim::Withheld(Reason::Other("no run".to_string()))
        } else {
            let mut claims = self.runs.iter().map(claim_of);
            claims
                .find(|claim| !claim.is_proved())
                .unwrap_or(Claim::Proved)
        };
        let epsilons = self.runs.iter().filter_map(|run| run.epsilon);
        Guarantee {
            sigma: self
                .runs
                .iter()
                .map(|run| run.sigma)
                .fold(f64::NAN, f64::max),
            epsilon: epsilons.reduce(f64::max).filter(|_| claim.is_proved()),
            claim,
        }
    }

    /// Bytes that were really sent, up and down, at the end.
    pub fn bytes_both_ways(&self) -> u64 {
        self.points().last().map_or(0, Point::bytes_both_ways)
    }

    /// Bits at the end.
    pub fn bits(&self) -> u64 {
        self.points().last().map_or(0, |point| point.paper_bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_and_their_difference() {
        let a = Statistic::of([1.0, 2.0, 3.0].into_iter());
        assert_eq!((a.mean, a.deviation, a.runs), (2.0, 1.0, 3));
        let b = Statistic::of([5.0, 5.0].into_iter());
        let spread = a.against(&b);
        assert_eq!(spread.difference, -3.0);
        assert!((spread.error - (1.0f64 / 3.0).sqrt()).abs() < 1e-15);
        assert!((spread.standard_errors() + 3.0 * 3.0f64.sqrt()).abs() < 1e-12);
        let one = Statistic::of([4.0].into_iter());
        assert!(one.deviation.is_nan() && one.against(&a).standard_errors().is_nan());
    }

    #[test]
    fn a_guarantee_is_that_of_the_worst_run() {
        let run = |sigma, claim, epsilon| Outcome {
            points: Vec::new(),
            sigma,
            claim,
            epsilon,
            amplified: false,
        };
        let cheap = run(0.1, Claim::Proved, Some(10.0));
        let dear = run(0.2, Claim::Proved, Some(3325.0));
        let withheld = run(0.1, Claim::Withheld(Reason::TooLittleNoise), None);
        let of = |runs: &[&Outcome]| {
            let runs = runs.iter().map(|run| (*run).clone()).collect();
            Curve { runs }.guarantee()
        };
        for runs in [[&cheap, &dear], [&dear, &cheap]] {
            let guarantee = of(&runs);
            assert_eq!(
                (guarantee.sigma, guarantee.epsilon, guarantee.claim),
                (0.2, Some(3325.0), Claim::Proved)
            );
        }
        for runs in [[&cheap, &withheld], [&withheld, &cheap]] {
            let guarantee = of(&runs);
            assert_eq!(
                (guarantee.epsilon, guarantee.claim),
                (None, withheld.claim.clone())
            );
        }
        let none = of(&[]);
        assert!(none.sigma.is_nan() && none.epsilon.is_none() && !none.claim.is_proved());
    }
}
