//! `soteria reproduce`, `compare` and `plan`: their files, that they go on after an interruption,
//! and their numbers.

use serde_json::Value;

use crate::program::{Place, Ran, keys};

const REPRODUCE: &str = "reproduce a9a --epsilon 1 --seeds 2 --modes published,best --quiet";

fn fails(ran: Ran, code: i32, piece: &str) {
    let said = ran.badly(code);
    assert!(said.contains(piece), "{said}");
}

fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

/// Every file of a reproduction, and that neither the number of threads nor an interruption changes
/// a byte.
#[test]
fn a_reproduction_repeats_and_goes_on() {
    let place = Place::new();
    let ran = place
        .run(&words(&format!("{REPRODUCE} --threads 1 --out one")))
        .well();
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("", ""));
    let files = [
        "summary.json",
        "report.html",
        "curves/figure-1.csv",
        "figures/figure-1-published.svg",
        "figures/figure-1-published.png",
        "settings/a9a-epsilon-1-published-cdp-sgd.toml",
        "settings/a9a-epsilon-1-best-auto.toml",
    ];
    // The same again on two threads, with some runs done and one torn: as after an interruption.
    std::fs::create_dir_all(place.path("two/jobs")).unwrap();
    let mut jobs: Vec<_> = std::fs::read_dir(place.path("one/jobs"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    jobs.sort();
    assert_eq!(jobs.len(), 12);
    for job in &jobs[..5] {
        std::fs::copy(
            place.path(&format!("one/jobs/{job}")),
            place.path(&format!("two/jobs/{job}")),
        )
        .unwrap();
    }
    std::fs::write(
        place.path(&format!("two/jobs/{}", jobs[5])),
        b"{\"points\":[{",
    )
    .unwrap();
    let line = REPRODUCE.replace(" --quiet", "");
    let again = place
        .run(&words(&format!("{line} --threads 2 --out two")))
        .well();
    assert!(
        again.stderr.contains("going on: 5 of 12 runs are there"),
        "{again:?}"
    );
    assert!(
        again.stdout.contains("Published against reproduced")
            && again.stdout.contains("12 runs in"),
        "{again:?}"
    );
    for file in files {
        let (first, second) = (
            std::fs::read(place.path(&format!("one/{file}"))).unwrap(),
            std::fs::read(place.path(&format!("two/{file}"))).unwrap(),
        );
        if file.starts_with("settings") {
            // The start lies beside the results.
            let text = String::from_utf8(second)
                .unwrap()
                .replace("two/a9a", "one/a9a");
            assert_eq!(String::from_utf8(first).unwrap(), text);
        } else {
            assert!(first == second, "{file} differs");
        }
    }
    let csv = place.text("one/curves/figure-1.csv");
    let published = csv.lines().filter(|line| line.contains(",published,"));
    assert_eq!(published.count(), 5 * 26);
    assert!(csv.starts_with("figure,problem,epsilon,mode,algorithm,runs,round,paper_bits"));
    let page = place.text("one/report.html");
    for piece in [
        "as published",
        "best proved",
        "What the published noise really gives",
        "uPlot",
    ] {
        assert!(page.contains(piece), "{piece}");
    }
    assert!(
        !page.contains("src=") && !page.contains("<link"),
        "it loads nothing"
    );
    let summary: Value = serde_json::from_str(&place.text("one/summary.json")).unwrap();
    assert_eq!(summary["bands"].as_array().unwrap().len(), 10);
    assert_eq!(summary["runs"].as_array().unwrap().len(), 6);
    let best = &summary["runs"][5];
    assert_eq!(
        (&best["mode"], &best["claim"]),
        (&"best proved".into(), &"proved".into())
    );
    assert!(best["epsilon_proved"].as_f64().unwrap() <= 1.0);
    // Within the bits of the published compressed runs.
    let bits = |run: &Value| run["paper_bits"].as_u64().unwrap();
    assert!(bits(best) <= bits(&summary["runs"][3]));
}

/// The authors tuned their step sizes on these records: what is proved is said to be the
/// mechanism's, and the written settings claim nothing.
#[test]
fn proved_runs_say_that_their_step_sizes_are_from_the_data() {
    let place = Place::new();
    let line = "reproduce a9a --epsilon 1 --seeds 1 --modes proved,best --out there";
    let ran = place.run(&words(line)).well();
    let summary = place.json("there/summary.json");
    for text in [
        ran.stdout.as_str(),
        &place.text("there/report.html"),
        &place.text("there/tables.md"),
        summary["epsilon_means"].as_str().unwrap(),
    ] {
        assert!(text.contains("fixed beforehand") && text.contains("MNIST count as public"));
    }
    let runs = summary["runs"].as_array().unwrap();
    assert!(runs.iter().all(|run| run["epsilon_proved"].is_f64()));
    assert_eq!(runs[0]["step_size_from_data"], true);
    assert_eq!(runs[5]["step_size_from_data"], false);
    let claim = |settings: &str, out: &str| {
        let settings = format!("there/settings/a9a-epsilon-1-{settings}.toml");
        let line = ["train", "--config", &settings, "--out", out, "--json"];
        let again = place.run(&line).well().object();
        again["privacy"]["claim"].as_str().unwrap().to_string()
    };
    let tuned = claim("proved-ldp-sgd", "tuned");
    assert_eq!(tuned, "step size tuned on the records");
    assert_eq!(claim("best-auto", "best"), "proved");
}

/// Where seeds deal the records otherwise, each has a cost of its own: the largest is printed.
#[test]
fn a_comparison_prints_what_holds_for_every_seed() {
    let place = Place::new();
    let settings = "--set data.source=synthetic:600x8 --set data.clients=3 --set data.partition=dirichlet \
                    --set algorithm.rounds=12 --set algorithm.batch=1 --set privacy.sigma=0.5";
    let line = format!("compare {settings} --algorithms ldp-sgd --seeds 2..5 --out there");
    let ran = place.run(&words(&line)).well();
    for piece in [
        "at delta 1e-5, replace-one",
        "Choosing an algorithm by them costs privacy too",
    ] {
        assert!(ran.stdout.contains(piece), "{piece}: {ran:?}");
    }
    let compared = place.json("there/summary.json");
    let epsilons = [2, 3, 4].map(|seed| {
        let line = format!(
            "train {settings} --set algorithm.preset=ldp-sgd --seed {seed} --out seed-{seed} --json"
        );
        let summary = place.run(&words(&line)).well().object();
        summary["privacy"]["epsilon"].as_f64().unwrap()
    });
    let largest = epsilons.into_iter().fold(0.0, f64::max);
    assert!(
        epsilons[0] < largest,
        "the first is not the largest: {epsilons:?}"
    );
    assert_eq!(compared["algorithms"][0]["epsilon"], largest);
}

/// Ctrl-C after the first finished run: it is kept, nothing else is, and the command goes on.
#[cfg(unix)]
#[test]
fn an_interrupted_comparison_goes_on() {
    let place = Place::new();
    // Runs long enough to be interrupted between the first and the last, short enough for a test.
    let line = "compare --set data.source=synthetic:60x4 --set data.clients=3 --set run.eval_every=0 --set privacy.epsilon=none \
                --algorithms soteriafl-gd --seeds 0..8 --threads 2 --out there --set algorithm.rounds=60000";
    let child = place.command(&words(line)).spawn().unwrap();
    let begun = std::time::Instant::now();
    let kept = || std::fs::read_dir(place.path("there/jobs")).map_or(0, Iterator::count);
    while kept() == 0 {
        assert!(begun.elapsed().as_secs() < 120, "no run ends");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let sent = std::process::Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status()
        .unwrap();
    assert!(sent.success());
    let ran: Ran = child.wait_with_output().unwrap().into();
    let said = ran.badly(1);
    assert!(
        said.contains("interrupted after ") && said.contains("goes on"),
        "{said}"
    );
    assert!(!place.path("there/report.html").exists());
    let finished = kept();
    assert!((1..8).contains(&finished), "{finished}");
    let again = place.run(&words(line)).well();
    assert!(
        again
            .stderr
            .contains(&format!("going on: {finished} of 8 runs")),
        "{again:?}"
    );
    assert!(place.path("there/report.html").exists());
}

#[test]
fn what_cannot_be_reproduced_is_said() {
    let place = Place::new();
    let ran = place.run(&words("reproduce a9a --epsilon 3 --out none"));
    fails(ran, 2, "the paper has no such figure");
    assert!(!place.path("none").exists());
    for (check, reason) in [
        ("--seeds 1", "one seed has no spread"),
        ("--modes best", "no run as published"),
    ] {
        let check = format!("reproduce a9a --epsilon 1 --check --out none {check}");
        fails(place.run(&words(&check)), 2, reason);
        assert!(!place.path("none").exists());
    }
    let ran = place.run(&words("reproduce mnist --data nowhere --out none"));
    fails(ran, 1, "soteria data fetch mnist");
    assert!(!place.path("none").exists());
    std::fs::create_dir(place.path("other")).unwrap();
    std::fs::write(place.path("other/file"), "mine").unwrap();
    let ran = place.run(&words("reproduce a9a --epsilon 1 --seeds 1 --out other"));
    fails(ran, 2, "holds something else");
}

/// Two algorithms on drawn data: a table, figures, sentences; tuning says what it costs.
#[test]
fn a_comparison_tells_who_wins() {
    let place = Place::new();
    let line = "compare --set data.source=synthetic:600x8 --set data.clients=3 --set algorithm.rounds=12 \
                --set privacy.epsilon=5 --algorithms ldp-sgd,soteriafl-sgd --seeds 0..3";
    let ran = place.run(&words(&format!("{line} --out plain"))).well();
    for piece in [
        "After 12 rounds: ",
        "Within ",
        "ldp-sgd",
        "soteriafl-sgd",
        "report.html",
    ] {
        assert!(ran.stdout.contains(piece), "{piece}: {ran:?}");
    }
    for file in [
        "report.html",
        "curves.csv",
        "summary.json",
        "against-rounds.svg",
        "against-bits.png",
        "settings/ldp-sgd-step-0.3.toml",
    ] {
        assert!(place.path(&format!("plain/{file}")).exists(), "{file}");
    }
    let object = place
        .run(&words(&format!(
            "{line} --tune 0.1,0.5,2 --out tuned --json"
        )))
        .well()
        .object();
    assert_eq!(
        keys(&object),
        [
            "adjacency",
            "against_bits",
            "against_both_ways",
            "against_rounds",
            "algorithms",
            "delta",
            "note",
            "problem",
            "records_per_person",
            "summary",
            "tuned",
            "version"
        ]
    );
    assert_eq!(object["tuned"], true);
    for algorithm in object["algorithms"].as_array().unwrap() {
        // Whatever the noise, the choice looked at the records.
        assert_eq!(algorithm["claim"], "step size tuned on the records");
        assert_eq!(algorithm["epsilon"], Value::Null);
        let tried = algorithm["tried"].as_array().unwrap();
        assert_eq!(tried.len(), 3);
        let loss = |value: &Value| value["loss"]["mean"].as_f64().unwrap();
        let used = tried
            .iter()
            .find(|t| t["step_size"] == algorithm["step_size"])
            .unwrap();
        assert!(
            tried.iter().all(|other| loss(used) <= loss(other)),
            "{algorithm}"
        );
    }
    let page = place.text("tuned/report.html");
    for piece in [
        "costs budget",
        "nothing is claimed for these runs",
        "step size tuned on the records",
    ] {
        assert!(page.contains(piece), "{piece}");
    }
    let table = place
        .run(&words(&format!("{line} --tune 0.1,0.5,2 --out tuned")))
        .well()
        .stdout;
    assert_eq!(
        table
            .matches("no claim: step size tuned on the records")
            .count(),
        2,
        "{table}"
    );
    // The written settings repeat the run, and its missing claim.
    let again = place
        .run(&words(
            "train --config tuned/settings/ldp-sgd-step-0.5.toml --out again --json",
        ))
        .well()
        .object();
    assert_eq!(again["privacy"]["claim"], "step size tuned on the records");
    assert_eq!(again["privacy"]["epsilon"], Value::Null);
    let page = place.text("again/report.html");
    assert!(page.contains("makes no privacy claim") && page.contains("chosen by what they gave"));
    // Untuned runs keep theirs.
    let plain: Value = serde_json::from_str(&place.text("plain/summary.json")).unwrap();
    assert_eq!(plain["algorithms"][0]["claim"], "proved");

    let unknown = place.run(&words("compare --algorithms ldp-sgd,top-k --out bad"));
    fails(unknown, 2, "algorithm.preset");
    let empty = place.run(&words(
        "compare --algorithms ldp-sgd --seeds 5..5 --out bad",
    ));
    fails(empty, 2, "no seed");
    assert!(!place.path("bad").exists());
}

/// Every row of Table 1 on one problem: those that trust somebody stand apart, and one node sends
/// nothing.
#[test]
fn table_1_runs_side_by_side() {
    let place = Place::new();
    let line = "compare --algorithms table1,soteriafl-sag,cdp-sgd --seeds 0..1 --quiet --out table \
                --set data.source=synthetic:600x5 --set data.clients=3 --set algorithm.rounds=4 \
                --set privacy.epsilon=2";
    place.run(&words(line)).well();
    let summary: Value = serde_json::from_str(&place.text("table/summary.json")).unwrap();
    let rows = summary["algorithms"].as_array().unwrap();
    let row = |name: &str| {
        let mut found = rows.iter().filter(|row| row["algorithm"] == name);
        let row = found.next().unwrap_or_else(|| panic!("{name}"));
        assert!(found.next().is_none(), "{name} is there once");
        row
    };
    for one in ["rrpsgd", "dp-gd", "dp-sgd", "dp-srm"] {
        assert_eq!(row(one)["trusts"], "one node");
    }
    assert_eq!(row("distributed-dp-srm")["trusts"], "the sum");
    assert!(row("distributed-dp-srm")["epsilon"].is_null());
    let local = [
        "ldp-svrg",
        "ldp-spider",
        "cdp-sgd",
        "soteriafl-saga",
        "soteriafl-sag",
    ];
    for name in local {
        assert_eq!(row(name)["trusts"], "nobody", "{name}");
        let epsilon = row(name)["epsilon"].as_f64().unwrap();
        assert!(epsilon > 1.9 && epsilon <= 2.0, "{name}: {epsilon}");
    }
    for axis in ["against_rounds", "against_bits", "against_both_ways"] {
        let ranking = summary[axis]["ranking"].as_array().unwrap();
        let ranked = |name: &str| ranking.iter().any(|entry| entry["algorithm"] == name);
        assert!(local.into_iter().all(ranked), "{axis}");
        assert!(!ranked("dp-gd") && !ranked("distributed-dp-srm"), "{axis}");
    }
    // What travels both ways is more than what goes up.
    let both = |name: &str| row(name)["bytes_both_ways"].as_u64().unwrap();
    assert!(both("ldp-svrg") > both("cdp-sgd"));
    let page = place.text("table/report.html");
    assert!(page.contains("Not ranked, because they trust somebody"));
    assert!(
        place
            .text("table/overview.svg")
            .contains("bytes sent by all clients and to them")
    );
}

/// The paper's a9a set-up: batches and shift step of its figures, formulas worked out by hand.
#[test]
fn a_plan_has_the_papers_numbers() {
    let place = Place::new();
    let line = "plan --clients 10 --samples 3256 --dimension 124 --epsilon 1 --delta 1e-3 --clip 0.5 --smoothness 1 --rand-k 0.05";
    let object = place.run(&words(&format!("{line} --json"))).well().object();
    let algorithms = object["algorithms"].as_array().unwrap();
    let named = |name: &str| {
        let found = algorithms.iter().find(|row| row["algorithm"] == name);
        found.unwrap_or_else(|| panic!("{name}"))
    };
    let near = |value: &Value, expected: f64| {
        let value = value.as_f64().unwrap();
        assert!(
            (value / expected - 1.0).abs() < 1e-4,
            "{value} is not {expected}"
        );
    };
    assert_eq!(named("SoteriaFL-SGD")["batch"], 10.0);
    assert_eq!(named("CDP-SGD")["batch"], 10.0);
    assert_eq!(named("SoteriaFL-SVRG")["batch"], 54.0);
    assert_eq!(named("SoteriaFL-GD")["batch"], 3256.0);
    assert_eq!(named("CDP-SGD")["shift_step"], Value::Null);
    let omega = 124.0 / 6.0 - 1.0;
    near(&object["omega"], omega);
    let tau = (1.0 + omega).powf(1.5) / 10.0f64.sqrt();
    near(&object["tau"], tau);
    near(&named("SoteriaFL-GD")["step_size"], 1.0 / (1.0 + 2.0 * tau));
    near(
        &named("SoteriaFL-GD")["shift_step"],
        ((1.0 + 2.0 * omega) / (2.0 * (1.0 + omega).powi(3))).sqrt(),
    );
    for row in algorithms {
        // The theorem's sigma, and 64 bits for each of k values of ten clients.
        let rounds = row["rounds"].as_f64().unwrap();
        let factor = match row["algorithm"].as_str().unwrap() {
            "CDP-SGD" => 8.0,
            "SoteriaFL-SVRG" | "SoteriaFL-SAGA" => 96.0,
            _ => 12.0,
        };
        let sigma = (factor * 0.25 * rounds * 1000f64.ln()).sqrt() / 3256.0;
        near(&row["sigma"]["theorem"], sigma);
        near(&row["communication"]["bits"], 64.0 * 60.0 * rounds);
        assert!(
            row["utility_bound"]["exact"].as_f64().unwrap() > 0.0,
            "{row}"
        );
    }
    assert_eq!(object["table_1"].as_array().unwrap().len(), 10);
    assert_eq!(object["table_2"].as_array().unwrap().len(), 4);
    // d log(1/delta) = 124 * 6.9078, m epsilon = 3256, squared norms: the power 4/3, not 1.
    let newer = &object["newer_bounds"][0];
    assert_eq!(
        (&newer["algorithm"], &newer["presets"]),
        (&"DP-SRM".into(), &"dp-srm".into())
    );
    assert!(newer["source"].as_str().unwrap().starts_with("UAI 2023"));
    let single = (124.0 * 1000f64.ln()).sqrt() / 3256.0;
    near(&newer["utility"], single.powf(4.0 / 3.0));
    near(&object["table_1"][1]["utility"], single);
    assert!(object["recommended"].is_string());

    let text = place.run(&words(line)).well().stdout;
    for piece in ["Table 1", "Table 2", "Recommended: ", "do not hold"] {
        assert!(text.contains(piece), "{piece}");
    }
    let few = place.run(&words("plan --clients 10 --samples 100"));
    fails(few, 2, "--dimension is missing");
    // With the scaling of the paper the mean loss is 1-smooth, its regularizer (lambda = 0.2) adds
    // 2 lambda.
    let measured = place
        .run(&words(
            "plan --set data.rows=32560 --set data.scale=spectral --set model.lambda=0.2 --json",
        ))
        .well()
        .object();
    near(&measured["smoothness"], 1.4);
    assert_eq!(measured["samples"], 3256.0);
}
