//! `soteria plan`: its noise is the noise of `soteria train`, and what it says is true.

use serde_json::Value;

use crate::program::Place;

fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

fn row<'a>(plan: &'a Value, name: &str) -> &'a Value {
    let rows = plan["algorithms"].as_array().unwrap();
    let found = rows.iter().find(|row| row["algorithm"] == name);
    found.unwrap_or_else(|| panic!("{name}"))
}

/// The epsilon that `soteria train` claims with these settings.
fn claimed(place: &Place, settings: &[String]) -> f64 {
    let mut arguments = vec!["train", "--quiet", "--json", "--out", "run", "--force"];
    for setting in settings {
        arguments.extend(["--set", setting]);
    }
    let summary = place.run(&arguments).well().object();
    assert_eq!(summary["privacy"]["claim"], "proved", "{summary}");
    summary["privacy"]["epsilon"].as_f64().unwrap()
}

/// A plan's row as settings of a run with its sigma fixed. The step size depends on the records'
/// smoothness, which is said, and privacy does not depend on it.
fn as_run(row: &Value, more: &[&str]) -> Vec<String> {
    let settings = row["settings"].as_array().unwrap().iter();
    settings
        .map(|setting| setting.as_str().unwrap())
        .filter(|setting| !setting.starts_with("algorithm.step_size"))
        .chain(more.iter().copied())
        .map(str::to_string)
        .chain([format!("privacy.sigma={}", row["sigma"]["exact"])])
        .collect()
}

/// The defaults clip on the coordinates that travel, which is all that random-k saves: with sigma
/// 3.831e-3, which counts it a second time, 448 rounds of GD cost epsilon 5.19.
#[test]
fn the_default_plan_meets_its_target() {
    let place = Place::new();
    let plan = place
        .run(&words(
            "plan --set privacy.epsilon=1 --set privacy.delta=1e-3 --json",
        ))
        .well()
        .object();
    let gd = row(&plan, "SoteriaFL-GD");
    assert_eq!(gd["rounds"], 448.0);
    assert_eq!(gd["clip_scope"], "selected");
    assert_eq!(gd["amplified"], false);
    let fixed = ["privacy.delta=1e-3", "run.eval_every=0"];
    let epsilon = claimed(&place, &as_run(gd, &fixed));
    assert!((0.99..=1.000_001).contains(&epsilon), "{epsilon}");
    // The same for somebody who takes over rounds and sigma alone.
    let mut plain = fixed.map(str::to_string).to_vec();
    plain.push("algorithm.rounds=448".to_string());
    plain.push(format!("privacy.sigma={}", gd["sigma"]["exact"]));
    assert!(claimed(&place, &plain) <= 1.000_001);
    plain.pop();
    plain.push("privacy.sigma=3.831e-3".to_string());
    assert!(claimed(&place, &plain) > 5.0);
    // What is recommended is what `compare` shows to be best on a9a, by far.
    assert_eq!(plan["recommended"], "auto");
    let tried = plan["trial"]["tried"].as_array().unwrap();
    let names: Vec<&str> = tried
        .iter()
        .map(|t| t["algorithm"].as_str().unwrap())
        .collect();
    assert!(
        names.contains(&"cdp-sgd") && names[0] == "auto",
        "{names:?}"
    );
}

/// Numbers from the records end every claim, whichever key asks for them.
#[test]
fn a_plan_sees_that_records_are_standardised() {
    let place = Place::new();
    let line = "plan --set data.source=synthetic:300x4 --set data.standardize=true --json";
    let ran = place.run(&words(line)).well();
    assert!(
        ran.stdout
            .contains("no run of this configuration claims anything"),
        "{ran:?}"
    );
}

/// Shared coordinates hide nothing, and amplification that is off is off: the noise is that of GD,
/// whatever travels.
#[test]
fn shared_coordinates_are_planned_without_amplification() {
    let place = Place::new();
    let terms = "--set algorithm.coordinates=shared --set privacy.amplification=off --set privacy.clip=0.5 \
                 --set privacy.epsilon=1 --set privacy.delta=1e-3";
    let plan = place
        .run(&words(&format!("plan {terms} --json")))
        .well()
        .object();
    assert_eq!(plan["amplification"], "off");
    let gd = row(&plan, "SoteriaFL-GD");
    assert_eq!(gd["coordinates"], "shared");
    assert_eq!(gd["amplified"], false);
    let rounds = gd["rounds"].as_f64().unwrap();
    let calibrated = place
        .run(&words(&format!(
            "calibrate --estimator gd --samples 3256 --clip 0.5 --rounds {rounds} --epsilon 1 --delta 1e-3 --json"
        )))
        .well()
        .object();
    assert_eq!(gd["sigma"]["exact"], calibrated["sigma"]);
    let epsilon = claimed(
        &place,
        &as_run(
            gd,
            &[
                "algorithm.coordinates=shared",
                "privacy.amplification=off",
                "privacy.clip=0.5",
                "privacy.delta=1e-3",
                "run.eval_every=0",
            ],
        ),
    );
    assert!((0.99..=1.000_001).contains(&epsilon), "{epsilon}");
    // Theory that does not cover it is not called a guarantee.
    let broken = gd["broken_conditions"].to_string();
    assert!(broken.contains("the same coordinates"), "{broken}");
}

/// The configuration's adjacency counts unless another is given.
#[test]
fn adjacency_is_the_configurations() {
    let place = Place::new();
    place.write(
        "run.toml",
        "[data]\nsource = \"synthetic:600x8\"\nclients = 3\n[privacy]\nadjacency = \"zero-out\"\nepsilon = 2\n",
    );
    let sigma = |more: &str| {
        let line = format!("plan --config run.toml --json {more}");
        let plan = place.run(&words(&line)).well().object();
        let sigma = row(&plan, "SoteriaFL-GD")["sigma"]["exact"]
            .as_f64()
            .unwrap();
        (plan["adjacency"].as_str().unwrap().to_string(), sigma)
    };
    let (name, own) = sigma("");
    assert_eq!(name, "zero-out");
    assert_eq!(sigma("--adjacency zero-out"), (name, own));
    let (name, other) = sigma("--adjacency replace-one");
    assert_eq!(name, "replace-one");
    assert!(other > 1.9 * own, "{other} {own}");
}

/// No interval without a number in it, no range that ends below zero, and no unexplained
/// assumption.
#[test]
fn every_sentence_of_a_plan_makes_sense() {
    let place = Place::new();
    let numbers = "plan --clients 10 --samples 3256 --dimension 124 --epsilon 1 --delta 1e-3 --clip 0.5 --smoothness 1";
    let configured = "plan --set privacy.epsilon=1 --set privacy.delta=1e-3".to_string();
    for (line, scope) in [
        (format!("{numbers} --rand-k 0.05"), "0.5000 record  own "),
        (configured, "0.4399 selected  own "),
    ] {
        let text = place.run(&words(&line)).well().stdout;
        assert!(!text.contains("up to -") && !text.contains("NaN"), "{text}");
        for part in text.split("an integer order between ").skip(1) {
            let ends: Vec<&str> = part.split([' ', ',']).collect();
            let (from, to): (f64, f64) = (ends[0].parse().unwrap(), ends[2].parse().unwrap());
            assert!(from < to, "{part}");
        }
        assert!(text.contains("holds for no order here"), "{text}");
        assert!(
            text.contains("exact noise: replace-one, random-k amplification where it is proved"),
            "{text}"
        );
        assert!(text.contains(scope), "{text}");
        assert!(
            text.contains("Recommended: auto. Why: tried on 10 clients of "),
            "{text}"
        );
        assert!(text.contains("synthetic records"), "{text}");
    }
    let unknown = place
        .run(&words(&format!("{numbers} --omega 19")))
        .well()
        .stdout;
    assert!(
        unknown.contains("0.5000 record  all ") && !unknown.contains(" *"),
        "{unknown}"
    );
    assert!(
        unknown.contains("Nothing is recommended: --omega"),
        "{unknown}"
    );
    assert!(!unknown.contains("Recommended"), "{unknown}");
}

/// Where noise drowns everything, nothing is recommended, and the reason is said.
#[test]
fn nothing_is_recommended_where_nothing_is_learnt() {
    let place = Place::new();
    let line = "plan --set data.source=synthetic:60x40 --set data.clients=3 --set privacy.epsilon=0.01 --smoothness 0.3 --json";
    let plan = place.run(&words(line)).well().object();
    assert_eq!(plan["recommended"], Value::Null);
    let reason = plan["reason"].as_str().unwrap();
    assert!(reason.contains("most common class"), "{reason}");
}

/// What has no proof has no exact sigma, and says why.
#[test]
fn what_proves_nothing_has_no_exact_sigma() {
    let place = Place::new();
    let line = "plan --set data.source=synthetic:600x8 --set data.clients=3 --set privacy.clip_scope=estimate --json";
    let plan = place.run(&words(line)).well().object();
    for row in plan["algorithms"].as_array().unwrap() {
        assert_eq!(row["sigma"]["exact"], Value::Null, "{row}");
        assert!(row["no_exact_sigma"].is_string(), "{row}");
    }
    assert_eq!(plan["recommended"], Value::Null);
}

/// Two rows of one plan may differ in what hides a record; each row says its own.
#[test]
fn rows_say_their_own_terms() {
    let place = Place::new();
    let line =
        "plan --set data.source=synthetic:600x6x3 --set data.clients=3 --smoothness 1 --json";
    let plan = place.run(&words(line)).well().object();
    let terms = |name: &str| {
        let row = row(&plan, name);
        (
            row["clip_scope"].as_str().unwrap().to_string(),
            row["coordinates"].as_str().unwrap().to_string(),
        )
    };
    let own = |scope: &str, coordinates: &str| (scope.to_string(), coordinates.to_string());
    assert_eq!(terms("SoteriaFL-GD"), own("selected", "shared"));
    assert_eq!(terms("SoteriaFL-SVRG"), own("record", "own"));
    assert_eq!(row(&plan, "SoteriaFL-GD")["amplified"], false);
}

/// A step size or a scaling that looked at the records leaves no claim, so it is not recommended
/// either.
#[test]
fn what_claims_nothing_is_not_recommended() {
    let place = Place::new();
    for (setting, reason) in [
        ("algorithm.step_size=theory", "no algorithm can run"),
        (
            "data.scale=per-feature",
            "scaled by constants computed from the records",
        ),
    ] {
        let line = format!(
            "plan --set data.source=synthetic:600x8 --set data.clients=3 --set {setting} --json"
        );
        let plan = place.run(&words(&line)).well().object();
        assert_eq!(plan["recommended"], Value::Null, "{setting}");
        let said = plan["reason"].as_str().unwrap();
        assert!(said.contains(reason), "{setting}: {said}");
    }
}

/// What can be expected comes from runs: less noise never makes the table worse by more than
/// chance, the first row is the trial's winner, and the picture shows the same.
#[test]
fn what_to_expect_is_tried_too() {
    let place = Place::new();
    let line = "plan --set data.source=synthetic:4000x8 --set data.clients=4 --set privacy.epsilon=0.5 \
                --smoothness 1 --json --plot expected.svg";
    let plan = place.run(&words(line)).well().object();
    let outlook = &plan["outlook"];
    let rows = outlook["rows"].as_array().unwrap();
    assert_eq!(
        rows[0]["test_accuracy"],
        plan["trial"]["tried"][0]["test_accuracy"]
    );
    assert_eq!(rows[0]["epsilon"], 0.5);
    let number = |row: &Value, key: &str| row[key].as_f64().unwrap();
    for row in &rows[1..] {
        assert!(number(row, "sigma") < number(&rows[0], "sigma") || row["clients"] == 16);
        assert!(
            number(row, "signal_to_noise") > number(&rows[0], "signal_to_noise"),
            "{row}"
        );
        assert!(row["test_accuracy"]["mean"].as_f64() > Some(0.0), "{row}");
        assert!((0.0..=1.0).contains(&number(row, "share")));
    }
    assert_eq!(rows.len(), 5, "{rows:?}");
    let clean = outlook["accuracy_without_noise"].as_f64().unwrap();
    assert!(
        clean > outlook["majority_accuracy"].as_f64().unwrap() + 0.1,
        "{outlook}"
    );
    let picture = std::fs::read_to_string(place.path("expected.svg")).unwrap();
    assert!(picture.starts_with("<svg") && picture.contains("without noise"));
    // And what it costs to speak of persons.
    assert!(picture.contains("records of a person"), "{picture}");
    // Nothing is drawn where nothing was tried, and the file is not made.
    let line = "plan --set data.source=synthetic:600x8 --set data.clients=3 --smoothness 1 \
                --set data.scale=per-feature --plot none.svg";
    let refused = place.run(&words(line));
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(
        refused.stderr.contains("error: there is nothing to draw"),
        "{refused:?}"
    );
    assert!(!place.path("none.svg").exists());
}

/// A plan needs no table: enough records make a good model, a few none, and `auto` is what wins.
#[test]
fn a_table_that_is_not_there_yet_is_planned() {
    let place = Place::new();
    let plan = |samples: &str, classes: &str| {
        let line = format!(
            "plan --clients 5 --samples {samples} --features 9 --classes {classes} --epsilon 2 \
             --delta 1e-5 --json"
        );
        place.run(&words(&line)).well().object()
    };
    let good = plan("2000", "3");
    assert_eq!(good["recommended"], "auto", "{}", good["reason"]);
    let share = good["outlook"]["rows"][0]["share"].as_f64().unwrap();
    assert!(share > 0.8, "{}", good["outlook"]);
    // 9 roots beside 9 features and a constant, for 3 classes.
    assert_eq!(good["dimension"], 57.0);
    let poor = plan("4", "2");
    let share = poor["outlook"]["rows"][0]["share"].as_f64().unwrap_or(0.0);
    assert!(share < 0.5, "{}", poor["outlook"]);
    let line = "plan --features 9 --clients 5";
    let refused = place.run(&words(line));
    assert_eq!(refused.code, Some(2));
    assert!(
        refused.stderr.contains("--samples is missing"),
        "{refused:?}"
    );
}
