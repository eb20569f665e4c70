//! How long a question takes: epsilon, a mixture, calibration, an odometer.

use criterion::{Criterion, criterion_group, criterion_main};
use soteria_accountant::event::{Adjacency, ClipScope, Estimator, Mechanism};
use soteria_accountant::{Odometer, calibrate, epsilon};
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
    let event = [sgd.release(0.01).unwrap().times(1000)];
    let svrg = Estimator::Svrg {
        difference_clip: Some(2.0),
    };
    let mixture = [mechanism(svrg, 1000, 50.0)
        .release(0.04)
        .unwrap()
        .times(1000)];
    let worst = mechanism(Estimator::Sgd, 6000, 128.0);
    for adjacency in [Adjacency::ZeroOut, Adjacency::ReplaceOne] {
        let name = |what: &str| format!("{what}, {adjacency:?}");
        criterion.bench_function(&name("epsilon of sgd"), |bench| {
            bench.iter(|| epsilon(black_box(&event), 1e-5, adjacency));
        });
        criterion.bench_function(&name("epsilon of a mixture"), |bench| {
            bench.iter(|| epsilon(black_box(&mixture), 1e-5, adjacency));
        });
        criterion.bench_function(&name("calibration of sgd"), |bench| {
            bench.iter(|| calibrate(black_box(&worst), 150, 1.0, 1e-5, adjacency));
        });
        criterion.bench_function(&name("odometer of sgd"), |bench| {
            let round = &event[0].release;
            bench.iter(|| Odometer::new(black_box(round), 1000, 1e-5, adjacency, 30));
        });
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(10);
    targets = accounting
}
criterion_main!(benches);
