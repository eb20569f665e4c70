//! What the two listeners share, that of clients ([`net`](crate::net)) and that of the
//! [`dashboard`](crate::dashboard): pauses while the system gives no connection, and counts.

use std::io;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use crate::log_quota;

/// Connections of clients, as the metrics show them.
#[derive(Debug, Default)]
pub struct ConnectionCounters {
    /// TCP connections accepted.
    pub accepted: AtomicU64,
    /// Handshakes that failed: strangers, revoked certificates, nonsense.
    pub refused: AtomicU64,
    /// Handshakes that took too long, or gave way to newer ones.
    pub dropped: AtomicU64,
    /// Connections open now.
    pub open: AtomicU64,
}

/// Pauses while nothing can be accepted. The system is out of file descriptors, usually, and
/// waiting is all that helps. Pauses grow while that lasts, and the log has a few lines of it.
pub(crate) struct Backoff(Duration);

/// The first pause and the longest.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

impl Default for Backoff {
    fn default() -> Self {
        Self(BACKOFF.0)
    }
}

impl Backoff {
    /// Waits, longer each time, and logs `what` happened.
    pub(crate) async fn wait(&mut self, error: &io::Error, what: &'static str) {
        if log_quota::may_say(what, None) {
            tracing::warn!(%error, "{what}");
        }
        tokio::time::sleep(self.0).await;
        self.0 = (2 * self.0).min(BACKOFF.1);
    }

    /// Something was accepted.
    pub(crate) fn reset(&mut self) {
        *self = Self::default();
    }
}
