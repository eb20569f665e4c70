//! Identities for caches: unlike an address, an identity is never used again within a process.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Unique within a process. Copies with the same content may share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity(usize);

impl Identity {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        Identity(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}
