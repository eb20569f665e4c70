//! Which client a certificate stands for, and whether it still does.
//!
//! A client's certificate carries one name of the form `urn:soteria:client:7`, so one identity is
//! one client of a run whatever address it comes from. Revocation is by the certificate's SHA-256
//! fingerprint: a client whose certificate was lost gets another one under the same number, and
//! only the lost one is refused.
//!
//! The list of revoked certificates is a text file beside the server's certificate. It is looked at
//! again whenever somebody connects or asks for something (one `stat`, about a microsecond), so
//! that `soteria keys revoke` needs no restart and holds on open connections too. Once a list has
//! been read, a vanished or damaged file never makes it shorter.

use std::collections::HashSet;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use rustls::pki_types::CertificateDer;
use sha2::{Digest, Sha256};
use soteriafl_core::protocol::ClientId;

/// What a client's name in a certificate begins with.
pub const CLIENT_NAME: &str = "urn:soteria:client:";

/// The list of revoked certificates in a directory of keys.
pub const REVOKED_FILE: &str = "revoked";

/// Why a certificate or a list is not accepted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IdentityError {
    /// It is no certificate that can be read.
    #[error("not a readable X.509 certificate")]
    Malformed,
    /// It names no client, or several.
    #[error("the certificate names {0} clients instead of one")]
    Names(usize),
    /// The list cannot be read.
    #[error("{path}: {error}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// A line of the list is not understood.
    #[error("{path}, line {line}: not a SHA-256 fingerprint of 64 hexadecimal digits")]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
}

/// The SHA-256 digest of a certificate: what revocation refers to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// The fingerprint of a certificate.
    pub fn of(certificate: &CertificateDer<'_>) -> Self {
        Self(Sha256::digest(certificate.as_ref()).into())
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(out, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{self}")
    }
}

impl FromStr for Fingerprint {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(());
        }
        let mut bytes = [0; 32];
        for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            let digits = std::str::from_utf8(digits).map_err(drop)?;
            *byte = u8::from_str_radix(digits, 16).map_err(drop)?;
        }
        Ok(Self(bytes))
    }
}

/// A client as its certificate names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// The client's number.
    pub client: ClientId,
    /// Its certificate.
    pub fingerprint: Fingerprint,
}

impl Identity {
    /// Reads the identity from a certificate, whose chain and dates were checked by the caller.
    ///
    /// # Errors
    /// When it cannot be read or does not name exactly one client.
    pub fn of(certificate: &CertificateDer<'_>) -> Result<Self, IdentityError> {
        let parsed =
            webpki::EndEntityCert::try_from(certificate).map_err(|_| IdentityError::Malformed)?;
        let names: Vec<Option<ClientId>> = parsed
            .valid_uri_names()
            .filter_map(client_of_name)
            .collect();
        match names[..] {
            [Some(client)] => Ok(Self {
                client,
                fingerprint: Fingerprint::of(certificate),
            }),
            _ => Err(IdentityError::Names(names.len())),
        }
    }
}

/// `None` when the name is about something else; `Some(None)` when its number is none. Only the one
/// way of writing a number counts: `07` and `+7` are not 7.
fn client_of_name(name: &str) -> Option<Option<ClientId>> {
    let number = name.strip_prefix(CLIENT_NAME)?;
    let client = number.parse::<ClientId>().ok();
    Some(client.filter(|client| client.to_string() == number))
}

/// The revoked certificates, read again when their file changes. Clones share one list.
#[derive(Clone, Debug)]
pub struct Revocations {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    path: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    seen: Option<Stamp>,
    revoked: Arc<HashSet<Fingerprint>>,
}

/// What tells one version of a file from another; a rename over it changes the inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    modified: Option<SystemTime>,
    length: u64,
    inode: u64,
}

impl Stamp {
    fn of(path: &Path) -> io::Result<Self> {
        let metadata = fs::metadata(path)?;
        #[cfg(unix)]
        let inode = std::os::unix::fs::MetadataExt::ino(&metadata);
        #[cfg(not(unix))]
        let inode = 0;
        Ok(Self {
            modified: metadata.modified().ok(),
            length: metadata.len(),
            inode,
        })
    }
}

impl Revocations {
    /// Reads the list in a directory of keys; without one, nothing is revoked yet.
    ///
    /// # Errors
    /// When there is a list that cannot be read or understood: better no server than one that lets
    /// everybody in.
    pub fn open(directory: &Path) -> Result<Self, IdentityError> {
        let path = directory.join(REVOKED_FILE);
        let mut state = State::default();
        match Stamp::of(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(IdentityError::Io { path, error }),
            Ok(stamp) => {
                state.revoked = Arc::new(read_set(&path)?);
                state.seen = Some(stamp);
            }
        }
        let shared = Shared {
            path,
            state: Mutex::new(state),
        };
        Ok(Self {
            shared: Arc::new(shared),
        })
    }

    /// Whether a certificate is revoked now.
    pub fn contains(&self, fingerprint: &Fingerprint) -> bool {
        self.current().contains(fingerprint)
    }

    /// All that are revoked now.
    pub fn current(&self) -> Arc<HashSet<Fingerprint>> {
        let path = &self.shared.path;
        let mut state = self
            .shared
            .state
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        // A file that is gone has no stamp, and is like one that has not changed.
        if let Ok(stamp) = Stamp::of(path)
            && state.seen != Some(stamp)
        {
            match read_set(path) {
                Ok(revoked) => {
                    tracing::info!(
                        certificates = revoked.len(),
                        "read the list of revoked certificates"
                    );
                    state.revoked = Arc::new(revoked);
                }
                // Damaged is not empty: what was revoked stays so.
                Err(error) => tracing::error!(
                    %error,
                    "the list of revoked certificates is unreadable; the last one read stays in force"
                ),
            }
            state.seen = Some(stamp);
        }
        Arc::clone(&state.revoked)
    }
}

fn read_set(path: &Path) -> Result<HashSet<Fingerprint>, IdentityError> {
    Ok(read_list(path)?.into_iter().map(|entry| entry.0).collect())
}

/// The entries of a list: a fingerprint and the rest of its line. Empty lines and `#` are skipped.
pub(super) fn read_list(path: &Path) -> Result<Vec<(Fingerprint, String)>, IdentityError> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) => {
            return Err(IdentityError::Io {
                path: path.to_path_buf(),
                error,
            });
        }
    };
    let mut entries = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let fingerprint = word.parse().map_err(|()| IdentityError::Line {
            path: path.to_path_buf(),
            line: index + 1,
        })?;
        entries.push((fingerprint, rest.trim().to_string()));
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_way_of_writing_a_number() {
        assert_eq!(client_of_name("urn:soteria:client:7"), Some(Some(7)));
        for odd in ["07", "+7", "", "7 ", "-1", "4294967296"] {
            assert_eq!(client_of_name(&format!("{CLIENT_NAME}{odd}")), Some(None));
        }
        assert_eq!(client_of_name("https://example.org"), None);
    }

    #[test]
    fn fingerprints_round_trip() {
        let print = Fingerprint::of(&CertificateDer::from(vec![1, 2, 3]));
        assert_eq!(print.to_string().parse(), Ok(print));
        assert!("ab".parse::<Fingerprint>().is_err());
        assert!("é".repeat(32).parse::<Fingerprint>().is_err());
    }

    #[test]
    fn a_list_only_shrinks_by_a_readable_one() {
        let place = tempfile::tempdir().expect("a directory");
        let path = place.path().join(REVOKED_FILE);
        let (one, two) = (Fingerprint([1; 32]), Fingerprint([2; 32]));
        let list = Revocations::open(place.path()).expect("no list is fine");
        assert!(!list.contains(&one));
        fs::write(&path, format!("# why\n\n{one} client-0\n")).expect("a file");
        assert!(list.contains(&one) && !list.contains(&two));
        fs::write(&path, format!("{one}\nnonsense\n{two}\n")).expect("a file");
        assert!(list.contains(&one), "damage frees nobody");
        fs::remove_file(&path).expect("removed");
        assert!(list.contains(&one), "loss frees nobody");
        fs::write(&path, format!("{two}\n")).expect("a file");
        assert!(!list.contains(&one) && list.contains(&two));
        fs::write(&path, "nonsense\n").expect("a file");
        let error = Revocations::open(place.path()).expect_err("damaged at the start");
        assert!(error.to_string().contains("line 1"), "{error}");
    }
}
