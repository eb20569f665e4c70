//! What `preset = "auto"` chooses, and what it reaches on the paper's a9a problem with a proof.

use std::ops::ControlFlow;

use soteriafl::accounting::Privacy;
use soteriafl::config::resolve::{Resolved, Shape};
use soteriafl::config::{ClipScope, Config, Init, ModelKind, ShiftChoice};
use soteriafl::config::{ConfigError, Document};
use soteriafl::problem::{Problem, regularizer};
use soteriafl::run;
use soteriafl_core::compress::CompressorKind;
use soteriafl_core::objective::Activation;
use soteriafl_core::protocol::Schedule;
use soteriafl_core::simulate::EvaluationPlan;
use soteriafl_data::{DataDirectories, FeatureKind};

fn config(settings: &[&str]) -> Config {
    let mut document = Document::default();
    for assignment in settings {
        document.set(assignment).unwrap();
    }
    Config::read(&document).unwrap()
}

/// The paper's MNIST network at ten clients, without the data.
fn mnist(settings: &[&str]) -> Result<Resolved, ConfigError> {
    let mut all = vec!["data.source=mnist", "privacy.delta=1e-3"];
    all.extend(settings);
    let config = config(&all);
    let basis = config.basis_for(ModelKind::Mlp, 784)?;
    let shape = Shape {
        dimension: basis.map_or(784, |basis| basis.coefficients()) * 64 + 714,
        records: vec![6000; 10],
        model: ModelKind::Mlp,
        smoothness: None,
        image: basis.is_none(),
        feature_map: FeatureKind::None,
        whiten: None,
        basis,
        whole: 50_890,
    };
    Ok(config.resolve(&shape)?.0)
}

/// Smoothing is for images: auto leaves it out elsewhere, and asking for it is an error.
#[test]
fn smoothing_needs_square_images() {
    let shape = Shape {
        dimension: 709,
        records: vec![100; 4],
        model: ModelKind::Mlp,
        smoothness: None,
        image: false,
        feature_map: FeatureKind::None,
        whiten: None,
        basis: None,
        whole: 709,
    };
    let plain = config(&[]).resolve(&shape).unwrap().0;
    assert_eq!(
        (plain.smoothing, plain.equalize, plain.basis),
        (0, 0.0, None)
    );
    let refused = config(&["algorithm.smoothing=2"]).resolve(&shape);
    let said = refused.unwrap_err().to_string();
    assert!(
        said.contains("`algorithm.smoothing` is 2") && said.contains("square"),
        "{said}"
    );
}

/// SVRG and SAGA: either references are renewed within a few rounds and differences are small, or
/// differences may be as large as the clip. The authors' mode is left as it was.
#[test]
fn references_are_renewed_in_time_or_differences_are_large() {
    let shape = Shape {
        dimension: 124,
        records: vec![3256; 10],
        model: ModelKind::Logistic,
        smoothness: None,
        image: false,
        feature_map: FeatureKind::None,
        whiten: None,
        basis: None,
        whole: 124,
    };
    let chosen = |settings: &[&str]| {
        let resolved = config(settings).resolve(&shape).unwrap().0;
        (resolved.snapshot_probability, resolved.difference_clip)
    };
    let svrg = "algorithm.preset=soteriafl-svrg";
    let saga = "algorithm.preset=soteriafl-saga";
    let rate = 54.0 / 3256.0;
    assert_eq!(chosen(&[svrg]), (0.3, Some(0.125)));
    assert_eq!(chosen(&["algorithm.preset=ldp-svrg"]), (0.3, Some(0.125)));
    assert_eq!(chosen(&[svrg, "algorithm.batch=1628"]), (0.5, Some(0.125)));
    let rare = "algorithm.snapshot_probability=0.01";
    assert_eq!(chosen(&[svrg, rare]), (0.01, Some(0.5)));
    for (given, bound) in [("0.5", Some(0.5)), ("2", Some(2.0)), ("none", None)] {
        let given = format!("privacy.difference_clip={given}");
        assert_eq!(chosen(&[svrg, &given]), (rate, bound), "{given}");
    }
    assert_eq!(
        chosen(&[svrg, "privacy.difference_clip=0.1"]),
        (0.3, Some(0.1))
    );
    let authors = "privacy.clip_scope=estimate";
    assert_eq!(chosen(&[svrg, authors]), (rate, None));
    assert_eq!(chosen(&[saga]).1, Some(0.125));
    assert_eq!(chosen(&[saga, "algorithm.batch=54"]).1, Some(0.5));
    assert_eq!(chosen(&[saga, authors]).1, None);
    assert_eq!(chosen(&["algorithm.preset=soteriafl-sgd"]).1, None);
}

/// Never more values than were published: (150, 200, 300, 500, 1000) rounds of 2544.
#[test]
fn networks_of_images_get_the_documented_choice() {
    for (epsilon, published, rounds) in [
        (1, 150, 53),
        (2, 200, 71),
        (4, 300, 107),
        (8, 500, 178),
        (16, 1000, 357),
    ] {
        let chosen = mnist(&[&format!("privacy.epsilon={epsilon}")]).unwrap();
        assert_eq!(chosen.basis, Some(10));
        assert_eq!(chosen.compressor, CompressorKind::RandK { k: 7114 });
        assert_eq!(chosen.rounds, rounds);
        assert!(7114 * rounds <= 2544 * published);
        assert_eq!((chosen.shift, chosen.batch), (ShiftChoice::Off, None));
        assert_eq!(chosen.clip_scope, ClipScope::Selected);
        assert_eq!((chosen.clip, chosen.equalize), (0.5, 0.002));
        assert_eq!((chosen.smoothing, chosen.momentum), (0, 0.6));
        assert_eq!(chosen.init, Init::Normal(0.1));
        assert_eq!(chosen.schedule, Schedule::Cosine);
        assert_eq!(chosen.activation, Activation::Tanh);
        let step = 0.3 / (1.0 + f64::from(epsilon) / 100.0);
        assert!((chosen.step_size - step).abs() < 1e-12);
    }
    let named = mnist(&["algorithm.preset=soteriafl-gd"]).unwrap();
    assert_eq!((named.basis, named.equalize), (None, 0.0));
    assert_eq!(named.activation, Activation::Sigmoid);
    let plain = mnist(&["algorithm.equalize=0"]).unwrap();
    let same = 200.0 * mnist(&[]).unwrap().step_size;
    assert!(plain.equalize == 0.0 && (plain.step_size - same).abs() < 1e-9 * same);
}

/// A basis is for networks that read square images, and equalising for networks that are not too
/// wide.
#[test]
fn a_basis_needs_images_and_equalising_a_network() {
    for (settings, columns, said) in [
        (["data.basis=cosine:4"], 123, "square images, not 123"),
        (["data.basis=cosine:29"], 784, "expected 1 to 28"),
    ] {
        let error = config(&settings).basis_for(ModelKind::Mlp, columns);
        let error = error.unwrap_err().to_string();
        assert!(
            error.contains("`data.basis`") && error.contains(said),
            "{error}"
        );
    }
    let logistic = config(&["data.basis=cosine:4"]).basis_for(ModelKind::Logistic, 784);
    assert!(logistic.unwrap_err().to_string().contains("softmax or mlp"));
    let small = config(&["data.source=idx:x"]).basis_for(ModelKind::Mlp, 64);
    assert_eq!(small.unwrap(), None);
    let wide = mnist(&["model.hidden=[1000]", "algorithm.equalize=0.1"]).unwrap_err();
    assert!(wide.to_string().contains("at most 512 units"), "{wide}");
    for wrong in [
        "data.basis=cosine:0",
        "data.basis=sine:3",
        "algorithm.equalize=-1",
    ] {
        let mut document = Document::default();
        document.set(wrong).unwrap();
        assert!(Config::read(&document).is_err(), "{wrong}");
    }
}

/// Networks that read pixels keep 5% messages, shared coordinates and smoothing.
#[test]
fn without_a_basis_images_are_smoothed() {
    for (epsilon, rounds) in [(1, 150), (2, 200), (4, 300), (8, 500), (16, 1000)] {
        let chosen = mnist(&["data.basis=none", &format!("privacy.epsilon={epsilon}")]).unwrap();
        assert_eq!(
            (chosen.equalize, chosen.activation),
            (0.0, Activation::Sigmoid)
        );
        assert_eq!(chosen.compressor, CompressorKind::RandK { k: 2544 });
        assert_eq!(chosen.rounds, rounds);
        assert!(chosen.shared_coordinates && chosen.shift == ShiftChoice::Off);
        assert_eq!(chosen.clip_scope, ClipScope::Selected);
        assert_eq!((chosen.smoothing, chosen.momentum), (3, 0.8));
        assert_eq!(chosen.schedule, Schedule::Cosine);
        assert_eq!(chosen.batch, None);
        let bold = f64::from(epsilon).powf(0.3);
        let share = (2544.0f64 / 50_890.0).sqrt();
        assert_eq!(chosen.step_size, 12.0);
        assert!((chosen.clip - 0.2 * bold * share).abs() < 1e-12);
    }
    let given = mnist(&[
        "data.basis=none",
        "algorithm.smoothing=0",
        "algorithm.coordinates=own",
    ])
    .unwrap();
    assert!(!given.shared_coordinates && given.smoothing == 0);
    assert!(matches!(given.shift, ShiftChoice::Step(_)));
    assert_eq!(given.schedule, Schedule::Constant);
    let named = mnist(&["algorithm.preset=soteriafl-gd"]).unwrap();
    assert!(!named.shared_coordinates && named.smoothing == 0 && named.momentum == 0.0);
}

#[test]
fn values_are_dealt_to_rounds_and_never_exceeded() {
    let few = mnist(&["algorithm.values=20000"]).unwrap();
    assert_eq!(
        (few.compressor, few.rounds),
        (CompressorKind::RandK { k: 7114 }, 2)
    );
    let mnist = |settings: &[&str]| mnist(&[settings, &["data.basis=none"]].concat());
    let few = mnist(&["algorithm.values=60000"]).unwrap();
    assert_eq!(
        (few.compressor, few.rounds),
        (CompressorKind::RandK { k: 50_890 }, 1)
    );
    for values in [1, 2544, 50_889, 100_000, 381_600, 10_000_000] {
        let chosen = mnist(&[&format!("algorithm.values={values}")]).unwrap();
        let CompressorKind::RandK { k } = chosen.compressor else {
            panic!("{:?}", chosen.compressor)
        };
        let sent = k * chosen.rounds as usize;
        assert!(
            sent <= values && 10 * sent >= 8 * values,
            "{values}: {sent}"
        );
    }
    let rounds = mnist(&["algorithm.values=1000000", "algorithm.rounds=100"]).unwrap();
    assert_eq!(rounds.compressor, CompressorKind::RandK { k: 10_000 });
    let refused = mnist(&[
        "algorithm.values=1000",
        "algorithm.rounds=2",
        "algorithm.k=501",
    ]);
    let said = refused.unwrap_err().to_string();
    assert!(
        said.contains("1000 values") && said.contains("1002"),
        "{said}"
    );
}

#[test]
fn shared_coordinates_are_refused_where_a_proof_needs_secret_ones() {
    let said = mnist(&["algorithm.coordinates=shared", "privacy.clip_scope=record"])
        .unwrap_err()
        .to_string();
    assert!(said.contains("amplification"), "{said}");
    let off = [
        "algorithm.coordinates=shared",
        "privacy.clip_scope=record",
        "privacy.amplification=off",
    ];
    assert!(mnist(&off).unwrap().shared_coordinates);
    assert!(mnist(&["model.kind=logistic", "data.source=a9a"]).is_ok());
}

/// The paper's a9a objective (lambda 0.2, its published scale), replace-one, delta 1e-3, in at most
/// the published number of values (25, 100 and 150 rounds of 6): the loss that was asked for, which
/// lies far from what the runs scatter by (0.0005), so that the fixed seeds decide nothing.
#[test]
fn a9a_reaches_its_goals_with_a_proof() {
    for (epsilon, values, goal) in [(1, 150, 0.59), (5, 600, 0.58), (10, 900, 0.576)] {
        let config = config(&[
            "data.rows=32560",
            "data.factor=0.741531",
            "model.lambda=0.2",
            "privacy.delta=1e-3",
            &format!("privacy.epsilon={epsilon}"),
            &format!("algorithm.values={values}"),
        ]);
        let problem = Problem::load(&config, &DataDirectories::new(Vec::new())).unwrap();
        let (mut resolved, _) = config.resolve(&problem.shape(&config).unwrap()).unwrap();
        let records: Vec<usize> = problem.shards.iter().map(|shard| shard.rows()).collect();
        let privacy = Privacy::calibrate(&resolved.specification(), 124, &records, false).unwrap();
        assert!(privacy.claim.is_proved());
        assert!(privacy.epsilon.unwrap() <= f64::from(epsilon) && !privacy.amplified);
        let weights = problem.weights(&resolved);
        let plan = EvaluationPlan {
            objective: problem.objective.as_ref(),
            regularizer: regularizer(resolved.regularizer, resolved.lambda),
            weights: &weights,
            test: None,
            every: 0,
            from: 0,
        };
        for seed in 0..3 {
            resolved.seed = seed;
            let mut simulation = run::simulation(&resolved, &problem, &privacy.sigmas).unwrap();
            let mut loss = f64::NAN;
            let ended = simulation.run(1, &plan, |progress, _| {
                if let Some(metrics) = progress.metrics {
                    loss = metrics.loss;
                }
                ControlFlow::Continue(())
            });
            ended.unwrap();
            assert!(loss <= goal, "epsilon {epsilon}, seed {seed}: {loss}");
        }
    }
}
