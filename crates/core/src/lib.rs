//! The algorithm of SoteriaFL.

pub mod data;
pub mod linalg;
pub mod objective;
