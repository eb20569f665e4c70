//! Objectives with their losses written naively in `f64`, and data in every form of storage.

use soteriafl_core::data::{Dataset, DenseRows, Features, SparseRows};
use soteriafl_core::objective::{
    Activation, Coordinates, Explicit, Gradients, Logistic, Network, Objective, Outcome,
    RecordLoss, Records, RowView, Workspace,
};

pub use crate::common::Stream;
use crate::common::network_loss;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Storage {
    Dense,
    Sparse,
    /// Dense rows with the offset added in.
    Materialised,
}

/// Rows with about half of the features zero.
pub fn data(
    storage: Storage,
    rows: usize,
    columns: usize,
    classes: usize,
    offset: bool,
) -> Dataset {
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
pub type NaiveLoss = Box<dyn Fn(&[f64], &[f64], usize) -> f64>;

/// One of the objectives with its loss written naively in `f64`.
pub struct Case {
    pub name: String,
    pub objective: Box<dyn Objective>,
    pub columns: usize,
    pub classes: usize,
    pub loss: NaiveLoss,
}

pub fn network_case(
    columns: usize,
    hidden: &[usize],
    classes: usize,
    activation: Activation,
) -> Case {
    let sizes: Vec<usize> = [&[columns], hidden, &[classes]].concat();
    Case {
        name: format!("{sizes:?} {activation:?}"),
        objective: Box::new(Network::new(columns, hidden, classes, activation).unwrap()),
        columns,
        classes,
        loss: Box::new(move |model, row, label| {
            network_loss(&sizes, activation, model, row, label)
        }),
    }
}

/// Softmax regression without biases: the loss of the same with biases of zero.
fn bare_case(columns: usize, classes: usize) -> Case {
    Case {
        name: format!("[{columns}, {classes}] without biases"),
        objective: Box::new(Network::softmax_without_biases(columns, classes).unwrap()),
        loss: Box::new(move |model, row, label| {
            let model = [model, &vec![0.0; classes]].concat();
            network_loss(&[columns, classes], Activation::Sigmoid, &model, row, label)
        }),
        ..network_case(columns, &[], classes, Activation::Sigmoid)
    }
}

pub fn cases() -> Vec<Case> {
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
        bare_case(12, 5),
    ]
}

/// Shapes that reach every kernel: all widths of panels, several slabs, features too many to lay
/// out.
pub fn larger_cases() -> Vec<Case> {
    vec![
        network_case(300, &[120], 10, Activation::Sigmoid),
        network_case(150, &[64], 24, Activation::Relu),
        network_case(2100, &[8], 3, Activation::Tanh),
        network_case(10, &[70, 130], 10, Activation::Tanh),
    ]
}

/// Logistic regression as a user would write it.
pub struct PlainLogistic(pub usize);

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
    pub fn model(&self) -> Vec<f32> {
        Stream(7).numbers(self.objective.dimension(), 0.6)
    }

    pub fn data(&self, storage: Storage, rows: usize, offset: bool) -> Dataset {
        data(storage, rows, self.columns, self.classes, offset)
    }

    pub fn factors(&self, data: &Dataset, rows: &[u32]) -> (Vec<f32>, Vec<Outcome>) {
        let mut factors = vec![f32::NAN; rows.len() * self.objective.factor_len()];
        let mut outcomes = vec![Outcome::default(); rows.len()];
        let (records, mut workspace) = (Records { data, rows }, Workspace::new());
        let (seen, found) = (Some(&mut outcomes[..]), Some(&mut factors[..]));
        self.objective
            .factors(&self.model(), records, seen, found, &mut workspace)
            .unwrap();
        (factors, outcomes)
    }

    pub fn norms(
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

    pub fn distances(
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

    pub fn sum(
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
    pub fn gradients(&self, data: &Dataset, rows: &[u32], factors: &[f32]) -> Vec<Vec<f32>> {
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

pub fn storages() -> [(Storage, bool); 5] {
    [
        (Storage::Dense, false),
        (Storage::Dense, true),
        (Storage::Sparse, false),
        (Storage::Sparse, true),
        (Storage::Materialised, true),
    ]
}

pub fn assert_close(found: &[f32], expected: &[f64], tolerance: f64, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (i, (&found, &expected)) in found.iter().zip(expected).enumerate() {
        let error = (f64::from(found) - expected).abs();
        assert!(
            error <= tolerance * (1.0 + expected.abs()),
            "{what}, {i}: {found} {expected}"
        );
    }
}

pub fn relative(found: f64, expected: f64) -> f64 {
    if found == expected {
        0.0
    } else {
        (found / expected - 1.0).abs()
    }
}
