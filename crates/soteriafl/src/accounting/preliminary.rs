//! Noise and cost of what clients release once, before the first round: each release gets a public
//! share of the `mu^2` that the target allows, and the rounds are calibrated to what is left.

use soteriafl_accountant::{AccountError, Adjacency, Release, ShiftMixture, largest_mu};
use soteriafl_core::preliminary::SLACK;

use super::PrivacyError;
use crate::specification::{NoiseTarget, Preliminary, Specification};

/// Why a preliminary release has no noise.
const NO_TARGET: &str = "what is released before the first round (`data.whiten`, `range = \"private\"`) needs \
                         `privacy.epsilon`: its noise is a share of that target";

/// What a client releases once, before the first round.
#[derive(Clone, Debug, PartialEq)]
pub struct PreliminaryRelease {
    /// What it is.
    pub kind: Preliminary,
    /// What one record, or all of one person, does to it.
    pub release: Release,
    /// Standard deviation of its noise.
    pub sigma: f64,
}

/// What a client with so many records releases before the first round, in order: each with the
/// noise for its share of the `mu^2` that the target allows. Of vectors of length one with angles
/// of at most 90 degrees, replacing one moves their mean by `sqrt(2)/m`, leaving one out by `1/m`
/// (`docs/privacy.md`, Proposition 6a). Without a target nothing has noise, and nothing is claimed.
///
/// # Errors
/// When the accountant refuses the numbers.
pub fn preliminaries(
    run: &Specification,
    records: usize,
) -> Result<Vec<PreliminaryRelease>, PrivacyError> {
    let asked = run.preliminaries();
    let epsilon = match run.target {
        _ if asked.is_empty() => return Ok(Vec::new()),
        NoiseTarget::None => return Ok(Vec::new()),
        NoiseTarget::Epsilon(epsilon) => epsilon,
        // Its noise is a share of a target: without one there is nothing to calibrate it to.
        NoiseTarget::Sigma(_) => return Err(PrivacyError::Moments(NO_TARGET.to_string())),
    };
    let noised = |(kind, share): (Preliminary, f64)| {
        let people = (run.adjacency, run.records_per_person);
        preliminary(kind, share * share_of(epsilon, run.delta), people, records)
    };
    asked.into_iter().map(noised).collect()
}

/// `mu^2` that a target allows.
pub fn share_of(epsilon: f64, delta: f64) -> f64 {
    largest_mu(epsilon, delta).powi(2)
}

/// One preliminary release for so much of `mu^2`, between neighbours of this kind who differ in all
/// of up to so many records of a person.
///
/// # Errors
/// When the accountant refuses the numbers.
pub fn preliminary(
    kind: Preliminary,
    budget: f64,
    (adjacency, records_per_person): (Adjacency, u32),
    records: usize,
) -> Result<PreliminaryRelease, PrivacyError> {
    // The accountant counts the distance of neighbours as so many shifts.
    let (distance, moved) = match adjacency {
        Adjacency::ReplaceOne => (2.0, std::f64::consts::SQRT_2),
        Adjacency::ZeroOut => (1.0, 1.0),
    };
    // All records of a person move it together.
    let person = (records_per_person as usize).min(records.max(1));
    let moved = person as f64 * moved * (1.0 + SLACK) / records as f64;
    let shifts = ShiftMixture::certain(moved / distance).map_err(AccountError::from)?;
    Ok(PreliminaryRelease {
        kind,
        release: Release {
            shifts,
            random_k: None,
        },
        sigma: moved / budget.sqrt(),
    })
}
