//! What whoever operates a run relies on: what the dashboard says of clients, what logs look like,
//! what is left on disk.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::parties::{Run, eventually, free_port, program, text};

const SMALL: &str = r#"
[data]
source = "synthetic:3000x20"
clients = 3
[algorithm]
preset = "soteriafl-sgd"
batch = 50
"#;

pub fn status(port: u16) -> Value {
    let ask = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.write_all(
            b"GET /api/status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    let answer = ask().unwrap_or_default();
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    serde_json::from_str(body).unwrap_or_default()
}

fn client(status: &Value, number: u64) -> Value {
    let rows = status["clients"].as_array().cloned().unwrap_or_default();
    let found = rows.into_iter().find(|row| row["client"] == number);
    found.unwrap_or_default()
}

fn now() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap().as_secs_f64()
}

/// The server writes to a frozen client's connection for a long time before it notices. What counts
/// is what comes from it.
#[test]
fn a_frozen_client_is_behind_and_silent() {
    let config = format!("{SMALL}rounds = 20000\n[deployment]\nquorum = 2\ndeadline = 0.1\n");
    let run = Run::new(&config);
    let port = free_port();
    let _server = run.serve_with(&["--dashboard", &format!("127.0.0.1:{port}")]);
    let clients: Vec<_> = (0..3).map(|number| run.join(number)).collect();
    let round = || status(port)["round"].as_u64().unwrap_or(0);
    eventually("rounds close", || round() >= 5);
    // Nobody is slow: nobody is behind for long.
    eventually("all are up to date", || {
        status(port)["summary"]["current"] == 3
    });
    clients[2].signal("-STOP");
    let (frozen, before) = (now(), client(&status(port), 2)["missed"].as_u64().unwrap());
    let since = round();
    eventually("rounds close without it", || round() >= since + 30);
    let seen = status(port);
    let row = client(&seen, 2);
    assert!(row["lag"].as_u64().unwrap() >= 25, "{row}");
    assert!(row["missed"].as_u64().unwrap() >= before + 25, "{row}");
    assert!(row["last_seen"].as_f64().unwrap() <= frozen + 1.0, "{row}");
    assert_eq!(seen["summary"]["behind"], 1, "{seen}");
    for number in [0, 1] {
        let row = client(&seen, number);
        assert!(row["last_seen"].as_f64().unwrap() > frozen, "{row}");
        assert!(row["lag"].as_u64().unwrap() <= 1, "{row}");
    }
    clients[2].signal("-CONT");
    eventually("it catches up", || client(&status(port), 2)["lag"] == 0);
}

/// Clients that sit rounds out say so, and are neither behind nor missing.
#[test]
fn sitting_out_is_not_missing() {
    let run = Run::new(&format!("{SMALL}rounds = 20000\nparticipation = 0.3\n"));
    let port = free_port();
    let _server = run.serve_with(&["--dashboard", &format!("127.0.0.1:{port}")]);
    let _clients: Vec<_> = (0..3).map(|number| run.join(number)).collect();
    let round = || status(port)["round"].as_u64().unwrap_or(0);
    eventually("rounds close", || round() >= 50);
    let seen = status(port);
    for number in 0..3 {
        let row = client(&seen, number);
        assert!(row["lag"] == 0 && row["missed"] == 0, "{row}");
        assert!(
            row["taken"].as_u64().unwrap() < seen["round"].as_u64().unwrap(),
            "{row}"
        );
    }
}

/// One client with records of its own.
fn one(rounds: u32) -> Run {
    let mut run = Run::new(&format!(
        "[data]\nsource = \"synthetic:300x5\"\nclients = 1\n[algorithm]\npreset = \"soteriafl-sgd\"\nrounds = {rounds}\nbatch = 10\n\
         [privacy]\nepsilon = 1.0\n"
    ));
    (run.seed, run.clients) = (None, 1);
    run.data = "synthetic:300x5".to_string();
    run
}

fn events(log: &str) -> Vec<Value> {
    let parse = |line| serde_json::from_str(line).unwrap_or_else(|_| panic!("no JSON: {line}"));
    log.lines().map(parse).collect()
}

#[test]
fn everything_on_stderr_is_json_if_that_is_asked_for() {
    let run = one(3);
    let json = ["--log", "json"];
    // A client that finds no server yet says so.
    let mut refused = run.join_with(0, &["--log", "json", "--max-epsilon", "0.01"]);
    eventually("it has begun to look", || {
        run.log("join-0.log").contains("no answer yet")
    });
    let mut server = run.serve_with(&json);
    assert_eq!(refused.code(), 3, "{}", run.log("join-0.log"));
    let said = events(&run.log("join-0.log"));
    let last = said.last().unwrap();
    assert!(last["level"] == "ERROR" && last["code"] == 3, "{last}");
    assert!(
        last["message"].as_str().unwrap().contains("refused"),
        "{last}"
    );
    assert_eq!(run.join_with(0, &json).code(), 0);
    assert_eq!(server.code(), 0, "{}", run.log("serve.log"));
    let said = events(&run.log("join-0.log"));
    let costs: Vec<_> = said
        .iter()
        .filter(|event| event["message"] == "cost")
        .collect();
    assert_eq!(costs.len(), 2);
    let cost = costs[1];
    for number in ["epsilon", "delta", "spent", "total", "records", "messages"] {
        assert!(cost[number].is_number(), "{number} in {cost}");
    }
    assert!(
        cost["epsilon"].as_f64().unwrap() <= 1.0 && cost["records"] == 300,
        "{cost}"
    );
    assert!(
        cost["adjacency"] == "replace-one" && cost["spent"] == 0.0,
        "{cost}"
    );
    let warned = |event: &&Value| {
        let text = event["message"].as_str().unwrap_or_default();
        event["level"] == "WARN" && text.contains("--max-epsilon")
    };
    assert_eq!(said.iter().filter(warned).count(), 1);
    // Rounds have the protocol's numbers, and the start is none.
    let said = events(&run.log("serve.log"));
    let closed = said
        .iter()
        .filter(|event| event["message"] == "round closed");
    let rounds: Vec<_> = closed.map(|event| event["round"].clone()).collect();
    assert_eq!(rounds, [0, 1, 2]);
    // A wrong command line, too.
    let output = program()
        .args(["serve", "--log", "json", "--wrong"])
        .output()
        .unwrap();
    let said = events(&String::from_utf8(output.stderr).unwrap());
    assert!(said.len() == 1 && said[0]["code"] == 2 && said[0]["hint"].is_string());
}

/// A run that is over is complete, or made so.
#[test]
fn a_finished_server_repairs_its_output() {
    let run = one(3);
    let mut server = run.serve();
    assert_eq!(run.join(0).code(), 0);
    assert_eq!(server.code(), 0, "{}", run.log("serve.log"));
    let seconds = &run.summary()["seconds"];
    let (training, total) = (seconds["training"].as_f64(), seconds["total"].as_f64());
    assert!(training.unwrap() > 0.0 && training < total, "{seconds}");
    assert!(seconds["evaluation"].is_number(), "{seconds}");
    let read = |name: &str| std::fs::read(run.path("out").join(name)).unwrap();
    let files = [
        "config.toml",
        "rounds.csv",
        "model.safetensors",
        "report.html",
    ];
    let before: Vec<_> = files.iter().map(|name| read(name)).collect();
    for lost in [
        &files[..],
        &["report.html"],
        &["summary.json"],
        &["rounds.csv"],
    ] {
        for name in lost {
            std::fs::remove_file(run.path("out").join(name)).unwrap();
        }
        std::fs::write(run.path("out/model.safetensors.tmp"), "half").unwrap();
        assert_eq!(run.serve().code(), 0, "{}", run.log("serve.log"));
        for (name, before) in files.iter().zip(&before).take(3) {
            assert!(read(name) == *before, "{name} after {lost:?}");
        }
        assert!(!read("report.html").is_empty() && run.summary()["rounds"] == 3);
        assert!(!run.path("out/model.safetensors.tmp").exists());
    }
    // The rounds were another process's: nobody knows how long they took.
    assert!(run.summary()["seconds"]["training"].is_null());
    // Complete, it is left alone.
    let written = || {
        std::fs::metadata(run.path("out/summary.json"))
            .unwrap()
            .modified()
            .unwrap()
    };
    let before = written();
    assert_eq!(run.serve().code(), 0);
    assert_eq!(written(), before);
    // What another run has left there is neither taken for this one's nor written over.
    let config = String::from_utf8(read("config.toml")).unwrap();
    let other = config.replace("seed = ", "seed = 1");
    std::fs::write(run.path("out/config.toml"), &other).unwrap();
    assert_eq!(run.serve().code(), 2, "{}", run.log("serve.log"));
    assert_eq!(written(), before);
    assert_eq!(read("config.toml"), other.as_bytes());
}

/// Files that may not grow are like a full disk; the reason is named whoever notices first.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_named() {
    let run = one(3000);
    let _client = run.join(0);
    for _ in 0..4 {
        let mut limited = Command::new("sh");
        let limit = "trap '' XFSZ; ulimit -f 300; exec \"$0\" \"$@\"";
        limited.args(["-c", limit, env!("CARGO_BIN_EXE_soteria")]);
        assert_eq!(run.serve_by(limited, &["--quiet"]).code(), 1);
        let log = run.log("serve.log");
        let last = log.lines().last().unwrap();
        assert!(
            last.starts_with("error: ") && last.contains(text(&run.path(""))),
            "{last}"
        );
    }
}

#[test]
fn an_empty_ledger_says_so() {
    let run = one(3);
    let ledger = || {
        let state = run.path("client-0");
        let output = program()
            .args(["ledger", "--state", text(&state)])
            .output()
            .unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (
            output.status.code().unwrap(),
            text(output.stdout) + &text(output.stderr),
        )
    };
    assert!(
        ledger().1.contains("holds no client's state"),
        "{:?}",
        ledger()
    );
    {
        let _server = run.serve();
        assert_eq!(run.join_with(0, &["--max-epsilon", "0.01"]).code(), 3);
    }
    assert_eq!(ledger(), (0, "no runs yet\n".to_string()));
    // Lost, it is not taken for one in which nothing was spent, before and after `join` has said
    // the same.
    std::fs::remove_file(run.path("client-0/client.sqlite")).unwrap();
    for _ in 0..2 {
        let (code, said) = ledger();
        assert!(
            code == 1 && said.contains("gone or empty, but this state has been used"),
            "{said}"
        );
        assert_eq!(run.join(0).code(), 1);
        assert!(
            run.log("join-0.log")
                .contains("gone or empty, but this state has been used")
        );
    }
}

/// What is wrong in the configuration is for a person to look at: a service manager does not try it
/// again.
#[test]
fn a_test_set_that_is_not_there_is_a_wrong_configuration() {
    let table = "[data]\nclients = 3\ntest = \"csv:nowhere.csv\"\n[deployment]\nrecords = 5000\n";
    let run = Run::new(table);
    assert_eq!(run.serve().code(), 2);
    let log = run.log("serve.log");
    assert!(
        log.contains("error: nowhere.csv") && log.contains("hint: "),
        "{log}"
    );
}

/// What can be foreseen from public numbers is said before anybody joins, and stands in the files
/// of the run.
#[test]
fn a_server_says_that_noise_will_swamp_the_signal() {
    let table = "[data]\nsource = \"synthetic:60x20\"\nclients = 3\n[algorithm]\nrounds = 3\n\
                 [privacy]\nepsilon = 0.5\n";
    let mut run = Run::new(table);
    run.data = "synthetic:60x20:{}/3".to_string();
    let mut server = run.serve();
    let foreseen = "noise will swamp the signal: the 21 parameters";
    eventually("the server warns", || {
        run.log("serve.log").contains(foreseen)
    });
    let mut clients: Vec<_> = (0..3).map(|client| run.join(client)).collect();
    assert!(clients.iter_mut().all(|client| client.code() == 0));
    assert_eq!(server.code(), 0, "{}", run.log("serve.log"));
    let summary = run.summary();
    let warnings = summary["warnings"].as_array().unwrap();
    let first = warnings[0].as_str().unwrap();
    assert!(first.contains(foreseen), "{warnings:?}");
    assert!(summary["final"]["majority_accuracy"].as_f64().unwrap() >= 0.5);
    let report = std::fs::read_to_string(run.path("out/report.html")).unwrap();
    assert!(report.contains(&foreseen.replace("noise", "Noise")));
}
