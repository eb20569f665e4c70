//! The algorithm of SoteriaFL.

pub mod data;
