//! Weighted sums of gradients, and the guarantee that every form of storage and batch gives the
//! same bits.

use soteriafl_core::data::{Dataset, Features, SparseRows};
use soteriafl_core::objective::{
    Activation, Coordinates, Gradients, Logistic, Outcome, Records, Workspace,
};

use super::cases::{
    Case, Storage, Stream, assert_close, cases, larger_cases, network_case, storages,
};

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

/// Rows with about one in `one_in` of 150 features, before and after they are copied into their
/// other forms.
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
                let (seen, found) = (Some(&mut outcomes[..]), Some(&mut factors[..]));
                case.objective
                    .factors(&model, records, seen, found, &mut workspace)
                    .unwrap();
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
