//! Sums over chosen weights of pictures, whose pixels are whole numbers of steps: close to the sums
//! over all weights, and the same to the bit however the pixels were kept and whoever laid them
//! out.

use soteriafl_core::data::{Constants, Dataset, Features, Scaling, SparseRows};
use soteriafl_core::objective::{
    Activation, Coordinates, Gradients, Network, Objective, Records, Workspace,
};

const SIDE: usize = 12;
const PIXELS: usize = SIDE * SIDE;
const PICTURES: usize = 800;
const HIDDEN: usize = 24;
const CLASSES: usize = 3;

/// A fixed stream of bytes.
struct Bytes(u32);

impl Bytes {
    fn next(&mut self) -> u8 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (self.0 >> 24) as u8
    }
}

/// Pictures as the reader of images makes them: about a quarter of the pixels lit, every seventh of
/// them dark in all.
fn pictures() -> Dataset {
    let mut bytes = Bytes(1);
    let (mut starts, mut columns, mut values) = (vec![0], Vec::new(), Vec::new());
    for _ in 0..PICTURES {
        for pixel in 0..PIXELS {
            let (coin, value) = (bytes.next(), bytes.next());
            let dark = pixel.is_multiple_of(7) || coin % 4 > 0;
            if !dark && value > 0 {
                columns.push(pixel as u32);
                values.push(f32::from(value) / 255.0);
            }
        }
        starts.push(values.len());
    }
    assert!(values.len() > 20_000, "too few for the packed form");
    let rows = SparseRows::new(PIXELS, starts, columns, values)
        .and_then(|rows| rows.with_unit(1.0 / 255.0))
        .unwrap();
    let labels = (0..PICTURES).map(|row| (row % CLASSES) as u32).collect();
    Dataset::new(Features::Sparse(rows), labels, CLASSES).unwrap()
}

/// Factors of a batch, and the sum over some coordinates with the memory that the forward pass left
/// behind.
fn factors_and_sum(
    network: &Network,
    records: Records<'_>,
    weights: &[f32],
    coordinates: Coordinates<'_>,
    workspace: &mut Workspace,
) -> (Vec<f32>, Vec<f32>) {
    let model: Vec<f32> = (0..network.dimension())
        .map(|i| 0.3 * (i as f32 * 0.7).sin())
        .collect();
    let mut factors = vec![0.0; records.len() * network.factor_len()];
    network
        .factors(&model, records, None, Some(&mut factors), workspace)
        .unwrap();
    let sum = sum_of(network, records, weights, &factors, coordinates, workspace);
    (factors, sum)
}

fn sum_of(
    network: &Network,
    records: Records<'_>,
    weights: &[f32],
    factors: &[f32],
    coordinates: Coordinates<'_>,
    workspace: &mut Workspace,
) -> Vec<f32> {
    let mut sum = vec![0.0; coordinates.count(network.dimension())];
    let gradients = Gradients { factors, weights };
    network.accumulate(records, gradients, coordinates, &mut sum, workspace);
    sum
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn sums_over_chosen_weights_of_pictures() {
    let network = Network::new(PIXELS, &[HIDDEN], CLASSES, Activation::Sigmoid).unwrap();
    let loaded = pictures();
    let (center, factor) = (Constants::Same(0.1307), Constants::Same(1.0 / 0.3081));
    let scaling = Scaling::constants(center, factor).unwrap();
    for data in [loaded.clone(), scaling.apply(loaded).unwrap()] {
        // Parts keep their rows in packed form, too; the whole does not.
        let all: Vec<u32> = (0..PICTURES as u32).collect();
        let packed = data.select(&all);
        for count in [1, 7, 8, 31, 33, 128, 192, 193, 399] {
            let rows: Vec<u32> = (0..count).map(|j| j * 37 % PICTURES as u32).collect();
            let weights: Vec<f32> = (0..count).map(|j| (j as f32).cos()).collect();
            for one_in in [1, 3, 20, 500] {
                let chosen: Vec<u32> = (0..network.dimension() as u32)
                    .filter(|i| i * 7 % one_in == 0)
                    .collect();
                let coordinates = Coordinates::Selected(&chosen);
                let mut workspace = Workspace::new();
                let records = Records {
                    data: &packed,
                    rows: &rows,
                };
                let (factors, noted) =
                    factors_and_sum(&network, records, &weights, coordinates, &mut workspace);
                let again = sum_of(
                    &network,
                    records,
                    &weights,
                    &factors,
                    coordinates,
                    &mut workspace,
                );
                assert_eq!(bits(&noted), bits(&again));
                // Another batch in between leaves nothing behind.
                let other = Records {
                    data: &packed,
                    rows: &all[..count as usize],
                };
                factors_and_sum(&network, other, &weights, coordinates, &mut workspace);
                for (records, phase) in [
                    (records, 0),
                    (records, 1),
                    (
                        Records {
                            data: &data,
                            rows: &rows,
                        },
                        0,
                    ),
                    (
                        Records {
                            data: &data,
                            rows: &rows,
                        },
                        2,
                    ),
                ] {
                    workspace.begin_phase(phase);
                    let (same, sum) =
                        factors_and_sum(&network, records, &weights, coordinates, &mut workspace);
                    assert_eq!(bits(&same), bits(&factors));
                    assert_eq!(bits(&sum), bits(&noted), "{count} {one_in} {phase}");
                }
                let all = Coordinates::All;
                let whole = sum_of(&network, records, &weights, &factors, all, &mut workspace);
                for (&index, &found) in chosen.iter().zip(&noted) {
                    let expected = whole[index as usize];
                    let error = (found - expected).abs();
                    assert!(error < 3e-5 * (1.0 + expected.abs()), "{found} {expected}");
                }
            }
        }
    }
}

/// Data that lie where others lay before are other data, also within a phase, and so are networks.
#[test]
fn what_was_laid_out_belongs_to_its_data() {
    let all = pictures();
    let rows: Vec<u32> = (0..100).collect();
    let weights = vec![1.0; rows.len()];
    let mut workspace = Workspace::new();
    workspace.begin_phase(1);
    for part in 0..4 {
        let chosen: Vec<u32> = (0..600u32)
            .map(|j| (j * 7 + part * 150) % PICTURES as u32)
            .collect();
        let data = all.select(&chosen);
        let network = Network::new(PIXELS, &[HIDDEN], CLASSES, Activation::Sigmoid).unwrap();
        let records = Records {
            data: &data,
            rows: &rows,
        };
        let chosen: Vec<u32> = (0..network.dimension() as u32).step_by(3).collect();
        let coordinates = Coordinates::Selected(&chosen);
        let found = factors_and_sum(&network, records, &weights, coordinates, &mut workspace);
        let mut fresh = Workspace::new();
        let expected = factors_and_sum(&network, records, &weights, coordinates, &mut fresh);
        assert_eq!(bits(&found.1), bits(&expected.1), "part {part}");
        assert_eq!(bits(&found.0), bits(&expected.0), "part {part}");
    }
}
