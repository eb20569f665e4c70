//! What a client's state leaves on disk, and who can read it.

use std::path::Path;

use soteriafl_core::preliminary::Average;
use soteriafl_core::protocol::{ClientState, ServerState};
use soteriafl_deploy::sqlite::{ClientSqlite, ServerSqlite};
use soteriafl_deploy::store::{Checkpoint, ClientStore, LedgerRun, StoreError, StoredMessage};

use crate::harness::Deployment;

/// Whether any file of the state holds these bytes.
fn on_disk(directory: &Path, bytes: &[u8]) -> bool {
    let files = std::fs::read_dir(directory).unwrap();
    files
        .map(|entry| std::fs::read(entry.unwrap().path()).unwrap())
        .any(|content| content.windows(bytes.len()).any(|window| window == bytes))
}

fn secret(round: u32) -> [u8; 32] {
    std::array::from_fn(|at| (round as u8).wrapping_mul(89) ^ (at as u8).wrapping_mul(151) ^ 0x5a)
}

fn checkpoint(round: u32) -> Checkpoint {
    Checkpoint {
        server: ServerState {
            round,
            model: vec![0.0; 3],
            shift: vec![0.0; 3],
            velocity: Vec::new(),
            target: Vec::new(),
        },
        client: ClientState::default(),
    }
}

fn fill(store: &mut ClientSqlite, deployment: &Deployment, rounds: std::ops::Range<u32>) {
    for round in rounds {
        let row = StoredMessage {
            round,
            message: vec![1; 100],
            coins: Some(secret(round)),
            model: [0; 32],
            accepted: None,
        };
        store
            .pay(deployment.description.hash(), &row, None, None)
            .unwrap();
    }
}

/// A secret is gone from all files after the checkpoint that erases it, log included; and if the
/// process died before it could cut the log, once the state is opened again.
#[test]
fn checkpoints_remove_secrets_from_the_log() {
    let deployment = Deployment::new(&[]);
    let directory = tempfile::tempdir().unwrap();
    let mut store = ClientSqlite::open(directory.path()).unwrap();
    store.begin(&deployment.ledger_run(0)).unwrap();
    fill(&mut store, &deployment, 0..6);
    assert!((0..6).all(|round| on_disk(directory.path(), &secret(round))));
    store
        .checkpoint(deployment.description.hash(), &checkpoint(4), None)
        .unwrap();
    for round in 0..6 {
        assert_eq!(
            on_disk(directory.path(), &secret(round)),
            round >= 4,
            "round {round}"
        );
    }
    // A reader in the middle of its work keeps the log; the next change after it cuts it.
    let reader = rusqlite::Connection::open(directory.path().join("client.sqlite")).unwrap();
    reader
        .execute_batch("BEGIN; SELECT count(*) FROM runs;")
        .unwrap();
    reader
        .query_row("SELECT count(*) FROM runs", [], |_| Ok(()))
        .unwrap();
    store.impatient();
    store
        .checkpoint(deployment.description.hash(), &checkpoint(5), None)
        .unwrap();
    assert!(on_disk(directory.path(), &secret(4)));
    drop(reader);
    fill(&mut store, &deployment, 6..7);
    assert!(!on_disk(directory.path(), &secret(4)));
}

/// Of SAGA's secrets only the coins are written down; nobody who gets the state later can compute
/// the noise again.
#[test]
fn what_noise_is_made_of_is_never_on_disk() {
    let mut deployment =
        Deployment::new(&["algorithm.preset=soteriafl-saga", "privacy.noise=secure"]);
    deployment.split = true;
    let directory = tempfile::tempdir().unwrap();
    let store = ClientSqlite::open(directory.path()).unwrap();
    let keys = deployment.keys(0);
    let secrets = Box::new(move |_, _: &_| Ok(keys.clone()));
    let participant = deployment.participant_over(store, 0, secrets).unwrap();
    let (_, message) = participant.unwrap().message().unwrap().unwrap();
    let keys = deployment.keys(0);
    assert!(on_disk(directory.path(), &message));
    assert!(on_disk(directory.path(), keys.coins.expose()));
    assert!(!on_disk(directory.path(), keys.noise.expose()));
}

/// A state of the first version named records in another way: read as one of today it would have
/// spent nothing.
#[test]
fn states_of_another_version_are_refused_and_left_alone() {
    let deployment = Deployment::new(&[]);
    let directory = tempfile::tempdir().unwrap();
    let mut store = ClientSqlite::open(directory.path()).unwrap();
    store.begin(&deployment.ledger_run(0)).unwrap();
    drop(store);
    let file = directory.path().join("client.sqlite");
    let version = |version: i64| {
        let database = rusqlite::Connection::open(&file).unwrap();
        database.pragma_update(None, "user_version", version)
    };
    for other in [1, 2, 3, 6] {
        version(other).unwrap();
        for opened in [
            ClientSqlite::open(directory.path()),
            ClientSqlite::open_to_read(directory.path()),
        ] {
            let error = opened.err().unwrap();
            assert!(matches!(error, StoreError::Version { found, known: 5, .. } if found == other));
            assert!(error.to_string().contains("stays spent"), "{error}");
        }
    }
    version(5).unwrap();
    assert_eq!(
        ClientSqlite::open(directory.path())
            .unwrap()
            .runs()
            .unwrap()
            .len(),
        1
    );
}

/// A ledger of the version before is read as it is, and brought here by whoever goes on with it.
#[test]
fn a_state_without_releases_is_read_and_upgraded() {
    let deployment = Deployment::new(&[]);
    let directory = tempfile::tempdir().unwrap();
    let mut store = ClientSqlite::open(directory.path()).unwrap();
    store.begin(&deployment.ledger_run(0)).unwrap();
    drop(store);
    let file = directory.path().join("client.sqlite");
    let database = rusqlite::Connection::open(&file).unwrap();
    database
        .execute_batch("DROP TABLE releases; PRAGMA user_version = 4;")
        .unwrap();
    let version = || -> i64 {
        let found = database.query_row("PRAGMA user_version", [], |row| row.get(0));
        found.unwrap()
    };
    let mut read = ClientSqlite::open_to_read(directory.path()).unwrap();
    assert_eq!(read.runs().unwrap().len(), 1);
    assert_eq!(version(), 4);
    drop(read);
    let mut store = ClientSqlite::open(directory.path()).unwrap();
    assert_eq!(version(), 5);
    let run = store.runs().unwrap().remove(0);
    store.pay_release(&run.hash, 0, b"abc").unwrap();
    assert!(store.pay_release(&run.hash, 0, b"abd").is_err());
    assert_eq!(store.runs().unwrap()[0].messages, 1);
    let average = Average {
        values: vec![1.0, -2.5],
        noise: 0.25,
    };
    store.hear_release(&run.hash, 0, &average).unwrap();
    let known = store.releases(&run.hash).unwrap();
    assert_eq!(known[0].average, Some(average));
    assert!(known[0].message.is_empty());
    // What was released binds, as a message of a round does.
    assert!(store.begin(&deployment.ledger_run(0)).is_err());
}

/// An empty file in the place of a ledger would say that nothing was ever spent.
#[test]
fn an_emptied_ledger_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    drop(ClientSqlite::open(directory.path()).unwrap());
    drop(ClientSqlite::open(directory.path()).unwrap());
    let file = directory.path().join("client.sqlite");
    for emptied in [true, false] {
        if emptied {
            std::fs::write(&file, "").unwrap();
        } else {
            std::fs::remove_file(&file).unwrap();
        }
        let error = ClientSqlite::open(directory.path()).err().unwrap();
        assert!(matches!(error, StoreError::Corrupt { .. }), "{error}");
    }
    // Another database beside it is another matter, and where none was finished there is nothing to
    // miss.
    ServerSqlite::open(directory.path()).unwrap();
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("client.sqlite"), "").unwrap();
    std::fs::write(directory.path().join("lock"), "").unwrap();
    ClientSqlite::open(directory.path()).unwrap();
}

/// What a run was joined with comes back as it was.
#[test]
fn runs_are_read_as_they_were_written() {
    let deployment = Deployment::new(&[]);
    let directory = tempfile::tempdir().unwrap();
    let mut store = ClientSqlite::open(directory.path()).unwrap();
    let run = |number: u8, part| LedgerRun {
        hash: [number; 32],
        part,
        ..deployment.ledger_run(0)
    };
    let runs = [run(0, None), run(1, Some((0, 2))), run(2, Some((11, 12)))];
    for run in &runs {
        store.begin(run).unwrap();
    }
    assert_eq!(store.runs().unwrap(), runs);
}

/// How many messages were taken is counted over the whole run, also before the last checkpoint.
#[test]
fn messages_that_were_taken_are_counted_over_the_whole_run() {
    let deployment = Deployment::new(&[]);
    let directory = tempfile::tempdir().unwrap();
    let mut store = ClientSqlite::open(directory.path()).unwrap();
    let (hash, other) = (*deployment.description.hash(), [9; 32]);
    store.begin(&deployment.ledger_run(0)).unwrap();
    let run = deployment.ledger_run(0);
    store.begin(&LedgerRun { hash: other, ..run }).unwrap();
    for round in 0..6 {
        let row = StoredMessage {
            round,
            message: vec![1; 100],
            coins: None,
            model: [0; 32],
            accepted: None,
        };
        let before = round.checked_sub(1).map(|before| (before, before != 1));
        store.pay(&hash, &row, before, None).unwrap();
        store
            .pay(&other, &row, before.map(|(before, _)| (before, true)), None)
            .unwrap();
    }
    assert_eq!((store.taken(&hash), store.taken(&other)), (Ok(4), Ok(5)));
    store
        .checkpoint(&hash, &checkpoint(4), Some((5, true)))
        .unwrap();
    drop(store);
    let mut store = ClientSqlite::open(directory.path()).unwrap();
    assert_eq!((store.taken(&hash), store.taken(&other)), (Ok(5), Ok(5)));
    assert_eq!(store.taken(&[8; 32]), Ok(0));
}

/// Nobody else can read the files, in whatever directory they are.
#[cfg(unix)]
#[test]
fn files_are_private_in_an_open_directory() {
    use std::os::unix::fs::PermissionsExt;
    let deployment = Deployment::new(&[]);
    let directory = tempfile::tempdir().unwrap();
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(directory.path(), open.clone()).unwrap();
    // One of the files is there already, and open.
    std::fs::write(directory.path().join("lock"), "").unwrap();
    std::fs::set_permissions(directory.path().join("lock"), open).unwrap();
    let mut store = ClientSqlite::open(directory.path()).unwrap();
    store.begin(&deployment.ledger_run(0)).unwrap();
    fill(&mut store, &deployment, 0..1);
    let mut names = Vec::new();
    for entry in std::fs::read_dir(directory.path()).unwrap() {
        let entry = entry.unwrap();
        let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{:?}", entry.file_name());
        names.push(entry.file_name());
    }
    assert_eq!(names.len(), 4, "{names:?}");
}

/// A state of 300,000 parameters, every number of which tells the round.
fn large(round: u32) -> Checkpoint {
    let numbers = |of: f32| vec![of + round as f32; 300_000];
    Checkpoint {
        server: ServerState {
            round,
            model: numbers(0.25),
            shift: numbers(0.5),
            velocity: numbers(0.125),
            target: Vec::new(),
        },
        client: ClientState {
            shift: numbers(0.75),
            memory: [round as u8; 1001].to_vec(),
        },
    }
}

fn states(directory: &Path) -> Vec<String> {
    let names = std::fs::read_dir(directory).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut found: Vec<String> = names.filter(|name| name.starts_with("state-")).collect();
    found.sort();
    found
}

/// Large states lie beside the database, by turns in two files, and nothing of them is left when
/// the run is over.
#[test]
fn large_states_come_back_and_leave_nothing() {
    let deployment = Deployment::new(&[]);
    let directory = tempfile::tempdir().unwrap();
    let hash = *deployment.description.hash();
    ClientSqlite::open(directory.path())
        .unwrap()
        .begin(&deployment.ledger_run(0))
        .unwrap();
    for round in 0..5 {
        let mut store = ClientSqlite::open_briefly(directory.path()).unwrap();
        let row = StoredMessage {
            round,
            message: vec![1; 100],
            coins: Some(secret(round)),
            model: [0; 32],
            accepted: None,
        };
        let expected = round.checked_sub(1).map(large);
        assert!(store.state(&hash).unwrap() == expected, "round {round}");
        store.pay(&hash, &row, None, Some(&large(round))).unwrap();
        drop(store);
        assert_eq!(states(directory.path()).len(), (round as usize + 1).min(2));
        assert!(
            directory
                .path()
                .join("client.sqlite")
                .metadata()
                .unwrap()
                .len()
                < 200_000
        );
        assert!(!on_disk(directory.path(), &secret(round.wrapping_sub(1))));
    }
    // A shorter one after a longer one, and one that is small enough for the database.
    let mut shorter = large(6);
    shorter.server.velocity.clear();
    for state in [shorter, large(7), checkpoint(8), large(9)] {
        let mut store = ClientSqlite::open(directory.path()).unwrap();
        store.checkpoint(&hash, &state, None).unwrap();
        drop(store);
        let mut store = ClientSqlite::open(directory.path()).unwrap();
        assert!(store.state(&hash).unwrap() == Some(state));
    }
    // What is the owner's own is nobody else's to remove, whatever it is called.
    let notes = directory.path().join("state-of-my-data.csv");
    std::fs::write(&notes, "mine").unwrap();
    let mut store = ClientSqlite::open(directory.path()).unwrap();
    store.finish(&hash, None).unwrap();
    assert!(store.state(&hash).unwrap().is_none());
    assert_eq!(std::fs::read(&notes).unwrap(), b"mine");
    std::fs::remove_file(&notes).unwrap();
    assert!(states(directory.path()).is_empty());
}

/// Killed between file and database, the state of before counts; a file of another time never does.
#[test]
fn a_database_and_a_state_of_different_times_are_told_apart() {
    let deployment = Deployment::new(&[]);
    let directory = tempfile::tempdir().unwrap();
    let hash = *deployment.description.hash();
    let database = directory.path().join("client.sqlite");
    let keep = |round| {
        let mut store = ClientSqlite::open_briefly(directory.path()).unwrap();
        store.checkpoint(&hash, &large(round), None).unwrap();
    };
    let read = || {
        let mut store = ClientSqlite::open_briefly(directory.path()).unwrap();
        store.state(&hash)
    };
    ClientSqlite::open(directory.path())
        .unwrap()
        .begin(&deployment.ledger_run(0))
        .unwrap();
    keep(1);
    let before = std::fs::read(&database).unwrap();
    keep(2);
    assert!(read().unwrap() == Some(large(2)));
    std::fs::write(&database, &before).unwrap();
    assert!(read().unwrap() == Some(large(1)));
    // From there it goes on.
    keep(3);
    assert!(read().unwrap() == Some(large(3)));
    keep(4);
    std::fs::write(&database, &before).unwrap();
    let error = read().err().unwrap();
    assert!(
        error.to_string().contains("restored whole or not at all"),
        "{error}"
    );
    // Cut off, or gone.
    let directory = tempfile::tempdir().unwrap();
    let mut store = ClientSqlite::open(directory.path()).unwrap();
    store.begin(&deployment.ledger_run(0)).unwrap();
    store.checkpoint(&hash, &large(1), None).unwrap();
    let file = directory.path().join(&states(directory.path())[0]);
    let whole = std::fs::read(&file).unwrap();
    for length in [0, 10, 100, whole.len() - 1] {
        std::fs::write(&file, &whole[..length]).unwrap();
        assert!(matches!(
            store.state(&hash),
            Err(StoreError::Corrupt { .. })
        ));
    }
    std::fs::write(&file, &whole).unwrap();
    assert!(store.state(&hash).unwrap() == Some(large(1)));
    std::fs::remove_file(&file).unwrap();
    assert!(matches!(
        store.state(&hash),
        Err(StoreError::Corrupt { .. })
    ));
}

/// What a process leaves that ends after a run is over and before its files are removed.
#[test]
fn files_of_runs_without_a_state_are_removed_when_a_state_is_opened() {
    let directory = tempfile::tempdir().unwrap();
    drop(ClientSqlite::open(directory.path()).unwrap());
    let left = directory.path().join("state-0011223344556677-1");
    for brief in [false, true] {
        std::fs::write(&left, [1; 1000]).unwrap();
        match brief {
            true => drop(ClientSqlite::open_briefly(directory.path()).unwrap()),
            false => drop(ClientSqlite::open(directory.path()).unwrap()),
        }
        assert!(!left.exists());
    }
}
