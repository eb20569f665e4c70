//! The whole program from outside: arguments in; files, streams and exit codes out.

mod account;
mod audit;
mod data;
mod digits;
mod evaluate;
mod experiments;
mod failures;
mod golden;
mod gossip;
mod interrupted;
mod keys;
mod numbers;
mod plan;
mod program;
mod readme;
mod tables;
mod train;
mod training;
mod variants;
mod words;
