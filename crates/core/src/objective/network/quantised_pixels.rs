//! The first layer's sums over chosen weights for images, whose pixels are whole multiples of one
//! unit: `sum_j (u n_j + o) e_j = u sum_j n_j e_j + o sum_j e_j`, with the unit `u`, the integers
//! `n_j` of a pixel in all records, its offset `o` and the records' weighted errors `e_j`.
//!
//! **Cost.** A pixel's column is one byte per record, a quarter of what [`super::columns`] needs,
//! and the forward pass records it while it reads the rows anyway. Where a pixel is zero in all
//! records, only the second term is left.
//!
//! **Guarantee.** Whether sums are computed here depends on the kind of the data source and the
//! number of records alone. How rows are stored (packed or not) and who made the columns (the pass
//! or this module) changes no bit. Records that are computed one by one, as under secure noise, are
//! never computed here.

// Loops over lanes read better by number, and the compiler unrolls them.
#![allow(clippy::needless_range_loop)]

use super::super::{Gradients, Records, Workspace};
use super::columns::Chosen;
use super::{FactorPlace, Network};
use crate::data::packed::{self, PackedRows};
use crate::data::{Features, SparseRows};
use crate::linalg::kernels::{self, LANES};
use crate::linalg::memory::prefetch;
use crate::linalg::sparse::SparseVector;
use crate::linalg::{LINE, aligned, vectorised, vectorised_widely};

/// With fewer records the columns cost more than they save.
const FEWEST_RECORDS: usize = 8;

/// The most records in a column: an odd number of cache lines, because with a power of two all
/// columns would compete for the same few places of the cache.
const MOST_RECORDS: usize = 192;

/// One pixel in all records, as multiples of the unit, then zeros.
type Column = [u8; MOST_RECORDS];

/// The columns of larger images would not stay in the cache.
const MOST_PIXELS: usize = 2048;

/// Records whose numbers are multiplied at once.
const GROUP: usize = 2 * LANES;

const _: () = assert!(
    MOST_RECORDS.is_multiple_of(4 * GROUP),
    "a column is whole groups of those that `Products::nonzero` reads"
);

/// A batch of images with quantised pixels.
#[derive(Clone, Copy)]
pub(super) struct QuantisedPixels<'a> {
    rows: &'a [u32],
    sparse: &'a SparseRows,
    offset: Option<&'a [f32]>,
    unit: f32,
}

/// Columns that a forward pass fills while it reads the rows.
pub(super) struct RecordedColumns<'a> {
    /// Where the pass finds the rows.
    pub(super) rows: PackedRows<'a>,
    columns: Vec<u8>,
}

impl RecordedColumns<'_> {
    /// One column per pixel, with the numbers of the records.
    pub(super) fn columns(&mut self) -> &mut [Column] {
        self.columns.as_chunks_mut().0
    }
}

impl<'a> QuantisedPixels<'a> {
    /// The records, if their pixels are quantised, there are enough of them, and images are small
    /// enough.
    pub(super) fn of(records: Records<'a>) -> Option<Self> {
        let Features::Sparse(sparse) = records.data.features() else {
            return None;
        };
        let pixels = QuantisedPixels {
            rows: records.rows,
            sparse,
            offset: records.data.offset().map(|offset| &offset[..]),
            unit: sparse.unit()?,
        };
        let fit = records.len() >= FEWEST_RECORDS && sparse.columns() <= MOST_PIXELS;
        fit.then_some(pixels)
    }

    /// How much of a column is read.
    fn width(self) -> usize {
        self.rows.len().next_multiple_of(GROUP)
    }

    /// Columns for a pass to fill; none if that would not pay or they are there already.
    pub(super) fn start_recording(self, workspace: &mut Workspace) -> Option<RecordedColumns<'a>> {
        let rows = self.sparse.packed()?;
        if self.rows.len() > MOST_RECORDS {
            return None;
        }
        let (columns, known) = workspace.take_columns(self.sparse.identity(), self.rows);
        if known {
            workspace.put_columns(self.sparse.identity(), self.rows, columns);
            return None;
        }
        Some(RecordedColumns {
            rows,
            columns: self.blank(columns),
        })
    }

    /// Keeps the columns that a pass has filled.
    pub(super) fn finish_recording(self, recorded: RecordedColumns<'_>, workspace: &mut Workspace) {
        workspace.put_columns(self.sparse.identity(), self.rows, recorded.columns);
    }

    /// Columns of zeros.
    fn blank(self, mut buffer: Vec<u8>) -> Vec<u8> {
        buffer.clear();
        buffer.resize(self.sparse.columns() * MOST_RECORDS, 0);
        buffer
    }

    /// The columns of records, where no pass has filled them.
    fn make_columns(self, buffer: Vec<u8>) -> Vec<u8> {
        let mut buffer = self.blank(buffer);
        let (columns, _) = buffer.as_chunks_mut::<MOST_RECORDS>();
        for (j, &row) in self.rows.iter().enumerate() {
            for (pixel, value) in self.sparse.row(row as usize).entries(0) {
                columns[pixel as usize][j] = packed::steps(value, self.unit);
            }
        }
        buffer
    }

    /// Adds the sums over the first layer's chosen coordinates.
    pub(super) fn accumulate(
        self,
        network: &Network,
        gradients: Gradients<'_>,
        chosen: &Chosen,
        sum: &mut [f32],
        workspace: &mut Workspace,
    ) {
        let outputs = network.places[0].error.len();
        let pairs = chosen.weights();
        let mut places = workspace.take_indices(pairs.len());
        let mut totals = workspace.take_zeroed(outputs);
        let (weights, biases) = sum[chosen.places.clone()].split_at_mut(pairs.len());
        for (c, rows) in self.rows.chunks(MOST_RECORDS).enumerate() {
            let part = QuantisedPixels { rows, ..self };
            let (columns, known) = workspace.take_columns(part.sparse.identity(), rows);
            let columns = if known {
                columns
            } else {
                part.make_columns(columns)
            };
            let width = part.width();
            let mut errors_buffer = workspace.take(outputs * (width + LINE) + LINE);
            let errors = aligned(&mut errors_buffer);
            let first = c * MOST_RECORDS;
            part.make_error_columns(
                network.factor_len,
                &network.places[0],
                gradients,
                first,
                errors,
            );
            let products = Products {
                columns: columns.as_chunks().0,
                errors,
                width,
                unit: self.unit,
            };
            vectorised_widely(
                #[inline(always)]
                || {
                    for (output, total) in totals.iter_mut().enumerate() {
                        *total += kernels::sum(products.errors(output));
                    }
                    let nonzero = products.nonzero(pairs, &mut places);
                    products.add(pairs, nonzero, weights);
                },
            );
            workspace.put(errors_buffer);
            workspace.put_columns(part.sparse.identity(), rows, columns);
        }
        if let Some(offset) = self.offset {
            vectorised(
                #[inline(always)]
                || {
                    for (sum, &[pixel, output]) in weights.iter_mut().zip(pairs) {
                        *sum = offset[pixel as usize].mul_add(totals[output as usize], *sum);
                    }
                },
            );
        }
        for (sum, &output) in biases.iter_mut().zip(chosen.biases()) {
            *sum += totals[output as usize];
        }
        workspace.put(totals);
        workspace.put_indices(places);
    }

    /// The weighted errors `w_j delta_j` of the records, the first of which has the number `first`
    /// among the gradients: for every output those of all records and zeros up to the width of a
    /// column, then a gap.
    fn make_error_columns(
        self,
        len: usize,
        place: &FactorPlace,
        gradients: Gradients<'_>,
        first: usize,
        errors: &mut [f32],
    ) {
        let (width, stride) = (self.width(), self.width() + LINE);
        for j in 0..width {
            let columns = errors.chunks_exact_mut(stride);
            if j < self.rows.len() {
                let weight = gradients.weights[first + j];
                let factors = &gradients.factors[(first + j) * len..][..len];
                for (column, error) in columns.zip(&factors[place.error.clone()]) {
                    column[j] = weight * error;
                }
            } else {
                columns.for_each(|column| column[j] = 0.0);
            }
        }
    }
}

/// The two factors of the sums: columns and errors.
#[derive(Clone, Copy)]
struct Products<'a> {
    columns: &'a [Column],
    /// For every output as many numbers as a column is wide, then a gap.
    errors: &'a [f32],
    width: usize,
    unit: f32,
}

impl<'a> Products<'a> {
    #[inline(always)]
    fn column(self, pixel: u32) -> &'a [u8] {
        &self.columns[pixel as usize][..self.width]
    }

    #[inline(always)]
    fn errors(self, output: usize) -> &'a [f32] {
        &self.errors[output * (self.width + LINE)..][..self.width]
    }

    /// Writes the places of those weights whose pixel is not zero in all records.
    #[inline(always)]
    fn nonzero<'b>(self, pairs: &[[u32; 2]], places: &'b mut [u32]) -> &'b [u32] {
        let mut nonzero = [false; MOST_PIXELS];
        for (nonzero, column) in nonzero.iter_mut().zip(self.columns) {
            let mut any = [0; 4 * GROUP];
            for numbers in column[..self.width.next_multiple_of(4 * GROUP)]
                .as_chunks::<{ 4 * GROUP }>()
                .0
            {
                for lane in 0..4 * GROUP {
                    any[lane] |= numbers[lane];
                }
            }
            *nonzero = any != [0; 4 * GROUP];
        }
        let mut count = 0;
        for (place, &[pixel, _]) in pairs.iter().enumerate() {
            places[count] = place as u32;
            count += usize::from(nonzero[pixel as usize]);
        }
        &places[..count]
    }

    /// Adds `u sum_j n_j e_j` for the weights at these places.
    #[inline(always)]
    fn add(self, pairs: &[[u32; 2]], places: &[u32], sums: &mut [f32]) {
        // First the partial sums of a few weights, then their totals: in one loop it would not
        // become vector code.
        const FEW: usize = 32;
        /// How many weights ahead columns are prefetched.
        const AHEAD: usize = 8;
        let mut partial = [[0.0f32; GROUP]; FEW];
        let mut ahead = places.iter().skip(AHEAD);
        for places in places.chunks(FEW) {
            for (partial, &place) in partial.iter_mut().zip(places) {
                if let Some(&place) = ahead.next() {
                    prefetch(self.column(pairs[place as usize][0]));
                }
                let [pixel, output] = pairs[place as usize];
                let numbers = self.column(pixel).as_chunks::<GROUP>().0;
                let errors = self.errors(output as usize).as_chunks::<GROUP>().0;
                let mut parts = [0.0f32; GROUP];
                for (numbers, errors) in numbers.iter().zip(errors) {
                    for lane in 0..GROUP {
                        parts[lane] = f32::from(numbers[lane]).mul_add(errors[lane], parts[lane]);
                    }
                }
                *partial = parts;
            }
            for (partial, &place) in partial.iter().zip(places) {
                let mut halves = [0.0; LANES];
                for lane in 0..LANES {
                    halves[lane] = partial[lane] + partial[lane + LANES];
                }
                let sum = &mut sums[place as usize];
                *sum = self.unit.mul_add(kernels::sum_lanes(halves), *sum);
            }
        }
    }
}
