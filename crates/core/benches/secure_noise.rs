//! Cost of secure noise: nanoseconds per draw and per quantised coordinate.

use chacha20::ChaCha20Rng;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use rand::{Rng, RngExt, SeedableRng};
use rand_distr::StandardNormal;
use soteriafl_core::privacy::secure::{Grid, RoundedGaussian};

const COORDINATES: usize = 50_000;

fn noise(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("noise");
    group.throughput(Throughput::Elements(COORDINATES as u64));
    let mut out = vec![0i64; COORDINATES];
    for scale_log2 in [0, 20, 40] {
        let sampler = RoundedGaussian::new(1.0, -scale_log2).expect("within range");
        let mut rng = ChaCha20Rng::seed_from_u64(1);
        group.bench_function(format!("rounded gaussian 2^{scale_log2}"), |bencher| {
            bencher.iter(|| sampler.fill(&mut rng, &mut out));
        });
    }
    // What it competes with: the words alone, and a floating-point normal.
    let mut rng = ChaCha20Rng::seed_from_u64(1);
    group.bench_function("chacha20 words", |bencher| {
        bencher.iter(|| {
            out.iter_mut()
                .for_each(|word| *word = rng.next_u64() as i64)
        });
    });
    let mut floats = vec![0f64; COORDINATES];
    group.bench_function("float gaussian (not secure)", |bencher| {
        bencher.iter(|| {
            (floats.iter_mut()).for_each(|value| *value = rng.sample::<f64, _>(StandardNormal))
        });
    });
    group.finish();
}

fn grid(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("grid");
    group.throughput(Throughput::Elements(COORDINATES as u64));
    let mut rng = ChaCha20Rng::seed_from_u64(2);
    let raw: Vec<f64> = (0..COORDINATES)
        .map(|_| rng.sample::<f64, _>(StandardNormal))
        .collect();
    let norm = raw.iter().map(|value| value * value).sum::<f64>().sqrt();
    let clipped: Vec<f64> = raw.iter().map(|value| value / norm).collect();
    let single: Vec<f32> = clipped.iter().map(|&value| value as f32).collect();
    let grid = Grid::new(1.0, 50.0, 0.1, COORDINATES).expect("ordinary parameters");
    let mut record = vec![0i64; COORDINATES];
    let mut sum = vec![0i64; COORDINATES];
    group.bench_function("quantize", |bencher| {
        bencher.iter(|| grid.quantize(&clipped, &mut record));
    });
    group.bench_function("quantize single precision", |bencher| {
        bencher.iter(|| grid.quantize(&single, &mut record));
    });
    group.bench_function("quantize and shorten", |bencher| {
        bencher.iter(|| grid.quantize(&raw, &mut record));
    });
    group.bench_function("add", |bencher| {
        bencher.iter(|| grid.add(&record, &mut sum))
    });
    group.finish();
}

criterion_group!(benches, noise, grid);
criterion_main!(benches);
