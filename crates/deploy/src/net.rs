//! The network: certificates, connections and remote calls.
//!
//! - [`keys`] makes and reads the files of a private certificate authority (`soteria keys`);
//! - [`identity`] says which client a certificate stands for, and whether it is revoked;
//! - [`tls`] turns those files into TLS 1.3 configurations with certificates on both sides;
//! - [`term`] says when one's own certificate ends;
//! - [`listen`] accepts connections at bounded cost, ready to be served by tonic;
//! - [`connect`] makes a client's channel to a server.
//!
//! These know nothing of the protocol. On top of them are the parts that do:
//!
//! - [`rpc`] is the protocol in code, generated from `proto/soteria.proto`;
//! - [`actor`] gives the coordinator a thread and a queue, and [`grpc`] forwards clients' calls to
//!   it;
//! - [`client`] is a client's side.

pub mod actor;
pub mod client;
pub mod connect;
pub mod grpc;
pub mod identity;
pub mod join;
pub mod keys;
pub mod listen;
pub mod rpc;
pub mod term;
pub mod tls;

use std::time::Duration;

/// A connection on which nothing has come for so long is probed by either side.
pub const ASKED_AFTER: Duration = Duration::from_secs(10);

/// How long the answer may take. A machine that is gone without a word is thus noticed within half
/// a minute; a connection that is closed, as that of a process that was killed, is noticed at once.
pub const ANSWERS_WITHIN: Duration = Duration::from_secs(20);

/// Lets this process open as many connections as the system allows at all; the usual limit of 1,024
/// files is from times when nobody had so many.
pub fn raise_file_limit() {
    #[cfg(unix)]
    {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let limit = getrlimit(Resource::Nofile);
        let most = Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        };
        if limit.current != limit.maximum && setrlimit(Resource::Nofile, most).is_err() {
            tracing::warn!("the limit on open files stays at {:?}", limit.current);
        }
    }
}
