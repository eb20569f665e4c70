//! Who gets in and who does not: certificates of both sides, revocation, silent and greedy peers.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use soteriafl_deploy::net::connect::{self, ConnectError, Target};
use soteriafl_deploy::net::keys::{Directory, KeysError};
use soteriafl_deploy::net::listen::{self, Limits, ListenError, Peer};
use soteriafl_deploy::net::tls;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::codegen::http;
use tonic::transport::Channel;
use tonic::transport::server::Server;
use tower::{Service, ServiceExt};

/// Long enough that only a hang runs into it.
const PATIENCE: Duration = Duration::from_secs(60);

fn keys(clients: u32) -> TempDir {
    let place = TempDir::new().expect("a directory");
    Directory::init(place.path(), clients, &[], 30, false).expect("keys");
    place
}

fn limits() -> Limits {
    Limits {
        handshake_timeout: Duration::from_secs(3600),
        ..Limits::for_clients(4)
    }
}

/// Answers every call with the number of the caller, or says that it is refused.
#[derive(Clone)]
struct WhoAmI;

impl tonic::server::NamedService for WhoAmI {
    const NAME: &'static str = "test.WhoAmI";
}

impl Service<http::Request<tonic::body::Body>> for WhoAmI {
    type Response = http::Response<tonic::body::Body>;
    type Error = std::convert::Infallible;
    type Future = std::future::Ready<Result<Self::Response, Self::Error>>;

    fn poll_ready(
        &mut self,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Result<(), Self::Error>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        let peer = request.extensions().get::<Peer>().expect("a peer");
        let client = peer
            .client()
            .map_or("nobody".to_string(), |id| id.to_string());
        let status = if peer.permitted() { "0" } else { "7" };
        let response = http::Response::builder()
            .header("content-type", "application/grpc")
            .header("grpc-status", status)
            .header("client", client)
            .body(tonic::body::Body::empty())
            .expect("a response");
        std::future::ready(Ok(response))
    }
}

async fn server(keys: &Path, limits: Limits) -> SocketAddr {
    let tls = tls::server(keys).expect("the server's keys");
    let local = SocketAddr::from(([127, 0, 0, 1], 0));
    let (address, incoming) = listen::listen(local, listen::Security::Tls(tls), limits)
        .await
        .expect("an address");
    tokio::spawn(
        Server::builder()
            .add_service(WhoAmI)
            .serve_with_incoming(incoming),
    );
    address
}

fn target(address: SocketAddr, keys: &Path, client: u32) -> Target {
    let config = tls::client(keys, client).expect("the client's keys");
    let address = format!("https://{address}");
    Target::new(&address, &connect::Security::Tls(config)).expect("an address")
}

fn channel(address: SocketAddr, keys: &Path, client: u32) -> Channel {
    let target = target(address, keys, client);
    target.channel(&target.endpoint())
}

/// The status and who the server takes us for.
async fn ask(channel: &mut Channel) -> Result<(String, String), tonic::transport::Error> {
    let request = http::Request::builder()
        .method("POST")
        .uri("/test.WhoAmI/Ask")
        .header("content-type", "application/grpc")
        .body(tonic::body::Body::empty())
        .expect("a request");
    let call = async { channel.ready().await?.call(request).await };
    let response = tokio::time::timeout(PATIENCE, call)
        .await
        .expect("no hang")?;
    let text = |name: &str| response.headers()[name].to_str().expect("text").to_string();
    Ok((text("grpc-status"), text("client")))
}

fn runs(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(test);
    runtime.shutdown_background();
}

#[test]
fn a_certificate_is_a_client() {
    runs(async {
        let keys = keys(3);
        let address = server(keys.path(), limits()).await;
        for client in [2, 0] {
            let answer = ask(&mut channel(address, keys.path(), client)).await;
            assert_eq!(answer.expect("let in"), ("0".into(), client.to_string()));
        }
    });
}

#[test]
fn strangers_are_refused_and_told_why() {
    runs(async {
        let (ours, theirs, mixed) = (keys(1), keys(1), keys(1));
        let address = server(ours.path(), limits()).await;
        // A client of another authority that trusts our server.
        std::fs::copy(ours.path().join("ca.pem"), mixed.path().join("ca.pem")).expect("a copy");
        let error = ask(&mut channel(address, mixed.path(), 0)).await;
        let reason = connect::refusal(&error.expect_err("a stranger")).expect("about certificates");
        assert!(reason.contains("not of the server's authority"), "{reason}");
        // A client that does not trust our server.
        let error = ask(&mut channel(address, theirs.path(), 0)).await;
        let reason = connect::refusal(&error.expect_err("a stranger")).expect("about certificates");
        assert!(
            reason.contains("not of the authority in ca.pem"),
            "{reason}"
        );
        // A name that the certificate does not have.
        let config = tls::client(ours.path(), 0).expect("keys");
        let url = format!("https://127.0.0.2:{}", address.port());
        let target = Target::new(&url, &connect::Security::Tls(config)).expect("an address");
        // On Linux all of 127/8 is this machine, but a server bound to 127.0.0.1 is not reached
        // there.
        let tls = tls::server(ours.path()).expect("keys");
        let other = SocketAddr::from(([127, 0, 0, 2], address.port()));
        if let Ok((_, incoming)) = listen::listen(other, listen::Security::Tls(tls), limits()).await
        {
            tokio::spawn(
                Server::builder()
                    .add_service(WhoAmI)
                    .serve_with_incoming(incoming),
            );
            let error = ask(&mut target.channel(&target.endpoint())).await;
            let reason = connect::refusal(&error.expect_err("another name")).expect("certificates");
            assert!(reason.contains("does not name the host"), "{reason}");
        }
    });
}

#[test]
fn nobody_without_a_certificate_and_no_server_as_a_client() {
    runs(async {
        let keys = keys(1);
        let address = server(keys.path(), limits()).await;
        // The server's own pair, posing as a client's.
        for ending in ["pem", "key"] {
            let from = keys.path().join(format!("server.{ending}"));
            std::fs::copy(from, keys.path().join(format!("client-5.{ending}"))).expect("a copy");
        }
        let error = tls::client(keys.path(), 5).expect_err("no client's certificate");
        assert!(error.to_string().contains("client-5.pem"), "{error}");
        // Client 0's pair under another number.
        for ending in ["pem", "key"] {
            let from = keys.path().join(format!("client-0.{ending}"));
            std::fs::copy(from, keys.path().join(format!("client-6.{ending}"))).expect("a copy");
        }
        let error = tls::client(keys.path(), 6).expect_err("another client's certificate");
        assert!(error.to_string().contains("that of client 0"), "{error}");
        // A bare TLS client without a certificate, and one with the server's.
        for with in [None, Some("server")] {
            let mut answer = [0; 16];
            let stream = bare(address, keys.path(), with).await;
            let read = match stream {
                Ok(mut stream) => stream.read(&mut answer).await,
                Err(error) => Err(error),
            };
            let error = read.expect_err("refused");
            assert!(error.to_string().contains("alert"), "{error}");
        }
    });
}

/// A TLS connection below HTTP, with any pair or none.
async fn bare(
    address: SocketAddr,
    keys: &Path,
    with: Option<&str>,
) -> std::io::Result<tokio_rustls::client::TlsStream<TcpStream>> {
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    let mut roots = rustls::RootCertStore::empty();
    let authority = CertificateDer::from_pem_file(keys.join("ca.pem")).expect("ca.pem");
    roots.add(authority).expect("an authority");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("TLS 1.3")
        .with_root_certificates(roots);
    let mut config = match with {
        None => builder.with_no_client_auth(),
        Some(name) => {
            let certificate = CertificateDer::from_pem_file(keys.join(format!("{name}.pem")));
            let key = PrivateKeyDer::from_pem_file(keys.join(format!("{name}.key")));
            builder
                .with_client_auth_cert(vec![certificate.expect("a pair")], key.expect("a pair"))
                .expect("a pair")
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    let name = address.ip().into();
    let stream = TcpStream::connect(address).await?;
    tokio_rustls::TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
}

#[test]
fn revocation_holds_at_once_and_on_open_connections() {
    runs(async {
        let keys = keys(2);
        let address = server(keys.path(), limits()).await;
        let mut open = channel(address, keys.path(), 0);
        let mut other = channel(address, keys.path(), 1);
        assert_eq!(ask(&mut open).await.expect("let in").0, "0");
        assert_eq!(ask(&mut other).await.expect("let in").0, "0");
        let directory = Directory::open(keys.path()).expect("keys");
        directory.revoke(0).expect("revoked");
        // The open connection: refused by status, or, when the sweep was first, in a new handshake.
        match ask(&mut open).await {
            Ok((status, _)) => assert_eq!(status, "7"),
            Err(error) => drop(error),
        }
        let error = ask(&mut channel(address, keys.path(), 0)).await;
        let reason = connect::refusal(&error.expect_err("revoked")).expect("about certificates");
        assert!(reason.contains("revoked"), "{reason}");
        assert_eq!(ask(&mut other).await.expect("not revoked").0, "0");
        // Another certificate for the same client is good.
        directory.replace(0, 30, false).expect("another one");
        let answer = ask(&mut channel(address, keys.path(), 0)).await;
        assert_eq!(answer.expect("let in again"), ("0".into(), "0".into()));
    });
}

#[test]
fn the_sweep_closes_connections_of_the_revoked() {
    runs(async {
        let keys = keys(1);
        let address = server(keys.path(), limits()).await;
        let mut idle = bare(address, keys.path(), Some("client-0"))
            .await
            .expect("let in");
        let mut settings = [0; 9];
        idle.read_exact(&mut settings)
            .await
            .expect("HTTP/2 settings");
        Directory::open(keys.path())
            .expect("keys")
            .revoke(0)
            .expect("revoked");
        // Nothing more is said by this side; the connection ends all the same.
        let ended = async { while matches!(idle.read(&mut [0; 64]).await, Ok(1..)) {} };
        tokio::time::timeout(PATIENCE, ended).await.expect("closed");
    });
}

#[test]
fn expired_certificates_are_refused() {
    runs(async {
        let keys = keys(1);
        let address = server(keys.path(), limits()).await;
        let directory = Directory::open(keys.path()).expect("keys");
        directory.replace(0, 0, true).expect("a short one");
        let error = ask(&mut channel(address, keys.path(), 0)).await;
        let reason = connect::refusal(&error.expect_err("expired")).expect("about certificates");
        assert!(reason.contains("expired"), "{reason}");
    });
}

/// A certificate that is not accepted is no refusal of the server's: what is said names the side
/// whose it is.
#[test]
fn whose_certificate_has_expired_is_said_plainly() {
    use soteriafl_deploy::net::client::Caller;
    runs(async {
        let keys = keys(1);
        let directory = Directory::open(keys.path()).expect("keys");
        let good = server(keys.path(), limits()).await;
        directory.replace_server(&[], 0).expect("a short one");
        let expired = server(keys.path(), limits()).await;
        let said = async |address| {
            let mut caller = Caller::new(&target(address, keys.path(), 0), 0);
            let answer = tokio::time::timeout(PATIENCE, caller.describe()).await;
            let error = answer.expect("no hang").expect_err("refused");
            error.to_string()
        };
        assert_eq!(said(expired).await, "the server's certificate has expired");
        directory.replace(0, 0, true).expect("a short one");
        let own = "the server refuses this client's certificate: it has expired";
        assert_eq!(said(good).await, own);
    });
}

#[test]
fn silent_peers_keep_nobody_out() {
    runs(async {
        let keys = keys(1);
        let few = Limits {
            handshakes: 4,
            grace: Duration::from_millis(10),
            ..limits()
        };
        let address = server(keys.path(), few).await;
        let mut silent = Vec::new();
        for index in 0..40 {
            let mut stream = TcpStream::connect(address).await.expect("accepted");
            if index % 2 == 0 {
                // The beginning of a handshake that never goes on.
                let _ = stream.write_all(&[22, 3, 1, 1, 0]).await;
            }
            silent.push(stream);
        }
        let answer = ask(&mut channel(address, keys.path(), 0)).await;
        assert_eq!(answer.expect("let in").0, "0");
        // The first ones had to go.
        let first = tokio::time::timeout(PATIENCE, silent[0].read(&mut [0; 8])).await;
        assert!(matches!(first, Ok(Ok(0) | Err(_))), "{first:?}");
    });
}

#[test]
fn clients_that_come_at_once_wait_for_each_other() {
    runs(async {
        let keys = keys(4);
        let few = Limits {
            handshakes: 2,
            grace: Duration::from_secs(3600),
            ..Limits::for_clients(64)
        };
        let address = server(keys.path(), few).await;
        let mut crowd = tokio::task::JoinSet::new();
        for index in 0..12 {
            let mut channel = channel(address, keys.path(), index % 4);
            crowd.spawn(async move { ask(&mut channel).await.map(|answer| answer.0) });
        }
        while let Some(answer) = crowd.join_next().await {
            assert_eq!(answer.expect("no panic").expect("let in"), "0");
        }
    });
}

#[test]
fn a_newcomer_without_room_closes_nobodys_connection() {
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00";
    const ACKNOWLEDGED: [u8; 9] = [0, 0, 0, 4, 1, 0, 0, 0, 0];
    runs(async {
        let keys = keys(1);
        let one = Limits {
            per_client: 1,
            connections: 1,
            ..limits()
        };
        let address = server(keys.path(), one).await;
        let mut first = bare(address, keys.path(), Some("client-0"))
            .await
            .expect("let in");
        first.read_exact(&mut [0; 9]).await.expect("settings");
        if let Ok(mut second) = bare(address, keys.path(), Some("client-0")).await {
            while matches!(second.read(&mut [0; 64]).await, Ok(1..)) {}
        }
        // The server sees that the first one is to be closed, if it is, before it reads this.
        first.write_all(PREFACE).await.expect("still open");
        let (mut heard, mut buffer) = (Vec::new(), [0; 64]);
        while !heard.windows(9).any(|frame| frame == ACKNOWLEDGED) {
            match tokio::time::timeout(PATIENCE, first.read(&mut buffer)).await {
                Ok(Ok(count @ 1..)) => heard.extend_from_slice(&buffer[..count]),
                other => panic!("{other:?}"),
            }
        }
    });
}

#[test]
fn one_client_holds_a_few_connections_and_all_of_them_a_bounded_number() {
    runs(async {
        let keys = keys(3);
        let two = Limits {
            per_client: 2,
            connections: 3,
            ..limits()
        };
        let address = server(keys.path(), two).await;
        let mut first = bare(address, keys.path(), Some("client-0"))
            .await
            .expect("let in");
        let mut settings = [0; 9];
        first.read_exact(&mut settings).await.expect("settings");
        let mut second = channel(address, keys.path(), 0);
        assert_eq!(ask(&mut second).await.expect("let in").0, "0");
        let mut third = channel(address, keys.path(), 0);
        assert_eq!(ask(&mut third).await.expect("let in").0, "0");
        let ended = async { while matches!(first.read(&mut [0; 64]).await, Ok(1..)) {} };
        tokio::time::timeout(PATIENCE, ended)
            .await
            .expect("the oldest gives way");
        let mut other = channel(address, keys.path(), 1);
        assert_eq!(ask(&mut other).await.expect("room for one").0, "0");
        assert!(ask(&mut channel(address, keys.path(), 2)).await.is_err());
        assert_eq!(ask(&mut second).await.expect("still open").0, "0");
    });
}

#[test]
fn plain_text_stays_on_this_machine() {
    runs(async {
        let abroad = SocketAddr::from(([0, 0, 0, 0], 0));
        let refused = listen::listen(abroad, listen::Security::Plain, limits()).await;
        assert!(matches!(refused, Err(ListenError::PlainAbroad(_))));
        let dial = |address| Target::new(address, &connect::Security::Plain).map(drop);
        assert_eq!(dial("http://localhost:1"), Ok(()));
        assert_eq!(dial("http://[::1]:1"), Ok(()));
        for abroad in ["http://192.0.2.1:1", "http://localhost.example.org:1"] {
            assert_eq!(dial(abroad), Err(ConnectError::PlainAbroad(abroad.into())));
        }
        assert!(matches!(
            dial("https://localhost:1"),
            Err(ConnectError::Scheme { .. })
        ));
        for odd in [
            "localhost:1",
            "",
            "http://",
            "http://localhost:1/path",
            "ftp://localhost",
        ] {
            assert_eq!(dial(odd), Err(ConnectError::Address(odd.into())), "{odd}");
        }
        let local = SocketAddr::from(([127, 0, 0, 1], 0));
        let (address, incoming) = listen::listen(local, listen::Security::Plain, limits())
            .await
            .expect("an address");
        tokio::spawn(
            Server::builder()
                .add_service(WhoAmI)
                .serve_with_incoming(incoming),
        );
        let target = Target::new(&format!("http://{address}"), &connect::Security::Plain);
        let target = target.expect("an address");
        let answer = ask(&mut target.channel(&target.endpoint())).await;
        assert_eq!(answer.expect("let in"), ("0".into(), "nobody".into()));
    });
}

#[test]
fn damaged_files_are_named() {
    let keys = keys(1);
    let check = |file: &str, text: &str, expected: &str| {
        let path = keys.path().join(file);
        let saved = std::fs::read(&path).expect("a file");
        std::fs::write(&path, text).expect("written");
        let error = match file {
            "client-0.pem" | "client-0.key" => tls::client(keys.path(), 0).map(drop),
            _ => tls::server(keys.path()).map(drop),
        };
        let error = error.expect_err("damaged").to_string();
        assert!(error.contains(file) && error.contains(expected), "{error}");
        std::fs::write(&path, saved).expect("written");
    };
    let key = std::fs::read_to_string(keys.path().join("client-0.key")).expect("a key");
    check("ca.pem", "", "no certificate");
    check(
        "ca.pem",
        "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        "authority",
    );
    check("server.key", "nothing", "no private key");
    check("server.key", &key, "fit together");
    check("server.pem", &key, "no certificate");
    check("client-0.pem", "-----BEGIN CERTIFICATE-----\n!\n", "PEM");
    check("revoked", "abc\n", "line 1");
    std::fs::remove_file(keys.path().join("server.pem")).expect("removed");
    let error = tls::server(keys.path()).expect_err("missing").to_string();
    assert!(error.contains("server.pem"), "{error}");
    let error = tls::client(keys.path(), 9)
        .expect_err("missing")
        .to_string();
    assert!(error.contains("client-9.pem"), "{error}");
}

#[test]
fn foreign_authorities_make_no_certificates() {
    let (ours, theirs) = (keys(1), keys(1));
    std::fs::copy(theirs.path().join("ca.key"), ours.path().join("ca.key")).expect("a copy");
    let directory = Directory::open(ours.path()).expect("keys");
    assert!(matches!(directory.add(1, 30), Err(KeysError::Mismatch(_))));
}
