//! Accepted connections at bounded cost, in the form in which tonic serves them.
//!
//! ```text
//! TCP accept -> handshake (bounded in number and time) -> Connection with its Peer -> tonic
//! ```
//!
//! Strangers can hold at most [`Limits::handshakes`] half-open connections for at most
//! [`Limits::handshake_timeout`]. When there are more, newcomers wait in the kernel's queue until
//! one is done or the oldest has had [`Limits::grace`], and then goes: silent peers that stay,
//! however many, cannot keep out a client whose handshake takes milliseconds, nor can a crowd of
//! clients that come at once. Strangers who come anew, more than [`Limits::handshakes`] every
//! [`Limits::grace`], do keep the queue full; they cost no memory, but time: that takes a firewall.
//! Whoever has shown a certificate can hold [`Limits::per_client`] connections; one more closes its
//! oldest, which after a network failure is the dead one. In all there are [`Limits::connections`].
//!
//! Every request carries its [`Peer`] (`request.extensions().get::<Peer>()`). A revoked client is
//! refused in the handshake, by [`Peer::permitted`] on an open connection, and its connections are
//! closed within [`SWEEP`].

mod connection;

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use soteriafl_core::protocol::ClientId;
use tokio::io::BufReader;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::{AbortHandle, JoinHandle, JoinSet};
use tokio_rustls::TlsAcceptor;
use tokio_stream::Stream;

use super::identity::{Identity, Revocations};
use super::tls::ServerTls;
use crate::accept::{Backoff, ConnectionCounters};
use crate::log_quota;
pub use connection::Connection;
use connection::{Registry, Transport};

/// How often open connections are compared with the list of revoked certificates.
pub const SWEEP: Duration = Duration::from_secs(1);

/// Bytes that are read from a client at a time; TLS by itself asks for 4 KB.
const READ_AHEAD: usize = 16 << 10;

/// How connections are protected.
#[derive(Clone, Debug)]
pub enum Security {
    /// TLS 1.3, certificates on both sides.
    Tls(ServerTls),
    /// None at all: loopback only.
    Plain,
}

/// What peers may cost.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Open connections.
    pub connections: usize,
    /// Open connections of one client.
    pub per_client: usize,
    /// Handshakes under way.
    pub handshakes: usize,
    /// How long a handshake may take.
    pub handshake_timeout: Duration,
    /// How long it is left alone while others wait.
    pub grace: Duration,
}

impl Limits {
    /// For a run of so many clients: room for each of them twice, and some.
    pub fn for_clients(clients: usize) -> Self {
        Self {
            connections: 2 * clients + 64,
            per_client: 4,
            // All clients may come at once, for example after a restart of the server.
            handshakes: (clients + 64).clamp(512, 4096),
            handshake_timeout: Duration::from_secs(30),
            grace: Duration::from_secs(2),
        }
    }
}

/// Why the server cannot listen.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// The address is taken or not ours.
    #[error("cannot listen on {address}: {error}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// Why.
        error: io::Error,
    },
    /// Plain text on an address that others can reach.
    #[error("without TLS only loopback addresses are listened on, not {0}")]
    PlainAbroad(SocketAddr),
}

/// Who is at the other end.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Where from.
    pub address: SocketAddr,
    /// As the certificate says; `None` without TLS.
    pub identity: Option<Identity>,
    revocations: Option<Revocations>,
}

impl Peer {
    /// Somebody on this machine, without TLS.
    pub fn plain(address: SocketAddr) -> Self {
        Self {
            address,
            identity: None,
            revocations: None,
        }
    }

    /// The client that the certificate names; `None` without TLS.
    pub fn client(&self) -> Option<ClientId> {
        self.identity.map(|identity| identity.client)
    }

    /// Whether its certificate is still good: to be asked for every request.
    pub fn permitted(&self) -> bool {
        match (&self.identity, &self.revocations) {
            (Some(identity), Some(revocations)) => !revocations.contains(&identity.fingerprint),
            _ => true,
        }
    }
}

/// Accepted connections, to be given to `tonic::transport::server::Router::serve_with_incoming`.
///
/// Dropping it stops the listening; connections already given out live on.
pub struct Incoming {
    connections: mpsc::Receiver<Connection>,
    counters: Arc<ConnectionCounters>,
    task: JoinHandle<()>,
}

impl Incoming {
    /// Counts of connections, for the metrics.
    pub fn counters(&self) -> Arc<ConnectionCounters> {
        Arc::clone(&self.counters)
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Stream for Incoming {
    type Item = io::Result<Connection>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.connections
            .poll_recv(context)
            .map(|connection| connection.map(Ok))
    }
}

/// Begins to listen; returns the address, whose port may have been 0 before.
///
/// # Errors
/// When the address cannot be had, or plain text would leave the machine.
pub async fn listen(
    address: SocketAddr,
    security: Security,
    limits: Limits,
) -> Result<(SocketAddr, Incoming), ListenError> {
    if matches!(security, Security::Plain) && !address.ip().is_loopback() {
        return Err(ListenError::PlainAbroad(address));
    }
    let wrap = |error| ListenError::Bind { address, error };
    let listener = TcpListener::bind(address).await.map_err(wrap)?;
    let bound = listener.local_addr().map_err(wrap)?;
    // A short queue: behind it the kernel's own queue fills, and peers wait instead of memory
    // growing.
    let (sender, connections) = mpsc::channel(64);
    let counters = Arc::new(ConnectionCounters::default());
    let acceptor = Acceptor {
        security,
        limits,
        sender,
        slots: Arc::new(Semaphore::new(limits.connections)),
        registry: Arc::default(),
        counters: Arc::clone(&counters),
    };
    let incoming = Incoming {
        connections,
        counters,
        task: tokio::spawn(acceptor.run(listener)),
    };
    Ok((bound, incoming))
}

/// Everything that accepting needs.
#[derive(Clone)]
struct Acceptor {
    security: Security,
    limits: Limits,
    sender: mpsc::Sender<Connection>,
    slots: Arc<Semaphore>,
    registry: Arc<Registry>,
    counters: Arc<ConnectionCounters>,
}

impl Acceptor {
    async fn run(self, listener: TcpListener) {
        let mut tasks = JoinSet::new();
        let mut order = VecDeque::new();
        let mut sweep = tokio::time::interval(SWEEP);
        let mut backoff = Backoff::default();
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                _ = sweep.tick() => {
                    self.sweep();
                    continue;
                }
                Some(_) = tasks.join_next() => continue,
            };
            match accepted {
                Ok((stream, address)) => {
                    backoff.reset();
                    self.counters.accepted.fetch_add(1, Ordering::Relaxed);
                    self.make_room(&mut tasks, &mut order).await;
                    let handle = tasks.spawn(self.clone().handshake_and_admit(stream, address));
                    order.push_back((Instant::now(), handle));
                }
                Err(error) => backoff.wait(&error, "cannot accept a connection").await,
            }
        }
    }

    /// Returns when another handshake may begin; `order` has those under way, oldest first.
    async fn make_room(
        &self,
        tasks: &mut JoinSet<()>,
        order: &mut VecDeque<(Instant, AbortHandle)>,
    ) {
        loop {
            while order
                .front()
                .is_some_and(|(_, handle)| handle.is_finished())
            {
                order.pop_front();
            }
            if order.len() >= self.limits.handshakes.max(1) {
                order.retain(|(_, handle)| !handle.is_finished());
            }
            if order.len() < self.limits.handshakes.max(1) {
                return;
            }
            let Some((since, oldest)) = order.front() else {
                return;
            };
            let left = self.limits.grace.saturating_sub(since.elapsed());
            if left.is_zero() {
                oldest.abort();
                order.pop_front();
                self.counters.dropped.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            tokio::select! {
                _ = tasks.join_next() => {}
                () = tokio::time::sleep(left) => {}
            }
        }
    }

    async fn handshake_and_admit(self, stream: TcpStream, address: SocketAddr) {
        let _ = stream.set_nodelay(true);
        let transport = match &self.security {
            Security::Plain => Ok(Transport::Plain(stream)),
            Security::Tls(tls) => {
                let stream = BufReader::with_capacity(READ_AHEAD, stream);
                let handshake = TlsAcceptor::from(Arc::clone(&tls.config)).accept(stream);
                match tokio::time::timeout(self.limits.handshake_timeout, handshake).await {
                    Ok(result) => result.map(|stream| Transport::Tls(Box::new(stream))),
                    Err(_) => {
                        self.counters.dropped.fetch_add(1, Ordering::Relaxed);
                        tracing::debug!(%address, "handshake timed out");
                        return;
                    }
                }
            }
        };
        let transport = match transport {
            Ok(transport) => transport,
            Err(error) => {
                self.counters.refused.fetch_add(1, Ordering::Relaxed);
                if log_quota::may_say("handshake refused", None) {
                    tracing::info!(%address, %error, "handshake refused");
                } else {
                    tracing::debug!(%address, %error, "handshake refused");
                }
                return;
            }
        };
        let Some(connection) = self.admit(transport, address) else {
            self.counters.refused.fetch_add(1, Ordering::Relaxed);
            return;
        };
        // Nobody takes connections any more when this fails: the server is going down.
        let _ = self.sender.send(connection).await;
    }

    fn admit(&self, transport: Transport, address: SocketAddr) -> Option<Connection> {
        let (identity, revocations) = match (&transport, &self.security) {
            (Transport::Tls(stream), Security::Tls(tls)) => {
                let certificate = stream.get_ref().1.peer_certificates()?.first()?;
                let identity = Identity::of(certificate).ok()?;
                (Some(identity), Some(tls.revocations.clone()))
            }
            _ => (None, None),
        };
        let peer = Peer {
            address,
            identity,
            revocations,
        };
        // Before an older connection is closed: without a free slot nothing may be closed in vain.
        let Ok(slot) = Arc::clone(&self.slots).try_acquire_owned() else {
            if log_quota::may_say("no room for another connection", peer.client()) {
                tracing::warn!(%address, client = peer.client(), "no room for another connection");
            }
            return None;
        };
        let registered =
            identity.map(|identity| self.registry.enter(identity, self.limits.per_client));
        let counters = Arc::clone(&self.counters);
        Some(Connection::new(transport, peer, slot, registered, counters))
    }

    fn sweep(&self) {
        log_quota::tell_left_out();
        if let Security::Tls(tls) = &self.security {
            let revoked = tls.revocations.current();
            if !revoked.is_empty() {
                self.registry
                    .close(|identity| revoked.contains(&identity.fingerprint));
            }
        }
    }
}
