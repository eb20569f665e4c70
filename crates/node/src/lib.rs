//! The parts of the program `soteria` that tests and other drivers call directly.

pub mod report;
