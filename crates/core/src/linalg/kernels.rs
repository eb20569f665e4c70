//! Loops over vectors, written so that the compiler turns them into vector code. They are
//! `#[inline(always)]`, to be called inside a [`vectorised`](super::vectorised) block.
//!
//! **Guarantee.** Every sum has one order, which does not depend on the instruction set.

// Loops over lanes read better by number, and the compiler unrolls them.
#![allow(clippy::needless_range_loop)]

use super::sparse::SparseVector;

/// Numbers per vector register of AVX2; shorter and longer registers work too.
pub(crate) const LANES: usize = 8;

/// `count` rounded up to whole registers.
pub(crate) const fn padded(count: usize) -> usize {
    count.next_multiple_of(LANES)
}

/// The sum of eight numbers, in pairs.
#[inline(always)]
pub(crate) fn sum_lanes(v: [f32; LANES]) -> f32 {
    let half = [v[0] + v[4], v[1] + v[5], v[2] + v[6], v[3] + v[7]];
    (half[0] + half[2]) + (half[1] + half[3])
}

/// `sum_i left_i right_i` over the shorter length.
#[inline(always)]
pub(crate) fn dot(left: &[f32], right: &[f32]) -> f32 {
    let len = left.len().min(right.len());
    let (left, right) = (&left[..len], &right[..len]);
    let (left_pairs, left_rest) = left.as_chunks::<16>();
    let (right_pairs, right_rest) = right.as_chunks::<16>();
    let mut sums = [[0.0f32; LANES]; 2];
    for (a, b) in left_pairs.iter().zip(right_pairs) {
        for half in 0..2 {
            for lane in 0..LANES {
                let place = half * LANES + lane;
                sums[half][lane] = a[place].mul_add(b[place], sums[half][lane]);
            }
        }
    }
    let mut both = [0.0; LANES];
    for lane in 0..LANES {
        both[lane] = sums[0][lane] + sums[1][lane];
    }
    let mut total = sum_lanes(both);
    for (&a, &b) in left_rest.iter().zip(right_rest) {
        total = a.mul_add(b, total);
    }
    total
}

/// `sum_i values_i^2` in `f64`.
#[inline(always)]
pub(crate) fn squared_norm(values: &[f32]) -> f64 {
    let (chunks, rest) = values.as_chunks::<LANES>();
    let mut sums = [0.0f64; LANES];
    for chunk in chunks {
        for lane in 0..LANES {
            let value = f64::from(chunk[lane]);
            sums[lane] = value.mul_add(value, sums[lane]);
        }
    }
    let mut total = 0.0;
    for &value in rest {
        total = f64::from(value).mul_add(f64::from(value), total);
    }
    for lane in 0..LANES / 2 {
        sums[lane] += sums[lane + LANES / 2];
    }
    total + ((sums[0] + sums[2]) + (sums[1] + sums[3]))
}

/// `target += scale * source`.
#[inline(always)]
pub(crate) fn add_scaled(target: &mut [f32], scale: f32, source: &[f32]) {
    for (target, &source) in target.iter_mut().zip(source) {
        *target = scale.mul_add(source, *target);
    }
}

/// A sparse row's product with a dense vector, in four interleaved partial sums.
///
/// Products are rounded before they are added. Where all values of a column are equal, they can
/// therefore be computed beforehand (`data/indicators.rs`) and give the same bits.
#[inline(always)]
pub(crate) fn sparse_dot(row: impl SparseVector, dense: &[f32]) -> f32 {
    let (fours, remaining) = row.fours();
    let mut sums = [0.0f32; 4];
    for four in fours {
        for lane in 0..4 {
            let (index, value) = four[lane];
            sums[lane] += value * dense[index as usize];
        }
    }
    // The last ones go to sums of their own, too: a row that is filled up with zeros has the same
    // product.
    for (sum, (index, value)) in sums.iter_mut().zip(remaining) {
        *sum += value * dense[index as usize];
    }
    (sums[0] + sums[1]) + (sums[2] + sums[3])
}

/// `target[index] += scale * value` for every entry of a row.
#[inline(always)]
pub(crate) fn add_scaled_sparse(target: &mut [f32], scale: f32, row: impl SparseVector) {
    let mut add = |(index, value): (u32, f32)| {
        let slot = &mut target[index as usize];
        *slot = scale.mul_add(value, *slot);
    };
    let (fours, rest) = row.fours();
    for four in fours {
        four.into_iter().for_each(&mut add);
    }
    rest.for_each(add);
}

/// The largest number, ignoring what is not a number. The length is a multiple of eight.
#[inline(always)]
pub(crate) fn maximum(values: &[f32]) -> f32 {
    let larger = |a: f32, b: f32| if a > b { a } else { b };
    let mut lanes = [f32::NEG_INFINITY; LANES];
    for chunk in values.as_chunks::<LANES>().0 {
        for lane in 0..LANES {
            lanes[lane] = larger(chunk[lane], lanes[lane]);
        }
    }
    let mut half = [0.0; 4];
    for lane in 0..4 {
        half[lane] = larger(lanes[lane], lanes[lane + 4]);
    }
    larger(larger(half[0], half[2]), larger(half[1], half[3]))
}

/// The sum in eight interleaved partial sums. The length is a multiple of eight.
#[inline(always)]
pub(crate) fn sum(values: &[f32]) -> f32 {
    let mut sums = [0.0; LANES];
    for chunk in values.as_chunks::<LANES>().0 {
        for lane in 0..LANES {
            sums[lane] += chunk[lane];
        }
    }
    sum_lanes(sums)
}
