//! What a run costs, alone and with what was spent before: added up before anything has left.

use soteriafl::words::readable;
use soteriafl_accountant::round_up;

use super::{Counted, Judged, Limits, Refusal, Sent, Spent, strict_limit};
use crate::description::may_be_elsewhere;
use crate::store::LedgerRun;

/// What taking part costs.
pub struct Cost<'a> {
    /// The run.
    pub run: &'a LedgerRun,
    /// The limits that it is judged by.
    pub limits: Limits,
    /// All runs that count, with all of this one.
    pub counted: Counted<'a>,
    /// What they cost.
    pub total: Judged,
    /// Without this run.
    pub before: Spent,
    /// On other data sets, where those are not counted.
    pub others: Spent,
}

impl<'a> Cost<'a> {
    /// Adds up. Every run of the state counts, as if each record had been in all of them, unless
    /// data sets are `disjoint`. Digests tell those apart, and records behind a model that is
    /// computed elsewhere have one for each way in which they are held (arrays, tensors of another
    /// type or shape): beside such a run all count, whatever is said.
    ///
    /// # Errors
    /// When something cannot be added up.
    pub fn of(
        run: &'a LedgerRun,
        known: &'a [LedgerRun],
        limits: &Limits,
        disjoint: bool,
    ) -> Result<Self, Refusal> {
        let earlier = known.iter().filter(|known| known.hash != run.hash);
        let sent = earlier.clone().filter(|known| known.messages > 0);
        let mut all = sent.chain([run]);
        let disjoint = disjoint && !all.any(|run| may_be_elsewhere(&run.description));
        let (counted, apart): (Vec<_>, Vec<_>) =
            earlier.partition(|earlier| !disjoint || earlier.data == run.data);
        let before = Counted::new(counted.iter().copied(), None, limits.replace_one);
        let apart = Counted::new(apart, None, limits.replace_one);
        let counted = Counted::new(counted, Some(run), limits.replace_one);
        // First what is in the ledger: if that can be added up, the rest is about the run.
        let (before, others) = (limits.spent(&before)?, limits.spent(&apart)?);
        let of_the_run = |refusal: Refusal| refusal.of_the_run(Sent::of(run));
        Ok(Self {
            run,
            limits: *limits,
            total: limits.judged(&counted).map_err(of_the_run)?,
            before,
            others,
            counted,
        })
    }

    /// What the run costs by itself.
    ///
    /// # Errors
    /// When it cannot be accounted.
    pub fn alone(&self) -> Result<Judged, Refusal> {
        let alone = Counted::new([], Some(self.run), self.limits.replace_one);
        self.limits.judged(&alone)
    }

    /// What would be refused under a limit that is the run's own epsilon, in words: to be said
    /// aloud where there is no limit.
    ///
    /// # Errors
    /// When the run cannot be accounted.
    pub fn publishes_records(&self) -> Result<Option<String>, Refusal> {
        let price = &self.run.price;
        let Some(claimed) = price.epsilon else {
            return Ok(None);
        };
        let alone = self.alone()?;
        let strict = &alone.strict;
        let cheap = strict.epsilon.unwrap_or(f64::INFINITY) <= strict_limit(claimed);
        if cheap && alone.read() < self.limits.most_read() {
            return Ok(None);
        }
        Ok(Some(format!(
            "this run can publish whole records: it names epsilon {} at delta {}, and costs {} at \
             delta {}; up to {} can be expected to be read; under a limit of that epsilon it would \
             be refused",
            readable(round_up(claimed, 4)),
            readable(price.delta),
            epsilon_text(strict.epsilon),
            readable(strict.delta),
            alone.read_in_words(),
        )))
    }
}

/// An epsilon for people, rounded up.
pub fn epsilon_text(epsilon: Option<f64>) -> String {
    match epsilon {
        Some(epsilon) if epsilon.is_finite() => {
            format!("epsilon {}", readable(round_up(epsilon, 4)))
        }
        Some(_) => "more than any accountant can say".to_string(),
        None => "nobody can say how much".to_string(),
    }
}
