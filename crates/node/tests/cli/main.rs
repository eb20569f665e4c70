//! The whole program from outside: arguments in; files, streams and exit codes out.

mod account;
mod data;
mod evaluate;
mod experiments;
mod failures;
mod keys;
mod program;
mod train;
mod training;
mod variants;
