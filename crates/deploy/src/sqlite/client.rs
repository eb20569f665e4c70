//! A client's store: the runs it joined, one row for every message it ever made, which is its
//! ledger, and its latest state.

use std::path::Path;
use std::time::Duration;

use rusqlite::{OptionalExtension, Transaction, params};
use soteriafl_core::protocol::{ClientState, Round, ServerState};

use super::super::budget::Priced;
use super::super::store::{Checkpoint, ClientStore, LedgerRun, StoreError, StoredMessage};
use super::super::{Hash, to_bytes};
use super::Database;

/// Version of a client's schema. The first named records and kept secrets in other ways: read as if
/// it were this one, its ledger would say that nothing was spent. The second did not say of which
/// rows SAGA's memory is. The third named models by another digest and did not know with which
/// shapes sources were tried.
const CLIENT_VERSION: i64 = 4;

const CLIENT_SCHEMA: &str = "
    CREATE TABLE runs (hash BLOB PRIMARY KEY, description TEXT NOT NULL, client INTEGER NOT NULL, data BLOB NOT NULL, part INTEGER, parts INTEGER, price TEXT NOT NULL, finished INTEGER NOT NULL);
    CREATE TABLE messages (run BLOB NOT NULL REFERENCES runs, round INTEGER NOT NULL, message BLOB NOT NULL, coins BLOB, model BLOB NOT NULL, accepted INTEGER, UNIQUE (run, round));
    CREATE TABLE states (run BLOB PRIMARY KEY REFERENCES runs, round INTEGER NOT NULL, model BLOB NOT NULL, shift BLOB NOT NULL, velocity BLOB NOT NULL, own_shift BLOB NOT NULL, memory BLOB NOT NULL);
    CREATE TABLE shapes (source TEXT PRIMARY KEY, shape TEXT NOT NULL);
";

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
        let database = Database::open(directory, "client.sqlite", CLIENT_SCHEMA, CLIENT_VERSION)?;
        let uncut = !database.cut_log()?;
        Ok(Self { database, uncut })
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

    /// Waits for no reader, for tests.
    #[doc(hidden)]
    pub fn impatient(&self) {
        let _ = self.database.connection.busy_timeout(Duration::ZERO);
    }

    /// After an erasure, or after one whose traces could not be removed at once.
    fn cut_log(&mut self) -> Result<(), StoreError> {
        self.uncut = !self.database.cut_log()?;
        Ok(())
    }

    fn change_run(
        &mut self,
        run: &Hash,
        before: Option<(Round, bool)>,
        change: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<()>,
    ) -> Result<(), StoreError> {
        if self.uncut {
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
        let found: Vec<(LedgerRun, String)> = self.database.query(|connection| {
            connection
                .prepare(
                    "SELECT hash, description, client, data, price, finished, part, parts,
                            (SELECT count(*) FROM messages WHERE run = hash)
                     FROM runs ORDER BY runs.rowid",
                )?
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
                    "DELETE FROM {table} = ?1 AND NOT EXISTS (SELECT 1 FROM messages WHERE run = ?1)"
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

    fn pay(
        &mut self,
        run: &Hash,
        row: &StoredMessage,
        before: Option<(Round, bool)>,
    ) -> Result<(), StoreError> {
        self.change_run(run, before, |transaction| {
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
        })
    }

    fn checkpoint(
        &mut self,
        run: &Hash,
        state: &Checkpoint,
        before: Option<(Round, bool)>,
    ) -> Result<(), StoreError> {
        let Checkpoint { server, client } = state;
        self.change_run(run, before, |transaction| {
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
        })?;
        self.cut_log()
    }

    fn finish(&mut self, run: &Hash, before: Option<(Round, bool)>) -> Result<(), StoreError> {
        self.change_run(run, before, |transaction| {
            transaction.execute("UPDATE runs SET finished = 1 WHERE hash = ?1", [run])?;
            transaction.execute("DELETE FROM states WHERE run = ?1", [run])?;
            erase(transaction, run, Round::MAX)
        })?;
        self.cut_log()
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
        Ok(Some(Checkpoint {
            server: ServerState {
                round,
                model: self.database.floats(&model)?,
                shift: self.database.floats(&shift)?,
                velocity: self.database.floats(&velocity)?,
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
