//! Regression by the library: calibrated or refused, the same bits on any number of threads.

use soteriafl::core::data::{
    Dataset, DenseRows, Features, Labels, Partition, TargetRange, Targets,
};
use soteriafl::core::objective::{Activation, LinearRegression, Network, Objective, TargetLoss};
use soteriafl::core::quality::Quality;
use soteriafl::{Adjacency, ClipScope, CompressorKind, Estimator, Target, Training, TrainingError};

/// Numbers between -1 and 3 that two features decide, nearly.
fn rows(count: u32) -> Dataset {
    let (mut values, mut targets) = (Vec::new(), Vec::new());
    for row in 0..count {
        let (a, b) = (
            f64::from(row * 7 % 19) / 9.5 - 1.0,
            f64::from(row * 5 % 23) / 11.5 - 1.0,
        );
        values.extend([a as f32, b as f32, 1.0]);
        targets.push(1.0 + 0.9 * a - 0.6 * b + f64::from(row % 3) * 0.05);
    }
    let features = Features::Dense(DenseRows::new(3, values).unwrap());
    let targets = Targets::new(&targets, TargetRange::new(-1.0, 3.0).unwrap()).unwrap();
    Dataset::labelled(features, Labels::Targets(targets)).unwrap()
}

fn training(objective: impl Objective + 'static) -> Training {
    Training::new(objective, Partition::Iid.split(&rows(6000), 4, 1).unwrap())
        .estimator(Estimator::Gd)
        .clip(0.3, ClipScope::Record)
        .private(Target::epsilon(2.0, 1e-5, Adjacency::ReplaceOne))
        .rounds(40)
        .step_size(1.0)
        .seed(3)
}

#[test]
fn a_private_regression_is_calibrated_and_explains_its_numbers() {
    let test = rows(500);
    let linear = || training(LinearRegression::with_loss(3, TargetLoss::Squared));
    let run = linear().threads(1).build().unwrap();
    assert!(run.claim().is_proved() && run.epsilon() <= Some(2.0));
    let result = run.simulate(&test).unwrap();
    assert_eq!(result.test_accuracy, None);
    let Some(Quality::Targets(found)) = &result.quality else {
        panic!("numbers are predicted");
    };
    assert!(
        found.r2 > Some(0.9) && found.rmse < found.mean_rmse / 3.0,
        "{found:?}"
    );
    let again = linear()
        .threads(2)
        .build()
        .unwrap()
        .simulate(&test)
        .unwrap();
    assert_eq!(result.model, again.model);
    // With secure noise and fewer coordinates it still learns.
    let secure = linear()
        .secure_noise()
        .compress(CompressorKind::RandK { k: 2 })
        .shifted();
    let found = secure.build().unwrap().simulate(&test).unwrap().quality;
    assert!(matches!(found, Some(Quality::Targets(found)) if found.r2 > Some(0.5)));
}

#[test]
fn models_of_classes_refuse_numbers() {
    let network = Network::new(3, &[4], 2, Activation::Tanh).unwrap();
    let refused = training(network).build();
    assert!(matches!(refused, Err(TrainingError::Unfit(_))));
    let network = Network::regression(3, &[4], Activation::Tanh, TargetLoss::Huber(0.2)).unwrap();
    let start = (0..network.dimension())
        .map(|i| (i as f32 * 0.7).sin() / 2.0)
        .collect();
    let run = training(network).start(start).build().unwrap();
    let found = run.simulate(&rows(500)).unwrap().quality;
    assert!(matches!(found, Some(Quality::Targets(found)) if found.r2 > Some(0.3)));
}
