//! A run set up from its parts: resolved configuration, problem and noise.

use std::ops::ControlFlow;
use std::sync::Arc;

use soteriafl_core::gossip::Graph;
use soteriafl_core::objective::Objective;
use soteriafl_core::protocol::{Client, ClientPlan, Server, ServerPlan};
use soteriafl_core::random::SecretKey;
use soteriafl_core::simulate::{
    Clock, EvaluationPlan, GossipSimulation, Progress, Simulation, SimulationError, Traffic,
};
use soteriafl_core::{moments, preliminary};

use crate::config::ShiftChoice;
use crate::config::resolve::Resolved;
use crate::problem::{self, Model, Problem, ProblemError};

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

/// Refuses a run whose clients would not fit into memory, before anything is written. A few
/// thousand bytes of data can ask for any number of parameters.
fn check_memory(resolved: &Resolved, problem: &Problem) -> Result<(), ProblemError> {
    /// Model, average, velocity, gradients of metrics.
    const VECTORS: usize = 16;
    /// What a client without a server keeps at most.
    const OWN: usize = 7;
    let keeps_mean = resolved.estimator.keeps_mean();
    let of_client = match &resolved.gossip {
        Some(_) => OWN,
        None => usize::from(resolved.shift != ShiftChoice::Off) + usize::from(keeps_mean),
    };
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

/// What clients sent and received before the first round: what they released, and the averages.
fn moments_traffic(problem: &Problem) -> Traffic {
    let clients = problem.shards.len() as u64;
    let (mut bytes, mut values) = (0, 0);
    if problem.private_ranges > 0 {
        (bytes, values) = problem::range_traffic(problem.private_ranges);
    }
    if let Some(whitening) = &problem.whitening {
        let entries = moments::entries(whitening.columns());
        bytes += preliminary::message_len(entries) as u64;
        values += entries as u64;
    }
    let bytes = clients * bytes;
    Traffic {
        paper_bits: 64 * clients * values,
        uplink_bytes: bytes,
        downlink_bytes: bytes,
    }
}

/// A run in one process, with a server or without.
pub enum Simulated {
    /// All clients have the server's model.
    Server(Box<Simulation>),
    /// Each has its own.
    Gossip(GossipSimulation),
}

impl Simulated {
    /// Runs to the last round, or until `observe` breaks. `observe` is called at the start and
    /// after every round.
    ///
    /// # Errors
    /// When the objective fails.
    pub fn run(
        &mut self,
        threads: usize,
        plan: &EvaluationPlan<'_>,
        mut observe: impl FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<(), SimulationError> {
        match self {
            Simulated::Server(simulation) => {
                simulation.run(threads, plan, |progress, _| observe(progress))
            }
            Simulated::Gossip(simulation) => simulation.run(threads, plan, observe),
        }
    }

    /// The server's model, or the mean of all.
    pub fn model(&self) -> Arc<Vec<f32>> {
        match self {
            Simulated::Server(simulation) => Arc::clone(simulation.server().model()),
            Simulated::Gossip(simulation) => Arc::new(simulation.mean()),
        }
    }

    /// Time spent so far.
    pub fn clock(&self) -> Clock {
        match self {
            Simulated::Server(simulation) => simulation.clock(),
            Simulated::Gossip(simulation) => simulation.clock(),
        }
    }

    /// How many values the grid of messages has cut off.
    pub fn cut_off(&self) -> u64 {
        match self {
            Simulated::Server(_) => 0,
            Simulated::Gossip(simulation) => simulation.cut_off(),
        }
    }
}

/// A simulation with one noise level per client, with a server or without.
///
/// # Errors
/// When a client does not fit the plan.
pub fn simulated(
    resolved: &Resolved,
    problem: &Problem,
    sigmas: &[f64],
) -> Result<Simulated, ProblemError> {
    let Some(gossip) = &resolved.gossip else {
        let simulation = simulation(resolved, problem, sigmas)?;
        return Ok(Simulated::Server(Box::new(simulation)));
    };
    check_memory(resolved, problem)?;
    let run = resolved.specification();
    let model = |error: &dyn std::error::Error| ProblemError::Model(error.to_string());
    let clients = clients(resolved, problem, sigmas, &client_plan(resolved, problem)?)?;
    let graph = Graph::new(&gossip.topology, clients.len()).map_err(|error| model(&error))?;
    let plan = run.gossip_plan(problem.objective.dimension(), problem.weights(resolved));
    let plan = plan.map_err(|error| model(&error))?;
    let plan = plan.expect("the run has no server");
    let start = problem.start(resolved)?;
    let simulation = GossipSimulation::new(Arc::new(plan), Arc::new(graph), clients, start);
    Ok(Simulated::Gossip(simulation.ending_after(run.last_round())))
}

/// A simulation of clients with a server, with one noise level per client.
///
/// # Errors
/// When a client does not fit the plan, or the run has no server.
pub fn simulation(
    resolved: &Resolved,
    problem: &Problem,
    sigmas: &[f64],
) -> Result<Simulation, ProblemError> {
    if resolved.gossip.is_some() {
        return Err(ProblemError::Model(
            "the clients of this run have no server".to_string(),
        ));
    }
    check_memory(resolved, problem)?;
    if resolved.whiten.is_some() != problem.whitening.is_some() {
        return Err(ProblemError::Model(
            "the records were not whitened as the run says".to_string(),
        ));
    }
    let plan = client_plan(resolved, problem)?;
    let server = server(resolved, problem, &plan)?;
    let clients = clients(resolved, problem, sigmas, &plan)?;
    let last = resolved.specification().last_round();
    Ok(Simulation::new(server, clients)
        .ending_after(last)
        .sent_before(moments_traffic(problem)))
}

/// The clients of a simulation, with keys from the seed.
fn clients(
    resolved: &Resolved,
    problem: &Problem,
    sigmas: &[f64],
    plan: &ClientPlan,
) -> Result<Vec<Client>, ProblemError> {
    let plan = Arc::new(plan.clone());
    problem
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
        .collect()
}
