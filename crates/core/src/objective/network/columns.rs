//! A block of records seen by columns: for one input of a layer its value in every record, for one
//! output its error in every record.
//!
//! A selected weight `(input, output)` concerns all records of a batch at one place of their
//! gradients. Laid out by columns, the sum over the records is one dot product, and the norms of all
//! records grow by one elementwise product.

use super::super::{Gradients, Records};
use super::{BLOCK, FactorPlace, LayerShape, Network};
use crate::data::{Features, SparseRow};
use crate::linalg::kernels;

/// One number per record of a block; zeros where there are fewer records.
pub(super) type Column = [f32; BLOCK];

/// Columns of a tile are this far apart: an odd number of cache lines, because with a power of two
/// all columns would compete for the same few places of the cache.
const STRIDE: usize = BLOCK + 16;

/// Sparse data of more features than this is searched instead of laid out.
const WIDEST_TILE: usize = 2048;

/// The part of a batch's gradients that belongs to the records of block `b`.
pub(super) fn block<'a>(gradients: Gradients<'a>, len: usize, b: usize) -> Gradients<'a> {
    let first = b * BLOCK;
    let end = gradients.weights.len().min(first + BLOCK);
    Gradients {
        factors: &gradients.factors[first * len..end * len],
        weights: &gradients.weights[first..end],
    }
}

/// How much scratch [`Inputs`] needs.
pub(super) fn tile_len(network: &Network, records: Records<'_>) -> usize {
    let inputs = network.layers[0].inputs;
    match records.data.features() {
        Features::Sparse(_) if inputs <= WIDEST_TILE => inputs * STRIDE,
        _ => 0,
    }
}

/// How much scratch [`Errors`] needs.
pub(super) fn errors_len(network: &Network) -> usize {
    let widest = network.layers.iter().map(|layer| layer.outputs).max();
    widest.unwrap_or(0) * STRIDE
}

/// What came into a layer, by columns.
pub(super) enum Inputs<'a> {
    /// All columns laid out in scratch.
    Tile(&'a [f32]),
    /// Sparse rows, searched.
    Sparse([SparseRow<'a>; BLOCK]),
    /// Dense rows; the ones beyond the batch are zeros.
    Dense([&'a [f32]; BLOCK], usize),
}

impl<'a> Inputs<'a> {
    /// The features of at most [`BLOCK`] records, without the offset.
    pub(super) fn of_data(records: Records<'a>, tile: &'a mut [f32]) -> Self {
        match records.data.features() {
            Features::Dense(dense) => {
                let mut rows = [&[] as &[f32]; BLOCK];
                for (slot, &row) in rows.iter_mut().zip(records.rows) {
                    *slot = dense.row(row as usize);
                }
                Inputs::Dense(rows, records.len())
            }
            Features::Sparse(sparse) if tile.is_empty() => {
                let nothing = SparseRow {
                    indices: &[],
                    values: &[],
                };
                let mut rows = [nothing; BLOCK];
                for (slot, &row) in rows.iter_mut().zip(records.rows) {
                    *slot = sparse.row(row as usize);
                }
                Inputs::Sparse(rows)
            }
            Features::Sparse(sparse) => {
                tile.fill(0.0);
                for (j, &row) in records.rows.iter().enumerate() {
                    let row = sparse.row(row as usize);
                    for (&index, &value) in row.indices.iter().zip(row.values) {
                        tile[index as usize * STRIDE + j] = value;
                    }
                }
                Inputs::Tile(tile)
            }
        }
    }

    /// What came into a layer beyond the first.
    pub(super) fn of_factors(factors: &'a [f32], len: usize, place: &FactorPlace) -> Self {
        let mut rows = [&[] as &[f32]; BLOCK];
        for (slot, factors) in rows.iter_mut().zip(factors.chunks_exact(len)) {
            *slot = &factors[place.input.clone()];
        }
        Inputs::Dense(rows, factors.len() / len)
    }

    /// One input in every record, put together in `room` if it does not lie ready.
    #[inline(always)]
    pub(super) fn column<'b>(&'b self, input: usize, room: &'b mut Room) -> &'b Column {
        if let Inputs::Tile(tile) = self {
            return tile[input * STRIDE..]
                .first_chunk()
                .expect("columns are a whole block");
        }
        if room.input != Some(input) {
            room.input = Some(input);
            self.gather(input, &mut room.column);
        }
        &room.column
    }

    fn gather(&self, input: usize, column: &mut Column) {
        match self {
            Inputs::Tile(_) => unreachable!("columns of a tile lie ready"),
            Inputs::Sparse(rows) => {
                for (slot, row) in column.iter_mut().zip(rows) {
                    *slot = match row.indices.binary_search(&(input as u32)) {
                        Ok(place) => row.values[place],
                        Err(_) => 0.0,
                    };
                }
            }
            Inputs::Dense(rows, count) => {
                for (slot, row) in column.iter_mut().zip(&rows[..*count]) {
                    *slot = row[input];
                }
            }
        }
    }
}

/// Room for one column, and whose it is: chosen weights of one input follow each other.
pub(super) struct Room {
    input: Option<usize>,
    column: Column,
}

impl Room {
    pub(super) fn new() -> Self {
        Room {
            input: None,
            column: [0.0; BLOCK],
        }
    }
}

/// The weighted errors of a layer, by columns.
#[derive(Clone, Copy)]
pub(super) struct Errors<'a>(&'a [f32]);

impl<'a> Errors<'a> {
    /// `w_j delta_j`, or `w_j delta_j - w'_j delta'_j` rounded once, of the records of a block.
    #[inline(always)]
    pub(super) fn new(
        len: usize,
        place: &FactorPlace,
        left: Gradients<'_>,
        right: Option<Gradients<'_>>,
        tile: &'a mut [f32],
    ) -> Self {
        let tile = &mut tile[..place.error.len() * STRIDE];
        tile.fill(0.0);
        for (j, &weight) in left.weights.iter().enumerate() {
            let errors = &left.factors[j * len..][..len][place.error.clone()];
            let lines = tile.chunks_exact_mut(STRIDE).zip(errors);
            match right {
                None => lines.for_each(|(line, &error)| line[j] = weight * error),
                Some(right) => {
                    let others = &right.factors[j * len..][..len][place.error.clone()];
                    let (weight, other_weight) = (f64::from(weight), f64::from(right.weights[j]));
                    for ((line, &error), &other) in lines.zip(others) {
                        let product = other_weight * f64::from(other);
                        line[j] = weight.mul_add(f64::from(error), -product) as f32;
                    }
                }
            }
        }
        // Every column's sum stands in the gap behind it.
        for line in tile.chunks_exact_mut(STRIDE) {
            line[BLOCK] = kernels::sum(&line[..BLOCK]);
        }
        Errors(tile)
    }

    /// One output's errors summed over the records.
    #[inline(always)]
    pub(super) fn total(&self, output: usize) -> f32 {
        self.0[output * STRIDE + BLOCK]
    }

    /// One output's error in every record.
    #[inline(always)]
    pub(super) fn column(&self, output: usize) -> &'a Column {
        self.0[output * STRIDE..]
            .first_chunk()
            .expect("columns are a whole block")
    }
}

/// The chosen coordinates of one layer.
#[derive(Clone, Copy)]
pub(super) struct Chosen<'a> {
    layer: &'a LayerShape,
    /// Position of the first of them among all chosen coordinates.
    position: usize,
    weights: &'a [u32],
    biases: &'a [u32],
}

impl<'a> Chosen<'a> {
    pub(super) fn new(layer: &'a LayerShape, chosen: &'a [u32]) -> Self {
        let before = |end: usize| chosen.partition_point(|&i| (i as usize) < end);
        let (start, middle, end) = (
            before(layer.weights.start),
            before(layer.biases.start),
            before(layer.biases.end),
        );
        Chosen {
            layer,
            position: start,
            weights: &chosen[start..middle],
            biases: &chosen[middle..end],
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.weights.is_empty() && self.biases.is_empty()
    }

    /// Calls `visit(position, input, output)` for every chosen weight, in order.
    #[inline(always)]
    pub(super) fn visit_weights(&self, mut visit: impl FnMut(usize, usize, usize)) {
        let outputs = self.layer.outputs as u32;
        let start = self.layer.weights.start as u32;
        // A product instead of a division: `(weight + 1/2) / outputs` is at least `1/2 / outputs`
        // away from every integer, and the rounding errors of both factors are far below that.
        let inverse = 1.0 / f64::from(outputs);
        for (place, &coordinate) in self.weights.iter().enumerate() {
            let weight = coordinate - start;
            let input = ((f64::from(weight) + 0.5) * inverse) as u32;
            let output = weight - input * outputs;
            visit(self.position + place, input as usize, output as usize);
        }
    }

    /// Calls `visit(position, output)` for every chosen bias.
    #[inline(always)]
    pub(super) fn visit_biases(&self, mut visit: impl FnMut(usize, usize)) {
        let first = self.position + self.weights.len();
        for (place, &coordinate) in self.biases.iter().enumerate() {
            visit(first + place, coordinate as usize - self.layer.biases.start);
        }
    }
}
