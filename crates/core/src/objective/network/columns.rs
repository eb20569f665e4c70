//! A block of records seen by columns: for one input of a layer its value in every record, for one
//! output its error in every record.
//!
//! A selected weight `(input, output)` concerns all records of a batch at one place of their
//! gradients. Laid out by columns, the sum over the records is one dot product, and the norms of
//! all records grow by one elementwise product.

use std::ops::Range;

use super::super::{Gradients, Records, Workspace};
use super::{BLOCK, FactorPlace, LayerShape, Network};
use crate::data::packed::{RowSource, with_rows};
use crate::data::{Features, SparseRow};
use crate::linalg::sparse::SparseVector;
use crate::linalg::{LINE, vectorised_widely};

/// One number per record of a block. Where there are fewer records, errors are zeros and inputs are
/// any numbers.
pub(super) type Column = [f32; BLOCK];

/// Columns in scratch are this far apart: an odd number of cache lines, because with a power of two
/// all columns would compete for the same few places of the cache.
const STRIDE: usize = BLOCK + LINE;

/// Sparse data with more features than this is searched instead of copied into columns.
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

/// How much scratch [`Inputs`] needs, once aligned.
pub(super) fn inputs_len(network: &Network, records: Records<'_>) -> usize {
    let inputs = network.layers[0].inputs;
    match records.data.features() {
        Features::Sparse(_) if inputs <= WIDEST_TILE => inputs * STRIDE,
        _ => 0,
    }
}

/// How much scratch [`Tile::of_errors`] needs, once aligned.
pub(super) fn errors_len(network: &Network) -> usize {
    let widest = network.layers.iter().map(|layer| layer.outputs).max();
    widest.unwrap_or(0) * STRIDE
}

/// Columns laid out in scratch.
#[derive(Clone, Copy)]
pub(super) struct Tile<'a>(&'a [[f32; STRIDE]]);

impl<'a> Tile<'a> {
    #[inline(always)]
    pub(super) fn column(&self, column: usize) -> &'a Column {
        self.0[column]
            .first_chunk()
            .expect("a column is shorter than its stride")
    }

    /// The weighted errors of a layer, `w_j delta_j`, of the records of a block.
    pub(super) fn of_errors(
        len: usize,
        place: &FactorPlace,
        gradients: Gradients<'_>,
        scratch: &'a mut [f32],
    ) -> Self {
        let (columns, _) = scratch[..place.error.len() * STRIDE].as_chunks_mut::<STRIDE>();
        if gradients.weights.len() < BLOCK {
            columns.as_flattened_mut().fill(0.0);
        }
        for (j, &weight) in gradients.weights.iter().enumerate() {
            let errors = &gradients.factors[j * len..][..len][place.error.clone()];
            for (column, &error) in columns.iter_mut().zip(errors) {
                column[j] = weight * error;
            }
        }
        Tile(columns)
    }

    #[inline(always)]
    fn of_sparse(
        sparse: impl RowSource,
        rows: &[u32],
        offset: Option<&[f32]>,
        scratch: &'a mut [f32],
    ) -> Self {
        let (columns, _) = scratch.as_chunks_mut::<STRIDE>();
        for (input, column) in columns.iter_mut().enumerate() {
            column[..BLOCK].fill(offset.map_or(0.0, |offset| offset[input]));
        }
        for (j, &row) in rows.iter().enumerate() {
            if let Some(&next) = rows.get(j + 1) {
                sparse.row(next as usize).prefetch();
            }
            for (index, value) in sparse.row(row as usize).entries(0) {
                // Without an offset a store would do, but the load starts fetching the line early,
                // while a store would wait for it at the end of the queue.
                columns[index as usize][j] += value;
            }
        }
        Tile(columns)
    }
}

/// The inputs of a layer, by columns; on the stack, one at a time.
#[allow(clippy::large_enum_variant)]
pub(super) enum Inputs<'a> {
    /// All columns laid out.
    Tile(Tile<'a>),
    /// Rows, from which columns are gathered.
    Rows(Rows<'a>),
}

/// The rows of a block; on the stack, one at a time.
#[allow(clippy::large_enum_variant)]
pub(super) enum Rows<'a> {
    /// Sparse rows, empty beyond the batch, and their offset.
    Sparse([SparseRow<'a>; BLOCK], Option<&'a [f32]>),
    /// This many dense rows and their offset.
    Dense([&'a [f32]; BLOCK], usize, Option<&'a [f32]>),
}

impl<'a> Inputs<'a> {
    /// The features of at most [`BLOCK`] records, offset included.
    pub(super) fn of_data(records: Records<'a>, scratch: &'a mut [f32]) -> Self {
        let offset = records.data.offset().map(|offset| &offset[..]);
        match records.data.features() {
            Features::Sparse(sparse) if !scratch.is_empty() => Inputs::Tile(vectorised_widely(
                #[inline(always)]
                || {
                    with_rows!(sparse, |rows| Tile::of_sparse(
                        rows,
                        records.rows,
                        offset,
                        scratch
                    ))
                },
            )),
            Features::Sparse(sparse) => {
                Inputs::Rows(Rows::Sparse(sparse.block(records.rows), offset))
            }
            Features::Dense(dense) => {
                let mut rows = [&[] as &[f32]; BLOCK];
                for (slot, &row) in rows.iter_mut().zip(records.rows) {
                    *slot = dense.row(row as usize);
                }
                Inputs::Rows(Rows::Dense(rows, records.len(), offset))
            }
        }
    }

    /// The inputs of a layer after the first.
    pub(super) fn of_factors(factors: &'a [f32], len: usize, place: &FactorPlace) -> Self {
        let mut rows = [&[] as &[f32]; BLOCK];
        for (slot, factors) in rows.iter_mut().zip(factors.chunks_exact(len)) {
            *slot = &factors[place.input.clone()];
        }
        Inputs::Rows(Rows::Dense(rows, factors.len() / len, None))
    }
}

impl Rows<'_> {
    /// One input in every record.
    fn gather(&self, input: usize, column: &mut Column) {
        let shift = |offset: &Option<&[f32]>| offset.map_or(0.0, |offset| offset[input]);
        match self {
            Rows::Sparse(rows, offset) => {
                let shift = shift(offset);
                for (slot, row) in column.iter_mut().zip(rows) {
                    *slot = match row.indices.binary_search(&(input as u32)) {
                        Ok(place) => shift + row.values[place],
                        Err(_) => shift,
                    };
                }
            }
            Rows::Dense(rows, count, offset) => {
                let shift = shift(offset);
                for (slot, row) in column.iter_mut().zip(&rows[..*count]) {
                    *slot = shift + row[input];
                }
            }
        }
    }
}

/// Where columns come from.
pub(super) trait Columns {
    /// One input in every record.
    fn column(&mut self, input: usize) -> &Column;
}

impl Columns for Tile<'_> {
    #[inline(always)]
    fn column(&mut self, input: usize) -> &Column {
        Tile::column(self, input)
    }
}

/// The column that was gathered last: chosen weights of one input follow each other.
pub(super) struct Gathered<'a> {
    rows: &'a Rows<'a>,
    input: Option<usize>,
    column: Column,
}

impl<'a> Gathered<'a> {
    pub(super) fn new(rows: &'a Rows<'a>) -> Self {
        Gathered {
            rows,
            input: None,
            column: [0.0; BLOCK],
        }
    }
}

impl Columns for Gathered<'_> {
    #[inline(always)]
    fn column(&mut self, input: usize) -> &Column {
        if self.input != Some(input) {
            self.input = Some(input);
            self.rows.gather(input, &mut self.column);
        }
        &self.column
    }
}

/// The chosen coordinates of one layer.
pub(super) struct Chosen {
    /// Their places among all chosen coordinates, first the weights.
    pub(super) places: Range<usize>,
    /// Input and output of every chosen weight, one after the other.
    pairs: Vec<u32>,
    /// Outputs of the chosen biases.
    biases: Vec<u32>,
}

impl Chosen {
    /// Those of `layer` among the ascending `chosen`; `None` if there are none.
    pub(super) fn new(
        layer: &LayerShape,
        chosen: &[u32],
        workspace: &mut Workspace,
    ) -> Option<Self> {
        let before = |end: usize| chosen.partition_point(|&i| (i as usize) < end);
        let (start, middle, end) = (
            before(layer.weights.start),
            before(layer.biases.start),
            before(layer.biases.end),
        );
        if start == end {
            return None;
        }
        let mut pairs = workspace.take_indices(2 * (middle - start));
        let (first, outputs) = (layer.weights.start as u32, layer.outputs as u32);
        let (targets, _) = pairs.as_chunks_mut::<2>();
        let weights = chosen[start..middle]
            .iter()
            .map(|coordinate| coordinate - first);
        if outputs.is_power_of_two() {
            let digits = outputs.trailing_zeros();
            for (pair, weight) in targets.iter_mut().zip(weights) {
                *pair = [weight >> digits, weight & (outputs - 1)];
            }
        } else {
            // A product instead of a division: `(weight + 1/2) / outputs` is at least
            // `1/2 / outputs` away from every integer, and the rounding errors are far below that.
            let inverse = 1.0 / f64::from(outputs);
            for (pair, weight) in targets.iter_mut().zip(weights) {
                let input = ((f64::from(weight) + 0.5) * inverse) as u32;
                *pair = [input, weight - input * outputs];
            }
        }
        let mut biases = workspace.take_indices(end - middle);
        for (output, &coordinate) in biases.iter_mut().zip(&chosen[middle..end]) {
            *output = coordinate - layer.biases.start as u32;
        }
        Some(Chosen {
            places: start..end,
            pairs,
            biases,
        })
    }

    pub(super) fn put(self, workspace: &mut Workspace) {
        workspace.put_indices(self.biases);
        workspace.put_indices(self.pairs);
    }

    /// Input and output of every chosen weight.
    pub(super) fn weights(&self) -> &[[u32; 2]] {
        self.pairs.as_chunks().0
    }

    /// Outputs of the chosen biases.
    pub(super) fn biases(&self) -> &[u32] {
        &self.biases
    }
}
