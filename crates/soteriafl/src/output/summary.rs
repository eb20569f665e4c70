//! What a run has come to, and the file `summary.json` that says it.

use serde_json::{Value, json};
use soteriafl_core::quality::Quality;
use soteriafl_core::simulate::{Clock, Metrics, Traffic};
use soteriafl_data::schema::Role;

use super::Deployed;
use crate::accounting::{self, Privacy};
use crate::config::resolve::Resolved;
use crate::config::{NoiseName, NoiseTarget, Output, gossip, private_ranges};
use crate::quality;
use crate::specification::Preliminary;

/// What a run has come to.
pub struct RunResult<'a> {
    /// What ran.
    pub resolved: &'a Resolved,
    /// Every client's number of records.
    pub records: &'a [usize],
    /// Parameters.
    pub dimension: usize,
    /// Noise and cost.
    pub privacy: &'a Privacy,
    /// Rounds done.
    pub rounds: u32,
    /// Metrics at the end.
    pub metrics: Metrics,
    /// Utility at the end.
    pub utility: f64,
    /// Traffic.
    pub traffic: Traffic,
    /// Time in rounds and metrics.
    pub clock: Clock,
    /// Time altogether.
    pub total_seconds: f64,
    /// Whether it was stopped before the end.
    pub interrupted: bool,
    /// What a server knows of a deployment; `None` for a simulation, which knows everything.
    pub deployed: Option<Deployed<'a>>,
    /// What always answering the most common class would reach on the test set.
    pub majority_accuracy: Option<f64>,
    /// What else was found about the model on the test set.
    pub quality: Option<Quality>,
    /// What the classes are called, in their order.
    pub class_names: &'a [String],
    /// The longest way of the signal over the length of the noise ([`advice`](crate::advice)).
    pub signal_to_noise: Option<f64>,
    /// What a reader must know before anything else, in sentences.
    pub warnings: Vec<String>,
}

impl RunResult<'_> {
    /// Whether the model has left the range of numbers.
    pub fn diverged(&self) -> bool {
        if let Some(deployed) = &self.deployed {
            return deployed.diverged();
        }
        let metrics = self.metrics;
        !(metrics.loss.is_finite() && metrics.grad_norm_sq.is_finite())
    }

    /// The column that says whose each record is: then the claim is about whom it names.
    fn person_column(&self) -> Option<&str> {
        let resolved = self.resolved;
        let own = resolved.schema.as_ref();
        let schema = match &self.deployed {
            Some(deployed) => deployed.shape.schema.as_ref(),
            // Of records that come as numbers nobody reads it.
            None => own.filter(|_| resolved.source.is_table()),
        };
        schema?.named_by(&Role::Person)
    }

    /// The file `summary.json`.
    pub fn summary(&self) -> Value {
        let resolved = self.resolved;
        let noise = match (resolved.noise_target, resolved.noise) {
            (NoiseTarget::None, _) => "none",
            (_, NoiseName::Float) => "float (simulated)",
            (_, NoiseName::Secure) => "secure",
        };
        let mut summary = json!({
            "version": env!("CARGO_PKG_VERSION"),
            "kind": "simulation",
            "algorithm": resolved.algorithm(),
            "dataset": resolved.source.to_string(),
            "clients": self.records.len(),
            "samples_per_client": self.records,
            "dimension": self.dimension,
            "rounds": self.rounds,
            "seed": resolved.seed,
            "secrets": "the seed",
            "privacy": {
                "epsilon": self.privacy.epsilon,
                "delta": resolved.delta,
                "adjacency": resolved.adjacency.word(),
                "sigma": self.privacy.sigmas.iter().copied().fold(0.0, f64::max),
                "sigmas": self.privacy.sigmas,
                "noise": noise,
                "accountant": self.privacy.accountant,
                "amplified": self.privacy.amplified,
                "epsilon_unamplified": self.privacy.epsilon_unamplified,
                "claim": self.privacy.claim,
                "signal_to_noise": self.signal_to_noise,
            },
            "final": {
                "loss": finite(self.metrics.loss),
                "grad_norm_sq": finite(self.metrics.grad_norm_sq),
                "utility": finite(self.utility),
                "test_accuracy": self.metrics.test_accuracy,
                "majority_accuracy": self.majority_accuracy,
            },
            "warnings": self.warnings,
            "choices": self.resolved.choices(self.records, self.dimension),
            "traffic": {
                "paper_bits": self.traffic.paper_bits,
                "uplink_bytes": self.traffic.uplink_bytes,
                "downlink_bytes": self.traffic.downlink_bytes,
            },
            "seconds": {
                "total": self.total_seconds,
                "training": self.clock.training.as_secs_f64(),
                "evaluation": self.clock.evaluation.as_secs_f64(),
            },
        });
        if let Some(found) = &self.quality {
            quality::describe(found, self.class_names, &mut summary["final"]);
        }
        if resolved.records_per_person > 1 {
            summary["privacy"]["records_per_person"] = json!(resolved.records_per_person);
        }
        if let Some(column) = self.person_column() {
            summary["privacy"]["person_column"] = json!(column);
        }
        let smallest = self.records.iter().copied().min().unwrap_or(1);
        let before = accounting::preliminaries(&resolved.specification(), smallest);
        let ranges = private_ranges(resolved.schema.as_deref());
        for release in before.unwrap_or_default() {
            let (key, share) = match release.kind {
                Preliminary::Magnitudes | Preliminary::Parts => ("ranges", ranges),
                Preliminary::Moments => ("moments", resolved.whiten),
            };
            summary["privacy"][key] = json!({ "share": share, "sigma": release.sigma });
        }
        if !self.privacy.broken_premises.is_empty() {
            summary["privacy"]["broken_premises"] = json!(self.privacy.broken_premises);
        }
        if let Some(epsilon) = self.privacy.epsilon_exact {
            summary["privacy"]["epsilon_exact"] = json!(epsilon);
        }
        if let Some(deployed) = &self.deployed {
            deployed.describe(&mut summary);
        }
        if let Some(gossip) = self.gossip() {
            summary["gossip"] = gossip;
        }
        if resolved.output == Output::Random {
            summary["output"] = json!({ "random_round_of": resolved.rounds });
        }
        if self.diverged() {
            summary["diverged"] = json!(true);
        }
        if self.interrupted {
            summary["interrupted"] = json!(true);
            summary["rounds_planned"] = json!(resolved.specification().last_round());
            // The claim stays that of the whole schedule: stopping by what one sees is not covered
            // by the smaller number, which is for information.
            if let Some(spending) = &self.privacy.odometer {
                summary["privacy"]["epsilon_spent"] = json!(spending.after(u64::from(self.rounds)));
            }
        }
        summary
    }

    /// Who talked to whom, where there was no server.
    fn gossip(&self) -> Option<Value> {
        let (gossip, graph) = (self.resolved.gossip.as_ref()?, self.resolved.graph()?);
        Some(json!({
            "topology": gossip::shown(&gossip.topology),
            "edges": graph.edges(),
            "spectral_gap": graph.spectral_gap(),
            "mixing": gossip.mixing,
            "consensus_error": self.metrics.consensus_error.and_then(finite),
        }))
    }
}

/// Numbers that JSON cannot hold become null.
fn finite(value: f64) -> Option<f64> {
    value.is_finite().then_some(value)
}
