//! What a coordinator shows of its run: a live page, numbers for machines, and whether it is well.
//!
//! ```text
//! service, coordinator, recorder -> FeedWriter -> Feed -> page (server-sent events)
//!                                                      -> /api/status, /metrics, /healthz
//! ```
//!
//! A [`FeedWriter`] is the one place where events of a run become what is shown. [`serve`] answers
//! `GET /` (the page), `/events`, `/api/status`, `/metrics` and `/healthz` from its [`Feed`].
//! Everything is read-only and public within the run: rounds, traffic, who is behind or away, the
//! metrics of the server's own test set, and the epsilon that the run's rules imply. There is no
//! login, so it belongs on loopback or behind a proxy that authenticates.
//!
//! Costs: a viewer gets one event a second at most, the same bytes for all viewers; the page shows
//! the [`ROWS`] clients that are furthest behind and counts the rest; curves keep at most
//! [`POINTS`] points.

mod feed;
mod http;
mod metrics;
mod status;
mod waiting;
mod writer;

pub use feed::Feed;
pub use http::{DashboardError, Options, Running, serve};
pub use status::{About, Client, POINTS, Phase, Point, ROWS, Snapshot, Status, Summary};
pub use waiting::{Awaited, Waiting};
pub use writer::FeedWriter;
