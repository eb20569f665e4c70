//! Targets and weights of classes against naive losses, explicit gradients, normal equations, and
//! attacks on what one record can do.

mod common;

use std::ops::ControlFlow;
use std::sync::Arc;

use common::{Sender, Stream, client_plan, decoded, server_plan};
use soteriafl_core::compress::CompressorKind;
use soteriafl_core::data::{
    Dataset, DenseRows, Features, Labels, Partition, SparseRows, TargetRange, Targets,
};
use soteriafl_core::estimator::Clipping;
use soteriafl_core::objective::{
    Activation, Coordinates, CrossEntropy, Explicit, Gradients, Linear, LinearRegression, Logistic,
    Network, Objective, Outcome, RecordLoss, Records, Regularizer, RowView, TargetLoss, Workspace,
};
use soteriafl_core::privacy::Noise;
use soteriafl_core::protocol::{Client, ClientPlan, Estimator, Round, Server};
use soteriafl_core::quality::{self, Quality};
use soteriafl_core::random::SecretKey;
use soteriafl_core::sampling::{Coins, Sampling};
use soteriafl_core::simulate::{EvaluationPlan, Simulation};

const LOSSES: [TargetLoss; 2] = [TargetLoss::Squared, TargetLoss::Huber(0.4)];

/// Rows, half of whose features are zero, with targets in [-1, 1].
fn data(rows: usize, columns: usize, sparse: bool, offset: bool) -> Dataset {
    let mut stream = Stream(rows as u64 + 31 * columns as u64);
    let mut draw = |_| {
        if stream.next() < 0.0 {
            0.0
        } else {
            stream.next()
        }
    };
    let values: Vec<f32> = (0..rows * columns).map(&mut draw).collect();
    let targets: Vec<f64> = (0..rows).map(|_| f64::from(stream.next())).collect();
    let features = if sparse {
        let (mut starts, mut indices, mut stored) = (vec![0], vec![], vec![]);
        for row in values.chunks(columns) {
            for (index, &value) in row.iter().enumerate().filter(|(_, value)| **value != 0.0) {
                indices.push(index as u32);
                stored.push(value);
            }
            starts.push(indices.len());
        }
        Features::Sparse(SparseRows::new(columns, starts, indices, stored).unwrap())
    } else {
        Features::Dense(DenseRows::new(columns, values).unwrap())
    };
    let targets = Targets::new(&targets, TargetRange::new(-1.0, 1.0).unwrap()).unwrap();
    let data = Dataset::labelled(features, Labels::Targets(targets)).unwrap();
    match offset {
        true => data.with_offset(stream.numbers(columns, 0.6)).unwrap(),
        false => data,
    }
}

/// The output of a network in `f64`; without hidden layers and biases that of a linear model.
fn output(sizes: &[usize], activation: Option<Activation>, model: &[f64], row: &[f64]) -> f64 {
    let (mut values, mut next) = (row.to_vec(), 0);
    for (layer, pair) in sizes.windows(2).enumerate() {
        let (inputs, outputs) = (pair[0], pair[1]);
        let weights = &model[next..next + inputs * outputs];
        next += inputs * outputs;
        let sum = |unit: usize| -> f64 {
            let terms = values.iter().enumerate();
            terms
                .map(|(input, value)| value * weights[input * outputs + unit])
                .sum()
        };
        let mut sums: Vec<f64> = (0..outputs).map(sum).collect();
        if let Some(activation) = activation {
            let biases = &model[next..next + outputs];
            sums.iter_mut()
                .zip(biases)
                .for_each(|(sum, bias)| *sum += bias);
            next += outputs;
            if layer + 2 < sizes.len() {
                sums.iter_mut().for_each(|value| match activation {
                    Activation::Sigmoid => *value = 1.0 / (1.0 + (-*value).exp()),
                    Activation::Tanh => *value = value.tanh(),
                    Activation::Relu => *value = value.max(0.0),
                });
            }
        }
        values = sums;
    }
    values[0]
}

fn naive_loss(loss: TargetLoss, residual: f64) -> f64 {
    match loss {
        TargetLoss::Squared => residual * residual / 2.0,
        TargetLoss::Huber(bound) => {
            let bound = f64::from(bound);
            if residual.abs() <= bound {
                residual * residual / 2.0
            } else {
                bound * (residual.abs() - bound / 2.0)
            }
        }
    }
}

/// An objective with the layers of its naive form.
type Layered = (Box<dyn Objective>, Vec<usize>, Option<Activation>);

/// Objectives of 7 features.
fn objectives(loss: TargetLoss) -> Vec<Layered> {
    let network = |hidden: &[usize], activation| {
        let network = Network::regression(7, hidden, activation, loss).unwrap();
        let sizes = [&[7], hidden, &[1]].concat();
        (
            Box::new(network) as Box<dyn Objective>,
            sizes,
            Some(activation),
        )
    };
    vec![
        (
            Box::new(LinearRegression::with_loss(7, loss)),
            vec![7, 1],
            None,
        ),
        network(&[5], Activation::Tanh),
        network(&[9, 4], Activation::Sigmoid),
        network(&[17], Activation::Relu),
    ]
}

/// Factors and outcomes of rows at a model.
fn factors(
    objective: &dyn Objective,
    model: &[f32],
    records: Records<'_>,
) -> (Vec<f32>, Vec<Outcome>) {
    let mut factors = vec![f32::NAN; records.len() * objective.factor_len()];
    let mut outcomes = vec![Outcome::default(); records.len()];
    let workspace = &mut Workspace::new();
    let (all, each) = (&mut factors[..], &mut outcomes[..]);
    objective
        .factors(model, records, Some(each), Some(all), workspace)
        .unwrap();
    (factors, outcomes)
}

fn sum(
    objective: &dyn Objective,
    records: Records<'_>,
    gradients: Gradients<'_>,
    coordinates: Coordinates<'_>,
) -> Vec<f32> {
    let mut sum = vec![0.0; coordinates.count(objective.dimension())];
    objective.accumulate(
        records,
        gradients,
        coordinates,
        &mut sum,
        &mut Workspace::new(),
    );
    sum
}

#[test]
fn gradients_are_finite_differences_of_the_naive_loss() {
    for loss in LOSSES {
        for (objective, sizes, activation) in objectives(loss) {
            let model = Stream(7).numbers(objective.dimension(), 0.6);
            let exact: Vec<f64> = model.iter().map(|&x| f64::from(x)).collect();
            for (sparse, offset) in [(false, false), (true, false), (false, true), (true, true)] {
                let data = data(40, 7, sparse, offset);
                let rows: Vec<u32> = (0..40).collect();
                let records = Records {
                    data: &data,
                    rows: &rows,
                };
                let (factors, outcomes) = factors(objective.as_ref(), &model, records);
                let len = objective.factor_len();
                let mut predictions = vec![0.0; 40];
                objective.predict(&model, records, &mut predictions, &mut Workspace::new());
                for row in 0..40 {
                    let full = data.full_row(row);
                    let target = f64::from(data.target_values()[row]);
                    let at = |model: &[f64]| {
                        naive_loss(loss, output(&sizes, activation, model, &full) - target)
                    };
                    let (factors, weights) = (&factors[row * len..][..len], &[1.0][..]);
                    let gradients = Gradients { factors, weights };
                    let one = Records {
                        data: &data,
                        rows: &rows[row..=row],
                    };
                    let gradient = sum(objective.as_ref(), one, gradients, Coordinates::All);
                    for i in 0..model.len() {
                        let (mut up, mut down) = (exact.clone(), exact.clone());
                        (up[i], down[i]) = (exact[i] + 1e-5, exact[i] - 1e-5);
                        let slope = (at(&up) - at(&down)) / 2e-5;
                        let error = (f64::from(gradient[i]) - slope).abs();
                        // Huber's second derivative jumps, which a difference sees.
                        assert!(error < 2e-5, "{sizes:?} {loss:?} {row} {i}: {error}");
                    }
                    assert!((f64::from(outcomes[row].loss) - at(&exact)).abs() < 1e-6);
                    let place = output(&sizes, activation, &exact, &full);
                    assert!((f64::from(predictions[row]) - place).abs() < 2e-6);
                }
            }
        }
    }
}

#[test]
fn norms_and_sums_are_those_of_explicit_gradients() {
    let chosen = [0u32, 2, 5, 6];
    for (objective, sizes, _) in objectives(TargetLoss::Huber(0.4)) {
        let objective = objective.as_ref();
        let model = Stream(9).numbers(objective.dimension(), 0.6);
        for (sparse, offset) in [(false, false), (true, true)] {
            let data = data(70, 7, sparse, offset);
            let rows: Vec<u32> = (0..70).map(|j| (3 * j) % 70).collect();
            let records = Records {
                data: &data,
                rows: &rows,
            };
            let (factors, _) = factors(objective, &model, records);
            let weights = Stream(4).numbers(70, 2.0);
            let all = Gradients {
                factors: &factors,
                weights: &weights,
            };
            let (mut whole, mut part) = (vec![0f64; model.len()], vec![0f64; chosen.len()]);
            let (mut norms, mut some) = (vec![0.0; 70], vec![0.0; 70]);
            let mut workspace = Workspace::new();
            objective.squared_norms(records, all, Coordinates::All, &mut norms, &mut workspace);
            let selected = Coordinates::Selected(&chosen);
            objective.squared_norms(records, all, selected, &mut some, &mut workspace);
            for j in 0..70 {
                let len = objective.factor_len();
                let factors = &factors[j * len..][..len];
                let one = Gradients {
                    factors,
                    weights: &weights[j..=j],
                };
                let record = Records {
                    data: &data,
                    rows: &rows[j..=j],
                };
                let gradient = sum(objective, record, one, Coordinates::All);
                let square = |x: f32| f64::from(x) * f64::from(x);
                let norm: f64 = gradient.iter().map(|&x| square(x)).sum();
                assert!(
                    (norms[j] - norm).abs() < 1e-5 * norm + 1e-12,
                    "{sizes:?} {j}"
                );
                let norm: f64 = chosen.iter().map(|&i| square(gradient[i as usize])).sum();
                assert!((some[j] - norm).abs() < 1e-5 * norm + 1e-9, "{sizes:?} {j}");
                whole
                    .iter_mut()
                    .zip(&gradient)
                    .for_each(|(sum, &x)| *sum += f64::from(x));
                for (sum, &i) in part.iter_mut().zip(&chosen) {
                    *sum += f64::from(gradient[i as usize]);
                }
            }
            let found = [
                sum(objective, records, all, Coordinates::All),
                sum(objective, records, all, selected),
            ];
            for (found, expected) in found.iter().flatten().zip(whole.iter().chain(&part)) {
                assert!((f64::from(*found) - expected).abs() < 1e-5 * (1.0 + expected.abs()));
            }
        }
    }
}

#[test]
fn weights_of_classes_multiply_losses_and_gradients() {
    let base = data(60, 7, false, false);
    let labels = (0..60).map(|row| row * row % 3 % 2).collect();
    let data = Dataset::new(base.features().clone(), labels, 2).unwrap();
    let rows: Vec<u32> = (0..60).collect();
    let records = Records {
        data: &data,
        rows: &rows,
    };
    let network = || Network::new(7, &[4], 2, Activation::Tanh).unwrap();
    let weighted = |weights: [f32; 2]| -> [Box<dyn Objective>; 2] {
        [
            Box::new(Linear::with_loss(7, CrossEntropy { weights })),
            Box::new(network().weighted(&weights).unwrap()),
        ]
    };
    let plain: [Box<dyn Objective>; 2] = [Box::new(Logistic::new(7)), Box::new(network())];
    let (ones, others) = (weighted([1.0; 2]), weighted([0.25, 3.0]));
    for ((plain, ones), others) in plain.iter().zip(&ones).zip(&others) {
        let model = Stream(2).numbers(plain.dimension(), 0.7);
        let before = factors(plain.as_ref(), &model, records);
        assert_eq!(before, factors(ones.as_ref(), &model, records), "bits stay");
        let (after, outcomes) = factors(others.as_ref(), &model, records);
        let len = plain.factor_len();
        for row in 0..60 {
            let weight = [0.25, 3.0][data.labels()[row] as usize];
            assert_eq!(outcomes[row].loss, weight * before.1[row].loss);
            assert_eq!(outcomes[row].class, before.1[row].class);
            let one = |objective: &dyn Objective, factors: &[f32]| {
                let (factors, weights) = (&factors[row * len..][..len], &[1.0][..]);
                let record = Records {
                    data: &data,
                    rows: &rows[row..=row],
                };
                sum(
                    objective,
                    record,
                    Gradients { factors, weights },
                    Coordinates::All,
                )
            };
            let (left, right) = (one(others.as_ref(), &after), one(plain.as_ref(), &before.0));
            for (left, right) in left.iter().zip(&right) {
                assert!((left - weight * right).abs() < 1e-6, "{left} {right}");
            }
        }
    }
    let wrong = [vec![1.0], vec![1.0, f32::NAN], vec![1.0, -1.0]];
    assert!(
        wrong
            .iter()
            .all(|weights| network().weighted(weights).is_err())
    );
}

#[test]
fn records_and_models_of_different_tasks_are_refused() {
    let numbers = data(5, 7, false, false);
    let classes = Dataset::new(numbers.features().clone(), vec![0; 5], 2).unwrap();
    let linear = LinearRegression::with_loss(7, TargetLoss::Squared);
    let network = Network::regression(7, &[3], Activation::Tanh, TargetLoss::Squared).unwrap();
    assert!(linear.check(&numbers).is_ok() && network.check(&numbers).is_ok());
    assert!(linear.check(&classes).is_err() && network.check(&classes).is_err());
    let softmax = Network::new(7, &[], 2, Activation::Tanh).unwrap();
    assert!(softmax.check(&numbers).is_err() && Logistic::new(7).check(&numbers).is_err());
    let dirichlet = Partition::Dirichlet { alpha: 0.3 };
    assert!(dirichlet.assign(&numbers, 2, 0).is_err());
    let sorted = Partition::Sorted.split(&numbers, 5, 0).unwrap();
    let values: Vec<f32> = sorted.iter().map(|part| part.target_values()[0]).collect();
    assert!(values.is_sorted(), "{values:?}");
}

/// Solves `A w = b` by elimination.
fn solve(mut a: Vec<Vec<f64>>, mut b: Vec<f64>) -> Vec<f64> {
    let n = b.len();
    for pivot in 0..n {
        for row in pivot + 1..n {
            let factor = a[row][pivot] / a[pivot][pivot];
            let (above, below) = a.split_at_mut(row);
            let pairs = below[0].iter_mut().zip(&above[pivot]);
            pairs.for_each(|(value, pivot)| *value -= factor * pivot);
            b[row] -= factor * b[pivot];
        }
    }
    for row in (0..n).rev() {
        let known: f64 = (row + 1..n).map(|column| a[row][column] * b[column]).sum();
        b[row] = (b[row] - known) / a[row][row];
    }
    b
}

/// Rounds of full gradients without noise over three clients, to the end.
fn trained(
    objective: Arc<dyn Objective>,
    data: &Dataset,
    rounds: Round,
    threads: usize,
) -> Vec<f32> {
    let plan = client_plan(Arc::clone(&objective), CompressorKind::Identity);
    let plan = ClientPlan {
        clipping: Clipping::None,
        ..plan
    };
    let mut server = server_plan(&plan, 3, rounds);
    server.step_size = 1.2;
    let plan = Arc::new(plan);
    let parts = Partition::Iid
        .split(data, 3, 1)
        .unwrap()
        .into_iter()
        .enumerate();
    let clients = parts.map(|(id, part)| {
        let (plan, key) = (Arc::clone(&plan), SecretKey::simulated(1, id as u32));
        Client::new(id as u32, plan, Arc::new(part), Sampling::Full, 0.0, key).unwrap()
    });
    let clients: Vec<Client> = clients.collect();
    let start = vec![0.0; objective.dimension()];
    let mut simulation = Simulation::new(Server::new(server, start), clients);
    let evaluation = EvaluationPlan {
        objective: objective.as_ref(),
        regularizer: Regularizer::None,
        weights: &[1.0 / 3.0; 3],
        test: Some(data),
        every: 0,
        from: 0,
    };
    simulation
        .run(threads, &evaluation, |progress, _| {
            let found = progress.metrics.map(|metrics| metrics.test_accuracy);
            assert!(
                matches!(found, None | Some(None)),
                "targets have no accuracy"
            );
            ControlFlow::Continue(())
        })
        .unwrap();
    simulation.server().model().to_vec()
}

#[test]
fn least_squares_without_noise_solve_the_normal_equations() {
    let data = data(300, 5, false, true);
    let rows: Vec<Vec<f64>> = (0..300).map(|row| data.full_row(row)).collect();
    let targets = data.target_values();
    let mut moments = vec![vec![0.0; 5]; 5];
    let mut sides = vec![0.0; 5];
    for (row, &target) in rows.iter().zip(targets) {
        for i in 0..5 {
            sides[i] += row[i] * f64::from(target);
            (0..5).for_each(|j| moments[i][j] += row[i] * row[j]);
        }
    }
    let exact = solve(moments, sides);
    let linear = Arc::new(LinearRegression::with_loss(5, TargetLoss::Squared));
    let model = trained(linear.clone(), &data, 4000, 1);
    for (found, exact) in model.iter().zip(&exact) {
        assert!(
            (f64::from(*found) - exact).abs() < 1e-4,
            "{model:?} {exact:?}"
        );
    }
    assert_eq!(
        model,
        trained(linear.clone(), &data, 4000, 2),
        "the same bits on two threads"
    );
    // What the least squares leave is what R2 says.
    let residual = |row: usize| {
        let place: f64 = rows[row].iter().zip(&exact).map(|(x, w)| x * w).sum();
        f64::from(targets[row]) - place.clamp(-1.0, 1.0)
    };
    let left: f64 = (0..300).map(|row| residual(row).powi(2)).sum();
    let mean = targets.iter().map(|&y| f64::from(y)).sum::<f64>() / 300.0;
    let all: f64 = targets.iter().map(|&y| (f64::from(y) - mean).powi(2)).sum();
    let Some(Quality::Targets(found)) = quality::measure(&*linear, &model, &data, 1) else {
        panic!("numbers are predicted");
    };
    assert!((found.r2.unwrap() - (1.0 - left / all)).abs() < 1e-5);
}

/// Least squares as a user would write them.
struct PlainSquares(usize);

impl RecordLoss for PlainSquares {
    fn dimension(&self) -> usize {
        self.0
    }
    fn loss_and_gradient(
        &self,
        model: &[f32],
        features: RowView<'_>,
        label: u32,
        gradient: &mut [f32],
    ) -> Outcome {
        assert_eq!(label, 0);
        let residual = features.dot(model) - features.target().unwrap();
        features.add_scaled(residual, gradient);
        let loss = residual * residual / 2.0;
        Outcome { loss, class: 0 }
    }
}

#[test]
fn an_objective_of_ones_own_sees_the_target() {
    let data = data(90, 6, true, true);
    let built_in = trained(
        Arc::new(LinearRegression::with_loss(6, TargetLoss::Squared)),
        &data,
        30,
        1,
    );
    let own = trained(Arc::new(Explicit(PlainSquares(6))), &data, 30, 1);
    for (left, right) in built_in.iter().zip(&own) {
        assert!((left - right).abs() < 1e-5);
    }
}

/// Twelve records, the seventh of which is one of these.
fn neighbour(row: [f32; 4], target: f64) -> Dataset {
    let base = data(12, 4, false, false);
    let Features::Dense(rows) = base.features() else {
        panic!("rows are dense");
    };
    let (mut values, mut targets) = (
        rows.values().to_vec(),
        base.targets().unwrap().original().to_vec(),
    );
    values[28..32].copy_from_slice(&row);
    targets[7] = target;
    let features = Features::Dense(DenseRows::new(4, values).unwrap());
    let targets = Targets::new(&targets, TargetRange::new(-1.0, 1.0).unwrap()).unwrap();
    Dataset::labelled(features, Labels::Targets(targets)).unwrap()
}

#[test]
fn one_record_moves_a_message_by_no_more_than_the_accountant_was_told() {
    const CLIP: f64 = 0.5;
    const DIFFERENCE: f64 = 0.2;
    let (m, batch) = (12.0, 3.0);
    let poisson = Sampling::Poisson {
        batch,
        coins: Coins::Exact,
    };
    let difference_clip = Some(DIFFERENCE);
    let two_terms = DIFFERENCE / batch + CLIP / m;
    let estimators = [
        (Estimator::Sgd, Sampling::Full, CLIP / m),
        (Estimator::Sgd, poisson, CLIP / batch),
        (
            Estimator::Svrg {
                snapshot_probability: 0.3,
                difference_clip,
            },
            poisson,
            two_terms,
        ),
        (Estimator::Saga { difference_clip }, poisson, two_terms),
    ];
    // Targets far outside of the range are what its ends are, and long rows are what the clip is
    // for.
    let records = [
        neighbour([0.0; 4], 0.0),
        neighbour([1e6, -3e5, 2e6, 0.5], 1e9),
        neighbour([-1e6, 3e5, -2e6, -0.5], 1e9),
        neighbour([1e-3, 0.0, 0.0, 0.0], -1e12),
    ];
    let network = Network::regression(4, &[3], Activation::Tanh, TargetLoss::Squared).unwrap();
    let objectives: [Arc<dyn Objective>; 3] = [
        Arc::new(LinearRegression::with_loss(4, TargetLoss::Squared)),
        Arc::new(LinearRegression::with_loss(4, TargetLoss::Huber(0.3))),
        Arc::new(network),
    ];
    let mut worst = 0.0f64;
    for objective in &objectives {
        let models: Vec<Arc<Vec<f32>>> = [0.1, 30.0, 1e4]
            .iter()
            .map(|&size| Arc::new(Stream(8).numbers(objective.dimension(), size)))
            .collect();
        for (estimator, sampling, bound) in &estimators {
            for (noise, kind) in [
                (Noise::Float, CompressorKind::Identity),
                (Noise::Secure, CompressorKind::Identity),
                (Noise::Secure, CompressorKind::RandK { k: 2 }),
            ] {
                let mut plan = client_plan(Arc::clone(objective), kind);
                (plan.estimator, plan.noise) = (*estimator, noise);
                plan.clipping = Clipping::Record(CLIP);
                let plan = Arc::new(plan);
                let sent = |data: &Dataset| -> Vec<Vec<f32>> {
                    let key = SecretKey::simulated(31, 4);
                    let (plan, data) = (Arc::clone(&plan), Arc::new(data.clone()));
                    let client = Client::new(0, Arc::clone(&plan), data, *sampling, 1e-3, key);
                    let mut sender = Sender::new(client.unwrap());
                    let rounds = models.iter().cycle().take(6).enumerate();
                    let message = |(round, model): (usize, &Arc<Vec<f32>>)| {
                        assert!(sender.send(round as Round, model));
                        let update = decoded(&plan.compressor, round as Round, &sender.bytes);
                        let scale = (1.0 + plan.compressor.omega()) as f32;
                        update.values().iter().map(|value| value / scale).collect()
                    };
                    rounds.map(message).collect()
                };
                let messages: Vec<_> = records.iter().map(sent).collect();
                for left in &messages {
                    for (left, right) in messages.iter().flat_map(|right| left.iter().zip(right)) {
                        let squares = left
                            .iter()
                            .zip(right)
                            .map(|(a, b)| f64::from(a - b).powi(2));
                        let distance = squares.sum::<f64>().sqrt();
                        assert!(left.iter().all(|value| value.is_finite()));
                        assert!(
                            distance <= 2.0 * bound * 1.001 + 1e-6,
                            "{estimator:?} {noise:?} {kind:?}: {distance} {bound}"
                        );
                        worst = worst.max(distance / (2.0 * bound));
                    }
                }
            }
        }
    }
    assert!(worst > 0.8, "the attack reaches {worst} of the bound");
}
