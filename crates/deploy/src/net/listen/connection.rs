//! One accepted connection, and the registry of those that are open.
//!
//! A client's connections are closed from this side when it opens too many or its certificate is
//! revoked: the registry drops a sender, and the connection's next read fails.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use soteriafl_core::protocol::ClientId;
use tokio::io::{AsyncRead, AsyncWrite, BufReader, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;

use super::super::identity::{Fingerprint, Identity};
use super::Peer;
use crate::accept::ConnectionCounters;

/// The open connections of every client, oldest first; dropping a sender closes its connection.
#[derive(Default)]
pub(super) struct Registry {
    clients: Mutex<HashMap<ClientId, VecDeque<Open>>>,
    next: AtomicU64,
}

struct Open {
    number: u64,
    fingerprint: Fingerprint,
    _close: oneshot::Sender<()>,
}

impl Registry {
    /// Notes a connection; the returned entry forgets it when dropped.
    pub(super) fn enter(
        self: &Arc<Self>,
        identity: Identity,
        most: usize,
    ) -> (Entry, oneshot::Receiver<()>) {
        let (close, closed) = oneshot::channel();
        let Identity {
            client,
            fingerprint,
        } = identity;
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let mut clients = self.lock();
        let open = clients.entry(client).or_default();
        while open.len() >= most.max(1) {
            tracing::debug!(client, "closing the oldest of too many connections");
            open.pop_front();
        }
        open.push_back(Open {
            number,
            fingerprint,
            _close: close,
        });
        let entry = Entry {
            registry: Arc::clone(self),
            client,
            number,
        };
        (entry, closed)
    }

    pub(super) fn close(&self, condition: impl Fn(&Identity) -> bool) {
        for (&client, open) in self.lock().iter_mut() {
            open.retain(|open| {
                !condition(&Identity {
                    client,
                    fingerprint: open.fingerprint,
                })
            });
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<ClientId, VecDeque<Open>>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) struct Entry {
    registry: Arc<Registry>,
    client: ClientId,
    number: u64,
}

impl Drop for Entry {
    fn drop(&mut self) {
        let mut clients = self.registry.lock();
        if let Some(open) = clients.get_mut(&self.client) {
            open.retain(|open| open.number != self.number);
            if open.is_empty() {
                clients.remove(&self.client);
            }
        }
    }
}

/// One accepted connection.
pub struct Connection {
    transport: Transport,
    peer: Peer,
    closing: Closing,
    _held: Held,
}

/// Whether this side is to close a connection.
enum Closing {
    /// Never: without TLS the client is not known.
    Never,
    /// When the sender is dropped.
    Waits(oneshot::Receiver<()>),
    /// Now.
    Now,
}

/// What a connection occupies until it is dropped.
struct Held {
    _slot: OwnedSemaphorePermit,
    _entry: Option<Entry>,
    counters: Arc<ConnectionCounters>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.counters.open.fetch_sub(1, Ordering::Relaxed);
    }
}

pub(super) enum Transport {
    Plain(TcpStream),
    Tls(Box<TlsStream<BufReader<TcpStream>>>),
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

impl Connection {
    /// A connection that occupies `slot`. With TLS it has an entry in the registry, and is closed
    /// when the sender of `closed` is dropped.
    pub(super) fn new(
        transport: Transport,
        peer: Peer,
        slot: OwnedSemaphorePermit,
        registered: Option<(Entry, oneshot::Receiver<()>)>,
        counters: Arc<ConnectionCounters>,
    ) -> Self {
        let (entry, closed) = registered.unzip();
        counters.open.fetch_add(1, Ordering::Relaxed);
        Self {
            transport,
            peer,
            closing: closed.map_or(Closing::Never, Closing::Waits),
            _held: Held {
                _slot: slot,
                _entry: entry,
                counters,
            },
        }
    }

    /// Who is at the other end.
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// An error once the connection is to be closed from this side.
    fn check_open(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        if let Closing::Waits(closed) = &mut self.closing
            && Pin::new(closed).poll(context).is_ready()
        {
            self.closing = Closing::Now;
        }
        match self.closing {
            Closing::Now => Err(io::ErrorKind::ConnectionAborted.into()),
            _ => Ok(()),
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Err(error) = self.check_open(context) {
            return Poll::Ready(Err(error));
        }
        match &mut self.transport {
            Transport::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Transport::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.transport {
            Transport::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Transport::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.transport {
            Transport::Plain(stream) => Pin::new(stream).poll_flush(context),
            Transport::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.transport {
            Transport::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Transport::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
