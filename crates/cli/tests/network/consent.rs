//! What `soteria join` agrees to, and what binds its state.

use crate::parties::{Run, eventually, program, text};
use crate::runs::own;

/// The run anew, with a server that listens.
fn again(run: &Run) -> crate::parties::Process {
    for name in ["server", "out"] {
        let _ = std::fs::remove_dir_all(run.path(name));
    }
    run.serve_anew()
}

/// Tiny minibatches with hardly any noise: "epsilon 0" at the server's delta, and about thirty
/// records in the clear.
const BOUGHT: &str = r#"
[data]
source = "synthetic:32561x5"
clients = 1
[algorithm]
preset = "dp-sgd"
batch = 0.3
rounds = 100
[privacy]
sigma = 0.02
clip = 1.0
delta = 1e-3
"#;

#[test]
fn a_server_cannot_buy_records_with_delta() {
    let mut run = Run::new(BOUGHT);
    (run.seed, run.clients) = (None, 1);
    run.data = "synthetic:32561x5".to_string();
    let _server = run.serve();
    let log = || run.log("join-0.log");
    assert_eq!(
        run.join_with(0, &["--max-epsilon", "0.001"]).code(),
        3,
        "{}",
        log()
    );
    assert!(
        log().contains("this run costs epsilon 0 at delta 1e-3"),
        "{}",
        log()
    );
    assert!(
        log().contains("at delta 3e-6") && log().contains("hint: the run names delta 1e-3"),
        "{}",
        log()
    );
    assert_eq!(run.ledger(0)["datasets"].as_array().unwrap().len(), 0);
    // Whoever names no limit hears of it, whatever else is silenced.
    let quiet = ["--yes", "--quiet"];
    let _client = run.join_with(0, &quiet);
    eventually("it is warned of", || {
        log().contains("warning: this run can publish whole records")
    });
}

/// A row more or less is another data set by its digest, and everything that the state has spent
/// counts all the same. Whoever says that no record is in both is believed, with a warning.
#[test]
fn a_state_counts_all_that_was_spent_with_it() {
    let run = own(3, 40);
    let log = || run.log("join-0.log");
    let mut server = again(&run);
    let limit = ["--max-epsilon", "1.0"];
    assert_eq!(run.join_with(0, &limit).code(), 0, "{}", log());
    assert_eq!(server.code(), 0);
    assert!(
        log().contains("before this run nothing was spent"),
        "{}",
        log()
    );
    let rows = std::fs::read_to_string(run.path("own.csv")).unwrap();
    let fewer: Vec<&str> = rows.lines().skip(1).collect();
    for changed in [format!("{rows}1,1,yes\n"), fewer.join("\n")] {
        std::fs::write(run.path("own.csv"), changed).unwrap();
        let mut server = again(&run);
        for more in [&[][..], &["--count-all"]] {
            let limit = [&limit[..], more].concat();
            assert_eq!(run.join_with(0, &limit).code(), 3, "{}", log());
        }
        assert!(
            log().contains("before this run 1 run spent epsilon"),
            "{}",
            log()
        );
        assert!(!log().contains("1 runs"), "{}", log());
        server.kill();
    }
    assert!(!log().contains("--disjoint-data-sets:"), "{}", log());
    let mut server = again(&run);
    let disjoint = [&limit[..], &["--disjoint-data-sets"]].concat();
    assert_eq!(run.join_with(0, &disjoint).code(), 0, "{}", log());
    assert_eq!(server.code(), 0);
    assert!(
        log().contains("warning: --disjoint-data-sets: 1 run on other data sets spent epsilon"),
        "{}",
        log()
    );
    let ledger = run.ledger(0);
    assert_eq!(ledger["datasets"].as_array().unwrap().len(), 2);
    let spent = |set: &serde_json::Value| set["epsilon"].as_f64().unwrap();
    assert!(spent(&ledger["altogether"]) > spent(&ledger["datasets"][0]));
    let both = [&disjoint[..], &["--count-all"]].concat();
    assert_eq!(run.join_with(0, &both).code(), 2);
}

/// A run that was joined without a message binds nothing, so nothing was agreed to: with fewer
/// records it costs more, and that is said again.
#[test]
fn joining_without_a_message_is_no_consent() {
    let several = BOUGHT.replace("clients = 1", "clients = 2");
    let mut run = Run::new(&several.replace("dp-sgd", "ldp-sgd"));
    (run.seed, run.clients) = (None, 2);
    let _server = run.serve();
    // The other client never comes, so no round begins.
    for (number, data) in [(1, "synthetic:32561x5"), (2, "synthetic:32561x5:0/5000")] {
        run.data = data.to_string();
        let mut client = run.join_with(0, &[]);
        eventually("it is warned of", || {
            run.log("join-0.log").matches("no limit was given").count() == number
        });
        eventually("its run is stored", || {
            run.ledger(0)["datasets"].as_array().unwrap().len() == 1
        });
        client.kill();
    }
    assert_eq!(run.ledger(0)["datasets"][0]["messages"], 0);
}

/// The coordinator hears that its clients judge at another delta than it names.
#[test]
fn a_server_warns_of_a_delta_that_its_clients_do_not_take() {
    let log = |delta: &str| {
        let mut run = Run::new(&BOUGHT.replace("delta = 1e-3", delta));
        (run.seed, run.clients) = (None, 1);
        let _server = run.serve_anew();
        run.log("serve.log")
    };
    let said = log("delta = 1e-5");
    assert!(
        said.contains("clients judge at a delta of their own, 3e-6 for 32561 records"),
        "{said}"
    );
    let said = log("delta = 3e-6");
    assert!(!said.contains("clients judge"), "{said}");
}

/// Under a limit a cost that nobody can say is refused, unless that is said to be meant.
#[test]
fn an_unknown_cost_is_refused_under_a_limit() {
    let run = Run {
        clients: 1,
        data: "synthetic:300x5".to_string(),
        ..Run::new(
            "[data]\nsource = \"synthetic:300x5\"\nclients = 1\n[algorithm]\npreset = \"soteriafl-sgd\"\nrounds = 3\nbatch = 10\n",
        )
    };
    let mut server = run.serve();
    let limit = ["--max-epsilon", "1000"];
    let log = || run.log("join-0.log");
    assert_eq!(run.join_with(0, &limit).code(), 3, "{}", log());
    assert!(
        log().contains("nobody can say what this run costs")
            && log().contains("--accept-unknown-cost"),
        "{}",
        log()
    );
    assert_eq!(run.ledger(0)["datasets"].as_array().unwrap().len(), 0);
    let accepting = [&limit[..], &["--accept-unknown-cost"]].concat();
    assert_eq!(run.join_with(0, &accepting).code(), 0, "{}", log());
    assert_eq!(server.code(), 0);
}

/// Numbers that a run does not have, and clients that the server does not take, leave no trace in
/// the state.
#[test]
fn a_number_that_is_refused_binds_nothing() {
    let run = own(3, 40);
    let config = std::fs::read_to_string(run.path("run.toml")).unwrap();
    let config = config.replace("records = 40", "records = 40\nmost_records = 50");
    std::fs::write(run.path("run.toml"), config).unwrap();
    let mut server = run.serve();
    let log = || run.log("join-0.log");
    assert_eq!(
        run.join_from("client-0", 3, &["--yes"]).code(),
        2,
        "{}",
        log()
    );
    assert!(log().contains("this run has no client 3"), "{}", log());
    let runs = |name: &str| {
        let file = run.path(&format!("{name}/client.sqlite"));
        let database = rusqlite::Connection::open(file).unwrap();
        let count = |table: &str| {
            let count = format!("SELECT count(*) FROM {table}");
            database
                .query_row(&count, [], |row| row.get::<_, i64>(0))
                .unwrap()
        };
        (count("runs"), count("shapes"))
    };
    assert_eq!(runs("client-0"), (0, 0));
    // More records than the server takes: refused by the server itself.
    let rows = std::fs::read_to_string(run.path("own.csv")).unwrap();
    std::fs::write(run.path("own.csv"), rows.repeat(2)).unwrap();
    assert_eq!(run.join(0).code(), 1, "{}", log());
    assert!(log().contains("the server refused"), "{}", log());
    assert_eq!(runs("client-0").0, 0);
    std::fs::write(run.path("own.csv"), rows).unwrap();
    assert_eq!(run.join(0).code(), 0, "{}", log());
    assert_eq!(server.code(), 0, "{}", run.log("serve.log"));
    assert_eq!(run.ledger(0)["datasets"][0]["messages"], 3);
}

/// Started again in the middle, a client says how far it is; with other noise than was paid for it
/// does not go on; and its ledger is computed from what was released, not from what was written
/// beside it.
#[test]
fn a_run_goes_on_with_the_noise_that_was_paid_for() {
    let run = own(5000, 80);
    let _server = run.serve();
    let mut client = run.join(0);
    let made = || run.ledger(0)["datasets"][0]["messages"].as_u64();
    eventually("messages were made", || {
        run.path("client-0/client.sqlite").exists() && run.log("serve.log").contains("round=3 ")
    });
    client.kill();
    let log = || run.log("join-0.log");
    let file = run.path("client-0/client.sqlite");
    let price = |change: &dyn Fn(&mut serde_json::Value)| {
        let database = rusqlite::Connection::open(&file).unwrap();
        let read = "SELECT price FROM runs";
        let text: String = database.query_row(read, [], |row| row.get(0)).unwrap();
        let mut price = serde_json::from_str(&text).unwrap();
        change(&mut price);
        let written = database.execute("UPDATE runs SET price = ?1", [price.to_string()]);
        assert_eq!(written.unwrap(), 1);
        text
    };
    let audit = || {
        let state = run.path("client-0");
        let output = program()
            .args(["audit", "--ledger", text(&state), "--json"])
            .output()
            .unwrap();
        let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        (
            output.status.code(),
            said["verdict"].as_str().unwrap().to_string(),
        )
    };
    assert_eq!(audit(), (Some(0), "agree".to_string()));
    let honest = run.ledger(0)["datasets"][0]["epsilon"].clone();
    let original = price(&|price| price["epsilon"] = 1e-6.into());
    let said = &run.ledger(0)["datasets"][0];
    assert_eq!(
        (&said["epsilon"], &said["runs"][0]["epsilon"]),
        (&honest, &honest)
    );
    let before = made();
    for (key, value) in [
        ("sigma", serde_json::json!(1e3)),
        ("rounds", serde_json::json!(5001)),
        ("shifts", serde_json::json!([0.0, 1e-9])),
    ] {
        price(&|price| price[key] = value.clone());
        assert_eq!(run.join(0).code(), 3, "{key}: {}", log());
        let last = log();
        assert!(
            last.contains("refused: messages of this run were paid for with"),
            "{last}"
        );
        assert_eq!(made(), before, "{key}");
        assert_eq!(audit(), (Some(1), "disagree".to_string()), "{key}");
        price(&|price| *price = serde_json::from_str(&original).unwrap());
    }
    // A limit that is too low now: what has left has left.
    assert_eq!(run.join_with(0, &["--max-epsilon", "1e-6"]).code(), 3);
    assert!(log().contains("; nothing more has been sent"), "{}", log());
    assert!(!log().contains("; nothing has been sent"), "{}", log());
    let _client = run.join(0);
    eventually("it goes on", || made() > before);
    let goes_on = format!(
        "this run goes on: {} of its 5000 messages were made",
        before.unwrap()
    );
    assert!(log().contains(&goes_on), "{goes_on}: {}", log());
    assert!(!log().contains("so far"), "{}", log());
}

/// A state that was begun and never finished is not one of another version.
#[test]
fn a_half_made_state_is_called_so() {
    let run = own(3, 40);
    let state = run.path("client-0");
    std::fs::create_dir(&state).unwrap();
    std::fs::write(state.join("client.sqlite"), "").unwrap();
    std::fs::write(state.join("lock"), "").unwrap();
    let output = program()
        .args(["ledger", "--state", text(&state)])
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("begun and not finished") && !said.contains("version"),
        "{said}"
    );
    let mut server = run.serve();
    assert_eq!(run.join(0).code(), 0, "{}", run.log("join-0.log"));
    assert_eq!(server.code(), 0);
}
