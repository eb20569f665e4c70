//! Whether to take part: decided by the description alone, before anything has left and before the
//! state is bound to anything.

use soteriafl_data::{DataDirectories, Share};

use super::super::{Failure, Verbosity};
use super::consent::{self, Cost};
use super::{Options, some_of, unfit, unusable};
use soteriafl_deploy::Hash;
use soteriafl_deploy::budget::{self, Limits, Priced, Refusal, Sent};
use soteriafl_deploy::description::Description;
use soteriafl_deploy::records::{self, Records};
use soteriafl_deploy::schema_pin;
use soteriafl_deploy::store::{ClientStore, LedgerRun};

/// The run as the server describes it: for any number of records, which will do to read its shape.
/// Refuses what needs no look at the state or the records.
pub(super) fn outline(options: &Options, text: &str) -> Result<Description, Failure> {
    let outline = Description::parse(text, 1 << 40).map_err(unusable)?;
    let clients = outline.resolved.clients;
    if options.client as usize >= clients {
        return Err(Failure::Usage {
            message: format!(
                "this run has no client {}: its clients are 0 to {}; nothing was sent, and nothing is kept of this",
                options.client,
                clients.saturating_sub(1)
            ),
            hint: None,
        });
    }
    match (outline.test_seed == options.test_seed, outline.test_seed) {
        (true, _) => Ok(outline),
        (false, Some(_)) => Err(Failure::Refused(
            "refused: this is a test run, whose secrets are known; join it with the same --test-seed or not at all"
                .to_string(),
        )),
        (false, None) => Err(Failure::Refused(
            "refused: --test-seed is given, but this is no test run".to_string(),
        )),
    }
}

/// This run, if messages of it exist or it is over: then the state is bound to it, to this client's
/// number and to the part of the records that was in them. A run that was joined without a message
/// binds nothing.
pub(super) fn joined<'a>(
    options: &Options,
    share: &Share,
    outline: &Description,
    known: &'a [LedgerRun],
) -> Result<Option<&'a LedgerRun>, Failure> {
    let begun =
        |run: &&LedgerRun| run.hash == *outline.hash() && (run.messages > 0 || run.finished);
    let Some(run) = known.iter().find(begun) else {
        return Ok(None);
    };
    if run.client != options.client {
        return Err(Failure::usage(format!(
            "this state has joined this run as client {}, not {}",
            run.client, options.client
        )));
    }
    // What the estimator remembers is about that part.
    if run.part != share.part && !run.finished {
        let name = |part: Option<(usize, usize)>| {
            part.map_or("all".to_string(), |(part, parts)| {
                format!("part {part}/{parts}")
            })
        };
        return Err(Failure::usage(format!(
            "this state has joined this run with {} of the source, not with {}",
            name(run.part),
            name(share.part)
        )));
    }
    Ok(Some(run))
}

/// What both sides agree on, before anything has left.
pub(super) struct Agreed {
    pub(super) description: Description,
    pub(super) records: Records,
    pub(super) run: LedgerRun,
}

impl Agreed {
    pub(super) fn reach(
        options: &Options,
        share: &Share,
        own: Hash,
        outline: &Description,
        known: &[LedgerRun],
        store: &mut impl ClientStore,
        verbosity: Verbosity,
    ) -> Result<Self, Failure> {
        let same = known.iter().filter(|run| run.data == own);
        schema_pin::admit(
            store,
            share,
            &outline.shape,
            same.map(|run| run.description.as_str()),
            options.shape.as_deref(),
        )?;
        let directories = DataDirectories::from_environment(options.data_dir.as_deref());
        let names = outline.shape.names.as_deref();
        let records = records::load(share, own, outline, &directories)
            .map_err(|error| unfit(&error, names))?;
        if let (Some(names), false) = (names, records.named) {
            verbosity.warn(format!(
                "these records do not say what their columns are called, so their order is not checked; the run has {}",
                some_of(names)
            ));
        }
        // A person at a terminal may hear what stands in the records; a log may be sent elsewhere.
        if !crate::logs::for_machines() {
            for adjustment in &records.adjustments {
                verbosity.say(adjustment.to_string());
            }
        }
        let rows = records.data.rows();
        let description = Description::parse(outline.text(), rows).map_err(unusable)?;
        let before = joined(options, share, outline, known)?;
        let messages = before.map_or(0, |run| run.messages);
        let sent = Sent::messages(messages);
        let persons = options.records_per_person.unwrap_or(1);
        let price = budget::price_of_persons(&description, rows, persons)
            .map_err(|refusal| refusal.of_the_run(sent))?;
        budget::check_claim(&description, &price, sent)?;
        if let Some(before) = before {
            check_unchanged(before, &records, &price)?;
        }
        let run = LedgerRun {
            hash: *description.hash(),
            description: outline.text().to_string(),
            client: options.client,
            data: records.digest,
            part: share.part,
            price,
            messages,
            finished: false,
        };
        consent(options, &description, &run, known, verbosity)?;
        Ok(Self {
            description,
            records,
            run,
        })
    }
}

/// A run goes on with the records and the noise that were paid for.
fn check_unchanged(before: &LedgerRun, records: &Records, price: &Priced) -> Result<(), Failure> {
    if before.data != records.digest || before.price.records != price.records {
        return Err(Failure::usage(
            "this state has joined this run with other records",
        ));
    }
    match before.price.difference(price) {
        None => Ok(()),
        Some(difference) => Err(Refusal::Noise(difference).into()),
    }
}

/// Shows what the run costs, and refuses or asks.
fn consent(
    options: &Options,
    description: &Description,
    run: &LedgerRun,
    known: &[LedgerRun],
    verbosity: Verbosity,
) -> Result<(), Failure> {
    let limits = Limits {
        epsilon: options.max_epsilon,
        delta: options.max_delta,
        read: options.max_read,
        replace_one: options.adjacency.is_some(),
        accept_unknown: options.accept_unknown_cost,
    };
    let cost = Cost::of(run, known, &limits, options.disjoint_data_sets)?;
    cost.show(description, verbosity);
    budget::check_limits(&cost.counted, &cost.total, run, &limits)?;
    // What was agreed to is not asked again. Before the first message nothing was: the part of the
    // records, the price or what was spent beside it may be others by now.
    if options.max_epsilon.is_none() && run.messages == 0 {
        cost.warn_of_whole_records(verbosity)?;
        if !options.yes {
            consent::ask(&cost.total.spent, verbosity)?;
        }
    }
    Ok(())
}
