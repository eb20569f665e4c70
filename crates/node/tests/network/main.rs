//! Networked runs by real processes on loopback: with TLS, killed, refused, finished.

mod consent;
mod kills;
mod operation;
mod parties;
mod reports;
mod runs;
