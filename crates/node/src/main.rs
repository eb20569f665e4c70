//! The program `soteria`.

fn main() {}
