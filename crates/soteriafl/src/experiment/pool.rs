//! Jobs on all cores, with one bar for everything.

use std::io;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::job::{FinishedJobs, Job, Outcome};
use crate::words::counted;

/// Why an experiment has no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// A run cannot be set up.
    #[error("{name}: {reason}")]
    Run {
        /// Which one.
        name: String,
        /// Why.
        reason: String,
    },
    /// A file cannot be read or written.
    #[error("{path}: {error}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// Somebody pressed Ctrl-C.
    #[error("interrupted after {finished} of {}", counted(*all, "run"))]
    Interrupted {
        /// Runs that are done, now or earlier.
        finished: usize,
        /// All runs.
        all: usize,
    },
}

impl PoolError {
    pub(super) fn file(path: impl AsRef<Path>, error: io::Error) -> Self {
        PoolError::File {
            path: path.as_ref().to_path_buf(),
            error,
        }
    }
}

/// Runs jobs.
pub struct Pool<'a> {
    /// How many at a time.
    pub threads: usize,
    /// Where finished ones are kept.
    pub directory: &'a Path,
    /// Set from outside to stop.
    pub interrupted: &'a AtomicBool,
    /// Whether a bar may be shown.
    pub show_progress: bool,
}

impl Pool<'_> {
    /// All outcomes, in the order of `jobs`; `resumed` hears how many of them were there already.
    ///
    /// # Errors
    /// The first job that fails in the order of `jobs`, or the interruption.
    pub fn run(
        &self,
        jobs: &[Job],
        resumed: impl FnOnce(usize),
    ) -> Result<Vec<Outcome>, PoolError> {
        std::fs::create_dir_all(self.directory)
            .map_err(|error| PoolError::file(self.directory, error))?;
        let stored = FinishedJobs(self.directory);
        let keys = jobs.iter().map(Job::key).collect::<Result<Vec<_>, _>>()?;
        let mut found = Vec::with_capacity(jobs.len());
        for (job, key) in jobs.iter().zip(&keys) {
            found.push(job.finished(&stored, key)?);
        }
        let total = |job: &Job| {
            let (round, evaluation) = job.work();
            u64::from(job.setting.resolved.rounds + 1) * round + job.evaluations() * evaluation
        };
        let mut missing: Vec<usize> = (0..jobs.len()).filter(|at| found[*at].is_none()).collect();
        // The longest first, so that no core idles at the end; seeds of one setting stay together.
        missing.sort_by_key(|at| std::cmp::Reverse(total(&jobs[*at])));
        let done = jobs.len() - missing.len();
        resumed(done);

        let bar = self.bar(missing.iter().map(|at| total(&jobs[*at])).sum(), jobs.len());
        bar.set_message(format!("{done}/{} runs", jobs.len()));
        let (next, finished) = (AtomicUsize::new(0), AtomicUsize::new(done));
        let results: Mutex<Vec<(usize, Result<Outcome, PoolError>)>> = Mutex::default();
        let failed = AtomicBool::new(false);
        let work = || {
            while let Some(&at) = missing.get(next.fetch_add(1, Ordering::Relaxed)) {
                if self.interrupted.load(Ordering::Relaxed) || failed.load(Ordering::Relaxed) {
                    return;
                }
                let result = match jobs[at].run(self.interrupted, |work| bar.inc(work)) {
                    Ok(None) => return,
                    Ok(Some(outcome)) => stored.write(&keys[at], &outcome).map(|()| outcome),
                    Err(error) => Err(error),
                };
                failed.fetch_or(result.is_err(), Ordering::Relaxed);
                let count = finished.fetch_add(1, Ordering::Relaxed) + 1;
                bar.set_message(format!("{count}/{} runs", jobs.len()));
                results
                    .lock()
                    .expect("nobody panics holding it")
                    .push((at, result));
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..self.threads.clamp(1, missing.len().max(1)) {
                scope.spawn(work);
            }
        });
        bar.finish_and_clear();
        let mut results = results.into_inner().expect("nobody panics holding it");
        results.sort_by_key(|(at, _)| *at);
        for (at, result) in results {
            found[at] = Some(result?);
        }
        let finished = found.iter().flatten().count();
        found
            .into_iter()
            .collect::<Option<Vec<_>>>()
            .ok_or(PoolError::Interrupted {
                finished,
                all: jobs.len(),
            })
    }

    fn bar(&self, work: u64, jobs: usize) -> ProgressBar {
        let target = if self.show_progress && io::stderr().is_terminal() && jobs > 0 {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        };
        let bar = ProgressBar::with_draw_target(Some(work), target);
        let style = ProgressStyle::with_template(
            "{bar:32.cyan/dim} {percent:>3}%  {msg}  {elapsed:.dim} gone, {eta:.dim} left",
        );
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.enable_steady_tick(Duration::from_millis(250));
        bar
    }
}
