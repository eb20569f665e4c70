//! What a configuration says about numbers to predict, and what `preset = "auto"` chooses for
//! linear models of them.
//!
//! Let `m` be the records of the smallest client, `n` the clients, `mu` the Gaussian mechanism's
//! parameter that has the run's epsilon and delta, and `s = m mu sqrt(n) / 2`. With whole clipped
//! gradients of `d` coordinates the noise in the model after any number of rounds has, in each
//! coordinate, the standard deviation `R G / s` with the path `R = sum_t eta_t`: what a prediction
//! for a record of squared length about `d` picks up is `R G sqrt(d) / s`. The rule makes that a
//! public constant, takes as few rounds as the step allows, and looks at no record. Unequal clients
//! and the rest of what decides about `s` count as they do for classes (`linear.rs`).
//!
//! Tables whose records can be whitened ([`Config::whiten_for`]) are: then a record has length
//! about 1. Others keep their features as they are, because without whitening the direction that
//! all records share makes long steps overshoot.

use soteriafl_core::objective::TargetLoss;
use soteriafl_data::{FeatureKind, TargetRange};

use super::document::ConfigError;
use super::resolve::Shape;
use super::{Auto, Config, LossName, ModelKind, Preset, Task, Theory};

/// The clip over the length of a record whose features are all 1.
const CLIP: f64 = 0.2;

/// The noise in a prediction at the end, of a target in [-1, 1].
pub(super) const NOISE: f64 = 0.15;

/// The longest step, of records of length 1, and of such records where they are not whitened: a
/// squared loss of curvature 1 overshoots from 2 on.
const LONGEST_STEP: (f64, f64) = (8.0, 1.5);

/// The most rounds.
const MOST_ROUNDS: f64 = 200.0;

impl Config {
    /// The public range of the numbers to predict; `None` where there are classes.
    ///
    /// # Errors
    /// When the keys contradict each other, or the range is missing.
    pub fn regression(&self) -> Result<Option<TargetRange>, ConfigError> {
        match (self.task, self.target_range) {
            (Auto::Auto | Auto::Given(Task::Classification), None) => Ok(None),
            (Auto::Given(Task::Classification), Some(_)) => Err(ConfigError::with_hint(
                "`data.target_range` is for numbers to predict, and `model.task` is \"classification\"",
                "leave one of them out",
            )),
            (Auto::Given(Task::Regression), None) => Err(ConfigError::with_hint(
                "`model.task = \"regression\"` needs the range of the numbers to predict",
                "give data.target_range = [LOW, HIGH], from what is known without looking at the records",
            )),
            (_, Some(_)) if self.class_weights.is_some() => Err(ConfigError::with_hint(
                "`model.class_weights` are for classes, and `data.target_range` is for numbers",
                "leave one of them out",
            )),
            (_, range) => Ok(range),
        }
    }

    /// The model family for numbers to predict.
    pub(super) fn regression_model(&self) -> Result<ModelKind, ConfigError> {
        match self.model.or(ModelKind::Linear) {
            kind @ (ModelKind::Linear | ModelKind::Mlp | ModelKind::Elsewhere) => Ok(kind),
            _ => Err(ConfigError::with_hint(
                "logistic and softmax models answer with classes, not with numbers",
                "use model.kind = \"linear\" or \"mlp\", or leave data.target_range out",
            )),
        }
    }

    /// Where the Huber loss becomes linear, in the unit of the target: a tenth of the range unless
    /// given.
    pub(super) fn huber_bound(&self) -> Result<Option<f64>, ConfigError> {
        let range = self.regression()?;
        let range = range.filter(|_| self.loss == LossName::Huber);
        Ok(range.map(|range| self.huber.or(0.2 * range.unit())))
    }

    /// What missing a target in this range costs.
    ///
    /// # Errors
    /// When the keys contradict each other.
    pub fn target_loss(&self, range: TargetRange) -> Result<TargetLoss, ConfigError> {
        let bound = self.huber_bound()?.map(|bound| bound / range.unit());
        match bound.map(|bound| bound as f32) {
            None => Ok(TargetLoss::Squared),
            Some(bound) if bound > 1e-6 && bound < 1e6 => Ok(TargetLoss::Huber(bound)),
            Some(_) => Err(ConfigError::conflict(format!(
                "`model.huber` is far from the size of errors, in the unit of `data.target_range` = [{}, {}]",
                range.low(),
                range.high()
            ))),
        }
    }

    /// Whether the rule of this module chooses.
    pub(super) fn number_rule(&self, shape: &Shape) -> bool {
        self.preset == Preset::Auto && shape.model == ModelKind::Linear && !self.plain(shape)
    }

    pub(super) fn number_clip(&self, shape: &Shape) -> f64 {
        CLIP * squared_length(shape).sqrt()
    }

    /// The path over records of length 1, and in how many rounds it is gone.
    fn number_path(&self, shape: &Shape) -> (f64, f64) {
        let smallest = shape.records.iter().copied().min().unwrap_or(1) as f64;
        let signal = self
            .signal(shape)
            .unwrap_or_else(|| smallest * (shape.records.len() as f64).sqrt() / 2.0);
        let clip = match (self.clip, shape.feature_map) {
            (Auto::Given(Some(clip)), map) if map != FeatureKind::None => clip,
            _ => CLIP,
        };
        let path = NOISE / clip * signal;
        let rounds = (path / 4.0).floor().clamp(1.0, MOST_ROUNDS);
        let rounds = match self.rounds {
            Auto::Given(Theory::Given(rounds)) => f64::from(rounds),
            _ => rounds,
        };
        (path, rounds)
    }

    pub(super) fn number_rounds(&self, shape: &Shape) -> u32 {
        self.number_path(shape).1 as u32
    }

    pub(super) fn number_step(&self, shape: &Shape) -> f64 {
        let (path, rounds) = self.number_path(shape);
        let longest = match shape.feature_map {
            FeatureKind::None => LONGEST_STEP.0,
            _ => longest_step(shape.whiten),
        };
        (path / rounds).min(longest) / squared_length(shape)
    }
}

/// The longest step on records of length one.
pub(super) fn longest_step(whiten: Option<f64>) -> f64 {
    match whiten {
        Some(_) => LONGEST_STEP.0,
        None => LONGEST_STEP.1,
    }
}

/// The squared length of a record: 1 after a map to unit length, else that of features of about 1.
fn squared_length(shape: &Shape) -> f64 {
    match shape.feature_map {
        FeatureKind::None => shape.dimension as f64,
        _ => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::super::Document;
    use super::*;

    fn config(text: &str) -> Config {
        Config::read(&Document::from_text(text, "run.toml").unwrap()).unwrap()
    }

    #[test]
    fn a_range_makes_a_regression() {
        let regression = config("[data]\ntarget_range = [0, 10]\n");
        assert_eq!(
            regression.regression().unwrap(),
            TargetRange::new(0.0, 10.0).ok()
        );
        assert_eq!(regression.model_for(0, 4).unwrap(), ModelKind::Linear);
        assert_eq!(config("").regression().unwrap(), None);
        for wrong in [
            "[model]\ntask = \"regression\"\n",
            "[data]\ntarget_range = [0, 1]\n[model]\ntask = \"classification\"\n",
            "[data]\ntarget_range = [0, 1]\n[model]\nclass_weights = [1, 2]\n",
        ] {
            assert!(
                config(wrong).regression().unwrap_err().hint().is_some(),
                "{wrong}"
            );
        }
        let softmax = config("[data]\ntarget_range = [0, 1]\n[model]\nkind = \"softmax\"\n");
        assert!(softmax.model_for(0, 4).is_err());
        assert!(
            config("[model]\nkind = \"linear\"\n")
                .model_for(2, 4)
                .is_err()
        );
    }

    /// Whitened records of length one where they can be, else features as they are; what all steps
    /// leave in a prediction is what the rule promises, or less where steps may be no longer.
    #[test]
    fn the_noise_in_a_prediction_is_what_the_rule_ends_with() {
        let text = "[data]\nsource = \"csv:t.csv\"\ntarget_range = [0, 10]\n";
        let map = |more: &str, features: usize| {
            let config = config(&format!("{text}{more}"));
            let map = config.features_for(ModelKind::Linear, features).unwrap();
            let columns = match map {
                FeatureKind::Roots => 2 * features + 1,
                FeatureKind::Unit => features + 1,
                _ => features,
            };
            (
                map,
                config.whiten_for(ModelKind::Linear, map, columns).unwrap(),
            )
        };
        assert_eq!(map("", 12), (FeatureKind::Roots, Some(0.15)));
        assert_eq!(map("", 200), (FeatureKind::Unit, Some(0.15)));
        assert_eq!(map("", 300), (FeatureKind::None, None));
        assert_eq!(map("whiten = \"none\"\n", 12), (FeatureKind::None, None));
        for (whiten, adjacency, records, exact) in [
            (Some(0.15), "replace-one", vec![300; 10], true),
            (Some(0.15), "zero-out", vec![40, 80, 300], true),
            (None, "replace-one", vec![3000; 10], false),
        ] {
            let config = config(&format!("{text}[privacy]\nadjacency = \"{adjacency}\"\n"));
            let shape = Shape {
                dimension: 25,
                records: records.clone(),
                model: ModelKind::Linear,
                smoothness: None,
                image: false,
                feature_map: FeatureKind::Roots,
                whiten,
                basis: None,
                whole: 25,
            };
            let (run, _) = config.resolve(&shape).unwrap();
            let specification = run.specification();
            let all: usize = records.iter().sum();
            let variance = records.iter().map(|&m| {
                let sigma = crate::accounting::noise(&specification, 25, m).unwrap();
                (sigma * m as f64 / all as f64).powi(2)
            });
            let variance: f64 = variance.sum();
            let noise = run.step_size * (f64::from(run.rounds) * variance).sqrt();
            match exact {
                true => assert!((noise - NOISE).abs() < 1e-3 * NOISE, "{noise}"),
                false => assert!(noise < NOISE && run.step_size == LONGEST_STEP.1, "{noise}"),
            }
            let said = run.choices(&records, 25).join("\n");
            assert!(said.contains("rounds: "), "{said}");
        }
    }

    #[test]
    fn huber_is_in_the_unit_of_the_target() {
        let range = TargetRange::new(0.0, 400.0).unwrap();
        let text = "[data]\ntarget_range = [0, 400]\n[model]\nloss = \"huber\"\n";
        let loss = config(text).target_loss(range).unwrap();
        assert_eq!(loss, TargetLoss::Huber(0.2));
        let loss = config(&format!("{text}huber = 50\n"))
            .target_loss(range)
            .unwrap();
        assert_eq!(loss, TargetLoss::Huber(0.25));
        let far = config(&format!("{text}huber = 1e12\n"));
        assert!(far.target_loss(range).is_err());
    }

    #[test]
    fn ranges_that_are_none_are_refused() {
        for wrong in ["[1, 0]", "[0]", "[0, 1, 2]", "[0, inf]", "3", "[\"a\", 2]"] {
            let text = format!("[data]\ntarget_range = {wrong}\n");
            let document = Document::from_text(&text, "run.toml").unwrap();
            assert!(Config::read(&document).is_err(), "{wrong}");
        }
    }
}
