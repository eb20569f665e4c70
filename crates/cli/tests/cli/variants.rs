//! Every preset, compressor, model and kind of claim, through the whole program.

use serde_json::{Value, json};

use crate::program::{Place, Ran, keys, rounds, tensors};

/// A small run with these settings; its summary.
fn summary(place: &Place, name: &str, settings: &[&str]) -> Value {
    place.train(name, settings).well();
    place.json(&format!("{name}/summary.json"))
}

#[test]
fn every_preset_runs() {
    let place = Place::new();
    let presets = [
        ("auto", "soteriafl-gd", 3),
        ("soteriafl-gd", "soteriafl-gd", 3),
        ("soteriafl-sgd", "soteriafl-sgd", 3),
        ("soteriafl-svrg", "soteriafl-svrg", 3),
        ("soteriafl-saga", "soteriafl-saga", 3),
        ("cdp-sgd", "cdp-sgd", 3),
        ("ldp-sgd", "ldp-sgd", 3),
        ("ldp-svrg", "ldp-svrg", 3),
        ("dp-gd", "dp-gd", 1),
        ("dp-sgd", "dp-sgd", 1),
        ("dp-srm", "dp-srm", 1),
        ("ldp-srm", "ldp-srm", 3),
        ("ldp-spider", "ldp-spider", 3),
        ("diff2", "diff2", 3),
        ("rrpsgd", "rrpsgd", 1),
        ("sdm-dsgd", "sdm-dsgd", 3),
        ("q-dpsgd-1", "q-dpsgd-1", 3),
        ("porter", "porter", 3),
    ];
    for (preset, algorithm, clients) in presets {
        let chosen = format!("algorithm.preset={preset}");
        let many = format!("data.clients={clients}");
        let summary = summary(&place, preset, &[&chosen, &many, "algorithm.fraction=0.4"]);
        assert_eq!(summary["algorithm"], algorithm);
        assert_eq!(summary["privacy"]["claim"], "proved", "{preset}");
        let epsilon = summary["privacy"]["epsilon"].as_f64().unwrap();
        assert!(epsilon > 0.99 && epsilon <= 1.0, "{preset}: {epsilon}");
        assert_eq!(
            summary["samples_per_client"],
            json!(vec![60 / clients; clients])
        );
        // Two of five coordinates travel where there is compression, all of them elsewhere.
        let whole = ["ldp", "dp", "diff2", "rrpsgd", "q-dpsgd"];
        let values = if preset == "porter" {
            // Two messages.
            4
        } else if whole.iter().any(|family| preset.starts_with(family)) {
            5
        } else {
            2
        };
        assert_eq!(
            summary["traffic"]["paper_bits"],
            json!(64 * values * summary["rounds"].as_u64().unwrap() * clients as u64),
            "{preset}"
        );
        let random = preset == "rrpsgd";
        assert!(random || summary["rounds"] == 5, "{preset}");
        assert_eq!(summary["output"].is_object(), random, "{preset}");
    }
}

#[test]
fn every_compressor_runs() {
    let place = Place::new();
    for (settings, text) in [
        (
            ["algorithm.compressor=identity", "run.seed=1"],
            "all 5 coordinates",
        ),
        (["algorithm.compressor=rand-k", "algorithm.k=3"], "3 of 5"),
        (
            ["algorithm.compressor=qsgd", "algorithm.levels=4"],
            "4 levels",
        ),
        (["algorithm.compressor=natural", "run.seed=1"], "natural"),
    ] {
        let name = settings[0].rsplit('=').next().unwrap();
        let ran = place.train(name, &settings).well();
        assert!(ran.stderr.contains(text), "{ran:?}");
        let summary = place.json(&format!("{name}/summary.json"));
        assert_eq!(summary["privacy"]["claim"], "proved");
        assert!(summary["traffic"]["uplink_bytes"].as_u64() > Some(0));
    }
    // A parameter that the chosen compressor does not have is ignored, and said to be.
    let ran = place
        .train(
            "ignored",
            &["algorithm.compressor=identity", "algorithm.fraction=0.5"],
        )
        .well();
    assert!(
        ran.stderr
            .contains("warning: `algorithm.fraction` is ignored"),
        "{ran:?}"
    );
}

/// What is sent down is counted and said, the noise is what it was, and the written configuration
/// says what ran.
#[test]
fn every_way_down_runs() {
    let place = Place::new();
    let plain = summary(&place, "plain", &["algorithm.compressor=identity"]);
    for (form, text, body) in [
        ("sign", "signs of all coordinates", 5),
        ("natural", "powers of two of all coordinates", 6),
        ("qsgd:4", "qsgd levels of all coordinates", 7),
        ("rand-k:2", "values of 2 coordinates (40.0%)", 8),
        ("rand-k:0.4+sign", "signs of 2 coordinates (40.0%)", 5),
    ] {
        let downlink = format!("algorithm.downlink={form}");
        let settings = ["algorithm.compressor=identity", &downlink];
        let name = form.replace([':', '+'], "-");
        let ran = place.train(&name, &settings).well();
        assert!(ran.stderr.contains(text), "{ran:?}");
        let found = place.json(&format!("{name}/summary.json"));
        let count = |pointer: &str| found.pointer(pointer).and_then(Value::as_u64);
        let messages = count("/rounds").zip(count("/clients")).map(|(t, n)| t * n);
        let expected = messages.map(|messages| messages * (10 + body));
        assert_eq!(count("/traffic/downlink_bytes"), expected, "{form}");
        assert_eq!(found["privacy"]["sigma"], plain["privacy"]["sigma"]);
        assert_eq!(found["privacy"]["claim"], "proved");
        let written = place.text(&format!("{name}/config.toml"));
        let word = form.replace("0.4", "2");
        assert!(
            written.contains(&format!("downlink = \"{word}\"\n")),
            "{written}"
        );
    }
    let written = place.text("plain/config.toml");
    assert!(!written.contains("downlink"), "{written}");
}

#[test]
fn every_estimator_goes_with_secure_noise() {
    let place = Place::new();
    for estimator in ["gd", "sgd", "svrg", "saga", "sag"] {
        let chosen = format!("algorithm.preset=soteriafl-{estimator}");
        let summary = summary(&place, estimator, &[&chosen, "privacy.noise=secure"]);
        assert_eq!(summary["privacy"]["noise"], "secure");
        assert_eq!(summary["privacy"]["claim"], "proved");
        assert!(
            summary["final"]["loss"]
                .as_f64()
                .is_some_and(f64::is_finite)
        );
    }
}

/// What is not proved is not claimed: no epsilon, and the reason.
#[test]
fn claims_are_made_only_where_there_is_a_proof() {
    let place = Place::new();
    let sgd = "algorithm.preset=soteriafl-sgd";
    let cases: [(&str, &[&str], &str); 7] = [
        (
            "paper",
            &[sgd, "privacy.accountant=paper"],
            "paper calibration",
        ),
        ("none", &[sgd, "privacy.epsilon=none"], "no noise"),
        (
            "replacement",
            &[sgd, "privacy.sampling=with-replacement"],
            "sampling with replacement",
        ),
        (
            "estimate",
            &[sgd, "privacy.clip_scope=estimate"],
            "whole estimates are clipped",
        ),
        (
            "scaled",
            &[sgd, "data.scale=standard"],
            "data-dependent scaling",
        ),
        (
            "step",
            &[sgd, "algorithm.step_size=theory"],
            "data-dependent step size",
        ),
        (
            "tuned",
            &[sgd, "algorithm.step_size_from_data=true"],
            "step size tuned on the records",
        ),
    ];
    for (name, settings, claim) in cases {
        let summary = summary(&place, name, settings);
        assert!(
            summary["privacy"]["claim"]
                .as_str()
                .unwrap()
                .contains(claim),
            "{name}: {}",
            summary["privacy"]
        );
        assert_eq!(summary["privacy"]["epsilon"], Value::Null, "{name}");
        assert_eq!(
            summary["privacy"]["epsilon_unamplified"],
            Value::Null,
            "{name}"
        );
        assert_eq!(summary["privacy"]["amplified"], false, "{name}");
        let table = rounds(&place.text(&format!("{name}/rounds.csv")));
        assert!(table.iter().all(|row| row[8].is_none()), "{name}");
    }
    assert_eq!(place.json("none/summary.json")["privacy"]["sigma"], 0.0);
    assert_eq!(place.json("none/summary.json")["privacy"]["noise"], "none");
    // Constants given by the user depend on nobody's records.
    let constant = summary(
        &place,
        "constant",
        &[sgd, "data.center=0.1", "data.factor=2"],
    );
    assert_eq!(constant["privacy"]["claim"], "proved");
    // A fixed sigma makes epsilon a result.
    let fixed = summary(
        &place,
        "fixed",
        &["privacy.sigma=0.05", "privacy.accountant=rdp"],
    );
    assert_eq!(fixed["privacy"]["sigma"], 0.05);
    assert_eq!(fixed["privacy"]["accountant"], "rdp");
    assert!(
        fixed["privacy"]["epsilon"]
            .as_f64()
            .is_some_and(|epsilon| epsilon > 0.0)
    );
}

#[test]
fn clients_may_be_unequal() {
    let place = Place::new();
    // 60 = 7 * 8 + 4.
    let seven = summary(&place, "seven", &["data.clients=7"]);
    assert_eq!(seven["samples_per_client"], json!([9, 9, 9, 9, 8, 8, 8]));
    let sigmas: Vec<f64> = serde_json::from_value(seven["privacy"]["sigmas"].clone()).unwrap();
    assert!(
        sigmas[6] > sigmas[0] && sigmas[0] == sigmas[3],
        "fewer records need more noise: {sigmas:?}"
    );
    assert_eq!(seven["privacy"]["sigma"], json!(sigmas[6]));
    for weighting in ["records", "equal"] {
        let chosen = format!("data.weighting={weighting}");
        let settings = [
            "data.partition=dirichlet",
            "data.alpha=0.2",
            &chosen,
            "privacy.epsilon=3",
        ];
        let run = summary(&place, weighting, &settings);
        let sizes: Vec<usize> = serde_json::from_value(run["samples_per_client"].clone()).unwrap();
        assert_eq!(sizes.iter().sum::<usize>(), 60);
        assert!(
            sizes.iter().all(|size| *size > 0) && sizes.iter().any(|size| *size != 20),
            "{sizes:?}"
        );
    }
    let loss = |name: &str| place.json(&format!("{name}/summary.json"))["final"]["loss"].clone();
    assert_ne!(loss("records"), loss("equal"));
}

fn flowers(place: &Place) {
    let mut table = String::from("length,width,kind\n");
    for row in 0..30 {
        let kind = ["iris", "lily", "rose"][row % 3];
        table += &format!(
            "{},{},{kind}\n",
            0.1 * (row % 7) as f64,
            (row % 3) as f64 - 0.5
        );
    }
    place.write("flowers.csv", table);
}

#[test]
fn networks_train_on_a_table() {
    let place = Place::new();
    flowers(&place);
    let base = [
        "data.source=csv:flowers.csv",
        "data.test=csv:flowers.csv",
        "data.features=none",
        "privacy.epsilon=20",
    ];
    let with = |more: &[&'static str]| [&base[..], more].concat();
    let softmax = summary(&place, "softmax", &with(&["model.kind=softmax"]));
    assert_eq!(softmax["dimension"], 9);
    assert_eq!(softmax["dataset"], "csv:flowers.csv");
    assert!(softmax["final"]["test_accuracy"].as_f64().is_some());
    let (tensor, description) = tensors(&place.path("softmax/model.safetensors"));
    let shapes: Vec<_> = tensor
        .iter()
        .map(|(name, shape, _)| (name.as_str(), shape.as_slice()))
        .collect();
    assert_eq!(shapes, [("bias", &[3][..]), ("weight", &[3, 2][..])]);
    assert_eq!(description["kind"], "softmax");
    for activation in ["sigmoid", "tanh", "relu"] {
        let chosen = format!("model.activation={activation}");
        let mut settings = with(&["model.hidden=[5,4]"]);
        settings.push(&chosen);
        // More than two classes: auto is a network.
        let run = summary(&place, activation, &settings);
        assert_eq!(run["dimension"], 2 * 5 + 5 + 5 * 4 + 4 + 4 * 3 + 3);
        let (tensor, description) =
            tensors(&place.path(&format!("{activation}/model.safetensors")));
        let shapes: Vec<_> = tensor
            .iter()
            .map(|(name, shape, _)| (name.as_str(), shape.as_slice()))
            .collect();
        assert_eq!(
            shapes,
            [
                ("layers.0.bias", &[5][..]),
                ("layers.0.weight", &[5, 2][..]),
                ("layers.1.bias", &[4][..]),
                ("layers.1.weight", &[4, 5][..]),
                ("layers.2.bias", &[3][..]),
                ("layers.2.weight", &[3, 4][..]),
            ]
        );
        assert_eq!(
            description,
            json!({
                "kind": "mlp", "layers": [[2, 5], [5, 4], [4, 3]], "activation": activation,
                "features": ["length", "width"], "classes": ["iris", "lily", "rose"],
            })
        );
    }
    let models: Vec<_> = ["sigmoid", "tanh", "relu"]
        .map(|name| place.read(&format!("{name}/model.safetensors")))
        .to_vec();
    assert!(models[0] != models[1] && models[1] != models[2]);
}

/// One number per line starts the model there: without a step nothing moves, so the file comes
/// back.
#[test]
fn a_start_file_is_where_the_model_starts() {
    let place = Place::new();
    place.write("start.txt", "0.5\n-0.25\n1\n3\n2\n");
    let settings = [
        "model.init=file:start.txt",
        "algorithm.step_size=1e-30",
        "model.regularizer=none",
    ];
    place.train("run", &settings).well();
    let (tensor, _) = tensors(&place.path("run/model.safetensors"));
    assert_eq!(tensor[0].2, [2.0]);
    assert_eq!(tensor[1].2, [0.5, -0.25, 1.0, 3.0]);
    place.write("start.txt", "0.5\n-0.25\n");
    let said = place.train("short", &settings).badly(2);
    assert!(said.contains("start.txt: expected 5 numbers"), "{said}");
}

#[test]
fn rounds_are_evaluated_as_asked() {
    let place = Place::new();
    place.train("ends", &["run.eval_every=0"]).well();
    place.train("some", &["run.eval_every=2"]).well();
    let at = |name: &str| -> Vec<f64> {
        rounds(&place.text(&format!("{name}/rounds.csv")))
            .iter()
            .map(|row| row[0].unwrap())
            .collect()
    };
    assert_eq!(at("ends"), [0.0, 5.0]);
    assert_eq!(at("some"), [0.0, 2.0, 4.0, 5.0]);
    // What is measured does not disturb what is trained.
    assert!(place.read("ends/model.safetensors") == place.read("some/model.safetensors"));
}

#[test]
fn the_report_is_rebuilt() {
    let place = Place::new();
    place.train("run", &[]).well();
    let page = place.read("run/report.html");
    std::fs::remove_file(place.path("run/report.html")).unwrap();
    place.run(&["report", "run", "--svg"]).well();
    assert!(place.read("run/report.html") == page);
    assert!(place.text("run/curves.svg").starts_with("<svg"));
}

/// Help for every command, and completions for the usual shells.
#[test]
fn help_is_everywhere() {
    let place = Place::new();
    let whole = place.run(&["--help"]).well().stdout;
    assert_eq!(place.run(&["help"]).well().stdout, whole);
    let commands: Vec<&str> = whole
        .lines()
        .skip_while(|line| !line.starts_with("Commands:"))
        .skip(1)
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    for command in [
        "train",
        "report",
        "completions",
        "data",
        "account",
        "calibrate",
        "evaluate",
    ] {
        assert!(
            commands.contains(&command),
            "{command} is not in {commands:?}"
        );
    }
    for command in commands {
        let help = place.run(&["help", command]).well().stdout;
        assert!(help.contains("Usage: soteria"), "{command}");
        if command != "help" {
            assert_eq!(
                place.run(&[command, "--help"]).well().stdout,
                help,
                "{command}"
            );
        }
    }
    assert!(
        place
            .run(&["--version"])
            .well()
            .stdout
            .starts_with("soteria ")
    );
    for (shell, mark) in [
        ("bash", "complete -F"),
        ("zsh", "#compdef soteria"),
        ("fish", "complete -c soteria"),
    ] {
        let script = place.run(&["completions", shell]).well().stdout;
        assert!(script.contains(mark) && script.contains("train"), "{shell}");
    }
}

/// The keys that the report and scripts rely on are there for every kind of run, with or without a
/// test set.
#[test]
fn runs_without_a_test_set_say_so() {
    let place = Place::new();
    flowers(&place);
    let ran: Ran = place
        .train(
            "run",
            &["data.source=csv:flowers.csv", "model.kind=softmax"],
        )
        .well();
    assert!(ran.stdout.contains("no test set"), "{ran:?}");
    let summary = place.json("run/summary.json");
    assert_eq!(
        keys(&summary["final"]),
        [
            "grad_norm_sq",
            "loss",
            "majority_accuracy",
            "test_accuracy",
            "utility"
        ]
    );
    assert_eq!(summary["final"]["majority_accuracy"], Value::Null);
    assert_eq!(summary["final"]["test_accuracy"], Value::Null);
    assert!(
        rounds(&place.text("run/rounds.csv"))
            .iter()
            .all(|row| row[7].is_none())
    );
}
