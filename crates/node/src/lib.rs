//! The parts of the program `soteria` that tests and other drivers call directly.

pub mod accounting;
pub mod advice;
pub mod command;
pub mod comparison;
pub mod config;
pub mod dashboard;
pub mod deploy;
pub mod experiment;
pub mod fetch;
pub mod logs;
pub mod model_file;
pub mod net;
pub mod output;
pub mod planning;
pub mod problem;
pub mod report;
pub mod reproduce;
pub mod run;
pub mod words;
