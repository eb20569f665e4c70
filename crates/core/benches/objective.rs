//! How long the steps of a round take, single-threaded; best and median of many runs.
//!
//! `cargo bench -p soteriafl-core --bench objective [part of a name]`. Uses MNIST from the
//! directory that `SOTERIA_SHARED` names, or from a `shared` folder beside the repository root
//! (`data/mnist/train-*-ubyte.gz`); without it, made-up rows of the same density. `LONGER=4`
//! measures four times as long; `BATCHES=1` takes the same batch every time, so that it stays in
//! the cache.

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::time::Instant;

use soteriafl_core::data::{Dataset, DenseRows, Features, SparseRows};
use soteriafl_core::linalg::{Matrix, matmul};
use soteriafl_core::objective::{
    Activation, Coordinates, Gradients, Logistic, Network, Objective, Outcome, Records, Workspace,
};
use soteriafl_data::{Schema, idx};

struct Stream(u64);

impl Stream {
    fn below(&mut self, bound: u32) -> u32 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (((self.0 >> 32) * u64::from(bound)) >> 32) as u32
    }

    fn numbers(&mut self, count: usize, scale: f32) -> Vec<f32> {
        (0..count)
            .map(|_| (self.below(1 << 24) as f32 / (1 << 23) as f32 - 1.0) * scale)
            .collect()
    }

    fn choose(&mut self, count: usize, of: usize) -> Vec<u32> {
        let mut all: Vec<u32> = (0..of as u32).collect();
        for i in 0..count {
            all.swap(i, i + self.below((of - i) as u32) as usize);
        }
        all.truncate(count);
        all.sort_unstable();
        all
    }
}

/// Runs `work` for about `seconds` and prints the best and the median time.
fn measure(name: &str, seconds: f64, mut work: impl FnMut()) -> f64 {
    if std::env::args()
        .skip(1)
        .any(|arg| !arg.starts_with('-') && !name.contains(&arg))
    {
        return f64::NAN;
    }
    let seconds = seconds * number("LONGER", 1.0);
    let mut times = Vec::new();
    let begin = Instant::now();
    while begin.elapsed().as_secs_f64() < seconds || times.len() < 5 {
        let start = Instant::now();
        work();
        times.push(start.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    let (best, median) = (times[0] * 1e6, times[times.len() / 2] * 1e6);
    println!("{name:<58} best {best:>10.2} us   median {median:>10.2} us");
    best
}

fn number(variable: &str, default: f64) -> f64 {
    std::env::var(variable).map_or(default, |value| value.parse().unwrap())
}

fn main() {
    let mnist = mnist();
    let part: Vec<u32> = (0..6000).collect();
    for data in [&mnist.select(&part), &mnist] {
        network_batch(data, 128, 2544);
        network_batch(data, 128, 509);
    }
    full_gradient("sparse", &mnist.select(&part));
    full_gradient("sparse", &mnist.select(&part[..512]));
    // Few enough that a run fits between two interruptions of a busy machine.
    full_gradient("dense", &dense(&mnist.select(&part[..512])));
    logistic_batch(51, 6);
}

fn network_batch(data: &Dataset, batch: usize, selected: usize) {
    let network = Network::new(784, &[64], 10, Activation::Sigmoid).unwrap();
    let mut stream = Stream(1);
    let model = stream.numbers(network.dimension(), 0.05);
    // A new batch every time, as in training: its rows are not in the cache.
    let batches: Vec<Vec<u32>> = (0..number("BATCHES", 400.0) as usize)
        .map(|_| {
            (0..batch)
                .map(|_| stream.below(data.rows() as u32))
                .collect()
        })
        .collect();
    let chosen = stream.choose(selected, network.dimension());
    let chosen = Coordinates::Selected(&chosen);
    let mut factors = vec![0.0; batch * network.factor_len()];
    let mut norms = vec![0.0; batch];
    let mut sum = vec![0.0; selected];
    let weights = vec![0.5; batch];
    let mut workspace = Workspace::new();
    let mut next = 0;
    let rows = data.rows();
    let name = |step: &str| format!("784-64-10, {batch} of {rows}, {selected} selected: {step}");
    for step in [
        "factors",
        "norms",
        "selected norms",
        "sum",
        "all three",
        "all three, selected norms",
    ] {
        measure(&name(step), 0.3, || {
            next = (next + 1) % batches.len();
            let records = Records {
                data,
                rows: &batches[next],
            };
            let all = step.starts_with("all three");
            if all || step == "factors" {
                network
                    .factors(&model, records, None, Some(&mut factors), &mut workspace)
                    .unwrap();
            }
            let gradients = Gradients {
                factors: &factors,
                weights: &weights,
            };
            if all || step.ends_with("norms") {
                let over = if step.ends_with("selected norms") {
                    chosen
                } else {
                    Coordinates::All
                };
                network.squared_norms(records, gradients, over, &mut norms, &mut workspace);
            }
            if all || step == "sum" {
                network.accumulate(records, gradients, chosen, &mut sum, &mut workspace);
            }
            black_box((&factors, &norms, &sum));
        });
    }
}

fn full_gradient(kind: &str, data: &Dataset) {
    let network = Network::new(784, &[64], 10, Activation::Sigmoid).unwrap();
    let model = Stream(1).numbers(network.dimension(), 0.05);
    let count = data.rows();
    let rows: Vec<u32> = (0..count as u32).collect();
    let records = Records { data, rows: &rows };
    let mut factors = vec![0.0; count * network.factor_len()];
    let mut outcomes = vec![Outcome::default(); count];
    let weights = vec![1.0 / count as f32; count];
    let mut sum = vec![0.0; network.dimension()];
    let mut workspace = Workspace::new();
    let name = |step: &str| format!("784-64-10, {count} {kind} rows: {step}");
    let forward = measure(&name("factors"), 0.5, || {
        network
            .factors(&model, records, None, Some(&mut factors), &mut workspace)
            .unwrap();
    });
    measure(&name("outcomes only"), 0.5, || {
        network
            .factors(&model, records, Some(&mut outcomes), None, &mut workspace)
            .unwrap();
    });
    let gradients = Gradients {
        factors: &factors,
        weights: &weights,
    };
    let backward = measure(&name("sum"), 0.5, || {
        network.accumulate(
            records,
            gradients,
            Coordinates::All,
            &mut sum,
            &mut workspace,
        );
    });
    let operations = 2.0 * count as f64 * (2.0 * 784.0 * 64.0 + 3.0 * 640.0);
    println!(
        "{:<58} {:.1} GFLOP/s as dense",
        name("both"),
        operations / (forward + backward) / 1e3
    );
    if kind == "dense" {
        let left = Stream(2).numbers(count * 784, 1.0);
        let right = Stream(3).numbers(784 * 64, 1.0);
        let mut product = vec![0.0; count * 64];
        let time = measure(&name("plain product X W"), 0.5, || {
            let left = Matrix::new(&left, count, 784, 784);
            matmul(&mut product, left, Matrix::new(&right, 784, 64, 64));
        });
        let rate = 2.0 * count as f64 * 784.0 * 64.0 / time / 1e3;
        println!("{:<58} {rate:.1} GFLOP/s", name("plain product X W"));
    }
    black_box((&factors, &sum, &outcomes));
}

/// Rows like those of a9a: 14 of 123 features and the intercept, all of one value.
fn logistic_batch(batch: usize, selected: usize) {
    let mut stream = Stream(4);
    let (count, columns) = (32_561, 124);
    let (mut starts, mut indices, mut values) = (vec![0], Vec::new(), Vec::new());
    for _ in 0..count {
        let missing = u32::from(stream.below(10) == 0);
        for block in 0..14 - missing {
            indices.push(block * 123 / 14 + stream.below(3) * stream.below(4) % 8);
        }
        indices.push(123);
        values.resize(indices.len(), 0.258_198_9);
        starts.push(indices.len());
    }
    let labels = (0..count).map(|_| stream.below(2)).collect();
    let rows = SparseRows::new(columns, starts, indices, values).unwrap();
    let data = Dataset::new(Features::Sparse(rows), labels, 2).unwrap();
    let objective = Logistic::new(columns);
    let model = stream.numbers(columns, 0.3);
    let batches: Vec<Vec<u32>> = (0..64)
        .map(|_| (0..batch).map(|_| stream.below(3256)).collect())
        .collect();
    let chosen = stream.choose(selected, columns);
    let mut workspace = Workspace::new();
    let (mut factors, mut norms) = (vec![0.0; batch], vec![0.0; batch]);
    let (weights, mut sum) = (vec![0.5; batch], vec![0.0; selected]);
    // The clock is too coarse for one batch: all 64 of them, times per batch printed below.
    for step in ["factors", "norms", "selected norms", "sum", "all three"] {
        let name = format!("logistic 124, 64 batches of {batch}, {selected} selected: {step}");
        let time = measure(&name, 0.3, || {
            for rows in &batches {
                let records = Records { data: &data, rows };
                let all = step == "all three";
                if all || step == "factors" {
                    objective
                        .factors(&model, records, None, Some(&mut factors), &mut workspace)
                        .unwrap();
                }
                let over = Coordinates::Selected(&chosen);
                let gradients = Gradients {
                    factors: &factors,
                    weights: &weights,
                };
                if all || step.ends_with("norms") {
                    let over = if step == "selected norms" {
                        over
                    } else {
                        Coordinates::All
                    };
                    objective.squared_norms(records, gradients, over, &mut norms, &mut workspace);
                }
                if all || step == "sum" {
                    objective.accumulate(records, gradients, over, &mut sum, &mut workspace);
                }
                black_box((&factors, &norms, &sum));
            }
        });
        println!("{:<58}      {:>10.3} us each", "", time / 64.0);
    }
}

fn dense(data: &Dataset) -> Dataset {
    let values = (0..data.rows())
        .flat_map(|row| data.full_row(row))
        .map(|value| value as f32)
        .collect();
    let rows = DenseRows::new(data.columns(), values).unwrap();
    Dataset::new(
        Features::Dense(rows),
        data.labels().to_vec(),
        data.classes(),
    )
    .unwrap()
}

/// MNIST, standardised by one mean and one deviation: `(pixel / 255 - 0.1307) / 0.3081`.
fn mnist() -> Dataset {
    let (pixels, labels) = match shared().and_then(|shared| read_mnist(&shared)) {
        Some(found) => found,
        None => {
            println!("no MNIST found: rows are made up");
            made_up()
        }
    };
    let (mut starts, mut indices, mut values) = (vec![0], Vec::new(), Vec::new());
    for image in pixels.chunks(784) {
        for (index, &pixel) in image.iter().enumerate().filter(|(_, pixel)| **pixel > 0) {
            indices.push(index as u32);
            values.push(f32::from(pixel) / 255.0 / 0.3081);
        }
        starts.push(indices.len());
    }
    let rows = SparseRows::new(784, starts, indices, values).unwrap();
    let labels = labels.into_iter().map(u32::from).collect();
    Dataset::new(Features::Sparse(rows), labels, 10)
        .and_then(|data| data.with_offset(vec![-0.1307 / 0.3081; 784]))
        .unwrap()
}

fn shared() -> Option<PathBuf> {
    let beside = || {
        let crate_folder = Path::new(env!("CARGO_MANIFEST_DIR"));
        Some(crate_folder.ancestors().nth(3)?.join("shared"))
    };
    let path = std::env::var_os("SOTERIA_SHARED").map(PathBuf::from);
    path.or_else(beside).filter(|path| path.is_dir())
}

fn read_mnist(shared: &Path) -> Option<(Vec<u8>, Vec<u8>)> {
    let file = |name: &str| shared.join("data/mnist").join(name);
    let data = idx::read(
        &file("train-images-idx3-ubyte.gz"),
        &file("train-labels-idx1-ubyte.gz"),
        &Schema::default(),
    )
    .ok()?;
    let pixels = (0..data.rows())
        .flat_map(|row| data.full_row(row))
        .map(|value| (255.0 * value).round() as u8)
        .collect();
    let labels = data.labels().iter().map(|&label| label as u8).collect();
    Some((pixels, labels))
}

/// 10,000 rows with about 150 of 784 pixels in short runs near the middle.
fn made_up() -> (Vec<u8>, Vec<u8>) {
    let mut stream = Stream(9);
    let mut pixels = vec![0; 10_000 * 784];
    for image in pixels.chunks_mut(784) {
        for _ in 0..24 {
            let start = 28 * (4 + stream.below(20)) + 6 + stream.below(12);
            for run in 0..7 {
                image[(start + run) as usize] = 1 + stream.below(255) as u8;
            }
        }
    }
    let labels = (0..10_000).map(|_| stream.below(10) as u8).collect();
    (pixels, labels)
}
