//! The algorithm of SoteriaFL.

pub mod privacy;
