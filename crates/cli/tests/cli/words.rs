//! What is said, and how: errors that tell all there is to tell, names, numbers and counts, and
//! silence where it was asked for.

use crate::program::{Place, SMALL};

/// Each line of stderr that begins like this, without it.
fn said<'a>(stderr: &'a str, beginning: &str) -> Vec<&'a str> {
    let lines = stderr.lines();
    lines
        .filter_map(|line| line.strip_prefix(beginning))
        .collect()
}

const FAULTY: &str =
    "age,city,weight,outcome\n30,1,70,yes\n?,Ulm,80,no\n40,2,,yes\n?,3,inf,no\n50,4,60,\n";

#[test]
fn all_faults_of_a_table_are_told_at_once_and_by_name() {
    let place = Place::new();
    place.write("patients.csv", FAULTY);
    let ran = place.train("run", &["data.source=csv:patients.csv"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{ran:?}");
    assert_eq!(
        said(&ran.stderr, "error: "),
        [
            "patients.csv, column \"age\": expected a finite number, found text in 2 of 5 rows, first in lines 3 (\"?\") and 5 (\"?\")",
            "patients.csv, line 3, column \"city\": expected a finite number, found \"Ulm\"",
            "patients.csv, line 4, column \"weight\": expected a finite number, found nothing",
            "patients.csv, line 5, column \"weight\": expected a finite number, found \"inf\"",
            "patients.csv, line 6, column \"outcome\": expected a label, found nothing",
        ],
        "{ran:?}"
    );
    let hints = said(&ran.stderr, "hint: ");
    assert_eq!(hints.len(), 1, "{ran:?}");
    assert!(
        hints[0].contains("fill in what is missing") && hints[0].contains("write text as numbers"),
        "{ran:?}"
    );
    assert!(!place.path("run").exists());
}

/// A log for machines is collected and sent away: it tells where and of what kind a fault is, and
/// quotes no record.
#[test]
fn a_log_for_machines_quotes_no_record() {
    let place = Place::new();
    place.write("mine.svm", "+1 1:0.5\n-1 2:Castrop-Rauxel\n");
    // A table is judged by the run's schema, once there is one: see the tests of deployed records.
    let words = "join --server http://127.0.0.1:9 --client 0 --insecure --state state --yes --log json --data libsvm:mine.svm";
    let mut words: Vec<&str> = words.split(' ').collect();
    let ran = place.run(&words);
    assert_ne!(ran.code, Some(0), "{ran:?}");
    let place_of_fault = "mine.svm, line 2, column 6: expected a finite number";
    assert!(ran.stderr.contains(place_of_fault), "{ran:?}");
    assert!(!ran.stderr.contains("Castrop"), "{ran:?}");
    // A person who has the file sees what stands there.
    words.retain(|word| *word != "--log" && *word != "json");
    let ran = place.run(&words);
    assert!(ran.stderr.contains("\"Castrop-Rauxel\""), "{ran:?}");
}

#[test]
fn foreign_files_are_called_what_they_are() {
    let place = Place::new();
    let wide: Vec<u8> = "\u{feff}1,2,a\n3,4,b\n"
        .encode_utf16()
        .flat_map(u16::to_le_bytes)
        .collect();
    for (name, bytes, kind, advice) in [
        (
            "x.csv",
            b"PK\x03\x04\x14\0\0\0\x08\0" as &[u8],
            "a zip archive",
            "unpack it",
        ),
        (
            "x.csv",
            b"PAR1\x15\x04\x15",
            "a Parquet file",
            "parquet:FILE",
        ),
        ("x.npy", b"\x93NUMPY\x01\0v\0", "a NumPy array", "npy:FILE"),
        ("x.csv", &wide, "text in UTF-16", "UTF-8"),
        ("x.db", b"SQLite format 3\0", "an SQLite database", "CSV"),
    ] {
        place.write(name, bytes);
        for kind_of_source in ["csv", "libsvm"] {
            let source = format!("data.source={kind_of_source}:{name}");
            let said = place.train("run", &[&source]).badly(2);
            let wanted = format!("error: {name}: found {kind}");
            assert!(said.contains(&wanted) && said.contains(advice), "{said}");
        }
    }
    place.write("s/train-images", b"\x93NUMPY\x01\0v\0");
    place.write("s/train-labels", [0, 0, 8, 1, 0, 0, 0, 1, 0]);
    let said = place.train("run", &["data.source=idx:s"]).badly(2);
    assert!(said.contains("train-images: found a NumPy array"), "{said}");
}

#[test]
fn a_bare_path_gets_the_source_that_was_meant() {
    let place = Place::new();
    for (text, meant) in [
        ("clean.csv", "did you mean csv:clean.csv?"),
        ("train.svm.gz", "did you mean libsvm:train.svm.gz?"),
        ("images/", "did you mean idx:images/?"),
    ] {
        let said = place
            .train("run", &[&format!("data.source={text}")])
            .badly(2);
        assert!(said.contains(meant), "{said}");
        let said = place
            .run(&["evaluate", "--model", "m", "--data", text])
            .badly(2);
        assert!(said.contains(meant), "{said}");
    }
}

/// `--data-dir` names a directory in every command; `--data` is the same where there is no source
/// to give.
#[test]
fn directories_of_data_have_one_name() {
    let place = Place::new();
    for command in [
        "train",
        "compare",
        "reproduce",
        "plan",
        "audit",
        "serve",
        "bench",
        "data",
        "evaluate",
        "join",
    ] {
        let help = place.run(&[command, "--help"]).well().stdout;
        assert!(help.contains("--data-dir <DIR>"), "{command}: {help}");
        let source = ["evaluate", "join"].contains(&command);
        assert_eq!(help.contains("--data <SPEC>"), source, "{command}: {help}");
    }
    // A set of its own, so that it can be seen which directory was used.
    place.write("sets/a9a/a9a", "+1 1:1\n-1 2:1\n".repeat(30));
    let train = |option: &str, out: &str| {
        let settings = ["--set", "data.clients=3", "--set", "algorithm.rounds=2"];
        let mut words = vec!["train", option, "sets", "--out", out];
        words.extend(settings);
        place.run(&words).well();
        place.json(&format!("{out}/summary.json"))["samples_per_client"].clone()
    };
    let records = train("--data-dir", "new");
    assert_eq!(records, serde_json::json!([20, 20, 20]));
    assert_eq!(records, train("--data", "old"));
    // Taken for a directory, a source would silently be passed over.
    for source in ["csv:mine.csv", "mnist", "a9a"] {
        let said = place
            .run(&["train", "--data", source, "--out", "none"])
            .badly(2);
        let wanted = format!("--set data.source={source}");
        assert!(said.contains(&wanted), "{said}");
    }
    assert!(!place.path("none").exists());
}

#[test]
fn quiet_commands_leave_files_and_say_nothing() {
    let place = Place::new();
    let quietly = |words: &str| {
        let mut words: Vec<&str> = words.split(' ').collect();
        for setting in SMALL {
            words.extend(["--set", setting]);
        }
        let ran = place.run(&words).well();
        assert_eq!(
            (ran.stdout.as_str(), ran.stderr.as_str()),
            ("", ""),
            "{words:?}"
        );
    };
    quietly("train --quiet --out run");
    assert!(place.path("run/report.html").exists());
    quietly("compare -q --algorithms auto,ldp-sgd --seeds 0..2 --out both");
    assert!(place.path("both/report.html").exists());
    // An answer is what was asked for.
    let ran = place.run(&words(
        "account --quiet --pair 0.1@1 --sigma 1 --rounds 1 --delta 1e-5",
    ));
    assert!(ran.well().stdout.contains("epsilon"));
}

fn words(line: &str) -> Vec<&str> {
    line.split(' ').collect()
}

#[test]
fn small_numbers_are_written_alike_everywhere() {
    let place = Place::new();
    let trained = place.train("run", &["privacy.delta=0.00002"]).well();
    assert!(trained.stdout.contains(" at delta 2e-5, "), "{trained:?}");
    // Files for machines hold the number.
    assert_eq!(place.json("run/summary.json")["privacy"]["delta"], 2e-5);
    let gd =
        "--estimator gd --samples 100 --clip 1 --rounds 10 --adjacency zero-out --delta 0.00002";
    let counted = place
        .run(&words(&format!("account {gd} --sigma 0.2")))
        .well();
    assert!(counted.stdout.contains(" at delta 2e-5, "), "{counted:?}");
    let plan = "plan --clients 10 --samples 3256 --dimension 124 --epsilon 1 --clip 0.5 --smoothness 1 --delta 0.00002";
    let planned = place.run(&words(plan)).well();
    assert!(planned.stdout.contains("delta = 2e-5;"), "{planned:?}");
}

#[test]
fn one_is_not_many() {
    let place = Place::new();
    let one = [
        "data.clients=1",
        "algorithm.rounds=1",
        "model.intercept=false",
        "data.source=synthetic:60x1",
    ];
    let ran = place.train("run", &one).well();
    assert!(
        ran.stderr.contains(": 1 client, 1 parameter, 1 round, "),
        "{ran:?}"
    );
    let mut compare = words("compare --algorithms auto --seeds 0..1 --out one");
    for setting in SMALL {
        compare.extend(["--set", setting]);
    }
    let ran = place.run(&compare).well();
    assert!(ran.stdout.contains("\n1 run in "), "{ran:?}");
    let ran = place.run(&compare).well();
    assert!(
        ran.stderr.contains("going on: 1 of 1 run is there"),
        "{ran:?}"
    );
}

#[test]
fn wrong_arguments_point_to_the_help_of_their_command() {
    let place = Place::new();
    for (line, help) in [
        ("train extra", "soteria train --help"),
        ("-q train --seed", "soteria train --help"),
        ("train --outt x", "soteria train --help"),
        ("train --seed minus", "soteria train --help"),
        ("join --client 0", "soteria join --help"),
        ("data fetch", "soteria data fetch --help"),
        ("data show a9a b9b", "soteria data show --help"),
        ("keys init", "soteria keys init --help"),
        ("tarin", "soteria help"),
    ] {
        let said = place.run(&words(line)).badly(2);
        assert!(said.ends_with(&format!("see `{help}`")), "{line}:\n{said}");
        // And that is a command that helps.
        let helped = place
            .run(&words(help.trim_start_matches("soteria ")))
            .well();
        assert!(helped.stdout.contains("Usage: "), "{helped:?}");
    }
}

/// Names of runs are those of the table of presets, in the terminal, the summary, the directory and
/// the report.
#[test]
fn runs_are_named_by_the_table() {
    let place = Place::new();
    let classes = "data.source=synthetic:60x4x3";
    let cases: &[(&[&str], &str, &str)] = &[
        (&[], "soteriafl-gd", "soteriafl-gd"),
        (&[classes, "algorithm.fraction=1"], "auto", "auto (gd, all "),
        (&["algorithm.preset=cdp-sgd"], "cdp-sgd", "cdp-sgd"),
        (&["algorithm.preset=ldp-svrg"], "ldp-svrg", "ldp-svrg"),
        (
            &["algorithm.preset=ldp-sgd", "algorithm.estimator=saga"],
            "custom",
            "custom (saga, all 5 coordinates)",
        ),
        (
            &["algorithm.shift=off"],
            "custom",
            "custom (gd, random-k, 1 of 5 coordinates (20.0%))",
        ),
    ];
    for (number, (settings, name, text)) in cases.iter().enumerate() {
        let out = format!("run-{number}");
        let ran = place.train(&out, settings).well();
        assert!(ran.stderr.contains(text), "{ran:?}");
        assert!(
            ran.stdout.contains(&format!("algorithm  {text}")),
            "{ran:?}"
        );
        assert_eq!(
            place.json(&format!("{out}/summary.json"))["algorithm"],
            *name
        );
        // The resolved configuration repeats the run under the same name.
        let again = format!("again-{number}");
        let config = format!("{out}/config.toml");
        let ran = place.run(&["train", "--config", &config, "--out", &again]);
        assert!(ran.well().stdout.contains(&format!("algorithm  {text}")));
    }
    let report = place.text("run-1/report.html");
    assert!(
        report.contains("Automatic choice on "),
        "the report's title"
    );
    assert!(
        report.contains("rand-k that keeps every one"),
        "the table of slots"
    );
    let mut train = vec!["train"];
    for setting in SMALL.iter().chain(&[classes]) {
        train.extend(["--set", setting]);
    }
    place.run(&train).well();
    let runs = std::fs::read_dir(place.path("runs")).unwrap();
    let names: Vec<_> = runs.map(|entry| entry.unwrap().file_name()).collect();
    assert!(
        names.len() == 1 && names[0].to_str().unwrap().ends_with("-auto"),
        "{names:?}"
    );
}

/// Pictures of one's own have no published constants: the program says why there is no claim, and
/// what gives one.
#[test]
fn scaling_by_the_records_says_what_to_set_instead() {
    let place = Place::new();
    let mut images = vec![0, 0, 8, 3, 0, 0, 0, 60, 0, 0, 0, 2, 0, 0, 0, 2];
    images.extend((0..240u32).map(|pixel| (pixel * 37 % 256) as u8));
    let mut labels = vec![0, 0, 8, 1, 0, 0, 0, 60];
    labels.extend((0..60u8).map(|image| image % 3));
    place.write("images/train-images", images);
    place.write("images/train-labels", labels);
    let source = "data.source=idx:images/";
    let computed = place.train("computed", &[source]).well();
    let warning = said(&computed.stderr, "warning: no epsilon can be claimed");
    assert_eq!(warning.len(), 1, "{computed:?}");
    assert!(
        warning[0].contains("data.center=0.5") && warning[0].contains("data.factor=2"),
        "{computed:?}"
    );
    assert_eq!(
        place.json("computed/summary.json")["privacy"]["claim"],
        "data-dependent scaling"
    );
    // As it says.
    let given = place
        .train("given", &[source, "data.center=0.5", "data.factor=2"])
        .well();
    assert!(!given.stderr.contains("no epsilon"), "{given:?}");
    assert_eq!(
        place.json("given/summary.json")["privacy"]["claim"],
        "proved"
    );
}
