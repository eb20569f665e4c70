//! The files of a run, and how they are written: whole or not at all, except `rounds.csv`, which
//! grows a row at a time so that an interrupted run leaves what it has.

mod deployed;
mod finished;
mod rounds;
mod summary;

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use serde_json::Value;
use soteriafl_core::simulate::{Metrics, Traffic};

use crate::config::resolve::Resolved;
use crate::model_card;
use crate::report::{self, RunFiles};

pub use deployed::{Deployed, TestSet};
pub use finished::FinishedRun;
pub use rounds::{COLUMNS, LastRow, RoundTable, columns};
pub use summary::RunResult;

use rounds::{TEST_LOSS, optional, traffic_cells};

/// What a finished run has, in the order in which the files are written: with the last one it is
/// complete.
pub const FILES: [&str; 5] = [
    "config.toml",
    "rounds.csv",
    "model.safetensors",
    "report.html",
    "summary.json",
];

/// Which records an unfinished run is of. It goes at the end: whoever has it can check a guess of
/// all records, and a finished run has no use for it.
const RECORDS: &str = "records.sha256";

/// The digest of the records that an unfinished run is of, if it left one.
///
/// # Errors
/// When it cannot be read.
pub fn remembered_records(path: &Path) -> Result<Option<String>, OutputError> {
    let path = path.join(RECORDS);
    match fs::read_to_string(&path) {
        Ok(text) => Ok(Some(text.trim_end().to_string())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(OutputError::Io { path, error }),
    }
}

/// Whether what is in a directory, if anything, is of the run with this `config.toml`.
pub fn belongs(path: &Path, config: &str) -> bool {
    match fs::read_to_string(path.join("config.toml")) {
        Ok(text) => text == config,
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

/// Whether a run's directory has all of its files, and nothing half written beside them.
pub fn is_complete(path: &Path) -> bool {
    FILES.iter().all(|name| {
        let temporary = path.join(format!("{name}.tmp"));
        path.join(name).is_file() && !temporary.exists()
    })
}

/// Before files are written anew: what an earlier run said at its end goes, that it is complete
/// first, and so does what was left half written. Files of two runs never stand side by side.
fn reopen(path: &Path) -> Result<(), OutputError> {
    let ends = [
        "summary.json",
        "report.html",
        "curves.svg",
        "model.safetensors",
    ];
    let temporary = FILES.iter().map(|name| format!("{name}.tmp"));
    let ends = ends.into_iter().chain([RECORDS]).map(str::to_string);
    for name in ends.chain(temporary) {
        let file = path.join(name);
        match fs::remove_file(&file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(OutputError::at(file)(error));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Writes a file whole or not at all.
///
/// # Errors
/// When the file system refuses.
pub fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(".tmp");
    let temporary = path.with_file_name(name);
    let written = File::create(&temporary).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    });
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written
}

/// A run's directory, open for writing.
pub struct RunDirectory {
    path: PathBuf,
    rounds: RoundTable<BufWriter<File>>,
}

/// Why a directory cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OutputError {
    /// It has files in it.
    #[error("{0} is not empty")]
    NotEmpty(PathBuf),
    /// The file system refuses.
    #[error("{path}: {error}")]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
}

impl OutputError {
    fn at(path: impl Into<PathBuf>) -> impl Fn(io::Error) -> Self {
        let path = path.into();
        move |error| OutputError::Io {
            path: path.clone(),
            error,
        }
    }
}

/// Refuses a directory with files in it, unless `force`.
///
/// # Errors
/// When it has files or cannot be read.
pub fn check_empty(path: &Path, force: bool) -> Result<(), OutputError> {
    match fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(OutputError::at(path)(error)),
        Ok(_) if force => Ok(()),
        Ok(mut entries) => match entries.next() {
            None => Ok(()),
            Some(_) => Err(OutputError::NotEmpty(path.to_path_buf())),
        },
    }
}

impl RunDirectory {
    /// Creates the directory with `config.toml` and an empty table of rounds. What an earlier run
    /// said at its end goes first, so that files of two runs never stand side by side.
    ///
    /// # Errors
    /// When the file system refuses.
    pub fn create(path: &Path, resolved: &Resolved) -> Result<Self, OutputError> {
        Self::begin(path, &resolved.to_toml(), &columns(resolved))
    }

    /// The same for a deployment with this `config.toml`.
    ///
    /// # Errors
    /// When the file system refuses.
    pub fn create_deployed(path: &Path, config: &str) -> Result<Self, OutputError> {
        Self::begin(path, config, &format!("{COLUMNS},{TEST_LOSS}"))
    }

    fn begin(path: &Path, config: &str, columns: &str) -> Result<Self, OutputError> {
        let wrap = OutputError::at(path);
        fs::create_dir_all(path).map_err(&wrap)?;
        reopen(path)?;
        write_whole(&path.join("config.toml"), config.as_bytes()).map_err(&wrap)?;
        let rounds = BufWriter::new(File::create(path.join("rounds.csv")).map_err(&wrap)?);
        Ok(Self {
            path: path.to_path_buf(),
            rounds: RoundTable::new(rounds, columns).map_err(&wrap)?,
        })
    }

    /// Writes down of which records the run is, so that it is not resumed with others.
    ///
    /// # Errors
    /// When the file system refuses.
    pub fn remember_records(&self, digest: &str) -> Result<(), OutputError> {
        let path = self.path.join(RECORDS);
        write_whole(&path, format!("{digest}\n").as_bytes())
            .map_err(|error| OutputError::Io { path, error })
    }

    /// The loss of the model that the run started from, once it is known.
    pub fn start_loss(&self) -> Option<f64> {
        self.rounds.start_loss()
    }

    /// Opens the directory of an interrupted run with these [columns]: complete rows stay, a torn
    /// last one goes. Returns the last row, if there is one.
    ///
    /// # Errors
    /// When the table cannot be read or is not one of ours.
    pub fn resume(path: &Path, columns: &str) -> Result<(Self, Option<LastRow>), OutputError> {
        let file = path.join("rounds.csv");
        let wrap = OutputError::at(&file);
        let text = match fs::read_to_string(&file) {
            // It died before its first row: nothing is known.
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            text => text.map_err(&wrap)?,
        };
        let mut kept = format!("{columns}\n");
        let mut rows: Vec<LastRow> = Vec::new();
        for line in text
            .split_inclusive('\n')
            .skip(1)
            .filter(|line| line.ends_with('\n'))
        {
            let row = LastRow::parse(line.trim_end(), columns).ok_or_else(|| {
                wrap(io::Error::other(format!(
                    "row {} is not one of a run",
                    rows.len() + 1
                )))
            })?;
            rows.push(row);
            kept += line;
        }
        write_whole(&file, kept.as_bytes()).map_err(&wrap)?;
        let to = BufWriter::new(File::options().append(true).open(&file).map_err(&wrap)?);
        let mut rounds = RoundTable::over(to);
        for row in &rows {
            rounds.count(row.round, &row.metrics);
        }
        let utility = rounds.utility;
        let path = path.to_path_buf();
        let last = rows.pop().map(|row| LastRow { utility, ..row });
        Ok((Self { path, rounds }, last))
    }

    /// Appends an evaluated round and returns the utility so far.
    ///
    /// # Errors
    /// When the file system refuses.
    pub fn row(
        &mut self,
        round: u32,
        traffic: Traffic,
        metrics: &Metrics,
        epsilon: Option<f64>,
    ) -> Result<f64, OutputError> {
        let written = self.rounds.row(round, traffic, metrics, epsilon);
        written.map_err(OutputError::at(self.path.join("rounds.csv")))
    }

    /// Appends a round of a deployment: what only the clients' records could tell stays empty.
    ///
    /// # Errors
    /// When the file system refuses.
    pub fn measured_row(
        &mut self,
        round: u32,
        traffic: Traffic,
        (test_loss, test_accuracy): (Option<f64>, Option<f64>),
        epsilon: Option<f64>,
    ) -> Result<(), OutputError> {
        let written = self.rounds.append(format_args!(
            "{round},{},,,,{},{},{}",
            traffic_cells(traffic),
            optional(test_accuracy),
            optional(epsilon),
            optional(test_loss),
        ));
        written.map_err(OutputError::at(self.path.join("rounds.csv")))
    }

    /// Writes everything that can be said at the end.
    ///
    /// # Errors
    /// When the file system refuses.
    pub fn finish(mut self, summary: &Value, model: &[u8]) -> Result<(), OutputError> {
        if summary["interrupted"] != true {
            let _ = fs::remove_file(self.path.join(RECORDS));
        }
        let path = self.path;
        let write = |name: &str, bytes: &[u8]| {
            let file = path.join(name);
            write_whole(&file, bytes).map_err(OutputError::at(file))
        };
        let flushed = self.rounds.to.flush();
        flushed.map_err(OutputError::at(path.join("rounds.csv")))?;
        write("model.safetensors", model)?;
        write(
            "MODEL_CARD.md",
            model_card::markdown(summary, model).as_bytes(),
        )?;
        let text = format!("{summary:#}\n");
        let files = RunFiles::read_with(&path, &text).map_err(|error| {
            OutputError::at(path.join("report.html"))(io::Error::other(error.to_string()))
        })?;
        write("report.html", report::html(&files).as_bytes())?;
        // The last one: whoever finds it finds the others.
        write("summary.json", text.as_bytes())
    }
}
