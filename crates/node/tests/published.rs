//! The paper's a9a experiments as they were published (whole estimates clipped, sampling with
//! replacement, the paper's noise), against values measured from the authors' algorithms.
//!
//! Each band is a mean and standard deviation over ten seeds. Ours must agree within three standard
//! errors of the difference: for independent normal means a pair of them fails with probability
//! 0.0054, but the seeds here are fixed.

use std::ops::ControlFlow;

use soteria_core::data::DataDirectories;
use soteria_core::simulate::EvaluationPlan;
use soteria_node::accounting::Privacy;
use soteria_node::config::{Config, Document};
use soteria_node::problem::{Problem, regularizer};
use soteria_node::run;

const SEEDS: u64 = 10;

struct Published {
    epsilon: f64,
    preset: &'static str,
    rounds: u32,
    step_size: f64,
    batch: u32,
    sigma: f64,
    utility: (f64, f64),
    loss: (f64, f64),
}

fn check(published: &Published) {
    let start = concat!(env!("CARGO_MANIFEST_DIR"), "/../../vectors/a9a-start.csv");
    let mut document = Document::default();
    for assignment in [
        "data.rows=32560".to_string(),
        "data.scale=spectral".to_string(),
        "model.lambda=0.2".to_string(),
        "model.regularizer_at=client".to_string(),
        format!("model.init=file:{start}"),
        format!("algorithm.preset={}", published.preset),
        format!("algorithm.rounds={}", published.rounds),
        format!("algorithm.step_size={}", published.step_size),
        format!("algorithm.batch={}", published.batch),
        format!("privacy.epsilon={}", published.epsilon),
        "privacy.delta=1e-3".to_string(),
        "privacy.clip=0.5".to_string(),
        "privacy.clip_scope=estimate".to_string(),
        "privacy.sampling=with-replacement".to_string(),
        "privacy.accountant=paper".to_string(),
    ] {
        document.set(&assignment).unwrap();
    }
    let config = Config::read(&document).unwrap();
    let problem = Problem::load(&config, &DataDirectories::new(Vec::new())).unwrap();
    let (mut resolved, _) = config.resolve(&problem.shape(&config).unwrap()).unwrap();
    let records: Vec<usize> = problem.shards.iter().map(|shard| shard.rows()).collect();
    let privacy =
        Privacy::settle(&resolved, problem.objective.dimension(), &records, true).unwrap();
    assert_eq!(privacy.epsilon, None, "nothing is claimed for this");
    assert!(
        (privacy.sigmas[0] - published.sigma).abs() < 1e-6,
        "{}",
        privacy.sigmas[0]
    );
    let weights = problem.weights(&resolved);
    let plan = EvaluationPlan {
        objective: problem.objective.as_ref(),
        regularizer: regularizer(resolved.regularizer, resolved.lambda),
        weights: &weights,
        test: None,
        every: 1,
        from: 0,
    };
    let (mut utilities, mut losses) = (Vec::new(), Vec::new());
    for seed in 0..SEEDS {
        resolved.seed = seed;
        let mut simulation = run::simulation(&resolved, &problem, &privacy.sigmas).unwrap();
        let (mut norms, mut loss) = (Vec::new(), f64::NAN);
        simulation.run(1, &plan, |progress, _| {
            let metrics = progress.metrics.unwrap();
            norms.push(metrics.grad_norm_sq);
            loss = metrics.loss;
            ControlFlow::Continue(())
        });
        assert!(
            (norms[0].sqrt() - 0.896045).abs() < 1e-5,
            "the start differs: {}",
            norms[0].sqrt()
        );
        utilities.push(norms.iter().sum::<f64>() / norms.len() as f64);
        losses.push(loss);
    }
    for (name, found, band) in [
        ("utility", utilities, published.utility),
        ("loss", losses, published.loss),
    ] {
        let count = SEEDS as f64;
        let mean = found.iter().sum::<f64>() / count;
        let variance = found
            .iter()
            .map(|value| (value - mean).powi(2))
            .sum::<f64>()
            / (count - 1.0);
        let error = ((variance + band.1 * band.1) / count).sqrt();
        let distance = (mean - band.0) / error;
        assert!(
            distance.abs() < 3.0,
            "{} at epsilon {}: {name} {mean:.4} is {distance:.1} standard errors from {}",
            published.preset,
            published.epsilon,
            band.0
        );
    }
}

macro_rules! published {
    ($($test:ident: $epsilon:literal $preset:literal $rounds:literal $step:literal $batch:literal $sigma:literal
        utility $utility:literal +- $utility_sd:literal loss $loss:literal +- $loss_sd:literal;)*) => {
        $(#[test]
        fn $test() {
            check(&Published {
                epsilon: $epsilon,
                preset: $preset,
                rounds: $rounds,
                step_size: $step,
                batch: $batch,
                sigma: $sigma,
                utility: ($utility, $utility_sd),
                loss: ($loss, $loss_sd),
            });
        })*
    };
}

published! {
    ldp_sgd_1: 1.0 "ldp-sgd" 25 1.0 10 0.005708 utility 0.1527 +- 0.0021 loss 0.6102 +- 0.0034;
    ldp_svrg_1: 1.0 "ldp-svrg" 25 1.0 54 0.019772 utility 0.1427 +- 0.0018 loss 0.6074 +- 0.0023;
    cdp_sgd_1: 1.0 "cdp-sgd" 25 0.6 10 0.005708 utility 0.2487 +- 0.0188 loss 0.6912 +- 0.0368;
    soteriafl_sgd_1: 1.0 "soteriafl-sgd" 25 0.6 10 0.006991 utility 0.2500 +- 0.0156 loss 0.6976 +- 0.0247;
    soteriafl_svrg_1: 1.0 "soteriafl-svrg" 25 0.6 54 0.019772 utility 0.2595 +- 0.0232 loss 0.7484 +- 0.0347;
    ldp_sgd_5: 5.0 "ldp-sgd" 100 1.0 51 0.002283 utility 0.0912 +- 0.0004 loss 0.6063 +- 0.0015;
    ldp_svrg_5: 5.0 "ldp-svrg" 100 1.0 54 0.007909 utility 0.0887 +- 0.0004 loss 0.6051 +- 0.0015;
    cdp_sgd_5: 5.0 "cdp-sgd" 100 0.1 51 0.002283 utility 0.2300 +- 0.0095 loss 0.6187 +- 0.0088;
    soteriafl_sgd_5: 5.0 "soteriafl-sgd" 100 0.3 51 0.002796 utility 0.1356 +- 0.0041 loss 0.6103 +- 0.0043;
    soteriafl_svrg_5: 5.0 "soteriafl-svrg" 100 0.3 54 0.007909 utility 0.1374 +- 0.0053 loss 0.6131 +- 0.0066;
}
