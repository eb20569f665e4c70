//! `soteria train`: its files, that runs repeat, and how it ends.

use std::process::Command;

use crate::program::{Place, Ran, keys, rounds, tensors};

/// The built-in data and the defaults, but few rounds: every file of a run, with what it must hold.
#[test]
fn a_run_leaves_its_files() {
    let place = Place::new();
    let ran = place
        .run(&[
            "train",
            "--out",
            "run",
            "--set",
            "algorithm.rounds=6",
            "--set",
            "data.clients=7",
            "--seed",
            "3",
        ])
        .well();
    assert!(
        ran.stdout.contains("test accuracy") && ran.stdout.contains("report.html"),
        "{ran:?}"
    );
    let mut names: Vec<String> = std::fs::read_dir(place.path("run"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(
        names,
        [
            "MODEL_CARD.md",
            "config.toml",
            "model.safetensors",
            "report.html",
            "rounds.csv",
            "summary.json"
        ]
    );

    let table = rounds(&place.text("run/rounds.csv"));
    assert_eq!(
        table.iter().map(|row| row[0]).collect::<Vec<_>>(),
        (0..=6).map(|t| Some(f64::from(t))).collect::<Vec<_>>()
    );
    assert_eq!(table[0][1..4], [Some(0.0); 3]);
    assert_eq!(table[0][8], Some(0.0));
    let mut sum = 0.0;
    for (index, row) in table.iter().enumerate() {
        sum += row[5].unwrap();
        let utility = sum / (index + 1) as f64;
        assert!(
            (row[6].unwrap() - utility).abs() <= 1e-12 * utility,
            "{row:?}"
        );
        assert!(
            row.iter().all(|value| value.is_some_and(f64::is_finite)),
            "{row:?}"
        );
    }
    for pair in table.windows(2) {
        assert!(
            (1..4).all(|column| pair[1][column] > pair[0][column]),
            "{pair:?}"
        );
        assert!(
            pair[1][8] >= pair[0][8] && pair[1][8].unwrap() <= 1.0,
            "{pair:?}"
        );
    }

    let summary = place.json("run/summary.json");
    let expected = [
        "algorithm",
        "choices",
        "clients",
        "data",
        "dataset",
        "dimension",
        "final",
        "kind",
        "privacy",
        "rounds",
        "samples_per_client",
        "seconds",
        "secrets",
        "seed",
        "traffic",
        "version",
        "warnings",
    ];
    assert_eq!(keys(&summary), expected);
    assert_eq!(summary["kind"], "simulation");
    let privacy = [
        "accountant",
        "adjacency",
        "amplified",
        "claim",
        "delta",
        "epsilon",
        "epsilon_unamplified",
        "noise",
        "sigma",
        "sigmas",
        "signal_to_noise",
    ];
    assert_eq!(keys(&summary["privacy"]), privacy);
    assert_eq!(
        keys(&summary["final"]),
        [
            "auc",
            "balanced_accuracy",
            "calibration",
            "calibration_error",
            "classes",
            "confusion",
            "grad_norm_sq",
            "log_loss",
            "loss",
            "majority_accuracy",
            "roc",
            "test_accuracy",
            "utility"
        ]
    );
    assert_eq!(
        keys(&summary["traffic"]),
        ["downlink_bytes", "paper_bits", "uplink_bytes"]
    );
    assert_eq!(
        keys(&summary["seconds"]),
        ["evaluation", "total", "training"]
    );
    assert_eq!(summary["dataset"], "a9a");
    assert_eq!(summary["data"]["features"], 123);
    assert_eq!(summary["data"]["classes"], serde_json::json!(["-1", "+1"]));
    assert_eq!(summary["seed"], 3);
    assert_eq!(summary["clients"], 7);
    assert_eq!(summary["dimension"], 124);
    assert_eq!(summary["rounds"], 6);
    // 32561 = 7 * 4651 + 4: the first four clients get one row more.
    assert_eq!(
        summary["samples_per_client"],
        serde_json::json!([4652, 4652, 4652, 4652, 4651, 4651, 4651])
    );
    assert_eq!(summary["privacy"]["claim"], "proved");
    assert_eq!(summary["privacy"]["noise"], "float (simulated)");
    assert_eq!(summary["privacy"]["adjacency"], "replace-one");
    let epsilon = summary["privacy"]["epsilon"].as_f64().unwrap();
    assert!(epsilon <= 1.0 && epsilon > 0.99, "{epsilon}");
    let last = table.last().unwrap();
    // 6 of 124 coordinates, 64 bits each, seven clients, six rounds.
    assert_eq!(last[1], Some(64.0 * 6.0 * 7.0 * 6.0));
    for (value, column) in [
        (&summary["traffic"]["paper_bits"], 1),
        (&summary["traffic"]["uplink_bytes"], 2),
        (&summary["traffic"]["downlink_bytes"], 3),
        (&summary["final"]["loss"], 4),
        (&summary["final"]["grad_norm_sq"], 5),
        (&summary["final"]["utility"], 6),
        (&summary["final"]["test_accuracy"], 7),
        (&summary["privacy"]["epsilon"], 8),
    ] {
        // The JSON reader of this test may miss the last bit of a number.
        let (value, cell) = (value.as_f64().unwrap(), last[column].unwrap());
        assert!(
            (value - cell).abs() <= 1e-15 * cell,
            "{value} is not {cell}"
        );
    }

    let (model, description) = tensors(&place.path("run/model.safetensors"));
    assert_eq!(
        description,
        serde_json::json!({ "kind": "logistic", "inputs": 123, "classes": ["-1", "+1"] })
    );
    let shapes: Vec<_> = model
        .iter()
        .map(|(name, shape, _)| (name.as_str(), shape.clone()))
        .collect();
    assert_eq!(shapes, [("bias", vec![1]), ("weight", vec![1, 123])]);
    let page = place.text("run/report.html");
    assert!(page.starts_with("<!") && page.trim_end().ends_with("</html>"));
    let config = place.text("run/config.toml");
    assert!(
        !config.contains("auto\"\n") || config.matches("\"auto\"").count() <= 2,
        "{config}"
    );
    assert!(
        config.contains("epsilon = 1.0\n") && !config.contains("\nsigma"),
        "{config}"
    );
}

pub fn same_bytes(place: &Place, one: &str, other: &str) {
    for name in ["model.safetensors", "rounds.csv", "config.toml"] {
        assert!(
            place.read(&format!("{one}/{name}")) == place.read(&format!("{other}/{name}")),
            "{one} {other} {name}"
        );
    }
}

/// The resolved configuration gives the same bytes, for algorithms that use every kind of
/// randomness, whatever the number of threads.
#[test]
fn a_run_repeats_from_its_configuration() {
    let runs: [(&str, &[&str]); 4] = [
        ("auto", &[]),
        (
            "svrg",
            &[
                "algorithm.preset=soteriafl-svrg",
                "data.partition=dirichlet",
                "algorithm.compressor=qsgd",
            ],
        ),
        (
            "saga",
            &[
                "algorithm.preset=soteriafl-saga",
                "algorithm.step_size=theory",
                "data.partition=iid",
            ],
        ),
        (
            "mlp",
            &[
                "model.kind=mlp",
                "model.hidden=[3]",
                "data.scale=per-feature",
                "privacy.noise=secure",
                "algorithm.participation=0.7",
            ],
        ),
    ];
    let place = Place::new();
    for (name, settings) in runs {
        let settings: Vec<&str> = settings.iter().copied().chain(["run.seed=5"]).collect();
        place.train(name, &settings).well();
        let config = format!("{name}/config.toml");
        let (one, two) = (format!("{name}-1"), format!("{name}-2"));
        place
            .run(&[
                "train",
                "--config",
                &config,
                "--out",
                &one,
                "--threads",
                "1",
            ])
            .well();
        place
            .run(&[
                "train",
                "--config",
                &config,
                "--out",
                &two,
                "--threads",
                "2",
            ])
            .well();
        same_bytes(&place, name, &one);
        same_bytes(&place, &one, &two);
        let other = format!("{name}-3");
        place
            .run(&["train", "--config", &config, "--out", &other, "--seed", "6"])
            .well();
        let model = |run: &str| place.read(&format!("{run}/model.safetensors"));
        assert!(
            model(&other) != model(name),
            "{name}: another seed, the same model"
        );
    }
}

#[test]
fn an_existing_directory_is_refused_unless_forced() {
    let place = Place::new();
    place.write("run/notes.txt", "mine");
    let said = place.train("run", &[]).badly(2);
    assert!(
        said.contains("run exists and is not empty") && said.contains("--force"),
        "{said}"
    );
    assert!(!place.path("run/config.toml").exists());
    let mut arguments = vec!["train", "--out", "run", "--force"];
    for setting in crate::program::SMALL {
        arguments.extend(["--set", setting]);
    }
    place.run(&arguments).well();
    assert!(place.path("run/summary.json").exists());
    assert_eq!(place.text("run/notes.txt"), "mine");
    std::fs::create_dir(place.path("empty")).unwrap();
    place.train("empty", &[]).well();
}

#[test]
fn without_out_runs_are_named_by_time_and_algorithm() {
    let place = Place::new();
    let arguments = |command: &mut Command| {
        for setting in crate::program::SMALL {
            command.args(["--set", setting]);
        }
    };
    for _ in 0..2 {
        let mut command = place.command(&["train"]);
        arguments(&mut command);
        Ran::from(command.output().unwrap()).well();
    }
    let names: Vec<String> = std::fs::read_dir(place.path("runs"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(names.len(), 2, "{names:?}");
    assert!(
        names.iter().all(|name| name.contains("-soteriafl-gd")),
        "{names:?}"
    );
}

#[test]
fn json_is_one_object_and_quiet_is_quiet() {
    let place = Place::new();
    let mut arguments = vec!["train", "--json", "--quiet", "--out", "run"];
    for setting in crate::program::SMALL.iter().chain(&["privacy.delta=0.1"]) {
        arguments.extend(["--set", setting]);
    }
    let ran = place.run(&arguments).well();
    assert_eq!(ran.stderr, "");
    assert_eq!(ran.object(), place.json("run/summary.json"));
    // The delta above deserves a warning, which only --quiet takes away.
    let loud = place.train("loud", &["privacy.delta=0.1"]).well();
    assert!(loud.stderr.contains("warning: `privacy.delta`"), "{loud:?}");
    let quiet = place.run(&[
        "train",
        "--quiet",
        "--out",
        "q",
        "--set",
        "data.source=nonsense",
    ]);
    assert!(
        quiet.badly(2).contains("nonsense"),
        "errors are said even so"
    );
}

#[test]
fn colours_are_for_terminals() {
    let place = Place::new();
    let escaped = |ran: &Ran| ran.stdout.contains('\u{1b}') || ran.stderr.contains('\u{1b}');
    let plain = place.train("plain", &["privacy.delta=0.1"]).well();
    assert!(!escaped(&plain), "{plain:?}");
    let mut command = place.command(&["train", "--set", "data.source=nonsense"]);
    let ran = Ran::from(command.env("NO_COLOR", "1").output().unwrap());
    assert!(!escaped(&ran), "{ran:?}");
    let forced = Ran::from(
        command
            .env_remove("NO_COLOR")
            .env("CLICOLOR_FORCE", "1")
            .output()
            .unwrap(),
    );
    assert!(escaped(&forced), "this test could not fail: {forced:?}");
    let both = Ran::from(command.env("NO_COLOR", "1").output().unwrap());
    assert!(!escaped(&both), "NO_COLOR wins: {both:?}");
}

/// A clip that is asked for holds without noise, too, and the written configuration says what was
/// done.
#[test]
fn clips_without_noise() {
    let place = Place::new();
    let loss = |name: &str| place.json(&format!("{name}/summary.json"))["final"]["loss"].clone();
    let none = "privacy.epsilon=none";
    place.train("free", &[none]).well();
    place.train("free-too", &[none, "privacy.clip=none"]).well();
    place.train("tight", &[none, "privacy.clip=1e-3"]).well();
    place
        .train("zero", &["privacy.sigma=0", "privacy.clip=1e-3"])
        .well();
    assert_eq!(loss("free"), loss("free-too"));
    assert_eq!(loss("tight"), loss("zero"));
    assert_ne!(loss("free"), loss("tight"));
    assert!(place.text("free/config.toml").contains("clip = \"none\""));
    assert!(place.text("tight/config.toml").contains("clip = 0.001"));
    for name in ["free", "tight"] {
        let config = format!("{name}/config.toml");
        let again = place.run(&["train", "--config", &config, "--out", "again", "--force"]);
        let ran = again.well();
        assert!(!ran.stderr.contains("ignored"), "{ran:?}");
        assert_eq!(loss("again"), loss(name));
        assert_eq!(place.text("again/config.toml"), place.text(&config));
    }
    let ran = place
        .train(
            "ignored",
            &[
                none,
                "privacy.clip_scope=record",
                "model.regularizer=none",
                "model.lambda=1",
            ],
        )
        .well();
    for key in ["privacy.clip_scope", "model.lambda"] {
        assert!(
            ran.stderr.contains(&format!("`{key}` is ignored")),
            "{ran:?}"
        );
    }
}

/// A run that leaves the range of numbers says so; noise too small for any epsilon claims none.
#[test]
fn extremes_are_named() {
    let place = Place::new();
    let ran = place.train("far", &["algorithm.step_size=1e300"]).well();
    assert!(ran.stderr.contains("diverged"), "{ran:?}");
    assert_eq!(place.json("far/summary.json")["diverged"], true);
    assert!(place.text("far/report.html").contains(">diverged<"));
    place.train("near", &[]).well();
    assert!(place.json("near/summary.json").get("diverged").is_none());
    place.train("bare", &["privacy.sigma=1e-300"]).well();
    let privacy = &place.json("bare/summary.json")["privacy"];
    assert!(privacy["epsilon"].is_null());
    assert_eq!(privacy["claim"], "too little noise for any accountant");
}

/// A few bytes of data can ask for any number of parameters.
#[cfg(target_os = "linux")]
#[test]
fn models_that_do_not_fit_are_refused() {
    let place = Place::new();
    place.write("x.txt", "+1 134217728:1\n-1 1:1\n");
    let mut command = Command::new("sh");
    command
        .args(["-c", "ulimit -v 4000000; exec \"$0\" train --out run --set data.source=libsvm:x.txt --set data.clients=2"])
        .arg(assert_cmd::cargo::cargo_bin!("soteria"))
        .current_dir(place.path(""));
    let ran = Ran::from(command.output().unwrap());
    assert!(matches!(ran.code, Some(1 | 2)), "{ran:?}");
    assert!(ran.stderr.contains("memory of this machine"), "{ran:?}");
    assert!(!place.path("run").exists());
}

/// A target of a billion is none; and what a claim presumes is said.
#[test]
fn a_claim_says_what_it_presumes() {
    let place = Place::new();
    let said = place.train("absurd", &["privacy.epsilon=1e9"]).badly(2);
    assert!(said.contains("no meaning as a privacy target"), "{said}");
    assert!(!place.path("absurd").exists());

    let few = ["data.source=synthetic:300x4", "algorithm.rounds=3"];
    let dimension = place.train("zeros", &few).well();
    assert!(!dimension.stderr.contains("start counts as public"));
    let dimension = place.json("zeros/summary.json")["dimension"]
        .as_u64()
        .unwrap();
    place.write("start.txt", "0.1\n".repeat(dimension as usize));
    let settings = [few[0], few[1], "model.init=file:start.txt"];
    let ran = place.train("file", &settings).well();
    assert!(ran.stderr.contains("the start counts as public"), "{ran:?}");
    assert!(
        place
            .text("file/report.html")
            .contains("computed from the records, as by training")
    );

    let settings = [few[0], few[1], "data.standardize=true"];
    let ran = place.train("standard", &settings).well();
    assert!(ran.stderr.contains("no epsilon can be claimed"), "{ran:?}");
}

/// The README's first command, and what the README says that it ends with.
#[test]
fn the_readme_shows_the_default_run() {
    let readme = include_str!("../../../../README.md");
    let place = Place::new();
    let ran = place.run(&["train", "--out", "run"]).well();
    let value = |text: &str, name: &str| {
        let column = format!("{name}  ");
        let line = text
            .lines()
            .find(|line| line.trim_start().starts_with(&column));
        let line = line.unwrap_or_else(|| panic!("no line `{name}` in\n{text}"));
        line.trim_start()[name.len()..].trim().to_string()
    };
    for name in ["algorithm", "epsilon", "sent up"] {
        assert_eq!(value(readme, name), value(&ran.stdout, name));
    }
    // Up to rounding: processors may add in another way.
    for (name, tolerance) in [("test accuracy", 3e-4), ("training loss", 3e-5)] {
        let [shown, found] = [readme, &ran.stdout].map(|text| {
            let line = value(text, name);
            let number = line.split(' ').next().unwrap_or_default();
            number.parse::<f64>().unwrap()
        });
        assert!(
            (shown - found).abs() <= tolerance,
            "{name}: {shown}, but {found}"
        );
    }
}
