//! What the commands promise: the same bytes as a simulated run, exit codes, and nothing sent that
//! was not agreed to.

use prost::Message;
use sha2::{Digest, Sha256};
use soteriafl_deploy::net::client::{Caller, Patience};
use soteriafl_deploy::net::connect::{Security, Target};
use soteriafl_deploy::net::rpc::SubmitRequest;

use crate::parties::{Run, eventually};

const SMALL: &str = r#"
[data]
source = "synthetic:3000x20"
clients = 3
[algorithm]
preset = "soteriafl-sgd"
batch = 50
rounds = 12
"#;

#[test]
fn a_networked_run_over_tls_equals_a_simulated_one() {
    let mut run = Run::new(SMALL);
    run.make_keys();
    let mut server = run.serve();
    let mut clients: Vec<_> = (0..3).map(|client| run.join(client)).collect();
    for (client, process) in clients.iter_mut().enumerate() {
        assert_eq!(
            process.code(),
            0,
            "{}",
            run.log(&format!("join-{client}.log"))
        );
    }
    assert_eq!(server.code(), 0, "{}", run.log("serve.log"));
    assert!(run.model() == run.simulated());
    let summary = run.summary();
    assert_eq!(summary["privacy"]["claim"], "test seed");
    assert!(summary["privacy"]["epsilon"].is_null() && summary["final"]["loss"].is_null());
    assert!(summary["final"]["test_accuracy"].as_f64().is_some());
    assert!(run.path("out/report.html").exists());
    // Nobody can say what noise costs that anybody can compute.
    let set = &run.ledger(0)["datasets"][0];
    assert!(
        set["epsilon"].is_null() && set["runs"][0]["epsilon"].is_null(),
        "{set}"
    );
    // What is over stays over, at once: nobody waits as long for an end as a server does that has
    // clients to tell.
    assert_eq!(run.serve().code(), 0);
    assert_eq!(run.join(1).code(), 0);
    // The traffic that the table counts is that of the simulated run.
    let last = |name: &str| {
        let table = std::fs::read_to_string(run.path(name)).unwrap();
        table
            .lines()
            .last()
            .unwrap()
            .splitn(5, ',')
            .take(4)
            .collect::<Vec<_>>()
            .join(",")
    };
    assert_eq!(last("out/rounds.csv"), last("simulated/rounds.csv"));
}

/// The defaults for a table: second moments are released before the first round, over TLS, by
/// clients of which one is killed in between and one comes late; the model file carries the map,
/// and `evaluate` finds what the server measured.
#[test]
fn a_networked_run_of_a_table_is_whitened_as_a_simulated_one() {
    let mut run = Run::new("");
    let table = |name: &str, rows: std::ops::Range<u32>| {
        let row = |row: u32| {
            let value =
                |at: u32| f64::from((row * (at + 7) * 31 + at * row * row) % 97) / 48.0 - 1.0;
            let label = u32::from(value(0) + value(1) > 0.2);
            format!("{:.3},{:.3},{:.3},{label}\n", value(0), value(1), value(2))
        };
        let path = run.path(name);
        std::fs::write(&path, rows.map(row).collect::<String>()).unwrap();
        format!("csv:{}?header=no", path.display())
    };
    let (train, test) = (table("train.csv", 0..600), table("test.csv", 600..700));
    let config = format!(
        "[data]\nsource = \"{train}\"\ntest = \"{test}\"\nclients = 3\npartition = \"iid\"\n\
         [privacy]\nepsilon = 8.0\ndelta = 1e-3\n"
    );
    std::fs::write(run.path("run.toml"), config).unwrap();
    run.data = format!("{train}:{{}}/3");
    run.make_keys();
    let mut server = run.serve();
    let mut killed = run.join(0);
    let mut second = run.join(1);
    eventually("client 0 is in the ledger", || {
        run.path("client-0/client.sqlite").exists()
    });
    killed.kill();
    let mut last = run.join(2);
    let mut again = run.join(0);
    for process in [&mut again, &mut second, &mut last] {
        assert_eq!(process.code(), 0, "{}", run.log("join-0.log"));
    }
    assert_eq!(server.code(), 0, "{}", run.log("serve.log"));
    assert!(run.model() == run.simulated());
    let chosen = std::fs::read_to_string(run.path("out/config.toml")).unwrap();
    assert!(chosen.contains("whiten = 0.15"), "{chosen}");
    let summary = run.summary();
    let simulated: serde_json::Value =
        serde_json::from_slice(&std::fs::read(run.path("simulated/summary.json")).unwrap())
            .unwrap();
    let both = |at: &str| (summary.pointer(at).cloned(), simulated.pointer(at).cloned());
    for at in ["/privacy/moments", "/final/test_accuracy", "/traffic"] {
        let (networked, simulated) = both(at);
        assert!(
            networked.is_some() && networked == simulated,
            "{at}: {networked:?} {simulated:?}"
        );
    }
    let messages = summary["rounds"].as_u64().unwrap() + 1;
    let set = &run.ledger(0)["datasets"][0];
    assert_eq!(set["runs"][0]["messages"], messages, "{set}");
}

/// Claims: secure noise, secrets from the operating system, a server that owns no records.
/// What `preset = "auto"` chooses for pictures, with secure noise: a basis, whole gradients, an
/// equalised step. Pictures with many and with few dark pixels, because what is computed must not
/// depend on how they are stored.
#[test]
fn a_networked_run_of_pictures_in_a_basis_equals_a_simulated_one() {
    for dark in [9, 3] {
        let mut run = Run::new("");
        let folder = run.path("pictures");
        std::fs::create_dir(&folder).unwrap();
        for (set, count) in [("train", 90u32), ("t10k", 12)] {
            let write = |name: &str, header: &[u32], bytes: Vec<u8>| {
                let header = header.iter().flat_map(|word| word.to_be_bytes());
                let content: Vec<u8> = header.chain(bytes).collect();
                std::fs::write(folder.join(format!("{set}-{name}-ubyte")), content).unwrap();
            };
            let pixel = |p: u32| match p % 36 % 12 < dark {
                true => 0,
                false => (p.wrapping_mul(2_654_435_761) >> 24) as u8 | 1,
            };
            let pixels = (0..36 * count).map(pixel).collect();
            write("images-idx3", &[2051, count, 6, 6], pixels);
            let labels = (0..count).map(|record| (record % 3) as u8).collect();
            write("labels-idx1", &[2049, count], labels);
        }
        let source = format!("idx:{}", folder.display());
        let config = format!(
            "[data]\nsource = \"{source}\"\nclients = 3\npartition = \"iid\"\nscale = \"constant\"\ncenter = 0.13\nfactor = 3.2\n\
             basis = \"cosine:3\"\n[model]\nkind = \"mlp\"\nhidden = [4]\n[algorithm]\nrounds = 6\n\
             [privacy]\nepsilon = 8.0\ndelta = 1e-3\nnoise = \"secure\"\n"
        );
        std::fs::write(run.path("run.toml"), config).unwrap();
        run.data = format!("{source}:{{}}/3");
        let mut server = run.serve();
        let mut clients: Vec<_> = (0..3).map(|client| run.join(client)).collect();
        for (client, process) in clients.iter_mut().enumerate() {
            let log = run.log(&format!("join-{client}.log"));
            assert_eq!(process.code(), 0, "{log}");
        }
        assert_eq!(server.code(), 0, "{}", run.log("serve.log"));
        assert!(run.model() == run.simulated(), "{dark} of 12 pixels dark");
        let chosen = std::fs::read_to_string(run.path("out/config.toml")).unwrap();
        assert!(chosen.contains("basis = \"cosine:3\"") && chosen.contains("equalize = 0.002"));
    }
}

/// Numbers to predict: their public range is agreed on, and every client cuts its targets off by
/// it.
#[test]
fn a_networked_run_of_numbers_equals_a_simulated_one() {
    let mut run = Run::new("");
    let table = run.path("rents.csv");
    let row = |row: u32| format!("{}.5,{},{}.25\n", row % 7, row * 5 % 11, row * 13 % 97);
    std::fs::write(&table, (0..120).map(row).collect::<String>()).unwrap();
    let source = format!("csv:{}?header=no", table.display());
    let config = format!(
        "[data]\nsource = \"{source}\"\nclients = 3\npartition = \"iid\"\ntarget_range = [5, 80]\n\
         [model]\nloss = \"huber\"\nhuber = 12\n[algorithm]\nrounds = 6\n\
         [privacy]\nepsilon = 8.0\ndelta = 1e-3\nnoise = \"secure\"\n"
    );
    std::fs::write(run.path("run.toml"), config).unwrap();
    run.data = format!("{source}:{{}}/3");
    let mut server = run.serve();
    let mut clients: Vec<_> = (0..3).map(|client| run.join(client)).collect();
    for (client, process) in clients.iter_mut().enumerate() {
        let log = run.log(&format!("join-{client}.log"));
        assert_eq!(process.code(), 0, "{log}");
    }
    assert_eq!(server.code(), 0, "{}", run.log("serve.log"));
    assert!(run.model() == run.simulated());
    let chosen = std::fs::read_to_string(run.path("out/config.toml")).unwrap();
    assert!(chosen.contains("target_range = [5.0, 80.0]") && chosen.contains("huber = 12.0"));
}

#[test]
fn a_server_without_records_coordinates_a_proved_run() {
    let mut run = Run::new(
        r#"
[data]
source = "csv:own.csv?header=no"
clients = 3
[model]
kind = "logistic"
[algorithm]
preset = "auto"
rounds = 5
[deployment]
features = 2
labels = ["no", "yes"]
records = 40
"#,
    );
    run.seed = None;
    run.data = format!("csv:{}?header=no", run.path("own-{}.csv").display());
    for client in 0..3u32 {
        let rows: String = (0..40 + client)
            .map(|row| {
                format!(
                    "{},{},{}\n",
                    row % 5,
                    (row * client) % 7,
                    ["no", "yes"][row as usize % 2]
                )
            })
            .collect();
        std::fs::write(run.path(&format!("own-{client}.csv")), rows).unwrap();
    }
    run.make_keys();
    let mut server = run.serve();
    // Too much for client 0: it says so and nothing has left.
    let mut refused = run.join_with(0, &["--max-epsilon", "0.5"]);
    assert_eq!(refused.code(), 3, "{}", run.log("join-0.log"));
    assert!(
        run.log("join-0.log").contains("error: refused"),
        "{}",
        run.log("join-0.log")
    );
    assert!(
        !run.log("serve.log").contains("joined"),
        "{}",
        run.log("serve.log")
    );
    assert_eq!(run.ledger(0)["datasets"].as_array().unwrap().len(), 0);
    let mut clients: Vec<_> = (0..3)
        .map(|client| run.join_with(client, &["--max-epsilon", "1.0"]))
        .collect();
    for process in &mut clients {
        assert_eq!(process.code(), 0, "{}", run.log("join-0.log"));
    }
    assert_eq!(server.code(), 0, "{}", run.log("serve.log"));
    let summary = run.summary();
    assert_eq!(summary["privacy"]["claim"], "proved", "{summary}");
    assert_eq!(summary["privacy"]["noise"], "secure");
    assert_eq!(
        summary["samples_per_client"],
        serde_json::json!([40, 41, 42])
    );
    let ledger = run.ledger(2);
    let set = &ledger["datasets"][0];
    assert_eq!(
        (set["messages"].as_u64(), set["records"].as_u64()),
        (Some(6), Some(42)),
        "five rounds, and second moments before them"
    );
    assert_eq!(set["claim"], "proved");
    let epsilon = set["epsilon"].as_f64().unwrap();
    assert!(epsilon > 0.9 && epsilon <= 1.0, "{epsilon}");
    // A second run on the same records does not fit into the same limit.
    for name in ["server", "out"] {
        std::fs::remove_dir_all(run.path(name)).unwrap();
    }
    let _server = run.serve_anew();
    let mut again = run.join_with(2, &["--max-epsilon", "1.0"]);
    assert_eq!(again.code(), 3, "{}", run.log("join-2.log"));
    assert_eq!(run.ledger(2)["datasets"][0]["messages"].as_u64(), Some(6));
}

/// A server that owns no records, for two clients with eight LIBSVM rows of three features each, or
/// as changed.
fn two_clients(change: impl Fn(&str) -> String) -> String {
    change(
        r#"
[data]
source = "libsvm:d.txt"
clients = 2
[model]
kind = "logistic"
[algorithm]
preset = "soteriafl-sgd"
batch = 2
rounds = 3
[privacy]
epsilon = 1.0
delta = 1e-3
accountant = "rdp"
amplification = "off"
[run]
seed = 0
[deployment]
features = 3
labels = ["-1", "+1"]
records = 8
"#,
    )
}

/// One state, one file, one limit: whatever the server describes next, what was spent stays spent.
/// Also, a client that was killed after it had joined goes on.
#[test]
fn no_description_makes_the_ledger_forget() {
    let mut run = Run::new(&two_clients(str::to_string));
    run.seed = None;
    run.data = format!("libsvm:{}", run.path("d-{}.txt").display());
    for client in 0..2 {
        let rows = "+1 1:0.5 3:2\n-1 2:1.5\n+1 1:3\n-1 3:-1\n1 2:7\n-1.0 1:4\n+1 3:9\n-1 2:2 3:2\n";
        std::fs::write(run.path(&format!("d-{client}.txt")), rows).unwrap();
    }
    let limit = ["--max-epsilon", "1.05"];
    let mut server = run.serve();
    let mut first = run.join_with(0, &limit);
    eventually("client 0 has joined", || {
        run.log("serve.log").contains("joined")
    });
    first.kill();
    let mut clients: Vec<_> = (0..2).map(|client| run.join_with(client, &limit)).collect();
    for client in &mut clients {
        assert_eq!(client.code(), 0, "{}", run.log("join-0.log"));
    }
    assert_eq!(server.code(), 0, "{}", run.log("serve.log"));
    // Data sets are numbered: no digest is shown.
    assert_eq!(run.ledger(0)["datasets"][0]["data"], 1);
    let changes: [(&str, &str, &str, i32); 5] = [
        ("features = 3", "features = 11", "", 2),
        ("\"+1\"]", "\"1.0\"]", "", 2),
        ("seed = 0", "seed = 1", "", 3),
        ("seed = 0", "seed = 2", ":0/2", 3),
        (
            "epsilon = 1.0\ndelta = 1e-3",
            "sigma = 1e-4\ndelta = 0.05",
            "",
            3,
        ),
    ];
    let data = run.data.clone();
    for (from, to, part, code) in changes {
        for name in ["server", "out"] {
            std::fs::remove_dir_all(run.path(name)).unwrap();
        }
        let config = two_clients(|text| text.replace(from, to).replace("batch = 2", "batch = 1"));
        std::fs::write(run.path("run.toml"), config).unwrap();
        run.data = format!("{data}{part}");
        let mut server = run.serve_anew();
        let mut again = run.join_with(0, &limit);
        assert_eq!(again.code(), code, "{to}: {}", run.log("join-0.log"));
        server.kill();
        std::fs::create_dir_all(run.path("out")).unwrap();
        let ledger = run.ledger(0);
        assert_eq!(ledger["datasets"].as_array().unwrap().len(), 1, "{to}");
        assert_eq!(ledger["datasets"][0]["messages"].as_u64(), Some(3), "{to}");
    }
}

/// Whether records have a shape is one bit about them. A server gets it for the first shape that it
/// names, not for the next one: two clients, of which one has the second shape, then say the same
/// and neither joins, however often they are started.
#[test]
fn a_server_cannot_try_out_shapes() {
    let mut run = Run::new("");
    run.seed = None;
    run.data = format!("libsvm:{}", run.path("d-{}.txt").display());
    for client in 0..2 {
        let last = 3 + client;
        let rows = format!("+1 1:0.5 {last}:2\n-1 2:1.5\n").repeat(4);
        std::fs::write(run.path(&format!("d-{client}.txt")), rows).unwrap();
    }
    let serve = |features: &str| {
        for name in ["server", "out"] {
            let _ = std::fs::remove_dir_all(run.path(name));
        }
        let config = two_clients(|text| text.replace("features = 3", features));
        std::fs::write(run.path("run.toml"), config).unwrap();
        run.serve()
    };
    let said = |client: usize| {
        let log = run.log(&format!("join-{client}.log"));
        let lines = log
            .lines()
            .filter(|line| line.contains("error:") || line.contains("hint:"));
        lines.map(str::to_string).collect::<Vec<_>>()
    };
    let limit = ["--max-epsilon", "1.05"];
    for (features, answer) in [
        ("features = 2", "error: these records do not have"),
        (
            "features = 3",
            "error: this run names other features or classes (3 and 2 of them)",
        ),
        (
            "features = 3",
            "error: this run names other features or classes (3 and 2 of them)",
        ),
    ] {
        let mut server = serve(features);
        for client in 0..2 {
            assert_eq!(
                run.join_with(client, &limit).code(),
                2,
                "{:?}",
                said(client)
            );
            let said = said(client);
            let last = said.iter().rfind(|line| line.contains("error:")).unwrap();
            assert!(last.contains(answer), "{last}");
        }
        assert_eq!(said(0), said(1));
        server.kill();
        assert!(!run.log("serve.log").contains("joined"));
    }
    // A person may say that it is meant, and for one shape only.
    let refusal = said(0).pop().unwrap();
    let name = refusal.split("--shape ").nth(1).unwrap();
    let permitted = [&limit[..], &["--shape", &name[..16]]].concat();
    let mut server = serve("features = 3");
    assert_eq!(run.join_with(1, &permitted).code(), 2, "{:?}", said(1));
    let _client = run.join_with(0, &permitted);
    eventually("client 0 has joined", || {
        run.log("serve.log").contains("joined")
    });
    server.kill();
    let _server = serve("features = 4");
    let mut other = run.join_with(1, &permitted);
    assert_eq!(other.code(), 2, "{:?}", said(1));
    assert!(said(1).pop().unwrap().contains("--shape says"));
}

/// A client whose state was restored from an older copy, and who is so far behind that it gets a
/// state instead of rounds, is told how many messages of it were taken, and stops; also by a server
/// that was started again. With the newest state it goes on.
#[test]
fn an_older_copy_is_found_out_far_behind() {
    let run = Run::new(&SMALL.replace("rounds = 12", "rounds = 160"));
    let (state, copy, newest) = (
        run.path("client-0"),
        run.path("copy-0"),
        run.path("newest-0"),
    );
    let mut server = run.serve();
    let mut clients: Vec<_> = (0..3).map(|client| run.join(client)).collect();
    let closed = |round: u32| {
        eventually("rounds have closed", || {
            run.log("serve.log").contains(&format!("round={round} "))
        });
    };
    closed(2);
    clients[0].kill();
    copy_directory(&state, &copy);
    clients[0] = run.join(0);
    closed(140);
    clients[0].kill();
    server.kill();
    std::fs::rename(&state, &newest).unwrap();
    std::fs::rename(&copy, &state).unwrap();
    let mut server = run.serve();
    let before = run.ledger(0)["datasets"][0]["messages"].clone();
    let mut older = run.join(0);
    assert_eq!(older.code(), 1, "{}", run.log("join-0.log"));
    let log = run.log("join-0.log");
    assert!(log.contains("it is an older copy"), "{log}");
    // All of them at once, so it was not told by rounds.
    let taken = log.split("at least ").nth(1).unwrap().split(' ').next();
    assert!(taken.unwrap().parse::<u32>().unwrap() >= 140, "{log}");
    assert!(log.contains("count all of it as spent"), "{log}");
    assert_eq!(hints(&log), 3, "{log}");
    assert_eq!(run.ledger(0)["datasets"][0]["messages"], before);
    std::fs::remove_dir_all(&state).unwrap();
    std::fs::rename(&newest, &state).unwrap();
    clients[0] = run.join(0);
    for client in &mut clients {
        assert_eq!(client.code(), 0, "{}", run.log("join-0.log"));
    }
    assert_eq!(server.code(), 0, "{}", run.log("serve.log"));
    assert!(run.model() == run.simulated());
}

/// Two copies of a state in step: both make a message for the open round. The server takes the
/// first that comes, and the client with the other stays out, by an exit code after which it is not
/// started again, until a person has looked.
#[test]
fn a_copy_in_step_is_found_out_by_its_message() {
    let mut run = Run::new(&two_clients(str::to_string));
    run.seed = None;
    run.data = format!("libsvm:{}", run.path("d.txt").display());
    let rows = "+1 1:0.5 3:2\n-1 2:1.5\n".repeat(4);
    std::fs::write(run.path("d.txt"), rows).unwrap();
    let _server = run.serve();
    // The other client joins and says nothing more, so the first round stays open.
    let address = format!("http://127.0.0.1:{}", run.port);
    let target = Target::new(&address, &Security::Plain).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let mut other = Caller::new(&target, 1);
        let (mut patience, mut text) = (Patience::default(), other.describe().await);
        while text.is_err() {
            patience.pause().await;
            text = other.describe().await;
        }
        let run = Sha256::digest(text.unwrap().as_bytes())[..16].to_vec();
        other.for_run(run.into(), 3, 0).join(8).await.unwrap();
    });
    let limit = ["--max-epsilon", "1.05"];
    let mut copies =
        ["client-0", "client-0-copy"].map(|state| Some(run.join_from(state, 0, &limit)));
    let logs = || ["join-0.log", "join-0-copy.log"].map(|name| run.log(name));
    let out = |log: &String| log.contains("another message of this client");
    eventually("one of them is found out", || logs().iter().any(out));
    let which = logs().iter().position(out).unwrap();
    let code = copies[which].take().unwrap().code();
    assert_eq!(code, 3, "{}", logs()[which]);
    assert!(logs()[which].contains("find the copy"), "{}", logs()[which]);
    assert_eq!(hints(&logs()[which]), 3, "{}", logs()[which]);
    // The one whose message was taken waits for the other client as before.
    assert!(!out(&logs()[1 - which]), "{}", logs()[1 - which]);
    assert_eq!(run.ledger(0)["datasets"][0]["messages"], 1);
}

/// Hints in a log, each on a line of its own.
fn hints(log: &str) -> usize {
    let lines = log.lines();
    lines.filter(|line| line.starts_with("hint: ")).count()
}

fn copy_directory(from: &std::path::Path, to: &std::path::Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// A deployed client does not join what proves nothing, nor a test without knowing it.
#[test]
fn unproved_runs_are_refused() {
    let mut run = Run::new(SMALL);
    let _server = run.serve();
    run.seed = None;
    let mut client = run.join(0);
    assert_eq!(client.code(), 3, "{}", run.log("join-0.log"));
    assert!(
        run.log("join-0.log").contains("test"),
        "{}",
        run.log("join-0.log")
    );

    let mut run = Run::new(&format!("{SMALL}[privacy]\nnoise = \"float\"\n"));
    run.seed = None;
    let _server = run.serve();
    let mut client = run.join(0);
    assert_eq!(client.code(), 3, "{}", run.log("join-0.log"));
    assert!(
        run.log("join-0.log").contains("not secure"),
        "{}",
        run.log("join-0.log")
    );
}

pub const OWN: &str = r#"
[data]
source = "csv:own.csv?header=no"
clients = 1
[model]
kind = "logistic"
[algorithm]
preset = "soteriafl-saga"
batch = 4
[deployment]
features = 2
labels = ["no", "yes"]
records = 40
"#;

/// A run with one client that has a file of its own and secrets of its own.
pub fn own(rounds: u32, records: u32) -> Run {
    let mut run = Run::new(&OWN.replace("batch", &format!("rounds = {rounds}\nbatch")));
    (run.seed, run.clients) = (None, 1);
    run.data = format!("csv:{}?header=no", run.path("own.csv").display());
    let label = |row| ["no", "yes"][row as usize % 2];
    let rows = (0..records).map(|row| format!("{},{},{}\n", row % 5, row % 7, label(row)));
    std::fs::write(run.path("own.csv"), rows.collect::<String>()).unwrap();
    run
}

/// Without a terminal nobody is asked: the cost is shown, and a warning says that nothing limits
/// it.
#[test]
fn without_a_terminal_a_missing_limit_is_a_warning() {
    let run = own(3, 40);
    let mut server = run.serve();
    let log = || run.log("join-0.log");
    assert_eq!(run.join_with(0, &[]).code(), 0, "{}", log());
    assert!(log().contains("this run costs epsilon"), "{}", log());
    let warned = || log().matches("warning: no limit was given").count();
    assert!(
        warned() == 1 && log().contains("--max-epsilon"),
        "{}",
        log()
    );
    assert_eq!(server.code(), 0);
    // Also if nothing else is said.
    let other = own(3, 40);
    let mut server = other.serve();
    assert_eq!(other.join_with(0, &["--quiet"]).code(), 0);
    let said = other.log("join-0.log");
    assert!(
        said.contains("no limit was given") && said.contains("will have spent"),
        "{said}"
    );
    assert_eq!(server.code(), 0);
    // What was joined is not warned of again. There is no server any more, which is looked for
    // once.
    assert_eq!(run.join_with(0, &[]).code(), 0, "{}", log());
    assert_eq!(warned(), 1);
}

#[test]
fn whoever_says_yes_is_not_warned() {
    let run = own(3, 40);
    let mut server = run.serve();
    assert_eq!(run.join_with(0, &["--yes"]).code(), 0);
    assert!(!run.log("join-0.log").contains("no limit was given"));
    assert_eq!(server.code(), 0);
}

/// What a client remembers is about its part of the source: another one is not gone on with.
#[test]
fn a_run_goes_on_with_the_same_part_only() {
    let mut run = own(5000, 80);
    let data = std::mem::take(&mut run.data);
    run.data = format!("{data}:0/2");
    let _server = run.serve();
    let mut client = run.join(0);
    eventually("a message was made", || {
        run.path("client-0/client.sqlite").exists() && run.log("serve.log").contains("round=1")
    });
    client.kill();
    for (part, name) in [(":1/2", "part 1/2"), ("", "all of")] {
        run.data = format!("{data}{part}");
        assert_eq!(run.join(0).code(), 2, "{}", run.log("join-0.log"));
        let log = run.log("join-0.log");
        let last = log.lines().last().unwrap();
        assert!(
            last.contains("part 0/2") || last.contains("other records"),
            "{log}"
        );
        assert!(part.is_empty() || last.contains(name), "{log}");
    }
    run.data = format!("{data}:0/2");
    let before = run.ledger(0)["datasets"][0]["messages"].as_u64().unwrap();
    let _client = run.join(0);
    eventually("it goes on with its own part", || {
        run.ledger(0)["datasets"][0]["messages"].as_u64().unwrap() > before
    });
}

#[test]
fn one_state_has_one_process_and_one_identity() {
    let run = Run::new(SMALL);
    let _server = run.serve();
    let _first = run.join(0);
    eventually("client 0 has joined", || {
        run.log("serve.log").contains("joined")
    });
    let mut second = run.join(0);
    assert_eq!(second.code(), 1);
    assert!(
        run.log("join-0.log").contains("in use"),
        "{}",
        run.log("join-0.log")
    );
    let mut server = run.serve();
    assert_eq!(server.code(), 1);
    // A client that this run does not have.
    let mut stranger = run.join_with(3, &[]);
    assert_ne!(stranger.code(), 0);
}

/// A straggler that never comes back: rounds close by quorum after the deadline, and the run ends.
#[test]
fn a_quorum_ends_the_run_without_a_straggler() {
    let run = Run::new(&format!(
        "{SMALL}[deployment]\nquorum = 2\ndeadline = 0.2\n"
    ));
    let mut server = run.serve();
    let mut clients: Vec<_> = (0..3).map(|client| run.join(client)).collect();
    eventually("a round has closed", || {
        run.log("serve.log").contains("round=1")
    });
    clients[2].kill();
    for client in &mut clients[..2] {
        assert_eq!(client.code(), 0);
    }
    // Back after the end, while the server still waits for it.
    let mut late = run.join(2);
    assert_eq!(late.code(), 0, "{}", run.log("join-2.log"));
    assert_eq!(server.code(), 0, "{}", run.log("serve.log"));
    let spent = run.ledger(2)["datasets"][0]["messages"].as_u64().unwrap();
    assert!(spent <= 12, "{spent}");
}

#[test]
fn both_sides_stop_when_told_and_go_on_later() {
    let run = Run::new(&SMALL.replace("rounds = 12", "rounds = 300"));
    let mut server = run.serve();
    let mut clients: Vec<_> = (0..3).map(|client| run.join(client)).collect();
    eventually("some rounds have closed", || {
        run.log("serve.log").contains("round=3 ")
    });
    server.terminate();
    assert_eq!(server.code(), 0, "{}", run.log("serve.log"));
    clients[1].terminate();
    assert_eq!(clients[1].code(), 0, "{}", run.log("join-1.log"));
    let mut server = run.serve();
    clients[1] = run.join(1);
    for client in &mut clients {
        assert_eq!(client.code(), 0);
    }
    assert_eq!(server.code(), 0, "{}", run.log("serve.log"));
    assert!(run.model() == run.simulated());
}

/// On the wire, envelope included: at most 3% above 4 bytes a value, plus 64.
#[test]
fn messages_are_small() {
    for k in [1usize, 6, 100, 2544, 500_000] {
        let message = vec![0; soteriafl_core::wire::HEADER_LEN + 16 + 4 * k];
        let request = SubmitRequest {
            run: vec![0; 16].into(),
            message: message.into(),
        };
        // gRPC frames a message by five bytes.
        let bytes = request.encoded_len() + 5;
        assert!(
            bytes as f64 <= 1.03 * (4 * k) as f64 + 64.0,
            "k = {k}: {bytes}"
        );
    }
}
