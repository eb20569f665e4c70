//! How long a question takes: epsilon, a mixture, calibration, an odometer.

use criterion::{Criterion, criterion_group, criterion_main};
use soteriafl_accountant::{Adjacency, ClipScope, Estimator, Mechanism};
use std::hint::black_box;

fn mechanism(estimator: Estimator, records: u64, batch: f64) -> Mechanism {
    Mechanism {
        estimator,
        records,
        batch,
        clip: 1.0,
        clip_scope: ClipScope::Record,
        rand_k: None,
    }
}

fn accounting(criterion: &mut Criterion) {
    let sgd = mechanism(Estimator::Sgd, 10_000, 100.0);
    let svrg = Estimator::Svrg {
        snapshot_probability: 0.3,
        difference_clip: Some(2.0),
    };
    let mixture = mechanism(svrg, 1000, 50.0);
    let worst = mechanism(Estimator::Sgd, 6000, 128.0);
    for &adjacency in Adjacency::ALL {
        let name = |what: &str| format!("{what}, {adjacency}");
        let ask =
            |mechanism: &Mechanism, rounds| mechanism.question(rounds, 1e-5, adjacency).unwrap();
        let (sgd, mixture, worst) = (ask(&sgd, 1000), ask(&mixture, 1000), ask(&worst, 150));
        criterion.bench_function(&name("epsilon of sgd"), |bench| {
            bench.iter(|| black_box(&sgd).cost(0.01));
        });
        criterion.bench_function(&name("epsilon of a mixture"), |bench| {
            bench.iter(|| black_box(&mixture).cost(0.04));
        });
        criterion.bench_function(&name("calibration of sgd"), |bench| {
            bench.iter(|| black_box(&worst).calibrate(1.0));
        });
        criterion.bench_function(&name("odometer of sgd"), |bench| {
            bench.iter(|| black_box(&sgd).odometer(0.01, 30));
        });
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(10);
    targets = accounting
}
criterion_main!(benches);
