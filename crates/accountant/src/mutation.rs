//! Faults that tests switch on one at a time, to see that somebody notices (`docs/audit.md`).
//!
//! Only a build with the feature `mutations` has the switch. In every other build [`active`] is the
//! constant `false`, and nothing of a fault is compiled.

/// One fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Mutation {
    /// Noise of half the standard deviation.
    NoiseHalved = 1,
    /// The first round's noise in every round.
    NoiseReused,
    /// The sum of a batch is clipped, not its records.
    ClippedAfterTheSum,
    /// Differences of gradients are not clipped.
    DifferencesUnclipped,
    /// Sums are divided by the number of records that were drawn.
    RealisedDivisor,
    /// The first round's coins in every round.
    CoinsReused,
    /// Which coordinates travel depends on the records.
    CoordinatesFromRecords,
    /// Amplification is counted where the clip bounds what travels.
    SelectedAmplified,
    /// A person is charged for one record.
    PersonChargedOnce,
    /// Which of a person's records are kept depends on where they stand.
    PersonsBoundedByPlace,
    /// Persons keep all of their records.
    PersonsUnbounded,
    /// The number of records says how many persons have.
    NullRecordsForgotten,
    /// Increments of a recursion have less noise than they are charged for.
    IncrementsQuieter,
    /// Increments of a recursion are not clipped.
    IncrementsUnclipped,
    /// Second moments are released with next to no noise.
    MomentsBare,
}

#[cfg(feature = "mutations")]
static ACTIVE: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(0);

/// Switches one fault on, or all off.
#[cfg(feature = "mutations")]
pub fn set(mutation: Option<Mutation>) {
    let number = mutation.map_or(0, |mutation| mutation as u8);
    ACTIVE.store(number, std::sync::atomic::Ordering::SeqCst);
}

/// Whether the fault is on.
#[cfg(feature = "mutations")]
pub fn active(mutation: Mutation) -> bool {
    ACTIVE.load(std::sync::atomic::Ordering::SeqCst) == mutation as u8
}

/// Whether the fault is on: never.
#[cfg(not(feature = "mutations"))]
#[inline(always)]
pub const fn active(_mutation: Mutation) -> bool {
    false
}
