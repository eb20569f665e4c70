//! A run set up from its parts: resolved configuration, problem and noise.

use std::sync::Arc;

use soteriafl_core::moments;
use soteriafl_core::objective::Objective;
use soteriafl_core::protocol::{Client, ClientPlan, Server, ServerPlan};
use soteriafl_core::random::SecretKey;
use soteriafl_core::simulate::{Simulation, Traffic};
use soteriafl_core::wire;

use crate::config::ShiftChoice;
use crate::config::resolve::Resolved;
use crate::problem::{Model, Problem, ProblemError};

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
    let plan = resolved.specification().client_plan(objective);
    plan.map_err(|error| ProblemError::Model(error.to_string()))
}

/// Refuses a run whose clients would not fit into memory, before anything is written. A few thousand bytes of data can ask for
/// any number of parameters.
fn check_memory(resolved: &Resolved, problem: &Problem) -> Result<(), ProblemError> {
    /// Model, average, velocity, gradients of metrics.
    const VECTORS: usize = 16;
    let two_terms = resolved.estimator.has_two_terms();
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

/// The server of this run.
///
/// # Errors
/// When the start does not fit.
pub fn server(
    resolved: &Resolved,
    problem: &Problem,
    plan: &ClientPlan,
) -> Result<Server, ProblemError> {
    let server = server_plan(
        resolved,
        &problem.preparation.model,
        plan,
        problem.weights(resolved),
    );
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
        smoothing: model.smoothing(resolved.smoothing),
        equalizing: model.equalizing(resolved.equalize),
        ..resolved.specification().server_plan(plan, weights)
    }
}

/// What clients sent and received before the first round: second moments and their average.
fn moments_traffic(problem: &Problem) -> Traffic {
    let Some(whitening) = &problem.whitening else {
        return Traffic::default();
    };
    let (clients, values) = (
        problem.shards.len() as u64,
        moments::entries(whitening.columns()) as u64,
    );
    let bytes = clients * (wire::HEADER_LEN as u64 + 4 * values);
    Traffic {
        paper_bits: 64 * clients * values,
        uplink_bytes: bytes,
        downlink_bytes: bytes,
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
    if resolved.whiten.is_some() != problem.whitening.is_some() {
        return Err(ProblemError::Model(
            "the records were not whitened as the run says".to_string(),
        ));
    }
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
                resolved.specification().sampling(),
                sigma,
                key,
            )
            .map_err(|error| ProblemError::Model(error.to_string()))
        })
        .collect::<Result<Vec<_>, _>>()?;
    let last = resolved.specification().last_round();
    Ok(Simulation::new(server, clients)
        .ending_after(last)
        .sent_before(moments_traffic(problem)))
}
