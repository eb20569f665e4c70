//! Norms of gradients and of differences against explicit gradients.

use soteriafl_core::data::{Dataset, DenseRows, Features, SparseRows};
use soteriafl_core::objective::{
    Activation, Coordinates, Gradients, Logistic, Network, Objective, Records, Workspace,
};

use super::cases::{Storage, Stream, cases, larger_cases, network_case, relative, storages};

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

/// How far a squared norm may be from that of explicit gradients: an entry may be the rounded rest
/// of a feature and an offset that cancel.
fn rounding(exact: f64) -> f64 {
    2e-5 * exact + 2e-6 * exact.sqrt() + 1e-12
}

/// Where the chosen coordinates are those that an offset far away nearly takes back, norms and the
/// sums of single records are those of rows that have it built in: nothing is subtracted that has
/// been added before.
#[test]
fn selected_coordinates_near_a_far_offset_keep_their_digits() {
    let (columns, near) = (1000usize, 60usize);
    let logistic = Logistic::new(columns);
    let mut random = Stream(41);
    for center in [1e3f32, 1e5, 1e7] {
        // Rows as models see them: small near the centre, and large in one feature, so that they
        // stay sparse.
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
