//! Stores in SQLite: `server.sqlite` or `client.sqlite` in the state directory, readable by any tool.
//!
//! Write-ahead log, `synchronous = FULL`: a committed transaction survives the process and the power.
//! Deleted bytes are overwritten (`secure_delete`), and a client's log, which still holds them, is moved
//! into the file and cut after every erasure and when the state is opened. Files are readable by their
//! owner alone, also in a directory that was there before. A file `lock` keeps a second process away; readers
//! such as `soteria ledger` need no lock.

use std::fs::{self, File, TryLockError};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Transaction, params};
use soteria_core::protocol::{ClientId, ClientState, Round, ServerState};

use super::budget::Priced;
use super::store::{
    Checkpoint, ClientStore, ClosedRound, Evaluation, LedgerRun, Member, Row, ServerRecord,
    ServerStore, StoreError, Sums, count_taken,
};
use super::{Hash, from_bytes, to_bytes};

/// Version of a server's schema.
const SERVER_VERSION: i64 = 1;

/// Version of a client's. The first named records and kept secrets in other ways: read as if it were this one, its
/// ledger would say that nothing was spent.
const CLIENT_VERSION: i64 = 2;

const SERVER_SCHEMA: &str = "
    CREATE TABLE run (one INTEGER PRIMARY KEY CHECK (one = 1), description TEXT NOT NULL);
    CREATE TABLE clients (client INTEGER PRIMARY KEY, records INTEGER NOT NULL, done INTEGER NOT NULL, radius REAL NOT NULL);
    CREATE TABLE rounds (round INTEGER PRIMARY KEY, accepted BLOB NOT NULL, average BLOB NOT NULL, sent_values INTEGER NOT NULL, uplink INTEGER NOT NULL);
    CREATE TABLE states (round INTEGER PRIMARY KEY, model BLOB NOT NULL, shift BLOB NOT NULL, velocity BLOB NOT NULL);
    CREATE TABLE evaluations (round INTEGER PRIMARY KEY, sent_values INTEGER NOT NULL, uplink INTEGER NOT NULL, downlink INTEGER NOT NULL, taken INTEGER NOT NULL, seconds REAL NOT NULL, accuracy REAL, loss REAL);
";

const CLIENT_SCHEMA: &str = "
    CREATE TABLE runs (hash BLOB PRIMARY KEY, description TEXT NOT NULL, client INTEGER NOT NULL, data BLOB NOT NULL, part INTEGER, parts INTEGER, price TEXT NOT NULL, finished INTEGER NOT NULL);
    CREATE TABLE messages (run BLOB NOT NULL REFERENCES runs, round INTEGER NOT NULL, message BLOB NOT NULL, coins BLOB, model BLOB NOT NULL, accepted INTEGER, UNIQUE (run, round));
    CREATE TABLE states (run BLOB PRIMARY KEY REFERENCES runs, round INTEGER NOT NULL, model BLOB NOT NULL, shift BLOB NOT NULL, velocity BLOB NOT NULL, own_shift BLOB NOT NULL, memory BLOB NOT NULL);
";

/// The least and the most bytes that are reserved for a log.
const LOG_RESERVE: std::ops::Range<u64> = 1 << 19..1 << 23;

/// One database with its lock.
struct Database {
    path: PathBuf,
    connection: Connection,
    version: i64,
    /// Held for as long as the database is open; `None` for readers.
    _lock: Option<File>,
}

impl Database {
    fn open(directory: &Path, name: &str, schema: &str, version: i64) -> Result<Self, StoreError> {
        let failed = |path: &Path, reason: String| StoreError::Failed {
            path: path.display().to_string(),
            reason,
        };
        create_private(directory).map_err(|error| failed(directory, error.to_string()))?;
        let lock_path = directory.join("lock");
        let lock =
            open_private(&lock_path).map_err(|error| failed(&lock_path, error.to_string()))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(StoreError::Locked(directory.display().to_string()));
            }
            Err(TryLockError::Error(error)) => return Err(failed(&lock_path, error.to_string())),
        }
        let path = directory.join(name);
        // SQLite gives the log and its index the rights of the file; those of an older process are seen to.
        for beside in ["", "-wal", "-shm"] {
            let file = directory.join(format!("{name}{beside}"));
            if beside.is_empty() || file.exists() {
                open_private(&file).map_err(|error| failed(&file, error.to_string()))?;
            }
        }
        // Files are entries in the directory, which must outlive a loss of power as well as they do.
        #[cfg(unix)]
        sync_directory(directory).map_err(|error| failed(directory, error.to_string()))?;
        let connection = Connection::open(&path).map_err(|error| wrap(&path, &error))?;
        let database = Self {
            path,
            connection,
            version,
            _lock: Some(lock),
        };
        // The lock remembers that there was a database: an empty one in its place would be a ledger that says nothing.
        let marked = |lock: &File| Ok(lock.metadata()?.len() > 0);
        let lock = database._lock.as_ref().expect("it was put there");
        if marked(lock).map_err(|error: std::io::Error| failed(&lock_path, error.to_string()))?
            && database.found_version()? == 0
        {
            return Err(database.corrupt("it is empty, but this state has been used"));
        }
        database
            .prepare(schema)
            .map_err(|error| database.wrap(&error))?;
        database.check_version()?;
        let mark = |mut lock: &File| {
            lock.write_all(b"used\n")?;
            lock.sync_all()
        };
        mark(lock).map_err(|error| failed(&lock_path, error.to_string()))?;
        Ok(database)
    }

    fn found_version(&self) -> Result<i64, StoreError> {
        self.query(|connection| connection.query_row("PRAGMA user_version", [], |row| row.get(0)))
    }

    fn open_to_read(directory: &Path, name: &str, version: i64) -> Result<Self, StoreError> {
        let path = directory.join(name);
        let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_WRITE;
        let connection =
            Connection::open_with_flags(&path, flags).map_err(|error| wrap(&path, &error))?;
        let database = Self {
            path,
            connection,
            version,
            _lock: None,
        };
        let patience = database.connection.busy_timeout(Duration::from_secs(10));
        patience.map_err(|error| database.wrap(&error))?;
        database.check_version()?;
        Ok(database)
    }

    fn prepare(&self, schema: &str) -> rusqlite::Result<()> {
        let connection = &self.connection;
        connection.busy_timeout(Duration::from_secs(10))?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        connection.pragma_update(None, "secure_delete", true)?;
        connection.pragma_update(None, "foreign_keys", true)?;
        let found: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
        if found == 0 {
            let version = self.version;
            let script = format!("BEGIN; {schema} PRAGMA user_version = {version}; COMMIT;");
            connection.execute_batch(&script)?;
        }
        Ok(())
    }

    fn check_version(&self) -> Result<(), StoreError> {
        let found = self.found_version()?;
        if found == self.version {
            return Ok(());
        }
        Err(StoreError::Version {
            path: self.path.display().to_string(),
            found,
            known: self.version,
        })
    }

    fn wrap(&self, error: &rusqlite::Error) -> StoreError {
        wrap(&self.path, error)
    }

    fn corrupt(&self, what: impl Into<String>) -> StoreError {
        StoreError::Corrupt {
            path: self.path.display().to_string(),
            what: what.into(),
        }
    }

    fn change<T>(
        &mut self,
        change: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        let path = &self.path;
        let transaction = self
            .connection
            .transaction()
            .map_err(|error| wrap(path, &error))?;
        let result = change(&transaction).map_err(|error| wrap(path, &error))?;
        transaction.commit().map_err(|error| wrap(path, &error))?;
        Ok(result)
    }

    fn query<T>(
        &self,
        query: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        query(&self.connection).map_err(|error| self.wrap(&error))
    }

    /// Moves the log into the file and cuts it: the log still holds what has been erased. Says whether
    /// that was possible; a reader that takes its time can be in the way.
    fn cut_log(&self) -> Result<bool, StoreError> {
        let before = fs::metadata(self.log_path()).map_or(0, |log| log.len());
        let busy: i64 = self.query(|connection| {
            connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0))
        })?;
        if busy == 0 {
            self.reserve_log(before);
        } else {
            tracing::warn!(
                path = %self.path.display(),
                "a reader keeps erased bytes in the log; cutting it is tried again"
            );
        }
        Ok(busy == 0)
    }

    fn log_path(&self) -> PathBuf {
        let mut path = self.path.clone().into_os_string();
        path.push("-wal");
        path.into()
    }

    /// Fills the empty log with zeros to the length that it had, within limits. Syncing what lies inside of a file takes a
    /// fraction of the time that it takes while the file grows, because its length, too, must then be
    /// made durable. To SQLite a log of zeros is an empty one: it begins with neither the mark nor the sums of a log.
    /// Changes nothing but time, so a failure is no failure.
    fn reserve_log(&self, before: u64) {
        let reserve = || -> std::io::Result<()> {
            let mut log = fs::OpenOptions::new().append(true).open(self.log_path())?;
            let wanted = before.clamp(LOG_RESERVE.start, LOG_RESERVE.end);
            let missing = wanted.saturating_sub(log.metadata()?.len());
            std::io::copy(&mut std::io::repeat(0).take(missing), &mut log)?;
            log.sync_all()
        };
        if let Err(error) = reserve() {
            tracing::debug!(path = %self.path.display(), %error, "the log was not reserved");
        }
    }

    fn floats(&self, bytes: &[u8]) -> Result<Vec<f32>, StoreError> {
        from_bytes(bytes).ok_or_else(|| self.corrupt("a vector of odd length"))
    }
}

fn wrap(path: &Path, error: &rusqlite::Error) -> StoreError {
    let (path, reason) = (path.display().to_string(), error.to_string());
    match error.sqlite_error_code() {
        Some(rusqlite::ErrorCode::NotADatabase | rusqlite::ErrorCode::DatabaseCorrupt) => {
            StoreError::Corrupt { path, what: reason }
        }
        _ => StoreError::Failed { path, reason },
    }
}

/// A directory that only its owner can read, where the system knows such, and that survives a loss of
/// power. One that exists is left as it is, with a warning if others can look into it.
fn create_private(directory: &Path) -> std::io::Result<()> {
    if directory.is_dir() {
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            if fs::metadata(directory)?.permissions().mode() & 0o077 != 0 {
                tracing::warn!(
                    directory = %directory.display(),
                    "others have rights on this state directory: chmod 700"
                );
            }
        }
        return Ok(());
    }
    let missing: Vec<&Path> = directory
        .ancestors()
        .take_while(|path| !path.as_os_str().is_empty() && !path.exists())
        .collect();
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(directory)?;
    // A directory is an entry in another one, which must be durable too.
    #[cfg(unix)]
    for made in missing {
        let parent = match made.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        sync_directory(parent)?;
    }
    #[cfg(not(unix))]
    drop(missing);
    Ok(())
}

/// Makes a directory's entries durable.
#[cfg(unix)]
fn sync_directory(directory: &Path) -> std::io::Result<()> {
    File::open(directory)?.sync_all()
}

/// A file that only its owner can read, made if it is not there.
fn open_private(path: &Path) -> std::io::Result<File> {
    let mut options = File::options();
    options.create(true).truncate(false).write(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let file = options.open(path)?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        if file.metadata()?.permissions().mode() & 0o077 != 0 {
            file.set_permissions(fs::Permissions::from_mode(0o600))?;
        }
    }
    Ok(file)
}

/// A server's journal on disk.
pub struct ServerSqlite(Database);

impl ServerSqlite {
    /// Opens or makes it.
    ///
    /// # Errors
    /// When another process has it, or it is no such state.
    pub fn open(directory: &Path) -> Result<Self, StoreError> {
        let database = Database::open(directory, "server.sqlite", SERVER_SCHEMA, SERVER_VERSION)?;
        if database.cut_log()? {
            // The server's log is never cut again: it begins anew when it has a thousand pages.
            database.reserve_log(LOG_RESERVE.end);
        }
        Ok(Self(database))
    }
}

impl ServerStore for ServerSqlite {
    fn load(&mut self) -> Result<ServerRecord, StoreError> {
        let record = self.0.query(|connection| {
            let description = connection
                .query_row("SELECT description FROM run", [], |row| row.get(0))
                .optional()?;
            let members = connection
                .prepare("SELECT client, records, done, radius FROM clients ORDER BY client")?
                .query_map([], |row| {
                    let member = Member {
                        records: row.get::<_, i64>(1)? as u64,
                        done: row.get(2)?,
                        radius: row.get(3)?,
                    };
                    Ok((row.get(0)?, member))
                })?
                .collect::<Result<_, _>>()?;
            let mut taken = Vec::new();
            let rounds: Vec<(Round, u32)> = connection
                .prepare("SELECT round, length(average), accepted FROM rounds ORDER BY round")?
                .query_map([], |row| {
                    count_taken(&mut taken, row.get_ref(2)?.as_blob()?);
                    Ok((row.get(0)?, row.get(1)?))
                })?
                .collect::<Result<_, _>>()?;
            let traffic: (i64, i64) = connection.query_row(
                "SELECT coalesce(sum(sent_values), 0), coalesce(sum(uplink), 0) FROM rounds",
                [],
                |row| Ok((row.get(0)?, row.get(1)?)),
            )?;
            let snapshots = connection
                .prepare("SELECT round FROM states ORDER BY round")?
                .query_map([], |row| row.get(0))?
                .collect::<Result<_, _>>()?;
            let evaluations = connection
                .prepare("SELECT * FROM evaluations ORDER BY round")?
                .query_map([], |row| {
                    Ok(Evaluation {
                        round: row.get(0)?,
                        sums: Sums {
                            values: row.get::<_, i64>(1)? as u64,
                            uplink: row.get::<_, i64>(2)? as u64,
                            downlink: row.get::<_, i64>(3)? as u64,
                        },
                        taken: row.get(4)?,
                        seconds: row.get(5)?,
                        accuracy: row.get(6)?,
                        loss: row.get(7)?,
                    })
                })?
                .collect::<Result<_, _>>()?;
            Ok((
                rounds
                    .iter()
                    .enumerate()
                    .all(|(at, round)| at as u32 == round.0),
                ServerRecord {
                    description,
                    members,
                    averages: rounds.iter().map(|round| round.1).collect(),
                    traffic: (traffic.0 as u64, traffic.1 as u64),
                    taken,
                    snapshots,
                    evaluations,
                },
            ))
        })?;
        match record {
            (true, record) => Ok(record),
            (false, _) => Err(self.0.corrupt("a round is missing")),
        }
    }

    fn begin(&mut self, description: &str, start: &ServerState) -> Result<(), StoreError> {
        self.0.change(|transaction| {
            transaction.execute("INSERT INTO run VALUES (1, ?1)", [description])?;
            insert_state(transaction, start)
        })
    }

    fn join(&mut self, client: ClientId, records: u64) -> Result<(), StoreError> {
        self.0.change(|transaction| {
            transaction
                .execute(
                    "INSERT INTO clients VALUES (?1, ?2, 0, 0)",
                    params![client, records as i64],
                )
                .map(drop)
        })
    }

    fn close(
        &mut self,
        round: &ClosedRound,
        radii: &[(ClientId, f64)],
        state: Option<&ServerState>,
    ) -> Result<(), StoreError> {
        self.0.change(|transaction| {
            transaction
                .prepare_cached("INSERT INTO rounds VALUES (?1, ?2, ?3, ?4, ?5)")?
                .execute(params![
                    round.round,
                    round.accepted,
                    round.average.as_ref(),
                    round.values as i64,
                    round.uplink as i64
                ])?;
            let mut update =
                transaction.prepare_cached("UPDATE clients SET radius = ?2 WHERE client = ?1")?;
            for (client, radius) in radii {
                update.execute(params![client, radius])?;
            }
            let Some(state) = state else { return Ok(()) };
            // The start and the last two suffice: whoever is further behind takes one of them.
            transaction.execute(
                "DELETE FROM states WHERE round > 0 AND round < (SELECT max(round) FROM states)",
                [],
            )?;
            insert_state(transaction, state)
        })
    }

    fn acknowledge(&mut self, client: ClientId) -> Result<(), StoreError> {
        self.0.change(|transaction| {
            transaction
                .execute("UPDATE clients SET done = 1 WHERE client = ?1", [client])
                .map(drop)
        })
    }

    fn evaluated(&mut self, evaluation: Evaluation) -> Result<(), StoreError> {
        self.0.change(|transaction| {
            transaction
                .execute(
                    "INSERT OR REPLACE INTO evaluations VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
                    params![
                        evaluation.round,
                        evaluation.sums.values as i64,
                        evaluation.sums.uplink as i64,
                        evaluation.sums.downlink as i64,
                        evaluation.taken,
                        evaluation.seconds,
                        evaluation.accuracy,
                        evaluation.loss
                    ],
                )
                .map(drop)
        })
    }

    fn round(&mut self, round: Round) -> Result<ClosedRound, StoreError> {
        self.0.query(|connection| {
            connection
                .prepare_cached(
                    "SELECT accepted, average, sent_values, uplink FROM rounds WHERE round = ?1",
                )?
                .query_row([round], |row| {
                    Ok(ClosedRound {
                        round,
                        accepted: row.get(0)?,
                        average: row.get::<_, Vec<u8>>(1)?.into(),
                        values: row.get::<_, i64>(2)? as u64,
                        uplink: row.get::<_, i64>(3)? as u64,
                    })
                })
        })
    }

    fn snapshot(&mut self, round: Round) -> Result<ServerState, StoreError> {
        type Blobs = (Vec<u8>, Vec<u8>, Vec<u8>);
        let (model, shift, velocity): Blobs = self.0.query(|connection| {
            connection
                .prepare_cached("SELECT model, shift, velocity FROM states WHERE round = ?1")?
                .query_row([round], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
        })?;
        Ok(ServerState {
            round,
            model: self.0.floats(&model)?,
            shift: self.0.floats(&shift)?,
            velocity: self.0.floats(&velocity)?,
        })
    }
}

fn insert_state(transaction: &Transaction<'_>, state: &ServerState) -> rusqlite::Result<()> {
    transaction
        .prepare_cached("INSERT INTO states VALUES (?1, ?2, ?3, ?4)")?
        .execute(params![
            state.round,
            to_bytes(&state.model),
            to_bytes(&state.shift),
            to_bytes(&state.velocity)
        ])
        .map(drop)
}

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

    fn begin(&mut self, run: &LedgerRun) -> Result<(), StoreError> {
        let price = serde_json::to_string(&run.price)
            .map_err(|error| self.database.corrupt(error.to_string()))?;
        let part = run
            .part
            .map(|(part, parts)| (part as isize, parts as isize));
        let (part, parts) = part.unzip();
        self.database.change(|transaction| {
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
        row: &Row,
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

    fn rows(&mut self, run: &Hash) -> Result<Vec<Row>, StoreError> {
        self.database.query(|connection| {
            connection
                .prepare_cached(
                    "SELECT round, message, coins, model, accepted FROM messages
                     WHERE run = ?1 AND round >= coalesce((SELECT round FROM states WHERE run = ?1), 0)
                     ORDER BY round",
                )?
                .query_map([run], |row| {
                    Ok(Row {
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
