//! TLS 1.3 with certificates on both sides, from the files of `soteria keys`.
//!
//! The cryptography is ring's, named explicitly; older versions of TLS are not spoken. The server
//! asks for a certificate of its own authority that names one client and is not revoked, and
//! refuses everybody else before a byte of the protocol is read. The client accepts servers of the
//! same authority under the name it dialled. Session tickets are off, so every connection shows its
//! certificate again.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, RootCertStore,
    ServerConfig, SignatureScheme,
};
use soteriafl_core::protocol::ClientId;

use super::identity::{Identity, IdentityError, Revocations};

/// Why a configuration cannot be made. Every message names the file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read or holds something else.
    #[error("{path}: {reason}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// A certificate and a key do not belong together, or are of a kind that is not supported.
    #[error("{certificate} and {key} do not fit together: {reason}")]
    Pair {
        /// The certificate's file.
        certificate: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// Why.
        reason: String,
    },
    /// A certificate is of another client.
    #[error("{path}: the certificate is that of client {found}, not of client {expected}")]
    Client {
        /// The certificate's file.
        path: PathBuf,
        /// Who was asked for.
        expected: ClientId,
        /// Whose it is.
        found: ClientId,
    },
    /// The list of revoked certificates is not usable.
    #[error(transparent)]
    Revocations(#[from] IdentityError),
}

/// A server's side: its configuration, and who is revoked.
#[derive(Clone, Debug)]
pub struct ServerTls {
    /// What rustls needs.
    pub config: Arc<ServerConfig>,
    /// The revoked certificates.
    pub revocations: Revocations,
}

/// Reads `ca.pem`, `server.pem`, `server.key` and, if it exists, `revoked` from a directory of
/// keys.
///
/// # Errors
/// When a file is missing, unreadable, or does not fit the others.
pub fn server(directory: &Path) -> Result<ServerTls, TlsError> {
    let provider = Arc::new(ring::default_provider());
    let authority = directory.join("ca.pem");
    let roots = Arc::new(roots(&authority)?);
    let revocations = Revocations::open(directory)?;
    let chain = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider))
        .build()
        .map_err(|error| TlsError::File {
            path: authority,
            reason: error.to_string(),
        })?;
    let verifier = ClientVerifier {
        chain,
        revocations: revocations.clone(),
    };
    let pair = Pair::read(directory, "server")?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("ring has TLS 1.3")
        .with_client_cert_verifier(Arc::new(verifier))
        .with_single_cert(pair.chain, pair.key)
        .map_err(|error| TlsError::Pair {
            certificate: pair.chain_path,
            key: pair.key_path,
            reason: error.to_string(),
        })?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    config.send_tls13_tickets = 0;
    Ok(ServerTls {
        config: Arc::new(config),
        revocations,
    })
}

/// Reads `ca.pem`, `client-N.pem` and `client-N.key` from a directory of keys.
///
/// # Errors
/// When a file is missing, unreadable, does not fit the others, or belongs to another client.
pub fn client(directory: &Path, client: ClientId) -> Result<Arc<ClientConfig>, TlsError> {
    let roots = roots(&directory.join("ca.pem"))?;
    let pair = Pair::read(directory, &format!("client-{client}"))?;
    let identity = Identity::of(&pair.chain[0]).map_err(|error| TlsError::File {
        path: pair.chain_path.clone(),
        reason: error.to_string(),
    })?;
    if identity.client != client {
        return Err(TlsError::Client {
            path: pair.chain_path,
            expected: client,
            found: identity.client,
        });
    }
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("ring has TLS 1.3")
        .with_root_certificates(roots)
        .with_client_auth_cert(pair.chain, pair.key)
        .map_err(|error| TlsError::Pair {
            certificate: pair.chain_path,
            key: pair.key_path,
            reason: error.to_string(),
        })?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    config.resumption = rustls::client::Resumption::disabled();
    Ok(Arc::new(config))
}

/// A certificate with its key, and where they came from.
struct Pair {
    chain: Vec<CertificateDer<'static>>,
    chain_path: PathBuf,
    key: PrivateKeyDer<'static>,
    key_path: PathBuf,
}

impl Pair {
    fn read(directory: &Path, name: &str) -> Result<Self, TlsError> {
        let chain_path = directory.join(format!("{name}.pem"));
        let key_path = directory.join(format!("{name}.key"));
        let chain = certificates(&chain_path)?;
        let key = PrivateKeyDer::from_pem_file(&key_path).map_err(|error| TlsError::File {
            path: key_path.clone(),
            reason: pem_reason(&error, "private key"),
        })?;
        warn_if_open(&key_path);
        Ok(Self {
            chain,
            chain_path,
            key,
            key_path,
        })
    }
}

fn roots(path: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|error| TlsError::File {
            path: path.to_path_buf(),
            reason: format!("not the certificate of an authority ({error})"),
        })?;
    }
    Ok(roots)
}

/// All certificates of a file, at least one.
pub(super) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let wrap = |error: &rustls::pki_types::pem::Error| TlsError::File {
        path: path.to_path_buf(),
        reason: pem_reason(error, "certificate"),
    };
    let chain = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| wrap(&error))?;
    if chain.is_empty() {
        return Err(wrap(&rustls::pki_types::pem::Error::NoItemsFound));
    }
    Ok(chain)
}

/// Without the bytes at fault: they might be those of a key.
fn pem_reason(error: &rustls::pki_types::pem::Error, what: &str) -> String {
    match error {
        rustls::pki_types::pem::Error::Io(error) => error.to_string(),
        rustls::pki_types::pem::Error::NoItemsFound => format!("there is no {what} in it"),
        _ => "not a PEM file that can be read".to_string(),
    }
}

#[cfg(unix)]
fn warn_if_open(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    if let Ok(metadata) = std::fs::metadata(path)
        && metadata.permissions().mode() & 0o077 != 0
    {
        tracing::warn!(file = %path.display(), "this private key can be read by others; chmod 600 closes it");
    }
}

#[cfg(not(unix))]
fn warn_if_open(_: &Path) {}

/// Chain and dates as rustls checks them, then: one client, not revoked.
#[derive(Debug)]
struct ClientVerifier {
    chain: Arc<dyn ClientCertVerifier>,
    revocations: Revocations,
}

impl ClientCertVerifier for ClientVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.chain.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let verified = self
            .chain
            .verify_client_cert(end_entity, intermediates, now)?;
        let identity = Identity::of(end_entity)
            .map_err(|_| CertificateError::ApplicationVerificationFailure)?;
        if self.revocations.contains(&identity.fingerprint) {
            return Err(CertificateError::Revoked.into());
        }
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chain
            .verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chain
            .verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chain.supported_verify_schemes()
    }
}
