//! Objectives that compute elsewhere: the same estimates as of those that compute here, and after
//! an error no message, no change of state, and the same bits at the next attempt.

mod common;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use common::*;
use soteriafl_core::compress::CompressorKind;
use soteriafl_core::data::Dataset;
use soteriafl_core::estimator::Clipping;
use soteriafl_core::objective::{
    ClipBound, Coordinates, Elsewhere, Gradients, Logistic, Objective, ObjectiveError, Outcome,
    Records, Regularizer, Workspace,
};
use soteriafl_core::privacy::Noise;
use soteriafl_core::protocol::{Estimator, Server};
use soteriafl_core::sampling::{Coins, Sampling};
use soteriafl_core::simulate::{EvaluationPlan, Simulation, SimulationError};

const COLUMNS: usize = 5;
const ROUNDS: u32 = 6;
const SVRG: Estimator = Estimator::Svrg {
    snapshot_probability: 0.5,
    difference_clip: Some(0.4),
};
const SAGA: Estimator = Estimator::Saga {
    difference_clip: Some(0.4),
};
const CLIP: f64 = 0.5;

/// Logistic regression that is computed elsewhere, three records at a time, and fails for the
/// records of a fragile client when `calls` have been served.
struct Remote {
    here: Logistic,
    calls: AtomicI64,
}

/// Data sets of this many records belong to the fragile client.
const FRAGILE: usize = 10;
const NEVER: i64 = i64::MAX / 2;

impl Remote {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            here: Logistic::new(COLUMNS),
            calls: AtomicI64::new(NEVER),
        })
    }

    fn serve(&self, records: Records<'_>) -> Result<(), ObjectiveError> {
        let fragile = records.data.rows() == FRAGILE;
        match fragile && self.calls.fetch_sub(1, Ordering::SeqCst) <= 0 {
            true => Err(ObjectiveError::new("the device is gone")),
            false => Ok(()),
        }
    }
}

impl Objective for Remote {
    fn dimension(&self) -> usize {
        self.here.dimension()
    }

    fn factor_len(&self) -> usize {
        self.here.factor_len()
    }

    fn factors(
        &self,
        model: &[f32],
        records: Records<'_>,
        outcomes: Option<&mut [Outcome]>,
        factors: Option<&mut [f32]>,
        workspace: &mut Workspace,
    ) -> Result<(), ObjectiveError> {
        self.serve(records)?;
        self.here
            .factors(model, records, outcomes, factors, workspace)
    }

    fn elsewhere(&self) -> Option<&dyn Elsewhere> {
        Some(self)
    }

    fn squared_norms(
        &self,
        records: Records<'_>,
        gradients: Gradients<'_>,
        coordinates: Coordinates<'_>,
        squared_norms: &mut [f64],
        workspace: &mut Workspace,
    ) {
        let here = &self.here;
        here.squared_norms(records, gradients, coordinates, squared_norms, workspace);
    }

    fn squared_distances(
        &self,
        records: Records<'_>,
        left: Gradients<'_>,
        right: Gradients<'_>,
        squared_distances: &mut [f64],
        workspace: &mut Workspace,
    ) {
        let here = &self.here;
        here.squared_distances(records, left, right, squared_distances, workspace);
    }

    fn accumulate(
        &self,
        records: Records<'_>,
        gradients: Gradients<'_>,
        coordinates: Coordinates<'_>,
        sum: &mut [f32],
        workspace: &mut Workspace,
    ) {
        let here = &self.here;
        here.accumulate(records, gradients, coordinates, sum, workspace);
    }
}

impl Elsewhere for Remote {
    fn most_records(&self) -> usize {
        3
    }

    fn add_clipped(
        &self,
        model: &[f32],
        records: Records<'_>,
        clip: Option<ClipBound<'_>>,
        coordinates: Coordinates<'_>,
        scale: f32,
        sum: &mut [f32],
    ) -> Result<(), ObjectiveError> {
        self.serve(records)?;
        let workspace = &mut Workspace::new();
        let (count, here) = (records.len(), &self.here);
        let mut factors = vec![0.0; count * here.factor_len()];
        here.factors(model, records, None, Some(&mut factors), workspace)?;
        let mut weights = vec![1.0; count];
        let over = clip.map_or(Coordinates::All, |clip| clip.over);
        let gradients = Gradients {
            factors: &factors,
            weights: &weights,
        };
        let mut norms = vec![0.0; count];
        here.squared_norms(records, gradients, over, &mut norms, workspace);
        for (weight, norm) in weights.iter_mut().zip(norms) {
            let clipped = clip.map_or(1.0, |clip| (clip.norm / norm.sqrt()).min(1.0));
            *weight = clipped as f32 * scale;
        }
        let gradients = Gradients {
            factors: &factors,
            weights: &weights,
        };
        here.accumulate(records, gradients, coordinates, sum, workspace);
        Ok(())
    }
}

/// Four clients, of which the second is fragile; SoteriaFL with random-k.
fn setting(objective: Arc<dyn Objective>, estimator: Estimator, noise: Noise) -> Setting {
    let data = |client: usize| {
        let count = if client == 1 { FRAGILE } else { FRAGILE + 3 };
        let (rows, labels) = table(client as u64, count, COLUMNS, 2);
        Arc::new(dense(&rows, &labels, 2))
    };
    let mut plan = client_plan(objective, CompressorKind::RandK { k: 3 });
    plan.estimator = estimator;
    plan.clipping = Clipping::Record(CLIP);
    plan.noise = noise;
    plan.shift_step = Some(0.3);
    let coins = match noise {
        Noise::Secure => Coins::Exact,
        _ => Coins::Fast,
    };
    Setting {
        name: format!("{estimator:?} {noise:?}"),
        sampling: Sampling::Poisson { batch: 7.0, coins },
        sigma: 0.01,
        server: server_plan(&plan, 4, ROUNDS),
        naive: naive_logistic(),
        data: (0..4).map(data).collect::<Vec<Arc<Dataset>>>(),
        start: Stream(3).numbers(COLUMNS, 0.5),
        seed: 5,
        plan,
    }
}

fn settings() -> impl Iterator<Item = (Estimator, Noise)> {
    let noises = [Noise::None, Noise::Float, Noise::Secure];
    let estimators = [Estimator::Sgd, SVRG, SAGA];
    estimators
        .into_iter()
        .flat_map(move |estimator| noises.map(|noise| (estimator, noise)))
}

#[test]
fn estimates_are_those_of_objectives_that_compute_here() {
    for (estimator, noise) in settings() {
        let here = setting(Arc::new(Logistic::new(COLUMNS)), estimator, noise).run_product();
        let there = setting(Remote::new(), estimator, noise).run_product();
        if noise == Noise::Secure {
            assert!(here == there, "{estimator:?}: records are computed alone");
        }
        for (here, there) in here.0.iter().zip(&there.0) {
            assert!((here - there).abs() < 1e-5, "{estimator:?} {noise:?}");
        }
    }
}

/// Whatever call fails, there is no message, the client's state is what it was, and the message of
/// the next attempt has the bits that it would have had.
#[test]
fn a_failed_round_leaves_no_trace() {
    for (estimator, noise) in settings() {
        let undisturbed = setting(Remote::new(), estimator, noise);
        let remote = Remote::new();
        let disturbed = setting(Arc::clone(&remote) as Arc<dyn Objective>, estimator, noise);
        let [mut whole, mut broken] =
            [undisturbed, disturbed].map(|setting| Sender::new(setting.clients().remove(1)));
        let mut model = Arc::new(Stream(9).numbers(COLUMNS, 0.7));
        let mut failures = 0;
        for round in 0..ROUNDS {
            whole.send(round, &model);
            for calls in 0.. {
                remote.calls.store(calls, Ordering::SeqCst);
                let before = broken.client.save();
                let made = broken.client.message(round, &model, &mut broken.scratch);
                let error = match made {
                    Ok(message) => {
                        assert!(message.bytes == whole.bytes, "{estimator:?} {noise:?}");
                        break;
                    }
                    Err(error) => error,
                };
                assert_eq!(error.to_string(), "the device is gone");
                assert!(broken.client.save() == before, "{estimator:?} {noise:?}");
                failures += 1;
            }
            assert!(
                broken.client.save() == whole.client.save(),
                "{estimator:?} {noise:?}"
            );
            model = Arc::new(model.iter().map(|x| 0.9 * x + 0.01).collect());
        }
        assert!(failures >= ROUNDS, "{estimator:?} {noise:?}: {failures}");
    }
}

/// A simulation ends with the first client that failed, in the open round, on any number of
/// threads; what it was before, the server still is.
#[test]
fn a_simulation_says_who_failed() {
    let mut ends = Vec::new();
    for threads in [1, 2, 4] {
        let remote = Remote::new();
        let objective = Arc::clone(&remote) as Arc<dyn Objective>;
        let setting = setting(objective, Estimator::Sgd, Noise::Float);
        // Metrics call, too; so they are switched off.
        let plan = EvaluationPlan {
            objective: &*remote,
            regularizer: Regularizer::None,
            weights: &setting.server.weights,
            test: None,
            every: 0,
            from: u32::MAX,
        };
        remote.calls.store(3, Ordering::SeqCst);
        let server = Server::new(setting.server.clone(), setting.start.clone());
        let mut simulation = Simulation::new(server, setting.clients());
        let mut last = None;
        let ended = simulation.run(threads, &plan, |progress, server| {
            last = Some((progress.round, server.model().to_vec()));
            ControlFlow::Continue(())
        });
        let Err(SimulationError::Client { client, round, .. }) = &ended else {
            panic!("{threads} threads: {ended:?}");
        };
        assert_eq!((*client, *round), (1, 3));
        assert_eq!(
            ended.unwrap_err().to_string(),
            "client 1 in round 3: the device is gone"
        );
        let (rounds, model) = last.unwrap();
        assert_eq!((rounds, simulation.server().round()), (3, 3));
        assert_eq!(simulation.server().model().as_slice(), model);
        remote.calls.store(NEVER, Ordering::SeqCst);
        let again = simulation.run(threads, &plan, |_, _| ControlFlow::Continue(()));
        assert!(matches!(again, Err(SimulationError::Failed)));
        ends.push(model);
    }
    assert!(ends[0] == ends[1] && ends[1] == ends[2]);
}

/// Metrics ask for loss and whole sums, never for a record's gradient, and may fail.
#[test]
fn metrics_are_those_of_objectives_that_compute_here() {
    let metrics = |objective: Arc<dyn Objective>| {
        let setting = setting(Arc::clone(&objective), Estimator::Sgd, Noise::None);
        let plan = EvaluationPlan {
            objective: &*objective,
            regularizer: Regularizer::None,
            weights: &setting.server.weights,
            test: Some(&setting.data[0]),
            every: 2,
            from: 0,
        };
        let server = Server::new(setting.server.clone(), setting.start.clone());
        let mut simulation = Simulation::new(server, setting.clients());
        let mut rows = Vec::new();
        let ended = simulation.run(2, &plan, |progress, _| {
            rows.extend(progress.metrics);
            ControlFlow::Continue(())
        });
        ended.map(|()| rows)
    };
    let here = metrics(Arc::new(Logistic::new(COLUMNS))).unwrap();
    let there = metrics(Remote::new()).unwrap();
    assert_eq!(here.len(), there.len());
    for (here, there) in here.iter().zip(&there) {
        assert!((here.loss - there.loss).abs() < 1e-6);
        assert!((here.grad_norm_sq - there.grad_norm_sq).abs() < 1e-6);
        assert_eq!(here.test_accuracy, there.test_accuracy);
    }
    let broken = Remote::new();
    broken.calls.store(0, Ordering::SeqCst);
    let error = metrics(broken).unwrap_err();
    assert!(matches!(error, SimulationError::Metrics(_)), "{error}");
}
