//! Numbers by which things are told apart that may lie at the same address one after the other.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Given once in the life of a process; a copy of the same content may keep it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity(usize);

impl Identity {
    pub(crate) fn new() -> Self {
        static LAST: AtomicUsize = AtomicUsize::new(0);
        Identity(1 + LAST.fetch_add(1, Ordering::Relaxed))
    }

    /// Never zero.
    pub(crate) fn number(self) -> usize {
        self.0
    }
}
