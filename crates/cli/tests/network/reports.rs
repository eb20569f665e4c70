//! What the files of a deployment say: that it was one, on whose records, what was measured and
//! what was not. And that columns are what was agreed, by name and order, before anything is spent.

use std::path::Path;

use crate::operation::status;
use crate::parties::{Run, eventually, free_port, program, text};

const COLUMNS: [&str; 3] = ["age", "bmi", "pressure"];

/// A table of records that can be learnt: the class follows from the second column. Its columns
/// stand in this order.
fn table(columns: &[usize], names: &[&str], rows: u32, from: u32) -> String {
    let mut text = names.join(",") + ",outcome\n";
    for row in from..from + rows {
        let class = row % 2;
        let noise = |k: u32| f64::from(row.wrapping_mul(k) % 101) / 101.0 - 0.5;
        let values = [
            noise(37),
            2.0 * f64::from(class) - 1.0 + noise(53),
            noise(71),
        ];
        for &column in columns {
            text += &format!("{},", values[column]);
        }
        text += ["healthy\n", "ill\n"][class as usize];
    }
    text
}

/// Three clients with tables of their own, and a server that owns no records.
fn deployment(more: &str) -> Run {
    let mut run = Run::new("");
    run.seed = None;
    run.data = format!("csv:{}", run.path("own-{}.csv").display());
    for client in 0..3 {
        let rows = table(&[0, 1, 2], &COLUMNS, 400 + client, 1000 * client);
        std::fs::write(run.path(&format!("own-{client}.csv")), rows).unwrap();
    }
    let config = format!(
        "[algorithm]\npreset = \"soteriafl-sgd\"\nrounds = 8\n[privacy]\nepsilon = 4.0\n[deployment]\nrecords = 400\n{more}"
    );
    std::fs::write(run.path("run.toml"), config).unwrap();
    run
}

/// With a test set of 200 records at the server.
fn tested() -> Run {
    let run = deployment("");
    let test = table(&[0, 1, 2], &COLUMNS, 200, 9000);
    std::fs::write(run.path("test.csv"), test).unwrap();
    let config = std::fs::read_to_string(run.path("run.toml")).unwrap();
    let data = format!(
        "[data]\nclients = 3\ntest = \"csv:{}\"\n",
        run.path("test.csv").display()
    );
    std::fs::write(run.path("run.toml"), data + &config).unwrap();
    run
}

/// Without one: the configuration says what records look like.
fn untested() -> Run {
    let features = "features = [\"age\", \"bmi\", \"pressure\"]\nlabels = [\"healthy\", \"ill\"]\n";
    let run = deployment(features);
    let config = std::fs::read_to_string(run.path("run.toml")).unwrap();
    std::fs::write(
        run.path("run.toml"),
        format!("[data]\nclients = 3\n{config}"),
    )
    .unwrap();
    run
}

fn complete(run: &Run) {
    let mut server = run.serve();
    let mut clients: Vec<_> = (0..3)
        .map(|client| run.join_with(client, &["--max-epsilon", "9"]))
        .collect();
    for (client, process) in clients.iter_mut().enumerate() {
        let code = process.code();
        assert_eq!(code, 0, "{}", run.log(&format!("join-{client}.log")));
    }
    assert_eq!(server.code(), 0, "{}", run.log("serve.log"));
}

/// A command that is over soon: its code, and what it said.
fn said(arguments: &[&str]) -> (i32, String) {
    let output = program().args(arguments).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8(text).unwrap();
    (output.status.code().unwrap_or(-1), text)
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn a_deployment_says_what_it_was_and_what_was_measured() {
    let mut run = tested();
    run.make_keys();
    complete(&run);
    let summary = run.summary();
    assert_eq!(summary["kind"], "deployment", "{summary}");
    assert_eq!(summary["privacy"]["claim"], "proved", "{summary}");
    assert!(summary.get("diverged").is_none() && summary["seed"].is_null());
    assert_eq!(summary["secrets"], "each client's operating system");
    assert_eq!(summary["dataset"], "clients' own records");
    assert_eq!(summary["data"]["features"], 3);
    assert_eq!(summary["data"]["feature_names"], serde_json::json!(COLUMNS));
    assert_eq!(
        summary["data"]["classes"],
        serde_json::json!(["healthy", "ill"])
    );
    assert_eq!(summary["test"]["records"], 200);
    assert_eq!(summary["messages_taken"], serde_json::json!([8, 8, 8]));
    assert_eq!(
        summary["not_measured"],
        serde_json::json!(["loss", "grad_norm_sq", "utility"])
    );
    // The numbers are those that anybody finds with the files.
    let (model, config) = (
        run.path("out/model.safetensors"),
        run.path("out/config.toml"),
    );
    let test = format!("csv:{}", run.path("test.csv").display());
    let (model, config) = (text(&model), text(&config));
    let arguments = ["evaluate", "--model", model, "--config", config, "--json"];
    let (code, found) = said(&[&arguments[..], &["--data", &test]].concat());
    assert_eq!(code, 0, "{found}");
    let found: serde_json::Value = serde_json::from_str(&found).unwrap();
    assert_eq!(found["accuracy"], summary["final"]["test_accuracy"]);
    let loss = summary["final"]["test_loss"].as_f64().unwrap();
    assert!(
        (found["loss"].as_f64().unwrap() - loss).abs() < 1e-6,
        "{found} {loss}"
    );
    let rounds = read(&run.path("out/rounds.csv"));
    let header = rounds.lines().next().unwrap();
    assert!(header.ends_with(",epsilon,test_loss"), "{header}");
    assert!(rounds.trim_end().ends_with(&format!(",{loss}")), "{rounds}");
    // A page for people: nothing of a simulation, nothing empty.
    let page = read(&run.path("out/report.html"));
    let page = page.split("<script").next().unwrap();
    for there in [
        "SoteriaFL-SGD on clients&#39; own records",
        "a deployment",
        "Test loss",
        "200 test records",
        "age, bmi, pressure",
        "healthy, ill",
        "24 of 24 messages",
        "operating system",
        "soteria serve --config",
    ] {
        assert!(page.contains(there), "{there}");
    }
    for absent in [
        "diverged",
        "simulation",
        "seed 0",
        "a9a",
        "class=\"none\"",
        "class=\"absent\"",
        "soteria train",
    ] {
        let config = page.find("<details>").unwrap();
        assert!(!page[..config].contains(absent), "{absent}");
    }
}

#[test]
fn the_configuration_of_a_deployment_starts_it_again_and_trains_nothing_else() {
    for run in [tested(), untested()] {
        complete(&run);
        let config = read(&run.path("out/config.toml"));
        assert!(
            config.contains("source = \"clients\"") && !config.contains("a9a"),
            "{config}"
        );
        assert!(
            config.contains("features = [\"age\", \"bmi\", \"pressure\"]"),
            "{config}"
        );
        let head: String = config
            .lines()
            .take_while(|line| line.starts_with('#'))
            .collect();
        assert!(head.contains("soteria serve --config"), "{head}");
        let description = |run: &Run| {
            let state = run.ledger(0);
            state["datasets"][0]["runs"].as_array().unwrap().len()
        };
        assert_eq!(description(&run), 1);
        // `train` has no records for it, and does not take others.
        let out = run.path("trained");
        let path = run.path("out/config.toml");
        let (code, error) = said(&["train", "--config", text(&path), "--out", text(&out)]);
        assert_eq!(code, 2, "{error}");
        assert!(
            error.contains("every client has its own") && !out.exists(),
            "{error}"
        );
        // Nor with the configuration as it was written by a person.
        let path = run.path("run.toml");
        let (code, error) = said(&["train", "--config", text(&path), "--out", text(&out)]);
        assert_eq!(code, 2, "{error}");
        // `serve` starts the same deployment: clients that know one shape of records join it.
        std::fs::write(run.path("run.toml"), &config).unwrap();
        std::fs::rename(run.path("out"), run.path("first")).unwrap();
        std::fs::remove_dir_all(run.path("server")).unwrap();
        let mut server = run.serve_anew();
        let mut clients: Vec<_> = (0..3)
            .map(|client| run.join_with(client, &["--max-epsilon", "99"]))
            .collect();
        for process in &mut clients {
            assert_eq!(process.code(), 0, "{}", run.log("join-0.log"));
        }
        assert_eq!(server.code(), 0, "{}", run.log("serve.log"));
        assert_eq!(read(&run.path("out/config.toml")), config);
        assert_eq!(description(&run), 2);
        // Other secrets, another model.
        assert!(run.model() != std::fs::read(run.path("first/model.safetensors")).unwrap());
    }
}

#[test]
fn without_a_test_set_a_deployment_says_that_nothing_was_measured() {
    let run = untested();
    complete(&run);
    let summary = run.summary();
    assert!(
        summary.get("diverged").is_none() && summary["test"].is_null(),
        "{summary}"
    );
    assert_eq!(
        summary["not_measured"],
        serde_json::json!([
            "loss",
            "grad_norm_sq",
            "utility",
            "test_loss",
            "test_accuracy"
        ])
    );
    let page = read(&run.path("out/report.html"));
    let page = page.split("<script").next().unwrap();
    assert!(page.contains("the server has no test set") && page.contains("Not measured:"));
    for absent in ["diverged", "simulation", "seed 0", "class=\"absent\""] {
        assert!(!page.contains(absent), "{absent}");
    }
    // Charts are those of what there is.
    assert!(page.contains("data-chart=\"epsilon\""));
    for chart in ["utility", "loss", "test_loss", "accuracy"] {
        assert!(
            !page.contains(&format!("data-chart=\"{chart}\"")),
            "{chart}"
        );
    }
}

/// Reversed, renamed, missing: refused by name, with nothing stored as spent and nobody joined. The
/// same columns in the run's order join, wherever the label stands; so does a table without names,
/// after a warning.
#[test]
fn columns_are_compared_before_anything_is_spent() {
    for mut run in [tested(), untested()] {
        let mut server = run.serve();
        let reversed = table(&[2, 1, 0], &["pressure", "bmi", "age"], 400, 0);
        let own = read(&run.path("own-0.csv"));
        let renamed = own.replacen("bmi", "BMI", 1);
        let fewer = table(&[0, 1], &["age", "bmi"], 400, 0);
        // What nobody called a header may be a record: then only the run's side is named.
        let guessed = run.data.clone();
        let declared = format!("{guessed}?header=yes");
        for (rows, data, first, hint) in [
            (
                &reversed,
                &guessed,
                "feature 1 is called \"pressure\", where the run has \"age\"; the first line was taken for a header",
                "age, bmi, pressure",
            ),
            (
                &renamed,
                &guessed,
                "feature 2 is not called \"bmi\", as the run has it; the first line was taken for a header",
                "?header=yes",
            ),
            (
                &renamed,
                &declared,
                "feature 2 is called \"BMI\", where the run has \"bmi\"",
                "rename",
            ),
            (
                &fewer,
                &declared,
                "feature 3, \"pressure\", is missing",
                "rename",
            ),
        ] {
            std::fs::write(run.path("own-0.csv"), rows).unwrap();
            run.data = data.clone();
            let _ = std::fs::remove_file(run.path("join-0.log"));
            let mut refused = run.join_with(0, &["--max-epsilon", "9"]);
            assert_eq!(refused.code(), 2, "{}", run.log("join-0.log"));
            let log = run.log("join-0.log");
            assert!(log.contains(first) && log.contains(hint), "{log}");
            assert_eq!(
                log.contains("BMI"),
                rows == &renamed && data == &declared,
                "{log}"
            );
            assert_eq!(run.ledger(0)["datasets"].as_array().unwrap().len(), 0);
            assert!(
                !run.log("serve.log").contains("joined"),
                "{}",
                run.log("serve.log")
            );
        }
        run.data = guessed;
        // The same names in the run's order, the label in front.
        let turned: String = own
            .lines()
            .map(|line| {
                let (features, label) = line.rsplit_once(',').unwrap();
                format!("{label},{features}\n")
            })
            .collect();
        std::fs::write(run.path("own-0.csv"), turned).unwrap();
        let nameless: String = own
            .lines()
            .skip(1)
            .map(|line| format!("{line}\n"))
            .collect();
        std::fs::write(run.path("own-1.csv"), nameless).unwrap();
        let limit = ["--max-epsilon", "9"];
        let labelled = format!("csv:{}?label=outcome", run.path("own-0.csv").display());
        let own = std::mem::replace(&mut run.data, labelled);
        let first = run.join_with(0, &limit);
        run.data = own;
        let mut clients = [first, run.join_with(1, &limit), run.join_with(2, &limit)];
        for process in &mut clients {
            assert_eq!(process.code(), 0, "{}", run.log("join-1.log"));
        }
        assert!(run.log("join-1.log").contains("their order is not checked"));
        assert!(!run.log("join-2.log").contains("their order is not checked"));
        assert_eq!(server.code(), 0, "{}", run.log("serve.log"));
    }
}

/// Names are in the model file of either kind of run, and the files are the same.
#[test]
fn a_table_with_names_gives_the_simulated_bytes() {
    let mut run = Run::new("");
    let rows = table(&[0, 1, 2], &COLUMNS, 90, 0);
    std::fs::write(run.path("all.csv"), rows).unwrap();
    let source = format!("csv:{}", run.path("all.csv").display());
    let config = format!(
        "[data]\nsource = \"{source}\"\nclients = 3\n[algorithm]\npreset = \"soteriafl-sgd\"\nbatch = 9\nrounds = 5\n"
    );
    std::fs::write(run.path("run.toml"), config).unwrap();
    run.data = format!("{source}:{{}}/3");
    let mut server = run.serve();
    let mut clients: Vec<_> = (0..3).map(|client| run.join(client)).collect();
    for process in &mut clients {
        assert_eq!(process.code(), 0, "{}", run.log("join-0.log"));
    }
    assert_eq!(server.code(), 0, "{}", run.log("serve.log"));
    let model = run.model();
    assert!(model == run.simulated());
    let name = b"pressure";
    assert!(model.windows(name.len()).any(|part| part == name));
    let summary = run.summary();
    assert_eq!(
        (&summary["seed"], &summary["secrets"]),
        (&5.into(), &"the test seed".into())
    );
    let page = read(&run.path("out/report.html"));
    assert!(page.contains("test seed 5") && page.contains("--test-seed 5"));
    // What the file says of itself holds: the simulation on it has the same bytes, too.
    let (config, again) = (run.path("out/config.toml"), run.path("again"));
    assert!(read(&config).contains("`soteria train --config` gives the same model"));
    let (code, error) = said(&[
        "train",
        "--config",
        text(&config),
        "--out",
        text(&again),
        "--quiet",
    ]);
    assert_eq!(code, 0, "{error}");
    assert!(model == std::fs::read(again.join("model.safetensors")).unwrap());
}

/// The page does not call a run proved that every client refuses.
#[test]
fn the_dashboard_claims_what_clients_will_agree_to() {
    for (setting, claim) in [
        ("privacy.epsilon=4.0", "proved"),
        ("privacy.accountant=paper", "paper calibration"),
        ("privacy.noise=float", "no claim: its noise is not secure"),
    ] {
        let run = untested();
        let port = free_port();
        let address = format!("127.0.0.1:{port}");
        let _server = run.serve_with(&["--set", setting, "--dashboard", &address]);
        eventually("the dashboard answers", || {
            status(port)["about"].is_object()
        });
        let about = &status(port)["about"];
        assert_eq!(about["claim"], claim, "{about}");
        assert_eq!(about["epsilon"].is_null(), claim != "proved", "{about}");
    }
}
