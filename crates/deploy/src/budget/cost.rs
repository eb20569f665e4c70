//! What a run costs, alone and with what was spent before: added up before anything has left.

use super::{Counted, Judged, Limits, Refusal, Sent, Spent};
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
    /// data sets are `disjoint`.
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
}
