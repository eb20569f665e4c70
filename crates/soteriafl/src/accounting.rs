//! What a run costs and what may be claimed for it.
//!
//! The one way from a configuration to a sigma or an epsilon: every command that starts from a
//! configuration, and the library, ask [`Privacy::calibrate`], [`level`] or [`noise`], which share all
//! their steps.
//!
//! Every client calibrates its own noise from its own number of records. A claim needs the whole
//! chain: records clipped one by one, Poisson coins, proved accounting, and no constant computed
//! from the records on the way. Where a link is missing there is no epsilon, and [`Privacy::claim`]
//! says which.

mod preliminary;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use soteriafl_accountant::paper::{PaperFormula, PaperTheorem};
use soteriafl_accountant::{
    AccountError, ClipScope, Cost, Estimator, EventError, Mechanism, Method, Odometer, Question,
    Release,
};
use soteriafl_core::compress::CompressorKind;

use crate::claim::{Claim, Reason};
use crate::specification::{
    AccountantName, Aggregation, Clip, NoiseTarget, Specification, StepSizeOrigin,
};

pub use preliminary::{PreliminaryRelease, preliminaries, preliminary, share_of};

/// Noise and cost of a run, client by client.
#[derive(Clone, Debug)]
pub struct Privacy {
    /// Standard deviation of each client's noise.
    pub sigmas: Vec<f64>,
    /// Whether anything is claimed, or why not.
    pub claim: Claim,
    /// The largest epsilon of any client, where there is a claim.
    pub epsilon: Option<f64>,
    /// The same without random-k amplification.
    pub epsilon_unamplified: Option<f64>,
    /// Whether amplification was used.
    pub amplified: bool,
    /// What the noise really gives where the mechanism is sound but the claim is not made (the
    /// paper's calibration).
    pub epsilon_exact: Option<f64>,
    /// The sigma that the paper's formula asks for, for comparison.
    pub paper_sigma: Option<f64>,
    /// Premises of the paper's theorem that this run breaks, in words, where the paper's formula
    /// set the noise.
    pub broken_premises: Vec<String>,
    /// Which accountant decided.
    pub accountant: &'static str,
    /// Epsilon after every round, where there is a claim.
    pub odometer: Option<Spending>,
}

/// Why there is no noise level.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PrivacyError {
    /// The accountant refuses.
    #[error("privacy: {0}")]
    Account(#[from] AccountError),
    /// Second moments cannot be released.
    #[error("{0}")]
    Moments(String),
}

impl Privacy {
    /// Sets every client's noise and says what it costs. `records` are the clients' numbers of
    /// records, `data_dependent_scaling` whether features were scaled by constants computed from
    /// them.
    ///
    /// # Errors
    /// When no noise reaches the target, or the accountant cannot vouch.
    pub fn calibrate(
        run: &Specification,
        dimension: usize,
        records: &[usize],
        data_dependent_scaling: bool,
    ) -> Result<Self, PrivacyError> {
        let (mut privacy, clients) =
            Self::calibrated(run, dimension, records, data_dependent_scaling)?;
        if privacy.claim.is_proved() {
            privacy.odometer = Spending::new(run, dimension, &clients.by_size)?;
        }
        Ok(privacy)
    }

    /// The same without the odometer, for those who need what the whole run costs alone: cheaper.
    ///
    /// # Errors
    /// As [`calibrate`](Self::calibrate).
    pub fn without_odometer(
        run: &Specification,
        dimension: usize,
        records: &[usize],
        data_dependent_scaling: bool,
    ) -> Result<Self, PrivacyError> {
        let calibrated = Self::calibrated(run, dimension, records, data_dependent_scaling);
        calibrated.map(|(privacy, _)| privacy)
    }

    fn calibrated(
        run: &Specification,
        dimension: usize,
        records: &[usize],
        data_dependent_scaling: bool,
    ) -> Result<(Self, Clients), PrivacyError> {
        let mut obstacles = obstacles(run, data_dependent_scaling);
        let clients = Clients::calibrate(run, dimension, records)?;
        if obstacles.is_empty() && !clients.all_have_a_cost() {
            obstacles.push(Reason::TooLittleNoise);
        }
        let worst = |value: fn(&Cost) -> f64| clients.worst(value);
        let exact = worst(|cost| cost.epsilon);
        let claimed = obstacles.is_empty();
        let privacy = Self {
            sigmas: shared(run, records, clients.sigmas(records)),
            claim: claim_despite(&obstacles),
            epsilon: exact.filter(|_| claimed),
            epsilon_unamplified: worst(|cost| cost.epsilon_unamplified).filter(|_| claimed),
            amplified: claimed && clients.amplified(),
            // Of every client, or of none.
            epsilon_exact: exact
                .filter(|_| obstacles == [Reason::PaperCalibration] && clients.all_have_a_cost()),
            paper_sigma: clients
                .by_size
                .values()
                .filter_map(|calibrated| calibrated.paper_sigma)
                .reduce(f64::max),
            broken_premises: broken_premises(run, records),
            accountant: match run.accountant {
                AccountantName::Pld => "pld",
                AccountantName::Rdp => "rdp",
                AccountantName::Paper => "paper",
            },
            odometer: None,
        };
        Ok((privacy, clients))
    }
}

/// Noise and cost of what a run's clients do, whatever else stands between the run and a claim.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Level {
    /// The largest standard deviation of any client's noise. A run in which all clients have it
    /// costs no more.
    pub sigma: f64,
    /// The largest epsilon of any client.
    pub epsilon: f64,
    /// Whether random-k amplification is part of it.
    pub amplified: bool,
}

/// The noise of a run and what it costs: by the very steps of [`Privacy::calibrate`], without what
/// only a run needs. `None` where no epsilon follows (no noise, too little of it, records that are
/// not bounded one by one, or clients that share the noise of one: a single message then has a part
/// of it, which hides nothing by itself).
///
/// # Errors
/// When no noise reaches the target, or the accountant cannot vouch.
pub fn level(
    run: &Specification,
    dimension: usize,
    records: &[usize],
) -> Result<Option<Level>, PrivacyError> {
    if run.aggregation != Aggregation::Open {
        return Ok(None);
    }
    let clients = Clients::calibrate(run, dimension, records)?;
    let epsilon = clients.worst(|cost| cost.epsilon);
    Ok(epsilon
        .filter(|_| clients.all_have_a_cost())
        .map(|epsilon| Level {
            sigma: clients.sigmas(records).into_iter().fold(0.0, f64::max),
            epsilon,
            amplified: clients.amplified(),
        }))
}

/// The standard deviation of the noise of a client with `records` records, and nothing about its
/// cost.
///
/// # Errors
/// When no noise reaches the target, or the accountant cannot vouch.
pub fn noise(run: &Specification, dimension: usize, records: usize) -> Result<f64, PrivacyError> {
    match run.target {
        NoiseTarget::None => Ok(0.0),
        NoiseTarget::Sigma(sigma) => Ok(sigma),
        NoiseTarget::Epsilon(_) => {
            let sound = run.bounds_records();
            calibrate_one(run, dimension, records, sound).map(|calibrated| calibrated.sigma)
        }
    }
}

/// A number of records, at most `RATIO` times smaller, with at least as much noise: one of few, so
/// that it is computed once for many clients. The same number where noise need not grow as records
/// become fewer.
pub fn with_more_noise(run: &Specification, records: usize) -> usize {
    let Some(batch) = run.batch.filter(|_| monotone(run)) else {
        return records;
    };
    let steps = ((records.max(1) as f64).ln() / RATIO.ln()).floor();
    let below = RATIO.powf(steps).floor() as usize;
    below.max(batch.ceil() as usize).min(records)
}

/// Every client's noise and cost, computed once for clients of the same size.
struct Clients {
    /// Under which size a number of records is accounted.
    account_as: BTreeMap<usize, usize>,
    by_size: BTreeMap<usize, Calibrated>,
}

impl Clients {
    fn calibrate(
        run: &Specification,
        dimension: usize,
        records: &[usize],
    ) -> Result<Self, PrivacyError> {
        let sound = run.bounds_records();
        let account_as = representatives(run, records);
        let mut by_size: BTreeMap<usize, Calibrated> = BTreeMap::new();
        for size in account_as.values() {
            if let Entry::Vacant(entry) = by_size.entry(*size) {
                entry.insert(calibrate_one(run, dimension, *size, sound)?);
            }
        }
        Ok(Self {
            account_as,
            by_size,
        })
    }

    fn sigmas(&self, records: &[usize]) -> Vec<f64> {
        let size = |records: &usize| self.by_size[&self.account_as[records]].sigma;
        records.iter().map(size).collect()
    }

    fn all_have_a_cost(&self) -> bool {
        self.by_size
            .values()
            .all(|calibrated| calibrated.cost.is_some())
    }

    /// The largest value of any client that has a cost.
    fn worst(&self, value: fn(&Cost) -> f64) -> Option<f64> {
        let costs = self.by_size.values().filter_map(|s| s.cost.as_ref());
        costs.map(value).reduce(f64::max)
    }

    fn amplified(&self) -> bool {
        let mut costs = self.by_size.values().filter_map(|s| s.cost.as_ref());
        costs.any(|cost| cost.amplified())
    }
}

struct Calibrated {
    sigma: f64,
    cost: Option<Cost>,
    paper_sigma: Option<f64>,
}

fn calibrate_one(
    run: &Specification,
    dimension: usize,
    records: usize,
    sound: bool,
) -> Result<Calibrated, PrivacyError> {
    let paper_sigma = match run.target {
        NoiseTarget::Epsilon(epsilon) => {
            paper_formula(run, records).map(|formula| formula.sigma(epsilon, run.delta))
        }
        _ => None,
    };
    let question = question(run, dimension, records)?;
    let (sigma, cost) = match run.target {
        NoiseTarget::None => (0.0, None),
        NoiseTarget::Sigma(sigma) if !sound => (sigma, None),
        NoiseTarget::Sigma(sigma) => match question.cost(sigma) {
            // An infinite epsilon claims nothing.
            Ok(cost) => (sigma, Some(cost).filter(|cost| cost.epsilon.is_finite())),
            // A user who fixes the noise gets the run; it is the claim that is missing.
            Err(AccountError::NoiseTooSmall { .. } | AccountError::Unresolved { .. }) => {
                (sigma, None)
            }
            Err(error) => return Err(error.into()),
        },
        NoiseTarget::Epsilon(_) if run.accountant == AccountantName::Paper => {
            let sigma = paper_sigma.unwrap_or_default();
            (
                sigma,
                if sound {
                    question.cost(sigma).ok()
                } else {
                    None
                },
            )
        }
        // Without a sound mechanism the target means nothing, but noise must come from somewhere:
        // the sound mechanism's is used, and nothing is claimed.
        NoiseTarget::Epsilon(epsilon) => {
            let cost = question.calibrate(epsilon)?;
            (cost.sigma, sound.then_some(cost))
        }
    };
    Ok(Calibrated {
        sigma,
        cost,
        paper_sigma,
    })
}

fn question(
    run: &Specification,
    dimension: usize,
    records: usize,
) -> Result<Question, PrivacyError> {
    let rounds = u64::from(run.rounds);
    let release = release(run, dimension, records).map_err(AccountError::from)?;
    let question = Question::new(release, rounds, run.delta, run.adjacency)
        .noise_levels(run.estimator.noise_levels());
    let method = match run.accountant {
        AccountantName::Rdp => Method::Rdp,
        AccountantName::Pld | AccountantName::Paper => Method::Pld,
    };
    let question = question.by(method).amplification(run.may_amplify());
    // Before the first round: what follows may depend on them, the noise of any of them does not.
    let before = preliminaries(run, records)?;
    before.iter().try_fold(question, |question, earlier| {
        Ok(question.after(&earlier.release, earlier.sigma, 1)?)
    })
}

/// Where only averages are seen, clients share the noise that the average needs for any one of
/// them, `max_i w_i sigma_i`: each adds a part of the same size in the average. Noise that was
/// fixed stays as it is.
fn shared(run: &Specification, records: &[usize], sigmas: Vec<f64>) -> Vec<f64> {
    let (Aggregation::Trusted { equal_weights }, NoiseTarget::Epsilon(_)) =
        (run.aggregation, run.target)
    else {
        return sigmas;
    };
    let weights = weights(equal_weights, records);
    let needed = weights
        .iter()
        .zip(&sigmas)
        .map(|(weight, sigma)| weight * sigma);
    let needed = needed.fold(0.0, f64::max);
    let clients = (records.len() as f64).sqrt();
    weights
        .iter()
        .map(|weight| needed / (weight * clients))
        .collect()
}

/// What clients count for in the average.
pub fn weights(equal: bool, records: &[usize]) -> Vec<f64> {
    let total: usize = records.iter().sum();
    let weight = |&rows: &usize| match equal {
        true => 1.0 / records.len() as f64,
        false => rows as f64 / total as f64,
    };
    records.iter().map(weight).collect()
}

/// The ratio of the series of sizes for which noise is computed where there are many.
const RATIO: f64 = 1.05;

/// Whether fewer records never need less noise.
fn monotone(run: &Specification) -> bool {
    // The pair without a difference clip, (2 - q) G/b, grows with the number of records.
    let pair = run.estimator.has_two_terms() && run.estimator.difference_clip().is_none();
    // Of few records a person has all, and more coins of the same mean have a longer tail.
    !pair && run.accountant != AccountantName::Paper && run.records_per_person == 1
}

/// Sizes for which noise is computed: every size, or, where there are many, the next smaller one of
/// a geometric series. Fewer records cost more, so the noise errs on the safe side.
fn representatives(run: &Specification, records: &[usize]) -> BTreeMap<usize, usize> {
    const MANY: usize = 16;
    let sizes: BTreeSet<usize> = records.iter().copied().collect();
    let exact = sizes.len() <= MANY || !monotone(run) || run.batch.is_none();
    let smallest = sizes.first().copied().unwrap_or(1).max(1);
    sizes
        .into_iter()
        .map(|size| {
            let steps = ((size as f64 / smallest as f64).ln() / RATIO.ln()).floor();
            let below = (smallest as f64 * RATIO.powf(steps)).floor() as usize;
            (
                size,
                if exact {
                    size
                } else {
                    below.clamp(smallest, size)
                },
            )
        })
        .collect()
}

/// What has been spent after each round, by whichever client has spent most.
#[derive(Clone, Debug)]
pub struct Spending {
    odometers: Vec<Odometer>,
}

impl Spending {
    /// The largest epsilon of any client after `rounds` rounds; never too low.
    pub fn after(&self, rounds: u64) -> f64 {
        self.odometers
            .iter()
            .map(|odometer| odometer.after(rounds))
            .fold(0.0, f64::max)
    }

    /// Clients of every size: they reach the same target on different paths.
    fn new(
        run: &Specification,
        dimension: usize,
        by_size: &BTreeMap<usize, Calibrated>,
    ) -> Result<Option<Self>, PrivacyError> {
        let checkpoints = match by_size.len() {
            0..=4 => 36,
            5..=24 => 12,
            _ => 6,
        };
        let odometers = by_size
            .iter()
            .filter(|(_, calibrated)| calibrated.cost.is_some())
            .map(|(size, calibrated)| {
                Ok(question(run, dimension, *size)?.odometer(calibrated.sigma, checkpoints)?)
            })
            .collect::<Result<Vec<_>, PrivacyError>>()?;
        Ok(if odometers.is_empty() {
            None
        } else {
            Some(Self { odometers })
        })
    }
}

/// What the paper's theorem asks for and the smallest client does not have.
fn broken_premises(run: &Specification, records: &[usize]) -> Vec<String> {
    let (AccountantName::Paper, NoiseTarget::Epsilon(epsilon)) = (run.accountant, run.target)
    else {
        return Vec::new();
    };
    let smallest = records.iter().copied().min().unwrap_or(1);
    let Some(formula) = paper_formula(run, smallest) else {
        return Vec::new();
    };
    let sigma = formula.sigma(epsilon, run.delta);
    let violated = formula.violated_conditions(sigma, epsilon, run.delta);
    violated.iter().map(ToString::to_string).collect()
}

/// What one message of a client reveals of one person.
///
/// # Errors
/// When no bound is proved for what the client does.
pub fn release(
    run: &Specification,
    dimension: usize,
    records: usize,
) -> Result<Release, EventError> {
    mechanism(run, dimension, records).release_of_person(run.records_per_person)
}

/// What one client does, in the accountant's words.
pub fn mechanism(run: &Specification, dimension: usize, records: usize) -> Mechanism {
    // Without a clip there is no noise, and nobody asks what it costs. Where whole estimates are
    // clipped nothing is claimed, and noise is set as if records were.
    let (clip, clip_scope) = match run.clip {
        Some(clip) if clip.scope == ClipScope::Selected => (clip.bound, ClipScope::Selected),
        Some(clip) => (clip.bound, ClipScope::Record),
        None => (1.0, ClipScope::Record),
    };
    Mechanism {
        estimator: run.estimator,
        records: records as u64,
        batch: run.batch.unwrap_or(records as f64),
        clip,
        clip_scope,
        rand_k: match run.released_by() {
            CompressorKind::RandK { k } => Some(k as f64 / dimension as f64),
            _ => None,
        },
    }
}

/// What may be claimed for a run whose features are scaled by public constants.
pub fn claim(run: &Specification) -> Claim {
    claim_despite(&obstacles(run, false))
}

fn claim_despite(obstacles: &[Reason]) -> Claim {
    let weightiest = obstacles.first().cloned();
    weightiest.map_or(Claim::Proved, Claim::Withheld)
}

/// What stands between this run and a claim, the weightiest first.
fn obstacles(run: &Specification, data_dependent_scaling: bool) -> Vec<Reason> {
    let whole = |clip: Clip| clip.scope == ClipScope::Estimate;
    let origin = run.step_size_origin;
    let checks = [
        (run.target == NoiseTarget::None, Reason::NoNoise),
        (
            run.accountant == AccountantName::Paper,
            Reason::PaperCalibration,
        ),
        (run.clip.is_some_and(whole), Reason::WholeEstimates),
        (run.draws_with_replacement(), Reason::WithReplacement),
        (
            run.aggregation != Aggregation::Open,
            Reason::TrustedAggregation,
        ),
        (data_dependent_scaling, Reason::DataDependentScaling),
        (run.ranges_from_records, Reason::RangesFromRecords),
        (
            origin == StepSizeOrigin::Theory,
            Reason::DataDependentStepSize,
        ),
        (origin == StepSizeOrigin::Records, Reason::TunedStepSize),
    ];
    let apply = checks.into_iter().filter(|(applies, _)| *applies);
    apply.map(|(_, reason)| reason).collect()
}

/// The paper's noise; it says nothing about SAG, recursive estimates and clients without
/// a server.
fn paper_formula(run: &Specification, records: usize) -> Option<PaperFormula> {
    let clip = run.clip.map_or(1.0, |clip| clip.bound);
    let theorem = match run.estimator {
        _ if run.gossip.is_some() => return None,
        Estimator::Gd | Estimator::Sgd if run.direct_theorem => PaperTheorem::Direct { clip },
        Estimator::Gd | Estimator::Sgd => PaperTheorem::sgd(clip),
        Estimator::Svrg { .. } | Estimator::Saga { .. } => PaperTheorem::variance_reduced(clip),
        Estimator::Sag { .. } | Estimator::Recursive(_) => return None,
    };
    let batch = run.batch.unwrap_or(records as f64);
    Some(PaperFormula {
        theorem,
        records: records as u64,
        batch,
        rounds: u64::from(run.rounds),
    })
}
