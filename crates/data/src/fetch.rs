//! Downloads of known public data sets: verified, resumed, whole or not at all.
//!
//! A file is written beside its place as `NAME.part`. An interrupted download leaves that; the next
//! one asks for the missing bytes only. The part takes its name when its length and SHA-256 are
//! those of the catalogue, so a file with that name has been checked. Mirrors are tried in order;
//! what each of them said is in the error when none of them serves. Nothing a mirror sends is
//! trusted: more bytes than expected are not read, and a part that fails its checksum is thrown
//! away.

mod catalogue;

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use sha2::{Digest, Sha256};
use ureq::Agent;
use ureq::http::StatusCode;

pub use catalogue::{KNOWN, Known, KnownFile, Presence};

/// How often one mirror may break off before the next one is asked.
const ATTEMPTS: u32 = 3;

/// Why a data set was not fetched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FetchError {
    /// The file system refuses.
    #[error("{path}: {error}", path = path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// Another process writes the same part.
    #[error("{path}: another download is writing it", path = path.display())]
    Busy {
        /// The part.
        path: PathBuf,
    },
    /// No mirror gave the file.
    #[error("cannot fetch {file}; tried {tried}")]
    NoMirror {
        /// The file.
        file: &'static str,
        /// Every address with what went wrong there.
        tried: String,
    },
}

/// What happens while a set is fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The file is here already, checksum verified.
    Present(&'static KnownFile),
    /// A file of that name is here, but it is not the published one; it will be replaced.
    Differs(&'static KnownFile),
    /// A download begins; so many bytes are here from an earlier one.
    Begin(&'static KnownFile, u64),
    /// So many of the file's bytes are here.
    Progress(u64),
    /// The file is here, checksum verified.
    Done(&'static KnownFile),
}

/// Fetches the files of a set into `folder`, from the first mirror that gives them.
///
/// # Errors
/// When the file system refuses or no mirror gives a file.
pub fn fetch(
    known: &'static Known,
    folder: &Path,
    mirrors: &[String],
    mut report: impl FnMut(Step),
) -> Result<(), FetchError> {
    fs::create_dir_all(folder).map_err(|error| FetchError::File {
        path: folder.to_owned(),
        error,
    })?;
    let agent = agent();
    for file in known.files {
        let path = folder.join(file.name);
        if path.exists() {
            if verify(&path, file).map_err(|error| FetchError::File {
                path: path.clone(),
                error,
            })? {
                report(Step::Present(file));
                continue;
            }
            report(Step::Differs(file));
        }
        fetch_file(&agent, file, &path, mirrors, &mut report)?;
        report(Step::Done(file));
    }
    Ok(())
}

fn agent() -> Agent {
    Agent::config_builder()
        .user_agent(concat!("soteria/", env!("CARGO_PKG_VERSION")))
        // Bytes must come as they are: a range of a re-encoded body means nothing.
        .accept_encoding("identity")
        .timeout_resolve(Some(Duration::from_secs(10)))
        .timeout_connect(Some(Duration::from_secs(10)))
        .timeout_recv_response(Some(Duration::from_secs(30)))
        .timeout_per_read(Some(Duration::from_secs(30)))
        .http_status_as_error(false)
        .build()
        .new_agent()
}

fn fetch_file(
    agent: &Agent,
    file: &'static KnownFile,
    path: &Path,
    mirrors: &[String],
    report: &mut impl FnMut(Step),
) -> Result<(), FetchError> {
    let mut part = Part::open(path, file)?;
    report(Step::Begin(file, part.length));
    let mut tried = Vec::new();
    for mirror in mirrors {
        let address = format!("{mirror}{}", file.name);
        match from_mirror(agent, &address, &mut part, report)? {
            None => return part.finish(path),
            Some(reason) => tried.push(format!("{address} ({reason})")),
        }
    }
    part.discard_if_empty();
    Err(FetchError::NoMirror {
        file: file.name,
        tried: tried.join(", "),
    })
}

/// Completes the part from one address. `Some` says why the address does not serve.
fn from_mirror(
    agent: &Agent,
    address: &str,
    part: &mut Part,
    report: &mut impl FnMut(Step),
) -> Result<Option<String>, FetchError> {
    let mut reason = String::new();
    for _ in 0..ATTEMPTS {
        let before = part.length;
        let outcome = if part.length < part.file.bytes {
            request(agent, address, part, report)?
        } else {
            Ok(())
        };
        match outcome {
            Err(failure) => reason = failure,
            Ok(()) if part.length < part.file.bytes => {
                reason = format!(
                    "it ended after {} of {} bytes",
                    part.length, part.file.bytes
                );
            }
            Ok(()) if part.matches()? => return Ok(None),
            Ok(()) => {
                // What was here before may be at fault rather than this mirror: once more from the
                // start.
                part.clear()?;
                reason = "the checksum is wrong".to_owned();
                if before > 0 {
                    continue;
                }
                break;
            }
        }
        // No byte came: asking again would not help.
        if part.length == before {
            break;
        }
    }
    Ok(Some(reason))
}

/// Asks for the missing bytes and appends them. The inner error is the mirror's, the outer one
/// ours.
fn request(
    agent: &Agent,
    address: &str,
    part: &mut Part,
    report: &mut impl FnMut(Step),
) -> Result<Result<(), String>, FetchError> {
    let mut request = agent.get(address);
    if part.length > 0 {
        request = request.header("Range", format!("bytes={}-", part.length));
    }
    let response = match request.call() {
        Ok(response) => response,
        Err(ureq::Error::Io(error)) => return Ok(Err(one_line(&error))),
        Err(error) => return Ok(Err(one_line(&error))),
    };
    let range = response
        .headers()
        .get("Content-Range")
        .and_then(|value| value.to_str().ok())
        .map(str::to_owned);
    match response.status() {
        // The whole file, asked for or not.
        StatusCode::OK => part.clear()?,
        StatusCode::PARTIAL_CONTENT
            if range.is_some_and(|range| range.starts_with(&format!("bytes {}-", part.length))) => {
        }
        StatusCode::PARTIAL_CONTENT | StatusCode::RANGE_NOT_SATISFIABLE => {
            part.clear()?;
            return Ok(Err("it cannot resume".to_owned()));
        }
        status => return Ok(Err(format!("status {}", status.as_u16()))),
    }
    let mut body = response.into_body().into_reader();
    let mut buffer = vec![0; 1 << 16];
    loop {
        match body.read(&mut buffer) {
            Ok(0) => return Ok(Ok(())),
            Ok(count) if part.length + count as u64 > part.file.bytes => {
                part.clear()?;
                return Ok(Err(format!("it is longer than {} bytes", part.file.bytes)));
            }
            Ok(count) => part.append(&buffer[..count])?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Ok(Err(one_line(&error))),
        }
        report(Step::Progress(part.length));
    }
}

fn one_line(error: &impl ToString) -> String {
    error.to_string().replace('\n', " ")
}

/// A download in progress, on disk.
struct Part {
    path: PathBuf,
    handle: File,
    length: u64,
    file: &'static KnownFile,
}

impl Part {
    fn open(target: &Path, file: &'static KnownFile) -> Result<Part, FetchError> {
        let path = target.with_file_name(format!("{}.part", file.name));
        let wrap = |error| FetchError::File {
            path: path.clone(),
            error,
        };
        let mut handle = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(wrap)?;
        match handle.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(FetchError::Busy { path }),
            // A file system without locks: two downloads at once would fail their checksums.
            Err(TryLockError::Error(_)) => {}
        }
        let length = handle.seek(SeekFrom::End(0)).map_err(wrap)?;
        let mut part = Part {
            path,
            handle,
            length,
            file,
        };
        if length > file.bytes {
            part.clear()?;
        }
        Ok(part)
    }

    fn wrap(&self, error: io::Error) -> FetchError {
        FetchError::File {
            path: self.path.clone(),
            error,
        }
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), FetchError> {
        self.handle
            .write_all(bytes)
            .map_err(|error| self.wrap(error))?;
        self.length += bytes.len() as u64;
        Ok(())
    }

    fn clear(&mut self) -> Result<(), FetchError> {
        let cleared = self.handle.set_len(0).and_then(|()| self.handle.rewind());
        self.length = 0;
        cleared.map_err(|error| self.wrap(error))
    }

    fn matches(&mut self) -> Result<bool, FetchError> {
        let digest = self.handle.rewind().and_then(|()| digest(&mut self.handle));
        Ok(digest.map_err(|error| self.wrap(error))? == self.file.sha256)
    }

    fn discard_if_empty(self) {
        if self.length == 0 {
            let _ = fs::remove_file(&self.path);
        }
    }

    fn finish(self, target: &Path) -> Result<(), FetchError> {
        let moved = self
            .handle
            .sync_all()
            .and_then(|()| fs::rename(&self.path, target));
        moved.map_err(|error| self.wrap(error))
    }
}

/// Whether a file is the published one.
fn verify(path: &Path, file: &KnownFile) -> io::Result<bool> {
    let mut handle = File::open(path)?;
    Ok(handle.metadata()?.len() == file.bytes && digest(&mut handle)? == file.sha256)
}

fn digest(reader: &mut impl Read) -> io::Result<String> {
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        match reader.read(&mut buffer) {
            Ok(0) => {
                return Ok(hasher
                    .finalize()
                    .iter()
                    .map(|byte| format!("{byte:02x}"))
                    .collect());
            }
            Ok(count) => hasher.update(&buffer[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
