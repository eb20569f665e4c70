//! What a coordinator shows of its run: a live page, numbers for machines, and whether it is well.
//!
//! ```text
//! coordinator -> Feed (in memory, O(1) per event) -> page (server-sent events), /api/status, /metrics
//! ```
//!
//! The coordinator calls [`Feed`], which never waits and never fails; after a restart it gives the stored
//! rounds to [`Feed::restore`]. [`serve`] answers `GET /` (the page), `/events`, `/api/status`, `/metrics`
//! and `/healthz`. Everything is read-only and public within the run: rounds, traffic, who is
//! behind or away, the
//! metrics of the server's own test set, and the epsilon that the run's rules imply. Nobody needs to log
//! in, so it belongs on loopback or behind something that asks who is there.
//!
//! Costs: a viewer gets one event a second at most, the same bytes for all viewers; the page shows the
//! [`ROWS`] clients that are furthest behind and counts the rest; curves keep at most [`POINTS`] points.

mod feed;
mod http;
mod metrics;
mod status;
mod waiting;

pub use feed::Feed;
pub use http::{DashboardError, Options, Running, serve};
pub use status::{About, Client, POINTS, Phase, Point, ROWS, Snapshot, Status, Summary};
pub use waiting::{Awaited, Waiting};
