//! Why a participant stops, and what a person can do about it.

use soteriafl_core::compress::DecodeError;
use soteriafl_core::objective::ObjectiveError;
use soteriafl_core::protocol::{Round, ServerError};
use soteriafl_core::random::EntropyError;

use super::super::store::StoreError;

/// Why a participant stops. Nothing that a server says makes it send more.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ParticipantError {
    /// The state cannot be kept: the process must end and start again.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// No randomness.
    #[error(transparent)]
    Entropy(#[from] EntropyError),
    /// The average is none of this run.
    #[error("the server sent no average of round {round}: {error}")]
    Average {
        /// The round.
        round: Round,
        /// What is wrong.
        error: DecodeError,
    },
    /// A round is missing.
    #[error("the server skipped from round {expected} to {found}")]
    Gap {
        /// The round that should have come.
        expected: Round,
        /// The round that came.
        found: Round,
    },
    /// A state that is none of this run, or lies behind.
    #[error("the server sent no usable state of round {round}: {reason}")]
    State {
        /// Its round.
        round: Round,
        /// What is wrong.
        reason: &'static str,
    },
    /// The client's own state is none of this run and these records.
    #[error("the stored state of round {round} cannot be used: {reason}")]
    Stored {
        /// Its round.
        round: Round,
        /// What is wrong.
        reason: &'static str,
    },
    /// A release before the first round that is none of this run.
    #[error(
        "the server's word on release {number}, before the first round, cannot be used: {reason}"
    )]
    Release {
        /// Which release, from 0.
        number: u32,
        /// What is wrong.
        reason: &'static str,
    },
    /// The model left the range of numbers.
    #[error(
        "after round {0} the model is no longer finite: the run has diverged, or the server lies"
    )]
    Diverged(Round),
    /// The server tells another story than before.
    #[error(
        "round {0} had another model when this client sent its message: the server has lost or changed its past"
    )]
    Past(Round),
    /// The server took messages that this state knows nothing of.
    #[error(
        "the server took at least {taken} messages of this client in this run, and this state knows of {known}: it is an older copy, \
         and its ledger says too little (or the server lies)"
    )]
    Forgotten {
        /// Messages that the server took.
        taken: u32,
        /// Those of them that this state has made.
        known: u32,
    },
    /// The server took a message that another copy of this state has made.
    #[error(
        "in round {0} the server took another message of this client than this state has made: two copies of the state are in use, \
         and neither ledger says enough"
    )]
    Copied(Round),
    /// A stored message cannot be repeated.
    #[error("the message of round {0} cannot be computed again from the stored state")]
    Repeat(Round),
    /// The objective failed: nothing was sent or spent, and the round can be tried again.
    #[error("the message of round {round} could not be computed, and nothing was sent: {error}")]
    Objective {
        /// The round.
        round: Round,
        /// Why.
        #[source]
        error: ObjectiveError,
    },
    /// The core refuses.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// Something failed before: what is in memory may not be what is stored.
    #[error("this client has failed and must be started again")]
    Failed,
}

impl ParticipantError {
    /// What a person can do about it, if anything.
    pub fn hints(&self) -> &'static [&'static str] {
        match self {
            ParticipantError::Forgotten { .. } | ParticipantError::Copied(_) => &HINTS_FORGOTTEN,
            _ => &[],
        }
    }
}

/// The client stays stopped until somebody decides: only a person can tell an older copy from a
/// server that lies, and a ledger that says too little cannot be mended afterwards.
const HINTS_FORGOTTEN: [&str; 3] = [
    "nothing more was sent, and the state is as it was",
    "if it was restored from a copy, put the newest one back; if that is lost, leave this run, and count \
     all of it as spent",
    "if it is the newest for certain, this is not the server that it has spoken to: see who answers at \
     that address (without TLS any process of this machine may), and start again when the right one does",
];
