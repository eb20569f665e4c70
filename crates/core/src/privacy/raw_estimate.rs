//! The raw estimate of a round: contributions of clipped records, summed in floating point or on an
//! integer grid.
//!
//! In floating point a whole batch is summed at once. On a grid ([`super::secure`]) every record is
//! turned into integers by itself, from factors that were computed by themselves, so that no other
//! record of the batch can change them. Integer sums are exact in any order, and each record's
//! integers are checked against its bound, whatever the floating point did before.
//!
//! **Guarantee.** Outside of [`crate::privacy`] the sum can be neither read, printed nor encoded:
//! only [`GaussianMechanism::release`](super::GaussianMechanism::release) turns it into values that
//! can. A [`KeptMean`] can only be saved with the client's own state, which is as private as the
//! records.

use super::secure::Grid;
use crate::linalg::bytes::{append_floats, floats};
use crate::objective::{
    Coordinates, Gradients, Objective, ObjectiveError, Records, Regularizer, Workspace,
};

/// Which of the two sums of an estimate a record enters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Term {
    /// The minibatch sum, divided by `b`.
    Batch,
    /// The sum over all records, divided by `m` (SVRG, SAGA, SAG).
    Reference,
}

/// What records add to a sum: `scale_j (gradient_j - reference_j)` each.
#[derive(Clone, Copy)]
pub struct Contribution<'a> {
    /// The loss, which knows what the factors mean.
    pub objective: &'a dyn Objective,
    /// The records.
    pub records: Records<'a>,
    /// Their clipped gradients.
    pub gradients: Gradients<'a>,
    /// What is subtracted, if anything is.
    pub references: Option<Gradients<'a>>,
    /// One scale per record; 1 where there is none.
    pub scales: Option<&'a [f32]>,
}

impl Contribution<'_> {
    fn scale(&self, record: usize) -> f32 {
        self.scales.map_or(1.0, |scales| scales[record])
    }

    /// Both sides, each with its sign.
    fn sides(&self) -> impl Iterator<Item = (Gradients<'_>, f32)> {
        let references = self.references.map(|references| (references, -1.0));
        std::iter::once((self.gradients, 1.0)).chain(references)
    }

    /// Puts one record's contribution on the grid.
    fn quantize(
        &self,
        record: usize,
        coordinates: Coordinates<'_>,
        grid: &Grid,
        integers: &mut [i64],
        workspace: &mut Workspace,
    ) {
        let len = self.objective.factor_len();
        let alone = Records {
            data: self.records.data,
            rows: &self.records.rows[record..=record],
        };
        let mut values = workspace.take_zeroed(integers.len());
        for (side, sign) in self.sides() {
            let weights = [side.weights[record] * (sign * self.scale(record))];
            let gradients = Gradients {
                factors: &side.factors[record * len..(record + 1) * len],
                weights: &weights,
            };
            self.objective
                .accumulate(alone, gradients, coordinates, &mut values, workspace);
        }
        grid.quantize(&values, integers);
        workspace.put(values);
    }
}

/// The raw estimate under construction; see the module.
pub struct RawEstimate {
    pub(super) sum: Sum,
    /// Divisors of the two terms.
    divisors: [f64; 2],
}

pub(super) enum Sum {
    Float(Vec<f32>),
    Grid { sum: Vec<i64>, grids: TermGrids },
}

/// One grid per term, all with the same step.
#[derive(Clone, Copy, Debug)]
pub(super) struct TermGrids {
    pub(super) batch: Grid,
    /// Estimates with one term have none: it is the minibatch's, or with a memory of 1 SAG's mean.
    pub(super) reference: Option<Grid>,
}

impl TermGrids {
    pub(super) fn of(&self, term: Term) -> &Grid {
        match (term, &self.reference) {
            (Term::Reference, Some(reference)) => reference,
            _ => &self.batch,
        }
    }
}

impl RawEstimate {
    /// An empty floating-point sum on `len` coordinates, with the divisors of the two terms.
    pub(super) fn float(len: usize, divisors: [f64; 2], workspace: &mut Workspace) -> Self {
        Self {
            sum: Sum::Float(workspace.take_zeroed(len)),
            divisors,
        }
    }

    /// An empty sum on the grid. The divisors are part of the grids.
    pub(super) fn grid(len: usize, grids: TermGrids, divisors: [f64; 2]) -> Self {
        Self {
            sum: Sum::Grid {
                sum: vec![0; len],
                grids,
            },
            divisors,
        }
    }

    /// The authors' clipping, which has no integer form: the whole estimate on all coordinates,
    /// regularizer included, is scaled to norm `clip` at most, then restricted to `coordinates`.
    pub(crate) fn clip_whole(
        self,
        clip: f64,
        regularizer: Option<&Regularizer>,
        model: &[f32],
        coordinates: Coordinates<'_>,
        workspace: &mut Workspace,
    ) -> Self {
        let Sum::Float(mut values) = self.sum else {
            return self;
        };
        if let Some(regularizer) = regularizer {
            regularizer.add_gradient(model, Coordinates::All, 1.0, &mut values);
        }
        let squares = values.iter().map(|&value| f64::from(value).powi(2));
        let norm = squares.sum::<f64>().sqrt();
        let scale = if norm > clip {
            (clip / norm) as f32
        } else {
            1.0
        };
        let clipped = match coordinates {
            Coordinates::All => {
                values.iter_mut().for_each(|value| *value *= scale);
                values
            }
            Coordinates::Selected(chosen) => {
                let mut selected = workspace.take(chosen.len());
                for (selected, &index) in selected.iter_mut().zip(chosen) {
                    *selected = scale * values[index as usize];
                }
                workspace.put(values);
                selected
            }
        };
        Self {
            sum: Sum::Float(clipped),
            ..self
        }
    }

    /// Whether records must be computed one by one, so that no other record changes their rounding.
    pub(crate) fn needs_single_records(&self) -> bool {
        matches!(self.sum, Sum::Grid { .. })
    }

    /// Adds the records' contributions, divided by the term's divisor, on `coordinates`.
    pub(crate) fn add(
        &mut self,
        term: Term,
        contribution: Contribution<'_>,
        coordinates: Coordinates<'_>,
        workspace: &mut Workspace,
    ) {
        let Contribution {
            objective, records, ..
        } = contribution;
        match &mut self.sum {
            Sum::Float(sum) => {
                let inverse = (1.0 / self.divisors[term as usize]) as f32;
                for (side, sign) in contribution.sides() {
                    let mut weights = workspace.take(side.weights.len());
                    for (j, (scaled, weight)) in weights.iter_mut().zip(side.weights).enumerate() {
                        *scaled = weight * contribution.scale(j) * (sign * inverse);
                    }
                    let gradients = Gradients {
                        factors: side.factors,
                        weights: &weights,
                    };
                    objective.accumulate(records, gradients, coordinates, sum, workspace);
                    workspace.put(weights);
                }
            }
            Sum::Grid { sum, grids } => {
                let grid = grids.of(term);
                let mut integers = vec![0; sum.len()];
                for record in 0..records.len() {
                    contribution.quantize(record, coordinates, grid, &mut integers, workspace);
                    grid.add(&integers, sum);
                }
            }
        }
    }

    /// Lets `add` add the contributions of a whole batch, each multiplied by the scale that it is
    /// given. `None`, and nothing happens, where records must be computed one by one.
    pub(crate) fn add_whole(
        &mut self,
        term: Term,
        add: impl FnOnce(f32, &mut [f32]) -> Result<(), ObjectiveError>,
    ) -> Option<Result<(), ObjectiveError>> {
        match &mut self.sum {
            Sum::Float(sum) => Some(add((1.0 / self.divisors[term as usize]) as f32, sum)),
            Sum::Grid { .. } => None,
        }
    }

    /// Adds one record's vector to the first term's sum, divided by its divisor. On a grid it is
    /// put there by itself, by way of `integers`; in floating point the caller has bounded it.
    pub(crate) fn add_vector(&mut self, vector: &[f64], integers: &mut Vec<i64>) {
        let divisor = self.divisors[Term::Batch as usize];
        match &mut self.sum {
            Sum::Float(sum) => {
                for (sum, &value) in sum.iter_mut().zip(vector) {
                    *sum += (value / divisor) as f32;
                }
            }
            Sum::Grid { sum, grids } => {
                integers.resize(sum.len(), 0);
                grids.batch.quantize(vector, integers);
                grids.batch.add(integers, sum);
            }
        }
    }

    /// Adds a mean, which is already divided.
    pub(crate) fn add_mean(&mut self, mean: &KeptMean, coordinates: Coordinates<'_>) {
        match (&mut self.sum, &mean.0) {
            (Sum::Float(sum), Mean::Float(mean)) => {
                for_each_coordinate(mean, coordinates, |place, value: f32| sum[place] += value);
            }
            (Sum::Grid { sum, .. }, Mean::Grid(mean)) => {
                for_each_coordinate(mean, coordinates, |place, value: i64| {
                    sum[place] = sum[place].saturating_add(value);
                });
            }
            _ => unreachable!("a client's sums are of one kind for the whole run"),
        }
    }
}

/// `1/m sum_j h_j` on all coordinates, kept between rounds by SVRG, SAGA and SAG.
pub(crate) struct KeptMean(Mean);

enum Mean {
    Float(Vec<f32>),
    Grid(Vec<i64>),
}

impl KeptMean {
    /// Zero, of the kind that goes with `estimate`.
    pub(crate) fn zero(dimension: usize, estimate: &RawEstimate) -> Self {
        Self(match estimate.sum {
            Sum::Float(_) => Mean::Float(vec![0.0; dimension]),
            Sum::Grid { .. } => Mean::Grid(vec![0; dimension]),
        })
    }

    pub(crate) fn reset(&mut self) {
        match &mut self.0 {
            Mean::Float(mean) => mean.fill(0.0),
            Mean::Grid(mean) => mean.fill(0),
        }
    }

    /// Appends the mean to a saved state.
    pub(crate) fn save(&self, state: &mut Vec<u8>) {
        match &self.0 {
            Mean::Float(mean) => append_floats(mean, state),
            Mean::Grid(mean) => state.extend(mean.iter().flat_map(|value| value.to_le_bytes())),
        }
    }

    /// The mean of a saved state.
    pub(crate) fn restore(bytes: &[u8], on_grid: bool) -> Self {
        Self(if on_grid {
            let numbers = bytes.as_chunks::<8>().0.iter();
            Mean::Grid(numbers.map(|&number| i64::from_le_bytes(number)).collect())
        } else {
            Mean::Float(floats(bytes).collect())
        })
    }

    /// Bytes of memory.
    pub(crate) fn bytes(&self) -> usize {
        match &self.0 {
            Mean::Float(mean) => size_of_val(&mean[..]),
            Mean::Grid(mean) => size_of_val(&mean[..]),
        }
    }

    /// Adds (`sign` 1) or subtracts (`sign` -1) the records' `h_j / m`, unscaled. What was added
    /// for a record is subtracted exactly on a grid, up to rounding in floating point.
    pub(crate) fn add(
        &mut self,
        sign: i32,
        contribution: Contribution<'_>,
        estimate: &RawEstimate,
        workspace: &mut Workspace,
    ) {
        let Contribution {
            objective,
            records,
            gradients,
            ..
        } = contribution;
        match (&mut self.0, &estimate.sum) {
            (Mean::Float(mean), _) => {
                let scale = sign as f32 / estimate.divisors[Term::Reference as usize] as f32;
                let mut weights = workspace.take(records.len());
                for (scaled, weight) in weights.iter_mut().zip(gradients.weights) {
                    *scaled = weight * scale;
                }
                let scaled = Gradients {
                    factors: gradients.factors,
                    weights: &weights,
                };
                objective.accumulate(records, scaled, Coordinates::All, mean, workspace);
                workspace.put(weights);
            }
            (Mean::Grid(mean), Sum::Grid { grids, .. }) => {
                let grid = grids.of(Term::Reference);
                let mut integers = vec![0; mean.len()];
                for record in 0..records.len() {
                    let all = Coordinates::All;
                    contribution.quantize(record, all, grid, &mut integers, workspace);
                    grid.add_multiple(&integers, i64::from(sign), mean);
                }
            }
            _ => unreachable!("a client's sums are of one kind for the whole run"),
        }
    }
}

/// Calls `visit` with the place of every coordinate among those wanted, and its value.
fn for_each_coordinate<T: Copy>(
    values: &[T],
    coordinates: Coordinates<'_>,
    mut visit: impl FnMut(usize, T),
) {
    match coordinates {
        Coordinates::All => {
            for (place, &value) in values.iter().enumerate() {
                visit(place, value);
            }
        }
        Coordinates::Selected(chosen) => {
            for (place, &index) in chosen.iter().enumerate() {
                visit(place, values[index as usize]);
            }
        }
    }
}
