//! What `compare` and `reproduce` share: many runs at a time, each kept when it is finished, and
//! the files that are made of them.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use serde_json::Value;

use super::{Failure, Verbosity, all_cores, print_json, watch_interrupts};
use soteriafl::config::resolve::Resolved;
use soteriafl::experiment::{Job, Outcome, Pool, PoolError};
use soteriafl::output::{OutputError, check_empty, write_whole};
use soteriafl::report::Figure;
use soteriafl::words::counted;

/// A study and its output directory.
pub(super) struct Study<'a> {
    out: &'a Path,
    began: Instant,
    interrupted: Arc<AtomicBool>,
    verbosity: Verbosity,
}

impl<'a> Study<'a> {
    /// From here on time counts, and Ctrl-C is waited for. Nothing is written yet.
    pub(super) fn new(out: &'a Path, verbosity: Verbosity) -> Self {
        Self {
            out,
            began: Instant::now(),
            interrupted: watch_interrupts(),
            verbosity,
        }
    }

    /// Makes the directory, or takes one that an earlier call has begun. Any other with files in it
    /// is refused.
    pub(super) fn create_directory(&self) -> Result<(), Failure> {
        let jobs = self.out.join("jobs");
        if jobs.is_dir() {
            return Ok(());
        }
        match check_empty(self.out, false) {
            Err(OutputError::NotEmpty(_)) => Err(Failure::Usage {
                message: format!("{} exists and holds something else", self.out.display()),
                hint: Some("give another --out".to_string()),
            }),
            other => {
                other?;
                std::fs::create_dir_all(jobs).map_err(Failure::at(self.out))
            }
        }
    }

    /// All outcomes, in the order of `jobs`; those of an earlier call are not computed again.
    pub(super) fn run(
        &self,
        jobs: &[Job],
        threads: Option<usize>,
    ) -> Result<Vec<Outcome>, Failure> {
        let pool = Pool {
            threads: threads.unwrap_or_else(all_cores),
            directory: &self.out.join("jobs"),
            interrupted: &self.interrupted,
            show_progress: !self.verbosity.quiet,
        };
        let outcomes = pool.run(jobs, |found| {
            if found > 0 {
                let (all, are) = (jobs.len(), if jobs.len() == 1 { "is" } else { "are" });
                let all = counted(all, "run");
                let line = format!("going on: {found} of {all} {are} there");
                self.verbosity.say(line);
            }
        })?;
        Ok(outcomes)
    }

    /// Makes a folder in the output directory.
    pub(super) fn create_folder(&self, name: &str) -> Result<(), Failure> {
        let path = self.out.join(name);
        std::fs::create_dir_all(&path).map_err(Failure::at(&path))
    }

    /// Writes a file into the output directory.
    pub(super) fn write(&self, name: &str, contents: impl AsRef<[u8]>) -> Result<(), Failure> {
        let path = self.out.join(name);
        write_whole(&path, contents.as_ref()).map_err(Failure::at(&path))
    }

    /// Writes a figure as SVG and as a picture of twice its size.
    pub(super) fn write_figure(&self, name: &str, figure: &Figure) -> Result<(), Failure> {
        let picture = figure
            .to_png(2.0)
            .map_err(|error| Failure::Failed(format!("{name}: {error}")))?;
        self.write(&format!("{name}.svg"), figure.to_svg())?;
        self.write(&format!("{name}.png"), picture)
    }

    /// Writes each setting as a configuration that `soteria train` takes.
    pub(super) fn write_settings<'s>(
        &self,
        settings: impl Iterator<Item = (&'s str, Resolved)>,
    ) -> Result<(), Failure> {
        self.create_folder("settings")?;
        for (name, resolved) in settings {
            self.write(&format!("settings/{name}.toml"), resolved.to_toml())?;
        }
        Ok(())
    }

    /// Prints the summary as JSON, or the tables for people and where the report is.
    pub(super) fn conclude(
        &self,
        json: bool,
        summary: &Value,
        tables: &str,
        runs: usize,
    ) -> Result<(), Failure> {
        if json {
            return print_json(summary);
        }
        self.verbosity.conclude(&format!(
            "{tables}\n{} in {:.1} s\nreport: {}\n",
            counted(runs, "run"),
            self.began.elapsed().as_secs_f64(),
            self.out.join("report.html").display()
        ))
    }
}

impl From<PoolError> for Failure {
    fn from(error: PoolError) -> Self {
        match error {
            PoolError::Interrupted { .. } => Failure::Failed(format!(
                "{error}; they are kept, the same command goes on with the rest"
            )),
            PoolError::Run { .. } => Failure::usage(error.to_string()),
            other => Failure::Failed(other.to_string()),
        }
    }
}
