//! The messages of a block of clients, on their way from the thread that computed them to all
//! threads that read them.
//!
//! Written and read as atomic words, which cost no more than plain ones and need no lock: a lock is
//! one more cache line that moves between cores, at a hundred nanoseconds each. The barrier between
//! writing and reading puts them in order. A message begins on a cache line of its own; two numbers
//! share a word, so a message of six values is one line.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::compress::{Compressor, Update};
use crate::linalg::memory::{LINE_BYTES, prefetch, prefetch_to_write};
use crate::objective::Coordinates;

/// Words per cache line.
const LINE: usize = LINE_BYTES / size_of::<u64>();

/// Room for one message of every client of a block.
pub(super) struct Mailbox {
    words: Box<[AtomicU64]>,
    /// Where the first whole cache line begins.
    start: usize,
    /// Words from one message to the next.
    stride: usize,
}

/// One client's message, as it is read.
#[derive(Clone, Copy)]
pub(super) struct Received<'a> {
    /// Its length on the wire.
    pub(super) bytes: usize,
    /// Its values; none if the client skips the round.
    pub(super) update: Option<ReceivedUpdate<'a>>,
}

/// The values of a message and their coordinates.
#[derive(Clone, Copy)]
pub(super) struct ReceivedUpdate<'a> {
    words: &'a [AtomicU64],
    /// How many values there are.
    pub(super) count: usize,
    /// Whether they are on all coordinates.
    all: bool,
}

/// The kind of a message, in the two lowest bits of its second word; the other bits are the number
/// of values.
const ABSENT: u64 = 0;
const SELECTED: u64 = 1;
const ALL: u64 = 2;

impl Mailbox {
    /// Room for the messages of `count` clients with this compressor.
    pub(super) fn new(count: usize, compressor: &Compressor) -> Self {
        let words = match compressor.fraction() {
            Some(_) => compressor.values(),
            None => compressor.values().div_ceil(2),
        };
        // Four lines at least: processors also fetch neighbouring lines, and those belong to other
        // threads.
        let stride = (2 + words).next_multiple_of(LINE).max(4 * LINE);
        let words: Box<[AtomicU64]> = (0..count * stride + LINE)
            .map(|_| AtomicU64::new(0))
            .collect();
        let start = words.as_ptr().align_offset(LINE_BYTES).min(LINE);
        Mailbox {
            words,
            start,
            stride,
        }
    }

    fn slot(&self, slot: usize) -> &[AtomicU64] {
        &self.words[self.start + slot * self.stride..][..self.stride]
    }

    /// Asks for the memory of these slots in order to write: other cores have read it last, and it
    /// takes a while to get it back.
    pub(super) fn prefetch_to_write(&self, slots: Range<usize>) {
        for slot in slots {
            prefetch_to_write(&self.slot(slot)[..LINE]);
        }
    }

    /// Writes the message of the client in this slot of the block, `bytes` long on the wire.
    ///
    /// # Panics
    /// If it does not fit: server and client must have the same compressor.
    pub(super) fn write(&self, slot: usize, bytes: usize, update: Option<&Update>) {
        const FITS: &str = "a slot has room for one message of the run's compressor";
        let (head, words) = self.slot(slot).split_at(2);
        let put = |word: &AtomicU64, low: u32, high: u32| {
            word.store(u64::from(low) | u64::from(high) << 32, Ordering::Relaxed);
        };
        let kind = match update.map(|update| (update.coordinates(), update.values())) {
            None => ABSENT,
            Some((Coordinates::Selected(chosen), values)) => {
                assert!(chosen.len() <= words.len(), "{FITS}");
                for ((word, &index), value) in words.iter().zip(chosen).zip(values) {
                    put(word, index, value.to_bits());
                }
                SELECTED
            }
            Some((Coordinates::All, values)) => {
                let (pairs, last) = values.as_chunks::<2>();
                assert!(pairs.len() + last.len() <= words.len(), "{FITS}");
                for (word, [low, high]) in words.iter().zip(pairs) {
                    put(word, low.to_bits(), high.to_bits());
                }
                if let [last] = last {
                    put(&words[pairs.len()], last.to_bits(), 0);
                }
                ALL
            }
        };
        let count = update.map_or(0, |update| update.values().len());
        head[0].store(bytes as u64, Ordering::Relaxed);
        head[1].store(kind | (count as u64) << 2, Ordering::Relaxed);
    }

    /// Asks for the first cache line of the first messages in order to read them.
    pub(super) fn prefetch_to_read(&self, count: usize) {
        /// More would have left the cache again before they are read.
        const MOST: usize = 64;
        for slot in 0..count.min(MOST) {
            prefetch(&self.slot(slot)[..LINE]);
        }
    }

    /// Reads the message of the client in this slot of the block.
    pub(super) fn read(&self, slot: usize) -> Received<'_> {
        let (head, words) = self.slot(slot).split_at(2);
        let [bytes, kind] = [0, 1].map(|place: usize| head[place].load(Ordering::Relaxed));
        let update = ReceivedUpdate {
            words,
            count: (kind >> 2) as usize,
            all: kind & 3 == ALL,
        };
        Received {
            bytes: bytes as usize,
            update: (kind & 3 != ABSENT).then_some(update),
        }
    }
}

impl ReceivedUpdate<'_> {
    /// Adds `scale` times the values to a dense vector.
    pub(super) fn add_to(self, scale: f32, target: &mut [f32]) {
        let words = self.words.iter().map(|word| word.load(Ordering::Relaxed));
        let [low, high] = [|word: u64| word as u32, |word: u64| (word >> 32) as u32];
        if self.all {
            for (pair, word) in target[..self.count].chunks_mut(2).zip(words) {
                for (target, bits) in pair.iter_mut().zip([low(word), high(word)]) {
                    *target += scale * f32::from_bits(bits);
                }
            }
        } else {
            for word in words.take(self.count) {
                target[low(word) as usize] += scale * f32::from_bits(high(word));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compress::{CompressorKind, CompressorName, Selection};
    use crate::privacy::Released;
    use crate::random::{IndexSeed, Purpose, SecretKey};

    /// Messages of every kind, next to each other, are read as they were written, also the second
    /// time.
    #[test]
    fn what_was_written_is_read() {
        const DIMENSION: usize = 13;
        let key = SecretKey::simulated(1, 1);
        for &name in CompressorName::ALL {
            let kind = CompressorKind::new(name, 5);
            let compressor = Compressor::new(kind, DIMENSION, 1.0).unwrap();
            let mailbox = Mailbox::new(3, &compressor);
            for round in 0..2 {
                mailbox.prefetch_to_write(0..3);
                let mut sent = Vec::new();
                for slot in 0..3u32 {
                    let mut selection = Selection::default();
                    let seed = IndexSeed::draw(&mut key.stream(slot, Purpose::Noise));
                    compressor.select(seed, &mut selection);
                    let values =
                        (0..compressor.values()).map(|i| (i as f32 + 7.0 * slot as f32).sin());
                    let released = Released::derived(values.collect());
                    let mut update = Update::default();
                    let mut coins = key.stream(slot, Purpose::Rounding);
                    compressor.encode(
                        &released,
                        &mut selection,
                        &mut coins,
                        &mut Vec::new(),
                        &mut update,
                    );
                    let present = slot != 1 || round == 0;
                    mailbox.write(
                        slot as usize,
                        10 + slot as usize,
                        present.then_some(&update),
                    );
                    sent.push((present, update));
                }
                for (slot, (present, update)) in sent.iter().enumerate() {
                    let received = mailbox.read(slot);
                    assert_eq!(received.bytes, 10 + slot);
                    let Some(found_update) = received.update else {
                        assert!(!present);
                        continue;
                    };
                    assert!(*present);
                    assert_eq!(found_update.count, update.values().len());
                    let (mut found, mut expected) = ([0.5; DIMENSION], [0.5; DIMENSION]);
                    found_update.add_to(0.3, &mut found);
                    update.add_to(0.3, &mut expected);
                    assert_eq!(found, expected);
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "room for one message")]
    fn a_message_that_does_not_fit_is_an_error() {
        let compressor = |kind| Compressor::new(kind, 500, 1.0).unwrap();
        let mailbox = Mailbox::new(1, &compressor(CompressorKind::RandK { k: 5 }));
        let mut update = Update::default();
        let released = Released::derived(vec![1.0; 500]);
        compressor(CompressorKind::Identity).encode(
            &released,
            &mut Selection::default(),
            &mut SecretKey::simulated(1, 1).stream(0, Purpose::Rounding),
            &mut Vec::new(),
            &mut update,
        );
        mailbox.write(0, 10, Some(&update));
    }
}
