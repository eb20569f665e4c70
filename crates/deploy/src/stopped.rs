//! A state that has stopped: a note in its directory, after which it makes nothing more.
//!
//! Whether a model that somebody computes elsewhere can be computed may depend on a record, and the
//! server chooses at which model that is asked. A client that could be asked again without end, or
//! is started again by a service manager, would tell one bit each time. So the first failure leaves
//! a note, durably and while the state is still open to no other process, and a state with a note
//! answers nobody until its owner has removed it (`docs/privacy.md`, section 13, item 10).

use std::io::Write;
use std::path::{Path, PathBuf};

use super::sqlite::{open_private, sync_directory};
use super::store::StoreError;

/// The file in a state's directory that says that a model could not be computed.
pub const STOPPED: &str = "stopped";

/// The note of a state, if it has one.
pub fn note(state: &Path) -> Option<PathBuf> {
    let path = state.join(STOPPED);
    path.symlink_metadata().is_ok().then_some(path)
}

/// Leaves a note, and says where. Where not even that can be kept no message could be either.
///
/// # Errors
/// When it cannot be kept.
pub(super) fn stop(state: &Path, round: u32) -> Result<PathBuf, StoreError> {
    let path = state.join(STOPPED);
    let leave = || -> std::io::Result<()> {
        let mut file = open_private(&path)?;
        writeln!(file, "The model could not be computed in round {round}.")?;
        file.sync_all()?;
        #[cfg(unix)]
        sync_directory(state)?;
        Ok(())
    };
    match leave() {
        Ok(()) => Ok(path),
        Err(reason) => Err(StoreError::Failed {
            path: path.display().to_string(),
            reason: reason.to_string(),
        }),
    }
}

/// The owner's word that a state that has stopped may go on.
///
/// # Errors
/// When the note cannot be removed.
pub fn resume(state: &Path) -> std::io::Result<()> {
    match std::fs::remove_file(state.join(STOPPED)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
