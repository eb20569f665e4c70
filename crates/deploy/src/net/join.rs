//! A client's whole way over our own network: looks for the server, agrees or refuses, follows the
//! run to its end, and says that it knows it. Who watches, and how it is shown, is a [`Companion`].

use std::path::PathBuf;
use std::time::{Duration, Instant};

use bytes::Bytes;
use soteriafl_core::objective::ObjectiveError;
use soteriafl_data::DataError;

use super::client::{self, Audience, Caller, FollowError, Patience};
use super::connect::Target;
use crate::agreement::{self, Agreed, AgreementError, Consent, Terms};
use crate::participant::ParticipantError;
use crate::sqlite::ClientSqlite;
use crate::stopped;
use crate::store::{ClientStore, LedgerRun, StoreError};

/// How long a client whose last run is over looks for a server with another one, which may have
/// been started with it.
const AFTER_THE_END: Duration = Duration::from_secs(4);

/// How often a server that waits is told that the end is known.
const ACKNOWLEDGED: usize = 6;

/// Why a client does not take part, or no longer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// It does not agree.
    #[error(transparent)]
    Agreement(#[from] AgreementError),
    /// It cannot go on.
    #[error(transparent)]
    Follow(#[from] FollowError),
    /// The records cannot be read.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The state cannot be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Whoever computes the model could not: nothing was sent, and the state has stopped.
    #[error(
        "the model could not be computed in round {round}, and nothing was sent; that may be about \
         a record, so this state goes on only once its owner has removed {}: {error}",
        note.display()
    )]
    Failed {
        /// The round.
        round: u32,
        /// The file that stops the state.
        note: PathBuf,
        /// Why.
        #[source]
        error: ObjectiveError,
    },
    /// That was so before.
    #[error(
        "a model could not be computed before, and this state goes on only once its owner has \
         mended it and removed {} (each time that it is removed, the server may learn one more bit \
         about the records)",
        .0.display()
    )]
    Stopped(PathBuf),
}

/// Goes with a client: consents, and shows how it gets on.
pub trait Companion: Consent + Audience<ClientSqlite> {
    /// There is no server yet, for a reason that may pass.
    fn no_answer(&mut self, reason: &str);

    /// There is none, and the last run of the state is over.
    fn nothing_to_do(&mut self, reason: &str);

    /// The last word before anything is sent: by now it has consented, and the limits hold.
    ///
    /// # Errors
    /// When it does not take part after all.
    fn agrees(&mut self) -> Result<(), AgreementError> {
        Ok(())
    }

    /// The server has taken this client, into a run of so many rounds.
    fn begins(&mut self, rounds: u32);

    /// There is a connection, the first or another one.
    fn connected(&mut self);

    /// There is none any more, for a reason that may pass.
    fn cut_off(&mut self, reason: &str);
}

/// Takes part in the run of the server at `target`, to its end, and returns what the ledger says of
/// it: of the last run of the state, if there is no server and nothing left to do.
///
/// # Errors
/// When the run is refused, the server refuses, or one side cannot go on. Started again with the
/// same state it goes on where it was.
pub async fn take_part(
    terms: &Terms,
    mut store: ClientSqlite,
    target: &Target,
    companion: &mut impl Companion,
) -> Result<Option<LedgerRun>, JoinError> {
    // It is this process's now: whoever had it before has left the note, if there is to be one.
    let state = store.directory().to_owned();
    if let Some(note) = stopped::note(&state) {
        return Err(JoinError::Stopped(note));
    }
    let mut caller = Caller::new(target, terms.client);
    let known = store.runs()?;
    // Before the server can say anything about them.
    let own = terms.holding.digest()?;
    let Some(text) = describe(&mut caller, known.last(), companion).await? else {
        return Ok(known.last().cloned());
    };
    let outline = agreement::outline(terms, &text)?;
    let run = Bytes::copy_from_slice(&outline.run_id());
    let mut caller = caller.for_run(run, outline.dimension(), outline.longest_release());
    if let Some(over) = agreement::joined(terms, &outline, &known)?
        && over.finished
    {
        acknowledge(&mut caller).await?;
        return Ok(Some(over.clone()));
    }
    let agreed = Agreed::reach(terms, own, &outline, &known, &mut store, companion)?;
    companion.agrees()?;
    let run = &agreed.run;
    let (hash, rows) = (run.hash, agreed.records.data.records() as u64);
    let mut patience = Patience::default();
    enter(&mut caller, rows, &mut patience).await?;
    // Not before the server has taken this client: a number that it refuses binds nothing.
    if run.messages == 0 {
        store.begin(run)?;
    }
    let mut opening = agreed.opening(store, terms)?;
    loop {
        match client::release(&mut caller, &mut opening).await {
            Ok(()) => break,
            Err(FollowError::Passing(reason)) => tracing::debug!(reason, "trying again"),
            Err(error) => return Err(error.into()),
        }
        patience.pause().await;
        enter(&mut caller, rows, &mut patience).await?;
    }
    let mut participant = agreed.participant(opening, terms, None)?;
    companion.begins(agreed.description.resolved.rounds);
    loop {
        companion.connected();
        match client::follow(&mut caller, &mut participant, companion).await {
            Ok(()) => break,
            Err(FollowError::Passing(reason)) => companion.cut_off(&reason),
            // While nobody else can open the state.
            Err(FollowError::Participant(ParticipantError::Objective { round, error })) => {
                let note = stopped::stop(&state, round)?;
                return Err(JoinError::Failed { round, note, error });
            }
            Err(error) => return Err(error.into()),
        }
        patience.pause().await;
        enter(&mut caller, rows, &mut patience).await?;
    }
    acknowledge(&mut caller).await?;
    let runs = participant.store().runs()?;
    Ok(runs.into_iter().find(|known| known.hash == hash))
}

/// Joins, as often as it takes.
async fn enter(caller: &mut Caller, rows: u64, patience: &mut Patience) -> Result<(), FollowError> {
    loop {
        match caller.join(rows).await {
            Ok(()) => {
                patience.reset();
                return Ok(());
            }
            Err(FollowError::Passing(reason)) => tracing::debug!(reason, "trying again"),
            Err(error) => return Err(error),
        }
        patience.pause().await;
    }
}

/// The run that the server coordinates; `None` if there is no server and nothing left to do.
async fn describe(
    caller: &mut Caller,
    last: Option<&LedgerRun>,
    companion: &mut impl Companion,
) -> Result<Option<String>, FollowError> {
    let over = last.is_some_and(|run| run.finished);
    let (start, mut patience, mut said) = (Instant::now(), Patience::default(), false);
    loop {
        match caller.describe().await {
            Ok(text) => return Ok(Some(text)),
            Err(FollowError::Passing(reason)) if over && start.elapsed() > AFTER_THE_END => {
                companion.nothing_to_do(&reason);
                return Ok(None);
            }
            Err(FollowError::Passing(reason)) => {
                if !std::mem::replace(&mut said, true) {
                    companion.no_answer(&reason);
                }
            }
            Err(error) => return Err(error),
        }
        patience.pause().await;
    }
}

/// The server may be gone already: it waits for this, but not forever.
async fn acknowledge(caller: &mut Caller) -> Result<(), FollowError> {
    let mut patience = Patience::default();
    for _ in 0..ACKNOWLEDGED {
        match caller.acknowledge().await {
            Ok(()) => return Ok(()),
            Err(FollowError::Passing(_)) => patience.pause().await,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
