//! A run that waits for somebody says so: on the dashboard, in metrics and logs, and to the clients
//! that are there.

use std::time::Instant;

use serde_json::Value;
use soteriafl_deploy::net::{ANSWERS_WITHIN, ASKED_AFTER};

use crate::parties::{Run, ask, eventually, free_port};

const LONG: &str = r#"
[data]
source = "synthetic:3000x20"
clients = 3
[algorithm]
preset = "soteriafl-sgd"
batch = 50
rounds = 100000
[run]
eval_every = 1000
"#;

fn status(port: u16) -> Value {
    serde_json::from_str(&ask(port, "/api/status")).unwrap_or_default()
}

/// The events of a log of JSON that say this.
fn events(log: &str, message: &str) -> Vec<Value> {
    let parse = |line| serde_json::from_str::<Value>(line).expect("JSON");
    let says = |event: &Value| {
        let said = event["message"].as_str().unwrap_or_default();
        said.contains(message)
    };
    log.lines().map(parse).filter(says).collect()
}

#[test]
fn a_killed_client_is_missed_everywhere_at_once() {
    let run = Run::new(LONG);
    let port = free_port();
    let dashboard = format!("127.0.0.1:{port}");
    let mut server = run.serve_with(&["--dashboard", &dashboard, "--log", "json"]);
    let _first = run.join_with(0, &["--yes", "--log", "json"]);
    let mut second = run.join(1);
    let _third = run.join(2);
    let round = || status(port)["round"].as_u64().unwrap_or(0);
    eventually("rounds close", || round() >= 5);
    let seen = status(port);
    assert_eq!(seen["summary"]["connected"], 3, "{seen}");
    assert_eq!(seen["waiting"], Value::Null, "{seen}");

    second.kill();
    let killed = Instant::now();
    eventually("the status has it", || !status(port)["waiting"].is_null());
    // A moment on a machine that does nothing else, and not by asking a peer that says nothing.
    assert!(killed.elapsed() < ASKED_AFTER + ANSWERS_WITHIN);
    eventually("the others have answered", || {
        status(port)["waiting"]["missing"] == 1
    });
    let seen = status(port);
    let waiting = &seen["waiting"];
    assert_eq!(waiting["away"], 1, "{waiting}");
    let missing = &waiting["clients"][0];
    assert!(
        missing["client"] == 1 && missing["connected"] == false,
        "{waiting}"
    );
    assert!(missing["since"].as_f64() >= seen["started"].as_f64());
    assert!(waiting["closes"].is_null(), "{waiting}");
    let summary = &seen["summary"];
    let counts = [&summary["connected"], &summary["away"], &summary["current"]];
    assert_eq!(counts, [2, 1, 2], "{summary}");
    assert!(summary["largest_lag"].as_u64() >= Some(1), "{summary}");
    // The one that is missed stands first.
    assert_eq!(seen["clients"][0]["client"], 1);
    let metrics = ask(port, "/metrics");
    for line in [
        "soteria_clients_connected 2.0",
        "soteria_clients_awaited 1.0",
        "soteria_clients{state=\"away\"} 1.0",
        "soteria_client_connected{client=\"1\"} 0.0",
        "soteria_client_connected{client=\"2\"} 1.0",
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line}");
    }
    assert!(metrics.contains("soteria_client_away_since_timestamp{client=\"1\"}"));
    let still = |line: &str| line == "soteria_waiting_seconds 0.0";
    assert!(!metrics.lines().any(still), "{metrics}");

    // The others know, by number; the server's log names it, once.
    let text = "waiting for 1 other client without a connection";
    eventually("waiting clients say so", || {
        run.log("join-0.log").contains(text) && run.log("join-2.log").contains(text)
    });
    eventually("the log says so", || {
        run.log("serve.log").contains("the round waits")
    });
    let log = run.log("serve.log");
    let lost = events(&log, "the connection has ended");
    assert_eq!(lost.len(), 1, "{log}");
    assert!(
        lost[0]["client"] == 1 && lost[0]["level"] == "WARN",
        "{log}"
    );
    let waits = events(&log, "the round waits");
    let named = waits[0]["clients"].as_str().unwrap_or_default();
    assert!(named.starts_with("1 (no connection since 2"), "{named}");
    assert!(waits[0]["missing"] == 1 && waits[0]["seconds"].as_f64() >= Some(5.0));
    let said = run.log("join-2.log");
    assert!(said.contains(" UTC ("), "{said}");
    // Seconds have passed, and nobody repeats itself.
    assert_eq!(events(&run.log("join-0.log"), "waiting for").len(), 1);
    assert_eq!(said.matches("waiting for").count(), 1, "{said}");

    // It comes back, and the run goes on.
    let before = round();
    let _again = run.join(1);
    eventually("rounds close again", || round() > before + 5);
    assert_eq!(status(port)["waiting"], Value::Null);
    assert_eq!(status(port)["summary"]["connected"], 3);
    let back = events(&run.log("serve.log"), "connected again");
    assert!(back.len() == 1 && back[0]["client"] == 1, "{back:?}");
    // Stopping the server loses nobody.
    server.terminate();
    assert_eq!(server.code(), 0);
    let lost = events(&run.log("serve.log"), "the connection has ended");
    assert_eq!(lost.len(), 1, "{}", run.log("serve.log"));
    // Whoever is left without a server says that, too.
    eventually("they look for it", || {
        run.log("join-2.log")
            .contains("no connection to the server")
    });
}

/// A run that cannot begin names those who are not there; one that is over is not waited for.
#[test]
fn a_run_waits_for_clients_to_join_and_for_nobody_in_the_end() {
    let run = Run::new(&LONG.replace("100000", "20"));
    let port = free_port();
    let dashboard = format!("127.0.0.1:{port}");
    let mut server = run.serve_with(&["--dashboard", &dashboard, "--log", "json"]);
    let mut clients = vec![run.join(0), run.join(2)];
    eventually("two are there", || {
        status(port)["summary"]["connected"] == 2
    });
    let waiting = status(port)["waiting"].clone();
    assert!(
        waiting["missing"] == 1 && waiting["clients"][0]["client"] == 1,
        "{waiting}"
    );
    eventually("a client says so", || {
        run.log("join-0.log").contains("waiting for 1 other client")
    });
    clients.push(run.join(1));
    for process in clients.iter_mut().chain([&mut server]) {
        assert_eq!(process.code(), 0, "{}", run.log("serve.log"));
    }
    let log = run.log("serve.log");
    assert!(!events(&log, "waiting for clients to join").is_empty());
    assert!(events(&log, "the connection has ended").is_empty(), "{log}");
}
