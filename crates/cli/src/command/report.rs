//! `soteria report`: the report of a run, rebuilt from its files.

use std::path::PathBuf;

use super::{Failure, Verbosity};
use soteriafl::output::write_whole;
use soteriafl::report::{self, RunFiles};

/// Rebuild the report of a run from its files
#[derive(clap::Args, Debug)]
pub struct Options {
    /// The run's directory
    directory: PathBuf,
    /// Also write the curves as a static figure
    #[arg(long)]
    svg: bool,
}

/// Runs the command.
///
/// # Errors
/// When the run cannot be read or the report not written.
pub fn run(options: &Options, verbosity: Verbosity) -> Result<(), Failure> {
    let files = RunFiles::read(&options.directory).map_err(Failure::failed)?;
    let mut written = vec![("report.html", report::html(&files))];
    if options.svg {
        written.push(("curves.svg", report::svg(&files)));
    }
    for (name, text) in written {
        let path = options.directory.join(name);
        write_whole(&path, text.as_bytes()).map_err(Failure::at(&path))?;
        verbosity.say(format!("wrote {}", path.display()));
    }
    Ok(())
}
