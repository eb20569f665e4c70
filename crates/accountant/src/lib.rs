//! Differential-privacy accounting for SoteriaFL.

pub mod event;

pub mod amplification;
pub mod paper;
pub mod rdp;
