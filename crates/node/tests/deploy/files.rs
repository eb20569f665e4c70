//! What a client's state leaves on disk, and who can read it.

use std::path::Path;

use soteria_core::protocol::{ClientState, ServerState};
use soteria_node::deploy::sqlite::ClientSqlite;
use soteria_node::deploy::store::{Checkpoint, ClientStore, Row};

use crate::world::World;

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
        },
        client: ClientState::default(),
    }
}

fn fill(store: &mut ClientSqlite, world: &World, rounds: std::ops::Range<u32>) {
    for round in rounds {
        let row = Row {
            round,
            message: vec![1; 100],
            key: Some(secret(round)),
            model: [0; 32],
            accepted: None,
        };
        store.pay(world.description.hash(), &row, None).unwrap();
    }
}

/// A secret is gone from all files after the checkpoint that erases it, log included; and if the process died
/// before it could cut the log, once the state is opened again.
#[test]
fn checkpoints_remove_secrets_from_the_log() {
    let world = World::new(&[]);
    let directory = tempfile::tempdir().unwrap();
    let mut store = ClientSqlite::open(directory.path()).unwrap();
    store.begin(&world.ledger_run(0)).unwrap();
    fill(&mut store, &world, 0..6);
    assert!((0..6).all(|round| on_disk(directory.path(), &secret(round))));
    store
        .checkpoint(world.description.hash(), &checkpoint(4), None)
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
        .checkpoint(world.description.hash(), &checkpoint(5), None)
        .unwrap();
    assert!(on_disk(directory.path(), &secret(4)));
    drop(reader);
    fill(&mut store, &world, 6..7);
    assert!(!on_disk(directory.path(), &secret(4)));
}

/// Nobody else can read the files, in whatever directory they are.
#[cfg(unix)]
#[test]
fn files_are_private_in_an_open_directory() {
    use std::os::unix::fs::PermissionsExt;
    let world = World::new(&[]);
    let directory = tempfile::tempdir().unwrap();
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(directory.path(), open.clone()).unwrap();
    // One of the files is there already, and open.
    std::fs::write(directory.path().join("lock"), "").unwrap();
    std::fs::set_permissions(directory.path().join("lock"), open).unwrap();
    let mut store = ClientSqlite::open(directory.path()).unwrap();
    store.begin(&world.ledger_run(0)).unwrap();
    fill(&mut store, &world, 0..1);
    let mut names = Vec::new();
    for entry in std::fs::read_dir(directory.path()).unwrap() {
        let entry = entry.unwrap();
        let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{:?}", entry.file_name());
        names.push(entry.file_name());
    }
    assert_eq!(names.len(), 4, "{names:?}");
}
