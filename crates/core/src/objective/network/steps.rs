//! The first layer's sums over chosen weights for pictures, whose pixels are whole numbers of steps:
//! `sum_j (u n_j + o) e_j = u sum_j n_j e_j + o sum_j e_j`, with the unit `u`, the numbers `n_j` of a
//! pixel in all records, its offset `o` and the records' weighted errors `e_j`.
//!
//! A pixel's column is one byte a record, a quarter of what [`super::columns`] lays out, and the
//! forward pass writes it down while it reads the records anyway. The chosen weights are sorted by
//! output, so that the errors of an output stay near while its columns pass by.
//!
//! **Guarantee.** Whether sums are made here follows from the kind of the source and the number of
//! records alone, and what is stored of them (packed or not, written down by the pass or here) changes
//! no bit. Records that are computed alone, as under secure noise, never come here.

// Loops over lanes read better by number, and the compiler unrolls them.
#![allow(clippy::needless_range_loop)]

use std::ops::Range;

use super::super::{Gradients, Records, Workspace};
use super::columns::Chosen;
use super::{FactorPlace, Network};
use crate::data::packed::{self, Entries, PackedRows, RowSource};
use crate::data::{Features, SparseRows};
use crate::linalg::kernels::{self, LANES};
use crate::linalg::{LINE, aligned, prefetch, vectorised};

/// Fewer records are not worth it.
const FEWEST_RECORDS: usize = 8;

/// The most records that are laid out at once: an odd number of cache lines, because with a power of two
/// all columns would compete for the same few places of the cache.
const MOST_RECORDS: usize = 192;

/// One pixel in all records that are laid out, in steps, zeros beyond them.
type Column = [u8; MOST_RECORDS];

/// Pictures with more pixels than this are no longer near the processor.
const MOST_PIXELS: usize = 2048;

/// Records whose numbers are taken apart at once: a register of words, four numbers in each.
const GROUP: usize = 4 * LANES;

/// Where the number of record `j` stands in a column. Of every 32 the first eight are the lowest bytes
/// of eight words, the next eight the bytes above them: so a shift and a mask give eight neighbours.
#[inline(always)]
pub(super) const fn place(j: usize) -> usize {
    j / GROUP * GROUP + j % LANES * 4 + j % GROUP / LANES
}

/// A batch of pictures.
#[derive(Clone, Copy)]
pub(super) struct Pictures<'a> {
    rows: &'a [u32],
    sparse: &'a SparseRows,
    offset: Option<&'a [f32]>,
    unit: f32,
}

/// Columns that a pass writes down on its way.
pub(super) struct Noted<'a> {
    /// Where it finds the pictures.
    pub(super) rows: PackedRows<'a>,
    columns: Vec<u8>,
}

impl Noted<'_> {
    /// One column per pixel, with the numbers of the records at their [`place`]s.
    pub(super) fn columns(&mut self) -> &mut [Column] {
        self.columns.as_chunks_mut().0
    }
}

impl<'a> Pictures<'a> {
    /// The records, if they are pictures and enough of them.
    pub(super) fn of(records: Records<'a>) -> Option<Self> {
        let Features::Sparse(sparse) = records.data.features() else {
            return None;
        };
        let pictures = Pictures {
            rows: records.rows,
            sparse,
            offset: records.data.offset().map(|offset| &offset[..]),
            unit: sparse.unit()?,
        };
        let fit = records.len() >= FEWEST_RECORDS && sparse.columns() <= MOST_PIXELS;
        fit.then_some(pictures)
    }

    /// How much of a column there is to read.
    fn width(self) -> usize {
        self.rows.len().next_multiple_of(GROUP)
    }

    /// Within a phase an address stands for what lies there.
    fn address(self) -> usize {
        std::ptr::from_ref(self.sparse).addr()
    }

    /// A place where a pass can write down columns; none if that is not worth it or has been done.
    pub(super) fn note(self, workspace: &mut Workspace) -> Option<Noted<'a>> {
        let rows = self.sparse.packed()?;
        if workspace.phase() == 0 || self.rows.len() > MOST_RECORDS {
            return None;
        }
        let (columns, known) = workspace.take_layout(self.address(), self.rows);
        if known {
            workspace.put_layout(self.address(), self.rows, columns);
            return None;
        }
        Some(Noted {
            rows,
            columns: self.blank(columns),
        })
    }

    /// Keeps what a pass wrote down.
    pub(super) fn keep(self, noted: Noted<'_>, workspace: &mut Workspace) {
        workspace.put_layout(self.address(), self.rows, noted.columns);
    }

    /// Columns of zeros.
    fn blank(self, mut buffer: Vec<u8>) -> Vec<u8> {
        buffer.clear();
        buffer.resize(self.sparse.columns() * MOST_RECORDS, 0);
        buffer
    }

    /// The columns of records that no pass wrote down.
    fn lay_out(self, buffer: Vec<u8>) -> Vec<u8> {
        let mut buffer = self.blank(buffer);
        let (columns, _) = buffer.as_chunks_mut::<MOST_RECORDS>();
        for (j, &row) in self.rows.iter().enumerate() {
            for (pixel, value) in self.sparse.row(row as usize).entries(0) {
                columns[pixel as usize][place(j)] = packed::steps(value, self.unit);
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
        let mut ends = workspace.take_indices(outputs);
        let mut order = workspace.take_indices(2 * chosen.weights().len());
        let (sorted, _) = order.as_chunks_mut::<2>();
        sort_by_output(chosen.weights(), &mut ends, sorted);
        let mut totals = workspace.take_zeroed(outputs);
        let most = ends.iter().zip([0].iter().chain(&ends)).map(|(end, start)| end - start);
        let mut partial_buffer = workspace.take(LANES * most.max().unwrap_or(0) as usize + LINE);
        let (partial, _) = aligned(&mut partial_buffer).as_chunks_mut();
        let (weights, biases) = sum[chosen.places.clone()].split_at_mut(sorted.len());
        for (c, rows) in self.rows.chunks(MOST_RECORDS).enumerate() {
            let part = Pictures { rows, ..self };
            let (columns, known) = workspace.take_layout(part.address(), rows);
            let columns = if known { columns } else { part.lay_out(columns) };
            let width = part.width();
            let mut errors_buffer = workspace.take(outputs * (width + LINE) + LINE);
            let errors = aligned(&mut errors_buffer);
            let first = c * MOST_RECORDS;
            part.lay_out_errors(network.factor_len, &network.places[0], gradients, first, errors);
            let products = Products {
                columns: columns.as_chunks().0,
                width,
                unit: self.unit,
                offset: self.offset,
                sorted,
            };
            vectorised(
                #[inline(always)]
                || {
                    let mut first = 0;
                    let errors = errors.chunks_exact(width + LINE);
                    for ((&end, total), errors) in ends.iter().zip(&mut totals).zip(errors) {
                        let errors = &errors[..width];
                        let added = kernels::sum(errors);
                        products.of_output(first..end as usize, errors, partial);
                        products.add(first..end as usize, partial, added, weights);
                        *total += added;
                        first = end as usize;
                    }
                },
            );
            workspace.put(errors_buffer);
            workspace.put_layout(part.address(), rows, columns);
        }
        for (sum, &output) in biases.iter_mut().zip(chosen.biases()) {
            *sum += totals[output as usize];
        }
        workspace.put(partial_buffer);
        workspace.put(totals);
        workspace.put_indices(order);
        workspace.put_indices(ends);
    }

    /// The weighted errors `w_j delta_j` of the records, the first of which has the number `first` among
    /// the gradients: for every output those of all records and zeros up to the width of a column, then a
    /// gap.
    fn lay_out_errors(
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

/// Sorts `(input, output)` by output: `(input, place)`, and where every output ends.
fn sort_by_output(weights: &[[u32; 2]], ends: &mut [u32], sorted: &mut [[u32; 2]]) {
    ends.fill(0);
    for &[_, output] in weights {
        ends[output as usize] += 1;
    }
    let mut next = 0;
    for end in ends.iter_mut() {
        let count = std::mem::replace(end, next);
        next += count;
    }
    for (slot, &[input, output]) in weights.iter().enumerate() {
        let end = &mut ends[output as usize];
        sorted[*end as usize] = [input, slot as u32];
        *end += 1;
    }
}

/// What the sums of one output are made of, apart from its errors.
#[derive(Clone, Copy)]
struct Products<'a> {
    columns: &'a [Column],
    width: usize,
    unit: f32,
    offset: Option<&'a [f32]>,
    sorted: &'a [[u32; 2]],
}

impl<'a> Products<'a> {
    /// `sum_j n_j e_j` in eight parts for the chosen weights of one output, at these places of the order.
    #[inline(always)]
    fn of_output(self, places: Range<usize>, errors: &[f32], partial: &mut [[f32; LANES]]) {
        /// How many weights ahead a column is asked for.
        const AHEAD: usize = 8;
        let (errors, _) = errors.as_chunks::<GROUP>();
        for (at, target) in places.zip(partial) {
            if let Some(&[pixel, _]) = self.sorted.get(at + AHEAD) {
                prefetch(self.column(pixel));
            }
            let mut sums = [[0.0f32; LANES]; 2];
            let (numbers, _) = self.column(self.sorted[at][0]).as_chunks::<GROUP>();
            for (numbers, errors) in numbers.iter().zip(errors) {
                let (words, _) = numbers.as_chunks::<4>();
                for byte in 0..4 {
                    for lane in 0..LANES {
                        let word = u32::from_le_bytes(words[lane]);
                        // Through a signed number: there is an instruction for it.
                        let number = (word >> (8 * byte) & 0xff) as i32 as f32;
                        let sum = &mut sums[byte % 2][lane];
                        *sum = number.mul_add(errors[byte * LANES + lane], *sum);
                    }
                }
            }
            for lane in 0..LANES {
                target[lane] = sums[0][lane] + sums[1][lane];
            }
        }
    }

    #[inline(always)]
    fn column(self, pixel: u32) -> &'a [u8] {
        &self.columns[pixel as usize][..self.width]
    }

    /// Adds `u sum_j n_j e_j + o sum_j e_j`, the first sum in parts, the second one given, to the sums of the chosen
    /// weights at these places of the order.
    #[inline(always)]
    fn add(self, places: Range<usize>, partial: &[[f32; LANES]], total: f32, sums: &mut [f32]) {
        for (&[pixel, slot], &partial) in self.sorted[places].iter().zip(partial) {
            let shift = self.offset.map_or(0.0, |offset| offset[pixel as usize]);
            sums[slot as usize] += self.unit.mul_add(kernels::sum_lanes(partial), shift * total);
        }
    }
}
