//! The files of a private certificate authority.
//!
//! | file | what | who needs it |
//! | --- | --- | --- |
//! | `ca.pem` | the authority's certificate | everybody |
//! | `ca.key` | its key: makes certificates | nobody who only runs something |
//! | `server.pem`, `server.key` | the server's pair | the server |
//! | `client-7.pem`, `client-7.key` | a client's pair | that client |
//! | `revoked` | fingerprints that are refused | the server, which reads it again when it changes |
//! | `issued` | fingerprints of all certificates ever made here | `soteria keys` |
//!
//! Keys are ECDSA on P-256, readable by their owner only, and written whole or not at all; an
//! existing file is never replaced unless that is asked for. A client's certificate is good for
//! being a client and the server's for being a server, so that no client can pose as the server.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use jiff::civil::Date;
use jiff::{Timestamp, ToSpan, tz::TimeZone};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use rustls::pki_types::{CertificateDer, ServerName};
use soteriafl_core::protocol::ClientId;

use super::identity::{self, CLIENT_NAME, Fingerprint, IdentityError, REVOKED_FILE};
use super::tls::{self, TlsError};

/// The names of a server that only its own machine reaches.
pub const LOCAL_HOSTS: [&str; 3] = ["localhost", "127.0.0.1", "::1"];

/// How long certificates are good for, unless told otherwise.
pub const DEFAULT_DAYS: u32 = 730;

const AUTHORITY_DAYS: u32 = 3650;
const ISSUED_FILE: &str = "issued";
const ISSUED_HEAD: &str = "# Every certificate made here: SHA-256 fingerprint, name, last day.\n";
const REVOKED_HEAD: &str = "# Certificates that are refused: SHA-256 fingerprint, name, day of revocation.\n# The server reads this file again when it changes.\n";

/// Why keys cannot be made or changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeysError {
    /// Something would be replaced.
    #[error("{0} exists")]
    Exists(PathBuf),
    /// There is no authority in the directory.
    #[error("{0} holds no authority: ca.pem and ca.key are needed")]
    NoAuthority(PathBuf),
    /// The authority's files are of two authorities.
    #[error("{0} and ca.key do not belong together")]
    Mismatch(PathBuf),
    /// Not a name of a machine.
    #[error("`{0}` is neither a host name nor an address")]
    Host(String),
    /// No such client.
    #[error("client {client} has no certificate in {directory}")]
    NoClient {
        /// The client.
        client: ClientId,
        /// The directory.
        directory: PathBuf,
    },
    /// The client has a good certificate already.
    #[error("client {0} has a certificate that is not revoked")]
    InForce(ClientId),
    /// All its certificates are revoked already.
    #[error("client {0} is revoked already")]
    Revoked(ClientId),
    /// The file system refuses.
    #[error("{path}: {error}")]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// A file is not what it should be.
    #[error(transparent)]
    File(#[from] TlsError),
    /// A list is not what it should be.
    #[error(transparent)]
    List(#[from] IdentityError),
    /// A certificate cannot be made.
    #[error("cannot make a certificate: {0}")]
    Certificate(#[from] rcgen::Error),
}

/// One certificate as the directory knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// `server` or `client-7`.
    pub name: String,
    /// Its number, if it is a client.
    pub client: Option<ClientId>,
    /// The certificate.
    pub fingerprint: Fingerprint,
    /// The last day, if the list has it.
    pub until: Option<Date>,
    /// Whether it is refused.
    pub revoked: bool,
}

/// A directory of keys, locked against other commands for as long as this lives.
pub struct Directory {
    path: PathBuf,
    _lock: File,
}

impl Directory {
    /// Makes an authority, the server's pair and the pairs of clients `0 .. clients`.
    ///
    /// With `force` everything in the directory is replaced, and all older certificates are
    /// worthless.
    ///
    /// # Errors
    /// When something exists already, a host is none, or the file system refuses.
    pub fn init(
        path: &Path,
        clients: u32,
        hosts: &[String],
        days: u32,
        force: bool,
    ) -> Result<Self, KeysError> {
        check_hosts(hosts)?;
        let created = make_directory(path);
        created.map_err(|error| wrap(path, error))?;
        let directory = Self::lock(path)?;
        directory.clear(clients, force)?;
        let key = KeyPair::generate()?;
        let mut params = authority(&key);
        dates(&mut params, AUTHORITY_DAYS.max(days));
        let certificate = params.self_signed(&key)?;
        directory.write("ca.key", key.serialize_pem().as_bytes(), 0o600)?;
        directory.write("ca.pem", certificate.pem().as_bytes(), 0o644)?;
        directory.write(ISSUED_FILE, ISSUED_HEAD.as_bytes(), 0o644)?;
        directory.write(REVOKED_FILE, REVOKED_HEAD.as_bytes(), 0o644)?;
        let issuer = Issuer::new(params, key);
        let mut issued = vec![directory.make_server(&issuer, hosts, days)?];
        for client in 0..clients {
            issued.push(directory.make_client(&issuer, client, days)?);
        }
        directory.note(ISSUED_FILE, ISSUED_HEAD, &issued)?;
        Ok(directory)
    }

    /// Opens a directory that has an authority's certificate.
    ///
    /// # Errors
    /// When there is none, or the directory cannot be locked.
    pub fn open(path: &Path) -> Result<Self, KeysError> {
        if !path.join("ca.pem").exists() {
            return Err(KeysError::NoAuthority(path.to_path_buf()));
        }
        Self::lock(path)
    }

    /// Makes pairs for `count` more clients and returns their numbers.
    ///
    /// # Errors
    /// When the authority's key is missing or the file system refuses.
    pub fn add(&self, count: u32, days: u32) -> Result<Vec<ClientId>, KeysError> {
        let issuer = self.issuer()?;
        let last = self.list()?.iter().filter_map(|listed| listed.client).max();
        let first = last.map_or(0, |last| last.saturating_add(1));
        let clients: Vec<ClientId> = (first..first.saturating_add(count)).collect();
        for &client in &clients {
            self.check_absent(&format!("client-{client}"))?;
        }
        for &client in &clients {
            let issued = self.make_client(&issuer, client, days)?;
            self.note(ISSUED_FILE, ISSUED_HEAD, &[issued])?;
        }
        Ok(clients)
    }

    /// Gives a client whose certificate was revoked, or is about to end, another one. With `force`
    /// the old certificate need not be revoked and stays good until its last day.
    ///
    /// # Errors
    /// When the old one is in force, and as in [`Directory::add`].
    pub fn replace(&self, client: ClientId, days: u32, force: bool) -> Result<(), KeysError> {
        let issuer = self.issuer()?;
        let listed = self.list()?;
        let mut own = listed.iter().filter(|one| one.client == Some(client));
        if !force && own.any(|one| !one.revoked) {
            return Err(KeysError::InForce(client));
        }
        let issued = self.make_client(&issuer, client, days)?;
        self.note(ISSUED_FILE, ISSUED_HEAD, &[issued])
    }

    /// Makes another certificate for the server.
    ///
    /// # Errors
    /// When a host is none, the authority's key is missing or the file system refuses.
    pub fn replace_server(&self, hosts: &[String], days: u32) -> Result<(), KeysError> {
        check_hosts(hosts)?;
        let issued = self.make_server(&self.issuer()?, hosts, days)?;
        self.note(ISSUED_FILE, ISSUED_HEAD, &[issued])
    }

    /// Revokes all certificates of a client; returns how many.
    ///
    /// # Errors
    /// When it has none, all are revoked already, or the file system refuses.
    pub fn revoke(&self, client: ClientId) -> Result<usize, KeysError> {
        let listed = self.list()?;
        let own: Vec<&Listed> = listed
            .iter()
            .filter(|one| one.client == Some(client))
            .collect();
        if own.is_empty() {
            let directory = self.path.clone();
            return Err(KeysError::NoClient { client, directory });
        }
        let today = today();
        let lines: Vec<String> = own
            .iter()
            .filter(|one| !one.revoked)
            .map(|one| format!("{} {} {today}", one.fingerprint, one.name))
            .collect();
        if lines.is_empty() {
            return Err(KeysError::Revoked(client));
        }
        self.note(REVOKED_FILE, REVOKED_HEAD, &lines)?;
        Ok(lines.len())
    }

    /// Every certificate made here, and those whose files lie here without having been noted.
    ///
    /// # Errors
    /// When a list cannot be read.
    pub fn list(&self) -> Result<Vec<Listed>, KeysError> {
        let revoked: HashSet<Fingerprint> = self
            .entries(REVOKED_FILE)?
            .into_iter()
            .map(|entry| entry.0)
            .collect();
        let mut listed = Vec::new();
        for (fingerprint, rest) in self.entries(ISSUED_FILE)? {
            let mut words = rest.split_whitespace();
            let name = words.next().unwrap_or("?").to_string();
            listed.push(Listed {
                client: client_number(&name),
                until: words.next().and_then(|word| word.parse().ok()),
                revoked: revoked.contains(&fingerprint),
                name,
                fingerprint,
            });
        }
        let entries = fs::read_dir(&self.path).map_err(|error| wrap(&self.path, error))?;
        for entry in entries {
            let file = entry.map_err(|error| wrap(&self.path, error))?.file_name();
            let name = file.to_str().and_then(|name| name.strip_suffix(".pem"));
            let Some((name, client)) = name.and_then(|name| Some((name, client_number(name)?)))
            else {
                continue;
            };
            let chain = tls::certificates(&self.path.join(format!("{name}.pem")))?;
            let fingerprint = Fingerprint::of(&chain[0]);
            if listed.iter().all(|one| one.fingerprint != fingerprint) {
                listed.push(Listed {
                    name: name.to_string(),
                    client: Some(client),
                    fingerprint,
                    until: None,
                    revoked: revoked.contains(&fingerprint),
                });
            }
        }
        listed.sort_by_key(|one| one.client);
        Ok(listed)
    }

    fn lock(path: &Path) -> Result<Self, KeysError> {
        let lock = File::open(path).map_err(|error| wrap(path, error))?;
        lock.lock().map_err(|error| wrap(path, error))?;
        Ok(Self {
            path: path.to_path_buf(),
            _lock: lock,
        })
    }

    /// Nothing that will be written may exist; or, with `force`, nothing of an older authority
    /// stays.
    fn clear(&self, clients: u32, force: bool) -> Result<(), KeysError> {
        if force {
            let entries = fs::read_dir(&self.path).map_err(|error| wrap(&self.path, error))?;
            for entry in entries {
                let path = entry.map_err(|error| wrap(&self.path, error))?.path();
                let name = path.file_name().and_then(|name| name.to_str());
                let stem = name.and_then(|name| {
                    name.strip_suffix(".pem")
                        .or_else(|| name.strip_suffix(".key"))
                });
                if stem.and_then(client_number).is_some() {
                    fs::remove_file(&path).map_err(|error| wrap(&path, error))?;
                }
            }
            return Ok(());
        }
        for name in ["ca", "server"] {
            self.check_absent(name)?;
        }
        for client in 0..clients {
            self.check_absent(&format!("client-{client}"))?;
        }
        for name in [ISSUED_FILE, REVOKED_FILE] {
            let path = self.path.join(name);
            if path.exists() {
                return Err(KeysError::Exists(path));
            }
        }
        Ok(())
    }

    fn check_absent(&self, name: &str) -> Result<(), KeysError> {
        for ending in ["pem", "key"] {
            let path = self.path.join(format!("{name}.{ending}"));
            if path.symlink_metadata().is_ok() {
                return Err(KeysError::Exists(path));
            }
        }
        Ok(())
    }

    fn issuer(&self) -> Result<Issuer<'static, KeyPair>, KeysError> {
        let absent = || KeysError::NoAuthority(self.path.clone());
        let key = fs::read_to_string(self.path.join("ca.key")).map_err(|_| absent())?;
        let key = KeyPair::from_pem(&key)?;
        let path = self.path.join("ca.pem");
        let certificate = tls::certificates(&path)?.remove(0);
        let fits = webpki::anchor_from_trusted_cert(&certificate).is_ok_and(|anchor| {
            anchor
                .subject_public_key_info
                .ends_with(key.public_key_raw())
        });
        if !fits {
            return Err(KeysError::Mismatch(path));
        }
        // Name and identifiers follow from the key, so the certificate need not be taken apart.
        Ok(Issuer::new(authority(&key), key))
    }

    fn make_server(
        &self,
        issuer: &Issuer<'_, KeyPair>,
        hosts: &[String],
        days: u32,
    ) -> Result<String, KeysError> {
        let mut names: Vec<String> = LOCAL_HOSTS.map(str::to_string).to_vec();
        names.extend(hosts.iter().cloned());
        names.dedup();
        let mut params = CertificateParams::new(names)?;
        params
            .extended_key_usages
            .push(ExtendedKeyUsagePurpose::ServerAuth);
        self.make(issuer, "server", params, days)
    }

    fn make_client(
        &self,
        issuer: &Issuer<'_, KeyPair>,
        client: ClientId,
        days: u32,
    ) -> Result<String, KeysError> {
        let mut params = CertificateParams::default();
        let name = format!("{CLIENT_NAME}{client}");
        params
            .subject_alt_names
            .push(SanType::URI(name.try_into()?));
        params
            .extended_key_usages
            .push(ExtendedKeyUsagePurpose::ClientAuth);
        self.make(issuer, &format!("client-{client}"), params, days)
    }

    /// Writes a pair, the key first, and returns its line in the list.
    fn make(
        &self,
        issuer: &Issuer<'_, KeyPair>,
        name: &str,
        mut params: CertificateParams,
        days: u32,
    ) -> Result<String, KeysError> {
        let until = dates(&mut params, days);
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, issuer)?;
        self.write(
            &format!("{name}.key"),
            key.serialize_pem().as_bytes(),
            0o600,
        )?;
        self.write(&format!("{name}.pem"), certificate.pem().as_bytes(), 0o644)?;
        let fingerprint = Fingerprint::of(certificate.der());
        Ok(format!("{fingerprint} {name} {until}"))
    }

    fn entries(&self, name: &str) -> Result<Vec<(Fingerprint, String)>, KeysError> {
        let path = self.path.join(name);
        match path.exists() {
            true => Ok(identity::read_list(&path)?),
            false => Ok(Vec::new()),
        }
    }

    /// Adds lines to a list.
    fn note(&self, name: &str, head: &str, lines: &[String]) -> Result<(), KeysError> {
        let path = self.path.join(name);
        let mut text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => head.to_string(),
            other => other.map_err(|error| wrap(&path, error))?,
        };
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        for line in lines {
            text.push_str(line);
            text.push('\n');
        }
        self.write(name, text.as_bytes(), 0o644)
    }

    /// Whole or not at all, and never readable by others for a moment.
    fn write(&self, name: &str, bytes: &[u8], mode: u32) -> Result<(), KeysError> {
        let path = self.path.join(name);
        let temporary = self.path.join(format!("{name}.tmp"));
        write_with_mode(&temporary, bytes, mode)
            .and_then(|()| fs::rename(&temporary, &path))
            .map_err(|error| {
                let _ = fs::remove_file(&temporary);
                wrap(&path, error)
            })
    }
}

fn write_with_mode(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    // What a crash left behind may have another mode.
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, mode);
    #[cfg(not(unix))]
    let _ = mode;
    let mut file = options.open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

fn make_directory(path: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}

fn wrap(path: &Path, error: io::Error) -> KeysError {
    KeysError::Io {
        path: path.to_path_buf(),
        error,
    }
}

/// `client-7` is 7.
fn client_number(name: &str) -> Option<ClientId> {
    let number = name.strip_prefix("client-")?;
    let client: ClientId = number.parse().ok()?;
    (client.to_string() == number).then_some(client)
}

fn check_hosts(hosts: &[String]) -> Result<(), KeysError> {
    for host in hosts {
        ServerName::try_from(host.as_str()).map_err(|_| KeysError::Host(host.clone()))?;
    }
    Ok(())
}

/// Today, in UTC as certificates count.
pub fn today() -> Date {
    Timestamp::now().to_zoned(TimeZone::UTC).date()
}

/// What an authority's certificate says beside its dates; all of it follows from the key.
fn authority(key: &KeyPair) -> CertificateParams {
    let mut params = CertificateParams::default();
    // The name tells one authority from another in the messages of other programs.
    let tag = Fingerprint::of(&CertificateDer::from(key.public_key_raw())).to_string();
    let name = format!("soteria authority {}", &tag[..8]);
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

/// Good from yesterday, for clocks that are behind; returns the last day.
fn dates(params: &mut CertificateParams, days: u32) -> Date {
    let today = today();
    let day = |date: Date| {
        rcgen::date_time_ymd(
            i32::from(date.year()),
            date.month().unsigned_abs(),
            date.day().unsigned_abs(),
        )
    };
    let from = today.saturating_sub(1.day());
    let until = today.saturating_add(i64::from(days).days());
    params.not_before = day(from);
    params.not_after = day(until);
    until
}
