//! The objectives against naive `f64` arithmetic: finite differences, explicit gradients, and every
//! shortcut (ghost norms, selected coordinates, offsets, sparse rows, batches) against the long
//! way.

mod cases;
#[path = "../common/mod.rs"]
mod common;
mod gradients;
mod norms;
mod sums;
