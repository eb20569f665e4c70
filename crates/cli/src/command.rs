//! The commands, one file each, and what they share.

pub mod account;
pub mod audit;
pub mod bench;
pub mod compare;
pub mod completions;
pub mod data;
mod digits;
pub mod evaluate;
mod inputs;
pub mod join;
pub mod keys;
pub mod ledger;
pub mod plan;
pub mod predict;
pub mod report;
pub mod reproduce;
pub mod schema;
pub mod serve;
mod study;
pub mod train;

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::Value;

use crate::logs;
use soteriafl::accounting::PrivacyError;
use soteriafl::config::ConfigError;
use soteriafl::output::OutputError;
use soteriafl::problem::ProblemError;
use soteriafl_data::{DataError, RecordsError};
use soteriafl_deploy::net::term::{Term, Validity};

/// What goes wrong in a command, by its exit code.
#[derive(Debug)]
pub enum Failure {
    /// It failed (1).
    Failed(String),
    /// The command line or the configuration is wrong (2).
    Usage {
        /// What is wrong.
        message: String,
        /// What to do.
        hint: Option<String>,
    },
    /// The privacy budget does not allow it, or its ledger is in doubt (3).
    Refused(String),
    /// One of the others, with what a person can do about it.
    Advised(Box<Failure>, Vec<String>),
}

impl Failure {
    /// The exit code.
    pub fn code(&self) -> u8 {
        match self {
            Failure::Failed(_) => 1,
            Failure::Usage { .. } => 2,
            Failure::Refused(_) => 3,
            Failure::Advised(failure, _) => failure.code(),
        }
    }

    /// What went wrong; more errors may follow on lines of their own, which begin with `error: `.
    pub fn message(&self) -> &str {
        match self {
            Failure::Failed(message) | Failure::Refused(message) => message,
            Failure::Usage { message, .. } => message,
            Failure::Advised(failure, _) => failure.message(),
        }
    }

    /// What a person can do about it.
    pub fn hints(&self) -> &[String] {
        match self {
            Failure::Usage { hint, .. } => hint.as_slice(),
            Failure::Advised(_, hints) => hints,
            Failure::Failed(_) | Failure::Refused(_) => &[],
        }
    }

    /// The same, with hints instead of those it had; without any it is as before.
    #[must_use]
    pub fn with_hints(self, hints: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let hints: Vec<String> = hints.into_iter().map(Into::into).collect();
        match hints.is_empty() {
            true => self,
            false => Failure::Advised(Box::new(self), hints),
        }
    }

    /// It failed for this reason.
    pub fn failed(error: impl Display) -> Self {
        Failure::Failed(error.to_string())
    }

    /// It failed at this file or directory, for the reason that follows.
    pub fn at<E: Display>(path: &Path) -> impl FnOnce(E) -> Self {
        move |error| Failure::Failed(format!("{}: {error}", path.display()))
    }

    /// The command line or the configuration is wrong.
    pub fn usage(message: impl Into<String>) -> Self {
        Failure::Usage {
            message: message.into(),
            hint: None,
        }
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Failure::Usage {
            message: error.to_string(),
            hint: error.hint().map(str::to_string),
        }
    }
}

impl From<ProblemError> for Failure {
    fn from(error: ProblemError) -> Self {
        match error {
            ProblemError::Config(error) => error.into(),
            ProblemError::Data(error) => error.into(),
            other => Failure::usage(other.to_string()),
        }
    }
}

impl From<DataError> for Failure {
    fn from(error: DataError) -> Self {
        // Records are private: what stands in them is quoted to a person who has the file, not in a
        // log that may be sent away.
        let message = error.lines(!logs::for_machines()).join("\nerror: ");
        match error {
            // A file that is not what the configuration says makes the configuration wrong: trying
            // again does not help.
            DataError::Records(RecordsError::Choice { .. })
            | DataError::Table(_)
            | DataError::Columns { .. }
            | DataError::Foreign { .. }
            | DataError::Quantity { .. } => {
                let hint = error.advice();
                Failure::Usage { message, hint }
            }
            _ => Failure::Failed(message),
        }
    }
}

impl From<RecordsError> for Failure {
    fn from(error: RecordsError) -> Self {
        DataError::from(error).into()
    }
}

impl From<PrivacyError> for Failure {
    fn from(error: PrivacyError) -> Self {
        Failure::usage(digits::shortened(&error.to_string()))
    }
}

impl From<OutputError> for Failure {
    fn from(error: OutputError) -> Self {
        match error {
            OutputError::NotEmpty(path) => Failure::Usage {
                message: format!("{} exists and is not empty", path.display()),
                hint: Some("give another --out, or --force to overwrite".to_string()),
            },
            error => Failure::Failed(error.to_string()),
        }
    }
}

/// Looks at the term of one's own certificate: over, it is an error; soon over, a warning, now and
/// every day. `hint` says how to get another one. To be called where there is a runtime.
fn watch_certificate(
    directory: &Path,
    name: &str,
    hint: String,
    verbosity: Verbosity,
) -> Result<(), Failure> {
    let wrong = |error: soteriafl_deploy::net::tls::TlsError| Failure::usage(error.to_string());
    let term = Term::of(directory, name).map_err(wrong)?;
    match term.now() {
        Validity::Good => {}
        Validity::Warning(text) => verbosity.warn(format!("{text}; {hint}")),
        Validity::Over(message) => {
            let hint = Some(hint);
            return Err(Failure::Usage { message, hint });
        }
    }
    tokio::spawn(term.watch(hint));
    Ok(())
}

/// Writes to stdout, where results go. A reader that has gone away (`| head`) has what it wanted.
///
/// # Errors
/// When stdout cannot be written for another reason.
pub fn print(text: &str) -> Result<(), Failure> {
    write_stdout(text.as_bytes()).map_err(|error| Failure::Failed(format!("stdout: {error}")))
}

/// Writes JSON to stdout, for machines and for people.
///
/// # Errors
/// When stdout cannot be written.
pub fn print_json(value: &Value) -> Result<(), Failure> {
    print(&format!("{value:#}\n"))
}

fn write_stdout(bytes: &[u8]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

/// Writes a line to stderr; if nobody can read it, nothing is lost that a panic would save.
pub fn complain(line: std::fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// A flag that Ctrl-C sets. A second Ctrl-C ends the program at once. Without a handler the default
/// applies.
pub(crate) fn watch_interrupts() -> Arc<AtomicBool> {
    let interrupted = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&interrupted);
    let _ = ctrlc::set_handler(move || {
        if flag.swap(true, Ordering::Relaxed) {
            std::process::exit(1);
        }
    });
    interrupted
}

/// How many threads this machine can run at a time.
fn all_cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Lines of a name and a value, the names flush right.
fn table(width: usize, lines: &[(&str, String)]) -> String {
    let line = |(name, value): &(&str, String)| format!("{name:>width$}  {value}\n");
    lines.iter().map(line).collect()
}

/// Warns of what was found in the result of a run, and shows it: as JSON, or as lines for people.
fn conclude_run(
    found: &[String],
    json: bool,
    summary: &Value,
    lines: &str,
    verbosity: Verbosity,
) -> Result<(), Failure> {
    for warning in found {
        verbosity.warn(warning);
    }
    if json {
        print_json(summary)
    } else {
        verbosity.conclude(lines)
    }
}

/// How much is said on stderr.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verbosity {
    /// Nothing but errors, and results that were asked for.
    pub quiet: bool,
    /// More.
    pub verbose: bool,
}

impl Verbosity {
    /// A line for people, unless quiet; an event of the log where that is for machines.
    pub fn say(&self, line: impl AsRef<str>) {
        if logs::for_machines() {
            tracing::info!("{}", line.as_ref());
        } else if !self.quiet {
            complain(format_args!("{}", line.as_ref()));
        }
    }

    /// A warning, unless quiet.
    pub fn warn(&self, line: impl AsRef<str>) {
        if logs::for_machines() {
            tracing::warn!("{}", line.as_ref());
        } else if !self.quiet {
            complain(format_args!(
                "{} {}",
                console::style("warning:").yellow().bold().for_stderr(),
                line.as_ref()
            ));
        }
    }

    /// What a command that leaves files says about them at its end, on stdout: unless quiet, for
    /// then the files are enough.
    ///
    /// # Errors
    /// When stdout cannot be written.
    pub fn conclude(&self, text: &str) -> Result<(), Failure> {
        if self.quiet { Ok(()) } else { print(text) }
    }

    /// A progress bar of this form, where somebody can see it.
    pub fn bar(&self, length: Option<u64>, template: &str) -> ProgressBar {
        let visible = io::stderr().is_terminal() && !self.quiet && !logs::for_machines();
        let target = if visible {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        };
        let bar = ProgressBar::with_draw_target(length, target);
        let style = ProgressStyle::with_template(template);
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar
    }

    /// A line for the curious.
    pub fn detail(&self, line: impl AsRef<str>) {
        if logs::for_machines() {
            tracing::debug!("{}", line.as_ref());
        } else if self.verbose && !self.quiet {
            complain(format_args!("{}", line.as_ref()));
        }
    }
}
