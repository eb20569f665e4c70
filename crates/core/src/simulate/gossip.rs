//! All nodes of a graph in one process: clients without a server ([`crate::gossip`]).
//!
//! **What it computes.** In a round every node speaks from the state at its start; then every node
//! hears its neighbours in ascending order, and finishes the round. Where all hear the mean of all, it is
//! added up once, in the order of nodes.
//!
//! **Guarantee.** The same bits on any number of threads: a node's messages depend on (key, round,
//! its own state) alone, and sums have one order.
//!
//! **Metrics** are those of the mean of all models; [`Metrics::consensus_error`] says how far the
//! models are from it.
//!
//! **Traffic.** `uplink_bytes` counts every message once for each neighbour that it goes to. Only a
//! star has a way down: what its server sends back to each client.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Instant;

use super::evaluate::Evaluation;
use super::task::Task;
use super::workers::{Barrier, Workers};
use super::{Clock, EvaluationPlan, Metrics, Progress, SimulationError, Traffic};
use crate::gossip::{GossipPlan, Graph, Mixture, Node, Sent, consensus};
use crate::objective::ObjectiveError;
use crate::protocol::{Client, Round, RoundScratch};
use crate::wire;

/// A run without a server in one process.
pub struct GossipSimulation {
    plan: Arc<GossipPlan>,
    graph: Arc<Graph>,
    nodes: Vec<Slot<Node>>,
    sent: Vec<RwLock<Sent>>,
    /// One for every node, or one for all.
    mixtures: Vec<RwLock<Mixture>>,
    mean: RwLock<Vec<f32>>,
    round: Round,
    last: Round,
    traffic: Traffic,
    clock: Clock,
    failed: bool,
}

/// In cache lines of its own: its neighbour may belong to another thread.
#[repr(align(128))]
struct Slot<T>(Mutex<T>);

impl<T> Slot<T> {
    fn take(&self) -> MutexGuard<'_, T> {
        self.0.lock().expect("each node has one thread at a time")
    }
}

fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().expect("no thread panics holding it")
}

fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().expect("no thread panics holding it")
}

impl GossipSimulation {
    /// A run of these clients, numbered from 0 in order, that all start at `start`.
    ///
    /// # Panics
    /// If the numbers of clients of graph, plan and list differ.
    pub fn new(
        plan: Arc<GossipPlan>,
        graph: Arc<Graph>,
        clients: Vec<Client>,
        start: Vec<f32>,
    ) -> Self {
        assert_eq!(graph.clients(), clients.len(), "clients of the graph");
        assert_eq!(plan.weights.len(), clients.len(), "one weight per client");
        let mixtures = if graph.is_uniform() { 1 } else { clients.len() };
        let mixture = || RwLock::new(Mixture::new(plan.transport, &start));
        Self {
            mixtures: (0..mixtures).map(|_| mixture()).collect(),
            sent: clients.iter().map(|_| RwLock::default()).collect(),
            nodes: clients
                .into_iter()
                .enumerate()
                .map(|(i, client)| {
                    let own = graph.own_weight(i);
                    Slot(Mutex::new(Node::new(
                        Arc::clone(&plan),
                        client,
                        own,
                        &start,
                    )))
                })
                .collect(),
            mean: RwLock::new(start),
            round: 0,
            last: plan.rounds,
            traffic: Traffic::default(),
            clock: Clock::default(),
            failed: false,
            plan,
            graph,
        }
    }

    /// The same, ending after round `last` of the plan's.
    #[must_use]
    pub fn ending_after(mut self, last: Round) -> Self {
        self.last = last.min(self.plan.rounds);
        self
    }

    /// Runs to the last round, or until `observe` breaks. `observe` is called at the start and
    /// after every round.
    ///
    /// # Errors
    /// When the objective fails. The simulation cannot go on then.
    pub fn run(
        &mut self,
        threads: usize,
        plan: &EvaluationPlan<'_>,
        mut observe: impl FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<(), SimulationError> {
        if self.failed {
            return Err(SimulationError::Failed);
        }
        let records = self.nodes.iter();
        let records = records.map(|node| Arc::clone(node.take().client().data()));
        let evaluation = Evaluation::new(plan, records.collect());
        let (first, rounds) = (self.round, self.last);
        let (mut traffic, mut clock) = (self.traffic, self.clock);
        let shared = Shared::new(self, &evaluation);
        let work = |thread: usize, task: Task, barrier: &Barrier, scratch: &mut RoundScratch| {
            shared.work(task, scratch);
            barrier.wait(thread);
        };
        let mut done = first;
        let ended = Workers::scope(threads.max(1), work, |workers| {
            for round in first..=rounds {
                let mut metrics = None;
                if plan.due(round, rounds) {
                    let start = Instant::now();
                    metrics = Some(shared.evaluate(round, workers)?);
                    clock.evaluation += start.elapsed();
                }
                let progress = Progress {
                    round,
                    traffic,
                    metrics,
                };
                if observe(progress).is_break() || round == rounds {
                    return Ok(());
                }
                let start = Instant::now();
                shared.begin(round);
                workers.run(Task::Speak);
                if let Some(failure) = shared.failure().take() {
                    return Err(failure);
                }
                shared.add_traffic(&mut traffic);
                shared.mix_for_all();
                shared.next.store(0, Ordering::Relaxed);
                workers.run(Task::Hear);
                clock.training += start.elapsed();
                done = round + 1;
            }
            Ok(())
        });
        (self.round, self.traffic, self.clock) = (done, traffic, clock);
        self.failed = ended.is_err();
        self.consensus_error();
        ended
    }

    /// The mean of all models, in the order of nodes, and how far they are from it.
    fn consensus_error(&self) -> f64 {
        let models = self
            .nodes
            .iter()
            .map(|node| Arc::clone(node.take().model()));
        let models: Vec<Arc<Vec<f32>>> = models.collect();
        consensus(&models, &mut write(&self.mean))
    }

    /// The mean of all models.
    pub fn mean(&self) -> Vec<f32> {
        read(&self.mean).clone()
    }

    /// Every node's own model.
    pub fn models(&self) -> Vec<Arc<Vec<f32>>> {
        let nodes = self.nodes.iter();
        nodes.map(|node| Arc::clone(node.take().model())).collect()
    }

    /// How many values a grid has cut off so far.
    pub fn cut_off(&self) -> u64 {
        self.nodes.iter().map(|node| node.take().cut_off()).sum()
    }

    /// Rounds done.
    pub fn round(&self) -> Round {
        self.round
    }

    /// Time spent so far.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// Who talks to whom.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }
}

/// What the threads of a run share.
struct Shared<'a> {
    simulation: &'a GossipSimulation,
    evaluation: &'a Evaluation<'a>,
    round: AtomicUsize,
    /// The next node to be handled in the task at hand.
    next: AtomicUsize,
    failure: Mutex<Option<SimulationError>>,
}

impl<'a> Shared<'a> {
    fn new(simulation: &'a GossipSimulation, evaluation: &'a Evaluation<'a>) -> Self {
        Self {
            simulation,
            evaluation,
            round: AtomicUsize::new(0),
            next: AtomicUsize::new(0),
            failure: Mutex::default(),
        }
    }

    fn failure(&self) -> MutexGuard<'_, Option<SimulationError>> {
        self.failure.lock().expect("no thread panics holding it")
    }

    /// Before the first task of a round.
    fn begin(&self, round: Round) {
        self.round.store(round as usize, Ordering::Relaxed);
        self.next.store(0, Ordering::Relaxed);
    }

    /// Does one thread's part of a task: nodes that no other thread has started, until none is
    /// left.
    fn work(&self, task: Task, scratch: &mut RoundScratch) {
        let round = self.round.load(Ordering::Relaxed);
        let nodes = self.simulation.nodes.len();
        if task == Task::Evaluate {
            // Every node has a model of its own, and a phase for it; the mean has the last one.
            scratch.workspace().begin_phase(phase(round, nodes, nodes));
            let mean = read(&self.simulation.mean);
            self.evaluation.work(&mean, scratch.workspace());
            return;
        }
        loop {
            let node = self.next.fetch_add(1, Ordering::Relaxed);
            if node >= nodes {
                return;
            }
            match task {
                Task::Speak => {
                    scratch.workspace().begin_phase(phase(round, nodes, node));
                    if let Err(error) = self.speak(round as Round, node, scratch) {
                        self.fail(node, round as Round, error);
                    }
                }
                _ => self.hear(round as Round, node),
            }
        }
    }

    fn speak(
        &self,
        round: Round,
        node: usize,
        scratch: &mut RoundScratch,
    ) -> Result<(), ObjectiveError> {
        let mixture = read(self.mixture(node));
        let sent = &mut write(&self.simulation.sent[node]);
        let mut node = self.simulation.nodes[node].take();
        node.speak(round, &mixture, scratch, sent)
    }

    /// What a node has heard: of its own, or of all.
    fn mixture(&self, node: usize) -> &RwLock<Mixture> {
        let mixtures = &self.simulation.mixtures;
        mixtures.get(node).unwrap_or(&mixtures[0])
    }

    fn hear(&self, round: Round, node: usize) {
        let all_sent = &self.simulation.sent;
        if let Some(heard) = self.simulation.graph.heard(node) {
            let mut mixture = write(self.mixture(node));
            mixture.begin();
            for near in heard {
                mixture.hear(near.weight, &read(&all_sent[near.client as usize]));
            }
        }
        let mixture = read(self.mixture(node));
        let sent = read(&all_sent[node]);
        self.simulation.nodes[node]
            .take()
            .finish_round(round, &mixture, &sent);
    }

    /// Adds up the mean where all hear it.
    fn mix_for_all(&self) {
        if !self.simulation.graph.is_uniform() {
            return;
        }
        let mut mixture = write(&self.simulation.mixtures[0]);
        mixture.begin();
        let weight = 1.0 / self.simulation.nodes.len() as f64;
        for sent in &self.simulation.sent {
            mixture.hear(weight, &read(sent));
        }
    }

    fn add_traffic(&self, traffic: &mut Traffic) {
        let graph = &self.simulation.graph;
        for (node, sent) in self.simulation.sent.iter().enumerate() {
            let (sent, receivers) = (read(sent), graph.receivers(node) as u64);
            traffic.uplink_bytes += receivers * sent.bytes as u64;
            traffic.paper_bits += receivers * 64 * sent.values as u64;
        }
        if graph.has_server() {
            let sent: Vec<_> = self.simulation.sent.iter().map(read).collect();
            let dimension = self.simulation.plan.compressor.dimension();
            let mixture = read(&self.simulation.mixtures[0]);
            let down = mixture
                .changed(sent.iter().map(|sent| &**sent))
                .map(|changed| wire::downlink_len(dimension, changed) as u64);
            traffic.downlink_bytes += graph.clients() as u64 * down.sum::<u64>();
        }
    }

    fn evaluate<W: Fn(usize, Task, &Barrier, &mut RoundScratch) + Sync>(
        &self,
        round: Round,
        workers: &mut Workers<'_, W>,
    ) -> Result<Metrics, SimulationError> {
        let consensus_error = self.simulation.consensus_error();
        self.round.store(round as usize, Ordering::Relaxed);
        self.evaluation.begin();
        workers.run(Task::Evaluate);
        let measured = self.evaluation.finish(&read(&self.simulation.mean));
        let metrics = measured.map_err(SimulationError::Metrics)?;
        Ok(Metrics {
            consensus_error: Some(consensus_error),
            ..metrics
        })
    }

    /// Remembers the failure of the first node, in the order of nodes.
    fn fail(&self, node: usize, round: Round, error: ObjectiveError) {
        let mut failure = self.failure();
        let earlier = matches!(&*failure, Some(SimulationError::Client { client, .. }) if (*client as usize) < node);
        if !earlier {
            *failure = Some(SimulationError::Client {
                client: node as u32,
                round,
                error,
            });
        }
    }
}

/// The number of the phase in which the model of a node, or with `node = nodes` their mean, is
/// looked at in a round: no two have the same.
fn phase(round: usize, nodes: usize, node: usize) -> u64 {
    1 + (round * (nodes + 1) + node) as u64
}
