//! A finished run in memory: the texts and bytes of its directory, to be written or read as a
//! whole.

use std::fs;
use std::io;
use std::path::Path;

use super::{FILES, OutputError, check_empty, reopen, write_whole};
use crate::prepared::Conclusion;
use crate::report::{self, ReportError, RunFiles};

/// What the directory of a finished run holds, byte for byte; the report is made from the rest.
#[derive(Clone, Debug, PartialEq)]
pub struct FinishedRun {
    /// `config.toml`.
    pub config: String,
    /// `rounds.csv`.
    pub rounds: String,
    /// `summary.json`.
    pub summary: String,
    /// `model.safetensors`.
    pub model: Vec<u8>,
}

impl FinishedRun {
    /// A run that has just ended, with its `config.toml` and `rounds.csv`.
    pub fn new(config: String, rounds: String, end: Conclusion) -> Self {
        Self {
            config,
            rounds,
            summary: format!("{:#}\n", end.summary),
            model: end.model,
        }
    }

    /// Reads a directory; its report is not needed.
    ///
    /// # Errors
    /// When a file is missing or is not text.
    pub fn read(path: &Path) -> Result<Self, OutputError> {
        let text = |name: &str| {
            let file = path.join(name);
            fs::read_to_string(&file).map_err(OutputError::at(file))
        };
        let model = path.join("model.safetensors");
        Ok(Self {
            config: text("config.toml")?,
            rounds: text("rounds.csv")?,
            summary: text("summary.json")?,
            model: fs::read(&model).map_err(OutputError::at(model))?,
        })
    }

    /// What the report is made from; `name` stands for the directory in errors.
    ///
    /// # Errors
    /// When a text cannot be understood.
    pub fn files(&self, name: &Path) -> Result<RunFiles, ReportError> {
        RunFiles::of_texts(name, &self.config, &self.rounds, &self.summary)
    }

    /// Writes the five files of a run, the summary last: whoever finds it finds the others.
    ///
    /// # Errors
    /// When there are files already, unless `force`, or the file system refuses.
    pub fn write(&self, path: &Path, force: bool) -> Result<(), OutputError> {
        check_empty(path, force)?;
        let files = self.files(path).map_err(|error| {
            OutputError::at(path.join("report.html"))(io::Error::other(error.to_string()))
        })?;
        fs::create_dir_all(path).map_err(OutputError::at(path))?;
        reopen(path)?;
        for name in FILES {
            let report;
            let bytes = match name {
                "config.toml" => self.config.as_bytes(),
                "rounds.csv" => self.rounds.as_bytes(),
                "model.safetensors" => &self.model,
                "report.html" => {
                    report = report::html(&files);
                    report.as_bytes()
                }
                _ => self.summary.as_bytes(),
            };
            let file = path.join(name);
            write_whole(&file, bytes).map_err(OutputError::at(file))?;
        }
        Ok(())
    }
}
