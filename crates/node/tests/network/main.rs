//! Networked runs by real processes on loopback: with TLS, killed, refused, finished.

mod kills;
mod parties;
mod runs;
