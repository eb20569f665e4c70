//! Networked runs by real processes on loopback: with TLS, killed, refused, finished.

mod kills;
mod operation;
mod parties;
mod reports;
mod runs;
