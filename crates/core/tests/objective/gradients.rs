//! Losses, predicted classes and gradients against the naive loss and its slope.

use soteriafl_core::objective::{Coordinates, Gradients};

use super::cases::{Storage, Stream, assert_close, cases, larger_cases, storages};

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
