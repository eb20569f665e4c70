//! Numbers to predict, rows held out, weights of classes: what is written, and what is refused.

use serde_json::Value;

use crate::program::{Place, tensors};

/// Ninety records of a number between 0 and 40 that two columns in [-1, 1] decide, nearly.
fn rents(place: &Place) {
    let row = |row: u32| {
        let (rooms, floor) = (
            f64::from(row % 7) / 3.0 - 1.0,
            f64::from(row * 5 % 11) / 5.0 - 1.0,
        );
        let noise = f64::from(row * 37 % 13) / 13.0 - 0.5;
        format!(
            "{rooms:.4},{floor:.4},{:.3}\n",
            20.0 + 12.0 * rooms - 5.0 * floor + noise
        )
    };
    let rows: String = (0..90).map(row).collect();
    place.write("rents.csv", format!("rooms,floor,rent\n{rows}"));
}

const RENTS: [&str; 4] = [
    "data.source=csv:rents.csv",
    "data.target_range=[0,40]",
    "data.holdout=0.2",
    "data.partition=iid",
];

fn with<'a>(settings: &[&'a str]) -> Vec<&'a str> {
    [&RENTS[..], settings].concat()
}

#[test]
fn a_number_is_predicted_in_its_unit_and_the_files_say_so() {
    let place = Place::new();
    rents(&place);
    let settings = with(&["privacy.epsilon=none", "algorithm.rounds=200"]);
    let ran = place.train("run", &settings).well();
    assert!(ran.stdout.contains("R2 0.9"), "{ran:?}");
    let summary = place.json("run/summary.json");
    let found = &summary["final"];
    assert_eq!(summary["samples_per_client"].as_array().unwrap().len(), 3);
    let held: u64 = (found["predicted_against_true"]["records"]
        .as_array()
        .unwrap()
        .iter())
    .flat_map(|row| row.as_array().unwrap())
    .map(|cell| cell.as_u64().unwrap())
    .sum();
    assert_eq!(held, 18, "a fifth of the rows");
    assert!(found["r2"].as_f64().unwrap() > 0.98, "{found}");
    assert!(found["rmse"].as_f64().unwrap() < 1.0 && found["mean_rmse"].as_f64().unwrap() > 5.0);
    assert_eq!(found["test_accuracy"], Value::Null);
    assert_eq!(found["outside_range"], 0);
    let report = place.text("run/report.html");
    assert!(report.contains("Predicted against true") && report.contains("R² on test records"));
    // Reading the configuration back gives the same bytes, and on one thread, too.
    let again = [
        "train",
        "--config",
        "run/config.toml",
        "--out",
        "again",
        "--threads",
        "1",
    ];
    place.run(&again).well();
    assert_eq!(
        place.read("run/model.safetensors"),
        place.read("again/model.safetensors")
    );
    assert_eq!(
        place.text("run/config.toml"),
        place.text("again/config.toml")
    );
    let (_, description) = tensors(&place.path("run/model.safetensors"));
    assert_eq!(description["target_range"], serde_json::json!([0.0, 40.0]));
    // The file alone is enough to evaluate: predictions are in the unit of the number.
    let model = "run/model.safetensors";
    let data = "csv:rents.csv";
    let evaluate = [
        "evaluate", "--model", model, "--data", data, "--json", "--out", "out.csv",
    ];
    let evaluated = place.run(&evaluate).well().object();
    assert!(evaluated["r2"].as_f64().unwrap() > 0.98, "{evaluated}");
    let predictions = place.text("out.csv");
    let cells: Vec<f64> = predictions
        .lines()
        .nth(1)
        .unwrap()
        .split(',')
        .map(|cell| cell.parse().unwrap())
        .collect();
    assert!((cells[1] - cells[2]).abs() < 3.0, "{cells:?}");
    // Rows without the number are given theirs, on the terminal, in a file and as JSON.
    place.write("new.csv", "rooms,floor\n1,0\n-1,0.5\n");
    let predict = ["predict", "--model", "run", "--data", "csv:new.csv"];
    let said = place.run(&predict).well().stdout;
    let numbers: Vec<f64> = said
        .lines()
        .skip(1)
        .map(|line| line.parse().unwrap())
        .collect();
    assert!(
        said.starts_with("prediction\n") && numbers.len() == 2,
        "{said}"
    );
    assert!(
        (numbers[0] - 32.0).abs() < 2.0 && (numbers[1] - 5.5).abs() < 2.0,
        "{said}"
    );
    place
        .run(&[&predict[..], &["--out", "numbers.csv"]].concat())
        .well();
    assert_eq!(place.text("numbers.csv"), said);
    let object = place
        .run(&[&predict[..], &["--json"]].concat())
        .well()
        .object();
    assert_eq!(
        (
            &object["rows"],
            object["predictions"].as_array().unwrap().len()
        ),
        (&2.into(), 2)
    );
    let card = place.text("run/MODEL_CARD.md");
    assert!(
        card.contains("- R²: 0.9") && card.contains("outside of the range: 0\n"),
        "{card}"
    );
}

/// What `auto` makes of records, a release of their moments included, stands in the file: whoever
/// has it alone predicts what the run predicted.
#[test]
fn records_of_numbers_are_whitened_and_the_file_says_how() {
    let place = Place::new();
    rents(&place);
    let settings = [
        "data.source=csv:rents.csv",
        "data.test=csv:rents.csv",
        "data.target_range=[0,40]",
        "data.partition=iid",
        "privacy.epsilon=100",
        "algorithm.rounds=auto",
    ];
    let ran = place.train("run", &settings).well();
    let said = ran.stderr.as_str();
    assert!(said.contains("whitening: 15% of the budget"), "{said}");
    assert!(said.contains("noise in a prediction"), "{said}");
    let summary = place.json("run/summary.json");
    assert_eq!(summary["privacy"]["claim"], "proved");
    let (tensors, description) = tensors(&place.path("run/model.safetensors"));
    assert_eq!(description["map"]["kind"], "roots");
    assert_eq!(description["map"]["lengths"], "kept");
    let names: Vec<&str> = tensors.iter().map(|tensor| tensor.0.as_str()).collect();
    assert_eq!(names, ["weight", "whitening"]);
    let model = "run/model.safetensors";
    let evaluate = [
        "evaluate",
        "--model",
        model,
        "--data",
        "csv:rents.csv",
        "--json",
    ];
    let evaluated = place.run(&evaluate).well().object();
    assert_eq!(evaluated["r2"], summary["final"]["r2"]);
    assert!(evaluated["r2"].as_f64().unwrap() > 0.8, "{evaluated}");
}

#[test]
fn every_estimator_and_compressor_takes_numbers_with_secure_noise() {
    let place = Place::new();
    rents(&place);
    for (out, settings) in [
        (
            "gd",
            vec!["algorithm.preset=soteriafl-gd", "model.loss=huber"],
        ),
        (
            "sgd",
            vec![
                "algorithm.preset=soteriafl-sgd",
                "algorithm.compressor=qsgd",
                "algorithm.batch=6",
            ],
        ),
        (
            "svrg",
            vec![
                "algorithm.preset=soteriafl-svrg",
                "algorithm.batch=6",
                "model.kind=mlp",
            ],
        ),
        (
            "saga",
            vec![
                "algorithm.preset=soteriafl-saga",
                "algorithm.batch=6",
                "algorithm.compressor=natural",
            ],
        ),
        ("auto", vec!["data.features=unit", "privacy.epsilon=8"]),
        (
            "selected",
            vec![
                "algorithm.compressor=rand-k",
                "algorithm.k=2",
                "algorithm.coordinates=shared",
                "privacy.clip_scope=selected",
            ],
        ),
    ] {
        for noise in ["privacy.noise=float", "privacy.noise=secure"] {
            let out = format!("{out}-{}", noise.rsplit('=').next().unwrap());
            let settings = with(&[&settings[..], &[noise]].concat());
            place.train(&out, &settings).well();
            let summary = place.json(&format!("{out}/summary.json"));
            assert_eq!(summary["privacy"]["claim"], "proved", "{out}");
            assert!(summary["final"]["rmse"].as_f64().is_some(), "{out}");
        }
    }
}

#[test]
fn what_does_not_go_together_is_refused() {
    let place = Place::new();
    rents(&place);
    for (settings, said) in [
        (vec!["data.source=csv:rents.csv"], "as a quantity has them"),
        (
            vec!["data.source=csv:rents.csv", "model.task=regression"],
            "needs the range",
        ),
        (with(&["model.kind=logistic"]), "answer with classes"),
        (with(&["model.class_weights=[1,2]"]), "are for classes"),
        (with(&["data.partition=dirichlet"]), "class by class"),
        (
            with(&["model.kind=mlp", "algorithm.step_size=theory"]),
            "needs a known smoothness",
        ),
        (with(&["data.test=csv:rents.csv"]), "are both given"),
        (
            vec!["data.target_range=[0,1]"],
            "expected numbers to predict",
        ),
        (vec!["data.holdout=0.2"], "has a test set of its own"),
        (vec!["model.kind=linear"], "predicts numbers"),
        (vec!["model.class_weights=[1,2,3]"], "has 3 weights"),
        (vec!["data.target_range=[1,0]"], "expects [LOW, HIGH]"),
        (vec!["data.holdout=1"], "expects a number in (0, 1)"),
    ] {
        let error = place.train("out", &settings).badly(2);
        assert!(error.contains(said), "{settings:?}: {error}");
    }
    assert!(!place.path("out").exists());
    place.write("bad.csv", "x,price\n1,2\n2,lots\n3,inf\n");
    let bad = ["data.source=csv:bad.csv", "data.target_range=[0,10]"];
    let ran = place.train("out", &bad);
    assert!(
        ran.code == Some(2) && ran.stderr.contains("a finite number"),
        "{ran:?}"
    );
    let theory = with(&[
        "algorithm.step_size=theory",
        "algorithm.preset=soteriafl-gd",
    ]);
    place.train("theory", &theory).well();
}

#[test]
fn targets_beyond_the_range_are_counted_and_a_useless_model_is_warned_of() {
    let place = Place::new();
    rents(&place);
    let narrow = with(&["data.target_range=[10,20]", "privacy.epsilon=none"]);
    let ran = place.train("narrow", &narrow).well();
    assert!(
        ran.stderr.contains("lie outside of `data.target_range`"),
        "{ran:?}"
    );
    assert!(
        place.json("narrow/summary.json")["final"]["outside_range"]
            .as_u64()
            .unwrap()
            > 5
    );
    let lost = with(&["privacy.epsilon=0.001", "algorithm.step_size=100"]);
    let ran = place.train("lost", &lost).well();
    assert!(ran.stderr.contains("always answering the mean"), "{ran:?}");
}

#[test]
fn weights_of_classes_move_the_balance() {
    let place = Place::new();
    let found = |out: &str, more: &[&str]| {
        let settings = [
            "data.source=synthetic:600x4",
            "privacy.epsilon=none",
            "algorithm.rounds=60",
        ];
        place.train(out, &[&settings[..], more].concat()).well();
        let summary = place.json(&format!("{out}/summary.json"));
        summary["final"]["classes"][1]["recall"].as_f64().unwrap()
    };
    let (plain, heavy) = (
        found("plain", &[]),
        found("heavy", &["model.class_weights=[1,50]"]),
    );
    assert!(heavy > plain && heavy > 0.97, "{plain} {heavy}");
    found("ones", &["model.class_weights=[1,1]"]);
    assert_eq!(
        place.read("plain/model.safetensors"),
        place.read("ones/model.safetensors")
    );
}
