//! A run that can be made, and what it leaves.

use std::ops::ControlFlow;
use std::sync::Arc;

use soteriafl_core::data::Dataset;
use soteriafl_core::protocol::{Client, ClientId, ClientPlan, Round, Server};
use soteriafl_core::quality::{self, Quality};
use soteriafl_core::random::SecretKey;
use soteriafl_core::simulate::{EvaluationPlan, Metrics, Progress, Simulation, Traffic};

use super::TrainingError;
use crate::accounting::Privacy;
use crate::claim::Claim;
use crate::specification::Specification;

/// A run that can be made: everything is decided, noise is calibrated.
pub struct Run {
    pub(super) specification: Specification,
    pub(super) plan: Arc<ClientPlan>,
    pub(super) shards: Vec<Arc<Dataset>>,
    pub(super) weights: Vec<f64>,
    pub(super) privacy: Privacy,
    pub(super) start: Vec<f32>,
    pub(super) evaluate_every: Round,
    pub(super) threads: Option<usize>,
}

impl Run {
    /// What is claimed for its messages, or why nothing is.
    pub fn claim(&self) -> &Claim {
        &self.privacy.claim
    }

    /// What all messages together cost, by the client that pays most; `None` without a claim.
    pub fn epsilon(&self) -> Option<f64> {
        self.privacy.epsilon
    }

    /// Noise and cost, client by client.
    pub fn privacy(&self) -> &Privacy {
        &self.privacy
    }

    /// What runs.
    pub fn specification(&self) -> &Specification {
        &self.specification
    }

    /// The clients with simulated secrets, to be driven by a program of your own.
    ///
    /// # Errors
    /// When a client cannot run this.
    pub fn clients(&self) -> Result<Vec<Client>, TrainingError> {
        let numbered = self.shards.iter().zip(&self.privacy.sigmas).enumerate();
        let client = |(id, (shard, &sigma)): (usize, (&Arc<Dataset>, &f64))| {
            let id = id as ClientId;
            let key = SecretKey::simulated(self.specification.seed, id);
            let sampling = self.specification.sampling();
            Client::new(
                id,
                Arc::clone(&self.plan),
                Arc::clone(shard),
                sampling,
                sigma,
                key,
            )
        };
        Ok(numbered.map(client).collect::<Result<_, _>>()?)
    }

    /// The server of these clients.
    pub fn server(&self) -> Server {
        let weights = self.weights.clone();
        let plan = self.specification.server_plan(&self.plan, weights);
        Server::new(plan, self.start.clone())
    }

    /// Makes the run in this process. Metrics look at raw records and stand outside every claim.
    ///
    /// # Errors
    /// When the test records do not fit the model, or the computation leaves the range of numbers.
    pub fn simulate<'a>(
        &self,
        test: impl Into<Option<&'a Dataset>>,
    ) -> Result<TrainingResult, TrainingError> {
        self.simulate_while(test, |_| ControlFlow::Continue(()))
    }

    /// The same, calling `observe` at the start and after every round. Where it breaks, the run
    /// ends, and the result is what there is.
    ///
    /// # Errors
    /// As [`simulate`](Self::simulate).
    pub fn simulate_while<'a>(
        &self,
        test: impl Into<Option<&'a Dataset>>,
        mut observe: impl FnMut(&Progress) -> ControlFlow<()>,
    ) -> Result<TrainingResult, TrainingError> {
        let test = test.into();
        if let Some(test) = test {
            let fits = self.plan.objective.check(test);
            fits.map_err(|reason| TrainingError::Unfit(format!("the test records: {reason}")))?;
        }
        let mut simulation = Simulation::new(self.server(), self.clients()?)
            .ending_after(self.specification.last_round());
        let metrics = EvaluationPlan {
            objective: self.plan.objective.as_ref(),
            regularizer: self.specification.regularizer,
            weights: &self.weights,
            test,
            every: self.evaluate_every,
            from: 0,
        };
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        let (mut rounds, mut traffic) = (Vec::new(), Traffic::default());
        simulation.run(
            self.threads.unwrap_or_else(cores).max(1),
            &metrics,
            |progress, _| {
                traffic = progress.traffic;
                if let Some(metrics) = progress.metrics {
                    let spent = self.privacy.odometer.as_ref();
                    rounds.push(MeasuredRound {
                        round: progress.round,
                        metrics,
                        epsilon: spent.map(|spent| spent.after(u64::from(progress.round))),
                    });
                }
                observe(&progress)
            },
        )?;
        let model = simulation.server().model().as_ref().clone();
        let last = rounds.last().map(|row: &MeasuredRound| row.metrics);
        let objective = self.plan.objective.as_ref();
        let test = test.filter(|_| objective.outputs() > 0);
        let quality = test.and_then(|test| quality::measure(objective, &model, test, 1));
        match last {
            Some(last) if last.loss.is_finite() && model.iter().all(|x| x.is_finite()) => {
                Ok(TrainingResult {
                    model,
                    loss: last.loss,
                    test_accuracy: last.test_accuracy,
                    quality,
                    rounds,
                    traffic,
                })
            }
            _ => Err(TrainingError::Diverged(self.specification.rounds)),
        }
    }
}

/// What a simulated run leaves.
#[derive(Clone, Debug)]
pub struct TrainingResult {
    /// The model's parameters.
    pub model: Vec<f32>,
    /// The objective at the end, over all records.
    pub loss: f64,
    /// The share of test records that the model classifies correctly.
    pub test_accuracy: Option<f64>,
    /// What else is known about the model on the test records; `None` without them, and for an
    /// objective that predicts nothing but classes.
    pub quality: Option<Quality>,
    /// What was measured, from the start on.
    pub rounds: Vec<MeasuredRound>,
    /// What was sent, over all clients.
    pub traffic: Traffic,
}

/// One measurement.
#[derive(Clone, Copy, Debug)]
pub struct MeasuredRound {
    /// Rounds done.
    pub round: Round,
    /// Loss, gradient norm, accuracy.
    pub metrics: Metrics,
    /// What has been spent by then; `None` without a claim.
    pub epsilon: Option<f64>,
}
