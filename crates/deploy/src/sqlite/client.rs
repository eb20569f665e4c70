//! A client's store: the runs it joined, one row for every message it ever made, which is its
//! ledger, and its latest state.

use std::path::Path;
use std::time::Duration;

use rusqlite::{OptionalExtension, Transaction, params};
use soteriafl_core::preliminary::Average;
use soteriafl_core::protocol::{ClientState, Round, ServerState};

use super::super::budget::Priced;
use super::super::store::{
    Checkpoint, ClientStore, LedgerRun, StoreError, StoredMessage, StoredRelease,
};
use super::super::{Hash, to_bytes};
use super::{Database, Schema, state_file};

/// A stored release: its message, and noise and numbers of the average.
type Released = (Vec<u8>, Option<f64>, Option<Vec<u8>>);

/// Version of a client's schema. The first named records and kept secrets in other ways: read as if
/// it were this one, its ledger would say that nothing was spent. The second did not say of which
/// rows SAGA's memory is. The third named models by another digest and did not know with which
/// shapes sources were tried. The fourth knew no releases before the first round: reading a ledger
/// with such, it would count too little, so it must not; its own ledgers are read, and brought
/// here.
const CLIENT_VERSION: i64 = 5;

/// Since version 5.
const RELEASES: &str = "
    CREATE TABLE releases (run BLOB NOT NULL REFERENCES runs, number INTEGER NOT NULL, message BLOB NOT NULL, noise REAL, average BLOB, UNIQUE (run, number));
";

const CLIENT_TABLES: &str = "
    CREATE TABLE runs (hash BLOB PRIMARY KEY, description TEXT NOT NULL, client INTEGER NOT NULL, data BLOB NOT NULL, part INTEGER, parts INTEGER, price TEXT NOT NULL, finished INTEGER NOT NULL);
    CREATE TABLE messages (run BLOB NOT NULL REFERENCES runs, round INTEGER NOT NULL, message BLOB NOT NULL, coins BLOB, model BLOB NOT NULL, accepted INTEGER, UNIQUE (run, round));
    CREATE TABLE states (run BLOB PRIMARY KEY REFERENCES runs, round INTEGER NOT NULL, model BLOB NOT NULL, shift BLOB NOT NULL, velocity BLOB NOT NULL, own_shift BLOB NOT NULL, memory BLOB NOT NULL);
    CREATE TABLE shapes (source TEXT PRIMARY KEY, shape TEXT NOT NULL);
    CREATE TABLE releases (run BLOB NOT NULL REFERENCES runs, number INTEGER NOT NULL, message BLOB NOT NULL, noise REAL, average BLOB, UNIQUE (run, number));
";

/// A message as it stands in the ledger.
pub struct Entry {
    /// Its number, counted from 1 over all runs.
    pub number: i64,
    /// The run it was made for.
    pub run: Hash,
    /// The message.
    pub row: StoredMessage,
}

/// What was released before a first round, as it stands in the ledger.
pub struct ReleaseEntry {
    /// Its number, counted from 1 over all runs.
    pub number: i64,
    /// The run it was made for.
    pub run: Hash,
    /// Which release of the run it is, counted from 0.
    pub place: u32,
    /// The release.
    pub row: StoredRelease,
}

const CLIENT_SCHEMA: Schema = Schema {
    version: CLIENT_VERSION,
    tables: CLIENT_TABLES,
    upgrade: RELEASES,
};

/// A client's journal and ledger on disk.
pub struct ClientSqlite {
    database: Database,
    /// Whether the log may hold what has been erased.
    uncut: bool,
}

impl ClientSqlite {
    /// Opens or makes it.
    ///
    /// # Errors
    /// When another process has it, or it is no such state.
    pub fn open(directory: &Path) -> Result<Self, StoreError> {
        let database = Database::open(directory, "client.sqlite", &CLIENT_SCHEMA)?;
        let uncut = !database.cut_log()?;
        let store = Self { database, uncut };
        store.sweep()?;
        Ok(store)
    }

    /// The same for a process of one message: nothing is done that pays off in later ones. What the
    /// log holds is moved into the file when this is dropped, which removes the log.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_briefly(directory: &Path) -> Result<Self, StoreError> {
        let mut database = Database::open(directory, "client.sqlite", &CLIENT_SCHEMA)?;
        database.brief = true;
        let uncut = database.has_log() && !database.cut_log()?;
        let store = Self { database, uncut };
        store.sweep()?;
        Ok(store)
    }

    /// Opens one that exists, to read its ledger, whoever works with it.
    ///
    /// # Errors
    /// When there is none.
    pub fn open_to_read(directory: &Path) -> Result<Self, StoreError> {
        let database = Database::open_to_read(directory, "client.sqlite", CLIENT_VERSION)?;
        Ok(Self {
            database,
            uncut: false,
        })
    }

    /// Every message of every run with its number, in the order in which they were made. Numbers
    /// follow each other, so that one that is gone leaves a gap.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn entries(&mut self) -> Result<Vec<Entry>, StoreError> {
        self.database.query(|connection| {
            connection
                .prepare(
                    "SELECT rowid, run, round, message, coins, model, accepted FROM messages
                     ORDER BY rowid",
                )?
                .query_map([], |row| {
                    Ok(Entry {
                        number: row.get(0)?,
                        run: row.get(1)?,
                        row: StoredMessage {
                            round: row.get(2)?,
                            message: row.get(3)?,
                            coins: row.get(4)?,
                            model: row.get(5)?,
                            accepted: row.get(6)?,
                        },
                    })
                })?
                .collect()
        })
    }

    /// The same of everything that was released before a first round.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn release_entries(&mut self) -> Result<Vec<ReleaseEntry>, StoreError> {
        if self.database.version < CLIENT_VERSION {
            return Ok(Vec::new());
        }
        type Row = (i64, Hash, u32, Released);
        let found: Vec<Row> = self.database.query(|connection| {
            connection
                .prepare(
                    "SELECT rowid, run, number, message, noise, average FROM releases
                     ORDER BY rowid",
                )?
                .query_map([], |row| {
                    let released = (row.get(3)?, row.get(4)?, row.get(5)?);
                    Ok((row.get(0)?, row.get(1)?, row.get(2)?, released))
                })?
                .collect()
        })?;
        let entry = |(number, run, place, released)| {
            Ok(ReleaseEntry {
                number,
                run,
                place,
                row: self.released(released)?,
            })
        };
        found.into_iter().map(entry).collect()
    }

    /// A release as it was stored.
    fn released(&self, (message, noise, average): Released) -> Result<StoredRelease, StoreError> {
        let average = match Option::zip(noise, average) {
            Some((noise, values)) => Some(Average {
                values: self.database.floats(&values)?,
                noise,
            }),
            None => None,
        };
        Ok(StoredRelease { message, average })
    }

    /// The directory that it is in.
    pub fn directory(&self) -> &Path {
        let parent = self.database.path.parent();
        parent.expect("a database is in a directory")
    }

    /// Waits for no reader, for tests.
    #[doc(hidden)]
    pub fn impatient(&self) {
        let _ = self.database.connection.busy_timeout(Duration::ZERO);
    }

    /// After an erasure, or after one whose traces could not be removed at once.
    fn cut_log(&mut self) -> Result<(), StoreError> {
        self.uncut = self.database.brief || !self.database.cut_log()?;
        Ok(())
    }

    /// Removes what large states have left of runs that are over.
    fn sweep(&self) -> Result<(), StoreError> {
        let kept: Vec<Hash> = self.database.query(|connection| {
            connection
                .prepare("SELECT run FROM states")?
                .query_map([], |row| row.get(0))?
                .collect()
        })?;
        let swept = state_file::sweep(self.directory(), &kept);
        swept.map_err(|error| self.beside(&error))
    }

    /// What is wrong with files beside the database.
    fn beside(&self, error: &std::io::Error) -> StoreError {
        StoreError::Failed {
            path: self.directory().display().to_string(),
            reason: error.to_string(),
        }
    }

    /// A state as it goes into the database. A large one is durable in a file then.
    fn placed<'a>(&self, run: &Hash, state: &'a Checkpoint) -> Result<Placed<'a>, StoreError> {
        if !state_file::is_large(state) {
            return Ok(Placed::Here(state));
        }
        let select = "SELECT model FROM states WHERE run = ?1 AND length(model) < 100";
        let model: Option<Vec<u8>> = self.database.query(|connection| {
            let found = connection.query_row(select, [run], |row| row.get(0));
            found.optional()
        })?;
        let current = model.and_then(|model| state_file::place(&model));
        let written = state_file::write(self.directory(), run, current, state);
        let reference = written.map_err(|error| self.beside(&error))?;
        Ok(Placed::File(state.server.round, reference))
    }

    fn change_run(
        &mut self,
        run: &Hash,
        before: Option<(Round, bool)>,
        change: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<()>,
    ) -> Result<(), StoreError> {
        if self.uncut && !self.database.brief {
            self.cut_log()?;
        }
        self.database.change(|transaction| {
            if let Some((round, accepted)) = before {
                transaction
                    .prepare_cached(
                        "UPDATE messages SET accepted = ?3 WHERE run = ?1 AND round = ?2",
                    )?
                    .execute(params![run, round, accepted])?;
            }
            change(transaction)
        })
    }
}

impl ClientStore for ClientSqlite {
    fn runs(&mut self) -> Result<Vec<LedgerRun>, StoreError> {
        let releases = match self.database.version < CLIENT_VERSION {
            true => "0",
            false => "(SELECT count(*) FROM releases WHERE run = hash)",
        };
        let select = format!(
            "SELECT hash, description, client, data, price, finished, part, parts,
                    (SELECT count(*) FROM messages WHERE run = hash) + {releases}
             FROM runs ORDER BY runs.rowid"
        );
        let found: Vec<(LedgerRun, String)> = self.database.query(|connection| {
            connection
                .prepare(&select)?
                .query_map([], |row| {
                    let run = LedgerRun {
                        hash: row.get(0)?,
                        description: row.get(1)?,
                        client: row.get(2)?,
                        data: row.get(3)?,
                        part: Option::zip(row.get(6)?, row.get(7)?)
                            .map(|(part, parts): (isize, isize)| (part as usize, parts as usize)),
                        price: Priced::default(),
                        finished: row.get(5)?,
                        messages: row.get::<_, i64>(8)? as u64,
                    };
                    Ok((run, row.get(4)?))
                })?
                .collect()
        })?;
        found
            .into_iter()
            .map(|(run, price)| {
                let price = serde_json::from_str(&price)
                    .map_err(|error| self.database.corrupt(error.to_string()))?;
                Ok(LedgerRun { price, ..run })
            })
            .collect()
    }

    fn shape(&mut self, source: &str) -> Result<Option<String>, StoreError> {
        self.database.query(|connection| {
            connection
                .query_row(
                    "SELECT shape FROM shapes WHERE source = ?1",
                    [source],
                    |row| row.get(0),
                )
                .optional()
        })
    }

    fn keep_shape(&mut self, source: &str, shape: &str) -> Result<(), StoreError> {
        self.database.change(|transaction| {
            let insert = "INSERT OR REPLACE INTO shapes VALUES (?1, ?2)";
            transaction.execute(insert, [source, shape]).map(drop)
        })
    }

    fn begin(&mut self, run: &LedgerRun) -> Result<(), StoreError> {
        let price = serde_json::to_string(&run.price)
            .map_err(|error| self.database.corrupt(error.to_string()))?;
        let part = run
            .part
            .map(|(part, parts)| (part as isize, parts as isize));
        let (part, parts) = part.unzip();
        self.database.change(|transaction| {
            for table in ["states WHERE run", "runs WHERE finished = 0 AND hash"] {
                let delete = format!(
                    "DELETE FROM {table} = ?1 AND NOT EXISTS (SELECT 1 FROM messages WHERE run = ?1)
                     AND NOT EXISTS (SELECT 1 FROM releases WHERE run = ?1)"
                );
                transaction.execute(&delete, [run.hash])?;
            }
            transaction
                .execute(
                    "INSERT INTO runs VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, 0)",
                    params![
                        run.hash,
                        run.description,
                        run.client,
                        run.data,
                        part,
                        parts,
                        price
                    ],
                )
                .map(drop)
        })
    }

    fn pay_release(&mut self, run: &Hash, number: u32, message: &[u8]) -> Result<(), StoreError> {
        self.change_run(run, None, |transaction| {
            let insert = "INSERT INTO releases VALUES (?1, ?2, ?3, NULL, NULL)";
            transaction
                .execute(insert, params![run, number, message])
                .map(drop)
        })
    }

    fn hear_release(
        &mut self,
        run: &Hash,
        number: u32,
        average: &Average,
    ) -> Result<(), StoreError> {
        self.change_run(run, None, |transaction| {
            let update = "UPDATE releases SET message = x'', noise = ?3, average = ?4
                          WHERE run = ?1 AND number = ?2";
            let values = to_bytes(&average.values);
            transaction
                .execute(update, params![run, number, average.noise, values])
                .map(drop)
        })?;
        self.cut_log()
    }

    fn releases(&mut self, run: &Hash) -> Result<Vec<StoredRelease>, StoreError> {
        let found: Vec<Released> = self.database.query(|connection| {
            connection
                .prepare_cached(
                    "SELECT message, noise, average FROM releases WHERE run = ?1 ORDER BY number",
                )?
                .query_map([run], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?
                .collect()
        })?;
        found.into_iter().map(|row| self.released(row)).collect()
    }

    fn pay(
        &mut self,
        run: &Hash,
        row: &StoredMessage,
        before: Option<(Round, bool)>,
        state: Option<&Checkpoint>,
    ) -> Result<(), StoreError> {
        let placed = state.map(|state| self.placed(run, state)).transpose()?;
        self.change_run(run, before, |transaction| {
            if let Some(state) = &placed {
                keep(transaction, run, state)?;
            }
            transaction
                .prepare_cached("INSERT INTO messages VALUES (?1, ?2, ?3, ?4, ?5, ?6)")?
                .execute(params![
                    run,
                    row.round,
                    row.message,
                    row.coins,
                    row.model,
                    row.accepted
                ])
                .map(drop)
        })?;
        match state {
            Some(_) => self.cut_log(),
            None => Ok(()),
        }
    }

    fn checkpoint(
        &mut self,
        run: &Hash,
        state: &Checkpoint,
        before: Option<(Round, bool)>,
    ) -> Result<(), StoreError> {
        let placed = self.placed(run, state)?;
        self.change_run(run, before, |transaction| keep(transaction, run, &placed))?;
        self.cut_log()
    }

    fn finish(&mut self, run: &Hash, before: Option<(Round, bool)>) -> Result<(), StoreError> {
        self.change_run(run, before, |transaction| {
            transaction.execute("UPDATE runs SET finished = 1 WHERE hash = ?1", [run])?;
            transaction.execute("DELETE FROM states WHERE run = ?1", [run])?;
            let erased = "UPDATE releases SET message = x'', noise = NULL, average = NULL";
            transaction.execute(&format!("{erased} WHERE run = ?1"), [run])?;
            erase(transaction, run, Round::MAX)
        })?;
        self.cut_log()?;
        self.sweep()
    }

    fn state(&mut self, run: &Hash) -> Result<Option<Checkpoint>, StoreError> {
        type Blobs = (Round, [Vec<u8>; 5]);
        let found: Option<Blobs> = self.database.query(|connection| {
            connection
                .prepare_cached(
                    "SELECT round, model, shift, velocity, own_shift, memory FROM states WHERE run = ?1",
                )?
                .query_row([run], |row| {
                    let blobs = [row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?, row.get(5)?];
                    Ok((row.get(0)?, blobs))
                })
                .optional()
        })?;
        let Some((round, [model, shift, velocity, own_shift, memory])) = found else {
            return Ok(None);
        };
        if state_file::place(&model).is_some() {
            let read = state_file::read(self.directory(), run, round, &model);
            let state = read.map_err(|error| self.beside(&error))?;
            return match state {
                Some(state) => Ok(Some(state)),
                None => Err(self.database.corrupt(
                    "the file beside it that holds the latest state is gone or of another time: a \
                     state directory is one, and is restored whole or not at all",
                )),
            };
        }
        Ok(Some(Checkpoint {
            server: ServerState {
                round,
                model: self.database.floats(&model)?,
                shift: self.database.floats(&shift)?,
                velocity: self.database.floats(&velocity)?,
                target: Vec::new(),
            },
            client: ClientState {
                shift: self.database.floats(&own_shift)?,
                memory,
            },
        }))
    }

    fn taken(&mut self, run: &Hash) -> Result<u32, StoreError> {
        self.database.query(|connection| {
            connection
                .prepare_cached("SELECT count(*) FROM messages WHERE run = ?1 AND accepted = 1")?
                .query_row([run], |row| row.get(0))
        })
    }

    fn rows(&mut self, run: &Hash) -> Result<Vec<StoredMessage>, StoreError> {
        self.database.query(|connection| {
            connection
                .prepare_cached(
                    "SELECT round, message, coins, model, accepted FROM messages
                     WHERE run = ?1 AND round >= coalesce((SELECT round FROM states WHERE run = ?1), 0)
                     ORDER BY round",
                )?
                .query_map([run], |row| {
                    Ok(StoredMessage {
                        round: row.get(0)?,
                        message: row.get(1)?,
                        coins: row.get(2)?,
                        model: row.get(3)?,
                        accepted: row.get(4)?,
                    })
                })?
                .collect()
        })
    }
}

/// A state on its way into the database.
enum Placed<'a> {
    /// All of it.
    Here(&'a Checkpoint),
    /// Of a round: what names the file that holds it.
    File(Round, Vec<u8>),
}

/// Puts a state in the place of the one before.
fn keep(transaction: &Transaction<'_>, run: &Hash, state: &Placed<'_>) -> rusqlite::Result<()> {
    let Checkpoint { server, client } = match state {
        Placed::Here(state) => state,
        Placed::File(round, reference) => {
            let empty: &[u8] = &[];
            transaction.execute(
                "INSERT OR REPLACE INTO states VALUES (?1, ?2, ?3, ?4, ?4, ?4, ?4)",
                params![run, round, reference, empty],
            )?;
            return erase(transaction, run, *round);
        }
    };
    transaction.execute(
        "INSERT OR REPLACE INTO states VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        params![
            run,
            server.round,
            to_bytes(&server.model),
            to_bytes(&server.shift),
            to_bytes(&server.velocity),
            to_bytes(&client.shift),
            client.memory
        ],
    )?;
    erase(transaction, run, server.round)
}

/// Overwrites coins and bytes of the rounds before `round`; the rows stay, for they are the ledger.
fn erase(transaction: &Transaction<'_>, run: &Hash, round: Round) -> rusqlite::Result<()> {
    transaction
        .execute(
            "UPDATE messages SET message = x'', coins = NULL
             WHERE run = ?1 AND round < ?2 AND (length(message) > 0 OR coins IS NOT NULL)",
            params![run, round],
        )
        .map(drop)
}
