//! The commands, one file each, and what they share.

pub mod bench;
pub mod completions;
pub mod report;
pub mod train;

use crate::accounting::PrivacyError;
use crate::config::ConfigError;
use crate::output::OutputError;
use crate::problem::ProblemError;
use soteria_core::data::DataError;

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
    /// The privacy budget does not allow it (3).
    Refused(String),
}

impl Failure {
    /// The exit code.
    pub fn code(&self) -> u8 {
        match self {
            Failure::Failed(_) => 1,
            Failure::Usage { .. } => 2,
            Failure::Refused(_) => 3,
        }
    }

    /// The command line or the configuration is wrong.
    pub fn usage(message: impl Into<String>) -> Self {
        Failure::Usage { message: message.into(), hint: None }
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Failure::Usage { message: error.to_string(), hint: error.hint().map(str::to_string) }
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
        match error {
            DataError::Choice { .. } => Failure::usage(error.to_string()),
            other => Failure::Failed(other.to_string()),
        }
    }
}

impl From<PrivacyError> for Failure {
    fn from(error: PrivacyError) -> Self {
        Failure::usage(error.to_string())
    }
}

impl From<OutputError> for Failure {
    fn from(error: OutputError) -> Self {
        match error {
            OutputError::NotEmpty(path) => Failure::Usage {
                message: format!("{} exists and is not empty", path.display()),
                hint: Some("give another --out, or --force to overwrite".to_string()),
            },
            OutputError::Io { .. } => Failure::Failed(error.to_string()),
        }
    }
}

/// How much is said on stderr.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verbosity {
    /// Nothing but errors.
    pub quiet: bool,
    /// More.
    pub verbose: bool,
}

impl Verbosity {
    /// A line for people, unless quiet.
    pub fn say(&self, line: impl AsRef<str>) {
        if !self.quiet {
            eprintln!("{}", line.as_ref());
        }
    }

    /// A warning, unless quiet.
    pub fn warn(&self, line: impl AsRef<str>) {
        if !self.quiet {
            eprintln!("{} {}", console::style("warning:").yellow().bold().for_stderr(), line.as_ref());
        }
    }

    /// A line for the curious.
    pub fn detail(&self, line: impl AsRef<str>) {
        if self.verbose && !self.quiet {
            eprintln!("{}", line.as_ref());
        }
    }
}
