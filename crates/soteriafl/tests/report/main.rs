//! The report of a run: what must be in the page, and what can never be.
//!
//! `SOTERIA_REPORT_SAMPLE=DIR cargo test -p soteriafl --test report -- --ignored` leaves sample
//! runs with their pages in DIR, to be looked at.

mod figures;

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use soteriafl::report::{self, Figure, MAX_POINTS, Panel, Row, RunFiles, Series};

const CONFIG: &str = r#"# soteria 0.1.0
[data]
source = "a9a"
clients = 10
partition = "sorted"
scale = "none"
weighting = "records"

[model]
kind = "logistic"
intercept = true
regularizer = "nonconvex"
lambda = 0.001
regularizer_at = "server"
init = "zeros"

[algorithm]
preset = "soteriafl-gd"
estimator = "gd"
compressor = "rand-k"
fraction = 0.05
shift = 0.0341
step_size = 12.0
schedule = "constant"
rounds = 300
participation = 1.0

[privacy]
epsilon = 1.0
delta = 1e-5
adjacency = "replace-one"
clip = 0.11
clip_scope = "selected"
sampling = "poisson"
accountant = "pld"
amplification = "auto"
noise = "float"

[run]
seed = 0
eval_every = 1
"#;

fn summary() -> serde_json::Value {
    serde_json::json!({
        "algorithm": "soteriafl-gd", "dataset": "a9a", "clients": 10,
        "samples_per_client": [3257, 3256, 3256, 3256, 3256, 3256, 3256, 3256, 3256, 3256],
        "dimension": 124, "rounds": 300, "seed": 0,
        "privacy": {
            "epsilon": 0.99993, "delta": 1e-5, "adjacency": "replace-one", "sigma": 0.005_812,
            "sigmas": [0.00581, 0.005_812, 0.005_812], "noise": "float (simulated)", "accountant": "pld",
            "amplified": false, "epsilon_unamplified": 0.99993, "claim": "proved"
        },
        "final": {"loss": 0.352_91, "grad_norm_sq": 3.1e-4, "utility": 0.004_47, "test_accuracy": 0.844_3},
        "traffic": {"paper_bits": 1_152_000.0, "uplink_bytes": 108_000, "downlink_bytes": 1_488_000},
        "seconds": {"total": 2.81, "training": 1.42, "evaluation": 0.97}
    })
}

/// A run that looks like one: noisy descent of `rows` evaluated rounds.
fn rows(count: u64) -> Vec<Row> {
    let mut sum = 0.0;
    let mut state = 1u64;
    let mut noise = move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as f64 / 2f64.powi(31) - 0.5
    };
    let mut row = |round: u64| {
        let t = round as f64;
        let grad_norm_sq =
            (0.25 * (-t / 9.0).exp() + 0.004 / (1.0 + t / 25.0)) * (1.0 + 0.8 * noise());
        sum += grad_norm_sq;
        Row {
            round,
            paper_bits: t * 10.0 * 6.0 * 64.0,
            uplink_bytes: round * 10 * 36,
            downlink_bytes: round * 10 * 496,
            loss: 0.35 + 0.34 * (-t / 14.0).exp() + 0.004 * noise(),
            grad_norm_sq,
            utility: sum / (t + 1.0),
            test_accuracy: Some(0.845 - 0.081 * (-t / 20.0).exp() + 0.003 * noise()),
            epsilon: Some(
                0.99993
                    * ((round.div_ceil(10) * 10) as f64 / count.max(2) as f64)
                        .min(1.0)
                        .sqrt(),
            ),
            test_loss: None,
            consensus_error: None,
        }
    };
    (0..count).map(&mut row).collect()
}

fn run() -> RunFiles {
    RunFiles {
        config: CONFIG.to_owned(),
        rounds: rows(301),
        summary: summary(),
    }
}

fn write_run(directory: &Path, run: &RunFiles) {
    fs::create_dir_all(directory).unwrap();
    let mut csv = String::from(
        "round,paper_bits,uplink_bytes,downlink_bytes,loss,grad_norm_sq,utility,test_accuracy,epsilon\n",
    );
    let cell = |value: Option<f64>| value.map_or(String::new(), |value| value.to_string());
    for row in &run.rounds {
        let Row {
            round,
            paper_bits,
            uplink_bytes,
            downlink_bytes,
            loss,
            grad_norm_sq,
            utility,
            ..
        } = row;
        let (accuracy, epsilon) = (cell(row.test_accuracy), cell(row.epsilon));
        writeln!(
            csv,
            "{round},{paper_bits},{uplink_bytes},{downlink_bytes},{loss},{grad_norm_sq},{utility},{accuracy},{epsilon}"
        )
        .unwrap();
    }
    fs::write(directory.join("rounds.csv"), csv).unwrap();
    fs::write(directory.join("config.toml"), &run.config).unwrap();
    fs::write(
        directory.join("summary.json"),
        serde_json::to_string_pretty(&run.summary).unwrap(),
    )
    .unwrap();
    fs::write(directory.join("report.html"), report::html(run)).unwrap();
    fs::write(directory.join("curves.svg"), report::svg(run)).unwrap();
}

/// The data island of a page.
fn island(page: &str) -> serde_json::Value {
    let start = page.find("id=\"run-data\">").expect("an island") + "id=\"run-data\">".len();
    let end = start + page[start..].find("</script>").expect("an end");
    serde_json::from_str(&page[start..end]).expect("valid JSON")
}

/// Checks that elements are nested rightly, attributes quoted and entities known, and returns all
/// tags.
///
/// It knows just enough of HTML for these pages: elements without content, and raw text in scripts
/// and styles.
fn tags(markup: &str) -> Vec<String> {
    const VOID: [&str; 2] = ["meta", "!DOCTYPE"];
    const RAW: [&str; 2] = ["script", "style"];
    let mut open: Vec<String> = Vec::new();
    let mut found = Vec::new();
    let mut rest = markup;
    while let Some(start) = rest.find('<') {
        check_text(&rest[..start]);
        rest = &rest[start + 1..];
        let end = rest.find('>').expect("a tag that ends");
        let tag = &rest[..end];
        rest = &rest[end + 1..];
        assert!(!tag.contains('<'), "a tag inside a tag: {tag}");
        found.push(tag.to_owned());
        let name = tag
            .trim_start_matches('/')
            .split([' ', '/', '\n'])
            .next()
            .unwrap()
            .to_owned();
        if tag.starts_with('/') {
            assert_eq!(
                open.pop().as_deref(),
                Some(name.as_str()),
                "a stray end tag"
            );
        } else if !tag.ends_with('/') && !VOID.contains(&name.as_str()) {
            assert!(
                tag.matches('"').count().is_multiple_of(2),
                "an open quote: {tag}"
            );
            if RAW.contains(&name.as_str()) {
                rest = &rest[rest.find(&format!("</{name}")).expect("an end tag")..];
            }
            open.push(name);
        }
    }
    check_text(rest);
    assert!(open.is_empty(), "never closed: {open:?}");
    found
}

fn check_text(text: &str) {
    assert!(!text.contains('>'), "a bare > in {text:?}");
    for (at, _) in text.match_indices('&') {
        let entity = &text[at + 1..];
        let entity = &entity[..entity.find(';').expect("an entity that ends")];
        let known = ["amp", "lt", "gt", "quot"].contains(&entity)
            || entity
                .strip_prefix('#')
                .is_some_and(|digits| digits.parse::<u32>().is_ok());
        assert!(known, "an unknown entity &{entity};");
    }
}

#[test]
fn a_run_read_back_gives_the_same_page() {
    let directory = tempfile::tempdir().unwrap();
    let run = run();
    write_run(directory.path(), &run);
    let read = RunFiles::read(directory.path()).unwrap();
    assert_eq!(read.rounds, run.rounds);
    assert_eq!(report::html(&read), report::html(&run));
}

#[test]
fn the_page_holds_its_facts_and_everything_it_needs() {
    let page = report::html(&run());
    for part in [
        "<title>SoteriaFL-GD on a9a</title>",
        "var uPlot=function()",
        "Copyright (c) 2022 Leon Sorokin",
        "84.43\u{202f}%",
        "0.3529",
        "ε = 1 <span class=\"badge proved\">proved</span>",
        "δ = 10⁻⁵, replace-one",
        "108 kB",
        "1.15 Mbit as the paper counts",
        // 300 rounds x 10 clients x 124 coordinates x 4 bytes over 108 kB
        "13.8×",
        "1.42 s",
        "float (simulated)",
        "a simulation&#39;s privilege",
        "clip_scope = &quot;selected&quot;",
        "soteria train --config config.toml",
    ] {
        let plain = part.replace("&#39;", "'");
        assert!(
            page.contains(part) || page.contains(&plain),
            "the page lacks {part:?}"
        );
    }
    for chart in ["utility", "loss", "accuracy", "epsilon"] {
        assert_eq!(
            page.matches(&format!("data-chart=\"{chart}\"")).count(),
            1,
            "{chart}"
        );
    }
}

#[test]
fn the_page_loads_nothing() {
    let page = report::html(&run());
    for tag in tags(&page) {
        for attribute in [
            " src=",
            " href=",
            " srcset=",
            " action=",
            " data=",
            " background=",
        ] {
            assert!(!tag.contains(attribute), "<{tag}> can load something");
        }
        assert!(!tag.starts_with("link") && !tag.starts_with("iframe") && !tag.starts_with("base"));
    }
    for loader in [
        "@import",
        "url(http",
        "url(//",
        "fetch(",
        "XMLHttpRequest",
        "WebSocket",
        "EventSource",
        "sendBeacon",
    ] {
        assert!(!page.contains(loader), "the page holds {loader}");
    }
    assert!(page.contains("default-src 'none'"));
}

#[test]
fn foreign_text_stays_text() {
    const ATTACK: &str = "</script></title></pre><script>alert(1)</script><img src=x onerror=\"alert('2')\">&amp;<!--";
    let mut run = run();
    let quoted = serde_json::Value::from(ATTACK).to_string();
    run.config = run
        .config
        .replace("\"nonconvex\"", &quoted)
        .replace("\"pld\"", &quoted)
        .replace("\"gd\"", &quoted);
    run.config = run
        .config
        .replace("\"a9a\"", &quoted)
        .replace("\"rand-k\"", &quoted)
        .replace("0.11", &quoted);
    assert!(run.config.parse::<toml::Table>().is_ok());
    for key in ["algorithm", "dataset", "seed", "version"] {
        run.summary[key] = ATTACK.into();
    }
    for key in ["adjacency", "noise", "accountant", "claim"] {
        run.summary["privacy"][key] = ATTACK.into();
    }
    for claim in [ATTACK, "proved"] {
        run.summary["privacy"]["claim"] = claim.into();
        let page = report::html(&run);
        let found = tags(&page);
        assert_eq!(
            found.iter().filter(|tag| tag.starts_with("script")).count(),
            4
        );
        assert!(found.iter().all(|tag| !tag.starts_with("img")));
        assert!(!page.contains("<!--") && !page.contains("<script>alert"));
        island(&page);
        tags(&report::svg(&run));
    }
}

#[test]
fn long_runs_are_thinned_and_keep_their_end_and_extremes() {
    let mut run = run();
    run.rounds = rows(12_345);
    run.rounds[6_000].loss = 9.0;
    run.rounds[7_000].loss = f64::NAN;
    let page = report::html(&run);
    let data = island(&page);
    let rounds = data["round"].as_array().unwrap();
    assert!(
        rounds.len() <= MAX_POINTS && rounds.len() > MAX_POINTS / 4,
        "{}",
        rounds.len()
    );
    assert_eq!(
        (rounds[0].as_u64(), rounds[rounds.len() - 1].as_u64()),
        (Some(0), Some(12_344))
    );
    for column in [
        "uplink_bytes",
        "paper_bits",
        "loss",
        "grad_norm_sq",
        "utility",
        "test_accuracy",
        "epsilon",
    ] {
        assert_eq!(
            data[column].as_array().unwrap().len(),
            rounds.len(),
            "{column}"
        );
    }
    assert!(
        data["loss"]
            .as_array()
            .unwrap()
            .iter()
            .any(|loss| loss.as_f64() == Some(9.0))
    );
    assert!(page.contains("1 of 12345 rows hold no finite value"));
    assert!(page.len() < 1_000_000, "{} bytes", page.len());
}

#[test]
fn odd_runs_have_a_page_too() {
    let mut nothing = RunFiles {
        config: String::new(),
        rounds: Vec::new(),
        summary: serde_json::json!({}),
    };
    tags(&report::html(&nothing));
    tags(&report::svg(&nothing));
    nothing.summary = serde_json::json!({"interrupted": true});
    assert!(report::html(&nothing).contains("interrupted, last seen before its first row"));

    let mut one = run();
    one.rounds.truncate(1);
    let page = report::html(&one);
    assert_eq!(island(&page)["round"], serde_json::json!([0]));
    assert!(page.contains("nothing was sent"));

    let mut diverged = run();
    for row in &mut diverged.rounds[1..] {
        (row.loss, row.grad_norm_sq, row.utility) = (f64::INFINITY, f64::NAN, f64::NAN);
        (row.test_accuracy, row.epsilon) = (None, None);
    }
    diverged.rounds[0].test_accuracy = None;
    diverged.rounds[0].epsilon = None;
    diverged.summary["final"] =
        serde_json::json!({"loss": null, "grad_norm_sq": null, "test_accuracy": null});
    diverged.summary["privacy"] = serde_json::json!({"epsilon": null, "claim": "no noise"});
    let page = report::html(&diverged);
    tags(&page);
    tags(&report::svg(&diverged));
    assert!(
        page.contains("as in runs without a test set") && page.contains("makes no privacy claim")
    );
    assert!(page.contains("no claim: no noise") && !page.contains("data-chart=\"epsilon\""));
    assert_eq!(island(&page)["loss"][1], serde_json::Value::Null);
}

/// The page of a deployment: of what its server measured, and nothing of a simulation.
#[test]
fn a_deployment_has_a_page_of_its_own() {
    let mut deployed = run();
    for row in &mut deployed.rounds {
        row.test_loss = Some(row.loss);
        (row.loss, row.grad_norm_sq, row.utility) = (f64::NAN, f64::NAN, f64::NAN);
    }
    let summary = &mut deployed.summary;
    summary["kind"] = "deployment".into();
    summary["dataset"] = "clients' own records".into();
    summary["seed"] = serde_json::Value::Null;
    summary["privacy"]["noise"] = "secure".into();
    summary["data"] = serde_json::json!({
        "features": 2, "feature_names": ["<b>age</b>", "bmi"], "classes": ["no", "yes"],
    });
    summary["test"] = serde_json::json!({"source": "csv:<i>.csv", "records": 1234});
    summary["final"] = serde_json::json!({"loss": null, "test_loss": 0.351, "test_accuracy": 0.84});
    // Of 3000 planned.
    summary["messages_taken"] = serde_json::json!([300, 300, 100]);
    let page = report::html(&deployed);
    tags(&page);
    tags(&report::svg(&deployed));
    let text = page.split("<script").next().unwrap();
    for there in [
        "Report of a deployment",
        "on 1234 test records",
        "0.351",
        "&lt;b&gt;age&lt;/b&gt;, bmi",
        "no, yes",
        "700 of 3000 messages were taken",
        "own operating system",
        "soteria serve --config",
        "data-chart=\"test_loss\"",
    ] {
        assert!(text.contains(there), "{there}");
    }
    for absent in [
        "simulation",
        "seed 0",
        "diverged",
        "disjoint",
        "data-chart=\"loss\"",
        "class=\"absent\"",
    ] {
        assert!(!text.contains(absent), "{absent}");
    }
    assert!(island(&page)["test_loss"][300].as_f64().is_some());

    // What diverged is called so; what was not measured is not.
    deployed.summary["diverged"] = true.into();
    deployed.summary["final"]["test_loss"] = serde_json::Value::Null;
    let page = report::html(&deployed);
    assert!(page.contains(">diverged</span>") && page.contains(">not a number</span>"));
    deployed.summary["diverged"] = false.into();
    deployed.summary["test"] = serde_json::Value::Null;
    for row in &mut deployed.rounds {
        (row.test_loss, row.test_accuracy) = (None, None);
    }
    let page = report::html(&deployed);
    assert!(page.contains("the server has no test set") && !page.contains(">diverged</span>"));
    for chart in ["test_loss", "accuracy"] {
        assert!(
            !page.contains(&format!("data-chart=\"{chart}\"")),
            "{chart}"
        );
    }
}

#[test]
fn an_interrupted_run_tells_where_it_stopped_and_what_it_spent() {
    let mut run = run();
    run.rounds.truncate(101);
    run.summary["interrupted"] = true.into();
    let page = report::html(&run);
    assert!(page.contains("interrupted, last seen after round 100"));
    assert!(page.contains("spent up to round 100") && page.contains("of 300 planned"));
    // The ratio is that of the last row: 100 x 10 x 124 x 4 over 36 kB.
    assert!(page.contains("13.8×"));
}

#[test]
fn a_missing_file_is_named() {
    let directory = tempfile::tempdir().unwrap();
    write_run(directory.path(), &run());
    fs::remove_file(directory.path().join("summary.json")).unwrap();
    let error = RunFiles::read(directory.path()).unwrap_err().to_string();
    assert!(
        error.starts_with("cannot read ") && error.contains("summary.json"),
        "{error}"
    );
}
