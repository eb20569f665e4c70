//! The protocol in code: generated from `proto/soteria.proto` and committed, so that building needs
//! no compiler for it (`tests/generated.rs` keeps both in step).

#[allow(missing_docs, clippy::all, unused_qualifications)]
#[rustfmt::skip]
mod generated;

pub use generated::*;

/// Where a client without a certificate says who it is: loopback only.
pub const CLIENT_METADATA: &str = "soteria-client";
