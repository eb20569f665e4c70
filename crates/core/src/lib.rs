//! The algorithm of SoteriaFL.

pub mod random;
pub mod sampling;
