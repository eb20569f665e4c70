//! Differential-privacy accounting for clipped, sampled and compressed gradient methods.
//!
//! ```text
//! Mechanism --release(sigma)--> Release --times(rounds)--> Event
//!                                                            |
//!                     closed form (certain shifts)  <--------+-------->  loss distributions
//!                                                            |
//!                                             epsilon, delta, calibrate, Odometer
//! ```
#![doc = include_str!("../README.md")]

pub mod account;
pub mod amplification;
pub mod assess;
pub mod calibrate;
pub mod event;
mod gaussian;
mod normal;
pub mod odometer;
pub mod paper;
pub mod pld;
pub mod rdp;

pub use account::{AccountError, Cost, cost, delta, epsilon, round_up};
pub use calibrate::{Calibration, calibrate, smallest_sigma};
pub use event::EventError;
pub use odometer::Odometer;
