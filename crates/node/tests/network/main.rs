//! Networked runs by real processes on loopback: with TLS, killed, refused, finished.

mod certificates;
mod disk;
mod floods;
mod kills;
mod operation;
mod parties;
mod runs;
mod waiting;
