//! `soteria completions`: shell completions.

use clap::CommandFactory;

/// Print a completion script for a shell
#[derive(clap::Args, Debug)]
pub struct Options {
    /// The shell
    #[arg(value_enum)]
    shell: clap_complete::Shell,
}

/// Runs the command.
pub fn run<C: CommandFactory>(options: &Options) {
    clap_complete::generate(options.shell, &mut C::command(), "soteria", &mut std::io::stdout());
}
