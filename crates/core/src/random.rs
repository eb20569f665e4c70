//! Secret and public randomness, as different types: using one for the other does not compile.
//!
//! **Secret** randomness decides what a message hides: noise, minibatch coins, which coordinates
//! travel, quantisation coins. It comes from a [`SecretKey`], one per client, which in deployment
//! is filled by the operating system and in simulation derived from the run's seed. A key yields
//! one independent ChaCha20 stream per (round, [`Purpose`]), so results depend neither on threads
//! nor on the order in which clients run. A deployed client has two keys per round, [`ClientKeys`]:
//! it can then keep the coins that its memory depends on without keeping what its noise is made of.
//!
//! **Public** randomness is known to all: the start, the shared snapshot coin and coordinates
//! that all clients share come from a [`PublicSeed`] (ChaCha8); the data partition and synthetic
//! data from streams of their own (`data/public_random.rs`).
//!
//! An [`IndexSeed`] is first secret, then public: unless coordinates are shared, the client draws
//! it from its secret key *after* it has the model, and sends it, so that both sides derive the
//! same coordinates. It comes from a block of ChaCha20 output that nothing else uses
//! ([`IndexSeed::draw`]), so it says nothing about the blocks that make noise and coins.
//!
//! The rules that turn bits into numbers are written here and pinned by test vectors, because they
//! are a wire contract: [`below`] is Lemire's multiply-shift with rejection.

mod normal;
mod stream;

use std::ops::Range;

use chacha20::cipher::{KeyIvInit, StreamCipher};
use chacha20::{ChaCha8, ChaCha8Rng, ChaCha20Rng};
use rand::{Rng, SeedableRng, TryRng};
use zeroize::Zeroize;

use crate::linalg::vectorised;

pub(crate) use normal::BLOCK as NORMAL_BLOCK;
pub use normal::fill_standard_normal;
pub use stream::SecretRng;

/// What a secret stream is for. The numbers are part of the streams' definition and never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Purpose {
    /// The seed of the coordinates that travel, then Gaussian noise: see [`IndexSeed::draw`].
    Noise = 0,
    /// Minibatch coins.
    Sampling = 1,
    /// Rounding coins of quantising compressors.
    Rounding = 3,
    /// Whether the client takes part in this round.
    Participation = 4,
    /// Gaussian noise of a release before the first round, by a key of its own.
    Preliminary = 5,
}

/// A client's secret: the root of its noise, coins and coordinates. Prints nothing, and is wiped
/// when dropped.
#[derive(Clone)]
pub struct SecretKey([u8; 32]);

impl SecretKey {
    /// A fresh key from the operating system, the only kind that deployment may use.
    ///
    /// # Errors
    /// When the operating system cannot give randomness.
    pub fn from_operating_system() -> Result<Self, EntropyError> {
        let mut key = [0; 32];
        rand::rngs::SysRng
            .try_fill_bytes(&mut key)
            .map_err(|error| EntropyError(error.to_string()))?;
        Ok(Self(key))
    }

    /// A key that anybody who knows `seed` can derive: for simulation and tests only. The claim of
    /// a run that uses it is the one that would hold with secret seeds.
    pub fn simulated(seed: u64, client: u32) -> Self {
        let mut root = expand(seed, b"soteria simulated secret");
        root.set_stream(u64::from(client));
        let mut key = [0; 32];
        root.fill_bytes(&mut key);
        Self(key)
    }

    /// Bytes of a key.
    pub const LEN: usize = 32;

    /// The key itself, to derive others from it, and for a client that must be able to repeat a
    /// round's coins after a crash: as secret as its records, kept beside them, and erased when it
    /// is no longer needed.
    pub fn expose(&self) -> &[u8; Self::LEN] {
        &self.0
    }

    /// A key that this client has drawn and stored earlier.
    pub fn kept(key: [u8; Self::LEN]) -> Self {
        Self(key)
    }

    /// The stream for one purpose in one round.
    pub fn stream(&self, round: u32, purpose: Purpose) -> SecretRng {
        SecretRng::new(&self.0, (u64::from(round) << 8) | purpose as u64)
    }
}

impl Drop for SecretKey {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl std::fmt::Debug for SecretKey {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("SecretKey(..)")
    }
}

/// A client's two keys of a round. What the estimator remembers follows from the first alone, so
/// the second need never be stored.
#[derive(Clone, Debug)]
pub struct ClientKeys {
    /// Whether the client takes part, and its minibatch.
    pub coins: SecretKey,
    /// Everything else: noise, coordinates, rounding.
    pub noise: SecretKey,
}

impl ClientKeys {
    /// The stream for one purpose in one round.
    pub fn stream(&self, round: u32, purpose: Purpose) -> SecretRng {
        let key = match purpose {
            Purpose::Participation | Purpose::Sampling => &self.coins,
            Purpose::Noise | Purpose::Rounding | Purpose::Preliminary => &self.noise,
        };
        key.stream(round, purpose)
    }
}

impl From<SecretKey> for ClientKeys {
    /// One key for everything, as in simulation, where nothing is stored.
    fn from(key: SecretKey) -> Self {
        Self {
            coins: key.clone(),
            noise: key,
        }
    }
}

/// The operating system gave no randomness.
#[derive(Debug, thiserror::Error)]
#[error("the operating system gave no randomness: {0}")]
pub struct EntropyError(String);

/// What public randomness is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PublicPurpose {
    /// The start of the model.
    Start = 1,
    /// The shared snapshot coin of SVRG.
    Snapshot = 2,
    /// Coordinates that all clients send alike.
    Coordinates = 3,
    /// Which model a run returns.
    Iterate = 4,
    /// Which rows are tested on instead of trained on.
    Holdout = 6,
    /// Coordinates and rounding of what the server sends.
    Downlink = 12,
    /// Which clients talk to each other.
    Topology = 16,
}

/// The run's public seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublicSeed(pub u64);

impl PublicSeed {
    /// The stream for one purpose; `index` tells repeated uses apart (a round, a client).
    pub fn stream(&self, purpose: PublicPurpose, index: u32) -> impl Rng + use<> {
        let mut key = [0; 32];
        expand(self.0, b"soteria public").fill_bytes(&mut key);
        let mut rng = ChaCha8Rng::from_seed(key);
        rng.set_stream((u64::from(index) << 8) | purpose as u64);
        rng
    }

    /// The seed of the coordinates that all clients send in `round`.
    pub fn coordinates(&self, round: u32) -> IndexSeed {
        let mut seed = [0; IndexSeed::LEN];
        self.stream(PublicPurpose::Coordinates, round)
            .fill_bytes(&mut seed);
        IndexSeed(seed)
    }

    /// The shared snapshot coin of SVRG in `round`: heads with probability `probability`.
    pub fn snapshot_coin(&self, round: u32, probability: f64) -> bool {
        unit(&mut self.stream(PublicPurpose::Snapshot, round)) < probability
    }

    /// After which of `rounds` rounds a run ends that returns a random iterate: each is as likely
    /// as any other, and no record has a say.
    pub fn random_iterate(&self, rounds: u32) -> u32 {
        let share = unit(&mut self.stream(PublicPurpose::Iterate, 0));
        ((share * f64::from(rounds)) as u32 + 1).min(rounds)
    }
}

/// The seed from which both sides derive the coordinates that travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexSeed(pub [u8; IndexSeed::LEN]);

impl IndexSeed {
    /// Length on the wire.
    pub const LEN: usize = 16;

    /// Draws the seed of a round from the first block of the round's stream of noise
    /// ([`Purpose::Noise`]), and leaves the stream at its second block. Nothing else uses the first
    /// one, so that what is sent of it says nothing about the blocks that noise is made of.
    pub fn draw(noise: &mut SecretRng) -> Self {
        debug_assert!(noise.is_untouched(), "the seed is the stream's first block");
        let mut block = [0; 64];
        noise.fill_bytes(&mut block);
        let seed = block.first_chunk().expect("a seed is shorter than a block");
        Self(*seed)
    }

    /// Chooses `count` of `dimension` coordinates uniformly without replacement, ascending, into
    /// `chosen`.
    ///
    /// Floyd's algorithm: exactly `count` draws from the keystream of ChaCha8 keyed by the seed,
    /// marks in a bitmap, then one ascending scan. Cost `O(count + dimension/64)`; the bitmap is
    /// 1/32 of the model.
    ///
    /// # Panics
    /// If `count > dimension` or `dimension` exceeds `u32`.
    pub fn choose(
        &self,
        count: usize,
        dimension: usize,
        chosen: &mut Vec<u32>,
        marks: &mut Vec<u64>,
    ) {
        assert!(count <= dimension && u32::try_from(dimension).is_ok());
        marks.clear();
        marks.resize(dimension.div_ceil(64), 0);
        let mut key = *b"soteria random-k................";
        key[16..].copy_from_slice(&self.0);
        let mut cipher = ChaCha8::new(&key.into(), &[0; 12].into());
        // For its instructions that count and find bits.
        vectorised(
            #[inline(always)]
            || {
                let range = dimension - count..dimension;
                match count {
                    0..=64 => mark::<64>(&mut cipher, range, marks),
                    _ => mark::<256>(&mut cipher, range, marks),
                }
                list_marks(marks, count, chosen);
            },
        );
    }
}

/// Floyd's algorithm: for every `last` of the range draws a number up to it, and marks that number,
/// or `last` if it is marked already. `WORDS` random words are made at a time, or fewer, in whole
/// steps of the cipher, if fewer are needed.
#[inline(always)]
fn mark<const WORDS: usize>(cipher: &mut ChaCha8, range: Range<usize>, marks: &mut [u64]) {
    let Range {
        start: mut last,
        end,
    } = range;
    let mut words = [[0; 4]; WORDS];
    while last < end {
        let words = &mut words[..(end - last).next_multiple_of(64).min(WORDS)];
        words.fill([0; 4]);
        cipher.apply_keystream(words.as_flattened_mut());
        for word in words {
            if last == end {
                break;
            }
            let Some(draw) = below_of_word(u32::from_le_bytes(*word), last as u32 + 1) else {
                continue;
            };
            let draw = draw as usize;
            let taken = marks[draw / 64] >> (draw % 64) & 1 == 1;
            let mark = if taken { last } else { draw };
            marks[mark / 64] |= 1 << (mark % 64);
            last += 1;
        }
    }
}

/// Writes the places of the marked bits, `count` of them, in ascending order.
///
/// With a fixed number of steps per word, most of which are needed: how many bits a word has is
/// random, and the processor would mispredict the end of a loop over them nearly every time.
#[inline(always)]
fn list_marks(marks: &[u64], count: usize, chosen: &mut Vec<u32>) {
    const STEPS: usize = 6;
    chosen.clear();
    chosen.resize(count + STEPS, 0);
    let mut place = 0;
    for (word, &bits) in marks.iter().enumerate() {
        let (mut bits, first) = (bits, word as u32 * 64);
        let end = place + bits.count_ones() as usize;
        loop {
            let slots: &mut [u32; STEPS] = chosen[place..]
                .first_chunk_mut()
                .expect("there is room for unneeded steps");
            for slot in slots {
                *slot = first + (bits.trailing_zeros() & 63);
                bits &= bits.wrapping_sub(1);
            }
            place += STEPS;
            if place >= end {
                break;
            }
        }
        place = end;
    }
    chosen.truncate(count);
}

/// A uniform integer in `0..bound`, without bias. Part of the wire contract.
pub fn below<R: Rng + ?Sized>(rng: &mut R, bound: u32) -> u32 {
    loop {
        if let Some(number) = below_of_word(rng.next_u32(), bound) {
            return number;
        }
    }
}

/// The integer that a random word stands for; none if the word must be rejected.
#[inline(always)]
fn below_of_word(word: u32, bound: u32) -> Option<u32> {
    let product = u64::from(word) * u64::from(bound);
    let low = product as u32;
    // The threshold is below the bound, so the division is rarely needed.
    (low >= bound || low >= bound.wrapping_neg() % bound).then_some((product >> 32) as u32)
}

/// A uniform number in `[0, 1)` with 53 bits.
pub fn unit<R: Rng + ?Sized>(rng: &mut R) -> f64 {
    unit_of(rng.next_u64())
}

/// The number of [`unit()`] that belongs to a random word.
#[inline(always)]
pub(crate) fn unit_of(word: u64) -> f64 {
    (word >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
}

fn expand(seed: u64, domain: &[u8]) -> ChaCha20Rng {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    key[8..8 + domain.len()].copy_from_slice(domain);
    ChaCha20Rng::from_seed(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_differ_by_round_purpose_client_and_seed() {
        let first = |key: &SecretKey, round, purpose| key.stream(round, purpose).next_u64();
        let key = SecretKey::simulated(7, 3);
        let reference = first(&key, 5, Purpose::Noise);
        assert_eq!(
            reference,
            first(&SecretKey::simulated(7, 3), 5, Purpose::Noise)
        );
        assert_ne!(reference, first(&key, 6, Purpose::Noise));
        assert_ne!(reference, first(&key, 5, Purpose::Sampling));
        assert_ne!(
            reference,
            first(&SecretKey::simulated(7, 4), 5, Purpose::Noise)
        );
        assert_ne!(
            reference,
            first(&SecretKey::simulated(8, 3), 5, Purpose::Noise)
        );
        assert_ne!(
            first(
                &SecretKey::from_operating_system().unwrap(),
                0,
                Purpose::Noise
            ),
            first(
                &SecretKey::from_operating_system().unwrap(),
                0,
                Purpose::Noise
            )
        );
        assert_eq!(format!("{key:?}"), "SecretKey(..)");
    }

    /// Coins come from the one key, everything else from the other; one key for both is that key.
    #[test]
    fn coins_and_noise_have_keys_of_their_own() {
        let [one, other] = [1, 2].map(|client| SecretKey::simulated(7, client));
        let keys = ClientKeys {
            coins: one.clone(),
            noise: other.clone(),
        };
        let both = ClientKeys::from(one.clone());
        for (purpose, coins) in [
            (Purpose::Noise, false),
            (Purpose::Sampling, true),
            (Purpose::Rounding, false),
            (Purpose::Preliminary, false),
            (Purpose::Participation, true),
        ] {
            let first = |mut stream: SecretRng| stream.next_u64();
            let own = if coins { &one } else { &other };
            let expected = first(own.stream(3, purpose));
            assert_eq!(first(keys.stream(3, purpose)), expected, "{purpose:?}");
            let expected = first(one.stream(3, purpose));
            assert_eq!(first(both.stream(3, purpose)), expected, "{purpose:?}");
        }
    }

    /// The seed is the beginning of the stream's first block, and noise begins with the second.
    #[test]
    fn no_block_makes_both_a_seed_and_noise() {
        let key = SecretKey::simulated(7, 1);
        let mut noise = key.stream(3, Purpose::Noise);
        let seed = IndexSeed::draw(&mut noise);
        let mut stream = key.stream(3, Purpose::Noise);
        let mut blocks = [[0; 64]; 2];
        stream.fill_bytes(blocks.as_flattened_mut());
        assert_eq!(seed.0, blocks[0][..IndexSeed::LEN]);
        let mut first = [0; 64];
        noise.fill_bytes(&mut first);
        assert_eq!(first, blocks[1]);
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "first block")]
    fn an_index_seed_is_not_drawn_from_the_middle_of_a_stream() {
        let mut noise = SecretKey::simulated(1, 2).stream(3, Purpose::Noise);
        // As long as the buffer, so that nothing of it is left there.
        noise.fill_bytes(&mut [0; 256]);
        IndexSeed::draw(&mut noise);
    }

    /// Anybody with the public seed knows them, and they change with round and seed.
    #[test]
    fn shared_coordinates_follow_the_public_seed() {
        let seed = PublicSeed(7);
        assert_eq!(seed.coordinates(3), PublicSeed(7).coordinates(3));
        assert_ne!(seed.coordinates(3), seed.coordinates(4));
        assert_ne!(seed.coordinates(3), PublicSeed(8).coordinates(3));
    }

    #[test]
    fn coordinates_are_a_wire_contract() {
        let (mut chosen, mut marks) = (Vec::new(), Vec::new());
        IndexSeed(*b"0123456789abcdef").choose(6, 124, &mut chosen, &mut marks);
        assert_eq!(chosen, [12, 19, 61, 72, 98, 117]);
        IndexSeed([0; 16]).choose(5, 5, &mut chosen, &mut marks);
        assert_eq!(chosen, [0, 1, 2, 3, 4]);
        IndexSeed([0; 16]).choose(0, 5, &mut chosen, &mut marks);
        assert!(chosen.is_empty());
    }

    /// Every coordinate is chosen with probability k/d and every pair with k(k-1)/(d(d-1)).
    /// 4,000 seeds; a deviation of five standard errors in any of 8 counts has probability below
    /// 5e-6, and the seeds are fixed.
    #[test]
    fn every_iterate_is_as_likely() {
        let mut counts = [0u32; 8];
        for seed in 0..4000 {
            counts[PublicSeed(seed).random_iterate(8) as usize - 1] += 1;
        }
        let error = (4000.0f64 * 0.125 * 0.875).sqrt();
        assert!(
            counts
                .iter()
                .all(|&count| (f64::from(count) - 500.0).abs() < 5.0 * error)
        );
        assert_eq!(PublicSeed(3).random_iterate(1), 1);
    }

    /// 40,000 draws; a deviation of five standard errors in any of 10 + 45 counts has probability
    /// below 4e-5, and the seed is fixed.
    #[test]
    fn coordinates_are_uniform() {
        let (dimension, count, draws) = (10, 3, 40_000u32);
        let mut singles = [0f64; 10];
        let mut pairs = [[0f64; 10]; 10];
        let (mut chosen, mut marks) = (Vec::new(), Vec::new());
        let keys = ClientKeys::from(SecretKey::simulated(0, 0));
        for round in 0..draws {
            let seed = IndexSeed::draw(&mut keys.stream(round, Purpose::Noise));
            seed.choose(count, dimension, &mut chosen, &mut marks);
            for (position, &a) in chosen.iter().enumerate() {
                singles[a as usize] += 1.0;
                for &b in &chosen[position + 1..] {
                    pairs[a as usize][b as usize] += 1.0;
                }
            }
        }
        let within = |found: f64, p: f64| {
            let n = f64::from(draws);
            (found - n * p).abs() < 5.0 * (n * p * (1.0 - p)).sqrt()
        };
        assert!(
            singles.iter().all(|&found| within(found, 0.3)),
            "{singles:?}"
        );
        for (a, row) in pairs.iter().enumerate() {
            for (b, &found) in row.iter().enumerate().skip(a + 1) {
                assert!(within(found, 3.0 * 2.0 / 90.0), "{a} {b} {found}");
            }
        }
    }
}
