//! Room for a state on its disk: how much is left, how long the log may become, and what is wrong
//! when nothing can be written.
//!
//! What is committed is in the log first and is moved into the file later, which then grows. On a
//! full disk that cannot be done, and a state whose log is long would need as much room before it
//! could go on. So where little is left the log is kept short ([`SHORT_LOG`]) and nothing is
//! reserved for it: a state that ran into a full disk goes on when about a megabyte is free.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::path::Path;

use rusqlite::ErrorCode;

/// With less than this left on the disk, in bytes, the log is kept short.
pub(super) const ROOM: u64 = 32 << 20;

/// Pages after which the log is moved into the file: usually, and where there is little room.
pub(super) const LONG_LOG: u32 = 1000;
pub(super) const SHORT_LOG: u32 = 64;

/// Bytes that this process may still write to the disk that a file is on; `None` if nobody knows.
pub(super) fn left(path: &Path) -> Option<u64> {
    #[cfg(unix)]
    {
        let disk = rustix::fs::statvfs(path).ok()?;
        Some(disk.f_bavail.saturating_mul(disk.f_frsize))
    }
    #[cfg(not(unix))]
    {
        let _ = path;
        None
    }
}

/// Cuts off what a log has behind its last frame: zeros that were reserved, and frames of an
/// earlier time. Frames count from the beginning for as long as they carry the marks of the log's
/// head, which every new log draws anew.
pub(super) fn trim(log: &Path) -> std::io::Result<()> {
    let mut file = File::options().read(true).write(true).open(log)?;
    let length = file.metadata()?.len();
    let mut head = [0; 32];
    if length < 32 {
        return Ok(());
    }
    file.read_exact(&mut head)?;
    let word = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let used = match word(0) {
        0x377f_0682 | 0x377f_0683 => {
            let (frame, mut end) = (24 + u64::from(word(8)), 32);
            let mut mark = [0; 24];
            while end + frame <= length {
                file.seek(SeekFrom::Start(end))?;
                file.read_exact(&mut mark)?;
                if mark[8..16] != head[16..24] {
                    break;
                }
                end += frame;
            }
            end
        }
        // A log of zeros is an empty one.
        0 if head == [0; 32] => 0,
        _ => length,
    };
    if used < length {
        file.set_len(used)?;
    }
    Ok(())
}

/// What SQLite says of a failure, and what the operating system says where that is more: a file
/// system that has become read-only is an error of input and output to SQLite.
pub(super) fn reason(path: &Path, error: &rusqlite::Error) -> String {
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => match left(path) {
            Some(left) => format!("the disk is full: {} kB are left", left / 1000),
            None => "the disk is full".to_string(),
        },
        Some(
            ErrorCode::SystemIoFailure
            | ErrorCode::CannotOpen
            | ErrorCode::ReadOnly
            | ErrorCode::PermissionDenied,
        ) => match writable(path) {
            Err(error) if error.kind() == ErrorKind::ReadOnlyFilesystem => {
                format!("the file system is read-only ({error})")
            }
            Err(found) => format!("{found} ({error})"),
            Ok(()) => match error {
                rusqlite::Error::SqliteFailure(code, _) => {
                    format!("{error}{}", step(code.extended_code))
                }
                _ => error.to_string(),
            },
        },
        _ => error.to_string(),
    }
}

/// Whether a file could be written, and something made beside it.
fn writable(path: &Path) -> std::io::Result<()> {
    if path.exists() {
        File::options().append(true).open(path)?;
    }
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    let probe = folder.unwrap_or(Path::new(".")).join(".probe");
    File::create(&probe)?;
    fs::remove_file(&probe)
}

/// What SQLite was doing when the system failed it.
fn step(code: i32) -> &'static str {
    use rusqlite::ffi;
    match code {
        ffi::SQLITE_IOERR_READ | ffi::SQLITE_IOERR_SHORT_READ => " while reading",
        ffi::SQLITE_IOERR_WRITE => " while writing",
        ffi::SQLITE_IOERR_FSYNC | ffi::SQLITE_IOERR_DIR_FSYNC => " while making a change durable",
        ffi::SQLITE_IOERR_TRUNCATE => " while cutting a file",
        ffi::SQLITE_IOERR_LOCK | ffi::SQLITE_IOERR_SHMLOCK => " while locking a file",
        ffi::SQLITE_IOERR_SHMOPEN | ffi::SQLITE_IOERR_SHMSIZE | ffi::SQLITE_IOERR_SHMMAP => {
            " with the index of its log"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;

    use super::*;

    /// A log keeps every frame that is in it and loses what lies behind.
    #[test]
    fn a_trimmed_log_has_lost_nothing() {
        let place = tempfile::tempdir().unwrap();
        let (path, log) = (place.path().join("a"), place.path().join("a-wal"));
        let connection = Connection::open(&path).unwrap();
        connection
            .pragma_update(None, "journal_mode", "WAL")
            .unwrap();
        let script = "CREATE TABLE t (x BLOB); INSERT INTO t VALUES (zeroblob(100000));";
        connection.execute_batch(script).unwrap();
        let used = fs::metadata(&log).unwrap().len();
        let file = File::options().write(true).open(&log).unwrap();
        file.set_len(used + (1 << 20)).unwrap();
        trim(&log).unwrap();
        assert_eq!(fs::metadata(&log).unwrap().len(), used);
        // What another process would read after a crash: the files as they are.
        let copy = place.path().join("b");
        fs::copy(&path, &copy).unwrap();
        fs::copy(&log, place.path().join("b-wal")).unwrap();
        let length: i64 = Connection::open(&copy)
            .unwrap()
            .query_row("SELECT length(x) FROM t", [], |row| row.get(0))
            .unwrap();
        assert_eq!(length, 100_000);
        // After the log has begun anew, its older frames count as little as zeros do.
        let checkpoint = "PRAGMA wal_checkpoint(RESTART)";
        connection.query_row(checkpoint, [], |_| Ok(())).unwrap();
        connection.execute("INSERT INTO t VALUES (1)", []).unwrap();
        trim(&log).unwrap();
        assert!(fs::metadata(&log).unwrap().len() < used / 4);
        let rows: i64 = connection
            .query_row("SELECT count(*) FROM t", [], |row| row.get(0))
            .unwrap();
        assert_eq!(rows, 2);
        fs::write(&log, [0; 4096]).unwrap();
        trim(&log).unwrap();
        assert_eq!(fs::metadata(&log).unwrap().len(), 0);
    }

    #[test]
    fn what_the_system_says_is_passed_on() {
        let failure = |code: i32| {
            let code = rusqlite::ffi::Error::new(code);
            rusqlite::Error::SqliteFailure(code, None)
        };
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("state");
        let full = reason(&path, &failure(rusqlite::ffi::SQLITE_FULL));
        assert!(full.starts_with("the disk is full"), "{full}");
        let written = reason(&path, &failure(rusqlite::ffi::SQLITE_IOERR_WRITE));
        assert!(written.ends_with("while writing"), "{written}");
        let lost = place.path().join("gone/state");
        let lost = reason(&lost, &failure(rusqlite::ffi::SQLITE_CANTOPEN));
        assert!(lost.starts_with("No such file"), "{lost}");
    }
}
