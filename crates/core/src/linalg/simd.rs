//! Vector instructions: which of them code is compiled for, found out at run time, and a few that
//! no loop is compiled to.
//!
//! **Guarantee.** No result depends on them: what is computed is the same, to the bit, with and
//! without.
#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64 as x86;
use std::sync::OnceLock;

/// Runs `work` compiled for vectors of 256 bits (AVX2 with FMA) if this processor has them; on
/// processors of other families, for the vectors that those have.
///
/// Only what is inlined into it profits: mark the closure and all it calls `#[inline(always)]`.
#[inline(always)]
pub fn vectorised<Output>(work: impl FnOnce() -> Output) -> Output {
    #[cfg(target_arch = "x86_64")]
    {
        match narrow() {
            Some(v3) => v3.vectorize(work),
            None => work(),
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    pulp::Arch::new().dispatch(work)
}

/// Runs `work` compiled for the longest vectors this processor has (AVX-512). It pays for long rows
/// of numbers. Code that reads tables at random becomes slower: it is compiled to gather
/// instructions.
#[inline(always)]
pub fn vectorised_widely<Output>(work: impl FnOnce() -> Output) -> Output {
    #[cfg(target_arch = "x86_64")]
    if let Some(v4) = wide() {
        return v4.vectorize(work);
    }
    vectorised(work)
}

/// Whether [`vectorised_widely`] uses vectors of 512 bits.
pub(crate) fn has_wide_vectors() -> bool {
    #[cfg(target_arch = "x86_64")]
    return wide().is_some();
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Proof that this processor has vectors of 256 bits and what goes with them.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn narrow() -> Option<pulp::x86::V3> {
    static V3: OnceLock<Option<pulp::x86::V3>> = OnceLock::new();
    *V3.get_or_init(pulp::x86::V3::try_new)
}

/// Proof that this processor has vectors of 512 bits.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn wide() -> Option<pulp::x86::V4> {
    static V4: OnceLock<Option<pulp::x86::V4>> = OnceLock::new();
    *V4.get_or_init(pulp::x86::V4::try_new)
}

/// Bytes of a row whose numbers are looked up together.
pub(crate) const LOOKUPS: usize = 16;

/// `sums[j] = constant + sum_i table[row(j)_i]`, where byte `i` (modulo 128) goes to partial sum
/// `i % 4`, and the four are added in pairs.
///
/// Works only on processors that look up sixteen numbers at once, the table being in registers;
/// otherwise `false`, and nothing has changed.
pub(crate) fn sum_lookups<'a>(
    table: &[f32; 128],
    row: impl Fn(usize) -> &'a [u8; LOOKUPS],
    constant: f32,
    sums: &mut [f32],
) -> bool {
    #[cfg(target_arch = "x86_64")]
    if let Some(v4) = wide() {
        v4.vectorize(
            #[inline(always)]
            || {
                let (parts, _) = table.as_chunks::<16>();
                // SAFETY: the token proves that the processor has these instructions; every load is
                // from an array of its size.
                unsafe {
                    let table: [_; 8] = std::array::from_fn(
                        #[inline(always)]
                        |part| x86::_mm512_loadu_ps(parts[part].as_ptr()),
                    );
                    for (j, sum) in sums.iter_mut().enumerate() {
                        let bytes = x86::_mm_loadu_si128(row(j).as_ptr().cast());
                        let places = x86::_mm512_cvtepu8_epi32(bytes);
                        // In each pair of registers the number at the lowest five bits, then the
                        // pair by the next two bits.
                        let pair = |first: usize| {
                            x86::_mm512_permutex2var_ps(table[first], places, table[first + 1])
                        };
                        let bit =
                            |bit| x86::_mm512_test_epi32_mask(places, x86::_mm512_set1_epi32(bit));
                        let lower = x86::_mm512_mask_blend_ps(bit(32), pair(0), pair(2));
                        let upper = x86::_mm512_mask_blend_ps(bit(32), pair(4), pair(6));
                        let found = x86::_mm512_mask_blend_ps(bit(64), lower, upper);
                        let mut four = x86::_mm512_castps512_ps128(found);
                        four = x86::_mm_add_ps(four, x86::_mm512_extractf32x4_ps::<1>(found));
                        four = x86::_mm_add_ps(four, x86::_mm512_extractf32x4_ps::<2>(found));
                        four = x86::_mm_add_ps(four, x86::_mm512_extractf32x4_ps::<3>(found));
                        let pairs = x86::_mm_add_ps(four, x86::_mm_movehdup_ps(four));
                        let all = x86::_mm_add_ss(pairs, x86::_mm_movehl_ps(pairs, pairs));
                        *sum = constant + x86::_mm_cvtss_f32(all);
                    }
                }
            },
        );
        return true;
    }
    let _ = (table, row, constant, sums);
    false
}

/// Picks bits out of words (the instruction `pext`).
#[derive(Clone, Copy)]
pub(crate) struct BitPicker {
    #[cfg(target_arch = "x86_64")]
    v3: Option<pulp::x86::V3>,
}

impl BitPicker {
    /// For use inside a [`vectorised`] block, where picking is one instruction.
    #[inline(always)]
    pub(crate) fn new() -> Self {
        BitPicker {
            #[cfg(target_arch = "x86_64")]
            v3: narrow(),
        }
    }

    /// The bits of `word` at the places of the bits of `mask`, next to each other from the lowest
    /// on.
    #[inline(always)]
    pub(crate) fn pick(self, word: u64, mask: u64) -> u64 {
        #[cfg(target_arch = "x86_64")]
        if self.v3.is_some() {
            // SAFETY: the token proves that the processor has this instruction.
            return unsafe { x86::_pext_u64(word, mask) };
        }
        pick_one_by_one(word, mask)
    }
}

fn pick_one_by_one(word: u64, mut mask: u64) -> u64 {
    let mut picked = 0;
    for place in 0..mask.count_ones() {
        picked |= (word >> mask.trailing_zeros() & 1) << place;
        mask &= mask - 1;
    }
    picked
}

/// The results of plain code, of vectors of 256 bits and of the longest ones.
#[cfg(test)]
pub(crate) fn three_ways<Output>(work: impl Fn() -> Output + Copy) -> [Output; 3] {
    [work(), vectorised(work), vectorised_widely(work)]
}

#[cfg(test)]
mod tests {
    use super::super::{kernels, packed_matrix};
    use super::*;

    /// The compiler neither reorders sums nor fuses a product and a sum that the source does not.
    #[test]
    fn instruction_sets_change_no_bit() {
        let numbers = |count: usize, seed: f32| -> Vec<f32> {
            let number = |i: usize| (seed * (i * i + 1) as f32).sin();
            (0..count).map(number).collect()
        };
        for len in [0, 1, 7, 8, 16, 33, 129, 1000] {
            let (left, right) = (numbers(len, 0.37), numbers(len, 0.91));
            let [plain, vectors @ ..] = three_ways(
                #[inline(always)]
                || kernels::dot(&left, &right).to_bits(),
            );
            assert_eq!(vectors, [plain; 2]);
            let [plain, vectors @ ..] = three_ways(
                #[inline(always)]
                || kernels::squared_norm(&left).to_bits(),
            );
            assert_eq!(vectors, [plain; 2]);
        }
        for (count, inputs, columns, widest) in [(1, 3, 8, 16), (9, 41, 120, 64), (7, 50, 24, 16)] {
            let rows = numbers(count * inputs, 0.53);
            let (matrix, start) = (numbers(inputs * columns, 0.29), numbers(columns, 0.71));
            let row = |j: usize| &rows[j * inputs..][..inputs];
            let products = three_ways(
                #[inline(always)]
                || {
                    let mut targets = vec![f32::NAN; count * columns];
                    packed_matrix::rows_times_matrix(
                        count,
                        row,
                        &matrix,
                        widest,
                        &start,
                        &mut targets,
                    );
                    targets.into_iter().map(f32::to_bits).collect::<Vec<_>>()
                },
            );
            assert!(products.iter().all(|product| *product == products[0]));
        }
    }

    #[test]
    fn bits_are_picked_in_order() {
        for i in 1..200u64 {
            let [word, mask] =
                [i, i + 1].map(|i| i.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(i as u32));
            let picked = BitPicker::new().pick(word, mask);
            assert_eq!(picked, pick_one_by_one(word, mask));
            let marked = (0..64).filter(|place| mask >> place & 1 == 1);
            for (i, place) in marked.enumerate() {
                assert_eq!(picked >> i & 1, word >> place & 1);
            }
            assert_eq!(picked.checked_shr(mask.count_ones()).unwrap_or(0), 0);
        }
        assert_eq!(BitPicker::new().pick(0b1011, u64::MAX), 0b1011);
        assert_eq!(BitPicker::new().pick(u64::MAX, 0), 0);
    }

    /// Where there are instructions for it, sums are those of the loop, to the bit.
    #[test]
    fn looked_up_numbers_are_added_in_the_stated_order() {
        let table: [f32; 128] =
            std::array::from_fn(|i| (i as f32).sin() * 1e3f32.powi(i as i32 % 3));
        let rows: Vec<[u8; LOOKUPS]> = (0..100u32)
            .map(|j| std::array::from_fn(|i| (j * 37 + i as u32 * 101 + j * j * i as u32) as u8))
            .collect();
        let mut sums = vec![0.5; rows.len()];
        if !sum_lookups(&table, |j| &rows[j], 0.25, &mut sums) {
            assert!(!has_wide_vectors() && sums == vec![0.5; rows.len()]);
            return;
        }
        for (row, &sum) in rows.iter().zip(&sums) {
            let mut parts = [0.0f32; 4];
            for (i, &byte) in row.iter().enumerate() {
                parts[i % 4] += table[usize::from(byte) % 128];
            }
            let expected = 0.25 + ((parts[0] + parts[1]) + (parts[2] + parts[3]));
            assert_eq!(sum.to_bits(), expected.to_bits());
        }
    }
}
