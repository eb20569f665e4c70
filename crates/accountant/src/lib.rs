//! Differential-privacy accounting for SoteriaFL.

pub mod event;
