//! What a coordinator answers when it does not do what it is asked. A wrong call changes nothing; a
//! state that cannot be kept ends the process.

use soteriafl_core::protocol::{ClientId, Round, ServerError};

use super::super::store::StoreError;
use soteriafl::problem::ProblemError;

/// Why a call is not answered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CoordinatorError {
    /// The state cannot be kept: the process must end and start again.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// No such client.
    #[error("client {client} is not one of the {clients} clients of this run")]
    UnknownClient {
        /// The number found.
        client: ClientId,
        /// How many there are.
        clients: usize,
    },
    /// The client has not joined.
    #[error("client {0} has not joined")]
    NotJoined(ClientId),
    /// The client joined with another number of records.
    #[error("client {client} joined with {known} records, not {found}")]
    Records {
        /// Which client.
        client: ClientId,
        /// What it said first.
        known: u64,
        /// What it says now.
        found: u64,
    },
    /// A number of records that no client of this run can have.
    #[error("client {client} has {found} records: {reason}")]
    BadRecords {
        /// Which client.
        client: ClientId,
        /// What it says.
        found: u64,
        /// What is wrong.
        reason: &'static str,
    },
    /// The noise for this number of records has not been computed yet, and the actor that answers
    /// does not do it.
    #[error("the noise of a client with {0} records is not known yet")]
    Uncalibrated(u64),
    /// Not all clients have joined yet.
    #[error("the run has not begun")]
    NotBegun,
    /// The bytes are no message of this run.
    #[error("not a message of this run: {0}")]
    Malformed(String),
    /// A round that is not open yet.
    #[error("round {found} is not open, round {open} is")]
    Early {
        /// The message's round.
        found: Round,
        /// The open round.
        open: Round,
    },
    /// The client's model is ahead of ours.
    #[error(
        "client {client} has been in round {found}, but round {open} is open here: this server has lost rounds"
    )]
    Ahead {
        /// Which client.
        client: ClientId,
        /// The client's round: of its model, or of a message that it made.
        found: Round,
        /// The open round.
        open: Round,
    },
    /// Another message for the same round; the first one stands.
    #[error("client {client} has sent another message for round {round} before")]
    Conflict {
        /// Which client.
        client: ClientId,
        /// Which round.
        round: Round,
    },
    /// No honest client sends this.
    #[error("the message of client {client} in round {round} is larger than any honest one")]
    Implausible {
        /// Which client.
        client: ClientId,
        /// Which round.
        round: Round,
    },
    /// The model left the range of numbers, whatever the clients send.
    #[error(
        "in round {0} the model is no longer finite, whatever the clients send: the run has diverged"
    )]
    Diverged(Round),
    /// The plan does not fit.
    #[error(transparent)]
    Problem(#[from] ProblemError),
    /// The core refuses.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// Something failed before: what is in memory may not be what is stored.
    #[error("this server has failed and must be started again")]
    Failed,
}

impl CoordinatorError {
    /// Whether it is the server that cannot go on, whatever clients do.
    pub fn ends_the_server(&self) -> bool {
        matches!(
            self,
            Self::Store(_) | Self::Diverged(_) | Self::Problem(_) | Self::Server(_) | Self::Failed
        )
    }
}
