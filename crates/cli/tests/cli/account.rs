//! `soteria account` and `soteria calibrate` against published and closed-form values.

use serde_json::Value;

use crate::program::{Place, keys};

const KEYS: [&str; 11] = [
    "accountant",
    "adjacency",
    "amplified",
    "delta",
    "epsilon",
    "epsilon_pld",
    "epsilon_rdp",
    "epsilon_unamplified",
    "rounds",
    "seconds",
    "sigma",
];

fn ask(place: &Place, line: &str) -> Value {
    let mut arguments: Vec<&str> = line.split_whitespace().collect();
    arguments.push("--json");
    let object = place.run(&arguments).well().object();
    assert_eq!(keys(&object), KEYS, "{line}");
    object
}

fn near(value: &Value, expected: f64, tolerance: f64) {
    let value = value.as_f64().expect("a number");
    assert!(
        (value - expected).abs() <= tolerance * expected,
        "{value} is not {expected}"
    );
}

/// Poisson-subsampled Gaussian: q = 0.01, noise multiplier 1, 1000 rounds, delta 1e-5; values
/// computed with dp_accounting and with an independent program.
#[test]
fn costs_are_the_known_ones() {
    let place = Place::new();
    let sgd = "account --estimator sgd --samples 10000 --batch 100 --clip 1 --sigma 0.01 --rounds 1000 --delta 1e-5";
    let zero_out = ask(&place, &format!("{sgd} --adjacency zero-out"));
    near(&zero_out["epsilon"], 1.828244, 1e-4);
    near(&zero_out["epsilon_rdp"], 2.1, 0.02);
    assert_eq!(zero_out["epsilon"], zero_out["epsilon_pld"]);
    assert_eq!(zero_out["epsilon"], zero_out["epsilon_unamplified"]);
    assert_eq!(zero_out["amplified"], false);
    assert_eq!(
        (&zero_out["adjacency"], &zero_out["accountant"]),
        (&"zero-out".into(), &"pld".into())
    );
    assert_eq!(
        (&zero_out["rounds"], &zero_out["sigma"], &zero_out["delta"]),
        (&1000.into(), &0.01.into(), &1e-5.into())
    );
    let replaced = ask(&place, sgd);
    assert_eq!(replaced["adjacency"], "replace-one");
    near(&replaced["epsilon"], 2.843446, 1e-4);
    let rdp = ask(
        &place,
        &format!("{sgd} --adjacency zero-out --accountant rdp"),
    );
    assert_eq!(rdp["epsilon"], zero_out["epsilon_rdp"]);
    assert_eq!(rdp["epsilon_pld"], zero_out["epsilon_pld"]);
    assert_eq!(rdp["accountant"], "rdp");
    // The Gaussian without sampling has a closed form: mu = 1/20 per round.
    let gd = ask(
        &place,
        "account --estimator gd --samples 100 --clip 1 --sigma 0.2 --rounds 100 --delta 1e-5 --adjacency zero-out",
    );
    near(&gd["epsilon"], 1.993091, 1e-5);
}

/// A mixture given by hand is the one that the estimator with the same numbers makes.
#[test]
fn pairs_are_mixtures_of_shifts() {
    let place = Place::new();
    let by_hand = ask(
        &place,
        "account --pair 0.001@0.95,0.041@0.05 --sigma 0.04 --rounds 1000 --delta 1e-5 --adjacency zero-out",
    );
    near(&by_hand["epsilon"], 15.36308, 1e-4);
    // G/m = 0.001, C/b + G/m = 0.041, q = 0.05.
    let svrg = "--estimator svrg --samples 1000 --batch 50 --clip 1 --difference-clip 2";
    let named = ask(
        &place,
        &format!("account {svrg} --sigma 0.04 --rounds 1000 --delta 1e-5 --adjacency zero-out"),
    );
    near(
        &named["epsilon"],
        by_hand["epsilon"].as_f64().unwrap(),
        1e-6,
    );
    let certain = ask(
        &place,
        "account --pair 0.01@1 --sigma 0.2 --rounds 100 --delta 1e-5 --adjacency zero-out",
    );
    near(&certain["epsilon"], 1.993091, 1e-5);
    // Without a difference clip the sampled shift is (2 - q) G / b.
    let loose = ask(
        &place,
        "account --estimator saga --samples 1000 --batch 50 --clip 1 --sigma 0.04 --rounds 10",
    );
    let same = ask(
        &place,
        "account --pair 0.001@0.95,0.039@0.05 --sigma 0.04 --rounds 10",
    );
    near(&loose["epsilon"], same["epsilon"].as_f64().unwrap(), 1e-6);
}

/// Random-k with whole records clipped is amplified; with selected coordinates clipped it never is.
#[test]
fn amplification_is_reported_beside_the_plain_cost() {
    let place = Place::new();
    let gd = "account --estimator gd --samples 100 --clip 1 --sigma 0.2 --rounds 100 --delta 1e-5 --rand-k 0.05 --adjacency zero-out";
    let record = ask(&place, gd);
    assert_eq!(record["amplified"], true);
    near(&record["epsilon_unamplified"], 1.993091, 1e-5);
    // The proved rules give 0.531 and 0.581; the smaller one counts.
    assert!(record["epsilon"].as_f64().unwrap() < 0.54, "{record}");
    let selected = ask(&place, &format!("{gd} --clip-scope selected"));
    assert_eq!(selected["amplified"], false);
    near(&selected["epsilon"], 1.993091, 1e-5);
    let off = ask(&place, &format!("{gd} --amplification off"));
    assert_eq!(
        (&off["amplified"], &off["epsilon"]),
        (&false.into(), &record["epsilon_unamplified"])
    );
    let table: Vec<&str> = gd.split_whitespace().collect();
    let text = place.run(&table).well().stdout;
    assert!(
        text.contains("amplified by random-k") && text.contains("unamplified"),
        "{text}"
    );
}

/// The smallest noise: at it the target holds, a little below it does not.
#[test]
fn calibration_is_tight() {
    let place = Place::new();
    for what in [
        "--estimator sgd --samples 10000 --batch 100 --clip 1 --rounds 1000 --delta 1e-5 --adjacency zero-out",
        "--estimator gd --samples 500 --clip 0.5 --rounds 300 --rand-k 0.1 --accountant rdp",
        "--pair 0.001@0.95,0.041@0.05 --rounds 30 --delta 1e-3 --adjacency zero-out",
    ] {
        let found = ask(&place, &format!("calibrate {what} --epsilon 1"));
        let sigma = found["sigma"].as_f64().unwrap();
        let epsilon = found["epsilon"].as_f64().unwrap();
        assert!(epsilon <= 1.0 && epsilon > 0.999, "{what}: {epsilon}");
        let check = ask(&place, &format!("account {what} --sigma {sigma}"));
        near(&check["epsilon"], epsilon, 1e-9);
        let below = ask(&place, &format!("account {what} --sigma {}", 0.999 * sigma));
        assert!(
            below["epsilon"].as_f64().unwrap() > 1.0,
            "{what}: {sigma} is not the smallest"
        );
    }
    let found = ask(
        &place,
        "calibrate --estimator sgd --samples 10000 --batch 100 --clip 1 --rounds 1000 --delta 1e-5 --adjacency zero-out --epsilon 1",
    );
    near(&found["sigma"], 1.41473 / 100.0, 3e-4);
}

#[test]
fn plots_are_drawings() {
    let place = Place::new();
    let line = "account --estimator gd --samples 100 --clip 1 --sigma 0.2 --rounds 7 --rand-k 0.05 --plot cost.svg";
    place
        .run(&line.split_whitespace().collect::<Vec<_>>())
        .well();
    let drawing = place.text("cost.svg");
    assert!(drawing.starts_with("<svg") && drawing.trim_end().ends_with("</svg>"));
    for part in ["rounds", "epsilon", "delta", "without amplification"] {
        assert!(drawing.contains(part), "`{part}` is not in the drawing");
    }
    assert!(!drawing.contains("NaN") && !drawing.contains("inf"));
}

/// Bad input: exit code 2 and the reason in one line; never a number that means nothing.
#[test]
fn nonsense_is_refused() {
    let place = Place::new();
    let sgd = "account --estimator sgd --samples 100 --batch 10 --clip 1 --sigma 1 --rounds 10";
    let cases: &[(&str, &str)] = &[
        (
            "account --pair 0.1@0.5,0.2@0.4 --sigma 1 --rounds 10",
            "sum",
        ),
        (
            "account --pair 0.1@0.5,0.2@0.50001 --sigma 1 --rounds 10",
            "sum",
        ),
        ("account --pair -0.1@1 --sigma 1 --rounds 10", "-0.1"),
        (
            "account --pair 0.1@-0.5,0.1@1.5 --sigma 1 --rounds 10",
            "probability",
        ),
        ("account --pair nan@1 --sigma 1 --rounds 10", "NaN"),
        ("account --pair inf@1 --sigma 1 --rounds 10", "inf"),
        ("account --pair 0.1@nan --sigma 1 --rounds 10", "NaN"),
        (
            "account --pair 0.1 --sigma 1 --rounds 10",
            "SHIFT@PROBABILITY",
        ),
        ("account --pair x@1 --sigma 1 --rounds 10", "`x`"),
        ("account --pair 0@1 --sigma 1 --rounds 10", "zero"),
        (
            "account --pair 0.1@1 --clip 1 --sigma 1 --rounds 10",
            "--clip",
        ),
        ("account --sigma 1 --rounds 10", "--estimator"),
        (
            "account --estimator adam --samples 10 --clip 1 --sigma 1 --rounds 10",
            "adam",
        ),
        (
            "account --estimator gd --clip 1 --sigma 1 --rounds 10",
            "--samples",
        ),
        (
            "account --estimator gd --samples 10 --sigma 1 --rounds 10",
            "--clip",
        ),
        (
            "account --estimator sgd --samples 10 --clip 1 --sigma 1 --rounds 10",
            "--batch",
        ),
        (
            "account --estimator svrg --samples 10 --clip 1 --sigma 1 --rounds 10",
            "--batch",
        ),
        (
            "account --estimator sgd --samples 10 --batch 11 --clip 1 --sigma 1 --rounds 10",
            "11",
        ),
        (
            "account --estimator gd --samples 0 --clip 1 --sigma 1 --rounds 10",
            "--samples",
        ),
        (
            "account --estimator gd --samples 10 --clip 0 --sigma 1 --rounds 10",
            "--clip",
        ),
        (
            "account --estimator gd --samples 10 --clip -1 --sigma 1 --rounds 10",
            "--clip",
        ),
        (
            "account --estimator gd --samples 10 --clip 1 --sigma 0 --rounds 10",
            "--sigma",
        ),
        (
            "account --estimator gd --samples 10 --clip 1 --sigma nan --rounds 10",
            "--sigma",
        ),
        (
            "account --estimator gd --samples 10 --clip 1 --sigma inf --rounds 10",
            "--sigma",
        ),
        (
            "account --estimator gd --samples 10 --clip 1 --rounds 10",
            "--sigma",
        ),
        (
            "account --estimator gd --samples 10 --clip 1 --sigma 1 --rounds 0",
            "--rounds",
        ),
        (
            "account --estimator gd --samples 10 --clip 1 --sigma 1 --rounds 1.5",
            "--rounds",
        ),
        (
            "account --estimator gd --samples 10 --clip 1 --sigma 1",
            "--rounds",
        ),
        (
            "calibrate --estimator gd --samples 10 --clip 1 --rounds 10 --epsilon 0",
            "--epsilon",
        ),
        (
            "calibrate --estimator gd --samples 10 --clip 1 --rounds 10 --epsilon -1",
            "--epsilon",
        ),
        (
            "calibrate --estimator gd --samples 10 --clip 1 --rounds 10",
            "--epsilon",
        ),
        ("calibrate --pair 0@1 --rounds 10 --epsilon 1", "zero"),
        (
            "account --estimator svrg --samples 100 --batch 10 --clip 1 --sigma 1 --rounds 10 --rand-k 0.1 --clip-scope selected",
            "selected",
        ),
        // Noise a million times smaller than a record: beyond any use.
        (
            "account --estimator sgd --samples 100 --batch 10 --clip 1 --sigma 1e-9 --rounds 10",
            "noise",
        ),
    ];
    for (line, wanted) in cases {
        let said = place
            .run(&line.split_whitespace().collect::<Vec<_>>())
            .badly(2);
        assert!(
            said.contains(wanted),
            "{line}: `{wanted}` is not in\n{said}"
        );
    }
    for (more, wanted) in [
        ("--delta 0", "--delta"),
        ("--delta 1", "--delta"),
        ("--delta -1e-5", "--delta"),
        ("--delta nan", "--delta"),
        ("--delta 1e-40", "delta"),
        ("--rand-k 0", "--rand-k"),
        ("--rand-k 1.5", "--rand-k"),
        ("--rand-k nan", "--rand-k"),
        ("--adjacency add-remove", "add-remove"),
        ("--accountant paper", "paper"),
        ("--difference-clip -2", "--difference-clip"),
    ] {
        let line = format!("{sgd} {more}");
        let said = place
            .run(&line.split_whitespace().collect::<Vec<_>>())
            .badly(2);
        assert!(
            said.contains(wanted),
            "{line}: `{wanted}` is not in\n{said}"
        );
    }
    // A zero is said aloud, and a question without an answer has no number.
    let loud = "account --estimator gd --samples 10 --clip 1 --sigma 1e9 --rounds 10 --json";
    let ran = place
        .run(&loud.split_whitespace().collect::<Vec<_>>())
        .well();
    assert_eq!(ran.object()["epsilon"], 0.0);
    assert!(ran.stderr.contains("warning: epsilon is 0"), "{ran:?}");
    let open =
        "account --estimator sgd --samples 1000 --batch 10 --clip 1 --sigma 1e300 --rounds 10";
    let ran = place
        .run(&open.split_whitespace().collect::<Vec<_>>())
        .well();
    assert!(ran.stderr.contains("warning: epsilon is 0"), "{ran:?}");
    // What an estimator does not have is ignored, and said to be.
    let ignored = "account --estimator gd --samples 10 --batch 5 --difference-clip 1 --clip 1 --sigma 1 --rounds 10";
    let ran = place
        .run(&ignored.split_whitespace().collect::<Vec<_>>())
        .well();
    assert!(
        ran.stderr.contains("`--batch` is ignored")
            && ran.stderr.contains("`--difference-clip` is ignored"),
        "{ran:?}"
    );
}
