//! A client's own books: those of a run agree, and every way in which they may stop doing so is
//! told.

use std::path::Path;

use rusqlite::Connection;
use soteriafl_deploy::books::{Books, Disagreement, Kind};
use soteriafl_deploy::exchange::Questions;
use soteriafl_deploy::memory::ServerMemory;
use soteriafl_deploy::sqlite::ClientSqlite;

use super::exchange::{NOW, Silent, node, questions};
use super::harness::{Deployment, TARGETED, WHITENED};

/// The state of three clients of a run with secret seeds, after so many of its seven rounds.
fn play(folder: &Path, overrides: &[&str], rounds: u32) {
    let mut settings = vec!["privacy.noise=secure"];
    settings.extend(overrides);
    let done = |server: &mut Questions<ServerMemory>| match rounds {
        7 => server.coordinator().acknowledged(),
        _ => server.coordinator().round() >= rounds,
    };
    play_until(folder, &Deployment::with_secrets(&settings, true), done);
}

/// The same of a run of four rounds whose records are whitened by a release before the first.
fn play_whitened(folder: &Path, rounds: u32) {
    let done = |server: &mut Questions<ServerMemory>| match rounds {
        4 => server.coordinator().acknowledged(),
        _ => server.coordinator().begun() && server.coordinator().round() >= rounds,
    };
    play_until(folder, &whitened(), done);
}

fn whitened() -> Deployment {
    let mut settings = vec!["privacy.noise=secure"];
    settings.extend(WHITENED);
    Deployment::of_secrets(TARGETED, &settings, true)
}

fn play_until(
    folder: &Path,
    deployment: &Deployment,
    done: impl Fn(&mut Questions<ServerMemory>) -> bool,
) {
    let mut server = questions(deployment);
    let mut nodes: Vec<_> = (0..3)
        .map(|client| node(deployment, client, folder, None).kept_open())
        .collect();
    while !done(&mut server) {
        for client in server.missing() {
            if done(&mut server) {
                return;
            }
            let Some(question) = server.ask(client).unwrap() else {
                continue;
            };
            let answer = nodes[client as usize].answer(&question, &mut Silent::default());
            let answer = answer.unwrap().encode();
            server.hear(u64::from(client), answer.into(), NOW).unwrap();
        }
    }
}

fn books(state: &Path) -> Books {
    Books::of(&mut ClientSqlite::open_to_read(state).unwrap()).unwrap()
}

/// All disagreements of a copy of the state that was changed so.
fn after(state: &Path, change: impl FnOnce(&Connection)) -> Vec<Disagreement> {
    let copy = tempfile::tempdir().unwrap();
    for file in std::fs::read_dir(state).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), copy.path().join(file.file_name())).unwrap();
    }
    let connection = Connection::open(copy.path().join("client.sqlite")).unwrap();
    connection
        .pragma_update(None, "foreign_keys", false)
        .unwrap();
    change(&connection);
    drop(connection);
    let books = books(copy.path());
    assert_eq!(
        books.agree(),
        books.disagreements.is_empty() && books.runs.iter().all(|run| run.disagreements.is_empty())
    );
    let of_runs = books.runs.into_iter().flat_map(|run| run.disagreements);
    books.disagreements.into_iter().chain(of_runs).collect()
}

/// The price of the only run, changed.
fn price(connection: &Connection, change: impl FnOnce(&mut serde_json::Value)) {
    let text: String = connection
        .query_row("SELECT price FROM runs", [], |row| row.get(0))
        .unwrap();
    let mut price = serde_json::from_str(&text).unwrap();
    change(&mut price);
    connection
        .execute("UPDATE runs SET price = ?1", [price.to_string()])
        .unwrap();
}

fn times(value: &mut serde_json::Value, factor: f64) {
    *value = (value.as_f64().unwrap() * factor).into();
}

#[test]
fn books_of_sound_runs_agree() {
    for (overrides, rounds) in [
        (&[][..], 4),
        (&[], 7),
        (&["algorithm.preset=soteriafl-saga"], 3),
        (&["algorithm.preset=soteriafl-svrg"], 5),
        (
            &[
                "privacy.records_per_person=3",
                "algorithm.participation=0.7",
            ],
            5,
        ),
    ] {
        let folder = tempfile::tempdir().unwrap();
        play(folder.path(), overrides, rounds);
        for client in 0..3 {
            let books = books(&folder.path().join(client.to_string()));
            assert!(books.agree(), "{overrides:?}: {books:?}");
            let run = &books.runs[0];
            assert_eq!((run.paid, run.client), (7, client));
            assert_eq!(run.charged_epsilon, run.computed_epsilon);
            assert!(run.charged_epsilon.is_some());
            assert!(run.messages >= u64::from(rounds) - 1, "{run:?}");
            // Of a run that is over nothing is kept; of an open one everything, and it is read.
            assert_eq!(run.kept, if rounds == 7 { 0 } else { run.messages });
            assert_eq!(run.decoded, run.kept);
        }
    }
}

#[test]
fn books_that_were_changed_do_not_agree() {
    let folder = tempfile::tempdir().unwrap();
    play(folder.path(), &[], 4);
    let state = folder.path().join("0");
    type Change = fn(&Connection);
    let changes: [(&str, Kind, Change); 15] = [
        ("more noise than there was", Kind::Undercharged, |db| {
            price(db, |price| times(&mut price["sigma"], 2.0));
        }),
        ("less noise than there was", Kind::Overcharged, |db| {
            price(db, |price| times(&mut price["sigma"], 0.5));
        }),
        ("shorter shifts", Kind::Undercharged, |db| {
            price(db, |price| times(&mut price["shifts"][1], 0.5));
        }),
        ("fewer rounds", Kind::Undercharged, |db| {
            price(db, |price| price["rounds"] = 2.into());
        }),
        ("persons that were not paid for", Kind::Undercharged, |db| {
            price(db, |price| price["records_per_person"] = 3.into());
        }),
        (
            "zeroed records for replaced ones",
            Kind::Undercharged,
            |db| {
                price(db, |price| {
                    assert_eq!(price["zero_out"], false);
                    price["zero_out"] = true.into();
                });
            },
        ),
        ("a larger delta", Kind::Undercharged, |db| {
            price(db, |price| times(&mut price["delta"], 10.0));
        }),
        (
            "a number of records that the shifts do not go with",
            Kind::Undercharged,
            |db| {
                price(db, |price| {
                    let records = price["records"].as_u64().unwrap();
                    price["records"] = (records / 2).into();
                });
            },
        ),
        ("a message is gone", Kind::Missing, |db| {
            db.execute("DELETE FROM messages WHERE round = 1", [])
                .unwrap();
        }),
        ("the first messages are gone", Kind::Missing, |db| {
            db.execute("DELETE FROM messages WHERE round < 2", [])
                .unwrap();
        }),
        ("a message is cut", Kind::Message, |db| {
            let cut = "UPDATE messages SET message = substr(message, 1, 12) WHERE round = 2";
            db.execute(cut, []).unwrap();
        }),
        ("a message of another round", Kind::Message, |db| {
            let moved = "UPDATE messages SET round = 6 WHERE round = 2";
            db.execute(moved, []).unwrap();
        }),
        ("a round beyond the end", Kind::Undercharged, |db| {
            let moved = "UPDATE messages SET round = 9 WHERE round = 3";
            db.execute(moved, []).unwrap();
        }),
        ("another description", Kind::Run, |db| {
            let other = "UPDATE runs SET description = replace(description, '0.05', '0.06')";
            db.execute(other, []).unwrap();
        }),
        ("a run that is not there", Kind::Message, |db| {
            db.execute("DELETE FROM runs", []).unwrap();
        }),
    ];
    assert!(after(&state, |_| {}).is_empty());
    for (what, kind, change) in changes {
        let found = after(&state, change);
        assert!(
            found.iter().any(|one| one.kind == kind),
            "{what}: {found:?}"
        );
    }
}

#[test]
fn what_should_be_erased_is_told() {
    let folder = tempfile::tempdir().unwrap();
    play(folder.path(), &[], 7);
    let state = folder.path().join("1");
    let found = after(&state, |db| {
        let coins = "UPDATE messages SET coins = zeroblob(32) WHERE round = 4";
        db.execute(coins, []).unwrap();
    });
    assert!(
        found.iter().any(|one| one.kind == Kind::NotErased),
        "{found:?}"
    );
}

/// Two runs, the second of which has released and has no round: what was released is part of the
/// books, and none of it can go unseen.
#[test]
fn releases_before_the_first_round_are_looked_at() {
    let folder = tempfile::tempdir().unwrap();
    play_whitened(folder.path(), 2);
    let state = folder.path().join("0");
    let sound = books(&state);
    assert!(sound.agree(), "{sound:?}");
    let run = &sound.runs[0];
    assert_eq!(run.paid, 5, "four rounds and a release: {run:?}");
    // The release's average has come, and its bytes are gone.
    assert_eq!((run.messages, run.decoded), (run.kept + 1, run.kept));
    type Change = fn(&Connection);
    let changes: [(&str, Kind, Change); 7] = [
        ("the release is gone", Kind::Missing, |db| {
            db.execute("DELETE FROM releases", []).unwrap();
        }),
        ("it has another place", Kind::Undercharged, |db| {
            db.execute("UPDATE releases SET number = 1", []).unwrap();
        }),
        ("one before it is gone", Kind::Missing, |db| {
            db.execute("UPDATE releases SET rowid = 2", []).unwrap();
        }),
        ("nobody heard its average", Kind::Message, |db| {
            let unheard = "UPDATE releases SET noise = NULL, average = NULL";
            db.execute(unheard, []).unwrap();
        }),
        ("its bytes are there", Kind::NotErased, |db| {
            db.execute("UPDATE releases SET message = x'01'", [])
                .unwrap();
        }),
        ("it cost less than it did", Kind::Undercharged, |db| {
            price(db, |price| times(&mut price["before"][0][1], 2.0));
        }),
        ("of a run that is not there", Kind::Message, |db| {
            db.execute_batch("DELETE FROM runs; DELETE FROM messages")
                .unwrap();
        }),
    ];
    for (what, kind, change) in changes {
        let found = after(&state, change);
        assert!(
            found.iter().any(|one| one.kind == kind),
            "{what}: {found:?}"
        );
    }
    // A run without messages of rounds, whose state says that rounds came.
    let found = after(&state, |db| {
        let state = "INSERT INTO states SELECT hash, 1, x'', x'', x'', x'', x'' FROM runs";
        db.execute_batch("DELETE FROM states; DELETE FROM messages; DELETE FROM releases")
            .unwrap();
        db.execute(state, []).unwrap();
    });
    assert!(
        found.iter().any(|one| one.kind == Kind::Missing),
        "{found:?}"
    );
}

/// Until the average comes the bytes are kept, and read as the server reads them.
#[test]
fn a_release_whose_average_has_not_come_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("0");
    let released = |_: &mut Questions<ServerMemory>| {
        ClientSqlite::open_to_read(&state)
            .is_ok_and(|mut store| !store.release_entries().unwrap().is_empty())
    };
    play_until(folder.path(), &whitened(), released);
    let sound = books(&state);
    assert!(sound.agree(), "{sound:?}");
    let run = &sound.runs[0];
    assert_eq!((run.messages, run.kept, run.decoded), (1, 1, 1));
    let cut = after(&state, |db| {
        let cut = "UPDATE releases SET message = substr(message, 1, 12)";
        db.execute(cut, []).unwrap();
    });
    assert!(cut.iter().any(|one| one.kind == Kind::Message), "{cut:?}");
    // It is deleted, and a later run released: numbers have a gap.
    let gone = after(&state, |db| {
        db.execute_batch(
            "INSERT INTO runs SELECT zeroblob(32), description, client, data, part, parts, price, 0 FROM runs;
             INSERT INTO releases SELECT zeroblob(32), 0, message, NULL, NULL FROM releases;
             DELETE FROM releases WHERE rowid = 1",
        )
        .unwrap();
    });
    assert!(gone.iter().any(|one| one.kind == Kind::Missing), "{gone:?}");
}

#[test]
fn erased_releases_of_a_run_that_is_over_agree() {
    let folder = tempfile::tempdir().unwrap();
    play_whitened(folder.path(), 4);
    let state = folder.path().join("2");
    let sound = books(&state);
    assert!(sound.agree(), "{sound:?}");
    assert_eq!((sound.runs[0].kept, sound.runs[0].messages), (0, 5));
    let kept = after(&state, |db| {
        db.execute("UPDATE releases SET message = x'01'", [])
            .unwrap();
    });
    assert!(
        kept.iter().any(|one| one.kind == Kind::NotErased),
        "{kept:?}"
    );
    // That it is over says that it has released, even if nothing else is left of it.
    let gone = after(&state, |db| {
        db.execute_batch("DELETE FROM releases; DELETE FROM messages")
            .unwrap();
    });
    assert!(gone.iter().any(|one| one.kind == Kind::Missing), "{gone:?}");
}
