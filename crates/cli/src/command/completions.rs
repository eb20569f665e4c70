//! `soteria completions`: shell completions.

use clap::CommandFactory;

use super::{Failure, print};

/// Print a completion script for a shell
#[derive(clap::Args, Debug)]
pub struct Options {
    /// The shell
    #[arg(value_enum)]
    shell: clap_complete::Shell,
}

/// Runs the command.
///
/// # Errors
/// When stdout cannot be written.
pub fn run<C: CommandFactory>(options: &Options) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(options.shell, &mut C::command(), "soteria", &mut script);
    print(&String::from_utf8_lossy(&script))
}
