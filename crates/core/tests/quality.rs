//! Quality of models against naive recomputation, closed forms and known values.

mod common;

use common::Stream;
use soteriafl_core::data::{Dataset, DenseRows, Features, SparseRows};
use soteriafl_core::objective::{
    Activation, Explicit, Logistic, Network, Objective, Outcome, RecordLoss, RowView,
};
use soteriafl_core::quality::{self, CALIBRATION_BINS, Classification, Quality};

fn dense(rows: usize, columns: usize, classes: u32) -> Dataset {
    let mut stream = Stream(7);
    let values = (0..rows * columns).map(|_| stream.next()).collect();
    let labels = (0..rows as u32)
        .map(|row| row * (row % 7) % classes)
        .collect();
    let features = Features::Dense(DenseRows::new(columns, values).unwrap());
    let shifts = stream.numbers(columns, 0.3);
    Dataset::new(features, labels, classes as usize)
        .unwrap()
        .with_offset(shifts)
        .unwrap()
}

fn classes(found: Option<Quality>) -> Classification {
    match found {
        Some(Quality::Classes(found)) => found,
        other => panic!("{other:?}"),
    }
}

/// Probabilities of a softmax model in `f64`.
fn probabilities(model: &[f32], row: &[f64], classes: usize) -> Vec<f64> {
    let logit = |class: usize| {
        let bias = f64::from(model[row.len() * classes + class]);
        row.iter().enumerate().fold(bias, |sum, (column, value)| {
            sum + value * f64::from(model[column * classes + class])
        })
    };
    let logits: Vec<f64> = (0..classes).map(logit).collect();
    let sum: f64 = logits.iter().map(|logit| logit.exp()).sum();
    logits.iter().map(|logit| logit.exp() / sum).collect()
}

#[test]
fn classes_agree_with_a_naive_recomputation() {
    let (data, count) = (dense(2500, 5, 3), 3);
    let network = Network::new(5, &[], count, Activation::Tanh).unwrap();
    let model = Stream(3).numbers(network.dimension(), 1.5);
    let found = classes(quality::measure(&network, &model, &data, 2));
    let (mut confusion, mut loss) = (vec![vec![0u64; count]; count], 0.0);
    let (mut bins, mut all) = (vec![(0.0, 0.0, 0u64); CALIBRATION_BINS], Vec::new());
    for row in 0..data.rows() {
        let p = probabilities(&model, &data.full_row(row), count);
        let best = (0..count).max_by(|&a, &b| p[a].total_cmp(&p[b])).unwrap();
        let label = data.labels()[row] as usize;
        confusion[label][best] += 1;
        loss -= p[label].ln() / data.rows() as f64;
        let bin = &mut bins[((p[best] * CALIBRATION_BINS as f64) as usize).min(14)];
        *bin = (bin.0 + p[best], bin.1 + f64::from(best == label), bin.2 + 1);
        all.push((p, label));
    }
    assert_eq!(found.confusion, confusion);
    assert!((found.log_loss.unwrap() - loss).abs() < 1e-6);
    let error: f64 = bins.iter().map(|bin| (bin.0 - bin.1).abs()).sum();
    let error = error / data.rows() as f64;
    assert!((found.calibration_error().unwrap() - error).abs() < 1e-6);
    let filled: Vec<u64> = bins.iter().map(|bin| bin.2).filter(|n| *n > 0).collect();
    let records: Vec<u64> = found.calibration.iter().map(|bin| bin.records).collect();
    assert_eq!(records, filled);
    let recalls =
        (0..count).map(|c| confusion[c][c] as f64 / confusion[c].iter().sum::<u64>() as f64);
    let balanced = recalls.clone().sum::<f64>() / count as f64;
    assert!((found.balanced_accuracy().unwrap() - balanced).abs() < 1e-12);
    for class in 0..count {
        let answers: u64 = confusion.iter().map(|row| row[class]).sum();
        let precision = confusion[class][class] as f64 / answers as f64;
        let precision = (answers > 0).then_some(precision);
        assert_eq!(found.precision(class), precision);
        let (mut right, mut pairs) = (0.0, 0.0);
        for (of, _) in all.iter().filter(|(_, label)| *label == class) {
            for (other, _) in all.iter().filter(|(_, label)| *label != class) {
                pairs += 1.0;
                right += f64::from(of[class] > other[class]);
            }
        }
        // Pairs whose probabilities differ by less than rounding may change sides.
        let auc: f64 = right / pairs;
        assert!((found.class_auc[class].unwrap() - auc).abs() < 1e-5);
    }
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    let data = dense(5000, 7, 2);
    let logistic = Logistic::new(7);
    let network = Network::new(7, &[6], 4, Activation::Relu).unwrap();
    for objective in [&logistic as &dyn Objective, &network] {
        let model = Stream(5).numbers(objective.dimension(), 0.8);
        let one = quality::measure(objective, &model, &data, 1);
        for threads in [2, 3, 64] {
            assert_eq!(one, quality::measure(objective, &model, &data, threads));
        }
    }
}

#[test]
fn two_classes_are_judged_by_the_margin() {
    let values = vec![3.0, 1.0, -1.0, -2.0, 40.0];
    let features = Features::Dense(DenseRows::new(1, values).unwrap());
    let data = Dataset::new(features, vec![1, 0, 1, 0, 1], 2).unwrap();
    let found = classes(quality::measure(&Logistic::new(1), &[1.0], &data, 1));
    assert_eq!(found.confusion, [[1, 1], [1, 2]]);
    let loss = |margin: f64| (-margin).exp().ln_1p();
    let losses = [3.0, -1.0, -1.0, 2.0, 40.0].map(loss);
    let mean = losses.iter().sum::<f64>() / 5.0;
    assert!((found.log_loss.unwrap() - mean).abs() < 1e-6);
    // Of six pairs one is in the wrong order: a margin of 40 is still above one of 3.
    assert_eq!(found.auc(), Some(5.0 / 6.0));
    let perfect = Dataset::new(data.features().clone(), vec![1, 1, 0, 0, 1], 2).unwrap();
    let found = classes(quality::measure(&Logistic::new(1), &[30.0], &perfect, 1));
    assert_eq!((found.accuracy(), found.auc()), (Some(1.0), Some(1.0)));
    assert!(found.log_loss.unwrap() > 0.0 && found.calibration_error().unwrap() < 1e-9);
    let curve = found.roc.unwrap();
    assert!(curve.contains(&(0.0, 1.0)), "{curve:?}");
}

#[test]
fn a_class_without_records_is_left_out_of_means() {
    let features = Features::Dense(DenseRows::new(1, vec![1.0, 2.0]).unwrap());
    let data = Dataset::new(features, vec![2, 2], 3).unwrap();
    let network = Network::new(1, &[], 3, Activation::Tanh).unwrap();
    let found = classes(quality::measure(&network, &[0.0; 6], &data, 1));
    // Equal probabilities: the first class is answered.
    assert_eq!(found.confusion[2], [2, 0, 0]);
    assert_eq!((found.recall(0), found.recall(2)), (None, Some(0.0)));
    assert_eq!((found.precision(0), found.precision(2)), (Some(0.0), None));
    assert_eq!((found.balanced_accuracy(), found.auc()), (Some(0.0), None));
    assert!((found.log_loss.unwrap() - 3f64.ln()).abs() < 1e-7);
}

#[test]
fn sparse_rows_say_what_dense_rows_say() {
    let dense_data = dense(600, 4, 2);
    let (mut starts, mut indices, mut values) = (vec![0], vec![], vec![]);
    for row in 0..600 {
        for (column, value) in dense_data.full_row(row).into_iter().enumerate() {
            indices.push(column as u32);
            values.push(value as f32);
        }
        starts.push(indices.len());
    }
    let sparse = SparseRows::new(4, starts, indices, values).unwrap();
    let labels = dense_data.labels().to_vec();
    let sparse_data = Dataset::new(Features::Sparse(sparse), labels, 2).unwrap();
    let model = Stream(9).numbers(4, 1.0);
    let of = |data| classes(quality::measure(&Logistic::new(4), &model, data, 1));
    let (left, right) = (of(&dense_data), of(&sparse_data));
    assert_eq!(left.confusion, right.confusion);
    assert!((left.log_loss.unwrap() - right.log_loss.unwrap()).abs() < 1e-6);
    assert!((left.auc().unwrap() - right.auc().unwrap()).abs() < 1e-4);
}

/// Answers with the sign of the first feature.
struct Sign;

impl RecordLoss for Sign {
    fn dimension(&self) -> usize {
        1
    }
    fn loss_and_gradient(&self, model: &[f32], row: RowView<'_>, _: u32, _: &mut [f32]) -> Outcome {
        let class = u32::from(row.dot(&model[..1]) > 0.0);
        Outcome { loss: 0.0, class }
    }
}

#[test]
fn objectives_that_know_classes_alone_have_no_probabilities() {
    let features = Features::Dense(DenseRows::new(1, vec![1.0, -2.0, 4.0]).unwrap());
    let data = Dataset::new(features, vec![1, 0, 0], 2).unwrap();
    let found = classes(quality::measure(&Explicit(Sign), &[1.0], &data, 1));
    assert_eq!(found.confusion, [[1, 1], [0, 1]]);
    assert_eq!((found.log_loss, found.auc()), (None, None));
    assert!(found.calibration.is_empty() && found.calibration_error().is_none());
}
