//! A run set up from its parts: resolved configuration, problem and noise.

use std::sync::Arc;

use soteriafl_core::compress::Compressor;
use soteriafl_core::estimator::Clipping;
use soteriafl_core::objective::Objective;
use soteriafl_core::privacy::Noise;
use soteriafl_core::protocol::{Client, ClientPlan, EstimatorPlan, Server, ServerPlan};
use soteriafl_core::random::{PublicSeed, SecretKey};
use soteriafl_core::sampling::{Coins, Sampling};
use soteriafl_core::simulate::Simulation;

use crate::config::resolve::Resolved;
use crate::config::{EstimatorName, NoiseName, NoiseTarget, Scope, ShiftChoice};
use crate::problem::{Model, Problem, ProblemError, regularizer};

/// What all clients of this run share.
///
/// # Errors
/// When the compressor does not fit the model.
pub fn client_plan(resolved: &Resolved, problem: &Problem) -> Result<ClientPlan, ProblemError> {
    plan_for(resolved, &problem.objective)
}

/// What all clients of a run with this loss share.
///
/// # Errors
/// When the compressor does not fit the model.
pub fn plan_for(
    resolved: &Resolved,
    objective: &Arc<dyn Objective>,
) -> Result<ClientPlan, ProblemError> {
    let dimension = objective.dimension();
    let compressor = Compressor::new(resolved.compressor, dimension, resolved.participation)
        .map_err(|error| ProblemError::Model(error.to_string()))?;
    let whole = resolved.clip_scope == Scope::Estimate;
    let clipping = match resolved.clip_scope {
        _ if !resolved.clipped => Clipping::None,
        Scope::Estimate => Clipping::None,
        Scope::Record => Clipping::Record(resolved.clip),
        Scope::Selected => Clipping::Selected(resolved.clip),
    };
    let difference_clip = if clipping == Clipping::None {
        None
    } else {
        resolved.difference_clip
    };
    let estimator = match resolved.estimator {
        EstimatorName::Gd | EstimatorName::Sgd => EstimatorPlan::Minibatch,
        EstimatorName::Svrg => EstimatorPlan::Svrg {
            snapshot_probability: resolved.snapshot_probability,
            difference_clip,
        },
        EstimatorName::Saga => EstimatorPlan::Saga { difference_clip },
    };
    Ok(ClientPlan {
        objective: Arc::clone(objective),
        compressor,
        estimator,
        clipping,
        estimate_clip: (whole && resolved.clipped).then_some(resolved.clip),
        regularizer: resolved
            .regularizer_at_client
            .then(|| regularizer(resolved.regularizer, resolved.lambda)),
        shift_step: match resolved.shift {
            ShiftChoice::Off => None,
            ShiftChoice::Step(step) => Some(step),
        },
        noise: match (resolved.noise_target, resolved.noise) {
            (NoiseTarget::None, _) => Noise::None,
            (_, NoiseName::Float) => Noise::Float,
            (_, NoiseName::Secure) => Noise::Secure,
        },
        shared_coordinates: resolved.shared_coordinates,
        public_seed: PublicSeed(resolved.seed),
    })
}

/// Refuses a run whose clients would not fit into memory, before anything is written. A few thousand bytes of data can ask for
/// any number of parameters.
fn check_memory(resolved: &Resolved, problem: &Problem) -> Result<(), ProblemError> {
    /// Model, average, velocity, gradients of metrics.
    const VECTORS: usize = 16;
    let two_terms = matches!(
        resolved.estimator,
        EstimatorName::Svrg | EstimatorName::Saga
    );
    let of_client = usize::from(resolved.shift != ShiftChoice::Off) + usize::from(two_terms);
    let (clients, dimension) = (problem.shards.len(), problem.objective.dimension());
    let numbers = clients
        .saturating_mul(of_client)
        .saturating_add(VECTORS)
        .saturating_mul(dimension);
    match Vec::<f32>::new().try_reserve_exact(numbers) {
        Ok(()) => Ok(()),
        Err(_) => Err(ProblemError::Model(format!(
            "{clients} clients of {dimension} parameters do not fit into the memory of this machine"
        ))),
    }
}

/// How a client draws its batch.
pub fn sampling(resolved: &Resolved) -> Sampling {
    let coins = if resolved.noise == NoiseName::Secure {
        Coins::Exact
    } else {
        Coins::Fast
    };
    match resolved.batch {
        None => Sampling::Full,
        Some(batch) if resolved.with_replacement => Sampling::WithReplacement {
            batch: batch as usize,
        },
        Some(batch) => Sampling::Poisson { batch, coins },
    }
}

/// The server of this run.
///
/// # Errors
/// When the start does not fit.
pub fn server(
    resolved: &Resolved,
    problem: &Problem,
    plan: &ClientPlan,
) -> Result<Server, ProblemError> {
    let server = server_plan(resolved, &problem.model, plan, problem.weights(resolved));
    Ok(Server::new(server, problem.start(resolved)?))
}

/// What the server must know.
pub fn server_plan(
    resolved: &Resolved,
    model: &Model,
    plan: &ClientPlan,
    weights: Vec<f64>,
) -> ServerPlan {
    ServerPlan {
        compressor: plan.compressor.clone(),
        weights,
        step_size: resolved.step_size,
        schedule: resolved.schedule,
        momentum: resolved.momentum,
        shift_step: plan.shift_step,
        regularizer: (!resolved.regularizer_at_client)
            .then(|| regularizer(resolved.regularizer, resolved.lambda))
            .filter(|regularizer| *regularizer != soteriafl_core::objective::Regularizer::None),
        smoothing: model.smoothing(resolved.smoothing),
        equalizing: model.equalizing(resolved.equalize),
        rounds: resolved.rounds,
    }
}

/// A simulation with one noise level per client.
///
/// # Errors
/// When a client does not fit the plan.
pub fn simulation(
    resolved: &Resolved,
    problem: &Problem,
    sigmas: &[f64],
) -> Result<Simulation, ProblemError> {
    check_memory(resolved, problem)?;
    let plan = Arc::new(client_plan(resolved, problem)?);
    let server = server(resolved, problem, &plan)?;
    let clients = problem
        .shards
        .iter()
        .zip(sigmas)
        .enumerate()
        .map(|(id, (shard, &sigma))| {
            let id = id as u32;
            let key = SecretKey::simulated(resolved.seed, id);
            Client::new(
                id,
                Arc::clone(&plan),
                Arc::clone(shard),
                sampling(resolved),
                sigma,
                key,
            )
            .map_err(|error| ProblemError::Model(error.to_string()))
        })
        .collect::<Result<Vec<_>, _>>()?;
    Ok(Simulation::new(server, clients))
}
