//! The algorithm of SoteriaFL.
