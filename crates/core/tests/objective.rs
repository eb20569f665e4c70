//! The objectives against naive `f64` arithmetic: finite differences, explicit gradients, and every
//! shortcut (ghost norms, selected coordinates, offsets, sparse rows, batches) against the long way.

use soteria_core::data::{Dataset, DenseRows, Features, SparseRows};
use soteria_core::objective::{
    Activation, Coordinates, Explicit, Gradients, Logistic, Network, Objective, Outcome,
    RecordLoss, Records, RowView, Workspace,
};

/// A fixed stream of numbers in [-1, 1).
struct Stream(u64);

impl Stream {
    fn next(&mut self) -> f32 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    fn numbers(&mut self, count: usize, scale: f32) -> Vec<f32> {
        (0..count).map(|_| scale * self.next()).collect()
    }

    /// About one in `one_in` of `0..count`.
    fn choice(&mut self, count: usize, one_in: f32) -> Vec<u32> {
        (0..count as u32)
            .filter(|_| (self.next() + 1.0) * one_in < 2.0)
            .collect()
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Storage {
    Dense,
    Sparse,
    /// Dense rows with the offset added in.
    Materialised,
}

/// Rows with about half of the features zero.
fn data(storage: Storage, rows: usize, columns: usize, classes: usize, offset: bool) -> Dataset {
    let mut stream = Stream(rows as u64 * 1000 + columns as u64);
    let values: Vec<f32> = (0..rows * columns)
        .map(|_| {
            if stream.next() < 0.0 {
                0.0
            } else {
                stream.next()
            }
        })
        .collect();
    let labels = (0..rows)
        .map(|_| ((stream.next() + 1.0) / 2.0 * classes as f32) as u32)
        .collect();
    let shifts = match offset {
        true => stream.numbers(columns, 0.7),
        false => vec![0.0; columns],
    };
    let features = match storage {
        Storage::Dense => Features::Dense(DenseRows::new(columns, values).unwrap()),
        Storage::Materialised => {
            let values = values
                .iter()
                .zip(shifts.iter().cycle())
                .map(|(a, b)| a + b)
                .collect();
            Features::Dense(DenseRows::new(columns, values).unwrap())
        }
        Storage::Sparse => {
            let (mut starts, mut indices, mut stored) = (vec![0], Vec::new(), Vec::new());
            for row in values.chunks(columns) {
                for (index, &value) in row.iter().enumerate().filter(|(_, value)| **value != 0.0) {
                    indices.push(index as u32);
                    stored.push(value);
                }
                starts.push(indices.len());
            }
            Features::Sparse(SparseRows::new(columns, starts, indices, stored).unwrap())
        }
    };
    let data = Dataset::new(features, labels, classes).unwrap();
    match storage {
        Storage::Materialised => data,
        _ => data.with_offset(shifts).unwrap(),
    }
}

/// The loss of a model (first) on a row with a label.
type NaiveLoss = Box<dyn Fn(&[f64], &[f64], usize) -> f64>;

/// One of the objectives with its loss written naively in `f64`.
struct Case {
    name: String,
    objective: Box<dyn Objective>,
    columns: usize,
    classes: usize,
    loss: NaiveLoss,
}

fn naive_network_loss(
    sizes: &[usize],
    activation: Activation,
    model: &[f64],
    row: &[f64],
    label: usize,
) -> f64 {
    let (mut values, mut next) = (row.to_vec(), 0);
    for (l, pair) in sizes.windows(2).enumerate() {
        let weights = &model[next..next + pair[0] * pair[1]];
        next += pair[0] * pair[1];
        let biases = &model[next..next + pair[1]];
        next += pair[1];
        values = (0..pair[1])
            .map(|r| {
                let sum = (0..pair[0])
                    .map(|c| values[c] * weights[c * pair[1] + r])
                    .sum::<f64>();
                let z = biases[r] + sum;
                match activation {
                    _ if l + 2 == sizes.len() => z,
                    Activation::Sigmoid => 1.0 / (1.0 + (-z).exp()),
                    Activation::Tanh => z.tanh(),
                    Activation::Relu => z.max(0.0),
                }
            })
            .collect();
    }
    values.iter().map(|z| z.exp()).sum::<f64>().ln() - values[label]
}

fn network_case(columns: usize, hidden: &[usize], classes: usize, activation: Activation) -> Case {
    let sizes: Vec<usize> = [&[columns], hidden, &[classes]].concat();
    Case {
        name: format!("{sizes:?} {activation:?}"),
        objective: Box::new(Network::new(columns, hidden, classes, activation).unwrap()),
        columns,
        classes,
        loss: Box::new(move |model, row, label| {
            naive_network_loss(&sizes, activation, model, row, label)
        }),
    }
}

fn cases() -> Vec<Case> {
    let naive_logistic = |model: &[f64], row: &[f64], label: usize| {
        let margin: f64 = model.iter().zip(row).map(|(a, b)| a * b).sum();
        let sign = if label == 1 { 1.0 } else { -1.0 };
        (-sign * margin).exp().ln_1p()
    };
    vec![
        Case {
            name: "logistic".to_owned(),
            objective: Box::new(Logistic::new(21)),
            columns: 21,
            classes: 2,
            loss: Box::new(naive_logistic),
        },
        Case {
            name: "explicit".to_owned(),
            objective: Box::new(Explicit(PlainLogistic(21))),
            columns: 21,
            classes: 2,
            loss: Box::new(naive_logistic),
        },
        network_case(13, &[], 3, Activation::Sigmoid),
        network_case(11, &[8], 10, Activation::Sigmoid),
        network_case(9, &[5], 2, Activation::Tanh),
        network_case(6, &[17, 9], 4, Activation::Relu),
        network_case(5, &[3, 4, 7], 3, Activation::Tanh),
        network_case(3, &[104], 3, Activation::Sigmoid),
    ]
}

/// Shapes that reach every kernel: all widths of panels, several slabs, features too many to lay out.
fn larger_cases() -> Vec<Case> {
    vec![
        network_case(300, &[120], 10, Activation::Sigmoid),
        network_case(150, &[64], 24, Activation::Relu),
        network_case(2100, &[8], 3, Activation::Tanh),
        network_case(10, &[70, 130], 10, Activation::Tanh),
    ]
}

/// Logistic regression as a user would write it.
struct PlainLogistic(usize);

impl RecordLoss for PlainLogistic {
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
        let sign = if label == 1 { 1.0 } else { -1.0 };
        let margin = features.dot(model);
        features.add_scaled(-sign / (1.0 + (sign * margin).exp()), gradient);
        Outcome {
            loss: (-sign * margin).exp().ln_1p(),
            class: u32::from(margin > 0.0),
        }
    }
}

impl Case {
    fn model(&self) -> Vec<f32> {
        Stream(7).numbers(self.objective.dimension(), 0.6)
    }

    fn data(&self, storage: Storage, rows: usize, offset: bool) -> Dataset {
        data(storage, rows, self.columns, self.classes, offset)
    }

    fn factors(&self, data: &Dataset, rows: &[u32]) -> (Vec<f32>, Vec<Outcome>) {
        let mut factors = vec![f32::NAN; rows.len() * self.objective.factor_len()];
        let mut outcomes = vec![Outcome::default(); rows.len()];
        self.objective.factors(
            &self.model(),
            Records { data, rows },
            Some(&mut outcomes),
            Some(&mut factors),
            &mut Workspace::new(),
        );
        (factors, outcomes)
    }

    fn norms(
        &self,
        data: &Dataset,
        rows: &[u32],
        gradients: Gradients<'_>,
        coordinates: Coordinates<'_>,
    ) -> Vec<f64> {
        let mut norms = vec![f64::NAN; rows.len()];
        let records = Records { data, rows };
        let mut workspace = Workspace::new();
        self.objective
            .squared_norms(records, gradients, coordinates, &mut norms, &mut workspace);
        norms
    }

    fn distances(
        &self,
        data: &Dataset,
        rows: &[u32],
        left: Gradients<'_>,
        right: Gradients<'_>,
    ) -> Vec<f64> {
        let mut distances = vec![f64::NAN; rows.len()];
        let records = Records { data, rows };
        let mut workspace = Workspace::new();
        self.objective
            .squared_distances(records, left, right, &mut distances, &mut workspace);
        distances
    }

    fn sum(
        &self,
        data: &Dataset,
        rows: &[u32],
        gradients: Gradients<'_>,
        coordinates: Coordinates<'_>,
    ) -> Vec<f32> {
        let mut sum = vec![0.0; coordinates.count(self.objective.dimension())];
        let records = Records { data, rows };
        let mut workspace = Workspace::new();
        self.objective
            .accumulate(records, gradients, coordinates, &mut sum, &mut workspace);
        sum
    }

    /// Every record's gradient, each computed alone.
    fn gradients(&self, data: &Dataset, rows: &[u32], factors: &[f32]) -> Vec<Vec<f32>> {
        factors
            .chunks(self.objective.factor_len())
            .zip(rows)
            .map(|(factors, &row)| {
                let gradients = Gradients {
                    factors,
                    weights: &[1.0],
                };
                self.sum(data, &[row], gradients, Coordinates::All)
            })
            .collect()
    }
}

fn storages() -> [(Storage, bool); 5] {
    [
        (Storage::Dense, false),
        (Storage::Dense, true),
        (Storage::Sparse, false),
        (Storage::Sparse, true),
        (Storage::Materialised, true),
    ]
}

fn assert_close(found: &[f32], expected: &[f64], tolerance: f64, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (i, (&found, &expected)) in found.iter().zip(expected).enumerate() {
        let error = (f64::from(found) - expected).abs();
        assert!(
            error <= tolerance * (1.0 + expected.abs()),
            "{what}, {i}: {found} {expected}"
        );
    }
}

fn relative(found: f64, expected: f64) -> f64 {
    if found == expected {
        0.0
    } else {
        (found / expected - 1.0).abs()
    }
}

#[test]
fn gradients_are_finite_differences_of_the_naive_loss() {
    for case in cases() {
        let model: Vec<f64> = case.model().iter().map(|&x| f64::from(x)).collect();
        for (storage, offset) in storages() {
            let data = case.data(storage, 3, offset);
            let rows = [2, 0, 1, 2];
            let (factors, outcomes) = case.factors(&data, &rows);
            let gradients = case.gradients(&data, &rows, &factors);
            for (j, &row) in rows.iter().enumerate() {
                let full = data.full_row(row as usize);
                let label = data.labels()[row as usize] as usize;
                let at = |i: usize, moved: f64| {
                    let mut model = model.clone();
                    model[i] += moved;
                    (case.loss)(&model, &full, label)
                };
                let step = 1e-4;
                let slopes: Vec<f64> = (0..model.len())
                    .map(|i| (at(i, step) - at(i, -step)) / (2.0 * step))
                    .collect();
                let what = format!("{} {storage:?} {offset} record {j}", case.name);
                assert_close(&gradients[j], &slopes, 3e-6, &what);
                assert_close(&[outcomes[j].loss], &[at(0, 0.0)], 1e-6, &what);
            }
        }
    }
}

#[test]
fn larger_networks_have_the_naive_loss_and_its_slope() {
    for case in larger_cases() {
        for (storage, offset) in storages() {
            let data = case.data(storage, 70, offset);
            let rows: Vec<u32> = (0..70).map(|j| (j * 3) % 70).collect();
            let (factors, outcomes) = case.factors(&data, &rows);
            let model: Vec<f64> = case.model().iter().map(|&x| f64::from(x)).collect();
            let direction = Stream(17).numbers(model.len(), 1.0);
            for j in [0, 1, 68, 69] {
                let full = data.full_row(rows[j] as usize);
                let label = data.labels()[rows[j] as usize] as usize;
                let at = |step: f64| {
                    let moved = model.iter().zip(&direction);
                    let moved: Vec<f64> = moved.map(|(x, &v)| x + step * f64::from(v)).collect();
                    (case.loss)(&moved, &full, label)
                };
                let len = case.objective.factor_len();
                let (factors, weights) = (&factors[j * len..][..len], &[1.0][..]);
                let gradients = Gradients { factors, weights };
                let gradient = case.sum(&data, &rows[j..=j], gradients, Coordinates::All);
                let slope: f64 = gradient
                    .iter()
                    .zip(&direction)
                    .map(|(&g, &v)| f64::from(g) * f64::from(v))
                    .sum();
                // A kink of the rectifier between the two points would spoil a larger step.
                let step = 1e-7;
                let expected = (at(step) - at(-step)) / (2.0 * step);
                let error = (slope - expected).abs();
                assert!(
                    error < 1e-4 * (1.0 + expected.abs()),
                    "{} {storage:?}: {slope} {expected}",
                    case.name
                );
                assert_close(&[outcomes[j].loss], &[at(0.0)], 1e-5, &case.name);
            }
        }
    }
}

#[test]
fn predicted_class_has_the_smallest_loss() {
    for case in cases() {
        let data = case.data(Storage::Sparse, 40, true);
        let rows: Vec<u32> = (0..40).collect();
        let model: Vec<f64> = case.model().iter().map(|&x| f64::from(x)).collect();
        let (_, outcomes) = case.factors(&data, &rows);
        for (row, outcome) in outcomes.iter().enumerate() {
            let losses = |class| (case.loss)(&model, &data.full_row(row), class);
            let best = (0..case.classes).map(losses).fold(f64::INFINITY, f64::min);
            assert!(
                losses(outcome.class as usize) < best + 1e-6,
                "{} {row}",
                case.name
            );
        }
    }
}

/// `|g_j|^2` and `|g_j - h_j|^2` by loops over every weight, in `f64`, from the factors.
fn naive_network_norm(
    network: &Network,
    row: &[f64],
    left: (&[f32], f32),
    right: (&[f32], f32),
) -> f64 {
    let (mut total, mut place) = (0.0, 0);
    for (l, layer) in network.layers().iter().enumerate() {
        let inputs = |factors: &[f32]| -> Vec<f64> {
            match l {
                0 => row.iter().copied().chain([1.0]).collect(),
                _ => factors[place..place + layer.inputs]
                    .iter()
                    .map(|&a| f64::from(a))
                    .chain([1.0])
                    .collect(),
            }
        };
        let (a, b) = (inputs(left.0), inputs(right.0));
        place += if l > 0 { layer.inputs } else { 0 };
        for r in 0..layer.outputs {
            let d = f64::from(left.1) * f64::from(left.0[place + r]);
            let e = f64::from(right.1) * f64::from(right.0[place + r]);
            for (a, b) in a.iter().zip(&b) {
                total += (a * d - b * e).powi(2);
            }
        }
        place += layer.outputs;
    }
    total
}

#[test]
fn ghost_norms_are_exact_given_the_factors() {
    for (hidden, activation) in [
        (&[][..], Activation::Sigmoid),
        (&[8], Activation::Sigmoid),
        (&[17, 9], Activation::Tanh),
    ] {
        let network = Network::new(11, hidden, 5, activation).unwrap();
        let case = network_case(11, hidden, 5, activation);
        for (storage, offset) in storages() {
            let data = case.data(storage, 70, offset);
            let rows: Vec<u32> = (0..70).rev().collect();
            let (factors, _) = case.factors(&data, &rows);
            let mut stream = Stream(3);
            let weights = stream.numbers(70, 2.0);
            let others = stream.numbers(factors.len(), 0.1);
            let other_weights = stream.numbers(70, 2.0);
            let left = Gradients {
                factors: &factors,
                weights: &weights,
            };
            let right = Gradients {
                factors: &others,
                weights: &other_weights,
            };
            let norms = case.norms(&data, &rows, left, Coordinates::All);
            let differences = case.distances(&data, &rows, left, right);
            let len = network.factor_len();
            for (j, &row) in rows.iter().enumerate() {
                let full = data.full_row(row as usize);
                let left = (&factors[j * len..][..len], weights[j]);
                let right = (&others[j * len..][..len], other_weights[j]);
                let expected = naive_network_norm(&network, &full, left, (right.0, 0.0));
                assert!(relative(norms[j], expected) < 2f64.powi(-40));
                let expected = naive_network_norm(&network, &full, left, right);
                assert!(relative(differences[j], expected) < 2f64.powi(-40));
            }
        }
    }
}

#[test]
fn ghost_norms_are_those_of_explicit_gradients() {
    for case in cases() {
        for (storage, offset) in storages() {
            let data = case.data(storage, 9, offset);
            let rows: Vec<u32> = (0..9).collect();
            let (factors, _) = case.factors(&data, &rows);
            let weights = Stream(5).numbers(9, 3.0);
            let left = Gradients {
                factors: &factors,
                weights: &weights,
            };
            let norms = case.norms(&data, &rows, left, Coordinates::All);
            for (j, gradient) in case.gradients(&data, &rows, &factors).iter().enumerate() {
                let squares: f64 = gradient.iter().map(|&g| f64::from(g).powi(2)).sum();
                let expected = squares * f64::from(weights[j]).powi(2);
                assert!(
                    relative(norms[j], expected) < 1e-5,
                    "{} {storage:?}",
                    case.name
                );
            }
        }
    }
}

#[test]
fn differences_do_not_cancel() {
    for case in cases() {
        let data = case.data(Storage::Sparse, 9, true);
        let rows: Vec<u32> = (0..9).collect();
        let (factors, _) = case.factors(&data, &rows);
        let ones = [1.0; 9];
        let left = Gradients {
            factors: &factors,
            weights: &ones,
        };
        let norms = case.norms(&data, &rows, left, Coordinates::All);
        let same = case.distances(&data, &rows, left, left);
        assert_eq!(same, [0.0; 9], "{}", case.name);
        // g - (1 - 2^-20) g = 2^-20 g, and every product on the way is exact.
        let shrunk = [1.0 - 2f32.powi(-20); 9];
        let right = Gradients {
            factors: &factors,
            weights: &shrunk,
        };
        let differences = case.distances(&data, &rows, left, right);
        for (difference, norm) in differences.iter().zip(&norms) {
            assert!(
                relative(difference * 2f64.powi(40), *norm) < 2f64.powi(-30),
                "{}",
                case.name
            );
        }
    }
}

/// The input doubled and the error halved: the gradient of the weights is the same, and the short
/// formula for the difference would be nothing but cancellation.
#[test]
fn differences_survive_inputs_that_grow_as_errors_shrink() {
    let case = network_case(11, &[17, 9], 5, Activation::Tanh);
    let network = Network::new(11, &[17, 9], 5, Activation::Tanh).unwrap();
    let data = case.data(Storage::Dense, 9, true);
    let rows: Vec<u32> = (0..9).collect();
    let (factors, _) = case.factors(&data, &rows);
    let len = network.factor_len();
    let mut others = factors.clone();
    for other in others.chunks_mut(len) {
        // Errors of the first layer, then input and errors of each further layer.
        other[17..34].iter_mut().for_each(|a| *a *= 2.0);
        other[34..43].iter_mut().for_each(|d| *d *= 0.5);
        other[43..52].iter_mut().for_each(|a| *a *= 2.0);
        other[52..57].iter_mut().for_each(|d| *d *= 0.5);
    }
    let ones = [1.0; 9];
    let left = Gradients {
        factors: &factors,
        weights: &ones,
    };
    let right = Gradients {
        factors: &others,
        weights: &ones,
    };
    let differences = case.distances(&data, &rows, left, right);
    for (j, difference) in differences.iter().enumerate() {
        // Only biases of the second and third layer differ, by half.
        let halves = factors[j * len..][..len][34..43]
            .iter()
            .chain(&factors[j * len..][..len][52..57]);
        let expected: f64 = halves.map(|&d| (f64::from(d) / 2.0).powi(2)).sum();
        assert!(
            relative(*difference, expected) < 2f64.powi(-40),
            "{difference} {expected}"
        );
    }
}

#[test]
fn selected_norms_are_those_of_the_selected_part() {
    for case in cases().into_iter().chain(larger_cases()) {
        for (storage, offset) in storages() {
            let data = case.data(storage, 139, offset);
            let rows: Vec<u32> = (0..139).map(|j| (j * 5) % 139).collect();
            let (factors, _) = case.factors(&data, &rows);
            let mut stream = Stream(11);
            let weights = stream.numbers(139, 2.0);
            let left = Gradients {
                factors: &factors,
                weights: &weights,
            };
            let gradients = case.gradients(&data, &rows, &factors);
            let dimension = case.objective.dimension();
            for one_in in [1.0, 1.3, 4.0, 20.0, 1e9] {
                let chosen = stream.choice(dimension, one_in);
                let coordinates = Coordinates::Selected(&chosen);
                let norms = case.norms(&data, &rows, left, coordinates);
                for j in 0..rows.len() {
                    let entries = chosen.iter().map(|&i| gradients[j][i as usize]);
                    let squares = entries.map(|g| (f64::from(weights[j]) * f64::from(g)).powi(2));
                    let expected: f64 = squares.sum();
                    assert!(
                        (norms[j] - expected).abs() <= rounding(expected),
                        "{} {storage:?} {offset} {one_in} {j}",
                        case.name
                    );
                }
            }
        }
    }
}

#[test]
fn distances_are_those_of_explicit_gradients() {
    for case in cases().into_iter().chain(larger_cases()) {
        for (storage, offset) in storages() {
            let data = case.data(storage, 139, offset);
            let rows: Vec<u32> = (0..139).map(|j| (j * 5) % 139).collect();
            let (factors, _) = case.factors(&data, &rows);
            let mut stream = Stream(11);
            let others = stream.numbers(factors.len(), 0.5);
            let (weights, other_weights) = (stream.numbers(139, 2.0), stream.numbers(139, 2.0));
            let left = Gradients {
                factors: &factors,
                weights: &weights,
            };
            let right = Gradients {
                factors: &others,
                weights: &other_weights,
            };
            let distances = case.distances(&data, &rows, left, right);
            let here = case.gradients(&data, &rows, &factors);
            let there = case.gradients(&data, &rows, &others);
            for j in 0..rows.len() {
                let pairs = here[j].iter().zip(&there[j]);
                let entries = pairs.map(|(&a, &b)| {
                    f64::from(weights[j]) * f64::from(a)
                        - f64::from(other_weights[j]) * f64::from(b)
                });
                let expected: f64 = entries.map(|entry| entry.powi(2)).sum();
                assert!(
                    (distances[j] - expected).abs() <= rounding(expected),
                    "{} {storage:?} {offset} {j}",
                    case.name
                );
            }
        }
    }
}

/// How far a squared norm may be from that of explicit gradients: an entry may be the rounded rest of a feature and an
/// offset that cancel.
fn rounding(exact: f64) -> f64 {
    2e-5 * exact + 2e-6 * exact.sqrt() + 1e-12
}

/// Where the chosen coordinates are those that an offset far away nearly takes back, norms and the sums of single records
/// are those of rows that have it built in: nothing is subtracted that has been added before.
#[test]
fn selected_coordinates_near_a_far_offset_keep_their_digits() {
    let (columns, near) = (1000usize, 60usize);
    let logistic = Logistic::new(columns);
    let mut random = Stream(41);
    for center in [1e3f32, 1e5, 1e7] {
        // Rows as models see them: small near the centre, and large in one feature, so that they stay sparse.
        let rows: Vec<Vec<f32>> = (0..5)
            .map(|_| {
                let small = random.numbers(near, 2.0);
                let mut row: Vec<f32> = small.iter().map(|x| center + x.round()).collect();
                row.push(100.0 * center);
                row
            })
            .collect();
        let indices: Vec<u32> = (0..near as u32).chain([columns as u32 - 1]).collect();
        let starts = (0..=5).map(|row| row * indices.len()).collect();
        let sparse = SparseRows::new(columns, starts, indices.repeat(5), rows.concat()).unwrap();
        let mut offset = vec![0.0; columns];
        offset[..near].fill(-center);
        let mut full = vec![0.0; 5 * columns];
        for (row, full) in rows.iter().zip(full.chunks_mut(columns)) {
            for (full, value) in full.iter_mut().zip(&row[..near]) {
                *full = value - center;
            }
            full[columns - 1] = 100.0 * center;
        }
        let set = |features| Dataset::new(features, vec![0, 1, 0, 1, 1], 2).unwrap();
        let sparse = set(Features::Sparse(sparse)).with_offset(offset).unwrap();
        assert!(sparse.offset().is_some(), "the rows stay sparse");
        let dense = set(Features::Dense(DenseRows::new(columns, full).unwrap()));
        let mut workspace = Workspace::default();
        let (factors, weights) = ([0.5f32, -0.7, 0.3, -0.9, -0.2], [1.0f32; 5]);
        for chosen in [0..near as u32, 0..5, 0..500, 30..90] {
            let chosen: Vec<u32> = chosen.collect();
            let coordinates = Coordinates::Selected(&chosen);
            for together in [1, 5] {
                for first in (0..5).step_by(together) {
                    let rows: Vec<u32> = (first as u32..(first + together) as u32).collect();
                    let part = first..first + together;
                    let gradients = Gradients {
                        factors: &factors[part.clone()],
                        weights: &weights[part],
                    };
                    let mut norms = [vec![0.0; together], vec![0.0; together]];
                    let mut sums = [vec![0.0f32; chosen.len()], vec![0.0; chosen.len()]];
                    for (side, data) in [&sparse, &dense].into_iter().enumerate() {
                        let records = Records { data, rows: &rows };
                        logistic.squared_norms(
                            records,
                            gradients,
                            coordinates,
                            &mut norms[side],
                            &mut workspace,
                        );
                        if together == 1 {
                            let sum = &mut sums[side];
                            logistic.accumulate(
                                records,
                                gradients,
                                coordinates,
                                sum,
                                &mut workspace,
                            );
                        }
                    }
                    for (found, expected) in norms[0].iter().zip(&norms[1]) {
                        let error = (found - expected).abs();
                        assert!(error <= 1e-9 * expected, "{center}: {found} {expected}");
                    }
                    assert_eq!(sums[0], sums[1], "{center} {}", chosen.len());
                }
            }
        }
    }
}

#[test]
fn sums_are_weighted_sums_of_explicit_gradients() {
    for case in cases().into_iter().chain(larger_cases()) {
        for (storage, offset) in storages() {
            let data = case.data(storage, 139, offset);
            let rows: Vec<u32> = (0..139).map(|j| (j * 5) % 139).collect();
            let (factors, _) = case.factors(&data, &rows);
            let mut stream = Stream(13);
            let weights = stream.numbers(139, 1.0);
            let gradients = Gradients {
                factors: &factors,
                weights: &weights,
            };
            let mut expected = vec![0.0f64; case.objective.dimension()];
            for (gradient, &weight) in case.gradients(&data, &rows, &factors).iter().zip(&weights) {
                for (sum, &value) in expected.iter_mut().zip(gradient) {
                    *sum += f64::from(weight) * f64::from(value);
                }
            }
            let what = format!("{} {storage:?} {offset}", case.name);
            let all = case.sum(&data, &rows, gradients, Coordinates::All);
            assert_close(&all, &expected, 1e-5, &what);
            for one_in in [1.0, 1.3, 4.0, 20.0, 1e9] {
                let chosen = stream.choice(expected.len(), one_in);
                let part = case.sum(&data, &rows, gradients, Coordinates::Selected(&chosen));
                let expected: Vec<f64> = chosen.iter().map(|&i| expected[i as usize]).collect();
                assert_close(&part, &expected, 1e-5, &what);
            }
        }
    }
}

#[test]
fn sums_are_added_to_what_is_there() {
    for case in cases() {
        let data = case.data(Storage::Sparse, 5, true);
        let rows = [0, 1, 2, 3, 4];
        let (factors, _) = case.factors(&data, &rows);
        let gradients = Gradients {
            factors: &factors,
            weights: &[0.5; 5],
        };
        let chosen = [0, case.objective.dimension() as u32 - 1];
        for coordinates in [Coordinates::All, Coordinates::Selected(&chosen)] {
            let alone = case.sum(&data, &rows, gradients, coordinates);
            let mut sum = vec![10.0; alone.len()];
            let mut workspace = Workspace::new();
            let records = Records {
                data: &data,
                rows: &rows,
            };
            case.objective
                .accumulate(records, gradients, coordinates, &mut sum, &mut workspace);
            let expected: Vec<f64> = alone.iter().map(|&x| f64::from(x) + 10.0).collect();
            assert_close(&sum, &expected, 1e-6, &case.name);
        }
    }
}

/// What secure mode stands on: a record's numbers do not depend on its company.
#[test]
fn numbers_of_a_record_are_the_same_to_the_bit_in_any_batch() {
    for case in cases().into_iter().chain(larger_cases()) {
        for (storage, offset) in storages() {
            let data = case.data(storage, 131, offset);
            let len = case.objective.factor_len();
            let alone: Vec<_> = (0..131).map(|row| case.factors(&data, &[row])).collect();
            let ones = [1.0; 131];
            for batch in [2, 3, 7, 64, 65, 128, 131] {
                let rows: Vec<u32> = (0..batch).map(|j| (j * 37 + batch) % 131).collect();
                let (factors, outcomes) = case.factors(&data, &rows);
                let weights = &ones[..rows.len()];
                let left = Gradients {
                    factors: &factors,
                    weights,
                };
                let norms = case.norms(&data, &rows, left, Coordinates::All);
                for (j, &row) in rows.iter().enumerate() {
                    let (factors_alone, outcomes_alone) = &alone[row as usize];
                    assert_eq!(&factors[j * len..][..len], factors_alone, "{}", case.name);
                    assert_eq!(outcomes[j], outcomes_alone[0], "{}", case.name);
                    let left = Gradients {
                        factors: factors_alone,
                        weights: &[1.0],
                    };
                    let norm = case.norms(&data, &[row], left, Coordinates::All);
                    assert_eq!(norms[j], norm[0], "{}", case.name);
                }
            }
        }
    }
}

#[test]
fn dense_and_sparse_networks_agree_to_the_bit() {
    let all = cases().into_iter().chain(larger_cases());
    for case in all.filter(|case| case.name.starts_with('[')) {
        let rows: Vec<u32> = (0..67).collect();
        for offset in [false, true] {
            let dense = case.factors(&case.data(Storage::Dense, 67, offset), &rows);
            let sparse = case.factors(&case.data(Storage::Sparse, 67, offset), &rows);
            assert_eq!(dense, sparse, "{}", case.name);
        }
    }
}

/// Parts of a data set with few different values keep their rows in a second, shorter form.
#[test]
fn packed_rows_give_the_same_bits() {
    let mut stream = Stream(4);
    other_forms_give_the_same_bits(300, 2.0, |_| (stream.next() * 100.0).round() / 3.0);
}

/// Parts whose columns have one value each, in a third, shorter still.
#[test]
fn rows_of_indicators_give_the_same_bits() {
    other_forms_give_the_same_bits(1500, 8.0, |index| (index as f32).cos());
}

/// Rows with about one in `one_in` of 150 features, before and after they are copied into their other forms.
fn other_forms_give_the_same_bits(rows: u32, one_in: f32, value: impl FnMut(u32) -> f32) {
    let columns = 150;
    let mut stream = Stream(3);
    let stored: Vec<Vec<u32>> = (0..rows).map(|_| stream.choice(columns, one_in)).collect();
    let mut starts = vec![0];
    for row in &stored {
        starts.push(starts[starts.len() - 1] + row.len());
    }
    let indices: Vec<u32> = stored.concat();
    assert!(indices.len() > 20_000, "too few for another form");
    let values = indices.iter().copied().map(value).collect();
    let features = SparseRows::new(columns, starts, indices, values).unwrap();
    let labels: Vec<u32> = (0..rows).map(|row| row % 2).collect();
    let plain = Dataset::new(Features::Sparse(features), labels, 2).unwrap();
    let offset = stream.numbers(columns, 0.3);
    let networks = [
        network_case(columns, &[64], 2, Activation::Relu),
        network_case(columns, &[9, 5], 2, Activation::Sigmoid),
    ];
    let logistic = Case {
        name: "logistic".to_owned(),
        objective: Box::new(Logistic::new(columns)),
        columns,
        classes: 2,
        loss: Box::new(|_, _, _| unreachable!("not compared with loops here")),
    };
    let all: Vec<u32> = (0..rows).collect();
    for case in networks.into_iter().chain([logistic]) {
        for plain in [
            plain.clone(),
            plain.clone().with_offset(offset.clone()).unwrap(),
        ] {
            let copied = plain.select(&all);
            assert!(plain == copied);
            let batch: Vec<u32> = (0..131).map(|j| j * 37 % rows).collect();
            let (factors, outcomes) = case.factors(&plain, &batch);
            assert_eq!(case.factors(&copied, &batch), (factors.clone(), outcomes));
            let weights = Stream(5).numbers(batch.len(), 1.0);
            for len in [batch.len(), 1] {
                let gradients = Gradients {
                    factors: &factors[..factors.len() / batch.len() * len],
                    weights: &weights[..len],
                };
                let batch = &batch[..len];
                for chosen in [1.0, 3.0, 20.0, 300.0] {
                    let chosen = Stream(6).choice(case.objective.dimension(), chosen);
                    for coordinates in [Coordinates::All, Coordinates::Selected(&chosen)] {
                        let sums = [&plain, &copied]
                            .map(|data| case.sum(data, batch, gradients, coordinates));
                        let network = case.name.starts_with('[');
                        if len == 1 || network && plain.offset().is_none() {
                            assert_eq!(sums[0], sums[1], "{}", case.name);
                        } else {
                            // Several records may be added in another order.
                            let first: Vec<f64> = sums[0].iter().map(|&x| x.into()).collect();
                            assert_close(&sums[1], &first, 1e-5, &case.name);
                        }
                        let norms = [&plain, &copied]
                            .map(|data| case.norms(data, batch, gradients, coordinates));
                        assert_eq!(norms[0], norms[1], "{}", case.name);
                    }
                }
            }
        }
    }
}

#[test]
fn an_empty_batch_is_nothing() {
    for case in cases() {
        for (storage, offset) in storages() {
            let data = case.data(storage, 2, offset);
            let (factors, _) = case.factors(&data, &[]);
            let none = Gradients {
                factors: &factors,
                weights: &[],
            };
            assert!(case.distances(&data, &[], none, none).is_empty());
            for coordinates in [Coordinates::All, Coordinates::Selected(&[1])] {
                assert!(case.norms(&data, &[], none, coordinates).is_empty());
                let sum = case.sum(&data, &[], none, coordinates);
                assert!(sum.iter().all(|&value| value == 0.0));
            }
        }
    }
}

#[test]
fn models_that_are_not_numbers_show_and_do_not_panic() {
    for case in cases() {
        for (storage, offset) in storages() {
            let data = case.data(storage, 5, offset);
            let rows = [0, 1, 2, 3, 4];
            let dimension = case.objective.dimension();
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX] {
                let model = vec![bad; dimension];
                let mut factors = vec![0.0; 5 * case.objective.factor_len()];
                let mut outcomes = [Outcome::default(); 5];
                let mut workspace = Workspace::new();
                let records = Records {
                    data: &data,
                    rows: &rows,
                };
                case.objective.factors(
                    &model,
                    records,
                    Some(&mut outcomes),
                    Some(&mut factors),
                    &mut workspace,
                );
                if bad.is_nan() {
                    assert!(
                        outcomes.iter().all(|outcome| outcome.loss.is_nan()),
                        "{}",
                        case.name
                    );
                    assert!(
                        factors.iter().any(|factor| factor.is_nan()),
                        "{}",
                        case.name
                    );
                }
                let left = Gradients {
                    factors: &factors,
                    weights: &[1.0; 5],
                };
                let chosen = [0, dimension as u32 - 1];
                case.distances(&data, &rows, left, left);
                for coordinates in [Coordinates::All, Coordinates::Selected(&chosen)] {
                    case.norms(&data, &rows, left, coordinates);
                    case.sum(&data, &rows, left, coordinates);
                }
            }
        }
    }
}
