//! Large states of a client, in files beside its database.
//!
//! A state of a million parameters is twelve megabytes. In the database it would be written twice,
//! to the log and to the file, with sums over it, and cut into small pages: most of the time of a
//! process of one message. Here it is written once.
//!
//! **Two files a run**, by turns. The one that the database does not name is overwritten and made
//! durable; then the database names it, in the transaction that would have held the state. Whatever
//! is killed when, the database names a whole state. What it names is a number drawn for this one
//! state, which stands at both ends of the file: a file of another time is none of it. The state
//! before the last lives until the next one is written over it; when a run is over both files are
//! overwritten with zeros and removed.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use soteriafl_core::protocol::{ClientState, Round, ServerState};
use soteriafl_core::random::SecretKey;

use super::super::store::Checkpoint;
use super::super::{Hash, from_bytes, hex, in_pieces};
use super::open_private;
#[cfg(unix)]
use super::sync_directory;

/// From so many bytes on a state has files of its own.
const LARGE: usize = 1 << 18;

/// How a reference begins that stands in the place of a model. Its length is no multiple of four,
/// so programs that know no files refuse it as a vector.
const MARK: &[u8; 4] = b"file";

/// Bytes of the number that names a state.
const NAME: usize = 32;

/// Mark, which of the files, name, and the lengths of the five parts.
const REFERENCE: usize = MARK.len() + 1 + NAME + 5 * 8;

fn parts(state: &Checkpoint) -> ([&[f32]; 4], &[u8]) {
    let Checkpoint { server, client } = state;
    (
        [
            &server.model,
            &server.shift,
            &server.velocity,
            &client.shift,
        ],
        &client.memory,
    )
}

/// Whether a state has files of its own.
pub(super) fn is_large(state: &Checkpoint) -> bool {
    let (vectors, memory) = parts(state);
    4 * vectors.map(<[f32]>::len).iter().sum::<usize>() + memory.len() >= LARGE
}

/// Which of the two files the database names; `None` where the state stands in it.
pub(super) fn place(model: &[u8]) -> Option<u8> {
    (model.len() == REFERENCE && model.starts_with(MARK)).then(|| model[MARK.len()])
}

/// What the names of a run's files begin with.
fn stem(run: &Hash) -> String {
    format!("state-{}-", hex(&run[..8]))
}

fn path(directory: &Path, run: &Hash, place: u8) -> PathBuf {
    directory.join(format!("{}{place}", stem(run)))
}

/// Whether a file has a name of this kind: others of the owner's in that directory stay as they are.
fn is_own(name: &str) -> bool {
    let digits = |run: &str| run.len() == 16 && run.bytes().all(|byte| byte.is_ascii_hexdigit());
    name.strip_prefix("state-")
        .and_then(|rest| rest.split_once('-'))
        .is_some_and(|(run, place)| digits(run) && matches!(place, "0" | "1"))
}

/// Writes a state where the database, which names `current`, does not look, and makes it durable.
/// Returns what it is to name now.
pub(super) fn write(
    directory: &Path,
    run: &Hash,
    current: Option<u8>,
    state: &Checkpoint,
) -> io::Result<Vec<u8>> {
    let place = u8::from(current == Some(0));
    let path = path(directory, run, place);
    let new = !path.exists();
    let (vectors, memory) = parts(state);
    let name = SecretKey::from_operating_system().map_err(io::Error::other)?;
    let name = name.expose();
    let lengths = vectors.map(|values| 4 * values.len() as u64);
    let mut reference = Vec::with_capacity(REFERENCE);
    reference.extend_from_slice(MARK);
    reference.push(place);
    reference.extend_from_slice(name);
    for length in lengths.into_iter().chain([memory.len() as u64]) {
        reference.extend_from_slice(&length.to_le_bytes());
    }
    let mut file = open_private(&path)?;
    file.write_all(name)?;
    for values in vectors {
        let mut written = Ok(());
        in_pieces(values, |bytes| {
            if written.is_ok() {
                written = file.write_all(bytes);
            }
        });
        written?;
    }
    file.write_all(memory)?;
    file.write_all(name)?;
    // What a longer one had behind this end.
    let end = lengths.iter().sum::<u64>() + memory.len() as u64 + 2 * NAME as u64;
    if file.metadata()?.len() != end {
        file.set_len(end)?;
    }
    file.sync_data()?;
    #[cfg(unix)]
    if new {
        sync_directory(directory)?;
    }
    #[cfg(not(unix))]
    let _ = new;
    Ok(reference)
}

/// The state that the database names; `None` where the file is not the one.
pub(super) fn read(
    directory: &Path,
    run: &Hash,
    round: Round,
    reference: &[u8],
) -> io::Result<Option<Checkpoint>> {
    let Some(place) = place(reference) else {
        return Ok(None);
    };
    let (name, lengths) = reference[MARK.len() + 1..].split_at(NAME);
    let (lengths, _) = lengths.as_chunks::<8>();
    let lengths: Vec<u64> = lengths
        .iter()
        .map(|&bytes| u64::from_le_bytes(bytes))
        .collect();
    let mut file = match File::open(path(directory, run, place)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let whole = lengths
        .iter()
        .try_fold(2 * NAME as u64, |sum, &length| sum.checked_add(length));
    if whole != Some(file.metadata()?.len()) {
        return Ok(None);
    }
    let mut take = |length: u64| -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; length as usize];
        file.read_exact(&mut bytes)?;
        Ok(bytes)
    };
    if take(NAME as u64)? != name {
        return Ok(None);
    }
    let mut vectors = [const { Vec::new() }; 4];
    for (values, &length) in vectors.iter_mut().zip(&lengths) {
        match from_bytes(&take(length)?) {
            Some(read) => *values = read,
            None => return Ok(None),
        }
    }
    let memory = take(lengths[4])?;
    if take(NAME as u64)? != name {
        return Ok(None);
    }
    let [model, shift, velocity, own_shift] = vectors;
    Ok(Some(Checkpoint {
        server: ServerState {
            round,
            model,
            shift,
            velocity,
            target: Vec::new(),
        },
        client: ClientState {
            shift: own_shift,
            memory,
        },
    }))
}

/// Overwrites and removes the files of runs that have no state any more: of all but `kept`.
pub(super) fn sweep(directory: &Path, kept: &[Hash]) -> io::Result<()> {
    let kept: Vec<String> = kept.iter().map(stem).collect();
    let mut removed = false;
    for entry in fs::read_dir(directory)? {
        let name = entry?.file_name();
        let Some(name) = name.to_str().filter(|name| is_own(name)) else {
            continue;
        };
        if kept.iter().any(|stem| name.starts_with(stem)) {
            continue;
        }
        let path = directory.join(name);
        let mut file = open_private(&path)?;
        let length = file.metadata()?.len();
        io::copy(&mut io::repeat(0).take(length), &mut file)?;
        file.sync_data()?;
        fs::remove_file(&path)?;
        removed = true;
    }
    #[cfg(unix)]
    if removed {
        sync_directory(directory)?;
    }
    #[cfg(not(unix))]
    let _ = removed;
    Ok(())
}
