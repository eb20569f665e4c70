//! Process-unique ids, for caches: unlike an address, an id is never reused.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Given once in the life of a process. Copies with the same content may share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity(usize);

impl Identity {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        Identity(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}
