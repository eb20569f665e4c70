//! Whether to take part: decided by the description alone, before anything has left and before the
//! state is bound to anything. Whatever carries the messages (our own network, another one), a
//! client comes to its [`Participant`] through [`outline`], [`joined`], [`Agreed::reach`] and
//! [`Agreed::opening`] and [`Agreed::participant`], in this order.
//!
//! A client believes nobody: the noise and the cost of the whole run are computed here, from its
//! own number of records, and compared with its own limits.

use std::sync::Arc;

use soteriafl::accounting::preliminaries;
use soteriafl::persons::Bounded;
use soteriafl::preliminary;
use soteriafl::problem::{ProblemError, weights};
use soteriafl::run as setup;
use soteriafl_core::objective::{Objective, ObjectiveError};
use soteriafl_core::protocol::{Client, ClientId, Server};
use soteriafl_core::random::{EntropyError, SecretKey};
use soteriafl_data::Adjustment;

use super::Hash;
use super::budget::{self, Cost, Limits, Priced, Refusal, Sent};
use super::description::{Description, DescriptionError};
use super::holding::Holding;
use super::participant::{
    Opening, Participant, ParticipantError, Parts, Secrets, checkpoint_every, fresh_secrets,
};
use super::records::{LoadError, Records};
use super::schema_pin::{self, ShapeError};
use super::store::{ClientStore, LedgerRun, StoreError};

/// On which terms a client takes part: its owner's word, which no server can change.
#[derive(Clone, Debug)]
pub struct Terms {
    /// Which client this is.
    pub client: ClientId,
    /// Its records.
    pub holding: Holding,
    /// Up to where it goes.
    pub limits: Limits,
    /// Up to how many records of a person it speaks of, where the run speaks of fewer.
    pub records_per_person: u32,
    /// The column that names persons, if one does: a run may bound persons by no other.
    pub person: Option<String>,
    /// Whether data sets of its state share no record.
    pub disjoint: bool,
    /// A shape of records that is permitted besides the one fixed first.
    pub shape: Option<String>,
    /// The seed of a test run; `None` for real ones.
    pub test_seed: Option<u64>,
}

/// Why a client does not take part.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AgreementError {
    /// The description cannot be used.
    #[error("the server's run cannot be joined: {}", super::shortened(&.0.to_string()))]
    Unusable(DescriptionError),
    /// The run has fewer clients.
    #[error(
        "this run has no client {client}: its clients are 0 to {}; nothing was sent, and nothing is kept of this",
        clients.saturating_sub(1)
    )]
    NoSuchClient {
        /// The number that was given.
        client: ClientId,
        /// How many there are.
        clients: usize,
    },
    /// Its secrets are known, and nobody said that this is meant.
    #[error(
        "refused: this is a test run, whose secrets are known; join it with the same --test-seed or not at all"
    )]
    TestRun,
    /// A test seed for a real run.
    #[error("refused: --test-seed is given, but this is no test run")]
    NoTestRun,
    /// Who is who, the owner of the records decides.
    #[error(transparent)]
    Person(#[from] PersonError),
    /// The state is bound to another client.
    #[error("this state has joined this run as client {bound}, not {given}")]
    OtherClient {
        /// The number that is in the messages.
        bound: ClientId,
        /// The number that was given.
        given: ClientId,
    },
    /// The state is bound to another part of the records: what the estimator remembers is about it.
    #[error("this state has joined this run with {} of the source, not with {}", part(*bound), part(*given))]
    OtherPart {
        /// The part that is in the messages.
        bound: Option<(usize, usize)>,
        /// The part that was given.
        given: Option<(usize, usize)>,
    },
    /// The state is bound to other records.
    #[error("this state has joined this run with other records")]
    OtherRecords,
    /// The source was tried with another shape.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// The records do not fit; with the names of the run's features.
    #[error("{0}")]
    Records(LoadError, Option<Vec<String>>),
    /// The price, or what nobody can price.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// Whoever was asked said no.
    #[error("{0}")]
    Declined(String),
    /// Whoever computes the model cannot, for this run.
    #[error("the model cannot be computed: {0}; nothing was sent")]
    Objective(ObjectiveError),
    /// The run cannot be set up.
    #[error(transparent)]
    Problem(#[from] ProblemError),
    /// No secrets are to be had.
    #[error(transparent)]
    Random(#[from] EntropyError),
    /// The client does not fit the plan.
    #[error("{0}")]
    Client(String),
    /// The state does not go on.
    #[error(transparent)]
    Participant(#[from] ParticipantError),
    /// The state cannot be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Why a client does not let a run take a column for the name of a person. Its number of different
/// values is told to the server, exactly, and the claim is about whom it names: so neither is a
/// server's choice (`docs/privacy.md`, section 15).
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PersonError {
    /// Nobody has said that it names persons.
    #[error(
        "refused: this run takes the column \"{}\" for the name of a person, and its server would be \
         told how many different names stand in it; nothing was sent\
         \nhint: --person says which column names persons, if one does",
        super::shortened(.0)
    )]
    Unsaid(String),
    /// Another one does.
    #[error(
        "refused: this run takes the column \"{}\" for the name of a person, and --person says \"{own}\"; \
         nothing was sent",
        super::shortened(found)
    )]
    Other {
        /// The owner's.
        own: String,
        /// The run's.
        found: String,
    },
    /// The run bounds nobody.
    #[error(
        "refused: --person says that \"{0}\" names persons, and this run bounds by no column what a person \
         brings; nothing was sent"
    )]
    Nobody(String),
}

fn part(part: Option<(usize, usize)>) -> String {
    part.map_or("all".to_string(), |(part, parts)| {
        format!("part {part}/{parts}")
    })
}

/// The run as the server describes it: for any number of records, which will do to read its shape.
/// Refuses what needs no look at the state or the records.
///
/// # Errors
/// When it cannot be read, or is a run of another kind than the terms say.
pub fn outline(terms: &Terms, text: &str) -> Result<Description, AgreementError> {
    let outline = Description::parse(text, 1 << 40).map_err(AgreementError::Unusable)?;
    let clients = outline.resolved.clients;
    if terms.client as usize >= clients {
        return Err(AgreementError::NoSuchClient {
            client: terms.client,
            clients,
        });
    }
    match (outline.test_seed == terms.test_seed, outline.test_seed) {
        (true, _) => Ok(outline),
        (false, Some(_)) => Err(AgreementError::TestRun),
        (false, None) => Err(AgreementError::NoTestRun),
    }
}

/// This run, if messages of it exist or it is over: then the state is bound to it, to this client's
/// number and to the part of the records that was in them. A run that was joined without a message
/// binds nothing.
///
/// # Errors
/// When the terms name another client or another part.
pub fn joined<'a>(
    terms: &Terms,
    outline: &Description,
    known: &'a [LedgerRun],
) -> Result<Option<&'a LedgerRun>, AgreementError> {
    let begun =
        |run: &&LedgerRun| run.hash == *outline.hash() && (run.messages > 0 || run.finished);
    let Some(run) = known.iter().find(begun) else {
        return Ok(None);
    };
    if run.client != terms.client {
        return Err(AgreementError::OtherClient {
            bound: run.client,
            given: terms.client,
        });
    }
    if run.part != terms.holding.part() && !run.finished {
        return Err(AgreementError::OtherPart {
            bound: run.part,
            given: terms.holding.part(),
        });
    }
    Ok(Some(run))
}

/// What both sides agree on, before anything has left.
pub struct Agreed {
    /// The run, for this client's number of records.
    pub description: Description,
    /// The records, ready to train on.
    pub records: Records,
    /// The loss over them.
    pub objective: Arc<dyn Objective>,
    /// The run as the ledger will know it.
    pub run: LedgerRun,
}

impl Agreed {
    /// Reads the records, computes the price, and lets `consent` see it before the terms' limits
    /// decide. `own` is the source's digest, taken before the server could say anything.
    ///
    /// # Errors
    /// When anything stands in the way; nothing has left then.
    pub fn reach(
        terms: &Terms,
        own: Hash,
        outline: &Description,
        known: &[LedgerRun],
        store: &mut impl ClientStore,
        consent: &mut dyn Consent,
    ) -> Result<Self, AgreementError> {
        let holding = &terms.holding;
        let names = outline.shape.names.as_deref();
        let unfit = |error| AgreementError::Records(error, names.map(<[String]>::to_vec));
        // Before a shape is kept that is none of these records'.
        holding.check_model(outline).map_err(unfit)?;
        check_person(terms.person.as_deref(), outline)?;
        let same = known.iter().filter(|run| run.data == own);
        schema_pin::admit(
            store,
            holding,
            &outline.shape,
            same.map(|run| run.description.as_str()),
            terms.shape.as_deref(),
        )?;
        let records = holding.load(own, outline).map_err(unfit)?;
        if let (Some(names), false) = (names, records.named) {
            consent.unnamed(names);
        }
        if !records.adjustments.is_empty() {
            consent.adjusted(&records.adjustments);
        }
        if let Some(bounded) = &records.bounded {
            consent.bounded(bounded, outline.resolved.records_per_person);
        }
        let rows = records.data.records();
        let description =
            Description::parse(outline.text(), rows).map_err(AgreementError::Unusable)?;
        let before = joined(terms, outline, known)?;
        let messages = before.map_or(0, |run| run.messages);
        let sent = Sent::messages(messages);
        let price = budget::price_of_persons(&description, rows, terms.records_per_person)
            .map_err(|refusal| refusal.of_the_run(sent))?;
        budget::check_claim(&description, &price, sent)?;
        if let Some(before) = before {
            check_unchanged(before, &records, &price)?;
        }
        let run = LedgerRun {
            hash: *description.hash(),
            description: outline.text().to_string(),
            client: terms.client,
            data: records.digest,
            part: holding.part(),
            price,
            messages,
            finished: false,
        };
        let cost = Cost::of(&run, known, &terms.limits, terms.disjoint)?;
        consent.shown(&cost, &description);
        budget::check_limits(&cost.counted, &cost.total, &run, &terms.limits)?;
        let counted = cost.total.spent.records_per_person;
        if terms.limits.epsilon.is_some() && counted < terms.records_per_person {
            return Err(AgreementError::Declined(format!(
                "refused: --records-per-person {} is given, and an earlier run of this state was \
                 accounted for persons with {counted} of them; {sent}",
                terms.records_per_person
            )));
        }
        // What was agreed to is not asked again. Before the first message nothing was: the part of
        // the records, the price or what was spent beside it may be others by now.
        if terms.limits.epsilon.is_none() && run.messages == 0 {
            consent.without_limit(&cost)?;
        }
        let objective = holding.objective(&description);
        Ok(Self {
            objective: objective.map_err(AgreementError::Objective)?,
            description,
            records,
            run,
        })
    }

    /// The client before the first round, going on where the store ends. The run has begun in it.
    ///
    /// # Errors
    /// When the store cannot be read, or a release has no noise.
    pub fn opening<S: ClientStore>(
        &self,
        store: S,
        terms: &Terms,
    ) -> Result<Opening<S>, AgreementError> {
        let run = self.description.resolved.specification();
        let data = Arc::clone(&self.records.data);
        let releases = preliminaries(&run, data.records()).map_err(Refusal::from)?;
        let hash = *self.description.hash();
        let aim = preliminary::aim(&self.description.resolved);
        let secrets = secrets(terms);
        Ok(Opening::new(store, hash, releases, data, aim, secrets)?)
    }

    /// The client itself, once all that comes before the first round is over, going on where its
    /// store ends. A checkpoint is written every so many rounds; `None`: so often that it costs
    /// little beside the messages.
    ///
    /// # Errors
    /// When the store belongs to something else, or there are no secrets.
    pub fn participant<S: ClientStore>(
        &self,
        opening: Opening<S>,
        terms: &Terms,
        every: Option<u32>,
    ) -> Result<Participant<S>, AgreementError> {
        let missing =
            || AgreementError::Client("a release before the first round is missing".into());
        let (store, data) = opening.into_parts().ok_or_else(missing)?;
        let description = &self.description;
        let resolved = &description.resolved;
        let plan = Arc::new(setup::plan_for(resolved, &self.objective)?);
        let client = Client::new(
            terms.client,
            Arc::clone(&plan),
            data,
            resolved.specification().sampling(),
            self.run.price.sigma,
            // Replaced before every message.
            SecretKey::from_operating_system()?,
        )
        .map_err(|error| AgreementError::Client(error.to_string()))?;
        let start = description.compute_start();
        let awaits_start = start.is_none().then_some(description.start);
        let start = start.unwrap_or_else(|| vec![0.0; description.dimension()]);
        // Weights are the server's business: a replica is given averages.
        let server_plan =
            setup::server_plan(resolved, &description.model, &plan, weights(resolved, &[1]));
        Ok(Participant::new(Parts {
            store,
            run: *description.hash(),
            client,
            trained_on: terms.holding.in_order(),
            compressor: plan.compressor.clone(),
            replica: Server::follower(server_plan, start),
            awaits_start,
            secrets: secrets(terms),
            checkpoint_every: every.unwrap_or_else(|| checkpoint_every(&plan.compressor)),
        })?)
    }
}

/// Where a client's secrets come from: the operating system, but for test runs.
fn secrets(terms: &Terms) -> Secrets {
    let (test_seed, id) = (terms.test_seed, terms.client);
    Box::new(move |_, purpose| match test_seed {
        Some(seed) => Ok(SecretKey::simulated(seed, id).into()),
        None => fresh_secrets(purpose),
    })
}

/// Is shown what taking part costs, and may say no.
pub trait Consent {
    /// The records do not say what their columns are called, so their order is not checked; the run
    /// has these.
    fn unnamed(&mut self, names: &[String]);

    /// What the schema made of values that do not fit it: for the owner of the records alone.
    fn adjusted(&mut self, adjustments: &[Adjustment]);

    /// What was left out of persons who have more records than the run speaks of: for the owner of
    /// the records alone.
    fn bounded(&mut self, bounded: &Bounded, most: u32);

    /// What the run costs, before any limit is applied.
    fn shown(&mut self, cost: &Cost<'_>, description: &Description);

    /// There is no limit but the run's own epsilon, and no message was made yet.
    ///
    /// # Errors
    /// [`AgreementError::Declined`], or what came in between.
    fn without_limit(&mut self, cost: &Cost<'_>) -> Result<(), AgreementError>;
}

/// A run bounds persons by the column that the owner of the records has named, or by none if none
/// was: a comparison of names, at which no record is looked.
fn check_person(own: Option<&str>, outline: &Description) -> Result<(), PersonError> {
    match (own, outline.person_column()) {
        (None, Some(found)) => Err(PersonError::Unsaid(found.to_owned())),
        (Some(own), None) => Err(PersonError::Nobody(own.to_owned())),
        (Some(own), Some(found)) if own != found => Err(PersonError::Other {
            own: own.to_owned(),
            found: found.to_owned(),
        }),
        _ => Ok(()),
    }
}

/// A run goes on with the records and the noise that were paid for.
fn check_unchanged(
    before: &LedgerRun,
    records: &Records,
    price: &Priced,
) -> Result<(), AgreementError> {
    if before.data != records.digest || before.price.records != price.records {
        return Err(AgreementError::OtherRecords);
    }
    match before.price.difference(price) {
        None => Ok(()),
        Some(difference) => Err(Refusal::Noise(difference).into()),
    }
}
