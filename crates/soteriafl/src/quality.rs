//! The quality of a model in words and in `summary.json`: one form for runs, deployments and
//! `evaluate`.

use serde_json::{Value, json};
use soteriafl_core::quality::{Classification, Quality};

/// Matrices of more classes than this are not written: they would be most of the file.
const LARGEST_MATRIX: usize = 100;

/// Adds what was found to an object: `balanced_accuracy`, `auc`, `log_loss`, `calibration_error`,
/// `confusion` (a row for each true class), `classes`, `calibration`, `roc`. `names` are those of
/// the classes, in their order. Numbers that JSON cannot hold become null.
pub fn describe(quality: &Quality, names: &[String], into: &mut Value) {
    match quality {
        Quality::Classes(found) => describe_classes(found, names, into),
    }
}

fn describe_classes(found: &Classification, names: &[String], into: &mut Value) {
    into["balanced_accuracy"] = json!(found.balanced_accuracy());
    into["auc"] = json!(found.auc());
    into["log_loss"] = json!(found.log_loss);
    into["calibration_error"] = json!(found.calibration_error());
    let classes = found.classes();
    if classes > LARGEST_MATRIX {
        into["confusion"] = Value::Null;
        return;
    }
    into["confusion"] = json!(found.confusion);
    let class = |class: usize| {
        json!({
            "name": names.get(class),
            "records": found.occurrences(class),
            "recall": found.recall(class),
            "precision": found.precision(class),
            "auc": found.class_auc[class],
        })
    };
    into["classes"] = (0..classes).map(class).collect();
    let bins = found.calibration.iter().map(|bin| {
        json!({
            "confidence": bin.confidence,
            "accuracy": bin.accuracy,
            "records": bin.records,
        })
    });
    into["calibration"] = bins.collect();
    if let Some(roc) = &found.roc {
        let (false_positive, true_positive): (Vec<f64>, Vec<f64>) = roc.iter().copied().unzip();
        into["roc"] = json!({
            "false_positive_rate": false_positive,
            "true_positive_rate": true_positive,
        });
    }
}

/// What was found beside the accuracy, in one line; empty where there is nothing.
pub fn text(quality: &Quality) -> String {
    let numbers = match quality {
        Quality::Classes(found) => [
            ("balanced accuracy", found.balanced_accuracy()),
            ("AUC", found.auc()),
            ("log loss", found.log_loss),
            ("calibration error", found.calibration_error()),
        ],
    };
    let said = numbers
        .into_iter()
        .filter_map(|(name, value)| value.map(|value| format!("{name} {value:.4}")));
    said.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_class_has_its_name_and_a_missing_one_has_no_recall() {
        let scores: Vec<f32> = [0.5f32, 0.3, 0.2, 0.1, 0.8, 0.1]
            .map(f32::ln)
            .into_iter()
            .collect();
        let found = Classification::new(&[0, 0], &[0, 1], Some(&scores), 3);
        let names = ["a", "b", "c"].map(str::to_string);
        let mut summary = json!({ "test_accuracy": 0.5 });
        let quality = Quality::Classes(found);
        describe(&quality, &names, &mut summary);
        assert_eq!(summary["test_accuracy"], 0.5);
        assert_eq!(
            summary["confusion"],
            json!([[1, 1, 0], [0, 0, 0], [0, 0, 0]])
        );
        assert_eq!(summary["classes"][2]["name"], "c");
        assert_eq!(summary["classes"][2]["recall"], Value::Null);
        assert_eq!(summary["auc"], Value::Null);
        assert_eq!(summary["balanced_accuracy"], 0.5);
        let line = text(&quality);
        assert!(
            line.starts_with("balanced accuracy 0.5000, log loss "),
            "{line}"
        );
    }

    #[test]
    fn a_matrix_of_very_many_classes_is_left_out() {
        let found = Classification::new(&[0], &[150], None, 200);
        let mut summary = json!({});
        describe(&Quality::Classes(found), &[], &mut summary);
        assert_eq!(summary["confusion"], Value::Null);
        assert_eq!(summary["balanced_accuracy"], 0.0);
    }
}
