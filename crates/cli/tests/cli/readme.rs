//! The README's commands: every line of its console blocks that calls the program is one that the
//! program takes, and those of the tour do what the README says about them.

use std::ops::Range;

use serde_json::Value;

use crate::program::Place;

const README: &str = include_str!("../../../../README.md");

/// What always answering the more common class reaches on the test set of a9a.
const MOST_COMMON: f64 = 0.7638;

/// Every line of a console block that calls the program, as words.
fn lines() -> Vec<Vec<String>> {
    let mut inside = false;
    let mut lines = Vec::new();
    for line in README.lines() {
        match line.strip_prefix("```") {
            Some(kind) => inside = kind == "console",
            None if inside => lines.extend(line.strip_prefix("soteria ").map(split)),
            None => {}
        }
    }
    lines
}

/// A line as a shell splits it: at blanks outside of double quotes, up to a comment.
fn split(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quoted) = (Vec::new(), String::new(), false);
    for character in line.chars() {
        match character {
            '"' => quoted = !quoted,
            '#' if word.is_empty() && !quoted => break,
            ' ' if !quoted => words.extend((!word.is_empty()).then(|| std::mem::take(&mut word))),
            other => word.push(other),
        }
    }
    words.extend((!word.is_empty()).then_some(word));
    assert!(!quoted, "{line}");
    words
}

/// Small files under the names that the README uses for its readers' own.
fn place() -> Place {
    let place = Place::new();
    let table = |rows: Range<u32>| {
        let rows = rows.map(|row| {
            format!(
                "{}.5,{},{}\n",
                row % 7,
                row % 5,
                ["no", "yes"][(row % 2) as usize]
            )
        });
        format!("age,weight,outcome\n{}", rows.collect::<String>())
    };
    place.write("patients.csv", table(0..60));
    place.write("holdout.csv", table(3..20));
    place.write("new.csv", table(5..25));
    let prices = (0..60).map(|row| format!("{},{},{}.5\n", row % 7, row % 5, 10 * (row % 90)));
    place.write(
        "prices.csv",
        format!("rooms,floor,price\n{}", prices.collect::<String>()),
    );
    for name in ["train.svm", "test.svm"] {
        place.write(name, "+1 1:0.5 3:1\n-1 2:0.25 3:1\n".repeat(30));
    }
    let images = |count: u8| {
        let mut images = vec![0, 0, 8, 3, 0, 0, 0, count, 0, 0, 0, 28, 0, 0, 0, 28];
        images.extend((0..784 * u32::from(count)).map(|pixel| (pixel * 37 % 256) as u8));
        let mut labels = vec![0, 0, 8, 1, 0, 0, 0, count];
        labels.extend((0..count).map(|image| image % 10));
        (images, labels)
    };
    for folder in ["images", "datasets/mnist"] {
        for (set, count) in [("train", 100), ("t10k", 20)] {
            let (pixels, labels) = images(count);
            place.write(&format!("{folder}/{set}-images-idx3-ubyte"), pixels);
            place.write(&format!("{folder}/{set}-labels-idx1-ubyte"), labels);
        }
    }
    let run = "[data]\nsource = \"synthetic:60x4\"\nclients = 3\n[algorithm]\nrounds = 3\n";
    place.write("run.toml", run);
    place
}

/// Whether a run needs a file of the reader's.
fn own_data(words: &[String]) -> bool {
    words.iter().any(|word| word.starts_with("data.source="))
}

/// Runs a line with these words added and checks that it ends well.
fn run(place: &Place, line: &[String], more: &[&str]) -> String {
    let words: Vec<&str> = line
        .iter()
        .map(String::as_str)
        .chain(more.iter().copied())
        .collect();
    let ran = place.run(&words);
    assert_eq!(ran.code, Some(0), "soteria {}\n{ran:?}", words.join(" "));
    ran.stdout
}

#[test]
fn every_command_of_the_readme_is_taken() {
    let place = place();
    let mut seen: Vec<String> = Vec::new();
    for line in lines() {
        let few = ["--set", "algorithm.rounds=3"];
        match line[0].as_str() {
            // These are run in full by the next test.
            "train" if !own_data(&line) => {}
            "train" => {
                let summary = run(&place, &line, &[&few[..], &["--json", "--quiet"]].concat());
                let summary: Value = serde_json::from_str(&summary).unwrap();
                assert_eq!(summary["privacy"]["claim"], "proved", "{line:?}");
            }
            "compare" => {
                let small = [
                    "--set",
                    "data.source=synthetic:60x4",
                    "--set",
                    "data.clients=3",
                ];
                run(&place, &line, &[&few[..], &small].concat());
            }
            "schema" => {
                run(&place, &line, &[]);
                // As the reader does after having looked at every column.
                let draft = place.text("patients.toml");
                place.write(
                    "patients.toml",
                    draft.replace("read from records", "public"),
                );
            }
            "predict" => {
                run(&place, &line, &[]);
                let table = place.text("predictions.csv");
                assert_eq!(table.lines().count(), 21, "{table}");
            }
            "account" | "calibrate" | "plan" | "keys" => {
                run(&place, &line, &[]);
            }
            // Hours, or several machines: that the words are understood is seen all the same,
            // because help comes after them.
            "reproduce" | "serve" | "join" | "audit" => {
                assert!(run(&place, &line, &["--help"]).contains("Usage: soteria"));
            }
            other => panic!("no check for `soteria {other}`"),
        }
        seen.push(line[0].clone());
    }
    seen.dedup();
    for command in [
        "schema",
        "train",
        "predict",
        "account",
        "calibrate",
        "reproduce",
        "compare",
        "plan",
        "keys",
        "serve",
        "join",
    ] {
        assert!(
            seen.iter().any(|seen| seen == command),
            "{command} in {seen:?}"
        );
    }
}

/// The lines of the tour on the built-in data, as they stand there: each has learnt something.
#[test]
fn the_tour_of_the_readme_shows_models_that_have_learnt() {
    let tour: Vec<Vec<String>> = lines()
        .into_iter()
        .filter(|line| line[0] == "train" && !own_data(line))
        .collect();
    assert!(tour.len() >= 5, "{tour:?}");
    assert!(
        tour.iter().flatten().any(|word| word.ends_with("-svrg")),
        "{tour:?}"
    );
    let place = place();
    for line in tour {
        let summary: Value = serde_json::from_str(&run(&place, &line, &["--json"])).unwrap();
        let accuracy = summary["final"]["test_accuracy"].as_f64().unwrap();
        assert!(accuracy > MOST_COMMON + 0.02, "{line:?}: {accuracy}");
        let loss = summary["final"]["loss"].as_f64().unwrap();
        assert!(loss < std::f64::consts::LN_2, "{line:?}: {loss}");
        let claim = &summary["privacy"]["claim"];
        let noise = !line.iter().any(|word| word == "privacy.epsilon=none");
        assert_eq!(claim == "proved", noise, "{line:?}: {claim}");
    }
}
