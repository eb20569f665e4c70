//! The facade: the same run as a configuration's, and everything that it refuses.

use std::ops::ControlFlow;

use soteriafl::accounting::Privacy;
use soteriafl::config::{Config, Document};
use soteriafl::core::objective::{Activation, Logistic, Network, Regularizer};
use soteriafl::core::simulate::EvaluationPlan;
use soteriafl::problem::Problem;
use soteriafl::{
    Adjacency, Claim, ClipScope, CompressorKind, Dataset, Estimator, Reason, Target, Training,
    TrainingError,
};
use soteriafl_data::{DataDirectories, Partition, Synthetic};

const FEATURES: usize = 8;

fn shards(clients: usize) -> Vec<Dataset> {
    let source: Synthetic = format!("600x{FEATURES}").parse().unwrap();
    let train = source.train(5).unwrap();
    Partition::Iid.split(&train, clients, 5).unwrap()
}

fn training() -> Training {
    Training::new(Logistic::new(FEATURES), shards(3))
        .compress(CompressorKind::RandK { k: 3 })
        .shifted()
        .clip(0.5, ClipScope::Record)
        .private(Target::epsilon(2.0, 1e-5, Adjacency::ReplaceOne))
        .rounds(12)
        .step_size(0.5)
        .seed(5)
}

/// The same settings as a file give the same noise, claim and bits.
#[test]
fn a_configuration_and_a_program_mean_the_same() {
    let svrg = Estimator::Svrg {
        snapshot_probability: 0.3,
        difference_clip: Some(0.2),
    };
    for (estimator, batch, noise) in [
        (Estimator::Gd, None, "float"),
        (Estimator::Sgd, Some(40.0), "float"),
        (svrg, Some(40.0), "secure"),
    ] {
        let mut described = training()
            .estimator(estimator)
            .regularizer(Regularizer::L2 { lambda: 0.01 });
        let mut settings = vec![
            "data.source=synthetic:600x8".to_string(),
            "data.clients=3".to_string(),
            "data.partition=iid".to_string(),
            "model.intercept=false".to_string(),
            "model.regularizer=l2".to_string(),
            "model.lambda=0.01".to_string(),
            "model.init=zeros".to_string(),
            format!("algorithm.preset=soteriafl-{}", estimator.kind()),
            "algorithm.k=3".to_string(),
            "algorithm.rounds=12".to_string(),
            "algorithm.step_size=0.5".to_string(),
            "algorithm.snapshot_probability=0.3".to_string(),
            "privacy.epsilon=2".to_string(),
            "privacy.clip=0.5".to_string(),
            "privacy.clip_scope=record".to_string(),
            "privacy.difference_clip=0.2".to_string(),
            format!("privacy.noise={noise}"),
            "run.seed=5".to_string(),
            "run.eval_every=0".to_string(),
        ];
        if let Some(batch) = batch {
            described = described.batch(batch);
            settings.push(format!("algorithm.batch={batch}"));
        }
        if noise == "secure" {
            described = described.secure_noise();
        }
        let run = described.threads(1).build().unwrap();
        let (privacy, model) = configured(&settings);
        assert_eq!(run.privacy().sigmas, privacy.sigmas, "{estimator:?}");
        assert_eq!(
            (run.claim(), run.epsilon()),
            (&privacy.claim, privacy.epsilon)
        );
        assert!(run.claim().is_proved() && run.epsilon() <= Some(2.0));
        let result = run.simulate(None).unwrap();
        assert_eq!(result.model, model, "{estimator:?}");
        assert_eq!(result.rounds.last().unwrap().round, 12);
    }
}

fn configured(settings: &[String]) -> (Privacy, Vec<f32>) {
    let mut document = Document::default();
    for setting in settings {
        document.set(setting).unwrap();
    }
    let config = Config::read(&document).unwrap();
    let problem = Problem::load(&config, &DataDirectories::from_environment(None)).unwrap();
    let shape = problem.shape(&config).unwrap();
    let (resolved, _) = config.resolve(&shape).unwrap();
    let dimension = problem.objective.dimension();
    let run = resolved.specification();
    let privacy = Privacy::calibrate(&run, dimension, &shape.records, false).unwrap();
    let mut simulation = soteriafl::run::simulation(&resolved, &problem, &privacy.sigmas).unwrap();
    let weights = problem.weights(&resolved);
    let metrics = EvaluationPlan {
        objective: problem.objective.as_ref(),
        regularizer: run.regularizer,
        weights: &weights,
        test: None,
        every: 0,
        from: 0,
    };
    simulation
        .run(1, &metrics, |_, _| ControlFlow::Continue(()))
        .unwrap();
    (privacy, simulation.server().model().as_ref().clone())
}

#[test]
fn threads_change_no_bit() {
    let model = |threads| {
        let run = training().threads(threads).build().unwrap();
        run.simulate(None).unwrap().model
    };
    assert_eq!(model(1), model(3));
}

/// A claim is withheld where a link of its chain is missing, with the reason.
#[test]
fn claims_are_withheld_with_their_reason() {
    let claim = |training: Training| training.build().unwrap().claim().clone();
    assert_eq!(claim(training()), Claim::Proved);
    let prepared = training().prepared_by_records();
    assert_eq!(
        claim(prepared),
        Claim::Withheld(Reason::DataDependentScaling)
    );
    let whole = training().clip(0.5, ClipScope::Estimate);
    assert_eq!(claim(whole), Claim::Withheld(Reason::WholeEstimates));
    let silent = Training::new(Logistic::new(FEATURES), shards(2));
    assert_eq!(claim(silent), Claim::Withheld(Reason::NoNoise));
}

/// Whatever cannot run is refused in words when it is built; nothing panics.
#[test]
fn what_cannot_run_is_refused_in_words() {
    let selected_svrg = training()
        .estimator(Estimator::Svrg {
            snapshot_probability: 0.3,
            difference_clip: Some(0.1),
        })
        .batch(20.0)
        .clip(0.5, ClipScope::Selected);
    let network = Network::new(FEATURES + 1, &[4], 3, Activation::Tanh).unwrap();
    let unclipped = Training::new(Logistic::new(FEATURES), shards(2)).private(Target::epsilon(
        1.0,
        1e-5,
        Adjacency::ReplaceOne,
    ));
    let refused: Vec<(Training, &str)> = vec![
        (Training::new(Logistic::new(FEATURES), []), "no clients"),
        (
            Training::new(Logistic::new(5), shards(2)),
            "reads 5 columns",
        ),
        (Training::new(network, shards(2)), "reads 9 columns"),
        (training().estimator(Estimator::Sgd), "sgd draws batches"),
        (
            training().estimator(Estimator::Gd).batch(10.0),
            "gd computes gradients of all records",
        ),
        (
            training().estimator(Estimator::Sgd).batch(1e6),
            "at most the records of the smallest client",
        ),
        (
            training().estimator(Estimator::Sgd).batch(f64::NAN),
            "the batch must be",
        ),
        (
            training().compress(CompressorKind::RandK { k: 9 }),
            "compressor",
        ),
        (training().participation(0.0), "compressor"),
        (training().clip(-1.0, ClipScope::Record), "the clip must be"),
        (training().rounds(0), "rounds must be"),
        (training().step_size(f64::INFINITY), "the step size must be"),
        (training().momentum(1.0), "the momentum must be"),
        (training().shift_step(-0.1), "the shift step must be"),
        (training().start(vec![0.0; 3]), "the start has 3 numbers"),
        (
            training().private(Target::epsilon(-1.0, 1e-5, Adjacency::ZeroOut)),
            "above 0",
        ),
        (
            training().private(Target::epsilon(1.0, 1.0, Adjacency::ZeroOut)),
            "delta",
        ),
        (selected_svrg, "proved for gd and sgd alone"),
        (unclipped, "give a bound on records"),
    ];
    for (training, expected) in refused {
        let error = training.build().err().expect(expected).to_string();
        assert!(
            error.contains(expected),
            "{error:?} instead of {expected:?}"
        );
    }
}

#[test]
fn a_run_that_leaves_the_range_of_numbers_says_so() {
    let run = Training::new(Logistic::new(FEATURES), shards(2))
        .regularizer(Regularizer::L2 { lambda: 1e10 })
        .step_size(1e10)
        .build()
        .unwrap();
    let error = run.simulate(None).unwrap_err();
    assert!(matches!(error, TrainingError::Diverged(100)), "{error}");
    let test: Dataset = "50x5".parse::<Synthetic>().unwrap().test(1).unwrap();
    let error = training().build().unwrap().simulate(&test).unwrap_err();
    assert!(error.to_string().contains("the test records"), "{error}");
}

/// A random iterate is the model of its round, and costs what all rounds cost.
#[test]
fn a_random_iterate_is_a_model_of_the_run() {
    let drawn = training().random_iterate().build().unwrap();
    let last = drawn.specification().last_round();
    assert!((1..=12).contains(&last));
    let result = drawn.simulate(None).unwrap();
    assert_eq!(result.rounds.last().unwrap().round, last);
    let sigmas = &drawn.privacy().sigmas;
    assert_eq!(training().build().unwrap().privacy().sigmas, *sigmas);
    let shorter = training()
        .private(Target::sigma(sigmas[0], 1e-5, Adjacency::ReplaceOne))
        .rounds(last)
        .build()
        .unwrap();
    assert_eq!(shorter.simulate(None).unwrap().model, result.model);
}
