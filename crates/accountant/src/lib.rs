//! Differential-privacy accounting for clipped, sampled and compressed gradient methods.
//!
//! | read | for |
//! | --- | --- |
//! | [`mechanism`] | what is described: who releases what |
//! | [`estimator`] | each estimator's row of the proof |
//! | [`recursion`] | estimates that the server adds up, and their two levels of noise |
//! | [`question`] | what is asked and answered: cost, calibration, composition, odometer |
//! | `pld`, `gaussian` | how: loss distributions, and the closed form |
//! | [`rdp`] | how: Rényi divergences |
//! | `amplification` | how: what random-k hides |
//! | [`paper`] | the paper's own formula, for comparison |
//!
#![doc = include_str!("../README.md")]

#[macro_use]
mod words;

mod adjacency;
mod amplification;
mod calibrate;
mod cost;
mod error;
pub mod estimator;
mod gaussian;
pub mod mechanism;
mod mixture;
#[doc(hidden)]
pub mod mutation;
mod normal;
mod odometer;
pub mod paper;
mod pld;
pub mod question;
pub mod rdp;
pub mod recursion;
mod rounding;

pub use adjacency::Adjacency;
pub use cost::{Amplification, Cost, Method};
pub use error::{AccountError, EventError, SMALLEST_DELTA};
pub use estimator::{Estimator, EstimatorKind, MEMORY, MeanTerm, Over, SNAPSHOT_PROBABILITY};
pub use gaussian::largest_mu;
pub use mechanism::{ClipScope, Mechanism, RandomK, Release};
pub use mixture::ShiftMixture;
pub use odometer::Odometer;
pub use question::Question;
pub use recursion::{IncrementClip, NoiseLevels, Recursion};
pub use rounding::round_up;
