//! The same runs by plain loops over dense matrices.

use super::*;

/// `W` as a dense matrix.
pub fn matrix(graph: &Graph) -> Vec<Vec<f64>> {
    let n = graph.clients();
    let row = |i| match graph.heard(i) {
        None => vec![1.0 / n as f64; n],
        Some(heard) => {
            let mut row = vec![0.0; n];
            for near in heard {
                row[near.client as usize] = near.weight;
            }
            row
        }
    };
    (0..n).map(row).collect()
}

/// The three algorithms as they are printed, in `f64`, with dense vectors and the whole of `W`.
pub fn naive(run: &Run, graph: &Graph) -> Vec<Vec<f64>> {
    let (setting, plan) = (&run.setting, &run.plan);
    let (n, d) = (setting.data.len(), setting.start.len());
    let w = matrix(graph);
    let mut clients: Vec<ReferenceClient> =
        (0..n).map(|i| ReferenceClient::new(setting, i)).collect();
    let start: Vec<f64> = setting.start.iter().map(|&x| f64::from(x)).collect();
    let zeros = vec![vec![0.0; d]; n];
    let mut x = vec![start.clone(); n];
    // What all know of the models and directions, the directions, the last releases.
    let (mut h, mut g, mut v) = (x.clone(), zeros.clone(), zeros.clone());
    let mut last = zeros;
    let mix =
        |of: &[Vec<f64>], i: usize, c: usize| -> f64 { (0..n).map(|j| w[i][j] * of[j][c]).sum() };
    for round in 0..plan.rounds {
        let step = plan.step_size / f64::from(round + 1).sqrt();
        let a = plan.mixing;
        let release: Vec<Vec<f64>> = (0..n)
            .map(|i| {
                let share = plan.weights[i] * n as f64;
                let mut sum = clients[i].message(setting, round, &x[i]).unwrap();
                sum.iter_mut().for_each(|value| *value *= share);
                let on = chosen(run, i, round);
                let scale = d as f64 / on.len() as f64;
                let slope = regularizer_gradient(plan.regularizer, &x[i]);
                on.iter().for_each(|&c| sum[c] += scale * slope[c]);
                sum
            })
            .collect();
        match plan.transport {
            Transport::Differences => {
                let before = x.clone();
                for i in 0..n {
                    let on = chosen(run, i, round);
                    let scale = d as f64 / on.len() as f64;
                    for &c in &on {
                        let pull = a * (mix(&before, i, c) - before[i][c]);
                        x[i][c] += scale * pull - a * step * release[i][c];
                    }
                }
            }
            Transport::Models => {
                let z: Vec<Vec<f64>> = (0..n).map(|i| rounded(run, i, round, &x[i])).collect();
                for i in 0..n {
                    for c in 0..d {
                        let others = mix(&z, i, c) - w[i][i] * z[i][c];
                        x[i][c] = (1.0 - a + a * w[i][i]) * x[i][c] + a * others
                            - a * step * release[i][c];
                    }
                }
            }
            Transport::Tracking => {
                let (known_h, known_g) = (h.clone(), g.clone());
                for i in 0..n {
                    for c in 0..d {
                        v[i][c] +=
                            a * (mix(&known_g, i, c) - known_g[i][c]) + release[i][c] - last[i][c];
                    }
                    add_largest(&mut g[i], &v[i]);
                    for c in 0..d {
                        x[i][c] += a * (mix(&known_h, i, c) - known_h[i][c]) - step * v[i][c];
                    }
                    add_largest(&mut h[i], &x[i]);
                }
                last = release;
            }
        }
    }
    x
}

/// The coordinates that a client's release is on.
fn chosen(run: &Run, client: usize, round: u32) -> Vec<usize> {
    let mut selection = Selection::default();
    let mut noise = run.setting.key(client).stream(round, Purpose::Noise);
    let compressor = &run.setting.plan.compressor;
    compressor.select(IndexSeed::draw(&mut noise), &mut selection);
    match selection.coordinates() {
        Coordinates::All => (0..run.setting.start.len()).collect(),
        Coordinates::Selected(chosen) => chosen.iter().map(|&c| c as usize).collect(),
    }
}

/// Stochastic rounding to the grid.
fn rounded(run: &Run, client: usize, round: u32, x: &[f64]) -> Vec<f64> {
    let CompressorKind::Grid { step, .. } = run.plan.compressor.kind() else {
        return x.to_vec();
    };
    let mut coins = run.setting.key(client).stream(round, Purpose::Rounding);
    x.iter()
        .map(|x| {
            let floor = (x / step).floor();
            let up = unit(&mut coins) < x / step - floor;
            step * (floor + f64::from(u8::from(up)))
        })
        .collect()
}

/// `known += top-3 of (vector - known)`.
pub fn add_largest(known: &mut [f64], vector: &[f64]) {
    let residual: Vec<f64> = vector.iter().zip(&*known).map(|(v, k)| v - k).collect();
    let mut order: Vec<usize> = (0..known.len()).collect();
    order.sort_by(|&a, &b| residual[b].abs().total_cmp(&residual[a].abs()));
    order[..3].iter().for_each(|&c| known[c] += residual[c]);
}
