//! Networked runs by real processes on loopback: with TLS, killed, refused, finished.

mod certificates;
mod consent;
mod disk;
mod floods;
mod kills;
mod operation;
mod parties;
mod reports;
mod runs;
mod waiting;
