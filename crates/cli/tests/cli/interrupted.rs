//! `soteria train` that is stopped, dies, or goes on.

use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use crate::program::{Place, Ran, rounds, tensors};
use crate::train::same_bytes;

/// Sends a signal once the run has begun, and waits for the end.
fn interrupt(place: &Place, out: &str, rounds: &str, signal: &str) -> (ExitStatus, Ran) {
    let rounds = format!("algorithm.rounds={rounds}");
    let mut command = place.command(&["train", "--out", out, "--threads", "1"]);
    for setting in [
        "data.source=synthetic:600x400",
        "data.clients=3",
        &rounds,
        "run.eval_every=50",
    ] {
        command.args(["--set", setting]);
    }
    let child = command.spawn().unwrap();
    let start = Instant::now();
    while !place.path(&format!("{out}/rounds.csv")).exists() {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "the run does not begin"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(50));
    let sent = Command::new("kill")
        .args([signal, &child.id().to_string()])
        .status()
        .unwrap();
    assert!(sent.success());
    let output = child.wait_with_output().unwrap();
    (output.status, output.into())
}

/// Ctrl-C leaves what there is, readable, and says so; so do the signals of a service manager and a
/// closed terminal.
#[cfg(unix)]
#[test]
fn an_interrupted_run_leaves_what_it_has() {
    for signal in ["-INT", "-TERM", "-HUP"] {
        leaves_what_it_has(signal);
    }
}

#[cfg(unix)]
fn leaves_what_it_has(signal: &str) {
    let place = Place::new();
    let (status, ran) = interrupt(&place, "run", "2000000", signal);
    assert_eq!(status.code(), Some(1), "{ran:?}");
    let line = ran
        .stderr
        .lines()
        .find(|line| line.starts_with("error: interrupted after "))
        .expect("an error line");
    assert!(line.contains("--resume run"), "{line}");
    let summary = place.json("run/summary.json");
    assert_eq!(summary["interrupted"], true);
    assert_eq!(summary["rounds_planned"], 2_000_000);
    let done = summary["rounds"].as_u64().unwrap();
    assert!(done < 2_000_000);
    let table = rounds(&place.text("run/rounds.csv"));
    assert_eq!(table[0][0], Some(0.0));
    assert!(table.last().unwrap()[0].unwrap() <= done as f64);
    let spent = summary["privacy"]["epsilon"].as_f64().unwrap();
    assert!(
        spent > 0.0 && spent < 1.0,
        "what was spent so far, not what was planned: {spent}"
    );
    tensors(&place.path("run/model.safetensors"));
    assert!(place.text("run/report.html").contains("</html>"));
    assert!(ran.stdout.contains("epsilon"), "{ran:?}");
}

/// `--force` begins by taking away what the run before said at its end: files of two runs never
/// stand side by side.
#[cfg(unix)]
#[test]
fn a_forced_run_that_dies_leaves_no_mixture() {
    let place = Place::new();
    place.train("run", &[]).well();
    let mut command = place.command(&["train", "--out", "run", "--force", "--seed", "9"]);
    for setting in ["data.source=synthetic:600x400", "algorithm.rounds=2000000"] {
        command.args(["--set", setting]);
    }
    let mut child = command.spawn().unwrap();
    let start = Instant::now();
    while !place.text("run/config.toml").contains("seed = 9") {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "it does not begin"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    for name in ["summary.json", "model.safetensors", "report.html"] {
        assert!(!place.path(&format!("run/{name}")).exists(), "{name}");
    }
}

/// A run that died (no summary, rows missing) ends as the undisturbed one did.
#[test]
fn resume_ends_where_the_undisturbed_run_does() {
    let place = Place::new();
    let settings = [
        "algorithm.preset=soteriafl-sgd",
        "algorithm.batch=5",
        "algorithm.rounds=12",
    ];
    place.train("whole", &settings).well();
    place.train("dead", &settings).well();
    let rows = place.text("dead/rounds.csv");
    let half: String = rows
        .lines()
        .take(6)
        .map(|line| format!("{line}\n"))
        .collect();
    place.write("dead/rounds.csv", half);
    for name in ["summary.json", "model.safetensors", "report.html"] {
        std::fs::remove_file(place.path(&format!("dead/{name}"))).unwrap();
    }
    place.run(&["train", "--resume", "dead"]).well();
    same_bytes(&place, "whole", "dead");
    let said = place.run(&["train", "--resume", "nowhere"]).badly(2);
    assert!(said.contains("nowhere"), "{said}");
}

/// Rounds of two data sets must not end in one curve under one claim.
#[cfg(unix)]
#[test]
fn a_run_is_not_resumed_with_other_records() {
    let place = Place::new();
    let table = |turn: usize| -> String {
        let row = |row: usize| format!("{},{},{}\n", row % 7, (row + turn) % 5, row % 2);
        (0..300).map(row).collect()
    };
    place.write("records.csv", table(0));
    let mut command = place.command(&["train", "--out", "run"]);
    for setting in ["data.source=csv:records.csv", "algorithm.rounds=1000000"] {
        command.args(["--set", setting]);
    }
    let mut child = command.spawn().unwrap();
    let start = Instant::now();
    while !place.path("run/records.sha256").exists() {
        let waited = start.elapsed();
        assert!(waited < Duration::from_secs(60), "it does not begin");
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let config = place.text("run/config.toml").replace("1000000", "20");
    place.write("run/config.toml", config);
    let rows = place.text("run/rounds.csv");
    let first: String = rows.lines().take(2).map(|row| format!("{row}\n")).collect();
    place.write("run/rounds.csv", &first);

    place.write("records.csv", table(1));
    let said = place.run(&["train", "--resume", "run"]).badly(2);
    assert!(said.contains("the records are not those"), "{said}");
    assert_eq!(place.text("run/rounds.csv"), first, "nothing is lost");
    place.write("records.csv", table(0));
    let ran = place.run(&["train", "--resume", "run"]).well();
    assert!(!ran.stderr.contains("which records"), "{ran:?}");
    // A finished run has no use for it, and a digest can confirm a guess.
    assert!(!place.path("run/records.sha256").exists());
    let ran = place.run(&["train", "--resume", "run"]).well();
    assert!(ran.stderr.contains("does not say which records"), "{ran:?}");
}
