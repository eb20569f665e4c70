//! `soteria audit` and claims about persons.

use crate::program::Place;

fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

/// A small problem: eight rounds, clients of 150 records.
const SMALL: &str = "--set data.source=synthetic:300x8 --set data.clients=2 --set data.scale=none \
                     --set algorithm.rounds=8 --set privacy.delta=1e-3";

#[test]
fn an_audit_says_what_was_claimed_and_what_was_proved() {
    let place = Place::new();
    let command = format!("audit {SMALL} --runs 60 --threads 2 --json --out audit");
    let json = place.run(&words(&command)).well().object();
    for key in [
        "claimed_epsilon",
        "empirical_epsilon",
        "delta",
        "confidence",
        "runs",
    ] {
        assert!(json[key].is_number(), "{key}: {json}");
    }
    assert_eq!(json["verdict"], "consistent");
    assert_eq!(json["claim"], "proved");
    assert!(json["empirical_epsilon"].as_f64() < json["claimed_epsilon"].as_f64());
    assert_eq!(json, place.json("audit/audit.json"));
    assert!(place.text("audit/report.html").contains("Attack proves"));
    assert!(place.text("audit/tradeoff.svg").contains("false alarms"));
    // What was audited can be audited, and trained, again.
    let again = "audit --config audit/config.toml --runs 60 --threads 1 --json";
    assert_eq!(place.run(&words(again)).well().object(), json);
    let said = place.run(&words(&format!("{command} --seed 1"))).badly(2);
    assert!(said.contains("not empty"), "{said}");
}

/// Records of the data as canaries, and the refusals of what is not played with them.
#[test]
fn records_of_the_data_can_be_canaries() {
    let place = Place::new();
    let natural = format!("audit {SMALL} --canaries natural --runs 40 --threads 2 --json");
    let json = place.run(&words(&natural)).well().object();
    assert_eq!(json["verdict"], "consistent");
    let games = json["games"].as_array().unwrap();
    assert_eq!(games.len(), 1);
    assert_eq!(games[0]["canary_records"], "records of the data");
    assert!(games[0]["guesses"].as_u64() > Some(0), "{json}");
    let saga = format!("{natural} --set algorithm.preset=soteriafl-saga");
    let said = place.run(&words(&saga)).badly(2);
    assert!(said.contains("played with gd and sgd"), "{said}");
    let said = place
        .run(&words("audit --ledger nowhere --canaries natural"))
        .badly(2);
    assert!(said.contains("cannot be used with"), "{said}");
    let said = place.run(&words("audit --ledger nowhere")).badly(1);
    assert!(said.contains("no client's state"), "{said}");
}

#[test]
fn what_claims_nothing_is_refused() {
    let place = Place::new();
    let silent = format!("audit {SMALL} --set privacy.epsilon=none");
    let said = place.run(&words(&silent)).badly(2);
    assert!(said.contains("claims nothing (no noise)"), "{said}");
    let said = place
        .run(&words(&format!("audit {SMALL} --runs 2")))
        .badly(2);
    assert!(said.contains("at least"), "{said}");
}

/// Where records were standardised by the records, the run claims nothing, and an audit of the
/// mechanism behind it must not be read as one of a claim: no file leaves that out.
#[test]
fn an_audit_of_a_mechanism_is_not_one_of_a_claim() {
    let place = Place::new();
    let scaled = "--set algorithm.preset=soteriafl-gd --set data.standardize=true --runs 60 \
                  --threads 2 --out audit";
    let printed = place.run(&words(&format!("audit {SMALL} {scaled}"))).well();
    assert!(printed.stdout.contains("claims nothing"), "{printed:?}");
    assert_eq!(
        place.json("audit/audit.json")["claim"],
        "data-dependent scaling"
    );
    let page = place.text("audit/report.html");
    assert!(page.contains("No claim is made"), "{page}");
}

/// A person's records cost more than one, the run says whom it speaks of and what it presumes, and
/// `account` agrees with the closed form: K records of full batches are K times the clip.
#[test]
fn claims_about_persons_say_so() {
    let place = Place::new();
    let person = "--set privacy.records_per_person=3 --set run.eval_every=0";
    let run = place.run(&words(&format!("train {SMALL} {person} --out run")));
    let said = run.well().stderr;
    assert!(
        said.contains("presumes that nobody has more than 3 records"),
        "{said}"
    );
    let summary = place.json("run/summary.json");
    assert_eq!(summary["privacy"]["records_per_person"], 3);
    assert!(
        place
            .text("run/config.toml")
            .contains("records_per_person = 3")
    );
    assert!(
        place
            .text("run/report.html")
            .contains("all records of one person")
    );
    let card = place.text("run/MODEL_CARD.md");
    assert!(
        card.contains("private for one person with up to 3 records"),
        "{card}"
    );
    // Whoever is handed the card alone must learn that the noise of a simulation is no secret.
    assert!(
        card.contains("secret seeds") && card.contains("ideal Gaussian noise"),
        "{card}"
    );
    assert!(card.contains("the start counts as public"), "{card}");
    let account = |rest: &str| {
        let gd = "account --estimator gd --samples 1000 --rounds 10 --json";
        let json = place.run(&words(&format!("{gd} {rest}"))).well().object();
        json["epsilon"].as_f64().unwrap()
    };
    let persons = account("--clip 1 --sigma 0.01 --records-per-person 3");
    assert!((persons - account("--clip 3 --sigma 0.01")).abs() < 1e-9);
    let said = place
        .run(&words("train --set privacy.records_per_person=0"))
        .badly(2);
    assert!(said.contains("records_per_person"), "{said}");
}
