//! Where clipped records are summed: in floating point, or on an integer grid.
//!
//! In floating point a whole batch is summed at once. On a grid ([`crate::privacy::secure`]) every
//! record is turned into integers alone, from factors that were computed alone, so that nothing
//! about its neighbours in the batch can change them; integer sums are exact in any order, and each
//! record's integers are checked against its bound whatever the floating point did before.

use super::{Factored, RoundInput, Scratch, put_floats, take_floats};
use crate::objective::{Coordinates, Gradients, Objective, Records, Workspace};
use crate::privacy::secure::Grid;

/// Which of the two sums of an estimate a record enters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Term {
    /// The minibatch sum, divided by `b`.
    Batch,
    /// The sum over all records, divided by `m` (SVRG, SAGA).
    Reference,
}

/// The raw estimate under construction. It cannot be printed or encoded; only
/// [`Mechanism::release`](crate::privacy::Mechanism::release) turns it into something that can.
pub struct Collector {
    pub(crate) sum: Sum,
    /// Divisors of the two terms.
    divisors: [f64; 2],
}

pub(crate) enum Sum {
    Float(Vec<f32>),
    Grid { sum: Vec<i64>, grids: Grids },
}

/// One grid per term, all with the same step.
#[derive(Clone, Copy, Debug)]
pub struct Grids {
    /// For [`Term::Batch`].
    pub batch: Grid,
    /// For [`Term::Reference`]; GD and SGD have none.
    pub reference: Option<Grid>,
}

impl Grids {
    fn of(&self, term: Term) -> &Grid {
        match (term, &self.reference) {
            (Term::Reference, Some(reference)) => reference,
            _ => &self.batch,
        }
    }
}

impl Collector {
    /// An empty floating-point sum on `len` coordinates.
    pub fn float(len: usize, batch: f64, records: f64, workspace: &mut Workspace) -> Self {
        Self {
            sum: Sum::Float(workspace.take_zeroed(len)),
            divisors: [batch, records],
        }
    }

    /// An empty sum on the grid. The divisors are part of the grids.
    pub fn grid(len: usize, grids: Grids, batch: f64, records: f64) -> Self {
        Self {
            sum: Sum::Grid {
                sum: vec![0; len],
                grids,
            },
            divisors: [batch, records],
        }
    }

    /// Applies `change` to a floating-point sum (whole-estimate clipping, which has no integer form).
    pub(crate) fn map_float(self, change: impl FnOnce(Vec<f32>) -> Vec<f32>) -> Self {
        match self.sum {
            Sum::Float(values) => Self {
                sum: Sum::Float(change(values)),
                ..self
            },
            Sum::Grid { .. } => self,
        }
    }

    /// Whether records must be computed one by one.
    pub(super) fn alone(&self) -> bool {
        matches!(self.sum, Sum::Grid { .. })
    }

    /// Adds `scale_j (left_j - right_j) / divisor` for every record of the batch, on `coordinates`.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn add(
        &mut self,
        term: Term,
        objective: &dyn Objective,
        records: Records<'_>,
        coordinates: Coordinates<'_>,
        left: &Factored,
        right: Option<&Factored>,
        scales: Option<&[f32]>,
        workspace: &mut Workspace,
    ) {
        let divisor = self.divisors[term as usize];
        match &mut self.sum {
            Sum::Float(sum) => {
                let inverse = (1.0 / divisor) as f32;
                for (side, sign) in [(Some(left), inverse), (right, -inverse)] {
                    let Some(side) = side else { continue };
                    let mut weights = workspace.take(side.weights.len());
                    for (j, (scaled, weight)) in weights.iter_mut().zip(&side.weights).enumerate() {
                        *scaled = weight * scales.map_or(1.0, |scales| scales[j]) * sign;
                    }
                    let gradients = Gradients {
                        factors: &side.factors,
                        weights: &weights,
                    };
                    objective.accumulate(records, gradients, coordinates, sum, workspace);
                    workspace.put(weights);
                }
            }
            Sum::Grid { sum, grids } => {
                let grid = grids.of(term);
                let mut integers = vec![0; sum.len()];
                for j in 0..records.len() {
                    let scale = scales.map_or(1.0, |scales| scales[j]);
                    let record = Records {
                        data: records.data,
                        rows: &records.rows[j..=j],
                    };
                    quantize(
                        objective,
                        record,
                        coordinates,
                        left,
                        right,
                        j,
                        scale,
                        grid,
                        &mut integers,
                        workspace,
                    );
                    grid.add(&integers, sum);
                }
            }
        }
    }

    /// Adds a vector that is already divided: a kept mean.
    pub(super) fn add_mean(&mut self, mean: &Mean, coordinates: Coordinates<'_>) {
        match (&mut self.sum, mean) {
            (Sum::Float(sum), Mean::Float(mean)) => {
                restrict(mean, coordinates, |at, value: f32| sum[at] += value)
            }
            (Sum::Grid { sum, .. }, Mean::Grid(mean)) => {
                restrict(mean, coordinates, |at, value: i64| {
                    sum[at] = sum[at].saturating_add(value)
                });
            }
            _ => unreachable!("a client's sums are of one kind for the whole run"),
        }
    }
}

/// `1/m sum_j h_j` on all coordinates, kept between rounds by SVRG and SAGA.
pub(super) enum Mean {
    Float(Vec<f32>),
    Grid(Vec<i64>),
}

impl Mean {
    /// Zero, of the kind that goes with `collector`.
    pub(super) fn zero(dimension: usize, collector: &Collector) -> Self {
        match collector.sum {
            Sum::Float(_) => Mean::Float(vec![0.0; dimension]),
            Sum::Grid { .. } => Mean::Grid(vec![0; dimension]),
        }
    }

    pub(super) fn reset(&mut self) {
        match self {
            Mean::Float(mean) => mean.fill(0.0),
            Mean::Grid(mean) => mean.fill(0),
        }
    }

    /// Appends the mean to a saved state.
    pub(super) fn save(&self, state: &mut Vec<u8>) {
        match self {
            Mean::Float(mean) => put_floats(mean, state),
            Mean::Grid(mean) => state.extend(mean.iter().flat_map(|value| value.to_le_bytes())),
        }
    }

    /// The mean of a saved state.
    pub(super) fn restore(bytes: &[u8], on_grid: bool) -> Self {
        if on_grid {
            let chunks = bytes.as_chunks::<8>().0;
            Mean::Grid(
                chunks
                    .iter()
                    .map(|&chunk| i64::from_le_bytes(chunk))
                    .collect(),
            )
        } else {
            Mean::Float(take_floats(bytes))
        }
    }

    pub(super) fn bytes(&self) -> usize {
        match self {
            Mean::Float(mean) => 4 * mean.len(),
            Mean::Grid(mean) => 8 * mean.len(),
        }
    }

    /// Adds (`sign` 1) or takes away (`sign` -1) the records' `h_j / m`. What was added for a
    /// record is taken away to the last bit on a grid, up to rounding in floating point.
    pub(super) fn add(
        &mut self,
        sign: i32,
        input: RoundInput<'_>,
        rows: &[u32],
        gradients: &Factored,
        collector: &Collector,
        workspace: &mut Workspace,
    ) {
        let records = Records {
            data: input.data,
            rows,
        };
        match (self, &collector.sum) {
            (Mean::Float(mean), _) => {
                let scale = sign as f32 / collector.divisors[Term::Reference as usize] as f32;
                let mut weights = workspace.take(rows.len());
                weights
                    .iter_mut()
                    .zip(&gradients.weights)
                    .for_each(|(scaled, weight)| *scaled = weight * scale);
                let scaled = Gradients {
                    factors: &gradients.factors,
                    weights: &weights,
                };
                input
                    .objective
                    .accumulate(records, scaled, Coordinates::All, mean, workspace);
                workspace.put(weights);
            }
            (Mean::Grid(mean), Sum::Grid { grids, .. }) => {
                let grid = grids.of(Term::Reference);
                let mut integers = vec![0; mean.len()];
                for j in 0..rows.len() {
                    let record = Records {
                        data: input.data,
                        rows: &rows[j..=j],
                    };
                    let all = Coordinates::All;
                    quantize(
                        input.objective,
                        record,
                        all,
                        gradients,
                        None,
                        j,
                        1.0,
                        grid,
                        &mut integers,
                        workspace,
                    );
                    grid.add_multiple(&integers, i64::from(sign), mean);
                }
            }
            _ => unreachable!("a client's sums are of one kind for the whole run"),
        }
    }
}

/// Puts one record's `scale (left_j - right_j)` on the grid.
#[allow(clippy::too_many_arguments)]
fn quantize(
    objective: &dyn Objective,
    record: Records<'_>,
    coordinates: Coordinates<'_>,
    left: &Factored,
    right: Option<&Factored>,
    j: usize,
    scale: f32,
    grid: &Grid,
    integers: &mut [i64],
    workspace: &mut Workspace,
) {
    let mut values = workspace.take_zeroed(integers.len());
    for (side, sign) in [(Some(left), scale), (right, -scale)] {
        let Some(side) = side else { continue };
        let len = objective.factor_len();
        let weights = [side.weights[j] * sign];
        let gradients = Gradients {
            factors: &side.factors[j * len..(j + 1) * len],
            weights: &weights,
        };
        objective.accumulate(record, gradients, coordinates, &mut values, workspace);
    }
    grid.quantize(&values, integers);
    workspace.put(values);
}

fn restrict<T: Copy>(values: &[T], coordinates: Coordinates<'_>, mut visit: impl FnMut(usize, T)) {
    match coordinates {
        Coordinates::All => values
            .iter()
            .enumerate()
            .for_each(|(at, &value)| visit(at, value)),
        Coordinates::Selected(chosen) => {
            chosen
                .iter()
                .enumerate()
                .for_each(|(at, &index)| visit(at, values[index as usize]));
        }
    }
}

impl Scratch {
    /// Gives the collector's buffer back after the estimate has been dropped.
    pub fn recycle(&mut self, values: Vec<f32>) {
        self.workspace.put(values);
    }
}
