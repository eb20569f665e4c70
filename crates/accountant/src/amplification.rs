//! Placeholder header, replaced below.
pub(crate) mod pair;
