//! The network below the protocol: who may speak, and over what.
//!
//! - [`keys`] makes and reads the files of a private certificate authority (`soteria keys`);
//! - [`identity`] says which client a certificate stands for, and whether it is revoked;
//! - [`tls`] turns those files into TLS 1.3 configurations with certificates on both sides;
//! - [`listen`] accepts connections at bounded cost, ready to be served by tonic;
//! - [`dial`] makes a client's channel to a server.
//!
//! What is said over a connection is not known here.

pub mod dial;
pub mod identity;
pub mod keys;
pub mod listen;
pub mod tls;
