//! What `preset = "auto"` chooses for linear models on records of length one: the way from zero,
//! its steps and the clip, from public quantities alone.
//!
//! **What it computes.** With `n` clients of `m` records, `mu` of the Gaussian mechanism that the
//! target allows, clip `G`, `T` whole gradients and step `eta`, the noise of a client is
//! `2 G sqrt(T)/(m mu)`, and what all steps leave of it in the logit of a record of length one has
//! the standard deviation
//!
//! ```text
//! eta T 2 G/(m mu sqrt(n))  =  R G/s,    R = eta T,    s = m mu sqrt(n)/2,
//! ```
//!
//! whatever the dimension, the classes and the rounds are. So the way `R` follows from `s` alone:
//! it ends where that noise is [`NOISE`] (a logit that a model is sure of is several times that).
//! More (public) features cost no noise, and rounds only have to be enough for steps that do not
//! overshoot. Under zero-out the sensitivity is half, and `s` twice that; `K` records of a person
//! divide it by `K`.
//!
//! **Guarantee.** Nothing here looks at a record. **Cost.** None. **Place in the paper:** Algorithm
//! 1 with full gradients; the choice is this program's (`docs/defaults.md`).

use soteriafl_accountant::{Adjacency, ClipScope, largest_mu};
use soteriafl_core::compress::CompressorKind;
use soteriafl_core::data::FeatureKind;
use soteriafl_data::{Source, TableSchema};

use super::regression;
use super::resolve::{Resolved, Shape};
use super::{
    AccountantName, Auto, Config, EstimatorKind, Init, ModelKind, NoiseTarget, Preset, Theory,
};
use crate::words::{counted, readable};

/// Noise in the logit of a record at the end.
const NOISE: f64 = 2.5;

/// The clip for two classes: a fifth of the longest gradient of a record of length one. For more
/// classes that is `sqrt(2)` times as long.
const CLIP: f64 = 0.2;

/// The step that is looked for, below which a loss of curvature 1/4 is not overshot, and the
/// longest one on records that are not whitened.
const STEPS: (f64, f64) = (8.0, 60.0);

/// Most rounds.
const MOST_ROUNDS: f64 = 200.0;

/// Parameters that travel whole; of more, so many in a message.
const WHOLE: usize = 4096;

/// Records with more features get no roots: with them they would be too long to be whitened by
/// themselves.
pub(super) const WIDEST_ROOTS: usize = 128;

/// The rule's numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct LinearRule {
    /// The bound on a whole gradient.
    pub(super) clip: f64,
    /// Rounds.
    pub(super) rounds: u32,
    /// The step.
    pub(super) step: f64,
}

impl Config {
    /// Whether records are an ordinary table with a private, linear, undisturbed run ahead. The
    /// built-in problems keep the choices that `docs/best-proved.md` is about.
    pub fn is_ordinary(&self) -> bool {
        let source =
            !self.source.is_images() && !matches!(self.source, Source::A9a | Source::Synthetic(_));
        let hidden = ["model.hidden", "model.activation", "algorithm.equalize"];
        let linear = match self.model {
            Auto::Given(kind) => is_linear(kind),
            Auto::Auto => !self.given.iter().any(|key| hidden.contains(&key.as_str())),
        };
        // What is left out of a range is told later.
        source
            && self.regression().is_ok()
            && linear
            && self.preset == Preset::Auto
            && matches!(self.noise_target, NoiseTarget::Epsilon(_))
            && matches!(self.basis, Auto::Auto | Auto::Given(None))
            && self.standardize != Auto::Given(true)
            && matches!(self.estimator, Auto::Auto | Auto::Given(EstimatorKind::Gd))
            && self.accountant != AccountantName::Paper
            && self.clip_scope != Auto::Given(ClipScope::Estimate)
            && !matches!(self.init, Auto::Given(Init::File(_)))
    }

    /// `s` of the module, where there is a target.
    pub(super) fn signal(&self, shape: &Shape) -> Option<f64> {
        let NoiseTarget::Epsilon(epsilon) = self.noise_target else {
            return None;
        };
        let records = &shape.records;
        let ranges = private_ranges(self.schema.as_deref());
        let mu = left_for_rounds(epsilon, self.delta, &[ranges, shape.whiten]);
        let signal = signal(mu, self.adjacency, self.equal_weights, records)?;
        // Noise hides all records of a person.
        Some(signal / f64::from(self.records_per_person))
    }

    /// The rule, where it applies: full gradients of a linear model on records of length one.
    pub(super) fn logit_rule(&self, shape: &Shape) -> Option<LinearRule> {
        let applies = self.preset == Preset::Auto
            && is_logit(shape.model)
            && shape.feature_map != FeatureKind::None
            && !self.of_scattering(shape)
            && matches!(self.estimator, Auto::Auto | Auto::Given(EstimatorKind::Gd));
        let signal = self.signal(shape).filter(|_| applies)?;
        let clip = match self.clip {
            Auto::Given(Some(clip)) => clip,
            _ if shape.model == ModelKind::Logistic => CLIP,
            _ => CLIP * std::f64::consts::SQRT_2,
        };
        let way = NOISE * signal / clip;
        let rounds = match (self.rounds, self.step_size) {
            (Auto::Given(Theory::Given(rounds)), _) => f64::from(rounds),
            (_, Auto::Given(Theory::Given(step))) => (way / step).round(),
            _ => (way / STEPS.0).floor(),
        };
        let rounds = match self.rounds {
            Auto::Auto => rounds.clamp(1.0, MOST_ROUNDS),
            Auto::Given(_) => rounds,
        };
        let rounds = match self.values {
            // One value a round is the least.
            Auto::Given(values) if self.rounds == Auto::Auto => rounds.min(values as f64),
            _ => rounds,
        };
        Some(LinearRule {
            clip,
            rounds: rounds as u32,
            step: (way / rounds).min(longest_step(shape.model, shape.dimension, shape.whiten)),
        })
    }

    /// Whether a linear model travels whole, unless somebody says how much may.
    pub(super) fn sends_whole(&self, shape: &Shape) -> bool {
        let rule = self.logit_rule(shape);
        let whole = |rule| self.linear_message(&rule, shape.dimension) == shape.dimension;
        (self.k, self.fraction) == (Auto::Auto, Auto::Auto) && rule.is_some_and(whole)
    }

    /// How many of a linear model's parameters travel in a message.
    pub(super) fn linear_message(&self, rule: &LinearRule, dimension: usize) -> usize {
        let most = match self.values {
            Auto::Given(values) => values / rule.rounds.max(1) as usize,
            Auto::Auto => WHOLE,
        };
        most.clamp(1, dimension)
    }
}

/// The longest step for so many parameters.
///
/// The second moments of `D` whitened numbers of length one are about `1/D` in every direction, and the
/// loss has a curvature of at most 1/4 (softmax of `K` classes: about `1/K` at the start), so gradient
/// descent overshoots beyond `8 D`, or `2 D K`: with tables of some ten thousand records a client and
/// more, whose way is so long that 200 rounds would take longer steps.
fn longest_step(model: ModelKind, dimension: usize, whiten: Option<f64>) -> f64 {
    match (whiten, model) {
        (None, _) => STEPS.1,
        (Some(_), ModelKind::Logistic) => 8.0 * dimension as f64,
        (Some(_), _) => 2.0 * dimension as f64,
    }
}

/// Whether the noise that counts is that of a logit.
fn is_logit(model: ModelKind) -> bool {
    matches!(model, ModelKind::Logistic | ModelKind::Softmax)
}

/// Whether what the model says of a record has the noise of one coordinate times the record's
/// length.
pub(super) fn is_linear(model: ModelKind) -> bool {
    is_logit(model) || model == ModelKind::Linear
}

/// The share of the budget by which ranges are estimated that nobody knows.
const RANGES: f64 = 0.1;

/// That share, where a schema has such columns.
pub fn private_ranges(schema: Option<&TableSchema>) -> Option<f64> {
    let private = schema.is_some_and(|schema| !schema.private_numbers().is_empty());
    private.then_some(RANGES)
}

/// `mu` of what is left for rounds when what is released before them has got its shares of `mu^2`.
pub(super) fn left_for_rounds(epsilon: f64, delta: f64, shares: &[Option<f64>]) -> f64 {
    let before: f64 = shares.iter().flatten().sum();
    largest_mu(epsilon, delta) * (1.0 - before).max(0.0).sqrt()
}

/// `s` of the module: how far all records together can move a logit, in units of the noise of one
/// release. With unequal clients `1/(m sqrt(n))` is the root of `sum_i (w_i/m_i)^2`.
fn signal(mu: f64, adjacency: Adjacency, equal_weights: bool, records: &[usize]) -> Option<f64> {
    let all: usize = records.iter().sum();
    let squares = records.iter().map(|&m| {
        let weight = match equal_weights {
            true => 1.0 / records.len() as f64,
            false => m as f64 / all as f64,
        };
        (weight / m as f64).powi(2)
    });
    let distance = match adjacency {
        Adjacency::ReplaceOne => 2.0,
        Adjacency::ZeroOut => 1.0,
    };
    let signal = mu / distance / squares.sum::<f64>().sqrt();
    Some(signal).filter(|signal| signal.is_finite())
}

impl Resolved {
    /// Whether this is a linear model on records of length one, by full gradients and with a
    /// target: what the rule is about.
    pub fn is_linear_on_unit_records(&self) -> bool {
        is_linear(self.model)
            && self.feature_map != FeatureKind::None
            && self.estimator == EstimatorKind::Gd
            && matches!(self.noise_target, NoiseTarget::Epsilon(_))
    }

    /// What the rule chose, and why, in one sentence each; nothing where it chose nothing.
    pub fn choices(&self, records: &[usize], dimension: usize) -> Vec<String> {
        let NoiseTarget::Epsilon(epsilon) = self.noise_target else {
            return Vec::new();
        };
        if self.preset != Preset::Auto || !self.is_linear_on_unit_records() {
            return Vec::new();
        }
        let mut said = vec![
            format!(
                "records: every one gets length one by itself (data.features = \"{}\"), so that one clip fits \
                 all without a look at any",
                self.feature_map
            ),
            format!(
                "model: {} regression, because the noise in what a linear model says does not grow with \
                 its {}",
                self.model.word(),
                counted(dimension, "parameter")
            ),
        ];
        if let Some(share) = private_ranges(self.schema.as_deref()) {
            said.push(format!(
                "ranges: {:.0}% of the budget buys two releases, by which the ranges of columns are estimated \
                 that the schema calls private",
                100.0 * share
            ));
        }
        if let Some(share) = self.whiten {
            said.push(format!(
                "whitening: {:.0}% of the budget buys one release of second moments, by which all clients give \
                 every direction of the records about the same weight",
                100.0 * share
            ));
        }
        let ranges = private_ranges(self.schema.as_deref());
        let mu = left_for_rounds(epsilon, self.delta, &[ranges, self.whiten]);
        let signal = signal(mu, self.adjacency, self.equal_weights, records)
            .map(|signal| signal / f64::from(self.records_per_person));
        let travelled = self.step_size * f64::from(self.rounds);
        let (noise, longest, of_what) = match self.model {
            ModelKind::Linear => (
                regression::NOISE,
                Some(regression::longest_step(self.whiten)),
                "prediction, of a target in [-1, 1],",
            ),
            _ => (
                NOISE,
                Some(longest_step(self.model, dimension, self.whiten)),
                "logit",
            ),
        };
        if let Some(signal) = signal
            && travelled <= noise * signal / self.whole_clip(dimension) * 1.001
        {
            let ends = match longest {
                Some(longest) if self.step_size >= longest => {
                    format!("as many as there may be, of the longest step {longest}")
                }
                _ => format!(
                    "of step {}, which end where the noise in a {of_what} is {noise}",
                    readable((self.step_size * 1e3).round() / 1e3)
                ),
            };
            said.push(format!(
                "rounds: {}, {ends}: all records together can move a {} {} times as far as the noise of \
                 one release does",
                self.rounds,
                of_what.split([' ', ',']).next().unwrap_or(of_what),
                readable((signal * 10.0).round() / 10.0)
            ));
        }
        said.push(match self.compressor {
            CompressorKind::RandK { k } if k < dimension => format!(
                "messages: {k} of {dimension} coordinates, the same at all clients, because a whole gradient is long"
            ),
            _ => "messages: whole gradients, because they are short".to_string(),
        });
        said
    }

    /// The clip of a whole gradient.
    fn whole_clip(&self, dimension: usize) -> f64 {
        match (self.clip_scope, self.compressor) {
            (ClipScope::Selected, CompressorKind::RandK { k }) => {
                self.clip * (dimension as f64 / k as f64).sqrt()
            }
            _ => self.clip,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Document;

    fn config(settings: &[&str]) -> Config {
        let mut document = Document::default();
        for assignment in [&["data.source=csv:t.csv"], settings].concat() {
            document.set(assignment).unwrap();
        }
        Config::read(&document).unwrap()
    }

    fn shape(model: ModelKind, dimension: usize, records: &[usize]) -> Shape {
        Shape {
            dimension,
            records: records.to_vec(),
            model,
            smoothness: None,
            image: false,
            feature_map: FeatureKind::Roots,
            whiten: None,
            basis: None,
            whole: dimension,
        }
    }

    /// The noise that all steps leave in a logit, from the calibrated sigmas, is what the rule
    /// promises: for equal and unequal clients, both adjacencies, any dimension and number of
    /// classes.
    #[test]
    fn the_noise_in_a_logit_is_what_the_rule_ends_with() {
        for adjacency in ["replace-one", "zero-out"] {
            for (model, dimension, records) in [
                (ModelKind::Logistic, 21, vec![300; 10]),
                (ModelKind::Softmax, 800, vec![40, 80, 300]),
                (ModelKind::Softmax, 60, vec![900]),
            ] {
                let person = if dimension == 60 { 3 } else { 1 };
                let config = config(&[
                    &format!("privacy.adjacency={adjacency}"),
                    &format!("privacy.records_per_person={person}"),
                ]);
                let shape = shape(model, dimension, &records);
                let (run, warnings) = config.resolve(&shape).unwrap();
                assert!(warnings.is_empty(), "{warnings:?}");
                let specification = run.specification();
                let all: usize = records.iter().sum();
                let variance: f64 = records
                    .iter()
                    .map(|&m| {
                        let sigma = crate::accounting::noise(&specification, dimension, m).unwrap();
                        (sigma * m as f64 / all as f64).powi(2)
                    })
                    .sum();
                let noise = run.step_size * (f64::from(run.rounds) * variance).sqrt();
                assert!((noise - NOISE).abs() < 1e-3 * NOISE, "{model:?}: {noise}");
            }
        }
    }

    #[test]
    fn steps_rounds_and_messages_keep_within_their_bounds() {
        let large = shape(ModelKind::Softmax, 9000, &[1_000_000; 100]);
        let (run, _) = config(&["privacy.epsilon=100"]).resolve(&large).unwrap();
        assert_eq!(
            (f64::from(run.rounds), run.step_size),
            (MOST_ROUNDS, STEPS.1)
        );
        assert_eq!(run.compressor, CompressorKind::RandK { k: WHOLE });
        assert!(run.shared_coordinates && run.clip_scope == ClipScope::Selected);
        let clip = CLIP * 2f64.sqrt() * (WHOLE as f64 / 9000.0).sqrt();
        assert!((run.clip - clip).abs() < 1e-12);
        let small = shape(ModelKind::Logistic, 5, &[5; 3]);
        let (run, _) = config(&["privacy.epsilon=0.1"]).resolve(&small).unwrap();
        assert_eq!((run.rounds, run.compressor), (1, CompressorKind::Identity));
        assert!(run.step_size < STEPS.0);
        // Whoever limits the values gets no more of them.
        let (run, _) = config(&["algorithm.values=40"]).resolve(&large).unwrap();
        let CompressorKind::RandK { k } = run.compressor else {
            panic!("{:?}", run.compressor)
        };
        assert!(k * run.rounds as usize <= 40, "{k} x {}", run.rounds);
    }

    #[test]
    fn what_is_given_holds_and_what_is_chosen_is_said() {
        let table = shape(ModelKind::Logistic, 21, &[300; 10]);
        let (run, _) = config(&[]).resolve(&table).unwrap();
        let said = run.choices(&table.records, 21);
        assert_eq!(said.len(), 4, "{said:?}");
        assert_eq!(run.algorithm(), "auto");
        let (given, _) = config(&["algorithm.rounds=7"]).resolve(&table).unwrap();
        let ways = [&run, &given].map(|run| run.step_size * f64::from(run.rounds));
        assert_eq!(given.rounds, 7);
        assert!((ways[0] - ways[1]).abs() < 1e-9 || given.step_size == STEPS.1);
        for other in [
            &["algorithm.preset=soteriafl-gd"][..],
            &["privacy.epsilon=none"],
            &["privacy.sigma=1"],
        ] {
            let (run, _) = config(other).resolve(&table).unwrap();
            assert!(run.choices(&table.records, 21).is_empty(), "{other:?}");
        }
    }

    /// However many records there are, whitened ones are not overshot; the run says that it has stopped there.
    #[test]
    fn steps_of_large_tables_stay_below_what_overshoots() {
        let whitened = |model, dimension, records| Shape {
            whiten: Some(0.15),
            ..shape(model, dimension, &[records; 10])
        };
        for (model, dimension, longest) in [
            (ModelKind::Logistic, 19, 8.0 * 19.0),
            (ModelKind::Softmax, 95, 2.0 * 95.0),
        ] {
            let small = whitened(model, dimension, 300);
            let (run, _) = config(&[]).resolve(&small).unwrap();
            assert!(run.step_size < longest / 2.0, "{}", run.step_size);
            let large = whitened(model, dimension, 1_000_000);
            let (run, _) = config(&[]).resolve(&large).unwrap();
            assert_eq!((run.rounds, run.step_size), (MOST_ROUNDS as u32, longest));
            let said = run.choices(&large.records, dimension).join("\n");
            let expected = format!("as many as there may be, of the longest step {longest}");
            assert!(said.contains(&expected), "{said}");
        }
    }

    /// The problems of the paper, images and networks keep their choices.
    #[test]
    fn only_ordinary_tables_are_mapped() {
        let map = |settings: &[&str]| {
            config(settings)
                .features_for(ModelKind::Softmax, 30)
                .unwrap()
        };
        assert_eq!(map(&[]), FeatureKind::Roots);
        for other in [
            "data.source=a9a",
            "data.source=mnist",
            "data.source=synthetic:50x4",
            "model.kind=mlp",
            "model.hidden=[5]",
            "algorithm.preset=soteriafl-gd",
            "algorithm.estimator=sgd",
            "privacy.epsilon=none",
            "data.features=none",
        ] {
            assert_eq!(map(&[other]), FeatureKind::None, "{other}");
        }
        let wide = config(&[]).features_for(ModelKind::Softmax, WIDEST_ROOTS + 1);
        assert_eq!(wide.unwrap(), FeatureKind::Unit);
    }
}
