//! The protocol in code: generated from `proto/soteria.proto` and committed, so that building needs
//! no compiler for it (`tests/generated.rs` keeps both in step).

#[allow(missing_docs, clippy::all, unused_qualifications)]
#[rustfmt::skip]
mod generated;

pub use generated::*;

use soteriafl_core::preliminary;

/// Where a client without a certificate says who it is: loopback only.
pub const CLIENT_METADATA: &str = "soteria-client";

impl Average {
    /// The average of a release, as it travels.
    pub fn of(number: u32, average: &preliminary::Average) -> Self {
        Self {
            number,
            noise: average.noise,
            values: crate::to_bytes(&average.values).into(),
        }
    }

    /// What came; `None` if the bytes are no numbers.
    pub fn read(&self) -> Option<preliminary::Average> {
        Some(preliminary::Average {
            values: crate::from_bytes(&self.values)?,
            noise: self.noise,
        })
    }
}
