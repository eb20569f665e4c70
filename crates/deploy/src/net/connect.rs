//! A client's channel to its server.
//!
//! The address is `https://HOST[:PORT]`; the server's certificate must be of the client's authority
//! and name HOST. `http://` is for tests on one machine and refused for every other. The channel
//! connects when it is used and again after it broke; each attempt is bounded in time.

use std::error::Error;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use rustls::{AlertDescription, ClientConfig};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, BufReader, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Endpoint, Uri};

/// The port that is meant when an address has none.
pub const DEFAULT_PORT: u16 = 7443;

/// How long one attempt to connect may take, handshake included: a server to which all clients come
/// at once takes its time.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// Bytes that are read from the server at a time; TLS by itself asks for 4 KB.
const READ_AHEAD: usize = 64 << 10;

/// The longest piece in which the server may send an average: each costs it a header, a TLS record
/// and a system call of its own.
const FRAME: u32 = 256 << 10;

/// How a connection is protected.
#[derive(Clone, Debug)]
pub enum Security {
    /// TLS 1.3 with the client's certificate.
    Tls(Arc<ClientConfig>),
    /// None at all: loopback only.
    Plain,
}

/// Why an address cannot be dialled.
#[derive(Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// It is no address.
    #[error("`{0}` is not an address of the form https://HOST:PORT")]
    Address(String),
    /// `http` where TLS is expected, or the other way round.
    #[error("`{address}` should begin with {expected}://")]
    Scheme {
        /// The address.
        address: String,
        /// How it should begin.
        expected: &'static str,
    },
    /// Plain text to another machine.
    #[error("without TLS only this machine is dialled, not `{0}`")]
    PlainAbroad(String),
}

/// An address that was understood, and how to reach it.
#[derive(Clone, Debug)]
pub struct Target {
    host: String,
    port: u16,
    security: Secured,
    /// Whether the address behind the name must be of this machine, too.
    local: bool,
}

#[derive(Clone, Debug)]
enum Secured {
    Tls(TlsTarget),
    Plain,
}

#[derive(Clone, Debug)]
struct TlsTarget {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl Target {
    /// Reads an address.
    ///
    /// # Errors
    /// When it is none, or does not fit the protection.
    pub fn new(address: &str, security: &Security) -> Result<Self, ConnectError> {
        let malformed = || ConnectError::Address(address.to_string());
        let uri: Uri = address.parse().map_err(|_| malformed())?;
        let expected = match security {
            Security::Tls(_) => "https",
            Security::Plain => "http",
        };
        match uri.scheme_str() {
            Some(scheme) if scheme == expected => {}
            Some("http" | "https") => {
                return Err(ConnectError::Scheme {
                    address: address.to_string(),
                    expected,
                });
            }
            _ => return Err(malformed()),
        }
        let bare = matches!(uri.path(), "" | "/") && uri.query().is_none();
        let host = uri.host().filter(|host| !host.is_empty() && bare);
        let host = host
            .ok_or_else(malformed)?
            .trim_start_matches('[')
            .trim_end_matches(']')
            .to_string();
        let security = match security {
            Security::Plain if is_loopback(&host) => Secured::Plain,
            Security::Plain => return Err(ConnectError::PlainAbroad(address.to_string())),
            Security::Tls(config) => Secured::Tls(TlsTarget {
                config: Arc::clone(config),
                name: ServerName::try_from(host.clone()).map_err(|_| malformed())?,
            }),
        };
        Ok(Self {
            host,
            port: uri.port_u16().unwrap_or(DEFAULT_PORT),
            local: matches!(security, Secured::Plain),
            security,
        })
    }

    /// The same, and connections to other machines are given up, whatever `localhost` stands for.
    pub fn only_loopback(self) -> Self {
        Self {
            local: true,
            ..self
        }
    }

    /// Whether the server is on this machine, as far as its name says.
    pub fn is_loopback(&self) -> bool {
        is_loopback(&self.host)
    }

    /// Where to, as an endpoint of tonic, to which time limits and windows can be added.
    pub fn endpoint(&self) -> Endpoint {
        let host = match self.host.contains(':') {
            true => format!("[{}]", self.host),
            false => self.host.clone(),
        };
        // The scheme is about tonic's own TLS, of which nothing is used.
        Endpoint::from_shared(format!("http://{host}:{}", self.port))
            .expect("parts of an address that parsed")
            .connect_timeout(CONNECT_TIMEOUT)
            .max_frame_size(FRAME)
            .tcp_nodelay(true)
    }

    /// A channel that connects when it is first used.
    pub fn channel(&self, endpoint: &Endpoint) -> Channel {
        let target = self.clone();
        endpoint.connect_with_connector_lazy(tower::service_fn(move |_: Uri| {
            let target = target.clone();
            async move { target.open().await }
        }))
    }

    /// One connection, ready for HTTP/2.
    async fn open(&self) -> io::Result<TokioIo<Stream>> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
        stream.set_nodelay(true)?;
        check_peer(self.local, stream.peer_addr()?.ip())?;
        let Secured::Tls(tls) = &self.security else {
            return Ok(TokioIo::new(Stream::Plain(stream)));
        };
        let connector = TlsConnector::from(Arc::clone(&tls.config));
        let stream = BufReader::with_capacity(READ_AHEAD, stream);
        let mut stream = connector.connect(tls.name.clone(), stream).await?;
        // A server judges the client's certificate after the client's handshake is over. Its first
        // bytes, HTTP/2 settings, or its refusal, are waited for here, where a refusal can be
        // named.
        if stream.fill_buf().await?.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(TokioIo::new(Stream::Tls(Box::new(stream))))
    }
}

/// Names are what a resolver makes of them; the address that answered is what counts.
fn check_peer(local: bool, peer: IpAddr) -> io::Result<()> {
    match local && !peer.to_canonical().is_loopback() {
        true => Err(io::Error::other(format!("{peer} is not this machine"))),
        false => Ok(()),
    }
}

fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// Why a call failed, if it was about certificates: trying again would not help.
///
/// Give it the `tonic::Status` or the transport's error; it looks through what lies behind.
pub fn refusal(error: &(dyn Error + 'static)) -> Option<String> {
    let mut next = Some(error);
    while let Some(error) = next {
        let inner = error
            .downcast_ref::<io::Error>()
            .and_then(io::Error::get_ref)
            .and_then(|inner| inner.downcast_ref::<rustls::Error>());
        if let Some(tls) = inner.or_else(|| error.downcast_ref::<rustls::Error>()) {
            return explain(tls);
        }
        next = error.source();
    }
    None
}

fn explain(error: &rustls::Error) -> Option<String> {
    use rustls::CertificateError as Certificate;
    use rustls::Error as Tls;
    Some(match error {
        Tls::AlertReceived(AlertDescription::CertificateRevoked) => {
            "the server refuses this client's certificate: it has been revoked".to_string()
        }
        Tls::AlertReceived(AlertDescription::CertificateExpired) => {
            "the server refuses this client's certificate: it has expired".to_string()
        }
        Tls::AlertReceived(
            AlertDescription::UnknownCA
            | AlertDescription::BadCertificate
            | AlertDescription::DecryptError
            | AlertDescription::AccessDenied
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnsupportedCertificate,
        ) => "the server refuses this client's certificate: it is not of the server's authority"
            .to_string(),
        Tls::InvalidCertificate(Certificate::UnknownIssuer | Certificate::BadSignature) => {
            "the server's certificate is not of the authority in ca.pem".to_string()
        }
        Tls::InvalidCertificate(
            Certificate::NotValidForName | Certificate::NotValidForNameContext { .. },
        ) => "the server's certificate does not name the host that was dialled".to_string(),
        Tls::InvalidCertificate(Certificate::Expired | Certificate::ExpiredContext { .. }) => {
            "the server's certificate has expired".to_string()
        }
        Tls::InvalidCertificate(other) => format!("the server's certificate is refused: {other}"),
        _ => return None,
    })
}

/// A connection of a client.
enum Stream {
    Plain(TcpStream),
    Tls(Box<tokio_rustls::client::TlsStream<BufReader<TcpStream>>>),
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Stream::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Stream::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_flush(context),
            Stream::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Stream::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `localhost` may be anything in a hosts file: plain text, and secrets from a seed, stay on
    /// this machine.
    #[test]
    fn the_address_counts_not_the_name() {
        let at = |text: &str| text.parse::<IpAddr>().unwrap();
        for here in ["127.0.0.1", "127.8.0.1", "::1", "::ffff:127.0.0.1"] {
            check_peer(true, at(here)).unwrap();
        }
        for abroad in ["10.0.0.1", "192.0.2.7", "2001:db8::1", "0.0.0.0"] {
            assert!(check_peer(true, at(abroad)).is_err(), "{abroad}");
            check_peer(false, at(abroad)).unwrap();
        }
        let plain = Target::new("http://localhost:1", &Security::Plain).unwrap();
        assert!(plain.local);
    }
}
