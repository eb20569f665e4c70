//! A resolved configuration as TOML, to be read back by `--config`.

use std::fmt::Write;

use soteriafl_data::{Partition, Source};

use super::resolve::{Resolved, StepSizeOrigin};
use super::{
    EstimatorKind, FeatureList, Init, ModelKind, NoiseTarget, RegularizerKind, ScaleChoice,
    ShiftChoice, Task,
};
use crate::schema_text;

impl Resolved {
    /// The file `config.toml` of a simulated run. Reading it back gives the same run.
    pub fn to_toml(&self) -> String {
        let head = match self.source {
            Source::Memory => {
                "# Everything resolved, for records that a program gave: with the same records, \
                 `soteriafl.simulate(X, y, config=PATH)` repeats the run.\n"
            }
            _ => {
                "# Everything resolved: `soteria train --config` with this file repeats the run.\n"
            }
        };
        format!("{head}{}", self.sections())
    }

    /// The file `config.toml` of a deployment. `soteria serve` starts the same one with it.
    pub fn to_deployed_toml(&self, test_seed: Option<u64>) -> String {
        let mut head = String::from("# Everything resolved, as a server coordinated it.\n");
        head += &match test_seed {
            None => "# `soteria serve --config` with this file starts the same deployment: a new run, whose clients draw new secrets.\n\
                     # `run.seed` settles what is public: the start of the model, shared coordinates, and which records a part SOURCE:i/n has.\n"
                .to_string(),
            Some(seed) => format!(
                "# `soteria serve --test-seed {seed} --config` with this file repeats the run if the clients join with the same records.\n"
            ),
        };
        head += match (&self.source, self.records, test_seed) {
            (Source::Clients, ..) => {
                "# The records are the clients' own: `soteria train` has none for it, and says so.\n"
            }
            (_, Some(_), _) => {
                "# The records were the clients' own, and `data.source` was not read: `soteria train` with this file is another run, on it.\n"
            }
            (_, None, None) => {
                "# The records were the clients' own: `soteria train` with this file is a simulation, on `data.source` as it is here.\n"
            }
            (_, None, Some(_)) => {
                "# With the parts of `data.source` that a partition deals, `soteria train --config` gives the same model.\n"
            }
        };
        format!("{head}{}", self.sections())
    }

    /// All keys with their values.
    pub fn sections(&self) -> String {
        let mut toml = String::new();
        let mut section = |title: &str, lines: Vec<(&str, String)>| {
            let _ = writeln!(toml, "\n[{title}]");
            for (key, value) in lines {
                let _ = writeln!(toml, "{key} = {value}");
            }
        };
        section("data", self.data_lines());
        if let Some(schema) = &self.schema {
            section("schema", schema_text::lines(schema));
        }
        section("model", self.model_lines());
        section("algorithm", self.algorithm_lines());
        section("privacy", self.privacy_lines());
        let mut deployment = vec![
            (
                "quorum",
                self.quorum.map_or(text("all"), |quorum| quorum.to_string()),
            ),
            ("deadline", self.deadline.map_or(text("none"), number)),
        ];
        match &self.features {
            Some(FeatureList::Count(count)) => deployment.push(("features", count.to_string())),
            Some(FeatureList::Names(names)) => deployment.push(("features", list(names))),
            None => {}
        }
        if let Some(labels) = &self.labels {
            deployment.push(("labels", list(labels)));
        }
        if let Some(records) = self.records {
            deployment.push(("records", records.to_string()));
        }
        if let Some(most) = self.most_records {
            deployment.push(("most_records", most.to_string()));
        }
        section("deployment", deployment);
        section(
            "run",
            vec![
                ("seed", self.seed.to_string()),
                ("eval_every", self.eval_every.to_string()),
            ],
        );
        toml
    }

    fn data_lines(&self) -> Vec<(&'static str, String)> {
        let mut lines = vec![("source", text(&self.source.to_string()))];
        if let Some(test) = &self.test {
            lines.push(("test", text(&test.to_string())));
        }
        lines.push((
            "rows",
            self.rows.map_or(text("all"), |rows| rows.to_string()),
        ));
        if let Some(share) = self.holdout {
            lines.push(("holdout", number(share)));
        }
        if let Some(range) = self.target_range {
            let range = format!("[{}, {}]", number(range.low()), number(range.high()));
            lines.push(("target_range", range));
        }
        lines.push(("clients", self.clients.to_string()));
        match self.partition {
            _ if self.natural.is_some() => {
                let natural = self
                    .natural
                    .iter()
                    .map(|natural| text(&natural.to_string()));
                lines.extend(natural.map(|natural| ("partition", natural)));
            }
            Partition::Dirichlet { alpha } => {
                lines.extend([("partition", text("dirichlet")), ("alpha", number(alpha))])
            }
            Partition::Iid => lines.push(("partition", text("iid"))),
            Partition::Given => lines.push(("partition", text("given"))),
            _ => lines.push(("partition", text("sorted"))),
        }
        match self.scale {
            ScaleChoice::None => lines.push(("scale", text("none"))),
            ScaleChoice::Spectral => lines.push(("scale", text("spectral"))),
            ScaleChoice::Standard => lines.push(("scale", text("standard"))),
            ScaleChoice::PerFeature => lines.push(("scale", text("per-feature"))),
            ScaleChoice::Constant { center, factor } => {
                lines.extend([
                    ("scale", text("constant")),
                    ("center", number(center)),
                    ("factor", number(factor)),
                ]);
            }
        }
        lines.push(("features", text(&self.feature_map.to_string())));
        lines.push(("whiten", self.whiten.map_or(text("none"), number)));
        lines.push((
            "basis",
            text(&self.basis.map_or("none".to_string(), |frequencies| {
                format!("cosine:{frequencies}")
            })),
        ));
        // With noise it would end the claim: there it is written only if it was asked for.
        if self.standardize || self.noise_target == NoiseTarget::None {
            lines.push(("standardize", self.standardize.to_string()));
        }
        lines.push(("weighting", either(self.equal_weights, "equal", "records")));
        lines
    }

    fn model_lines(&self) -> Vec<(&'static str, String)> {
        let mut lines = vec![("kind", text(self.model.word()))];
        if self.model == ModelKind::Mlp {
            lines.push(("hidden", format!("{:?}", self.hidden)));
            lines.push(("activation", text(self.activation.word())));
        }
        if self.model.is_linear() {
            lines.push(("intercept", self.intercept.to_string()));
        }
        if self.model == ModelKind::Elsewhere {
            lines.extend(self.elsewhere_lines());
        }
        if self.target_range.is_some() {
            lines.push(("task", text(Task::Regression.word())));
            lines.push(("loss", text(self.loss.word())));
            lines.extend(self.huber.map(|bound| ("huber", number(bound))));
        }
        if let Some(weights) = &self.class_weights {
            let weights: Vec<String> = weights.iter().copied().map(number).collect();
            lines.push(("class_weights", format!("[{}]", weights.join(", "))));
        }
        lines.push(("regularizer", text(self.regularizer.word())));
        if self.regularizer != RegularizerKind::None {
            lines.push(("lambda", number(self.lambda)));
            lines.push((
                "regularizer_at",
                either(self.regularizer_at_client, "client", "server"),
            ));
        }
        lines.push((
            "init",
            text(&match &self.init {
                Init::Zeros => "zeros".to_string(),
                Init::Normal(deviation) => format!("normal:{deviation}"),
                Init::Glorot => "glorot".to_string(),
                Init::Given => "given".to_string(),
                Init::File(path) => format!("file:{path}"),
            }),
        ));
        lines
    }

    fn algorithm_lines(&self) -> Vec<(&'static str, String)> {
        let mut lines = vec![
            ("preset", text(self.preset.word())),
            ("estimator", text(self.estimator.word())),
        ];
        match self.batch {
            Some(batch) => lines.push(("batch", number(batch))),
            None if self.estimator != EstimatorKind::Gd => lines.push(("batch", text("all"))),
            None => {}
        }
        lines.extend(self.recursion_lines());
        if self.estimator == EstimatorKind::Sag {
            lines.push(("memory", number(self.memory)));
        }
        if self.estimator == EstimatorKind::Svrg {
            lines.push(("snapshot_probability", number(self.snapshot_probability)));
        }
        lines.extend(self.compressor_lines());
        if let Some(kind) = self.downlink {
            lines.push(("downlink", text(&super::downlink::word(kind))));
        }
        lines.extend(self.gossip_lines());
        lines.push((
            "shift",
            match self.shift {
                ShiftChoice::Off => text("off"),
                ShiftChoice::Step(step) => number(step),
            },
        ));
        // A step size from the records stays a rule, so that reading it back keeps the claim
        // honest.
        lines.push((
            "step_size",
            if self.step_size_origin == StepSizeOrigin::Theory {
                text("theory")
            } else {
                number(self.step_size)
            },
        ));
        if self.step_size_origin == StepSizeOrigin::Records {
            lines.push(("step_size_from_data", true.to_string()));
        }
        lines.push(("schedule", text(self.schedule.word())));
        lines.push(("momentum", number(self.momentum)));
        if let Some(cap) = self.step_cap {
            lines.push(("step_cap", number(cap)));
        }
        lines.push(("smoothing", self.smoothing.to_string()));
        lines.push(("equalize", number(self.equalize)));
        lines.push(("rounds", self.rounds.to_string()));
        lines.push(("output", text(self.output.word())));
        lines.push(("participation", number(self.participation)));
        lines
    }

    fn privacy_lines(&self) -> Vec<(&'static str, String)> {
        let mut lines = vec![match self.noise_target {
            NoiseTarget::Epsilon(epsilon) => ("epsilon", number(epsilon)),
            NoiseTarget::Sigma(sigma) => ("sigma", number(sigma)),
            NoiseTarget::None => ("epsilon", text("none")),
        }];
        lines.extend([
            ("delta", number(self.delta)),
            ("adjacency", text(self.adjacency.word())),
        ]);
        if self.records_per_person > 1 {
            lines.push(("records_per_person", self.records_per_person.to_string()));
        }
        if self.clipped {
            lines.push(("clip", number(self.clip)));
            lines.push(("clip_scope", text(self.clip_scope.word())));
        } else {
            lines.push(("clip", text("none")));
        }
        lines.push((
            "sampling",
            either(self.with_replacement, "with-replacement", "poisson"),
        ));
        lines.extend(self.increment_lines());
        if self.estimator.has_two_terms() && self.clipped {
            lines.push((
                "difference_clip",
                self.difference_clip.map_or(text("none"), number),
            ));
        }
        if self.noise_target != NoiseTarget::None {
            lines.push(("accountant", text(self.accountant.word())));
        }
        lines.push(("amplification", either(self.amplification, "auto", "off")));
        if self.trusted_aggregation {
            lines.push(("trusted_aggregation", true.to_string()));
        }
        lines.push(("noise", text(self.noise.word())));
        lines
    }
}

fn list(values: &[String]) -> String {
    let values: Vec<String> = values.iter().map(|value| text(value)).collect();
    format!("[{}]", values.join(", "))
}

pub(super) fn text(value: &str) -> String {
    toml::Value::String(value.to_string()).to_string()
}

/// The shortest text that reads back as the same number, always recognisable as a float.
pub(super) fn number(value: f64) -> String {
    toml::Value::Float(value).to_string()
}

/// The word for a choice of two.
fn either(chosen: bool, yes: &str, no: &str) -> String {
    text(if chosen { yes } else { no })
}
