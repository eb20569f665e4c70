//! Whether training works, and what is said where it does not: defaults of SVRG and SAGA, plain
//! training without noise, warnings before and after a run, labels that are no classes.

use serde_json::Value;

use crate::program::{Place, Ran};

/// `soteria train` with these settings and nothing else, metrics at the start and the end only.
fn train(place: &Place, out: &str, settings: &[&str]) -> Ran {
    let mut arguments = vec!["train", "--out", out, "--set", "run.eval_every=0"];
    for setting in settings {
        arguments.extend(["--set", setting]);
    }
    place.run(&arguments)
}

fn summary(place: &Place, out: &str, settings: &[&str]) -> Value {
    train(place, out, settings).well();
    place.json(&format!("{out}/summary.json"))
}

fn warnings(summary: &Value) -> Vec<&str> {
    let list = summary["warnings"].as_array().expect("a list of warnings");
    list.iter().map(|line| line.as_str().unwrap()).collect()
}

/// A table with a number of rows, of which every class has its own place: two columns of about 1
/// and one of about `size`.
fn table(rows: usize, classes: usize, size: f64) -> String {
    let mut table = String::from("width,height,weight,kind\n");
    for row in 0..rows {
        // No two rows are alike, and nothing repeats with the period of the classes.
        let jitter = |step: usize| ((row * step) % 101) as f64 / 101.0 - 0.5;
        let class = row % classes;
        let place = class as f64 - (classes - 1) as f64 / 2.0;
        table += &format!(
            "{:.4},{:.4},{:.4},k{class}\n",
            place + 0.6 * jitter(37),
            jitter(53),
            size * (2.0 + jitter(71) + 0.3 * place)
        );
    }
    table
}

/// With the defaults SVRG and SAGA end where GD ends, at the same epsilon: a snapshot that is
/// hardly ever renewed, or a table that small batches leave old, cannot lead the model away.
#[test]
fn svrg_and_saga_end_where_gd_ends() {
    let place = Place::new();
    let loss = |out: &str, preset: &str, more: &[&str]| {
        let preset = format!("algorithm.preset={preset}");
        let common = [
            &preset,
            "privacy.epsilon=10",
            "algorithm.step_size=1",
            "algorithm.rounds=150",
        ];
        summary(&place, out, &[&common[..], more].concat())["final"]["loss"]
            .as_f64()
            .unwrap()
    };
    for seed in ["run.seed=0", "run.seed=1", "run.seed=2"] {
        let gd = loss(&format!("{seed}-gd"), "soteriafl-gd", &[seed]);
        assert!(gd < 0.46, "{seed}: {gd}");
        let runs: [(&str, &[&str]); 4] = [
            ("soteriafl-svrg", &[seed]),
            ("ldp-svrg", &[seed]),
            ("soteriafl-saga", &[seed]),
            ("soteriafl-saga", &[seed, "algorithm.batch=54"]),
        ];
        for (number, (preset, more)) in runs.iter().enumerate() {
            let found = loss(&format!("{seed}-{number}"), preset, more);
            assert!(
                found < gd + 0.02,
                "{seed} {preset} {more:?}: {found}, gd {gd}"
            );
        }
    }
}

/// A model that noise has made, over columns that are out of scale: said before the run and after
/// it, on the terminal, in the summary and at the top of the report; the run itself is as it was.
#[test]
fn training_that_fails_says_so() {
    let place = Place::new();
    place.write("train.csv", table(120, 3, 900.0));
    place.write("test.csv", table(45, 3, 900.0));
    let settings = [
        "data.source=csv:train.csv",
        "data.test=csv:test.csv",
        "model.kind=mlp",
    ];
    let ran = train(&place, "run", &settings).well();
    let summary = place.json("run/summary.json");
    let said = warnings(&summary);
    for part in [
        "noise will swamp the signal: the 451 parameters",
        "1 of 3 feature columns is far out of scale: column 3 ",
        "outside of the claim",
        "the loss rose, from 1.",
    ] {
        assert!(
            said.iter().any(|line| line.contains(part)),
            "{part}: {said:?}"
        );
    }
    for line in &said {
        assert!(ran.stderr.contains(&format!("warning: {line}")), "{ran:?}");
    }
    // Before the table, not only below it.
    assert_eq!(summary["privacy"]["claim"], "proved");
    assert!(summary["privacy"]["signal_to_noise"].as_f64().unwrap() < 1.0);
    let majority = summary["final"]["majority_accuracy"].as_f64().unwrap();
    assert!((majority - 1.0 / 3.0).abs() < 1e-9, "{majority}");
    let report = place.text("run/report.html");
    let at = |part: &str| report.find(part).unwrap_or_else(|| panic!("no {part}"));
    assert!(at("Before you use this model") < at("Headline numbers"));
    assert!(at("Noise will swamp the signal") < at("Headline numbers"));
    // Quiet means quiet, and the summary still knows.
    let quiet = place.run(&[
        "train",
        "--config",
        "run/config.toml",
        "--out",
        "quiet",
        "-q",
    ]);
    assert!(!quiet.well().stderr.contains("warning"));
    assert_eq!(warnings(&place.json("quiet/summary.json")), said);
}

/// Always answering the most common class is what a model has to beat.
#[test]
fn a_model_that_knows_nothing_is_called_so() {
    let place = Place::new();
    // Three of four records are of one class, and features say nothing.
    let rows = |count: usize| {
        let row = |row: usize| {
            format!(
                "{},{}\n",
                (row * 37 % 11) as f64 / 11.0,
                u8::from(row.is_multiple_of(4))
            )
        };
        (0..count).map(row).collect::<String>()
    };
    place.write("train.csv", rows(4000));
    place.write("test.csv", rows(400));
    let settings = [
        "data.source=csv:train.csv",
        "data.test=csv:test.csv",
        "data.partition=iid",
        "privacy.epsilon=8",
    ];
    let summary = summary(&place, "run", &settings);
    assert_eq!(summary["final"]["majority_accuracy"], 0.75);
    let said = warnings(&summary);
    assert!(
        said.iter()
            .any(|line| line.contains("most common class: 0.7500")),
        "{said:?}"
    );
}

/// What works is not warned of: the default run, and a table whose columns are as they should be.
#[test]
fn training_that_works_is_left_alone() {
    let place = Place::new();
    let ran = train(&place, "a9a", &[]).well();
    assert!(!ran.stderr.contains("warning"), "{ran:?}");
    assert!(warnings(&place.json("a9a/summary.json")).is_empty());
    assert!(
        !place
            .text("a9a/report.html")
            .contains("Before you use this model")
    );
    place.write("train.csv", table(6000, 2, 0.5));
    place.write("test.csv", table(600, 2, 0.5));
    let settings = ["data.source=csv:train.csv", "data.test=csv:test.csv"];
    assert!(warnings(&summary(&place, "table", &settings)).is_empty());
}

/// Without noise the program reaches what plain training reaches, whatever the units of the columns
/// are, and the saved model reads them as they are.
#[test]
fn without_noise_training_is_plain() {
    let place = Place::new();
    for (classes, kind) in [(2, "logistic"), (3, "softmax"), (3, "mlp")] {
        place.write("train.csv", table(600, classes, 5000.0));
        place.write("test.csv", table(150, classes, 5000.0));
        let kind = format!("model.kind={kind}");
        let settings = [
            "data.source=csv:train.csv",
            "data.test=csv:test.csv",
            "privacy.epsilon=none",
            "run.eval_every=0",
            &kind,
        ];
        let ran = train(&place, &kind, &settings).well();
        assert!(
            ran.stderr.contains("columns standardised by the records"),
            "{ran:?}"
        );
        let summary = place.json(&format!("{kind}/summary.json"));
        assert_eq!(warnings(&summary), Vec::<&str>::new(), "{kind}");
        let accuracy = summary["final"]["test_accuracy"].as_f64().unwrap();
        assert!(accuracy > 0.98, "{kind}: {accuracy}");
        // With the run's configuration and without it: the model wants nothing but features.
        let (model, config) = (
            format!("{kind}/model.safetensors"),
            format!("{kind}/config.toml"),
        );
        let evaluate = [
            "evaluate",
            "--model",
            &model,
            "--data",
            "csv:test.csv",
            "--json",
        ];
        let with = [&evaluate[..], &["--config", &config]].concat();
        for arguments in [&evaluate[..], &with] {
            let found = place.run(arguments).well().object();
            assert_eq!(found["accuracy"].as_f64().unwrap(), accuracy, "{kind}");
        }
        let again = ["train", "--config", &config, "--out", "again", "--force"];
        place.run(&again).well();
        assert!(
            place.read("again/model.safetensors") == place.read(&model),
            "{kind}"
        );
    }
}

/// On a9a that is what logistic regression reaches; and what is given holds.
#[test]
fn without_noise_explicit_settings_win() {
    let place = Place::new();
    let none = "privacy.epsilon=none";
    let free = summary(&place, "free", &[none]);
    let accuracy = free["final"]["test_accuracy"].as_f64().unwrap();
    assert!(accuracy > 0.848, "{accuracy}");
    assert_eq!(free["privacy"]["claim"], "no noise");
    let has = |out: &str, line: &str| place.text(&format!("{out}/config.toml")).contains(line);
    assert!(has("free", "standardize = true") && has("free", "momentum = 0.9"));
    // A clip, a compressor or a step of one's own is what was asked for.
    train(
        &place,
        "clip",
        &[none, "privacy.clip=1", "algorithm.rounds=5"],
    )
    .well();
    assert!(has("clip", "standardize = false") && has("clip", "compressor = \"rand-k\""));
    let given = [
        none,
        "data.standardize=false",
        "algorithm.step_size=0.25",
        "algorithm.rounds=5",
    ];
    train(&place, "given", &given).well();
    assert!(has("given", "standardize = false") && has("given", "step_size = 0.25"));
    let given = [none, "algorithm.compressor=qsgd", "algorithm.rounds=5"];
    train(&place, "qsgd", &given).well();
    assert!(has("qsgd", "compressor = \"qsgd\"") && has("qsgd", "standardize = true"));
    // With noise, numbers from the records end the claim.
    let noisy = ["data.standardize=true", "algorithm.rounds=5"];
    let noisy = summary(&place, "noisy", &noisy);
    assert_eq!(noisy["privacy"]["claim"], "data-dependent scaling");
    assert!(noisy["privacy"]["epsilon"].is_null());
}

/// A price is not 331 classes.
#[test]
fn a_regression_target_is_refused() {
    let place = Place::new();
    let rows = |label: &dyn Fn(usize) -> String| {
        let row = |row: usize| format!("{},{},{}\n", row % 7, row % 5, label(row));
        let rows = (0..331).map(row).collect::<String>();
        format!("a,b,progress\n{rows}")
    };
    place.write("prices.csv", rows(&|row| (25 + row * 9 % 322).to_string()));
    let said = train(&place, "run", &["data.source=csv:prices.csv"]).badly(2);
    for part in [
        "prices.csv: expected class labels, found 322 different numbers in 331 rows",
        "hint: ",
        "?label=NAME",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(!place.path("run").exists());
    // Another column is a class, and so is text.
    let other = ["data.source=csv:prices.csv?label=b", "algorithm.rounds=1"];
    train(&place, "other", &other).well();
    place.write("text.csv", rows(&|row| format!("c{}", row % 30)));
    let text = ["data.source=csv:text.csv", "algorithm.rounds=1"];
    train(&place, "text", &text).well();
}
