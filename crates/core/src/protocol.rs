//! One client and one server, as pure state machines: Algorithm 1 with its privacy and wire.
//!
//! ```text
//!         client i                                                        server
//!  x^t ->  which coordinates travel        (fresh, after x^t is known)
//!          noise of the round              (drawn before data is touched)
//!          estimate, each record clipped
//!          release = estimate + noise
//!          v_i = C(release - s_i)          --- bytes of v_i --->   v = s + sum_i w_i v_i
//!          s_i += gamma v_i                (when the server has added it) x^{t+1} = x^t - eta v
//!                                                                         s += gamma sum_i w_i v_i
//! ```
//!
//! What goes down is the average, from which everybody takes the same step; or, compressed, how far
//! the server's model is from the one that everybody holds (`broadcast`).
//!
//! No clock, no socket, no file, no thread, no global randomness: numbers and bytes in, numbers and
//! bytes out. The simulator and the network drive the same two types, and with the same keys both
//! give the same bits.

mod broadcast;
mod client;
mod equalize;
mod server;
mod smooth;

pub use client::{
    Client, ClientError, ClientPlan, ClientState, Estimator, Message, RoundScratch,
    suits_secure_noise,
};
pub use equalize::{Equalizing, ParameterBlock};
pub use server::{RoundSummary, Schedule, Server, ServerError, ServerPlan, ServerState};
pub use smooth::Smoothing;

/// Number of a round, from 0.
pub type Round = u32;

/// Number of a client, from 0.
pub type ClientId = u32;

/// The paper's shift step `gamma = sqrt((1 + 2w) / (2 (1 + w)^3))` (Theorem 2).
pub fn shift_step(omega: f64) -> f64 {
    ((1.0 + 2.0 * omega) / (2.0 * (1.0 + omega).powi(3))).sqrt()
}
