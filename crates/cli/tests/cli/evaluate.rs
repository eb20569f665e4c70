//! `soteria evaluate`: the numbers of the run come back, and damaged models are refused.

use safetensors::tensor::TensorView;
use safetensors::{Dtype, serialize};
use serde_json::{Value, json};
use std::collections::HashMap;

use crate::program::{Place, Ran};

fn evaluate(place: &Place, run: &str, data: &str, more: &[&str]) -> Value {
    let model = format!("{run}/model.safetensors");
    let arguments = [
        &["evaluate", "--model", &model, "--data", data, "--json"],
        more,
    ]
    .concat();
    place.run(&arguments).well().object()
}

fn near(value: &Value, expected: &Value) {
    let (value, expected) = (value.as_f64().unwrap(), expected.as_f64().unwrap());
    assert!(
        (value - expected).abs() <= 2e-6 * expected.abs().max(1.0),
        "{value} is not {expected}"
    );
}

/// Test accuracy and, without a regularizer, the loss of a run are found again from its files
/// alone, under every scaling and for every kind of model.
#[test]
fn a_run_is_found_again() {
    let place = Place::new();
    let runs: [(&str, &str, &[&str]); 10] = [
        ("logistic", "synthetic:60x4", &[]),
        (
            "bare",
            "synthetic:60x4",
            &["model.intercept=false", "data.scale=standard"],
        ),
        ("spectral", "synthetic:60x4", &["data.scale=spectral"]),
        ("features", "synthetic:60x4", &["data.scale=per-feature"]),
        (
            "softmax",
            "synthetic:60x4x3",
            &["model.kind=softmax", "data.center=0.1", "data.factor=3"],
        ),
        (
            "mlp",
            "synthetic:60x4x3",
            &[
                "model.hidden=[6,5]",
                "model.activation=tanh",
                "data.scale=standard",
            ],
        ),
        // Weights read what comes out of a map of records.
        (
            "unit",
            "synthetic:60x4",
            &["data.features=unit", "data.center=0.1", "data.factor=3"],
        ),
        (
            "units",
            "synthetic:60x4x3",
            &["data.features=unit", "model.kind=softmax"],
        ),
        // The map by released second moments is in the model file.
        (
            "whitened",
            "synthetic:60x4",
            &["data.features=roots", "data.whiten=0.3"],
        ),
        // The file's first layer is composed with the basis, and reads features.
        (
            "basis",
            "synthetic:60x16x3",
            &[
                "data.basis=cosine:3",
                "algorithm.equalize=0.01",
                "data.scale=standard",
            ],
        ),
    ];
    for (name, source, settings) in runs {
        let chosen = format!("data.source={source}");
        let settings = [
            settings,
            &[
                &chosen,
                "model.regularizer=none",
                "run.seed=4",
                "privacy.epsilon=30",
            ],
        ]
        .concat();
        place.train(name, &settings).well();
        let summary = place.json(&format!("{name}/summary.json"));
        let config = format!("{name}/config.toml");
        let test = evaluate(&place, name, source, &["--config", &config]);
        assert_eq!(test["split"], "test", "{name}");
        assert_eq!(
            test["accuracy"], summary["final"]["test_accuracy"],
            "{name}"
        );
        let train = evaluate(&place, name, source, &["--config", &config, "--train"]);
        assert_eq!(
            (&train["split"], &train["rows"]),
            (&"train".into(), &60.into()),
            "{name}"
        );
        near(&train["loss"], &summary["final"]["loss"]);
    }
    // The model file names the map.
    let alone = evaluate(&place, "units", "synthetic:60x4x3", &["--seed", "4"]);
    assert_eq!(
        alone["accuracy"],
        place.json("units/summary.json")["final"]["test_accuracy"]
    );
    // Where nothing was scaled, the configuration is not needed, only the seed.
    let alone = evaluate(&place, "logistic", "synthetic:60x4", &["--seed", "4"]);
    assert_eq!(
        alone["accuracy"],
        place.json("logistic/summary.json")["final"]["test_accuracy"]
    );
}

/// A model knows which column each weight is for: a table with other columns, or the same in
/// another order, is refused, with and without the configuration. A table without names is taken as
/// it is.
#[test]
fn columns_are_those_of_training() {
    let place = Place::new();
    let row = |r: i32| format!("{},{},{}\n", r % 7, r % 2, ["no", "yes"][r as usize % 2]);
    let rows: String = (0..60).map(row).collect();
    let turn = |r: i32| format!("{},{},{}\n", r % 2, r % 7, ["no", "yes"][r as usize % 2]);
    let turned: String = (0..60).map(turn).collect();
    place.write("train.csv", format!("age,sex,label\n{rows}"));
    place.write("test.csv", format!("age,sex,class\n{rows}"));
    place.write("turned.csv", format!("sex,age,class\n{turned}"));
    place.write("renamed.csv", format!("Age,sex,class\n{rows}"));
    place.write("nameless.csv", &rows);
    place.train("run", &["data.source=csv:train.csv"]).well();
    let model = ["evaluate", "--model", "run/model.safetensors"];
    for config in [&[][..], &["--config", "run/config.toml"]] {
        let with = |data: &str| place.run(&[&model[..], config, &["--data", data]].concat());
        with("csv:test.csv").well();
        with("csv:nameless.csv").well();
        let said = with("csv:turned.csv").badly(2);
        let wanted = "feature 1 is called \"sex\", where the model has \"age\"";
        assert!(
            said.contains(wanted) && said.contains("another order"),
            "{said}"
        );
        let said = with("csv:renamed.csv").badly(2);
        let wanted = "feature 1 is called \"Age\", where the model has \"age\"";
        assert!(
            said.contains(wanted) && !said.contains("another order"),
            "{said}"
        );
    }
    // A damaged list is found, not believed.
    let bytes = place.read("run/model.safetensors");
    let at = bytes.windows(3).position(|part| part == b"sex").unwrap();
    // `age\",\"sex` and `agex\"sexx` have the same length: one name fewer.
    let mut damaged = bytes.clone();
    damaged[at - 5..at].copy_from_slice(b"xxxxx");
    place.write("damaged/model.safetensors", damaged);
    let model = [
        "evaluate",
        "--model",
        "damaged/model.safetensors",
        "--data",
        "csv:test.csv",
    ];
    let said = place.run(&model).badly(1);
    assert!(said.contains("expected 2 names of features"), "{said}");
}

/// Predictions, one row per record; classes keep the names and the order of the training data even
/// where the file shows only some of them.
#[test]
fn predictions_name_the_classes() {
    let place = Place::new();
    let mut table = String::from("x,y,kind\n");
    for row in 0..60 {
        let kind = ["\"a, first\"", "b", "c"][row % 3];
        table += &format!(
            "{},{},{kind}\n",
            (row % 3) as f64 - 1.0,
            f64::from(u8::from(row % 3 == 1))
        );
    }
    place.write("train.csv", &table);
    place.write("some.csv", "x,y,kind\n1,0,c\n0,1,b\n1,0,c\n");
    place
        .train(
            "run",
            &[
                "data.source=csv:train.csv",
                "model.kind=softmax",
                "privacy.epsilon=none",
                "algorithm.rounds=200",
                "algorithm.step_size=1",
                "algorithm.compressor=identity",
            ],
        )
        .well();
    let shown = evaluate(
        &place,
        "run",
        "csv:some.csv",
        &["--config", "run/config.toml", "--out", "some-out.csv"],
    );
    assert_eq!(
        (&shown["split"], &shown["rows"], &shown["accuracy"]),
        (&"all".into(), &3.into(), &1.0.into())
    );
    let rows = place.text("some-out.csv");
    let rows: Vec<Vec<&str>> = rows.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!(rows[0], ["row", "label", "prediction", "loss"]);
    assert_eq!(
        rows.iter()
            .skip(1)
            .map(|row| row[..3].join(" "))
            .collect::<Vec<_>>(),
        ["0 c c", "1 b b", "2 c c"]
    );
    let mean: f64 = rows
        .iter()
        .skip(1)
        .map(|row| row[3].parse::<f64>().unwrap())
        .sum::<f64>()
        / 3.0;
    near(&shown["loss"], &json!(mean));
    // Without the configuration two classes are not the model's three.
    let said = place
        .run(&[
            "evaluate",
            "--model",
            "run/model.safetensors",
            "--data",
            "csv:some.csv",
        ])
        .badly(2);
    assert!(
        said.contains("3 classes") && said.contains("--config"),
        "{said}"
    );
    evaluate(&place, "run", "csv:train.csv", &["--out", "all.csv"]);
    assert!(
        place.text("all.csv").contains("\"a, first\",\"a, first\","),
        "names are quoted where they must be"
    );
    // Nothing was scaled, so the run's training data may be gone; then classes are those of the
    // data.
    std::fs::rename(place.path("train.csv"), place.path("moved.csv")).unwrap();
    let moved = evaluate(
        &place,
        "run",
        "csv:moved.csv",
        &["--config", "run/config.toml"],
    );
    assert_eq!(moved["accuracy"], 1.0);
    let scaled = place
        .text("run/config.toml")
        .replace("scale = \"none\"", "scale = \"spectral\"");
    place.write("scaled.toml", scaled);
    let said = place
        .run(&[
            "evaluate",
            "--model",
            "run/model.safetensors",
            "--data",
            "csv:moved.csv",
            "--config",
            "scaled.toml",
        ])
        .badly(1);
    assert!(said.contains("train.csv"), "{said}");
    std::fs::rename(place.path("moved.csv"), place.path("train.csv")).unwrap();
    let text: Ran = place
        .run(&[
            "evaluate",
            "--model",
            "run/model.safetensors",
            "--data",
            "csv:train.csv",
        ])
        .well();
    assert!(text.stdout.contains("accuracy  1.0000"), "{text:?}");
}

fn model(tensors: &[(&str, &[usize], &[f32])], description: Option<&str>) -> Vec<u8> {
    let bytes: Vec<Vec<u8>> = tensors
        .iter()
        .map(|(_, _, values)| {
            values
                .iter()
                .flat_map(|value| value.to_le_bytes())
                .collect()
        })
        .collect();
    let views = tensors.iter().zip(&bytes).map(|((name, shape, _), bytes)| {
        (
            *name,
            TensorView::new(Dtype::F32, shape.to_vec(), bytes).unwrap(),
        )
    });
    let metadata =
        description.map(|text| HashMap::from([("soteria".to_string(), text.to_string())]));
    serialize(views, metadata).unwrap()
}

/// Files from anywhere: one line and exit code 1, never a panic.
#[test]
fn damaged_models_are_refused() {
    let place = Place::new();
    place.train("run", &[]).well();
    let whole = place.read("run/model.safetensors");
    let refused = |bytes: &[u8], wanted: &str| {
        place.write("bad.safetensors", bytes);
        let said = place
            .run(&[
                "evaluate",
                "--model",
                "bad.safetensors",
                "--data",
                "synthetic:60x4",
            ])
            .badly(1);
        assert!(
            said.contains("bad.safetensors") && said.contains(wanted),
            "`{wanted}` is not in\n{said}"
        );
    };
    for length in [0, 4, 8, 20, whole.len() / 2, whole.len() - 1] {
        refused(&whole[..length], "not a model file");
    }
    let mut huge = whole.clone();
    huge[..8].fill(255);
    refused(&huge, "not a model file");
    let weight: (&str, &[usize], &[f32]) = ("weight", &[1, 4], &[0.0; 4]);
    let logistic = r#"{"kind":"logistic","inputs":4}"#;
    refused(&model(&[weight], None), "metadata");
    refused(&model(&[weight], Some("{")), "metadata");
    refused(&model(&[weight], Some("{}")), "kind");
    refused(&model(&[weight], Some(r#"{"kind":"forest"}"#)), "forest");
    refused(
        &model(&[weight], Some(r#"{"kind":"logistic","inputs":-1}"#)),
        "size",
    );
    refused(
        &model(&[weight], Some(r#"{"kind":"logistic","inputs":5}"#)),
        "`weight`",
    );
    refused(&model(&[], Some(logistic)), "no tensor `weight`");
    refused(
        &model(
            &[("weight", &[1, 4], &[0.0, f32::NAN, 0.0, 0.0])],
            Some(logistic),
        ),
        "finite",
    );
    refused(
        &model(&[weight, ("bias", &[2], &[0.0; 2])], Some(logistic)),
        "`bias`",
    );
    let mlp = r#"{"kind":"mlp","layers":[[4,3],[2,2]],"activation":"relu"}"#;
    let layers: [(&str, &[usize], &[f32]); 4] = [
        ("layers.0.weight", &[3, 4], &[0.0; 12]),
        ("layers.0.bias", &[3], &[0.0; 3]),
        ("layers.1.weight", &[2, 2], &[0.0; 4]),
        ("layers.1.bias", &[2], &[0.0; 2]),
    ];
    refused(&model(&layers, Some(mlp)), "layer 1");
    refused(
        &model(
            &layers,
            Some(r#"{"kind":"mlp","layers":[[4,3]],"activation":"gelu"}"#),
        ),
        "gelu",
    );
    refused(
        &model(
            &layers,
            Some(r#"{"kind":"mlp","layers":[],"activation":"relu"}"#),
        ),
        "layers",
    );
    refused(
        &model(
            &layers,
            Some(r#"{"kind":"mlp","layers":[[4,4294967295],[4294967295,2]],"activation":"relu"}"#),
        ),
        "layers.0.weight",
    );
    // Everything fits the file, but not the data.
    place.write("good.safetensors", model(&[weight], Some(logistic)));
    place.write("five.csv", "1,2,3,4,5,0\n1,2,3,4,5,1\n");
    let said = place
        .run(&[
            "evaluate",
            "--model",
            "good.safetensors",
            "--data",
            "csv:five.csv",
        ])
        .badly(2);
    assert!(said.contains("five.csv"), "{said}");
    let said = place
        .run(&[
            "evaluate",
            "--model",
            "good.safetensors",
            "--data",
            "synthetic:60x4x3",
        ])
        .badly(2);
    assert!(said.contains("2 classes") && said.contains('3'), "{said}");
    assert!(
        place
            .run(&["evaluate", "--model", "absent", "--data", "a9a"])
            .badly(1)
            .contains("absent")
    );
    assert!(
        place
            .run(&[
                "evaluate",
                "--model",
                "good.safetensors",
                "--data",
                "a9a",
                "--config",
                "none.toml"
            ])
            .badly(2)
            .contains("none.toml")
    );
    place
        .run(&[
            "evaluate",
            "--model",
            "good.safetensors",
            "--data",
            "synthetic:60x4",
        ])
        .well();
}
