//! The quality of a model in words and in `summary.json`: one form for runs, deployments and
//! `evaluate`.

use serde_json::{Value, json};
use soteriafl_core::data::Dataset;
use soteriafl_core::quality::{Classification, Quality, Regression};

/// Matrices of more classes than this are not written: they would be most of the file.
const LARGEST_MATRIX: usize = 100;

/// Adds what was found to an object: `balanced_accuracy`, `auc`, `log_loss`, `calibration_error`,
/// `confusion` (a row for each true class), `classes`, `calibration`, `roc`; of numbers `rmse`,
/// `mae`, `r2`, `mean_rmse`, `outside_range`, `predicted_against_true`. `names` are those of the
/// classes, in their order. Numbers that JSON cannot hold become null.
pub fn describe(quality: &Quality, names: &[String], into: &mut Value) {
    match quality {
        Quality::Classes(found) => describe_classes(found, names, into),
        Quality::Targets(found) => describe_targets(found, into),
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

fn describe_targets(found: &Regression, into: &mut Value) {
    into["rmse"] = json!(found.rmse);
    into["mae"] = json!(found.mae);
    into["r2"] = json!(found.r2);
    into["mean_rmse"] = json!(found.mean_rmse);
    into["outside_range"] = json!(found.outside);
    into["predicted_against_true"] = json!({
        "low": found.range.0,
        "high": found.range.1,
        "records": found.grid,
    });
}

/// A warning where predicted numbers are no better than the mean.
pub fn no_better_than_mean(quality: &Quality) -> Option<String> {
    let Quality::Targets(found) = quality else {
        return None;
    };
    let better = found.r2.is_none_or(|r2| r2 > 0.0);
    (!better).then(|| {
        format!(
            "the model does not beat always answering the mean of the test records: its RMSE is \
             {}, {} would be without a model",
            digits(found.rmse),
            digits(found.mean_rmse)
        )
    })
}

/// A warning where true numbers lie outside of their public range. `whose` names the records that
/// were looked at.
pub fn outside_range<'a>(
    parts: impl IntoIterator<Item = &'a Dataset>,
    whose: &str,
) -> Option<String> {
    let (mut outside, mut all) = (0, 0);
    for targets in parts.into_iter().filter_map(Dataset::targets) {
        outside += targets.cut_off();
        all += targets.values().len();
    }
    (outside > 0).then(|| {
        format!(
            "{outside} of {all} targets lie outside of `data.target_range`; the model is trained \
             on the nearest end of the range instead (this was found by looking at {whose}: it \
             changes nothing in the run)"
        )
    })
}

/// Four significant digits or so of a number in anybody's unit.
fn digits(value: f64) -> String {
    match value.abs() {
        size if (1000.0..1e9).contains(&size) => format!("{value:.0}"),
        size if (0.1..1000.0).contains(&size) => format!("{value:.3}"),
        _ => format!("{value:.3e}"),
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
        Quality::Targets(found) => {
            let r2 = found.r2.map_or(String::new(), |r2| format!("R2 {r2:.4}, "));
            return format!(
                "{r2}RMSE {} ({} by the mean), MAE {}",
                digits(found.rmse),
                digits(found.mean_rmse),
                digits(found.mae)
            );
        }
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
