//! The whole program from outside: arguments in; files, streams and exit codes out.

mod failures;
mod program;
mod train;
mod variants;
