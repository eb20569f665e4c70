//! The program `soteria`: arguments in, exit code out.

mod command;
mod logs;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use command::{Failure, Verbosity};
use logs::{LogFormat, LogOptions};

/// Private federated learning with compressed communication
#[derive(Parser, Debug)]
#[command(name = "soteria", version, max_term_width = 100)]
struct Arguments {
    /// Print nothing but errors and what was asked for: --json, or the answer of a command that
    /// gives one
    #[arg(long, short, global = true, display_order = 1000)]
    quiet: bool,
    /// Say more
    #[arg(long, short, global = true, display_order = 1000)]
    verbose: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    Train(command::train::Options),
    Serve(command::serve::Options),
    Join(command::join::Options),
    Ledger(command::ledger::Options),
    Report(command::report::Options),
    Compare(command::compare::Options),
    Reproduce(command::reproduce::Options),
    Plan(command::plan::Options),
    Audit(command::audit::Options),
    Account(command::account::AccountOptions),
    Calibrate(command::account::CalibrateOptions),
    Schema(command::schema::Options),
    Predict(command::predict::Options),
    Evaluate(command::evaluate::Options),
    Bench(command::bench::Options),
    Data(command::data::Options),
    Keys(command::keys::Options),
    Completions(command::completions::Options),
}

fn main() -> ExitCode {
    if std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty()) {
        console::set_colors_enabled(false);
        console::set_colors_enabled_stderr(false);
    }
    let arguments = match Arguments::try_parse_from(words()) {
        Ok(arguments) => arguments,
        Err(error) => return usage(&error),
    };
    let verbosity = Verbosity {
        quiet: arguments.quiet,
        verbose: arguments.verbose,
    };
    let result = match &arguments.command {
        Command::Train(options) => command::train::run(options, verbosity),
        Command::Serve(options) => command::serve::run(options, verbosity),
        Command::Join(options) => command::join::run(options, verbosity),
        Command::Ledger(options) => command::ledger::run(options, verbosity),
        Command::Report(options) => command::report::run(options, verbosity),
        Command::Compare(options) => command::compare::run(options, verbosity),
        Command::Reproduce(options) => command::reproduce::run(options, verbosity),
        Command::Plan(options) => command::plan::run(options, verbosity),
        Command::Audit(options) => command::audit::run(options, verbosity),
        Command::Account(options) => command::account::account(options, verbosity),
        Command::Calibrate(options) => command::account::calibrate(options, verbosity),
        Command::Schema(options) => command::schema::run(options, verbosity),
        Command::Predict(options) => command::predict::run(options, verbosity),
        Command::Evaluate(options) => command::evaluate::run(options, verbosity),
        Command::Bench(options) => command::bench::run(options, verbosity),
        Command::Data(options) => command::data::run(options, verbosity),
        Command::Keys(options) => command::keys::run(options, verbosity),
        Command::Completions(options) => command::completions::run::<Arguments>(options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            explain(&failure);
            ExitCode::from(failure.code())
        }
    }
}

/// Help and version go to stdout with code 0; a wrong command line is one line and code 2.
fn usage(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    if error.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        let _ = Arguments::command().write_long_help(&mut std::io::stderr());
        return ExitCode::from(2);
    }
    let text = error.to_string();
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let mut first = lines
        .next()
        .unwrap_or("error: wrong command line")
        .to_string();
    // A list of arguments stands on lines of its own; an error is one line.
    let mut lines = lines.peekable();
    if first.ends_with(':') {
        while let Some(item) = lines.next_if(|line| line.starts_with(['-', '<', '['])) {
            first = first + " " + item;
        }
    }
    let tips = lines.take_while(|line| !line.starts_with("Usage"));
    let tips = tips.collect::<Vec<_>>().join(" ").replace("tip: ", "");
    let see = format!("see `{}`", help_command(words().iter().skip(1)));
    let hint = if tips.is_empty() {
        see
    } else {
        format!("{tips}; {see}")
    };
    if asks_for_json() {
        // Nothing has been set up yet: the command line was not understood.
        let verbosity = Verbosity {
            quiet: true,
            verbose: false,
        };
        LogOptions {
            log: LogFormat::Json,
        }
        .init(verbosity);
        tracing::error!(code = 2, hint, "{}", first.trim_start_matches("error: "));
        return ExitCode::from(2);
    }
    command::complain(format_args!("{first}"));
    command::complain(format_args!("hint: {hint}"));
    ExitCode::from(2)
}

/// What shows the help for a command line: that of the command it names, `soteria help` if it names
/// none.
fn help_command<'a>(words: impl Iterator<Item = &'a std::ffi::OsString>) -> String {
    let mut command = &Arguments::command();
    let mut path = "soteria".to_string();
    for word in words.filter(|word| !word.as_encoded_bytes().starts_with(b"-")) {
        let Some(inner) = command.find_subcommand(word) else {
            break;
        };
        command = inner;
        path = format!("{path} {}", inner.get_name());
    }
    match command.get_name() {
        "soteria" => "soteria help".to_string(),
        _ => format!("{path} --help"),
    }
}

/// Whether a command line that was not understood has `--log json` in it.
fn asks_for_json() -> bool {
    let arguments: Vec<_> = std::env::args_os().collect();
    arguments.iter().any(|argument| argument == "--log=json")
        || arguments
            .windows(2)
            .any(|pair| pair[0] == "--log" && pair[1] == "json")
}

fn explain(failure: &Failure) {
    // Errors in a file of records are several, on lines of their own.
    let messages = failure.message().split("\nerror: ");
    let hints = failure.hints();
    if logs::for_machines() {
        let hint = (!hints.is_empty()).then(|| hints.join("; "));
        let message = messages.collect::<Vec<_>>().join("; ");
        tracing::error!(code = failure.code(), hint, "{message}");
        return;
    }
    let label = console::style("error:").red().bold().for_stderr();
    for message in messages {
        command::complain(format_args!("{label} {}", one_line(message)));
    }
    for hint in hints {
        command::complain(format_args!("hint: {}", one_line(hint)));
    }
}

/// An error is one line, whatever names and values it quotes.
fn one_line(message: &str) -> String {
    let escape = |c: char| match c.is_control() {
        true => c.escape_default().to_string(),
        false => c.to_string(),
    };
    message.chars().map(escape).collect()
}

/// The command line; `soteria help --help` asks for no more than `soteria help`.
fn words() -> Vec<std::ffi::OsString> {
    let mut words: Vec<_> = std::env::args_os().collect();
    if words.get(1).is_some_and(|word| word == "help") {
        words.retain(|word| word != "--help" && word != "-h");
    }
    words
}
