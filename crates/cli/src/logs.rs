//! Structured logs of the long-running commands, on stderr.
//!
//! One line per event: plain text for people, one JSON object with `--log json` for machines. Then
//! everything else on stderr is an event, too: announcements, costs, warnings, and the error at the
//! end. A log holds sizes, rounds, numbers of clients and addresses, never a gradient, a noise
//! value or a key, nor a record: of a file that cannot be read it tells place and kind of a fault;
//! only text for people quotes what stands there.
//!
//! What others can cause is written a few times a minute and otherwise counted: each library's
//! lines ([`LibrariesSparingly`]), and this program's own about clients and strangers
//! ([`may_say`]).

mod reminder;

use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, Ordering};

use tracing::Metadata;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::writer::OptionalWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::{Layer, Registry, fmt};

use crate::command::Verbosity;
pub use reminder::Reminder;
use soteriafl_deploy::log_quota::may_say;

/// The crates whose events are this program's own.
const OWN: [&str; 3] = ["soteria", "soteriafl", "soteriafl_deploy"];

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
            .with_targets(OWN.map(|name| (name, own)));
        let layer = match self.log {
            LogFormat::Plain => {
                let colours = std::io::stderr().is_terminal() && console::colors_enabled_stderr();
                fmt::layer()
                    .with_writer(LibrariesSparingly(std::io::stderr))
                    .with_ansi(colours)
                    .with_target(false)
                    .boxed()
            }
            LogFormat::Json => fmt::layer()
                .json()
                .flatten_event(true)
                .with_writer(LibrariesSparingly(std::io::stderr))
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

/// Lets few lines of each library pass: with connections that are reset at once, any holder of a
/// certificate can have the HTTP library complain thousands of times. It stands where lines are
/// written and not among the filters, which cannot take back that an event was let through.
struct LibrariesSparingly<M>(M);

impl<'a, M: MakeWriter<'a>> MakeWriter<'a> for LibrariesSparingly<M> {
    type Writer = OptionalWriter<M::Writer>;

    fn make_writer(&'a self) -> Self::Writer {
        OptionalWriter::some(self.0.make_writer())
    }

    fn make_writer_for(&'a self, event: &Metadata<'_>) -> Self::Writer {
        let library = library(event.target());
        match OWN.contains(&library) || may_say(library, None) {
            true => OptionalWriter::some(self.0.make_writer_for(event)),
            false => OptionalWriter::none(),
        }
    }
}

/// The library that a module belongs to.
fn library(target: &str) -> &str {
    target.split("::").next().unwrap_or(target)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    use soteriafl_deploy::log_quota::PER_MINUTE;

    use super::*;

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_library_may_say_little_and_this_program_all() {
        let written = Written::default();
        let writer = written.clone();
        let writer = LibrariesSparingly(move || writer.clone());
        let layer = fmt::layer().with_writer(writer);
        let targets = Targets::new().with_default(LevelFilter::WARN);
        let subscriber = Registry::default().with(layer.with_filter(targets));
        tracing::subscriber::with_default(subscriber, || {
            for _ in 0..500 {
                tracing::warn!(target: "noisy_library::streams", "reset");
                tracing::warn!(target: "noisy_library::frames", "reset");
                tracing::warn!(target: "noisy_library", "reset");
                tracing::warn!(target: "soteriafl_deploy::net", "our own");
            }
        });
        let text = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
        let lines = |what: &str| text.lines().filter(|line| line.contains(what)).count();
        assert_eq!(lines("noisy_library") as u32, PER_MINUTE);
        assert_eq!(lines("our own"), 500);
    }
}
