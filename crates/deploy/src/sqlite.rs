//! Stores in SQLite: `server.sqlite` or `client.sqlite` in the state directory, readable by any
//! tool.
//!
//! Write-ahead log, `synchronous = FULL`: a committed transaction survives the process and the
//! power. Deleted bytes are overwritten (`secure_delete`), and a client's log, which still holds
//! them, is moved into the file and cut after every erasure and when the state is opened. Where the
//! disk is nearly full the log is kept short (`room`), so that a state that ran into its end can
//! go on. A client's large states have files of their own (`state_file`). Files are readable by
//! their owner alone, also in a directory that was there before. A file `lock` keeps a second
//! process away; readers such as `soteria ledger` need no lock.
mod client;
mod room;
mod server;
mod state_file;

use std::fs::{self, File, TryLockError};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, Transaction};

use super::from_bytes;
use super::store::StoreError;
pub use client::{ClientSqlite, Entry, ReleaseEntry};
pub use server::ServerSqlite;

/// The least and the most bytes that are reserved for a log.
const LOG_RESERVE: std::ops::Range<u64> = 1 << 19..1 << 23;

/// What is wrong with a state whose lock names a database that says nothing.
const GONE: &str =
    "it is gone or empty, but this state has been used: restore it, or take another directory";

/// The tables of a database.
struct Schema {
    version: i64,
    /// What makes them.
    tables: &'static str,
    /// What makes them of those of the version before, losing nothing.
    upgrade: &'static str,
}

/// One database with its lock.
struct Database {
    path: PathBuf,
    connection: Connection,
    version: i64,
    /// Whether the disk is nearly full.
    tight: bool,
    /// Whether it is open for a moment: its log is not made ready for more.
    brief: bool,
    /// Held for as long as the database is open; `None` for readers.
    _lock: Option<File>,
}

impl Database {
    fn open(directory: &Path, name: &str, schema: &Schema) -> Result<Self, StoreError> {
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
        // SQLite gives the log and its index the rights of the file; those of an older process are
        // seen to.
        for beside in ["", "-wal", "-shm"] {
            let file = directory.join(format!("{name}{beside}"));
            if beside.is_empty() || file.exists() {
                open_private(&file).map_err(|error| failed(&file, error.to_string()))?;
            }
        }
        // The lock names the databases that were made: an empty one in its place would be a ledger
        // that says nothing.
        let unmarked = |error: std::io::Error| failed(&lock_path, error.to_string());
        let (mut lock, mut made) = (lock, String::new());
        lock.read_to_string(&mut made).map_err(unmarked)?;
        let made = made.lines().any(|line| line == name);
        // Files are entries in the directory, which must outlive a loss of power as well as they
        // do. Those of one that the lock names were seen to before it did.
        #[cfg(unix)]
        if !made {
            sync_directory(directory).map_err(|error| failed(directory, error.to_string()))?;
        }
        let connection = Connection::open(&path).map_err(|error| wrap(&path, &error))?;
        let mut database = Self {
            path,
            connection,
            version: schema.version,
            tight: false,
            brief: false,
            _lock: Some(lock),
        };
        if made && database.found_version()? == 0 {
            return Err(database.corrupt(GONE));
        }
        database
            .prepare(schema)
            .map_err(|error| database.wrap(&error))?;
        database.check_version()?;
        if !made {
            let mut lock = database._lock.as_ref().expect("it was put there");
            lock.write_all(format!("{name}\n").as_bytes())
                .and_then(|()| lock.sync_all())
                .map_err(unmarked)?;
        }
        database.look_around();
        Ok(database)
    }

    fn found_version(&self) -> Result<i64, StoreError> {
        self.query(|connection| connection.query_row("PRAGMA user_version", [], |row| row.get(0)))
    }

    /// Whether there is no table in it.
    fn is_empty(&self) -> Result<bool, StoreError> {
        let count = "SELECT count(*) FROM sqlite_schema";
        let tables: i64 =
            self.query(|connection| connection.query_row(count, [], |row| row.get(0)))?;
        Ok(tables == 0)
    }

    /// To read one that exists, of this version or the one before, which is left as it is.
    fn open_to_read(directory: &Path, name: &str, version: i64) -> Result<Self, StoreError> {
        let path = directory.join(name);
        let made = fs::read_to_string(directory.join("lock")).unwrap_or_default();
        let made = made.lines().any(|line| line == name);
        if !path.exists() {
            let path = path.display().to_string();
            return Err(match made {
                true => StoreError::Corrupt {
                    path,
                    what: GONE.to_string(),
                },
                false => StoreError::Missing(directory.display().to_string()),
            });
        }
        let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_WRITE;
        let connection =
            Connection::open_with_flags(&path, flags).map_err(|error| wrap(&path, &error))?;
        let mut database = Self {
            path,
            connection,
            version,
            tight: false,
            brief: false,
            _lock: None,
        };
        let patience = database.connection.busy_timeout(Duration::from_secs(10));
        patience.map_err(|error| database.wrap(&error))?;
        let found = database.found_version()?;
        if found == version - 1 {
            database.version = found;
        }
        if found == 0 {
            return Err(match (made, database.is_empty()?) {
                (true, _) => database.corrupt(GONE),
                // What a process leaves that ends while it makes a state.
                (false, true) => StoreError::Unfinished(directory.display().to_string()),
                (false, false) => database.corrupt("it has tables of something else"),
            });
        }
        database.check_version()?;
        Ok(database)
    }

    fn prepare(&self, schema: &Schema) -> rusqlite::Result<()> {
        let connection = &self.connection;
        connection.busy_timeout(Duration::from_secs(10))?;
        connection.pragma_update(None, "page_size", 8192)?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        connection.pragma_update(None, "secure_delete", true)?;
        connection.pragma_update(None, "foreign_keys", true)?;
        let found: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
        let script = match found {
            0 => schema.tables,
            _ if found == schema.version - 1 => schema.upgrade,
            _ => return Ok(()),
        };
        let version = schema.version;
        let script = format!("BEGIN; {script} PRAGMA user_version = {version}; COMMIT;");
        connection.execute_batch(&script)
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
        if self.look_around() {
            // If that fails now, so will what follows, or it will not.
            let _ = self.cut_log();
        }
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

    /// Sees how much is left on the disk; says whether that has become little. One system call.
    fn look_around(&mut self) -> bool {
        let Some(left) = room::left(&self.path) else {
            return false;
        };
        // Once it was little it has to be twice as much, or a file that comes and goes would be
        // seen as many changes.
        let tight = left < room::ROOM * (1 + u64::from(self.tight));
        if tight == self.tight {
            return false;
        }
        let pages = if tight {
            room::SHORT_LOG
        } else {
            room::LONG_LOG
        };
        let changed = self
            .connection
            .pragma_update(None, "wal_autocheckpoint", pages);
        if changed.is_err() {
            return false;
        }
        self.tight = tight;
        if tight {
            let path = self.path.display();
            tracing::warn!(%path, kilobytes = left / 1000, "little is left on this disk");
        }
        tight
    }

    /// Moves the log into the file and cuts it: the log still holds what has been erased. Says
    /// whether that was possible; a reader that takes its time can be in the way.
    fn cut_log(&self) -> Result<bool, StoreError> {
        let before = fs::metadata(self.log_path()).map_or(0, |log| log.len());
        let cut = || {
            let cut = "PRAGMA wal_checkpoint(TRUNCATE)";
            self.connection
                .query_row(cut, [], |row| row.get::<_, i64>(0))
        };
        let mut result = cut();
        let full = |error: &rusqlite::Error| {
            error.sqlite_error_code() == Some(rusqlite::ErrorCode::DiskFull)
        };
        if result.as_ref().is_err_and(full) && room::trim(&self.log_path()).is_ok() {
            // What was reserved for the log may be what the file lacks.
            result = cut();
        }
        let busy = result.map_err(|error| self.wrap(&error))?;
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

    /// Whether a process before this one has left a log.
    fn has_log(&self) -> bool {
        fs::metadata(self.log_path()).is_ok_and(|log| log.len() > 0)
    }

    fn log_path(&self) -> PathBuf {
        let mut path = self.path.clone().into_os_string();
        path.push("-wal");
        path.into()
    }

    /// Fills the empty log with zeros to the length that it had, within limits. Syncing what lies
    /// inside of a file takes a fraction of the time that it takes while the file grows, because
    /// its length, too, must then be made durable. To SQLite a log of zeros is an empty one: it
    /// begins with neither the mark nor the sums of a log. Changes nothing but time, so a failure
    /// is no failure, and where there is little room none is taken.
    fn reserve_log(&self, before: u64) {
        if self.tight || self.brief {
            return;
        }
        let reserve = || -> std::io::Result<()> {
            let mut log = fs::OpenOptions::new().append(true).open(self.log_path())?;
            let wanted = before.clamp(LOG_RESERVE.start, LOG_RESERVE.end);
            let length = log.metadata()?.len();
            let missing = wanted.saturating_sub(length);
            std::io::copy(&mut std::io::repeat(0).take(missing), &mut log)
                .and_then(|_| log.sync_all())
                .or_else(|error| log.set_len(length).and(Err(error)))
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
    let (path, reason) = (path.display().to_string(), room::reason(path, error));
    match error.sqlite_error_code() {
        Some(rusqlite::ErrorCode::NotADatabase | rusqlite::ErrorCode::DatabaseCorrupt) => {
            StoreError::Corrupt { path, what: reason }
        }
        _ => StoreError::Failed { path, reason },
    }
}

/// A directory that only its owner can read, where the system knows such, and that survives a loss
/// of power. One that exists is left as it is, with a warning if others can look into it.
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
pub(crate) fn sync_directory(directory: &Path) -> std::io::Result<()> {
    File::open(directory)?.sync_all()
}

/// A file that only its owner can read, made if it is not there.
pub(crate) fn open_private(path: &Path) -> std::io::Result<File> {
    let mut options = File::options();
    options.create(true).truncate(false).read(true).write(true);
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
