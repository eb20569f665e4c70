//! Structured logs of the long-running commands, on stderr.
//!
//! One line per event: plain text for people, one JSON object with `--log json` for machines. Then everything else on stderr
//! is an event, too: announcements, costs, warnings, and the error at the end. A log holds sizes,
//! rounds, numbers of clients and addresses, never a gradient, a noise value or a key, nor a
//! record: of a file that cannot be read it tells place and kind of a fault; only text for people
//! quotes what stands there.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, Ordering};

use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::{Layer, Registry, fmt};

use crate::command::Verbosity;

/// Whether stderr is for machines.
static FOR_MACHINES: AtomicBool = AtomicBool::new(false);

/// Whether everything on stderr is to be an event of the log, because machines read it.
pub fn for_machines() -> bool {
    FOR_MACHINES.load(Ordering::Relaxed)
}

/// How logs are written; flatten this into a command's options.
#[derive(clap::Args, Clone, Copy, Debug)]
pub struct LogOptions {
    /// How logs are written, to stderr
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = LogFormat::Plain)]
    pub log: LogFormat,
}

/// The form of a log line.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// Text.
    Plain,
    /// One JSON object per line.
    Json,
}

impl LogOptions {
    /// Begins to log. A second call in one process changes nothing.
    pub fn init(&self, verbosity: Verbosity) {
        // Libraries speak up for warnings only: what they call information is about their insides.
        let (own, foreign) = match (verbosity.quiet, verbosity.verbose) {
            (true, _) => (LevelFilter::ERROR, LevelFilter::ERROR),
            (false, false) => (LevelFilter::INFO, LevelFilter::WARN),
            (false, true) => (LevelFilter::DEBUG, LevelFilter::WARN),
        };
        let filter = Targets::new()
            .with_default(foreign)
            .with_target("soteria_node", own)
            .with_target("soteria", own);
        let layer = match self.log {
            LogFormat::Plain => {
                let colours = std::io::stderr().is_terminal() && console::colors_enabled_stderr();
                fmt::layer()
                    .with_writer(std::io::stderr)
                    .with_ansi(colours)
                    .with_target(false)
                    .boxed()
            }
            LogFormat::Json => fmt::layer()
                .json()
                .flatten_event(true)
                .with_writer(std::io::stderr)
                .with_target(false)
                .with_current_span(false)
                .with_span_list(false)
                .boxed(),
        };
        let subscriber = Registry::default().with(layer.with_filter(filter));
        // Tests run several commands in one process; the first one's format stays.
        if tracing::subscriber::set_global_default(subscriber).is_ok() {
            FOR_MACHINES.store(self.log == LogFormat::Json, Ordering::Relaxed);
        }
    }
}
