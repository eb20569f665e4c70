//! What keeps a record private.

pub mod secure;
