//! What the summary of a deployment says instead of what the summary of a simulation does.
//!
//! A server sees messages, numbers of records and its own test set. It has no training loss, no
//! gradient and no clip fractions, and none of the secrets: its summary says what it knows, and
//! lists what was not measured.

use serde_json::{Value, json};

use crate::record_shape::RecordShape;

/// What the records of a deployment are called where a simulation names its source.
const OWN_RECORDS: &str = "clients' own records";

/// What only the clients' records could tell.
const AT_CLIENTS: [&str; 3] = ["loss", "grad_norm_sq", "utility"];

/// The test set that a server measures on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestSet {
    /// Its source, as it was configured.
    pub source: String,
    /// How many records it has.
    pub records: usize,
}

/// What is known of a run whose records are elsewhere.
pub struct Deployed<'a> {
    /// What was agreed about records.
    pub shape: &'a RecordShape,
    /// What the server measured on.
    pub test: Option<TestSet>,
    /// The mean loss over it at the end.
    pub test_loss: Option<f64>,
    /// The seed of all secrets in a test.
    pub test_seed: Option<u64>,
    /// Messages of each client that were taken.
    pub taken: &'a [u32],
    /// Whether all parameters of the model are numbers.
    pub finite: bool,
}

impl Deployed<'_> {
    /// Whether the model has left the range of numbers. What was not measured says nothing about
    /// it.
    pub fn diverged(&self) -> bool {
        !self.finite || self.test_loss.is_some_and(|loss| !loss.is_finite())
    }

    /// Replaces what is true of simulations only.
    pub(super) fn describe(&self, summary: &mut Value) {
        let shape = self.shape;
        summary["kind"] = json!("deployment");
        summary["dataset"] = json!(OWN_RECORDS);
        summary["data"] = json!({
            "features": shape.features,
            "feature_names": shape.names,
            "classes": shape.labels,
        });
        summary["test"] = match &self.test {
            Some(test) => json!({ "source": test.source, "records": test.records }),
            None => Value::Null,
        };
        summary["messages_taken"] = json!(self.taken);
        summary["seed"] = json!(self.test_seed);
        summary["secrets"] = json!(match self.test_seed {
            Some(_) => "the test seed",
            None => "each client's operating system",
        });
        // Among many sizes of clients some stand for others with a little less noise.
        summary["privacy"]["sigmas_are"] = json!("at most");
        if summary["privacy"]["noise"] == "float (simulated)" {
            summary["privacy"]["noise"] = json!("float");
        }
        let mut missing = AT_CLIENTS.to_vec();
        if self.test.is_none() {
            missing.extend(["test_loss", "test_accuracy"]);
        }
        summary["final"]["test_loss"] = json!(self.test_loss.filter(|loss| loss.is_finite()));
        summary["not_measured"] = json!(missing);
    }
}
