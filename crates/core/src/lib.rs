//! The algorithm of SoteriaFL.

pub mod compress;
pub mod data;
pub mod estimator;
pub mod linalg;
pub mod objective;
pub mod privacy;
pub mod protocol;
pub mod random;
pub mod sampling;
pub mod simulate;
pub mod theory;
pub mod wire;
