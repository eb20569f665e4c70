//! A client over a transport of questions and answers ([`exchange`]) that remembers nothing but its
//! state directory: every question may be answered by a new process.
//!
//! **Guarantee.** What `soteria join` guarantees: the run is judged by the owner's [`Terms`] before
//! anything leaves, by every process anew; a message is in the ledger before it is in an answer;
//! a client that does not take part says so and gives no reason. Whether a model that somebody
//! computes elsewhere can be computed may depend on a record, and the server chooses at which model
//! that is asked: so the first failure stops the state, by a durable note ([`stopped`]) and before
//! any other process can open it; every later question, about whatever run, is answered alike until
//! the owner has removed the note (`docs/privacy.md`, section 13). **Cost.** Each question opens
//! the state, reads the records and prices the run; [`Node::kept_open`] does that once per process.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use soteriafl_core::objective::ObjectiveError;
use soteriafl_data::DataError;

use super::agreement::{self, Agreed, AgreementError, Consent, Terms};
use super::description::RUN_ID_LEN;
use super::exchange::{self, Answer, ExchangeError, Question};
use super::participant::{Participant, ParticipantError, Position};
use super::sqlite::ClientSqlite;
use super::stopped;
use super::store::{ClientStore, StoreError};

/// Why a question has no answer but, perhaps, [`Answer::Refused`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    /// The client does not take part.
    #[error(transparent)]
    Agreement(Box<AgreementError>),
    /// The question is not understood, or one side cannot go on.
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
    /// The state cannot be opened.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The records cannot be read.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The state knows nothing of this run.
    #[error("the server goes on with a run that this state has never joined")]
    Unknown,
    /// Whoever computes the model could not: nothing was sent, and the state has stopped.
    #[error(
        "the model could not be computed in round {round}, and nothing was sent; that may be about \
         a record, so this state answers nothing more until its owner has removed {}: {error}",
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
        "a model could not be computed before, and this state answers nothing more: see its log \
         for why, mend it, and remove {} (each time that it is removed, the server may learn one \
         more bit about the records)",
        .0.display()
    )]
    Stopped(PathBuf),
}

impl From<AgreementError> for NodeError {
    fn from(error: AgreementError) -> Self {
        Self::Agreement(Box::new(error))
    }
}

/// A client that is asked.
pub struct Node {
    state: PathBuf,
    terms: Terms,
    keep: bool,
    open: Option<(Bytes, u64, Participant<ClientSqlite>)>,
}

impl Node {
    /// A client with its state in a directory.
    pub fn new(state: impl Into<PathBuf>, terms: Terms) -> Self {
        Self {
            state: state.into(),
            terms,
            keep: false,
            open: None,
        }
    }

    /// The same in a process that lives through the run: the state stays open, so no other process
    /// can use it meanwhile, and checkpoints are as rare as those of `soteria join`.
    #[must_use]
    pub fn kept_open(self) -> Self {
        Self { keep: true, ..self }
    }

    /// Answers a question.
    ///
    /// # Errors
    /// When it takes no part ([`NodeError::Agreement`]: answer [`Answer::Refused`]), or cannot.
    pub fn answer(
        &mut self,
        question: &[u8],
        consent: &mut dyn Consent,
    ) -> Result<Answer, NodeError> {
        let question = Question::decode(question)?;
        if let Some((run, records, participant)) = &mut self.open
            && question.run() == Some(&run[..])
        {
            let client = self.terms.client;
            let answer = exchange::answer(participant, &question, run, client, *records);
            let answer = answer.or_else(|error| stopping(&self.state, error));
            if answer.is_err() {
                // The next question begins with what is stored.
                self.open = None;
            }
            return answer;
        }
        // Before the state is opened again: one process has it once.
        self.open = None;
        self.agree(&question, consent)
    }

    /// The owner's word that a state that has stopped may go on.
    ///
    /// # Errors
    /// When the note cannot be removed.
    pub fn resume(&mut self) -> std::io::Result<()> {
        stopped::resume(&self.state)
    }

    fn agree(
        &mut self,
        question: &Question,
        consent: &mut dyn Consent,
    ) -> Result<Answer, NodeError> {
        let terms = &self.terms;
        let mut store = match self.keep {
            true => ClientSqlite::open(&self.state)?,
            false => ClientSqlite::open_briefly(&self.state)?,
        };
        // Only now: whoever had the state until now may have left a note.
        if let Some(note) = stopped::note(&self.state) {
            return Err(NodeError::Stopped(note));
        }
        let known = store.runs()?;
        // Before the server's description can say anything about them.
        let own = terms.holding.digest()?;
        let asked = question.run();
        let text = match &question.description {
            Some(text) => text,
            None => {
                let named = known
                    .iter()
                    .find(|run| asked == Some(&run.hash[..RUN_ID_LEN]));
                &named.ok_or(NodeError::Unknown)?.description
            }
        };
        let outline = agreement::outline(terms, text)?;
        let run = Bytes::copy_from_slice(&outline.run_id());
        if asked.is_some_and(|asked| asked != run) {
            return Err(ExchangeError::OtherRun("question").into());
        }
        let takes_part = |records, position| Answer::TakesPart {
            run: run.clone(),
            client: terms.client,
            records,
            position,
            message: None,
            averages: None,
            release: None,
        };
        if let Some(over) = agreement::joined(terms, &outline, &known)?
            && over.finished
        {
            let end = Position {
                have: Some(outline.resolved.rounds),
                pending: None,
                every_round: false,
            };
            return Ok(takes_part(over.price.records, Some(end)));
        }
        let agreed = Agreed::reach(terms, own, &outline, &known, &mut store, consent)?;
        let records = agreed.records.data.records() as u64;
        if asked.is_none() {
            return Ok(takes_part(records, None));
        }
        // The server has taken this client: now the state is bound.
        if agreed.run.messages == 0 {
            store.begin(&agreed.run).map_err(AgreementError::from)?;
        }
        // What a process of one message does not keep, the next one would have to be told again.
        let every = (!self.keep).then_some(1);
        let mut opening = agreed.opening(store, terms)?;
        if let Some(answer) =
            exchange::answer_opening(&mut opening, question, &run, terms.client, records)?
        {
            return Ok(answer);
        }
        let mut participant = agreed.participant(opening, terms, every)?;
        let answer = exchange::answer(&mut participant, question, &run, terms.client, records)
            .or_else(|error| stopping(&self.state, error))?;
        if self.keep {
            self.open = Some((run, records, participant));
        }
        Ok(answer)
    }
}

/// Stops the state if it was the model that could not be computed: while it is still open, so that
/// no other process can ask meanwhile. Where not even that can be kept no message could be either,
/// and both say the same.
fn stopping(state: &Path, error: ExchangeError) -> Result<Answer, NodeError> {
    let ExchangeError::Client(ParticipantError::Objective { round, error }) = error else {
        return Err(error.into());
    };
    let note = stopped::stop(state, round)?;
    Err(NodeError::Failed { round, note, error })
}
