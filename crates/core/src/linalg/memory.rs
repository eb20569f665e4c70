//! Cache lines, prefetching and large pages.
//!
//! **Guarantee.** No result depends on any of it, only time: the functions here say where memory is
//! wanted, and a processor or system that does not understand them ignores them.
#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64 as x86;

/// Bytes of a cache line.
pub(crate) const LINE_BYTES: usize = 64;

/// Numbers per cache line.
pub(crate) const LINE: usize = LINE_BYTES / size_of::<f32>();

/// The part of a buffer from its first whole cache line on: the buffer must be [`LINE`] numbers
/// longer than needed. Vectors that cross from one line into the next cost twice.
pub(crate) fn aligned(buffer: &mut [f32]) -> &mut [f32] {
    let skip = buffer.as_ptr().align_offset(LINE_BYTES).min(LINE);
    &mut buffer[skip..]
}

/// Asks the processor to bring these values into its cache.
///
/// Rows of a random batch lie anywhere in memory, and the first access to each would wait for it.
#[inline(always)]
pub(crate) fn prefetch<T>(values: &[T]) {
    #[cfg(target_arch = "x86_64")]
    {
        let start = values.as_ptr().cast::<i8>();
        for offset in (0..size_of_val(values)).step_by(LINE_BYTES) {
            // SAFETY: the address lies inside the slice, and a prefetch reads nothing.
            unsafe { x86::_mm_prefetch::<{ x86::_MM_HINT_T0 }>(start.add(offset)) };
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = values;
}

/// Asks for these values in order to write to them: another core may have read them last, and the
/// first write would wait until that core has given up its copy.
#[inline(always)]
pub(crate) fn prefetch_to_write<T>(values: &[T]) {
    #[cfg(target_arch = "x86_64")]
    {
        let start = values.as_ptr().cast::<u8>();
        for offset in (0..size_of_val(values)).step_by(LINE_BYTES) {
            // SAFETY: the address lies inside the slice, and a prefetch neither reads nor writes
            // for the program; processors without this instruction ignore it. The intrinsic would
            // be compiled to a prefetch for reading, because not all processors have this one.
            unsafe {
                let address = start.add(offset);
                std::arch::asm!(
                    "prefetchw [{}]",
                    in(reg) address,
                    options(nostack, preserves_flags, readonly)
                );
            }
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = values;
}

/// Asks for the values at these places.
pub(crate) fn prefetch_places<T>(values: &[T], places: &[u32]) {
    for &place in places {
        prefetch(&values[place as usize..=place as usize]);
    }
}

/// An empty buffer for one thread, with room for `len` elements and for 1024 at least: a small
/// buffer could share a cache line with what other threads write.
pub(crate) fn thread_buffer<Element>(len: usize) -> Vec<Element> {
    const LEAST: usize = 1024;
    Vec::with_capacity(len.max(LEAST))
}

/// An empty vector with room for `len` values that will be read at random: on pages of two
/// megabytes, where the system has them. With small pages nearly every row of a large set would
/// cost a walk through the page tables.
pub(crate) fn with_room_on_large_pages<T>(len: usize) -> Vec<T> {
    const LARGE: usize = 2 << 20;
    let bytes = len.saturating_mul(size_of::<T>());
    if bytes < LARGE / 2 {
        return Vec::with_capacity(len);
    }
    // Whole pages, with room for what the allocator keeps for itself.
    let whole = bytes.saturating_add(64).next_multiple_of(LARGE) - 64;
    let vector = Vec::with_capacity(whole / size_of::<T>());
    advise_large_pages(vector.as_ptr(), vector.capacity());
    vector
}

fn advise_large_pages<T>(start: *const T, len: usize) {
    #[cfg(target_os = "linux")]
    {
        use rustix::mm::{Advice, madvise};
        const PAGE: usize = 4096;
        let before = start.addr() % PAGE;
        let page = start.cast::<u8>().wrapping_sub(before).cast_mut();
        let bytes = len * size_of::<T>() + before;
        // SAFETY: the advice changes how pages are backed, never what they hold; where it is
        // refused nothing happens.
        let _ = unsafe { madvise(page.cast(), bytes, Advice::LinuxHugepage) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (start, len);
}
